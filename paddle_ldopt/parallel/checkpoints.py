"""Checkpoints that go on in another layout: saved on any number of processes, resumed on any other.

`paddle.distributed.save_state_dict` does the work; this says where each tensor belongs, adds the schedule and a record
of the optimizer, and refuses in all processes, before anything changes, a checkpoint that does not fit in one.
"""

import contextlib
import json
import math
import os
import sys

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer import (
    DygraphShardingOptimizer,
    DygraphShardingOptimizerV2,
)
from paddle.optimizer.lr import LRScheduler

from .._checks import shown
from .._paddle import check_wrapper_state, parameters_of, unwrap, unwrap_model
from ..saving.container import damage, digest, strict_json
from ..saving.record import check_same, describe, merged, some
from ..saving.state import checked_names
from ..saving.values import check_part, set_parts

__all__ = ["load_checkpoint", "save_checkpoint"]

RECORD = "ldopt_checkpoint.json"
SCHEDULE = "schedule.pdparams"
FORMAT = 1
_COMPLETE = "holds a checkpoint already"


def save_checkpoint(folder, network, optimizer, rename=None):
    """Save a network, its optimizer's state, masters and counters, and its schedule, for any layout to go on from.

    All processes call it. The checkpoint is complete when its record is there, which is written last.

    Args:
        folder (str): where to; seen by all processes. It must be empty, or not be there.
        network (paddle.nn.Layer): as trained, wrapped or not.
        optimizer (Optimizer): one of ours, as trained, wrapped or not.
        rename (callable, optional): structured name -> name in the checkpoint, where the same network is built of
            other classes elsewhere (with pipeline stages, say).

    Raises:
        TypeError: an optimizer that is none of ours; a folder that is no path, a network that is none.
        ValueError: a wrapper whose state no other layout could take up; a folder that holds a checkpoint, complete
            or cut short; two parameters of one name; sharded DistTensors. Nothing is written by
            then. If the processes write to different folders, the checkpoint stays without its record.

    Examples:
        .. code-block:: python

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

    def prepare():
        _check_arguments(folder, network, rename)
        weights = unwrap_model(network).sharded_state_dict()
        state = _sharded(weights, optimizer, _pieces(optimizer), rename)
        record = _described(weights, optimizer, rename)
        held = _held(folder)
        if held:
            raise ValueError(f"`folder` {held}: give another one, or delete it. Received: folder={os.fspath(folder)!r}")
        return state, record

    state, records = _together(prepare)
    folder, rank, processes = os.fspath(folder), dist.get_rank(), dist.get_world_size()

    def make():
        os.makedirs(folder, exist_ok=True)
        return None, None

    _together(make)

    def write():
        dist.save_state_dict(state, folder)
        schedule = unwrap(optimizer)._learning_rate
        if rank == 0 and isinstance(schedule, LRScheduler):
            paddle.save(schedule.state_dict(), os.path.join(folder, SCHEDULE))
        return None, None

    _together(write)
    names, listings = _together(lambda: (sorted(os.listdir(folder)),) * 2)
    if any(listed != listings[0] for listed in listings):
        raise ValueError(
            "All processes must save to the same folder, on a disk that all of them see: delete what was written. "
            f"Received: files {shown(listings)} of the processes"
        )
    _, digests = _together(
        lambda: (None, {name: digest(os.path.join(folder, name)) for name in names[rank::processes]})
    )

    def finish():
        if rank == 0:
            files = {name: written for found in digests for name, written in found.items()}
            record = {"format": FORMAT, "processes": processes, **merged(records), "files": files}
            with open(os.path.join(folder, f"{RECORD}.part"), "w", encoding="utf-8") as file:
                json.dump(record, file)
            os.replace(os.path.join(folder, f"{RECORD}.part"), os.path.join(folder, RECORD))
        return None, None

    _together(finish)


def load_checkpoint(folder, network, optimizer, rename=None, *, changed=()):
    """Load what `save_checkpoint` saved, in this layout: network, state, masters, counters, schedule.

    All processes call it. All of them check their part first: if one refuses, all raise its error.

    Args:
        folder (str): the checkpoint.
        network (paddle.nn.Layer): as it is to be trained, wrapped or not.
        optimizer (Optimizer): of the same class as the saved one, with the same options; wrapped or not.
        rename (callable, optional): structured name here -> name in the checkpoint.
        changed (Iterable[str]): options that may differ from the checkpoint's and keep the value they have here, as in
            `load_optimizer`. Options that decide which state there is, or its type, cannot be changed.

    Raises:
        TypeError: an optimizer that is none of ours; a folder that is no path, a network that is none.
        ValueError: no checkpoint, or one that was cut short or is damaged; another class, network, type or schedule;
            other options, unless `changed` names them. Nothing is changed by then.
    """

    def prepare():
        _check_arguments(folder, network, rename)
        allowed = set(checked_names(changed, "changed"))
        held = _held(folder)
        if held != _COMPLETE:
            raise ValueError(
                f"There is no complete checkpoint, `folder` {held or 'is not there or empty'}: give one that "
                f"`save_checkpoint` wrote to its end. Received: folder={os.fspath(folder)!r}"
            )
        record = _read_record(os.fspath(folder))
        weights, pieces = unwrap_model(network).sharded_state_dict(), _pieces(optimizer)
        here = _described(weights, optimizer, rename)
        _check_record(os.fspath(folder), record, here, allowed)
        saved = _read_metadata(os.fspath(folder), record)
        schedule = _read_schedule(os.fspath(folder), record, unwrap(optimizer)._learning_rate, allowed)
        state = _sharded(weights, optimizer, pieces, rename)
        _check_tensors(saved, state)
        frozen = {name for name, param in here["parameters"].items() if param["ratio"] == 0.0}
        idle = {key for key in saved if "layerwise_decay" in allowed and key.rpartition(".")[0] in frozen}
        return (state, schedule, saved), ({*state, *idle}, digest(os.path.join(folder, RECORD)))

    (state, schedule, saved), found = _together(prepare)
    if any(record != found[0][1] for _, record in found):
        raise ValueError(
            f"All processes must load the same checkpoint: give the same `folder`. Received: {RECORD} with "
            f"[bytes, CRC-32] {shown([record for _, record in found])} in the processes"
        )
    left = sorted(set(saved).difference(*(taken for taken, _ in found)))
    if left:
        raise ValueError(
            "The checkpoint has tensors of another network, of masters (`multi_precision`) or of parameters that are "
            "frozen here: build the same network and optimizer, and freeze parameters after loading. "
            f"Received: nothing for {some(left)}"
        )
    # Paddle remembers the files of a folder, which may hold another checkpoint by now
    files = getattr(sys.modules[dist.load_state_dict.__module__], "PATH_TO_CHECKPOINT_FILES", {})
    files.pop(os.fspath(folder), None)
    dist.load_state_dict(state, os.fspath(folder))
    if schedule is not None:
        unwrap(optimizer)._learning_rate.set_state_dict(schedule)


def _check_arguments(folder, network, rename):
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"`folder` must be a path. Received: folder={shown(folder)}")
    try:
        os.fsencode(folder)
    except UnicodeEncodeError as error:
        raise ValueError(f"`folder` must be a path ({error.reason}). Received: folder={shown(folder)}") from error
    if not hasattr(network, "sharded_state_dict"):
        raise TypeError(f"`network` must be a paddle.nn.Layer. Received: network of type {type(network).__name__}")
    for param in unwrap_model(network).parameters():
        if param.is_dist() and list(param._local_shape) != list(param.shape):
            raise ValueError(
                "`network` must hold no sharded DistTensors (`dist.shard_tensor`): distribute it by fleet. "
                f"Received: DistTensor '{param.name}' of shape {list(param.shape)}, {list(param._local_shape)} here"
            )
    if rename is not None and not callable(rename):
        raise TypeError(f"`rename` must be callable. Received: rename={shown(rename)}")


def _held(folder):
    """Return in words what a folder holds, None if there is nothing: a checkpoint is complete if it has a record."""
    if not os.path.isdir(folder):
        return "is a file" if os.path.lexists(folder) else None
    names = os.listdir(folder)
    if RECORD in names:
        return _COMPLETE
    if any(name.endswith((".distcp", ".metadata", ".lock", ".part")) for name in names):
        return f"holds a checkpoint that was cut short while it was saved, without {RECORD}"
    return "holds other files" if names else None


def _inner(optimizer):
    inner = unwrap(optimizer)
    if not hasattr(inner, "state_kinds"):
        raise TypeError(f"`optimizer` must be one of paddle_ldopt. Received: optimizer of type {type(inner).__name__}")
    check_wrapper_state(optimizer)
    return inner


def _described(weights, optimizer, rename):
    """Return the record of the parameters that the network has here, each as a whole."""
    inner = _inner(optimizer)
    own = {param.name for param in parameters_of(optimizer) if not param.stop_gradient}
    first: dict = {}  # of tied parameters the first name, as for their state
    for key in sorted(weights):
        if weights[key].local_tensor.name in own:
            first.setdefault(weights[key].local_tensor.name, key)
    names = {name: _new_name(rename, key) for name, key in first.items()}
    record = describe(inner, names, [weights[key].local_tensor for key in first.values()])
    for name, key in first.items():
        record["parameters"][names[name]]["shape"] = list(weights[key].global_shape)
    return record


def _sharded(weights, optimizer, pieces, rename):
    """Return key -> ShardedWeight of all that is to be saved, or loaded into."""
    state = {**weights, **_inner(optimizer).sharded_state_dict(weights, pieces)}
    return state if rename is None else _renamed(state, weights, rename)


def _new_name(rename, name):
    new = name if rename is None else rename(name)
    if not isinstance(new, str):
        raise TypeError(f"`rename` must return a string. Received: {shown(new)} for '{name}'")
    return new


def _renamed(state, weights, rename):
    """Return `state` with the name of the parameter that begins each key renamed."""
    out = {}
    for key, value in state.items():
        name = key if key in weights else key.rpartition(".")[0]
        new = _new_name(rename, name) + key[len(name) :]
        if new in out:
            raise ValueError(f"`rename` must give each parameter another name. Received: {shown(new)} for '{name}' too")
        value.key = new
        out[new] = value
    return out


def _pieces(optimizer):
    """Return ``param.name`` -> range of the flattened parameter that is here, None where parameters are whole."""
    while hasattr(optimizer, "_inner_opt") or hasattr(optimizer, "_optim"):
        if hasattr(optimizer, "_optim"):
            raise ValueError(
                "The state of group_sharded (stages 2 and 3) cannot be saved for another layout: use sharding stage 1 "
                f"of `fleet.distributed_optimizer`. Received: {type(optimizer).__name__}"
            )
        if type(optimizer) is DygraphShardingOptimizer:
            fused = next((name for name in ("tensor_fusion", "comm_overlap") if getattr(optimizer, name)), None)
            if fused:
                raise ValueError(
                    f"With fused parameters the state belongs to no parameter: set {fused}=False in the strategy's "
                    f"sharding_configs. Received: {fused}=True"
                )
        if type(optimizer) is DygraphShardingOptimizerV2:
            return _slices(optimizer)
        optimizer = optimizer._inner_opt
    return None


def _slices(optimizer):
    """Return the ranges of sharding v2, which has its slices filled only in the first step: fill them here."""
    optimizer._collect_comm_buffers()
    ranges = {}
    for buffer in optimizer._comm_buffer_list:
        for name, view in buffer._sharding_param_grad_view.items():
            if view._param_begin >= view._param_end:
                continue
            view.fill_slice_param(optimizer._slice_params[name])
            begin = view._param_begin - view._index
            end = min(view._param_end - view._index, math.prod(view._param.shape))
            if begin < end:
                ranges[name] = (begin, end)
    return ranges


@contextlib.contextmanager
def _readable(path):
    """Raise ValueError if something within it fails over a file's contents."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"The file is not one that `save_checkpoint` writes: {error!r}. Received: {path!r}") from error


