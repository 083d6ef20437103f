"""LayerMap: rules of the user's own, tied, frozen and adapted parameters, the table and the plot."""

import contextlib
import copy
import functools
import json
import re
import threading
import warnings

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from paddle.distributed.fleet.meta_parallel.meta_parallel_base import MetaParallelBase
from paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage2 import GroupShardedStage2

import paddle_ldopt as ldopt
from paddle_ldopt import AdamWDL, AdamWeightDecay, LayerDecay, LayerMap, apply_layerwise_decay
from paddle_ldopt._paddle import unwrap_model
from paddle_ldopt.layers.map import _all_paths
from paddle_ldopt.layers.rates import applied_rates
from paddle_ldopt.plots import name_lines
from paddle_ldopt.schedules import CurveSchedule, curves, get_linear_schedule_with_warmup
from paddle_ldopt.schedules.ahead import peak_learning_rate, schedule_rates

PARTS = ("attn.w", "attn.b", "mlp.w")


def names_of(stack="h", n=3):
    return ["embed.w", *(f"{stack}.{i}.{part}" for i in range(n) for part in PARTS), "norm.w"]


def ids(layers):
    return [layers.layer_of(name).index for name in layers.names]


class Parts(paddle.nn.Layer):
    """A layer of the sublayers that it is given, by dotted paths, in that order."""

    def __init__(self, **parts):
        super().__init__()
        for path, part in parts.items():
            name, _, inside = path.replace("__", ".").partition(".")
            self.add_sublayer(name, Parts(**{inside: part}) if inside else part)


def block():
    return Parts(q=paddle.nn.Linear(4, 4), norm=paddle.nn.LayerNorm(4))


def blocks(n):
    return paddle.nn.LayerList([block() for _ in range(n)])


def indexes(layers, prefix):
    """Return the layer ids below a prefix, in the order of the names, each run of equal ones once."""
    found = [layers.layer_of(name).index for name in layers.names if name.startswith(f"{prefix}.")]
    return [index for index, before in zip(found, [None, *found]) if index != before]


