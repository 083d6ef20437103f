"""Training in several processes on Paddle's engines (`paddle.distributed.fleet`)."""

from .checkpoint import load_checkpoint, save_checkpoint
from .scalers import AdaptiveLossScaler, DynamicLossScaler, FixedLossScaler, LossScaler
from .step import PipelineWithLossScale, StepOutput, StepOutputWithLocalNorm

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
