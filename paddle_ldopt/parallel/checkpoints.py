"""Checkpoints that go on in another layout: saved on any number of processes, resumed on any other.

`paddle.distributed.save_state_dict` does the work; this says where each tensor belongs, adds the schedule, and refuses
what could not be resumed while there is still something to save.
"""

import json
import math
import os

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer import (
    DygraphShardingOptimizer,
    DygraphShardingOptimizerV2,
)
from paddle.optimizer.lr import LRScheduler

from ..arguments import shown
from ..hooks import unwrap, unwrap_model

__all__ = ["load_checkpoint", "save_checkpoint"]

RECORD = "ldopt_checkpoint.json"
SCHEDULE = "schedule.pdparams"
FORMAT = 1
_SHOWN = 3


def save_checkpoint(folder, network, optimizer, rename=None):
    """Save a network, its optimizer's state, masters and counters, and its schedule, for any layout to go on from.

    All processes call it. The folder counts as complete when `load_checkpoint` finds the record that is written last.

    Args:
        folder (str): where to; seen by all processes. It must not hold a checkpoint.
        network (paddle.nn.Layer): as trained, wrapped or not.
        optimizer (Optimizer): one of ours, as trained, wrapped or not.
        rename (callable, optional): structured name -> name in the checkpoint, where the same network is built of
            other classes elsewhere (with pipeline stages, say).

    Raises:
        TypeError: an optimizer that is none of ours; a folder that is no path, a network that is none.
        ValueError: a wrapper whose state no other layout could take up; a folder that holds a checkpoint; two
            parameters of one name. Nothing is written by then.

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
    _check_arguments(folder, network, rename)
    state = _sharded(network, optimizer, rename)
    _agree(
        f"`folder` holds a checkpoint already: give another one. Received: folder={os.fspath(folder)!r}"
        if os.path.exists(folder) and os.listdir(folder)
        else None
    )
    dist.save_state_dict(state, os.fspath(folder))
    _barrier()
    if dist.get_rank() == 0:
        schedule = unwrap(optimizer)._learning_rate
        if isinstance(schedule, LRScheduler):
            paddle.save(schedule.state_dict(), os.path.join(folder, SCHEDULE))
        record = {"format": FORMAT, "optimizer": type(unwrap(optimizer)).__name__, "processes": dist.get_world_size()}
        with open(os.path.join(folder, f"{RECORD}.part"), "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(os.path.join(folder, f"{RECORD}.part"), os.path.join(folder, RECORD))
    _barrier()


def load_checkpoint(folder, network, optimizer, rename=None):
    """Load what `save_checkpoint` saved, in this layout: network, state, masters, counters, schedule.

    All processes call it.

    Args:
        folder (str): the checkpoint.
        network (paddle.nn.Layer): as it is to be trained, wrapped or not.
        optimizer (Optimizer): of the same class as the saved one, with the same options; wrapped or not.
        rename (callable, optional): structured name here -> name in the checkpoint.

    Raises:
        TypeError: an optimizer that is none of ours; a folder that is no path, a network that is none.
        ValueError: no checkpoint, or one that was cut short; another optimizer; a tensor that it lacks or has in
            another shape. Nothing is changed by then.
    """
    _check_arguments(folder, network, rename)
    folder = os.fspath(folder)
    state = _sharded(network, optimizer, rename)
    _agree(_misfit(folder, state, unwrap(optimizer)))
    dist.load_state_dict(state, folder)
    unwrap(optimizer).forget()
    schedule = unwrap(optimizer)._learning_rate
    if isinstance(schedule, LRScheduler):
        schedule.set_state_dict(paddle.load(os.path.join(folder, SCHEDULE)))


def _check_arguments(folder, network, rename):
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"`folder` must be a path. Received: folder={shown(folder)}")
    try:
        os.fsencode(folder)
    except UnicodeEncodeError as error:
        raise ValueError(f"`folder` must be a path ({error.reason}). Received: folder={shown(folder)}") from error
    if not hasattr(network, "sharded_state_dict"):
        raise TypeError(f"`network` must be a paddle.nn.Layer. Received: network of type {type(network).__name__}")
    if rename is not None and not callable(rename):
        raise TypeError(f"`rename` must be callable. Received: rename={shown(rename)}")


def _sharded(network, optimizer, rename):
    """Return key -> ShardedWeight of all that is to be saved, or loaded into."""
    problem, state = None, {}
    try:
        inner = unwrap(optimizer)
        if not hasattr(inner, "state_kinds"):
            raise TypeError(
                f"`optimizer` must be one of paddle_ldopt. Received: optimizer of type {type(inner).__name__}"
            )
        weights = unwrap_model(network).sharded_state_dict()
        state = {**weights, **inner.sharded_state_dict(weights, _pieces(optimizer))}
        if rename is not None:
            state = _renamed(state, weights, rename)
    except (TypeError, ValueError) as error:
        problem = error
    _agree(problem)
    return state


def _renamed(state, weights, rename):
    """Return `state` with the name of the parameter that begins each key renamed."""
    out = {}
    for key, value in state.items():
        name = key if key in weights else key.rpartition(".")[0]
        new = rename(name) + key[len(name) :]
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
        if type(optimizer) is DygraphShardingOptimizer and optimizer.tensor_fusion:
            raise ValueError(
                "With fused parameters the state belongs to no parameter: set tensor_fusion=False in the strategy's "
                "sharding_configs. Received: tensor_fusion=True"
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


def _misfit(folder, state, optimizer):
    """Return in words why a checkpoint cannot be loaded into `state`, None if it can."""
    path = os.path.join(folder, RECORD)
    if not os.path.exists(path):
        return (
            f"There is no checkpoint, or one that was cut short: no {RECORD} is there. Received: folder={shown(folder)}"
        )
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    if record["format"] != FORMAT:
        return f"The checkpoint has another format than {FORMAT}. Received: format={shown(record['format'])}"
    if record["optimizer"] != type(optimizer).__name__:
        return (
            f"The checkpoint is of {record['optimizer']}: resume with the same optimizer. "
            f"Received: optimizer of type {type(optimizer).__name__}"
        )
    if isinstance(optimizer._learning_rate, LRScheduler) and not os.path.exists(os.path.join(folder, SCHEDULE)):
        return "The checkpoint has no schedule: resume with a number as the rate. Received: an LRScheduler"
    shapes = _saved_shapes(folder)
    wrong = [key for key in state if shapes.get(key) != tuple(state[key].global_shape)]
    if wrong:
        told = [f"{key} {list(state[key].global_shape)} (there: {shapes.get(key)})" for key in wrong[:_SHOWN]]
        return (
            "The checkpoint lacks tensors, or has them in another shape: build the same network, and the optimizer "
            f"with the same options. Received: {', '.join(told)}{' ...' * (len(wrong) > _SHOWN)}"
        )
    return None


def _saved_shapes(folder):
    """Return key -> shape of the whole tensor, of all that a folder of `paddle.distributed.save_state_dict` holds."""
    (name,) = [name for name in os.listdir(folder) if name.endswith(".metadata")]
    saved = paddle.load(os.path.join(folder, name)).state_dict_metadata
    return {key: tuple(pieces[0].global_shape) for key, pieces in saved.items()}


def _agree(problem):
    """Raise in every process if there is a problem in one: the others must not wait for it."""
    problems = [problem]
    if dist.get_world_size() > 1:
        problems = []
        dist.all_gather_object(problems, problem)
    for found in problems:
        if found is not None:
            raise found if isinstance(found, Exception) else ValueError(found)


def _barrier():
    if dist.get_world_size() > 1:
        dist.barrier()
