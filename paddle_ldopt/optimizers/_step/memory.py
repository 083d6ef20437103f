"""The memory of tensors: address, size, changes, and whether the C library can use it, or a plan can be used again."""

import operator
from collections.abc import Iterable
from typing import Any, Optional

import paddle
from paddle import Tensor

from ... import _paddle, kernels

_CHECKED = 2048  # number of states whose address each step checks: all, of a model with some 500 parameters
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


class StateSnapshot:
    """The parameter list and all state tensors of an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self.parameter_list = optimizer, _paddle.parameter_list(optimizer)
        self.tensors = state_tensors(optimizer)

    def is_unchanged(self) -> bool:
        """Return whether no tensor was added, removed or replaced."""
        tensors = state_tensors(self._optimizer)
        return (
            self.parameter_list is _paddle.parameter_list(self._optimizer)
            and len(tensors) == len(self.tensors)
            and all(map(operator.is_, tensors, self.tensors))
        )


class WrittenMemory:
    """The memory of the masters and states that the C library writes to."""

    def __init__(self, masters: list[Tensor], states: list[Tensor]) -> None:
        self._masters, self._states = masters, states
        self._masters_at, self._states_at = ((addresses(t), versions(t)) for t in (masters, states))
        self._begin = 0  # index of the first state to be checked next
        with paddle.no_grad():
            self._held = list(map(view, states))

    def is_unchanged(self) -> bool:
        """Return whether no tensor has moved or changed its form.

        In large models each step checks only some states. Until a move is found, the library writes into memory that
        `_held` holds on to.
        """
        part = slice(self._begin, self._begin + _CHECKED)
        self._begin = part.stop if part.stop < len(self._states) else 0
        some = self._states[part]
        return (addresses(self._masters), versions(self._masters)) == self._masters_at and (
            (addresses(some), versions(some)) == (self._states_at[0][part], self._states_at[1][part])
        )
