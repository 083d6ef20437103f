"""Linear and polynomial decays."""

import dataclasses

from .._messages import refusal
from ._base import OptimizerOrRate, peak_of
from .curve_schedule import CurveSchedule, DecayingCurve, scheduled
from .kinds import schedule
from .option_types import LastStep, NonNegative, Positive, Steps, StepsFrom1, steps_left


@dataclasses.dataclass(frozen=True)
class Linear(DecayingCurve):
    """1 - k / decay, then 0."""

    def _after(self, k: int) -> float:
        return (self.decay - k) / self.decay if k < self.decay else 0.0


@dataclasses.dataclass(frozen=True)
class Polynomial(DecayingCurve):
    """e + (1 - e) (1 - k / decay)^power, then e."""

    power: float = 1.0
    end: float = 0.0

    def _after(self, k: int) -> float:
        if k > self.decay:
            return self.end
        return (1.0 - self.end) * (1 - k / (self.decay or 1)) ** self.power + self.end


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


@schedule("polynomial")
def get_polynomial_decay_schedule_with_warmup(
    optimizer: OptimizerOrRate,
    num_warmup_steps: Steps,
    num_training_steps: StepsFrom1,
    lr_end: NonNegative = 1e-7,
    power: Positive = 1.0,
    last_epoch: LastStep = -1,
) -> CurveSchedule:
    r"""Linear warm-up, then a polynomial decay to `lr_end`.

    .. math::
        \eta_t = \eta_{end} + (\eta - \eta_{end}) \left(1 - \frac{t - w}{n - w}\right)^p \quad (w \le t \le n), \qquad
        \eta_{end} \quad (t > n)

    `lr_end` is at least 0 and below the peak. `power` is p, above 0; 1 is linear.

    Differs from transformers: a warm-up as long as the training ends at the peak, where transformers divides by 0.

    Examples:
        >>> from paddle_ldopt.schedules import get_polynomial_decay_schedule_with_warmup
        >>> schedule = get_polynomial_decay_schedule_with_warmup(0.1, 0, 2, lr_end=0.02, power=2.0)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(4)]
        [0.1, 0.04, 0.02, 0.02]
    """
    peak = peak_of(optimizer)
    if lr_end >= peak:
        sentence = f"lr_end ({lr_end}) must be smaller than initial lr ({peak})."
        raise refusal(ValueError, sentence, lr_end=lr_end, peak=peak)
    decay = steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    return scheduled(optimizer, Polynomial(num_warmup_steps, decay, power, lr_end / peak), last_epoch)
