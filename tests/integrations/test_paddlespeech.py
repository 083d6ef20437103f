"""PaddleSpeech: the trainer of its U2 models, from a YAML file."""

import argparse
import importlib
import re

import frameworks
import numpy as np
import paddle
import pytest
import yaml

import paddle_ldopt as ldopt
from paddle_ldopt.integrations import paddlespeech

u2 = pytest.importorskip("paddlespeech.s2t.exps.u2.model", reason="PaddleSpeech is not installed", exc_type=ImportError)
if not paddle.__version__.startswith("3.1"):
    pytest.skip("the models of PaddleSpeech 1.5 fail on Paddle 3.2 and later", allow_module_level=True)
config_node = importlib.import_module("yacs.config").CfgNode
DECAY, ENCODER, DECODER = 0.8, 3, 2
NO_DROPOUT = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
SETTINGS = {
    "encoder": "conformer",
    "encoder_conf": {
        "output_size": 16,
        "attention_heads": 2,
        "linear_units": 32,
        "num_blocks": ENCODER,
        "input_layer": "conv2d",
        "normalize_before": True,
        "cnn_module_kernel": 3,
        "use_cnn_module": True,
        "activation_type": "swish",
        "pos_enc_layer_type": "rel_pos",
        "selfattention_layer_type": "rel_selfattn",
        "attention_dropout_rate": 0.0,
        **NO_DROPOUT,
    },
    "decoder": "transformer",
    "decoder_conf": {
        "attention_heads": 2,
        "linear_units": 32,
        "num_blocks": DECODER,
        "self_attention_dropout_rate": 0.0,
        "src_attention_dropout_rate": 0.0,
        **NO_DROPOUT,
    },
    "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1, "length_normalized_loss": False},
    "cmvn_file": None,
    "optim": "AdamWDL",
    "optim_conf": {"lr": 0.01, "weight_decay": 0.05, "layerwise_decay": DECAY},
    "scheduler": "warmuplr",
    "scheduler_conf": {"warmup_steps": 4, "lr_decay": 1.0},
    "use_amp": False,
    "accum_grad": 1,
    "global_grad_clip": 5.0,
    "log_interval": 100,
    "n_epoch": 1,
    "checkpoint": {"kbest_n": 1, "latest_n": 5},
}


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
    assert type(run.optimizer) is ldopt.AdamWDL
    watched = frameworks.Watched(run.optimizer, run.model)
    run.train_on(run.train_loader.batches)
    assert len(watched.rates) == 5
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
    for (name, want), got in zip(straight.model.named_parameters(), resumed.model.parameters()):
        np.testing.assert_array_equal(got.numpy(), want.numpy(), err_msg=name)


@pytest.mark.parametrize("name", ["Came", "Lamb", "Adafactor", "AdamWeightDecay"])
def test_every_optimizer_is_a_name_of_the_configuration_file(trainer, name):
    run = trainer(optim=name)
    assert type(run.optimizer) is getattr(ldopt, name)
    for parameter, param in run.model.named_parameters():
        assert run.optimizer.layerwise_ratio(param) == pytest.approx(ratio(parameter), rel=1e-12)
    run.train_on(run.train_loader.batches[:2])


def test_other_optimizers_stay_and_wrong_settings_are_refused(trainer):
    assert type(trainer(optim="adam", optim_conf={"lr": 0.01, "weight_decay": 1e-6}).optimizer) is paddle.optimizer.Adam
    with pytest.raises(ValueError, match="Received: layerwise_decai=0.5"):
        trainer(optim_conf={"lr": 0.01, "weight_decay": 0.0, "layerwise_decai": 0.5})
