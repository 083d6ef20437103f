"""Find the stacks of blocks of a model in the names of its parameters; pure Python.

A *stack* is a numbered list of blocks, as in ``bert.encoder.layers.<i>``. Blocks in lists of stages are numbered
through all stages (Swin: ``layers.1.blocks.0`` follows the last block of stage 0). Lists of unlike parts within a block
(T5: ``block.0.layer.1``) and lists too small for blocks (an MLP head) are not stacks. A list with the name of a head or
an embedding is a stack only if it is larger than the other lists.
"""

from collections.abc import Container, Iterable, Mapping
from os.path import commonprefix
from typing import NamedTuple, Optional

from .known_names import BETWEEN_STAGES, NORM_BETWEEN_STAGES, PART_NAMES, STAGED_NAMES, STATISTICS, index_by_words
from .numbered_lists import Row, rows_of_lists

__all__ = ["Stack", "find_stacks"]

_MOST_BLOCKS = 10_000  # numbers from here on are keys (dates, ids), not positions

Parameters = set[tuple[str, ...]]  # the parameters of a block, by their names within it
Stages = dict[int, dict[int, Parameters]]  # stage -> block -> its parameters


class Stack:
    """A numbered list of blocks; unless `whole`, missing numbers below the last count as blocks."""

    def __init__(self, tower: str, rows: list[Row], in_names: bool, whole: bool, doubtful: bool) -> None:
        self.tower = tower  # its name, such as "bert.encoder.layers"
        self.doubtful = doubtful  # whether it is named like a head or an embedding
        self._in_names = in_names  # whether the numbers are parts of names, as in block1
        self.first = rows[0].position  # position of its first parameter among all names
        self.large = _are_large(_parameters_of(rows))
        stages = _stages(rows, sure=tower.rpartition(".")[2] in STAGED_NAMES)
        self.staged = stages is not None
        # whether its numbers are too large for positions, so that their order alone counts
        self.keyed = any(max(row.index, (self.staged and row.inner) or 0) >= _MOST_BLOCKS for row in rows)
        self.numbers: dict[str, int]  # structured name -> number of its block, from 0
        self._begins = {row.index: row.position for row in reversed(rows)}
        if stages is not None:
            self.numbers, self.depth, self._starts = _count_through(rows, stages, whole)
        else:
            self._starts = _ranks([row.index for row in rows], whole, in_names)
            self.numbers = {row.name: self._starts[row.index] for row in rows}
            self.depth = len(self._starts)
        self.long = self.depth >= 3  # a doubtful stack must be: Segmenter's head.blocks has two items

    @property
    def stages(self) -> list[int]:
        """The numbers of the first blocks of its stages; empty without stages."""
        return sorted(self._starts.values()) if self.staged else []

    def join(self, tower: str, rows: list[Row], shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Number a second list like this one of the same length, such as ConvNeXt's downsamplings, one per stage."""
        name, indexes = tower.rpartition(".")[2], {row.index for row in rows}
        fits = "<i>" not in name and len(indexes) > 1 and indexes == set(self._starts)
        are_small = not _are_large(_parameters_of(rows)) and (self.staged or _have_equal_shapes(rows, shapes))
        if not (self._is_beside(tower) and fits and (name in PART_NAMES or are_small)):
            return False
        for row in rows:
            if row.index or not self.staged or row.position > self.first:  # parameters before all stages are the stem
                self.numbers[row.name] = self._starts[row.index]
        return True

    def take_between(self, tower: str, rows: list[Row]) -> bool:
        """Number a list beside stages with their numbers: SegFormer's patch_embed2 and norm1.

        A norm belongs to the last block of its stage, downsampling to the last block of the previous stage. Norms of a
        backbone's outputs, Swin's norm3 beside layers.3, are not between stages.
        """
        name, indexes = tower.rpartition(".")[2], {row.index for row in rows}
        is_between = BETWEEN_STAGES.match(name) or (self._in_names and NORM_BETWEEN_STAGES.match(name))
        fits = indexes <= set(self._starts) if "<i>" in name else indexes == set(self._starts)
        if not (self.staged and self._is_beside(tower) and is_between and fits):
            return False
        ends = dict(zip(sorted(self._starts), [*self.stages[1:], self.depth]))  # stage -> number behind its last block
        for row in rows:
            behind = row.position > self._begins[row.index]
            end = ends[row.index] if behind else self._starts[row.index]
            if end:  # a list before the first stage is not between two stages
                self.numbers[row.name] = end - 1
        return True

    def _is_beside(self, tower: str) -> bool:
        """Return whether another list is in the same sublayer."""
        return tower.rpartition(".")[0] == self.tower.rpartition(".")[0]


class FoundLists(NamedTuple):
    """The numbered lists of a model: stacks and all others."""

    stacks: list[Stack]
    others: dict[str, int]  # other lists that may be of blocks: name -> length
    single: dict[str, int]  # lists of single layers: name -> length


def find_stacks(
    names: list[str], placed: Container[str], whole: bool, alone: bool, shapes: Mapping[str, tuple[int, ...]]
) -> FoundLists:
    """Return the stacks, other lists that may be of blocks (name -> length), and lists of single layers.

    Args:
        names: structured names of parameters in the model's order.
        placed: names that need no stack; missing numbers of their lists count as blocks.
        whole: whether `names` are complete, so that missing numbers are not blocks.
        alone: whether all blocks are in `names`, so that at least one list is a stack.
        shapes: name of a parameter -> its shape, if known.
    """
    block_lists, unknown, partial = rows_of_lists(names, placed)
    # a word that begins the names of all lists cannot tell one list from another
    common = len(commonprefix([key.tower.split(".") for key in block_lists])) if len(block_lists) > 1 else 0
    lists = []
    for key, rows in block_lists.items():
        tower = f"{key.tower}<i>" if key.in_names and key._replace(in_names=False) in block_lists else key.tower
        doubtful = _is_doubtful(".".join(key.tower.split(".")[common:]))
        lists.append(Stack(tower, rows, key.in_names, whole and key not in partial, doubtful))
    stacks = _lists_of_blocks(lists, alone)
    others = {s.tower: s.depth for s in lists if s not in stacks and not s.doubtful and s.long}
    found_lists = FoundLists(stacks, others, {})
    in_stacks = {name for stack in stacks for name in stack.numbers}
    for name, rows in unknown.items():
        if any(stack.take_between(name, rows) for stack in stacks) or any(row.name in in_stacks for row in rows):
            continue
        if not _is_doubtful(name) and any(stack.join(name, rows, shapes) for stack in stacks):
            continue
        _note_other(name, rows, found_lists)
    return found_lists


def _is_doubtful(name: str) -> bool:
    """Return whether a list is named like a head or an embedding."""
    return index_by_words(name) is not None


def _note_other(tower: str, rows: list[Row], found_lists: FoundLists) -> None:
    """Add a list that is not a stack to the lists of possible blocks, or to the lists of single layers."""
    length, parameters, doubtful = len({row.token for row in rows}), _parameters_of(rows), _is_doubtful(tower)
    if "<i>" in tower:  # SENet's stem, conv1_1 to conv1_3, is too short; MobileNetV1's blocks: two convolutions, norms
        are_large, may_be_blocks = _are_large(parameters, 6), length >= 4 and not doubtful
    else:
        are_large, may_be_blocks = _are_large(parameters), length >= 2
    if are_large and may_be_blocks:
        found_lists.others[tower] = length
    elif not are_large and length >= 4 and not doubtful:  # fewer are part of a layer: MobileNetV3's conv.0 and conv.1
        found_lists.single[tower] = length


def _lists_of_blocks(lists: list[Stack], alone: bool) -> list[Stack]:
    """Return the most credible stacks: large lists first, then lists with fitting names; any list if `alone`."""
    large = [stack for stack in lists if stack.large]
    choices = [
        [stack for stack in large if not stack.doubtful or stack.long],
        [stack for stack in lists if not stack.doubtful or (alone and stack.long)],
        *([large, lists] if alone else []),
    ]
    return next(filter(None, choices), [])


def _parameters_of(rows: list[Row]) -> Parameters:
    """Return the parameters of the items of a list, without the statistics of BatchNorm."""
    return {row.rest for row in rows if row.rest[-1] not in STATISTICS}


def _are_large(parameters: Parameters, least: int = 3) -> bool:
    """Return whether items are large enough for blocks; the convolutions of VGG's `features` have two parameters."""
    return len(parameters) >= least


def _have_equal_shapes(rows: list[Row], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether each parameter has one shape in all items, unlike in ``Sequential(LayerNorm, Linear)``."""
    return len({(row.rest, shapes.get(row.name)) for row in rows}) == len({row.rest for row in rows})


def _are_blocks_of_stage(items: Mapping[int, Parameters]) -> bool:
    """Return whether the inner items of a list's item are blocks: large and alike, unlike T5's ``block.0.layer.<i>``.

    Half of the parameters of an item may differ: ResNet18 projects the shortcut in its first block only. The first of
    three or more items may be a downsampling.
    """
    *others, last = [items[index] for index in sorted(items)]
    compared = others[1:] if len(others) > 1 else others
    return _are_large(last) and all(2 * len(last & other) >= len(last | other) for other in compared)


def _ranks(indexes: Iterable[int], whole: bool, in_names: bool = False) -> dict[int, int]:
    """Return index in a list -> number from 0; missing indexes count unless `whole`, or if indexes are keys."""
    ordered = sorted(set(indexes))
    if ordered and not whole and ordered[-1] < _MOST_BLOCKS:
        ordered = list(range(1 if in_names and ordered[0] else 0, ordered[-1] + 1))
    return {index: number for number, index in enumerate(ordered)}


def _stages(rows: list[Row], sure: bool) -> Optional[Stages]:
    stages: Stages = {row.index: {} for row in rows}
    for row in rows:
        if row.inner is not None:
            stages[row.index].setdefault(row.inner, set()).add(row.inner_rest)
    are_stages = sure or all(_are_blocks_of_stage(items) for items in stages.values() if items)
    in_items = sum(row.inner is not None for row in rows)
    return stages if are_stages and 2 * in_items > len(rows) else None


def _count_through(rows: list[Row], stages: Stages, whole: bool) -> tuple[dict[str, int], int, dict[int, int]]:
    """Number the blocks of all stages one after another; a stage's own parameters go to the nearest block."""
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
        elif not ranks[row.index]:  # FasterNet: downsampling in a stage of its own
            number -= 1
        numbers[row.name] = min(max(number, 0), total - 1)
    return numbers, total, starts
