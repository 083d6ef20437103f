"""The ratio of each parameter of a model: what a decay makes of a `LayerMap`, and which ratios an optimizer has."""

import copy
import re
from collections.abc import Iterable
from typing import Any, Optional, Protocol

from .._messages import refusal, some
from .._paddle import unwrap
from .decay import LayerDecay, mean_of


class Ratios(Protocol):
    """A function parameter -> ratio of its learning rate, as the `ratio_of` of an optimizer."""

    @property
    def decay(self) -> Optional[LayerDecay]:
        """The decay that makes the ratios, None if a hook does."""

    @property
    def layers(self) -> Any:
        """The `LayerMap` of the decay, None without one."""

    @property
    def is_constant(self) -> bool:
        """Whether a step may keep the ratios of the step before."""

    def at(self, progress: Any) -> "Ratios":
        """Return the ratios when the share `progress` of the training is over."""

    def __call__(self, param: Any) -> Any:
        """Return the ratio of a parameter: a float, or a value of a static graph."""


class LayerRatios:
    """The function parameter -> ratio of its learning rate that a `LayerMap` and a decay make.

    Raise ValueError if the decay has a tower without blocks in the map, or a multiplier that matches no parameter.
    """

    def __init__(self, layers: Any, decay: LayerDecay) -> None:
        self.layers, self.decay = layers, decay
        self.is_constant = not decay.moves  # a step may keep the ratios
        self._towers = _towers_by_name(layers, decay.towers or {})
        self.multipliers = _multipliers_by_name(layers.names, decay.multipliers or {})
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
        """Return the product of the decay's `multipliers` that is in the ratio of a parameter."""
        return self.multipliers.get(self.layers.name_of(param.name), 1.0)

    def at(self, progress: Any) -> "LayerRatios":
        """Return the ratios when the share `progress` of the training is over; they differ if the decay moves.

        They are values of a static graph if `progress` is.
        """
        if not self.decay.moves:
            return self
        if not isinstance(progress, float) or self._latest[0] != progress:
            moved = copy.copy(self)
            moved._now, moved.is_constant = self._ratios(progress), True
            self._latest = (progress, moved)
        return self._latest[1]

    def by_layer(self) -> dict[tuple[str, int], float]:
        """Return (tower, layer id) -> the greatest ratio in the layer."""
        greatest: dict[tuple[str, int], float] = {}
        for name, ratio in self._now.items():
            at = self.layers.layer_of(name)
            greatest[at.tower, at.index] = max(ratio, greatest.get((at.tower, at.index), 0.0))
        return greatest

    def _ratios(self, progress: Any) -> dict[str, float]:
        """Return structured name -> ratio."""
        places = {name: (self.layers.layer_of(name), self._towers[name]) for name in self.layers.names}
        decays: dict[Optional[str], LayerDecay] = {None: self.decay}
        decays.update(self.decay.towers or {})
        own = dict.fromkeys(places.values(), 1.0)
        for at, tower in own:
            own[at, tower] = decays[tower].own_ratio(at.index, at.depth, progress)
        mean = mean_of(ratio for (at, _), ratio in own.items() if at.is_block) if self.decay.preserve_mean else 1.0
        return {name: own[place] * self.multipliers.get(name, 1.0) / mean for name, place in places.items()}


def ratios_of(optimizer: Any) -> Optional[Ratios]:
    """Return the ratios of an optimizer, which `fleet` may have wrapped; None if all layers have the same rate."""
    ratios: Optional[Ratios] = getattr(unwrap(optimizer), "ratio_of", None)  # Paddle's own have no such attribute
    return ratios


def decay_of(optimizer: Any) -> Optional[LayerDecay]:
    """Return the decay that an optimizer has its ratios from, None if they come from a hook or it has none."""
    ratios = ratios_of(optimizer)
    return None if ratios is None else ratios.decay


def moves(ratios: Optional[Ratios]) -> bool:
    """Return whether ratios change in the course of the training by their decay."""
    return ratios is not None and ratios.decay is not None and ratios.decay.moves


def _towers_by_name(layers: Any, towers: Iterable[str]) -> dict[str, Optional[str]]:
    """Return structured name -> the tower of the decay that the parameter is in, None outside of all of them.

    Of several that its name holds it is in the outermost, and of those in the longest.
    """
    patterns = {tower: re.compile(rf"(^|\.){re.escape(tower)}\.") for tower in towers}
    found: dict[str, Optional[str]] = {}
    for name in layers.names:
        matches = {tower: pattern.search(name) for tower, pattern in patterns.items()}
        at = [(match.start(), -len(tower), tower) for tower, match in matches.items() if match]
        found[name] = min(at)[2] if at else None
    for tower in patterns.keys() - {found[name] for name in layers.names if layers.layer_of(name).is_block}:
        problem = f"No block of the model is in a part of this name (its stacks are {some(layers.towers)})"
        raise refusal(ValueError, f"{problem}: use `multipliers` for parts without blocks.", towers=tower)
    return found


def _multipliers_by_name(names: list[str], multipliers: dict[str, float]) -> dict[str, float]:
    """Return structured name -> the product of the factors whose patterns match it, for names that one matches."""
    found: dict[str, float] = {}
    for pattern, factor in multipliers.items():
        matched = list(filter(re.compile(pattern).search, names))
        if not matched:
            problem = f"A pattern of `multipliers` matches none of the parameters [{some(names, 8)}]."
            raise refusal(ValueError, problem, pattern=pattern)
        for name in matched:
            found[name] = found.get(name, 1.0) * factor
    return found
