"""The file of `save_optimizer`: safetensors with our record as JSON in the metadata, and a checksum of the whole file.

The safetensors library reads the tensors. We read and write the header: the library accepts duplicate keys, writes
metadata in any order, and has no checksum. docs/checkpoints.md specifies the format.
"""

import collections
import hashlib
import json
import math
import os
import re
import struct
from typing import Any

import numpy as np
import paddle
import safetensors
from numpy.typing import NDArray
from paddle.optimizer.lr import CosineAnnealingWarmRestarts, LRScheduler, ReduceOnPlateau

from ._checks import refusal, shown
from ._files import opened, strict_json, write_file
from .schedules.metric import ReduceLROnPlateau
from .schedules.warmup import resume_at

Arrays = dict[str, tuple[str, NDArray[Any]]]  # name -> (dtype, values); "bfloat16" as its bits in uint16
FORMAT, VERSION = "paddle_ldopt.optimizer", "1"
MAX_HEADER = 100_000_000  # bytes, the limit of safetensors
_UNSUMMED = b'"sha256":"' + b"0" * 64 + b'"'
_SUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # inside a JSON string, the quotes would be escaped
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_DTYPES = {**_FLOATS, "I64": "int64", "I32": "int32", "BOOL": "bool"}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_JSON_ARRAYS = {name: np.dtype(name) for name in ("bool", "int32", "int64", "float16", "float32", "float64")}


