"""Copies of schedules, to step without an effect on the originals."""

import copy
import functools
import types
from typing import Any, Optional

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._paddle import lr_or_scheduler, replace_scheduler, stand_in


def copy_schedule(schedule: Any, memo: Optional[dict[int, Any]] = None) -> Any:
    """Return a copy of a schedule; stepping it changes nothing else and prints nothing.

    Schedules and containers inside are copied, optimizers replaced by a `stand_in`, and networks shared. Copies of
    other objects are shallow, except for the schedules and optimizers they hold. An object that cannot be copied, such
    as a generator or an open file, raises its own exception. `memo` maps ids to the copies that exist.
    """
    memo = {} if memo is None else memo
    if id(schedule) not in memo:
        memo[id(schedule)] = _new_copy(schedule, memo)
    return memo[id(schedule)]


def _new_copy(value: Any, memo: dict[int, Any]) -> Any:
    """Return a new copy; an object that may contain itself enters `memo` before its parts are copied."""
    copied = functools.partial(copy_schedule, memo=memo)
    if isinstance(value, LRScheduler):
        schedule = memo[id(value)] = object.__new__(type(value))
        vars(schedule).update({name: copied(held) for name, held in dict(vars(value)).items()}, verbose=False)
        return schedule
    if isinstance(value, Optimizer):
        optimizer = memo[id(value)] = stand_in(value)
        replace_scheduler(optimizer, copied(lr_or_scheduler(value)))
        return optimizer
    if type(value) in (list, tuple, set):
        return type(value)(map(copied, value))
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, copied(value.__self__))
    if isinstance(value, functools.partial):
        return functools.partial(copied(value.func), *copied(value.args), **copied(value.keywords))
    if isinstance(value, (paddle.nn.Layer, types.ModuleType)):
        return value
    if isinstance(value, paddle.Tensor):
        return value.detach().clone()
    if type(value).__module__.startswith("numpy.random"):  # a shallow copy would draw from the same stream
        return copy.deepcopy(value)
    other = memo[id(value)] = copy.copy(value)
    if other is not value:
        for name, held in dict(getattr(other, "__dict__", {})).items():
            if isinstance(held, (LRScheduler, Optimizer)):
                vars(other)[name] = copied(held)
    return other
