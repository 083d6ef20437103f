"""The optimizers: one file each."""

from .adamwdl import AdamWDL

__all__ = ["AdamWDL"]
