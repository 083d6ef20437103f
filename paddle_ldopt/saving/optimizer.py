"""`save_optimizer` and `load_optimizer`."""

import os
from typing import Any, NamedTuple, Optional

import numpy as np
from paddle.nn import Layer
from paddle.optimizer.lr import LRScheduler

from .._checks import checked_int, shown
from .._paddle import parameters_of
from ..optimizers._base.sharded_state import COUNTER
from ..optimizers.lamb import GLOBAL_STEP
from .container import checked_path, read_record, write_file
from .pdopt import read_pdopt
from .record import check_same, describe
from .state import (
    LoadReport,
    check_state,
    checked_names,
    checked_optimizer,
    set_state,
    state_of,
    steps_of,
    structured_names,
)
from .values import check_part, pack, set_parts, unpack

__all__ = ["load_optimizer", "save_optimizer"]

_PDOPT = ".pdopt"  # how the name of a file of Paddle's own ends


def save_optimizer(path, optimizer, model=None, *, scaler=None, step=None):
    """Save all of an optimizer's state in a file that can be read without running any code: safetensors.

    State, float32 masters, the state of an `LRScheduler` and, if it is given, of a loss scaler; and what the optimizer
    was built with, for `load_optimizer` to compare. The file is whole and on the disk when this returns, or as it was
    before. The model's parameters are saved by the caller.

    A parameter's state has the name of the parameter in `model`; without one the name in the `layers` or `name_dict`
    that the optimizer was built with. Such a file can be loaded in any process. Where neither is there it has Paddle's
    name (``linear_0.w_0``), which depends on what was built before in the process.

    Args:
        path (str|os.PathLike): the file, ".safetensors" by custom. Not a link.
        optimizer (Optimizer): one of this package's, in dygraph, in any wrapper that leaves it whole: data parallel
            (one process saves) and pipeline stages (each saves a file of its own).
        model (paddle.nn.Layer, optional): the model it trains; may be wrapped by `paddle.DataParallel`.
        scaler (object, optional): a loss scaler with ``state_dict()``: this package's, `paddle.amp.GradScaler`.
        step (int, optional): the steps taken, at least 0, to be had back from `load_optimizer`. None: what the
            optimizer counts; an `AdamWDL` counts none.

    Raises:
        TypeError: an optimizer that is none of ours; a `model` that is no Layer; a `path` that is none; a `step` that
            is no int.
        ValueError: a parameter that the model does not name; a state that is spread over processes (sharding, tensor
            parallel: `paddle_ldopt.parallel.save_checkpoint`); the state of a schedule or a scaler that is more than
            numbers, text and arrays; a `path` that is a link, a folder, a device or a pipe, or ends in ".pdopt"; more
            parameters than fit into the header of such a file, some 170,000. Nothing is written by then.
        OSError: the file cannot be written. What was there is as before.

    Differs from ``paddle.save(optimizer.state_dict(), path)``: no pickle, a checksum, the model's names, and a resume
    with other options is noticed.

    Examples:
        .. code-block:: python

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
    inner = checked_optimizer(optimizer)
    if checked_path(path).endswith(_PDOPT):
        raise ValueError(
            "`load_optimizer` would take the file for Paddle's own, by its name: give it another, such as "
            f"'.safetensors'. Received: path={os.fspath(path)!r}"
        )
    step = None if step is None else checked_int(step, "step")
    _check_scaler(scaler)
    names, structured = structured_names(inner, model)
    states = state_of(inner)
    record = describe(inner, names)
    record["naming"] = "structured" if structured else "paddle"
    record["step"] = steps_of(inner, states) if step is None else int(step)
    record["with_state"] = [names[tensor] for tensor in states]
    schedule = inner._learning_rate if isinstance(inner._learning_rate, LRScheduler) else None
    record["schedule_state"] = None if schedule is None else pack(schedule.state_dict(), "The schedule's state")
    record["scaler_state"] = None if scaler is None else pack(scaler.state_dict(), "The scaler's state")
    arrays = {f"{names[tensor]}.{name}": value for tensor, held in states.items() for name, value in held.items()}
    write_file(path, arrays, record)


def load_optimizer(path, optimizer, model=None, *, scaler=None, changed=()):
    """Load what `save_optimizer` saved, or Paddle's ``.pdopt``, into an optimizer: all of it or nothing.

    The run goes on bit for bit. Load the model's parameters first: masters that are not in the file are made of them.

    Parameters are found by name, see `save_optimizer`: a file with the model's names needs `model`, or an optimizer
    with `layers` or `name_dict`. A file whose name ends in ".pdopt" is taken for what
    ``paddle.save(optimizer.state_dict(), path)`` wrote: parameters are found by Paddle's names, and there are no
    options to compare. It is a pickle, and is read by an interpreter that knows arrays and plain containers alone: what
    else a pickle can ask for, code included, is refused.

    Args:
        path (str|os.PathLike): the file. Not a link.
        optimizer (Optimizer): of the same class, for the same parameters.
        model (paddle.nn.Layer, optional): the model it trains, for the names.
        scaler (object, optional): loss scaler to load the saved one's state into; if one was saved it must be given.
        changed (Iterable[str]): what may be other than in the file, and is left as it is here: names of options
            ("weight_decay", "beta1", ...), "learning_rate" (the number), "schedule" (its class and arguments; one of
            the same class goes on from the step of the file, another starts where it stands), "layerwise_decay" (all
            ratios, also those of a `set_param_lr_fun` that gives others from step to step),
            "apply_decay_param_fun", "grad_clip".

    Returns:
        LoadReport: the step, and the parameters that have state. Printed, it is a table.

    Raises:
        TypeError: as `save_optimizer`.
        ValueError: a file that is damaged, cut short, of a later format, or none of these; one of another model, class
            or options (unless `changed` names them); an unknown name in `changed`; a `scaler` that was not saved, or
            was and is not given. Optimizer, schedule and scaler are as before.
        OSError: a file that cannot be read.

    Examples:
        .. code-block:: python

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
    inner = checked_optimizer(optimizer)
    _check_scaler(scaler)
    changed = set(checked_names(changed, "changed"))
    if checked_path(path).endswith(_PDOPT):
        if scaler is not None or model is not None or changed - {"schedule"}:
            raise ValueError(
                "A .pdopt holds Paddle's names, no options and no scaler: leave out `model`, `scaler` and `changed`. "
                f"Received: path={os.fspath(path)!r}"
            )
        saved = _from_pdopt(path, inner, "schedule" in changed)
    else:
        record, arrays = read_record(path)
        try:
            saved = _from_record(record, arrays, inner, model, changed)
        except (KeyError, TypeError, AttributeError, IndexError) as error:  # signed, but not written by us
            if isinstance(error, TypeError) and not isinstance(model, (type(None), Layer)):
                raise
            raise ValueError(
                f"The file's record is not what `save_optimizer` writes: {type(error).__name__}: {error}. "
                f"Received: path={os.fspath(path)!r}"
            ) from error
    _fit_counts(inner, saved.states)
    check_state(inner, saved.states, saved.names)
    set_parts(_checked_parts(inner, saved, scaler))
    set_state(inner, saved.states)
    with_state = [name for tensor, name in saved.names.items() if tensor in saved.states]
    idle = [name for tensor, name in saved.names.items() if tensor not in saved.states]
    step = steps_of(inner, saved.states) if saved.step is None else saved.step
    return LoadReport(os.fspath(path), step, tuple((name, name) for name in with_state), missing=tuple(idle))


