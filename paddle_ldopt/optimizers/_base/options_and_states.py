"""Reads an optimizer's declaration: checks arguments, gives the options and the states of each parameter."""

from typing import Any, Callable, ClassVar, Optional, Union

import paddle
from paddle.optimizer import Optimizer

from ..._checks import Option, checked_bool, checked_number
from ..._messages import nearest, refusal
from ..._paddle import (
    dtype_name,
    flatten_groups,
    is_float64,
    is_low_precision,
    keeps_masters,
    masters,
    prefixed,
    waiting_state,
    waiting_state_as,
    weight_decay_fun,
    with_state,
)
from ...layers.hooks import N_LAYERS, layerwise_lr_decay
from .._shards import MissingGradients, refuse_sharded_groups
from .._step.fused_step import FusedStep, check_fused
from .._step.plan import FusedRule
from ..groups import checked_parameters
from ..states import COLUMN, ELEMENT, ROW, SCALAR, State
from .loading import loadable
from .sharded_state import sharded_state

# The layer-wise arguments of all optimizers, with their defaults; `AdamWDL` documents them.
LAYERWISE: dict[str, Any] = {"layerwise_decay": 1.0, "n_layers": N_LAYERS, "set_param_lr_fun": layerwise_lr_decay}
LAYERWISE.update(name_dict=None, layers=None, lr_ratio=None)


