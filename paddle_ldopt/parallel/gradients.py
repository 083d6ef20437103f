"""The gradients of a step, from what backward leaves to what an optimizer takes: unscale, check, reduce, clip."""

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.utils.hybrid_parallel_util import (
    fused_allreduce_gradients_with_group,
    obtain_optimizer_parameters_list,
)

from .._paddle import unwrap_model

__all__ = ["Gradients"]


class Gradients:
    """Those of all parameters that an optimizer trains.

    Args:
        layout (Layout): the processes, the network and its optimizer.

    Raises:
        ValueError: the optimizer has a parameter that the network has not; processes that train other parameters.
    """

    def __init__(self, layout):
        self._layout = layout
        self._trained = None  # structured name -> whether it is trained, as agreed with all processes
        known = {id(param) for param in layout.network.parameters()}
        strange = [param.name for param in self._listed() if id(param) not in known]
        if strange:
            raise ValueError(
                "`optimizer` must train parameters of the network. "
                f"Received: {len(strange)} others, such as {strange[:3]}"
            )
        self.check_trained()

    def check_trained(self):
        """Raise, in all processes, if a parameter is trained in one process and frozen or left out in another."""
        mine = {id(param) for param in self.parameters()}
        trained = {name: id(param) in mine for name, param in unwrap_model(self._layout.network).named_parameters()}
        if not self._layout.agree(trained != self._trained):
            return
        everyone = [trained]
        if self._layout.processes > 1:
            everyone = []
            dist.all_gather_object(everyone, trained)
        first: dict = {}  # tied weights have one name in all stages, others are in one stage only
        for rank, one in enumerate(everyone):
            for name, is_trained in one.items():
                other, expected = first.setdefault(name, (rank, is_trained))
                if is_trained != expected:
                    pair = (rank, other) if is_trained else (other, rank)
                    raise ValueError(
                        f"All processes must train the same parameters: freeze '{name}' in all or in none, and give "
                        "every optimizer the same list. "
                        f"Received: '{name}' trained in process {pair[0]} and not in process {pair[1]}"
                    )
        self._trained = trained

    def _listed(self):
        optimizer = self._layout.optimizer
        return obtain_optimizer_parameters_list(optimizer._inner_opt if self._layout.hybrid else optimizer)

    def parameters(self):
        """Return the parameters that are trained at present, in the optimizer's order."""
        return [param for param in self._listed() if not param.stop_gradient]

    def unscale(self, factor):
        """Multiply all by a factor, in place; return whether they are finite in this process."""
        finite = []
        for gradient in map(_gradient_of, self.parameters()):
            if gradient is not None:
                gradient.scale_(factor)
                finite.append(paddle.isfinite(gradient).all())
        return not finite or bool(paddle.stack(finite).all())

    def local_norms(self):
        """Return the norm of each parameter's gradient and the number of its elements, as two Tensors."""
        params = self.parameters()
        squares = [_square(gradient) for gradient in map(_gradient_of, params)]
        sizes = [param.size for param in params]
        return paddle.concat(squares).sqrt(), paddle.to_tensor(sizes, dtype="int64")

    def reduce(self):
        """Average over the processes that have data of their own."""
        layout, params, group = self._layout, self.parameters(), self._layout.data_group
        if not layout.sliced:  # slices have buffers, which are never missing
            params = _fill_missing(params, layout.data_groups)
        if layout.shards is not None:
            layout.shards.reduce_gradients(params, layout.hcg)
            if layout.sliced:  # or the slices of the first step are in no group's list
                layout.shards._collect_comm_buffers()
                layout.shards._assign_slice_grad()
            params = layout.shards.filter_parameters(params, layout.hcg)
        if group is not None:  # Paddle leaves this to a reducer, which NoPipelineParallel lacks
            fused_allreduce_gradients_with_group(params, group, scale=1.0 / group.nranks)

    def _counted(self):
        """Return the parameters whose reduced gradients are in this process, and in the norm."""
        params = self.parameters()
        if self._layout.shards is not None:
            params = self._layout.shards.filter_parameters(params, self._layout.hcg)
        return [param for param in params if getattr(param, "need_clip", True) and _gradient_of(param) is not None]

    def global_norm(self):
        """Return the norm of all reduced gradients of all processes, each parameter counted once, as a float."""
        repeated = self._layout.repeated()
        split: list = []  # those that tensor parallelism has cut
        whole: list = []
        for param in self._counted():
            if id(param) not in repeated:
                (split if param.is_distributed else whole).append(_square(_gradient_of(param)))
        sums = [paddle.add_n(squares) if squares else paddle.zeros([1]) for squares in (split, whole)]
        return self._layout.sum_of_squares(*sums).sqrt().item()

    def clip(self, norm, max_norm):
        """Scale the reduced gradients, of the norm that is given, down to `max_norm`."""
        if norm > max_norm:
            for param in self._counted():
                _gradient_of(param).scale_(max_norm / norm)

    def apply(self):
        """Have the optimizer make its step, with gradients that are reduced already."""
        if self._layout.hybrid:
            self._layout.optimizer._step(self.parameters())
        else:
            self._layout.optimizer.step()


def _gradient_of(param):
    main = getattr(param, "main_grad", None)  # float32, of a float16 or bfloat16 parameter
    return param.grad if main is None else main


def _square(gradient):
    """Return the sum of the squares, float32 of shape [1], 0 for None."""
    if gradient is None:
        return paddle.zeros([1])
    dtype = "float64" if gradient.dtype == paddle.float64 else "float32"
    return gradient.astype(dtype).square().sum().astype("float32").reshape([1])


def _fill_missing(params, groups):
    """Return the parameters that have a gradient in any process, with zeros for a gradient that is missing here."""
    present = [_gradient_of(param) is not None for param in params]
    anywhere = paddle.to_tensor(present, dtype="int32")
    for group in groups:
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=group)
    filled = [param for param, there in zip(params, anywhere.tolist()) if there]
    for param in filled:
        if _gradient_of(param) is None:
            if hasattr(param, "main_grad"):
                param.main_grad = paddle.zeros(param.shape, "float32")
            else:
                param.grad = paddle.zeros_like(param)
    return filled
