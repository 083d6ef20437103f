"""`create_optimizer`: TensorFlow's BERT recipe, optimizer and schedule, in one call."""

import functools
import re
import warnings

import paddle

from ._checks import checked_number, checked_steps, shown
from ._paddle import flatten_groups
from .layers.decay import LayerDecay, as_decay
from .layers.map import LayerMap
from .layers.paddlenlp_hook import layerwise_lr_decay
from .layers.weight_decay import decayed_parameter_names
from .optimizers import AdamWeightDecay
from .optimizers._base.groups import checked_parameters, parameters_to_train
from .schedules.warmup import WarmUp


def create_optimizer(
    init_lr,
    num_train_steps,
    num_warmup_steps,
    min_lr_ratio=0.0,
    adam_beta1=0.9,
    adam_beta2=0.999,
    adam_epsilon=1e-8,
    adam_clipnorm=None,
    adam_global_clipnorm=None,
    weight_decay_rate=0.0,
    power=1.0,
    include_in_weight_decay=None,
    *,
    parameters=None,
    model=None,
    layerwise_decay=1.0,
    n_layers=12,
    set_param_lr_fun=layerwise_lr_decay,
    name_dict=None,
    layers=None,
    multi_precision=False,
):
    r"""Build `AdamWeightDecay` and its schedule, warm-up and polynomial decay: a TensorFlow recipe in one call.

    With k the step, w the steps of the warm-up, n all steps and q `min_lr_ratio`:

    .. math::
        l_k = l_0 \, k / w \quad (k < w), \qquad
        l_k = l_0 \left(q + (1 - q) \left(1 - \frac{\min(k, n) - w}{n - w}\right)^{power}\right) \quad (k \ge w)

    **What is decayed** is all but biases and the parameters of norms, and what `include_in_weight_decay` finds. They
    are told by the class of their layer if `model` is given (`decayed_parameter_names`), and otherwise by name:
    ``norm`` in any case, ``ln_`` and ``bias`` in structured names, if `name_dict` or `layers` gives them, and ``norm``
    and ``.b_0`` in Paddle's own.

    Args:
        init_lr (float): :math:`l_0`, the peak, at least 0.
        num_train_steps (int): n, at least 1: steps of the optimizer, not micro-batches.
        num_warmup_steps (int): w, at least 0; the warm-up is linear whatever `power` is.
        min_lr_ratio (float, optional): q in [0, 1], the rate at the end and past it as a part of `init_lr`.
        adam_beta1 (float, optional): decay of the first moment, in [0, 1).
        adam_beta2 (float, optional): decay of the second moment, in [0, 1).
        adam_epsilon (float, optional): at least 0, added to the root of the uncorrected second moment.
        adam_clipnorm (float, optional): above 0; scales each gradient down to this norm.
        adam_global_clipnorm (float, optional): above 0; scales all gradients down to this norm together.
        weight_decay_rate (float, optional): decoupled decay, at least 0; 0 is plain Adam.
        power (float, optional): of the decay, above 0; 1 is linear.
        include_in_weight_decay (list[str], optional): patterns of names that are decayed though they are biases or of
            norms, as in `AdamWeightDecay`.
        parameters (list[Tensor]|list[dict], optional): what to train; those of `model` by default.
        model (paddle.nn.Layer, optional): the model; names, layers and what is decayed are taken from it.
        layerwise_decay (float|LayerDecay, optional): as in `AdamWDL`, like the rest; with `model` alone, its layers are
            found by `LayerMap.from_model`.
        n_layers (int, optional): blocks of the model, for a hook.
        set_param_lr_fun (callable, optional): the hook that gives the ratio.
        name_dict (dict[str, str], optional): ``param.name`` -> structured name.
        layers (LayerMap, optional): the layers of the model, instead of the three above.
        multi_precision (bool, optional): keep float32 master weights of float16 and bfloat16 parameters.

    Returns:
        tuple[AdamWeightDecay, WarmUp]: the optimizer and its schedule, a `WarmUp` even if it has no warm-up. Call
        ``schedule.step()`` after each ``optimizer.step()``: TensorFlow's advances by itself.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a value out of range; neither `parameters` nor `model`, in dygraph; both kinds of clipping;
            `include_in_weight_decay` without a weight decay; as `AdamWeightDecay` and `LayerMap.from_model`.

    Warns:
        UserWarning: a pattern of `include_in_weight_decay` finds no parameter; w is above n.

    Differs from transformers: parameters are given here, as everywhere in Paddle; norms and biases are found by the
    names that Paddle's models have; without weight decay the optimizer is `AdamWeightDecay` too, whose numbers are then
    those of Keras' Adam; `num_train_steps` = `num_warmup_steps` goes to the end's rate instead of dividing by 0.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> from paddle_ldopt import create_optimizer
            >>> model = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.LayerNorm(4))
            >>> optimizer, schedule = create_optimizer(2e-5, 100, 10, weight_decay_rate=0.01, model=model)
            >>> for _ in range(2):
            ...     model(paddle.rand([2, 4])).square().mean().backward()
            ...     optimizer.step()
            ...     optimizer.clear_grad()
            ...     schedule.step()
            >>> print(schedule())
            4.000000000000001e-06
            >>> print([optimizer.is_decayed(p) for p in model.parameters()])
            [True, False, False, False]

    Source: ``transformers.create_optimizer`` of ``optimization_tf.py``.
    """
    weight_decay_rate = AdamWeightDecay.OPTIONS["weight_decay"].checked(weight_decay_rate, "weight_decay_rate")
    beta_1 = checked_number(adam_beta1, "adam_beta1", 0.0, 1.0, "[)")
    beta_2 = checked_number(adam_beta2, "adam_beta2", 0.0, 1.0, "[)")
    epsilon = checked_number(adam_epsilon, "adam_epsilon", 0.0, ends="[)")
    for argument, value in (("adam_clipnorm", adam_clipnorm), ("adam_global_clipnorm", adam_global_clipnorm)):
        if value is not None:
            checked_number(value, argument, 0.0, ends="()")
    if adam_clipnorm is not None and adam_global_clipnorm is not None:
        raise ValueError(
            "Gradients are clipped one by one or together: give one of `adam_clipnorm` and `adam_global_clipnorm`. "
            f"Received: adam_clipnorm={shown(adam_clipnorm)}, adam_global_clipnorm={shown(adam_global_clipnorm)}"
        )
    if not isinstance(include_in_weight_decay, (list, tuple, type(None))):
        raise TypeError(
            "`include_in_weight_decay` must be a list of strings or None. "
            f"Received: include_in_weight_decay={shown(include_in_weight_decay)}"
        )
    if weight_decay_rate == 0.0 and include_in_weight_decay:
        raise ValueError(
            "`include_in_weight_decay` has no effect without a weight decay. Received: "
            f"include_in_weight_decay={shown(include_in_weight_decay)}, weight_decay_rate={shown(weight_decay_rate)}"
        )
    if parameters is not None:  # read twice: their names are searched, too
        parameters = checked_parameters(parameters, _GROUP_OPTIONS)
    if model is not None:
        if not isinstance(model, paddle.nn.Layer):
            raise TypeError(f"`model` must be a paddle.nn.Layer. Received: model of type {type(model).__name__}")
        if parameters is None:
            parameters = parameters_to_train(model)
        uses_layers = set_param_lr_fun is layerwise_lr_decay and name_dict is None
        if layers is None and uses_layers and as_decay(layerwise_decay) != LayerDecay(1.0):
            layers = LayerMap.from_model(model)
        elif layers is None and name_dict is None:
            name_dict = {param.name: name for name, param in model.named_parameters()}
    elif parameters is None and paddle.in_dynamic_mode():
        raise ValueError(
            "`parameters` or `model` must be given: Paddle's optimizers are told what to train when they are built. "
            "Received: parameters=None, model=None"
        )
    schedule = _schedule(init_lr, num_train_steps, num_warmup_steps, min_lr_ratio, power)
    optimizer = AdamWeightDecay(
        schedule,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        weight_decay_rate=weight_decay_rate,
        include_in_weight_decay=include_in_weight_decay,
        clipnorm=adam_clipnorm,
        global_clipnorm=adam_global_clipnorm,
        parameters=parameters,
        multi_precision=multi_precision,
        layerwise_decay=layerwise_decay,
        n_layers=n_layers,
        set_param_lr_fun=set_param_lr_fun,
        name_dict=name_dict,
        layers=layers,
        **_exclusion(weight_decay_rate, include_in_weight_decay, parameters, model, name_dict, layers),
    )
    return optimizer, schedule


