"""A decay with the square root of the steps."""

import dataclasses
import math
from typing import Optional

from ._base import OptimizerOrRate
from .curve_schedule import Curve, CurveSchedule, scheduled
from .kinds import schedule
from .option_types import LastStep, Positive, Steps


@dataclasses.dataclass(frozen=True)
class InverseSqrt(Curve):
    """1 / sqrt((k + timescale) / timescale)."""

    timescale: float = 10_000

    def _after(self, k: int) -> float:
        return 1.0 / math.sqrt((k + self.timescale) / self.timescale)


@schedule("inverse_sqrt")
def get_inverse_sqrt_schedule(
    optimizer: OptimizerOrRate, num_warmup_steps: Steps, timescale: Optional[Positive] = None, last_epoch: LastStep = -1
) -> CurveSchedule:
    r"""Linear warm-up, then a decay with the square root of the steps: for runs of unknown length.

    .. math::
        \eta_t = \eta \sqrt{\frac{s}{t - w + s}} \quad (t \ge w)

    `timescale` is s, in steps, above 0; by default w, or 10,000 if w is 0.

    Examples:
        >>> from paddle_ldopt.schedules import get_inverse_sqrt_schedule
        >>> schedule = get_inverse_sqrt_schedule(0.1, num_warmup_steps=1)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(5)]
        [0.0, 0.1, 0.070711, 0.057735, 0.05]
    """
    scale = (num_warmup_steps or 10_000) if timescale is None else timescale
    return scheduled(optimizer, InverseSqrt(num_warmup_steps, scale), last_epoch)
