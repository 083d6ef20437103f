"""AdamWDL follows the trajectories of PaddleNLP, Paddle and timm."""

import paddle
import pytest
from golden_cases import cases, each, follow

from paddle_ldopt import AdamWDL


def adamwdl(entry, params, name_dict):
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
    return AdamWDL(rate, **how), getattr(rate, "step", None)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@each(cases("adamwdl", trusts=("reference",)))
def test_trajectory_is_the_peers(entry, dtype):
    follow(entry, dtype, lambda params, name_dict: adamwdl(entry, params, name_dict))
