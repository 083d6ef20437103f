"""The run report: one self-contained HTML file with what was trained, how, and what came of it."""

import base64
import dataclasses
import html
import io
import json
import math
import numbers
import os
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional
from urllib.parse import quote

from .._files import Path, checked_path
from .._messages import wrong_type
from .._paddle import parameters_of
from ..layers.map import LayerMap
from ..layers.rates import applied_rates, next_rate, used_rates
from ..layers.ratios import moves, ratios_of
from ..layers.table import LayerTable
from ..plots import name_lines
from .base import Callback
from .folders import write_whole
from .unfreezing import all_open

_STYLE = """:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1,h2{line-height:1.2} h1,p,td,li{overflow-wrap:anywhere} a{color:#0969da} details{margin:1rem 0}
.row{display:flex;flex-wrap:wrap;gap:0 2.5rem} .row>*{max-width:100%} .row>:has(img){flex:1 1 22rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr))}
img{width:100%;max-width:40rem} .wide{overflow-x:auto} .wide :is(td,th){white-space:nowrap}
table{border-collapse:collapse;margin:0 0 1rem}
td,th{padding:.2rem .6rem;border-bottom:1px solid #8884;text-align:right}
td:first-child,th:first-child{text-align:left;padding-left:0;overflow-wrap:normal}
@media(max-width:40rem){.wide{font-size:.8em} td,th{padding:.2rem .35rem}}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#191919} a{color:#6cb6ff}
img{filter:invert(.9) hue-rotate(180deg)}}"""


