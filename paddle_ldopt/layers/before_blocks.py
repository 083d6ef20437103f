"""Embeddings or head? Parts of a model that are declared before its blocks, with names that fit both."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable
from typing import Callable

# Possible names of heads; used only for parts declared before the blocks.
_MAYBE_HEAD = re.compile(r"(^|[._])(fc|linear|dense|outputs?|out|proj_out|out_proj|task\w*)\d*$", re.I)
_INPUT = re.compile(r"(^|[._])(conv|bn|(\w*_?)?la?ye?r?_?norm|norm|ln|pre|\w*proj|in|input|down\w*|tok|vis)", re.I)


@dataclasses.dataclass(frozen=True)
class Fact:
    """Tensor name, kind of sublayer and shape of a parameter."""

    tensor: str  # ``param.name``
    kind: str  # kind of its sublayer: "Linear", "Conv", "Norm", "Embedding" or ""
    shape: tuple[int, ...]


@dataclasses.dataclass
class Front:
    """A part declared before the blocks, with a name that could be embeddings or head."""

    names: list[str]
    stacks: list[dict[str, int]]  # name -> number of its block
    depth: int

    def ends(self, facts: dict[str, Fact]) -> tuple[int, int]:
        """Return input and output size of its linear and convolutional layers; (0, 0) without any."""
        found = [facts[name] for name in self.names if len(facts[name].shape) > 1]
        found = [fact for fact in found if fact.kind in ("Linear", "Conv")]
        sizes = [fact.shape[:2] if fact.kind == "Linear" else fact.shape[1::-1] for fact in found]
        return (sizes[0][0], sizes[-1][1]) if sizes else (0, 0)


def is_head(branch: str, fronts: dict[str, Front], facts: dict[str, Fact]) -> tuple[bool, bool]:
    """Return whether a part declared before the blocks is a head, and whether the answer is a guess.

    Layers from the blocks' width to another size are a head; layers to the width feed the blocks, and a norm of the
    last width only is a head. If the sizes fit both, the name decides.
    """
    front, called_head = fronts[branch], bool(_MAYBE_HEAD.search(branch))
    kinds = {facts[name].kind for name in front.names} if facts else set()
    start, end = front.ends(facts) if facts else (0, 0)
    if not end or "Embedding" in kinds:
        is_input = bool(kinds & {"Embedding", "Norm"})
        sizes = {size for name in front.names for size in facts[name].shape} if kinds == {"Norm"} else set()
        if sizes and sizes <= _widths(front.stacks, facts, max) - _widths(front.stacks, facts, min):
            return True, False
        called_head = called_head and not is_input
        return called_head, called_head or not (is_input or _INPUT.search(branch.rpartition(".")[2]))
    entry, exit_ = _widths(front.stacks, facts, min), _widths(front.stacks, facts, max)
    # several parts may follow one another: Linear(8, 32) and Linear(32, 8), or Linear(32, 2)
    beside = [ends for name, other in fronts.items() if name != branch for ends in [other.ends(facts)] if ends[1]]
    start, has_before = _follow(start, exit_, [(last, first) for first, last in beside])
    end, has_after = _follow(end, entry, beside)
    if (start in exit_) != (end in entry):
        return start in exit_, (has_before or has_after) and start in exit_
    return called_head and "Conv" not in kinds, "Conv" not in kinds


def _follow(size: int, goals: set[int], links: list[tuple[int, int]]) -> tuple[int, bool]:
    """Follow `links` from a size to one of `goals`; return the last size, and whether a link was used."""
    targets = dict(reversed(links))  # of several parts with one input size, the first counts
    has_link = size not in goals and size in targets
    for _ in links:
        if size not in goals:
            size = targets.get(size, size)
    return size, has_link


def _widths(stacks: list[dict[str, int]], facts: dict[str, Fact], end: Callable[[Iterable[int]], int]) -> set[int]:
    """Return the widths of the norms in the first or last blocks, or their most common size without norms."""
    widths: set[int] = set()
    for numbers in stacks:
        block = end(numbers.values())
        inside = [facts[name] for name, number in numbers.items() if number == block]
        norms = {fact.shape[0] for fact in inside if fact.kind == "Norm" and len(fact.shape) == 1}
        sizes = Counter(size for fact in inside for size in fact.shape)
        widths |= norms or {size for size, _ in sizes.most_common(1)}
    return widths
