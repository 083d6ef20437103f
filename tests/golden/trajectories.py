"""Read the recorded trajectories of the peers; NumPy only.

`index.json` has an entry for each case, `trajectories.npz` an array for each case and for each set of inputs. An array
has all parameters one after the other, in the order of "parameters" in the index. `make.py` writes these files.
"""

import functools
import json
import math
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent
INDEX = FOLDER / "index.json"
ARRAYS = FOLDER / "trajectories.npz"


@functools.lru_cache
def load_index():
    return json.loads(INDEX.read_text(encoding="utf-8"))


@functools.lru_cache
def load_arrays():
    with np.load(ARRAYS, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def split(flat, shapes):
    """Return name -> array [..., *shape], given arrays [..., size of all]."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    pieces = np.split(flat, ends[:-1], axis=-1)
    return {name: a.reshape((*flat.shape[:-1], *shape)) for (name, shape), a in zip(shapes.items(), pieces)}


def join(arrays):
    """Return all arrays of a dict in one, flat: what `split` takes apart."""
    return np.concatenate([np.asarray(a, dtype="float64").reshape(-1) for a in arrays.values()])


def inputs(arrays, shapes, kind, names=None):
    """Return (name -> start, [name -> gradient of a step, None if there is none]) for some or all of the parameters."""
    start = split(arrays["start"], shapes)
    grads = split(arrays["gradients"], shapes)
    absent = split(arrays["absent"], dict.fromkeys(shapes, ()))
    names = names or list(shapes)
    steps = [
        {name: None if kind == "gaps" and absent[name][step] else grads[name][step] for name in names}
        for step in range(len(arrays["gradients"]))
    ]
    return {name: start[name] for name in names}, steps


def error(got, recorded, start, dtype="float64"):
    """Return (largest error, where), relative to how far the peer moved the parameter in all, rounding of it aside.

    `got` and `recorded` are ours and the peer's values after each recorded step by name, `start` where both started.
    Four roundings of the largest value in `dtype`, in which ours were computed, are no error.
    """
    worst = (0.0, None)
    for name, peer in recorded.items():
        difference = float(np.abs(got[name] - peer).max())
        moved = float(np.abs(peer - start[name]).max())
        rounding = 4 * np.finfo(dtype).eps * float(max(np.abs(peer).max(), np.abs(start[name]).max()))
        excess = max(difference - rounding, 0.0) if math.isfinite(difference) else math.inf
        relative = excess / moved if moved else (math.inf if excess else 0.0)
        worst = max(worst, (relative, name), key=lambda pair: pair[0])
    return worst
