"""Reports: self-contained pages of tables and plots, for wide windows and phones, light and dark."""

import base64
import dataclasses
import html
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

import numpy as np
import paddle
from PIL import Image

from paddle_ldopt.plots import name_lines
from paddle_ldopt.trainer import write_whole
from paddle_ldopt.trainer.callbacks import Callback, all_layers_open

_STYLE = """:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1,h2{line-height:1.2} h1,p,td,li{overflow-wrap:anywhere} a{color:#0969da}
.row{display:flex;flex-wrap:wrap;gap:0 2.5rem} .row>*{max-width:100%;min-width:0} .row>:has(img){flex:1 1 22rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr))}
img{width:100%;max-width:40rem} img.small{width:auto;max-width:6rem;display:block}
.wide{overflow-x:auto} .wide :is(td,th){white-space:nowrap}
.pairs td{text-align:left} .wide td:first-child{white-space:normal;min-width:6rem}
table{border-collapse:collapse;margin:0 0 1rem}
td,th{padding:.2rem .6rem;border-bottom:1px solid #8884;text-align:right}
td:first-child,th:first-child{text-align:left;padding-left:0;overflow-wrap:normal}
@media(max-width:40rem){body{margin:1rem auto} h1{font-size:1.4rem} .wide{font-size:.8em} td,th{padding:.2rem .35rem}}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#191919} a{color:#6cb6ff}
img:not(.small){filter:invert(.9) hue-rotate(180deg)}}"""


def write_page(path, title, parts):
    """Write a page: its title and its parts, which are HTML of `section`, `side_by_side` or `paragraph`."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    page = (
        f'<!doctype html><html lang="en">{head}<title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>{''.join(parts)}</html>\n"
    )
    write_whole(path, page)


def paragraph(text):
    return f"<p>{html.escape(text)}</p>"


def section(title, content):
    """Return a heading in plain text and its content, which is HTML."""
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


def side_by_side(*sections):
    """Return sections that stand side by side where the window is wide enough."""
    return f'<div class="row">{"".join(sections)}</div>'


def pairs(values):
    cells = table((), [(name, f"{v:.4g}" if isinstance(v, float) else v) for name, v in values.items()])
    return f'<div class="pairs">{cells}</div>'


def table(header, rows):
    """Return a table of plain text and images; with a header it scrolls sideways where the window is narrow."""
    head = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>' if head else f"<table>{body}</table>"


def _cell(value):
    """Return a cell; a path or the pixels of an image become a thumbnail."""
    if not isinstance(value, (Path, np.ndarray)):
        return html.escape(str(value))
    with Image.open(value) if isinstance(value, Path) else Image.fromarray(value) as opened:
        small = opened.convert("RGB")
    small.thumbnail((96, 96))
    small.save(buffer := io.BytesIO(), format="png")
    name = value.name if isinstance(value, Path) else ""
    return f'<img class="small" alt="" src="{_source(buffer.getvalue())}">{html.escape(name)}'


def _source(png):
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def plots(alt, draw, *data, panels=1):
    """Return one image for each panel, drawn by `draw(axes, *data)`."""
    from matplotlib.figure import Figure

    figures = [Figure(figsize=(5, 3), layout="constrained") for _ in range(panels)]
    draw([figure.subplots() for figure in figures], *data)
    return f'<div class="plots">{"".join(_image(alt, figure) for figure in figures)}</div>'


def _image(alt, figure):
    figure.savefig(buffer := io.BytesIO(), format="png", dpi=160)
    return f'<img alt="{alt}" src="{_source(buffer.getvalue())}">'


class RunReport(Callback):
    """Write ``report.html``: date, machine and versions, results, curves, layer table and settings.

    Call `write` when the run has ended or failed. The page needs no network and no other file. ``history.jsonl`` keeps
    losses and metrics, so the report of a resumed run also shows the part before. Only the main process writes.
    """

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
        """Keep losses and metrics, but not the summary at the end."""
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
        """Write the report; return its path, or None before training and in all processes except the main one.

        Lists and dicts in `results` are skipped; `tables`, title -> (header, rows), show them. `baseline`, (metric,
        name, value), is a line in the plot of the metric.
        """
        if self._table is None:
            return None
        history = self.history()
        shown = {name: value for name, value in results.items() if not isinstance(value, (dict, list))}
        curves = plots("loss and metrics by step", _draw, history, baseline, panels=len(_quantities(history)))
        layers = table(*self._table.cells()) + paragraph(f"layers: {self._table.source}")
        parts = [
            paragraph(description),
            section("Run", pairs(self._facts)),
            side_by_side(section("Results", pairs(shown)), section("Loss and metrics", curves)),
            side_by_side(*(section(name, table(*cells)) for name, cells in (tables or {}).items())),
            side_by_side(
                section("Layers", layers),
                section("Settings that differ from the defaults", pairs(settings)) if settings else "",
            ),
        ]
        write_page(path := os.path.join(self.folder, "report.html"), self.title, parts)
        return path


def _quantities(history):
    """Return the logged quantities, each with its keys; the loss is the first."""
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
    """Return date, versions, machine, command, batch, seed and length of the run with these Trainer's arguments."""
    names = [name for name in ("paddle_ldopt", "paddle", "paddlenlp", "paddleformers") if name in sys.modules]
    versions = [f"{name} {sys.modules[name].__version__}" for name in names]
    rows, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    processes = paddle.distributed.get_world_size()
    length = {"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}
    return {
        "date": datetime.now().astimezone().isoformat(" ", "minutes"),
        "versions": ", ".join([*versions, f"Python {platform.python_version()}"]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.platform(terse=True)}",
        "device": paddle.get_device(),
        "command": shlex.join([os.path.basename(sys.executable), *sys.argv]),
        "batch": f"{rows * accumulated * processes}: {rows} rows, {accumulated} accumulated, {processes} process(es)",
        "seed": args.seed,
        **length,
    }
