"""The builder of our optimizers, until `paddle_ldopt.build.build_optimizer` with the same arguments takes its place."""

from typing import Any, Optional

from ..layers.map import LayerMap
from ..layers.weight_decay import decayed_parameter_names


def build_optimizer(
    info: Any, model: Any, *, rule: Any, layers: Optional[LayerMap] = None, groups: Any = None, **arguments: Any
) -> Any:
    """Return an optimizer of a model's parameters, or of groups, which say themselves what decays."""
    parameters = model.parameters() if groups is None else groups
    grouped = any(isinstance(item, dict) for item in parameters)
    arguments = {**info.external_rate, **arguments}
    if not grouped and not any(arguments.get(argument) for argument in info.own_exclusion):
        arguments["apply_decay_param_fun"] = decayed_parameter_names(model).__contains__
    if layers is not None:
        arguments.update(layers=layers, layerwise_decay=rule)
    return info.cls(parameters=parameters, **arguments)
