"""`WarmUp`, a port of transformers 4.37's class (removed in transformers 5)."""

import copy
import math
from typing import Any, Callable, Optional, Union

from paddle.optimizer.lr import LinearLR, LRScheduler, ReduceOnPlateau

from .._checks import checked_int, checked_number, checked_state, refusal
from .factory import Bool, CurveSchedule, LastStep, NonNegative, Positive, Schedule, Steps, checks_arguments
from .metric import MetricSchedule


class WarmUp(Schedule):
    r"""Add a warm-up to a schedule that has none.

    With k the step, from 0, and w the steps of the warm-up:

    .. math::
        l_k = \begin{cases} l_0 \, (k / w)^{power} & k < w \\ decay(k - w) & k \ge w \end{cases}

    Args:
        initial_learning_rate: :math:`l_0`, the rate at the end of the warm-up.
        decay_schedule_fn: the rate after the warm-up: a function of the steps since then, from 0, or a Paddle scheduler
            without a metric; a copy of it is stepped.
        warmup_steps: w.
        power: 1 is linear.
        name: a label for `get_config`.
        last_epoch: the last step taken; -1 for none.
        verbose: print the rate of every step.

    Differs from transformers: `step()` advances it.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import WarmUp
        >>> schedule = WarmUp(1e-3, paddle.optimizer.lr.CosineAnnealingDecay(1e-3, 100), warmup_steps=10)
        >>> print(schedule(), schedule(5), schedule(10), round(schedule(60), 6))
        0.0 0.0005 0.001 0.0005
    """

    @checks_arguments
    def __init__(
        self,
        initial_learning_rate: NonNegative,
        decay_schedule_fn: Union[Callable[[int], float], LRScheduler],
        warmup_steps: Steps,
        power: Positive = 1.0,
        name: Optional[str] = None,
        *,
        last_epoch: LastStep = -1,
        verbose: Bool = False,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        if not callable(decay_schedule_fn) or isinstance(decay_schedule_fn, (type, MetricSchedule, ReduceOnPlateau)):
            advice = "A schedule that follows a metric has its own `num_warmup_steps`."
            wrong = f"`decay_schedule_fn` must be a function of the step or a scheduler without a metric. {advice}"
            raise refusal(TypeError, wrong, decay_schedule_fn=decay_schedule_fn)
        self.decay_schedule_fn = decay_schedule_fn
        self.warmup_steps = warmup_steps
        self.power = power
        self.name = name
        # kept and stepped: a scheduler may compute its rate from its last rate
        self._decay = copy.deepcopy(decay_schedule_fn) if isinstance(decay_schedule_fn, LRScheduler) else None
        after = self._rate(warmup_steps, copy.deepcopy(self._decay))  # refuses a bad function now
        super().__init__(max(initial_learning_rate, after), last_epoch, verbose)  # the peak, for tables

    def __call__(self, step: Optional[int] = None) -> float:
        """Return the current rate, or that of a step (not for inner schedulers that need their last rate)."""
        if step is None:
            return self.last_lr
        return self._rate(checked_int(step, "step"), copy.deepcopy(self._decay))

    def get_lr(self) -> float:
        return self._rate(self.last_epoch, self._decay)

    def _rate(self, step: int, decay: Optional[LRScheduler]) -> float:
        if step < self.warmup_steps:
            return self.initial_learning_rate * (step / self.warmup_steps) ** self.power
        step -= self.warmup_steps
        if decay is None:
            rate = self.decay_schedule_fn(step)
        else:
            decay.step(step)
            rate = decay()
        if type(rate) is float and 0.0 <= rate < math.inf:  # the fast path
            return rate
        return checked_number(rate, f"decay_schedule_fn({step})")

    def state_dict(self) -> dict[str, Any]:
        inside = {} if self._decay is None else {"decay": self._decay.state_dict()}
        return {**super().state_dict(), **inside}

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; that of another kind of decay raises and changes nothing."""
        own_state = dict(checked_state(state_dict))
        inside = own_state.pop("decay", None)
        fits = inside is None
        if self._decay is not None:
            self._decay.state_keys()
            fits = isinstance(inside, dict) and all(key in inside for key in self._decay.keys)
        if not fits:
            advice = "The state must be of a WarmUp whose `decay_schedule_fn` is of the same kind."
            raise refusal(ValueError, advice, decay=inside, decay_schedule_fn=self.decay_schedule_fn)
        super().set_state_dict(own_state)
        if self._decay is not None:
            self._decay.set_state_dict(inside)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments for `from_config`."""
        names = ("initial_learning_rate", "decay_schedule_fn", "warmup_steps", "power", "name")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "WarmUp":
        """Build a schedule at step 0 from the arguments of `get_config`."""
        return cls(**config)


def step_of_state(state: Any) -> Optional[int]:
    """Return the steps taken; None if the schedule followed a metric or there is no state."""
    return None if not isinstance(state, dict) or "best" in state else state.get("last_epoch")


def _needs_last_rate(schedule: LRScheduler) -> bool:
    parts = [part for part in vars(schedule).values() if isinstance(part, LRScheduler)]
    return isinstance(schedule, LinearLR) or any(map(_needs_last_rate, parts))


def resume_at(schedule: Any, step: Optional[int] = None) -> None:
    """Give a schedule whose state was loaded its own rate, not the saved one, at `step` or at its current step.

    Schedules of other packages and rates that differ by rounding stay as loaded. Of a schedule that follows a metric,
    only a warm-up goes on.
    """
    if step and isinstance(schedule, MetricSchedule) and not getattr(schedule, "warmup_step", 0):
        for _ in range(min(step, schedule.num_warmup_steps)):
            schedule.step()
    ours = isinstance(schedule, (CurveSchedule, WarmUp))
    if not ours and (type(schedule).__module__ != LRScheduler.__module__ or isinstance(schedule, ReduceOnPlateau)):
        return
    loaded, rate = schedule.state_dict(), schedule.last_lr
    target = schedule.last_epoch if step is None else step
    for at in range(0 if _needs_last_rate(schedule) else target, target + 1):
        schedule.step(at)
    if step is None and math.isclose(schedule.last_lr, rate, rel_tol=1e-6):
        schedule.set_state_dict(loaded)
