"""What all schedules share: their base, where their peak comes from, what their arguments have to be."""

import math
import numbers
from collections.abc import Collection
from typing import Any

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ..hooks import as_float, unwrap

_MOST_STEPS = 2**53  # beyond it a float does not count, and beyond 2^63 nothing else does


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
        if not isinstance(state_dict, dict):
            raise TypeError(f"`state_dict` must be a dict. Received: state_dict of type {type(state_dict).__name__}")
        self.state_keys()
        wrong = [key for key in self.keys if not isinstance(state_dict.get(key), (numbers.Real, list))]
        if wrong:
            raise ValueError(
                f"`state_dict` must be that of a {type(self).__name__}, with a number as each of {self.keys}. "
                f"Received: {', '.join(f'{key}={state_dict.get(key)!r}' for key in wrong)}"
            )
        super().set_state_dict(state_dict)

    set_dict = set_state_dict


def checked_steps(value: Any, argument: str, least: int = 0) -> int:
    """Return `value` as an int if it is a number of steps from `least` on, raise otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"`{argument}` must be a whole number of steps, no ratio. Received: {argument}={value!r}")
    steps = int(value)
    if steps < least:
        raise ValueError(f"`{argument}` must be at least {least}. Received: {argument}={steps}")
    if steps > _MOST_STEPS:
        raise ValueError(f"`{argument}` must be at most {_MOST_STEPS}. Received: an int of {steps.bit_length()} bits")
    return steps


def checked_phases(num_warmup_steps: Any, num_training_steps: Any) -> tuple[int, int]:
    """Return the steps of the warm-up and those after it, raise if the warm-up would not end within the training."""
    warmup = checked_steps(num_warmup_steps, "num_warmup_steps")
    total = checked_steps(num_training_steps, "num_training_steps", least=1)
    if warmup > total:
        raise ValueError(
            "`num_warmup_steps` must be at most `num_training_steps`, or the peak would never be reached. "
            f"Received: num_warmup_steps={warmup}, num_training_steps={total}"
        )
    return warmup, total - warmup


def checked_number(value: Any, argument: str, low: Any = 0.0, high: Any = math.inf, ends: str = "[]") -> float:
    """Return `value` as a float from `low` to `high`, each of which belongs to the range if its bracket is square."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{argument}` must be a number. Received: {argument}={value!r}")
    value = as_float(value)
    above = value >= low if ends[0] == "[" else value > low
    below = value <= high if ends[1] == "]" else value < high
    if not (above and below and math.isfinite(value)):
        raise ValueError(f"`{argument}` must be in {ends[0]}{low:g}, {high:g}{ends[1]}. Received: {argument}={value!r}")
    return value


def checked_choice(value: str, argument: str, choices: Collection[str]) -> str:
    """Return `value` if it is one of `choices`, raise otherwise."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{argument}` must be one of {', '.join(map(repr, choices))}. Received: {argument}={value!r}")
    return value


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
    elif isinstance(optimizer, numbers.Real) and not isinstance(optimizer, bool):
        peak = as_float(optimizer)
    else:
        hint = " A schedule is built from a number, not from another one." if isinstance(optimizer, LRScheduler) else ""
        raise TypeError(
            f"`optimizer` must be a Paddle optimizer or a learning rate.{hint} Received: optimizer={optimizer!r}"
        )
    return checked_number(peak, "learning_rate", ends="(]")


def attach(schedule: Schedule, optimizer: Any) -> Schedule:
    """Make `schedule` the one of `optimizer` if that is an optimizer, and return it."""
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        optimizer.set_lr_scheduler(schedule)
    return schedule
