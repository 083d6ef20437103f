"""Curves: warm-ups of all lengths, and properties of all kinds with drawn arguments."""

import math

import hypothesis
import numpy as np
import paddle
import pytest
from hypothesis import strategies as st
from schedule_cases import KINDS, make, rates

from paddle_ldopt.schedules import ON_METRIC, ReduceLROnPlateau, WarmUp, get_scheduler, rates_of
from paddle_ldopt.schedules.factory import SCHEDULES, peak_of

EDGE = {  # kind -> arguments with warm-up 0 and n = 4, its rates; the same with warm-up 4, its rates: by hand
    "linear": ([1, 0.75, 0.5, 0.25, 0, 0], [0, 0.25, 0.5, 0.75, 0, 0]),
    "cosine_with_restarts": ([1, 0.853553, 0.5, 0.146447, 0, 0], [0, 0.25, 0.5, 0.75, 1, 0]),
    "polynomial": ([1, 0.75, 0.5, 0.25, 0, 0], [0, 0.25, 0.5, 0.75, 1, 0]),
    "cosine": ([1, 0.853553, 0.5, 0.146447, 0, 0.146447], [0, 0.25, 0.5, 0.75, 1, 0]),
    "constant_with_warmup": ([1] * 6, [0, 0.25, 0.5, 0.75, 1, 1]),
    "warmup_stable_decay": ([1] * 4 + [0, 0], [0, 0.25, 0.5, 0.75, 0, 0]),
    "cool_down": ([1, 0.853553, 0.5, 0.146447, 0, 0], [0, 0.25, 0.5, 0.75, 0, 0]),
    "inverse_sqrt": ([1, 0.999950, 0.999900, 0.999850, 0.999800, 0.999750], [0, 0.25, 0.5, 0.75, 1, 0.894427]),
}


@pytest.mark.parametrize("kind", EDGE)
def test_edges_of_the_warmup(kind):
    specific = {"polynomial": {"lr_end": 0.0}, "warmup_stable_decay": {"num_decay_steps": 0}}.get(kind)
    for warmup, want in zip((0, 4), EDGE[kind]):
        got = rates(get_scheduler(kind, 1.0, warmup, 4, specific), 6)
        np.testing.assert_allclose(got, want, atol=1e-6)


RISE = 0, 1 / 3, 2 / 3
OPTIONS = [  # kind, options, its rates with a warm-up of 3 steps and n = 7: by hand
    ("cosine", {"num_cycles": 1.0}, [*RISE, 1, 0.5, 0, 0.5, 1]),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2, "num_cycles": 1.0}, [*RISE, 1, 0.6, 0.2, 0.6, 1]),
    ("polynomial", {"power": 2.0, "lr_end": 0.2}, [*RISE, 1, 0.65, 0.4, 0.25, 0.2]),
    ("inverse_sqrt", {"timescale": 2}, [*RISE, 1, 0.816497, 0.707107, 0.632456, 0.577350]),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 2, "warmup_type": "cosine", "decay_type": "1-sqrt", "min_lr_ratio": 0.2},
        [0.2, 0.4, 0.8, 1, 1, 1, 0.434315, 0.2],
    ),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 4, "warmup_type": "1-sqrt", "num_cycles": 1.0},
        [0, 0.183503, 0.422650, 1, 0.5, 0, 0.5, 0],
    ),
    (
        "cool_down",
        {"keep_steps": 1, "final_steps": 1, "lr_end1": 0.2, "lr_end2": 0.1, "warmup_lr_init": 0.4},
        [0.4, 0.6, 0.8, 1, 1, 0.6, 0.2, 0.1],
    ),
]


