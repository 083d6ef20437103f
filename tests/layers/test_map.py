"""LayerMap: rules of the user, tied and frozen parameters, wrappers and copies."""

import copy

import paddle
import pytest
from layer_models import Parts, Tied, block, blocks, ids, indexes, names_of, tied
from paddle.distributed.fleet.meta_parallel.meta_parallel_base import MetaParallelBase
from paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage2 import GroupShardedStage2

from paddle_ldopt import AdamWDL, LayerMap
from paddle_ldopt._compat import unwrap_model


def test_tied_parameters_count_once_at_the_lowest_layer_also_in_a_copied_model():
    model, layers = tied()
    assert layers.names == [name for name, _ in model.named_parameters()]
    assert layers.layer_of("lm_head.weight").index == 0
    assert layers.layer_of(model.embed_tokens.weight.name).index == 0
    assert layers.n_layers == 3
    assert layers.name_dict == {p.name: n for n, p in model.named_parameters()}
    copied = copy.deepcopy(copy.deepcopy(model))  # whose parameters are known
    opt = AdamWDL(0.1, parameters=copied.parameters(), layers=layers, layerwise_decay=0.5)
    assert opt.layerwise_ratio(copied.layers[0].linear1.weight) == 0.125


def test_frozen_parameters_shift_nothing():
    model = Tied()
    before = LayerMap.from_model(model).fingerprint()
    for p in [*model.layers[0].parameters(), *model.layers[1].parameters()]:
        p.stop_gradient = True
    assert LayerMap.from_model(model).fingerprint() == before
    trainable = [n for n, p in model.named_parameters() if not p.stop_gradient]
    with pytest.raises(ValueError, match="no stack of blocks"):
        LayerMap.from_names(trainable)


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
