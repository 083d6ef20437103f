"""Import this before Paddle: it has the MKL in Paddle's CPU wheel use AVX2 on AMD processors too.

Left to itself that MKL takes its slowest path on a processor that is not Intel's. With this a training step of MiniLM
takes 0.4 of the time (16 x 64 tokens, AMD EPYC, 2 cores, 2026-11-21: 1.7 s against 4.0 s). It changes nothing on other
processors, and nothing that the user has set.
"""

import os


def use_avx2(cpuinfo="/proc/cpuinfo"):
    """Set `MKL_DEBUG_CPU_TYPE` if the processor is an AMD with AVX2; return whether it was set."""
    try:
        with open(cpuinfo, encoding="utf-8") as file:
            text = file.read()
    except OSError:  # no Linux
        return False
    if "AuthenticAMD" not in text or " avx2" not in text or "MKL_DEBUG_CPU_TYPE" in os.environ:
        return False
    os.environ["MKL_DEBUG_CPU_TYPE"] = "5"
    return True


use_avx2()
