"""Arithmetic of the rules, named as in the papers.

On a CPU the memory pages of a new tensor cost several times as much as the arithmetic. So a function uses the memory of
its intermediate results again, and of an argument that its docstring says it overwrites. A static graph has no memory
to use again.
"""

import math
from typing import Any, Optional

import paddle

from ... import _paddle


def add_to(x: Any, y: Any) -> Any:
    """Return x + y; overwrites x. y is a Tensor."""
    return _paddle.add_to(x, y) if paddle.in_dynamic_mode() else x + y


def multiply_by(x: Any, y: Any) -> Any:
    """Return x * y; overwrites x. y is a Tensor or a float."""
    if not paddle.in_dynamic_mode():
        return x * y
    return _paddle.scale_to(x, y, 0.0, True) if isinstance(y, float) else _paddle.multiply_by(x, y)


def divide_by(x: Any, y: Any) -> Any:
    """Return x / y; overwrites x."""
    return _paddle.divide_by(x, y) if paddle.in_dynamic_mode() else x / y


def add_number(x: Any, eps: float) -> Any:
    """Return x + eps; overwrites x."""
    return _paddle.scale_to(x, 1.0, eps, True) if paddle.in_dynamic_mode() else x + eps


def times(x: Any, factor: Any) -> Any:
    """Return x * factor in a new tensor; the factor is a number, or has one number for each matrix or row.

    A CPU is five times as fast with the larger operand first, unless the factor has shape [].
    """
    return x * factor if getattr(factor, "ndim", 0) else factor * x


def at_least(x: Any, least: float) -> Any:
    """Return max(x, least)."""
    return _paddle.clip(x, least, math.inf)


def average(old: Any, new: Any, beta: Any, share: Optional[Any] = None) -> Any:
    """Return the exponential moving average beta * old + (1 - beta) * new; overwrites old.

    `share` is a more exact 1 - beta.
    """
    return add_to(multiply_by(old, beta), times(new, 1 - beta if share is None else share))


def adam_moments(state: dict[str, Any], grad: Any, beta1: float, beta2: float) -> tuple[Any, Any]:
    """Return Adam's new moments m and v: the averages of the gradient and of its square; overwrites the old ones."""
    v = add_to(multiply_by(state["moment2"], beta2), multiply_by(times(grad, 1 - beta2), grad))
    return average(state["moment1"], grad, beta1), v


def bias_corrected(moment: Any, beta: float, t: Any) -> Any:
    """Return moment / (1 - beta^t)."""
    return moment / one_minus_power(beta, t)


def adam_direction(m_hat: Any, v_hat: Any, eps: float) -> Any:
    """Return m_hat / (sqrt(v_hat) + eps); overwrites both."""
    root_v = v_hat.rsqrt_().reciprocal_() if paddle.in_dynamic_mode() else root(v_hat)
    return divide_by(m_hat, add_number(root_v, eps))


def minus_adam_step(param: Any, rate: Any, m: Any, v: Any, eps: float) -> Any:
    """Return param - rate * m / (sqrt(v) + eps)."""
    return add_to(divide_by(times(m, -rate), add_number(root(v), eps)), param)


def minus_step(param: Any, rate: Any, step: Any) -> Any:
    """Return param - rate * step; with `param` as its own step, decoupled weight decay."""
    return add_to(times(step, -rate), param)


def minus_adapted_step(param: Any, rate: Any, u: Any) -> Any:
    """Return param - rate * u; overwrites u."""
    return add_to(multiply_by(u, -rate), param)


def instability(u: Any, m: Any, eps: float) -> Any:
    """Return (u - m)^2 + eps: the less, the more confidence CAME has in the step."""
    difference = u - m
    return add_number(multiply_by(difference, difference), eps)


def power(t: Any, exponent: float) -> Any:
    """Return t^exponent in the type of t: Paddle rounds a float exponent to float32."""
    return t ** paddle.full_like(t, exponent)


def root(x: Any) -> Any:
    """Return the square roots of x; Paddle's vectorized `sqrt` on a CPU returns NaN for inf."""
    return x.rsqrt().reciprocal_() if paddle.in_dynamic_mode() else x.rsqrt().reciprocal()


def one_minus_power(beta: float, t: Any) -> Any:
    """Return 1 - beta^t without cancellation, a relative error of 1e-5 in float32 at beta = 0.999."""
    return -paddle.expm1(t * math.log(beta)) if beta else paddle.ones_like(t)
