"""Paddle's ``.pdopt`` without `paddle.load`, which runs what the pickle in it asks for.

The interpreter here knows the operations that plain containers and arrays are written with, and the handful of names
that Paddle's and NumPy's arrays need; for each of them it has a stand-in of its own, so nothing that a file says
reaches a function of NumPy or Python that takes bytes apart.
"""

import io
import math
import os
import pickle
import re
from typing import Any

import numpy as np

from .._checks import shown
from .._paddle import parameters_of
from .container import read_file
from .state import MASTER

__all__ = ["read_pdopt"]

_COUNTED = re.compile(r"(_fp32_master)_\d+(?=_)|_\d+$")  # Paddle numbers what one process has several of
_OPERATIONS = re.findall(  # of the last four, only what `_Reader` lets through
    r"\w+",
    """PROTO FRAME STOP MARK POP POP_MARK MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
    NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
    BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
    GLOBAL STACK_GLOBAL REDUCE BUILD""",
)
_TYPES = {
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "u2": "bfloat16",
    "i4": "int32",
    "i8": "int64",
    "b1": "bool",
}


class _Type:
    """Stands for `numpy.dtype`."""

    def __init__(self, code, align=False, copy=True):
        if code not in _TYPES:
            raise ValueError(f"an array of type {shown(code)}")
        self.code = code

    def build(self, state):
        if state[1] not in ("<", "|"):
            raise ValueError(f"an array of byte order {shown(state[1])}")


class _Array:
    """Stands for an array; `values` is it."""

    values: np.ndarray

    def build(self, state):
        _, shape, dtype, by_columns, data = state
        if type(dtype) is not _Type or type(data) is not bytes or type(shape) is not tuple:
            raise ValueError("an array that is put together in another way")
        plain = dtype.code if dtype.code != "b1" else "bool"
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) * np.dtype(plain).itemsize != len(
            data
        ):
            raise ValueError(f"an array of shape {shape} in {len(data)} bytes")
        self.dtype = _TYPES[dtype.code]
        self.values = np.frombuffer(data, plain).reshape(shape, order="F" if by_columns else "C")


class _Name:
    """Stands for a class that is only ever named."""


def _new_array(kind, shape, code):
    return _Array()


def _number(dtype, data):
    """Stand for `numpy.core.multiarray.scalar`."""
    array = _Array()
    array.build((1, (), dtype, False, data))
    return array.values.item()


def _bytes(text, encoding):
    """Stand for `_codecs.encode`, as protocol 2 writes bytes."""
    if encoding != "latin1":
        raise ValueError(f"bytes in {shown(encoding)}")
    return text.encode("latin1")


_TUPLE = tuple
_KNOWN = {
    ("builtins", "tuple"): _TUPLE,
    ("__builtin__", "tuple"): _TUPLE,
    ("_codecs", "encode"): _bytes,
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Name,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _new_array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _number for core in ("core", "_core")},
}
_CALLABLE = (_TUPLE, _bytes, _Type, _new_array, _number)


_Interpreter: Any = vars(pickle)["_Unpickler"]  # Python's own, written in Python


class _Reader(_Interpreter):
    """Reads a pickle of plain containers and arrays; all else is a ValueError."""

    dispatch = {code: _Interpreter.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPERATIONS)}

    def find_class(self, module, name):
        if (module, name) not in _KNOWN:
            raise ValueError(f"it asks for {module}.{name}")
        return _KNOWN[module, name]

    def persistent_load(self, pid):
        raise ValueError("it asks for an object outside")

    def load_reduce(self):
        function = self.stack[-2]
        if not any(function is known for known in _CALLABLE) or type(self.stack[-1]) is not tuple:
            raise ValueError("it calls what is no array")
        self.stack[-2:] = [function(*self.stack[-1])]

    def load_build(self):
        state = self.stack.pop()
        if type(self.stack[-1]) not in (_Type, _Array) or type(state) is not tuple:
            raise ValueError("it changes what is no array")
        self.stack[-1].build(state)

    def _checked(self, keys):
        if not all(type(key) is str for key in keys):
            raise ValueError("a key that is no text")

    def load_setitem(self):
        self._checked(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self):
        self._checked(self.stack[0::2])
        super().load_setitems()

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


