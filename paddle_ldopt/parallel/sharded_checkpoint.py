"""Checkpoints for any layout: saved on any number of processes, resumed on any other.

`paddle.distributed.save_state_dict` does the work; this says where each tensor belongs, adds the schedule and a record
of the optimizer, and refuses in all processes, before anything changes, a checkpoint that does not fit in one.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

import paddle
import paddle.distributed as dist
from paddle.optimizer.lr import LRScheduler

from .. import _paddle
from .._messages import refusal, shown
from .._paddle import rate_source, unwrap, unwrap_model, wrappers
from ..saving.container import damage, digest, strict_json
from ..saving.json_state import check_part, set_parts
from ..saving.record import check_same, describe, merged, some
from ..saving.state import checked_names, one_of_ours

__all__ = ["load_checkpoint", "save_checkpoint"]

RECORD = "ldopt_checkpoint.json"
SCHEDULE = "schedule.pdparams"
FORMAT = 1
_COMPLETE = "holds a checkpoint already"


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
        _check_arguments(folder, network, rename)
        weights = unwrap_model(network).sharded_state_dict()
        state = _sharded(weights, optimizer, _pieces(optimizer), rename)
        record = _described(weights, optimizer, rename)
        held = _held(folder)
        if held:
            raise refusal(ValueError, f"`folder` {held}: give another one, or delete it.", folder=os.fspath(folder))
        return state, record

    state, records = _together(prepare)
    folder, rank, processes = os.fspath(folder), dist.get_rank(), dist.get_world_size()

    def write() -> None:
        dist.save_state_dict(state, folder)
        schedule = rate_source(unwrap(optimizer))
        if rank == 0 and isinstance(schedule, LRScheduler):
            paddle.save(schedule.state_dict(), os.path.join(folder, SCHEDULE))

    _together(lambda: os.makedirs(folder, exist_ok=True))
    _together(write)
    names, listings = _together(lambda: (sorted(os.listdir(folder)),) * 2)
    if any(listed != listings[0] for listed in listings):
        problem = "All processes must save to the same folder, on a disk that all of them see: delete what was written."
        raise ValueError(f"{problem} Received: files {shown(listings)} of the processes")
    own = names[rank::processes]
    _, digests = _together(lambda: (None, {name: digest(os.path.join(folder, name)) for name in own}))

    def finish() -> None:
        if rank == 0:
            files = {name: written for found in digests for name, written in found.items()}
            record = {"format": FORMAT, "processes": processes, **merged(records), "files": files}
            path = os.path.join(folder, RECORD)
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                json.dump(record, file)
            os.replace(f"{path}.part", path)

    _together(finish)


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
        _check_arguments(folder, network, rename)
        allowed = set(checked_names(changed, "changed"))
        held, path = _held(folder), os.fspath(folder)
        if held != _COMPLETE:
            found = held or "is not there or empty"
            problem = f"`folder` {found}: give a complete checkpoint, which `save_checkpoint` wrote to its end."
            raise refusal(ValueError, problem, folder=path)
        record = _read_record(path)
        weights, pieces = unwrap_model(network).sharded_state_dict(), _pieces(optimizer)
        here = _described(weights, optimizer, rename)
        _check_record(path, record, here, allowed)
        saved = _read_metadata(path, record)
        schedule = _read_schedule(path, record, rate_source(unwrap(optimizer)), allowed)
        state = _sharded(weights, optimizer, pieces, rename)
        _check_tensors(saved, state)
        frozen = {name for name, param in here["parameters"].items() if param["ratio"] == 0.0}
        idle = {key for key in saved if "layerwise_decay" in allowed and key.rpartition(".")[0] in frozen}
        return (state, schedule, saved), ({*state, *idle}, digest(os.path.join(folder, RECORD)))

    (state, schedule, saved), found = _together(prepare)
    if any(record != found[0][1] for _, record in found):
        sums = f"{RECORD} with [bytes, CRC-32] {shown([record for _, record in found])} in the processes"
        raise ValueError(f"All processes must load the same checkpoint: give the same `folder`. Received: {sums}")
    left = sorted(set(saved).difference(*(taken for taken, _ in found)))
    if left:
        raise ValueError(
            "The checkpoint has tensors of another network, of masters (`multi_precision`) or of parameters that are "
            "frozen here: build the same network and optimizer, and freeze parameters after loading. "
            f"Received: nothing for {some(left)}"
        )
    _paddle.forget_checkpoint(os.fspath(folder))
    dist.load_state_dict(state, os.fspath(folder))
    if schedule is not None:
        rate_source(unwrap(optimizer)).set_state_dict(schedule)


def _check_arguments(folder: Any, network: Any, rename: Any) -> None:
    if not isinstance(folder, (str, os.PathLike)):
        raise refusal(TypeError, "`folder` must be a path.", folder=folder)
    try:
        os.fsencode(folder)
    except UnicodeEncodeError as error:
        raise refusal(ValueError, f"`folder` must be a path ({error.reason}).", folder=folder) from error
    _paddle.checked_model(network, "network")
    if not hasattr(network, "sharded_state_dict"):
        raise RuntimeError(f"Checkpoints for any layout need Paddle 3.2 or later. Received: {paddle.__version__}")
    for param in unwrap_model(network).parameters():
        here = list(_paddle.local_shape(param)) if param.is_dist() else param.shape
        if here != list(param.shape):
            problem = "`network` must hold no sharded DistTensors (`dist.shard_tensor`): distribute it by fleet."
            raise ValueError(f"{problem} Received: DistTensor '{param.name}' of shape {list(param.shape)}, {here} here")
    if rename is not None and not callable(rename):
        raise refusal(TypeError, "`rename` must be callable.", rename=rename)


def _held(folder: Any) -> Optional[str]:
    """Return in words what a folder holds, None if there is nothing: a checkpoint is complete if it has a record."""
    if not os.path.isdir(folder):
        return "is a file" if os.path.lexists(folder) else None
    names = os.listdir(folder)
    if RECORD in names:
        return _COMPLETE
    if any(name.endswith((".distcp", ".metadata", ".lock", ".part")) for name in names):
        return f"holds a checkpoint that was cut short while it was saved, without {RECORD}"
    return "holds other files" if names else None


def _described(weights: Any, optimizer: Any, rename: Any) -> dict[str, Any]:
    """Return the record of the parameters that the network has here, each as a whole."""
    inner = one_of_ours(optimizer)
    own = {param.name for param in _paddle.parameters_of(optimizer) if not param.stop_gradient}
    first: dict[str, str] = {}  # of tied parameters the first name, as for their state
    for key in sorted(weights):
        if weights[key].local_tensor.name in own:
            first.setdefault(weights[key].local_tensor.name, key)
    names = {name: _new_name(rename, key) for name, key in first.items()}
    record = describe(inner, names, [weights[key].local_tensor for key in first.values()])
    for name, key in first.items():
        record["parameters"][names[name]]["shape"] = list(weights[key].global_shape)
    return record


def _new_name(rename: Any, name: str) -> str:
    new = name if rename is None else rename(name)
    if not isinstance(new, str):
        raise TypeError(f"`rename` must return a string. Received: {shown(new)} for '{name}'")
    return new


def _sharded(weights: Any, optimizer: Any, pieces: Any, rename: Any) -> dict[str, Any]:
    """Return key -> ShardedWeight to save, or to load into; `rename` changes the parameter's name in each key."""
    out: dict[str, Any] = {}
    for key, value in {**weights, **one_of_ours(optimizer).sharded_state_dict(weights, pieces)}.items():
        name = key if key in weights else key.rpartition(".")[0]
        new = _new_name(rename, name) + key[len(name) :]
        if new in out:
            raise ValueError(f"`rename` must give each parameter another name. Received: {shown(new)} for '{name}' too")
        value.key = new
        out[new] = value
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
                raise ValueError(f"{problem} Received: {name}=True")
    return None


