"""Rates: curves of all kinds and schedules on a metric, by hand and with drawn arguments; bad and missing arguments."""

import math
import pickle
import re

import hypothesis
import numpy as np
import paddle
import pytest
from hypothesis import strategies as st
from schedule_cases import KINDS, every_kind, make, optimizer_of, rates

import paddle_ldopt as ldopt
from paddle_ldopt.schedules import ON_METRIC, ReduceLROnPlateau, WarmUp, get_scheduler, rates_of
from paddle_ldopt.schedules.factory import SCHEDULES, peak_of
from paddle_ldopt.schedules.warmup import resume_at

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


def test_a_warmup_of_the_shape_one_minus_sqrt():
    specific = {"num_decay_steps": 0, "warmup_type": "1-sqrt"}
    got = rates(get_scheduler("warmup_stable_decay", 1.0, 25, 25, specific), 25)
    np.testing.assert_allclose([got[k] for k in (0, 9, 16, 21, 24)], [0, 0.2, 0.4, 0.6, 0.8], atol=1e-6)


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


@st.composite
def legal(draw):
    """Draw a kind, a peak, legal arguments of the kind, and the step at which its rate should be the peak, or None."""
    kind = draw(st.sampled_from([k for k in KINDS if k not in ON_METRIC]))
    peak, warmup, hold, decay = draw(st.floats(1e-9, 1e3)), draw(steps), draw(steps), draw(steps)
    rate, first, as_rate = st.floats(0.0, peak), draw(st.none() | share), draw(st.booleans())
    phased = kind in ("warmup_stable_decay", "cool_down")  # as long as their phases
    values = {
        "num_warmup_steps": st.just(warmup),
        "num_training_steps": st.none() if phased else st.just(max(1, warmup + decay)),
        **dict.fromkeys(["num_stable_steps", "keep_steps"], st.just(hold)),
        **dict.fromkeys(["num_decay_steps", "decay_steps"], st.just(decay)),
        **{"final_steps": steps, "num_cycles": st.floats(0.01, 6.0), "power": st.floats(0.1, 5.0)},
        "timescale": st.none() | st.integers(1, 1000),
        "lr_end": st.floats(0.0, peak, exclude_max=True),
        **{"lr_end1": rate, "lr_end2": st.none() | rate, "warmup_lr_init": rate},
        **{"min_lr": rate if as_rate else st.none(), "min_lr_rate": st.none() if as_rate else share},
        **{"warmup_lr_rate": st.just(first), "min_lr_ratio": share},
        **dict.fromkeys(["warmup_type", "decay_type"], st.sampled_from(["linear", "cosine", "1-sqrt"])),
    }
    arguments = {name: draw(values[name]) for name in SCHEDULES[kind].options if name != "last_epoch"}
    tops = {
        "constant": 0,
        "linear": warmup if decay or not warmup else None,  # of no length after the warm-up: 0, as the peer's
        # the last step of the warm-up, which needs two steps if it starts where it is told to
        "cosine_warmup_with_min_lr": warmup - 1 if warmup > (first is not None) else None,
        "warmup_stable_decay": warmup if hold + decay else None,
        "cool_down": warmup if hold + decay else None,
    }
    return kind, peak, arguments, tops.get(kind, warmup)


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


BAD = [(rate, ValueError, "Received: learning_rate=") for rate in (0, math.nan, math.inf)]
BAD += [(value, TypeError, r"a learning rate\. Received: ") for value in (None, "0.1", True)]
BAD.append((paddle.optimizer.lr.NoamDecay(8, 8), TypeError, r"from a number, not from another schedule\. Received: "))


@every_kind
@pytest.mark.parametrize("bad, error, says", BAD)
def test_bad_learning_rates(kind, bad, error, says):
    with pytest.raises(error, match=says):
        make(kind, bad)


