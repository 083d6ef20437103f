"""Files: damaged and hostile ones are refused; a write gives a complete file or leaves the previous one."""

import os
import pickle
import stat
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle
import pytest
import safetensors.paddle
from saving_cases import CASES, HALF, SLOW, Run, each_damage, load_refused, read, refused, same, sealed, write_raw

import paddle_ldopt as ldopt
from paddle_ldopt import _safetensors
from paddle_ldopt._files import write_whole
from paddle_ldopt.plots import plot_schedule, write_schedule


@pytest.mark.promise(
    "`load_optimizer` refuses a damaged file and changes nothing", seen="200 flipped bits and 66 truncations"
)
@pytest.mark.parametrize(
    "case, flips, cuts", [("came", 200, 60), *(pytest.param(case, 1000, 300, marks=SLOW) for case in CASES)]
)
def test_a_damaged_file_changes_nothing(case, flips, cuts, path):
    run, victim, count = Run(case).train(HALF), Run(case, seed=1).train(1), 0
    ldopt.save_optimizer(path, run.optimizer, run.model)
    for what, damaged in each_damage(read(path), np.random.default_rng(1), flips, cuts):
        with open(path, "wb") as file:
            file.write(damaged)
        load_refused("", victim, path, what=what)
        count += 1
    assert count > flips + cuts - 10


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

    keys = ("optimizer", "schedule", "decay", "layers", "parameters", "naming", "step", "with_state")
    for key in (*keys, "schedule_state", "scaler_state"):
        yield f"no {key}", put(key)
        for value in ("x", -1, [], {}, [[1]], {"a": {}}, True):
            yield f"{key} = {value!r}", put(key, value=value)
    yield "no entry of a parameter", put("parameters", "blocks.0.weight")
    for key in ("parameters", "layers"):
        yield f"odd {key}", put(key, "blocks.0.weight", value={"x": 1e30})
    yield "state of a stranger", put("with_state", value=["blocks.9.weight"])


@pytest.mark.promise("`load_optimizer` refuses a hostile record, tensor or header and changes nothing")
def test_a_hostile_record_changes_nothing(saved, victim):
    count = 0
    for what, change in hostile_records():
        sealed(saved, saved + ".hostile", record=change)
        if what not in ("layers = {}", "layers = {'a': {}}") and "schedule_state =" not in what:  # there is no schedule
            load_refused("", victim, saved + ".hostile", what=what)
            count += 1
    assert count > 60


def test_a_hostile_schedule_changes_nothing(path):
    def rate():
        return ldopt.WarmUp(1e-3, paddle.optimizer.lr.PiecewiseDecay([2, 5], [0.3, 0.2, 0.1]), 2)

    run, victim = Run("lamb", rate=rate()).train(1), Run("lamb", rate=rate(), seed=1).train(2)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    odd = ("x", {"a": 1}, {"__array__": "object", "shape": [], "values": []}, {"__float__": "1"}, None, ["x"])
    states, good = [{}, [], "x", {"last_lr": 1}, 5, True, None], run.rate.state_dict()
    states += [{**good, key: value} for key in good for value in odd]
    for state in states:
        sealed(path, path + ".hostile", record=lambda record, state=state: record.update(schedule_state=state))
        load_refused("", victim, path + ".hostile", what=state)


def test_a_plateau_schedule_has_no_best_before_its_first_metric(path):
    fresh, used = (Run("adamwdl", rate=paddle.optimizer.lr.ReduceOnPlateau(1e-3, patience=0)) for _ in range(2))
    used.rate.step(paddle.to_tensor(3.0))
    for there, here in ((fresh, used), (used, fresh)):
        state = there.rate.state_dict()
        ldopt.save_optimizer(path, there.optimizer, there.model)
        ldopt.load_optimizer(path, here.optimizer, here.model)
        assert here.rate.state_dict() == state
        used.rate.step(paddle.to_tensor(3.0))


def test_a_plateau_that_waits_for_a_maximum_has_its_infinity(path):
    fresh, used = (Run("adamwdl", rate=ldopt.ReduceLROnPlateau(1e-3, mode="max")) for _ in range(2))
    used.rate.step(5.0)
    ldopt.save_optimizer(path, fresh.optimizer, fresh.model)
    ldopt.load_optimizer(path, used.optimizer, used.model)
    assert used.rate.best == float("-inf")


TENSORS = {  # what -> a function that changes the entry of a tensor in the header
    "gone": lambda tensors, n: tensors.pop(n),
    "renamed": lambda tensors, n: tensors.update({f"{n}x": tensors.pop(n)}),
    "of a stranger": lambda tensors, n: tensors.update({f"blocks.7.weight.{n.rpartition('.')[2]}": tensors.pop(n)}),
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
}


@pytest.mark.promise("`load_optimizer` refuses a hostile record, tensor or header and changes nothing")
@pytest.mark.parametrize("what", TENSORS)
@pytest.mark.parametrize("some", [True, pytest.param(False, marks=SLOW)], ids=["some", "all"])
def test_hostile_tensors_change_nothing(saved, victim, what, some):
    names = ["blocks.0.weight.exp_avg_sq_row", "blocks.0.bias.exp_avg", "scale.beta1_pow_acc"]
    every = [name for name, _ in safetensors.deserialize(read(saved))]
    assert set(names) < set(every)
    for name in names if some else every:
        sealed(saved, saved + ".hostile", tensors=lambda tensors, name=name: TENSORS[what](tensors, name))
        says = "belongs to no parameter. Received: tensor='blocks.7" if what == "of a stranger" else ""
        load_refused(says, victim, saved + ".hostile", what=name)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_counter_that_counts_nothing_is_refused(value, saved, victim):
    sealed(saved, saved + ".hostile", values={"blocks.0.weight.beta1_pow_acc": np.array([value], "float32")})
    load_refused("must be a finite number of at least 0", victim, saved + ".hostile")


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


