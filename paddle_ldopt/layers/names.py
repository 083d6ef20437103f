"""The layers of a model by the names of its parameters, without a forward pass."""

import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from paddle import nn

from .._checks import first_few, quoted, refusal
from .decay import STATISTICS, Layer, NoBlocksError
from .towers import LEAST_WEIGHTS, STAGE, Tower, Tree, ancestors, tower_for

_BLOCKS = frozenset(["layers", "layer", "h", "block", "blocks", "stages", "stage", "resblocks"])
_HEAD = re.compile(
    r"(?i)\w*heads?(_\w+)?|(pre_)?classifier|cls|pooler|predict(ions?|or)|score|logits?(_scale)?|fc\d*|(qa_)?outputs?|out"
    r"|output_layer|((fc|after|\w*encoder|\w*decoder)_)?norm(_f)?|final_(ln|norm|layer_?norm)|ln(_f|_post|_final)?|last_conv"
)
_EMBEDDINGS = re.compile(
    r"(?i)\w*embed(ding|der)?s?(_(tokens|positions|proj\w*)|_?\d)*|\w*_emb|w[tp]e|shared|stem(_?\d+)?|relative_attention_bias"
)
_OWN_EMBEDDINGS = re.compile(
    r"(?i)(cls|class|mask|dist|query)_(token|embedding)s?|(abs\w*_)?pos(ition\w*)?_emb\w*|(mask|masked_spec)_emb(ed)?"
)
_ROLES = re.compile(r"(?:^|[._])(encoder|decoder|vision|visual|image|audio|text|generator|discriminator)(?=[._]|$)")
_HOW = "Give `example=`, a batch for one forward pass that measures the layers, or `rules`, which may be a function."


