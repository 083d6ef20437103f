"""What a benchmark must say about where it ran."""

import contextlib
import ctypes
import gc
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import time

PACKAGES = (
    "paddlepaddle",
    "paddlepaddle-gpu",
    "torch",
    "transformers",
    "timm",
    "came-pytorch",
    "pytorch_optimizer",
    "numpy",
)


def load():
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def describe():
    """Return machine, versions and date."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": dict(_versions()),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def available_memory():
    """Return the bytes that can be taken without swapping; all of the memory where the system does not say."""
    kilobytes = _field("/proc/meminfo", "MemAvailable")
    return int(kilobytes.split()[0]) * 1024 if kilobytes else describe()["memory_bytes"]


def _field(path, name):
    if not os.path.exists(path):
        return ""
    lines = (line.partition(":") for line in pathlib.Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _versions():
    for package in PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue


def _commit():
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def memory(field):
    """Return a field of this process's status in bytes, or None if there is no such file."""
    with contextlib.suppress(FileNotFoundError):
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None


def trim():
    """Give freed memory back, so that the state cannot hide in it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
