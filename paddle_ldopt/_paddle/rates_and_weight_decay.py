"""Rates and weight decay in Paddle's optimizers."""

from typing import Any

import paddle
from paddle.optimizer import Optimizer

from .optimizers import stand_in, weight_decay_fun
from .private_names import ADAMW, EVERY, FUSED, OPTIMIZER, attribute, declare

# fmt: off
__all__ = [
    "create_global_lr", "global_lr", "has_nonzero_weight_decay", "has_single_lr", "lr_factors_and_own",
    "lr_or_scheduler", "param_lr", "ratio_in_kernel", "start_without_step",
    "weight_decay_coefficient",
]
# fmt: on

lr_or_scheduler = attribute(OPTIMIZER, "_learning_rate", EVERY)  # a float or the LRScheduler
param_lr = attribute(OPTIMIZER, "_create_param_lr", EVERY)  # ((param, grad)) -> the rate, a Tensor
global_lr = attribute(OPTIMIZER, "_global_learning_rate", EVERY)  # () -> Tensor
create_global_lr = attribute(OPTIMIZER, "_create_global_learning_rate", FUSED)
ratio_in_kernel = attribute(ADAMW, "_lr_ratio", "AdamWDL")  # None, or parameter -> ratio
declare("paddle.optimizer.lr.LRScheduler", "Schedules that follow a metric", "_var_name")

# Paddle's optimizers that ignore groups and ratios; no attribute of a class shows it. Muon is new after Paddle 3.3.
_ONE_RATE = {"LBFGS", "ModelAverage", "Muon", "Rprop"}

_DECAY = "The weight decay in layer tables"
_not_decayed = attribute("paddle.optimizer.Lamb", "_exclude_from_weight_decay_fn", _DECAY, optional=True)
_adamw_decay = attribute(ADAMW, "_weight_decay", _DECAY, optional=True)
_lamb_decay = attribute("paddle.optimizer.Lamb", "_lamb_weight_decay", _DECAY, optional=True)
_momentum_decay = attribute("paddle.optimizer.Momentum", "_regularization_coeff", _DECAY, optional=True)
weight_decay_coefficient = attribute("paddle.regularizer.L2Decay", "_coeff", _DECAY, optional=True)


def start_without_step(schedule: Any) -> None:
    """Set the private attributes that the constructor of `LRScheduler` sets, without its first step."""
    schedule._var_name = None


def lr_factors_and_own(optimizer: Optimizer, params: list[paddle.Tensor]) -> dict[str, tuple[float, float]]:
    """Return ``param.name`` -> (factor, own): a step would use the rate factor * (optimizer's rate) + own."""
    if has_single_lr(type(optimizer)):  # regardless of groups
        return {param.name: (1.0, 0.0) for param in params}
    other, rates = stand_in(optimizer, _lr_ratio=None), []  # AdamWDL has a ratio set during a step on a GPU
    for rate in (0.0, 1.0):  # at 0 only a parameter's own rate is left (a Tensor in `optimize_attr`, a group's "lr")
        tensor = paddle.to_tensor(rate, "float64", paddle.CPUPlace())  # reading it waits for no device
        vars(other)["_global_learning_rate"] = lambda *args, tensor=tensor: tensor
        with paddle.no_grad():
            # the method of the class: a function on the instance would ask the live object
            rates.append([float(type(other)._create_param_lr(other, (param, None))) for param in params])
    return {param.name: (one - zero, zero) for param, zero, one in zip(params, *rates)}


def has_single_lr(cls: type) -> bool:
    """Return whether an optimizer class has one rate for all parameters: its step never calls `_create_param_lr`."""
    return any(base.__name__ in _ONE_RATE for base in cls.__mro__)


def has_nonzero_weight_decay(optimizer: Optimizer, param: paddle.Tensor, group: dict[str, Any]) -> bool:
    """Return whether a Paddle optimizer applies weight decay to `param` in `group`, by any of its options."""
    chosen, excluded = weight_decay_fun(optimizer), _not_decayed(optimizer)
    if (chosen is not None and not chosen(param.name)) or (excluded is not None and excluded(param)):
        return False
    for decay in (_adamw_decay(optimizer), _lamb_decay(optimizer)):
        if isinstance(decay, (int, float)):
            return group.get("weight_decay", decay) != 0
    regularizer = param.regularizer or optimizer.regularization  # L1Decay or L2Decay, added to the gradient
    return bool(weight_decay_coefficient(regularizer) or _momentum_decay(optimizer))