class Tied(paddle.nn.Layer):
    """A decoder whose head is declared first and shares the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.lm_head = paddle.nn.Linear(4, 4, bias_attr=False)
        self.embed_tokens = paddle.nn.Embedding(4, 4)
        self.embed_tokens.weight = self.lm_head.weight
        self.layers = paddle.nn.LayerList([paddle.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0) for _ in range(3)])
        self.norm = paddle.nn.LayerNorm(4)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


# ---- layers of names and models


def test_tied_parameters_count_once_at_the_lowest_layer():
    model = Tied()
    layers = LayerMap.from_model(model)
    assert layers.names == [name for name, _ in model.named_parameters()]
    assert layers.layer_of("lm_head.weight").index == 0
    assert layers.layer_of(model.embed_tokens.weight.name).index == 0
    assert layers.n_layers == 3
    assert layers.name_dict == {p.name: n for n, p in model.named_parameters()}


def test_frozen_parameters_shift_nothing():
    model = Tied()
    before = LayerMap.from_model(model).fingerprint()
    for p in [*model.layers[0].parameters(), *model.layers[1].parameters()]:
        p.stop_gradient = True
    assert LayerMap.from_model(model).fingerprint() == before
    trainable = [n for n, p in model.named_parameters() if not p.stop_gradient]
    layers = LayerMap.from_names(trainable)
    assert layers.n_layers == 3 and layers.layer_of("layers.2.linear1.weight").index == 3


def test_labels():
    layers = LayerMap.from_names(names_of())
    labels = [layers.layer_of(n).label for n in ("embed.w", "h.0.attn.w", "h.2.mlp.w", "norm.w")]
    assert labels == ["embeddings", "block 0", "block 2", "head"]


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


@pytest.mark.parametrize("rules", [{r"h\.1\.": 2}, {r"h\.1\.": "head"}, {r"h\.0\.": "embeddings"}])
def test_a_rule_for_one_block_moves_no_other(rules):
    model = Parts(h=blocks(4), fc=block())
    layers = LayerMap.from_model(model, rules)
    by_name = LayerMap.from_names([n for n, _ in model.named_parameters()], rules)
    assert indexes(layers, "h.2") + indexes(layers, "h.3") == [3, 4] and layers.fingerprint() == by_name.fingerprint()


def test_rules_may_place_more_blocks_than_are_found():
    layers = LayerMap.from_names([*names_of(), *names_of("cells", 5)], {r"cells\.(\d+)\.": r"\1"})
    assert layers.n_layers == 5 and layers.layer_of("cells.4.attn.w").label == "block 4"
    assert layers.layer_of("h.2.attn.w").depth == 3


def test_a_fingerprint_has_towers_and_layers():
    print_of = LayerMap.from_names(names_of(n=2)).fingerprint()
    assert print_of["towers"] == {"h": 2} and print_of.keys() == {"towers", "layers"}
    assert print_of["layers"]["h.1.attn.w"] == ["h", 2, 2] and len(print_of["layers"]) == len(names_of(n=2))


def test_parts_of_two_blocks_that_are_in_a_list_of_their_own():
    names = [f"attentions.{i}.{part}.w" for i in range(2) for part in "qkv"] + ["ffns.0.w", "ffns.1.w"]
    assert ids(LayerMap.from_names(names)) == [1, 1, 1, 2, 2, 2, 1, 2]


def test_a_head_with_as_many_layers_as_there_are_blocks_is_no_part_of_them():
    model = Parts(layers=blocks(2), final=paddle.nn.Sequential(paddle.nn.LayerNorm(4), paddle.nn.Linear(4, 2)))
    assert indexes(LayerMap.from_model(model), "final") == [3]


def test_an_error_names_eight_parameters():
    with pytest.raises(ValueError, match=r"names=\[embed.w, (h\.\d\.\S+, ){7}\.\.\. 3 more\]"):
        LayerMap.from_names(names_of(), {"nowhere": 1})


def test_a_models_own_parameter_that_a_sublayer_shares_is_mapped_as_the_lower():
    model = Tied()
    model.tail = paddle.create_parameter([2], "float32")
    model.layers[0].scale = model.tail
    layers = LayerMap.from_model(model)
    assert [layers.layer_of(name).index for name in layers.names if name in ("tail", "layers.0.scale")] == [1]


@pytest.mark.parametrize(
    "rules, error, match",
    [
        ({"nowhere": 1}, ValueError, "match no parameter. Received: rules={'nowhere': 1}, names=.embed.w"),
        ({"(": 1}, ValueError, r"regular expressions .*Received: '\('"),
        ({"h": -1}, ValueError, "Received: -1 for 'h.0.attn.w'"),
        ({"h": "tail"}, ValueError, "Received: 'tail' for 'h.0.attn.w'"),
        ({"h": 1.5}, ValueError, "Received: 1.5 for"),
        ({"h": True}, ValueError, "Received: True for"),
        ({"h": r"\2"}, ValueError, r"bad template .*Received: '.*2'"),
        ({r"^h\.0": 9}, ValueError, "leave no layer empty behind the 3 blocks.*Received: layer 9 for 'h.0.attn.w'"),
        ({r"^h\.0": 4, "norm": 6}, ValueError, "Received: layer 4 for 'h.0.attn.w', layer 6 the last"),
        ([("h", 1)], TypeError, "dict of regular expressions or a callable"),
    ],
)
def test_illegal_rules(rules, error, match):
    with pytest.raises(error, match=match):
        LayerMap.from_names(names_of(), rules)


@pytest.mark.parametrize("names", ["embed.w", [1, 2]])
def test_names_and_models_of_another_type(names):
    with pytest.raises(TypeError, match="iterable of strings"):
        LayerMap.from_names(names)
    with pytest.raises(TypeError, match=f"Received: model of type {type(names).__name__}"):
        LayerMap.from_model(names)


def test_an_unknown_parameter():
    with pytest.raises(ValueError, match="after the model is complete .*Received: name='lora_A'"):
        LayerMap.from_model(Tied()).layer_of("lora_A")
    with pytest.raises(ValueError, match=r"Map: a map made by .* to an optimizer\. Received: name='lora_A'"):
        LayerMap.from_names(names_of()).layer_of("lora_A")


def test_embeddings_are_found_wherever_they_are():
    class Odd(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.layers = paddle.nn.LayerList([paddle.nn.TransformerEncoderLayer(4, 2, 8) for _ in range(2)])
            self.tokens, self.fc = paddle.nn.Embedding(5, 4), paddle.nn.Linear(4, 2)

    layers = LayerMap.from_model(Odd())
    assert (layers.layer_of("tokens.weight").index, layers.layer_of("fc.weight").index) == (0, 3)


def test_what_precedes_the_ruled_blocks_is_embeddings():
    names = ["tok.w", *(f"cells.{i}.{part}" for i in range(2) for part in PARTS), "fc.w"]
    layers = LayerMap.from_names(names, {r"cells\.(\d+)\.": r"\1"})
    assert ids(layers) == [0, 1, 1, 1, 2, 2, 2, 3]


def test_a_copied_models_parameters_are_known():
    model = Tied()
    layers = LayerMap.from_model(model)
    copied = copy.deepcopy(copy.deepcopy(model))
    opt = AdamWDL(0.1, parameters=copied.parameters(), layers=layers, layerwise_decay=0.5)
    assert opt.layerwise_ratio(copied.layers[0].linear1.weight) == 0.125


def test_a_parameter_added_after_the_map_is_refused_by_optimizers():
    model = Tied()
    layers = LayerMap.from_model(model)
    late = paddle.create_parameter([2], "float32")
    with pytest.raises(ValueError, match=f"Received: name='{late.name}'"):
        AdamWDL(0.1, parameters=[*model.parameters(), late], layers=layers, layerwise_decay=0.8)


# ---- names decide between stacks, and hide none

HINTED = ["embed", "text_embedder", "embs", "wte", "shared", "shared_encoder", "stem", "cls_tokens", "pos_encoder"]
HINTED += ["encode_positions", "rel_pos_bias", "relative_attention_bias", "masked_spec_embed", "heads", "head_encoder"]
HINTED += [
    "pooler",
    "classifier",
    "predictions",
    "score",
    "logits",
    "extractor",
    "feature_extractor",
    "postnet",
    "neck",
]
HINTED += ["project_out", "final_ln", "final_layernorm", "encoder_layernorm", "cls", "attnpool", "ln_f", "embeddings"]
WORDS = st.sampled_from([*HINTED, "backbone", "encoder", "fusion", "cells", "fc"]) | st.from_regex(
    r"[a-z]{1,3}(_[a-z]{1,3})?", fullmatch=True
)
LISTS = st.sampled_from(["layers", "layer", "h", "blocks", "stages"]) | WORDS


@given(st.lists(st.tuples(WORDS, LISTS, st.integers(3, 5)), min_size=1, max_size=3, unique_by=lambda row: row[0]))
@settings(max_examples=80, deadline=None)
def test_no_stack_ends_up_in_one_layer_unsaid(rows):
    model = Parts(**{f"{word}__{name}": blocks(n) for word, name, n in rows}, fc=Parts(w=paddle.nn.Linear(4, 2)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            layers = LayerMap.from_model(model)
        except ValueError as error:
            assert re.search("Found no stack|lists of unknown kind", str(error))
            return
    said = "".join(str(warning.message) for warning in caught)
    for word, name, n in rows:
        if word == "fc":  # the head above is in its place
            continue
        ids = indexes(layers, f"{word}.{name}")
        assert ids == list(range(1, n + 1)) or (len(ids) == 1 and f"'{word}.{name}'" in said and "`rules`" in said)


@pytest.mark.parametrize("word", HINTED)
def test_a_stack_is_found_whatever_it_is_called(word):
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 12)
    for model in (Parts(**{word: encoder}), Parts(**{word: encoder}, fusion__layers=blocks(2), answer=block())):
        layers = LayerMap.from_model(model)
        assert layers.towers[f"{word}.layers"] == 12 and indexes(layers, f"{word}.layers") == list(range(1, 13))


def test_a_small_head_with_a_list_is_no_tower():
    names = names_of(n=4) + [f"mlm_head.layers.{i}.{part}" for i in range(2) for part in PARTS]
    layers = LayerMap.from_names([*names, *(f"classifier.{i}.w" for i in range(5)), "embed_out.w"])
    assert layers.towers == {"h": 4} and ids(layers)[-12:] == [5] * 12
    with pytest.warns(UserWarning, match="'decode_head.layers' is called like a head .* tower of 3 blocks.*`rules`"):
        layers = LayerMap.from_names([*names_of(n=4), *names_of("decode_head.layers", 3)[1:-1]])
    assert indexes(layers, "decode_head") == [1, 2, 3]
    with pytest.warns(UserWarning, match=r"'head\.cells' is a list of 5 items that count as one layer \(head\)"):
        LayerMap.from_names([*names_of(), *names_of("head.cells", 5)[1:-1]])


def test_a_list_in_the_head_is_no_tower_where_rules_place_the_blocks():
    names = [*names_of("cells"), *(f"mlm_head.layers.{i}.{part}" for i in range(2) for part in PARTS)]
    layers = LayerMap.from_names(names, {r"cells\.(\d+)": r"\1"})
    assert layers.towers == {} and ids(layers)[-7:] == [4] * 7


HEADS = ["fc", "output", "qa_outputs", "linear", "task_a", "classifier", "anything"]


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_is_declared_first(name):
    encoder = {"embed": paddle.nn.Embedding(9, 4), "layers": blocks(3)}
    for head in (paddle.nn.Linear(4, 2), paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 2))):
        assert indexes(LayerMap.from_model(Parts(**{name: head}, **encoder)), name) == [4]
    names = [f"{name}.weight", f"{name}.bias", *names_of()]
    if name != "classifier":
        with pytest.warns(UserWarning, match=f"'{name}' is declared before .*, give `rules`"):
            layers = LayerMap.from_names(names)
        assert ids(layers)[0] == (0 if name == "anything" else 4)
    assert ids(LayerMap.from_names(names, {f"^{name}": "head"}))[0] == 4


@pytest.mark.parametrize(
    "parts, places, guess",
    [
        ({"fc": (7, 4)}, [0], None),  # feeds the blocks
        ({"fc": (4, 4)}, [4], "'fc' .* the head"),  # either: by its name
        ({"mix": (4, 4)}, [0], "'mix' .* the embeddings"),
        ({"mix": (7, 9)}, [0], "'mix' .* the embeddings"),
        ({"up": (4, 9), "down": (9, 4)}, [0, 0], "'up' .* the embeddings; 'down' .* the embeddings"),
        ({"up": (7, 9), "down": (9, 4)}, [0, 0], None),
        ({"hidden": (4, 9), "answer": (9, 2)}, [4, 4], "'hidden' .* the head; 'answer' .* the head"),
    ],
)
def test_what_precedes_the_blocks_goes_by_its_shape(parts, places, guess):
    model = Parts(**{name: paddle.nn.Linear(*shape) for name, shape in parts.items()}, layers=blocks(3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = LayerMap.from_model(model)
    assert [layers.layer_of(f"{name}.weight").index for name in parts] == places
    said = "".join(str(warning.message) for warning in caught)
    assert re.search(guess, said) if guess else not said


@pytest.mark.parametrize("name, guess", [("crf", True), ("output", True), ("pre_crf", False)])
def test_what_precedes_the_blocks_is_a_guess_without_sizes(name, guess):
    model = Parts(**{name: paddle.nn.LSTMCell(4, 2)}, layers=blocks(3))
    with pytest.warns(UserWarning, match=f"'{name}' is declared before") if guess else contextlib.nullcontext():
        assert indexes(LayerMap.from_model(model), name) == [4 if name == "output" else 0]


def test_convolutions_that_precede_the_blocks_go_by_their_shape():
    stem, head = paddle.nn.Conv2D(3, 4, 3), paddle.nn.Conv2D(4, 19, 1)
    layers = LayerMap.from_model(Parts(conv1=stem, segment=head, layers=blocks(3)))
    assert (layers.layer_of("conv1.weight").index, layers.layer_of("segment.weight").index) == (0, 4)


@pytest.mark.parametrize("head", ["head", "anything"])
@pytest.mark.parametrize("first", [False, True])
def test_a_shared_sublayer_is_in_its_lowest_layer_in_any_order(head, first):
    shared, stack = paddle.nn.Linear(4, 4), {"layers": blocks(3)}
    stack["layers"][0].out = shared
    parts = {head: shared, **stack} if first else {**stack, head: shared}
    layers = LayerMap.from_model(Parts(embed=paddle.nn.Embedding(9, 4), **parts))
    assert layers.layer_of(shared.weight.name).index == 1 and layers.towers == {"layers": 3}


def test_a_block_that_is_applied_several_times_counts_as_often():
    layers = LayerMap.from_model(Parts(layers=paddle.nn.LayerList([block()] * 4), fc=paddle.nn.Linear(4, 2)))
    assert layers.n_layers == 4 and indexes(layers, "layers") == [1] and indexes(layers, "fc") == [5]
    model = Parts(encoder__layers=blocks(3))
    model.twin = model.encoder
    assert LayerMap.from_model(model).towers == {"encoder.layers": 3}


def test_nested_sharing_is_walked_in_bounded_time():
    part = paddle.nn.Linear(4, 4)
    for _ in range(13):
        part = Parts(a=part, b=part)
    assert len(list(_all_paths(part))) < 6_000, "not 2^14 - 1"
    assert indexes(LayerMap.from_model(Parts(layers=blocks(3), head=part)), "head") == [4]


@pytest.mark.parametrize("name", ["layers.{}", "layers.{}.blocks.0", "layers.0.blocks.{}"])
def test_keys_are_no_depths(name):
    names = [f"{name.format(20261122 + i)}.{part}" for i in (5, 0, 9) for part in PARTS]
    with pytest.warns(UserWarning, match="numbers of 'layers' are too large for positions"):
        layers = LayerMap.from_names(["embed.w", *names, "norm.w"])
    assert ids(layers) == [0, 2, 2, 2, 1, 1, 1, 3, 3, 3, 4]
    with pytest.raises(ValueError, match="Found no stack"):
        LayerMap.from_names([f"layers.{'9' * 5000}.w", "layers.².w"])


def test_numbers_without_a_block_are_closed_up():
    vgg = [f"features.{i}.{part}" for i in (0, 3, 6, 8, 11, 13, 16, 18) for part in ("weight", "bias")]
    layers = LayerMap.from_names([*vgg, "classifier.0.weight"], {r"features\.(\d+)\.": r"\1"})
    assert layers.n_layers == 8 and indexes(layers, "features") == list(range(1, 9)) and ids(layers)[-1] == 9
    with pytest.warns(UserWarning, match="`rules` place 8 blocks in 19 layers"):
        LayerMap.from_names(vgg, lambda name: int(name.split(".")[1]) + 1)
    some = {r"^h\.([02])\.attn": r"\1"}  # of a stack that is found: as numbered
    assert ids(LayerMap.from_names(names_of(), some)) == ids(LayerMap.from_names(names_of()))
    model = Parts(layers=paddle.nn.Sequential(block(), paddle.nn.GELU(), block(), paddle.nn.GELU(), block()))
    assert LayerMap.from_model(model).n_layers == 3


# ---- wrappers and copies


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


# ---- table and plot


def test_the_planned_table():
    layers = LayerMap.from_names(names_of())
    rows = layers.table(layerwise_decay=0.5, learning_rate=1e-3, apply_decay_param_fun=lambda n: n.endswith("w")).rows
    assert [(r.label, r.tensors, r.ratio[0], r.learning_rate[0], r.decayed) for r in rows] == [
        ("embeddings", 1, 0.0625, 6.25e-5, 1),
        ("block 0", 3, 0.125, 1.25e-4, 2),
        ("block 1", 3, 0.25, 2.5e-4, 2),
        ("block 2", 3, 0.5, 5e-4, 2),
        ("head", 1, 1.0, 1e-3, 1),
    ]


def test_the_table_is_read_back_from_what_the_optimizer_uses():
    model = Tied()
    layers = LayerMap.from_model(model)
    model.norm.bias.stop_gradient = True
    schedule = paddle.optimizer.lr.LinearWarmup(paddle.optimizer.lr.PolynomialDecay(1e-3, 100, 0.0), 10, 0.0, 1e-3)
    groups = [
        {"params": list(model.layers.parameters()), "weight_decay": 0.0, "learning_rate": 0.1},
        {"params": [model.lm_head.weight, *model.norm.parameters()]},
    ]
    opt = AdamWDL(schedule, parameters=groups, weight_decay=0.1, layers=layers, layerwise_decay=0.5)
    for _ in range(5):
        schedule.step()
    rows = {r.label: r for r in layers.table(optimizer=opt).rows}
    assert rows["block 1"].ratio == pytest.approx((0.025, 0.025))  # 0.1 of the group times 0.25 of the layer
    assert rows["block 1"].learning_rate == pytest.approx((0.025 * 5e-4,) * 2)
    assert rows["block 1"].peak_learning_rate == pytest.approx((0.025 * 1e-3,) * 2)
    assert rows["block 1"].decayed == 0 and rows["embeddings"].decayed == 1
    assert rows["head"].tensors == 2 and rows["head"].frozen == 1
    assert rows["embeddings"].elements == 16
    before = schedule.last_epoch
    layers.table(optimizer=opt)
    assert schedule.last_epoch == before


def test_the_table_shows_hooks_and_undecayed_optimizers_too():
    model = Tied()
    layers = LayerMap.from_model(model)
    plain = paddle.optimizer.Momentum(0.1, parameters=model.parameters())
    assert {r.ratio for r in layers.table(optimizer=plain).rows} == {(1.0, 1.0)}
    hooked = AdamWDL(0.1, parameters=model.parameters(), set_param_lr_fun=lambda p: 0.0 if p.ndim == 1 else 0.5)
    row = layers.table(optimizer=hooked).rows[1]
    assert row.ratio == (0.0, 0.5) and row.frozen == sum(p.ndim == 1 for p in model.layers[0].parameters())


def test_applied_rates_are_those_of_a_step():
    model = Tied()
    opt = apply_layerwise_decay(
        paddle.optimizer.SGD(0.5, parameters=model.parameters()), LayerMap.from_model(model), layerwise_decay=0.5
    )
    ratios = applied_rates(opt, 1.0)
    before = {n: p.numpy().copy() for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = paddle.ones_like(p)
    opt.step()
    for n, p in model.named_parameters():
        np.testing.assert_allclose(before[n] - p.numpy(), 0.5 * ratios[p.name], rtol=1e-5, atol=1e-6)


def test_what_weight_decay_the_table_sees():
    model = Tied()
    layers = LayerMap.from_model(model)
    cases = [
        (paddle.optimizer.Momentum(0.1, parameters=model.parameters(), weight_decay=0.1), True),
        (paddle.optimizer.Momentum(0.1, parameters=model.parameters()), False),
        (paddle.optimizer.Adam(0.1, parameters=model.parameters(), weight_decay=paddle.regularizer.L2Decay(0.1)), True),
        (paddle.optimizer.Lamb(0.1, 0.1, parameters=model.parameters()), True),
        (
            paddle.optimizer.Lamb(0.1, 0.1, parameters=model.parameters(), exclude_from_weight_decay_fn=lambda p: True),
            False,
        ),
        (paddle.optimizer.AdamW(0.1, parameters=model.parameters(), weight_decay=0.0), False),
    ]
    for opt, decayed in cases:
        row = layers.table(optimizer=opt).rows[0]
        assert row.decayed == (row.tensors if decayed else 0), type(opt)


def test_peak_learning_rate():
    lr = paddle.optimizer.lr
    warm = lr.LinearWarmup(lr.CosineAnnealingDecay(0.3, 50), 20, 0.0, 0.3)
    assert peak_learning_rate(warm) == pytest.approx(0.3) and warm.last_epoch == 0
    assert peak_learning_rate(lr.LambdaDecay(0.1, lambda s: min(s / 9, 1.0)), num_steps=3) == pytest.approx(0.1 * 3 / 9)
    assert peak_learning_rate(lr.ReduceOnPlateau(0.2)) == 0.2
    assert peak_learning_rate(lr.OneCycleLR(0.3, 20)) == pytest.approx(0.3), "it raises when it is stepped past its end"
    assert peak_learning_rate(0.4) == 0.4


class Holder:
    """Keeps what a schedule may hold: the optimizer, a lock, a count of its calls."""

    def __init__(self):
        self.lock, self.calls, self.optimizer = threading.Lock(), 0, None

    def factor(self, step):
        self.calls += 1
        return min(step + 1, 4)


class OfOptimizer(paddle.optimizer.lr.LRScheduler):
    """Computes its rate from what the optimizer's rate is, and keeps all rates in a list."""

    def __init__(self, holder):
        self.holder, self.rates, self.source = holder, [], iter(range(10_000_000))
        super().__init__(0.025)

    def get_lr(self):
        self.rates.append(next(self.source))
        return self.base_lr if self.holder.optimizer is None else min(2 * self.holder.optimizer.get_lr(), 0.4)


