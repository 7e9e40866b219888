"""compile(tune=True, cublaslt=True): products by NVIDIA's library, for those who ask. Tests marked
gpu run on a real one too; the others run these with a driver and a library that are none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import aicf
import emulate
import numpy as np
import pytest
from aicf import _core, tuning
from compare import assert_bits
from file_mutants import join, split
from tensors import CapsuleTensor, Cuda, Foreign

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(not hasattr(_core, "cuda_info"), reason="no CUDA in this build")
KINDS = ["fp32", "tf32", "fp16", "bf16", "float16", "bfloat16"]  # modes, then dtypes


def options_of(kind):
    return ("float32", kind) if kind in KINDS[:4] else (kind, "fp32")


def product(kind="fp32", m=64, n=96, k=128, layout="NN", batch=(), shared=False):
    """y = a b, each as it is stored or transposed, in batches."""
    dtype, _ = options_of(kind)
    g = aicf.Graph("product")
    own = () if shared else batch
    a = g.input("a", (*batch, k, m) if layout[0] == "T" else (*batch, m, k))
    b = g.input("b", (*own, n, k) if layout[1] == "T" else (*own, k, n))
    if dtype != "float32":
        a, b = aicf.cast(a, dtype), aicf.cast(b, dtype)
    a = aicf.transpose(a, -1, -2) if layout[0] == "T" else a
    b = aicf.transpose(b, -1, -2) if layout[1] == "T" else b
    g.output("y", aicf.matmul(a, b))
    return g


def trials_of(g, math="fp32"):
    return _core.Trials(g._core, "cuda", _core.pass_names(), math, 0)


def algorithms(g, math="fp32", most=6):
    """By signature, of the products that the library computes."""
    trials = trials_of(g, math)
    try:
        found = {entry[0]: trials.foreign(entry[0], most) for entry in trials.choices}
    except aicf.DeviceUnavailable as error:
        pytest.skip(str(error))
    return {signature: names for signature, names in found.items() if names}


def arrays_of(g, rng, whole=False):
    shapes = {g._core.value_name(leaf): g._core.shape(leaf) for leaf in g._core.leaves("input")}
    draw = (lambda s: rng.integers(-4, 5, s)) if whole else rng.standard_normal
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


def result(out):
    return np.array(out["y"], np.float32)


def ways(step, **arrays):
    """What a step computes run by run, captured, and replayed by a graph of many steps."""
    for out in (lambda: step.run(**arrays), lambda: step(**arrays), lambda: step.replay(20)):
        yield result(out())


def exact(a, b, layout):
    a = np.swapaxes(a, -1, -2) if layout[0] == "T" else a
    b = np.swapaxes(b, -1, -2) if layout[1] == "T" else b
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_whole_numbers_are_exact(kind, layout, batch, rng):
    """In every mode and layout, by the first and the last algorithm, in each way to run."""
    _, math = options_of(kind)
    g = product(kind, layout=layout, batch=batch, k=64)
    ((signature, names),) = algorithms(g, math).items()
    arrays = arrays_of(g, rng, whole=True)
    want = exact(arrays["a"], arrays["b"], layout).astype(np.float32)
    assert np.abs(want).max() <= 2048  # a float16 has all such numbers
    if kind == "bfloat16":
        want = np.clip(want, -256, 256)  # so has a bfloat16 these
    for name in {names[0], names[-1]}:
        step = g.compile(device="cuda", math=math, candidates={signature: name})
        assert step.plan.candidates[signature] == name
        assert sum(launch.kernel.startswith("cublasLt ") for launch in step.trace) == 1
        for got in ways(step, **arrays):
            if kind == "bfloat16":
                far = np.abs(got) > 256
                got = np.where(far, np.sign(got) * 256, got)
            assert_bits(got + np.float32(0), want + np.float32(0), f"{name} {kind}")


@pytest.mark.gpu
def test_a_batch_may_share_an_operand(rng):
    g = product(batch=(4,), shared=True)
    ((signature, names),) = algorithms(g).items()
    arrays = arrays_of(g, rng, whole=True)
    step = g.compile(device="cuda", candidates={signature: names[0]})
    want = exact(arrays["a"], arrays["b"], "NN").astype(np.float32)
    assert_bits(result(step(**arrays)), want, "shared")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_those_of_the_algorithm(kind, rng, tmp_path):
    """Twice, captured or not, several steps at once, and of a file."""
    _, math = options_of(kind)
    g = product(kind, 256, 384, 512, "NT")
    ((signature, names),) = algorithms(g, math).items()
    arrays = arrays_of(g, rng)
    for name in {names[0], names[-1]}:
        step = g.compile(device="cuda", math=math, candidates={signature: name})
        want = result(step(**arrays))
        for got in ways(step, **arrays):
            assert_bits(got, want, name)
        step.export(tmp_path / "step.aicf")
        loaded = aicf.load_step(tmp_path / "step.aicf")
        assert loaded.plan.candidates == step.plan.candidates and loaded.trace == step.trace
        for got in ways(loaded, **arrays):
            assert_bits(got, want, name)
        assert "cublasLt " in str(step.plan)
        reference = exact(arrays["a"], arrays["b"], "NT")
        assert np.abs(want - reference).max() < 1.5


@pytest.mark.gpu
def test_what_is_bound_is_read_and_written(rng):
    """By every graph of a step; nothing that begins at no multiple of 16 bytes."""
    g = aicf.Graph("product")
    a, b = g.param("a", (64, 64)), g.param("b", (64, 64))
    g.output("y", aicf.matmul(a, b))
    ((signature, names),) = algorithms(g).items()
    options = {"device": "cuda", "candidates": {signature: names[0]}}
    arrays = {name: rng.integers(-4, 5, (64, 64)).astype(np.float32) for name in "abc"}
    step = g.compile(params={name: arrays[name] for name in "ab"}, **options)
    assert_bits(result(step()), arrays["a"] @ arrays["b"], "before")
    other = g.compile(params={"a": arrays["c"], "b": arrays["b"]}, **options)
    weight = other.params["a"].__dlpack__(max_version=(1, 0), copy=True)
    step.bind(a=CapsuleTensor(weight))
    want = arrays["c"] @ arrays["b"]
    for got in ways(step):
        assert_bits(got, want, "bound")
    memory = [Cuda(np.zeros(64 * 64 + 4, np.float32)) for _ in range(2)]

    def lent(which, offset):
        at = memory[which]
        return Foreign(at.address, "float32", (64, 64), None, offset, device=(2, 0), keep=at)

    with pytest.raises(aicf.Unsupported, match='"a" got memory that begins 4 bytes .* cublasLt '):
        step.bind(a=lent(0, 4))
    step.bind(y=lent(1, 4))
    for _ in range(2):
        with pytest.raises(aicf.Unsupported, match="operand 2 of a product begins 4 bytes"):
            step()
    step.bind(y=lent(1, 16))
    for got in ways(step):
        assert_bits(got, want, "bound again")
    step.synchronize()
    assert_bits(memory[1].read()[16:].view(np.float32).reshape(64, 64), want, "in memory")


@pytest.mark.gpu
def test_many_slices_and_times(rng):
    g = product("fp32", 64, 64, 64)
    ((signature, names),) = algorithms(g).items()
    step = g.compile(device="cuda", candidates={signature: names[0]})
    many = {name: rng.integers(-4, 5, (5, 64, 64)).astype(np.float32) for name in "ab"}
    got = step.run_many(**many)
    assert_bits(result(got), many["a"][-1] @ many["b"][-1], "the last of many")
    assert step._profile(2)


@pytest.mark.gpu
def test_what_has_no_such_candidate(rng):
    """Products with something behind them, and of float64."""
    g = aicf.Graph("fused")
    g.output("y", aicf.relu(aicf.matmul(g.input("a", (64, 64)), g.param("b", (64, 64)))))
    assert algorithms(g) == {}
    g = aicf.Graph("double")
    a = g.input("a", (64, 64), "float64")
    g.output("y", aicf.matmul(a, a))
    assert algorithms(g) == {}


@pytest.mark.gpu
def test_in_a_loop_it_is_left_to_ours(rng):
    """Whose operands are wherever a turn's are."""
    n = 200  # too large for one block
    g = aicf.Graph("loop")
    x, w = g.input("x", (n, n)), g.input("w", (n, n))
    last, _ = aicf.scan(lambda c, _row: (aicf.matmul(c, w), None), x, g.input("s", (3, 1)))
    g.output("last", last)
    g.output("y", aicf.matmul(x, w))
    found = algorithms(g)
    arrays = {name: rng.integers(-1, 2, (n, n)).astype(np.float32) for name in "xw"}
    arrays["w"] = np.eye(n, dtype=np.float32)[::-1].copy()
    step = g.compile(device="cuda", candidates={key: names[0] for key, names in found.items()})
    assert str(step.plan).count("candidate=cublasLt ") == 1
    out = step(**arrays, s=np.zeros((3, 1), np.float32))
    assert_bits(result(out), arrays["x"] @ arrays["w"], "outside")
    assert_bits(np.array(out["last"]), arrays["x"] @ arrays["w"], "inside, thrice")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda words: [words[0], "1.2.3", *words[2:]], aicf.Unsupported, "version 1.2.3, the lib"),
        (lambda words: [*words[:2], "sm_10a", *words[3:]], aicf.Unsupported, "is of sm_10a with"),
        (lambda words: [*words[:3], "7", *words[4:]], aicf.Unsupported, "with 7 processors, this"),
        (lambda words: [*words[:5], "f" * 128], aicf.Unsupported, "refuses a product's algorithm"),
        (lambda words: [*words[:4], "1e9", words[5]], aicf.GraphError, "candidates names"),
        (lambda words: [*words[:4], str(1 << 40), words[5]], aicf.GraphError, "candidates names"),
        (lambda words: words[:5], aicf.GraphError, "candidates names"),
        (lambda words: [*words, "0"], aicf.GraphError, "candidates names"),
        (lambda words: [*words[:5], words[5].upper()[:-1] + "G"], aicf.GraphError, "candidates"),
    ],
)
def test_another_version_device_or_algorithm_is_refused(change, kind, text):
    g = product()
    ((signature, names),) = algorithms(g).items()
    with pytest.raises(kind, match=text):
        g.compile(device="cuda", candidates={signature: " ".join(change(names[0].split()))})


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """A cache of its own, and times that a test says."""
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    quick = {}

    def seconds(trials, signature, names, size):
        return {name: 1e-3 if name.startswith(quick["kind"]) else 2e-3 for name in names}

    monkeypatch.setattr(tuning, "_timed", seconds)
    monkeypatch.setattr(tuning, "_whole", lambda core, compiled, kernels: 1.0)
    return quick


