"""On the test device only, where `test_running.py` and `make test-accelerator` start these tests."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

import numpy as np
import paddle
import pytest
from optimizer_cases import VARIANTS, every_optimizer, make, same, states
from reference import make_params

import paddle_ldopt as ldopt

DEVICE = os.environ.get("LDOPT_DEVICE", "")
pytestmark = pytest.mark.skipif(not DEVICE.startswith("fake"), reason="test_running.py runs these on the test device")
COUNTS = ("h2d", "d2h", "d2d", "syncs", "launches")
QUIET = pytest.mark.filterwarnings("ignore:Conversion of an array")  # Paddle reads a scale of shape [1]


@contextlib.contextmanager
def on(device):
    paddle.set_device(device)
    yield
    paddle.set_device(DEVICE)


def counts():
    numbers = (ctypes.c_long * len(COUNTS))()
    ctypes.CDLL(os.path.join(os.environ["CUSTOM_DEVICE_ROOT"], "libfake.so")).fake_counts(numbers)
    return np.array(numbers)


def test_host_code_that_touches_its_memory_is_killed():
    code = "import ctypes, paddle; paddle.set_device('fake:0'); ctypes.string_at(paddle.ones([4]).data_ptr(), 16)"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == -signal.SIGSEGV


def test_new_memory_is_nan_and_copies_are_counted():
    before = counts()
    there, launched = paddle.empty([12_000_000]), counts()  # more than Paddle has kept of earlier tests
    assert np.isnan(there.numpy()).all() and (launched - before)[:4].tolist() == [0, 0, 0, 0]
    assert dict(zip(COUNTS, counts() - launched))["d2h"] == 1
    before = counts()
    here = np.ones([4, 6], "float32")
    assert paddle.to_tensor(here).place._equals(there.place) and dict(zip(COUNTS, counts() - before))["h2d"] == 1


def params_of(dtype="float32", shapes=((4, 6), (4, 6), (6,), (6,), (2, 3, 4), ())):
    random = np.random.default_rng(0)
    arrays = {f"w{i}": np.asarray(random.normal(size=shape)) for i, shape in enumerate(shapes)}
    return list(make_params(arrays, dtype)[0].values())


def take_steps(opt, params, steps=3, skip=lambda step: (), scaler=None, place=None):
    """Take steps; return the counts of the copies, synchronisations and launches of each."""
    random, counted = np.random.default_rng(1), []
    for step in range(steps):
        for i, p in enumerate(params):
            grad = random.normal(size=p.shape).astype("float32")
            p.grad = None if i in skip(step) else paddle.to_tensor(grad, place=place or p.place).astype(p.dtype)
        before = counts()
        opt.step() if scaler is None else scaler.step(opt)
        counted.append(counts() - before)
        if scaler is not None:
            scaler.update()
        if isinstance(opt._learning_rate, paddle.optimizer.lr.LRScheduler):
            opt._learning_rate.step()
    return counted


def trained(name, dtype, device=DEVICE, place=None):
    """Return the parameters, masters and states after three steps, as float32 arrays."""
    with on(device), paddle.utils.unique_name.guard():
        params = params_of(dtype)
        with on(place or device):
            opt = make(name, params, fused=False, multi_precision=dtype != "float32")
            take_steps(opt, params)
        values = {**{p.name: p for p in params}, **opt._master_weights}
        values.update({f"{key} of {name}": v for key, of in opt._accumulators.items() for name, v in of.items()})
        return {key: value.astype("float32").numpy() for key, value in values.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_an_optimizer_agrees_with_the_cpu(name, dtype):
    """Also without kernels (FAKE_WITHOUT)."""
    if name == "adamwdl" and dtype != "float32" and "adamw" not in os.environ.get("FAKE_WITHOUT", ""):
        pytest.skip("on a CPU the rule takes the place of Paddle's kernel, which rounds otherwise")
    same(trained(name, dtype), trained(name, dtype, "cpu"))


@every_optimizer
def test_parameters_on_another_device_than_the_current_one(name):
    same(trained(name, "float32", "cpu", DEVICE), trained(name, "float32", "cpu"))
    same(trained(name, "float32", DEVICE, "cpu"), trained(name, "float32", "cpu"))


@pytest.mark.parametrize("name", ["adafactor", "adamweightdecay", "came", "lamb", "muon"])
def test_a_steady_step_beside_the_current_device_copies_nothing(name):
    """AdamWDL does, as Paddle's AdamW: its state is on the device of the first step."""
    with paddle.utils.unique_name.guard():
        params = params_of()
        opt = make(name, params)
    with on("cpu"):
        counted = take_steps(opt, params, 5)
    assert not np.any([of_step[:3] for of_step in counted[3:]])


