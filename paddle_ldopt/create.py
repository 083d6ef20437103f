"""`create`, and `build_optimizer` for the rest of the package."""

import collections
import functools
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any, Callable, Optional, Union

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ._checks import checked_number, nearest, refusal, shown, unknown, wrong_type
from ._compat import asked_before_copy, checked_model, is_sharded, name_dict_of, structured_names
from .layers import LayerDecay, LayerMap, as_decay
from .layers.find import Rules
from .layers.measure import Example
from .optimizers import LayerRates, apply_layerwise_decay
from .optimizers.layer_rates import layerwise_lr_decay, warn_of_absolute_rates
from .optimizers.options import REGISTRY, OptimizerInfo, bool_option, checked_group
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

    `chosen` is a name of `OPTIMIZERS` or its row. `model` is None if `arguments` replace it.
    """
    info = info_of(chosen, "name") if isinstance(chosen, str) else chosen
    decay, ours = as_decay(layerwise_decay), issubclass(info.cls, LayerRates)
    hooks = [arguments.get(name) for name in ("set_param_lr_fun", "name_dict", "lr_ratio")]
    has_hook = any(hook is not None and hook is not layerwise_lr_decay for hook in hooks)
    if (has_hook or layers is not None) and (rules is not None or example is not None):
        wrong = "`rules` and `example` find layers: give them to `LayerMap.from_model`, or leave `layers` out."
        if has_hook:
            wrong = "`rules` and `example` have no effect beside a hook or `name_dict`: give one of the two."
        raise refusal(ValueError, wrong, rules=rules, example=type(example).__name__)
    arguments = {**arguments, **_parameters(model, groups, arguments)}
    given: Any = arguments.get("parameters", arguments.get("params"))
    grouped = isinstance(given, (list, tuple)) and any(isinstance(item, dict) for item in given)
    excludes = arguments.get("apply_decay_param_fun") is not None or arguments.get(info.own_exclusion)
    if model is not None and not grouped and not excludes:
        arguments["apply_decay_param_fun"] = _decayed(info, model, layers, arguments)
    if checked_number(max_grad_norm, "max_grad_norm") > 0:
        clip = arguments.get("grad_clip")
        if clip is not None:
            both = "`max_grad_norm` and `grad_clip` both clip gradients: give one of them."
            raise refusal(ValueError, both, max_grad_norm=max_grad_norm, grad_clip=type(clip).__name__)
        arguments["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(max_grad_norm)
    arguments = _class_options(info, arguments)
    if model is not None and layers is None:
        replaced = grouped and any(info.instead_of_layers in group for group in given)
        if info.instead_of_layers and not replaced and arguments.get(info.instead_of_layers) is None:
            layers = LayerMap.from_model(model, example, rules)
        elif (decay != OFF or example is not None or rules) and not has_hook:
            layers = LayerMap.for_decay(decay, model, lambda: LayerMap.from_model(model, example, rules))
        elif ours and arguments.get("name_dict") is None:
            arguments["name_dict"] = name_dict_of(model)  # which hooks read
    if ours:
        if layers is not None:
            arguments["layers"] = layers
        return info.cls(**arguments) if decay == OFF else info.cls(layerwise_decay=layerwise_decay, **arguments)
    if grouped:  # Paddle ignores keys that it does not know
        arguments["parameters"] = [checked_group(group, info.options) for group in given]
        if layers is None:  # else `apply_layerwise_decay` warns
            warn_of_absolute_rates(given)
    opt = info.cls(**arguments)
    return opt if layers is None and decay == OFF else apply_layerwise_decay(opt, layers, decay)


def _parameters(model: Any, groups: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The argument `parameters`, unless `arguments` have it."""
    is_given = "parameters" in arguments or "params" in arguments
    if model is not None or not is_given:
        checked_model(model)
    if is_given and groups is not None:
        raise refusal(ValueError, "`groups` takes the place of `parameters`: leave one of them out.", groups=groups)
    if is_given:
        return {}
    if groups is None:
        sharded = is_sharded()  # whose version 2 refuses frozen parameters
        return {"parameters": [param for param in model.parameters() if not (sharded and param.stop_gradient)]}
    items = list(groups) if hasattr(groups, "__iter__") and not hasattr(groups, "__array__") else []
    kinds = [dict if isinstance(item, dict) else hasattr(item, "stop_gradient") for item in items]
    if kinds not in ([dict] * len(items), [True] * len(items)) or not items:
        raise wrong_type(groups, "groups", "a list of parameters, or of parameter groups as dicts")
    return {"parameters": items}


