"""Mixins for layer-wise learning-rate decay in the Trainer of PaddleNLP (2.8 and 3.0) and PaddleFormers.

Importing this imports neither.
"""

from .._files import write_whole
from .arguments import LdoptArgumentsMixin, LdoptName
from .callbacks import GradualUnfreezeCallback, LayerLRCallback, ScheduleCallback, StopOnSigterm
from .mixin import LdoptTrainerMixin
from .record import last_checkpoint
from .resume import ResumeMixin
from .stages import map_layers

__all__ = [
    "GradualUnfreezeCallback",
    "LayerLRCallback",
    "LdoptArgumentsMixin",
    "LdoptName",
    "LdoptTrainerMixin",
    "ResumeMixin",
    "ScheduleCallback",
    "StopOnSigterm",
    "last_checkpoint",
    "map_layers",
    "write_whole",
]
