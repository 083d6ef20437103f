"""Build the schedules of `--lr_scheduler_type`: names, arguments, warm-up, evaluation metric."""

import functools
from collections.abc import Iterator
from typing import Any

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._messages import refusal, shown
from .._paddle import unwrap
from ..config.files import json_argument
from ..config.problems import MANY_STEPS, schedule_problems
from ..config.schedule import build_schedule
from ..config.trainer_arguments import BUILT_IN, builds_schedule, evaluation_metric, name_of, schedule_of_arguments
from ..schedules import MetricSchedule
from ..schedules.factory import SCHEDULES, metric_kinds
from .types import Args

_FROM_ELSEWHERE = {"mode": "`greater_is_better`", "last_epoch": "the checkpoint"}  # option of a schedule -> its source


def schedule_problem(args: Args) -> Iterator[str]:
    """Yield the first problem of `lr_scheduler_kwargs` and the other arguments of the schedule."""
    kind, kwargs = name_of(args.lr_scheduler_type), json_argument(args, "lr_scheduler_kwargs")
    fields, received = BUILT_IN.get(kind, ()), f"lr_scheduler_kwargs={shown(args.lr_scheduler_kwargs)}"
    twice = [field for field in fields if field in kwargs and getattr(args, field) != getattr(type(args), field)]
    elsewhere = [key for key in _FROM_ELSEWHERE if key in kwargs]
    if kind not in SCHEDULES:
        if kwargs:  # without them, the Trainer raises for an unknown kind
            known, received = ", ".join(map(repr, SCHEDULES)), f"lr_scheduler_type={shown(kind)}, {received}"
            yield f"`lr_scheduler_kwargs` need `lr_scheduler_type` to be one of {known}. Received: {received}"
    elif kwargs and kind in BUILT_IN and not fields:
        yield f"The schedule {shown(kind)} takes no `lr_scheduler_kwargs`. Received: {received}"
    elif twice:
        received = f"Received: {twice[0]}={shown(getattr(args, twice[0]))}, {received}"
        yield f"`{twice[0]}` is also an argument of the Trainer: leave it out of `lr_scheduler_kwargs`. {received}"
    elif elsewhere:
        source = _FROM_ELSEWHERE[elsewhere[0]]
        yield f"The `{elsewhere[0]}` of a schedule comes from {source}: leave it out. Received: {received}"
    elif builds_schedule(args):
        steps = args.max_steps if args.max_steps > 0 else MANY_STEPS
        yield from schedule_problems(*schedule_of_arguments(args, steps))


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
