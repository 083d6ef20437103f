"""The base of the optimizers whose update is a pure function."""

import math
from typing import Any, Callable, ClassVar, Optional

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ... import _paddle
from ..._checks import checked_number
from ..._messages import refusal
from .._shards import Shard, ShardFinder
from ..options import BATCHED
from ..states import STEP
from .batches import Batches
from .declared import compute_dtype
from .repeated import RepeatedStep
from .rule_state import RuleState
from .step import LayerwiseOptimizer, Task
from .updates import Update, Values, update, update_shards


class RuleOptimizer(RuleState, LayerwiseOptimizer, Optimizer):
    """Base of the optimizers whose update is a pure function.

    A subclass declares

    - `OPTIONS`: name -> `Option`, and `states(options, shape)`: name -> `State`;
    - `rule(param, grad, state, lr, *, shard, **options)`, which returns (new parameter, new state) and writes nothing.
      Its tensors are float32 (float64 for float64 parameters). It yields lists of sums over its part of the tensor and
      receives the sums over the whole tensor, across all processes (see `_shards`)::

        def rule(param, grad, state, lr, *, shard, beta1):
            moment = beta1 * state["moment1"] + (1 - beta1) * grad
            (square,) = yield [shard.square_sum(moment)]
            return param - lr * moment / square.sqrt(), {"moment1": moment}

    - `sums(options, shape)`: the kinds of these sums, if the rule yields any.

    It may override `fused_rule` and `fused_flags` (the rule in the C library), `check_together` (options that exclude
    each other), `rule_clips`, and, if it sets its rate, `sets_own_rate`, `shown_rate`, `_read_rate`,
    `_prepare`, `_initial_rate`.

    It takes the arguments of all optimizers (see `AdamWDL`), the declared options, and

    Args:
        batch_bytes: size limit of a batch: parameters of one shape, type and set of options that Paddle's operations
            update together. A step needs up to twelve times as much temporary memory. Larger parameters are updated one
            by one; with 0 all are. None: 64 MB on an accelerator; 2 MB on a CPU, where larger batches are slower. An
            error with ``fused=True``, which has no batches.
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
        rate = self._read_rate(learning_rate)
        self.batch_bytes = BATCHED["batch_bytes"].checked(batch_bytes, "batch_bytes")
        parameters = self._read_arguments(parameters, arguments, apply_decay_param_fun, multi_precision, fused)
        if fused and batch_bytes is not None:
            wrong = "`batch_bytes` has no effect with `fused=True`, which updates all parameters in the C library."
            raise refusal(ValueError, f"{wrong} Give one of them.", fused=True, batch_bytes=batch_bytes)
        self._finder, self._batches = ShardFinder(_paddle.flatten_groups(parameters or [])), Batches()
        _paddle.set_attributes(self, param_groups=None, multi_precision=multi_precision)
        _paddle.set_attributes(self, apply_decay_param_fun=apply_decay_param_fun)
        self._prepare(rate, parameters)
        # no `weight_decay`: Paddle would add an L2 penalty to the gradient
        super().__init__(self._initial_rate(rate, parameters), parameters, grad_clip=grad_clip, name=name)
        self.type = type(self).__name__.lower()

    # ---- for subclasses to define or override

    rule: ClassVar[Callable[..., Update]]
    _last: Optional[RepeatedStep] = None  # the last step, if Paddle's operations took it

    def own_rate(self, param: Any) -> Optional[float]:
        """Return the rate of the parameter's group that overrides the optimizer's, or None."""
        return self._group_of(param).get("lr")

    def _read_rate(self, learning_rate: Any) -> Any:
        """Return the constructor's rate after checking it."""
        return checked_rate(learning_rate, "learning_rate")

    def _prepare(self, rate: Any, parameters: Any) -> None:
        """Set attributes of the subclass; called when the options are known, before Paddle's constructor."""

    def _initial_rate(self, rate: Any, parameters: Any) -> Any:
        """Return the initial rate as Paddle takes it, a float or a scheduler; called after `_prepare`."""
        return rate

    # ---- groups

    def _add_param_group(self, param_group: dict[str, Any]) -> None:
        # hidden from Paddle, which would add an L2 penalty
        hidden = {"weight_decay": param_group.pop("weight_decay")} if "weight_decay" in param_group else {}
        super()._add_param_group(param_group)
        param_group.pop("weight_decay", None)
        param_group.update(hidden)

    def _update_param_group(self, parameters: dict[str, Any]) -> Any:
        return parameters["params"]

    def _create_param_lr(self, param_and_grad: Any) -> Any:
        lr, own = super()._create_param_lr(param_and_grad), self.own_rate(param_and_grad[0])
        return lr if own is None else paddle.full_like(lr, own) * self.layerwise_ratio(param_and_grad[0])

    def _known_names(self) -> Any:
        return self._finder.params

    # ---- the parts of `step`

    def _repeat_step(self) -> bool:
        """Repeat the last step with new gradients if nothing else has changed; return whether it was repeated."""
        if self._last is not None and self._may_be_repeated():
            with paddle.no_grad():
                seen = self._last.again(self)
                if seen is not None:
                    if not _paddle.overflow_is_found(self):
                        self._last.repeat(self, seen)
                    return True
        self._last = None
        return False

    def _may_be_repeated(self) -> bool:
        """Return whether a step needs only clipping and updates, of parameters that this process has whole."""
        return (
            paddle.in_dynamic_mode()
            and not _paddle.in_to_static_mode()
            and self.regularization is None
            and not self._missing.names
            and self._finder.is_whole(_paddle.parameter_list(self))
        )

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> None:
        """Collect the update of one parameter; in a static graph, add its operations."""
        param, grad = _paddle.content_of(param_and_grad)
        if self._is_frozen(param) or math.prod(param.shape) == 0:
            return
        self._check_shape(param)
        task = Task(param, grad, self.step_options(param), self._rate(param, grad))
        if self._tasks is None:
            self._update_whole([task._replace(shard=Shard(self._whole_shape(param)))])
        else:
            self._tasks.append(task)

    def _check_shape(self, param: Any) -> None:
        """Raise if the optimizer was not built with this parameter, or its shape has changed."""
        if paddle.in_dynamic_mode() and self._finder.params:
            self._finder.check(param)

    def _rate(self, param: Any, grad: Any) -> Any:
        """Return the rate of a parameter, one Tensor for all collected parameters with this rate."""
        dtype, factor = compute_dtype(param), getattr(param, "optimize_attr", None) or {}
        key = (dtype, factor.get("learning_rate"), self.layerwise_ratio(param), self.own_rate(param))
        if self._tasks is None or key not in self._rates:
            self._rates[key] = _paddle.rate_of(self)((param, grad)).astype(dtype).reshape([])
        return self._rates[key]

    def _update(self, tasks: list[Task]) -> None:
        """Update whole parameters first, then parameters of which other processes have shards."""
        shards = self._finder.find(_paddle.parameter_list(self))
        tasks = [task._replace(shard=shards[task.param.name]) for task in tasks if task.param.name in shards]
        if self.fused and any(task.shard.groups or task.shard.slice_size is not None for task in tasks):
            where = "parameters in shards (tensor parallel, sharding version 2)"
            raise ValueError(f"`fused=True` does not support {where}: use None or False. Received: fused=True")
        self._update_whole([task for task in tasks if not task.shard.groups])
        update_shards(self, {task.param.name: task for task in tasks if task.shard.groups}, shards)

    def _update_whole(self, tasks: list[Task]) -> None:
        """Update whole parameters in the C library, in batches, or one by one."""
        whole = [task for task in tasks if task.shard.slice_size is None]
        slices = [task for task in tasks if task.shard.slice_size is not None]
        if whole and (self.fused or not paddle.in_dynamic_mode() or whole[0].param.place.is_cpu_place()):
            whole = self._fused_step.update(self, whole)
        units = self._batches.split(self, whole)
        for batch, members in units:
            if batch is None:
                update(self, members[0])
            else:
                batch.update([task.grad for task in members], batch.rates(members), members[0].options)
        for task in slices:
            update(self, task)
        if len(whole) == len(tasks) and self._tasks is None and paddle.in_dynamic_mode():
            self._last = RepeatedStep.of(self, units)

    def _counted(self, state: Values) -> Values:
        """Return the counters after this update, given the state before it."""
        return {STEP: state[STEP] + 1.0}


def checked_rate(learning_rate: Any, argument: str) -> Any:
    """Return a learning rate as a float or a scheduler; raise if it is neither."""
    if isinstance(learning_rate, LRScheduler):
        return learning_rate
    return checked_number(learning_rate, argument, kind="a number or an LRScheduler; parameters go into `parameters=`")
