"""`save_optimizer` and `load_optimizer`: a resume is exact, and whatever is wrong with a file changes nothing."""

import dataclasses
import hashlib
import json
import os
import pickle
import re
import stat
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle
import pytest
import safetensors.paddle
from saving_cases import CASES, Run, bits, digest, refused, same, sealed, write_raw

import paddle_ldopt as ldopt
from paddle_ldopt.plots import plot_schedule, write_schedule
from paddle_ldopt.saving import safetensors_file
from paddle_ldopt.trainer.folders import write_whole

HALF, ALL = 3, 6
SLOW = (pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(1800))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "optimizer.safetensors")


@pytest.fixture
def saved(path):
    """A file of three steps of Came, all factored state in it."""
    run = Run("came").train(HALF)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    return path


@pytest.fixture
def victim():
    """An optimizer that has state of its own, and what must not change."""
    return Run("came", seed=1).train(1)


# ---- a resume is exact


@pytest.mark.parametrize("fused", [None, False], ids=["fused", "operations"])
@pytest.mark.parametrize("case", CASES)
def test_a_resume_is_exact(case, fused, path):
    whole = Run(case, fused=fused).train(ALL)
    half = Run(case, fused=fused).train(HALF)
    ldopt.save_optimizer(path, half.optimizer, half.model, step=HALF)
    again = Run(case, fused=fused).with_weights_of(half)
    report = ldopt.load_optimizer(path, again.optimizer, again.model)
    assert report.step == HALF
    assert same(half.state(), again.state())
    assert same(whole.everything(), again.train(ALL).everything())


@pytest.mark.parametrize("case", CASES)
def test_what_is_loaded_replaces_what_was_there(case, path):
    half, other = Run(case).train(HALF), Run(case, seed=1).train(ALL)
    ldopt.save_optimizer(path, half.optimizer, half.model)
    other.with_weights_of(half)
    ldopt.load_optimizer(path, other.optimizer, other.model)
    other.done = HALF
    assert same(Run(case).train(ALL).everything(), other.train(ALL).everything())


@pytest.mark.parametrize("case", CASES)
def test_an_optimizer_that_has_taken_no_step(case, path):
    fresh, used = Run(case), Run(case, seed=1).train(HALF)
    ldopt.save_optimizer(path, fresh.optimizer, fresh.model)
    again = Run(case)
    assert not ldopt.load_optimizer(path, again.optimizer, again.model).matched
    ldopt.load_optimizer(path, used.with_weights_of(fresh).optimizer, used.model)  # begins anew
    used.done = 0
    expected = fresh.train(HALF).everything()
    assert same(expected, again.train(HALF).everything()) and same(expected, used.train(HALF).everything())


def test_a_parameter_without_a_gradient_has_no_state_and_may_get_one_later(path):
    run = Run("lamb", idle="head.bias").train(HALF)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    again = Run("lamb").with_weights_of(run)
    assert ldopt.load_optimizer(path, again.optimizer, again.model).missing == ("head.bias",)
    run.idle = None
    assert same(run.train(ALL).everything(), again.train(ALL).everything())


def test_names_are_the_models_wherever_they_come_from(path):
    run = Run("adamwdl").train(HALF)
    ldopt.save_optimizer(path, run.optimizer, paddle.DataParallel(run.model))
    for seed in range(2):  # in a process where Paddle's own names are others
        again = Run("adamwdl", seed=seed, guard=False).with_weights_of(run)
        assert {p.name for p in again.model.parameters()} != {p.name for p in run.model.parameters()}
        ldopt.load_optimizer(path, again.optimizer)  # built with `layers`
        assert same(run.state(), again.state())
    plain = Run("lamb", layerwise=False).train(HALF)
    ldopt.save_optimizer(path, plain.optimizer, plain.model)
    other = Run("lamb", layerwise=False, guard=False)
    with refused("give `model`", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer)
    ldopt.save_optimizer(path, plain.optimizer)
    with refused("Paddle's names", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)
    with refused("of another model", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer)
    again = Run("lamb", layerwise=False)
    ldopt.load_optimizer(path, again.optimizer)
    assert same(plain.state(), again.state())


def test_another_process_reads_it(path):
    run = Run("came").train(HALF)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; import paddle; [paddle.nn.Linear(2, 2) for _ in range(5)];"
        "from saving_cases import Run, digest; import paddle_ldopt as ldopt; run = Run('came', guard=False);"
        "print(ldopt.load_optimizer(sys.argv[1], run.optimizer, run.model).step, digest(run.state()))"
    )
    out = subprocess.run([sys.executable, "-c", code, path, *sys.path], capture_output=True, text=True, check=True)
    assert out.stdout.split()[-2:] == [str(HALF), digest(run.state())]


