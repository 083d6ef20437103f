"""Learning-rate schedules, all of transformers' and more, as Paddle `LRScheduler`s.

- `basic`, `cosine`, `stable_decay`: functions of the step. Each file has curves, and functions that build a
  `CurveSchedule` with them.
- `metric`, `greedy`: schedules that follow a metric.
- `factory`: builds a schedule by name, from the table in `kinds`.
- `warmup`: a warm-up before any other schedule.
- `ahead`: reads the future rates of a schedule.

A new schedule is a curve and a function, whose signature declares the options::

    @dataclasses.dataclass(frozen=True)
    class Triangle(Curve):
        floor: float = 0.0

        def _after(self, k: int) -> float:
            return max(self.floor, 1.0 - k / max(self.warmup, 1))

    @schedule("triangle")
    def get_triangle_schedule(optimizer, num_warmup_steps: Steps, floor: Fraction = 0.0, last_epoch: LastStep = -1):
        return scheduled(optimizer, Triangle(num_warmup_steps, floor), last_epoch)
"""

from ._base import Curve, CurveSchedule, scheduled
from ._base import RuleSchedule as RuleSchedule
from .basic import (
    get_constant_schedule,
    get_constant_schedule_with_warmup,
    get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
)
from .cosine import (
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
)
from .factory import ON_METRIC as ON_METRIC
from .factory import SchedulerType, get_scheduler
from .greedy import GreedyLR, get_greedy_schedule
from .kinds import schedule
from .metric import MetricSchedule, ReduceLROnPlateau, get_reduce_on_plateau_schedule
from .option_types import Fraction, LastStep, NonNegative, Positive, Steps
from .stable_decay import get_constant_schedule_with_cool_down, get_wsd_schedule
from .warmup import WarmUp

# fmt: off
__all__ = [
    # any kind by name
    "SchedulerType", "get_scheduler",
    # one function for each kind
    "get_constant_schedule", "get_constant_schedule_with_cool_down", "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup", "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup", "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_greedy_schedule", "get_inverse_sqrt_schedule", "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup", "get_reduce_on_plateau_schedule", "get_wsd_schedule",
    # classes
    "CurveSchedule", "GreedyLR", "MetricSchedule", "ReduceLROnPlateau", "WarmUp",
    # for new schedules
    "Curve", "Fraction", "LastStep", "NonNegative", "Positive", "Steps", "schedule", "scheduled",
]
# fmt: on
