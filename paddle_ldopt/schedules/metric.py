"""Schedules that follow a metric: `step` takes the metric, and the state is more than the step."""

import collections
import functools
import inspect
import math
from typing import Any, Callable, Optional

from paddle.optimizer.lr import LRScheduler

from .._checks import as_float, checked_state
from .._messages import refusal
from .._paddle import start_without_step
from ._base import Schedule
from .options import Factor, Flag, Mode, NonNegative, Positive, Steps, StepsFrom1, ThresholdMode, checks_arguments

__all__ = ["GreedyLR", "MetricSchedule", "ReduceLROnPlateau"]


class MetricSchedule(Schedule):
    """Base of the schedules whose `step` takes a metric.

    Examples:
        >>> from paddle_ldopt.schedules import MetricSchedule, get_scheduler
        >>> isinstance(get_scheduler("reduce_lr_on_plateau", 0.1), MetricSchedule)
        True
        >>> isinstance(get_scheduler("constant", 0.1), MetricSchedule)
        False
    """

    @checks_arguments
    def __init__(
        self,
        learning_rate: Positive,
        mode: Mode = "min",
        factor: Factor = 0.1,
        patience: Steps = 10,
        threshold: NonNegative = 1e-4,
        threshold_mode: ThresholdMode = "rel",
        cooldown: Steps = 0,
        min_lr: NonNegative = 0.0,
        eps: NonNegative = 1e-8,
        verbose: Flag = False,
    ) -> None:
        # instead of Paddle's constructor, which steps once, without a metric
        start_without_step(self)
        self.base_lr = self.last_lr = learning_rate
        self.last_epoch = 0
        self.verbose = verbose
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lr = min_lr
        self.eps = eps
        self._check_limits()
        self._restart()

    def _check_limits(self) -> None:
        """Raise if the learning rate is outside the limits of the schedule."""

    def _restart(self) -> None:
        """Forget all metrics."""
        self.best = math.inf if self.mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0

    def _count(self, metrics: Any, epoch: Optional[int]) -> float:
        """Count a step; return its metric as a float."""
        metric = metrics
        if type(metric) is not float:  # a float takes the fast path
            try:
                if getattr(metrics, "size", 1) != 1 or isinstance(metrics, (str, bytes)):
                    raise TypeError
                metric = as_float(metrics.item() if hasattr(metrics, "item") else metrics)
            except (TypeError, ValueError):
                raise refusal(TypeError, "`metrics` must be one number.", metrics=metrics) from None
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        return metric

    def _judge(self, metric: float) -> bool:
        """Return whether a metric is better than the best so far."""
        sign = -1.0 if self.mode == "min" else 1.0
        margin = sign * self.threshold
        bar = self.best * (1.0 + margin) if self.threshold_mode == "rel" else self.best + margin
        better = sign * metric > sign * bar
        if better:
            self.best = metric
        self.num_bad_epochs = 0 if better else self.num_bad_epochs + 1
        return better

    def _reduce(self) -> None:
        """Reduce the rate and begin a cool-down."""
        self._set(max(self.last_lr * self.factor, self.min_lr))
        self.cooldown_counter = self.cooldown
        self.num_bad_epochs = 0

    def _set(self, lr: float) -> None:
        """Set the rate if it differs from the present one by more than `eps`."""
        if abs(lr - self.last_lr) > self.eps:
            self.last_lr = lr
            if self.verbose:
                print(f"Epoch {self.last_epoch}: {type(self).__name__} set learning rate to {lr}.")

    def get_lr(self) -> float:
        """Return the present rate."""
        return self.last_lr

    def state_keys(self) -> None:
        """Set `keys`, the entries of `state_dict`."""
        self.keys = ["last_epoch", "last_lr", "best", "num_bad_epochs", "cooldown_counter"]


def follows_metric(schedule: Any) -> bool:
    """Return whether the `step` of a schedule, ours or another library's, needs a metric."""
    kind: Any = type(schedule)
    return isinstance(schedule, MetricSchedule) or (isinstance(schedule, LRScheduler) and _needs_argument(kind.step))


@functools.cache
def _needs_argument(method: Callable[..., Any]) -> bool:
    """Return whether a method has a required argument besides `self`."""
    _, *taken = inspect.signature(method).parameters.values()
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in taken)