class NamedModel:
    """The layers of parameters by their names, in the model's order; `doubts` has parts whose layers are guesses."""

    def __init__(self, params: Mapping[str, Any], parts: Mapping[str, nn.Layer], placed: Mapping[str, int]) -> None:
        self.tree, self.placed = Tree(params), placed
        tables = [part for part in parts.values() if any("Embedding" in cls.__name__ for cls in type(part).__mro__)]
        in_tables = {id(param) for part in tables for param in part._parameters.values()}
        self._of_tables = {name for name, param in params.items() if id(param) in in_tables}
        lists = self._lists("")
        thick = [found for found in lists if self.tree.weight_of_block(found) >= LEAST_WEIGHTS]
        known = [found for found in thick or lists if self._is_known(found)]
        self.unknown = [found for found in thick if found not in known and not self._is_placed(found)]
        self._guessed: dict[str, dict[str, None]] = {"blocks": {}, "embeddings": {}, "head": {}}  # parts of the model
        self.towers = [self._numbered_through(tower) for tower in known]
        self._check()
        layers = {name: layer for tower in self.towers for name, layer in self._layers(tower).items()}
        self.layers = {name: layers.get(name) or self._outside(name) for name in self.tree.names}
        inner = [[*part._parameters.values(), *part._sub_layers.values()] for part in parts.values()]
        owners = Counter(id(part) for owned in inner for part in owned if part is not None)
        deepest = max((tower.depth for tower in self.towers), default=0)
        for name, layer in self.layers.items():
            may_be_lower = layer.is_block or (not layer.is_head and layer.depth < deepest)
            above = [params[name], *map(parts.get, ancestors(name.rpartition(".")[0]))]
            if may_be_lower and name not in placed and any(owners[id(part)] > 1 for part in above):
                self._guess(name, layer)  # its other names, which are not given, may be of a lower layer
        self.doubts = [f"{quoted(parts, 12)} in the {at}" for at, parts in self._guessed.items() if parts]

    def _guess(self, part: str, layer: Layer) -> None:
        self._guessed["blocks" if layer.is_block else "head" if layer.is_head else "embeddings"][part] = None

    def _is_placed(self, tower: Tower) -> bool:
        return all(name in self.placed for path in tower.paths for name in self.tree.inside[path])

    def _lists(self, within: str) -> list[Tower]:
        """Return the outermost numbered lists in a part with at least half of the items alike."""
        groups: dict[str, list[tuple[int, str]]] = {}
        parts = self.tree.children.get(within, [])
        for part in parts:
            if (number := re.search(r"[._]?(\d{1,6})$", part)) and self.tree.weight(part):
                groups.setdefault(part[: number.start()], []).append((int(number[1]), part))
        lists = [(name, [path for _, path in sorted(items)]) for name, items in groups.items() if len(items) > 1]
        alike = [(name, paths) for name, paths in lists if 2 * len(self._unlike(paths)) <= len(paths)]
        found = [Tower(name, within, [(path,) for path in paths]) for name, paths in alike]
        listed = {path for tower in found for path in tower.paths}
        return found + [inner for part in parts if part not in listed for inner in self._lists(part)]

    def _is_known(self, found: Tower) -> bool:
        word, inner = found.name.rpartition(".")[2], self._lists(found.paths[0])
        # PaddleSpeech's encoders are blocks, those of an ensemble hold lists
        return word in _BLOCKS or (word in ("encoders", "decoders") and not any(map(self._is_known, inner)))

    def _unlike(self, paths: list[str]) -> list[str]:
        """Return the items that share few names with any other: neither a dense nor a sparse block is one."""
        return [path for path in paths if not any(self.tree.alike(path, other) for other in paths if other != path)]

    def _numbered_through(self, tower: Tower) -> Tower:
        """Return the blocks of all stages one after another: of ``layer1.0`` or ``stages.0.blocks.1``."""
        through, weight, is_sure = Tower(tower.name, tower.parent, []), self.tree.weight, True
        for item in tower.paths:
            lists, is_stage = self._lists(item), False
            if weight(*(path for found in lists for path in found.paths)) > STAGE * weight(item):
                rest = re.sub(r"\.\d+", "", lists[0].name[len(item) :])  # ".blocks" of ``layers1.0.blocks``
                plain = lists[0].name == item and (tower.name.endswith("stages") or not re.search(r"\.\d+$", item))
                is_stage = len(lists) == 1 and (plain or rest.count(".") == 1 and self._is_known(lists[0]))
                is_sure &= is_stage
            through.add_stage(item, lists[0].blocks if is_stage else [(item,)])
        may_be_stage = through.depth > len(through.stages) and any(low == high for _, low, high in through.stages)
        is_sure &= not (may_be_stage or self._unlike(through.paths) or self._unlike(through.paths[:2]))
        if not (is_sure or self._is_placed(tower)):
            self._guess(tower.name, through.layer(1))
        return through

    def _check(self) -> None:
        """Raise unless most of the numbered items are blocks; note towers that may follow one another as guesses."""
        known, unknown = (sum(found.depth for found in lists) for lists in (self.towers, self.unknown))
        if unknown >= known and (self.towers or not any(index > 0 for index in self.placed.values())):
            others = ", ".join(found.name or "of the model" for found in self.unknown)
            lists = f"; the lists {others} may be blocks" if others else ""
            wrong = f"Found no stack of blocks by names (most items in layers, blocks, h or stages{lists}). {_HOW}"
            raise refusal(NoBlocksError, wrong, names=first_few(self.tree.names, 8))
        if self.unknown or len({_ROLES.sub("", tower.name) for tower in self.towers}) > 1:  # no encoder and decoder
            for tower in [tower for tower in self.towers if not self._is_placed(tower)]:
                self._guess(tower.name, tower.layer(1))

    def _layers(self, tower: Tower) -> dict[str, Layer]:
        layers = tower.layers(self.tree)
        tables = [name for name in layers if "relative_attention_bias" in name.split(".")]
        if len(tables) == 1 < tower.depth:  # all blocks use the table of the first
            layers[tables[0]] = tower.layer(0)
        for path, low, high in tower.stages:
            begun = False  # a stage's own parameters belong to its first block, and behind that to its last
            for name in self.tree.inside[path]:
                begun |= name in layers
                layers.setdefault(name, tower.layer(high if begun else low))
        return layers

    def _outside(self, name: str) -> Layer:
        """Return the embeddings or the head for a parameter outside of the blocks; a guess unless words say it, too."""
        path, position, inside = name.split(".")[:-1], self.tree.position, self.tree.inside
        shared = [len(os.path.commonprefix([path, t.name.split(".")])) for t in self.towers]
        common = max(shared, default=0)
        towers = [tower for tower, count in zip(self.towers, shared) if count == common]
        blocks = [other for tower in towers for path in tower.paths for other in inside[path]]
        positions = [position[n] for n in blocks or [n for n, index in self.placed.items() if index > 0]]
        before, behind = position[name] < min(positions), position[name] > max(positions)
        parts, is_table = name.split(".")[common:], name in self._of_tables
        is_own = len(parts) == 1  # a model's own parameters come before its sublayers: their position says nothing
        embeddings = _OWN_EMBEDDINGS if is_own else _EMBEDDINGS
        word = next((w for w in parts[:-1] or parts if _HEAD.fullmatch(w) or embeddings.fullmatch(w)), "")
        named_head = bool(_HEAD.fullmatch(word))
        is_head = not is_table and (named_head or behind)
        if is_table:
            is_sure = before or bool(word) and not named_head
        elif named_head:
            is_sure = behind or (is_own and "logit" in word)
        else:  # a patch embedding of a later stage is between the blocks
            is_sure = (before or is_own) and bool(word) and not re.search(r"patch_embed[a-z_]*([2-9]|\.[1-9])", name)
        of_one = is_head or len({t.depth for t in towers}) < 2 or re.search("shared|word_embeddings", name)
        listed = any(not {*ancestors(name)}.isdisjoint(found.paths) for found in self.unknown)
        layer = tower_for(towers, self.towers).outside(is_head)
        if (listed or not (is_sure and of_one)) and not name.endswith(STATISTICS) and name not in self.placed:
            self._guess(".".join(name.split(".")[: common + 1]), layer)
        return layer
