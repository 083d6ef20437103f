"""One function for each kind of schedule; `get_scheduler` documents their shared arguments."""

import warnings
from typing import TYPE_CHECKING, Any, Optional

from .._messages import refusal
from . import curves
from ._base import attach, peak_of
from .curve_schedule import CurveSchedule, scheduled
from .metric import GreedyLR, ReduceLROnPlateau
from .options import Fraction, LastStep, NonNegative, Positive, Shape, Steps, StepsFrom1, checked_fraction
from .registry import SCHEDULES, schedule


def _steps_left(num_training_steps: int, **phases: int) -> int:
    """Return the number of training steps left after `phases`; negative, with a warning, if they are too long."""
    left = num_training_steps - sum(phases.values())
    if left < 0:
        longer = "The schedule is longer than the training and is cut off at its end."
        warnings.warn(refusal(UserWarning, longer, **phases, num_training_steps=num_training_steps), stacklevel=4)
    return left


@schedule("constant")
def get_constant_schedule(optimizer: Any, last_epoch: LastStep = -1) -> CurveSchedule:
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
    return scheduled(optimizer, curves.Constant(), last_epoch)


@schedule("constant_with_warmup")
def get_constant_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: Steps, last_epoch: LastStep = -1
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
    return scheduled(optimizer, curves.Constant(num_warmup_steps), last_epoch)


@schedule("linear")
def get_linear_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: Steps, num_training_steps: StepsFrom1, last_epoch: LastStep = -1
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
    decay = _steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    return scheduled(optimizer, curves.Linear(num_warmup_steps, decay), last_epoch)


