"""Parts of error messages: a value in bounded length, the nearest name, several problems at once. No Paddle."""

import collections
import dataclasses
import difflib
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional, TypeVar

E = TypeVar("E", bound=Exception)

_MOST_SHOWN = 400  # characters of a value in a message
_DEEPEST_SHOWN = 20
_MOST_PROBLEMS = 40  # problems in a message
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    collections.deque: ("deque([", "])"),
}


def shown(value: Any) -> str:
    """Return the `repr` of a value, cut to a bounded length without building the rest; of a large array, the shape."""
    text = ""
    try:
        for part in _parts(value, 0):
            text += part
            if len(text) > _MOST_SHOWN:
                return f"{text[:_MOST_SHOWN]}..."
    except Exception:  # raised by the object's own code
        return f"{text}<{type(value).__name__} object>"
    return text


def problem(sentence: str, /, **received: Any) -> str:
    """Return the sentence followed by "Received:" and each value with its name."""
    return f"{sentence} Received: {', '.join(f'{name}={shown(value)}' for name, value in received.items())}"


def refusal(error: type[E], sentence: str, /, **received: Any) -> E:
    """Return the exception whose message is a `problem`."""
    return error(problem(sentence, **received))


def wrong_type(value: Any, name: str, expected: str) -> TypeError:
    """Return the TypeError for an argument of the wrong type, with "Received: model of type int"."""
    return TypeError(f"`{name}` must be {expected}. Received: {name} of type {type(value).__name__}")


def _parts(value: Any, depth: int) -> Iterator[str]:
    """Yield the `repr` of a value in parts, so that the caller can stop."""
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
    """Return (left bracket, labels and items, right bracket) of a container, None for other values."""
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


def first_few(items: Iterable[str], limit: int = 4, separator: str = ", ") -> str:
    """Return the first of many items, and the number of the rest."""
    every = list(items)
    return separator.join([*every[:limit], *([f"... {len(every) - limit} more"] if len(every) > limit else [])])


def quoted(names: Iterable[Any], limit: int = 3) -> str:
    """Return the first of many names in quotes, and the number of the rest; "nothing" without names."""
    return first_few(map(repr, names), limit) or "nothing"


def nearest(name: Any, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; the nearest is 'x'" for the most similar of `names`, ignoring case; "" without a similar name."""
    known = {known.lower(): known for known in names}
    found = difflib.get_close_matches(name[:100].lower(), known, 1, cutoff) if isinstance(name, str) else []
    return "".join(f"; the nearest is {known[near]!r}" for near in found)


def unknown(
    noun: str, key: Any, value: Any, known: Iterable[str], received: str = "", limit: int = 20, advice: str = ""
) -> str:
    """Return the message for an unknown `key`, with the nearest known name; `received` replaces "key=value"."""
    names, name = list(known), shown(key)
    valid = f" Valid: {', '.join(names)}." if len(names) <= limit else ""
    plain = key if isinstance(key, str) and len(key) <= len(name) else name
    near, received = nearest(key, names, 0.4), received or f"{plain}={shown(value)}"
    return f"{name} is not a known {noun}{near}.{valid}{advice and ' ' + advice} Received: {received}"


def tell_all(problems: Iterable[str]) -> None:
    """Raise one ValueError with all problems, at most the first 40; return without problems."""
    found = list(dict.fromkeys(itertools.islice(problems, _MOST_PROBLEMS)))
    if len(found) == 1:
        raise ValueError(found[0])
    if found:
        lines = "".join(f"\n  {i}. {problem}" for i, problem in enumerate(found, 1))
        more = " or more" if len(found) == _MOST_PROBLEMS else ""
        raise ValueError(f"{len(found)}{more} settings are wrong:{lines}")


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return "decay was 0.8 and is 0.9 now" for each entry of a saved record that differs now; of dicts, the part."""
    sentences = []
    for name in (name for name in now if was[name] != now[name]):
        old, new = was[name], now[name]
        if isinstance(old, dict) and isinstance(new, dict):
            keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
            old, new = ({key: one[key] for key in keys if key in one} for one in (old, new))
        sentences.append(f"{name} was {shown(old)} and is {shown(new)} now")
    return sentences
