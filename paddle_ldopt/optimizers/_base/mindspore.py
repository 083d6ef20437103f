"""Rates, decays and the order of updates as MindSpore's optimizers take them, read once and checked.

A number stays a float, a Paddle scheduler stays what it is. Values that advance with the optimizer's own steps (the
elements of a Tensor or an iterable, a callable of the step) become a `StepFunction`.
"""

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
import paddle
from paddle.optimizer.lr import LRScheduler
from paddle.regularizer import WeightDecayRegularizer

from ..._checks import checked_number, plain_number
from ..._messages import refusal, shown
from ..._paddle import flatten_groups
from ..declaration import plain_weight_decay
from ..groups import is_listed

__all__ = ["StepFunction", "decay_or_function", "is_convolution", "rate_or_function", "without_order"]


class StepFunction:
    """A number that depends on how many steps the optimizer has taken: element i of a sequence, or a function of i."""

    def __init__(self, source: Any, argument: str) -> None:
        self.source, self.argument = source, argument

    def __call__(self, step: int) -> float:
        if callable(self.source):
            return checked_number(self.source(step), f"{self.argument}({step})")
        if step >= len(self.source):
            over = f"has run out: it has {len(self.source)} values, and this is step {step + 1}"
            advice = "Give a value for every step, or a callable of the step."
            wrong = f"The schedule given as `{self.argument}` {over}. {advice}"
            raise refusal(ValueError, wrong, **{self.argument: self})
        return float(self.source[step])

    def reported(self, step: int) -> float:
        """Return the value at a step, or the last one if there is none any more."""
        return self(step if callable(self.source) else min(step, len(self.source) - 1))

    def __repr__(self) -> str:
        return repr(self.source) if callable(self.source) else f"[{', '.join(f'{v:g}' for v in self.source[:3])}, ...]"


def rate_or_function(value: Any, argument: str) -> Any:
    """Return a rate as a float, an `LRScheduler` or a `StepFunction`; raise if it is none."""
    if isinstance(value, LRScheduler):
        return value
    if isinstance(value, (paddle.Tensor, np.ndarray)):
        if value.ndim > 1:
            received = f"{argument} of shape {list(value.shape)}"
            raise ValueError(f"`{argument}` must have at most one dimension. Received: {received}")
        value = value.tolist()
    value = plain_number(value)
    if callable(value):
        return StepFunction(value, argument)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict, set, frozenset)):
        values = [plain_number(element) for element in value]
        if any(isinstance(element, (paddle.Tensor, dict)) for element in values):
            advice = "parameters go to `parameters`, or to `params` as in MindSpore, by name."
            raise TypeError(
                f"`{argument}` must hold numbers; {advice} Received: {argument}=[a {type(values[0]).__name__}, ...]"
            )
        if not values:
            raise ValueError(f"`{argument}` must have a value for every step. Received: {argument}=[]")
        return StepFunction([checked_number(v, f"{argument}[{i}]") for i, v in enumerate(values)], argument)
    kind = "a number, a Tensor, an iterable of numbers, an LRScheduler or a callable of the step"
    return checked_number(value, argument, kind=kind)


def decay_or_function(value: Any, argument: str) -> Any:
    """Return a weight decay as a float, 0 for None, or as a `StepFunction`; raise if it is neither."""
    if callable(value) and not isinstance(value, WeightDecayRegularizer):
        return StepFunction(value, argument)
    return checked_number(plain_weight_decay(value, argument), argument, kind="a number or a callable of the step")


def without_order(parameters: Any) -> tuple[Any, Optional[list[Any]]]:
    """Return parameters or groups without the dict of "order_params", and the order of updates that it has or None."""
    if not is_listed(parameters):
        return parameters, None
    groups: list[Any] = []
    orders: list[Any] = []
    for group in parameters:
        ordered = isinstance(group, dict) and "order_params" in group
        if isinstance(group, dict) and is_listed(group.get("params")) and not isinstance(group["params"], set):
            group = {**group, "params": list(group["params"])}  # an iterator is read once
        (orders if ordered else groups).append(group)
    return groups, _read_order(orders, groups)


def _read_order(orders: list[Any], groups: list[Any]) -> Optional[list[Any]]:
    """Return the parameters in the order asked for; raise unless it lists all parameters once."""
    if not orders:
        return None
    if len(orders) > 1 or len(orders[0]) > 1:
        keys = [key for order in orders for key in order]
        raise ValueError(f"'order_params' goes into one dict of its own. Received: keys {shown(keys)}")
    given = orders[0]["order_params"]
    order = list(given) if is_listed(given) else [given]
    if not is_listed(given) or not all(isinstance(item, paddle.Tensor) for item in order):
        raise TypeError(f"'order_params' must be a list of parameters. Received: order_params={shown(given)}")
    names = [param.name for param in order]
    known = [p.name for p in flatten_groups(g for g in groups if isinstance(g, dict) and "params" in g)]
    for fault, found in (
        ("lists parameters that are in no group", set(names) - set(known)),
        ("lacks parameters of the groups", set(known) - set(names)),
        ("lists parameters twice", {n for n in names if names.count(n) > 1}),
    ):
        if found:
            wrong = "'order_params' must list the parameters of all groups, each once."
            raise ValueError(f"{wrong} Received: an order that {fault}: {', '.join(sorted(found))}")
    return order


def is_convolution(shape: Any) -> bool:
    """Return whether a weight has the shape of a 2-D or 3-D convolution's: [out, in, h, w] or [out, in, d, h, w]."""
    return len(shape) in (4, 5)
