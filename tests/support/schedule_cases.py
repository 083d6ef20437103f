"""All kinds of schedules with arguments, their rates, and the time that a million steps may take."""

import paddle
import pytest

from paddle_ldopt.schedules import ON_METRIC, MetricSchedule
from paddle_ldopt.schedules.factory import SCHEDULES

# kind -> arguments of its function that make a schedule of 100 steps at a peak of 0.1
KINDS = {
    "linear": {"num_warmup_steps": 10, "num_training_steps": 100},
    "cosine": {"num_warmup_steps": 10, "num_training_steps": 100},
    "cosine_with_restarts": {"num_warmup_steps": 10, "num_training_steps": 100, "num_cycles": 3},
    "polynomial": {"num_warmup_steps": 10, "num_training_steps": 100, "power": 2.0},
    "constant": {},
    "constant_with_warmup": {"num_warmup_steps": 10},
    "inverse_sqrt": {"num_warmup_steps": 10},
    "reduce_lr_on_plateau": {"patience": 2, "factor": 0.5},
    "cosine_with_min_lr": {"num_warmup_steps": 10, "num_training_steps": 100, "min_lr": 0.01},
    "cosine_warmup_with_min_lr": {"num_warmup_steps": 10, "num_training_steps": 100, "min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_warmup_steps": 10, "num_training_steps": 100, "num_decay_steps": 20},
    "cool_down": {"num_warmup_steps": 10, "num_training_steps": 100, "keep_steps": 30, "final_steps": 10},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
closed_kind = pytest.mark.parametrize("kind", [k for k in KINDS if k not in ON_METRIC])


def make(kind, optimizer=0.1, **more):
    return SCHEDULES[kind].function(optimizer, **{**KINDS[kind], **more})


def metric(step):
    """Return a loss that falls, stalls and rises again."""
    return 1.0 / (1 + 0.1 * (step % 40)) + (0.2 if 15 < step % 50 < 30 else 0.0)


def advance(schedule):
    schedule.step(*([metric(schedule.last_epoch)] if isinstance(schedule, MetricSchedule) else []))


def optimizer_of(learning_rate=0.1):
    return paddle.optimizer.AdamW(learning_rate, parameters=paddle.nn.Linear(3, 2).parameters())


def rates(schedule, steps):
    return [(schedule(), advance(schedule))[0] for _ in range(steps)]