def looks(value):
    """Return what a schedule, and what it holds, look like."""
    if isinstance(value, (paddle.optimizer.lr.LRScheduler, Holder)):
        return {name: looks(held) for name, held in vars(value).items() if name != "optimizer"}
    return list(value) if isinstance(value, list) else repr(value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "make",
    [
        lambda held: paddle.optimizer.lr.LambdaDecay(0.1, held.factor),
        lambda held: paddle.optimizer.lr.LambdaDecay(0.1, functools.partial(Holder.factor, held), verbose=True),
        lambda held: paddle.optimizer.lr.LinearWarmup(
            paddle.optimizer.lr.LambdaDecay(0.4, lambda step: 1.0, verbose=True), 20, 0.0, 0.4, verbose=True
        ),
        lambda held: paddle.optimizer.lr.CyclicLR(0.1, 0.4, 5, verbose=True),  # calls a method of its own
        OfOptimizer,
    ],
)
def test_a_schedule_is_read_ahead_without_a_trace(make, capsys):
    model, held = Tied(), Holder()
    layers, schedule = LayerMap.from_model(model), make(held)
    held.optimizer = opt = AdamWDL(schedule, parameters=model.parameters())
    for param in model.parameters():
        param.grad = paddle.ones_like(param)
    opt.step()  # Paddle cannot deep-copy it from now on
    schedule.step()
    capsys.readouterr()
    before = looks(schedule), held.calls
    assert layers.table(optimizer=opt).rows[0].peak_learning_rate == pytest.approx((0.4, 0.4))
    schedule_rates(schedule, 30)
    assert (looks(schedule), held.calls) == before and capsys.readouterr().out == ""


