"""`make test-gpu`: the tests run on the device in LDOPT_DEVICE, and on no other."""

import os
import subprocess
import sys

import paddle
import pytest
from project import ROOT

TEST = "tests/optimizers/test_parity.py::test_every_optimizer_has_cases"


def run(device):
    environment = {**os.environ, "LDOPT_DEVICE": device}
    command = [sys.executable, "-m", "pytest", "-q", "-s", TEST]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_the_device_that_is_asked_for_is_used():
    done = run("cpu")
    assert done.returncode == 0 and "LDOPT_DEVICE=cpu: tensors are on Place(cpu)" in done.stdout


@pytest.mark.skipif(paddle.device.cuda.device_count() > 0, reason="there is a GPU")
def test_without_a_gpu_there_is_an_error():
    done = run("gpu:0")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "Received: LDOPT_DEVICE=gpu:0" in done.stderr and "passed" not in done.stdout


def test_the_command_names_files_that_exist():
    make = (ROOT / "Makefile").read_text()
    names = make.partition("addprefix tests/optimizers/test_, ")[2].partition(")")[0].split()
    assert "LDOPT_DEVICE:-gpu:0" in make
    assert names and all((ROOT / "tests" / "optimizers" / f"test_{name}").exists() for name in names)
