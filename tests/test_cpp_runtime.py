"""The runtime for C++: the example trains to Python's bits, the library is small and needs no
other, and what goes wrong is a typed error."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import aicf
import numpy as np
import pytest
from aicf import _core
from isas import used_isas

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(_core.__file__).parent
LIBRARY = PACKAGE / "libaicf.so"
MOST_BYTES = 2_000_000
SYSTEM = r"libc\.so\.6|libm\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1|ld-linux-x86-64\.so\.2|libdl\.so\.2|libpthread\.so\.0"  # noqa: E501

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into ELF files"),
    pytest.mark.skipif(not LIBRARY.exists(), reason="a build for sanitizers has no runtime"),
]

ERRORS = r"""
#include <aicf/aicf.h>
#include <cstdio>
#include <functional>
using namespace aicf::runtime;
static void told(const std::function<void()>& act) {
    try { act(); std::puts("nothing"); }
    catch (const Error& error) {  // the texts hold names, and those a line's end
        std::printf("%s %d\n", error.kind().c_str(), error.what()[0] != 0);
    }
}
int main(int, char** argv) {
    auto step = Step::load(argv[1]);
    float numbers[12] = {};
    told([&] { Step::load("nowhere.aicf"); });
    told([&] { Step::load("/dev/null"); });
    told([&] { Step::load(argv[0]); });
    told([&] { Step::load(argv[1], "cuda:0"); });
    told([&] { Step::load(argv[1], "tpu"); });
    told([&] { step.read("y", numbers, sizeof numbers); });
    told([&] { step.set("x", numbers, 4); });
    told([&] { step.set("nobody", numbers, 4); });
    told([&] { step.read("nobody", numbers, 4); });
    told([&] { step.run(-1); });
    told([&] { step.save_state("no/such/folder"); });
    for (float& number : numbers) number = 3;
    step.set("x", numbers, sizeof numbers);
    step.run(5);
    Step moved = std::move(step);
    for (const auto& list : {moved.inputs(), moved.outputs(), moved.params(), moved.states()})
        for (const Tensor& t : list) {
            std::printf("%s %s %zu [", t.name.c_str(), t.dtype.c_str(), t.bytes);
            for (auto size : t.shape) std::printf("%lld,", static_cast<long long>(size));
            std::puts("]");
        }
    moved.read("y", numbers, sizeof numbers);
    const auto steps = static_cast<unsigned long long>(moved.steps_run());
    const auto last = static_cast<double>(numbers[11]);
    std::printf("%s %llu %g\n", moved.device().c_str(), steps, last);
    moved.save_state(argv[2]);
    told([&] { moved.save_state("/dev/null"); });
}
"""


def tool(name):
    path = shutil.which(name)
    if not path:
        pytest.skip(f"no {name}")
    return path


def run(*words, **options):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=250, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_has_pythons_bits(tmp_path):
    """Exported by the script, built by CMake's package, trained in C++: the file of weights is
    Python's, byte for byte, on any number of threads."""
    pytest.importorskip("sklearn")
    cmake = tool("cmake")
    run(sys.executable, ROOT / "examples/cpp/export_digits.py", "--out", tmp_path)
    folder = run(sys.executable, "-m", "aicf", "--cmake-dir").strip()
    run(cmake, "-S", ROOT / "examples/cpp", "-B", tmp_path / "build", f"-Daicf_DIR={folder}")
    run(cmake, "--build", tmp_path / "build")
    step = aicf.load_step(tmp_path / "digits.aicf")
    numbers = np.loadtxt(tmp_path / "digits.txt", dtype=np.int32)
    x, y = (numbers[:, :64] / 16).astype(np.float32), np.ascontiguousarray(numbers[:, 64])
    for _ in range(3):
        for at in range(0, len(y) - 63, 64):
            out = step(x=x[at : at + 64], labels=y[at : at + 64])
    step.save(tmp_path / "python.safetensors")
    for threads in ("1", "3"):
        said = run(
            tmp_path / "build" / "train", tmp_path / "digits.aicf", tmp_path / "digits.txt",
            tmp_path / "cpp.safetensors", 3,
            env={**os.environ, "AICF_NUM_THREADS": threads},
        )  # fmt: skip
        assert said.splitlines()[-1] == f"epoch 3: loss {float(out['loss']):.6f}"
        assert (tmp_path / "cpp.safetensors").read_bytes() == (
            tmp_path / "python.safetensors"
        ).read_bytes()


