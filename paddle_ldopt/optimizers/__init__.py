from .adamwdl import AdamWDL

__all__ = ["AdamWDL"]
