"""Every optimizer follows the unpublished recordings of its peers, and refuses what they refuse."""

import re
import warnings

import numpy as np
import paddle
import pytest
from golden_cases import cases, each, follow
from reference import make_params

from paddle_ldopt import Adafactor, AdamWDL, AdamWeightDecay, Came, Lamb


def adamwdl(options, parameters, name_dict, entry):
    how = {"parameters": parameters, "weight_decay": options.get("weight_decay", 0.01)}
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
    return AdamWDL(rate, **how)


def came(options, parameters, name_dict, entry):
    if entry["peer"] != "mindformers":  # the authors' have a constant beta2, and two eps
        beta1, beta2, beta3 = options.pop("betas", (0.9, 0.999, 0.9999))
        eps1, eps3 = options.pop("eps", (1e-30, 1e-16))
        rate = options.pop("lr")
        options.update(learning_rate=rate, eps=(eps1, 1e-3, eps3), beta1=beta1, beta2=beta2, beta3=beta3)
    return Came(parameters=parameters, **options)


def lamb(options, parameters, name_dict, entry):
    how = {"weight_decay": options.get("lamb_weight_decay", options.get("weight_decay", 0.0))}
    how["beta1"] = options.get("beta1", options.get("b1", 0.9))
    how["beta2"] = options.get("beta2", options.get("b2", 0.999))
    how["eps"] = options.get("epsilon", options.get("eps", 1e-6))
    if "exclude" in options:  # ours leaves out "beta" and "gamma" as soon as it is told the structured names
        assert options["exclude"] == ["beta", "gamma"]
        how["name_dict"] = name_dict
    if "global_clip" in options:
        how["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(options["global_clip"])
    return Lamb(options.get("learning_rate", options.get("lr")), parameters=parameters, **how)


def adafactor(options, parameters, name_dict, entry):
    if entry["peer"] == "torch":  # its rate of 0.01 is a relative step, its d the clip threshold
        options = {"clip_threshold": 3.0}
    return Adafactor(parameters, **options)


def adam_weight_decay(options, parameters, name_dict, entry):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "LayerNorm" and "layer_norm" at least one finds nothing
        return AdamWeightDecay(**options, parameters=parameters, name_dict=name_dict)


BUILD = {"adamwdl": adamwdl, "came": came, "lamb": lamb, "adafactor": adafactor, "adamweightdecay": adam_weight_decay}
TENSORFLOW = [case for case in cases("adamweightdecay") if case["cls"].endswith(".AdamWeightDecay")]
TENSORFLOW += [case for case in cases("adamweightdecay", trusts=("quirk",)) if "anchor" in case["id"]]
OTHERS = [case for family in ("adamwdl", "came", "lamb", "adafactor") for case in cases(family)]
# elsewhere torch's weight decay and eps1 differ
OTHERS += [c for c in cases("adafactor", trusts=("quirk",)) if (c["peer"], c["opt"]) == ("torch", "d3")]


def check(entry, dtype, options, tol=None):
    def build(params, name_dict):
        optimizer = BUILD[entry["family"]](dict(options), list(params.values()), name_dict, entry)
        return optimizer, getattr(optimizer._learning_rate, "step", None)

    follow(entry, dtype, build, tol)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@each(OTHERS + TENSORFLOW)
def test_trajectory_is_the_peers(entry, dtype):
    check(entry, dtype, entry["options"])


@each(TENSORFLOW)
def test_trajectory_with_the_numbers_that_tensorflow_rounds(entry):
    check(entry, "float64", entry["effective_options"], entry["tol_effective"])


@each([case for family in ("came", "adafactor") for case in cases(family, "error", trusts=("reference",))])
def test_what_the_peers_refuse_is_refused(entry):
    error = {"ValueError": ValueError, "TypeError": TypeError}[entry["error"]["type"]]
    says = "Received: " if entry["family"] == "came" else re.escape(entry["error"]["match"])
    parameters = list(make_params({"w": np.ones((2, 2))})[0].values())
    with pytest.raises(error, match=says):
        BUILD[entry["family"]](dict(entry["options"]), parameters, {}, entry)
