"""Schedules by a curve, a function from a step to a factor of the peak.

With w the steps of the warm-up and k = step - w, curves start with step / w unless their docstring says otherwise.
Operations are in transformers' order, so numbers agree except for the last bit.
"""

import dataclasses
import math
import warnings
from typing import Annotated, Callable, Optional

from paddle.optimizer.lr import LambdaDecay, LRScheduler

from .._checks import Option, checked_number, problem, refusal
from .factory import (
    Curve,
    CurveSchedule,
    Fraction,
    LastStep,
    NonNegative,
    OptimizerOrRate,
    Positive,
    Steps,
    StepsFrom1,
    checked_peak,
    schedule,
    scheduled,
)


def rates_of(schedule: LRScheduler, num_steps: int) -> Optional[list[float]]:
    """Return the rates of steps 0 to `num_steps` - 1; None for schedules without a formula."""
    factor = schedule.curve if isinstance(schedule, CurveSchedule) else None
    if type(schedule) is LambdaDecay:  # all schedules of PaddleNLP's Trainer
        factor = schedule.lr_lambda
    return factor and [schedule.base_lr * factor(step) for step in range(num_steps)]


def steps_left(num_training_steps: Optional[int], other: str = "", /, **phases: int) -> int:
    """Return the training steps left after `phases`; `other` is the option that can replace `num_training_steps`."""
    if num_training_steps is None:
        raise refusal(ValueError, f"Either num_training_steps or {other} must be specified.", **{other: None})
    steps = num_training_steps - sum(phases.values())
    if steps < 0:
        longer = "The schedule is longer than the training: shorten its phases, or train longer."
        warnings.warn(problem(longer, **phases, num_training_steps=num_training_steps), stacklevel=4)
    return steps


def wave(progress: float, cycles: float) -> float:
    """Return a wave from 1 to 0 and back, after a fraction of `cycles` waves."""
    return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))


@schedule("constant")
def get_constant_schedule(optimizer: OptimizerOrRate, last_epoch: LastStep = -1) -> CurveSchedule:
    r"""Keep the learning rate constant.

    Examples:
        >>> rates_of(get_constant_schedule(5e-5), 3)
        [5e-05, 5e-05, 5e-05]
    """
    return scheduled(optimizer, Curve(), last_epoch)


@schedule("constant_with_warmup")
def get_constant_schedule_with_warmup(
    optimizer: OptimizerOrRate, num_warmup_steps: Steps, last_epoch: LastStep = -1
) -> CurveSchedule:
    r"""Raise the learning rate linearly from 0, then keep it constant: :math:`\eta_t = \eta \min(t / w, 1)`.

    Examples:
        >>> rates_of(get_constant_schedule_with_warmup(0.1, num_warmup_steps=2), 4)
        [0.0, 0.05, 0.1, 0.1]
    """
    return scheduled(optimizer, Curve(num_warmup_steps), last_epoch)


@dataclasses.dataclass(frozen=True)
class Linear(Curve):
    """1 - k / decay, then 0."""

    decay: int = 1

    def _after(self, k: int) -> float:
        return (self.decay - k) / self.decay if k < self.decay else 0.0


@dataclasses.dataclass(frozen=True)
class Polynomial(Curve):
    """e + (1 - e) (1 - k / decay)^power, then e."""

    decay: int = 1
    power: float = 1.0
    end: float = 0.0

    def _after(self, k: int) -> float:
        fall = (1 - k / (self.decay or 1)) ** self.power if k <= self.decay else 0.0
        return (1.0 - self.end) * fall + self.end


@schedule("linear")
def get_linear_schedule_with_warmup(
    optimizer: OptimizerOrRate, num_warmup_steps: Steps, num_training_steps: StepsFrom1, last_epoch: LastStep = -1
) -> CurveSchedule:
    r"""Linear warm-up, then a linear decay to 0: the usual schedule of fine-tuning.

    .. math::
        \eta_t = \eta\, t / w \quad (t < w), \qquad \eta \max\left(0, \frac{n - t}{n - w}\right) \quad (t \ge w)

    Examples:
        >>> rates_of(get_linear_schedule_with_warmup(0.1, num_warmup_steps=2, num_training_steps=4), 6)
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

    `lr_end` is below the peak; `power` is p. A warm-up as long as the training ends at the peak.

    Examples:
        >>> schedule = get_polynomial_decay_schedule_with_warmup(0.1, 0, 2, lr_end=0.02, power=2.0)
        >>> [round(rate, 6) for rate in rates_of(schedule, 4)]
        [0.1, 0.04, 0.02, 0.02]
    """
    peak = checked_peak(optimizer)
    if lr_end >= peak:
        raise refusal(ValueError, f"lr_end ({lr_end}) must be smaller than initial lr ({peak}).", lr_end=lr_end)
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
    r"""Linear warm-up, then :math:`\eta_t = \eta \sqrt{s / (t - w + s)}`: for runs of unknown length.

    `timescale` is s, in steps; by default w, or 10,000 if w is 0.

    Examples:
        >>> [round(rate, 6) for rate in rates_of(get_inverse_sqrt_schedule(0.1, num_warmup_steps=1), 5)]
        [0.0, 0.1, 0.070711, 0.057735, 0.05]
    """
    scale = (num_warmup_steps or 10_000) if timescale is None else timescale
    return scheduled(optimizer, InverseSqrt(num_warmup_steps, scale), last_epoch)


