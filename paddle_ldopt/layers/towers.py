"""Stacks of blocks: parts of a model that are alike and follow one another, by a forward pass or by numbered names."""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from statistics import median
from typing import Callable, Protocol

from paddle import nn

from .layer import STATISTICS
from .measure import Call, Pass

Shape = tuple[int, ...]
_NORM = re.compile(r"norm|ln|bn", re.I)
_GENERIC = (nn.Sequential, nn.LayerList, nn.LayerDict)


class Tree:
    """The parts of a model, by the names of its parameters; a part's path is the common start of their names."""

    def __init__(self, names: Iterable[str], shapes: Mapping[str, Shape]) -> None:
        self.names, self.shapes = list(names), shapes
        self.inside: dict[str, list[str]] = {}  # path -> parameters
        self.children: dict[str, list[str]] = {}  # path -> paths of its parts
        for name in self.names:
            for path in ancestors(name.rpartition(".")[0]):
                if path not in self.inside and path:
                    self.children.setdefault(path.rpartition(".")[0], []).append(path)
                self.inside.setdefault(path, []).append(name)
        self._kinds: dict[str, frozenset[str]] = {}

    def weight(self, path: str) -> int:
        """Return the number of weights, without biases and statistics."""
        return sum(not name.endswith(("bias", *STATISTICS)) for name in self.inside[path])

    def width(self, path: str) -> int:
        """Return the number of weights, those of like items of a list once."""
        return sum(not name.endswith(("bias", *STATISTICS)) for name in self.kind(path))

    def kind(self, path: str) -> frozenset[str]:
        """Return the names within a part, without numbers."""
        if path not in self._kinds:
            self._kinds[path] = frozenset(re.sub(r"\d+", "#", name[len(path) :]) for name in self.inside[path])
        return self._kinds[path]

    def alike(self, one: str, other: str) -> bool:
        """Return whether at least half of the names of two parts are the same."""
        return 2 * len(self.kind(one) & self.kind(other)) >= len(self.kind(one) | self.kind(other))


