"""Find the stacks of blocks of a model in the names of its parameters: pure Python, a leaf of the import graph.

A *stack* is a numbered list of blocks, as in ``bert.encoder.layers.<i>``. Three things make it more than a regex: lists of
stages are counted through (Swin: ``layers.1.blocks.0`` follows the last block of stage 0), lists of unlike parts within a
block are not (T5: ``block.0.layer.1``), and lists that are too small to be blocks are passed over (an MLP head).
"""

import dataclasses
import re
from typing import List, Optional, Tuple

__all__ = ["Stack", "find_stacks"]

STACK_NAMES = frozenset(
    "layers layer h block blocks resblocks stages stage albert_layer_groups albert_layers".split()
)
# XLM spreads block i over parallel lists
_PARALLEL_NAMES = frozenset("attentions ffns layer_norm1 layer_norm15 layer_norm2 encoder_attn".split())
_FUSED = re.compile(r"^(layer|stage|block)(\d+)$")  # ResNet: layer1.0, layer2.0
_MIN_KINDS = 3  # a list whose items have fewer kinds of parameters holds single layers, not blocks
_MIN_ALIKE = 0.5  # Jaccard similarity from which on inner items count as blocks of one kind


@dataclasses.dataclass
class _Row:
    """One parameter within a numbered list: ``<prefix>.<index>.<rest>``."""

    name: str
    position: int
    index: int
    rest: Tuple[str, ...]

    @property
    def inner(self) -> Optional[int]:
        """The index in a list directly below, if there is one."""
        if self.rest[0].isdigit():
            return int(self.rest[0])
        return int(self.rest[1]) if len(self.rest) > 2 and self.rest[0] in STACK_NAMES and self.rest[1].isdigit() else None

    @property
    def inner_rest(self) -> Tuple[str, ...]:
        return self.rest[1:] if self.rest[0].isdigit() else self.rest[2:]


class Stack:
    """A numbered list of blocks.

    Attributes:
        tower (str): its name, such as "bert.encoder.layers".
        numbers (dict[str, int]): structured name -> number of its block, from 0.
        depth (int): how many blocks there are, missing (frozen) ones in the middle included.
        first (int): position of its first parameter among all names.
    """

    def __init__(self, tower: str, rows: List[_Row], from_one: bool):
        self.tower = tower
        self.first = rows[0].position
        self.kinds = len({row.rest for row in rows})
        if _counts_through(rows):
            self.numbers, self.depth = _count_through(rows)
        else:
            offset = 1 if from_one else 0
            self.numbers = {row.name: row.index - offset for row in rows}
            self.depth = 1 + max(self.numbers.values())


def find_stacks(names):
    """Return the stacks in `names` (in the model's order), and the towers of numbered lists that look like blocks but
    are called otherwise.
    """
    known, unknown, from_one = {}, {}, set()
    for position, name in enumerate(names):
        tokens, fused = _tokens(name)
        for k in range(1, len(tokens) - 1):
            if not tokens[k].isdigit():
                continue
            parent, rest = tokens[k - 1], tuple(tokens[k + 1 :])
            parallel = parent in _PARALLEL_NAMES
            tower = ".".join((*tokens[: k - 1], "*" if parallel else parent))
            row = _Row(name, position, int(tokens[k]), (parent, *rest) if parallel else rest)
            if parallel or parent in STACK_NAMES:  # lists further in belong to this one
                known.setdefault(tower, []).append(row)
                if fused:
                    from_one.add(tower)
                break
            unknown.setdefault(tower, []).append(row)
    stacks = [Stack(tower, rows, tower in from_one) for tower, rows in known.items()]
    stacks = [s for s in stacks if s.kinds >= _MIN_KINDS] or stacks
    inside = {name for stack in stacks for name in stack.numbers}
    others = {
        tower: 1 + max(row.index for row in rows)
        for tower, rows in unknown.items()
        if len({row.rest for row in rows}) >= _MIN_KINDS and len({r.index for r in rows}) > 1
        and not any(row.name in inside for row in rows)
    }
    return stacks, others


def _tokens(name):
    """Split a name at its dots, and ResNet's ``layer1.0`` into ``layer``, ``1``, ``0``."""
    parts, out, fused = name.split("."), [], False
    for here, after in zip(parts, [*parts[1:], ""]):
        match = _FUSED.match(here) if after.isdigit() else None
        fused = fused or bool(match)
        out.extend(match.groups() if match else (here,))
    return out, fused


def _counts_through(rows):
    """Say whether the list is one of stages, each a list of blocks."""
    inside = [row for row in rows if row.inner is not None]
    if 2 * len(inside) <= len(rows):
        return False
    items = {}
    for row in inside:
        items.setdefault((row.index, row.inner), set()).add(row.inner_rest)
    first = items[min(items)]
    alike = [len(first & other) / len(first | other) for other in items.values()]
    return len(first) >= _MIN_KINDS and sum(alike) / len(alike) >= _MIN_ALIKE


def _count_through(rows):
    """Number the blocks of all stages one after another; a stage's own parameters go with the block next to them."""
    sizes = {}
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
    return numbers, total
