"""Arithmetic of the rules: values whose memory is reused, averages, roots and powers."""

import math
from typing import Any, Optional

import paddle

from ... import _paddle


class Temporary:
    """An intermediate result of a rule, whose memory the next operation takes for its own result.

    On a CPU the memory pages of a new tensor cost several times as much as the arithmetic. The result of an operation
    is a Temporary again, and `tensor` its value. A Temporary can be an operand only once, because dygraph overwrites
    it. The other operand is a Tensor, a Temporary or, of `+`, a number.
    """

    __slots__ = ("_is_overwritten", "_tensor")

    def __init__(self, tensor: Any) -> None:
        self._tensor, self._is_overwritten = tensor, False

    @property
    def tensor(self) -> Any:
        """The value, until an operation overwrites it."""
        if self._is_overwritten:
            raise RuntimeError("A Temporary can be an operand only once. Received: an overwritten Temporary")
        return self._tensor

    def _take(self) -> Any:
        tensor, self._is_overwritten = self.tensor, True
        return tensor

    def __add__(self, other: Any) -> "Temporary":
        x, y = self._take(), _operand(other)
        if not paddle.in_dynamic_mode():
            return Temporary(x + y)
        return Temporary(_paddle.add_to(x, y) if isinstance(y, paddle.Tensor) else x.scale_(1.0, y))

    def __mul__(self, other: Any) -> "Temporary":
        x, y = self._take(), _operand(other)
        return Temporary(_paddle.multiply_by(x, y) if paddle.in_dynamic_mode() else x * y)

    def __truediv__(self, other: Any) -> "Temporary":
        x, y = self._take(), _operand(other)
        return Temporary(_paddle.divide_by(x, y) if paddle.in_dynamic_mode() else x / y)

    def square(self) -> "Temporary":
        """Return the squares."""
        return self * self.tensor

    def sqrt(self) -> "Temporary":
        """Return the square roots; Paddle's vectorized `sqrt` on a CPU returns NaN for inf."""
        x = self._take()
        return Temporary(x.rsqrt_().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal())


def _operand(value: Any) -> Any:
    return value._take() if isinstance(value, Temporary) else value


def times(x: Any, factor: Any) -> Any:
    """Return x * factor in a new tensor; the factor is a number, or has one number for each matrix or row.

    A CPU is five times as fast with the larger operand first, unless the factor has shape [].
    """
    return x * factor if getattr(factor, "ndim", 0) else factor * x


def average(old: Any, new: Any, beta: Any, share: Optional[Any] = None) -> Any:
    """Return the exponential moving average beta * old + (1 - beta) * new; `share` is a more exact 1 - beta."""
    return (Temporary(times(old, beta)) + times(new, 1 - beta if share is None else share)).tensor


def adam_moments(state: dict[str, Any], grad: Any, beta1: float, beta2: float) -> tuple[Any, Any]:
    """Return Adam's new moments m and v: the averages of the gradient and of its square."""
    v = Temporary(beta2 * state["moment2"]) + Temporary((1 - beta2) * grad) * grad
    return average(state["moment1"], grad, beta1), v.tensor


def after_weight_decay(param: Any, rate: Any) -> Any:
    """Return param - rate * param: decoupled weight decay."""
    return (Temporary(times(param, -rate)) + param).tensor


def power(t: Any, exponent: float) -> Any:
    """Return t^exponent in the type of t: Paddle rounds a float exponent to float32."""
    return t ** paddle.full_like(t, exponent)


def root(x: Any) -> Any:
    """Return the square roots of x in a new tensor; see `Temporary.sqrt`."""
    return x.rsqrt().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal()


def one_minus_power(beta: float, t: Any) -> Any:
    """Return 1 - beta^t without cancellation, a relative error of 1e-5 in float32 at beta = 0.999."""
    return -paddle.expm1(t * math.log(beta)) if beta else paddle.ones_like(t)
