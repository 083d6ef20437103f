"""The groups of processes of a network and its optimizer, read from `fleet`'s wrappers."""

import math
from typing import Any, Callable, Optional

import paddle
import paddle.distributed as dist
from paddle.optimizer import Optimizer

from .. import _paddle
from .._processes import Outcome, together
from .step_checks import check_parallel_mode


class ProcessGroups:
    """The groups of processes to sum over in a step."""

    def __init__(self, network: paddle.nn.Layer, optimizer: Optimizer) -> None:
        check_parallel_mode(network, optimizer)
        self.processes = dist.get_world_size()
        self.network, self.optimizer = network, optimizer
        self.topology = _paddle.topology_of(network)
        self.hybrid = isinstance(optimizer, _paddle.hybrid_optimizer())
        self.sharding_optimizer = _paddle.sharded_optimizer(optimizer) if self.group("sharding") else None
        self.has_slices = isinstance(self.sharding_optimizer, _paddle.sharding_v2())  # version 2 cuts parameters

    def group(self, axis: str) -> Any:
        """Return the group of an axis of the hybrid topology, None for a group of one process."""
        if self.topology is None:
            return None
        group = getattr(self.topology, f"get_{axis}_parallel_group")()
        return group if group.nranks > 1 else None

    @property
    def data_group(self) -> Any:
        """The processes with the same parameters, which average their gradients."""
        if isinstance(self.network, paddle.DataParallel) and self.processes > 1:
            return self.network.group or dist.get_group()
        return self.group("data")

    @property
    def data_groups(self) -> list[Any]:
        """The groups to sum losses and tokens over, one after the other."""
        return [group for group in (self.data_group, self.group("sharding")) if group is not None]

    @property
    def data_ranks(self) -> int:
        """The number of processes with different data."""
        return math.prod(group.nranks for group in self.data_groups)

    def greatest(self, flag: int, error: Optional[BaseException] = None) -> int:
        """Return the greatest `flag` of all processes; raise RuntimeError with `error` if a process does not answer."""
        if self.processes == 1:
            return int(flag)
        reduced = paddle.to_tensor([int(flag)], dtype="int32")
        try:
            dist.all_reduce(reduced, op=dist.ReduceOp.MAX)
        except Exception as lost:
            error = error or lost
            raise RuntimeError(
                "Communication failed within a training step: a process ended, failed or was too slow. End all "
                "processes, look for the first error, and restart from the last checkpoint. "
                f"Received: {type(error).__name__}: {str(error)[:200]}"
            ) from error
        return reduced.item()

    def together(self, act: Callable[[], Any]) -> Any:
        """Return the result of `act()`; an error in one process is raised in all."""
        return together(lambda: (act(), None), self._outcome)[0]

    def _outcome(self, mine: Outcome) -> list[Outcome]:
        """Return one outcome for all processes, exchanged as a number, which is faster than objects."""
        error, result = mine
        failed = self.greatest(0 if error is None else dist.get_rank() + 1, error)
        if error is None and failed:
            message = "The step failed in another process and was undone in all: see the error of that process."
            error = RuntimeError(f"{message} Received: an error in process {failed - 1}")
        return [(error, result)]

    def repeated(self) -> set[int]:
        """Return the ids of the copies of tied weights, and of their slices, which another stage counts."""
        # Paddle tries to mark them, but compares names of attributes with names of parameters (pp_layers.py:759)
        stage = _paddle.engine_layers(self.network) if self.group("pipe") is not None else None
        copies = [
            getattr(comm["layer"], name)
            for comm in (getattr(stage, "shared_comm", None) or {}).values()
            for name in comm["weight_attr"]
            if dist.get_rank() != min(comm["ranks"])
        ]
        slices = _paddle.slices(self.sharding_optimizer) if self.has_slices else {}
        return {id(tensor) for copy in copies for tensor in (copy, slices.get(copy.name, copy))}


def sum_of_processes(groups: list[Any], value: paddle.Tensor) -> paddle.Tensor:
    """Sum a Tensor in place over groups of processes, one after the other; None is a group of one."""
    for group in groups:
        if group is not None:
            dist.all_reduce(value, group=group)
    return value
