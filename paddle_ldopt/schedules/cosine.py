"""Decays along a cosine: to 0, to a minimum rate, or several times."""

import dataclasses
from typing import Optional

from .._messages import refusal
from ._base import CurveSchedule, DecayingCurve, OptimizerOrRate, cosine, peak_of, scheduled
from .kinds import schedule
from .option_types import Fraction, LastStep, NonNegative, Positive, Steps, StepsFrom1, checked_fraction, steps_left


@dataclasses.dataclass(frozen=True)
class Cosine(DecayingCurve):
    """f + (1 - f) (1 + cos(2 pi cycles k / decay)) / 2, with f the floor; the wave goes on after `decay` steps."""

    cycles: float = 0.5
    floor: float = 0.0

    def _after(self, k: int) -> float:
        return cosine(k / max(1, self.decay), self.cycles) * (1.0 - self.floor) + self.floor


@dataclasses.dataclass(frozen=True)
class CosineOneAhead(Cosine):
    """The cosine one step earlier; the warm-up, (step + 1) / w or linear from `start`, ends at step w - 1."""

    start: Optional[float] = None

    def _before(self, step: int) -> float:
        if self.start is None:
            return (step + 1.0) / self.warmup
        # rounding may give one ulp above 1
        return min(1.0, self.start + (1.0 - self.start) * step / max(1, self.warmup - 1))

    def _after(self, k: int) -> float:
        return super()._after(k + 1)


@dataclasses.dataclass(frozen=True)
class CosineRestarts(DecayingCurve):
    """(1 + cos(pi (cycles k / decay mod 1))) / 2, then 0."""

    cycles: float = 1.0

    def _after(self, k: int) -> float:
        progress = k / max(1, self.decay)
        return cosine(self.cycles * progress % 1.0, 0.5) if progress < 1.0 else 0.0


@schedule("cosine")
def get_cosine_schedule_with_warmup(
    optimizer: OptimizerOrRate,
    num_warmup_steps: Steps,
    num_training_steps: StepsFrom1,
    num_cycles: Positive = 0.5,
    last_epoch: LastStep = -1,
) -> CurveSchedule:
    r"""Linear warm-up, then a decay to 0 along half a cosine.

    .. math::
        \eta_t = \tfrac{\eta}{2} \left(1 + \cos\left(2 \pi c \frac{t - w}{n - w}\right)\right) \quad (t \ge w)

    `num_cycles` is c, the number of waves from step w to step n, above 0. The wave goes on after step n.

    Examples:
        >>> from paddle_ldopt.schedules import get_cosine_schedule_with_warmup
        >>> schedule = get_cosine_schedule_with_warmup(0.1, num_warmup_steps=1, num_training_steps=3)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(4)]
        [0.0, 0.1, 0.05, 0.0]
    """
    decay = steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    return scheduled(optimizer, Cosine(num_warmup_steps, decay, num_cycles), last_epoch)


@schedule("cosine_with_restarts")
def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: OptimizerOrRate,
    num_warmup_steps: Steps,
    num_training_steps: StepsFrom1,
    num_cycles: Positive = 1,
    last_epoch: LastStep = -1,
) -> CurveSchedule:
    r"""Linear warm-up, then several decays along half a cosine, each from the peak.

    .. math::
        \eta_t = \tfrac{\eta}{2} \left(1 + \cos\left(\pi \left(c \tfrac{t - w}{n - w} \bmod 1\right)\right)\right)
        \quad (w \le t < n), \qquad 0 \quad (t \ge n)

    `num_cycles` is c, the number of decays, above 0. With w = n, step n is at the peak.

    Examples:
        >>> from paddle_ldopt.schedules import get_cosine_with_hard_restarts_schedule_with_warmup
        >>> schedule = get_cosine_with_hard_restarts_schedule_with_warmup(0.1, 0, 4, num_cycles=2)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(5)]
        [0.1, 0.05, 0.1, 0.05, 0.0]
    """
    decay = steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    return scheduled(optimizer, CosineRestarts(num_warmup_steps, decay, num_cycles), last_epoch)


