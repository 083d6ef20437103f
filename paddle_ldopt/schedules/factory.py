"""Any schedule by its name."""

import enum
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

from paddle.optimizer.lr import LRScheduler

from .._checks import Option
from .._messages import nearest, refusal, shown
from . import functions, metric
from .options import REQUIRED, options_of


class SchedulerType(str, enum.Enum):
    """The names that `get_scheduler` and a Trainer's ``--lr_scheduler_type`` know.

    Examples:
        >>> from paddle_ldopt.schedules import SchedulerType
        >>> SchedulerType("cosine") is SchedulerType.COSINE
        True
        >>> SchedulerType.WARMUP_STABLE_DECAY == "warmup_stable_decay"
        True

    Source: ``transformers.SchedulerType``, 4.37 to 5; the last one MindFormers' ``ConstantWithCoolDownLR``.
    """

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"
    GREEDY = "greedy"
    COOL_DOWN = "cool_down"

    @classmethod
    def _missing_(cls, value: object) -> "SchedulerType":
        name = getattr(value, "value", value)  # another library's enum has the name as its value
        name = name.replace("-", "_") if isinstance(name, str) else name
        names = [member.value for member in cls]
        if name in names and not (isinstance(value, str) and name == value):
            return cls(name)
        wrong = f"{shown(name)} is not a valid SchedulerType"
        raise refusal(ValueError, f"{wrong}, please select one of {names}{nearest(name, names)}.", name=value)


FUNCTIONS: dict[SchedulerType, Callable[..., LRScheduler]] = {
    SchedulerType.LINEAR: functions.get_linear_schedule_with_warmup,
    SchedulerType.COSINE: functions.get_cosine_schedule_with_warmup,
    SchedulerType.COSINE_WITH_RESTARTS: functions.get_cosine_with_hard_restarts_schedule_with_warmup,
    SchedulerType.POLYNOMIAL: functions.get_polynomial_decay_schedule_with_warmup,
    SchedulerType.CONSTANT: functions.get_constant_schedule,
    SchedulerType.CONSTANT_WITH_WARMUP: functions.get_constant_schedule_with_warmup,
    SchedulerType.INVERSE_SQRT: functions.get_inverse_sqrt_schedule,
    SchedulerType.REDUCE_ON_PLATEAU: metric.get_reduce_on_plateau_schedule,
    SchedulerType.COSINE_WITH_MIN_LR: functions.get_cosine_with_min_lr_schedule_with_warmup,
    SchedulerType.COSINE_WARMUP_WITH_MIN_LR: functions.get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    SchedulerType.WARMUP_STABLE_DECAY: functions.get_wsd_schedule,
    SchedulerType.GREEDY: metric.get_greedy_schedule,
    SchedulerType.COOL_DOWN: functions.get_constant_schedule_with_cool_down,
}
_CLASSES = {SchedulerType.REDUCE_ON_PLATEAU: metric.ReduceLROnPlateau, SchedulerType.GREEDY: metric.GreedyLR}

ON_METRIC = tuple(kind.value for kind in _CLASSES)  # the kinds that follow a metric
_OPTIONS = {kind: options_of(_CLASSES.get(kind, function)) for kind, function in FUNCTIONS.items()}
_GENERAL = ("num_warmup_steps", "num_training_steps")  # every kind is given these


def get_scheduler(
    name: Union[str, SchedulerType],
    optimizer: Any,
    num_warmup_steps: Optional[int] = None,
    num_training_steps: Optional[int] = None,
    scheduler_specific_kwargs: Optional[dict[str, Any]] = None,
) -> LRScheduler:
    """Build any schedule by its name.

    The kinds' own functions share these arguments, and `last_epoch`: a schedule goes on with step `last_epoch` + 1. An
    argument that is unknown, missing, of the wrong type or out of range raises TypeError or ValueError.

    Args:
        name: the kind.
        optimizer: a Paddle optimizer, also in wrappers of `fleet` and `amp`, or the peak, above 0. The schedule is
            attached to an optimizer. The peak is then its current rate, or that of its schedule if this is one of ours.
        num_warmup_steps: w, at least 0. Step 0 is taken at rate 0, step w is the first at the peak.
        num_training_steps: n, at least 1; below w, a warning. Kinds without w or n ignore them, as in transformers:
            "constant", "reduce_lr_on_plateau" and "greedy" have no warm-up.
        scheduler_specific_kwargs: further arguments of the kind's function.

    Returns:
        A `RuleSchedule`, stepped after each step of the optimizer, or a `MetricSchedule`.

    Differs from transformers: `inverse_sqrt` and the constant kinds do not ignore `scheduler_specific_kwargs`.

    Examples:
        >>> from paddle_ldopt.schedules import get_scheduler
        >>> schedule = get_scheduler("polynomial", 0.1, 0, 10, {"lr_end": 0.0, "power": 2.0})
        >>> schedule.step(5)
        >>> schedule()
        0.025

    Source: ``transformers.optimization``, 4.37, and 4.57 for WSD and the kinds with a lowest rate.
    """
    kind = SchedulerType(name)
    options = _OPTIONS[kind]
    kwargs = {} if scheduler_specific_kwargs is None else scheduler_specific_kwargs
    if not isinstance(kwargs, dict):
        raise refusal(TypeError, "`scheduler_specific_kwargs` must be a dict.", scheduler_specific_kwargs=kwargs)
    for key, value in kwargs.items():
        if key not in _specific(kind):
            raise TypeError(_unknown(kind, key, value))
    general = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    arguments = {key: value for key, value in general.items() if key in options and value is not None} | kwargs
    for key, option in options.items():
        if option.default is REQUIRED and arguments.get(key) is None:
            raise ValueError(_missing(kind, key))
    return FUNCTIONS[kind](optimizer, **arguments)


def kwargs_problems(kind: str, kwargs: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each of the `scheduler_specific_kwargs` that is unknown, missing or out of range.

    Limits that depend on the peak or on another argument are checked when the schedule is built.
    """
    name = SchedulerType(kind)
    specific = _specific(name)
    for key, value in kwargs.items():
        if key not in specific:
            yield _unknown(name, key, value)
    for key, option in specific.items():
        if option.default is REQUIRED and kwargs.get(key) is None:
            yield _missing(name, key)
        elif key in kwargs:
            try:
                option.checked(kwargs[key], key)
            except (TypeError, ValueError) as error:
                yield str(error)


def _specific(kind: SchedulerType) -> dict[str, Option]:
    """Return the options of a kind that `scheduler_specific_kwargs` may give."""
    return {key: option for key, option in _OPTIONS[kind].items() if key not in _GENERAL}


def _unknown(kind: SchedulerType, key: Any, value: Any) -> str:
    return (
        f"{FUNCTIONS[kind].__name__}() got an unexpected keyword argument {shown(key)} in `scheduler_specific_kwargs`; "
        f"it takes {', '.join(_specific(kind))}. Received: {key}={shown(value)}"
    )


def _missing(kind: SchedulerType, key: str) -> str:
    return f"SchedulerType.{kind.name} requires `{key}`, please provide that argument. Received: {key}=None"
