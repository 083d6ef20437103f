"""The optimizers, one file each. `list_optimizers` has their order.

A new one is one line more here, and its name in `__all__`.
"""

# isort: off
from .adamwdl import AdamWDL
from .came import Came
from .lamb import Lamb
from .adafactor import Adafactor, AdafactorSchedule
from .adam_weight_decay import AdamWeightDecay
# isort: on

from ._base.layerwise import LayerwiseMixin as LayerwiseMixin
from ._base.sharded_state import ShardedStateMixin as ShardedStateMixin
from .apply import apply_layerwise_decay, reset_layerwise_decay
from .registry import OptimizerInfo, list_optimizers, optimizer_class

__all__ = ["AdamWDL", "AdamWeightDecay", "Adafactor", "AdafactorSchedule", "Came", "Lamb"]
__all__ += ["OptimizerInfo", "apply_layerwise_decay", "list_optimizers", "optimizer_class", "reset_layerwise_decay"]
