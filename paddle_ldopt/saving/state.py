"""An optimizer's state as arrays by parameter name, and back."""

from collections.abc import Collection, Iterable
from typing import Any, Optional

import numpy as np
import paddle

from .. import _paddle
from .._messages import quoted, refusal, wrong_type
from .._paddle import create_state, dtype_name, masters, name_dict_of, parameters_of, prefixed
from ..optimizers import LayerwiseOptimizer
from ..optimizers.states import GLOBAL_STEP, STEP, check_value

MASTER = "master"  # the float32 value of a parameter of lower precision
States = dict[str, dict[str, tuple[str, Any]]]  # param.name -> {state name: (dtype, values)}


def one_of_ours(optimizer: Any) -> Any:
    """Return the optimizer inside its wrappers; raise TypeError unless it is ours and no wrapper keeps state."""
    inner = _paddle.unwrap(optimizer)
    if not isinstance(inner, LayerwiseOptimizer):
        paddles = "`paddle.save(optimizer.state_dict(), path)` saves one of Paddle's"
        raise wrong_type(inner, "optimizer", f"one of paddle_ldopt; {paddles}")
    _paddle.check_wrapper_state(optimizer)
    return inner


def checked_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside its wrappers; raise unless it is ours, with its whole state in this process."""
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
        problem = (
            "This process has only a part of the state: use `paddle_ldopt.parallel.save_checkpoint`, `load_checkpoint`."
        )
        raise ValueError(f"{problem} Received: {', '.join(cut)}")
    return inner


def structured_names(optimizer: Any, model: Any = None) -> tuple[dict[str, str], bool]:
    """Return ``param.name`` -> name in a file, and whether these are the model's names.

    The names come from `model`, otherwise from the optimizer's `layers` or `name_dict`, otherwise from Paddle.
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
    """Return state name -> (dtype, shape) of a parameter after its first update, its master included."""
    layout = {name: (dtype_name(dtype), tuple(shape)) for name, (dtype, shape) in optimizer.state_layout(param).items()}
    return {**layout, MASTER: ("float32", tuple(param.shape))} if optimizer.has_master(param) else layout


def state_of(optimizer: Any) -> States:
    """Return the state of all parameters that have one."""
    states: States = {}
    for param in parameters_of(optimizer):
        optimizer.check_type(param)
        if tensors := _tensors(optimizer, param):
            states[param.name] = {name: (dtype_name(tensor.dtype), tensor.numpy()) for name, tensor in tensors.items()}
    return states


def _master(optimizer: Any, param: Any) -> dict[str, Any]:
    """Return {MASTER: tensor}, {} for a parameter without a master."""
    master = masters(optimizer).get(param.name) if optimizer.has_master(param) else None
    return {} if master is None else {MASTER: master}


def _tensors(optimizer: Any, param: Any) -> dict[str, Any]:
    """Return the tensors of a parameter's state; before its first update, the state that Paddle loaded, or {}."""
    master = _master(optimizer, param)
    owner = master.get(MASTER, param).name
    keys = {name: prefixed(optimizer, name) for name in optimizer.state_layout(param)}
    if param.name in _paddle.with_state(optimizer):
        accumulators = _paddle.accumulators(optimizer)
        return {**{name: accumulators[key][owner] for name, key in keys.items()}, **master}
    loaded = {name: _paddle.waiting_state(optimizer).get(f"{owner}_{key}_0") for name, key in keys.items()}
    if any(value is None for value in loaded.values()):
        return {}
    found = {name: x if isinstance(x, paddle.Tensor) else paddle.to_tensor(x) for name, x in loaded.items()}
    return {**found, **master}


def steps_of(optimizer: Any, states: States) -> Optional[int]:
    """Return the optimizer's step count, None without one (AdamWDL keeps powers of its betas)."""
    if not optimizer.counts_steps:
        return None
    name = GLOBAL_STEP if any(GLOBAL_STEP in state for state in states.values()) else STEP
    return max((int(state[name][1].reshape(-1)[0]) for state in states.values()), default=0)


def check_state(optimizer: Any, states: States, names: dict[str, str], optional: Collection[str] = ()) -> None:
    """Raise ValueError unless each parameter's state fits its layout; states in `optional` may be missing."""
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
    """Load checked state. Missing masters are copied from parameters; parameters without state start anew."""
    params = parameters_of(optimizer)
    _paddle.drop_waiting_state(optimizer)
    with paddle.utils.unique_name.guard(), paddle.no_grad():  # Paddle's checkpoints only find names ending in "_0"
        create_state(optimizer, [param for param in params if param.name in states])
        for param in params:
            values = states.get(param.name, {})
            for name, tensor in _tensors(optimizer, param).items():
                if name in values:
                    tensor.set_value(np.array(values[name][1]))
                elif name == MASTER:
                    paddle.assign(param.astype("float32"), tensor)
                else:
                    paddle.assign(paddle.full_like(tensor, optimizer.initial_state(param, name)), tensor)


def checked_name_list(names: Any, argument: str) -> list[str]:
    """Return `names` as a list; raise TypeError unless all are strings."""
    single = isinstance(names, (str, bytes, paddle.Tensor)) or getattr(names, "ndim", 1) == 0
    listed: list[Any] = list(names) if isinstance(names, Iterable) and not single else [None]
    if not all(isinstance(name, str) for name in listed):
        raise refusal(TypeError, f"`{argument}` must be a list of names.", **{argument: names})
    return listed
