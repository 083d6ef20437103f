"""Types of options, base classes, the table of schedules, and `get_scheduler`.

A kind's options are its function's signature; the function checks limits that depend on other values.
"""

import dataclasses
import enum
import functools
import inspect
import numbers
import typing
from typing import Annotated, Any, Callable, Optional, TypeVar, Union

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._checks import (
    REQUIRED,
    Option,
    checked_bool,
    checked_int,
    checked_number,
    checked_state,
    nearest,
    plain_number,
    refusal,
    shown,
)
from .._compat import unwrap

_Function = TypeVar("_Function", bound=Callable[..., Any])
_AnySchedule = TypeVar("_AnySchedule", bound="Schedule")
OptimizerOrRate = Union[Optimizer, float]  # an optimizer may be in wrappers of `fleet` and `amp`


# ---- types of options


Steps = Annotated[int, Option(check=checked_int, values="an int from 0")]
StepsFrom1 = Annotated[int, Option(check=functools.partial(checked_int, least=1), values="an int from 1")]
# the last step taken
LastStep = Annotated[int, Option(check=functools.partial(checked_int, least=-1), values="an int from -1")]
NonNegative = Annotated[float, Option()]
Positive = Annotated[float, Option(ends="(]")]
Fraction = Annotated[float, Option(high=1.0)]
Bool = Annotated[bool, Option(check=checked_bool)]


def _declared(hint: Any) -> Optional[Option]:
    if isinstance(hint, Option):
        return hint
    return next(filter(None, map(_declared, typing.get_args(hint))), None)


def checks_arguments(function: _Function) -> _Function:
    """Check and convert a function's arguments; the result has `options`."""
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


# ---- base classes


class Schedule(LRScheduler):
    """Base of our schedules. `base_lr` is the initial rate, of a `CurveSchedule` the peak."""

    base_lr: float
    last_lr: float
    last_epoch: int

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; one that lacks a number raises and changes nothing."""
        checked_state(state_dict)
        self.state_keys()
        wrong = {key: state_dict.get(key) for key in self.keys if not isinstance(state_dict.get(key), numbers.Real)}
        if wrong:
            expected = f"the state of a {type(self).__name__}, with a number for each of {self.keys}"
            raise refusal(ValueError, f"`state_dict` must be {expected}.", **wrong)
        super().set_state_dict(state_dict)

    def set_dict(self, state_dict: dict[str, Any]) -> None:
        self.set_state_dict(state_dict)

    load_state_dict = set_dict

    def get_last_lr(self) -> list[float]:
        return [self.last_lr]


def peak_of(schedule: LRScheduler) -> Optional[float]:
    """Return None for another package's schedule."""
    return schedule.base_lr if isinstance(schedule, Schedule) else None


def checked_peak(optimizer: OptimizerOrRate, argument: str = "optimizer") -> float:
    """Return a rate, the optimizer's rate, or the peak of its schedule if that is ours."""
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        if getattr(optimizer, "sets_own_lr", False) and getattr(optimizer, "lr_function", None) is None:
            wrong = "`relative_step` sets the rate: build the optimizer with relative_step=False and a learning rate."
            raise refusal(ValueError, wrong, optimizer=type(optimizer).__name__, relative_step=True)
        attached = optimizer._learning_rate
        peak = attached.base_lr if isinstance(attached, Schedule) else float(optimizer.get_lr())
        return checked_number(peak, "learning_rate", ends="(]")
    expected = "a Paddle optimizer or a learning rate"
    if isinstance(optimizer, LRScheduler):
        expected += ". A schedule is built from a number, not from another schedule"
    if isinstance(plain_number(optimizer), (int, float)):
        argument = "learning_rate"
    return checked_number(optimizer, argument, ends="(]", expected=expected)


def attach(schedule: _AnySchedule, optimizer: OptimizerOrRate) -> _AnySchedule:
    optimizer = unwrap(optimizer)
    if isinstance(optimizer, Optimizer):
        optimizer.set_lr_scheduler(schedule)
    return schedule


@dataclasses.dataclass(frozen=True)
class Curve:
    """The base of all curves: a linear rise to 1 at step `warmup`, then 1."""

    warmup: int = 0

    def __call__(self, step: int) -> float:
        return self._before(step) if step < self.warmup else self._after(step - self.warmup)

    def _before(self, step: int) -> float:
        return step / self.warmup

    def _after(self, k: int) -> float:
        """Return the factor `k` steps after the warm-up."""
        return 1.0


