"""Bytes that training keeps in each device's memory and sends in each step, before it is paid for.

Formulas alone, of the memory and the traffic of Paddle's engine and our optimizers. Activations, the buffers of a
running step and the losses of the allocator are not counted.
"""

from .calculation import MemoryUse, cells, estimate, gib
from .model import Layout, Transformer, Weight
from .optimizer import ITEMSIZE, OptimizerSpec

__all__ = ["ITEMSIZE", "Layout", "MemoryUse", "OptimizerSpec", "Transformer", "Weight", "cells", "estimate", "gib"]