@pytest.mark.parametrize("make", ["GreedyLR", "LinearWarmup", "ReduceOnPlateau"])
def test_schedules_go_on_and_so_does_a_loss_scaler(make, path):
    def schedule():
        if make == "GreedyLR":
            return ldopt.GreedyLR(1e-3, window_size=3, patience=0)
        if make == "LinearWarmup":
            inner = paddle.optimizer.lr.ExponentialDecay(1e-3, 0.9)
            return paddle.optimizer.lr.LinearWarmup(inner, 2, 0.0, 1e-3)
        return paddle.optimizer.lr.ReduceOnPlateau(1e-3, patience=0)

    def advance(schedule, loss):
        schedule.step(*([] if make == "LinearWarmup" else [paddle.to_tensor(loss)]))

    losses = [3.0, 2.7, 2.9, 3.1, 0.3, 4.0, 3.0]
    run, scaler = Run("adamwdl", rate=schedule()), ldopt.DynamicLossScaler(2.0**10, scale_factor=2, scale_window=2)
    again, other = Run("adamwdl", rate=schedule()), ldopt.DynamicLossScaler(1.0, scale_factor=2, scale_window=2)
    for loss in losses[:3]:
        advance(run.rate, loss)
    scaler.update(True)
    ldopt.save_optimizer(path, run.optimizer, run.model, scaler=scaler)
    with refused("`scaler` is to be given", ValueError, again):
        ldopt.load_optimizer(path, again.optimizer, again.model)
    ldopt.load_optimizer(path, again.optimizer, again.model, scaler=other)
    assert other.state_dict() == scaler.state_dict()
    assert again.rate.state_dict() == run.rate.state_dict()
    for loss in losses[3:]:
        advance(run.rate, loss), advance(again.rate, loss)
        assert again.rate() == run.rate()


def test_paddles_grad_scaler_is_saved_too(path, monkeypatch):
    scaler = paddle.amp.GradScaler(enable=False)  # on a CPU it switches itself off: its state is empty
    run = Run("lamb").train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model, scaler=scaler)
    ldopt.load_optimizer(path, run.optimizer, run.model, scaler=scaler)
    loaded = []
    state = {"scale": np.array([65536.0], "float32"), "incr_count": 3, "use_dynamic_loss_scaling": True}
    monkeypatch.setattr(scaler, "state_dict", lambda: state)
    monkeypatch.setattr(scaler, "load_state_dict", loaded.append)
    ldopt.save_optimizer(path, run.optimizer, run.model, scaler=scaler)
    ldopt.load_optimizer(path, run.optimizer, run.model, scaler=scaler)
    assert loaded[0]["scale"].dtype == np.float32 and loaded == [state]


@pytest.mark.parametrize(
    "was, now, shown",
    [
        (
            lambda: ldopt.get_scheduler("cosine", 1e-3, 2, 10),
            lambda: ldopt.get_scheduler("linear", 1e-3, 2, 10),
            "'class': 'Linear'.*'class': 'Cosine'",
        ),
        (
            lambda: ldopt.get_scheduler("linear", 1e-3, 2, 10),
            lambda: ldopt.get_scheduler("linear", 1e-3, 2, 20),
            "'decay': 18.*'decay': 8",
        ),
        (
            lambda: paddle.optimizer.lr.LinearWarmup(paddle.optimizer.lr.PolynomialDecay(1e-3, 10), 2, 0.0, 1e-3),
            lambda: paddle.optimizer.lr.LinearWarmup(paddle.optimizer.lr.PolynomialDecay(1e-3, 20), 2, 0.0, 1e-3),
            "'decay_steps': 20.*'decay_steps': 10",
        ),
        (
            lambda: ldopt.get_scheduler("reduce_lr_on_plateau", 1e-3),
            lambda: ldopt.get_scheduler("reduce_lr_on_plateau", 2e-3),
            "'base_lr': 0.002.*'base_lr': 0.001",
        ),
    ],
    ids=["kind", "steps", "within a warm-up", "peak"],
)
def test_a_schedule_with_other_numbers_is_refused_unless_it_is_meant(was, now, shown, path):
    run, same_again, other = Run("adamwdl", rate=was()), Run("adamwdl", rate=was()), Run("adamwdl", rate=now())
    schedule = run.optimizer._learning_rate
    for _ in range(2):
        schedule.step(*([0.5] if hasattr(schedule, "patience") else []))
    run.train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    ldopt.load_optimizer(path, same_again.optimizer, same_again.model)
    assert same_again.optimizer.get_lr() == run.optimizer.get_lr()
    with refused(rf"changed=\['schedule'\].*{shown}", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)
    ldopt.load_optimizer(path, other.optimizer, other.model, changed=["schedule"])
    assert other.optimizer._learning_rate.last_epoch == run.optimizer._learning_rate.last_epoch


def test_a_scaler_that_refuses_leaves_the_schedule_as_it_was(path):
    class Refusing:
        def state_dict(self):
            return {"scale": 1.0}

        def set_state_dict(self, state):
            if state["scale"] > 1.0:
                raise RuntimeError("no")

    scaler = Refusing()
    run = Run("adamwdl", rate=paddle.optimizer.lr.StepDecay(1e-3, 2)).train(HALF)
    scaler.state_dict = lambda: {"scale": 2.0}
    ldopt.save_optimizer(path, run.optimizer, run.model, scaler=scaler)
    other = Run("adamwdl", rate=paddle.optimizer.lr.StepDecay(1e-3, 2), seed=1).train(1)
    with refused("cannot be loaded", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model, scaler=Refusing())


def test_lambs_own_schedule_goes_on_and_may_begin(path):
    rates = [1e-3 * i for i in range(1, ALL + 1)]
    whole, half = Run("lamb", rate=rates).train(ALL), Run("lamb", rate=rates).train(HALF)
    ldopt.save_optimizer(path, half.optimizer, half.model)
    again = Run("lamb", rate=rates).with_weights_of(half)
    assert ldopt.load_optimizer(path, again.optimizer, again.model).step == HALF
    assert again.optimizer.get_lr() == rates[HALF]
    assert same(whole.everything(), again.train(ALL).everything())
    plain = Run("lamb", rate=1e-3).train(HALF)
    ldopt.save_optimizer(path, plain.optimizer, plain.model)
    scheduled = Run("lamb", rate=rates)
    ldopt.load_optimizer(path, scheduled.optimizer, scheduled.model, changed=["learning_rate"])
    assert scheduled.optimizer.get_lr() == rates[HALF]
    ldopt.save_optimizer(path, scheduled.optimizer, scheduled.model)
    ldopt.load_optimizer(path, plain.optimizer, plain.model, changed=["learning_rate"])
    assert "global_step" not in "".join(plain.state())


