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


@dataclasses.dataclass(frozen=True)
class DecayingCurve(Curve):
    """Base of the curves that decay for `decay` steps after the warm-up."""

    decay: int = 1

    @property
    def length(self) -> int:
        """The steps of both phases."""
        return self.warmup + self.decay
