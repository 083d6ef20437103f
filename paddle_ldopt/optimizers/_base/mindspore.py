"""Rates, decays and parameter groups as MindSpore's optimizers take them, read once and checked.

A number stays a float, a Paddle scheduler stays what it is, and all that advances with the optimizer's own steps (the
elements of a Tensor or an iterable, a callable of the step) becomes a `Schedule`.
"""

import warnings
from collections.abc import Iterable

import numpy as np
import paddle
from paddle.optimizer.lr import LRScheduler
from paddle.regularizer import WeightDecayRegularizer

from ..._checks import checked_number, plain_number, shown
from .groups import is_listed
from .rule_optimizer import checked_decay

__all__ = ["Schedule", "as_list", "decay_or_schedule", "is_convolution", "rate_or_schedule", "read_groups"]


class Schedule:
    """A number that depends on how many steps the optimizer has taken: element i of a sequence, or a function of i."""

    def __init__(self, source, argument):
        self.source, self.argument = source, argument

    def __call__(self, step):
        if callable(self.source):
            return checked_number(self.source(step), f"{self.argument}({step})")
        if step >= len(self.source):
            raise ValueError(
                f"The schedule given as `{self.argument}` has run out: it has {len(self.source)} values, and this is "
                f"step {step + 1}. Give a value for every step, or a callable of the step. "
                f"Received: {self.argument}={shown(self)}"
            )
        return self.source[step]

    def reported(self, step):
        """Return the value at a step, or the last one if there is none any more."""
        return self(step if callable(self.source) else min(step, len(self.source) - 1))

    def __repr__(self):
        return repr(self.source) if callable(self.source) else f"[{', '.join(f'{v:g}' for v in self.source[:3])}, ...]"


def rate_or_schedule(value, argument):
    """Return a rate as a float, an `LRScheduler` or a schedule of our own; raise if it is none."""
    if isinstance(value, LRScheduler):
        return value
    if isinstance(value, (paddle.Tensor, np.ndarray)):
        if value.ndim > 1:
            raise ValueError(
                f"`{argument}` must have at most one dimension. Received: {argument} of shape {list(value.shape)}"
            )
        value = value.tolist()
    value = plain_number(value)
    if callable(value):
        return Schedule(value, argument)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict, set, frozenset)):
        values = [plain_number(element) for element in value]
        if any(isinstance(element, (paddle.Tensor, dict)) for element in values):
            raise TypeError(
                f"`{argument}` must hold numbers; parameters go to `parameters`, or to `params` as in MindSpore, by "
                f"name. Received: {argument}=[a {type(values[0]).__name__}, ...]"
            )
        if not values:
            raise ValueError(f"`{argument}` must have a value for every step. Received: {argument}=[]")
        return Schedule([checked_number(v, f"{argument}[{i}]", 0.0, ends="[)") for i, v in enumerate(values)], argument)
    kind = "a number, a Tensor, an iterable of numbers, an LRScheduler or a callable of the step"
    return checked_number(value, argument, kind=kind)


def decay_or_schedule(value, argument="weight_decay"):
    """Return a weight decay as a float, 0 for None, or as a schedule of our own; raise if it is neither."""
    if callable(value) and not isinstance(value, WeightDecayRegularizer):
        return Schedule(value, argument)
    return checked_decay(value, argument, kind="a number or a callable of the step")


def read_groups(parameters):
    """Return the parameters or groups, with each group's rate and decay read, and the update order or None."""
    if not is_listed(parameters):
        return parameters, None
    parameters = list(parameters)
    kinds = {"dict" if isinstance(item, dict) else "parameter" for item in parameters}
    if paddle.in_dynamic_mode() and not all(isinstance(item, (paddle.Tensor, dict)) for item in parameters):
        wrong = next(item for item in parameters if not isinstance(item, (paddle.Tensor, dict)))
        raise TypeError(
            f"`parameters` must hold parameters or dicts. Received: an element of type {type(wrong).__name__}"
        )
    if len(kinds) > 1:
        raise TypeError("`parameters` must hold either parameters or dicts. Received: both")
    if kinds != {"dict"}:
        return parameters, None
    groups, orders = [], []
    for group in parameters:
        if "order_params" in group:
            orders.append(group)
            continue
        group = dict(group)
        if "params" in group and not isinstance(group["params"], (paddle.Tensor, set)):  # Paddle refuses sets
            group["params"] = list(group["params"])
        if group.get("lr") is not None:
            group["lr"] = rate_or_schedule(group["lr"], "lr")
        if "weight_decay" in group:
            group["weight_decay"] = decay_or_schedule(group["weight_decay"])
        if group.get("grad_centralization") is True and not any(
            is_convolution(p.shape) for p in as_list(group.get("params", []))
        ):
            warnings.warn("'grad_centralization' has no effect on a group without a convolution's weight", stacklevel=4)
        groups.append(group)
    return groups, read_order(orders, groups)


def read_order(orders, groups):
    """Return the parameters in the order asked for, None if none was; raise unless it lists all parameters once."""
    if not orders:
        return None
    if len(orders) > 1 or len(orders[0]) > 1:
        keys = [key for order in orders for key in order]
        raise ValueError(f"'order_params' goes into one dict of its own. Received: keys {shown(keys)}")
    order = orders[0]["order_params"]
    if not isinstance(order, Iterable) or isinstance(order, (paddle.Tensor, str, dict)):
        raise TypeError(f"'order_params' must be a list of parameters. Received: {type(order).__name__}")
    order = list(order)
    wrong = [type(item).__name__ for item in order if not isinstance(item, paddle.Tensor)]
    if wrong:
        raise TypeError(f"'order_params' must hold parameters. Received: an element of type {wrong[0]}")
    names = [param.name for param in order]
    known = [param.name for group in groups for param in as_list(group.get("params", []))]
    for what, found in (
        ("lists parameters that are in no group", set(names) - set(known)),
        ("lacks parameters of the groups", set(known) - set(names)),
        ("lists parameters twice", {n for n in names if names.count(n) > 1}),
    ):
        if found:
            raise ValueError(
                "'order_params' must list the parameters of all groups, each once. "
                f"Received: an order that {what}: {', '.join(sorted(found))}"
            )
    return order


def as_list(params):
    """Return the parameters of a group as a list: Paddle takes a single one too."""
    return [params] if isinstance(params, paddle.Tensor) else list(params)


def is_convolution(shape):
    """Say whether a weight of this shape is a 2-D or 3-D convolution's: [out, in, h, w] or [out, in, d, h, w]."""
    return len(shape) in (4, 5)
