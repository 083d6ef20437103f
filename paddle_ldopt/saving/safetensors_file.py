"""The file of `save_optimizer`: safetensors with our record in the metadata, and a checksum of the whole file.

The safetensors library reads the tensors. We read and write the header: the library accepts duplicate keys, writes
metadata in any order, and has no checksum.
"""

import hashlib
import json
import os
import re
import struct
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from .._files import opened, strict_json, write_file
from .._messages import refusal

Arrays = dict[str, tuple[str, NDArray[Any]]]  # name -> (dtype, values); "bfloat16" as its bits in uint16
FORMAT, VERSION = "paddle_ldopt.optimizer", "1"
MAX_HEADER = 100_000_000  # bytes, the limit of safetensors: about 140,000 parameters with state
_UNSUMMED = b'"sha256":"' + b"0" * 64 + b'"'
_SUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # inside a JSON string, the quotes would be escaped
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_DTYPES = {**_FLOATS, "I64": "int64", "I32": "int32", "BOOL": "bool"}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def write_record(path: str, arrays: Arrays, record: dict[str, Any]) -> None:
    """Write a file completely and to the disk, or not at all."""
    header: dict[str, Any] = {
        "__metadata__": {"format": FORMAT, "version": VERSION, "sha256": "0" * 64, "record": _dumps(record)}
    }
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
        todo = "use `paddle.save(optimizer.state_dict(), 'name.pdopt')`, which `load_optimizer` also reads."
        raise refusal(ValueError, f"{problem}: {todo}", path=path, tensors=len(arrays), header=len(head))
    length = struct.pack("<Q", len(head))
    head = head.replace(_UNSUMMED, _UNSUMMED.replace(b"0" * 64, _checksum(length, head, *values).encode()))
    write_file(path, (length, head, *values))


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _checksum(*parts: Any) -> str:
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()


def read_record(path: str) -> tuple[dict[str, Any], Arrays]:
    """Return record and tensors of a file of `write_record`; raise ValueError for any other or a changed file."""
    metadata, data = _read(path)
    file_format = metadata.get("format")
    if file_format != FORMAT:
        problem = "The file was not written by `save_optimizer`: use `convert_torch_optimizer` for a file of PyTorch."
        raise refusal(ValueError, problem, path=path, format=file_format)
    if metadata.get("version") != VERSION:
        problem = f"The file is not of format {VERSION}: use the paddle_ldopt that wrote it, or a later one."
        raise refusal(ValueError, problem, path=path, version=metadata.get("version"))
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    checksum = _checksum(data[:8], _SUM.sub(_UNSUMMED, data[8:begin]), memoryview(data)[begin:])
    if _SUM.findall(data[8:begin]) != [checksum.encode()]:
        problem = f"The file is damaged: its checksum is {checksum}."
        raise refusal(ValueError, problem, path=path, sha256=metadata.get("sha256"))
    try:
        record = strict_json(metadata["record"])
    except (KeyError, ValueError) as error:
        raise refusal(ValueError, f"The file's record is unreadable: {error}.", path=path) from None
    return record, _arrays(path, data)


def read_tensors(path: str) -> Arrays:
    """Return the tensors of any safetensors file; raises as `read_record`."""
    return _arrays(path, _read(path)[1])


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


def _arrays(path: str, data: bytes) -> Arrays:
    try:
        tensors = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise refusal(ValueError, f"The file is not a valid safetensors file: {error}.", path=path) from None
    arrays: Arrays = {}
    for name, tensor in tensors:
        dtype = _DTYPES.get(tensor["dtype"])
        if dtype is None:
            problem = "The file has a tensor of an unsupported type."
            raise refusal(ValueError, problem, path=path, tensor=name, dtype=tensor["dtype"])
        plain = "uint16" if dtype == "bfloat16" else dtype
        arrays[name] = dtype, np.frombuffer(tensor["data"], plain).reshape(tensor["shape"])
    return arrays
