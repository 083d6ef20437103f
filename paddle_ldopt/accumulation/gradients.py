"""Gradients of a micro-batch, from a list or a model; their sums over processes; reduced gradients for parameters."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Optional

import paddle
import paddle.distributed as dist

from .._messages import wrong_type
from .._paddle import sharding_setting, unwrap_model

Slot = Optional[tuple[list[int], str]]  # shape and dtype, None without a gradient so far


def gradients_of(source: Any) -> tuple[Optional[list[str]], Optional[list[paddle.Tensor]], list[paddle.Tensor]]:
    """Return the names, parameters and gradients of a model, or None, None and the gradients of a list."""
    if isinstance(source, (list, tuple)):
        return None, None, list(source)
    if not isinstance(source, paddle.nn.Layer):
        raise wrong_type(source, "gradients", "a list of Tensors and None, or a paddle.nn.Layer")
    names, parameters = trainable(source)
    gradients = [param.grad for param in parameters]
    if all(gradient is None for gradient in gradients):
        received = f"{len(parameters)} trainable parameters, none with a gradient"
        raise ValueError(f"The model must have gradients: call `backward` first. Received: {received}")
    return names, parameters, gradients


def trainable(model: paddle.nn.Layer) -> tuple[list[str], list[paddle.Tensor]]:
    """Return the structured names of a model's trainable parameters, and the parameters."""
    inner = unwrap_model(model) if isinstance(model, paddle.DataParallel) else model
    named = [(name, param) for name, param in inner.named_parameters() if not param.stop_gradient]
    return [name for name, _ in named], [param for _, param in named]


def sum_dtype(gradient: paddle.Tensor) -> Any:
    """Return the type for the sum of such gradients."""
    return paddle.float64 if gradient.dtype == paddle.float64 else paddle.float32


@dataclasses.dataclass
class ProcessPart:
    """A process's part of a cycle, without the sums; a process without a call has no slots."""

    reduction: str
    names: Optional[list[str]]  # structured names of a model's parameters, None for a list of gradients
    own_names: Optional[list[str]]  # Paddle's names of these parameters
    slots: list[Slot]
    received: list[bool]
    count: int
    weight: float

    @property
    def was_called(self) -> bool:
        """Whether the process has ever called its accumulator, which decides its slots."""
        return bool(self.slots or self.count)


def summed(sums: list[Any], parts: list[ProcessPart], group: Any) -> list[Any]:
    """Add up the sums of all processes in place; missing sums count as zeros if any process has a gradient."""
    columns = list(zip(*(part.slots for part in parts if part.was_called)))
    out = []
    for column, total in zip(columns, sums or [None] * len(columns)):
        slot = next((slot for slot in column if slot is not None), None)
        if slot is not None:
            total = paddle.zeros(*slot) if total is None else total
            if dist.get_world_size(group) > 1:
                dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        out.append(total)
    return out


def divided(total: paddle.Tensor, divisor: float) -> paddle.Tensor:
    """Return the quotient; dividing by a Python number would multiply by its rounded reciprocal."""
    return total / paddle.full([], divisor, total.dtype)


def write(parameters: list[paddle.Tensor], gradients: Iterable[Optional[paddle.Tensor]]) -> None:
    """Set the gradients of parameters, in their types; None clears the gradient."""
    clear(parameters)
    for param, gradient in zip(parameters, gradients):
        if gradient is None:
            continue
        if param.grad is None:
            param.grad = gradient.astype(param.dtype)
        else:
            paddle.assign(gradient.astype(param.dtype), param.grad)  # part of a buffer that sharding reduces


def clear(parameters: Iterable[paddle.Tensor]) -> None:
    """Clear gradients, or zero them where sharding reduces a buffer of gradients."""
    in_buffers = sharding_setting("split_param")
    for param in parameters:
        if not in_buffers:
            param.clear_gradient(False)  # as a keyword, Paddle ignores the argument and leaves zeros
        elif param.grad is not None:
            with paddle.no_grad():
                param.grad.zero_()
