"""The ratio of each parameter of a model, from a decay and a `LayerMap`; the ratios of an optimizer."""

import copy
import re
from collections.abc import Iterable
from typing import Any, Optional, Protocol

from .._paddle import unwrap
from .decay import LayerDecay, mean_of
from .patterns import matches_of
from .ratio_checks import check_names


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


class RatedOptimizer:
    """All that `layers` reads from an optimizer; the defaults are true of Paddle's optimizers."""

    ratio_of: Optional[Ratios] = None  # None: every ratio is 1

    def layerwise_ratio(self, param: Any) -> Any:
        """Return the current ratio of a parameter's rate to the optimizer's, without groups and ParamAttr."""
        return 1.0

    @property
    def sets_own_rate(self) -> bool:
        """Whether the optimizer computes its rate itself, so that a scheduler has no effect."""
        return False

    def used_rates(self) -> Optional[dict[str, float]]:
        """Return tensor name -> rate of the last update if the optimizer computes and keeps it, None otherwise."""
        return None

    def rate_divisor(self, ahead: int = 0) -> float:
        """Return the divisor of the optimizer's rate in its next step, or `ahead` steps later."""
        return 1.0

    def shown_rate(self, param: Any, factor: float) -> Optional[tuple[Optional[float], Optional[float]]]:
        """Return (rate of the next step, peak rate ahead) of a parameter, each None if it is unknown beforehand.

        None: the rate is `learning_rate` times `factor`, which includes the parameter's layer and group.
        """
        return None

    def decays_weights(self, param: Any) -> Optional[bool]:
        """Return whether the next step applies weight decay to a parameter; None: by the options of Paddle."""
        return None


class LayerRatios:
    """A function parameter -> ratio of its learning rate, built from a `LayerMap` and a decay.

    Raise ValueError if a tower of the decay has no blocks in the map, or a pattern of its multipliers matches nothing.
    """

    def __init__(self, layers: Any, decay: LayerDecay) -> None:
        self.layers, self.decay = layers, decay
        self.is_constant = not decay.moves
        self.tower_of = _tower_by_name(layers.names, decay.towers or ())
        self.matches = matches_of(decay.multipliers or (), layers.names)
        check_names(self)
        self.multipliers: dict[str, float] = {}  # structured name -> product of its multipliers, if a pattern matches
        for pattern, factor in (decay.multipliers or {}).items():
            for name in self.matches[pattern]:
                self.multipliers[name] = self.multipliers.get(name, 1.0) * factor
        self._now: dict[str, float] = self._ratios(0.0)
        self._latest: tuple[Any, LayerRatios] = (0.0, self)

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
            layer = self.layers.layer_of(name)
            greatest[layer.tower, layer.index] = max(ratio, greatest.get((layer.tower, layer.index), 0.0))
        return greatest

    def _ratios(self, progress: Any) -> dict[str, float]:
        """Return structured name -> ratio."""
        without = self.without_multipliers(progress)
        return {name: ratio * self.multipliers.get(name, 1.0) for name, ratio in without.items()}

    def without_multipliers(self, progress: Any) -> dict[str, Any]:
        """Return structured name -> ratio before multipliers."""
        decays: dict[Optional[str], LayerDecay] = {None: self.decay}
        decays.update(self.decay.towers or {})
        places = {name: (self.layers.layer_of(name), self.tower_of[name]) for name in self.layers.names}
        unscaled = dict.fromkeys(places.values(), 1.0)
        for layer, tower in unscaled:
            unscaled[layer, tower] = decays[tower].unscaled_ratio(layer.index, layer.depth, progress)
        blocks = [ratio for (layer, _), ratio in unscaled.items() if layer.is_block]
        mean = mean_of(blocks) if self.decay.preserve_mean else 1.0
        return {name: unscaled[place] * decays[place[1]].scale / mean for name, place in places.items()}


def rated(optimizer: Any) -> RatedOptimizer:
    """Return the optimizer inside wrappers, or the defaults of `RatedOptimizer` for one of Paddle's."""
    inner = unwrap(optimizer)
    return inner if isinstance(inner, RatedOptimizer) else RatedOptimizer()


def ratios_of(optimizer: Any) -> Optional[Ratios]:
    """Return the ratios of an optimizer, even inside `fleet`'s wrapper; None if all layers have the same rate."""
    return rated(optimizer).ratio_of


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
    tower_of: dict[str, Optional[str]] = {}
    for name in names:
        matches = {tower: pattern.search(name) for tower, pattern in patterns.items()}
        ranked = [(match.start(), -len(tower), tower) for tower, match in matches.items() if match]
        tower_of[name] = min(ranked)[2] if ranked else None
    return tower_of
