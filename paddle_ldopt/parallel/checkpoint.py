"""Checkpoints for any layout, saved and loaded by any number of processes.

`paddle.distributed.save_state_dict` pickles the tensors. This module adds their places, schedules, checksums and a
record.
"""

import importlib
import json
import math
import os
import warnings
from typing import Any, Callable, NoReturn, Optional

import paddle
import paddle.distributed as dist
from paddle.optimizer import Optimizer

from .. import _compat
from .._checks import checked_bool, quoted, refusal, shown
from .._compat import unwrap, wrappers
from .._files import checked_path, damages, digest, file_errors, read_json, write_file
from .._processes import check_same_options, together
from ..checkpoint import describe, one_of_ours, record_differences, schedules_of, set_parts, states_to_load, tensor_type
from ..schedules.warmup import step_of_state

RECORD = "ldopt_checkpoint.json"
SCHEDULE = "schedule.pdparams"
FORMAT = 1
Rename = Optional[Callable[[str], str]]


def save_checkpoint(folder: Any, network: paddle.nn.Layer, optimizer: Optimizer, rename: Rename = None) -> None:
    """Save a network, its optimizer's state and its schedules, to resume in any layout.

    All processes must call it.

    Args:
        folder (str): new or empty, on a disk shared by all processes.
        network (paddle.nn.Layer): as trained, wrapped or not.
        optimizer (Optimizer): one of ours, wrapped or not.
        rename (callable, optional): structured name -> name in the checkpoint, if other layouts use other network
            classes (such as pipeline stages).

    Raises:
        TypeError, ValueError: a wrapper whose state fits no other layout; a folder with files; two parameters of one
            name; sharded DistTensors. Nothing is written.

    Examples:
        >>> import os, tempfile, paddle, paddle_ldopt as ldopt
        >>> from paddle_ldopt.parallel import load_checkpoint, save_checkpoint
        >>> network = paddle.nn.Linear(4, 2)
        >>> optimizer = ldopt.Lamb(1e-3, parameters=network.parameters())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(os.path.join(folder, "step-0"), network, optimizer)
        ...     load_checkpoint(os.path.join(folder, "step-0"), network, optimizer)
    """

    def prepare() -> tuple[Any, Any]:
        path, weights, names = _named_weights(folder, network, rename)
        state, record = _sharded(weights, optimizer, names), _described(weights, optimizer, names)
        if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
            raise refusal(ValueError, "`folder` must be new or empty: give another folder, or delete it.", folder=path)
        return state, record

    state, records = together(prepare)
    check_same_options(optimizer)
    folder, rank, ranks = os.fspath(folder), dist.get_rank(), dist.get_world_size()

    def write() -> None:
        dist.save_state_dict(state, folder)
        if rank == 0 and (schedules := schedules_of(unwrap(optimizer))):
            states = {name: schedule.state_dict() for name, schedule in schedules.items()}
            paddle.save(states, os.path.join(folder, SCHEDULE))

    together(lambda: os.makedirs(folder, exist_ok=True))
    together(write)
    names, listings = together(lambda: (sorted(os.listdir(folder)),) * 2)
    if any(listing != listings[0] for listing in listings):
        raise refusal(ValueError, "All processes must save to one folder, on a shared disk.", files=listings)
    _, digests = together(lambda: (None, {name: digest(os.path.join(folder, name)) for name in names[rank::ranks]}))

    def finish() -> None:
        if rank == 0:
            record = {"format": FORMAT, "processes": ranks, **records[0]}
            for key in ("parameters", "layers"):
                record[key] = {name: one for part in records for name, one in part[key].items()}
            record["files"] = {name: size_and_sum for part in digests for name, size_and_sum in part.items()}
            write_file(os.path.join(folder, RECORD), [json.dumps(record).encode()])

    together(finish)


