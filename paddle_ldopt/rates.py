"""The learning rate and weight decay of each parameter: read from an optimizer, or planned.

Optimizers are read through a stand-in: another thread may take steps.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

import paddle
from paddle import Tensor
from paddle.nn import Layer as Sublayer
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from . import _compat
from ._checks import checked_callable, checked_number, refusal, wrong_type
from .schedules.factory import peak_of

RateOrSchedule = Union[float, LRScheduler, None]
# Paddle's optimizers that ignore groups and ratios; no attribute shows it. Muon is newer than Paddle 3.3.
_ONE_RATE = {"LBFGS", "ModelAverage", "Muon", "Rprop"}


def has_single_lr(cls: type) -> bool:
    """Return whether its step never calls `_create_param_lr`."""
    ours = hasattr(cls, "layerwise_ratio")  # our Muon has the rates of layers
    return not ours and any(base.__name__ in _ONE_RATE for base in cls.__mro__)


class LayerwiseInterface:
    """What we read from an optimizer; the defaults fit Paddle's."""

    layers: Any = None  # a `LayerMap`
    decay: Any = None  # a `LayerDecay`
    hook: Optional[Callable[[Tensor], Any]] = None  # the bound `set_param_lr_fun`
    scales_lr = False  # the rate also depends on the parameter's values
    sets_own_lr = False  # a scheduler then has no effect
    reports_lr = False  # the state has the rates of the last step; `used_lr` returns them

    def lr_divisor(self, ahead: int = 0) -> float:
        """Return the divisor of the rate `ahead` steps after the next one."""
        return 1.0

    def lr_now_and_peak(self, param: Tensor, factor: float) -> Optional[tuple[Optional[float], Optional[float]]]:
        """Return (rate of the next step, rate at the peak), each None if unknown; None: `factor` times the rate."""
        return None

    def has_nonzero_weight_decay(self, param: Tensor) -> Optional[bool]:
        """Whether the next step decays a parameter; None: by Paddle's options."""
        return None


def layerwise_interface(optimizer: Optimizer) -> Any:
    """The optimizer inside wrappers; for Paddle's, `LayerwiseInterface`."""
    inner = _compat.unwrap(optimizer)
    return inner if isinstance(inner, LayerwiseInterface) else LayerwiseInterface()


def _factors_and_own(optimizer: Optimizer, params: list[paddle.Tensor]) -> dict[str, tuple[float, float]]:
    """Return ``param.name`` -> (factor, own): a step would use the rate factor * (optimizer's rate) + own."""
    if has_single_lr(type(optimizer)):  # regardless of groups
        return {param.name: (1.0, 0.0) for param in params}
    other, rates = _compat.stand_in(optimizer), []
    for rate in (0.0, 1.0):  # at 0, only own rates are left: a Tensor in `optimize_attr`, a group's "lr"
        tensor = paddle.to_tensor(rate, "float64", paddle.CPUPlace())  # reading it waits for no device
        vars(other)["_global_learning_rate"] = lambda *args, tensor=tensor: tensor
        with paddle.no_grad():
            # the method of the class: a function on the instance would ask the live object
            rates.append([float(type(other)._create_param_lr(other, (param, None))) for param in params])
    return {param.name: (one - zero, zero) for param, zero, one in zip(params, *rates)}


def _has_nonzero_weight_decay(optimizer: Optimizer, param: paddle.Tensor, group: dict[str, Any]) -> bool:
    regularizer = optimizer.regularization if param.regularizer is None else param.regularizer  # L1Decay or L2Decay
    penalty = getattr(regularizer, "_coeff", None)  # added to the gradient
    if regularizer is None:
        penalty = group.get("regularization_coeff", getattr(optimizer, "_regularization_coeff", None))
    ours = layerwise_interface(optimizer).has_nonzero_weight_decay(param)
    if ours is not None:
        return bool(ours or penalty)
    chosen = getattr(optimizer, "_apply_decay_param_fun", None)
    excluded = getattr(optimizer, "_exclude_from_weight_decay_fn", None)
    decay = 0.0
    if (chosen is None or chosen(param.name)) and (excluded is None or not excluded(param)):
        for key in ("weight_decay", "lamb_weight_decay"):  # of AdamW and Lamb
            own = getattr(optimizer, f"_{key}", None)
            decay = group.get(key, own) if isinstance(own, (int, float)) else decay
    return bool(decay or penalty)


@dataclasses.dataclass(frozen=True)
class Rate:
    """The rate of one parameter; None if unknown."""

    ratio: float  # ratio to the optimizer's rate
    now: Optional[float]
    peak: Optional[float]  # the rate at the schedule's peak
    has_weight_decay: Optional[bool]
    frozen: bool
    multiplier: float = 1.0  # of the decay's `multipliers`, part of the ratio


