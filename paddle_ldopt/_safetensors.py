"""The file of `save_optimizer`: safetensors with our record as JSON in the metadata, and a checksum of the whole file.

The safetensors library reads it. We write it: the library has no checksum, and writes metadata in any order.
docs/checkpoints.md specifies the format.
"""

import collections
import functools
import hashlib
import json
import math
import re
import struct
from typing import Any

import numpy as np
import paddle
import safetensors
from numpy.typing import NDArray

from ._checks import refusal, shown
from ._files import check_regular, file_errors, unique_keys, write_file

Arrays = dict[str, tuple[str, NDArray[Any]]]  # name -> (dtype, values); "bfloat16" as its bits in uint16
FORMAT, VERSION = "paddle_ldopt.optimizer", "1"
MAX_HEADER = 100_000_000  # bytes, the limit of safetensors
_UNSUMMED = b'"sha256":"' + b"0" * 64 + b'"'
_SUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # inside a JSON string, the quotes would be escaped
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_DTYPES.update({"I64": "int64", "I32": "int32", "BOOL": "bool"})
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_dumps = functools.partial(json.dumps, separators=(",", ":"), allow_nan=False)
_JSON_ARRAYS = {name: np.dtype(name) for name in ("bool", "int32", "int64", "float16", "float32", "float64")}


def write_record(path: str, arrays: Arrays, record: dict[str, Any]) -> None:
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
        wrong = f"The names and shapes of the tensors exceed the {MAX_HEADER} bytes that safetensors reads"
        todo = "use `paddle.save(optimizer.state_dict(), path)`."
        raise refusal(ValueError, f"{wrong}: {todo}", path=path, tensors=len(arrays), header=len(head))
    length = struct.pack("<Q", len(head))
    head = head.replace(_UNSUMMED, _UNSUMMED.replace(b"0" * 64, _checksum(length, head, *values).encode()))
    write_file(path, (length, head, *values))


def read_record(path: str) -> tuple[dict[str, Any], Arrays]:
    check_regular(path)
    arrays: Arrays = {}
    with file_errors(path, "The file's content", checks=True):
        try:
            with safetensors.safe_open(path, "np") as header:  # checks types, shapes and the size of the file
                metadata = header.metadata() or {}
            found = {key: metadata.get(key) for key in ("format", "version")}
            if found != {"format": FORMAT, "version": VERSION}:
                wrong = f"The file is not of `save_optimizer` in format {VERSION}: use the paddle_ldopt that wrote it."
                raise refusal(ValueError, wrong, path=path, **found)
            with open(path, "rb") as file:
                data = file.read()
            begin = 8 + struct.unpack("<Q", data[:8])[0]
            checksum = _checksum(data[:8], _SUM.sub(_UNSUMMED, data[8:begin]), memoryview(data)[begin:])
            if _SUM.findall(data[8:begin]) != [checksum.encode()]:
                raise refusal(ValueError, "The file is damaged: its checksum differs.", path=path, sha256=checksum)
            for name, tensor in safetensors.deserialize(data):  # type: ignore[no-untyped-call]
                dtype = _DTYPES[tensor["dtype"]]
                values = np.frombuffer(tensor["data"], "uint16" if dtype == "bfloat16" else dtype)
                arrays[name] = dtype, values.reshape(tensor["shape"])
            return json.loads(metadata["record"], object_pairs_hook=unique_keys), arrays
        except safetensors.SafetensorError as error:
            raise refusal(ValueError, f"This is no safetensors file, or a damaged one: {error}.", path=path) from None


def _checksum(*parts: Any) -> str:
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()


# ---- states of schedules and loss scalers


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
    wrong = f"{where} must be numbers, text, arrays, or lists and dicts of these, to be saved."
    raise ValueError(f"{wrong} Received: {type(value).__name__}")


def from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "__float__" in value:
        return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[value["__float__"]]
    if "__array__" in value:
        return np.array(from_json(value["values"]), _JSON_ARRAYS[value["__array__"]]).reshape(value["shape"])
    return {key: from_json(item) for key, item in value.items()}
