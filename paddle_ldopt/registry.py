"""The table of our optimizers: adding one is one file and one row."""

import dataclasses

from .arguments import nearest, shown
from .decay import LayerDecay
from .hooks import parameters_to_train
from .layers import LayerMap, as_rule
from .optimizers import Adafactor, AdamWDL, AdamWeightDecay, Came, Lamb
from .weight_decay import decayed_parameter_names

__all__ = ["REGISTRY", "OptimizerInfo", "create", "list_optimizers", "optimizer_class"]

_ADAM = {"beta1": "adam_beta1", "beta2": "adam_beta2", "epsilon": "adam_epsilon"}


@dataclasses.dataclass(frozen=True)
class OptimizerInfo:
    """One row of the table.

    Args:
        cls (type): the class.
        summary (str): when to choose it, and bytes of state a parameter.
        weight_decay (str): what the class calls its weight decay.
        trainer (dict[str, str]): argument of the class -> field of a Trainer's arguments that it is taken from.
        external_rate (dict): arguments it needs to take its rate from outside.
        own_exclusion (tuple[str]): arguments by which it says itself what is decayed.
    """

    cls: type
    summary: str
    weight_decay: str = "weight_decay"
    trainer: dict = dataclasses.field(default_factory=dict)
    external_rate: dict = dataclasses.field(default_factory=dict)
    own_exclusion: tuple = ()


REGISTRY = {
    "adamwdl": OptimizerInfo(AdamWDL, "AdamW, layer by layer: the choice for fine-tuning; 8 bytes", trainer=_ADAM),
    "came": OptimizerInfo(
        Came,
        "large language models in half of AdamW's memory; needs a warm-up; 4 bytes",
        trainer={"beta1": "adam_beta1"},
    ),
    "lamb": OptimizerInfo(
        Lamb, "batches of thousands; 8 bytes", trainer={"beta1": "adam_beta1", "beta2": "adam_beta2"}
    ),
    "adafactor": OptimizerInfo(
        Adafactor,
        "T5 and its kin, almost without memory; below 0.02 bytes",
        external_rate={"relative_step": False, "scale_parameter": False},
    ),
    "adamweightdecay": OptimizerInfo(
        AdamWeightDecay,
        "numbers of TensorFlow's BERT fine-tuning; 8 bytes",
        weight_decay="weight_decay_rate",
        own_exclusion=("include_in_weight_decay", "exclude_from_weight_decay"),
        trainer={"beta_1": "adam_beta1", "beta_2": "adam_beta2", "epsilon": "adam_epsilon"},
    ),
}


def list_optimizers():
    """Return the names that `create` and the Trainer's ``--optim`` know.

    Examples:
        .. code-block:: python

            >>> import paddle_ldopt as ldopt
            >>> "adamwdl" in ldopt.list_optimizers()
            True
    """
    return list(REGISTRY)


def optimizer_class(name):
    """Return the class of an optimizer of ours by its name; raise ValueError if none has it."""
    if not isinstance(name, str) or name not in REGISTRY:
        known = ", ".join(map(repr, REGISTRY)) + nearest(name, REGISTRY)
        raise ValueError(f"`name` must be one of {known}. Received: name={shown(name)}")
    return REGISTRY[name].cls


def create(name, model, layerwise_decay=1.0, rules=None, **arguments):
    """Build an optimizer of ours for a model: all its parameters, each layer at its rate.

    Those that are frozen, now or later, stay as they are for as long as they are frozen. Under sharding, which takes
    trainable ones alone, those that are frozen now are left out.

    Args:
        name (str): one of `list_optimizers`.
        model (paddle.nn.Layer): the model.
        layerwise_decay (float|LayerDecay, optional): ratio of the rates of neighbouring layers, in (0, 1].
        rules (dict|callable, optional): as in `LayerMap.from_model`, which is called if there is a decay.
        **arguments: the rest goes to the class. Biases and the parameters of norms are not decayed unless
            `apply_decay_param_fun` says otherwise.

    Returns:
        Optimizer: ready to step.

    Raises:
        ValueError: an unknown name; `rules` without a decay; as the class.
        TypeError: an argument that the class does not have.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle_ldopt as ldopt
            >>> encoder = paddle.nn.TransformerEncoder(paddle.nn.TransformerEncoderLayer(8, 2, 16), 3)
            >>> opt = ldopt.create("adamwdl", encoder, layerwise_decay=0.5, learning_rate=1e-3)
            >>> opt.layerwise_ratio(encoder.layers[0].linear1.weight)
            0.125
    """
    cls, info = optimizer_class(name), REGISTRY[name]
    if not hasattr(model, "named_sublayers"):
        raise TypeError(f"`model` must be a paddle.nn.Layer. Received: model of type {type(model).__name__}")
    if "params" not in arguments:
        arguments.setdefault("parameters", parameters_to_train(model))
    if not any(arguments.get(argument) for argument in info.own_exclusion):
        arguments.setdefault("apply_decay_param_fun", decayed_parameter_names(model).__contains__)
    if "learning_rate" in arguments or "lr" in arguments:
        arguments = {**info.external_rate, **arguments}
    decays = as_rule(layerwise_decay) != LayerDecay(1.0)
    if rules is not None and (not decays or "layers" in arguments):
        raise ValueError(
            f"`rules` have no effect without a layer-wise decay, or beside `layers`. Received: rules={shown(rules)}"
        )
    if decays:
        if "layers" not in arguments:  # a stage of a pipeline alone would not tell how many layers there are
            arguments["layers"] = LayerMap.from_model(model, rules)
        return cls(layerwise_decay=layerwise_decay, **arguments)
    if "layers" not in arguments and "set_param_lr_fun" not in arguments:
        arguments.setdefault("name_dict", {param.name: name for name, param in model.named_parameters()})
    return cls(**arguments)
