"""Writing: a complete file or the previous one, through links and pipes, without leaks."""

import os
import stat
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from saving_cases import HALF, SLOW, Run, read, refused, same

import paddle_ldopt as ldopt
from paddle_ldopt import _safetensors
from paddle_ldopt._files import write_whole
from paddle_ldopt.plots import plot_schedule, write_schedule

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
