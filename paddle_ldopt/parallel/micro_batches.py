"""Run forward and backward over the micro-batches of a step, in Paddle's pipeline engine or in a plain loop."""

import contextlib
from functools import partial
from typing import Any, Callable, Optional

import paddle
import paddle.distributed as dist
from paddle.utils import map_structure

from .. import _paddle
from .._messages import refusal
from .process_groups import ProcessGroups, sum_of_processes
from .scalers import LossScaler


class MicroBatches:
    r"""Set the gradients of a step: sums over micro-batches of the gradients of scaled losses.

    With `per_token` a loss is a pair: the sum over tokens, and their number.
    """

    def __init__(self, groups: ProcessGroups, count: int, per_token: bool) -> None:
        network = groups.network
        layers = _paddle.engine_layers(network) if _paddle.is_pipeline_engine(network) else network
        self._pipeline_layer: Any = layers if isinstance(layers, _paddle.pipeline_layer()) else None
        _check_pipeline(network, self._pipeline_layer, count)
        self._groups, self._count, self._per_token = groups, count, per_token
        self._has_stages = isinstance(network, _paddle.pipeline_engine())
        # losses are divided by the number of micro-batches before backward, unless the strategy delays this
        self._share = 1.0 if self._has_stages and _paddle.delays_scale(network) else 1.0 / count
        self._loss_function: Any = None  # the PipelineLayer's
        self._shapes: Any = None  # of the inputs in the last step
        self._next_shapes: Any = None  # of the inputs checked last
        self._outputs: Any = None  # of this stage for a micro-batch, each Tensor as a function that returns zeros
        self._error: Optional[Exception] = None  # the first error of this stage in this step
        self._loss: Any = None  # mean over the micro-batches of the last step, shape [1], the same on all stages
        self._tokens: list[Any] = []  # tokens of each micro-batch of the last step, in the stage of the loss

    def check(self, inputs: tuple[Any, ...]) -> None:
        """Raise unless a step can run on these inputs."""
        if self._pipeline_layer is not None and len(inputs) < 2:
            raise refusal(TypeError, "A PipelineLayer's step takes inputs and labels.", inputs=len(inputs))
        shapes = self._next_shapes = _checked_shapes(inputs, self._count)
        fixed = self._has_stages and not _paddle.has_dynamic_shape(self._groups.network)
        if fixed and self._shapes not in (None, shapes):
            message = "Stages learn their shapes in the first step: give inputs of the same shapes,"
            todo = "or set enable_dynamic_shape in the strategy's pp_configs."
            raise refusal(ValueError, f"{message} {todo}", shapes=shapes, first_step=self._shapes)

    def forward_backward(self, inputs: tuple[Any, ...], scaler: LossScaler) -> None:
        """Run forward and backward over the micro-batches of checked inputs."""
        self._tokens = []
        if self._pipeline_layer is not None:
            self._loss_function = _paddle.loss_functions(self._pipeline_layer)[0]
        run = self._run_engine if self._has_stages else self._run_loop
        micro_batches = tuple(_split(value, self._count) for value in inputs)
        self._loss = run(micro_batches, scaler).detach().astype("float32").reshape([1])

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

    # ---- in one stage, or without a pipeline

    def _run_loop(self, micro_batches: tuple[Any, ...], scaler: LossScaler) -> paddle.Tensor:
        network = self._groups.network
        network.train()
        total = paddle.zeros([1])
        # the reduction follows the overflow check, once
        with network.no_sync() if isinstance(network, paddle.DataParallel) else contextlib.nullcontext():
            for i in range(self._count):
                loss = self._forward(*(_pick(value, i) for value in micro_batches))
                with paddle.amp.auto_cast(enable=False):
                    loss = loss * self._share
                    scaler.scale(loss).backward()
                    total += loss.detach()
        return total

    def _forward(self, *inputs: Any) -> paddle.Tensor:
        network = self._groups.network
        if self._pipeline_layer is None:
            return self._as_loss(network(*inputs))
        return self._loss_of(network(inputs[0] if len(inputs) == 2 else inputs[:-1]), inputs[-1])

    def _loss_of(self, output: Any, labels: Any) -> paddle.Tensor:
        return self._as_loss(self._loss_function(output, labels))

    def _as_loss(self, result: Any) -> paddle.Tensor:
        """Return the loss in float32; the engine sends only float32 and float16, in which sums overflow."""
        _check_loss(result, self._per_token)
        if self._per_token:
            result, tokens = result
            tokens = tokens.detach() if isinstance(tokens, paddle.Tensor) else paddle.to_tensor(tokens)
            self._tokens.append(tokens.astype("float32").reshape([1]))
        return result.astype("float32").reshape([1])

    # ---- in Paddle's engine. The other stages wait for messages of this one, so after an error it completes its
    # schedule with zeros, and raises at the end

    def _run_engine(self, micro_batches: tuple[Any, ...], scaler: LossScaler) -> paddle.Tensor:
        engine, layers = self._groups.network, self._pipeline_layer
        self._error, self._shapes = None, self._next_shapes
        data = [micro_batches[0] if len(micro_batches) == 2 else micro_batches[:-1], micro_batches[-1]]
        data = _paddle.prepare_training(engine)(data, self._groups.optimizer, None)
        loss = self._until_error(self._loss_of, lambda *_: paddle.zeros([1]))
        forward = self._until_error(partial(self._noted, layers.forward), self._zero_outputs)
        backward = self._until_error(_paddle.backward_step(engine), _zero_gradients)
        try:
            with _paddle.stage_functions(engine, loss, forward, backward):
                result = engine.forward_backward_pipeline(data, scaler)
        except Exception as error:  # the engine finally checks for the calls that an error skipped
            self._error = self._error or error
        if self._error is not None:
            raise self._error
        return result

    def _until_error(self, function: Callable[..., Any], zeros: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `zeros` instead after the first error of this stage in a step."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._error is None:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    self._error = error
            return zeros(*args)

        return call

    def _noted(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of this stage, and record their shapes."""
        output = forward(*args, **kwargs)
        self._outputs = map_structure(_zeros_later, output)
        return output

    def _zero_outputs(self, _: Any) -> Any:
        if self._error and self._outputs is None and not self._groups.network.is_pipeline_last_stage():
            raise self._error  # the shapes for the next stage are unknown: it times out
        return map_structure(lambda zeros: None if zeros is None else zeros(), self._outputs)


def _zeros_later(output: Optional[paddle.Tensor]) -> Any:
    """Return a function that returns zeros like `output`, without keeping it in memory; None for None."""
    return None if output is None else partial(_zeros, output.shape, output.dtype, output.stop_gradient)


def _zeros(shape: list[int], dtype: Any, stop_gradient: bool) -> paddle.Tensor:
    zeros = paddle.zeros(shape, dtype)
    zeros.stop_gradient = stop_gradient
    return zeros


def _zero_gradients(inputs: Any, *_: Any) -> Any:
    """Return zeros in place of the gradients that a stage sends back for its inputs."""
    if isinstance(inputs, tuple):
        return tuple(paddle.zeros_like(tensor) for tensor in inputs if not tensor.stop_gradient)
    return None if inputs is None else paddle.zeros_like(inputs)


def _split(value: Any, count: int) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_split(item, count) for item in value)
    return None if value is None else paddle.split(value, count)


def _pick(value: Any, i: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_pick(item, i) for item in value)
    return None if value is None else value[i]


def _check_pipeline(network: paddle.nn.Layer, pipeline_layer: Any, micro_batch_num: int) -> None:
    """Raise if the engine has another number of micro-batches, or the PipelineLayer not exactly one loss function."""
    if _paddle.is_pipeline_engine(network) and network.accumulate_steps != micro_batch_num:
        message = "`micro_batch_num` must be the strategy's pipeline_configs['accumulate_steps']."
        raise refusal(ValueError, message, micro_batch_num=micro_batch_num, accumulate_steps=network.accumulate_steps)
    if pipeline_layer is not None:
        losses = _paddle.loss_functions(pipeline_layer)
        if len(losses) != 1 or not callable(losses[0]):
            raise refusal(ValueError, "The PipelineLayer must have one loss function.", loss_fn=losses)


def _checked_shapes(inputs: tuple[Any, ...], micro_batch_num: int) -> list[list[int]]:
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


def _check_loss(result: Any, per_token: bool) -> None:
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
