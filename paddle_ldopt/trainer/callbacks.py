"""Callbacks for a Trainer."""

import os
import signal
import sys
from typing import Any, Optional, Union

import paddle
from paddle import distributed

from .._checks import checked_int, refusal
from .._compat import groups_by_name, parameters_of, stand_in, unwrap
from ..layers.map import LayerMap
from ..optimizers import LayerRates, apply_layerwise_decay
from ..plots import check_picture, plot_schedule, short_names, text_plot, write_schedule
from ..rates import applied_rates, layerwise_interface, next_rate
from ..schedules import rates_of
from .resume import Args, Callback, Control, State
from .stages import map_layers


class LayerLRCallback(Callback):
    """Log each layer's largest learning rate, read back from the optimizer, with the loss.

    The names are "lr/embeddings", "lr/block_3", "lr/head" (with several towers "lr/encoder/block_3"). The Trainer needs
    `LdoptTrainerMixin`: a callback alone cannot add to the logs.

    Args:
        layers: by default the optimizer's, or the model's.

    Raises:
        ValueError: the model's layers are not found, or `layers` lacks a parameter.

    Examples:
        >>> trainer.add_callback(LayerLRCallback())  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
        loss: 0.69, learning_rate: 1e-3, lr/embeddings: 1.25e-4, lr/block_0: 2.5e-4, ...
    """

    def __init__(self, layers: Optional[LayerMap] = None):
        self.layers = layers
        self._step: Any = None  # (optimizer, rate) of the last step

    def on_train_begin(self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any) -> None:
        layers = self.layers or layerwise_interface(optimizer).layers or map_layers(kwargs["model"])
        placed = {param.name: layers.layer_of(param.name) for param in parameters_of(optimizer)}
        towers = list(dict.fromkeys(layer.tower for layer in placed.values()))
        short = short_names(towers)
        self._names = {  # tensor name -> name in the logs, embeddings first
            tensor: f"lr/{short[layer.tower]}{layer.label.replace(' ', '_')}".replace(" ", "/")
            for tensor, layer in sorted(placed.items(), key=lambda item: (towers.index(item[1].tower), item[1].index))
        }

    def on_optimizer_begin(self, *_: Any, optimizer: Any, **kwargs: Any) -> None:
        # the schedule advances before the log; reading the rates of `Adafactor` waits for the device
        reports = layerwise_interface(optimizer).reports_lr
        self._step = optimizer, None if reports else next_rate(optimizer)

    def extra_logs(self) -> dict[str, float]:
        if self._step is None:
            return {}
        applied = applied_rates(*self._step)  # here, not in every step: it takes 0.2 ms per parameter
        rates: dict[str, float] = {}
        for tensor, name in self._names.items():
            rates[name] = max(rates.get(name, 0.0), applied[tensor])
        if self._step[1] is not None:  # the Trainer's own is the next step's rate
            rates["learning_rate"] = self._step[1]
        return {name: float(f"{rate:.6g}") for name, rate in rates.items()}


def all_layers_open(optimizer: Any) -> tuple[Any, dict[tuple[str, int], int]]:
    """Return the optimizer without `GradualUnfreezeCallback`, and (tower, layer id) -> step that unfreezes it."""
    inner = unwrap(optimizer)
    unfreezing = vars(inner).get("unfreezing")
    if unfreezing is None:
        return optimizer, {}
    # sharding version 1 gives the inner optimizer the parameters of one process
    return stand_in(inner, parameters_of(optimizer), ratios=unfreezing.open_ratios), unfreezing.starts


