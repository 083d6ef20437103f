"""PaddleOCR 3.7 (a clone of its repository on PYTHONPATH): `main` of tools/train.py, from a YAML file, for SVTR."""

import functools
import importlib
import logging
import re

import frameworks
import numpy as np
import paddle
import pytest
import yaml

import paddle_ldopt as ldopt
from paddle_ldopt.integrations import paddleocr
from paddle_ldopt.rates import applied_rates

pytest.importorskip("ppocr.modeling", reason="PaddleOCR is not installed", exc_type=ImportError)
DECAY = 0.6
LAYERS = {"blocks1.0": 1, "sub_sample1": 1, "blocks2.0": 2, "blocks2.1": 3, "sub_sample2": 3, "blocks3.0": 4}
RULES = {re.escape(f"backbone.{part}."): layer for part, layer in LAYERS.items()}
YAML = """
Global:
  {{use_gpu: False, epoch_num: {epochs}, log_smooth_window: 20, print_batch_step: 100, save_model_dir: {folder}/run,
  save_epoch_step: 1, eval_batch_step: 2000, cal_metric_during_train: False, pretrained_model: null,
  checkpoints: {checkpoints}, use_visualdl: False, character_dict_path: null, max_text_length: 4, infer_mode: False,
  use_space_char: False, distributed: False}}
profiler_options: null
Optimizer:
  name: AdamWDL
  beta1: 0.9
  beta2: 0.99
  epsilon: 1e-8
  weight_decay: 0.05
  no_weight_decay_name: norm pos_embed
  one_dim_param_no_weight_decay: true
  layerwise_decay: 0.6
  lr: {{name: Cosine, learning_rate: 0.001}}
Architecture:
  model_type: rec
  algorithm: SVTR
  Transform: null
  Backbone:
    {{name: SVTRNet, img_size: [32, 48], out_char_num: 6, out_channels: 16, patch_merging: Conv, embed_dim: [8, 8, 16],
    depth: [1, 2, 1], num_heads: [1, 2, 2], mixer: [Local, Global, Global, Global], drop_path_rate: 0.0,
    local_mixer: [[7, 11], [7, 11], [7, 11]], last_stage: True, prenorm: False, last_drop: 0.0}}
  Neck: {{name: SequenceEncoder, encoder_type: reshape}}
  Head: {{name: CTCHead, fc_decay: 0.0}}
Loss: {{name: CTCLoss}}
PostProcess: {{name: CTCLabelDecode}}
Metric: {{name: RecMetric, main_indicator: acc}}
Train:
  dataset:
    name: SimpleDataSet
    data_dir: {folder}
    label_file_list: ["{folder}/labels.txt"]
    transforms:
      - DecodeImage: {{img_mode: BGR, channel_first: False}}
      - CTCLabelEncode: null
      - SVTRRecResizeImg: {{image_shape: [3, 32, 48], padding: False}}
      - KeepKeys: {{keep_keys: [image, label, length]}}
  loader: {{shuffle: False, batch_size_per_card: 2, drop_last: True, num_workers: 0}}
Eval: null
"""


