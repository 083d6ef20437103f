"""The states of the generators that samplers shuffle with, NumPy's and Python's, at the beginning of an epoch."""

import json
import os
import random
from typing import Any, Optional

import numpy as np

from .folders import EPOCH_RNG


def take_epoch_rng() -> dict[str, Any]:
    """Return the states of both generators, as JSON can hold them."""
    kind, keys, *rest = np.random.get_state()
    version, state, gauss = random.getstate()
    return {"numpy": [kind, np.asarray(keys).tolist(), *rest], "python": [version, list(state), gauss]}


def load_epoch_rng(folder: str) -> Optional[dict[str, Any]]:
    """Return what `take_epoch_rng` gave in the epoch of a checkpoint, None if it has none; raise if it is damaged."""
    path = os.path.join(folder, EPOCH_RNG)
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            epoch_rng = json.load(file)
        set_epoch_rng(epoch_rng, np.random.RandomState(), random.Random())
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise ValueError(f"The states of the generators cannot be read ({error}). Received: {path!r}") from error
    return epoch_rng


def set_epoch_rng(epoch_rng: dict[str, Any], of_numpy: Any = np.random, of_python: Any = random) -> None:
    """Put the generators into the states that `take_epoch_rng` gave."""
    kind, keys, *rest = epoch_rng["numpy"]
    of_numpy.set_state((kind, np.array(keys, dtype="uint32"), *rest))
    version, state, gauss = epoch_rng["python"]
    of_python.setstate((version, tuple(state), gauss))
