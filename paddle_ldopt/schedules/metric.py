"""Schedules that follow a metric, which `step` takes."""

import math
import numbers
import warnings
from typing import Annotated, Any, Optional, Union

import paddle

from .._checks import Option, as_float, checked_int, checked_number, checked_state, plain_number, refusal
from .._compat import is_called_by
from .factory import (
    Bool,
    NonNegative,
    OptimizerOrRate,
    Schedule,
    Steps,
    attach,
    checked_peak,
    checks_arguments,
    schedule,
)

Factor = Annotated[float, Option(high=1.0, ends="()")]  # of a reduction
Mode = Annotated[str, Option(choices=("min", "max"))]
ThresholdMode = Annotated[str, Option(choices=("rel", "abs"))]
Metric = Union[float, paddle.Tensor]  # a Tensor has one element


class MetricSchedule(Schedule):
    """Base of the schedules whose `step` takes a metric.

    Examples:
        >>> from paddle_ldopt.schedules import MetricSchedule, get_scheduler
        >>> isinstance(get_scheduler("reduce_lr_on_plateau", 0.1), MetricSchedule)
        True
    """

    num_warmup_steps = 0  # with a warm-up, `step()` without a metric is a step of it

    def get_lr(self) -> float:
        return self.last_lr


class ReduceLROnPlateau(MetricSchedule):
    r"""Reduce the learning rate when a metric stops improving.

    .. math::
        \eta \leftarrow \max(f \eta, \eta_{min}) \text{ after more than patience steps without } m < b(1 - \theta)

    with m the metric, b the best so far, f `factor` and :math:`\theta` `threshold`. NaN does not count as an
    improvement. The best is also updated in the cool-down, as in PyTorch.

    Args:
        learning_rate: the first rate, or an optimizer with this rate to attach the schedule to.
        mode: "min" if a lower metric is better, or "max".
        factor: of a reduction.
        patience: steps without an improvement before a reduction.
        threshold: the smallest improvement.
        threshold_mode: "rel", a fraction of the best below 1, or "abs", in the metric's unit.
        cooldown: steps after a reduction without counting bad metrics.
        min_lr: the lowest rate, below the first.
        eps: changes of the rate smaller than this are skipped.
        verbose: print every change.
        num_warmup_steps: the rate first rises linearly from 0. Call ``step()`` after each step of the optimizer, too,
            and ``step(metric)`` after each evaluation. The warm-up has no reductions.

    Examples:
        >>> schedule = ReduceLROnPlateau(0.1, factor=0.5, patience=1)
        >>> for loss in (1.0, 0.9, 0.9, 0.9):
        ...     schedule.step(loss)
        >>> schedule()
        0.05
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
        num_warmup_steps: Steps = 0,
    ) -> None:
        # instead of Paddle's constructor, which steps once, without a metric
        self._var_name = None
        self.base_lr = self.last_lr = checked_peak(learning_rate, "learning_rate")
        self.last_epoch = 0
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.factor, self.patience, self.cooldown = factor, patience, cooldown
        self.min_lr, self.eps, self.verbose = min_lr, eps, verbose
        if threshold_mode == "rel" and threshold >= 1.0:
            raise refusal(ValueError, '`threshold` must be below 1 with threshold_mode="rel".', threshold=threshold)
        if min_lr >= self.base_lr:
            raise refusal(ValueError, "`min_lr` must be below the peak.", min_lr=min_lr, learning_rate=self.base_lr)
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.warmup_step = 0
        self.num_warmup_steps = num_warmup_steps
        if num_warmup_steps:
            self.last_lr = 0.0
        attach(self, learning_rate)

    def step(self, metrics: Optional[Metric] = None, epoch: Optional[int] = None) -> None:
        """Take a step with its metric (number `epoch` if given), or without a metric, a step of the warm-up."""
        if metrics is None and self.num_warmup_steps:
            if self.warmup_step < self.num_warmup_steps:
                self.warmup_step += 1
                self.last_lr = self.base_lr * (self.warmup_step / self.num_warmup_steps)
            return
        if is_called_by("get_lr"):
            inside = "A schedule that follows a metric cannot be inside another schedule: use its `num_warmup_steps`."
            raise refusal(TypeError, inside, metrics=metrics)
        if self.warmup_step == 0 < self.num_warmup_steps:
            idle = "The rate is 0 until the warm-up begins: call `step()` after each step of the optimizer, too."
            warnings.warn(refusal(UserWarning, idle, num_warmup_steps=self.num_warmup_steps), stacklevel=2)
        number = plain_number(metrics)
        if not isinstance(number, numbers.Real):
            raise refusal(TypeError, "`metrics` must be one number.", metrics=metrics)
        metric = as_float(number)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch

        sign = -1.0 if self.mode == "min" else 1.0
        margin = sign * self.threshold
        bar = self.best * (1.0 + margin) if self.threshold_mode == "rel" else self.best + margin
        if sign * metric > sign * bar:
            self.best = metric
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0 or self.warmup_step < self.num_warmup_steps:
            self.cooldown_counter = max(self.cooldown_counter - 1, 0)
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            lr = max(self.last_lr * self.factor, self.min_lr)
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
            if abs(lr - self.last_lr) > self.eps:
                self.last_lr = lr
                if self.verbose:
                    print(f"Epoch {self.last_epoch}: {type(self).__name__} set learning rate to {lr}.")

    def state_keys(self) -> None:
        self.keys = ["last_epoch", "last_lr", "best", "num_bad_epochs", "cooldown_counter"]

    def state_dict(self) -> dict[str, Any]:
        warmup = {"warmup_step": self.warmup_step, "num_warmup_steps": self.num_warmup_steps}
        return {**super().state_dict(), "base_lr": self.base_lr, **warmup}

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; if the first rate differs, keep the fraction of it. A warm-up that has ended has ended."""
        own, length = dict(checked_state(state_dict)), self.num_warmup_steps
        first = checked_number(own.pop("base_lr", self.base_lr), "base_lr", ends="(]")
        step, end = (checked_int(own.pop(key, length), key) for key in ("warmup_step", "num_warmup_steps"))
        super().set_state_dict(own)
        self.warmup_step = min(step, length) if step < end else length
        if step < end:
            self.last_lr = self.base_lr * (self.warmup_step / length if length else 1.0)
        elif first != self.base_lr:
            self.last_lr = max(self.last_lr * (self.base_lr / first), self.min_lr)


@schedule("reduce_lr_on_plateau", on_metric=ReduceLROnPlateau)
def get_reduce_on_plateau_schedule(optimizer: OptimizerOrRate, **kwargs: Any) -> ReduceLROnPlateau:
    """Build a `ReduceLROnPlateau` with these arguments.

    Examples:
        >>> get_reduce_on_plateau_schedule(0.1, factor=0.5, patience=0)()
        0.1
    """
    return ReduceLROnPlateau(optimizer, **kwargs)
