"""The folder of a checkpoint for any layout: whether it is complete and undamaged, and what its files say.

Each process looks at a part of the files. Paddle's own are pickles, in `.metadata` and `.distcp`.
"""

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import paddle
import paddle.distributed as dist

from .._files import damages, strict_json
from .._messages import quoted, refusal

RECORD = "ldopt_checkpoint.json"
SCHEDULE = "schedule.pdparams"
FORMAT = 1
COMPLETE = "holds a checkpoint already"


def held(folder: str) -> Optional[str]:
    """Return in words what a folder holds, None if there is nothing: a checkpoint is complete if it has a record."""
    if not os.path.isdir(folder):
        return "is a file" if os.path.lexists(folder) else None
    names = os.listdir(folder)
    if RECORD in names:
        return COMPLETE
    if any(name.endswith((".distcp", ".metadata", ".lock", ".part")) for name in names):
        return f"holds a checkpoint that was cut short while it was saved, without {RECORD}"
    return "holds other files" if names else None


def own_files(items: Iterable[Any]) -> list[Any]:
    """Return the files that this process is to look at, of those that all processes know."""
    return sorted(items)[dist.get_rank() :: dist.get_world_size()]


def read_record(folder: str) -> Any:
    """Return the record of a complete checkpoint; raise ValueError if it cannot be read."""
    path = os.path.join(folder, RECORD)
    with readable(path), open(path, encoding="utf-8") as file:
        try:
            record = strict_json(file.read())
        except ValueError as error:
            problem = f"The record of the checkpoint cannot be read: {error}."
            raise refusal(ValueError, problem, path=path) from error
        if record["format"] != FORMAT:
            problem = f"The checkpoint has another format than {FORMAT}."
            raise refusal(ValueError, problem, format=record["format"], path=path)
    return record


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Raise ValueError if the block fails over a file's contents."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        problem = f"The file is not one that `save_checkpoint` writes: {error!r}."
        raise refusal(ValueError, problem, path=path) from error


def check_files(folder: str, record: Any) -> None:
    """Raise ValueError if a file is not what was saved; a record of version 0.1 has no checksums."""
    with readable(os.path.join(folder, RECORD)):
        wrong = damages(folder, own_files(record.get("files", {}).items()))
    if wrong:
        raise _damaged(folder, wrong[0])


def read_metadata(folder: str, record: Any) -> dict[str, str]:
    """Return key -> "dtype shape" of the tensors in a checkpoint; raise if a file lacks any of them."""
    names = [name for name in os.listdir(folder) if name.endswith(".metadata")]
    if len(names) != 1:
        raise _damaged(folder, f"it must have one '.metadata' file, not {names}")
    metadata = read_pickle(folder, names[0])
    with readable(os.path.join(folder, names[0])):
        found = metadata.state_dict_metadata.items()
        saved = {key: f"{pieces[0].dtype} {list(map(int, pieces[0].global_shape))}" for key, pieces in found}
        if "files" not in record:  # of version 0.1
            _check_sizes(folder, metadata)
    return saved


def _check_sizes(folder: str, metadata: Any) -> None:
    """Raise unless the files of this process have the tensors that the metadata says."""
    files: dict[str, dict[str, int]] = {}
    for index, name in metadata.storage_metadata.items():
        begin, end = index.flattened_range or (0, math.prod(index.local_shape))
        files.setdefault(name, {})[index.tensor_key] = end - begin
    for name in own_files(files):
        tensors = read_pickle(folder, name)
        wrong = [key for key, size in files[name].items() if key not in tensors or tensors[key].size != size]
        if wrong:
            raise _damaged(folder, f"'{name}' is not the file that was saved, it lacks {quoted(wrong)}")


def read_pickle(folder: str, name: str) -> Any:
    """Return what `paddle.save` wrote; raise ValueError if it cannot be read."""
    try:
        return paddle.load(os.path.join(folder, name))
    except Exception as error:  # damaged pickles fail in every way
        raise _damaged(folder, f"'{name}' cannot be read ({type(error).__name__}: {str(error)[:200]})") from error


def _damaged(folder: str, problem: str) -> ValueError:
    advice = "Load another one, or restore the file."
    return refusal(ValueError, f"The checkpoint is damaged: {problem}. {advice}", folder=folder)
