"""Callbacks that show the rate of each layer, or open the layers one by one; for any Trainer like PaddleNLP's."""

import copy
import os
import warnings
from collections.abc import Iterable
from typing import Any, Optional, Union

from .._checks import checked_steps
from .._messages import refusal
from .._paddle import parameters_of, stand_in, unwrap
from ..layers.map import LayerMap
from ..layers.rates import applied_rates, next_rate, rate_divisor
from ..layers.ratios import moves
from ..layers.table import short_names
from ..optimizers import LayerwiseMixin
from ..optimizers.apply import apply_layerwise_decay
from ..plots import check_picture, plot_schedule, text_plot, write_schedule
from ..schedules.ahead import follows_metric, schedule_rates
from .base import Callback
from .passed import sets_own_rate
from .stages import map_layers


class LayerLRCallback(Callback):
    """Log the rate that was really applied to each layer: one number a layer of each tower, beside the loss.

    The names are "lr/embeddings", "lr/block_3", "lr/head" (with several towers "lr/encoder/block_3"). Each rate is the
    greatest of the layer in the last step, read back from the optimizer with schedule, groups, hooks and freezing.

    Args:
        layers: those of the optimizer's decay, or of the model, if None.

    Raises:
        TypeError: from the training, if the Trainer lacks `LdoptTrainerMixin`: a callback alone cannot add to its logs.
        ValueError: the model's layers are not found; a parameter that is not in `layers`.

    Examples::

        trainer.add_callback(LayerLRCallback())
        trainer.train()  # loss: 0.69, learning_rate: 1e-3, lr/embeddings: 1.25e-4, lr/block_0: 2.5e-4, ...
    """

    attached = False  # the mixin of the Trainer sets it

    def __init__(self, layers: Optional[LayerMap] = None):
        self.layers = layers
        self._step: Any = None  # the optimizer, and its rate in the last step

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **given: Any) -> None:
        """Find the layers."""
        if not self.attached:
            remedy = "class MyTrainer(LdoptTrainerMixin, Trainer). Received: a Trainer without it"
            raise TypeError(f"LayerLRCallback adds to the Trainer's logs by LdoptTrainerMixin: {remedy}")
        layers = _find_layers(self.layers, optimizer, given.get("model"))
        placed = {param.name: layers.layer_of(param.name) for param in parameters_of(optimizer)}
        towers = list(dict.fromkeys(layer.tower for layer in placed.values()))
        short = short_names(towers)
        self._names = {  # tensor name -> the name of its layer in the logs, from the embeddings to the head
            tensor: f"lr/{short[layer.tower]}{layer.label.replace(' ', '_')}".replace(" ", "/")
            for tensor, layer in sorted(placed.items(), key=lambda item: (towers.index(item[1].tower), item[1].index))
        }

    def on_optimizer_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Note the rate of the step that comes; the schedule goes on before anything is logged."""
        self._step = at_this_step(optimizer), next_rate(optimizer)

    def extra_logs(self) -> dict[str, float]:
        """Return the rates of the last step, by what they are called in the logs."""
        if self._step is None:
            return {}
        applied = applied_rates(*self._step)  # here, not in every step: it takes 0.2 ms a parameter
        rates: dict[str, float] = {}
        for tensor, name in self._names.items():
            rates[name] = max(rates.get(name, 0.0), applied[tensor])
        return {name: float(f"{rate:.6g}") for name, rate in rates.items()}


class ScheduleCallback(Callback):
    """Show the whole schedule of every layer before the first step: print it, and write it as PNG and CSV.

    Layers that `GradualUnfreezeCallback` opens later (add it first) are at 0 until then. A resume shows the whole
    schedule again, or the rest of one that cannot be wound back. The main process alone prints and writes.

    Args:
        path: the picture (.png, .svg, .pdf). The CSV beside it has a column a layer and a row a step, or every k-th of
            more than 10,000.
        layers: those of the optimizer's decay, or of the model, if None.

    Raises:
        ValueError: another ending. From the training: a schedule that follows a metric, or cannot be read ahead for
            another reason; an optimizer that sets its rate itself.
    """

    def __init__(self, path: Union[str, os.PathLike[str]], layers: Optional[LayerMap] = None):
        check_picture(path)
        self.path, self.layers = os.fspath(path), layers

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **given: Any) -> None:
        """Print and write the schedule."""
        lr_scheduler, remedy = given.get("lr_scheduler"), "leave it out; LayerLRCallback logs what comes of it."
        if follows_metric(lr_scheduler):
            problem = "ScheduleCallback cannot show a schedule that follows an evaluation metric before the training"
            raise refusal(ValueError, f"{problem}: {remedy}", lr_scheduler=type(lr_scheduler).__name__)
        if sets_own_rate(optimizer):
            problem = "ScheduleCallback cannot show the schedule of an optimizer that sets its rate itself"
            raise refusal(ValueError, f"{problem}: {remedy}", optimizer=type(unwrap(optimizer)).__name__)
        layers = _find_layers(self.layers, optimizer, given.get("model"))
        first, rates = schedule_rates(lr_scheduler, state.max_steps)
        rates = [rate / rate_divisor(optimizer, first + i - state.global_step) for i, rate in enumerate(rates)]
        if not rates:  # a run that was over when it was resumed
            return
        opened, starts = all_open(optimizer)
        rows = layers.table(optimizer=opened).rows  # in all processes: those of a pipeline have a part each
        moved = _moved_ratios(unwrap(opened), range(first, first + len(rates)))
        if not state.is_world_process_zero:
            return
        short = short_names([row.tower for row in rows])
        series = {}
        for row in rows:
            ratio = 0.0 if row.frozen == row.tensors else row.ratio[1]
            closed = starts.get((row.tower, row.index), 0) - first
            own = [0.0 if i < closed else ratio * rate for i, rate in enumerate(rates)]
            if moved and ratio:
                own = [rate * ratios[row.tower, row.index] for rate, ratios in zip(own, moved)]
            series[short[row.tower] + row.label] = own
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        plot_schedule(self.path, first, series)
        table = os.path.splitext(self.path)[0] + ".csv"
        write_schedule(table, first, series)
        print(f"learning rates by step, also in {self.path} and {table}:\n{text_plot(first, series)}")


class GradualUnfreezeCallback(Callback):
    r"""Open the layers one by one from the top, as ULMFiT does: the head first, one more layer every k steps.

    .. math::
        \text{layer } i \text{ of } n \text{ blocks is trained from step } k (n + 1 - i)

    A closed layer has a rate of 0: neither its weights nor its optimizer state change, and its gradients do not count
    in clipping. A resume with the same callback is exact. In a model of several towers each opens from its own top.

    Args:
        every_k_steps: k, optimizer steps, at least 1; the steps of an epoch in ULMFiT.
        layers: for an optimizer that has no layers of its own; all ratios stay 1 then.

    Raises:
        TypeError, ValueError: `every_k_steps` is no whole number above 0; from the training: no layers.

    Differs from ULMFiT: `stop_gradient` stays, because Paddle refuses to make the state of a parameter that is opened
    after a resume. The backward pass goes through closed layers, so they save no time.

    Examples::

        trainer.add_callback(GradualUnfreezeCallback(every_k_steps=100))  # --layerwise_lr_decay 0.8

    Source: Howard and Ruder 2018, "Universal Language Model Fine-tuning for Text Classification", section 3.3.
    """

    def __init__(self, every_k_steps: int, layers: Optional[LayerMap] = None):
        self.every_k_steps = checked_steps(every_k_steps, "every_k_steps", 1)
        self.layers: Any = layers
        self._ratio: Any = None  # the optimizer's, while it trains

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Put the opening of the layers before the optimizer's own ratios."""
        optimizer = unwrap(optimizer)
        own, layers, name = layers_of(optimizer), self.layers, type(optimizer).__name__
        if own is None and layers is None:
            raise ValueError(
                "GradualUnfreezeCallback needs an optimizer with layers: give a layer-wise decay, or `layers` "
                f"(LayerMap.from_model(model)) to the callback. Received: optimizer={name}"
            )
        if own is None and isinstance(optimizer, LayerwiseMixin) and "_plain" not in vars(type(optimizer)):
            if optimizer._ratio_of is not None:
                problem = "GradualUnfreezeCallback cannot open layers of an optimizer whose ratios come from a hook."
                raise refusal(ValueError, problem, set_param_lr_fun=optimizer.set_param_lr_fun)
            optimizer._ratio_of = layers.ratio_fn(1.0)
        elif own is None:
            apply_layerwise_decay(optimizer, layers, 1.0)
        elif layers is not None and layers is not own:
            problem = "The optimizer has layers of its own: leave out the callback's."
            raise refusal(ValueError, problem, layers=layers, optimizer=name)
        self._restore(optimizer)  # of a training that did not come to its end
        self._ratio = optimizer._ratio_of = _Opening(optimizer._ratio_of, self.every_k_steps)
        self._ratio.step = state.global_step
        late = sorted(start for start in set(self._ratio.starts.values()) if start >= state.max_steps)
        if late:
            problem = f"The layers that open at steps {late} are never trained: the training ends before."
            received = f"every_k_steps={self.every_k_steps}, max_steps={state.max_steps}"
            warnings.warn(f"{problem} Received: {received}", stacklevel=2)

    def on_optimizer_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Open what is to be open in the step that comes, clear the gradients of the rest."""
        self._ratio.step = state.global_step
        for param in parameters_of(unwrap(optimizer)):
            if not param.stop_gradient and self._ratio.is_closed(param):
                # zeros, not None: Paddle makes the state of what has a gradient, and a checkpoint needs all of it
                param.clear_gradient(True)
                if getattr(param, "main_grad", None) is not None:
                    param.main_grad.zero_()

    def on_train_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Leave the optimizer as it was."""
        self._restore(unwrap(optimizer))

    def _restore(self, optimizer: Any) -> None:
        if isinstance(optimizer._ratio_of, _Opening):
            optimizer._ratio_of = optimizer._ratio_of.ratio_of


