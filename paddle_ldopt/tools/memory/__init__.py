"""Calculates the bytes that training keeps in each device's memory and sends in each step, by formulas alone.

The formulas describe Paddle's engine and our optimizers. Activations, the buffers of a running step and the
allocator's overhead are not counted.
"""

from .calculation import MemoryUse, cells, estimate, gib
from .model import Layout, Transformer, Weight
from .optimizer import ITEMSIZE, OptimizerSpec

__all__ = ["ITEMSIZE", "Layout", "MemoryUse", "OptimizerSpec", "Transformer", "Weight", "cells", "estimate", "gib"]
