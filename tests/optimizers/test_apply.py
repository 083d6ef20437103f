"""`apply_layerwise_decay`: layer-wise decay for any Paddle optimizer."""

import copy
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from optimizer_cases import Net
from paddle.incubate.asp import asp

from paddle_ldopt import AdamWDL, LayerDecay, LayerMap, apply_layerwise_decay
from paddle_ldopt._compat import parameters_of, unwrap
from paddle_ldopt.rates import applied_rates, rates_of_optimizer
from paddle_ldopt.schedules import get_linear_schedule_with_warmup


def net(seed=5):
    paddle.seed(seed)
    model = Net()
    return model, LayerMap.from_model(model)


def sgd(model):
    return paddle.optimizer.SGD(0.05, parameters=model.parameters())


def train(model, optimizer, steps=4):
    for i in range(steps):
        model(paddle.to_tensor([[i % 6, 1, 2]])).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return [p.numpy().copy() for p in model.parameters()]


NAMES = "SGD Momentum Adagrad Adam AdamW Adamax Adadelta RMSProp NAdam RAdam Lamb"
OPTIMIZERS = {**dict.fromkeys(NAMES.split(), {}), "ASGD": {"batch_num": 2}}
OPTIMIZERS.update(dict.fromkeys(["Momentum, multi-tensor", "Adam, multi-tensor"], {"use_multi_tensor": True}))


class OwnUpdate(paddle.optimizer.SGD):
    """An optimizer of the user's own that asks for rates."""

    def _append_optimize_op(self, block, param_and_grad):
        param, grad = pair = param_and_grad["params"] if isinstance(param_and_grad, dict) else param_and_grad
        paddle.assign(param - self._create_param_lr(pair) * grad, param)


@pytest.mark.parametrize("name", [*OPTIMIZERS, "OwnUpdate"])
def test_any_optimizer_gets_the_rates_that_groups_would_give(name):
    cls, how = getattr(paddle.optimizer, name.split(",")[0], OwnUpdate), OPTIMIZERS.get(name, {})
    model, layers = net()
    rule = LayerDecay(0.5, min_ratio=0.2)
    ratios = [rule.ratio(layers.layer_of(n).index, 2) for n in layers.names]
    opt = cls(learning_rate=0.05, parameters=model.parameters(), **how)
    assert apply_layerwise_decay(opt, layers, rule) is opt
    assert type(opt).__name__ == cls.__name__ and isinstance(opt, cls)
    assert applied_rates(opt, 1.0) == {param.name: ratio for param, ratio in zip(model.parameters(), ratios)}
    other, _ = net()  # with Paddle's own per-parameter rates: one group a parameter
    groups = [{"params": [p], "learning_rate": r} for p, r in zip(other.parameters(), ratios)]
    by_hand = train(other, cls(learning_rate=0.05, parameters=groups, **how))
    for got, want in zip(train(model, opt), by_hand):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_applying_twice_or_to_two_optimizers_never_compounds_and_1_undoes_it():
    model, layers = net()
    first = sgd(model)
    second = paddle.optimizer.Adam(0.05, parameters=model.parameters())
    third = paddle.optimizer.Adam(0.05, parameters=model.parameters())
    for opt in (first, first, second):
        apply_layerwise_decay(opt, layers, layerwise_decay=0.5)
    assert first.layerwise_ratio(model.embed.weight) == second.layerwise_ratio(model.embed.weight) == 0.125
    assert {row.ratio for row in layers.table(optimizer=third).rows} == {(1.0, 1.0)}
    assert all(p.optimize_attr["learning_rate"] == 1.0 for p in model.parameters())
    assert copy.copy(first).layerwise_ratio(model.embed.weight) == 0.125
    assert copy.deepcopy(first).layers is layers, "it holds the model's parameters"
    apply_layerwise_decay(first, layers, layerwise_decay=0.8)
    assert first.layerwise_ratio(model.embed.weight) == pytest.approx(0.8**3)
    assert type(first).__doc__ == paddle.optimizer.SGD.__doc__
    assert apply_layerwise_decay(first, layers, 1.0) is first, "a decay of 1 undoes it"
    plain, _ = net()
    for got, want in zip(train(model, first), train(plain, sgd(plain))):
        np.testing.assert_array_equal(got, want)


