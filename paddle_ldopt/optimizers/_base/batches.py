"""Batches of parameters with one shape, type and set of options: the rule updates a stack [k, ...] of them.

On an accelerator the launches of operations from Python limit a step. A `Batch` launches them once for all of its
parameters.

Paddle's dicts still hold the state of each parameter, which shares the memory of a row of the stack. If a state has
other memory (after loading, casting or copying), the batch is built again. Parameters and gradients are copied into a
stack in each step, which is freed after it.
"""

import collections
import math
import operator
from typing import Any, Optional

import paddle

from ... import _paddle
from .._shards import Shard, answer_locally
from ..states import ELEMENT, SCALAR, STEP
from .declared import compute_dtype, rule_shape
from .step import Task

_MASTER = "master"
_Tensor = paddle.Tensor


class Batches:
    """The batches of an optimizer's parameters."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], Batch] = {}  # names of the parameters -> the batch

    def __deepcopy__(self, memo: Any) -> "Batches":
        return Batches()  # the copied optimizer has tensors of its own

    def split(self, optimizer: Any, tasks: list[Task]) -> list[tuple[Optional["Batch"], list[Task]]]:
        """Return (batch, its tasks) for batches of at most `batch_bytes`, and (None, [task]) for other tasks."""
        if not paddle.in_dynamic_mode():
            return [(None, [task]) for task in tasks]
        found: dict[Any, list[Task]] = {}
        for task in tasks:
            param = task.param
            key = tuple(param.shape), param.dtype, task.grad.dtype, *task.options.values()
            found.setdefault(key if _can_be_stacked(task) else param.name, []).append(task)
        units: list[tuple[Optional[Batch], list[Task]]] = []
        for alike in found.values():
            param = alike[0].param
            limit = _most_bytes(optimizer, param) // (math.prod(param.shape) * (8 if _paddle.is_float64(param) else 4))
            if limit == 0 or not _can_be_stacked(alike[0]):
                units += [(None, [task]) for task in alike]
                continue
            for begin in range(0, len(alike), limit):
                together = alike[begin : begin + limit]
                batch = self._batch(optimizer, [task.param for task in together])
                units += [(None, [task]) for task in together] if batch is None else [(batch, together)]
        return units

    def _batch(self, optimizer: Any, params: list[Any]) -> Optional["Batch"]:
        """Return the batch of these parameters, reused if it still holds; None if their state is not contiguous."""
        names = tuple(param.name for param in params)
        batch = self._kept.get(names)
        if batch is not None and batch.holds():
            return batch
        for old in [old for old in self._kept if not set(names).isdisjoint(old)]:
            self._kept.pop(old).release(set(old) - set(names))
        batch = Batch(optimizer, params)
        if not batch.is_contiguous():
            return None
        batch.build()
        self._kept[names] = batch
        return batch


class Batch:
    """Parameters that are updated together, and the stacks of their state."""

    def __init__(self, optimizer: Any, params: list[Any]) -> None:
        first = params[0]
        self._optimizer, self.params, self.dtype = optimizer, params, compute_dtype(first)
        self._shard, self._kinds = Shard(list(first.shape)), {**optimizer.state_kinds(first), STEP: SCALAR}
        owners = [_paddle.masters(optimizer).get(param.name, param).name for param in params]
        self._of_owners = operator.itemgetter(*owners)
        self._stacks: dict[str, Any] = {}  # state or masters -> [k, ...]; of a single parameter the tensor itself
        self._shared: dict[str, list[Any]] = {}  # state or masters -> the optimizer's tensors, which share this memory
        self._stored = {**self._kinds, **({_MASTER: ELEMENT} if optimizer.has_master(first) else {})}
        self._keys = {name: _paddle.prefixed(optimizer, name) for name in self._kinds}

    def is_contiguous(self) -> bool:
        """Return whether all state is contiguous, unlike that of a parameter that was transposed in place."""
        return all(all(map(_Tensor.is_contiguous, self._tensors(name))) for name in self._stored)

    def build(self) -> None:
        """Copy all state into stacks, and let the optimizer's tensors share their memory."""
        for name, kind in self._stored.items():
            tensors = self._shared[name] = self._tensors(name)
            if len(tensors) == 1:
                self._stacks[name] = _paddle.view_of(tensors[0], self._shape(kind))
                continue
            stack = self._stacks[name] = _paddle.stack(tensors, 0).reshape(self._shape(kind))
            for row, tensor in enumerate(tensors):
                _paddle.share_memory(_paddle.slice_of(stack, row, row + 1), tensor)

    def _shape(self, kind: str) -> list[int]:
        """Return the shape of a stack as the rule sees it: [k, *shape for one parameter]."""
        shape = self._shard.shape
        if len(self.params) == 1:
            return rule_shape(kind, shape)
        return [len(self.params), *([1] * len(shape) if kind == SCALAR else rule_shape(kind, shape))]

    def _tensors(self, name: str) -> list[Any]:
        """Return the optimizer's tensors of a state or the masters."""
        if name == _MASTER:
            masters = _paddle.masters(self._optimizer)
            return [masters[param.name] for param in self.params]
        found = self._of_owners(_paddle.accumulators(self._optimizer)[self._keys[name]])
        return [found] if len(self.params) == 1 else list(found)

    def holds(self) -> bool:
        """Return whether the optimizer's tensors still share the memory of the stacks.

        Of the memory only the first address is compared: Paddle moves that of a state as a whole, and reading the
        addresses of all takes a tenth of a step.
        """
        try:
            now = [self._tensors(name) for name in self._stored]
        except KeyError:  # a state was removed
            return False
        same = all(all(map(operator.is_, *pair)) for pair in zip(now, self._shared.values()))
        firsts = [tensors[0].data_ptr() for tensors in now]
        return same and firsts == [stack.data_ptr() for stack in self._stacks.values()]

    def release(self, names: set[str]) -> None:
        """Give parameters that leave the batch memory of their own for their state."""
        for name, shared in self._shared.items():
            for param, tensor, now in zip(self.params, shared, self._tensors(name)):
                if param.name in names and tensor is now:
                    _paddle.share_memory(tensor.clone(), tensor)

    def spread(self, values: list[float], dtype: Any) -> Any:
        """Return one number for each parameter as a Tensor for the rule; the number itself if all are equal."""
        same = all(value == values[0] for value in values)
        return values[0] if same else paddle.to_tensor(values, dtype).reshape(self._shape(SCALAR))

    def rates(self, tasks: list[Task]) -> Any:
        """Return the rates of the parameters as a Tensor for the rule; of one rate, that Tensor itself."""
        rates = [task.lr for task in tasks]
        if all(rate is rates[0] for rate in rates):
            return rates[0]
        return _paddle.stack(rates, 0).reshape(self._shape(SCALAR))

    def update(self, grads: list[Any], lr: Any, options: dict[str, Any]) -> None:
        """Update all parameters once."""
        master, single = self._stacks.get(_MASTER), len(self.params) == 1
        params, grad = master, grads[0] if single else _paddle.stack(grads, 0)
        if master is None:
            params = self.params[0] if single else _paddle.stack(self.params, 0)
        params, grad = _cast(params, self.dtype), _cast(grad, self.dtype)
        state = {name: _cast(self._stacks[name], self.dtype) for name in self._kinds}
        counted = self._optimizer._counted(state)
        state.update(counted)
        rule = self._optimizer.rule(params, grad, state, lr, shard=self._shard, **options)
        new_params, new_state = answer_locally(rule)
        for name, value in {**new_state, **counted}.items():
            stack = self._stacks[name]
            if value is stack:  # overwritten by the rule
                continue
            if not value.is_same_shape(stack):
                value = value.expand(stack.shape)  # one rate or one count for all
            _paddle.assign_out(_cast(value, stack.dtype), stack)
        if master is not None:
            _paddle.assign_out(new_params, master)
        new_params = _cast(new_params, self.params[0].dtype)
        rows = [new_params] if single else _paddle.unstack(new_params, 0)
        collections.deque(map(_paddle.assign_out, rows, self.params), maxlen=0)


def _most_bytes(optimizer: Any, param: Any) -> int:
    """Return `batch_bytes` or the default of the device; on a CPU, larger results get new memory pages each time."""
    if optimizer.batch_bytes is not None:
        return int(optimizer.batch_bytes)
    return 2**21 if param.place.is_cpu_place() else 2**26


def _can_be_stacked(task: Task) -> bool:
    return task.grad.is_same_shape(task.param) and not task.param.is_dist()


def _cast(tensor: Any, dtype: Any) -> Any:
    return tensor if tensor.dtype is dtype else tensor.astype(dtype)
