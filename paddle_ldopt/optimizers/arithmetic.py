"""Arithmetic of the rules, named as in the papers; a trailing underscore means that the first argument is overwritten.

On a CPU the memory pages of a new tensor cost several times as much as the arithmetic. So a function reuses the memory
of its intermediate results, except in a static graph, which has none.
"""

import math
from typing import Any, Optional

import paddle
from paddle import _C_ops

from .._compat import flags, is_float64


def add_(x: Any, y: Any) -> Any:
    """Return x + y; overwrites x. y is a Tensor or a float."""
    if not paddle.in_dynamic_mode():
        return x + y
    return _C_ops.scale_(x, 1.0, y, True) if isinstance(y, float) else _C_ops.add_(x, y)


def subtract_(x: Any, y: Any) -> Any:
    """Return x - y; overwrites x."""
    return _C_ops.subtract_(x, y) if paddle.in_dynamic_mode() else x - y


def multiply_(x: Any, y: Any) -> Any:
    """Return x * y; overwrites x. y is a Tensor or a float."""
    if not paddle.in_dynamic_mode():
        return x * y
    return _C_ops.scale_(x, y, 0.0, True) if isinstance(y, float) else _C_ops.multiply_(x, y)


def divide_(x: Any, y: Any) -> Any:
    """Return x / y; overwrites x."""
    return _C_ops.divide_(x, y) if paddle.in_dynamic_mode() else x / y


def maximum(x: Any, least: float) -> Any:
    """Return max(x, least)."""
    return _C_ops.clip(x, least, math.inf)


def ema_(old: Any, new: Any, beta: Any, one_minus_beta: Optional[Any] = None) -> Any:
    """Return beta * old + (1 - beta) * new; overwrites old. `one_minus_beta` is a more exact 1 - beta."""
    new = new * (1 - beta if one_minus_beta is None else one_minus_beta)
    return add_(multiply_(old, beta), new)


def ema_of_squares_(old: Any, x: Any, beta: float) -> Any:
    """Return beta * old + (1 - beta) * x^2; overwrites old."""
    return add_(multiply_(old, beta), multiply_(x * (1 - beta), x))


def square_(x: Any) -> Any:
    """Return x^2; overwrites x."""
    return multiply_(x, x)


def power(t: Any, exponent: float) -> Any:
    """Return t^exponent in the type of t: Paddle rounds a float exponent to float32."""
    return t ** (paddle.full_like(t, exponent) if is_float64(t) else exponent)


def sqrt(x: Any) -> Any:
    """Return the square roots of x; Paddle's vectorized `sqrt` on a CPU returns NaN for inf."""
    if flags()["FLAGS_check_nan_inf"]:  # the `rsqrt` of 0 would stop the step
        return x.sqrt()
    return x.rsqrt().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal()


def sqrt_(x: Any) -> Any:
    """Return the `sqrt` of x; overwrites x."""
    if not paddle.in_dynamic_mode() or flags()["FLAGS_check_nan_inf"]:
        return sqrt(x)
    return x.rsqrt_().reciprocal_()


def one_minus_power(beta: float, t: Any) -> Any:
    """Return 1 - beta^t without cancellation, a relative error of 1e-5 in float32 at beta = 0.999."""
    return -paddle.expm1(t * math.log(beta)) if beta else paddle.ones_like(t)
