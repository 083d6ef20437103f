"""Paddle's AdamW with a ratio per parameter, for all types, and with a weight decay in float64."""

from typing import Any, Callable, ClassVar

import paddle
from paddle import Tensor
from paddle.optimizer import AdamW

from ..._paddle import param_lr, ratio_in_kernel, set_attributes
from .._base.layerwise_mixin import LayerwiseMixin
from .._step.task import Task
from .._step.updates import update

__all__ = ["BETA_OF", "LayerwiseAdamW"]

BETA_OF = {"beta1_pow_acc": "beta1", "beta2_pow_acc": "beta2"}  # states that are powers of these options
_LOW_PRECISION = {paddle.float16, paddle.bfloat16}  # a set: to compare dtypes is slow


class LayerwiseAdamW(LayerwiseMixin, AdamW):
    """The step by Paddle's operations; a subclass declares its options and states (see `LayerwiseOptimizer`)."""

    update: ClassVar[Callable[..., tuple[Any, dict[str, Any]]]]  # for types without a kernel of Paddle's

    def _ratio_for_kernel(self, param: Tensor) -> float:  # used on a GPU only, where it saves an operation
        return self.layerwise_ratio(param) if paddle.in_dynamic_mode() and param.place.is_gpu_place() else 1.0

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        param, dygraph = param_and_grad[0], paddle.in_dynamic_mode()
        if ratio_in_kernel(self) is not None and dygraph and param.place.is_gpu_place():
            return super(LayerwiseMixin, self)._create_param_lr(param_and_grad)  # Paddle's
        lr = super()._create_param_lr(param_and_grad)
        if not dygraph or lr.dtype == param.dtype:
            return lr
        # Paddle gives the rate the type of the first parameter; the kernel needs the type of this one
        double = paddle.float64 in (lr.dtype, param.dtype) and param.dtype not in _LOW_PRECISION
        return lr.astype(param.dtype) if double else lr

    def _update_by_paddle(self, block: Any, param: Tensor, grad: Tensor) -> Any:
        """Update a parameter by Paddle's code, which reads the options of a group and the decay function itself."""
        if self._is_frozen(param):
            return None
        if paddle.in_dynamic_mode():
            low_precision = param.dtype in _LOW_PRECISION
            if low_precision and param.place.is_cpu_place():
                return self._low_precision_step(param, grad)
            if not low_precision and grad.dtype != param.dtype:
                grad = grad.astype(param.dtype)  # the only type that Paddle's kernel takes
        group = self._group_of(param)
        given = {**group, "params": (param, grad)} if group else (param, grad)
        decay = 0.0
        if self.ratio_of is not None and param.dtype == paddle.float64:
            decay = self.step_options(param)["weight_decay"]
        if not decay:
            return super()._append_optimize_op(block, given)
        # Paddle's kernel rounds the decay to float32, too coarse for float64 parameters: decay them here
        paddle.assign(param * (1.0 - param_lr(self)((param, grad)) * decay), param)
        try:
            undecayed = {**self._defaults, **group, "weight_decay": 0.0, "params": (param, grad)}
            return super()._append_optimize_op(block, undecayed)
        finally:
            set_attributes(self, weight_decay=self._defaults["weight_decay"])  # for parameters without a group

    def _low_precision_step(self, param: Tensor, grad: Tensor) -> None:
        """Update a float16 or bfloat16 parameter on a CPU, where Paddle has no kernel for it."""
        options = {name: float(value) for name, value in self.step_options(param).items() if name != "lazy_mode"}
        task = Task(param, grad, options, param_lr(self)((param, grad)).reshape([]))
        update(self, task, lambda *tensors, shard, **options: self.update(*tensors, **options))

    def counted(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return no counters: `update` counts."""
        return {}
