"""Rates and weight decays of Lamb that are functions of its own steps."""

import numpy as np
import paddle
import pytest
from lamb_cases import RATES, close, random_run, train
from optimizer_cases import same, static_graph
from reference import make_params, take_steps
from reference_lamb import lamb

from paddle_ldopt import Lamb

SCHEDULES = {
    "list": lambda: list(RATES),
    "generator": lambda: (rate for rate in RATES),
    "NumPy array": lambda: np.array(RATES),
    "1-D Tensor": lambda: paddle.to_tensor(RATES, dtype="float64"),
    "callable": lambda: lambda step: RATES[step],
    "callable that gives a Tensor": lambda: lambda step: paddle.to_tensor([RATES[step]], dtype="float64"),
}


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
        with pytest.raises(ValueError, match=r"run out: it has 2 values, and this is step 3\. .*Received: (lr|lea)"):
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
    opt = Lamb(RATES, parameters=list(params.values()))
    with pytest.raises(RuntimeError, match="sets its rate itself.*Received: value=0.1"):
        opt.set_lr(0.1)
    opt.set_lr_scheduler(paddle.optimizer.lr.StepDecay(0.5, step_size=1))
    for _ in range(3):  # past the end of what it had before
        take_steps(opt, params, grads)
    assert opt.get_lr() == 0.5


class Rising(paddle.nn.Layer):
    """A weight decay from a layer, as MindSpore takes a Cell."""

    def forward(self, step):
        return 0.1 * (step + 1)


@pytest.mark.parametrize("kind", [float, lambda decay: paddle.to_tensor(decay, dtype="float64"), None])
def test_weight_decay_on_a_schedule(kind):
    arrays, grads = random_run(5)
    decay = Rising() if kind is None else lambda step: kind(0.1 * (step + 1))
    got = train(arrays, grads, 0.01, weight_decay=decay)
    close(got, lamb(arrays, grads, lr=0.01, weight_decay=lambda name, step: 0.1 * (step + 1)))


@pytest.mark.parametrize(
    "arguments", [{"learning_rate": RATES}, {"learning_rate": lambda i: 0.1}, {"weight_decay": lambda i: 0.1}]
)
def test_a_schedule_of_its_own_is_refused_in_a_static_graph(arguments):
    says = "`{0}` advances .*LambdaDecay.* Received: {0}=".format(*arguments)
    with static_graph(), pytest.raises(ValueError, match=says):
        Lamb(**{"learning_rate": 0.1, **arguments})


def test_a_schedule_of_its_own_is_refused_when_a_static_graph_comes_later():
    opt = Lamb(RATES, parameters=paddle.nn.Linear(3, 2).parameters())
    with static_graph():
        linear = paddle.nn.Linear(3, 2)
        loss = linear(paddle.static.data("x", [4, 3])).mean()
        with pytest.raises(ValueError, match="`learning_rate` advances .*LambdaDecay"):
            opt.minimize(loss, parameters=linear.parameters())
        assert not opt._accumulators


@pytest.mark.slow
def test_a_schedule_advances_under_to_static():
    paddle.seed(0)
    linear = paddle.nn.Linear(3, 2)
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
