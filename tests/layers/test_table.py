"""The layer table and the plot: planned, and read back from an optimizer."""

import io
import json

import paddle
import pytest
import rich.console
from layer_models import PARTS, Tied, names_of, tied
from matplotlib.figure import Figure
from measured_models import VECTORS, Block, D, Net, blocks, through
from optimizer_cases import static_graph
from paddle import nn

import paddle_ldopt as ldopt
from paddle_ldopt import AdamWDL, AdamWeightDecay, LayerDecay, LayerMap, plots
from paddle_ldopt.layers.table import _count
from paddle_ldopt.plots import name_lines
from paddle_ldopt.rates import applied_rates, rates_of_optimizer
from paddle_ldopt.schedules import CurveSchedule

pytestmark = pytest.mark.filterwarnings("ignore:Some layers of the model")


def test_the_planned_table():
    layers = LayerMap.from_names(names_of())
    rows = layers.table(layerwise_decay=0.5, learning_rate=1e-3, apply_decay_param_fun=lambda n: n.endswith("w")).rows
    assert [(r.label, r.tensors, r.ratio[0], r.learning_rate[0], r.with_weight_decay) for r in rows] == [
        ("embeddings", 1, 0.0625, 6.25e-5, 1),
        ("block 0", 3, 0.125, 1.25e-4, 2),
        ("block 1", 3, 0.25, 2.5e-4, 2),
        ("block 2", 3, 0.5, 5e-4, 2),
        ("head", 1, 1.0, 1e-3, 1),
    ]
    layers = LayerMap.from_names(names_of(), rules={"0": "head"})
    assert len(layers.towers) == 1
    labels = [row[0] for row in layers.table(layerwise_decay=0.5).cells()[1]]
    assert "shared head" in labels and len(set(labels)) == len(labels), "layers of rules have labels of their own"


def test_the_table_is_read_back_from_what_the_optimizer_uses():
    model, layers = tied()
    model.norm.bias.stop_gradient = True
    schedule = ldopt.get_linear_schedule_with_warmup(1e-3, 10, 110)
    groups = [
        {"params": list(model.layers.parameters()), "weight_decay": 0.0, "learning_rate": 0.1},
        {"params": [model.lm_head.weight, *model.norm.parameters()]},
    ]
    opt = AdamWDL(schedule, parameters=groups, weight_decay=0.1, layers=layers, layerwise_decay=0.5)
    for _ in range(5):
        schedule.step()
    rows = {r.label: r for r in layers.table(optimizer=opt).rows}
    assert rows["block 1"].ratio == pytest.approx((0.025, 0.025))  # 0.1 of the group times 0.25 of the layer
    assert rows["block 1"].learning_rate == pytest.approx((0.025 * 5e-4,) * 2)
    assert rows["block 1"].peak_learning_rate == pytest.approx((0.025 * 1e-3,) * 2)
    assert rows["block 1"].with_weight_decay == 0 and rows["embeddings"].with_weight_decay == 1
    assert rows["head"].tensors == 2 and rows["head"].frozen == 1
    assert rows["embeddings"].elements == 16
    assert [_count(size) for size in (999, 999_600, 1_000_000)] == ["999", "1 M", "1 M"]
    schedule.step(110)
    row = {r.label: r for r in layers.table(optimizer=opt).rows}["head"]
    assert row.learning_rate == (0.0, 0.0) and row.peak_learning_rate == pytest.approx((1e-3, 1e-3)), "also after it"
    before = schedule.last_epoch
    layers.table(optimizer=opt)
    assert schedule.last_epoch == before


