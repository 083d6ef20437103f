"""Schedules that are a function of the step alone: transformers' functions on Paddle's `LRScheduler`."""

import warnings

from .._checks import checked_choice, checked_number, checked_steps, shown
from ..schedules import curves as rules
from ._base import Schedule, attach, checked_phases, left_over, peak_of

__all__ = [
    "RuleSchedule",
    "get_constant_schedule",
    "get_constant_schedule_with_cool_down",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_inverse_sqrt_schedule",
    "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup",
    "get_wsd_schedule",
]


class RuleSchedule(Schedule):
    r"""A peak and a rule step -> factor: what every function of this module returns.

    .. math::
        \eta_t = \eta \cdot \text{rule}(t), \qquad t = \text{last\_epoch}

    Nothing is carried from step to step: step 10^6 costs what step 0 does, and a resume, from `last_epoch` or from
    `state_dict`, gives the very numbers of a run that was never stopped.

    Args:
        learning_rate (float): the peak, above 0.
        rule (callable): step, from 0 -> factor in [0, 1]; a module-level function or an instance, so that the schedule
            can be pickled.
        last_epoch (int, optional): the last step that was taken, -1 for none.
        verbose (bool, optional): print every change, as Paddle's schedules do.

    Raises:
        TypeError, ValueError: a peak that is no number above 0, a rule that can't be called, a `last_epoch` below -1.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import RuleSchedule
            >>> from paddle_ldopt.schedules.curves import Linear
            >>> schedule = RuleSchedule(0.1, Linear(warmup=1, decay=2))
            >>> [(schedule(), schedule.step())[0] for _ in range(4)]
            [0.0, 0.1, 0.05, 0.0]
    """

    def __init__(self, learning_rate, rule, last_epoch=-1, verbose=False):
        if not callable(rule):
            raise TypeError(f"`rule` must be callable. Received: rule={shown(rule)}")
        self.rule = rule
        peak = checked_number(learning_rate, "learning_rate", ends="(]")
        super().__init__(peak, checked_steps(last_epoch, "last_epoch", least=-1), verbose)

    def get_lr(self):
        """Return the rate of step `last_epoch`."""
        return self.base_lr * self.rule(self.last_epoch)

    def __repr__(self):
        return f"{type(self).__name__}({self.base_lr!r}, {self.rule!r}, last_epoch={self.last_epoch})"


def _scheduled(optimizer, rule, last_epoch):
    return attach(RuleSchedule(peak_of(optimizer), rule, last_epoch), optimizer)


def get_constant_schedule(optimizer, last_epoch=-1):
    r"""Keep the learning rate as it is.

    Args:
        optimizer (Optimizer|float): here as in all functions of this module, a Paddle optimizer, whose current rate is
            the peak and which the schedule is attached to (wrappers of `fleet` and `amp` are looked through), or the
            peak itself, above 0: the schedule is then for you to give to an optimizer, as PaddleNLP does. The peak of
            an optimizer that has a schedule of ours already is the peak of that one.
        last_epoch (int, optional): here as in all functions, the last step that was taken, -1 for none: the schedule
            goes on with step last_epoch + 1.

    Returns:
        RuleSchedule: step it after each step of the optimizer.

    Raises:
        TypeError, ValueError: neither an optimizer nor a number above 0; a `last_epoch` below -1.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> from paddle_ldopt.schedules import get_constant_schedule
            >>> opt = paddle.optimizer.AdamW(5e-5, parameters=paddle.nn.Linear(4, 2).parameters())
            >>> schedule = get_constant_schedule(opt)
            >>> schedule.step()
            >>> opt.get_lr()
            5e-05

    Source: ``transformers.optimization``, 4.37, as for all functions of this module unless they say otherwise.
    """
    return _scheduled(optimizer, rules.Warmup(), last_epoch)


