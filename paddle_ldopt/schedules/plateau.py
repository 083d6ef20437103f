"""A reduction of the rate when a metric stops improving."""

from typing import Any, Optional

from .._messages import refusal
from ._base import OptimizerOrRate, attach, peak_of
from .kinds import schedule
from .metric import Metric, MetricSchedule


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
    return attach(ReduceLROnPlateau(peak_of(optimizer), **kwargs), optimizer)
