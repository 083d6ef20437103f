"""Sums over several processes: each describes its sums to all, so that all raise if they do not match."""

import dataclasses
from typing import Any, Optional

import paddle
import paddle.distributed as dist

from .._messages import refusal

Slot = Optional[tuple[list[int], str]]  # shape and dtype, None without a gradient so far


@dataclasses.dataclass
class ProcessPart:
    """A process's part of a cycle, without the sums; a process without a call has no slots."""

    reduction: str
    names: Optional[list[str]]  # structured names of a model's parameters, None for a list of gradients
    own_names: Optional[list[str]]  # Paddle's names of these parameters
    slots: list[Slot]
    received: list[bool]
    count: int
    weight: float

    @property
    def was_called(self) -> bool:
        """Whether the process has ever called its accumulator, which decides its slots."""
        return bool(self.slots or self.count)


def check_parts(parts: list[ProcessPart]) -> None:
    """Raise if no process has a gradient, or if the slots, names or reductions of processes differ."""
    if not any(part.count for part in parts):
        raise refusal(ValueError, "Call the accumulator first: no process called it since the last reset.", count=0)
    first_rank, first = next((rank, part) for rank, part in enumerate(parts) if part.was_called)
    for rank, part in enumerate(parts):
        if part.was_called and part.names != first.names:
            message = "All processes must accumulate the same parameters: freeze a parameter in all of them or in none."
            difference = _difference(part.names, rank, first.names, first_rank)
            raise ValueError(f"{message} Received: {difference} of the group")
        needs = [("the same reduction", repr(part.reduction), repr(first.reduction))]
        needs += [("as many gradients", str(len(part.slots)), str(len(first.slots)))] if part.was_called else []
        for need, value, other in needs:
            if value != other:
                received = f"{value} of process {rank} of the group, {other} of process {first_rank}"
                raise ValueError(f"All processes must have {need}. Received: {received}")
    for place, column in enumerate(zip(*(part.slots for part in parts if part.was_called))):
        filled = [slot for slot in column if slot is not None]
        incomplete = first.names is None and 0 < len(filled) < len(column)  # in a list: in all processes or in none
        if incomplete or any(slot != filled[0] for slot in filled):
            message = "All processes must have gradients of the same shape and type."
            raise ValueError(f"{message} Received: {list(column)} at {place}")


def summed(sums: list[Any], parts: list[ProcessPart], group: Any) -> list[Any]:
    """Add up the sums of all processes in place; missing sums count as zeros if any process has a gradient."""
    columns = list(zip(*(part.slots for part in parts if part.was_called)))
    out = []
    for column, total in zip(columns, sums or [None] * len(columns)):
        slot = next((slot for slot in column if slot is not None), None)
        if slot is not None:
            total = paddle.zeros(*slot) if total is None else total
            if dist.get_world_size(group) > 1:
                dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        out.append(total)
    return out


def _difference(names: Optional[list[str]], rank: int, others: Optional[list[str]], other: int) -> str:
    """Describe how the names of two processes differ; None means a list of gradients."""
    for mine, theirs, has, lacks in ((names, others, rank, other), (others, names, other, rank)):
        only = set(mine or ()) - set(theirs or ())
        if only:
            return f"'{min(only)}' in process {has} and not in process {lacks}"
    return f"another order in process {rank} than in process {other}"