@dataclasses.dataclass(frozen=True)
class Cosine(Curve):
    """f + (1 - f) (1 + cos(2 pi cycles k / decay)) / 2, with f the floor; the wave goes on after `decay` steps."""

    decay: int = 1
    cycles: float = 0.5
    floor: float = 0.0

    def _after(self, k: int) -> float:
        return wave(k / max(1, self.decay), self.cycles) * (1.0 - self.floor) + self.floor


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
class CosineRestarts(Curve):
    """(1 + cos(pi (cycles k / decay mod 1))) / 2, then 0."""

    decay: int = 1
    cycles: float = 1.0

    def _after(self, k: int) -> float:
        progress = k / max(1, self.decay)
        return wave(self.cycles * progress % 1.0, 0.5) if progress < 1.0 else 0.0


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

    `num_cycles` is c, the number of waves from step w to step n. The wave goes on after step n.

    Examples:
        >>> schedule = get_cosine_schedule_with_warmup(0.1, num_warmup_steps=1, num_training_steps=3)
        >>> [round(rate, 6) for rate in rates_of(schedule, 4)]
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

    `num_cycles` is c, the number of decays. With w = n, step n is at the peak.

    Examples:
        >>> schedule = get_cosine_with_hard_restarts_schedule_with_warmup(0.1, 0, 4, num_cycles=2)
        >>> [round(rate, 6) for rate in rates_of(schedule, 5)]
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

    From step w on, :math:`\eta_t = \eta (f + (1 - f) x)` with :math:`\eta x` as in `get_cosine_schedule_with_warmup`.
    Give either `min_lr`, from 0 to the peak, or `min_lr_rate`, f, its fraction of the peak.

    Examples:
        >>> schedule = get_cosine_with_min_lr_schedule_with_warmup(0.1, 0, 2, min_lr=0.02)
        >>> [round(rate, 6) for rate in rates_of(schedule, 3)]
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
        \eta_t = \eta\, \frac{t + 1}{w} \text{ or } \eta \left(r + (1 - r) \frac{t}{w - 1}\right) \quad (t < w)

    `warmup_lr_rate` is r, the first rate as a fraction of the peak (by default 1/w). From step w on, the rates are
    those of `get_cosine_with_min_lr_schedule_with_warmup` one step later.

    Examples:
        >>> schedule = get_cosine_with_min_lr_schedule_with_warmup_lr_rate(0.1, 2, 4, min_lr_rate=0.2)
        >>> [round(rate, 6) for rate in rates_of(schedule, 4)]
        [0.05, 0.1, 0.06, 0.02]
    """
    decay = steps_left(num_training_steps, num_warmup_steps=num_warmup_steps)
    floor = _floor(optimizer, min_lr, min_lr_rate)
    return scheduled(optimizer, CosineOneAhead(num_warmup_steps, decay, num_cycles, floor, warmup_lr_rate), last_epoch)


def _floor(optimizer: OptimizerOrRate, min_lr: Optional[float], min_lr_rate: Optional[float]) -> float:
    if min_lr is None and min_lr_rate is not None:
        return min_lr_rate
    if min_lr is not None and min_lr_rate is None:
        peak = checked_peak(optimizer)
        return checked_number(min_lr, "min_lr", 0.0, peak) / peak
    how = "Only one of min_lr or min_lr_rate should be set, and one must be (through `lr_scheduler_kwargs`)."
    raise refusal(ValueError, how, min_lr=min_lr, min_lr_rate=min_lr_rate)


# shape -> (fraction of the phase, waves) -> factor
FALLS: dict[str, Callable[[float, float], float]] = {
    "linear": lambda progress, cycles: 1.0 - progress,
    "cosine": wave,
    "1-sqrt": lambda progress, cycles: 1.0 - math.sqrt(progress),
}
RISES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: progress,
    "cosine": lambda progress: 0.5 * (1.0 - math.cos(math.pi * progress)),
    "1-sqrt": lambda progress: 1.0 - math.sqrt(1.0 - progress),
}
Shape = Annotated[str, Option(choices=FALLS)]


@dataclasses.dataclass(frozen=True)
class StableDecay(Curve):
    """s + (1 - s) rise(step / w), 1 for `stable` steps, f + (1 - f) fall(k / decay), f for `final` steps, then e.

    s, f and e are `start`, `floor` and `end`.
    """

    stable: int = 0
    decay: int = 1
    cycles: float = 0.5
    start: float = 0.0
    floor: float = 0.0
    final: int = 0
    end: float = 0.0
    rise: str = "linear"
    fall: str = "cosine"

    def _before(self, step: int) -> float:
        return RISES[self.rise](step / self.warmup) * (1.0 - self.start) + self.start

    def _after(self, k: int) -> float:
        k -= self.stable
        if k < 0:
            return 1.0
        if k < self.decay:
            return FALLS[self.fall](k / self.decay, self.cycles) * (1.0 - self.floor) + self.floor
        return self.floor if k < self.decay + self.final else self.end


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

        v(x) = 1 - x, \quad \tfrac12 (1 + \cos 2 \pi c x), \quad 1 - \sqrt{x}; \qquad
        u(x) = x, \quad \tfrac12 (1 - \cos \pi x), \quad 1 - \sqrt{1 - x}

    w, s and d are `num_warmup_steps`, `num_stable_steps` and `num_decay_steps`; u and v are `warmup_type` and
    `decay_type` ("linear", "cosine" or "1-sqrt"); f is `min_lr_ratio`, c `num_cycles`. By default s = n - w - d with n
    `num_training_steps`. If that is negative, only the last n - w steps of the decay run, with a warning.

    Examples:
        >>> rates_of(get_wsd_schedule(0.1, 2, 2, num_training_steps=6, decay_type="linear"), 7)
        [0.0, 0.05, 0.1, 0.1, 0.1, 0.05, 0.0]
    """
    others, f = {"num_warmup_steps": num_warmup_steps, "num_decay_steps": num_decay_steps}, min_lr_ratio
    if num_stable_steps is None:
        num_stable_steps = steps_left(num_training_steps, "num_stable_steps", **others)
    elif num_training_steps is not None:
        steps_left(num_training_steps, num_stable_steps=num_stable_steps, **others)  # warns of a longer schedule
    phases = num_warmup_steps, num_stable_steps, num_decay_steps
    curve = StableDecay(*phases, num_cycles, start=f, floor=f, end=f, rise=warmup_type, fall=decay_type)
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

    w, k, d and l are `num_warmup_steps`, `keep_steps`, `decay_steps` (by default the rest of `num_training_steps`) and
    `final_steps`; c is `num_cycles`; the rates are `warmup_lr_init`, `lr_end1` and `lr_end2` (by default `lr_end1`), at
    most the peak. MindFormers' default of `decay_steps` is the whole training, and it ignores an `lr_end2` of 0.

    Examples:
        >>> phases, ends = {"keep_steps": 1, "decay_steps": 2, "final_steps": 1}, {"lr_end1": 0.02, "lr_end2": 0.01}
        >>> [round(r, 6) for r in rates_of(get_constant_schedule_with_cool_down(0.1, 1, **phases, **ends), 6)]
        [0.0, 0.1, 0.1, 0.06, 0.02, 0.01]

    Source: ``mindformers.core.ConstantWithCoolDownLR``; DeepSeek-V3 (arXiv 2412.19437), section 4.2.
    """
    peak = checked_peak(optimizer)
    phases = {"num_warmup_steps": num_warmup_steps, "keep_steps": keep_steps, "final_steps": final_steps}
    if decay_steps is None:
        decay_steps = max(0, steps_left(num_training_steps, "decay_steps", **phases))
    elif num_training_steps is not None:
        steps_left(num_training_steps, decay_steps=decay_steps, **phases)
    floor = checked_number(lr_end1, "lr_end1", 0.0, peak) / peak
    end = floor if lr_end2 is None else checked_number(lr_end2, "lr_end2", 0.0, peak) / peak
    start = checked_number(warmup_lr_init, "warmup_lr_init", 0.0, peak) / peak
    curve = StableDecay(num_warmup_steps, keep_steps, decay_steps, num_cycles, start, floor, final_steps, end)
    return scheduled(optimizer, curve, last_epoch)
