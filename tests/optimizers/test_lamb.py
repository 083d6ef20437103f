"""Lamb: against Algorithm 2 in float64 NumPy, the peers' trajectories, and what MindSpore documents for its Lamb."""

import numpy as np
import paddle
import pytest
from golden.random_problems import problem, with_gaps
from golden_cases import cases, each, follow
from lamb_cases import RATES, close, random_run, train
from reference import make_params, take_steps
from reference_lamb import lamb
from toy_layers import apart

from paddle_ldopt.optimizers.lamb import Lamb


@pytest.mark.parametrize(
    "weight_decay, want",
    [
        # w = [3, 4], |w| = 5; the first step's r = [1, -1]
        (0.0, [3 - 0.1 * 5 / 2**0.5, 4 + 0.1 * 5 / 2**0.5]),  # |r| = 2^.5
        (0.5, [3 - 0.1 * 5 / 7.25**0.5 * 2.5, 4 - 0.1 * 5 / 7.25**0.5 * 1.0]),  # r + w / 2 = [2.5, 1]
    ],
)
def test_the_first_step_by_hand(weight_decay, want):
    got = train({"w": np.array([3.0, 4.0])}, [{"w": np.array([2.0, -2.0])}], 0.1, eps=1e-12, weight_decay=weight_decay)
    np.testing.assert_allclose(got["w"], want, rtol=1e-11)


@pytest.mark.parametrize(
    "weights, gradient, weight_decay, moved",
    [
        ([0.0, 0.0], [1.0, -1.0], 0.0, [-0.1, 0.1]),  # |w| = 0: the plain Adam step
        ([3.0, 4.0], [0.0, 0.0], 0.0, [0.0, 0.0]),  # |r| = 0
        ([3.0, 4.0], [0.0, 0.0], 0.5, [-0.3, -0.4]),  # decay alone: rate * |w| / |w / 2| * w / 2
    ],
)
def test_a_norm_of_0_makes_the_ratio_1(weights, gradient, weight_decay, moved):
    weights = np.array(weights)
    got = train({"w": weights}, [{"w": np.array(gradient)}], 0.1, eps=1e-12, weight_decay=weight_decay)
    np.testing.assert_allclose(got["w"] - weights, moved, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.02},
        {"beta1": 0.01, "beta2": 0.9999},
    ],
    ids=str,
)
def test_matches_the_float64_reference(dtype, options):
    arrays, grads = random_run()
    close(train(arrays, grads, 0.01, dtype, **options), lamb(arrays, grads, lr=0.01, **options), dtype)


def test_timm_counts_steps_without_a_gradient_too():
    """Problem 8 of `make parity ARGS=--random` and what timm's Lamb 1.0.31 makes of it: docs/numerics.md."""
    found = problem(0, 8)
    options = {name: value for name, value in found["ours"]["arguments"].items() if name != "learning_rate"}
    rate, grads = found["ours"]["arguments"]["learning_rate"], with_gaps(found)
    ours, start = train(found["start"], grads, rate, **options), found["start"]
    close(ours, lamb(start, grads, lr=rate, **options))
    timm = lamb(start, grads, lr=rate, counts_calls=True, **options)
    assert apart(ours, start, timm) == pytest.approx(1.12e-5, rel=0.01)


