"""The charts of the results."""

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

OURS, PEER, FLOOR = "#c0392b", "#9aa5b1", "#222222"
AXES = {
    "elements": "Number of parameters",
    "tensors": "Number of tensors, 1 M parameters in total",
    "blocks": "Number of blocks of 16 tensors",
}


def milliseconds(value):
    """Return a time with three figures or more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw(results, folder):
    """Draw steps.svg and growth.svg of what was measured into a folder."""
    for section, name, figure in (("models", "steps", _steps), ("growth", "growth", _growth)):
        if results.get(section):
            folder.mkdir(exist_ok=True)
            with matplotlib.rc_context({"svg.hashsalt": "paddle_ldopt"}):
                figure(results).savefig(folder / f"{name}.svg", metadata={"Date": None})


def _figure(width, height):
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _steps(results):
    """Bars of the step times of every model with the most threads; a black line at each floor."""
    most = max(row["threads"] for row in results["models"])
    rows = [row for row in results["models"] if row["threads"] == most]
    models = list(dict.fromkeys(row["model"] for row in rows))
    columns = min(2, len(models))
    lines = -(-len(models) // columns)
    figure = _figure(7.5 * columns, 0.5 + 5.5 * lines)
    for place, model in enumerate(models):
        _bars(figure.add_subplot(lines, columns, place + 1), model, [row for row in rows if row["model"] == model])
    return figure


def _bars(axes, model, rows):
    places, at, last = [], 0.0, rows[0]["optimizer"]
    for row in rows:
        at += 1.0 if row["optimizer"] == last else 1.8
        last = row["optimizer"]
        places.append(at)
    axes.barh(places, [row["ms"] for row in rows], color=[OURS if row["ratio"] == 1.0 else PEER for row in rows])
    for place, row in zip(places, rows):
        floor = row["ms"] / row["of_floor"]
        axes.plot([floor] * 2, [place - 0.45, place + 0.45], color=FLOOR, lw=1.5)
        end = max(row["ms"], floor), place
        axes.annotate(milliseconds(row["ms"]), end, (3, 0), textcoords="offset points", va="center", size=8)
    axes.set_yticks(places, [row["label"] for row in rows], size=8)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("median step, ms; the line is the floor")
    axes.set_title(f"{model}, {rows[0]['threads']} threads")


def _growth(results):
    """Lines of the step time by elements, tensors and blocks."""
    figure = _figure(15, 4.5)
    for place, (axis, title) in enumerate(AXES.items()):
        axes = figure.add_subplot(1, 3, place + 1)
        rows = [row for row in results["growth"] if row["axis"] == axis and "ms" in row]
        for label in dict.fromkeys(row["label"] for row in rows):
            of_it = [row for row in rows if row["label"] == label]
            style = "--" if "." in label else "-"
            axes.plot([row[axis] for row in of_it], [row["ms"] for row in of_it], style, marker="o", ms=3, label=label)
        first = [row for row in rows if row["label"] == rows[0]["label"]]
        label = f"floor of {rows[0]['label']}"
        axes.plot([row[axis] for row in first], [row["floor_ms"] for row in first], ":", color=FLOOR, label=label)
        axes.set(xscale="log", yscale="log", xlabel=title, ylabel="median step, ms")
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    return figure
