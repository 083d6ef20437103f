"""Lamb: against Algorithm 2 in float64 NumPy, the peers' trajectories, and what MindSpore documents for its Lamb."""

import inspect
import itertools
import re

import numpy as np
import paddle
import pytest
from golden_cases import cases, each, follow, needs_golden
from optimizer_cases import same
from reference import make_params, take_steps
from reference_lamb import lamb

from paddle_ldopt import decayed_parameter_names
from paddle_ldopt.optimizers._pieces import Piece, answer_locally
from paddle_ldopt.optimizers.declaration import STEP
from paddle_ldopt.optimizers.lamb import Lamb, lamb_update

SHAPES = {
    "scalar": [],
    "one": [1],
    "vector": [7],
    "row": [1, 5],
    "column": [5, 1],
    "matrix": [4, 3],
    "cube": [2, 3, 4],
    "conv": [3, 2, 2, 2],
}


def random_run(steps=20, shapes=SHAPES, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {n: rng.normal(size=s) for n, s in shapes.items()}
    return arrays, [{n: rng.normal(size=s) for n, s in shapes.items()} for _ in range(steps)]


def train(arrays, grads, rate, dtype="float64", each_step=None, groups=None, **how):
    """Train new parameters; `groups` makes groups out of the parameters by name."""
    params, _ = make_params(arrays, dtype)
    opt = Lamb(rate, parameters=groups(params) if groups else list(params.values()), **how)
    after = None if each_step is None else (lambda: each_step(opt))
    return {n: a.copy() for n, a in take_steps(opt, params, grads, after).items()}


def close(got, want, dtype="float64"):
    rtol, atol = (1e-10, 1e-12) if dtype == "float64" else (2e-5, 2e-6)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=rtol, atol=atol, err_msg=name)


# ---- the update


def test_signature():
    parameters = list(inspect.signature(Lamb.__init__).parameters.values())[1:]
    positional = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional[0][0] == "learning_rate" and positional[1:] == [
        ("beta1", 0.9),
        ("beta2", 0.999),
        ("eps", 1e-6),
        ("weight_decay", 0.0),
        ("parameters", None),
        ("grad_clip", None),
        ("apply_decay_param_fun", None),
        ("multi_precision", False),
        ("name", None),
    ]
    assert issubclass(Lamb, paddle.optimizer.Optimizer)


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


def test_the_rule_is_pure():
    param, grad, zeros = paddle.rand([3, 2]), paddle.rand([3, 2]), paddle.zeros([3, 2])
    state = {"moment1": zeros, "moment2": zeros, STEP: paddle.ones([])}
    before = [t.numpy().copy() for t in (param, grad, zeros)]
    how = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.1, "piece": Piece(param.shape)}
    new, new_state = answer_locally(lamb_update(param, grad, state, paddle.to_tensor(0.1), **how))
    for tensor, value in zip((param, grad, zeros), before):
        np.testing.assert_array_equal(tensor.numpy(), value)
    assert set(new_state) == {"moment1", "moment2"} and not np.array_equal(new.numpy(), before[0])


def test_the_rule_in_pieces_with_their_sums_added_up():
    arrays, (grads,) = random_run(1, {"w": [4, 3, 2, 2]})
    how = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.1, "grad_centralization": True}

    def rule(rows):
        param, grad = (paddle.to_tensor(a["w"][rows]) for a in (arrays, grads))
        state = {"moment1": 0 * param, "moment2": 0 * param, STEP: paddle.ones([], "float64")}
        return lamb_update(param, grad, state, paddle.full([], 0.1, "float64"), piece=Piece(param.shape), **how)

    whole, _ = answer_locally(rule(slice(None)))
    pieces = [rule(slice(0, 1)), rule(slice(1, 4))]
    norms = [piece.send(next(piece)) for piece in pieces]  # each piece has whole channels: its own sums are the answer
    sums, results = [a + b for a, b in zip(*norms)], []
    for piece in pieces:
        with pytest.raises(StopIteration) as done:
            piece.send(sums)
        results.append(done.value.value[0].numpy())
    np.testing.assert_allclose(np.concatenate(results), whole.numpy(), rtol=1e-13)


def test_parameters_without_a_gradient_stay_and_count_their_own_steps():
    arrays, grads = random_run(9)
    grads = [
        {n: None if (n == "row" and i < 3) or (n == "cube" and i % 2) else g for n, g in grad.items()}
        for i, grad in enumerate(grads)
    ]
    close(train(arrays, grads, 0.01, weight_decay=0.1), lamb(arrays, grads, lr=0.01, weight_decay=0.1))