def read_pdopt(path, optimizer):
    """Return the state in a ``.pdopt`` and that of its schedule, None if it has none.

    Args:
        path (str|os.PathLike): the file.
        optimizer (Optimizer): whose parameters are looked for.

    Raises:
        ValueError: a pickle of more than arrays; what is not an optimizer's state; names of no parameter here.
        OSError: a file that cannot be read.
    """
    found = _unpickled(path)
    masters = {name: _array(value) for name, value in found.pop("master_weights", {}).items()}
    schedule = found.pop("LR_Scheduler", None)
    found.pop("StructuredToParameterName@@", None)  # where there are no masters: what Paddle calls the state itself
    if not (schedule is None or _is_plain(schedule)):
        raise ValueError(f"The schedule's state must be numbers. Received: path={os.fspath(path)!r}")
    prefix, states = f"{optimizer._name}_" if optimizer._name else "", {}
    known = {_COUNTED.sub(lambda found: found[1] or "", key): key for key in found}
    for param in parameters_of(optimizer):
        held = {}
        for name in optimizer.state_layout(param):
            for owner in (f"{param.name}_fp32_master", param.name):
                key = known.get(f"{owner}_{prefix}{name}")
                if key in found:
                    held[name] = _array(found.pop(key))
        if param.name in masters:
            held[MASTER] = masters.pop(param.name)
        if held:
            states[param.name] = {name: _like(value, optimizer, param, name) for name, value in held.items()}
    left = [*found, *masters]
    if left:
        raise ValueError(
            "The file names no parameters or states of this optimizer. Paddle's names depend on what was built before "
            "in the process: build model and optimizer as the program that saved, first of all. "
            f"Received: {', '.join(map(repr, left[:3]))} ({len(left)} of them)"
        )
    return states, schedule


def _unpickled(path):
    data = read_file(path)
    try:
        stream = io.BytesIO(data)
        found = _Reader(stream).load()
        if stream.read(1):
            raise ValueError("there is more behind its end")
        if type(found) is not dict or type(found.get("master_weights", {})) is not dict:
            raise ValueError("it is no dict")
    except Exception as error:  # damaged pickles fail in every way
        raise ValueError(
            f"The file is no plain .pdopt: {type(error).__name__}: {str(error)[:200]}. Nothing of it was run. "
            f"Received: path={os.fspath(path)!r}, {len(data)} bytes"
        ) from None
    return found


def _array(value):
    """Return (dtype, values) of an array, or of a (name, array) as Paddle writes some Tensors."""
    if type(value) is tuple and len(value) == 2:
        value = value[1]
    if type(value) is not _Array or not hasattr(value, "values"):
        raise ValueError(f"An optimizer's state is made of arrays. Received: {type(value).__name__}")
    return value.dtype, value.values


def _like(value, optimizer, param, name):
    """Return an array with the shape of the state that it is; Paddle saves what is [] as [1] or []."""
    dtype, values = value
    if values.size == 1 and name != MASTER:
        values = values.reshape(optimizer.state_layout(param)[name][1])
    return dtype, values


def _is_plain(value):
    """Say whether a value is made of nothing but numbers, text, lists and dicts; it may hold itself, which is not."""
    kinds = (type(None), bool, int, float, str)
    seen, waiting = 0, [value]
    while waiting and seen < 10_000:
        value, seen = waiting.pop(), seen + 1
        if type(value) is dict:
            waiting += value.values()
        elif type(value) in (list, tuple):
            waiting += value
        elif type(value) not in kinds:
            return False
    return not waiting
