"""Towers: blocks that are alike and computed one from another in a forward pass, outermost first, stages numbered."""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from statistics import median

from paddle import nn

from .decay import STATISTICS
from .measure import Call, Pass, from_to

Block = tuple[str, ...]  # the paths of a block: one, or the halves of it
_NORM = re.compile(r"norm|ln|bn", re.I)
_LISTS = (nn.Sequential, nn.LayerList, nn.LayerDict)


class Tree:
    """The parts of a model, by the names of its parameters; a part's path is the common start of their names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self.inside: dict[str, list[str]] = {}  # path -> parameters
        self.children: dict[str, list[str]] = {}  # path -> paths of its parts
        for name in self.names:
            for path in ancestors(name.rpartition(".")[0]):
                if path not in self.inside and path:
                    self.children.setdefault(path.rpartition(".")[0], []).append(path)
                self.inside.setdefault(path, []).append(name)
        patterns = ((path, [re.sub(r"\d+", "#", n[len(path) :]) for n in names]) for path, names in self.inside.items())
        self.patterns = {path: frozenset(names) for path, names in patterns}  # path -> names within, without numbers

    def weight(self, *paths: str) -> int:
        """Return the number of weights in parts, without biases and statistics."""
        return sum(not name.endswith(("bias", *STATISTICS)) for path in paths for name in self.inside[path])

    def alike(self, one: str, other: str) -> bool:
        """Return whether at least half of the names of two parts are the same."""
        a, b = self.patterns[one], self.patterns[other]
        return 2 * len(a & b) >= len(a | b)


def ancestors(path: str) -> Iterator[str]:
    """Yield a path and all paths above it, the model's "" last."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


@dataclasses.dataclass
class Tower:
    """A stack of blocks."""

    name: str
    parent: str  # the part that has the list of blocks
    blocks: list[Block]
    stages: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)  # path, first and last layer id
    is_list: bool = True  # whether the blocks are items of a list

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def paths(self) -> list[str]:
        return [path for block in self.blocks for path in block]


