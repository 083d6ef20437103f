"""A piece of a parameter: the geometry by which an update rule sums over its part and spreads the sums over it again.

A rule is a generator that sees the tensors of one piece. For what it needs of the whole tensor it sums over its piece,
yields the sums, and is answered with those of all pieces. Sums that keep a dimension (rows, columns, the channels of a
convolution) have the size of the whole tensor's in every piece, with zeros where the piece has no element, so that the
pieces' sums are simply added up: `answer_together` does so, `answer_locally` serves whole tensors.

Sums keep the dimensions that they sum over, with the size 1, so that they fit to what they are sums of: those of rows
are [..., R, 1], those of columns [..., 1, C]. Whole parameters of one shape may be stacked, [k, ..., R, C]: each sum is
then one of each of them.
"""

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import Any, Optional

import paddle
import paddle.distributed as dist

from ..._paddle import slice_of, square_sum, sum_over

__all__ = ["Piece", "answer_locally", "answer_together"]

Rule = Generator[list[Any], list[Any], Any]


@dataclasses.dataclass(eq=False)
class Piece:
    """A part of a tensor: all of it, a tensor-parallel part, some of the flattened elements of either."""

    shape: list[int]  # of the whole tensor
    split: Optional[tuple[int, int, int]] = None  # (axis, index, parts): tensor parallel, `index` of equal `parts`
    span: Optional[tuple[int, int]] = None  # range of the flattened part; the rule's tensors then have one dimension
    groups: tuple[Any, ...] = ()  # of processes: over one after the other the sums of the pieces are added up
    slice_size: Optional[int] = None  # of a flat slice with padding behind it: the elements that are the parameter's

    def __post_init__(self) -> None:
        axis, _, parts = self.split or (None, 0, 1)
        self.part_shape = [n // parts if i == axis else n for i, n in enumerate(self.shape)]
        self._begin, self._end = self.span or (0, 0)

    def view(self, stored: Any) -> Any:
        """Return what the rule sees of a tensor of the size of the parameter; it may share memory."""
        if self.slice_size is None:
            return stored
        return self.stored(stored) if self.span else self.stored(stored).reshape(self.part_shape)

    def stored(self, tensor: Any) -> Any:
        """Return the part of a stored tensor that a new value, flattened, is written to."""
        return slice_of(tensor, 0, self.slice_size)

    def square_sum(self, x: Any) -> Any:
        """Return the sum of all squares: of shape [], or for each of several parameters."""
        rank = len(self.part_shape)
        if self.span is not None or x.ndim == rank:
            return square_sum(x)
        if x.shape[0] == 1:
            return square_sum(x).reshape([1] * (rank + 1))
        if math.prod(self.part_shape) > 512 and x.place.is_cpu_place():  # its `sum` is coarse over many, and slow
            flat = x.reshape([x.shape[0], 1, -1])
            return paddle.matmul(flat, flat, transpose_y=True).reshape([-1, *[1] * rank])
        return _sum(x * x, list(range(-rank, 0))) if rank else x * x

    def row_sums(self, x: Any) -> Any:
        """Return the sums of the rows of the last two dimensions, [..., R, 1] of a tensor [..., R, C]."""
        return self._leading_sums(x, len(self.shape) - 1)

    def channel_sums(self, x: Any) -> Any:
        """Return the sums over all dimensions but the first."""
        return self._leading_sums(x, 1)

    def col_sums(self, x: Any) -> Any:
        """Return the sums of the columns of the last two dimensions, [..., 1, C] of a tensor [..., R, C]."""
        *batch, rows, cols = self.part_shape
        if self.span is None:
            sums = _col_sums(x)
        elif math.prod(batch) == 1:
            sums = _col_sums(self._padded(x, cols)[1]).reshape([*batch, 1, cols])
        else:
            first, matrices = self._padded(x, rows * cols)
            sums = _col_sums(matrices.reshape([-1, rows, cols])).flatten()
            sums = _placed(sums, first * cols, math.prod(batch) * cols).reshape([*batch, 1, cols])
        return self._in_whole(sums, self._but_rows())

    def _leading_sums(self, x: Any, dims: int) -> Any:
        """Return the sums over all dimensions but the first `dims`."""
        if self.span is None:
            sums = _sum(x, list(range(dims - len(self.shape), 0)))
        else:
            kept = self.part_shape[:dims]
            first, block = self._padded(x, math.prod(self.part_shape[dims:]))
            sums = _placed(block.sum(axis=-1), first, math.prod(kept))
            sums = sums.reshape([*kept, *[1] * (len(self.shape) - dims)])
        return self._in_whole(sums, range(dims))

    def spread_rows(self, values: Any) -> Any:
        """Return, to be multiplied with the piece, the value of each element's row."""
        return self._spread_leading(values, len(self.shape) - 1)

    def spread_channels(self, values: Any) -> Any:
        """Return, to be multiplied with the piece, the value of each element's index in the first dimension."""
        return self._spread_leading(values, 1)

    def spread_cols(self, values: Any) -> Any:
        """Return, to be multiplied with the piece, the value of each element's column."""
        values = self._of_whole(values, self._but_rows())
        if self.span is None:
            return values
        *batch, rows, cols = self.part_shape
        first, last = self._covered(cols)
        if math.prod(batch) == 1:
            block = values.reshape([1, cols]).expand([last - first, cols])
        else:
            block = values.reshape([-1, cols])[paddle.arange(first, last) // rows]
        return self._cut(block, cols)

    def spread_product(self, rows: Any, cols: Any) -> Any:
        """Return for each element the product of the values of its row and its column, a new tensor."""
        rows, cols = self.spread_rows(rows), self.spread_cols(cols)
        return paddle.matmul(rows, cols) if self.span is None and _is_large(rows, cols) else rows * cols

    def _spread_leading(self, values: Any, dims: int) -> Any:
        values = self._of_whole(values, range(dims))
        if self.span is None:
            return values
        width = math.prod(self.part_shape[dims:])
        first, last = self._covered(width)
        return self._cut(values.flatten()[first:last].unsqueeze(-1).expand([last - first, width]), width)

    def _covered(self, width: int) -> tuple[int, int]:
        """Return the first row of this width that the span touches, and the one behind the last."""
        return self._begin // width, -(-self._end // width)

    def _padded(self, x: Any, width: int) -> tuple[int, Any]:
        """Return the number of the first row that the span touches, and `x` as whole rows, zeros around it."""
        first, last = self._covered(width)
        return first, _placed(x, self._begin - first * width, (last - first) * width).reshape([last - first, width])

    def _cut(self, block: Any, width: int) -> Any:
        """Return the elements of the span out of whole rows."""
        offset = self._covered(width)[0] * width
        return block.flatten()[self._begin - offset : self._end - offset]

    def _but_rows(self) -> list[int]:
        """Return the dimensions that sums of columns keep."""
        return [*range(len(self.shape) - 2), len(self.shape) - 1]

    def _in_whole(self, sums: Any, kept: Sequence[int]) -> Any:
        """Return sums over a tensor-parallel part, which keep some dimensions, among zeros in the whole's size."""
        if self.split is None or self.split[0] not in kept:
            return sums
        axis, index, parts = self.split
        zeros = paddle.zeros_like(sums)
        return paddle.concat([sums if part == index else zeros for part in range(parts)], axis=axis)

    def _of_whole(self, values: Any, kept: Sequence[int]) -> Any:
        """Return the values of a tensor-parallel part, out of those of the whole."""
        if self.split is None or self.split[0] not in kept:
            return values
        axis, index, parts = self.split
        return paddle.split(values, parts, axis=axis)[index]


def _placed(values: Any, first: int, size: int) -> Any:
    """Return a vector of zeros with `values` in it from `first`."""
    around = [paddle.zeros([zeros], values.dtype) for zeros in (first, size - first - values.shape[0])]
    return paddle.concat([around[0], values, around[1]])


def _is_large(*factors: Any) -> bool:
    """Return whether a matrix product is the fast way: on a CPU, 25 times; a GPU would round it to TF32."""
    size = math.prod(math.prod(x.shape) for x in factors)
    return factors[0].ndim in (2, 3) and paddle.in_dynamic_mode() and size > 4096 and factors[0].place.is_cpu_place()


def _col_sums(x: Any) -> Any:
    if _is_large(x):
        return paddle.matmul(paddle.ones([1, x.shape[-2]], x.dtype), x)
    return _sum(x, [-2])


def _sum(x: Any, axes: list[int]) -> Any:
    """Return the sums of x over axes, which stay with the size 1."""
    return sum_over(x, axes, None, True) if paddle.in_dynamic_mode() else x.sum(axis=axes, keepdim=True)


def answer_locally(rule: Rule) -> Any:
    """Run a rule whose tensors are whole, so that each request is its own answer; return what the rule returns."""
    try:
        request = next(rule)
        while True:
            request = rule.send(request)
    except StopIteration as done:
        return done.value


def answer_together(rules: list[tuple[Piece, Rule]]) -> list[Any]:
    """Run rules side by side, the same in all processes; one `all_reduce` a group and round adds their sums up."""
    results: list[Any] = [None] * len(rules)
    answers: dict[int, Any] = dict.fromkeys(range(len(rules)))
    while answers:
        requests = {}
        for index, answer in answers.items():
            try:
                requests[index] = rules[index][1].send(answer)
            except StopIteration as done:
                results[index] = done.value
        answers = _added_up({index: (rules[index][0].groups, request) for index, request in requests.items()})
    return results


def _added_up(requests: dict[int, tuple[Any, list[Any]]]) -> dict[int, list[Any]]:
    """Return, for each {key: (groups, tensors)}, the sums of the tensors over the groups."""
    by_groups: dict[Any, Any] = {}
    for key, (groups, tensors) in requests.items():
        by_groups.setdefault(tuple(group.id for group in groups), (groups, {}))[1][key] = tensors
    answers = {}
    for groups, asked in by_groups.values():
        parts = [tensor for tensors in asked.values() for tensor in tensors]
        dtype = paddle.float64 if any(part.dtype == paddle.float64 for part in parts) else paddle.float32
        packed = paddle.concat([part.astype(dtype).flatten() for part in parts])
        for group in groups:
            dist.all_reduce(packed, group=group)
        sums = iter(paddle.split(packed, [part.size for part in parts]))
        for key, tensors in asked.items():
            answers[key] = [next(sums).astype(part.dtype).reshape(part.shape) for part in tensors]
    return {key: answers[key] for key in requests}
