"""Mixins for layer-wise learning-rate decay in the Trainer of PaddleNLP (2.8 and 3.0) and PaddleFormers.

Importing `paddle_ldopt.trainer` imports neither of them. The classes that override methods of their Trainer, and the
modules with the functions of each class::

    LdoptArgumentsMixin              arguments.py                lr_scheduler
    LdoptTrainerMixin                mixin.py                    checkpoint_record
     ├─ LayerwiseRatesMixin          layerwise_rates_mixin.py    optimizer_checks, lr_scheduler, stages
     └─ ResumeMixin (also alone)     resume_mixin.py             folders, epoch_rng, data_errors
"""

from .._files import write_whole
from .arguments import LdoptArgumentsMixin, OptimizerName, SchedulerName
from .callbacks import LayerLRCallback, ScheduleCallback
from .folders import last_checkpoint
from .mixin import LdoptTrainerMixin
from .resume_mixin import ResumeMixin
from .run_report import RunReport
from .stages import map_layers
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
    "map_layers",
    "write_whole",
]
