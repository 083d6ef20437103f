"""The ratios that a `LayerDecay` makes of a map: towers, multipliers, the mean, a decay that moves, granularity."""

import io
import itertools
import warnings
from collections import Counter

import paddle
import pytest
import rich.console
from layer_models import Parts, blocks

from paddle_ldopt import AdamWDL, LayerDecay, LayerMap, apply_layerwise_decay

KINDS = ("attn.weight", "mlp.weight", "norm.weight")


def stack(path, depth):
    return [f"{path}.{i}.{kind}" for i, kind in itertools.product(range(depth), KINDS)]


def tower(name, depth):
    return [f"{name}.embeddings.weight", *stack(f"{name}.layers", depth), f"{name}.final_norm.weight"]


TWO = ["logit_scale", *tower("text_model", 3), *tower("vision_model", 2)]
BLOCKS = [name for i, depth in enumerate((1, 2, 6, 1)) for name in stack(f"stages.{i}", depth)]
STAGES = ["stem.weight", *BLOCKS, "head.w"]


def ratios(names, decay, progress=0.0, **how):
    of = LayerMap.from_names(names, **how).ratio_fn(decay).at(progress).of
    return {name: of(name) for name in names}


def test_each_tower_has_its_decay_and_scale_and_the_rest_the_decays():
    text = LayerDecay(0.8, min_ratio=0.6, scale=0.1)
    got = ratios(TWO, LayerDecay(head_ratio=3, towers={"vision_model": 0.5, "text_model": text}))
    assert got["logit_scale"] == 3.0
    assert [got[f"vision_model.layers.{i}.attn.weight"] for i in range(2)] == [0.25, 0.5]
    assert got["vision_model.embeddings.weight"] == 0.125 and got["vision_model.final_norm.weight"] == 1.0
    assert [got[f"text_model.layers.{i}.mlp.weight"] for i in range(3)] == [0.06, 0.8**2 * 0.1, 0.8 * 0.1]
    assert got["text_model.final_norm.weight"] == 0.1
    assert ratios(TWO, LayerDecay(0.9, towers={"text_model": 1.0}))["vision_model.layers.0.attn.weight"] == 0.9**2


def test_a_tower_is_named_by_whole_parts_and_the_outermost_and_longest_name_wins():
    names = [f"model.{name}" for name in TWO]
    got = ratios(names, LayerDecay(1.0, towers={"model.vision_model": 0.5, "model": 0.9}))
    assert got["model.vision_model.layers.1.attn.weight"] == 0.5
    assert got["model.text_model.layers.2.attn.weight"] == 0.9 and got["model.logit_scale"] == 1.0
    with pytest.raises(ValueError, match=r"its stacks are text_model.layers, .*Received: towers='vision'"):
        ratios(TWO, LayerDecay(towers={"vision": 0.5}))
    with pytest.raises(ValueError, match="use `multipliers` for parts without blocks. Received: towers='head'"):
        ratios([*TWO, "head.weight"], LayerDecay(towers={"head": 0.5}))


def test_all_multipliers_that_match_count():
    got = ratios(TWO, LayerDecay(0.5, multipliers={r"\.norm\.": 10, r"vision.*norm": 0.1, "embeddings": 0}))
    assert got["text_model.layers.2.norm.weight"] == 5.0 and got["text_model.layers.2.mlp.weight"] == 0.5
    assert got["vision_model.layers.1.norm.weight"] == 0.5 * (10 * 0.1)
    assert got["text_model.embeddings.weight"] == 0.0
    with pytest.raises(ValueError, match=r"matches no parameter; the names are \[logit_scale, .*pattern='gate'"):
        ratios(TWO, LayerDecay(0.5, multipliers={"norm": 2, "gate": 0.01}))
    near = r"similar names are 'vision_model.embeddings.weight'\. Received: pattern='\^vison_model"
    with pytest.raises(ValueError, match=near):
        ratios(TWO, LayerDecay(0.5, multipliers={r"^vison_model\.": 2}))


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
    with pytest.raises(ValueError, match="use `LayerMap.ratio_fn`"):
        decay.ratio(1, 3)


def test_a_scale_holds_beside_a_kept_mean():
    one = LayerDecay(0.5, scale=0.1, preserve_mean=True)
    assert [one.ratio(i, 2) for i in (1, 2, 3)] == pytest.approx([0.25 / 3.75, 0.5 / 3.75, 1 / 3.75])
    backbone = LayerDecay(0.5, scale=0.1)
    whole = ratios(tower("backbone", 2), LayerDecay(preserve_mean=True, towers={"backbone": backbone}))
    assert [whole[f"backbone.layers.{i}.mlp.weight"] for i in (0, 1)] == pytest.approx([0.2 / 3, 0.4 / 3]), "a tenth"


