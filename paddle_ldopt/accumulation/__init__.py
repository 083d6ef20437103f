"""Gradients of several micro-batches as one (a port of transformers 4.37's TensorFlow class `GradientAccumulator`)."""

from .accumulator import GradientAccumulator

__all__ = ["GradientAccumulator"]
