"""Error messages, checks of arguments, and `Option`, the declaration of an option. No Paddle."""

import dataclasses
import difflib
import inspect
import math
import numbers
import re
import reprlib
from collections.abc import Collection, Iterable
from typing import Any, Callable, Optional, TypeVar

E = TypeVar("E", bound=Exception)
_MOST_SHOWN = 400  # characters of a value in a message


class _Short(reprlib.Repr):
    """The `repr` of a value; of an array, its shape; of a network, its class."""

    def __init__(self) -> None:
        super().__init__()
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 20
        self.maxstring = self.maxlong = self.maxother = _MOST_SHOWN

    def repr1(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", ()) if hasattr(x, "__array__") and not isinstance(x, type) else ()
        if math.prod(shape) > 8 or (level < self.maxlevel and len(shape) > 0):  # a list may have many
            return f"{type(x).__name__} of shape {list(shape)}"
        if hasattr(x, "named_parameters") and not isinstance(x, type):
            return f"<{type(x).__name__} object>"
        return super().repr1(x, level)


def shown(value: Any) -> str:
    """Return the `repr` of a value in bounded length."""
    try:
        text = _Short().repr(value)
    except Exception:  # raised by the object's own code
        text = f"<{type(value).__name__} object>"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def problem(sentence: str, text: Optional[str] = None, /, **received: Any) -> str:
    """Append "Received:" and the text, or each value with its name."""
    if text is None:
        text = ", ".join(f"{name}={shown(value)}" for name, value in received.items())
    return f"{sentence} Received: {text}"


def refusal(error: type[E], sentence: str, text: Optional[str] = None, /, **received: Any) -> E:
    return error(problem(sentence, text, **received))


def wrong_type(value: Any, name: str, expected: str) -> TypeError:
    return TypeError(f"`{name}` must be {expected}. Received: {name} of type {type(value).__name__}")


def first_few(items: Iterable[str], limit: int = 4) -> str:
    every = list(items)
    return ", ".join([*every[:limit], *([f"... {len(every) - limit} more"] if len(every) > limit else [])])


def quoted(names: Iterable[Any], limit: int = 3) -> str:
    """Return the `first_few` names in quotes; "nothing" without names."""
    return first_few(map(repr, names), limit) or "nothing"


# names of other libraries
_MEANT = {"lr": "learning_rate", "batch_size": "per_device_train_batch_size", "epochs": "num_train_epochs"}
_MEANT.update(dict.fromkeys(("decay", "lr_decay", "layer_decay", "llrd"), "layerwise_lr_decay"))


def nearest(name: Any, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; the nearest is 'x'" of `names`, or ""."""
    known = {known.lower().lstrip("-"): known for known in names}
    meant = name[:100].lower().lstrip("-") if isinstance(name, str) else ""
    found = [near for near in known if meant and near in (_MEANT.get(meant), meant.replace("-", "_"))]
    found = found or [near for near in known if meant and near.startswith(meant)]
    found = found or difflib.get_close_matches(meant, known, 1, cutoff)
    return "".join(f"; the nearest is {known[near]!r}" for near in found[:1])


def unknown(
    noun: str, key: Any, value: Any, known: Iterable[str], received: str = "", limit: int = 20, advice: str = ""
) -> str:
    """Return the message for an unknown `key`; `received` replaces "key=value"."""
    names, name = list(known), shown(key)
    valid = f" Valid: {', '.join(names)}." if len(names) <= limit else ""
    plain = key if isinstance(key, str) and len(key) <= len(name) else name
    near, received = nearest(key, names, 0.4), received or f"{plain}={shown(value)}"
    return f"{name} is not a known {noun}{near}.{valid}{advice and ' ' + advice} Received: {received}"


# ---- checks

REQUIRED = inspect.Parameter.empty  # the default of a required argument
_MOST_STEPS = 2**53  # floats count exactly up to here


def as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def plain_number(value: Any) -> Any:
    """Convert an array or Tensor of one element; return other values unchanged."""
    single = hasattr(value, "__array__") and getattr(value, "size", None) == 1
    return value.item() if single else value


def checked_bool(value: Any, argument: str) -> bool:
    if not isinstance(value, bool):
        raise refusal(TypeError, f"`{argument}` must be a bool.", **{argument: value})
    return value


def checked_number(
    value: Any, argument: str, low: Any = 0.0, high: Any = math.inf, ends: str = "[]", expected: str = "a number"
) -> float:
    """Return a finite number from `low` to `high` as a float; a square bracket in `ends` includes the limit."""
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise refusal(TypeError, f"`{argument}` must be {expected}.", **{argument: value})
    number = as_float(number)
    above = number >= low if ends[0] == "[" else number > low
    below = number <= high if ends[1] == "]" else number < high
    if not (above and below and math.isfinite(number)):
        raise refusal(ValueError, f"`{argument}` must be in {_span(low, high, ends)}.", **{argument: value})
    return number


def _span(low: float, high: float, ends: str) -> str:
    left, right = ends[0] if math.isfinite(low) else "(", ends[1] if math.isfinite(high) else ")"
    return f"{left}{low:g}, {high:g}{right}"


def checked_int(value: Any, argument: str, least: int = 0) -> int:
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise refusal(TypeError, f"`{argument}` must be an integer.", **{argument: value})
    whole = int(number)
    if whole < least:
        raise refusal(ValueError, f"`{argument}` must be at least {least}.", **{argument: whole})
    if whole > _MOST_STEPS:
        raise ValueError(f"`{argument}` must be at most {_MOST_STEPS}. Received: an int of {whole.bit_length()} bits")
    return whole


def checked_callable(value: Any, argument: str, expected: str = "callable") -> None:
    if value is not None and not callable(value):
        raise refusal(TypeError, f"`{argument}` must be {expected}.", **{argument: value})


def checked_patterns(value: Any, argument: str, values: str) -> dict[str, Any]:
    """Return a dict from regular expressions to `values` (in words)."""
    if not isinstance(value, dict):
        wrong = f"`{argument}` must be a dict from regular expressions to {values}."
        raise refusal(TypeError, wrong, **{argument: value})
    for pattern in value:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            wrong = f"The keys of `{argument}` must be regular expressions ({error})."
            raise refusal(ValueError, wrong, pattern=pattern) from error
    return value


def matches(patterns: Iterable[str], names: Iterable[str], argument: str) -> dict[str, list[str]]:
    """Return pattern -> the structured names that it matches; raise if it matches none."""
    names = list(names)
    found = {pattern: [*filter(re.compile(pattern).search, names)] for pattern in patterns}
    for pattern in [pattern for pattern, matched in found.items() if not matched]:
        first = {part: name for name in reversed(names) for part in name.split(".")}
        words = re.findall(r"[^\W\d]\w+", re.sub(r"\\[a-zA-Z]", " ", pattern))
        near = dict.fromkeys(first[part] for word in words for part in difflib.get_close_matches(word, first, 3, 0.6))
        hint = f"similar names are {quoted([*near][:3])}" if near else f"the names are [{first_few(names, 8)}]"
        raise refusal(ValueError, f"A pattern of `{argument}` matches no parameter; {hint}.", pattern=pattern)
    return found


def checked_choice(value: str, argument: str, choices: Collection[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise refusal(ValueError, f"`{argument}` must be one of {', '.join(map(repr, choices))}.", **{argument: value})
    return value


def one_of_two(argument: str, value: Any, alias: str, other: Any, default: Any = None) -> Any:
    """Return the value of an argument with two names."""
    if other is None:
        return value
    number = plain_number(value)
    if number is not default and not (isinstance(number, numbers.Real) and number == default):
        wrong = f"`{alias}` is another name for `{argument}`: give one of them."
        raise refusal(ValueError, wrong, **{argument: value, alias: other})
    return other


def checked_state(state_dict: Any) -> dict[str, Any]:
    if not isinstance(state_dict, dict):
        raise wrong_type(state_dict, "state_dict", "a dict")
    return state_dict


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of an optimizer or schedule, read by checks, settings and the docs' tables."""

    default: Any = REQUIRED  # or in the signature of the constructor or function
    doc: str = ""
    low: float = 0.0  # the range of a number
    high: float = math.inf
    ends: str = "[]"  # brackets of the range; a square one includes the limit
    optional: bool = False  # None is allowed
    group: bool = False  # a parameter group may override it
    called: str = ""  # in the constructor, if other than in groups
    setting: str = ""  # in `create` and `LdoptConfig`, if other than the class's
    read: Optional[Callable[[Any, str], Any]] = None  # (value, name) -> the number to check, such as 0 for None
    check: Optional[Callable[[Any, str], Any]] = None  # (value, name) -> the checked value; None: a number in the range
    values: str = ""  # in words, for the docs
    choices: Collection[str] = ()
    argument: bool = True  # False if only a group can have it
    in_rule: bool = True  # False if the update rule does not take it

    def checked(self, value: Any, name: str) -> Any:
        name = self.called or name
        if value is None and self.optional:
            return None
        if self.choices:
            return checked_choice(value, name, self.choices)
        if self.check is not None:
            return self.check(value, name)
        read = value if self.read is None else self.read(value, name)
        return checked_number(read, name, self.low, self.high, self.ends)

    @property
    def span(self) -> str:
        """The permitted values as short text: "[0, 1)", "a bool"."""
        text = self.values or " or ".join(self.choices)
        text = text or ("a bool" if self.check is checked_bool else _span(self.low, self.high, self.ends))
        return f"{text} or None" if self.optional else text
