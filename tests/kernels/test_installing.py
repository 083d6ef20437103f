"""Installing the package builds the C library; without a compiler it is installed without."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import reference
import smoke

from paddle_ldopt import kernels

ROOT = pathlib.Path(__file__).parents[2]


def build(tmp_path, **environment):
    """Build a copy of the sources as `pip install` does; return what lies in paddle_ldopt/kernels then."""
    sources = tmp_path / "sources"
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "paddle_ldopt", sources / "paddle_ldopt", ignore=ignored)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    command = [sys.executable, "setup.py", "-q", "build", "--build-lib", str(tmp_path / "built")]
    environment = {**os.environ, **environment}
    subprocess.run(command, cwd=sources, env=environment, capture_output=True, timeout=300, check=True)
    built = tmp_path / "built" / "paddle_ldopt" / "kernels"
    assert (built / "__init__.py").exists() and (built.parent / "py.typed").exists()
    return built


def two_steps(built, wanted):
    """Run smoke.py on the package as built; return the sum of the weights of each optimizer."""
    command = [sys.executable, smoke.__file__, wanted]
    environment = {**os.environ, "PYTHONPATH": str(built.parent.parent)}
    run = subprocess.run(command, cwd=built, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    return {name: float(total) for name, total in map(str.split, run.stdout.splitlines())}


def test_a_library_that_was_built_can_be_used():
    """Without it, the tests that need it are skipped."""
    built, why = [*(ROOT / "paddle_ldopt" / "kernels").glob("libstep*.so")], kernels.found()[1]
    assert not built or why is None, why


@reference.needs_library
@pytest.mark.parametrize(
    "wanted, environment",
    [("none", {"CC": "/bin/false"}), pytest.param("library", {}, marks=pytest.mark.slow)],
    ids=["without a compiler", "with a compiler"],
)
def test_the_steps_are_those_of_the_library_here(tmp_path, wanted, environment):
    here = dict(smoke.two_steps())
    assert len(here) >= 5 and two_steps(build(tmp_path, **environment), wanted) == pytest.approx(here, abs=1e-6)


@pytest.mark.slow
def test_without_openmp(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler")
    wrapper = tmp_path / "cc"
    wrapper.write_text(f'#!/bin/sh\nfor a in "$@"; do [ "$a" = -fopenmp ] && exit 1; done\nexec {compiler} "$@"\n')
    wrapper.chmod(0o755)
    built = build(tmp_path, CC=str(wrapper), LDSHARED=f"{wrapper} -shared")
    code = "import kernels; print(kernels.library() is not None, kernels.found()[1])"
    run = subprocess.run([sys.executable, "-c", code], cwd=built.parent, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True None"
    assert b"GOMP_parallel" not in next(built.glob("libstep*")).read_bytes()
