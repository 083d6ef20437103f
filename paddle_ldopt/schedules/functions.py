"""Schedules that are a function of the step alone, on Paddle's `LRScheduler`.

Each function builds a curve, step -> factor of the peak; `get_scheduler` describes the arguments that they share.
"""

import warnings
from typing import Any, Callable, Optional

from .._checks import checked_number
from .._messages import refusal
from . import curves
from ._base import Schedule, attach, peak_of
from .options import checked, checked_share


class RuleSchedule(Schedule):
    r"""A peak and a curve, step -> factor: the schedule that every function of this module returns.

    .. math::
        \eta_t = \eta \cdot \text{rule}(t), \qquad t = \text{last\_epoch}

    Any step costs the same, and a resume, from `last_epoch` or from `state_dict`, gives the numbers of a run that was
    never stopped, bit for bit.

    Args:
        learning_rate: the peak, above 0.
        rule: the curve, step from 0 -> factor in [0, 1]; to pickle the schedule, not a lambda.
        last_epoch: the last step that was taken, -1 for none.
        verbose: print every change, as Paddle's schedules do.

    Examples:
        >>> from paddle_ldopt.schedules import RuleSchedule
        >>> from paddle_ldopt.schedules.curves import Linear
        >>> schedule = RuleSchedule(0.1, Linear(warmup=1, decay=2))
        >>> [(schedule(), schedule.step())[0] for _ in range(4)]
        [0.0, 0.1, 0.05, 0.0]
    """

    def __init__(
        self, learning_rate: float, rule: Callable[[int], float], last_epoch: int = -1, verbose: bool = False
    ) -> None:
        if not callable(rule):
            raise refusal(TypeError, "`rule` must be callable.", rule=rule)
        self.rule = rule
        peak = checked_number(learning_rate, "learning_rate", ends="(]")
        super().__init__(peak, checked("last_epoch", last_epoch), verbose)

    def get_lr(self) -> float:
        """Return the rate of step `last_epoch`."""
        return self.base_lr * self.rule(self.last_epoch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_lr!r}, {self.rule!r}, last_epoch={self.last_epoch})"


def _scheduled(optimizer: Any, curve: Callable[[int], float], last_epoch: int) -> RuleSchedule:
    return attach(RuleSchedule(peak_of(optimizer), curve, last_epoch), optimizer)


def _phases(num_warmup_steps: int, num_training_steps: int) -> tuple[int, int]:
    """Return the steps of the warm-up and those after it; the latter are below 0 if the training ends before it."""
    warmup, total = checked("num_warmup_steps", num_warmup_steps), checked("num_training_steps", num_training_steps)
    return warmup, _steps_left(total, stacklevel=4, num_warmup_steps=warmup)


def _steps_left(num_training_steps: int, stacklevel: int = 3, **phases: int) -> int:
    """Return the number of training steps left after `phases`; if they do not fit it is negative, with a warning."""
    left = num_training_steps - sum(phases.values())
    if left < 0:
        longer = "The schedule is longer than the training, which stops in the middle of it."
        warnings.warn(
            refusal(UserWarning, longer, **phases, num_training_steps=num_training_steps), stacklevel=stacklevel
        )
    return left


def get_constant_schedule(optimizer: Any, last_epoch: int = -1) -> RuleSchedule:
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
    return _scheduled(optimizer, curves.Warmup(), last_epoch)