def load_checkpoint(
    folder: Any, network: paddle.nn.Layer, optimizer: Optimizer, rename: Rename = None, *, strict: bool = True
) -> None:
    """Load a checkpoint of `save_checkpoint` into this layout.

    All processes must call it; an error in one is raised in all.

    Args:
        folder (str): the checkpoint.
        network (paddle.nn.Layer): as it will be trained, wrapped or not.
        optimizer (Optimizer): as in `load_optimizer`, wrapped or not.
        rename (callable, optional): structured name here -> name in the checkpoint.
        strict (bool): as in `load_optimizer`; if False, parameters missing in the checkpoint keep values and state.

    Raises:
        TypeError, ValueError: an incomplete or damaged checkpoint; with `strict`, a difference; other states than this
            optimizer's. Nothing is changed.
    """

    def prepare() -> tuple[Any, Any]:
        path, weights, names = _named_weights(folder, network, rename)
        checked_bool(strict, "strict")
        record = _read_record(path)
        state, present = _sharded(weights, optimizer, names), _described(weights, optimizer, names)
        with file_errors(os.path.join(path, RECORD), "The record of the checkpoint"):
            now = present["parameters"]
            was = {name: one for name, one in record["parameters"].items() if name in now}
            found = record_differences({**record, "parameters": was}, present)
        saved, new = _saved_tensors(path), {name for name in now if was.get(name) != now[name]}
        if not strict:  # nor does the state of layers that were frozen by their ratio exist
            new |= now.keys() - {key.rpartition(".")[0] for key in saved}
        problems, owners = list(found) if strict else [], set(names.values())
        for key, weight in list(state.items()):
            owner = key if key in owners else key.rpartition(".")[0]
            needed = tensor_type(weight.local_tensor.dtype, weight.global_shape)
            if owner in new and (key != owner or saved.get(key) != needed):
                del state[key]
            elif saved.get(key) != needed:
                problems.append(f"{key} is {needed} here and {saved.get(key)} there")
        if problems:
            todo = "Build the same network and optimizer, or give strict=False where parameters are new."
            wrong = f"The checkpoint is of another optimizer or network: {'; '.join(problems[:3])}. {todo}"
            raise refusal(ValueError, wrong, folder=path, strict=strict)
        parts = schedules_of(unwrap(optimizer))
        schedules = _read_pickle(path, SCHEDULE) if os.path.exists(os.path.join(path, SCHEDULE)) else {}
        to_load = states_to_load(schedules, parts, record, present)
        other_class = schedules.keys() & parts.keys() - to_load.keys()
        steps = {name: step_of_state(schedules[name]) for name in other_class}
        set_parts(parts, set_parts(parts, to_load, steps), {})  # try them, then restore: another process may refuse
        return (state, parts, to_load, steps, saved, found), (set(state), digest(os.path.join(path, RECORD)))

    (state, parts, to_load, steps, saved, found), shared = together(prepare)
    loaded, digests = zip(*shared)
    if any(one != digests[0] for one in digests):
        wrong = "All processes must load the same checkpoint: give the same `folder`."
        raise ValueError(f"{wrong} Received: {RECORD} with [bytes, CRC-32] {shown(list(digests))} in the processes")
    unused = sorted(set(saved).difference(*loaded))
    if unused and strict:
        wrong = "The checkpoint has more tensors: build the same network and optimizer, freeze the same layers,"
        raise ValueError(f"{wrong} or give strict=False. Received: nothing for {quoted(unused)}")
    # Paddle keeps a list of the files of each folder, which may have changed
    importlib.import_module(dist.load_state_dict.__module__).PATH_TO_CHECKPOINT_FILES.pop(os.fspath(folder), None)
    dist.load_state_dict(state, os.fspath(folder))
    set_parts(parts, to_load, steps)
    if found or unused:
        found += [f"unused are {quoted(unused)} ({len(unused)})"] * bool(unused)
        wrong = f"The checkpoint is of another optimizer: {'; '.join(found)}."
        warnings.warn(refusal(UserWarning, wrong, strict=strict), stacklevel=2)


# ---- the state of a process and its place in the whole


def _named_weights(folder: Any, network: paddle.nn.Layer, rename: Rename) -> tuple[str, Any, dict[str, str]]:
    folder, network = checked_path(folder, "folder"), _compat.unwrap_model(_compat.checked_model(network, "network"))
    if not hasattr(network, "sharded_state_dict"):
        raise refusal(RuntimeError, "Checkpoints for any layout need Paddle 3.2 or later.", paddle=paddle.__version__)
    for param in network.parameters():
        if param.is_dist() and list(param._local_shape) != list(param.shape):
            wrong = "`network` must hold no sharded DistTensors (`dist.shard_tensor`): distribute it by fleet."
            raise refusal(ValueError, wrong, name=param.name, shape=list(param.shape), here=list(param._local_shape))
    weights = network.sharded_state_dict()
    names = {name: name if rename is None else rename(name) if callable(rename) else None for name in weights}
    if not all(isinstance(name, str) for name in names.values()) or len(set(names.values())) < len(names):
        raise refusal(TypeError, "`rename` must be a function that gives each parameter its own name.", names=names)
    return folder, weights, names


