"""Adafactor: the paper in float64 NumPy, what each argument does, and AdafactorSchedule."""

from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from optimizer_cases import close
from reference import make_params, random_run, take_steps
from reference_optimizers import adafactor

from paddle_ldopt import Adafactor, AdafactorSchedule
from paddle_ldopt.rates import applied_rates, rates_of_optimizer

EXTERNAL = {"lr": 0.01, "relative_step": False, "scale_parameter": False}


def problem(steps=20):
    """Return parameters of every rank and random gradients of several sizes, as float32 numbers."""
    arrays, grads = random_run(steps)
    sizes = 10.0 ** np.random.default_rng(0).integers(-3, 3, size=steps)
    return arrays, [{n: (g * size).astype("float32") for n, g in grad.items()} for grad, size in zip(grads, sizes)]


VARIANTS = {
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
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_matches_the_float64_reference(options, dtype, rtol):
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
