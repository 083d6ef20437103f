"""`CurveSchedule`: a Paddle `LRScheduler` whose rate depends on the step alone."""

from typing import Callable

from .._messages import refusal
from ._base import OptimizerOrRate, Schedule, attach, peak_of
from .options import Flag, LastStep, Positive, checks_arguments


class CurveSchedule(Schedule):
    r"""The product of a peak and a curve, step -> factor.

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
        >>> from paddle_ldopt.schedules.linear import Linear
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


def scheduled(optimizer: OptimizerOrRate, curve: Callable[[int], float], last_epoch: int) -> CurveSchedule:
    """Return the schedule of a curve, with the peak of `optimizer`; attach it if this is an optimizer."""
    return attach(CurveSchedule(peak_of(optimizer), curve, last_epoch), optimizer)
