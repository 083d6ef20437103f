"""A scheduler that reports the learning rates of `Adafactor` (a port of `transformers.AdafactorSchedule`)."""

from typing import Any, Optional

from paddle.optimizer.lr import LRScheduler

from .._checks import checked_number
from .._messages import wrong_type
from .._paddle import param_groups, unwrap
from .adafactor import Adafactor


class AdafactorSchedule(LRScheduler):
    """A scheduler that reports the rates `Adafactor` used and sets none, for logs and for a Trainer.

    Pass it to a Trainer with an optimizer that sets its own rate: ``optimizers=(opt, AdafactorSchedule(opt))``.

    Args:
        optimizer (Adafactor): the optimizer, which may be wrapped; any other raises TypeError.
        initial_lr: at least 0, the rate reported for a group before its first update.

    Differs from transformers: a group whose first parameter has no gradient is reported too, and nothing is written
    into the optimizer (in transformers an `lr` compounds with the parameter's scale from step to step).

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import Adafactor, AdafactorSchedule
        >>> linear = paddle.nn.Linear(4, 2)
        >>> opt = Adafactor([{"params": [linear.weight]}, {"params": [linear.bias]}], scale_parameter=False)
        >>> schedule = AdafactorSchedule(opt, initial_lr=1e-3)
        >>> linear(paddle.ones([1, 4])).mean().backward()
        >>> print(schedule.get_lr())
        [0.001, 0.001]
        >>> opt.step()
        >>> schedule.step()
        >>> print([round(lr, 6) for lr in schedule.get_lr()])
        [0.01, 0.01]

    Source: ``transformers.optimization.AdafactorSchedule``, 4.37.
    """

    last_epoch: int

    def __init__(self, optimizer: Any, initial_lr: float = 0.0) -> None:
        self.optimizer = unwrap(optimizer)
        if not isinstance(self.optimizer, Adafactor):
            raise wrong_type(self.optimizer, "optimizer", "an Adafactor")
        super().__init__(checked_number(initial_lr, "initial_lr"))

    def get_lr(self) -> list[float]:
        """Return the rate of each group's first updated parameter, in the order of the groups.

        Rates differ within a group if scales or layers do; `Adafactor.used_lr` returns the rate of every parameter.
        """
        used = self.optimizer.used_lr()
        groups = param_groups(self.optimizer) or []
        groups = [g["params"] for g in groups] if groups and isinstance(groups[0], dict) else [groups]
        return [next((used[p.name] for p in group if p.name in used), self.base_lr) for group in groups]

    def step(self, epoch: Optional[int] = None) -> None:
        """Record the rates of the optimizer's last step; `last_lr` and ``schedule()`` are the first group's rate."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self.last_lrs = self.get_lr()
        self.last_lr = self.last_lrs[0]

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group at the scheduler's last `step`."""
        return self.last_lrs

    def state_keys(self) -> None:
        """Set the keys of `state_dict`."""
        self.keys = ["last_epoch", "last_lr", "last_lrs"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as `set_state_dict` does."""
        self.set_state_dict(state_dict)
