"""Checkpoints for any layout: saved on any number of processes, resumed on any other.

`paddle.distributed.save_state_dict` does the work; this says where each tensor belongs, adds the schedule and a record
of the optimizer, and refuses in all processes, before anything changes, a checkpoint that does not fit in one.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, Callable, Optional

import paddle
import paddle.distributed as dist
from paddle.optimizer.lr import LRScheduler

from .. import _paddle
from .._files import checked_path, digest, write_file
from .._messages import quoted, refusal, shown
from .._paddle import rate_source, unwrap, unwrap_model, wrappers
from .._processes import together
from ..saving.json_state import check_part, set_parts
from ..saving.record import check_same, describe, merged
from ..saving.state import checked_names, one_of_ours
from . import checkpoint_folder as files
from .checkpoint_folder import RECORD, SCHEDULE

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(folder: Any, network: Any, optimizer: Any, rename: Optional[Callable[[str], str]] = None) -> None:
    """Save a network, its optimizer's state, masters and counters, and its schedule, to resume in any layout.

    All processes call it. The checkpoint is complete when its record is there, which is written last.

    Args:
        folder (str): a new or empty folder that all processes see.
        network (paddle.nn.Layer): as trained, wrapped or not.
        optimizer (Optimizer): one of ours, as trained, wrapped or not.
        rename (callable, optional): structured name -> name in the checkpoint, if the same network is built of other
            classes elsewhere (with pipeline stages, say).

    Raises:
        TypeError, ValueError: a wrong type; a wrapper whose state fits no other layout; a folder that is not empty; two
            parameters of one name; sharded DistTensors. Nothing is written by then.

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
        state = _sharded(weights, optimizer, _pieces(optimizer), names)
        record = _described(weights, optimizer, names)
        found = files.held(path)
        if found:
            raise refusal(ValueError, f"`folder` {found}: give another one, or delete it.", folder=path)
        return state, record

    state, records = together(prepare)
    folder, rank = os.fspath(folder), dist.get_rank()

    def write() -> None:
        dist.save_state_dict(state, folder)
        schedule = rate_source(unwrap(optimizer))
        if rank == 0 and isinstance(schedule, LRScheduler):
            paddle.save(schedule.state_dict(), os.path.join(folder, SCHEDULE))

    together(lambda: os.makedirs(folder, exist_ok=True))
    together(write)
    names, listings = together(lambda: (sorted(os.listdir(folder)),) * 2)
    if any(listed != listings[0] for listed in listings):
        problem = "All processes must save to the same folder, on a disk that all of them see: delete what was written."
        raise ValueError(f"{problem} Received: files {shown(listings)} of the processes")
    _, digests = together(lambda: (None, {name: digest(os.path.join(folder, name)) for name in files.own_files(names)}))

    def finish() -> None:
        if rank == 0:
            written = {name: summed for found in digests for name, summed in found.items()}
            record = {"format": files.FORMAT, "processes": dist.get_world_size(), **merged(records), "files": written}
            write_file(os.path.join(folder, RECORD), [json.dumps(record).encode()])

    together(finish)


def load_checkpoint(
    folder: Any,
    network: Any,
    optimizer: Any,
    rename: Optional[Callable[[str], str]] = None,
    *,
    changed: Iterable[str] = (),
) -> None:
    """Load a checkpoint of `save_checkpoint` into this layout: network, state, masters, counters, schedule.

    All processes call it. All of them check their part first: if one refuses, all raise its error.

    Args:
        folder (str): the checkpoint.
        network (paddle.nn.Layer): as it is to be trained, wrapped or not.
        optimizer (Optimizer): of the same class as the saved one, with the same options; wrapped or not.
        rename (callable, optional): structured name here -> name in the checkpoint.
        changed (Iterable[str]): options that may differ from the checkpoint's and keep their value here, as in
            `load_optimizer`. Options that decide which states there are, or their types, cannot be changed.

    Raises:
        TypeError, ValueError: an incomplete or damaged checkpoint; another class, network, type or schedule; other
            options, unless `changed` names them. Nothing is changed by then.
    """

    def prepare() -> tuple[Any, Any]:
        path, weights, names = _checked_arguments(folder, network, rename)
        allowed = set(checked_names(changed, "changed"))
        found = files.held(path) or "is not there or empty"
        if found != files.COMPLETE:
            problem = f"`folder` {found}: give a complete checkpoint, which `save_checkpoint` wrote to its end."
            raise refusal(ValueError, problem, folder=path)
        record, pieces = files.read_record(path), _pieces(optimizer)
        here = _described(weights, optimizer, names)
        _check_same(path, record, here, allowed)
        files.check_files(path, record)
        saved = files.read_metadata(path, record)
        schedule = _saved_schedule(path, record, rate_source(unwrap(optimizer)), allowed)
        state = _sharded(weights, optimizer, pieces, names)
        _check_tensors(saved, state)
        frozen = {name for name, param in here["parameters"].items() if param["ratio"] == 0.0}
        idle = {key for key in saved if "layerwise_decay" in allowed and key.rpartition(".")[0] in frozen}
        return (state, schedule, saved), ({*state, *idle}, digest(os.path.join(path, RECORD)))

    (state, schedule, saved), found = together(prepare)
    if any(record != found[0][1] for _, record in found):
        sums = f"{RECORD} with [bytes, CRC-32] {shown([record for _, record in found])} in the processes"
        raise ValueError(f"All processes must load the same checkpoint: give the same `folder`. Received: {sums}")
    left = sorted(set(saved).difference(*(taken for taken, _ in found)))
    if left:
        raise ValueError(
            "The checkpoint has tensors of another network, of masters (`multi_precision`) or of parameters that are "
            "frozen here: build the same network and optimizer, and freeze parameters after loading. "
            f"Received: nothing for {quoted(left)}"
        )
    _paddle.forget_checkpoint(os.fspath(folder))
    dist.load_state_dict(state, os.fspath(folder))
    if schedule is not None:
        rate_source(unwrap(optimizer)).set_state_dict(schedule)


