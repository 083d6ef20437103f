"""The schedules that follow a metric: their algorithms, NaN, state, properties."""

import math
import pickle

import hypothesis
import numpy as np
import paddle
import pytest
from hypothesis import strategies as st
from schedule_cases import rates

from paddle_ldopt.schedules import ReduceLROnPlateau, get_scheduler
from paddle_ldopt.schedules.warmup import resume_at


@pytest.mark.parametrize("patience, cooldown", [(p, c) for p in (0, 1, 3) for c in (0, 1, 2, 4)])
def test_plateau_reduces_the_rate_as_pytorch(patience, cooldown):
    """The best of a cool-down counts, which Paddle's own class forgets."""
    got = ReduceLROnPlateau(0.1, factor=0.7, patience=patience, cooldown=cooldown, min_lr=1e-4, eps=0.0)
    lr, best, bad, rest = 0.1, math.inf, 0, 0
    for metric in np.random.default_rng(patience).uniform(1, 2, 120):
        better = metric < best * (1 - 1e-4)
        best, bad = (metric, 0) if better else (best, bad + 1)
        if rest:
            rest, bad = rest - 1, 0
        if bad > patience:
            lr, rest, bad = max(lr * 0.7, 1e-4), cooldown, 0
        got.step(float(metric))
        assert got() == pytest.approx(lr, rel=1e-12)
        assert (got.best, got.num_bad_epochs, got.cooldown_counter) == (best, bad, rest)


def test_an_optimizer_in_the_place_of_the_rate_is_scheduled_as_in_transformers():
    optimizer = paddle.optimizer.SGD(0.1, parameters=paddle.nn.Linear(1, 1).parameters())
    with pytest.raises(ValueError, match="`min_lr`"):
        ReduceLROnPlateau(optimizer, min_lr=0.2)
    assert optimizer._learning_rate == 0.1, "a bad argument attached a schedule"
    schedule = ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=0)
    for metric in (1.0, 2.0):
        schedule.step(metric)
    assert optimizer.get_lr() == schedule() == 0.05
    again = ReduceLROnPlateau(optimizer)  # of which the first rate is the peak again
    assert again() == optimizer.get_lr() == 0.1


@pytest.mark.parametrize("mode, threshold_mode", [(m, t) for m in ("min", "max") for t in ("rel", "abs")])
def test_what_counts_as_better(mode, threshold_mode):
    sign = 1 if mode == "max" else -1
    schedule = ReduceLROnPlateau(0.1, mode=mode, threshold=0.1, threshold_mode=threshold_mode)
    schedule.step(10.0)
    bar = 10 * (1 + sign * 0.1) if threshold_mode == "rel" else 10 + sign * 0.1
    schedule.step(bar - sign * 1e-6)
    assert schedule.num_bad_epochs == 1 and schedule.best == 10.0
    schedule.step(bar + sign * 1e-6)
    assert schedule.num_bad_epochs == 0 and schedule.best == bar + sign * 1e-6
    schedule.step(math.nan)
    assert schedule.num_bad_epochs == 1


def test_metrics(capsys):
    schedule = ReduceLROnPlateau(0.1, patience=0, verbose=True)
    for value in (paddle.to_tensor(1.0), np.float32(1.0), np.array([1.0]), 1, paddle.to_tensor([1.0])):
        schedule.step(value)
    assert "set learning rate to" in capsys.readouterr().out
    schedule.step(0.5, epoch=17)
    assert schedule.last_epoch == 17
    before = schedule.state_dict()
    for value in (None, "0.5", [1.0], np.ones(2), paddle.ones([2])):
        with pytest.raises(TypeError, match="`metrics` must be one number. Received: metrics="):
            schedule.step(value)
    with pytest.raises(TypeError):
        schedule.step()
    assert schedule.state_dict() == before


@hypothesis.given(
    peak=st.floats(1e-3, 1.0),
    factor=st.floats(0.05, 0.95),
    patience=st.integers(0, 4),
    cooldown=st.integers(0, 4),
    mode=st.sampled_from(["min", "max"]),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    low=st.floats(0.0, 0.9),
    losses=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=30, max_size=80),
)
@hypothesis.settings(max_examples=200, deadline=None)
def test_properties_on_a_metric(peak, low, losses, **options):
    options["min_lr"] = low * peak
    schedule, before = ReduceLROnPlateau(peak, **options), peak
    for loss in losses:
        schedule.step(loss)
        assert math.isfinite(schedule()) and options["min_lr"] <= schedule() <= before
        before = schedule()
    twin = ReduceLROnPlateau(peak, **options)
    twin.set_state_dict(pickle.loads(pickle.dumps(schedule.state_dict())))
    assert rates(twin, 20) == rates(schedule, 20)


def test_a_warm_up_comes_before_the_reductions():
    schedule = get_scheduler("reduce_lr_on_plateau", 0.4, 4, None, {"patience": 0, "factor": 0.5})
    got = [schedule()]
    for metric in (1.0, 2.0, None, None, 3.0, 4.0):  # the metric rises: each evaluation asks for a reduction
        schedule.step()
        if metric is not None:
            schedule.step(metric)
        got.append(schedule())
    assert got == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.2, 0.1])
    other = ReduceLROnPlateau(0.8, patience=0, factor=0.5, num_warmup_steps=4)
    other.set_state_dict(schedule.state_dict())
    other.step()
    assert other() == pytest.approx(0.2), "the same fraction of another rate"
    early, other = (ReduceLROnPlateau(rate, min_lr=0.3, num_warmup_steps=4) for rate in (0.4, 0.8))
    early.step()
    other.set_state_dict(early.state_dict())
    assert other() == pytest.approx(0.2), "the lowest rate is that after the warm-up"
    resume_at(other := ReduceLROnPlateau(0.8, num_warmup_steps=4), 9)
    assert other() == 0.8, "the state of a schedule of steps says how far the warm-up was"
    with pytest.raises(TypeError, match="`metrics` must be one number"):
        ReduceLROnPlateau(0.1).step()


def test_a_warm_up_that_never_begins_is_told():
    schedule = get_scheduler("reduce_lr_on_plateau", 0.4, 4)
    with pytest.warns(UserWarning, match="The rate is 0 until the warm-up begins.* Received: num_warmup_steps=4"):
        schedule.step(1.0)


@pytest.mark.parametrize("plateau", [ReduceLROnPlateau(0.1), ReduceLROnPlateau(0.1, num_warmup_steps=2)])
def test_it_is_refused_inside_another_schedule_which_would_pass_step_numbers_as_metrics(plateau):
    schedule = paddle.optimizer.lr.LinearWarmup(plateau, warmup_steps=2, start_lr=0.0, end_lr=0.1)
    with pytest.raises(TypeError, match="cannot be inside another schedule: use its `num_warmup_steps`"):
        for _ in range(3):
            schedule.step()
