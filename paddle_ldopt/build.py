"""`build_optimizer`, which `create`, `LdoptConfig`, the Trainer and `create_optimizer` call to build an optimizer."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ._checks import checked_number
from ._messages import nearest, refusal, shown, unknown
from ._paddle import checked_model, name_dict_of, unwrap
from .layers import LayerDecay, LayerMap, as_decay, decayed_parameter_names
from .layers.granularity import Granularity
from .layers.rules import Rules
from .optimizers import LayerwiseMixin, OptimizerInfo, apply_layerwise_decay
from .optimizers.groups import parameters_to_train
from .optimizers.registry import REGISTRY
from .optimizers.shared_options import bool_option

OFF = LayerDecay(1.0)
_OURS = REGISTRY["adamwdl"]
_ADAMW = {name: option for name, option in _OURS.options.items() if name != "fused"}
_ADAMW["amsgrad"] = bool_option("divide by the largest second moment so far", default=False)
_PADDLES = {"adamw": OptimizerInfo(paddle.optimizer.AdamW, "Paddle's", trainer=_OURS.trainer, options=_ADAMW)}
OPTIMIZERS: Mapping[str, OptimizerInfo] = collections.ChainMap(_PADDLES, REGISTRY)  # ours and Paddle's own AdamW


def build_optimizer(
    chosen: Union[str, OptimizerInfo],
    model: Optional[paddle.nn.Layer],
    *,
    layerwise_decay: Union[float, LayerDecay] = OFF,
    layers: Optional[LayerMap] = None,
    rules: Optional[Rules] = None,
    granularity: Granularity = "block",
    groups: Optional[Iterable[Any]] = None,
    max_grad_norm: float = 0.0,
    **arguments: Any,
) -> Optimizer:
    """Return an optimizer that trains a model, each layer at its rate. `create` documents most arguments.

    `chosen` is a name of `OPTIMIZERS`, or the row of a class. A class without layer-wise arguments gets its rates from
    `apply_layerwise_decay`. `model` is None if `arguments` replace all values read from a model. By default, `layers`
    is read from the model if there is a decay and neither `name_dict` nor `set_param_lr_fun` is given. `groups` are
    parameters or groups (dicts) to train instead of all parameters; dicts get no exclusion from weight decay.
    """
    info = OPTIMIZERS[chosen] if isinstance(chosen, str) else chosen
    arguments = _arguments_of(info, model, groups, max_grad_norm, arguments)
    decay = as_decay(layerwise_decay)
    needs_layers = decay != OFF and layers is None and not _has_hook(arguments)
    for argument, value, default in (("rules", rules, None), ("granularity", granularity, "block")):
        if not needs_layers and not (isinstance(value, type(default)) and value == default):
            message = f"`{argument}` has no effect without a layer-wise decay, or together with `layers`."
            raise refusal(ValueError, message, **{argument: value})
    if needs_layers and model is not None:
        layers = LayerMap.from_model(model, rules=rules)
    if not issubclass(info.cls, LayerwiseMixin):
        if decay == OFF and layers is not None:
            raise refusal(ValueError, "`layers` has no effect without a layer-wise decay.", layers=layers)
        opt = info.cls(**arguments)
        return opt if decay == OFF else apply_layerwise_decay(opt, layers, decay)
    if layers is not None:
        arguments["layers"] = layers
    elif decay == OFF and not _has_hook(arguments) and model is not None:
        arguments["name_dict"] = name_dict_of(model)
    return info.cls(**arguments) if decay == OFF else info.cls(layerwise_decay=layerwise_decay, **arguments)


def set_training_steps(optimizer: Any, steps: Optional[int]) -> None:
    """Give an optimizer with layer-wise rates, or a wrapper of it, the number of steps, which a moving decay needs."""
    if isinstance(inner := unwrap(optimizer), LayerwiseMixin):
        inner.training_steps = steps


def _arguments_of(
    info: OptimizerInfo,
    model: Optional[paddle.nn.Layer],
    groups: Optional[Iterable[Any]],
    max_grad_norm: float,
    given: dict[str, Any],
) -> dict[str, Any]:
    """Return the arguments of the class except for the layer-wise ones."""
    arguments = dict(given)
    own_parameters = any(name in given for name in ("parameters", "params"))
    if model is not None or not own_parameters:
        checked_model(model)
    if not own_parameters:
        arguments["parameters"] = parameters_to_train(model) if groups is None else _listed(groups)
    grouped = groups is not None and any(isinstance(item, dict) for item in arguments["parameters"])
    if model is not None and not grouped and not any(given.get(name) for name in info.own_exclusion):
        arguments.setdefault("apply_decay_param_fun", decayed_parameter_names(model).__contains__)
    if checked_number(max_grad_norm, "max_grad_norm") > 0:
        arguments["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(max_grad_norm)
    weight_decay = arguments.pop("weight_decay", None)
    if weight_decay is not None and ("weight_decay" in info.options or weight_decay):
        arguments["weight_decay"] = weight_decay
    rate_given = any(given.get(name) is not None for name in ("learning_rate", "lr"))
    return _named_as_in_class(info, {**info.external_rate, **arguments} if rate_given else arguments)


def _listed(groups: Any) -> list[Any]:
    try:
        items = [] if isinstance(groups, paddle.Tensor) else list(groups)
    except TypeError:  # not iterable
        items = []
    if not items or not all(isinstance(item, dict) or hasattr(item, "stop_gradient") for item in items):
        message = "`groups` must be a list of parameters, or of parameter groups as dicts."
        raise refusal(TypeError, message, groups=groups)
    return items


def _named_as_in_class(info: OptimizerInfo, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with each option under the class's name; raise ValueError for an option given twice."""
    settings = {option.setting: name for name, option in info.options.items() if option.setting in arguments}
    for setting, name in settings.items():
        if name in arguments:
            twice = {setting: arguments[setting], name: arguments[name]}
            raise refusal(ValueError, f"`{name}` is another name for `{setting}`: give one of them.", **twice)
        info.options[name].checked(arguments[setting], setting)  # an error has the name that was given
    return {settings.get(name, name): value for name, value in arguments.items()}


