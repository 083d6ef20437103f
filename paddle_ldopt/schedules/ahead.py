"""The length, the future rates and the peak of a schedule, read without changing it."""

import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Callable, Optional, Union

import paddle
from paddle.optimizer.lr import LRScheduler

from .._checks import as_float
from ._base import Curve, CurveSchedule, Schedule
from ._copies import copy_schedule
from .metric import follows_metric
from .warmup import WarmUp

_MOST_STEPS = 10_000  # at which a curve is evaluated, or that a copy of another schedule takes


def length_of(schedule: LRScheduler) -> Optional[int]:
    """Return the number of steps that a schedule covers, counted from its first step; None if unknown."""
    curve = _curve_of(schedule)
    if curve is not None:
        return curve.length
    if isinstance(schedule, paddle.optimizer.lr.OneCycleLR):
        return int(schedule.total_steps)
    if isinstance(schedule, paddle.optimizer.lr.PolynomialDecay):
        return None if schedule.cycle else int(schedule.decay_steps)
    if not isinstance(schedule, (WarmUp, paddle.optimizer.lr.LinearWarmup)):
        return None
    after = length_of(schedule.decay_schedule_fn if isinstance(schedule, WarmUp) else schedule.learning_rate)
    return None if after is None else int(schedule.warmup_steps) + after


def _curve_of(schedule: LRScheduler) -> Optional[Curve]:
    """Return the curve of a schedule if it is a `Curve`, with known turns and length."""
    curve = schedule.curve if isinstance(schedule, CurveSchedule) else None
    return curve if isinstance(curve, Curve) else None


def peak_of(schedule: LRScheduler) -> Optional[float]:
    """Return the rate at the peak of a schedule; None for a schedule of another package."""
    return schedule.base_lr if isinstance(schedule, Schedule) else None


def peak_learning_rate(
    learning_rate: Union[float, LRScheduler],
    num_steps: Optional[int] = None,
    divisor: Optional[Callable[[int], float]] = None,
) -> Optional[float]:
    """Return the largest rate that a schedule reaches from its present step on; return a number as it is.

    A `Curve` is evaluated for `num_steps` steps, by default to its end. Above 10,000 steps it is evaluated at about
    10,000 of them and at the ends of the warm-up and of the curve. Any other schedule is copied, and so is a curve with
    a changing divisor. The copy takes `num_steps` steps: by default 10,000, or more if `warmup_steps` or `total_steps`
    of the schedule are larger. It stops before the first step that raises (`OneCycleLR`). A schedule that cannot be
    read ahead gives None and a warning.

    `divisor` maps steps ahead to the divisor of the rate there, see `LayerwiseInterface.lr_divisor`.
    """
    divisor = divisor or (lambda ahead: 1.0)
    if not isinstance(learning_rate, LRScheduler):
        return as_float(learning_rate) / divisor(0)
    if follows_metric(learning_rate):
        return float(learning_rate.last_lr) / divisor(0)  # schedules that follow a metric seldom rise
    rates: list[tuple[int, float]] = [(0, float(learning_rate.last_lr))]
    curve = _curve_of(learning_rate)
    if curve is not None and divisor(1) == divisor(0):
        now = learning_rate.last_epoch
        end = max(curve.warmup, curve.length or 0) if num_steps is None else now + num_steps
        ends = [step for step in (curve.warmup - 1, curve.warmup, end) if now <= step <= end]  # of the phases
        ahead = [*range(now, end + 1, max(1, (end - now) // _MOST_STEPS)), *ends]
        rates += [(step - now, learning_rate.base_lr * curve(step)) for step in ahead]
    else:
        if num_steps is None:
            lengths = [vars(learning_rate).get(name) for name in ("warmup_steps", "total_steps")]  # in any class
            num_steps = max([_MOST_STEPS, *(2 * steps for steps in lengths if isinstance(steps, int))])
        try:
            rates.extend(enumerate(itertools.islice(_rates_ahead(learning_rate), num_steps + 1)))
        except ValueError as error:
            if len(rates) < 3:  # the first step failed; OneCycleLR raises after its last step
                warnings.warn(f"The learning rate at the peak is unknown. {error}", stacklevel=4)
                return None
    return max(rate / divisor(i) for i, rate in rates)


def schedule_rates(schedule: LRScheduler, num_steps: int) -> tuple[int, list[float]]:
    """Return the first known step of a schedule, and its rates from this step to step `num_steps` - 1.

    The first step is 0 if a copy stepped from 0 arrives at the present rate, otherwise the present step. A schedule
    that cannot be read ahead raises ValueError.
    """
    start = min(max(int(schedule.last_epoch), 0), num_steps)
    if 0 < start < num_steps:
        try:
            rates = [*itertools.islice(_rates_ahead(schedule, 0), num_steps)]
        except ValueError:
            rates = [math.nan] * num_steps
        if math.isclose(rates[start], schedule.last_lr):
            return 0, rates
    return start, [*itertools.islice(_rates_ahead(schedule), num_steps - start)]


def _rates_ahead(schedule: LRScheduler, start: Optional[int] = None) -> Iterator[float]:
    """Yield the rate of each step from `start` or the present step on; ValueError if copying or stepping fails."""
    if start is None:
        yield float(schedule.last_lr)
    try:
        ahead = copy_schedule(schedule)
        for i in itertools.count():
            ahead.step(*([start] if i == 0 and start is not None else []))
            if start is not None and ahead.last_epoch != start + i:
                raise ValueError(f"it is at step {ahead.last_epoch} after {i} from {start}")
            yield float(ahead.last_lr)
    except Exception as error:  # raised by the user's code
        name = type(schedule).__name__
        said = f"{type(error).__name__}: {error}"[:200]
        raise ValueError(f"{name} cannot be read ahead ({said}). Received: a schedule of type {name}") from error
