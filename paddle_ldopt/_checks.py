"""Checks of arguments: each returns its value or raises with the argument's name. `Option` declares an argument once.

A leaf of the import graph, without Paddle. Checks that know more than a type and a range stand where they are used.
"""

import dataclasses
import math
import numbers
from collections.abc import Collection, Iterator
from typing import Any, Callable, Optional

from ._messages import refusal, wrong_type

__all__ = [
    "Option",
    "as_float",
    "checked_bool",
    "checked_choice",
    "checked_int",
    "checked_number",
    "checked_state",
    "checked_steps",
    "one_of_two",
    "plain_number",
    "refused",
]

_MOST_STEPS = 2**53  # beyond it a float does not count, and beyond 2^63 nothing else does


def as_float(number: Any) -> float:
    """Return a number as a float, inf if it is an int beyond all of them."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def plain_number(value: Any) -> Any:
    """Return the Python number in a NumPy number or in an array or Tensor of one element, anything else as it is."""
    single = hasattr(value, "__array__") and getattr(value, "size", None) == 1
    return value.item() if single else value


def checked_bool(value: Any, argument: str) -> bool:
    """Return `value` if it is True or False, raise TypeError otherwise."""
    if not isinstance(value, bool):
        raise refusal(TypeError, f"`{argument}` must be a bool.", **{argument: value})
    return value


def checked_number(
    value: Any, argument: str, low: Any = 0.0, high: Any = math.inf, ends: str = "[]", kind: str = "a number"
) -> float:
    """Return a finite number between `low` and `high` as a float; a square bracket in `ends` includes the limit.

    A NumPy number and an array or Tensor of one element are numbers; a bool is none. `kind` follows "must be" in the
    TypeError.
    """
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise refusal(TypeError, f"`{argument}` must be {kind}.", **{argument: value})
    number = as_float(number)
    above = number >= low if ends[0] == "[" else number > low
    below = number <= high if ends[1] == "]" else number < high
    if not (above and below and math.isfinite(number)):
        raise refusal(ValueError, f"`{argument}` must be in {_span(low, high, ends)}.", **{argument: value})
    return number


def _span(low: float, high: float, ends: str) -> str:
    """Return a range in brackets; infinity is never included."""
    left, right = ends[0] if math.isfinite(low) else "(", ends[1] if math.isfinite(high) else ")"
    return f"{left}{low:g}, {high:g}{right}"


def checked_int(value: Any, argument: str, least: int = 0, kind: str = "an integer") -> int:
    """Return `value` as an int if it is a whole number from `least` on, raise otherwise; a bool is none."""
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise refusal(TypeError, f"`{argument}` must be {kind}.", **{argument: value})
    whole = int(number)
    if whole < least:
        raise refusal(ValueError, f"`{argument}` must be at least {least}.", **{argument: whole})
    if whole > _MOST_STEPS:
        raise ValueError(f"`{argument}` must be at most {_MOST_STEPS}. Received: an int of {whole.bit_length()} bits")
    return whole


def checked_steps(value: Any, argument: str, least: int = 0) -> int:
    """Return `value` as an int if it is a number of steps from `least` on, raise otherwise."""
    return checked_int(value, argument, least, "a whole number of steps, no ratio")


def checked_choice(value: str, argument: str, choices: Collection[str]) -> str:
    """Return `value` if it is one of `choices`, raise otherwise."""
    if not isinstance(value, str) or value not in choices:
        raise refusal(ValueError, f"`{argument}` must be one of {', '.join(map(repr, choices))}.", **{argument: value})
    return value


def one_of_two(argument: str, value: Any, alias: str, other: Any, default: Any = None) -> Any:
    """Return the value of an argument that has two names, raise ValueError if both were given."""
    if other is None:
        return value
    number = plain_number(value)
    if number is not default and not (isinstance(number, numbers.Real) and number == default):
        twice = f"`{alias}` is another name for `{argument}`: give one of them."
        raise refusal(ValueError, twice, **{argument: value, alias: other})
    return other


def checked_state(state_dict: Any) -> dict[str, Any]:
    """Return `state_dict` if it is a dict, raise TypeError otherwise."""
    if not isinstance(state_dict, dict):
        raise wrong_type(state_dict, "state_dict", "a dict")
    return state_dict


def refused(given: dict[str, tuple[Callable[[Any, str], Any], Any]]) -> Iterator[str]:
    """Yield the message of each check that refuses its value; `given` is name -> (check, value)."""
    for name, (check, value) in given.items():
        try:
            check(value, name)
        except (TypeError, ValueError) as error:
            yield str(error)


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of an optimizer or a schedule, declared once: checks, settings and tables of the docs read it here."""

    default: Any
    doc: str  # one line on it
    low: float = 0.0  # of a number: the ends of its range
    high: float = math.inf
    ends: str = "[]"  # the brackets; a square one includes the limit
    optional: bool = False  # None is allowed
    group: bool = False  # a parameter group may override it
    called: str = ""  # what the constructor calls it, if groups call it otherwise
    tensor: bool = False  # a Tensor of one element stays one, and a variable of a static graph is not checked
    read: Optional[Callable[[Any, str], Any]] = None  # (value, name) -> the number to check, such as 0 for None
    check: Optional[Callable[[Any, str], Any]] = None  # (value, name) -> the checked value; None: a number in the range
    kind: str = ""  # its values in words, for the docs, if it has a `check` other than `checked_bool`
    argument: bool = True  # the constructor takes it; False if only a group can have it

    def checked(self, value: Any, name: str) -> Any:
        """Return the value as it is kept, such as a float of an int; raise TypeError or ValueError if it cannot be."""
        name = self.called or name
        if value is None and self.optional:
            return None
        if self.check is not None:
            return self.check(value, name)
        if self.tensor and hasattr(value, "stop_gradient") and not hasattr(value, "__array__"):
            return value
        read = value if self.read is None else self.read(value, name)
        number = checked_number(read, name, self.low, self.high, self.ends)
        return value if self.tensor and hasattr(value, "stop_gradient") else number

    @property
    def span(self) -> str:
        """Its values in a few characters: "[0, 1)", "a bool"."""
        text = self.kind or ("a bool" if self.check is checked_bool else _span(self.low, self.high, self.ends))
        return f"{text} or None" if self.optional else text
