"""The base of the schedules that follow a metric: `step` takes the metric, and the state is more than the step."""

import functools
import inspect
import math
from typing import Any, Callable, Optional, Union

import paddle
from paddle.optimizer.lr import LRScheduler

from .._checks import as_float
from .._messages import refusal
from .._paddle import start_without_step
from ._base import Schedule
from .option_types import Bool, Factor, Mode, NonNegative, Positive, Steps, ThresholdMode, checks_arguments

Metric = Union[float, paddle.Tensor]  # a Tensor has one element


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
        verbose: Bool = False,
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

    def _count(self, metrics: Metric, epoch: Optional[int]) -> float:
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


def follows_metric(schedule: object) -> bool:
    """Return whether the `step` of a schedule, ours or another library's, needs a metric."""
    kind: Any = type(schedule)
    return isinstance(schedule, MetricSchedule) or (isinstance(schedule, LRScheduler) and _needs_argument(kind.step))


@functools.cache
def _needs_argument(method: Callable[..., Any]) -> bool:
    """Return whether a method has a required argument besides `self`."""
    _, *parameters = inspect.signature(method).parameters.values()
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