@schedule("cosine_with_min_lr")
def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: OptimizerOrRate,
    num_warmup_steps: Steps,
    num_training_steps: StepsFrom1,
    num_cycles: Positive = 0.5,
    last_epoch: LastStep = -1,
    min_lr: Optional[NonNegative] = None,
    min_lr_rate: Optional[Fraction] = None,
) -> CurveSchedule:
    r"""Linear warm-up, then a decay along half a cosine to a minimum rate.

    .. math::
        \eta_t = \eta \left(f + \tfrac{1 - f}{2} \left(1 + \cos\left(2 \pi c \tfrac{t - w}{n - w}\right)\right)\right)
        \quad (t \ge w)

    `num_cycles` is as in `get_cosine_schedule_with_warmup`. Give the minimum either as `min_lr`, a rate from 0 to the
    peak, or as `min_lr_rate`, f, a fraction of the peak.

    Examples:
        >>> from paddle_ldopt.schedules import get_cosine_with_min_lr_schedule_with_warmup
        >>> schedule = get_cosine_with_min_lr_schedule_with_warmup(0.1, 0, 2, min_lr=0.02)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(3)]
        [0.1, 0.06, 0.02]
    """
    decay = steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    floor = _floor(optimizer, min_lr, min_lr_rate)
    return scheduled(optimizer, Cosine(num_warmup_steps, decay, num_cycles, floor), last_epoch)


@schedule("cosine_warmup_with_min_lr")
def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: OptimizerOrRate,
    num_warmup_steps: Steps,
    num_training_steps: StepsFrom1,
    num_cycles: Positive = 0.5,
    last_epoch: LastStep = -1,
    min_lr: Optional[NonNegative] = None,
    min_lr_rate: Optional[Fraction] = None,
    warmup_lr_rate: Optional[Fraction] = None,
) -> CurveSchedule:
    r"""Warm-up from above 0, with the peak at its last step, then a decay along half a cosine to a minimum rate.

    .. math::
        \eta_t = \eta\, \frac{t + 1}{w} \text{ or } \eta \left(r + (1 - r) \frac{t}{w - 1}\right) \quad (t < w), \qquad
        \eta \left(f + \tfrac{1 - f}{2} \left(1 + \cos\left(2 \pi c \tfrac{t + 1 - w}{n - w}\right)\right)\right)
        \quad (t \ge w)

    Step n - 1 is at the minimum rate. `num_cycles`, `min_lr` and `min_lr_rate` are as in
    `get_cosine_with_min_lr_schedule_with_warmup`. `warmup_lr_rate` is r, the first rate as a fraction of the peak; 1/w
    by default.

    Examples:
        >>> from paddle_ldopt.schedules import get_cosine_with_min_lr_schedule_with_warmup_lr_rate
        >>> schedule = get_cosine_with_min_lr_schedule_with_warmup_lr_rate(0.1, 2, 4, min_lr_rate=0.2)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(4)]
        [0.05, 0.1, 0.06, 0.02]
    """
    decay = steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    floor = _floor(optimizer, min_lr, min_lr_rate)
    curve = CosineOneAhead(num_warmup_steps, decay, num_cycles, floor, warmup_lr_rate)
    return scheduled(optimizer, curve, last_epoch)


def _floor(optimizer: OptimizerOrRate, min_lr: Optional[float], min_lr_rate: Optional[float]) -> float:
    """Return the minimum rate as a fraction of the peak."""
    if min_lr is not None and min_lr_rate is None:
        return checked_fraction("min_lr", min_lr, peak_of(optimizer))
    if min_lr_rate is None or min_lr is not None:
        how = "One of min_lr or min_lr_rate should be set through the `lr_scheduler_kwargs`."
        how = how if min_lr is None else "Only one of min_lr or min_lr_rate should be set."
        raise refusal(ValueError, how, min_lr=min_lr, min_lr_rate=min_lr_rate)
    return min_lr_rate
