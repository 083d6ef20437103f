"""The layer table: one row per layer, as objects, text, Markdown or a rich table."""

import dataclasses
import io
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

from ..plots import rich_table, short_names
from ..rates import Rate
from .decay import Layer

Ends = tuple[float, float]  # minimum and maximum over a layer's parameters
Entry = tuple[Layer, Optional[int], Rate]  # of a parameter, with the number of its elements if known


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """One layer of a `LayerTable`; pairs are minimum and maximum over its parameters."""

    tower: str  #: as of its `Layer`, with `index` and `label`
    index: int
    label: str
    tensors: int  #: number of parameters
    elements: Optional[int]  #: number of their elements; None if only names are known
    ratio: Ends  #: ratio to the optimizer's rate
    learning_rate: Optional[Ends]  #: present rate; None if unknown
    peak_learning_rate: Optional[Ends]  #: rate at the schedule's peak, also after it; None if unknown
    with_weight_decay: Optional[int]  #: number of tensors with weight decay; None if unknown
    frozen: int  #: number of frozen tensors
    multiplier: Ends = (1.0, 1.0)  #: of the decay's `multipliers`, part of the ratio


@dataclasses.dataclass
class LayerTable:
    """The layers of a model with their rates, from embeddings to head, without statistics of batch normalization."""

    rows: list[LayerRow]
    source: str  #: the `LayerMap.source`, shown below the table

    @classmethod
    def build(cls, entries: Iterable[Entry], source: str) -> "LayerTable":
        grouped: dict[Layer, list[tuple[Optional[int], Rate]]] = {}
        for layer, size, rate in entries:
            grouped.setdefault(layer, []).append((size, rate))
        towers, rows = list(dict.fromkeys(layer.tower for layer in grouped)), []
        for layer in sorted(grouped, key=lambda layer: (towers.index(layer.tower), layer.index)):
            sizes, rates = zip(*grouped[layer])
            ratios, rates_now, peaks, decays, frozen, multipliers = zip(*map(dataclasses.astuple, rates))
            elements, decayed = (None if None in counts else sum(counts) for counts in (sizes, decays))
            ratio, now, peak, multiplier = map(_ends, (ratios, rates_now, peaks, multipliers))
            place = layer.tower, layer.index, layer.label
            rows.append(LayerRow(*place, len(rates), elements, ratio, now, peak, decayed, sum(frozen), multiplier))
        return cls(rows, source)

    def to_dict(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(row) for row in self.rows]

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.measure import Measurement

        header, rows = self.cells()
        table = rich_table(header, rows)
        if Measurement.get(console, options.update(max_width=1_000), table).maximum > options.max_width:
            broken = [tuple(cell.replace("..", "..\n") for cell in cells) for cells in rows]
            table = rich_table(header, broken, wrapped=True)
        table.caption, table.caption_justify, table.caption_style = f" layers: {self.source}", "left", ""
        yield table

    def __str__(self) -> str:
        from rich.console import Console

        page = io.StringIO()
        Console(file=page, width=200, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in page.getvalue().strip("\n").splitlines())

    def cells(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Return header and rows as text, without columns of unknown values."""
        prefix = short_names(row.tower for row in self.rows)
        columns: dict[str, Callable[[LayerRow], str]] = {
            "layer": lambda row: prefix[row.tower] + row.label,
            "tensors": lambda row: str(row.tensors),
            "parameters": lambda row: _count(row.elements),
            "ratio": lambda row: _span(row.ratio, "{:.4g}"),
            "multiplier": lambda row: "-" if row.multiplier == (1.0, 1.0) else _span(row.multiplier, "{:.4g}"),
            "lr now": lambda row: _span(row.learning_rate, "{:.3g}"),
            "lr peak": lambda row: _span(row.peak_learning_rate, "{:.3g}"),
            "weight decay": lambda row: _share(row.with_weight_decay, row.tensors),
            "frozen": lambda row: _share(row.frozen, row.tensors),
        }
        cells = {name: [text(row) for row in self.rows] for name, text in columns.items()}
        known = {name: column for name, column in cells.items() if any(cell != "-" for cell in column)}
        return list(known), list(zip(*known.values()))


def _ends(values: tuple[Any, ...]) -> Any:
    return None if None in values else (min(values), max(values))


def _span(ends: Optional[Ends], form: str) -> str:
    return "-" if ends is None else "..".join(dict.fromkeys(map(form.format, ends)))


def _share(count: Optional[int], total: int) -> str:
    return {None: "-", total: "yes", 0: "no"}.get(count, f"{count} of {total}")


def _count(elements: Optional[int]) -> str:
    if elements is None:
        return "-"
    unit, size = next(((u, s) for u, s in (("B", 1e9), ("M", 1e6), ("k", 1e3)) if elements >= 0.9995 * s), ("", 1))
    return f"{elements / size:.3g} {unit}" if unit else str(elements)
