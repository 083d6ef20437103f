"""Checks of an accumulator's state before it is loaded, and copies of its Tensors."""

from typing import Any

import paddle

from .._checks import checked_bool, checked_number, checked_state, checked_steps
from .._messages import refusal, shown
from .._paddle import dtype_name

_KEYS = {"reduction", "names", "slots", "received", "step", "count", "weight", "synchronized", "gradients"}


def check_state(state: Any, reduction: str) -> None:
    """Raise unless the entries of a state have the right types, are consistent, and of the same reduction."""
    missing = sorted(_KEYS - set(checked_state(state)))
    if missing:
        raise refusal(
            ValueError, f"The state must come from a GradientAccumulator; it lacks {missing}.", keys=list(state)
        )
    if state["reduction"] != reduction:
        needed = f"The state must be of an accumulator with the same `reduction`, {shown(reduction)}."
        raise refusal(ValueError, needed, reduction=state["reduction"])
    slots, step = checked_steps(state["slots"], "slots"), checked_steps(state["step"], "step")
    count = checked_steps(state["count"], "count", least=step)
    checked_number(state["weight"], "weight")
    synchronized = checked_bool(state["synchronized"], "synchronized")
    names, received, sums = state["names"], state["received"], state["gradients"]
    if count > step and not synchronized:
        raise refusal(ValueError, "`count` must equal `step` before `synchronize`.", count=count, step=step)
    for key, listed in (("received", received), ("names", received if names is None else names)):
        if not isinstance(listed, (list, tuple)) or len(listed) != slots:
            size = len(listed) if isinstance(listed, (list, tuple)) else type(listed).__name__
            raise ValueError(f"`{key}` must be a list with an entry for each slot. Received: {key} of {size}, {slots=}")
    if any(received) and not count:
        raise refusal(ValueError, "`count` must be at least 1 where gradients were received.", count=0)
    places = {str(place): flag for place, flag in enumerate(received)}
    if not isinstance(sums, dict) or not {place for place, flag in places.items() if flag} <= set(sums) <= set(places):
        keys = sorted(map(str, sums))[:8] if isinstance(sums, dict) else type(sums).__name__
        needed = "`gradients` must be a dict with the sum of each slot that received a gradient, under its number."
        raise ValueError(f"{needed} Received: gradients of {keys}, {slots=}")
    for place, total in sums.items():
        dtype = getattr(total, "dtype", None)
        if dtype_name(dtype) not in ("float32", "float64"):
            received = f"{type(total).__name__} of {dtype=!s} at {place}"
            raise ValueError(f"`gradients` must be Tensors or arrays of float32 or float64. Received: {received}")


def own_tensor(value: Any) -> Any:
    """Return a copy of a Tensor or array as a Tensor, None for None: sums change in place."""
    return value.clone() if isinstance(value, paddle.Tensor) else value if value is None else paddle.to_tensor(value)
