"""One count of steps for all parameters, for optimizers whose rule or schedules depend on it."""

import contextlib
import operator
from collections.abc import Iterator
from typing import Any, Optional

import paddle

from ... import _paddle, kernels
from ..states import STEP
from .rule_state import largest
from .updates import Values

_Base: Any = object


class StepCount(_Base):
    """Counts the steps by the largest value of the state `_COUNT` of any parameter, which a resume restores.

    Under sharding, steps in which only other processes have updates are not in this process's state: they are added.
    """

    _COUNT: str
    _elsewhere: Optional[tuple[Any, Any]] = None  # after such a step: (largest count in this process, steps taken)
    _known: Optional[tuple[list[Any], list[int], Any, float]] = None  # the result of `_noted` after the last step

    def _count_taken(self) -> Any:
        """Return the number of steps taken, a Tensor."""
        count = self._largest_of(self._COUNT)
        if self._elsewhere is None:
            return count
        return paddle.where(count == self._elsewhere[0], self._elsewhere[1], count)

    def _step_elsewhere(self) -> None:
        """Count a step in which only other processes have updates."""
        self._elsewhere = self._largest_of(self._COUNT), self._count_taken() + 1.0

    def _steps_taken(self) -> float:
        """Return the number of steps taken; it waits for the device unless the last step noted the number."""
        if self._known is not None:
            counts, versions, waiting, count = self._known
            now, now_versions, now_waiting, _ = self._noted(count)
            if now_waiting is waiting and now_versions == versions and all(map(operator.is_, now, counts)):
                return count
        return float(self._count_taken())

    def _noted(self, count: float) -> tuple[list[Any], list[int], Any, float]:
        """Return a count with the tensors, versions and loaded state that it was read from."""
        counts = list(self._state_of_all(self._COUNT).values())
        return counts, list(map(_paddle.version_of, counts)), _paddle.waiting_state(self), count

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which the caller may change."""
        self._known = None
        return super().state_dict()

    def sharded_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state with its offsets, to be loaded into."""
        self._known = None
        return super().sharded_state_dict(*args, **kwargs)


class SharedStepCount(StepCount):
    """One step number t for all parameters, as TensorFlow's `iterations`."""

    _COUNT = STEP
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

    def _counted(self, state: Values) -> Values:
        """Return 1 + the largest count of any parameter before this step."""
        if not paddle.in_dynamic_mode():  # a graph updates all its parameters: they count alike
            return super()._counted(state)
        if self._this is None:
            self._this = self._count_taken() + 1.0
        dtype = state[STEP].dtype
        known = isinstance(self._this, float)
        return {STEP: paddle.full([], self._this, dtype) if known else self._this.astype(dtype)}

    def _count_planned(self, plan: Any) -> None:
        """Read the number of the running step from the structs of a plan that covers all state: faster than Paddle."""
        if self._this is None and self._elsewhere is None and len(plan.structs) == len(self._state_of_all(STEP)):
            self._this = max(kernels.largest_step(plan.structs), float(largest(self._loaded(STEP)))) + 1.0

    def _this_step(self) -> float:
        """Return the number of the running step, from 1, for the C library."""
        if self._this is None:
            self._this = self._count_taken() + 1.0
        return float(self._this)
