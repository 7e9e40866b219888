"""Builds and runs tests/harness, a part of the Python tests and the boundary graphs under the
sanitizers.

    python tests/sanitize.py [--kinds address,thread] [harness] [python] [boundary]

Each part runs under both kinds of sanitizers, address (with undefined behaviour) and thread, in
every instruction set of this machine or those that AICF_TEST_ISAS names: the harness, a program
without Python; `python`, the tests that hand memory across the border; `boundary`, the graphs of
tests/test_boundary.py, or with --graphs and --seed so many others, spread over the families.
Without a name all three run. Prints what ran; ends with status 1 at the first report or wrong bit.
"""

import argparse
import contextlib
import itertools
import math
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aicf
import boundary
from aicf.nn_functions import _fused_attention
from aicf.serialize import read_record
from isas import used_isas
from op_cases import CASES, SIZES
from test_contract import build

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"address": "address,undefined,float-cast-overflow", "thread": "thread"}
OTHERS = ["libjax_common", "libtorch_cpu"]  # libraries with races of their own, as TSan sees them
RUNTIMES = {"address": "libasan", "thread": "libtsan"}
PYTHON_TESTS = [
    "test_contract.py",
    "test_dlpack_matrix.py",
    "test_eager.py",
    "test_errors.py",
    "test_interop.py",
    "test_layers.py",
    "test_ops.py",
    "test_optim.py",
    "test_random_graphs.py",
    "test_reduce_fusion.py",
    "test_large.py",
    "test_row_fusion.py",
    "test_sharing.py",
    "test_step.py",
    "test_many_steps.py",
]
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


# ---- the lines of `harness ops`


def attr_text(value):
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def type_text(view):
    return f"{view['dtype']}[{','.join(map(str, view['shape']))}]"


def lines_of(ops):
    for op in ops:
        if op["op"] == "region":
            continue
        attrs = ";".join(f"{name}={attr_text(value)}" for name, value in op["attrs"].items())
        ins, outs = (";".join(map(type_text, op[side])) for side in ("inputs", "outputs"))
        yield f"{op['op']}|{attrs}|{ins}|{outs}"


def sizes_of(case, full):
    """The row's own sizes; then ones, and one axis after the other empty or long."""
    yield SIZES
    if not full:
        return
    letters = sorted({letter for arg in case.args for letter in arg.dims})
    yield dict.fromkeys(SIZES, 1)
    for letter, size in itertools.product(letters, (0, 17, 131, 600)):
        yield SIZES | {letter: size}


def op_lines(full):
    """Every lowered op that the rows of the op table lower to."""
    lines = {}
    for case in CASES:
        for dtype in case.dtypes if full else case.dtypes[:1]:
            for sizes in sizes_of(case, full):
                shapes = [tuple(sizes[letter] for letter in arg.dims) for arg in case.args]
                try:
                    _, ops = build(case, dtype, shapes)
                except aicf.ShapeError:  # sizes that do not fit
                    continue
                lines |= dict.fromkeys(lines_of([op for op in ops if op["op"] != "loop"]))
    g = aicf.Graph("ring")
    g.output("y", g.input("x", (3, 5)) + 1.0, keep=4)
    for axis, shape in enumerate([(2500, 3), (3, 2500)]):
        g.output(f"running{axis}", aicf.cumsum(g.input(f"x{axis}", shape), axis))
    q, k, v, dy = (g.input(name, (2, 3, 20, 8)) for name in ("q", "k", "v", "dy"))
    for x in (q, v):  # of queries alone, of keys and values alone
        y = _fused_attention(q, k, v, None, False, 0.5)
        g.output(f"d{x.name}", g.backward(y, [x], grad=dy)[x])
    lines |= dict.fromkeys(lines_of(read_record(g._core.lower_json())["ops"]))
    return list(lines)


# ---- building and running


