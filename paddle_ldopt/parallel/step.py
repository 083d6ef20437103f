"""`PipelineWithLossScale`: a training step over micro-batches with a loss scale, in any parallel mode."""

import contextlib
import math
from typing import Any, Callable, NamedTuple, Optional, Union

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.meta_parallel import PipelineLayer, PipelineParallel
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import ReduceOnPlateau

from .. import _compat
from .._checks import checked_bool, checked_int, checked_number, checked_state, refusal
from ..checkpoint import schedules_of
from ..schedules import MetricSchedule
from .gradients import Gradients, ProcessGroups, sum_of_processes
from .scalers import LossScaler, as_scaler


class MicroBatches:
    """Sets the gradients of a step: sums over micro-batches, of scaled losses."""

    def __init__(self, groups: ProcessGroups, count: int, per_token: bool) -> None:
        network = groups.network
        layers = network._layers if _compat.is_pipeline_engine(network) else network
        self._pipeline_layer: Any = layers if isinstance(layers, PipelineLayer) else None
        if _compat.is_pipeline_engine(network) and network.accumulate_steps != count:
            wrong = "`micro_batch_num` must be the strategy's pipeline_configs['accumulate_steps']."
            raise refusal(ValueError, wrong, micro_batch_num=count, accumulate_steps=network.accumulate_steps)
        if self._pipeline_layer is not None:
            losses = self._pipeline_layer._loss_fn
            if len(losses) != 1 or not callable(losses[0]):
                raise refusal(ValueError, "The PipelineLayer must have one loss function.", loss_fn=losses)
        self._groups, self._count, self._per_token = groups, count, per_token
        self.has_stages = isinstance(network, PipelineParallel)
        # losses are divided before backward, unless the strategy delays this
        self._share = 1.0 if self.has_stages and network._delay_scale_loss else 1.0 / count
        self._loss_function: Any = None
        self._shapes: Any = None  # of the inputs in the last step
        self._next_shapes: Any = None  # of the inputs checked last
        self._loss: Any = None  # mean over the last step's micro-batches, shape [1], on all stages
        self._tokens: list[Any] = []  # of each micro-batch of the last step, in the loss's stage

    def check(self, inputs: tuple[Any, ...]) -> None:
        if self._pipeline_layer is not None and len(inputs) < 2:
            raise refusal(TypeError, "A PipelineLayer's step takes inputs and labels.", inputs=len(inputs))
        tensors: list[Any] = []
        _each(inputs, tensors.append)
        shapes = [list(value.shape) if isinstance(value, paddle.Tensor) else None for value in tensors]
        for value, shape in zip(tensors, shapes):
            if not shape or shape[0] == 0 or shape[0] % self._count:
                error = TypeError if shape is None else ValueError
                wrong = "Inputs must be Tensors with a multiple of `micro_batch_num` rows, tuples of these, or None."
                raise refusal(error, wrong, type=type(value).__name__, shape=shape, micro_batch_num=self._count)
        fixed = self.has_stages and not self._groups.network._dynamic_shape
        if fixed and self._shapes not in (None, shapes):
            wrong = "Give inputs of the same shapes, or set enable_dynamic_shape in the strategy's pp_configs."
            raise refusal(ValueError, wrong, shapes=shapes, first_step=self._shapes)
        self._next_shapes = shapes

    def forward_backward(self, inputs: tuple[Any, ...], scaler: LossScaler) -> None:
        self._tokens, self._shapes = [], self._next_shapes
        if self._pipeline_layer is not None:
            self._loss_function = self._pipeline_layer._loss_fn[0]
        engine, layer = self._groups.network, self._pipeline_layer
        if self.has_stages:
            micro_batches = _each(inputs, lambda value: paddle.split(value, self._count))
            data = [micro_batches[0] if len(micro_batches) == 2 else micro_batches[:-1], micro_batches[-1]]
            data = engine._prepare_training(data, self._groups.optimizer, None)
            before, layer._loss_fn = layer._loss_fn, [self._loss_of]
            try:
                loss = engine.forward_backward_pipeline(data, scaler)
            finally:
                layer._loss_fn = before
        else:
            loss = self._run_loop(inputs, scaler)
        self._loss = loss.detach().astype("float32").reshape([1])

    def mean(self) -> tuple[paddle.Tensor, float]:
        """Return the mean loss, shape [], and the factor that turns the gradients into a scaled mean."""
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

    def _run_loop(self, inputs: tuple[Any, ...], scaler: LossScaler) -> paddle.Tensor:
        network, parts = self._groups.network, _each(inputs, lambda value: iter(paddle.split(value, self._count)))
        if not network.training:  # the user may have put parts into evaluation mode
            network.train()
        total = paddle.zeros([1])
        # the reduction follows the overflow check, once
        with network.no_sync() if isinstance(network, paddle.DataParallel) else contextlib.nullcontext():
            for _ in range(self._count):
                part = _each(parts, next)
                if self._pipeline_layer is None:
                    loss = self._as_loss(network(*part))
                else:
                    loss = self._loss_of(network(part[0] if len(part) == 2 else part[:-1]), part[-1])
                with paddle.amp.auto_cast(enable=False):
                    loss = loss * self._share
                    scaler.scale(loss).backward()
                    total += loss.detach()
        return total

    def _loss_of(self, output: Any, labels: Any) -> paddle.Tensor:
        return self._as_loss(self._loss_function(output, labels))

    def _as_loss(self, result: Any) -> paddle.Tensor:
        """Return the loss in float32: the engine sends only float32 and float16, in which sums overflow."""
        is_pair = isinstance(result, (tuple, list)) and len(result) == 2
        loss, tokens = result if is_pair and self._per_token else (result, None)
        if is_pair < self._per_token or not isinstance(loss, paddle.Tensor) or loss.size != 1:
            wrong = "A loss must be a Tensor of one element; per token, a pair of the sum and the number of tokens."
            raise refusal(TypeError, wrong, type=type(loss).__name__, shape=getattr(loss, "shape", None))
        if self._per_token:
            tokens = tokens.detach() if isinstance(tokens, paddle.Tensor) else paddle.to_tensor(tokens)
            self._tokens.append(tokens.astype("float32").reshape([1]))
        return loss.astype("float32").reshape([1])


