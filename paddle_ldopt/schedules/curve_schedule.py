"""`CurveSchedule`: a function of the step alone, on Paddle's `LRScheduler`."""

from typing import Any, Callable

from .._messages import refusal
from ._base import Schedule, attach, peak_of
from .options import Flag, LastStep, Positive, checks_arguments

__all__ = ["CurveSchedule", "RuleSchedule"]


class CurveSchedule(Schedule):
    r"""A peak and a curve, step -> factor: the schedule that every function of this module returns.

    .. math::
        \eta_t = \eta \, c(t), \qquad t = \text{last\_epoch}

    Any step costs the same, and a resume, from `last_epoch` or from `state_dict`, gives the numbers of a run that was
    never stopped, bit for bit.

    Args:
        learning_rate: the peak, above 0.
        curve: c, step from 0 -> factor in [0, 1]; to pickle the schedule, not a lambda.
        last_epoch: the last step that was taken, -1 for none.
        verbose: print every change, as Paddle's schedules do.

    Examples:
        >>> from paddle_ldopt.schedules import CurveSchedule
        >>> from paddle_ldopt.schedules.curves import Linear
        >>> schedule = CurveSchedule(0.1, Linear(warmup=1, decay=2))
        >>> [(schedule(), schedule.step())[0] for _ in range(4)]
        [0.0, 0.1, 0.05, 0.0]
    """

    @checks_arguments
    def __init__(
        self, learning_rate: Positive, curve: Callable[[int], float], last_epoch: LastStep = -1, verbose: Flag = False
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


def scheduled(optimizer: Any, curve: Callable[[int], float], last_epoch: int) -> CurveSchedule:
    """Return the schedule of a curve, attached to the optimizer that gives the peak, if it is one."""
    return attach(CurveSchedule(peak_of(optimizer), curve, last_epoch), optimizer)