HEADLESS, HEAD = stack("model.layers", 3), LayerDecay(0.5, head_ratio=2)


@pytest.mark.parametrize(
    "names, decay, match",
    [
        (HEADLESS, LayerDecay(0.9, head_ratio=2), "no parameter of the model is in the head.*head_ratio=2"),
        (HEADLESS, LayerDecay(towers={"model": HEAD}), "in the tower 'model' is in the head.*head_ratio=2"),
        (TWO, LayerDecay(0.5, freeze_below=0.2, multipliers={r"t_model\.layers\.0": 2}), "`freeze_below` freezes all"),
    ],
)
def test_what_changes_no_ratio_is_refused(names, decay, match):
    with pytest.raises(ValueError, match=match):
        ratios(names, decay)


@pytest.mark.parametrize(
    "names, decay, match",
    [
        (TWO, LayerDecay(0.9, towers={"vision_model": 0.5, "text_model": 0.6}), "outside of `towers` is in the blocks"),
        (TWO, LayerDecay(0.9, end=1.0, towers={"vision_model": 0.5, "text_model": 0.6}), "layerwise_decay=0.9"),
        (TWO, LayerDecay(end=0.5, towers={"vision_model": 0.5, "text_model": 0.6}), "Received: end=0.5"),
        (HEADLESS, LayerDecay(0.9, towers={"model": 0.5}), "outside of `towers` is in the model. Leave it out"),
        (HEADLESS, LayerDecay(scale=0.5, towers={"model": 0.5}), "Received: scale=0.5"),
    ],
)
def test_an_option_beside_towers_that_hold_all_blocks_warns(names, decay, match):
    with pytest.warns(UserWarning, match=match):
        got = ratios(names, decay)
    assert got == ratios(names, LayerDecay(towers=decay.towers))


def test_a_multiplier_for_frozen_parameters_warns():
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 2)
    for layer in encoder.layers:
        layer.linear1.weight.stop_gradient = True
    layers = LayerMap.from_model(encoder)
    with pytest.warns(UserWarning, match=r"that the pattern matches are frozen.*Received: pattern='linear1.weight'"):
        layers.ratio_fn(LayerDecay(0.5, multipliers={"linear1.weight": 2}))
    layers.ratio_fn(LayerDecay(0.5, multipliers={"linear1": 2}))  # biases train


@pytest.mark.parametrize(
    "decay, received",
    [
        (LayerDecay(0.5, multipliers={"answer": 3, "body": 2}), "multipliers='answer'"),
        (LayerDecay(0.5, towers={"other": 0.9}), "towers='other'"),
        (LayerDecay(0.5, head_ratio=3), "head_ratio=3.0"),
    ],
)
def test_an_option_for_parameters_that_the_optimizer_lacks_is_refused(decay, received):
    model = Parts(body__layers=blocks(2), other__layers=blocks(2), answer=paddle.nn.Linear(4, 2))
    layers, part = LayerMap.from_model(model), model.body.parameters()
    sgd = paddle.optimizer.SGD(0.1, parameters=part)
    for build in (
        lambda: apply_layerwise_decay(sgd, layers, decay),
        lambda: AdamWDL(0.1, parameters=part, layers=layers, layerwise_decay=decay),
    ):
        with pytest.raises(ValueError, match=f"the optimizer lacks all its parameters.*Received: {received}"):
            build()
    assert type(sgd) is paddle.optimizer.SGD
    whole = paddle.optimizer.SGD(0.1, parameters=[*part, model.answer.weight, *model.other.parameters()])
    apply_layerwise_decay(whole, layers, decay)
    for param in model.parameters():
        param.stop_gradient = all(param is not own for own in part)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # frozen parameters only warn
        apply_layerwise_decay(sgd, layers, decay)


def test_a_multiplier_of_0_may_be_for_parameters_that_the_optimizer_lacks():
    model = Parts(body__layers=blocks(2), answer=paddle.nn.Linear(4, 2))
    sgd = paddle.optimizer.SGD(0.1, parameters=model.body.parameters())
    apply_layerwise_decay(sgd, LayerMap.from_model(model), LayerDecay(0.5, multipliers={"answer": 0}))


