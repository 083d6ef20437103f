"""docs/migrating.md: every "after" block runs as it is written, and its first step is what arithmetic says."""

import math
import pathlib
import re

import numpy as np
import paddle
import pytest
from layer_models import Parts, vit_ratio
from paddle import nn
from paddlenlp.transformers import BertConfig, BertForSequenceClassification

import paddle_ldopt as ldopt

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "migrating.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = 3


def sections():
    """Return heading -> its Python blocks."""
    parts = re.split(r"^## (.*)$", TEXT, flags=re.M)[1:]
    return {head: re.findall(r"```python\n(.*?)```", body, re.S) for head, body in zip(parts[::2], parts[1::2])}


def to_run():
    """Return name -> block, of those that are new calls."""
    named = {head: [b for b in blocks if re.match("# (before and )?after", b)] for head, blocks in sections().items()}
    return {f"{head} {i + 1}": block for head, blocks in named.items() for i, block in enumerate(blocks)}


def vit():
    """Return a vision transformer's names and shapes; nothing is computed with it."""
    stem = {"cls_token": [1, 1, 8], "pos_embed": [1, 5, 8], "patch_embed": nn.Conv2D(3, 8, 4, 4)}
    blocks = nn.LayerList([nn.TransformerEncoderLayer(8, 2, 16) for _ in range(BLOCKS)])
    return Parts(**stem, blocks=blocks, norm=nn.LayerNorm(8), head=nn.Linear(8, 2))


class World:
    """What the blocks find: two models, and a loss whose gradient is known."""

    def __init__(self):
        size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16}
        self.model = BertForSequenceClassification(BertConfig(vocab_size=20, num_hidden_layers=BLOCKS, **size))
        self.vit = vit()
        draw, self.grads = np.random.RandomState(0), {}
        for param in (*self.model.parameters(), *self.vit.parameters()):
            sign = draw.choice([-1.0, 1.0], size=param.shape)
            self.grads[param.name] = (sign * draw.uniform(0.5, 2.0, size=param.shape)).astype("float32")
        self.start = self.values()
        self.names = {
            "model": self.model,
            "vit": self.vit,
            "loss_of": self.loss,
            "name_dict": {param.name: name for name, param in self.model.named_parameters()},
            "decay_params": sorted(ldopt.decayed_parameter_names(self.model)),
        }

    def loss(self, model):
        """Return a loss with the gradient `grads`."""
        return sum((param * paddle.to_tensor(self.grads[param.name])).sum() for param in model.parameters())

    def values(self):
        """Return tensor name -> array, of both models."""
        return {p.name: p.numpy().astype("float64") for m in (self.model, self.vit) for p in m.parameters()}

    def step(self, optimizer, model):
        """Take one step and return (structured name, parameter, value before, gradient, how far it moved)."""
        before = self.values()
        self.loss(model).backward()
        optimizer.step()
        optimizer.clear_grad()
        return self.moves(model, before)

    def moves(self, model, before):
        """Return what `step` does, for a step that was taken."""
        after = self.values()
        for name, param in model.named_parameters():
            start = before[param.name]
            yield name, param, start, self.grads[param.name].astype("float64"), after[param.name] - start


def near(got, expected, start, what):
    # a move is known to the rounding of the float32 weight it ends at
    assert (abs(got - expected) <= 1e-5 * abs(expected) + 1.2e-7 * (abs(start) + abs(expected))).all(), what


def ratio_of(name, decay):
    return vit_ratio(name, decay, BLOCKS)


def linear(name):
    """Return ERNIEKit's ratio for `layerwise_lr_decay_bound` 0.2, written down by hand."""
    block = re.search(r"encoder\.layers\.(\d+)", name)
    if block:
        return 0.2 + 0.8 * int(block.group(1)) / (BLOCKS + 2)
    return 0.2 if "embed" in name else 1.0


def first_adam_step(moves, ratio, lr, weight_decay, eps=1e-8):
    """Check AdamW's first step: lr (sign(g), nearly, + wd p) times the ratio, of every parameter."""
    for name, param, start, grad, move in moves:
        decay = weight_decay(param) if callable(weight_decay) else weight_decay
        near(move, -lr * ratio(name) * (decay * start + grad / (abs(grad) + eps)), start, name)


def adamw(model="model", decay=0.8, lr=1e-3, weight_decay=0.01, ratio=None):
    """Return the check of a block whose `opt` is an AdamWDL with PaddleNLP's rates."""

    def check(world, names):
        network = getattr(world, model)
        decayed = weight_decay(network, names) if callable(weight_decay) else weight_decay
        moves = world.step(names["opt"], network)
        first_adam_step(moves, ratio or (lambda name: ratio_of(name, decay)), lr, decayed)

    return check


def of_those(names_of, value):
    """Return a weight decay for the parameters that `names_of(model, names)` names."""

    def weight_decay(model, names):
        decayed = set(names_of(model, names))
        return lambda param: value if param.name in decayed else 0.0

    return weight_decay


def of_weights(model, names):
    return ldopt.decayed_parameter_names(model)


def no_tokens(model, names):
    return {p.name for n, p in model.named_parameters() if not re.search("pos_embed|cls_token|norm|bias", n)}


def encoder_only(name):
    return 0.8 if "encoder.layers" in name else 1.0


def hook(world, names):
    adamw(ratio=encoder_only)(world, names)
    assert all(p.optimize_attr["learning_rate"] == 1.0 for p in world.model.parameters())