@pytest.mark.gpu
def test_it_is_taken_where_it_was_asked_for_and_quickest(timed, rng):
    """What was found with it is of no use to whoever does not ask."""
    g = product()
    algorithms(g)
    timed["kind"] = "cublasLt "
    asked = aicf.tune(g, device="cuda", limit=2, cublaslt=True)
    assert [one.kernel.startswith("cublasLt ") for one in asked] == [True]
    assert "cublasLt " in str(asked) and asked[0].kernel not in str(asked)  # its algorithm is long
    assert aicf.tune(g, device="cuda", limit=2, cublaslt=True)[0].known
    assert len(aicf.tune(g, device="cuda", limit=1 << 40, cublaslt=True)[0].times) > 2
    plain = aicf.tune(g, device="cuda", limit=2)
    assert not any(name.startswith("cublasLt ") for name in plain[0].times)
    for options, there in (({}, False), ({"tune": True}, False),
                           ({"tune": True, "cublaslt": True}, True)):  # fmt: skip
        step = g.compile(device="cuda", **options)
        (name,) = step.plan.candidates.values()
        assert name.startswith("cublasLt ") == there
    arrays = arrays_of(g, rng, whole=True)
    want = exact(arrays["a"], arrays["b"], "NN").astype(np.float32)
    assert_bits(result(step(**arrays)), want, "tuned")
    timed["kind"] = asked[0].default
    assert (
        aicf.tune(g, device="cuda", limit=2, cublaslt=True, again=True)[0].kernel == timed["kind"]
    )


