"""Layer maps of real models against maps written by hand from their parameter names and their modeling code.

PaddleNLP's models are built. The names of others in `tests/support/zoo_names.txt` were taken from models that their
packages built, in the versions that the file says, with few and narrow blocks where a constructor allows it.
`zoo_maps.py` says how a map is written.
"""

import contextlib
import warnings

import paddle
import pytest
from zoo import ZOO
from zoo_maps import check, expected, read_maps, read_names, spelled

from paddle_ldopt import LayerMap

MAPS, GUESSES = read_maps()
NAMES = read_names()
BLOCK = "{attn.qkv.weight,attn.proj.bias,mlp.fc1.weight,norm1.weight}"


def rules_for(blocks, embeddings, head):
    """Return rules and map of a model whose blocks are in no list."""
    rules = {rf"^{word}\.": i for i, word in enumerate(spelled(blocks), 1)}
    rules |= {rf"^{word}\.": "embeddings" for word in spelled(embeddings)}
    return rules | {rf"^{word}\.": "head" for word in spelled(head)}, [(blocks, embeddings, head)]


# Models without a list of blocks raise, and are mapped by these rules.
WITH_RULES = {
    "pv_LeNet": ({r"features\.(\d+)": r"\1"}, [("features.{0,3}", "", "fc")]),
    "pv_AlexNet": ({r"_conv(\d)\.": r"\1"}, [("_conv[1-5]", "", "_fc[6-8]")]),
    "pv_VGG11": ({r"features\.(\d+)": r"\1"}, [("features.{0,3,6,8,11,13,16,18}", "", "classifier")]),
    # a norm is part of its convolution's block
    "pv_VGG16bn": (
        lambda name: int(name.split(".")[1]) // 7 + 1 if name.startswith("features.") else None,
        [
            (
                "features.{0,1,3,4}=1 features.{7,8,10,11}=2 features.{14,15,17,18,20}=3 features.{21,24,25,27}=4"
                " features.{28,30,31,34}=5 features.{35,37,38,40,41}=6",
                "",
                "classifier",
            )
        ],
    ),
    "pv_MobileNetV1": rules_for("conv{2_1,2_2,3_1,3_2,4_1,4_2,5_1,5_2,5_3,5_4,5_5,5_6,6}", "conv1", "fc"),
    "pv_MobileNetV2": rules_for("features.[1-17]", "features.0", "features.18 classifier"),
    "pv_densenet121": (
        {r"^conv1": 0, r"^db_conv_2|^tr_conv2": 1, r"^db_conv_3|^tr_conv3": 2}
        | {r"^db_conv_4|^tr_conv4": 3, r"^db_conv_5": 4},
        [
            (
                "db_conv_2=1 tr_conv2_blk=1 db_conv_3=2 tr_conv3_blk=2 db_conv_4=3 tr_conv4_blk=3 db_conv_5=4",
                "conv1_func",
                "batch_norm out",
            )
        ],
    ),
    "pv_googlenet": rules_for(
        "_ince{3a,3b,4a,4b,4c,4d,4e,5a,5b}", "_conv _conv_1 _conv_2", "_fc_out _conv_o[1-2] _fc_o[1-2] _out[1-2]"
    ),
    "pv_inception_v3": rules_for("inception_block_list.[0-10]", "inception_stem", "fc"),
    "pv_shufflenet": rules_for("2_[1-4] 3_[1-8] 4_[1-4]", "_conv1", "_last_conv _fc"),
    "pv_squeezenet1_0": rules_for("_conv[1-8]", "_conv", "_conv9"),
    "clas_MobileNetV2": rules_for("conv[2-8]", "conv1", "conv9 out"),
    "clas_GhostNet": rules_for("_ghostbottleneck_[0-15]", "conv1", "conv_last fc_0 fc_1"),
    "det_MobileNetV3": rules_for("backbone.conv[2-16]", "backbone.conv1", ""),
    "seg_HRNet": (
        {r"\.conv_layer1": 0, r"\.la1\.": 1, r"\.(tr1|st2)\.": 2, r"\.(tr2|st3)\.": 3, r"\.(tr3|st4)\.": 4},
        [
            (
                "backbone.la1=1 backbone.{tr1,st2}=2 backbone.{tr2,st3}=3 backbone.{tr3,st4}=4",
                "backbone.conv_layer1_[1-2]",
                "head",
            )
        ],
    ),
    "clas_DarkNet53": (
        {r"^_conv[12]\.": "embeddings", r"^_(?:basic_block|downsample)_(\d)": r"\1"},
        [
            (
                "_basic_block_01=1 _downsample_0=1 _basic_block_[11-12]=2 _downsample_1=2 _basic_block_[21-28]=3"
                " _downsample_2=3 _basic_block_[31-38]=4 _downsample_3=4 _basic_block_[41-44]=5",
                "_conv[1-2]",
                "_out",
            )
        ],
    ),
}


