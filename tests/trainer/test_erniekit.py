"""ERNIEKit's own arguments for layer-wise rates, in a Trainer that builds its optimizer as ERNIEKit's does."""

import json
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
import paddle
import pytest
import trainer_common as common
from layer_models import Parts
from paddle import nn

from paddle_ldopt import LdoptConfig
from paddle_ldopt.trainer import LdoptArgumentsMixin, LdoptTrainerMixin

GATE = "ernie.layers.0.mlp.gate.weight"


@dataclass
class ErnieArguments(common.TrainingArguments):
    """The three arguments, with the alias that `visual_ld` is."""

    layerwise_lr_decay_bound: Optional[float] = field(default=1.0)
    vit_lr_ratio: Optional[float] = field(default=None)
    visual_ld: Optional[float] = field(default=None)
    moe_gate_lr_ratio: Optional[float] = field(default=None)


@dataclass
class Arguments(LdoptArgumentsMixin, ErnieArguments):
    """The same with ours."""


class ErnieTrainer(common.Trainer):
    """Gives the optimizer an `lr_ratio` if the arguments ask for one, which Paddle's AdamW refuses on a CPU."""

    def create_optimizer(self, lr_scheduler=None):
        if self.optimizer is None:
            args = self.args
            asked = args.layerwise_lr_decay_bound < 1 or args.vit_lr_ratio or args.moe_gate_lr_ratio
            optimizer_cls, kwargs = common.Trainer.get_optimizer_cls_and_kwargs(args)
            self.optimizer = optimizer_cls(
                learning_rate=self.lr_scheduler if lr_scheduler is None else lr_scheduler,
                apply_decay_param_fun=lambda name: True,
                parameters=[param for param in self.model.parameters() if not param.stop_gradient],
                weight_decay=args.weight_decay,
                grad_clip=None,
                lr_ratio=(lambda param: 0.5) if asked else None,
                **kwargs,
            )
        return self.optimizer


class Trainer(LdoptTrainerMixin, ErnieTrainer):
    """The same with our rates."""


class Block(Parts):
    def __init__(self):
        super().__init__(mlp__gate=nn.Linear(8, 8, bias_attr=False), mlp__up_proj=nn.Linear(8, 8))

    def forward(self, x):
        return x + self.mlp.up_proj(x) * nn.functional.sigmoid(self.mlp.gate(x))


class VisionBlock(Block):
    """A block of the vision model, a class of its own as in ERNIE."""


class Ernie(Parts):
    """Names as in ERNIE 4.5: `ernie.layers`, with `vision` also `vision_model.blocks`."""

    def __init__(self, vision=False):
        ernie = Parts(embed_tokens=nn.Embedding(64, 8), layers=nn.LayerList([Block(), Block()]), norm=nn.LayerNorm(8))
        blocks = nn.LayerList([VisionBlock() for _ in range(3)])
        images = Parts(cls_token=[8], patch_embed=nn.Linear(8, 8), blocks=blocks, ln=nn.LayerNorm(8))
        more = {"vision_model": images} if vision else {}
        super().__init__(ernie=ernie, lm_head=nn.Linear(8, 2, bias_attr=False), **more)

    def forward(self, input_ids, labels=None):
        x = self.ernie.embed_tokens(input_ids)
        if hasattr(self, "vision_model"):
            seen = self.vision_model.patch_embed(x) + self.vision_model.cls_token
            for block in self.vision_model.blocks:
                seen = block(seen)
            x = x + self.vision_model.ln(seen)
        for block in self.ernie.layers:
            x = block(x)
        logits = self.lm_head(self.ernie.norm(x)).mean(axis=1)
        return (nn.functional.cross_entropy(logits, labels.reshape([-1])), logits) if labels is not None else logits


def model_of(vision):
    paddle.seed(3)
    with paddle.utils.unique_name.guard():
        return Ernie(vision)


def moved(folder, vision=False, arguments=Arguments, cls=Trainer, **kwargs):
    """Return name -> the largest move of a parameter's elements in one step, and the Trainer."""
    args = common.arguments(folder, arguments, max_steps=1, adam_epsilon=1e-12, weight_decay=0.0, **kwargs)
    trainer = common.trainer(folder, model_of(vision), cls=cls, args=args)
    before = common.weights(trainer.model)
    trainer.train()
    after = common.weights(trainer.model)
    return {name: np.abs(after[name] - before[name]).max() for name in before}, trainer


