"""Schedules that follow a metric, which `step` takes: the base class and `ReduceLROnPlateau`."""

import functools
import inspect
import math
from typing import Any, Callable, Optional, Union

import paddle
from paddle.optimizer.lr import LRScheduler

from .._checks import as_float
from .._messages import refusal
from .._paddle import start_without_step
from ._base import OptimizerOrRate, Schedule, attach, peak_of
from .kinds import schedule
from .option_types import Bool, Factor, Mode, NonNegative, Steps, ThresholdMode, checks_arguments

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
        learning_rate: OptimizerOrRate,
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
        self.base_lr = self.last_lr = peak_of(learning_rate, "learning_rate")
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
        attach(self, learning_rate)

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


class ReduceLROnPlateau(MetricSchedule):
    r"""Reduce the learning rate when a metric stops improving.

    .. math::
        \eta \leftarrow \max(f \eta, \eta_{min}) \text{ after more than patience steps without } m < b(1 - \theta)

    with m the metric and b the best so far.

    Args:
        learning_rate: the first rate, above 0; or an optimizer with this rate, to which the schedule is attached.
        mode: "min" if a lower metric is better, or "max".
        factor: f, in (0, 1).
        patience: steps without an improvement before a reduction, at least 0.
        threshold: :math:`\theta`, the smallest improvement, at least 0.
        threshold_mode: "rel", a fraction of the best, or "abs", in the metric's unit.
        cooldown: steps after a reduction in which bad metrics do not count, at least 0.
        min_lr: the lowest rate, at least 0 and below the first.
        eps: at least 0; changes of the rate smaller than this are skipped.
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

    def step(self, metrics: Metric, epoch: Optional[int] = None) -> None:
        """Take a step, number `epoch` if given, with its metric: a number or a Tensor of one element."""
        self._judge(self._count(metrics, epoch))
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()


@schedule("reduce_lr_on_plateau", on_metric=ReduceLROnPlateau, member="REDUCE_ON_PLATEAU")
def get_reduce_on_plateau_schedule(optimizer: OptimizerOrRate, **kwargs: Any) -> ReduceLROnPlateau:
    r"""Build a `ReduceLROnPlateau` with these arguments.

    Examples:
        >>> from paddle_ldopt.schedules import get_reduce_on_plateau_schedule
        >>> schedule = get_reduce_on_plateau_schedule(0.1, factor=0.5, patience=0)
        >>> for loss in (1.0, 1.0):
        ...     schedule.step(loss)
        >>> schedule()
        0.05
    """
    return ReduceLROnPlateau(optimizer, **kwargs)


def follows_metric(schedule: object) -> bool:
    """Return whether the `step` of a schedule, ours or another library's, needs a metric."""
    kind: Any = type(schedule)
    return isinstance(schedule, MetricSchedule) or (isinstance(schedule, LRScheduler) and _needs_argument(kind.step))


@functools.cache
def _needs_argument(method: Callable[..., Any]) -> bool:
    """Return whether a method has a required argument besides `self`."""
    _, *parameters = inspect.signature(method).parameters.values()
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
