"""PaddleSeg: builder and training loop, from a YAML file."""

import re

import frameworks
import numpy as np
import paddle
import pytest
import yaml

import paddle_ldopt as ldopt
from paddle_ldopt.integrations import paddleseg
from paddle_ldopt.rates import applied_rates

pytest.importorskip("paddleseg", reason="PaddleSeg is not installed")
DECAY = 0.5
BEFORE = {1: 0, 2: 1, 3: 3, 4: 4}  # stage -> blocks before it: 1, 2, 1 and 1 blocks
BACKBONE = {
    **{"type": "MixVisionTransformer", "img_size": 32, "patch_size": 4, "embed_dims": [4, 8, 8, 8], "qkv_bias": True},
    **{"num_heads": [1, 2, 2, 2], "depths": [1, 2, 1, 1], "mlp_ratios": [2, 2, 2, 2], "sr_ratios": [2, 2, 1, 1]},
}


def ratio(name):
    """A SegFormer's: a downsampling and a norm between two stages belong to the block before them."""
    block = re.match(r"backbone\.block(\d)\.(\d)\.", name)
    between = re.match(r"backbone\.(patch_embed|norm)(\d)\.", name)
    if block:
        layer = BEFORE[int(block[1])] + int(block[2]) + 1
    elif between:
        layer = BEFORE[int(between[2])] if between[1] == "patch_embed" else {**BEFORE, 5: 5}[int(between[2]) + 1]
    else:
        return 1.0
    return DECAY ** (6 - layer)


@pytest.fixture
def built(tmp_path, monkeypatch):
    from paddleseg.cvlibs import Config, SegBuilder, manager
    from paddleseg.models.backbones.mix_transformer import MixVisionTransformer
    from PIL import Image

    monkeypatch.setitem(manager.BACKBONES.components_dict, "MixVisionTransformer", MixVisionTransformer)
    rng = np.random.default_rng(0)
    for i in range(10):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype="uint8")).save(tmp_path / f"{i}.jpg")
        Image.fromarray(rng.integers(0, 2, (32, 32), dtype="uint8")).save(tmp_path / f"{i}.png")
    (tmp_path / "list.txt").write_text("".join(f"{i}.jpg {i}.png\n" for i in range(10)))
    paddleseg.register()

    def build(**optimizer):
        data = {"type": "Dataset", "dataset_root": str(tmp_path), "train_path": str(tmp_path / "list.txt")}
        settings = {
            "batch_size": 2,
            "iters": 5,
            "train_dataset": {**data, "num_classes": 2, "mode": "train", "transforms": [{"type": "Normalize"}]},
            "optimizer": {"type": "AdamWDL", "layerwise_decay": DECAY, "example": [1, 3, 32, 32], **optimizer},
            "lr_scheduler": {"type": "PolynomialDecay", "learning_rate": 0.01, "end_lr": 0, "power": 0.9},
            "loss": {"types": [{"type": "DiceLoss"}], "coef": [1]},  # its CrossEntropyLoss fails on Paddle 3
            "model": {"type": "SegFormer", "backbone": BACKBONE, "embedding_dim": 8, "num_classes": 2},
        }
        path = tmp_path / "config.yml"
        path.write_text(yaml.safe_dump(settings))
        paddle.seed(3)
        with paddle.utils.unique_name.guard():  # names as in a process of its own, by which states are found
            builder = SegBuilder(Config(str(path)))
            builder.model  # noqa: B018  (a cached property)
        return builder

    return build


def train(builder, folder, iters=5, resume=None, **more):
    from paddleseg.core import train

    for sampler in (np.random, paddle):
        sampler.seed(7)
    losses = {"types": builder.loss["types"], "coef": builder.loss["coef"]}
    settings = {"iters": iters, "batch_size": 2, "save_interval": 100, "resume_model": resume, **more}
    settings["log_iters"] = 100  # its log reads losses as vectors, which Paddle 3 no longer has
    given = builder.model, builder.train_dataset
    train(*given, optimizer=builder.optimizer, losses=losses, save_dir=str(folder), **settings)


