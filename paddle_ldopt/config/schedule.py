"""Build a schedule from settings."""

from typing import Any, Optional

from paddle.optimizer.lr import LRScheduler

from .._checks import checked_steps, refusal
from ..schedules import get_scheduler
from ..schedules.factory import metric_kinds


def build_schedule(settings: Any, steps: Optional[int]) -> LRScheduler:
    """Return the schedule of a `LdoptConfig`, or of an object with the same attributes, over this many steps."""
    kind, warmup = settings.lr_scheduler_type, settings.warmup_steps
    if settings.warmup_ratio and not warmup:
        if steps is None:
            message = "`warmup_ratio` is a fraction of all steps: give `num_training_steps`."
            raise refusal(ValueError, message, num_training_steps=None)
        warmup = int(settings.warmup_ratio * checked_steps(steps, "num_training_steps"))
    timed = {} if kind in metric_kinds() else {"num_warmup_steps": warmup, "num_training_steps": steps}
    return get_scheduler(kind, settings.learning_rate, **timed, scheduler_specific_kwargs=settings.lr_scheduler_kwargs)
