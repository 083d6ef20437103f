"""Find the stacks of blocks of a model in the names of its parameters; pure Python.

A *stack* is a numbered list of blocks, as in ``bert.encoder.layers.<i>``. Blocks in lists of stages are counted through
(Swin: ``layers.1.blocks.0`` follows the last block of stage 0). Lists of unlike parts within a block (T5:
``block.0.layer.1``) and lists too small for blocks (an MLP head) are not stacks. A list with the name of a head or an
embedding must be larger than others to be one.
"""

import dataclasses
import os
import re
import string
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any, Callable, NamedTuple, Optional

__all__ = ["Stack", "find_stacks"]

STACK_NAMES = frozenset(["layers", "layer", "h", "block", "blocks", "resblocks", "stages", "stage", "attentions"])
STACK_NAMES |= {"albert_layer_groups", "albert_layers", "res", "bb", "bottleneck", "_blocks"}
_ALWAYS_STAGED = frozenset(["res", "bb"])  # ResNets in PaddleDetection, res2.res2a, and in PaddleClas, bb_0_0
_OUTER_NAMES = frozenset(["encoders", "decoders"])  # stacks, unless their items have stacks (several encoders)
# names of parts of blocks, which may be as large as blocks
_BESIDE_NAMES = frozenset(["ffns", "encoder_attn", "cross_attn", "downsample_layers"])
_BETWEEN = re.compile(r"^(patch_embed(ding)?s?|sub_sample|norms?)(<i>)?$")  # between two stages
_FUSED = re.compile(r"^(layers?|stages?|blocks?|res|bottleneck)(\d+)$")  # ResNet: layer1.0, layer2.0
_FUSED_PATH = re.compile(r"((?:^|\.)(?:layers?|stages?|blocks?|res|bottleneck))\d+$")
_REPEATED = re.compile(r"\bstage\.(\d+)\.(?:stage\.\1\.|basicblock(?=0\.))")  # DarkNet: stage.1.stage.1.2
_BOTH = re.compile(r"^(bb)_(\d+)_(\d+)$")  # a stage and a block in it
_LETTER = re.compile(r"^([a-z])(\d*)$")  # the letter of a block: res4a, res4b, or res4b1 in deep ResNets
_NUMBER = re.compile(r"\d+([a-z](?![a-zA-Z]))?")  # within a part of a name: conv2_1, _ince3a
_MIN_KINDS = 3  # a list whose items have fewer kinds of parameters holds single layers, not blocks
_MIN_PARTS = 4  # parts such as conv1, conv2, ... may be blocks from this number on,
_MIN_KINDS_OF_PART = 6  # and if they are more than two convolutions or a convolution and a norm
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
    inner: Optional[int] = None  # the index in a list directly below, if any
    inner_rest: tuple[str, ...] = ()
    token: str = ""  # the part of the name that has the index

    def __post_init__(self) -> None:
        named = len(self.rest) > 2 and self.rest[0] in STACK_NAMES
        if is_index(self.rest[named]):
            self.inner, self.inner_rest = int(self.rest[named]), self.rest[named + 1 :]


_ListKey = tuple[str, bool]  # name of a list, and whether it is made of `layer1`, `layer2`
_Rows = dict[_ListKey, list[_Row]]


