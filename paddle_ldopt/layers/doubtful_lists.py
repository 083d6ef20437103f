"""Numbered lists that the map may misread: a sentence for each guess, an error without credible blocks."""

import json
import re
from collections.abc import Iterator

from .._checks import first_few
from .known_names import STACK_NAMES, index_by_words
from .layer import Layer
from .numbered_lists import is_index
from .stacks import FoundLists


def check_found(names: list[str], lists: FoundLists, deepest: int) -> None:
    """Raise if no blocks were found, or at least half of them are in lists with unknown names."""
    if not deepest:
        raise ValueError(
            "Found no stack of blocks (a numbered list called layers, layer, h, block, blocks, resblocks or stages): "
            f"{_advice(lists.others or lists.single or {'cells': 0})}. Received: names=[{first_few(names, 8)}]"
        )
    unknown = {
        tower: length
        for tower, length in lists.others.items()
        if tower.rpartition(".")[2] not in STACK_NAMES and index_by_words(tower) is None
    }
    missed, known = sum(unknown.values()), sum(stack.depth for stack in lists.stacks)
    if missed >= known > 0:
        raise ValueError(
            f"{missed} numbered blocks are in lists with unknown names ({', '.join(sorted(unknown))}), only {known} in "
            f"known lists ({', '.join(stack.tower for stack in lists.stacks)}): {_advice(unknown)}. "
            f"Received: names=[{first_few(names, 8)}]"
        )


def _advice(lists: dict[str, int]) -> str:
    """Return the advice to number the items of the longest list that is in no other; `lists` maps name -> length."""
    outer = [tower for tower in lists if not any(tower.startswith(f"{other}.") for other in lists)]
    longest = max(outer, key=lists.__getitem__)
    pattern = (longest if "<i>" in longest else f"{longest}.<i>").replace(".", r"\.")
    pattern = pattern.replace("<i>", r"(\d+)", 1).replace("<i>", r"\d+")
    rules = json.dumps({rf"{pattern}\.": r"\1"}, ensure_ascii=False)  # for Python, JSON and YAML alike
    return f"give `rules`, such as {rules}"


def guesses_of_lists(lists: FoundLists, by_rules: dict[str, int], layers: dict[str, Layer]) -> list[str]:
    """Return a sentence for each list that may be misread; `by_rules` has the layer ids of the user's rules."""
    guesses = [*_of_stacks(lists), *_of_other_lists(lists, layers), *_of_nested_stacks(lists, list(layers))]
    placed = {index for index in by_rules.values() if index > 0}
    if not lists.stacks and len(placed) < max(placed) - min(placed) + 1:
        guesses.append(f"`rules` place {len(placed)} blocks in {max(placed)} layers and leave the others empty")
    return guesses


def _of_stacks(lists: FoundLists) -> Iterator[str]:
    """Yield a sentence for each stack with the numbers of keys, or with the name of a head or an embedding."""
    for stack in lists.stacks:
        if stack.keyed:
            yield f"the numbers of '{stack.tower}' are too large for positions, so only their order counts"
    sure = max((stack.depth for stack in lists.stacks if not stack.doubtful), default=0)
    for stack in lists.stacks:
        if stack.doubtful and stack.depth < sure:
            yield f"'{stack.tower}' is named like a head or an embedding and counts as a tower of {stack.depth} blocks"


def _of_other_lists(lists: FoundLists, layers: dict[str, Layer]) -> Iterator[str]:
    """Yield a sentence for each list that counts as one layer, of single layers only if these are the embeddings."""
    for tower, length in lists.others.items():
        start = tower.partition("<i>")[0] if "<i>" in tower else f"{tower}."
        where = next((layer.label for name, layer in layers.items() if name.startswith(start)), "one layer")
        if length >= 3:
            yield f"'{tower}' is a list of {length} items that count as one layer ({where})"
    for tower, length in lists.single.items():  # such as VGG's convolutions
        items = re.compile("\\d+".join(map(re.escape, f"{tower}.".replace("<i>.", "<i>").split("<i>"))))
        indexes = {layer.index for name, layer in layers.items() if items.match(name)}
        if indexes == {0}:
            yield f"'{tower}' is a list of {length} items that count as one layer (embeddings)"


def _of_nested_stacks(lists: FoundLists, names: list[str]) -> Iterator[str]:
    """Yield a sentence for each list of stacks that has other items between them: HarDNet's `base`."""
    nested: dict[str, set[str]] = {}
    for parts in (stack.tower.split(".") for stack in lists.stacks):
        for k in (k for k, part in enumerate(parts) if k and is_index(part)):
            nested.setdefault(".".join(parts[:k]), set()).add(parts[k])
    for path, towers in nested.items():
        items = {name.removeprefix(f"{path}.").split(".")[0] for name in names if name.startswith(f"{path}.")}
        if len(towers) > 1 and items - towers:
            yield f"'{path}' is a list of {len(items)} items, and {len(towers)} of them count as towers side by side"
