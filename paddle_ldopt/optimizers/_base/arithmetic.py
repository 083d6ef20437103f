"""Arithmetic for the tensors that an update rule has made for itself: in dygraph it overwrites its first argument.

The pages of a new tensor cost a CPU several times what the arithmetic on them does. Rounding is that of the operators,
which a graph is made of: there a value cannot be overwritten.
"""

import math
from typing import Any

import paddle

from ... import _paddle

__all__ = ["average", "one_minus_power", "over_", "plus_", "power", "root", "root_", "square_", "times", "times_"]


def plus_(x: Any, y: Any) -> Any:
    """Return x + y, of a Tensor or a number y."""
    if not paddle.in_dynamic_mode():
        return x + y
    return _paddle.add_to(x, y) if isinstance(y, paddle.Tensor) else x.scale_(1.0, y)


def times_(x: Any, y: Any) -> Any:
    """Return x * y of a Tensor y."""
    return _paddle.multiply_by(x, y) if paddle.in_dynamic_mode() else x * y


def times(x: Any, factor: Any) -> Any:
    """Return x * factor in a new tensor, of a factor with fewer elements: a number, or one for each matrix or row.

    A CPU is five times as fast with the larger operand first, unless the factor is of shape [].
    """
    return x * factor if getattr(factor, "ndim", 0) else factor * x


def over_(x: Any, y: Any) -> Any:
    """Return x / y of a Tensor y."""
    return _paddle.divide_by(x, y) if paddle.in_dynamic_mode() else x / y


def square_(x: Any) -> Any:
    """Return the squares of x."""
    return times_(x, x)


def average(old: Any, new: Any, keep: Any, share: Any) -> Any:
    """Return keep * old + share * new: an exponential moving average, where the two are beta and 1 - beta."""
    return plus_(times(old, keep), times(new, share))


def power(t: Any, exponent: float) -> Any:
    """Return t^exponent in the type of t: Paddle would round a plain exponent to float32."""
    return t ** paddle.full_like(t, exponent)


def root_(x: Any) -> Any:
    """Return the square roots of x; on a CPU Paddle's own, where it is vectorized, makes NaN of inf."""
    return x.rsqrt_().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal()


def root(x: Any) -> Any:
    """Return the same as `root_` in a new tensor."""
    return x.rsqrt().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal()


def one_minus_power(beta: float, t: Any) -> Any:
    """Return 1 - beta^t without the cancellation that would cost float32 a relative 1e-5 at beta = 0.999."""
    return -paddle.expm1(t * math.log(beta)) if beta else paddle.ones_like(t)