def golden(entry, params, name_dict):
    """Turn a peer's options into a call of ours."""
    options = dict(entry["options"])
    rate = options.get("learning_rate", options.get("lr"))
    how = {"weight_decay": options.get("lamb_weight_decay", options.get("weight_decay", 0.0))}
    how["beta1"] = options.get("beta1", options.get("b1", 0.9))
    how["beta2"] = options.get("beta2", options.get("b2", 0.999))
    how["eps"] = options.get("epsilon", options.get("eps", 1e-6))
    if "exclude" in options:  # ours leaves out "beta" and "gamma" as soon as it is told the structured names
        assert options["exclude"] == ["beta", "gamma"]
        how["name_dict"] = name_dict
    if "global_clip" in options:
        how["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(options["global_clip"])
    return Lamb(rate, parameters=list(params.values()), **how), None


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@each(cases("lamb"))
def test_trajectory_is_the_peers(entry, dtype):
    follow(entry, dtype, lambda params, name_dict: golden(entry, params, name_dict))


NAMES = {"encoder.LayerNorm.gamma": [3], "encoder.LayerNorm.beta": [3], "encoder.dense.weight": [3, 3]}


def undecayed(name, step):
    return 0.0 if "gamma" in name or "beta" in name else 0.3


@pytest.mark.parametrize(
    "chosen, decay",
    [
        ("name_dict", undecayed),
        ("tensor names", undecayed),
        (lambda tensor_name: True, 0.3),
        (lambda tensor_name: False, 0.0),
        ("groups", lambda name, step: 0.1 * list(NAMES).index(name)),
    ],
    ids=["name_dict", "tensor names", "all", "none", "groups"],
)
def test_beta_and_gamma_are_not_decayed_unless_somebody_chooses(chosen, decay):
    arrays, grads = random_run(4, NAMES)
    params, name_dict = make_params(arrays, "float64")
    given, how = list(params.values()), {"name_dict": name_dict}
    if chosen == "tensor names":
        how = {}
        for name, param in params.items():
            param.name = name
    elif chosen == "groups":
        given = [{"params": [p], "weight_decay": 0.1 * i} for i, p in enumerate(given)]
    elif chosen != "name_dict":
        how["apply_decay_param_fun"] = chosen
    opt = Lamb(0.01, parameters=given, weight_decay=0.3, **how)
    close(take_steps(opt, params, grads), lamb(arrays, grads, lr=0.01, weight_decay=decay))


def test_groups_with_every_option():
    arrays, grads = random_run(4)
    rates = [0.02, 0.01, 0.03, 0.04]
    scheduler = paddle.optimizer.lr.StepDecay(0.02, step_size=1, gamma=0.5)
    grad_clip = paddle.nn.ClipGradByGlobalNorm(0.5)

    def groups(p):
        return [
            {"params": [p["scalar"]], "lr": 0.05},
            {"params": p["one"], "lr": rates, "weight_decay": 0.2},  # one parameter without a list, as Paddle takes it
            {"params": (q for q in [p["vector"]]), "lr": lambda i: 0.1 / (i + 1), "weight_decay": lambda i: 0.1 * i},
            {"params": [p["row"]], "lr": scheduler},
            {"params": [p["column"]], "learning_rate": 0.5},
            {"params": [p["conv"]], "grad_centralization": True, "lr": 2},
            {"params": [p["matrix"]], "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
            {"params": [p["cube"]], "grad_clip": grad_clip},
        ]

    def rate(name, step):
        own = {"scalar": 0.05, "one": rates[step], "vector": 0.1 / (step + 1), "row": 0.02 * 0.5**step, "conv": 2.0}
        own["column"] = 0.5 * RATES[step]
        return own.get(name, RATES[step])

    def decay(name, step):
        return {"one": 0.2, "vector": 0.1 * step}.get(name, 0.01)

    got = train(arrays, grads, RATES, groups=groups, weight_decay=0.01, each_step=lambda opt: scheduler.step())
    norms = [np.sqrt((g["cube"] ** 2).sum()) for g in grads]
    grads = [{**g, "cube": g["cube"] * min(1, 0.5 / norm)} for g, norm in zip(grads, norms)]
    want = lamb(arrays, grads, lr=rate, weight_decay=decay, centralized={"conv"})
    own = {"matrix": arrays["matrix"]}, [{"matrix": g["matrix"]} for g in grads]
    want.update(lamb(*own, lr=rate, weight_decay=decay, beta1=0.5, beta2=0.9, eps=1e-3))
    close(got, want)


@pytest.mark.parametrize("shape, centralized", [([4, 3, 2, 2], 1), ([4, 3, 2, 2, 2], 1), ([4, 3, 2], 0), ([4, 3], 0)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])  # Paddle's operations, the C library
def test_gradients_of_convolutions_are_centralized(shape, centralized, dtype):
    arrays, grads = random_run(3, {"w": shape, "conv": [2, 2, 1, 1], "bias": [4]})
    groups = {"groups": lambda p: [{"params": list(p.values()), "grad_centralization": True}]}
    got = train(arrays, grads, 0.1, dtype, **groups)
    close(got, lamb(arrays, grads, lr=0.1, centralized={"w", "conv"} if centralized else {"conv"}), dtype)


@pytest.mark.parametrize("first", [True, False])
def test_a_group_of_matrices_does_not_set_the_centralization_of_a_group_of_convolutions(first):
    arrays, grads = random_run(3, {"conv": [3, 2, 2, 2], "matrix": [4, 3]})

    def groups(params):
        centralized = {"matrix": not first, "conv": first}
        return [{"params": [params[name]], "grad_centralization": flag} for name, flag in centralized.items()]

    library = train(arrays, grads, 0.1, "float32", groups=groups)
    close(library, train(arrays, grads, 0.1, "float64", groups=groups), "float32")
