"""The orders mma16(c) and mma8(c): what a CPU computes in integers against exact fractions, what
lowering declares, and on a GPU every kernel against the CPU."""

from fractions import Fraction

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits, product_operand

# dtype of the operands, math, and the step: exponent and fraction bits, terms.
STEPS = {
    "bf16": ("bfloat16", "fp32", 8, 7, 16),
    "f16": ("float16", "fp32", 5, 10, 16),
    "tf32": ("float32", "tf32", 8, 10, 8),
}
# And of float32 that is rounded to 16 bits before.
OPERANDS = STEPS | {
    "bf16 of f32": ("float32", "bf16", 8, 7, 16),
    "f16 of f32": ("float32", "fp16", 5, 10, 16),
}


def as_floats(bits, exponent, fraction):
    """Bits of 1 + exponent + fraction as the same numbers in float32."""
    bits = bits.astype(np.uint64)
    if exponent == 8:
        return (bits << (23 - fraction)).astype(np.uint32).view(np.float32)
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def draw(rng, shape, exponent, fraction, kind):
    """Random bits: of all kinds, near 1, subnormal, near the largest, or in pairs that cancel."""
    top, bias = 2**exponent - 1, 2 ** (exponent - 1) - 1
    low, high = {
        "any": (0, top + 1),
        "finite": (0, top),
        "one": (bias - 8, bias + 8),
        "least": (0, 3),
        "small": (bias // 2 - 4, bias // 2 + 4),
        "most": (top - 3, top),
        "cancel": (bias - 3, bias + 3),
    }[kind]
    e = rng.integers(low, high, shape, np.uint32)
    bits = (
        rng.integers(0, 2, shape, np.uint32) << (exponent + fraction)
        | e << fraction
        | rng.integers(0, 2**fraction, shape, np.uint32)
    )
    bits = np.where(rng.random(shape) < 0.06, 0, bits)
    if kind == "cancel":  # the second of two terms is nearly the first's negative
        bits[..., 1::2] = bits[..., ::2] ^ (rng.random(bits[..., ::2].shape) < 0.3)
    return as_floats(bits, exponent, fraction)


def operands(rng, m, n, k, exponent, fraction, kind):
    a = draw(rng, (m, k), exponent, fraction, kind)
    b = draw(rng, (n, k), exponent, fraction, kind)
    if kind == "cancel":
        a[:, 1::2] = -a[:, ::2]
    return a, np.ascontiguousarray(b.T)


def exponent_of(x, least):
    """Of x = significand 2^e: e of a number no less than 2^least, else `least`."""
    e = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    if Fraction(2) ** e > abs(x):
        e -= 1
    return max(e, least)


def cut(x, unit):
    """Toward zero, to a multiple of 2^unit."""
    scaled = abs(x) / Fraction(2) ** unit
    return (1 if x > 0 else -1) * (scaled.numerator // scaled.denominator) * Fraction(2) ** unit


def exact_step(acc, pairs, least):
    """A step by the rule, in fractions. `least`: the exponent of an operand's subnormals."""
    with np.errstate(all="ignore"):
        special = [acc, *(x * y for x, y in pairs if not (np.isfinite(x) and np.isfinite(y)))]
    if any(np.isnan(s) for s in special):
        return np.float32(np.nan)
    signs = {np.sign(s) for s in special if np.isinf(s)}
    if signs:
        return np.float32(signs.pop() * np.inf if len(signs) == 1 else np.nan)
    terms = [(Fraction(float(acc)), exponent_of(Fraction(float(acc)), -126))] if acc else []
    for x, y in pairs:
        if x and y:
            x, y = Fraction(float(x)), Fraction(float(y))
            terms.append((x * y, exponent_of(x, least) + exponent_of(y, least)))
    unit = max([e for _, e in terms] + [-133]) - 25
    total = sum((cut(x, unit) for x, _ in terms), Fraction(0))
    if total == 0:
        return np.float32(0)
    e = exponent_of(total, -126)
    if e > 127:
        return np.float32(np.inf if total > 0 else -np.inf)
    total = cut(total, e - 23)
    return np.float32(float(total)) if total else np.float32(0)


def call(a, b, name, order):
    """A product of a CPU whose operands need no rounding, so that its sums are seen in float32."""
    y = np.empty((a.shape[0], b.shape[1]), np.float32)
    math = {"bf16": "bf16", "f16": "fp16", "tf32": "tf32"}[name.removesuffix(" of f32")]
    aicf.op_call("gemm", [a, b], [y], {"math": math, "order": order})
    return y


KINDS = ["any", "finite", "one", "least", "small", "most", "cancel"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STEPS)
def test_steps_in_integers(name, kind, make_rng):
    """Two steps in a row, so that the first makes the second's accumulator."""
    _, _, exponent, fraction, terms = STEPS[name]
    rng = make_rng(11)
    a, b = operands(rng, 12, 10, 2 * terms, exponent, fraction, kind)
    least = 2 - 2 ** (exponent - 1)
    got = call(a, b, name, "mma8(64)" if name == "tf32" else "mma16(64)")
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            want = np.float32(0)
            for k in range(0, 2 * terms, terms):
                pairs = list(zip(a[i, k : k + terms], b[k : k + terms, j], strict=True))
                want = exact_step(want, pairs, least)
            if np.isnan(want):
                assert np.isnan(got[i, j]), (i, j, got[i, j])
            else:
                assert_bits(got[i, j : j + 1], np.array([want]), (i, j))


@pytest.mark.parametrize(
    ("terms", "want"),
    [
        ([(1, 1), (2.0**-12, 2.0**-12)], 1.0),  # below the 24 bits of the sum
        ([(1, 1), (2.0**-13, 2.0**-13), (-1, 1)], 0.0),  # below 25 bits behind the largest
        ([(1, 1), (2.0**-12, 2.0**-13), (-1, 1)], 2.0**-25),  # the 25th is kept
        ([(1, 1), (-(2.0**-12), 2.0**-13)], 1 - 2.0**-24),  # toward zero, not to the nearest
        ([(2.0**127, 2)], np.inf),
        ([(2.0**127, 2), (-(2.0**127), 1.5)], 2.0**126),  # more than an f32 inside a step
        ([(2.0**-75, 2.0**-75)], 0.0),
        ([(2.0**-75, 2.0**-74), (2.0**-75, 2.0**-74)], 2.0**-148),
        ([(2.0**-76, -(2.0**-76))], 0.0),  # not -0
        ([(np.inf, 0)], np.nan),
        ([(np.inf, 1), (np.inf, -1)], np.nan),
        ([(-np.inf, 1), (2.0**127, 2)], -np.inf),
    ],
)
def test_hard_values(terms, want):
    a, b = np.zeros((1, 16), np.float32), np.zeros((16, 1), np.float32)
    for p, (x, y) in enumerate(terms):
        a[0, 3 * p], b[3 * p, 0] = x, y
    got = call(a, b, "bf16", "mma16(64)")
    assert_bits(got[0], np.array([want], np.float32)) if want == want else np.isnan(got).all()


def test_cuts(make_rng):
    """The results of cuts are added in float32, the last step is filled with zeros."""
    a, b = operands(make_rng(12), 9, 33, 300, 8, 7, "one")
    parts = [call(a[:, k : k + 128], b[k : k + 128], "bf16", "mma16(4096)") for k in (0, 128, 256)]
    assert_bits(call(a, b, "bf16", "mma16(128)"), (parts[0] + parts[1]) + parts[2])
    assert not np.array_equal(call(a, b, "bf16", "mma16(64)"), call(a, b, "bf16", "mma16(128)"))


def test_by_name(rng):
    """A CPU keeps chains unless asked; asked, small products still do."""
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((256, 96), (96, 256)))
    g = aicf.Graph("product")
    g.output("y", aicf.matmul(g.input("a", a.shape), g.input("b", b.shape)))
    for math in ("tf32", "bf16", "fp16"):
        plain, asked = (
            g.compile(device="cpu", math=math, tensor_cores=cores)(a=a, b=b)["y"].numpy()
            for cores in (None, "sm_90")
        )
        a_as, b_as = product_operand(a, math), product_operand(b, math)
        assert not np.array_equal(plain, asked)
        order = "mma8(128)" if math == "tf32" else "mma16(128)"
        name = {"tf32": "tf32", "bf16": "bf16", "fp16": "f16"}[math]
        assert_bits(asked, call(a_as, b_as, name, order))
        np.testing.assert_allclose(asked, plain, atol=1e-4)
    with pytest.raises(aicf.GraphError, match=r'tensor_cores is "sm_80"|need "sm_90"'):
        g.compile(device="cpu", tensor_cores="sm_80")
    y = np.empty((256, 256), np.float32)
    for order, error in [
        ("mma16(100)", "a multiple of 64"),
        ("mma16()", "need one of chain"),
        ("mma8(64)", r"need mma16\(c\)"),
        ("mma16.sm80(64)", "the cpu does not compute"),
        ("mma16.sm130(64)", "the cpu does not compute"),
        ("mma16.sm0(64)", r"need one of chain.*mma16\.smN\(c\)"),
        ("mma16.sm(64)", "need one of chain"),
        ("mma16.sm80(64)0", "need one of chain"),
    ]:
        with pytest.raises(aicf.Error, match=error):
            aicf.op_call("gemm", [a, b], [y], {"math": "bf16", "order": order})
    with pytest.raises(aicf.DTypeError, match="need 16-bit operands"):
        aicf.op_call("gemm", [a, b], [y], {"order": "mma16(64)"})


SHAPES = [
    (64, 64, 64),
    (128, 512, 784),
    (512, 512, 512),
    (1024, 1024, 1024),
    (4096, 768, 768),
    (768, 3072, 16384),
    (8192, 8192, 8192),
    (1, 4096, 4096),
    (8, 8, 100_000),
]


def declared(m, n, k, dtype="bfloat16", processors=132, arch="sm_90a", math="fp32"):
    g = aicf.Graph("product")
    g.output("y", aicf.matmul(g.input("a", (m, k), dtype), g.input("b", (k, n), dtype)))
    (signature,) = _core.cuda_candidates(
        g._core, _core.pass_names(), processors=processors, arch=arch, math=math
    )
    return next(text for text in signature.split('"') if "(" in text and text[0] in "mc")


@pytest.mark.skipif(not hasattr(_core, "cuda_info"), reason="no CUDA backend in this build")
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_what_is_declared(sizes):
    """By shape and family alone: neither the number of processors nor a candidate has a say."""
    orders = {declared(*sizes, processors=p) for p in (1, 4, 108, 132, 144)}
    assert len(orders) == 1, orders
    (order,) = orders
    assert order.startswith("mma16(")
    c = int(order[6:-1])
    assert c % 64 == 0 and 128 <= c <= 8192
    assert declared(*sizes, arch="sm_80") == order.replace("mma16", "mma16.sm80")
    if sizes == (64, 64, 64):  # of tf32 too small
        return
    assert declared(*sizes, "float32", math="tf32").startswith("mma8(")
    # Of a family that is not known yet too: mma.sync is an instruction of every later one.
    assert declared(*sizes, arch="sm_130a") == order.replace("mma16", "mma16.sm130")
    assert declared(*sizes, "float32", arch="sm_130a", math="tf32").startswith("mma8.sm130(")


# ---- on a GPU -----------------------------------------------------------------------------------

gpu = pytest.mark.gpu


def built(a_shape, b_shape, name, layout="plain"):
    """y = a b over 16-bit storage, a or b stored transposed."""
    dtype = OPERANDS[name][0]
    g = aicf.Graph("product")
    values = []
    for which, shape in (("a", a_shape), ("b", b_shape)):
        turned = layout in (f"{which}_turned", "both_turned")
        v = aicf.cast(g.input(which, shape[::-1] if turned else shape), dtype)
        values.append(aicf.permute(v, (1, 0)) if turned else v)
    g.output("y", aicf.cast(aicf.matmul(*values), "float32"))
    return g


def fed(a, b, layout):
    return {
        which: np.ascontiguousarray(x.T) if layout in (f"{which}_turned", "both_turned") else x
        for which, x in (("a", a), ("b", b))
    }


def same_numbers(got, want, what):
    assert (np.isnan(got) == np.isnan(want)).all(), what
    keep = ~np.isnan(want)
    assert_bits(got[keep], want[keep], what)


@gpu
@pytest.mark.hopper
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERANDS)
def test_random_steps_on_a_gpu(name, kind, make_rng):
    """2^20 sums of two to four steps, as f32 leaves the unit, against the integers."""
    dtype, math, exponent, fraction, _ = OPERANDS[name]
    a, b = operands(make_rng(13), 1024, 1024, 32, exponent, fraction, kind)
    g = aicf.Graph("product")
    g.output("y", aicf.matmul(g.input("a", a.shape), g.input("b", b.shape)))
    mode = {"bfloat16": "bf16", "float16": "fp16", "float32": math}[dtype]
    got, want = (
        g.compile(device=device, math=mode, tensor_cores="sm_90")(a=a, b=b)["y"].numpy()
        for device in ("cuda", "cpu")
    )
    same_numbers(got, want, (name, kind))


