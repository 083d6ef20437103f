"""The table of all kinds of schedules: `schedule` puts a function into it.

    @schedule("triangle")
    def get_triangle_schedule(optimizer: Any, num_warmup_steps: Steps, last_epoch: LastStep = -1) -> CurveSchedule:
        return scheduled(optimizer, curves.Linear(num_warmup_steps, num_warmup_steps), last_epoch)

Checks, `SchedulerType`, `LdoptConfig`, the Trainer, the command line and the docs read its signature.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Callable, Optional, TypeVar

from paddle.optimizer.lr import LRScheduler

from .._checks import Option
from .._messages import nearest, refusal, shown
from .options import checks_arguments

_Function = TypeVar("_Function", bound=Callable[..., LRScheduler])
_GENERAL = ("num_warmup_steps", "num_training_steps")  # every kind is given these


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of schedule: the function that builds it, and what this takes beside the optimizer."""

    name: str
    function: Callable[..., LRScheduler]
    options: dict[str, Option]
    on_metric: bool  # it is stepped with a metric
    member: str  # of `SchedulerType`

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
        name = f"SchedulerType.{self.member}"
        return f"{name} requires `{key}`, please provide that argument. Received: {key}=None"


SCHEDULES: dict[str, Kind] = {}


def schedule(
    name: str, on_metric: Optional[type] = None, member: Optional[str] = None
) -> Callable[[_Function], _Function]:
    """Return a decorator that has a function check its arguments, and puts it into the table under that name.

    A function that passes its keywords on to the class of a schedule that follows a metric names this class. `member`
    is the name in `SchedulerType`, by default `name` in capitals.
    """

    def add(function: _Function) -> _Function:
        checked = checks_arguments(function)
        options = vars(on_metric.__init__ if on_metric else checked)["options"]  # type: ignore[misc]
        specific = {key: option for key, option in options.items() if key != "learning_rate"}
        SCHEDULES[name] = Kind(name, checked, specific, on_metric is not None, member or name.upper())
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
