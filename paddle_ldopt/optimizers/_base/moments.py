"""The moments of Adam, which Lamb and AdamWeightDecay share."""

from typing import Any

from .arithmetic import average, plus_, times_

__all__ = ["adam_moments"]


def adam_moments(state: dict[str, Any], grad: Any, beta1: float, beta2: float) -> dict[str, Any]:
    """Return the new states: the moving averages of the gradient and of its square."""
    v = plus_(beta2 * state["moment2"], times_((1.0 - beta2) * grad, grad))
    return {"moment1": average(state["moment1"], grad, beta1, 1.0 - beta1), "moment2": v}
