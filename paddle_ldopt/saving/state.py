"""An optimizer's state as arrays by parameter name, and back."""

from collections.abc import Collection, Iterable
from typing import Any, Optional

import numpy as np
import paddle
from paddle.nn import Layer
from paddle.optimizer import Optimizer

from .. import _paddle
from .._messages import quoted, refusal, wrong_type
from .._paddle import MASTER, create_state, dtype_name, masters, name_dict_of, parameters_of, prefixed
from ..optimizers import LayerwiseOptimizer
from ..optimizers.apply import plain_class
from ..optimizers.states import GLOBAL_STEP, STEP, check_value
from .safetensors_file import Arrays

States = dict[str, Arrays]  # param.name -> {state name: (dtype, values)}
Layout = dict[str, _paddle.StateForm]  # by state name


def one_of_ours(optimizer: Optimizer, or_paddles: bool = False) -> Optimizer:
    """Return the optimizer inside its wrappers; raise TypeError unless it is ours and no wrapper keeps state.

    With `or_paddles`, it may also be an optimizer of Paddle after `apply_layerwise_decay`.
    """
    inner = _paddle.unwrap(optimizer)
    if not isinstance(inner, LayerwiseOptimizer) and not (or_paddles and paddles_class(inner)):
        also = ", or one of paddle.optimizer after `apply_layerwise_decay`" if or_paddles else ""
        paddles = "`paddle.save(optimizer.state_dict(), path)` saves any other optimizer"
        raise wrong_type(inner, "optimizer", f"one of paddle_ldopt{also}; {paddles}")
    _paddle.check_wrapper_state(optimizer)
    return inner


def paddles_class(optimizer: Optimizer) -> Optional[str]:
    """Return "paddle.optimizer.<class>" after `apply_layerwise_decay`, None for any other class."""
    name = type(optimizer).__name__
    plain = plain_class(optimizer)
    return f"paddle.optimizer.{name}" if plain and plain is getattr(paddle.optimizer, name, None) else None


def checked_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside its wrappers; raise unless its whole state can be read in this process."""
    inner = one_of_ours(optimizer, or_paddles=True)
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


def structured_names(optimizer: Optimizer, model: Optional[Layer] = None) -> tuple[dict[str, str], bool]:
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
        given = "give the whole model that the optimizer trains, and build the optimizer after the model is complete"
        problem = f"{source} must name every parameter of the optimizer: {given}."
        raise ValueError(f"{problem} Received: no name for {quoted(unnamed)}")
    if len(set(names.values())) < len(names):
        raise ValueError(f"Two parameters must not have the same name. Received: {quoted(sorted(names.values()))}")
    return names, bool(known)


def layouts(optimizer: Optimizer) -> dict[str, Layout]:
    """Return ``param.name`` -> the layout of its state after the first update, its master included."""
    groups = _paddle.groups_by_name(optimizer)
    params = parameters_of(optimizer)
    return {param.name: _paddle.first_state(optimizer, param, groups.get(param.name, {})) for param in params}


def state_of(optimizer: Optimizer) -> States:
    """Return the state of all parameters that have one."""
    states: States = {}
    known = layouts(optimizer)
    for param in parameters_of(optimizer):
        if (tensors := _tensors(optimizer, param, known[param.name])) is not None:
            plain = {name: x if isinstance(x, paddle.Tensor) else paddle.to_tensor(x) for name, x in tensors.items()}
            states[param.name] = {name: (dtype_name(tensor.dtype), tensor.numpy()) for name, tensor in plain.items()}
    return states


def _tensors(optimizer: Optimizer, param: paddle.Tensor, layout: Layout) -> Optional[dict[str, paddle.Tensor]]:
    """Return the tensors of a parameter's state; before its first update, the state that Paddle loaded, or None."""
    owner = masters(optimizer).get(param.name, param) if MASTER in layout else param
    tensors = {MASTER: None if owner is param else owner} if MASTER in layout else {}
    live, waiting = param.name in _paddle.with_state(optimizer), _paddle.waiting_state(optimizer)
    for name in layout.keys() - {MASTER}:
        key = prefixed(optimizer, name)
        tensor = _paddle.accumulators(optimizer).get(key, {}).get(owner.name)
        tensors[name] = tensor if live else waiting.get(f"{owner.name}_{key}_0")
    missing = sorted(name for name, value in tensors.items() if value is None)
    if live and missing:
        problem = f"'{param.name}' had another type when its state was created: build a new optimizer for it."
        raise refusal(ValueError, problem, dtype=dtype_name(param.dtype), missing=missing)
    return None if missing else tensors


def steps_of(optimizer: Optimizer, states: States) -> Optional[int]:
    """Return the optimizer's step count, None without one (AdamWDL keeps powers of its betas)."""
    if not optimizer.counts_steps:
        return None
    name = GLOBAL_STEP if any(GLOBAL_STEP in state for state in states.values()) else STEP
    return max((int(state[name][1].reshape(-1)[0]) for state in states.values()), default=0)


def check_state(optimizer: Optimizer, states: States, names: dict[str, str], optional: Collection[str] = ()) -> None:
    """Raise ValueError unless each parameter's state fits its layout; states in `optional` may be missing."""
    known = layouts(optimizer)
    for param in parameters_of(optimizer):
        layout, name = known[param.name], names[param.name]
        _tensors(optimizer, param, layout)  # raises if the present state cannot be replaced
        state = states.get(param.name)
        if state is None:
            continue
        if set(layout) - set(state) - set(optional) or set(state) - set(layout):
            options = "the same options, such as `amsgrad` and `multi_precision`"
            problem = f"The state of '{name}' must consist of {sorted(layout)}: give the optimizer {options}."
            raise refusal(ValueError, problem, state=sorted(state))
        for key, (dtype, values) in state.items():
            check_value(f"'{name}.{key}'", key, values, layout[key][:2], dtype)


def set_state(optimizer: Optimizer, states: States) -> None:
    """Load checked state. Missing masters are copied from parameters; parameters without state start anew."""
    params, known = parameters_of(optimizer), layouts(optimizer)
    _paddle.drop_waiting_state(optimizer)
    with paddle.utils.unique_name.guard(), paddle.no_grad():  # Paddle's checkpoints only find names ending in "_0"
        create_state(optimizer, [param for param in params if param.name in states])
        for param in params:
            values, layout = states.get(param.name, {}), known[param.name]
            for name, tensor in (_tensors(optimizer, param, layout) or {}).items():
                if name in values:
                    tensor.set_value(np.array(values[name][1]))
                elif name == MASTER:
                    paddle.assign(param.astype("float32"), tensor)
                else:
                    paddle.assign(paddle.full_like(tensor, layout[name].fill), tensor)


def checked_name_list(names: object, argument: str) -> list[str]:
    """Return `names` as a list; raise TypeError unless all are strings."""
    single = isinstance(names, (str, bytes, paddle.Tensor)) or getattr(names, "ndim", 1) == 0
    listed: list[Any] = list(names) if isinstance(names, Iterable) and not single else [None]
    if not all(isinstance(name, str) for name in listed):
        raise refusal(TypeError, f"`{argument}` must be a list of names.", **{argument: names})
    return listed