def get_constant_schedule_with_warmup(optimizer, num_warmup_steps, last_epoch=-1):
    r"""Raise the learning rate from 0 in a line, then keep it.

    .. math::
        \eta_t = \eta \min(t / w, 1)

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0. Step 0 is taken at rate 0, step w is the first at the peak.
        last_epoch (int, optional): the last step that was taken.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_constant_schedule_with_warmup
            >>> schedule = get_constant_schedule_with_warmup(0.1, num_warmup_steps=2)
            >>> [(schedule(), schedule.step())[0] for _ in range(4)]
            [0.0, 0.05, 0.1, 0.1]
    """
    return _scheduled(optimizer, rules.Warmup(checked_steps(num_warmup_steps, "num_warmup_steps")), last_epoch)


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps, last_epoch=-1):
    r"""Raise the learning rate in a line, then lower it in a line to 0: the default for fine-tuning.

    .. math::
        \eta_t = \eta\, t / w \quad (t < w), \qquad \eta \max\left(0, \frac{n - t}{n - w}\right) \quad (t \ge w)

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0. Here as in all functions with both, a w above n is warned of: the
            training then ends within the warm-up.
        num_training_steps (int): n, at least 1. From step n on the rate is 0.
        last_epoch (int, optional): the last step that was taken.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_linear_schedule_with_warmup
            >>> schedule = get_linear_schedule_with_warmup(0.1, num_warmup_steps=2, num_training_steps=4)
            >>> [(schedule(), schedule.step())[0] for _ in range(6)]
            [0.0, 0.05, 0.1, 0.05, 0.0, 0.0]
    """
    warmup, decay = checked_phases(num_warmup_steps, num_training_steps)
    rule = rules.Linear(warmup, decay)
    return _scheduled(optimizer, rule, last_epoch)


def get_cosine_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps, num_cycles=0.5, last_epoch=-1):
    r"""Raise the learning rate in a line, then lower it to 0 along half a cosine.

    .. math::
        \eta_t = \tfrac{\eta}{2} \left(1 + \cos\left(2 \pi c \frac{t - w}{n - w}\right)\right) \quad (t \ge w)

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0.
        num_training_steps (int): n, at least 1. The wave goes on after step n: the rate rises again.
        num_cycles (float, optional): c, waves from step w to step n, above 0. More than a half rises again before n.
        last_epoch (int, optional): the last step that was taken.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_cosine_schedule_with_warmup
            >>> schedule = get_cosine_schedule_with_warmup(0.1, num_warmup_steps=1, num_training_steps=3)
            >>> [round((schedule(), schedule.step())[0], 6) for _ in range(4)]
            [0.0, 0.1, 0.05, 0.0]
    """
    warmup, decay = checked_phases(num_warmup_steps, num_training_steps)
    rule = rules.Cosine(warmup, decay, cycles=checked_number(num_cycles, "num_cycles", ends="(]"))
    return _scheduled(optimizer, rule, last_epoch)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer, num_warmup_steps, num_training_steps, num_cycles=1, last_epoch=-1
):
    r"""Raise the learning rate in a line, then lower it along half a cosine, several times from the peak.

    .. math::
        \eta_t = \tfrac{\eta}{2} \left(1 + \cos\left(\pi \left(c \tfrac{t - w}{n - w} \bmod 1\right)\right)\right)
        \quad (w \le t < n), \qquad 0 \quad (t \ge n)

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0.
        num_training_steps (int): n, at least 1. From step n on the rate is 0, but with w = n it is the peak at step n.
        num_cycles (int, optional): c, falls from the peak, above 0.
        last_epoch (int, optional): the last step that was taken.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_cosine_with_hard_restarts_schedule_with_warmup
            >>> schedule = get_cosine_with_hard_restarts_schedule_with_warmup(0.1, 0, 4, num_cycles=2)
            >>> [round((schedule(), schedule.step())[0], 6) for _ in range(5)]
            [0.1, 0.05, 0.1, 0.05, 0.0]
    """
    warmup, decay = checked_phases(num_warmup_steps, num_training_steps)
    rule = rules.CosineRestarts(warmup, decay, cycles=checked_number(num_cycles, "num_cycles", ends="(]"))
    return _scheduled(optimizer, rule, last_epoch)


def get_polynomial_decay_schedule_with_warmup(
    optimizer, num_warmup_steps, num_training_steps, lr_end=1e-7, power=1.0, last_epoch=-1
):
    r"""Raise the learning rate in a line, then lower it to `lr_end` along a power of what is left.

    .. math::
        \eta_t = \eta_{end} + (\eta - \eta_{end}) \left(1 - \frac{t - w}{n - w}\right)^p \quad (w \le t \le n), \qquad
        \eta_{end} \quad (t > n)

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0.
        num_training_steps (int): n, at least 1.
        lr_end (float, optional): the last rate, at least 0 and below the peak.
        power (float, optional): p, above 0: 1 is a line.
        last_epoch (int, optional): the last step that was taken.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Differs from transformers: a warm-up as long as the training has the peak at its end, there it divides by 0.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_polynomial_decay_schedule_with_warmup
            >>> schedule = get_polynomial_decay_schedule_with_warmup(0.1, 0, 2, lr_end=0.02, power=2.0)
            >>> [round((schedule(), schedule.step())[0], 6) for _ in range(4)]
            [0.1, 0.04, 0.02, 0.02]
    """
    peak = peak_of(optimizer)
    lr_end = checked_number(lr_end, "lr_end")
    if not lr_end < peak:
        raise ValueError(
            f"lr_end ({lr_end}) must be smaller than initial lr ({peak}). Received: lr_end={lr_end}, peak={peak}"
        )
    warmup, decay = checked_phases(num_warmup_steps, num_training_steps)
    rule = rules.Polynomial(warmup, decay, power=checked_number(power, "power", ends="(]"), end=lr_end / peak)
    return _scheduled(optimizer, rule, last_epoch)


