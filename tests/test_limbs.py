"""math="fp32x": products of float32 by three bfloat16 of each operand, in the order limbs(64):
against exact fractions, in size of error, in kind where operands are not finite, and on a GPU."""

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits
from tensors import Layout, Tensor
from test_tensor_orders import KINDS, exact_step, fed, operands, same_numbers

ORDER = {"math": "fp32x", "order": "limbs(64)"}
PAIRS = [(2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)]
LEAST = -126  # the exponent of a bfloat16's subnormals
GAINS = 3 << 26  # multiplications from which on products take this order


def call(a, b, attrs=ORDER):
    y = np.empty((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), "f")
    aicf.op_call("gemm", [np.ascontiguousarray(a), np.ascontiguousarray(b)], [y], attrs)
    return y


def nearest(x):
    """To a bfloat16, ties to even, of finite float64: none that is not exact takes part."""
    with np.errstate(over="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 8, -133)
        return np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)


def limbs(x):
    """The three of each number, in float64."""
    with np.errstate(invalid="ignore"):  # of NaN
        x = x.astype(np.float64)
    finite = np.isfinite(x)
    number = np.where(finite, x, 0)
    most = np.ldexp(255.0, 120)
    first = np.clip(nearest(number), -most, most)
    first = np.where((first == 0) & (number != 0), np.copysign(2.0**-133, number), first)
    second = nearest(number - first)
    third = nearest(number - first - second)
    first = np.where(np.isinf(x), np.sign(x), first)
    return first, second, np.where(finite, third, x)


def expected(a, b):
    """A product by the rule of the order, one sum after the other."""
    all_a, all_b = limbs(a), limbs(b)
    k = a.shape[1]
    y = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i, j in np.ndindex(y.shape):
        for begin in range(0, k, 64):
            sum_ = np.float32(0)
            for of_a, of_b in PAIRS:
                for p in range(begin, min(begin + 64, k), 16):
                    end = min(p + 16, begin + 64, k)
                    pairs = zip(all_a[of_a][i, p:end], all_b[of_b][p:end, j], strict=True)
                    sum_ = exact_step(sum_, list(pairs), LEAST)
            with np.errstate(all="ignore"):
                y[i, j] = sum_ if begin == 0 else y[i, j] + sum_
    return y


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_in_fractions(kind, make_rng):
    """Any bits of float32, near 1, subnormal, near the largest, or in pairs that cancel."""
    rng = make_rng(21)
    for k in (16, 80, 134):
        a, b = operands(rng, 3, 3, k, 8, 23, kind)
        same_numbers(call(a, b), expected(a, b), (kind, k))


def test_exponents_far_apart(make_rng):
    rng = make_rng(22)
    a, b = (rng.standard_normal(s) * 2.0 ** rng.integers(-70, 60, s) for s in ((4, 200), (200, 4)))
    a, b = a.astype(np.float32), b.astype(np.float32)
    same_numbers(call(a, b), expected(a, b), "exponents")


def test_a_number_is_its_limbs(make_rng):
    """A product by 1 has all bits of a number from 2^-110 on; below it is off by 2^-134 at most."""
    rng = make_rng(23)
    x = rng.integers(0, 2**32, 1 << 16, np.uint32).view(np.float32)
    x = np.concatenate(
        [x, np.float32([0, 1, 2.0**-110, 3.4028235e38, -3.4028235e38, 1 - 2.0**-24])]
    )
    x = np.where(np.isnan(x), np.float32(0.5), x)[:, None]
    got, one = call(x, np.ones((1, 1), np.float32)), np.abs(x) >= 2.0**-110
    assert_bits(got[one], x[one])
    assert (np.abs(got[~one].astype(np.float64) - x[~one]) <= 2.0**-134).all()


SPECIALS = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1, -1.5, 1 / 3, 1e-3, 2.0**-149,
                     -(2.0**-140), 3e18, -3e18, 2.0**-126], np.float32)  # fmt: skip


def kinds(x):
    return np.select([np.isnan(x), np.isposinf(x), np.isneginf(x)], [3, 1, 2], 0)


def test_infinities_and_nan():
    """What a product by fma makes infinite or NaN is so, each special number by each other."""
    a, b = SPECIALS[:, None], SPECIALS[None, :]
    with np.errstate(all="ignore"):
        assert (kinds(call(a, b)) == kinds(a * b)).all()
    rest = np.random.default_rng(1).standard_normal((len(SPECIALS), 70)).astype(np.float32)
    for at in (0, 15, 63, 64, 69):  # among others, in every piece
        x, y = rest.copy(), rest.T.copy()
        x[:, at], y[at] = SPECIALS, SPECIALS
        assert (kinds(call(x, y)) == kinds(call(x, y, {}))).all(), at


