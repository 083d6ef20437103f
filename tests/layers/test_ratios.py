"""LayerDecay: its conventions against the peers' own numbers, its limits, and the ratios that it makes of a map."""

import itertools
import json
import pickle
import re

import pytest

from paddle_ldopt import Layer, LayerDecay, LayerMap
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
        ({"convention": "linear", "bound": 1.5}, ValueError, r"must be in \(0, 1\]. Received: bound=1.5"),
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


KINDS = ("attn.weight", "mlp.weight", "norm.weight")


def stack(path, depth):
    return [f"{path}.{i}.{kind}" for i, kind in itertools.product(range(depth), KINDS)]


def tower(name, depth):
    return [f"{name}.embeddings.weight", *stack(f"{name}.layers", depth), f"{name}.final_norm.weight"]


TWO = ["logit_scale", *tower("text_model", 3), *tower("vision_model", 2)]


def ratios(names, decay):
    return LayerMap.from_names(names).ratios(decay)


def test_each_tower_has_its_decay_and_scale_and_the_rest_the_decays():
    text = LayerDecay(0.8, min_ratio=0.6, scale=0.1)
    got = ratios(TWO, LayerDecay(head_ratio=3, towers={"vision_model": 0.5, "text_model": text}))
    assert list(got) == TWO and got["logit_scale"] == 3.0
    assert [got[f"vision_model.layers.{i}.attn.weight"] for i in range(2)] == [0.25, 0.5]
    assert got["vision_model.embeddings.weight"] == 0.125 and got["vision_model.final_norm.weight"] == 1.0
    assert [got[f"text_model.layers.{i}.mlp.weight"] for i in range(3)] == [0.06, 0.8**2 * 0.1, 0.8 * 0.1]
    assert got["text_model.final_norm.weight"] == 0.1
    assert ratios(TWO, LayerDecay(0.9, towers={"text_model": 1.0}))["vision_model.layers.0.attn.weight"] == 0.9**2
    frozen = LayerDecay(0.9, freeze_below=0.95, towers={"vision_model": 0.5})
    assert ratios(TWO, frozen)["vision_model.embeddings.weight"] == 0.125, "a tower inherits no option"
    both = LayerDecay(0.9, scale=0.5, towers={"vision_model": 0.5, "text_model": 0.6})
    assert ratios(TWO, both)["logit_scale"] == 0.5, "options may be for other models with layers beside the towers"
    names = [f"model.{name}" for name in TWO]  # a tower is named by whole parts, and the longest name wins
    got = ratios(names, LayerDecay(1.0, towers={"model.vision_model": 0.5, "model": 0.9}))
    assert got["model.vision_model.layers.1.attn.weight"] == 0.5
    assert got["model.text_model.layers.2.attn.weight"] == 0.9 and got["model.logit_scale"] == 1.0


@pytest.mark.parametrize(
    "decay, match",
    [
        (LayerDecay(towers={"vision": 0.5}), r"its stacks are text_model.layers, .*Received: towers='vision'"),
        (LayerDecay(towers={"head": 0.5}), "use `multipliers` for parts without blocks. Received: towers='head'"),
        (LayerDecay(0.5, multipliers={"norm": 2, "gate": 0.01}), r"the names are \[logit_scale, .*pattern='gate'"),
        (LayerDecay(0.5, multipliers={r"^vison_model\.": 2}), r"similar names are 'vision.*pattern='\^vison_model"),
    ],
)
def test_towers_and_multipliers_that_find_nothing_are_refused(decay, match):
    with pytest.raises(ValueError, match=match):
        ratios([*TWO, "head.weight"], decay)


def test_the_last_multiplier_that_matches_counts():
    factors = {r"\.norm\.": 10, r"vision.*norm": 0.1, "embeddings": 0, "text.*embeddings": 1}
    got = ratios(TWO, LayerDecay(0.5, multipliers=factors))
    assert got["text_model.layers.2.norm.weight"] == 5.0 and got["text_model.layers.2.mlp.weight"] == 0.5
    assert got["vision_model.layers.1.norm.weight"] == 0.5 * 0.1
    assert (got["vision_model.embeddings.weight"], got["text_model.embeddings.weight"]) == (0.0, 0.5**4)


