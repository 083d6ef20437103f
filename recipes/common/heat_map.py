"""Heat map of a table of scores; better scores are brighter."""

import statistics

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .comparison import scores_of, spread


def heat_map(path, runs, columns, rows, labels, lower_is_better):
    """Draw the mean test score of each learning rate (`columns`) and decay (`rows`), with its standard deviation.

    `labels` has "xlabel", "ylabel" and "title".
    """
    cells = [[scores_of(runs, "test", learning_rate=x, layerwise_lr_decay=y) for x in columns] for y in rows]
    means = [[statistics.mean(cell) for cell in row] for row in cells]
    figure = Figure(figsize=(2 + 1.2 * len(columns), 2 + 0.7 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    image = axis.imshow(means, "viridis_r" if lower_is_better else "viridis", aspect="auto", origin="lower")
    axis.set_xticks(range(len(columns)), [f"{column:g}" for column in columns])
    axis.set_yticks(range(len(rows)), [f"{row:g}" for row in rows])
    axis.set(**labels)
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            text = spread(cell).replace(" ", "\n", 1)
            axis.text(j, i, text, ha="center", va="center", bbox={"facecolor": "white", "alpha": 0.7, "lw": 0})
    figure.colorbar(image)
    figure.savefig(path, dpi=120)
