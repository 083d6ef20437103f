"""PaddleOCR: ``Optimizer: {name: AdamWDL, layerwise_decay: 0.65}`` in its YAML files.

Call `register()` before PaddleOCR builds its optimizer, for example in tools/train.py.
"""

import functools

from .settings import NAMES, Component, framework

__all__ = ["register"]


def register() -> None:
    """Add our optimizers to PaddleOCR's configuration files.

    Its settings: `lr`, `regularizer` (L2), `clip_norm`, `no_weight_decay_name`, `one_dim_param_no_weight_decay`. Raises
    ImportError without its package `ppocr`.
    """
    module = framework("ppocr.optimizer.optimizer", "PaddleOCR")
    for name in NAMES:
        setattr(module, name, functools.partial(Component, name))