class Muon(paddle.optimizer.Optimizer):
    """Stands for the class after Paddle 3.3, which asks for no rate."""


class Flat(paddle.optimizer.Adam):
    """Asks for no rate, or for the biases' only."""

    of_biases = False

    def _append_optimize_op(self, block, param_and_grad):
        param, grad = param_and_grad
        if self.of_biases and param.ndim == 1:
            return super()._append_optimize_op(block, param_and_grad)
        return paddle.assign(param - 0.1 * grad.sign(), param)


FLAT = [
    paddle.optimizer.LBFGS,
    paddle.optimizer.Rprop,
    paddle.incubate.optimizer.LBFGS,
    lambda parameters: paddle.incubate.ModelAverage(0.15, parameters=parameters),
    lambda parameters: Muon(0.1, parameters=parameters),
]


@pytest.mark.filterwarnings("ignore:[\\s\\S]*LBFGS:Warning")  # the older of the two is deprecated
@pytest.mark.parametrize("make", FLAT)
def test_an_optimizer_that_asks_for_no_rates_is_refused_and_shown_with_its_own_rate(make):
    model, layers = net()
    for param in model.parameters():  # as a group's "learning_rate" does
        param.optimize_attr["learning_rate"] = 0.5
    opt = make(parameters=model.parameters())
    with pytest.raises(TypeError, match=f"no learning rate per parameter.*Received: optimizer={type(opt).__name__}"):
        apply_layerwise_decay(opt, layers, layerwise_decay=0.8)
    rows = layers.table(optimizer=opt).rows
    assert {(row.ratio, row.learning_rate) for row in rows} == {((1.0, 1.0), (opt.get_lr(), opt.get_lr()))}


@pytest.mark.parametrize("of_biases", [False, True])
def test_an_optimizer_that_does_not_ask_for_all_rates_fails_in_its_first_step_but_not_in_one_that_is_skipped(of_biases):
    model, layers = net()
    opt = apply_layerwise_decay(Flat(0.05, parameters=model.parameters()), layers, 0.5)
    opt.of_biases = of_biases
    with pytest.raises(RuntimeError, match=r"all rates.*Received: optimizer=Flat, no rate asked for \d+ parameters"):
        train(model, opt, 1)
    model, layers = net()
    opt = apply_layerwise_decay(sgd(model), layers, 0.5)
    before = [param.numpy() for param in model.parameters()]
    for overflow in (True, False):
        opt._set_auxiliary_var("found_inf", paddle.to_tensor(overflow))
        same = [np.array_equal(now, then) for now, then in zip(train(model, opt, 1), before)]
        assert all(same) if overflow else not any(same)


@pytest.mark.filterwarnings("ignore:Op `increment` is executed through:DeprecationWarning")  # LookAhead's step
@pytest.mark.parametrize("wrap", [paddle.incubate.LookAhead, asp.OptimizerWithSparsityGuarantee])
def test_wrappers_that_leave_the_parameters_alone_are_looked_through(wrap):
    model, layers = net()
    inner = sgd(model)
    opt = apply_layerwise_decay(wrap(inner), layers, 0.5)
    assert unwrap(opt) is inner and inner.layerwise_ratio(model.embed.weight) == 0.125
    assert [p.name for p in parameters_of(opt)] == [p.name for p in model.parameters()]
    schedule = get_linear_schedule_with_warmup(opt, 0, 10)
    assert schedule.base_lr == 0.05 and inner._learning_rate is schedule
    assert layers.table(optimizer=opt).to_dict() == layers.table(optimizer=inner).to_dict()
    model(paddle.to_tensor([[0, 1, 2]])).square().mean().backward()
    bias, grad = model.head.bias.numpy().copy(), model.head.bias.grad.numpy()
    opt.step()
    np.testing.assert_allclose(model.head.bias.numpy(), bias - 0.05 * grad, rtol=1e-5)


WRAPPED = "before `fleet` or group sharding wraps it. Received: optimizer=SimpleNamespace"


