"""The ratio of each parameter of a model, from a decay and a `LayerMap`; options of the decay that change no ratio."""

import copy
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from paddle import Tensor

from .._messages import first_few, problem, quoted, refusal
from .decay import OPTIONS, LayerDecay, Ratio, mean_of
from .layer import Layer
from .optimizer_interface import Ratios
from .patterns import check_matches, matches_of

_OF_LAYERS = ("layerwise_decay", "convention", "min_ratio", "freeze_below", "bound", "end")
_OF_TOWERS = (*_OF_LAYERS, "head_ratio", "scale")


class LayerRatios(Ratios):
    """A function parameter -> ratio of its learning rate, built from a `LayerMap` and a decay.

    Raise ValueError if a tower of the decay has no blocks in the map, or a pattern of its multipliers matches nothing.
    """

    decay: LayerDecay

    def __init__(self, layers: Any, decay: LayerDecay) -> None:
        self.layers, self.decay = layers, decay
        self.is_constant = not decay.moves
        self.decays: dict[Optional[str], LayerDecay] = {None: decay}  # of each tower, None for the rest
        self.decays.update(decay.towers or {})
        self.tower_of = _tower_by_name(layers.names, decay.towers or ())
        self.factors = decay.multipliers or {}  # pattern -> factor
        self.matches = matches_of(self.factors, layers.names)
        _check_names(self)
        self.multipliers: dict[str, float] = {}  # structured name -> product of its multipliers, if a pattern matches
        for pattern, names in self.matches.items():
            for name in names:
                self.multipliers[name] = self.multipliers.get(name, 1.0) * self.factors[pattern]
        self._now: dict[str, float] = self._ratios(0.0)
        self._latest: tuple[Ratio, LayerRatios] = (0.0, self)

    def __call__(self, param: Tensor) -> float:
        """Return the ratio of a parameter."""
        return self._now[self.layers.name_of(param.name)]

    def __deepcopy__(self, memo: Any) -> "LayerRatios":
        return self  # a copied optimizer shares the map, which holds the model's parameters

    def of(self, name: str) -> float:
        """Return the ratio of a parameter by its structured name."""
        return self._now[name]

    def multiplier_of(self, param: Tensor) -> float:
        """Return the product of the decay's multipliers that match a parameter."""
        return self.multipliers.get(self.layers.name_of(param.name), 1.0)

    def at(self, progress: Ratio) -> "LayerRatios":
        """Return the ratios after the fraction `progress` of the training, which may be a static graph's value."""
        if not self.decay.moves:
            return self
        if not isinstance(progress, float) or self._latest[0] != progress:
            moved = copy.copy(self)
            moved._now, moved.is_constant = self._ratios(progress), True
            self._latest = (progress, moved)
        return self._latest[1]

    def by_layer(self) -> dict[tuple[str, int], float]:
        """Return (tower, layer id) -> the largest ratio of the layer."""
        greatest: dict[tuple[str, int], float] = {}
        for name, ratio in self._now.items():
            layer = self.layers.layer_of(name)
            greatest[layer.tower, layer.index] = max(ratio, greatest.get((layer.tower, layer.index), 0.0))
        return greatest

    def _ratios(self, progress: Ratio) -> dict[str, float]:
        """Return structured name -> ratio."""
        without = self.without_multipliers(progress)
        return {name: ratio * self.multipliers.get(name, 1.0) for name, ratio in without.items()}

    def without_multipliers(self, progress: Ratio) -> dict[str, Any]:
        """Return structured name -> ratio before multipliers."""
        places = {name: (self.layers.layer_of(name), self.tower_of[name]) for name in self.layers.names}
        unscaled = dict.fromkeys(places.values(), 1.0)
        for layer, tower in unscaled:
            unscaled[layer, tower] = self.decays[tower].unscaled_ratio(layer.index, layer.depth, progress)
        blocks = [ratio for (layer, _), ratio in unscaled.items() if layer.is_block]
        mean = mean_of(blocks) if self.decay.preserve_mean else 1.0
        return {name: unscaled[place] * self.decays[place[1]].scale / mean for name, place in places.items()}


def _tower_by_name(names: Iterable[str], towers: Iterable[str]) -> dict[str, Optional[str]]:
    """Return structured name -> tower of the decay, None outside of all towers.

    Of several towers in a name the outermost counts, then the longest.
    """
    patterns = {tower: re.compile(rf"(^|\.){re.escape(tower)}\.") for tower in towers}
    tower_of: dict[str, Optional[str]] = {}
    for name in names:
        matches = {tower: pattern.search(name) for tower, pattern in patterns.items()}
        ranked = [(match.start(), -len(tower), tower) for tower, match in matches.items() if match]
        tower_of[name] = min(ranked)[2] if ranked else None
    return tower_of


def _check_names(ratios: LayerRatios) -> None:
    """Raise if a tower of the decay has no block, or a pattern of its multipliers matches no parameter."""
    layers = ratios.layers
    with_blocks = {ratios.tower_of[name] for name in layers.names if layers.layer_of(name).is_block}
    for tower in (ratios.decay.towers or {}).keys() - with_blocks:
        why = f"The model has no blocks in a part of this name (its stacks are {first_few(layers.towers)})"
        raise refusal(ValueError, f"{why}: use `multipliers` for parts without blocks.", towers=tower)
    check_matches(ratios.matches, layers.names, "multipliers")


def check_effects(ratios: LayerRatios) -> None:
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
            message = f"{quoted(idle)} has no effect: no parameter {where} is in the {missing}. Leave it out."
            if idle and tower is None and has_towers:
                warnings.warn(problem(message, **idle), stacklevel=3)
            elif idle:
                raise refusal(ValueError, message, **idle)
    without = ratios.without_multipliers(0.0)
    for pattern, names in _scaled(ratios):
        if all(isinstance(without[name], float) and without[name] == 0 for name in names):
            why = "`freeze_below` freezes all parameters that it matches"
            raise refusal(ValueError, f"A pattern of `multipliers` has no effect: {why}.", pattern=pattern)
        if not any(map(ratios.layers.is_trainable, names)):
            why = "all parameters that it matches are frozen (`stop_gradient`)"
            warnings.warn(problem(f"A pattern of `multipliers` has no effect: {why}.", pattern=pattern), stacklevel=3)


def check_trained(ratios: LayerRatios, params: list[Tensor]) -> None:
    """Raise if a tower, a multiplier or `head_ratio` is for trainable parameters that an optimizer of `params` lacks.

    Parameters of other stages of a pipeline do not count.
    """
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


def _scaled(ratios: LayerRatios) -> list[tuple[str, list[str]]]:
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
