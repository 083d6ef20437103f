"""The layer table and its plot: what each layer gets, read back from what the optimizer really uses."""

import dataclasses
import io
import os
from typing import Optional


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