class Unknown(paddle.optimizer.lr.LRScheduler):
    def __init__(self):
        self.rates = (0.1 for _ in range(99))
        super().__init__(0.1)

    def get_lr(self):
        return next(self.rates)


@pytest.mark.parametrize("planned", [False, True])
def test_a_schedule_that_cannot_be_read_ahead_has_no_known_peak(planned):
    model, schedule = Tied(), Unknown()
    how = {"optimizer": AdamWDL(schedule, parameters=model.parameters())}
    how = {"layerwise_decay": 1.0, "learning_rate": schedule} if planned else how
    with pytest.warns(UserWarning, match="peak is unknown. Unknown cannot be read ahead .TypeError: .*Received: a sch"):
        rows = LayerMap.from_model(model).table(**how).rows
    assert {(row.learning_rate, row.peak_learning_rate) for row in rows} == {((0.1, 0.1), None)}
    LayerMap.from_model(model).table(**how, num_steps=0)  # no warning
    with pytest.raises(ValueError, match="Received: a schedule of type Unknown"):
        schedule_rates(schedule, 5)
    assert next(schedule.rates) == 0.1 and len([*schedule.rates]) == 97


CURVES = [
    curves.Constant(7),
    curves.Linear(30, 40),
    curves.InverseSqrt(20, 30),
    curves.Polynomial(10, 30, 2.0, 0.3),
    curves.Cosine(10, 50, 0.5, 0.1),
    curves.Cosine(10, 50, 3.3),
    curves.Cosine(0, 7, 40.0),
    curves.Cosine(5, 0, 0.5),
    curves.CosineOneAhead(10, 50, 1.7, 0.1),
    curves.CosineOneAhead(10, 50, 0.5, 0.1, 0.2),
    curves.CosineOneAhead(1, 50, 0.5, 0.1, 0.2),
    curves.CosineRestarts(10, 50, 3.3),
    curves.CosineRestarts(0, 53, 7),
    curves.StableDecay(10, 20, 30, "linear", "cosine", 0.1, 0.5),
    curves.StableDecay(10, 20, 30, "1-sqrt", "cosine", 0.1, 1.4),
    curves.StableDecay(10, 0, 30, "cosine", "1-sqrt", 0.0, 0.5),
    curves.CoolDown(10, 20, 30, 10, 0.1, 0.2, 0.8, 0.5),
    curves.CoolDown(10, 0, 30, 10, 0.1, 0.2, 0.0, 1.9),
]


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_the_peak_of_a_schedule_of_ours_is_that_of_all_its_steps(curve):
    schedule, end = CurveSchedule(0.3, curve), max(curve.turns())
    for start in range(0, end + 5):
        schedule.step(start)
        ahead = [schedule.base_lr * curve(step) for step in range(start, max(end, start) + 1)]
        assert peak_learning_rate(schedule) == max(ahead), start
        for num_steps in (0, 1, 5, 33):
            ahead = [schedule.base_lr * curve(step) for step in range(start, start + num_steps + 1)]
            assert peak_learning_rate(schedule, num_steps) == max(ahead), (start, num_steps)


