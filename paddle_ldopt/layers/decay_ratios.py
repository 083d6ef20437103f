"""The ratio of each parameter of a model, from a decay and a `LayerMap`."""

import copy
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

from paddle import Tensor

from .decay import LayerDecay, Ratio, mean_of
from .optimizer_interface import Ratios
from .patterns import matches_of
from .ratio_checks import check_names

if TYPE_CHECKING:
    from .map import LayerMap


class LayerRatios(Ratios):
    """A function that maps a parameter to the ratio of its learning rate, built from a `LayerMap` and a decay.

    Raise ValueError if a tower of the decay has no blocks in the map, or a pattern of its multipliers matches nothing.
    """

    decay: LayerDecay

    def __init__(self, layers: "LayerMap", decay: LayerDecay) -> None:
        self.layers, self.decay = layers, decay
        self.is_constant = not decay.moves
        self.decays: dict[Optional[str], LayerDecay] = {None: decay}  # of each tower, None for the rest
        self.decays.update(decay.towers or {})
        self.tower_of = _tower_by_name(layers.names, decay.towers or ())
        self.factors = decay.multipliers or {}  # pattern -> factor
        self.matches = matches_of(self.factors, layers.names)
        check_names(self)
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
    """Return structured name -> outermost, then longest, tower of the decay in the name; None outside of all towers."""
    patterns = {tower: re.compile(rf"(^|\.){re.escape(tower)}\.") for tower in towers}
    tower_of: dict[str, Optional[str]] = {}
    for name in names:
        matches = {tower: pattern.search(name) for tower, pattern in patterns.items()}
        ranked = [(match.start(), -len(tower), tower) for tower, match in matches.items() if match]
        tower_of[name] = min(ranked)[2] if ranked else None
    return tower_of
