"""The pending update of one parameter, and the check of its gradient."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import paddle
from paddle import Tensor

if TYPE_CHECKING:
    from .._base.layerwise_optimizer import LayerwiseOptimizer


_FLOATS = {paddle.float16, paddle.bfloat16, paddle.float32, paddle.float64}
_COMPLEX = {paddle.complex64, paddle.complex128}


class Task(NamedTuple):
    """The pending update of one parameter."""

    param: Tensor  # the parameter, or its flat slice under `fleet`
    grad: Tensor  # its gradient
    options: dict[str, Any]  # "weight_decay" is 0 for a parameter excluded from it
    lr: Any  # includes the layer's ratio; a Tensor of shape [] in the type that the update is computed in
    shard: Any = None  # the `Shard` of the parameter in this process, set right before the update


def check_gradient_fits(optimizer: "LayerwiseOptimizer", param: Tensor, grad: Tensor) -> None:
    """Raise for a parameter that is not floating-point, and a gradient that is complex, sparse or of another size."""
    sparse = getattr(grad, "is_selected_rows", lambda: False)()
    if sparse and not optimizer.takes_sparse(param):
        needs = f"{type(optimizer).__name__} needs dense gradients: build the embedding with sparse=False."
        raise TypeError(f"{needs} Received: a sparse gradient of '{param.name}'")
    if paddle.in_dynamic_mode() and (param.dtype not in _FLOATS or grad.dtype in _COMPLEX):
        raise TypeError(
            "Parameters must be floating-point tensors with real gradients: freeze others, split complex ones into "
            f"two. Received: '{param.name}' of type {param.dtype} with a gradient of type {grad.dtype}"
        )
    if paddle.in_dynamic_mode() and not sparse and math.prod(grad.shape) != math.prod(param.shape):
        wrong = "A gradient must have the size of its parameter: Paddle's kernel would read memory behind it."
        raise ValueError(
            f"{wrong} Received: '{param.name}' of shape {list(param.shape)}, gradient of shape {list(grad.shape)}"
        )


def in_shape(grad: Tensor, param: Tensor) -> Any:
    """Return a gradient in the shape of its parameter; `ClipGradByGlobalNorm` makes [1] of []."""
    return grad if list(grad.shape) == list(param.shape) else grad.reshape(param.shape)
