"""The parameters that weight decay applies to."""

import re

import paddle

from .._paddle import checked_model, own_parameters
from .layer import name_before_copy

_NORM = re.compile(r"Norm(\dD)?$")


class _Names(set[str]):
    """Names of parameters, which also contain the names that Paddle gives to deep copies of these parameters."""

    def __contains__(self, name: object) -> bool:
        is_known = super().__contains__
        return is_known(name_before_copy(str(name), is_known))


def decayed_parameter_names(model: paddle.nn.Layer) -> set[str]:
    """Return the `param.name` of the parameters with weight decay: all except biases and parameters of norms.

    Excluded are parameters with at most one axis, parameters of sublayers of a norm's class or a subclass (under any
    name: `layer_norm`, `norm1`, `ln_1`, `input_layernorm`), and parameters with "bias" in their structured name. The
    result also contains the names of deep copies of these parameters, so that a deep copy of a model and its optimizer
    has the same weight decay.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import decayed_parameter_names
        >>> model = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.LayerNorm(4))
        >>> decayed_parameter_names(model) == {model[0].weight.name}
        True
    """
    left_out = set()
    for path, sublayer in checked_model(model).named_sublayers(include_self=True):
        norm = any(_NORM.search(cls.__name__) for cls in type(sublayer).__mro__)
        for key, param in own_parameters(sublayer).items():
            if param is not None and (norm or param.ndim <= 1 or "bias" in f"{path}.{key}"):
                left_out.add(param.name)
    return _Names({param.name for param in model.parameters()} - left_out)