def get_constant_schedule_with_warmup(optimizer: Any, num_warmup_steps: int, last_epoch: int = -1) -> RuleSchedule:
    r"""Raise the learning rate from 0 in a line, then keep it.

    .. math::
        \eta_t = \eta \min(t / w, 1)

    Examples:
        >>> from paddle_ldopt.schedules import get_constant_schedule_with_warmup
        >>> schedule = get_constant_schedule_with_warmup(0.1, num_warmup_steps=2)
        >>> [(schedule(), schedule.step())[0] for _ in range(4)]
        [0.0, 0.05, 0.1, 0.1]
    """
    return _scheduled(optimizer, curves.Warmup(checked("num_warmup_steps", num_warmup_steps)), last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> RuleSchedule:
    r"""Raise the learning rate in a line, then lower it in a line to 0: the default for fine-tuning.

    .. math::
        \eta_t = \eta\, t / w \quad (t < w), \qquad \eta \max\left(0, \frac{n - t}{n - w}\right) \quad (t \ge w)

    Examples:
        >>> from paddle_ldopt.schedules import get_linear_schedule_with_warmup
        >>> schedule = get_linear_schedule_with_warmup(0.1, num_warmup_steps=2, num_training_steps=4)
        >>> [(schedule(), schedule.step())[0] for _ in range(6)]
        [0.0, 0.05, 0.1, 0.05, 0.0, 0.0]
    """
    warmup, decay = _phases(num_warmup_steps, num_training_steps)
    return _scheduled(optimizer, curves.Linear(warmup, decay), last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> RuleSchedule:
    r"""Raise the learning rate in a line, then lower it to 0 along half a cosine.

    .. math::
        \eta_t = \tfrac{\eta}{2} \left(1 + \cos\left(2 \pi c \frac{t - w}{n - w}\right)\right) \quad (t \ge w)

    `num_cycles` is c, the waves from step w to step n, above 0. The wave goes on after step n.

    Examples:
        >>> from paddle_ldopt.schedules import get_cosine_schedule_with_warmup
        >>> schedule = get_cosine_schedule_with_warmup(0.1, num_warmup_steps=1, num_training_steps=3)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(4)]
        [0.0, 0.1, 0.05, 0.0]
    """
    warmup, decay = _phases(num_warmup_steps, num_training_steps)
    return _scheduled(optimizer, curves.Cosine(warmup, decay, checked("num_cycles", num_cycles)), last_epoch)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 1, last_epoch: int = -1
) -> RuleSchedule:
    r"""Raise the learning rate in a line, then lower it along half a cosine, several times from the peak.

    .. math::
        \eta_t = \tfrac{\eta}{2} \left(1 + \cos\left(\pi \left(c \tfrac{t - w}{n - w} \bmod 1\right)\right)\right)
        \quad (w \le t < n), \qquad 0 \quad (t \ge n)

    `num_cycles` is c, the number of falls from the peak, above 0. With w = n, step n is at the peak.

    Examples:
        >>> from paddle_ldopt.schedules import get_cosine_with_hard_restarts_schedule_with_warmup
        >>> schedule = get_cosine_with_hard_restarts_schedule_with_warmup(0.1, 0, 4, num_cycles=2)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(5)]
        [0.1, 0.05, 0.1, 0.05, 0.0]
    """
    warmup, decay = _phases(num_warmup_steps, num_training_steps)
    return _scheduled(optimizer, curves.CosineRestarts(warmup, decay, checked("num_cycles", num_cycles)), last_epoch)


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> RuleSchedule:
    r"""Raise the learning rate in a line, then lower it to `lr_end` along a power of the remaining share.

    .. math::
        \eta_t = \eta_{end} + (\eta - \eta_{end}) \left(1 - \frac{t - w}{n - w}\right)^p \quad (w \le t \le n), \qquad
        \eta_{end} \quad (t > n)

    `lr_end` is at least 0 and below the peak, `power` is p, above 0; 1 is a line.

    Differs from transformers: a warm-up as long as the training ends at the peak; there it divides by 0.

    Examples:
        >>> from paddle_ldopt.schedules import get_polynomial_decay_schedule_with_warmup
        >>> schedule = get_polynomial_decay_schedule_with_warmup(0.1, 0, 2, lr_end=0.02, power=2.0)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(4)]
        [0.1, 0.04, 0.02, 0.02]
    """
    peak, lr_end = peak_of(optimizer), checked("lr_end", lr_end)
    if lr_end >= peak:
        sentence = f"lr_end ({lr_end}) must be smaller than initial lr ({peak})."
        raise refusal(ValueError, sentence, lr_end=lr_end, peak=peak)
    warmup, decay = _phases(num_warmup_steps, num_training_steps)
    return _scheduled(optimizer, curves.Polynomial(warmup, decay, checked("power", power), lr_end / peak), last_epoch)


def get_inverse_sqrt_schedule(
    optimizer: Any, num_warmup_steps: int, timescale: Optional[float] = None, last_epoch: int = -1
) -> RuleSchedule:
    r"""Raise the learning rate in a line, then lower it with the root of the steps: for runs without a set end.

    .. math::
        \eta_t = \eta \sqrt{\frac{s}{t - w + s}} \quad (t \ge w)

    `timescale` is s, in steps, above 0. By default it is w, or 10,000 if that is 0.

    Examples:
        >>> from paddle_ldopt.schedules import get_inverse_sqrt_schedule
        >>> schedule = get_inverse_sqrt_schedule(0.1, num_warmup_steps=1)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(5)]
        [0.0, 0.1, 0.070711, 0.057735, 0.05]
    """
    warmup = checked("num_warmup_steps", num_warmup_steps)
    scale = (warmup or 10_000) if timescale is None else checked("timescale", timescale)
    return _scheduled(optimizer, curves.InverseSqrt(warmup, scale), last_epoch)


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: Optional[float] = None,
    min_lr_rate: Optional[float] = None,
) -> RuleSchedule:
    r"""Raise the learning rate in a line, then lower it along half a cosine to a rate above 0.

    .. math::
        \eta_t = \eta \left(f + \tfrac{1 - f}{2} \left(1 + \cos\left(2 \pi c \tfrac{t - w}{n - w}\right)\right)\right)
        \quad (t \ge w)

    `num_cycles` is c, the waves from step w to step n, above 0; the wave goes on after step n. Give either `min_lr`,
    the lowest rate, from 0 to the peak, or `min_lr_rate`, f, the same as a share of the peak.

    Examples:
        >>> from paddle_ldopt.schedules import get_cosine_with_min_lr_schedule_with_warmup
        >>> schedule = get_cosine_with_min_lr_schedule_with_warmup(0.1, 0, 2, min_lr=0.02)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(3)]
        [0.1, 0.06, 0.02]
    """
    warmup, decay = _phases(num_warmup_steps, num_training_steps)
    cycles, floor = checked("num_cycles", num_cycles), _floor(optimizer, min_lr, min_lr_rate)
    return _scheduled(optimizer, curves.Cosine(warmup, decay, cycles, floor), last_epoch)