def applied_rates(optimizer: Optimizer, learning_rate: Optional[float] = None) -> dict[str, float]:
    """Return ``param.name`` -> rate of the optimizer's next step; 0 for parameters that it does not update.

    If `Adafactor` sets or scales its rate, it is that of the last step.
    """
    params, optimizer = _compat.parameters_of(optimizer), _compat.stand_in(_compat.unwrap(optimizer))
    now = next_rate(optimizer) if learning_rate is None else float(learning_rate)
    if layerwise_interface(optimizer).reports_lr:
        rates = optimizer.used_lr()
    else:
        rates = {name: factor * now + fixed for name, (factor, fixed) in _factors_and_own(optimizer, params).items()}
    return {param.name: 0.0 if param.stop_gradient else rates.get(param.name, 0.0) for param in params}


def next_rate(optimizer: Optimizer) -> float:
    """Return the rate of the optimizer's next step for a layer whose ratio is 1."""
    return float(_compat.unwrap(optimizer).get_lr()) / float(layerwise_interface(optimizer).lr_divisor())


def rates_of_optimizer(optimizer: Optimizer) -> dict[str, Rate]:
    if not isinstance(_compat.unwrap(optimizer), Optimizer):
        raise wrong_type(optimizer, "optimizer", "a Paddle optimizer")
    params, optimizer = _compat.parameters_of(optimizer), _compat.stand_in(_compat.unwrap(optimizer))
    interface, now, groups = layerwise_interface(optimizer), next_rate(optimizer), _compat.groups_by_name(optimizer)
    if not params:
        advice = "in a static graph read the rates before `minimize`, from the layers and the decay."
        raise refusal(ValueError, f"The optimizer has no parameters to show: {advice}", parameters=[])
    source, divisor = optimizer._learning_rate, interface.lr_divisor
    peak: Optional[float] = now
    if isinstance(source, LRScheduler):
        peak = peak_of(source) if divisor(1) == divisor(0) else None  # the rate falls by itself, too
    parts, layers, rates = _factors_and_own(optimizer, params), interface.layers, {}
    factors = {} if layers is None else interface.decay.factors(layers.names)
    for param in params:
        factor, fixed = parts[param.name]
        scheduled_rate = factor * now + fixed
        ratio = scheduled_rate / now if fixed and now else factor
        at_peak = None if peak is None and factor else factor * (peak or 0.0) + fixed
        own = groups.get(param.name, {}).get("lr")  # of a group
        if own is not None and not (now and fixed) and layers is not None:  # a schedule may begin at 0
            ratio = optimizer.layerwise_ratio(param)
        has_schedule = isinstance(own, LRScheduler) or callable(own)
        at_peak = None if has_schedule else at_peak
        rate, at_peak = interface.lr_now_and_peak(param, factor) or (scheduled_rate, at_peak)
        has_weight_decay = _has_nonzero_weight_decay(optimizer, param, groups.get(param.name, {}))
        frozen = bool(param.stop_gradient) or (factor == 0 and fixed == 0 and not has_schedule)
        multiplier = 1.0 if layers is None else factors.get(layers.name_of(param.name), 1.0)
        rates[param.name] = Rate(ratio, rate, at_peak, has_weight_decay, frozen, multiplier)
    return rates


def planned_rates(
    layers: Any,
    params: Mapping[str, Optional[Tensor]],
    decay: Any,
    learning_rate: RateOrSchedule,
    apply_decay_param_fun: Optional[Callable[[str], bool]],
) -> dict[str, Rate]:
    """Return structured name -> rate; `params` has a parameter, or None where only the name is known."""
    checked_callable(apply_decay_param_fun, "apply_decay_param_fun")
    now, peak = None, None
    if isinstance(learning_rate, LRScheduler):
        now, peak = learning_rate.last_lr, peak_of(learning_rate)
    elif learning_rate is not None:
        now = peak = checked_number(learning_rate, "learning_rate", expected="a number or an LRScheduler")
    ratios, factors, rates = layers.ratios(decay), decay.factors(layers.names), {}
    for name, param in params.items():
        tensor = name if param is None else param.name
        param_factor = (getattr(param, "optimize_attr", None) or {}).get("learning_rate", 1.0)  # of its ParamAttr
        ratio = ratios[name] * (param_factor if isinstance(param_factor, (int, float)) else 1.0)
        rates[name] = Rate(
            ratio=ratio,
            now=None if now is None else ratio * now,
            peak=None if peak is None else ratio * peak,
            has_weight_decay=None if apply_decay_param_fun is None else bool(apply_decay_param_fun(tensor)),
            frozen=ratio == 0 or (param is not None and bool(param.stop_gradient)),
            multiplier=factors.get(name, 1.0),
        )
    return rates


def decayed_parameter_names(model: Sublayer) -> set[str]:
    """Return the `param.name` of the parameters to decay: all except biases and parameters of norms.

    Excluded are parameters with at most one axis, of sublayers of a norm's class or a subclass (under any name), and
    with "bias" in their structured name.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import decayed_parameter_names
        >>> model = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.LayerNorm(4))
        >>> decayed_parameter_names(model) == {model[0].weight.name}
        True
    """
    left_out = set()
    for path, sublayer in _compat.checked_model(model).named_sublayers(include_self=True):
        norm = _compat.is_norm(type(sublayer))
        for key, param in sublayer._parameters.items():
            if param is not None and (norm or param.ndim <= 1 or "bias" in f"{path}.{key}"):
                left_out.add(param.name)
    return {param.name for param in model.parameters()} - left_out
