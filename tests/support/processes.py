"""Processes that tests start."""

import os
import sys


def search_path():
    """Return a PYTHONPATH by which a process finds what this one finds: the package, tests/support, recipes."""
    return os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
