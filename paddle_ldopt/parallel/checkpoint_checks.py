"""Checks of a checkpoint for any layout before anything changes: arguments, options, schedule, tensors."""

import os
from collections import Counter
from typing import Any

import paddle
from paddle.optimizer.lr import LRScheduler

from .. import _paddle
from .._files import checked_path
from .._messages import refusal, shown
from ..saving.json_state import check_part, set_parts
from ..saving.record import check_same, class_in_files
from . import checkpoint_folder as files
from .checkpoint_folder import RECORD, SCHEDULE


def checked_arguments(folder: Any, network: Any, rename: Any) -> tuple[str, Any, dict[str, str]]:
    """Return the folder, the network's weights, and structured name -> name in the checkpoint."""
    folder = checked_path(folder, "folder")
    _paddle.checked_model(network, "network")
    if not hasattr(network, "sharded_state_dict"):
        raise refusal(RuntimeError, "Checkpoints for any layout need Paddle 3.2 or later.", paddle=paddle.__version__)
    for param in _paddle.unwrap_model(network).parameters():
        here = list(_paddle.local_shape(param)) if param.is_dist() else param.shape
        if here != list(param.shape):
            problem = "`network` must hold no sharded DistTensors (`dist.shard_tensor`): distribute it by fleet."
            raise ValueError(f"{problem} Received: DistTensor '{param.name}' of shape {list(param.shape)}, {here} here")
    if rename is not None and not callable(rename):
        raise refusal(TypeError, "`rename` must be callable.", rename=rename)
    weights = _paddle.unwrap_model(network).sharded_state_dict()
    names: dict[str, str] = {}
    for name in weights:
        new = name if rename is None else rename(name)
        if not isinstance(new, str):
            raise refusal(TypeError, "`rename` must return a string.", name=name, returned=new)
        names[name] = new
    twice = [name for name, times in Counter(names.values()).items() if times > 1]
    if twice:
        raise refusal(ValueError, "`rename` must give each parameter its own name.", returned=twice)
    return folder, weights, names


def check_record(folder: str, record: Any, here: Any, allowed: set[str]) -> None:
    """Raise unless the checkpoint comes from the same optimizer with the same options."""
    with files.readable(os.path.join(folder, RECORD)):
        # a record of version 0.1 names the optimizer only
        there = record if "parameters" in record else {**here, "optimizer": record["optimizer"]}
        common = sorted(set(there["parameters"]) & set(here["parameters"]))  # `check_tensors` finds the others
        there, here = ({**one, "parameters": {n: one["parameters"][n] for n in common}} for one in (there, here))
        check_same(there, here, allowed)


def saved_schedule(folder: str, record: Any, schedule: Any, allowed: set[str]) -> Any:
    """Return the state to load into the schedule, None to leave it as it is."""
    if not isinstance(schedule, LRScheduler):
        return None
    there = record.get("schedule") or {}
    if ("schedule" in allowed) if "schedule" not in record else there.get("class") != class_in_files(schedule):
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
    wrong = []
    for key, weight in state.items():
        wanted = f"{_paddle.dtype_name(weight.local_tensor.dtype)} {list(weight.global_shape)}"
        if saved.get(key) != wanted:
            wrong.append(f"{key} {wanted} (there: {saved.get(key)})")
    if wrong:
        problem = "The checkpoint lacks tensors, or types or shapes differ: build the same network and optimizer."
        raise ValueError(f"{problem} Received: {', '.join(wrong[:3])}{' ...' * (len(wrong) > 3)}")