# name in the model -> ratio, by hand: n = 2 blocks of text, 3 of images
BOUND = {"ernie.embed_tokens": 0.2, "ernie.layers.0": 0.2, "ernie.layers.1": 0.2 + 0.8 / 4, "ernie.norm": 1.0}
VISION = {"vision_model.cls_token": 0.25, "vision_model.patch_embed": 0.25, "vision_model.blocks.0": 0.25}
VISION.update({"vision_model.blocks.1": 0.5, "vision_model.blocks.2": 1.0, "vision_model.ln": 1.0})
ALL = {"layerwise_lr_decay_bound": 0.2, "vit_lr_ratio": 0.5, "moe_gate_lr_ratio": 0.01}
CASES = {
    "bound": (False, {"layerwise_lr_decay_bound": 0.2}, BOUND),
    "vision": (True, {"vit_lr_ratio": 0.5}, VISION),
    "its other name": (True, {"visual_ld": 0.5}, VISION),
    "both names": (True, {"vit_lr_ratio": 0.5, "visual_ld": 0.9}, VISION),
    "router": (False, {"moe_gate_lr_ratio": 0.01}, {GATE: 0.01}),
    "all": (True, ALL, {GATE: 0.002, **BOUND, **VISION}),
}


@pytest.mark.filterwarnings("ignore:Some layers.*'ernie.layers' is computed from 'vision_model.blocks'")
@pytest.mark.parametrize("arguments", [Arguments, ErnieArguments])
@pytest.mark.parametrize("case", CASES)
def test_parameters_move_as_far_as_erniekit_moves_them(tmp_path, case, arguments):
    """Adam's first step is the rate in each element, whatever the gradient is."""
    vision, asked, ratios = CASES[case]
    found, trainer = moved(tmp_path, vision, arguments, **asked)
    assert type(trainer.optimizer).__name__ == "AdamW"
    for name, move in found.items():
        ratio = next((ratio for part, ratio in ratios.items() if name.startswith(part)), 1.0)
        assert move == pytest.approx(1e-2 * ratio, rel=1e-4, abs=1e-7), name  # the weights are float32
    assert all(getattr(trainer.args, name) == value for name, value in asked.items()), "as the user gave them"


def test_an_optimizer_of_ours_has_the_same_ratios_and_its_settings_are_saved(tmp_path):
    asked = {"layerwise_lr_decay_bound": 0.2, "moe_gate_lr_ratio": 0.01}
    found, trainer = moved(tmp_path, optim="adamwdl", save_steps=1, **asked)
    assert found[GATE] == pytest.approx(2e-5, abs=1e-7) and found["lm_head.weight"] == pytest.approx(1e-2, rel=1e-3)
    assert found["ernie.layers.1.mlp.gate.weight"] == pytest.approx(4e-3, rel=1e-3)
    checkpoint = tmp_path / "checkpoint-1"
    config = LdoptConfig.from_json(checkpoint / "ldopt_config.json")
    assert config.layerwise_decay == trainer.args.layerwise_decay and config.layerwise_bound == 0.2
    other = common.arguments(tmp_path, Arguments, optim="adamwdl", **{**asked, "layerwise_lr_decay_bound": 0.5})
    with pytest.raises(ValueError, match="decay was {'layerwise_bound': 0.2} and is {'layerwise_bound': 0.5} now"):
        common.trainer(tmp_path, model_of(False), cls=Trainer, args=other).train(resume_from_checkpoint=str(checkpoint))
    assert json.loads((checkpoint / "ldopt_layerwise.json").read_text())["decay"]["convention"] == "linear"


def test_without_them_nothing_changes(tmp_path):
    plain, _ = moved(tmp_path, arguments=ErnieArguments, cls=ErnieTrainer)
    off = {"layerwise_lr_decay_bound": 1.0, "vit_lr_ratio": 1.0}
    assert moved(tmp_path)[0] == moved(tmp_path, **off)[0] == plain


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"layerwise_lr_decay_bound": 0.0}, r"`layerwise_lr_decay_bound` must be in \(0, 1\].*bound=0.0"),
        ({"vit_lr_ratio": 1.5}, r"`vit_lr_ratio` must be in \(0, 1\]. Received: vit_lr_ratio=1.5"),
        ({"moe_gate_lr_ratio": -1.0}, r"`moe_gate_lr_ratio` must be in \(0, inf\)"),
        ({"layerwise_lr_decay_bound": 0.5, "layerwise_lr_decay": 0.8}, "exclude each other.*layerwise_lr_decay=0.8"),
        ({"vit_lr_ratio": 0.5, "layerwise_towers": '{"vision_model": 0.9}'}, "`vit_lr_ratio` and `layerwise_towers`"),
        ({"moe_gate_lr_ratio": 0.1, "layerwise_multipliers": '{"gate": 2.0}'}, "and `layerwise_multipliers` exclude"),
    ],
)
def test_values_that_do_not_fit(tmp_path, asked, message):
    with pytest.raises(ValueError, match=message):
        common.arguments(tmp_path, Arguments, **asked)
