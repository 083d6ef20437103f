"""What every optimizer of ours keeps to under `to_static` and in static graphs."""

import os
import subprocess
import sys

import numpy as np
import paddle
import pytest
from optimizer_cases import VARIANTS, make, near, run_static, static_graph
from toy_layers import Block, Embed, Whole

import paddle_ldopt

RATES = [0.01, 0.03, 0.005]  # a schedule of the optimizer's own


def network():
    return Whole((Embed, 6, 4), [(Block, 4)] * 2, (paddle.nn.Linear, 4, 3))


def tiny_model():
    with paddle.utils.unique_name.guard():
        paddle.seed(1)
        return network(), np.array([[0, 1, 2], [3, 4, 5]])


def dygraph_result(name, **more):
    model, tokens = tiny_model()
    start = {n: p.numpy().copy() for n, p in model.named_parameters()}
    opt = make(name, model.parameters(), set_param_lr_fun=lambda p: 0.5 if p.ndim == 1 else 1.0, **more)
    for _ in range(3):
        model(paddle.to_tensor(tokens)).square().mean().backward()
        opt.step()
        opt.clear_grad()
    return start, {n: p.numpy().copy() for n, p in model.named_parameters()}


@pytest.mark.representatives(count=1)
@pytest.mark.parametrize("name, more", [*((name, {}) for name in VARIANTS), ("lamb", {"learning_rate": RATES})])
def test_to_static(name, more):
    _, want = dygraph_result(name, **more)
    model, tokens = tiny_model()
    opt = make(name, model.parameters(), set_param_lr_fun=lambda p: 0.5 if p.ndim == 1 else 1.0, **more)

    @paddle.jit.to_static
    def train(batch):
        model(batch).square().mean().backward()
        opt.step()
        opt.clear_grad()

    for step in range(3):
        assert opt.get_lr() == more.get("learning_rate", [opt.get_lr()] * 3)[step]
        train(paddle.to_tensor(tokens))
    near({n: p.numpy() for n, p in model.named_parameters()}, want, rtol=1e-4, atol=1e-5)


STATIC = [*(name for name in VARIANTS if name != "muon"), "adamweightdecay, clipped"]  # Muon refuses
every_static = pytest.mark.parametrize("name", STATIC)
WAYS = {
    "minimize": lambda opt, loss: opt.minimize(loss),
    "apply_gradients": lambda opt, loss: opt.apply_gradients(opt.backward(loss)),  # as Paddle's static AMP
}


@pytest.mark.representatives(count=2)
@pytest.mark.parametrize("way", WAYS)
@every_static
def test_static_program(name, way):
    start, want = dygraph_result(name)

    def program():
        model = network()
        loss = model(paddle.static.data("batch", [2, 3], "int64")).square().mean()
        WAYS[way](make(name, None, set_param_lr_fun=lambda p: 0.5 if len(p.shape) == 1 else 1.0), loss)
        return model, loss

    got = run_static(program, {"batch": np.array([[0, 1, 2], [3, 4, 5]])}, start, 3)
    near(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.representatives(count=2)
@every_static
def test_found_inf_of_a_static_program_skips_everything(name):
    scope = paddle.static.Scope()
    with static_graph(), paddle.utils.unique_name.guard(), paddle.static.scope_guard(scope):
        batch = paddle.static.data("batch", [2, 3], "int64")
        overflow = paddle.static.data("overflow", [1], "bool")
        model = network()
        opt = make(name, None)
        opt._set_auxiliary_var("found_inf", overflow)  # as Paddle's static AMP does
        opt.minimize(model(batch).square().mean())
        weights = [param.name for param in model.parameters()]
        executor = paddle.static.Executor()
        executor.run(paddle.static.default_startup_program())
        states = [tensor.name for held in opt._accumulators.values() for tensor in held.values()]
        batch, ends = np.array([[0, 1, 2], [3, 4, 5]]), []
        for found in (True, False):
            begun = {n: np.array(scope.find_var(n).get_tensor()) for n in weights + states}
            executor.run(feed={"batch": batch, "overflow": np.array([found])})
            ends.append([n for n, old in begun.items() if (np.array(scope.find_var(n).get_tensor()) != old).any()])
    assert ends[0] == []
    assert set(weights) <= set(ends[1]) and len(ends[1]) > len(weights)


@pytest.mark.representatives(count=1)
@pytest.mark.parametrize("name", STATIC)
def test_a_second_loss_of_a_static_program_trains_the_same_parameters(name):
    with static_graph(), paddle.utils.unique_name.guard():
        layer, batch = paddle.nn.Linear(3, 2), paddle.static.data("batch", [4, 3])
        losses = [layer(batch).pow(power).mean() for power in (1.0, 2.0)]
        assert [len(make(name, None).minimize(loss)[1]) for loss in losses] == [2, 2]


PATTERNS = {"weight_decay": 0.1, "exclude_from_weight_decay": ["b_0"]}
LAYERWISE = {"layerwise_decay": 0.5, "n_layers": 2, "set_param_lr_fun": paddle_ldopt.layerwise_lr_decay}


@pytest.mark.parametrize("cls, given", [(paddle_ldopt.AdamWeightDecay, PATTERNS), (paddle_ldopt.AdamWDL, LAYERWISE)])
def test_checks_of_a_static_program_are_of_all_its_parameters(cls, given, recwarn):
    options = dict(given)
    with static_graph(), paddle.utils.unique_name.guard():
        layers = paddle.nn.Sequential(paddle.nn.Linear(3, 3), paddle.nn.Linear(3, 3))
        if "n_layers" in options:
            named = layers.named_parameters()
            options["name_dict"] = {param.name: name.replace("0.", "encoder.layers.0.") for name, param in named}
        loss = layers(paddle.static.data("batch", [4, 3])).mean()
        assert len(cls(learning_rate=0.1, **options).minimize(loss)[1]) == 4
    assert not [warning for warning in recwarn if "match no parameter" in str(warning.message)]


OLD_IR = """
import paddle, paddle_ldopt

paddle.enable_static()
y = paddle.static.nn.fc(paddle.static.data("x", [4, 3]), 2)
paddle_ldopt.{}(learning_rate=0.1).minimize((y * y).mean())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamWDL", "Came", "Lamb", "AdamWeightDecay"])
def test_rules_refuse_the_earlier_form_of_static_graphs(name):
    environment = {**os.environ, "FLAGS_enable_pir_api": "0"}
    command = [sys.executable, "-W", "ignore", "-c", OLD_IR.format(name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if name == "AdamWDL":
        assert done.returncode == 0, done.stderr
    else:
        assert f"set FLAGS_enable_pir_api=1. Received: optimizer='{name}'" in done.stderr