# TensorFlow's ["LayerNorm", "layer_norm", "bias"] and Paddle's spellings of the same: norm1, input_layernorm, ln_1. One
# pattern, because each one that finds nothing is warned of, and no model has all of them.
_NOT_DECAYED = r"(?i:norm)|\bln_|bias"


_NOT_DECAYED_UNNAMED = _NOT_DECAYED + r"|\.b_\d+:0$"  # linear_0.b_0: Paddle's own name of a bias


_GROUP_OPTIONS = ("weight_decay_rate", "weight_decay", "beta_1", "beta_2", "epsilon", "clipnorm", "clipvalue")


def _schedule(init_lr, num_train_steps, num_warmup_steps, min_lr_ratio, power):
    """Return the schedule of `create_optimizer`."""
    init_lr = checked_number(init_lr, "init_lr", 0.0, ends="[)")
    num_train_steps = checked_steps(num_train_steps, "num_train_steps", 1)
    num_warmup_steps = checked_steps(num_warmup_steps, "num_warmup_steps", 0)
    min_lr_ratio = checked_number(min_lr_ratio, "min_lr_ratio", 0.0, 1.0)
    power = checked_number(power, "power", 0.0, ends="()")
    if num_warmup_steps > num_train_steps:
        warnings.warn(
            "The training ends before the warm-up does: the peak is not reached. "
            f"Received: num_warmup_steps={num_warmup_steps}, num_train_steps={num_train_steps}",
            stacklevel=3,
        )
    steps = max(0, num_train_steps - num_warmup_steps)
    how = {"start": init_lr, "end": init_lr * min_lr_ratio, "steps": steps, "power": power}
    return WarmUp(init_lr, functools.partial(_polynomial, **how), num_warmup_steps)


