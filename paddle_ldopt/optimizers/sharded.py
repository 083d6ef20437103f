"""Tensors split over processes: the shard of a parameter, sums over its shards, and its state for checkpoints.

A rule sees one shard. It yields sums over the shard and receives the sums over all shards. Sums of rows, columns or
channels span the whole tensor, with zeros outside the shard, and size 1 in the summed dimensions: rows [..., R, 1],
columns [..., 1, C]; in a stack [k, ..., R, C], of each parameter.
"""

import copy
import math
import weakref
from collections.abc import Generator, Sequence
from typing import Any, Optional, Union

import paddle
import paddle.distributed as dist
from paddle import Tensor, _C_ops

from .._checks import refusal
from .._compat import create_state, is_sharded, parameters_of, topology
from .states import COLUMN, ELEMENT, ROW, SCALAR

Update = Generator[list[Any], list[Any], tuple[Any, dict[str, Any]]]  # a running rule that asks for sums
Rule = Union[Generator[list[Any], list[Any], Any], Any]  # a running rule, or the result of one without sums
_PRODUCTS = (2, 3)  # ranks for matrix products: on a CPU up to 25 times as fast, on a GPU rounded to TF32
_INSTEAD = "instead of group sharding of level 'p_g_os' use 'os_g', or sharding of stage 1"


class Shard:
    """A whole tensor as a rule sees it: sums over it, and values spread over it."""

    groups: tuple[Any, ...] = ()  # of processes; sums are added up over one after the other
    slice_size: Optional[int] = None  # elements of a flat slice without padding
    span: Optional[tuple[int, int]] = None  # range of the flattened part; the rule's tensors then have one dimension

    def __init__(self, shape: list[int]) -> None:
        self.shape = shape  # of the whole tensor

    def view(self, stored: Any) -> Any:
        return stored

    def square_sum(self, x: Any) -> Any:
        """Return the sum of all squares, of shape []; of a stack [k, 1, ...]."""
        rank = len(self.shape)
        if not paddle.in_dynamic_mode():
            return (x * x).sum()
        if x.ndim == rank or x.shape[0] == 1:
            return _C_ops.squared_l2_norm(x).reshape([1] * (x.ndim if x.ndim > rank else 0))
        if math.prod(self.shape) > 512 and x.place.is_cpu_place():  # where `sum` is inexact and slow
            flat = x.reshape([x.shape[0], 1, -1])
            return _C_ops.matmul(flat, flat, False, True).reshape([-1, *[1] * rank])  # type: ignore[no-untyped-call]
        return _C_ops.sum(x * x, list(range(-rank, 0)), None, True) if rank else x * x

    def col_sums(self, x: Any) -> Any:
        by_product = len(x.shape) in _PRODUCTS and math.prod(x.shape) > 4096 and paddle.in_dynamic_mode()
        if by_product and x.place.is_cpu_place():
            return _C_ops.matmul(paddle.ones([1, x.shape[-2]], x.dtype), x, False, False)  # type: ignore[no-untyped-call]
        return _C_ops.sum(x, [-2], None, True)

    def leading_sums(self, x: Any, dims: int) -> Any:
        """Sum over all dimensions except the first `dims`."""
        return _C_ops.sum(x, list(range(dims - len(self.shape), 0)), None, True)

    def spread_leading(self, values: Any, dims: int) -> Any:
        """Return each element's value by its first `dims` indices, broadcastable to the shard."""
        return values

    def spread_product(self, rows: Any, cols: Any) -> Any:
        """Multiply each element's row value by its column value."""
        if len(rows.shape) in _PRODUCTS and paddle.in_dynamic_mode() and rows.place.is_cpu_place():
            return _C_ops.matmul(rows, cols, False, False)  # type: ignore[no-untyped-call]
        return rows * cols


