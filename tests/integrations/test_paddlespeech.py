"""PaddleSpeech: the trainer of its U2 models, from a YAML file."""

import argparse
import importlib
import os
import re
import tempfile

import frameworks
import numpy as np
import paddle
import pytest
import yaml

import paddle_ldopt as ldopt
from paddle_ldopt.integrations import paddlespeech

folder = os.getcwd()
os.chdir(tempfile.mkdtemp())  # PaddleSpeech writes a log into the present folder when it is imported
try:
    missing = {"reason": "PaddleSpeech is not installed", "exc_type": ImportError}
    u2 = pytest.importorskip("paddlespeech.s2t.exps.u2.model", **missing)
    wav2vec2 = pytest.importorskip("paddlespeech.s2t.exps.wav2vec2.model", **missing)
finally:
    os.chdir(folder)
if not paddle.__version__.startswith("3.1"):
    pytest.skip("the models of PaddleSpeech 1.5 fail on Paddle 3.2 and later", allow_module_level=True)
config_node = importlib.import_module("yacs.config").CfgNode
DECAY, ENCODER, DECODER = 0.8, 3, 2
SETTINGS = yaml.safe_load(f"""
encoder: conformer
encoder_conf:
  {{output_size: 16, attention_heads: 2, linear_units: 32, num_blocks: {ENCODER}, input_layer: conv2d,
  normalize_before: true, cnn_module_kernel: 3, use_cnn_module: true, activation_type: swish,
  pos_enc_layer_type: rel_pos, selfattention_layer_type: rel_selfattn, attention_dropout_rate: 0.0,
  dropout_rate: 0.0, positional_dropout_rate: 0.0}}
decoder: transformer
decoder_conf:
  {{attention_heads: 2, linear_units: 32, num_blocks: {DECODER}, self_attention_dropout_rate: 0.0,
  src_attention_dropout_rate: 0.0, dropout_rate: 0.0, positional_dropout_rate: 0.0}}
model_conf: {{ctc_weight: 0.3, lsm_weight: 0.1, length_normalized_loss: false}}
cmvn_file: null
optim: AdamWDL
optim_conf: {{lr: 0.01, weight_decay: 0.05, layerwise_decay: {DECAY}}}
scheduler: warmuplr
scheduler_conf: {{warmup_steps: 4, lr_decay: 1.0}}
checkpoint: {{kbest_n: 1, latest_n: 5}}
""")
SETTINGS.update(use_amp=False, accum_grad=1, global_grad_clip=5.0, batch_size=2, log_interval=100, n_epoch=1)


def ratio(name):
    for tower, depth in (("encoder", ENCODER), ("decoder", DECODER)):
        block = re.match(rf"{tower}\.{tower}s\.(\d+)\.", name)
        if block:
            return DECAY ** (depth - int(block[1]))
        if name.startswith(f"{tower}.embed."):
            return DECAY ** (depth + 1)
    return 1.0


class Loader:
    """Five batches of noise, as U2's loader gives them."""

    feat_dim, vocab_size = 20, 7

    def __init__(self):
        rng = np.random.default_rng(0)
        audio = rng.normal(size=(5, 2, 40, self.feat_dim)).astype("float32")
        text = rng.integers(1, 6, (5, 2, 4))
        lengths = (paddle.to_tensor([40, 40]), paddle.to_tensor([4, 4]))
        self.batches = [
            (["a", "b"], paddle.to_tensor(a), lengths[0], paddle.to_tensor(t), lengths[1]) for a, t in zip(audio, text)
        ]


class Trainer(u2.U2Trainer):
    def setup_dataloader(self):
        self.train_loader = Loader()

    def train_on(self, batches):
        self.model.train()
        for i, batch in enumerate(batches):
            self.train_batch(i, batch, None, {})


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where PaddleSpeech writes its log
    paddlespeech.register()
    paddlespeech.register()

    def build(**changes):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({**SETTINGS, **changes}))
        config = config_node(new_allowed=True)
        config.merge_from_file(str(path))
        arguments = {"ngpu": 0, "nxpu": 0, "seed": 3, "output": str(tmp_path / "run"), "checkpoint_path": None}
        with paddle.utils.unique_name.guard():  # names as in a process of its own, by which states are found
            run = Trainer(config, argparse.Namespace(**arguments, benchmark_batch_size=0, benchmark_max_step=0))
            run.setup()
        return run

    return build


