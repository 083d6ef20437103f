"""Structured parameter name -> layer, for any model, from names and shapes.

Layer 0 has the embeddings, 1..n the blocks, n + 1 the head. Each tower (encoder and decoder) counts by its own depth.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import NamedTuple, Optional

import paddle

from .before_blocks import PartBeforeBlocks, is_head
from .doubtful_lists import check_found, guesses_of_lists
from .known_names import ONE_FOR_ALL_BLOCKS, index_by_paths, index_by_words
from .layer import EMBEDDINGS, HEAD, Layer
from .model_parameters import ParameterInfo, parameter_infos
from .stacks import FoundLists, Stack, find_stacks
from .user_rules import Rules, apply_rules, check_no_gap, close_gaps


class _Blocks(NamedTuple):
    by_rules: dict[str, int]  # name -> layer id, of all parameters that the user's rules place
    lists: FoundLists
    deepest: int  # number of blocks of the deepest tower

    def nearest(self, name: str) -> tuple[int, list[Stack]]:
        """Return the number of leading parts that a name shares with the nearest stacks, and these stacks."""
        path = name.split(".")[:-1]
        common = [len(os.path.commonprefix([path, stack.tower.split(".")])) for stack in self.lists.stacks]
        most = max(common, default=0)
        return most, [stack for stack, count in zip(self.lists.stacks, common) if count == most]

    def outside(self, name: str, index: int) -> Layer:
        """Return the embeddings (0) or the head (HEAD) of the tower nearest to a name, of all if several are."""
        _, nearest = self.nearest(name)
        tower, depth = (nearest[0].tower, nearest[0].depth) if len(nearest) == 1 else ("", self.deepest)
        return Layer(tower, depth + 1 if index == HEAD else 0, depth)


Found = tuple[dict[str, Layer], dict[str, int], list[str]]  # name -> Layer, tower -> depth, a sentence for each guess


def layers_of_model(model: paddle.nn.Layer, names: Mapping[str, str], rules: Optional[Rules]) -> Found:
    """Return the layers of a model's parameters; `names` maps ``param.name`` to the structured name."""
    infos = parameter_infos(model, names)  # a shared parameter under all its names
    in_sublayers = {info.tensor for info in infos.values()}
    outside = {name: tensor for tensor, name in names.items() if tensor not in in_sublayers}  # ReFT
    infos.update((name, ParameterInfo(tensor, "", ())) for name, tensor in outside.items())
    by_name, depths, guesses = layers_of_names(list(infos), rules, infos, whole=not outside)
    of_tensor: dict[str, list[Layer]] = {}
    for name, info in infos.items():
        of_tensor.setdefault(info.tensor, []).append(by_name[name])
    # a shared parameter is in the lowest layer of its names
    lowest = {tensor: min(places, key=lambda layer: layer.index - layer.depth) for tensor, places in of_tensor.items()}
    layers = {name: lowest[tensor] for tensor, name in names.items()}
    if not rules and all(layer.index for layer in layers.values()):  # no name or position shows the embeddings
        for name, layer in layers.items():
            if layer.is_head and name in infos and infos[name].sublayer == "Embedding":
                layers[name] = dataclasses.replace(layer, index=EMBEDDINGS)
    used = {layer.tower for layer in layers.values()}  # a stack under a second name is not another tower
    return layers, {tower: depth for tower, depth in depths.items() if tower in used}, guesses


def layers_of_names(
    names: list[str],
    rules: Optional[Rules],
    infos: Mapping[str, ParameterInfo],
    whole: bool = False,
) -> Found:
    """Return the layers of structured `names` in the model's order; `whole` if the names are complete.

    `infos` has the `ParameterInfo` of each name; it is empty if only names are known.
    """
    blocks = _find_blocks(names, rules, infos, whole)
    layers = _number_blocks(blocks)
    _place_by_name(names, blocks, layers)
    parts = _place_by_order(names, blocks, layers)
    layers = {name: layers[name] for name in names}
    guesses = guesses_of_lists(blocks.lists, blocks.by_rules, layers)
    guesses += _move_heads(parts, blocks, infos, layers)
    depths = {stack.tower: stack.depth for stack in blocks.lists.stacks}
    return layers, depths, guesses


