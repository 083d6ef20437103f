"""The parameters that the reduced gradients are written into."""

from collections.abc import Iterable
from typing import Any, Optional

import paddle

from .._messages import wrong_type
from .reading import clear, described, trainable


def checked_target(target: Any, names: Optional[list[str]], sums: list[Any]) -> list[Any]:
    """Return the parameters of a list or a model; raise if they are not those that the sums are of."""
    if isinstance(target, paddle.nn.Layer):
        found, target = trainable(target)
        if names is not None and found != names:
            message = "`target` must be the model that the gradients are of."
            received = f"{described(found, len(target))}, for gradients of {described(names, len(sums))}"
            raise ValueError(f"{message} Received: {received}")
    listed = hasattr(target, "__iter__") and not isinstance(target, paddle.Tensor)
    parameters = list(target) if listed else []
    if not listed or not all(isinstance(param, paddle.Tensor) for param in parameters):
        raise wrong_type(target, "target", "a list of parameters or a paddle.nn.Layer")
    if len(parameters) != len(sums):
        raise ValueError(f"`target` must hold {len(sums)} parameters. Received: {len(parameters)}")
    for place, (param, total) in enumerate(zip(parameters, sums)):
        if total is not None and list(param.shape) != list(total.shape):
            received = f"shape={list(param.shape)} for a gradient of shape {list(total.shape)}, at {place}"
            message = "`target` must hold the parameters that the gradients are of."
            raise ValueError(f"{message} Received: {received}")
    return parameters


def write(parameters: list[Any], gradients: Iterable[Any]) -> None:
    """Give parameters these gradients, in their types, and none where there is none."""
    clear(parameters)
    for param, gradient in zip(parameters, gradients):
        if gradient is None:
            continue
        if param.grad is None:
            param.grad = gradient.astype(param.dtype)
        else:
            paddle.assign(gradient.astype(param.dtype), param.grad)  # a part of the buffer that sharding reduces


def divided(total: Any, divisor: float) -> Any:
    """Return a new Tensor: `/` with a number would multiply by its rounded reciprocal."""
    return total / paddle.full([], divisor, total.dtype)
