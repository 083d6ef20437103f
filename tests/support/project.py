"""The repository: where it is, and the public names of a module."""

import importlib
import pathlib
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]


def public_names(module):
    """Return the names a module exports: its `__all__`, or all that have no leading underscore and are no modules."""
    found = vars(importlib.import_module(module))
    names = found.get("__all__") or (n for n, v in found.items() if not isinstance(v, types.ModuleType))
    return [name for name in names if not name.startswith("_") or name == "__version__"]
