"""The layer of each parameter of a measured model: what a parameter feeds, and what its first use is computed from."""

import re
from collections.abc import Mapping
from typing import Optional

from paddle import nn

from .layer import STATISTICS, Layer
from .measure import Example, forward_pass
from .names import NamedModel
from .towers import Measured, Tree, ancestors, measured_stacks

Places = dict[str, tuple[Optional[int], int]]  # name -> number of its tower (None: of several), layer id


class MeasuredModel:
    """The towers of a model and the places of its parameters.

    A parameter outside of the blocks goes with what it feeds first: block 0 (embeddings), a later block (the block
    before it), the inside of a block (that block), or none (the head of what its use is computed from).
    """

    def __init__(self, model: nn.Layer, example: Example, names: list[str]) -> None:
        params = dict(model.named_parameters())
        self.modules = dict(model.named_sublayers(include_self=True))
        self.measured = forward_pass(model, example)
        self.tree = Tree(names, {name: tuple(param.shape) for name, param in params.items()})
        self.order = Measured(self.tree, self.modules, self.measured)
        self.towers, self.apart = measured_stacks(self.tree, self.order)
        self._trace_towers()
        self.places: Places = self._own()
        self._find_feeds()
        outside = {name for name in self._bits if name not in self.places or name in self._tables}
        self.places.update({name: place for name in outside for place in [self._outside(name)] if place})
        self._place_shared(params)
        self._place_lists()
        self._keep_within_stages()
        self.unused = [name for name in names if name not in self.places]

    def layers(self) -> dict[str, Layer]:
        """Return name -> `Layer` of the parameters that were placed."""
        deepest = max((tower.depth for tower in self.towers), default=0)
        depths: dict[Optional[int], tuple[str, int]] = {None: ("", deepest)}
        depths.update({t: (tower.name, tower.depth) for t, tower in enumerate(self.towers)})
        return {name: Layer(depths[t][0], index, depths[t][1]) for name, (t, index) in self.places.items()}

    def _trace_towers(self) -> None:
        """Note inputs and outputs of all calls of blocks, and which towers each node is computed from."""
        self._calls: list[tuple[int, int, set[int], set[int]]] = []  # tower, layer id, inputs, outputs
        for t, tower in enumerate(self.towers):
            for index, block in enumerate(tower.blocks, 1):
                first, last = self.order.calls[block[0]], self.order.calls[block[-1]]
                pairs = list(zip(first, last)) if len(first) == len(last) else [(first[0], last[-1])]
                self._calls += [(t, index, {*a.inputs}, {*b.outputs} - {*a.inputs}) for a, b in pairs]
        seeds: dict[int, int] = {}
        for t, _, _, outputs in self._calls:
            for node in outputs:
                seeds[node] = seeds.get(node, 0) | 1 << t
        self._seeds, self._made = seeds, self.measured.collect(seeds)

    def _own(self) -> Places:
        """Return the places of the parameters inside the blocks."""
        blocks = {
            path: (t, i) for t, tower in enumerate(self.towers) for i, b in enumerate(tower.blocks, 1) for path in b
        }
        found: Places = {}
        for name in self.tree.names:
            path = next((path for path in ancestors(name.rpartition(".")[0]) if path in blocks), None)
            if path is not None:
                found[name] = blocks[path]
        return found

    def _find_feeds(self) -> None:
        """Note the first block of each tower that a parameter feeds, not through other blocks."""
        self._bits = {name: 1 << i for i, name in enumerate(self.measured.leaves)}
        leaves = {node: self._bits[name] for name, node in self.measured.leaves.items()}
        cut = frozenset(self._seeds)
        below = self.measured.collect(leaves, cut)
        self._in_result = 0
        for node in self.measured.results:
            self._in_result |= below[node]
        self._feeds: dict[int, dict[int, int]] = {}  # tower -> layer id -> parameters, as bits
        self._tables: set[str] = set()
        for t, index, inputs, outputs in self._calls:
            fed = inside = 0
            for node in inputs:
                fed |= leaves.get(node, 0) | (0 if node in cut else below[node])
            for node in outputs:
                inside |= below[node]
            feeds = self._feeds.setdefault(t, {})
            feeds[index - 1] = feeds.get(index - 1, 0) | fed
            feeds[index] = feeds.get(index, 0) | inside & ~fed
            if index == 1 < self.towers[t].depth:
                self._find_tables(inputs, outputs, below)

    def _find_tables(self, inputs: set[int], outputs: set[int], below: list[int]) -> None:
        """Note what the first block computes from its parameters alone for all blocks: T5's relative positions."""
        started = self.measured.collect(dict.fromkeys(inputs, 1) | dict.fromkeys(self._seeds, 1))
        for node in outputs if any(started[node] for node in outputs) else ():
            if not started[node] and any(node in other for _, index, other, _ in self._calls if index > 1):
                self._tables |= {name for name, bit in self._bits.items() if below[node] & bit}

    def _fed(self, name: str) -> dict[int, int]:
        """Return tower -> layer id of what a parameter feeds first."""
        if name in self._tables:
            return {t: 0 for t, feeds in self._feeds.items() if any(ids & self._bits[name] for ids in feeds.values())}
        found = {}
        for t, feeds in self._feeds.items():
            index = min((index for index, bits in feeds.items() if bits & self._bits[name]), default=None)
            if index is not None:
                found[t] = index
        return found

    def _outside(self, name: str) -> Optional[tuple[Optional[int], int]]:
        """Return the place of a parameter, None if neither a block nor the result depends on it."""
        fed, uses = self._fed(name), self.measured.uses(name)
        made = [self._made[node] for node in uses]
        common = made[0] if made else 0
        for bits in made[1:]:
            common &= bits
        if fed and name not in self._tables:
            before = [t for t in self._last(common) if t not in fed]
            if before:  # an encoder's last norm, a projection between two towers
                return self._one(before)
        if fed:
            if len(fed) == 1:
                return next(iter(fed.items()))
            if not any(fed.values()):
                return None, 0
            return min(fed.items(), key=lambda place: place[1] - self.towers[place[0]].depth)
        while uses and not any(self._made[node] for node in uses):  # the exponential of a temperature
            uses = {above for node in uses for above in self.measured.above[node]}
        union = 0
        for node in uses:
            union |= self._made[node]
        if not union and not self._in_result & self._bits[name]:
            return None
        return self._one(self._last(union))

    def _last(self, bits: int) -> list[int]:
        """Return the towers of a set that feed no other tower of it."""
        found = [t for t in range(len(self.towers)) if bits >> t & 1]
        ends = dict.fromkeys(found, 0)
        for t, _, _, outputs in self._calls:
            if t in ends:
                for node in outputs:
                    ends[t] |= self._made[node]
        return [t for t in found if not any(ends[other] >> t & 1 for other in found if other != t)]

    def _one(self, towers: list[int]) -> tuple[Optional[int], int]:
        """Return the head of a tower, of all if there are several."""
        if len(towers) == 1 or len(self.towers) == 1:
            t = towers[0] if towers else 0
            return t, self.towers[t].depth + 1
        return None, max((tower.depth for tower in self.towers), default=0) + 1

    def _place_shared(self, params: Mapping[str, object]) -> None:
        """Move a parameter of a block that other parts share to the lowest place."""
        owners: dict[int, int] = {}
        for module in self.modules.values():
            for param in module._parameters.values():
                owners[id(param)] = owners.get(id(param), 0) + 1
        for name, (t, index) in list(self.places.items()):
            if owners.get(id(params.get(name)), 0) > 1 and name in self._bits and t is not None:
                other, lower = (self._fed(name) and self._outside(name)) or (t, index)
                depth = self.towers[t if other is None else other].depth
                if lower - depth < index - self.towers[t].depth:
                    self.places[name] = other, lower

    def _place_lists(self) -> None:
        """Place lists with an item per block or stage, of which only the last is behind or before all blocks."""
        lists: dict[tuple[str, str, type], list[str]] = {}
        for path in self.tree.inside:
            parent, _, last = path.rpartition(".")
            stem = re.sub(r"\d+", "#", last)
            if stem != last:
                lists.setdefault((parent, stem, type(self.modules.get(path))), []).append(path)
        for items in lists.values():
            names = [[name for name in self.tree.inside[item] if name in self._bits] for item in items]
            if len(items) < 2 or not all(names) or any(name not in self.places for row in names for name in row):
                continue
            fed = [[self._fed(name) for name in row] for row in names]
            for t, tower in enumerate(self.towers):
                ids = [min(place.get(t, tower.depth + 1) for place in row) for row in fed]
                behind = ids[-1] == tower.depth + 1 and ids[0] > 0 and ids[-2] < tower.depth
                behind &= all(self._made[node] >> t & 1 for name in names[-1] for node in self.measured.uses(name))
                before = ids == [*range(tower.depth)] and tower.depth == len(items)
                before &= not any(
                    self._made[node] >> t & 1 for row in names for n in row for node in self.measured.uses(n)
                )
                before &= any(self._made[node] for name in names[0] for node in self.measured.uses(name))
                if behind and all(a < b for a, b in zip(ids, ids[1:])):
                    self.places.update(dict.fromkeys(self.tree.inside[items[-1]], (t, tower.depth)))
                elif before:
                    self.places.update({name: (t, i) for i, row in enumerate(names, 1) for name in row})

    def _keep_within_stages(self) -> None:
        """Keep a stage's own parameters in its blocks, and statistics beside their weights."""
        stages = {path: (t, low, high) for t, tower in enumerate(self.towers) for path, low, high in tower.stages}
        for name in self.tree.names:
            owner = name.rpartition(".")[0]
            if name not in self.places and name.endswith(STATISTICS):
                beside = [self.places[other] for other in self.tree.inside[owner] if other in self.places]
                if beside:
                    self.places[name] = beside[0]
            stage = next((path for path in ancestors(owner) if path in stages), None)
            if stage is not None:
                t, low, high = stages[stage]
                index = self.places[name][1] if name in self.places and self.places[name][0] == t else high
                self.places[name] = t, min(max(index, low), high)

    def around(self, blocks: set[str]) -> dict[str, Layer]:
        """Return head or embeddings of a model whose `blocks` rules place: whether a use is computed from a block."""
        made = self.measured.collect({self.measured.leaves[name]: 1 for name in blocks if name in self.measured.leaves})
        return {
            name: Layer("", int(any(made[node] for node in self.measured.uses(name))), 0)
            for name in self.measured.leaves
            if name not in blocks
        }

    def by_name(self, name: str) -> Layer:
        """Return embeddings or head for a parameter that the pass did not use."""
        return NamedModel(self.tree.names, self.tree.shapes, (), {}, self.towers).layers[name]
