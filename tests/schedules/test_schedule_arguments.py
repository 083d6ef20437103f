"""Bad and missing arguments of schedules, and phases longer than the training."""

import math
import re

import numpy as np
import paddle
import pytest
from schedule_cases import KINDS, every_kind, make, optimizer_of, rates

import paddle_ldopt as ldopt
from paddle_ldopt.schedules import ON_METRIC, get_scheduler

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
    assert make("warmup_stable_decay", num_stable_steps=70).curve == make("warmup_stable_decay").curve


RISE = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
TOO_LONG = [  # kind, phases longer than the training, its rates by transformers' formulas from step 2 to 9
    ("linear", {}, [*RISE, 0, 0]),
    ("cosine", {}, [*RISE, 1, 0]),
    ("cosine_with_restarts", {}, [*RISE, 1, 0]),
    ("polynomial", {"lr_end": 0.01}, [*RISE, 0.01, 0.01]),
    ("cosine_with_min_lr", {"min_lr": 0.5}, [*RISE, 1, 0.5]),
    ("cosine_warmup_with_min_lr", {"min_lr": 0.5}, [0.375, 0.5, 0.625, 0.75, 0.875, 1, 0.5, 1]),
    ("warmup_stable_decay", {"num_decay_steps": 6, "decay_type": "linear"}, [*RISE, 0, 0]),
    ("cool_down", {}, [*RISE, 0, 0]),
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
