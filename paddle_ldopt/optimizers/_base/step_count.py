"""One count of steps for all parameters, for optimizers whose rule depends on it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import paddle

from ... import kernels
from .._step.updates import Values
from ..states import STEP
from .rule_optimizer import RuleOptimizer
from .rule_state import largest, loaded, state_of_all


class SharedCountOptimizer(RuleOptimizer):
    """An optimizer with one step number t for all parameters, as TensorFlow's `iterations`."""

    _counting = False  # whether a step is running
    _this: Any = None  # the number of the running step, if known: a Tensor, or a float for the C library

    @contextlib.contextmanager
    def _one_step(self) -> Iterator[None]:
        outermost = not self._counting
        self._counting = True
        try:
            yield
        finally:
            if outermost:
                self._counting, self._this = False, None

    def counted(self, state: Values) -> Values:
        """Return 1 + the largest count of any parameter before this step."""
        if not paddle.in_dynamic_mode():  # a graph updates all its parameters: they count alike
            return super().counted(state)
        if self._this is None:
            self._this = self._count_taken() + 1.0
        dtype = state[STEP].dtype
        known = isinstance(self._this, float)
        return {STEP: paddle.full([], self._this, dtype) if known else self._this.astype(dtype)}

    def count_planned(self, structs: Any) -> None:
        """Read the number of the running step from structs that cover all state: faster than Paddle."""
        if self._this is None and self._count_elsewhere is None and len(structs) == len(state_of_all(self, STEP)):
            self._this = max(kernels.largest_step(structs), float(largest(loaded(self, STEP)))) + 1.0

    def _this_step(self) -> float:
        """Return the number of the running step, from 1, for the C library."""
        if self._this is None:
            self._this = self._count_taken() + 1.0
        return float(self._this)