def test_state_that_paddle_still_holds_is_saved(path):
    run = Run("lamb").train(HALF)
    waiting = Run("lamb").with_weights_of(run)
    waiting.optimizer.set_state_dict(run.optimizer.state_dict())
    before = waiting.state()
    ldopt.save_optimizer(path, waiting.optimizer, waiting.model)
    assert same(before, waiting.state())
    again = Run("lamb").with_weights_of(run)
    ldopt.load_optimizer(path, again.optimizer, again.model)
    assert same(run.train(ALL).everything(), again.train(ALL).everything())


def test_after_a_load_paddles_own_state_dict_is_as_ever(path):
    run = Run("came").train(HALF)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    again = Run("came", seed=1)
    with paddle.utils.unique_name.guard():  # names are taken already, as in any process that built more than one
        paddle.nn.Linear(3, 3)
        ldopt.load_optimizer(path, again.optimizer, again.model)
    third = Run("came", seed=2).with_weights_of(run)
    third.optimizer.set_state_dict(again.optimizer.state_dict())
    assert same(run.train(ALL).everything(), third.train(ALL).everything())


def test_the_file_is_plain_safetensors(saved):
    run = Run("came").train(HALF)
    tensors = safetensors.paddle.load_file(saved)
    assert tensors["blocks.0.weight.exp_avg_sq_row"].shape == [4] and len(tensors) == len(run.state())
    with safetensors.safe_open(saved, framework="np") as file:
        metadata = file.metadata()
    record = json.loads(metadata["record"])
    assert (metadata["format"], metadata["version"]) == ("paddle_ldopt.optimizer", "1")
    assert record["optimizer"] == "Came" and record["step"] == HALF
    assert record["layerwise"] == {**dataclasses.asdict(ldopt.LayerDecay(0.5)), "n_layers": 12, "constant": True}
    assert record["parameters"]["blocks.0.weight"]["ratio"] == 0.25
    assert record["parameters"]["blocks.0.weight"]["layer"] == ["blocks", 1, 2]
    assert record["packages"]["paddle"] == paddle.__version__


def test_the_checksum_is_what_the_document_says(saved):
    data = read(saved)
    (said,) = re.findall(rb'"sha256":"([0-9a-f]{64})"', data)
    assert hashlib.sha256(data.replace(said, b"0" * 64)).hexdigest().encode() == said
    assert struct.unpack("<Q", data[:8])[0] % 8 == 0


# ---- what does not belong to the optimizer


WRONG = {
    "class": ({"case": "adafactor"}, "is of Came"),
    "size": ({"width": 5}, "build the same model"),
    "blocks": ({"blocks": 3}, "of another model: it lacks .*blocks.2"),
    "precision": ({"case": "came bf16"}, "build the same model"),
    "options": ({"beta3": 0.98}, r"changed=\['beta3'\].*beta3=0.98 \(in the file 0.99\)"),
    "argument": ({"loss_scale": 2}, r"changed=\['loss_scale'\]"),
    "stored type": ({"compression": True}, r"changed=\['compression'\]"),
    "rate": ({"rate": 2e-3}, r"changed=\['learning_rate'\]"),
    "ratios": ({"decay": 0.6}, r"changed=\['layerwise_decay'\]. Received: ratio=0.21"),
    "decayed": ({"apply_decay_param_fun": lambda name: False}, r"changed=\['apply_decay_param_fun'\]. .*decayed=False"),
    "clipping": ({"grad_clip": paddle.nn.ClipGradByNorm(1.0)}, r"changed=\['grad_clip'\]"),
    "schedule": ({"rate": paddle.optimizer.lr.StepDecay(1e-3, 2)}, r"changed=\['learning_rate', 'schedule'\]"),
}


@pytest.mark.parametrize("what", WRONG)
def test_another_optimizer_is_refused(what, saved):
    arguments, says = WRONG[what]
    other = Run(**{"case": "came", "seed": 1, **arguments}).train(1)
    with refused(says, ValueError, other):
        ldopt.load_optimizer(saved, other.optimizer, other.model)
    allowed = says.partition("changed=\\[")[2].partition("\\]")[0].replace("'", "").split(", ")
    if allowed != [""] and what != "stored type":
        ldopt.load_optimizer(saved, other.optimizer, other.model, changed=allowed)
        assert other.optimizer.state_dict()


def test_compressed_momentum_does_not_fit_even_where_the_option_is_let_through(saved):
    other = Run("came", compression=True).train(1)
    with refused("must be float16", ValueError, other):
        ldopt.load_optimizer(saved, other.optimizer, other.model, changed=["compression"])


def test_ratios_of_a_hook_are_compared(path):
    run = Run("lamb", layerwise=False, set_param_lr_fun=lambda param: 0.5).train(1)
    other = Run("lamb", layerwise=False, set_param_lr_fun=lambda param: 0.25)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    with refused(r"changed=\['layerwise_decay'\].*ratio of a hook=0.25 \(in the file 0.5\)", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)
    assert ldopt.load_optimizer(path, other.optimizer, other.model, changed=["layerwise_decay"]).step == 1


