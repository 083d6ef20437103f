"""The argument `rules` of `LayerMap`: a user's regular expressions or function, parameter name -> layer id."""

import re
from typing import Any, Callable, Optional, Union

from .._messages import first_few, refusal, shown
from .layer import HEAD, Layer
from .patterns import check_matches, checked_patterns, matches_of

Place = Union[int, str]  # a layer id, "embeddings" or "head"
Rules = Union[dict[str, Place], Callable[[str], Optional[Place]]]


def checked_rules(rules: Any, argument: str = "rules") -> dict[str, Place]:
    """Return a dict of `rules`; raise for an invalid pattern, or a place of another type."""
    for place in checked_patterns(rules, argument, "layers").values():
        if isinstance(place, bool) or not isinstance(place, (int, str)):
            raise refusal(TypeError, f"`{argument}` must map names to layer ids or strings.", **{argument: rules})
    return rules


def apply_rules(names: list[str], rules: Optional[Rules]) -> tuple[dict[str, int], set[str]]:
    """Return name -> layer id for names that `rules` place, and the names numbered by a template; raise if invalid."""
    if rules is not None and not callable(rules):
        return _by_patterns(names, checked_rules(rules))
    places = {} if rules is None else {name: rules(name) for name in names}
    placed = {name: _layer_id(place, name) for name, place in places.items() if place is not None}
    if places and not placed:
        raise ValueError(f"`rules` place no parameter. Received: rules={shown(rules)}, names=[{first_few(names, 8)}]")
    return placed, set()


def _by_patterns(names: list[str], rules: dict[str, Place]) -> tuple[dict[str, int], set[str]]:
    """Return name -> layer id by the first pattern that matches, and the names numbered by a template."""
    placed: dict[str, int] = {}
    numbered: set[str] = set()
    matches = matches_of(rules, names)
    check_matches(matches, names, "rules")
    for pattern, matched in matches.items():
        for name in [name for name in matched if name not in placed]:
            number = _expanded(rules[pattern], re.search(pattern, name))
            block = re.fullmatch(r"(\d{1,18})(?:\s*\+\s*(\d{1,18}))?", number) if isinstance(number, str) else None
            if block:
                numbered.add(name)
                number = int(block[1]) + int(block[2] or 0) + 1
            placed[name] = _layer_id(number, name)
    return placed, numbered


def _expanded(place: Place, match: Any) -> Place:
    """Return a place with the groups of a match in its template."""
    try:
        return match.expand(place) if isinstance(place, str) else place
    except (re.error, IndexError) as error:
        raise refusal(ValueError, f"`rules` has a bad template ({error}).", template=place) from error


def _layer_id(place: Any, name: str) -> int:
    """Return the layer id of a place, HEAD for "head"; raise if it is neither an id nor "embeddings" nor "head"."""
    if place in ("embeddings", "head"):
        return 0 if place == "embeddings" else HEAD
    if isinstance(place, bool) or not isinstance(place, int) or place < 0:
        raise ValueError(
            "`rules` must give a layer id from 0, 'embeddings', 'head' or a template that expands to a block's number. "
            f"Received: {shown(place)} for '{name}'"
        )
    return place


def combined(layers: dict[str, Layer], places: dict[str, int], numbered: set[str]) -> dict[str, Layer]:
    """Return the layers found, overridden by the layer ids that rules give; raise if these leave a layer empty.

    A tower whose blocks all have new ids becomes part of the rules' numbering, with its embeddings and its head.
    """
    moved: dict[str, dict[int, int]] = {}  # tower -> layer id -> new one
    for tower in {layer.tower for layer in layers.values() if layer.is_block and layer.tower}:
        blocks = [(name, layer.index) for name, layer in layers.items() if layer.tower == tower and layer.is_block]
        if all(places.get(name, 0) > 0 for name, _ in blocks):
            moved[tower] = {index: places[name] for name, index in blocks}
    found = max((layer.depth for layer in layers.values() if layer.tower not in moved and layer.tower), default=0)
    _close_gaps(places, numbered, found)
    deepest = max([found, *places.values()])
    _check_no_gap(places, found, deepest)
    moved = {tower: {index: new[index] for index in sorted(new)} for tower, new in moved.items()}
    starts = {min(new.values()) for new in moved.values()}

    def new_layer(name: str, layer: Layer) -> Layer:
        if name in places:
            return Layer("", deepest + 1 if places[name] == HEAD else places[name], deepest)
        if layer.tower in moved:
            new = moved[layer.tower]
            last = max(new.values())
            head = last if last + 1 in starts else deepest + 1  # another stack follows
            return Layer("", head if layer.is_head else new.get(layer.index, min(new.values()) - 1), deepest)
        if not layer.tower:
            return Layer("", deepest + 1 if layer.is_head else min(layer.index, deepest), deepest)
        return layer

    return {name: new_layer(name, layer) for name, layer in layers.items()}


def _close_gaps(placed: dict[str, int], numbered: set[str], blocks: int) -> None:
    """Renumber blocks placed by templates without gaps, in place, unless other blocks would move."""
    fixed = {*range(1, blocks + 1), *(index for name, index in placed.items() if index > 0 and name not in numbered)}
    ranks = {index: rank for rank, index in enumerate(sorted({placed[name] for name in numbered} | fixed), 1)}
    if all(ranks[index] == index for index in fixed):
        placed.update({name: ranks[placed[name]] for name in numbered})


def _check_no_gap(placed: dict[str, int], blocks: int, deepest: int) -> None:
    """Raise if rules place blocks after the `blocks` found and leave an empty layer between."""
    beyond = next((name for name, index in placed.items() if index > blocks), None)
    if blocks and beyond is not None and not {*range(blocks + 1, deepest + 1)} <= {*placed.values()}:
        raise ValueError(
            f"`rules` must leave no layer empty after the {blocks} blocks of the model; use 'head' for the head. "
            f"Received: layer {placed[beyond]} for '{beyond}', and {deepest} as the last layer"
        )