@pytest.mark.parametrize("kind, options, want", OPTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_options_of_a_curve(kind, options, want):
    np.testing.assert_allclose(rates(get_scheduler(kind, 1.0, 3, 7, options), 8), want, atol=1e-6)


def test_a_warmup_of_two_steps_from_a_given_rate_ends_at_the_peak():
    specific = {"min_lr_rate": 0.2, "warmup_lr_rate": 0.25}
    got = rates(get_scheduler("cosine_warmup_with_min_lr", 1.0, 2, 4, specific), 4)
    np.testing.assert_allclose(got, [0.25, 1.0, 0.6, 0.2])


def test_the_peak_of_a_schedule_is_known_if_it_is_ours():
    lr = paddle.optimizer.lr
    warm = WarmUp(0.1, lr.StepDecay(0.1, 2), 3)
    assert [peak_of(schedule) for schedule in (make("linear"), warm, ReduceLROnPlateau(0.1))] == [0.1] * 3
    assert peak_of(lr.LinearWarmup(0.3, 10, 0.0, 0.3)) is None


def test_rates_are_known_of_formulas():
    """Also from the middle of a run; PaddleNLP's Trainer builds schedules of Paddle's class."""
    lr, schedule = paddle.optimizer.lr, make("linear")
    want = rates(make("linear"), 120)
    schedule.step(50)
    assert rates_of(schedule, 120) == want and schedule.last_epoch == 50
    assert rates_of(lr.LambdaDecay(0.1, schedule.curve), 120) == want

    class Odd(lr.LambdaDecay):
        def get_lr(self):
            return 0.5

    for unknown in (lr.StepDecay(0.1, 2), Odd(0.1, schedule.curve), ReduceLROnPlateau(0.1)):
        assert rates_of(unknown, 5) is None


steps = st.integers(0, 40)
share = st.floats(0.0, 1.0)
cycles = st.floats(0.01, 6.0)
shapes = st.sampled_from(["linear", "cosine", "1-sqrt"])


@st.composite
def legal(draw):
    """Draw a kind, a peak, legal arguments of the kind, and the step at which its rate should be the peak, or None."""
    kind = draw(st.sampled_from([k for k in KINDS if k not in ON_METRIC]))
    peak, warmup, hold, decay = draw(st.floats(1e-9, 1e3)), draw(steps), draw(steps), draw(steps)
    rate, first, wave = st.floats(0.0, peak), draw(st.none() | share), {"num_cycles": draw(cycles)}
    floor = draw(st.fixed_dictionaries({"min_lr": rate}) | st.fixed_dictionaries({"min_lr_rate": share}))
    rise = {"num_warmup_steps": warmup}
    whole = {**rise, "num_training_steps": max(1, warmup + decay)}
    arguments = {
        "constant": {},
        "constant_with_warmup": rise,
        "inverse_sqrt": {**rise, "timescale": draw(st.none() | st.integers(1, 1000))},
        "linear": whole,
        "cosine": {**whole, **wave},
        "cosine_with_restarts": {**whole, **wave},
        "polynomial": {
            **whole, "power": draw(st.floats(0.1, 5.0)), "lr_end": draw(st.floats(0.0, peak, exclude_max=True)),
        },
        "cosine_with_min_lr": {**whole, **wave, **floor},
        "cosine_warmup_with_min_lr": {**whole, **wave, **floor, "warmup_lr_rate": first},
        "warmup_stable_decay": {
            **rise, **wave, "num_stable_steps": hold, "num_decay_steps": decay, "warmup_type": draw(shapes),
            "decay_type": draw(shapes), "min_lr_ratio": draw(share),
        },
        "cool_down": {
            **rise, **wave, "keep_steps": hold, "decay_steps": decay, "final_steps": draw(steps),
            "lr_end1": draw(rate), "lr_end2": draw(st.none() | rate), "warmup_lr_init": draw(rate),
        },
    }  # fmt: skip
    tops = {
        "constant": 0,
        "linear": warmup if decay or not warmup else None,  # of no length after the warm-up: 0, as the peer's
        # the last step of the warm-up, which needs two steps if it starts where it is told to
        "cosine_warmup_with_min_lr": warmup - 1 if warmup > (first is not None) else None,
        "warmup_stable_decay": warmup if hold + decay else None,
        "cool_down": warmup if hold + decay else None,
    }
    return kind, peak, arguments[kind], tops.get(kind, warmup)


@hypothesis.given(legal())
@hypothesis.settings(max_examples=100, deadline=None)
def test_properties(drawn):
    kind, peak, arguments, top = drawn
    schedule = SCHEDULES[kind].function(peak, **arguments)
    got = rates(schedule, 150)
    for far in (10**6, 10**12):
        schedule.step(far)
        got.append(schedule())
    assert all(math.isfinite(rate) and 0.0 <= rate <= peak for rate in got)
    if top is not None:
        assert got[top] == pytest.approx(peak, rel=1e-12), "the warm-up ends at the peak"
    warmup = arguments.get("num_warmup_steps", 0)
    rise = np.diff(got[: warmup if top is None else top + 1])
    assert (rise >= -1e-15 * peak).all(), "the warm-up never falls"
    if top:  # continuous: the last step up to the peak is no longer than the steepest of its shape
        slope = {"linear": 1 / top, "cosine": math.pi / 2 / top, "1-sqrt": 1 / math.sqrt(top)}
        assert rise[-1] <= (peak - got[0]) * slope[arguments.get("warmup_type", "linear")] * (1 + 1e-9) + 1e-12 * peak
