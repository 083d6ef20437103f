"""The folder of a checkpoint for any layout: checks that it is complete and undamaged, and reads its files.

Each process checks a part of the files. Paddle's own files, `.metadata` and `.distcp`, are pickles.
"""

import math
import os
from collections.abc import Iterable
from typing import Any, Optional

import paddle
import paddle.distributed as dist

from .._files import damages, file_errors, strict_json
from .._messages import quoted, refusal

RECORD = "ldopt_checkpoint.json"
SCHEDULE = "schedule.pdparams"
FORMAT = 1
COMPLETE = "already holds a checkpoint"


def content(folder: str) -> Optional[str]:
    """Describe the content of a folder, None if it is empty or missing. A complete checkpoint has a record."""
    if not os.path.isdir(folder):
        return "is a file" if os.path.lexists(folder) else None
    names = os.listdir(folder)
    if RECORD in names:
        return COMPLETE
    if any(name.endswith((".distcp", ".metadata", ".lock", ".part")) for name in names):
        return f"holds an incomplete checkpoint, without {RECORD}"
    return "holds other files" if names else None


def own_files(items: Iterable[Any]) -> list[Any]:
    """Return the files for this process to check, from the files of all."""
    return sorted(items)[dist.get_rank() :: dist.get_world_size()]


def record_in(folder: str) -> Any:
    """Return the record of a complete checkpoint; raise ValueError if it cannot be read."""
    path = os.path.join(folder, RECORD)
    with open(path, encoding="utf-8") as file, file_errors(path, "The record of the checkpoint"):
        record = strict_json(file.read())
        version = record["format"]
    if version != FORMAT:
        raise refusal(ValueError, f"The checkpoint is not of format {FORMAT}.", format=version, path=path)
    return record


def check_files(folder: str, record: Any) -> None:
    """Raise ValueError if a file was changed; a record of version 0.1 has no checksums."""
    with file_errors(os.path.join(folder, RECORD), "The record of the checkpoint"):
        found = damages(folder, own_files(record.get("files", {}).items()))
    if found:
        raise _damaged(folder, found[0])


def read_metadata(folder: str, record: Any) -> dict[str, str]:
    """Return key -> "dtype shape" of the tensors in a checkpoint; raise if a file lacks any of them."""
    names = [name for name in os.listdir(folder) if name.endswith(".metadata")]
    if len(names) != 1:
        raise _damaged(folder, f"it must have one '.metadata' file, not {names}")
    metadata = read_pickle(folder, names[0])
    with file_errors(os.path.join(folder, names[0]), "The metadata", checks=True):
        tensors = metadata.state_dict_metadata.items()
        saved = {key: f"{shards[0].dtype} {list(map(int, shards[0].global_shape))}" for key, shards in tensors}
        if "files" not in record:  # written by version 0.1
            _check_sizes(folder, metadata)
    return saved


def _check_sizes(folder: str, metadata: Any) -> None:
    """Raise unless the files of this process have the tensors in the metadata."""
    files: dict[str, dict[str, int]] = {}
    for index, name in metadata.storage_metadata.items():
        begin, end = index.flattened_range or (0, math.prod(index.local_shape))
        files.setdefault(name, {})[index.tensor_key] = end - begin
    for name in own_files(files):
        tensors = read_pickle(folder, name)
        lacking = [key for key, size in files[name].items() if key not in tensors or tensors[key].size != size]
        if lacking:
            raise _damaged(folder, f"'{name}' is not the saved file: it lacks {quoted(lacking)}")


def read_pickle(folder: str, name: str) -> Any:
    """Return the object in a file of `paddle.save`; raise ValueError if it cannot be read."""
    try:
        return paddle.load(os.path.join(folder, name))
    except Exception as error:  # damaged pickles fail in every way
        raise _damaged(folder, f"'{name}' cannot be read ({type(error).__name__}: {str(error)[:200]})") from error


def _damaged(folder: str, problem: str) -> ValueError:
    message = "Load another checkpoint, or restore the file."
    return refusal(ValueError, f"The checkpoint is damaged: {problem}. {message}", folder=folder)