def _polynomial(step, start, end, steps, power):
    """Return the rate of a polynomial decay; a function that can be pickled, and quicker than a scheduler."""
    done = min(step, steps) / steps if steps else 1.0  # with no step to decay in, the end comes at once
    return end + (start - end) * (1.0 - done) ** power


def _exclusion(weight_decay_rate, include, parameters, model, name_dict, layers):
    """Return the arguments of `AdamWeightDecay` that keep norms and biases from being decayed."""
    if weight_decay_rate == 0.0:
        return {}
    names = name_dict or getattr(layers, "name_dict", None)
    if model is None:
        pattern = _NOT_DECAYED if names else _NOT_DECAYED_UNNAMED
        if parameters is not None:
            searched = [f"{(names or {}).get(param.name, param.name)}:0" for param in flatten_groups(parameters)]
            if not any(re.search(pattern, name) for name in searched):
                return {}  # nothing to leave out, and nothing to be warned of
        return {"exclude_from_weight_decay": [pattern]}
    # a function has the last word in AdamWeightDecay, so it must know what is included
    decayed = set(decayed_parameter_names(model))
    if isinstance(include, (list, tuple)):  # AdamWeightDecay says what is wrong with anything else
        for param in model.parameters():
            name = f"{(names or {}).get(param.name, param.name)}:0"
            if any(_finds(pattern, name) for pattern in include):
                decayed.add(param.name)
    return {"apply_decay_param_fun": decayed.__contains__}


def _finds(pattern, name):
    try:
        return re.search(pattern, name) is not None
    except (re.error, TypeError):  # AdamWeightDecay raises for these, naming the argument
        return False