MISSING = [
    *((kind, {}, "num_warmup_steps") for kind in KINDS if kind not in (*ON_METRIC, "constant")),
    *((k, {"num_warmup_steps": 1}, "num_training_steps") for k in KINDS if k.startswith(("linear", "cosine", "poly"))),
    ("warmup_stable_decay", {"num_warmup_steps": 1, "num_training_steps": 9}, "num_decay_steps"),
    ("cosine_with_min_lr", {"num_warmup_steps": 1, "num_training_steps": 9}, "min_lr_rate"),
    ("cosine_warmup_with_min_lr", {"num_warmup_steps": 1, "num_training_steps": 9}, "min_lr_rate"),
    ("cool_down", {"num_warmup_steps": 1}, "decay_steps"),
]


@pytest.mark.parametrize("kind, given, missing", MISSING)
def test_a_missing_argument_is_named(kind, given, missing):
    optimizer = optimizer_of()
    with pytest.raises(ValueError, match=f"{missing}.*Received: .*{missing}=None"):
        get_scheduler(kind, optimizer, **given)
    assert optimizer._learning_rate == 0.1


@every_kind
@pytest.mark.parametrize("key", ["peak", "num_warmup_steps", "num_training_steps", "optimizer", "learning_rate"])
def test_an_unknown_argument_is_refused(kind, key):
    valid = [k for k in KINDS[kind] if not k.startswith("num_") or k == "num_decay_steps"]
    with pytest.raises(TypeError, match=f"an unexpected keyword argument '{key}'.*takes .*Received: {key}=3") as error:
        get_scheduler(kind, 0.1, 10, 100, {key: 3})
    assert all(k in str(error.value) for k in valid)
    listed = str(error.value).partition("Valid")[2].partition("Received")[0]
    assert "num_warmup_steps" not in listed and "num_training_steps" not in listed


