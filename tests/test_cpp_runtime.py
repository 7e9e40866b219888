"""The runtime for C++: the example trains to Python's bits, the library is small and needs no
other, and what goes wrong is a typed error."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import aicf
import numpy as np
import pytest
from aicf import _core
from isas import used_isas
from test_cuda_fake import driver  # noqa: F401
from test_cuda_fake import run as run_fake

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(_core.__file__).parent
LIBRARY = PACKAGE / "libaicf.so"
MOST_BYTES = 2_600_000
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
[[maybe_unused]] static void told(const std::function<void()>& act) {
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


def compiled(folder, text, *options):
    """A program with the runtime."""
    (folder / "main.cpp").write_text(HEAD + text)
    run(
        tool("g++"), "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{PACKAGE / 'include'}",
        folder / "main.cpp", LIBRARY, *options, "-o", folder / "main",
    )  # fmt: skip
    return folder / "main"


HEAD = r"""
#include <aicf/aicf.h>
#include <cstdio>
#include <functional>
#include <optional>
#include <unistd.h>
using namespace aicf::runtime;
[[maybe_unused]] static void told(const std::function<void()>& act) {
    try { act(); std::puts("nothing"); }
    catch (const Error& error) { std::printf("%s %s\n", error.kind().c_str(), error.what()); }
}
"""


def training(path, batch=4):
    g = aicf.Graph("training")
    x, t = g.input("x", (batch, 3)), g.input("t", (batch, 2))
    g.input("unread", (2,))
    loss = aicf.mse_loss(g.dense("0", x, 2), t)
    g.minimize(loss, aicf.optim.SGD(lr=0.1))
    g.assign(mask := g.state("mask", (3,), "bool"), aicf.logical_not(mask))
    g.output("loss", loss)
    step = g.compile(device="cpu")
    step.export(path)
    return step


ORDER = r"""
int main(int, char** argv) {
    auto step = Step::load(argv[1]);
    const float numbers[12] = {};
    told([&] { step.run(0); });
    told([&] { step.run(); });
    step.set("x", numbers, 48);
    told([&] { step.run(); });
    step.set("t", numbers, 32);
    told([&] { step.run(); });
    Step moved = std::move(step);
    told([&] { moved.run(); });
    float loss = 0;
    told([&] { step.run(); });
    told([&] { step.run(0); });
    told([&] { step.read("loss", &loss, 4); });
    told([&] { step.set("x", numbers, 48); });
    told([&] { step.inputs(); });
    told([&] { step.outputs(); });
    told([&] { step.params(); });
    told([&] { step.states(); });
    told([&] { step.device(); });
    told([&] { step.steps_run(); });
    told([&] { step.save_state("s"); });
}
"""


def test_calls_out_of_order(tmp_path):
    """No step runs on inputs that nobody gave, and one that was moved from says so."""
    training(tmp_path / "step.aicf")
    program = compiled(tmp_path, ORDER, f"-Wl,-rpath,{PACKAGE}")
    lines = run(program, tmp_path / "step.aicf").splitlines()
    need = "was never set; need its elements before the first run"
    assert lines[:5] == [
        "nothing", f'GraphError run: input "x" f32[4, 3] {need}',
        f'GraphError run: input "t" f32[4, 2] {need}', "nothing", "nothing",
    ]  # fmt: skip
    assert len(lines) == 16
    assert all(line.startswith("GraphError step: it was moved from") for line in lines[5:]), lines


LOOP = r"""
int main(int, char** argv) {
    auto step = Step::load(argv[1]);
    float x[36], slopes[2];
    for (int i = 0; i < 36; i++) x[i] = 0.125f * static_cast<float>(i % 7) - 0.25f;
    step.set("x", x, sizeof x);
    step.run();
    step.run();
    step.read("slopes", slopes, sizeof slopes);
    std::printf("%a %a\n", slopes[0], slopes[1]);
}
"""


def test_a_loop_has_pythons_bits(tmp_path):
    """With its gradient, and the carry as a state from step to step."""
    g = aicf.Graph("loop")
    x, w, memory = g.input("x", (18, 2)), g.param("w", (2,)), g.state("memory", (2,))
    last, ys = aicf.scan(lambda c, row: 2 * (aicf.tanh(c * w + row),), memory, x)
    g.assign(memory, last)
    g.output("slopes", aicf.grad(aicf.sum(ys * ys), w))
    step = g.compile(device="cpu", seed=4)
    step.export(tmp_path / "loop.aicf")
    program = compiled(tmp_path, LOOP, f"-Wl,-rpath,{PACKAGE}")
    said = run(program, tmp_path / "loop.aicf").split()
    rows = (0.125 * (np.arange(36) % 7) - 0.25).astype(np.float32).reshape(18, 2)
    for _ in range(2):
        found = step(x=rows)["slopes"].numpy()
    assert [float.fromhex(word) for word in said] == found.tolist()


LOAD_STATE = r"""
int main(int, char** argv) {
    auto step = Step::load(argv[1]);
    for (char** file = argv + 2; *file; file++) told([&] { step.load_state(*file); });
    step.save_state(argv[2]);
}
"""


def checkpoint(header, body=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


def test_load_state(tmp_path):
    """It takes and refuses what Python's Step.load does, for the same reasons."""
    step = training(tmp_path / "step.aicf")
    begun = {name: value.copy() for name, value in step.state_dict().items()}
    for name in ("0.W", "0.b", "opt.lr"):
        step.set(name, 0.25) if name == "opt.lr" else step.params.__setitem__(
            name, np.full(begun[name].shape, 0.5, np.float32)
        )
    step.state["mask"] = np.array([True, False, True])
    good = tmp_path / "0.safetensors"
    step.save(good)
    whole = good.read_bytes()
    (size,) = struct.unpack_from("<Q", whole)
    header, body = json.loads(whole[8 : 8 + size]), whole[8 + size :]

    def change(name, **parts):
        return header | {name: header[name] | parts}

    (begin, end), rank9 = header["0.b"]["data_offsets"], [1] * 9
    at = header["mask"]["data_offsets"][0]
    bad = {
        "of nothing": b"",
        "cut": whole[:-1],
        "longer": whole + b"x",
        "header cut": whole[:20],
        "header longer": checkpoint(header, body, len(whole)),
        "header huge": checkpoint(header, body, 2**63),
        "no json": checkpoint(b"x" * 16, body),
        "not closed": checkpoint(json.dumps(header).encode()[:-1], body),
        "bytes behind": checkpoint(json.dumps(header).encode() + b"x", body),
        "a comma": checkpoint(json.dumps(header).encode()[:-1] + b",}", body),
        "lone surrogate": checkpoint(header | {"\ud800": header["0.b"]}, body),
        "no utf-8": checkpoint(json.dumps(header).encode().replace(b"0.b", b"0.\xff"), body),
        "control": checkpoint(json.dumps(header).encode().replace(b"0.b", b"0.\n"), body),
        "twice": checkpoint(
            json.dumps(header).encode()[:-1]
            + b', "0.b": ' + json.dumps(header["0.b"]).encode() + b"}", body,
        ),
        "overlap": checkpoint(change("0.b", data_offsets=[begin - 4, end - 4]), body),
        "wrong size": checkpoint(change("0.b", data_offsets=[begin, end + 4]), body),
        "negative": checkpoint(change("0.b", shape=[-2]), body),
        "huge": checkpoint(change("0.b", shape=[2**62, 2**62]), body),
        "beyond": checkpoint(change("0.b", shape=[2**70]), body),
        "float": checkpoint(change("0.b", shape=[2.0]), body),
        "rank": checkpoint(change("0.b", shape=rank9), body),
        "dtype": checkpoint(change("0.b", dtype="F8"), body),
        "no dtype": checkpoint(header | {"0.b": {"shape": [2]}}, body),
        "metadata": checkpoint(header | {"__metadata__": {"a": 1}}, body),
        "a bool of 2": whole[: 8 + size + at] + b"\2" + whole[8 + size + at + 1 :],
        "missing": checkpoint(
            {("0.c" if name == "0.b" else name): value for name, value in header.items()}, body
        ),
        "unknown": checkpoint(
            header | {"more": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, body
        ),
        "other dtype": checkpoint(change("0.b", dtype="I32"), body),
        "other shape": checkpoint(change("0.b", shape=[2, 1]), body),
    }  # fmt: skip
    files, want = [], []
    for i, (what, data) in enumerate(bad.items()):
        files.append(tmp_path / f"{i} {what}")
        files[-1].write_bytes(data)
        with pytest.raises(aicf.Error) as error:
            step.load(files[-1])
        want.append((type(error.value).__name__, what))
    assert {kind for kind, _ in want} == {"FormatError", "GraphError", "DTypeError", "ShapeError"}
    program = compiled(tmp_path, LOAD_STATE, f"-Wl,-rpath,{PACKAGE}")
    out = tmp_path / "out.safetensors"
    out.write_bytes(
        checkpoint(json.dumps(header, indent=1).replace("0.b", "0\\u002eb").encode(), body)
    )
    lines = run(program, tmp_path / "step.aicf", out, *files, tmp_path).splitlines()
    assert lines.pop(0) == "nothing"
    assert lines.pop().startswith("FormatError")  # a folder
    assert [(line.split()[0], what) for line, what in zip(lines, bad, strict=True)] == want
    assert all(len(line) < 2048 for line in lines)
    assert out.read_bytes() == whole  # the good one came first, and no bad one changed a thing


CHANGED_FOLDER = r"""
int main(int, char** argv) {
    if (::chdir("/")) return 1;
    auto step = Step::load(argv[1]);
    std::puts(step.device().c_str());
}
"""


def test_a_relative_path_and_another_folder(tmp_path):
    """Kernels are found beside the library wherever the process went since it was loaded."""
    training(tmp_path / "step.aicf")
    program = compiled(tmp_path, CHANGED_FOLDER)
    (tmp_path / "lib").symlink_to(PACKAGE)
    environment = {**os.environ, "LD_LIBRARY_PATH": "lib"}
    said = run(program, tmp_path / "step.aicf", cwd=tmp_path, env=environment)
    assert said == "cpu\n"


@pytest.mark.parametrize(("version", "found"), [("0.1", True), ("0.1.0", True), ("0.2", False)])
def test_the_version_that_cmake_sees(version, found, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(use LANGUAGES CXX)\n"
        f"find_package(aicf {version} CONFIG)\n"
        'message(STATUS "found ${aicf_FOUND} ${aicf_VERSION}")\n'
    )
    folder = run(sys.executable, "-m", "aicf", "--cmake-dir").strip()
    said = run(tool("cmake"), "-S", tmp_path, "-B", tmp_path / "build", f"-Daicf_DIR={folder}")
    assert (f"found 1 {aicf.__version__}" in said) == found, said


GLOBAL = r"""
static std::optional<Step> kept;
struct Last { ~Last() { std::puts("ended"); } } last;  // behind the step
int main(int, char** argv) {
    kept.emplace(Step::load(argv[1], "cuda:0"));
    for (const Tensor& input : kept->inputs()) {
        const std::vector<char> zeros(input.bytes);
        kept->set(input.name, zeros.data(), zeros.size());
    }
    kept->run(3);
    std::puts(kept->device().c_str());
}
"""
EXPORT = """
from aicf import verify
name, case = next(iter(verify.CASES.items()))
verify.build(name, case).compile(device="cuda").export({!r})
"""


def test_a_step_in_a_global_on_a_gpu(driver, tmp_path):  # noqa: F811
    """It ends after main, when nothing that it needs of the driver is gone."""
    file = tmp_path / "step.aicf"
    run_fake(driver, EXPORT.format(str(file)))
    program = compiled(tmp_path, GLOBAL, f"-Wl,-rpath,{PACKAGE}")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "MALLOC_PERTURB_": "165"}
    assert run(program, file, env=environment).split() == ["cuda:0", "ended"]


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