def test_the_peak_of_a_long_schedule():
    assert peak_learning_rate(get_linear_schedule_with_warmup(0.3, 10**8, 10**9)) == 0.3
    foreign = CurveSchedule(0.3, lambda step: min(step / 20_000, 1.0))
    assert peak_learning_rate(foreign) == pytest.approx(0.15), "10,000 steps, as documented"
    assert peak_learning_rate(foreign, 30_000) == pytest.approx(0.3)
    warm = paddle.optimizer.lr.LinearWarmup(0.3, 15_000, 0.0, 0.3)
    assert peak_learning_rate(warm) == pytest.approx(0.3), "it says how long it is"
    layers = LayerMap.from_names(names_of())
    assert layers.table(1.0, foreign).rows[0].peak_learning_rate[1] == pytest.approx(0.15)
    assert layers.table(1.0, foreign, num_steps=30_000).rows[0].peak_learning_rate[1] == pytest.approx(0.3)


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_decay_of_the_rate_is_shown(scheduled):
    model = Tied()
    layers = LayerMap.from_model(model)
    rate = CurveSchedule(0.1, lambda step: min((step + 1) / 10, 1.0)) if scheduled else 0.1
    opt = AdamWeightDecay(rate, decay=0.5, layers=layers, layerwise_decay=0.5, parameters=model.parameters())
    for step in range(3):
        row = layers.table(optimizer=opt, num_steps=4).rows[-1]
        rates = [(0.1 * (s + 1) / 10 if scheduled else 0.1) / (1 + 0.5 * s) for s in range(step, step + 5)]
        assert row.learning_rate[1] == pytest.approx(rates[0])
        assert row.peak_learning_rate[1] == pytest.approx(max(rates))
        assert applied_rates(opt)[model.norm.weight.name] == pytest.approx(rates[0])
        for param in model.parameters():
            param.clear_gradient()
            (param * param).sum().backward()
        opt.step()
        if scheduled:
            rate.step()


