"""The layer table and its plot: what each layer gets, read back from what the optimizer really uses."""

import csv
import dataclasses
import io
import itertools
import math
import os
import re
import warnings
from typing import Optional

import paddle

from .arguments import as_float, checked_number, shown
from .hooks import asks_for_rates, copy_schedule, groups_by_name, parameters_of, stand_in, unwrap

__all__ = [
    "LayerRow",
    "LayerTable",
    "applied_ratios",
    "applied_rates",
    "follows_metric",
    "markdown",
    "next_rate",
    "peak_learning_rate",
    "plot_schedule",
    "rate_divisor",
    "rich_table",
    "schedule_rates",
    "short_names",
    "text_plot",
    "used_rates",
    "write_schedule",
]

MOST_POINTS = 10_000  # of a schedule in a file: beyond that, every k-th step


@dataclasses.dataclass(frozen=True)
class Rate:
    """What one parameter gets: the ratio to the optimizer's rate, the rate now and at the schedule's peak if known."""

    ratio: float
    now: Optional[float]
    peak: Optional[float]
    decayed: Optional[bool]
    frozen: bool


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """One layer of a `LayerTable`.

    Args:
        tower (str): the stack it belongs to; "" for what belongs to several.
        index (int): layer id: 0 = embeddings, 1..n = blocks, n + 1 = head.
        label (str): "embeddings", "block 3", "head".
        tensors (int): number of parameters.
        elements (int): their elements; None if only names are known.
        ratio (tuple[float, float]): least and greatest ratio to the optimizer's rate.
        learning_rate (tuple[float, float]): least and greatest rate now; None if unknown.
        peak_learning_rate (tuple[float, float]): the same at the peak of the schedule.
        decayed (int): how many of the tensors decay; None if unknown.
        frozen (int): how many of the tensors are not trained.
    """

    tower: str
    index: int
    label: str
    tensors: int
    elements: Optional[int]
    ratio: tuple
    learning_rate: Optional[tuple]
    peak_learning_rate: Optional[tuple]
    decayed: Optional[int]
    frozen: int


class LayerTable:
    """The layers of a model from embeddings to head, with what each one gets; made by `LayerMap.table`.

    Running statistics of batch normalization are not in it: Paddle lists them as parameters, but nothing trains them.

    Attributes:
        rows (list[LayerRow]): one row a layer and tower.
    """

    def __init__(self, rows):
        self.rows = rows

    @classmethod
    def build(cls, tensors, layer_of, rates):
        """Group tensor name -> (structured name, Parameter or None) and tensor name -> `Rate` by layer."""
        grouped: dict = {}
        for tensor_name, (name, param) in tensors.items():
            statistic = name.split(".")[-1] in ("_mean", "_variance") and (param is None or param.stop_gradient)
            if tensor_name in rates and not statistic:
                grouped.setdefault(layer_of(name), []).append((param, rates[tensor_name]))
        towers = list(dict.fromkeys(layer.tower for layer in grouped))
        order = sorted(grouped, key=lambda layer: (towers.index(layer.tower), layer.index))
        return cls([_row(layer, grouped[layer]) for layer in order])

    def to_dict(self):
        """Return the rows as a list of dicts that JSON can hold."""
        return [dataclasses.asdict(row) for row in self.rows]

    def to_markdown(self):
        """Return the table as GitHub Markdown."""
        return markdown(*self.cells())

    def __rich__(self):
        return rich_table(*self.cells())

    def __str__(self):
        from rich.console import Console

        page = io.StringIO()
        Console(file=page, width=200, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in page.getvalue().strip("\n").splitlines())

    def cells(self):
        """Return the header and the rows as text; columns about which nothing is known are left out."""
        prefix = short_names([row.tower for row in self.rows])
        columns = {
            "layer": [prefix[row.tower] + row.label for row in self.rows],
            "tensors": [str(row.tensors) for row in self.rows],
            "parameters": [_count(row.elements) for row in self.rows],
            "ratio": [_span(row.ratio, "{:.4g}") for row in self.rows],
            "lr now": [_span(row.learning_rate, "{:.3g}") for row in self.rows],
            "lr peak": [_span(row.peak_learning_rate, "{:.3g}") for row in self.rows],
            "decayed": [_share(row.decayed, row.tensors) for row in self.rows],
            "frozen": [_share(row.frozen, row.tensors) for row in self.rows],
        }
        known = {name: cells for name, cells in columns.items() if any(cell != "-" for cell in cells)}
        return list(known), list(zip(*known.values()))