@pytest.mark.gpu
def test_a_product_among_others_waits_and_is_waited_for(rng):
    """Its node stands behind kernels that begin early; of its kind one is a member of a group."""
    g = aicf.Graph("net")
    x, w, v = (g.input(name, (64, 64)) for name in "xwv")
    h = aicf.matmul(x, w)
    y = aicf.matmul(aicf.softmax(h * 0.0) * 64.0, v)
    for name, value in {"h": h, "q": aicf.matmul(v, x), "y": y, "z": aicf.softmax(y)}.items():
        g.output(name, value)
    ((signature, names),) = algorithms(g).items()
    arrays = {name: rng.integers(-2, 3, (64, 64)).astype(np.float32) for name in "xwv"}
    step = g.compile(device="cuda", candidates={signature: names[0]})
    kernels = [launch.kernel for launch in step.trace]
    assert [name.startswith("cublasLt ") for name in kernels] == [False, False, True, False]
    assert step.plan.candidates[signature] == names[0]
    plain = g.compile(device="cuda")
    want = {name: np.array(array) for name, array in plain(**arrays).items()}
    for act in (lambda: step.run(**arrays), lambda: step(**arrays), lambda: step.replay(20)):
        out = act()
        for name, array in want.items():
            assert_bits(np.array(out[name]), array, name)