def _read_record(folder):
    path = os.path.join(folder, RECORD)
    with _readable(path), open(path, encoding="utf-8") as file:
        try:
            record = strict_json(file.read())
        except ValueError as error:
            raise ValueError(f"The record of the checkpoint cannot be read: {error}. Received: {path!r}") from error
        if record["format"] != FORMAT:
            raise ValueError(
                f"The checkpoint has another format than {FORMAT}. "
                f"Received: format={shown(record['format'])} in {shown(path)}"
            )
    return record


def _check_record(folder, record, here, allowed):
    """Raise unless the files are those that were saved, by an optimizer like the one here."""
    with _readable(os.path.join(folder, RECORD)):
        # a record of version 0.1 names the optimizer only
        there = record if "parameters" in record else {**here, "optimizer": record["optimizer"]}
        common = sorted(set(there["parameters"]) & set(here["parameters"]))  # the tensors show the others
        there, ours = (
            {**one, "parameters": {name: one["parameters"][name] for name in common}} for one in (there, here)
        )
        check_same(there, ours, allowed)
        listed = sorted(record.get("files", {}).items())[dist.get_rank() :: dist.get_world_size()]
        wrong = [words for name, written in listed if (words := damage(folder, name, written)) is not None]
    if wrong:
        raise ValueError(
            f"The checkpoint is damaged: {wrong[0]}. Load another one, or restore the file. Received: folder={folder!r}"
        )


