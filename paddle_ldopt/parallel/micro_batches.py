"""Run forward and backward over the micro-batches of a step, in Paddle's pipeline engine or in a plain loop."""

import contextlib
from functools import partial
from typing import Any, Callable, Optional

import paddle
import paddle.distributed as dist

from .. import _paddle
from .._messages import refusal
from .process_groups import ProcessGroups
from .scalers import LossScaler


class MicroBatches:
    r"""Set the gradients :math:`\text{scale} \cdot \text{share} \cdot \sum_i \nabla l_i` of micro-batch losses l.

    With `per_token` a loss is a pair: the sum over tokens, and their number.
    """

    def __init__(self, groups: ProcessGroups, count: int, per_token: bool) -> None:
        self._groups, self._count, self._per_token = groups, count, per_token
        network = groups.network
        self._shapes: Any = None  # the inputs' shapes in the first step
        self._next_shapes: Any = None  # the shapes of the inputs split last
        self._outputs: Any = None  # its outputs for a micro-batch, each Tensor as a function that returns zeros
        self._error: Optional[Exception] = None  # the first error of this stage in this step
        self._tokens: list[Any] = []  # tokens of each micro-batch of a step, in the stage of the loss
        staged = isinstance(network, _paddle.pipeline_engine())
        is_engine = _paddle.is_pipeline_engine(network)
        if is_engine and network.accumulate_steps != count:
            problem = "`micro_batch_num` must be the strategy's pipeline_configs['accumulate_steps']."
            raise refusal(ValueError, problem, micro_batch_num=count, accumulate_steps=network.accumulate_steps)
        layers = _paddle.engine_layers(network) if is_engine else network
        self._pipeline_layer: Any = layers if isinstance(layers, _paddle.pipeline_layer()) else None
        if self._pipeline_layer is not None:
            losses = _paddle.loss_functions(layers)
            if len(losses) != 1 or not callable(losses[0]):
                raise refusal(ValueError, "The PipelineLayer must have one loss function.", loss_fn=losses)
        # losses are divided by the number of micro-batches before backward, unless the strategy delays this
        self.share = 1.0 if staged and _paddle.delays_scale(network) else 1.0 / count
        self._engine: Any = self._own_engine() if staged else None

    def split(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs of a step with each Tensor as a list of its micro-batches."""
        if self._pipeline_layer is not None and len(inputs) < 2:
            raise refusal(TypeError, "A PipelineLayer's step takes inputs and labels.", inputs=len(inputs))
        shapes = [list(tensor.shape) for tensor in _tensors(inputs)]
        for shape in shapes:
            if not shape or shape[0] == 0 or shape[0] % self._count:
                problem = "The first dimension of an input must be a multiple of `micro_batch_num`."
                raise refusal(ValueError, problem, shape=shape, micro_batch_num=self._count)
        fixed = self._engine is not None and not _paddle.has_dynamic_shape(self._groups.network)
        if fixed and self._shapes not in (None, shapes):
            problem = "Stages learn their shapes in the first step: give inputs of the same shapes,"
            todo = "or set enable_dynamic_shape in the strategy's pp_configs."
            raise refusal(ValueError, f"{problem} {todo}", shapes=shapes, first_step=self._shapes)
        self._next_shapes = shapes
        return tuple(_split(value, self._count) for value in inputs)

    def run(self, parts: tuple[Any, ...], scaler: LossScaler) -> Any:
        """Run a step over the micro-batches of `split`; return its mean loss, shape [1], the same on all stages."""
        self._tokens = []
        loss = self._run_loop(parts, scaler) if self._engine is None else self._run_engine(parts, scaler)
        return loss.detach().astype("float32").reshape([1])

    def tokens(self) -> Any:
        """Return the number of tokens in the last step, shape [1], the same on all stages."""
        tokens = paddle.add_n(self._tokens) if self._tokens else paddle.zeros([1])
        stages = self._groups.group("pipe")
        if stages is not None:
            dist.broadcast(tokens, src=stages.ranks[-1], group=stages)
        return tokens

    # ---- forward and backward

    def _own_engine(self) -> Any:
        """Return the engine with our loss. After an error in this stage it completes its schedule.

        The other stages wait for messages from this stage, so it sends zeros and raises at the end of the schedule.
        """
        return _paddle.engine_with(
            self._groups.network,
            loss=self._until_error(self._loss, lambda *_: paddle.zeros([1])),
            forward=self._until_error(self._noted_forward, self._stand_in),
            guarded=lambda backward: self._until_error(backward, _zero_gradients),
        )

    def _run_engine(self, parts: tuple[Any, ...], scaler: LossScaler) -> Any:
        self._error, self._shapes = None, self._next_shapes
        data = [parts[0] if len(parts) == 2 else parts[:-1], parts[-1]]
        data = _paddle.prepare_training(self._engine)(data, self._groups.optimizer, None)
        try:
            loss = self._engine.forward_backward_pipeline(data, scaler)
        except Exception as error:  # the engine finally checks for the calls that an error skipped
            self._error = self._error or error
        failed, self._error = self._error, None
        if failed is not None:
            raise failed
        return loss

    def _until_error(self, function: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `stand_in` after the first error of this stage in a step."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._error is None:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    self._error = error
            return stand_in(*args)

        return call

    def _noted_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of this stage, and record their shapes."""
        output = self._pipeline_layer.forward(*args, **kwargs)
        self._outputs = _mapped(output, lambda x: partial(_zeros, x.shape, x.dtype, x.stop_gradient))
        return output

    def _stand_in(self, _: Any) -> Any:
        if self._error and self._outputs is None and not self._groups.network.is_pipeline_last_stage():
            raise self._error  # the shapes for the next stage are unknown: it times out
        return _mapped(self._outputs, lambda zeros: zeros())

    def _run_loop(self, parts: tuple[Any, ...], scaler: LossScaler) -> Any:
        network = self._groups.network
        network.train()
        total = paddle.zeros([1])
        # the reduction follows the overflow check, once
        with network.no_sync() if isinstance(network, paddle.DataParallel) else contextlib.nullcontext():
            for i in range(self._count):
                loss = self._forward(*(_pick(part, i) for part in parts))
                with paddle.amp.auto_cast(enable=False):
                    loss = loss * self.share
                    scaler.scale(loss).backward()
                    total += loss.detach()
        return total

    def _forward(self, *inputs: Any) -> Any:
        network = self._groups.network
        if self._pipeline_layer is None:
            return self._as_loss(network(*inputs))
        return self._loss(network(inputs[0] if len(inputs) == 2 else inputs[:-1]), inputs[-1])

    def _loss(self, output: Any, labels: Any) -> Any:
        return self._as_loss(_paddle.loss_functions(self._pipeline_layer)[0](output, labels))

    def _as_loss(self, result: Any) -> Any:
        """Return the loss in float32; the engine sends only float32 and float16, in which sums overflow."""
        if self._per_token:
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                problem = "With `calculate_per_token_loss` a loss is a pair: the sum over tokens, and their number."
                raise TypeError(f"{problem} Received: {type(result).__name__}")
            result, tokens = result
            tokens = tokens.detach() if isinstance(tokens, paddle.Tensor) else paddle.to_tensor(tokens)
            self._tokens.append(tokens.astype("float32").reshape([1]))
        if not isinstance(result, paddle.Tensor) or result.size != 1:
            raise TypeError(f"A loss must be a Tensor of one element. Received: {_described(result)}")
        return result.astype("float32").reshape([1])


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    if value is not None and not isinstance(value, paddle.Tensor):
        raise TypeError(f"An input must be a Tensor, a tuple of them or None. Received: {_described(value)}")
    return [] if value is None else [value]


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return the outputs of a stage (a Tensor, a tuple or dict of them) with `function` of each item."""
    if isinstance(value, dict):
        return {name: _mapped(item, function) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(item, function) for item in value)
    return None if value is None else function(value)


def _zeros(shape: list[int], dtype: Any, stop_gradient: bool) -> Any:
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


def _described(value: Any) -> str:
    shape = f" of shape {list(value.shape)}" if isinstance(value, paddle.Tensor) else ""
    return type(value).__name__ + shape
