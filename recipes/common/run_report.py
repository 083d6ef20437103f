"""Reports: self-contained pages of tables and plots, for wide windows and phones."""

import base64
import dataclasses
import io
import json
import math
import numbers
import os
import platform
import shlex
import sys
from datetime import datetime
from pathlib import Path

import jinja2
import numpy as np
import paddle
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from paddle_ldopt.plots import name_lines
from paddle_ldopt.trainer import write_whole
from paddle_ldopt.trainer.callbacks import Callback, all_layers_open


def write_page(path, title, texts, rows):
    """Write a page of texts, and of rows of (heading, content): a dict, (header, cells, note) or `plots`."""
    pages = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, finalize=_cell)
    write_whole(path, pages.get_template("report.html").render(title=title, texts=texts, rows=rows))


def _cell(value):
    """Return a cell of a table; a path or the pixels of an image become a thumbnail."""
    if not isinstance(value, (Path, np.ndarray)):
        return value
    with Image.open(value) if isinstance(value, Path) else Image.fromarray(value) as opened:
        small = opened.convert("RGB")
    small.thumbnail((96, 96))
    small.save(buffer := io.BytesIO(), format="png")
    name = value.name if isinstance(value, Path) else ""
    return Markup('<img class="small" alt="" src="{}">{}').format(_source(buffer.getvalue()), name)


def _source(png):
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def plots(alt, draw, *data, panels=1):
    """Return one image for each panel, drawn by `draw(axes, *data)`."""
    figures = [Figure(figsize=(5, 3), layout="constrained") for _ in range(panels)]
    draw([figure.subplots() for figure in figures], *data)
    return Markup('<div class="plots">{}</div>').format(Markup("".join(_image(alt, figure) for figure in figures)))


def _image(alt, figure):
    figure.savefig(buffer := io.BytesIO(), format="png", dpi=160)
    return f'<img alt="{alt}" src="{_source(buffer.getvalue())}">'


class RunReport(Callback):
    """Write ``report.html`` when `write` is called, and ``history.jsonl``, whose lines a resumed run continues."""

    def __init__(self, folder, title, layers):
        self.folder, self.title, self.layers = folder, title, layers
        self._facts, self._table, self._recording = {}, None, False  # no table until training begins
        self._history = os.path.join(folder, "history.jsonl")

    def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
        """Take the layer table; drop the lines logged after the checkpoint that the run resumes from."""
        self._recording, rate = state.is_world_process_zero, args.learning_rate
        table = self.layers.table(optimizer=all_layers_open(optimizer)[0])  # in all processes: each may have a stage
        if self._recording:  # the peaks say more than the rates of the first step
            peak = lambda row: (row.ratio[0] * rate, row.ratio[1] * rate)  # noqa: E731
            rows = [dataclasses.replace(r, learning_rate=None, peak_learning_rate=peak(r)) for r in table.rows]
            self._facts, self._table = run_facts(args), dataclasses.replace(table, rows=rows)
            kept = [line for line in self.history() if line["step"] <= state.global_step] if state.global_step else []
            os.makedirs(self.folder, exist_ok=True)
            write_whole(self._history, "".join(json.dumps(line) + "\n" for line in kept))

    def on_log(self, args, state, control, logs=None, **kwargs):
        values = {key: float(value) for key, value in (logs or {}).items() if isinstance(value, numbers.Real)}
        if self._recording and any(key == "loss" or key.startswith("eval_") for key in values):
            with open(self._history, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **values}) + "\n")

    def on_train_end(self, args, state, control, **kwargs):
        """Stop recording: later evaluations may use another model, the best."""
        self._recording = False

    def history(self):
        """Return the logged lines, each with its "step"; lines cut short by a crash are skipped."""
        if not os.path.exists(self._history):
            return []
        with open(self._history, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def write(self, results, settings, description="", *, tables=None, baseline=None):
        """Write the report with `tables`, title -> (header, rows); return its path, None in other processes."""
        if self._table is None:
            return None
        history = self.history()
        shown = {name: value for name, value in results.items() if not isinstance(value, (dict, list))}
        curves = plots("loss and metrics by step", _draw, history, baseline, panels=len(_quantities(history)))
        layers = (*self._table.cells(), f"layers: {self._table.source}")
        rows = [
            [("Run", self._facts)],
            [("Results", shown), ("Loss and metrics", curves)],
            list((tables or {}).items()),
            [("Layers", layers), ("Settings that differ from the defaults", settings)],
        ]
        write_page(path := os.path.join(self.folder, "report.html"), self.title, [description], rows)
        return path


def _quantities(history):
    keys = dict.fromkeys(key for line in history for key in line if key == "loss" or key.startswith("eval_"))
    metrics = [key for key in keys if key != "loss" and not key.endswith(("_loss", "_runtime", "_per_second", "_ppl"))]
    return {"loss": [key for key in ("loss", "eval_loss") if key in keys], **{key[5:]: [key] for key in metrics}}


def _draw(axes, history, baseline=None):
    """Draw a panel for each quantity, with the baseline in that of its metric; gaps where a value is not finite."""
    for axis, (quantity, keys) in zip(axes, _quantities(history).items()):
        for key in keys:
            points = [(line["step"], line[key]) for line in history if key in line]
            lost = sum(not math.isfinite(value) for _, value in points)
            label = f"{key} ({lost} not finite)" if lost else key
            heights = [value if math.isfinite(value) else math.nan for _, value in points]
            marker = "." if key != "loss" or len(points) == 1 else None  # a line of one point is invisible
            axis.plot([step for step, _ in points], heights, marker=marker, label=label)
        if baseline is not None and quantity == baseline[0]:
            axis.axhline(baseline[2], color="0.5", ls="--", lw=1, label=f"{quantity} of the baseline ({baseline[1]})")
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.grid(alpha=0.3)
        if axis.lines:
            name_lines(axis)


def run_facts(args):
    names = ("paddle_ldopt", "paddle", "paddlenlp", "paddleformers")
    versions = [f"{name} {sys.modules[name].__version__}" for name in names if name in sys.modules]
    rows, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    processes = paddle.distributed.get_world_size()
    return {
        "date": datetime.now().astimezone().isoformat(" ", "minutes"),
        "versions": ", ".join([*versions, f"Python {platform.python_version()}"]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.platform(terse=True)}",
        "device": paddle.get_device(),
        "command": shlex.join([os.path.basename(sys.executable), *sys.argv]),
        "batch": f"{rows * accumulated * processes}: {rows} rows, {accumulated} accumulated, {processes} process(es)",
        "seed": args.seed,
        **({"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}),
    }
