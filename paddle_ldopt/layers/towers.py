"""Towers: blocks that are alike and computed one from another in a forward pass, outermost first, stages numbered."""

import dataclasses
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from statistics import median

from paddle import nn

from .._compat import is_norm
from .decay import STATISTICS, Layer
from .measure import Call, Graph, from_to

Block = tuple[str, ...]  # the paths of a block: one, or the halves of it
_LISTS = (nn.Sequential, nn.LayerList, nn.LayerDict)
# The graph does not tell which chains in a model are its blocks. "Weights" are without biases.
LEAST_WEIGHTS = 3  # of a block: a residual or attention block has three; plain convolutions have fewer
_SHARE = 1 / 3  # of the model's weights that its blocks have at least, else thinner blocks are tried
_LIGHT = 1 / 3  # of the weights of the heaviest block: a stack, or item of a list, of less is a neck, stem or head
STAGE = 0.6  # of an item's weights that its lists have if it is a stage; the rest is downsampling
_TURNS = 1 / 2  # of the weights of a block, that a part between two blocks has if it is one too


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
        self.position = {name: i for i, name in enumerate(self.names)}
        # path -> names within, without numbers
        self.patterns = {p: {re.sub(r"\d+", "#", n[len(p) :]) for n in names} for p, names in self.inside.items()}

    def weight(self, *paths: str) -> int:
        return sum(not name.endswith(("bias", *STATISTICS)) for path in paths for name in self.inside[path])

    def weight_of_block(self, tower: "Tower") -> float:
        return median(self.weight(*block) for block in tower.blocks)

    def parts(self, names: Collection[str]) -> list[str]:
        """Return names, or the paths of parts instead of all their parameters."""
        found: dict[str, None] = {}
        given = {*names, *(name for name in self.names if name.endswith(STATISTICS))}
        for name in names:
            above = [path for path in ancestors(name.rpartition(".")[0]) if path]
            found[next((path for path in reversed(above) if given.issuperset(self.inside[path])), name)] = None
        return [*found]

    def alike(self, one: str, other: str) -> bool:
        """Return whether at least half of the names of one part are in the other."""
        a, b = self.patterns[one], self.patterns[other]
        return 2 * len(a & b) >= min(len(a), len(b))


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

    def layer(self, index: int) -> Layer:
        return Layer(self.name, index, self.depth)

    def outside(self, is_head: bool) -> Layer:
        return self.layer((self.depth + 1) * is_head)

    def layers(self, tree: Tree) -> dict[str, Layer]:
        numbered = ((self.layer(i), path) for i, block in enumerate(self.blocks, 1) for path in block)
        return {name: layer for layer, path in numbered for name in tree.inside[path]}

    def add_stage(self, path: str, blocks: list[Block]) -> None:
        self.stages.append((path, self.depth + 1, self.depth + len(blocks)))
        self.blocks += blocks


def tower_for(some: list[Tower], every: list[Tower]) -> Tower:
    """Return the only tower of `some`, or one without a name that stands for several, as deep as the deepest."""
    some, deepest = some or every, max((tower.blocks for tower in every), key=len, default=[])
    return some[0] if len(some) == 1 else Tower("", "", deepest)


