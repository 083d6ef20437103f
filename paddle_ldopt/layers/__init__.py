"""The layer of each parameter, and the ratio of its learning rate.

`map` has a model's parameters with their layers; `find` finds these by rules, in a forward pass (`measure`: the graph,
`towers`: stacks of blocks, `place`: all other parameters) or by `names`. `decay` has the ratios, `table` shows them.
"""

from .decay import CONVENTIONS, Layer, LayerDecay, as_decay
from .map import LayerMap
from .table import LayerRow, LayerTable

__all__ = ["CONVENTIONS", "Layer", "LayerDecay", "LayerMap", "LayerRow", "LayerTable", "as_decay"]
