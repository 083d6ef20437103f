"""`fused=`: the optimizers with the C library against the same without it, and where each is used."""

import os
import subprocess
import sys

import numpy as np
import paddle
import pytest
from kernel_cases import SHAPES, problem
from optimizer_cases import OF_LIBRARY, VARIANTS, make, same, static_graph
from reference import bert_like, make_params, needs_library, take_steps

import paddle_ldopt as ldopt
from paddle_ldopt import kernels
from paddle_ldopt.optimizers import fused as fused_step

pytestmark = needs_library

# the library has no rule of Muon
every_variant = pytest.mark.parametrize("name", [name for name in (*VARIANTS, *OF_LIBRARY) if name != "muon"])


def run(name, arrays, grads, each_step=None, **more):
    """Train new parameters; return what they become, and the optimizer."""
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        opt = make(name, list(params.values()), **more)
        after = None if each_step is None else lambda: each_step(opt)
        return {n: a.copy() for n, a in take_steps(opt, params, grads, after).items()}, opt


def close(got, want, start, tolerance=1e-4):
    """Compare relative to the distance that each parameter moved."""
    for n, array in want.items():
        moved = np.abs(array - start[n]).max(initial=1e-6)
        np.testing.assert_allclose(got[n], array, rtol=2e-6, atol=tolerance * moved, err_msg=n)


def kinds_of_state(opt):
    return {key: (x.shape, x.dtype) for key, x in opt.state_dict().items() if isinstance(x, paddle.Tensor)}


@pytest.mark.parametrize("steps", [4, pytest.param(20, marks=pytest.mark.slow)])
@every_variant
def test_steps_equal_those_of_paddles_operations(name, steps):
    arrays, grads = problem(steps=steps)
    want, plain = run(name, arrays, grads, fused=False)
    got, opt = run(name, arrays, grads, fused=True)
    close(got, want, arrays, 2e-3 if "compressed" in name else 1e-4)  # float16 may be rounded one way or the other
    assert kinds_of_state(opt) == kinds_of_state(plain)


@pytest.mark.parametrize("option", ["clipvalue", "clipnorm"])
def test_the_clipping_of_a_group_follows_that_of_all(option):
    arrays, grads = problem(steps=3, shapes={n: SHAPES[n] for n in ("odd", "small", "volume")})

    def train(fused):
        with paddle.utils.unique_name.guard():
            params, _ = make_params(arrays)
            first, *rest = params.values()
            groups = [{"params": [first], option: 0.05}, {"params": rest}]
            clip = paddle.nn.ClipGradByGlobalNorm(0.5)
            opt = ldopt.AdamWeightDecay(0.01, parameters=groups, grad_clip=clip, fused=fused)
            return take_steps(opt, params, grads)

    close(train(True), train(False), arrays)


def test_parameters_of_one_memory_take_turns():
    param, other = (paddle.create_parameter([3], "float32") for _ in range(2))
    param._share_buffer_to(other)
    opt = ldopt.AdamWDL(0.1, parameters=[param, other], weight_decay=0.0)
    before = param.numpy().copy()
    param.grad, other.grad = paddle.ones([3]), paddle.ones([3])
    opt.step()
    np.testing.assert_allclose(before - other.numpy(), 0.2, rtol=1e-5)
    opt.fused = True
    with pytest.raises(ValueError, match="another parameter has its memory.* Received: fused=True"):
        opt.step()


def test_what_is_clipped_is_what_paddle_clips():
    arrays, grads = bert_like(steps=4)
    results = []
    for fused in (False, True):
        with paddle.utils.unique_name.guard():
            params, names = make_params(arrays)
            params["classifier.weight"].need_clip = False
            hook = lambda p, names=names: 0.0 if "pooler" in names[p.name] else 1.0  # noqa: E731
            how = {"set_param_lr_fun": hook, "grad_clip": paddle.nn.ClipGradByGlobalNorm(0.1), "epsilon": 0.1}
            opt = make("adamwdl", list(params.values()), fused=fused, **how)
            results.append(take_steps(opt, params, grads))
    close(results[1], results[0], arrays)


