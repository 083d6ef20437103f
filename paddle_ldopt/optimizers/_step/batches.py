"""Batches of parameters with one shape, type and set of options: the rule updates a stack [k, ...] of them.

On an accelerator the launches of operations from Python limit a step; a `Batch` launches them once for all parameters.
The state in Paddle's dicts shares the memory of a row of the stack. If a state has other memory (after loading, casting
or copying), the batch is built again. Parameters and gradients are copied into a stack for each step.
"""

import collections
import operator
from typing import TYPE_CHECKING, Any

import paddle
from paddle import Tensor

from ... import _paddle
from .._shards import Shard, run_locally
from ..states import ELEMENT, SCALAR, STEP, compute_dtype, rule_shape
from .updates import Task, without_old

if TYPE_CHECKING:
    from .._base.rule_optimizer import RuleOptimizer

_MASTER = "master"


class Batch:
    """Parameters that are updated together, and the stacks of their state."""

    def __init__(self, optimizer: "RuleOptimizer", params: list[Tensor]) -> None:
        first = params[0]
        self._optimizer, self.params, self.dtype = optimizer, params, compute_dtype(first)
        self._shard, self._kinds = Shard(list(first.shape)), {**optimizer.state_kinds(first), STEP: SCALAR}
        self._of_owners = operator.itemgetter(*(_paddle.masters(optimizer).get(p.name, p).name for p in params))
        self._stacks: dict[str, Any] = {}  # state or masters -> [k, ...]; of a single parameter the tensor itself
        self._addresses: list[list[int]] = []
        self._form = list(first.shape), first.dtype
        self._stored = {**self._kinds, **({_MASTER: ELEMENT} if optimizer.has_master(first) else {})}
        self._keys = {name: _paddle.prefixed(optimizer, name) for name in self._kinds}

    def is_contiguous(self) -> bool:
        """Return whether all state is contiguous, unlike that of a parameter that was transposed in place."""
        return all(all(map(Tensor.is_contiguous, self._tensors(name))) for name in self._stored)

    def build(self) -> None:
        """Copy all state into stacks, and let the optimizer's tensors share their memory."""
        for name, kind in self._stored.items():
            tensors = self._tensors(name)
            if len(tensors) == 1:
                self._stacks[name] = _paddle.view_of(tensors[0], self._shape(kind))
                continue
            stack = self._stacks[name] = _paddle.stack(tensors, 0).reshape(self._shape(kind))
            for row, tensor in enumerate(tensors):
                _paddle.share_memory(_paddle.slice_of(stack, row, row + 1), tensor)
        self._addresses = [list(map(Tensor.data_ptr, self._tensors(name))) for name in self._stored]

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

    def is_valid(self) -> bool:
        """Return whether the parameters have their form, and the optimizer's tensors still share the stacks' memory."""
        if (list(self.params[0].shape), self.params[0].dtype) != self._form:
            return False
        try:
            now = [self._tensors(name) for name in self._stored]
        except KeyError:  # a state was removed
            return False
        same = all(list(map(Tensor.data_ptr, tensors)) == at for tensors, at in zip(now, self._addresses))
        return same and all(all(map(Tensor.is_contiguous, tensors)) for tensors in now)

    def release(self, names: set[str]) -> None:
        """Give parameters that leave the batch memory of their own for their state, unless it was removed."""
        masters, rows = _paddle.masters(self._optimizer), [i for i, p in enumerate(self.params) if p.name in names]
        for name, addresses in zip(self._stacks, self._addresses):
            for row in rows:
                param = self.params[row]
                if name == _MASTER:
                    tensor = masters.get(param.name)
                else:
                    state = _paddle.accumulators(self._optimizer)[self._keys[name]]
                    tensor = state.get(masters.get(param.name, param).name)
                if tensor is not None and tensor.data_ptr() == addresses[row]:
                    _paddle.share_memory(tensor.clone(), tensor)

    def spread(self, values: list[float], dtype: Any) -> Any:
        """Return one number for each parameter as a Tensor for the rule; the number itself if all are equal."""
        same = all(value == values[0] for value in values)
        return float(values[0]) if same else paddle.to_tensor(values, dtype).reshape(self._shape(SCALAR))

    def lr_of(self, tasks: list[Task]) -> Any:
        """Return the rates of the parameters as a Tensor for the rule; of one rate, that Tensor itself."""
        rates = [task.lr for task in tasks]
        if all(rate is rates[0] for rate in rates):
            return rates[0]
        return _paddle.stack(rates, 0).reshape(self._shape(SCALAR))

    def update(self, grads: list[Tensor], lr: Any, options: dict[str, Any]) -> None:
        """Update all parameters once."""
        master, single = self._stacks.get(_MASTER), len(self.params) == 1
        params, grad = master, grads[0] if single else _paddle.stack(grads, 0)
        if master is None:
            params = self.params[0] if single else _paddle.stack(self.params, 0)
        params, grad = cast(params, self.dtype), cast(grad, self.dtype)
        state = {name: cast(self._stacks[name], self.dtype) for name in self._kinds}
        counted = self._optimizer.counted(state)
        state.update(counted)
        rule = self._optimizer.rule(params, grad, state, lr, shard=self._shard, **options)
        new_params, new_state = run_locally(rule)
        new_params, new_state = without_old(new_params, new_state, state)
        for name, value in {**new_state, **counted}.items():
            stack = self._stacks[name]
            if value is stack:  # overwritten by the rule
                continue
            if not value.is_same_shape(stack):
                value = value.expand(stack.shape)  # one rate or one count for all
            _paddle.assign_out(cast(value, stack.dtype), stack)
        if master is not None and new_params is not master:
            _paddle.assign_out(new_params, master)
        new_params = cast(new_params, self.params[0].dtype)
        rows = [new_params] if single else _paddle.unstack(new_params, 0)
        if rows[0] is not self.params[0]:
            collections.deque(map(_paddle.assign_out, rows, self.params), maxlen=0)


def cast(tensor: Any, dtype: Any) -> Any:
    return tensor if tensor.dtype == dtype else tensor.astype(dtype)
