"""What must stay true of the repository: a full registry, includes one way, a light package."""

import ast
import doctest
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import aicf
import numpy as np
import pytest
from aicf import _core, optim, verify
from aicf.nn_functions import _fused_attention
from op_cases import CASES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(aicf.__file__).parent
# ---- registry


# What they do is their author's: tests/test_custom.py.
CUSTOM = {"CustomOp", "HostCall", "custom_op", "custom_strided", "host_call"}


def test_every_op_has_a_row():
    ops, rows = set(_core.op_names()) - CUSTOM, {case.op for case in CASES}
    assert ops - rows == set(), "IR ops without a row in op_cases.py"
    assert rows - ops == set(), "rows of ops that do not exist"


def test_every_op_is_reachable_from_python():
    """Each op is named by the Python surface or emitted by a rule in core."""
    python = "".join(p.read_text() for p in (ROOT / "python/aicf").glob("*.py"))
    rules = "".join(p.read_text() for p in (ROOT / "src/core/graph").glob("*.cpp"))
    for op in _core.op_names():
        emitted = re.search(rf'(emit|emit_all|use_x|use_y)\([^;]*"{op}"', rules)
        assert f'"{op}"' in python or emitted, f"{op}: no Python function leads to it"


def test_every_op_has_a_gradient_or_a_reason():
    for op in _core.op_names():
        reason = _core.op_grad(op)
        assert reason == "" or len(reason) > 10, op
    differentiable = {case.op for case in CASES if isinstance(case.grad, tuple) and case.grad}
    for op in _core.op_names():
        if not _core.op_grad(op) and op not in CUSTOM:
            assert op in differentiable, f"{op} has a gradient that no row checks"


@pytest.mark.passes
def test_every_lowered_op_has_a_cpu_kernel():
    """Rows, a training step, a norm and a gate reach every lowered op on the CPU."""
    from op_cases import SIZES
    from test_ops import arg_dtype

    step = verify.build("step", verify.CASES["train_step_distinct"]).compile(device="cpu")
    norm = aicf.Graph("norm")
    x = norm.input("x", (3, 4))
    norm.output("y", aicf.sqrt(aicf.sum(x * x)))
    gate = aicf.Graph("gate")
    x = gate.input("x", (3, 4))
    gate.output("y", aicf.softmax(x) * x)
    long = aicf.Graph("long")
    long.output("y", aicf.cumsum(long.input("x", (3, 2500)), 1))
    parts = aicf.Graph("parts")  # gradients of attention that are wanted alone
    for names in ("q", "kv"):
        q, k, v = (parts.input(f"{names}.{name}", (1, 1, 3, 4)) for name in "qkv")
        y = _fused_attention(q, k, v, None, False, 0.5)
        for i, dy in enumerate(aicf.grad(aicf.sum(y), [q] if names == "q" else [k, v])):
            parts.output(f"{names}{i}", dy)
    steps = [step, *(g.compile(device="cpu") for g in (norm, gate, long, parts))]
    seen = {launch.op for one in steps for launch in one.trace}
    for case in CASES:
        g = aicf.Graph("row")
        dtype = case.dtypes[0]
        operands = [
            g.input(f"x{i}", [SIZES[letter] for letter in arg.dims], arg_dtype(arg, dtype))
            for i, arg in enumerate(case.args)
        ]
        result = case.build(g, *operands)
        for i, y in enumerate(result if isinstance(result, list) else [result]):
            g.output(f"y{i}", y, keep=2 if case.op == "Add" else 1)
        for passes in ((), "default"):
            seen |= {launch.op for launch in g.compile(device="cpu", passes=passes).trace}
    for_gpus = {"sequence", "block_loop", "chain", "gemm_f32", "subtree_sums", "subtree_mean"}
    for_gpus |= {"normalize_axes", "normalize_axes_bwd", "normalize_mean"}
    missing = set(_core.lowered_names()) - seen - CUSTOM - for_gpus
    assert missing == set(), f"lowered ops that no row of the table reaches: {missing}"


# ---- sources


def includes(folder):
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in (".h", ".cpp", ".inl", ".cu", ".cuh"):
            for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M):
                yield path.relative_to(ROOT), name


FOREIGN = re.compile(r"^(Python\.h|nanobind|pybind|cuda|nvrtc|cublas|nccl|bindings/)")


@pytest.mark.parametrize(
    "folder, banned",
    [
        ("src/core", FOREIGN),
        ("src/core", re.compile(r"^kernels/")),
        ("src/kernels/cpu", re.compile(r"^(Python\.h|nanobind|cuda|nvrtc|bindings/|kernels/cuda)")),
        ("src/kernels/cuda", re.compile(r"^(Python\.h|nanobind|bindings/|kernels/cpu)")),
    ],
)
def test_includes_point_one_way(folder, banned):
    wrong = [f"{path}: {name}" for path, name in includes(folder) if banned.search(name)]
    assert wrong == []