def _loaded(path):
    """Return what `paddle.save` wrote; raise ValueError if it cannot be read."""
    try:
        return paddle.load(path)
    except Exception as error:  # damaged pickles fail in every way
        raise ValueError(
            f"The checkpoint is damaged: '{os.path.basename(path)}' cannot be read ({type(error).__name__}: "
            f"{str(error)[:200]}). Load another one, or restore the file. Received: folder={os.path.dirname(path)!r}"
        ) from error


def _read_metadata(folder, record):
    """Return key -> (dtype, shape of the whole) of the tensors in a checkpoint; raise if a file lacks any of them."""
    names = [name for name in os.listdir(folder) if name.endswith(".metadata")]
    if len(names) != 1:
        raise ValueError(
            "The checkpoint is damaged: it must have one '.metadata' file. Load another one, or restore the file. "
            f"Received: folder={folder!r} with {names}"
        )
    path = os.path.join(folder, names[0])
    files: dict = {}
    metadata = _loaded(path)
    with _readable(path):
        for index, name in metadata.storage_metadata.items():
            begin, end = index.flattened_range or (0, math.prod(index.local_shape))
            files.setdefault(name, {})[index.tensor_key] = end - begin
        saved = {
            key: (pieces[0].dtype, tuple(pieces[0].global_shape))
            for key, pieces in metadata.state_dict_metadata.items()
        }
    for name in sorted(files)[dist.get_rank() :: dist.get_world_size()] if "files" not in record else ():
        tensors = _loaded(os.path.join(folder, name))  # of version 0.1, which has no checksums
        wrong = [key for key, size in files[name].items() if key not in tensors or tensors[key].size != size]
        if wrong:
            raise ValueError(
                f"The checkpoint is damaged: '{name}' is not the file that was saved, it lacks {some(wrong)}. Load "
                f"another one, or restore the file. Received: folder={folder!r}"
            )
    return saved


