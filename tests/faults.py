"""Plants faults in the CPU's kernels, makes one at a time, and runs the graphs that
tests/test_boundary.py runs until one of them shows it.

    python tests/faults.py [--build-dir FOLDER] [--jobs N] [NAME ...]

Prints which graph found each fault and by which comparison; ends with status 1 if one was not
found. All faults are planted in one copy of the tree, built for one instruction set and with -O1,
which changes no bit; each is made where the environment asks for it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import boundary
from boundary import GRAPHS, SEED
from boundary_programs import FAMILIES
from isas import machine_isas

ROOT = Path(__file__).resolve().parents[1]


class Fault(NamedTuple):
    name: str
    file: str  # below src/kernels/cpu, or with its folder below src
    line: str  # stands there once, with the right expression in its place
    right: str
    wrong: str
    families: tuple[str, ...]  # that are run first


FAULTS = [
    Fault(  # what follows a product begins inside a row where blocks hold whole rows
        "row_start", "program.cpp", "rows_ |= inner == 0 || row_ % inner != 0 || {};",
        "row_ > kCellCols", "false", ("mlp",),
    ),
    Fault(  # the last term of a chunk that is no multiple of four
        "dropped_term", "tile.inl", "for (; {}; --terms) turn(1);", "terms > 0", "terms > 1",
        ("product",),
    ),
    Fault(  # a broadcast operand is gathered for every other block alone
        "stale_block", "pointwise.inl", "for (uint64_t left = {}; left;) {{",
        "p.gathered", "pos % (2 * p.block) == 0 ? p.gathered : 0", ("pointwise",),
    ),
    Fault(  # rows of a turned tile lie a block apart, not a run
        "wrong_stride", "pointwise.inl",
        "at[s] = tiles[s] + (r - r0) * {} * p.slot()[s].size;", "p.block", "n", ("pointwise",),
    ),
    Fault(  # the caller goes on while one chunk is still computed
        "missing_barrier", "core/base/pool.cpp", "return {}; }};", "chunks_left == 0",
        "chunks_left <= 1", ("mlp",),
    ),
    Fault(  # groups and results change places
        "swapped_parts", "reduce.inl", "tree.push({});", "parts[g * p.results + r]",
        "parts[r * p.groups + g]", ("reduce",),
    ),
    Fault(  # a panel of more than one chunk stores the second over the first
        "lost_chunk", "tile.inl", "}}\n        add = {};\n", "true", "add", ("product",),
    ),
    Fault(  # those behind the last whole group of a row times a matrix
        "dropped_columns", "matmul.inl", "for (; {}; j += W) {{", "j < n", "j + W <= n",
        ("product",),
    ),
    Fault(  # a unit of rows begins inside a block of them
        "unit_start", "nn.inl", "p.grain = {};", "(p.grain + rows - 1) / rows * rows",
        "p.grain < rows ? rows : p.grain", ("groups",),
    ),
    Fault(  # a thread's part of an update counts from the first tensor
        "wrong_tensor", "optim.inl", "pos = begin > first ? {} : 0",
        "(begin - first) * kBatchUnit", "begin * kBatchUnit", ("mlp",),
    ),
]  # fmt: skip
CHOICE = "AICF_TEST_FAULT"  # in the environment: the number of the fault to make


def path_of(fault, root=ROOT):
    folder = root / "src"
    return folder / fault.file if "/" in fault.file else folder / "kernels" / "cpu" / fault.file


def plant(tree):
    """Every fault in the tree, each made where the environment asks for it."""
    for number, fault in enumerate(FAULTS, 1):
        file = path_of(fault, tree)
        choice = f"(cpu::fault == {number} ? ({fault.wrong}) : ({fault.right}))"
        right = fault.line.format(fault.right)
        file.write_text(file.read_text().replace(right, fault.line.format(choice)))
    folder = tree / "src" / "kernels" / "cpu"
    for header in (folder / "thresholds.h", tree / "src" / "core" / "base" / "pool.h"):
        with header.open("a") as file:
            file.write("\nnamespace aicf::cpu {\nextern const int fault;\n}\n")
    for name in ("thresholds.cpp", "isa.cpp"):  # the backend's, and the library of kernels'
        with (folder / name).open("a") as file:
            file.write(
                "\n#include <cstdlib>\nnamespace aicf::cpu {\n"
                f'const int fault = getenv("{CHOICE}") ? atoi(getenv("{CHOICE}")) : 0;\n}}\n'
            )


def configure(folder, isa):
    """A copy of what is built, with the faults, and its build folder."""
    tree, build = folder / "tree", folder / "build"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("src", "python", "include", "cmake"):
        shutil.copytree(ROOT / name, tree / name)
    shutil.copy(ROOT / "pyproject.toml", tree)
    plant(tree)
    text = (ROOT / "CMakeLists.txt").read_text()
    assert text.count("-O3") == 1
    (tree / "CMakeLists.txt").write_text(text.replace("-O3", "-O1"))
    nanobind = subprocess.check_output([sys.executable, "-m", "nanobind", "--cmake_dir"], text=True)
    command = ["cmake", "-S", tree, "-B", build, f"-DAICF_CPU_ISAS={isa}", "-DAICF_CUDA_INCLUDE="]
    command += [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
        "-DCMAKE_UNITY_BUILD=ON",
        "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    command += [f"-Dnanobind_DIR={nanobind.strip()}"]
    if shutil.which("ninja"):
        command += ["-G", "Ninja"]
    if shutil.which("ccache"):
        command += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return tree, build


def make(tree, build, jobs):
    """Builds the module and puts it beside the Python files; the folder to import it from."""
    command = ["cmake", "--build", build, "--target", "_core", "--parallel", str(jobs)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    package = build / "package" / "aicf"
    shutil.copytree(tree / "python" / "aicf", package, dirs_exist_ok=True)
    for library in (*build.glob("_core*.so"), *build.glob("libaicf_cpu_*.so")):
        shutil.copy(library, package)
    return package.parent


def hunt(fault, isa):
    """The first problem that the graphs show, and how many ran until then."""
    ran = 0
    order = [*fault.families, *(name for name in FAMILIES if name not in fault.families)]
    for family in order:
        for first in range(0, GRAPHS[family], boundary.SHARD):
            last = min(first + boundary.SHARD, GRAPHS[family])
            tally = boundary.Tally(SEED)
            tally.add(boundary.worker(isa, SEED, family, first, last))
            if tally.problems:
                at = int(tally.problems[0].split(":")[1])
                return tally.problems[0], ran + at - first + 1
            ran += last - first
    return "", ran


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(m.name for m in FAULTS))
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    isa = "avx2" if "avx2" in machine_isas() else "baseline"
    chosen = [m for m in FAULTS if not options.names or m.name in options.names]
    start = time.monotonic()
    tree, build = configure(options.build_dir.resolve(), isa)
    package = make(tree, build, options.jobs)
    print(f"built for {isa} in {time.monotonic() - start:.0f} s", flush=True)
    # An editable build of aicf would come first where site-packages are looked through.
    boundary.PYTHON.insert(1, "-S")
    boundary.HANGS = 60  # a fault may also be one that never ends
    path = os.pathsep.join([str(package), *filter(None, sys.path)])
    boundary.ENVIRONMENT = {"PYTHONPATH": path, "AICF_TEST_ISAS": isa}
    missed = []
    for fault in chosen:
        start = time.monotonic()
        boundary.ENVIRONMENT[CHOICE] = str(FAULTS.index(fault) + 1)
        problem, graphs = hunt(fault, isa)
        took = f"{time.monotonic() - start:.0f} s"
        print(f"{fault.name}: {graphs} graphs, {took}: {problem or 'NOT FOUND'}", flush=True)
        if not problem:
            missed.append(fault.name)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} found")
    if missed:
        sys.exit(f"not found: {', '.join(missed)}")


if __name__ == "__main__":
    main()