class OptionsAndStatesMixin(Optimizer):
    """Reads the options, states, sums and C rule that the class declares; see `registry`."""

    OPTIONS: ClassVar[dict[str, Option]] = {}
    _defaults: dict[str, Any]  # the optimizer's own value of each option that a group may override
    _fixed: dict[str, Any]  # the other options

    @staticmethod
    def states(options: dict[str, Any], shape: Any) -> dict[str, State]:
        """Return state name -> kind and type, for a parameter of this shape."""
        return {}

    @staticmethod
    def sums(options: dict[str, Any], shape: Any) -> list[list[str]]:
        """Return the kinds of the sums over a whole parameter that a rule yields, round by round."""
        return []

    def fused_rule(self, options: dict[str, Any]) -> Union[FusedRule, str]:
        """Return the rule for the C library with the options of a group, or the reason why there is none."""
        return f"the C library has no rule of {type(self).__name__}"

    def fused_flags(self, shape: list[int], options: dict[str, Any]) -> tuple[str, ...]:
        """Return the flags of the C library that depend on a parameter's shape."""
        return ()

    def rule_clips(self) -> bool:
        """Return whether the rule itself clips a gradient, after `grad_clip`."""
        return False

    _fused_bumps_version = True  # whether a fused update counts in `Tensor.inplace_version`, as by Paddle's operations

    # ---- arguments

    def check_together(self, options: dict[str, Any], group: dict[str, Any]) -> None:
        """Raise ValueError if options exclude each other; `group` has the options that a group overrides."""

    def _read_arguments(
        self,
        parameters: Any,
        arguments: dict[str, Any],
        apply_decay_param_fun: Optional[Callable[..., Any]],
        multi_precision: Any,
        fused: Any,
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
        options = self._checked({**{name: option.default for name, option in self.OPTIONS.items()}, **arguments})
        self.check_together(options, {})
        for group in groups or []:
            if isinstance(group, dict):
                own = self._checked(group)
                self.check_together({**options, **own}, own)
                group.update(own)
        self._defaults = {name: value for name, value in options.items() if self.OPTIONS[name].group}
        self._fixed = {name: value for name, value in options.items() if not self.OPTIONS[name].group}
        layerwise = {name: arguments.get(name, default) for name, default in LAYERWISE.items()}
        self._init_layerwise(groups, **layerwise, apply_decay_param_fun=apply_decay_param_fun)
        self._missing, self._rates = MissingGradients(flatten_groups(groups or [])), dict[Any, Any]()
        self._fused_step = FusedStep()
        return groups

    def _checked(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the given options, each checked."""
        return {name: option.checked(values[name], name) for name, option in self.OPTIONS.items() if name in values}

    def set_lr(self, value: float) -> None:
        """Set the rate, at least 0; with a scheduler, Paddle raises."""
        super().set_lr(checked_number(value, "value"))

    # ---- options

    def fixed_options(self) -> dict[str, Any]:
        """Return the options of the rule that no parameter group can override."""
        return dict(self._fixed)

    def options_of(self, param: Any) -> dict[str, Any]:
        """Return the options of a parameter's group that override the optimizer's, and the other defaults."""
        group, defaults = self._group_of(param), self._defaults
        return {name: group.get(name, default) for name, default in defaults.items()} if group else dict(defaults)

    def chosen_options(self, param: Any = None) -> dict[str, Any]:
        """Return all options of a parameter, or of the optimizer; "weight_decay" is 0 if it does not apply."""
        options = {**self.fixed_options(), **(self._defaults if param is None else self.options_of(param))}
        if param is not None and options.get("weight_decay") and not self.has_weight_decay(param):
            options["weight_decay"] = 0.0
        options.pop("lr", None)  # `own_rate` has it
        return options

    def step_options(self, param: Any = None) -> dict[str, Any]:
        """Return the options with their values in this step."""
        return self.chosen_options(param)

    def own_rate(self, param: Any) -> Optional[float]:
        """Return the rate of the parameter's group that overrides the optimizer's, or None."""
        return self._group_of(param).get("lr")

    def has_weight_decay(self, param: Any) -> bool:
        """Return whether weight decay applies to the parameter by `apply_decay_param_fun`."""
        chosen = weight_decay_fun(self)
        return chosen is None or bool(chosen(param.name))

    def structured_name(self, param: Any) -> str:
        """Return the parameter's name in the model, or ``param.name`` if it is unknown."""
        return self.structured_names.get(param.name, param.name)

    # ---- states

    def _whole_shape(self, param: Any) -> list[int]:
        """Return the shape of the whole parameter, of which `param` may be a shard."""
        return list(param.shape)

    def _states_of(self, param: Any) -> dict[str, State]:
        return self.states({**self._fixed, **self.options_of(param)}, self._whole_shape(param))

    def state_kinds(self, param: Any) -> dict[str, str]:
        """Return state name -> kind of a parameter, without its step counter."""
        return {name: state.kind for name, state in self._states_of(param).items()}

    def state_shapes(self, param: Any) -> dict[str, list[int]]:
        """Return state name -> shape of a parameter; rows and columns are the whole tensor's."""
        whole = self._whole_shape(param)
        shapes = {ELEMENT: list(param.shape), ROW: whole[:-1], COLUMN: whole[:-2] + whole[-1:], SCALAR: []}
        return {name: shapes[kind] for name, kind in self.state_kinds(param).items()}

    def state_layout(self, param: Any) -> dict[str, Any]:
        """Return state name -> (dtype, shape) of a parameter's stored state; a single number has shape [1]."""
        dtype, shapes = ("float64" if is_float64(param) else "float32"), self.state_shapes(param)
        return {
            name: (getattr(paddle, state.dtype or dtype), [1] if state.kind == SCALAR else shapes[name])
            for name, state in self._states_of(param).items()
        }

    def check_type(self, param: Any) -> None:
        """Raise if a parameter was cast after its state was created, between a type with and one without a master."""
        has, known = param.name in masters(self), paddle.in_dynamic_mode() and param.name in with_state(self)
        if known and has != self.has_master(param):
            raise ValueError(
                f"'{param.name}' had another type when its state was made: cast the model before the first step, or "
                "build a new optimizer for it. "
                f"Received: dtype {dtype_name(param.dtype)}, {'a' if has else 'no'} float32 master weight"
            )

    def has_master(self, param: Any) -> bool:
        return bool(keeps_masters(self) and is_low_precision(self)(param.dtype))

    counts_steps = True  # whether the state `STEP` is a number of steps

    def _add_accumulator(self, name: str, param: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = waiting_state(self)
        if not loaded or not paddle.in_dynamic_mode():
            return super()._add_accumulator(name, param, *args, **kwargs)
        if f"{param.name}_{prefixed(self)}{name}_0" not in loaded:
            loaded = {}  # the parameter had no gradient before the state was saved
        # Paddle looks for the names of a process's first optimizer
        with waiting_state_as(self, loaded), paddle.utils.unique_name.guard():
            return super()._add_accumulator(name, param, *args, **kwargs)

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`; raise before anything changes if it is of another optimizer."""
        self._fused_step.forget()
        super().set_state_dict(loadable(self, state_dict))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, as `set_state_dict` does."""
        self.set_state_dict(state_dict)

    def sharded_state_dict(self, model_sharded_state_dict: dict[str, Any], shards: Any = None) -> dict[str, Any]:
        """Return key -> ShardedWeight of all state and masters; missing state is created, to be loaded into.

        `paddle_ldopt.parallel.save_checkpoint` and `load_checkpoint` call it, under every layout.

        Args:
            model_sharded_state_dict: the result of ``model.sharded_state_dict()``.
            shards: ``param.name`` -> the range (begin, end) of the flattened parameter in this process, if a wrapper
                has cut the parameters. Parameters without an entry have no element here.

        Raises:
            ValueError: a parameter that is missing in the model's dict, or a shard whose offset is unknown.
        """
        return sharded_state(self, model_sharded_state_dict, shards)
