"""What all schedules share: their base class, where their peak comes from, and how an optimizer gets one."""

import numbers
from typing import Any, TypeVar

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._checks import checked_number, checked_state, plain_number
from .._messages import refusal
from .._paddle import rate_source, unwrap


class Schedule(LRScheduler):
    """Base of our schedules; `base_lr` is the rate that they were built with, the peak of those that have one."""

    base_lr: float
    last_lr: float
    last_epoch: int

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave; raise, and change nothing, if it is not the state of such a schedule."""
        checked_state(state_dict)
        self.state_keys()
        wrong = [key for key in self.keys if not isinstance(state_dict.get(key), (numbers.Real, list))]
        if wrong:
            kind = f"that of a {type(self).__name__}, with a number as each of {self.keys}"
            raise refusal(ValueError, f"`state_dict` must be {kind}.", **{key: state_dict.get(key) for key in wrong})
        super().set_state_dict(state_dict)

    set_dict = set_state_dict


_AnySchedule = TypeVar("_AnySchedule", bound=Schedule)


def peak_of(optimizer: Any) -> float:
    """Return the peak, above 0, of a schedule that is built from an optimizer or a number.

    An optimizer that has a schedule of ours already keeps its peak: the current rate may be that of a warm-up.
    """
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        attached = rate_source(optimizer)
        peak = attached.base_lr if isinstance(attached, Schedule) else float(optimizer.get_lr())
    else:
        hint = ". A schedule is built from a number, not from another one" if isinstance(optimizer, LRScheduler) else ""
        kind = f"a Paddle optimizer or a learning rate{hint}"
        argument = "learning_rate" if isinstance(plain_number(optimizer), (int, float)) else "optimizer"
        peak = checked_number(optimizer, argument, ends="(]", kind=kind)
    return checked_number(peak, "learning_rate", ends="(]")


def attach(schedule: _AnySchedule, optimizer: Any) -> _AnySchedule:
    """Attach `schedule` to `optimizer` if it is one; return the schedule."""
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        optimizer.set_lr_scheduler(schedule)
    return schedule