def run(command, **environment):
    """The output of a command; ends the program when it fails."""
    env = os.environ | ENVIRONMENT | environment
    found = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if found.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {found.returncode}\n{found.stdout}")
    return found.stdout


def missing():
    """Why the harness cannot be built here; empty when it can."""
    if not sys.platform.startswith("linux"):
        return "the sanitizers are run on Linux alone"
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    return ""


def build_harness(kind, folder, jobs, *options):
    return build_target(kind, folder, jobs, "-DAICF_HARNESS=ON", *options) / "harness"


def build_target(kind, folder, jobs, *options):
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    define = [f"-DAICF_SANITIZE={kind}", "-DAICF_DEV=ON", *options]
    run(["cmake", "-S", ROOT, "-B", folder, *generator, *define])
    run(["cmake", "--build", folder, "--parallel", jobs])
    return folder


def same_everywhere(harness, *command):
    """Runs a part of the harness in every instruction set; the bits must be equal."""
    start, isas = time.perf_counter(), used_isas()
    with ThreadPoolExecutor() as pool:
        said = pool.map(lambda isa: run([harness, *command], AICF_CPU_ISA=isa), isas)
        sums = dict(zip(isas, said, strict=True))
    if len(set(sums.values())) != 1:
        raise RuntimeError(f"{command}: other bits in another instruction set: {sums}")
    took = time.perf_counter() - start
    print(f"{' '.join(map(str, command))}: {', '.join(sums)}, {took:.0f} s", flush=True)


def run_harness(kind, folder, jobs):
    """The whole harness under one kind of sanitizers."""
    isas = f"-DAICF_CPU_ISAS={';'.join(used_isas())}"
    harness = build_harness(KINDS[kind], folder, jobs, "-DCMAKE_CXX_FLAGS=-O1", isas)
    try:
        run([harness, "misuse"])
    except RuntimeError:
        pass
    else:
        raise RuntimeError(f"{harness} reports no misuse")
    lines = op_lines(full=kind != "thread")
    cases = folder / "ops.txt"
    cases.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} ops in their shapes", flush=True)
    same_everywhere(harness, "ops", cases, 2 if kind == "thread" else 3)
    same_everywhere(harness, "families")
    same_everywhere(harness, "reference")
    same_everywhere(harness, "graphs")
    same_everywhere(harness, "threads", 16, 1000 if kind == "thread" else 100)


# ---- the module


def build_module(kind, folder, jobs):
    """Makes folder/package, to import aicf with a sanitized module from."""
    nanobind = run([sys.executable, "-m", "nanobind", "--cmake_dir"]).strip()
    build_target(
        KINDS[kind], folder, jobs, "-DCMAKE_CXX_FLAGS=-O1",
        f"-DAICF_CPU_ISAS={';'.join(used_isas())}",
        f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}",
    )  # fmt: skip
    package = folder / "package" / "aicf"
    package.mkdir(parents=True, exist_ok=True)
    libraries = *folder.glob("_core*.so"), *folder.glob("libaicf_cpu_*.so")
    for source in [*(ROOT / "python" / "aicf").iterdir(), *libraries]:
        target = package / source.name
        if source.is_file() and not target.exists():
            target.symlink_to(source)
    code = "import aicf; print(aicf._core.__file__)"
    said = run([sys.executable, "-S", "-c", code], **environment_of(kind, folder)).strip()
    if not Path(said).is_relative_to(folder):
        raise RuntimeError(f"{said} was imported; need the module of {folder}")