def test_renderings():
    layers = LayerMap.from_names(names_of())
    table = layers.table(LayerDecay(0.5, freeze_below=0.1), 1e-3)
    text = str(table)
    assert "embeddings" in text and "block 2" in text and "0.0005" in text
    assert max(map(len, text.splitlines())) <= 80
    lines = table.to_markdown().splitlines()
    assert len(lines) == 2 + 5 and lines[0].startswith("| layer |") and len({line.count("|") for line in lines}) == 1
    assert json.loads(json.dumps(table.to_dict()))[0]["frozen"] == 1


def test_towers_are_told_apart():
    names = [
        f"m.{t}.layers.{i}.{part}" for t, n in (("encoder", 2), ("decoder", 3)) for i in range(n) for part in PARTS
    ]
    layers = LayerMap.from_names(["m.shared.w", *names, "head.w"])
    assert layers.towers == {"m.encoder.layers": 2, "m.decoder.layers": 3}
    assert layers.n_layers == 3
    rows = layers.table(0.5).rows
    assert [(r.tower.split(".")[-2:][0], r.label, r.ratio[0]) for r in rows] == [
        ("", "embeddings", 0.0625),
        ("", "head", 1.0),
        ("encoder", "block 0", 0.25),
        ("encoder", "block 1", 0.5),
        ("decoder", "block 0", 0.125),
        ("decoder", "block 1", 0.25),
        ("decoder", "block 2", 0.5),
    ]
    assert "encoder" in str(layers.table(0.5)) and "decoder" in layers.table(0.5).to_markdown()