def _described(weights: Any, optimizer: Optimizer, names: dict[str, str]) -> dict[str, Any]:
    inner = one_of_ours(optimizer)
    trained = {param.name for param in _compat.parameters_of(optimizer) if not param.stop_gradient}
    first: dict[str, str] = {}  # tied parameters: the first name, as for their state
    for key in sorted(weights):
        if weights[key].local_tensor.name in trained:
            first.setdefault(weights[key].local_tensor.name, key)
    wholes = {name: (weights[key].local_tensor.dtype, weights[key].global_shape) for name, key in first.items()}
    types = {name: tensor_type(*whole) for name, whole in wholes.items()}
    return describe(inner, {name: names[key] for name, key in first.items()}, types)


def _sharded(weights: Any, optimizer: Optimizer, names: dict[str, str]) -> dict[str, Any]:
    """Return key -> ShardedWeight to save or to load into."""
    out: dict[str, Any] = {}
    state = one_of_ours(optimizer).sharded_state_dict(weights, shards_of(optimizer))
    for key, value in {**weights, **state}.items():
        name = key if key in weights else key.rpartition(".")[0]
        value.key = names[name] + key[len(name) :]
        out[value.key] = value
    return out


def _slice_ranges(optimizer: Any) -> dict[str, tuple[int, int]]:
    """Return ``param.name`` -> range of the flattened parameter here, and fill the slices as the first step would."""
    optimizer._collect_comm_buffers()
    ranges = {}
    for buffer in optimizer._comm_buffer_list:
        for name, view in buffer._sharding_param_grad_view.items():
            begin, end = view._param_begin, view._param_end  # in the buffer, like the parameter's index
            if begin < end:
                view.fill_slice_param(optimizer._slice_params[name])
                ranges[name] = (begin - view._index, min(end - view._index, math.prod(view._param.shape)))
    return {name: (begin, end) for name, (begin, end) in ranges.items() if begin < end}


def shards_of(optimizer: Optimizer) -> Optional[dict[str, tuple[int, int]]]:
    """Return ``param.name`` -> range of the flattened parameter here; None if whole."""
    fused, wrong = _compat.is_group_sharded(optimizer), "use sharding stage 1 instead of group_sharded."
    for wrapper in wrappers(optimizer)[:-1]:
        if type(wrapper) is _compat.sharding_v2():
            return _slice_ranges(wrapper)
        for name in ("tensor_fusion", "comm_overlap"):
            if type(wrapper) is _compat.sharding_v1() and getattr(wrapper, name):
                fused, wrong = True, f"set {name}=False in the strategy's sharding_configs."
    if fused:
        wrong = f"The state of this wrapper belongs to no parameter and fits no other layout: {wrong}"
        raise refusal(ValueError, wrong, optimizer=type(optimizer).__name__)
    return None


# ---- the folder


def _read_record(folder: str) -> Any:
    """Read a complete checkpoint's record, after checking this process's files."""
    path = os.path.join(folder, RECORD)
    if not os.path.isfile(path):
        wrong = f"`folder` must be a complete checkpoint of `save_checkpoint`, which has {RECORD}."
        raise refusal(ValueError, wrong, folder=folder, files=os.listdir(folder) if os.path.isdir(folder) else None)
    record = read_json(path, "The record of the checkpoint")
    with file_errors(path, "The record of the checkpoint", checks=True):
        if record["format"] != FORMAT:
            raise refusal(ValueError, f"The checkpoint is not of format {FORMAT}.", format=record["format"], path=path)
        damaged = damages(folder, sorted(record["files"].items())[dist.get_rank() :: dist.get_world_size()])
    if damaged:
        _raise_damaged(folder, damaged[0])
    return record


def _saved_tensors(folder: str) -> dict[str, str]:
    names = [name for name in os.listdir(folder) if name.endswith(".metadata")]
    if len(names) != 1:
        _raise_damaged(folder, f"it must have one '.metadata' file, not {names}")
    metadata = _read_pickle(folder, names[0])
    with file_errors(os.path.join(folder, names[0]), "The metadata"):
        tensors = metadata.state_dict_metadata.items()
        return {key: tensor_type(shards[0].dtype, shards[0].global_shape) for key, shards in tensors}


def _read_pickle(folder: str, name: str) -> Any:
    try:
        return paddle.load(os.path.join(folder, name))
    except Exception as error:  # damaged pickles fail in every way
        _raise_damaged(folder, f"'{name}' cannot be read ({type(error).__name__}: {str(error)[:200]})")


def _raise_damaged(folder: str, problem: str) -> NoReturn:
    raise refusal(ValueError, f"The checkpoint is damaged: {problem}. Load another, or restore it.", folder=folder)