@gpu
@pytest.mark.slow  # of an emulated GPU
@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize(
    ("sizes", "layout"),
    [
        ((520, 776, 1000), "plain"),
        ((520, 776, 1000), "a_turned"),
        ((520, 776, 1000), "b_turned"),
        ((520, 776, 1000), "both_turned"),
        ((1024, 1024, 1024), "b_turned"),
        ((384, 512, 8192), "a_turned"),
        ((2056, 3080, 256), "both_turned"),  # several tiles a block
        ((768, 3080, 2056), "b_turned"),  # parts in several rounds
    ],
    ids=str,
)
def test_all_candidates(sizes, name, layout, make_rng):
    """Every kernel has the bits of the first, and sampled elements those of the integers."""
    m, n, k = sizes
    dtype, math, *_ = OPERANDS[name]
    rng = make_rng(14)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    g, feed = built((m, k), (k, n), name, layout), fed(a, b, layout)
    ((signature, names),) = _core.cuda_candidates(g._core, _core.pass_names(), math=math).items()
    assert sum(one.startswith("wgmma_") for one in names) >= 6, names
    order = next(text for text in signature.split('"') if text.startswith("mma"))
    first = None
    for one in names:
        step = g.compile(device="cuda", math=math, candidates={signature: one})
        got = step(**feed)["y"].numpy()
        first = got if first is None else first
        assert_bits(got, first, one)
        for _ in range(20):
            step.replay()
            assert step.outputs["y"].numpy().tobytes() == got.tobytes(), one
    mode = math if dtype == "float32" else dtype
    rows, cols = rng.choice(m, 24, replace=False), rng.choice(n, 24, replace=False)
    x, y = product_operand(a, mode)[rows], product_operand(b, mode)[:, cols]
    want = call(np.ascontiguousarray(x), np.ascontiguousarray(y), name, order)
    want = want if dtype == "float32" else product_operand(want, mode)
    assert_bits(first[np.ix_(rows, cols)], want, order)


