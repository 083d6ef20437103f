"""AdamWeightDecay: float64 NumPy, and every argument's effect. test_parity.py has TensorFlow's trajectories."""

import inspect
import json
import warnings

import numpy as np
import paddle
import pytest
from optimizer_cases import close, same
from reference import SHAPES, make_params, random_run, take_steps
from reference_optimizers import adam_weight_decay

from paddle_ldopt.layers.map import LayerMap
from paddle_ldopt.optimizers.adam_weight_decay import AdamWeightDecay
from paddle_ldopt.optimizers.options import COMMON, LAYERWISE

OPTIONS = {
    "defaults": {},
    "weight decay": {"weight_decay_rate": 0.1},
    "betas and epsilon": {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3},
    "betas of 0": {"beta_1": 0.0, "beta_2": 0.0, "epsilon": 0.1},
    "amsgrad": {"amsgrad": True, "beta_2": 0.7},
    "decay": {"decay": 0.5, "weight_decay_rate": 0.1},
    "clipvalue": {"clipvalue": 0.3},
    "clipnorm": {"clipnorm": 0.3},
    "clipvalue, then clipnorm": {"clipvalue": 0.5, "clipnorm": 0.9},
    "global_clipnorm": {"global_clipnorm": 0.7},
}


@pytest.mark.representatives
@pytest.mark.parametrize("dtype, rtol", [("float32", 2e-5), ("float64", 1e-11)])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_matches_the_float64_reference(options, dtype, rtol):
    arrays, grads = random_run(seed=1)

    def trained(**options):
        params, _ = make_params(arrays, dtype)
        return take_steps(AdamWeightDecay(0.01, parameters=list(params.values()), **options), params, grads)

    got, plain = trained(**options), trained()
    close(got, adam_weight_decay(arrays, grads, lr=0.01, **options), arrays, rtol)
    assert not options or all(np.abs(got[n] - plain[n]).max() > 1e-4 for n in SHAPES), "each option does something"


def with_gaps(arrays, grads):
    """Leave out gradients: of "one" always, of "row" at first, of "vector" in every second step, of "3-D" once."""
    rng = {"one": lambda t: True, "row": lambda t: t < 4, "vector": lambda t: t % 2 == 0, "3-D": lambda t: t == 7}
    return [{n: None if rng.get(n, lambda t: False)(t) else grad[n] for n in arrays} for t, grad in enumerate(grads)]


def test_the_step_count_is_shared_between_groups_and_types():
    arrays, grads = random_run(steps=9)
    grads = with_gaps(arrays, grads)
    want = adam_weight_decay(arrays, grads, lr=0.01)
    double, name_dict = make_params({n: a for n, a in arrays.items() if len(n) == 3}, "float64")
    single, more = make_params({n: a for n, a in arrays.items() if len(n) != 3}, "float32")
    params = {**single, **double}
    groups = [{"params": list(single.values())}, {"params": list(double.values())}]
    opt = AdamWeightDecay(0.01, parameters=groups)
    close(take_steps(opt, params, grads), want, arrays, 2e-5)


NAMES = [*(f"encoder.layers.0.{part}" for part in ("q_proj.weight", "q_proj.bias", "norm1.weight")), "ln_1.weight"]


def exclude(*patterns):
    return {"exclude_from_weight_decay": [*patterns]}


DECAYED = {
    "nothing said": ({}, NAMES),
    "exclude": (exclude("norm", "bias"), [NAMES[0], NAMES[3]]),
    "include wins": ({**exclude("layers"), "include_in_weight_decay": ["q_proj"]}, NAMES[:2] + NAMES[3:]),
    "include is no list of all": ({"include_in_weight_decay": ["q_proj"]}, NAMES),
    "search, not match": (exclude(r"0\.q"), NAMES[2:]),
    "anchor": (exclude("^ln"), NAMES[:3]),
    "TensorFlow's :0": (exclude("bias:0$"), [NAMES[0], *NAMES[2:]]),
    "the short way": (exclude("(?i)norm", r"\bln_", "bias"), NAMES[:1]),
    "a tuple": ({"exclude_from_weight_decay": ("norm", "ln")}, NAMES[:2]),
}


@pytest.mark.parametrize("patterns, decayed", DECAYED.values(), ids=DECAYED)
@pytest.mark.parametrize("by_layers", [False, True])
def test_patterns(patterns, decayed, by_layers):
    arrays = {n: np.full([3], 2.0) for n in NAMES}
    params, name_dict = make_params(arrays, "float64")
    how = {"name_dict": name_dict}
    if by_layers:
        how = {"layers": LayerMap.from_names(NAMES, {r"layers\.0\.": 1, "^ln_1": "head"})}
        how["layers"].name_dict.update(name_dict)
    opt = AdamWeightDecay(0.5, weight_decay_rate=0.25, parameters=list(params.values()), **patterns, **how)
    got = take_steps(opt, params, [{n: np.zeros(3) for n in NAMES}])
    assert [n for n in NAMES if got[n][0] == 1.75] == decayed
    assert [n for n in NAMES if got[n][0] == 2.0] == [n for n in NAMES if n not in decayed]


def test_apply_decay_param_fun_and_patterns_must_both_agree():
    params, name_dict = make_params({n: np.ones(2) for n in NAMES})
    how = {"exclude_from_weight_decay": ["bias"], "apply_decay_param_fun": lambda t: "norm" not in name_dict[t]}
    opt = AdamWeightDecay(0.1, parameters=list(params.values()), name_dict=name_dict, **how)
    assert [n for n, p in params.items() if opt.has_weight_decay(p)] == [NAMES[0], NAMES[3]]