def test_options_of_groups_are_compared(path):
    def build(decay):
        run = Run("adamwdl", layerwise=False)
        params = run.model.parameters()
        groups = [{"params": params[:2], "weight_decay": decay, "learning_rate": 0.5}, {"params": params[2:]}]
        run.optimizer = ldopt.AdamWDL(1e-3, parameters=groups)
        return run

    run, same_again, other = build(0.1).train(1), build(0.1), build(0.2).train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    ldopt.load_optimizer(path, same_again.optimizer, same_again.model)
    assert same(run.state(), same_again.state())
    with refused(r"weight_decay=0.2 \(in the file 0.1\) of 'scale'", ValueError, other):
        ldopt.load_optimizer(path, other.optimizer, other.model)


def test_a_folder_that_is_not_there_is_named(tmp_path, victim):
    with pytest.raises(FileNotFoundError, match="no such folder to write into: '.*/missing'"):
        ldopt.save_optimizer(tmp_path / "missing" / "optimizer.safetensors", victim.optimizer, victim.model)


def test_arguments_are_checked(saved, tmp_path, victim):
    calls = {
        "one of paddle_ldopt": lambda: ldopt.load_optimizer(saved, paddle.optimizer.Adam(parameters=[]), victim.model),
        "must be a paddle.nn.Layer": lambda: ldopt.load_optimizer(saved, victim.optimizer, "model"),
        "`changed` may name": lambda: ldopt.load_optimizer(saved, victim.optimizer, victim.model, changed=["bta1"]),
        "`changed` must be a list": lambda: ldopt.load_optimizer(saved, victim.optimizer, changed="beta1"),
        "build it after the model": lambda: ldopt.load_optimizer(saved, victim.optimizer, paddle.nn.Linear(2, 2)),
        "`step` must be an int": lambda: ldopt.save_optimizer(saved, victim.optimizer, victim.model, step=1.5),
        "`step` must be at least 0": lambda: ldopt.save_optimizer(saved, victim.optimizer, victim.model, step=-1),
        "a folder": lambda: ldopt.save_optimizer(tmp_path, victim.optimizer, victim.model),
        "Received: path=None": lambda: ldopt.load_optimizer(None, victim.optimizer, victim.model),
        "Received: path=b'a'": lambda: ldopt.load_optimizer(b"a", victim.optimizer, victim.model),
        "Received: path=b'b'": lambda: ldopt.save_optimizer(b"b", victim.optimizer, victim.model),
        "Paddle's own, by its name": lambda: ldopt.save_optimizer(tmp_path / "a.pdopt", victim.optimizer, victim.model),
        "leave out `model`": lambda: ldopt.load_optimizer(tmp_path / "a.pdopt", victim.optimizer, victim.model),
    }
    for says, call in calls.items():
        with refused(says, (TypeError, ValueError), victim):
            call()


def test_a_state_that_is_no_data_is_not_saved(path):
    class Odd(paddle.optimizer.lr.LRScheduler):
        def get_lr(self):
            return self.base_lr

        def state_keys(self):
            self.keys = ["last_epoch", "last_lr", "odd"]

    rate = Odd(1e-3)
    rate.odd = object()
    run = Run("lamb", rate=rate)
    with refused("must be numbers, text, arrays.*Received: object", ValueError, run):
        ldopt.save_optimizer(path, run.optimizer, run.model)
    assert not os.listdir(os.path.dirname(path))


# ---- damaged files


def each_damage(data, draw, flips, cuts):
    for at in draw.choice(len(data), flips, replace=False):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(draw.integers(8))
        yield f"flipped {at}", bytes(damaged)
    lengths = {0, 1, 7, 8, 9, len(data) - 1, *map(int, draw.integers(0, len(data), cuts))}
    yield from ((f"cut at {length}", data[:length]) for length in sorted(lengths))
    yield "longer", data + b"\0"
    header = struct.unpack("<Q", data[:8])[0]
    yield "zeroed data", data[: 8 + header] + b"\0" * (len(data) - 8 - header)
    yield "another file's data", data[: 8 + header] + data[8 + header :][::-1]


def read(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    "case, flips, cuts", [("came", 200, 60), *(pytest.param(case, 1000, 300, marks=SLOW) for case in CASES)]
)
def test_a_damaged_file_changes_nothing(case, flips, cuts, path):
    run, victim, count = Run(case).train(HALF), Run(case, seed=1).train(1), 0
    ldopt.save_optimizer(path, run.optimizer, run.model)
    for what, damaged in each_damage(read(path), np.random.default_rng(1), flips, cuts):
        with open(path, "wb") as file:
            file.write(damaged)
        with refused("", ValueError, victim, what):
            ldopt.load_optimizer(path, victim.optimizer, victim.model)
        count += 1
    assert count > flips + cuts - 10


# ---- hostile files: the checksum is right


