"""The optimizers, one file each; their order here is that of `list_optimizers`."""

# isort: off
from .adamwdl import AdamWDL as AdamWDL
from .came import Came as Came
from .lamb import Lamb as Lamb
from .adafactor import Adafactor as Adafactor, AdafactorSchedule as AdafactorSchedule
from .adam_weight_decay import AdamWeightDecay as AdamWeightDecay
# isort: on

from .apply import apply_layerwise_decay as apply_layerwise_decay
from .apply import reset_layerwise_decay as reset_layerwise_decay
from .registry import OptimizerInfo as OptimizerInfo
from .registry import list_optimizers as list_optimizers
from .registry import optimizer_class as optimizer_class
