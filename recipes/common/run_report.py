"""The run report: one self-contained HTML file with the settings, the rates and the results of a run."""

import dataclasses
import datetime
import html
import json
import math
import numbers
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Optional
from urllib.parse import quote

import paddle
from paddle.optimizer import Optimizer

from paddle_ldopt import LayerMap
from paddle_ldopt.layers.table import LayerTable
from paddle_ldopt.plots import draw_rates, font_families, name_lines
from paddle_ldopt.rates import applied_rates, next_rate
from paddle_ldopt.trainer import write_whole
from paddle_ldopt.trainer.callbacks import Callback, all_layers_open

from . import report_page as page


class RunReport(Callback):
    """Write ``report.html``: date, machine and versions, results, curves, layer table, learning rates and settings.

    Add it with ``trainer.add_callback(report)`` and call `write` when the run has ended or failed. The page needs no
    network and no other file, and links to the files beside it. ``history.jsonl`` keeps losses, metrics and the rates
    of all steps, so the report of a resumed run also shows the part before. Only the main process writes. `config`, a
    `LdoptConfig`, is shown as "Optimizer and schedule".

    Args:
        folder: folder of both files, usually the Trainer's `output_dir`.
        title: heading of the report.
        layers: the layers whose rates are shown.
    """

    def __init__(self, folder: str, title: str, layers: LayerMap):
        self.folder, self.title, self.layers = folder, title, layers
        self.config: Any = None
        self.facts: dict[str, Any] = {}  # facts of the run, at the top of the page
        self._table: Any = None  # None until training begins
        self._recording = False
        self._starts: Any = None  # (tower, layer id) -> the step from which it is trained; None before the first step
        self._rates: list[Any] = []  # rates of the steps since the last log
        self._history = os.path.join(self.folder, "history.jsonl")

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Take the layer table; drop the lines logged after the checkpoint that the run resumes from."""
        self._recording = state.is_world_process_zero
        self.facts = {} if args is None else run_facts(args)
        table = self.layers.table(optimizer=all_layers_open(optimizer)[0])  # in all processes: each may have a stage
        if self._recording:
            self._table, self._starts, self._rates = table, None, []
            kept = [line for line in self.history() if line["step"] <= state.global_step] if state.global_step else []
            os.makedirs(self.folder, exist_ok=True)
            write_whole(self._history, "".join(json.dumps(line) + "\n" for line in kept))

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Record the rate of the step if known; before the first step, also the step that unfreezes each layer."""
        if self._recording and self._starts is None:
            self._starts = all_layers_open(optimizer)[1]
        if self._recording and not _reports(optimizer):
            self._rates.append(next_rate(optimizer))

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Record the greatest rate of each layer if the optimizer sets its own rates."""
        if self._recording and _reports(optimizer):
            self._rates.append(self._by_layer(optimizer))

    def _by_layer(self, optimizer: Optimizer) -> list[Optional[float]]:
        """Return the greatest rate of each row of the table; None for a row without parameters in this process."""
        of_layer: dict[Any, list[float]] = {}
        for tensor, rate in applied_rates(optimizer).items():
            layer = self.layers.layer_of(tensor)
            of_layer.setdefault((layer.tower, layer.index), []).append(rate)
        return [max(of_layer.get((row.tower, row.index), []), default=None) for row in self._table.rows]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep losses and metrics, but not the summary at the end."""
        values = {key: float(value) for key, value in (logs or {}).items() if isinstance(value, numbers.Real)}
        if any(key == "loss" or key.startswith("eval_") for key in values):
            self._record(state.global_step, values)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop recording: later evaluations may use another model, the best."""
        if self._rates:
            self._record(state.global_step, {})
        self._recording = False

    def _record(self, step: int, values: dict[str, float]) -> None:
        if self._recording:
            with open(self._history, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **values, "learning_rates": self._rates}) + "\n")
            self._rates = []

    def history(self) -> list[dict[str, Any]]:
        """Return the logged lines, with "step" and the "learning_rates" of the steps up to it.

        The rate of a step is the rate of a layer whose ratio is 1. If the optimizer sets each rate itself, it is a list
        of each layer's greatest rate (None in another pipeline stage). Lines cut short by a crash are skipped.
        """
        if not os.path.exists(self._history):
            return []
        with open(self._history, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def write(
        self,
        results: dict[str, Any],
        settings: dict[str, Any],
        description: str = "",
        *,
        tables: Optional[dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]]] = None,
        baseline: Optional[tuple[str, str, float]] = None,
        defaults: Optional[dict[str, Any]] = None,
    ) -> Optional[str]:
        """Write the report; return its path, or None before training and in all processes except the main one.

        Args:
            results: name -> value, shown first. Lists and dicts are skipped; `tables` show them.
            settings: all settings of the run.
            description: a description of the training data.
            tables: further results: title -> (header, rows).
            baseline: (metric, name, value), a line in the plot of the metric.
            defaults: defaults of the settings. Settings with other values are shown first.
        """
        if self._table is None:
            return None
        history = self.history()
        rates: dict[int, Any] = {}  # step -> rate
        for line in history:
            rates.update(enumerate(line["learning_rates"], line["step"] + 1 - len(line["learning_rates"])))
        curves = _curves(self._table.rows, rates, self._starts or {})
        shown = {name: value for name, value in results.items() if not isinstance(value, (dict, list))}
        config = {} if self.config is None else {"Optimizer and schedule": page.pairs(self.config.to_dict())}
        if defaults is not None:
            changed = {name: v for name, v in settings.items() if name not in defaults or defaults[name] != v}
            config = {"Settings that differ from the defaults": page.pairs(changed), **config}
        logs = self.facts.get("logging folder")
        parts = [
            page.paragraph(description),
            page.section("Run", page.pairs(self.facts)) if self.facts else "",
            page.side_by_side(
                page.section("Results", page.pairs(shown)),
                page.section(
                    "Loss and metrics",
                    page.plots("loss and metrics by step", _draw_history, history, baseline, panels=2)
                    + (page.paragraph(f"In VisualDL: visualdl --logdir {logs}") if logs else ""),
                ),
            ),
            page.side_by_side(*(page.section(name, page.table(*cells)) for name, cells in (tables or {}).items())),
            page.side_by_side(
                page.section(
                    "Layers",
                    page.table(*_with_peaks(self._table, curves).cells()) + page.paragraph(self._table.caption),
                ),
                page.section("Learning rates", self._rate_plots(curves, list(rates))),
            ),
            page.side_by_side(
                *(page.section(name, content) for name, content in config.items()),
                page.section("Files", _links(self.folder)),
            ),
            page.folded("All settings", page.pairs(settings)),
        ]
        page.write_page(path := os.path.join(self.folder, "report.html"), self.title, parts)
        return path

    def _rate_plots(self, curves: list[Any], steps: list[int]) -> str:
        """Return one panel for each tower, with the layers that several towers share in each."""
        towers: dict[str, list[Any]] = {tower: [] for tower in self.layers.towers or [""]}
        for row, heights in zip(self._table.rows, curves):
            for tower in [row.tower] if row.tower in towers else towers:
                towers[tower].append((row, heights))
        return page.plots("learning rate of each layer by step", _draw_towers, towers, steps, panels=len(towers))


def _reports(optimizer: Optimizer) -> bool:
    """Return whether an optimizer computes its rates and keeps those of the last step."""
    return getattr(optimizer, "last_used_lr", lambda: None)() is not None


def _curves(rows: Iterable[Any], rates: dict[int, Any], starts: dict[Any, int]) -> list[Any]:
    """Return each row's greatest rate by step, and its lowest and highest rate at the peak.

    Rows that this process's optimizer does not train are None.
    """
    per_layer = any(isinstance(rate, list) for rate in rates.values())

    def curve(i: int, row: Any) -> Any:
        layer_rates = [rate[i] if per_layer else rate for rate in rates.values()]
        if None in layer_rates:
            return None
        start = starts.get((row.tower, row.index), 0)
        heights = [rate if step > start else 0.0 for step, rate in zip(rates, layer_rates)]
        low, high = (1.0, 1.0) if per_layer else row.ratio
        peak, drawn_ratio = max(heights, default=0.0), 0.0 if row.frozen == row.tensors else high
        return [drawn_ratio * rate for rate in heights], (low * peak, high * peak)

    return [curve(i, row) for i, row in enumerate(rows)]


def _with_peaks(table: LayerTable, curves: list[Any]) -> LayerTable:
    """Return the table with the highest rates of the run instead of the rates at the first step."""
    if not any(curve and curve[0] for curve in curves):
        return table
    peaks = [curve and curve[1] for curve in curves]
    rows = [dataclasses.replace(r, learning_rate=None, peak_learning_rate=p) for r, p in zip(table.rows, peaks)]
    return dataclasses.replace(table, rows=rows)


def _draw_towers(axes: list[Any], towers: dict[str, list[Any]], steps: list[int]) -> None:
    """Draw a panel for each tower."""
    top = max((max(curve[0], default=0.0) for rows in towers.values() for _, curve in rows if curve), default=0.0)
    for axis, (tower, rows) in zip(axes, towers.items()):
        rows = sorted(rows, key=lambda pair: pair[0].index)
        draw_rates(axis, steps, [(row.label, curve[0]) for row, curve in rows if curve])
        axis.set_title(
            tower if len(towers) > 1 else "", fontsize="medium", parse_math=False, fontfamily=font_families()
        )
        axis.set(xlabel="step", ylabel="learning rate", ylim=(0, 1.05 * top or None))  # the same in all panels
        axis.ticklabel_format(axis="y", scilimits=(-2, 3))


def _draw_history(axes: list[Any], history: list[dict[str, Any]], baseline: Any = None) -> None:
    """Draw the losses on the left, other metrics and the baseline on the right; gaps where a value is not finite."""
    keys = dict.fromkeys(key for line in history for key in line if key == "loss" or key.startswith("eval_"))
    for key in (key for key in keys if not key.endswith(("_runtime", "_per_second"))):
        axis = axes[0 if key in ("loss", "eval_loss") else 1]
        points = [(line["step"], line[key]) for line in history if key in line]
        lost = sum(not math.isfinite(value) for _, value in points)
        label = f"{key} ({lost} not finite)" if lost else key
        heights = [value if math.isfinite(value) else math.nan for _, value in points]
        marker = "." if key != "loss" or len(points) == 1 else None  # a line of one point is invisible
        axis.plot([step for step, _ in points], heights, marker=marker, label=label)
    if baseline is not None and f"eval_{baseline[0]}" in keys:
        metric, name, value = baseline
        axes[1].axhline(value, color="0.5", ls="--", lw=1, label=f"{metric} of the baseline ({name})")
    for axis in axes:
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.grid(alpha=0.3)
        if axis.lines:
            name_lines(axis)


def _links(folder: str) -> str:
    """Return links to the files beside the report."""
    names = sorted(name for name in os.listdir(folder) if name != "report.html" and not name.endswith(".part"))
    items = [f'<li><a href="./{quote(os.fsencode(name))}">{html.escape(name)}</a></li>' for name in names]
    return f"<ul>{''.join(items)}</ul>"


def run_facts(args: Any) -> dict[str, Any]:
    """Return date, versions, machine, command, batch, seed and length of the run with these Trainer's arguments."""
    facts = {
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "versions": _versions(),
        "machine": f"{_processor()}, {os.cpu_count()} cores; {platform.platform(terse=True)}",
        "device": paddle.get_device(),
        "command": shlex.join([os.path.basename(sys.executable), *sys.argv]),
    }
    processes = paddle.distributed.get_world_size()
    batch = getattr(args, "per_device_train_batch_size", getattr(args, "batch_size", None))
    if batch is not None:
        accumulated = getattr(args, "gradient_accumulation_steps", 1)
        facts["batch"] = batch * accumulated * processes
        if accumulated * processes > 1:
            facts["batch"] = f"{facts['batch']}: {batch} rows, {accumulated} accumulated, {processes} process(es)"
    epochs = "num_train_epochs" if hasattr(args, "num_train_epochs") else "epochs"
    length = {"steps": "max_steps"} if getattr(args, "max_steps", -1) > 0 else {"epochs": epochs}
    fields = {"seed": "seed", **length, "logging folder": "logging_dir"}
    facts.update({name: getattr(args, field) for name, field in fields.items() if hasattr(args, field)})
    return facts


def _versions() -> str:
    names = [name for name in ("paddle_ldopt", "paddle", "paddlenlp", "paddleformers") if name in sys.modules]
    versions = [f"{name} {sys.modules[name].__version__}" for name in names]
    return ", ".join([*versions, f"Python {platform.python_version()}"])


def _processor() -> str:
    """Return the name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux
        return platform.processor() or platform.machine()