@pytest.mark.parametrize(
    "make, error, match",
    [
        (lambda m: object(), TypeError, "Received: optimizer=object"),
        (lambda m: SimpleNamespace(_inner_opt=sgd(m)), TypeError, WRAPPED),
        (lambda m: AdamWDL(parameters=m.parameters()), ValueError, "a layer-wise decay of its own"),
        (lambda m: sgd(paddle.nn.Linear(2, 2)), ValueError, "from the model that is trained"),
    ],
)
def test_what_cannot_be_decayed(make, error, match):
    model, layers = net()
    opt = make(model)
    cls = type(opt)
    with pytest.raises(error, match=match):
        apply_layerwise_decay(opt, layers, layerwise_decay=0.8)
    assert type(opt) is cls


def test_frozen_layers_need_one_update_per_parameter():
    model = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(4, 2, 8), 2)
    opt = paddle.optimizer.Momentum(0.1, parameters=model.parameters(), use_multi_tensor=True)
    layers = LayerMap.from_model(model, paddle.ones([1, 3, 4]))
    apply_layerwise_decay(opt, layers, LayerDecay(0.5, freeze_below=0.6))
    model(paddle.ones([1, 3, 4])).square().sum().backward()
    with pytest.raises(ValueError, match="Received: use_multi_tensor=True"):
        opt.step()
    opt = paddle.optimizer.Adamax(0.1, parameters=model.parameters())
    apply_layerwise_decay(opt, layers, LayerDecay(0.5, freeze_below=0.3)).step()
    powers = opt._accumulators[opt._beta1_pow_acc_str]
    power_of = {opt.layerwise_ratio(p): round(powers[p.name].item(), 4) for p in model.parameters()}
    assert power_of == {0.0: 0.9, 0.5: 0.81}


L2 = paddle.regularizer.L2Decay
DECAYS = {  # class, its arguments, its group, the parameter's regularizer
    "a penalty": ("Momentum", {"weight_decay": 0.1}, {}, None),
    "none": ("Momentum", {}, {}, None),
    "L2Decay": ("Adam", {"weight_decay": L2(0.1)}, {}, None),
    "Lamb": ("Lamb", {"lamb_weight_decay": 0.1}, {}, None),
    "Lamb excludes it": ("Lamb", {"lamb_weight_decay": 0.1, "exclude_from_weight_decay_fn": lambda p: True}, {}, None),
    "0": ("AdamW", {"weight_decay": 0.0}, {}, None),
    "none of the parameter": ("Momentum", {"weight_decay": 0.1}, {}, L2(0.0)),
    "none of a group": ("Momentum", {"weight_decay": 0.1}, {"weight_decay": 0.0}, None),
    "of a group alone": ("Momentum", {}, {"weight_decay": 0.1}, None),
    "none of a Lamb's group": ("Lamb", {}, {"lamb_weight_decay": 0.0}, None),
    "another key": ("Lamb", {}, {"weight_decay": 0.0}, None),
    "a penalty beside": ("AdamW", {"weight_decay": 0.0}, {}, L2(0.5)),
    "plain": ("AdamW", {"weight_decay": 0.1}, {}, None),
    "not decayed": ("AdamW", {"weight_decay": 0.1, "apply_decay_param_fun": lambda name: False}, {}, None),
}


@pytest.mark.parametrize("name, arguments, group, regularizer", DECAYS.values(), ids=DECAYS)
def test_the_table_tells_whether_paddle_decays_a_weight(name, arguments, group, regularizer):
    linear = paddle.nn.Linear(2, 2, weight_attr=paddle.ParamAttr(regularizer=regularizer), bias_attr=False)
    params = linear.parameters()
    given = [{"params": params, **group}] if group else params
    opt = getattr(paddle.optimizer, name)(0.1, parameters=given, **arguments)
    before = linear.weight.numpy()
    linear(paddle.zeros([1, 2])).sum().backward()
    said = rates_of_optimizer(opt)[linear.weight.name].has_weight_decay
    opt.step()
    assert said == bool((linear.weight.numpy() != before).any())