def hostile_records():
    """Yield (what, a function that changes the record of a file)."""

    def put(*keys, value=...):
        def change(record):
            for key in keys[:-1]:
                record = record[key]
            del record[keys[-1]]
            if value is not ...:
                record[keys[-1]] = value

        return change

    keys = ("optimizer", "arguments", "options", "learning_rate", "schedule", "grad_clip", "layerwise", "parameters")
    keys += ("naming", "step", "with_state", "schedule_state", "scaler_state")
    for key in keys:
        yield f"no {key}", put(key)
        for value in ("x", -1, [], {}, [[1]], {"a": {}}, True):
            if (key, value) not in (("grad_clip", {}), ("naming", "x")):
                yield f"{key} = {value!r}", put(key, value=value)
    for key in ("shape", "dtype", "options", "decayed", "ratio", "multiplier"):
        yield f"no {key} of a parameter", put("parameters", "blocks.0.weight", key)
        yield f"odd {key} of a parameter", put("parameters", "blocks.0.weight", key, value={"x": 1e30})
    yield "options of a far parameter", put("parameters", "blocks.0.weight", "options", value=10**9)
    yield "state of a stranger", put("with_state", value=["blocks.9.weight"])
    yield "state twice", put("with_state", value=["blocks.0.weight"] * 2)


def test_a_hostile_record_changes_nothing(saved, victim):
    count = 0
    for what, change in hostile_records():
        sealed(saved, saved + ".hostile", record=change)
        try:
            before = bits(victim.everything())
            ldopt.load_optimizer(saved + ".hostile", victim.optimizer, victim.model)
        except ValueError as error:
            assert "Received:" in str(error), (what, error)
            assert bits(victim.everything()) == before, what
            count += 1
        else:  # it says nothing that matters
            assert "schedule_state" in what, what  # there is no schedule
    assert count > 90


def test_a_hostile_schedule_changes_nothing(path):
    def rate():
        return ldopt.GreedyLR(1e-3, window_size=3)

    run, victim = Run("lamb", rate=rate()).train(1), Run("lamb", rate=rate(), seed=1).train(2)
    run.rate.step(1.0)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    for value in ({}, [], "x", {"last_lr": 1}, 5, True, None):
        sealed(path, path + ".hostile", record=lambda record, value=value: record.update(schedule_state=value))
        with refused("", ValueError, victim, value):
            ldopt.load_optimizer(path + ".hostile", victim.optimizer, victim.model)
    odd = ("x", {"a": 1}, True, {"__array__": "object", "shape": [], "values": []}, {"__float__": "1"}, None)
    for key in run.rate.state_dict():
        for value in (*odd, [None], ["x"], [1.0, None], [[1.0]]):
            sealed(path, path + ".hostile", record=lambda r, k=key, v=value: r["schedule_state"].update({k: v}))
            with refused("", ValueError, victim, (key, value)):
                ldopt.load_optimizer(path + ".hostile", victim.optimizer, victim.model)


def test_nulls_in_place_of_a_schedules_state_change_nothing(path):
    run, victim = (Run("adamwdl", rate=paddle.optimizer.lr.StepDecay(1e-3, 10), seed=i).train(i + 1) for i in range(2))
    ldopt.save_optimizer(path, run.optimizer, run.model)
    for keys in ({"last_lr"}, {"last_epoch"}, {"last_lr", "last_epoch"}):
        sealed(path, path + ".hostile", record=lambda r, k=keys: r["schedule_state"].update(dict.fromkeys(k)))
        with refused("must be a number. Received: None", ValueError, victim, keys):
            ldopt.load_optimizer(path + ".hostile", victim.optimizer, victim.model)


def test_a_plateau_schedule_has_no_best_before_its_first_metric(path):
    def rate():
        return paddle.optimizer.lr.ReduceOnPlateau(1e-3, patience=0)

    fresh, used = Run("adamwdl", rate=rate()), Run("adamwdl", rate=rate())
    used.rate.step(paddle.to_tensor(3.0))
    for there, here in ((fresh, used), (used, fresh)):
        state = there.rate.state_dict()
        ldopt.save_optimizer(path, there.optimizer, there.model)
        ldopt.load_optimizer(path, here.optimizer, here.model)
        assert here.rate.state_dict() == state
        used.rate.step(paddle.to_tensor(3.0))
    for value in (None, "x", [1.0]):
        change = {"best": value} if value else {"last_lr": None}
        sealed(path, path + ".hostile", record=lambda record, c=change: record["schedule_state"].update(c))
        with refused("must be a number|must be None or a number", ValueError, used, value):
            ldopt.load_optimizer(path + ".hostile", used.optimizer, used.model)


