"""The interface of an optimizer with layer-wise rates: its ratios, and the other values that `layers` reads from it."""

from typing import Any, Optional

from paddle import Tensor
from paddle.optimizer import Optimizer

from .._paddle import unwrap
from .decay import LayerDecay, Ratio


class Ratios:
    """The `ratio_of` of an optimizer: a function that maps a parameter to the ratio of its rate; here always 1."""

    decay: Optional[LayerDecay] = None  # None for a hook's
    layers: Any = None  # the `LayerMap` of the decay; None for a hook's
    is_constant = False  # whether a step may reuse the ratios of the previous one

    def at(self, progress: Ratio) -> "Ratios":
        """Return the ratios after the fraction `progress` of the training; a hook only knows the present."""
        return self

    def __call__(self, param: Tensor) -> Ratio:
        """Return the ratio of a parameter, a float or a static graph's value."""
        return 1.0

    @property
    def moves(self) -> bool:
        """Whether the decay changes the ratios during training."""
        return self.decay is not None and self.decay.moves


class LayerwiseInterface:
    """All that `layers` reads from an optimizer; the defaults are true of Paddle's optimizers."""

    ratio_of: Optional[Ratios] = None  # None: every ratio is 1

    def layerwise_ratio(self, param: Tensor) -> Ratio:
        """Return the current ratio of a parameter's rate to the optimizer's, without groups and ParamAttr."""
        return 1.0

    @property
    def sets_own_lr(self) -> bool:
        """Whether the optimizer computes its rate itself, so that a scheduler has no effect."""
        return False

    def last_used_lr(self) -> Optional[dict[str, float]]:
        """Return tensor name -> rate of the last update if the optimizer computes and keeps it, None otherwise."""
        return None

    def lr_divisor(self, ahead: int = 0) -> float:
        """Return the divisor of the optimizer's rate in its next step, or `ahead` steps later."""
        return 1.0

    def lr_now_and_peak(self, param: Tensor, factor: float) -> Optional[tuple[Optional[float], Optional[float]]]:
        """Return (rate of the next step, peak rate ahead) of a parameter, each None if it is unknown beforehand.

        None: the rate is `learning_rate` times `factor`, which includes the parameter's layer and group.
        """
        return None

    def has_nonzero_weight_decay(self, param: Tensor) -> Optional[bool]:
        """Return whether the next step applies weight decay to a parameter; None: by the options of Paddle."""
        return None


def layerwise_interface(optimizer: Optimizer) -> LayerwiseInterface:
    """Return the optimizer inside wrappers, or the defaults of `LayerwiseInterface` for one of Paddle's."""
    inner = unwrap(optimizer)
    return inner if isinstance(inner, LayerwiseInterface) else LayerwiseInterface()


def ratios_of(optimizer: Optimizer) -> Ratios:
    """Return the ratios of an optimizer, also in wrappers; plain `Ratios` if all layers have the same rate."""
    return layerwise_interface(optimizer).ratio_of or Ratios()
