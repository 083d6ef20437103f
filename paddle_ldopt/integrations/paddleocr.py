"""PaddleOCR: ``Optimizer: {name: AdamWDL, layerwise_decay: 0.65}`` in its YAML files.

Call `register()` before PaddleOCR builds its optimizer, for example in tools/train.py.
"""

import functools

from .settings import NAMES, Component, framework

__all__ = ["register"]


def register() -> None:
    """Add our optimizers to PaddleOCR's configuration files.

    The settings of PaddleOCR's own optimizers keep their meaning: `lr`, `regularizer` (L2), `clip_norm`,
    `no_weight_decay_name`, `one_dim_param_no_weight_decay`. Options of the optimizer and of `LayerDecay`, `rules` and
    `granularity` of `LayerMap.from_model`, and `allow_layerwise_change` are settings too.

    Raises:
        ImportError: PaddleOCR's package `ppocr` cannot be imported.
    """
    module = framework("ppocr.optimizer.optimizer", "PaddleOCR")
    for name in NAMES:
        setattr(module, name, functools.partial(Component, name))