def minimized(world, names):
    first_adam_step(world.moves(world.model, world.start), lambda name: ratio_of(name, 0.8), 1e-3, 0.01)


def timm(world, names):
    def scale(name):
        return 0.75 if name.startswith("norm.") else max(ratio_of(name, 0.75), 0.4)

    adamw("vit", lr=1e-3, weight_decay=of_those(of_weights, 0.05), ratio=scale)(world, names)


def adafactor(world, names):
    for name, param, start, grad, move in world.step(names["fixed"], world.model):
        if param.ndim == 1:  # its second moment is its square in the first step
            near(move, -1e-3 * np.sign(grad), start, name)
    list(world.step(names["opt"], world.model))
    used = names["opt"].used_lr()
    assert all(0.0 < float(used[param.name]) < 1.1e-6 for param in world.model.parameters()), "of the warm-up"
    assert names["schedule"].get_lr() == [pytest.approx(float(used[world.model.parameters()[0].name]))]


def cosine(world, names):
    for k in range(100):
        share = k / 10 if k < 10 else 0.5 * (1 + math.cos(math.pi * (k - 10) / 90))
        assert names["opt"].get_lr() == pytest.approx(1e-3 * share, abs=1e-18)
        names["schedule"].step()


def tensorflow(world, names):
    assert names["accumulator"].step == 0
    for optimizer in (names["opt"], names["by_hand"]):
        decayed = {p.name for p in world.model.parameters() if optimizer.has_weight_decay(p)}
        assert decayed == set(names["decay_params"])
    assert all((move == 0).all() for *_, move in world.moves(world.model, world.start))  # the rate of step 0 is 0
    assert names["schedule"]() == pytest.approx(2e-6)


def came(lr, weight_decay, ratio=lambda name: 1.0):
    """Return the check of CAME's first step in rank 1, where it has no confidence: 0.1 lr sign(g)."""

    def check(world, names):
        for name, param, start, grad, move in world.step(names["opt"], world.model):
            if param.ndim == 1:
                near(move, -lr(name) * ratio(name) * (0.1 * np.sign(grad) + weight_decay(name) * start), start, name)

    return check


def lamb(world, names):
    decayed = set(names["decay_params"])
    assert names["opt"].get_lr() == 1e-3
    for name, param, start, grad, move in world.step(names["opt"], world.model):
        u = grad / (abs(grad) + 1e-6) + (0.01 if param.name in decayed else 0.0) * start
        norm = np.linalg.norm(start)
        near(move, -1e-3 * (norm / np.linalg.norm(u) if norm else 1.0) * u, start, name)
    assert names["opt"].get_lr() == 2e-3


def pipeline(world, names):
    paddle.seed(0)
    y = float(nn.Linear(4, 1).weight.sum())  # of every row: the loss is y^2, the gradient 2 y for 4 weights and a bias
    got = [float(names[key]) for key in ("loss", "overflow", "scale", "rate", "norm")]
    assert got == pytest.approx([y**2, 0, 1024, 0.1, abs(2 * y) * math.sqrt(5)], rel=1e-5)


CHECKS = {
    "PaddleNLP AdamWDL 1": adamw(),
    "PaddleNLP AdamWDL 2": adamw("vit"),
    "PaddleNLP scripts with lr_ratio 1": adamw(weight_decay=of_those(lambda model, names: names["decay_params"], 0.01)),
    "ERNIEKit 1": adamw(weight_decay=of_those(of_weights, 0.1), ratio=linear),
    "PaddleNLP's Trainer with a group for each parameter 1": adamw(weight_decay=of_those(of_weights, 0.01)),
    "PaddleNLP's Trainer with a group for each parameter 2": adamw(ratio=lambda n: 0.8 if "encoder" in n else 1.0),
    "A hook that changes the parameter 1": hook,
    "A hook that takes only the parameter 1": adamw(ratio=encoder_only),
    "DataParallel and scaler.minimize 1": minimized,
    "PaddleDetection 1": adamw("vit", decay=0.75, lr=1e-4, weight_decay=of_those(no_tokens, 0.02)),
    "timm layer_decay 1": timm,
    "transformers Adafactor 1": adafactor,
    "transformers get_scheduler 1": cosine,
    "transformers create_optimizer, WarmUp, GradientAccumulator (TensorFlow) 1": tensorflow,
    "MindFormers Came 1": came(lambda n: 1e-3 if "norm" in n else 1e-2, lambda n: 0.01 if "norm" in n else 0.0),
    "MindFormers AdamW, AdamWeightDecay 1": adamw(decay=1.0, weight_decay=0.1),
    "MindFormers layer_decay 1": came(lambda n: 1e-3, lambda n: 0.0, lambda n: ratio_of(n, 0.8)),
    "MindFormers MFPipelineWithLossScaleCell 1": pipeline,
    "MindSpore Lamb 1": lamb,
}


@pytest.mark.parametrize("block", to_run())
def test_the_new_calls_run_and_step_as_they_should(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with paddle.utils.unique_name.guard():
        paddle.seed(1)
        world = World()
        paddle.seed(0)
        names = {**world.names, "__name__": "migrating"}
        exec(compile(to_run()[block], f"{PAGE}: {block}", "exec"), names)
        CHECKS[block](world, names)


def test_every_block_is_checked_or_an_old_call():
    assert set(CHECKS) == set(to_run())
    for head, blocks in sections().items():
        for block in blocks:
            assert re.match("# (before|after|before and after)", block), head
            compile(block, head, "exec")
        assert any(block.startswith(("# after", "# before and after")) for block in blocks), head
