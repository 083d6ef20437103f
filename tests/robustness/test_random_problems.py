"""`make parity ARGS=--random`: its problems can be run without the peers, and a difference is found."""

import functools

import numpy as np
import pytest
from golden import random_problems as problems
from optimizer_cases import build
from reference import make_params, take_steps

SEED, COUNT = 5, len(problems.KINDS)


@functools.cache
def ours(number):
    """Return our values after each step of a problem."""
    one = problems.problem(SEED, number)
    params, name_dict = make_params(one["start"], "float64")
    optimizer, _ = build(one["ours"], params, name_dict)
    values = []
    note = lambda: values.append({n: p.numpy() for n, p in params.items()})  # noqa: E731
    take_steps(optimizer, params, problems.with_gaps(one), note)
    return values


def test_a_problem_is_the_same_each_time():
    for number in range(COUNT):
        one, again = (problems.problem(SEED, number) for _ in range(2))
        for key in ("options", "ours", "shapes", "decay"):
            assert one[key] == again[key]
        np.testing.assert_equal(problems.with_gaps(one), problems.with_gaps(again))


@pytest.mark.parametrize("off", [0.0, 1e-4])
def test_a_difference_is_found(tmp_path, capsys, off):
    some = [problems.problem(SEED, number) for number in range(COUNT)]
    values = [list(ours(number)) for number in range(COUNT)]
    values[3][-1] = {name: value + off for name, value in values[3][-1].items()}
    problems.save(tmp_path / "problems.npz", some, values)
    assert problems.compare(tmp_path / "problems.npz") == (1 if off else 0)
    said = capsys.readouterr().out
    assert ("problem 3: " in said) == bool(off)
    assert {one["cls"] for one in some} == {row.split()[0] for row in said.splitlines() if "problems, largest" in row}
