"""Layouts, ways to step, optimizers and features in all combinations: one process's numbers, or a refusal.

`make test` and `make test-all` draw some, `make fault` trains all and compares them with what docs/scaling.md prints.
"""

import json

import pytest
from combinations import LAYOUTS, RESULTS, combinations, rows_of, sample, summary

SEED = 22


@pytest.mark.promise(
    "every combination of layout, kind of step (plain, `PipelineWithLossScale`, `GradientAccumulator`), optimizer "
    "(except Muon) and feature trains as in one process, or is refused",
    seen="1,750 of 1,750 match ([table](scaling.md#layouts-that-match-one-process))",
)
@pytest.mark.parametrize(
    "layout",
    [layout if layout in ("sharding v2", "mp") else pytest.param(layout, marks=pytest.mark.slow) for layout in LAYOUTS],
)
def test_some(layout, tmp_path):
    rows, wrong = rows_of(sample(layout, 5, SEED), str(tmp_path), timeout=500)
    assert not wrong
    recorded = json.loads(RESULTS.read_text())
    for (layout, way, case, feature), row in rows.items():
        known = [why for why, names in recorded[layout][way]["refused"].items() if f"{case}, {feature}" in names]
        assert [row.removeprefix("refused: ")] == (known or ["match"]), (layout, way, case, feature)


@pytest.mark.promise(
    "every combination of layout, kind of step (plain, `PipelineWithLossScale`, `GradientAccumulator`), optimizer "
    "(except Muon) and feature trains as in one process, or is refused"
)
@pytest.mark.fault
@pytest.mark.timeout(5400)
def test_all(tmp_path):
    rows, wrong = rows_of(combinations(), str(tmp_path), timeout=3600)
    assert not wrong
    assert summary(rows) == json.loads(RESULTS.read_text())