class _Saved(NamedTuple):
    """What a file has for an optimizer."""

    names: dict  # param.name -> name in the file
    states: dict  # param.name -> {state name: (dtype, values)}
    step: Optional[int] = None
    schedule: Any = None  # state of the schedule, None if it is not to be loaded
    scaler: Any = None  # state of the scaler, None if there is none


def _from_pdopt(path, optimizer, other_schedule):
    states, schedule = read_pdopt(path, optimizer)
    if other_schedule:
        schedule = None
    elif (schedule is None) != (_schedule_of(optimizer) is None):
        raise ValueError(
            "The file is of an optimizer with a schedule, or this one has one and the file has not. If that is meant, "
            f"give changed=['schedule']. Received: {_schedule_of(optimizer) or 'a number'} as the rate"
        )
    return _Saved({param.name: param.name for param in parameters_of(optimizer)}, states, schedule=schedule)


def _from_record(record, arrays, optimizer, model, changed):
    names, structured = structured_names(optimizer, model)
    if (record["naming"] == "structured") != structured:
        has = "the model's names: give `model`" if not structured else "Paddle's names: leave out `model` and `layers`"
        raise ValueError(
            f"Parameters are found by name, and the file has {has}. Received: naming={shown(record['naming'])}"
        )
    here = describe(optimizer, names)
    check_same(record, here, changed)
    step = record["step"]
    if step is not None and (type(step) is not int or step < 0):
        raise ValueError(f"The file's step must be a number from 0 on. Received: step={shown(step)}")
    there, ours = record["schedule"], here["schedule"]
    same = there is not None and ours is not None and there["class"] == ours["class"]
    schedule = unpack(record["schedule_state"]) if same else None
    if same and schedule is None:
        raise ValueError(f"The file lacks its schedule's state. Received: schedule_state={shown(schedule)}")
    return _Saved(names, _by_parameter(record, arrays, names), step, schedule, unpack(record["scaler_state"]))


