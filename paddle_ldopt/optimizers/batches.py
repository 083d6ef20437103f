"""The update by Paddle's operations: the rule on a stack [k, ...] of parameters of one shape, type and set of options.

State tensors are rows of the stack. If one has other memory (after loading, casting or copying), the batch is rebuilt.
Each step copies parameters and gradients into a stack.
"""

import collections
import functools
import math
import operator
from typing import TYPE_CHECKING, Any, Callable, Optional

import paddle
from paddle import Tensor, _C_ops
from paddle.base.framework import _dygraph_place_guard

from .sharded import Shard, run_locally, run_together
from .states import ELEMENT, GLOBAL_STEP, SCALAR, STEP, State, Values, compute_dtype, rounded, rule_shape
from .step import Rows, check_gradient, in_shape

if TYPE_CHECKING:
    from .base import LayerwiseOptimizer

_MASTER = "master"
_dtype = Tensor.dtype.__get__


class Batch:
    """Parameters that are updated together, and the stacks of their state."""

    def __init__(self, optimizer: "LayerwiseOptimizer", params: list[Tensor]) -> None:
        first, owners = params[0], optimizer._master_weights
        self._optimizer, self.params, self.rule_dtype = optimizer, params, compute_dtype(first)
        self._shard, states = Shard(list(first.shape)), optimizer.states_of(first)
        states.update({_MASTER: State(ELEMENT)} if optimizer.has_master(first) else {})
        self._stacks: dict[str, Any] = {}  # state or masters -> [k, ...]; of a single parameter the tensor itself
        self._shapes: dict[str, list[int]] = {}  # as the rule sees the stacks
        self._targets, self._param_dtype = list(map(uncounted, params)), first.dtype
        self._dicts: list[dict[str, Any]] = []  # where the optimizer keeps each tensor
        self._keys: list[str] = []
        for name, (per, _) in states.items():
            by_owner = owners if name == _MASTER else optimizer._accumulators[optimizer.state_key(name)]
            keys = [p.name if name == _MASTER else owners.get(p.name, p).name for p in params]
            tensors = [by_owner[key] for key in keys]
            for tensor in tensors:
                if not first.place._equals(tensor.place):  # Paddle keeps Adam's powers on the CPU
                    tensor._copy_to(first.place, True)._share_buffer_to(tensor)
            self._dicts += [by_owner] * len(keys)
            self._keys += keys
            self._stacks[name] = tensors[0] if len(tensors) == 1 else _C_ops.stack(tensors, 0)
            shape = rule_shape(per, first.shape)
            if len(params) > 1:
                shape = [len(params), *([1] * len(first.shape) if per == SCALAR else shape)]
            self._shapes[name] = shape
        self._share()

    def _share(self) -> None:
        """Let the optimizer's tensors share the stacks' memory, and the targets the parameters'."""
        for target, param in zip(self._targets, self.params):
            if target.data_ptr() != param.data_ptr():
                target._share_buffer_to(param)
        tensors = list(map(operator.getitem, self._dicts, self._keys))
        if len(self.params) > 1:
            rows = iter(tensors)
            for stack in self._stacks.values():
                views = _C_ops.unbind(stack, 0)
                if views[0].data_ptr() != stack.data_ptr():  # without stride kernels
                    with _dygraph_place_guard(stack.place):  # `_slice` copies to the current device, and leaks a list
                        views = [stack._slice(row, row + 1) for row in range(len(self.params))]
                for view in views:
                    view._share_buffer_to(next(rows))
        self._addresses = list(map(Tensor.data_ptr, tensors))
        self._at = list(map(Tensor.data_ptr, [*self._stacks.values(), *self._targets]))

    def is_valid(self) -> bool:
        try:
            now = list(map(operator.getitem, self._dicts, self._keys))
        except KeyError:  # a state was removed
            return False
        same = all(map(Tensor.is_same_shape, self.params, self._targets)) and self.params[0].dtype == self._param_dtype
        for of in (Tensor.data_ptr, Tensor.is_contiguous):
            same = same and list(map(of, self.params)) == list(map(of, self._targets))
        return same and list(map(Tensor.data_ptr, now)) == self._addresses and all(map(Tensor.is_contiguous, now))

    def release(self, names: set[str]) -> None:
        """Give parameters that leave the batch state memory of their own."""
        rows = [param.name in names for param in self.params] * len(self._stacks)
        for leaves, by_owner, key, address in zip(rows, self._dicts, self._keys, self._addresses):
            tensor = by_owner.get(key) if leaves and len(self.params) > 1 else None
            if tensor is not None and tensor.data_ptr() == address:
                tensor.clone()._share_buffer_to(tensor)

    def update(self, grads: list[Tensor], lr: Any, options: Values, count: Optional[float]) -> None:
        single, state = len(self.params) == 1, Values()
        grad: Any = grads[0] if single else _C_ops.stack(grads, 0)
        grad = grad if grad.dtype == self.rule_dtype else grad.astype(self.rule_dtype)
        for name, shape in self._shapes.items():
            stack = self._stacks[name]
            value = stack if stack.dtype == self.rule_dtype else stack.astype(self.rule_dtype)
            state[name] = value if value.shape == shape else _C_ops.reshape(value, shape)
        params: Any = state.pop(_MASTER, None)
        if params is None:
            params = self._targets[0] if single else _C_ops.stack(self._targets, 0)
            params = params if params.dtype == self.rule_dtype else params.astype(self.rule_dtype)
        counted = counters(self._optimizer, state, count)
        state.update(counted)
        rule = self._optimizer.rule(params, grad, state, lr, shard=self._shard, **options)
        new_params, new_state = run_locally(rule)
        new_params, new_state = without_old(new_params, new_state, state)
        masters = {_MASTER: new_params} if _MASTER in self._stacks else {}
        for name, value in {**new_state, **counted, **masters}.items():
            stack = self._stacks[name]
            if value is stack:  # overwritten by the rule
                continue
            if not isinstance(value, Tensor):  # one rate for all
                value = paddle.full([], value, self.rule_dtype)
            value = value if value.dtype == stack.dtype else rounded(value, stack.dtype)
            if math.prod(value.shape) != math.prod(stack.shape):
                value = value.reshape([1] * len(stack.shape)).expand(stack.shape)
            _C_ops.assign_out_(_C_ops.reshape(value, stack.shape), stack)
        new_params = new_params if new_params.dtype == self._param_dtype else rounded(new_params, self._param_dtype)
        rows = [new_params] if single else _C_ops.unbind(new_params, 0)
        if rows[0] is not self._targets[0]:
            collections.deque(map(_C_ops.assign_out_, rows, self._targets), maxlen=0)
        if list(map(Tensor.data_ptr, [*self._stacks.values(), *self._targets])) != self._at:
            self._share()  # without a kernel of the device, the CPU's gives an in-place result new memory


