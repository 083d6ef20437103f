"""The update of one parameter at a time: checks its gradient, runs the rule and writes its result."""

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import paddle
from paddle import Tensor

from ... import _paddle
from .._shards import Shard, run_locally, run_together
from ..states import ELEMENT, SCALAR, STEP, compute_dtype, rule_shape

if TYPE_CHECKING:
    from .._base.layerwise_optimizer import LayerwiseOptimizer
    from .._base.rule_optimizer import RuleOptimizer

_FLOATS = {paddle.float16, paddle.bfloat16, paddle.float32, paddle.float64}
_COMPLEX = {paddle.complex64, paddle.complex128}
Values = dict[str, Any]  # by name, of states or of options
Update = Generator[list[Any], list[Any], tuple[Any, Values]]  # a running rule


class Task(NamedTuple):
    """The pending update of one parameter."""

    param: Tensor  # the parameter, or its flat slice under `fleet`
    grad: Tensor  # its gradient
    options: dict[str, Any]  # "weight_decay" is 0 for a parameter excluded from it
    lr: Any  # with the layer's ratio, a Tensor of shape [] in the type of the update; in a plan (factor, ratio)
    shard: Any = None  # the `Shard` of the parameter in this process, set right before the update


def check_gradient_fits(optimizer: "LayerwiseOptimizer", param: Tensor, grad: Tensor) -> None:
    """Raise for a parameter that is not floating-point, and a gradient that is complex, sparse or of another size."""
    sparse = getattr(grad, "is_selected_rows", lambda: False)()
    if sparse and not optimizer.takes_sparse(param):
        needs = f"{type(optimizer).__name__} needs dense gradients: build the embedding with sparse=False."
        raise TypeError(f"{needs} Received: a sparse gradient of '{param.name}'")
    if paddle.in_dynamic_mode() and (param.dtype not in _FLOATS or grad.dtype in _COMPLEX):
        raise TypeError(
            "Parameters must be floating-point tensors with real gradients: freeze others, split complex ones into "
            f"two. Received: '{param.name}' of type {param.dtype} with a gradient of type {grad.dtype}"
        )
    if paddle.in_dynamic_mode() and not sparse and math.prod(grad.shape) != math.prod(param.shape):
        wrong = "A gradient must have the size of its parameter: Paddle's kernel would read memory behind it."
        raise ValueError(
            f"{wrong} Received: '{param.name}' of shape {list(param.shape)}, gradient of shape {list(grad.shape)}"
        )


def in_shape(grad: Tensor, param: Tensor) -> Any:
    """Return a gradient in the shape of its parameter; `ClipGradByGlobalNorm` makes [1] of []."""
    return grad if list(grad.shape) == list(param.shape) else grad.reshape(param.shape)


def update(optimizer: "LayerwiseOptimizer", task: Task) -> None:
    """Update a parameter that this process has whole."""
    running, write = _start(optimizer, task)
    write(*run_locally(running))


def update_shards(optimizer: "RuleOptimizer", tasks: dict[str, Task], shards: dict[str, Shard]) -> None:
    """Update parameters in shards, together with the other processes that have shards of them."""
    rules, writes = [], []
    for name, shard in shards.items():
        param = optimizer.finder.params[name]
        if not shard.groups or param.stop_gradient or name in optimizer.missing.names:
            continue
        if optimizer.layerwise_ratio(param) == 0.0:
            continue
        if name in tasks:
            rule, write = _start(optimizer, tasks[name])
        elif shard.span == (0, 0):  # the other processes wait for its sums
            rule, write = _start_empty(optimizer, param, shard), None
        else:
            continue
        rules.append((shard, rule))
        writes.append(write)
    for write, result in zip(writes, run_together(rules)):
        if write is not None:
            write(*result)


def _start(optimizer: "LayerwiseOptimizer", task: Task) -> tuple[Update, Callable[..., None]]:
    """Return the rule of a task, not run yet, and a function that writes its result."""
    param, shard = task.param, task.shard or Shard(list(task.param.shape))
    target = _paddle.masters(optimizer)[param.name] if optimizer.has_master(param) else param
    dtype, kinds = compute_dtype(param), {**optimizer.state_kinds(param), STEP: SCALAR}
    stored_as = _paddle.state_getter(optimizer)
    stored = {name: stored_as(name, param) for name in kinds}
    state = {name: value.astype(dtype) for name, value in stored.items()}
    for name, kind in kinds.items():
        if kind == SCALAR or not target.shape:  # stored as [1]
            state[name] = state[name].reshape([])
        elif kind == ELEMENT:
            state[name] = shard.view(state[name])
        else:
            state[name] = state[name].reshape(rule_shape(kind, shard.shape))
    counted = optimizer.counted(state)
    state.update(counted)
    tensors = shard.view(target.astype(dtype)), shard.view(task.grad.astype(dtype))
    running = optimizer.rule(*tensors, state, task.lr, shard=shard, **task.options)

    def write(new_param: Any, new_state: dict[str, Any]) -> None:
        new_param, new_state = without_old(new_param, new_state, state)
        overflow = None if paddle.in_dynamic_mode() else _paddle.found_inf(optimizer)
        for name, value in {**new_state, **counted}.items():
            _write(value, stored[name], overflow, shard if kinds[name] == ELEMENT else None)
        _write(new_param, target, overflow, shard)
        if target is not param:
            _write(new_param, param, overflow, shard)

    return running, write


def without_old(new_param: Any, new_state: Values, old: Values) -> tuple[Any, Values]:
    """Return a rule's result with a copy of each old state that is another's new value: writing may overwrite it."""
    names = {id(value): name for name, value in old.items()}

    def copied(value: Any, name: str) -> Any:
        return value if names.get(id(value), name) == name else value.clone()

    return copied(new_param, ""), {name: copied(value, name) for name, value in new_state.items()}


def _start_empty(optimizer: "LayerwiseOptimizer", param: Tensor, shard: Shard) -> Update:
    """Return the rule of a parameter of which this process has no element: its sums are zeros."""
    dtype, empty = compute_dtype(param), paddle.zeros([0], compute_dtype(param))
    state = {
        name: empty if kind == ELEMENT else paddle.zeros(rule_shape(kind, shard.shape), dtype)
        for name, kind in optimizer.state_kinds(param).items()
    }
    state[STEP] = paddle.ones([], dtype)
    return optimizer.rule(empty, empty, state, paddle.zeros([], dtype), shard=shard, **optimizer.step_options(param))


def _write(value: Any, target: Any, overflow: Any = None, shard: Optional[Shard] = None) -> None:
    if overflow is not None:  # static AMP runs the update regardless; a CPU has no `where` of float16
        value = paddle.where(overflow, target.astype(value.dtype), value.reshape(target.shape))
    value = value.astype(target.dtype)
    if shard is not None and shard.slice_size is not None:
        _paddle.assign_out(value.flatten(), shard.stored(target))
        return
    if list(value.shape) != list(target.shape):  # [1] holds a state of shape []
        value = value.reshape(target.shape)
    if paddle.in_dynamic_mode():
        _paddle.assign_out(value, target)
    else:
        frozen = target.stop_gradient
        paddle.assign(value, target)
        target.stop_gradient = frozen  # `assign` copies the value's, and a later `minimize` would skip the parameter
