"""The groups of processes of a network and its optimizer, read from `fleet`'s wrappers."""

import math
from typing import Any, Callable, Optional

import paddle
import paddle.distributed as dist
from paddle.optimizer import Optimizer

from .. import _paddle
from .._messages import refusal, wrong_type
from .._processes import Outcome, together


class ProcessGroups:
    """The groups of processes to sum over in a step."""

    def __init__(self, network: paddle.nn.Layer, optimizer: Optimizer) -> None:
        _check_parallel_mode(network, optimizer)
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


def _check_parallel_mode(network: paddle.nn.Layer, optimizer: Optimizer) -> None:
    """Raise unless the step can train this network with this optimizer in the present processes."""
    _paddle.checked_model(network, "network")
    if not isinstance(_paddle.unwrap(optimizer), paddle.optimizer.Optimizer):
        raise wrong_type(optimizer, "optimizer", "a Paddle optimizer")
    processes = dist.get_world_size()
    received = f"Received: network of type {type(network).__name__} in {processes} process(es)"
    overlaps = _paddle.overlaps(network)
    if overlaps:
        message = "Gradients must be reduced after the overflow check: disable this in the strategy's pp_configs."
        raise refusal(ValueError, message, **dict.fromkeys(overlaps, True))
    layers, engine = _paddle.unwrap_model(network), _paddle.pipeline_engine()
    chunks = layers.get_num_virtual_stages() if isinstance(layers, _paddle.pipeline_layer()) else 1
    if chunks > 1 or isinstance(network, engine) and type(network) is not engine:
        message = "A stage must be one piece, run by 1F1B: leave out num_virtual_pipeline_stages and use_dualpipev."
        raise ValueError(f"{message} {received}")
    topology = _paddle.topology_of(network)
    if topology is None and processes > 1 and not isinstance(network, paddle.DataParallel):
        modes = "`fleet.distributed_model` (pipeline, data, tensor parallel, sharding stage 1) or `paddle.DataParallel`"
        raise ValueError(f"With several processes `network` must be wrapped by {modes}. {received}")
    if topology is not None:
        axes = ("data", "sharding", "pipe", "model")
        degrees = {axis: getattr(topology, f"get_{axis}_parallel_world_size")() for axis in axes}
        if math.prod(degrees.values()) != processes:
            message = "The parallel mode must be pipeline, data, tensor parallel, sharding stage 1 or a combination."
            raise refusal(ValueError, message, **degrees, processes=processes)
        if not isinstance(optimizer, _paddle.hybrid_optimizer()):
            message = "`optimizer` must come from `fleet.distributed_optimizer` if the network comes from `fleet`."
            raise ValueError(f"{message} Received: optimizer of type {type(optimizer).__name__}")
        _paddle.check_own_gradients("the overflow check")
