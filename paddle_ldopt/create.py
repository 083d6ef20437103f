"""Build an optimizer by name: `create`, and `build_optimizer` for the rest of the package."""

import collections
import functools
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any, Optional, Union

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ._checks import checked_number, nearest, refusal, shown, unknown, wrong_type
from ._compat import asked_before_copy, checked_model, is_sharded, name_dict_of, structured_names
from .layers import LayerDecay, LayerMap, as_decay
from .layers.find import Rules
from .layers.measure import Example
from .optimizers import LayerRates, OptimizerInfo, apply_layerwise_decay
from .optimizers.hook import layerwise_lr_decay
from .optimizers.options import REGISTRY, bool_option, warn_of_absolute_rates
from .rates import decayed_parameter_names

OFF = LayerDecay(1.0)
_OURS = REGISTRY["adamwdl"]
_ADAMW = {name: option for name, option in _OURS.options.items() if name != "fused"}
_ADAMW["amsgrad"] = bool_option("divide by the largest second moment so far", default=False)
_PADDLES = {"adamw": OptimizerInfo(paddle.optimizer.AdamW, "Paddle's", trainer=_OURS.trainer, options=_ADAMW)}
OPTIMIZERS: Mapping[str, OptimizerInfo] = collections.ChainMap(_PADDLES, REGISTRY)  # ours and Paddle's own AdamW


def info_of(name: Any, argument: str) -> OptimizerInfo:
    if not isinstance(name, str) or name not in OPTIMIZERS:
        advice = "For another optimizer of Paddle, build it and call `apply_layerwise_decay`."
        raise ValueError(unknown("optimizer", name, None, OPTIMIZERS, f"{argument}={shown(name)}", advice=advice))
    return OPTIMIZERS[name]