def get_inverse_sqrt_schedule(optimizer, num_warmup_steps, timescale=None, last_epoch=-1):
    r"""Raise the learning rate in a line, then lower it with the root of the steps: for runs without a set end.

    .. math::
        \eta_t = \eta \sqrt{\frac{s}{t - w + s}} \quad (t \ge w)

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0.
        timescale (int, optional): s, steps, above 0. By default w, or 10,000 if that is 0.
        last_epoch (int, optional): the last step that was taken.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Differs from transformers 4.37: it divides by 0 with neither warm-up nor time scale; the default is that of 4.38.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_inverse_sqrt_schedule
            >>> schedule = get_inverse_sqrt_schedule(0.1, num_warmup_steps=1)
            >>> [round((schedule(), schedule.step())[0], 6) for _ in range(5)]
            [0.0, 0.1, 0.070711, 0.057735, 0.05]
    """
    warmup = checked_steps(num_warmup_steps, "num_warmup_steps")
    scale = (warmup or 10_000) if timescale is None else checked_number(timescale, "timescale", ends="(]")
    return _scheduled(optimizer, rules.InverseSqrt(warmup, scale), last_epoch)


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer,
    num_warmup_steps,
    num_training_steps,
    num_cycles=0.5,
    last_epoch=-1,
    min_lr=None,
    min_lr_rate=None,
):
    r"""Raise the learning rate in a line, then lower it along half a cosine to a rate above 0.

    .. math::
        \eta_t = \eta \left(f + \tfrac{1 - f}{2} \left(1 + \cos\left(2 \pi c \tfrac{t - w}{n - w}\right)\right)\right)
        \quad (t \ge w)

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0.
        num_training_steps (int): n, at least 1. The wave goes on after step n.
        num_cycles (float, optional): c, waves from step w to step n, above 0.
        last_epoch (int, optional): the last step that was taken.
        min_lr (float, optional): the lowest rate, from 0 to the peak. Give it, or
        min_lr_rate (float, optional): f, the same as a share of the peak, in [0, 1].

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; both or neither of `min_lr` and
            `min_lr_rate`.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_cosine_with_min_lr_schedule_with_warmup
            >>> schedule = get_cosine_with_min_lr_schedule_with_warmup(0.1, 0, 2, min_lr=0.02)
            >>> [round((schedule(), schedule.step())[0], 6) for _ in range(3)]
            [0.1, 0.06, 0.02]

    Source: ``transformers.optimization``, 4.57.
    """
    warmup, decay = checked_phases(num_warmup_steps, num_training_steps)
    cycles = checked_number(num_cycles, "num_cycles", ends="(]")
    rule = rules.Cosine(warmup, decay, cycles=cycles, floor=_floor(optimizer, min_lr, min_lr_rate))
    return _scheduled(optimizer, rule, last_epoch)


def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer,
    num_warmup_steps,
    num_training_steps,
    num_cycles=0.5,
    last_epoch=-1,
    min_lr=None,
    min_lr_rate=None,
    warmup_lr_rate=None,
):
    r"""Start above 0, reach the peak with the last step of the warm-up, then lower the rate along half a cosine.

    .. math::
        \eta_t = \eta\, \frac{t + 1}{w} \text{ or } \eta \left(r + (1 - r) \frac{t}{w - 1}\right) \quad (t < w), \qquad
        \eta \left(f + \tfrac{1 - f}{2} \left(1 + \cos\left(2 \pi c \tfrac{t + 1 - w}{n - w}\right)\right)\right)
        \quad (t \ge w)

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0.
        num_training_steps (int): n, at least 1: step n - 1 is at the lowest rate. The wave goes on after it.
        num_cycles (float, optional): c, waves from step w - 1 to step n - 1, above 0.
        last_epoch (int, optional): the last step that was taken.
        min_lr (float, optional): the lowest rate, from 0 to the peak. Give it, or
        min_lr_rate (float, optional): f, the same as a share of the peak, in [0, 1].
        warmup_lr_rate (float, optional): r, where the warm-up starts, a share of the peak in [0, 1]; 1/w by default.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; both or neither of `min_lr` and
            `min_lr_rate`.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_cosine_with_min_lr_schedule_with_warmup_lr_rate
            >>> schedule = get_cosine_with_min_lr_schedule_with_warmup_lr_rate(0.1, 2, 4, min_lr_rate=0.2)
            >>> [round((schedule(), schedule.step())[0], 6) for _ in range(4)]
            [0.05, 0.1, 0.06, 0.02]

    Source: ``transformers.optimization``, 4.57.
    """
    warmup, decay = checked_phases(num_warmup_steps, num_training_steps)
    cycles = checked_number(num_cycles, "num_cycles", ends="(]")
    start = None if warmup_lr_rate is None else checked_number(warmup_lr_rate, "warmup_lr_rate", 0.0, 1.0)
    rule = rules.CosineOneAhead(warmup, decay, cycles=cycles, floor=_floor(optimizer, min_lr, min_lr_rate), start=start)
    return _scheduled(optimizer, rule, last_epoch)


