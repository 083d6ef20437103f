"""Find the stacks of blocks of a model in the names of its parameters: pure Python, without Paddle.

A *stack* is a numbered list of blocks, as in ``bert.encoder.layers.<i>``. Three things make it more than a regex: lists
of stages are counted through (Swin: ``layers.1.blocks.0`` follows the last block of stage 0), lists of unlike parts
within a block are not (T5: ``block.0.layer.1``), and lists too small to be of blocks are passed over (an MLP head). A
name may decide between lists: one called like a head or an embedding has to be larger than others to be a stack.
"""

import dataclasses
import os
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, Callable, Optional

__all__ = ["Stack", "find_stacks"]

STACK_NAMES = frozenset(["layers", "layer", "h", "block", "blocks", "resblocks", "stages", "stage", "attentions"])
STACK_NAMES |= {"albert_layer_groups", "albert_layers"}
_BESIDE_NAMES = frozenset(["ffns", "encoder_attn", "downsample_layers"])  # parts of blocks that are as large as blocks
_FUSED = re.compile(r"^(layer|stage|block)(\d+)$")  # ResNet: layer1.0, layer2.0
_MIN_KINDS = 3  # a list whose items have fewer kinds of parameters holds single layers, not blocks
_MIN_BLOCKS = 3  # a list called like a head or an embedding needs as many blocks to be a stack beside others
_MOST_BLOCKS = 10_000  # numbers from here on are keys (dates, ids), not positions
_MIN_ALIKE = 0.5  # Jaccard similarity from which on inner items count as blocks of one kind


@dataclasses.dataclass
class _Row:
    """One parameter within a numbered list: ``<prefix>.<index>.<rest>``."""

    name: str
    position: int
    index: int
    rest: tuple[str, ...]
    inner: Optional[int] = None  # the index in a list directly below, if there is one
    inner_rest: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = len(self.rest) > 2 and self.rest[0] in STACK_NAMES
        if is_index(self.rest[named]):
            self.inner, self.inner_rest = int(self.rest[named]), self.rest[named + 1 :]


class Stack:
    """A numbered list of blocks; missing ones below the last are counted, unless `whole`."""

    def __init__(self, tower: str, rows: list[_Row], from_one: bool, whole: bool, doubted: bool) -> None:
        self.tower = tower  # its name, such as "bert.encoder.layers"
        self.doubted = doubted  # whether it is named like a head or an embedding
        self.first = rows[0].position  # of its parameters, among all names
        self.large = _kinds(rows) >= _MIN_KINDS
        stages = _stages(rows)
        self.staged = stages is not None
        # whether its numbers are too large for positions, so that their order alone counts
        self.keyed = any(max(row.index, (self.staged and row.inner) or 0) >= _MOST_BLOCKS for row in rows)
        self.numbers: dict[str, int]  # structured name -> number of its block, from 0
        if stages is not None:
            self.numbers, self.depth, self._starts = _count_through(rows, stages, whole)
        else:
            self._starts = _ranks([row.index for row in rows], whole, from_one)
            self.numbers = {row.name: self._starts[row.index] for row in rows}
            self.depth = len(self._starts)
        self.long = self.depth >= _MIN_BLOCKS

    @property
    def stages(self) -> list[int]:
        """The numbers of the first blocks of its stages; none if it has no stages."""
        return sorted(self._starts.values()) if self.staged else []

    def take_in(self, tower: str, rows: list[_Row], shapes: Mapping[str, Any]) -> bool:
        """Number a list beside this one that is as long: XLM's parts of a block, ConvNeXt's downsampling of a stage."""
        parent, _, name = tower.rpartition(".")
        beside = parent == self.tower.rpartition(".")[0] and {row.index for row in rows} == set(self._starts)
        kinds_and_shapes = {(row.rest, shapes.get(row.name)) for row in rows}
        alike = len(kinds_and_shapes) == len({row.rest for row in rows})  # unlike Sequential(LayerNorm, Linear)
        part = name in _BESIDE_NAMES or (alike and _kinds(rows) < _MIN_KINDS)
        if not (beside and part and len(self._starts) > 1):
            return False
        for row in rows:
            if row.index or not self.staged:  # a parameter before the first stage belongs to the stem
                self.numbers[row.name] = self._starts[row.index]
        return True


