"""The factored second moment of Adafactor and CAME: means of a matrix's rows and columns instead of all elements.

Paper: Adafactor, Shazeer & Stern, https://arxiv.org/abs/1804.04235 (section 3, Algorithm 1). The last two dimensions
are the matrix, the others a batch of matrices. Vectors and scalars are not factored.

Rules yield sums over the whole tensor (see `rule_optimizer`) and divide them by sizes from the shape of the whole
parameter, `Shard.shape`:

    sums = yield row_col_sums(grad * grad + eps, shard)
    averages = factored_averages("exp_avg_sq", sums, state, shard, beta2)
"""

import math
from collections.abc import Generator
from typing import Any, Optional

import paddle

from ... import _paddle
from ..._messages import refusal
from ..states import COLUMN, ROW
from .arithmetic import add_number, at_least, average, divide_by, multiply_by, times
from .rule_optimizer import RuleOptimizer, checked_rate
from .updates import Values


def is_factored(shape: Any) -> bool:
    """Return whether a parameter of this shape has a factored second moment: its rank is at least 2."""
    return len(shape) >= 2


def factored_kinds(name: str) -> dict[str, str]:
    """Return name -> kind of the states for the row and column means of the average `name`."""
    return {f"{name}_row": ROW, f"{name}_col": COLUMN}


def row_col_sums(matrix: Any, shard: Any) -> list[Any]:
    """Return [sums over the columns, sums over the rows] of [..., R, C], for a rule to yield."""
    return [shard.row_sums(matrix), shard.col_sums(matrix)]


def factored_averages(name: str, sums: Any, state: Values, shard: Any, beta: Any, share: Any = None) -> Values:
    """Return the new states of the `average` of this name: row means [..., R, 1], column means [..., 1, C].

    Overwrites the old ones. `sums` are the whole tensor's `row_col_sums` of the new values.
    """
    new_state = {}
    for part, total, size in zip(factored_kinds(name), sums, (shard.shape[-1], shard.shape[-2])):
        new_state[part] = average(state[part], total / size, beta, share)
    return new_state


def over_sqrt_factored(x: Any, averages: Values, shard: Any) -> Any:
    r"""Return :math:`x / \sqrt{V}` of [..., R, C] for :math:`V_{ij} = row_i \, col_j / \overline{row}` (Algorithm 4).

    `averages` are the means of the whole matrix's rows and columns, above 0; the result is the part in `shard`.
    """
    row, col = averages.values()
    # not rsqrt(row / mean): without a gradient in the row it may be denormal, which Paddle's rsqrt takes for 0
    row = times(row.rsqrt(), _paddle.mean_over(row, [-2], True).sqrt())
    return multiply_by(shard.spread_product(row, col.rsqrt()), x)


def rms(square_sum: Any, shape: Any) -> Any:
    """Return the root of the mean square, given the whole tensor's `square_sum`."""
    return (square_sum / math.prod(shape)).sqrt()


def relative_rate(t: Any, warmup_init: bool) -> Any:
    r"""Return the rate :math:`\min(10^{-2}, 1 / \sqrt t)` of step t, from 1 (Adafactor's section 8).

    With `warmup_init`, :math:`10^{-6} t` replaces :math:`10^{-2}`.
    """
    return paddle.minimum(1e-6 * t if warmup_init else paddle.full_like(t, 1e-2), t.rsqrt())