def uncounted(tensor: Any) -> Any:
    """Return a Tensor of the same memory; its writes do not change `inplace_version`, as in Paddle."""
    if not paddle.in_dynamic_mode() or tensor.is_dist():
        return tensor
    if not tensor.is_contiguous():
        return tensor.detach()
    # Paddle's constructors of Tensors leak a list each; FLAGS_check_nan_inf would check what `empty` returns
    other = paddle.zeros(tensor.shape, tensor.dtype)
    tensor._share_buffer_to(other)
    return other


class Batches:
    """An optimizer's batches, and how the last step's rows are divided into them."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, ...], Batch] = {}
        self._key: Any = None  # all that the division depends on
        self._units: list[tuple[Batch, list[int], Any]] = []  # (batch, rows, factor of the rate)
        self._used: list[Batch] = []

    def prepared(self, optimizer: "LayerwiseOptimizer", rows: "Rows") -> Callable[[Optional[float]], None]:
        key = rows.params, list(map(_dtype, rows.grads)), *rows[2:4], len(rows.options), optimizer.batch_bytes
        same = self._key is not None and len(key[0]) == len(self._key[0]) and key[1:] == self._key[1:]
        same = same and all(map(Tensor.is_same_shape, rows.grads, rows.params))
        if not (same and all(map(operator.is_, key[0], self._key[0])) and all(map(Batch.is_valid, self._used))):
            self._units = self._divided(optimizer, rows)
            self._used, self._key = [batch for batch, *_ in self._units], key
        units = self._units

        def update(count: Optional[float]) -> None:
            for batch, members, scale in units:
                variant, grads = rows.variants[members[0]], list(map(rows.grads.__getitem__, members))
                with _dygraph_place_guard(batch.params[0].place):  # new numbers are made on the current device
                    batch.update(grads, rows.rates[variant] * scale, rows.options[variant], count)

        return update

    def _divided(self, optimizer: "LayerwiseOptimizer", rows: "Rows") -> list[tuple[Batch, list[int], Any]]:
        alike: dict[Any, list[int]] = {}
        sharing: collections.Counter[Any] = collections.Counter()  # parameters of the same memory take turns
        for i, (param, grad) in enumerate(zip(rows.params, rows.grads)):
            check_gradient(optimizer, param, grad)
            optimizer.check_param(param)
            sharing[param.data_ptr()] += 1
            rows.grads[i] = grad = in_shape(grad, param)
            types = param.dtype, grad.dtype, str(param.place)
            form = sharing[param.data_ptr()], tuple(param.shape), types, rows.variants[i]
            if 0 not in param.shape:
                alike.setdefault(form, []).append(i)
        units = []
        for (_, shape, *_), members in alike.items():
            param = rows.params[members[0]]
            size = math.prod(shape) * (8 if compute_dtype(param) == paddle.float64 else 4)
            most = 2**21 if param.place.is_cpu_place() else 2**26  # larger results get new memory pages on a CPU
            limit = max((most if optimizer.batch_bytes is None else optimizer.batch_bytes) // max(size, 1), 1)
            for begin in range(0, len(members), limit):
                part = members[begin : begin + limit]
                params, scales = [rows.params[i] for i in part], [rows.scales[i] for i in part]
                names, scale = tuple(p.name for p in params), float(scales[0])
                batch = self._batches.get(names)
                if batch is None or not all(map(operator.is_, batch.params, params)) or not batch.is_valid():
                    for old in [old for old in self._batches if not set(names).isdisjoint(old)]:
                        self._batches.pop(old).release(set(old) - set(names))
                    batch = self._batches[names] = Batch(optimizer, params)
                if any(other != scale for other in scales):
                    scale = _column(tuple(map(float, scales)), len(shape), batch.rule_dtype, str(param.place))
                units.append((batch, part, scale))
        return units


@functools.lru_cache(1024)  # the parameters that have a gradient may alternate
def _column(numbers: tuple[float, ...], rank: int, dtype: Any, place: str) -> Tensor:
    return paddle.to_tensor(numbers, dtype, place.partition("(")[2][:-1]).reshape([len(numbers), *[1] * rank])


def counters(optimizer: Any, state: Values, count: Optional[float]) -> Values:
    counted = {}
    if optimizer.counts_steps:
        together = optimizer.counts_together and GLOBAL_STEP not in state and count is not None
        counted[STEP] = paddle.full([], count, state[STEP].dtype) if together else state[STEP] + 1.0
    if GLOBAL_STEP in state:
        counted[GLOBAL_STEP] = paddle.full([], count, "float32")
    return counted


def without_old(new_param: Any, new_state: Values, old: Values) -> tuple[Any, Values]:
    """Copy old states that are another's new value."""
    names = dict(zip(map(id, old.values()), old))
    result = {"": new_param, **new_state}
    for name, value in result.items():
        if names.get(id(value), name) != name:
            result[name] = value.clone()
    return result.pop(""), result


