"""Structured parameter name -> layer, for any model, from names and shapes; pure Python.

Layer 0 has the embeddings, 1..n the blocks, n + 1 the head. Each tower (encoder and decoder, text and vision) counts by
its own depth.
"""

import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Optional

from .._messages import first_few
from .before_blocks import ParameterInfo, PartBeforeBlocks, is_head
from .granularity import Granularity, grouped
from .stacks import STACK_NAMES, Stack, find_stacks, is_index
from .user_rules import HEAD, Rules, apply_rules, check_no_gap, close_gaps

_EMBEDDING = re.compile(
    r"(^|[._])(embed\w*|emb|embs|wte|wpe|shared|stem|patch_proj|input_proj|"
    r"(cls|class|mask|dist|query|register)_tokens?|(patch|pixel)_pos|pos\w*_enc\w*|encode_positions|rel\w*_(attention_)?bias\w*|masked_spec_embed)(?=[._]|$)",
    re.I,
)
_HEAD = re.compile(
    r"(^|[._])(heads?|mtp_\w+|pooler|attnpool|classifier|predict(ions?|or)|score|logits?|(?<!feature_)extractor|"
    r"postnet|neck|project_out|embed_out|output_layer|after_norm|final_(ln|norm|layer_?norm)|ln_f|norm_f|fc_norm|"
    r"ln_post|post_layer_?norm|"
    r"(en|de)coder_layernorm(?=[.]|$)|cls(?=[.]|$))(?=[._]|$)",
    re.I,
)
# Parameters whose role is visible in neither name nor position.
_EXCEPTIONS: dict[re.Pattern[str], int] = {
    re.compile(r"\bbigbird\.encoder\.norm\."): 0,  # applied to the embeddings, before block 0
    re.compile(
        r"\bdeberta\.encoder\.(LayerNorm|conv)\."
    ): 0,  # norm of the relative embeddings, and a convolution added to block 0's output
    re.compile(r"\baudio_encoder\.batch_norm\."): 0,  # CLAP: of the spectrogram
    re.compile(r"\btransposed_convolution\."): HEAD,  # CLIPSeg: makes the logits
    # lists that look like blocks; the first of wav2vec 2.0, HuBERT, WavLM: of the waveform
    re.compile(r"\bfeature_(extractor|encoder)\.conv_layers\.\d+\.(conv|layer_norm|\d)\b"): 0,
    re.compile(r"\b(hubert|wavlm)\.layer_norm\."): 0,  # norm of the features, before their projection
    re.compile(r"\bembeddings\.(\w+\.)?backbone\.bit\.(embedder|encoder)\."): 0,  # hybrid DPT, ViT: makes patches
    re.compile(r"\bpatch_embed\.backbone\.stages\."): 0,  # the same in timm
    re.compile(r"\b(ppm|psp_modules?|cm)\.stages\.\d+\."): HEAD,  # PaddleSeg: pools of several sizes, side by side
    re.compile(r"\bneck\.(reassemble|fusion)_stage\."): HEAD,  # DPT
    re.compile(r"\bspeech_decoder_postnet\.layers\."): HEAD,  # SpeechT5
}
# wav2vec 2.0, HuBERT, WavLM: the large models, which normalise each convolution, apply encoder.layer_norm last
_WAVEFORM_NORM = re.compile(r"(?:^|\.)feature_extractor\.conv_layers\.(\d+)\.(?:layer_norm|2|2\.1)\.(?:weight|bias)$")
_ENCODER_NORM = re.compile(r"(^|\.)encoder\.layer_norm\.")
_RELATIVE_BIAS = re.compile(r"(^|\.)relative_attention_bias\b")


@dataclasses.dataclass(frozen=True)
class Layer:
    """The layer of one parameter."""

    tower: str  #: name of its stack of blocks; "" for parameters of several towers
    index: int  #: layer id within the tower: 0 = embeddings, 1..depth = blocks, depth + 1 = head
    depth: int  #: number of blocks of the tower; of the deepest one for parameters of several towers
    kind: str = "block"  #: "block", or with a granularity "stage" or "group"

    @property
    def is_block(self) -> bool:
        """Whether the layer is a block (or stage, or group)."""
        return 0 < self.index <= self.depth

    @property
    def label(self) -> str:
        """The layer's name: "embeddings", "block 3" (from 0, as in the model's names) or "head"."""
        if self.is_block:
            return f"{self.kind} {self.index - 1}"
        return "head" if self.index else "embeddings"