def test_state_is_two_moments_and_a_counter():
    arrays, grads = random_run(1)
    params, _ = make_params(arrays, "float32")
    opt = Lamb(0.01, parameters=list(params.values()))
    take_steps(opt, params, grads)
    elements = sum(a.size for a in arrays.values())
    held = sum(t.element_size() * t.size for t in opt.state_dict().values())
    assert held == 8 * elements + 4 * len(arrays)
    opt = Lamb(lambda step: 0.01, parameters=list(params.values()), name="scheduled")
    take_steps(opt, params, grads)
    held = sum(t.element_size() * t.size for t in opt.state_dict().values())
    assert held == 8 * elements + 8 * len(arrays), "a schedule needs the optimizer's own count beside the parameter's"


# ---- the peers


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


@needs_golden
def test_there_is_no_other_golden_case_to_keep_to():
    for kind in ("error", "table", "schedule"):
        assert not cases("lamb", kind)


# ---- the rate

RATES = [0.01, 0.03, 0.005, 0.02]
SCHEDULES = {
    "list": lambda: list(RATES),
    "tuple": lambda: tuple(RATES),
    "generator": lambda: (rate for rate in RATES),
    "NumPy array": lambda: np.array(RATES),
    "1-D Tensor": lambda: paddle.to_tensor(RATES, dtype="float64"),
    "list of Tensors": lambda: [paddle.to_tensor(rate, dtype="float64") for rate in RATES],
    "callable": lambda: lambda step: RATES[step],
    "callable that gives a Tensor": lambda: lambda step: paddle.to_tensor([RATES[step]], dtype="float64"),
    "callable that gives a NumPy number": lambda: lambda step: np.float64(RATES[step]),
}
CONSTANTS = {
    "float": 0.25,
    "int": 2,
    "zero": 0,
    "0-D Tensor": paddle.to_tensor(0.25),
    "0-D array": np.array(0.25),
    "NumPy number": np.float32(0.25),
    "NumPy int": np.int64(2),
}


@pytest.mark.parametrize("rate", CONSTANTS.values(), ids=CONSTANTS)
def test_constant_rates(rate):
    arrays, grads = random_run(3)
    seen = []
    got = train(arrays, grads, rate, each_step=lambda opt: seen.append(opt.get_lr()))
    close(got, lamb(arrays, grads, lr=float(rate)))
    assert seen == [float(rate)] * 3


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_schedules_advance_with_the_steps(make):
    arrays, grads = random_run(4)
    params, _ = make_params(arrays, "float64")
    opt = Lamb(make(), parameters=list(params.values()), weight_decay=0.1)
    seen = []
    for grad in grads:
        seen.append(opt.get_lr())
        assert opt.get_lr() == seen[-1], "asking does not advance it"
        got = take_steps(opt, params, [grad])
    assert seen == RATES
    close(got, lamb(arrays, grads, lr=lambda name, step: RATES[step], weight_decay=0.1))


