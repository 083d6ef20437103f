"""The state of an optimizer when a plan was made, to see whether the plan can be used again."""

import operator

import paddle
from paddle import Tensor

from ... import _paddle
from .interfaces import StepInterface
from .tensor_memory import addresses, state_tensors, versions, view

_CHECKED = 2048  # number of states whose address each step checks: all, of a model with some 500 parameters


class StateSnapshot:
    """All state tensors of an optimizer, and the memory of the masters and states that the C library writes to."""

    def __init__(self, optimizer: StepInterface, masters: list[Tensor], states: list[Tensor]) -> None:
        self._optimizer, self._parameter_list = optimizer, _paddle.parameter_list(optimizer)
        self._tensors, self._masters, self._states = state_tensors(optimizer), masters, states
        self._masters_at, self._states_at = ((addresses(t), versions(t)) for t in (masters, states))
        self._begin = 0  # index of the first state to be checked next
        with paddle.no_grad():
            self._held_memory = list(map(view, states))

    def is_unchanged(self) -> bool:
        """Return whether no state has moved, been replaced or changed its form.

        In large models each step checks all states for replacement, but only some for moves. Until a move is found, the
        library writes into memory that `_held_memory` holds on to.
        """
        part = slice(self._begin, self._begin + _CHECKED)
        self._begin = part.stop if part.stop < len(self._states) else 0
        some, tensors = self._states[part], state_tensors(self._optimizer)
        return (
            self._parameter_list is _paddle.parameter_list(self._optimizer)
            and len(tensors) == len(self._tensors)
            and all(map(operator.is_, tensors, self._tensors))
            and (addresses(self._masters), versions(self._masters)) == self._masters_at
            and (addresses(some), versions(some)) == (self._states_at[0][part], self._states_at[1][part])
        )
