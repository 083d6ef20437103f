"""The target of the reduced gradients: the parameters to write them into."""

from typing import Any, Optional

import paddle

from .._messages import refusal, wrong_type
from .._paddle import parameters_of
from .reading import described, trainable


def checked_target(target: Any, names: Optional[list[str]], sums: list[Any]) -> list[Any]:
    """Return the parameters of a list or a model; raise unless they fit the sums."""
    if target is None:
        since = "the accumulator was called with lists, or never with the model since it was built or loaded"
        raise refusal(ValueError, f"`target` must be given: {since}.", target=None)
    if isinstance(target, paddle.nn.Layer):
        found, target = trainable(target)
        if names is not None and found != names:
            message = "`target` must be the model that produced the gradients."
            received = f"{described(found, len(target))}, for gradients of {described(names, len(sums))}"
            raise ValueError(f"{message} Received: {received}")
    listed = hasattr(target, "__iter__") and not isinstance(target, paddle.Tensor)
    parameters = list(target) if listed else []
    if not listed or not all(isinstance(param, paddle.Tensor) for param in parameters):
        raise wrong_type(target, "target", "a list of parameters or a paddle.nn.Layer")
    if len(parameters) != len(sums):
        raise ValueError(f"`target` must hold {len(sums)} parameters. Received: {len(parameters)}")
    for place, (param, total) in enumerate(zip(parameters, sums)):
        if total is not None and list(param.shape) != list(total.shape):
            received = f"shape={list(param.shape)} for a gradient of shape {list(total.shape)}, at {place}"
            message = "`target` must hold the parameters of these gradients."
            raise ValueError(f"{message} Received: {received}")
    return parameters


def optimizers_parameters(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer; raise TypeError for anything else."""
    if not callable(getattr(optimizer, "step", None)) or not hasattr(optimizer, "clear_grad"):
        raise wrong_type(optimizer, "optimizer", "a Paddle optimizer")
    return parameters_of(optimizer)


def target_of(held: list[Any], names: Optional[list[str]], own_names: Optional[list[str]]) -> Optional[list[Any]]:
    """Return the target among an optimizer's parameters: the trainable ones for a list, or None if unknown.

    `own_names` are Paddle's names of the target, from another process that has seen the model.
    """
    if names is None:
        return [param for param in held if not param.stop_gradient]
    own = {param.name: param for param in held}
    return [own[name] for name in own_names] if own_names and own.keys() >= set(own_names) else None


def check_trains(held: list[Any], target: list[Any]) -> None:
    """Raise ValueError if an optimizer has parameters, but no parameter of the target."""
    names = [param.name for param in target]
    if held and {param.name for param in held}.isdisjoint(names):
        needed = "`optimizer` must train the model that produced the gradients, or its step has no effect"
        received = f"optimizer with none of {len(names)} parameters, such as '{names[0]}'"
        raise ValueError(f"{needed}. Received: {received}")