def test_errors_and_values(tmp_path):
    """A C++17 program meets the kinds of errors that Python does."""
    g = aicf.Graph("small")
    x = g.input("x", (3, 4))
    s = g.state('"total" ü\t', (3, 4), "bfloat16")
    total = s + aicf.cast(x, "bfloat16")
    g.assign(s, total)
    g.output("y", aicf.cast(total, "float32"))
    g.output("kept", aicf.sum(x), keep=3)
    path = tmp_path / "small.aicf"
    step = g.compile(device="cpu")
    step.export(path)
    (tmp_path / "main.cpp").write_text(ERRORS)
    run(
        tool("g++"), "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{PACKAGE / 'include'}",
        tmp_path / "main.cpp", LIBRARY, f"-Wl,-rpath,{PACKAGE}", "-o", tmp_path / "main",
    )  # fmt: skip
    (tmp_path / "private.safetensors").write_bytes(b"")
    (tmp_path / "private.safetensors").chmod(0o600)
    (tmp_path / "state.safetensors").symlink_to("private.safetensors")
    lines = run(tmp_path / "main", path, tmp_path / "state.safetensors", cwd=tmp_path).splitlines()
    assert (tmp_path / "state.safetensors").is_symlink()
    assert (tmp_path / "private.safetensors").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob("*.tmp"))
    assert lines.pop() == "OSError 1"  # a device is no file to save to
    kinds = ["OSError", "FormatError", "FormatError", "Unsupported", "GraphError", "GraphError",
             "ShapeError", "GraphError", "GraphError", "GraphError", "OSError"]  # fmt: skip
    assert lines[: len(kinds)] == [f"{kind} 1" for kind in kinds], lines
    assert lines[-1] == "cpu 5 15", lines
    assert lines[len(kinds) :][:3] == [
        "x float32 48 [3,4,]", "y float32 48 [3,4,]", "kept float32 12 [3,]"
    ], lines  # fmt: skip
    step.replay(0)
    for _ in range(5):
        step(x=np.full((3, 4), 3, np.float32))
    step.save(tmp_path / "python.safetensors")
    assert (tmp_path / "state.safetensors").read_bytes() == (
        tmp_path / "python.safetensors"
    ).read_bytes()


def test_the_library_is_small_and_needs_the_system_alone():
    """Kernels lie beside it, of which a process loads one; the driver is found at run time."""
    assert LIBRARY.stat().st_size < MOST_BYTES, LIBRARY.stat().st_size
    kernels = sorted(PACKAGE.glob("libaicf_cpu_*.so"))
    assert {path.stem.removeprefix("libaicf_cpu_") for path in kernels} >= set(used_isas())
    for path in (LIBRARY, *kernels):
        needed = re.findall(r"NEEDED.*\[(.*)\]", run(tool("readelf"), "-d", path))
        assert needed and all(re.fullmatch(SYSTEM, name) for name in needed), (path, needed)
        assert "RUNPATH" not in run(tool("readelf"), "-d", path)


def test_the_library_has_no_compiler():
    """What it exports is the public class; what makes plans of graphs is not linked."""
    names = run(tool("nm"), "-DC", "--defined-only", LIBRARY).splitlines()
    ours = [name for name in names if "aicf" in name]
    assert ours and all("aicf::runtime::" in name for name in ours), ours
    text = LIBRARY.read_bytes()
    for words in (b"after math", b"reduce_prepass"):  # of compile/compile.cpp and passes.cpp
        assert words not in text, words