@pytest.mark.parametrize(
    "names, least",
    [
        (("blocks.0.weight.exp_avg_sq_row", "blocks.0.bias.exp_avg", "scale.b"), 60),
        pytest.param(("",), 500, marks=SLOW),
    ],
    ids=["some", "all"],
)
def test_hostile_tensors_change_nothing(saved, victim, names, least):
    """Each change of the tensors whose name has one of `names` in it."""
    count = 0
    for name, tensor in safetensors.deserialize(read(saved)):
        if not any(part in name for part in names):
            continue
        shape = tensor["shape"]
        for what, change in {
            "gone": lambda tensors, n: tensors.pop(n),
            "renamed": lambda tensors, n: tensors.update({f"{n}x": tensors.pop(n)}),
            "moved": lambda tensors, n: tensors.update({n.replace("blocks.0", "blocks.7"): tensors.pop(n)}),
            "as integers": lambda tensors, n: tensors[n].update(dtype="I32"),
            "of no type": lambda tensors, n: tensors[n].update(dtype="F8_E4M3"),
            "flattened": lambda tensors, n: tensors[n].update(shape=[1, *tensors[n]["shape"]]),
            "counted wrong": lambda tensors, n: tensors[n].update(shape=[v + 1 for v in tensors[n]["shape"]]),
            "of a huge shape": lambda tensors, n: tensors[n].update(shape=[2**40, 2**40]),
            "negative": lambda tensors, n: tensors[n].update(shape=[-1]),
            "over another": lambda tensors, n: tensors[n].update(data_offsets=[0, 16]),
            "behind the end": lambda tensors, n: tensors[n].update(data_offsets=[10**6, 10**6 + 16]),
            "backwards": lambda tensors, n: tensors[n].update(data_offsets=tensors[n]["data_offsets"][::-1]),
            "at -1": lambda tensors, n: tensors[n].update(data_offsets=[-1, tensors[n]["data_offsets"][1]]),
            "at 2^70": lambda tensors, n: tensors[n].update(data_offsets=[0, 2**70]),
            "without offsets": lambda tensors, n: tensors[n].pop("data_offsets"),
            "no dict": lambda tensors, n: tensors.update({n: [1]}),
        }.items():
            if what == "moved" and "blocks.0" not in name:
                continue
            sealed(saved, saved + ".hostile", tensors=lambda tensors, c=change, n=name: c(tensors, n))
            with refused("", ValueError, victim, (name, what, shape)):
                ldopt.load_optimizer(saved + ".hostile", victim.optimizer, victim.model)
            count += 1
    assert count > least


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_counter_that_counts_nothing_is_refused(value, saved, victim):
    sealed(saved, saved + ".hostile", values={"blocks.0.weight.beta1_pow_acc": np.array([value], "float32")})
    with refused("must be a finite number from 0 on", ValueError, victim):
        ldopt.load_optimizer(saved + ".hostile", victim.optimizer, victim.model)


HEADERS = {
    "nested deeply": b"[" * 100_000,
    "nested dicts": b'{"a":' * 100_000,
    "a list": b"[1, 2]",
    "NaN": b'{"__metadata__": {"format": "paddle_ldopt.optimizer"}, "a": NaN}',
    "Infinity": b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, Infinity]}}',
    "1e999": b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e999]}}',
    "a key twice": b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "a": {}}',
    "metadata twice": b'{"__metadata__": {"a": "b"}, "__metadata__": {"a": "b"}}',
    "metadata of numbers": b'{"__metadata__": {"format": 1}}',
    "a metadata list": b'{"__metadata__": ["paddle_ldopt.optimizer"]}',
    "metadata null": b'{"__metadata__": null}',
    "no UTF-8": b'{"\xff": 1}',
    "half a surrogate": b'{"\\ud800": 1}',
    "many digits": b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, ' + b"9" * 10_000 + b"]}}",
    "nothing": b"{}",
    "spaces": b" " * 64,
    "no format": b'{"__metadata__": {"version": "1"}}',
    "no version": b'{"__metadata__": {"format": "paddle_ldopt.optimizer"}}',
    "a later version": b'{"__metadata__": {"format": "paddle_ldopt.optimizer", "version": "2"}}',
    "no checksum": b'{"__metadata__": {"format": "paddle_ldopt.optimizer", "version": "1"}}',
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_hostile_header_changes_nothing(what, path, victim):
    write_raw(path, HEADERS[what])
    with refused("a later one" if what == "a later version" else "", ValueError, victim):
        ldopt.load_optimizer(path, victim.optimizer, victim.model)


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**31, 2**40, 2**63, 2**64 - 1])
def test_a_hostile_header_length_changes_nothing(length, path, victim):
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", length) + b"{}" * 100)
    with refused("no safetensors file, or is cut short", ValueError, victim):
        ldopt.load_optimizer(path, victim.optimizer, victim.model)


def test_a_hole_of_a_terabyte_is_not_read(path, victim):
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", 2) + b"{}")
        file.truncate(2**40)
    with refused("has more in it", ValueError, victim):
        ldopt.load_optimizer(path, victim.optimizer, victim.model)
    with open(path, "r+b") as file:
        file.write(struct.pack("<Q", 2**39))
    with refused("no safetensors file", ValueError, victim):
        ldopt.load_optimizer(path, victim.optimizer, victim.model)


def test_what_is_no_file_changes_nothing(saved, tmp_path, victim):
    link, loop, dangling, pipe = (str(tmp_path / name) for name in ("link", "loop", "dangling", "pipe"))
    os.symlink(saved, link), os.symlink(loop, loop), os.symlink("nothing", dangling), os.mkfifo(pipe)
    for place, kind in (
        (link, ValueError),
        (loop, (ValueError, OSError)),
        (dangling, (ValueError, OSError)),
        (pipe, ValueError),
        (str(tmp_path), ValueError),
        ("/dev/zero", ValueError),
        (str(tmp_path / "nothing.safetensors"), OSError),
        (str(tmp_path / "nothing" / "x.safetensors"), OSError),
    ):
        with refused("", kind, victim, place):
            ldopt.load_optimizer(place, victim.optimizer, victim.model)
    for place, says in ((link, "A link would be replaced"), (pipe, "a device, a pipe")):  # nothing of the system
        before = os.lstat(place)
        with refused(says, ValueError, victim):
            ldopt.save_optimizer(place, victim.optimizer, victim.model)
        assert os.lstat(place) == before


