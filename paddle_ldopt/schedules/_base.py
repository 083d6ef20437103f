"""The base of all schedules, and schedules by a curve: a function that maps a step to a factor of the peak.

Curves are frozen dataclasses: they can be pickled, compared and printed. With w the steps of the warm-up and k = step -
w, all curves start with step / w unless their docstring says otherwise. Operations are in the order of transformers',
so the numbers agree except for the last bit.
"""

import dataclasses
import math
import numbers
from typing import Any, Callable, Optional, TypeVar, Union

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._checks import checked_number, checked_state, plain_number
from .._messages import refusal
from .._paddle import lr_or_scheduler, unwrap
from .option_types import Bool, LastStep, Positive, checks_arguments


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

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as `set_state_dict` does."""
        self.set_state_dict(state_dict)

    def get_last_lr(self) -> list[float]:
        """Return the present rate in a list, as PyTorch's schedules do: all groups share it."""
        return [self.last_lr]


OptimizerOrRate = Union[Optimizer, float]  # an optimizer may be in wrappers of `fleet` and `amp`
_AnySchedule = TypeVar("_AnySchedule", bound=Schedule)


def peak_of(optimizer: OptimizerOrRate, argument: str = "optimizer") -> float:
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
    if isinstance(plain_number(optimizer), (int, float)):
        argument = "learning_rate"
    return checked_number(optimizer, argument, ends="(]", expected=expected)


def attach(schedule: _AnySchedule, optimizer: OptimizerOrRate) -> _AnySchedule:
    """Attach `schedule` to `optimizer` if an optimizer was given; return the schedule."""
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        optimizer.set_lr_scheduler(schedule)
    return schedule


def cosine(progress: float, cycles: float) -> float:
    """Return the factor of a wave from 1 to 0 and back, after a fraction of `cycles` waves."""
    return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))


@dataclasses.dataclass(frozen=True)
class Curve:
    """Base of all curves: a linear rise to 1 at step `warmup`; subclasses give the factor from there on."""

    warmup: int = 0

    def __call__(self, step: int) -> float:
        """Return the factor of a step, counted from 0."""
        return self._before(step) if step < self.warmup else self._after(step - self.warmup)

    def _before(self, step: int) -> float:
        """Return the factor of a step of the warm-up."""
        return step / self.warmup

    def _after(self, k: int) -> float:
        """Return the factor `k` steps after the warm-up."""
        raise NotImplementedError

    @property
    def length(self) -> Optional[int]:
        """The number of steps that the curve covers, counted from its first; None if it has no end."""
        return None


@dataclasses.dataclass(frozen=True)
class DecayingCurve(Curve):
    """Base of the curves that decay for `decay` steps after the warm-up."""

    decay: int = 1

    @property
    def length(self) -> int:
        """The steps of both phases."""
        return self.warmup + self.decay


class CurveSchedule(Schedule):
    r"""A schedule whose rate is its peak times a curve (step -> factor).

    .. math::
        \eta_t = \eta \, c(t), \qquad t = \text{last\_epoch}

    All steps cost the same. A run resumed from `last_epoch` or `state_dict` has the rates of an uninterrupted run, bit
    for bit.

    Args:
        learning_rate: the peak, above 0.
        curve: c, step from 0 -> factor in [0, 1]. A schedule with a lambda cannot be pickled.
        last_epoch: the last step taken, -1 for none.
        verbose: print every change.

    Examples:
        >>> from paddle_ldopt.schedules import CurveSchedule
        >>> from paddle_ldopt.schedules.basic import Linear
        >>> schedule = CurveSchedule(0.1, Linear(warmup=1, decay=2))
        >>> [(schedule(), schedule.step())[0] for _ in range(4)]
        [0.0, 0.1, 0.05, 0.0]
    """

    @checks_arguments
    def __init__(
        self, learning_rate: Positive, curve: Callable[[int], float], last_epoch: LastStep = -1, verbose: Bool = False
    ) -> None:
        if not callable(curve):
            raise refusal(TypeError, "`curve` must be callable.", curve=curve)
        self.curve = curve
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        """Return the rate of step `last_epoch`."""
        return self.base_lr * self.curve(self.last_epoch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_lr!r}, {self.curve!r}, last_epoch={self.last_epoch})"


RuleSchedule = CurveSchedule  # its name in 0.1


def scheduled(optimizer: OptimizerOrRate, curve: Callable[[int], float], last_epoch: int) -> CurveSchedule:
    """Return the schedule of a curve, with the peak of `optimizer`; attach it if this is an optimizer."""
    return attach(CurveSchedule(peak_of(optimizer), curve, last_epoch), optimizer)
