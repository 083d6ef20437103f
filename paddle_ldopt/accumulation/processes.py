"""Sums over several processes: each describes its sums to all, so that all raise if they do not match."""

import dataclasses
from typing import Any, Optional

import paddle
import paddle.distributed as dist

from .._messages import refusal
from .._paddle import dtype_name

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


def check_group(group: Any, sums: list[Any]) -> None:
    """Raise if the sums of the processes of a group cannot be added."""
    if group is not None and not hasattr(group, "is_member"):
        raise refusal(TypeError, "`group` must be a paddle.distributed Group.", group=group)
    if group is not None and not group.is_member():
        raise refusal(ValueError, "`group` must hold this process.", group=group)
    if dist.get_world_size(group) > 1 and not dist.is_initialized():
        advice = "Processes must be connected: call `paddle.distributed.init_parallel_env` first."
        raise ValueError(f"{advice} Received: {dist.get_world_size()} processes, not initialized")
    if dist.get_world_size(group) > 1 and any(total is not None and total.is_dist() for total in sums):
        problem = "Gradients of DistTensors (`dist.shard_tensor`) are already summed over all processes"
        received = f"{len(sums)} gradients, DistTensors among them"
        raise ValueError(f"{problem}: call `apply` without `synchronize`. Received: {received}")


def slot_of(total: Any) -> Slot:
    """Return the description of a sum for other processes."""
    return None if total is None else (list(total.shape), dtype_name(total.dtype))


def agreed_slots(parts: list[ProcessPart]) -> tuple[list[Slot], Optional[list[str]]]:
    """Return the slots of all processes, None if no process has a gradient, and their names; raise if they differ."""
    if not any(part.count for part in parts):
        raise refusal(ValueError, "Call the accumulator first: no process called it since the last reset.", count=0)
    called = [rank for rank, part in enumerate(parts) if part.slots or part.count]
    first = parts[called[0]]
    for rank, part in enumerate(parts):
        if rank in called and part.names != first.names:
            advice = "All processes must accumulate the same parameters: freeze a parameter in all of them or in none."
            difference = _difference(part.names, rank, first.names, called[0])
            raise ValueError(f"{advice} Received: {difference} of the group")
        needs = [("the same reduction", repr(part.reduction), repr(first.reduction))]
        needs += [("as many gradients", str(len(part.slots)), str(len(first.slots)))] if rank in called else []
        for need, value, other in needs:
            if value != other:
                received = f"{value} of process {rank} of the group, {other} of process {called[0]}"
                raise ValueError(f"All processes must have {need}. Received: {received}")
    slots: list[Slot] = []
    for place, column in enumerate(zip(*(parts[rank].slots for rank in called))):
        present = [slot for slot in column if slot is not None]
        incomplete = first.names is None and 0 < len(present) < len(
            column
        )  # in a list, all processes have a gradient or none
        if incomplete or any(slot != present[0] for slot in present):
            needed = "All processes must have gradients of the same shape and type."
            raise ValueError(f"{needed} Received: {list(column)} at {place}")
        slots.append(present[0] if present else None)
    return slots, first.names


def summed(sums: list[Any], slots: list[Slot], group: Any) -> list[Any]:
    """Add up the sums of all processes in place; missing sums count as zeros."""
    out = []
    for slot, total in zip(slots, sums or [None] * len(slots)):
        if slot is not None:
            total = paddle.zeros(*slot) if total is None else total
            if dist.get_world_size(group) > 1:
                dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        out.append(total)
    return out


def _difference(names: Optional[list[str]], rank: int, others: Optional[list[str]], other: int) -> str:
    """Describe how the names of two processes differ; None means a list of gradients."""
    if names is None or others is None:
        listed, modeled = (rank, other) if names is None else (other, rank)
        return f"a list of gradients in process {listed}, a model in process {modeled}"
    only = sorted(set(names) ^ set(others))
    if not only:
        return f"another order in process {rank} than in process {other}"
    has, lacks = (rank, other) if only[0] in names else (other, rank)
    return f"'{only[0]}' in process {has} and not in process {lacks}"
