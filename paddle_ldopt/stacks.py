"""Find the stacks of blocks of a model in the names of its parameters: pure Python, a leaf of the import graph.

A *stack* is a numbered list of blocks, as in ``bert.encoder.layers.<i>``. Three things make it more than a regex: lists
of stages are counted through (Swin: ``layers.1.blocks.0`` follows the last block of stage 0), lists of unlike parts
within a block are not (T5: ``block.0.layer.1``), and lists too small to be of blocks are passed over (an MLP head).
"""

import dataclasses
import re
from typing import Any, Callable, Optional

__all__ = ["Stack", "find_stacks"]

STACK_NAMES = frozenset(
    [
        "layers",
        "layer",
        "h",
        "block",
        "blocks",
        "resblocks",
        "stages",
        "stage",
        "attentions",
        "albert_layer_groups",
        "albert_layers",
    ]
)
_BESIDE_NAMES = frozenset(["ffns", "encoder_attn", "downsample_layers"])  # parts of blocks that are as large as blocks
_FUSED = re.compile(r"^(layer|stage|block)(\d+)$")  # ResNet: layer1.0, layer2.0
_MIN_KINDS = 3  # a list whose items have fewer kinds of parameters holds single layers, not blocks
_MIN_ALIKE = 0.5  # Jaccard similarity from which on inner items count as blocks of one kind


@dataclasses.dataclass
class _Row:
    """One parameter within a numbered list: ``<prefix>.<index>.<rest>``."""

    name: str
    position: int
    index: int
    rest: tuple[str, ...]

    @property
    def inner(self) -> Optional[int]:
        """The index in a list directly below, if there is one."""
        if self.rest[0].isdigit():
            return int(self.rest[0])
        return (
            int(self.rest[1]) if len(self.rest) > 2 and self.rest[0] in STACK_NAMES and self.rest[1].isdigit() else None
        )

    @property
    def inner_rest(self) -> tuple[str, ...]:
        return self.rest[1:] if self.rest[0].isdigit() else self.rest[2:]


class Stack:
    """A numbered list of blocks.

    Attributes:
        tower (str): its name, such as "bert.encoder.layers".
        numbers (dict[str, int]): structured name -> number of its block, from 0.
        depth (int): how many blocks there are; missing ones below the last are counted.
        first (int): position of its first parameter among all names.
    """

    def __init__(self, tower: str, rows: list[_Row], from_one: bool):
        self.tower = tower
        self.first = rows[0].position
        self.kinds = len({row.rest for row in rows})
        self.staged = _counts_through(rows)
        if self.staged:
            self.numbers, self.depth, self._starts = _count_through(rows)
        else:
            offset = 1 if from_one else 0
            self.numbers = {row.name: row.index - offset for row in rows}
            self.depth = 1 + max(self.numbers.values())
            self._starts = {i: i for i in range(self.depth)}

    def take_in(self, tower: str, rows: list[_Row]) -> bool:
        """Number a list beside this one that is as long: XLM's parts of a block, ConvNeXt's downsampling of a stage."""
        parent, _, name = tower.rpartition(".")
        beside = parent == self.tower.rpartition(".")[0] and {row.index for row in rows} == set(self._starts)
        part = name in _BESIDE_NAMES or len({row.rest for row in rows}) < _MIN_KINDS
        if not (beside and part and len(self._starts) > 1):
            return False
        for row in rows:
            if row.index or not self.staged:  # what stands before the first stage is the stem
                self.numbers[row.name] = self._starts[row.index]
        return True


def find_stacks(
    names: list[str], passed_over: Callable[[str], Any] = lambda tower: False
) -> tuple[list[Stack], dict[str, int]]:
    """Find the stacks of blocks in structured parameter names.

    Args:
        names (list[str]): the names in the model's order.
        passed_over (callable, optional): name of a list -> whether it belongs to something that is no stack (a head).

    Returns:
        tuple[list[Stack], dict[str, int]]: the stacks, and the lists that look like blocks but are called otherwise,
            with their lengths.
    """
    known: dict[str, list[_Row]] = {}
    unknown: dict[str, list[_Row]] = {}
    from_one = set()
    for position, name in enumerate(names):
        tokens, fused = _tokens(name)
        for k in range(1, len(tokens) - 1):
            if not tokens[k].isdigit():
                continue
            tower = ".".join(tokens[:k])
            row = _Row(name, position, int(tokens[k]), tuple(tokens[k + 1 :]))
            if passed_over(tower):
                break
            if tokens[k - 1] in STACK_NAMES:  # lists further in belong to this one
                known.setdefault(tower, []).append(row)
                if fused:
                    from_one.add(tower)
                break
            unknown.setdefault(tower, []).append(row)
    stacks = [Stack(tower, rows, tower in from_one) for tower, rows in known.items()]
    stacks = [stack for stack in stacks if stack.kinds >= _MIN_KINDS] or stacks
    inside = {name for stack in stacks for name in stack.numbers}
    others = {}
    for tower, rows in unknown.items():
        if any(row.name in inside for row in rows) or any(stack.take_in(tower, rows) for stack in stacks):
            continue
        if len({row.rest for row in rows}) >= _MIN_KINDS and len({row.index for row in rows}) > 1:
            others[tower] = 1 + max(row.index for row in rows)
    return stacks, others


def _tokens(name: str) -> tuple[list[str], bool]:
    """Split a name at its dots, and ResNet's ``layer1.0`` into ``layer``, ``1``, ``0``."""
    parts, fused = name.split("."), False
    out: list[str] = []
    for here, after in zip(parts, [*parts[1:], ""]):
        match = _FUSED.match(here) if after.isdigit() else None
        fused = fused or bool(match)
        out.extend(match.groups() if match else (here,))
    return out, fused


def _counts_through(rows: list[_Row]) -> bool:
    """Say whether the list is one of stages, each a list of blocks."""
    inside = [(row, row.inner) for row in rows if row.inner is not None]
    if 2 * len(inside) <= len(rows):
        return False
    stages: dict[int, dict[int, set[tuple[str, ...]]]] = {}
    for row, inner in inside:
        stages.setdefault(row.index, {}).setdefault(inner, set()).add(row.inner_rest)
    for items in stages.values():
        first = items[min(items)]
        if len(first) < _MIN_KINDS or any(len(first & i) < _MIN_ALIKE * len(first | i) for i in items.values()):
            return False
    return True


def _count_through(rows: list[_Row]) -> tuple[dict[str, int], int, dict[int, int]]:
    """Number the blocks of all stages one after another; a stage's own parameters go with the block next to them."""
    sizes: dict[int, int] = {}
    for row in rows:
        sizes[row.index] = max(sizes.get(row.index, 0), 0 if row.inner is None else row.inner + 1)
    start, total = {}, 0
    for stage in sorted(sizes):
        start[stage] = total
        total += sizes[stage]
    numbers, begun = {}, set()
    for row in rows:
        if row.inner is not None:
            begun.add(row.index)
            number = start[row.index] + row.inner
        elif row.index in begun:  # downsampling behind the stage's blocks
            number = start[row.index] + sizes[row.index] - 1
        else:
            number = start[row.index]
        numbers[row.name] = min(number, total - 1)
    return numbers, total, start