def test_bindings_use_casters_that_may_throw():
    """nanobind's own end the process where memory runs out in them."""
    own = {"nanobind/stl/string_view.h", "nanobind/stl/detail/nb_list.h"}
    own.add("nanobind/stl/detail/nb_dict.h")
    used = {name for _, name in includes("src/bindings") if name.startswith("nanobind/stl")}
    assert used <= own


# Each room of the core may include itself and those before it.
ROOMS = ["base", "abi", "graph", "compile", "run"]


def test_rooms_of_the_core_know_only_those_before_them():
    assert sorted(ROOMS) == sorted(p.name for p in (ROOT / "src/core").iterdir())
    seen = set()
    for path, name in includes("src/core"):
        own, parts = path.parts[2], Path(name).parts
        if parts[0] == "core":
            seen.add((own, parts[1]))
            assert parts[1] in ROOMS[: ROOMS.index(own) + 1], (path, name)
    assert seen >= set(zip(ROOMS[2:], ROOMS[1:], strict=False)), "each room builds on the last"


def test_device_code_and_scalars_know_the_abi_alone():
    """They are compiled for devices too, apart from everything else."""
    for path, name in [*includes("src/core/abi"), *includes("src/kernels/cuda")]:
        if "/" in name and (path.suffix == ".cuh" or path.parts[2] == "abi"):
            assert name.startswith("core/abi/"), (path, name)


def test_python_files_form_no_circle():
    """At import; what a function imports when called may look back."""
    folder = ROOT / "python/aicf"
    needs = {}
    for path in folder.glob("*.py"):
        needs[path.stem] = set()
        for line in ast.parse(path.read_text()).body:
            if isinstance(line, ast.ImportFrom) and line.level == 1:
                names = [line.module] if line.module else [name.name for name in line.names]
                needs[path.stem] |= {name for name in names if (folder / f"{name}.py").exists()}
    needs.pop("__init__"), needs.pop("__main__")
    assert any(needs.values())
    while needs:
        free = [name for name, of in needs.items() if not of & needs.keys()]
        assert free, f"a circle among {sorted(needs)}"
        for name in free:
            del needs[name]


# ---- the installed package


MATH = (
    r"(exp|expm1|exp2|log|log1p|log2|log10|pow|sin|cos|sincos|a?tanh?|a?sinh?|a?cosh?|atan2|hypot|"
    r"fmod|remainder|erfc?|rsqrt|cbrt)f?"
)


def test_kernels_call_no_math_library():
    """Its bits would be those of one machine; fma is the one correctly rounded function of it."""
    if not shutil.which("nm"):
        pytest.skip("no nm")
    libraries = [_core.__file__, *Path(_core.__file__).parent.glob("libaicf*.so")]
    assert len(libraries) > 2, "the kernels and the runtime lie beside the module"
    command = ["nm", "-D", "--undefined-only", *map(str, libraries)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in said.splitlines() if line.strip()}
    assert "fma" in names
    assert not [name for name in names if re.fullmatch(MATH, name)]


def test_device_code_calls_no_math_library():
    """NVRTC has such functions built in: each call names scalar.h's."""
    for path in (ROOT / "src" / "kernels" / "cuda").glob("*.cuh"):
        assert not re.findall(rf"(?<!scalar::)\b{MATH}\(", path.read_text()), path.name
    scalars = sorted((ROOT / "src/core/abi").glob("*.h"))
    assert scalars
    for path in scalars:
        assert not re.findall(rf"(?<!scalar)::{MATH}\(", path.read_text()), path.name