WRITERS = {
    "to_json": ("json", lambda path: ldopt.LdoptConfig().to_json(path)),
    "to_yaml": ("yaml", lambda path: ldopt.LdoptConfig().to_yaml(path)),
    "write_schedule": ("csv", lambda path: write_schedule(path, 0, {"head": [0.1, 0.2]})),
    "plot_schedule": ("png", lambda path: plot_schedule(path, 0, {"head": [0.1, 0.2]})),
    "plot": ("svg", lambda path: ldopt.LayerMap.from_model(Run("came").model).plot(path, 0.5)),
    "write_whole": ("html", lambda path: write_whole(path, "all of it")),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_goes_through_links_and_pipes(name, tmp_path):
    ending, write = WRITERS[name]
    target, link, pipe = (str(tmp_path / f"{kind}.{ending}") for kind in ("target", "link", "pipe"))
    os.symlink(target, link), os.mkfifo(pipe)
    write(link)
    assert os.path.islink(link) and os.path.getsize(target) > 0
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(read, pipe)
        write(pipe)
        assert len(reader.result(20)) > 0 and stat.S_ISFIFO(os.lstat(pipe).st_mode)
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, (target, link, pipe)))


def test_no_pickle_is_ever_loaded_under_another_name(path, victim):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (path + ".ran",)

    for content in (pickle.dumps(Payload()), pickle.dumps({"a": Payload()}, 2)):
        with open(path, "wb") as file:
            file.write(content)
        with refused("no safetensors file", ValueError, victim):
            ldopt.load_optimizer(path, victim.optimizer, victim.model)
    assert not os.path.exists(path + ".ran")


# ---- writing


def test_a_write_that_fails_leaves_what_was_there(saved, monkeypatch, victim):
    before = read(saved)
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:

            def fail(*args):
                raise OSError(28, "No space left on device")

            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space"):
                ldopt.save_optimizer(saved, victim.optimizer, victim.model)
        assert read(saved) == before
        assert os.listdir(os.path.dirname(saved)) == [os.path.basename(saved)]


def test_what_could_not_be_read_is_not_written(saved, monkeypatch, victim):
    before, length = read(saved), struct.unpack("<Q", read(saved)[:8])[0]
    monkeypatch.setattr(safetensors_file, "MAX_HEADER", length)
    ldopt.save_optimizer(saved, Run("came").train(HALF).optimizer)
    assert read(saved) == before
    monkeypatch.setattr(safetensors_file, "MAX_HEADER", length - 8)
    with refused(r"safetensors reads.*Received: path=.*, tensors=\d+, header=\d+$", ValueError, victim):
        ldopt.save_optimizer(saved, victim.optimizer, victim.model)
    assert read(saved) == before
    assert os.listdir(os.path.dirname(saved)) == [os.path.basename(saved)]


def test_models_of_a_hundred_thousand_parameters_fit(path):
    lengths = []
    for count in (110, 160):
        layers = [paddle.nn.Linear(1, 1) for _ in range(count)]
        model = paddle.nn.LayerDict({"encoder": paddle.nn.LayerDict({"experts": paddle.nn.LayerList(layers)})})
        optimizer = ldopt.AdamWDL(1e-3, parameters=model.parameters())
        sum(layer(paddle.ones([1, 1])).sum() for layer in layers).backward()
        optimizer.step()
        ldopt.save_optimizer(path, optimizer, model)
        lengths.append(struct.unpack("<Q", read(path)[:8])[0])
    assert (lengths[1] - lengths[0]) / 100 * 150_000 < safetensors_file.MAX_HEADER


