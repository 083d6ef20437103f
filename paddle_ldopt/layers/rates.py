"""TODO."""

import dataclasses
import math
from typing import Optional

import paddle

from .._checks import checked_number, shown
from .._paddle import asks_for_rates, groups_by_name, parameters_of, stand_in, unwrap
from ..schedules.ahead import peak_learning_rate
from .table import _Named


@dataclasses.dataclass(frozen=True)
class Rate:
    """What one parameter gets: the ratio to the optimizer's rate, the rate now and at the schedule's peak if known."""

    ratio: float
    now: Optional[float]
    peak: Optional[float]
    decayed: Optional[bool]
    frozen: bool


def applied_ratios(optimizer):
    """Return tensor name -> the factor by which the optimizer's next step would scale its rate for the parameter.

    Groups, `ParamAttr` and layer-wise ratios are all in it: it is what `_create_param_lr` itself makes of a rate of 1.

    Args:
        optimizer (paddle.optimizer.Optimizer): any; may be wrapped by `fleet`.
    """
    return {name: factor for name, (factor, _) in _rate_parts(_view(optimizer), parameters_of(optimizer)).items()}


def applied_rates(optimizer, learning_rate=None):
    """Return tensor name -> the rate that the optimizer's next step would use for it; 0 if it would not touch it.

    Where `Adafactor` sets the rate itself, it is that of its last step.

    Args:
        optimizer (paddle.optimizer.Optimizer): any; may be wrapped by `fleet`.
        learning_rate (float, optional): the optimizer's rate to reckon with; the one of now if None.
    """
    params, optimizer = parameters_of(optimizer), _view(optimizer)
    now = next_rate(optimizer) if learning_rate is None else float(learning_rate)
    parts = _rate_parts(optimizer, params)
    frozen = {p.name for p in params if p.stop_gradient}
    used = used_rates(optimizer)
    if used is not None:  # no rate to multiply
        return {name: 0.0 if name in frozen else used.get(name, 0.0) for name in parts}
    return {name: 0.0 if name in frozen else factor * now + constant for name, (factor, constant) in parts.items()}


def used_rates(optimizer):
    """Return tensor name -> the rate of its last update if the optimizer sets each one itself, None if it does not.

    `Adafactor` with `relative_step` does, from the step and the parameter's size: the layer's ratio is in it.

    Args:
        optimizer (paddle.optimizer.Optimizer): any; may be wrapped by `fleet`.
    """
    optimizer = unwrap(optimizer)
    own = getattr(optimizer, "sets_own_rate", False) and hasattr(optimizer, "used_lr")
    return optimizer.used_lr() if own else None


def rate_divisor(optimizer, ahead=0):
    """Return what an optimizer divides the rate by that it reports, in its next step or one that is `ahead` of it."""
    return getattr(unwrap(optimizer), "rate_divisor", lambda ahead: 1.0)(ahead)  # AdamWeightDecay's `decay`


def next_rate(optimizer):
    """Return the rate that the optimizer's next step uses for a layer whose ratio is 1."""
    return float(unwrap(optimizer).get_lr()) / rate_divisor(optimizer)


def _view(optimizer):
    """Return a stand-in for an optimizer that can be asked while another thread takes steps."""
    return stand_in(unwrap(optimizer), _lr_ratio=None)  # AdamWDL has it set within a step on a GPU


def _rate_parts(optimizer, params):
    """Return tensor name -> (factor, constant) of the rate factor * optimizer's + constant that a step would use.

    Args:
        optimizer (Optimizer): a stand-in.
        params (list[Tensor]): its parameters.
    """
    if not asks_for_rates(optimizer.__class__):  # its own rate for all, whatever groups say
        return {param.name: (1.0, 0.0) for param in params}
    answers = []
    for rate in (0.0, 1.0):  # a rate of its own (a Tensor in `optimize_attr`, "lr" of a group) shows at 0
        tensor = paddle.full([], rate, "float64")
        vars(optimizer)["_global_learning_rate"] = lambda *args, tensor=tensor: tensor
        with paddle.no_grad():
            # of the class: a function set on the instance asks the live object
            answers.append([float(optimizer.__class__._create_param_lr(optimizer, (p, None))) for p in params])
    names = [p.name for p in params]
    return {name: (one - zero, zero) for name, zero, one in zip(names, *answers)}


