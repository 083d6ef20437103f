"""The measured layers of `paddle.vision`'s models: towers, embeddings and head."""

import paddle
import pytest
from paddle.vision import models

from paddle_ldopt import LayerMap

MOBILE_HEAD = {"features.18", "classifier.1"}
# model -> (towers, first parts of the embeddings, of the first block, of the last block, of the head)
MODELS = {
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
SHAPES = {"LeNet": [1, 1, 28, 28], "AlexNet": [1, 3, 224, 224], "googlenet": [1, 3, 224, 224]}


@pytest.mark.representatives(count=3)
@pytest.mark.parametrize("name", MODELS)
def test_layers_of_paddle_vision(name):
    model = getattr(models, name)()
    layers = LayerMap.from_model(model, paddle.randn(SHAPES.get(name, [1, 3, 64, 64])))
    towers, embeddings, first, last, head = MODELS[name]
    assert layers.towers == towers
    depth = next(iter(towers.values()))
    for index, parts in ((0, embeddings), (1, first), (depth, last), (depth + 1, head)):
        found = {n for n in layers.names if layers.layer_of(n).index == index}
        if parts is not None:
            starts = tuple(f"{part}." for part in parts)
            assert 0 < index <= depth or all(n.startswith(starts) for n in found)
            assert all(any(n.startswith(start) for n in found) for start in starts)


SWIN = "SwinTransformer_tiny_patch4_window7_224"


@pytest.mark.parametrize(
    "module, name, towers, embeddings",
    [
        ("legendary_models.swin_transformer", SWIN, {"layers": 12}, {"patch_embed"}),
        ("model_zoo.convnext", "ConvNeXt_tiny", {"stages": 18}, {"downsample_layers"}),
    ],
)
def test_layers_of_paddleclas(module, name, towers, embeddings):
    module = pytest.importorskip(f"ppcls.arch.backbone.{module}", reason="PaddleClas is not on the path")
    layers = LayerMap.from_model(getattr(module, name)(), paddle.randn([1, 3, 224, 224]))
    first = {name.split(".")[0] for name in layers.names if layers.layer_of(name).index == 0}
    last = {name.split(".")[0] for name in layers.names if layers.layer_of(name).is_head}
    assert (layers.towers, first, last) == (towers, embeddings, {"norm", "head"})
