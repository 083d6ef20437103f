"""The factored second moment of Adafactor and CAME: means of a matrix's rows and columns instead of all its elements.

Paper: Adafactor, Shazeer & Stern, https://arxiv.org/abs/1804.04235 (section 3, Algorithm 1). The last two dimensions
are the matrix, those before them a batch of matrices; a parameter of fewer dimensions is not factored.

Everything is pure. What needs a whole tensor is a sum that a rule yields (see `base`) and then divides by a count taken
from the whole parameter's shape, which its `Piece` knows:

    sums = yield row_col_sums(grad * grad + eps, piece)
    row, col = row_col_means(sums, piece.shape)
"""

import math

import paddle

from ..._checks import shown
from .declaration import COLUMN, ROW

__all__ = [
    "factored_kinds",
    "inverse_sqrt_factored",
    "is_factored",
    "refuse_relative_step",
    "relative_rate",
    "rms",
    "row_col_means",
    "row_col_sums",
    "square_sum",
]


def is_factored(shape):
    """Say whether a parameter of this shape has a factored second moment: it has if its rank is 2 or more."""
    return len(shape) >= 2


def factored_kinds(name):
    """Return the names and kinds of the states that hold the row and the column means of what is called `name`."""
    return {f"{name}_row": ROW, f"{name}_col": COLUMN}


def row_col_sums(matrix, piece):
    """Return [sums over the columns, sums over the rows] of [..., R, C]: what a rule yields."""
    return [piece.row_sums(matrix), piece.col_sums(matrix)]


def row_col_means(sums, shape):
    """Return the row means [..., R] and the column means [..., C], given the whole tensor's `row_col_sums`."""
    row_sums, col_sums = sums
    return row_sums / shape[-1], col_sums / shape[-2]


def inverse_sqrt_factored(row, col, piece):
    r"""Return :math:`1 / \sqrt{V}` of [..., R, C] for :math:`V_{ij} = row_i \, col_j / \overline{row}` (Algorithm 4).

    Args:
        row (Tensor): means of the whole matrix's rows, [..., R], above 0.
        col (Tensor): means of its columns, [..., C], above 0.
        piece (Piece): of what elements it is asked for.
    """
    # not a root of row / mean: of a row without a gradient that may be denormal, which Paddle's rsqrt takes for 0
    row = row.mean(axis=-1, keepdim=True).sqrt() * row.rsqrt()
    return piece.spread_product(row, col.rsqrt())


def square_sum(tensor):
    """Return the sum of the squares, shape []: what a rule yields before it asks for `rms`."""
    if paddle.in_dynamic_mode():  # an operation without a tensor of squares
        return paddle._C_ops.squared_l2_norm(tensor).reshape([])
    return (tensor * tensor).sum()


def rms(square_sum, shape):
    """Return the root of the mean square, given the whole tensor's `square_sum`."""
    return (square_sum / math.prod(shape)).sqrt()


def refuse_relative_step(optimizer, **received):
    """Raise RuntimeError, as Paddle does for a rate that a scheduler sets, if the optimizer sets its rate itself."""
    if optimizer._relative_step:
        ((name, value),) = received.items()
        raise RuntimeError(f"`relative_step` sets the rate from the step. Received: {name}={shown(value)}")


def relative_rate(t, warmup_init):
    r"""Return the rate :math:`\min(10^{-2}, 1 / \sqrt t)` of step t (Adafactor's section 8).

    Args:
        t (Tensor): number of the step, from 1.
        warmup_init (bool): start from :math:`10^{-6} t` instead of :math:`10^{-2}`.
    """
    return paddle.minimum(1e-6 * t if warmup_init else paddle.full_like(t, 1e-2), t.rsqrt())
