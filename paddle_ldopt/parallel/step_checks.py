"""Checks of a `PipelineWithLossScale`: its arguments when it is built, and the inputs of each step."""

import math
from typing import Any, Optional

import paddle
import paddle.distributed as dist
from paddle.optimizer import Optimizer

from .. import _paddle
from .._checks import checked_bool, checked_number
from .._messages import refusal, wrong_type

_MODES = "`fleet.distributed_model` (pipeline, data, tensor parallel, sharding stage 1) or `paddle.DataParallel`"


def checked_norms(clips: Any, max_norm: Any, skips: Any, spike: Any) -> tuple[Optional[float], float]:
    """Return the norm to clip to, None for no clipping, and the norm from which updates are skipped, inf for never."""
    clips = checked_bool(clips, "use_clip_grad")
    max_norm = checked_number(max_norm, "max_grad_norm", ends="(]")
    skips = checked_bool(skips, "use_skip_data_by_global_norm")
    spike = checked_number(spike, "global_norm_spike_threshold", ends="(]")
    _check_effect("max_grad_norm", max_norm, 1.0, "use_clip_grad", clips)
    _check_effect("use_skip_data_by_global_norm", skips, False, "use_clip_grad", clips)
    _check_effect("global_norm_spike_threshold", spike, 1.0, "use_skip_data_by_global_norm", skips)
    return max_norm if clips else None, spike if skips else math.inf


def _check_effect(name: str, value: Any, default: Any, needed: str, is_on: bool) -> None:
    """Raise ValueError for an argument without effect unless another one is set."""
    if value != default and not is_on:
        message = f"`{name}` has no effect without `{needed}`: leave it out, or set {needed}=True."
        raise refusal(ValueError, message, **{name: value, needed: False})


def check_parallel_mode(network: paddle.nn.Layer, optimizer: Optimizer) -> None:
    """Raise unless the step can train this network with this optimizer in the present processes."""
    _paddle.checked_model(network, "network")
    if not isinstance(_paddle.unwrap(optimizer), paddle.optimizer.Optimizer):
        raise wrong_type(optimizer, "optimizer", "a Paddle optimizer")
    processes = dist.get_world_size()
    received = f"Received: network of type {type(network).__name__} in {processes} process(es)"
    overlaps = _paddle.overlaps(network)
    if overlaps:
        message = "Gradients must be reduced after the overflow check: disable this in the strategy's pp_configs."
        raise refusal(ValueError, message, **dict.fromkeys(overlaps, True))
    layers, engine = _paddle.unwrap_model(network), _paddle.pipeline_engine()
    chunks = layers.get_num_virtual_stages() if isinstance(layers, _paddle.pipeline_layer()) else 1
    if chunks > 1 or isinstance(network, engine) and type(network) is not engine:
        message = "A stage must be one piece, run by 1F1B: leave out num_virtual_pipeline_stages and use_dualpipev."
        raise ValueError(f"{message} {received}")
    topology = _paddle.topology_of(network)
    if topology is None and processes > 1 and not isinstance(network, paddle.DataParallel):
        raise ValueError(f"With several processes `network` must be wrapped by {_MODES}. {received}")
    if topology is not None:
        axes = ("data", "sharding", "pipe", "model")
        degrees = {axis: getattr(topology, f"get_{axis}_parallel_world_size")() for axis in axes}
        if math.prod(degrees.values()) != processes:
            message = "The parallel mode must be pipeline, data, tensor parallel, sharding stage 1 or a combination."
            raise refusal(ValueError, message, **degrees, processes=processes)
        if not isinstance(optimizer, _paddle.hybrid_optimizer()):
            message = "`optimizer` must come from `fleet.distributed_optimizer` if the network comes from `fleet`."
            raise ValueError(f"{message} Received: optimizer of type {type(optimizer).__name__}")
        _paddle.check_own_gradients("the overflow check")


