"""Find the layer of each parameter and the ratio of its learning rate.

- `map`: `LayerMap`, a model's parameters with their layers. `find`: rules of the user, a forward pass (`measure`: the
  graph, `towers`: stacks of blocks, `place`: all other parameters), or `names`.
- `decay`: `LayerDecay` and its ratio of each parameter; `table`: rates and ratios by layer.
"""

from .decay import CONVENTIONS, Layer, LayerDecay, as_decay
from .map import LayerMap
from .table import LayerRow, LayerTable

__all__ = ["CONVENTIONS", "Layer", "LayerDecay", "LayerMap", "LayerRow", "LayerTable", "as_decay"]