class Stack:
    """A numbered list of blocks; unless `whole`, missing numbers below the last count as blocks."""

    def __init__(self, tower: str, rows: list[_Row], from_one: bool, whole: bool, doubted: bool) -> None:
        self.tower = tower  # its name, such as "bert.encoder.layers"
        self.doubted = doubted  # whether it is named like a head or an embedding
        self._in_names = from_one  # whether the numbers are parts of names, as in block1
        self.first = rows[0].position  # position of its first parameter among all names
        self.large = _kinds(rows) >= _MIN_KINDS
        stages = _stages(rows, sure=tower.rpartition(".")[2] in _ALWAYS_STAGED)
        self.staged = stages is not None
        # whether its numbers are too large for positions, so that their order alone counts
        self.keyed = any(max(row.index, (self.staged and row.inner) or 0) >= _MOST_BLOCKS for row in rows)
        self.numbers: dict[str, int]  # structured name -> number of its block, from 0
        self._begins = {row.index: row.position for row in reversed(rows)}
        if stages is not None:
            self.numbers, self.depth, self._starts = _count_through(rows, stages, whole)
        else:
            self._starts = _ranks([row.index for row in rows], whole, from_one)
            self.numbers = {row.name: self._starts[row.index] for row in rows}
            self.depth = len(self._starts)
        self.long = self.depth >= _MIN_BLOCKS

    @property
    def stages(self) -> list[int]:
        """The numbers of the first blocks of its stages; empty without stages."""
        return sorted(self._starts.values()) if self.staged else []

    def join(self, tower: str, rows: list[_Row], shapes: Mapping[str, Any]) -> bool:
        """Number a second list like this one of the same length, such as ConvNeXt's downsamplings, one per stage."""
        parent, _, name = tower.rpartition(".")
        beside = parent == self.tower.rpartition(".")[0] and {row.index for row in rows} == set(self._starts)
        kinds_and_shapes = {(row.rest, None if self.staged else shapes.get(row.name)) for row in rows}
        alike = len(kinds_and_shapes) == len({row.rest for row in rows})  # unlike Sequential(LayerNorm, Linear)
        part = name in _BESIDE_NAMES or (alike and _kinds(rows) < _MIN_KINDS)
        if not (beside and part and len(self._starts) > 1) or "<i>" in name:
            return False
        for row in rows:
            if row.index or not self.staged or row.position > self.first:  # parameters before all stages are the stem
                self.numbers[row.name] = self._starts[row.index]
        return True

    def take_between(self, tower: str, rows: list[_Row]) -> bool:
        """Number a list beside stages with their numbers: SegFormer's patch_embed2 and norm1.

        A norm belongs to the last block of its stage, downsampling to the last block of the previous stage. Norms of a
        backbone's outputs, Swin's norm3 beside layers.3, are not between stages.
        """
        parent, _, name = tower.rpartition(".")
        missing = set(self._starts) - {row.index for row in rows}
        beside = parent == self.tower.rpartition(".")[0] and set(self._starts).issuperset(row.index for row in rows)
        of_outputs = name.startswith("norm") and not self._in_names
        if not (self.staged and beside and _BETWEEN.match(name)) or of_outputs or (missing and "<i>" not in name):
            return False
        ends = dict(zip(sorted(self._starts), [*self.stages[1:], self.depth]))  # stage -> number behind its last block
        for row in rows:
            behind = row.position > self._begins[row.index]
            end = ends[row.index] if behind else self._starts[row.index]
            if end:  # a list before the first stage is not between two stages
                self.numbers[row.name] = end - 1
        return True


class NumberedLists(NamedTuple):
    """The numbered lists of a model."""

    stacks: list[Stack]
    others: dict[str, int]  # other lists that may be of blocks: name -> length
    single: dict[str, int]  # lists of single layers: name -> length


