"""The ratio of each parameter of a model, from a decay and a `LayerMap`; the ratios of an optimizer."""

import copy
import re
from collections.abc import Iterable
from typing import Any, Optional, Protocol

from .._paddle import unwrap
from .decay import LayerDecay, mean_of
from .ratio_checks import check_effects, check_multipliers, check_patterns, check_towers


class Ratios(Protocol):
    """A function parameter -> ratio of its learning rate, as the `ratio_of` of an optimizer."""

    @property
    def decay(self) -> Optional[LayerDecay]:
        """The decay of the ratios; None for a hook's."""

    @property
    def layers(self) -> Any:
        """The `LayerMap` of the decay; None for a hook's."""

    @property
    def is_constant(self) -> bool:
        """Whether a step may reuse the ratios of the previous one."""

    def at(self, progress: Any) -> "Ratios":
        """Return the ratios after the fraction `progress` of the training."""

    def __call__(self, param: Any) -> Any:
        """Return the ratio of a parameter, a float or a static graph's value."""


class LayerRatios:
    """A function parameter -> ratio of its learning rate, built from a `LayerMap` and a decay.

    Raise ValueError if a tower of the decay has no blocks in the map, or a pattern of its multipliers matches nothing.
    """

    def __init__(self, layers: Any, decay: LayerDecay) -> None:
        self.layers, self.decay = layers, decay
        self.is_constant = not decay.moves
        self._tower_of = _tower_by_name(layers.names, decay.towers or ())
        check_towers(layers, decay, self._tower_of)
        factors = decay.multipliers or {}
        self._matches = {pattern: [*filter(re.compile(pattern).search, layers.names)] for pattern in factors}
        check_patterns(layers.names, self._matches)
        self.multipliers: dict[str, float] = {}  # structured name -> product of its multipliers, if a pattern matches
        for pattern, matched in self._matches.items():
            self.multipliers.update((name, self.multipliers.get(name, 1.0) * factors[pattern]) for name in matched)
        self._now: dict[str, float] = self._ratios(0.0)
        self._latest: tuple[Any, LayerRatios] = (0.0, self)

    def check_effects(self) -> None:
        """Raise if an option of the decay changes no ratio; warn if a multiplier is for frozen parameters only."""
        check_effects(self.layers, self.decay, self._tower_of)
        matches = {
            pattern: self._matches[pattern] for pattern, factor in (self.decay.multipliers or {}).items() if factor
        }
        check_multipliers(self.layers, matches, self._without_multipliers(0.0))  # 0 may match frozen ones

    def __call__(self, param: Any) -> float:
        """Return the ratio of a parameter."""
        return self._now[self.layers.name_of(param.name)]

    def __deepcopy__(self, memo: Any) -> "LayerRatios":
        return self  # a copied optimizer shares the map, which holds the model's parameters

    def of(self, name: str) -> float:
        """Return the ratio of a parameter by its structured name."""
        return self._now[name]

    def multiplier_of(self, param: Any) -> float:
        """Return the product of the decay's multipliers that match a parameter."""
        return self.multipliers.get(self.layers.name_of(param.name), 1.0)

    def at(self, progress: Any) -> "LayerRatios":
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
            at = self.layers.layer_of(name)
            greatest[at.tower, at.index] = max(ratio, greatest.get((at.tower, at.index), 0.0))
        return greatest

    def _ratios(self, progress: Any) -> dict[str, float]:
        """Return structured name -> ratio."""
        without = self._without_multipliers(progress)
        return {name: ratio * self.multipliers.get(name, 1.0) for name, ratio in without.items()}

    def _without_multipliers(self, progress: Any) -> dict[str, Any]:
        """Return structured name -> ratio before multipliers."""
        decays: dict[Optional[str], LayerDecay] = {None: self.decay}
        decays.update(self.decay.towers or {})
        places = {name: (self.layers.layer_of(name), self._tower_of[name]) for name in self.layers.names}
        unscaled = dict.fromkeys(places.values(), 1.0)
        for at, tower in unscaled:
            unscaled[at, tower] = decays[tower].unscaled_ratio(at.index, at.depth, progress)
        blocks = [ratio for (at, _), ratio in unscaled.items() if at.is_block]
        mean = mean_of(blocks) if self.decay.preserve_mean else 1.0
        return {name: unscaled[place] * decays[place[1]].scale / mean for name, place in places.items()}


def ratios_of(optimizer: Any) -> Optional[Ratios]:
    """Return the ratios of an optimizer, even inside `fleet`'s wrapper; None if all layers have the same rate."""
    ratios: Optional[Ratios] = getattr(unwrap(optimizer), "ratio_of", None)  # Paddle's optimizers lack the attribute
    return ratios


def decay_of(optimizer: Any) -> Optional[LayerDecay]:
    """Return the decay of an optimizer; None without a decay or with a hook."""
    ratios = ratios_of(optimizer)
    return None if ratios is None else ratios.decay


def moves(ratios: Optional[Ratios]) -> bool:
    """Return whether a decay changes the ratios during training."""
    return ratios is not None and ratios.decay is not None and ratios.decay.moves


def _tower_by_name(names: Iterable[str], towers: Iterable[str]) -> dict[str, Optional[str]]:
    """Return structured name -> tower of the decay, None outside of all towers.

    Of several towers in a name the outermost counts, then the longest.
    """
    patterns = {tower: re.compile(rf"(^|\.){re.escape(tower)}\.") for tower in towers}
    found: dict[str, Optional[str]] = {}
    for name in names:
        matches = {tower: pattern.search(name) for tower, pattern in patterns.items()}
        at = [(match.start(), -len(tower), tower) for tower, match in matches.items() if match]
        found[name] = min(at)[2] if at else None
    return found
