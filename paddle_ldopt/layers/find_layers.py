"""The layers of a model's parameters: measured in a forward pass or found by names, overridden by a user's rules."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Optional

import paddle

from .._messages import first_few, quoted, refusal
from .._paddle import checked_model, own_parameters, pipeline_of, sublayers
from .layer import Layer
from .measure import Example
from .names import NamedModel
from .place import MeasuredModel
from .rules import Rules, apply_rules, combined

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
        raise refusal(ValueError, f"{problem} {how}", names=first_few(params, 8))
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
        for key, param in own_parameters(layer).items():
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
    if all(layer.is_block for layer in layers.values()):
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
    for key, inner in sublayers(model).items():
        if inner is not None and times.get(id(inner), 0) < _MOST_PATHS and all(inner is not parent for parent in above):
            yield from _all_paths(inner, f"{path}{key}.", above, times)
