"""Products on the GPU: f32 has the CPU's bits in every tiling, 16 bits the accuracy of f32 sums."""

import re

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import product_operand
from test_cuda_bits import assert_same

pytestmark = pytest.mark.gpu

SIZES = [
    (64, 64, 64),
    (128, 256, 512),
    (65, 130, 300),
    (33, 40, 1025),
    (200, 129, 513),
    (8, 8, 5000),
    (64, 1024, 2048),
    (512, 16, 4096),
    (1, 900, 777),
]
# More tiles than a GPU holds blocks, whole and ragged.
LARGE = [(2048, 2304, 320), (1999, 2051, 331), (1024, 1024, 1024)]
# Around the tiles of the kernels in chains, and the depth of them, 8.
TILED = [(128, 128, 256), (132, 260, 520), (127, 129, 293), (65, 70, 1031), (256, 96, 767)]
LAYOUTS = ["plain", "a_turned", "b_turned", "both_turned", "cut", "stepped", "batch", "spread"]
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}
HALVES = ["float16", "bfloat16"]
MODES = ["tf32", "fp16", "bf16"]


def placed(layout, which, shape):
    """The shape of what is stored for one operand, and the view of it that is multiplied."""
    rows, cols = shape
    if layout in (f"{which}_turned", "both_turned"):
        return (cols, rows), lambda v: v.T if isinstance(v, np.ndarray) else aicf.permute(v, (1, 0))
    if layout == "cut":  # begins at no multiple of 16 bytes
        return (rows + 3, cols + 5), lambda v: v[2 : rows + 2, 1 : cols + 1]
    if layout == "stepped":
        return (rows, 2 * cols), lambda v: v[:, ::2]
    if layout == "batch":
        return (3, rows, cols), lambda v: v
    if layout == "spread":  # one b for the whole batch
        return ((2, rows, cols) if which == "a" else shape), lambda v: v
    return shape, lambda v: v


def built(sizes, layout, dtype, draw, device, math="fp32", kernel=None):
    """The step y = a b over operands from draw(shape), by that kernel if one is named; what it
    takes, and what NumPy multiplies."""
    m, n, k = sizes
    g, arrays, values, seen = aicf.Graph("gemm"), {}, [], []
    for which, shape in (("a", (m, k)), ("b", (k, n))):
        stored, view = placed(layout, which, shape)
        arrays[which] = draw(stored).astype(np.float32)
        v = g.input(which, stored)
        values.append(view(v if dtype == "float32" else aicf.cast(v, dtype)))
        seen.append(view(arrays[which]))
    y = aicf.matmul(*values)
    g.output("y", y if dtype == "float32" else aicf.cast(y, "float32"))
    choice = {}
    if kernel:
        ((signature, _),) = _core.cuda_candidates(g._core, _core.pass_names(), math=math).items()
        choice[signature] = kernel
    return g.compile(device=device, math=math, candidates=choice), arrays, seen


def kernel_of(step):
    (name,) = [launch.kernel for launch in step.trace if launch.op == "gemm"]
    return name


def check_float32(sizes, layout, rng):
    results, draw = [], rng.standard_normal
    for device in ("cpu", "cuda"):
        step, arrays, _ = built(sizes, layout, "float32", draw, device)
        if not results:
            first = arrays
        results.append([step(**first)["y"].numpy()])
    assert_same(*results, f"{sizes} {layout} by {kernel_of(step)}")


def check_half(sizes, layout, dtype, rng, math="fp32"):
    step, arrays, _ = built(sizes, layout, dtype, rng.standard_normal, "cuda", math)
    given = arrays
    work = np.prod(sizes) * {"batch": 3, "spread": 2}.get(layout, 1)
    rounds = math != "tf32" or work >= 1 << 22  # smaller ones stay as they are
    kind = dtype if math == "fp32" else math
    if rounds:
        arrays = {name: product_operand(x, kind) for name, x in arrays.items()}
    a, b = (
        placed(layout, which, shape)[1](arrays[which]).astype(np.float64)
        for which, shape in (("a", (sizes[0], sizes[2])), ("b", (sizes[2], sizes[1])))
    )
    got = step(**given)["y"].numpy().astype(np.float64)
    want = a @ b
    # Each sum in float errs by less than an ulp of the terms seen so far; then it is rounded once.
    bound = sizes[2] * 2.0**-23 * (np.abs(a) @ np.abs(b))
    bound += (np.abs(want) + bound) * ROUNDING[dtype] + SMALLEST[dtype]
    worst = (np.abs(got - want) / bound).max()
    assert worst <= 1, f"{sizes} {layout} {dtype} {math} by {kernel_of(step)}: {worst} of the bound"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_float32(sizes, layout, make_rng):
    check_float32(sizes, layout, make_rng(1))


@pytest.mark.parametrize("layout", ["plain", "both_turned", "cut"])
@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_large_float32(sizes, layout, make_rng):
    check_float32(sizes, layout, make_rng(2))


