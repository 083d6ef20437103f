"""The argument `granularity` of `LayerMap`: several blocks as one layer."""

import bisect
import dataclasses
from typing import Any, Union

from .._checks import checked_int
from .._messages import refusal
from .layer import Layer

Granularity = Union[str, int]


def checked_granularity(value: Any, name: str = "granularity") -> Granularity:
    """Return "block", "stage" or a number of groups from 1, also of a string of digits; raise otherwise."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, str):
        if value in ("block", "stage"):
            return value
        raise refusal(ValueError, f"`{name}` must be 'block', 'stage' or a number of groups.", **{name: value})
    return checked_int(value, name, 1, "'block', 'stage' or a number of groups")


def grouped(
    layers: dict[str, Layer], depths: dict[str, int], stages: dict[str, list[int]], granularity: Granularity
) -> tuple[dict[str, Layer], dict[str, int]]:
    """Return name -> Layer and tower -> depth with several blocks per layer; raise if no tower changes.

    `stages` has the number of the first block of each stage, for towers with stages.
    """
    if granularity == "block":
        return layers, depths
    old = {**{layer.tower: layer.depth for layer in layers.values()}, **depths}
    if isinstance(granularity, int):
        count = granularity
        firsts = {t: [-(-i * depth // count) for i in range(count)] for t, depth in old.items() if depth > count}
    else:
        firsts = stages
    if not firsts:
        known = ", ".join(f"{tower or 'the model'}: {depth} blocks" for tower, depth in old.items())
        few = f"no tower has more than {granularity} blocks ({known})"
        why = "the model has no tower of stages" if granularity == "stage" else few
        raise refusal(ValueError, f"`granularity` has no effect: {why}.", granularity=granularity)
    new = {tower: len(firsts[tower]) if tower in firsts else depth for tower, depth in old.items()}
    if "" in new and "" not in firsts:  # parameters of several towers count by the deepest
        new[""] = max([depth for tower, depth in new.items() if tower] or [new[""]])
    unit = "stage" if granularity == "stage" else "group"

    def moved(layer: Layer) -> Layer:
        index, depth = layer.index, new[layer.tower]
        if layer.tower in firsts:
            layer = dataclasses.replace(layer, unit=unit)
        if layer.is_head:
            index = depth + 1
        elif index and layer.tower in firsts:
            index = bisect.bisect_right(firsts[layer.tower], index - 1)
        return dataclasses.replace(layer, index=index, depth=depth)

    return {name: moved(layer) for name, layer in layers.items()}, {tower: new[tower] for tower in depths}
