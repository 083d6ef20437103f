"""TODO."""

import copy
import functools
import itertools
import math
import types
import warnings

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._checks import as_float
from .._paddle import stand_in


def peak_learning_rate(learning_rate, num_steps=None, divisor=None):
    """Return the greatest rate a schedule reaches from where it stands, or the rate itself if it is a number.

    Of a schedule of ours it is found at any length, without stepping through it. Of others the steps up to the peak are
    looked at, and how far that may be they do not say: the next 10,000 unless `num_steps` or their own `warmup_steps`
    or `total_steps` are more, or to the first step that raises (`OneCycleLR`). A schedule that cannot be read ahead has
    no known peak: None, with a warning.

    Args:
        learning_rate (float|LRScheduler): the schedule is not changed: a copy is stepped.
        num_steps (int, optional): how many steps ahead to look.
        divisor (callable, optional): steps ahead -> what the rate is divided by there, as `rate_divisor` says. If that
            changes, a schedule of ours is looked at like all others.
    """
    divisor = divisor or (lambda ahead: 1.0)
    if not isinstance(learning_rate, paddle.optimizer.lr.LRScheduler):
        return as_float(learning_rate) / divisor(0)
    if follows_metric(learning_rate):
        return float(learning_rate.last_lr) / divisor(0)  # what it will be is not known; most only ever fall
    turns = getattr(getattr(learning_rate, "rule", None), "turns", None)
    if turns is None or divisor(1) != divisor(0):
        said = [getattr(learning_rate, name, None) for name in ("warmup_steps", "total_steps")]
        far = (
            max([10_000, *(2 * steps for steps in said if isinstance(steps, int))]) if num_steps is None else num_steps
        )
        rates: list = []
        try:
            rates.extend(enumerate(itertools.islice(_rates_ahead(learning_rate), far + 1)))
        except ValueError as error:
            if len(rates) < 2:  # not a step; OneCycleLR raises behind its last one
                warnings.warn(f"The learning rate at the peak is unknown. {error}", stacklevel=4)
                return None
    else:
        now = learning_rate.last_epoch
        turning = [step - now for step in turns(now + (num_steps or 0))]
        last = max(turning) if num_steps is None else num_steps
        ahead = [0, last, *turning]
        rates = [(i, learning_rate.base_lr * learning_rate.rule(now + i)) for i in ahead if 0 <= i <= last]
        rates.append((0, learning_rate.last_lr))
    return max(float(rate) / divisor(i) for i, rate in rates)


def follows_metric(schedule):
    """Say whether a schedule, Paddle's or ours, is stepped with a metric, so that its rates are not known before."""
    return hasattr(schedule, "num_bad_epochs")


def schedule_rates(schedule, num_steps):
    """Return the rates of the first `num_steps` steps of a schedule from where it stands, and where that is.

    A schedule that stands further on is wound back to step 0 if its rates are then what they were (a copy that is
    stepped from 0 arrives at the rate of now); if not, its rates are those from now on.

    Args:
        schedule (LRScheduler): it is not changed: a copy is stepped.
        num_steps (int): step at which the training ends.

    Returns:
        tuple[int, list[float]]: the first step, and the rates from it to step `num_steps` - 1.

    Raises:
        ValueError: the schedule cannot be read ahead.
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


def _rates_ahead(schedule, start=None):
    """Yield the rate of each step of a schedule from where it stands, or from step `start`; a copy is stepped.

    Raises:
        ValueError: the schedule cannot be copied or stepped, or does not count its steps from `start`.
    """
    if start is None:
        yield float(schedule.last_lr)
    try:
        ahead = copy_schedule(schedule)
        for i in itertools.count():
            ahead.step(*([start] if i == 0 and start is not None else []))
            if start is not None and ahead.last_epoch != start + i:
                raise ValueError(f"it is at step {ahead.last_epoch} after {i} from {start}")
            yield float(ahead.last_lr)
    except Exception as error:  # of the user's code
        name = type(schedule).__name__
        said = f"{type(error).__name__}: {error}"[:200]
        raise ValueError(f"{name} cannot be read ahead ({said}). Received: a schedule of type {name}") from error


def copy_schedule(schedule):
    """Return a copy of a schedule that can be stepped without a trace; it prints nothing.

    Schedules and containers in it are copied, optimizers replaced by a `stand_in`, networks shared. Of other objects,
    such as the one whose method the schedule calls, a shallow copy is made, with the schedules and optimizers in it
    copied too.

    Raises:
        Exception: the schedule holds an object that cannot be copied, such as a generator or an open file.
    """
    return _copied(schedule, {})


def _copied(value, memo):
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, LRScheduler):
        other = memo[id(value)] = object.__new__(type(value))
        vars(other).update({name: _copied(held, memo) for name, held in dict(vars(value)).items()}, verbose=False)
    elif isinstance(value, Optimizer):
        other = memo[id(value)] = stand_in(value, _learning_rate_map={})
        vars(other)["_learning_rate"] = _copied(value._learning_rate, memo)
    elif type(value) in (list, tuple, set):
        other = type(value)([_copied(item, memo) for item in value])
    elif type(value) is dict:
        other = {key: _copied(item, memo) for key, item in value.items()}
    elif isinstance(value, types.MethodType):
        other = types.MethodType(value.__func__, _copied(value.__self__, memo))
    elif isinstance(value, functools.partial):
        func, args, keywords = (_copied(part, memo) for part in (value.func, value.args, value.keywords))
        other = functools.partial(func, *args, **keywords)
    elif isinstance(value, (paddle.nn.Layer, types.ModuleType)):
        other = value
    elif isinstance(value, paddle.Tensor):
        other = value.detach().clone()
    elif type(value).__module__.startswith("numpy.random"):  # its shallow copy draws from the same stream
        other = copy.deepcopy(value)
    else:
        other = memo[id(value)] = copy.copy(value)
        for name, held in list(getattr(other, "__dict__", {}).items()) if other is not value else ():
            if isinstance(held, (LRScheduler, Optimizer)):
                vars(other)[name] = _copied(held, memo)
    memo[id(value)] = other
    return other