def test_the_trainer_gives_each_layer_its_rate(trainer):
    run = trainer()
    assert isinstance(run.optimizer, ldopt.AdamWDL)
    watched = frameworks.Watched(run.optimizer, run.model)
    run.train_on(run.train_loader.batches)
    assert len(set(watched.rates)) == 5
    watched.assert_follows(ratio, weight_decay=0.05)


def test_a_resumed_trainer_goes_on_exactly(trainer):
    straight, first, resumed = trainer(), trainer(), trainer()
    straight.train_on(straight.train_loader.batches)
    first.train_on(first.train_loader.batches[:3])
    first.save()
    resumed.args.checkpoint_path = f"{first.checkpoint_dir}/3"
    assert not resumed.resume_or_scratch()
    resumed.train_on(resumed.train_loader.batches[3:])
    frameworks.assert_same_weights(straight.model, resumed.model)
    other = trainer(optim_conf={**SETTINGS["optim_conf"], "layerwise_decay": 0.5})
    other.args.checkpoint_path = resumed.args.checkpoint_path
    with pytest.raises(ValueError, match=frameworks.another_decay(DECAY)):
        other.resume_or_scratch()


@pytest.mark.parametrize("name", ["Came", "Lamb", "Adafactor", "AdamWeightDecay"])
def test_every_optimizer_is_a_name_of_the_configuration_file(trainer, name):
    run = trainer(optim=name)
    assert isinstance(run.optimizer, getattr(ldopt, name))
    frameworks.assert_ratios(run.optimizer, run.model, ratio)
    run.train_on(run.train_loader.batches[:2])


WAV2VEC2 = {
    **dict.fromkeys(["hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout"], 0.0),
    **dict.fromkeys(["final_dropout", "layerdrop", "mask_time_prob", "mask_feature_prob"], 0.0),
    **dict.fromkeys(["mask_time_length", "mask_feature_length", "num_codevector_groups", "codevector_dim"], 2),
    **dict.fromkeys(["mask_time_min_masks", "mask_feature_min_masks", "num_adapter_layers", "output_hidden_size"], 0),
    **dict.fromkeys(["num_codevectors_per_group", "num_negatives", "proj_codevector_dim", "adapter_kernel_size"], 2),
    **dict.fromkeys(["adapter_stride", "contrastive_logits_temperature", "diversity_loss_weight"], 1),
    **dict.fromkeys(["conv_bias", "do_stable_layer_norm", "use_weighted_layer_sum", "apply_spec_augment"], False),
    **dict.fromkeys(["add_adapter", "normalize_wav", "output_norm", "freeze_wav2vec2"], False),
    **{"hidden_size": 16, "num_hidden_layers": ENCODER, "num_attention_heads": 2, "intermediate_size": 32},
    **{"conv_dim": [8, 8], "conv_stride": [4, 4], "conv_kernel": [8, 4], "num_conv_pos_embeddings": 4},
    **{"num_conv_pos_embedding_groups": 2, "feat_extract_norm": "group", "feat_extract_activation": "gelu"},
    **{"hidden_act": "gelu", "layer_norm_eps": 1e-5, "initializer_range": 0.02, "feat_quantizer_dropout": 0.0},
    "enc": {"input_shape": 16, "dnn_blocks": 2, "dnn_neurons": 8, "activation": True, "dropout_rate": 0.0},
    "ctc": {"enc_n_units": 8, "blank_id": 0, "dropout_rate": 0.0},
    **dict.fromkeys(["model_optim", "wav2vec2_optim"], "AdamWDL"),
    "model_optim_conf": {"lr": 0.02, "weight_decay": 0.0, "layerwise_decay": DECAY},
    "wav2vec2_optim_conf": {"lr": 0.01, "weight_decay": 0.1, "layerwise_decay": DECAY},
    **dict.fromkeys(["model_scheduler", "wav2vec2_scheduler"], "constantlr"),
    **dict.fromkeys(["model_scheduler_conf", "wav2vec2_scheduler_conf"], {"warmup_steps": 1}),
    **{"global_grad_clip": 0, "batch_size": 2, "accum_grad": 1, "n_epoch": 1},
    "checkpoint": {"kbest_n": 1, "latest_n": 5},
}


