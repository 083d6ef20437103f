"""The learning rate of each parameter: read from an optimizer without changing it, or planned from a decay.

Optimizers may be inside `fleet`'s wrapper. They are read through a stand-in, so that another thread may take steps.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from paddle import Tensor
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .. import _paddle
from .._checks import checked_number
from .._messages import refusal
from ..schedules.curves import peak_of
from .decay_ratios import LayerRatios
from .layer import Layer
from .optimizer_interface import layerwise_interface

if TYPE_CHECKING:
    from .map import LayerMap

RateOrSchedule = Union[float, LRScheduler, None]
Tensors = dict[str, tuple[Layer, str, Optional[Tensor]]]  # tensor name -> layer, structured name, parameter if known


@dataclasses.dataclass(frozen=True)
class Rate:
    """The rate of one parameter; None if unknown."""

    ratio: float  # ratio to the optimizer's rate
    now: Optional[float]
    peak: Optional[float]  # at the peak of the schedule
    has_weight_decay: Optional[bool]
    frozen: bool
    multiplier: float = 1.0  # product of the decay's `multipliers`, part of the ratio
    end: Optional[float] = None  # the ratio at the end of the training, if the decay moves


def applied_rates(optimizer: Optimizer, learning_rate: Optional[float] = None) -> dict[str, float]:
    """Return tensor name -> rate of the optimizer's next step; 0 for parameters that it does not update.

    The rate includes groups, `ParamAttr` and layer-wise ratios. If `Adafactor` sets its own rate, it is the rate of the
    last step. `learning_rate` replaces the optimizer's current rate.
    """
    params, optimizer = _paddle.parameters_of(optimizer), _paddle.stand_in(_paddle.unwrap(optimizer))
    now = next_rate(optimizer) if learning_rate is None else float(learning_rate)
    rates = used_rates(optimizer)
    if rates is None:
        parts = _paddle.lr_factors_and_own(optimizer, params)
        rates = {name: factor * now + fixed for name, (factor, fixed) in parts.items()}
    return {param.name: 0.0 if param.stop_gradient else rates.get(param.name, 0.0) for param in params}


def used_rates(optimizer: Optimizer) -> Optional[dict[str, float]]:
    """Return tensor name -> rate of the last update if the optimizer computes its own (`Adafactor`), None otherwise."""
    return layerwise_interface(optimizer).last_used_lr()


def next_rate(optimizer: Optimizer) -> float:
    """Return the rate of the optimizer's next step for a layer whose ratio is 1."""
    return float(_paddle.unwrap(optimizer).get_lr()) / layerwise_interface(optimizer).lr_divisor()


def check_readable(layers: "LayerMap", optimizer: Any, **others: Any) -> None:
    """Raise unless the rates of an optimizer of these layers can be read; `others` would be ignored beside it."""
    for argument, value in others.items():
        if value is not None:
            raise refusal(ValueError, f"`{argument}` is read from `optimizer`: leave it out.", **{argument: value})
    if not isinstance(_paddle.unwrap(optimizer), Optimizer):
        raise TypeError(f"`optimizer` must be a Paddle optimizer. Received: optimizer={type(optimizer).__name__}")
    if not _paddle.parameters_of(optimizer):
        advice = "in a static graph read the rates before `minimize`, from the layers and the decay."
        raise refusal(ValueError, f"The optimizer has no parameters to show: {advice}", parameters=[])
    for param in _paddle.parameters_of(optimizer):
        layers.layer_of(param.name)  # raises for another model's


def rates_of_optimizer(optimizer: Optimizer) -> dict[str, Rate]:
    """Return tensor name -> `Rate`, read from an optimizer."""
    params, optimizer = _paddle.parameters_of(optimizer), _paddle.stand_in(_paddle.unwrap(optimizer))
    interface, now, groups = layerwise_interface(optimizer), next_rate(optimizer), _paddle.groups_by_name(optimizer)
    scheduler = _paddle.lr_or_scheduler(optimizer)
    moving = interface.lr_divisor(1) != 1.0  # then the rate and its divisor both change
    peak = now if not isinstance(scheduler, LRScheduler) else None if moving else peak_of(scheduler)
    parts, ratios, rates = _paddle.lr_factors_and_own(optimizer, params), interface.ratio_of, {}
    for param in params:
        factor, fixed = parts[param.name]
        scheduled_rate = factor * now + fixed
        ratio = scheduled_rate / now if fixed and now else factor
        at_peak = None if peak is None and factor else factor * (peak or 0.0) + fixed
        rate, at_peak = interface.lr_now_and_peak(param, factor) or (scheduled_rate, at_peak)
        has_weight_decay = interface.has_nonzero_weight_decay(param)
        if has_weight_decay is None:
            has_weight_decay = _paddle.has_nonzero_weight_decay(optimizer, param, groups.get(param.name, {}))
        frozen = bool(param.stop_gradient) or (factor == 0 and fixed == 0)
        multiplier, end = 1.0, None
        if isinstance(ratios, LayerRatios):
            multiplier = ratios.multiplier_of(param)
            if ratios.decay.moves:  # the peak is unknown: rate and ratio both move
                layer_ratio = interface.layerwise_ratio(param)
                end, at_peak = ratio / layer_ratio * ratios.at(1.0)(param) if layer_ratio else 0.0, None
        rates[param.name] = Rate(ratio, rate, at_peak, has_weight_decay, frozen, multiplier, end)
    return rates


def planned_rates(
    tensors: Tensors,
    ratios: LayerRatios,
    learning_rate: RateOrSchedule,
    apply_decay_param_fun: Optional[Callable[[str], bool]],
) -> dict[str, Rate]:
    """Return tensor name -> planned `Rate` of a decay, with the arguments of `LayerMap.table`."""
    if apply_decay_param_fun is not None and not callable(apply_decay_param_fun):
        wrong = "`apply_decay_param_fun` must be callable."
        raise refusal(TypeError, wrong, apply_decay_param_fun=apply_decay_param_fun)
    now, peak = _planned_rate(learning_rate)
    moves, rates = ratios.decay.moves, {}
    for tensor, (_, name, param) in tensors.items():
        param_factor = (getattr(param, "optimize_attr", None) or {}).get("learning_rate", 1.0)  # of its ParamAttr
        ratio = ratios.of(name) * (param_factor if isinstance(param_factor, (int, float)) else 1.0)
        rates[tensor] = Rate(
            ratio=ratio,
            now=None if now is None else ratio * now,
            peak=None if peak is None or moves else ratio * peak,  # unknown if rate and ratio both move
            has_weight_decay=None if apply_decay_param_fun is None else bool(apply_decay_param_fun(tensor)),
            frozen=ratio == 0 or (param is not None and bool(param.stop_gradient)),
            multiplier=ratios.multipliers.get(name, 1.0),
            end=ratios.at(1.0).of(name) if moves else None,
        )
    return rates


def _planned_rate(learning_rate: RateOrSchedule) -> tuple[Optional[float], Optional[float]]:
    """Return the present rate and the peak of a number or a schedule, None if unknown; raise if invalid."""
    if not isinstance(learning_rate, LRScheduler):
        expected = "a number or an LRScheduler"
        rate = None if learning_rate is None else checked_number(learning_rate, "learning_rate", expected=expected)
        return rate, rate
    return learning_rate.last_lr, peak_of(learning_rate)
