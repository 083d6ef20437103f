"""The schedules that follow a metric: their algorithms, NaN, state, properties."""

import collections
import inspect
import math
import pickle

import hypothesis
import numpy as np
import paddle
import pytest
from hypothesis import strategies as st
from schedule_cases import make, rates

from paddle_ldopt import schedules
from paddle_ldopt.schedules import ON_METRIC


class ReferenceGreedy:
    """The algorithm of arXiv 2512.14527 as transformers 5 has it, written as a list of events."""

    def __init__(self, lr, factor, patience, cooldown, warmup, low, high, window, reset):
        self.first = self.lr = lr
        self.settings = (factor, patience, cooldown, warmup, low, high, window, reset)
        self.anew()

    def anew(self):
        self.best, self.run, self.rest, self.due = math.inf, 0, 0, self.settings[-1]
        self.seen = collections.deque(maxlen=self.settings[-2])

    def step(self, loss):
        factor, patience, cooldown, warmup, low, high, _, reset = self.settings
        self.seen.append(loss)
        mean = float(np.mean(self.seen))
        if self.rest:
            self.rest, self.run = self.rest - 1, 0
            return
        better = mean < self.best - 1e-6
        self.best = mean if better else self.best
        self.run = max(self.run, 0) + 1 if better else min(self.run, 0) - 1
        if self.run > patience:
            self.lr, self.due, self.rest, self.run = min(self.lr / factor, high), reset, warmup, 0
        elif -self.run > patience:
            self.lr, self.rest, self.run = max(self.lr * factor, low), cooldown, 0
            if self.lr <= low:
                self.due -= 1
                if not self.due:
                    self.anew()
                    self.lr, self.rest = self.first, cooldown


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("cooldown, warmup", [(0, 0), (3, 0), (0, 4), (2, 5)])
def test_greedy_follows_its_algorithm(smooth, cooldown, warmup):
    rng = np.random.default_rng(3)
    losses = np.concatenate(
        [np.linspace(3, 1, 40), rng.uniform(1, 2, 150), np.linspace(0.9, 0.1, 60), rng.uniform(1, 2, 250)]
    )
    want = ReferenceGreedy(0.1, 0.5, 2, cooldown, warmup, 1e-3, 0.7, 5 if smooth else 1, 4)
    more = {"smooth": smooth, "window_size": 5, "max_lr": 0.7, "reset_start": 4}
    got = schedules.GreedyLR(0.1, factor=0.5, patience=2, cooldown=cooldown, warmup=warmup, **more)
    seen = []
    for loss in losses:
        want.step(float(loss))
        got.step(float(loss))
        seen.append(got())
        assert got() == pytest.approx(want.lr, rel=1e-12)
    assert max(seen) == 0.7 and min(seen) == 1e-3
    low = seen.index(1e-3)
    assert 0.1 in seen[low:], "it started anew at the lowest rate"


def test_plateau_is_pytorchs_in_its_cool_down():
    # the best of a cool-down counts: Paddle's own class forgets 0.5 and takes 0.6 for an improvement on 1.0
    schedule = schedules.ReduceLROnPlateau(0.1, factor=0.5, patience=0, cooldown=1)
    for loss, want in ((1.0, 0.1), (1.0, 0.05), (0.5, 0.05), (0.6, 0.025)):
        schedule.step(loss)
        assert schedule() == want
    paddles = paddle.optimizer.lr.ReduceOnPlateau(0.1, factor=0.5, patience=0, cooldown=1)
    for loss in (1.0, 1.0, 0.5, 0.6):
        paddles.step(loss)
    assert paddles() == 0.05


@pytest.mark.parametrize("patience, cooldown", [(p, c) for p in (0, 1, 3) for c in (0, 1, 2, 4)])
def test_plateau_reduces_the_rate_as_pytorch(patience, cooldown):
    got = schedules.ReduceLROnPlateau(0.1, factor=0.7, patience=patience, cooldown=cooldown, min_lr=1e-4, eps=0.0)
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


@pytest.mark.parametrize(
    "cls, defaults",
    [
        (schedules.ReduceLROnPlateau, ("min", 0.1, 10, 1e-4, "rel", 0, 0.0, 1e-8, False)),
        (schedules.GreedyLR, ("min", 0.95, 10, 1e-6, "abs", 0, 0, 1e-3, 1.0, 1e-8, False, False, 50, 500)),
    ],
)
def test_defaults_of_what_follows_a_metric(cls, defaults):
    assert tuple(p.default for p in list(inspect.signature(cls).parameters.values())[1:]) == defaults
    schedule, again = cls(0.1), cls(0.1, *defaults)
    for step in range(100):
        schedule.step(1.0 + step % 2)
        again.step(1.0 + step % 2)
    assert schedule.state_dict() == again.state_dict()


