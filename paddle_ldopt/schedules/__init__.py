"""Learning-rate schedules, all of transformers' and more, as Paddle `LRScheduler`s.

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

from .curves import (
    get_constant_schedule,
    get_constant_schedule_with_cool_down,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
    get_wsd_schedule,
    rates_of,
)
from .factory import (
    ON_METRIC,
    Curve,
    CurveSchedule,
    Fraction,
    LastStep,
    NonNegative,
    Positive,
    SchedulerType,
    Steps,
    get_scheduler,
    schedule,
    scheduled,
)
from .metric import MetricSchedule, ReduceLROnPlateau, get_reduce_on_plateau_schedule
from .warmup import WarmUp

# fmt: off
__all__ = [
    # any kind by name, and the rates of its steps
    "SchedulerType", "get_scheduler", "ON_METRIC", "rates_of",
    # by kind
    "get_constant_schedule", "get_constant_schedule_with_cool_down", "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup", "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup", "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_inverse_sqrt_schedule", "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup", "get_reduce_on_plateau_schedule", "get_wsd_schedule",
    # classes
    "CurveSchedule", "MetricSchedule", "ReduceLROnPlateau", "WarmUp",
    # for new schedules
    "Curve", "Fraction", "LastStep", "NonNegative", "Positive", "Steps", "schedule", "scheduled",
]
# fmt: on
