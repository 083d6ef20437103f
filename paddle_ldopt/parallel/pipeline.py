"""One training step over micro-batches, with a loss scale, whatever the processes share (a port of MindFormers')."""

import math
from typing import NamedTuple, Optional

import paddle
from paddle.optimizer.lr import LRScheduler, ReduceOnPlateau

from .._checks import checked_bool, checked_number, checked_steps, shown
from .._paddle import unwrap
from ..schedules import MetricSchedule
from .gradients import Gradients
from .layout import Layout
from .micro_batches import MicroBatches
from .scalers import as_scaler

__all__ = ["PipelineWithLossScale", "StepOutput", "StepOutputWithLocalNorm"]

_SKIP = {"global_norm_spike_threshold": 1.0, "use_skip_data_by_global_norm": False}


class StepOutput(NamedTuple):
    """What a step gives; all but `local_norm` and `size` are the same in all processes.

    Args:
        loss (Tensor): mean over micro-batches and data-parallel processes, or over tokens; float32 of shape [].
        overflow (Tensor): whether a gradient was not finite; bool of shape [].
        loss_scale (Tensor): the scale of this step; float32 of shape [].
        learning_rate (Tensor): the optimizer's rate in this step; float32 of shape [].
        global_norm (Tensor|None): the norm before clipping, inf after an overflow; None if nothing is clipped.
    """

    loss: paddle.Tensor
    overflow: paddle.Tensor
    loss_scale: paddle.Tensor
    learning_rate: paddle.Tensor
    global_norm: Optional[paddle.Tensor]


class StepOutputWithLocalNorm(NamedTuple):
    """`StepOutput` and this process's own part.

    Args:
        loss (Tensor): as there.
        overflow (Tensor): as there.
        loss_scale (Tensor): as there.
        learning_rate (Tensor): as there.
        global_norm (Tensor|None): as there.
        local_norm (Tensor): norm of the gradient of each parameter of this process, in the optimizer's order, unscaled
            and before any reduction over data; float32 of shape [n].
        size (Tensor): elements of each; int64 of shape [n].
    """

    loss: paddle.Tensor
    overflow: paddle.Tensor
    loss_scale: paddle.Tensor
    learning_rate: paddle.Tensor
    global_norm: Optional[paddle.Tensor]
    local_norm: paddle.Tensor
    size: paddle.Tensor


