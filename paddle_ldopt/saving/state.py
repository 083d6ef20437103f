"""An optimizer's state as arrays by the parameters' names, and back."""

from collections.abc import Collection, Iterable
from typing import Any, Optional

import numpy as np
import paddle

from .. import _paddle
from .._messages import quoted, refusal, wrong_type
from .._paddle import create_state, dtype_name, masters, name_dict_of, parameters_of, prefixed
from ..optimizers import ShardedStateMixin
from ..optimizers.states import GLOBAL_STEP, STEP, check_value

MASTER = "master"  # the float32 value of a parameter of lower precision
States = dict[str, dict[str, tuple[str, Any]]]  # param.name -> {state name: (dtype, values)}


def one_of_ours(optimizer: Any) -> Any:
    """Return the optimizer inside its wrappers; raise TypeError if it is none of ours, or a wrapper keeps state."""
    inner = _paddle.unwrap(optimizer)
    if not isinstance(inner, ShardedStateMixin):
        raise wrong_type(inner, "optimizer", "one of paddle_ldopt")
    _paddle.check_wrapper_state(optimizer)
    return inner


def checked_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside its wrappers; raise if its state is not all here, or it is none of ours."""
    inner = one_of_ours(optimizer)
    if not paddle.in_dynamic_mode() or _paddle.parameter_list(inner) is None:
        problem = "In a static graph the state belongs to the program: use `paddle.static.save`."
        found = "without parameters" if paddle.in_dynamic_mode() else "in static graph mode"
        raise ValueError(f"{problem} Received: an optimizer {found}")
    hcg, degrees = _paddle.topology(), {}
    if hcg is not None:
        degrees["sharding"] = hcg.get_sharding_parallel_world_size()
        degrees["tensor parallel"] = hcg.get_model_parallel_world_size()
    if _paddle.is_group_sharded(optimizer):
        degrees["group_sharded"] = paddle.distributed.get_world_size()
    cut = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    if cut:
        problem = "Only a part of the state is here: use `paddle_ldopt.parallel.save_checkpoint`, `load_checkpoint`."
        raise ValueError(f"{problem} Received: {', '.join(cut)}")
    return inner


def structured_names(optimizer: Any, model: Any = None) -> tuple[dict[str, str], bool]:
    """Return ``param.name`` -> name in a file, and whether these are the model's names.

    They are those of `model`, without one those that the optimizer was built with, otherwise Paddle's.
    """
    known = optimizer.structured_names
    if model is not None:
        model = _paddle.unwrap_model(_paddle.checked_model(model))
        known = name_dict_of(model)
    names = {param.name: known.get(param.name) if known else param.name for param in parameters_of(optimizer)}
    unnamed = [name for name, structured in names.items() if not structured]
    if unnamed:
        source = "`model`" if model is not None else "`layers` or `name_dict`"
        problem = f"{source} must name every parameter of the optimizer: build it after the model is complete."
        raise ValueError(f"{problem} Received: no name for {quoted(unnamed)}")
    if len(set(names.values())) < len(names):
        raise ValueError(f"Two parameters must not have the same name. Received: {quoted(sorted(names.values()))}")
    return names, bool(known)


def layout_of(optimizer: Any, param: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return state name -> (dtype, shape) of all that a parameter has once it was updated, its master included."""
    layout = {name: (dtype_name(dtype), tuple(shape)) for name, (dtype, shape) in optimizer.state_layout(param).items()}
    return {**layout, MASTER: ("float32", tuple(param.shape))} if optimizer.has_master(param) else layout


def state_of(optimizer: Any) -> States:
    """Return the state of the parameters that have any."""
    states: States = {}
    for param in parameters_of(optimizer):
        optimizer.check_type(param)
        if held := _tensors(optimizer, param):
            states[param.name] = {name: (dtype_name(tensor.dtype), tensor.numpy()) for name, tensor in held.items()}
    return states


def _master(optimizer: Any, param: Any) -> dict[str, Any]:
    """Return {MASTER: tensor}, {} for a parameter without a master."""
    master = masters(optimizer).get(param.name) if optimizer.has_master(param) else None
    return {} if master is None else {MASTER: master}


def _tensors(optimizer: Any, param: Any) -> dict[str, Any]:
    """Return the tensors of a parameter's state: before its first update those that Paddle loaded for it, or {}."""
    master = _master(optimizer, param)
    owner = master.get(MASTER, param).name
    keys = {name: prefixed(optimizer, name) for name in optimizer.state_layout(param)}
    if param.name in _paddle.with_state(optimizer):
        held = _paddle.accumulators(optimizer)
        return {**{name: held[key][owner] for name, key in keys.items()}, **master}
    loaded = {name: _paddle.waiting_state(optimizer).get(f"{owner}_{key}_0") for name, key in keys.items()}
    if any(value is None for value in loaded.values()):
        return {}
    found = {name: x if isinstance(x, paddle.Tensor) else paddle.to_tensor(x) for name, x in loaded.items()}
    return {**found, **master}


def steps_of(optimizer: Any, states: States) -> Optional[int]:
    """Return how many steps an optimizer has counted, None if it counts none (AdamWDL has powers of its betas)."""
    if not optimizer.counts_steps:
        return None
    name = GLOBAL_STEP if any(GLOBAL_STEP in state for state in states.values()) else STEP
    return max((int(state[name][1].reshape(-1)[0]) for state in states.values()), default=0)


def check_state(optimizer: Any, states: States, names: dict[str, str], optional: Collection[str] = ()) -> None:
    """Raise ValueError unless each parameter's state fits its layout, in which states in `optional` may be missing."""
    for param in parameters_of(optimizer):
        state = states.get(param.name)
        if state is None:
            continue
        layout, name = layout_of(optimizer, param), names[param.name]
        if set(layout) - set(state) - set(optional) or set(state) - set(layout):
            problem = f"The state of '{name}' must be {', '.join(sorted(layout))}: give the optimizer the same options."
            raise refusal(ValueError, problem, state=sorted(state))
        for key, (dtype, values) in state.items():
            check_value(f"'{name}.{key}'", key, values, layout[key], dtype)


def set_state(optimizer: Any, states: States) -> None:
    """Put checked state into an optimizer. Without a master, a parameter's master is its value; others start anew."""
    params = parameters_of(optimizer)
    _paddle.drop_waiting_state(optimizer)
    with paddle.utils.unique_name.guard(), paddle.no_grad():  # Paddle's checkpoints know names that end in "_0" alone
        create_state(optimizer, [param for param in params if param.name in states])
        for param in params:
            given = states.get(param.name, {})
            for name, tensor in _tensors(optimizer, param).items():
                if name in given:
                    tensor.set_value(np.array(given[name][1]))
                elif name == MASTER:
                    paddle.assign(param.astype("float32"), tensor)
                else:
                    paddle.assign(paddle.full_like(tensor, optimizer.initial_state(param, name)), tensor)


def checked_names(names: Any, argument: str) -> list[str]:
    """Return a list of the strings in `names`, raise TypeError if it holds anything else."""
    single = isinstance(names, (str, bytes, paddle.Tensor)) or getattr(names, "ndim", 1) == 0
    listed: list[Any] = list(names) if isinstance(names, Iterable) and not single else [None]
    if not all(isinstance(name, str) for name in listed):
        raise refusal(TypeError, f"`{argument}` must be a list of names.", **{argument: names})
    return listed
