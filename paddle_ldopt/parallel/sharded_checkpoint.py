"""Checkpoints for any layout: saved by any number of processes, loaded by any other.

`paddle.distributed.save_state_dict` writes the tensors. This module gives it the place of each tensor, and adds the
schedule and a record of the optimizer. A checkpoint that does not fit in one process is refused in all, before anything
changes.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, Callable, Optional

import paddle
import paddle.distributed as dist
from paddle.optimizer import Optimizer

from .. import _paddle
from .._files import checked_path, digest, file_errors, write_file
from .._messages import quoted, refusal, shown
from .._paddle import unwrap, wrappers
from .._processes import together
from ..saving.json_state import check_part, set_parts
from ..saving.optimizer_record import check_model, check_options, class_in_files, describe, merged, schedule_of
from ..saving.state import checked_name_list, one_of_ours
from . import checkpoint_folder as files
from .checkpoint_folder import RECORD, SCHEDULE


def save_checkpoint(
    folder: Any, network: paddle.nn.Layer, optimizer: Optimizer, rename: Optional[Callable[[str], str]] = None
) -> None:
    """Save a network, its optimizer's state, masters and counters, and its schedule, to resume in any layout.

    All processes must call it. The record, written last, marks a complete checkpoint.

    Args:
        folder (str): a new or empty folder on a disk shared by all processes.
        network (paddle.nn.Layer): as trained, wrapped or not.
        optimizer (Optimizer): one of ours, as trained, wrapped or not.
        rename (callable, optional): structured name -> name in the checkpoint, for a network that other layouts build
            from other classes (such as pipeline stages).

    Raises:
        TypeError, ValueError: a wrong type; a wrapper whose state fits no other layout; a folder with files; two
            parameters of one name; sharded DistTensors. Nothing is written.

    Examples:
        >>> import os, tempfile
        >>> import paddle
        >>> import paddle_ldopt as ldopt
        >>> from paddle_ldopt.parallel import load_checkpoint, save_checkpoint
        >>> network = paddle.nn.Linear(4, 2)
        >>> optimizer = ldopt.Lamb(1e-3, parameters=network.parameters())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(os.path.join(folder, "step-0"), network, optimizer)
        ...     load_checkpoint(os.path.join(folder, "step-0"), network, optimizer)
    """

    def prepare() -> tuple[Any, Any]:
        path, weights, names = _checked_arguments(folder, network, rename)
        state = _sharded(weights, optimizer, _shards(optimizer), names)
        record = _described(weights, optimizer, names)
        content = files.content(path)
        if content:
            raise refusal(ValueError, f"`folder` {content}: give another folder, or delete it.", folder=path)
        return state, record

    state, records = together(prepare)
    folder, rank = os.fspath(folder), dist.get_rank()

    def write() -> None:
        dist.save_state_dict(state, folder)
        schedule = schedule_of(unwrap(optimizer))
        if rank == 0 and schedule is not None:
            paddle.save(schedule.state_dict(), os.path.join(folder, SCHEDULE))

    together(lambda: os.makedirs(folder, exist_ok=True))
    together(write)
    names, listings = together(lambda: (sorted(os.listdir(folder)),) * 2)
    if any(listing != listings[0] for listing in listings):
        message = "All processes must save to the same folder, on a shared disk: delete the written files."
        raise ValueError(f"{message} Received: files {shown(listings)} of the processes")
    _, digests = together(lambda: (None, {name: digest(os.path.join(folder, name)) for name in files.own_files(names)}))

    def finish() -> None:
        if rank == 0:
            sums = {name: size_and_sum for part in digests for name, size_and_sum in part.items()}
            record = {"format": files.FORMAT, "processes": dist.get_world_size(), **merged(records), "files": sums}
            write_file(os.path.join(folder, RECORD), [json.dumps(record).encode()])

    together(finish)


def load_checkpoint(
    folder: Any,
    network: paddle.nn.Layer,
    optimizer: Optimizer,
    rename: Optional[Callable[[str], str]] = None,
    *,
    changed: Iterable[str] = (),
) -> None:
    """Load a checkpoint of `save_checkpoint` into this layout: network, state, masters, counters, schedule.

    All processes must call it. Each checks its part first; an error in one process is raised in all.

    Args:
        folder (str): the checkpoint.
        network (paddle.nn.Layer): as it will be trained, wrapped or not.
        optimizer (Optimizer): of the same class as the saved one, with the same options; wrapped or not.
        rename (callable, optional): structured name here -> name in the checkpoint.
        changed (Iterable[str]): options that may differ from the checkpoint and keep their present value, as in
            `load_optimizer`. Options that change the states or their types cannot differ.

    Raises:
        TypeError, ValueError: an incomplete or damaged checkpoint; another class, network, type or schedule; other
            options, unless in `changed`. Nothing is changed.
    """

    def prepare() -> tuple[Any, Any]:
        path, weights, names = _checked_arguments(folder, network, rename)
        may_differ = set(checked_name_list(changed, "changed"))
        content = files.content(path) or "is missing or empty"
        if content != files.COMPLETE:
            message = f"`folder` {content}: give a complete checkpoint of `save_checkpoint`."
            raise refusal(ValueError, message, folder=path)
        record, shards = files.record_in(path), _shards(optimizer)
        present = _described(weights, optimizer, names)
        _check_same_record(path, record, present, may_differ)
        files.check_files(path, record)
        saved = files.read_metadata(path, record)
        schedule = _saved_schedule(path, record, schedule_of(unwrap(optimizer)), may_differ)
        state = _sharded(weights, optimizer, shards, names)
        _check_tensors(saved, state)
        frozen = {name for name, param in present["parameters"].items() if param["ratio"] == 0.0}
        unused = {key for key in saved if "layerwise_decay" in may_differ and key.rpartition(".")[0] in frozen}
        return (state, schedule, saved), ({*state, *unused}, digest(os.path.join(path, RECORD)))

    (state, schedule, saved), shared = together(prepare)
    _check_all_loaded(saved, *zip(*shared))
    _paddle.forget_checkpoint(os.fspath(folder))
    dist.load_state_dict(state, os.fspath(folder))
    if schedule is not None:
        set_parts([(schedule_of(unwrap(optimizer)), schedule)])


def _described(weights: Any, optimizer: Optimizer, names: dict[str, str]) -> dict[str, Any]:
    """Return the record of the network's parameters in this process, with whole shapes."""
    inner = one_of_ours(optimizer)
    trained = {param.name for param in _paddle.parameters_of(optimizer) if not param.stop_gradient}
    first: dict[str, str] = {}  # tied parameters: the first name, as for their state
    for key in sorted(weights):
        if weights[key].local_tensor.name in trained:
            first.setdefault(weights[key].local_tensor.name, key)
    renamed = {name: names[key] for name, key in first.items()}
    record = describe(inner, renamed, [weights[key].local_tensor for key in first.values()])
    for key in first.values():
        record["parameters"][names[key]]["shape"] = list(weights[key].global_shape)
    return record


