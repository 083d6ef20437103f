"""The base of the optimizers whose update is a function of tensors."""

import math
from typing import Any, Callable, Optional

import paddle
from paddle import Tensor
from paddle.optimizer.lr import LRScheduler

from ... import _paddle
from ..._checks import checked_number, checked_state
from ..._messages import refusal
from .._step.operations import Operations
from .._step.updates import Task, Values, in_shape, update_shards
from .._step.whole_step import scaled_lr
from ..shared_options import COMMON
from ..states import COLUMN, ROW, STEP, compute_dtype
from .arithmetic import add_
from .layerwise_optimizer import LayerwiseOptimizer
from .rule_state import largest_of, plain, refuse_rows_in_graph, unified_name


class RuleOptimizer(LayerwiseOptimizer):
    """Base of the optimizers whose update is a function of tensors.

    A subclass declares

    - `OPTIONS`: name -> `Option`, with a default unless the constructor has it;
    - `states(options, shape)`: name -> `State`;
    - `rule(param, grad, state, lr, *, shard, **options)`, which returns (new parameter, new state). It may overwrite
      `param` and `state`, but not `grad`. Its tensors are float32 (float64 for float64 parameters). They may be stacks
      of parameters, of shape [k, *shape]; `lr` then has one element, or the shape [k, 1, ...]. So the rule reads the
      shape of a parameter from `shard.shape` and sums with methods of `shard`: `grad.sum()` would mix parameters. It
      yields lists of sums over its part of the tensor and receives the sums over the whole tensor, across all
      processes (see `_shards`)::

        def rule(param, grad, state, lr, *, shard, beta1):
            moment = beta1 * state["moment1"] + (1 - beta1) * grad
            (square,) = yield [shard.square_sum(moment)]
            return param - lr * moment / square.sqrt(), {"moment1": moment}

    It may override `fused_rule` (the rule in the C library), `check_together` (options that exclude each other),
    `rule_clips`, and, if it sets its rate, `sets_own_lr`, `lr_now_and_peak`, `_checked_lr`, `_initial_lr`.

    It takes the arguments of all optimizers (see `AdamWDL`), the declared options, and `batch_bytes`.

    Args:
        batch_bytes: the size limit of a batch, a set of parameters of one shape, type and set of options that Paddle's
            operations update together. A step needs up to twelve times as much temporary memory. Larger parameters
            are updated one by one; with 0, all parameters are updated one by one. None: 64 MB on an accelerator; 2 MB
            on a CPU, where larger batches are slower. An error with ``fused=True``, which has no batches.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        parameters: Any = None,
        *,
        grad_clip: Any = None,
        apply_decay_param_fun: Optional[Callable[[str], bool]] = None,
        multi_precision: bool = False,
        name: Optional[str] = None,
        fused: Optional[bool] = None,
        batch_bytes: Optional[int] = None,
        **arguments: Any,
    ) -> None:
        rate = self._checked_lr(learning_rate)
        self.batch_bytes = COMMON["batch_bytes"].checked(batch_bytes, "batch_bytes")
        parameters = self._read_arguments(parameters, apply_decay_param_fun, multi_precision, fused, **arguments)
        if fused and batch_bytes is not None:
            wrong = "`batch_bytes` has no effect with `fused=True`, which updates all parameters in the C library."
            raise refusal(ValueError, f"{wrong} Give one of them.", fused=True, batch_bytes=batch_bytes)
        self._operations = Operations()
        _paddle.set_attributes(self, param_groups=None, multi_precision=multi_precision)
        _paddle.set_attributes(self, apply_decay_param_fun=apply_decay_param_fun)
        # no `weight_decay`: Paddle would add an L2 penalty to the gradient
        super().__init__(self._initial_lr(rate, parameters), parameters, grad_clip=grad_clip, name=name)
        self.type = type(self).__name__.lower()

    # ---- for subclasses to define or override

    def _checked_lr(self, learning_rate: Any) -> Any:
        return checked_lr(learning_rate, "learning_rate")

    def _initial_lr(self, rate: Any, parameters: Any) -> Any:
        """Return the initial rate as Paddle takes it, a float or a scheduler; called when the options are known."""
        return rate

    # ---- groups

    def _add_param_group(self, param_group: dict[str, Any]) -> None:
        # hidden from Paddle, which would add an L2 penalty
        hidden = {"weight_decay": param_group.pop("weight_decay")} if "weight_decay" in param_group else {}
        super()._add_param_group(param_group)
        param_group.pop("weight_decay", None)
        param_group.update(hidden)

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        lr, own = super()._create_param_lr(param_and_grad), self.group_lr(param_and_grad[0])
        return lr if own is None else scaled_lr(paddle.full_like(lr, own), 1.0, self.layerwise_ratio(param_and_grad[0]))

    def _known_names(self) -> Any:
        return self.finder.params

    # ---- the parts of `step`

    def _backends(self) -> list[Any]:
        return [self.fused_step, self._operations]

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> None:
        """Collect the update of one parameter; in a static graph, add its operations."""
        param, grad = _paddle.content_of(param_and_grad)
        if self._is_frozen(param) or math.prod(param.shape) == 0:
            return
        self.check_shape(param)
        task = Task(param, in_shape(grad, param), self.step_options(param), self._param_lr(param, grad))
        if self._tasks is None:
            self._operations.update(self, self.fused_step.update(self, [task]))
        else:
            self._tasks.append(task)

    def check_shape(self, param: Tensor) -> None:
        """Raise if the optimizer was not built with this parameter, or its shape has changed."""
        if paddle.in_dynamic_mode() and self.finder.params:
            self.finder.check(param)

    def _update(self, tasks: list[Task]) -> None:
        """Update the parameters without shards in other processes, then the parameters with such shards."""
        shards = self.finder.find(_paddle.parameter_list(self))
        tasks = [task._replace(shard=shards[task.param.name]) for task in tasks if task.param.name in shards]
        if self.fused and any(task.shard.groups or task.shard.slice_size is not None for task in tasks):
            where = "parameters in shards (tensor parallel, sharding version 2)"
            raise ValueError(f"`fused=True` does not support {where}: use None or False. Received: fused=True")
        alone = [task for task in tasks if not task.shard.groups]
        rest = self.fused_step.update(self, [task for task in alone if task.shard.slice_size is None])
        self._operations.update(self, [*rest, *(task for task in alone if task.shard.slice_size is not None)])
        update_shards(self, {task.param.name: task for task in tasks if task.shard.groups}, shards)

    # ---- counts

    _COUNT = STEP  # the state whose largest value of any parameter is the number of steps taken; a resume restores it
    _count_elsewhere: Optional[tuple[Any, Any]] = None  # after a step elsewhere: (largest count here, steps taken)

    def counted(self, state: Values) -> Values:
        """Return the counters after this update, given the state before it."""
        return {STEP: add_(state[STEP], 1.0)}

    def _count_taken(self) -> Any:
        """Return the number of steps taken, a Tensor."""
        count = largest_of(self, self._COUNT)
        if self._count_elsewhere is None:
            return count
        return paddle.where(count == self._count_elsewhere[0], self._count_elsewhere[1], count)

    def _steps_taken(self) -> float:
        """Return the number of steps taken; it waits for the device."""
        return float(self._count_taken())

    def _count_step_of_other_processes(self) -> None:
        self._count_elsewhere = largest_of(self, self._COUNT), self._count_taken() + 1.0

    # ---- state

    def _whole_shape(self, param: Tensor) -> list[int]:
        return list(self.finder.shape(param))

    def state_layout(self, param: Tensor) -> dict[str, Any]:
        """Return state name -> (dtype, shape) of a parameter's stored state and step counter."""
        # PaddleNLP's unified checkpoints cannot be read with shape []
        layout = {name: (dtype, shape or [1]) for name, (dtype, shape) in super().state_layout(param).items()}
        return {**layout, STEP: (compute_dtype(param), [1])}

    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        for param in _paddle.content_of(parameters):
            self.check_type(param)
            if param.name in _paddle.with_state(self):
                continue
            self.check_shape(param)
            refuse_rows_in_graph(self, param)
            owner = _paddle.new_master(self)(param) if self.has_master(param) else param
            for name, (dtype, shape) in self.state_layout(param).items():
                _paddle.new_state(self)(name, owner, fill_value=0.0, dtype=_paddle.state_dtype(dtype), shape=shape)
            _paddle.with_state(self).add(param.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the state under names for PaddleNLP's unified checkpoints; raise if sharding would misread it."""
        kinds = {name: kind for p in self.finder.params.values() for name, kind in self.state_kinds(p).items()}
        is_split = _paddle.is_called_by("sharded_state_dict") and self.finder.is_sliced(_paddle.parameter_list(self))
        if is_split and {ROW, COLUMN} & set(kinds.values()):
            raise ValueError(
                "Paddle's `sharded_state_dict` for `split_param` reads all state as elements and would save rows and "
                "columns at wrong offsets: use `paddle_ldopt.parallel.save_checkpoint`. "
                f"Received: {type(self).__name__} with states {', '.join(sorted({STEP, *kinds}))}"
            )
        # Paddle omits the loaded state of parameters that had no gradient yet
        state = {**_paddle.waiting_state(self), **super().state_dict()}
        names = {*_paddle.accumulators(self), *(_paddle.prefixed(self, name) for name in (STEP, *kinds))}
        return {unified_name(key, names): value for key, value in state.items()}

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, including "master_weights" and "LR_Scheduler" if present."""
        super().set_state_dict(plain(checked_state(state_dict)))


def checked_lr(learning_rate: Any, argument: str) -> Any:
    """Return a learning rate as a float or a scheduler; raise if it is neither."""
    if isinstance(learning_rate, LRScheduler):
        return learning_rate
    return checked_number(
        learning_rate, argument, expected="a number or an LRScheduler; parameters go into `parameters=`"
    )