@pytest.mark.parametrize("tower", ["[/x]", "[red]", ":smile:", "$x_{$", "a|b", "_hidden"])
def test_names_are_no_markup(tmp_path, tower):
    names = [f"{t}.layers.{i}.{part}" for t in (tower, "text") for i in (0, 1) for part in PARTS]
    layers = LayerMap.from_names(names)
    assert f" {tower} block 0 " in str(layers.table(0.5))
    lines = layers.table(0.5).to_markdown().splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    layers.plot(tmp_path / "rates.svg", 0.5)  # text as outlines: no name to look for
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([0, 1], label=tower)
    axes.plot([1, 0])
    name_lines(axes)
    figure.savefig(tmp_path / "legend.png")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [tower]


def test_statistics_of_batch_normalization_are_no_frozen_parameters():
    nn = paddle.nn
    model = nn.Sequential(nn.Conv2D(3, 4, 3), *(nn.Sequential(nn.Conv2D(4, 4, 3), nn.BatchNorm2D(4)) for _ in range(2)))
    layers = LayerMap.from_model(model, {r"^([12])\.": r"\1"})
    opt = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    for table in (layers.table(0.5), layers.table(optimizer=opt)):
        assert [(row.tensors, row.frozen) for row in table.rows if row.index] == [(4, 0), (4, 0)]
    assert layers.layer_of("1.1._mean").index == 1  # numbers without blocks are closed up


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plot(tmp_path, ending):
    path = tmp_path / f"rates.{ending}"
    layers = LayerMap.from_names(names_of())
    assert layers.plot(path, layerwise_decay=0.8, learning_rate=5e-5) == str(path)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)


def test_plot_refuses_other_formats(tmp_path):
    with pytest.raises(ValueError, match="Received: path='rates.txt'"):
        LayerMap.from_names(names_of()).plot("rates.txt", layerwise_decay=0.8)


