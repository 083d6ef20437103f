"""The test device `fake:0` of `fake.cc`: build it, and run tests on it.

    python tests/accelerator/device.py tests/optimizers     # with stride kernels, without them, and as if it were a GPU

It shows code that holds on a CPU only. It does not show CUDA's arithmetic, streams, speed or NCCL.
"""

import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

import paddle

HERE = pathlib.Path(__file__).resolve().parent
ROOT, PADDLE = HERE.parents[1], pathlib.Path(paddle.__file__).parent
RUNS = {
    "with stride kernels": {"FLAGS_use_stride_kernel": "1"},
    "without stride kernels": {"FLAGS_use_stride_kernel": "0"},
    "as CUDA": {"LDOPT_AS_CUDA": "1"},
}


def reason():
    """Return why the device cannot be built here, None if it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the test device is for Linux on x86-64, not {platform.system()} on {platform.machine()}"
    if not paddle.__version__.startswith("3.3."):
        return f"the test device was written for Paddle 3.3, not {paddle.__version__}"
    if paddle.is_compiled_with_cuda() or paddle.is_compiled_with_xpu():
        return "the test device needs Paddle's CPU wheel"
    return None if shutil.which("g++") else "the test device needs g++"


def environment(**more):
    """Build the device if needed, and return the environment of a process that may use it."""
    folder = ROOT / "build" / f"accelerator-{paddle.__version__}"
    library, source = folder / "libfake.so", HERE / "fake.cc"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        include = [f"-I{PADDLE / 'include' / part}" for part in ("", "third_party", "third_party/install")]
        link = [f"-L{PADDLE / 'libs'}", "-lphi", "-lphi_core", "-lcommon", f"-Wl,-rpath,{PADDLE / 'libs'}"]
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w", "-DPADDLE_WITH_CUSTOM_DEVICE"]
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as new:  # another process may build it too
            subprocess.run(["g++", *flags, *include, source, *link, "-o", f"{new}/libfake.so"], check=True)
            os.replace(f"{new}/libfake.so", library)
    of_device = {"CUSTOM_DEVICE_ROOT": str(folder), "LDOPT_DEVICE": "fake:0", "GLOG_minloglevel": "2"}
    return {**os.environ, **of_device, **more}


def run(*arguments, **more):
    """Run pytest on the device and return the finished process; `more` are environment variables."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(**more), capture_output=True, text=True, check=False)


if __name__ == "__main__":
    if reason():
        sys.exit(f"{reason()}.")
    ended = {name: run(*sys.argv[1:], **of_run) for name, of_run in RUNS.items()}
    for name, done in ended.items():
        print(f"---- {name}\n{done.stdout}{done.stderr}")
    sys.exit(any(done.returncode for done in ended.values()))
