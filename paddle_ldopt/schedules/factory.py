"""Schedules by name: the types of their options, the table of kinds, and `get_scheduler`.

`get_scheduler`, `LdoptConfig`, the Trainer and the command line look a name up in the table, and read the options from
the signature of the kind's function. Limits that depend on the peak or on another option are checked in the function.
"""

import dataclasses
import enum
import functools
import inspect
import typing
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Callable, Optional, TypeVar, Union

from paddle.optimizer.lr import LRScheduler

from .._checks import REQUIRED, Option, checked_bool, checked_choice, checked_steps, nearest, refusal, shown

if TYPE_CHECKING:
    from .curves import OptimizerOrRate

_Function = TypeVar("_Function", bound=Callable[..., Any])


# ---- types of options


def choice(*choices: str) -> Option:
    return Option(check=functools.partial(checked_choice, choices=choices), values=" or ".join(choices))


Steps = Annotated[int, Option(check=checked_steps, values="an int from 0")]
StepsFrom1 = Annotated[int, Option(check=functools.partial(checked_steps, least=1), values="an int from 1")]
# the last step taken; -1 for none
LastStep = Annotated[int, Option(check=functools.partial(checked_steps, least=-1), values="an int from -1")]
NonNegative = Annotated[float, Option()]
Positive = Annotated[float, Option(ends="(]")]
Fraction = Annotated[float, Option(high=1.0)]
Bool = Annotated[bool, Option(check=checked_bool)]


def _declared(hint: Any) -> Optional[Option]:
    if isinstance(hint, Option):
        return hint
    return next(filter(None, map(_declared, typing.get_args(hint))), None)


def checks_arguments(function: _Function) -> _Function:
    """Decorate a function: its arguments are checked and converted, such as an int to a float, before it is called.

    The result has the `options` that the signature declares; `help` shows plain types.
    """
    signature, options = inspect.signature(function), {}
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        option = _declared(hint)
        if option is not None:
            default = signature.parameters[name].default
            options[name] = dataclasses.replace(option, default=default, optional=default is None)
    function.__annotations__ = typing.get_type_hints(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__qualname__}() {error}") from None
        arguments = {name: value for name, value in bound.arguments.items() if name in options}
        bound.arguments.update({name: options[name].checked(value, name) for name, value in arguments.items()})
        return function(*bound.args, **bound.kwargs)

    vars(checked)["options"] = options
    return typing.cast(_Function, checked)


# ---- the table of kinds


_GENERAL = ("num_warmup_steps", "num_training_steps")  # arguments of `get_scheduler`, for every kind


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of schedule: the function that builds it, and its options."""

    name: str
    function: Callable[..., LRScheduler]
    options: dict[str, Option]
    on_metric: bool  # whether `step` takes a metric


SCHEDULES: dict[str, Kind] = {}


def schedule(name: str, on_metric: Optional[type] = None) -> Callable[[_Function], _Function]:
    """Return a decorator that adds a function to the table under `name`, with checks of its arguments.

    `on_metric` is the class of a schedule that follows a metric; the function passes its keywords to this class.
    """

    def add(function: _Function) -> _Function:
        checked = checks_arguments(function)
        options = vars(on_metric.__init__ if on_metric else checked)["options"]  # type: ignore[misc]
        SCHEDULES[name] = Kind(name, checked, options, on_metric is not None)
        return checked

    return add


class _MetricKinds(Collection[str]):
    """The kinds whose `step` takes a metric, with those that were added later."""

    def __contains__(self, name: object) -> bool:
        return name in SCHEDULES and SCHEDULES[str(getattr(name, "value", name))].on_metric

    def __iter__(self) -> Iterator[str]:
        return (name for name, kind in SCHEDULES.items() if kind.on_metric)

    def __len__(self) -> int:
        return len(list(iter(self)))


ON_METRIC = _MetricKinds()


def kind_of(name: object) -> Kind:
    """Return the kind of a name, or of an enum member, also of another library."""
    plain = getattr(name, "value", name)
    plain = plain.replace("-", "_") if isinstance(plain, str) else None
    if plain not in SCHEDULES:
        wrong = f"{shown(name)} is not a valid SchedulerType"
        advice = f"please select one of {list(SCHEDULES)}{nearest(plain, SCHEDULES)}"
        raise refusal(ValueError, f"{wrong}, {advice}.", name=name)
    return SCHEDULES[plain]


class SchedulerType(str, enum.Enum):
    """The schedules of this package: names for `get_scheduler` and a Trainer's ``--lr_scheduler_type``.

    A schedule that you add with `schedules.schedule` is not a member. Give its name as a string.

    Examples:
        >>> from paddle_ldopt.schedules import SchedulerType
        >>> SchedulerType("cosine") is SchedulerType.COSINE
        True
    """

    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    LINEAR = "linear"
    POLYNOMIAL = "polynomial"
    INVERSE_SQRT = "inverse_sqrt"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"
    COOL_DOWN = "cool_down"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"

    @classmethod
    def _missing_(cls, value: object) -> Optional["SchedulerType"]:
        name = kind_of(value).name
        return next((member for member in cls if member.value == name), None)


def get_scheduler(
    name: Union[str, SchedulerType],
    optimizer: "OptimizerOrRate",
    num_warmup_steps: Optional[int] = None,
    num_training_steps: Optional[int] = None,
    scheduler_specific_kwargs: Optional[dict[str, Any]] = None,
) -> LRScheduler:
    """Build a schedule by name. Each kind also has a function of its own, which documents the further arguments.

    Args:
        name: the kind.
        optimizer: the peak, or a Paddle optimizer, also wrapped. The schedule is attached to the optimizer; its peak is
            the current rate, or the peak of the present schedule if it is one of ours.
        num_warmup_steps: the rate is 0 at step 0 and first reaches the peak at this step.
        num_training_steps: at least 1; warns if it is below the warm-up. Kinds without it ignore it.
        scheduler_specific_kwargs: further options of the kind.

    Returns:
        A `CurveSchedule`, to step after each step of the optimizer, or a `MetricSchedule`.

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
    specific = [option for option in kind.options if option not in _GENERAL]
    for key, value in kwargs.items():
        if key not in specific:
            raise TypeError(
                f"{kind.function.__name__}() got an unexpected keyword argument {shown(key)} in "
                f"`scheduler_specific_kwargs`; it takes {', '.join(specific)}. Received: {key}={shown(value)}"
            )
    general = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    arguments = {key: value for key, value in general.items() if key in kind.options and value is not None} | kwargs
    for key, option in kind.options.items():
        if option.default is REQUIRED and arguments.get(key) is None:
            sentence = f"SchedulerType.{kind.name.upper()} requires `{key}`, please provide that argument."
            raise refusal(ValueError, sentence, **{key: None})
    return kind.function(optimizer, **arguments)