@pytest.mark.promise("`load_optimizer` refuses a hostile record, tensor or header and changes nothing")
@pytest.mark.parametrize("what", HEADERS)
def test_a_hostile_header_changes_nothing(what, path, victim):
    write_raw(path, HEADERS[what])
    load_refused("", victim, path)


@pytest.mark.parametrize("length", [0, 1, 2, 2**20, 2**31, 2**40, 2**63, 2**64 - 1])
@pytest.mark.parametrize("size", [None, 2**40])
def test_a_hostile_header_length_changes_nothing(length, size, path, victim):
    """Also in a file with a hole of a terabyte, which is not read."""
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", length) + b"{}" * 100)
        file.truncate(size)
    load_refused("no safetensors file, or a damaged one", victim, path)


@pytest.mark.promise("`load_optimizer` refuses links, pipes, devices and folders")
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
        load_refused("", victim, place, what=place, kind=kind)
    for place, says in ((link, "not a link"), (pipe, "device or pipe")):  # nothing of the system
        before = os.lstat(place)
        with refused(says, ValueError, victim):
            ldopt.save_optimizer(place, victim.optimizer, victim.model)
        assert os.lstat(place) == before


def test_no_pickle_is_ever_loaded_under_another_name(path, victim):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (path + ".ran",)

    for content in (pickle.dumps(Payload()), pickle.dumps({"a": Payload()}, 2)):
        with open(path, "wb") as file:
            file.write(content)
        load_refused("no safetensors file", victim, path)
    assert not os.path.exists(path + ".ran")


WRITERS = {
    "to_json": ("json", lambda path: ldopt.LdoptConfig().to_json(path)),
    "write_schedule": ("csv", lambda path: write_schedule(path, 2, {"head": [0.1, 0.2].__getitem__})),
    "plot_schedule": ("png", lambda path: plot_schedule(path, 2, {"head": [0.1, 0.2].__getitem__})),
    "plot": ("svg", lambda path: Run("came").optimizer.layers.plot(path, 0.5)),
    "write_whole": ("html", lambda path: write_whole(path, "all of it")),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_goes_through_links_and_pipes(name, tmp_path):
    ending, write = WRITERS[name]
    target, link, pipe = (str(tmp_path / f"{kind}.{ending}") for kind in ("target", "link", "pipe"))
    os.symlink(target, link), os.mkfifo(pipe)
    write(link)
    assert os.path.islink(link) and os.path.getsize(target) > 0
    if name == "write_whole":
        for place in (pipe, ".", ""):
            with pytest.raises(ValueError, match="`path` must be a regular file, not a link, folder"):
                write(place)
        return
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(read, pipe)
        write(pipe)
        assert len(reader.result(20)) > 0 and stat.S_ISFIFO(os.lstat(pipe).st_mode)
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, (target, link, pipe)))


@pytest.mark.promise("a failed `save_optimizer` keeps the old file and leaves no temporary file")
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
    monkeypatch.setattr(_safetensors, "MAX_HEADER", length)
    ldopt.save_optimizer(saved, Run("came").train(HALF).optimizer)
    assert read(saved) == before
    monkeypatch.setattr(_safetensors, "MAX_HEADER", length - 8)
    with refused(r"safetensors reads.*Received: path=.*, tensors=\d+, header=\d+$", ValueError, victim):
        ldopt.save_optimizer(saved, victim.optimizer, victim.model)
    assert read(saved) == before
    assert os.listdir(os.path.dirname(saved)) == [os.path.basename(saved)]


def test_files_and_folder_are_synced_in_this_order(path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, o=original: (done.append(n), o(*a)))
    run = Run("lamb").train(1)
    ldopt.save_optimizer(path, run.optimizer, run.model)
    assert done == ["fsync", "replace", "fsync"]
    os.umask(mask := os.umask(0))
    assert os.stat(path).st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.promise(
    "1,000 rounds of `save_optimizer` and `load_optimizer` leak no memory and leave no temporary file",
    seen="growth below 4 MB",
)
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux says how much memory a process has")
@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=SLOW)])
def test_saving_and_loading_over_and_over_leaves_nothing_behind(path, count):
    run, sizes = Run("came bf16").train(1), []
    other = Run("came bf16").with_weights_of(run)
    for i in range(count):
        a, b = (run, other) if i % 2 else (other, run)
        ldopt.save_optimizer(path, b.optimizer, b.model)
        ldopt.load_optimizer(path, a.optimizer, a.model)
        with open("/proc/self/statm") as file:
            sizes.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
    assert same(run.state(), other.state())
    assert all(master.is_leaf for master in run.optimizer._master_weights.values()), "no graph grows"
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
    assert max(sizes[-(count // 5) :]) - max(sizes[: count // 5]) < 4.0, "MB"