def test_the_training_loop_gives_each_layer_its_rate(built, tmp_path):
    builder = built(weight_decay=0.1)
    assert isinstance(builder.optimizer, ldopt.AdamWDL)
    watched = frameworks.Watched(builder.optimizer, builder.model)
    train(builder, tmp_path / "run")
    watched.assert_follows(ratio, weight_decay=0.1)


@pytest.mark.parametrize("more", [{"use_ema": True}, {"precision": "fp16", "amp_level": "O2"}], ids=str)
def test_an_average_of_the_weights_and_amp_change_no_rate(built, tmp_path, more):
    plain, other = built(), built()
    train(plain, tmp_path / "plain")
    train(other, tmp_path / "other", **more)
    frameworks.assert_same_weights(plain.model, other.model)
    frameworks.assert_ratios(other.optimizer, other.model, ratio)


def test_stages_are_layers(built):
    builder = built(rules={r"backbone\.(?:block|patch_embed|norm)(\d)\.": r"\1"})
    for name, param in builder.model.named_parameters():
        if found := re.match(r"backbone\.block(\d)", name):
            assert builder.optimizer.layerwise_ratio(param) == pytest.approx(DECAY ** (5 - int(found[1]))), name


def test_custom_cfg_multiplies_the_rates_of_the_layers(built):
    custom = [{"name": "linear_pred", "lr_mult": 10.0}, {"name": "norm", "weight_decay_mult": 0.0}]
    builder = built(weight_decay=0.1, custom_cfg=custom, grad_clip_cfg={"name": "ClipGradByNorm", "clip_norm": 1.0})
    rates, parameters = applied_rates(builder.optimizer), dict(builder.model.named_parameters())
    assert rates[parameters["linear_pred.weight"].name] == pytest.approx(0.1)
    assert rates[parameters["backbone.block1.0.mlp.fc1.weight"].name] == pytest.approx(0.01 * DECAY**5)
    with pytest.warns(UserWarning, match="A group matches no parameter.*Received: parts=.'decoder'"):
        built(custom_cfg=[{"name": "decoder", "lr_mult": 10.0}]).optimizer  # noqa: B018
    for wrong, message in [
        ({"name": "norm", "lr_mul": 10.0}, "'lr_mul' is not a known setting of `custom_cfg`; the nearest is 'lr_mult'"),
        ({"lr_mult": 10.0}, "`name` must be a list of parts of names. Received: name=.None"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            built(custom_cfg=[wrong]).optimizer  # noqa: B018


@pytest.mark.parametrize("name", ["Came", "Lamb", "Adafactor", "AdamWeightDecay"])
def test_every_optimizer_is_a_name_of_the_configuration_file(built, name, tmp_path):
    builder = built(type=name, weight_decay=0.01)
    assert isinstance(builder.optimizer, getattr(ldopt, name))
    frameworks.assert_ratios(builder.optimizer, builder.model, ratio)
    train(builder, tmp_path / "run", iters=2)


def test_a_resumed_training_goes_on_exactly(built, tmp_path):
    straight, first, resumed, other = built(), built(), built(), built(layerwise_decay=0.25)
    train(straight, tmp_path / "straight", iters=3)
    train(first, tmp_path / "first", iters=3)
    (tmp_path / "iter_3").mkdir()
    paddle.save(first.model.state_dict(), str(tmp_path / "iter_3" / "model.pdparams"))
    paddle.save(first.optimizer.state_dict(), str(tmp_path / "iter_3" / "model.pdopt"))
    train(straight, tmp_path / "straight", iters=2)
    train(resumed, tmp_path / "resumed", iters=5, resume=str(tmp_path / "iter_3"))
    frameworks.assert_same_weights(straight.model, resumed.model)
    with pytest.raises(ValueError, match="decay was {'layerwise_decay': 0.5} and is {'layerwise_decay': 0.25} now"):
        train(other, tmp_path / "other", resume=str(tmp_path / "iter_3"))
