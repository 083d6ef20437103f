"""recipes/pipeline_sft.py as users meet it: two processes that it starts itself, an overflow, a resume, wrong input."""

import pathlib
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pipeline_sft as recipe
import pytest

FILE = pathlib.Path(recipe.__file__)
ROW = re.compile(r"^ *(\d+) +([\d.]+) +(True|False) +([\d.e+]+) +([\d.e+-]+) +([\d.]+|inf)$", re.MULTILINE)


def run(*arguments, timeout=400):
    command = [sys.executable, str(FILE), *map(str, arguments)]
    return subprocess.run(command, cwd=FILE.parent.parent, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A file of rows, of which nothing has to be learnt but two words."""
    path = tmp_path_factory.mktemp("data") / "rows.tsv"
    lines = [f"{'ab' * (i % 7 + 2)} {i}\t{'even' if i % 2 == 0 else 'odd'}\n" for i in range(120)]
    path.write_text("text\tlabel\n" + "".join(lines))
    return path


def test_two_processes_an_overflow_and_a_resume(rows, tmp_path):
    common = ["--data", rows, "--micro_batch_num", 2, "--micro_batch_size", 4, "--length", 24, "--steps", 16]
    common += ["--inject_overflow", "5,9", "--save_steps", 6, "--loss_scale", 1024, "--optim", "came"]
    first = run(*common, "--output_dir", tmp_path / "run")
    assert first.returncode == 0, first.stdout[-4000:] + first.stderr[-4000:]
    table = ROW.findall(first.stdout)
    assert [int(row[0]) for row in table] == list(range(1, 17)), "by one process, once"
    assert [int(row[0]) for row in table if row[2] == "True"] == [5, 9]
    assert [float(row[3]) for row in table] == [1024.0] * 5 + [512.0] * 4 + [256.0] * 7
    assert table[4][4] == table[5][4], "an overflow leaves the rate where it is"
    assert len(re.findall("block", first.stdout)) == 4, "the layers of both stages, once"
    loss, unigram = map(float, re.search(r"test texts: ([\d.]+); unigram baseline: ([\d.]+)", first.stdout).groups())
    assert np.isfinite(loss) and 1.0 < unigram < 4.0
    assert float(table[-1][1]) < float(table[0][1])

    shutil.rmtree(tmp_path / "run" / "checkpoint-16")
    second = run(*common, "--output_dir", tmp_path / "run", "--resume")
    assert second.returncode == 0, second.stdout[-4000:] + second.stderr[-4000:]
    assert ROW.findall(second.stdout) == table[12:]
    assert f"test texts: {loss:.3f}" in second.stdout


def test_wrong_arguments(tmp_path):
    for arguments, message in [
        (["--inject_overflow", "x"], "--inject_overflow: invalid <lambda> value: 'x'"),
        (["--float16"], "--float16 needs a GPU. Received: 2, True"),
        (["--stages", "1"], "--stages is at least 2"),
        (["--optim", "adam"], "invalid choice"),
    ]:
        result = run(*arguments)
        assert result.returncode == 2 and message in result.stderr


def test_the_last_step_is_found_in_a_folder_with_any_name(tmp_path):
    args = types.SimpleNamespace(output_dir=str(tmp_path / "run[1]"), resume=True)
    for step in (4, 12):
        path = pathlib.Path(recipe.part_of(args.output_dir, step, 0))
        path.parent.mkdir(parents=True)
        path.touch()
    assert recipe.last_step(args) == 12


def test_a_row_is_a_prompt_and_what_is_to_be_learnt():
    inputs, labels = recipe.encode([("xyz", 1), (("a", "b"), 0)], ["no", "yes"], 8)
    assert bytes(inputs[0].astype("uint8")) == b"yes: xyz" and labels[0].tolist() == [recipe.IGNORED] * 4 + list(
        b"xyz\n"
    )
    assert bytes(inputs[1].astype("uint8")) == b"no: a / " and labels[1].tolist() == [recipe.IGNORED] * 3 + list(
        b"a / b"
    )