def _floor(optimizer, min_lr, min_lr_rate):
    """Return the lowest rate as a share of the peak."""
    received = f"Received: min_lr={shown(min_lr)}, min_lr_rate={shown(min_lr_rate)}"
    if min_lr is not None and min_lr_rate is not None:
        raise ValueError(f"Only one of min_lr or min_lr_rate should be set. {received}")
    if min_lr is not None:
        peak = peak_of(optimizer)
        return checked_number(min_lr, "min_lr", 0.0, peak) / peak
    if min_lr_rate is None:
        raise ValueError(f"One of min_lr or min_lr_rate should be set through the `lr_scheduler_kwargs`. {received}")
    return checked_number(min_lr_rate, "min_lr_rate", 0.0, 1.0)


def get_wsd_schedule(
    optimizer,
    num_warmup_steps,
    num_decay_steps,
    num_training_steps=None,
    num_stable_steps=None,
    warmup_type="linear",
    decay_type="cosine",
    min_lr_ratio=0,
    num_cycles=0.5,
    last_epoch=-1,
):
    r"""Warm up, stay at the peak, decay in the last steps: a run that can be made longer from before its decay.

    .. math::
        \eta_t = \eta (f + (1 - f)\, u(t / w)) \;(t < w), \qquad \eta \;(t < w + s), \qquad
        \eta (f + (1 - f)\, v(\tfrac{t - w - s}{d})) \;(t < w + s + d), \qquad \eta f

    .. math::
        v(x) = 1 - x, \quad \tfrac12 (1 + \cos 2 \pi c x), \quad 1 - \sqrt{x}; \qquad
        u(x) = x, \quad \tfrac12 (1 - \cos \pi x), \quad 1 - \sqrt{1 - x}

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0.
        num_decay_steps (int): d, at least 0.
        num_training_steps (int, optional): n, at least 1: s is n - w - d, and below 0, which is warned of, the decay
            begins with its last n - w steps. Give it, or
        num_stable_steps (int, optional): s, at least 0. It has the last word if both are given; a warning if w + s + d
            is not n.
        warmup_type (str, optional): u: "linear", "cosine" or "1-sqrt".
        decay_type (str, optional): v: the same.
        min_lr_ratio (float, optional): f, where the rate starts and ends, a share of the peak in [0, 1].
        num_cycles (float, optional): c, waves of a cosine decay, above 0.
        last_epoch (int, optional): the last step that was taken.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; neither of `num_training_steps` and
            `num_stable_steps`.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_wsd_schedule
            >>> schedule = get_wsd_schedule(0.1, 2, 2, num_training_steps=6, decay_type="linear")
            >>> [(schedule(), schedule.step())[0] for _ in range(7)]
            [0.0, 0.05, 0.1, 0.1, 0.1, 0.05, 0.0]

    Source: ``transformers.optimization``, 4.57.
    """
    if num_training_steps is None and num_stable_steps is None:
        raise ValueError(
            "Either num_training_steps or num_stable_steps must be specified. "
            "Received: num_training_steps=None, num_stable_steps=None"
        )
    warmup = checked_steps(num_warmup_steps, "num_warmup_steps")
    decay = checked_steps(num_decay_steps, "num_decay_steps")
    total = None if num_training_steps is None else checked_steps(num_training_steps, "num_training_steps", least=1)
    if num_stable_steps is None:
        stable = left_over(total or 0, num_warmup_steps=warmup, num_decay_steps=decay)
    else:
        stable = checked_steps(num_stable_steps, "num_stable_steps")
        if total is not None and warmup + stable + decay != total:
            warnings.warn(
                f"The phases of the schedule have {warmup} + {stable} + {decay} steps, the training {total}: "
                "num_stable_steps will be used.",
                stacklevel=2,
            )
    rule = rules.StableDecay(
        warmup,
        stable,
        decay,
        rise=checked_choice(warmup_type, "warmup_type", tuple(rules.FALLS)),
        fall=checked_choice(decay_type, "decay_type", tuple(rules.FALLS)),
        floor=checked_number(min_lr_ratio, "min_lr_ratio", 0.0, 1.0),
        cycles=checked_number(num_cycles, "num_cycles", ends="(]"),
    )
    return _scheduled(optimizer, rule, last_epoch)


