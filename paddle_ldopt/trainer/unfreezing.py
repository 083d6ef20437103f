"""A callback for gradual unfreezing, and how to read an optimizer with layers that are still frozen."""

import warnings
from typing import Any, Optional

import paddle
from paddle.optimizer import Optimizer

from .._checks import checked_steps
from .._messages import refusal
from .._paddle import parameters_of, stand_in, unwrap
from ..layers.map import LayerMap
from ..layers.rates import layerwise_interface
from ..optimizers import LayerRates
from ..optimizers.apply import apply_layerwise_decay, plain_class
from .shared import Callback
from .types import Args, Control, State


class GradualUnfreezeCallback(Callback):
    r"""Unfreeze layers one by one from the top, as ULMFiT does: first the head, then one more layer every k steps.

    .. math::
        \text{layer } i \text{ of } n \text{ blocks is trained from step } k (n + 1 - i)

    A frozen layer has a rate of 0. Its weights and optimizer state do not change, and its gradients do not count in
    clipping. A resume with the same callback is exact. Each tower of a model is unfrozen from its own top layer.

    Args:
        every_k_steps: k in optimizer steps, at least 1; ULMFiT uses the number of steps in an epoch.
        layers: the layer map, if the optimizer has no layers of its own; the ratios then stay 1.

    Raises:
        TypeError, ValueError: `every_k_steps` is not a positive integer. During training: no layers.

    Differs from ULMFiT: `stop_gradient` is not set, because Paddle refuses to create the state of a parameter that is
    unfrozen after a resume. The backward pass goes through frozen layers, so they save no time.

    Examples:
        >>> trainer.add_callback(GradualUnfreezeCallback(every_k_steps=100))  # doctest: +SKIP

    Source: Howard and Ruder 2018, "Universal Language Model Fine-tuning for Text Classification", section 3.3.
    """

    def __init__(self, every_k_steps: int, layers: Optional[LayerMap] = None):
        self.every_k_steps = checked_steps(every_k_steps, "every_k_steps", 1)
        self.layers: Any = layers
        self._ratio: Any = None  # during training

    def on_train_begin(self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any) -> None:
        """Freeze the layers that are not due yet."""
        optimizer = unwrap(optimizer)
        own_layers = layerwise_interface(optimizer).layers
        _check_layers(optimizer, own_layers, self.layers)
        if own_layers is None and isinstance(optimizer, LayerRates) and plain_class(optimizer) is None:
            optimizer.set_layers(self.layers, 1.0)
        elif own_layers is None:
            apply_layerwise_decay(optimizer, self.layers, 1.0)
        self._ratio = optimizer.is_closed = Unfreezing(optimizer.layers, self.every_k_steps)
        self._ratio.step = state.global_step
        late = sorted(start for start in set(self._ratio.starts.values()) if start >= state.max_steps)
        if late:
            message = f"The layers to unfreeze at steps {late} are never trained: the training ends earlier."
            received = f"every_k_steps={self.every_k_steps}, max_steps={state.max_steps}"
            warnings.warn(f"{message} Received: {received}", stacklevel=2)

    def on_optimizer_begin(
        self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Unfreeze the layers due in the coming step; clear the gradients of the layers that are still frozen."""
        self._ratio.step = state.global_step
        for param in parameters_of(unwrap(optimizer)):
            if not param.stop_gradient and self._ratio(param):
                # zeros, not None: Paddle creates state only for gradients, and a checkpoint needs all state
                param.clear_gradient(True)
                if getattr(param, "main_grad", None) is not None:
                    param.main_grad.zero_()

    def on_train_end(self, args: Args, state: State, control: Control, optimizer: Any = None, **kwargs: Any) -> None:
        """Restore the optimizer's ratios."""
        unwrap(optimizer).is_closed = None


def _check_layers(optimizer: Optimizer, own_layers: Optional[LayerMap], layers: Optional[LayerMap]) -> None:
    """Raise ValueError unless the layers are known: the optimizer's own, or the callback's if it has no ratios."""
    hooked = own_layers is None and isinstance(optimizer, LayerRates) and optimizer.has_ratios
    if hooked or (own_layers or layers) is None or (own_layers is not None and layers not in (None, own_layers)):
        message = "GradualUnfreezeCallback needs an optimizer with layers: give a layer-wise decay, or pass"
        advice = "layers=LayerMap.from_model(model) with an optimizer without ratios of its own."
        raise refusal(ValueError, f"{message} {advice}", optimizer=type(optimizer).__name__, layers=layers)


class Unfreezing:
    """Whether the layer of a parameter is still frozen at `step`."""

    def __init__(self, layers: LayerMap, every_k_steps: int):
        self.layers, self.step = layers, 0
        places = {layers.layer_of(name) for name in layers.names}
        # (tower, layer id) -> the step from which it is trained
        self.starts = {(at.tower, at.index): every_k_steps * max(at.depth + 1 - at.index, 0) for at in places}

    def __call__(self, param: paddle.Tensor) -> bool:
        """Return whether the layer of a parameter is still frozen."""
        layer = self.layers.layer_of(param.name)
        return self.step < self.starts[layer.tower, layer.index]


def all_open(optimizer: Optimizer) -> tuple[Any, dict[tuple[str, int], int]]:
    """Return the optimizer to read from with no frozen layer, and (tower, layer id) -> the step that unfreezes it."""
    unfreezing = getattr(unwrap(optimizer), "is_closed", None)
    if unfreezing is None:
        return optimizer, {}
    params = parameters_of(optimizer)
    return stand_in(unwrap(optimizer), params, is_closed=None, _step_ratios=None), unfreezing.starts
