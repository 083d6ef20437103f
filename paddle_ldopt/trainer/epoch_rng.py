"""The random states from which samplers shuffle an epoch, in memory and in a checkpoint."""

import os
import random
from typing import Any

import numpy as np

from .._files import file_errors, read_json
from . import folders


def now() -> dict[str, Any]:
    """Return the states of NumPy's and Python's generators for JSON."""
    (algorithm, keys, *rest), (version, state, gauss) = np.random.get_state(), random.getstate()
    return {"numpy": [algorithm, np.asarray(keys).tolist(), *rest], "python": [version, list(state), gauss]}


def read(folder: str) -> Any:
    """Return the states in a checkpoint, or None; raise ValueError if they are corrupt."""
    path, content = os.path.join(folder, folders.EPOCH_RNG), "The states of the random generators"
    if not os.path.exists(path):
        return None
    states = read_json(path, content)
    with file_errors(path, content):
        restore(states, of_numpy=np.random.RandomState(), of_python=random.Random())  # only a trial
    return states


def restore(states: dict[str, Any], of_numpy: Any = np.random, of_python: Any = random) -> None:
    """Restore states from `now`."""
    algorithm, keys, *rest = states["numpy"]
    of_numpy.set_state((algorithm, np.array(keys, dtype="uint32"), *rest))
    version, state, gauss = states["python"]
    of_python.setstate((version, tuple(state), gauss))
