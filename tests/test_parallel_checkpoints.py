"""Checkpoints move between layouts: docs/scaling.md has the table, each row of which is a test here."""

import json
import os

import checkpoint_cases as cases
import numpy as np
import paddle
import pytest
from distributed_launch import launch

import paddle_ldopt as ldopt
from paddle_ldopt.memory import Layout, OptimizerSpec, plan
from paddle_ldopt.parallel import load_checkpoint, save_checkpoint
from paddle_ldopt.parallel.checkpoints import RECORD

NAMES = ldopt.list_optimizers()
CASES = {name: {"name": name} for name in NAMES}
LOW = {f"{name}, bfloat16": {"name": name, "dtype": "bfloat16"} for name in ("adamwdl", "came")}
ONE = "1 process"
# layout -> those whose checkpoints it goes on from
SOURCES = {
    "sharding 4 v2": [],
    "dp 2": [ONE, "sharding 4 v2"],
    "sharding 2 v1": [ONE, "dp 2"],
    "sharding 2 v2": [ONE, "sharding 2 v1", "sharding 4 v2"],
    "pp 2": [ONE, "sharding 2 v2"],
}
MOVES = [(source, target) for target in SOURCES for source in SOURCES[target]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return (folder of all checkpoints, case -> values without interruption, layout -> what each rank returned)."""
    root = str(tmp_path_factory.mktemp("checkpoints"))
    whole = {}
    for case, arguments in {**CASES, **LOW}.items():
        run = cases.Run(**arguments).train(0, cases.HALF)
        run.save(cases.place(root, ONE, case))
        whole[case] = run.train(cases.HALF, cases.STEPS).values()
    found = {}
    for layout, sources in SOURCES.items():
        ranks = int(layout.split()[1])
        found[layout] = launch(
            cases.work, ranks=ranks, timeout=240, root=root, layout=layout, cases={**CASES, **LOW}, sources=sources
        )
    return root, whole, found


def distance(values, expected, name):
    """Return the largest error of parameters relative to how far they went."""
    start = cases.Run(name).values()
    moved = {key: np.abs(expected[key] - start[key]).max() for key in values}
    return max(np.abs(values[key] - expected[key]).max() / moved[key] for key in values)


@pytest.mark.parametrize("name", {**CASES, **LOW})
def test_one_process_goes_on_bit_for_bit(runs, name):
    root, whole, _ = runs
    run = cases.Run(**{**CASES, **LOW}[name]).load(cases.place(root, ONE, name)).train(cases.HALF, cases.STEPS)
    assert all(np.array_equal(value, whole[name][key]) for key, value in run.values().items())


@pytest.mark.parametrize("name", {**CASES, **LOW})
@pytest.mark.parametrize("layout", SOURCES)
def test_all_state_arrives_bit_for_bit(runs, layout, name):
    """Masters, counters and the parameters too."""
    root, _, found = runs
    run = cases.Run(**{**CASES, **LOW}[name]).load(cases.place(root, layout, name))
    loaded = {key: value for key, value, _ in run.pieces()}
    seen = {key: np.zeros(value.size, bool) for key, value in loaded.items()}
    for rank in found[layout]:
        for key, value, span in rank[name]["saved"]:
            begin, end = span or (0, value.size)
            assert np.array_equal(loaded[key].flatten()[begin:end], value.flatten()), key
            seen[key][begin:end] = True
        assert all(np.array_equal(run.values()[key], value) for key, value in rank[name]["values"].items())
    assert all(mask.all() for mask in seen.values()), "every element was somewhere"
    assert sum(key.endswith(".w_0") for key in loaded) == (6 if name in LOW else 0)
    assert sum(key.endswith(".beta1_pow_acc_0") for key in loaded) == 6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", SOURCES)
def test_to_one_process(runs, layout, name):
    root, whole, _ = runs
    run = cases.Run(name).load(cases.place(root, layout, name)).train(cases.HALF, cases.STEPS)
    assert distance(run.values(), whole[name], name) < 1e-5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source, target", MOVES, ids=lambda layout: layout.replace(" ", "-"))
def test_between_layouts(runs, source, target, name):
    _, whole, found = runs
    values = {}
    for rank in found[target]:
        here, rate = rank[name][source]
        assert rate == pytest.approx(1e-2 * 0.9**cases.STEPS)
        for key, value in here.items():
            assert np.array_equal(values.setdefault(key, value), value), "the same in every process that has it"
    assert set(values) == set(whole[name])
    assert distance(values, whole[name], name) < 1e-5


# ---- the formulas of `memory` against what these runs held and sent


@pytest.mark.parametrize("name", {**CASES, **LOW})
@pytest.mark.parametrize("layout", [layout for layout in SOURCES if "pp" not in layout])
def test_bytes_are_those_of_the_formulas(runs, layout, name):
    found = [rank[name] for rank in runs[2][layout]]
    kind, degree, *version = layout.split()
    names, sizes = [], []
    for i, (rows, columns) in enumerate(cases.SIZES):
        names += [f"{2 * i}.weight", f"{2 * i}.bias"]
        sizes += [[rows, columns], [columns]]
    dtype = "bfloat16" if name in LOW else "float32"
    layout = Layout(**{kind: int(degree)}, split_param=version == ["v2"])
    answer = plan(dict(zip(names, sizes)), OptimizerSpec(name.split(",")[0], dtype=dtype), layout)
    assert (answer.state, answer.masters) == max((rank["held"] for rank in found), key=sum)
    n = int(degree)
    share = 2 * (n - 1) / n
    mean = {key: sum(rank["sent"].get(key, 0) for rank in found) / n for key in ("all_reduce", "reduce", "broadcast")}
    if kind == "dp":  # the reducer, in C++, is not seen
        assert mean["all_reduce"] == answer.sent_sums == 0
    elif version == ["v1"]:
        assert (mean["reduce"] * share / 2, mean["broadcast"] * share / 2) == (
            answer.sent_gradients,
            answer.sent_parameters,
        )
        assert mean["all_reduce"] == answer.sent_sums == 0
    else:  # gloo's stand-in for reduce_scatter is an all_reduce of the whole
        gradients = answer.sent_gradients / (share / 2)
        assert (mean["all_reduce"] - gradients) * share == answer.sent_sums


# ---- tensor parallel, Paddle's own functions, other names


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Return (folder, optimizer -> network without interruption, what each rank of tensor parallel returned)."""
    root, whole = str(tmp_path_factory.mktemp("parts")), {}
    for name in NAMES:
        network = whole[name] = cases.Cut()
        optimizer = ldopt.create(name, network, learning_rate=1e-2)
        cases.train_cut(network, optimizer, 0, cases.HALF)
        save_checkpoint(cases.place(root, ONE, name), network, optimizer)
        cases.train_cut(network, optimizer, cases.HALF, cases.STEPS)
    return root, whole, launch(cases.work_in_parts, ranks=2, timeout=120, root=root, names=NAMES, source=ONE)


@pytest.mark.parametrize("name", NAMES)
def test_from_and_to_tensor_parallel(parts, name):
    root, whole, ranks = parts
    network = cases.Cut()
    optimizer = ldopt.create(name, network, learning_rate=1e-2)
    load_checkpoint(cases.place(root, "mp 2", name), network, optimizer)
    cases.train_cut(network, optimizer, cases.HALF, cases.STEPS)
    for key, axis in (("wide", 1), ("tall", 0)):
        expected = getattr(whole[name], key).numpy()
        bound = 1e-5 * np.abs(expected - cases.Cut.drawn(key, 0)).max()
        assert np.abs(getattr(network, key).numpy() - expected).max() < bound
        assert np.abs(np.concatenate([rank[name][key] for rank in ranks], axis) - expected).max() < bound


def test_paddles_own_functions_do_it_too(tmp_path):
    folder = str(tmp_path / "raw")
    launch(cases.work_raw, ranks=2, timeout=120, folder=folder)
    run, whole = cases.Run("came"), cases.Run("came").train(0, cases.STEPS)
    model = run.plain.sharded_state_dict()
    paddle.distributed.load_state_dict({**model, **run.optimizer.sharded_state_dict(model)}, folder)
    run.schedule.step(cases.HALF)
    assert distance(run.train(cases.HALF, cases.STEPS).values(), whole.values(), "came") < 1e-5


def test_names_of_another_class(tmp_path):
    class Other(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.body = cases.Run("lamb").plain

        def forward(self, x):
            return self.body(x)

    run, other = cases.Run("lamb").train(0, cases.HALF), Other()
    run.save(tmp_path / "saved")
    optimizer = ldopt.Lamb(run.schedule, parameters=other.parameters())
    with pytest.raises(ValueError, match=r"lacks tensors.*Received: body\.0\.weight"):
        load_checkpoint(tmp_path / "saved", other, optimizer)
    load_checkpoint(tmp_path / "saved", other, optimizer, rename=lambda name: name[len("body.") :])
    assert all(np.array_equal(p.numpy(), q.numpy()) for p, q in zip(run.plain.parameters(), other.parameters()))
    with pytest.raises(ValueError, match="must give each parameter another name"):
        save_checkpoint(tmp_path / "again", other, optimizer, rename=lambda name: "one")


# ---- what is refused


def test_what_cannot_be_resumed_is_refused_before_anything_is_written(tmp_path):
    folder = str(tmp_path / "refused")
    for (fused, alone), written in launch(cases.work_refused, ranks=2, timeout=120, folder=folder):
        assert "set tensor_fusion=False" in fused and "Received: tensor_fusion=True" in fused
        assert "must name every parameter" in alone and not written


def test_group_sharding_is_refused(tmp_path):
    run = cases.Run("lamb")

    class Stage2:
        _optim = run.optimizer

    with pytest.raises(ValueError, match="use sharding stage 1 .* Received: Stage2"):
        save_checkpoint(tmp_path / "x", run.plain, Stage2())
    assert not (tmp_path / "x").exists()


def test_a_strange_optimizer_is_refused(tmp_path):
    run = cases.Run("lamb")
    adam = paddle.optimizer.Adam(parameters=run.plain.parameters())
    with pytest.raises(TypeError, match="Received: optimizer of type Adam"):
        save_checkpoint(tmp_path / "x", run.plain, adam)


def test_a_piece_of_unknown_place_is_refused():
    run = cases.Run("lamb").train(0, 1)
    weights = run.plain.sharded_state_dict()
    weights["0.weight"].local_shape = (4, 24)
    with pytest.raises(ValueError, match=r"save_checkpoint.*Received: 192 elements, not 96"):
        run.optimizer.sharded_state_dict(weights)


def test_a_full_folder_is_refused(tmp_path):
    run = cases.Run("lamb")
    run.save(tmp_path / "x")
    before = sorted(os.listdir(tmp_path / "x"))
    with pytest.raises(ValueError, match="holds a checkpoint already"):
        run.save(tmp_path / "x")
    assert sorted(os.listdir(tmp_path / "x")) == before


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda folder: os.remove(folder / RECORD), "cut short"),
        (lambda folder: (folder / RECORD).write_text('{"format": 9}'), "Received: format=9"),
        (lambda folder: (folder / RECORD).write_text('{"format": 1, "optimizer": "Came"}'), "of type Lamb"),
        (lambda folder: os.remove(folder / "schedule.pdparams"), "Received: an LRScheduler"),
    ],
)
def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path, change, says):
    cases.Run("lamb").train(0, cases.HALF).save(tmp_path / "x")
    change(tmp_path / "x")
    run = cases.Run("lamb")
    before = run.values()
    with pytest.raises(ValueError, match=says):
        run.load(tmp_path / "x")
    assert all(np.array_equal(value, before[key]) for key, value in run.values().items())
    assert run.schedule.last_epoch == 0


def test_other_options_are_another_state(tmp_path):
    cases.Run("adafactor").train(0, 1).save(tmp_path / "x")
    with pytest.raises(ValueError, match=r"Received: 0\.weight\.exp_avg_0 \[8, 24\] \(there: None\)"):
        cases.Run("adafactor", beta1=0.9).load(tmp_path / "x")


def test_what_is_frozen_has_no_state(tmp_path):
    run = cases.Run("lamb")
    run.plain[0].weight.stop_gradient = True
    run.train(0, 1).save(tmp_path / "x")
    keys = run.optimizer.sharded_state_dict(run.plain.sharded_state_dict())
    assert not any(key.startswith("0.weight") for key in keys) and "0.bias.moment1_0" in keys


def test_the_record_says_what_it_is_of(tmp_path):
    cases.Run("lamb").save(tmp_path / "x")
    assert json.loads((tmp_path / "x" / RECORD).read_text()) == {"format": 1, "optimizer": "Lamb", "processes": 1}