def find_stacks(
    names: list[str],
    placed: Container[str],
    doubted: Callable[[str], bool],
    whole: bool,
    alone: bool,
    shapes: Mapping[str, Any],
) -> NumberedLists:
    """Return the stacks, other lists that may be of blocks (name -> length), and lists of single layers.

    Args:
        names: structured names of parameters in the model's order.
        placed: names that need no stack; missing numbers of their lists count as blocks.
        doubted: name of a list -> whether it is named like a head or an embedding.
        whole: whether `names` are complete, so that missing numbers are not blocks.
        alone: whether all blocks are in `names`, so that at least one list is a stack.
        shapes: name of a parameter -> its shape, if known.
    """
    known, unknown, partial = _rows_of_lists(names, placed)
    _merge_halves(known)
    # a word that begins the names of all lists cannot tell one list from another
    common = len(os.path.commonprefix([tower.split(".") for tower, _ in known])) if len(known) > 1 else 0
    lists = []
    for (tower, fused), rows in known.items():
        name = f"{tower}<i>" if fused and (tower, False) in known else tower
        is_whole = whole and (tower, fused) not in partial
        lists.append(Stack(name, rows, fused, is_whole, doubted(".".join(tower.split(".")[common:]))))
    stacks = _lists_of_blocks(lists, alone)
    found = NumberedLists(stacks, {s.tower: s.depth for s in lists if s not in stacks and not s.doubted and s.long}, {})
    in_stacks = {name for stack in stacks for name in stack.numbers}
    for tower, rows in unknown.items():
        if any(stack.take_between(tower, rows) for stack in stacks) or any(row.name in in_stacks for row in rows):
            continue
        if not doubted(tower) and any(stack.join(tower, rows, shapes) for stack in stacks):
            continue
        _note_other(tower, rows, doubted(tower), found)
    return found


def _rows_of_lists(names: list[str], placed: Container[str]) -> tuple[_Rows, dict[str, list[_Row]], set[_ListKey]]:
    """Return the rows of lists with and without a known name, and the lists with a parameter that is `placed`."""
    known: _Rows = {}
    unknown: dict[str, list[_Row]] = {}
    partial = set()
    with_stacks = _paths_with_stacks(names)
    for position, name in enumerate(names):
        tokens, fused = _tokens(name, with_stacks)
        for k in range(len(tokens) - 1):
            tower, number = ".".join(tokens[:k]), _NUMBER.search(tokens[k])
            if number is None:
                continue
            is_item = k > 0 and is_index(tokens[k])
            outer = k > 0 and tokens[k - 1] in _OUTER_NAMES and f"{tower}.*" not in with_stacks
            is_known = is_item and (tokens[k - 1] in STACK_NAMES or outer)
            if not is_item:
                tower = ".".join([*tokens[:k], _NUMBER.sub("<i>", tokens[k])])
            row = _Row(name, position, _number(number[0]), tuple(tokens[k + 1 :]), token=tokens[k])
            if name in placed:
                partial.add((tower, fused))
            elif is_known:
                known.setdefault((tower, fused), []).append(row)
            else:
                unknown.setdefault(tower, []).append(row)
            if is_known:  # lists further in belong to this one
                break
    return known, unknown, partial


def _note_other(tower: str, rows: list[_Row], doubted: bool, found: NumberedLists) -> None:
    """Add a list that is no stack to the lists that may be of blocks, or to those of single layers."""
    length, kinds, in_parts = len({row.token for row in rows}), _kinds(rows), "<i>" in tower
    least, shortest = (_MIN_KINDS_OF_PART, _MIN_PARTS) if in_parts else (_MIN_KINDS, 2)
    if kinds >= least and length >= shortest and not (in_parts and doubted):
        found.others[tower] = length
    elif kinds < least and length >= _MIN_PARTS and not doubted:
        found.single[tower] = length


def _merge_halves(known: _Rows) -> None:
    """Join lists with two names, in place: EfficientNet's `block`, which lacks the numbers of `_blocks`."""
    for tower, fused in [key for key in known if key[0].rpartition(".")[2] == "_blocks"]:
        other = (f"{tower.removesuffix('_blocks')}block", fused)
        rows = known[tower, fused]
        if not {row.index for row in known.get(other, rows)} & {row.index for row in rows}:
            known[tower, fused] = sorted(rows + known.pop(other), key=lambda row: row.position)


def _lists_of_blocks(lists: list[Stack], alone: bool) -> list[Stack]:
    """Return the most credible stacks: large lists first, then lists with fitting names; any list if `alone`."""
    large = [stack for stack in lists if stack.large]
    choices = [
        [stack for stack in large if not stack.doubted or stack.long],
        [stack for stack in lists if not stack.doubted or (alone and stack.long)],
        *([large, lists] if alone else []),
    ]
    return next(filter(None, choices), [])


