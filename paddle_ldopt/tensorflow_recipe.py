"""`create_optimizer`: TensorFlow's BERT recipe, optimizer and schedule, in one call."""

import functools
import re
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

import paddle

from ._messages import refusal
from ._paddle import flatten_groups, name_dict_of
from .build import build_optimizer
from .layers.decay import LayerDecay
from .layers.map import LayerMap
from .layers.paddlenlp_hook import layerwise_lr_decay
from .layers.weight_decay import decayed_parameter_names
from .optimizers import AdamWeightDecay
from .optimizers.groups import checked_parameters
from .schedules import WarmUp
from .schedules.options import Fraction, NonNegative, Positive, Steps, StepsFrom1, checks_arguments


def create_optimizer(
    init_lr: float,
    num_train_steps: int,
    num_warmup_steps: int,
    min_lr_ratio: float = 0.0,
    adam_beta1: float = 0.9,
    adam_beta2: float = 0.999,
    adam_epsilon: float = 1e-8,
    adam_clipnorm: Optional[float] = None,
    adam_global_clipnorm: Optional[float] = None,
    weight_decay_rate: float = 0.0,
    power: float = 1.0,
    include_in_weight_decay: Optional[list[str]] = None,
    *,
    parameters: Any = None,
    model: Any = None,
    layerwise_decay: Union[float, LayerDecay] = 1.0,
    n_layers: int = 12,
    set_param_lr_fun: Optional[Callable[..., Any]] = layerwise_lr_decay,
    name_dict: Optional[Mapping[str, str]] = None,
    layers: Optional[LayerMap] = None,
    multi_precision: bool = False,
) -> tuple[AdamWeightDecay, WarmUp]:
    r"""Build `AdamWeightDecay` and its schedule, warm-up and polynomial decay: a TensorFlow recipe in one call.

    With k the step, w the steps of the warm-up, n all steps and q `min_lr_ratio`:

    .. math::
        l_k = l_0 \, k / w \quad (k < w), \qquad
        l_k = l_0 \left(q + (1 - q) \left(1 - \frac{\min(k, n) - w}{n - w}\right)^{power}\right) \quad (k \ge w)

    All weights are decayed but biases and the parameters of norms. With `model`, the class of their layer tells them
    (`decayed_parameter_names`), otherwise their names: ``norm`` in any case, ``ln_`` and ``bias`` in those of
    `name_dict` or `layers`, ``norm`` and ``.b_0`` in Paddle's own.

    Args:
        init_lr: :math:`l_0`, the peak, at least 0.
        num_train_steps: n, at least 1: steps of the optimizer, not micro-batches.
        num_warmup_steps: w, at least 0; the warm-up is linear whatever `power` is.
        min_lr_ratio: q in [0, 1], the final rate as a part of `init_lr`.
        adam_beta1: decay of the first moment, in [0, 1).
        adam_beta2: decay of the second moment, in [0, 1).
        adam_epsilon: at least 0, added to the root of the uncorrected second moment.
        adam_clipnorm: above 0; scales each gradient down to this norm.
        adam_global_clipnorm: above 0; scales all gradients down to this norm together.
        weight_decay_rate: decoupled decay, at least 0; 0 is plain Adam.
        power: of the decay, above 0; 1 is linear.
        include_in_weight_decay: patterns of names that are decayed in any case.
        parameters: the parameters to train, also in groups; those of `model` by default.
        model: the model, which gives names, layers and what is decayed.
        layerwise_decay: as in `AdamWDL`; the layers are those of `model` by default.
        n_layers: as in `AdamWDL`.
        set_param_lr_fun: the hook that gives the ratio.
        name_dict: ``param.name`` -> structured name.
        layers: the `LayerMap` of the model.
        multi_precision: keep float32 master weights of float16 and bfloat16 parameters.

    Returns:
        The optimizer and its schedule, a `WarmUp` even if it has no warm-up. Call ``schedule.step()`` after each
        ``optimizer.step()``: TensorFlow's advances by itself.

    Warns:
        UserWarning: a pattern of `include_in_weight_decay` finds no parameter; w is above n.

    Differs from transformers: parameters are given here; without weight decay the optimizer is `AdamWeightDecay` too,
    with the numbers of Keras' Adam; `num_train_steps` = `num_warmup_steps` ends at the final rate.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import create_optimizer
        >>> model = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.LayerNorm(4))
        >>> optimizer, schedule = create_optimizer(2e-5, 100, 10, weight_decay_rate=0.01, model=model)
        >>> print(schedule(10), [optimizer.has_weight_decay(p) for p in model.parameters()])
        2e-05 [True, False, False, False]

    Source: ``transformers.create_optimizer`` of ``optimization_tf.py``.
    """
    options = _checked_options(
        adam_beta1=adam_beta1,
        adam_beta2=adam_beta2,
        adam_epsilon=adam_epsilon,
        adam_clipnorm=adam_clipnorm,
        adam_global_clipnorm=adam_global_clipnorm,
        weight_decay_rate=weight_decay_rate,
        include_in_weight_decay=include_in_weight_decay,
    )
    if parameters is not None:  # read twice: their names are searched, too
        parameters = checked_parameters(parameters, {*AdamWeightDecay.OPTIONS, "weight_decay_rate"})
    elif model is None and paddle.in_dynamic_mode():
        why = "Paddle's optimizers are told what to train when they are built."
        raise refusal(ValueError, f"`parameters` or `model` must be given: {why}", parameters=None, model=None)
    schedule = _schedule(init_lr, num_train_steps, num_warmup_steps, min_lr_ratio, power)
    hook = None if set_param_lr_fun is layerwise_lr_decay else set_param_lr_fun
    if hook is not None and name_dict is None and layers is None and model is not None:
        name_dict = name_dict_of(model)
    names = name_dict or (layers.name_dict if isinstance(layers, LayerMap) else None)
    excluded = _excluded(options, model, parameters, names)
    told: dict[str, Any] = {"parameters": parameters, "name_dict": name_dict, "set_param_lr_fun": hook}
    told = {name: value for name, value in told.items() if value is not None}
    if model is None:
        told.setdefault("parameters", None)  # a static graph has its own
    optimizer = build_optimizer(
        "adamweightdecay",
        model,
        layerwise_decay=layerwise_decay,
        layers=layers,
        learning_rate=schedule,
        multi_precision=multi_precision,
        n_layers=n_layers,
        **told,
        **{**options, "include_in_weight_decay": include_in_weight_decay},
        **excluded,
    )
    return optimizer, schedule


