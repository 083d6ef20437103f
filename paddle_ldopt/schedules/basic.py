"""Rates of one formula after the warm-up: constant, linear, polynomial, inverse square root."""

import dataclasses
import math
from typing import Optional

from .._messages import refusal
from ._base import Curve, CurveSchedule, DecayingCurve, OptimizerOrRate, peak_of, scheduled
from .kinds import schedule
from .option_types import LastStep, NonNegative, Positive, Steps, StepsFrom1, steps_left


@dataclasses.dataclass(frozen=True)
class Constant(Curve):
    """1 after the warm-up."""

    def _after(self, k: int) -> float:
        return 1.0


@schedule("constant")
def get_constant_schedule(optimizer: OptimizerOrRate, last_epoch: LastStep = -1) -> CurveSchedule:
    r"""Keep the learning rate constant.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt.schedules import get_constant_schedule
        >>> opt = paddle.optimizer.AdamW(5e-5, parameters=paddle.nn.Linear(4, 2).parameters())
        >>> schedule = get_constant_schedule(opt)
        >>> schedule.step()
        >>> opt.get_lr()
        5e-05
    """
    return scheduled(optimizer, Constant(), last_epoch)


@schedule("constant_with_warmup")
def get_constant_schedule_with_warmup(
    optimizer: OptimizerOrRate, num_warmup_steps: Steps, last_epoch: LastStep = -1
) -> CurveSchedule:
    r"""Raise the learning rate linearly from 0, then keep it constant.

    .. math::
        \eta_t = \eta \min(t / w, 1)

    Examples:
        >>> from paddle_ldopt.schedules import get_constant_schedule_with_warmup
        >>> schedule = get_constant_schedule_with_warmup(0.1, num_warmup_steps=2)
        >>> [(schedule(), schedule.step())[0] for _ in range(4)]
        [0.0, 0.05, 0.1, 0.1]
    """
    return scheduled(optimizer, Constant(num_warmup_steps), last_epoch)


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
    r"""Linear warm-up, then a decay with the inverse square root of the steps: for runs of unknown length.

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
