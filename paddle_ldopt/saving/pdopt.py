"""Reads the states of an optimizer from Paddle's ``.pdopt``, a pickle, without running any code in it.

The unpickler replaces the few functions that arrays need with its own, so no file reaches a function of NumPy or Python
that parses bytes.
"""

import io
import math
import pickle
import re
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from paddle.optimizer import Optimizer

from .._files import opened
from .._messages import quoted, refusal, shown
from .._paddle import MASTER, prefixed
from .state import States, layouts

_COUNTED = re.compile(r"(_fp32_master)_\d+(?=_)|_\d+$")  # Paddle numbers the copies in a process
_OPERATIONS = re.findall(  # no call but REDUCE, of a function that `find_class` returned
    r"\w+",
    """PROTO FRAME STOP MARK POP POP_MARK MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
    NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
    BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
    GLOBAL STACK_GLOBAL REDUCE BUILD""",
)
_FLOATS = {"f2": "float16", "f4": "float32", "f8": "float64", "u2": "bfloat16"}
_TYPES = {**_FLOATS, "i4": "int32", "i8": "int64", "b1": "bool"}


def read_pdopt(path: str, optimizer: Optimizer) -> tuple[States, Optional[dict[str, Any]]]:
    """Return the states of an optimizer's parameters in a ``.pdopt``, and its schedule's state or None."""
    entries = _read_plain(path)
    masters = {name: _array(value) for name, value in entries.pop("master_weights", {}).items()}
    schedule = entries.pop("LR_Scheduler", None)
    if not _is_plain(schedule):
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
        problem = "The file has entries that this optimizer lacks. Paddle's names depend on the objects built before in"
        todo = "the process: build model and optimizer first, as in the program that saved the file."
        raise ValueError(f"{problem} {todo} Received: {quoted(unused)} ({len(unused)} of them)")
    return states, schedule


def _array(value: object) -> tuple[str, NDArray[Any]]:
    """Return (dtype, values) of an array or, as Paddle writes some Tensors, of (name, array)."""
    array = value[1] if type(value) is tuple and len(value) == 2 else value
    if type(array) is not _Array or not hasattr(array, "values"):
        raise ValueError(f"An optimizer's state is made of arrays. Received: {type(array).__name__}")
    return array.dtype, array.values


class _Type:
    """Replaces `numpy.dtype`."""

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        if type(code) is not str or code not in _TYPES:  # the hash of a deep tuple would crash
            raise ValueError(f"an array of type {shown(code)}")
        self.code = code

    def build(self, state: Any) -> None:
        if state[1] not in ("<", "|"):
            raise ValueError(f"an array of byte order {shown(state[1])}")


class _Array:
    """Replaces `numpy.ndarray`."""

    dtype: str
    values: NDArray[Any]

    def build(self, state: Any) -> None:
        """Set type and values; raise ValueError for another structure."""
        _, shape, dtype, by_columns, data = state
        if type(dtype) is not _Type or type(data) is not bytes or type(shape) is not tuple:
            raise ValueError("an array of another structure")
        whole = all(type(n) is int and n >= 0 for n in shape)
        if not whole or math.prod(shape) * np.dtype(dtype.code).itemsize != len(data):
            raise ValueError(f"an array of shape {shape} in {len(data)} bytes")
        self.dtype = _TYPES[dtype.code]
        self.values = np.frombuffer(data, dtype.code).reshape(shape, order="F" if by_columns else "C")


def _new_array(kind: object, shape: object, code: object) -> _Array:
    return _Array()


def _number(dtype: object, data: object) -> Any:
    """Replace `numpy.core.multiarray.scalar`."""
    array = _Array()
    array.build((1, (), dtype, False, data))
    return array.values.item()


def _bytes(text: str, encoding: str) -> bytes:
    """Replace `_codecs.encode`, by which protocol 2 writes bytes."""
    if encoding != "latin1":
        raise ValueError(f"bytes in {shown(encoding)}")
    return text.encode("latin1")


_KNOWN = {
    **{(module, "tuple"): tuple for module in ("builtins", "__builtin__")},
    ("_codecs", "encode"): _bytes,
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): None,  # never called
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _new_array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _number for core in ("core", "_core")},
}
_Interpreter: Any = vars(pickle)["_Unpickler"]  # Python's own, written in Python


class _Reader(_Interpreter):
    """Unpickles plain containers and arrays; anything else is a ValueError."""

    dispatch = {code: _Interpreter.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPERATIONS)}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise ValueError(f"it asks for {module}.{name}")
        return _KNOWN[module, name]

    def load_build(self) -> None:
        state = self.stack.pop()
        if type(self.stack[-1]) not in (_Type, _Array) or type(state) is not tuple:
            raise ValueError("it changes an object other than an array")
        self.stack[-1].build(state)

    def _check_keys(self, keys: list[object]) -> None:
        if not all(type(key) is str for key in keys):
            raise ValueError("a key that is not text")

    def load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_keys(self.stack[0::2])
        super().load_setitems()

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


def _read_plain(path: str) -> dict[str, Any]:
    """Return the dict in a pickle, with an `_Array` for each array; raise ValueError for any other object."""
    with opened(path) as file:
        data = file.read()
    try:
        stream = io.BytesIO(data)
        state = _Reader(stream).load()
        if stream.read(1):
            raise ValueError("bytes follow its end")
        if type(state) is not dict or type(state.get("master_weights", {})) is not dict:
            raise ValueError("it is not a dict")
    except Exception as error:  # damaged pickles fail in every way
        problem = f"The file is not a plain .pdopt: {type(error).__name__}: {str(error)[:200]}. No code in it was run."
        raise refusal(ValueError, problem, path=path, bytes=len(data)) from None
    return state


def _is_plain(value: Any) -> bool:
    """Return whether a value has only numbers, text, lists and dicts, and does not contain itself."""
    seen, waiting = 0, [value]
    while waiting and seen < 10_000:
        value, seen = waiting.pop(), seen + 1
        if type(value) is dict:
            waiting += value.values()
        elif type(value) in (list, tuple):
            waiting += value
        elif type(value) not in (type(None), bool, int, float, str):
            return False
    return not waiting
