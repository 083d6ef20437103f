"""Moving averages, and the factored second moment of Adafactor and CAME. A trailing underscore: in place.

Paper: Adafactor, https://arxiv.org/abs/1804.04235 (section 3, Algorithm 1): the means of a matrix's rows and columns
replace all elements. The last two dimensions are the matrix. Vectors are not factored.

On a CPU the memory pages of a new tensor cost several times as much as the arithmetic, so rules reuse memory.
"""

import math
from collections.abc import Generator
from typing import Any, Optional

import paddle
from paddle import Tensor, _C_ops

from .._checks import refusal
from .._compat import flags
from .base import RuleOptimizer
from .states import COLUMN, ELEMENT, ROW, STEP, USED_LR, State, Values


def ema_(old: Any, new: Any, beta: Any, one_minus_beta: Optional[Any] = None) -> Any:
    """Return beta * old + (1 - beta) * new, with a more exact 1 - beta if given."""
    new = new * (1 - beta if one_minus_beta is None else one_minus_beta)
    return (old.scale_(beta) if isinstance(beta, float) else old.multiply_(beta)).add_(new)


def ema_of_squares_(old: Any, x: Any, beta: float) -> Any:
    return old.scale_(beta).add_((x * (1 - beta)).multiply_(x))


def one_minus_power(beta: float, t: Any) -> Any:
    """Return 1 - beta^t without cancellation, which costs 1e-5 in float32 at beta = 0.999."""
    return -paddle.expm1(t * math.log(beta)) if beta else paddle.ones_like(t)


def sqrt(x: Any) -> Any:
    """Return the roots of x; Paddle's vectorized `sqrt` on a CPU returns NaN for inf."""
    if flags()["FLAGS_check_nan_inf"]:  # the `rsqrt` of 0 would stop the step
        return x.sqrt()
    return x.rsqrt().reciprocal_()


# ---- the factored second moment


def factored_states(name: str, shape: Any) -> dict[str, State]:
    return {f"{name}_row": State(ROW), f"{name}_col": State(COLUMN)} if len(shape) >= 2 else {name: State(ELEMENT)}


def factored_ema(
    name: str, new: Any, state: Values, shard: Any, one_minus_beta: Any
) -> Generator[list[Any], list[Any], Values]:
    """Return the new state of a moving average; of matrices, of the means of rows and columns."""
    beta = 1 - one_minus_beta
    if len(shard.shape) < 2:
        return {name: ema_(state[name], new, beta, one_minus_beta)}
    asked = [shard.leading_sums(new, len(shard.shape) - 1), shard.col_sums(new)]
    del new  # no memory as large as the parameter while other processes are awaited
    row, col = yield asked
    *_, rows, cols = shard.shape
    return {
        f"{name}_row": ema_(state[f"{name}_row"], row, beta, one_minus_beta / cols),
        f"{name}_col": ema_(state[f"{name}_col"], col, beta, one_minus_beta / rows),
    }


def divided_by_root(x: Any, averages: Values, shard: Any) -> Any:
    r"""Return :math:`x / \sqrt V`, where :math:`V_{ij} = row_i \, col_j / \overline{row}` for matrices (Algorithm 4).

    `averages` is a `factored_ema` of values above 0.
    """
    if len(averages) == 1:
        (v,) = averages.values()
        return v.rsqrt().multiply_(x)
    row, col = averages.values()
    # not rsqrt(row / mean): without a gradient in the row it may be denormal, which Paddle's rsqrt takes for 0
    row = row.rsqrt() * _C_ops.mean(row, [-2], True).sqrt()
    return shard.spread_product(row, col.rsqrt()).multiply_(x)


def clipped_(u: Any, param: Any, clip_threshold: float, scale_parameter: bool, shard: Any) -> Any:
    r"""Return :math:`u / \max(1, \mathrm{RMS}(u) / clip\_threshold)` (section 6) and RMS(param), if asked for."""
    size = math.prod(shard.shape)
    asked = [shard.square_sum(u), shard.square_sum(param)] if scale_parameter else [shard.square_sum(u)]
    squares = yield asked
    excess = _C_ops.clip((squares[0] / size).sqrt() / clip_threshold, 1.0, math.inf)
    return u.divide_(excess), (squares[1] / size).sqrt() if scale_parameter else None


def relative_step_lr(t: Any, warmup_init: bool) -> Any:
    """Return the rate of step t, from 1 (Adafactor's section 8)."""
    return paddle.minimum(1e-6 * t if warmup_init else paddle.full_like(t, 1e-2), t.rsqrt())


class FactoredOptimizer(RuleOptimizer):
    """An optimizer with a factored second moment and the option `relative_step`."""

    def check_together(self, options: dict[str, Any], group: dict[str, Any]) -> None:
        if options["relative_step"]:
            self._refuse_lr("lr", options["lr"])
        elif options["warmup_init"]:
            wrong = "`warmup_init=True` requires `relative_step=True`."
            raise refusal(ValueError, wrong, relative_step=False, warmup_init=True)

    def _initial_lr(self, rate: Any, parameters: Any) -> Any:
        argument, self.sets_own_lr = self._lr_argument, self._options["relative_step"]
        groups = [item if isinstance(item, dict) else {} for item in parameters or [{}]]
        in_groups = [group.get("lr") is not None for group in groups]
        self.scales_lr = any({**self._options, **group}["scale_parameter"] for group in groups)
        if self.sets_own_lr:
            self._refuse_lr(argument, rate)
        elif rate is None and not all(in_groups):
            wrong = f"`{argument}` must be given with `relative_step=False`."
            raise refusal(ValueError, wrong, **{argument: None}, relative_step=False)
        return super()._initial_lr(1.0 if rate is None else rate, parameters)

    def _refuse_lr(self, argument: str, rate: Any) -> None:
        if rate is not None:
            advice = f"leave out `{argument}`, or give relative_step=False."
            wrong = f"Cannot combine manual `{argument}` and `relative_step=True` options: {advice}"
            raise refusal(ValueError, wrong, **{argument: rate}, relative_step=True)

    def used_lr_of(self, param: Tensor) -> Optional[float]:
        """Return the rate of the parameter's last update, which Adafactor keeps; None if unknown."""
        state = self.state_of(param) if param.name in self._already_create_accumulator else {}
        known = isinstance(state.get(USED_LR), Tensor) and state[STEP].item() > 0
        return float(state[USED_LR].item()) if known else None

    def lr_now_and_peak(self, param: Tensor, factor: float) -> Optional[tuple[Optional[float], Optional[float]]]:
        own = self._options["relative_step"] or self.scales_lr
        return (self.used_lr_of(param), None) if own else super().lr_now_and_peak(param, factor)
