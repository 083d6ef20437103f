"""Layer-wise learning-rate decay in the Trainer of PaddleNLP (2.8 and 3.0) and PaddleFormers, by mixins.

Importing it imports neither of them: the mixins take the Trainer they are mixed into as it is.
"""

from .arguments import LdoptArgumentsMixin, OptimizerName, SchedulerName
from .callbacks import LayerLRCallback, ScheduleCallback
from .folders import last_checkpoint
from .mixin import LdoptTrainerMixin
from .report import RunReport
from .resume import ResumeMixin
from .stopping import StopOnSigterm
from .unfreezing import GradualUnfreezeCallback

__all__ = [
    "GradualUnfreezeCallback",
    "LayerLRCallback",
    "LdoptArgumentsMixin",
    "LdoptTrainerMixin",
    "OptimizerName",
    "ResumeMixin",
    "RunReport",
    "ScheduleCallback",
    "SchedulerName",
    "StopOnSigterm",
    "last_checkpoint",
]
