"""The base of the curves, step -> factor of the peak, in closed form, without Paddle.

Curves are frozen dataclasses: they can be pickled, compared and printed. With w the steps of the warm-up and k = step -
w, all start with step / w unless their docstring says otherwise. Operations are in the order of transformers', so the
numbers agree except for the last bit.
"""

import dataclasses
import math
from typing import Optional


def cosine(progress: float, cycles: float) -> float:
    """Return the factor of a wave from 1 to 0 and back, after a fraction of `cycles` waves."""
    return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))


@dataclasses.dataclass(frozen=True)
class Curve:
    """Base of all curves: a linear rise to 1 at step `warmup`; subclasses give the factor from there on."""

    warmup: int = 0

    def __call__(self, step: int) -> float:
        """Return the factor of a step, counted from 0."""
        return self._before(step) if step < self.warmup else self._after(step - self.warmup)

    def _before(self, step: int) -> float:
        """Return the factor of a step of the warm-up."""
        return step / self.warmup

    def _after(self, k: int) -> float:
        """Return the factor `k` steps after the warm-up."""
        raise NotImplementedError

    @property
    def length(self) -> Optional[int]:
        """The number of steps that the curve covers, counted from its first; None if it has no end."""
        return None

    def turns(self, until: int = 0) -> list[int]:
        """Return the steps at which a rise or a fall may end, up to the end of the curve or to step `until`.

        The greatest factor from a step on is that of the step itself or of a later turn.
        """
        start = [max(self.warmup - 1, 0), self.warmup]  # a decay may begin with a far lower factor
        return [*start, *self._turns_after(until)]

    def _turns_after(self, until: int) -> list[int]:
        """Return the turns after the warm-up."""
        return []


@dataclasses.dataclass(frozen=True)
class DecayingCurve(Curve):
    """Base of the curves that decay for `decay` steps after the warm-up."""

    decay: int = 1

    @property
    def length(self) -> int:
        """The steps of both phases."""
        return self.warmup + self.decay


def waves(start: int, steps: int, halves: float, until: int = 0) -> list[int]:
    """Return the steps around the turns of a wave with `halves` half waves in `steps` steps.

    The wave begins at step `start` and ends `steps` later, or at step `until` if that is later.
    """
    steps = max(steps, 0)
    length = max(steps, until - start)
    if halves >= steps:
        return list(range(start, start + length + 1))
    turns = {0, steps - 1, steps, length}
    for i in range(1, math.floor(halves * length / steps) + 1):
        turns.update(math.floor(i * steps / halves) + near for near in (-1, 0, 1, 2))
    return [start + min(max(turn, 0), length) for turn in turns]