def markdown(header, rows):
    """Return a table of text as GitHub Markdown: the first column is on the left, the others on the right."""
    rule = ["---"] + ["--:"] * (len(header) - 1)
    lines = [[cell.replace("|", "\\|") for cell in cells] for cells in [header, rule, *rows]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def rich_table(header, rows):
    """Return a table of text for rich's console; brackets and colons in it are no markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for i, column in enumerate(header):
        table.add_column(Text(column), justify="right" if i else "left", no_wrap=True)
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def applied_ratios(optimizer):
    """Return tensor name -> the factor by which the optimizer's next step would scale its rate for the parameter.

    Groups, `ParamAttr` and layer-wise ratios are all in it: it is what `_create_param_lr` itself makes of a rate of 1.

    Args:
        optimizer (paddle.optimizer.Optimizer): any; may be wrapped by `fleet`.
    """
    return {name: factor for name, (factor, _) in _rate_parts(_view(optimizer), parameters_of(optimizer)).items()}


def applied_rates(optimizer, learning_rate=None):
    """Return tensor name -> the rate that the optimizer's next step would use for it; 0 if it would not touch it.

    Where `Adafactor` sets the rate itself, it is that of its last step.

    Args:
        optimizer (paddle.optimizer.Optimizer): any; may be wrapped by `fleet`.
        learning_rate (float, optional): the optimizer's rate to reckon with; the one of now if None.
    """
    params, optimizer = parameters_of(optimizer), _view(optimizer)
    now = next_rate(optimizer) if learning_rate is None else float(learning_rate)
    parts = _rate_parts(optimizer, params)
    frozen = {p.name for p in params if p.stop_gradient}
    used = used_rates(optimizer)
    if used is not None:  # no rate to multiply
        return {name: 0.0 if name in frozen else used.get(name, 0.0) for name in parts}
    return {name: 0.0 if name in frozen else factor * now + constant for name, (factor, constant) in parts.items()}


def used_rates(optimizer):
    """Return tensor name -> the rate of its last update if the optimizer sets each one itself, None if it does not.

    `Adafactor` with `relative_step` does, from the step and the parameter's size: the layer's ratio is in it.

    Args:
        optimizer (paddle.optimizer.Optimizer): any; may be wrapped by `fleet`.
    """
    optimizer = unwrap(optimizer)
    own = getattr(optimizer, "_relative_step", False) and hasattr(optimizer, "used_lr")
    return optimizer.used_lr() if own else None


def rate_divisor(optimizer, ahead=0):
    """Return what an optimizer divides the rate by that it reports, in its next step or one that is `ahead` of it."""
    return getattr(unwrap(optimizer), "rate_divisor", lambda ahead: 1.0)(ahead)  # AdamWeightDecay's `decay`


def next_rate(optimizer):
    """Return the rate that the optimizer's next step uses for a layer whose ratio is 1."""
    return float(unwrap(optimizer).get_lr()) / rate_divisor(optimizer)


def _view(optimizer):
    """Return a stand-in for an optimizer that can be asked while another thread takes steps."""
    return stand_in(unwrap(optimizer), _lr_ratio=None)  # AdamWDL has it set within a step on a GPU


def _rate_parts(optimizer, params):
    """Return tensor name -> (factor, constant) of the rate factor * optimizer's + constant that a step would use.

    Args:
        optimizer (Optimizer): a stand-in.
        params (list[Tensor]): its parameters.
    """
    if not asks_for_rates(optimizer.__class__):  # its own rate for all, whatever groups say
        return {param.name: (1.0, 0.0) for param in params}
    answers = []
    for rate in (0.0, 1.0):  # a rate of its own (a Tensor in `optimize_attr`, "lr" of a group) shows at 0
        tensor = paddle.full([], rate, "float64")
        vars(optimizer)["_global_learning_rate"] = lambda *args, tensor=tensor: tensor
        with paddle.no_grad():
            # of the class: a function set on the instance asks the live object
            answers.append([float(optimizer.__class__._create_param_lr(optimizer, (p, None))) for p in params])
    names = [p.name for p in params]
    return {name: (one - zero, zero) for name, zero, one in zip(names, *answers)}


def peak_learning_rate(learning_rate, num_steps=None, divisor=None):
    """Return the greatest rate a schedule reaches from where it stands, or the rate itself if it is a number.

    Of a schedule of ours it is found at any length, without stepping through it. Of others the steps up to the peak are
    looked at, and how far that may be they do not say: the next 10,000 unless `num_steps` or their own `warmup_steps`
    or `total_steps` are more, or to the first step that raises (`OneCycleLR`). A schedule that cannot be read ahead has
    no known peak: None, with a warning.

    Args:
        learning_rate (float|LRScheduler): the schedule is not changed: a copy is stepped.
        num_steps (int, optional): how many steps ahead to look.
        divisor (callable, optional): steps ahead -> what the rate is divided by there, as `rate_divisor` says. If that
            changes, a schedule of ours is looked at like all others.
    """
    divisor = divisor or (lambda ahead: 1.0)
    if not isinstance(learning_rate, paddle.optimizer.lr.LRScheduler):
        return as_float(learning_rate) / divisor(0)
    if follows_metric(learning_rate):
        return float(learning_rate.last_lr) / divisor(0)  # what it will be is not known; most only ever fall
    turns = getattr(getattr(learning_rate, "rule", None), "turns", None)
    if turns is None or divisor(1) != divisor(0):
        said = [getattr(learning_rate, name, None) for name in ("warmup_steps", "total_steps")]
        far = (
            max([10_000, *(2 * steps for steps in said if isinstance(steps, int))]) if num_steps is None else num_steps
        )
        rates: list = []
        try:
            rates.extend(enumerate(itertools.islice(_rates_ahead(learning_rate), far + 1)))
        except ValueError as error:
            if len(rates) < 2:  # not a step; OneCycleLR raises behind its last one
                warnings.warn(f"The learning rate at the peak is unknown. {error}", stacklevel=4)
                return None
    else:
        now = learning_rate.last_epoch
        turning = [step - now for step in turns(now + (num_steps or 0))]
        last = max(turning) if num_steps is None else num_steps
        ahead = [0, last, *turning]
        rates = [(i, learning_rate.base_lr * learning_rate.rule(now + i)) for i in ahead if 0 <= i <= last]
        rates.append((0, learning_rate.last_lr))
    return max(float(rate) / divisor(i) for i, rate in rates)


def follows_metric(schedule):
    """Say whether a schedule, Paddle's or ours, is stepped with a metric, so that its rates are not known before."""
    return hasattr(schedule, "num_bad_epochs")


def rates_of_optimizer(optimizer, num_steps=None):
    """Return tensor name -> `Rate`, read back from an optimizer.

    Args:
        optimizer (paddle.optimizer.Optimizer): any; may be wrapped by `fleet`.
        num_steps (int, optional): as in `peak_learning_rate`.
    """
    if not hasattr(unwrap(optimizer), "_create_param_lr"):
        raise TypeError(f"`optimizer` must be a Paddle optimizer. Received: optimizer={type(optimizer).__name__}")
    params, optimizer = parameters_of(optimizer), _view(optimizer)
    now = next_rate(optimizer)
    peak = peak_learning_rate(optimizer._learning_rate, num_steps, lambda ahead: rate_divisor(optimizer, ahead))
    parts, groups, rates = _rate_parts(optimizer, params), groups_by_name(optimizer), {}
    for param in params:
        factor, constant = parts[param.name]
        rate = factor * now + constant
        ratio = rate / now if constant and now else factor
        frozen = bool(param.stop_gradient) or (factor == 0 and constant == 0)
        ahead = None if peak is None and factor else factor * (peak or 0.0) + constant
        now_and_peak = getattr(optimizer, "shown_rate", lambda *args: None)(param, factor) or (rate, ahead)
        decayed = is_decayed(optimizer, param, groups.get(param.name, {}))
        rates[param.name] = Rate(ratio, *now_and_peak, decayed, frozen)  # type: ignore[call-arg]  # a pair
    return rates


def planned_rates(tensors, ratio_of, learning_rate, apply_decay_param_fun, num_steps=None):
    """Return tensor name -> `Rate` for a decay that no optimizer has yet."""
    now = peak = None
    if apply_decay_param_fun is not None and not callable(apply_decay_param_fun):
        raise TypeError(
            f"`apply_decay_param_fun` must be callable. Received: apply_decay_param_fun={shown(apply_decay_param_fun)}"
        )
    if not (learning_rate is None or isinstance(learning_rate, paddle.optimizer.lr.LRScheduler)):
        learning_rate = checked_number(learning_rate, "learning_rate", kind="a number or an LRScheduler")
    if learning_rate is not None:
        peak = peak_learning_rate(learning_rate, num_steps)
        if peak is not None and not (math.isfinite(peak) and peak >= 0):
            raise ValueError(
                f"`learning_rate` must be finite and not negative. Received: learning_rate={shown(learning_rate)}"
            )
        now = learning_rate.last_lr if hasattr(learning_rate, "last_lr") else peak
    rates = {}
    for tensor_name, (_, param) in tensors.items():
        ratio = ratio_of(_Named(tensor_name))
        decayed = None if apply_decay_param_fun is None else bool(apply_decay_param_fun(tensor_name))
        frozen = ratio == 0 or (param is not None and bool(param.stop_gradient))
        scaled = [None if rate is None else ratio * rate for rate in (now, peak)]
        rates[tensor_name] = Rate(ratio, scaled[0], scaled[1], decayed, frozen)
    return rates


def is_decayed(optimizer, param, group):
    """Say whether the optimizer decays the weights of `param`, in `group`, by any of Paddle's ways of saying so."""
    chosen = getattr(optimizer, "_apply_decay_param_fun", None)
    excluded = getattr(optimizer, "_exclude_from_weight_decay_fn", None)  # Lamb
    if (chosen is not None and not chosen(param.name)) or (excluded is not None and excluded(param)):
        return False
    if hasattr(optimizer, "is_decayed") and not optimizer.is_decayed(param):  # ours
        return False
    if "weight_decay" in getattr(optimizer, "_defaults", {}):
        return group.get("weight_decay", optimizer._defaults["weight_decay"]) != 0
    for name in ("_weight_decay", "_lamb_weight_decay"):  # decoupled: AdamW, Lamb
        if isinstance(getattr(optimizer, name, None), (int, float)):
            return group.get("weight_decay", getattr(optimizer, name)) != 0
    regularizer = param.regularizer or optimizer.regularization  # L1Decay or L2Decay, added to the gradient
    coefficients = [getattr(regularizer, "_coeff", 0.0), getattr(optimizer, "_regularization_coeff", 0.0)]  # Momentum's
    return any(c != 0 for c in coefficients)


def schedule_rates(schedule, num_steps):
    """Return the rates of the first `num_steps` steps of a schedule from where it stands, and where that is.

    A schedule that stands further on is wound back to step 0 if its rates are then what they were (a copy that is
    stepped from 0 arrives at the rate of now); if not, its rates are those from now on.

    Args:
        schedule (LRScheduler): it is not changed: a copy is stepped.
        num_steps (int): step at which the training ends.

    Returns:
        tuple[int, list[float]]: the first step, and the rates from it to step `num_steps` - 1.

    Raises:
        ValueError: the schedule cannot be read ahead.
    """
    start = min(max(int(schedule.last_epoch), 0), num_steps)
    if 0 < start < num_steps:
        try:
            rates = [*itertools.islice(_rates_ahead(schedule, 0), num_steps)]
        except ValueError:
            rates = [math.nan] * num_steps
        if math.isclose(rates[start], schedule.last_lr):
            return 0, rates
    return start, [*itertools.islice(_rates_ahead(schedule), num_steps - start)]


def _rates_ahead(schedule, start=None):
    """Yield the rate of each step of a schedule from where it stands, or from step `start`; a copy is stepped.

    Raises:
        ValueError: the schedule cannot be copied or stepped, or does not count its steps from `start`.
    """
    if start is None:
        yield float(schedule.last_lr)
    try:
        ahead = copy_schedule(schedule)
        for i in itertools.count():
            ahead.step(*([start] if i == 0 and start is not None else []))
            if start is not None and ahead.last_epoch != start + i:
                raise ValueError(f"it is at step {ahead.last_epoch} after {i} from {start}")
            yield float(ahead.last_lr)
    except Exception as error:  # of the user's code
        name = type(schedule).__name__
        said = f"{type(error).__name__}: {error}"[:200]
        raise ValueError(f"{name} cannot be read ahead ({said}). Received: a schedule of type {name}") from error


def _points(count):
    """Return the positions that are shown of `count`: all, or every k-th and the last."""
    return [*range(0, count - 1, math.ceil(count / MOST_POINTS)), count - 1] if count else []


def write_schedule(path, first, series):
    """Write the rate of every layer by step as CSV; every k-th step if there are more than 10,000.

    Args:
        path (str): the file.
        first (int): step of the first rate.
        series (dict[str, list[float]]): layer -> its rates.
    """
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *series])
        for i in _points(len(next(iter(series.values())))):
            writer.writerow([first + i, *(repr(rates[i]) for rates in series.values())])


