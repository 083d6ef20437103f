"""The benchmarks: that they run, measure what they say, and that the page has the numbers that were measured."""

import json
import pathlib

import bench
import paddle
import page
import pytest
import shapes
from contestants import CONTESTANTS
from process import Worker
from reference import needs_library

FOLDER = pathlib.Path(bench.__file__).parent
TINY = shapes.stack(3, 8)
IN_PADDLE = [(o, label) for o, rows in CONTESTANTS.items() for label, row in rows.items() if row.in_paddle]


@pytest.mark.parametrize(
    ("model", "tensors", "elements"),
    [("bert-base", 199, 109_482_240), ("vit-b16", 152, 86_567_656), ("t5-small", 131, 60_506_624)],
)
def test_models_have_the_sizes_that_are_published(model, tensors, elements):
    model_shapes = shapes.MODELS[model]()
    assert (len(model_shapes), shapes.count(model_shapes)) == (tensors, elements)


@pytest.mark.representatives(count=2)
@pytest.mark.parametrize(("optimizer", "label"), IN_PADDLE)
def test_a_contestant_steps(optimizer, label):
    try:
        worker = Worker(optimizer, label)
    except ImportError:
        assert label.endswith("(fused=False)")
        assert not CONTESTANTS[optimizer][label].has("fused")
        return
    facts = worker.build(TINY)
    assert (facts["tensors"], facts["elements"]) == (48, shapes.count(TINY))
    optimizer_ = getattr(worker.optimizer, "_inner_opt", worker.optimizer)
    before = [param.clone() for param in optimizer_._parameter_list]
    assert worker.step() > 0
    for param, old in zip(optimizer_._parameter_list, before):
        assert not paddle.equal_all(param, old), param.name


@needs_library
def test_operations_of_a_step_are_counted():
    """The C library launches none; Paddle's AdamW one for each tensor, for most rules dozens."""
    counts = []
    for optimizer, label in (("came", "Came"), ("adamwdl", "paddle.optimizer.AdamW"), ("came", "Came(fused=False)")):
        worker = Worker(optimizer, label)
        worker.build(TINY)
        counts.append(worker.launches())
    assert len(TINY) == 48 and counts[0] < 20 < 48 <= counts[1] < 2 * 48
    assert counts[2] > counts[0]


def test_transient_memory_is_seen(monkeypatch):
    """A step that takes 65 MiB, some of them pages that the allocator may have had before, and gives them back."""
    worker = Worker("adamwdl", "paddle.optimizer.AdamW")
    worker.build(TINY)
    plain = worker.transient()
    if plain is None:
        pytest.skip("there is no /proc here")
    assert plain < 8 << 20
    monkeypatch.setattr(worker.optimizer, "step", lambda: paddle.ones([65 << 18]).sum())
    assert 64 << 20 <= worker.transient() < 80 << 20


@pytest.mark.slow
def test_a_pair_in_processes_becomes_a_page(tmp_path):
    said = []
    runner = bench.Bench(rounds=2, say=said.append)
    labels = ["AdamWDL", "paddle.optimizer.AdamW"]
    rows = runner.family("adamwdl", TINY, threads=1, labels=labels)
    assert [row["label"] for row in rows] == labels
    assert [row["ratio"] for row in rows] == [1.0, pytest.approx(rows[1]["ratio"])]
    assert all(row["ms"] > 0 and row["of_floor"] > 0 for row in rows) and rows[1]["ratio"] > 0
    assert runner.bandwidths["1"] and len(said) == 1
    about = {**bench.describe(), "load_before": 0, "load_after": 0, "minutes": 0, "rounds": 2, "threads": 1}
    about.update(absent={}, triad={"1": 1e9})
    results = {"about": about, "models": [{"model": "tiny", "threads": 1, "optimizer": "adamwdl", **r} for r in rows]}
    (tmp_path / "README.md").write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write(results, tmp_path)
    written = (tmp_path / "README.md").read_text()
    assert written.startswith(f"before\n{page.BEGIN}\n") and written.endswith(f"{page.END}\nafter\n")
    assert "old" not in written and "`paddle.optimizer.AdamW`" in written
    assert (tmp_path / "images" / "steps.svg").stat().st_size
    with pytest.raises(ValueError, match="markers"):
        (tmp_path / "README.md").write_text("no markers")
        page.write(results, tmp_path)


def test_a_peer_that_is_not_installed_is_left_out_and_named(tmp_path, monkeypatch):
    (tmp_path / "came_pytorch.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    runner = bench.Bench(rounds=1, say=print)
    with runner.started("came", ["came_pytorch.CAME"], threads=1) as (processes, _):
        assert not processes
    assert runner.absent == {"came_pytorch.CAME": "not here"}


def test_the_page_has_the_numbers_that_were_measured():
    measured = FOLDER / "results.json"
    section = (FOLDER / "README.md").read_text().partition(page.BEGIN)[2].partition(page.END)[0]
    assert section.strip() == (page.text(page.shown(json.loads(measured.read_text()))) if measured.exists() else "")