def test_gradients_that_are_not_contiguous():
    results = []
    for fused in (False, True):
        with paddle.utils.unique_name.guard():
            paddle.seed(0)
            weight, other = paddle.create_parameter([6, 4], "float32"), paddle.create_parameter([3], "float32")
            opt = ldopt.Came(0.01, parameters=[weight, other], fused=fused)
            for _ in range(3):
                (weight.t() * paddle.arange(24.0).reshape([4, 6])).sum().backward()
                other.square().sum().backward()
                assert not weight.grad.is_contiguous()
                opt.step()
                opt.clear_grad(set_to_zero=False)
            results.append(weight.numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["adamwdl", "came", "lamb", "adafactor", "adamweightdecay"])
def test_fused_true_says_why_not(name):
    wide, narrow = paddle.create_parameter([3], "float64"), paddle.create_parameter([3], "float32")
    wide.grad, narrow.grad = paddle.ones([3], "float64"), paddle.ones([3])
    before = wide.numpy().copy(), narrow.numpy().copy()
    with pytest.raises(ValueError, match="type is .*float64.* Received: fused=True$"):
        make(name, [wide, narrow], fused=True).step()
    assert (wide.numpy() == before[0]).all() and (narrow.numpy() == before[1]).all()
    make(name, [wide, narrow]).step()  # with None Paddle's operations do the rest
    assert (wide.numpy() != before[0]).all() and (narrow.numpy() != before[1]).all()
    with static_graph(), pytest.raises(ValueError, match="static graph.*Received: fused=True"):
        make(name, None, fused=True)


@pytest.mark.parametrize("option", ["beta1", "beta2", "epsilon"])
def test_an_option_that_is_a_tensor(option):
    arrays, grads = bert_like(steps=3)
    got, want = (run("adamwdl", arrays, grads, fused=f, **{option: paddle.to_tensor(0.5)})[0] for f in (True, False))
    close(got, want, arrays)
    assert any((want[n] != array).any() for n, array in run("adamwdl", arrays, grads, fused=False)[0].items())


def test_without_the_library(monkeypatch):
    arrays, grads = bert_like(steps=2)
    want, _ = run("came", arrays, grads, fused=False)
    monkeypatch.setattr(kernels, "library", lambda: None)
    monkeypatch.setattr(kernels, "found", lambda: (None, "it was not built"))
    fused_step._warn_once.cache_clear()
    with pytest.raises(ValueError, match="it was not built.* Received: fused=True"):
        run("came", arrays, grads, fused=True)
    with pytest.warns(UserWarning, match="it was not built") as warned:
        got, _ = run("came", arrays, grads)
        run("lamb", arrays, grads)
    assert len(warned) == 1 and warned[0].filename == take_steps.__code__.co_filename, "shown where `step` is called"
    same(got, want)


@pytest.mark.representatives(count=1)
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak cannot be reset")
@pytest.mark.parametrize("name", ["adafactor", "came", "lamb"])
def test_a_step_allocates_nothing_the_size_of_a_parameter(name):
    code = f"""
import sys; sys.path[:0] = {sys.path!r}
import gc, optimizer_cases, paddle
shapes = dict(a=[30522, 768], b=[768, 3072], c=[3072, 768], d=[768])  # BERT-base's largest, and a vector
flat = paddle.nn.initializer.Constant(0.02)
params = {{n: paddle.create_parameter(s, "float32", default_initializer=flat) for n, s in shapes.items()}}
opt = optimizer_cases.make({name!r}, list(params.values()))
def peak(): return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
def risen(work):
    gc.collect(); open("/proc/self/clear_refs", "w").write("5")
    before = peak(); work(); return peak() - before
for p in params.values(): p.grad = paddle.full(p.shape, 0.01)
for _ in range(2): opt.step()
print(risen(opt.step), risen(lambda: paddle.ones([3072, 768]) * 2))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    transient, control = map(int, run.stdout.splitlines()[-1].split())
    assert transient < 2048 < control, "KB"
