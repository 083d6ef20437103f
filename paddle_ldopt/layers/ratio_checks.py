"""Checks of a `LayerDecay` against a `LayerMap`: towers, patterns and options that no parameter of the model has."""

import difflib
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from .._messages import first_few, problem, quoted, refusal
from .decay import OPTIONS, LayerDecay

_OF_LAYERS = ("layerwise_decay", "convention", "min_ratio", "freeze_below", "bound", "end")
_OF_TOWERS = (*_OF_LAYERS, "head_ratio", "scale")


def check_towers(layers: Any, decay: LayerDecay, tower_of: Mapping[str, Optional[str]]) -> None:
    """Raise if a tower of the decay has no block; `tower_of` maps structured name -> tower."""
    with_blocks = {tower_of[name] for name in layers.names if layers.layer_of(name).is_block}
    for tower in (decay.towers or {}).keys() - with_blocks:
        why = f"The model has no blocks in a part of this name (its stacks are {first_few(layers.towers)})"
        raise refusal(ValueError, f"{why}: use `multipliers` for parts without blocks.", towers=tower)


def check_patterns(names: list[str], matches: Mapping[str, list[str]]) -> None:
    """Raise if a pattern of `multipliers` matches none of the structured `names`; `matches` maps pattern -> names."""
    for pattern in (pattern for pattern, matched in matches.items() if not matched):
        near = _near(pattern, names)
        found = f"similar names are {quoted(near)}" if near else f"the names are [{first_few(names, 8)}]"
        raise refusal(ValueError, f"A pattern of `multipliers` matches no parameter; {found}.", pattern=pattern)


def check_effects(layers: Any, decay: LayerDecay, tower_of: Mapping[str, Optional[str]]) -> None:
    """Raise if an option of the decay, or of one of its towers, changes no ratio of the model.

    Options beside `towers` only warn: a decay for several models may meet a model without layers outside its towers.
    """
    towers: dict[Optional[str], LayerDecay] = {None: decay}
    towers.update(decay.towers or {})
    for tower, own in towers.items():
        places = [layers.layer_of(name) for name in layers.names if tower_of[name] == tower]
        where = f"in the tower '{tower}'" if tower else "outside of `towers`" if decay.towers else "of the model"
        for missing, options in _missing(places):
            idle = {name: getattr(own, name) for name in options if getattr(own, name) != OPTIONS[name].default}
            if not idle:
                continue
            message = f"{quoted(list(idle))} has no effect: no parameter {where} is in the {missing}. Leave it out."
            if tower or not decay.towers:
                raise refusal(ValueError, message, **idle)
            warnings.warn(problem(message, **idle), stacklevel=4)


def _missing(places: list[Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (layers without a parameter, the options for these layers)."""
    if not places:
        yield "model", _OF_TOWERS
    elif all(place.index > place.depth for place in places):
        yield "blocks or embeddings", _OF_LAYERS
    elif all(place.index <= place.depth for place in places):
        yield "head", ("head_ratio",)


def check_multipliers(layers: Any, matches: Mapping[str, list[str]], without: Mapping[str, Any]) -> None:
    """Raise if a multiplier changes no ratio because the decay freezes its parameters; warn if all are frozen now.

    `without` maps structured name -> ratio without multipliers.
    """
    for pattern, matched in matches.items():
        if all(isinstance(without[name], float) and without[name] == 0 for name in matched):
            why = "`freeze_below` freezes all parameters that it matches"
            raise refusal(ValueError, f"A pattern of `multipliers` has no effect: {why}.", pattern=pattern)
        if not any(layers.is_trainable(name) for name in matched):
            why = "all parameters that it matches are frozen (`stop_gradient`)"
            warnings.warn(problem(f"A pattern of `multipliers` has no effect: {why}.", pattern=pattern), stacklevel=4)


def _near(pattern: str, names: list[str]) -> list[str]:
    """Return up to three names with a part similar to a word of a pattern."""
    first = {part: name for name in reversed(names) for part in name.split(".")}
    words = re.findall(r"[^\W\d]\w+", re.sub(r"\\[a-zA-Z]", " ", pattern))
    near = [part for word in words for part in difflib.get_close_matches(word, first, 3, 0.6)]
    return list(dict.fromkeys(first[part] for part in near))[:3]
