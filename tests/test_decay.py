"""LayerDecay's conventions against the peers' own numbers, and layer-wise decay for any Paddle optimizer."""

import copy
import pickle

import numpy as np
import paddle
import pytest

from paddle_ldopt import AdamWDL, LayerDecay, LayerMap, apply_layerwise_decay, reset_layerwise_decay

# layer ids 0 .. 5 of four blocks at decay 0.5, from the sources themselves
CONVENTIONS = {
    # paddlenlp.ops.optimizer.layerwise_lr_decay: d^(n-i) for block i, d^(n+1), 1;
    # BEiT, optim_factory.py: LayerDecayValueAssigner(d ** (n + 1 - id) for id in range(n + 2))
    "paddlenlp": [0.5**5, 0.5**4, 0.5**3, 0.5**2, 0.5, 1.0],
    # electra, model/optimization.py, _get_layer_lrs: depth 0 for embeddings, i + 1, n + 2 for the head; d^(n+2-depth)
    "electra": [0.5**6, 0.5**5, 0.5**4, 0.5**3, 0.5**2, 1.0],
    # xlnet, model_utils.py: d^(n-1-l) for layer l, every other variable untouched
    "xlnet": [1.0, 0.5**3, 0.5**2, 0.5, 1.0, 1.0],
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_conventions(convention):
    rule = LayerDecay(0.5, convention)
    assert [rule.ratio(i, 4) for i in range(6)] == CONVENTIONS[convention]


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_decay_1_is_uniform(convention):
    assert {LayerDecay(1, convention).ratio(i, 4) for i in range(6)} == {1.0}


def test_floor_head_and_freezing():
    assert [LayerDecay(0.5, min_ratio=0.2).ratio(i, 4) for i in range(6)] == [0.2, 0.2, 0.2, 0.25, 0.5, 1.0]
    assert [LayerDecay(0.5, min_ratio=1).ratio(i, 4) for i in range(6)] == [1.0] * 6
    assert [LayerDecay(0.5, head_ratio=3).ratio(i, 2) for i in range(4)] == [0.125, 0.25, 0.5, 3.0]
    assert [LayerDecay(0.5, freeze_below=0.25).ratio(i, 2) for i in range(4)] == [0.0, 0.25, 0.5, 1.0]
    assert [LayerDecay(0.5, min_ratio=0.2, freeze_below=0.3).ratio(i, 2) for i in range(4)] == [0.0, 0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ({"layerwise_decay": 0.0}, ValueError, "Received: layerwise_decay=0.0"),
        ({"layerwise_decay": -0.1}, ValueError, "Received: layerwise_decay=-0.1"),
        ({"layerwise_decay": 1.01}, ValueError, "Received: layerwise_decay=1.01"),
        ({"layerwise_decay": None}, TypeError, "Received: layerwise_decay=None"),
        ({"convention": "beit2"}, ValueError, "'paddlenlp', 'electra', 'xlnet'. Received: convention='beit2'"),
        ({"convention": ["xlnet"]}, ValueError, "Received: convention="),
        ({"min_ratio": -0.1}, ValueError, "Received: min_ratio=-0.1"),
        ({"min_ratio": 1.1}, ValueError, r"must be in \[0, 1\]. Received: min_ratio=1.1"),
        ({"min_ratio": "0"}, TypeError, "Received: min_ratio='0'"),
        ({"head_ratio": 0}, ValueError, r"must be in \(0, inf\). Received: head_ratio=0"),
        ({"head_ratio": float("inf")}, ValueError, "Received: head_ratio=inf"),
        ({"freeze_below": 2}, ValueError, "Received: freeze_below=2"),
        ({"freeze_below": float("nan")}, ValueError, "Received: freeze_below=nan"),
    ],
)
def test_bad_values(arguments, error, match):
    with pytest.raises(error, match=match):
        LayerDecay(**{"layerwise_decay": 0.8, **arguments})


# ---- any Paddle optimizer


class Net(paddle.nn.Layer):
    """An embedding, two blocks, a head."""

    def __init__(self):
        super().__init__()
        self.embed = paddle.nn.Embedding(6, 4)
        self.blocks = paddle.nn.LayerList([paddle.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0) for _ in range(2)])
        self.head = paddle.nn.Linear(4, 3)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net(seed=5):
    paddle.seed(seed)
    model = Net()
    return model, LayerMap.from_model(model)


def train(model, optimizer, steps=4):
    for i in range(steps):
        model(paddle.to_tensor([[i % 6, 1, 2]])).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return [p.numpy().copy() for p in model.parameters()]


def with_rates_set_by_hand(cls, ratios, **how):
    """Train with Paddle's own per-parameter rates: one group a parameter."""
    model, _ = net()
    groups = [{"params": [p], "learning_rate": r} for p, r in zip(model.parameters(), ratios)]
    return train(model, cls(learning_rate=0.05, parameters=groups, **how))


