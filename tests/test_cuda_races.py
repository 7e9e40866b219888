"""That nothing of a block races on shared memory, by what orders accesses (emulator/races.h), not
by what values there were; and that a race is found. All kernels: see CONTRIBUTING.md."""

import subprocess
import sys
from pathlib import Path

import emulate
import pytest
from aicf import _core

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # kernels are compiled by g++
    pytest.mark.skipif(bool(emulate.missing()), reason=emulate.missing()),
    pytest.mark.skipif(not hasattr(_core, "cuda_info"), reason="this build has no CUDA backend"),
]


def said(emulated, *arguments, **options):
    """What a part of the slice says on the emulator, the last line of it first."""
    environment = emulate.environment(emulated, 9, 132, 3, races=True) | options
    done = subprocess.run(
        [sys.executable, HERE / "slice_gpu.py", *arguments], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout


# Blocks with several numbers of warps at a barrier, groups of warps of which some have less to do
# than others, warps with roles, tiles that a cluster shares.
KERNELS = "(bfloat16.* near_64x64_t16_cuts|tf32 wgmma_64x128_(right|turned)|" + (
    "16 fp32 wgmma_(128x128|64x64|128x192)_(cuts|runs|pair))$"
)
GRAPHS = r"^(whole [12]|chain mixed .1024|attention b.* (64\) none|128\) .*joint)|rows 9000 of b)"


@pytest.mark.parametrize(
    ("arguments", "count"),
    [(["--kernels", "--only", KERNELS], 17), (["--only", GRAPHS], 6)],
    ids=["products", "graphs"],
)
def test_nothing_races(emulated, arguments, count):
    out = said(emulated, *arguments)
    assert f"{count} of {count} graphs" in out, out


SYNC = 'exchange(mask, "", 1, true)'
BARRIER = "inline void bar_sync(u32 id, u32 threads) { emulated_api.barrier(id, threads, true); }"
MEET = BARRIER.replace("bar_sync", "barrier_sync")
NEAR, ROLES = "bfloat16 fp32 near_64x64_t16_cuts$", "bfloat16 fp32 wgmma_64x64_cuts$"
LANES = "tf32 wgmma_64x64_right$"  # which read words of a stage that one of them gives back


@pytest.mark.parametrize(
    ("source", "whole", "left", "arguments"),
    [
        # A barrier of some warps of a block, by number; of a warp; for copies; for products.
        ("device.h", BARRIER, BARRIER.replace("{", "{ if (id == 2) return;"), ["--kernels", NEAR]),
        ("device.h", BARRIER, BARRIER.replace("{", "{ if (id == 3) return;"), ["whole 1$"]),
        ("device.h", MEET, MEET.replace("{", "{ if (id == 2) return;"), ["whole 1$"]),
        ("device.h", SYNC, SYNC.replace("true", "false"), ["--kernels", LANES]),
        ("device.h", "api.arrived(newest)", "api.arrived(newest + 1)", ["--kernels", NEAR]),
        ("hopper.h", "expected) {\n    emulated_api.released(barrier);\n", "expected) {\n",
         ["--kernels", ROLES]),
        ("hopper.h", "left = static_cast<u32>(newest)", "left = newest + 1", ["--kernels", ROLES]),
    ],
)  # fmt: skip
def test_a_race_is_found(emulated, tmp_path, source, whole, left, arguments):
    """Where something is left out of what the kernels find that orders accesses."""
    for one in (HERE / "emulator").iterdir():
        text = one.read_text()
        assert one.name != source or text.count(whole) == 1
        (tmp_path / one.name).write_text(text.replace(whole, left) if one.name == source else text)
    *options, only = arguments
    hurt = {"EMULATOR_FOLDER": str(tmp_path), "AICF_CACHE_DIR": str(tmp_path / "cache")}
    assert "1 of 1 graphs" in said(emulated, *options, "--only", only)
    out = said(emulated, *options, "--only", only, **hurt)
    assert "emulator: a race in aicf_" in out, out


SANITIZER = """#!{python}
import sys
first = int(sys.argv[sys.argv.index("--first") + 1])
if first < 2:
    print("the device is lost: a graph: as the test wants")
print(f"part 0/1: {{2 - first % 2}} of 4 graphs")
print(f"========= ERROR SUMMARY: {{32 * (first < 2)}} errors")
sys.exit(first < 2)
"""


def test_graphs_behind_a_lost_device_run(tmp_path):
    """What compute-sanitizer reports may end the kernel, and the process's device."""
    sanitizer = tmp_path / "sanitizer"
    sanitizer.write_text(SANITIZER.format(python=sys.executable))
    sanitizer.chmod(0o755)
    done = subprocess.run(
        [sys.executable, HERE / "slice_gpu.py", "--tools", "memcheck", "--jobs", "1", "--only",
         "^whole", "--sanitizer", sanitizer, "--out", tmp_path], text=True, capture_output=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "memcheck: 32 errors, 4 of 4 graphs and products"
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "memcheck 0 of 1.txt").read_text().count("4 graphs") == 2
