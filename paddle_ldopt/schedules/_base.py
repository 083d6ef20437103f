"""What all schedules share: their base, where their peak comes from, what their steps have to be."""

import numbers
import warnings
from typing import Any

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._checks import checked_number, checked_state, checked_steps, plain_number, shown
from .._paddle import unwrap


class Schedule(LRScheduler):
    """Base of our schedules; `base_lr` is what they were built with, the peak of those that have one."""

    base_lr: float
    last_lr: float
    last_epoch: int

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave.

        Args:
            state_dict (dict): the state.

        Raises:
            TypeError, ValueError: it is no state of such a schedule. Nothing is changed by then.
        """
        checked_state(state_dict)
        self.state_keys()
        wrong = [key for key in self.keys if not isinstance(state_dict.get(key), (numbers.Real, list))]
        if wrong:
            raise ValueError(
                f"`state_dict` must be that of a {type(self).__name__}, with a number as each of {self.keys}. "
                f"Received: {', '.join(f'{key}={shown(state_dict.get(key))}' for key in wrong)}"
            )
        super().set_state_dict(state_dict)

    set_dict = set_state_dict


def checked_phases(num_warmup_steps: Any, num_training_steps: Any) -> tuple[int, int]:
    """Return the steps of the warm-up and those after it; the latter are below 0 if the training ends before it."""
    warmup = checked_steps(num_warmup_steps, "num_warmup_steps")
    total = checked_steps(num_training_steps, "num_training_steps", least=1)
    return warmup, left_over(total, stacklevel=4, num_warmup_steps=warmup)


def left_over(num_training_steps: int, stacklevel: int = 3, **phases: int) -> int:
    """Return the number of training steps left after `phases`; if they do not fit it is negative, with a warning."""
    left = num_training_steps - sum(phases.values())
    if left < 0:
        received = ", ".join(f"{name}={steps}" for name, steps in phases.items())
        warnings.warn(
            "The schedule is longer than the training, which stops in the middle of it. "
            f"Received: {received}, num_training_steps={num_training_steps}",
            stacklevel=stacklevel,
        )
    return left


def peak_of(optimizer: Any) -> float:
    """Return the peak of a schedule, above 0, from its first argument.

    Args:
        optimizer (Optimizer|float): an optimizer or the peak. Of an optimizer it is the current rate, but if it has a
            schedule of ours already, the peak of that one: its current rate may be that of a warm-up.
    """
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        attached = optimizer._learning_rate
        peak = attached.base_lr if isinstance(attached, Schedule) else float(optimizer.get_lr())
    else:
        hint = ". A schedule is built from a number, not from another one" if isinstance(optimizer, LRScheduler) else ""
        kind = f"a Paddle optimizer or a learning rate{hint}"
        argument = "learning_rate" if isinstance(plain_number(optimizer), (int, float)) else "optimizer"
        peak = checked_number(optimizer, argument, ends="(]", kind=kind)
    return checked_number(peak, "learning_rate", ends="(]")


def attach(schedule: Schedule, optimizer: Any) -> Schedule:
    """Make `schedule` the one of `optimizer` if that is an optimizer, and return it."""
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        optimizer.set_lr_scheduler(schedule)
    return schedule
