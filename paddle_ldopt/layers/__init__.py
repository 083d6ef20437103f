"""Which layer a parameter belongs to, and the ratio of its learning rate."""

from .decay import CONVENTIONS, LayerDecay, as_decay
from .hook_ratios import adapt_hook
from .layer_ratios import LayerRatios
from .map import Layer, LayerMap
from .paddlenlp_hook import layerwise_lr_decay
from .table import LayerRow, LayerTable
from .weight_decay import decayed_parameter_names

__all__ = [
    "CONVENTIONS",
    "Layer",
    "LayerDecay",
    "LayerMap",
    "LayerRatios",
    "LayerRow",
    "LayerTable",
    "adapt_hook",
    "as_decay",
    "decayed_parameter_names",
    "layerwise_lr_decay",
]