class PipelineWithLossScale:
    r"""Train one step: scale the loss, run the micro-batches, then unscale, look for overflows, clip and update.

    With :math:`l_i` the loss of micro-batch i of m, s the scale, and means over the data-parallel processes:

    .. math::
        g = \frac{1}{s} \operatorname{mean} \frac{1}{m} \sum_i \nabla (s\, l_i) \qquad
        g \leftarrow g \min(1, c / \lVert g \rVert)

    and with `calculate_per_token_loss`, for losses :math:`(n_i, d_i)` (the sum over tokens, how many there are), with
    sums over all micro-batches of all processes:

    .. math::
        l = \frac{\sum n_i}{\sum d_i} \qquad g = \frac{1}{s} \frac{\sum \nabla (s\, n_i)}{\sum d_i}

    On Paddle's own engine: stages exchange activations by its 1F1B schedule. Without a pipeline (data parallel,
    sharding stage 1, one process) the numbers are the same. It is called with the inputs of a step, this process's
    part, whose first dimension is cut into micro-batches: ``step(inputs, labels)`` for a `PipelineLayer`, which has its
    loss function, and ``step(*inputs)`` for any other network, which returns its loss.

    An error in one process (in the loss function, in the data of a micro-batch) is raised in all before anything has
    changed, and the next step starts from clean gradients. If a process never comes to the step, the others raise when
    their communication times out.

    After an overflow in any process nothing has changed but the scale: no weight, no state, no counter, no rate. A
    schedule of the optimizer's learning rate **is advanced here**, by each update that is made: don't call its `step`.
    One that takes a metric (`MetricSchedule`, Paddle's ReduceOnPlateau) is left to the caller.

    Args:
        network (paddle.nn.Layer): from `fleet.distributed_model` or `paddle.DataParallel`; plain in one process.
        optimizer (Optimizer): from `fleet.distributed_optimizer`; plain in one process and with `paddle.DataParallel`.
            Without `grad_clip`.
        use_clip_grad (bool, optional): clip by the global norm.
        max_grad_norm (float, optional): c, above 0.
        scale_sense (float|Tensor|LossScaler|paddle.amp.GradScaler, optional): s: fixed, if it is a number or a Tensor
            of shape [] or [1]; else what adapts it.
        micro_batch_num (int, optional): m, at least 1; with fleet's pipeline, its `accumulate_steps`.
        local_norm (bool, optional): give the norm of each parameter's gradient, too.
        calculate_per_token_loss (bool, optional): weight micro-batches and processes by their tokens.
        **kwargs: `use_skip_data_by_global_norm` (bool): make no update if the global norm is
            `global_norm_spike_threshold` (float, above 0) or more; the scale adapts as after any step.

    Raises:
        TypeError: a `scale_sense`, a loss, an input or another argument of a wrong type; an unknown argument.
        ValueError: a `scale_sense` of another shape than [] or [1]; a parallel mode or setting that is not served; a
            number of micro-batches that is not the engine's or does not divide the batch; an optimizer that clips by
            itself; parameters that are frozen in some processes only; an argument out of range or without effect; a
            step without any token; a schedule that was advanced elsewhere.
        RuntimeError: an error in another process, or one that does not answer.

    Differs from MindFormers: without `calculate_per_token_loss` the loss is the mean over micro-batches (there their
    sum); `local_norm` is a norm of unscaled gradients (there a sum of squares of scaled ones); a gradient that
    overflows in the reduction, or whose norm does, is an overflow; `parallel_config` is an error: fleet's strategy has
    it.

    Examples:
        .. code-block:: python

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
        network,
        optimizer,
        use_clip_grad=True,
        max_grad_norm=1.0,
        scale_sense=1.0,
        micro_batch_num=1,
        local_norm=False,
        calculate_per_token_loss=False,
        **kwargs,
    ):
        self.scaler = as_scaler(scale_sense)
        self._clips = checked_bool(use_clip_grad, "use_clip_grad")
        self._max_norm = checked_number(max_grad_norm, "max_grad_norm", ends="(]")
        if not use_clip_grad and max_grad_norm != 1.0:
            raise ValueError(
                "`max_grad_norm` has no effect without clipping: leave it out, or set use_clip_grad=True. "
                f"Received: max_grad_norm={shown(max_grad_norm)}, use_clip_grad=False"
            )
        self._gives_local_norm = checked_bool(local_norm, "local_norm")
        self._per_token = checked_bool(calculate_per_token_loss, "calculate_per_token_loss")
        self._spike = _spike_threshold(use_clip_grad, **kwargs)
        count = checked_steps(micro_batch_num, "micro_batch_num", least=1)
        self._layout = Layout(network, optimizer)
        _check_own_clip(optimizer)
        self._micro_batches = MicroBatches(self._layout, count, self._per_token)
        self._count = count
        self._gradients = Gradients(self._layout)
        self._optimizer = optimizer
        self._epoch = None  # of the schedule after the last step

    def __call__(self, *inputs):
        """Train one step.

        Args:
            *inputs (Tensor|tuple[Tensor]|None): this process's part of the batch; a stage that needs none takes None.

        Returns:
            StepOutput|StepOutputWithLocalNorm: what happened.
        """
        with self._layout.together():
            schedule = self._checked_schedule()
            parts = self._micro_batches.split(inputs)
        self._gradients.check_trained()
        try:
            output = self._train(parts, schedule)
        except BaseException:  # or the next step would add to the gradients of this one
            self._optimizer.clear_grad()
            raise
        self._epoch = getattr(schedule, "last_epoch", None)
        return output

    def _train(self, parts, schedule):
        scale, rate = self.scaler.get_loss_scale(), self._optimizer.get_lr()
        with self._layout.together():
            loss = self._micro_batches.run(parts, self.scaler)
        with paddle.no_grad():
            loss, weight = self._mean(loss, self._micro_batches.tokens() if self._per_token else None)
            gradients = self._gradients
            finite = gradients.unscale(weight / (scale * self._micro_batches.share))
            local = gradients.local_norms() if self._gives_local_norm else ()
            norm = math.inf
            if not self._layout.agree(not finite):
                gradients.reduce()
                norm = gradients.global_norm()
            overflow = bool(self._layout.agree(not math.isfinite(norm)))  # the reduction can overflow, too
            if not overflow and (self._spike is None or norm < self._spike):
                self._update(norm, schedule)
        self._optimizer.clear_grad()
        self.scaler.update(overflow)
        scale, rate, norm = paddle.to_tensor([scale, rate, math.inf if overflow else norm], "float32").unbind()
        scalars = loss, paddle.to_tensor(overflow), scale, rate, norm if self._clips else None
        return StepOutputWithLocalNorm(*scalars, *local) if local else StepOutput(*scalars)

    def _mean(self, loss, tokens):
        """Return the loss of all processes, and by what the sum of the gradients of this one is multiplied."""
        layout = self._layout
        if tokens is None:
            return (layout.sum_over_data(loss) / layout.data_ranks).reshape([]), 1.0 / self._count
        both = layout.sum_over_data(paddle.concat([loss * self._count, tokens]))
        total = both[1].item()
        if not total > 0:
            raise ValueError(f"A step must have a token that counts. Received: {total:g} tokens in all micro-batches")
        return both[0] / total, layout.data_ranks / total

    def _update(self, norm, schedule):
        if self._clips:
            self._gradients.clip(norm, self._max_norm)
        self._gradients.apply()
        if schedule is not None:
            schedule.step()

    def _checked_schedule(self):
        """Return the schedule to advance, None if there is none."""
        schedule = unwrap(self._optimizer)._learning_rate
        if not isinstance(schedule, LRScheduler) or isinstance(schedule, (MetricSchedule, ReduceOnPlateau)):
            return None
        if self._epoch not in (None, schedule.last_epoch):
            raise ValueError(
                "The schedule is advanced by the step, for updates that are made: don't call its `step`; after loading "
                "its state, load this object's. "
                f"Received: last_epoch={schedule.last_epoch} after {self._epoch}"
            )
        return schedule

    def state_dict(self):
        """Return what a resume needs besides the network's and the optimizer's states: that of the scaler."""
        return {"scaler": self.scaler.state_dict()}

    def set_state_dict(self, state_dict):
        """Load what `state_dict` gave, after the states of the network and the optimizer.

        Args:
            state_dict (dict): state of a step with a scaler of the same class.

        Raises:
            ValueError: it is not. Nothing is changed by then.
        """
        if not isinstance(state_dict, dict) or set(state_dict) != {"scaler"}:
            raise ValueError(f"`state_dict` must be a dict with the key 'scaler' alone. Received: {shown(state_dict)}")
        self.scaler.set_state_dict(state_dict["scaler"])
        self._epoch = None

    load_state_dict = set_state_dict


def _spike_threshold(use_clip_grad, **kwargs):
    """Return the norm from which on no update is made, None if there is none."""
    unknown = sorted(set(kwargs) - set(_SKIP))
    if unknown:
        raise TypeError(
            f"Besides its own arguments it takes {', '.join(_SKIP)}; how processes share the work is said in fleet's "
            f"strategy. Received: {', '.join(f'{name}={shown(kwargs[name])}' for name in unknown)}"
        )
    options = {**_SKIP, **kwargs}
    skips = checked_bool(options["use_skip_data_by_global_norm"], "use_skip_data_by_global_norm")
    threshold = checked_number(options["global_norm_spike_threshold"], "global_norm_spike_threshold", ends="(]")
    if skips and not use_clip_grad:
        raise ValueError(
            "`use_skip_data_by_global_norm` needs the norm that clipping takes: set use_clip_grad=True. "
            "Received: use_skip_data_by_global_norm=True, use_clip_grad=False"
        )
    if not skips and "global_norm_spike_threshold" in kwargs:
        raise ValueError(
            "`global_norm_spike_threshold` has an effect with use_skip_data_by_global_norm=True only. "
            f"Received: global_norm_spike_threshold={threshold}"
        )
    return threshold if skips else None


def _check_own_clip(optimizer):
    inner = unwrap(optimizer)
    groups = [group for group in inner._param_groups or [] if isinstance(group, dict)]
    clips = [clip for clip in (inner._grad_clip, *(group.get("grad_clip") for group in groups)) if clip is not None]
    if clips:
        raise ValueError(
            "The step clips by the norm over all processes: build the optimizer with grad_clip=None and set "
            f"`max_grad_norm` here. Received: grad_clip={type(clips[0]).__name__}"
        )