class _Opening:
    """A function parameter -> ratio that is 0 for the layers that are closed at its `step`."""

    def __init__(self, ratio_of: Any, every_k_steps: int):
        self.ratio_of, self.decay, self.layers, self.step = ratio_of, ratio_of.decay, ratio_of.layers, 0
        layers = {self.layers.layer_of(name) for name in self.layers.names}
        # (tower, layer id) -> the step from which it is trained
        self.starts = {(at.tower, at.index): every_k_steps * max(at.depth + 1 - at.index, 0) for at in layers}

    def is_closed(self, param: Any) -> bool:
        layer = self.layers.layer_of(param.name)
        return self.step < self.starts[layer.tower, layer.index]

    def __call__(self, param: Any) -> float:
        return 0.0 if self.is_closed(param) else self.ratio_of(param)

    is_constant = False

    def at(self, progress: float) -> "_Opening":
        """Return the function when the share `progress` of the training is over."""
        other = copy.copy(self)
        other.ratio_of = self.ratio_of.at(progress)
        return other


def all_open(optimizer: Any) -> tuple[Any, dict[tuple[str, int], int]]:
    """Return the optimizer, or a stand-in in which every layer is open, to read from; and the steps that open layers.

    They are by tower and layer id, of the layers that gradual unfreezing opens.
    """
    inner = unwrap(optimizer)
    opening = getattr(inner, "_ratio_of", None)
    if not isinstance(opening, _Opening):
        return optimizer, {}
    opened = stand_in(inner, _ratio_of=opening.ratio_of, _step_ratios=None, _parameter_list=parameters_of(optimizer))
    return opened, opening.starts