def tilings(graph):
    """The choices of candidates that run a graph's one product by each kernel that tiles it."""
    ((signature, names),) = _core.cuda_candidates(graph._core, _core.pass_names()).items()
    return [{signature: name} for name in names if re.match(r"\d+x\d+", name)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", TILED, ids=str)
def test_each_tiling(sizes, layout, dtype, make_rng):
    """Whole tiles, some rows, columns and terms more or fewer, of one chunk, several and parts of
    them, with what follows the product."""
    m, n, k = sizes
    rng = make_rng(9)
    g, arrays, values = aicf.Graph("gemm"), {}, []
    for which, shape in (("a", (m, k)), ("b", (k, n))):
        stored, view = placed(layout, which, shape)
        arrays[which] = rng.standard_normal(stored).astype(dtype)
        values.append(view(g.input(which, stored, dtype)))
    y = aicf.matmul(*values)
    arrays["rest"] = rng.standard_normal(y.shape).astype(dtype)
    g.output("y", aicf.relu(y + g.input("rest", y.shape, dtype)))
    want = g.compile(device="cpu")(**arrays)["y"].numpy()
    choices = tilings(g)
    assert len(choices) >= (3 if dtype == "float32" else 1) + (k > 256)
    for choice in choices:
        got = g.compile(device="cuda", candidates=choice)(**arrays)["y"].numpy()
        assert_same(want, got, f"{sizes} {layout} {dtype} by {choice}")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_half(sizes, layout, dtype, make_rng):
    check_half(sizes, layout, dtype, make_rng(3))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layout", ["plain", "both_turned", "cut"])
@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_large_half(sizes, layout, dtype, make_rng):
    check_half(sizes, layout, dtype, make_rng(4))


@pytest.mark.parametrize("math", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_modes(sizes, layout, math, make_rng):
    check_half(sizes, layout, "float32", make_rng(7), math)


@pytest.mark.parametrize("math", MODES)
@pytest.mark.parametrize("layout", ["plain", "both_turned", "cut"])
@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_large_modes(sizes, layout, math, make_rng):
    check_half(sizes, layout, "float32", make_rng(8), math)


@pytest.mark.parametrize("cuts", [7, 8, 9, 15, 16, 17, 31, 65])
@pytest.mark.parametrize(("rows", "layout"), [(1, "b_turned"), (4, "b_turned"), (3, "plain")])
def test_few_rows_add_the_cuts_that_are(rows, layout, cuts, make_rng):
    """Warps take a cut each, in rounds: sums of -0 show one that added what a missing cut left."""
    rng, k, wide = make_rng(10), 256 * cuts, 512 if cuts % 2 else 2144
    a, b = rng.standard_normal((rows, k)), rng.standard_normal((wide, k))
    a[0], b[0] = 0, -1
    a[0, ::256], b[0, ::256] = 1e-30, -1e-30  # the first product of a cut underflows to -0
    b = b if layout == "b_turned" else b.T
    results = []
    for device, kernel in (("cpu", None), ("cuda", "thin")):
        sizes = rows, wide, k
        step, arrays, _ = built(sizes, layout, "float32", np.zeros, device, kernel=kernel)
        given = dict(zip(arrays, (a.astype("f"), b.astype("f")), strict=True))
        results.append([step(**given)["y"].numpy()])
    assert_same(*results, kernel_of(step))
    assert np.signbit(results[0][0][0, 0]) and results[0][0][0, 0] == 0
    assert "thin" in kernel_of(step)


@pytest.mark.parametrize("math", MODES)
@pytest.mark.parametrize("sizes", [(64, 64, 64), (3, 4, 5)], ids=str)
def test_modes_of_special_values(sizes, math, make_rng):
    """Infinities and NaN of every payload go through the rounding of operands."""
    rng = make_rng(9)
    m, n, k = sizes
    specials = np.array([0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7F800001, 0xFFC00000], np.uint32)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    rows = min(m, len(specials))
    a[range(rows), rng.integers(0, k, rows)] = specials.view(np.float32)[:rows]
    step, _, _ = built(sizes, "plain", "float32", rng.standard_normal, "cuda", math)
    got = step(a=a, b=b)["y"].numpy()
    for i, bits in enumerate(specials[:rows]):
        assert (np.isnan(got[i]) if bits & 0x7FFFFF else np.isinf(got[i])).all(), hex(bits)
    assert np.isfinite(got[rows:]).all()


@pytest.mark.parametrize("dtype", ["float32", *HALVES, *MODES])
@pytest.mark.parametrize(
    "sizes",
    [(64, 1024, 2048), pytest.param((2048, 2304, 320), marks=pytest.mark.slow), (33, 40, 1025)],
    ids=str,
)
def test_repeats(sizes, dtype, make_rng):
    dtype, math = ("float32", dtype) if dtype in MODES else (dtype, "fp32")
    step, arrays, _ = built(sizes, "plain", dtype, make_rng(5).standard_normal, "cuda", math)
    first = step(**arrays)["y"].numpy().tobytes()
    for _ in range(100):
        step.replay(3)
        assert step.outputs["y"].numpy().tobytes() == first


@pytest.mark.parametrize("dtype", ["float32", "float64", *HALVES, *MODES])
@pytest.mark.parametrize("layout", ["plain", "a_turned", "b_turned", "cut"])
@pytest.mark.parametrize("sizes", SIZES[1:6], ids=str)
def test_exact_on_integers(sizes, layout, dtype, make_rng):
    """Sums of at most 256 terms of size 1 are exact in every dtype."""
    rng = make_rng(6)

    def draw(shape):
        return rng.integers(-1, 2, shape) * (rng.random(shape) < 0.2)

    dtype, math = ("float32", dtype) if dtype in MODES else (dtype, "fp32")
    step, arrays, (a, b) = built(sizes, layout, dtype, draw, "cuda", math)
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(want).max() <= 256
    np.testing.assert_array_equal(step(**arrays)["y"].numpy(), want)


@pytest.mark.parametrize("dtype", [*HALVES, *MODES])
def test_tensor_cores(dtype):
    """Large products leave the kernel for small ones."""
    dtype, math = ("float32", dtype) if dtype in MODES else (dtype, "fp32")
    g = aicf.Graph("gemm")
    g.output("y", aicf.matmul(g.state("a", (512, 512), dtype), g.state("b", (512, 512), dtype)))
    name = kernel_of(g.compile(device="cuda", math=math))
    assert "small" not in name and (math == "fp32" or math in name)
