"""Run forward and backward over the micro-batches of a step, in Paddle's pipeline engine or in a plain loop."""

import contextlib
from functools import partial

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.meta_parallel import PipelineLayer, PipelineParallel
from paddle.distributed.fleet.meta_parallel.pipeline_parallel import NoPipelineParallel

__all__ = ["MicroBatches"]


class MicroBatches:
    r"""Leave :math:`\text{scale} \cdot \text{share} \cdot \sum_i \nabla l_i` as gradients, of micro-batch losses l.

    Args:
        layout (Layout): the network and its processes.
        count (int): micro-batches of a step.
        per_token (bool): whether a loss is a pair: the sum over tokens, and how many there are.

    Raises:
        ValueError: the engine is set to another number of micro-batches; not one loss function.
    """

    def __init__(self, layout, count, per_token):
        self._layout, self._count, self._per_token = layout, count, per_token
        network = layout.network
        self._engine = isinstance(network, (PipelineParallel, NoPipelineParallel))
        self._shapes = None  # of the inputs of the first step that was run
        self._next_shapes = None  # of those that were split last
        self._outputs = None  # of this stage for a micro-batch, a function that makes zeros for each Tensor
        self._error = None  # of this stage in this step
        self._tokens = []  # of the micro-batches of a step, where the loss is computed
        if self._engine and network.accumulate_steps != count:
            raise ValueError(
                "`micro_batch_num` must be the strategy's pipeline_configs['accumulate_steps']. "
                f"Received: micro_batch_num={count}, accumulate_steps={network.accumulate_steps}"
            )
        self._pipeline_layer = network._layers if self._engine else network
        if isinstance(self._pipeline_layer, PipelineLayer):
            losses = self._pipeline_layer._loss_fn
            if len(losses) != 1 or not callable(losses[0]):
                raise ValueError(f"The PipelineLayer must have one loss function. Received: loss_fn={losses}")
        else:
            self._pipeline_layer = None
        # a loss is divided by their number before backward, unless the strategy delays that
        self.share = 1.0 if getattr(network, "_delay_scale_loss", False) else 1.0 / count

    def split(self, inputs):
        """Return inputs as they came, each Tensor replaced by the list of its micro-batches.

        Args:
            inputs (tuple): of the whole step, this process's part; for a PipelineLayer the last is the labels.
        """
        if self._pipeline_layer is not None and len(inputs) < 2:
            raise TypeError(f"A PipelineLayer's step takes inputs and labels. Received: {len(inputs)} inputs")
        shapes = [list(tensor.shape) for tensor in _tensors(inputs)]
        for shape in shapes:
            if not shape or shape[0] == 0 or shape[0] % self._count:
                raise ValueError(
                    "The first dimension of an input must be a multiple of `micro_batch_num`. "
                    f"Received: shape={shape}, micro_batch_num={self._count}"
                )
        network = self._layout.network
        fixed = isinstance(network, PipelineParallel) and not network._dynamic_shape
        if fixed and self._shapes not in (None, shapes):
            raise ValueError(
                "Stages know each other's shapes from the first step: give inputs of the same shapes, or set "
                "enable_dynamic_shape in the strategy's pp_configs. "
                f"Received: shapes={shapes} after {self._shapes}"
            )
        self._next_shapes = shapes
        return tuple(_split(value, self._count) for value in inputs)

    def run(self, parts, scaler):
        """Run a step and return the mean of its micro-batch losses, shape [1], the same on all stages.

        Args:
            parts (tuple): the inputs as `split` gives them.
            scaler (LossScaler): by what the loss is multiplied.
        """
        self._tokens = []
        loss = self._run_engine(parts, scaler) if self._engine else self._run_loop(parts, scaler)
        return loss.detach().astype("float32").reshape([1])

    def tokens(self):
        """Return the number of tokens of the step that was run, shape [1], the same on all stages."""
        tokens = paddle.add_n(self._tokens) if self._tokens else paddle.zeros([1])
        stages = self._layout.pipe_group
        if stages is not None:
            dist.broadcast(tokens, src=stages.ranks[-1], group=stages)
        return tokens

    # ---- forward and backward

    def _run_engine(self, parts, scaler):
        network, self._error = self._layout.network, None
        self._shapes = self._next_shapes
        data = [parts[0] if len(parts) == 2 else parts[:-1], parts[-1]]
        with self._own_calls():
            data = network._prepare_training(data, self._layout.optimizer, None)
            try:
                loss = network.forward_backward_pipeline(data, scaler)
            except Exception as error:  # at the end the engine counts the calls that an error has left out
                self._error = self._error or error
        failed, self._error = self._error, None
        if failed is not None:
            raise failed
        return loss

    @contextlib.contextmanager
    def _own_calls(self):
        """Have the engine call `_loss_of` for the loss function, and go through its schedule after an error.

        The other stages wait for the messages of this one: it sends zeros, and raises when the schedule is over.
        Evaluations find everything as it was.
        """
        engine, layer = self._layout.network, self._pipeline_layer
        losses, original = layer._loss_fn, layer._loss_fn[0]
        losses[0] = lambda output, labels: self._loss_of(original(output, labels))
        own = {}
        if isinstance(engine, PipelineParallel):
            losses[0] = self._until_error(losses[0], lambda *_: paddle.zeros([1]))
            own[layer, "forward"] = self._until_error(self._noting(layer.forward), self._stand_in)
            own[engine, "_backward_step"] = self._until_error(engine._backward_step, _zero_gradients)
        before = {(owner, name): vars(owner).get(name) for owner, name in own}
        for (owner, name), function in own.items():
            setattr(owner, name, function)
        try:
            yield
        finally:
            losses[0] = original
            for (owner, name), function in before.items():
                delattr(owner, name) if function is None else setattr(owner, name, function)

    def _until_error(self, function, stand_in):
        """Return a function that calls `stand_in` from the first error of this stage in this step."""

        def call(*args, **kwargs):
            if self._error is None:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    self._error = error
            return stand_in(*args)

        return call

    def _noting(self, forward):
        """Return a function that takes note of what this stage sends."""

        def call(*args, **kwargs):
            output = forward(*args, **kwargs)
            self._outputs = _mapped(
                output, lambda tensor: partial(_zeros, tensor.shape, tensor.dtype, tensor.stop_gradient)
            )
            return output

        return call

    def _stand_in(self, _):
        if self._error and self._outputs is None and not self._layout.network.is_pipeline_last_stage():
            raise self._error  # nobody knows what the next stage waits for: it times out
        return _mapped(self._outputs, lambda zeros: zeros())

    def _run_loop(self, parts, scaler):
        network = self._layout.network
        network.train()
        total = paddle.zeros([1])
        # the reduction comes after the overflow check, and once
        with network.no_sync() if isinstance(network, paddle.DataParallel) else contextlib.nullcontext():
            for i in range(self._count):
                loss = self._forward(*(_pick(part, i) for part in parts)) * self.share
                with paddle.amp.auto_cast(enable=False):
                    scaler.scale(loss).backward()
                total += loss.detach()
        return total

    def _forward(self, *inputs):
        network = self._layout.network
        if self._pipeline_layer is None:
            return self._loss_of(network(*inputs))
        output = network(inputs[0] if len(inputs) == 2 else inputs[:-1])
        return self._loss_of(self._pipeline_layer._loss_fn[0](output, inputs[-1]))

    def _loss_of(self, result):
        """Return the loss in float32: the engine sends no other type than that and float16, which sums overflow."""
        if self._per_token:
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise TypeError(
                    "With `calculate_per_token_loss` a loss is a pair: the sum over tokens, and how many there are. "
                    f"Received: {type(result).__name__}"
                )
            result, tokens = result
            tokens = tokens.detach() if isinstance(tokens, paddle.Tensor) else paddle.to_tensor(tokens)
            self._tokens.append(tokens.astype("float32").reshape([1]))
        if not isinstance(result, paddle.Tensor) or result.size != 1:
            raise TypeError(f"A loss must be a Tensor of one element. Received: {_described(result)}")
        return result.astype("float32").reshape([1])


