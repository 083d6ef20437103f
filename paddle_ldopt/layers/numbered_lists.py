"""Numbered lists in the names of parameters: `encoder.layers.<i>`, and `<prefix>.layer<i>.0` as in ResNet.

Names are split at their dots and, by the tables of `known_names`, before the indexes that are parts of a name.
"""

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Container, Mapping
from typing import Callable, NamedTuple, Optional, Union

from .known_names import COMMON_NAMES, INDEXES_IN_NAMES, NUMBERED, OUTER_NAMES, SECOND_NAMES, STACK_NAMES

_NUMBER = re.compile(r"\d+([a-z](?![a-zA-Z]))?")  # within a part of a name: conv2_1, _ince3a


@dataclasses.dataclass
class Row:
    """One parameter within a numbered list: ``<prefix>.<index>.<rest>``."""

    name: str
    position: int
    index: int
    rest: tuple[str, ...]
    token: str  # the part of the name that has the index
    inner: Optional[int] = None  # the index in a list directly below, if any
    inner_rest: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        is_named = len(self.rest) > 2 and self.rest[0] in STACK_NAMES  # Swin's layers.0.blocks.1; ResNet's layer1.0
        if is_index(self.rest[is_named]):
            self.inner, self.inner_rest = int(self.rest[is_named]), self.rest[is_named + 1 :]


class ListName(NamedTuple):
    """The name of a list with a name for blocks."""

    tower: str
    in_names: bool  # whether the indexes are parts of names, as in `layer1`


class RowsOfLists(NamedTuple):
    """The numbered lists of a model."""

    known: dict[ListName, list[Row]]  # lists with a name for blocks
    unknown: dict[str, list[Row]]  # all other lists: `<prefix>`, or `<prefix>.conv<i>`
    partial: set[ListName]  # lists with a parameter that needs no stack


def is_index(token: str) -> bool:
    """Return whether a part of a name is the index of a list item."""
    return token.isdecimal() and len(token) <= 18


def rows_of_lists(names: list[str], placed: Container[str]) -> RowsOfLists:
    """Return the rows of all lists in structured `names`, without the names that are `placed`."""
    rows = RowsOfLists({}, {}, set())
    with_stacks = _paths_with_stacks(names)
    for position, name in enumerate(names):
        tokens, in_names = _tokens(name, with_stacks)
        for k, token in enumerate(tokens[:-1]):
            number = _NUMBER.search(token)
            if number is None:
                continue
            is_item, tower = k > 0 and is_index(token), ".".join(tokens[:k])
            is_known = is_item and _is_named_for_blocks(tower, with_stacks)
            row = Row(name, position, int(number[0].rstrip(string.ascii_letters)[:18]), tuple(tokens[k + 1 :]), token)
            if not is_item:
                tower = ".".join([*tokens[:k], _NUMBER.sub("<i>", token)])
            if name in placed:
                rows.partial.add(ListName(tower, in_names))
            elif is_known:
                rows.known.setdefault(ListName(tower, in_names), []).append(row)
            else:
                rows.unknown.setdefault(tower, []).append(row)
            if is_known:  # lists further in belong to this one
                break
    _join_second_names(rows.known)
    return rows


def _is_named_for_blocks(tower: str, with_stacks: set[str]) -> bool:
    """Return whether a list is named for blocks: BERT's `layers`, Conformer's `encoders` (elsewhere of towers)."""
    name = tower.rpartition(".")[2]
    return name in STACK_NAMES or (name in OUTER_NAMES and f"{tower}.*" not in with_stacks)


def _join_second_names(lists: dict[ListName, list[Row]]) -> None:
    """Join lists with two names and no common index, in place."""
    for first in [key for key in lists if key.tower.rpartition(".")[2] in SECOND_NAMES]:
        name = first.tower.rpartition(".")[2]
        second = ListName(first.tower.removesuffix(name) + SECOND_NAMES[name], first.in_names)
        if second in lists and not {row.index for row in lists[first]} & {row.index for row in lists[second]}:
            lists[first] = sorted(lists[first] + lists.pop(second), key=lambda row: row.position)


def _paths_with_stacks(names: list[str]) -> set[str]:
    """Return the paths right above lists of blocks, such as `encoders.0`, and `encoders.*`; no single `stage1`."""
    paths = set()
    for name in names:
        parts = name.split(".")
        for k in range(1, len(parts) - 1):
            if parts[k] in STACK_NAMES and is_index(parts[k + 1]):
                above = parts[:k]
                paths.add(".".join(above))
                paths |= {".".join([*above[:i], "*"]) for i in range(1, k) if is_index(above[i])}
    bases = {}
    for path in paths:
        numbered = NUMBERED.match(path.rpartition(".")[2])
        bases[path] = path.removesuffix(numbered[2]) if numbered else path
    times = Counter(bases.values())
    return {path for path, base in bases.items() if base == path or times[base] > 1}


def _tokens(name: str, with_stacks: set[str]) -> tuple[list[str], bool]:
    """Return the parts of a name, with indexes as parts of their own, and whether a part had an index.

    ResNet's ``layer1.0`` becomes ``layer``, ``1``, ``0``, and so do ``layer1.blocks.0``, ``res1.res1a`` and ``bb_1_0``.
    """
    name = _replaced(name, COMMON_NAMES)
    parts = _replaced(name, INDEXES_IN_NAMES).split(".")
    tokens: list[str] = []
    for k, (part, after) in enumerate(zip(parts, [*parts[1:], ""])):
        numbered = NUMBERED.match(part)
        if numbered and (is_index(after) or ".".join(parts[: k + 1]) in with_stacks):
            tokens += numbered.groups()
        else:
            tokens.append(part)
    return tokens, tokens != name.split(".")


def _replaced(name: str, table: Mapping[str, Union[str, Callable[[re.Match[str]], str]]]) -> str:
    for pattern, replacement in table.items():
        name = re.sub(pattern, replacement, name)
    return name
