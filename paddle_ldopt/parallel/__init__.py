"""Training in several processes on Paddle's engines (`paddle.distributed.fleet`)."""

from .checkpoint import load_checkpoint, save_checkpoint
from .pipeline import PipelineWithLossScale, StepOutput, StepOutputWithLocalNorm
from .scalers import AdaptiveLossScaler, DynamicLossScaler, FixedLossScaler, LossScaler

__all__ = [
    "AdaptiveLossScaler",
    "DynamicLossScaler",
    "FixedLossScaler",
    "LossScaler",
    "PipelineWithLossScale",
    "StepOutput",
    "StepOutputWithLocalNorm",
    "load_checkpoint",
    "save_checkpoint",
]
