"""The state of an optimizer when a plan was made, to see whether the plan can be used again."""

import operator

import paddle
from paddle import Tensor

from ... import _paddle
from .interfaces import StepInterface
from .tensor_memory import addresses, state_tensors, versions, view

_CHECKED = 2048  # number of states whose address each step checks: all, of a model with some 500 parameters


class StateSnapshot:
    """The parameter list and all state tensors of an optimizer."""

    def __init__(self, optimizer: StepInterface) -> None:
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
