"""Over which processes the sums of a step go, found out from what `fleet` made of the network and the optimizer."""

import contextlib
import math

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.hybrid_parallel_optimizer import HybridParallelOptimizer
from paddle.distributed.fleet.meta_parallel import (
    PipelineLayer,
    PipelineParallel,
    ShardingParallel,
    TensorParallel,
)
from paddle.distributed.fleet.meta_parallel.pipeline_parallel import NoPipelineParallel

from .._paddle import unwrap

__all__ = ["Layout"]

_SERVED = "`fleet.distributed_model` (pipeline, data, tensor parallel, sharding stage 1) or `paddle.DataParallel`"
_OVERLAPS = ("_dp_comm_overlap", "_sharding_comm_overlap", "_release_gradients")  # what the engine calls pp_configs


class Layout:
    """The groups of processes behind a network and its optimizer.

    Args:
        network (paddle.nn.Layer): as `fleet.distributed_model` or `paddle.DataParallel` gives it; plain in one process.
        optimizer (Optimizer): as `fleet.distributed_optimizer` gives it; plain in one process and for DataParallel.

    Raises:
        TypeError: no Layer, or no optimizer.
        ValueError: a way to train in parallel, or a setting of it, that is not served.
    """

    def __init__(self, network, optimizer):
        if not isinstance(network, paddle.nn.Layer):
            raise TypeError(f"`network` must be a paddle.nn.Layer. Received: network of type {type(network).__name__}")
        if not isinstance(unwrap(optimizer), paddle.optimizer.Optimizer):
            raise TypeError(
                f"`optimizer` must be a Paddle optimizer. Received: optimizer of type {type(optimizer).__name__}"
            )
        self.processes = dist.get_world_size()
        self.network, self.optimizer = network, optimizer
        self.hcg = _communicate_group(network, self.processes)
        self.hybrid = isinstance(optimizer, HybridParallelOptimizer)
        if self.hcg is not None and not self.hybrid:
            raise ValueError(
                "`optimizer` must come from `fleet.distributed_optimizer`, like the network from "
                f"`fleet.distributed_model`. Received: optimizer of type {type(optimizer).__name__}"
            )
        self.shards = getattr(optimizer, "_inner_opt", None) if self._group("sharding") else None
        for setting in ("tensor_fusion", "comm_overlap"):
            if getattr(self.shards, setting, False):
                raise ValueError(
                    "Each parameter must keep its own gradient until the overflow check: "
                    f"set {setting}=False in the strategy's sharding_configs. Received: {setting}=True"
                )

    def _group(self, axis):
        """Return the group of an axis of the hybrid topology, None if there is nobody else in it."""
        if self.hcg is None:
            return None
        group = getattr(self.hcg, f"get_{axis}_parallel_group")()
        return group if group.nranks > 1 else None

    @property
    def data_group(self):
        """Processes that have the same parameters, and average their gradients."""
        if isinstance(self.network, paddle.DataParallel) and self.processes > 1:
            return self.network.group or dist.get_group()
        return self._group("data")

    @property
    def data_groups(self):
        """Groups over which losses and tokens are summed, one after the other."""
        return [group for group in (self.data_group, self._group("sharding")) if group is not None]

    @property
    def data_ranks(self):
        """How many processes have data of their own."""
        return math.prod(group.nranks for group in self.data_groups)

    @property
    def pipe_group(self):
        """The stages of a pipeline."""
        return self._group("pipe")

    def agree(self, flag, error=None):
        """Return the greatest `flag`, a small integer, of all processes; 0 means that none is set.

        Args:
            flag (int|bool): the flag of this process.
            error (Exception, optional): the error of this process, for the message if the others do not answer.

        Raises:
            RuntimeError: another process does not answer before the communication times out.
        """
        if self.processes == 1:
            return int(flag)
        greatest = paddle.to_tensor([int(flag)], dtype="int32")
        try:
            dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
        except Exception as lost:
            error = error or lost
            raise RuntimeError(
                "The processes lost each other within a training step: one of them ended, failed or was too slow. End "
                "all of them, look for the first error, and restart from the last checkpoint. "
                f"Received: {type(error).__name__}: {str(error)[:200]}"
            ) from error
        return greatest.item()

    @contextlib.contextmanager
    def together(self):
        """Raise in all processes if the block raises in one, so that no process goes on to the next step alone."""
        error = None
        try:
            yield
        except Exception as raised:
            error = raised
        failed = self.agree(0 if error is None else dist.get_rank() + 1, error)
        if error is not None:
            raise error
        if failed:
            raise RuntimeError(
                "The step failed in another process and was undone in all: see the error of that process. "
                f"Received: an error in process {failed - 1}"
            )

    def sum_over_data(self, value):
        """Return the sum of a float32 Tensor over all processes that have data of their own."""
        for group in self.data_groups:
            dist.all_reduce(value, group=group)
        return value

    def sum_of_squares(self, split, whole):
        """Return the sum over all parameters, from the sums over those of this process.

        Args:
            split (Tensor): over parameters that tensor parallelism has cut, shape [1].
            whole (Tensor): over the others, shape [1].
        """
        both = paddle.concat([split, whole])
        for group in (self._group("sharding"), self.pipe_group):
            if group is not None:
                dist.all_reduce(both, group=group)
        split, whole = both[:1], both[1:]
        group = self._group("model")
        if group is not None:
            dist.all_reduce(split, group=group)
        return split + whole

    def repeated(self):
        """Return the ids of parameters, and of their slices, that another stage counts: copies of tied weights."""
        # Paddle means to mark them, but looks for names of attributes among names of parameters (pp_layers.py:759)
        comms = getattr(getattr(self.network, "_layers", None), "shared_comm", None) or {}
        copies = [
            getattr(comm["layer"], name)
            for comm in comms.values()
            for name in comm["weight_attr"]
            if dist.get_rank() != min(comm["ranks"])
        ]
        slices = getattr(self.shards, "_slice_params", {})
        return {id(tensor) for copy in copies for tensor in (copy, slices.get(copy.name, copy))}

    @property
    def sliced(self):
        """Whether sharding has cut the parameters into slices (version 2)."""
        return hasattr(self.shards, "_slice_params")


