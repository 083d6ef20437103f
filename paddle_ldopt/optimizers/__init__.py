"""The optimizers: one file each."""

from .adafactor import Adafactor, AdafactorSchedule
from .adam_weight_decay import AdamWeightDecay
from .adamwdl import AdamWDL
from .came import Came
from .lamb import Lamb

__all__ = ["Adafactor", "AdafactorSchedule", "AdamWDL", "AdamWeightDecay", "Came", "Lamb"]
