"""The one way from settings to an optimizer: `create`, `LdoptConfig`, the Trainer and `create_optimizer` call it."""

import collections
from collections.abc import Mapping
from typing import Any, Optional, Union

import paddle

from ._checks import Option, checked_bool
from ._messages import refusal
from ._paddle import checked_model, name_dict_of
from .layers.decay import LayerDecay
from .layers.granularity import Granularity
from .layers.map import LayerMap
from .layers.weight_decay import decayed_parameter_names
from .optimizers import LayerwiseMixin, apply_layerwise_decay
from .optimizers.groups import parameters_to_train
from .optimizers.registry import REGISTRY, OptimizerInfo, optimizer_class

__all__ = ["OFF", "OPTIMIZERS", "build_optimizer", "create"]

OFF = LayerDecay(1.0)
_OURS = REGISTRY["adamwdl"]
_ADAMW = {name: option for name, option in _OURS.options.items() if name != "fused"}
_ADAMW["amsgrad"] = Option(False, "divide by the greatest second moment so far", check=checked_bool)
_PADDLES = {"adamw": OptimizerInfo(paddle.optimizer.AdamW, "Paddle's", trainer=_OURS.trainer, options=_ADAMW)}
OPTIMIZERS: Mapping[str, OptimizerInfo] = collections.ChainMap(_PADDLES, REGISTRY)  # ours and Paddle's own AdamW


def build_optimizer(
    chosen: Union[str, OptimizerInfo],
    model: Any,
    *,
    decay: Union[float, LayerDecay] = OFF,
    layers: Optional[LayerMap] = None,
    rules: Any = None,
    granularity: Granularity = "block",
    groups: Any = None,
    max_grad_norm: float = 0.0,
    **arguments: Any,
) -> Any:
    """Return an optimizer that trains a model, each layer at its rate.

    Args:
        chosen: a name of `OPTIMIZERS`, or the row of a class; `apply_layerwise_decay` serves classes without layer-wise
            arguments.
        model: the network; None only if `arguments` say all that is taken from it.
        decay: how ratios fall from the head to the embeddings.
        layers: those of the model by default if there is a decay and neither `name_dict` nor `set_param_lr_fun`.
        rules: the `rules` of `LayerMap.from_model`.
        granularity: the `granularity` of `LayerMap.from_model`.
        groups: parameters, or dicts of them, instead of all parameters. Dicts say themselves what is decayed.
        max_grad_norm: the norm that all gradients together are clipped to; 0 is off.
        **arguments: for the class; `weight_decay` whatever the class calls it.
    """
    info = OPTIMIZERS[chosen] if isinstance(chosen, str) else chosen
    arguments = _arguments_of(info, model, groups, max_grad_norm, arguments)
    decays = (decay if isinstance(decay, LayerDecay) else LayerDecay(decay)) != OFF
    layers = _layers_of(model, layers, rules, granularity, decays, arguments)  # before an optimizer could be half done
    if not issubclass(info.cls, LayerwiseMixin):
        opt = info.cls(**arguments)
        return apply_layerwise_decay(opt, layers, decay) if decays else opt
    if layers is not None:
        arguments["layers"] = layers
    elif not decays and not _has_hook(arguments) and model is not None:
        arguments["name_dict"] = name_dict_of(model)
    return info.cls(layerwise_decay=decay, **arguments) if decays else info.cls(**arguments)


def _arguments_of(
    info: OptimizerInfo, model: Any, groups: Any, max_grad_norm: float, given: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of the class, all but those of the layers: parameters, weight decay, clipping and rate."""
    arguments = dict(given)
    own_parameters = any(name in given for name in ("parameters", "params"))
    if model is not None or not own_parameters:
        checked_model(model)
    if not own_parameters:
        arguments["parameters"] = parameters_to_train(model) if groups is None else list(groups)
    grouped = groups is not None and any(isinstance(item, dict) for item in arguments["parameters"])
    if model is not None and not grouped and not any(given.get(name) for name in info.own_exclusion):
        arguments.setdefault("apply_decay_param_fun", decayed_parameter_names(model).__contains__)
    if max_grad_norm > 0:
        arguments["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(max_grad_norm)
    weight_decay = arguments.pop("weight_decay", None)
    if weight_decay or (weight_decay is not None and "weight_decay" in info.options):
        arguments[info.weight_decay] = weight_decay
    return {**info.external_rate, **arguments} if "learning_rate" in given or "lr" in given else arguments


def _layers_of(
    model: Any,
    layers: Optional[LayerMap],
    rules: Any,
    granularity: Granularity,
    decays: bool,
    arguments: dict[str, Any],
) -> Optional[LayerMap]:
    """Return `layers`, or the model's where a decay needs them; raise if `rules` or `granularity` has no effect."""
    needed = decays and layers is None and not _has_hook(arguments)
    for argument, value, default in (("rules", rules, None), ("granularity", granularity, "block")):
        if value != default and not needed:
            idle = f"`{argument}` has no effect without a layer-wise decay, or beside `layers`."
            raise refusal(ValueError, idle, **{argument: value})
    return LayerMap.from_model(model, rules, granularity) if needed and model is not None else layers


def _has_hook(arguments: dict[str, Any]) -> bool:
    """Return whether the arguments say themselves what ratio a parameter has."""
    return "name_dict" in arguments or "set_param_lr_fun" in arguments


def create(
    name: str,
    model: Any,
    layerwise_decay: Union[float, LayerDecay] = 1.0,
    rules: Any = None,
    granularity: Granularity = "block",
    **arguments: Any,
) -> Any:
    """Build an optimizer of ours for a model: all its parameters, each layer at its rate.

    Frozen parameters are not updated; they can be unfrozen at any time. Sharding takes trainable ones alone: there the
    optimizer has no parameter that is frozen now.

    Args:
        name: one of `list_optimizers`.
        model: the network.
        layerwise_decay: ratio of the rates of neighbouring layers, in (0, 1], or a `LayerDecay`.
        rules: as in `LayerMap.from_model`, which is called if there is a decay.
        granularity: the same.
        **arguments: the rest goes to the class. Biases and the parameters of norms are not decayed unless
            `apply_decay_param_fun` says otherwise.

    Raises:
        TypeError, ValueError: an unknown name; `rules` or `granularity` without a decay; an argument that the class
            does not have.

    Examples:
        >>> import paddle
        >>> import paddle_ldopt as ldopt
        >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
        >>> opt = ldopt.create("adamwdl", encoder, layerwise_decay=0.5, learning_rate=1e-3)
        >>> opt.layerwise_ratio(encoder.layers[0].linear1.weight)
        0.125
    """
    optimizer_class(name)  # raises for a name that is not ours
    return build_optimizer(name, model, decay=layerwise_decay, rules=rules, granularity=granularity, **arguments)