_OPTIONS = {  # argument -> option of AdamWeightDecay
    "adam_beta1": "beta_1",
    "adam_beta2": "beta_2",
    "adam_epsilon": "epsilon",
    "adam_clipnorm": "clipnorm",
    "adam_global_clipnorm": "global_clipnorm",
    "weight_decay_rate": "weight_decay",
    "include_in_weight_decay": "include_in_weight_decay",
}


def _checked_options(**given: Any) -> dict[str, Any]:
    """Return the options of `AdamWeightDecay` that the arguments of `create_optimizer` give, checked."""
    declared = AdamWeightDecay.OPTIONS
    options = {option: declared[option].checked(given[argument], argument) for argument, option in _OPTIONS.items()}
    norms = {name: given[name] for name in ("adam_clipnorm", "adam_global_clipnorm")}
    if None not in norms.values():
        raise refusal(ValueError, f"Clip gradients one by one or together: give one of {', '.join(norms)}.", **norms)
    if options["weight_decay"] == 0.0 and options["include_in_weight_decay"]:
        included = given["include_in_weight_decay"]
        idle = "`include_in_weight_decay` has no effect without a weight decay."
        raise refusal(ValueError, idle, include_in_weight_decay=included, weight_decay_rate=0.0)
    return options


def _excluded(
    options: dict[str, Any], model: Any, parameters: Optional[list[Any]], names: Optional[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the option that says which parameters are not decayed, none without a weight decay."""
    if options["weight_decay"] == 0.0:
        return {}
    if model is not None:
        include = options["include_in_weight_decay"] or []
        return {"apply_decay_param_fun": _decayed(model, include, names).__contains__}
    return {"exclude_from_weight_decay": _pattern_of_excluded(parameters, names)}


# TensorFlow's ["LayerNorm", "layer_norm", "bias"] and Paddle's spellings of the same: norm1, input_layernorm, ln_1. One
# pattern, because each one that finds nothing is warned of, and no model has all of them.
_NOT_DECAYED = r"(?i:norm)|\bln_|bias"
_NOT_DECAYED_UNNAMED = _NOT_DECAYED + r"|\.b_\d+:0$"  # linear_0.b_0: Paddle's own name of a bias


@checks_arguments
def _schedule(
    init_lr: NonNegative, num_train_steps: StepsFrom1, num_warmup_steps: Steps, min_lr_ratio: Fraction, power: Positive
) -> WarmUp:
    """Return the schedule of `create_optimizer`."""
    if num_warmup_steps > num_train_steps:
        early = "The training ends before the warm-up does: the peak is not reached."
        steps = {"num_warmup_steps": num_warmup_steps, "num_train_steps": num_train_steps}
        warnings.warn(refusal(UserWarning, early, **steps), stacklevel=4)
    length = max(0, num_train_steps - num_warmup_steps)
    decay = functools.partial(_polynomial, start=init_lr, end=init_lr * min_lr_ratio, steps=length, power=power)
    return WarmUp(init_lr, decay, num_warmup_steps)


def _polynomial(step: int, start: float, end: float, steps: int, power: float) -> float:
    """Return the rate of a polynomial decay; a function that can be pickled, and quicker than a scheduler."""
    done = min(step, steps) / steps if steps else 1.0  # with no step to decay in, the end comes at once
    return end + (start - end) * (1.0 - done) ** power


def _decayed(model: Any, include: list[re.Pattern[str]], names: Optional[Mapping[str, str]]) -> set[str]:
    """Return the names of the decayed parameters: the function has the last word, so it knows what is included."""
    decayed = decayed_parameter_names(model)
    searched = names or name_dict_of(model)
    texts = {param.name: f"{searched.get(param.name, param.name)}:0" for param in model.parameters()}
    return decayed | {name for name, text in texts.items() if any(pattern.search(text) for pattern in include)}


def _pattern_of_excluded(parameters: Optional[list[Any]], names: Optional[Mapping[str, str]]) -> list[str]:
    """Return the pattern of the names that are not decayed, none if it finds no parameter: it would be warned of."""
    pattern = _NOT_DECAYED if names else _NOT_DECAYED_UNNAMED
    searched = [f"{(names or {}).get(param.name, param.name)}:0" for param in flatten_groups(parameters or [])]
    return [pattern] if parameters is None or any(re.search(pattern, text) for text in searched) else []