@gpu
@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize(
    ("sizes", "layout"),
    [
        ((128, 96, 400), "b_turned"),  # cuts, of which the last one is short
        ((72, 70, 260), "plain"),  # rows, columns and terms that fill no tile
        ((90, 130, 201), "both_turned"),  # and lines that begin anywhere
        ((171, 48, 128), "a_turned"),
        ((362, 10, 300), "b_turned"),  # the logits of a network
        ((10, 840, 128), "a_turned"),  # and the gradient of their weights
        ((66, 64, 1024), "plain"),  # many cuts, whose sums take room from rings
        ((520, 72, 256), "b_turned"),  # one cut, all of which is on its way at once
        ((133, 100, 396), "b_turned"),  # lines that the copy engine reads of float32 alone
        ((133, 100, 396), "plain"),
    ],
    ids=str,
)
def test_small_tiles(sizes, layout, name, make_rng):
    """Tiles that cuts of k share have the bits of a CPU, with what follows the product."""
    m, n, k = sizes
    dtype, math, *_ = OPERANDS[name]
    rng = make_rng(19)
    a, b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n), (n,)))
    g, feed = aicf.Graph("product"), fed(a, b, layout) | {"bias": bias}
    given = {one: aicf.cast(g.input(one, x.shape), dtype) for one, x in feed.items()}
    x, w = (given[one].T if given[one].shape != s else given[one]
            for one, s in (("a", (m, k)), ("b", (k, n))))  # fmt: skip
    y = aicf.matmul(x, w)
    g.output("y", aicf.cast(y, "float32"))
    g.output("z", aicf.cast(aicf.relu(y + given["bias"]), "float32"))
    ((signature, names),) = _core.cuda_candidates(g._core, _core.pass_names(), math=math).items()
    tried = [one for one in names if one.startswith("near_")]
    assert len(tried) >= 6, names
    by_boxes = math == "tf32" and m * n * k >= 1 << 22 and "a_turned" not in layout
    assert not by_boxes or any("_boxes" in one for one in tried), names
    want = g.compile(device="cpu", math=math, tensor_cores="sm_90")(**feed)
    for one in tried:
        got = g.compile(device="cuda", math=math, candidates={signature: one})(**feed)
        for output in ("y", "z"):
            assert_bits(got[output].numpy(), want[output].numpy(), (one, output))


