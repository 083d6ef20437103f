"""LayerDecay: its conventions against the peers' own numbers, and its limits."""

import json
import pickle
import re

import pytest

from paddle_ldopt import LayerDecay
from paddle_ldopt.layers.decay import OPTIONS

# layer ids 0 .. 5 of four blocks at decay 0.5, from the sources themselves
CONVENTIONS = {
    # paddlenlp.ops.optimizer.layerwise_lr_decay: d^(n-i) for block i, d^(n+1), 1;
    # BEiT, optim_factory.py: LayerDecayValueAssigner(d ** (n + 1 - id) for id in range(n + 2))
    "paddlenlp": [0.5**5, 0.5**4, 0.5**3, 0.5**2, 0.5, 1.0],
    # electra, model/optimization.py, _get_layer_lrs: depth 0 for embeddings, i + 1, n + 2 for the head; d^(n+2-depth)
    "electra": [0.5**6, 0.5**5, 0.5**4, 0.5**3, 0.5**2, 1.0],
    # xlnet, model_utils.py: d^(n-1-l) for layer l, every other variable untouched
    "xlnet": [1.0, 0.5**3, 0.5**2, 0.5, 1.0, 1.0],
    # ERNIEKit, vl_sft/pretraining_trainer.py, vit_lr_ratio: d^(n-1-l) for block l, all before the blocks as block 0
    "ernie_vl": [0.5**3, 0.5**3, 0.5**2, 0.5, 1.0, 1.0],
    # ERNIEKit, erniekit/train/dpo/trainer.py: depth 0 for embeddings, i for block i, n + 2 for norm and head
    "linear": [0.5, 0.5, *(0.5 + i / 6 * (1 - 0.5) for i in (1, 2, 3)), 1.0],
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_conventions(convention):
    options = {"bound": 0.5} if convention == "linear" else {"layerwise_decay": 0.5}
    decay = LayerDecay(convention=convention, **options)
    assert [decay.ratio(i, 4) for i in range(6)] == CONVENTIONS[convention]


def test_floor_head_and_freezing():
    assert [LayerDecay(1, head_ratio=2).ratio(i, 4) for i in range(6)] == [1.0] * 5 + [2.0]
    assert LayerDecay() == LayerDecay(1)
    assert [LayerDecay(0.5, min_ratio=0.2).ratio(i, 4) for i in range(6)] == [0.2, 0.2, 0.2, 0.25, 0.5, 1.0]
    assert [LayerDecay(0.5, min_ratio=1).ratio(i, 4) for i in range(6)] == [1.0] * 6
    assert [LayerDecay(0.5, head_ratio=3).ratio(i, 2) for i in range(4)] == [0.125, 0.25, 0.5, 3.0]
    assert [LayerDecay(0.5, freeze_below=0.25).ratio(i, 2) for i in range(4)] == [0.0, 0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ({"layerwise_decay": 0.0}, ValueError, "Received: layerwise_decay=0.0"),
        ({"convention": "beit2"}, ValueError, "'paddlenlp', .*'linear'. Received: convention='beit2'"),
        ({"min_ratio": 1.1}, ValueError, r"must be in \[0, 1\]. Received: min_ratio=1.1"),
        ({"head_ratio": 0}, ValueError, r"must be in \(0, inf\). Received: head_ratio=0"),
        ({"freeze_below": float("nan")}, ValueError, "Received: freeze_below=nan"),
        ({"convention": "linear", "bound": 0.5}, ValueError, "instead of `layerwise_decay`.*layerwise_decay=0.8"),
        ({"layerwise_decay": 1, "convention": "linear"}, ValueError, "takes `bound` below 1.*convention='linear'"),
        ({"bound": 0.5}, ValueError, "no other takes it. Received: .*convention='paddlenlp', bound=0.5"),
        ({"preserve_mean": 1}, TypeError, "must be a bool. Received: preserve_mean=1"),
        ({"towers": [0.5]}, TypeError, "`towers` must be a dict from the names of towers to decays"),
        ({"towers": {"left": 2.0}}, ValueError, "decay of the tower 'left': .*Received: layerwise_decay=2.0"),
        ({"towers": {"v": {"decay": 0.5}}}, TypeError, "decay of the tower 'v': .*unexpected keyword argument 'decay'"),
        ({"towers": {"v": LayerDecay(0.5, preserve_mean=True)}}, ValueError, "is an option of the whole model"),
        ({"multipliers": ["crf"]}, TypeError, "must be a dict from regular expressions to factors"),
        ({"multipliers": {"(": 2}}, ValueError, "must be regular expressions .*Received: pattern='\\('"),
        ({"multipliers": {"crf": -1}}, ValueError, r"Received: multipliers\['crf'\]=-1"),
    ],
)
def test_bad_values(arguments, error, match):
    with pytest.raises(error, match=match):
        LayerDecay(**{"layerwise_decay": 0.8, **arguments})


def test_decays_are_picklable_hashable_and_held_by_json():
    tower = LayerDecay(0.6, scale=0.1)
    whole = LayerDecay(0.7, "electra", 0.1, 2.0, towers={"v": tower, "t": 0.5}, multipliers={"crf": 10})
    for decay in (LayerDecay(0.7, "electra", 0.1, 2.0), whole):
        assert pickle.loads(pickle.dumps(decay)) == decay and len({decay, LayerDecay(**decay.to_dict())}) == 1
        assert LayerDecay(**json.loads(json.dumps(decay.to_dict()))) == decay
    assert whole.to_dict()["towers"] == {"v": {"layerwise_decay": 0.6, "scale": 0.1}, "t": 0.5}
    assert LayerDecay(0.7, towers={}, multipliers={}) == LayerDecay(0.7)
    whole.to_dict()["multipliers"].clear()
    assert whole.multipliers == {"crf": 10.0}


def test_the_docstring_names_every_option():
    arguments = LayerDecay.__doc__.partition("Args:")[2].partition("Raises:")[0]
    assert re.findall(r"^        (\w+)(?: \(dict\))?: ", arguments, re.M) == list(OPTIONS)


@pytest.mark.parametrize(("arguments", "match"), [((-1, 3), "layer_id=-1"), ((0, 0), "n_layers=0")])
def test_arguments_of_ratio(arguments, match):
    with pytest.raises(ValueError, match=f"Received: {match}"):
        LayerDecay(0.5).ratio(*arguments)