def test_a_pattern_that_finds_nothing_warns():
    params, name_dict = make_params({n: np.ones(2) for n in NAMES})
    how = {"parameters": list(params.values()), "name_dict": name_dict}
    wanted = (
        r"match no parameter. They were searched in names like 'encoder.layers.0.q_proj.weight:0', .*'ln_1.weight:0'. "
        r"Received: include_in_weight_decay=\['head'\], exclude_from_weight_decay=\['LayerNorm', 'bias\$'\]$"
    )
    with pytest.warns(UserWarning, match=wanted) as caught:
        AdamWeightDecay(include_in_weight_decay=["head"], **exclude("LayerNorm", "bias$", "norm"), **how)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="Give `name_dict` or `layers`"):
        AdamWeightDecay(**exclude("bias"), parameters=list(params.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AdamWeightDecay(include_in_weight_decay=["norm"], exclude_from_weight_decay=["bias", "norm"], **how)


def test_config_keeps_everything():
    params, name_dict = make_params({n: np.ones(2) for n in NAMES})
    given = {"learning_rate": 0.02, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-5, "amsgrad": True, "name": "mine"}
    given.update(weight_decay_rate=0.03, include_in_weight_decay=["ln_1"], exclude_from_weight_decay=["norm", "ln"])
    given.update(decay=0.1, clipnorm=2.0, clipvalue=0.5, global_clipnorm=None, multi_precision=True, fused=False)
    given.update(layerwise_decay=0.9, n_layers=3, batch_bytes=1000)
    opt = AdamWeightDecay(**given, parameters=list(params.values()), name_dict=name_dict)
    config = opt.get_config()
    assert config == {**given, "not_in_config": ["name_dict"]}
    read = json.loads(json.dumps(config))
    again = AdamWeightDecay.from_config(read, parameters=list(params.values()), name_dict=name_dict)
    assert again.get_config() == config
    assert [again.has_weight_decay(p) for p in params.values()] == [opt.has_weight_decay(p) for p in params.values()]
    every = {*inspect.signature(AdamWeightDecay).parameters, *LAYERWISE, *COMMON}
    every -= {"lr", "weight_decay", "parameters", "common"}
    objects = {"grad_clip", "set_param_lr_fun", "name_dict", "layers", "lr_ratio"}
    assert set(given) == every - objects, "an argument that the configuration forgets"


def test_the_defaults_are_transformers_and_the_name_is_in_the_keys_of_the_state():
    param = paddle.create_parameter([2], "float32")
    for given, prefix in (({}, ""), ({"name": "mine"}, "mine_")):
        opt = AdamWeightDecay(parameters=[param], **given)
        defaults = {"learning_rate": 1e-3, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": False}
        assert defaults.items() <= opt.get_config().items()
        param.sum().backward()
        opt.step()
        assert any(key.endswith(f".w_0_fp32_master_0_{prefix}moment1_0") for key in opt.state_dict())


def test_a_config_has_the_present_rate_and_what_it_cannot_hold_must_be_given_again():
    params, name_dict = make_params({"w": np.ones(2)})
    parameters = list(params.values())
    opt = AdamWeightDecay(0.1, parameters=parameters)
    opt.set_lr(0.05)
    config = opt.get_config()
    assert config["learning_rate"] == 0.05 and "not_in_config" not in config
    assert AdamWeightDecay.from_config(config, parameters=parameters, lr=None).get_lr() == 0.05
    rate = paddle.optimizer.lr.StepDecay(0.01, step_size=2)
    clip = paddle.nn.ClipGradByNorm(1.0)
    objects = {"grad_clip": clip, "apply_decay_param_fun": lambda t: True, "set_param_lr_fun": lambda p: 0.5}
    opt = AdamWeightDecay(rate, parameters=parameters, name_dict=name_dict, **objects)
    config = json.loads(json.dumps(opt.get_config()))
    assert config["not_in_config"] == [*objects, "name_dict", "learning_rate"]
    with pytest.raises(ValueError, match="cannot hold: name_dict, learning_rate. Received: parameters, grad_clip, "):
        AdamWeightDecay.from_config(config, parameters=parameters, **objects)
    objects["set_param_lr_fun"] = None
    again = AdamWeightDecay.from_config(config, parameters=parameters, learning_rate=rate, name_dict=None, **objects)
    assert again._learning_rate is rate and again._grad_clip is clip


def test_apply_gradients_takes_the_pairs_of_keras():
    arrays, ends = {"w": np.ones([3, 2]), "b": np.ones([2]), "unused": np.ones([2])}, []
    for keras in (False, True):
        params, _ = make_params(arrays)
        opt = AdamWeightDecay(0.1, weight_decay_rate=0.1, parameters=list(params.values()))
        grads = [paddle.full([3, 2], 0.5), paddle.full([2], -0.5), None]
        opt.apply_gradients(zip(grads, params.values()) if keras else zip(params.values(), grads))
        ends.append({n: param.numpy() for n, param in params.items()})
    assert (ends[0]["w"] < 1).all() and (ends[0]["unused"] == 1).all()
    same(*ends)


def test_the_divisor_of_steps_to_come():
    param = paddle.create_parameter([2], "float32")
    opt = AdamWeightDecay(0.1, decay=0.1, parameters=[param])
    for _ in range(3):
        param.grad = paddle.ones([2])
        opt.step()
    assert [opt.lr_divisor(ahead) for ahead in (0, 1, 5)] == pytest.approx([1.3, 1.4, 1.8])
    assert AdamWeightDecay(0.1, parameters=[param]).lr_divisor(7) == 1.0