def test_the_table_shows_hooks_undecayed_optimizers_and_schedules_of_groups_that_begin_at_0():
    model, layers = tied()
    plain = paddle.optimizer.Momentum(0.1, parameters=model.parameters())
    assert {r.ratio for r in layers.table(optimizer=plain).rows} == {(1.0, 1.0)}
    hooked = AdamWDL(0.1, parameters=model.parameters(), set_param_lr_fun=lambda p: 0.0 if p.ndim == 1 else 0.5)
    row = layers.table(optimizer=hooked).rows[1]
    assert row.ratio == (0.0, 0.5) and row.frozen == sum(p.ndim == 1 for p in model.layers[0].parameters())
    warmup = paddle.optimizer.lr.LinearWarmup(0.1, 10, 0.0, 0.1)
    groups = [{"params": [model.norm.weight], "lr": warmup}, {"params": [model.norm.bias], "lr": 0.1}]
    rate = rates_of_optimizer(ldopt.Lamb(0.1, params=groups))[model.norm.weight.name]
    assert rate.now == 0.0 and not rate.frozen
    opt = ldopt.Lamb(0.0, params=[{"params": [model.norm.weight], "lr": 0.5}, {"params": [model.norm.bias]}])
    assert rates_of_optimizer(opt)[model.norm.weight.name].now == 0.5


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_decay_of_the_rate_is_shown(scheduled):
    model, layers = tied()
    rate = CurveSchedule(0.1, lambda step: min((step + 1) / 10, 1.0)) if scheduled else 0.1
    opt = AdamWeightDecay(rate, decay=0.5, layers=layers, layerwise_decay=0.5, parameters=model.parameters())
    for step in range(3):
        row = layers.table(optimizer=opt).rows[-1]
        now = (0.1 * (step + 1) / 10 if scheduled else 0.1) / (1 + 0.5 * step)
        assert row.learning_rate[1] == pytest.approx(now)
        assert row.peak_learning_rate == (None if scheduled else pytest.approx((now, now)))
        assert applied_rates(opt)[model.norm.weight.name] == pytest.approx(now)
        for param in model.parameters():
            param.clear_gradient()
            (param * param).sum().backward()
        opt.step()
        if scheduled:
            rate.step()


def test_renderings():
    layers = LayerMap.from_names(names_of())
    table = layers.table(LayerDecay(0.5, freeze_below=0.1), 1e-3)
    text = str(table)
    assert "embeddings" in text and "block 2" in text and "0.0005" in text
    assert max(map(len, text.splitlines())) <= 80 and text.endswith("\n layers: by names")
    assert json.loads(json.dumps(table.to_dict()))[0]["frozen"] == 1


def test_towers_are_told_apart():
    names = [f"m.{t}.layers.{i}.{p}" for t, n in (("encoder", 2), ("decoder", 3)) for i in range(n) for p in PARTS]
    layers = LayerMap.from_names(["m.shared.w", *names, "head.w"])
    assert layers.towers == {"m.encoder.layers": 2, "m.decoder.layers": 3}
    assert layers.n_layers == 3
    rows = layers.table(0.5).rows
    shown = {(r.tower.split(".")[-2:][0], r.label): r.ratio[0] for r in rows}
    want = {("", "embeddings"): 0.0625, ("", "head"): 1.0}
    want.update({("encoder", f"block {i}"): 0.5 ** (2 - i) for i in range(2)})
    want.update({("decoder", f"block {i}"): 0.5 ** (3 - i) for i in range(3)})
    assert list(shown.items()) == list(want.items()) and len(rows) == 7
    assert "encoder" in str(layers.table(0.5))


@pytest.mark.parametrize("width", [200, 60])
def test_a_table_breaks_cells_only_where_it_must(width):
    layers = LayerMap.from_names([*names_of(), "head.own"])
    text, decay = io.StringIO(), LayerDecay(0.5, multipliers={"own": 0.123})
    rich.console.Console(file=text, width=width).print(layers.table(decay, 1.23456e-5))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width and any("0.123..1" in line for line in lines) == (width == 200)


def test_rows_say_their_tower_and_multiplier():
    names = [f"m.{t}.layers.{i}.{part}" for t in ("text", "image", "fusion") for i in (0, 1) for part in PARTS]
    header, rows = LayerMap.from_names([*names, "head.w"]).table(LayerDecay(0.5, multipliers={"text": 3.0})).cells()
    multiplier = {row[0]: row[header.index("multiplier")] for row in rows}
    assert multiplier.pop("text block 0") == multiplier.pop("text block 1") == "3"
    assert {*multiplier} > {"image block 0", "fusion block 1"} and {*multiplier.values()} == {"-"}