class Wav2Vec2Loader:
    feat_dim, vocab_size = 1, 7

    def __init__(self):
        audio = np.random.default_rng(0).normal(size=(5, 2, 800, 1)).astype("float32")
        lengths = (paddle.to_tensor([800.0, 800.0]), paddle.to_tensor([3, 3]))
        text = paddle.to_tensor([[1, 2, 3], [3, 4, 5]])
        self.batches = [(["a", "b"], paddle.to_tensor(a), lengths[0], text, lengths[1]) for a in audio]


class Wav2Vec2Trainer(wav2vec2.Wav2Vec2ASRTrainer):
    def setup_dataloader(self):
        self.train_loader, self.use_sb = Wav2Vec2Loader(), False


@pytest.fixture
def two_optimizers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paddlespeech.register()
    paddle.save({}, str(tmp_path / "none.pdparams"))

    def build(**changes):
        settings = {**WAV2VEC2, "wav2vec2_params_path": str(tmp_path / "none.pdparams"), **changes}
        arguments = {"ngpu": 0, "nxpu": 0, "seed": 3, "output": str(tmp_path / "run"), "checkpoint_path": None}
        arguments = argparse.Namespace(**arguments, benchmark_batch_size=0, benchmark_max_step=0)
        run = Wav2Vec2Trainer(config_node(settings, new_allowed=True), arguments)
        run.setup()
        return run

    return build


def test_a_trainer_with_two_optimizers(two_optimizers):
    """Each has the rates of its part; what is behind the last block trains at the full rate of its own optimizer."""
    run = two_optimizers()
    assert all(isinstance(opt, ldopt.AdamWDL) for opt in (run.model_optimizer, run.wav2vec2_optimizer))
    watched = frameworks.Watched(run.wav2vec2_optimizer, run.model.wav2vec2)
    head = frameworks.Watched(run.model_optimizer, run.model)
    head.parameters = {name: param for name, param in head.parameters.items() if not name.startswith("wav2vec2.")}
    head.start = head.weights()
    run.model.train()
    for i, batch in enumerate(run.train_loader.batches):
        run.train_batch(i, batch, {})

    def wav2vec2_ratio(name):
        block = re.match(r"encoder\.layers\.(\d+)\.", name)
        return DECAY ** (ENCODER - int(block[1]) if block else ENCODER + 1)

    assert watched.rates == [0.01] * 5
    watched.assert_follows(wav2vec2_ratio, weight_decay=0.1)
    assert {run.model_optimizer.layerwise_ratio(param) for param in head.parameters.values()} == {1.0}
    assert all((head.start[name] != value).any() for name, value in head.weights().items())


def test_the_optimizer_of_a_frozen_part_is_not_needed(two_optimizers):
    run = two_optimizers(freeze_wav2vec2=True)
    head = run.model.ctc.parameters()[0]
    start = head.numpy()
    run.model.train()
    run.train_batch(0, run.train_loader.batches[0], {})
    assert (head.numpy() != start).any()
    assert run.wav2vec2_optimizer.state_dict() is not None  # for PaddleSpeech's checkpoints


def test_other_optimizers_stay_and_wrong_settings_are_refused(trainer):
    assert type(trainer(optim="adam", optim_conf={"lr": 0.01, "weight_decay": 1e-6}).optimizer) is paddle.optimizer.Adam
    with pytest.raises(ValueError, match="not a known setting of AdamWDL.*Received: grad_clip=1.0"):
        trainer(optim_conf={"lr": 0.01, "weight_decay": 0.0, "grad_clip": 1.0})
