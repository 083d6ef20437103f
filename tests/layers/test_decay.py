"""LayerDecay: its conventions against the peers' own numbers, its limits, and options that have no effect."""

import pickle

import pytest

from paddle_ldopt import LayerDecay

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


def test_decay_1_is_uniform():
    assert [LayerDecay(1, head_ratio=2).ratio(i, 4) for i in range(6)] == [1.0] * 5 + [2.0]
    assert LayerDecay() == LayerDecay(1)


def test_floor_head_and_freezing():
    assert [LayerDecay(0.5, min_ratio=0.2).ratio(i, 4) for i in range(6)] == [0.2, 0.2, 0.2, 0.25, 0.5, 1.0]
    assert [LayerDecay(0.5, min_ratio=1).ratio(i, 4) for i in range(6)] == [1.0] * 6
    assert [LayerDecay(0.5, head_ratio=3).ratio(i, 2) for i in range(4)] == [0.125, 0.25, 0.5, 3.0]
    assert [LayerDecay(0.5, freeze_below=0.25).ratio(i, 2) for i in range(4)] == [0.0, 0.25, 0.5, 1.0]


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
        (
            {"layerwise_decay": 1, "convention": "xlnet"},
            ValueError,
            "`convention` has no effect while `layerwise_decay`",
        ),
        ({"layerwise_decay": 1, "min_ratio": 0.1}, ValueError, "Received: min_ratio=0.1"),
        ({"layerwise_decay": 1, "freeze_below": 0.1}, ValueError, "Received: freeze_below=0.1"),
        ({"min_ratio": 0.2, "freeze_below": 0.3}, ValueError, "exclude each other: .*min_ratio=0.2, freeze_below=0.3"),
    ],
)
def test_bad_values(arguments, error, match):
    with pytest.raises(error, match=match):
        LayerDecay(**{"layerwise_decay": 0.8, **arguments})


def test_rules_are_picklable():
    rule = LayerDecay(0.7, "electra", 0.1, 2.0)
    assert pickle.loads(pickle.dumps(rule)) == rule
