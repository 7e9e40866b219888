"""compile(math=): float32 products of operands rounded to tf32, float16 or bfloat16."""

import aicf
import numpy as np
import pytest
from compare import assert_bits, product_operand

MODES = ["tf32", "fp16", "bf16"]
SHAPES = [((64, 8), (8, 8)), ((1, 700), (700, 33)), ((130, 300), (300, 129)), ((3, 7, 40), (40, 1))]
LARGE = ((130, 300), (300, 129))  # enough multiplications for tensor cores in tf32


def product(device, a, b, math, turned=False, **options):
    g = aicf.Graph("product")
    x = g.input("a", a.shape[::-1] if turned else a.shape)
    y = aicf.matmul(
        aicf.permute(x, tuple(range(x.ndim))[::-1]) if turned else x, g.input("b", b.shape)
    )
    g.output("y", y)
    step = g.compile(device=device, math=math, **options)
    return step(a=np.ascontiguousarray(a.T) if turned else a, b=b)["y"].numpy()


@pytest.mark.parametrize("math", MODES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_operands_are_rounded(shapes, math, rng):
    """On a CPU the order stays: the bits are those of "fp32" on operands rounded before. In tf32
    those of small products are not."""
    a, b = (rng.standard_normal(s).astype(np.float32) * 2.0 ** rng.integers(-30, 9) for s in shapes)
    a, b = a.astype(np.float32), b.astype(np.float32)
    rounded = math != "tf32" or shapes == LARGE
    as_is = product("cpu", a, b, "fp32")
    want = product("cpu", product_operand(a, math), product_operand(b, math), "fp32")
    assert not np.array_equal(want, as_is)
    want = want if rounded else as_is
    assert_bits(product("cpu", a, b, math), want)
    if a.ndim == 2:
        assert_bits(product("cpu", a, b, math, turned=True), want)


@pytest.mark.parametrize("math", MODES)
def test_every_rounding(device, math, make_rng):
    """A product by 1 shows the rounded operand: ties, subnormals, the largest, infinities, NaN; in
    tf32 a large one does."""
    rng = make_rng(2)
    x = np.concatenate([
        rng.integers(0, 2**32, 60_000, np.uint32),
        np.uint32(0x3F800000) + np.arange(0, 2**15, dtype=np.uint32),
        np.arange(0, 2**15, 7, dtype=np.uint32),
        np.array([0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x477FEFFF, 0x477FF000,
                  0x7FFFFFFF, 0x7F800001, 0xFFC00000, 0x80000000], np.uint32),
    ]).view(np.float32)  # fmt: skip
    one, size = np.ones((1, 1), np.float32), len(x) // 64 * 64
    got = product(device, x[:, None], one, math)[:, 0]
    with np.errstate(invalid="ignore"):
        want = product_operand(x, math) + np.float32(0)  # a sum begins at +0
        known = x + np.float32(0) if math == "tf32" else want
    assert (np.isnan(got) == np.isnan(known)).all()
    keep = ~np.isnan(known)
    assert_bits(got[keep], known[keep])
    # The same where tensor cores multiply: by a unit matrix, of numbers only.
    number = np.where(np.isfinite(want), x, 0)[:size].reshape(-1, 64)
    want = product_operand(number, math) + np.float32(0)
    assert_bits(product(device, number, np.eye(64, dtype=np.float32), math), want)


@pytest.mark.parametrize("math", MODES)
def test_training(device, math):
    """A step in each mode repeats its bits, with passes or without, and stays near "fp32"; a small
    one in tf32 has its bits."""
    rng = np.random.default_rng(3)
    x, t = (rng.standard_normal((64, 8)).astype(np.float32) for _ in range(2))
    ends = {}
    for mode, passes in (("fp32", "default"), (math, "default"), (math, ()), (math, "default")):
        g = aicf.Graph("train")
        h = aicf.relu(g.dense("0", g.input("x", (64, 8)), 8))
        loss = aicf.mse_loss(g.dense("1", h, 8), g.input("t", (64, 8)))
        g.minimize(loss, aicf.optim.Adam(lr=1e-2))
        step = g.compile(device=device, math=mode, passes=passes)
        for _ in range(20):
            step(x=x, t=t)
        end = {name: v.numpy() for name, v in step.params.items()}
        for name, v in end.items():
            assert_bits(v, ends.setdefault(mode, end)[name], name)
    for name, v in ends["fp32"].items():
        far = np.abs(v - ends[math][name]).max()
        assert far == 0 if math == "tf32" else 0 < far < 0.05, name


@pytest.mark.parametrize(
    ("shapes", "rounds"),
    [
        (((64, 64), (64, 64)), False),
        (((256, 128), (128, 128)), True),  # 2^22 multiplications
        (((256, 127), (127, 128)), False),
        (((16, 64, 64), (64, 64)), True),  # in all batches
        (((15, 64, 64), (64, 64)), False),
        (((1024, 31), (31, 1024)), False),  # few terms
        (((1024, 32), (32, 8)), True),  # many rows
        (((1023, 32), (32, 8)), False),
        (((7, 4096), (4096, 8)), False),  # few results
    ],
    ids=str,
)
def test_tf32_leaves_small_products_as_they_are(shapes, rounds, rng):
    """By their sizes alone, on every device: where tensor cores gain nothing, all digits count."""
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    g = aicf.Graph("product")
    g.output("y", aicf.matmul(g.input("a", a.shape), g.input("b", b.shape)))
    asked = {None: "chain(", "sm_90": "mma8(" if rounds else "chain("}
    for cores, order in asked.items():
        step = g.compile(device="cpu", math="tf32", tensor_cores=cores)
        (gemm,) = (op for op in step.lowered if op["op"] == "gemm")
        assert gemm["attrs"]["math"] == ("tf32" if rounds else "fp32")
        assert gemm["attrs"]["order"].startswith(order)
    as_is = product("cpu", a, b, "fp32")
    assert np.array_equal(product("cpu", a, b, "tf32"), as_is) == (not rounds)
