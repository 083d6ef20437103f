"""Training in several processes on Paddle's engines (`paddle.distributed.fleet`)."""

from .pipeline import PipelineWithLossScale, StepOutput, StepOutputWithLocalNorm
from .scalers import AdaptiveLossScaler, DynamicLossScaler, FixedLossScaler, LossScaler
from .sharded_checkpoint import load_checkpoint, save_checkpoint

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
