"""`save_optimizer`, `load_optimizer`, and the record of an optimizer in checkpoints of all kinds."""

import dataclasses
import platform
import types
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import paddle
import safetensors
from paddle.nn import Layer as Sublayer
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import CosineAnnealingWarmRestarts, LRScheduler

from . import _compat
from ._checks import checked_bool, checked_int, problem, quoted, refusal, shown, wrong_type
from ._compat import dtype_name, parameters_of
from ._files import Path, checked_path, file_errors
from ._safetensors import Arrays, from_json, read_record, to_json, write_record
from .layers.decay import OPTIONS, LayerDecay
from .layers.map import LayerMap
from .optimizers import LayerwiseOptimizer
from .optimizers.layer_rates import plain_class
from .optimizers.states import GLOBAL_STEP, STEP, check_value, refresh_masters, unfit_masters
from .schedules.warmup import resume_at, step_of_state
from .version import __version__

Record = dict[str, Any]
States = dict[str, Arrays]  # param.name -> {state name: (dtype, values)}
MASTER = "master"  # the float32 master of a parameter, among its states


class StateForm(NamedTuple):
    """Type, shape and initial value of a state of a parameter."""

    dtype: str
    shape: tuple[int, ...]
    fill: float


def save_optimizer(
    path: Path,
    optimizer: Optimizer,
    model: Optional[Sublayer] = None,
    *,
    scaler: Any = None,
    step: Optional[int] = None,
) -> None:
    """Save an optimizer's state in a safetensors file: no pickle, and a checksum.

    The file contains the state, float32 masters, schedules, the loss scaler, and a record of class, layers and decay
    for `load_optimizer`. It is written completely, or not at all. Parameters are named as in `model`, the optimizer's
    `layers` or `name_dict`, or else by Paddle (``linear_0.w_0``, which depends on the objects built before).

    Args:
        path (str|os.PathLike): the file; not a link.
        optimizer (Optimizer): of this package, or of `paddle.optimizer` after `apply_layerwise_decay`; wrapped or not.
            With data parallelism, one process saves. Each pipeline stage saves its own file.
        model (paddle.nn.Layer, optional): the trained model, also in `paddle.DataParallel`.
        scaler (object, optional): a loss scaler of this package or `paddle.amp.GradScaler`.
        step (int, optional): the steps taken; by default the optimizer's own count, if it keeps one.

    Raises:
        TypeError, ValueError, OSError: a parameter without a name; a state spread over processes (use
            `paddle_ldopt.parallel.save_checkpoint`); a `path` that is not a regular file; more than about 190,000
            parameters. A previous file is unchanged.

    Examples:
        >>> import os, tempfile, paddle, paddle_ldopt as ldopt
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = ldopt.Lamb(1e-3, parameters=model.parameters())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "optimizer.safetensors")
        ...     ldopt.save_optimizer(path, optimizer, model)
        ...     print(ldopt.load_optimizer(path, optimizer, model).step)
        0
    """
    inner, path = _whole_optimizer(optimizer), checked_path(path)
    step = None if step is None else checked_int(step, "step")
    names, naming = _names_in_file(inner, model)
    states, parts = _states_of(inner), _parts(inner, scaler)
    record = {
        **describe(inner, names),
        "naming": naming,
        "step": _steps_of(inner, states) if step is None else step,
        "with_state": [names[tensor] for tensor in states],
        **{"schedule_state": None, "scaler_state": None},
        **{f"{kind}_state": to_json(part.state_dict(), f"The {kind}'s state") for kind, part in parts.items()},
        "packages": {
            "paddle_ldopt": __version__,
            **{module.__name__: module.__version__ for module in (paddle, np, safetensors)},
            "python": platform.python_version(),
        },
    }
    arrays = {f"{names[tensor]}.{name}": value for tensor, state in states.items() for name, value in state.items()}
    write_record(path, arrays, record)


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of `load_optimizer`.

    Args:
        source (str): the file.
        step (int|None): the steps taken, if known.
        matched (tuple[str, ...]): parameters with state in the file.
        missing (tuple[str, ...]): the model's parameters without state in the file; they start with a new state.
        unexpected (tuple[str, ...]): parameters of the file that the model lacks, or has in another shape.

    Examples:
        >>> from paddle_ldopt import LoadReport
        >>> print(LoadReport("optimizer.safetensors", 10, ("linear.weight",), missing=("head.weight",)))
        optimizer.safetensors: step 10, 1 matched, 1 missing ('head.weight'), 0 unexpected
    """

    source: str
    step: Optional[int]
    matched: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    def __str__(self) -> str:
        step = "step unknown" if self.step is None else f"step {self.step}"
        counts = [f"{len(self.matched)} matched"]
        for kind, names in (("missing", self.missing), ("unexpected", self.unexpected)):
            counts.append(f"{len(names)} {kind}" + (f" ({quoted(names)})" if names else ""))
        return f"{self.source}: {', '.join([step, *counts])}"


def load_optimizer(
    path: Path, optimizer: Optimizer, model: Optional[Sublayer] = None, *, scaler: Any = None, strict: bool = True
) -> LoadReport:
    """Load a file of `save_optimizer` into an optimizer, completely or not at all.

    Load the model's parameters first. The resumed run equals an uninterrupted one bit for bit.

    Args:
        path (str|os.PathLike): the file; not a link.
        optimizer (Optimizer): with the same class, layers, decay and parameters. Other options keep their current
            values.
        model (paddle.nn.Layer, optional): the trained model, for the names.
        scaler (object, optional): the loss scaler to load; required if one was saved.
        strict (bool): refuse a file with another class, layer map, decay, schedule class, or other parameters. If
            False, a warning lists these differences: parameters that the file lacks, or has in another shape or type,
            start with a new state, and a schedule of another class with the file's step.

    Raises:
        TypeError, ValueError, OSError: a damaged or unknown file; with `strict`, a difference; other states than this
            optimizer's; a `scaler` but none in the file, or the reverse. The optimizer is unchanged.

    Examples:
        >>> import os, tempfile, paddle, paddle_ldopt as ldopt
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = ldopt.AdamWDL(1e-3, parameters=model.parameters())
        >>> model(paddle.ones([1, 4])).mean().backward()
        >>> optimizer.step()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "optimizer.safetensors")
        ...     ldopt.save_optimizer(path, optimizer, model, step=1)
        ...     report = ldopt.load_optimizer(path, optimizer, model)
        >>> print(report.step, len(report.matched))
        1 2
    """
    inner, path, strict = _whole_optimizer(optimizer), checked_path(path), checked_bool(strict, "strict")
    names, naming = _names_in_file(inner, model)
    parts, present = _parts(inner, scaler), describe(inner, names)
    record, arrays = read_record(path)
    with file_errors(path, "The file's record", checks=True):
        if record["naming"] != naming:
            wrong = "Parameters are matched by name: give `model` for the model's names, or no names for Paddle's."
            raise refusal(ValueError, wrong, naming=naming, in_file=record["naming"])
        by_name: States = {name: {} for name in record["with_state"]}
        for key, value in arrays.items():
            owner, _, state = key.rpartition(".")
            if owner not in by_name:
                raise refusal(ValueError, "The file has a tensor that belongs to no parameter.", tensor=key)
            by_name[owner][state] = value
        found = record_differences(record, present)
        others = unfit_masters(inner, {param: by_name.get(name, {}).get(MASTER) for param, name in names.items()})
        if others:
            unfit = quoted(map(names.get, others))
            found.append(f"the masters of {unfit} do not fit the weights: load the model before")
        if found and strict:
            wrong = f"The file is of another optimizer: {'; '.join(found)}. strict=False resumes all the same."
            raise refusal(ValueError, wrong, path=path)
        was, now = record["parameters"], present["parameters"]
        matched = tuple(name for name in now if name in by_name and was[name] == now[name])
        states = {tensor: by_name[name] for tensor, name in names.items() if name in matched}
        _fit(inner, states, names)
        step = record["step"] if record["step"] is None else checked_int(record["step"], "step")
        if (scaler is None) != (record["scaler_state"] is None):
            raise refusal(ValueError, "`scaler` must be given if and only if one was saved.", scaler=scaler)
        in_file = ["schedule", "scaler", *(name for name in parts if f"{name}_state" in record)]
        saved = {name: from_json(record[f"{name}_state"]) for name in in_file}
        to_load = states_to_load(saved, parts, record, present)
    steps = {name: step_of_state(saved[name]) if step is None else step for name in saved.keys() & parts.keys()}
    set_parts(parts, to_load, {name: at for name, at in steps.items() if name not in to_load})  # of another class
    _set_states(inner, states)
    if found:
        warnings.warn(problem(f"The file is of another optimizer: {'; '.join(found)}.", strict=strict), stacklevel=2)
    step = _steps_of(inner, states) if step is None else step
    missing = tuple(name for name in now if name not in matched)
    return LoadReport(path, step, matched, missing, tuple(sorted(by_name.keys() - set(matched))))


# ---- the record of class, decay and layers, also for the Trainer and other frameworks


_COMPARED = ("optimizer", "decay", "layers", "schedule", "group_schedules", "parameters", "unfreeze_every_k_steps")


def layerwise_record(optimizer: str, decay: Optional[LayerDecay], layers: Optional[LayerMap]) -> Record:
    options = {} if decay is None else decay.to_dict()
    chosen = {name: value for name, value in options.items() if value != OPTIONS[name].default}
    found = {} if layers is None else {"source": layers.source}
    return {"optimizer": optimizer, "decay": chosen, "layers": layers.fingerprint() if layers else {}, **found}


def record_differences(saved: Record, present: Record) -> list[str]:
    """Return "decay was {...} and is {...} now" for each entry that differs; of dicts, the differing part."""
    sentences = []
    for entry in (entry for entry in _COMPARED if entry in present):
        old, new = saved[entry], present[entry]
        if isinstance(old, dict) and isinstance(new, dict):
            # only the layers of parameters that both have
            names = [name for name in {**old, **new} if entry != "layers" or (name in old and name in new)]
            changed = [name for name in names if old.get(name) != new.get(name)]
            old, new = ({name: one[name] for name in changed if name in one} for one in (old, new))
        if old != new:
            sentences.append(f"{entry} was {shown(old)} and is {shown(new)} now")
    return sentences


def tensor_type(dtype: Any, shape: Iterable[int]) -> str:
    return f"{dtype_name(dtype)} {[*map(int, shape)]}"


def describe(optimizer: Optimizer, names: dict[str, str], types: Optional[dict[str, str]] = None) -> Record:
    types = types or {param.name: tensor_type(param.dtype, param.shape) for param in parameters_of(optimizer)}
    layers = getattr(optimizer, "layers", None)
    name = _paddles_class(optimizer) or type(optimizer).__name__
    record = layerwise_record(name, getattr(optimizer, "decay", None), layers)
    if layers is not None:
        places = layers.fingerprint()
        record["layers"] = {name: places[layers.name_of(tensor)] for tensor, name in names.items()}
    elif optimizer.layerwise_decay != 1.0:  # of a hook
        record["decay"] = {"layerwise_decay": optimizer.layerwise_decay, "n_layers": optimizer.n_layers}
    schedules = {name: type(schedule).__name__ for name, schedule in schedules_of(optimizer).items()}
    record.update(schedule=schedules.pop("schedule", None), group_schedules=schedules)
    return {**record, "parameters": {name: types[tensor] for tensor, name in names.items()}}


# ---- schedules and loss scalers


def schedules_of(optimizer: Optimizer) -> dict[str, LRScheduler]:
    """Return the optimizer's schedule as "schedule", the schedules of its groups as "group_0", "group_1"..."""
    groups = [group for group in optimizer._param_groups or [] if isinstance(group, dict)]
    rates = {"schedule": optimizer._learning_rate, **{f"group_{i}": group.get("lr") for i, group in enumerate(groups)}}
    return {name: rate for name, rate in rates.items() if isinstance(rate, LRScheduler)}