class ScheduleCallback(Callback):
    """Print the schedule of every layer before training, and write it as a picture and CSV.

    Add `GradualUnfreezeCallback` first: its frozen layers have the rate 0.

    Args:
        path: the picture (.png, .svg, .pdf); the CSV is beside it, as of `write_schedule`.
        layers: by default the optimizer's, or the model's.
        verbose: whether to print it.

    Raises:
        ValueError: another file type. In `train`: a schedule without a formula, such as a `WarmUp` or one on a metric;
            an optimizer or group ("lr") with its own rate.
    """

    def __init__(self, path: Union[str, os.PathLike[str]], layers: Optional[LayerMap] = None, verbose: bool = True):
        check_picture(path)
        self.path, self.layers, self.verbose = os.fspath(path), layers, verbose

    def on_train_begin(self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any) -> None:
        lr_scheduler, interface = kwargs.get("lr_scheduler"), layerwise_interface(optimizer)
        unknown = interface.sets_own_lr or interface.scales_lr
        unknown = unknown or any(group.get("lr") is not None for group in groups_by_name(unwrap(optimizer)).values())
        rates = None if unknown else rates_of(lr_scheduler, state.max_steps)
        if rates is None:
            wrong = "ScheduleCallback cannot show the rates before training: use LayerLRCallback, which logs them."
            raise refusal(ValueError, wrong, lr_scheduler=type(lr_scheduler).__name__)
        layers = self.layers or interface.layers or map_layers(kwargs["model"])
        rates = [rate / interface.lr_divisor(i - state.global_step) for i, rate in enumerate(rates)]
        if not rates:  # a Trainer without steps
            return
        opened, starts = all_layers_open(optimizer)
        rows = layers.table(optimizer=opened).rows  # in all processes: each has a stage
        if not state.is_world_process_zero:
            return
        short, series = short_names([row.tower for row in rows]), {}
        for row in rows:
            ratio = 0.0 if row.frozen == row.tensors else row.ratio[1]
            closed = starts.get((row.tower, row.index), 0)
            own = [ratio * rate * (i >= closed) for i, rate in enumerate(rates)]
            series[short[row.tower] + row.label] = own.__getitem__
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        plot_schedule(self.path, len(rates), series)
        table = os.path.splitext(self.path)[0] + ".csv"
        write_schedule(table, len(rates), series)
        if self.verbose:
            print(f"learning rates by step, also in {self.path} and {table}:\n{text_plot(len(rates), series)}")


