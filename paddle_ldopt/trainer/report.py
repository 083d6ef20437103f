"""The run report: one self-contained HTML file with what was trained, how, and what came of it."""

import base64
import dataclasses
import html
import io
import json
import math
import numbers
import os
from typing import Any

from ..display import LayerTable, next_rate
from .callbacks import all_open

__all__ = ["RunReport"]

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h1,h2{line-height:1.2} h1,p,td{overflow-wrap:anywhere} img{max-width:100%} details{margin:1rem 0}
table{border-collapse:collapse;margin:1rem 0} td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left;overflow-wrap:normal}"""


class RunReport:
    """Collect what a Trainer logs and write it, with the layer table and the learning rates, to ``report.html``.

    Add it with ``trainer.add_callback(report)`` and call `write` when the run is over, or has failed. Losses, metrics
    and the rates of all steps are kept in ``history.jsonl`` beside it, so that a run that was killed and resumed in its
    folder shows the part before, too. In a distributed training the main process alone writes.

    Args:
        folder (str): where both files go, usually the Trainer's `output_dir`.
        title (str): heading of the report.
        layers (LayerMap): the layers whose rates are shown.

    Attributes:
        config (LdoptConfig|None): shown as "Optimizer and schedule"; the Trainer's mixin sets it when training begins,
            unless the Trainer was given an optimizer.
    """

    def __init__(self, folder, title, layers):
        self.folder, self.title, self.layers = folder, title, layers
        self.config: Any = None
        self._table: Any = None  # until training begins
        self._recording = False
        self._starts: Any = None  # (tower, layer id) -> the step from which it is trained; None before the first step
        self._rates = []  # of the steps since something was logged
        self._history = os.path.join(folder, "history.jsonl")

    def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
        """Take the layer table, drop what was logged after the checkpoint that is gone on from."""
        self._recording = state.is_world_process_zero
        ahead = max(state.max_steps - 1 - state.global_step, 0)
        with all_open(optimizer):  # in all processes: those of a pipeline have a part each
            table = self.layers.table(optimizer=optimizer, num_steps=ahead)
        if self._recording:
            self._table = table
            self._starts = None
            self._rates = []
            kept = [line for line in self.history() if line["step"] <= state.global_step] if state.global_step else []
            os.makedirs(self.folder, exist_ok=True)
            _write(self._history, "".join(json.dumps(line) + "\n" for line in kept))

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        """Note the rate of the step, and before the first when each layer is opened (other callbacks say so)."""
        if self._recording and self._starts is None:
            with all_open(optimizer) as start_of:
                self._starts = {(row.tower, row.index): start_of(row.tower, row.index) for row in self._table.rows}
        self._rates.append(next_rate(optimizer))

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Keep losses and metrics; the summary at the end is no point of a curve."""
        found = {key: float(value) for key, value in (logs or {}).items() if isinstance(value, numbers.Real)}
        if any(key == "loss" or key.startswith("eval_") for key in found):
            self._record(state.global_step, found)

    def on_train_end(self, args, state, control, **kwargs):
        """Stop recording: what is evaluated from now on may be another model, the best one."""
        if self._rates:
            self._record(state.global_step, {})
        self._recording = False

    def _record(self, step, found):
        if self._recording:
            with open(self._history, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **found, "learning_rates": self._rates}) + "\n")
            self._rates = []

    def __getattr__(self, name):  # a TrainerCallback in all but its base class, which is another in every package
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)

    def history(self):
        """Return what was logged: a list of dicts with "step" and "learning_rates", those of the steps up to it.

        A line that was cut short by a crash is left out.
        """
        if not os.path.exists(self._history):
            return []
        with open(self._history, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def write(self, results, settings, description=""):
        """Write the report.

        Args:
            results (dict[str, float|str]): what came of it, shown first.
            settings (dict): every setting of the run.
            description (str): what it was trained on.

        Returns:
            str|None: the path of ``report.html``; None before training has begun, and in all but the main process.
        """
        if self._table is None:
            return None
        history = self.history()
        rates: dict[int, float] = {}  # of each step
        for line in history:
            first = line["step"] + 1 - len(line["learning_rates"])
            rates.update(enumerate(line["learning_rates"], first))
        parts = [
            f"<h1>{html.escape(self.title)}</h1><p>{html.escape(description)}</p>",
            "<h2>Results</h2>" + _pairs(results),
            "<h2>Layers</h2>" + _table(*_with_peaks(self._table, rates, self._starts or {}).cells()),
            "<h2>Learning rates</h2>" + self._rate_plot(self._table.rows, rates),
            "" if self.config is None else "<h2>Optimizer and schedule</h2>" + _pairs(self.config.to_dict()),
            "<h2>Loss and metrics</h2>" + _image("loss and metrics by step", _draw_history, history, panels=2),
            f"<details><summary>Settings</summary>{_pairs(settings)}</details>",
        ]
        page = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
            f"<style>{_STYLE}</style>{''.join(parts)}</html>\n"
        )
        path = os.path.join(self.folder, "report.html")
        _write(path, page)
        return path

    def _rate_plot(self, rows, rates):
        """Return one panel a tower, in which what several towers share is drawn too."""
        towers: dict[str, list] = {tower: [] for tower in self.layers.towers or [""]}
        for row in rows:
            for tower in [row.tower] if row.tower in towers else towers:
                towers[tower].append(row)
        return _image(
            "learning rate of each layer by step", _draw_rates, towers, rates, self._starts or {}, panels=len(towers)
        )


