"""Optimizers and schedules follow the unpublished recordings of their peers, and refuse what they refuse.

They are not ours to ship: `LDOPT_GOLDEN`, or ``../shared/golden`` beside the checkout. test_parity.py has what is.
"""

import functools
import importlib.util
import os
import pathlib
import re
import warnings

import numpy as np
import paddle
import pytest
from reference import make_params, take_steps
from schedule_cases import optimizer_of, rates

from paddle_ldopt import Adafactor, AdamWDL, AdamWeightDecay, Came, Lamb, WarmUp, create_optimizer, schedules

FOLDER = pathlib.Path(os.environ.get("LDOPT_GOLDEN", pathlib.Path(__file__).parents[3] / "shared" / "golden"))
ERRORS = {"ValueError": ValueError, "TypeError": TypeError}


@functools.lru_cache
def loader():
    spec = importlib.util.spec_from_file_location("golden_load", FOLDER / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for slow in ("inputs", "load_index", "positions", "signs"):  # many cases share them
        setattr(module, slow, functools.lru_cache(getattr(module, slow)))
    return module


def cases(family, kind="trajectory", trusts=("reference", "compatible"), cls=""):
    """Return the index entries of a family whose class ends so, none if the folder is not there."""
    entries = loader().load_index(str(FOLDER))["cases"] if (FOLDER / "index.json").exists() else []
    wanted = [c for c in entries if c["family"] == family and c["kind"] == kind and c["trust"] in trusts]
    return [entry for entry in wanted if entry["cls"].endswith(cls)]


def each(entries):
    """Parametrize a test by `entry`, an index entry; it is skipped where the folder is not there."""
    missing = [pytest.param({"id": "no folder"}, marks=pytest.mark.skip(f"no golden trajectories in {FOLDER}"))]
    entries = entries if (FOLDER / "index.json").exists() else missing
    return pytest.mark.parametrize("entry", entries, ids=lambda entry: entry["id"])


def load(entry):
    return loader().load_case(str(FOLDER), entry["id"])


def follow(entry, dtype, build, tol=None):
    """Take the peer's steps with an optimizer of ours and compare where the peer was recorded.

    `build` takes (parameters by name, name_dict) and returns (optimizer, what to call after each step or None).
    """
    case = load(entry)
    params, name_dict = make_params(case.params(), dtype)
    optimizer, after_step = build(params, name_dict)
    for step in range(1, case.nsteps + 1):
        got = take_steps(optimizer, params, [case.grads(step)], after_step)
        if step in case.steps:
            result = case.compare(step, got, fp32=dtype == "float32", tol=tol)
            assert result["ok"], result


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
TENSORFLOW = cases("adamweightdecay", cls=".AdamWeightDecay")
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
    says = "Received: " if entry["family"] == "came" else re.escape(entry["error"]["match"])
    parameters = list(make_params({"w": np.ones((2, 2))})[0].values())
    with pytest.raises(ERRORS[entry["error"]["type"]], match=says):
        BUILD[entry["family"]](dict(entry["options"]), parameters, {}, entry)


@pytest.mark.parametrize("named", ["name_dict", "tensor names"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@each(cases("adamweightdecay", cls=".create_optimizer"))
def test_trajectory_of_the_factory_is_tensorflows(entry, dtype, named):
    def build(params, name_dict):
        if named == "tensor names":
            for name, param in params.items():
                param.name = name
            name_dict = None
        given = {**entry["options"], "parameters": list(params.values()), "name_dict": name_dict}
        optimizer, schedule = create_optimizer(**given)
        return optimizer, schedule.step

    with paddle.utils.unique_name.guard():
        follow(entry, dtype, build)


OF_TENSORFLOW = ("create_optimizer", "WarmUp", "AdafactorSchedule")


def functions(kind):
    """Return the entries of transformers' functions."""
    return [entry for entry in cases("schedule", kind) if not entry["cls"].endswith(OF_TENSORFLOW)]


def call(entry, optimizer):
    options = dict(entry["options"])
    first = [options.pop("name")] if "name" in options else []
    return getattr(schedules, entry["cls"].rsplit(".", 1)[1])(*first, optimizer, **options)


@pytest.mark.parametrize("first", ["optimizer", "learning rate"])
@each(functions("schedule"))
def test_rates_are_the_peers(entry, first):
    want = load(entry).arrays["lr"]
    want = want[:, 0] if want.ndim == 2 else want
    (peak,) = entry["base_lr"]
    optimizer = optimizer_of(peak)
    schedule = call(entry, optimizer if first == "optimizer" else peak)
    got = []
    for t in range(len(want)):
        got.append(optimizer.get_lr() if first == "optimizer" else schedule())
        metric = loader()._u01(4242 + t, 1)[0] * 0.1 + 1 / (1 + 0.05 * min(t, 60))
        schedule.step(*([metric] if entry.get("metric") else []))
    np.testing.assert_allclose(got, want, **entry["tol"])


@each(functions("error"))
def test_errors_of_schedules_are_the_peers(entry):
    with pytest.raises(ERRORS[entry["error"]["type"]], match="Received: ") as error:
        call(entry, optimizer_of(*entry["base_lr"]))
    # the peer's sentence, spelt right
    assert entry["error"]["match"].replace("be be", "be").rstrip(".") in str(error.value)


def keras_cosine(step):
    """Keras' CosineDecay(1e-2, 120); it computes in float32, which shows where the cosine is near -1."""
    done = np.float32(min(step, 120)) / np.float32(120)
    return np.float32(1e-2) * np.float32(0.5) * (np.float32(1) + np.cos(np.float32(np.pi) * done))


DECAYS = {"CosineDecay(1e-2, 120)": keras_cosine, "lambda s: 0.5e-3 (jumps)": lambda step: 0.5e-3}


@each(cases("schedule", "schedule", cls=(".WarmUp", ".create_optimizer")))
def test_warm_ups_are_tensorflows(entry):
    options = dict(entry["options"])
    if entry["cls"].endswith("WarmUp"):
        schedule = WarmUp(**{**options, "decay_schedule_fn": DECAYS[options["decay_schedule_fn"]]})
    else:
        _, schedule = create_optimizer(**options, parameters=[paddle.create_parameter([2], "float32")])
    want = load(entry).arrays["lr"]
    np.testing.assert_allclose(rates(schedule, len(want)), want, **entry["tol"])
