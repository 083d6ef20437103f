"""Options that several optimizers declare, and checks of their values."""

from typing import Any, Callable

from paddle.regularizer import WeightDecayRegularizer

from .._checks import Option, checked_bool, checked_int, checked_number
from .._messages import refusal


def bool_option(doc: str, **more: Any) -> Option:
    """Return an option that is True or False."""
    return Option(doc=doc, check=checked_bool, **more)


# The options that the base classes read; `AdamWDL` has no batches.
COMMON = {
    "multi_precision": bool_option("keep float32 masters of float16 and bfloat16 parameters"),
    "fused": bool_option("take the step in the C library; None: if possible", optional=True),
    "batch_bytes": Option(
        doc="maximum bytes of parameters updated together", optional=True, check=checked_int, values="an int from 0"
    ),
}


def numbers(*ends: str) -> Callable[[Any, str], tuple[float, ...]]:
    """Return the check of an option that is a tuple of numbers of at least 0, each with the brackets of its range."""

    def check(value: Any, name: str) -> tuple[float, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(ends):
            wrong = ValueError if isinstance(value, (list, tuple)) else TypeError
            raise refusal(wrong, f"`{name}` must be a tuple of {len(ends)} numbers.", **{name: value})
        return tuple(checked_number(v, f"{name}[{i}]", ends=e) for i, (v, e) in enumerate(zip(value, ends)))

    return check


def plain_weight_decay(value: Any, name: str) -> Any:
    """Return 0 for a weight decay of None and any other value unchanged; raise TypeError for a regularizer."""
    if isinstance(value, WeightDecayRegularizer):
        penalty = type(value).__name__
        raise TypeError(
            f"`{name}` must be a number such as 0.01, which decays the weights themselves. {penalty} adds a penalty to "
            f"the gradient, which only Paddle's own optimizers offer. Received: {name}={penalty}"
        )
    return 0.0 if value is None else value
