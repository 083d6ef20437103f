"""One count of steps for all parameters, for optimizers whose rule or schedules depend on it."""

import contextlib
from typing import Any

__all__ = ["StepCount"]

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