def _parts(optimizer: Optimizer, scaler: Any) -> dict[str, Any]:
    if scaler is not None and not callable(getattr(scaler, "state_dict", None)):
        raise refusal(TypeError, "`scaler` must be a loss scaler.", scaler=scaler)
    return {**schedules_of(optimizer), **({} if scaler is None else {"scaler": scaler})}


def _keys(state: Any) -> Any:
    return {key: _keys(value) for key, value in state.items()} if isinstance(state, dict) else None


def states_to_load(saved: dict[str, Any], parts: Mapping[str, Any], was: Record, now: Record) -> dict[str, Any]:
    """Skip schedules of another class."""
    before, present = ({"schedule": one["schedule"], **one["group_schedules"]} for one in (was, now))
    return {name: saved[name] for name in parts if name in saved and before.get(name) == present.get(name)}


def set_parts(parts: Mapping[str, Any], states: dict[str, Any], steps: dict[str, Optional[int]]) -> dict[str, Any]:
    """Load the states of schedules and loss scaler, and begin other schedules at `steps`; all or none.

    Return the previous states.
    """
    before = {name: parts[name].state_dict() for name in (*states, *steps)}
    for name, state in states.items():
        present = before[name]
        if (keys := _keys(state)) != _keys(present):
            raise refusal(ValueError, f"A {type(parts[name]).__name__} has the keys {_keys(present)}.", keys=keys)
    try:
        for name, state in states.items():
            _set_part(parts[name], state)
        for name, step in steps.items():
            resume_at(parts[name], step)
    except Exception as error:
        for name, state in before.items():
            _set_part(parts[name], state)
        raise ValueError(f"The state of a schedule or a scaler cannot be loaded. Received: {shown(error)}") from error
    return before


