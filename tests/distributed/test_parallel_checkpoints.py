"""Checkpoints move between layouts: docs/scaling.md has the table, each row of which is a test here.

test_rates_distributed.py has tensor parallelism.
"""

import json
import os
import re
import shutil
import warnings

import checkpoint_cases as cases
import numpy as np
import paddle
import pytest
import toy_layers
from distributed_launch import launch
from representatives import selected

import paddle_ldopt as ldopt
from paddle_ldopt.parallel import load_checkpoint, save_checkpoint
from paddle_ldopt.parallel.checkpoint import RECORD

NAMES = [name for name in ldopt.list_optimizers() if name != "muon"]  # which refuses sharding version 2
CASES = {name: {"name": name} for name in NAMES}
LOW = {f"{name}, bfloat16": {"name": name, "dtype": "bfloat16"} for name in ("adamwdl", "came")}
ALL = {**CASES, **LOW}
FIRST = ("came", "came, bfloat16")  # stand for all in `make test`
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ALL if name not in FIRST]
every_optimizer = pytest.mark.parametrize("name", [*FIRST[:1], *(case for case in SLOW if case.values[0] in NAMES)])
ONE = "1 process"
# layout -> those whose checkpoints it goes on from
SOURCES = {
    "sharding v2 of 4": [],
    "dp": [ONE, "sharding v2 of 4"],
    "sharding v1": [ONE, "dp"],
    "sharding v2": [ONE, "sharding v1", "sharding v2 of 4"],
    "pp": [ONE, "sharding v2"],
}
MOVES = [(source, target) for target in SOURCES for source in SOURCES[target]]


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    names = [name for (name,) in selected(request, "name")]
    return run_all(str(tmp_path_factory.mktemp("checkpoints")), {name: ALL[name] for name in names})


def run_all(root, chosen, sources_of=SOURCES):
    """Return (folder of all checkpoints, case -> values without interruption, layout -> what each rank returned)."""
    whole = {}
    for case, arguments in chosen.items():
        run = cases.Run(**arguments).train(0, cases.HALF)
        run.save(cases.place(root, ONE, case))
        whole[case] = run.train(cases.HALF, cases.STEPS).values()
    found = {}
    for ranks in (4, 2):
        layouts = {layout: sources for layout, sources in sources_of.items() if ("of 4" in layout) == (ranks == 4)}
        if not layouts:
            continue
        results = launch(cases.work, ranks=ranks, timeout=600, root=root, layouts=layouts, cases=chosen)
        found.update({layout: [result[layout] for result in results] for layout in layouts})
    return root, whole, found


MUON = {"name": "muon", "use_muon": cases.is_matrix}


@pytest.mark.parametrize("name", [*FIRST, "muon", *SLOW])
def test_one_process_goes_on_bit_for_bit(tmp_path, name):
    arguments = {**ALL, "muon": MUON}[name]
    whole = cases.Run(**arguments).train(0, cases.HALF)
    whole.save(tmp_path / "x")
    run = cases.Run(**arguments).load(tmp_path / "x").train(cases.HALF, cases.STEPS)
    want = whole.train(cases.HALF, cases.STEPS).values()
    assert all(np.array_equal(value, want[key]) for key, value in run.values().items())


@pytest.mark.representatives
@pytest.mark.parametrize("name", [*FIRST, *SLOW])
@pytest.mark.parametrize("layout", SOURCES)
def test_all_state_arrives_bit_for_bit(runs, layout, name):
    """Masters, counters and the parameters too."""
    root, _, found = runs
    run = cases.Run(**ALL[name]).load(cases.place(root, layout, name))
    loaded = {key: value for key, value, _ in run.shards()}
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


@pytest.mark.promise("a checkpoint of one layout loads in another", seen="within 1e-5 of the distance moved")
@every_optimizer
@pytest.mark.parametrize("source, target", MOVES, ids=lambda layout: layout.replace(" ", "-"))
def test_between_layouts(runs, source, target, name):
    check_move(runs, source, target, name)


