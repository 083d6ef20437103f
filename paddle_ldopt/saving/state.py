"""An optimizer's state as arrays by the parameters' structured names, and back."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
import paddle

from .._checks import shown
from .._paddle import check_wrapper_state, parameters_of, topology, unwrap, unwrap_model
from ..optimizers._base.sharded_state import COUNTER, COUNTERS, ShardedStateMixin, create_state
from ..optimizers.lamb import GLOBAL_STEP
from .record import some

__all__ = [
    "MASTER",
    "LoadReport",
    "check_state",
    "checked_names",
    "checked_optimizer",
    "layout_of",
    "set_state",
    "state_of",
    "steps_of",
    "structured_names",
]

MASTER = "master"  # the float32 value of a parameter of lower precision


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What was loaded into an optimizer; printed, it is a table.

    Args:
        source (str): the file, or what else it came from.
        step (int|None): the steps that were taken by then, if they are known.
        matched (tuple[tuple[str, str], ...]): (name in the file, name in the model) of the parameters with state.
        missing (tuple[str, ...]): parameters of the model that the file has no state for: they begin anew.
        unexpected (tuple[str, ...]): what is in the file and was not used.
        transposed (tuple[str, ...]): parameters of the model whose state was transposed.

    Examples:
        .. code-block:: python

            >>> from paddle_ldopt import LoadReport
            >>> print(LoadReport("adamw.pt", 10, (("fc.weight", "linear.weight"),), transposed=("linear.weight",)))
            adamw.pt: step 10, 1 matched, 0 missing, 0 unexpected
            parameter      in the file
            linear.weight  fc.weight    transposed
    """

    source: str
    step: Optional[int]
    matched: tuple
    missing: tuple = ()
    unexpected: tuple = ()
    transposed: tuple = ()

    def __str__(self):
        rows = [("parameter", "in the file", "")]
        rows += [(here, there, "transposed" * (here in self.transposed)) for there, here in self.matched]
        rows += [(name, "-", "missing") for name in self.missing]
        rows += [("-", name, "unexpected") for name in self.unexpected]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        step = "step unknown" if self.step is None else f"step {self.step}"
        counts = f"{len(self.matched)} matched, {len(self.missing)} missing, {len(self.unexpected)} unexpected"
        return "\n".join([f"{self.source}: {step}, {counts}", *lines])


def checked_optimizer(optimizer):
    """Return the optimizer inside its wrappers; raise if its state is not all here, or it is none of ours."""
    inner: Any = unwrap(optimizer)
    if not isinstance(inner, ShardedStateMixin):
        raise TypeError(f"`optimizer` must be one of paddle_ldopt. Received: optimizer of type {type(inner).__name__}")
    check_wrapper_state(optimizer)
    if not paddle.in_dynamic_mode() or inner._parameter_list is None:
        raise ValueError(
            "In a static graph the state belongs to the program: use `paddle.static.save`. Received: an optimizer "
            f"{'in static graph mode' if not paddle.in_dynamic_mode() else 'without parameters'}"
        )
    hcg, degrees = topology(), {}
    if hcg is not None:
        degrees["sharding"] = hcg.get_sharding_parallel_world_size()
        degrees["tensor parallel"] = hcg.get_model_parallel_world_size()
    if hasattr(optimizer, "_optim"):
        degrees["group_sharded"] = paddle.distributed.get_world_size()
    cut = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    if cut:
        raise ValueError(
            "This process has a part of the state only: use `paddle_ldopt.parallel.save_checkpoint` and "
            f"`load_checkpoint`. Received: {', '.join(cut)}"
        )
    return inner


def structured_names(optimizer, model=None):
    """Return ``param.name`` -> the name that a file has for the parameter, and whether it is the model's.

    Args:
        optimizer (Optimizer): one of ours.
        model (paddle.nn.Layer, optional): whose names are taken; else those the optimizer was built with, else
            Paddle's.

    Raises:
        TypeError: `model` is no Layer.
        ValueError: a parameter without a name; two with the same.
    """
    if model is None:
        known = optimizer._structured
    else:
        if not isinstance(model, paddle.nn.Layer):
            raise TypeError(f"`model` must be a paddle.nn.Layer. Received: model of type {type(model).__name__}")
        known = {param.name: name for name, param in unwrap_model(model).named_parameters()}
    params = parameters_of(optimizer)
    names = {param.name: known.get(param.name) if known else param.name for param in params}
    unnamed = [name for name, structured in names.items() if not structured]
    if unnamed:
        raise ValueError(
            f"{'`model`' if model is not None else '`layers` or `name_dict`'} must name every parameter of the "
            f"optimizer: build it after the model is complete. Received: no name for {some(unnamed)}"
        )
    if len(set(names.values())) < len(names):
        raise ValueError(f"Two parameters must not have the same name. Received: {some(sorted(names.values()))}")
    return names, bool(known)


def layout_of(optimizer, param):
    """Return state name -> (dtype, shape) of all that a parameter has once it was updated, its master included."""
    layout = {name: (_dtype(dtype), tuple(shape)) for name, (dtype, shape) in optimizer.state_layout(param).items()}
    return {**layout, MASTER: ("float32", tuple(param.shape))} if optimizer._has_master(param) else layout


