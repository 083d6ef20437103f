"""The arguments of an optimizer and its step, from top to bottom.

An error before `_update` changes no parameter and no state.
"""

import abc
import contextlib
import functools
from typing import Any, Callable, Optional

import paddle
from paddle import Tensor

from ... import _paddle
from ..._checks import checked_bool, checked_number
from ..._messages import nearest, refusal
from .._shards import MissingGradients, refuse_sharded_groups
from .._step.fused_step import FusedStep, check_fused
from .._step.interfaces import StepInterface
from .._step.task import Task, check_gradient_fits
from .._step.whole_step import take_whole_step
from ..groups import checked_parameters
from ..states import compute_dtype
from .layerwise_arguments import LAYERWISE
from .states_base import StatesBase


class LayerwiseOptimizer(StatesBase, StepInterface):
    """The base of all optimizers of this package, listed before Paddle's class.

    Paddle calls `_append_optimize_op` of the subclass for each parameter. It appends a `Task` to `_tasks`. If `_tasks`
    is None (in a static graph and in `dist.shard_optimizer`), it updates the parameter at once.
    """

    _tasks: Optional[list[Task]] = None  # collected in the running step
    _lr_tensors: dict[Any, Any]  # of these tasks: factors of a rate -> its Tensor

    def _read_arguments(
        self,
        parameters: Any,
        apply_decay_param_fun: Optional[Callable[..., Any]],
        multi_precision: Any,
        fused: Any,
        **arguments: Any,
    ) -> Any:
        """Check the arguments of a constructor, keep them and return the parameters or groups as a list.

        `arguments` has the options and the layer-wise arguments; for the others see `AdamWDL`.
        """
        known = LAYERWISE.keys() | {name for name, option in self.OPTIONS.items() if option.argument}
        for name in arguments.keys() - known:
            wrong = f"{type(self).__name__} has no argument `{name}`{nearest(name, known)}."
            raise refusal(TypeError, wrong, **{name: arguments[name]})
        checked_bool(multi_precision, "multi_precision")
        self.fused = check_fused(fused)
        if apply_decay_param_fun is not None and not callable(apply_decay_param_fun):
            wrong = "`apply_decay_param_fun` must be callable."
            raise refusal(TypeError, wrong, apply_decay_param_fun=apply_decay_param_fun)
        groups = checked_parameters(parameters, [name for name, option in self.OPTIONS.items() if option.group])
        refuse_sharded_groups(groups)
        self._read_options(arguments, groups or [])
        layerwise = {name: arguments.get(name, default) for name, default in LAYERWISE.items()}
        self._init_layerwise(groups, **layerwise, apply_decay_param_fun=apply_decay_param_fun)
        self.missing, self._lr_tensors = MissingGradients(_paddle.flatten_groups(groups or [])), {}
        self.fused_step = FusedStep()
        return groups

    def set_lr(self, value: float) -> None:
        """Set the rate, at least 0; with a scheduler, Paddle raises."""
        super().set_lr(checked_number(value, "value"))

    def step(self) -> Any:
        """Update all parameters that have a gradient once."""
        with self._one_step():
            if take_whole_step(self, self._backends()):
                return None
            if not paddle.in_dynamic_mode():  # `to_static`, which calls `apply_gradients`
                return super().step()
            return self._collect_and_update(super().step, _paddle.parameters_of(self))

    def _apply_optimize(self, loss: Any, startup_program: Any, params_grads: Any, *args: Any, **kwargs: Any) -> Any:
        """Collect the updates of a group within `step`; or take a step, as `minimize` and the wrappers of fleet do."""
        if not isinstance(params_grads, dict):
            params_grads = self.missing.drop_from(params_grads)
        pairs = _paddle.content_of(params_grads)
        for param, grad in pairs:
            check_gradient_fits(self, param, grad)
        params = [param for param, _ in pairs]
        self.check_in_step(params)
        collect = functools.partial(super()._apply_optimize, loss, startup_program, params_grads, *args, **kwargs)
        done = self._collect_and_update(collect, params)
        if not params_grads and self.missing.others_may_have_updates() and not _paddle.found_inf(self):
            self._count_step_of_other_processes()
        return done

    def apply_gradients(self, params_grads: Any) -> Any:
        """Take a step with the given (parameter, gradient) pairs."""
        collect = functools.partial(super().apply_gradients, params_grads)
        if not paddle.in_dynamic_mode():
            return collect()
        return self._collect_and_update(collect, [param for param, _ in params_grads])

    def _collect_and_update(self, collect: Callable[[], Any], params: list[Tensor]) -> Any:
        """Take a step; `collect` is Paddle's code, which clips gradients and asks for the update of each parameter."""
        if self._step_ratios is not None:  # within a step
            return collect()
        with self._one_step(), self._with_ratios(params):
            self._tasks = [] if self._collects() else None
            try:
                done, tasks = collect(), self._tasks
            finally:
                self._tasks, self._lr_tensors = None, {}
            if tasks is not None and not _paddle.found_inf(self):  # no update after an overflow
                with paddle.no_grad():
                    self._update(tasks)
        return done

    def _param_lr(self, param: Tensor, grad: Tensor) -> Any:
        """Return the rate of a parameter, one Tensor for all collected parameters with this rate."""
        dtype, factor = compute_dtype(param), getattr(param, "optimize_attr", None) or {}
        key = (dtype, factor.get("learning_rate"), self.layerwise_ratio(param), self.group_lr(param))
        if self._tasks is None or key not in self._lr_tensors:
            self._lr_tensors[key] = _paddle.param_lr(self)((param, grad)).astype(dtype).reshape([])
        return self._lr_tensors[key]

    def has_nonzero_weight_decay(self, param: Tensor) -> bool:
        """Return whether the next step applies weight decay to a parameter."""
        return bool(self.step_options(param).get("weight_decay", 0.0) != 0)

    # ---- for subclasses to override

    def _one_step(self) -> contextlib.AbstractContextManager[None]:
        """Return a reentrant context for the counts and schedules of a step."""
        return contextlib.nullcontext()

    def _backends(self) -> list[Any]:
        """Return the backends of whole steps, the preferred one first."""
        return [self.fused_step]

    def _collects(self) -> bool:
        """Return whether tasks are collected."""
        return paddle.in_dynamic_mode()

    @abc.abstractmethod
    def _update(self, tasks: list[Task]) -> None:
        """Do the collected tasks."""

    def _count_step_of_other_processes(self) -> None:
        """Count a step in which only other processes have updates, in optimizers with one count for all parameters."""