def plot_schedule(path, first, series):
    """Draw the rate of every layer by step, from the embeddings (light) to the head (dark).

    Args:
        path (str): the file; its ending decides the format (.png, .svg, .pdf).
        first (int): step of the first rate.
        series (dict[str, list[float]]): layer -> its rates.

    Raises:
        ValueError: another ending.
    """
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, (label, rates) in enumerate(series.items()):
        named = label if i in (0, len(series) - 1) else None
        shade, points = str(0.8 * (1 - (i + 1) / len(series))), _points(len(rates))
        axes.plot([first + j for j in points], [rates[j] for j in points], color=shade, lw=1.2, label=named)
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    name_lines(axes)
    _save(figure, path)
    return os.fspath(path)


def name_lines(axes):
    r"""Show the labels of the lines as they are: "$" is no mathematics in them, and a leading "_" hides nothing."""
    lines = [line for line in axes.lines if not re.fullmatch(r"_child\d+", line.get_label())]
    legend = axes.legend(lines, ["-"] * len(lines))
    for text, line in zip(legend.get_texts(), lines):
        text.set(text=line.get_label(), parse_math=False)


def _save(figure, path):
    """Write a figure in the format that the path's ending names."""
    with open(path, "wb") as file:  # Pillow would open it for reading too, which a pipe does not allow
        figure.savefig(file, format=os.path.splitext(path)[1][1:].lower(), dpi=150)


