"""Checks of the options of a `LayerDecay`: values of the wrong kind, and options without effect given the others."""

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from .._checks import Option, checked_number
from .._messages import refusal
from .patterns import checked_patterns

OF_THE_WHOLE_MODEL = ("towers", "multipliers", "preserve_mean", "steps")  # not options of a tower


def check_decay(value: Any, argument: str = "layerwise_decay") -> float:
    """Return `value` as a float if it is a decay in (0, 1], raise otherwise."""
    return checked_number(
        value, argument, 0.0, 1.0, "(]", expected="a number in (0, 1]; 1 is the same rate for all layers"
    )


def checked_multipliers(value: Any, name: str) -> dict[str, float]:
    """Return regular expression -> factor, each from 0 and other than 1."""
    factors = {}
    for pattern, factor in checked_patterns(value, name, "factors").items():
        factors[pattern] = checked_number(factor, f"{name}[{pattern!r}]")
        if factors[pattern] == 1.0:
            raise refusal(ValueError, f"A factor of 1 in `{name}` has no effect: leave it out.", **{name: value})
    return factors


def idle_options(
    values: Mapping[str, Any], options: Mapping[str, Option], names: Optional[Mapping[str, str]] = None
) -> Iterator[str]:
    """Yield a sentence for each option without effect given the others; `values` maps each option to its value.

    `names` maps an option to the caller's name for it.
    """
    names = names or dict(zip(options, options))

    def is_set(option: str) -> bool:
        return bool(values[option] != options[option].default)

    def idle(why: str, *candidates: str) -> Iterator[str]:
        for option in filter(is_set, candidates):
            message = f"`{names[option]}` has no effect {why}."
            yield str(refusal(ValueError, message, **{names[option]: values[option]}))

    def exclude(first: str, second: str, why: str) -> Iterator[str]:
        if is_set(first) and is_set(second):
            both = {names[option]: values[option] for option in (first, second)}
            yield str(refusal(ValueError, f"`{names[first]}` and `{names[second]}` exclude each other: {why}.", **both))

    decay, end, towers = values["layerwise_decay"], values["end"], values["towers"] or {}
    flat = all((t.layerwise_decay, t.end, t.bound) == (1.0, None, 1.0) for t in towers.values())  # at most scaled
    if values["convention"] == "linear":
        why = f"with a linear decay: `{names['bound']}` alone sets the ratios"
        yield from idle(why, "layerwise_decay", "end", "min_ratio")
        if not is_set("bound"):
            yield str(refusal(ValueError, f"A linear decay needs `{names['bound']}` below 1.", **{names["bound"]: 1.0}))
    else:
        yield from idle(f"unless `{names['convention']}` is 'linear'", "bound")
        if decay == 1.0 and end is None:
            uniform = f"every layer has a ratio of 1 (the head `{names['head_ratio']}`)"
            why = f"while `{names['layerwise_decay']}` is 1: {uniform}"
            yield from idle(why, "convention", "min_ratio", "freeze_below", *(["preserve_mean"] if flat else []))
        elif end == decay:
            yield from idle("if the decay starts at this value", "end")
    yield from exclude("min_ratio", "freeze_below", "a floor leaves nothing to freeze, or has no effect")
    yield from exclude("end", "freeze_below", "frozen layers stay frozen")
    if end is None and all(tower.end is None for tower in towers.values()):
        yield from idle(f"without `{names['end']}`", "steps")
    options_outside = {name: value for name, value in values.items() if name not in OF_THE_WHOLE_MODEL}
    for name, tower in towers.items():
        if options_outside == {option: getattr(tower, option) for option in options_outside}:
            same = f"A tower of `{names['towers']}` has no effect if its decay is the decay of the rest."
            yield str(refusal(ValueError, same, **{name: tower.to_tower()}))