def _decayed(info: OptimizerInfo, model: Any, layers: Any, arguments: dict[str, Any]) -> Callable[[str], bool]:
    """An `apply_decay_param_fun` without biases, norms and other vectors."""
    names = structured_names(arguments.get("name_dict"), layers) or name_dict_of(model)
    decayed = decayed_parameter_names(model) | included_names(info, names, arguments)
    if issubclass(info.cls, LayerRates):  # knows the names of copies
        return decayed.__contains__
    return functools.partial(asked_before_copy, decayed.__contains__)


def included_names(info: OptimizerInfo, names: Mapping[str, str], arguments: Mapping[str, Any]) -> set[str]:
    """Names that match AdamWeightDecay's `include_in_weight_decay`."""
    if not info.own_exclusion or not (included := arguments.get("include_in_weight_decay")):
        return set()
    patterns = info.options["include_in_weight_decay"].checked(included, "include_in_weight_decay")
    return {name for name, text in names.items() if any(one.search(f"{text}:0") for one in patterns)}


def _class_options(info: OptimizerInfo, arguments: dict[str, Any]) -> dict[str, Any]:
    """Rename arguments as in the class, each checked under its given name."""
    weight_decay = arguments.pop("weight_decay", None)
    if weight_decay is not None and ("weight_decay" in info.options or weight_decay):
        arguments["weight_decay"] = weight_decay
    if any(arguments.get(name) is not None for name in ("learning_rate", "lr")):
        arguments = {**info.external_rate, **arguments}
    for name, option in info.options.items():
        if option.setting in arguments:
            value = arguments.pop(option.setting)
            if name in arguments:
                twice = f"`{name}` is another name for `{option.setting}`: give one of them."
                raise refusal(ValueError, twice, **{option.setting: value, name: arguments[name]})
            option.checked(value, option.setting)
            arguments[name] = value
        elif name in arguments and not issubclass(info.cls, LayerRates):  # Paddle's own class checks less
            option.checked(arguments[name], name)
    return arguments


def named_by_letters(noun: str, networks: Iterable[Any]) -> dict[str, Any]:
    """Return "<noun>_a", "<noun>_b"... -> network: a number would be a block's."""
    letters = [f"{first}{second}" for first in ("", *ascii_lowercase) for second in ascii_lowercase]
    return {f"{noun}_{name}": network for name, network in zip(letters, networks)}


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
            own names (`beta_1`, `eps`) work too. `apply_decay_param_fun`, and AdamWeightDecay's
            `exclude_from_weight_decay`, override the exclusion from weight decay.

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
        wrong = f"{OPTIMIZERS[name].cls.__name__} has no argument `{argument}`{nearest(argument, known)}."
        raise refusal(TypeError, wrong, **{argument: arguments[argument]})
    if learning_rate is not None:
        arguments["learning_rate"] = learning_rate
    if isinstance(model, (list, tuple)):
        model = named_by_letters("network", model)
    if isinstance(model, dict):
        if len({str(key) for key in model}) < len(model):
            raise refusal(ValueError, "Two networks of `model` have one name.", model=[*model])
        model = paddle.nn.LayerDict({str(key): checked_model(network) for key, network in model.items()})
        if isinstance(example, (paddle.Tensor, list, tuple, Mapping)):  # PaddleNLP makes Tensors callable
            wrong = "For several networks, `example` must be a function of their dict that runs them."
            raise refusal(TypeError, wrong, example=type(example).__name__)
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