def _sharded(weights: Any, optimizer: Optimizer, shards: Any, names: dict[str, str]) -> dict[str, Any]:
    """Return key -> ShardedWeight to save or to load into; keys use the names in the checkpoint."""
    out: dict[str, Any] = {}
    for key, value in {**weights, **one_of_ours(optimizer).sharded_state_dict(weights, shards)}.items():
        name = key if key in weights else key.rpartition(".")[0]
        value.key = names[name] + key[len(name) :]
        out[value.key] = value
    return out


def _shards(optimizer: Optimizer) -> Optional[dict[str, tuple[int, int]]]:
    """Return ``param.name`` -> range of the flattened parameter in this process; None if parameters are whole."""
    if _paddle.is_group_sharded(optimizer):
        raise ValueError(
            "The state of group_sharded (stages 2 and 3) cannot be saved for another layout: use sharding stage 1 "
            f"of `fleet.distributed_optimizer`. Received: {type(optimizer).__name__}"
        )
    for wrapper in wrappers(optimizer)[:-1]:
        if type(wrapper) is _paddle.sharding_v2():
            return _paddle.slice_ranges(wrapper)
        for name in ("tensor_fusion", "comm_overlap"):
            if type(wrapper) is _paddle.sharding_v1() and getattr(wrapper, name):
                message = f"Fused state belongs to no parameter: set {name}=False in the strategy's sharding_configs."
                raise refusal(ValueError, message, **{name: True})
    return None


