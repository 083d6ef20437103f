"""Learning-rate schedules: transformers' functions and more, on Paddle's `LRScheduler`.

`curves` has their shapes, step -> factor of the peak, `functions` builds schedules on these, and `metric` those that
follow a metric. `options` declares all arguments, `factory` builds a schedule by its name, `warmup` goes before any
other schedule, `ahead` reads the rates of a schedule in advance.
"""

from .factory import ON_METRIC, SchedulerType, get_scheduler
from .functions import (
    RuleSchedule,
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
)
from .metric import GreedyLR, MetricSchedule, ReduceLROnPlateau, get_greedy_schedule, get_reduce_on_plateau_schedule
from .warmup import WarmUp

__all__ = [
    "ON_METRIC",
    "GreedyLR",
    "MetricSchedule",
    "ReduceLROnPlateau",
    "RuleSchedule",
    "SchedulerType",
    "WarmUp",
    "get_constant_schedule",
    "get_constant_schedule_with_cool_down",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_greedy_schedule",
    "get_inverse_sqrt_schedule",
    "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup",
    "get_reduce_on_plateau_schedule",
    "get_scheduler",
    "get_wsd_schedule",
]
