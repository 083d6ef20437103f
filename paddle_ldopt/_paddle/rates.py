"""Rates and weight decay in Paddle's optimizers."""

import functools
import inspect
import types
from typing import Any

import paddle

from .declared import ADAMW, EVERY, FUSED, OPTIMIZER, attribute, declare
from .optimizers import stand_in

# fmt: off
__all__ = [
    "asks_for_rates", "create_rate", "decayed_names", "decays_weights", "global_rate", "rate_factor", "rate_parts",
    "rate_source", "ratio_in_kernel", "set_rate_source", "start_without_step", "weight_decay_coefficient",
]
# fmt: on

rate_source = attribute(OPTIMIZER, "_learning_rate", EVERY)  # a float or the LRScheduler
rate_factor = attribute(OPTIMIZER, "_create_param_lr", EVERY)  # ((param, grad)) -> the rate, a Tensor
global_rate = attribute(OPTIMIZER, "_global_learning_rate", EVERY)  # () -> Tensor
create_rate = attribute(OPTIMIZER, "_create_global_learning_rate", FUSED)
ratio_in_kernel = attribute(ADAMW, "_lr_ratio", "AdamWDL")  # None, or parameter -> ratio
declare(OPTIMIZER, "Reading a schedule ahead", "_learning_rate_map")
declare(OPTIMIZER, "Reading the rate of each parameter", "_append_optimize_multi_tensor_op")
declare("paddle.optimizer.lr.LRScheduler", "Schedules that follow a metric", "_var_name")

_DECAY = "The weight decay in layer tables"
decayed_names = attribute(ADAMW, "_apply_decay_param_fun", _DECAY, optional=True)
_not_decayed = attribute("paddle.optimizer.Lamb", "_exclude_from_weight_decay_fn", _DECAY, optional=True)
_adamw_decay = attribute(ADAMW, "_weight_decay", _DECAY, optional=True)
_lamb_decay = attribute("paddle.optimizer.Lamb", "_lamb_weight_decay", _DECAY, optional=True)
_momentum_decay = attribute("paddle.optimizer.Momentum", "_regularization_coeff", _DECAY, optional=True)
weight_decay_coefficient = attribute("paddle.regularizer.L2Decay", "_coeff", _DECAY, optional=True)


def set_rate_source(optimizer: Any, source: Any) -> None:
    """Replace the schedule of an optimizer and drop the variable of the old one, without calling its class's code."""
    vars(optimizer).update(_learning_rate=source, _learning_rate_map={})


def start_without_step(schedule: Any) -> None:
    """Set the private attributes that the constructor of `LRScheduler` sets, without its first step."""
    schedule._var_name = None


def rate_parts(optimizer: Any, params: list[Any]) -> dict[str, tuple[float, float]]:
    """Return ``param.name`` -> (factor, own): a step would use the rate factor * (optimizer's rate) + own."""
    if not asks_for_rates(optimizer.__class__):  # one rate for all parameters, regardless of groups
        return {param.name: (1.0, 0.0) for param in params}
    other, rates = stand_in(optimizer, _lr_ratio=None), []  # AdamWDL has a ratio set during a step on a GPU
    for rate in (0.0, 1.0):  # at 0 only a parameter's own rate is left (a Tensor in `optimize_attr`, a group's "lr")
        tensor = paddle.to_tensor(rate, "float64", paddle.CPUPlace())  # reading it waits for no device
        vars(other)["_global_learning_rate"] = lambda *args, tensor=tensor: tensor
        with paddle.no_grad():
            # the method of the class: a function on the instance would ask the live object
            rates.append([float(type(other)._create_param_lr(other, (param, None))) for param in params])
    return {param.name: (one - zero, zero) for param, zero, one in zip(params, *rates)}


@functools.lru_cache(maxsize=128)
def asks_for_rates(cls: Any) -> bool:
    """Return whether the step of an optimizer class calls `_create_param_lr` for the rate of each parameter.

    Paddle's Muon and others silently ignore it, and no attribute says so. A trial step would change the optimizer, and
    not every class has its source at hand. So this searches the names in the code that `step` can reach.
    """
    pending, seen = _definition("step", cls.__mro__), set()
    while pending:
        name, function, bases = pending.pop()
        names = _names_in(function.__code__)
        if names & {"_create_param_lr", "rate_factor"}:  # `rate_factor` is our name for `_create_param_lr`
            return True
        seen.add(function)
        called = []
        for other in names - {"_append_optimize_multi_tensor_op"}:  # Adam's and Momentum's other path also asks
            called += _definition(other, bases if other == name else cls.__mro__)  # itself: by `super()`
            helper = function.__globals__.get(other)
            if isinstance(helper, types.FunctionType) and helper.__module__ == function.__module__:
                called.append((other, helper, ()))
        pending += [item for item in called if item[1] not in seen]
    return False


def _definition(name: str, bases: Any) -> list[Any]:
    """Return [(name, function, later base classes)] of a method's first definition, [] without one."""
    for i, base in enumerate(bases):
        if name in vars(base):
            held = vars(base)[name]
            function = inspect.unwrap(getattr(held, "__func__", held)) if callable(held) else None
            return [(name, function, bases[i + 1 :])] if isinstance(function, types.FunctionType) else []
    return []


def _names_in(code: types.CodeType) -> set[str]:
    """Return the names in code, including inner functions and comprehensions."""
    inner = [_names_in(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


def decays_weights(optimizer: Any, param: Any, group: dict[str, Any]) -> bool:
    """Return whether a Paddle optimizer applies weight decay to `param` in `group`, by any of its options."""
    chosen, excluded = decayed_names(optimizer), _not_decayed(optimizer)
    if (chosen is not None and not chosen(param.name)) or (excluded is not None and excluded(param)):
        return False
    for decay in (_adamw_decay(optimizer), _lamb_decay(optimizer)):
        if isinstance(decay, (int, float)):
            return group.get("weight_decay", decay) != 0
    regularizer = param.regularizer or optimizer.regularization  # L1Decay or L2Decay, added to the gradient
    return bool(weight_decay_coefficient(regularizer) or _momentum_decay(optimizer))
