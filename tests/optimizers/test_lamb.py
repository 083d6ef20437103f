"""Lamb: against Algorithm 2 in float64 NumPy, what MindSpore documents, its own schedules."""

import numpy as np
import paddle
import pytest
from optimizer_cases import near, same, static_graph
from reference import make_params, random_run, take_steps
from reference_optimizers import lamb

from paddle_ldopt.optimizers.lamb import Lamb

RATES = [0.01, 0.03, 0.005, 0.02]


def train(arrays, grads, rate, dtype="float64", after_step=None, groups=None, **how):
    """Train new parameters; `groups` makes groups out of the parameters by name."""
    params, _ = make_params(arrays, dtype)
    opt = Lamb(rate, parameters=groups(params) if groups else list(params.values()), **how)
    return {n: a.copy() for n, a in take_steps(opt, params, grads, after_step).items()}


def close(got, want, dtype="float64"):
    rtol, atol = (1e-10, 1e-12) if dtype == "float64" else (2e-5, 2e-6)
    near(got, want, rtol, atol)


OPTIONS = [{}, {"weight_decay": 0.1}, {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.02}]
OPTIONS.append({"beta1": 0.01, "beta2": 0.9999})


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_matches_the_float64_reference(dtype, options):
    arrays, grads = random_run()
    close(train(arrays, grads, 0.01, dtype, **options), lamb(arrays, grads, lr=0.01, **options), dtype)


@pytest.mark.parametrize("fused", [None, False])
def test_weights_of_zero_take_a_whole_step(fused):
    got = train({"w": np.zeros([2, 3])}, [{"w": np.full([2, 3], 0.5)}], 0.1, "float32", fused=fused)
    close(got, {"w": np.full([2, 3], -0.1)}, "float32")


NAMES = {"encoder.LayerNorm.gamma": [3], "encoder.LayerNorm.beta": [3], "encoder.dense.weight": [3, 3]}


def undecayed(name, step):
    return 0.0 if "gamma" in name or "beta" in name else 0.3


CHOSEN = {
    "name_dict": undecayed,
    "tensor names": undecayed,
    "all": 0.3,
    "none": 0.0,
    "groups": lambda name, step: 0.1 * list(NAMES).index(name),
}


@pytest.mark.parametrize(("chosen", "decay"), CHOSEN.items(), ids=CHOSEN)
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
        how["apply_decay_param_fun"] = lambda tensor_name: chosen == "all"
    opt = Lamb(0.01, parameters=given, weight_decay=0.3, **how)
    close(take_steps(opt, params, grads), lamb(arrays, grads, lr=0.01, weight_decay=decay))