# ---- the files of a checkpoint


def _damaged(folder: str, problem: str) -> ValueError:
    todo = "Load another one, or restore the file."
    return ValueError(f"The checkpoint is damaged: {problem}. {todo} Received: folder={folder!r}")


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Raise ValueError if the block fails over a file's contents."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"The file is not one that `save_checkpoint` writes: {error!r}. Received: {path!r}") from error


def _read_record(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, RECORD)
    with _readable(path), open(path, encoding="utf-8") as file:
        try:
            record = strict_json(file.read())
        except ValueError as error:
            raise ValueError(f"The record of the checkpoint cannot be read: {error}. Received: {path!r}") from error
        if record["format"] != FORMAT:
            problem = f"The checkpoint has another format than {FORMAT}."
            raise ValueError(f"{problem} Received: format={shown(record['format'])} in {shown(path)}")
    return record


def _check_record(folder: str, record: Any, here: Any, allowed: set[str]) -> None:
    """Raise unless the files are those that were saved, by an optimizer like the one here."""
    with _readable(os.path.join(folder, RECORD)):
        # a record of version 0.1 names the optimizer only
        there = record if "parameters" in record else {**here, "optimizer": record["optimizer"]}
        common = sorted(set(there["parameters"]) & set(here["parameters"]))  # the tensors show the others
        there, here = ({**one, "parameters": {n: one["parameters"][n] for n in common}} for one in (there, here))
        check_same(there, here, allowed)
        listed = sorted(record.get("files", {}).items())[dist.get_rank() :: dist.get_world_size()]
        wrong = [words for name, written in listed if (words := damage(folder, name, written)) is not None]
    if wrong:
        raise _damaged(folder, wrong[0])