def check_move(runs, source, target, name, **arguments):
    _, whole, found = runs
    values = {}
    for rank in found[target]:
        here, rate = rank[name][source]
        assert rate == pytest.approx(1e-2 * 0.9**cases.STEPS)
        for key, value in here.items():
            assert np.array_equal(values.setdefault(key, value), value), "the same in every process that has it"
    assert set(values) == set(whole[name])
    assert toy_layers.apart(values, cases.Run(name, **arguments).values(), whole[name]) < 1e-5


def test_paddles_own_functions_do_it_too(tmp_path):
    run, again = cases.Run("came").train(0, cases.HALF), cases.Run("came")
    for work, one in ((paddle.distributed.save_state_dict, run), (paddle.distributed.load_state_dict, again)):
        model = one.plain.sharded_state_dict()
        work({**model, **one.optimizer.sharded_state_dict(model)}, str(tmp_path / "raw"))
    again.schedule.step(cases.HALF)
    got, want = (one.train(cases.HALF, cases.STEPS).values() for one in (again, run))
    assert all(np.array_equal(got[key], value) for key, value in want.items())


@pytest.mark.slow
def test_layers_are_unfrozen_one_by_one_under_sharding():
    """Gradients of frozen layers do not count in the norm."""
    end, count = cases.unfrozen_one_by_one()
    start = cases.Run("adamwdl").values()
    for found in launch(cases.work_unfreezing, ranks=2, timeout=300, layouts=["sharding v1", "sharding v2"]):
        for layout, (values, seen) in found.items():
            assert seen == count and toy_layers.apart(values, start, end) < 1e-5, layout


@pytest.mark.slow
def test_files_of_each_process_keep_masters(tmp_path):
    """Fleet's sharding renames the masters that it loads; version 2 has no slices yet."""
    layouts = ["dp", "sharding v1", "sharding v2"]
    for found in launch(cases.work_own_state, ranks=2, timeout=300, folder=str(tmp_path), layouts=layouts):
        assert found == dict.fromkeys(found, True) and len(found) == 9


