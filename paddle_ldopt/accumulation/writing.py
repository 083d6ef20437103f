"""Writes reduced gradients into parameters."""

from collections.abc import Iterable
from typing import Any

import paddle

from .reading import clear


def write(parameters: list[Any], gradients: Iterable[Any]) -> None:
    """Set the gradients of parameters, in their types; None clears the gradient."""
    clear(parameters)
    for param, gradient in zip(parameters, gradients):
        if gradient is None:
            continue
        if param.grad is None:
            param.grad = gradient.astype(param.dtype)
        else:
            paddle.assign(gradient.astype(param.dtype), param.grad)  # part of a buffer that sharding reduces


def divided(total: Any, divisor: float) -> Any:
    """Return the quotient; dividing by a Python number would multiply by its rounded reciprocal."""
    return total / paddle.full([], divisor, total.dtype)
