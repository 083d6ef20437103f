"""Arithmetic for the tensors that an update rule has made for itself: in dygraph it overwrites its first argument.

The pages of a new tensor cost a CPU several times what the arithmetic on them does. Rounding is that of the operators,
which a graph is made of: there a value cannot be overwritten.
"""

import paddle

__all__ = ["over_", "plus_", "root", "root_", "square_", "times_"]


def plus_(x, y):
    """Return x + y, of a Tensor or a number y."""
    if not paddle.in_dynamic_mode():
        return x + y
    return x.add_(y) if isinstance(y, paddle.Tensor) else x.scale_(1.0, y)


def times_(x, y):
    """Return x * y of a Tensor y."""
    return x.multiply_(y) if paddle.in_dynamic_mode() else x * y


def over_(x, y):
    """Return x / y of a Tensor y."""
    return x.divide_(y) if paddle.in_dynamic_mode() else x / y


def square_(x):
    """Return the squares of x."""
    return x.multiply_(x) if paddle.in_dynamic_mode() else x * x


def root_(x):
    """Return the square roots of x; on a CPU Paddle's own, where it is vectorized, makes NaN of inf."""
    return x.rsqrt_().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal()


def root(x):
    """Return the same as `root_` in a new tensor."""
    return x.rsqrt().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal()
