"""Run forward and backward over the micro-batches of a step, in Paddle's pipeline engine or in a plain loop."""

import contextlib

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
        self._shapes = None  # of the inputs of the first step
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

    def run(self, inputs, scaler):
        """Run a step and return its loss.

        Args:
            inputs (tuple): of the whole step, this process's part; for a PipelineLayer the last is the labels.
            scaler (LossScaler): by what the loss is multiplied.

        Returns:
            (Tensor, Tensor|None): the mean of the micro-batch losses, shape [1]; their tokens, if it is per token. The
            same on all stages.
        """
        parts = self._split(inputs)
        self._tokens = []
        loss = self._run_engine(parts, scaler) if self._engine else self._run_loop(parts, scaler)
        return loss.detach().astype("float32").reshape([1]), self._token_count() if self._per_token else None

    # ---- inputs

    def _split(self, inputs):
        """Return inputs as they came, each Tensor replaced by the list of its micro-batches."""
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
        if isinstance(network, PipelineParallel) and not network._dynamic_shape:
            if self._shapes not in (None, shapes):
                raise ValueError(
                    "Stages know each other's shapes from the first step: give inputs of the same shapes, or set "
                    "enable_dynamic_shape in the strategy's pp_configs. "
                    f"Received: shapes={shapes} after {self._shapes}"
                )
            self._shapes = shapes
        return tuple(_split(value, self._count) for value in inputs)

    # ---- forward and backward

    def _run_engine(self, parts, scaler):
        network = self._layout.network
        data = [parts[0] if len(parts) == 2 else parts[:-1], parts[-1]]
        with self._own_loss():
            data = network._prepare_training(data, self._layout.optimizer, None)
            return network.forward_backward_pipeline(data, scaler)

    @contextlib.contextmanager
    def _own_loss(self):
        """Have the engine call `_loss_of` for the loss function, which evaluations find as it was."""
        losses = self._pipeline_layer._loss_fn
        original = losses[0]
        losses[0] = lambda output, labels: self._loss_of(original(output, labels))
        try:
            yield
        finally:
            losses[0] = original

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

    def _token_count(self):
        tokens = paddle.add_n(self._tokens) if self._tokens else paddle.zeros([1])
        stages = self._layout.pipe_group
        if stages is not None:
            dist.broadcast(tokens, src=stages.ranks[-1], group=stages)
        return tokens


def _tensors(value):
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    if value is None:
        return []
    if not isinstance(value, paddle.Tensor):
        raise TypeError(f"An input must be a Tensor, a tuple of them or None. Received: {_described(value)}")
    return [value]


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
