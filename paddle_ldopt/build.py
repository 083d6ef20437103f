"""TODO."""

from ._checks import shown
from .layers.decay import LayerDecay, as_decay
from .layers.map import LayerMap
from .layers.weight_decay import decayed_parameter_names
from .optimizers._base.groups import parameters_to_train
from .optimizers.registry import REGISTRY, optimizer_class


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
    decays = as_decay(layerwise_decay) != LayerDecay(1.0)
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
