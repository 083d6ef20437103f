"""Which lists are stacks of blocks, and what precedes the blocks: by name, by shape, by a guess that is said."""

import ast
import contextlib
import json
import re
import warnings

import paddle
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_models import PARTS, Parts, block, blocks, ids, indexes, names_of

from paddle_ldopt import LayerMap
from paddle_ldopt.layers.model_parameters import all_paths

HINTED = [
    "embed", "text_embedder", "embs", "wte", "shared", "shared_encoder", "stem", "cls_tokens", "pos_encoder",
    "encode_positions", "rel_pos_bias", "relative_attention_bias", "masked_spec_embed", "heads", "head_encoder",
    "pooler", "classifier", "predictions", "score", "logits", "extractor", "feature_extractor", "postnet", "neck",
    "project_out", "final_ln", "final_layernorm", "encoder_layernorm", "cls", "attnpool", "ln_f", "embeddings",
]  # fmt: skip
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
            assert re.search("Found no stack|lists with unknown names", str(error))
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
    with pytest.warns(UserWarning, match="'decode_head.layers' is named like a head .* tower of 3 blocks.*`rules`"):
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
    assert len(list(all_paths(part))) < 6_000, "not 2^14 - 1"
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


@pytest.mark.parametrize("width, index", [(8, 5), (4, 0)])
def test_a_norm_that_precedes_stages_goes_by_its_width(width, index):
    def wide(size):
        return Parts(q=paddle.nn.Linear(size, size), k=paddle.nn.Linear(size, size), norm=paddle.nn.LayerNorm(size))

    stages = paddle.nn.LayerList([paddle.nn.LayerList([wide(size), wide(size)]) for size in (4, 8)])
    layers = LayerMap.from_model(Parts(norm=paddle.nn.LayerNorm(width), stages=stages))
    assert layers.towers == {"stages": 4} and layers.layer_of("norm.weight").index == index


def test_an_error_suggests_the_longest_list_of_the_model():
    nested = [f"scales.{i}.cells.{j}.{part}" for i in range(3) for j in range(5) for part in PARTS]
    single = [f"features.{i}.{part}" for i in range(4) for part in ("weight", "bias")]  # VGG's convolutions
    for names, pattern, depth in (
        (names_of("cells"), r"cells\.(\d+)\.", 3),
        (names_of("层"), r"层\.(\d+)\.", 3),
        (nested, r"scales\.(\d+)\.", 3),
        (single, r"features\.(\d+)\.", 4),
    ):
        with pytest.raises(ValueError, match="such as {") as refused:
            LayerMap.from_names(names)
        hint = re.search(r"such as (\{.*?\})\.", str(refused.value))[1]
        for read in (ast.literal_eval, json.loads, yaml.safe_load):  # it can be pasted into each of them
            assert read(hint) == {pattern: r"\1"}
        assert LayerMap.from_names(names, {pattern: r"\1"}).n_layers == depth
        assert pattern.partition("\\")[0] in str(refused.value), "readable in every script"


def test_stacks_with_other_items_between_them_are_a_guess():
    names = [f"base.{i}.layers.{j}.{part}" for i in (1, 3) for j in range(3) for part in PARTS]
    with pytest.warns(UserWarning, match="'base' is a list of 3 items, and 2 of them count as towers side by side"):
        LayerMap.from_names([*names, "base.2.conv.w", "norm.w"])
