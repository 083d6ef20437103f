"""Find the layer of each parameter and the ratio of its learning rate.

- `map`: `LayerMap`, a model's parameters with their layers (`layer`). `find_layers` finds them by a user's rules
  (`user_rules`), by lists of blocks (`numbered_lists`, `stacks`), by the tables of `known_names`, then by order and
  shape (`before_blocks`); `doubtful_lists` reports guesses; `granularity` makes several blocks one layer.
- `decay`: `LayerDecay`; `decay_ratios`: its ratio of each parameter of a map; `hooks`: the ratios of a function.
- `optimizer_interface`: the methods of an optimizer that this package calls; `rates`: the learning rate of each
  parameter, read with these methods; `table`: ratios and rates by layer, to print.
"""

from .decay import CONVENTIONS, LayerDecay, as_decay
from .decay_ratios import LayerRatios
from .hooks import adapt_hook, layerwise_lr_decay
from .map import Layer, LayerMap
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
