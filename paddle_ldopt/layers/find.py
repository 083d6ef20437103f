"""The layers of a model's parameters: measured in a forward pass or found by names, overridden by a user's rules."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Callable, NamedTuple, Optional, Union

import paddle

from .._checks import first_few, quoted, refusal, shown
from .._compat import checked_model, pipeline_of
from .decay import checked_patterns, matches
from .layer import HEAD, Layer, NoBlocksError
from .measure import Example
from .names import NamedModel
from .place import MeasuredModel

Place = Union[int, str]  # a layer id, "embeddings" or "head"
Rules = Union[dict[str, Place], Callable[[str], Optional[Place]]]
_MOST_PATHS = 1_000  # paths to one sublayer: nested sharing doubles them at each level


class Found(NamedTuple):
    """The layers of a model, its towers, how they were found, and a sentence for each doubt."""

    layers: dict[str, Layer]
    towers: dict[str, int]  # name -> depth
    source: str  # "measured" or "by names"
    doubts: list[str]


def check_mappable(model: paddle.nn.Layer) -> None:
    """Raise for any object but a network with parameters, and for one stage of a pipeline."""
    if pipeline_of(checked_model(model)) is not None:
        how = "`paddle_ldopt.trainer.map_layers(model)` maps all stages."
        raise refusal(ValueError, f"The model is one stage of a pipeline: {how}", model=type(model).__name__)
    if not model.parameters():
        raise refusal(ValueError, "The model has no parameters to map.", model=type(model).__name__)


def layers_of_names(names: list[str], rules: Optional[Rules]) -> Found:
    """Return the layers of structured `names` in the model's order."""
    places, numbered = apply_rules(names, rules)
    model = NamedModel(names, {}, (), places)
    return _found(combined(model.layers, places, numbered), "by names", model.doubts)


def layers_of_model(model: paddle.nn.Layer, example: Optional[Example], rules: Optional[Rules]) -> Found:
    """Return the layers of a model's parameters, measured if there is an `example`."""
    params = dict(model.named_parameters())
    if example is None:
        return _by_names(model, params, rules)
    measured = MeasuredModel(model, example, list(params))
    places, numbered = apply_rules(list(params), rules)
    unused = [name for name in measured.unused if name not in places]
    hidden = sum(param.size for name, param in params.items() if name in unused)
    if 2 * hidden > sum(param.size for param in params.values()):
        found = _by_names(model, params, rules)
        doubt = (
            f"most of the model did not take part in the forward pass, such as {quoted(unused)}: give another `example`"
        )
        return found._replace(doubts=[doubt, *found.doubts])
    if not measured.towers and not any(index > 0 for index in places.values()):
        problem = "Found no blocks in the forward pass (parts that are alike and follow one another)."
        how = "Give `rules` for the blocks, regular expressions or a function."
        raise refusal(NoBlocksError, f"{problem} {how}", names=first_few(params, 8))
    layers = measured.layers() if measured.towers else measured.around({n for n, index in places.items() if index > 0})
    layers.update(_beside(unused, layers, measured))
    layers = {name: layers.get(name, Layer("", 0, 0)) for name in params}
    doubts = [f"the forward pass did not use {quoted(unused, 12)}, which are placed by name"] if unused else []
    apart = [(a, b) for a, b in measured.apart if not (places and all(_is_placed(t, layers, places) for t in (a, b)))]
    for first, second in apart:
        doubts.append(
            f"'{second}' is computed from '{first}', but both count as towers of their own: `towers=` gives each its "
            r"decay, and `rules` with an offset such as r'\1 + 12' make them one"
        )
    return _found(combined(layers, places, numbered), "measured", doubts, params)