def _tensors(value):
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    if value is None:
        return []
    if not isinstance(value, paddle.Tensor):
        raise TypeError(f"An input must be a Tensor, a tuple of them or None. Received: {_described(value)}")
    return [value]


def _mapped(value, function):
    """Return the outputs of a stage (a Tensor, a tuple or dict of them) with `function` of each item."""
    if isinstance(value, dict):
        return {name: _mapped(item, function) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(item, function) for item in value)
    return None if value is None else function(value)


def _zeros(shape, dtype, stop_gradient):
    zeros = paddle.zeros(shape, dtype)
    zeros.stop_gradient = stop_gradient
    return zeros


def _zero_gradients(inputs, *_):
    """Return zeros in place of the gradients that a stage sends back for its inputs."""
    if isinstance(inputs, tuple):
        return tuple(paddle.zeros_like(tensor) for tensor in inputs if not tensor.stop_gradient)
    return None if inputs is None else paddle.zeros_like(inputs)


def _split(value, count):
    if isinstance(value, (tuple, list)):
        return tuple(_split(item, count) for item in value)
    return None if value is None else paddle.split(value, count)


def _pick(value, i):
    if isinstance(value, tuple):
        return tuple(_pick(item, i) for item in value)
    return None if value is None else value[i]


def _described(value):
    shape = f" of shape {list(value.shape)}" if isinstance(value, paddle.Tensor) else ""
    return type(value).__name__ + shape
