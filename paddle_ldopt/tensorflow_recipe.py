"""`create_optimizer`: the optimizer and schedule of TensorFlow's BERT recipe."""

import functools
import re
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Callable, Optional, Union

import paddle

from ._checks import problem, refusal
from ._compat import checked_model, flatten_groups, name_dict_of, structured_names
from .create import build_optimizer
from .layers.decay import LayerDecay
from .layers.map import LayerMap
from .optimizers import AdamWeightDecay
from .optimizers.layer_rates import layerwise_lr_decay
from .optimizers.options import checked_parameters
from .schedules import WarmUp
from .schedules.curves import Polynomial
from .schedules.factory import Fraction, NonNegative, Positive, Steps, StepsFrom1, checks_arguments

_OPTIONS = AdamWeightDecay.OPTIONS


@checks_arguments
def create_optimizer(
    init_lr: NonNegative,
    num_train_steps: StepsFrom1,
    num_warmup_steps: Steps,
    min_lr_ratio: Fraction = 0.0,
    adam_beta1: Annotated[float, _OPTIONS["beta_1"]] = 0.9,
    adam_beta2: Annotated[float, _OPTIONS["beta_2"]] = 0.999,
    adam_epsilon: Annotated[float, _OPTIONS["epsilon"]] = 1e-8,
    adam_clipnorm: Annotated[Optional[float], _OPTIONS["clipnorm"]] = None,
    adam_global_clipnorm: Annotated[Optional[float], _OPTIONS["global_clipnorm"]] = None,
    weight_decay_rate: float = 0.0,
    power: Positive = 1.0,
    include_in_weight_decay: Optional[list[str]] = None,
    *,
    parameters: Any = None,
    model: Optional[paddle.nn.Layer] = None,
    layerwise_decay: Union[float, LayerDecay] = 1.0,
    n_layers: int = 12,
    set_param_lr_fun: Optional[Callable[..., float]] = layerwise_lr_decay,
    name_dict: Optional[Mapping[str, str]] = None,
    layers: Optional[LayerMap] = None,
    multi_precision: bool = False,
) -> tuple[AdamWeightDecay, WarmUp]:
    r"""Build `AdamWeightDecay` with a warm-up and a polynomial decay, as TensorFlow's BERT does.

    With k the step, w `num_warmup_steps`, n `num_train_steps` (steps of the optimizer, not micro-batches), :math:`l_0`
    `init_lr` and q `min_lr_ratio`:

    .. math::
        l_k = l_0 \, k / w \quad (k < w), \qquad
        l_k = l_0 \left(q + (1 - q) \left(1 - \frac{\min(k, n) - w}{n - w}\right)^{power}\right) \quad (k \ge w)

    Weight decay skips biases and the parameters of norms: by `decayed_parameter_names` with `model`, otherwise by name
    (``norm`` in upper or lower case, ``ln_`` and ``bias`` in the names of `name_dict` or `layers`; ``norm`` and
    ``.b_0`` in Paddle's own names). Patterns in `include_in_weight_decay` override this.

    `parameters` are by default all of `model`. `adam_clipnorm` clips each gradient, `adam_global_clipnorm` all
    together. Other arguments are as in `AdamWeightDecay` and, from `layerwise_decay` on, in `AdamWDL`.

    Returns:
        The optimizer and its `WarmUp`. Call ``schedule.step()`` after each step: TensorFlow's schedule advances by
        itself.

    Differs from transformers: without weight decay, the optimizer is still `AdamWeightDecay`, equal to Keras' Adam.
    `num_train_steps` = `num_warmup_steps` ends at the final rate.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import create_optimizer
        >>> model = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.LayerNorm(4))
        >>> optimizer, schedule = create_optimizer(2e-5, 100, 10, weight_decay_rate=0.01, model=model)
        >>> print(schedule(10), [optimizer.has_weight_decay(p) for p in model.parameters()])
        2e-05 [True, False, False, False]

    Source: ``transformers.create_optimizer`` of ``optimization_tf.py``.
    """
    include = _OPTIONS["include_in_weight_decay"].checked(include_in_weight_decay, "include_in_weight_decay") or []
    has_decay = _OPTIONS["weight_decay"].checked(weight_decay_rate, "weight_decay_rate") != 0.0
    if adam_clipnorm is not None and adam_global_clipnorm is not None:
        norms = {"adam_clipnorm": adam_clipnorm, "adam_global_clipnorm": adam_global_clipnorm}
        raise refusal(ValueError, "Give only one of adam_clipnorm, adam_global_clipnorm.", **norms)
    if include and not has_decay:
        idle = "`include_in_weight_decay` has no effect without a weight decay."
        given = {"include_in_weight_decay": include_in_weight_decay, "weight_decay_rate": weight_decay_rate}
        warnings.warn(problem(idle, **given), stacklevel=3)
    if parameters is not None:  # read twice, here for their names
        parameters = checked_parameters(parameters, _OPTIONS)
    elif model is None and paddle.in_dynamic_mode():
        raise refusal(ValueError, "`parameters` or `model` must be given.", parameters=None, model=None)
    if num_warmup_steps > num_train_steps:
        wrong = "The training ends before the warm-up does, so the rate never reaches the peak."
        steps = {"num_warmup_steps": num_warmup_steps, "num_train_steps": num_train_steps}
        warnings.warn(problem(wrong, **steps), stacklevel=3)
    length = num_train_steps - num_warmup_steps
    curve = Polynomial(decay=length or -1, power=power, end=min_lr_ratio)  # below 0 steps: the end at once
    schedule = WarmUp(init_lr, functools.partial(_rate, init_lr, curve), num_warmup_steps)
    hook = None if set_param_lr_fun is layerwise_lr_decay else set_param_lr_fun
    names = structured_names(name_dict, layers) or (name_dict_of(checked_model(model)) if model is not None else None)
    grouped = any(isinstance(item, dict) for item in parameters or [])  # `create` leaves groups as they are
    arguments: dict[str, Any] = {"parameters": parameters, "name_dict": name_dict, "set_param_lr_fun": hook}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if model is None:
        arguments.setdefault("parameters", None)  # a static graph has its own parameters
    if has_decay and (model is None or grouped):
        pattern = _NOT_DECAYED if names else _NOT_DECAYED_UNNAMED
        all_texts = [f"{(names or {}).get(param.name, param.name)}:0" for param in flatten_groups(parameters or [])]
        matches = parameters is None or any(re.search(pattern, text) for text in all_texts)
        arguments["exclude_from_weight_decay"] = [pattern] if matches else []  # without a match it would warn
    optimizer = build_optimizer(
        "adamweightdecay",
        model,
        layerwise_decay=layerwise_decay,
        layers=layers,
        learning_rate=schedule,
        multi_precision=multi_precision,
        n_layers=n_layers,
        weight_decay=weight_decay_rate,
        include_in_weight_decay=include_in_weight_decay,
        beta_1=adam_beta1,
        beta_2=adam_beta2,
        epsilon=adam_epsilon,
        clipnorm=adam_clipnorm,
        global_clipnorm=adam_global_clipnorm,
        **arguments,
    )
    return optimizer, schedule


# TensorFlow's ["LayerNorm", "layer_norm", "bias"] and Paddle's norm1, input_layernorm, ln_1, as one pattern: each
# pattern without a match would warn.
_NOT_DECAYED = r"(?i:norm)|\bln_|bias"
_NOT_DECAYED_UNNAMED = _NOT_DECAYED + r"|\.b_\d+:0$"  # linear_0.b_0: Paddle's own name of a bias


def _rate(peak: float, curve: Polynomial, step: int) -> float:
    """Unlike a lambda, this function can be pickled."""
    return peak * curve(step)
