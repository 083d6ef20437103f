"""Parts of a model that are declared before its blocks, with a name that fits embeddings and head."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Callable

from .known_names import MAYBE_EMBEDDINGS, MAYBE_HEAD
from .model_parameters import ParameterInfo

_Infos = Mapping[str, ParameterInfo]


@dataclasses.dataclass
class PartBeforeBlocks:
    """A part declared before the blocks, with a name that could be embeddings or head."""

    names: list[str]
    stacks: list[dict[str, int]]  # name -> number of its block
    depth: int

    def ends(self, infos: _Infos) -> tuple[int, int]:
        """Return input and output size of its linear and convolutional layers; (0, 0) without any."""
        weights = [infos[name] for name in self.names if len(infos[name].shape) > 1]
        weights = [info for info in weights if info.sublayer in ("Linear", "Conv")]
        sizes = [info.shape[:2] if info.sublayer == "Linear" else info.shape[1::-1] for info in weights]
        return (sizes[0][0], sizes[-1][1]) if sizes else (0, 0)


def is_head(branch: str, parts: dict[str, PartBeforeBlocks], infos: _Infos) -> tuple[bool, bool]:
    """Return whether a part is a head, by its sizes if there are any, then by its name, and whether this is a guess."""
    part = parts[branch]
    sublayers = {infos[name].sublayer for name in part.names} if infos else set()
    if infos and part.ends(infos)[1] and "Embedding" not in sublayers:
        return _is_head_by_ends(branch, parts, infos)
    if sublayers == {"Norm"}:  # with the width of the last blocks only: 768 in Swin-T, whose first blocks have 96
        sizes = {size for name in part.names for size in infos[name].shape}
        if sizes and sizes <= _widths(part.stacks, infos, max) - _widths(part.stacks, infos, min):
            return True, False
    is_embeddings = bool(sublayers & {"Embedding", "Norm"})
    called_head = bool(MAYBE_HEAD.search(branch)) and not is_embeddings
    called_embeddings = is_embeddings or MAYBE_EMBEDDINGS.search(branch.rpartition(".")[2])
    return called_head, called_head or not called_embeddings


def _is_head_by_ends(branch: str, parts: dict[str, PartBeforeBlocks], infos: _Infos) -> tuple[bool, bool]:
    """Return the answer for linear and convolutional layers, by their input and output size.

    Beside blocks of width 32, Linear(32, 2) takes their output and is a head; Linear(8, 32) feeds them. Several parts
    may follow one another: Linear(32, 8) and Linear(8, 2) are a head, but only as a guess.
    """
    part = parts[branch]
    entry, exit_ = _widths(part.stacks, infos, min), _widths(part.stacks, infos, max)
    beside = [ends for name, other in parts.items() if name != branch for ends in [other.ends(infos)] if ends[1]]
    start, end = part.ends(infos)
    start, has_before = _follow(start, exit_, [(last, first) for first, last in beside])
    end, has_after = _follow(end, entry, beside)
    takes_output, feeds_blocks = start in exit_, end in entry
    if takes_output != feeds_blocks:
        return takes_output, takes_output and (has_before or has_after)
    # Linear(32, 32) fits both, Linear(7, 9) neither: its name decides, and convolutions make patches
    is_linear = all(infos[name].sublayer != "Conv" for name in part.names)
    return is_linear and bool(MAYBE_HEAD.search(branch)), is_linear


def _follow(size: int, goals: set[int], links: list[tuple[int, int]]) -> tuple[int, bool]:
    """Follow `links` from a size to one of `goals`; return the last size, and whether a link was used."""
    targets = dict(reversed(links))  # of several parts with one input size, the first counts
    has_link = size not in goals and size in targets
    for _ in links:
        if size not in goals:
            size = targets.get(size, size)
    return size, has_link


def _widths(stacks: list[dict[str, int]], infos: _Infos, end: Callable[[Iterable[int]], int]) -> set[int]:
    """Return the widths of the norms in the first or last blocks, or their most common size without norms."""
    widths: set[int] = set()
    for numbers in stacks:
        block = end(numbers.values())
        inside = [infos[name] for name, number in numbers.items() if number == block]
        norms = {info.shape[0] for info in inside if info.sublayer == "Norm" and len(info.shape) == 1}
        sizes = Counter(size for info in inside for size in info.shape)
        widths |= norms or {size for size, _ in sizes.most_common(1)}
    return widths
