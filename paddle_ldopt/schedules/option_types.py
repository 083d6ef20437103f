"""Types for the options of schedules, each with its range, and checks by a function's signature.

Limits that depend on the peak or on another option are checked where the schedule is built.
"""

import dataclasses
import functools
import inspect
import typing
import warnings
from typing import Annotated, Any, Callable, Optional, TypeVar

from .._checks import Option, checked_bool, checked_choice, checked_number, checked_steps
from .._messages import refusal

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _steps(least: int) -> Option:
    check = functools.partial(checked_steps, least=least)
    return Option(check=check, values=f"an int from {least}")


def choice(*choices: str) -> Option:
    """Return the declaration of one of some words."""
    return Option(check=functools.partial(checked_choice, choices=choices), values=" or ".join(choices))


Steps = Annotated[int, _steps(0)]
StepsFrom1 = Annotated[int, _steps(1)]
LastStep = Annotated[int, _steps(-1)]  # the last step taken; -1 for none
NonNegative = Annotated[float, Option()]
Positive = Annotated[float, Option(ends="(]")]
Fraction = Annotated[float, Option(high=1.0)]
Factor = Annotated[float, Option(high=1.0, ends="()")]  # the factor of a reduction
Bool = Annotated[bool, Option(check=checked_bool)]
Mode = Annotated[str, choice("min", "max")]
ThresholdMode = Annotated[str, choice("rel", "abs")]


def _options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """Return the options that a function's signature declares by the types above, with its defaults."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    declared = [(name, parameter.default, _declared(hints.get(name))) for name, parameter in parameters.items()]
    return {
        name: dataclasses.replace(option, default=default, optional=default is None)
        for name, default, option in declared
        if option is not None
    }


def _declared(hint: Any) -> Optional[Option]:
    """Return the option in a type such as ``Optional[Steps]``."""
    if isinstance(hint, Option):
        return hint
    return next(filter(None, map(_declared, typing.get_args(hint))), None)


def checks_arguments(function: _Function) -> _Function:
    """Decorate a function: its arguments are checked and converted, such as an int to a float, before it is called.

    The result has the `options` that the signature declares. `help` shows plain types.
    """
    options, signature = _options_of(function), inspect.signature(function)
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


def needed_steps(num_training_steps: Optional[int], phase: str) -> int:
    """Return `num_training_steps`; raise if neither this nor the option of a `phase` is given."""
    if num_training_steps is None:
        needed = f"Either num_training_steps or {phase} must be specified."
        raise refusal(ValueError, needed, num_training_steps=None, **{phase: None})
    return num_training_steps


def steps_left(num_training_steps: int, **phases: int) -> int:
    """Return the number of training steps left after `phases`; warn if they are too long and this is negative."""
    steps = num_training_steps - sum(phases.values())
    if steps < 0:
        longer = "The schedule is longer than the training: shorten its phases, or train longer."
        warnings.warn(refusal(UserWarning, longer, **phases, num_training_steps=num_training_steps), stacklevel=4)
    return steps


def checked_fraction(name: str, value: float, peak: float) -> float:
    """Return a rate from 0 to the peak as a fraction of the peak."""
    return checked_number(value, name, 0.0, peak) / peak
