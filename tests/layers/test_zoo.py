"""Layer maps of real models against maps written by hand from their modeling code: measured, and by their names.

PaddleNLP's models and those of `zoo_kinds.py` are built and run with the batches of `zoo_inputs.py`. The names of
others in `tests/support/zoo_names.txt` were taken from models that their packages built, in the versions that the file
says, with few and narrow blocks where a constructor allows it. `zoo_maps.py` says how a map is written.
"""

import re
import warnings

import paddle
import pytest
from paddle.vision import models
from zoo import ZOO
from zoo_inputs import NOT_RUN, example_for
from zoo_maps import check, expected, read_maps, read_names, spelled

from paddle_ldopt import LayerMap

MAPS, NAMES = read_maps(), read_names()
# Nothing in the names says that this norm comes before the blocks.
WRONG_BY_NAMES = {"BigBirdForSequenceClassification", "BigBirdForPretraining"}
UNUSED = "did not use 'transformer.denoising_class_embed', 'transformer.dec_score_head.0', 'transformer.dec_score"
SAID = {"kinds.RTDETR": UNUSED}


def build(model):
    with paddle.utils.unique_name.guard():
        paddle.seed(0)
        return ZOO[model]()


def guesses_of(make):
    """Return the LayerMap that `make` returns, and what its warning says."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = make()
    return layers, "".join(str(one.message) for one in caught if "are guesses" in str(one.message))


def test_every_model_has_a_map_and_every_map_a_model():
    assert not NAMES.keys() & ZOO.keys()
    assert sorted([*NAMES, *ZOO]) == sorted(MAPS)
    assert NOT_RUN.keys() <= ZOO.keys()


@pytest.mark.representatives(count=32)
@pytest.mark.parametrize("model", [model for model in ZOO if model not in NOT_RUN])
def test_a_measured_map(model):
    network = build(model)
    layers, said = guesses_of(lambda: LayerMap.from_model(network, example_for(model)))
    assert layers.source == "measured"
    if type(network).__module__ == "zoo_kinds":
        assert SAID[model] in said if model in SAID else not said, said
    check(layers, [name for name, _ in network.named_parameters()], MAPS[model])


@pytest.mark.representatives(count=40)
@pytest.mark.parametrize("model", MAPS)
def test_a_map_by_names_is_right_or_says_what_it_guesses(model):
    source = build(model) if model in ZOO else spelled(NAMES[model])
    names = [name for name, _ in source.named_parameters()] if model in ZOO else source
    try:
        layers, said = guesses_of(lambda: (LayerMap.from_model if model in ZOO else LayerMap.from_names)(source))
    except ValueError as error:
        assert "`example=`" in str(error)
        return
    want = expected(names, MAPS[model]).items()
    got = {name: layers.layer_of(name) for name in names}
    wrong = [name for name, (_, index, depth) in want if got[name].index - got[name].depth != index - depth]
    towers = {got[name].tower for name in wrong}
    quoted = re.findall("'([^']+)'", said)
    about_towers = any(tower and f"'{tower}" in said for tower in layers.towers) or "unlike the others" in said
    if model not in WRONG_BY_NAMES and not about_towers:
        assert not [name for name in wrong if not any(name.startswith(part) for part in quoted)], (towers, said)


# `paddle.vision`'s models: towers, embeddings and head, measured

MOBILE_HEAD = {"features.18", "classifier.1"}
# model -> (towers, first parts of the embeddings, of the first block, of the last block, of the head)
VISION = {
    "LeNet": ({"features": 2}, set(), {"features.0"}, {"features.3"}, {"fc.0", "fc.1", "fc.2"}),
    "AlexNet": ({"conv": 5}, set(), {"_conv1"}, {"_conv5"}, {"_fc6", "_fc7", "_fc8"}),
    "vgg11": ({"features": 8}, set(), {"features.0"}, {"features.18"}, {f"classifier.{i}" for i in (0, 3, 6)}),
    "shufflenet_v2_x0_25": ({"model": 16}, {"_conv1"}, {"2_1"}, {"4_4"}, {"_last_conv", "_fc"}),
    "googlenet": ({"ince": 9}, {"_conv", "_conv_1", "_conv_2"}, {"_ince3a"}, {"_ince5b"}, None),
    "resnet18": ({"layer": 8}, {"conv1", "bn1"}, {"layer1.0"}, {"layer4.1"}, {"fc"}),
    "mobilenet_v2": ({"features": 17}, {"features.0"}, {"features.1"}, {"features.17"}, MOBILE_HEAD),
    "densenet121": ({"db_conv": 4}, {"conv1_func"}, {"db_conv_2"}, {"db_conv_5"}, {"batch_norm", "out"}),
    "squeezenet1_0": ({"conv": 8}, {"_conv"}, {"_conv1"}, {"_conv8"}, {"_conv9"}),
}
SIZES = {"LeNet": [1, 1, 28, 28], "AlexNet": [1, 3, 224, 224], "googlenet": [1, 3, 224, 224]}


@pytest.mark.representatives(count=3)
@pytest.mark.parametrize("name", VISION)
def test_layers_of_paddle_vision(name):
    model = getattr(models, name)()
    layers = LayerMap.from_model(model, paddle.randn(SIZES.get(name, [1, 3, 64, 64])))
    towers, embeddings, first, last, head = VISION[name]
    assert layers.towers == towers
    depth = next(iter(towers.values()))
    for index, parts in ((0, embeddings), (1, first), (depth, last), (depth + 1, head)):
        found = {n for n in layers.names if layers.layer_of(n).index == index}
        if parts is not None:
            starts = tuple(f"{part}." for part in parts)
            assert 0 < index <= depth or all(n.startswith(starts) for n in found)
            assert all(any(n.startswith(start) for n in found) for start in starts)
