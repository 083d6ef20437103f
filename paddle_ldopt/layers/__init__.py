"""Which layer a parameter belongs to, and the ratio of its learning rate."""

from .decay import CONVENTIONS, LayerDecay
from .map import Layer, LayerMap, as_rule
from .paddlenlp_hook import adapt_hook, layerwise_lr_decay
from .table import LayerRow, LayerTable
from .weight_decay import decayed_parameter_names

__all__ = [
    "CONVENTIONS",
    "Layer",
    "LayerDecay",
    "LayerMap",
    "LayerRow",
    "LayerTable",
    "adapt_hook",
    "as_rule",
    "decayed_parameter_names",
    "layerwise_lr_decay",
]