def place(
    names: list[str],
    rules: Optional[Rules],
    infos: dict[str, ParameterInfo],
    granularity: Granularity,
    whole: bool = False,
) -> tuple[dict[str, Layer], dict[str, int], list[str]]:
    """Return name -> Layer, tower -> depth, and a sentence for each guess.

    Args:
        names: structured names in the model's order.
        rules: the user's `rules`.
        infos: structured name -> `ParameterInfo`; empty if only names are known.
        granularity: the user's `granularity`.
        whole: whether `names` are complete.
    """
    placed, numbered = apply_rules(names, rules)
    exceptions = {name for name in names if _exception(name) is not None}
    alone = all(index < 1 for index in placed.values())
    shapes = {name: info.shape for name, info in infos.items()}
    stacks, others, single = find_stacks(names, exceptions | placed.keys(), _is_hinted, whole, alone, shapes)
    depths = {stack.tower: stack.depth for stack in stacks}
    blocks = max(depths.values(), default=0)
    close_gaps(placed, numbered, blocks)
    placed_blocks = {name: index for name, index in placed.items() if index > 0}
    deepest = max([blocks, *placed_blocks.values()])
    _check_found(names, depths, others, deepest)
    check_no_gap(placed_blocks, blocks, deepest)
    # 1. by the user's rules, 2. by the stacks
    layers = {name: Layer("", deepest + 1 if index == HEAD else index, deepest) for name, index in placed.items()}
    for stack in stacks:
        layers.update({n: Layer(stack.tower, number + 1, stack.depth) for n, number in stack.numbers.items()})
        shared = [n for n in stack.numbers if _RELATIVE_BIAS.search(n)]
        if len(shared) == 1 < stack.depth:  # T5 keeps the bias that all blocks share in block 0
            layers[shared[0]] = Layer(stack.tower, 0, stack.depth)
    # 3. by name, 4. by the order of declaration
    normalised = {match[1] for match in map(_WAVEFORM_NORM.search, names) if match}
    first_placed = next((i for i, name in enumerate(names) if name in placed_blocks), 0)
    parts: dict[str, PartBeforeBlocks] = {}
    for position, name in enumerate(names):
        if name in layers:
            continue
        path = name.split(".")[:-1]
        near, nearest = _nearest(path, stacks)
        tower, depth = (nearest[0].tower, nearest[0].depth) if len(nearest) == 1 else ("", deepest)
        index = _index_by_name(name, near)
        if normalised and _ENCODER_NORM.search(name):
            index = HEAD if len(normalised) > 1 else 0
        if index is None:
            # a model's own parameters (`logit_scale`) come before its sublayers', so their position says nothing
            before = len(path) > near and position < min((stack.first for stack in nearest), default=first_placed)
            index = 0 if before else HEAD
            if before:
                numbers = [stack.numbers for stack in nearest] or [placed_blocks]
                parts.setdefault(".".join(path[: near + 1]), PartBeforeBlocks([], numbers, depth)).names.append(name)
        layers[name] = Layer(tower, depth + 1 if index == HEAD else 0, depth)
    guesses = _guesses_of_lists(stacks, others, layers, {*placed_blocks.values()}, deepest)
    guesses += [*_guesses_of_single_layers(single, layers), *_guesses_of_nested_stacks(stacks, names)]
    # 5. declared before the blocks, yet a head
    in_blocks = {infos[name].tensor for stack in stacks for name in stack.numbers} if infos else set()
    for branch, part in parts.items():
        if infos and all(infos[name].tensor in in_blocks for name in part.names):  # shared with a block
            head, guess = True, False
        else:
            head, guess = is_head(branch, parts, infos)
        if head:
            layers.update((name, dataclasses.replace(layers[name], index=part.depth + 1)) for name in part.names)
        if guess:
            where = "the head" if head else "the embeddings"
            guesses.append(f"'{branch}' is declared before the blocks and counts as part of {where}")
    stages = {stack.tower: stack.stages for stack in stacks if stack.stages}
    layers, depths = grouped({name: layers[name] for name in names}, depths, stages, granularity)
    return layers, depths, guesses


def _is_hinted(tower: str) -> bool:
    return bool(_HEAD.search(tower) or _EMBEDDING.search(tower))


def _exception(name: str) -> Optional[int]:
    return next((index for pattern, index in _EXCEPTIONS.items() if pattern.search(name)), None)


