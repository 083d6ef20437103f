"""Warm-up, constant rate, decay (WSD), also with low constant rates at the end (cool-down)."""

import dataclasses
import math
import warnings
from typing import Annotated, Callable, Optional

from .._messages import problem
from ._base import Curve, CurveSchedule, OptimizerOrRate, cosine, peak_of, scheduled
from .kinds import schedule
from .option_types import (
    Fraction,
    LastStep,
    NonNegative,
    Positive,
    Steps,
    StepsFrom1,
    checked_fraction,
    choice,
    needed_steps,
    steps_left,
)

# name of a shape -> (fraction of the phase, waves) -> factor, which falls from 1 to 0 or rises from 0 to 1
FALLS: dict[str, Callable[[float, float], float]] = {
    "linear": lambda progress, cycles: 1.0 - progress,
    "cosine": cosine,
    "1-sqrt": lambda progress, cycles: 1.0 - math.sqrt(progress),
}
RISES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: progress,
    "cosine": lambda progress: 0.5 * (1.0 - math.cos(math.pi * progress)),
    "1-sqrt": lambda progress: 1.0 - math.sqrt(1.0 - progress),
}
Shape = Annotated[str, choice(*FALLS)]


@dataclasses.dataclass(frozen=True)
class StableDecay(Curve):
    """s + (1 - s) rise(step / w), 1 for `stable` steps, f + (1 - f) fall(k / decay), f for `final` steps, then e.

    s, f and e are `start`, `floor` and `end`.
    """

    stable: int = 0
    decay: int = 1
    rise: str = "linear"
    fall: str = "cosine"
    cycles: float = 0.5
    start: float = 0.0
    floor: float = 0.0
    final: int = 0
    end: float = 0.0

    def _before(self, step: int) -> float:
        return RISES[self.rise](step / self.warmup) * (1.0 - self.start) + self.start

    def _after(self, k: int) -> float:
        k -= self.stable
        if k < 0:
            return 1.0
        if k < self.decay:
            return FALLS[self.fall](k / self.decay, self.cycles) * (1.0 - self.floor) + self.floor
        return self.floor if k < self.decay + self.final else self.end

    @property
    def length(self) -> int:
        """The steps of the four phases."""
        return self.warmup + self.stable + self.decay + self.final


@schedule("warmup_stable_decay")
def get_wsd_schedule(
    optimizer: OptimizerOrRate,
    num_warmup_steps: Steps,
    num_decay_steps: Steps,
    num_training_steps: Optional[StepsFrom1] = None,
    num_stable_steps: Optional[Steps] = None,
    warmup_type: Shape = "linear",
    decay_type: Shape = "cosine",
    min_lr_ratio: Fraction = 0,
    num_cycles: Positive = 0.5,
    last_epoch: LastStep = -1,
) -> CurveSchedule:
    r"""Warm-up, constant rate, decay in the last steps: a run can be extended from a checkpoint before the decay.

    .. math::
        \eta_t = \eta (f + (1 - f)\, u(t / w)) \;(t < w), \qquad \eta \;(t < w + s), \qquad
        \eta (f + (1 - f)\, v(\tfrac{t - w - s}{d})) \;(t < w + s + d), \qquad \eta f

    .. math::
        v(x) = 1 - x, \quad \tfrac12 (1 + \cos 2 \pi c x), \quad 1 - \sqrt{x}; \qquad
        u(x) = x, \quad \tfrac12 (1 - \cos \pi x), \quad 1 - \sqrt{1 - x}

    - w, s and d are `num_warmup_steps`, `num_stable_steps` and `num_decay_steps`, at least 0.
    - u and v are `warmup_type` and `decay_type`: "linear", "cosine" or "1-sqrt".
    - f is `min_lr_ratio`, the first and last rate as a fraction of the peak.
    - c is `num_cycles`, the number of waves in a cosine decay, above 0.

    Give either s or n = `num_training_steps`; n sets s = n - w - d. If that is negative, the function warns and takes
    only the last n - w steps of the decay. If both are given, s overrides n, with a warning unless w + s + d = n.

    Examples:
        >>> from paddle_ldopt.schedules import get_wsd_schedule
        >>> schedule = get_wsd_schedule(0.1, 2, 2, num_training_steps=6, decay_type="linear")
        >>> [(schedule(), schedule.step())[0] for _ in range(7)]
        [0.0, 0.05, 0.1, 0.1, 0.1, 0.05, 0.0]
    """
    if num_stable_steps is None:
        total = needed_steps(num_training_steps, "num_stable_steps")
        stable = steps_left(total, num_warmup_steps=num_warmup_steps, num_decay_steps=num_decay_steps)
    else:
        stable = num_stable_steps
        if num_training_steps not in (None, num_warmup_steps + stable + num_decay_steps):
            steps = {"num_warmup_steps": num_warmup_steps, "num_stable_steps": stable}
            steps |= {"num_decay_steps": num_decay_steps, "num_training_steps": num_training_steps}
            wrong = "The phases do not add up to `num_training_steps`, which is ignored: num_stable_steps will be used."
            warnings.warn(problem(wrong, **steps), stacklevel=3)
    phases, f = (num_warmup_steps, stable, num_decay_steps), min_lr_ratio
    curve = StableDecay(*phases, warmup_type, decay_type, num_cycles, start=f, floor=f, end=f)
    return scheduled(optimizer, curve, last_epoch)


