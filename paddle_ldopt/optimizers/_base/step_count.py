"""One count of steps for all parameters, for optimizers whose rule or schedules depend on it."""

from typing import Any

__all__ = ["StepCount"]


class StepCount:
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
