"""The memory of tensors: address, size, changes, and whether the C library can use it."""

from collections.abc import Iterable
from typing import Any, Optional

import paddle
from paddle import Tensor

from ... import _paddle, kernels

TYPES = {getattr(paddle, name): code for name, code in kernels.TYPES.items()}


def addresses(tensors: Iterable[Tensor]) -> list[int]:
    """Return the address of each tensor, None of a cleared one, 0 of an empty one."""
    return list(map(Tensor.data_ptr, tensors))


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """Return how often Paddle has changed each tensor (values, shape, strides or type) in place."""
    return list(map(_paddle.version_of, tensors))


def same_shapes(tensors: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    """Return whether each tensor has the shape of its counterpart."""
    return all(map(Tensor.is_same_shape, tensors, others))


def view(tensor: Tensor) -> Tensor:
    """Return a view, which, unlike `detach`, keeps the shape and holds on to the memory."""
    return _paddle.view_of(tensor.detach(), list(tensor.shape))


def state_tensors(optimizer: Any) -> list[Any]:
    """Return the tensors of all states and masters of an optimizer."""
    tensors: list[Tensor] = []
    for by_name in (*_paddle.accumulators(optimizer).values(), _paddle.masters(optimizer)):
        tensors += by_name.values()
    return tensors


def allocated_bytes(tensor: Any) -> int:
    """Return the number of bytes allocated for a tensor from its first element on; 0 for a DistTensor."""
    return _paddle.bytes_behind(tensor) - _paddle.bytes_before(tensor)


def unsupported_tensor(tensor: Any) -> Optional[str]:
    """Return why the C library cannot use a contiguous tensor, None if it can."""
    if tensor.is_dist():
        return "it is a DistTensor"  # this process may have a part of its shape
    if tensor.data_ptr() is None:
        return "its memory was freed"
    if tensor.dtype not in TYPES:
        return f"the type is {tensor.dtype}"
    return None if tensor.place.is_cpu_place() else f"it is on {tensor.place}"
