"""What a plain argument has to be: checks that name it, end with what was received, and return it.

A leaf of the import graph, without Paddle. Checks that know more than a type and a range stand where they are used.
"""

import math
import numbers
from collections.abc import Collection
from typing import Any

__all__ = ["as_float", "checked_bool", "checked_choice", "checked_number", "checked_state", "checked_steps"]

_MOST_STEPS = 2**53  # beyond it a float does not count, and beyond 2^63 nothing else does


def as_float(number: Any) -> float:
    """Return a number as a float, inf if it is an int beyond all of them."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def checked_bool(value: Any, argument: str) -> bool:
    """Return `value` if it is True or False, raise TypeError otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f"`{argument}` must be a bool. Received: {argument}={value!r}")
    return value


def checked_number(value: Any, argument: str, low: Any = 0.0, high: Any = math.inf, ends: str = "[]") -> float:
    """Return `value` as a float from `low` to `high`, each of which belongs to the range if its bracket is square."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{argument}` must be a number. Received: {argument}={value!r}")
    value = as_float(value)
    above = value >= low if ends[0] == "[" else value > low
    below = value <= high if ends[1] == "]" else value < high
    if not (above and below and math.isfinite(value)):
        raise ValueError(f"`{argument}` must be in {ends[0]}{low:g}, {high:g}{ends[1]}. Received: {argument}={value!r}")
    return value


def checked_steps(value: Any, argument: str, least: int = 0) -> int:
    """Return `value` as an int if it is a number of steps from `least` on, raise otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"`{argument}` must be a whole number of steps, no ratio. Received: {argument}={value!r}")
    steps = int(value)
    if steps < least:
        raise ValueError(f"`{argument}` must be at least {least}. Received: {argument}={steps}")
    if steps > _MOST_STEPS:
        raise ValueError(f"`{argument}` must be at most {_MOST_STEPS}. Received: an int of {steps.bit_length()} bits")
    return steps


def checked_choice(value: str, argument: str, choices: Collection[str]) -> str:
    """Return `value` if it is one of `choices`, raise otherwise."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{argument}` must be one of {', '.join(map(repr, choices))}. Received: {argument}={value!r}")
    return value


def checked_state(state_dict: Any) -> dict[str, Any]:
    """Return `state_dict` if it is a dict, raise TypeError otherwise."""
    if not isinstance(state_dict, dict):
        raise TypeError(f"`state_dict` must be a dict. Received: state_dict of type {type(state_dict).__name__}")
    return state_dict