@pytest.mark.parametrize("cls", [schedules.ReduceLROnPlateau, schedules.GreedyLR])
def test_an_optimizer_in_the_place_of_the_rate_is_scheduled_as_in_transformers(cls):
    optimizer = paddle.optimizer.SGD(0.1, parameters=paddle.nn.Linear(1, 1).parameters())
    with pytest.raises(ValueError, match="`min_lr`"):
        cls(optimizer, min_lr=0.2)
    assert optimizer._learning_rate == 0.1, "a bad argument attached a schedule"
    schedule = cls(optimizer, mode="min", factor=0.5, patience=0)
    for metric in (1.0, 2.0):
        schedule.step(metric)
    want = cls(0.1, mode="min", factor=0.5, patience=0)
    for metric in (1.0, 2.0):
        want.step(metric)
    assert optimizer.get_lr() == schedule() == want()
    again = cls(optimizer)  # of which the first rate is the peak again
    assert again() == optimizer.get_lr() == 0.1


def test_the_narrowest_greedy_schedule():
    schedule = schedules.GreedyLR(0.1, patience=0, max_lr=0.1, min_lr=0.05, smooth=True, window_size=1, reset_start=1)
    rates = []
    for metric in (3.0, 2.0, 4.0, 1.0, 5.0, 6.0):
        schedule.step(metric)
        rates.append(schedule())
    assert rates == pytest.approx([0.1, 0.1, 0.095, 0.1, 0.095, 0.09025])
    with pytest.raises(ValueError, match=r"`max_lr` must be in \(0, inf\)"):
        schedules.GreedyLR(0.1, max_lr=0.0)


@pytest.mark.parametrize("mode, threshold_mode", [(m, t) for m in ("min", "max") for t in ("rel", "abs")])
@pytest.mark.parametrize("cls", [schedules.ReduceLROnPlateau, schedules.GreedyLR])
def test_what_counts_as_better(cls, mode, threshold_mode):
    sign = 1 if mode == "max" else -1
    schedule = cls(0.1, mode=mode, threshold=0.1, threshold_mode=threshold_mode)
    schedule.step(10.0)
    bar = 10 * (1 + sign * 0.1) if threshold_mode == "rel" else 10 + sign * 0.1
    schedule.step(bar - sign * 1e-6)
    assert schedule.num_bad_epochs == 1 and schedule.best == 10.0
    schedule.step(bar + sign * 1e-6)
    assert schedule.num_bad_epochs == 0 and schedule.best == bar + sign * 1e-6
    schedule.step(math.nan)
    assert schedule.num_bad_epochs == 1


@pytest.mark.parametrize("kind", ON_METRIC)
def test_metrics(kind, capsys):
    schedule = make(kind, patience=0, verbose=True)
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


def test_a_nan_leaves_the_window():
    schedule = make("greedy", patience=0)
    for loss in (1.0, math.nan, 1.0, 1.0):
        schedule.step(loss)
    assert schedule.best == 1.0 and schedule() < 0.2
    schedule.step(0.1)
    assert schedule.best == pytest.approx(0.7)


def test_a_greedy_state_without_some_keys_keeps_what_was_there():
    schedule, state = make("greedy", patience=0, smooth=True), make("greedy").state_dict()
    schedule.step(0.5)
    want = {**schedule.state_dict(), "last_lr": 0.05}
    schedule.set_state_dict({"last_lr": 0.05})
    assert schedule.state_dict() == want and schedule() == 0.05
    for bad in ({}, {"step": 1}, {**state, "window": 3}, {"best": "x"}):
        with pytest.raises(ValueError, match="Received: "):
            schedule.set_state_dict(bad)
    assert schedule.state_dict() == want


@hypothesis.given(
    kind=st.sampled_from(ON_METRIC),
    peak=st.floats(1e-3, 1.0),
    factor=st.floats(0.05, 0.95),
    patience=st.integers(0, 4),
    cooldown=st.integers(0, 4),
    mode=st.sampled_from(["min", "max"]),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    low=st.floats(0.0, 1.0),
    high=st.floats(1.5, 10.0),
    losses=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=30, max_size=80),
)
@hypothesis.settings(max_examples=200, deadline=None)
def test_properties_on_a_metric(kind, peak, factor, patience, cooldown, mode, threshold_mode, low, high, losses):
    low *= 0.9 * peak
    more = {"min_lr": low, "patience": patience, "factor": factor, "mode": mode, "threshold_mode": threshold_mode}
    top = peak
    if kind == "greedy":
        top = peak * high
        more.update(max_lr=top, reset_start=2)
    schedule = make(kind, peak, cooldown=cooldown, **more)
    before = peak
    for loss in losses:
        schedule.step(loss)
        rate = schedule()
        assert math.isfinite(rate) and low <= rate <= top
        assert kind == "greedy" or rate <= before
        before = rate
    twin = make(kind, peak, cooldown=cooldown, **more)
    twin.set_state_dict(pickle.loads(pickle.dumps(schedule.state_dict())))
    assert rates(twin, 20) == rates(schedule, 20)