def _check_scaler(scaler):
    if scaler is not None and not callable(getattr(scaler, "state_dict", None)):
        raise TypeError(f"`scaler` must be a loss scaler. Received: scaler={shown(scaler)}")


def _schedule_of(optimizer):
    rate = optimizer._learning_rate
    return type(rate).__name__ if isinstance(rate, LRScheduler) else None


def _by_parameter(record, arrays, names):
    """Return ``param.name`` -> its state, raise unless the tensors are those that the record says."""
    with_state = record["with_state"]
    unknown = set(with_state) - set(names.values())
    if unknown or len(set(with_state)) < len(with_state):
        raise ValueError(f"The file's record names no such parameters. Received: with_state={shown(with_state[:8])}")
    states: dict = {name: {} for name in with_state}
    for key, value in arrays.items():
        owner, _, state = key.rpartition(".")
        if owner not in states:
            raise ValueError(f"The file has a tensor of no parameter. Received: {shown(key)}")
        states[owner][state] = value
    return {tensor: states[name] for tensor, name in names.items() if name in states}


def _fit_counts(optimizer, states):
    """Give the state of a Lamb without schedules the count of one with, or take it away."""
    for param in parameters_of(optimizer):
        state, wanted = states.get(param.name), GLOBAL_STEP in optimizer.state_layout(param)
        if state and wanted and GLOBAL_STEP not in state:
            counts = [held[COUNTER][1] for held in states.values() if COUNTER in held]
            count = max((float(values.max()) for values in counts if values.size), default=0.0)
            state[GLOBAL_STEP] = "float32", np.full([1], count, "float32")
        elif state and not wanted:
            state.pop(GLOBAL_STEP, None)


def _checked_parts(optimizer, saved, scaler):
    """Return [(schedule or scaler, its state)] of what is to be loaded."""
    if (scaler is None) != (saved.scaler is None):
        raise ValueError(
            "`scaler` is to be given if one was saved, and only then. "
            f"Received: scaler of type {type(scaler).__name__}, {'one' if scaler is None else 'none'} in the file"
        )
    parts = []
    for part, state, where in (
        (optimizer._learning_rate, saved.schedule, "The schedule's state"),
        (scaler, saved.scaler, "The scaler's state"),
    ):
        if state is not None:
            check_part(part, state, where)
            parts.append((part, state))
    return parts
