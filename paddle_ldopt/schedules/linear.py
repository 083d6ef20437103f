"""A linear decay."""

import dataclasses

from ._base import OptimizerOrRate
from .curve_schedule import CurveSchedule, DecayingCurve, scheduled
from .kinds import schedule
from .option_types import LastStep, Steps, StepsFrom1, steps_left


@dataclasses.dataclass(frozen=True)
class Linear(DecayingCurve):
    """1 - k / decay, then 0."""

    def _after(self, k: int) -> float:
        return (self.decay - k) / self.decay if k < self.decay else 0.0


@schedule("linear")
def get_linear_schedule_with_warmup(
    optimizer: OptimizerOrRate, num_warmup_steps: Steps, num_training_steps: StepsFrom1, last_epoch: LastStep = -1
) -> CurveSchedule:
    r"""Linear warm-up, then a linear decay to 0: the usual schedule of fine-tuning.

    .. math::
        \eta_t = \eta\, t / w \quad (t < w), \qquad \eta \max\left(0, \frac{n - t}{n - w}\right) \quad (t \ge w)

    Examples:
        >>> from paddle_ldopt.schedules import get_linear_schedule_with_warmup
        >>> schedule = get_linear_schedule_with_warmup(0.1, num_warmup_steps=2, num_training_steps=4)
        >>> [(schedule(), schedule.step())[0] for _ in range(6)]
        [0.0, 0.05, 0.1, 0.05, 0.0, 0.0]
    """
    decay = steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    return scheduled(optimizer, Linear(num_warmup_steps, decay), last_epoch)