# ---- without a GPU -------------------------------------------------------------------------------

needs_emulator = pytest.mark.skipif(bool(emulate.missing()), reason=emulate.missing())


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda g: aicf.tune(g, cublaslt=1), r"tune: cublaslt is 1; need a bool"),
        (lambda g: g.compile(device="cpu", tune=True, cublaslt="x"), r"cublaslt is 'x'; need a b"),
        (lambda g: g.compile(device="cpu", cublaslt=True), r"cublaslt is True and tune False; nee"),
        (lambda g: aicf.function(lambda x: x, cublaslt=True), r"function: cublaslt is True and t"),
        (lambda g: aicf.function(lambda x: x, cublaslt=1), r"function: cublaslt is 1; need a bo"),
    ],
)
def test_mistakes(act, text):
    with pytest.raises(aicf.GraphError, match=text):
        act(product())


def test_a_cpu_has_none(rng):
    g = product()
    assert len(aicf.tune(g, device="cpu", cublaslt=True)) == 0
    step = g.compile(device="cpu", tune=True, cublaslt=True)
    arrays = arrays_of(g, rng, whole=True)
    assert_bits(result(step(**arrays)), exact(**arrays, layout="NN").astype(np.float32), "cpu")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder of wheels, with a cuBLASLt that is none."""
    if emulate.missing():
        pytest.skip(emulate.missing())
    folder = tmp_path_factory.mktemp("wheels")
    inside = folder / "nvidia" / "cu13" / "lib"
    inside.mkdir(parents=True)
    emulate.build_library(inside / "libcublasLt.so.13", "fake_cuda/fake_cublaslt.cpp")
    return folder


def run(emulated, wheels, *arguments, **environment):
    env = emulate.environment(emulated, major=9, processors=132)
    paths = [str(wheels)] if wheels else []
    paths += [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env |= {"PYTHONPATH": os.pathsep.join(paths), "FAKE_CUDA_REPORT": "1"}
    env |= {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=HERE.parent, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.slow
@needs_emulator
@pytest.mark.timeout(1200)
def test_all_that_a_gpu_runs(emulated, library):
    done = run(emulated, library, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider",
               "-p", "no:xdist", "-p", "no:benchmark", "tests/test_cublaslt.py")  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout


SCRIPT = """
import sys
import aicf
import numpy as np
from aicf import _core

