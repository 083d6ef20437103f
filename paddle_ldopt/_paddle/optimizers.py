"""The parameters, groups, options and state of Paddle's optimizers."""

import contextlib
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import paddle
from paddle.optimizer import Optimizer

from .private_names import ADAMW, EVERY, OPTIMIZER, attribute, lazy
from .tensors import dtype_name

# fmt: off
__all__ = [
    "MASTER", "StateForm", "accumulators", "adamw_kernel", "content_of", "create_state", "drop_waiting_state",
    "first_state", "flatten_groups", "found_inf", "grad_clip", "group_options", "groups_by_name", "is_called_by",
    "is_low_precision", "keeps_masters", "masters", "new_master", "new_state", "other_options", "overflow_is_found",
    "param_groups", "parameter_list", "prefixed", "set_attributes", "stand_in", "state_getter", "state_prefix",
    "waiting_state", "waiting_state_as", "weight_decay_fun", "with_state",
]
# fmt: on

accumulators = attribute(OPTIMIZER, "_accumulators", EVERY)  # state -> param.name -> Tensor
waiting_state = attribute(OPTIMIZER, "_accumulators_holder", "Loading an optimizer")  # loaded, not yet used by a step
with_state = attribute(OPTIMIZER, "_already_create_accumulator", EVERY)  # names of parameters
masters = attribute(OPTIMIZER, "_master_weights", EVERY)  # param.name -> float32 Tensor
parameter_list = attribute(OPTIMIZER, "_parameter_list", EVERY)  # this process's parameters or groups
param_groups = attribute(OPTIMIZER, "_param_groups", EVERY)
grad_clip = attribute(OPTIMIZER, "_grad_clip", "Gradient clipping")
state_prefix = attribute(OPTIMIZER, "_name", EVERY)  # None or the argument `name`
new_state = attribute(OPTIMIZER, "_add_accumulator", EVERY)  # (state name, param, fill_value=, ...)
new_master = attribute(OPTIMIZER, "_create_master_weight", EVERY)  # (param) -> Tensor
state_getter = attribute(OPTIMIZER, "_get_accumulator_master", EVERY)  # (state name, param) -> Tensor
is_low_precision = attribute(OPTIMIZER, "_is_dtype_fp16_or_bf16", EVERY)
weight_decay_fun = attribute(ADAMW, "_apply_decay_param_fun", EVERY, optional=True)
keeps_masters = attribute(ADAMW, "_multi_precision", EVERY)
_auxiliary = attribute(OPTIMIZER, "_get_auxiliary_var", EVERY)
_set_auxiliary = attribute(OPTIMIZER, "_set_auxiliary_var", EVERY)
_create_accumulators = attribute(OPTIMIZER, "_create_accumulators", EVERY)
_defaults = attribute(OPTIMIZER, "_default_dict", "Files of Paddle's optimizers")  # of the options of groups
_ELSEWHERE = ("learning_rate", "grad_clip", "name")  # arguments that are not options
_adamw_kernel = attribute("paddle._C_ops", "adamw_", EVERY)
_layer_helper = lazy("paddle.base.layer_helper.LayerHelper", EVERY)

MASTER = "master"  # name of the float32 master of a parameter of lower precision, among its states


class StateForm(NamedTuple):
    """Type, shape and initial value of a state of a parameter."""

    dtype: str
    shape: tuple[int, ...]
    fill: float


def found_inf(optimizer: Optimizer) -> Any:
    """Return the flag by which a gradient scaler skips the present step, None without a scaler."""
    return _auxiliary(optimizer)("found_inf")


def overflow_is_found(optimizer: Optimizer) -> bool:
    """Return whether an overflow skips the running step; note a False for the loss scaler, as Paddle's step does."""
    flag = found_inf(optimizer)
    overflow = bool(flag)
    if not overflow and isinstance(flag, paddle.Tensor):
        _set_auxiliary(optimizer)("found_inf", False)
    return overflow


def adamw_kernel() -> Any:
    """Return Paddle's operation of AdamW, looked up in each step: PaddleNLP replaces it to offload state."""
    return _adamw_kernel(paddle._C_ops)


def set_attributes(optimizer: Optimizer, **values: Any) -> None:
    """Set attributes that Paddle's code reads, and that its own classes set in their constructors."""
    for name, value in values.items():
        setattr(optimizer, f"_{name}", value)


def prefixed(optimizer: Optimizer, state: str = "") -> str:
    """Return the key of a state in `accumulators`: its name with the optimizer's prefix, if any."""
    return f"{state_prefix(optimizer)}_{state}" if state_prefix(optimizer) else state


