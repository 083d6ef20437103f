"""Files of an optimizer's state that run no code; `docs/checkpoints.md` describes them byte by byte."""

from .report import LoadReport
from .save_load import load_optimizer, save_optimizer
from .torch_state import convert_torch_optimizer

__all__ = ["LoadReport", "convert_torch_optimizer", "load_optimizer", "save_optimizer"]
