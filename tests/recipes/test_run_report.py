"""The run report: numbers that the optimizer used, text that stays text, and what happens around crashes."""

import base64
import html.parser
import math
import types

import numpy as np
import paddle
import pytest
import trainer_common as common
from common import run_report
from common.run_report import RunReport
from matplotlib.figure import Figure
from PIL import Image

from paddle_ldopt import AdamWDL, LayerMap

HOSTILE = "<script>alert(1)</script>\"><img src=x onerror=alert(1)> & '$\\frac{' \udcff"


ARGUMENTS = types.SimpleNamespace(learning_rate=0.1, max_steps=4, seed=1, logging_dir="logs")
ARGUMENTS.per_device_train_batch_size, ARGUMENTS.gradient_accumulation_steps = 8, 1


class Page(html.parser.HTMLParser):
    """A report, taken apart: tags with their attributes, tables as rows of text, all the text."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.tables, self.text = [], [], ""
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())
        self.images = [dict(attributes)["src"] for tag, attributes in self.tags if tag == "img"]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, attributes))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_data(self, data):
        self.text += data
        if self.tags and self.tags[-1][0] in ("td", "th"):
            self.tables[-1][-1][-1] += data.strip("\n")


def state(step=0, main=True):
    return types.SimpleNamespace(global_step=step, is_world_process_zero=main, max_steps=100)


def begun(folder, main=True):
    model = common.tiny_model()
    layers = LayerMap.from_model(model)
    optimizer = AdamWDL(0.1, parameters=model.parameters(), layers=layers, layerwise_decay=0.5)
    made = RunReport(str(folder), "title", layers)
    made.on_train_begin(ARGUMENTS, state(main=main), None, optimizer=optimizer)
    return made, optimizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training whose every rate was noted where the optimizer asks for it, its report, and what was logged."""
    folder = tmp_path_factory.mktemp("trained")
    used, logged, kernel = {}, [], paddle._C_ops.adamw_

    class Spy(common.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            logged.append((state.global_step, dict(logs)))

    def noted(param, grad, rate, *rest):
        used.setdefault(param.name, []).append(float(rate))
        return kernel(param, grad, rate, *rest)

    settings = {"optim": "adamwdl", "layerwise_lr_decay": 0.8, "logging_steps": 2, "max_steps": 12, "warmup_steps": 3}
    settings["optim_kwargs"] = '{"fused": false}'  # Paddle's kernel is asked which rates it was given
    evaluate = {"evaluation_strategy": "epoch", "save_strategy": "epoch"}
    trainer = common.trainer(folder, callbacks=[Spy()], **settings, **evaluate)
    made = RunReport(str(folder), "a run", trainer.layer_map)
    trainer.add_callback(made)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paddle._C_ops, "adamw_", noted)
        trainer.train()
    trainer.evaluate()
    path = made.write({"test accuracy": 0.123456, "steps": 12}, {"seed": 42, "optim": "adamwdl"}, "what it was")
    return types.SimpleNamespace(trainer=trainer, report=made, page=Page(path), used=used, logged=logged)


def test_the_layer_table_has_the_rates_that_the_optimizer_used(trained):
    header, *rows = trained.page.tables[2]
    assert header == ["layer", "tensors", "parameters", "ratio", "lr peak", "weight decay", "frozen"]
    by_layer = {}
    for name, rates in trained.used.items():
        by_layer.setdefault(trained.trainer.layer_map.layer_of(name).label, []).append(max(rates))
    assert len(trained.used) == len(trained.trainer.model.parameters())
    assert [row[0] for row in rows] == ["embeddings", "block 0", "block 1", "head"]
    for label, tensors, _, ratio, peak, *_ in rows:
        assert int(tensors) == len(by_layer[label])
        assert {float(f"{rate:.3g}") for rate in by_layer[label]} == {float(peak)}
        assert float(ratio) == pytest.approx(by_layer[label][0] / 1e-2, rel=1e-3)  # the peak of the warm-up is 1e-2


def test_the_history_has_all_that_was_logged(trained):
    history = trained.report.history()
    curves = [(step, logs) for step, logs in trained.logged if {"loss", "eval_loss"} & set(logs)][:-1]
    assert [line["step"] for line in history] == [step for step, _ in curves]  # without the evaluation after training
    for line, (_, logs) in zip(history, curves):
        for key in {"loss", "eval_loss"} & set(logs):
            assert line[key] == logs[key]


