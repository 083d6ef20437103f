"""Checks of a checkpoint for any layout before anything changes: arguments, options, schedule, tensors."""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

import paddle
from paddle.optimizer.lr import LRScheduler

from .. import _paddle
from .._files import checked_path, file_errors
from .._messages import quoted, refusal, shown
from ..saving.json_state import check_part, set_parts
from ..saving.optimizer_record import check_model, check_options, class_in_files
from . import checkpoint_folder as files
from .checkpoint_folder import RECORD, SCHEDULE


def checked_arguments(folder: Any, network: paddle.nn.Layer, rename: Any) -> tuple[str, Any, dict[str, str]]:
    """Return the folder, the network's weights, and structured name -> name in the checkpoint."""
    folder = checked_path(folder, "folder")
    _paddle.checked_model(network, "network")
    if not hasattr(network, "sharded_state_dict"):
        raise refusal(RuntimeError, "Checkpoints for any layout need Paddle 3.2 or later.", paddle=paddle.__version__)
    for param in _paddle.unwrap_model(network).parameters():
        local_shape = list(_paddle.local_shape(param)) if param.is_dist() else param.shape
        if local_shape != list(param.shape):
            problem = "`network` must hold no sharded DistTensors (`dist.shard_tensor`): distribute it by fleet."
            shapes = f"{list(param.shape)}, {local_shape} here"
            raise ValueError(f"{problem} Received: DistTensor '{param.name}' of shape {shapes}")
    if rename is not None and not callable(rename):
        raise refusal(TypeError, "`rename` must be callable.", rename=rename)
    weights = _paddle.unwrap_model(network).sharded_state_dict()
    names: dict[str, str] = {}
    for name in weights:
        new = name if rename is None else rename(name)
        if not isinstance(new, str):
            raise refusal(TypeError, "`rename` must return a string.", name=name, returned=new)
        names[name] = new
    repeated = [name for name, times in Counter(names.values()).items() if times > 1]
    if repeated:
        raise refusal(ValueError, "`rename` must give each parameter its own name.", returned=repeated)
    return folder, weights, names


def check_same_record(folder: str, saved: Any, present: Any, changed: set[str]) -> None:
    """Raise unless the records are of the same optimizer, with the same options except those in `changed`."""
    with file_errors(os.path.join(folder, RECORD), "The record of the checkpoint", checks=True):
        if "parameters" not in saved:  # a record of version 0.1 names the optimizer only
            saved = {**present, "optimizer": saved["optimizer"]}
        common = sorted(set(saved["parameters"]) & set(present["parameters"]))  # `check_tensors` finds the others
        saved, present = (
            {**record, "parameters": {name: record["parameters"][name] for name in common}}
            for record in (saved, present)
        )
        check_model(saved, present)
        check_options(saved, present, changed)


def saved_schedule(folder: str, record: Any, schedule: Any, changed: set[str]) -> Any:
    """Return the state to load into the schedule, None to leave it as it is."""
    if not isinstance(schedule, LRScheduler):
        return None
    saved_class = (record.get("schedule") or {}).get("class")
    if ("schedule" in changed) if "schedule" not in record else saved_class != class_in_files(schedule):
        return None
    if not os.path.exists(os.path.join(folder, SCHEDULE)):
        problem = "The checkpoint has no schedule. If this is intended, give changed=['schedule']."
        raise ValueError(f"{problem} Received: {type(schedule).__name__} as the rate, no {SCHEDULE} in {shown(folder)}")
    state = files.read_pickle(folder, SCHEDULE)
    check_part(schedule, state, "The schedule's state")
    set_parts(set_parts([(schedule, state)]))  # try the state, then restore: another process may refuse
    return state


def check_tensors(saved: dict[str, str], state: dict[str, Any]) -> None:
    """Raise unless the checkpoint has all tensors to load, with the same types and shapes."""
    differences = []
    for key, weight in state.items():
        needed = f"{_paddle.dtype_name(weight.local_tensor.dtype)} {list(weight.global_shape)}"
        if saved.get(key) != needed:
            differences.append(f"{key} {needed} (there: {saved.get(key)})")
    if differences:
        problem = "The checkpoint lacks tensors, or types or shapes differ: build the same network and optimizer."
        raise ValueError(f"{problem} Received: {', '.join(differences[:3])}{' ...' * (len(differences) > 3)}")


def check_all_loaded(saved: Iterable[str], loaded: tuple[set[str], ...], digests: tuple[Any, ...]) -> None:
    """Raise unless all processes load the checkpoint with the same digest, and each saved tensor in one of them."""
    if any(digest != digests[0] for digest in digests):
        received = f"{RECORD} with [bytes, CRC-32] {shown(list(digests))} in the processes"
        raise ValueError(f"All processes must load the same checkpoint: give the same `folder`. Received: {received}")
    missing = sorted(set(saved).difference(*loaded))
    if missing:
        raise ValueError(
            "The checkpoint has tensors of another network, of masters (`multi_precision`) or of parameters that are "
            "frozen here: build the same network and optimizer, and freeze parameters after loading. "
            f"Received: nothing for {quoted(missing)}"
        )
