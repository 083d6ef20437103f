"""Training in several processes on Paddle's engines (`paddle.distributed.fleet`)."""

from .pipeline import PipelineWithLossScale
from .scalers import AdaptiveLossScaler, DynamicLossScaler, FixedLossScaler, LossScaler
from .sharded_checkpoint import load_checkpoint, save_checkpoint

__all__ = [
    "AdaptiveLossScaler",
    "DynamicLossScaler",
    "FixedLossScaler",
    "LossScaler",
    "PipelineWithLossScale",
    "load_checkpoint",
    "save_checkpoint",
]
