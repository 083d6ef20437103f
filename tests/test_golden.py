"""Trajectories computed by the real peers (timm, PaddleNLP, Paddle), where that folder is at hand; not ours to ship.

`LDOPT_GOLDEN` or ``../shared/golden`` beside the checkout. What the suite itself holds is the reference of `reference`.
"""

import importlib.util
import os
import pathlib

import paddle
import pytest
from reference import make_params, take_steps

from paddle_ldopt import AdamWDL

FOLDER = pathlib.Path(os.environ.get("LDOPT_GOLDEN", pathlib.Path(__file__).parents[2] / "shared" / "golden"))
pytestmark = pytest.mark.skipif(not (FOLDER / "index.json").exists(), reason=f"no golden trajectories in {FOLDER}")


def loader():
    spec = importlib.util.spec_from_file_location("golden_load", FOLDER / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases():
    if not (FOLDER / "index.json").exists():
        return []
    index = loader().load_index(str(FOLDER))
    return [
        c
        for c in index["cases"]
        if c["family"] == "adamwdl" and c["trust"] == "reference" and c["kind"] == "trajectory"
    ]


def build(entry, params, name_dict):
    """Turn a case's options into a call of ours."""
    options = dict(entry["options"])
    how = {"parameters": list(params.values()), "weight_decay": options.get("weight_decay", 0.01)}
    rate = options.get("learning_rate", options.get("lr", 0.001))
    if options.get("sched"):
        rate = paddle.optimizer.lr.StepDecay(rate, step_size=7, gamma=0.3)
    if "global_clip" in options:
        how["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(options["global_clip"])
    if "exclude" in options:
        how["apply_decay_param_fun"] = lambda t: not any(part in name_dict[t] for part in options["exclude"])
    groups = entry.get("groups")  # timm's own ratio and weight decay of each parameter; those it froze are not in it
    if groups:
        how["apply_decay_param_fun"] = lambda t: groups.get(name_dict[t], (0, 0))[1] != 0
        how["set_param_lr_fun"] = lambda param: groups.get(name_dict[param.name], (0.0, 0))[0]
    elif "layerwise_decay" in options:
        how.update(layerwise_decay=options["layerwise_decay"], n_layers=options["n_layers"], name_dict=name_dict)
    return AdamWDL(rate, **how), rate


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("entry", cases(), ids=lambda entry: entry["id"])
def test_trajectory_is_the_peers(entry, dtype):
    case = loader().load_case(str(FOLDER), entry["id"])
    params, name_dict = make_params(case.params(), dtype)
    opt, rate = build(entry, params, name_dict)
    for step in range(1, case.nsteps + 1):
        got = take_steps(opt, params, [case.grads(step)])
        if hasattr(rate, "step"):
            rate.step()
        if step in case.steps:
            result = case.compare(step, got, fp32=dtype == "float32")
            assert result["ok"], result
