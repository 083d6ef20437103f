"""LayerMap: rules, tied and frozen parameters, wrappers and copies; by names, doubts are said or refused."""

import contextlib
import copy

import paddle
import pytest
from layer_models import PARTS, Parts, Tied, block, blocks, ids, indexes, names_of, tied
from paddle.distributed.fleet.meta_parallel.meta_parallel_base import MetaParallelBase
from paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage2 import GroupShardedStage2

from paddle_ldopt import AdamWDL, LayerMap, load_optimizer, save_optimizer
from paddle_ldopt._compat import unwrap_model


def test_tied_parameters_count_once_at_the_lowest_layer_also_in_a_copied_model(tmp_path):
    model, layers = tied()
    assert layers.names == [name for name, _ in model.named_parameters()]
    assert layers.layer_of("lm_head.weight").index == 0
    assert layers.layer_of(model.embed_tokens.weight.name).index == 0
    assert layers.n_layers == 3
    assert layers.name_dict == {p.name: n for n, p in model.named_parameters()}
    copied = copy.deepcopy(copy.deepcopy(model))  # whose parameters are known
    opt = AdamWDL(0.1, parameters=copied.parameters(), layers=layers, layerwise_decay=0.5)
    assert opt.layerwise_ratio(copied.layers[0].linear1.weight) == 0.125
    assert opt.n_layers == layers.n_layers
    save_optimizer(tmp_path / "copied", opt)
    assert len(load_optimizer(tmp_path / "copied", opt).missing) == len(layers.names)


def test_frozen_parameters_shift_nothing_if_they_are_known():
    model = Tied()
    before = LayerMap.from_model(model).fingerprint()
    for p in model.layers[:2].parameters():
        p.stop_gradient = True
    assert LayerMap.from_model(model).fingerprint() == before
    with pytest.raises(ValueError, match="no stack of blocks"):
        LayerMap.from_names([n for n, p in model.named_parameters() if not p.stop_gradient])


@pytest.mark.parametrize(
    "rules",
    [
        {r"cells\.(\d+)\.": r"\1"},
        {r"cells\.0\.": 1, r"cells\.1\.": 2, r"cells\.2\.": 3},
        lambda name: int(name.split(".")[1]) + 1 if name.startswith("cells") else None,
    ],
    ids=["template", "ids", "callable"],
)
def test_rules_of_the_users_own(rules):
    layers = LayerMap.from_names(names_of("cells"), rules)
    assert ids(layers) == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4] and layers.n_layers == 3


def test_rules_go_before_the_built_in_ones():
    layers = LayerMap.from_names(names_of(), {r"^h\.0\.attn": "embeddings", r"^h\.2\.mlp": "head", r"norm": 3})
    assert ids(layers) == [0, 0, 0, 1, 2, 2, 2, 3, 3, 4, 3]
    assert [layers.layer_of(name).tower for name in layers.names[1:4]] == ["", "", "h"]
    layers = LayerMap.from_names([*names_of(), *names_of("cells", 5)], {r"cells\.(\d+)\.": r"\1"})
    assert layers.n_layers == 5 and layers.layer_of("cells.4.attn.w").label == "block 4", "more blocks than are found"
    assert layers.layer_of("h.2.attn.w").depth == 3


@pytest.mark.parametrize("rules", [{r"h\.1\.": 2}, {r"h\.1\.": "head"}, {r"h\.0\.": "embeddings"}])
def test_a_rule_for_one_block_moves_no_other(rules):
    model = Parts(h=blocks(4), fc=block())
    layers = LayerMap.from_model(model, rules=rules)
    by_name = LayerMap.from_names([n for n, _ in model.named_parameters()], rules)
    assert indexes(layers, "h.2") + indexes(layers, "h.3") == [3, 4] and layers.fingerprint() == by_name.fingerprint()


