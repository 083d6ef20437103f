"""The layers of a model by the names of its parameters, without a forward pass: what is sure, and doubts."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Optional

from .._checks import first_few, refusal
from .layer import STACK_NAMES, STATISTICS, Layer, NoBlocksError
from .towers import Shape, Stack, Tree, ancestors, find_stacks, list_name, paired

_HEAD = re.compile(
    r"\w*heads?(_\w+)?|(pre_)?classifier|cls|pooler|predict(ions?|or)|score|logits?(_scale)?|ln_f|norm_f|fc\d*|fc_norm"
    r"|final_(ln|norm|layer_?norm)|ln_(post|final)|post_layer_?norm|after_norm|qa_outputs|outputs?|out|output_layer"
    r"|embed_out|pred_layer|last_conv",
    re.I,
)
_EMBEDDINGS = re.compile(
    r"\w*embed(ding|der)?s?(_(tokens|positions|proj\w*)|\d|_\d)*|embs?|\w*_emb|wte|wpe|shared|stem(_?\d+)?|patch_embed\w*|ln_pre"
    r"|(cls|class|mask|dist)_token|relative_attention_bias",
    re.I,
)
# a model's own parameters come before its sublayers, so that their position says nothing
_OWN_EMBEDDINGS = re.compile(
    r"(cls|class|mask|dist|query)_(token|embedding)s?|(abs\w*_)?pos(ition\w*)?_emb\w*|masked_spec_embed|mask_emb", re.I
)
_NORM = re.compile(r"(\w*encoder_|\w*decoder_)?norm|ln", re.I)
_ROLES = re.compile(r"(?:^|[._])(encoder|decoder|vision|visual|image|audio|text|generator|discriminator)(?=[._]|$)")


class _Named:
    """The order of the numbers in names."""

    def __init__(self, tree: Tree) -> None:
        self.position: dict[str, int] = {}
        for i, name in enumerate(tree.names):
            self.position.setdefault(name, i)
        self.tree = tree
        self.unknown: list[Stack] = []
        self.unlike: dict[str, list[str]] = {}  # list of blocks -> items that are no blocks

    def when(self, path: str) -> int:
        return self.position[self.tree.inside[path][0]]

    def feeds(self, one: str, other: str) -> bool:
        return False

    feeds_main = feeds

    def single_blocks(self, tree: Tree, stacks: list[Stack]) -> list[Stack]:
        return []

    def runs(self, tree: Tree, parent: str) -> Iterator[Stack]:
        groups: dict[str, list[tuple[int, str]]] = {}
        for child in tree.children[parent]:
            number = re.search(r"(\d{1,6})$", child)
            if number and tree.weight(child):
                groups.setdefault(child[: number.start()], []).append((int(number[1]), child))
        for stem, items in groups.items():
            run = [child for _, child in sorted(items)]
            is_list = stem in (f"{parent}.", "")
            name = list_name(parent, run)
            most = max(map(tree.width, run))
            every, run = run, [child for child in run if 3 * tree.width(child) > most]
            partners = sum(any(a is not b and tree.alike(a, b) for b in run) for a in run)
            if 2 * partners < len(run) or len(run) < 2:
                continue
            stack = Stack(name, parent.rpartition(".")[0] if is_list else parent, paired(run, tree.alike), [], is_list)
            last = re.sub(r"([._]?\d+)+$", "", name).rpartition(".")[2]  # also of `layer1.0` and `stages.0.1`
            holds = any(part.rpartition(".")[2].isdigit() for item in run for part in tree.children.get(item, []))
            if last in STACK_NAMES and not (last in ("encoders", "decoders") and self._holds_lists(run)):
                self.unlike[name] = [child for child in every if child not in run]
                yield stack
            elif sum(map(tree.weight, run)) >= 3 * len(run) or (holds and is_list):
                self.unknown.append(stack)

    def _holds_lists(self, run: list[str]) -> bool:
        parts = {
            re.sub(r"[\d_]+$", "", path.rpartition(".")[2]) for path in self.tree.children if path.startswith(run[0])
        }
        return bool(parts & STACK_NAMES)


class NamedModel:
    """The towers of a model and the layers of its parameters by names; `doubts` has a sentence for each guess."""

    def __init__(
        self,
        names: list[str],
        shapes: Mapping[str, Shape],
        embeddings: Iterable[str],
        placed: Mapping[str, int],
        towers: Optional[list[Stack]] = None,
        tied: Optional[Mapping[str, int]] = None,
    ) -> None:
        self.tree = Tree(names, shapes)
        self.order = _Named(self.tree)
        self.embeddings = set(embeddings)  # parameters of Embedding sublayers
        self.placed = placed  # name -> layer id, by rules
        self.towers = find_stacks(self.tree, self.order) if towers is None else towers
        blocks = {path for tower in self.towers for block in tower.blocks for path in block}
        above = {path for block in blocks for path in ancestors(block)}
        self._others = [
            stack
            for stack in {stack.name: stack for stack in self.order.unknown}.values()
            if not any(path in blocks for path in ancestors(stack.blocks[0][0]))
            and stack.blocks[0][0] not in above
            and not all(name in placed for block in stack.blocks for name in self.tree.inside[block[0]])
        ]
        if towers is None:
            self._check()
        self.doubts = list(self._of_towers())
        self.doubtful: dict[str, str] = {}  # name -> the part of the model that it stands for
        self.layers: dict[str, Layer] = {}
        for tower in self.towers:
            self._number(tower)
        rest = [name for name in names if name not in self.layers]
        self.layers.update({name: self.outside(name) for name in rest})
        self.layers = {name: self.layers[name] for name in names}
        # of a tied parameter one sure name is enough
        sure = {tied[name] for name in names if name not in self.doubtful} if tied else set()
        by_place: dict[str, dict[str, None]] = {}
        for name, part in self.doubtful.items():
            if not tied or tied[name] not in sure:
                by_place.setdefault("head" if self.layers[name].is_head else "embeddings", {})[part] = None
        for place, parts in by_place.items():
            self.doubts.append(f"{first_few(map(repr, parts), 12)} by position or name alone in the {place}")

    def _check(self) -> None:
        """Raise if there are no blocks, or at least as many in lists with other names."""
        known, unknown = sum(tower.depth for tower in self.towers), sum(stack.depth for stack in self._others)
        others = ", ".join(stack.name for stack in self._others)
        how = "Give `example=`, a batch for one forward pass that measures the layers, or `rules`, which may be a "
        how += "function."
        if not self.towers and not any(index > 0 for index in self.placed.values()):
            lists = f"; the lists {others} may be blocks" if others else ""
            problem = (
                f"Found no stack of blocks by names (a numbered list called layers, blocks, h or stages{lists}). {how}"
            )
            raise refusal(NoBlocksError, problem, names=first_few(self.tree.names, 8))
        if unknown >= known > 0:
            inside = ", ".join(tower.name for tower in self.towers)
            problem = (
                f"{unknown} numbered blocks are in lists with unknown names ({others}), only {known} in known lists"
            )
            raise refusal(NoBlocksError, f"{problem} ({inside}). {how}", names=first_few(self.tree.names, 8))

    def _of_towers(self) -> Iterator[str]:
        """Yield a sentence for what may be no tower, or towers that may follow one another."""
        for stack in self._others:
            if stack.depth > 2 and self.towers:
                known = first_few(repr(tower.name) for tower in self.towers)
                yield f"'{stack.name}' is a list of {stack.depth} items that are no blocks, unlike those of {known}"
        for tower in self.towers:
            unlike = [
                item for name, items in self.order.unlike.items() if name.startswith(tower.name) for item in items
            ]
            unlike += [path for path, low, high in tower.stages if low == high and (path,) in tower.blocks]
            unlike = [item for item in unlike if not all(name in self.placed for name in self.tree.inside[item])]
            if unlike:
                yield f"{first_few(map(repr, unlike))} in '{tower.name}' are unlike the others"
            if any(len(block) > 1 for block in tower.blocks):
                yield f"items of '{tower.name}' in turns count as parts of one block"
            parts = self.tree.children.get(tower.blocks[0][0], [])
            if (
                len(parts) > 1
                and all(part.rpartition(".")[2].isdigit() for part in parts)
                and len(tower.blocks[0]) == 1
            ):
                yield f"the lists in the items of '{tower.name}' count as parts of one block"
            words = tower.name.split(".")
            if len(self.towers) > 1 and any(_HEAD.fullmatch(word) or _EMBEDDINGS.fullmatch(word) for word in words):
                yield f"'{tower.name}' counts as a tower, though it is named like a head or embeddings"
        names = [tower.name for tower in self.towers]
        roles = [tuple(sorted(set(_ROLES.findall(name)))) for name in names]
        alike = (
            {re.sub("decoder", "encoder", name) for name in names} if any("decoder" in name for name in names) else {""}
        )
        if len(names) > 1 and (len(set(roles)) < len(names) or () in roles or len(alike) > 1):
            yield f"{first_few(map(repr, names))} count as towers side by side, not one after another"

    def _number(self, tower: Stack) -> None:
        for index, block in enumerate(tower.blocks, 1):
            for path in block:
                self.layers.update({name: Layer(tower.name, index, tower.depth) for name in self.tree.inside[path]})
        for path, low, high in tower.stages:
            begun = False
            for name in self.tree.inside[path]:
                begun |= name in self.layers
                self.layers.setdefault(name, Layer(tower.name, high if begun else low, tower.depth))
        tables = [name for block in tower.blocks for path in block for name in self.tree.inside[path]]
        tables = [name for name in tables if re.search(r"(^|\.)relative_attention_bias\b", name)]
        if len(tables) == 1 < tower.depth:  # all blocks use the table of the first
            self.layers[tables[0]] = Layer(tower.name, 0, tower.depth)

    def nearest(self, name: str) -> tuple[int, list[Stack]]:
        """Return how many leading parts a name shares with the nearest towers, and these towers."""
        path = name.split(".")[:-1]
        shared = []
        for tower in self.towers:
            pairs = zip(path, tower.name.split("."))
            shared.append(
                next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(path), tower.name.count(".") + 1))
            )
        most = max(shared, default=0)
        return most, [tower for tower, count in zip(self.towers, shared) if count == most]

    def outside(self, name: str) -> Layer:
        """Return the embeddings or the head for a parameter outside of the blocks, and note what is not sure."""
        common, towers = self.nearest(name)
        parts = name.split(".")[common:]
        blocks = [
            name for tower in towers for block in tower.blocks for path in block for name in self.tree.inside[path]
        ]
        blocks = blocks or [block for block, index in self.placed.items() if index > 0]
        positions = [self.order.position[block] for block in blocks] or [0]
        position = self.order.position.get(name, len(self.tree.names))
        before, behind = position < min(positions), position > max(positions)
        index = self._by_words(parts, before, behind, name in self.embeddings)
        beside = not towers or any(tower.name.count(".") == common for tower in towers)
        depths = {tower.depth for tower in towers}
        if index == 0 and len(depths) > 1 and not re.search("shared|word_embeddings", name):
            index = None  # whose embeddings are they?
        is_norm = len(parts) == 2 and bool(_NORM.fullmatch(parts[0])) and beside and behind
        if index is None:
            is_head = behind or any(_HEAD.fullmatch(part) for part in parts[:-1])
            index = 1 if is_norm or (is_head and len(parts) > 1 and name not in self.embeddings) else 0
            if not is_norm and not name.endswith(STATISTICS) and name not in self.placed:
                self.doubtful[name] = ".".join(name.split(".")[: common + 1])
        tower = towers[0].name if len(towers) == 1 else ""
        depth = towers[0].depth if len(towers) == 1 else max((t.depth for t in self.towers), default=0)
        return Layer(tower, index * (depth + 1), depth)

    @staticmethod
    def _by_words(parts: list[str], before: bool, behind: bool, embedding: bool) -> Optional[int]:
        """Return 0 for embeddings, 1 for a head, None if no known word agrees with the position."""
        if len(parts) == 1:
            return 0 if _OWN_EMBEDDINGS.fullmatch(parts[0]) else 1 if _HEAD.fullmatch(parts[0]) else None
        for part in parts[:-1]:
            if _HEAD.fullmatch(part):
                return 1 if behind and not embedding else None
            if _EMBEDDINGS.fullmatch(part):
                stage = re.search(r"patch_embed\w*?\.?(\d+)\.", ".".join(parts))  # of a later stage: between the blocks
                late = stage and int(stage[1]) > (part[-1].isdigit())
                return None if late or not (before or embedding) else 0
        return 0 if embedding and before else None