@pytest.mark.parametrize("tower", ["[/x]", "[red]", ":smile:", "$x_{$", "_hidden"])
def test_names_are_no_markup(tmp_path, tower):
    names = [f"{t}.layers.{i}.{part}" for t in (tower, "text") for i in (0, 1) for part in PARTS]
    layers = LayerMap.from_names(names)
    assert f" {tower} block 0 " in str(layers.table(0.5))
    layers.plot(tmp_path / "rates.svg", 0.5)  # text as outlines: no name to look for
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([0, 1], label=tower)
    axes.plot([1, 0])
    name_lines(axes)
    figure.savefig(tmp_path / "legend.png")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [tower]


def test_characters_that_the_usual_font_lacks_are_drawn_in_an_installed_one(tmp_path, monkeypatch):
    axes = Figure().add_subplot()
    axes.plot([0, 1], label="\ue02a")  # stands for a Chinese character: matplotlib brings no Chinese font
    monkeypatch.setattr(plots, "CHINESE_FONTS", ("SimHei of tests", "STIXNonUnicode"))
    name_lines(axes)
    axes.figure.savefig(tmp_path / "drawn.png")  # no warning of a missing glyph
    monkeypatch.setattr(plots, "CHINESE_FONTS", ("SimHei of tests",))
    name_lines(axes)
    with pytest.warns(UserWarning, match="missing from font"):
        axes.figure.savefig(tmp_path / "boxes.png")


def test_statistics_of_batch_normalization_are_no_frozen_parameters():
    nn = paddle.nn
    model = nn.Sequential(nn.Conv2D(3, 4, 3), *(nn.Sequential(nn.Conv2D(4, 4, 3), nn.BatchNorm2D(4)) for _ in range(2)))
    layers = LayerMap.from_model(model, rules={r"^([12])\.": r"\1"})
    opt = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    for table in (layers.table(0.5), layers.table(optimizer=opt)):
        assert [(row.tensors, row.frozen) for row in table.rows if row.index] == [(4, 0), (4, 0)]
    assert layers.layer_of("1.1._mean").index == 1  # numbers without blocks are closed up


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plot(tmp_path, ending):
    path = tmp_path / f"rates.{ending}"
    layers = LayerMap.from_names(names_of())
    assert layers.plot(path, layerwise_decay=0.8, learning_rate=5e-5) == str(path)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)
    with pytest.raises(ValueError, match="Received: path='rates.txt'"):
        layers.plot("rates.txt", layerwise_decay=0.8)


def sgd(model):
    return paddle.optimizer.SGD(0.1, parameters=model.parameters())


SETTLED = "`{0}` is read from `optimizer`.*Received: {0}="


@pytest.mark.parametrize(
    "arguments, match",
    [
        (lambda model: {}, "either `layerwise_decay` or `optimizer`"),
        (lambda model: {"layerwise_decay": 0.8, "optimizer": sgd(model)}, "either `layerwise_decay` or `optimizer`"),
        (lambda model: {"optimizer": sgd(model), "learning_rate": 0.1}, SETTLED.format("learning_rate")),
        (
            lambda model: {"optimizer": sgd(model), "apply_decay_param_fun": bool},
            SETTLED.format("apply_decay_param_fun"),
        ),
        (lambda model: {"optimizer": sgd(nn.Linear(2, 2))}, "from the model that is trained"),
    ],
)
def test_bad_calls_of_table(arguments, match):
    model = Tied()
    with pytest.raises(ValueError, match=match):
        LayerMap.from_model(model).table(**arguments(model))


def rates(layers, opt):
    """Return layer -> (rate now, at the peak), least and greatest."""
    return {r.label: (r.learning_rate, r.peak_learning_rate) for r in layers.table(optimizer=opt).rows}


