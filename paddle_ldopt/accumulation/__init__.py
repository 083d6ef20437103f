"""Gradient accumulation over micro-batches: a port of transformers 4.37's `GradientAccumulator` for TensorFlow."""

from .accumulator import GradientAccumulator

__all__ = ["GradientAccumulator"]
