"""Long runs: memory stays flat, the loss falls, and threads do what one would do; fused and by Paddle's operations."""

import concurrent.futures
import gc
import pathlib

import numpy as np
import paddle
import pytest
from optimizer_cases import OPTIMIZERS, make, same
from reference import make_params
from test_bad_numbers import either_path, states

FIRST = "came"  # stands for all in `make test`
slow_but_first = [name if name == FIRST else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS]
every_optimizer = pytest.mark.parametrize("name", slow_but_first)
long = [pytest.mark.fault, pytest.mark.timeout(3600)]
STATUS = pathlib.Path("/proc/self/status")
resident = pytest.mark.skipif(not STATUS.exists(), reason="no /proc")


def kilobytes():
    """Return what the process has in memory, once what is left over was collected."""
    gc.collect()
    return int(STATUS.read_text().split("VmRSS:")[1].split()[0])


def problem(seed=0):
    rng = np.random.default_rng(seed)
    return {"matrix": rng.normal(size=(8, 4)) + 3.0, "vector": rng.normal(size=8) + 3.0}


def train(opt, params, steps):
    """Go towards 0, which each parameter's own value is the gradient of; return the loss at the end."""
    for _ in range(steps):
        for param in params.values():
            param.grad = param.detach().clone()
        opt.step()
        opt.clear_grad(set_to_zero=False)
    return sum(float((param.numpy() ** 2).sum()) for param in params.values())


def build(name, fused, seed=0, **more):
    params, _ = make_params(problem(seed))
    return make(name, list(params.values()), fused=fused, **more), params


def arrays(params):
    return {n: p.numpy().copy() for n, p in params.items()}


@pytest.mark.promise("100,000 steps leak no memory", seen="growth below 2 MiB")
@resident
@pytest.mark.parametrize("steps", [200, pytest.param(100_000, marks=long)])
@either_path
@every_optimizer
def test_steps(name, fused, steps):
    opt, params = build(name, fused, learning_rate=1e-3)
    losses = [train(opt, params, 0), train(opt, params, steps // 5)]
    used = [kilobytes()]
    for _ in range(4):
        losses.append(train(opt, params, steps // 5))
        used.append(kilobytes())
    assert max(used) - used[0] < 2048, f"KB after each fifth: {used}"  # 26 bytes a step are seen in the long run
    assert np.isfinite(losses).all()
    if steps == 200:
        assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    else:
        assert losses[-1] < 1e-2 * losses[0]


@pytest.mark.promise("1,000 rounds of `state_dict` and `set_state_dict` leak no memory", seen="growth below 2 MiB")
@resident
@pytest.mark.parametrize("cycles", [20, pytest.param(1000, marks=long)])
@either_path
@every_optimizer
def test_states_that_are_saved_and_loaded(name, fused, cycles):
    with paddle.utils.unique_name.guard():
        opt, params = build(name, fused)
        train(opt, params, 1 + cycles)
        want, wanted = arrays(params), states(opt)
    with paddle.utils.unique_name.guard():
        opt, params = build(name, fused)
        train(opt, params, 1)
        used = []
        for i in range(cycles):
            saved = {k: v.numpy().copy() if isinstance(v, paddle.Tensor) else v for k, v in opt.state_dict().items()}
            opt.set_state_dict(saved)
            train(opt, params, 1)
            if i % max(1, cycles // 5) == 0:
                used.append(kilobytes())
        same(arrays(params), want)
        same(states(opt), wanted)
    assert max(used[1:]) - used[1] < 2048, f"KB: {used}"


@pytest.mark.promise(
    "threads that each train their own model give the same bits as a single thread", seen="8 threads, 2,000 steps each"
)
@pytest.mark.parametrize("threads, steps", [(4, 20), pytest.param(8, 2000, marks=long)])
@either_path
@every_optimizer
def test_threads(name, fused, threads, steps):
    def trained(built):
        opt, params = built
        train(opt, params, steps)
        return arrays(params)

    want = [trained(build(name, fused, seed)) for seed in range(threads)]
    built = [build(name, fused, seed) for seed in range(threads)]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        got = list(pool.map(trained, built))
    for one, other in zip(got, want):
        same(one, other)
    assert any((want[0][n] != want[1][n]).any() for n in want[0])
