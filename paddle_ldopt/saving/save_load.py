"""`save_optimizer`, `load_optimizer` and its `LoadReport`."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from paddle.nn import Layer
from paddle.optimizer import Optimizer

from .._checks import checked_int
from .._files import Path, checked_path, file_errors
from .._messages import refusal
from .._paddle import lr_or_scheduler, parameters_of
from ..optimizers.states import GLOBAL_STEP, STEP
from .json_state import PartAndState, check_part, from_json, set_parts, to_json
from .optimizer_record import Record, check_model, check_options, describe, schedule_of
from .pdopt import read_pdopt
from .safetensors_file import Arrays, read_record, write_record
from .state import (
    States,
    check_state,
    checked_name_list,
    checked_optimizer,
    layouts,
    set_state,
    state_of,
    steps_of,
    structured_names,
)

_PDOPT = ".pdopt"  # extension of Paddle's own files


def save_optimizer(
    path: Path, optimizer: Optimizer, model: Optional[Layer] = None, *, scaler: Any = None, step: Optional[int] = None
) -> None:
    """Save an optimizer's state in a safetensors file, which can be read without running code.

    The file contains the state, float32 masters, the states of the `LRScheduler` and the loss scaler, and the options,
    which `load_optimizer` compares. The file is written completely, or not at all. Parameters are named as in `model`,
    or as in the `layers` or `name_dict` of the optimizer. Without these, the file has Paddle's names
    (``linear_0.w_0``), which depend on the objects built before in the process.

    Args:
        path (str|os.PathLike): the file, usually ".safetensors". Not a link.
        optimizer (Optimizer): an optimizer of this package, or of `paddle.optimizer` after `apply_layerwise_decay`;
            wrapped or not. Its whole state must be in this process. With data parallelism, one process saves. With
            pipeline stages, each process saves its own file.
        model (paddle.nn.Layer, optional): the model it trains; may be wrapped by `paddle.DataParallel`.
        scaler (object, optional): a loss scaler with ``state_dict()``: this package's or `paddle.amp.GradScaler`.
        step (int, optional): the steps taken, which `load_optimizer` returns; by default the optimizer's own count.

    Raises:
        TypeError, ValueError, OSError: a wrong type; a parameter without a name; a state spread over processes (use
            `paddle_ldopt.parallel.save_checkpoint`); a `path` that is not a regular file, cannot be written or ends
            in ".pdopt"; more than about 140,000 parameters. A previous file is unchanged.

    Differs from ``paddle.save(optimizer.state_dict(), path)``: no pickle, but a checksum, the model's names and the
    options.

    Examples:
        >>> import os, tempfile
        >>> import paddle
        >>> import paddle_ldopt as ldopt
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = ldopt.Lamb(1e-3, parameters=model.parameters())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "optimizer.safetensors")
        ...     ldopt.save_optimizer(path, optimizer, model)
        ...     print(ldopt.load_optimizer(path, optimizer, model).step)
        0
    """
    inner, path = checked_optimizer(optimizer), checked_path(path)
    if path.endswith(_PDOPT):
        problem = "`load_optimizer` would take it for one of Paddle's own files: use the extension .safetensors."
        raise refusal(ValueError, problem, path=path)
    step = None if step is None else checked_int(step, "step")
    _check_scaler(scaler)
    names, structured = structured_names(inner, model)
    states, schedule = state_of(inner), schedule_of(inner)
    record = {
        **describe(inner, names),
        "naming": "structured" if structured else "paddle",
        "step": steps_of(inner, states) if step is None else step,
        "with_state": [names[tensor] for tensor in states],
        "schedule_state": None if schedule is None else to_json(schedule.state_dict(), "The schedule's state"),
        "scaler_state": None if scaler is None else to_json(scaler.state_dict(), "The scaler's state"),
    }
    arrays = {f"{names[tensor]}.{name}": value for tensor, state in states.items() for name, value in state.items()}
    write_record(path, arrays, record)


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The parameters that received state from a file. `print` shows the report as a table.

    Args:
        source (str): the file, or another source.
        step (int|None): the steps taken, if known.
        matched (tuple[tuple[str, str], ...]): (name in the file, name in the model) of the parameters with state.
        missing (tuple[str, ...]): parameters of the model without state in the file; they start with a new state.
        unexpected (tuple[str, ...]): unused names in the file.
        transposed (tuple[str, ...]): parameters of the model whose state was transposed.

    Examples:
        >>> from paddle_ldopt import LoadReport
        >>> print(LoadReport("adamw.pt", 10, (("fc.weight", "linear.weight"),), transposed=("linear.weight",)))
        adamw.pt: step 10, 1 matched, 0 missing, 0 unexpected
        parameter      in the file
        linear.weight  fc.weight    transposed
    """

    source: str
    step: Optional[int]
    matched: tuple[tuple[str, str], ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    transposed: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [("parameter", "in the file", "")]
        rows += [(name, source_name, "transposed" * (name in self.transposed)) for source_name, name in self.matched]
        rows += [(name, "-", "missing") for name in self.missing]
        rows += [("-", name, "unexpected") for name in self.unexpected]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        step = "step unknown" if self.step is None else f"step {self.step}"
        counts = f"{len(self.matched)} matched, {len(self.missing)} missing, {len(self.unexpected)} unexpected"
        return "\n".join([f"{self.source}: {step}, {counts}", *lines])


def load_optimizer(
    path: Path, optimizer: Optimizer, model: Optional[Layer] = None, *, scaler: Any = None, changed: Iterable[str] = ()
) -> LoadReport:
    """Load a file of `save_optimizer`, or Paddle's ``.pdopt``, into an optimizer, completely or not at all.

    The resumed run equals an uninterrupted one bit for bit. Load the model's parameters first: missing masters are
    copied from them. A ".pdopt" must come from ``paddle.save(optimizer.state_dict(), path)``; it has Paddle's names and
    no options. Reading this pickle runs no code: only arrays and plain containers are allowed in it.

    Args:
        path (str|os.PathLike): the file. Not a link.
        optimizer (Optimizer): of the same class, for the same parameters.
        model (paddle.nn.Layer, optional): the model it trains, for the names, as in `save_optimizer`.
        scaler (object, optional): loss scaler to load; required if one was saved.
        changed (Iterable[str]): settings that may differ from the file and keep their present value: names of options
            that do not change the states ("weight_decay", "beta1", ...), "learning_rate" (the number, and those of
            groups), "schedule" (a schedule of the same class continues from the step in the file), "layerwise_decay"
            (all ratios), "apply_decay_param_fun", "grad_clip".

    Returns:
        LoadReport: the step, and the parameters with state. `print` shows it as a table.

    Raises:
        TypeError, ValueError, OSError: an unreadable, damaged or unknown file; another model, class or options (unless
            in `changed`); an unknown name in `changed`; a `scaler` but none in the file, or the reverse. The optimizer
            is unchanged.

    Examples:
        >>> import os, tempfile
        >>> import paddle
        >>> import paddle_ldopt as ldopt
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = ldopt.AdamWDL(1e-3, parameters=model.parameters(), weight_decay=0.01)
        >>> model(paddle.ones([1, 4])).mean().backward()
        >>> optimizer.step()
        >>> other = ldopt.AdamWDL(1e-3, parameters=model.parameters(), weight_decay=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "optimizer.safetensors")
        ...     ldopt.save_optimizer(path, optimizer, model, step=1)
        ...     report = ldopt.load_optimizer(path, other, model, changed=["weight_decay"])
        >>> print(report.step, len(report.matched))
        1 2
    """
    inner, path = checked_optimizer(optimizer), checked_path(path)
    _check_scaler(scaler)
    changed = set(checked_name_list(changed, "changed"))
    read = _from_pdopt if path.endswith(_PDOPT) else _from_record
    saved = read(path, inner, model, scaler, changed)
    set_parts(_checked_parts((schedule_of(inner), saved.schedule), (scaler, saved.scaler)))
    set_state(inner, saved.states)
    step = steps_of(inner, saved.states) if saved.step is None else saved.step
    matched = tuple((name, name) for tensor, name in saved.names.items() if tensor in saved.states)
    missing = tuple(name for tensor, name in saved.names.items() if tensor not in saved.states)
    return LoadReport(path, step, matched, missing)


def _check_scaler(scaler: object) -> None:
    """Raise TypeError for an object without the `state_dict` of a loss scaler."""
    if scaler is not None and not callable(getattr(scaler, "state_dict", None)):
        raise refusal(TypeError, "`scaler` must be a loss scaler.", scaler=scaler)


def _checked_parts(schedule: PartAndState, scaler: PartAndState) -> list[PartAndState]:
    """Return the pairs with a state to load, from (schedule, its state or None) and (scaler, its state or None)."""
    if (scaler[0] is None) != (scaler[1] is None):
        found = f"scaler of type {type(scaler[0]).__name__}, {'one' if scaler[0] is None else 'none'} in the file"
        raise ValueError(f"`scaler` must be given if and only if one was saved. Received: {found}")
    for name, (part, state) in (("schedule", schedule), ("scaler", scaler)):
        if state is not None:
            check_part(part, state, f"The {name}'s state")
    return [(part, state) for part, state in (schedule, scaler) if state is not None]


class _Saved(NamedTuple):
    """The contents of a file for an optimizer."""

    names: dict[str, str]  # param.name -> name in the file
    states: States
    step: Optional[int] = None
    schedule: Optional[dict[str, Any]] = None  # state of the schedule to load
    scaler: Optional[dict[str, Any]] = None  # state of the scaler to load


def _from_pdopt(path: str, optimizer: Optimizer, model: Optional[Layer], scaler: Any, changed: set[str]) -> _Saved:
    if scaler is not None or model is not None or changed - {"schedule"}:
        problem = "A .pdopt holds Paddle's names, no options and no scaler: leave out `model`, `scaler`, `changed`."
        raise refusal(ValueError, problem, path=path)
    states, schedule = read_pdopt(path, optimizer)
    if "schedule" in changed:
        schedule = None
    elif (schedule is None) != (schedule_of(optimizer) is None):
        problem = "Only one of file and optimizer has a schedule. If this is intended, give changed=['schedule']."
        raise ValueError(f"{problem} Received: {type(lr_or_scheduler(optimizer)).__name__} as the rate")
    names = {param.name: param.name for param in parameters_of(optimizer)}
    return _Saved(names, _fitted(optimizer, states, names), schedule=schedule)


def _from_record(path: str, optimizer: Optimizer, model: Optional[Layer], scaler: Any, changed: set[str]) -> _Saved:
    record, arrays = read_record(path)
    names, structured = structured_names(optimizer, model)
    present = describe(optimizer, names)
    with file_errors(path, "The file's record", checks=True):
        _check_contents(record, present, structured)
        by_name = _by_parameter(record["with_state"], arrays)
        states = {tensor: by_name[name] for tensor, name in names.items() if name in by_name}
        states = _fitted(optimizer, states, names)  # before the options: `changed` cannot permit other states
        check_options(record, present, changed)
        saved, now = record["schedule"], present["schedule"]
        schedule = None
        if saved is not None and now is not None and saved["class"] == now["class"]:
            schedule = from_json(record["schedule_state"])
            if schedule is None:
                raise refusal(ValueError, "The file lacks its schedule's state.", schedule_state=schedule)
        return _Saved(names, states, record["step"], schedule, from_json(record["scaler_state"]))


def _check_contents(record: Record, present: Record, structured: bool) -> None:
    """Raise ValueError unless a record is of this class and model, and has the model's names if `structured`."""
    if (record["naming"] == "structured") != structured:
        has = "the model's names: give `model`" if not structured else "Paddle's names: leave out `model` and `layers`"
        raise refusal(ValueError, f"Parameters are matched by name, and the file has {has}.", naming=record["naming"])
    check_model(record, present)
    step, with_state = record["step"], record["with_state"]
    if step is not None and (type(step) is not int or step < 0):
        raise refusal(ValueError, "The file's step must be at least 0.", step=step)
    if set(with_state) - set(present["parameters"]) or len(set(with_state)) < len(with_state):
        raise refusal(ValueError, "The file's record lacks the parameters with state.", with_state=with_state[:8])


def _by_parameter(with_state: list[str], arrays: Arrays) -> States:
    """Return the states by the names in the file; raise ValueError for a tensor of an unknown parameter."""
    states: States = {name: {} for name in with_state}
    for key, value in arrays.items():
        owner, _, state = key.rpartition(".")
        if owner not in states:
            raise refusal(ValueError, "The file has a tensor that belongs to no parameter.", tensor=key)
        states[owner][state] = value
    return states


def _fitted(optimizer: Optimizer, states: States, names: dict[str, str]) -> States:
    """Return checked states, with or without the step count, which only a Lamb or Came with schedules has."""
    for name, layout in layouts(optimizer).items():
        state, wanted = states.get(name), GLOBAL_STEP in layout
        if state and wanted and GLOBAL_STEP not in state:
            counts = [own[STEP][1] for own in states.values() if STEP in own]
            count = max((float(values.max()) for values in counts if values.size), default=0.0)
            state[GLOBAL_STEP] = "float32", np.full([1], count, "float32")
        elif state and not wanted:
            state.pop(GLOBAL_STEP, None)
    check_state(optimizer, states, names)
    return states
