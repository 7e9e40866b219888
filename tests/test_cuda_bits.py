"""The CUDA backend gives the CPU backend's bits, and repeats itself."""

from concurrent.futures import ThreadPoolExecutor

import aicf
import exact64
import ml_dtypes
import numpy as np
import pytest
from aicf import _core, verify
from op_cases import CASES, SIZES
from test_ops import as_list, draw

pytestmark = pytest.mark.gpu
SHAPES = {"table": SIZES, "larger": {letter: 37 + i for i, letter in enumerate(SIZES)}}


def outputs(case, arrays, device):
    g = aicf.Graph("case")
    values = [g.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)]
    for i, y in enumerate(as_list(case.build(g, *values))):
        g.output(f"y{i}", y)
    got = g.compile(device=device, checks="off")(**{f"x{i}": a for i, a in enumerate(arrays)})
    return [got[name].numpy() for name in got]


def assert_same(cpu, cuda, what):
    """Equal bytes; a NaN's payload is the one exception."""
    for i, (a, b) in enumerate(zip(cpu, cuda, strict=True)):
        a, b = np.atleast_1d(a), np.atleast_1d(b)
        differs = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")
        if a.dtype.kind == "f":
            differs &= ~(np.isnan(a) & np.isnan(b))
        assert not differs.any(), f"{what} result {i}: {differs.sum()} of {a.size} differ"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_ops(case, sizes, dtype, make_rng):
    if dtype not in case.dtypes:
        if dtype == "float64":
            pytest.skip("the row has no float64")
        dtype = case.dtypes[0]
    rng = make_rng(5)
    arrays = [draw(arg, dtype, SHAPES[sizes], rng) for arg in case.args]
    try:
        cpu = outputs(case, arrays, "cpu")
    except aicf.ShapeError:
        pytest.skip("the row holds for its own sizes alone")
    assert_same(cpu, outputs(case, arrays, "cuda"), case.id)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_some_large_arguments(dtype, make_rng):
    """Of a vector whose sines and cosines need a long reduction, or exponentials and sigmoids
    bounds, all elements are computed again."""
    rng, count = make_rng(9), (1 << 15) + 3
    x = rng.standard_normal(count).astype(np.float32)
    x[::11] *= 1e6
    x[5:2000:3] = rng.integers(0, 2**31 - 2**23, 665, np.uint32).view(np.float32)
    x[-4:] = 65536.0, -65537.0, np.inf, -np.inf
    x[3000:3100], x[3200::77] = -0.0, np.nan
    x[4000:6000] = np.linspace(-110, 110, 2000)
    step = {}
    for device in ("cpu", "cuda"):
        g = aicf.Graph("sines")
        v = g.input("x", (count,), dtype)
        g.output("one", aicf.sin(v))
        y = aicf.tanh(aicf.sin(v * 1.7 + 0.3) * v + aicf.exp(-(v * v))) * aicf.sigmoid(v)
        g.output("chain", y + aicf.cos(y * 1e5) * aicf.sin(aicf.cos(v) + 2.0))
        s = aicf.sigmoid(v) - aicf.sigmoid(-v) * aicf.exp(v * 0.5)
        g.output("no sine", s * aicf.exp(v) - aicf.tanh(s))
        got = g.compile(device=device)(
            x=x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        )
        step[device] = [got[name].numpy() for name in got]
    assert_same(step["cpu"], step["cuda"], dtype)


LARGE, PARTS = 1 << 24, 6


