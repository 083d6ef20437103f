"""Any schedule by its name: `schedule` puts a function into the table of all kinds, `get_scheduler` calls it.

    @schedule("triangle")
    def get_triangle_schedule(optimizer: Any, num_warmup_steps: Steps, last_epoch: LastStep = -1) -> RuleSchedule:
        return scheduled(optimizer, curves.Linear(num_warmup_steps, num_warmup_steps), last_epoch)

Checks, `LdoptConfig`, the Trainer, the command line and the tables of the docs read the options from its signature.
"""

import dataclasses
import enum
from collections.abc import Iterator
from typing import Any, Callable, Optional, TypeVar, Union

from paddle.optimizer.lr import LRScheduler

from .._checks import Option
from .._messages import nearest, refusal, shown
from .options import REQUIRED, checks_arguments

__all__ = ["SchedulerType", "get_scheduler"]

_Function = TypeVar("_Function", bound=Callable[..., LRScheduler])
_GENERAL = ("num_warmup_steps", "num_training_steps")  # every kind is given these


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of schedule: the function that builds it, and what this takes beside the optimizer."""

    name: str
    function: Callable[..., LRScheduler]
    options: dict[str, Option]
    on_metric: bool  # it is stepped with a metric

    @property
    def specific(self) -> dict[str, Option]:
        """The options that `scheduler_specific_kwargs` may give."""
        return {key: option for key, option in self.options.items() if key not in _GENERAL}

    def idle_warmup(self, **given: Any) -> Iterator[str]:
        """Yield the message that a warm-up would be ignored, if one is given and the kind has none."""
        if any(given.values()) and "num_warmup_steps" not in self.options:
            other = f"{self.name}_with_warmup"
            advice = f": use {shown(other)}" if other in SCHEDULES else ", it would be ignored"
            yield str(refusal(ValueError, f"The schedule {shown(self.name)} has no warm-up{advice}.", **given))

    def unknown(self, key: Any, value: Any) -> str:
        """Return the message about a keyword that the function does not take."""
        return (
            f"{self.function.__name__}() got an unexpected keyword argument {shown(key)} in "
            f"`scheduler_specific_kwargs`; it takes {', '.join(self.specific)}. Received: {key}={shown(value)}"
        )

    def missing(self, key: str) -> str:
        """Return the message about an argument that was not given."""
        name = f"SchedulerType.{self.name.upper()}"
        return f"{name} requires `{key}`, please provide that argument. Received: {key}=None"


SCHEDULES: dict[str, Kind] = {}


def schedule(name: str, on_metric: Optional[type] = None) -> Callable[[_Function], _Function]:
    """Return a decorator that has a function check its arguments, and puts it into the table under that name.

    A function that passes its keywords on to the class of a schedule that follows a metric names this class.
    """

    def add(function: _Function) -> _Function:
        checked = checks_arguments(function)
        options = vars(on_metric.__init__ if on_metric else checked)["options"]  # type: ignore[misc]
        specific = {key: option for key, option in options.items() if key != "learning_rate"}
        SCHEDULES[name] = Kind(name, checked, specific, on_metric is not None)
        return checked

    return add


def kind_of(name: Any) -> Kind:
    """Return the kind of that name, or of a member of an enum, ours or another library's, that has it as its value."""
    plain = getattr(name, "value", name)
    plain = plain.replace("-", "_") if isinstance(plain, str) else None
    if plain not in SCHEDULES:
        wrong = f"{shown(name)} is not a valid SchedulerType"
        advice = f"please select one of {list(SCHEDULES)}{nearest(plain, SCHEDULES)}"
        raise refusal(ValueError, f"{wrong}, {advice}.", name=name)
    return SCHEDULES[plain]


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
    def _missing_(cls, value: object) -> Optional["SchedulerType"]:
        name = kind_of(value).name
        return next((member for member in cls if member.value == name), None)


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
        num_training_steps: n, at least 1; below w, a warning. Kinds without w or n ignore them, as in transformers.
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
    kind = kind_of(name)
    kwargs = {} if scheduler_specific_kwargs is None else scheduler_specific_kwargs
    if not isinstance(kwargs, dict):
        raise refusal(TypeError, "`scheduler_specific_kwargs` must be a dict.", scheduler_specific_kwargs=kwargs)
    for key, value in kwargs.items():
        if key not in kind.specific:
            raise TypeError(kind.unknown(key, value))
    general = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    arguments = {key: value for key, value in general.items() if key in kind.options and value is not None} | kwargs
    for key, option in kind.options.items():
        if option.default is REQUIRED and arguments.get(key) is None:
            raise ValueError(kind.missing(key))
    return kind.function(optimizer, **arguments)


def kwargs_problems(name: str, kwargs: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each of the `scheduler_specific_kwargs` that is unknown, missing or out of range.

    Limits that depend on the peak or on another argument are checked when the schedule is built.
    """
    kind = kind_of(name)
    yield from (kind.unknown(key, value) for key, value in kwargs.items() if key not in kind.specific)
    for key, option in kind.specific.items():
        if option.default is REQUIRED and kwargs.get(key) is None:
            yield kind.missing(key)
        elif key in kwargs:
            try:
                option.checked(kwargs[key], key)
            except (TypeError, ValueError) as error:
                yield str(error)