# ---- single parameters: static graphs, `dist.shard_optimizer`, shards


def prepared_shards(optimizer: "LayerwiseOptimizer", rows: "Rows", shards: dict[str, Shard]) -> Callable[[Any], None]:
    """The update of shards, which runs in all processes together."""
    row_of = {param.name: i for i, param in enumerate(rows.params)}

    def update(count: Optional[float]) -> None:
        running: list[tuple[Shard, Any, Any]] = []  # with a rule, and a function that writes its result
        for name, shard in shards.items():
            param, row = optimizer.finder.params[name], row_of.get(name)
            waited_for = shard.span == (0, 0) and not param.stop_gradient and name not in optimizer.missing.names
            if row is not None:
                options, lr = rows.options[rows.variants[row]], rows.rates[rows.variants[row]] * rows.scales[row]
                tensors = rows.params[row], rows.grads[row]
                running.append((shard, *started(optimizer, *tensors, options, lr, shard, count)))
            elif waited_for and not optimizer.is_elementwise and optimizer.layerwise_ratio(param) != 0.0:
                # this process has no element: the others wait for its sums, which are zeros
                dtype, state = compute_dtype(param), Values()
                empty = paddle.zeros([0], dtype)
                for key, (per, _) in optimizer.states_of(param).items():
                    state[key] = empty if per == ELEMENT else paddle.zeros(rule_shape(per, shard.shape), dtype)
                state[STEP] = paddle.ones([], dtype)
                options, _ = optimizer.values_now(optimizer.group_of(param))
                rule = optimizer.rule(empty, empty, state, paddle.zeros([], dtype), shard=shard, **options)
                running.append((shard, rule, None))
        results = run_together([(shard, rule) for shard, rule, _ in running])
        for (*_, write), result in zip(running, results):
            if write is not None:
                write(*result)

    return update


