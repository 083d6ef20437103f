"""recipes/pipeline_sft.py as users meet it: two processes that it starts itself, an overflow, a resume, wrong input."""

import contextlib
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pipeline_sft as recipe
import processes
import pytest
from distributed_launch import launch
from test_recipe_text_classification import environment

FILE = pathlib.Path(recipe.__file__)
ROW = re.compile(r"^ *(\d+) +([\d.]+) +(True|False) +([\d.e+]+) +([\d.e+-]+) +([\d.]+|inf)$", re.MULTILINE)


def in_ranks(argv):
    """A worker: train as one of several processes; return what it printed."""
    sys.argv = argv
    with contextlib.redirect_stdout(io.StringIO()) as out:
        recipe.main()
    return out.getvalue()


def forked(*argv):
    first, second = launch(in_ranks, ranks=2, timeout=300, argv=[str(FILE), *map(str, argv)])
    assert not second, "one process speaks"
    return first


def started_by_itself(*argv):
    ended = processes.run([FILE, *argv], timeout=400, cwd=FILE.parent.parent)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A file of rows, of which nothing has to be learnt but two words."""
    path = tmp_path_factory.mktemp("data") / "rows.tsv"
    lines = [f"{'ab' * (i % 7 + 2)} {i}\t{'even' if i % 2 == 0 else 'odd'}\n" for i in range(120)]
    path.write_text("text\tlabel\n" + "".join(lines))
    return path


@pytest.mark.parametrize("run", [forked, pytest.param(started_by_itself, marks=pytest.mark.slow)])
def test_two_processes_an_overflow_and_a_resume(run, rows, tmp_path):
    common = ["--data", rows, "--micro_batch_num", 2, "--micro_batch_size", 4, "--length", 24, "--steps", 10]
    common += ["--inject_overflow", "3,5", "--save_steps", 4, "--loss_scale", 1024, "--optim", "came"]
    first = run(*common, "--output_dir", tmp_path / "run")
    table = ROW.findall(first)
    assert [int(row[0]) for row in table] == list(range(1, 11)), "by one process, once"
    assert [int(row[0]) for row in table if row[2] == "True"] == [3, 5]
    assert [float(row[3]) for row in table] == [1024.0] * 3 + [512.0] * 2 + [256.0] * 5
    assert table[4][4] == table[5][4], "an overflow leaves the rate where it is"
    assert len(re.findall("block", first)) == 4, "the layers of both stages, once"
    loss, unigram = map(float, re.search(r"test texts: ([\d.]+); unigram baseline: ([\d.]+);", first).groups())
    assert "scores cover 24 of 28 texts" in first and "Rows dropped: none." in first and "length=24: train: " in first
    assert np.isfinite(loss) and 1.0 < unigram < 4.0
    assert float(table[-1][1]) < float(table[0][1])

    shutil.rmtree(tmp_path / "run" / "checkpoint-10")
    second = run(*common, "--output_dir", tmp_path / "run", "--resume")
    assert ROW.findall(second) == table[8:]
    assert re.search(r"^resumed after step \d+ of \d+$", second, re.M)
    assert f"test texts: {loss:.3f}" in second


def test_prompts_and_answers_are_read_by_their_columns(tmp_path):
    text = "id,ask,reply\n" + "".join(f'{i},"What is {i}? é","It is {i}."\n' for i in range(120))
    (tmp_path / "rows.csv").write_text(text, encoding="cp1252")
    line = ["--source_field", "ask", "--target_field", "reply", "--encoding", "cp1252", "--steps", 1]
    out = forked("--data", tmp_path / "rows.csv", *line, "--micro_batch_num", 2, "--micro_batch_size", 4)
    assert "Columns: source = 'ask', target = 'reply'. Read as CP1252. Rows dropped: none. Columns not read: id." in out
    assert len(ROW.findall(out)) == 1


def test_too_few_rows_for_a_step_are_refused(tmp_path):
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "".join(f"text {i}\t{'ab'[i % 2]}\n" for i in range(60)))
    few = ["--data", tmp_path / "rows.tsv", "--micro_batch_num", 4, "--micro_batch_size", 16, "--length", 24]
    with pytest.raises(Exception, match="A step needs 64 training rows and 64 test rows"):
        forked(*few)


def test_a_wrong_step_is_one_line():
    with pytest.raises(SystemExit, match="^error: .*invalid literal"):
        recipe.main(["--inject_overflow", "x"])


def signal_handler():  # of Paddle's launcher
    sys.exit(signal.SIGTERM)


@pytest.mark.parametrize(("launch", "code"), [(lambda: sys.exit(2), 2), (signal_handler, 128 + signal.SIGTERM)])
def test_it_starts_as_many_processes_as_there_are_stages_and_ends_as_they_do(monkeypatch, launch, code):
    own = [str(FILE), "--stages", "3"]
    monkeypatch.setattr(sys, "argv", own)
    monkeypatch.setattr(recipe, "launch", launch)
    monkeypatch.setattr(recipe.os, "environ", {**os.environ})
    monkeypatch.setattr(recipe.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        recipe.main()
    assert ended.value.code == code and sys.argv[1:3] == ["--nproc_per_node", "3"] and sys.argv[-3:] == own


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [2, 8, 14])
def test_a_signal_ends_all_processes(rows, tmp_path, number, after):
    command = [sys.executable, str(FILE), "--data", str(rows), "--steps", "100000", "--length", "24"]
    command += ["--micro_batch_num", "2", "--micro_batch_size", "4", "--output_dir", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())
    time.sleep(after)
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)  # the other processes hold the pipe for as long as they live
    assert process.returncode in (-number, 128 + number) and b"Traceback" not in out and b"--resume" not in out


def test_the_last_step_is_found_in_a_folder_with_any_name(tmp_path):
    args = types.SimpleNamespace(output_dir=str(tmp_path / "run[1]"), resume=True)
    for step in (4, 12):
        path = pathlib.Path(recipe.part_of(args.output_dir, step, 0))
        path.parent.mkdir(parents=True)
        path.touch()
    assert recipe.last_step(args) == 12


def test_a_row_is_a_prompt_and_what_is_to_be_learnt():
    asked = recipe.conversations([("xyz", 1), (("a", "b"), 0)], ["no", "yes"])
    inputs, labels = recipe.padded(recipe.Messages(asked, 8), 8)
    assert bytes(inputs[0].astype("uint8")) == b"yes: xyz" and labels[0].tolist() == [recipe.IGNORED] * 4 + [*b"xyz\n"]
    assert bytes(inputs[1].astype("uint8")) == b"no: a / " and labels[1].tolist() == [recipe.IGNORED] * 3 + [*b"a / b"]