def rates_of_optimizer(optimizer, num_steps=None):
    """Return tensor name -> `Rate`, read back from an optimizer.

    Args:
        optimizer (paddle.optimizer.Optimizer): any; may be wrapped by `fleet`.
        num_steps (int, optional): as in `peak_learning_rate`.
    """
    if not hasattr(unwrap(optimizer), "_create_param_lr"):
        raise TypeError(f"`optimizer` must be a Paddle optimizer. Received: optimizer={type(optimizer).__name__}")
    params, optimizer = parameters_of(optimizer), _view(optimizer)
    now = next_rate(optimizer)
    peak = peak_learning_rate(optimizer._learning_rate, num_steps, lambda ahead: rate_divisor(optimizer, ahead))
    parts, groups, rates = _rate_parts(optimizer, params), groups_by_name(optimizer), {}
    for param in params:
        factor, constant = parts[param.name]
        rate = factor * now + constant
        ratio = rate / now if constant and now else factor
        frozen = bool(param.stop_gradient) or (factor == 0 and constant == 0)
        ahead = None if peak is None and factor else factor * (peak or 0.0) + constant
        now_and_peak = getattr(optimizer, "shown_rate", lambda *args: None)(param, factor) or (rate, ahead)
        decayed = is_decayed(optimizer, param, groups.get(param.name, {}))
        rates[param.name] = Rate(ratio, *now_and_peak, decayed, frozen)  # type: ignore[call-arg]  # a pair
    return rates


def planned_rates(tensors, ratio_of, learning_rate, apply_decay_param_fun, num_steps=None):
    """Return tensor name -> `Rate` for a decay that no optimizer has yet."""
    now = peak = None
    if apply_decay_param_fun is not None and not callable(apply_decay_param_fun):
        raise TypeError(
            f"`apply_decay_param_fun` must be callable. Received: apply_decay_param_fun={shown(apply_decay_param_fun)}"
        )
    if not (learning_rate is None or isinstance(learning_rate, paddle.optimizer.lr.LRScheduler)):
        learning_rate = checked_number(learning_rate, "learning_rate", kind="a number or an LRScheduler")
    if learning_rate is not None:
        peak = peak_learning_rate(learning_rate, num_steps)
        if peak is not None and not (math.isfinite(peak) and peak >= 0):
            raise ValueError(
                f"`learning_rate` must be finite and not negative. Received: learning_rate={shown(learning_rate)}"
            )
        now = learning_rate.last_lr if hasattr(learning_rate, "last_lr") else peak
    rates = {}
    for tensor_name, (_, param) in tensors.items():
        ratio = ratio_of(_Named(tensor_name))
        decayed = None if apply_decay_param_fun is None else bool(apply_decay_param_fun(tensor_name))
        frozen = ratio == 0 or (param is not None and bool(param.stop_gradient))
        scaled = [None if rate is None else ratio * rate for rate in (now, peak)]
        rates[tensor_name] = Rate(ratio, scaled[0], scaled[1], decayed, frozen)
    return rates


def is_decayed(optimizer, param, group):
    """Say whether the optimizer decays the weights of `param`, in `group`, by any of Paddle's ways of saying so."""
    chosen = getattr(optimizer, "_apply_decay_param_fun", None)
    excluded = getattr(optimizer, "_exclude_from_weight_decay_fn", None)  # Lamb
    if (chosen is not None and not chosen(param.name)) or (excluded is not None and excluded(param)):
        return False
    if hasattr(optimizer, "is_decayed") and not optimizer.is_decayed(param):  # ours
        return False
    if "weight_decay" in getattr(optimizer, "_defaults", {}):
        return group.get("weight_decay", optimizer._defaults["weight_decay"]) != 0
    for name in ("_weight_decay", "_lamb_weight_decay"):  # decoupled: AdamW, Lamb
        if isinstance(getattr(optimizer, name, None), (int, float)):
            return group.get("weight_decay", getattr(optimizer, name)) != 0
    regularizer = param.regularizer or optimizer.regularization  # L1Decay or L2Decay, added to the gradient
    coefficients = [getattr(regularizer, "_coeff", 0.0), getattr(optimizer, "_regularization_coeff", 0.0)]  # Momentum's
    return any(c != 0 for c in coefficients)