def test_names_of_another_class(tmp_path):
    class Other(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.body = cases.Run("lamb").plain

        def forward(self, x):
            return self.body(x)

    run, other = cases.Run("lamb").train(0, cases.HALF), Other()
    run.save(tmp_path / "saved")
    optimizer = ldopt.create("lamb", other, learning_rate=run.schedule)
    with pytest.raises(ValueError, match=r"parameters was {} and is {'body.0.bias"):
        load_checkpoint(tmp_path / "saved", other, optimizer)
    load_checkpoint(tmp_path / "saved", other, optimizer, rename=lambda name: name[len("body.") :])
    assert all(np.array_equal(p.numpy(), q.numpy()) for p, q in zip(run.plain.parameters(), other.parameters()))
    with pytest.raises(TypeError, match="gives each parameter its own name"):
        save_checkpoint(tmp_path / "again", other, optimizer, rename=lambda name: "one")


def test_what_cannot_be_resumed_is_refused_before_anything_is_written(tmp_path):
    folder = str(tmp_path / "refused")
    for (fused, alone), written in launch(cases.work_refused, ranks=2, timeout=120, folder=folder):
        assert "set tensor_fusion=False" in fused and "Received: optimizer=" in fused
        assert "must name every parameter" in alone and not written


def test_group_sharding_is_refused(tmp_path):
    run = cases.Run("lamb")

    class Stage2:
        _optim = run.optimizer

    with pytest.raises(ValueError, match="use sharding stage 1 .*='Stage2'"):
        save_checkpoint(tmp_path / "x", run.plain, Stage2())
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("leave", [[RECORD, "0.metadata", "0_0.distcp", "schedule.pdparams"], ["0.metadata"], []])
def test_saving_and_loading_know_the_same_checkpoints(tmp_path, leave):
    cases.Run("lamb").train(0, 1).save(tmp_path / "x")
    for name in set(os.listdir(tmp_path / "x")) - set(leave):
        os.remove(tmp_path / "x" / name)
    run = cases.Run("lamb")
    message, changed = run.refusal(tmp_path / "x")
    assert bool(changed) == (RECORD in leave)
    assert message == "accepted" if RECORD in leave else "must be a complete checkpoint" in message
    if leave:
        with pytest.raises(ValueError, match="`folder` must be new or empty.*Received: folder="):
            run.save(tmp_path / "x")
        assert sorted(os.listdir(tmp_path / "x")) == sorted(leave)
    else:
        run.save(tmp_path / "x")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "x"
    cases.Run("came").train(0, cases.HALF).save(folder)
    return folder


def of(cls, *args, **kwargs):
    return lambda: getattr(paddle.optimizer.lr, cls)(*args, **kwargs)


OTHERS = {  # arguments, what strict=True says, what strict=False says if it is refused too
    "class": ({"name": "lamb"}, "optimizer was 'Came' and is 'Lamb' now", r"0.weight.moment1_0 .* and None there"),
    "type": ({"dtype": "bfloat16"}, "'float32.*'bfloat16", None),
    "compression": ({"compression": True}, "exp_avg_0 is float16.* here and float32", "exp_avg_0 is float16"),
    "number": ({"rate": lambda: 1e-2}, "schedule was 'ExponentialDecay' and is None now", None),
    "schedule": ({"rate": of("OneCycleLR", 1e-2, 100)}, "schedule was .* and is 'OneCycleLR' now", None),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_optimizer_is_refused_before_anything_changes(saved, what):
    arguments, says, always = OTHERS[what]
    run = cases.Run(**{"name": "came", **arguments, "rate": arguments.get("rate", lambda: None)()})
    epoch = run.epoch()
    message, changed = run.refusal(saved)
    assert message.startswith("ValueError: The checkpoint is of another") and re.search(says, message), message
    assert changed == []
    with warnings.catch_warnings():
        warnings.simplefilter("error" if always else "ignore")
        message, changed = run.refusal(saved, strict=False)
    if always:
        assert re.search(always, message) and changed == []
    else:
        assert message == "accepted" and ("0.weight" in changed) == (what != "type")
        assert run.epoch() == (cases.HALF if what in ("type", "schedule") else epoch)


def test_other_options_keep_their_present_values(saved):
    run = cases.Run("came", beta1=0.8, weight_decay=0.3, rate=of("ExponentialDecay", 1e-2, 0.8)()).load(saved)
    assert run.epoch() == cases.HALF and run.schedule.gamma == 0.8


def test_another_network_is_refused_or_keeps_the_rest(saved, monkeypatch):
    run = cases.Run("came")
    run.plain[2].weight.stop_gradient = True
    message, changed = run.refusal(saved)
    assert "freeze the same layers" in message and "Received: nothing for '2.weight." in message and changed == []
    first, second, (rows, _) = cases.SIZES
    for sizes, says, new in (
        ([first, second], "nothing for '4.bias'|unused are '4.bias'", "4"),
        ([*cases.SIZES, (4, 4)], "{} and is {'6.bias'", "6"),
        ([first, second, (rows, 5)], r"'4.weight': 'float32 \[24, 5\]'", "4"),
    ):
        monkeypatch.setattr(cases, "SIZES", sizes)
        run = cases.Run("came")
        message, changed = run.refusal(saved)
        assert re.search(says, message) and changed == []
        with pytest.warns(UserWarning, match=says):
            message, changed = run.refusal(saved, strict=False)
        assert message == "accepted" and not any(key.startswith(new) for key in changed)
        assert {"0.weight", "2.weight", "2.weight.exp_avg_0"} <= set(changed)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda record: {**record, "format": 9}, "Received: format=9"),
        (lambda record: {**record, "parameters": 5}, "record of the checkpoint cannot be read: AttributeError"),
        (lambda record: {key: value for key, value in record.items() if key != "format"}, "KeyError.*format"),
        (lambda record: [], "record of the checkpoint cannot be read: TypeError"),
    ],
)
def test_a_damaged_record_changes_nothing(saved, tmp_path, change, says):
    folder = shutil.copytree(saved, tmp_path / "x")
    record = change(json.loads((folder / RECORD).read_text()))
    (folder / RECORD).write_text(json.dumps(record))
    message, changed = cases.Run("came").refusal(folder)
    assert message.startswith("ValueError") and re.search(says, message) and RECORD in message and changed == []


