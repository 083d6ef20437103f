"""PaddleOCR: ``Optimizer: {name: AdamWDL, layerwise_decay: 0.65}`` in its YAML files.

Call `register()` before PaddleOCR builds its optimizer, for example in tools/train.py.
"""

import functools
from typing import Any

from .._messages import refusal
from .yaml_settings import NAMES, Component, framework

_OF_THE_WEIGHT_DECAY = "CosineWeightDecayScheduler"  # PaddleOCR 3.7's schedule, of `regularizer: {name: CosineL2}`


class OcrComponent(Component):
    """An optimizer as PaddleOCR builds it."""

    own = (*Component.own, "clip_norm_global")

    def __init__(self, *args: Any, **settings: Any) -> None:
        if "clip_norm_global" in settings:  # PaddleOCR passes it on unread beside `clip_norm`
            received = {"clip_norm_global": settings["clip_norm_global"]}
            raise refusal(ValueError, "`clip_norm` and `clip_norm_global` exclude each other.", **received)
        super().__init__(*args, **settings)


def register() -> None:
    """Add our optimizers to PaddleOCR's configuration files.

    Its settings: `lr`, `regularizer` (L2), `clip_norm`, `no_weight_decay_name`, `one_dim_param_no_weight_decay`. Raises
    ImportError without its package `ppocr`.
    """
    module = framework("ppocr.optimizer.optimizer", "PaddleOCR")
    for name in NAMES:
        setattr(module, name, type(name, (OcrComponent,), {}))
    package = framework("ppocr.optimizer", "PaddleOCR")
    schedule = getattr(package, _OF_THE_WEIGHT_DECAY, None)
    if schedule is not None and not isinstance(schedule, functools.partial):
        setattr(package, _OF_THE_WEIGHT_DECAY, functools.partial(_scheduled_weight_decay, schedule))


def _scheduled_weight_decay(schedule: Any, optimizer: Any, **settings: Any) -> Any:
    """Return PaddleOCR's schedule of the weight decay; raise ValueError for our optimizers, which do not support it."""
    if type(optimizer).__name__ in NAMES:
        message = "The weight decay of paddle_ldopt's optimizers is constant here: use `regularizer: {name: L2, ...}`."
        raise refusal(ValueError, message, regularizer="CosineL2")
    return schedule(optimizer, **settings)
