"""Arithmetic of the rules. Functions with a trailing underscore overwrite their first argument in dygraph.

On a CPU the memory pages of a new tensor cost several times as much as the arithmetic. Static graphs, which cannot
overwrite values, use the operators, with the same rounding.
"""

import math
from typing import Any

import paddle

from ... import _paddle


def plus_(x: Any, y: Any) -> Any:
    """Return x + y for a Tensor or a number y."""
    if not paddle.in_dynamic_mode():
        return x + y
    return _paddle.add_to(x, y) if isinstance(y, paddle.Tensor) else x.scale_(1.0, y)


def times_(x: Any, y: Any) -> Any:
    """Return x * y for a Tensor y."""
    return _paddle.multiply_by(x, y) if paddle.in_dynamic_mode() else x * y


def times(x: Any, factor: Any) -> Any:
    """Return x * factor in a new tensor; the factor is a number, or has one number for each matrix or row.

    A CPU is five times as fast with the larger operand first, unless the factor has shape [].
    """
    return x * factor if getattr(factor, "ndim", 0) else factor * x


def over_(x: Any, y: Any) -> Any:
    """Return x / y for a Tensor y."""
    return _paddle.divide_by(x, y) if paddle.in_dynamic_mode() else x / y


def square_(x: Any) -> Any:
    """Return the squares of x."""
    return times_(x, x)


def average(old: Any, new: Any, keep: Any, share: Any) -> Any:
    """Return keep * old + share * new: with beta and 1 - beta an exponential moving average."""
    return plus_(times(old, keep), times(new, share))


def power(t: Any, exponent: float) -> Any:
    """Return t^exponent in the type of t: Paddle rounds a float exponent to float32."""
    return t ** paddle.full_like(t, exponent)


def root_(x: Any) -> Any:
    """Return the square roots of x; Paddle's vectorized `sqrt` on a CPU returns NaN for inf."""
    return x.rsqrt_().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal()


def root(x: Any) -> Any:
    """Return `root_` in a new tensor."""
    return x.rsqrt().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal()


def one_minus_power(beta: float, t: Any) -> Any:
    """Return 1 - beta^t without cancellation, a relative error of 1e-5 in float32 at beta = 0.999."""
    return -paddle.expm1(t * math.log(beta)) if beta else paddle.ones_like(t)


def adam_moments(state: dict[str, Any], grad: Any, beta1: float, beta2: float) -> dict[str, Any]:
    """Return Adam's new states: the moving averages of the gradient and of its square."""
    v = plus_(beta2 * state["moment2"], times_((1.0 - beta2) * grad, grad))
    return {"moment1": average(state["moment1"], grad, beta1, 1.0 - beta1), "moment2": v}
