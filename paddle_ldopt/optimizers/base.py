"""The optimizers' base class: ratios of layers, options, groups and states. `step` describes a step."""

import copy
import functools
from typing import Any, Callable, ClassVar, Optional

import paddle
from paddle import Tensor
from paddle.optimizer.lr import LRScheduler

from .. import _compat
from .._checks import Option, checked_bool, checked_callable, checked_int, checked_number, nearest, one_of_two, refusal
from ..layers.decay import LayerDecay, checked_decay
from .batches import Batches, prepared_shards
from .fused import FusedRule, refuse_fused
from .layer_rates import LAYERWISE, N_LAYERS, bind_hook, check_hook, layerwise_lr_decay
from .options import COMMON, checked_group, checked_parameters
from .sharded import MissingGradients, Shard, ShardFinder, sharded_state
from .states import (
    COLUMN,
    ELEMENT,
    GLOBAL_STEP,
    ROW,
    SCALAR,
    STEP,
    State,
    StepFunction,
    Values,
    compute_dtype,
    largest,
    loadable,
    rename_state,
)
from .step import OneStep, Rows


class LayerwiseOptimizer(OneStep):
    """Base of our optimizers: arguments, groups and states. It precedes Paddle's class; `OneStep` has the step."""

    OPTIONS: ClassVar[dict[str, Option]] = {}
    counts_steps = True  # whether the state `STEP` is a number of steps
    takes_sparse_on_gpu = False  # sparse gradients; only CUDA has a working kernel
    takes_new_parameters = False  # groups may be added to a built optimizer without ratios
    rule: ClassVar[Callable[..., Any]]
    fused_rule: ClassVar[Optional[FusedRule]] = None  # the same rule in the C library
    regularization: Any  # Paddle's: an L2 penalty
    batch_bytes: Optional[int] = None
    _accumulators_holder: dict[str, Any]  # Paddle's: loaded state of parameters without an update so far
    n_layers: int = N_LAYERS
    has_documented_hook: bool  # whether the hook is `layerwise_lr_decay`
    _options: Values  # the optimizer's own, which a group may override
    _rule_options: Values  # in the rule's signature
    lr_function: Optional[StepFunction] = None  # a rate that depends on the optimizer's own steps
    _groups: dict[str, Values] = {}  # param.name -> its group

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        owner = next(base for base in cls.__mro__ if "fused_rule" in vars(base))
        if getattr(cls, "rule", None) is not getattr(owner, "rule", None):  # another rule than the library's
            cls.fused_rule = None

    def _read_arguments(
        self, parameters: Any, apply_decay_param_fun: Any, multi_precision: Any, fused: Any, **arguments: Any
    ) -> Any:
        known = LAYERWISE.keys() | {name for name, option in self.OPTIONS.items() if option.argument}
        for name in sorted(arguments.keys() - known):
            wrong = f"{type(self).__name__} has no argument `{name}`{nearest(name, known)}."
            raise refusal(TypeError, wrong, **{name: arguments[name]})
        checked_bool(multi_precision, "multi_precision")
        self.fused = COMMON["fused"].checked(fused, "fused")
        refuse_fused(fused)
        checked_callable(apply_decay_param_fun, "apply_decay_param_fun")
        groups = checked_parameters(parameters, self.OPTIONS)
        given = ((name, option, arguments.get(name, option.default)) for name, option in self.OPTIONS.items())
        self._options = {name: option.checked(value, name) for name, option, value in given}
        self._rule_options = {name: value for name, value in self._options.items() if self.OPTIONS[name].in_rule}
        self.check_together(self._options, {})
        own = [group for group in groups or [] if isinstance(group, dict)]
        self._number_of_groups = len(own)  # `dist.to_static` removes them
        for group in own:
            self.check_together({**self._options, **group}, group)
        params = None if groups is None else _compat.flatten_groups(groups)
        self._set_ratios(params, {**LAYERWISE, **arguments})
        was = [param.name.removesuffix(".dist") for param in params or [] if param.name.endswith(".dist")]
        decays = bool if apply_decay_param_fun is None else apply_decay_param_fun
        if was and not any(decays(f"{name}.dist") for name in was) and any(map(decays, was)):
            wrong = "`apply_decay_param_fun` knows the names from before `dist.shard_tensor`, which adds '.dist':"
            raise refusal(ValueError, f"{wrong} shard the model first, then collect the names.", f"'{was[0]}.dist'")
        self.finder, self.missing = ShardFinder(params or [], self.is_elementwise), MissingGradients(params or [])
        self.plan, self.batches, self.writes = None, Batches(), dict[str, Any]()
        self.taken = 0.0 if self.counts_together else None
        _compat.run_untranslated()
        return groups

    def _set_ratios(self, params: Optional[list[Tensor]], given: Values) -> None:
        layers, name_dict, n_layers = given["layers"], given["name_dict"], given["n_layers"]
        set_param_lr_fun, lr_ratio = given["set_param_lr_fun"], given["lr_ratio"]
        hook = one_of_two("set_param_lr_fun", set_param_lr_fun, "lr_ratio", lr_ratio, layerwise_lr_decay)
        documented = hook is layerwise_lr_decay
        self.layerwise_decay, self.n_layers = given["layerwise_decay"], checked_int(n_layers, "n_layers")
        self.structured_names = _compat.structured_names(name_dict, layers)
        if layers is not None:
            if not documented or name_dict is not None or n_layers != N_LAYERS:
                wrong = "`layers` takes the place of `name_dict`, `n_layers` and `set_param_lr_fun`: leave them out."
                raise refusal(ValueError, wrong, name_dict=name_dict, n_layers=n_layers, set_param_lr_fun=hook)
            self.set_layers(layers, self.layerwise_decay)
            for param in params or []:
                self.layerwise_ratio(param)  # raises if the map lacks it
            return
        if isinstance(self.layerwise_decay, LayerDecay):
            wrong = "A LayerDecay as `layerwise_decay` also needs `layers`."
            raise refusal(TypeError, wrong, layerwise_decay=self.layerwise_decay, layers=None)
        decay = checked_decay(self.layerwise_decay)
        if hook is None or (documented and name_dict is None):
            if decay != 1.0:
                needs = "`layers` (LayerMap.from_model(model)), or `name_dict` and `set_param_lr_fun`. A factory that a"
                advice = "library calls with parameters only is functools.partial(the class, layers=layers)."
                received = {"layerwise_decay": self.layerwise_decay, "name_dict": name_dict, "set_param_lr_fun": hook}
                raise refusal(ValueError, f"`layerwise_decay` has no effect without {needs} {advice}", **received)
        elif not documented or decay != 1.0:  # else `name_dict` only gives structured names
            self.hook, self.has_documented_hook = bind_hook(hook, decay, name_dict, self.n_layers), documented
            if params is not None:
                check_hook(self, params)

    def layerwise_ratio(self, param: Tensor) -> Any:
        return super().layerwise_ratio(param) if self.hook is None else self.hook(self.finder.original(param))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other: Any = object.__new__(type(self))
        memo[id(self)] = other
        own: Values = {"plan": None, "batches": Batches(), "writes": {}, "hook": None}
        vars(other).update(copy.deepcopy({k: v for k, v in vars(self).items() if k not in own}, memo), **own)
        rename_state(self, other)
        # functions know the names of the original parameters
        hook, originals = self.hook, dict(zip(other.finder.params, self.finder.params.values()))
        if hook is not None:
            other.hook = lambda param: hook(originals.get(param.name, param))
        decays = self._apply_decay_param_fun
        if decays is not None:
            pairs = zip(_compat.parameters_of(other), _compat.parameters_of(self))  # also of groups added later
            names = {copied.name: param.name for copied, param in pairs}
            other._apply_decay_param_fun = functools.partial(_compat.asked_of_original, decays, names)
        return other

    # ---- options

    def check_together(self, options: Values, group: Values) -> None:
        """Raise ValueError if options exclude each other; `group` is the group that overrides some, or {}."""

    def values_now(self, group: Values) -> tuple[Values, float]:
        """Return a group's options for the rule and its rate in this step, without multipliers and ratios."""
        options, rate = dict(self._rule_options), group.get("lr")
        for name in options:
            if name in group:
                options[name] = group[name]
        if isinstance(options.get("weight_decay"), StepFunction):
            options["weight_decay"] = options["weight_decay"](int(self.steps_taken()))
        if rate is None:
            rate = self.lr_function or self._learning_rate
        if isinstance(rate, StepFunction):
            rate = rate(int(self.steps_taken()))
        return options, float(rate() if isinstance(rate, LRScheduler) else rate)

    def has_nonzero_weight_decay(self, param: Tensor) -> bool:
        return bool(self.values_now(self.group_of(param))[0].get("weight_decay")) and self.has_weight_decay(param)

    def structured_name(self, param: Tensor) -> str:
        """Return the parameter's name in the model, or ``param.name``."""
        names = self.structured_names
        return names.get(_compat.name_before_copy(param.name, names.__contains__), param.name)

    # ---- groups

    def group_of(self, param: Tensor) -> Values:
        if param.name not in self._groups:
            grouped = self._parameter_list and isinstance(self._parameter_list[0], dict)
            if not grouped and not self._groups:
                return {}
            listed = {param.name: group for group in self._param_groups if grouped for param in group["params"]}
            self._groups = {**listed, **self._groups}
        if param.name not in self._groups:
            raise refusal(ValueError, "The optimizer was not built with this parameter.", f"'{param.name}'")
        return self._groups[param.name]

    def _add_param_group(self, param_group: Values) -> None:
        if hasattr(self, "_already_create_accumulator"):  # a group added to a built optimizer
            if not isinstance(self._parameter_list[0], dict):
                wrong = "A group can only be added to groups: give `parameters` as a list of dicts."
                raise refusal(TypeError, wrong, f"{len(self._parameter_list)} parameters")
            param_group = checked_group(param_group, self.OPTIONS)
            self.check_together({**self._options, **param_group}, param_group)
            new = [p.name for p in param_group["params"] if self.finder.params and p.name not in self.finder.params]
            if new and (self.ratios or self.hook is not None or not self.takes_new_parameters):
                wrong = "An optimizer takes no more parameters once it is built: build another optimizer for them."
                raise refusal(ValueError, wrong, f"{len(new)} more parameters, such as '{new[0]}'")
        # hidden from Paddle, which would add an L2 penalty
        hidden = {"weight_decay": param_group.pop("weight_decay")} if "weight_decay" in param_group else {}
        super()._add_param_group(param_group)
        param_group.pop("weight_decay", None)
        param_group.update(hidden)

    # ---- states

    @staticmethod
    def states(options: Values, shape: Any) -> dict[str, State]:
        """Return state name -> `State`, for a parameter of this shape."""
        return {}

    def state_key(self, name: str) -> str:
        return f"{self._name}_{name}" if self._name else name

    def has_master(self, param: Tensor) -> bool:
        return bool(self._multi_precision and self._is_dtype_fp16_or_bf16(param.dtype))

    def owner_of(self, param: Tensor) -> Tensor:
        """Paddle keeps the state under the master's name, if there is one."""
        return self._master_weights[param.name] if self.has_master(param) else param

    def state_of(self, param: Tensor) -> dict[str, Any]:
        """Return state name -> Tensor, with the counters."""
        owner, begin = self.owner_of(param).name, len(self.state_key(""))
        return {key[begin:]: values[owner] for key, values in self._accumulators.items() if owner in values}

    def states_of(self, param: Tensor) -> dict[str, State]:
        options = {**self._options, **self.group_of(param)}
        # float32 even for float64 parameters, so that all counts can be compared
        counted = {GLOBAL_STEP: State(SCALAR, "float32")} if self._count_state == GLOBAL_STEP else {}
        return {**self.states(options, self.finder.shape(param)), **counted, STEP: State(SCALAR)}

    def state_layout(self, param: Tensor) -> dict[str, Any]:
        """Return state name -> (dtype, shape) of a parameter's stored state."""
        whole, default = self.finder.shape(param), compute_dtype(param)
        shapes = {ELEMENT: list(param.shape), ROW: whole[:-1], COLUMN: whole[:-2] + whole[-1:], SCALAR: [1]}
        states = self.states_of(param).items()
        return {name: (getattr(paddle, state.dtype or "", default), shapes[state.per]) for name, state in states}

    def check_param(self, param: Tensor) -> None:
        """Raise if a change of type added or removed the master; subclasses also check the shape."""
        has, made = param.name in self._master_weights, param.name in self._already_create_accumulator
        if made and has != self.has_master(param) and paddle.in_dynamic_mode():
            wrong = f"'{param.name}' had another type when its state was made: cast the model before the first step,"
            received = f"dtype {_compat.dtype_name(param.dtype)}, {'a' if has else 'no'} float32 master weight"
            raise refusal(ValueError, f"{wrong} or build a new optimizer for it.", received)

    def _add_accumulator(self, name: str, param: Tensor, *args: Any, **kwargs: Any) -> Any:
        loaded = self._accumulators_holder
        if not paddle.in_dynamic_mode():
            return super()._add_accumulator(name, param, *args, **kwargs)
        if f"{param.name}_{self.state_key(name)}_0" not in loaded:
            self._accumulators_holder = {}  # the parameter had no gradient before the state was saved
        # Paddle looks for the names of a process's first optimizer, as do unified checkpoints
        try:
            with paddle.utils.unique_name.guard():
                return super()._add_accumulator(name, param, *args, **kwargs)
        finally:
            self._accumulators_holder = loaded

    def set_state_dict(self, state_dict: Values) -> None:
        """Load the result of `state_dict`; other states raise and change nothing."""
        super().set_state_dict(loadable(self, state_dict))
        self.forget()
        owners = self._accumulators.get(self.state_key(STEP), {})
        for name, master in self._master_weights.items():  # fleet's sharding renames the masters that it loads
            master.name = next((owner for owner in owners if owner.startswith(f"{name}_fp32_master_")), master.name)

    def forget(self) -> None:
        """Discard plan, batches and count of steps; the next step reads the state anew."""
        self.plan, self.batches, self.taken, self.writes = None, Batches(), None, {}

    def forget_state(self) -> None:
        self._accumulators.clear()
        self._already_create_accumulator.clear()
        self._master_weights = dict[str, Any]()
        self.forget()

    def load_state_dict(self, state_dict: Values) -> None:  # torch's name, which call sites of ports have
        self.set_state_dict(state_dict)

    def sharded_state_dict(self, model_sharded_state_dict: Values, shards: Any = None) -> Values:
        """Return key -> ShardedWeight of state and masters; create missing state.

        `shards` is None, or ``param.name`` -> range of the flattened parameter in this process.
        """
        sharded = sharded_state(self, model_sharded_state_dict, shards)
        if self._accumulators:  # the caller may load into them
            self.forget()
        return sharded

    # ---- for subclasses to override

    def refuse_groups(self) -> None:
        if not paddle.in_dynamic_mode() and self._number_of_groups:
            wrong = "A static graph ignores parameter groups: give a list of parameters."
            raise refusal(ValueError, wrong, groups=self._number_of_groups)

    def check_graph(self, params: list[Tensor]) -> None:
        self.refuse_groups()
        for param in () if paddle.in_dynamic_mode() else params:
            self.values_now(self.group_of(param))  # raises if they depend on the step
        if self._parameter_list is None and self.hook is not None:
            check_hook(self, params)

    def own_rate_error(self, **received: Any) -> Exception:
        how = "by `relative_step`" if self._options.get("relative_step") else "from the step"
        wrong = f"The optimizer sets its rate itself, {how}: build another one."
        return refusal(RuntimeError, wrong, **received)

    def set_lr(self, value: float) -> None:
        if self.sets_own_lr:
            raise self.own_rate_error(value=value)
        super().set_lr(checked_number(value, "value"))

    def fused_values(self, options: Values) -> Values:
        """Return the fields and flags of `fused_rule` that differ from the options (`eps` may be "epsilon")."""
        return {}

    def prepared(self, rows: Rows) -> Callable[[Optional[float]], None]:
        """Check the rows; return a function of the step number that updates them by Paddle's operations."""
        whole_here = _compat.topology() is None or self.finder.is_whole(self._parameter_list)
        if whole_here and not any(map(Tensor.is_dist, rows.params)):
            return self.batches.prepared(self, rows)
        for param in rows.params:
            self.check_param(param)
        shards, numbered = self.finder.find(self._parameter_list), [*enumerate(rows.params)]
        whole = [i for i, param in numbered if type(shards.get(param.name)) is Shard and not param.is_dist()]
        names = {rows.params[i].name for i in whole}
        update_whole = self.batches.prepared(self, rows.take(whole))
        pieces = {name: shard for name, shard in shards.items() if name not in names}
        update_pieces = prepared_shards(self, rows, pieces)

        def update(count: Optional[float]) -> None:
            update_whole(count)
            update_pieces(count)

        return update

    _count_state = STEP  # its largest value is the number of steps taken

    def steps_taken(self) -> float:
        if self.taken is not None:
            return self.taken
        key = self.state_key(self._count_state)
        live = {value.name: value for value in self._accumulators.get(key, {}).values()}
        loaded = {name: value for name, value in self._accumulators_holder.items() if f"_{key}_" in name}
        taken = largest([*{**loaded, **live}.values()])
        if self.counts_together:
            self.taken = taken
        return taken

    def keep_count(self, count: float) -> None:
        """Write the count of a step that updated no parameter into a state, for `state_dict`."""
        for value in [*self._accumulators.get(self.state_key(self._count_state), {}).values()][:1]:
            paddle.assign(paddle.full_like(value, count), value)
