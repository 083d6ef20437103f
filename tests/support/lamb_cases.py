"""Random parameters and gradients, and training with Lamb, for its tests."""

import numpy as np
from reference import make_params, take_steps

from paddle_ldopt import Lamb

RATES = [0.01, 0.03, 0.005, 0.02]
SHAPES = {"scalar": [], "one": [1], "vector": [7], "row": [1, 5], "column": [5, 1], "matrix": [4, 3]}
SHAPES.update({"cube": [2, 3, 4], "conv": [3, 2, 2, 2]})


def random_run(steps=20, shapes=SHAPES, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {n: rng.normal(size=s) for n, s in shapes.items()}
    return arrays, [{n: rng.normal(size=s) for n, s in shapes.items()} for _ in range(steps)]


def train(arrays, grads, rate, dtype="float64", each_step=None, groups=None, **how):
    """Train new parameters; `groups` makes groups out of the parameters by name."""
    params, _ = make_params(arrays, dtype)
    opt = Lamb(rate, parameters=groups(params) if groups else list(params.values()), **how)
    after = None if each_step is None else (lambda: each_step(opt))
    return {n: a.copy() for n, a in take_steps(opt, params, grads, after).items()}


def close(got, want, dtype="float64"):
    rtol, atol = (1e-10, 1e-12) if dtype == "float64" else (2e-5, 2e-6)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=rtol, atol=atol, err_msg=name)
