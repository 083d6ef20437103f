"""Schedules by name: `SchedulerType` lists the names, `get_scheduler` builds a schedule."""

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional, Union

from paddle.optimizer.lr import LRScheduler

from .._checks import refused
from .._messages import refusal
from . import (  # noqa: F401 - each adds its kinds to the table
    basic,
    cosine,
    greedy,
    metric,
    stable_decay,
)
from ._base import OptimizerOrRate
from .kinds import SCHEDULES, kind_of, metric_kinds

ON_METRIC = tuple(metric_kinds())  # of this package

if TYPE_CHECKING:

    class _Members(enum.EnumMeta):
        def __getattr__(cls, name: str) -> "SchedulerType": ...
else:
    _Members = enum.EnumMeta


class SchedulerType(str, enum.Enum, metaclass=_Members):
    """The schedules of this package: names for `get_scheduler` and a Trainer's ``--lr_scheduler_type``.

    A schedule that you add with `schedules.schedule` is not a member. Give its name as a string.

    Examples:
        >>> from paddle_ldopt.schedules import SchedulerType
        >>> SchedulerType("cosine") is SchedulerType.COSINE
        True
        >>> SchedulerType.WARMUP_STABLE_DECAY == "warmup_stable_decay"
        True

    Source: ``transformers.SchedulerType``, 4.37 to 5; `COOL_DOWN` from MindFormers' ``ConstantWithCoolDownLR``.
    """

    _ignore_ = ["members", "kind"]
    members = vars()
    for kind in SCHEDULES.values():
        members[kind.member] = kind.name

    @classmethod
    def _missing_(cls, value: object) -> Optional["SchedulerType"]:
        name = kind_of(value).name
        return next((member for member in cls if member.value == name), None)


def get_scheduler(
    name: Union[str, SchedulerType],
    optimizer: OptimizerOrRate,
    num_warmup_steps: Optional[int] = None,
    num_training_steps: Optional[int] = None,
    scheduler_specific_kwargs: Optional[dict[str, Any]] = None,
) -> LRScheduler:
    """Build a schedule by name.

    Each kind also has a function of its own, with the same arguments and `last_epoch`: the schedule continues with step
    `last_epoch` + 1. An unknown, missing or bad argument raises TypeError or ValueError.

    Args:
        name: the kind.
        optimizer: the peak, above 0, or a Paddle optimizer, also in wrappers of `fleet` and `amp`. The schedule is
            attached to the optimizer. Its peak is then the current rate, or the peak of the present schedule if it is
            one of ours.
        num_warmup_steps: w, at least 0. By default the rate is 0 at step 0 and first reaches the peak at step w; in
            "cosine_warmup_with_min_lr" it starts above 0 and reaches the peak at step w - 1.
        num_training_steps: n, at least 1; warns if it is below w. Kinds without w or n ignore them, as in transformers.
        scheduler_specific_kwargs: further options of the kind: keywords of its function.

    Returns:
        A `CurveSchedule`, to step after each step of the optimizer, or a `MetricSchedule`.

    Differs from transformers: `inverse_sqrt` and the constant kinds use `scheduler_specific_kwargs`.

    Examples:
        >>> from paddle_ldopt.schedules import get_scheduler
        >>> schedule = get_scheduler("polynomial", 0.1, 0, 10, {"lr_end": 0.0, "power": 2.0})
        >>> schedule.step(5)
        >>> schedule()
        0.025

    Source: ``transformers.optimization`` 4.37; 4.57 for WSD and the kinds with a minimum rate.
    """
    kind = kind_of(name)
    kwargs = {} if scheduler_specific_kwargs is None else scheduler_specific_kwargs
    if not isinstance(kwargs, dict):
        raise refusal(TypeError, "`scheduler_specific_kwargs` must be a dict.", scheduler_specific_kwargs=kwargs)
    for key, value in kwargs.items():
        if key not in kind.specific:
            raise TypeError(kind.unknown(key, value))
    general = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    arguments = {key: value for key, value in general.items() if key in kind.options and value is not None} | kwargs
    for key in kind.required:
        if arguments.get(key) is None:
            raise ValueError(kind.missing(key))
    return kind.function(optimizer, **arguments)


def kwargs_problems(name: str, kwargs: dict[str, Any]) -> Iterator[str]:
    """Yield an error message for each unknown, missing or bad option in `scheduler_specific_kwargs`.

    Limits that depend on the peak or on another option are checked when the schedule is built.
    """
    kind = kind_of(name)
    yield from (kind.unknown(key, value) for key, value in kwargs.items() if key not in kind.specific)
    for key, option in kind.specific.items():
        if key in kind.required and kwargs.get(key) is None:
            yield kind.missing(key)
        elif key in kwargs:
            yield from refused({key: (option.checked, kwargs[key])})
