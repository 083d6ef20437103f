"""Files of an optimizer's state, read without running code; `docs/checkpoints.md` specifies the format."""

from .save_load import LoadReport, load_optimizer, save_optimizer
from .torch_state import convert_torch_optimizer

__all__ = ["LoadReport", "convert_torch_optimizer", "load_optimizer", "save_optimizer"]