@schedule("cool_down")
def get_constant_schedule_with_cool_down(
    optimizer: OptimizerOrRate,
    num_warmup_steps: Steps,
    num_training_steps: Optional[StepsFrom1] = None,
    keep_steps: Steps = 0,
    decay_steps: Optional[Steps] = None,
    num_cycles: Positive = 0.5,
    lr_end1: NonNegative = 0.0,
    final_steps: Steps = 0,
    lr_end2: Optional[NonNegative] = None,
    warmup_lr_init: NonNegative = 0.0,
    last_epoch: LastStep = -1,
) -> CurveSchedule:
    r"""Warm-up, constant rate, a decay along half a cosine, then one or two low constant rates.

    .. math::
        \eta_t = \eta_0 + (\eta - \eta_0) \tfrac{t}{w} \;(t < w), \quad \eta \;(t < w + k), \quad
        \eta_1 + \tfrac{\eta - \eta_1}{2} \left(1 + \cos\left(2 \pi c \tfrac{t - w - k}{d}\right)\right)
        \;(t < w + k + d), \quad \eta_1 \;(t < w + k + d + l), \quad \eta_2

    - w, k, d and l are `num_warmup_steps`, `keep_steps`, `decay_steps` and `final_steps`. By default d is
      `num_training_steps` - w - k - l; if this is negative, 0 with a warning.
    - c is `num_cycles`, the number of waves in the decay, above 0.
    - :math:`\eta_0`, :math:`\eta_1` and :math:`\eta_2` are `warmup_lr_init`, `lr_end1` and `lr_end2` (`lr_end1` by
      default), each from 0 to the peak.

    Differs from MindFormers: there, `decay_steps` is the whole training by default, so that the training ends before
    the decay does. MindFormers also ignores an `lr_end2` of 0.

    Examples:
        >>> from paddle_ldopt.schedules import get_constant_schedule_with_cool_down
        >>> schedule = get_constant_schedule_with_cool_down(
        ...     0.005, 10, keep_steps=10, decay_steps=10, lr_end1=0.002, final_steps=10, lr_end2=0.001
        ... )
        >>> [(schedule.step(t), round(schedule(), 6))[1] for t in (1, 15, 25, 35, 45)]
        [0.0005, 0.005, 0.0035, 0.002, 0.001]

    Source: ``mindformers.core.ConstantWithCoolDownLR``; DeepSeek-V3 (arXiv 2412.19437), section 4.2.
    """
    peak = peak_of(optimizer)
    if decay_steps is None:
        phases = {"num_warmup_steps": num_warmup_steps, "keep_steps": keep_steps, "final_steps": final_steps}
        decay_steps = max(0, steps_left(needed_steps(num_training_steps, "decay_steps"), **phases))
    start = checked_fraction("warmup_lr_init", warmup_lr_init, peak)
    floor = checked_fraction("lr_end1", lr_end1, peak)
    end = floor if lr_end2 is None else checked_fraction("lr_end2", lr_end2, peak)
    curve = StableDecay(
        num_warmup_steps, keep_steps, decay_steps, "linear", "cosine", num_cycles, start, floor, final_steps, end
    )
    return scheduled(optimizer, curve, last_epoch)
