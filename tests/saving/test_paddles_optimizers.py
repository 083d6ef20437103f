"""Files of Paddle's optimizers after `apply_layerwise_decay`. test_saving.py resumes each class."""

import dataclasses
import re

import numpy as np
import paddle
import pytest
from saving_cases import ALL, HALF, UNTRAINED, Run, bits, refused, same

import paddle_ldopt as ldopt
from paddle_ldopt._paddle import create_state
from paddle_ldopt.parallel import save_checkpoint
from paddle_ldopt.saving.safetensors_file import read_record

MOVING = ldopt.LayerDecay(
    0.5, end=1.0, towers={"blocks": ldopt.LayerDecay(0.6, end=0.9, scale=2.0)}, multipliers={"bias$": 2.0, "head": 0.5}
)
GROUPS = [{"learning_rate": 0.5, "weight_decay": 0.2}, {"beta1": 0.7, "grad_clip": paddle.nn.ClipGradByNorm(0.1)}]


def schedule():
    return ldopt.get_scheduler("cosine", 0.05, 1, ALL + 2)


@pytest.mark.parametrize("case", ["Momentum", "AdamW", "NAdam", "Lamb"])
def test_a_moving_decay_with_towers_multipliers_and_groups_goes_on(case, path):
    def build():
        return Run(case, rate=schedule(), decay=MOVING, groups=GROUPS)

    whole, half, again = build().train(ALL), build().train(HALF), build()
    ldopt.save_optimizer(path, half.optimizer, half.model, step=HALF)
    again.with_weights_of(half)
    assert ldopt.load_optimizer(path, again.optimizer, again.model).step == HALF
    assert same(whole.everything(), again.train(ALL).everything())


@pytest.mark.parametrize("case", UNTRAINED)
def test_float32_masters_are_saved(case, path):
    run, other = Run(case), Run(case, seed=1)
    with paddle.utils.unique_name.guard():
        create_state(run.optimizer, run.model.parameters())  # as the first step on a GPU
    for name, tensor in run.optimizer.state_dict()["master_weights"].items():
        tensor.set_value(np.random.default_rng(len(name)).standard_normal(tensor.shape).astype("float32"))
    ldopt.save_optimizer(path, run.optimizer, run.model)
    ldopt.load_optimizer(path, other.optimizer, other.model)
    assert "head.bias.master" in other.state() and same(run.state(), other.state())


def test_a_parameter_without_state_in_the_file_starts_anew(path):
    groups = [{"beta1": 0.7}, {"beta1": 0.8}]
    idle, used = (Run("Adam", idle=name, groups=groups) for name in ("head.bias", None))
    idle.train(HALF), used.train(HALF)
    ldopt.save_optimizer(path, idle.optimizer, idle.model)
    assert ldopt.load_optimizer(path, used.optimizer, used.model).missing == ("head.bias",)
    used.with_weights_of(idle)
    idle.idle = None
    assert same(idle.train(ALL).everything(), used.train(ALL).everything())


def test_paddles_own_files_are_read(tmp_path):
    half, again = Run("Momentum").train(HALF), Run("Momentum")
    paddle.save(half.optimizer.state_dict(), str(tmp_path / "optimizer.pdopt"))
    again.with_weights_of(half)
    ldopt.load_optimizer(tmp_path / "optimizer.pdopt", again.optimizer)
    assert same(Run("Momentum").train(ALL).everything(), again.train(ALL).everything())


def test_saving_changes_nothing(path):
    run = Run("Lamb").train(HALF)
    before, attributes = bits(run.everything()), dict(vars(run.optimizer))
    ldopt.save_optimizer(path, run.optimizer, run.model)
    assert bits(run.everything()) == before
    assert all(vars(run.optimizer)[name] is value for name, value in attributes.items())


