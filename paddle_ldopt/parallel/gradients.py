"""The processes of a step, and its gradients between `backward` and the optimizer."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Optional

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import HybridParallelOptimizer
from paddle.distributed.fleet.meta_parallel import PipelineLayer, PipelineParallel, ShardingParallel, TensorParallel
from paddle.distributed.fleet.utils.hybrid_parallel_util import (
    fused_allreduce_gradients_with_group,
    obtain_optimizer_parameters_list,
)
from paddle.optimizer import Optimizer

from .. import _compat
from .._checks import refusal, wrong_type
from .._processes import check_same_options, gathered

# engine settings that reduce gradients during backward
_OVERLAPS = ("dp_comm_overlap", "sharding_comm_overlap", "release_gradients")


class ProcessGroups:
    """The groups of processes, read from `fleet`'s wrappers."""

    def __init__(self, network: paddle.nn.Layer, optimizer: Optimizer) -> None:
        _compat.checked_model(network, "network")
        if not isinstance(_compat.unwrap(optimizer), paddle.optimizer.Optimizer):
            raise wrong_type(optimizer, "optimizer", "a Paddle optimizer")
        self.processes = dist.get_world_size()
        self.network, self.optimizer = network, optimizer
        of_fleet = _compat.is_pipeline_engine(network) or isinstance(network, (ShardingParallel, TensorParallel))
        self.topology: Any = network._hcg if of_fleet else None
        self.hybrid = isinstance(optimizer, HybridParallelOptimizer)
        self._check_mode()
        self.sharding_optimizer: Any = optimizer._inner_opt if self.group("sharding") else None
        self.has_slices = isinstance(self.sharding_optimizer, _compat.sharding_v2())  # version 2 cuts parameters
        # of processes that average their gradients
        self.data_group = self.group("data")
        if isinstance(network, paddle.DataParallel) and self.processes > 1:
            self.data_group = network.group or dist.get_group()
        # groups to sum losses and tokens over, and number of processes with different data
        self.data_groups = [group for group in (self.data_group, self.group("sharding")) if group is not None]
        self.data_ranks = math.prod(group.nranks for group in self.data_groups)

    def _check_mode(self) -> None:
        network, topology, layers = self.network, self.topology, _compat.unwrap_model(self.network)
        chunks = layers.get_num_virtual_stages() if isinstance(layers, PipelineLayer) else 1
        axes = ("data", "sharding", "pipe", "model") if topology else ()
        degrees = {axis: getattr(topology, f"get_{axis}_parallel_world_size")() for axis in axes}
        wrong = ""
        if overlaps := [name for name in _OVERLAPS if getattr(network, f"_{name}", False)]:
            wrong = f"Gradients must be reduced after the overflow check: disable {overlaps} in the pp_configs."
        elif chunks > 1 or isinstance(network, PipelineParallel) and type(network) is not PipelineParallel:
            wrong = "A stage must be one piece, run by 1F1B: leave out num_virtual_pipeline_stages and use_dualpipev."
        elif topology is None and self.processes > 1 and not isinstance(network, paddle.DataParallel):
            wrong = "In several processes, wrap `network` by `fleet.distributed_model` or `paddle.DataParallel`."
        elif degrees and math.prod(degrees.values()) != self.processes:
            wrong = "The parallel mode must be pipeline, data, tensor parallel, sharding stage 1 or a combination."
        elif degrees and not self.hybrid:
            wrong = "`optimizer` must come from `fleet.distributed_optimizer` if the network comes from `fleet`."
        if wrong:
            given = {"network": type(network).__name__, "optimizer": type(self.optimizer).__name__}
            raise refusal(ValueError, wrong, **given, processes=self.processes, **degrees)
        if degrees:
            _compat.check_own_gradients("the overflow check")

    def group(self, axis: str) -> Any:
        """Return None for one process."""
        group = self.topology and getattr(self.topology, f"get_{axis}_parallel_group")()
        return group if group and group.nranks > 1 else None

    def greatest(self, flag: int, error: Optional[BaseException] = None) -> int:
        """Return all processes' greatest flag; raise RuntimeError with `error` if one does not answer."""
        if self.processes == 1:
            return int(flag)
        reduced = paddle.to_tensor([int(flag)], dtype="int32")
        try:
            dist.all_reduce(reduced, op=dist.ReduceOp.MAX)
        except Exception as lost:
            error = error or lost
            wrong = "Communication failed within a step: find the first error, and restart from the last checkpoint."
            raise RuntimeError(f"{wrong} Received: {type(error).__name__}: {str(error)[:200]}") from error
        return reduced.item()

    def agree(self, error: Optional[Exception]) -> None:
        """Raise this process's error, or RuntimeError if another process has one."""
        failed = self.greatest(0 if error is None else dist.get_rank() + 1, error)  # faster than exchanging objects
        if error is not None:
            raise error
        if failed:
            wrong = "The step failed in another process and was undone in all: see the error of that process."
            raise RuntimeError(f"{wrong} Received: an error in process {failed - 1}")

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        error: Optional[Exception] = None
        try:
            yield
        except Exception as raised:
            error = raised
        self.agree(error)


