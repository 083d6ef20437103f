"""PaddleClas (a clone of its repository on PYTHONPATH): builder and engine, from a YAML file."""

import functools
import importlib
import re

import frameworks
import numpy as np
import paddle
import pytest
import yaml
from layer_models import vit_ratio

import paddle_ldopt as ldopt
from paddle_ldopt.integrations import paddleclas

pytest.importorskip("ppcls.engine.engine", reason="PaddleClas is not installed")
DECAY, DEPTH = 0.65, 3
LR = {"name": "Cosine", "learning_rate": 1e-3, "warmup_epoch": 0}
YAML = """
Global:
  checkpoints: null
  pretrained_model: null
  output_dir: {folder}
  device: cpu
  save_interval: 1
  eval_during_train: False
  epochs: {epochs}
  print_batch_step: 100
  use_visualdl: False
  seed: 3
profiler_options: null
Arch:
  name: SmallViT
  class_num: 4
Loss:
  Train:
    - CELoss: {{weight: 1.0}}
Optimizer:
  name: AdamWDL
  layerwise_decay: {decay}
  no_weight_decay_name: pos_embed cls_token .bias norm
  lr: {{name: Cosine, learning_rate: 0.001, warmup_epoch: 0}}
  regularizer: {{name: L2, coeff: 0.1}}
DataLoader:
  Train:
    dataset:
      name: ImageNetDataset
      image_root: {folder}
      cls_label_path: {folder}/labels.txt
      transform_ops:
        - DecodeImage: {{to_rgb: True, channel_first: False}}
        - ResizeImage: {{size: 32}}
        - NormalizeImage: {{scale: 1.0/255.0, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5], order: ""}}
    sampler: {{name: DistributedBatchSampler, batch_size: 2, drop_last: False, shuffle: False}}
    loader: {{num_workers: 0, use_shared_memory: False}}
"""
ratio = functools.partial(vit_ratio, decay=DECAY, depth=DEPTH)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    from PIL import Image
    from ppcls import arch
    from ppcls.arch.backbone.model_zoo.vision_transformer import VisionTransformer
    from ppcls.engine.engine import Engine
    from ppcls.utils import config

    rng = np.random.default_rng(0)
    for i in range(10):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype="uint8")).save(tmp_path / f"{i}.png")
    (tmp_path / "labels.txt").write_text("".join(f"{i}.png {i % 4}\n" for i in range(10)))
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": DEPTH, "num_heads": 2, "mlp_ratio": 2}
    monkeypatch.setattr(arch, "SmallViT", functools.partial(VisionTransformer, **small), raising=False)
    paddleclas.register()

    def build(epochs=1, checkpoints=None, optimizer=None, **more):
        settings = {**yaml.safe_load(YAML.format(folder=tmp_path, decay=DECAY, epochs=epochs)), **more}
        settings["Global"]["checkpoints"] = checkpoints
        settings["Optimizer"] = optimizer or settings["Optimizer"]
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(settings))
        with paddle.utils.unique_name.guard():  # names as in a process of its own, by which states are found
            return Engine(config.get_config(str(path), show=False), mode="train")

    return build


def test_the_engine_trains_each_layer_at_its_rate(engine):
    run = engine()
    [opt] = run.optimizer
    assert isinstance(opt, ldopt.AdamWDL)
    watched = frameworks.Watched(opt, run.model)
    run.train()
    undecayed = re.compile("norm|pos_embed|cls_token|bias")
    watched.assert_follows(ratio, weight_decay=0.1, decayed=lambda name: not undecayed.search(name))


def test_a_resumed_engine_goes_on_exactly(engine, tmp_path):
    straight = engine(epochs=2)
    straight.train()
    first = engine(epochs=2)
    first.config["Global"]["epochs"] = 1  # after its schedule was built for two
    first.train()
    resumed = engine(epochs=2, checkpoints=str(tmp_path / "latest"))
    resumed.train()
    frameworks.assert_same_weights(straight.model, resumed.model)
    with pytest.raises(ValueError, match=frameworks.another_decay(DECAY)):
        other = {"name": "AdamWDL", "lr": LR, "layerwise_decay": 0.5}
        engine(checkpoints=str(tmp_path / "latest"), optimizer=other).train()


@pytest.mark.parametrize("name", ["Came", "Lamb", "Adafactor", "AdamWeightDecay"])
def test_every_optimizer_is_a_name_of_the_configuration_file(engine, name):
    run = engine(optimizer={"name": name, "lr": LR, "layerwise_decay": DECAY, "clip_norm": 1.0})
    [opt] = run.optimizer
    assert isinstance(opt, getattr(ldopt, name))
    frameworks.assert_ratios(opt, run.model, ratio)
    run.train()


AMP = {"use_amp": True, "level": "O2", "scale_loss": 128.0, "use_dynamic_loss_scaling": True}


@pytest.mark.parametrize("more", [{"EMA": {"decay": 0.5}}, {"AMP": AMP}], ids=str)
def test_an_average_of_the_weights_and_amp_change_no_rate(engine, more):
    plain, run = engine(), engine(**more)
    plain.train()
    run.train()
    frameworks.assert_same_weights(plain.model, run.model)
    frameworks.assert_ratios(run.optimizer[0], run.model, ratio)


def test_a_loss_with_parameters_keeps_the_names_of_the_model_undecayed(engine, monkeypatch):
    model_zoo = importlib.import_module("ppcls.arch.backbone.model_zoo.vision_transformer")
    names = {"pos_embed", "cls_token"}
    monkeypatch.setattr(model_zoo.VisionTransformer, "no_weight_decay", lambda self: names, raising=False)  # as CAE's
    loss = {"Train": [{"CELoss": {"weight": 1.0}}, {"CenterLoss": {"weight": 1e-3, "num_classes": 4, "feat_dim": 4}}]}
    run = engine(Loss=loss, optimizer={"name": "AdamWDL", "lr": LR, "layerwise_decay": DECAY, "weight_decay": 0.1})
    [opt] = run.optimizer
    assert len(opt._parameter_list) == len(run.model.parameters()) + 1
    for name, param in run.model.named_parameters():
        assert opt.has_nonzero_weight_decay(param) == (param.ndim > 1 and name not in names), name
    frameworks.assert_ratios(opt, run.model, ratio)


def test_scopes_and_wrong_settings(engine):
    run = engine(optimizer=[{"AdamWDL": {"scope": "VisionTransformer", "lr": LR, "layerwise_decay": 0.5}}])
    assert len(run.optimizer) == 1
    with pytest.raises(ValueError, match="no L1 decay"):
        engine(optimizer={"name": "Came", "lr": LR, "regularizer": {"name": "L1", "coeff": 0.1}})
    with pytest.raises(ValueError, match="`scope` must match a part"):
        engine(optimizer=[{"Came": {"scope": "backbone", "lr": LR}}])
    with pytest.raises(TypeError, match="Received: filter_bias_and_bn='false'"):
        engine(optimizer={"name": "AdamWDL", "lr": LR, "filter_bias_and_bn": "false"})