def child(code, *args, **env):
    return subprocess.run(
        [sys.executable, *args, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


def test_import_time(tmp_path):
    """Ours beside NumPy's, in processor time: a slow or busy machine does not fail it, nor do
    sources that are compiled at each import."""
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    code = """
from time import process_time as now
start = now(); import numpy; middle = now(); import aicf; print((now() - middle) / (middle - start))
"""
    share = min(float(child(code, **kept).stdout) for _ in range(3))
    assert share < 0.8, f"import aicf takes {share:.2f} of what NumPy takes"


def test_import_brings_no_framework():
    done = child("import aicf, sys; print({'torch', 'jax', 'ml_dtypes'} & set(sys.modules))")
    assert done.stdout.strip() == "set()"


USE = """
import numpy as np, aicf
from aicf import verify
step = verify.build("g", verify.CASES["train_step_distinct"]).compile(device="cpu")
x, t = np.zeros((5, 7), np.float32), np.zeros((5, 3), np.float32)
out = step(x=x, t=t)
kept = [step, out, out["loss"], step.params, step.params["0.W"], np.from_dlpack(step.params["0.W"])]
graph = aicf.Graph("failed")
try:
    graph.input("x", (1, -1))
except aicf.Error as error:
    kept.append(error)
aicf.kept = kept
loop = [kept]; loop.append(loop)
{end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "del kept, step, out, loop"])
def test_no_leak_line_at_exit(end):
    """nanobind reports what is still alive when the interpreter goes."""
    done = child(USE.format(end=end))
    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr and done.stderr == ""


def test_package_files():
    assert (PACKAGE / "_core.pyi").exists() and (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "tuned_sm_90.json").exists()
    size = sum(p.stat().st_size for p in PACKAGE.rglob("*") if p.is_file())
    assert size < 20e6
    installed = importlib.import_module("importlib.metadata")
    assert aicf.__version__ == installed.version("aicf")
    # It stands in pyproject.toml alone, and no address is given that nothing answers at.
    sources = [*(ROOT / "python").rglob("*.py"), ROOT / "CMakeLists.txt"]
    assert not [p for p in sources if f'"{aicf.__version__}"' in p.read_text()]
    assert installed.metadata("aicf").get_all("Project-URL") is None
    (command,) = installed.entry_points(group="console_scripts", name="aicf")
    assert callable(command.load())


def test_stub_covers_the_module():
    stub = (PACKAGE / "_core.pyi").read_text()
    for name in dir(_core):
        if not name.startswith("__"):
            assert re.search(rf"(class|def) {name}\b|^{name}\b", stub, re.M), name


# ---- documentation


def public_objects():
    for name in aicf.__all__:
        yield f"aicf.{name}", getattr(aicf, name)
    for module in (aicf.optim, aicf.init):
        for name, item in vars(module).items():
            if not name.startswith("_") and getattr(item, "__module__", "") == module.__name__:
                yield f"{module.__name__}.{name}", item
    for name in aicf.nn.__all__:
        if name not in aicf.__all__:
            yield f"aicf.nn.{name}", getattr(aicf.nn, name)


def test_everything_public_is_documented():
    missing = []
    for name, item in public_objects():
        if callable(item) and not (item.__doc__ or "").strip():
            missing.append(name)
        if inspect.isclass(item) and item.__module__.startswith("aicf"):
            for key, member in vars(item).items():
                documented = inspect.isroutine(member) or isinstance(member, property)
                text = inspect.getdoc(getattr(item, key))  # of an override: the base's
                if not key.startswith("_") and documented and not text:
                    missing.append(f"{name}.{key}")
    assert missing == []


def test_all_is_complete():
    for name in aicf.__all__:
        assert hasattr(aicf, name), name
    assert len(aicf.__all__) == len(set(aicf.__all__))


def example_names():
    """What examples may use without saying so."""
    g = aicf.Graph("example")
    x, target = g.input("x", (4, 3)), g.input("t", (4, 3))
    hidden = x @ g.param("w", (3, 3))
    loss = aicf.mse_loss(hidden, target)
    g.minimize(loss, aicf.optim.Adam())
    g.output("loss", loss)
    batch = np.ones((4, 3), np.float32)
    h = aicf.Graph("values")
    return {
        "aicf": aicf,
        "np": np,
        "g": h,
        "x": h.input("x", (4, 3)),
        "y": h.input("y", (4, 3)),
        "w": h.param("w", (2, 3)),
        "labels": h.input("labels", (4,), "int64"),
        "image": h.input("image", (1, 2, 8, 8)),
        "kernel": h.param("kernel", (5, 2, 3, 3)),
        "step": g.compile(device="cpu"),
        "hidden": hidden,
        "batch": batch,
        "target": batch,
    }


def documented():
    """Every public name that is ours; a doctest finder would pass over decorated functions."""
    for name, item in public_objects():
        if getattr(item, "__module__", "").startswith("aicf") and callable(item):
            yield name, item
            for key, member in vars(item).items() if inspect.isclass(item) else ():
                if inspect.isroutine(member) and not key.startswith("_"):
                    yield f"{name}.{key}", member


DOCUMENTED = dict(documented())


@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    """Every line after >>> runs and prints what is written below it."""
    monkeypatch.chdir(tmp_path)  # some write files
    finder = doctest.DocTestFinder(recurse=False, exclude_empty=True)
    for test in finder.find(DOCUMENTED[name], name, module=False, globs=example_names()):
        report = []
        result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
        assert result.failed == 0, "".join(report)


def test_functions_have_an_example():
    """Functions, optimizers and initialisers; errors and results speak through those."""
    without = [
        name
        for name, item in public_objects()
        if inspect.isroutine(item) or isinstance(item, type) and issubclass(item, optim.Optimizer)
        if ">>>" not in (item.__doc__ or "") and item is not optim.Optimizer
    ]
    assert without == []


def test_the_page_of_files_has_the_numbers_of_the_header():
    header = (ROOT / "src/core/compile/executable.h").read_text()
    page = (ROOT / "docs/format.md").read_text()
    for constant, name in (("kFileFormat", "format"), ("kContract", "contract")):
        (number,) = re.findall(rf"constexpr uint32_t {constant} = (\d+);", header)
        assert re.findall(rf"\| u32 \| {name}, (\d+):", page) == [number]


def test_files_have_a_plain_style():
    """No tabs, no trailing blanks, a newline at the end."""
    for folder, kinds in (("python", {".py"}), ("tests", {".py"}), ("bench", {".py"})):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in kinds:
                continue
            text = path.read_text()
            assert text.endswith("\n") and "\t" not in text, path
            assert not any(line != line.rstrip() for line in text.splitlines()), path
