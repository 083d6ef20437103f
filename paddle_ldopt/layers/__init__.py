"""Find the layer of each parameter and the ratio of its learning rate.

- `map`: `LayerMap`, a model's parameters with their layers (`layer`). `find_layers` finds them by a user's rules
  (`user_rules`), by lists of blocks (`numbered_lists`, `stacks`), by the tables of `known_names`, then by order and
  shape (`before_blocks`); `doubtful_lists` reports guesses.
- `decay`: `LayerDecay` and its ratio of each parameter; `hook`: the ratios of a function, PaddleNLP's by default.
- `rates`: the learning rate of each parameter, read from an optimizer or planned; `table`: ratios and rates by layer,
  to print; `weight_decay`: which parameters have weight decay.
"""

from .decay import CONVENTIONS, LayerDecay, as_decay
from .hook import layerwise_lr_decay
from .layer import Layer
from .map import LayerMap
from .table import LayerRow, LayerTable
from .weight_decay import decayed_parameter_names

__all__ = ["CONVENTIONS", "Layer", "LayerDecay", "LayerMap", "LayerRow", "LayerTable", "as_decay"]
__all__ += ["decayed_parameter_names", "layerwise_lr_decay"]