@pytest.mark.parametrize("name", exact64.FUNCTIONS)
def test_float64_functions(name):
    """96 Mi inputs of each function, and its gradient, on both devices."""
    g = aicf.Graph(name)
    x, y = g.input("x", (LARGE,), "float64"), g.input("y", (LARGE,), "float64")
    value = exact64.applied(name, x, y)
    g.output("value", value)
    g.output("slope", g.backward(aicf.sum(value), [x])[x])
    steps = [g.compile(device=device) for device in ("cpu", "cuda")]
    with ThreadPoolExecutor(PARTS) as pool:
        drawn = [pool.submit(exact64.inputs, name, 7, part, LARGE) for part in range(PARTS)]
        for part in range(PARTS):
            a, b = drawn[part].result()
            drawn[part] = None
            results = []
            for step in steps:
                got = step(x=a, y=b)
                results.append([got["value"].numpy(), got["slope"].numpy()])
            assert_same(*results, f"{name}, part {part},")


@pytest.mark.parametrize("name", verify.CASES)
def test_training(name, make_rng):
    case, rng = verify.CASES[name], make_rng(6)
    x = rng.standard_normal((case.batch, case.inputs)).astype(np.float32)
    t = rng.standard_normal((case.batch, case.outputs)).astype(np.float32)
    hashes = []
    for device in ("cpu", "cuda"):
        step = verify.build(name, case).compile(device=device, seed=3)
        step(x=x, t=t)
        step.replay(19)
        hashes.append(verify.state_hash(step))
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("n", [1, 511, 512, 513, 5000, 70_000, 1_000_003])
def test_long_sums(n, make_rng):
    rng = make_rng(7)
    x = rng.standard_normal((3, n)).astype(np.float32)
    results = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("sums")
        v = g.input("x", x.shape)
        g.output("rows", aicf.sum(v, axis=1))
        g.output("all", aicf.mean(v))
        g.output("max", aicf.max(v, axis=1))
        g.output("columns", aicf.sum(aicf.permute(v, (1, 0)), axis=0))
        g.output("mse", aicf.mse_loss(v, v * 0.5))
        g.output("softmax", aicf.softmax(v, axis=1))
        got = g.compile(device=device)(x=x)
        results.append([got[name].numpy() for name in got])
    assert_same(*results, f"n = {n}")


@pytest.mark.parametrize(
    "shape", [(5000, 40), (70_000, 9), (600, 300), (2048, 600), (7168, 2500), (40_960, 70)]
)
def test_column_sums(shape, make_rng):
    x = make_rng(8).standard_normal(shape).astype(np.float32)
    results = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("columns")
        v = g.input("x", x.shape)
        g.output("sum", aicf.sum(v, axis=0))
        g.output("max", aicf.max(v, axis=0))
        got = g.compile(device=device)(x=x)
        results.append([got[name].numpy() for name in got])
    assert_same(*results, f"{shape}")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", [(8192, 1088), (20_300, 802), (9000, 2110), (16_384, 768)])
