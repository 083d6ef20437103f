"""Adafactor and Came: their papers in float64 NumPy; arguments; AdafactorSchedule. test_parity.py has trajectories."""

import math
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from optimizer_cases import close
from reference import make_params, random_run, take_steps
from reference_optimizers import adafactor, came

from paddle_ldopt import Adafactor, AdafactorSchedule, Came
from paddle_ldopt.rates import applied_rates, rates_of_optimizer

EXTERNAL = {"lr": 0.01, "relative_step": False, "scale_parameter": False}


def problem(steps=20):
    """Return parameters of every rank and random gradients of several sizes, as float32 numbers."""
    arrays, grads = random_run(steps)
    sizes = 10.0 ** np.random.default_rng(0).integers(-3, 3, size=steps)
    return arrays, [{n: (g * size).astype("float32") for n, g in grad.items()} for grad, size in zip(grads, sizes)]


OF_ADAFACTOR = {
    "defaults": {},
    "external": EXTERNAL,
    "external, scaled": {**EXTERNAL, "scale_parameter": True},
    "warm-up": {"warmup_init": True},
    "relative, not scaled": {"scale_parameter": False},
    "momentum and decay": {"beta1": 0.9, "weight_decay": 0.1},
    "no momentum to speak of": {"beta1": 0.0},
    "eps": {"eps": (1e-3, 2.0)},  # above the RMS of the weights
    "clip": {"clip_threshold": 0.3},
    "weak clip": {"clip_threshold": 2.0},
    "hardly a clip": {"clip_threshold": 100.0},
    "no memory": {"decay_rate": 0.0},
    "short memory": {"decay_rate": -0.3},
}


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("options", OF_ADAFACTOR.values(), ids=OF_ADAFACTOR)
def test_adafactor_matches_the_float64_reference(options, dtype, rtol):
    arrays, grads = problem()
    params, _ = make_params(arrays, dtype)
    got = take_steps(Adafactor(list(params.values()), **options), params, grads)
    close(got, adafactor(arrays, grads, **options), arrays, rtol)


def test_schedule_reports_the_rates_used():
    arrays, grads = problem(steps=5)
    grads = [{n: None if n == "0-D" and i < 3 else g for n, g in grad.items()} for i, grad in enumerate(grads)]
    params, _ = make_params(arrays, "float64")
    values, used, reported, in_full = list(params.values()), [], [], []
    opt = Adafactor([{"params": values[:1]}, {"params": values[1:4]}, {"params": values[4:], "learning_rate": 0.1}])
    schedule = AdafactorSchedule(opt, initial_lr=0.25)
    assert isinstance(schedule, paddle.optimizer.lr.LRScheduler)
    assert schedule.get_lr() == schedule.get_last_lr() == [0.25] * 3
    assert schedule() == schedule.last_lr == 0.25

    def each_step():
        schedule.step()
        reported.append(schedule.get_lr())
        in_full.append(opt.used_lr())

    take_steps(opt, params, grads, each_step)
    adafactor(arrays, grads, {n: 0.1 if i >= 4 else 1.0 for i, n in enumerate(arrays)}, used=used)
    for got, all_of_them, want in zip(reported, in_full, used):
        np.testing.assert_allclose(got, [want.get("0-D", 0.25), want["one"], want["column"]], rtol=1e-12)
        want = {params[n].name: rate for n, rate in want.items()}
        assert all_of_them == pytest.approx(want, rel=1e-12)
    assert schedule() == schedule.last_lr == reported[-1][0] == opt.get_lr()
    assert schedule.last_epoch == 5


def test_schedule_state(tmp_path):
    arrays, grads = problem(steps=3)
    params, _ = make_params(arrays)
    opt = Adafactor(list(params.values()))
    schedule = AdafactorSchedule(opt)
    take_steps(opt, params, grads, schedule.step)
    paddle.save(schedule.state_dict(), str(tmp_path / "scheduler.pdparams"))
    state = paddle.load(str(tmp_path / "scheduler.pdparams"))
    assert state == {"last_epoch": 3, "last_lr": schedule.last_lr, "last_lrs": [schedule.last_lr]}
    opt = Adafactor(list(params.values()))
    other = AdafactorSchedule(SimpleNamespace(_inner_opt=opt))
    assert other.optimizer is opt, "it looks through wrappers"
    other.load_state_dict(state)
    assert other() == schedule() > 0
    assert other.get_last_lr() == schedule.get_last_lr()
    other.step(7)
    assert other.last_epoch == 7


def test_a_table_of_scaled_rates_has_the_applied_ones():
    params, _ = make_params({"w": np.ones((2, 3), "float32"), "b": np.zeros(3, "float32")})
    opt = Adafactor(list(params.values()), **{**EXTERNAL, "scale_parameter": True})
    assert all(rate.now is None for rate in rates_of_optimizer(opt).values())
    for param in params.values():
        param.grad = paddle.ones(param.shape)
    opt.step()
    now = {name: rate.now for name, rate in rates_of_optimizer(opt).items()}
    assert now == applied_rates(opt) == pytest.approx({params["w"].name: 0.01, params["b"].name: 1e-5})


# Came


