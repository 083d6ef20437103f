"""A constant rate, with or without a warm-up."""

import dataclasses

from ._base import OptimizerOrRate
from .curve_schedule import Curve, CurveSchedule, scheduled
from .kinds import schedule
from .option_types import LastStep, Steps


@dataclasses.dataclass(frozen=True)
class Constant(Curve):
    """1 after the warm-up."""

    def _after(self, k: int) -> float:
        return 1.0


@schedule("constant")
def get_constant_schedule(optimizer: OptimizerOrRate, last_epoch: LastStep = -1) -> CurveSchedule:
    r"""Keep the learning rate constant.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt.schedules import get_constant_schedule
        >>> opt = paddle.optimizer.AdamW(5e-5, parameters=paddle.nn.Linear(4, 2).parameters())
        >>> schedule = get_constant_schedule(opt)
        >>> schedule.step()
        >>> opt.get_lr()
        5e-05
    """
    return scheduled(optimizer, Constant(), last_epoch)


@schedule("constant_with_warmup")
def get_constant_schedule_with_warmup(
    optimizer: OptimizerOrRate, num_warmup_steps: Steps, last_epoch: LastStep = -1
) -> CurveSchedule:
    r"""Raise the learning rate linearly from 0, then keep it constant.

    .. math::
        \eta_t = \eta \min(t / w, 1)

    Examples:
        >>> from paddle_ldopt.schedules import get_constant_schedule_with_warmup
        >>> schedule = get_constant_schedule_with_warmup(0.1, num_warmup_steps=2)
        >>> [(schedule(), schedule.step())[0] for _ in range(4)]
        [0.0, 0.05, 0.1, 0.1]
    """
    return scheduled(optimizer, Constant(num_warmup_steps), last_epoch)
