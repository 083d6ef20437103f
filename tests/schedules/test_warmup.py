"""WarmUp: any schedule after it, resumes, and every error."""

import functools
import inspect
import math
import pickle
import warnings

import numpy as np
import paddle
import pytest
from schedule_cases import rates

import paddle_ldopt as ldopt
from paddle_ldopt.schedules.warmup import WarmUp

lr = paddle.optimizer.lr
pytestmark = pytest.mark.filterwarnings("error::UserWarning")


def cosine(step, start, steps):
    return start * 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps))


def constant(step, rate):
    return rate


DECAYS = {
    "function": functools.partial(cosine, start=1e-2, steps=40),
    "PolynomialDecay": lr.PolynomialDecay(1e-2, 40, 1e-4, 2.0),
    "StepDecay": lr.StepDecay(1e-2, 7),
    "MultiStepDecay": lr.MultiStepDecay(1e-2, [5, 11]),
    "CosineAnnealingDecay": lr.CosineAnnealingDecay(1e-2, 20),
    "LinearWarmup": lr.LinearWarmup(lr.ExponentialDecay(1e-2, 0.9), 5, 0.0, 1e-2),
    "WarmUp": WarmUp(1e-2, lr.NaturalExpDecay(1e-2, 0.1), 3),
}


class Halving(lr.LRScheduler):
    """A rate computed from the last one: step k is known only by going there."""

    def get_lr(self):
        return self.base_lr if self.last_epoch == 0 else self.last_lr * 0.5


@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
def test_after_the_warm_up_comes_the_decay_from_its_start(decay):
    fresh = pickle.loads(pickle.dumps(decay))
    alone = [fresh(k) for k in range(60)] if isinstance(decay, functools.partial) else rates(fresh, 60)
    schedule = WarmUp(2e-2, decay, 8, power=0.5)
    got = rates(schedule, 68)
    np.testing.assert_allclose(got, [2e-2 * (k / 8) ** 0.5 for k in range(8)] + alone, rtol=1e-12)
    np.testing.assert_allclose([schedule(k) for k in range(68)], got, rtol=1e-12)
    assert schedule.last_epoch == 68, "asking for the rate of a step changes nothing"


def test_the_scheduler_inside_is_a_copy():
    decay = lr.StepDecay(1e-2, 2)
    first, second = WarmUp(1e-2, decay, 2), WarmUp(1e-2, decay, 2)
    want = rates(first, 20)
    assert decay.last_epoch == 0 and rates(second, 20) == want
    assert rates(WarmUp.from_config(first.get_config()), 20) == want


@pytest.mark.parametrize("decay", [*DECAYS.values(), Halving(1e-2)], ids=[*DECAYS, "Halving"])
@pytest.mark.parametrize("stop", [0, 1, 7, 8, 9, 30])
def test_a_resume_is_exact(decay, stop):
    warnings.filterwarnings("ignore", "There are some unused values")  # Paddle's LinearWarmup, of its own state
    whole = rates(WarmUp(2e-2, decay, 8), 60)
    first = WarmUp(2e-2, decay, 8)
    assert rates(first, stop) == whole[:stop]
    second = WarmUp(2e-2, decay, 8)
    second.set_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    third = pickle.loads(pickle.dumps(first))
    for resumed in (second, third):
        assert resumed() == whole[stop] and rates(resumed, 60 - stop) == whole[stop:]
    if not isinstance(decay, Halving):
        assert rates(WarmUp(2e-2, decay, 8, last_epoch=stop - 1), 60 - stop) == pytest.approx(whole[stop:], rel=1e-12)


def test_short_warm_ups_and_a_rate_computed_from_the_last_one():
    for warmup_steps in (0, 1):
        schedule = WarmUp(1.0, functools.partial(cosine, start=1.0, steps=10), warmup_steps)
        assert rates(schedule, 20)[: warmup_steps + 1] == [0.0] * warmup_steps + [1.0]
    assert rates(WarmUp(1.0, Halving(1.0), 2), 6) == [0.0, 0.5, 1.0, 0.5, 0.25, 0.125]


def test_config_is_the_arguments_of_transformers():
    decay = functools.partial(constant, rate=1e-3)
    config = WarmUp(1e-3, decay, 10, 2.0, "mine").get_config()
    assert list(config) == ["initial_learning_rate", "decay_schedule_fn", "warmup_steps", "power", "name"]
    assert list(config.values()) == [1e-3, decay, 10, 2.0, "mine"]
    assert list(inspect.signature(WarmUp).parameters)[:5] == list(config)
    assert WarmUp(**config).get_config() == config


GOOD = {"initial_learning_rate": 1e-3, "decay_schedule_fn": lr.StepDecay(1e-3, 2), "warmup_steps": 10}


@pytest.mark.parametrize(
    "argument, value, error",
    [
        ("initial_learning_rate", -1e-3, ValueError),
        ("initial_learning_rate", "fast", TypeError),
        ("decay_schedule_fn", 1e-3, TypeError),
        ("decay_schedule_fn", lr.ReduceOnPlateau(1e-3), TypeError),
        ("decay_schedule_fn", ldopt.ReduceLROnPlateau(1e-3), TypeError),
        ("decay_schedule_fn", lambda step: "fast", TypeError),
        ("decay_schedule_fn", lambda step: -1e-3, ValueError),
        ("warmup_steps", -1, ValueError),
        ("warmup_steps", 1.5, TypeError),
        ("power", 0.0, ValueError),
        ("last_epoch", -2, ValueError),
    ],
)
def test_bad_arguments_of_the_warm_up(argument, value, error):
    with pytest.raises(error, match=f"`{argument}.*Received: {argument}"):
        WarmUp(**{**GOOD, argument: value})


def test_bad_rates_and_steps_are_refused_when_they_come():
    schedule = WarmUp(1.0, lambda step: 1.0 - step, 1)
    with pytest.raises(ValueError, match=r"Received: decay_schedule_fn\(2\)=-1.0"):
        rates(schedule, 5)
    for bad, error in ((-1, ValueError), (0.5, TypeError)):
        with pytest.raises(error, match="`step`"):
            schedule(bad)


def test_a_state_of_another_kind_of_decay_is_refused():
    function, scheduler = WarmUp(1.0, DECAYS["function"], 2), WarmUp(1.0, lr.StepDecay(1.0, 2), 2)
    rates(scheduler, 5)
    for one, other in ((function, scheduler), (scheduler, function)):
        before = one.state_dict()
        with pytest.raises(ValueError, match="`decay_schedule_fn`"):
            one.set_state_dict(other.state_dict())
        assert one.state_dict() == before


def test_tables_show_the_peak_of_a_decay_that_begins_above_the_warm_up():
    layers = ldopt.LayerMap.from_names(["embeddings.weight", "layers.0.w", "layers.1.w", "classifier.weight"])
    table = layers.table(0.5, WarmUp(0.1, lambda step: 0.4 / (step + 1), 2))
    assert table.rows[-1].peak_learning_rate == (0.4, 0.4)