def _read_schedule(folder, record, schedule, allowed):
    """Return the state that the schedule is to have, None if it keeps its own."""
    if not isinstance(schedule, LRScheduler):
        return None
    there = record.get("schedule") or {}
    if ("schedule" in allowed) if "schedule" not in record else there.get("class") != type(schedule).__name__:
        return None
    path = os.path.join(folder, SCHEDULE)
    if not os.path.exists(path):
        raise ValueError(
            "The checkpoint has no schedule. If that is meant, give changed=['schedule']. "
            f"Received: {type(schedule).__name__} as the rate, no {path!r}"
        )
    state = _loaded(path)
    check_part(schedule, state, "The schedule's state")
    set_parts(set_parts([(schedule, state)]))  # whether it takes the state; then back: another process may refuse
    return state


def _check_tensors(saved, state):
    """Raise unless all that is to be loaded was saved, in the same type and shape."""
    wanted = {key: (str(w.local_tensor.dtype).rpartition(".")[2], tuple(w.global_shape)) for key, w in state.items()}
    wrong = [key for key in wanted if saved.get(key) != wanted[key]]
    if wrong:
        said = [f"{key} {_form(wanted[key])} (there: {_form(saved.get(key))})" for key in wrong[:3]]
        raise ValueError(
            "The checkpoint lacks tensors, or has them in another type or shape: build the same network, and the "
            f"optimizer with the same options. Received: {', '.join(said)}{' ...' * (len(wrong) > 3)}"
        )


def _form(form):
    return form and f"{form[0]} {list(form[1])}"


def _together(act):
    """Return the first thing that `act()` returns, and a list of the second in all processes.

    All of them raise if one fails, the error of the first: the others must not wait for it.
    """
    problem, own, shared = None, None, None
    try:
        own, shared = act()
    except Exception as error:
        problem = error
    found = [(problem, shared)]
    if dist.get_world_size() > 1:
        found = []
        dist.all_gather_object(found, (problem, shared))
        found[dist.get_rank()] = problem, shared  # with its traceback
    for failed, _ in found:
        if failed is not None:
            raise failed
    return own, [second for _, second in found]