def ancestors(path: str) -> Iterator[str]:
    """Yield a path and all paths above it, the model's "" last."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


@dataclasses.dataclass
class Stack:
    """A tower: its blocks in order, each one or more parts of the model."""

    name: str
    parent: str  # the part that has the list of blocks
    blocks: list[tuple[str, ...]]
    stages: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)  # path, first and last layer id
    is_list: bool = True  # whether the blocks are items of a list

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)


class Order(Protocol):
    """What follows what: by a forward pass or by names."""

    def runs(self, tree: Tree, parent: str) -> Iterator[Stack]:
        """Yield the children of a part that are alike and follow one another."""

    def when(self, path: str) -> int:
        """Return a number that is larger for a later part."""

    def feeds(self, one: str, other: str) -> bool:
        """Return whether the second part is computed from the first."""

    def feeds_main(self, one: str, other: str) -> bool:
        """Return whether the first argument of the second part is computed from the first part."""

    def single_blocks(self, tree: Tree, stacks: list[Stack]) -> list[Stack]:
        """Return blocks that are in no stack; without any stack, the only items of lists."""


def find_stacks(tree: Tree, order: Order) -> list[Stack]:
    """Return the outermost stacks, stages numbered through. Blocks have three weights if the model has such."""
    runs = [run for parent in tree.children for run in order.runs(tree, parent) if run.depth > 1]
    best: tuple[float, list[Stack]] = (0, [])
    for least in (3, 2, 1):
        if least == 1 and (single := order.single_blocks(tree, [])):
            return single
        large = [run for run in runs if _weight(tree, run) >= least]
        outer = _outermost(tree, order, large, "")
        # a convolutional part and its classifier share no name: stages or nothing
        no_lists = {
            stack.name for stack in outer if not stack.is_list and _is_plain(stack) and not _is_one(tree, stack)
        }
        if no_lists:
            outer = _outermost(tree, order, [run for run in large if run.is_list or run.name not in no_lists], "")
        found = sorted(outer, key=lambda stack: order.when(stack.blocks[0][0]))
        most = max((_weight(tree, stack) for stack in found), default=0)
        found = [stack for stack in found if 4 * _weight(tree, stack) > most]
        found = found[:1] if least == 1 else found
        share = sum(tree.weight(path) for stack in found for block in stack.blocks for path in block)
        best = max(best, (share, found), key=lambda choice: choice[0])
        if 3 * share >= tree.weight(""):
            break
    return best[1]


def _is_plain(stack: Stack) -> bool:
    first = stack.stages[0][0] if stack.stages else stack.blocks[0][0]
    return stack.name == first


def _is_one(tree: Tree, stack: Stack) -> bool:
    """Return whether parts without a common name are stages: of blocks whose weights have as many axes."""
    axes = {max(len(tree.shapes[name]) for name in tree.inside[path]) for block in stack.blocks for path in block}
    return bool(stack.stages) and len(axes) == 1


def _weight(tree: Tree, stack: Stack) -> float:
    return median(sum(tree.weight(path) for path in block) for block in stack.blocks)


def _outermost(tree: Tree, order: Order, runs: list[Stack], within: str) -> list[Stack]:
    """Return the stacks of a part that are in no block of another one, interleaved ones as one."""
    inner = [run for run in runs if within in ancestors(_list_of(run))]
    blocks = {path for run in inner for block in run.blocks for path in block}
    outer = [run for run in inner if not any(path in blocks for path in ancestors(_list_of(run)) if path != within)]
    outer = [_numbered_through(tree, order, run, runs) for run in outer]
    return _joined(tree, order, sorted(outer, key=lambda run: order.when(run.blocks[0][0])))


def _list_of(run: Stack) -> str:
    return run.blocks[0][0].rpartition(".")[0]


def _numbered_through(tree: Tree, order: Order, run: Stack, runs: list[Stack]) -> Stack:
    """Return the blocks of all stages one after another if the items of a list are such stages."""
    blocks: list[tuple[str, ...]] = []
    stages = []
    is_staged = False
    for block in run.blocks:
        item = block[0]
        lists = [stack for stack in _outermost(tree, order, runs, item) if stack.is_list]
        share = sum(tree.weight(path) for stack in lists for block in stack.blocks for path in block)
        follows = all(order.feeds_main(a.blocks[-1][-1], b.blocks[0][0]) for a, b in zip(lists, lists[1:]))
        of_item = [block for stack in lists for block in stack.blocks]
        if len(block) > 1 or not follows or share <= 0.6 * tree.weight(item) or _are_halves(tree, run, of_item):
            of_item = [block]
        is_staged |= of_item != [block]
        stages.append((item, len(blocks) + 1, len(blocks) + len(of_item)))
        blocks += of_item
    return dataclasses.replace(run, blocks=blocks, stages=stages) if is_staged else run


def _are_halves(tree: Tree, run: Stack, parts: list[tuple[str, ...]]) -> bool:
    """Return whether a few like parts make one block: equal lists of lists, each part with one norm at most."""
    items = [path for block in run.blocks for path in block]
    names = [[(name[len(item) :], tree.shapes.get(name)) for name in tree.inside[item]] for item in items]
    is_plain = all(path.rpartition(".")[2].isdigit() for item in items for path in tree.children.get(item, []))
    is_plain &= all(path.rpartition(".")[0] in items for path in parts[0])
    owners = {name.rpartition(".")[0] for path in parts[0] for name in tree.inside[path]}
    norms = sum(bool(_NORM.search(owner.rpartition(".")[2])) for owner in owners)
    is_plain &= run.is_list and not run.name.endswith(("stages", "stage"))
    return is_plain and len(parts) <= 3 and norms < 2 and all(other == names[0] for other in names)


def _joined(tree: Tree, order: Order, stacks: list[Stack]) -> list[Stack]:
    """Join lists of one length that take turns (attentions and feed-forward parts of XLM), and parts between others."""
    out: list[Stack] = []
    for stack in stacks:
        for known in out:
            turns = [path for block in zip(known.blocks, stack.blocks) for path in (block[0][-1], block[1][0])]
            beside = known.parent == stack.parent and known.depth == stack.depth
            if beside and not known.stages and all(order.feeds(a, b) for a, b in zip(turns, turns[1:])):
                known.blocks = [one + other for one, other in zip(known.blocks, stack.blocks)]
                break
            mixed = sorted(known.blocks + stack.blocks, key=lambda block: order.when(block[0]))
            within = order.when(stack.blocks[0][0]) < order.when(known.blocks[-1][0])
            weights = sorted(_weight(tree, each) for each in (known, stack))
            beside = known.parent == stack.parent and not (
                known.is_list or stack.is_list or known.stages or stack.stages
            )
            if beside and within and 4 * weights[0] > weights[1] and _follow(order, mixed):
                known.name, known.blocks = list_name(known.parent, [block[0] for block in mixed]), mixed
                break
        else:
            out.append(dataclasses.replace(stack))
    return out


def _follow(order: Order, blocks: list[tuple[str, ...]]) -> bool:
    return all(order.feeds_main(one[-1], other[0]) for one, other in zip(blocks, blocks[1:]))


def list_name(parent: str, items: list[str]) -> str:
    """Return the name of a list: `layers` of ``layers.0``, `layer` of ``layer1``."""
    stem = os.path.commonprefix([item[len(parent) :] for item in items]).strip("._")
    stem = re.sub(r"[_\d]+$", "", stem)
    ends = [item[len(parent) :].strip("._")[len(stem) :] for item in items]
    if not all(re.match(r"[._]?\d", end) or len(end) < 3 for end in ends):
        return items[0]  # a sentence encoder below a document encoder
    return ".".join(part for part in (parent, stem) if part) or "model"


def paired(run: list[str], alike: Callable[[str, str], bool]) -> list[tuple[str, ...]]:
    """Return the blocks of a list; items of two or three kinds in turns are parts of a block (x-transformers)."""
    for period in (2, 3):
        kinds = run[:period]
        differ = all(not alike(a, b) for i, a in enumerate(kinds) for b in kinds[:i])
        turns = all(alike(kinds[i % period], path) for i, path in enumerate(run))
        if differ and turns and len(run) >= 2 * period and len(run) % period == 0:
            return [tuple(run[i : i + period]) for i in range(0, len(run), period)]
    return [(path,) for path in run]


class Measured:
    """The order of a forward pass."""

    def __init__(self, tree: Tree, modules: Mapping[str, nn.Layer], measured: Pass) -> None:
        self.modules, self.measured, self.tree = modules, measured, tree
        self.calls: dict[str, list[Call]] = {}
        for path in sorted(tree.inside, key=lambda path: -path.count(".") if path else 1):
            calls = measured.calls.get(path) or self._calls_within(path)
            if calls:
                self.calls[path] = calls
        self.bit = {path: 1 << i for i, path in enumerate(self.calls)}
        self.seeds: dict[int, int] = {}
        for path, calls in self.calls.items():
            for node in {node for call in calls for node in call.outputs}:
                self.seeds[node] = self.seeds.get(node, 0) | self.bit[path]

    @cached_property
    def made(self) -> list[int]:
        """For each node the bits of the parts that it is computed from."""
        return self.measured.collect(self.seeds)

    def made_from(self, nodes: Iterable[int]) -> int:
        """Return the bits of the parts that output the nodes or something below."""
        union = 0
        for node in nodes:
            union |= self.made[node] | self.seeds.get(node, 0)
        return union

    def _calls_within(self, path: str) -> list[Call]:
        """Return the calls of a part that has no call of its own: from the first to the last of what is in it."""
        parts = [self.calls[child] for child in self.tree.children.get(path, []) if child in self.calls]
        for name in self.tree.inside[path]:
            if name.rpartition(".")[0] == path and (nodes := tuple(self.measured.uses(name))):
                inputs = {below for node in nodes for below in self.measured.below[node]}
                fed = tuple(inputs - {self.measured.leaves[name]})
                parts.append([Call(fed, fed, nodes)])
        parts.sort(key=lambda calls: max(calls[0].outputs))
        if parts and len(parts[0]) == len(parts[-1]):
            return [Call(a.main, a.inputs, b.outputs) for a, b in zip(parts[0], parts[-1])]
        return [Call(parts[0][0].main, parts[0][0].inputs, parts[-1][-1].outputs)] if parts else []

    def when(self, path: str) -> int:
        """Return the number of the last node of the first call."""
        return max(self.calls[path][0].outputs)

    def feeds(self, one: str, other: str) -> bool:
        """Return whether the second part is computed from the first."""
        return any(self.made[node] & self.bit[one] for call in self.calls[other] for node in call.outputs)

    def feeds_main(self, one: str, other: str) -> bool:
        """Return whether the first argument of the second part is computed from the first part."""
        return any(self.made_from(call.main) & self.bit[one] for call in self.calls[other])

    def runs(self, tree: Tree, parent: str) -> Iterator[Stack]:
        """Yield the children of a part that are alike and follow one another."""
        children = sorted((c for c in tree.children[parent] if c in self.calls and tree.weight(c)), key=self.when)
        largest = max(children, key=tree.weight, default="")
        is_list = isinstance(self.modules.get(parent), _GENERIC)
        groups: dict[object, list[str]] = {}
        for child in children:
            fits = not is_list or 3 * tree.weight(child) > tree.weight(largest) or self._alike(child, largest)
            if fits:
                groups.setdefault(None if is_list else type(self.modules.get(child)), []).append(child)
        for group in groups.values():
            # kinds that repeat make one list (Jamba's two kinds of blocks); an encoder and its head do not
            partners = sum(any(a is not b and self._alike(a, b) for b in group) for a in group)
            may_differ = is_list and 2 * partners >= len(group)
            follows = self.feeds if is_list else self.feeds_main  # a decoder beside an encoder only attends to it
            run: list[str] = []
            for child in [*group, ""]:
                if child and (not run or (follows(run[-1], child) and (may_differ or self._alike(run[-1], child)))):
                    run.append(child)
                    continue
                if run:
                    above = parent.rpartition(".")[0] if is_list else parent
                    yield Stack(list_name(parent, run), above, paired(run, self._alike), is_list=is_list)
                run = [child] if child else []

    def _alike(self, one: str, other: str) -> bool:
        return type(self.modules.get(one)) is type(self.modules.get(other)) and self.tree.alike(one, other)

    def single_blocks(self, tree: Tree, stacks: list[Stack]) -> list[Stack]:
        """Return parts of the class of the blocks that are in no stack; without any stack, the only items of lists."""
        blocks = {path for stack in stacks for block in stack.blocks for path in block}
        above = {path for block in blocks for path in ancestors(block)}
        kinds = {type(self.modules.get(path)): path for path in blocks} if stacks else {}
        found: list[str] = []
        for path in self.calls:
            kind, parent = type(self.modules.get(path)), path.rpartition(".")[0]
            in_list = isinstance(self.modules.get(parent), _GENERIC) and len(tree.children[parent]) == 1
            fits = (
                kind in kinds and kind not in _GENERIC and tree.alike(path, kinds[kind]) if stacks else path and in_list
            )
            if fits and path not in above and not any(path_above in blocks for path_above in ancestors(path)):
                found.append(path)
        outer = [path for path in found if not any(other in found for other in ancestors(path) if other != path)]
        most = max(map(tree.weight, outer), default=0)
        outer = [path for path in outer if stacks or 2 * tree.weight(path) > most]
        ends = [(stack.blocks[0][0], stack.blocks[-1][-1]) for stack in stacks]
        # what lies between two blocks of a stack (a UNet's middle) goes with the one before
        outer = [path for path in outer if not any(self.feeds(a, path) and self.feeds(path, b) for a, b in ends)]
        lists = [path.rpartition(".")[0] or path for path in outer]
        return [Stack(name, name.rpartition(".")[0], [(path,)]) for name, path in zip(lists, outer)]


def measured_stacks(tree: Tree, order: Measured) -> tuple[list[Stack], list[tuple[str, str]]]:
    """Return the towers of a measured model, and pairs of towers in sequence that stay two."""
    stacks = find_stacks(tree, order)
    if stacks and _weight(tree, stacks[0]) > 1:
        stacks += [single for single in order.single_blocks(tree, stacks) if single not in stacks]
    stacks.sort(key=lambda stack: order.when(stack.blocks[0][0]))
    towers: list[Stack] = []
    apart = []
    for stack in stacks:
        kinds = {type(order.modules.get(path)) for block in stack.blocks for path in block} - {*_GENERIC}
        before = [t for t in towers if order.feeds_main(t.blocks[-1][-1], stack.blocks[0][0])]
        last = before[-1] if before else None
        if last is None:
            towers.append(stack)
        elif last.parent == stack.parent or kinds & {type(order.modules.get(p)) for b in last.blocks for p in b}:
            last.stages += [(path, a + last.depth, b + last.depth) for path, a, b in stack.stages]
            last.name = last.name if last.depth >= stack.depth else stack.name
            last.blocks += stack.blocks
        else:
            towers.append(stack)
            apart.append((last.name, stack.name))
    return towers, apart
