"""Curves: warm-ups of all lengths, turns, and properties of all kinds with drawn arguments."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from schedule_cases import KINDS, make, rates

from paddle_ldopt.schedules import ON_METRIC, get_scheduler
from paddle_ldopt.schedules.cool_down import CoolDown
from paddle_ldopt.schedules.cosine import Cosine, CosineRestarts
from paddle_ldopt.schedules.curves import Curve, waves
from paddle_ldopt.schedules.polynomial import Polynomial
from paddle_ldopt.schedules.registry import SCHEDULES
from paddle_ldopt.schedules.stable_decay import StableDecay

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


def test_a_wave_begins_anew_after_each_third():
    got = rates(make("cosine_with_restarts", 1.0, num_warmup_steps=0, num_training_steps=12, num_cycles=3), 13)
    np.testing.assert_allclose(got, [1, 0.853553, 0.5, 0.146447] * 3 + [0], atol=1e-6)


@pytest.mark.parametrize(
    "curve",
    [
        StableDecay(4, 7, 20, "linear", "cosine", 0.1, 1.6),
        CoolDown(4, 7, 20, 5, 0.2, 0.3, 0.9, 1.6),
        Cosine(4, 20, 1.6),
        CosineRestarts(4, 20, 2.6),
    ],
    ids=lambda curve: type(curve).__name__,
)
def test_the_greatest_factor_ahead_is_at_a_turn(curve):
    turns = [step for step in curve.turns(59) if step < 60]
    factors = [curve(step) for step in range(60)]
    for step, factor in enumerate(factors):
        assert max([factor, *(curve(turn) for turn in turns if turn >= step)]) == max(factors[step:])


def test_defaults_of_curves():
    assert Curve() == Curve(warmup=0) and Curve().turns() == [0, 0]
    assert [CoolDown(2)(step) for step in range(3)] == [0.0, 0.5, 1.0]
    assert [CosineRestarts(1)(step) for step in range(3)] == [0.0, 1.0, 0.0]
    assert Polynomial(2, 3).turns() == [1, 2, 6]  # the end is at the step after the decay


steps = st.integers(0, 40)


share = st.floats(0.0, 1.0)


cycles = st.floats(0.01, 6.0)


shapes = st.sampled_from(["linear", "cosine", "1-sqrt"])


@st.composite
def legal(draw):
    """Draw a kind, a peak, legal arguments of the kind, and the step at which its rate should be the peak, or None."""
    kind = draw(st.sampled_from([k for k in KINDS if k not in ON_METRIC]))
    peak = draw(st.floats(1e-9, 1e3))
    warmup, decay = draw(steps), draw(steps)
    total = max(1, warmup + decay)
    general = {"num_warmup_steps": warmup, "num_training_steps": total}
    rate = st.floats(0.0, peak)
    top = warmup
    if kind == "constant":
        arguments, top = {}, 0
    elif kind == "constant_with_warmup":
        arguments = {"num_warmup_steps": warmup}
    elif kind == "inverse_sqrt":
        arguments = {"num_warmup_steps": warmup, "timescale": draw(st.none() | st.integers(1, 1000))}
    elif kind == "linear":
        arguments, top = general, warmup if total > warmup else None  # of no length after the warm-up: 0, as the peer's
    elif kind in ("cosine", "cosine_with_restarts"):
        arguments = {**general, "num_cycles": draw(cycles)}
    elif kind == "polynomial":
        lr_end = draw(st.floats(0.0, peak, exclude_max=True))
        arguments = {**general, "power": draw(st.floats(0.1, 5.0)), "lr_end": lr_end}
    elif kind.startswith("cosine"):
        floor = draw(st.fixed_dictionaries({"min_lr": rate}) | st.fixed_dictionaries({"min_lr_rate": share}))
        arguments = {**general, "num_cycles": draw(cycles), **floor}
        if kind == "cosine_warmup_with_min_lr":
            arguments["warmup_lr_rate"] = draw(st.none() | share)
            # its peak is the last step of the warm-up, which needs two steps if it starts where it is told to
            long_enough = warmup > (arguments["warmup_lr_rate"] is not None)
            top = warmup - 1 if long_enough else None
    elif kind == "warmup_stable_decay":
        stable = draw(steps)
        arguments = {
            "num_warmup_steps": warmup, "num_decay_steps": decay, "num_stable_steps": stable,
            "warmup_type": draw(shapes), "decay_type": draw(shapes), "min_lr_ratio": draw(share),
            "num_cycles": draw(cycles),
        }  # fmt: skip
        top = warmup if stable + decay else None
    else:
        keep = draw(steps)
        arguments = {
            "num_warmup_steps": warmup, "keep_steps": keep, "decay_steps": decay, "final_steps": draw(steps),
            "num_cycles": draw(cycles), "lr_end1": draw(rate), "lr_end2": draw(st.none() | rate),
            "warmup_lr_init": draw(rate),
        }  # fmt: skip
        top = warmup if keep + decay else None
    return kind, peak, arguments, top


@hypothesis.given(legal())
@hypothesis.settings(max_examples=400, deadline=None)
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


def test_turns_of_waves():
    """Around each turn, at the ends, and at all steps of waves that are shorter than two steps."""
    for arguments, want in {
        (2, 10, 0.5): [2, 11, 12],
        (2, 10, 1.2): [2, 9, 10, 11, 12],
        (2, 10, 0.5, 27): [2, 11, 12, 21, 22, 23, 24, 27],
        (1, 3, 3.0): [1, 2, 3, 4],
        (5, -2, 1.0): [5],
        (5, -2, 1.0, 8): [5, 6, 7, 8],
    }.items():
        assert sorted(set(waves(*arguments))) == want


def test_lengths_of_all_phases():
    curves = [Curve(4), Cosine(4, 20, 1.6), StableDecay(4, 7, 20, "linear", "cosine"), CoolDown(4, 7, 20, 5)]
    assert [curve.length for curve in curves] == [None, 24, 31, 36]
