"""The instruction sets that the CPU's kernels are compiled for, and those of this machine."""

import os
import platform
from pathlib import Path


def machine_isas():
    """The instruction sets of which this machine has every part."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ["baseline"]
    flags = set(Path("/proc/cpuinfo").read_text().split())
    needs = {
        "baseline": set(),
        "avx2": {"avx2", "fma", "bmi2", "f16c"},
        "avx512": {"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"},
    }
    return [isa for isa, need in needs.items() if need <= flags]


def used_isas():
    """The instruction sets to run: all of this machine's, or those that AICF_TEST_ISAS names."""
    return os.environ.get("AICF_TEST_ISAS", "").split() or machine_isas()
