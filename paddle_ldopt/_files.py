"""Files: checks of paths, complete writes, checksums, strict JSON and YAML. No Paddle."""

import contextlib
import json
import os
import re
import secrets
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Union

from ._checks import refusal, shown, wrong_type

Path = Union[str, os.PathLike[str]]
YAML_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")  # 1e-5: a number in YAML 1.2, a string in PyYAML
_YAML = "tag:yaml.org,2002:"
# YAML 1.1, which PyYAML reads, also has octal numbers (0100 is 64) and base 60 (1:30 is 90)
_YAML_NUMBERS = {
    "int": r"[-+]?\d+$",
    "float": r"[-+]?((\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$",
}


def checked_path(path: Any, argument: str = "path") -> str:
    """Return a str; raise TypeError for other values: `open` would take a number for an open file."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str):
        raise refusal(TypeError, f"`{argument}` must be a path: a str or an os.PathLike of one.", **{argument: path})
    return name


def check_regular(path: str) -> None:
    if os.path.islink(path) or os.path.exists(path) and not os.path.isfile(path):
        raise refusal(ValueError, "`path` must be a regular file, not a link, folder, device or pipe.", path=path)


def write_file(path: str, parts: Iterable[Any]) -> None:
    """Write bytes and arrays to a regular file, completely and to the disk, or not at all."""
    check_regular(path)
    folder = os.path.dirname(os.path.abspath(path))
    unfinished = os.path.join(folder, f".ldopt-{secrets.token_hex(8)}.part")
    try:
        with open(unfinished, "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    with contextlib.suppress(OSError):  # unsupported by Windows and some file systems
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write a text file completely or not at all: a killed process leaves the old file. A link stays a link."""
    path = os.path.realpath(checked_path(path))
    if not isinstance(text, str):
        raise wrong_type(text, "text", "a str")
    write_file(path, [text.encode("utf-8", "backslashreplace")])  # file names may not be UTF-8


def digest(path: str) -> list[int]:
    """Return [bytes, CRC-32] of a file."""
    size = checksum = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]


def damages(folder: str, written: Iterable[tuple[str, list[int]]]) -> list[str]:
    damaged = []
    for name, expected in written:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):  # a device may be endless
            damaged.append(f"'{name}' is missing")
        elif os.path.getsize(path) != expected[0]:
            damaged.append(f"'{name}' has {os.path.getsize(path)} bytes of {expected[0]}")
        elif digest(path) != expected:
            damaged.append(f"'{name}' was changed")
    return damaged


def unique_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return the pairs as a dict; raise ValueError for a duplicate key."""
    out = dict(pairs)
    if len(out) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {shown(twice)}")
    return out


@contextlib.contextmanager
def file_errors(path: Path, content: str, checks: bool = False) -> Iterator[None]:
    """Turn every error in reading a file into a ValueError with its path; with `checks`, a ValueError passes."""
    try:
        yield
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        if checks and isinstance(error, ValueError):
            raise
        cause = error if isinstance(error, ValueError) else repr(error)  # the text of a KeyError is only the key
        raise refusal(ValueError, f"{content} cannot be read: {cause}.", path=os.fspath(path)) from error


def json_number(text: str) -> float:
    """Return a number in a file that has a point or an exponent; 1e2 is an int, for a number of steps."""
    number = float(text)
    return number if "." in text or not number.is_integer() else int(number)


def read_json(path: Path, content: str = "This JSON") -> Any:
    with open(checked_path(path), encoding="utf-8") as file, file_errors(path, content):
        return json.load(file, object_pairs_hook=unique_keys, parse_float=json_number)


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file, in which 1e-5 is a number; raise ValueError for a bad or duplicate key."""
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's loader with the numbers of YAML 1.2."""

        yaml_implicit_resolvers = {
            first: [one for one in known if one[0] not in (f"{_YAML}int", f"{_YAML}float")]
            for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    def number(loader: Any, node: Any) -> Any:
        return loader.construct_yaml_float(node) if node.value[-1].isalpha() else json_number(node.value)

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        unique_keys([(key.value, None) for key, _ in node.value if key.tag != f"{_YAML}merge"])
        return yaml.SafeLoader.construct_mapping(loader, node, deep=True)

    for name, form in _YAML_NUMBERS.items():
        Loader.add_implicit_resolver(_YAML + name, re.compile(form), list("-+.0123456789"))
    Loader.add_constructor(f"{_YAML}int", lambda loader, node: int(node.value))
    Loader.add_constructor(f"{_YAML}float", number)
    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    with open(checked_path(path), encoding="utf-8") as file, file_errors(path, "This YAML"):
        try:
            return yaml.load(file, Loader)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