def _set_part(part: Any, state: Any) -> None:
    if state:  # Paddle's GradScaler refuses the empty state of a disabled scaler
        (getattr(part, "set_state_dict", None) or part.load_state_dict)(state)
    if isinstance(part, LRScheduler):
        resume_at(part)
    if isinstance(part, CosineAnnealingWarmRestarts):  # Paddle's state lacks the cycle and the step in it
        step, length = int(part.last_epoch), part.T_0
        if part.T_mult == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * part.T_mult
        part.T_cur, part.T_i = step, length


# ---- the optimizer's state


def one_of_ours(optimizer: Optimizer, or_paddles: bool = False) -> Optimizer:
    inner = _compat.unwrap(optimizer)
    if not isinstance(inner, LayerwiseOptimizer) and not (or_paddles and _paddles_class(inner)):
        also = ", or one of paddle.optimizer after `apply_layerwise_decay`" if or_paddles else ""
        paddles = "`paddle.save(optimizer.state_dict(), path)` saves any other optimizer"
        raise wrong_type(inner, "optimizer", f"one of paddle_ldopt{also}; {paddles}")
    _compat.check_wrapper_state(optimizer)
    return inner


def _paddles_class(optimizer: Optimizer) -> Optional[str]:
    """Return "paddle.optimizer.<class>" after `apply_layerwise_decay`, None for any other class."""
    name = type(optimizer).__name__
    plain = plain_class(optimizer)
    return f"paddle.optimizer.{name}" if plain and plain is getattr(paddle.optimizer, name, None) else None