def sum_of_processes(groups: list[Any], value: paddle.Tensor) -> paddle.Tensor:
    """Sum a Tensor in place over one group after the other."""
    for group in groups:
        if group is not None:
            dist.all_reduce(value, group=group)
    return value


class Gradients:
    """The gradients of an optimizer's parameters."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._trained: Optional[dict[str, bool]] = None  # structured name -> is trained
        self.moving = False  # also after an update that failed when all processes had agreed to it
        inner = _compat.unwrap(groups.optimizer)
        dicts = [group for group in inner._param_groups or [] if isinstance(group, dict)]
        for clip in (inner._grad_clip, *(group.get("grad_clip") for group in dicts)):
            if clip is not None:
                wrong = "The step clips over all processes: leave out the optimizer's `grad_clip`, set"
                raise refusal(ValueError, f"{wrong} `max_grad_norm` here.", grad_clip=type(clip).__name__)
        known = {id(param) for param in groups.network.parameters()}
        if others := [param.name for param in self._listed() if id(param) not in known]:
            raise refusal(ValueError, "`optimizer` must train parameters of the network.", others=others)
        check_same_options(groups.optimizer)
        inner.compared = True
        self.check_trained()

    def _listed(self) -> list[paddle.Tensor]:
        optimizer = self._groups.optimizer
        return obtain_optimizer_parameters_list(optimizer._inner_opt if self._groups.hybrid else optimizer)

    def check_trained(self) -> None:
        trained_ids = {id(param) for param in self.parameters()}
        named = _compat.unwrap_model(self._groups.network).named_parameters()
        trained = {name: id(param) in trained_ids for name, param in named}
        if not self._groups.greatest(trained != self._trained):
            return
        first: dict[str, tuple[int, bool]] = {}  # only tied weights are in several stages, under one name
        for rank, mine in enumerate(gathered(trained)):
            for name, is_trained in mine.items():
                other, expected = first.setdefault(name, (rank, is_trained))
                if is_trained != expected:
                    trains, lacks = (rank, other) if is_trained else (other, rank)
                    advice = f"freeze '{name}' in all or in none, and give every optimizer the same list."
                    received = f"'{name}' trained in process {trains} and not in process {lacks}"
                    raise ValueError(f"All processes must train the same parameters: {advice} Received: {received}")
        self._trained = trained

    def parameters(self) -> list[paddle.Tensor]:
        return [param for param in self._listed() if not param.stop_gradient]

    def unscale(self, factor: float) -> bool:
        """Multiply all gradients in place; return whether they are finite in this process."""
        finite = []
        for gradient in map(_gradient_of, self.parameters()):
            if gradient is not None:
                gradient.scale_(factor)
                finite.append(paddle.isfinite(gradient).all())
        return not finite or bool(paddle.stack(finite).all())

    def local_norms(self) -> tuple[paddle.Tensor, paddle.Tensor]:
        params = self.parameters()
        squares = [_square_sum(_gradient_of(param)) for param in params] or [paddle.zeros([0])]  # of a frozen stage
        return paddle.concat(squares).sqrt(), paddle.to_tensor([param.size for param in params], dtype="int64")

    def reduce(self) -> None:
        """Average over the processes with different data; gradients missing in some of them count as zeros."""
        # as in Paddle, experts keep their own gradients in data-parallel processes
        groups, params, sharding = self._groups, self.parameters(), self._groups.sharding_optimizer
        if sharding is None:
            params = [param for param in params if not _is_expert(param)]
        if not groups.has_slices:  # slices have buffers, so none is missing
            anywhere = paddle.to_tensor([_gradient_of(param) is not None for param in params], dtype="int32")
            for group in groups.data_groups if params else ():  # of a frozen stage, none anywhere
                dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=group)
            params = [param for param, is_present in zip(params, anywhere.tolist()) if is_present]
            for param in params:
                if _gradient_of(param) is None:
                    if hasattr(param, "main_grad"):
                        param.main_grad = paddle.zeros(param.shape, "float32")
                    else:
                        param.grad = paddle.zeros_like(param)
        if sharding is not None:
            sharding.reduce_gradients(params, groups.topology)
            if groups.has_slices:  # otherwise, groups lack the slices of the first step
                sharding._collect_comm_buffers()
                sharding._assign_slice_grad()
            params = sharding.filter_parameters(params, groups.topology)
        if groups.data_group is not None:  # Paddle's engine for one process has no reducer
            params = [param for param in params if not _is_expert(param)]
            fused_allreduce_gradients_with_group(params, groups.data_group, scale=1.0 / groups.data_group.nranks)

    def _counted(self) -> list[paddle.Tensor]:
        params = self.parameters()
        if self._groups.sharding_optimizer is not None:
            params = self._groups.sharding_optimizer.filter_parameters(params, self._groups.topology)
        return [param for param in params if getattr(param, "need_clip", True) and _gradient_of(param) is not None]

    def global_norm(self) -> float:
        """Return the reduced gradients' norm over all processes; each parameter counts once."""
        groups, repeated = self._groups, self._repeated()
        split: list[Any] = []  # split by tensor parallelism
        experts: list[Any] = []
        whole: list[Any] = []
        for param in self._counted():
            if id(param) not in repeated:
                kind = experts if _is_expert(param) else split if param.is_distributed else whole
                kind.append(_square_sum(_gradient_of(param)))
        sums = [paddle.add_n(squares) if squares else paddle.zeros([1]) for squares in (split, experts, whole)]
        every = sum_of_processes([groups.group("sharding"), groups.group("pipe")], paddle.concat(sums))
        in_pieces = sum_of_processes([groups.group("model")], every[:1])
        return (in_pieces + sum_of_processes([groups.data_group], every[1:2]) + every[2:]).sqrt().item()

    def _repeated(self) -> set[int]:
        """Ids of tied weights' copies, and of their slices, that another stage counts."""
        groups = self._groups
        stage = groups.network._layers if groups.group("pipe") is not None else None
        copies = [
            getattr(comm["layer"], name)
            for comm in (getattr(stage, "shared_comm", None) or {}).values()
            for name in comm["weight_attr"]
            if dist.get_rank() != min(comm["ranks"])
        ]
        slices = groups.sharding_optimizer._slice_params if groups.has_slices else {}
        return {id(tensor) for copy in copies for tensor in (copy, slices.get(copy.name, copy))}

    def apply(self, norm: float, max_norm: float) -> None:
        """Clip the reduced gradients to `max_norm` and take the optimizer's step."""
        for param in self._counted() if norm > max_norm else ():
            _gradient_of(param).scale_(max_norm / norm)
        inner, agreed = _compat.unwrap(self._groups.optimizer), list[bool]()

        def agree(error: Optional[Exception] = None) -> None:
            if not agreed:
                agreed.append(True)
                self._groups.agree(error)
                self.moving = self._groups.processes > 1

        self.moving = self._groups.processes > 1 and not hasattr(type(inner), "agree")  # Paddle's never ask
        inner.agree = agree  # our optimizers call it between their checks and the update
        inner._set_auxiliary_var("found_inf", None)  # of a scaler used before
        try:
            if self._groups.hybrid:
                self._groups.optimizer._step(self.parameters())
            else:
                self._groups.optimizer.step()
        except Exception as error:
            agree(error)
            raise
        finally:
            inner.agree = None
        agree()
        self.moving = False


def _is_expert(param: paddle.Tensor) -> bool:
    return bool(getattr(param, "no_sync", False))


def _gradient_of(param: paddle.Tensor) -> Any:
    main = getattr(param, "main_grad", None)  # float32, of a float16 or bfloat16 parameter
    return param.grad if main is None else main


def _square_sum(gradient: Optional[paddle.Tensor]) -> paddle.Tensor:
    if gradient is None:
        return paddle.zeros([1])
    dtype = "float64" if gradient.dtype == paddle.float64 else "float32"
    return paddle._C_ops.squared_l2_norm(gradient.astype(dtype)).astype("float32").reshape([1])