@schedule("cosine")
def get_cosine_schedule_with_warmup(
    optimizer: Any,
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
    decay = _steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    return scheduled(optimizer, curves.Cosine(num_warmup_steps, decay, num_cycles), last_epoch)


@schedule("cosine_with_restarts")
def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Any,
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
    decay = _steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    return scheduled(optimizer, curves.CosineRestarts(num_warmup_steps, decay, num_cycles), last_epoch)


@schedule("polynomial")
def get_polynomial_decay_schedule_with_warmup(
    optimizer: Any,
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
    decay = _steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    return scheduled(optimizer, curves.Polynomial(num_warmup_steps, decay, power, lr_end / peak), last_epoch)


@schedule("inverse_sqrt")
def get_inverse_sqrt_schedule(
    optimizer: Any, num_warmup_steps: Steps, timescale: Optional[Positive] = None, last_epoch: LastStep = -1
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
    return scheduled(optimizer, curves.InverseSqrt(num_warmup_steps, scale), last_epoch)


@schedule("cosine_with_min_lr")
def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Any,
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
    decay = _steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    floor = _floor(optimizer, min_lr, min_lr_rate)
    return scheduled(optimizer, curves.Cosine(num_warmup_steps, decay, num_cycles, floor), last_epoch)


@schedule("cosine_warmup_with_min_lr")
def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Any,
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
    decay = _steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    floor = _floor(optimizer, min_lr, min_lr_rate)
    curve = curves.CosineOneAhead(num_warmup_steps, decay, num_cycles, floor, warmup_lr_rate)
    return scheduled(optimizer, curve, last_epoch)


def _floor(optimizer: Any, min_lr: Optional[float], min_lr_rate: Optional[float]) -> float:
    """Return the minimum rate as a fraction of the peak."""
    if min_lr is not None and min_lr_rate is None:
        return checked_fraction("min_lr", min_lr, peak_of(optimizer))
    if min_lr_rate is None or min_lr is not None:
        how = "One of min_lr or min_lr_rate should be set through the `lr_scheduler_kwargs`."
        how = how if min_lr is None else "Only one of min_lr or min_lr_rate should be set."
        raise refusal(ValueError, how, min_lr=min_lr, min_lr_rate=min_lr_rate)
    return min_lr_rate


@schedule("warmup_stable_decay")
def get_wsd_schedule(
    optimizer: Any,
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

    Give s, or `num_training_steps`, n, for s = n - w - d. If this is negative, the function warns, and only the last
    n - w steps of the decay are taken. If both are given, s overrides n, with a warning unless w + s + d = n.

    Examples:
        >>> from paddle_ldopt.schedules import get_wsd_schedule
        >>> schedule = get_wsd_schedule(0.1, 2, 2, num_training_steps=6, decay_type="linear")
        >>> [(schedule(), schedule.step())[0] for _ in range(7)]
        [0.0, 0.05, 0.1, 0.1, 0.1, 0.05, 0.0]
    """
    if num_stable_steps is None:
        if num_training_steps is None:
            raise _one_needed(num_training_steps=None, num_stable_steps=None)
        stable = _steps_left(num_training_steps, num_warmup_steps=num_warmup_steps, num_decay_steps=num_decay_steps)
    else:
        stable = num_stable_steps
        if num_training_steps not in (None, num_warmup_steps + stable + num_decay_steps):
            phases = f"{num_warmup_steps} + {stable} + {num_decay_steps} steps, the training {num_training_steps}"
            message = f"The phases of the schedule have {phases}: num_stable_steps will be used."
            warnings.warn(message, stacklevel=3)
    curve = curves.StableDecay(
        num_warmup_steps, stable, num_decay_steps, warmup_type, decay_type, min_lr_ratio, num_cycles
    )
    return scheduled(optimizer, curve, last_epoch)


@schedule("cool_down")
def get_constant_schedule_with_cool_down(
    optimizer: Any,
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

    Differs from MindFormers: there, `decay_steps` is the whole training by default, which ends before the decay does,
    and an `lr_end2` of 0 is ignored.

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
        if num_training_steps is None:
            raise _one_needed(num_training_steps=None, decay_steps=None)
        phases = {"num_warmup_steps": num_warmup_steps, "keep_steps": keep_steps, "final_steps": final_steps}
        decay_steps = max(0, _steps_left(num_training_steps, **phases))
    start = checked_fraction("warmup_lr_init", warmup_lr_init, peak)
    end1 = checked_fraction("lr_end1", lr_end1, peak)
    end2 = end1 if lr_end2 is None else checked_fraction("lr_end2", lr_end2, peak)
    curve = curves.CoolDown(num_warmup_steps, keep_steps, decay_steps, final_steps, start, end1, end2, num_cycles)
    return scheduled(optimizer, curve, last_epoch)


def _one_needed(**lengths: None) -> ValueError:
    return refusal(ValueError, f"Either {' or '.join(lengths)} must be specified.", **lengths)


@schedule("reduce_lr_on_plateau", on_metric=ReduceLROnPlateau, member="REDUCE_ON_PLATEAU")
def get_reduce_on_plateau_schedule(optimizer: Any, **kwargs: Any) -> ReduceLROnPlateau:
    r"""Build a `ReduceLROnPlateau` with these arguments.

    Examples:
        >>> from paddle_ldopt.schedules import get_reduce_on_plateau_schedule
        >>> schedule = get_reduce_on_plateau_schedule(0.1, factor=0.5, patience=0)
        >>> for loss in (1.0, 1.0):
        ...     schedule.step(loss)
        >>> schedule()
        0.05
    """
    return attach(ReduceLROnPlateau(peak_of(optimizer), **kwargs), optimizer)


@schedule("greedy", on_metric=GreedyLR)
def get_greedy_schedule(optimizer: Any, **kwargs: Any) -> GreedyLR:
    r"""Build a `GreedyLR` with these arguments.

    Examples:
        >>> from paddle_ldopt.schedules import get_greedy_schedule
        >>> schedule = get_greedy_schedule(5e-5, factor=0.5, patience=0, min_lr=1e-6, max_lr=1e-3)
        >>> schedule.step(1.0)
        >>> schedule()
        0.0001
    """
    return attach(GreedyLR(peak_of(optimizer), **kwargs), optimizer)


if not TYPE_CHECKING:  # a type checker reads a literal list only
    __all__ = [kind.function.__name__ for kind in SCHEDULES.values()]