@pytest.mark.parametrize("name", ["came", "adafactor", "lamb"])
def test_the_table_shows_a_groups_own_rate(name):
    model, layers = tied()
    inside, rest = model.layers.parameters(), [model.lm_head.weight, *model.norm.parameters()]
    more = {"relative_step": False, "scale_parameter": False} if name == "adafactor" else {}
    more.update(learning_rate=1e-3, layers=layers, layerwise_decay=0.5)
    groups = [{"params": inside, "lr": 0.5}, {"params": rest}]
    for some in (groups, groups[::-1]):
        opt = ldopt.optimizer_class(name)(parameters=some, **more)
        for stepped in (False, True):
            if stepped:
                model(paddle.to_tensor([[0, 1, 2]])).square().mean().backward()
                opt.step()
                opt.clear_grad()
            found = rates(layers, opt)
            assert found["block 1"][0] == pytest.approx((0.125, 0.125)), "its own rate times the layer's ratio"
            assert found["head"][0] == pytest.approx((1e-3, 1e-3))
            assert found["embeddings"][0] == pytest.approx((1e-3 * 0.0625,) * 2)


def test_the_table_says_what_it_cannot_know_of_relative_steps():
    model, layers = tied()
    came = ldopt.Came(relative_step=True, parameters=model.parameters(), layers=layers, layerwise_decay=0.5)
    assert set(rates(layers, came).values()) == {(None, None)}
    opt = ldopt.Adafactor(model.parameters(), layers=layers, layerwise_decay=0.5)
    model(paddle.to_tensor([[0, 1, 2]])).square().mean().backward()
    opt.step()
    used = opt.used_lr()
    block = [used[p.name] for p in model.layers[1].parameters()]
    assert rates(layers, opt)["block 1"] == ((min(block), max(block)), None)
    assert {r.label: r.ratio for r in layers.table(optimizer=opt).rows}["block 1"] == (0.25, 0.25)


def test_the_table_shows_schedules_that_advance_with_the_optimizer():
    model, layers = tied()
    how = {"parameters": model.parameters(), "layers": layers, "layerwise_decay": 0.5}
    assert rates(layers, ldopt.Lamb([1e-4, 9e-4, 2e-4], **how))["head"] == ((1e-4, 1e-4), (9e-4, 9e-4))
    found = rates(layers, ldopt.Lamb(lambda step: 1e-3 * (step + 1), **how))["block 2"]
    assert found == (pytest.approx((5e-4, 5e-4)), None)


def test_a_planned_table_knows_rates_of_param_attr():
    attr = paddle.ParamAttr(learning_rate=10.0)
    head = paddle.nn.Linear(4, 2, weight_attr=attr, bias_attr=attr)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)
    model = nn.Sequential(("encoder", encoder), ("classifier", head))
    layers = LayerMap.from_model(model)
    optimizer = ldopt.AdamWDL(0.001, parameters=model.parameters(), layers=layers, layerwise_decay=0.5)
    planned, built = layers.table(0.5, 0.001).rows[-1], layers.table(optimizer=optimizer).rows[-1]
    assert planned.learning_rate == pytest.approx(built.learning_rate)
    assert planned.learning_rate == pytest.approx((0.01, 0.01))


def test_an_optimizer_without_parameters_has_no_table():
    encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(4, 2, 8), 2)
    layers = LayerMap.from_model(encoder)
    with static_graph():
        optimizer = ldopt.AdamWDL(0.001, layers=layers, layerwise_decay=0.5)
        with pytest.raises(ValueError, match="no parameters to show"):
            layers.table(optimizer=optimizer)


def test_a_table_of_a_tower_beside_a_list_of_its_class():
    run = lambda self, x: self.fc(through(self.net.left, x) + self.net.right(2 * x))  # noqa: E731
    model = Net(run, fc=nn.Linear(D, 2), net__left=blocks(3), net__right=Block())
    layers = LayerMap.from_model(model, VECTORS)
    assert layers.towers == {"net.left": 3, "net.right": 1} and "left block 0" in str(layers.table(0.5))