def write_record(path: str, arrays: Arrays, record: dict[str, Any]) -> None:
    """Write a file completely and to the disk, or not at all."""
    metadata = {"format": FORMAT, "version": VERSION, "sha256": "0" * 64, "record": _dumps(record)}
    header: dict[str, Any] = {"__metadata__": metadata}
    values: list[NDArray[Any]] = []
    end = 0
    for name in sorted(arrays, key=lambda name: (-arrays[name][1].itemsize, name)):  # widest first, for alignment
        dtype, array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _CODES[dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
        values.append(np.ascontiguousarray(array))
    head = _dumps(header).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > MAX_HEADER:
        problem = f"The names and shapes of the tensors exceed the {MAX_HEADER} bytes that safetensors reads"
        todo = "use `paddle.save(optimizer.state_dict(), path)`."
        raise refusal(ValueError, f"{problem}: {todo}", path=path, tensors=len(arrays), header=len(head))
    length = struct.pack("<Q", len(head))
    head = head.replace(_UNSUMMED, _UNSUMMED.replace(b"0" * 64, _checksum(length, head, *values).encode()))
    write_file(path, (length, head, *values))


def read_record(path: str) -> tuple[dict[str, Any], Arrays]:
    """Return record and tensors of a file of `write_record`; raise ValueError for any other or a changed file."""
    metadata, data = _read(path)
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
        problem = f"The file is not of `save_optimizer` in format {VERSION}: use the paddle_ldopt that wrote it."
        raise refusal(ValueError, problem, path=path, **{key: metadata.get(key) for key in ("format", "version")})
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    checksum = _checksum(data[:8], _SUM.sub(_UNSUMMED, data[8:begin]), memoryview(data)[begin:])
    if _SUM.findall(data[8:begin]) != [checksum.encode()]:
        problem = f"The file is damaged: its checksum is {checksum}."
        raise refusal(ValueError, problem, path=path, sha256=metadata.get("sha256"))
    arrays: Arrays = {}
    try:
        record = strict_json(metadata["record"])
        for name, tensor in safetensors.deserialize(data):  # type: ignore[no-untyped-call]
            dtype = _DTYPES[tensor["dtype"]]
            values = np.frombuffer(tensor["data"], "uint16" if dtype == "bfloat16" else dtype)
            arrays[name] = dtype, values.reshape(tensor["shape"])
    except (KeyError, ValueError, safetensors.SafetensorError) as error:
        raise refusal(ValueError, f"The file's content is invalid: {error!r}.", path=path) from None
    return record, arrays


def _read(path: str) -> tuple[dict[str, str], bytes]:
    """Return the metadata and all bytes of a safetensors file; raise ValueError if size and header disagree."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            problem = "The file is truncated or not a safetensors file."
            raise refusal(ValueError, problem, path=path, bytes=size, header=length)
        head = file.read(length)
        try:
            header = strict_json(head.decode("utf-8"))
            metadata = header.pop("__metadata__", {})
            end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
            if not all(isinstance(value, str) for value in metadata.values()):
                raise ValueError("metadata that is not text")
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            problem = f"The header of the file cannot be read: {type(error).__name__}: {str(error)[:200]}."
            raise refusal(ValueError, problem, path=path) from None
        if 8 + length + end != size:
            problem = f"By its header, the file must have {8 + length + end} bytes."
            raise refusal(ValueError, problem, path=path, bytes=size)
        return metadata, prefix + head + file.read(end)


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _checksum(*parts: Any) -> str:
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()


# ---- states of schedules and loss scalers, with small arrays, NaN and infinities


def to_json(value: Any, where: str) -> Any:
    """Return a value for JSON and `from_json`; raise ValueError, naming `where`, for other objects."""
    if isinstance(value, paddle.Tensor):
        value = value.numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if isinstance(value, np.ndarray) and str(value.dtype) in _JSON_ARRAYS:
        values = [to_json(item, where) for item in value.reshape(-1).tolist()]
        return {"__array__": str(value.dtype), "shape": list(value.shape), "values": values}
    if isinstance(value, (list, tuple, collections.deque)):
        return [to_json(item, where) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith("__") for key in value):
        return {key: to_json(item, f"{where}[{shown(key)}]") for key, item in value.items()}
    problem = f"{where} must be numbers, text, arrays, or lists and dicts of these, to be saved."
    raise ValueError(f"{problem} Received: {type(value).__name__}")


def from_json(value: Any) -> Any:
    """Return the value that `to_json` was given, tuples as lists; raise KeyError or ValueError for anything else."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "__float__" in value:
        return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[value["__float__"]]
    if "__array__" in value:
        return np.array(from_json(value["values"]), _JSON_ARRAYS[value["__array__"]]).reshape(value["shape"])
    return {key: from_json(item) for key, item in value.items()}


def check_part(part: Any, state: Any, where: str) -> None:
    """Raise ValueError unless a state has the structure of the state of the schedule or loss scaler `part`."""
    may_be_none = ("best",) if isinstance(part, ReduceOnPlateau) else ()  # None before the first metric
    present = part.state_dict()
    if isinstance(part, ReduceLROnPlateau) and isinstance(state, dict):  # version 0.2 saved less
        state = {**{key: present[key] for key in ("base_lr", "warmup_step")}, **state}
    _check_like(state, present, where, may_be_none)


def _check_like(state: Any, present: Any, where: str, may_be_none: tuple[str, ...] = ()) -> None:
    if isinstance(present, dict) and isinstance(state, dict) and set(state) == set(present):
        for key, value in state.items():
            if value is not None or key not in may_be_none:
                _check_like(value, present[key], f"{where}[{shown(key)}]")
        return
    kinds = ("None", "a number") if present is None else (_kind(present),)
    if _kind(state) not in kinds:
        raise ValueError(f"{where} must be {' or '.join(kinds)}. Received: {_kind(state)}")


def _kind(value: object) -> str:
    """Return the kind of a value in a state, such as "a number" or "a list of a number"."""
    if isinstance(value, (np.ndarray, paddle.Tensor)):
        return "a number" if value.size == 1 else "an array"
    if not isinstance(value, bool) and isinstance(value, (int, float, np.number)):
        return "a number"
    if isinstance(value, dict):
        return f"a dict with {shown(sorted(value))}"
    if isinstance(value, (list, tuple, collections.deque)):
        return f"a list of {', '.join(sorted({_kind(item) for item in value})) or 'a number'}"
    return "None" if value is None else type(value).__name__


def set_parts(parts: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Load the states in [(schedule or loss scaler, state)], all or none; return the previous states likewise."""
    before = [(part, part.state_dict()) for part, _ in parts]
    try:
        for part, state in parts:
            _set_part(part, state)
    except Exception as error:
        for part, state in before:
            _set_part(part, state)
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