def started(
    optimizer: Any, param: Tensor, grad: Tensor, options: Values, lr: Any, shard: Shard, count: Any
) -> tuple[Any, Callable[..., None]]:
    """A parameter's rule, not yet run, and a function that writes its result."""
    target, dtype = optimizer.owner_of(param), compute_dtype(param)
    states, stored = optimizer.states_of(param), optimizer.state_of(param)
    state = {name: stored[name].astype(dtype) for name in states}
    for name, (per, _) in states.items():
        if per == ELEMENT and target.shape:
            state[name] = shard.view(state[name])
        else:  # a number is stored as [1]
            state[name] = state[name].reshape(rule_shape(per, shard.shape) if target.shape else [])
    counted = counters(optimizer, state, count)
    state.update(counted)
    tensors = shard.view(target.astype(dtype)), shard.view(grad.astype(dtype))
    rule = optimizer.rule(*tensors, state, lr, shard=shard, **options)

    def write(new_param: Any, new_state: Values) -> None:
        new_param, new_state = without_old(new_param, new_state, state)
        overflow = None if paddle.in_dynamic_mode() else optimizer._get_auxiliary_var("found_inf")
        for name, value in {**new_state, **counted}.items():
            _write(value, stored[name], overflow, shard if states[name].per == ELEMENT else None)
        _write(new_param, uncounted(target), overflow, shard)
        if target is not param:
            _write(new_param, uncounted(param), overflow, shard)

    return rule, write


def _write(value: Any, target: Any, overflow: Any, shard: Optional[Shard]) -> None:
    if not isinstance(value, (Tensor, type(target))):
        value = paddle.full([], value, target.dtype)
    if overflow is not None:  # static AMP runs the update regardless; a CPU has no `where` of float16
        value = paddle.where(overflow, target.astype(value.dtype), value.reshape(target.shape))
    value = value.astype(target.dtype)
    if shard is not None and shard.slice_size is not None:
        _C_ops.assign_out_(value.flatten(), target._slice(0, shard.slice_size))
        return
    if list(value.shape) != list(target.shape):  # [1] holds a state of shape []
        value = value.reshape(target.shape)
    if paddle.in_dynamic_mode():
        _C_ops.assign_out_(value, target)
    else:
        frozen = target.stop_gradient
        paddle.assign(value, target)
        target.stop_gradient = frozen  # `assign` copies the value's, and a later `minimize` would skip the parameter