def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: Optional[float] = None,
    min_lr_rate: Optional[float] = None,
    warmup_lr_rate: Optional[float] = None,
) -> RuleSchedule:
    r"""Start above 0, reach the peak with the last step of the warm-up, then lower the rate along half a cosine.

    .. math::
        \eta_t = \eta\, \frac{t + 1}{w} \text{ or } \eta \left(r + (1 - r) \frac{t}{w - 1}\right) \quad (t < w), \qquad
        \eta \left(f + \tfrac{1 - f}{2} \left(1 + \cos\left(2 \pi c \tfrac{t + 1 - w}{n - w}\right)\right)\right)
        \quad (t \ge w)

    The lowest rate is that of step n - 1. `num_cycles`, `min_lr` and `min_lr_rate` are those of
    `get_cosine_with_min_lr_schedule_with_warmup`. `warmup_lr_rate` is r, the share of the peak that the warm-up starts
    at; 1/w by default.

    Examples:
        >>> from paddle_ldopt.schedules import get_cosine_with_min_lr_schedule_with_warmup_lr_rate
        >>> schedule = get_cosine_with_min_lr_schedule_with_warmup_lr_rate(0.1, 2, 4, min_lr_rate=0.2)
        >>> [round((schedule(), schedule.step())[0], 6) for _ in range(4)]
        [0.05, 0.1, 0.06, 0.02]
    """
    warmup, decay = _phases(num_warmup_steps, num_training_steps)
    cycles, floor = checked("num_cycles", num_cycles), _floor(optimizer, min_lr, min_lr_rate)
    start = None if warmup_lr_rate is None else checked("warmup_lr_rate", warmup_lr_rate)
    return _scheduled(optimizer, curves.CosineOneAhead(warmup, decay, cycles, floor, start), last_epoch)


def _floor(optimizer: Any, min_lr: Optional[float], min_lr_rate: Optional[float]) -> float:
    """Return the lowest rate as a share of the peak."""
    if (min_lr is None) == (min_lr_rate is None):
        how = "One of min_lr or min_lr_rate should be set through the `lr_scheduler_kwargs`."
        how = how if min_lr is None else "Only one of min_lr or min_lr_rate should be set."
        raise refusal(ValueError, how, min_lr=min_lr, min_lr_rate=min_lr_rate)
    if min_lr is None:
        return checked("min_lr_rate", min_lr_rate)
    return checked_share("min_lr", min_lr, peak_of(optimizer))