def check_optimizer(network: paddle.nn.Layer, optimizer: Optimizer, parameters: list[paddle.Tensor]) -> None:
    """Raise if the optimizer clips gradients itself, or trains `parameters` of another network."""
    inner = _paddle.unwrap(optimizer)
    groups = [group for group in _paddle.param_groups(inner) or [] if isinstance(group, dict)]
    clips = [_paddle.grad_clip(inner), *(group.get("grad_clip") for group in groups)]
    for clip in clips:
        if clip is not None:
            message = (
                "The step clips over all processes: leave out the optimizer's `grad_clip`, set `max_grad_norm` here."
            )
            raise ValueError(f"{message} Received: grad_clip={type(clip).__name__}")
    network_ids = {id(param) for param in network.parameters()}
    others = [param.name for param in parameters if id(param) not in network_ids]
    if others:
        message = "`optimizer` must train parameters of the network."
        raise ValueError(f"{message} Received: {len(others)} others, such as {others[:3]}")


def check_pipeline(network: paddle.nn.Layer, pipeline_layer: Any, micro_batch_num: int) -> None:
    """Raise if the engine has another number of micro-batches, or the PipelineLayer not exactly one loss function."""
    if _paddle.is_pipeline_engine(network) and network.accumulate_steps != micro_batch_num:
        message = "`micro_batch_num` must be the strategy's pipeline_configs['accumulate_steps']."
        raise refusal(ValueError, message, micro_batch_num=micro_batch_num, accumulate_steps=network.accumulate_steps)
    if pipeline_layer is not None:
        losses = _paddle.loss_functions(pipeline_layer)
        if len(losses) != 1 or not callable(losses[0]):
            raise refusal(ValueError, "The PipelineLayer must have one loss function.", loss_fn=losses)


# ---- in each step


def check_same_trained(trained: list[dict[str, bool]]) -> None:
    """Raise if a name, in the dicts of all processes, is trained in one process and not in another."""
    first: dict[str, tuple[int, bool]] = {}  # only tied weights are in several stages, under one name
    for rank, mine in enumerate(trained):
        for name, is_trained in mine.items():
            other, expected = first.setdefault(name, (rank, is_trained))
            if is_trained != expected:
                trains, lacks = (rank, other) if is_trained else (other, rank)
                advice = f"freeze '{name}' in all or in none, and give every optimizer the same list."
                received = f"'{name}' trained in process {trains} and not in process {lacks}"
                raise ValueError(f"All processes must train the same parameters: {advice} Received: {received}")


def checked_shapes(inputs: tuple[Any, ...], micro_batch_num: int) -> list[list[int]]:
    """Return the shapes of all input Tensors; raise unless each can be split into the micro-batches."""
    shapes = [list(tensor.shape) for tensor in _tensors(inputs)]
    for shape in shapes:
        if not shape or shape[0] == 0 or shape[0] % micro_batch_num:
            message = "The first dimension of an input must be a multiple of `micro_batch_num`."
            raise refusal(ValueError, message, shape=shape, micro_batch_num=micro_batch_num)
    return shapes


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    if value is not None and not isinstance(value, paddle.Tensor):
        raise TypeError(f"An input must be a Tensor, a tuple of them or None. Received: {_described(value)}")
    return [] if value is None else [value]


def check_loss(result: Any, per_token: bool) -> None:
    """Raise TypeError unless a loss is a Tensor of one element, or with `per_token` a pair of it and the tokens."""
    if per_token and not (isinstance(result, (tuple, list)) and len(result) == 2):
        message = "With `calculate_per_token_loss` a loss is a pair: the sum over tokens, and their number."
        raise TypeError(f"{message} Received: {type(result).__name__}")
    loss = result[0] if per_token else result
    if not isinstance(loss, paddle.Tensor) or loss.size != 1:
        raise TypeError(f"A loss must be a Tensor of one element. Received: {_described(loss)}")


def _described(value: Any) -> str:
    shape = f" of shape {list(value.shape)}" if isinstance(value, paddle.Tensor) else ""
    return type(value).__name__ + shape
