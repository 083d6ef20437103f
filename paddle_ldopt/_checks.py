"""What an argument has to be: checks that name it, end with what was received, and return it; options in one line.

A leaf of the import graph, without Paddle. Checks that know more than a type and a range stand where they are used.
"""

import collections
import dataclasses
import difflib
import functools
import math
import numbers
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Callable, Optional

__all__ = [
    "Option",
    "as_float",
    "checked_bool",
    "checked_choice",
    "checked_int",
    "checked_number",
    "checked_state",
    "checked_steps",
    "nearest",
    "one_of_two",
    "plain_number",
    "shown",
]

_MOST_STEPS = 2**53  # beyond it a float does not count, and beyond 2^63 nothing else does
_MOST_SHOWN = 400  # characters of a value in a message
_DEEPEST_SHOWN = 20
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    collections.deque: ("deque([", "])"),
}


def shown(value: Any) -> str:
    """Return the `repr` of a value for a message, cut to a bounded length; of a container only that part is built.

    Args:
        value: anything. An array or a Tensor of many elements is shown by its shape, an object whose `repr` fails by
            its type.
    """
    text = ""
    try:
        for part in _parts(value, 0):
            text += part
            if len(text) > _MOST_SHOWN:
                return f"{text[:_MOST_SHOWN]}..."
    except Exception:  # of the object's own code
        return f"{text}<{type(value).__name__} object>"
    return text


def _parts(value: Any, depth: int) -> Iterator[str]:
    """Yield the `repr` of a value piece by piece, so that the caller can stop."""
    opened = _opened(value)
    if opened is not None:
        left, items, right = opened
        yield left
        for i, (label, item) in enumerate(items if depth < _DEEPEST_SHOWN else [("", ...)]):
            yield f"{', ' if i else ''}{label}"
            yield from _parts(item, depth + 1)
        yield right
    elif isinstance(value, (str, bytes)):
        yield repr(value) if len(value) <= _MOST_SHOWN else repr(value[: _MOST_SHOWN + 1])
    elif isinstance(value, int) and value.bit_length() > 4 * _MOST_SHOWN:
        yield f"an int of {value.bit_length()} bits"
    elif hasattr(value, "__array__") and not isinstance(value, type) and math.prod(getattr(value, "shape", ())) > 8:
        yield f"{type(value).__name__} of shape {list(value.shape)}"
    else:
        yield repr(value)


def _opened(value: Any) -> Optional[tuple[str, Iterable[tuple[str, Any]], str]]:
    """Return (left bracket, labels and items, right bracket) of something that holds others, None of anything else."""
    if isinstance(value, Mapping):
        return "{", ((f"{shown(key)}: ", item) for key, item in value.items()), "}"
    if type(value) in _BRACKETS and (value or not isinstance(value, (set, frozenset))):
        left, right = _BRACKETS[type(value)]
        return left, (("", item) for item in value), f",{right}" if type(value) is tuple and len(value) == 1 else right
    if isinstance(value, functools.partial):
        given = [("", value.func), *(("", item) for item in value.args)]
        return "partial(", [*given, *((f"{key}=", item) for key, item in value.keywords.items())], ")"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f"{field.name}=", getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr)
        return f"{type(value).__name__}(", fields, ")"
    return None