def get_wsd_schedule(
    optimizer: Any,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: Optional[int] = None,
    num_stable_steps: Optional[int] = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> RuleSchedule:
    r"""Warm up, stay at the peak, decay in the last steps: a run that can be made longer from before its decay.

    .. math::
        \eta_t = \eta (f + (1 - f)\, u(t / w)) \;(t < w), \qquad \eta \;(t < w + s), \qquad
        \eta (f + (1 - f)\, v(\tfrac{t - w - s}{d})) \;(t < w + s + d), \qquad \eta f

    .. math::
        v(x) = 1 - x, \quad \tfrac12 (1 + \cos 2 \pi c x), \quad 1 - \sqrt{x}; \qquad
        u(x) = x, \quad \tfrac12 (1 - \cos \pi x), \quad 1 - \sqrt{1 - x}

    w, s and d are `num_warmup_steps`, `num_stable_steps` and `num_decay_steps`, at least 0; u and v `warmup_type` and
    `decay_type`: "linear", "cosine" or "1-sqrt"; f `min_lr_ratio`, the share of the peak at which the rate starts and
    ends; c `num_cycles`, waves of a cosine decay, above 0. Give s or n, `num_training_steps`, for an s of n - w - d; if
    that is below 0, which is warned of, the decay begins with its last n - w steps. If both are given, s has the last
    word; a warning if w + s + d is not n.

    Examples:
        >>> from paddle_ldopt.schedules import get_wsd_schedule
        >>> schedule = get_wsd_schedule(0.1, 2, 2, num_training_steps=6, decay_type="linear")
        >>> [(schedule(), schedule.step())[0] for _ in range(7)]
        [0.0, 0.05, 0.1, 0.1, 0.1, 0.05, 0.0]
    """
    _require_one(num_training_steps=num_training_steps, num_stable_steps=num_stable_steps)
    warmup, decay = checked("num_warmup_steps", num_warmup_steps), checked("num_decay_steps", num_decay_steps)
    total = None if num_training_steps is None else checked("num_training_steps", num_training_steps)
    if num_stable_steps is None:
        stable = _steps_left(total or 0, num_warmup_steps=warmup, num_decay_steps=decay)
    else:
        stable = checked("num_stable_steps", num_stable_steps)
        if total is not None and warmup + stable + decay != total:
            phases = f"The phases of the schedule have {warmup} + {stable} + {decay} steps, the training {total}"
            warnings.warn(f"{phases}: num_stable_steps will be used.", stacklevel=2)
    rise, fall = checked("warmup_type", warmup_type), checked("decay_type", decay_type)
    floor, cycles = checked("min_lr_ratio", min_lr_ratio), checked("num_cycles", num_cycles)
    return _scheduled(optimizer, curves.StableDecay(warmup, stable, decay, rise, fall, floor, cycles), last_epoch)


def get_constant_schedule_with_cool_down(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: Optional[int] = None,
    keep_steps: int = 0,
    decay_steps: Optional[int] = None,
    num_cycles: float = 0.5,
    lr_end1: float = 0.0,
    final_steps: int = 0,
    lr_end2: Optional[float] = None,
    warmup_lr_init: float = 0.0,
    last_epoch: int = -1,
) -> RuleSchedule:
    r"""Warm up, stay at the peak, cool down along half a cosine, then train on at one or two low rates.

    .. math::
        \eta_t = \eta_0 + (\eta - \eta_0) \tfrac{t}{w} \;(t < w), \quad \eta \;(t < w + k), \quad
        \eta_1 + \tfrac{\eta - \eta_1}{2} \left(1 + \cos\left(2 \pi c \tfrac{t - w - k}{d}\right)\right)
        \;(t < w + k + d), \quad \eta_1 \;(t < w + k + d + l), \quad \eta_2

    w, k, d and l are `num_warmup_steps`, `keep_steps`, `decay_steps` and `final_steps`, c `num_cycles`, waves of the
    cool-down, above 0. By default d is `num_training_steps` - w - k - l, or 0 and a warning if that is less. The rates,
    each from 0 to the peak, are `warmup_lr_init`, :math:`\eta_0`; `lr_end1`, :math:`\eta_1`; `lr_end2`,
    :math:`\eta_2`, by default `lr_end1`.

    Differs from MindFormers: the default of `decay_steps` there is the whole training, which then ends within the
    cool-down; an `lr_end2` of 0 there is taken for none.

    Examples:
        >>> from paddle_ldopt.schedules import get_constant_schedule_with_cool_down
        >>> schedule = get_constant_schedule_with_cool_down(
        ...     0.005, 10, keep_steps=10, decay_steps=10, lr_end1=0.002, final_steps=10, lr_end2=0.001
        ... )
        >>> [(schedule.step(t), round(schedule(), 6))[1] for t in (1, 15, 25, 35, 45)]
        [0.0005, 0.005, 0.0035, 0.002, 0.001]

    Source: ``mindformers.core.ConstantWithCoolDownLR``; DeepSeek-V3 (arXiv 2412.19437), section 4.2.
    """
    peak, final = peak_of(optimizer), checked("final_steps", final_steps)
    warmup, keep = checked("num_warmup_steps", num_warmup_steps), checked("keep_steps", keep_steps)
    _require_one(num_training_steps=num_training_steps, decay_steps=decay_steps)
    if decay_steps is not None:
        decay = checked("decay_steps", decay_steps)
    else:
        total = checked("num_training_steps", num_training_steps)
        decay = max(0, _steps_left(total, num_warmup_steps=warmup, keep_steps=keep, final_steps=final))
    end = checked_share("lr_end1", lr_end1, peak)
    last = end if lr_end2 is None else checked_share("lr_end2", lr_end2, peak)
    start, cycles = checked_share("warmup_lr_init", warmup_lr_init, peak), checked("num_cycles", num_cycles)
    return _scheduled(optimizer, curves.CoolDown(warmup, keep, decay, final, start, end, last, cycles), last_epoch)


def _require_one(**lengths: Optional[int]) -> None:
    """Raise if all of these are None."""
    if all(steps is None for steps in lengths.values()):
        raise refusal(ValueError, f"Either {' or '.join(lengths)} must be specified.", **lengths)