def is_index(token: str) -> bool:
    """Return whether a part of a name is the index of a list item."""
    return token.isdecimal() and len(token) <= 18


def _kinds(rows: list[_Row]) -> int:
    """Return the number of kinds of parameters in the items of a list, without the statistics of BatchNorm."""
    return len({row.rest for row in rows if row.rest[-1] not in ("_mean", "_variance")})


def _ranks(indexes: Iterable[int], whole: bool, from_one: bool = False) -> dict[int, int]:
    """Return index in a list -> number from 0; missing indexes count unless `whole`, or if indexes are keys."""
    ordered = sorted(set(indexes))
    if ordered and not whole and ordered[-1] < _MOST_BLOCKS:
        ordered = list(range(1 if from_one and ordered[0] else 0, ordered[-1] + 1))
    return {index: number for number, index in enumerate(ordered)}


def _number(digits: str) -> int:
    return int(digits.rstrip(string.ascii_letters)[:18])


def _paths_with_stacks(names: list[str]) -> set[str]:
    """Return the paths right above lists of blocks: `encoders.0` of ``encoders.0.layers.0``, and `encoders.*`.

    A single `stage1` is left out.
    """
    paths = set()
    for name in names:
        parts = name.split(".")
        for k in range(1, len(parts) - 1):
            if parts[k] in STACK_NAMES and is_index(parts[k + 1]):
                above = parts[:k]
                paths.add(".".join(above))
                paths |= {".".join([*above[:i], "*"]) for i in range(1, k) if is_index(above[i])}
    bases = {path: _FUSED_PATH.sub(r"\1", path) for path in paths}
    times = Counter(bases.values())
    return {path for path, base in bases.items() if base == path or times[base] > 1}


def _tokens(name: str, with_stacks: set[str]) -> tuple[list[str], bool]:
    """Split a name at its dots and before numbers in parts; return whether a part had a number.

    ResNet's ``layer1.0`` becomes ``layer``, ``1``, ``0``, and so do ``layer1.blocks.0``, ``res1.res1a`` and ``bb_1_0``.
    """
    parts = _REPEATED.sub(r"stage.\1.", name).split(".")
    out: list[str] = []
    k, fused = 0, False
    while k < len(parts):
        here, after = parts[k], parts[k + 1] if k + 1 < len(parts) else ""
        match, stage_and_block = _FUSED.match(here), _BOTH.match(here)
        letter = _LETTER.match(after[len(here) :]) if match and after.startswith(here) else None
        if stage_and_block:
            out += stage_and_block.groups()
        elif match and letter:
            out += [*match.groups(), letter[2] or str(ord(letter[1]) - ord("a"))]
            k += 1
        elif match and (is_index(after) or ".".join(parts[: k + 1]) in with_stacks):
            out += match.groups()
        else:
            out.append(here)
        fused = fused or out[-1] != parts[k]
        k += 1
    return out, fused


def _stages(rows: list[_Row], sure: bool) -> Optional[dict[int, dict[int, set[tuple[str, ...]]]]]:
    """Return stage -> block -> kinds of its parameters if the list consists of stages, None otherwise."""
    stages: dict[int, dict[int, set[tuple[str, ...]]]] = {row.index: {} for row in rows}
    for row in rows:
        if row.inner is not None:
            stages[row.index].setdefault(row.inner, set()).add(row.inner_rest)
    for blocks in filter(None, () if sure else stages.values()):
        *others, last = [blocks[index] for index in sorted(blocks)]
        alike = [len(last & other) >= _MIN_ALIKE * len(last | other) for other in others]
        if len(last) < _MIN_KINDS or not all(alike[1:] if len(alike) > 1 else alike):  # the first may be a downsampling
            return None
    return stages if 2 * sum(row.inner is not None for row in rows) > len(rows) else None


def _count_through(rows: list[_Row], stages: dict[int, Any], whole: bool) -> tuple[dict[str, int], int, dict[int, int]]:
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
