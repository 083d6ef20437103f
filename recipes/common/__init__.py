"""Shared code of the recipes. The import has Ctrl-C end a recipe at once, and silences warnings of no use to users."""

import contextlib
import os
import shlex
import signal
import sys
import warnings
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[1]
SCRIPT = Path(getattr(sys.modules["__main__"], "__file__", None) or "").resolve()
if SCRIPT.parent == RECIPES:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # also within an import in C; `start` sets a handler

for text in (
    "No ccache found|Setuptools is replacing distutils|The distutils package is deprecated|No shared comm will be",
    "When training, we now always track|Be aware, overflowing tokens|(?s:.*)swiglu",
):
    warnings.filterwarnings("ignore", text)


@contextlib.contextmanager
def silent():
    """Ignore warnings, such as those of scikit-learn for rows of a single class; also a decorator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def command(recipe, *argv):
    """Return the command line that starts a recipe from the current folder, quoted for a shell."""
    return shlex.join([sys.executable, os.path.relpath(RECIPES / f"{recipe}.py"), *argv])


def error(problem, /, **received):
    values = (f"{name}={str(value) if isinstance(value, Path) else value!r}" for name, value in received.items())
    return ValueError(f"{problem} Received: {', '.join(values)}.")