def _whole_optimizer(optimizer: Optimizer) -> Optimizer:
    inner = one_of_ours(optimizer, or_paddles=True)
    if not paddle.in_dynamic_mode() or inner._parameter_list is None:
        raise refusal(ValueError, "In a static graph, use `paddle.static.save`.", optimizer=type(inner).__name__)
    hcg, degrees = _compat.topology(), {}
    if hcg is not None:
        degrees["sharding"] = hcg.get_sharding_parallel_world_size()
        degrees["tensor_parallel"] = hcg.get_model_parallel_world_size()
    if _compat.is_group_sharded(optimizer):
        degrees["group_sharded"] = paddle.distributed.get_world_size()
    if any(degree > 1 for degree in degrees.values()):
        use = "use `paddle_ldopt.parallel.save_checkpoint`, `load_checkpoint`."
        raise refusal(ValueError, f"This process has only a part of the state: {use}", **degrees)
    return inner


def _names_in_file(optimizer: Optimizer, model: Optional[Sublayer] = None) -> tuple[dict[str, str], str]:
    """Return ``param.name`` -> name in a file, and "structured" or "paddle", whose names these are."""
    known = optimizer.structured_names
    if model is not None:
        known = _compat.name_dict_of(_compat.unwrap_model(_compat.checked_model(model)))
    names = {param.name: param.name for param in parameters_of(optimizer)}
    if known:
        names = {name: known.get(_compat.name_before_copy(name, known.__contains__)) for name in names}
    unnamed = [name for name, structured in names.items() if not structured]
    if unnamed:
        source = "`model`" if model is not None else "`layers` or `name_dict`"
        advice = "give the whole model that the optimizer trains, and build the optimizer after the model is complete"
        raise ValueError(f"{source} must name every parameter: {advice}. Received: no name for {quoted(unnamed)}")
    if len(set(names.values())) < len(names):
        raise ValueError(f"Two parameters must not have the same name. Received: {quoted(sorted(names.values()))}")
    return names, "structured" if known else "paddle"


def _first_state(optimizer: Any, param: Any, group: dict[str, Any]) -> dict[str, StateForm]:
    """Return the state that a step would create; the master is under `MASTER`."""
    forms: dict[str, StateForm] = {}

    def note(name: str, param: Any, dtype: Any = None, fill_value: Any = 0.0, shape: Any = None, **_: Any) -> None:
        shape = param.shape if shape is None else shape
        forms[name] = StateForm(dtype_name(dtype or param.dtype), tuple(shape), float(fill_value))

    def note_master(param: Any) -> Any:
        note(MASTER, param, "float32")
        return types.SimpleNamespace(name=param.name, shape=param.shape, dtype=paddle.float32)

    replaced = {"_add_accumulator": note, "_create_master_weight": note_master, "_already_create_accumulator": set()}
    other = _compat.stand_in(optimizer, **replaced)
    block = paddle.static.default_main_program().global_block()
    other._create_accumulators(block, {**group, "params": [param]} if group else [param])
    return forms


