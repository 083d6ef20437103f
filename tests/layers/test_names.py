"""Layers by names, without a forward pass: what is sure is silent, all else is an error or a warning that names it."""

import contextlib

import paddle
import pytest
from layer_models import PARTS, Parts, block, blocks, ids, indexes, names_of

from paddle_ldopt import LayerMap

BLOCKS = ("norm.weight", "qkv.weight", "fc1.weight", "fc2.weight")


def stack(path, n):
    return [f"{path}.{i}.{part}" for i in range(n) for part in BLOCKS]


@pytest.mark.parametrize(
    "names, said",
    [
        (["embed.w", *stack("layers", 3), "norm.w", "lm_head.w"], None),
        (["cls_token", "pos_embed", "patch_embed.proj.w", *stack("blocks", 3), "norm.w", "head.w"], None),
        (["encoder.embed.w", *stack("encoder.layers", 3), *stack("decoder.layers", 5), "fc.w"], None),
        (["vision.embed.w", *stack("vision.layers", 3), "text.embed.w", *stack("text.layers", 5), "head.w"], None),
        (["embed.w", *stack("audio.layers", 3), *stack("text.h", 5), "fc.w"], "'audio.layers', 'text.h' in the blocks"),
        (["stem.w", *stack("layers.0.blocks", 2), "layers.0.down.w", *stack("layers.1.blocks", 3), "norm.w"], None),
        (["stem_0.w", *stack("stages_0.blocks", 2), *stack("stages_1.blocks", 3), "head.w"], None),
        ([*stack("layers", 3), "class_embed.w"], "'class_embed'"),
        ([*stack("layers", 3), "gbf_proj.w"], "'gbf_proj'"),
        (["cnn_extractor.w", *stack("layers", 3), "head.w"], "'cnn_extractor'"),
        (["reg_token", *stack("layers", 3), "head.w"], "'reg_token'"),
        (["fc.w", *stack("layers", 3)], "'fc' in the head"),
        (["embed.w", *stack("encoder.layers", 3), "layer_norm.w"], "'layer_norm'"),
        (["embed.w", *stack("a.layers", 3), *stack("b.layers", 3), "head.w"], "'a.layers', 'b.layers' in the blocks"),
        (["embed.w", *stack("layers", 5), *stack("odd", 3)], "'odd' in the head"),
        (["embed.w", *stack("layers", 5), *stack("head.odd", 3)], "'head' in the head"),
        (["embed.w", *stack("layers", 5), *stack("decode_head.layers", 2), "head.w"], "'decode_head.layers' in the b"),
        (["embed.w", *[f"h.{i}.{'ab'[i % 2]}{x}" for i in range(6) for x in "qkv"], "head.w"], "'h' in the blocks"),
        (stack("layers", 3), "the whole model is one numbered list"),
        (["embed.w", *stack("layers", 3)], "no parameter is in the head"),
    ],
)  # fmt: skip
def test_what_is_not_sure_is_said(names, said):
    check = contextlib.nullcontext() if said is None else pytest.warns(UserWarning, match=f"{said}.*`example=`")
    with check:
        layers = LayerMap.from_names(names)
    assert layers.source == "by names"


@pytest.mark.parametrize(
    "names, match",
    [
        (["conv1.weight", "fc.weight"], "Found no stack of blocks .*`example=`.*conv1.weight"),
        (["embed.w", *stack("trunk", 12), "head.w"], "the lists trunk may be blocks.*`rules`, which may be a function"),
        (["embed.w", *stack("parts.0.layers", 3), *stack("parts.1.layers", 3), "head.w"], "lists parts may be blocks"),
        (["embed.w", *stack("layers", 3), *stack("highway", 3)], "of all items; the lists highway may be.*`example=`"),
        ([f"layers.{'9' * 5000}.w", "layers.².w"], "Found no stack"),
    ],
)
def test_what_cannot_be_known_is_refused(names, match):
    with pytest.raises(ValueError, match=match):
        LayerMap.from_names(names)


@pytest.mark.parametrize(
    "first, said", [(False, r"'layers\.0\.out\.weight', .* in the blocks"), (True, "'head' in the head")]
)
def test_a_sublayer_that_a_block_shares_and_an_embedding_that_towers_share_are_said(first, said):
    shared, stack_ = paddle.nn.Linear(4, 4), {"layers": blocks(3)}
    stack_["layers"][0].out = shared
    parts = {"head": shared, **stack_} if first else {**stack_, "head": shared}
    with pytest.warns(UserWarning, match=f"{said}.*`example=`"):
        layers = LayerMap.from_model(Parts(embed=paddle.nn.Embedding(9, 4), **parts, fc=paddle.nn.Linear(4, 2)))
    assert layers.layer_of(shared.weight.name).index == (4 if first else 1) and layers.towers == {"layers": 3}
    table = paddle.nn.Embedding(9, 8)
    sides = {side: Parts(embed=table, layers=blocks(n)) for side, n in (("encoder", 2), ("decoder", 6))}
    with pytest.warns(UserWarning, match="'encoder.embed.weight' in the embeddings"):
        LayerMap.from_model(Parts(**sides, lm_head=paddle.nn.Linear(8, 9)))


def test_nested_sharing_is_walked_in_bounded_time():
    part = paddle.nn.Linear(4, 4)
    for _ in range(13):
        part = Parts(a=part, b=part)
    assert indexes(LayerMap.from_model(Parts(layers=blocks(3), head=part)), "head") == [4]


def test_numbers_without_a_block_are_closed_up():
    vgg = [f"features.{i}.{part}" for i in (0, 3, 6, 8, 11, 13, 16, 18) for part in ("weight", "bias")]
    layers = LayerMap.from_names([*vgg, "classifier.0.weight"], {r"features\.(\d+)\.": r"\1"})
    assert layers.n_layers == 8 and indexes(layers, "features") == list(range(1, 9)) and ids(layers)[-1] == 9
    some = {r"^h\.([02])\.attn": r"\1"}  # of a stack that is found: as numbered
    assert ids(LayerMap.from_names(names_of(), some)) == ids(LayerMap.from_names(names_of()))
    layers = paddle.nn.Sequential(block(), paddle.nn.GELU(), block(), paddle.nn.GELU(), block())
    assert LayerMap.from_model(Parts(layers=layers, head=block())).n_layers == 3


@pytest.mark.parametrize("cells", ["", "layers."])
def test_an_offset_numbers_a_stack_behind_another(cells):
    names = ["embed.w", *(f"{of}.{cells}{i}.{part}" for of in "ab" for i in range(3) for part in PARTS), "head.w"]
    layers = LayerMap.from_names(names, {rf"^a\.{cells}(\d)": r"\1", rf"^b\.{cells}(\d)": r"\1 + 3"})
    assert ids(layers) == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7]