@gpu
@pytest.mark.hopper
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("several", ["both", "left", "right"])
def test_small_tiles_of_batches(several, dtype, across, make_rng):
    """What a block reads of batches, or of one matrix for all, by the copy engine at once; of
    float32, in tf32, lines across k, too."""
    rng = make_rng(21)
    left, right = ((3,) if several in ("both", side) else () for side in ("left", "right"))
    a = rng.standard_normal((*left, 96, 400)).astype(np.float32)
    b = rng.standard_normal((*right, *((400, 120) if across else (120, 400)))).astype(np.float32)
    g = aicf.Graph("batches")
    x, w = (aicf.cast(g.input(k, v.shape), dtype) for k, v in (("a", a), ("b", b)))
    y = aicf.matmul(x, w if across else aicf.permute(w, (0, 2, 1) if right else (1, 0)))
    g.output("y", aicf.cast(y, "float32"))
    math = "tf32" if dtype == "float32" else "fp32"
    ((signature, names),) = _core.cuda_candidates(g._core, _core.pass_names(), math=math).items()
    tried = [one for one in names if "_boxes" in one]
    assert bool(tried) == (dtype == "float32" or not across), names
    want = g.compile(device="cpu", math=math, tensor_cores="sm_90")(a=a, b=b)["y"].numpy()
    for one in tried:
        step = g.compile(device="cuda", math=math, candidates={signature: one})
        assert_bits(step(a=a, b=b)["y"].numpy(), want, one)