def _layouts(optimizer: Optimizer) -> dict[str, dict[str, StateForm]]:
    """Return ``param.name`` -> state name (also `MASTER`) -> its form after the first update."""
    groups, params = _compat.groups_by_name(optimizer), parameters_of(optimizer)
    return {param.name: _first_state(optimizer, param, groups.get(param.name, {})) for param in params}


def _states_of(optimizer: Optimizer) -> States:
    refresh_masters(optimizer, parameters_of(optimizer))  # of weights written after the last step
    states, known = {}, _layouts(optimizer)
    for param in parameters_of(optimizer):
        if (tensors := _tensors(optimizer, param, known[param.name])) is not None:
            plain = {name: x if isinstance(x, paddle.Tensor) else paddle.to_tensor(x) for name, x in tensors.items()}
            states[param.name] = {name: (dtype_name(tensor.dtype), tensor.numpy()) for name, tensor in plain.items()}
    return states


def _tensors(
    optimizer: Optimizer, param: paddle.Tensor, layout: Mapping[str, Any]
) -> Optional[dict[str, paddle.Tensor]]:
    """Before the first update, return the state that Paddle loaded, or None."""
    owner = optimizer._master_weights.get(param.name, param) if MASTER in layout else param
    tensors = {MASTER: None if owner is param else owner} if MASTER in layout else {}
    live, waiting = param.name in optimizer._already_create_accumulator, optimizer._accumulators_holder
    for name in layout.keys() - {MASTER}:
        key = f"{optimizer._name}_{name}" if optimizer._name else name
        tensor = optimizer._accumulators.get(key, {}).get(owner.name)
        tensors[name] = tensor if live else waiting.get(f"{owner.name}_{key}_0")
    missing = sorted(name for name, value in tensors.items() if value is None)
    if live and missing:
        wrong = f"'{param.name}' had another type when its state was created: build a new optimizer for it."
        raise refusal(ValueError, wrong, dtype=dtype_name(param.dtype), missing=missing)
    return None if missing else tensors


def _steps_of(optimizer: Optimizer, states: States) -> Optional[int]:
    """Return None for AdamWDL, which keeps powers of its betas instead."""
    if not optimizer.counts_steps:
        return None
    name = GLOBAL_STEP if any(GLOBAL_STEP in state for state in states.values()) else STEP
    return max((int(state[name][1].reshape(-1)[0]) for state in states.values()), default=0)


def _fit(optimizer: Optimizer, states: States, names: dict[str, str]) -> None:
    """Raise ValueError unless each state fits; add or drop the count of a Lamb or Came with schedules."""
    known = _layouts(optimizer)
    count = max((float(state[STEP][1].max()) for state in states.values() if STEP in state), default=0.0)
    for param in parameters_of(optimizer):
        layout, state = known[param.name], states.get(param.name)
        _tensors(optimizer, param, layout)  # raises if the current state cannot be replaced
        if state is None:
            continue
        if GLOBAL_STEP in layout:
            state.setdefault(GLOBAL_STEP, ("float32", np.full([1], count, "float32")))
        else:
            state.pop(GLOBAL_STEP, None)
        name = names[param.name]
        if set(layout) != set(state):
            wrong = f"The state of '{name}' must consist of {sorted(layout)}: give the optimizer the same options."
            raise refusal(ValueError, wrong, state=sorted(state))
        for key, (dtype, values) in state.items():
            check_value(f"'{name}.{key}'", key, values, layout[key][:2], dtype)


def _set_states(optimizer: Optimizer, states: States) -> None:
    """Load checked states; parameters without state start anew, their masters as copies."""
    params, known = parameters_of(optimizer), _layouts(optimizer)
    optimizer._accumulators_holder = {}
    if isinstance(optimizer, LayerwiseOptimizer):
        optimizer.forget()
    with paddle.utils.unique_name.guard(), paddle.no_grad():  # Paddle's checkpoints only find names ending in "_0"
        _compat.create_state(optimizer, [param for param in params if param.name in states])
        for param in params:
            values, layout = states.get(param.name, {}), known[param.name]
            if param.name not in states and (master := optimizer._master_weights.get(param.name)) is not None:
                paddle.assign(param.astype(master.dtype), master)
            for name, tensor in (_tensors(optimizer, param, layout) or {}).items():
                if name in values:
                    tensor.set_value(np.array(values[name][1]))
                elif name != MASTER:
                    paddle.assign(paddle.full_like(tensor, layout[name].fill), tensor)
