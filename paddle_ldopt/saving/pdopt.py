"""Reads the states of an optimizer from Paddle's ``.pdopt`` without `paddle.load`, which would run any code in it."""

import re
from typing import Any, Optional

from numpy.typing import NDArray
from paddle.optimizer import Optimizer

from .._messages import quoted, refusal
from .._paddle import MASTER, prefixed
from .plain_pickle import Array, is_plain, read_plain
from .state import States, layouts

_COUNTED = re.compile(r"(_fp32_master)_\d+(?=_)|_\d+$")  # Paddle numbers the copies in a process


def read_pdopt(path: str, optimizer: Optimizer) -> tuple[States, Optional[dict[str, Any]]]:
    """Return the states of an optimizer's parameters in a ``.pdopt``, and its schedule's state or None."""
    entries = read_plain(path)
    masters = {name: _array(value) for name, value in entries.pop("master_weights", {}).items()}
    schedule = entries.pop("LR_Scheduler", None)
    if not is_plain(schedule):
        raise refusal(ValueError, "The schedule's state must be numbers.", path=path)
    entries.pop("StructuredToParameterName@@", None)  # Paddle's names of the state, without masters
    states: States = {}
    key_of = {_COUNTED.sub(lambda match: match[1] or "", key): key for key in entries}
    for param, layout in layouts(optimizer).items():
        state = {}
        for name, (_, shape, _) in layout.items():
            for owner in (f"{param}_fp32_master", param):
                key = key_of.get(f"{owner}_{prefixed(optimizer, name)}")
                if key in entries:
                    dtype, values = _array(entries.pop(key))
                    # [1] and [] are the same
                    state[name] = dtype, values.reshape(shape) if values.size == 1 else values
        if param in masters:
            state[MASTER] = masters.pop(param)
        if state:
            states[param] = state
    if unused := [*entries, *masters]:
        problem = "The file names no parameters or states of this optimizer. Paddle's names depend on the objects built"
        todo = "before in the process: build model and optimizer first, as in the program that saved the file."
        raise ValueError(f"{problem} {todo} Received: {quoted(unused)} ({len(unused)} of them)")
    return states, schedule


def _array(value: object) -> tuple[str, NDArray[Any]]:
    """Return (dtype, values) of an array or, as Paddle writes some Tensors, of (name, array)."""
    array = value[1] if type(value) is tuple and len(value) == 2 else value
    if type(array) is not Array or not hasattr(array, "values"):
        raise ValueError(f"An optimizer's state is made of arrays. Received: {type(array).__name__}")
    return array.dtype, array.values