@gpu
@pytest.mark.hopper
@pytest.mark.parametrize("math", ["tf32", "fp16"])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("k", [97, 100, 104])
def test_copies_of_lines_that_begin_anywhere(k, step, math, make_rng):
    """What wgmma reads as copies: lines of both operands along k that are no whole 16 bytes apart,
    of as many terms as fill no 32 bytes."""
    rng = make_rng(31)
    rows, columns = 260, 256
    feed = {
        name: rng.standard_normal((2, size, step * k + 1)).astype(np.float32)
        for name, size in (("a", rows), ("b", columns))
    }
    g = aicf.Graph("copies")
    places = slice(1, step * k + 1, step)
    a, b = (g.input(name, value.shape)[:, :, places] for name, value in feed.items())
    g.output("y", aicf.matmul(a, aicf.permute(b, (0, 2, 1))))
    ((signature, names),) = _core.cuda_candidates(g._core, _core.pass_names(), math=math).items()
    one = "wgmma_64x64_copies"
    assert one in names
    want = g.compile(device="cpu", math=math, tensor_cores="sm_90")(**feed)["y"].numpy()
    got = g.compile(device="cuda", math=math, candidates={signature: one})(**feed)["y"].numpy()
    assert_bits(got, want, one)


@gpu
@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("layout", ["plain", "a_turned", "b_turned", "both_turned"])
@pytest.mark.parametrize(
    "sizes",
    [(5, 1000, 2048), (1, 1030, 1040), (1, 2134, 2080), (616, 8, 4096), (3, 333, 1072)]
    + [(3, 12704, 160)],  # warps of 16 rows, 16, 32, 16, 16 and, many, 16
    ids=str,
)
def test_few_rows(sizes, name, layout, make_rng):
    """By rings of warps, k or the other axis side by side, aligned or not."""
    m, n, k = sizes
    dtype, math, *_ = OPERANDS[name]
    rng = make_rng(17)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    g, feed = built((m, k), (k, n), name, layout), fed(a, b, layout)
    ((signature, names),) = _core.cuda_candidates(g._core, _core.pass_names(), math=math).items()
    if math == "tf32" and m * n * k < 1 << 22:  # stays as it is, so in float32's order
        assert '"chain(' in signature, signature
        want = g.compile(device="cpu", math="fp32")(**feed)["y"].numpy()
        for one in names:
            step = g.compile(device="cuda", math=math, candidates={signature: one})
            assert_bits(step(**feed)["y"].numpy(), want, one)
        return
    turned = layout in ("both_turned", "b_turned" if m < n else "a_turned")
    along_k = turned if m < n else not turned
    assert ("thin" in names) == (along_k if name == "tf32" else dtype != "float32"), names
    order = next(text for text in signature.split('"') if text.startswith("mma"))
    mode = math if dtype == "float32" else dtype
    x, y = product_operand(a, mode), product_operand(b, mode)
    rows, cols = (np.arange(size)[:: 1 + size // 16] for size in (m, n))
    want = call(np.ascontiguousarray(x[rows]), np.ascontiguousarray(y[:, cols]), name, order)
    for one in names:
        step = g.compile(device="cuda", math=math, candidates={signature: one})
        got = step(**feed)["y"].numpy()
        as_stored = want if dtype == "float32" else product_operand(want, dtype)
        assert_bits(got[np.ix_(rows, cols)], as_stored, (one, order))


@gpu
@pytest.mark.parametrize("math", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("layout", ["plain", "a_turned", "b_turned", "both_turned"])
def test_words_are_rounded_as_declared(layout, math, make_rng):
    """Any bits of float32, whichever kernel: ties go to even."""
    size = 256
    rng = make_rng(15)
    bits = rng.integers(0, 2**32, (size, size), np.uint32)
    ties = rng.random(bits.shape) < 0.5
    low = {"tf32": 12, "bf16": 15, "fp16": 12}[math]
    bits = np.where(ties, bits >> (low + 1) << (low + 1) | 1 << low, bits).astype(np.uint32)
    # A row with a number that is none, or becomes infinite, would be NaN as a whole.
    bits = np.where((bits & 0x7F000000) == 0x7F000000, bits ^ 0x20000000, bits)
    if math == "fp16":  # of its exponents, its subnormals' and some below
        bits = np.where(bits & 0x7F000000, bits & 0x8FFFFFFF | 0x30000000, bits)
    bits[:4, 0] = 0x7F800001, 0xFFFFFFFF, 0x7F7FF000, 0xFF800000
    a, b = bits.view(np.float32), np.eye(size, dtype=np.float32)
    for x, y in ((a, b), (b, a)):
        g, feed = built(x.shape, y.shape, "tf32", layout), fed(x, y, layout)
        known = _core.cuda_candidates(g._core, _core.pass_names(), math=math)
        ((signature, names),) = known.items()
        assert any(one.startswith("wgmma_") for one in names), names
        want = g.compile(device="cpu", math=math, tensor_cores="sm_90")(**feed)["y"].numpy()
        for one in names:
            step = g.compile(device="cuda", math=math, candidates={signature: one})
            same_numbers(step(**feed)["y"].numpy(), want, one)


@gpu
@pytest.mark.parametrize("name", OPERANDS)
def test_results_at_odd_addresses(name, make_rng):
    """Where the copy engine cannot store them."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here, for the odd addresses")
    dtype, math, *_ = OPERANDS[name]
    m, n, k = 264, 392, 512
    rng = make_rng(16)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    g = aicf.Graph("product")
    values = (aicf.cast(g.input(which, x.shape), dtype) for which, x in (("a", a), ("b", b)))
    g.output("y", aicf.matmul(*values))
    ((signature, names),) = _core.cuda_candidates(g._core, _core.pass_names(), math=math).items()
    for one in names:
        step = g.compile(device="cuda", math=math, candidates={signature: one})
        want = step(a=a, b=b)["y"].numpy()
        room = torch.zeros(m * n + 1, dtype=getattr(torch, dtype), device="cuda")
        step.bind(y=room[1:].view(m, n))
        step(a=a, b=b)
        step.synchronize()
        assert_bits(room[1:].view(m, n).float().cpu().numpy(), want.astype(np.float32), one)


def behind(g, y, feed, kind):
    """What follows a product y: several results, operands of each reach, f32 beside 16 bits."""
    m, n = y.shape

    def given(name, shape, dtype=y.dtype):
        value = g.input(name, shape, "float32")
        feed.setdefault(name, np.random.default_rng(len(name)).standard_normal(shape).astype("f"))
        return value if dtype == "float32" else aicf.cast(value, dtype)

    if kind == "forward":
        before = y + given("bias", (n,))
        return [before, aicf.gelu(before)]
    if kind == "backward":
        x = given("before", (m, n))
        return [g.backward(aicf.gelu(x, "tanh"), [x], grad=y)[x]]
    scaled = y * given("a row's", (m, 1))
    return [scaled, aicf.cast(scaled, "float32") + given("residual", (m, n), "float32")]


@gpu
@pytest.mark.parametrize("kind", ["forward", "backward", "residual"])
@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("sizes", [(520, 776, 1000), (1032, 384, 8192), (300, 514, 256)], ids=str)
def test_what_follows_a_product(sizes, name, kind, make_rng):
    """By each kernel the bits of the product alone with a CPU behind it, at odd addresses too."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here, for the odd addresses")
    m, n, k = sizes
    dtype, math, *_ = OPERANDS[name]
    rng = make_rng(18)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    product = built((m, k), (k, n), name, "b_turned").compile(device="cuda", math=math)
    y, feed = product(a=a, b=np.ascontiguousarray(b.T))["y"].numpy(), {}
    g = aicf.Graph("after")
    for i, value in enumerate(behind(g, aicf.cast(g.input("y", y.shape), dtype), feed, kind)):
        g.output(f"y{i}", value)
    want = {key: v.numpy() for key, v in g.compile(device="cpu")(y=y, **feed).items()}
    feed |= {"a": a, "b": np.ascontiguousarray(b.T)}
    g = aicf.Graph("fused")
    left, right = (aicf.cast(g.input(x, feed[x].shape), dtype) for x in "ab")
    results = behind(g, aicf.matmul(left, aicf.permute(right, (1, 0))), dict(feed), kind)
    for i, value in enumerate(results):
        g.output(f"y{i}", value)
    known = _core.cuda_candidates(g._core, _core.pass_names(), math=math)
    ((signature, names),) = known.items()
    assert signature.startswith("region") and len(names) >= 6, (signature, names)
    for one in names:
        step = g.compile(device="cuda", math=math, candidates={signature: one})
        for odd in (False, True):
            if odd:
                rooms = {
                    f"y{i}": torch.zeros(m * n + 1, dtype=getattr(torch, v.dtype), device="cuda")
                    for i, v in enumerate(results)
                }
                step.bind(**{y: room[1:].view(m, n) for y, room in rooms.items()})
            found = step(**feed)
            for y, values in want.items():
                same_numbers(found[y].numpy().astype("f"), values.astype("f"), (one, y, odd))