def environment_of(kind, folder):
    """What lets Python without its site, whose editable build of aicf would come first, run on the
    module. A worker's or pytest's own output is not looked at: reports go to files."""
    # The C++ library's functions, which the runtime wraps, must be there before anything else is.
    preloads = [
        run(["g++", f"-print-file-name={name}.so"]).strip()
        for name in (RUNTIMES[kind], "libstdc++")
    ]
    log = f":log_path={folder / 'report'}"
    suppressions = folder / "suppressions.txt"
    suppressions.write_text("".join(f"race:{name}\n" for name in OTHERS))
    result = {
        "PYTHONPATH": os.pathsep.join([str(folder / "package"), *filter(None, sys.path)]),
        "LD_PRELOAD": " ".join(preloads),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1" + log,
        "UBSAN_OPTIONS": ENVIRONMENT["UBSAN_OPTIONS"] + log,
        "TSAN_OPTIONS": f"{ENVIRONMENT['TSAN_OPTIONS']}:suppressions={suppressions}{log}",
        "OPENBLAS_NUM_THREADS": "1",  # NumPy's threads wait in ways that no sanitizer sees
    }
    return result | ({"PYTHONMALLOC": "malloc"} if kind == "address" else {})


@contextlib.contextmanager
def reports_in(folder):
    """RuntimeError with what the sanitizers wrote meanwhile, whatever the processes made of it."""
    for old in folder.glob("report.*"):
        old.unlink()
    problem = ""
    try:
        yield
    except RuntimeError as error:
        problem = str(error)
    found = [problem, *(report.read_text() for report in sorted(folder.glob("report.*")))]
    if any(found):
        raise RuntimeError("\n".join(found))


def run_python(kind, folder):
    """Python tests on a sanitized module."""
    tests = [ROOT / "tests" / name for name in PYTHON_TESTS]
    with reports_in(folder):
        said = run(
            [sys.executable, "-S", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
             "-m", "not slow",
             # what is freed stays in the sanitizer's quarantine
             "--deselect", "tests/test_step.py::test_memory_is_steady",
             "--timeout", "1200", *tests],
            **environment_of(kind, folder),
        )  # fmt: skip
    print(said.strip().splitlines()[-1], flush=True)


def run_boundary(kind, folder, options):
    """The first graphs of each family, in as many settings as without sanitizers."""
    boundary.PYTHON = [sys.executable, "-S", "-W", "ignore"]
    boundary.SHARD, boundary.HANGS = 20, 3600  # each takes ten to thirty times as long
    boundary.ENVIRONMENT = environment_of(kind, folder)
    share, whole = options.graphs / sum(boundary.GRAPHS.values()), boundary.Tally(options.seed)
    for family, count in boundary.GRAPHS.items():
        start = time.perf_counter()
        with reports_in(folder):
            most = math.ceil(share * count)
            tally = boundary.run_family(options.seed, family, most, options.jobs)
            if tally.problems:
                raise RuntimeError("\n".join(tally.problems))
        whole.merge(tally)
        took = f"{time.perf_counter() - start:.0f} s"
        print(f"{family}: {tally.graphs} graphs, {tally.runs} runs, {took}", flush=True)
    print(whole, flush=True)


PARTS = ["harness", "python", "boundary"]


def run_part(kind, part, options):
    start = time.perf_counter()
    print(f"== {part}, {KINDS[kind]}", flush=True)
    folder = options.build_dir.resolve() / f"{'harness' if part == 'harness' else 'module'}-{kind}"
    if part == "harness":
        run_harness(kind, folder, options.jobs)
    else:
        build_module(kind, folder, options.jobs)
        if part == "python":
            run_python(kind, folder)
        else:
            run_boundary(kind, folder, options)
    print(f"{time.perf_counter() - start:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "sanitize")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--graphs", type=int, default=sum(boundary.GRAPHS.values()))
    parser.add_argument("--seed", type=int, default=boundary.SEED)
    options = parser.parse_args()
    parts, kinds = options.parts or PARTS, options.kinds.split(",")
    if unknown := (set(parts) - set(PARTS)) | (set(kinds) - set(KINDS)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if reason := missing():
        sys.exit(f"sanitize: {reason}")
    try:
        for kind, part in itertools.product(kinds, parts):
            run_part(kind, part, options)
    except RuntimeError as error:
        sys.exit(f"sanitize: {error}")


if __name__ == "__main__":
    main()
