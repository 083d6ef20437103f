"""Checks of the arguments of `LayerMap`, before anything is computed."""

from collections.abc import Iterable
from typing import Any

from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .._checks import checked_number
from .._messages import nearest, refusal, shown
from .._paddle import checked_model, parameters_of, pipeline_of, unwrap


def checked_names(names: Iterable[str]) -> list[str]:
    """Return structured names as a list; raise for other values and without names."""
    if isinstance(names, str) or not hasattr(names, "__iter__") or getattr(names, "ndim", 1) != 1:
        raise refusal(TypeError, "`names` must be an iterable of strings.", names=names)
    names = list(names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"`names` must be an iterable of strings. Received: {shown(name)}")
    if not names:
        raise ValueError("There are no parameters to map. Received: names=[]")
    return names


def check_network(model: Any) -> None:
    """Raise for any object but a network with parameters, and for one stage of a pipeline."""
    if pipeline_of(checked_model(model)) is not None:
        how = "`paddle_ldopt.trainer.stages.map_layers(model)` maps all stages."
        raise refusal(ValueError, f"The model is one stage of a pipeline: {how}", model=type(model).__name__)
    if not model.parameters():
        raise refusal(ValueError, "The model has no parameters to map.", model=type(model).__name__)


def unknown_name(name: str, known: Iterable[str], has_model: bool) -> ValueError:
    """Return the error for a name that is not in a `LayerMap`, which `has_model` or was made from names."""
    advice = "build the map after the model is complete (LoRA, resized embeddings), from the model that is trained"
    if not has_model:
        advice = "a map made by `from_names` has no `name_dict`: use `from_model` to give it to an optimizer"
    return refusal(ValueError, f"The parameter is not in the LayerMap{nearest(name, known)}: {advice}.", name=name)


def check_table_arguments(
    layers: Any, decay: Any, rate: Any, optimizer: Any, has_weight_decay: Any, num_steps: Any
) -> None:
    """Raise for arguments of `LayerMap.table` of another type, that exclude each other, or without effect."""
    if (decay is None) == (optimizer is None):
        raise ValueError(
            "`table` and `plot` take either `layerwise_decay` or `optimizer`. "
            f"Received: layerwise_decay={shown(decay)}, optimizer={type(optimizer).__name__}"
        )
    if optimizer is not None:
        for argument, value in {"learning_rate": rate, "apply_decay_param_fun": has_weight_decay}.items():
            if value is not None:
                raise refusal(ValueError, f"`{argument}` is read from `optimizer`: leave it out.", **{argument: value})
        if not isinstance(unwrap(optimizer), Optimizer):
            raise TypeError(f"`optimizer` must be a Paddle optimizer. Received: optimizer={type(optimizer).__name__}")
        if not parameters_of(optimizer):
            advice = "in a static graph read the rates before `minimize`, from the layers and the decay."
            raise refusal(ValueError, f"The optimizer has no parameters to show: {advice}", parameters=[])
        for param in parameters_of(optimizer):
            layers.layer_of(param.name)  # raises for another model's
        return
    if has_weight_decay is not None and not callable(has_weight_decay):
        raise refusal(TypeError, "`apply_decay_param_fun` must be callable.", apply_decay_param_fun=has_weight_decay)
    if isinstance(rate, LRScheduler):
        return
    if rate is not None:
        checked_number(rate, "learning_rate", kind="a number or an LRScheduler")
    if num_steps is not None:
        idle = "`num_steps` has no effect without a schedule as `learning_rate`."
        raise refusal(ValueError, idle, num_steps=num_steps, learning_rate=rate)
