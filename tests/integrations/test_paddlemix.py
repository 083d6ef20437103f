"""PaddleMIX: groups as optimization/clip_optimizer.py and models/eva02/optim_factory.py make them."""

import numpy as np
import paddle
import pytest
import reference

import paddle_ldopt as ldopt

DECAY, BLOCKS = 0.75, 3
OPTIONS = {ldopt.Adafactor: {"relative_step": False, "scale_parameter": False}}


def groups_of(layers, rate=None):
    """One group for each layer, the head last; with the layer's rate as CLIP has it, without as EVA-02."""
    for i, layer in enumerate(layers):
        scale = DECAY ** (len(layers) - 1 - i)
        labels = {"group": "visual", "lr_scale": scale} if rate else {"lr_scale": scale}
        rates = {"learning_rate": rate * scale} if rate else {}
        yield {"params": layer.parameters(), "weight_decay": 0.0, **labels, **rates}


@pytest.fixture
def layers():
    return [paddle.nn.Linear(4, 4) for _ in range(BLOCKS + 1)]


@pytest.mark.parametrize("cls", [ldopt.AdamWDL, ldopt.Came, ldopt.Lamb, ldopt.Adafactor, ldopt.AdamWeightDecay])
def test_the_groups_of_clip_are_taken_as_they_are(cls, layers):
    """The optimizer's rate is 1, or a schedule around it, and each group has the rate of its layer."""
    uniform = [{"params": [p for layer in layers for p in layer.parameters()], "weight_decay": 0.0}]
    moved = []
    for rate, groups in ((2e-4, uniform), (1.0, list(groups_of(layers, rate=2e-4)))):
        optimizer = cls(learning_rate=rate, parameters=groups, **OPTIONS.get(cls, {}))
        for layer in layers:
            layer.weight.set_value(paddle.full([4, 4], 0.01))
            layer.weight.grad = paddle.ones([4, 4])
        optimizer.step()
        moved.append([float((layer.weight - 0.01).mean()) for layer in layers])
    for i, (uniform, layered) in enumerate(zip(*moved)):
        assert layered == pytest.approx(uniform * DECAY ** (BLOCKS - i), rel=1e-4, abs=4e-9), i  # rounded at 0.01


def test_the_trainer_of_eva02_sets_the_rates_of_every_step(layers):
    """It writes the rate times `lr_scale` into group and parameters; the optimizer's own rate is 1."""
    groups = [{**group, "learning_rate": group["lr_scale"]} for group in groups_of(layers)]
    opt = ldopt.AdamWDL(learning_rate=1.0, parameters=groups)
    params = {str(i): layer.weight for i, layer in enumerate(layers)}
    start = {name: param.numpy().astype("float64") for name, param in params.items()}
    rates, rng, grads = [0.01, 0.007, 0.003], np.random.default_rng(0), []
    for rate in rates:
        for group in opt._param_groups:
            group["learning_rate"] = rate * group["lr_scale"]
            for param in group["params"]:
                param.optimize_attr["learning_rate"] = rate * group["lr_scale"]
        grads.append({name: rng.normal(size=(4, 4)) for name in params})
        for name, param in params.items():
            param.grad = paddle.to_tensor(grads[-1][name].astype("float32"))
        opt.step()
    ratios = {name: DECAY ** (BLOCKS - int(name)) for name in params}
    want = reference.adamw(start, grads, ratios, lr=lambda step: rates[step - 1], weight_decay=0.0)
    for name, param in params.items():
        np.testing.assert_allclose(param.numpy(), want[name], rtol=0, atol=1e-6, err_msg=name)