def test_a_decay_moves_to_its_end():
    decay = LayerDecay(towers={"text_model": 0.5, "vision_model": LayerDecay(0.8, end=0.6)})
    for progress in (0.0, 0.25, 1.0):
        got = ratios(TWO, decay, progress)
        assert got["vision_model.layers.0.attn.weight"] == pytest.approx((0.8 - 0.2 * progress) ** 2, rel=1e-14)
        assert got["text_model.layers.2.attn.weight"] == 0.5
    assert ratios(TWO, LayerDecay(0.35, end=1.0), 1.0) == dict.fromkeys(TWO, 1.0), "exactly"
    assert LayerDecay(0.35, end=1.0).ratio(2, 3, 0.5) == pytest.approx(0.675**2, rel=1e-14)
    mean = LayerDecay(0.35, end=1.0, preserve_mean=True)
    assert sum(mean.ratio(i, 4, 0.3) for i in range(1, 5)) == pytest.approx(4)


def test_layers_may_be_stages_or_groups():
    layers = LayerMap.from_names(STAGES, granularity="stage")
    assert layers.towers == {"stages": 4} and layers.n_layers == 4
    assert [layers.layer_of(f"stages.{i}.0.attn.weight").index for i in range(4)] == [1, 2, 3, 4]
    assert layers.layer_of("stages.2.5.mlp.weight").label == "stage 2" and layers.layer_of("head.w").index == 5
    groups = LayerMap.from_names(STAGES, granularity=5)
    of_blocks = [groups.layer_of(f"stages.2.{i}.attn.weight").index for i in range(6)]
    assert of_blocks == [2, 3, 3, 4, 4, 5] and groups.layer_of("stem.weight").index == 0
    assert groups.layer_of("stages.3.0.attn.weight").label == "group 4"
    assert LayerMap.from_names(STAGES, granularity="5").fingerprint() == groups.fingerprint()
    assert LayerMap.from_names(STAGES, granularity="block").towers == {"stages": 10}


def test_towers_that_are_not_deeper_keep_their_blocks():
    layers = LayerMap.from_names(TWO, granularity=2)
    assert layers.towers == {"text_model.layers": 2, "vision_model.layers": 2}
    labels = [layers.layer_of(f"text_model.layers.{i}.attn.weight").label for i in range(3)]
    assert labels == ["group 0", "group 0", "group 1"]
    assert layers.layer_of("vision_model.layers.1.attn.weight").label == "block 1"
    assert layers.layer_of("logit_scale").index == 3


@pytest.mark.parametrize(
    "granularity, error, match",
    [
        ("stages", ValueError, "must be 'block', 'stage' or a number of groups. Received: granularity='stages'"),
        (0, ValueError, "must be at least 1. Received: granularity=0"),
        (2.5, TypeError, "Received: granularity=2.5"),
        (3, ValueError, r"no tower has more than 3 blocks \(.*text_model.layers: 3 blocks.*Received: granularity=3"),
        ("stage", ValueError, "the model has no tower of stages. Received: granularity='stage'"),
    ],
)
def test_granularities_without_effect_and_bad_ones(granularity, error, match):
    with pytest.raises(error, match=match):
        LayerMap.from_names(TWO, granularity=granularity)


def test_the_table_has_a_block_of_rows_for_each_tower_and_the_multipliers():
    decay = LayerDecay(0.9, towers={"vision_model": 0.5}, multipliers={"vision.*norm": 0.1})
    table = LayerMap.from_names(TWO).table(decay, 1e-3)
    assert [row.tower for row in table.rows] == [""] + ["text_model.layers"] * 5 + ["vision_model.layers"] * 4
    assert table.rows[-2].multiplier == (0.1, 1.0) and table.rows[-2].ratio == (0.05, 0.5)
    assert table.rows[1].multiplier is None
    assert "multiplier" in str(table) and "0.05..0.5" in str(table)
    assert "multiplier" not in str(LayerMap.from_names(TWO).table(0.9))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_narrow_console_cuts_no_cell_of_the_table(width):
    decay = LayerDecay(towers={"vision_model": LayerDecay(0.5, end=1.0), "text_model": 0.7}, multipliers={"norm": 0.1})
    table = LayerMap.from_names(TWO).table(decay, 1e-3 / 3)
    page = io.StringIO()
    rich.console.Console(file=page, width=width).print(table)
    shown, (header, rows) = page.getvalue(), table.cells()
    assert max(map(len, shown.splitlines())) <= width and "\N{HORIZONTAL ELLIPSIS}" not in shown
    written = Counter(shown.replace("\n", ""))
    assert not Counter("".join([*header, *itertools.chain(*rows)]).replace(" ", "")) - written


def test_the_table_of_an_optimizer_shows_its_multipliers():
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 2)
    layers = LayerMap.from_model(encoder)
    sgd = paddle.optimizer.SGD(0.1, parameters=encoder.parameters())
    apply_layerwise_decay(sgd, layers, LayerDecay(0.5, multipliers={"linear1": 4}))
    assert [row.multiplier for row in layers.table(optimizer=sgd).rows] == [(1.0, 4.0)] * 2
