"""The layers of a model's parameters: by a user's rules, a forward pass (`MeasuredModel`) or names (`NamedModel`)."""

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Callable, Optional, Union

from .._checks import checked_patterns, first_few, matches, quoted, refusal
from .decay import HEAD, Layer
from .measure import Example, forward_pass
from .names import NamedModel
from .place import MeasuredModel

Place = Union[int, str]  # a layer id, "embeddings" or "head"
Rules = Union[dict[str, Place], Callable[[str], Optional[Place]]]


def find_layers(
    params: Mapping[str, Any], rules: Optional[Rules] = None, model: Any = None, example: Optional[Example] = None
) -> tuple[dict[str, Layer], str]:
    """Return structured name -> layer, and "measured" or "by names"; `params` are None if only names are known."""
    places, numbered = _apply_rules(list(params), rules)
    parts = {} if model is None else dict(model.named_sublayers(include_self=True))
    graph = None if example is None else forward_pass(model, example, parts, params)
    found: Any = graph and MeasuredModel(graph, parts, params, places)
    how, advice, doubts = "measured", "`rules`", found.doubts if found else []
    if not (found and found.layers):
        how, advice = "by names", "`example=`, a batch for one forward pass, or `rules`"
        found = NamedModel(params, parts, places)
        doubts += found.doubts
    layers = _overridden(found.layers, places, numbered)
    if doubts := [*doubts, *_doubts(layers, params)]:
        said = f"Some layers of the model ({how}) are guesses: {'; '.join(doubts)}. Where one is wrong, give {advice}."
        warnings.warn(f"{said} Received: names=[{first_few(params, 3)}]", stacklevel=3)
    return layers, how


def _doubts(layers: Mapping[str, Layer], params: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each map that is hardly meant: no head, one list, numbered towers, one trainable layer."""
    blocks: dict[Layer, list[Any]] = {}  # the shapes of each block
    towers: dict[str, dict[str, None]] = {}
    for name, layer in layers.items():
        blocks.setdefault(layer, []).append(getattr(params[name], "shape", name))
        towers.setdefault(re.sub(r"\d+", "#", layer.tower), {})[layer.tower] = None
    if all(layer.is_block for layer in blocks):
        if any(shapes != blocks.get(replace(layer, index=1)) for layer, shapes in blocks.items()):
            yield "all parameters are in blocks, also those of the first and the last layer"
    elif not any(layer.is_head for layer in blocks):
        yield "no parameter is in the head, so that none trains at the full rate"
    yield from (f"{quoted(alike)} count as towers beside each other" for alike in towers.values() if len(alike) > 1)
    trained = {layers[name] for name, param in params.items() if param is None or not param.stop_gradient}
    if len(trained) == 1 < len(blocks):
        yield f"all trainable parameters are in one layer ({trained.pop().label})"


def _apply_rules(names: list[str], rules: Optional[Rules]) -> tuple[dict[str, int], set[str]]:
    """Return name -> layer id for names that `rules` place, and the names numbered by a template; raise if invalid."""
    places: dict[str, Any] = {}
    if callable(rules):
        places = {name: place for name in names if (place := rules(name)) is not None}
    elif rules is not None:
        for pattern, matched in matches(checked_patterns(rules, "rules", "layers"), names, "rules").items():
            template: Any = rules[pattern]
            for name in [name for name in matched if name not in places]:
                match: Any = re.search(pattern, name)
                try:
                    places[name] = match.expand(template) if isinstance(template, str) else template
                except (re.error, IndexError) as error:
                    raise refusal(ValueError, f"`rules` has a bad template ({error}).", template=template) from error
    if rules is not None and not places:
        raise refusal(ValueError, "`rules` place no parameter.", rules=rules, names=names[:8])
    numbered = set()
    for name, place in places.items():
        block = re.fullmatch(r"(\d{1,18})(?:\s*\+\s*(\d{1,18}))?", place) if isinstance(place, str) else None
        if block:
            numbered.add(name)
            places[name] = int(block[1]) + int(block[2] or 0) + 1
        elif place in ("embeddings", "head"):
            places[name] = 0 if place == "embeddings" else HEAD
        elif isinstance(place, bool) or not isinstance(place, int) or place < 0:
            known = "`rules` must give a layer id from 0, 'embeddings', 'head' or a template that is a block's number."
            raise refusal(ValueError, known, **{name: place})
    return places, numbered


def _overridden(layers: dict[str, Layer], places: dict[str, int], numbered: set[str]) -> dict[str, Layer]:
    """Return the layers found, overridden by the layer ids that rules give; raise if these leave a layer empty."""
    kept = {layer.tower for name, layer in layers.items() if layer.is_block and places.get(name, 0) <= 0}
    depth = max((layer.depth for layer in layers.values() if layer.tower in kept), default=0)
    fixed = {*range(1, depth + 1), *(index for name, index in places.items() if index > 0 and name not in numbered)}
    ranks = {index: rank for rank, index in enumerate(sorted({places[name] for name in numbered} | fixed), 1)}
    if all(ranks[index] == index for index in fixed):  # numbers are closed up, unless other blocks would move
        places.update({name: ranks[places[name]] for name in numbered})
    deepest = max([depth, *places.values()])
    if depth and not {*range(depth + 1, deepest + 1)} <= {*places.values()}:
        beyond = next(name for name, index in places.items() if index > depth)
        empty = f"`rules` must leave no layer empty after the {depth} blocks of the model; use 'head' for the head."
        raise refusal(ValueError, empty, **{beyond: places[beyond], "last": deepest})
    # a tower whose blocks all have new ids is part of the rules' numbering, with its embeddings and its head
    moved: dict[str, list[int]] = {}
    for name, layer in layers.items():
        if layer.is_block and layer.tower not in kept:
            moved.setdefault(layer.tower, []).append(places[name])
    starts = {min(ids) for ids in moved.values()}
    new = dict(layers)
    for name, layer in layers.items():
        if name in places:
            index = places[name]
        elif layer.tower in moved:
            first, last = min(moved[layer.tower]), max(moved[layer.tower])
            head = last if last + 1 in starts else HEAD  # another stack follows
            index = head if layer.is_head else first - 1
        elif not layer.tower:
            index = HEAD if layer.is_head else min(layer.index, deepest)
        else:
            continue
        new[name] = Layer("", deepest + 1 if index == HEAD else index, deepest)
    return new