def _communicate_group(network, processes):
    """Return the hybrid communicate group of a network that has one, raise if it is trained in a way not served."""
    received = f"Received: network of type {type(network).__name__} in {processes} process(es)"
    on = [name.lstrip("_") for name in _OVERLAPS if getattr(network, name, False)]
    if on:
        raise ValueError(
            "Gradients must be reduced after the overflow check: switch this off in the strategy's pp_configs. "
            f"Received: {', '.join(f'{name}=True' for name in on)}"
        )
    pipeline = getattr(network, "_layers", network)
    chunks = pipeline.get_num_virtual_stages() if isinstance(pipeline, PipelineLayer) else 1
    if chunks > 1 or isinstance(network, PipelineParallel) and type(network) is not PipelineParallel:
        raise ValueError(
            "A stage must be one piece, of the 1F1B schedule: leave out num_virtual_pipeline_stages and use_dualpipev. "
            f"{received}"
        )
    if isinstance(network, (PipelineParallel, NoPipelineParallel, ShardingParallel, TensorParallel)):
        hcg = network._hcg
        if hcg is not None:
            axes = ("data", "sharding", "pipe", "model")
            degrees = {axis: getattr(hcg, f"get_{axis}_parallel_world_size")() for axis in axes}
            if math.prod(degrees.values()) != processes:
                raise ValueError(
                    "The parallel mode must be pipeline, data, tensor parallel, sharding stage 1 or a combination. "
                    f"Received: {degrees} in {processes} processes, so another one besides"
                )
        return hcg
    if processes > 1 and not isinstance(network, paddle.DataParallel):
        raise ValueError(f"With several processes `network` must be wrapped by {_SERVED}. {received}")
    return None
