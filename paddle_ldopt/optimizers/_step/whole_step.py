"""The whole step: a step of plain parameters and gradients that needs only clipping and updates.

Paddle's loop, the other way of a step, runs Python code for every parameter.
"""

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ... import _paddle
from .memory import addresses, same_shapes

if TYPE_CHECKING:
    from .._base.layerwise_optimizer import LayerwiseOptimizer

_frozen, _dtype = Tensor.stop_gradient.__get__, Tensor.dtype.__get__
_BLOCK = 64  # number of parameters read at a time


class StepInputs(NamedTuple):
    """The inputs of a whole step; the gradients must live until its end."""

    indices: list[int]  # of the parameters with a gradient that are not frozen; the other lists are in this order
    params: list[Tensor]
    grads: list[Tensor]
    grads_at: list[int]  # addresses
    params_at: list[int]
    factors: list[Any]  # of the parameters' own `optimize_attr`
    sizes: list[int]  # bytes of an element of each parameter
    types: list[Any]  # of the gradients
    ratios: NDArray[Any]  # 0: not updated

    @classmethod
    def of(cls, optimizer: "LayerwiseOptimizer") -> "Optional[StepInputs]":
        """Return the inputs of a step; None if it is empty, or if only Paddle's loop supports it.

        It reads blocks that fit into the cache: with 10,000 tensors this is most of a step's time.
        """
        every = all_parameters(optimizer)
        all_frozen: list[bool] = []
        columns: dict[str, list[Any]] = {name: [] for name in cls._fields if name != "ratios"}
        for begin in range(0, len(every), _BLOCK):
            block = every[begin : begin + _BLOCK]
            frozen, block_grads = list(map(_frozen, block)), list(map(_paddle.grad_of, block))
            indices = [i for i, grad in enumerate(block_grads) if grad is not None and not frozen[i]]
            grads_at = addresses([block_grads[i] for i in indices])
            if 0 in grads_at:  # empty gradients
                indices = [i for i, address in zip(indices, grads_at) if address != 0]
                grads_at = [address for address in grads_at if address != 0]
            params, grads = [block[i] for i in indices], [block_grads[i] for i in indices]
            params_at, factors = addresses(params), _factors_of(params)
            if factors is None or None in grads_at or None in params_at:  # a sparse gradient, or a cleared parameter
                return None
            if any(map(Tensor.is_dist, params)) or not same_shapes(grads, params):
                return None
            if not all(map(Tensor.is_contiguous, grads + params)):
                return None
            sizes, types = map(Tensor.element_size, params), map(_dtype, grads)
            numbers = [begin + i for i in indices]
            new: Any = numbers, params, grads, grads_at, params_at, factors, sizes, types
            for column, of_block in zip(columns.values(), new):
                column += of_block
            all_frozen += frozen
        if not columns["indices"] or not set(map(type, columns["factors"])) <= {int, float}:
            return None
        return cls(**columns, ratios=np.array(optimizer.ratio_list(every, all_frozen))[columns["indices"]])

    def without_gradients(self, forms: list[Any]) -> "StepInputs":
        """Return the inputs for a plan to keep; `forms` share the parameters' memory and will keep their shapes."""
        return self._replace(params=forms, grads=[])  # gradients would be kept alive

    def have_same_layout(self, earlier: "StepInputs") -> bool:
        """Return whether earlier inputs had the same parameters, with the same memory, shapes and types."""
        return (
            self.indices == earlier.indices
            and self.params_at == earlier.params_at
            and self.sizes == earlier.sizes
            and self.types == earlier.types
            and same_shapes(self.params, earlier.params)
        )


def _factors_of(params: list[Tensor]) -> Optional[list[Any]]:
    """Return the factors of the parameters' own rates; None if a parameter has a setting for Paddle's loop."""
    settings = [param.__dict__ for param in params]
    try:
        for attrs in settings:  # `in` is much faster than a call of `get`
            if attrs["regularizer"] is not None or ("main_grad" in attrs and attrs["main_grad"] is not None):
                return None
        return [attrs["optimize_attr"]["learning_rate"] for attrs in settings]
    except (KeyError, TypeError):  # not parameters of Paddle's layers
        return None


def _is_plain(optimizer: "LayerwiseOptimizer") -> bool:
    """Return whether a step needs only clipping and updates, as far as the optimizer's settings show."""
    return (
        paddle.in_dynamic_mode()
        and not _paddle.in_to_static_mode()
        and bool(_paddle.parameter_list(optimizer))
        and optimizer.regularization is None
        and not optimizer.missing.names
        and not _paddle.overflow_is_found(optimizer)  # which skips the step
    )


def take_whole_step(optimizer: "LayerwiseOptimizer", backends: list[Any]) -> bool:
    """Take a whole step by the first backend that can; return False, with nothing changed, if none can."""
    if not _is_plain(optimizer):
        return False
    inputs = None
    for backend in backends:
        if backend.supports_step(optimizer):
            inputs = inputs or StepInputs.of(optimizer)
            if inputs is None:
                return False
            if backend.take(optimizer, inputs):
                return True
    return False


def all_parameters(optimizer: "LayerwiseOptimizer") -> list[Any]:
    """Return the parameters of a step, also of groups added later; without groups, always the same list."""
    every: list[Any] = _paddle.parameter_list(optimizer)
    return _paddle.flatten_groups(_paddle.param_groups(optimizer)) if isinstance(every[0], dict) else every


def with_gradients(params: list[Tensor]) -> list[Any]:
    """Return the parameters that have a gradient and are not frozen."""
    return [param for param in params if not param.stop_gradient and _paddle.grad_of(param) is not None]


def create_missing_state(optimizer: "LayerwiseOptimizer") -> None:
    """Create the state of all parameters that have a gradient, also of empty ones, as Paddle's loop does."""
    _paddle.create_state(optimizer, with_gradients(all_parameters(optimizer)))


def current_lr(optimizer: "LayerwiseOptimizer") -> Any:
    """Return the optimizer's rate in this step, a Tensor; its state must have been created."""
    _paddle.create_global_lr(optimizer)()
    return _paddle.global_lr(optimizer)()


def scaled_lr(rate: Any, factors: Any, ratios: Any) -> Any:
    """Return rate * factor * ratio of one or many layers, rounded after each product; Tensors, arrays or numbers."""
    for scale in (factors, ratios):
        if not (isinstance(scale, float) and scale == 1.0):
            rate = rate * scale
    return rate
