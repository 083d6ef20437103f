"""Pictures, text plots and tables of learning rates, by step and by layer.

The extension of a path decides the format of a picture: .png, .svg or .pdf.
"""

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._checks import refusal
from ._files import Path, checked_path

if TYPE_CHECKING:
    from rich.table import Table

Series = Mapping[str, Callable[[int], float]]  # layer -> its rate at a step
# matplotlib knows Noto Sans CJK by the Japanese name
CHINESE_FONTS = ["Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Hiragino Sans GB", "SimHei"]
CHINESE_FONTS += ["WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "PingFang SC", "Arial Unicode MS"]
MOST_POINTS = 10_000  # longer schedules show every k-th step


def write_schedule(path: Path, steps: int, series: Series) -> None:
    """Write the rate of every layer by step as CSV; of more than 10,000 steps, every k-th."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *series])
        for step in _points(steps):
            writer.writerow([step, *(repr(rate(step)) for rate in series.values())])


def plot_schedule(path: Path, steps: int, series: Series) -> str:
    """Draw the rate of every layer by step and return the path."""
    axes, points = _new_axes(path), _points(steps)
    for i, (label, rate) in enumerate(series.items(), 1):  # from the embeddings (light) to the head (dark)
        named = label if i in (1, len(series)) else None
        axes.plot(points, list(map(rate, points)), color=str(0.8 * (1 - i / len(series))), lw=1.2, label=named)
    name_lines(axes)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    return _write(axes, path, "step", "learning rate")


def plot_table(table: Any, path: Path) -> str:
    """Draw a `LayerTable`, one row of boxes for each tower, coloured by rate."""
    from matplotlib import colormaps, colors
    from matplotlib.cm import ScalarMappable
    from matplotlib.patches import Rectangle

    axes = _new_axes(path)
    rated = all(row.peak_learning_rate is not None for row in table.rows)
    heights = {(r.tower, r.index): (r.peak_learning_rate if rated else r.ratio)[1] for r in table.rows}
    heights.update({(row.tower, row.index): 0.0 for row in table.rows if row.frozen == row.tensors})
    trained = [height for height in heights.values() if height] or [1.0]
    low = max(min(trained), 1e-100)  # a logarithmic scale takes no denormal numbers
    high = max(trained) if max(trained) > low else 2 * low
    colour = ScalarMappable(colors.LogNorm(low, high), colormaps["viridis"])
    towers = list(dict.fromkeys(row.tower for row in table.rows))
    for row in table.rows:
        x, y, height = row.index, towers.index(row.tower), heights[row.tower, row.index]
        face = tuple(map(float, colour.to_rgba(height))) if height else (1.0, 1.0, 1.0, 1.0)  # white: frozen
        axes.add_patch(Rectangle((x + 0.04, y + 0.2), 0.92, 0.6, facecolor=face, edgecolor="0.3", lw=0.8))
        label = row.label.replace("block ", "").replace("embeddings", "emb")
        dark = sum(face[:3]) < 1.5
        axes.text(x + 0.5, y + 0.5, label, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    axes.set_xlim(0, max(row.index for row in table.rows) + 1)
    axes.set_xticks([])
    names = {"parse_math": False, "fontfamily": font_families()}
    axes.set_yticks([y + 0.5 for y in range(len(towers))], [tower or "shared" for tower in towers], **names)
    ticks = {"ticks": [low, (low * high) ** 0.5, high], "format": "%.2g"}
    shown = "learning rate at the peak" if rated else "ratio to the optimizer's learning rate"
    axes.figure.colorbar(colour, ax=axes, label=shown, orientation="horizontal", **ticks).minorticks_off()
    return _write(axes, path, "layers, from input to output", "", top=len(towers))


def check_picture(path: Path, argument: str = "path") -> None:
    path = checked_path(path, argument)
    if os.path.splitext(path)[1].lower() not in (".png", ".svg", ".pdf"):
        raise refusal(ValueError, f"`{argument}` must end in .png, .svg or .pdf.", **{argument: path})


def name_lines(axes: Any) -> None:
    """Show labels literally: without math in "$", with a leading "_", with Chinese characters."""
    lines = [line for line in axes.lines if not re.fullmatch(r"_child\d+", line.get_label())]
    legend = axes.legend(lines, ["-"] * len(lines))
    for text, line in zip(legend.get_texts(), lines):
        text.set(text=line.get_label(), parse_math=False, fontfamily=font_families())


def font_families() -> list[str]:
    from matplotlib import font_manager, rcParams

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return [*rcParams["font.family"], *(name for name in CHINESE_FONTS if name in installed)]


def text_plot(steps: int, series: Series, width: int = 72, height: int = 12) -> str:
    """Return a plot of rates by step in ASCII: "*" for the last series, "." for the others.

    Examples:
        >>> from paddle_ldopt.plots import text_plot
        >>> print(text_plot(5, {"lr": [0.0, 1.0, 2.0, 1.0, 0.0].__getitem__}, width=5, height=3))
           2 |  *
           1 | * *
           0 |*   *
             +-----
              0..4
    """
    names = list(series)
    width, every = width if steps >= width else steps * (width // steps), math.ceil(steps / MOST_POINTS)
    starts = [column * steps // width for column in range(width + 1)]
    ends = [(start, max(end, start + 1)) for start, end in zip(starts, starts[1:])]
    parts = {name: [[rate(step) for step in range(*end, every)] for end in ends] for name, rate in series.items()}
    top = max((max(part) for columns in parts.values() for part in columns), default=0.0) or 1.0
    grid = [[" "] * width for _ in range(height)]
    for name, columns in parts.items():
        for column, part in enumerate(columns):
            # the whole range within the column, to show a restart
            low, high = (round(value / top * (height - 1)) for value in (min(part), max(part)))
            for row in range(low, high + 1):
                grid[height - 1 - row][column] = "*" if name == names[-1] else "."
    middle = height // 2
    labels = {0: f"{top:.3g}", middle: f"{top * (height - 1 - middle) / (height - 1):.3g}", height - 1: "0"}
    margin = max(4, *map(len, labels.values()))
    lines = [f"{labels.get(i, ''):>{margin}} |{''.join(row)}".rstrip() for i, row in enumerate(grid)]
    lines += [f"{'':>{margin}} +{'-' * width}", f"{'':>{margin}}  0..{steps - 1}"]
    if len(names) > 1:
        lines.append(f"  * {names[-1]}   . {names[0]} and all between")
    return "\n".join(lines)


def short_names(towers: Iterable[str]) -> dict[str, str]:
    """Return tower -> the distinguishing part of its name and a space; "" for a single tower."""
    named = [tower for tower in dict.fromkeys(towers) if tower]
    if len(named) < 2:  # beside the only tower, rules place parameters in layers of the same labels
        return {"": "shared " if named else "", **dict.fromkeys(named, "")}
    shared = len(os.path.commonprefix([tower.split(".") for tower in named]))
    short = {tower: ".".join(tower.split(".")[shared:][:1]) for tower in named}
    if "" in short.values() or len(set(short.values())) < len(named):
        short = dict(zip(named, named))
    return {"": "shared ", **{tower: f"{name} " for tower, name in short.items()}}


def rich_table(header: Sequence[str], rows: Iterable[Sequence[str]], wrapped: bool = False) -> "Table":
    """Return a table of text for rich's console; `wrapped` breaks cells that do not fit."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 0 if wrapped else 1))
    for i, column in enumerate(header):
        table.add_column(Text(column), justify="right" if i else "left", no_wrap=not wrapped, overflow="fold")
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def _points(count: int) -> list[int]:
    return [*range(0, count - 1, math.ceil(count / MOST_POINTS)), count - 1] if count else []


def _new_axes(path: Path) -> Any:
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def _write(axes: Any, path: Path, xlabel: str, ylabel: str, top: Optional[float] = None) -> str:
    import matplotlib

    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_ylim(0, top)
    if top is None:
        axes.grid(alpha=0.3)
    # Pillow would also open a path for reading, which a pipe does not allow
    with open(path, "wb") as file, matplotlib.rc_context({"svg.hashsalt": "paddle_ldopt"}):
        axes.figure.savefig(file, format=os.path.splitext(path)[1][1:].lower(), dpi=150)
    return os.fspath(path)