ILLEGAL = {
    "constant": [{"last_epoch": -2}],
    "constant_with_warmup": [{"num_warmup_steps": -1}],
    "linear": [{"num_warmup_steps": -1}, {"num_training_steps": 0}, {"last_epoch": -2}],
    "polynomial": [{"lr_end": 0.1}, {"lr_end": -1e-9}, {"power": 0}],
    "inverse_sqrt": [{"timescale": 0}, {"timescale": math.nan}],
    "cosine": [{"num_cycles": 0}, {"num_cycles": math.inf}],
    "cosine_with_restarts": [{"num_cycles": -1}],
    "cosine_with_min_lr": [{"min_lr": 0.11}, {"min_lr": -0.01}, {"min_lr_rate": 0.5}],
    "cosine_warmup_with_min_lr": [{"min_lr_rate": 1.1}, {"warmup_lr_rate": -0.1}, {"warmup_lr_rate": 1.5}],
    "warmup_stable_decay": [
        {"num_training_steps": 0, "num_stable_steps": 5}, {"num_decay_steps": -1}, {"num_stable_steps": -1},
        {"warmup_type": "sqrt"}, {"decay_type": "sqrt"}, {"min_lr_ratio": 1.5}, {"num_cycles": -0.5},
    ],
    "cool_down": [
        {"keep_steps": -1}, {"final_steps": -1}, {"decay_steps": -1}, {"lr_end1": 0.2}, {"lr_end2": -0.1},
        {"warmup_lr_init": 0.2}, {"num_cycles": 0},
    ],
    "reduce_lr_on_plateau": [
        {"mode": "mean"}, {"threshold_mode": "both"}, {"factor": 1.0}, {"factor": 0.0}, {"patience": -1},
        {"threshold": -1e-9}, {"cooldown": -1}, {"min_lr": -0.1}, {"min_lr": 0.2}, {"min_lr": 0.1}, {"eps": -1e-8},
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind, bad", [(kind, bad) for kind, every in ILLEGAL.items() for bad in every], ids=str)
def test_illegal_values_are_refused(kind, bad):
    optimizer = optimizer_of()
    with pytest.raises(ValueError, match=f"Received: .*{next(iter(bad))}="):
        make(kind, optimizer, **bad)
    assert optimizer._learning_rate == 0.1, "nothing was attached"


SENTENCES = [  # kind, number of training steps, options, what transformers says
    ("cosine_with_min_lr", 9, {"min_lr": 0.01, "min_lr_rate": 0.1}, "Only one of min_lr or min_lr_rate should be set"),
    ("linear", 9, {"num_cycles": 2}, "get_linear_schedule_with_warmup() got an unexpected keyword argument 'num_cyc"),
    ("cosine", None, {}, "SchedulerType.COSINE requires `num_training_steps`, please provide that argument"),
    ("polynomial", 9, {"lr_end": 0.1}, "lr_end (0.1) must be smaller than initial lr (0.1)"),
    ("warmup_stable_decay", None, {"num_decay_steps": 3}, "Either num_training_steps or num_stable_steps must be spec"),
]


@pytest.mark.parametrize("kind, steps, options, says", SENTENCES)
def test_errors_are_transformers(kind, steps, options, says):
    with pytest.raises((TypeError, ValueError), match=f"{re.escape(says)}.*Received: "):
        get_scheduler(kind, 0.1, 1, steps, options)


def test_the_stable_steps_of_wsd_override_the_training():
    assert make("warmup_stable_decay", num_stable_steps=50).curve.stable == 50
    with pytest.warns(UserWarning, match="The schedule is longer than the training"):
        make("warmup_stable_decay", num_stable_steps=71)
    assert make("warmup_stable_decay", num_stable_steps=70).curve == make("warmup_stable_decay").curve


LATE_RISE = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
TOO_LONG = [  # kind, phases longer than the training, its rates by transformers' formulas from step 2 to 9
    ("linear", {}, [*LATE_RISE, 0, 0]),
    ("cosine", {}, [*LATE_RISE, 1, 0]),
    ("cosine_with_restarts", {}, [*LATE_RISE, 1, 0]),
    ("polynomial", {"lr_end": 0.01}, [*LATE_RISE, 0.01, 0.01]),
    ("cosine_with_min_lr", {"min_lr": 0.5}, [*LATE_RISE, 1, 0.5]),
    ("cosine_warmup_with_min_lr", {"min_lr": 0.5}, [0.375, 0.5, 0.625, 0.75, 0.875, 1, 0.5, 1]),
    ("warmup_stable_decay", {"num_decay_steps": 6, "decay_type": "linear"}, [*LATE_RISE, 0, 0]),
    ("cool_down", {}, [*LATE_RISE, 0, 0]),
]


@pytest.mark.parametrize("kind, specific, want", TOO_LONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_training_that_ends_within_the_warmup_is_warned_of(kind, specific, want):
    with pytest.warns(UserWarning, match="Received: num_warmup_steps=8, .*num_training_steps=2") as caught:
        schedule = get_scheduler(kind, 1.0, 8, 2, specific)
    assert caught[0].filename.endswith("factory.py"), "the caller of the kind's function"
    np.testing.assert_allclose(rates(schedule, 10)[2:], want, atol=1e-12)


def test_an_optimizer_that_sets_its_rate_gets_no_schedule():
    optimizer = ldopt.Adafactor(paddle.nn.Linear(2, 2).parameters(), relative_step=True)
    with pytest.raises(ValueError, match="`relative_step` sets the rate: build the optimizer with relative_step=False"):
        get_scheduler("linear", optimizer, 10, 100)


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
    below_zero = ReduceLROnPlateau(0.1, mode=mode)  # such as a log-likelihood
    below_zero.step(-10.0)
    assert below_zero.best == -10.0 and below_zero.num_bad_epochs == 0


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
    for length, rate in ((0, 0.8), (1, 0.8), (8, 0.1)):
        (other := ReduceLROnPlateau(0.8, num_warmup_steps=length)).set_state_dict(early.state_dict())
        assert other() == pytest.approx(rate), "a warm-up goes on at its step, or is over"
        (other := ReduceLROnPlateau(0.4, num_warmup_steps=length)).set_state_dict(schedule.state_dict())
        other.step(0.5)
        assert other() == schedule() == pytest.approx(0.1), "a longer warm-up does not begin again"
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