class RunReport(Callback):
    """Collect what a Trainer logs and write it, with the layer table and the learning rates, to ``report.html``.

    Add it with ``trainer.add_callback(report)`` and call `write` when the run is over, or has failed. The page needs no
    network and no other file, and links to the files beside it. ``history.jsonl`` keeps losses, metrics and the rates
    of all steps, so that the report of a resumed run shows the part before, too. The main process alone writes.
    `config`, a `LdoptConfig`, is shown as "Optimizer and schedule"; the Trainer's mixin sets it when training begins,
    unless the Trainer was given an optimizer.

    Args:
        folder: where both files go, usually the Trainer's `output_dir`.
        title: heading of the report.
        layers: the layers whose rates are shown.
    """

    def __init__(self, folder: Path, title: str, layers: LayerMap):
        if not hasattr(layers, "table"):
            raise wrong_type(layers, "layers", "a LayerMap")
        self.folder, self.title, self.layers = checked_path(folder, "folder"), title, layers
        self.config: Any = None
        self._table: Any = None  # until training begins
        self._recording = False
        self._starts: Any = None  # (tower, layer id) -> the step from which it is trained; None before the first step
        self._rates: list[Any] = []  # of the steps since something was logged
        self._history = os.path.join(self.folder, "history.jsonl")

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Take the layer table, drop what was logged after the checkpoint that is gone on from."""
        self._recording = state.is_world_process_zero
        ahead = max(state.max_steps - 1 - state.global_step, 0)
        # in all processes: those of a pipeline have a part each
        table = self.layers.table(optimizer=all_open(optimizer)[0], num_steps=ahead)
        if self._recording:
            self._table, self._starts, self._rates = table, None, []
            kept = [line for line in self.history() if line["step"] <= state.global_step] if state.global_step else []
            os.makedirs(self.folder, exist_ok=True)
            write_whole(self._history, "".join(json.dumps(line) + "\n" for line in kept))

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Note the rate of the step if it is known by then, and before the first when each layer is opened."""
        if self._recording and self._starts is None:
            self._starts = all_open(optimizer)[1]
        if self._recording and moves(ratios_of(optimizer)):
            self._rates.append(self._by_layer(all_open(optimizer)[0]))
        elif self._recording and used_rates(optimizer) is None:
            self._rates.append(next_rate(optimizer))

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Note the greatest rate of each layer if the optimizer has set the rates itself in the step."""
        if self._recording and used_rates(optimizer) is not None and not moves(ratios_of(optimizer)):
            self._rates.append(self._by_layer(optimizer))

    def _by_layer(self, optimizer: Any) -> list[Optional[float]]:
        """Return the greatest rate of each row of the table; None where this process has no parameter of it."""
        applied = applied_rates(optimizer)
        of_layer: dict[Any, list[float]] = {}
        for param in parameters_of(optimizer):
            layer = self.layers.layer_of(param.name)
            of_layer.setdefault((layer.tower, layer.index), []).append(applied[param.name])
        return [max(of_layer.get((row.tower, row.index), []), default=None) for row in self._table.rows]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep losses and metrics; the summary at the end is no point of a curve."""
        found = {key: float(value) for key, value in (logs or {}).items() if isinstance(value, numbers.Real)}
        if any(key == "loss" or key.startswith("eval_") for key in found):
            self._record(state.global_step, found)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop recording: what is evaluated from now on may be another model, the best one."""
        if self._rates:
            self._record(state.global_step, {})
        self._recording = False

    def _record(self, step: int, found: dict[str, float]) -> None:
        if self._recording:
            with open(self._history, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **found, "learning_rates": self._rates}) + "\n")
            self._rates = []

    def history(self) -> list[dict[str, Any]]:
        """Return the logged lines, with "step" and the "learning_rates" of the steps up to it.

        The rate of a step is that of a layer whose ratio is 1; where the optimizer sets each rate itself, a list of the
        greatest one of each layer (None in another pipeline stage). Lines cut short by a crash are left out.
        """
        if not os.path.exists(self._history):
            return []
        with open(self._history, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def write(self, results: dict[str, Any], settings: dict[str, Any], description: str = "") -> Optional[str]:
        """Write the report; return its path, None before training has begun and in all but the main process.

        It shows the results first, then the `description`: the data of the training.
        """
        if self._table is None:
            return None
        history = self.history()
        rates: dict[int, Any] = {}  # of each step
        for line in history:
            rates.update(enumerate(line["learning_rates"], line["step"] + 1 - len(line["learning_rates"])))
        curves = _curves(self._table.rows, rates, self._starts or {})
        config = "" if self.config is None else _section("Optimizer and schedule", _pairs(self.config.to_dict()))
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        parts = [
            f"<h1>{html.escape(self.title)}</h1><p>{html.escape(description)}</p>",
            '<div class="row">',
            _section("Results", _pairs(results)),
            _section("Loss and metrics", _plots("loss and metrics by step", _draw_history, history, panels=2)),
            '</div><div class="row">',
            _section("Layers", _table(*_with_peaks(self._table, curves).cells())),
            _section("Learning rates", self._rate_plots(curves, list(rates))),
            '</div><div class="row">',
            config,
            _section("Files", _links(self.folder)),
            "</div>",
            f"<details><summary>Settings</summary>{_pairs(settings)}</details>",
        ]
        page = (
            f'<!doctype html><html lang="en">{head}<title>{html.escape(self.title)}</title>'
            f"<style>{_STYLE}</style>{''.join(parts)}</html>\n"
        )
        write_whole(path := os.path.join(self.folder, "report.html"), page)
        return path

    def _rate_plots(self, curves: list[Any], steps: list[int]) -> str:
        """Return one panel a tower, in which what several towers share is drawn too."""
        towers: dict[str, list[Any]] = {tower: [] for tower in self.layers.towers or [""]}
        for row, heights in zip(self._table.rows, curves):
            for tower in [row.tower] if row.tower in towers else towers:
                towers[tower].append((row, heights))
        return _plots("learning rate of each layer by step", _draw_rates, towers, steps, panels=len(towers))


def _curves(rows: Iterable[Any], rates: dict[int, Any], starts: dict[Any, int]) -> list[Any]:
    """Return of each row its greatest rate by step, and the least and the greatest one at the peak.

    None stands for a row that the optimizer of this process does not train and knows nothing of.
    """
    each = any(isinstance(rate, list) for rate in rates.values())

    def curve(i: int, row: Any) -> Any:
        own = [rate[i] if each else rate for rate in rates.values()]
        if None in own:
            return None
        start = starts.get((row.tower, row.index), 0)
        opened = [rate if step > start else 0.0 for step, rate in zip(rates, own)]
        low, high = (1.0, 1.0) if each else row.ratio
        peak, drawn = max(opened, default=0.0), 0.0 if row.frozen == row.tensors else high
        return [drawn * rate for rate in opened], (low * peak, high * peak)

    return [curve(i, row) for i, row in enumerate(rows)]


def _with_peaks(table: LayerTable, curves: list[Any]) -> LayerTable:
    """Return the table with the highest rates that were used, in place of those at the moment training began."""
    if not any(curve and curve[0] for curve in curves):
        return table
    rows = [(row, curve and curve[1]) for row, curve in zip(table.rows, curves)]
    return LayerTable([dataclasses.replace(row, learning_rate=None, peak_learning_rate=peak) for row, peak in rows])


def _draw_rates(axes: list[Any], towers: dict[str, list[Any]], steps: list[int]) -> None:
    """Draw the rate of every layer, from the embeddings (light) to the head (dark)."""
    top = max((max(curve[0], default=0.0) for rows in towers.values() for _, curve in rows if curve), default=0.0)
    for axis, (tower, rows) in zip(axes, towers.items()):
        rows = sorted(rows, key=lambda pair: pair[0].index)
        for i, (row, curve) in enumerate(rows):
            if curve:
                shade = str(0.75 * (1 - i / max(len(rows) - 1, 1)))
                named = row.label if i in (0, len(rows) - 1) else None
                axis.plot(steps, curve[0], color=shade, lw=1.2, label=named)
        axis.set_title(tower if len(towers) > 1 else "", fontsize="medium", parse_math=False)
        axis.set(xlabel="step", ylabel="learning rate", ylim=(0, 1.05 * top or None))  # the same in all panels
        axis.ticklabel_format(axis="y", scilimits=(-2, 3))
        name_lines(axis)


def _draw_history(axes: list[Any], history: list[dict[str, Any]]) -> None:
    """Draw the losses on the left, all other metrics on the right; gaps where a value is not finite."""
    keys = dict.fromkeys(key for line in history for key in line if key == "loss" or key.startswith("eval_"))
    for key in (key for key in keys if not key.endswith(("_runtime", "_per_second"))):
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
            name_lines(axis)


def _plots(alt: str, draw: Callable[..., None], *data: Any, panels: int = 1) -> str:
    """Return one <img> a panel, all filled by `draw(axes, *data)`: side by side where the window is wide enough."""
    from matplotlib.figure import Figure

    figures = [Figure(figsize=(5, 3), layout="constrained") for _ in range(panels)]
    draw([figure.subplots() for figure in figures], *data)
    return f'<div class="plots">{"".join(_image(alt, figure) for figure in figures)}</div>'


def _image(alt: str, figure: Any) -> str:
    figure.savefig(buffer := io.BytesIO(), format="png", dpi=160)
    return f'<img alt="{alt}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _links(folder: str) -> str:
    """Return links to what a run has left beside its report."""
    names = sorted(name for name in os.listdir(folder) if name != "report.html" and not name.endswith(".part"))
    items = [f'<li><a href="./{quote(os.fsencode(name))}">{html.escape(name)}</a></li>' for name in names]
    return f"<ul>{''.join(items)}</ul>"


def _pairs(values: dict[str, Any]) -> str:
    return _table((), [(name, f"{v:.4g}" if isinstance(v, float) else v) for name, v in values.items()])


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>' if head else f"<table>{body}</table>"