def test_every_model_has_a_map_and_every_map_a_model():
    assert not NAMES.keys() & ZOO.keys()
    assert sorted([*NAMES, *ZOO]) == sorted([*MAPS, *WITH_RULES])


@pytest.mark.parametrize("model", MAPS)
def test_a_map(model):
    guess = pytest.warns(UserWarning, match="as one layer|before the blocks|side by side")
    if model in ZOO:
        with paddle.utils.unique_name.guard():
            source = ZOO[model]()
        names, build = [name for name, _ in source.named_parameters()], LayerMap.from_model
    else:
        names = source = spelled(NAMES[model])
        build = LayerMap.from_names
    with guess if model in GUESSES else contextlib.nullcontext():
        layers = build(source)
    check(layers, names, MAPS[model])


@pytest.mark.parametrize("model", WITH_RULES)
def test_models_without_a_list_of_blocks_need_rules(model):
    names, (rules, rows) = spelled(NAMES[model]), WITH_RULES[model]
    with pytest.raises(ValueError, match="give `rules`"):
        LayerMap.from_names(names)
    check(LayerMap.from_names(names, rules), names, rows)


@pytest.mark.parametrize("model", [model for model in WITH_RULES if model != "pv_LeNet"])  # two convolutions are a stem
def test_beside_a_transformer_blocks_without_a_list_are_not_silent(model):
    names = [f"backbone.{name}" for name in spelled(NAMES[model])]
    names += spelled("encoder.layers.[0-2].{q,k,v}.@wb fc.@wb")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            LayerMap.from_names(names)
        except ValueError as error:
            assert "in lists with unknown names" in str(error) and "only 3 in known lists" in str(error)
            return
    assert "items that count as one layer (embeddings)" in str(caught[0].message)
    assert model in ("pv_AlexNet", "pv_VGG11", "pv_VGG16bn"), "only plain convolutions are a guess"


@pytest.mark.parametrize(
    "names, match",
    [
        ("conv1.weight bn1.@wb fc.@wb", "Found no stack .*conv1.weight"),
        (f"embeddings.weight layers.[0-2].{BLOCK} oddities.[0-2].{BLOCK} norm.weight", "oddities"),
        (f"embeddings.weight encoder.layers.[0-3].{BLOCK} quux.gizmos.[0-11].{BLOCK} head.weight", "gizmos"),
        (f"embeddings.weight encoder.layers.[0-5].{BLOCK} encoder.oddities.[6-11].{BLOCK} head.weight", "oddities"),
        ("", "names"),
    ],
)
def test_models_of_which_half_is_in_unknown_lists_are_refused(names, match):
    with pytest.raises(ValueError, match=match):
        LayerMap.from_names(spelled(names))


@pytest.mark.parametrize(
    "rows",
    [
        [("h.{2}", "wte", "")],
        [("h.{2}", "wte ln_f", "ln_f")],
        [("h.{2}", "wte", "ln_f lm_head")],
        [("h.{3}", "wte", "ln_f")],
        [("h.{1}", "wte", "ln_f")],
    ],
)
def test_a_map_by_hand_must_fit(rows):
    names = spelled("wte.weight h.[0-1].{q,k,v}.weight ln_f.weight")
    assert expected(names, [("h.{2}", "wte", "ln_f")])
    with pytest.raises(AssertionError):
        expected(names, rows)
