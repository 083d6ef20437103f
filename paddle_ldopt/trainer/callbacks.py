"""Callbacks that log the rate of each layer, or show the whole schedule."""

import os
from typing import Any, Optional, Union

import paddle
from paddle.optimizer import Optimizer

from .._messages import refusal
from .._paddle import parameters_of, unwrap
from ..layers.map import LayerMap
from ..layers.rates import applied_rates, layerwise_interface, next_rate
from ..layers.table import short_names
from ..plots import check_picture, plot_schedule, text_plot, write_schedule
from ..schedules.curves import rates_of
from .shared import Callback
from .stages import map_layers
from .types import Args, Control, State
from .unfreezing import all_open


class LayerLRCallback(Callback):
    """Log the learning rate applied to each layer, together with the loss: one number per layer of each tower.

    The names are "lr/embeddings", "lr/block_3", "lr/head" (with several towers "lr/encoder/block_3"). The callback logs
    the largest rate of each layer in the last step, read back from the optimizer. Schedule, groups, hooks and freezing
    are included.

    Args:
        layers: by default the layers of the optimizer's decay, or of the model.

    Raises:
        TypeError: during training, if the Trainer lacks `LdoptTrainerMixin`: a callback alone cannot add to its logs.
        ValueError: the model's layers are not found, or `layers` lacks a parameter.

    Examples:
        >>> trainer.add_callback(LayerLRCallback())  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
        loss: 0.69, learning_rate: 1e-3, lr/embeddings: 1.25e-4, lr/block_0: 2.5e-4, ...
    """

    attached = False  # the mixin of the Trainer sets it

    def __init__(self, layers: Optional[LayerMap] = None):
        self.layers = layers
        self._step: Any = None  # the optimizer, and its rate in the last step

    def on_train_begin(self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any) -> None:
        """Find the layers."""
        if not self.attached:
            remedy = "class MyTrainer(LdoptTrainerMixin, Trainer). Received: a Trainer without it"
            raise TypeError(f"LayerLRCallback needs LdoptTrainerMixin to add rates to the logs: {remedy}")
        layers = _find_layers(self.layers, optimizer, kwargs.get("model"))
        placed = {param.name: layers.layer_of(param.name) for param in parameters_of(optimizer)}
        towers = list(dict.fromkeys(layer.tower for layer in placed.values()))
        short = short_names(towers)
        self._names = {  # tensor name -> the name of its layer in the logs, from the embeddings to the head
            tensor: f"lr/{short[layer.tower]}{layer.label.replace(' ', '_')}".replace(" ", "/")
            for tensor, layer in sorted(placed.items(), key=lambda item: (towers.index(item[1].tower), item[1].index))
        }

    def on_optimizer_begin(
        self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Note the rate of the coming step, because the schedule advances before the log."""
        # reading the rates of `Adafactor` waits for the device
        reports = layerwise_interface(optimizer).sets_own_lr and hasattr(unwrap(optimizer), "used_lr")
        self._step = optimizer, None if reports else next_rate(optimizer)

    def extra_logs(self) -> dict[str, float]:
        """Return the rates of the last step by their names in the logs."""
        if self._step is None:
            return {}
        applied = applied_rates(*self._step)  # here, not in every step: it takes 0.2 ms per parameter
        rates: dict[str, float] = {}
        for tensor, name in self._names.items():
            rates[name] = max(rates.get(name, 0.0), applied[tensor])
        if self._step[1] is not None:  # the Trainer's own is the next step's rate
            rates["learning_rate"] = self._step[1]
        return {name: float(f"{rate:.6g}") for name, rate in rates.items()}


class ScheduleCallback(Callback):
    """Print the schedule of every layer before the first step, and write it as a picture and CSV.

    A layer that `GradualUnfreezeCallback` unfreezes later has the rate 0 until then; add that callback first. A resume
    shows the whole schedule again. Only the main process prints and writes.

    Args:
        path: the picture (.png, .svg, .pdf). The CSV beside it has a column per layer and a row per step, or per k-th
            step of more than 10,000.
        layers: by default the layers of the optimizer's decay, or of the model.

    Raises:
        ValueError: another file type. During training: a schedule other than a `CurveSchedule` or a `LambdaDecay`; an
            optimizer that sets its own rate.
    """

    def __init__(self, path: Union[str, os.PathLike[str]], layers: Optional[LayerMap] = None):
        check_picture(path)
        self.path, self.layers = os.fspath(path), layers

    def on_train_begin(self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any) -> None:
        """Print and write the schedule."""
        lr_scheduler = kwargs.get("lr_scheduler")
        remedy = "leave it out; LayerLRCallback logs the rates."
        if layerwise_interface(optimizer).sets_own_lr:
            message = "ScheduleCallback cannot show the schedule of an optimizer that sets its own rate"
            raise refusal(ValueError, f"{message}: {remedy}", optimizer=type(unwrap(optimizer)).__name__)
        rates = rates_of(lr_scheduler, state.max_steps)
        if rates is None:
            message = "ScheduleCallback shows schedules of this package and LambdaDecay, but none that follow a metric"
            raise refusal(ValueError, f"{message}: {remedy}", lr_scheduler=type(lr_scheduler).__name__)
        if not rates:  # a Trainer that only evaluates
            return
        layers = _find_layers(self.layers, optimizer, kwargs.get("model"))
        divisor = layerwise_interface(optimizer).lr_divisor
        rates = [rate / divisor(step - state.global_step) for step, rate in enumerate(rates)]
        series = _rates_by_row(layers, optimizer, rates)  # in all processes: each has a stage
        if not state.is_world_process_zero:
            return
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        plot_schedule(self.path, 0, series)
        table = os.path.splitext(self.path)[0] + ".csv"
        write_schedule(table, 0, series)
        print(f"learning rates by step, also in {self.path} and {table}:\n{text_plot(0, series)}")


def _rates_by_row(layers: LayerMap, optimizer: Optimizer, rates: list[float]) -> dict[str, list[float]]:
    """Return the label of each row of the layer table -> its rate in every step from `first`."""
    opened, starts = all_open(optimizer)
    rows = layers.table(optimizer=opened).rows
<<<<<<< HEAD
=======
    moved = _moved_ratios(unwrap(opened), range(len(rates)))
>>>>>>> h-schedules
    short, series = short_names([row.tower for row in rows]), {}
    for row in rows:
        ratio = 0.0 if row.frozen == row.tensors else row.ratio[1]
        closed = starts.get((row.tower, row.index), 0)
        row_rates = [0.0 if i < closed else ratio * rate for i, rate in enumerate(rates)]
        series[short[row.tower] + row.label] = row_rates
    return series


def _find_layers(layers: Optional[LayerMap], optimizer: Optimizer, model: paddle.nn.Layer) -> LayerMap:
    return layers or layerwise_interface(optimizer).layers or map_layers(model)
