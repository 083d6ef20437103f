"""Files that version 0.2 wrote (commit 88b63c83, Paddle 3.3.1) load, and the run goes on.

They have four steps; values.npz has the parameters before and after three more steps with Paddle's operations.
"""

import pathlib

import numpy as np
import paddle
import pytest
from saving_cases import Run

import paddle_ldopt as ldopt

FOLDER = pathlib.Path(__file__).parents[1] / "support" / "files_of_0_2"


@pytest.mark.parametrize("case", ["adamwdl", "lamb bf16", "came compressed"])
def test_a_run_goes_on(case):
    run = Run(case, rate=ldopt.get_scheduler("cosine", 1e-2, 2, 10), decay=0.65, width=8, fused=False)
    params = run.model.parameters()
    with np.load(FOLDER / "values.npz") as values:
        before, after = values[f"{case} before"], values[f"{case} after"]
    for param, part in zip(params, np.split(before, np.cumsum([param.size for param in params])[:-1])):
        param.set_value(part.reshape(param.shape))
    report = ldopt.load_optimizer(FOLDER / f"{case.replace(' ', '_')}.safetensors", run.optimizer, run.model)
    assert report.step == 4 and not report.missing
    with paddle.utils.unique_name.guard():
        for step in range(4, 7):
            rng = np.random.default_rng(step)
            for param in params:
                param.grad = paddle.to_tensor(rng.standard_normal(param.shape).astype("float32")).astype(param.dtype)
            run.optimizer.step()
            run.rate.step()
    # other processors and Paddles add in another order
    near = paddle.__version__.startswith("3.3") and paddle.get_device() == "cpu"
    flat = np.concatenate([value.reshape(-1) for value in run.values().values()])
    np.testing.assert_allclose(flat, after, rtol=0.0, atol=1e-7 if near else 1e-4)