class PartialShard(Shard):
    """A tensor-parallel part, or a range of the flattened elements of a part or of the whole."""

    def __init__(
        self,
        shape: list[int],
        split: Optional[tuple[int, int, int]] = None,
        span: Optional[tuple[int, int]] = None,
        groups: tuple[Any, ...] = (),
        slice_size: Optional[int] = None,
    ) -> None:
        """`split` is (axis, index, parts): tensor parallel, `index` of equal `parts`."""
        super().__init__(shape)
        self.split, self.span, self.groups, self.slice_size = split, span, groups, slice_size
        axis, _, parts = split or (None, 0, 1)
        self.part_shape = [n // parts if i == axis else n for i, n in enumerate(shape)]
        self._begin, self._end = span or (0, 0)
        self._but_rows = [*range(len(shape) - 2), len(shape) - 1]  # the dimensions of sums of columns

    def view(self, stored: Any) -> Any:
        if self.slice_size is None:
            return stored
        flat = stored._slice(0, self.slice_size)  # without padding
        return flat if self.span else flat.reshape(self.part_shape)

    def square_sum(self, x: Any) -> Any:
        return _C_ops.squared_l2_norm(x).reshape([])

    def leading_sums(self, x: Any, dims: int) -> Any:
        if self.span is None:
            sums = super().leading_sums(x, dims)
        else:
            kept = self.part_shape[:dims]
            first, block = self._padded(x, math.prod(self.part_shape[dims:]))
            sums = _placed(block.sum(axis=-1), first, math.prod(kept))
            sums = sums.reshape([*kept, *[1] * (len(self.shape) - dims)])
        return self._in_whole(sums, range(dims))

    def col_sums(self, x: Any) -> Any:
        *batch, rows, cols = self.part_shape
        if self.span is None:
            sums = super().col_sums(x)
        elif math.prod(batch) == 1:
            sums = super().col_sums(self._padded(x, cols)[1]).reshape([*batch, 1, cols])
        else:
            first, matrices = self._padded(x, rows * cols)
            sums = super().col_sums(matrices.reshape([-1, rows, cols])).flatten()
            sums = _placed(sums, first * cols, math.prod(batch) * cols).reshape([*batch, 1, cols])
        return self._in_whole(sums, self._but_rows)

    def _in_whole(self, sums: Any, kept: Sequence[int]) -> Any:
        """Pad a tensor-parallel part's sums with zeros to the whole tensor."""
        if self.split is None or self.split[0] not in kept:
            return sums
        axis, index, parts = self.split
        zeros = paddle.zeros_like(sums)
        return paddle.concat([sums if part == index else zeros for part in range(parts)], axis=axis)

    def spread_product(self, rows: Any, cols: Any) -> Any:
        rows, cols = self.spread_leading(rows, len(self.shape) - 1), self._of_whole(cols, self._but_rows)
        if self.span is None:
            return super().spread_product(rows, cols)
        *batch, height, width = self.part_shape
        first, last = self._covered(width)
        if math.prod(batch) == 1:
            block = cols.reshape([1, width]).expand([last - first, width])
        else:
            block = cols.reshape([-1, width])[paddle.arange(first, last) // height]
        return rows * self._cut(block, width)

    def spread_leading(self, values: Any, dims: int) -> Any:
        values = self._of_whole(values, range(dims))
        if self.span is None:
            return values
        width = math.prod(self.part_shape[dims:])
        first, last = self._covered(width)
        return self._cut(values.flatten()[first:last].unsqueeze(-1).expand([last - first, width]), width)

    def _of_whole(self, values: Any, kept: Sequence[int]) -> Any:
        """Cut the part's values out of the whole tensor's."""
        if self.split is None or self.split[0] not in kept:
            return values
        axis, index, parts = self.split
        return paddle.split(values, parts, axis=axis)[index]

    def _covered(self, width: int) -> tuple[int, int]:
        """Return the range of rows that the span touches."""
        return self._begin // width, -(-self._end // width)

    def _padded(self, x: Any, width: int) -> tuple[int, Any]:
        """The first row that the span touches, and `x` padded with zeros to whole rows."""
        first, last = self._covered(width)
        return first, _placed(x, self._begin - first * width, (last - first) * width).reshape([last - first, width])

    def _cut(self, block: Any, width: int) -> Any:
        offset = self._covered(width)[0] * width
        return block.flatten()[self._begin - offset : self._end - offset]


def _placed(values: Any, first: int, size: int) -> Any:
    """Return a vector of zeros with `values` from index `first` on."""
    around = [paddle.zeros([zeros], values.dtype) for zeros in (first, size - first - values.shape[0])]
    return paddle.concat([around[0], values, around[1]])


def run_locally(rule: Rule) -> Any:
    if not isinstance(rule, Generator):
        return rule
    try:
        request = next(rule)
        while True:
            request = rule.send(request)
    except StopIteration as done:
        return done.value


def run_together(rules: list[tuple[Shard, Rule]]) -> list[Any]:
    """Run the same rules in all processes, with one `all_reduce` for each group and round of sums."""
    results: list[Any] = [rule if shard.groups else run_locally(rule) for shard, rule in rules]
    answers: dict[int, Any] = {index: None for index, rule in enumerate(results) if isinstance(rule, Generator)}
    while answers:
        requests: dict[int, list[Any]] = {}
        for index, answer in answers.items():
            try:
                requests[index] = rules[index][1].send(answer)
            except StopIteration as done:
                results[index] = done.value
        by_groups: dict[Any, list[int]] = {}
        for index in requests:
            by_groups.setdefault(tuple(group.id for group in rules[index][0].groups), []).append(index)
        answers = dict.fromkeys(requests)
        for members in by_groups.values():
            parts = [tensor for index in members for tensor in requests[index]]
            dtype = paddle.float64 if any(part.dtype == paddle.float64 for part in parts) else paddle.float32
            packed = paddle.concat([part.astype(dtype).flatten() for part in parts])
            for group in rules[members[0]][0].groups:
                dist.all_reduce(packed, group=group)
            sums = iter(paddle.split(packed, [part.size for part in parts]))
            for index in members:
                answers[index] = [next(sums).astype(part.dtype).reshape(part.shape) for part in requests[index]]
    return results


class ShardFinder:
    """An optimizer's parameters before any wrapper, and this process's shards."""

    def __init__(self, params: list[Tensor], is_elementwise: bool) -> None:
        self.params, self._is_elementwise = {param.name: param for param in params}, is_elementwise
        self._shapes = {name: list(param.shape) for name, param in self.params.items()}
        self._found: dict[str, Shard] = {}
        self._found_for: tuple[Any, Any] = (None, None)

    def __deepcopy__(self, memo: Any) -> "ShardFinder":
        params = copy.deepcopy(list(self.params.values()), memo)  # the copies have other names
        return ShardFinder(params, self._is_elementwise)

    def shape(self, param: Tensor) -> list[int]:
        shape = self._shapes.get(param.name)
        if shape is None:
            return list(param.shape)
        split = self._split(self.params[param.name])
        return shape if split is None else [n * split[2] if i == split[0] else n for i, n in enumerate(shape)]

    def original(self, param: Tensor) -> Any:
        """The whole parameter of the same name."""
        if self.params and param.name not in self.params:
            wrong = "The optimizer was not built with this parameter: a wrapper has fused parameters into buffers or"
            advice = f"cut them up. Set sharding_configs.tensor_fusion=False; {_INSTEAD}."
            raise refusal(ValueError, f"{wrong} {advice}", f"'{param.name}' of shape {list(param.shape)}")
        return self.params.get(param.name, param)

    def check(self, param: Tensor) -> None:
        """Raise unless the optimizer was built with this parameter, or this is a flat slice of one."""
        original = self.original(param)
        shape, built_with = list(param.shape), self._shapes[param.name]
        if shape != built_with if param is original else len(shape) != 1:
            wrong = f"'{param.name}' had another shape when the optimizer was built, and is no slice of sharding."
            advice = f"Build the optimizer after the model is complete; {_INSTEAD}."
            raise refusal(ValueError, f"{wrong} {advice}", f"shape={shape}, built with {built_with}")

    def find(self, parameter_list: Any) -> dict[str, Shard]:
        """Return name -> `Shard`; all processes must call this together."""
        if self._found_for[0] is parameter_list and self._found_for[1] is topology():
            return self._found
        hcg, found = topology(), {}
        if self.is_sliced(parameter_list):
            mine = {param.name: param.shape[0] for param in parameter_list if param._is_initialized()}
            lengths = list[dict[str, int]]()  # of each process's slices, with padding at the end of a parameter
            dist.all_gather_object(lengths, mine, group=hcg.get_sharding_parallel_group())
            for name, param in self.params.items():
                size, end, spans = math.prod(self._shapes[name]), 0, []
                for of_process in lengths:
                    begin, end = end, min(end + of_process.get(name, 0), size)
                    spans.append((begin, end))
                begin, end = spans[hcg.get_sharding_parallel_rank()]
                if (0, size) in spans:  # one process has the whole
                    if begin < end:
                        found[name] = self._part(param, None, size)
                elif spans[-1][1] > 0:  # else no process has it: it is frozen
                    found[name] = self._part(param, (begin, end) if begin < end else (0, 0), end - begin)
        else:
            found = {name: self._part(param) for name, param in self.params.items()}
        self._found, self._found_for = found, (parameter_list, hcg)
        return found

    def is_whole(self, parameter_list: Any) -> bool:
        is_split = any(shard.groups for shard in self.find(parameter_list).values())
        return not is_split and not self.is_sliced(parameter_list)

    def is_part(self, param: Tensor, parameter_list: Any) -> bool:
        return topology() is not None and type(self.find(parameter_list).get(param.name)) is not Shard

    def is_sliced(self, parameter_list: Any) -> bool:
        """Whether `split_param` has replaced the parameters by slices."""
        name = getattr(parameter_list[0], "name", None) if parameter_list else None  # a group has none
        return name in self.params and parameter_list[0] is not self.params[name]

    def _part(self, param: Tensor, span: Optional[tuple[int, int]] = None, slice_size: Optional[int] = None) -> Shard:
        split = self._split(param)
        if split is None and slice_size is None:
            return Shard(self.shape(param))
        groups = () if span is None else (topology().get_sharding_parallel_group(),)
        groups += () if split is None else (topology().get_model_parallel_group(),)
        return PartialShard(self.shape(param), split, span, groups, slice_size)

    def _split(self, param: Tensor) -> Optional[tuple[int, int, int]]:
        """(axis, index, parts) if tensor parallel."""
        hcg = topology()
        if hcg is None or hcg.get_model_parallel_world_size() == 1 or not getattr(param, "is_distributed", False):
            return None
        axis = getattr(param, "split_axis", None)  # set by the layer
        if axis is None and (self._is_elementwise or param.stop_gradient):
            return None
        if axis is None:
            wrong = "A tensor-parallel parameter must have `split_axis`, the axis along which its layer splits it."
            raise refusal(ValueError, wrong, f"'{param.name}' with is_distributed=True alone")
        return axis, hcg.get_model_parallel_rank(), hcg.get_model_parallel_world_size()


class MissingGradients:
    """Parameters without a gradient so far in any process: sharding gives them zeros, which weight decay moves."""

    def __init__(self, params: list[Tensor]) -> None:
        self.params = params if is_sharded() else []
        self._here = here = set[str]()  # names of parameters that had a gradient in this process
        self.names = [param.name for param in self.params]  # of the last `drop_from`
        for param in self.params:
            if param.stop_gradient:  # counts as having a gradient if it is unfrozen later
                here.add(param.name)
            else:
                hook = param.register_hook(lambda _, name=param.name: here.add(name))
                weakref.finalize(self, hook.remove).atexit = False  # or the hooks of former optimizers would stay

    def __deepcopy__(self, memo: Any) -> "MissingGradients":
        return MissingGradients(copy.deepcopy(self.params, memo))

    def drop_from(self, params_grads: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """All processes must call this together."""
        if not self.names:
            return params_grads
        self._here |= {p.name for p, g in params_grads if p.name not in self._here and g is not None and g.any()}
        frozen = [param.stop_gradient for param in self.params]
        seen = [param.name in self._here for param in self.params]
        flags = paddle.to_tensor([seen, frozen, [not idle for idle in frozen]], "int32")
        for group in (topology().get_sharding_parallel_group(), topology().get_data_parallel_group()):
            if group.nranks > 1:
                dist.all_reduce(flags, dist.ReduceOp.MAX, group)
        seen, frozen, trained = flags.numpy()
        for param, differs in zip(self.params, frozen & trained):
            if differs:
                wrong = "Processes that share parameters must freeze the same ones: set `stop_gradient` equally in all."
                received = f"'{param.name}' with stop_gradient={param.stop_gradient} here, the opposite elsewhere"
                raise refusal(ValueError, wrong, received)
        self.names = [param.name for param, has in zip(self.params, seen) if not has]
        return [(param, grad) for param, grad in params_grads if param.name not in self.names]


def sharded_state(optimizer: Any, model_sharded_state_dict: dict[str, Any], shards: Any) -> dict[str, Any]:
    """Return key -> ShardedWeight of an optimizer's state.

    Keys are Paddle's: "<structured name>.<state>_0", and "<structured name>.w_0" for the float32 master.
    """
    keys: dict[str, str] = {}
    for key in sorted(model_sharded_state_dict):  # of tied parameters the first name, as Paddle's AdamW
        keys.setdefault(model_sharded_state_dict[key].local_tensor.name, key)
    params = [p for p in parameters_of(optimizer) if not p.stop_gradient and p._is_initialized()]
    unknown = [param.name for param in params if param.name not in keys]
    if unknown:
        wrong = "`model_sharded_state_dict` must name every parameter of the optimizer: give that of its model."
        raise refusal(ValueError, wrong, f"nothing for '{unknown[0]}' ({len(unknown)} of {len(params)})")
    create_state(optimizer, [p for p in params if optimizer.layerwise_ratio(p) != 0.0])
    sharded = {}
    for param in params:
        if (shards is not None and param.name not in shards) or param.name not in optimizer._already_create_accumulator:
            continue  # only padding, or frozen
        owner, states = optimizer.owner_of(param), optimizer.states_of(param)
        state = {name: (value, states[name].per) for name, value in optimizer.state_of(param).items()}
        if owner is not param:
            state["w"] = owner, ELEMENT
        weight = model_sharded_state_dict[keys[param.name]]
        for name, (value, per) in state.items():
            key = f"{keys[param.name]}.{name}_0"
            sharded[key] = _sharded_weight(key, value, per, weight, shards and shards[param.name])
    return sharded


def _sharded_weight(key: str, value: Any, per: str, weight: Any, shard: Optional[tuple[int, int]]) -> Any:
    ShardedWeight = type(weight)
    local, whole, offset = map(tuple, (weight.local_shape, weight.global_shape, weight.global_offset))
    flat: dict[str, Any] = {}
    per = per if local else SCALAR
    if per != ELEMENT:  # every process has that of the whole parameter
        local = whole = {SCALAR: tuple(value.shape), ROW: whole[:-1], COLUMN: (*whole[:-2], *whole[-1:])}[per]
        offset = (0,) * len(whole)
    size = math.prod(local)
    if per == ELEMENT and shard is not None:
        size = shard[1] - shard[0]
        flat = {"is_flattened": True, "flattened_range": slice(*shard)}
        if value.shape[0] > size:
            value = value._slice(0, size)  # without the padding; shares memory, to be loaded into
    if value.size != size:
        wrong = f"The state '{key}' belongs to a shard of the parameter whose offset is unknown here: save with"
        advice = "`paddle_ldopt.parallel.save_checkpoint`, which asks the wrapper."
        raise refusal(ValueError, f"{wrong} {advice}", f"{value.size} elements, not {size}")
    return ShardedWeight(key, value, local, whole, offset, **flat)
