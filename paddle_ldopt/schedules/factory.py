"""Any schedule by its name."""

import enum
import inspect

from .._checks import nearest, shown
from ..schedules import functions as closed_form
from ..schedules import metric

__all__ = ["ON_METRIC", "SchedulerType", "get_scheduler"]


class SchedulerType(str, enum.Enum):
    """The names that `get_scheduler` and a Trainer's ``--lr_scheduler_type`` know.

    Raises:
        ValueError: there is no such name; the message has the nearest.

    Examples:
        .. code-block:: python

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
    def _missing_(cls, value):
        name = getattr(value, "value", value)  # another library's enum has the name as its value
        name = name.replace("-", "_") if isinstance(name, str) else name
        names = [member.value for member in cls]
        if name in names and not (isinstance(value, str) and name == value):
            return cls(name)
        raise ValueError(
            f"{shown(name)} is not a valid SchedulerType, please select one of {names}{nearest(name, names)}. "
            f"Received: name={shown(value)}"
        )


FUNCTIONS: dict = {
    SchedulerType.LINEAR: closed_form.get_linear_schedule_with_warmup,
    SchedulerType.COSINE: closed_form.get_cosine_schedule_with_warmup,
    SchedulerType.COSINE_WITH_RESTARTS: closed_form.get_cosine_with_hard_restarts_schedule_with_warmup,
    SchedulerType.POLYNOMIAL: closed_form.get_polynomial_decay_schedule_with_warmup,
    SchedulerType.CONSTANT: closed_form.get_constant_schedule,
    SchedulerType.CONSTANT_WITH_WARMUP: closed_form.get_constant_schedule_with_warmup,
    SchedulerType.INVERSE_SQRT: closed_form.get_inverse_sqrt_schedule,
    SchedulerType.REDUCE_ON_PLATEAU: metric.get_reduce_on_plateau_schedule,
    SchedulerType.COSINE_WITH_MIN_LR: closed_form.get_cosine_with_min_lr_schedule_with_warmup,
    SchedulerType.COSINE_WARMUP_WITH_MIN_LR: closed_form.get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    SchedulerType.WARMUP_STABLE_DECAY: closed_form.get_wsd_schedule,
    SchedulerType.GREEDY: metric.get_greedy_schedule,
    SchedulerType.COOL_DOWN: closed_form.get_constant_schedule_with_cool_down,
}
_CLASSES = {
    metric.get_reduce_on_plateau_schedule: metric.ReduceLROnPlateau,
    metric.get_greedy_schedule: metric.GreedyLR,
}

ON_METRIC = tuple(kind.value for kind, function in FUNCTIONS.items() if function in _CLASSES)  # they follow a metric


def get_scheduler(name, optimizer, num_warmup_steps=None, num_training_steps=None, scheduler_specific_kwargs=None):
    """Build any schedule by its name.

    Args:
        name (str|SchedulerType): which one.
        optimizer (Optimizer|float): a Paddle optimizer, which the schedule is attached to, or the learning rate; see
            `get_constant_schedule`.
        num_warmup_steps (int, optional): steps of the warm-up.
        num_training_steps (int, optional): steps of the training. This one and the last are what a Trainer gives to
            every kind: a kind that takes no such argument ignores it, as in transformers. "constant",
            "reduce_lr_on_plateau" and "greedy" have no warm-up; "constant_with_warmup" has.
        scheduler_specific_kwargs (dict, optional): further arguments of the kind's function.

    Returns:
        LRScheduler: a `RuleSchedule`, or a `MetricSchedule`, which is stepped with a metric.

    Raises:
        TypeError: `scheduler_specific_kwargs` has a name that the kind's function does not take.
        ValueError: an unknown `name`; an argument that the kind needs is missing or out of range.

    Differs from transformers: `inverse_sqrt` and the constant kinds do not ignore `scheduler_specific_kwargs`.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.schedules import get_scheduler
            >>> schedule = get_scheduler("polynomial", 0.1, 0, 10, {"lr_end": 0.0, "power": 2.0})
            >>> schedule.step(5)
            >>> schedule()
            0.025

    Source: ``transformers.get_scheduler``, 4.37.
    """
    name = SchedulerType(name)
    function = FUNCTIONS[name]
    taken = _arguments(function)
    if not isinstance(scheduler_specific_kwargs, (dict, type(None))):
        raise TypeError(
            "`scheduler_specific_kwargs` must be a dict. "
            f"Received: scheduler_specific_kwargs={shown(scheduler_specific_kwargs)}"
        )
    arguments = dict(scheduler_specific_kwargs or {})
    for key in arguments:
        if key not in taken or key in ("num_warmup_steps", "num_training_steps"):
            valid = [k for k in taken if k not in ("num_warmup_steps", "num_training_steps")]
            raise TypeError(
                f"{function.__name__}() got an unexpected keyword argument {shown(key)} in `scheduler_specific_kwargs`"
                f"; it takes {', '.join(valid)}. Received: {key}={shown(arguments[key])}"
            )
    for key, value in (("num_warmup_steps", num_warmup_steps), ("num_training_steps", num_training_steps)):
        if key in taken and value is not None:
            arguments[key] = value
    for key, parameter in taken.items():
        if parameter.default is parameter.empty and arguments.get(key) is None:
            raise ValueError(
                f"SchedulerType.{name.name} requires `{key}`, please provide that argument. Received: {key}=None"
            )
    return function(optimizer, **arguments)


def _arguments(function):
    """Return the arguments of a kind's function after the first, by name."""
    parameters = inspect.signature(_CLASSES.get(function, function)).parameters
    return dict(list(parameters.items())[1:])
