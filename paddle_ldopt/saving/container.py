"""The file: safetensors with a record of ours in its metadata and a checksum over all of it.

Everything that is read here is checked before it is used, and nothing is ever unpickled.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy as np
import safetensors

from .._messages import refusal, shown

Arrays = dict[str, tuple[str, Any]]  # name -> (dtype, values); those of "bfloat16" are its bits as uint16
FORMAT, VERSION = "paddle_ldopt.optimizer", 1
MAX_HEADER = 100_000_000  # bytes, the limit of safetensors itself: some 170,000 parameters with state
_UNSUMMED = b'"sha256":"' + b"0" * 64 + b'"'
_SUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # within a string, the quotes would have backslashes
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
CODES = {**_FLOATS, "I64": "int64", "I32": "int32", "BOOL": "bool"}
_NAMES = {name: code for code, name in CODES.items()}


def refused(path: Any, problem: str, *received: str) -> ValueError:
    """Return the error to raise for a file."""
    return ValueError(f"{problem} Received: {', '.join([f'path={os.fspath(path)!r}', *received])}")


def write_file(path: Any, arrays: Arrays, record: dict[str, Any]) -> None:
    """Write a file: completely and to the disk, or not at all."""
    path = _checked_target(path)
    metadata = {"format": FORMAT, "version": str(VERSION), "sha256": "0" * 64, "record": _dumps(record)}
    header: dict[str, Any] = {"__metadata__": metadata}
    values: list[Any] = []
    end = 0
    for name in sorted(arrays, key=lambda name: (-arrays[name][1].itemsize, name)):  # the widest first: all aligned
        dtype, array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
        values.append(np.ascontiguousarray(array))
    head = _dumps(header).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > MAX_HEADER:
        problem = f"The names and shapes of so many tensors are more than the {MAX_HEADER} bytes that safetensors reads"
        todo = "`paddle.save(optimizer.state_dict(), 'name.pdopt')` has no limit, and `load_optimizer` reads it too."
        raise refused(path, f"{problem}: {todo}", f"{len(arrays)} tensors, {len(head)} bytes")
    length, digest = struct.pack("<Q", len(head)), hashlib.sha256()
    for part in [length, head, *values]:
        digest.update(part)
    head = head.replace(_UNSUMMED, _UNSUMMED.replace(b"0" * 64, digest.hexdigest().encode()))
    _write_whole(path, (length, head, *values))


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def checked_path(path: Any) -> str:
    """Return a path as a str, raise TypeError if it is none."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str):
        raise refusal(TypeError, "`path` must be a str or an os.PathLike of one.", path=path)
    return name


def _checked_target(path: Any) -> str:
    path = checked_path(path)
    if os.path.islink(path):
        target = f"which leads to {os.path.realpath(path)!r}"
        raise refused(path, "A link would be replaced by the file: give the path it leads to.", target)
    if os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "a device, a pipe or a socket, which the file would replace"
        raise refused(path, "`path` must be that of a regular file.", kind)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "There is no such folder to write into", folder)
    return path