def test_a_paddle_scheduler_is_stepped_by_the_caller():
    arrays, grads = random_run(6)
    scheduler = paddle.optimizer.lr.StepDecay(0.01, step_size=2, gamma=0.3)
    seen = []
    got = train(arrays, grads, scheduler, each_step=lambda opt: (seen.append(opt.get_lr()), scheduler.step()))
    want = [0.01 * 0.3 ** (step // 2) for step in range(6)]
    close(got, lamb(arrays, grads, lr=lambda name, step: want[step]))
    np.testing.assert_allclose(seen, want)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_schedule_that_runs_out_raises_before_anything_changes(grouped):
    arrays, grads = random_run(3)
    params, _ = make_params(arrays)
    if grouped:  # the last group's own schedule is the one that runs out
        halves = [{"params": [p]} for p in params.values()]
        halves[-1]["lr"] = [0.1, 0.2]
        opt = Lamb(0.01, parameters=halves)
    else:
        opt = Lamb([0.1, 0.2], parameters=list(params.values()))
    take_steps(opt, params, grads[:2])
    before = {n: p.numpy().copy() for n, p in params.items()}
    state = {k: v.numpy().copy() for k, v in opt.state_dict().items()}
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"has run out: it has 2 values, and this is step 3\. .*Received: (lr|lea)"
        ):
            take_steps(opt, params, grads[2:])
    same({n: p.numpy() for n, p in params.items()}, before)
    same({k: v.numpy() for k, v in opt.state_dict().items()}, state)
    assert opt.get_lr() == (0.01 if grouped else 0.2), "for the log of the last step"


def test_a_callable_that_goes_bad_in_mid_run_changes_nothing():
    arrays, grads = random_run(2)
    params, _ = make_params(arrays)
    for bad, error in ((float("nan"), ValueError), (-0.1, ValueError), ("0.1", TypeError), (None, TypeError)):
        decays = iter([0.1, 0.1, bad])  # at construction, in the first step, in the second
        opt = Lamb([0.1, 0.2], parameters=list(params.values()), weight_decay=lambda step, d=decays: next(d))
        take_steps(opt, params, grads[:1])
        before = {n: p.numpy().copy() for n, p in params.items()}
        with pytest.raises(error, match=r"`weight_decay\(1\)` must be .*Received: weight_decay\(1\)="):
            take_steps(opt, params, grads[1:])
        same({n: p.numpy() for n, p in params.items()}, before)
        assert opt.get_lr() == 0.2


def test_steps_that_do_not_count():
    arrays, grads = random_run(4)
    params, _ = make_params(arrays, "float64")
    opt = Lamb(RATES, parameters=list(params.values()))
    take_steps(opt, params, grads[:1])
    opt._set_auxiliary_var("found_inf", paddle.to_tensor([True]))
    take_steps(opt, params, grads[1:2])
    opt._set_auxiliary_var("found_inf", paddle.to_tensor([False]))
    assert opt.get_lr() == RATES[1]
    take_steps(opt, params, [dict.fromkeys(arrays)])
    assert opt.get_lr() == RATES[1]
    got = take_steps(opt, params, grads[2:])
    want = lamb(arrays, [grads[0], *grads[2:]], lr=lambda name, step: RATES[step])
    close(got, want)


def test_the_optimizers_steps_are_counted_even_if_no_parameter_has_them_all():
    arrays, grads = random_run(4, {"a": [3], "b": [2]})
    grads = [{n: g if (n == "a") == (i < 2) else None for n, g in grad.items()} for i, grad in enumerate(grads)]
    close(train(arrays, grads, RATES), lamb(arrays, grads, lr=lambda name, step: RATES[step]))


@pytest.mark.parametrize(
    "kind, reordered, name", [("list", False, None), ("callable", True, None), ("list", True, "it")]
)
def test_a_schedule_goes_on_after_a_resume(tmp_path, kind, reordered, name):
    arrays, grads = random_run(4)
    grads[1] = {n: None if n == "row" else g for n, g in grads[1].items()}
    file = str(tmp_path / "opt.pdopt")

    def run(values, grads, load=None, save=None, each_rate=()):
        with paddle.utils.unique_name.guard():
            params, _ = make_params(values, "float64")
            listed = list(params.values())[:: -1 if load and reordered else 1]
            opt = Lamb(SCHEDULES[kind](), parameters=listed, weight_decay=lambda step: 0.1 * step, name=name)
            if load:
                opt.set_state_dict(paddle.load(load))
            for grad, rate in itertools.zip_longest(grads, each_rate):
                assert rate is None or opt.get_lr() == rate
                result = take_steps(opt, params, [grad])
            if save:
                paddle.save(opt.state_dict(), save)
            return {n: a.copy() for n, a in result.items()}

    whole = run(arrays, grads)
    close(whole, lamb(arrays, grads, lr=lambda n, i: RATES[i], weight_decay=lambda n, i: 0.1 * i))
    half_way = run(arrays, grads[:2], save=file)
    same(run(half_way, grads[2:], load=file, each_rate=RATES[2:]), whole)


def test_a_resume_into_an_optimizer_that_has_taken_steps():
    arrays, grads = random_run(4)
    params, _ = make_params(arrays, "float64")
    opt = Lamb(RATES, parameters=list(params.values()))
    take_steps(opt, params, grads[:1])
    early = {k: v.clone() for k, v in opt.state_dict().items()}
    take_steps(opt, params, grads[1:3])
    assert opt.get_lr() == RATES[3]
    opt.load_state_dict(early)
    assert opt.get_lr() == RATES[1]
    take_steps(opt, params, grads[1:3])
    assert opt.get_lr() == RATES[3]


def test_the_count_is_not_that_of_the_optimizer_the_state_came_from():
    arrays, grads = random_run(3)
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        first = Lamb(RATES, parameters=list(params.values()))
        take_steps(first, params, grads[:1])
    with paddle.utils.unique_name.guard():
        others, _ = make_params(arrays)
        second = Lamb(RATES, parameters=list(others.values()))
    second.set_state_dict(first.state_dict())
    take_steps(first, params, grads[1:])
    assert (first.get_lr(), second.get_lr()) == (RATES[3], RATES[1])


def test_a_checkpoint_without_a_schedule_goes_on_with_one():
    arrays, grads = random_run(3)
    with paddle.utils.unique_name.guard():
        params, _ = make_params(arrays)
        plain = Lamb(0.01, parameters=list(params.values()))
        take_steps(plain, params, grads)
    state = plain.state_dict()
    for rate, seen in ((RATES, RATES[3]), (0.5, 0.5), ([*RATES, 0.7, 0.8], 0.8)):
        with paddle.utils.unique_name.guard():
            params, _ = make_params(arrays)
            opt = Lamb(rate, parameters=list(params.values()))
            opt.set_state_dict(state)
            assert opt.get_lr() == seen
            take_steps(opt, params, grads[:1])
            state = opt.state_dict()


def test_setting_the_rate():
    arrays, grads = random_run(2)
    params, _ = make_params(arrays, "float64")
    opt = Lamb(0.01, parameters=list(params.values()))
    opt.set_lr(0.02)
    close(take_steps(opt, params, grads), lamb(arrays, grads, lr=0.02))
    opt = Lamb(RATES, parameters=list(params.values()))
    with pytest.raises(RuntimeError, match="follows the schedule.*Received: value=0.1"):
        opt.set_lr(0.1)
    opt.set_lr_scheduler(paddle.optimizer.lr.StepDecay(0.5, step_size=1))
    for _ in range(3):  # past the end of what it had before
        take_steps(opt, params, grads)
    assert opt.get_lr() == 0.5


# ---- weight decay


@pytest.mark.parametrize(
    "decay", [lambda step: 0.1 * (step + 1), lambda step: paddle.to_tensor(0.1 * (step + 1), dtype="float64")]
)
def test_weight_decay_on_a_schedule(decay):
    arrays, grads = random_run(5)
    got = train(arrays, grads, 0.01, weight_decay=decay)
    close(got, lamb(arrays, grads, lr=0.01, weight_decay=lambda name, step: 0.1 * (step + 1)))


def test_weight_decay_from_a_layer_as_mindspore_takes_a_cell():
    class Falling(paddle.nn.Layer):
        def forward(self, step):
            return 0.1 / (step + 1)

    arrays, grads = random_run(3)
    got = train(arrays, grads, 0.01, weight_decay=Falling())
    close(got, lamb(arrays, grads, lr=0.01, weight_decay=lambda name, step: 0.1 / (step + 1)))


NAMES = {"encoder.LayerNorm.gamma": [3], "encoder.LayerNorm.beta": [3], "encoder.dense.weight": [3, 3]}


def undecayed(name, step):
    return 0.0 if "gamma" in name or "beta" in name else 0.3


def test_beta_and_gamma_are_not_decayed_by_structured_name():
    arrays, grads = random_run(4, NAMES)
    params, name_dict = make_params(arrays, "float64")
    opt = Lamb(0.01, parameters=list(params.values()), weight_decay=0.3, name_dict=name_dict)
    close(take_steps(opt, params, grads), lamb(arrays, grads, lr=0.01, weight_decay=undecayed))


def test_beta_and_gamma_are_not_decayed_by_tensor_name():
    arrays, grads = random_run(4, NAMES)
    with paddle.utils.unique_name.guard():
        params = {n: paddle.create_parameter(list(a.shape), "float64", name=n) for n, a in arrays.items()}
    for n, a in arrays.items():
        params[n].set_value(a)
    opt = Lamb(0.01, parameters=list(params.values()), weight_decay=0.3)
    close(take_steps(opt, params, grads), lamb(arrays, grads, lr=0.01, weight_decay=undecayed))


def test_apply_decay_param_fun_takes_the_place_of_the_names():
    arrays, grads = random_run(4, NAMES)
    for chosen in (True, False):
        params, name_dict = make_params(arrays, "float64")
        opt = Lamb(
            0.01,
            parameters=list(params.values()),
            weight_decay=0.3,
            name_dict=name_dict,
            apply_decay_param_fun=lambda tensor_name, chosen=chosen: chosen,
        )
        close(take_steps(opt, params, grads), lamb(arrays, grads, lr=0.01, weight_decay=0.3 * chosen))


def test_with_groups_their_decay_holds_whatever_the_names():
    arrays, grads = random_run(4, NAMES)
    params, name_dict = make_params(arrays, "float64")
    groups = [{"params": [p], "weight_decay": 0.1 * i} for i, p in enumerate(params.values())]
    opt = Lamb(0.01, parameters=groups, weight_decay=0.3, name_dict=name_dict)
    decays = {n: 0.1 * i for i, n in enumerate(arrays)}
    close(take_steps(opt, params, grads), lamb(arrays, grads, lr=0.01, weight_decay=lambda n, step: decays[n]))


def test_paddles_norms_and_biases_are_left_out_by_one_short_argument():
    model = paddle.nn.TransformerEncoderLayer(4, 2, 8)
    opt = Lamb(
        0.01,
        weight_decay=0.3,
        parameters=model.parameters(),
        apply_decay_param_fun=decayed_parameter_names(model).__contains__,
    )
    decayed = {n for n, p in model.named_parameters() if opt.has_weight_decay(p)}
    assert decayed == {n for n, _ in model.named_parameters() if n.endswith("weight") and "norm" not in n}


# ---- groups


def test_groups_with_every_option():
    arrays, grads = random_run(4)
    rates = [0.02, 0.01, 0.03, 0.04]
    scheduler = paddle.optimizer.lr.StepDecay(0.02, step_size=1, gamma=0.5)
    grad_clip = paddle.nn.ClipGradByGlobalNorm(0.5)

    def groups(p):
        return [
            {"params": [p["scalar"]], "lr": 0.05},
            {"params": p["one"], "lr": rates, "weight_decay": 0.2},  # one parameter without a list, as Paddle takes it
            {
                "params": (q for q in [p["vector"]]),
                "lr": lambda step: 0.1 / (step + 1),
                "weight_decay": lambda i: 0.1 * i,
            },
            {"params": [p["row"]], "lr": scheduler},
            {"params": [p["column"]], "learning_rate": 0.5},
            {"params": [p["conv"]], "grad_centralization": True, "lr": 2},
            {"params": [p["matrix"]], "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
            {"params": [p["cube"]], "grad_clip": grad_clip},
        ]

    def rate(name, step):
        own = {
            "scalar": 0.05,
            "one": rates[step],
            "vector": 0.1 / (step + 1),
            "row": 0.02 * 0.5**step,
            "column": 0.5 * RATES[step],
            "conv": 2.0,
        }
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


def test_an_absolute_rate_of_a_group_is_scaled_by_the_layer():
    arrays, grads = random_run(3)
    ratios = {"row": 0.5, "conv": 0.5}
    params, name_dict = make_params(arrays, "float64")
    opt = Lamb(
        0.01,
        parameters=[{"params": list(params.values()), "lr": RATES}],
        set_param_lr_fun=lambda p: ratios.get(name_dict[p.name], 1.0),
    )
    close(take_steps(opt, params, grads), lamb(arrays, grads, lr=lambda n, i: RATES[i], ratios=ratios))
    assert opt.get_lr() == 0.01


@pytest.mark.parametrize("shape, centralized", [([4, 3, 2, 2], 1), ([4, 3, 2, 2, 2], 1), ([4, 3, 2], 0), ([4, 3], 0)])
def test_gradients_of_convolutions_are_centralized(shape, centralized):
    arrays, grads = random_run(3, {"w": shape, "conv": [2, 2, 1, 1], "bias": [4]})
    got = train(arrays, grads, 0.1, groups=lambda p: [{"params": list(p.values()), "grad_centralization": True}])
    close(got, lamb(arrays, grads, lr=0.1, centralized={"w", "conv"} if centralized else {"conv"}))


def test_centralization_without_a_convolution_warns():
    with pytest.warns(UserWarning, match="no effect on a group without a convolution"):
        train(*random_run(1, {"w": [3, 2]}), 0.1, groups=lambda p: [{"params": [p["w"]], "grad_centralization": True}])


@pytest.mark.parametrize("generator", [False, True])
def test_order_params_is_the_order_of_the_updates_and_changes_no_number(generator, monkeypatch):
    arrays, grads = random_run(3)
    order = ["conv", "scalar", "matrix", "row", "vector", "cube", "one", "column"]
    grads = [{n: None if n == "row" and i == 1 else g for n, g in grad.items()} for i, grad in enumerate(grads)]

    def groups(p, ordered):
        listed = list(p.values())
        clip = paddle.nn.ClipGradByGlobalNorm(0.5)  # one norm a group, whatever the order
        groups = [{"params": listed[:4], "lr": 0.02, "grad_clip": clip}, {"params": listed[4:], "weight_decay": 0.1}]
        wanted = [p[n] for n in order]
        return [{"order_params": (q for q in wanted) if generator else wanted}, *groups] if ordered else groups

    updates, rule = [], Lamb.rule
    noting = staticmethod(lambda param, *args, **how: updates.append(param.shape) or rule(param, *args, **how))
    monkeypatch.setattr(Lamb, "rule", noting)
    alone = {"batch_bytes": 0}  # one by one, or those of a shape are updated together
    want = train(arrays, grads, RATES, groups=lambda p: groups(p, False), **alone)
    plain, updates[:] = list(updates), []
    same(train(arrays, grads, RATES, groups=lambda p: groups(p, True), **alone), want)
    shapes = [SHAPES[n] for n in order]
    assert updates == [*shapes, *(s for s in shapes if s != SHAPES["row"]), *shapes] != plain


# ---- bad input


def parameters(kind):
    params, _ = make_params({"a": np.ones(2), "b": np.ones((2, 2))})
    a, b = params.values()
    two = [{"params": [a]}, {"params": [b]}]
    return {
        "plain": [a, b],
        "mixed": [{"params": [a]}, b],
        "a name": ["linear_0.w_0"],
        "no params": [{"lr": 0.1}],
        "both rates": [{"params": [a, b], "lr": 0.1, "learning_rate": 0.1}],
        "unknown key": [{"params": [a, b], "epsilon": 0.1}],
        "negative rate": [{"params": [a, b], "lr": -0.1}],
        "text as rate": [{"params": [a, b], "lr": "0.1"}],
        "2-D rate": [{"params": [a, b], "lr": paddle.ones([2, 2])}],
        "negative decay": [{"params": [a, b], "weight_decay": -1}],
        "text as decay": [{"params": [a, b], "weight_decay": "1"}],
        "centralization": [{"params": [a, b], "grad_centralization": 1}],
        "beta": [{"params": [a, b], "beta1": 1.5}],
        "twice": [{"params": [a, b]}, {"params": [a]}],
        "order with a key": [{"params": [a, b]}, {"order_params": [a, b], "lr": 0.1}],
        "two orders": [*two, {"order_params": [a, b]}, {"order_params": [a, b]}],
        "order is one": [*two, {"order_params": a}],
        "order of names": [*two, {"order_params": ["a", "b"]}],
        "order lacks": [*two, {"order_params": [b]}],
        "order adds": [{"params": [a]}, {"order_params": [a, b]}],
        "order repeats": [*two, {"order_params": [a, b, a]}],
        "order alone": [{"order_params": [a, b]}],
        "one dict": {"params": [a, b]},
        "one parameter": a,
    }[kind]


BAD = [
    # MindSpore's documented TypeErrors
    (TypeError, {"learning_rate": None}, "an LRScheduler or a callable of the step. Received: learning_rate=None"),
    (TypeError, {"learning_rate": "0.1"}, "Received: learning_rate='0.1'"),
    (TypeError, {"learning_rate": True}, "Received: learning_rate=True"),
    (TypeError, {"learning_rate": {0.1}}, "Received: learning_rate="),
    (TypeError, {"learning_rate": [0.1, "0.1"]}, r"Received: learning_rate\[1\]='0.1'"),
    (
        TypeError,
        {"learning_rate": [paddle.ones([2])]},
        r"`params` as in MindSpore, by name. Received: learning_rate=\[",
    ),
    (TypeError, {"learning_rate": lambda step: None}, r"must be a number. Received: learning_rate\(0\)=None"),
    (TypeError, {"beta2": "0.9"}, "`beta2` must be a number. Received: beta2='0.9'"),
    (TypeError, {"weight_decay": "0.1"}, "a number or a callable of the step. Received: weight_decay='0.1'"),
    (TypeError, {"weight_decay": [0.1]}, r"Received: weight_decay=\[0.1\]"),
    (TypeError, {"parameters": "mixed"}, "parameters or parameter groups. Received: both"),
    (TypeError, {"parameters": "a name"}, "must hold parameters. Received: .* of type str"),
    (TypeError, {"parameters": "text as rate"}, "Received: lr='0.1'"),
    (TypeError, {"parameters": "text as decay"}, "Received: weight_decay='1'"),
    (TypeError, {"parameters": "centralization"}, "must be a bool. Received: grad_centralization=1"),
    (TypeError, {"parameters": "order is one"}, "'order_params' must be a list of parameters. Received:"),
    (TypeError, {"parameters": "order of names"}, "must be a list of parameters. Received: order_params="),
    (TypeError, {"parameters": "one dict"}, "must be a list of parameters or of parameter groups. Received: "),
    (TypeError, {"parameters": "one parameter"}, "must be a list of parameters or of parameter groups. Received: "),
    # its ValueErrors
    (ValueError, {"learning_rate": -0.1}, r"in \[0, inf\). Received: learning_rate=-0.1"),
    (ValueError, {"learning_rate": float("nan")}, "Received: learning_rate=nan"),
    (ValueError, {"learning_rate": float("inf")}, "Received: learning_rate=inf"),
    (ValueError, {"learning_rate": []}, r"a value for every step. Received: learning_rate=\[\]"),
    (ValueError, {"learning_rate": [0.1, -0.1]}, r"Received: learning_rate\[1\]=-0.1"),
    (ValueError, {"learning_rate": paddle.ones([2, 2])}, r"one dimension. Received: learning_rate of shape \[2, 2\]"),
    (ValueError, {"learning_rate": np.ones((1, 2))}, r"one dimension. Received: learning_rate of shape \[1, 2\]"),
    (ValueError, {"learning_rate": lambda step: -1.0}, r"Received: learning_rate\(0\)=-1.0"),
    (ValueError, {"beta1": 0.0}, r"`beta1` must be in \(0, 1\). Received: beta1=0.0"),
    (ValueError, {"beta1": 1.0}, r"`beta1` must be in \(0, 1\). Received: beta1=1.0"),
    (ValueError, {"beta2": -0.1}, r"`beta2` must be in \(0, 1\). Received: beta2=-0.1"),
    (ValueError, {"beta2": float("nan")}, r"`beta2` must be in \(0, 1\). Received: beta2=nan"),
    (ValueError, {"eps": 0.0}, r"`eps` must be in \(0, inf\). Received: eps=0.0"),
    (ValueError, {"eps": -1e-6}, r"Received: eps=-1e-06"),
    (ValueError, {"weight_decay": -0.1}, r"in \[0, inf\). Received: weight_decay=-0.1"),
    (ValueError, {"weight_decay": lambda step: -0.1}, r"Received: weight_decay\(0\)=-0.1"),
    (ValueError, {"parameters": "no params"}, "must have 'params'. Received: keys"),
    (ValueError, {"parameters": "both rates"}, "either 'lr', .*Received: lr=0.1, learning_rate=0.1"),
    (ValueError, {"parameters": "unknown key"}, "'grad_centralization'.*'lr'.*Received: epsilon"),
    (ValueError, {"parameters": "negative rate"}, "Received: lr=-0.1"),
    (ValueError, {"parameters": "2-D rate"}, r"Received: lr of shape \[2, 2\]"),
    (ValueError, {"parameters": "negative decay"}, "Received: weight_decay=-1"),
    (ValueError, {"parameters": "beta"}, "Received: beta1=1.5"),
    (ValueError, {"parameters": "twice"}, "in `parameters` twice. Received: "),
    (ValueError, {"parameters": "order with a key"}, r"one dict of its own. Received: keys \['order_params', 'lr'\]"),
    (ValueError, {"parameters": "two orders"}, "one dict of its own. Received: keys"),
    (ValueError, {"parameters": "order lacks"}, "each once. Received: an order that lacks parameters of the groups: "),
    (ValueError, {"parameters": "order adds"}, "Received: an order that lists parameters that are in no group: "),
    (ValueError, {"parameters": "order repeats"}, "Received: an order that lists parameters twice: "),
    (ValueError, {"parameters": "order alone"}, "in no group"),
    (ValueError, {"params": "plain"}, "`params` is another name for `parameters`: give one of them"),
]


@pytest.mark.parametrize("error, arguments, match", BAD, ids=lambda value: re.sub(" at 0x.*?>", ">", str(value))[:60])
def test_bad_arguments(error, arguments, match):
    how = {"learning_rate": 0.1, "parameters": "plain", **arguments}
    how = {key: parameters(value) if key in ("parameters", "params") else value for key, value in how.items()}
    with pytest.raises(error, match=match):
        Lamb(**how)


def test_params_is_another_name_for_parameters():
    arrays, grads = random_run(2)
    params, _ = make_params(arrays, "float64")
    close(take_steps(Lamb(params=list(params.values()), learning_rate=0.1), params, grads), lamb(arrays, grads, lr=0.1))


@pytest.mark.parametrize(
    "arguments", [{"learning_rate": RATES}, {"learning_rate": lambda i: 0.1}, {"weight_decay": lambda i: 0.1}]
)
def test_a_schedule_of_its_own_is_refused_in_a_static_graph(arguments):
    paddle.enable_static()
    try:
        argument = next(iter(arguments))
        with pytest.raises(ValueError, match=f"`{argument}` advances .*LambdaDecay.* Received: {argument}="):
            Lamb(**{"learning_rate": 0.1, **arguments})
    finally:
        paddle.disable_static()


def test_a_schedule_of_its_own_is_refused_when_a_static_graph_comes_later():
    opt = Lamb(RATES, parameters=paddle.nn.Linear(3, 2).parameters())
    paddle.enable_static()
    try:
        main = paddle.static.Program()
        with paddle.static.program_guard(main, paddle.static.Program()):
            linear = paddle.nn.Linear(3, 2)
            loss = linear(paddle.static.data("x", [4, 3])).mean()
            with pytest.raises(ValueError, match="`learning_rate` advances .*LambdaDecay"):
                opt.minimize(loss, parameters=linear.parameters())
        assert not opt._accumulators
    finally:
        paddle.disable_static()


def test_static_program_gives_the_same_trajectory():
    arrays, _ = random_run(1, {"w": [3, 2]})
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    scheduler = paddle.optimizer.lr.LambdaDecay(1.0, lambda i: RATES[min(i, 3)])
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            data = paddle.static.data("x", [4, 3])
            linear = paddle.nn.Linear(3, 2, bias_attr=False)
            loss = linear(data).square().mean()
            Lamb(scheduler, weight_decay=0.1).minimize(loss)
        executor, scope = paddle.static.Executor(), paddle.static.Scope()
        with paddle.static.scope_guard(scope):
            executor.run(startup)
            weight = scope.find_var(linear.weight.name).get_tensor()
            weight.set(arrays["w"].astype("float32"), paddle.CPUPlace())
            for _ in range(4):
                executor.run(main, feed={"x": x}, fetch_list=[loss])
                scheduler.step()
            got = np.array(scope.find_var(linear.weight.name).get_tensor())
    finally:
        paddle.disable_static()
    w = arrays["w"].astype("float32").astype("float64")
    grads, start = [], w
    for _ in range(4):
        grads.append({"w": 2 * x.T @ (x @ w) / 8})
        w = lamb({"w": start}, grads, lr=lambda n, i: RATES[i], weight_decay=0.1)["w"]
    np.testing.assert_allclose(got, w, rtol=2e-5, atol=2e-6)


def test_a_schedule_advances_under_to_static():
    paddle.seed(0)
    linear = paddle.nn.Linear(3, 2)
    opt = Lamb(RATES, parameters=linear.parameters())
    x, start = paddle.rand([4, 3]), {n: p.numpy().copy() for n, p in linear.named_parameters()}

    def train_step(x):
        loss = linear(x).square().mean()
        loss.backward()
        opt.step()
        opt.clear_grad()
        return loss

    results = []
    for step in (train_step, paddle.jit.to_static(train_step)):
        linear.set_state_dict(start)
        opt = Lamb(RATES, parameters=linear.parameters())
        rates = []
        for _ in range(4):
            rates.append(opt.get_lr())
            step(x)
        assert rates == RATES
        results.append({n: p.numpy().copy() for n, p in linear.named_parameters()})
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=1e-5, atol=1e-6)


def test_a_shown_rate_is_the_schedules_times_the_ratio():
    params, _ = make_params({"a": np.ones((2, 2))})
    opt = Lamb([0.1, 0.4], parameters=list(params.values()))
    assert opt.shown_rate(params["a"], 0.5) == (0.05, 0.2)
