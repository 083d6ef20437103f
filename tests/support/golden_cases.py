"""Trajectories computed by the real peers, where that folder is at hand: it is not ours to ship.

`LDOPT_GOLDEN` or ``../shared/golden`` beside the checkout. The suite itself holds ``golden/`` and `reference`.
"""

import functools
import importlib.util
import os
import pathlib

import pytest
from reference import make_params, take_steps

FOLDER = pathlib.Path(os.environ.get("LDOPT_GOLDEN", pathlib.Path(__file__).parents[3] / "shared" / "golden"))
needs_golden = pytest.mark.skipif(not (FOLDER / "index.json").exists(), reason=f"no golden trajectories in {FOLDER}")


@functools.lru_cache
def loader():
    spec = importlib.util.spec_from_file_location("golden_load", FOLDER / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for slow in ("inputs", "load_index", "positions", "signs"):  # many cases share them
        setattr(module, slow, functools.lru_cache(getattr(module, slow)))
    return module


def cases(family, kind="trajectory", trusts=("reference", "compatible")):
    """Return the index entries of a family, none if the folder is not there."""
    if not (FOLDER / "index.json").exists():
        return []
    entries = loader().load_index(str(FOLDER))["cases"]
    return [c for c in entries if c["family"] == family and c["kind"] == kind and c["trust"] in trusts]


def each(entries):
    """Parametrize a test by `entry`, an index entry; it is skipped where the folder is not there."""
    missing = [pytest.param({"id": "no folder"}, marks=needs_golden)]
    return pytest.mark.parametrize("entry", entries if FOLDER.exists() else missing, ids=lambda entry: entry["id"])


def load(entry):
    return loader().load_case(str(FOLDER), entry["id"])


def follow(entry, dtype, build, tol=None):
    """Take the peer's steps with an optimizer of ours and compare where the peer was recorded.

    `build` takes (parameters by name, name_dict) and returns (optimizer, what to call after each step or None).
    """
    case = load(entry)
    params, name_dict = make_params(case.params(), dtype)
    optimizer, after_step = build(params, name_dict)
    for step in range(1, case.nsteps + 1):
        got = take_steps(optimizer, params, [case.grads(step)])
        if after_step is not None:
            after_step()
        if step in case.steps:
            result = case.compare(step, got, fp32=dtype == "float32", tol=tol)
            assert result["ok"], result