def build_optimizer(
    chosen: Union[str, OptimizerInfo],
    model: Optional[paddle.nn.Layer],
    *,
    layerwise_decay: Union[float, LayerDecay] = OFF,
    layers: Optional[LayerMap] = None,
    rules: Optional[Rules] = None,
    example: Optional[Example] = None,
    groups: Optional[Iterable[Any]] = None,
    max_grad_norm: float = 0.0,
    **arguments: Any,
) -> Optimizer:
    """Build an optimizer for a model; `create` documents most arguments.

    `chosen` is a name of `OPTIMIZERS` or its row. `model` is None if `arguments` replace all that is read from it.
    """
    info = info_of(chosen, "name") if isinstance(chosen, str) else chosen
    has_hook = any(arguments.get(name) is not None for name in ("name_dict", "lr_ratio"))
    hook = arguments.get("set_param_lr_fun")
    has_hook = has_hook or (hook is not None and hook is not layerwise_lr_decay)
    own_parameters = "parameters" in arguments or "params" in arguments
    if model is not None or not own_parameters:
        checked_model(model)
    if own_parameters and groups is not None:
        raise refusal(ValueError, "`groups` takes the place of `parameters`: leave one of them out.", groups=groups)
    if not own_parameters:
        sharded = is_sharded()  # whose version 2 refuses frozen parameters
        trained = [param for param in checked_model(model).parameters() if not (sharded and param.stop_gradient)]
        arguments["parameters"] = trained if groups is None else _listed(groups)
    grouped = groups is not None and any(isinstance(item, dict) for item in arguments["parameters"])
    ours = issubclass(info.cls, LayerRates)
    if has_hook and (rules is not None or example is not None):
        idle = "`rules` and `example` have no effect beside a hook or `name_dict`: give one of the two."
        raise refusal(ValueError, idle, rules=rules, example=type(example).__name__)
    if has_hook and ours and layers is None and model is not None and arguments.get("name_dict") is None:
        arguments["name_dict"] = name_dict_of(model)  # which hooks read
    if model is not None and not grouped and not arguments.get(info.own_exclusion):
        decayed, included = decayed_parameter_names(model), arguments.get("include_in_weight_decay")
        if included and info.own_exclusion:
            patterns = info.options["include_in_weight_decay"].checked(included, "include_in_weight_decay")
            names = structured_names(arguments.get("name_dict"), layers) or name_dict_of(model)
            decayed |= {name for name, text in names.items() if any(one.search(f"{text}:0") for one in patterns)}
        # ours know the names of copies
        asked = decayed.__contains__ if ours else functools.partial(asked_before_copy, decayed.__contains__)
        arguments.setdefault("apply_decay_param_fun", asked)
    clip = arguments.get("grad_clip")
    if checked_number(max_grad_norm, "max_grad_norm") > 0:
        if clip is not None:
            both = "`max_grad_norm` and `grad_clip` both clip gradients: give one of them."
            raise refusal(ValueError, both, max_grad_norm=max_grad_norm, grad_clip=type(clip).__name__)
        arguments["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(max_grad_norm)
    weight_decay = arguments.pop("weight_decay", None)
    if weight_decay is not None and ("weight_decay" in info.options or weight_decay):
        arguments["weight_decay"] = weight_decay
    if any(arguments.get(name) is not None for name in ("learning_rate", "lr")):
        arguments = {**info.external_rate, **arguments}
    for name, option in info.options.items():  # each under the class's name
        if option.setting in arguments:
            value = arguments.pop(option.setting)
            if name in arguments:
                twice = f"`{name}` is another name for `{option.setting}`: give one of them."
                raise refusal(ValueError, twice, **{option.setting: value, name: arguments[name]})
            option.checked(value, option.setting)  # an error has the name that was given
            arguments[name] = value
    decay = as_decay(layerwise_decay)
    if layers is not None and (rules is not None or example is not None):
        both = "`rules` and `example` find layers: give them to `LayerMap.from_model`, or leave `layers` out."
        raise refusal(ValueError, both, rules=rules, example=type(example).__name__)
    routed = grouped and any("use_muon" in group for group in arguments["parameters"])
    routed = routed or arguments.get("use_muon") is not None
    if info.needs_layers and not routed and layers is None and model is not None:
        layers = LayerMap.from_model(model, example, rules)
    elif (decay != OFF or example is not None or rules) and layers is None and not has_hook and model is not None:
        layers = LayerMap.for_decay(decay, model, lambda: LayerMap.from_model(model, example, rules))
    if not ours:
        if decay == OFF:  # else `apply_layerwise_decay` warns
            warn_of_absolute_rates(arguments["parameters"] if groups is not None else [])
        opt = info.cls(**arguments)
        return opt if decay == OFF else apply_layerwise_decay(opt, layers, decay)
    if layers is not None:
        arguments["layers"] = layers
    elif decay == OFF and not has_hook and model is not None:
        arguments["name_dict"] = name_dict_of(model)
    return info.cls(**arguments) if decay == OFF else info.cls(layerwise_decay=layerwise_decay, **arguments)


def _listed(groups: Any) -> list[Any]:
    items = list(groups) if hasattr(groups, "__iter__") and not hasattr(groups, "__array__") else []
    if not items or not all(isinstance(item, dict) or hasattr(item, "stop_gradient") for item in items):
        raise wrong_type(groups, "groups", "a list of parameters, or of parameter groups as dicts")
    return items


def create(
    name: str,
    model: Union[paddle.nn.Layer, Mapping[str, paddle.nn.Layer], Sequence[paddle.nn.Layer]],
    layerwise_decay: Union[float, LayerDecay] = 1.0,
    rules: Optional[Rules] = None,
    *,
    example: Optional[Example] = None,
    layers: Optional[LayerMap] = None,
    groups: Optional[Iterable[Any]] = None,
    learning_rate: Union[float, LRScheduler, None] = None,
    weight_decay: Optional[float] = None,
    max_grad_norm: float = 0.0,
    **arguments: Any,
) -> Optimizer:
    """Build an optimizer for all parameters of a model, with one learning rate per layer.

    Biases, norms and other vectors have no weight decay. Frozen parameters can be unfrozen later, except under
    sharding.

    Args:
        name: one of `list_optimizers`, or "adamw" for Paddle's own.
        model: the network; a dict or list of networks is trained as one, with a tower for each.
        layerwise_decay: ratio of the rates of neighbouring layers, in (0, 1], or a `LayerDecay`.
        rules: the `rules` of `LayerMap.from_model`.
        example: a batch, to find the layers in a forward pass with one row. Without it, they are found by names.
        layers: a layer map, instead of finding the layers.
        groups: parameters, or groups as dicts, instead of all parameters. A group's "learning_rate" multiplies the
            optimizer's rate, as in Paddle. With dicts, biases and norms have weight decay.
        learning_rate: by default the class's, 1e-3 for "adamwdl". A given one sets Adafactor's `relative_step` and
            `scale_parameter` to False.
        weight_decay: by default the class's, 0.01 for "adamwdl".
        max_grad_norm: for clipping by the global norm; 0 is off.
        **arguments: of the class. Options have the same names for all optimizers (`beta1`, `epsilon`...); the class's
            own names (`beta_1`, `eps`) work too. `apply_decay_param_fun` overrides the exclusion from weight decay.

    Examples:
        >>> import paddle, paddle_ldopt as ldopt
        >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
        >>> example = paddle.randn([1, 5, 8])
        >>> opt = ldopt.create("adamwdl", encoder, layerwise_decay=0.5, learning_rate=1e-3, example=example)
        >>> opt.layerwise_ratio(encoder.layers[0].linear1.weight)
        0.125
    """
    known = info_of(name, "name").all_arguments | {"rules", "example", "layers", "groups", "max_grad_norm"}
    for argument in sorted(arguments.keys() - known):
        message = f"{OPTIMIZERS[name].cls.__name__} has no argument `{argument}`{nearest(argument, known)}."
        raise refusal(TypeError, message, **{argument: arguments[argument]})
    if learning_rate is not None:
        arguments["learning_rate"] = learning_rate
    if isinstance(model, (list, tuple)):
        letters = [f"{first}{second}" for first in ("", *ascii_lowercase) for second in ascii_lowercase]
        model = {f"network_{name}": network for name, network in zip(letters, model)}  # a number would be a block's
    if isinstance(model, dict):
        networks = model
        if len({str(key) for key in networks}) < len(networks):
            raise refusal(ValueError, "Two networks of `model` have one name.", model=[*networks])
        model = paddle.nn.LayerDict({str(key): checked_model(network) for key, network in networks.items()})
    return build_optimizer(
        name,
        model,
        layerwise_decay=layerwise_decay,
        rules=rules,
        example=example,
        layers=layers,
        groups=groups,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
        **arguments,
    )
