"""A shard of a parameter: how an update rule sums over it, and spreads sums of the whole parameter over it.

A rule sees the tensors of one shard. It sums over the shard, yields the sums and receives the sums over all shards:
`run_together` adds them up across processes, `run_locally` serves whole tensors. Sums over rows, columns or the
channels of a convolution have the size of the whole tensor in every shard, with zeros where the shard has no element.

Sums keep the summed dimensions with size 1: sums of rows are [..., R, 1], sums of columns [..., 1, C]. For a stack of
whole parameters, [k, ..., R, C], they are sums of each parameter.
"""

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import Any, Optional, Union

import paddle
import paddle.distributed as dist

from ..._paddle import matmul, slice_of, square_sum, sum_over

Rule = Union[Generator[list[Any], list[Any], Any], Any]  # a running rule, or the result of one without sums


@dataclasses.dataclass(eq=False)
class Shard:
    """A part of a tensor: all of it, a tensor-parallel part, or a range of the flattened elements of either."""

    shape: list[int]  # of the whole tensor
    split: Optional[tuple[int, int, int]] = None  # (axis, index, parts): tensor parallel, `index` of equal `parts`
    span: Optional[tuple[int, int]] = None  # range of the flattened part; the rule's tensors then have one dimension
    groups: tuple[Any, ...] = ()  # of processes; sums are added up over one after the other
    slice_size: Optional[int] = None  # number of elements of a flat slice, without padding

    def __post_init__(self) -> None:
        axis, _, parts = self.split or (None, 0, 1)
        self.part_shape = [n // parts if i == axis else n for i, n in enumerate(self.shape)]
        self._begin, self._end = self.span or (0, 0)
        self._but_rows = [*range(len(self.shape) - 2), len(self.shape) - 1]  # the dimensions of sums of columns

    def view(self, stored: Any) -> Any:
        """Return a stored tensor as the rule sees it; it may share memory."""
        if self.slice_size is None:
            return stored
        return self.stored(stored) if self.span else self.stored(stored).reshape(self.part_shape)

    def stored(self, tensor: Any) -> Any:
        """Return the part of a stored tensor to which a flattened new value is written."""
        return slice_of(tensor, 0, self.slice_size)

    def square_sum(self, x: Any) -> Any:
        """Return the sum of all squares, of shape []; of a stack, for each parameter."""
        rank = len(self.part_shape)
        if self.span is not None or x.ndim == rank:
            return square_sum(x)
        if x.shape[0] == 1:
            return square_sum(x).reshape([1] * (rank + 1))
        if math.prod(self.part_shape) > 512 and x.place.is_cpu_place():  # where `sum` is inexact and slow
            flat = x.reshape([x.shape[0], 1, -1])
            return paddle.matmul(flat, flat, transpose_y=True).reshape([-1, *[1] * rank])
        return sum_over(x * x, list(range(-rank, 0)), None, True) if rank else x * x

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
        return self._in_whole(sums, self._but_rows)

    def _leading_sums(self, x: Any, dims: int) -> Any:
        """Return the sums over all dimensions but the first `dims`."""
        if self.span is None:
            sums = sum_over(x, list(range(dims - len(self.shape), 0)), None, True)
        else:
            kept = self.part_shape[:dims]
            first, block = self._padded(x, math.prod(self.part_shape[dims:]))
            sums = _placed(block.sum(axis=-1), first, math.prod(kept))
            sums = sums.reshape([*kept, *[1] * (len(self.shape) - dims)])
        return self._in_whole(sums, range(dims))

    def spread_rows(self, values: Any) -> Any:
        """Return the value of each element's row, broadcastable to the shard."""
        return self._spread_leading(values, len(self.shape) - 1)

    def spread_channels(self, values: Any) -> Any:
        """Return the value of each element's index in the first dimension, broadcastable to the shard."""
        return self._spread_leading(values, 1)

    def spread_cols(self, values: Any) -> Any:
        """Return the value of each element's column, broadcastable to the shard."""
        values = self._of_whole(values, self._but_rows)
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
        """Return a new tensor: for each element the product of the values of its row and its column."""
        rows, cols = self.spread_rows(rows), self.spread_cols(cols)
        return matmul(rows, cols, False, False) if self.span is None and _has_products(rows) else rows * cols

    def _spread_leading(self, values: Any, dims: int) -> Any:
        values = self._of_whole(values, range(dims))
        if self.span is None:
            return values
        width = math.prod(self.part_shape[dims:])
        first, last = self._covered(width)
        return self._cut(values.flatten()[first:last].unsqueeze(-1).expand([last - first, width]), width)

    def _covered(self, width: int) -> tuple[int, int]:
        """Return the range (begin, end) of the rows of this width that the span touches."""
        return self._begin // width, -(-self._end // width)

    def _padded(self, x: Any, width: int) -> tuple[int, Any]:
        """Return the index of the first row that the span touches, and `x` padded with zeros to whole rows."""
        first, last = self._covered(width)
        return first, _placed(x, self._begin - first * width, (last - first) * width).reshape([last - first, width])

    def _cut(self, block: Any, width: int) -> Any:
        offset = self._covered(width)[0] * width
        return block.flatten()[self._begin - offset : self._end - offset]

    def _in_whole(self, sums: Any, kept: Sequence[int]) -> Any:
        """Return sums over a tensor-parallel part, padded with zeros to the whole size in the `kept` dimensions."""
        if self.split is None or self.split[0] not in kept:
            return sums
        axis, index, parts = self.split
        zeros = paddle.zeros_like(sums)
        return paddle.concat([sums if part == index else zeros for part in range(parts)], axis=axis)

    def _of_whole(self, values: Any, kept: Sequence[int]) -> Any:
        """Return the values of a tensor-parallel part from the values of the whole tensor."""
        if self.split is None or self.split[0] not in kept:
            return values
        axis, index, parts = self.split
        return paddle.split(values, parts, axis=axis)[index]


def _placed(values: Any, first: int, size: int) -> Any:
    """Return a vector of zeros of this size with `values` from index `first` on."""
    around = [paddle.zeros([zeros], values.dtype) for zeros in (first, size - first - values.shape[0])]
    return paddle.concat([around[0], values, around[1]])


def _has_products(x: Any) -> bool:
    """Return whether to use matrix products: up to 25 times as fast on a CPU, but rounded to TF32 on a GPU."""
    return len(x.shape) in (2, 3) and paddle.in_dynamic_mode() and x.place.is_cpu_place()


def _col_sums(x: Any) -> Any:
    if math.prod(x.shape) > 4096 and _has_products(x):
        return matmul(paddle.ones([1, x.shape[-2]], x.dtype), x, False, False)
    return sum_over(x, [-2], None, True)


def run_locally(rule: Rule) -> Any:
    """Run a rule on whole tensors, whose sums need no other process, and return its result."""
    if not isinstance(rule, Generator):
        return rule
    try:
        request = next(rule)
        while True:
            request = rule.send(request)
    except StopIteration as done:
        return done.value


def run_together(rules: list[tuple[Shard, Rule]]) -> list[Any]:
    """Run rules together, the same in all processes, with one `all_reduce` for each group and round of sums."""
    results: list[Any] = [rule for _, rule in rules]
    answers: dict[int, Any] = {index: None for index, rule in enumerate(results) if isinstance(rule, Generator)}
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