class CurveSchedule(Schedule):
    r"""A schedule whose rate is its peak times a curve (step -> factor).

    .. math::
        \eta_t = \eta \, c(t), \qquad t = \text{last\_epoch}

    A resumed run has the rates of an uninterrupted run, bit for bit.

    Args:
        learning_rate: the peak, above 0.
        curve: c, step from 0 -> factor in [0, 1]. A schedule with a lambda cannot be pickled.
        last_epoch: the last step taken, -1 for none.
        verbose: print every change.

    Examples:
        >>> schedule = CurveSchedule(0.1, Curve(warmup=2))
        >>> schedule.step(1)
        >>> schedule()
        0.05
    """

    @checks_arguments
    def __init__(
        self, learning_rate: Positive, curve: Callable[[int], float], last_epoch: LastStep = -1, verbose: Bool = False
    ) -> None:
        if not callable(curve):
            raise refusal(TypeError, "`curve` must be callable.", curve=curve)
        self.curve = curve
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * self.curve(self.last_epoch)

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the step, also another curve's; the rate is this curve's."""
        super().set_state_dict(state_dict)
        self.last_lr = self.get_lr()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_lr!r}, {self.curve!r}, last_epoch={self.last_epoch})"


def scheduled(optimizer: OptimizerOrRate, curve: Callable[[int], float], last_epoch: int) -> CurveSchedule:
    """Build a schedule with the peak of `optimizer`; attach it to an optimizer."""
    return attach(CurveSchedule(checked_peak(optimizer), curve, last_epoch), optimizer)


# ---- the table of kinds

_GENERAL = ("num_warmup_steps", "num_training_steps")  # of `get_scheduler`, for every kind


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of schedule: the function that builds it, and its options."""

    name: str
    function: Callable[..., LRScheduler]
    options: dict[str, Option]


SCHEDULES: dict[str, Kind] = {}
ON_METRIC: set[str] = set()  # the kinds whose `step` takes a metric


def schedule(name: str, on_metric: Optional[type] = None) -> Callable[[_Function], _Function]:
    """Add a function to the table, with checks of its arguments.

    `on_metric` is the class of a schedule that follows a metric; it gets the function's keywords.
    """

    def add(function: _Function) -> _Function:
        checked = checks_arguments(function)
        options = vars(on_metric.__init__ if on_metric else checked)["options"]  # type: ignore[misc]
        SCHEDULES[name] = Kind(name, checked, options)
        ON_METRIC.update([name] if on_metric else [])
        return checked

    return add


def kind_of(name: object) -> Kind:
    """Find a kind by name or enum member, also another library's."""
    plain = getattr(name, "value", name)
    plain = plain.replace("-", "_") if isinstance(plain, str) else None
    if plain not in SCHEDULES:
        wrong = f"{shown(name)} is not a valid SchedulerType"
        advice = f"please select one of {list(SCHEDULES)}{nearest(plain, SCHEDULES)}"
        raise refusal(ValueError, f"{wrong}, {advice}.", name=name)
    return SCHEDULES[plain]


class SchedulerType(str, enum.Enum):
    """Names for `get_scheduler` and a Trainer's ``--lr_scheduler_type``.

    Schedules added with `schedules.schedule` are not members: give their names as strings.

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
    optimizer: OptimizerOrRate,
    num_warmup_steps: Optional[int] = None,
    num_training_steps: Optional[int] = None,
    scheduler_specific_kwargs: Optional[dict[str, Any]] = None,
) -> LRScheduler:
    """Build a schedule by name. The function of each kind documents its further arguments.

    Args:
        name: the kind.
        optimizer: the peak, or a Paddle optimizer, also wrapped, to attach the schedule to. The peak is then its rate,
            or its schedule's peak if that is ours.
        num_warmup_steps: the rate rises to the peak until this step.
        num_training_steps: at least 1; warns if it is below the warm-up.
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
            wrong = f"{kind.function.__name__}() got an unexpected keyword argument {shown(key)}"  # as in transformers
            raise TypeError(f"{wrong}: it takes {', '.join(specific)}. Received: {key}={shown(value)}")
    general = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    arguments = {key: value for key, value in general.items() if key in kind.options and value is not None} | kwargs
    for key, option in kind.options.items():
        if option.default is REQUIRED and arguments.get(key) is None:
            sentence = f"SchedulerType.{kind.name.upper()} requires `{key}`, please provide that argument."
            raise refusal(ValueError, sentence, **{key: None})
    return kind.function(optimizer, **arguments)