@pytest.fixture(scope="module")
def loads(tmp_path_factory):
    return launch(cases.work_loads, ranks=2, timeout=240, root=str(tmp_path_factory.mktemp("loads")))


REFUSED = {
    "missing": "'1_0.distcp' is missing",
    "cut short": "'1_0.distcp' has 2000 bytes",
    "swapped": "'1_0.distcp' has",
    "no metadata": "'0.metadata' is missing",
    "metadata": "'0.metadata' has 1 bytes",
    "record": f"cannot be read: .*{RECORD}",
    "schedule": "'schedule.pdparams' (cannot be read|has 1 bytes)",
    "type": "is of another optimizer or network: .*bfloat16",
    "compression": "is of another optimizer or network: .*float16",
    "alone": "is of another optimizer or network: schedule was",
    "folders": "must load the same checkpoint",
    "apart": "must save to one folder.*1_0.distcp",
    "argument": "TypeError: `rename` must be a function",
}


@pytest.mark.parametrize("case", REFUSED)
def test_all_processes_refuse_before_anything_changes(loads, case):
    (message, changed), (other_message, other_changed) = (rank[case] for rank in loads)
    assert message == other_message and re.search(REFUSED[case], message), message
    assert message.startswith(("ValueError", "TypeError")) and "Received: " in message
    assert changed == other_changed == []


def test_a_layer_that_was_frozen_by_its_ratio_starts_with_a_new_state(tmp_path):
    frozen = cases.Run("lamb", set_param_lr_fun=lambda param: float(param.shape != [8, 24]))
    frozen.train(0, cases.HALF).save(tmp_path / "x")
    again = cases.Run("lamb")
    assert "give strict=False" in again.refusal(tmp_path / "x")[0]
    again.load(tmp_path / "x", strict=False)
    assert all(np.array_equal(value, frozen.values()[key]) for key, value in again.values().items())
    state = {key: value for key, value, _ in again.shards()}
    assert not state["0.weight.moment1_0"].any() and state["2.weight.moment1_0"].any()


def test_a_new_head_keeps_the_rest_and_other_options_are_accepted_in_all_processes(loads):
    for rank in loads:
        message, changed = rank["new head"]
        assert message == "accepted" and "0.weight" in changed and "2.weight.exp_avg_0" in changed
        assert not any(key.startswith("4.") for key in changed)
        for (key, value, _), (_, loaded, _) in zip(*rank["options"]):
            assert np.array_equal(value, loaded), key


@pytest.mark.parametrize("name", ["came"])
def test_another_checkpoint_may_take_the_folder_of_one_that_was_loaded(tmp_path, runs, name):
    folder = tmp_path / "x"
    cases.Run("came").save(folder)
    cases.Run("came").load(folder)
    shutil.rmtree(folder)
    shutil.copytree(cases.place(runs[0], "sharding v2", name), folder)  # of two processes
    assert cases.Run("came").load(folder).schedule.last_epoch == cases.HALF


@pytest.mark.slow
def test_muon_moves_between_layouts_of_whole_matrices(tmp_path):
    sources_of = {"dp": [ONE], "sharding v1": ["dp"], "pp": [ONE, "sharding v1"]}
    runs = run_all(str(tmp_path), {"muon": MUON}, sources_of)
    for target, sources in sources_of.items():
        for source in sources:
            check_move(runs, source, target, "muon", use_muon=cases.is_matrix)


def test_the_record_says_what_it_is_of(tmp_path):
    cases.Run("lamb").save(tmp_path / "x")
    record = json.loads((tmp_path / "x" / RECORD).read_text())
    assert (record["format"], record["optimizer"], record["processes"]) == (1, "Lamb", 1)
    assert set(record["files"]) == {"0.metadata", "0_0.distcp", "schedule.pdparams"}
    assert record["schedule"] == "ExponentialDecay"
    assert record["parameters"]["0.weight"] == "float32 [8, 24]"
