"""Checks of a `GradientAccumulator`, before anything changes: of gradients, targets, groups of processes and states."""

from typing import Any, Optional

import paddle
import paddle.distributed as dist

from .._checks import checked_bool, checked_number, checked_state, checked_steps
from .._messages import refusal, shown, wrong_type
from .._paddle import dtype_name
from .gradients import ProcessPart, trainable

_KEYS = {"reduction", "names", "slots", "received", "step", "count", "weight", "synchronized", "gradients"}


# ---- gradients


def check_addable(gradient: paddle.Tensor, total: Any, place: Any) -> None:
    """Raise if a gradient cannot be added to its sum."""
    if gradient is None:
        return
    if not isinstance(gradient, paddle.Tensor):
        raise TypeError(f"A gradient must be a Tensor or None. Received: {type(gradient).__name__} at {place}")
    if gradient.is_selected_rows():
        message = "Gradients must be dense: build the embedding with sparse=False."
        raise TypeError(f"{message} Received: a sparse gradient at {place}")
    if not gradient.is_floating_point():
        raise TypeError(f"A gradient must be of a floating-point type. Received: dtype={gradient.dtype} at {place}")
    if total is not None and gradient.shape != total.shape:
        message = f"A gradient must have the shape of its sum, {list(total.shape)}."
        raise ValueError(f"{message} Received: shape={list(gradient.shape)} at {place}")


def described(names: Optional[list[str]], length: int) -> str:
    """Describe the slots for a message."""
    if names is None:
        return f"a list of {length} gradients" if length else "nothing"
    return f"{length} parameters ({', '.join(names[:3])}{', ...' if length > 3 else ''})"


# ---- the target of the reduced gradients


def checked_target(target: Any, names: Optional[list[str]], sums: list[Any]) -> list[Any]:
    """Return the parameters of a list or a model; raise unless they fit the sums."""
    if target is None:
        since = "the accumulator was called with lists, or never with the model since it was built or loaded"
        raise refusal(ValueError, f"`target` must be given: {since}.", target=None)
    if isinstance(target, paddle.nn.Layer):
        model_names, target = trainable(target)
        if names is not None and model_names != names:
            message = "`target` must be the model that produced the gradients."
            received = f"{described(model_names, len(target))}, for gradients of {described(names, len(sums))}"
            raise ValueError(f"{message} Received: {received}")
    listed = hasattr(target, "__iter__") and not hasattr(target, "__array__")  # no Tensor, no array
    parameters = list(target) if listed else []
    if not listed or not all(isinstance(param, paddle.Tensor) for param in parameters):
        raise wrong_type(target, "target", "a list of parameters or a paddle.nn.Layer")
    if len(parameters) != len(sums):
        raise ValueError(f"`target` must hold {len(sums)} parameters. Received: {len(parameters)}")
    for place, (param, total) in enumerate(zip(parameters, sums)):
        if total is not None and param.shape != total.shape:
            received = f"shape={list(param.shape)} for a gradient of shape {list(total.shape)}, at {place}"
            raise ValueError(f"`target` must hold the parameters of these gradients. Received: {received}")
    return parameters


def target_among(
    trained: list[paddle.Tensor], names: Optional[list[str]], own_names: Optional[list[str]]
) -> Optional[list[Any]]:
    """Return the target among an optimizer's parameters: the trainable ones for a list, or None if unknown.

    `own_names` are Paddle's names of the target, from another process that has seen the model.
    """
    if names is None:
        return [param for param in trained if not param.stop_gradient]
    by_name = {param.name: param for param in trained}
    return [by_name[name] for name in own_names] if own_names and by_name.keys() >= set(own_names) else None


# ---- several processes


def check_group(group: Any, sums: list[Any]) -> None:
    """Raise if the sums of the processes of a group cannot be added."""
    if group is not None and not hasattr(group, "is_member"):
        raise refusal(TypeError, "`group` must be a paddle.distributed Group.", group=group)
    if group is not None and not group.is_member():
        raise refusal(ValueError, "`group` must hold this process.", group=group)
    if dist.get_world_size(group) == 1:
        return
    if not dist.is_initialized():
        message = "Processes must be connected: call `paddle.distributed.init_parallel_env` first."
        raise ValueError(f"{message} Received: {dist.get_world_size()} processes, not initialized")
    if any(total is not None and total.is_dist() for total in sums):
        message = "Gradients of DistTensors (`dist.shard_tensor`) are already summed over all processes"
        received = f"{len(sums)} gradients, DistTensors among them"
        raise ValueError(f"{message}: call `apply` without `synchronize`. Received: {received}")


