"""MindSpore's "order_params", a dict beside the parameter groups."""

from typing import Any

import paddle

from ..._messages import shown
from ..._paddle import flatten_groups
from ..groups import is_listed


def without_order(parameters: Any) -> Any:
    """Return the parameters or groups without the dict of "order_params", which is checked and has no effect."""
    if not is_listed(parameters):
        return parameters
    groups: list[Any] = []
    orders: list[Any] = []
    for group in parameters:
        ordered = isinstance(group, dict) and "order_params" in group
        if isinstance(group, dict) and is_listed(group.get("params")) and not isinstance(group["params"], set):
            group = {**group, "params": list(group["params"])}  # an iterator is read once
        (orders if ordered else groups).append(group)
    if orders:
        _check_order(orders, groups)
    return groups


def _check_order(orders: list[Any], groups: list[Any]) -> None:
    if len(orders) > 1 or len(orders[0]) > 1:
        keys = [key for order in orders for key in order]
        raise ValueError(f"'order_params' must be the only key of one dict. Received: keys {shown(keys)}")
    order_params = orders[0]["order_params"]
    order = list(order_params) if is_listed(order_params) else [order_params]
    if not is_listed(order_params) or not all(isinstance(item, paddle.Tensor) for item in order):
        raise TypeError(f"'order_params' must be a list of parameters. Received: order_params={shown(order_params)}")
    names = [param.name for param in order]
    group_names = [p.name for p in flatten_groups(g for g in groups if isinstance(g, dict) and "params" in g)]
    for fault, faulty in (
        ("lists parameters that are in no group", set(names) - set(group_names)),
        ("lacks parameters of the groups", set(group_names) - set(names)),
        ("lists parameters twice", {n for n in names if names.count(n) > 1}),
    ):
        if faulty:
            wrong = "'order_params' must list the parameters of all groups, each once."
            raise ValueError(f"{wrong} Received: an order that {fault}: {', '.join(sorted(faulty))}")
