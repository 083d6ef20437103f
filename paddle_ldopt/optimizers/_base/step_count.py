"""One count of steps for all parameters, for optimizers whose rule or schedules depend on it."""

import contextlib
from collections.abc import Iterator
from typing import Any, Optional

import paddle

from ... import kernels
from ..declaration import STEP
from .rule_optimizer import Values, largest

__all__ = ["SharedStepCount", "StepCount"]

_Base: Any = object


class StepCount(_Base):
    """Under sharding a process's state misses the steps in which other processes alone had updates: they are added."""

    _largest_count: Any  # () -> the largest count in this process's state
    _elsewhere: tuple[Any, Any] = (-1, 0)  # after such a step: the largest count in this process, the steps taken

    def _with_elsewhere(self, largest: Any) -> Any:
        """Return how many steps were taken, given the largest count in this process's state."""
        return self._elsewhere[1] if self._elsewhere[0] == largest else largest

    def _steps_taken(self) -> Any:
        return self._with_elsewhere(self._largest_count())

    def _step_elsewhere(self) -> None:
        """Count a step of other processes alone."""
        largest = self._largest_count()
        self._elsewhere = largest, self._with_elsewhere(largest) + 1

    def _one_step(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of a step, which may be entered again within it."""
        raise NotImplementedError

    def step(self) -> None:
        """Update all parameters that have a gradient once."""
        with self._one_step():
            super().step()

    def _apply_optimize(self, *args: Any, **kwargs: Any) -> Any:
        # of a step: all parameters or a group of them; of `minimize` and the sharding wrappers: a whole step
        with self._one_step():
            return super()._apply_optimize(*args, **kwargs)


class SharedStepCount(StepCount):
    """The count of an optimizer whose rule has one t for all parameters, as TensorFlow's `iterations`."""

    _number_of_this_step: Optional[float] = None  # within a step, once it is known
    _in_step = False

    @contextlib.contextmanager
    def _one_step(self) -> Iterator[None]:
        outermost = not self._in_step
        self._in_step = True
        try:
            yield
        finally:
            if outermost:
                self._in_step, self._number_of_this_step = False, None

    def _counted(self, state: Values) -> Values:
        """Return 1 + the largest count of any parameter before this step."""
        if not paddle.in_dynamic_mode():  # a graph updates all its parameters or none: they count alike
            return super()._counted(state)
        return {STEP: paddle.full([], self._this_step(), state[STEP].dtype)}

    def _count_steps(self, plan: Any) -> None:
        if self._number_of_this_step is None and len(plan.records) == len(self._held(STEP)):
            taken = max(kernels.largest_step(plan.records), largest(self._loaded(STEP)))
            self._number_of_this_step = self._with_elsewhere(taken) + 1.0

    def _this_step(self) -> float:
        """Return the number of the running step, from 1."""
        if self._number_of_this_step is None:
            self._number_of_this_step = self._steps_taken() + 1.0
        return self._number_of_this_step

    def _largest_count(self) -> float:
        return self._largest_of(STEP)