class ReduceLROnPlateau(MetricSchedule):
    r"""Reduce the learning rate when a metric stops improving.

    .. math::
        \eta \leftarrow \max(f \eta, \eta_{min}) \text{ after more than patience steps without } m < b(1 - \theta)

    with m the metric and b the best so far.

    Args:
        learning_rate: the first rate, above 0.
        mode: "min" if a lower metric is better, or "max".
        factor: f, in (0, 1).
        patience: steps without an improvement before a reduction, at least 0.
        threshold: :math:`\theta`, the smallest improvement, at least 0.
        threshold_mode: "rel", a fraction of the best, or "abs", in the metric's unit.
        cooldown: steps after a reduction in which bad metrics do not count, at least 0.
        min_lr: the lowest rate, at least 0 and below the first.
        eps: smaller changes of the rate are skipped, at least 0.
        verbose: print every change.

    Differs from ``paddle.optimizer.lr.ReduceOnPlateau``: the best is also updated in the cool-down, as in PyTorch. NaN
    does not count as an improvement.

    Examples:
        >>> from paddle_ldopt.schedules import ReduceLROnPlateau
        >>> schedule = ReduceLROnPlateau(0.1, factor=0.5, patience=1)
        >>> for loss in (1.0, 0.9, 0.9, 0.9):
        ...     schedule.step(loss)
        >>> schedule()
        0.05

    Source: ``torch.optim.lr_scheduler.ReduceLROnPlateau``, which transformers returns.
    """

    def _check_limits(self) -> None:
        if self.min_lr >= self.base_lr:
            advice = "`min_lr` must be below the learning rate, or the rate could not be reduced."
            raise refusal(ValueError, advice, min_lr=self.min_lr, learning_rate=self.base_lr)

    def step(self, metrics: Any, epoch: Optional[int] = None) -> None:
        """Take a step, number `epoch` if given, with its metric: a number or a Tensor of one element."""
        self._judge(self._count(metrics, epoch))
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()


class GreedyLR(MetricSchedule):
    r"""Raise the learning rate while a metric improves, reduce it while it does not.

    .. math::
        \eta \leftarrow \max(f \eta, \eta_{min}) \text{ after more than patience bad steps in a row}, \qquad
        \eta \leftarrow \min(\eta / f, \eta_{max}) \text{ after as many good ones}

    Args:
        learning_rate: the first rate, from `min_lr` to `max_lr`.
        patience: good or bad steps in a row before a change, at least 0.
        cooldown: steps after a reduction in which metrics do not count, at least 0.
        warmup: steps after an increase in which metrics do not count, at least 0.
        min_lr: the lowest rate, at least 0. The default is above usual rates of fine-tuning.
        max_lr: the highest rate, above `min_lr`.
        smooth: compare the mean of the last `window_size` metrics, at least 1, instead of the last metric.
        reset_start: reductions at the lowest rate before a restart from the first rate, at least 1.
        mode, factor, threshold, threshold_mode, eps, verbose: as in `ReduceLROnPlateau`.

    Differs from transformers: a first rate outside `min_lr` to `max_lr` is an error. Each step sums the mean anew, so
    rounding errors do not add up and a NaN leaves with its window. All groups share one rate.

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
        learning_rate: Positive,
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
        verbose: Flag = False,
        smooth: Flag = False,
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
            advice = "The learning rate must be from `min_lr` to `max_lr`, which must differ. Set them as well."
            raise refusal(ValueError, advice, learning_rate=self.base_lr, min_lr=self.min_lr, max_lr=self.max_lr)

    def _restart(self) -> None:
        super()._restart()
        self.num_good_epochs = self.warmup_counter = 0
        self.resets_in = self.reset_start
        self.window: collections.deque[float] = collections.deque(maxlen=self.window_size)

    def step(self, metrics: Any, epoch: Optional[int] = None) -> None:
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
        own, state = self.state_dict(), checked_state(state_dict)
        if own.keys() & state.keys():
            state = {**own, **state}
        if not isinstance(state.get("window"), list):
            raise refusal(ValueError, "The state's 'window' must be a list.", window=state.get("window"))
        super().set_state_dict(state)
        self.window = collections.deque(state["window"], maxlen=self.window_size)

    set_dict = set_state_dict