class GradualUnfreezeCallback(Callback):
    r"""Unfreeze layers from the top, as ULMFiT does: first the head, then one more layer every k steps.

    .. math::
        \text{layer } i \text{ of } n \text{ blocks is trained from step } k (n + 1 - i)

    A frozen layer's weights and optimizer state do not change, and clipping ignores its gradients. A resume with the
    same callback is exact. Each tower is unfrozen from its top layer.

    Args:
        every_k_steps: k in optimizer steps, at least 1; ULMFiT uses the number of steps in an epoch.
        layers: the layer map, if the optimizer has none; the ratios then stay 1.

    Raises:
        TypeError, ValueError: a wrong `every_k_steps`. In `train`: no layers.

    Differs from ULMFiT: frozen layers save no time. `stop_gradient` is not set, because Paddle cannot create state for
    a parameter that is unfrozen after a resume.

    Examples:
        >>> trainer.add_callback(GradualUnfreezeCallback(every_k_steps=100))  # doctest: +SKIP

    Source: ULMFiT, https://arxiv.org/abs/1801.06146, section 3.3.
    """

    def __init__(self, every_k_steps: int, layers: Optional[LayerMap] = None):
        self.every_k_steps = checked_int(every_k_steps, "every_k_steps", 1)
        self.layers: Any = layers
        self.open_ratios: dict[str, float] = {}  # of the optimizer without this callback
        self.starts: dict[tuple[str, int], int] = {}  # (tower, layer id) -> first step

    def on_train_begin(self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any) -> None:
        optimizer = unwrap(optimizer)
        self._restore(optimizer)  # after an interrupted training
        interface = layerwise_interface(optimizer)
        own = interface.layers
        if interface.hook is not None or (own or self.layers) is None or self.layers not in (None, own or self.layers):
            wrong = "GradualUnfreezeCallback needs an optimizer with layers, or `layers` and one without any."
            raise refusal(ValueError, wrong, optimizer=type(optimizer).__name__, layers=self.layers)
        if own is None and isinstance(optimizer, LayerRates):
            optimizer.set_layers(self.layers, 1.0)
        elif own is None:
            apply_layerwise_decay(optimizer, self.layers, 1.0)
        layers = {optimizer.layers.layer_of(name) for name in optimizer.layers.names}
        self.starts = {(at.tower, at.index): self.every_k_steps * max(at.depth + 1 - at.index, 0) for at in layers}
        self.open_ratios, optimizer.unfreezing = optimizer.ratios, self
        if getattr(optimizer, "counts_together", False) and not optimizer.steps_taken():
            optimizer.taken = float(state.global_step)  # after a resume of parameters of which none has moved
        self._freeze(optimizer, state.global_step)

    def on_optimizer_begin(self, args: Args, state: State, *_: Any, optimizer: Any, **kwargs: Any) -> None:
        params, optimizer = parameters_of(optimizer), unwrap(optimizer)  # whole ones: slices get gradients later
        self._freeze(optimizer, state.global_step)
        for param in params:
            if not param.stop_gradient and optimizer.layerwise_ratio(param) == 0.0:
                # zeros, not None: Paddle creates state only for gradients, and a checkpoint needs all state
                for grad in (param.grad, getattr(param, "main_grad", None)):
                    if grad is not None:
                        with paddle.no_grad():
                            grad.zero_()

    def on_train_end(self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any) -> None:
        self._restore(unwrap(optimizer))

    def _freeze(self, optimizer: Any, step: int) -> None:
        optimizer.ratios = dict(self.open_ratios)
        for name in self.open_ratios:
            layer = optimizer.layers.layer_of(name)
            if step < self.starts[layer.tower, layer.index]:
                optimizer.ratios[name] = 0.0

    def _restore(self, optimizer: Any) -> None:
        before = vars(optimizer).pop("unfreezing", None)
        if before is not None:
            optimizer.ratios = before.open_ratios


class StopOnSigterm(Callback):
    """On SIGTERM, as from a cluster scheduler, save a checkpoint after the step and exit.

    In an epoch's last step, a Trainer with `ResumeMixin` evaluates first. The process exits with ``SystemExit(143)``,
    or immediately at a second signal. The callback listens within ``with stop:`` in the main thread; `asked` is True
    after the signal. All processes save the same step.

    Examples:
        >>> from paddle_ldopt.trainer import StopOnSigterm
        >>> stop = StopOnSigterm()
        >>> trainer.add_callback(stop)  # doctest: +SKIP
        >>> with stop:  # doctest: +SKIP
        ...     trainer.train(resume_from_checkpoint=True if resume else None)
    """

    asked = False
    _agreed = False  # whether any process was asked before the end of the last step

    def __enter__(self) -> "StopOnSigterm":
        self.asked = self._agreed = False
        self._before = signal.signal(signal.SIGTERM, self.on_signal)
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        # a signal that has not ended the run is passed on
        signal.signal(signal.SIGTERM, self._before)
        if self.asked and error is not SystemExit:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_signal(self, *_: Any) -> None:
        self.asked = True
        signal.signal(signal.SIGTERM, self._before)  # a second signal does not wait for a step

    def on_step_end(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        self._agreed = self.asked
        if args.world_size > 1:
            flag = paddle.to_tensor([int(self.asked)], dtype="int32")
            distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
            self._agreed = bool(flag)
        control.should_save = control.should_save or self._agreed

    on_epoch_end = on_step_end  # for a signal after the epoch's last step

    def on_save(self, args: Args, state: State, control: Control, **kwargs: Any) -> None:
        if self._agreed:
            print(f"SIGTERM: resume with --resume_from_checkpoint {args.output_dir}", file=sys.stderr)
            sys.exit(128 + signal.SIGTERM)