def check_parts(parts: list[ProcessPart]) -> None:
    """Raise if no process has a gradient, or if the slots, names or reductions of processes differ."""
    if not any(part.count for part in parts):
        raise refusal(ValueError, "Call the accumulator first: no process called it since the last reset.", count=0)
    first_rank, first = next((rank, part) for rank, part in enumerate(parts) if part.was_called)
    for rank, part in enumerate(parts):
        if part.was_called and part.names != first.names:
            message = "All processes must accumulate the same parameters: freeze a parameter in all of them or in none."
            difference = _difference(part.names, rank, first.names, first_rank)
            raise ValueError(f"{message} Received: {difference} of the group")
        needs = [("the same reduction", repr(part.reduction), repr(first.reduction))]
        needs += [("as many gradients", str(len(part.slots)), str(len(first.slots)))] if part.was_called else []
        for need, value, other in needs:
            if value != other:
                received = f"{value} of process {rank} of the group, {other} of process {first_rank}"
                raise ValueError(f"All processes must have {need}. Received: {received}")
    for place, column in enumerate(zip(*(part.slots for part in parts if part.was_called))):
        filled = [slot for slot in column if slot is not None]
        incomplete = first.names is None and 0 < len(filled) < len(column)  # in a list: in all processes or in none
        if incomplete or any(slot != filled[0] for slot in filled):
            message = "All processes must have gradients of the same shape and type."
            raise ValueError(f"{message} Received: {list(column)} at {place}")


def _difference(names: Optional[list[str]], rank: int, others: Optional[list[str]], other: int) -> str:
    """Describe how the names of two processes differ; None means a list of gradients."""
    for mine, theirs, has, lacks in ((names, others, rank, other), (others, names, other, rank)):
        only = set(mine or ()) - set(theirs or ())
        if only:
            return f"'{min(only)}' in process {has} and not in process {lacks}"
    return f"another order in process {rank} than in process {other}"


# ---- a state


def check_sums(state: Any, reduction: str) -> None:
    """Raise unless the entries of a state have the right types, are consistent, and of the same reduction."""
    missing = sorted(_KEYS - set(checked_state(state)))
    if missing:
        message = f"The state must come from a GradientAccumulator; it lacks {missing}."
        raise refusal(ValueError, message, keys=list(state))
    if state["reduction"] != reduction:
        message = f"The state must be of an accumulator with the same `reduction`, {shown(reduction)}."
        raise refusal(ValueError, message, reduction=state["reduction"])
    slots, step = checked_steps(state["slots"], "slots"), checked_steps(state["step"], "step")
    count = checked_steps(state["count"], "count", least=step)
    checked_number(state["weight"], "weight")
    synchronized = checked_bool(state["synchronized"], "synchronized")
    names, received, sums = state["names"], state["received"], state["gradients"]
    if count > step and not synchronized:
        raise refusal(ValueError, "`count` must equal `step` before `synchronize`.", count=count, step=step)
    for key, listed in (("received", received), ("names", received if names is None else names)):
        if not isinstance(listed, (list, tuple)) or len(listed) != slots:
            size = len(listed) if isinstance(listed, (list, tuple)) else type(listed).__name__
            raise ValueError(f"`{key}` must be a list with an entry for each slot. Received: {key} of {size}, {slots=}")
    if any(received) and not count:
        raise refusal(ValueError, "`count` must be at least 1 where gradients were received.", count=0)
    places = {str(place): flag for place, flag in enumerate(received)}
    if not isinstance(sums, dict) or not {place for place, flag in places.items() if flag} <= set(sums) <= set(places):
        keys = sorted(map(str, sums))[:8] if isinstance(sums, dict) else type(sums).__name__
        message = "`gradients` must be a dict with the sum of each slot that received a gradient, under its number."
        raise ValueError(f"{message} Received: gradients of {keys}, {slots=}")
    for place, total in sums.items():
        dtype = getattr(total, "dtype", None)
        if dtype_name(dtype) not in ("float32", "float64"):
            received = f"{type(total).__name__} of {dtype=!s} at {place}"
            raise ValueError(f"`gradients` must be Tensors or arrays of float32 or float64. Received: {received}")