def at_this_step(optimizer: Any) -> Any:
    """Return the optimizer, or one to read from in which a decay that moves stays as it is now."""
    inner = unwrap(optimizer)
    if moves(getattr(inner, "_ratio_of", None)):
        return stand_in(inner, _ratio_of=inner.ratio_now(), _step_ratios=None, _parameter_list=parameters_of(optimizer))
    return optimizer


def _moved_ratios(optimizer: Any, steps: Iterable[int]) -> list[dict[tuple[str, int], float]]:
    """Return for each step (tower, layer id) -> the ratio over that of now, none if the decay does not move."""
    ratio_of: Any = getattr(optimizer, "_ratio_of", None)
    if not moves(ratio_of):
        return []
    now = optimizer.ratio_now().by_layer()
    moved = [ratio_of.at(optimizer.progress_at(step)).by_layer() for step in steps]
    return [{at: ratio / now[at] if now[at] else 0.0 for at, ratio in ratios.items()} for ratios in moved]


def layers_of(optimizer: Any) -> Optional[LayerMap]:
    """Return the LayerMap that an optimizer has its ratios from, None if they come from elsewhere or it has none."""
    return getattr(getattr(optimizer, "_ratio_of", None), "layers", None)


def _find_layers(layers: Optional[LayerMap], optimizer: Any, model: Any) -> LayerMap:
    return layers or layers_of(unwrap(optimizer)) or map_layers(model)
