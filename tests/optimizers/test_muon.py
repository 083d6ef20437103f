"""Muon: the reference, its routes, its batches and refusals. test_parity.py has torch's and optax's trajectories."""

import numpy as np
import paddle
import pytest
from optimizer_cases import Net, near, same, static_graph
from reference import make_params, take_steps
from reference_optimizers import muon, orthogonalized

import paddle_ldopt as ldopt
from paddle_ldopt.optimizers import muon as module

TOKENS = paddle.to_tensor([[1, 2, 3], [3, 4, 5]])
SHAPES = {"wide": (3, 8), "high": (8, 3), "twin": (8, 3), "conv": (4, 2, 3, 3), "bias": (8,), "scale": ()}
MATRICES = ("wide", "high", "twin", "conv")


def problem(steps=5, seed=0):
    draw = np.random.default_rng(seed)
    arrays = [{name: draw.normal(size=shape) for name, shape in SHAPES.items()} for _ in range(steps + 1)]
    return arrays[0], arrays[1:]


def built(params, names, ns_dtype="float32", **options):
    routes = {"use_muon": lambda p: names[p.name] in MATRICES, "ns_dtype": ns_dtype}
    return ldopt.Muon(parameters=list(params.values()), **routes, **options)


def matrices_of(model, opt):
    return [name for name, param in model.named_parameters() if opt.uses_muon(param)]


@pytest.mark.parametrize("options", [{}, {"nesterov": False, "momentum": 0.5}, {"adjust_lr": "original"}], ids=str)
def test_it_follows_the_reference(options):
    arrays, grads = problem()
    grads[0]["wide"] *= 0.0
    grads[1]["high"] = grads[2]["bias"] = None
    params, names = make_params(arrays, "float64")
    ratios = {name: 0.5 if name in ("wide", "bias") else 1.0 for name in SHAPES}
    hook = {"set_param_lr_fun": lambda p: ratios[names[p.name]]}
    got = take_steps(built(params, names, learning_rate=0.01, weight_decay=0.2, **hook, **options), params, grads)
    how = {key: value for key, value in options.items() if key != "adjust_lr"}
    how.update(lr=0.01, weight_decay=0.2, original="adjust_lr" in options, ratios=ratios)
    near(got, muon(arrays, grads, MATRICES, **how), rtol=1e-11, atol=1e-12)


def test_products_are_bfloat16_on_an_accelerator_alone():
    matrix = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    got = paddle.to_tensor(matrix)
    on_cpu = got.place.is_cpu_place()
    error = np.abs(module.orthogonalized(got, (3.4445, -4.775, 2.0315), 5).numpy() - orthogonalized(matrix)).max()
    assert error < 1e-5 if on_cpu else 1e-4 < error < 0.05


def test_the_layers_route_matrices_of_blocks_to_muon():
    model = Net()
    opt = ldopt.create("muon", model, 0.5, learning_rate=0.1, example=TOKENS)
    ends = ("proj.weight", "linear1.weight", "linear2.weight")
    inner = [n for n, _ in model.named_parameters() if n.startswith("blocks")]
    assert matrices_of(model, opt) == [n for n in inner if n.endswith(ends)]
    assert opt.layerwise_ratio(model.blocks[0].linear1.weight) == 0.25
    routed = ldopt.create("muon", model, learning_rate=0.1, use_muon=lambda p: p is model.head.weight)
    assert matrices_of(model, routed) == ["head.weight"]
    alike = ldopt.create("muon", model, learning_rate=0.1, example=TOKENS, use_muon=None)
    assert matrices_of(model, alike) == matrices_of(model, opt), "a decay of 1 needs the layers too"


def test_groups_route_before_the_layers_and_stay_alive():
    model = Net()
    groups = [
        {"params": model.blocks.parameters(), "use_muon": False, "weight_decay": 0.0},
        {"params": model.head.parameters()[:1], "use_muon": True},
        {"params": [*model.embed.parameters(), *model.head.parameters()[1:]], "use_muon": False},
    ]
    opt = ldopt.Muon(0.1, parameters=groups, weight_decay=0.1)
    assert matrices_of(model, opt) == ["head.weight"]
    groups = opt._param_groups
    groups[0]["weight_decay"] = 0.5
    assert opt.group_of(model.blocks[0].linear1.weight)["weight_decay"] == 0.5


@pytest.mark.parametrize("grouped", [False, True])
def test_a_parameter_of_another_model_is_refused_and_the_routes_stay(grouped):
    model, other = Net(), paddle.create_parameter([2, 2], "float32")
    params = [{"params": part.parameters()} for part in (model.embed, model.blocks, model.head)]
    opt = ldopt.create("muon", model, learning_rate=0.1, example=TOKENS, groups=params if grouped else None)
    routed = matrices_of(model, opt)
    with pytest.raises(ValueError, match=f"not built with this parameter. Received: '{other.name}'"):
        opt.uses_muon(other)
    assert matrices_of(model, opt) == routed


def test_a_static_graph_is_refused():
    with static_graph(), pytest.raises(RuntimeError, match="dygraph only"):
        ldopt.Muon(0.1, use_muon=lambda p: True)


def test_bfloat16_products_on_a_cpu_are_refused_before_anything_moves():
    arrays, grads = problem(steps=1)
    params, names = make_params(arrays)
    opt = built(params, names, learning_rate=0.1, ns_dtype="bfloat16")
    with pytest.raises(ValueError, match="CPU.*Received: ns_dtype"):
        take_steps(opt, params, grads)
    same({n: p.numpy() for n, p in params.items()}, {n: a.astype("float32") for n, a in arrays.items()})