def find_stacks(
    names: list[str],
    placed: Container[str],
    doubted: Callable[[str], bool],
    whole: bool,
    alone: bool,
    shapes: Mapping[str, Any],
) -> tuple[list[Stack], dict[str, int]]:
    """Return the stacks of blocks, and name -> length of the other lists that may be of blocks.

    Args:
        names: structured names of parameters in the model's order.
        placed: names that are placed without a stack; their lists count missing numbers as blocks.
        doubted: name of a list -> whether it is named like a head or an embedding.
        whole: whether `names` are all names of the model, so that missing numbers are not blocks.
        alone: whether `names` hold all blocks of the model, so that one of the lists is a stack.
        shapes: name of a parameter -> its shape, as far as it is known.
    """
    known: dict[tuple[str, bool], list[_Row]] = {}  # (name, whether it is made of `layer1`, `layer2`) -> rows
    unknown: dict[str, list[_Row]] = {}
    partial = set()  # lists with a parameter that is placed without them
    for position, name in enumerate(names):
        tokens, fused = _tokens(name)
        for k in [k for k in range(1, len(tokens) - 1) if is_index(tokens[k])]:
            tower, is_known = ".".join(tokens[:k]), tokens[k - 1] in STACK_NAMES
            row = _Row(name, position, int(tokens[k]), tuple(tokens[k + 1 :]))
            if name in placed:
                partial.add((tower, fused))
            elif is_known:
                known.setdefault((tower, fused), []).append(row)
            else:
                unknown.setdefault(tower, []).append(row)
            if is_known:  # lists further in belong to this one
                break
    # a word that begins the names of all lists cannot tell one list from another
    common = len(os.path.commonprefix([tower.split(".") for tower, _ in known])) if len(known) > 1 else 0
    lists = []
    for (tower, fused), rows in known.items():
        name = f"{tower}<i>" if fused and (tower, False) in known else tower
        all_there = whole and (tower, fused) not in partial
        lists.append(Stack(name, rows, fused, all_there, doubted(".".join(tower.split(".")[common:]))))
    stacks = _lists_of_blocks(lists, alone)
    inside = {name for stack in stacks for name in stack.numbers}
    others = {s.tower: s.depth for s in lists if s not in stacks and not s.doubted and s.long}
    for tower, rows in unknown.items():
        taken = any(row.name in inside for row in rows)
        if taken or (not doubted(tower) and any(stack.take_in(tower, rows, shapes) for stack in stacks)):
            continue
        length = len({row.index for row in rows})
        if _kinds(rows) >= _MIN_KINDS and length > 1:
            others[tower] = length
    return stacks, others


def _lists_of_blocks(lists: list[Stack], alone: bool) -> list[Stack]:
    """Return the lists to trust most: large ones first, then well-named ones; if one has to be a stack, any."""
    large = [stack for stack in lists if stack.large]
    choices = [
        [stack for stack in large if not stack.doubted or stack.long],
        [stack for stack in lists if not stack.doubted or (alone and stack.long)],
        *([large, lists] if alone else []),
    ]
    return next(filter(None, choices), [])


def is_index(token: str) -> bool:
    """Return whether a part of a name is the number of an item of a list."""
    return token.isdecimal() and len(token) <= 18


def _kinds(rows: list[_Row]) -> int:
    """Return how many kinds of parameters the items of a list have; the statistics of BatchNorm are none."""
    return len({row.rest for row in rows if row.rest[-1] not in ("_mean", "_variance")})


def _ranks(indexes: Iterable[int], whole: bool, from_one: bool = False) -> dict[int, int]:
    """Return index in a list -> number from 0; missing indexes count, but not if there are all names, nor for keys."""
    found = sorted(set(indexes))
    if found and not whole and found[-1] < _MOST_BLOCKS:
        found = list(range(1 if from_one and found[0] else 0, found[-1] + 1))
    return {index: number for number, index in enumerate(found)}


def _tokens(name: str) -> tuple[list[str], bool]:
    """Split a name at its dots, and ResNet's ``layer1.0`` into ``layer``, ``1``, ``0``; return whether there is one."""
    parts = name.split(".")
    out: list[str] = []
    for here, after in zip(parts, [*parts[1:], ""]):
        match = _FUSED.match(here) if is_index(after) else None
        out += match.groups() if match else [here]
    return out, len(out) > len(parts)


def _stages(rows: list[_Row]) -> Optional[dict[int, dict[int, set[tuple[str, ...]]]]]:
    """Return stage -> block in it -> kinds of its parameters if the list is one of stages, each a list of blocks."""
    stages: dict[int, dict[int, set[tuple[str, ...]]]] = {row.index: {} for row in rows}
    for row in rows:
        if row.inner is not None:
            stages[row.index].setdefault(row.inner, set()).add(row.inner_rest)
    for blocks in filter(None, stages.values()):
        first = blocks[min(blocks)]
        if len(first) < _MIN_KINDS or any(len(first & b) < _MIN_ALIKE * len(first | b) for b in blocks.values()):
            return None
    return stages if 2 * sum(row.inner is not None for row in rows) > len(rows) else None


def _count_through(rows: list[_Row], stages: dict[int, Any], whole: bool) -> tuple[dict[str, int], int, dict[int, int]]:
    """Number the blocks of all stages one after another; a stage's own parameters go with the block next to them."""
    ranks, starts, total = {}, {}, 0
    for stage in sorted(stages):
        ranks[stage], starts[stage] = _ranks(stages[stage], whole), total
        total += len(ranks[stage])
    numbers, begun = {}, set()
    for row in rows:
        number = starts[row.index]
        if row.inner is not None:
            begun.add(row.index)
            number += ranks[row.index][row.inner]
        elif row.index in begun:  # downsampling behind the stage's blocks
            number += len(ranks[row.index]) - 1
        numbers[row.name] = min(number, total - 1)
    return numbers, total, starts
