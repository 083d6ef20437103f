"""Shared code of the recipes. Its import has Ctrl-C end a recipe at once, and silences warnings of no use to users."""

import signal
import sys
import warnings
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[1]
if Path(getattr(sys.modules["__main__"], "__file__", None) or "").resolve().parent == RECIPES:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # also within an import in C; `entry_point` sets a handler

warnings.filterwarnings("ignore", "No ccache found", UserWarning)
warnings.filterwarnings("ignore", "Setuptools is replacing distutils", UserWarning)
warnings.filterwarnings("ignore", "The distutils package is deprecated", DeprecationWarning)
warnings.filterwarnings("ignore", "No shared comm will be", UserWarning)
warnings.filterwarnings("ignore", "When training, we now always track", UserWarning)
warnings.filterwarnings("ignore", "Be aware, overflowing tokens", UserWarning)
warnings.filterwarnings("ignore", "(?s).*swiglu")