@pytest.mark.parametrize(
    "rules, error, match",
    [
        ({"nowhere": 1}, ValueError, r"matches no parameter; the names are \[embed.w, (h\.\S+, ){7}\.\.\. 3 more"),
        (lambda name: None, ValueError, "`rules` place no parameter. Received: rules=<function .*names=..embed.w"),
        ({"(": 1}, ValueError, r"regular expressions .*Received: pattern='\('"),
        ({"h": -1}, ValueError, "Received: h.0.attn.w=-1"),
        ({"h": "tail"}, ValueError, "Received: h.0.attn.w='tail'"),
        ({"h": 1.5}, ValueError, "must give a layer id from 0.*Received: h.0.attn.w=1.5"),
        ({"h": r"\2"}, ValueError, r"bad template .*Received: template='.*2'"),
        ({r"^h\.0": 9}, ValueError, "leave no layer empty after the 3 blocks.*Received: h.0.attn.w=9, last=9"),
        ({r"^h\.0": 4, "norm": 6}, ValueError, "Received: h.0.attn.w=4, last=6"),
        ([("h", 1)], TypeError, "must be a dict from regular expressions to layers.*Received: rules="),
    ],
)
def test_illegal_rules(rules, error, match):
    with pytest.raises(error, match=match):
        LayerMap.from_names(names_of(), rules)


def test_names_that_are_none_and_an_unknown_parameter():
    for names in ("embed.w", [1, 2]):
        with pytest.raises(TypeError, match="iterable of strings"):
            LayerMap.from_names(names)
        with pytest.raises(TypeError, match=f"Received: model of type {type(names).__name__}"):
            LayerMap.from_model(names)
    with pytest.raises(ValueError, match="after the model is complete .*Received: name='lora_A'"):
        LayerMap.from_model(Tied()).layer_of("lora_A")
    with pytest.raises(ValueError, match="nearest is 'norm.weight'.*Received: name='norm.weigth'"):
        LayerMap.from_model(Tied()).layer_of("norm.weigth")
    with pytest.raises(ValueError, match=r"Map: a map made by .* to an optimizer\. Received: name='lora_A'"):
        LayerMap.from_names(names_of()).layer_of("lora_A")


def test_heads_and_embeddings_are_found_wherever_they_are():
    model = Parts(layers=blocks(2), head=paddle.nn.Sequential(paddle.nn.LayerNorm(4), paddle.nn.Linear(4, 2)))
    assert indexes(LayerMap.from_model(model), "head") == [3], "of as many layers as there are blocks"
    model = Tied()
    model.tail = paddle.create_parameter([2], "float32")
    model.layers[0].scale = model.tail
    with pytest.warns(UserWarning, match="'tail' in the embeddings.*`example=`"):
        layers = LayerMap.from_model(model)
    assert layers.layer_of("tail").index == 0, "the model's own, which a sublayer shares"
    odd = Parts(layers=blocks(2), tokens=paddle.nn.Embedding(5, 4), fc=paddle.nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="'tokens' in the embeddings.*`example=`"):
        layers = LayerMap.from_model(odd)
    assert (layers.layer_of("tokens.weight").index, layers.layer_of("fc.weight").index) == (0, 3)


def test_a_parameter_added_after_the_map_and_a_map_of_names_alone_are_refused_by_optimizers():
    model, layers = tied()
    late = paddle.create_parameter([2], "float32")
    with pytest.raises(ValueError, match=f"Received: name='{late.name}'"):
        AdamWDL(0.1, parameters=[*model.parameters(), late], layers=layers, layerwise_decay=0.8)
    with pytest.raises(ValueError, match="use `LayerMap.from_model`"):
        AdamWDL(0.1, parameters=model.parameters(), layers=LayerMap.from_names(names_of()), layerwise_decay=0.5)


def test_wrappers_are_known_by_their_class():
    user = Parts(embed=paddle.nn.Embedding(9, 4), _layers=blocks(2), _layer=paddle.nn.Linear(4, 2))
    assert unwrap_model(user) is user
    wrapped = paddle.DataParallel(user)
    assert unwrap_model(paddle.DataParallel(wrapped)) is user
    assert unwrap_model(MetaParallelBase(wrapped, None, None)) is user
    sharded = GroupShardedStage2.__new__(GroupShardedStage2)  # its constructor needs several processes
    paddle.nn.Layer.__init__(sharded)
    sharded._layer = user
    assert unwrap_model(sharded) is user
    model = Tied()
    layers = LayerMap.from_model(paddle.DataParallel(model))
    assert layers.names == [name for name, _ in model.named_parameters()] == list(layers.name_dict.values())


# By names

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
        (stack("layers", 3), "all parameters are in blocks"),
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
        (["embed.w", *stack("layers", 3), *stack("highway", 3)], "or stages; the lists highway may be.*`example=`"),
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