class Order:
    """The parts of a model in the order of a forward pass, and the towers that they make."""

    def __init__(self, tree: Tree, parts: Mapping[str, nn.Layer], graph: Graph) -> None:
        self.tree, self.graph = tree, graph
        self.classes = {path: type(parts.get(path)) for path in tree.inside}
        self._lists = {path for path in tree.children if issubclass(self.classes[path], _LISTS)}  # an LSTM has no parts
        self.calls: dict[str, list[Call]] = {}  # of a part that is never called, such as a list, those within
        for path in sorted(tree.inside, key=lambda path: -path.count(".") if path else 1):
            inner = sorted((child for child in tree.children.get(path, []) if child in self.calls), key=self._when)
            within = from_to(self.calls[inner[0]], self.calls[inner[-1]]) if inner else []
            if calls := graph.calls.get(path) or within:
                self.calls[path] = calls
        self._bit = {path: 1 << i for i, path in enumerate(self.calls)}
        seeds: dict[int, int] = {}
        for path, calls in self.calls.items():
            for node in {node for call in calls for node in call.outputs}:
                seeds[node] = seeds.get(node, 0) | self._bit[path]
        # for each node the bits of the parts that compute it and of the parts before it
        self._made = [bits | seeds.get(node, 0) for node, bits in enumerate(graph.collect(seeds))]
        self.towers = self._joined(self._stacks(), in_sequence=True)

    def _when(self, path: str) -> int:
        return max(self.calls[path][0].outputs)

    def feeds_main(self, one: str, other: str) -> bool:
        """Return whether the first argument of the second part is computed from the first part."""
        return any(self._made[node] & self._bit[one] for call in self.calls[other] for node in call.inputs[:1])

    def _is_chain(self, blocks: list[Block]) -> bool:
        return all(self.feeds_main(one[-1], other[0]) for one, other in zip(blocks, blocks[1:]))

    def _alike(self, one: str, other: str) -> bool:
        cls = self.classes[one]  # a class of the user is alike; one of Paddle may hold anything
        is_own = not cls.__module__.startswith(("paddle.nn", "builtins"))
        return cls is self.classes[other] and (is_own or self.tree.alike(one, other))

    def _stacks(self) -> list[Tower]:
        """Return the outermost stacks, of blocks with three weights if the model has such, and not of small parts."""
        tree = self.tree
        runs = [run for parent in tree.children for run in self._runs(parent)]
        for least in (LEAST_WEIGHTS, 2, 1):
            outer = self._outermost([run for run in runs if tree.weight_of_block(run) >= least], "")
            sizes = [(tree.weight_of_block(stack), tree.weight(*stack.paths)) for stack in outer]
            most = [_LIGHT * max(column) for column in zip(*sizes)]
            single = self._only_items() if least == 1 else []
            if any(not most or _LIGHT * tree.weight(*tower.paths) >= most[1] for tower in single):
                return single
            found = [stack for stack, size in zip(outer, sizes) if size[0] > most[0] or size[1] > most[1]]
            self.light = [stack for stack in outer if stack not in found]  # too small to be blocks
            after = [any(self.feeds_main(b.paths[-1], s.paths[0]) for b in found[:i]) for i, s in enumerate(found)]
            # beside a chain of single weights is another tower, behind it the head
            last = [stack for stack, is_after in zip(found, after) if is_after and least == 1]
            self.behind = [stack for stack in last if self._alike(stack.paths[0], found[0].paths[0])]
            found = [*found, *self._like_blocks(found)] if least > 1 else [s for s in found if s not in last]
            if sum(tree.weight(*stack.paths) for stack in found) >= _SHARE * tree.weight(""):
                break
        return found

    def _runs(self, parent: str) -> Iterator[Tower]:
        """Yield the children of a part that are alike and follow one another."""
        tree, is_list = self.tree, parent in self._lists
        children = sorted((c for c in tree.children[parent] if c in self.calls and tree.weight(c)), key=self._when)
        largest = max(children, key=tree.weight, default="")
        groups: dict[object, list[str]] = {}
        for child in children:
            if not is_list or tree.weight(child) > _LIGHT * tree.weight(largest) or self._alike(child, largest):
                groups.setdefault(None if is_list else self.classes[child], []).append(child)
        for group in groups.values():
            # classes that repeat make one list (Jamba's two classes of blocks); an encoder and its head do not
            partners = sum(any(a is not b and self._alike(a, b) for b in group) for a in group)
            may_differ = is_list and 2 * partners >= len(group)
            run: list[str] = []
            for child in [*group, ""]:
                fits = run and child and (may_differ or self._alike(run[-1], child))
                if fits and self.feeds_main(run[-1], child):  # a decoder beside an encoder only attends to it
                    run.append(child)
                    continue
                name = _name_of(parent, run) if len(run) > 1 else ""
                if is_list and name:
                    yield Tower(name, parent.rpartition(".")[0], self._in_halves(run))
                elif name and (name != run[0] or self._are_blocks(run)):  # a feature part and its head share no name
                    yield Tower(name, parent, [(path,) for path in run], is_list=False)
                run = [child]

    def _is_half(self, path: str) -> bool:
        """Return whether a part has one norm at most, as half of a block has."""
        owners = {name.rpartition(".")[0] for name in self.tree.inside[path]}
        return sum(is_norm(self.classes[owner]) for owner in owners) < 2

    def _are_blocks(self, run: list[str]) -> bool:
        """Return whether parts without a common name are blocks: of several weights, with no list of blocks inside."""
        weight, least = self.tree.weight, LEAST_WEIGHTS
        inside = [path for path in self._lists if not {*ancestors(path)}.isdisjoint(run)]
        holds = any(sum(weight(item) >= least for item in self.tree.children[path]) > 1 for path in inside)
        return min(map(weight, run)) >= least and not holds and self._lists.isdisjoint(run)

    def _in_halves(self, run: list[str]) -> list[Block]:
        """Return the blocks of a list: a norm belongs to the item before it, items in turns are parts of a block."""
        norms = [is_norm(self.classes[path]) for path in run]
        if not norms[0] and any(norms):  # convolution, norm, convolution, norm, convolution
            starts = [i for i, is_alone in enumerate(norms) if not is_alone]
            return [tuple(run[start:end]) for start, end in zip(starts, [*starts[1:], len(run)])]
        may_turn = len(run) > 3 and len(run) % 2 == 0 and not self._alike(*run[:2]) and all(map(self._is_half, run[:2]))
        if may_turn and all(self._alike(path, run[i % 2]) for i, path in enumerate(run)):
            return [*zip(run[::2], run[1::2])]
        return [(path,) for path in run]

    def _outermost(self, runs: list[Tower], within: str) -> list[Tower]:
        """Return the stacks of a part that are in no block of another one, stages numbered through."""
        above = [(run, {*ancestors(run.paths[0].rpartition(".")[0])}) for run in runs]
        inner = [(run, parts) for run, parts in above if within in parts]
        blocks = {path for run, _ in inner for path in run.paths} - {within}
        outer = [run for run, parts in inner if blocks.isdisjoint(parts)]
        return self._joined(outer if within else [self._numbered_through(run, runs) for run in outer])

    def _numbered_through(self, run: Tower, runs: list[Tower]) -> Tower:
        """Return the blocks of all stages one after another if the items of a list are such stages."""
        tower, tree, cut = dataclasses.replace(run, blocks=[], stages=[]), self.tree, dict[str, list[Block]]()
        names = [[name[len(item) :] for name in tree.inside[item]] for item in run.paths]
        equal = run.is_list and not re.search("stages?$", run.name) and all(other == names[0] for other in names)
        for block in run.blocks:
            item, outputs = block[0], self.calls[block[0]][0].outputs
            # a part that returns the sum of its last block only holds its blocks; DenseNet's layers are parts of one
            ends = outputs if self.graph.concats.isdisjoint(outputs) else ()
            lists = [t for t in self._outermost(runs, item) if t.is_list or self.calls[t.paths[-1]][0].outputs == ends]
            of_item = [block for stack in lists for block in stack.blocks]
            share = tree.weight(*[path for stack in lists for path in stack.paths])
            is_stage = self._is_chain(of_item) and share > STAGE * tree.weight(item)
            # equal lists of two or three parts with a norm each are blocks
            if not is_stage or (equal and len(of_item) <= 3 and all(map(self._is_half, of_item[0]))):
                of_item = [block]
            cut[item] = of_item
        # all stages are cut alike: a block that is alone in its stage is cut no finer than the blocks of the others
        form = {path: re.sub(r"\d+", "#", path) for path in tree.inside}
        known = {form[path] for item, blocks in cut.items() for block in blocks for path in block if path != item}
        for item, blocks in cut.items():
            above = [[p for p in ancestors(block[0].rpartition(".")[0]) if form[p] in known] for block in blocks]
            tower.add_stage(item, [*dict.fromkeys((p[-1],) if p else block for p, block in zip(above, blocks))])
        return run if tower.blocks == run.blocks else tower

    def _joined(self, stacks: list[Tower], in_sequence: bool = False) -> list[Tower]:
        """Return stacks in the order of the pass, united where they make one chain."""
        towers: list[Tower] = []
        for stack in sorted(stacks, key=lambda stack: self._when(stack.blocks[0][0])):
            stack = dataclasses.replace(stack)
            if not any(self._join(tower, stack, in_sequence) for tower in reversed(towers)):
                towers.append(stack)
        return towers

    def _join(self, tower: Tower, stack: Tower, in_sequence: bool) -> bool:
        """Add a later stack to a tower if its blocks come between or behind the tower's; return whether they do."""
        both, same_parent = tower.blocks + stack.blocks, tower.parent == stack.parent
        mixed = sorted(both, key=lambda block: self._when(block[0]))
        if not self._is_chain(mixed):
            return False
        light, heavy = sorted((stack, tower), key=self.tree.weight_of_block)
        if mixed == both:
            shared = {self.classes[path] for path in stack.paths} & {self.classes[path] for path in tower.paths}
            if not (in_sequence and (same_parent or shared)):
                return False
        elif same_parent and mixed[::2] == tower.blocks and mixed[1::2] == stack.blocks:
            mixed = [one + other for one, other in zip(tower.blocks, stack.blocks)]  # attentions, feed-forwards (XLM)
        elif self.tree.weight_of_block(light) < _TURNS * self.tree.weight_of_block(heavy):
            vars(tower).update(vars(heavy))  # adapters, or heads that refine
            return True
        if stack.depth > tower.depth:
            tower.name = stack.name
        at = {path: i for i, block in enumerate(mixed, 1) for path in block}
        stages = [(t.blocks, *stage) for t in (tower, stack) for stage in t.stages]
        tower.stages = [(path, at[blocks[low - 1][0]], at[blocks[high - 1][0]]) for blocks, path, low, high in stages]
        tower.blocks = mixed
        return True

    def _only_items(self) -> list[Tower]:
        """Return the largest of the only items of lists and of parts that run on their own result (ALBERT)."""
        lists = [parts for path, parts in self.tree.children.items() if path and path in self._lists]
        found = [items[0] for items in lists if len(items) == 1 and items[0] in self.calls]
        towers = self._singles([*found, *(path for path in self.calls if path and self.feeds_main(path, path))])
        most = max(map(self.tree.weight_of_block, towers), default=0)
        return [tower for tower in towers if 2 * self.tree.weight_of_block(tower) > most]

    def _like_blocks(self, stacks: list[Tower]) -> list[Tower]:
        """Return parts of the class of the blocks, but no lists, that are in no stack, stage or gap between blocks."""
        blocks = {path for stack in stacks for path in stack.paths}
        above = self._lists.union(path for block in blocks for path in ancestors(block))
        inside = blocks.union(path for stack in stacks for path, _, _ in stack.stages)
        found = [path for path in self.calls if path not in above and inside.isdisjoint(ancestors(path))]
        return self._singles(path for path in found if any(self._alike(path, block) for block in blocks))

    def _singles(self, paths: Iterable[str]) -> list[Tower]:
        """Return towers of one block each, the outermost of some parts."""
        found = dict.fromkeys(paths)
        outer = [path for path in found if len(found.keys() & {*ancestors(path)}) == 1]
        named = [(above if (above := path.rpartition(".")[0]) in self._lists else path, path) for path in outer]
        return [Tower(name, name.rpartition(".")[0], [(path,)]) for name, path in named]


def _name_of(parent: str, items: list[str]) -> str:
    """Return the name of a list: `layers` of ``layers.0``, `layer` of ``layer1``."""
    ends = [item[len(parent) :].strip("._") for item in items]
    stem = re.sub(r"[_\d]+$", "", os.path.commonprefix(ends).strip("._"))
    if not all(re.match(r"[._]?\d", end[len(stem) :]) or (stem and len(end) < len(stem) + 3) for end in ends):
        return items[0]  # a sentence encoder below a document encoder
    return ".".join(part for part in (parent, stem) if part) or "model"
