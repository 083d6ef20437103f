"""The base class of all schedules, their peak, and attaching them to an optimizer."""

import numbers
from typing import Any, TypeVar, Union

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._checks import checked_number, checked_state, plain_number
from .._messages import refusal
from .._paddle import lr_or_scheduler, unwrap


class Schedule(LRScheduler):
    """Base of our schedules. `base_lr` is the learning rate they were built with, for a `CurveSchedule` the peak."""

    base_lr: float
    last_lr: float
    last_epoch: int

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from `state_dict`; the state of another kind of schedule raises and changes nothing."""
        checked_state(state_dict)
        self.state_keys()
        wrong = [key for key in self.keys if not isinstance(state_dict.get(key), (numbers.Real, list))]
        if wrong:
            expected = f"the state of a {type(self).__name__}, with a number for each of {self.keys}"
            raise refusal(
                ValueError, f"`state_dict` must be {expected}.", **{key: state_dict.get(key) for key in wrong}
            )
        super().set_state_dict(state_dict)

    def set_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as `set_state_dict` does."""
        self.set_state_dict(state_dict)


OptimizerOrRate = Union[Optimizer, float]  # an optimizer may be in wrappers of `fleet` and `amp`
_AnySchedule = TypeVar("_AnySchedule", bound=Schedule)


def peak_of(optimizer: OptimizerOrRate) -> float:
    """Return the peak, above 0, of a new schedule for an optimizer, or the given learning rate.

    An optimizer that already has one of our schedules keeps that peak: its current rate may be that of a warm-up.
    """
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        attached = lr_or_scheduler(optimizer)
        peak = attached.base_lr if isinstance(attached, Schedule) else float(optimizer.get_lr())
        return checked_number(peak, "learning_rate", ends="(]")
    expected = "a Paddle optimizer or a learning rate"
    if isinstance(optimizer, LRScheduler):
        expected += ". A schedule is built from a number, not from another schedule"
    argument = "learning_rate" if isinstance(plain_number(optimizer), (int, float)) else "optimizer"
    return checked_number(optimizer, argument, ends="(]", expected=expected)


def attach(schedule: _AnySchedule, optimizer: OptimizerOrRate) -> _AnySchedule:
    """Attach `schedule` to `optimizer` if an optimizer was given; return the schedule."""
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        optimizer.set_lr_scheduler(schedule)
    return schedule