# ---- checks, before anything changes


def _checked_arguments(folder: Any, network: paddle.nn.Layer, rename: Any) -> tuple[str, Any, dict[str, str]]:
    """Return the folder, the network's weights, and structured name -> name in the checkpoint."""
    folder = checked_path(folder, "folder")
    _paddle.checked_model(network, "network")
    if not hasattr(network, "sharded_state_dict"):
        raise refusal(RuntimeError, "Checkpoints for any layout need Paddle 3.2 or later.", paddle=paddle.__version__)
    for param in _paddle.unwrap_model(network).parameters():
        local_shape = list(_paddle.local_shape(param)) if param.is_dist() else param.shape
        if local_shape != list(param.shape):
            message = "`network` must hold no sharded DistTensors (`dist.shard_tensor`): distribute it by fleet."
            shapes = f"{list(param.shape)}, {local_shape} here"
            raise ValueError(f"{message} Received: DistTensor '{param.name}' of shape {shapes}")
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


def _check_same_record(folder: str, saved: Any, present: Any, changed: set[str]) -> None:
    """Raise unless the records are of the same optimizer, with the same options except those in `changed`."""
    with file_errors(os.path.join(folder, RECORD), "The record of the checkpoint", checks=True):
        if "parameters" not in saved:  # a record of version 0.1 names the optimizer only
            saved = {**present, "optimizer": saved["optimizer"]}
        common = sorted(set(saved["parameters"]) & set(present["parameters"]))  # `_check_tensors` finds the others
        saved, present = (
            {**record, "parameters": {name: record["parameters"][name] for name in common}}
            for record in (saved, present)
        )
        check_model(saved, present)
        check_options(saved, present, changed)


def _saved_schedule(folder: str, record: Any, schedule: Any, changed: set[str]) -> Any:
    """Return the state to load into the schedule, None to leave it as it is."""
    if schedule is None:
        return None
    saved_class = (record.get("schedule") or {}).get("class")
    if ("schedule" in changed) if "schedule" not in record else saved_class != class_in_files(schedule):
        return None
    if not os.path.exists(os.path.join(folder, SCHEDULE)):
        message = "The checkpoint has no schedule. If this is intended, give changed=['schedule']."
        raise ValueError(f"{message} Received: {type(schedule).__name__} as the rate, no {SCHEDULE} in {shown(folder)}")
    state = files.read_pickle(folder, SCHEDULE)
    check_part(schedule, state, "The schedule's state")
    set_parts(set_parts([(schedule, state)]))  # try the state, then restore: another process may refuse
    return state


def _check_tensors(saved: dict[str, str], state: dict[str, Any]) -> None:
    """Raise unless the checkpoint has all tensors to load, with the same types and shapes."""
    differences = []
    for key, weight in state.items():
        needed = f"{_paddle.dtype_name(weight.local_tensor.dtype)} {list(weight.global_shape)}"
        if saved.get(key) != needed:
            differences.append(f"{key} {needed} (there: {saved.get(key)})")
    if differences:
        message = "The checkpoint lacks tensors, or types or shapes differ: build the same network and optimizer."
        raise ValueError(f"{message} Received: {', '.join(differences[:3])}{' ...' * (len(differences) > 3)}")


def _check_all_loaded(saved: Iterable[str], loaded: tuple[set[str], ...], digests: tuple[Any, ...]) -> None:
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
