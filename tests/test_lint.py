"""Style and types: what `make lint` checks, so that CI, which runs the tests, checks it too."""

import importlib.util
import subprocess
import sys

import pytest
from project import ROOT


@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_lint(command):
    name, *arguments = command.split()
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    run = subprocess.run([sys.executable, "-m", name, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