def ratio(name):
    found = re.match(r"backbone\.(blocks\d\.\d|sub_sample\d|pos_embed|patch_embed)\b", name)
    return DECAY ** (5 - LAYERS.get(found[1], 0)) if found else 1.0


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that trains as tools/train.py does; it returns model, optimizer and what was watched."""
    from PIL import Image

    train = importlib.import_module("tools.train")
    rng = np.random.default_rng(0)
    for i in range(10):
        Image.fromarray(rng.integers(0, 255, (32, 48, 3), dtype="uint8")).save(tmp_path / f"{i}.png")
    (tmp_path / "labels.txt").write_text("".join(f"{i}.png\t{i}{(3 * i + 1) % 10}\n" for i in range(10)))
    monkeypatch.setattr("random.sample", lambda lines, n: list(lines)[:n])  # PaddleOCR draws their order anew
    paddleocr.register()
    built, build, own_loop = [], train.build_optimizer, train.program.train

    def loop(stop, config, *args, **kwargs):
        config["Global"]["epoch_num"] = stop or config["Global"]["epoch_num"]  # the schedule was built for all
        return own_loop(config, *args, **kwargs)

    def watched(config, *args, model, **kwargs):
        opt, *schedules = build(config, *args, model=model, **kwargs)
        built.append((model, opt, frameworks.Watched(opt, model)))
        return opt, *schedules

    monkeypatch.setattr(train, "build_optimizer", watched)

    def main(epochs=1, stop=None, checkpoints="null", more=(), **optimizer):
        config = yaml.safe_load(YAML.format(folder=tmp_path, epochs=epochs, checkpoints=checkpoints))
        config["Global"].update(more)
        optimizer = {**config["Optimizer"], "rules": RULES, **optimizer}
        config["Optimizer"] = {key: value for key, value in optimizer.items() if value is not None}
        paddle.seed(3)
        # names as in a process of its own, by which states are found
        with paddle.utils.unique_name.guard(), monkeypatch.context() as patch:
            patch.setattr(train.program, "train", functools.partial(loop, stop))
            train.main(config, "cpu", logging.getLogger("ppocr"), vdl_writer=None)
        return built[-1]

    return main


def test_the_training_script_gives_each_layer_its_rate(run):
    _, opt, watched = run()
    assert isinstance(opt, ldopt.AdamWDL)
    decayed = {n for n, value in watched.start.items() if value.ndim > 1 and not re.search("norm|pos_embed", n)}
    watched.assert_follows(ratio, weight_decay=0.05, decayed=decayed.__contains__, beta2=0.99)


EMA = {"use_ema": True, "ema_decay": 0.5}
AMP = {"use_amp": True, "amp_level": "O2", "amp_dtype": "bfloat16", "scale_loss": 128.0}


@pytest.mark.parametrize("more", [{}, EMA], ids=str)
def test_a_resumed_script_goes_on_exactly(run, tmp_path, more):
    straight, _, _ = run(epochs=2, more=more)
    run(epochs=2, stop=1, more=more)
    resumed, _, watched = run(epochs=2, more=more, checkpoints=str(tmp_path / "run" / "latest"))
    assert len(watched.rates) == 5
    frameworks.assert_same_weights(straight, resumed)
    with pytest.raises(ValueError, match=frameworks.another_decay(DECAY)):
        run(epochs=2, checkpoints=str(tmp_path / "run" / "latest"), layerwise_decay=0.5)


@pytest.mark.parametrize("more", [EMA, AMP], ids=str)
def test_an_average_of_the_weights_and_amp_change_no_rate(run, more):
    plain, *_ = run()
    model, *_ = run(more=more)
    frameworks.assert_same_weights(plain, model)


def test_a_schedule_of_the_weight_decay_is_refused(run):
    cosine = {"regularizer": {"name": "CosineL2", "factor": 0.1, "end_factor": 0.01}, "weight_decay": None}
    with pytest.raises(ValueError, match="constant here: use .*Received: regularizer='CosineL2'"):
        run(**cosine)
    paddleocr.register()  # a second time
    _, opt, watched = run(name="Adam", layerwise_decay=None, rules=None, epsilon=None, **cosine)
    assert len(watched.rates) == 5 and opt.regularization._coeff == pytest.approx(0.01), "PaddleOCR's own"


@pytest.mark.parametrize("name", ["Came", "Lamb", "Adafactor", "AdamWeightDecay"])
def test_every_optimizer_is_a_name_of_the_configuration_file(run, name):
    model, opt, _ = run(name=name, clip_norm=1.0, beta1=None, beta2=None, epsilon=None)
    assert isinstance(opt, getattr(ldopt, name))
    rates = applied_rates(opt)
    for parameter, param in model.named_parameters():
        if not param.stop_gradient:
            assert rates[param.name] == pytest.approx(opt.get_lr() * ratio(parameter), rel=1e-9)