def test_wide_column_sums(shape, dtype, make_rng):
    """Threads take results side by side, of whole leaves or not, where the columns are many."""
    rng, (n, width) = make_rng(11), shape
    stored = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    wide = "float64" if dtype == "float64" else "float32"
    x, slope = rng.standard_normal((n, width + 4)), rng.standard_normal((n, width))

    def summed(device):
        g = aicf.Graph("columns")
        v, dy = g.state("x", x.shape, dtype), g.state("dy", slope.shape, wide)
        parts = {"cut": v[:, :width], "shifted": v[:, 1 : width + 1]}
        for name, part in parts.items():
            part = aicf.cast(part, wide)
            g.output(name, aicf.sum(part, 0))
            g.output(f"{name}.made", aicf.sum(part * dy, 0))
            g.output(f"{name}.most", aicf.max(part, 0))
        step = g.compile(device=device)
        step.state["x"], step.state["dy"] = x.astype(stored), slope.astype(wide)
        got = step()
        return [got[name].numpy() for name in got]

    assert_same(summed("cpu"), summed("cuda"), f"{shape}")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(256, 33), (257, 5), (1000, 40), (5000, 70), (66_000, 3), (300, 1), (2048, 256)]
)
def test_bias_gradients(shape, dtype, make_rng):
    """Sums in chains, of elements side by side and of those across, of what was made before too."""
    rng = make_rng(9)
    dy = rng.standard_normal(shape).astype("float64" if dtype == "float64" else "f")

    def summed(device):
        g = aicf.Graph("bias")
        b = g.param("b", shape[1:], dtype)
        for turned in (False, True):
            name = "turned" if turned else "plain"
            v = g.input(name, shape[::-1] if turned else shape, str(dy.dtype))
            v = aicf.cast(v, dtype)
            v = aicf.permute(v, (1, 0)) if turned else v
            y = g.constant(np.ones(shape, dy.dtype))
            y = aicf.linear(
                aicf.cast(y[:, :1], dtype), g.param(f"{name}.w", (shape[1], 1), dtype), b
            )
            g.output(name, aicf.cast(g.backward(y, [b], grad=v)[b], str(dy.dtype)))
            made = aicf.relu(v) * v
            g.output(f"{name}.made", aicf.cast(g.backward(y, [b], grad=made)[b], str(dy.dtype)))
        got = g.compile(device=device)(plain=dy, turned=np.ascontiguousarray(dy.T))
        return [got[name].numpy() for name in got]

    assert_same(summed("cpu"), summed("cuda"), f"{shape}")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", [(4096, 512), (2100, 1002), (30_000, 71), (65_600, 32)])
def test_tall_bias_gradients(shape, dtype, make_rng):
    """Threads take columns: side by side in one word where they lie so, of whole chunks or not."""
    rng, (n, width) = make_rng(10), shape
    stored = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    held = {
        "dy": rng.standard_normal((n, width)).astype(stored),
        "wide": rng.standard_normal((n, width + 4)).astype(stored),
        "scale": rng.standard_normal((n, 1)).astype(stored),
        "shift": rng.standard_normal((width,)).astype(stored),
    }

    def summed(device):
        g = aicf.Graph("bias")
        b, w = g.param("b", (width,), dtype), g.param("w", (width, 1), dtype)
        v = {name: g.state(name, x.shape, dtype) for name, x in held.items()}
        y = aicf.linear(v["scale"], w, b)
        slopes = {
            "plain": v["dy"],
            "shifted": v["wide"][:, 1 : width + 1],  # of lines that begin within a word
            "cut": v["wide"][:, :width],
            "made": aicf.tanh(v["dy"]) * v["dy"] * v["scale"] + v["shift"],
        }
        for name, slope in slopes.items():
            grad = g.backward(y, [b], grad=slope)[b]
            g.output(name, aicf.cast(grad, "float64" if dtype == "float64" else "float32"))
        programs = _core.cuda_programs(g._core, _core.pass_names())
        assert any("reduce_tall<" in program for program in programs)
        step = g.compile(device=device)
        for name, x in held.items():
            step.state[name] = x
        got = step()
        return [got[name].numpy() for name in got]

    assert_same(summed("cpu"), summed("cuda"), f"{shape}")


@pytest.mark.parametrize(
    "m, n, k",
    [
        (1, 1, 1),
        (3, 5, 7),
        (64, 64, 64),
        (65, 130, 300),
        (33, 40, 1025),
        (200, 129, 513),
        (1500, 1600, 700),
        (8, 8, 5000),
    ],
)
@pytest.mark.parametrize("flip", [False, True])
def test_products(m, n, k, flip, make_rng):
    rng = make_rng(9)
    a = rng.standard_normal((k, m) if flip else (m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if flip else (k, n)).astype(np.float32)
    results = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("gemm")
        va, vb = g.input("a", a.shape), g.input("b", b.shape)
        if flip:
            va, vb = aicf.permute(va, (1, 0)), aicf.permute(vb, (1, 0))
        g.output("c", aicf.matmul(va, vb))
        results.append([g.compile(device=device)(a=a, b=b)["c"].numpy()])
    assert_same(*results, f"{m} {n} {k}")
