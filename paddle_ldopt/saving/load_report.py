"""The report of a load, printed as a table."""

import dataclasses
from typing import Optional


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The parameters that received state from a file. `print` shows the report as a table.

    Args:
        source (str): the file, or another source.
        step (int|None): the steps taken, if known.
        matched (tuple[tuple[str, str], ...]): (name in the file, name in the model) of the parameters with state.
        missing (tuple[str, ...]): parameters of the model without state in the file; they start with a new state.
        unexpected (tuple[str, ...]): unused names in the file.
        transposed (tuple[str, ...]): parameters of the model whose state was transposed.

    Examples:
        >>> from paddle_ldopt import LoadReport
        >>> print(LoadReport("adamw.pt", 10, (("fc.weight", "linear.weight"),), transposed=("linear.weight",)))
        adamw.pt: step 10, 1 matched, 0 missing, 0 unexpected
        parameter      in the file
        linear.weight  fc.weight    transposed
    """

    source: str
    step: Optional[int]
    matched: tuple[tuple[str, str], ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    transposed: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [("parameter", "in the file", "")]
        rows += [(name, source_name, "transposed" * (name in self.transposed)) for source_name, name in self.matched]
        rows += [(name, "-", "missing") for name in self.missing]
        rows += [("-", name, "unexpected") for name in self.unexpected]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        step = "step unknown" if self.step is None else f"step {self.step}"
        counts = f"{len(self.matched)} matched, {len(self.missing)} missing, {len(self.unexpected)} unexpected"
        return "\n".join([f"{self.source}: {step}, {counts}", *lines])
