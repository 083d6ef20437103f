"""Files of an optimizer's state that no code hides in; `docs/checkpoints.md` describes them byte by byte."""

from .optimizer import load_optimizer, save_optimizer
from .state import LoadReport
from .torch_state import convert_torch_optimizer

__all__ = ["LoadReport", "convert_torch_optimizer", "load_optimizer", "save_optimizer"]