def _by_names(model: paddle.nn.Layer, params: Mapping[str, paddle.Tensor], rules: Optional[Rules]) -> Found:
    """Return the layers by all names of each parameter; a shared one is in the lowest of its layers."""
    names: dict[str, paddle.Tensor] = {}
    embeddings, mapped = set(), {id(param) for param in params.values()}
    for path, layer in _all_paths(model):
        for key, param in layer._parameters.items():
            if param is not None and id(param) in mapped:
                names[f"{path}{key}"] = param
                if any("Embedding" in cls.__name__ for cls in type(layer).__mro__):
                    embeddings.add(f"{path}{key}")
    names.update({name: param for name, param in params.items() if name not in names})  # ReFT
    places, numbered = apply_rules(list(names), rules)
    shapes, tied = {n: tuple(param.shape) for n, param in names.items()}, {n: id(param) for n, param in names.items()}
    model_ = NamedModel(list(names), shapes, embeddings, places, tied=tied)
    layers = combined(model_.layers, places, numbered)
    lowest: dict[int, Layer] = {}
    sure = {id(param) for name, param in names.items() if name not in model_.doubtful}
    for name, param in names.items():
        if name in model_.doubtful and id(param) in sure:
            continue
        known = lowest.setdefault(id(param), layers[name])
        lowest[id(param)] = min(known, layers[name], key=lambda layer: layer.index - layer.depth)
    return _found({name: lowest[id(param)] for name, param in params.items()}, "by names", model_.doubts, params)


def _beside(unused: list[str], layers: Mapping[str, Layer], measured: MeasuredModel) -> dict[str, Layer]:
    """Return layers for parameters that the pass did not use: those of their neighbors, or by their names."""
    found = {}
    for name in unused:
        path = name.rpartition(".")[0]
        places: set[Layer] = set()
        while path and not places:
            places = {layers[other] for other in measured.tree.inside[path] if other in layers}
            path = path.rpartition(".")[0]
        found[name] = places.pop() if len(places) == 1 else measured.by_name(name)
    return found


def _is_placed(tower: str, layers: Mapping[str, Layer], places: Mapping[str, int]) -> bool:
    return all(name in places for name, layer in layers.items() if layer.tower == tower and layer.is_block)


def _found(
    layers: dict[str, Layer], source: str, doubts: list[str], params: Optional[Mapping[str, paddle.Tensor]] = None
) -> Found:
    towers = {layer.tower: layer.depth for layer in layers.values() if layer.tower}
    return Found(layers, towers, source, [*doubts, *_doubts(layers, list(towers), params or {})])


def _doubts(layers: Mapping[str, Layer], towers: list[str], params: Mapping[str, paddle.Tensor]) -> Iterator[str]:
    """Yield a sentence for each map that is hardly meant: no head, one list, numbered towers, one trainable layer."""
    blocks: dict[Layer, list[Any]] = {}  # the shapes of each block
    for name, layer in layers.items():
        blocks.setdefault(layer, []).append(params[name].shape if name in params else name)
    if all(layer.is_block for layer in layers.values()):
        if any(shapes != blocks.get(replace(layer, index=1)) for layer, shapes in blocks.items()):
            yield "the whole model is one numbered list, so that its first and last items count as blocks"
    elif not any(layer.is_head for layer in layers.values()):
        yield "no parameter is in the head, so that none trains at the full rate"
    plain: dict[str, list[str]] = {}
    for tower in towers:
        plain.setdefault(re.sub(r"\d+", "#", tower), []).append(tower)
    for beside in plain.values():
        if len(beside) > 1:
            yield f"{quoted(beside)} count as towers beside each other"
    trained = {layers[name] for name, param in params.items() if not param.stop_gradient}
    if len(trained) == 1 and len(set(layers.values())) > 1:
        yield f"all trainable parameters are in one layer ({trained.pop().label})"


def _all_paths(
    model: paddle.nn.Layer,
    path: str = "",
    above: tuple[paddle.nn.Layer, ...] = (),
    times: Optional[dict[int, int]] = None,
) -> Iterator[tuple[str, paddle.nn.Layer]]:
    """Yield (path, sublayer) in the model's order; a shared sublayer under each of its paths, 1,000 at most."""
    times = {} if times is None else times
    times[id(model)] = times.get(id(model), 0) + 1
    yield path, model
    above = (*above, model)
    for key, inner in model._sub_layers.items():
        if inner is not None and times.get(id(inner), 0) < _MOST_PATHS and all(inner is not parent for parent in above):
            yield from _all_paths(inner, f"{path}{key}.", above, times)


# ---- rules


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
    for pattern, matched in matches(rules, names, "rules").items():
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