def test_a_model_without_blocks_takes_multipliers_and_no_decay():
    head = Layer("", 1, 0)
    layers = LayerMap(dict.fromkeys(["backbone.conv.weight", "neck.weight", "head.weight"], head))
    decay = LayerDecay(1.0, multipliers={r"^backbone\.": 0.1, "head": 3.0})
    assert list(layers.ratios(decay).values()) == [0.1, 1.0, 3.0], "they may rise towards the head or the input"
    with pytest.raises(ValueError, match="no blocks that a decay could follow.*layerwise_decay=LayerDecay"):
        layers.ratios(0.9)
    with pytest.raises(ValueError, match="no blocks that a decay could follow"):
        layers.ratios(LayerDecay(convention="linear", bound=0.5))


def test_the_mean_over_the_blocks_of_all_towers_is_kept():
    decay = LayerDecay(0.8, head_ratio=2, preserve_mean=True, towers={"vision_model": LayerDecay(0.5, scale=0.1)})
    mean = (0.8**3 + 0.8**2 + 0.8 + 0.25 + 0.5) / 5  # without the scale, which it would undo
    got = ratios(TWO, decay)
    assert got["text_model.layers.0.attn.weight"] == pytest.approx(0.8**3 / mean, rel=1e-14)
    assert got["vision_model.layers.1.norm.weight"] == pytest.approx(0.05 / mean, rel=1e-14)
    assert got["logit_scale"] == pytest.approx(2 / mean, rel=1e-14)
    one_tower = LayerDecay(0.65, preserve_mean=True)
    assert sum(one_tower.ratio(i, 12) for i in range(1, 13)) / 12 == pytest.approx(1, rel=1e-14)
    frozen = [LayerDecay(0.5, freeze_below=0.2, preserve_mean=True).ratio(i, 3) for i in range(5)]
    assert frozen == pytest.approx([0, 0, 0.25 / 0.375, 0.5 / 0.375, 1 / 0.375]), "frozen blocks do not count"
    one = LayerDecay(0.5, scale=0.1, preserve_mean=True)  # a scale holds beside a kept mean
    assert [one.ratio(i, 2) for i in (1, 2, 3)] == pytest.approx([0.25 / 3.75, 0.5 / 3.75, 1 / 3.75])
    whole = ratios(tower("b", 2), LayerDecay(preserve_mean=True, towers={"b": LayerDecay(0.5, scale=0.1)}))
    assert [whole[f"b.layers.{i}.mlp.weight"] for i in (0, 1)] == pytest.approx([0.2 / 3, 0.4 / 3]), "a tenth"
    # processes must agree on every bit of a ratio: the order of a set of names differs between them
    layers, decay = {f"h.{i}.w": Layer("h", i + 1, 12) for i in range(12)}, LayerDecay(0.77, preserve_mean=True)
    assert decay.ratios(layers) == decay.ratios(dict(reversed(layers.items())))


def test_rules_make_layers_of_stages_and_groups():
    blocks = [name for i, depth in enumerate((1, 2, 6, 1)) for name in stack(f"stages.{i}", depth)]
    names = ["stem.weight", *blocks, "head.w"]
    stages = LayerMap.from_names(names, {r"stages\.(\d)\.": r"\1"})
    assert [stages.layer_of(name).index for name in names if "attn" in name] == [1, 2, 2, *[3] * 6, 4]
    assert (stages.layer_of("stem.weight").index, stages.layer_of("head.w").index, stages.n_layers) == (0, 5, 4)
    order = [name.rpartition(".attn")[0] for name in blocks if "attn" in name]
    pair = lambda name: next((i // 2 + 1 for i, b in enumerate(order) if name.startswith(f"{b}.")), None)  # noqa: E731
    groups = LayerMap.from_names(names, pair)
    assert [groups.layer_of(name).index for name in names if "attn" in name] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