def _write_whole(path: str, parts: Iterable[Any]) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    unfinished = os.path.join(folder, f".ldopt-{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(unfinished, flags, 0o666), "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    with contextlib.suppress(OSError):  # some file systems, and Windows, cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_file(path: Any) -> bytes:
    """Return the bytes of a regular file; raise ValueError for a link, a folder, a device or a pipe."""
    with _opened(path) as file:
        return file.read()


@contextlib.contextmanager
def _opened(path: Any) -> Iterator[Any]:
    path = checked_path(path)
    if os.path.islink(path):
        target = f"which leads to {os.path.realpath(path)!r}"
        raise refused(path, "`path` must be that of a file, not of a link to one.", target)
    flags = (getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))  # a pipe: no wait
    descriptor = os.open(path, os.O_RDONLY | sum(flags))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refused(path, "`path` must be that of a file.", "a folder or a device")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_record(path: Any) -> tuple[dict[str, Any], Arrays]:
    """Return the record and the tensors of a file of `write_file`; raise ValueError if it is not, or was changed."""
    metadata, data = _read(path)
    if metadata.get("format") != FORMAT:
        problem = "The file was not written by `save_optimizer`: use `convert_torch_optimizer` for a file of PyTorch."
        raise refused(path, problem, f"format={shown(metadata.get('format'))}")
    if metadata.get("version") != str(VERSION):
        found = f"version={shown(metadata.get('version'))}, not {VERSION}"
        problem = "This paddle_ldopt cannot read the file's format: use the one that wrote it, or a later one."
        raise refused(path, problem, found)
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    head = data[8:begin]
    digest = hashlib.sha256(data[:8] + _SUM.sub(_UNSUMMED, head))
    digest.update(memoryview(data)[begin:])
    if _SUM.findall(head) != [digest.hexdigest().encode()]:
        found = f"sha256={digest.hexdigest()!r}, not {shown(metadata.get('sha256'))}"
        raise refused(path, "The file is damaged: its checksum is another.", found)
    try:
        record = strict_json(metadata["record"])
    except (KeyError, ValueError) as error:
        raise refused(path, f"The file's record is unreadable: {error}.") from None
    return record, _arrays(path, data)


def read_tensors(path: Any) -> Arrays:
    """Return the tensors of any safetensors file; raises as `read_record`."""
    return _arrays(path, _read(path)[1])


def _read(path: Any) -> tuple[dict[str, str], bytes]:
    """Return the metadata and all bytes of a safetensors file whose size is what its header says."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            found = f"{size} bytes, of which {length} would be the header"
            raise refused(path, "The file is no safetensors file, or is cut short.", found)
        head = file.read(length)
        try:
            header = strict_json(head.decode("utf-8"))
            metadata = header.pop("__metadata__", {})
            end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
            if not all(isinstance(value, str) for value in metadata.values()):
                raise ValueError("metadata that is no text")
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            problem = f"{type(error).__name__}: {str(error)[:200]}"
            raise refused(path, f"The header of the file cannot be read: {problem}.") from None
        if 8 + length + end != size:
            found = f"{size} bytes, not {8 + length + end}"
            raise refused(path, "The file is cut short, or has more in it than its header says.", found)
        data = prefix + head + file.read()
        if len(data) != size:
            raise refused(path, "The file was changed while it was read.")
        return metadata, data


def _arrays(path: Any, data: bytes) -> Arrays:
    try:
        tensors = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise refused(path, f"The file is no valid safetensors file: {error}.") from None
    arrays: Arrays = {}
    for name, tensor in tensors:
        dtype = CODES.get(tensor["dtype"])
        if dtype is None:
            problem = "An optimizer's state has no such type."
            raise ValueError(f"{problem} Received: {shown(name)} of type {tensor['dtype']}")
        plain = "uint16" if dtype == "bfloat16" else dtype
        arrays[name] = dtype, np.frombuffer(tensor["data"], plain).reshape(tensor["shape"])
    return arrays


def strict_json(text: str) -> Any:
    """Return what JSON says, in which no key is there twice and no number is NaN or infinite; else raise ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"a key is there twice among {sorted(key for key, _ in pairs)[:8]}")
        return dict(pairs)

    def unknown(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON's")

    def finite(digits: str) -> float:
        number = float(digits)
        return number if abs(number) < float("inf") else unknown(digits)

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=unknown, parse_float=finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def digest(path: str) -> list[int]:
    """Return [bytes, CRC-32] of a file."""
    size = checksum = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]


def damage(folder: str, name: str, written: list[int]) -> Optional[str]:
    """Return in words how a file differs from the one whose `digest` was `written`, None if it does not."""
    path = os.path.join(folder, name)
    if not os.path.isfile(path):  # a device may have no end
        return f"'{name}' is not there"
    size = os.path.getsize(path)
    if size != written[0]:
        return f"'{name}' has {size} bytes of {written[0]}"
    return None if digest(path) == written else f"'{name}' has other bytes than were saved"
