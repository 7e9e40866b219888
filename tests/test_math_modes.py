"""compile(math=): float32 products of operands rounded to tf32, float16 or bfloat16."""

import aicf
import numpy as np
import pytest
from compare import assert_bits, product_operand

MODES = ["tf32", "fp16", "bf16"]
SHAPES = [((64, 8), (8, 8)), ((1, 700), (700, 33)), ((130, 300), (300, 65)), ((3, 7, 40), (40, 1))]


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
    """On a CPU the order stays: the bits are those of "fp32" on operands rounded before."""
    a, b = (rng.standard_normal(s).astype(np.float32) * 2.0 ** rng.integers(-30, 9) for s in shapes)
    a, b = a.astype(np.float32), b.astype(np.float32)
    want = product("cpu", product_operand(a, math), product_operand(b, math), "fp32")
    assert_bits(product("cpu", a, b, math), want)
    assert not np.array_equal(want, product("cpu", a, b, "fp32"))
    if a.ndim == 2:
        assert_bits(product("cpu", a, b, math, turned=True), want)


@pytest.mark.parametrize("math", MODES)
def test_every_rounding(device, math, make_rng):
    """A product by 1 shows the rounded operand: ties, subnormals, the largest, infinities, NaN."""
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
    assert (np.isnan(got) == np.isnan(want)).all()
    keep = ~np.isnan(want)
    assert_bits(got[keep], want[keep])
    # The same where tensor cores multiply: by a unit matrix, of numbers only.
    number = np.where(np.isfinite(want), x, 0)[:size].reshape(-1, 64)
    want = product_operand(number, math) + np.float32(0)
    assert_bits(product(device, number, np.eye(64, dtype=np.float32), math), want)


@pytest.mark.parametrize("math", MODES)
def test_training(device, math):
    """A step in each mode repeats its bits, with passes or without, and stays near "fp32"."""
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
        assert 0 < np.abs(v - ends[math][name]).max() < 0.05, name