class Measured:
    """The parts of a model in the order of a forward pass."""

    def __init__(self, tree: Tree, layers: Mapping[str, nn.Layer], measured: Pass) -> None:
        self.tree, self.measured = tree, measured
        self.kinds = {path: type(layers.get(path)) for path in tree.inside}
        self.calls: dict[str, list[Call]] = {}  # of a part that is never called, such as a list, those within
        for path in sorted(tree.inside, key=lambda path: -path.count(".") if path else 1):
            if calls := measured.calls.get(path) or self._calls_within(path):
                self.calls[path] = calls
        self._bit = {path: 1 << i for i, path in enumerate(self.calls)}
        self._seeds: dict[int, int] = {}
        for path, calls in self.calls.items():
            for node in {node for call in calls for node in call.outputs}:
                self._seeds[node] = self._seeds.get(node, 0) | self._bit[path]
        self.towers: list[Tower] = []  # stacks in sequence of one parent or with a class in common are one
        self.apart: list[tuple[str, str]] = []  # pairs of towers of which the second is computed from the first
        stacks = self._stacks()
        if stacks and self._weight(stacks[0]) > 1:
            stacks += [single for single in self._single_blocks(stacks) if single not in stacks]
        for stack in sorted(stacks, key=lambda stack: self._when(stack.blocks[0][0])):
            kinds = {self.kinds[path] for path in stack.paths} - {*_LISTS}
            before = [t for t in self.towers if self._feeds_main(t.blocks[-1][-1], stack.blocks[0][0])]
            last = before[-1] if before else stack
            if before and (last.parent == stack.parent or kinds & {self.kinds[path] for path in last.paths}):
                last.stages += [(path, low + last.depth, high + last.depth) for path, low, high in stack.stages]
                last.name = last.name if last.depth >= stack.depth else stack.name
                last.blocks += stack.blocks
                continue
            self.towers.append(stack)
            self.apart += [(last.name, stack.name)] if before else []

    @cached_property
    def _made(self) -> list[int]:
        """For each node the bits of the parts that it is computed from."""
        return self.measured.collect(self._seeds)

    def _calls_within(self, path: str) -> list[Call]:
        parts = [self.calls[child] for child in self.tree.children.get(path, []) if child in self.calls]
        for name in self.tree.inside[path]:
            if name.rpartition(".")[0] == path and (nodes := tuple(self.measured.uses(name))):
                inputs = {below for node in nodes for below in self.measured.below[node]}
                fed = tuple(inputs - {self.measured.leaves[name]})
                parts.append([Call(fed, fed, nodes)])
        parts.sort(key=lambda calls: max(calls[0].outputs))
        return from_to(parts[0], parts[-1]) if parts else []

    def _when(self, path: str) -> int:
        return max(self.calls[path][0].outputs)

    def _feeds(self, one: str, other: str) -> bool:
        """Return whether the second part is computed from the first."""
        return any(self._made[node] & self._bit[one] for call in self.calls[other] for node in call.outputs)

    def _feeds_main(self, one: str, other: str) -> bool:
        """Return whether the first argument of the second part is computed from the first part."""
        mains = [node for call in self.calls[other] for node in call.main]
        return any((self._made[node] | self._seeds.get(node, 0)) & self._bit[one] for node in mains)

    def _alike(self, one: str, other: str) -> bool:
        return self.kinds[one] is self.kinds[other] and self.tree.alike(one, other)

    def _weight(self, tower: Tower) -> float:
        return median(self.tree.weight(*block) for block in tower.blocks)

    def _stacks(self) -> list[Tower]:
        """Return the outermost stacks, of blocks with three weights if the model has such, and not of small parts."""
        tree = self.tree
        runs = [run for parent in tree.children for run in self._runs(parent)]
        best: tuple[float, list[Tower]] = (0, [])
        for least in (3, 2, 1):
            if least == 1 and (single := self._single_blocks([])):
                return single
            outer = self._outermost([run for run in runs if self._weight(run) >= least], "")
            most = max(map(self._weight, outer), default=0)
            found = [stack for stack in outer if 4 * self._weight(stack) > most][: 1 if least == 1 else None]
            share = sum(tree.weight(*stack.paths) for stack in found)
            best = max(best, (share, found), key=lambda choice: choice[0])
            if 3 * share >= tree.weight(""):
                break
        return best[1]

    def _runs(self, parent: str) -> Iterator[Tower]:
        """Yield the children of a part that are alike and follow one another."""
        tree, is_list = self.tree, issubclass(self.kinds[parent], _LISTS)
        children = sorted((c for c in tree.children[parent] if c in self.calls and tree.weight(c)), key=self._when)
        largest = max(children, key=tree.weight, default="")
        groups: dict[object, list[str]] = {}
        for child in children:
            if not is_list or 3 * tree.weight(child) > tree.weight(largest) or self._alike(child, largest):
                groups.setdefault(None if is_list else self.kinds[child], []).append(child)
        for group in groups.values():
            # kinds that repeat make one list (Jamba's two kinds of blocks); an encoder and its head do not
            partners = sum(any(a is not b and self._alike(a, b) for b in group) for a in group)
            may_differ = is_list and 2 * partners >= len(group)
            follows = self._feeds if is_list else self._feeds_main  # a decoder beside an encoder only attends to it
            run: list[str] = []
            for child in [*group, ""]:
                if child and (not run or (follows(run[-1], child) and (may_differ or self._alike(run[-1], child)))):
                    run.append(child)
                    continue
                if len(run) > 1:
                    above = parent.rpartition(".")[0] if is_list else parent
                    yield Tower(_name_of(parent, run), above, self._in_halves(run), is_list=is_list)
                run = [child] if child else []

    def _in_halves(self, run: list[str]) -> list[Block]:
        """Return the blocks of a list; items of two or three kinds in turns are parts of a block (x-transformers)."""
        for period in (2, 3):
            kinds = run[:period]
            if len(run) < 2 * period or len(run) % period or any(self._alike(a, b) for a, b in zip(kinds, kinds[1:])):
                continue
            if all(self._alike(kinds[i % period], path) for i, path in enumerate(run)):
                return [tuple(run[i : i + period]) for i in range(0, len(run), period)]
        return [(path,) for path in run]

    def _outermost(self, runs: list[Tower], within: str) -> list[Tower]:
        """Return the stacks of a part that are in no block of another one, in their order, interleaved ones as one."""
        place = {id(run): run.blocks[0][0].rpartition(".")[0] for run in runs}
        inner = [run for run in runs if within in ancestors(place[id(run)])]
        blocks = {path for run in inner for path in run.paths} - {within}
        outer = [run for run in inner if blocks.isdisjoint(ancestors(place[id(run)]))]
        numbered = [self._numbered_through(run, runs) for run in outer]
        # a convolutional part and its classifier share no name
        plain = [run.name for run in outer if not run.is_list and run.name == run.blocks[0][0]]
        if plain and not within:
            return self._outermost([run for run in runs if run.is_list or run.name not in plain], within)
        return self._joined(sorted(numbered, key=lambda run: self._when(run.blocks[0][0])))

    def _numbered_through(self, run: Tower, runs: list[Tower]) -> Tower:
        """Return the blocks of all stages one after another if the items of a list are such stages."""
        tower = dataclasses.replace(run, blocks=[], stages=[])
        for block in run.blocks:
            item = block[0]
            lists = [stack for stack in self._outermost(runs, item) if stack.is_list]
            of_item = [block for stack in lists for block in stack.blocks]
            share = self.tree.weight(*[path for stack in lists for path in stack.paths])
            follows = all(self._feeds_main(a.blocks[-1][-1], b.blocks[0][0]) for a, b in zip(lists, lists[1:]))
            is_stage = len(block) == 1 and follows and share > 0.6 * self.tree.weight(item)
            if not is_stage or self._are_halves(run, of_item):
                of_item = [block]
            tower.stages.append((item, tower.depth + 1, tower.depth + len(of_item)))
            tower.blocks += of_item
        return run if tower.blocks == run.blocks else tower

    def _are_halves(self, run: Tower, parts: list[Block]) -> bool:
        """Return whether a few like parts make one block: equal lists of lists, each part with one norm at most."""
        inside = self.tree.inside
        names = [[name[len(item) :] for name in inside[item]] for item in run.paths]
        children = [path for item in run.paths for path in self.tree.children.get(item, [])]
        is_plain = all(path.rpartition(".")[2].isdigit() for path in children) and {*children} >= {*parts[0]}
        owners = {name.rpartition(".")[0].rpartition(".")[2] for path in parts[0] for name in inside[path]}
        few = len(parts) <= 3 and sum(map(bool, map(_NORM.search, owners))) < 2
        is_list = run.is_list and not run.name.endswith(("stages", "stage"))
        return is_list and is_plain and few and all(other == names[0] for other in names)

    def _joined(self, stacks: list[Tower]) -> list[Tower]:
        """Join lists of one length that take turns (attentions and feed-forward parts of XLM), and parts between."""
        out: list[Tower] = []
        for stack in map(dataclasses.replace, stacks):
            for known in (known for known in out if known.parent == stack.parent):
                pairs = [*zip(known.blocks, stack.blocks)]
                turns = [path for one, other in pairs for path in (one[-1], other[0])]
                in_turns = all(self._feeds(a, b) for a, b in zip(turns, turns[1:]))
                if known.depth == stack.depth and not known.stages and in_turns:
                    known.blocks = [one + other for one, other in pairs]
                    break
                mixed = sorted(known.blocks + stack.blocks, key=lambda block: self._when(block[0]))
                within = self._when(stack.blocks[0][0]) < self._when(known.blocks[-1][0])
                weights = sorted(map(self._weight, (known, stack)))
                plain = not (known.is_list or stack.is_list or known.stages or stack.stages)
                follow = (self._feeds_main(a[-1], b[0]) for a, b in zip(mixed, mixed[1:]))
                if plain and within and 4 * weights[0] > weights[1] and all(follow):
                    known.name, known.blocks = _name_of(known.parent, [block[0] for block in mixed]), mixed
                    break
            else:
                out.append(stack)
        return out

    def _single_blocks(self, stacks: list[Tower]) -> list[Tower]:
        """Return parts of the class of the blocks that are in no stack; without any stack, the only items of lists."""
        blocks = {path for stack in stacks for path in stack.paths}
        above = {path for block in blocks for path in ancestors(block)}
        kinds = {self.kinds[path]: path for path in blocks if not issubclass(self.kinds[path], _LISTS)}
        found: list[str] = []
        for path in [path for path in self.calls if path not in above and blocks.isdisjoint(ancestors(path))]:
            kind, parent = self.kinds[path], path.rpartition(".")[0]
            in_list = path and issubclass(self.kinds[parent], _LISTS) and len(self.tree.children[parent]) == 1
            if (kind in kinds and self.tree.alike(path, kinds[kind])) if stacks else in_list:
                found.append(path)
        outer = [path for path in found if not any(other in found for other in ancestors(path) if other != path)]
        most = max(map(self.tree.weight, outer), default=0)
        outer = [path for path in outer if stacks or 2 * self.tree.weight(path) > most]
        # what lies between two blocks of a stack (a UNet's middle) goes with the one before
        ends = [(stack.blocks[0][0], stack.blocks[-1][-1]) for stack in stacks]
        outer = [path for path in outer if not any(self._feeds(a, path) and self._feeds(path, b) for a, b in ends)]
        lists = [path.rpartition(".")[0] or path for path in outer]
        return [Tower(name, name.rpartition(".")[0], [(path,)]) for name, path in zip(lists, outer)]


def _name_of(parent: str, items: list[str]) -> str:
    """Return the name of a list: `layers` of ``layers.0``, `layer` of ``layer1``."""
    ends = [item[len(parent) :].strip("._") for item in items]
    stem = re.sub(r"[_\d]+$", "", os.path.commonprefix(ends).strip("._"))
    if not all(re.match(r"[._]?\d", end[len(stem) :]) or len(end) - len(stem) < 3 for end in ends):
        return items[0]  # a sentence encoder below a document encoder
    return ".".join(part for part in (parent, stem) if part) or "model"
