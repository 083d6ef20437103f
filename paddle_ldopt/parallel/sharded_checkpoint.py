"""Checkpoints for any layout: saved by any number of processes, loaded by any other.

`paddle.distributed.save_state_dict` writes the tensors. This module gives it the place of each tensor, and adds the
schedule and a record of the optimizer. A checkpoint that does not fit in one process is refused in all, before anything
changes.
"""

import json
import os
from collections.abc import Iterable
from typing import Any, Callable, Optional

import paddle
import paddle.distributed as dist
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from .. import _paddle
from .._files import digest, write_file
from .._messages import refusal, shown
from .._paddle import rate_source, unwrap, wrappers
from .._processes import together
from ..saving.json_state import set_parts
from ..saving.optimizer_record import describe, merged
from ..saving.state import checked_name_list, one_of_ours
from . import checkpoint_folder as files
from .checkpoint_checks import check_all_loaded, check_same_record, check_tensors, checked_arguments, saved_schedule
from .checkpoint_folder import RECORD, SCHEDULE

__all__ = ["load_checkpoint", "save_checkpoint"]


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
        path, weights, names = checked_arguments(folder, network, rename)
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
        schedule = rate_source(unwrap(optimizer))
        if rank == 0 and isinstance(schedule, LRScheduler):
            paddle.save(schedule.state_dict(), os.path.join(folder, SCHEDULE))

    together(lambda: os.makedirs(folder, exist_ok=True))
    together(write)
    names, listings = together(lambda: (sorted(os.listdir(folder)),) * 2)
    if any(listing != listings[0] for listing in listings):
        problem = "All processes must save to the same folder, on a shared disk: delete the written files."
        raise ValueError(f"{problem} Received: files {shown(listings)} of the processes")
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
        path, weights, names = checked_arguments(folder, network, rename)
        may_differ = set(checked_name_list(changed, "changed"))
        content = files.content(path) or "is missing or empty"
        if content != files.COMPLETE:
            problem = f"`folder` {content}: give a complete checkpoint of `save_checkpoint`."
            raise refusal(ValueError, problem, folder=path)
        record, shards = files.record_in(path), _shards(optimizer)
        present = _described(weights, optimizer, names)
        check_same_record(path, record, present, may_differ)
        files.check_files(path, record)
        saved = files.read_metadata(path, record)
        schedule = saved_schedule(path, record, rate_source(unwrap(optimizer)), may_differ)
        state = _sharded(weights, optimizer, shards, names)
        check_tensors(saved, state)
        frozen = {name for name, param in present["parameters"].items() if param["ratio"] == 0.0}
        unused = {key for key in saved if "layerwise_decay" in may_differ and key.rpartition(".")[0] in frozen}
        return (state, schedule, saved), ({*state, *unused}, digest(os.path.join(path, RECORD)))

    (state, schedule, saved), shared = together(prepare)
    check_all_loaded(saved, *zip(*shared))
    _paddle.forget_checkpoint(os.fspath(folder))
    dist.load_state_dict(state, os.fspath(folder))
    if schedule is not None:
        set_parts([(rate_source(unwrap(optimizer)), schedule)])


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
                problem = f"Fused state belongs to no parameter: set {name}=False in the strategy's sharding_configs."
                raise refusal(ValueError, problem, **{name: True})
    return None
