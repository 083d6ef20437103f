"""recipes/common/fast_cpu.py: what it sets, and where."""

import pytest
from common import fast_cpu


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
