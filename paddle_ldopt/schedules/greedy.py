"""A rate that follows a metric up and down."""

import collections
from typing import Any, Optional

from .._checks import checked_state
from .._messages import refusal
from ._base import OptimizerOrRate
from .kinds import schedule
from .metric import Metric, MetricSchedule
from .option_types import Bool, Factor, Mode, NonNegative, Positive, Steps, StepsFrom1, ThresholdMode, checks_arguments


class GreedyLR(MetricSchedule):
    r"""Raise the learning rate while a metric improves, reduce it while it does not.

    .. math::
        \eta \leftarrow \max(f \eta, \eta_{min}) \text{ after more than patience bad steps in a row}, \qquad
        \eta \leftarrow \min(\eta / f, \eta_{max}) \text{ after as many good steps in a row}

    Args:
        learning_rate: the first rate, from `min_lr` to `max_lr`; or an optimizer with this rate, to which the schedule
            is attached.
        patience: good or bad steps in a row before a change, at least 0.
        cooldown: steps after a reduction in which metrics do not count, at least 0.
        warmup: steps after an increase in which metrics do not count, at least 0.
        min_lr: the lowest rate, at least 0. Set it for fine-tuning: the default, 1e-3, is above the usual rates.
        max_lr: the highest rate, above `min_lr`.
        smooth: compare the mean of the last `window_size` metrics, at least 1, instead of the last metric.
        reset_start: reductions at the lowest rate before a restart from the first rate, at least 1.
        mode, factor, threshold, threshold_mode, eps, verbose: as in `ReduceLROnPlateau`.

    Differs from transformers: a first rate outside `min_lr` to `max_lr` is an error. The mean is recomputed at every
    step, so rounding errors do not accumulate, and a NaN has no effect once it leaves the window. All groups share one
    rate.

    Examples:
        >>> from paddle_ldopt.schedules import GreedyLR
        >>> schedule = GreedyLR(0.1, factor=0.5, patience=1)
        >>> for loss in (1.0, 0.9):
        ...     schedule.step(loss)
        >>> schedule()
        0.2
        >>> for loss in (1.0, 1.0):
        ...     schedule.step(loss)
        >>> schedule()
        0.1

    Source: ``transformers.optimization.GreedyLR``, 5; arXiv 2512.14527.
    """

    @checks_arguments
    def __init__(
        self,
        learning_rate: OptimizerOrRate,
        mode: Mode = "min",
        factor: Factor = 0.95,
        patience: Steps = 10,
        threshold: NonNegative = 1e-6,
        threshold_mode: ThresholdMode = "abs",
        cooldown: Steps = 0,
        warmup: Steps = 0,
        min_lr: NonNegative = 1e-3,
        max_lr: Positive = 1.0,
        eps: NonNegative = 1e-8,
        verbose: Bool = False,
        smooth: Bool = False,
        window_size: StepsFrom1 = 50,
        reset_start: StepsFrom1 = 500,
    ) -> None:
        self.warmup = warmup
        self.max_lr = max_lr
        self.smooth = smooth
        self.window_size = window_size
        self.reset_start = reset_start
        super().__init__(
            learning_rate, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps, verbose
        )

    def _check_limits(self) -> None:
        if not (self.min_lr <= self.base_lr <= self.max_lr and self.min_lr < self.max_lr):
            advice = "The learning rate must be between `min_lr` and `max_lr`, which must differ: set them too."
            raise refusal(ValueError, advice, learning_rate=self.base_lr, min_lr=self.min_lr, max_lr=self.max_lr)

    def _restart(self) -> None:
        super()._restart()
        self.num_good_epochs = self.warmup_counter = 0
        self.resets_in = self.reset_start
        self.window: collections.deque[float] = collections.deque(maxlen=self.window_size)

    def step(self, metrics: Metric, epoch: Optional[int] = None) -> None:
        """Take a step, number `epoch` if given, with its metric: a number or a Tensor of one element."""
        metric = self._count(metrics, epoch)
        if self.smooth:
            self.window.append(metric)
            metric = sum(self.window) / len(self.window)
        if self.cooldown_counter > 0 or self.warmup_counter > 0:
            if self.cooldown_counter > 0:
                self.cooldown_counter -= 1
            else:
                self.warmup_counter -= 1
            self.num_bad_epochs = self.num_good_epochs = 0
            return
        self.num_good_epochs = self.num_good_epochs + 1 if self._judge(metric) else 0
        if self.num_good_epochs > self.patience:
            self._set(min(self.last_lr / self.factor, self.max_lr))
            self.resets_in = self.reset_start
            self.warmup_counter = self.warmup
            self.num_good_epochs = 0
        elif self.num_bad_epochs > self.patience:
            self._reduce()

    def _reduce(self) -> None:
        super()._reduce()
        if self.last_lr <= self.min_lr:
            self.resets_in -= 1
            if self.resets_in <= 0:
                self._restart()
                self.last_lr, self.cooldown_counter = self.base_lr, self.cooldown

    def state_keys(self) -> None:
        """Set `keys`, the entries of `state_dict`."""
        super().state_keys()
        self.keys += ["num_good_epochs", "warmup_counter", "resets_in", "window"]

    def state_dict(self) -> dict[str, Any]:
        """Return the state: numbers, and a new list of the metrics in the window."""
        return {**super().state_dict(), "window": list(self.window)}

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from `state_dict`; as in transformers, missing keys keep their values.

        A state without any of the keys, or with bad values, raises and changes nothing.
        """
        present, state = self.state_dict(), checked_state(state_dict)
        if present.keys() & state.keys():
            state = {**present, **state}
        if not isinstance(state.get("window"), list):
            raise refusal(ValueError, "The state's 'window' must be a list.", window=state.get("window"))
        super().set_state_dict(state)
        self.window = collections.deque(state["window"], maxlen=self.window_size)


@schedule("greedy", on_metric=GreedyLR)
def get_greedy_schedule(optimizer: OptimizerOrRate, **kwargs: Any) -> GreedyLR:
    r"""Build a `GreedyLR` with these arguments.

    Examples:
        >>> from paddle_ldopt.schedules import get_greedy_schedule
        >>> schedule = get_greedy_schedule(5e-5, factor=0.5, patience=0, min_lr=1e-6, max_lr=1e-3)
        >>> schedule.step(1.0)
        >>> schedule()
        0.0001
    """
    return GreedyLR(optimizer, **kwargs)