def state_of(optimizer):
    """Return ``param.name`` -> {state name: (dtype, values)} of the parameters that have state."""
    states = {}
    for param in parameters_of(optimizer):
        optimizer.check_type(param)
        held = _live(optimizer, param) or _waiting(optimizer, param)
        if held:
            states[param.name] = {name: (_dtype(tensor.dtype), tensor.numpy()) for name, tensor in held.items()}
    return states


def _owner(optimizer, param):
    return optimizer._master_weights.get(param.name, param).name if optimizer._has_master(param) else param.name


def _live(optimizer, param):
    """Return the tensors of a parameter's state, none if there are none yet."""
    if param.name not in optimizer._already_create_accumulator:
        return {}
    prefix, owner = f"{optimizer._name}_" if optimizer._name else "", _owner(optimizer, param)
    found = {name: optimizer._accumulators[prefix + name][owner] for name in optimizer.state_layout(param)}
    return {**found, MASTER: optimizer._master_weights[param.name]} if optimizer._has_master(param) else found


def _waiting(optimizer, param):
    """Return what Paddle was given to load for a parameter and keeps until its first update."""
    prefix, owner = f"{optimizer._name}_" if optimizer._name else "", _owner(optimizer, param)
    keys = {name: f"{owner}_{prefix}{name}_0" for name in optimizer.state_layout(param)}
    holder = optimizer._accumulators_holder
    if not all(key in holder for key in keys.values()):
        return {}
    held = {name: holder[key] for name, key in keys.items()}
    found = {name: x if isinstance(x, paddle.Tensor) else paddle.to_tensor(x) for name, x in held.items()}
    master = optimizer._master_weights.get(param.name) if optimizer._has_master(param) else None
    return found if master is None else {**found, MASTER: master}


def steps_of(optimizer, states):
    """Return how many steps an optimizer has counted, None if it counts none (AdamWDL has powers of its betas)."""
    if not optimizer.counts_steps:
        return None
    name = GLOBAL_STEP if any(GLOBAL_STEP in state for state in states.values()) else COUNTER
    return max((int(state[name][1].reshape(-1)[0]) for state in states.values()), default=0)


def check_state(optimizer, states, names, optional=()):
    """Raise ValueError unless every parameter's state is what its layout says.

    Args:
        optimizer (Optimizer): what it is for.
        states (dict[str, dict[str, tuple[str, ndarray]]]): of ``param.name``, as `state_of` gives it.
        names (dict[str, str]): ``param.name`` -> name to be shown.
        optional (tuple[str, ...]): states that need not be there.
    """
    for param in parameters_of(optimizer):
        state = states.get(param.name)
        if state is None:
            continue
        layout, name = layout_of(optimizer, param), names[param.name]
        lacking, unknown = set(layout) - set(state) - set(optional), set(state) - set(layout)
        if lacking or unknown:
            raise ValueError(
                f"The state of '{name}' must be {', '.join(sorted(layout))}: build the optimizer with the same "
                f"options. Received: {', '.join(sorted(state)) or 'nothing'}"
            )
        for key, (dtype, values) in state.items():
            if (dtype, values.shape) != layout[key]:
                raise ValueError(
                    f"'{name}.{key}' must be {layout[key][0]} {list(layout[key][1])}: build the same model, and the "
                    f"optimizer with the same options. Received: {dtype} {list(values.shape)}"
                )
            if key in COUNTERS and not (np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(
                    f"'{name}.{key}' must be a finite number from 0 on. Received: {values.reshape(-1).tolist()}"
                )


def set_state(optimizer, states):
    """Put checked state into an optimizer; parameters that are not named begin anew.

    Args:
        optimizer (Optimizer): one of ours.
        states (dict[str, dict[str, tuple[str, ndarray]]]): of ``param.name``. Without its master a parameter's is the
            value that it has now.
    """
    params = parameters_of(optimizer)
    optimizer._accumulators_holder = {}
    with paddle.utils.unique_name.guard(), paddle.no_grad():  # Paddle's checkpoints know names that end in "_0" alone
        create_state(optimizer, [param for param in params if param.name in states])
        for param in params:
            given = states.get(param.name, {})
            for name, tensor in _live(optimizer, param).items():
                if name in given:
                    tensor.set_value(np.array(given[name][1]))
                elif name == MASTER:
                    paddle.assign(param.astype("float32"), tensor)
                else:
                    paddle.assign(paddle.full_like(tensor, optimizer.initial_state(param, name)), tensor)


def _dtype(dtype):
    return str(dtype).rpartition(".")[2]


def checked_names(names, argument):
    """Return a list of the strings in `names`, raise TypeError if it holds anything else."""
    single = isinstance(names, (str, bytes, paddle.Tensor)) or getattr(names, "ndim", 1) == 0
    listed = isinstance(names, Iterable) and not single and list(names)
    if listed is False or not all(isinstance(name, str) for name in listed):
        raise TypeError(f"`{argument}` must be a list of names. Received: {argument}={shown(names)}")
    return listed
