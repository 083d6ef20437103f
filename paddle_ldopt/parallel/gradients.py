"""The gradients of a step, from what backward leaves to what an optimizer takes: unscale, check, reduce, clip."""

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.utils.hybrid_parallel_util import (
    fused_allreduce_gradients_with_group,
    obtain_optimizer_parameters_list,
)

__all__ = ["Gradients"]


class Gradients:
    """Those of all parameters that an optimizer trains.

    Args:
        layout (Layout): the processes, the network and its optimizer.

    Raises:
        ValueError: the optimizer has a parameter that the network has not.
    """

    def __init__(self, layout):
        self._layout = layout
        known = {id(param) for param in layout.network.parameters()}
        strange = [param.name for param in self._listed() if id(param) not in known]
        if strange:
            raise ValueError(
                "`optimizer` must train parameters of the network. "
                f"Received: {len(strange)} others, such as {strange[:3]}"
            )

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
        layout, params = self._layout, self.parameters()
        group = layout.data_group
        if group is not None and layout.shards is None:
            _fill_missing(params, group)
        if layout.hybrid and not layout.optimizer._use_dp_mode:
            layout.optimizer._hybrid_sync_grad(params)
            if hasattr(layout.shards, "_assign_slice_grad"):  # sharding v2: each process has a slice of a parameter
                layout.shards._collect_comm_buffers()
                layout.shards._assign_slice_grad()
        elif group is not None:  # Paddle leaves this to a reducer, which NoPipelineParallel lacks
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


def _fill_missing(params, group):
    """Give zeros to a parameter that has no gradient here but in another process: all are to reduce the same list."""
    present = [_gradient_of(param) is not None for param in params]
    anywhere = paddle.to_tensor(present, dtype="int32")
    dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=group)
    for param, here, there in zip(params, present, anywhere.tolist()):
        if there and not here:
            if hasattr(param, "main_grad"):
                param.main_grad = paddle.zeros(param.shape, "float32")
            else:
                param.grad = paddle.zeros_like(param)
