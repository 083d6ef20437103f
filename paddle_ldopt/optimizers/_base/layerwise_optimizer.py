"""The base of all optimizers: their options, their states, and the step from top to bottom.

An error before `_update` changes no parameter and no state.
"""

import contextlib
import functools
from typing import Any, Callable, ClassVar, Optional, Union

import paddle
from paddle import Tensor

from ... import _paddle
from ..._checks import Option, checked_bool, checked_number
from ..._messages import nearest, refusal
from .._shards import MissingGradients
from .._step.fused_step import FusedStep, check_fused
from .._step.plan import FusedRule
from .._step.updates import Task, check_gradient_fits
from .._step.whole_step import take_whole_step
from ..groups import checked_parameters
from ..states import COLUMN, ELEMENT, ROW, SCALAR, State, compute_dtype
from .layerwise_arguments import LAYERWISE
from .layerwise_mixin import LayerwiseMixin
from .loading import loadable
from .sharded_state import sharded_state


class LayerwiseOptimizer(LayerwiseMixin):
    """The base of all optimizers of this package, listed before Paddle's class.

    Paddle calls `_append_optimize_op` of the subclass for each parameter. It appends a `Task` to `_tasks`. If `_tasks`
    is None (in a static graph and in `dist.shard_optimizer`), it updates the parameter at once.
    """

    OPTIONS: ClassVar[dict[str, Option]] = {}
    counts_steps = True  # whether the state `STEP` is a number of steps
    fused_bumps_version = True  # whether a fused update counts in `Tensor.inplace_version`, as by Paddle's operations
    rule: ClassVar[Callable[..., Any]]
    regularization: Any  # Paddle's: an L2 penalty
    _defaults: dict[str, Any]  # the optimizer's own value of each option that a group may override
    _fixed: dict[str, Any]  # the other options
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
        """Check a constructor's arguments (see `AdamWDL`), keep them and return the parameters or groups as a list."""
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
        self._read_options(arguments, groups or [])
        layerwise = {name: arguments.get(name, default) for name, default in LAYERWISE.items()}
        self._init_layerwise(groups, **layerwise, apply_decay_param_fun=apply_decay_param_fun)
        self.missing, self._lr_tensors = MissingGradients(_paddle.flatten_groups(groups or [])), {}
        self.fused_step = FusedStep()
        return groups

    # ---- options

    def check_together(self, options: dict[str, Any], group: dict[str, Any]) -> None:
        """Raise ValueError if options exclude each other; `group` has the options that a group overrides."""

    def _read_options(self, arguments: dict[str, Any], groups: list[Any]) -> None:
        """Check the options in a constructor's arguments and in parameter groups, and keep them."""
        options = self._checked({**{name: option.default for name, option in self.OPTIONS.items()}, **arguments})
        self.check_together(options, {})
        for group in groups:
            if isinstance(group, dict):
                own = self._checked(group)
                self.check_together({**options, **own}, own)
                group.update(own)
        self._defaults = {name: value for name, value in options.items() if self.OPTIONS[name].group}
        self._fixed = {name: value for name, value in options.items() if not self.OPTIONS[name].group}

    def _checked(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: option.checked(values[name], name) for name, option in self.OPTIONS.items() if name in values}

    def fixed_options(self) -> dict[str, Any]:
        """Return the options of the rule that no parameter group can override."""
        return dict(self._fixed)

    def options_of(self, param: Tensor) -> dict[str, Any]:
        """Return the options of a parameter's group that override the optimizer's, and the other defaults."""
        group, defaults = self._group_of(param), self._defaults
        return {name: group.get(name, default) for name, default in defaults.items()} if group else dict(defaults)

    def chosen_options(self, param: Tensor = None) -> dict[str, Any]:
        """Return all options of a parameter, or of the optimizer; "weight_decay" is 0 if it does not apply."""
        options = {**self.fixed_options(), **(self._defaults if param is None else self.options_of(param))}
        if param is not None and options.get("weight_decay") and not self.has_weight_decay(param):
            options["weight_decay"] = 0.0
        options.pop("lr", None)  # `group_lr` has it
        return options

    def step_options(self, param: Tensor = None) -> dict[str, Any]:
        """Return the options with their values in this step."""
        return self.chosen_options(param)

    def group_lr(self, param: Tensor) -> Optional[float]:
        """Return the rate of the parameter's group that overrides the optimizer's, or None."""
        return self._group_of(param).get("lr")

    def has_weight_decay(self, param: Tensor) -> bool:
        """Return whether weight decay applies to the parameter by `apply_decay_param_fun`."""
        chosen = _paddle.weight_decay_fun(self)
        return chosen is None or bool(chosen(param.name))

    def structured_name(self, param: Tensor) -> str:
        """Return the parameter's name in the model, or ``param.name`` if it is unknown."""
        return self.structured_names.get(param.name, param.name)

    # ---- states

    @staticmethod
    def states(options: dict[str, Any], shape: Any) -> dict[str, State]:
        """Return state name -> kind and type, for a parameter of this shape."""
        return {}

    def _whole_shape(self, param: Tensor) -> list[int]:
        """Return the shape of the whole parameter, of which `param` may be a shard."""
        return list(param.shape)

    def _states_of(self, param: Tensor) -> dict[str, State]:
        return self.states({**self._fixed, **self.options_of(param)}, self._whole_shape(param))

    def state_kinds(self, param: Tensor) -> dict[str, str]:
        """Return state name -> kind of a parameter, without its step counter."""
        return {name: state.kind for name, state in self._states_of(param).items()}

    def state_shapes(self, param: Tensor) -> dict[str, list[int]]:
        """Return state name -> shape of a parameter; rows and columns are the whole tensor's."""
        whole = self._whole_shape(param)
        shapes = {ELEMENT: list(param.shape), ROW: whole[:-1], COLUMN: whole[:-2] + whole[-1:], SCALAR: []}
        return {name: shapes[kind] for name, kind in self.state_kinds(param).items()}

    def state_layout(self, param: Tensor) -> dict[str, Any]:
        """Return state name -> (dtype, shape) of a parameter's stored state; a single number has shape [1]."""
        layout, shapes = {}, self.state_shapes(param)
        for name, state in self._states_of(param).items():
            dtype = getattr(paddle, state.dtype) if state.dtype else compute_dtype(param)
            layout[name] = dtype, [1] if state.kind == SCALAR else shapes[name]
        return layout

    def check_type(self, param: Tensor) -> None:
        """Raise if a parameter was cast after its state was created, between a type with and one without a master."""
        has = param.name in _paddle.masters(self)
        if paddle.in_dynamic_mode() and param.name in _paddle.with_state(self) and has != self.has_master(param):
            raise ValueError(
                f"'{param.name}' had another type when its state was made: cast the model before the first step, or "
                "build a new optimizer for it. "
                f"Received: dtype {_paddle.dtype_name(param.dtype)}, {'a' if has else 'no'} float32 master weight"
            )

    def has_master(self, param: Tensor) -> bool:
        """Return whether the parameter has, or will have, a float32 master."""
        return bool(_paddle.keeps_masters(self) and _paddle.is_low_precision(self)(param.dtype))

    def _add_accumulator(self, name: str, param: Tensor, *args: Any, **kwargs: Any) -> Any:
        loaded = _paddle.waiting_state(self)
        if not loaded or not paddle.in_dynamic_mode():
            return super()._add_accumulator(name, param, *args, **kwargs)
        if f"{param.name}_{_paddle.prefixed(self)}{name}_0" not in loaded:
            loaded = {}  # the parameter had no gradient before the state was saved
        # Paddle looks for the names of a process's first optimizer
        with _paddle.waiting_state_as(self, loaded), paddle.utils.unique_name.guard():
            return super()._add_accumulator(name, param, *args, **kwargs)

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`; raise before anything changes if it is of another optimizer."""
        self.fused_step = FusedStep()  # without the plan of the old state
        super().set_state_dict(loadable(self, state_dict))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, as `set_state_dict` does."""
        self.set_state_dict(state_dict)

    def sharded_state_dict(self, model_sharded_state_dict: dict[str, Any], shards: Any = None) -> dict[str, Any]:
        """Return key -> ShardedWeight of all state and masters; missing state is created, to be loaded into.

        If a wrapper has cut the parameters, `shards` maps ``param.name`` to the range (begin, end) of the flattened
        parameter in this process; parameters without an entry have no element here.
        """
        return sharded_state(self, model_sharded_state_dict, shards)

    # ---- the step

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
        params_grads = list(params_grads)  # may be an iterator
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

    def takes_sparse(self, param: Tensor) -> bool:
        """Return whether sparse gradients of a parameter are supported."""
        return False

    def check_shape(self, param: Tensor) -> None:
        """Raise if the shape of a parameter has changed since the optimizer or its state was made."""

    def fused_rule(self, options: dict[str, Any], shape: Any) -> Union[FusedRule, str]:
        """Return the rule for the C library, or why there is none; only its flags may depend on the shape."""
        return f"the C library has no rule of {type(self).__name__}"

    def rule_clips(self) -> bool:
        """Return whether the rule itself clips a gradient, after `grad_clip`."""
        return False

    def count_planned(self, structs: Any) -> None:
        """Count a fused step by its structs, in optimizers with one count for all parameters."""

    def _one_step(self) -> contextlib.AbstractContextManager[None]:
        """Return a reentrant context for the counts and schedules of a step."""
        return contextlib.nullcontext()

    def _backends(self) -> list[Any]:
        """Return the backends of whole steps, the preferred one first."""
        return [self.fused_step]

    def _collects(self) -> bool:
        return paddle.in_dynamic_mode()

    def _update(self, tasks: list[Task]) -> None:
        raise NotImplementedError

    def counted(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the counters after this update, given the state before it; none if the rule counts."""
        return {}

    def _count_step_of_other_processes(self) -> None:
        """Count a step in which only other processes have updates, in optimizers with one count for all parameters."""
