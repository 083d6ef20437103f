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

__all__ = ["SharedStepCount", "StepCount"]

_Base: Any = object


class StepCount(_Base):
    """The count is the largest in the state `_COUNT` of any parameter: a resume has it, and so has a new parameter.

    Under sharding a process's state misses the steps in which other processes alone had updates: they are added.
    """

    _COUNT: str
    _elsewhere: Optional[tuple[Any, Any]] = (
        None  # after such a step: the largest count in this process, the steps taken
    )
    _known: Optional[tuple[list[Any], list[int], Any, float]] = (
        None  # the steps taken, while what shows them is the same
    )

    def _count_taken(self) -> Any:
        """Return how many steps were taken, a Tensor."""
        count = self._largest_of(self._COUNT)
        return (
            count if self._elsewhere is None else paddle.where(count == self._elsewhere[0], self._elsewhere[1], count)
        )

    def _step_elsewhere(self) -> None:
        """Count a step of other processes alone."""
        self._elsewhere = self._largest_of(self._COUNT), self._count_taken() + 1.0

    def _steps_taken(self) -> float:
        """Return how many steps were taken; it waits for the device only if the last step did not note it."""
        if self._known is not None:
            counts, versions, waiting, count = self._known
            now, now_versions, now_waiting, _ = self._noted(count)
            if now_waiting is waiting and now_versions == versions and all(map(operator.is_, now, counts)):
                return count
        return float(self._count_taken())

    def _noted(self, count: float) -> tuple[list[Any], list[int], Any, float]:
        """Return a count with all that shows whether it still holds."""
        counts = list(self._state_of_all(self._COUNT).values())
        return counts, list(map(_paddle.version_of, counts)), _paddle.waiting_state(self), count

    def state_dict(self) -> dict[str, Any]:
        """Return the state; whoever asks for it may write into it."""
        self._known = None
        return super().state_dict()

    def sharded_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state with its places; it is there to be loaded into."""
        self._known = None
        return super().sharded_state_dict(*args, **kwargs)


class SharedStepCount(StepCount):
    """The count of an optimizer whose rule has one t for all parameters, as TensorFlow's `iterations`."""

    _COUNT = STEP
    _counting = False  # whether a step is running
    _this: Any = None  # the number of the running step once it is known, a Tensor or of the C library a float

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
        if not paddle.in_dynamic_mode():  # a graph updates all its parameters or none: they count alike
            return super()._counted(state)
        if self._this is None:
            self._this = self._count_taken() + 1.0
        dtype = state[STEP].dtype
        known = isinstance(self._this, float)
        return {STEP: paddle.full([], self._this, dtype) if known else self._this.astype(dtype)}

    def count_planned(self, plan: Any) -> None:
        """Count the running step by a plan of all parameters that have state, which costs less than Paddle's max."""
        if self._this is None and self._elsewhere is None and len(plan.structs) == len(self._state_of_all(STEP)):
            self._this = max(kernels.largest_step(plan.structs), float(largest(self._loaded(STEP)))) + 1.0

    def _this_step(self) -> float:
        """Return the number of the running step, from 1, for the C library."""
        if self._this is None:
            self._this = self._count_taken() + 1.0
        return float(self._this)