g = aicf.Graph("product")
a, b = g.input("a", (64, 64)), g.input("b", (64, 64))
g.output("y", aicf.matmul(a, b))
arrays = {name: np.arange(4096, dtype=np.float32).reshape(64, 64) % 5 for name in "ab"}

def make():
    trials = _core.Trials(g._core, "cuda", _core.pass_names(), "fp32", 0)
    (entry,) = trials.choices
    return g.compile(device="cuda", candidates={entry[0]: trials.foreign(entry[0], 3)[-1]})

def show(step):
    assert (np.array(step(**arrays)["y"]) == arrays["a"] @ arrays["b"]).all()
    print([op["kernel"] for op in step.plan.ops])

for act in sys.argv[1:]:
    try:
        if act == "tune":
            aicf.tune(g, device="cuda", cublaslt=True)
        elif act == "show":
            show(make())
        elif act.startswith("load"):
            show(aicf.load_step(act[5:], device="cuda"))
        else:
            make().export(act)
    except aicf.Error as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
@needs_emulator
def test_a_file_wants_its_version_and_library(emulated, library, tmp_path):
    """Nor is there a heuristic when it is loaded; an algorithm that is refused is not replaced."""
    path = tmp_path / "step.aicf"
    script = ["-c", SCRIPT]
    assert run(emulated, library, *script, path).returncode == 0
    good = run(emulated, library, *script, f"load:{path}").stdout
    assert "['cublasLt 13.1.0']" in good
    other = run(emulated, library, *script, f"load:{path}", FAKE_CUBLASLT_VERSION=120803).stdout
    assert "Unsupported" in other and "version 13.1.0, the library at " in other
    assert " is 12.8.3; need that version" in other
    refused = run(emulated, library, *script, f"load:{path}", FAKE_CUBLASLT_REFUSES=1).stdout
    assert "Unsupported" in refused and "refuses a product's algorithm (status 15" in refused
    device = run(emulated, library, *script, f"load:{path}", FAKE_CUDA_PROCESSORS=114).stdout
    assert (
        "Unsupported" in device and "with 132 processors, this device is sm_90a with 11" in device
    )
    head, (plan, *rest) = split(path.read_bytes())
    plan = re.sub(rb"(cublasLt [ -~]{,40} [0-9a-f]{127})[0-9a-f]", rb"\1g", plan)
    path.with_suffix(".damaged").write_bytes(join(head, [plan, *rest]))
    damaged = run(emulated, library, *script, f"load:{path.with_suffix('.damaged')}").stdout
    assert "FormatError" in damaged and "says no product of a library's" in damaged
    missing = run(emulated, None, *script, f"load:{path}", "tune").stdout
    if "cublasLt: none was found" not in missing:
        pytest.skip("this machine has a library of its own")
    assert missing.count("DeviceUnavailable cublasLt: none was found") == 2
    assert "pip install nvidia-cublas" in missing


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize(
    "call", ["cuStreamCreate", "cuStreamBeginCapture_v2", "cuGraphAddChildGraphNode"]
)
def test_a_call_that_fails_leaves_nothing_behind(emulated, library, call):
    acts = ["show", "show"]
    done = run(emulated, library, "-c", SCRIPT, *acts, FAKE_CUDA_CALL=call)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("['cublasLt 13.1.0']") == 2 - done.stdout.count("OutOfMemory")
    report = next(line for line in done.stdout.splitlines() if line.startswith("fake driver:"))
    words = report.split()[2:]
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    left = ("device", "events", "streams", "graphs", "execs", "contexts")
    assert not any(counts[what] for what in left), report