@pytest.mark.parametrize("reduction", ["sum", "mean", "token"])
def test_gradients_are_accumulated_on_their_device(reduction):
    accumulator = ldopt.GradientAccumulator(reduction)
    given, before = [paddle.full([3], 2.0)], counts()
    with on("cpu"):
        for weight in (1, 3):
            accumulator(given, **({"weight": weight} if reduction == "token" else {}))
        (gradient,) = accumulator.gradients
    assert not np.any((counts() - before)[:3])
    assert str(gradient.place) == f"Place({DEVICE})"
    assert gradient.tolist() == [4.0 if reduction == "sum" else 2.0] * 3


@every_optimizer
def test_parameters_on_two_devices(name):
    """As in pipelines of one process: those of one shape are not stacked together."""
    with paddle.utils.unique_name.guard():
        params, others = params_of("float32"), params_of("float32")
        with on("cpu"):
            moved = [paddle.create_parameter(p.shape, "float32", name=f"{p.name}_cpu") for p in others]
            for param, other in zip(moved, others):
                param.set_value(other.numpy())
        opt = make(name, [*params, *moved], fused=False)
        take_steps(opt, opt._parameter_list)
    assert all(p.place.is_cpu_place() for p in moved) and not any(p.place.is_cpu_place() for p in params)
    assert all(np.isfinite(p.numpy()).all() and not p.equal_all(o) for p, o in zip(moved, others))


def groups(name, params):
    own = "learning_rate" if name in ("adamwdl", "adamweightdecay") else "lr"
    return [{"params": params[:3]}, {"params": params[3:], own: 0.003, "weight_decay": 0.0}]


STEADY = {
    "plain": {},
    "layer rates": {"lr_ratio": lambda p: 0.5 ** (int(p.name.rpartition("_")[2]) % 3)},
    "groups": {"parameters": groups},
    "schedule": {"learning_rate": lambda: ldopt.get_cosine_schedule_with_warmup(1e-2, 2, 8)},
    "clipping": {"grad_clip": paddle.nn.ClipGradByGlobalNorm(1.0)},
    "masters": {"dtype": "bfloat16", "multi_precision": True},
}


@pytest.mark.representatives(count=16)
@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("feature", [*STEADY, "all"])
@every_optimizer
def test_a_steady_step_reads_nothing(name, feature, missing, scaler):
    chosen = {k: v for f, values in STEADY.items() if feature in (f, "all") for k, v in values.items()}
    with paddle.utils.unique_name.guard():
        params = params_of(chosen.pop("dtype", "float32"))
        given = chosen.pop("parameters", lambda name, params: params)(name, params)
        if "learning_rate" in chosen:
            chosen["learning_rate"] = chosen["learning_rate"]()
        opt = make(name, given, **chosen)
        by_scaler = paddle.amp.GradScaler(init_loss_scaling=8.0) if scaler else None
        counted = take_steps(opt, params, 8, lambda step: ((), (0, 4), (2,))[step % 3] if missing else (), by_scaler)
    for of_step in counted[3:]:
        steady = dict(zip(COUNTS, of_step))
        assert [steady[key] for key in ("h2d", "d2h", "d2d")] == [0, int(scaler), 0], steady
        assert scaler or steady["syncs"] == 0


def test_a_schedule_reads_the_rate_of_one_parameter():
    with paddle.utils.unique_name.guard():
        params = params_of()
        opt = ldopt.Adafactor(params, warmup_init=True)
        schedule = ldopt.AdafactorSchedule(opt)
    take_steps(opt, params)
    before = counts()
    schedule.step()
    assert dict(zip(COUNTS, counts() - before))["d2h"] == 2  # its number of updates and its rate
    assert schedule.get_lr() == [opt.get_lr()] == [opt.used_lr()[params[0].name]] != [0.0]


def network():
    paddle.seed(1)
    net = paddle.nn.Sequential(paddle.nn.Linear(6, 8), paddle.nn.LayerNorm(8), paddle.nn.Linear(8, 1))
    for p, seed in zip(net.parameters(), range(9)):
        p.set_value(np.random.default_rng(seed).normal(size=p.shape).astype("float32"))
    return net


