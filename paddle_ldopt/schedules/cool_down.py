"""Warm-up, constant rate, decay, and low constant rates at the end."""

from typing import Optional

from ._base import OptimizerOrRate, peak_of
from .curve_schedule import CurveSchedule, scheduled
from .kinds import schedule
from .option_types import LastStep, NonNegative, Positive, Steps, StepsFrom1, checked_fraction, needed_steps, steps_left
from .stable_decay import StableDecay


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
