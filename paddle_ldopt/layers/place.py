"""The layer of each parameter of a measured model, by the blocks before and behind its uses."""

import functools
import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Optional

from paddle import Tensor, nn

from .._checks import first_few, quoted, refusal
from .._compat import is_norm
from .decay import STATISTICS, Layer, NoBlocksError, lowest
from .measure import Graph, from_to, union
from .towers import Order, Tree, ancestors, tower_for


class MeasuredModel:
    """The towers of a model and the layers of its parameters.

    A parameter outside of the blocks is placed by the first block that it feeds: block 0 (embeddings), a later block
    (the block before it), the inside of a block (that block), or none (the head).
    """

    def __init__(
        self, graph: Graph, parts: Mapping[str, nn.Layer], params: Mapping[str, Tensor], placed: Mapping[str, int]
    ) -> None:
        self.graph, self.tree, self.placed = graph, Tree(params), placed
        self.order = Order(self.tree, parts, graph)
        self.towers = self.order.towers
        self._bits = {name: 1 << i for i, name in enumerate(self.graph.leaves)}
        self._leaves = {node: self._bits[name] for name, node in self.graph.leaves.items()}
        self._fed: dict[str, dict[int, int]] = {name: {} for name in self._bits}  # tower -> layer id of its first use
        tables = self._trace()
        self.layers = {name: layer for tower in self.towers for name, layer in tower.layers(self.tree).items()}
        owners = Counter(id(param) for part in parts.values() for param in part._parameters.values())
        for name in self._bits:
            inside, is_shared = self.layers.get(name), owners[id(params[name])] > 1 or name in tables
            outside = self._outside(name) if is_shared or inside is None else None
            if found := [layer for layer in (inside, outside) if layer]:
                self.layers[name] = lowest(found)
        self._place_lists()
        self._keep_within_stages()
        self.doubts = [*self._complete(params)]

    def _complete(self, params: Mapping[str, Tensor]) -> Iterator[str]:
        """Place the parameters that the pass did not use, none if these are most of the model; yield doubts."""
        unused = [name for name in params if name not in self.layers and name not in self.placed]
        # in a static graph, `size` would be an operation of the program
        if unused and 2 * sum(params[name].size for name in unused) > sum(param.size for param in params.values()):
            self.layers = {}
            yield f"most of the model did not take part in the forward pass, such as {quoted(unused)}"
            return
        if not self.towers:
            blocks = {name for name, index in self.placed.items() if index > 0}
            if not blocks:
                wrong = "Found no blocks in the forward pass, parts alike that follow one another: give `rules`."
                raise refusal(NoBlocksError, wrong, names=first_few(self.tree.names, 8))
            leaves, uses = self.graph.leaves, self.graph.uses  # behind these blocks is the head
            made = self.graph.collect({leaves[name]: 1 for name in blocks if name in leaves})
            behind = {name: any(made[node] for node in uses(name)) for name in leaves.keys() - blocks}
            self.layers = {name: Layer("", int(is_head), 0) for name, is_head in behind.items()}
        self.layers.update({name: self._beside(name) for name in unused})
        layers = self.layers = {name: self.layers.get(name, Layer("", 0, 0)) for name in self.tree.names}
        if unused:
            yield f"the pass did not use {quoted(self.tree.parts(unused), 12)} (by position; another `example` may)"
        if bypassing := self._bypassing():
            yield f"{quoted(self.tree.parts(bypassing), 12)} feed the head also past all blocks and count as embeddings"
        left = {layer.tower for name, layer in layers.items() if layer.is_block and name not in self.placed}
        for tower in self.towers:
            others, first = [other for other in self.towers if other is not tower], tower.paths[0]
            feeding = [other.name for other in others if any(self.order.feeds_main(p, first) for p in other.paths)]
            if feeding and {tower.name, *feeding} & left:
                how = r"`towers=` gives each its decay, and `rules` with an offset such as r'\1 + 12' make them one"
                yield f"'{tower.name}' is computed from {quoted(feeding)}, but counts as a tower of its own: {how}"
            inside = {block[0]: [name for path in block for name in self.tree.inside[path]] for block in tower.blocks}
            owners = {block: {self.order.classes[one.rpartition(".")[0]] for one in inside[block]} for block in inside}
            if norms := [block for block in owners if all(map(is_norm, owners[block]))]:
                yield f"the blocks {quoted(norms)} have no parameters but those of norms"
        heads = [name for name in self._bits if layers[name].is_head and name not in self.placed]
        apart = self.tree.parts([name for name in heads if not any(self._made[node] for node in self.graph.uses(name))])
        if towers := [part for part in apart if part in self.tree.inside and self.tree.weight(part) > 1]:
            yield f"{quoted(towers, 12)} in the head, with no block before"
        if alike := [stack.name for stack in self.order.behind]:
            yield f"{quoted(alike)} in the head, though like the blocks before"
        for stack in self.order.light:
            names = [name for path in stack.paths for name in self.tree.inside[path] if name not in self.placed]
            if {layers[name].index for name in names} == {0}:
                yield f"'{stack.name}' is a stack of {stack.depth} parts too small for blocks, in the embeddings"

    def _bypassing(self) -> list[str]:
        """Return embeddings that also reach a head past all blocks and adapters: a new stem, as a ViT adapter's."""
        placed = {name: self.layers[name] for name in self._bits if name in self.layers}
        uses = {name: self.graph.uses(name) for name in placed}
        inner = {node for name, layer in placed.items() if layer.is_block for node in uses[name]}
        below = self.graph.collect(self._leaves, frozenset(inner | self._ends))
        heads = {node for name, layer in placed.items() if layer.is_head for node in uses[name]}
        past, alone = (union(below[n] for n in heads if made or not self._made[n]) for made in (True, False))
        first = [n for n, layer in placed.items() if not layer.index and not any(self._made[use] for use in uses[n])]
        # where all do and no head is without blocks below it, the blocks have their residual sums outside
        through = any(not past & self._bits[name] for name in first)
        return [name for name in first if name not in self.placed and (past if through else alone) & self._bits[name]]

    def _trace(self) -> set[str]:
        """Note each node's towers and each parameter's first blocks; return T5's tables, which all blocks read."""
        self._calls: list[tuple[int, int, set[int], set[int]]] = []  # tower, layer id, inputs, outputs
        for t, tower in enumerate(self.towers):
            for index, block in enumerate(tower.blocks, 1):
                calls = from_to(self.order.calls[block[0]], self.order.calls[block[-1]])
                self._calls += [(t, index, {*call.inputs}, {*call.outputs} - {*call.inputs}) for call in calls]
        ends: dict[int, int] = {}  # node -> a bit for each tower that returns it, and one if its last block does
        for t, index, _, outputs in self._calls:
            bits = 1 << t | (index == self.towers[t].depth) << len(self.towers) + t
            ends.update({node: ends.get(node, 0) | bits for node in outputs})
        self._made, self._ends = self.graph.collect(ends), {*ends}
        below = self.graph.collect(self._leaves, frozenset(ends))
        self._in_result = union(below[node] for node in self.graph.results)
        tables: set[str] = set()
        for t, index, inputs, outputs in self._calls:
            fed = dict.fromkeys(self._named(union(below[node] for node in outputs)), index)
            for node in inputs:
                for name in self._named(self._leaves.get(node, 0) | (0 if node in ends else below[node])):
                    if not any(self._made[node] >> len(self.towers) + one & 1 for one in self._fed[name].keys() - {t}):
                        fed[name] = index - 1
                    elif fed.get(name) == index:  # through residual sums around the blocks of the other tower
                        del fed[name]
            for name, layer_id in fed.items():
                self._fed[name][t] = min(layer_id, self._fed[name].get(t, layer_id))
            if index == 1 < self.towers[t].depth and len(outputs) > 1:
                started = self.graph.collect(dict.fromkeys({*inputs, *(ends.keys() - outputs)}, 1))
                if any(started[node] for node in outputs):
                    tables.update(self._named(union(below[node] for node in outputs if not started[node])))
        for name in tables:
            self._fed[name] = dict.fromkeys(self._fed[name], 0)
        return tables

    def _named(self, bits: int) -> list[str]:
        return [name for name, bit in self._bits.items() if bits & bit]

    def _outside(self, name: str) -> Optional[Layer]:
        """Return the layer of a parameter, None if neither a block nor the result depends on it."""
        fed, uses = self._fed[name], self.graph.uses(name)
        made = [self._made[node] for node in uses]
        if fed and made:
            common = functools.reduce(operator.and_, made)
            before = [t for t in self._last(common) if t not in fed]
            ended = any(common >> len(self.towers) + t & 1 for t in before)
            # an encoder's last norm, a projection between two towers; not LLaVA's newline beside image features
            if before and not uses <= self.graph.concats and (ended or min(fed.values()) == 0):
                return self._head(before)
        if len(fed) == 1 or any(fed.values()):
            return lowest(self.towers[t].layer(index) for t, index in fed.items())
        if fed:
            return tower_for(self.towers, self.towers).layer(0)
        while uses and not any(self._made[node] for node in uses):  # the exponential of a temperature
            uses = {above for node in uses for above in self.graph.above[node]}
        towers = union(self._made[node] for node in uses)
        return self._head(self._last(towers)) if towers or self._in_result & self._bits[name] else None

    def _last(self, bits: int) -> list[int]:
        """Return the towers of a set that feed no other tower of it."""
        found = [t for t in range(len(self.towers)) if bits >> t & 1]
        fed = [(t, self._made[node]) for t, _, _, outputs in self._calls if t in found for node in outputs]
        return [t for t in found if not any(made >> t & 1 for other, made in fed if other != t)]

    def _head(self, towers: list[int]) -> Layer:
        return tower_for([self.towers[t] for t in towers], self.towers).outside(is_head=True)

    def _place_lists(self) -> None:
        """Mend lists whose last item alone is in the head, as nothing follows it."""
        lists: dict[str, list[str]] = {}
        for path in self.tree.inside:
            lists.setdefault(re.sub(r"\d+(?=[^.]*$)", "#", path), []).append(path)
        towers = {tower.name: tower for tower in self.towers}
        for items in lists.values():
            inside = [self.tree.inside[item] for item in items]
            found = [{self.layers.get(name) for name in names if not name.endswith(STATISTICS)} for names in inside]
            layers = [layer for of_item in found for layer in of_item if layer and len(of_item) == 1]
            tower = towers.get(layers[0].tower) if 1 < len(layers) == len(items) else None
            if tower is None or not layers[0].index or not layers[-1].is_head:
                continue
            # an item for each block: heads that refine each other's result (RT-DETR); else norms of stages (SegFormer)
            if len(items) == tower.depth and not self.order.feeds_main(items[0], tower.blocks[1][0]):
                self.layers.update((name, layers[-1]) for names in inside for name in names)
            elif layers[-2].index < tower.depth and layers == sorted(layers, key=lambda layer: layer.index):
                self.layers.update((name, tower.layer(tower.depth)) for name in inside[-1])

    def _keep_within_stages(self) -> None:
        """Keep a stage's own parameters in its blocks, and statistics beside their weights."""
        stages = {path: (tower, low, high) for tower in self.towers for path, low, high in tower.stages}
        for name in self.tree.names:
            owner = name.rpartition(".")[0]
            beside = [self.layers[other] for other in self.tree.inside[owner] if other in self.layers]
            if name.endswith(STATISTICS) and beside:
                self.layers.setdefault(name, beside[0])
            for tower, low, high in [stages[path] for path in ancestors(owner) if path in stages][:1]:
                layer = self.layers.get(name)
                index = layer.index if layer and layer.tower == tower.name else high
                self.layers[name] = tower.layer(min(max(index, low), high))

    def _beside(self, name: str) -> Layer:
        """Return the layer of a parameter that the pass did not use: of its only neighbor, or by its position."""
        inside, layers = self.tree.inside, self.layers
        near = ({layers[n] for n in inside[path] if n in layers} for path in ancestors(name.rpartition(".")[0]) if path)
        found = next(filter(None, near), set())
        if len(found) == 1:
            return found.pop()
        towers = [tower for tower in self.towers if tower.name in {layer.tower for layer in found}] or self.towers
        position, is_embedding = self.tree.position, "Embedding" in self.order.classes[name.rpartition(".")[0]].__name__
        last = max((position[n] for tower in towers for path in tower.paths for n in inside[path]), default=-1)
        return tower_for(towers, self.towers).outside(is_head=position[name] > last and not is_embedding)
