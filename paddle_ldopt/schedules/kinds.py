"""The table of all kinds of schedules; the decorator `schedule` adds a function.

`get_scheduler`, `LdoptConfig`, the Trainer and the command line look a name up in this table, and read the options from
the signature. Only the enum `SchedulerType` is fixed: it has the kinds of this package.
"""

import dataclasses
from collections.abc import Iterator
from typing import Callable, Optional, TypeVar

from paddle.optimizer.lr import LRScheduler

from .._checks import REQUIRED, Option
from .._messages import nearest, refusal, shown
from .option_types import checks_arguments

_Function = TypeVar("_Function", bound=Callable[..., LRScheduler])
_GENERAL = ("num_warmup_steps", "num_training_steps")  # arguments of `get_scheduler`, for every kind


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of schedule: the function that builds it, and the options of this function."""

    name: str
    function: Callable[..., LRScheduler]
    options: dict[str, Option]
    on_metric: bool  # whether `step` takes a metric
    member: str  # its name in `SchedulerType`

    @property
    def specific(self) -> dict[str, Option]:
        """The options allowed in `scheduler_specific_kwargs`."""
        return {key: option for key, option in self.options.items() if key not in _GENERAL}

    @property
    def required(self) -> list[str]:
        """The options without a default."""
        return [key for key, option in self.options.items() if option.default is REQUIRED]

    def idle_warmup(self, **warmup: float) -> Iterator[str]:
        """Yield an error message if a warm-up is given to a kind without one."""
        if any(warmup.values()) and "num_warmup_steps" not in self.options:
            other = f"{self.name}_with_warmup"
            advice = f": use {shown(other)}" if other in SCHEDULES else "; it would be ignored"
            yield str(refusal(ValueError, f"The schedule {shown(self.name)} has no warm-up{advice}.", **warmup))

    def unknown(self, key: str, value: object) -> str:
        """Return the error message for an unknown keyword."""
        return (
            f"{self.function.__name__}() got an unexpected keyword argument {shown(key)} in "
            f"`scheduler_specific_kwargs`; it takes {', '.join(self.specific)}. Received: {key}={shown(value)}"
        )

    def missing(self, key: str) -> str:
        """Return the error message for a missing option."""
        name = f"SchedulerType.{self.member}"
        return f"{name} requires `{key}`, please provide that argument. Received: {key}=None"


SCHEDULES: dict[str, Kind] = {}


def schedule(
    name: str, on_metric: Optional[type] = None, member: Optional[str] = None
) -> Callable[[_Function], _Function]:
    """Return a decorator that adds a function to the table under `name`, and has its arguments checked.

    `on_metric` is the class of a schedule that follows a metric; the function passes its keywords to this class.
    `member` is the name in `SchedulerType`, by default `name` in capitals.
    """

    def add(function: _Function) -> _Function:
        checked = checks_arguments(function)
        options = vars(on_metric.__init__ if on_metric else checked)["options"]  # type: ignore[misc]
        specific = {key: option for key, option in options.items() if key != "learning_rate"}
        SCHEDULES[name] = Kind(name, checked, specific, on_metric is not None, member or name.upper())
        return checked

    return add


def metric_kinds() -> list[str]:
    """Return the names of the schedules that follow a metric."""
    return [name for name, kind in SCHEDULES.items() if kind.on_metric]


def kind_of(name: object) -> Kind:
    """Return the kind for a name, or for an enum member, ours or another library's, with a name as its value."""
    plain = getattr(name, "value", name)
    plain = plain.replace("-", "_") if isinstance(plain, str) else None
    if plain not in SCHEDULES:
        wrong = f"{shown(name)} is not a valid SchedulerType"
        advice = f"please select one of {list(SCHEDULES)}{nearest(plain, SCHEDULES)}"
        raise refusal(ValueError, f"{wrong}, {advice}.", name=name)
    return SCHEDULES[plain]
