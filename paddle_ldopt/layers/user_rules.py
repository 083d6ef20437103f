"""The argument `rules` of `LayerMap`: a user's regular expressions or function, parameter name -> layer id."""

import re
from typing import Any, Callable, Optional, Union

from .._messages import first_few, refusal, shown
from .layer import HEAD
from .stacks import is_index

Place = Union[int, str]  # a layer id, "embeddings" or "head"
Rules = Union[dict[str, Place], Callable[[str], Optional[Place]]]


def apply_rules(names: list[str], rules: Optional[Rules]) -> tuple[dict[str, int], set[str]]:
    """Return name -> layer id for names that `rules` place, and the names numbered by a template."""
    if rules is None:
        return {}, set()
    if not callable(rules) and not isinstance(rules, dict):
        raise refusal(TypeError, "`rules` must be a dict of regular expressions or a callable.", rules=rules)
    numbered: set[str] = set()
    place = rules if callable(rules) else _from_dict(rules, numbered)
    found = {name: place(name) for name in names}
    placed = {name: _checked_layer(layer, name) for name, layer in found.items() if layer is not None}
    if not placed:
        raise ValueError(f"`rules` match no parameter. Received: rules={shown(rules)}, names=[{first_few(names, 8)}]")
    return placed, numbered


def _from_dict(rules: dict[str, Place], numbered: set[str]) -> Callable[[str], Optional[Place]]:
    """Return a dict of patterns as a function name -> place, which adds names numbered by a template to `numbered`."""
    compiled = []
    for pattern, place in rules.items():
        try:
            compiled.append((re.compile(pattern), place))
        except (re.error, TypeError) as error:
            wrong = f"The keys of `rules` must be regular expressions ({error})."
            raise ValueError(f"{wrong} Received: {shown(pattern)}") from error

    def place_of(name: str) -> Optional[Place]:
        for pattern, place in compiled:
            match = pattern.search(name)
            if match and isinstance(place, str):
                try:
                    number = match.expand(place)
                except (re.error, IndexError) as error:
                    raise ValueError(f"`rules` has a bad template ({error}). Received: {shown(place)}") from error
                if not is_index(number):
                    return number
                numbered.add(name)
                return int(number) + 1
            if match:
                return place
        return None

    return place_of


def _checked_layer(layer: Any, name: str) -> int:
    if layer in ("embeddings", "head"):
        return 0 if layer == "embeddings" else HEAD
    if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
        raise ValueError(
            "A rule must give a layer id from 0, 'embeddings', 'head' or a template that expands to a block's number. "
            f"Received: {shown(layer)} for '{name}'"
        )
    return layer


def close_gaps(placed: dict[str, int], numbered: set[str], blocks: int) -> None:
    """Renumber blocks placed by templates without gaps, in place, unless other blocks would move."""
    fixed = {*range(1, blocks + 1), *(index for name, index in placed.items() if index > 0 and name not in numbered)}
    ranks = {index: rank for rank, index in enumerate(sorted({placed[name] for name in numbered} | fixed), 1)}
    if all(ranks[index] == index for index in fixed):
        placed.update({name: ranks[placed[name]] for name in numbered})


def check_no_gap(placed: dict[str, int], blocks: int, deepest: int) -> None:
    """Raise if rules place blocks behind the `blocks` found and leave an empty layer between."""
    beyond = next((name for name, index in placed.items() if index > blocks), None)
    if blocks and beyond is not None and not {*range(blocks + 1, deepest + 1)} <= {*placed.values()}:
        raise ValueError(
            f"`rules` must leave no layer empty behind the {blocks} blocks of the model; the head is 'head'. "
            f"Received: layer {placed[beyond]} for '{beyond}', layer {deepest} the last"
        )