def test_groups_with_every_option():
    arrays, grads = random_run(4)
    rates = [0.02, 0.01, 0.03, 0.04]
    scheduler = paddle.optimizer.lr.StepDecay(0.02, step_size=1, gamma=0.5)
    grad_clip = paddle.nn.ClipGradByGlobalNorm(0.5)

    def groups(p):
        return [
            {"params": [p["0-D"]], "lr": 0.05},
            {"params": p["one"], "lr": rates, "weight_decay": 0.2},  # one parameter without a list, as Paddle takes it
            {"params": (q for q in [p["vector"]]), "lr": lambda i: 0.1 / (i + 1), "weight_decay": lambda i: 0.1 * i},
            {"params": [p["row"]], "lr": scheduler},
            {"params": [p["column"]], "learning_rate": 0.5},
            {"params": [p["4-D"]], "grad_centralization": True, "lr": 2},
            {"params": [p["matrix"]], "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
            {"params": [p["3-D"]], "grad_clip": grad_clip},
        ]

    def rate(name, step):
        own = {"0-D": 0.05, "one": rates[step], "vector": 0.1 / (step + 1), "row": 0.02 * 0.5**step, "4-D": 2.0}
        own["column"] = 0.5 * RATES[step]
        return own.get(name, RATES[step])

    def decay(name, step):
        return {"one": 0.2, "vector": 0.1 * step}.get(name, 0.01)

    got = train(arrays, grads, RATES, groups=groups, weight_decay=0.01, after_step=scheduler.step)
    norms = [np.sqrt((g["3-D"] ** 2).sum()) for g in grads]
    grads = [{**g, "3-D": g["3-D"] * min(1, 0.5 / norm)} for g, norm in zip(grads, norms)]
    want = lamb(arrays, grads, lr=rate, weight_decay=decay, centralized={"4-D"})
    own = {"matrix": arrays["matrix"]}, [{"matrix": g["matrix"]} for g in grads]
    want.update(lamb(*own, lr=rate, weight_decay=decay, beta1=0.5, beta2=0.9, eps=1e-3))
    close(got, want)


@pytest.mark.parametrize("shape, centralized", [([4, 3, 2, 2], 1), ([4, 3, 2, 2, 2], 1), ([4, 3, 2], 0), ([4, 3], 0)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])  # Paddle's operations, the C library
def test_gradients_of_convolutions_are_centralized(shape, centralized, dtype):
    arrays, grads = random_run(3, {"w": shape, "conv": [2, 2, 1, 1], "bias": [4]})
    groups = {"groups": lambda p: [{"params": list(p.values()), "grad_centralization": True}]}
    got = train(arrays, grads, 0.1, dtype, **groups)
    want = {"w", "conv"} if centralized else {"conv"}
    close(got, lamb(arrays, grads, lr=0.1, centralized=want), dtype)
    for some in (["w"], ["conv", "bias"]):  # a group does not set the centralization of another
        groups = lambda p, some=some: [{"params": [p[n]], "grad_centralization": n in some} for n in p]  # noqa: E731
        got = train(arrays, grads, 0.1, dtype, groups=groups)
        close(got, lamb(arrays, grads, lr=0.1, centralized=set(some) & want), dtype)


# Rates and weight decays that are functions of its own steps

SCHEDULES = {
    "list": lambda: list(RATES),
    "generator": lambda: (rate for rate in RATES),
    "NumPy array": lambda: np.array(RATES),
    "1-D Tensor": lambda: paddle.to_tensor(RATES, dtype="float64"),
    "callable": lambda: lambda step: RATES[step],
    "callable that gives a Tensor": lambda: lambda step: paddle.to_tensor([RATES[step]], dtype="float64"),
}


def built(steps, rate=RATES, dtype="float64", **how):
    """Return (optimizer, its parameters by name, gradients of some steps)."""
    arrays, grads = random_run(steps)
    params, _ = make_params(arrays, dtype)
    return Lamb(rate, parameters=list(params.values()), **how), params, grads


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_schedules_advance_with_the_steps(make):
    (arrays, _), (opt, params, grads), seen = random_run(4), built(4, make(), weight_decay=0.1), []
    for grad in grads:
        seen.append(opt.get_lr())
        assert opt.get_lr() == seen[-1], "asking does not advance it"
        got = take_steps(opt, params, [grad])
    assert seen == RATES
    close(got, lamb(arrays, grads, lr=lambda name, step: RATES[step], weight_decay=0.1))


@pytest.mark.parametrize("grouped", [False, True])
def test_a_schedule_that_runs_out_raises_before_anything_changes(grouped):
    opt, params, grads = built(3, [0.1, 0.2], "float32")
    if grouped:  # the last group's own schedule is the one that runs out
        *others, last = params.values()
        opt = Lamb(0.01, parameters=[{"params": others}, {"params": [last], "lr": [0.1, 0.2]}])
    take_steps(opt, params, grads[:2])
    before = {n: p.numpy().copy() for n, p in params.items()}
    state = {k: v.numpy().copy() for k, v in opt.state_dict().items()}
    for _ in range(2):
        with pytest.raises(ValueError, match=r"run out: it has 2 values, and this is step 3\. .*Received: (lr|lea)"):
            take_steps(opt, params, grads[2:])
    same({n: p.numpy() for n, p in params.items()}, before)
    same({k: v.numpy() for k, v in opt.state_dict().items()}, state)
    assert opt.get_lr() == (0.01 if grouped else 0.2), "for the log of the last step"


def test_a_callable_that_goes_bad_in_mid_run_changes_nothing():
    for bad, error in ((float("nan"), ValueError), (-0.1, ValueError), ("0.1", TypeError), (None, TypeError)):
        decays = iter([0.1, 0.1, bad])  # at construction, in the first step, in the second
        opt, params, grads = built(2, [0.1, 0.2], "float32", weight_decay=lambda step, d=decays: next(d))
        take_steps(opt, params, grads[:1])
        before = {n: p.numpy().copy() for n, p in params.items()}
        with pytest.raises(error, match=r"`weight_decay\(1\)` must be .*Received: weight_decay\(1\)="):
            take_steps(opt, params, grads[1:])
        same({n: p.numpy() for n, p in params.items()}, before)
        assert opt.get_lr() == 0.2


def test_steps_that_do_not_count():
    opt, params, grads = built(4)
    take_steps(opt, params, grads[:1])
    opt._set_auxiliary_var("found_inf", paddle.to_tensor([True]))
    take_steps(opt, params, grads[1:2])
    opt._set_auxiliary_var("found_inf", paddle.to_tensor([False]))
    assert opt.get_lr() == RATES[1]
    take_steps(opt, params, [dict.fromkeys(params)])
    assert opt.get_lr() == RATES[1]
    got = take_steps(opt, params, grads[2:])
    close(got, lamb(random_run(4)[0], [grads[0], *grads[2:]], lr=lambda name, step: RATES[step]))


def test_the_optimizers_steps_are_counted_even_if_no_parameter_has_them_all():
    arrays, grads = random_run(4, {"a": [3], "b": [2]})
    grads = [{n: g if (n == "a") == (i < 2) else None for n, g in grad.items()} for i, grad in enumerate(grads)]
    close(train(arrays, grads, RATES), lamb(arrays, grads, lr=lambda name, step: RATES[step]))
    params, _ = make_params(arrays)
    first, second = (Lamb(RATES, parameters=list(params.values())) for _ in range(2))
    take_steps(first, params, grads[:3])
    second.set_state_dict(first.state_dict())
    assert second.get_lr() == RATES[3]


def test_the_count_is_not_that_of_the_optimizer_the_state_came_from():
    with paddle.utils.unique_name.guard():
        first, params, grads = built(3)
        take_steps(first, params, grads[:1])
    with paddle.utils.unique_name.guard():
        second, *_ = built(3)
    second.set_state_dict(first.state_dict())
    take_steps(first, params, grads[1:])
    assert (first.get_lr(), second.get_lr()) == (RATES[3], RATES[1])


def test_setting_the_rate():
    opt, params, grads = built(2)
    with pytest.raises(RuntimeError, match="sets its rate itself.*Received: value=0.1"):
        opt.set_lr(0.1)
    opt.set_lr_scheduler(paddle.optimizer.lr.StepDecay(0.5, step_size=1))
    for _ in range(3):  # past the end of what it had before
        take_steps(opt, params, grads)
    assert opt.get_lr() == 0.5


def test_a_step_of_paddles_loop_that_failed_leaves_no_count(monkeypatch):
    monkeypatch.setattr("paddle_ldopt.optimizers.step.in_auto_dp_mode", lambda: True)
    param = paddle.create_parameter([2], "float32")
    param.grad, opt = paddle.ones([2]), Lamb([0.1], parameters=[param])
    opt.step()
    with pytest.raises(ValueError, match="has run out"):
        opt.step()
    opt.forget_state()
    opt.step()
    assert opt.steps_taken() == 1


@pytest.mark.parametrize("kind", [float, lambda decay: paddle.to_tensor(decay, dtype="float64"), None])
def test_weight_decay_on_a_schedule(kind):
    arrays, grads = random_run(5)
    decay = lambda step: (kind or float)(0.1 * (step + 1))  # noqa: E731
    if kind is None:  # from a layer, as MindSpore takes a Cell
        layer = paddle.nn.Layer()
        layer.forward, decay = decay, layer
    got = train(arrays, grads, 0.01, weight_decay=decay)
    close(got, lamb(arrays, grads, lr=0.01, weight_decay=lambda name, step: 0.1 * (step + 1)))


def test_a_schedule_of_its_own_is_refused_in_a_static_graph_also_if_that_comes_later():
    opt = Lamb(RATES, parameters=paddle.nn.Linear(3, 2).parameters())
    with static_graph():
        for option, value in (
            ("learning_rate", RATES),
            ("learning_rate", lambda i: 0.1),
            ("weight_decay", lambda i: 0.1),
        ):
            with pytest.raises(ValueError, match=f"`{option}` advances .*LambdaDecay.* Received: {option}="):
                Lamb(**{"learning_rate": 0.1, option: value})
        linear = paddle.nn.Linear(3, 2)
        loss = linear(paddle.static.data("x", [4, 3])).mean()
        with pytest.raises(ValueError, match="`learning_rate` advances .*LambdaDecay"):
            opt.minimize(loss, parameters=linear.parameters())
        assert not opt._accumulators
