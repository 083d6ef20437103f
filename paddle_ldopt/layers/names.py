"""The layers of a model by the names of its parameters, without a forward pass, with doubts."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Optional

from .._checks import first_few, quoted, refusal
from .decay import STATISTICS, Layer, NoBlocksError
from .towers import LEAST_WEIGHTS, STAGE, Block, Tower, Tree, ancestors, tower_for

_BLOCKS = frozenset(["layers", "layer", "h", "block", "blocks", "stages", "stage", "resblocks"])
_HEAD = re.compile(
    r"\w*heads?(_\w+)?|(pre_)?classifier|cls|pooler|predict(ions?|or)|score|logits?(_scale)?|ln_f|norm_f|fc\d*|fc_norm"
    r"|final_(ln|norm|layer_?norm)|ln_(post|final)|post_layer_?norm|after_norm|qa_outputs|outputs?|out|output_layer"
    r"|embed_out|pred_layer|last_conv|(\w*encoder_|\w*decoder_)?norm|ln",
    re.I,
)
_EMBEDDINGS = re.compile(
    r"\w*embed(ding|der)?s?(_(tokens|positions|proj\w*)|\d|_\d)*|embs?|\w*_emb|wte|wpe|shared|patch_embed\w*|ln_pre"
    r"|(cls|class|mask|dist)_token|relative_attention_bias|stem(_?\d+)?",
    re.I,
)
# a model's own parameters come before its sublayers, so that their position says nothing
_OWN_EMBEDDINGS = re.compile(
    r"(cls|class|mask|dist|query)_(token|embedding)s?|(abs\w*_)?pos(ition\w*)?_emb\w*|masked_spec_embed|mask_emb", re.I
)
_ROLES = re.compile(r"(?:^|[._])(encoder|decoder|vision|visual|image|audio|text|generator|discriminator)(?=[._]|$)")
_HOW = "Give `example=`, a batch for one forward pass that measures the layers, or `rules`, which may be a function."


class NamedModel:
    """The layers of parameters by their names, in the model's order; `doubts` has a sentence for each guess.

    `ids` has one value for all names of a parameter, `placed` are names that rules place, `embeddings` those of
    parameters of Embedding sublayers.
    """

    def __init__(self, ids: Mapping[str, int], placed: Mapping[str, int], embeddings: Collection[str]) -> None:
        self.tree, self.embeddings, self.placed = Tree(ids), embeddings, placed
        lists = self._lists("")
        thick = [found for found in lists if self.tree.weight_of_block(found) >= LEAST_WEIGHTS]
        known = [found for found in thick or lists if self._is_known(found)]
        self.unknown = [found for found in thick if found not in known and not all(map(self._is_placed, found.paths))]
        self._holding: list[str] = []  # towers with lists in their items that count as parts of one block
        self.towers = [self._numbered_through(tower) for tower in known]
        self._check()
        self.doubtful: dict[str, str] = {}  # name -> the part of the model that it stands for
        self.layers: dict[str, Layer] = {}
        for tower in self.towers:
            self._place_blocks(tower)
        self.layers = {name: self.layers.get(name) or self._outside(name) for name in ids}
        self.sure = {key for name, key in ids.items() if name not in self.doubtful}  # one sure name is enough
        parts: dict[str, dict[str, None]] = {}
        for name, part in self.doubtful.items():
            if ids[name] not in self.sure:
                parts.setdefault("head" if self.layers[name].is_head else "embeddings", {})[part] = None
        by_position = [f"{quoted(those, 12)} by position or name alone in the {at}" for at, those in parts.items()]
        self.doubts = [*self._doubts_of_towers(), *by_position]

    def _is_placed(self, path: str) -> bool:
        return all(name in self.placed for name in self.tree.inside[path])

    def _lists(self, within: str) -> list[Tower]:
        """Return the outermost numbered lists in a part with at least half of the items alike."""
        tree, found = self.tree, []
        taken: set[str] = set()
        inside = [path for path in tree.children if within in ancestors(path)]
        for parent in sorted(inside, key=lambda path: path.count(".") if path else -1):
            groups: dict[str, list[tuple[int, str]]] = {}
            for child in tree.children[parent] if taken.isdisjoint(ancestors(parent)) else ():
                if (number := re.search(r"[._]?(\d{1,6})$", child)) and tree.weight(child):
                    groups.setdefault(child[: number.start()], []).append((int(number[1]), child))
            for name, items in groups.items():
                paths = [path for _, path in sorted(items)]
                if len(paths) > 1 and 2 * len(self._unlike(paths)) <= len(paths):
                    taken.update(paths)
                    found.append(Tower(name, parent, [(path,) for path in paths]))
        return found

    def _is_known(self, found: Tower) -> bool:
        word = found.name.rpartition(".")[2]
        if word not in ("encoders", "decoders"):
            return word in _BLOCKS
        return not any(map(self._is_known, self._lists(found.paths[0])))  # PaddleSpeech's; an ensemble's hold lists

    def _unlike(self, paths: list[str]) -> list[str]:
        """Return the items that share few names with any other: neither a dense nor a sparse block is one."""
        return [path for path in paths if not any(self.tree.alike(path, other) for other in paths if other != path)]

    def _numbered_through(self, tower: Tower) -> Tower:
        """Return the blocks of all stages one after another: of ``layer1.0`` or ``stages.0.blocks.1``."""
        through = Tower(tower.name, tower.parent, [])
        for item in tower.paths:
            lists = self._lists(item)
            blocks: list[Block] = [(item,)]
            if self.tree.weight(*(path for found in lists for path in found.paths)) > STAGE * self.tree.weight(item):
                rest = lists[0].name[len(item) :]
                plain = not rest and (tower.name.endswith("stages") or not re.search(r"\.\d+$", item))
                if len(lists) == 1 and (plain or re.fullmatch(r"(\.\d+)*\.\w+", rest) and self._is_known(lists[0])):
                    blocks = lists[0].blocks
                else:
                    self._holding.append(tower.name)
            through.add_stage(item, blocks)
        return through

    def _check(self) -> None:
        known, unknown = (sum(found.depth for found in lists) for lists in (self.towers, self.unknown))
        others = ", ".join(found.name or "of the model" for found in self.unknown)
        if not self.towers and not any(index > 0 for index in self.placed.values()):
            lists = f"; the lists {others} may be blocks" if others else ""
            problem = f"Found no stack of blocks by names (a numbered list called layers, blocks, h or stages{lists})."
        elif unknown >= known > 0:
            problem = f"{unknown} numbered blocks are in lists with unknown names ({others}), {known} in known ones."
        else:
            return
        raise refusal(NoBlocksError, f"{problem} {_HOW}", names=first_few(self.tree.names, 8))

    def _doubts_of_towers(self) -> Iterator[str]:
        """Yield a sentence for doubtful towers, and for towers that may follow one another."""
        names = [tower.name for tower in self.towers]
        for found in self.unknown if self.towers else ():
            yield f"'{found.name}' is a list of {found.depth} items that are no blocks, unlike those of {quoted(names)}"
        for tower in self.towers:
            unlike = self._unlike(tower.paths) or self._unlike(tower.paths[:2])
            if tower.depth > len(tower.stages):
                unlike += [path for path, low, high in tower.stages if low == high]
            unlike = [path for path in unlike if not self._is_placed(path)]
            if unlike:
                yield f"{quoted(unlike, 4)} in '{tower.name}' are unlike the others"
            if tower.name in self._holding:
                yield f"the lists in the items of '{tower.name}' count as parts of one block"
            words = tower.name.split(".")
            if len(names) > 1 and any(_HEAD.fullmatch(word) or _EMBEDDINGS.fullmatch(word) for word in words):
                yield f"'{tower.name}' counts as a tower, though it is named like a head or embeddings"
        roles = [frozenset(_ROLES.findall(name)) for name in names]
        alike = {name.replace("decoder", "encoder") for name in names} if "decoder" in str(names) else {""}
        if len(names) > 1 and (len(set(roles)) < len(names) or not all(roles) or len(alike) > 1):
            yield f"{quoted(names, 4)} count as towers side by side, not one after another"

    def _place_blocks(self, tower: Tower) -> None:
        inside = self.tree.inside
        self.layers.update(tower.layers(self.tree))
        for path, low, high in tower.stages:
            begun = False  # a stage's own parameters belong to its first block, and behind that to its last
            for name in inside[path]:
                begun |= name in self.layers
                self.layers.setdefault(name, tower.layer(high if begun else low))
        tables = [name for path in tower.paths for name in inside[path] if "relative_attention_bias" in name.split(".")]
        if len(tables) == 1 < tower.depth:  # all blocks use the table of the first
            self.layers[tables[0]] = tower.layer(0)

    def _outside(self, name: str) -> Layer:
        """Return the embeddings or the head for a parameter outside of the blocks; note doubts."""
        path = name.split(".")[:-1]
        shared = [len(os.path.commonprefix([path, t.name.split(".")])) for t in self.towers]
        common = max(shared, default=0)
        towers = [tower for tower, count in zip(self.towers, shared) if count == common]
        parts = name.split(".")[common:]
        blocks = [other for tower in towers for path in tower.paths for other in self.tree.inside[path]]
        positions = [self.tree.position[n] for n in blocks or [n for n, index in self.placed.items() if index > 0]]
        before, behind = self.tree.position[name] < min(positions), self.tree.position[name] > max(positions)
        is_head = self._by_words(parts, before, behind, name in self.embeddings)
        if is_head is False and len({t.depth for t in towers}) > 1 and not re.search("shared|word_embeddings", name):
            is_head = None  # whose embeddings are they?
        if is_head is None:
            named = behind or any(_HEAD.fullmatch(part) for part in parts[:-1])
            is_head = named and len(parts) > 1 and name not in self.embeddings
            if not name.endswith(STATISTICS) and name not in self.placed:
                self.doubtful[name] = ".".join(name.split(".")[: common + 1])
        return tower_for(towers, self.towers).outside(is_head)

    @staticmethod
    def _by_words(parts: list[str], before: bool, behind: bool, embedding: bool) -> Optional[bool]:
        """Return whether it is a head, or embeddings; None if no known word agrees with the position."""
        if len(parts) == 1:
            return False if _OWN_EMBEDDINGS.fullmatch(parts[0]) else True if _HEAD.fullmatch(parts[0]) else None
        for part in parts[:-1]:
            if _HEAD.fullmatch(part):
                return True if behind and not embedding else None
            if _EMBEDDINGS.fullmatch(part):
                stage = re.search(r"patch_embed\w*?\.?(\d+)\.", ".".join(parts))  # of a later stage: between the blocks
                late = stage and int(stage[1]) > part[-1].isdigit()
                return None if late or not (before or embedding) else False
        return False if embedding and before else None
