"""The curves of the schedules, step -> factor of the peak, in closed form, without Paddle.

Curves are frozen dataclasses: they can be pickled, compared and printed. With w the steps of the warm-up and k = step -
w, all start with step / w unless their docstring says otherwise. Operations are in the order of transformers', so the
numbers agree except for the last bit.
"""

import dataclasses
import math
from typing import Callable, Optional


def _cosine(progress: float, cycles: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))


# name of a shape -> (fraction of the phase, waves) -> factor, which falls from 1 to 0 or rises from 0 to 1
FALLS: dict[str, Callable[[float, float], float]] = {
    "linear": lambda progress, cycles: 1.0 - progress,
    "cosine": _cosine,
    "1-sqrt": lambda progress, cycles: 1.0 - math.sqrt(progress),
}
_RISES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: progress,
    "cosine": lambda progress: 0.5 * (1.0 - math.cos(math.pi * progress)),
    "1-sqrt": lambda progress: 1.0 - math.sqrt(1.0 - progress),
}


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
        return self._turns(until)

    def _turns(self, until: int) -> list[int]:
        return [max(self.warmup - 1, 0), self.warmup]  # a decay may begin with a far lower factor


@dataclasses.dataclass(frozen=True)
class Constant(Curve):
    """1 after the warm-up."""

    def _after(self, k: int) -> float:
        return 1.0


@dataclasses.dataclass(frozen=True)
class _Decay(Curve):
    """Base of the curves that decay for `decay` steps after the warm-up."""

    decay: int = 1

    @property
    def length(self) -> int:
        """The steps of both phases."""
        return self.warmup + self.decay


@dataclasses.dataclass(frozen=True)
class Linear(_Decay):
    """1 - k / decay, then 0."""

    def _after(self, k: int) -> float:
        return (self.decay - k) / self.decay if k < self.decay else 0.0


@dataclasses.dataclass(frozen=True)
class Cosine(_Decay):
    """f + (1 - f) (1 + cos(2 pi cycles k / decay)) / 2, with f the floor; the wave goes on after `decay` steps."""

    cycles: float = 0.5
    floor: float = 0.0

    def _after(self, k: int) -> float:
        return _cosine(k / max(1, self.decay), self.cycles) * (1.0 - self.floor) + self.floor

    def _turns(self, until: int) -> list[int]:
        return _waves(self.warmup, self.decay, 2.0 * self.cycles, until)


@dataclasses.dataclass(frozen=True)
class CosineOneAhead(Cosine):
    """The cosine one step earlier; the warm-up, (step + 1) / w or linear from `start`, ends at step w - 1."""

    start: Optional[float] = None

    def _before(self, step: int) -> float:
        if self.start is None:
            return (step + 1.0) / self.warmup
        # rounding may give one ulp above 1
        return min(1.0, self.start + (1.0 - self.start) * step / max(1, self.warmup - 1))

    def _after(self, k: int) -> float:
        return super()._after(k + 1)

    def _turns(self, until: int) -> list[int]:
        return [self.warmup, *(max(step - 1, 0) for step in super()._turns(until + 1))]


@dataclasses.dataclass(frozen=True)
class CosineRestarts(_Decay):
    """(1 + cos(pi (cycles k / decay mod 1))) / 2, then 0."""

    cycles: float = 1.0

    def _after(self, k: int) -> float:
        progress = k / max(1, self.decay)
        if progress >= 1.0:
            return 0.0
        return 0.5 * (1.0 + math.cos(math.pi * ((self.cycles * progress) % 1.0)))

    def _turns(self, until: int) -> list[int]:
        return _waves(self.warmup, self.decay, self.cycles)


@dataclasses.dataclass(frozen=True)
class Polynomial(_Decay):
    """e + (1 - e) (1 - k / decay)^power, then e."""

    power: float = 1.0
    end: float = 0.0

    def _after(self, k: int) -> float:
        if k > self.decay:
            return self.end
        return (1.0 - self.end) * (1 - k / (self.decay or 1)) ** self.power + self.end

    def _turns(self, until: int) -> list[int]:
        return super()._turns(until) if self.decay < 0 else [self.warmup, self.warmup + self.decay + 1]


@dataclasses.dataclass(frozen=True)
class InverseSqrt(Curve):
    """1 / sqrt((k + timescale) / timescale)."""

    timescale: float = 10_000

    def _after(self, k: int) -> float:
        return 1.0 / math.sqrt((k + self.timescale) / self.timescale)


@dataclasses.dataclass(frozen=True)
class StableDecay(Curve):
    """f + (1 - f) rise(step / w), then 1 for `stable` steps, then f + (1 - f) fall(k / decay), then f, the floor."""

    stable: int = 0
    decay: int = 1
    rise: str = "linear"
    fall: str = "cosine"
    floor: float = 0.0
    cycles: float = 0.5

    def _before(self, step: int) -> float:
        return _RISES[self.rise](step / self.warmup) * (1.0 - self.floor) + self.floor

    def _after(self, k: int) -> float:
        k -= self.stable
        if k < 0:
            return 1.0
        if k >= self.decay:
            return self.floor
        return FALLS[self.fall](k / self.decay, self.cycles) * (1.0 - self.floor) + self.floor

    @property
    def length(self) -> int:
        """The steps of the three phases."""
        return self.warmup + self.stable + self.decay

    def _turns(self, until: int) -> list[int]:
        start = max(self.warmup, self.warmup + self.stable)  # a decay that begins in the warm-up is cut
        return [*super()._turns(until), *_waves(start, self.decay, 2.0 * self.cycles)]


@dataclasses.dataclass(frozen=True)
class CoolDown(Curve):
    """Linear from `start` to 1, `keep` steps at 1, a cosine to `end1`, `final` steps at `end1`, then `end2`."""

    keep: int = 0
    decay: int = 1
    final: int = 0
    start: float = 0.0
    end1: float = 0.0
    end2: float = 0.0
    cycles: float = 0.5

    def _before(self, step: int) -> float:
        return self.start + (1.0 - self.start) * (step / self.warmup)

    def _after(self, k: int) -> float:
        k -= self.keep
        if k < 0:
            return 1.0
        if k < self.decay:
            return self.end1 + (1.0 - self.end1) * _cosine(k / self.decay, self.cycles)
        return self.end1 if k < self.decay + self.final else self.end2

    @property
    def length(self) -> int:
        """The steps of the four phases."""
        return self.warmup + self.keep + self.decay + self.final

    def _turns(self, until: int) -> list[int]:
        waves = _waves(self.warmup + self.keep, self.decay, 2.0 * self.cycles)
        return [*super()._turns(until), *waves, self.length]


def _waves(start: int, steps: int, halves: float, until: int = 0) -> list[int]:
    """Return the whole steps around the turns of a wave with `halves` half waves in `steps` steps.

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