def _each(value: Any, act: Callable[[Any], Any]) -> Any:
    """Apply `act` to the leaves of nested tuples and lists."""
    if isinstance(value, (tuple, list)):
        return tuple(_each(item, act) for item in value)
    return None if value is None else act(value)


class StepOutput(NamedTuple):
    """The results of a step, the same in all processes.

    Args:
        loss: mean over micro-batches and data-parallel processes, or over tokens.
        overflow: whether a gradient was not finite; bool of shape []; the others are float32 of shape [].
        loss_scale: the scale of this step.
        learning_rate: the optimizer's rate in this step.
        global_norm: the norm before clipping, inf after an overflow; None without clipping.
    """

    loss: paddle.Tensor
    overflow: paddle.Tensor
    loss_scale: paddle.Tensor
    learning_rate: paddle.Tensor
    global_norm: Optional[paddle.Tensor]


# a class of its own: callers unpack the five values of `StepOutput`
class StepOutputWithLocalNorm(NamedTuple):
    """`StepOutput`, and the norms of this process's gradients.

    Args:
        local_norm: norm of each parameter's gradient, unscaled and before any reduction, in the optimizer's order;
            float32, shape [n].
        size: elements of each gradient; int64 of shape [n].
    """

    loss: paddle.Tensor
    overflow: paddle.Tensor
    loss_scale: paddle.Tensor
    learning_rate: paddle.Tensor
    global_norm: Optional[paddle.Tensor]
    local_norm: paddle.Tensor
    size: paddle.Tensor


