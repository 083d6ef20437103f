"""Find the layer of each parameter and the ratio of its learning rate.

- `map`: `LayerMap`, a model's parameters with their layers (`layer`). `find_layers` measures them in a forward pass
  (`measure`: the graph; `towers`: its stacks of blocks; `place`: all other parameters), or finds them by `names`, and
  applies a user's `rules`.
- `decay`: `LayerDecay`, checked by `decay_checks`; `decay_ratios`: its ratio of each parameter of a map, checked by
  `ratio_checks`; `hook_ratios`: the ratios of a function; `paddlenlp_hook`: PaddleNLP's function, the default.
- `optimizer_interface`: the methods of an optimizer that this package calls; `rates`: the learning rate of each
  parameter, read with these methods; `table`: ratios and rates by layer, to print.
"""

from .decay import CONVENTIONS, LayerDecay, as_decay
from .decay_ratios import LayerRatios
from .hook_ratios import adapt_hook
from .layer import Layer
from .map import LayerMap
from .paddlenlp_hook import layerwise_lr_decay
from .table import LayerRow, LayerTable
from .weight_decay import decayed_parameter_names

__all__ = ["CONVENTIONS", "Layer", "LayerDecay", "LayerMap", "LayerRatios", "LayerRow", "LayerTable", "adapt_hook"]
__all__ += ["as_decay", "decayed_parameter_names", "layerwise_lr_decay"]