def amp(name, level, path, steps=6, resume_at=None):
    """Train with autocast and a GradScaler that overflows in the third step; save everything, or resume from there."""
    with paddle.utils.unique_name.guard():
        net = network()
        opt = make(name, net.parameters())
        net, opt = paddle.amp.decorate(net, opt, level=level, dtype="float16", master_weight=True)
        scaler = paddle.amp.GradScaler(init_loss_scaling=64.0, decr_every_n_nan_or_inf=1)
        if resume_at is not None:
            net.set_state_dict(paddle.load(f"{path}.pdparams"))
            opt.set_state_dict(paddle.load(f"{path}.pdopt"))
            scaler.load_state_dict(paddle.load(f"{path}.scaler"))
        losses = []
        for step in range(resume_at or 0, steps):
            x = paddle.to_tensor(np.random.default_rng(step).normal(size=(16, 6)).astype("float32"))
            with paddle.amp.auto_cast(level=level, dtype="float16"):
                loss = (net(x).astype("float32") - x.sum(1, keepdim=True)).square().mean()
            losses.append(float(loss))
            scaler.scale(loss * (np.inf if step == 2 else 1.0)).backward()
            before = states(opt)
            scaler.step(opt)
            if step == 2:
                same(states(opt), before)
            scaler.update()
            opt.clear_grad()
            if step == 3 and resume_at is None:
                paddle.save(net.state_dict(), f"{path}.pdparams")
                paddle.save(opt.state_dict(), f"{path}.pdopt")
                paddle.save(scaler.state_dict(), f"{path}.scaler")
        values = {p.name: p.astype("float32").numpy() for p in net.parameters()}
        values.update({f"master of {key}": master.numpy() for key, master in opt._master_weights.items()})
        assert scaler.is_enable() and bool(opt._master_weights) == (level == "O2")
        return {**values, **states(opt), "loss": np.array(losses[-2:]), "scale": scaler._scale.numpy()}, losses


AUTOCAST = pytest.mark.skipif("LDOPT_AS_CUDA" in os.environ, reason="Paddle's autocast asks CUDA for its capability")


@AUTOCAST
@QUIET
@pytest.mark.parametrize("level", ["O1", "O2"])
@every_optimizer
def test_mixed_precision_with_overflows_resumes_exactly(name, level, tmp_path):
    whole, losses = amp(name, level, tmp_path / "saved")
    again, _ = amp(name, level, tmp_path / "saved", resume_at=4)
    same(again, whole)
    assert losses[-1] < losses[0] and whole["scale"] == 32.0


def test_the_rate_is_float32_under_a_16_bit_default_type():
    moved = []
    for default in ("float32", "float16"):
        with paddle.utils.unique_name.guard():
            model = paddle.nn.Layer()
            model.layers = paddle.nn.LayerList(paddle.nn.Linear(3, 3) for _ in range(2)).to(dtype="float16")
            opt = paddle.optimizer.AdamW(1e-8, parameters=model.parameters(), multi_precision=True)
            ldopt.apply_layerwise_decay(opt, ldopt.LayerMap.from_model(model), 0.5)
        paddle.set_default_dtype(default)
        for p in model.parameters():
            p.grad = paddle.ones(p.shape, "float16")
        opt.step()
        paddle.set_default_dtype("float32")
        moved.append(opt._master_weights[model.layers[0].bias.name].numpy())
    assert moved[0].all()
    np.testing.assert_array_equal(*moved)


@AUTOCAST
@pytest.mark.parametrize("name", ["adamwdl", "came"])
def test_weights_loaded_after_decorate_stay(name):
    net = network()
    opt = make(name, net.parameters())
    net, opt = paddle.amp.decorate(net, opt, level="O2", dtype="float16", master_weight=True)
    for param in net.parameters():
        param.set_value(paddle.full(param.shape, 3.0, param.dtype))
    with paddle.amp.auto_cast(level="O2", dtype="float16"):
        net(paddle.ones([2, 6])).mean().backward()
    opt.step()
    for param in net.parameters():
        assert 0 < (param.astype("float32") - 3.0).abs().max() < 0.5 or param.grad.abs().max() == 0


@AUTOCAST
@pytest.mark.parametrize("name", ldopt.list_optimizers())
def test_a_step_inside_autocast_is_one_outside(name):
    more = {"use_muon": lambda param: param.ndim == 2} if name == "muon" else {}
    moved = []
    for cast in (False, True):
        with paddle.utils.unique_name.guard():
            net = network()
            opt = ldopt.create(name, net, learning_rate=1e-2, weight_decay=0.1, **more)
        for param, seed in zip(net.parameters(), range(9)):
            param.grad = paddle.to_tensor(np.random.default_rng(seed).normal(size=param.shape).astype("float32"))
        with paddle.amp.auto_cast(cast, level="O2", dtype="float16", use_promote=False):
            opt.step()
        assert paddle.is_grad_enabled()
        moved.append({param.name: param.numpy() for param in net.parameters()})
    same(*moved)