def create_state(optimizer: Optimizer, params: list[paddle.Tensor]) -> None:
    """Create the state that the first step would create."""
    with paddle.no_grad():
        optimizer.helper = _layer_helper()(type(optimizer).__name__)
        _create_accumulators(optimizer)(paddle.static.default_main_program().global_block(), params)


def first_state(optimizer: Any, param: Any, group: dict[str, Any]) -> dict[str, StateForm]:
    """Return the state that a step would create for a parameter in `group`; its float32 master is under `MASTER`.

    It creates nothing: functions that note their arguments replace the functions that create state.
    """
    forms: dict[str, StateForm] = {}

    def note(name: str, param: Any, dtype: Any = None, fill_value: Any = 0.0, shape: Any = None, **_: Any) -> None:
        shape = param.shape if shape is None else shape
        forms[name] = StateForm(dtype_name(dtype or param.dtype), tuple(shape), float(fill_value))

    def note_master(param: Any) -> Any:
        note(MASTER, param, "float32")
        return types.SimpleNamespace(name=param.name, shape=param.shape, dtype=paddle.float32)

    replaced = {"_add_accumulator": note, "_create_master_weight": note_master}
    other = stand_in(optimizer, **replaced, _already_create_accumulator=set())
    block = paddle.static.default_main_program().global_block()
    _create_accumulators(other)(block, {**group, "params": [param]} if group else [param])
    return forms


@contextlib.contextmanager
def waiting_state_as(optimizer: Optimizer, state: dict[str, Any]) -> Iterator[None]:
    """Replace the loaded state of parameters before their first step by `state`."""
    before, optimizer._accumulators_holder = optimizer._accumulators_holder, state
    try:
        yield
    finally:
        optimizer._accumulators_holder = before


def drop_waiting_state(optimizer: Optimizer) -> None:
    """Drop the loaded state that is not assigned to its parameters yet."""
    optimizer._accumulators_holder = {}


def content_of(group: Any) -> Any:
    """Return the "params" of a group; anything other than a dict as it is."""
    return group["params"] if isinstance(group, dict) else group


def flatten_groups(parameters: Any) -> list[paddle.Tensor]:
    """Return the parameters in a list of Tensors or parameter groups."""
    out: list[Any] = []
    for item in parameters:
        params = content_of(item)
        out.extend([params] if hasattr(params, "stop_gradient") else params)
    return out


def groups_by_name(optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """Return ``param.name`` -> group of the optimizer's parameters, {} without a group."""
    groups: dict[str, dict[str, Any]] = {}
    for item in param_groups(optimizer) or []:
        grouped = isinstance(item, dict)
        groups.update((param.name, item if grouped else {}) for param in (item["params"] if grouped else [item]))
    return groups


def group_options(optimizer: Any, param: Any, group: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a Paddle optimizer for a parameter in `group`, an empty dict without groups."""
    defaults = {"weight_decay": optimizer.regularization, "grad_clip": grad_clip(optimizer), **_defaults(optimizer)}
    options = {name: group.get(name, default) for name, default in defaults.items()}
    # the regularizer of a parameter in a group is the group's weight decay
    return {**options, "regularizer": None if group else param.regularizer}


def other_options(optimizer: Any) -> dict[str, Any]:
    """Return the options of a Paddle optimizer that groups cannot override."""
    names = inspect.signature(type(optimizer)).parameters.keys() - _defaults(optimizer).keys()
    kept = {name: key for name in sorted(names) for key in (name, f"_{name}") if key in vars(optimizer)}
    return {name: vars(optimizer)[key] for name, key in kept.items() if name not in _ELSEWHERE}


def stand_in(optimizer: Optimizer, params: Any = None, **attributes: Any) -> Optimizer:
    """Return a copy that shares the state of an optimizer, with its own attributes and optionally parameters.

    Attributes that are set on it do not change the original, so it can be read without a trace.
    """
    other = object.__new__(type(optimizer))
    for name, value in dict(vars(optimizer)).items():  # a copy of the dict: another thread may add to it
        bound = isinstance(value, types.MethodType) and value.__self__ is optimizer
        vars(other)[name] = types.MethodType(value.__func__, other) if bound else value
    if params is not None:
        other._parameter_list = params
    vars(other).update(attributes)
    return other


def is_called_by(name: str) -> bool:
    """Return whether the caller of this function, a method that may be overridden, was called by one of this name.

    DygraphShardingOptimizerV2.sharded_state_dict reads `state_dict` like any caller, but misplaces rows and columns.
    It passes no argument, and the optimizer does not know its wrapper, so only the caller's name distinguishes it.
    """
    frame: Any = sys._getframe(1)
    method = frame.f_code.co_name
    while frame.f_code.co_name == method:  # an override calls the method of its base
        frame = frame.f_back
    return bool(frame.f_code.co_name == name)
