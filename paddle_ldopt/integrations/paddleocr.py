"""PaddleOCR: ``Optimizer: {name: AdamWDL, layerwise_decay: 0.65}`` in its YAML files.

Call `register()` before PaddleOCR builds its optimizer, in tools/train.py for one.
"""

import functools
from typing import Any, Optional

from .settings import NAMES, framework, from_settings, undecayed_names

__all__ = ["register"]


class Component:
    """An optimizer as PaddleOCR builds it: settings first, the model second."""

    def __init__(
        self,
        name: str,
        learning_rate: Any = 0.001,
        weight_decay: Any = None,
        grad_clip: Any = None,
        no_weight_decay_name: Optional[str] = None,
        one_dim_param_no_weight_decay: bool = False,
        **settings: Any,
    ) -> None:
        self._optimizer, self._settings = name, settings
        self._common = {"learning_rate": learning_rate, "weight_decay": weight_decay, "grad_clip": grad_clip}
        self._parts, self._one_dimensional = (no_weight_decay_name or "").split(), one_dim_param_no_weight_decay

    def __call__(self, model: Any) -> Any:
        """Return the optimizer of a model's parameters that are trained."""
        undecayed = undecayed_names(model, self._parts, one_dimensional=self._one_dimensional)
        return from_settings(self._optimizer, model, self._settings, undecayed=undecayed, **self._common)


def register() -> None:
    """Make the names of our optimizers known to PaddleOCR's configuration files.

    The settings of PaddleOCR's own optimizers keep their meaning: `lr`, `regularizer` (L2), `clip_norm`,
    `no_weight_decay_name`, `one_dim_param_no_weight_decay`. Beside them stand the options of the optimizer, those of
    `LayerDecay`, `rules` and `granularity` of `LayerMap.from_model`.

    Raises:
        ImportError: PaddleOCR's package `ppocr` cannot be imported.
    """
    module = framework("ppocr.optimizer.optimizer", "PaddleOCR")
    for name in NAMES:
        setattr(module, name, functools.partial(Component, name))