OPTIMIZERS = {
    "SGD": {},
    "Momentum": {},
    "Momentum, multi-tensor": {"use_multi_tensor": True},
    "Adagrad": {},
    "Adam": {},
    "Adam, multi-tensor": {"use_multi_tensor": True},
    "AdamW": {},
    "Adamax": {},
    "Adadelta": {},
    "RMSProp": {},
    "NAdam": {},
    "RAdam": {},
    "ASGD": {"batch_num": 2},
    "Lamb": {},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_gets_the_rates_that_groups_would_give(name):
    cls, how = getattr(paddle.optimizer, name.split(",")[0]), OPTIMIZERS[name]
    model, layers = net()
    rule = LayerDecay(0.5, min_ratio=0.2)
    ratios = [rule.ratio(layers.layer_of(n).index, 2) for n in layers.names]
    opt = cls(learning_rate=0.05, parameters=model.parameters(), **how)
    assert apply_layerwise_decay(opt, layers, rule) is opt
    assert type(opt).__name__ == cls.__name__ and isinstance(opt, cls)
    for got, want in zip(train(model, opt), with_rates_set_by_hand(cls, ratios, **how)):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_applying_twice_or_to_two_optimizers_never_compounds():
    model, layers = net()
    first = paddle.optimizer.SGD(0.05, parameters=model.parameters())
    second = paddle.optimizer.Adam(0.05, parameters=model.parameters())
    third = paddle.optimizer.Adam(0.05, parameters=model.parameters())
    for opt in (first, first, second):
        apply_layerwise_decay(opt, layers, layerwise_decay=0.5)
    assert first.layerwise_ratio(model.embed.weight) == second.layerwise_ratio(model.embed.weight) == 0.125
    assert {row.ratio for row in layers.table(optimizer=third).rows} == {(1.0, 1.0)}
    assert all(p.optimize_attr["learning_rate"] == 1.0 for p in model.parameters())
    apply_layerwise_decay(first, layers, layerwise_decay=0.8)
    assert first.layerwise_ratio(model.embed.weight) == pytest.approx(0.8**3)


def test_reset_undoes_it():
    model, layers = net()
    opt = apply_layerwise_decay(paddle.optimizer.Momentum(0.05, parameters=model.parameters()), layers, 0.5)
    assert type(opt).__doc__ == paddle.optimizer.Momentum.__doc__
    assert reset_layerwise_decay(opt) is opt and type(opt) is paddle.optimizer.Momentum
    want, _ = net()
    for got, expected in zip(
        train(model, opt), train(want, paddle.optimizer.Momentum(0.05, parameters=want.parameters()))
    ):
        np.testing.assert_array_equal(got, expected)
    assert reset_layerwise_decay(opt) is opt, "an optimizer without layer-wise decay is left alone"


def test_a_copied_optimizer_keeps_the_decay():
    model, layers = net()
    opt = apply_layerwise_decay(paddle.optimizer.SGD(0.05, parameters=model.parameters()), layers, 0.5)
    assert copy.copy(opt).layerwise_ratio(model.embed.weight) == 0.125


def test_with_a_schedule_and_state():
    model, layers = net()
    schedule = paddle.optimizer.lr.ExponentialDecay(0.05, 0.5)
    opt = apply_layerwise_decay(paddle.optimizer.Adam(schedule, parameters=model.parameters()), layers, 0.5)
    train(model, opt, 1)
    schedule.step()
    rows = {r.label: r for r in layers.table(optimizer=opt).rows}
    assert rows["embeddings"].learning_rate[0] == pytest.approx(0.025 * 0.125)
    assert any("moment1" in key for key in opt.state_dict())


@pytest.mark.parametrize(
    "make, error, match",
    [
        (lambda m: paddle.optimizer.LBFGS(parameters=m.parameters()), TypeError, "Received: optimizer=LBFGS"),
        (lambda m: paddle.optimizer.Rprop(parameters=m.parameters()), TypeError, "Received: optimizer=Rprop"),
        (lambda m: object(), TypeError, "Received: optimizer=object"),
        (lambda m: AdamWDL(parameters=m.parameters()), ValueError, "a layer-wise decay of its own"),
        (
            lambda m: paddle.optimizer.SGD(parameters=paddle.nn.Linear(2, 2).parameters()),
            ValueError,
            "from the model that is trained",
        ),
    ],
)
def test_what_cannot_be_decayed(make, error, match):
    model, layers = net()
    opt = make(model)
    cls = type(opt)
    with pytest.raises(error, match=match):
        apply_layerwise_decay(opt, layers, layerwise_decay=0.8)
    assert type(opt) is cls


def test_apply_needs_a_layer_map_and_a_decay():
    model, layers = net()
    opt = paddle.optimizer.SGD(parameters=model.parameters())
    with pytest.raises(TypeError, match="`layers` must be a LayerMap. Received: layers=dict"):
        apply_layerwise_decay(opt, {}, layerwise_decay=0.8)
    with pytest.raises(ValueError, match="Received: layerwise_decay=0"):
        apply_layerwise_decay(opt, layers, layerwise_decay=0)
    assert type(opt) is paddle.optimizer.SGD


def test_rules_are_picklable():
    rule = LayerDecay(0.7, "electra", 0.1, 2.0, 0.05)
    assert pickle.loads(pickle.dumps(rule)) == rule