def _loaded(folder: str, name: str) -> Any:
    """Return what `paddle.save` wrote; raise ValueError if it cannot be read."""
    try:
        return paddle.load(os.path.join(folder, name))
    except Exception as error:  # damaged pickles fail in every way
        raise _damaged(folder, f"'{name}' cannot be read ({type(error).__name__}: {str(error)[:200]})") from error


def _read_metadata(folder: str, record: Any) -> dict[str, str]:
    """Return key -> "dtype shape" of the tensors in a checkpoint; raise if a file lacks any of them."""
    names = [name for name in os.listdir(folder) if name.endswith(".metadata")]
    if len(names) != 1:
        raise _damaged(folder, f"it must have one '.metadata' file, not {names}")
    metadata = _loaded(folder, names[0])
    with _readable(os.path.join(folder, names[0])):
        found = metadata.state_dict_metadata.items()
        saved = {key: f"{pieces[0].dtype} {list(map(int, pieces[0].global_shape))}" for key, pieces in found}
        if "files" not in record:  # of version 0.1, which has no checksums
            _check_sizes(folder, metadata)
    return saved


def _check_sizes(folder: str, metadata: Any) -> None:
    """Raise unless the files of this process have the tensors that the metadata says."""
    files: dict[str, dict[str, int]] = {}
    for index, name in metadata.storage_metadata.items():
        begin, end = index.flattened_range or (0, math.prod(index.local_shape))
        files.setdefault(name, {})[index.tensor_key] = end - begin
    for name in sorted(files)[dist.get_rank() :: dist.get_world_size()]:
        tensors = _loaded(folder, name)
        wrong = [key for key, size in files[name].items() if key not in tensors or tensors[key].size != size]
        if wrong:
            raise _damaged(folder, f"'{name}' is not the file that was saved, it lacks {some(wrong)}")


def _read_schedule(folder: str, record: Any, schedule: Any, allowed: set[str]) -> Any:
    """Return the state that the schedule is to have, None if it keeps its own."""
    if not isinstance(schedule, LRScheduler):
        return None
    there = record.get("schedule") or {}
    if ("schedule" in allowed) if "schedule" not in record else there.get("class") != type(schedule).__name__:
        return None
    path = os.path.join(folder, SCHEDULE)
    if not os.path.exists(path):
        problem = "The checkpoint has no schedule. If that is meant, give changed=['schedule']."
        raise ValueError(f"{problem} Received: {type(schedule).__name__} as the rate, no {path!r}")
    state = _loaded(folder, SCHEDULE)
    check_part(schedule, state, "The schedule's state")
    set_parts(set_parts([(schedule, state)]))  # whether it takes the state; then back: another process may refuse
    return state


def _check_tensors(saved: dict[str, str], state: dict[str, Any]) -> None:
    """Raise unless all tensors to load were saved, in the same type and shape."""
    wrong = []
    for key, weight in state.items():
        wanted = f"{str(weight.local_tensor.dtype).rpartition('.')[2]} {list(weight.global_shape)}"
        if saved.get(key) != wanted:
            wrong.append(f"{key} {wanted} (there: {saved.get(key)})")
    if wrong:
        problem = "The checkpoint lacks tensors, or types or shapes differ: build network and optimizer as they were."
        raise ValueError(f"{problem} Received: {', '.join(wrong[:3])}{' ...' * (len(wrong) > 3)}")


def _together(act: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Return the first result of `act()`, and a list of its second result in all processes; it may return None.

    All of them raise if one fails, the error of the first: the others must not wait for it.
    """
    problem, own, shared = None, None, None
    try:
        own, shared = act() or (None, None)
    except Exception as error:
        problem = error
    found: list[Any] = [(problem, shared)]
    if dist.get_world_size() > 1:
        found = []
        dist.all_gather_object(found, (problem, shared))
        found[dist.get_rank()] = problem, shared  # with its traceback
    for failed, _ in found:
        if failed is not None:
            raise failed
    return own, [second for _, second in found]
