"""The gradients of a step between `backward` and the optimizer: unscale, check, reduce, clip."""

from typing import Any, Optional

import paddle
import paddle.distributed as dist
from paddle.optimizer import Optimizer

from .. import _paddle
from .._processes import gathered
from .process_groups import ProcessGroups, sum_of_processes


class Gradients:
    """The gradients of an optimizer's parameters, which all processes must agree on."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._trained: Optional[dict[str, bool]] = None  # structured name -> is trained, the same in all processes
        _check_optimizer(groups.network, groups.optimizer, self._listed())
        self.check_trained()

    def check_trained(self) -> None:
        """Raise in all processes if a parameter is trained in one process and frozen or missing in another."""
        trained_ids = {id(param) for param in self.parameters()}
        named = _paddle.unwrap_model(self._groups.network).named_parameters()
        trained = {name: id(param) in trained_ids for name, param in named}
        if self._groups.greatest(trained != self._trained):
            _check_same_trained(gathered(trained))
            self._trained = trained

    def _listed(self) -> list[paddle.Tensor]:
        optimizer = self._groups.optimizer
        return _paddle.hybrid_parameters()(_paddle.sharded_optimizer(optimizer) if self._groups.hybrid else optimizer)

    def parameters(self) -> list[paddle.Tensor]:
        """Return the parameters trained at present, in the optimizer's order."""
        return [param for param in self._listed() if not param.stop_gradient]

    def unscale(self, factor: float) -> bool:
        """Multiply all gradients in place by a factor; return whether they are finite in this process."""
        finite = []
        for gradient in map(_gradient_of, self.parameters()):
            if gradient is not None:
                gradient.scale_(factor)
                finite.append(paddle.isfinite(gradient).all())
        return not finite or bool(paddle.stack(finite).all())

    def local_norms(self) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return the norm of each parameter's gradient and the number of its elements, as two Tensors."""
        params = self.parameters()
        squares = [_square_sum(_gradient_of(param)) for param in params]
        return paddle.concat(squares).sqrt(), paddle.to_tensor([param.size for param in params], dtype="int64")

    def reduce(self) -> None:
        """Average over the processes with different data."""
        groups, params, group = self._groups, self.parameters(), self._groups.data_group
        if not groups.has_slices:  # slices have buffers, so none is missing
            params = _fill_missing(params, groups.data_groups)
        if groups.sharding_optimizer is not None:
            groups.sharding_optimizer.reduce_gradients(params, groups.topology)
            if groups.has_slices:  # otherwise, groups lack the slices of the first step
                _paddle.collect_buffers(groups.sharding_optimizer)()
                _paddle.assign_slice_gradients(groups.sharding_optimizer)()
            params = groups.sharding_optimizer.filter_parameters(params, groups.topology)
        if group is not None:  # Paddle's engine for one process has no reducer
            _paddle.all_reduce_gradients()(params, group, scale=1.0 / group.nranks)

    def _counted(self) -> list[paddle.Tensor]:
        """Return the parameters in the norm with reduced gradients in this process."""
        params = self.parameters()
        if self._groups.sharding_optimizer is not None:
            params = self._groups.sharding_optimizer.filter_parameters(params, self._groups.topology)
        return [param for param in params if getattr(param, "need_clip", True) and _gradient_of(param) is not None]

    def global_norm(self) -> float:
        """Return the norm of the reduced gradients of all processes, each parameter counted once."""
        groups, repeated = self._groups, self._groups.repeated()
        split: list[Any] = []  # squares of parameters split by tensor parallelism
        whole: list[Any] = []
        for param in self._counted():
            if id(param) not in repeated:
                (split if param.is_distributed else whole).append(_square_sum(_gradient_of(param)))
        sums = [paddle.add_n(squares) if squares else paddle.zeros([1]) for squares in (split, whole)]
        both = sum_of_processes([groups.group("sharding"), groups.group("pipe")], paddle.concat(sums))
        return (sum_of_processes([groups.group("model")], both[:1]) + both[1:]).sqrt().item()

    def clip(self, norm: float, max_norm: float) -> None:
        """Clip the reduced gradients, of norm `norm`, to `max_norm`."""
        if norm > max_norm:
            for param in self._counted():
                _gradient_of(param).scale_(max_norm / norm)

    def apply(self) -> None:
        """Take the optimizer's step with the reduced gradients."""
        if self._groups.hybrid:
            _paddle.reduced_step(self._groups.optimizer)(self.parameters())
        else:
            self._groups.optimizer.step()


def _gradient_of(param: paddle.Tensor) -> Any:
    main = getattr(param, "main_grad", None)  # float32, of a float16 or bfloat16 parameter
    return param.grad if main is None else main


def _square_sum(gradient: Optional[paddle.Tensor]) -> paddle.Tensor:
    """Return the sum of the squares, float32 of shape [1], 0 for None."""
    if gradient is None:
        return paddle.zeros([1])
    dtype = "float64" if gradient.dtype == paddle.float64 else "float32"
    return _paddle.square_sum(gradient.astype(dtype)).astype("float32").reshape([1])


def _fill_missing(params: list[paddle.Tensor], groups: list[Any]) -> list[paddle.Tensor]:
    """Return the parameters with a gradient in any process; fill gradients missing in this process with zeros."""
    present = [_gradient_of(param) is not None for param in params]
    anywhere = paddle.to_tensor(present, dtype="int32")
    for group in groups:
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=group)
    filled = [param for param, is_present in zip(params, anywhere.tolist()) if is_present]
    for param in filled:
        if _gradient_of(param) is None:
            if hasattr(param, "main_grad"):
                param.main_grad = paddle.zeros(param.shape, "float32")
            else:
                param.grad = paddle.zeros_like(param)
    return filled


def _check_optimizer(network: paddle.nn.Layer, optimizer: Optimizer, parameters: list[paddle.Tensor]) -> None:
    """Raise if the optimizer clips gradients itself, or trains `parameters` of another network."""
    inner = _paddle.unwrap(optimizer)
    groups = [group for group in _paddle.param_groups(inner) or [] if isinstance(group, dict)]
    clips = [_paddle.grad_clip(inner), *(group.get("grad_clip") for group in groups)]
    for clip in clips:
        if clip is not None:
            message = (
                "The step clips over all processes: leave out the optimizer's `grad_clip`, set `max_grad_norm` here."
            )
            raise ValueError(f"{message} Received: grad_clip={type(clip).__name__}")
    network_ids = {id(param) for param in network.parameters()}
    others = [param.name for param in parameters if id(param) not in network_ids]
    if others:
        message = "`optimizer` must train parameters of the network."
        raise ValueError(f"{message} Received: {len(others)} others, such as {others[:3]}")


def _check_same_trained(trained: list[dict[str, bool]]) -> None:
    """Raise if a name, in the dicts of all processes, is trained in one process and not in another."""
    first: dict[str, tuple[int, bool]] = {}  # only tied weights are in several stages, under one name
    for rank, mine in enumerate(trained):
        for name, is_trained in mine.items():
            other, expected = first.setdefault(name, (rank, is_trained))
            if is_trained != expected:
                trains, lacks = (rank, other) if is_trained else (other, rank)
                advice = f"freeze '{name}' in all or in none, and give every optimizer the same list."
                received = f"'{name}' trained in process {trains} and not in process {lacks}"
                raise ValueError(f"All processes must train the same parameters: {advice} Received: {received}")