def text_plot(first, series, width=72, height=12):
    """Return a plot of rates by step in plain characters: "*" for the last of the series, "." for the others.

    Args:
        first (int): step of the first rate.
        series (dict[str, list[float]]): name -> rates, as many in each; at least one.
        width (int, optional): columns of the plot, its axis aside.
        height (int, optional): its rows.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt.display import text_plot
            >>> print(text_plot(0, {"lr": [0.0, 1.0, 2.0, 1.0, 0.0]}, width=5, height=3))
               2 |  *
               1 | * *
               0 |*   *
                 +-----
                  0..4
    """
    count = len(next(iter(series.values())))
    width = min(width, count)
    top = max((max(rates) for rates in series.values()), default=0.0) or 1.0
    grid = [[" "] * width for _ in range(height)]
    for i, rates in enumerate(series.values()):
        for column in range(width):
            part = rates[column * count // width : max((column + 1) * count // width, column * count // width + 1)]
            # all that lies in the column: a restart within it must not be lost
            low, high = (round(value / top * (height - 1)) for value in (min(part), max(part)))
            for row in range(low, high + 1):
                grid[height - 1 - row][column] = "*" if i == len(series) - 1 else "."
    labels = {0: f"{top:.3g}", height // 2: f"{top * (height - 1 - height // 2) / (height - 1):.3g}", height - 1: "0"}
    margin = max(4, *map(len, labels.values()))
    lines = [f"{labels.get(i, ''):>{margin}} |{''.join(row)}".rstrip() for i, row in enumerate(grid)]
    names = list(series)
    legend = [f"  * {names[-1]}" + (f"   . {names[0]} and what is between" if len(names) > 1 else "")]
    return "\n".join(
        [*lines, f"{'':>{margin}} +{'-' * width}", f"{'':>{margin}}  {first}..{first + count - 1}"]
        + (legend if len(names) > 1 else [])
    )


def check_picture(path):
    """Raise ValueError if the ending of `path` is no format that can be drawn, TypeError if it is no path."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path` must be a string or a path. Received: path={shown(path)}")
    if os.path.splitext(os.fspath(path))[1].lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"`path` must end in .png, .svg or .pdf. Received: path={os.fspath(path)!r}")


def plot_table(table, path):
    """Draw a `LayerTable` as one line a tower into a file; the ending decides the format."""
    import matplotlib

    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    towers: dict = {}
    for row in table.rows:
        if row.tower or len({r.tower for r in table.rows}) == 1:
            towers.setdefault(row.tower, []).append(row)
    known = all(row.peak_learning_rate is not None for row in table.rows)
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for tower, rows in towers.items():
        heights = [(row.peak_learning_rate if known else row.ratio)[1] for row in rows]
        axes.plot([row.index for row in rows], heights, marker="o", label=tower)
    longest = max(towers.values(), key=len)
    step = max(1, math.ceil(len(longest) / 14))
    ticks = [row for i, row in enumerate(longest) if i % step == 0 or row is longest[-1]]
    axes.set_xticks(
        [r.index for r in ticks], [r.label.replace("block ", "").replace("embeddings", "emb") for r in ticks]
    )
    axes.set_xlabel("layer")
    axes.set_ylabel("learning rate at the peak" if known else "ratio to the head's learning rate")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if len(towers) > 1:
        name_lines(axes)
    with matplotlib.rc_context({"svg.hashsalt": "paddle_ldopt"}):
        _save(figure, path)
    return os.fspath(path)


class _Named:
    """Stands for a parameter of which only the name is known."""

    def __init__(self, name):
        self.name = name


def _row(layer, entries):
    rates = [rate for _, rate in entries]
    sizes = [int(param.size) for param, _ in entries if param is not None]
    decayed = [int(rate.decayed) for rate in rates if rate.decayed is not None]
    return LayerRow(
        layer.tower,
        layer.index,
        layer.label,
        len(entries),
        sum(sizes) if len(sizes) == len(entries) else None,
        _ends([rate.ratio for rate in rates]),
        _ends([rate.now for rate in rates]),
        _ends([rate.peak for rate in rates]),
        sum(decayed) if len(decayed) == len(rates) else None,
        sum(rate.frozen for rate in rates),
    )


def _ends(values):
    return None if None in values else (min(values), max(values))


def _span(ends, form):
    if ends is None:
        return "-"
    low, high = form.format(ends[0]), form.format(ends[1])
    return low if low == high else f"{low}..{high}"


def _share(count, total):
    if count is None:
        return "-"
    return "no" if count == 0 else "yes" if count == total else f"{count} of {total}"


def _count(elements):
    if elements is None:
        return "-"
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if elements >= size:
            return f"{elements / size:.3g} {unit}"
    return str(elements)


def short_names(towers):
    """Return tower -> what tells it from the others, with a space behind it; "" if there is one tower only."""
    named = list(dict.fromkeys(tower for tower in towers if tower))
    if len(named) < 2:
        return dict.fromkeys(towers, "")
    shared = len(os.path.commonprefix([tower.split(".") for tower in named]))
    short = {tower: tower.split(".")[shared] for tower in named}
    if len(set(short.values())) < len(named):
        short = {tower: tower for tower in named}
    return {"": "shared ", **{tower: f"{name} " for tower, name in short.items()}}