@pytest.mark.parametrize("signs", ["both", "one"])
@pytest.mark.parametrize("k", [64, 500, 4096])
def test_error(k, signs, make_rng):
    """Within the bound of docs/accuracy.md, and no worse than a chain's on the same numbers."""
    rng = make_rng(24)
    a, b = rng.standard_normal((24, k)), rng.standard_normal((k, 24))
    if signs == "one":  # so that what is cut off drifts
        a, b = np.abs(a), np.abs(b)
    a, b = a.astype(np.float32), b.astype(np.float32)
    exact, size = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b) * 2.0**-24
    off, chain = (np.abs(call(a, b, attrs) - exact) / size for attrs in (ORDER, {}))
    assert off.max() <= 48 + -(-k // 64)
    assert off.max() <= 2 * chain.max() and np.sqrt((off**2).mean()) <= 2 * np.sqrt(
        (chain**2).mean()
    )


def test_products_past_the_largest_number():
    """They are not finite either; the small products may have overflowed to the other sign."""
    most = np.float32([3e38, -3e38, 3.4028235e38, 1e30])
    assert not np.isfinite(call(most[:, None], most[None, :])).any()
    ones = np.float32([[1, -1, 0.5]])
    np.testing.assert_array_equal(call(most[:, None], ones), most[:, None] * ones)


def build(m, n, k, batch=()):
    g = aicf.Graph("product")
    g.output("y", aicf.matmul(g.input("a", (*batch, m, k)), g.input("b", (*batch, k, n))))
    return g


def orders(m, n, k, batch=(), arch="sm_90a", processors=132):
    """The math and the order of each product for a device."""
    known = _core.cuda_candidates(
        build(m, n, k, batch)._core, _core.pass_names(), math="fp32x", arch=arch,
        processors=processors,
    )  # fmt: skip
    return {tuple(text for text in signature.split('"')[1::2] if text not in ("order", "math"))
            for signature in known}  # fmt: skip


@pytest.mark.skipif(not hasattr(_core, "cuda_info"), reason="no CUDA backend in this build")
@pytest.mark.parametrize(
    ("sizes", "batch", "limbs"),
    [
        ((512, 512, 768), (), True),
        ((512, 512, 767), (), False),  # below the multiplications that it gains at
        ((64, 49152, 64), (), True),
        ((63, 50100, 64), (), False),
        ((50100, 63, 64), (), False),
        ((1800, 1800, 63), (), False),
        ((256, 256, 64), (48,), True),
        ((256, 256, 63), (49,), False),
        ((128, 128, 64), (192,), False),  # each too small
    ],
)
def test_what_is_declared(sizes, batch, limbs):
    """By the shape and the family alone; what takes fp32's chain is a product in fp32."""
    for processors in (1, 132):
        found = orders(*sizes, batch, processors=processors)
        chains = {("chain(256)", "fp32"), ("chain(128)", "fp32")}
        assert found == {("limbs(64)", "fp32x")} if limbs else found and found <= chains
    for arch in ("sm_80", "sm_100"):
        assert all(math == "fp32" for _, math in orders(*sizes, batch, arch=arch))


def test_refusals():
    a = np.ones((64, 64), np.float32)
    for attrs, error in [
        ({"order": "limbs(64)"}, r'or a math of tensor cores, or "chain\(256\)"'),
        ({"math": "fp32x", "order": "limbs(128)"}, r"order is \"limbs\(128\)\"; need limbs\(64\)"),
        ({"math": "fp32x", "order": "mma16(64)"}, r"need limbs\(64\)"),
        ({"math": "bf16", "order": "limbs(64)"}, r"need mma16\(c\) of a multiple of 64"),
    ]:  # fmt: skip
        with pytest.raises(aicf.Error, match=error):
            call(a, a, attrs)


def test_a_cpu_takes_fp32_unless_asked(make_rng):
    """And asked it takes fp32 for small products."""
    rng = make_rng(25)
    for m, n, k, differs in [(512, 512, 768, True), (96, 65, 300, False)]:
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        g = build(m, n, k)
        plain = g.compile(device="cpu")(a=a, b=b)["y"].numpy()
        assert_bits(g.compile(device="cpu", math="fp32x")(a=a, b=b)["y"].numpy(), plain)
        asked = g.compile(device="cpu", math="fp32x", tensor_cores="sm_90")(a=a, b=b)["y"].numpy()
        assert_bits(asked, call(a, b) if differs else plain)
        assert not differs or not np.array_equal(asked, plain)


def layer(rows, ins, outs):
    """A layer with what comes behind it, and its gradients: products in every layout."""
    g = aicf.Graph("layer")
    x, w, b = g.input("x", (rows, ins)), g.param("w", (outs, ins)), g.param("b", (outs,))
    y = aicf.gelu(aicf.linear(x, w, b))
    loss = aicf.sum(y * g.input("t", (rows, outs)))
    grads = g.backward(loss, [x, w, b])
    for name, value in (("y", y), ("dx", grads[x]), ("dw", grads[w]), ("db", grads[b])):
        g.output(name, value)
    return g


def test_gradients_threads_and_eager(make_rng):
    """The same bits for any number of threads, captured or not, with passes or without."""
    rng = make_rng(26)
    rows, ins, outs = 520, 400, 1000
    assert rows * ins * outs >= GAINS
    x, t = (rng.standard_normal(s).astype(np.float32) for s in ((rows, ins), (rows, outs)))
    before, first = aicf.num_threads(), None
    for threads, options in ((1, {}), (2, {"passes": ()}), (3, {"capture": False})):
        aicf.set_num_threads(threads)
        step = layer(rows, ins, outs).compile(
            device="cpu", math="fp32x", tensor_cores="sm_90", **options
        )
        used = [op["attrs"].get("order") for op in step.plan.ops if "gemm" in op["op"]]
        assert used.count("limbs(64)") == len(used) or not used, used
        found = step.run(x=x, t=t) if options else step(x=x, t=t)
        found = {name: found[name].numpy() for name in ("y", "dx", "dw", "db")}
        first = first or found
        for name, value in found.items():
            assert_bits(value, first[name], (threads, name))
    aicf.set_num_threads(before)


# ---- on a GPU -----------------------------------------------------------------------------------


def gpu(test):
    return pytest.mark.gpu(pytest.mark.hopper(test))


def by_all_kernels(g, feed, output="y"):
    """The name and result of each kernel of the only product."""
    known = _core.cuda_candidates(g._core, _core.pass_names(), math="fp32x")
    ((signature, names),) = known.items()
    assert "limbs(64)" in signature and len(names) == 6, (signature, names)
    for name in names:
        step = g.compile(device="cuda", math="fp32x", candidates={signature: name})
        got = step(**feed)[output].numpy()
        for _ in range(5):
            step.replay()
            assert step.outputs[output].numpy().tobytes() == got.tobytes(), name
        yield name, got


def turned(x):
    return aicf.permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def operands_of(g, a, b, layout):
    """Stored as they are, or turned."""
    values = []
    for which, x in (("a", a), ("b", b)):
        stored = x.swapaxes(-1, -2) if layout in (f"{which}_turned", "both_turned") else x
        v = g.input(which, stored.shape)
        values.append(v if stored is x else turned(v))
    return values


@gpu
@pytest.mark.slow  # of an emulated GPU
@pytest.mark.parametrize("layout", ["plain", "a_turned", "b_turned", "both_turned"])
@pytest.mark.parametrize(
    "sizes", [(520, 776, 504), (200, 130, 7800), (1000, 3020, 67), (65, 4100, 760)], ids=str
)
def test_kernels(sizes, layout, make_rng):
    """Whole tiles and ragged ones, k short of a piece; sampled elements have a CPU's bits."""
    m, n, k = sizes
    rng = make_rng(27)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    g = aicf.Graph("product")
    g.output("y", aicf.matmul(*operands_of(g, a, b, layout)))
    rows, cols = (np.unique(np.r_[np.arange(0, s, 1 + s // 40), s - 1]) for s in (m, n))
    want, first = call(a[rows], b[:, cols]), None
    for name, got in by_all_kernels(g, fed(a, b, layout)):
        assert_bits(got[np.ix_(rows, cols)], want, name)
        first = got if first is None else first
        assert_bits(got, first, name)


@gpu
@pytest.mark.parametrize("axis", range(3), ids=["rows", "columns", "terms"])
def test_sizes_next_to_tiles(axis, make_rng):
    """Rows and columns of tiles and pairs of them, pieces of k, one fewer and one more."""
    rng = make_rng(31)
    edges = [64, 128, 192, 256] if axis < 2 else [32, 48, 64, 128, 512]
    for size in (edge + side for edge in edges for side in (-1, 0, 1) if edge + side >= 32):
        m, n, k = (size if axis == x else int(rng.integers(64, 200)) for x in range(3))
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        given = [Tensor("float32", Layout.c_order(x.shape), "cuda", x) for x in (a, b)]
        y = Tensor("float32", Layout.c_order((m, n)), "cuda")
        aicf.op_call("gemm", [x.give() for x in given], [y.give()], attrs=ORDER)
        assert_bits(y.read(), call(a, b), (m, n, k))


def with_specials(x):
    """Infinities, NaN and what the first limb does not show, in pairs with each other number."""
    x[3, 5], x[7, 9], x[20, 30], x[21, 33] = np.inf, np.nan, 1e-42, 3.4028235e38
    x[40, -1], x[41, :64], x[42, 3] = 2.0**-140, 0, -3.4028235e38
    return x


@gpu
@pytest.mark.parametrize("layout", ["plain", "both_turned"])
def test_special_limbs(layout, make_rng):
    """Of copies that keep their lines, along k and across it, lines of whole fours and others."""
    rng = make_rng(32)
    for m, n, k in [(72, 140, 200), (65, 66, 71)]:
        a, b = (with_specials(rng.standard_normal(s).astype(np.float32)) for s in ((m, k), (k, n)))
        given = []
        for x in (a, b):
            turned = layout != "plain"
            stored = Layout(x.shape, (1, x.shape[0])) if turned else Layout.c_order(x.shape)
            given.append(Tensor("float32", stored, "cuda", x))
        y = Tensor("float32", Layout.c_order((m, n)), "cuda")
        aicf.op_call("gemm", [x.give() for x in given], [y.give()], attrs=ORDER)
        same_numbers(y.read(), call(a, b), (m, n, k))


@gpu
@pytest.mark.slow  # of an emulated GPU
@pytest.mark.parametrize("shared", [False, True])
def test_batches(shared, make_rng):
    """With an operand each, or one for all, and what follows a product."""
    rng = make_rng(28)
    batch, m, n, k = 3, 264, 392, 656
    shapes = (batch, m, k), (k, n) if shared else (batch, k, n)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    g = aicf.Graph("product")
    product = aicf.matmul(g.input("a", a.shape), g.input("b", b.shape))
    if shared:  # else a view folds the batch into the rows
        product = product + g.input("c", (batch, 1, 1))
    g.output("y", product)
    c = rng.standard_normal((batch, 1, 1)).astype(np.float32)
    want = np.stack([call(a[i], b if shared else b[i]) for i in range(batch)])
    want = want + c if shared else want
    for name, got in by_all_kernels(g, {"a": a, "b": b} | ({"c": c} if shared else {})):
        assert_bits(got, want, name)


@gpu
@pytest.mark.slow  # of an emulated GPU
@pytest.mark.parametrize("kind", KINDS)
def test_hard_values_on_a_gpu(kind, make_rng):
    """Any bits, in pairs that cancel, subnormal; infinities and NaN."""
    rng = make_rng(29)
    size, k = 576, 624
    a, b = operands(rng, size, size, k, 8, 23, kind)
    g = build(size, size, k)
    some = slice(0, 96)
    want = call(a[some], b[:, some])
    for name, got in by_all_kernels(g, {"a": a, "b": b}):
        same_numbers(got[some, some], want, (name, kind))


@gpu
@pytest.mark.slow  # of an emulated GPU
def test_gradients_on_a_gpu(make_rng):
    """A layer's step has a CPU's bits, which computes the orders of 9.0."""
    rng = make_rng(30)
    rows, ins, outs = 520, 400, 1000
    feed = {name: rng.standard_normal(s).astype(np.float32)
            for name, s in (("x", (rows, ins)), ("t", (rows, outs)))}  # fmt: skip
    found = [
        {name: value.numpy() for name, value in step(**feed).items()}
        for step in (
            layer(rows, ins, outs).compile(device="cuda", math="fp32x"),
            layer(rows, ins, outs).compile(device="cpu", math="fp32x", tensor_cores="sm_90"),
        )
    ]
    for name, value in found[0].items():
        assert_bits(value, found[1][name], name)