def get_constant_schedule_with_cool_down(
    optimizer,
    num_warmup_steps,
    num_training_steps=None,
    keep_steps=0,
    decay_steps=None,
    num_cycles=0.5,
    lr_end1=0.0,
    final_steps=0,
    lr_end2=None,
    warmup_lr_init=0.0,
    last_epoch=-1,
):
    r"""Warm up, stay at the peak, cool down along half a cosine, then train on at one or two low rates: DeepSeek-V3's.

    .. math::
        \eta_t = \eta_0 + (\eta - \eta_0) \tfrac{t}{w} \;(t < w), \quad \eta \;(t < w + k), \quad
        \eta_1 + \tfrac{\eta - \eta_1}{2} \left(1 + \cos\left(2 \pi c \tfrac{t - w - k}{d}\right)\right)
        \;(t < w + k + d), \quad \eta_1 \;(t < w + k + d + l), \quad \eta_2

    Args:
        optimizer (Optimizer|float): an optimizer or the peak; see `get_constant_schedule`.
        num_warmup_steps (int): w, at least 0.
        num_training_steps (int, optional): n, at least 1. Needed for the default of `decay_steps` only.
        keep_steps (int, optional): k, at the peak, at least 0.
        decay_steps (int, optional): d, of the cool-down, at least 0. By default n - w - k - l; if that is
            below 0 it is 0, and a warning.
        num_cycles (float, optional): c, waves of the cool-down, above 0.
        lr_end1 (float, optional): where the cool-down ends, from 0 to the peak.
        final_steps (int, optional): l, at `lr_end1`, at least 0.
        lr_end2 (float, optional): the rate from then on, from 0 to the peak. By default `lr_end1`.
        warmup_lr_init (float, optional): where the warm-up starts, from 0 to the peak.
        last_epoch (int, optional): the last step that was taken.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; neither of `num_training_steps` and
            `decay_steps`.

    Differs from MindFormers: the default of `decay_steps` there is the whole training, which then ends within the
    cool-down; an `lr_end2` of 0 there is taken for none.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_constant_schedule_with_cool_down
            >>> schedule = get_constant_schedule_with_cool_down(
            ...     0.005, 10, keep_steps=10, decay_steps=10, lr_end1=0.002, final_steps=10, lr_end2=0.001
            ... )
            >>> for step in (1, 15, 25, 35, 45):
            ...     schedule.step(step)
            ...     print(round(schedule(), 6))
            0.0005
            0.005
            0.0035
            0.002
            0.001

    Source: ``mindformers.core.ConstantWithCoolDownLR``; DeepSeek-V3 (arXiv 2412.19437), section 4.2.
    """
    peak = peak_of(optimizer)
    warmup = checked_steps(num_warmup_steps, "num_warmup_steps")
    keep = checked_steps(keep_steps, "keep_steps")
    final = checked_steps(final_steps, "final_steps")
    if decay_steps is not None:
        decay = checked_steps(decay_steps, "decay_steps")
    elif num_training_steps is not None:
        total = checked_steps(num_training_steps, "num_training_steps", least=1)
        decay = max(0, left_over(total, num_warmup_steps=warmup, keep_steps=keep, final_steps=final))
    else:
        raise ValueError(
            "Either num_training_steps or decay_steps must be specified. "
            "Received: num_training_steps=None, decay_steps=None"
        )
    end1 = checked_number(lr_end1, "lr_end1", 0.0, peak) / peak
    rule = rules.CoolDown(
        warmup,
        keep,
        decay,
        final,
        start=checked_number(warmup_lr_init, "warmup_lr_init", 0.0, peak) / peak,
        end1=end1,
        end2=end1 if lr_end2 is None else checked_number(lr_end2, "lr_end2", 0.0, peak) / peak,
        cycles=checked_number(num_cycles, "num_cycles", ends="(]"),
    )
    return _scheduled(optimizer, rule, last_epoch)