@pytest.mark.parametrize("both", [False, True])
def test_table_takes_a_decay_or_an_optimizer(both):
    model = Tied()
    opt = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    how = {"layerwise_decay": 0.8, "optimizer": opt} if both else {}
    with pytest.raises(ValueError, match="either `layerwise_decay` or `optimizer`"):
        LayerMap.from_model(model).table(**how)


def test_options_that_an_optimizer_settles_are_refused_beside_it():
    model = Tied()
    opt = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    for name, value in {"learning_rate": 0.1, "apply_decay_param_fun": bool}.items():
        with pytest.raises(ValueError, match=f"`{name}` is read back from `optimizer`.*Received: {name}="):
            LayerMap.from_model(model).table(optimizer=opt, **{name: value})


def test_table_of_another_models_optimizer():
    model, other = Tied(), paddle.nn.Linear(2, 2)
    opt = paddle.optimizer.SGD(0.1, parameters=other.parameters())
    with pytest.raises(ValueError, match="from the model that is trained"):
        LayerMap.from_model(model).table(optimizer=opt)


# ---- optimizers whose rate is not just `learning_rate`


def rates(layers, opt):
    """Return layer -> (rate now, at the peak), least and greatest."""
    return {r.label: (r.learning_rate, r.peak_learning_rate) for r in layers.table(optimizer=opt).rows}


@pytest.mark.parametrize("name", ["came", "adafactor", "lamb"])
def test_the_table_shows_a_groups_own_rate(name):
    model = Tied()
    layers = LayerMap.from_model(model)
    inside, rest = model.layers.parameters(), [model.lm_head.weight, *model.norm.parameters()]
    for groups in (
        [{"params": inside, "lr": 0.5}, {"params": rest}],
        [{"params": rest}, {"params": inside, "lr": 0.5}],
    ):
        more = {"relative_step": False, "scale_parameter": False} if name == "adafactor" else {}
        opt = ldopt.optimizer_class(name)(
            learning_rate=1e-3, parameters=groups, layers=layers, layerwise_decay=0.5, **more
        )
        for stepped in (False, True):
            if stepped:
                model(paddle.to_tensor([[0, 1, 2]])).square().mean().backward()
                opt.step()
                opt.clear_grad()
            found = rates(layers, opt)
            assert found["block 1"][0] == pytest.approx((0.125, 0.125)), "its own rate times the layer's ratio"
            assert found["head"][0] == pytest.approx((1e-3, 1e-3))
            assert found["embeddings"][0] == pytest.approx((1e-3 * 0.0625,) * 2)


def test_the_table_says_what_it_cannot_know_of_relative_steps():
    model = Tied()
    layers = LayerMap.from_model(model)
    came = ldopt.Came(relative_step=True, parameters=model.parameters(), layers=layers, layerwise_decay=0.5)
    assert set(rates(layers, came).values()) == {(None, None)}
    opt = ldopt.Adafactor(model.parameters(), layers=layers, layerwise_decay=0.5)
    model(paddle.to_tensor([[0, 1, 2]])).square().mean().backward()
    opt.step()
    used = opt.used_lr()
    block = [used[p.name] for p in model.layers[1].parameters()]
    assert rates(layers, opt)["block 1"] == ((min(block), max(block)), None)
    assert {r.label: r.ratio for r in layers.table(optimizer=opt).rows}["block 1"] == (0.25, 0.25)


def test_the_table_shows_schedules_that_advance_with_the_optimizer():
    model = Tied()
    layers = LayerMap.from_model(model)
    how = {"parameters": model.parameters(), "layers": layers, "layerwise_decay": 0.5}
    assert rates(layers, ldopt.Lamb([1e-4, 9e-4, 2e-4], **how))["head"] == ((1e-4, 1e-4), (9e-4, 9e-4))
    found = rates(layers, ldopt.Lamb(lambda step: 1e-3 * (step + 1), **how))["block 2"]
    assert found == (pytest.approx((5e-4, 5e-4)), None)


def test_a_planned_table_knows_rates_of_param_attr():
    attr = paddle.ParamAttr(learning_rate=10.0)
    head = paddle.nn.Linear(4, 2, weight_attr=attr, bias_attr=attr)
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(4, 2, 8), 2)
    model = paddle.nn.Sequential(("encoder", encoder), ("classifier", head))
    layers = LayerMap.from_model(model)
    optimizer = ldopt.AdamWDL(0.001, parameters=model.parameters(), layers=layers, layerwise_decay=0.5)
    planned, built = layers.table(0.5, 0.001).rows[-1], layers.table(optimizer=optimizer).rows[-1]
    assert planned.learning_rate == pytest.approx(built.learning_rate)
    assert planned.learning_rate == pytest.approx((0.01, 0.01))


def test_an_optimizer_without_parameters_has_no_table():
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(4, 2, 8), 2)
    layers = LayerMap.from_model(encoder)
    paddle.enable_static()
    try:
        optimizer = ldopt.AdamWDL(0.001, layers=layers, layerwise_decay=0.5)
        with pytest.raises(ValueError, match="no parameters to show"):
            layers.table(optimizer=optimizer)
    finally:
        paddle.disable_static()