def _has_hook(arguments: dict[str, Any]) -> bool:
    """Return whether the arguments themselves set the ratios."""
    return "name_dict" in arguments or "set_param_lr_fun" in arguments


def create(
    name: str,
    model: paddle.nn.Layer,
    layerwise_decay: Union[float, LayerDecay] = 1.0,
    rules: Optional[Rules] = None,
    granularity: Granularity = "block",
    *,
    layers: Optional[LayerMap] = None,
    groups: Optional[Iterable[Any]] = None,
    learning_rate: Union[float, LRScheduler, None] = None,
    weight_decay: Optional[float] = None,
    max_grad_norm: float = 0.0,
    **arguments: Any,
) -> Optimizer:
    """Build an optimizer for all parameters of a model, with one learning rate per layer.

    Biases and the parameters of norms are excluded from weight decay. Frozen parameters are not updated. They can be
    unfrozen at any time. Under sharding, the optimizer takes only the parameters that are trainable now.

    Args:
        name: one of `list_optimizers`, or "adamw" for Paddle's own.
        model: the network.
        layerwise_decay: ratio of the rates of neighbouring layers, in (0, 1], or a `LayerDecay`.
        rules: the `rules` of `LayerMap.from_model`, which is called if there is a decay.
        granularity: the `granularity` of `LayerMap.from_model`.
        layers: a layer map to use instead of the model's.
        groups: parameters, or groups of parameters as dicts, to train instead of all parameters. With dicts,
            biases and norms are not excluded from weight decay.
        learning_rate: at least 0, or a schedule. None is the class's default, 1e-3 for "adamwdl".
        weight_decay: at least 0. None is the class's default, 0.01 for "adamwdl".
        max_grad_norm: the global norm for gradient clipping; 0 is off.
        **arguments: further arguments of the class. Options have one name for all optimizers: `beta1`, `beta2`,
            `epsilon`...; the class's own names (`lr`, `beta_1`, `eps`) work too. `apply_decay_param_fun` overrides the
            exclusion from weight decay.

    Raises:
        TypeError: an argument that the class does not have.
        ValueError: an unknown name; `rules` or `granularity` without a decay.

    Examples:
        >>> import paddle
        >>> import paddle_ldopt as ldopt
        >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
        >>> opt = ldopt.create("adamwdl", encoder, layerwise_decay=0.5, learning_rate=1e-3)
        >>> opt.layerwise_ratio(encoder.layers[0].linear1.weight)
        0.125
    """
    if not isinstance(name, str) or name not in OPTIMIZERS:
        others = "For another optimizer of Paddle, build it and call `apply_layerwise_decay`."
        raise ValueError(unknown("optimizer", name, None, OPTIMIZERS, f"name={shown(name)}", advice=others))
    known = OPTIMIZERS[name].all_arguments | {"rules", "granularity", "layers", "groups", "max_grad_norm"}
    for argument in arguments.keys() - known:
        message = f"{OPTIMIZERS[name].cls.__name__} has no argument `{argument}`{nearest(argument, known)}."
        raise refusal(TypeError, message, **{argument: arguments[argument]})
    if learning_rate is not None:
        arguments["learning_rate"] = learning_rate
    return build_optimizer(
        name,
        model,
        layerwise_decay=layerwise_decay,
        rules=rules,
        granularity=granularity,
        layers=layers,
        groups=groups,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
        **arguments,
    )
