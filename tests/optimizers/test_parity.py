"""Every optimizer follows the trajectories of its peers in `golden`, which come with the repository: no peer is needed.

`make parity` runs the peers again and compares them with what is stored, and with `ARGS=--random` runs random problems:
these can be run without the peers, and a difference is found.
"""

import numpy as np
import pytest
from golden import random_problems as problems
from golden.trajectories import error, inputs, load_arrays, load_index, split
from optimizer_cases import FLOAT32, SHAPES, build
from reference import make_params, take_steps

CASES = load_index()["cases"]


def trajectory(case, dtype):
    """Return (ours, the peer's, start): name -> values after each recorded step, and before the first."""
    shapes = {name: shape for name, shape in SHAPES.items() if name not in case["leaves_out"]}
    start, grads = inputs(load_arrays(), SHAPES, case["inputs"], list(shapes))
    params, name_dict = make_params(start, dtype)
    optimizer, after_step = build(case["ours"], params, name_dict)
    values = []
    note = lambda: (after_step(), values.append({n: p.numpy() for n, p in params.items()}))  # noqa: E731
    take_steps(optimizer, params, grads, note)
    recorded = load_index()["recorded_steps"]
    got = {name: np.stack([values[step - 1][name] for step in recorded]) for name in shapes}
    return got, split(load_arrays()[case["id"]], shapes), start


@pytest.mark.representatives
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_it_follows_the_peers_float64_but_for_rounding(case, dtype):
    size, where = error(*trajectory(case, dtype), dtype)
    allowed = case["tolerance"] if dtype == "float64" else FLOAT32.get(case["ours"]["optimizer"], 1e-6)
    assert size <= allowed, (where, size, case["reason"])


SEED, COUNT = 5, len(problems.KINDS)


@pytest.mark.parametrize("off", [0.0, 1e-4])
def test_a_difference_is_found(tmp_path, capsys, off):
    some = [problems.problem(SEED, number) for number in range(COUNT)]
    np.testing.assert_equal(problems.problem(SEED, 3), some[3])
    values = [problems.steps_of_ours(one["ours"], one["start"], problems.with_gaps(one)) for one in some]
    values[3][-1] = {name: value + off for name, value in values[3][-1].items()}
    problems.save(tmp_path / "problems.npz", some, values)
    assert problems.compare(tmp_path / "problems.npz") == (1 if off else 0)
    said = capsys.readouterr().out
    assert ("problem 3: " in said) == bool(off)
    assert {one["cls"] for one in some} == {row.split()[0] for row in said.splitlines() if "problems, largest" in row}
