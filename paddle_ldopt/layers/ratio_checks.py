"""Checks of a decay's ratios against the model: names that match nothing, and options that change no ratio."""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paddle import Tensor

from .._messages import first_few, problem, quoted, refusal
from .decay import OPTIONS
from .layer import Layer
from .patterns import check_matches

if TYPE_CHECKING:
    from .decay_ratios import LayerRatios

_OF_LAYERS = ("layerwise_decay", "convention", "min_ratio", "freeze_below", "bound", "end")
_OF_TOWERS = (*_OF_LAYERS, "head_ratio", "scale")


def check_names(ratios: "LayerRatios") -> None:
    """Raise if a tower of the decay has no block, or a pattern of its multipliers matches no parameter."""
    layers = ratios.layers
    with_blocks = {ratios.tower_of[name] for name in layers.names if layers.layer_of(name).is_block}
    for tower in (ratios.decay.towers or {}).keys() - with_blocks:
        why = f"The model has no blocks in a part of this name (its stacks are {first_few(layers.towers)})"
        raise refusal(ValueError, f"{why}: use `multipliers` for parts without blocks.", towers=tower)
    check_matches(ratios.matches, layers.names, "multipliers")


def check_effects(ratios: "LayerRatios") -> None:
    """Raise if an option of the decay, or of one of its towers, changes no ratio of the model.

    Options beside `towers` only warn: a decay for several models may meet a model without layers outside its towers.
    Multipliers of frozen parameters only warn: they can be unfrozen.
    """
    has_towers = len(ratios.decays) > 1
    for tower, decay in ratios.decays.items():
        places = [ratios.layers.layer_of(name) for name, owner in ratios.tower_of.items() if owner == tower]
        where = f"in the tower '{tower}'" if tower else "outside of `towers`" if has_towers else "of the model"
        for missing, options in _missing(places):
            idle = {name: getattr(decay, name) for name in options if getattr(decay, name) != OPTIONS[name].default}
            message = f"{quoted(idle)} would have no effect: no parameter {where} is in the {missing}. Leave it out."
            if idle and tower is None and has_towers:
                warnings.warn(problem(message, **idle), stacklevel=3)
            elif idle:
                raise refusal(ValueError, message, **idle)
    without = ratios.without_multipliers(0.0)
    for pattern, names in _scaled(ratios):
        if all(isinstance(without[name], float) and without[name] == 0 for name in names):
            why = "`freeze_below` freezes all parameters that the pattern matches"
            raise refusal(ValueError, f"A pattern of `multipliers` has no effect: {why}.", pattern=pattern)
        if not any(map(ratios.layers.is_trainable, names)):
            why = "all parameters that the pattern matches are frozen (`stop_gradient`)"
            warnings.warn(problem(f"A pattern of `multipliers` has no effect: {why}.", pattern=pattern), stacklevel=3)


def check_trained(ratios: "LayerRatios", params: list[Tensor]) -> None:
    """Raise if an option is for trainable parameters of this pipeline stage that an optimizer of `params` lacks."""
    layers, decay = ratios.layers, ratios.decay
    options: list[tuple[str, Any, list[str]]] = [("multipliers", *pattern) for pattern in _scaled(ratios)]
    for tower in decay.towers or ():
        options.append(("towers", tower, [name for name, owner in ratios.tower_of.items() if owner == tower]))
    if decay.head_ratio != 1.0:
        outside = [name for name, tower in ratios.tower_of.items() if tower is None]
        options.append(("head_ratio", decay.head_ratio, [name for name in outside if layers.layer_of(name).is_head]))
    trained = {layers.name_of(param.name) for param in params}
    trainable = {name for name in layers.name_dict.values() if layers.is_trainable(name)}
    for option, value, names in options:
        targets = trainable.intersection(names)
        if targets and not targets & trained:
            idle = f"`{option}` has no effect here: the optimizer lacks all its parameters, such as '{min(targets)}'."
            how = "Leave it out, or give the optimizer these parameters."
            raise refusal(ValueError, f"{idle} {how}", **{option: value})


def _scaled(ratios: "LayerRatios") -> list[tuple[str, list[str]]]:
    """Return (pattern, names) of the multipliers other than 0, which may match parameters that are not trained."""
    return [(pattern, names) for pattern, names in ratios.matches.items() if ratios.factors[pattern]]


def _missing(places: list[Layer]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (layers without a parameter, the options for these layers)."""
    if not places:
        yield "model", _OF_TOWERS
    elif all(place.is_head for place in places):
        yield "blocks or embeddings", _OF_LAYERS
    elif not any(place.is_head for place in places):
        yield "head", ("head_ratio",)
