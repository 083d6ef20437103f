"""docs/tutorial.ipynb runs from top to bottom, in minutes, and says what its saved outputs say."""

import time
import warnings

import matplotlib
import pytest
from notebook import code_cells, run_notebook, saved_text
from project import ROOT

PATH = ROOT / "docs" / "tutorial.ipynb"


@pytest.mark.slow
def test_the_tutorial_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        names, printed = run_notebook(PATH)
    assert time.perf_counter() - start < 300
    assert names["same"] and names["report"].step == 80 and names["losses"][-1] < 0.5 * names["losses"][0]
    assert "block 3" in printed[2] and "ratio" in printed[2]
    exact = [i for i, text in enumerate(printed) if text and "accuracy" not in text and "block" not in text]
    saved = [saved_text(outputs) for _, outputs in code_cells(PATH)]
    assert [printed[i] for i in exact] == [saved[i] for i in exact] and len(exact) == 2