def train(arrays, grads, dtype="float64", **arguments):
    """Train new parameters and return what they become."""
    params, _ = make_params(arrays, dtype)
    arguments.setdefault("parameters", list(params.values()))
    if callable(arguments["parameters"]):
        arguments["parameters"] = arguments["parameters"](params)
    return take_steps(Came(**arguments), params, grads)


def states(opt, params, state_name="exp_avg"):
    """Return parameter name -> one state, as a float64 array."""
    return {n: opt._accumulators[state_name][p.name].astype("float64").numpy() for n, p in params.items()}


OF_CAME = {
    "MindFormers": {},
    "authors": {"beta2": 0.999, "beta3": 0.9999},
    "decay": {"weight_decay": 0.1, "decay_rate": 0.5},
    "scaled": {"scale_parameter": True, "weight_decay": 0.1, "eps": (1e-8, 0.9, 1e-4)},
    "relative": {"relative_step": True},
    "relative, warm-up, scaled": {"relative_step": True, "warmup_init": True, "scale_parameter": True},
    "clipped": {"clip_threshold": 0.1, "beta1": 0.5, "beta3": 0.0},
    "loss scale": {"loss_scale": 2, "eps": (1e-3, 1e-3, 1e-16)},
    "no momentum": {"beta1": 0.0, "weight_decay": 0.1},
}


@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("variant", OF_CAME)
def test_came_matches_the_float64_reference(variant, dtype, rtol):
    arrays, grads = random_run()
    how = OF_CAME[variant]
    rate = None if how.get("relative_step") else 1e-3
    got = train(arrays, grads, dtype, learning_rate=rate, **how)
    close(got, came(arrays, grads, rate or 1.0, **how), arrays, rtol)


@pytest.mark.parametrize("more, rms", [({}, 1.11), ({"beta2": 0.999, "beta3": 0.9999}, 11.1)])
def test_first_step_is_as_large_as_the_docstring_says(more, rms):
    arrays, grads = random_run(1, {"w": (40, 30)})
    got = train(arrays, grads, learning_rate=1e-3, **more)
    moved = (got["w"] - arrays["w"]) / 1e-3
    assert math.sqrt((moved**2).mean()) == pytest.approx(rms, rel=0.03)


@pytest.mark.representatives(count=2)
@pytest.mark.parametrize("mixed", [False, True], ids=["plain", "mixed"])
@pytest.mark.parametrize("beta1", [0.5, 0.9, 0.99])
def test_compression_keeps_m_within_its_bound(beta1, mixed):
    """Mixed gradients are from 1e-9 to 1e4, with zeros and a spike of 1e3."""
    arrays, grads = random_run(steps=40)
    for i, n in enumerate(arrays if mixed else ()):
        for t, grad in enumerate(grads):
            grad[n] = grad[n] * 10.0 ** (-9 + 13 * i / (len(arrays) - 1)) * (1e3 if t == 20 else 0.0 if t == 10 else 1)
    runs = []
    for compression in (False, True):
        params, _ = make_params(arrays, "float64")
        opt = Came(1e-3, beta1=beta1, compression=compression, parameters=list(params.values()))
        runs.append((opt, params))
    largest = dict.fromkeys(arrays, 0.0)
    for grad in grads:
        for opt, params in runs:
            take_steps(opt, params, [grad])
        exact, stored = (states(opt, params) for opt, params in runs)
        for n in arrays:
            largest[n] = max(largest[n], np.abs(exact[n]).max(), np.abs(stored[n]).max())
            bound = (2**-11 * largest[n] + 2**-24) / (1 - beta1)
            assert np.abs(stored[n] - exact[n]).max() <= bound, n
    assert any(np.abs(stored[n] - exact[n]).max() > 0 for n in arrays)
    for n, p in runs[0][1].items():  # the path: less than 0.5% off
        exact, stored = p.numpy(), runs[1][1][n].numpy()
        assert np.abs(stored - exact).max() <= 5e-3 * np.abs(exact - arrays[n]).max(), n


def test_a_groups_beta2_takes_the_place_of_the_optimizers_decay_rate_and_none_that_of_its_beta2():
    arrays, grads = random_run(6, dict.fromkeys("ab", (3, 4)))
    both = {"decay_rate": 0.3}, {"beta2": 0.95}
    for options, group in (both, (both[1], {"beta2": None, **both[0]})):

        def groups(params, group=group):
            return [{"params": [params["a"]]}, {"params": [params["b"]], **group}]

        got = train(arrays, grads, learning_rate=1e-3, parameters=groups, **options)
        for n, own in (("a", options), ("b", group)):
            want = came({n: arrays[n]}, [{n: g[n]} for g in grads], 1e-3, **own)
            close({n: got[n]}, want, arrays, 1e-12)


def test_a_relative_rate_is_that_of_the_next_step_after_loading_too():
    params, _ = make_params({"a": np.ones((2, 2))})
    how = {"parameters": list(params.values()), "relative_step": True, "warmup_init": True}
    opt, loaded = Came(None, **how), Came(**how)
    assert opt.get_lr() == pytest.approx(1e-6)
    take_steps(opt, params, [{"a": np.full((2, 2), 1e4)}] * 5)
    loaded.set_state_dict(opt.state_dict())
    assert loaded.get_lr() == opt.get_lr() == pytest.approx(6e-6)