L1 = paddle.regularizer.L1Decay(0.1)
LINEAR = ldopt.LayerDecay(convention="linear", bound=0.3)
CLIPS = [paddle.nn.ClipGradByNorm(norm) for norm in (1.0, 2.0)]
OTHERS = {  # case, options in the file, options now, for `changed`, part of the error
    "number": ("Momentum", {}, {"momentum": 0.5}, ["momentum"], r"momentum=0.5 \(in the file 0.9\)"),
    "flag": ("Lamb", {}, {"always_adapt": True}, ["always_adapt"], r"always_adapt=True \(in the file False\)"),
    "L2": ("SGD", {"weight_decay": 0.1}, {"weight_decay": 0.2}, ["weight_decay"], "'coeff': 0.2.*'coeff': 0.1"),
    "L2 of Momentum": ("Momentum", {}, {"weight_decay": 0.2}, ["weight_decay"], r"coeff=0.2 \(in the file 0.1\)"),
    "no L2": ("Momentum", {}, {"weight_decay": None}, ["weight_decay"], r"method='' \(in the file 'l2_decay'\)"),
    "L1 of Momentum": ("Momentum", {}, {"weight_decay": L1}, ["weight_decay"], "'L1Decay'"),
    "of Lamb": ("Lamb", {}, {"lamb_weight_decay": 0.2}, ["weight_decay"], r"=0.2 \(in the file 0.01\)"),
    "L1": ("NAdam", {"weight_decay": 0.1}, {}, ["weight_decay"], "'L1Decay'.*'L2Decay'"),
    "decayed": ("AdamW", {}, {"apply_decay_param_fun": lambda name: False}, ["apply_decay_param_fun"], "decayed=False"),
    "excluded": (
        "Lamb",
        {},
        {"exclude_from_weight_decay_fn": lambda param: True},
        ["apply_decay_param_fun"],
        "decayed=",
    ),
    "clip": ("SGD", {"grad_clip": CLIPS[0]}, {"grad_clip": CLIPS[1]}, ["grad_clip"], "'clip_norm': 2.0"),
    "ratios": ("SGD", {}, {"decay": 0.6}, ["layerwise_decay"], "ratio=0.21"),
    "convention": ("SGD", {}, {"decay": LINEAR}, ["layerwise_decay"], "ratio="),
    "rate": ("SGD", {}, {"rate": 0.5}, ["learning_rate"], r"learning_rate=0.5 \(in the file 0.001\)"),
    "group": (
        "SGD",
        {"groups": [{}, {"grad_clip": CLIPS[0]}]},
        {"groups": [{}, {"grad_clip": CLIPS[1]}]},
        ["grad_clip"],
        "'clip_norm': 2.0.* of '",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_of_other_settings_is_refused_unless_they_are_meant(what, path):
    case, saved, present, changed, says = OTHERS[what]
    run, other = Run(case, **saved).train(1), Run(case, seed=1, **present).train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    with refused(rf"changed={re.escape(str(changed))}.*{says}", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)
    ldopt.load_optimizer(path, other.optimizer, other.model, changed=changed)
    assert same(run.state(), other.state())


def test_the_regularizer_of_a_parameter_is_compared(path):
    run, other = Run("SGD"), Run("SGD")
    run.model.head.bias.regularizer = paddle.regularizer.L2Decay(0.1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    with refused(r"regularizer=None \(in the file .*'coeff': 0.1}\) of 'head.bias'", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)


def test_the_record_names_paddles_class_and_the_decay(path):
    run = Run("Lamb")
    ldopt.save_optimizer(path, run.optimizer, run.model)
    record, _ = read_record(path)
    assert record["optimizer"] == "paddle.optimizer.Lamb" and record["step"] is None
    assert record["layerwise"] == {**dataclasses.asdict(ldopt.LayerDecay(0.5)), "n_layers": 2, "constant": True}
    assert record["arguments"] == {"always_adapt": False, "multi_precision": False}
    assert record["parameters"]["blocks.0.weight"]["layer"] == ["blocks", 1, 2]


def test_a_decay_that_moves_elsewhere_is_refused(path):
    still = ldopt.LayerDecay(0.5)
    run, other = (Run("SGD", rate=schedule(), decay=decay) for decay in (MOVING, still))
    ldopt.save_optimizer(path, run.optimizer, run.model)
    with refused(r"changed=\['layerwise_decay'\]", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)


@pytest.mark.parametrize(("case", "name"), [("Adam", "paddle.optimizer.Adam"), ("lamb", "Lamb")])
def test_a_file_of_another_class_is_refused(case, name, path):
    run, other = Run("Lamb").train(1), Run(case).train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    with refused(f"is of paddle.optimizer.Lamb: .*Received: optimizer of type {name}$", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)


class OfAUser(paddle.optimizer.SGD):
    """It might keep state anywhere."""


def test_state_that_would_be_lost_is_refused(path):
    run = Run("SGD")
    layers = ldopt.LayerMap.from_model(run.model, rules={"^scale$": "head"})
    plain, own = (cls(0.1, parameters=run.model.parameters()) for cls in (paddle.optimizer.SGD, OfAUser))
    ldopt.apply_layerwise_decay(own, layers, 0.5)
    for optimizer in (plain, own):
        with refused("paddle.optimizer after `apply_layerwise_decay`", TypeError, run):
            ldopt.save_optimizer(path, optimizer, run.model)
    with refused("LookAhead keeps state of its own", TypeError, run):
        ldopt.save_optimizer(path, paddle.incubate.LookAhead(run.optimizer), run.model)
    ldopt.save_optimizer(path, ldopt.apply_layerwise_decay(plain, layers, 1.0), run.model)


def test_a_checkpoint_for_any_layout_is_refused(path):
    run = Run("SGD")
    with refused("one of paddle_ldopt; `paddle.save", TypeError, run):
        save_checkpoint(path, run.model, run.optimizer)


@pytest.mark.parametrize("case", ["Momentum", "lamb"])
def test_a_parameter_that_was_cast_after_its_first_step_is_refused(case, path):
    fresh, run = Run(case, multi_precision=True), Run(case, multi_precision=True).train(1)
    for one in (fresh, run):
        one.model.head.to(dtype="bfloat16")
    ldopt.save_optimizer(path, fresh.optimizer, fresh.model)
    for call in (ldopt.save_optimizer, ldopt.load_optimizer):
        with refused("'linear_3.w_0' had another type when its state was created", ValueError, run):
            call(path, run.optimizer, run.model)