def nearest(name: Any, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; the nearest is 'x'" with the most similar of `names`, ignoring case; "" if none is similar."""
    known = {known.lower(): known for known in names}
    found = difflib.get_close_matches(name[:100].lower(), known, 1, cutoff) if isinstance(name, str) else []
    return "".join(f"; the nearest is {known[near]!r}" for near in found)


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
        raise TypeError(f"`{argument}` must be a bool. Received: {argument}={shown(value)}")
    return value


def checked_number(
    value: Any, argument: str, low: Any = 0.0, high: Any = math.inf, ends: str = "[]", kind: str = "a number"
) -> float:
    """Return `value` as a float between `low` and `high`; a square bracket includes the limit.

    Args:
        value: an int, a float, a NumPy number, or an array or Tensor of one element; finite.
        argument (str): its name.
        low (float): the lower end of the range.
        high (float): the upper end.
        ends (str): the brackets.
        kind (str): the phrase after "must be" in the message of the TypeError.

    Raises:
        TypeError: the value is not a number; a bool is not.
        ValueError: the value is out of range or not finite.
    """
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise TypeError(f"`{argument}` must be {kind}. Received: {argument}={shown(value)}")
    number = as_float(number)
    above = number >= low if ends[0] == "[" else number > low
    below = number <= high if ends[1] == "]" else number < high
    if not (above and below and math.isfinite(number)):
        span = f"{ends[0]}{low:g}, {high:g}{ends[1] if math.isfinite(high) else ')'}"
        raise ValueError(f"`{argument}` must be in {span}. Received: {argument}={shown(value)}")
    return number


def checked_int(value: Any, argument: str, least: int = 0, kind: str = "an integer") -> int:
    """Return `value` as an int if it is a whole number from `least` on, raise otherwise; a bool is none."""
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise TypeError(f"`{argument}` must be {kind}. Received: {argument}={shown(value)}")
    whole = int(number)
    if whole < least:
        raise ValueError(f"`{argument}` must be at least {least}. Received: {argument}={shown(whole)}")
    if whole > _MOST_STEPS:
        raise ValueError(f"`{argument}` must be at most {_MOST_STEPS}. Received: an int of {whole.bit_length()} bits")
    return whole


def checked_steps(value: Any, argument: str, least: int = 0) -> int:
    """Return `value` as an int if it is a number of steps from `least` on, raise otherwise."""
    return checked_int(value, argument, least, "a whole number of steps, no ratio")


def checked_choice(value: str, argument: str, choices: Collection[str]) -> str:
    """Return `value` if it is one of `choices`, raise otherwise."""
    if not isinstance(value, str) or value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"`{argument}` must be one of {known}. Received: {argument}={shown(value)}")
    return value


def one_of_two(argument: str, value: Any, alias: str, other: Any, default: Any = None) -> Any:
    """Return the value of an argument that has two names, raise ValueError if both were given."""
    if other is None:
        return value
    number = plain_number(value)
    if number is not default and not (isinstance(number, numbers.Real) and number == default):
        raise ValueError(
            f"`{alias}` is another name for `{argument}`: give one of them. "
            f"Received: {argument}={shown(value)}, {alias}={shown(other)}"
        )
    return other


def checked_state(state_dict: Any) -> dict[str, Any]:
    """Return `state_dict` if it is a dict, raise TypeError otherwise."""
    if not isinstance(state_dict, dict):
        raise TypeError(f"`state_dict` must be a dict. Received: state_dict of type {type(state_dict).__name__}")
    return state_dict


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of an optimizer or a schedule, declared once: checks, settings and tables of the docs read it here.

    Args:
        default: its default.
        doc (str): one line on it.
        low (float): of a number: the lower end of its range.
        high (float): the upper end.
        ends (str): the brackets; a square one includes the limit.
        optional (bool): None is allowed.
        group (bool): a parameter group may override it.
        called (str): what the constructor calls it, if groups call it otherwise.
        tensor (bool): a Tensor of one element stays one, and a variable of a static graph is not checked.
        read (callable, optional): (value, name) -> the number to check, such as 0 for None.
        check (callable, optional): (value, name) -> the checked value, of what is no number in a range.
        kind (str): what it is, for the docs, if it is no number in a range.
        argument (bool): the constructor takes it; False if only a group can have it.
    """

    default: Any
    doc: str
    low: float = 0.0
    high: float = math.inf
    ends: str = "[]"
    optional: bool = False
    group: bool = False
    called: str = ""
    tensor: bool = False
    read: Optional[Callable[[Any, str], Any]] = None
    check: Optional[Callable[[Any, str], Any]] = None
    kind: str = ""
    argument: bool = True

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
        """What it may be, in a few characters: "[0, 1)", "a bool"."""
        right = self.ends[1] if math.isfinite(self.high) else ")"
        text = self.kind or f"{self.ends[0]}{self.low:g}, {self.high:g}{right}"
        return f"{text} or None" if self.optional else text
