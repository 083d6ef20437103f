"""MindSpore's "order_params": the order in which parameters are updated."""

from typing import Any, Optional

import paddle

from ..._messages import shown
from ..._paddle import flatten_groups
from ..groups import is_listed

__all__ = ["without_order"]


def without_order(parameters: Any) -> tuple[Any, Optional[list[Any]]]:
    """Return the parameters or groups without the dict of "order_params", and the order in it (None without one)."""
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
    """Return the parameters in the given order; raise unless the order lists every parameter once."""
    if not orders:
        return None
    if len(orders) > 1 or len(orders[0]) > 1:
        keys = [key for order in orders for key in order]
        raise ValueError(f"'order_params' must be the only key of one dict. Received: keys {shown(keys)}")
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
