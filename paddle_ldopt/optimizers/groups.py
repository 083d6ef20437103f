"""Checks of an optimizer's parameters and parameter groups."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import paddle

from .._checks import checked_number
from .._messages import refusal, shown, wrong_type
from .._paddle import flatten_groups, is_sharded, topology

_GROUP_KEYS = {"params", "learning_rate", "grad_clip"}
_LABELS = {"dygraph_key_name", "group", "lr_scale", "name"}  # set by ernie-m, PaddleMIX and timm, without effect


def parameters_to_train(model: Any) -> list[Any]:
    """Return a model's parameters, also frozen ones, except under sharding, whose version 2 refuses them."""
    sharded = is_sharded()
    return [param for param in model.parameters() if not (sharded and param.stop_gradient)]


def is_listed(parameters: Any) -> bool:
    """Return whether `parameters` is an iterable other than a Tensor, an array, a dict or a string."""
    return hasattr(parameters, "__iter__") and not isinstance(parameters, (paddle.Tensor, np.ndarray, dict, str))


def checked_parameters(parameters: Any, options: Iterable[str]) -> Any:
    """Return an optimizer's parameters or groups as lists, or None in a static graph; groups may have `options`."""
    if parameters is None and not paddle.in_dynamic_mode():
        return None
    if not is_listed(parameters):
        raise wrong_type(parameters, "parameters", "a list of parameters or of parameter groups")
    items = list(parameters)
    groups = [_checked_group(item, options) for item in items if isinstance(item, dict)]
    if groups and len(groups) < len(items):
        raise TypeError("`parameters` must hold either parameters or parameter groups. Received: both")
    params_by_name: dict[str, Any] = {}
    for param in flatten_groups(groups) if groups else items:
        if not hasattr(param, "stop_gradient"):
            received = f"{shown(param)} of type {type(param).__name__}"
            raise TypeError(f"`parameters` must hold parameters. Received: {received}")
        if param.name in params_by_name:
            if params_by_name[param.name] is param:
                raise ValueError(f"A parameter is in `parameters` twice. Received: '{param.name}'")
            raise ValueError(
                "Two parameters have the same name, by which Paddle keeps their state: build their models in one "
                f"`paddle.utils.unique_name.guard()`, or in none. Received: two parameters '{param.name}'"
            )
        params_by_name[param.name] = param
    if groups and is_sharded():
        raise ValueError(
            "Paddle's sharding takes a plain list of parameters: use `layers` or `set_param_lr_fun` for rates, "
            "`apply_decay_param_fun` for weight decay, or sharding_degree=1. "
            f"Received: {len(groups)} groups, sharding_degree={topology().get_sharding_parallel_world_size()}"
        )
    return groups or items


def _checked_group(group: dict[str, Any], options: Iterable[str]) -> dict[str, Any]:
    if "params" not in group:
        raise ValueError(f"A parameter group must have 'params'. Received: keys {shown(list(group))}")
    unknown = group.keys() - _GROUP_KEYS - _LABELS - set(options)
    if unknown:
        known = ", ".join(map(repr, sorted({*_GROUP_KEYS, *options})))
        received = ", ".join(sorted(str(key)[:50] for key in unknown)[:8])
        raise ValueError(f"A parameter group may only have the keys {known}. Received: {received}")
    params, rate = group["params"], group.get("learning_rate", 1.0)
    if "lr" in options and group.get("lr") is not None and "learning_rate" in group:
        rates = "either 'lr', its absolute rate, or 'learning_rate', a multiplier of the optimizer's rate"
        raise refusal(ValueError, f"A parameter group takes {rates}, not both.", lr=group["lr"], learning_rate=rate)
    if isinstance(params, (set, str)):
        raise TypeError(f"A group's 'params' must be an ordered collection. Received: {type(params).__name__}")
    if not isinstance(rate, paddle.Tensor):  # a Tensor is Paddle's way to give an absolute rate
        rate = checked_number(rate, "learning_rate", expected="a number: in a group it is a multiplier of the rate")
    scale = checked_number(group.get("lr_scale", 1.0), "lr_scale", expected="a number: it is a label of a group")
    if scale != 1.0 and "learning_rate" not in group and group.get("lr") is None:
        advice = "give the group its 'learning_rate', a multiplier of the optimizer's."
        raise refusal(ValueError, f"'lr_scale' is a label and has no effect: {advice}", lr_scale=group["lr_scale"])
    given = {"learning_rate": rate} if "learning_rate" in group else {}
    return {**group, **given, "params": params if hasattr(params, "stop_gradient") else list(params)}
