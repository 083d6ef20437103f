"""The learning rate of each parameter: read from an optimizer without changing it, or planned from a decay.

Optimizers may be inside `fleet`'s wrapper. They are read through a stand-in, so that another thread may take steps.
"""

import dataclasses
import math
from typing import Any, Callable, Optional

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._checks import checked_number
from .._messages import refusal
from .._paddle import decays_weights, groups_by_name, parameters_of, rate_parts, rate_source, stand_in, unwrap
from ..schedules.ahead import peak_learning_rate
from .ratios import LayerRatios, ratios_of


@dataclasses.dataclass(frozen=True)
class Rate:
    """The rate of one parameter; None if unknown."""

    ratio: float  # ratio to the optimizer's rate
    now: Optional[float]
    peak: Optional[float]  # rate at the maximum of the schedule
    decayed: Optional[bool]
    frozen: bool
    multiplier: float = 1.0  # product of the decay's `multipliers`, part of the ratio
    end: Optional[float] = None  # the ratio at the end of the training, if the decay moves


def applied_rates(optimizer: Any, learning_rate: Optional[float] = None) -> dict[str, float]:
    """Return tensor name -> rate of the optimizer's next step; 0 for parameters that it does not update.

    The rate includes groups, `ParamAttr` and layer-wise ratios. If `Adafactor` sets its own rate, it is the rate of the
    last step. `learning_rate` replaces the optimizer's current rate.
    """
    params, optimizer = parameters_of(optimizer), stand_in(unwrap(optimizer))
    now = next_rate(optimizer) if learning_rate is None else float(learning_rate)
    rates = used_rates(optimizer)
    if rates is None:
        rates = {name: factor * now + own for name, (factor, own) in rate_parts(optimizer, params).items()}
    return {param.name: 0.0 if param.stop_gradient else rates.get(param.name, 0.0) for param in params}


def used_rates(optimizer: Any) -> Optional[dict[str, float]]:
    """Return tensor name -> rate of the last update if the optimizer sets its own rates, None otherwise.

    `Adafactor` with `relative_step` computes them from step and parameter size, layer-wise ratios included.
    """
    optimizer = unwrap(optimizer)
    return optimizer.used_lr() if sets_own_rate(optimizer) and hasattr(optimizer, "used_lr") else None


def sets_own_rate(optimizer: Any) -> bool:
    """Return whether an optimizer computes its own rate, so that a scheduler has no effect."""
    return bool(getattr(unwrap(optimizer), "sets_own_rate", False))  # Paddle's optimizers lack the attribute


def rate_divisor(optimizer: Any, ahead: int = 0) -> float:
    """Return the divisor of an optimizer's rate in its next step, or `ahead` steps later."""
    return getattr(unwrap(optimizer), "rate_divisor", lambda ahead: 1.0)(ahead)  # AdamWeightDecay's `decay`


def next_rate(optimizer: Any) -> float:
    """Return the rate of the optimizer's next step for a layer whose ratio is 1."""
    return float(unwrap(optimizer).get_lr()) / rate_divisor(optimizer)


def rates_of_optimizer(optimizer: Any, num_steps: Optional[int] = None) -> dict[str, Rate]:
    """Return tensor name -> `Rate`, read from an optimizer; `num_steps` as in `peak_learning_rate`."""
    if not isinstance(unwrap(optimizer), Optimizer):
        raise TypeError(f"`optimizer` must be a Paddle optimizer. Received: optimizer={type(optimizer).__name__}")
    params, optimizer = parameters_of(optimizer), stand_in(unwrap(optimizer))
    if not params:
        advice = "in a static graph read the rates before `minimize`, from the layers and the decay."
        raise refusal(ValueError, f"The optimizer has no parameters to show: {advice}", parameters=params)
    now, groups, rates = next_rate(optimizer), groups_by_name(optimizer), {}
    peak = peak_learning_rate(rate_source(optimizer), num_steps, lambda ahead: rate_divisor(optimizer, ahead))
    parts, ratios = rate_parts(optimizer, params), ratios_of(optimizer)
    for param in params:
        factor, own = parts[param.name]
        rate = factor * now + own
        ratio = rate / now if own and now else factor
        frozen = bool(param.stop_gradient) or (factor == 0 and own == 0)
        ahead = None if peak is None and factor else factor * (peak or 0.0) + own
        rate, ahead = getattr(optimizer, "shown_rate", lambda *args: None)(param, factor) or (rate, ahead)
        if hasattr(optimizer, "has_weight_decay"):  # an optimizer of this package
            decayed = optimizer.step_options(param).get("weight_decay", 0.0) != 0
        else:
            decayed = decays_weights(optimizer, param, groups.get(param.name, {}))
        multiplier, end = 1.0, None
        if isinstance(ratios, LayerRatios):
            multiplier = ratios.multiplier_of(param)
        if isinstance(ratios, LayerRatios) and ratios.decay.moves:
            of_layer = optimizer.layerwise_ratio(param)
            end, ahead = ratio / of_layer * ratios.at(1.0)(param) if of_layer else 0.0, None
        rates[param.name] = Rate(ratio, rate, ahead, decayed, frozen, multiplier, end)
    return rates


def planned_rates(
    tensors: dict[str, tuple[Any, str, Any]],
    ratios: LayerRatios,
    learning_rate: Any,
    apply_decay_param_fun: Optional[Callable[[str], bool]],
    num_steps: Optional[int],
) -> dict[str, Rate]:
    """Return tensor name -> planned `Rate` of a decay, with the arguments of `LayerMap.table`.

    `tensors` maps each tensor name to (Layer, structured name, Parameter or None).
    """
    now = peak = None
    if apply_decay_param_fun is not None and not callable(apply_decay_param_fun):
        raise refusal(
            TypeError, "`apply_decay_param_fun` must be callable.", apply_decay_param_fun=apply_decay_param_fun
        )
    if isinstance(learning_rate, LRScheduler):
        now, peak = learning_rate.last_lr, peak_learning_rate(learning_rate, num_steps)
        if peak is not None and not (math.isfinite(peak) and peak >= 0):
            raise refusal(ValueError, "`learning_rate` must be finite and not negative.", learning_rate=learning_rate)
    elif learning_rate is not None:
        now = peak = checked_number(learning_rate, "learning_rate", kind="a number or an LRScheduler")
    rates = {}
    for tensor, (_, name, param) in tensors.items():
        own = (getattr(param, "optimize_attr", None) or {}).get("learning_rate", 1.0)  # factor of its ParamAttr
        ratio = ratios.of(name) * (own if isinstance(own, (int, float)) else 1.0)
        decayed = None if apply_decay_param_fun is None else bool(apply_decay_param_fun(tensor))
        frozen = ratio == 0 or (param is not None and bool(param.stop_gradient))
        scaled_now, scaled_peak = (None if rate is None else ratio * rate for rate in (now, peak))
        multiplier = ratios.multipliers.get(name, 1.0)
        end = ratios.at(1.0).of(name) if ratios.decay.moves else None
        scaled_peak = None if ratios.decay.moves else scaled_peak  # unknown: rate and ratio both move
        rates[tensor] = Rate(ratio, scaled_now, scaled_peak, decayed, frozen, multiplier, end)
    return rates
