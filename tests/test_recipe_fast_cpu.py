"""recipes/fast_cpu.py: what it sets, where, and that memory is kept."""

import pathlib
import subprocess
import sys
import types

import fast_cpu
import pytest

FAULTS = """
import resource, sys
sys.path.insert(0, sys.argv[1])
{first}
import numpy as np

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(2):
    before = faults()
    for _ in range(5):
        np.ones(1 << 23)  # above glibc's greatest threshold
print(faults() - before)
"""


@pytest.mark.parametrize(
    "text, given, is_set",
    [
        ("vendor_id : AuthenticAMD\nflags : sse avx2 fma", {}, True),
        ("vendor_id : AuthenticAMD\nflags : sse avx fma", {}, False),
        ("vendor_id : GenuineIntel\nflags : sse avx2 fma", {}, False),
        ("vendor_id : AuthenticAMD\nflags : sse avx2 fma", {"MKL_DEBUG_CPU_TYPE": "4"}, False),
        (None, {}, False),
    ],
)
def test_mkl_is_told_of_avx2_on_amd_alone(tmp_path, monkeypatch, text, given, is_set):
    monkeypatch.setattr(fast_cpu.os, "environ", dict(given))
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert fast_cpu.use_avx2(tmp_path / "cpuinfo") == is_set
    assert fast_cpu.os.environ == ({"MKL_DEBUG_CPU_TYPE": "5"} if is_set else given)


def test_memory_is_kept_where_the_user_says_nothing_of_it():
    calls = []
    libc = types.SimpleNamespace(mallopt=lambda *args: calls.append(args) or 1)
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
        assert not fast_cpu.keep_memory({name: "1"}, libc)
    assert not fast_cpu.keep_memory({}, types.SimpleNamespace()) and not calls
    if sys.platform == "linux":
        assert fast_cpu.keep_memory({}, libc) and calls == [(-4, 0), (-1, 1 << 30), (-2, 64 << 20)]


def test_memory_that_was_freed_is_not_asked_for_again():
    if not fast_cpu.keep_memory():
        pytest.skip("no glibc, or the user has set it")
    plain, kept = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS.format(first=first), folder()], text=True))
        for first in ("", "import fast_cpu")
    )
    assert plain > 100 and kept < 20, (plain, kept)  # 64 MB are 16384 pages of 4 KB, or 32 of 2 MB


def folder():
    return str(pathlib.Path(fast_cpu.__file__).parent)