def test_the_page_is_self_contained(trained):
    assert len(trained.page.images) == 1, "the loss alone was logged"
    for source in trained.page.images:
        kind, _, data = source.partition(",")
        assert kind == "data:image/png;base64" and base64.b64decode(data).startswith(b"\x89PNG")
    assert not {"script", "link", "iframe"} & {tag for tag, _ in trained.page.tags}


def test_hostile_text_stays_text(tmp_path):
    made, _ = begun(tmp_path)
    made.title = HOSTILE
    page = Page(made.write({HOSTILE: HOSTILE}, {HOSTILE: [HOSTILE]}, f"label {HOSTILE}: 3"))
    tags = {tag for tag, _ in page.tags}
    assert "script" not in tags and len(page.images) == 1
    attributes = {name for _, attributes in page.tags for name, _ in attributes}
    assert attributes == {"lang", "charset", "name", "content", "class", "alt", "src"}
    shown = HOSTILE.replace("\udcff", "\\udcff")  # of a file name that is no UTF-8
    assert page.tables[1] == [[shown, shown]] and page.text.count(shown) >= 4


def log(made, *values, key="loss", first=1):
    for step, value in enumerate(values, first):
        made.on_log(None, state(step), None, logs={key: value})


def test_values_that_are_not_finite_are_gaps_and_are_counted(tmp_path, monkeypatch):
    drawn = list(Figure().subplots(1, 2))
    monkeypatch.setattr(run_report, "plots", lambda alt, draw, *data, panels: draw(drawn, *data) or "")
    made, _ = begun(tmp_path)
    log(made, 0.5, math.nan, math.inf, 0.25)
    log(made, math.nan, key="eval_accuracy", first=5)
    made.write({"test loss": math.nan}, {})
    losses, metrics = drawn
    assert losses.lines[0].get_label() == "loss (2 not finite)"
    assert [str(y) for y in losses.lines[0].get_ydata()] == ["0.5", "nan", "nan", "0.25"]
    assert metrics.lines[0].get_label() == "eval_accuracy (1 not finite)"


def test_further_tables_and_the_settings_that_differ_are_shown(tmp_path):
    made, _ = begun(tmp_path)
    tables = {f"By class {HOSTILE[:8]}": (("class", "F1"), [("a", 0.5), (HOSTILE[:8], 1)])}
    page = Page(made.write({"score": 1, "classes": {}}, {"seed": 7, "optim": "lamb"}, tables=tables))
    assert page.tables[1] == [["score", "1"]], "not what has a table of its own"
    assert page.tables[2] == [["class", "F1"], ["a", "0.5"], ["<script>", "1"]]
    assert [["seed", "7"], ["optim", "lamb"]] in page.tables
    pixels = np.zeros([300, 200, 3], "uint8")
    Image.fromarray(pixels).save(tmp_path / "a.png")
    tables = {"Mistakes": (("image", "label"), [(pixels, "a"), (tmp_path / "a.png", "b")])}
    page = Page(made.write({}, {}, tables=tables))
    assert len(page.images) == 3 and "a.png" in page.text


@pytest.mark.parametrize("values", [(), (math.nan,), (math.nan, -math.inf)])
def test_a_run_without_one_finite_value_has_a_report(tmp_path, values):
    made, _ = begun(tmp_path)
    log(made, *values)
    assert len(Page(made.write({"stopped by": "ValueError"}, {})).images) == 1


def test_a_resume_keeps_the_history_up_to_its_checkpoint(tmp_path):
    made, optimizer = begun(tmp_path)
    log(made, 1.0, 0.9, 0.8, 0.7)
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"step": 5, "lo')  # killed while it wrote
    again = RunReport(str(tmp_path), "title", made.layers)
    assert [line["step"] for line in again.history()] == [1, 2, 3, 4]
    again.on_train_begin(ARGUMENTS, state(2), None, optimizer=optimizer)
    log(again, 0.81, 0.71, first=3)
    assert [line["loss"] for line in again.history()] == [1.0, 0.9, 0.81, 0.71]
    fresh = RunReport(str(tmp_path), "title", made.layers)
    fresh.on_train_begin(ARGUMENTS, state(0), None, optimizer=optimizer)
    assert fresh.history() == []


def test_only_the_main_process_writes(tmp_path):
    made, optimizer = begun(tmp_path / "run", main=False)
    log(made, 1.0)
    made.on_train_end(None, state(1), None)
    for silent in (made, RunReport(str(tmp_path / "run"), "before training", made.layers)):
        assert silent.write({}, {}) is None
    assert not (tmp_path / "run").exists()
