"""Build the schedules of `--lr_scheduler_type`: names, arguments, warm-up, evaluation metric."""

import functools
from typing import Any

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._messages import refusal, shown
from .._paddle import unwrap
from ..config import (
    build_schedule,
    evaluation_metric,
    name_of,
    schedule_of_arguments,
)
from ..schedules import MetricSchedule
from ..schedules.kinds import metric_kinds
from .types import Args


def build_scheduler(args: Args, num_training_steps: int) -> LRScheduler:
    """Return the schedule for `num_training_steps` optimizer steps."""
    schedule = build_schedule(*schedule_of_arguments(args, num_training_steps))
    if isinstance(schedule, MetricSchedule):
        plain: Any = type(schedule)
        schedule.__class__ = _on_metric_class(plain)
    return schedule


class OwnRate(LRScheduler):
    """The placeholder schedule of an optimizer that sets its own rate: it only reports the rate."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer = unwrap(optimizer)
        super().__init__(float(self.optimizer.get_lr()))

    def get_lr(self) -> float:
        """Return the rate that the optimizer reports."""
        return float(self.optimizer.get_lr())


def check_evaluation(args: Args) -> None:
    """Raise ValueError if the schedule follows a metric and the Trainer does not evaluate."""
    kind = name_of(args.lr_scheduler_type)
    if kind in metric_kinds() and name_of(args.evaluation_strategy) == "no":
        message = f"The schedule {shown(kind)} follows an evaluation metric and would never change without one"
        advice = "give `evaluation_strategy` 'steps' or 'epoch'."
        raise refusal(ValueError, f"{message}: {advice}", evaluation_strategy="no", lr_scheduler_type=kind)


@functools.cache
def _on_metric_class(plain: Any) -> Any:
    """Return a subclass of `plain` whose `step` without a metric, which the Trainer calls every step, does nothing."""

    def step(self: Any, metrics: Any = None, *args: Any, **kwargs: Any) -> None:
        if metrics is not None:
            plain.step(self, metrics, *args, **kwargs)

    return type(plain.__name__, (plain,), {"step": step, "__doc__": plain.__doc__})


def step_on_metric(schedule: LRScheduler, args: Args, metrics: dict[str, float]) -> bool:
    """Step a schedule that follows a metric; return False if `metrics` lacks it."""
    if not isinstance(schedule, MetricSchedule):
        return True
    key = evaluation_metric(args)[0]
    if key in metrics:
        schedule.step(float(metrics[key]))
    return key in metrics


def check_metric_found(args: Args, other_metrics: Any) -> None:
    """Raise ValueError if an evaluation had `other_metrics` without the metric that the schedule follows."""
    if other_metrics:
        raise refusal(
            ValueError,
            "The evaluation lacks the metric that the schedule follows: set `metric_for_best_model` to one of "
            f"{', '.join(sorted(other_metrics))}.",
            metric_for_best_model=args.metric_for_best_model,
            lr_scheduler_type=name_of(args.lr_scheduler_type),
        )