def _checked_arguments(folder: Any, network: Any, rename: Any) -> tuple[str, Any, dict[str, str]]:
    """Return the folder, the network's weights, and structured name -> name in the checkpoint."""
    folder = checked_path(folder, "folder")
    _paddle.checked_model(network, "network")
    if not hasattr(network, "sharded_state_dict"):
        raise refusal(RuntimeError, "Checkpoints for any layout need Paddle 3.2 or later.", paddle=paddle.__version__)
    for param in unwrap_model(network).parameters():
        here = list(_paddle.local_shape(param)) if param.is_dist() else param.shape
        if here != list(param.shape):
            problem = "`network` must hold no sharded DistTensors (`dist.shard_tensor`): distribute it by fleet."
            raise ValueError(f"{problem} Received: DistTensor '{param.name}' of shape {list(param.shape)}, {here} here")
    if rename is not None and not callable(rename):
        raise refusal(TypeError, "`rename` must be callable.", rename=rename)
    weights = unwrap_model(network).sharded_state_dict()
    names: dict[str, str] = {}
    for name in weights:
        new = name if rename is None else rename(name)
        if not isinstance(new, str):
            raise refusal(TypeError, "`rename` must return a string.", name=name, returned=new)
        names[name] = new
    twice = [name for name, times in Counter(names.values()).items() if times > 1]
    if twice:
        raise refusal(ValueError, "`rename` must give each parameter another name.", returned=twice)
    return folder, weights, names


def _described(weights: Any, optimizer: Any, names: dict[str, str]) -> dict[str, Any]:
    """Return the record of the parameters that the network has here, each as a whole."""
    inner = one_of_ours(optimizer)
    own = {param.name for param in _paddle.parameters_of(optimizer) if not param.stop_gradient}
    first: dict[str, str] = {}  # of tied parameters the first name, as for their state
    for key in sorted(weights):
        if weights[key].local_tensor.name in own:
            first.setdefault(weights[key].local_tensor.name, key)
    renamed = {name: names[key] for name, key in first.items()}
    record = describe(inner, renamed, [weights[key].local_tensor for key in first.values()])
    for key in first.values():
        record["parameters"][names[key]]["shape"] = list(weights[key].global_shape)
    return record


def _sharded(weights: Any, optimizer: Any, pieces: Any, names: dict[str, str]) -> dict[str, Any]:
    """Return key -> ShardedWeight to save, or to load into, with the parameter's name in the checkpoint in each key."""
    out: dict[str, Any] = {}
    for key, value in {**weights, **one_of_ours(optimizer).sharded_state_dict(weights, pieces)}.items():
        name = key if key in weights else key.rpartition(".")[0]
        value.key = names[name] + key[len(name) :]
        out[value.key] = value
    return out


def _pieces(optimizer: Any) -> Optional[dict[str, tuple[int, int]]]:
    """Return ``param.name`` -> range of the flattened parameter that is here, None where parameters are whole."""
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
                problem = f"Fused state belongs to no parameter: set {name}=False in the strategy's sharding_configs."
                raise refusal(ValueError, problem, **{name: True})
    return None


def _check_same(folder: str, record: Any, here: Any, allowed: set[str]) -> None:
    """Raise unless the checkpoint was saved by an optimizer like the one here."""
    with files.readable(os.path.join(folder, RECORD)):
        # a record of version 0.1 names the optimizer only
        there = record if "parameters" in record else {**here, "optimizer": record["optimizer"]}
        common = sorted(set(there["parameters"]) & set(here["parameters"]))  # the tensors show the others
        there, here = ({**one, "parameters": {n: one["parameters"][n] for n in common}} for one in (there, here))
        check_same(there, here, allowed)


def _saved_schedule(folder: str, record: Any, schedule: Any, allowed: set[str]) -> Any:
    """Return the state that the schedule is to have, None if it keeps its own."""
    if not isinstance(schedule, LRScheduler):
        return None
    there = record.get("schedule") or {}
    if ("schedule" in allowed) if "schedule" not in record else there.get("class") != type(schedule).__name__:
        return None
    if not os.path.exists(os.path.join(folder, SCHEDULE)):
        problem = "The checkpoint has no schedule. If that is meant, give changed=['schedule']."
        raise ValueError(f"{problem} Received: {type(schedule).__name__} as the rate, no {SCHEDULE} in {shown(folder)}")
    state = files.read_pickle(folder, SCHEDULE)
    check_part(schedule, state, "The schedule's state")
    set_parts(set_parts([(schedule, state)]))  # whether it takes the state; then back: another process may refuse
    return state


def _check_tensors(saved: dict[str, str], state: dict[str, Any]) -> None:
    """Raise unless all tensors to load were saved, in the same type and shape."""
    wrong = []
    for key, weight in state.items():
        wanted = f"{_paddle.dtype_name(weight.local_tensor.dtype)} {list(weight.global_shape)}"
        if saved.get(key) != wanted:
            wrong.append(f"{key} {wanted} (there: {saved.get(key)})")
    if wrong:
        problem = "The checkpoint lacks tensors, or types or shapes differ: build network and optimizer as they were."
        raise ValueError(f"{problem} Received: {', '.join(wrong[:3])}{' ...' * (len(wrong) > 3)}")