def test_files_and_folder_are_synced_in_this_order(path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, o=original: (done.append(n), o(*a)))
    run = Run("lamb").train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    assert done == ["fsync", "replace", "fsync"]
    assert os.stat(path).st_mode & 0o777 == 0o666 & ~umask()


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux says how much memory a process has")
@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=SLOW)])
def test_saving_and_loading_over_and_over_leaves_nothing_behind(path, count):
    run, sizes = Run("came bf16").train(1), []
    other = Run("came bf16")
    for i in range(count):
        a, b = (run, other) if i % 2 else (other, run)
        ldopt.save_optimizer(path, b.optimizer, b.model)
        ldopt.load_optimizer(path, a.optimizer, a.model)
        with open("/proc/self/statm") as file:
            sizes.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
    assert same(run.state(), other.state())
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
    assert max(sizes[-(count // 5) :]) - max(sizes[: count // 5]) < 4.0, "MB"


def test_a_report_prints_as_a_table(saved):
    run = Run("came")
    report = ldopt.load_optimizer(saved, run.optimizer, run.model)
    lines = str(report).splitlines()
    assert lines[0] == f"{saved}: step 3, {len(report.matched)} matched, 0 missing, 0 unexpected"
    assert len(lines) == 2 + len(report.matched) and lines[2].split()[0] == "scale"


# ---- Paddle's .pdopt


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_a_pdopt_is_loaded_exactly(case, protocol, tmp_path):
    run = Run(case).train(HALF)
    paddle.save(run.optimizer.state_dict(), str(tmp_path / "a.pdopt"), protocol=protocol)
    again = Run(case).with_weights_of(run)
    report = ldopt.load_optimizer(tmp_path / "a.pdopt", again.optimizer)
    assert len(report.matched) == len(run.model.parameters())
    assert same(run.state(), again.state())
    assert same(run.train(ALL).everything(), again.train(ALL).everything())


def test_a_pdopt_of_paddles_own_adamw_is_loaded(tmp_path):
    run = Run("adamwdl", layerwise=False)
    run.optimizer = paddle.optimizer.AdamW(1e-3, parameters=run.model.parameters())
    run.train(HALF)
    paddle.save(run.optimizer.state_dict(), str(tmp_path / "a.pdopt"))
    again = Run("adamwdl", layerwise=False, fused=False).with_weights_of(run)
    ldopt.load_optimizer(tmp_path / "a.pdopt", again.optimizer)
    assert same(run.train(ALL).values(), again.train(ALL).values())


def test_a_pdopt_with_another_schedule_or_other_names_is_refused(tmp_path):
    run = Run("lamb", rate=paddle.optimizer.lr.StepDecay(1e-3, 2)).train(HALF)
    paddle.save(run.optimizer.state_dict(), str(tmp_path / "a.pdopt"))
    other = Run("lamb", seed=1).train(1)
    with refused("changed=.'schedule'.", ValueError, other):
        ldopt.load_optimizer(tmp_path / "a.pdopt", other.optimizer)
    ldopt.load_optimizer(tmp_path / "a.pdopt", other.optimizer, changed=["schedule"])
    other = Run("lamb", guard=False)
    with refused("names no parameters or states", ValueError, other):
        ldopt.load_optimizer(tmp_path / "a.pdopt", other.optimizer)


class Runs:
    """What a hostile pickle may ask for."""

    def __init__(self, function, *arguments):
        self.asks = function, arguments

    def __reduce__(self):
        return self.asks


def hostile_pickles(mark):
    """Yield (what, bytes); all would make the folder `mark` if they were run."""
    states = {"a": Runs(os.mkdir, mark)}
    for protocol in range(6):
        yield f"a call, protocol {protocol}", pickle.dumps(states, protocol)
        yield f"an eval, protocol {protocol}", pickle.dumps(Runs(eval, f"__import__('os').mkdir({mark!r})"), protocol)
    make = f"__import__('os').mkdir({mark!r})"
    yield "a call by text", b"cos\nmkdir\n(V" + mark.encode() + b"\ntR."
    yield "an instance", b"(V" + mark.encode() + b"\nios\nmkdir\n."
    yield "an object", b"(cos\nmkdir\nV" + mark.encode() + b"\no."
    yield "a dotted name", b"\x80\x04\x8c\x05numpy\x8c\x0bf2py.os.mkdr\x93."
    yield "numpy's loader", b"cnumpy.lib.format\nread_array\n(tR."
    yield "numpy's tests", b"cnumpy.testing._private.utils\nrunstring\n(V" + make.encode() + b"\n}tR."
    yield "a change of a class", b"\x80\x04cnumpy\ndtype\n}\x8c\x05build\x8c\x01xsb."
    yield "a change of a function", b"\x80\x04cnumpy.core.multiarray\n_reconstruct\n}\x8c\x05abcde\x8c\x01xsb."
    yield "a call of a class that is only named", b"\x80\x04cnumpy\nndarray\n)R."
    yield "a persistent object", b"Vx\nQ."
    yield "an extension", b"\x82\x01."
    yield "objects", pickle.dumps({"a": np.array([Runs(os.mkdir, mark)], dtype=object)})
    large = pickle.dumps({"a": np.zeros(4, "f4")}).replace(b"K\x04\x85", b"J\xff\xff\xff\x7f\x85")
    yield "a large array in few bytes", large
    yield "records", pickle.dumps({"a": np.zeros(2, [("x", "f4")])})
    yield "the wrong byte order", pickle.dumps({"a": np.zeros(2, ">f4")})
    yield "text", pickle.dumps({"a": np.array(["x"])})
    yield "a list", pickle.dumps([1, 2])
    yield "numbers", pickle.dumps({"linear_0.w_0_moment1_0": 1.0})
    yield "keys that are no text", pickle.dumps({(1, 2): 3})
    yield "a huge memo", b"\x80\x04}r\xff\xff\xff\x7f\x8c\x01aK\x01s."
    yield "a huge string", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx."
    yield "a dict in itself", b"\x80\x04}\x94\x8c\x0cLR_Scheduler\x94h\x00s."
    yield "nothing", b""
    yield "no pickle", b"hello"
    yield "safetensors", struct.pack("<Q", 2) + b"{}"


def test_no_code_in_a_pdopt_is_run(tmp_path, victim):
    mark, path, count = str(tmp_path / "ran"), str(tmp_path / "a.pdopt"), 0
    for what, content in hostile_pickles(mark):
        with open(path, "wb") as file:
            file.write(content)
        with refused("", ValueError, victim, what):
            ldopt.load_optimizer(path, victim.optimizer)
        assert not os.path.exists(mark), what
        count += 1
    assert count > 35
    pickle.loads(next(iter(hostile_pickles(mark)))[1])  # it is a payload indeed
    assert os.path.exists(mark)


@pytest.mark.parametrize("flips, cuts, least", [(60, 20, 40), pytest.param(2000, 300, 1000, marks=SLOW)])
def test_a_damaged_pdopt_is_refused_or_loads_numbers(tmp_path, flips, cuts, least):
    run = Run("lamb").train(HALF)
    path, draw, refusals = str(tmp_path / "a.pdopt"), np.random.default_rng(0), 0
    paddle.save(run.optimizer.state_dict(), path)
    victim = Run("lamb", seed=1)
    sound = read(path)
    for what, damaged in each_damage(sound, draw, flips, cuts):
        if damaged == sound:  # what is cut up by safetensors' header
            continue
        with open(path, "wb") as file:
            file.write(damaged)
        before = bits(victim.everything())
        try:  # it has no checksum: a flipped bit of a number is not noticed, as in Paddle
            ldopt.load_optimizer(path, victim.optimizer)
        except ValueError as error:
            assert "Received:" in str(error) and bits(victim.everything()) == before, what
            refusals += 1
        else:
            assert "flipped" in what
    assert refusals > least