def _nearest(path: list[str], stacks: list[Stack]) -> tuple[int, list[Stack]]:
    """Return the nearest stacks to a path, and the number of leading parts it shares with them."""
    common = [len(os.path.commonprefix([path, stack.tower.split(".")])) for stack in stacks]
    near = max(common, default=0)
    return near, [stack for stack, count in zip(stacks, common) if count == near]


def _index_by_name(name: str, near: int) -> Optional[int]:
    """Return 0 for the name of an embedding, HEAD for the name of a head, None for other names."""
    exception = _exception(name)
    if exception is not None:
        return exception
    # without the parts shared with the tower: `ernie_embed.classifier` is not an embedding
    local = ".".join(name.split(".")[near:])
    return HEAD if _HEAD.search(local) else 0 if _EMBEDDING.search(local) else None


def _guesses_of_lists(
    stacks: list[Stack], others: dict[str, int], layers: dict[str, Layer], placed_ids: set[int], deepest: int
) -> list[str]:
    """Return a sentence for each list that counts as one layer, and each tower named like a head or embedding."""
    keyed = [stack.tower for stack in stacks if stack.keyed]
    guesses = [f"the numbers of '{tower}' are too large for positions and count in their order" for tower in keyed]
    sure = max((stack.depth for stack in stacks if not stack.doubted), default=0)
    for stack in stacks:
        if stack.doubted and stack.depth < sure:
            tower = f"a tower of {stack.depth} blocks"
            guesses.append(f"'{stack.tower}' is called like a head or an embedding and counts as {tower}")
    for tower, length in others.items():
        if length >= 3:
            start = tower.partition("<i>")[0] if "<i>" in tower else f"{tower}."
            where = next((layer.label for name, layer in layers.items() if name.startswith(start)), "one layer")
            guesses.append(f"'{tower}' is a list of {length} items that count as one layer ({where})")
    if not stacks and placed_ids and len(placed_ids) <= deepest - min(placed_ids):
        guesses.append(f"`rules` place {len(placed_ids)} blocks in {deepest} layers and leave the others empty")
    return guesses


def _guesses_of_single_layers(single: dict[str, int], layers: dict[str, Layer]) -> Iterator[str]:
    """Yield a sentence for each list of single layers, such as VGG's convolutions, that counts as embeddings."""
    for tower, length in single.items():
        inside = re.compile("\\d+".join(map(re.escape, f"{tower}.".replace("<i>.", "<i>").split("<i>"))))
        found = [layer for name, layer in layers.items() if inside.match(name)]
        if found and not any(layer.index for layer in found):
            yield f"'{tower}' is a list of {length} items that count as one layer (embeddings)"


def _guesses_of_nested_stacks(stacks: list[Stack], names: list[str]) -> Iterator[str]:
    """Yield a sentence for each list of stacks that has other items between them: HarDNet's `base`."""
    nested: dict[str, set[str]] = {}
    for parts in (stack.tower.split(".") for stack in stacks):
        for k in (k for k, part in enumerate(parts) if k and is_index(part)):
            nested.setdefault(".".join(parts[:k]), set()).add(parts[k])
    for path, items in nested.items():
        every = {name.removeprefix(f"{path}.").split(".")[0] for name in names if name.startswith(f"{path}.")}
        if len(items) > 1 and every - items:
            yield f"'{path}' is a list of {len(every)} items, and {len(items)} of them count as towers side by side"


def _check_found(names: list[str], depths: dict[str, int], others: dict[str, int], deepest: int) -> None:
    """Raise if no blocks were found, or half of them are in lists of unknown kind."""
    if not deepest:
        raise ValueError(
            "Found no stack of blocks (a numbered list called layers, layer, h, block, blocks, resblocks or stages): "
            f"give `rules`, such as {{r'cells\\.(\\d+)\\.': r'\\1'}}. Received: names=[{first_few(names, 8)}]"
        )
    with_known_name = [tower for tower in others if tower.rpartition(".")[2] in STACK_NAMES or _is_hinted(tower)]
    unknown = {tower: length for tower, length in others.items() if tower not in with_known_name}
    missed, known = sum(unknown.values()), sum(depths.values())
    if missed >= known > 0:
        first = min(unknown)
        pattern = first.replace("<i>", r"(\d+)", 1).replace("<i>", r"\d+") if "<i>" in first else rf"{first}\.(\d+)"
        raise ValueError(
            f"{missed} numbered blocks are in lists of unknown kind ({', '.join(sorted(unknown))}) and only "
            f"{known} in known ones ({', '.join(depths)}): give `rules`, such as "
            f"{{r'{pattern}\\.': r'\\1'}}. Received: names=[{first_few(names, 8)}]"
        )