def _with_peaks(table, rates, starts):
    """Return the table with the highest rates that were used, in place of those at the moment training began."""
    if not rates:
        return table
    peaks = [
        max((rate for step, rate in rates.items() if step > starts.get((row.tower, row.index), 0)), default=0.0)
        for row in table.rows
    ]
    used = [(row.ratio[0] * peak, row.ratio[1] * peak) for row, peak in zip(table.rows, peaks)]
    return LayerTable(
        [dataclasses.replace(row, learning_rate=None, peak_learning_rate=ends) for row, ends in zip(table.rows, used)]
    )


def _draw_rates(axes, towers, rates, starts):
    """Draw the rate of every layer, from the embeddings (light) to the head (dark)."""
    top = max((row.ratio[1] for rows in towers.values() for row in rows), default=1) * max(rates.values(), default=1)
    for axis, (tower, rows) in zip(axes, towers.items()):
        rows = sorted(rows, key=lambda row: row.index)
        for i, row in enumerate(rows):
            shade = str(0.8 * (1 - i / max(len(rows) - 1, 1)))
            named = row.label if i in (0, len(rows) - 1) else None
            ratio = 0 if row.frozen == row.tensors else row.ratio[1]
            start = starts.get((row.tower, row.index), 0)
            heights = [ratio * rate if step > start else 0.0 for step, rate in rates.items()]
            axis.plot(list(rates), heights, color=shade, lw=1.2, label=named)
        axis.set_title(tower if len(towers) > 1 else "", fontsize="medium")
        axis.set_xlabel("step")
        axis.set_ylabel("learning rate")
        axis.set_ylim(0, 1.05 * top or None)  # the same in all panels
        axis.legend()


def _draw_history(axes, history):
    """Draw the losses on the left, all other metrics on the right; gaps where a value is not finite."""
    speed = ("_runtime", "_per_second")
    keys = dict.fromkeys(key for line in history for key in line if key == "loss" or key.startswith("eval_"))
    for key in (key for key in keys if not key.endswith(speed)):
        axis = axes[0 if key in ("loss", "eval_loss") else 1]
        points = [(line["step"], line[key]) for line in history if key in line]
        lost = sum(not math.isfinite(value) for _, value in points)
        label = f"{key} ({lost} not finite)" if lost else key
        heights = [value if math.isfinite(value) else math.nan for _, value in points]
        axis.plot([step for step, _ in points], heights, marker="." if key != "loss" else None, label=label)
    for axis in axes:
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()


def _image(alt, draw, *data, panels=1):
    """Return an <img> of a figure with two panels a row that `draw(axes, *data)` fills."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = math.ceil(panels / 2), min(panels, 2)
    figure = Figure(figsize=(9, 3.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    draw(axes[:panels], *data)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return f'<img alt="{alt}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def _pairs(values):
    return _table((), [(name, f"{v:.4g}" if isinstance(v, float) else v) for name, v in values.items()])


def _table(header, rows):
    head = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>" if head else f"<table>{body}</table>"


def _write(path, text):
    """Write a file whole or not at all: a process that is killed meanwhile leaves the old one."""
    with open(path + ".tmp", "w", encoding="utf-8", errors="backslashreplace") as file:  # file names may be no UTF-8
        file.write(text)
    os.replace(path + ".tmp", path)