class PipelineWithLossScale:
    r"""A training step: scale the loss, run the micro-batches, unscale, check for overflows, clip and update.

    With :math:`l_i` the loss of micro-batch i of m, s the scale, and means over the data-parallel processes:

    .. math::
        g = \frac{1}{s} \operatorname{mean} \frac{1}{m} \sum_i \nabla (s\, l_i) \qquad
        g \leftarrow g \min(1, c / \lVert g \rVert)

    With `calculate_per_token_loss`, losses are pairs :math:`(n_i, d_i)`, a sum over tokens and their number. Summed
    over all micro-batches of all processes:

    .. math::
        l = \frac{\sum n_i}{\sum d_i} \qquad g = \frac{1}{s} \frac{\sum \nabla (s\, n_i)}{\sum d_i}

    Stages follow the 1F1B schedule of Paddle's engine. The step also works in one process, and with data or tensor
    parallelism and sharding stage 1. Call it with this process's inputs, whose first dimension is split into
    micro-batches: ``step(inputs, labels)`` for a `PipelineLayer` with a loss function, ``step(*inputs)`` for a network
    that returns its loss.

    An overflow in any process changes only the scale. A wrong argument, and any error of a forward pass that does not
    communicate, is raised in all processes before anything changes. After an error in a pipeline stage or a
    tensor-parallel part, the others time out: restart from a checkpoint.

    Each update **advances all schedules** except those with a metric: call only their `step`.

    Args:
        network (paddle.nn.Layer): from `fleet.distributed_model` or `paddle.DataParallel`; plain in one process.
        optimizer (Optimizer): from `fleet.distributed_optimizer`; plain in one process and with `paddle.DataParallel`.
            It must not have a `grad_clip`.
        use_clip_grad (bool, optional): clip by the global norm.
        max_grad_norm (float, optional): c, above 0.
        scale_sense (float|Tensor|LossScaler|paddle.amp.GradScaler, optional): s: a fixed scale or a loss scaler.
        micro_batch_num (int, optional): m, at least 1; with fleet's pipeline, its `accumulate_steps`.
        local_norm (bool, optional): also return the norm of each parameter's gradient.
        calculate_per_token_loss (bool, optional): weight micro-batches and processes by their tokens.
        use_skip_data_by_global_norm (bool, optional): skip updates whose global norm is at least
            `global_norm_spike_threshold`; the scale still adapts.
        global_norm_spike_threshold (float, optional): above 0.

    Raises:
        TypeError, ValueError: a wrong argument, loss or input; an unsupported parallel mode; parameters frozen in some
            processes only; no token.
        RuntimeError: an error in another process, or a process that does not answer.

    Examples:
        >>> import paddle
        >>> from paddle_ldopt import DynamicLossScaler, PipelineWithLossScale
        >>> class Network(paddle.nn.Linear):
        ...     def forward(self, inputs, labels):
        ...         return paddle.nn.functional.mse_loss(super().forward(inputs), labels)
        >>> network = Network(4, 1)
        >>> optimizer = paddle.optimizer.AdamW(1e-3, parameters=network.parameters())
        >>> scaler = DynamicLossScaler(2**10, scale_window=1)
        >>> step = PipelineWithLossScale(network, optimizer, scale_sense=scaler, micro_batch_num=2)
        >>> for inputs in (paddle.ones([8, 4]), paddle.full([8, 4], 1e38), paddle.ones([8, 4])):
        ...     output = step(inputs, paddle.zeros([8, 1]))
        ...     print(bool(output.overflow), float(output.loss_scale))
        False 1024.0
        True 2048.0
        False 1024.0

    On two stages: ``recipes/pipeline_sft.py``.

    Source: ``mindformers.wrapper.MFPipelineWithLossScaleCell``.
    """

    def __init__(
        self,
        network: paddle.nn.Layer,
        optimizer: Optimizer,
        use_clip_grad: bool = True,
        max_grad_norm: float = 1.0,
        scale_sense: Any = 1.0,
        micro_batch_num: int = 1,
        local_norm: bool = False,
        calculate_per_token_loss: bool = False,
        *,
        use_skip_data_by_global_norm: bool = False,
        global_norm_spike_threshold: float = 1.0,
    ) -> None:
        self.scaler: LossScaler = as_scaler(scale_sense)
        max_norm = checked_number(max_grad_norm, "max_grad_norm", ends="(]")
        spike = checked_number(global_norm_spike_threshold, "global_norm_spike_threshold", ends="(]")
        # the norm to clip to (None: off), and the norm from which updates are skipped
        self._max_norm = max_norm if checked_bool(use_clip_grad, "use_clip_grad") else None
        skips = checked_bool(use_skip_data_by_global_norm, "use_skip_data_by_global_norm")
        self._spike = spike if skips else math.inf
        self._gives_local_norm = checked_bool(local_norm, "local_norm")
        per_token = checked_bool(calculate_per_token_loss, "calculate_per_token_loss")
        count = checked_int(micro_batch_num, "micro_batch_num", least=1)
        self._optimizer = optimizer
        self._groups = ProcessGroups(network, optimizer)
        self._micro_batches = MicroBatches(self._groups, count, per_token)
        self._gradients = Gradients(self._groups)
        self._epochs: dict[Any, int] = {}  # the schedule -> its `last_epoch` after the last step

    def __call__(self, *inputs: Any) -> Union[StepOutput, StepOutputWithLocalNorm]:
        """Take a step on this process's inputs, None for those that a stage does not need."""
        schedule = schedules_of(_compat.unwrap(self._optimizer)).get("schedule")
        if isinstance(schedule, (MetricSchedule, ReduceOnPlateau)):
            schedule = None
        with self._groups.together():
            if schedule is not None and self._epochs.get(schedule, schedule.last_epoch) != schedule.last_epoch:
                wrong = "This step advances the schedule: do not call its `step`; load its state before this one's."
                raise refusal(ValueError, wrong, last_epoch=schedule.last_epoch, expected=self._epochs[schedule])
            if self._gradients.moving:
                raise RuntimeError("The last update failed in one process alone: load the last checkpoint in all.")
            self._micro_batches.check(inputs)
        self._gradients.check_trained()
        try:
            # after an error in a stage the other stages time out
            with contextlib.nullcontext() if self._micro_batches.has_stages else self._groups.together():
                self._micro_batches.forward_backward(inputs, self.scaler)
            output = self._update()
        finally:  # otherwise the next step would add to these gradients
            self._optimizer.clear_grad(set_to_zero=self._groups.has_slices)  # zeros would make a step
            self._epochs = {} if schedule is None else {schedule: schedule.last_epoch}
        return output

    def _update(self) -> Union[StepOutput, StepOutputWithLocalNorm]:
        groups, gradients = self._groups, self._gradients
        scale, rate = self.scaler.get_loss_scale(), self._optimizer.get_lr()
        with paddle.no_grad(), paddle.amp.auto_cast(enable=False):
            loss, factor = self._micro_batches.mean()
            is_finite = gradients.unscale(factor / scale)
            local_norms = gradients.local_norms() if self._gives_local_norm else ()
            norm = math.inf
            if not groups.greatest(not is_finite):
                gradients.reduce()
                norm = gradients.global_norm()
            overflow = bool(groups.greatest(not math.isfinite(norm)))  # the reduction can also overflow
            moves = not overflow and norm < self._spike
            if moves:
                gradients.apply(norm, math.inf if self._max_norm is None else self._max_norm)
        self.scaler.update(overflow)
        attached = schedules_of(_compat.unwrap(self._optimizer)).values() if moves else ()
        for schedule in {*attached}:  # groups may share one
            on_metric = isinstance(schedule, (MetricSchedule, ReduceOnPlateau))
            if not on_metric or getattr(schedule, "num_warmup_steps", None):
                schedule.step()
        scale, rate, norm = paddle.to_tensor([scale, rate, math.inf if overflow else norm], "float32").unbind()
        output = StepOutput(loss, paddle.to_tensor(overflow), scale, rate, None if self._max_norm is None else norm)
        return StepOutputWithLocalNorm(*output, *local_norms) if local_norms else output

    def state_dict(self) -> dict[str, Any]:
        return {"scaler": self.scaler.state_dict()}

    def set_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, after the states of network and optimizer."""
        self.scaler.set_state_dict(checked_state(state_dict).get("scaler", state_dict))
        self._epochs, self._gradients.moving = {}, False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.set_state_dict(state_dict)
