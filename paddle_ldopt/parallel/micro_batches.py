"""Run forward and backward over the micro-batches of a step, in Paddle's pipeline engine or in a plain loop."""

import contextlib
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.meta_parallel import PipelineLayer, PipelineParallel

from .. import _compat
from .._checks import refusal
from .gradients import ProcessGroups, sum_of_processes
from .scalers import LossScaler


class MicroBatches:
    r"""Set the gradients of a step: sums over micro-batches of the gradients of scaled losses.

    With `per_token` a loss is a pair: the sum over tokens, and their number.
    """

    def __init__(self, groups: ProcessGroups, count: int, per_token: bool) -> None:
        network = groups.network
        layers = network._layers if _compat.is_pipeline_engine(network) else network
        self._pipeline_layer: Any = layers if isinstance(layers, PipelineLayer) else None
        if _compat.is_pipeline_engine(network) and network.accumulate_steps != count:
            message = "`micro_batch_num` must be the strategy's pipeline_configs['accumulate_steps']."
            raise refusal(ValueError, message, micro_batch_num=count, accumulate_steps=network.accumulate_steps)
        if self._pipeline_layer is not None:
            losses = self._pipeline_layer._loss_fn
            if len(losses) != 1 or not callable(losses[0]):
                raise refusal(ValueError, "The PipelineLayer must have one loss function.", loss_fn=losses)
        self._groups, self._count, self._per_token = groups, count, per_token
        self.has_stages = isinstance(network, PipelineParallel)
        # losses are divided by the number of micro-batches before backward, unless the strategy delays this
        self._share = 1.0 if self.has_stages and network._delay_scale_loss else 1.0 / count
        self._loss_function: Any = None  # the PipelineLayer's
        self._shapes: Any = None  # of the inputs in the last step
        self._next_shapes: Any = None  # of the inputs checked last
        self._loss: Any = None  # mean over the micro-batches of the last step, shape [1], the same on all stages
        self._tokens: list[Any] = []  # tokens of each micro-batch of the last step, in the stage of the loss

    def check(self, inputs: tuple[Any, ...]) -> None:
        """Raise unless a step can run on these inputs."""
        if self._pipeline_layer is not None and len(inputs) < 2:
            raise refusal(TypeError, "A PipelineLayer's step takes inputs and labels.", inputs=len(inputs))
        tensors = [value for value in paddle.utils.flatten(inputs) if value is not None]
        shapes = [list(value.shape) if isinstance(value, paddle.Tensor) else None for value in tensors]
        for value, shape in zip(tensors, shapes):
            if not shape or shape[0] == 0 or shape[0] % self._count:
                message = "An input must be None, a Tensor whose first dimension is a multiple of `micro_batch_num`, or"
                kind = {"type": type(value).__name__, "shape": shape, "micro_batch_num": self._count}
                raise refusal(TypeError if shape is None else ValueError, f"{message} a tuple of these.", **kind)
        fixed = self.has_stages and not self._groups.network._dynamic_shape
        if fixed and self._shapes not in (None, shapes):
            message = "Stages learn their shapes in the first step: give inputs of the same shapes,"
            todo = "or set enable_dynamic_shape in the strategy's pp_configs."
            raise refusal(ValueError, f"{message} {todo}", shapes=shapes, first_step=self._shapes)
        self._next_shapes = shapes

    def forward_backward(self, inputs: tuple[Any, ...], scaler: LossScaler) -> None:
        """Run forward and backward over the micro-batches of checked inputs."""
        self._tokens, self._shapes = [], self._next_shapes
        if self._pipeline_layer is not None:
            self._loss_function = self._pipeline_layer._loss_fn[0]
        engine, layer = self._groups.network, self._pipeline_layer
        micro_batches = tuple(_split(value, self._count) for value in inputs)
        if self.has_stages:
            data = [micro_batches[0] if len(micro_batches) == 2 else micro_batches[:-1], micro_batches[-1]]
            data = engine._prepare_training(data, self._groups.optimizer, None)
            before, layer._loss_fn = layer._loss_fn, [self._loss_of]
            try:
                loss = engine.forward_backward_pipeline(data, scaler)
            finally:
                layer._loss_fn = before
        else:
            loss = self._run_loop(micro_batches, scaler)
        self._loss = loss.detach().astype("float32").reshape([1])

    def mean(self) -> tuple[paddle.Tensor, float]:
        """Return the mean loss, shape [], and the factor that turns the gradients into a mean, still scaled.

        Both are means over micro-batches and processes, or over tokens.
        """
        groups = self._groups
        if not self._per_token:
            loss = sum_of_processes(groups.data_groups, self._loss) / groups.data_ranks
            return loss.reshape([]), 1.0 / (self._count * self._share)
        tokens = paddle.add_n(self._tokens) if self._tokens else paddle.zeros([1])
        stages = groups.group("pipe")
        if stages is not None:
            dist.broadcast(tokens, src=stages.ranks[-1], group=stages)
        loss_and_tokens = sum_of_processes(groups.data_groups, paddle.concat([self._loss * self._count, tokens]))
        total = loss_and_tokens[1].item()
        if not total > 0:
            raise ValueError(f"A step must have at least one token. Received: {total:g} tokens in all micro-batches")
        return loss_and_tokens[0] / total, groups.data_ranks / (total * self._share)

    def _run_loop(self, micro_batches: tuple[Any, ...], scaler: LossScaler) -> paddle.Tensor:
        network = self._groups.network
        network.train()
        total = paddle.zeros([1])
        # the reduction follows the overflow check, once
        with network.no_sync() if isinstance(network, paddle.DataParallel) else contextlib.nullcontext():
            for i in range(self._count):
                inputs = [_pick(value, i) for value in micro_batches]
                if self._pipeline_layer is None:
                    loss = self._as_loss(network(*inputs))
                else:
                    loss = self._loss_of(network(inputs[0] if len(inputs) == 2 else tuple(inputs[:-1])), inputs[-1])
                with paddle.amp.auto_cast(enable=False):
                    loss = loss * self._share
                    scaler.scale(loss).backward()
                    total += loss.detach()
        return total

    def _loss_of(self, output: Any, labels: Any) -> paddle.Tensor:
        return self._as_loss(self._loss_function(output, labels))

    def _as_loss(self, result: Any) -> paddle.Tensor:
        """Return the loss in float32; the engine sends only float32 and float16, in which sums overflow."""
        is_pair = isinstance(result, (tuple, list)) and len(result) == 2
        loss, tokens = result if is_pair and self._per_token else (result, None)
        if is_pair < self._per_token or not isinstance(loss, paddle.Tensor) or loss.size != 1:
            message = (
                "A loss must be a Tensor of one element, with `calculate_per_token_loss` a pair: the sum over tokens,"
            )
            kind = {"type": type(loss).__name__, "shape": getattr(loss, "shape", None)}
            raise refusal(TypeError, f"{message} and their number.", **kind)
        if self._per_token:
            tokens = tokens.detach() if isinstance(tokens, paddle.Tensor) else paddle.to_tensor(tokens)
            self._tokens.append(tokens.astype("float32").reshape([1]))
        return loss.astype("float32").reshape([1])


def _split(value: Any, count: int) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_split(item, count) for item in value)
    return None if value is None else paddle.split(value, count)


def _pick(value: Any, i: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_pick(item, i) for item in value)
    return None if value is None else value[i]