def _find_blocks(names: list[str], rules: Optional[Rules], infos: Mapping[str, ParameterInfo], whole: bool) -> _Blocks:
    """Return the blocks that rules place, and the stacks among the other names; raise if there are none."""
    by_rules, numbered = apply_rules(names, rules)
    alone = all(index < 1 for index in by_rules.values())
    shapes = {name: info.shape for name, info in infos.items()}
    lists = find_stacks(names, by_rules.keys() | index_by_paths(names).keys(), whole, alone, shapes)
    in_stacks = max((stack.depth for stack in lists.stacks), default=0)
    close_gaps(by_rules, numbered, in_stacks)
    deepest = max([in_stacks, *by_rules.values()])
    check_found(names, lists, deepest)
    check_no_gap(by_rules, in_stacks, deepest)
    return _Blocks(by_rules, lists, deepest)


def _number_blocks(blocks: _Blocks) -> dict[str, Layer]:
    """Return the layers of parameters that rules place or that are in a stack."""
    depth = blocks.deepest
    layers = {name: Layer("", depth + 1 if index == HEAD else index, depth) for name, index in blocks.by_rules.items()}
    for stack in blocks.lists.stacks:
        layers.update({name: Layer(stack.tower, number + 1, stack.depth) for name, number in stack.numbers.items()})
        shared = [name for name in stack.numbers if ONE_FOR_ALL_BLOCKS.search(name)]
        if len(shared) == 1 < stack.depth:
            layers[shared[0]] = Layer(stack.tower, EMBEDDINGS, stack.depth)
    return layers


def _place_by_name(names: list[str], blocks: _Blocks, layers: dict[str, Layer]) -> None:
    """Add the embeddings and heads with a known name to `layers`."""
    index_of = index_by_paths(names)
    for name in [name for name in names if name not in layers]:
        common, _ = blocks.nearest(name)
        # without the parts shared with the tower: `ernie_embed.classifier` is not an embedding
        index = index_of.get(name, index_by_words(".".join(name.split(".")[common:])))
        if index is not None:
            layers[name] = blocks.outside(name, index)


def _place_by_order(names: list[str], blocks: _Blocks, layers: dict[str, Layer]) -> dict[str, PartBeforeBlocks]:
    """Add all other names to `layers`: embeddings before the blocks, the head after; return the parts before."""
    by_rules = {name: index for name, index in blocks.by_rules.items() if index > 0}
    first_by_rules = next((i for i, name in enumerate(names) if name in by_rules), 0)
    parts: dict[str, PartBeforeBlocks] = {}
    for position, name in enumerate(names):
        if name in layers:
            continue
        path, (common, nearest) = name.split(".")[:-1], blocks.nearest(name)
        first = min((stack.first for stack in nearest), default=first_by_rules)
        # a model's own parameters (`logit_scale`) come before its sublayers', so their position says nothing
        is_before = len(path) > common and position < first
        layers[name] = blocks.outside(name, 0 if is_before else HEAD)
        if is_before:
            numbers = [stack.numbers for stack in nearest] or [by_rules]
            part = PartBeforeBlocks([], numbers, layers[name].depth)
            parts.setdefault(".".join(path[: common + 1]), part).names.append(name)
    return parts


def _move_heads(
    parts: dict[str, PartBeforeBlocks], blocks: _Blocks, infos: Mapping[str, ParameterInfo], layers: dict[str, Layer]
) -> list[str]:
    """Move heads that are declared before the blocks from the embeddings to the head; return the guesses."""
    guesses = []
    in_blocks = {infos[name].tensor for stack in blocks.lists.stacks for name in stack.numbers} if infos else set()
    for branch, part in parts.items():
        is_shared = infos and all(infos[name].tensor in in_blocks for name in part.names)  # the block is lower
        moves, is_guess = (True, False) if is_shared else is_head(branch, parts, infos)
        if moves:
            layers.update({name: dataclasses.replace(layers[name], index=part.depth + 1) for name in part.names})
        if is_guess:
            where = "the head" if moves else "the embeddings"
            guesses.append(f"'{branch}' is declared before the blocks and counts as part of {where}")
    return guesses