def factored_update(
    param: Any,
    grad: Any,
    state: Values,
    shard: Any,
    beta2: Any,
    share: Any = None,
    *,
    eps: float,
    clip_threshold: float,
    scale_parameter: bool,
) -> Generator[list[Any], list[Any], tuple[Any, Optional[Any], Values]]:
    r"""Return :math:`u / \max(1, RMS(u) / d)` of :math:`u = g / \sqrt V`, RMS(p), and the new state of V.

    V is the average of :math:`g^2 + \epsilon`, factored for a matrix (Algorithm 4), whole for a vector (Algorithm 5).
    Yields the sums for the row and column means of V and for RMS(p), which is None without `scale_parameter`; then the
    sum for RMS(u).
    """
    shape, square = shard.shape, add_number(grad * grad, eps)
    sums_asked = row_col_sums(square, shard) if is_factored(shape) else []
    if scale_parameter:
        sums_asked.append(shard.square_sum(param))
    sums = (yield sums_asked) if sums_asked else []
    param_rms = rms(sums[-1], shape) if scale_parameter else None

    if is_factored(shape):
        new_state = factored_averages("exp_avg_sq", sums, state, shard, beta2, share)
        u = over_sqrt_factored(grad, new_state, shard)
    else:
        new_state = {"exp_avg_sq": average(state["exp_avg_sq"], square, beta2, share)}
        u = multiply_by(new_state["exp_avg_sq"].rsqrt(), grad)
    (u_square,) = yield [shard.square_sum(u)]
    return divide_by(u, at_least(rms(u_square, shape) / clip_threshold, 1.0)), param_rms, new_state


def scaled_rate(
    lr: Any, t: Any, param_rms: Optional[Any], least: float, *, relative_step: bool, warmup_init: bool
) -> Any:
    r"""Return :math:`\alpha`: `lr`, times the relative rate if set, times :math:`\max(least, RMS(p))` if given."""
    if relative_step:
        lr = lr * relative_rate(t, warmup_init)
    return lr if param_rms is None else lr * at_least(param_rms, least)


class FactoredOptimizer(RuleOptimizer):
    """An optimizer with a factored second moment and the option `relative_step`, which sets the rate from the step."""

    _rate_argument = "learning_rate"

    @property
    def sets_own_rate(self) -> bool:
        """Whether `relative_step` sets the rate."""
        return bool(self._fixed["relative_step"])

    def check_together(self, options: dict[str, Any], group: dict[str, Any]) -> None:
        """Raise ValueError for a group's rate with `relative_step`, or `warmup_init` without it."""
        if options["relative_step"]:
            self._refuse_rate("lr", options["lr"])
        elif options["warmup_init"]:
            wrong = "`warmup_init=True` requires `relative_step=True`."
            raise refusal(ValueError, wrong, relative_step=False, warmup_init=True)

    def _read_rate(self, learning_rate: Any) -> Any:
        return None if learning_rate is None else checked_rate(learning_rate, self._rate_argument)

    def _initial_rate(self, rate: Any, parameters: Any) -> Any:
        argument = self._rate_argument
        if self.sets_own_rate:
            self._refuse_rate(argument, rate)
            return 1.0
        if rate is None:
            wrong = f"`{argument}` must be given with `relative_step=False`."
            raise refusal(ValueError, wrong, **{argument: None}, relative_step=False)
        return rate

    def _refuse_rate(self, argument: str, rate: Any) -> None:
        if rate is not None:
            advice = f"leave out `{argument}`, or give relative_step=False."
            wrong = f"Cannot combine manual `{argument}` and `relative_step=True` options: {advice}"
            raise refusal(ValueError, wrong, **{argument: rate}, relative_step=True)

    def set_lr(self, value: float) -> None:
        """Set the rate; raise RuntimeError with `relative_step`."""
        self._refuse_new_rate(value=value)
        super().set_lr(value)

    def set_lr_scheduler(self, scheduler: Any) -> None:
        """Set the scheduler of the rate; raise RuntimeError with `relative_step`."""
        self._refuse_new_rate(scheduler=scheduler)
        super().set_lr_scheduler(scheduler)

    def _refuse_new_rate(self, **received: Any) -> None:
        if self.sets_own_rate:  # as Paddle does where a scheduler sets the rate
            raise refusal(RuntimeError, "`relative_step` sets the rate from the step.", **received)

    def fused_flags(self, shape: Any, options: dict[str, Any]) -> tuple[str, ...]:
        """Return the flag that depends on a parameter's shape."""
        return ("factored",) if is_factored(shape) else ()
