"""What each function makes of NaN, infinities and zeros of either sign: the decisions listed in
docs/accuracy.md, beside PyTorch's where they differ."""

import math

import aicf
import numpy as np
import pytest
from conftest import run_modes

INF, NAN = math.inf, math.nan
BOTH = pytest.mark.parametrize("dtype", ["float32", "float64"])


def results(build, feed, dtype, device, **options):
    """The result, and the gradients of its sum."""

    def graph(g, **values):
        operands = [aicf.cast(v, dtype) for v in values.values()]
        y = build(*operands)
        grads = g.backward(y if y.ndim == 0 else aicf.sum(y), operands)
        return {"y": y, **{f"d{i}": grads[v] for i, v in enumerate(operands)}}

    return run_modes(graph, {k: np.asarray(v, np.float64) for k, v in feed.items()}, device,
                     **options)  # fmt: skip


def assert_same(got, want, what, zero_sign=True, near=0.0):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        same |= np.abs(got - want) <= near * np.abs(want)
    if zero_sign:
        same &= np.isnan(got) | (want != 0) | (np.signbit(got) == np.signbit(want))
    assert same.all(), f"{what}: {got}, need {want}"


# function: x, its result, its derivative
POINTS = {
    "relu": (aicf.relu, [NAN, INF, -INF, 0.0, -0.0], [NAN, INF, 0, 0, 0], [1, 1, 0, 0, 0]),
    "sign": (aicf.sign, [NAN, INF, -INF, 0.0, -0.0], [NAN, 1, -1, 0.0, -0.0], [0] * 5),
    "abs": (aicf.abs, [NAN, INF, -INF, 0.0, -0.0], [NAN, INF, INF, 0, 0], [NAN, 1, -1, 0, 0]),
    "elu": (aicf.elu, [NAN, INF, -INF, 0.0, -0.0], [NAN, INF, -1, 0.0, -0.0], [NAN, 1, 0, 1, 1]),
    "leaky_relu": (
        lambda x: aicf.leaky_relu(x, 0.25),
        [NAN, INF, -INF, 0.0, -0.0],
        [NAN, INF, -INF, 0.0, -0.0],
        [0.25, 1, 0.25, 0.25, 0.25],
    ),
    "clip": (
        lambda x: aicf.clip(x, -1.0, 1.0),
        [NAN, INF, -INF, -1.0, 1.0],
        [NAN, 1, -1, -1, 1],
        [0, 0, 0, 1, 1],
    ),
    "silu": (aicf.silu, [NAN, INF, -INF, 0.0, -0.0], [NAN, INF, -0.0, 0.0, -0.0],
             [NAN, 1, 0, 0.5, 0.5]),
    "gelu": (aicf.gelu, [NAN, INF, -INF, 0.0, -0.0], [NAN, INF, -0.0, 0.0, -0.0],
             [NAN, 1, 0, 0.5, 0.5]),
    "gelu_tanh": (
        lambda x: aicf.gelu(x, approximate="tanh"),
        [NAN, INF, -INF, 0.0, -0.0],
        [NAN, INF, -0.0, 0.0, -0.0],
        [NAN, 1, 0, 0.5, 0.5],
    ),
    "softplus": (aicf.softplus, [NAN, INF, -INF], [NAN, INF, 0], [NAN, 1, 0]),
    "log1p": (
        aicf.log1p,
        [NAN, INF, -INF, -1.0, -2.0, 0.0, -0.0],
        [NAN, INF, NAN, -INF, NAN, 0.0, -0.0],
        [NAN, 0, -0.0, INF, -1, 1, 1],
    ),
    "expm1": (aicf.expm1, [NAN, INF, -INF, 0.0, -0.0], [NAN, INF, -1, 0.0, -0.0],
              [NAN, INF, 0, 1, 1]),
    "exp2": (aicf.exp2, [NAN, INF, -INF, 3.0], [NAN, INF, 0, 8], [NAN, INF, 0, 8 * math.log(2)]),
    "log2": (aicf.log2, [NAN, INF, -INF, 0.0, -1.0, 8.0], [NAN, INF, NAN, -INF, NAN, 3],
             [NAN, 0, -0.0, INF, -1 / math.log(2), 1 / (8 * math.log(2))]),
    "log10": (aicf.log10, [NAN, INF, -INF, 0.0, -1.0, 1e3], [NAN, INF, NAN, -INF, NAN, 3],
              [NAN, 0, -0.0, INF, -1 / math.log(10), 1e-3 / math.log(10)]),
    "tan": (aicf.tan, [NAN, INF, -INF, 0.0, -0.0], [NAN, NAN, NAN, 0.0, -0.0],
            [NAN, NAN, NAN, 1, 1]),
    "asin": (aicf.asin, [NAN, INF, 1.5, 0.0, -0.0, 1.0, -1.0],
             [NAN, NAN, NAN, 0.0, -0.0, math.pi / 2, -math.pi / 2],
             [NAN, NAN, NAN, 1, 1, INF, INF]),
    "acos": (aicf.acos, [NAN, INF, 1.5, 0.0, 1.0, -1.0],
             [NAN, NAN, NAN, math.pi / 2, 0, math.pi], [NAN, NAN, NAN, -1, -INF, -INF]),
    "atan": (aicf.atan, [NAN, INF, -INF, 0.0, -0.0, 1.0],
             [NAN, math.pi / 2, -math.pi / 2, 0.0, -0.0, math.pi / 4], [NAN, 0, 0, 1, 1, 0.5]),
    "sinh": (aicf.sinh, [NAN, INF, -INF, 0.0, -0.0], [NAN, INF, -INF, 0.0, -0.0],
             [NAN, INF, INF, 1, 1]),
    "cosh": (aicf.cosh, [NAN, INF, -INF, 0.0], [NAN, INF, INF, 1], [NAN, INF, -INF, 0]),
    "asinh": (aicf.asinh, [NAN, INF, -INF, 0.0, -0.0], [NAN, INF, -INF, 0.0, -0.0],
              [NAN, 0, 0, 1, 1]),
    "acosh": (aicf.acosh, [NAN, INF, 0.5, -INF, 1.0], [NAN, INF, NAN, NAN, 0],
              [NAN, 0, NAN, NAN, INF]),
    "atanh": (aicf.atanh, [NAN, INF, 1.0, -1.0, 0.0, -0.0, 1.5],
              [NAN, NAN, INF, -INF, 0.0, -0.0, NAN], [NAN, -0.0, INF, INF, 1, 1, -0.8]),
    "sigmoid": (aicf.sigmoid, [NAN, INF, -INF], [NAN, 1, 0], [NAN, 0, 0]),
    "tanh": (aicf.tanh, [NAN, INF, -INF, -0.0], [NAN, 1, -1, -0.0], [NAN, 0, 0, 1]),
    "exp": (aicf.exp, [NAN, INF, -INF], [NAN, INF, 0], [NAN, INF, 0]),
    "log": (aicf.log, [NAN, INF, -INF, 0.0, -0.0], [NAN, INF, NAN, -INF, -INF],
            [NAN, 0, -0.0, INF, -INF]),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", POINTS)
def test_points(name, dtype, device):
    build, x, y, dx = POINTS[name]
    got = results(build, {"x": x}, dtype, device)
    near = 3 * np.finfo(dtype).eps if name in aicf.elementary.__all__ else 0.0
    assert_same(got["y"], y, name, near=near)
    if name.startswith("gelu") and dtype == "float32":  # at 0 the polynomial is one number off
        got["d0"] = np.where(np.array(x) == 0, np.round(got["d0"], 6), got["d0"])
    assert_same(got["d0"], dx, f"{name}'s derivative", zero_sign=False, near=near)


@BOTH
@pytest.mark.parametrize("name", ["atan2", "hypot", "fmod", "remainder", "floor_divide"])
def test_pairs(name, dtype, device):
    """As NumPy, zeros too."""
    points = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 7.0, -7.0, 2.5, -2.5, 1e30, -1e-30]
    a, b = (array.ravel().astype(dtype) for array in np.meshgrid(points, points))
    with np.errstate(all="ignore"):
        want = getattr(np, "arctan2" if name == "atan2" else name)(a, b)
    got = run_modes(lambda g, a, b: {"y": getattr(aicf, name)(a, b)}, {"a": a, "b": b}, device)
    near = np.finfo(dtype).eps if name in ("atan2", "hypot") else 0.0
    assert_same(got["y"], want, name, near=near)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8", "int16"])
def test_whole_division(dtype, device):
    """As Python; by 0 it is 0, and the least by -1 wraps as NumPy's."""
    limits = np.iinfo(dtype)
    points = [limits.min, limits.max, 0, 1, 2, 7, 100, *((-1, -2, -7) if limits.min else ())]
    a, b = (array.ravel().astype(dtype) for array in np.meshgrid(points, points))

    def build(g, a, b):
        return {
            "//": a // b,
            "%": a % b,
            "fmod": aicf.fmod(a, b),
            "7": 7 // b,
            "both": divmod(a, 7)[1],
        }

    got = run_modes(build, {"a": a, "b": b}, device)
    with np.errstate(all="ignore"):
        want = {"//": a // b, "%": a % b, "fmod": np.fmod(a, b), "7": 7 // b, "both": a % 7}
    for name, array in want.items():
        array = np.where(b == 0, 0, array) if name != "both" else array
        np.testing.assert_array_equal(got[name], array.astype(dtype), err_msg=name)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8", "int16", "bool"])
def test_bits(dtype, device):
    """As NumPy; what is shifted by more places than there are is gone."""
    limits = np.iinfo(dtype) if dtype != "bool" else np.iinfo("uint8")
    points = [limits.min, limits.max, 0, 1, 2, 7, 31, 63, 100, *((-1, -7) if limits.min else ())]
    a, b = (array.ravel().astype(dtype) for array in np.meshgrid(points, points))

    def build(g, a, b):
        shifts = {} if dtype == "bool" else {"<<": a << b, ">>": a >> b, "2<<": 2 << b}
        return {
            "&": a & b,
            "|": a | b,
            "^": a ^ b,
            "~": ~a,
            "&1": a & (dtype == "bool" or 1),
        } | shifts

    got = run_modes(build, {"a": a, "b": b}, device)
    want = {"&": a & b, "|": a | b, "^": a ^ b, "~": ~a, "&1": a & np.array(1, dtype)}
    if dtype != "bool":
        bits = 8 * a.itemsize
        some = (b >= 0) & (b.astype(np.float64) < bits)
        by = np.where(some, b, 0).astype(dtype)
        want["<<"] = np.where(some, a << by, 0)
        want[">>"] = np.where(some, a >> by, np.where(a < 0, -1, 0))
        want["2<<"] = np.where(some, np.array(2, dtype) << by, 0)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array.astype(dtype), err_msg=name)


@BOTH
def test_huber(dtype, device):
    """At infinite distances the derivative is its limit, +-delta."""
    d = np.array([INF, -INF, NAN, 0.0, 0.5, -2.0, 3e38])
    for delta in (1.0, 0.5):
        got = results(
            lambda y, t, _d=delta: aicf.huber_loss(y, t, _d) * 7.0,
            {"y": d, "t": np.zeros(7)},
            dtype,
            device,
        )
        assert np.isnan(got["y"])
        slope = np.clip(d, -delta, delta)
        assert_same(got["d0"], slope, "slope", zero_sign=False)
        assert_same(got["d1"], -slope, "slope", zero_sign=False)
    for y, t, loss, slope in (
        (INF, 0.0, INF, 1.0),
        (0.0, INF, INF, -1.0),
        (INF, INF, NAN, NAN),
        (-INF, 3e38, INF, -1.0),
        (3.0, 0.0, 2.5, 1.0),
        (-0.5, 0.0, 0.125, -0.5),
    ):
        got = results(aicf.huber_loss, {"y": [y], "t": [t]}, dtype, device)
        assert_same(got["y"], loss, f"huber({y}, {t})")
        assert_same(got["d0"], [slope], f"huber'({y}, {t})")
        assert_same(got["d1"], [-slope], f"huber'({y}, {t})")


@BOTH
def test_binary_cross_entropy(dtype, device):
    """At x = +-inf: the limits, where PyTorch has NaN for what is surely right."""
    loss = aicf.binary_cross_entropy_with_logits
    for x, t, y, dx, dt in (
        (INF, 1.0, 0.0, 0.0, 0.0),
        (-INF, 0.0, 0.0, 0.0, 0.0),
        (INF, 0.0, INF, 1.0, -INF),
        (-INF, 1.0, INF, -1.0, INF),
        (INF, 0.5, INF, 0.5, -INF),
        (-INF, 0.5, INF, -0.5, INF),
        (3e38, 1.0, 0.0, 0.0, -3e38),
        (0.0, 0.25, math.log(2), 0.25, 0.0),
        (NAN, 1.0, NAN, NAN, NAN),
        (1.0, NAN, NAN, NAN, -1.0),
    ):
        got = results(loss, {"x": [x], "t": [t]}, dtype, device)
        what = f"{x}, {t}"
        if math.isfinite(y):
            assert abs(got["y"] - y) <= 1e-7, what
        else:
            assert_same(got["y"], y, what)
        assert_same(got["d0"], [dx], what, zero_sign=False)
        want = np.float32(dt) if dtype == "float32" else dt
        assert_same(got["d1"], [want], what, zero_sign=False)


@BOTH
def test_product_beside_zeros(dtype, device):
    """With one zero its own derivative alone is not 0, with two none."""
    x = np.array([[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, -0.0, 4.0], [INF, 2.0, 0.5]])
    got = results(lambda v: aicf.prod(v, 1), {"x": x}, dtype, device)
    assert_same(got["y"], [24.0, 0.0, -0.0, INF], "prod")
    slope = [[12.0, 8.0, 6.0], [0.0, 8.0, 0.0], [0.0, 0.0, 0.0], [NAN, INF, INF]]
    assert_same(got["d0"], slope, "prod's derivative", zero_sign=False)


@BOTH
@pytest.mark.parametrize(
    "x, slope",
    [
        ([1, 2, 3, 4], [6920, 3412, 2048, 236]),
        ([0, 2, 3, 4], [6920, 12, 8, 6]),
        ([0, 0, 3, 4], [120, 12, 0, 0]),
        ([0, 0, 0, 4], [0, 0, 0, 0]),
    ],
    ids=str,
)
def test_second_derivative_of_a_product_beside_zeros(x, slope, dtype, device):
    """Of the sum of w_i times the derivative by x_i: its own, by x_j, has the other two."""

    def graph(g, x):
        v = aicf.cast(x, dtype)
        first = g.backward(aicf.prod(v), [v])[v]
        loss = aicf.sum(first * g.constant(np.array([1.0, 10.0, 100.0, 1000.0], dtype)))
        return {"d": g.backward(loss, [v])[v]}

    got = run_modes(graph, {"x": np.array(x, np.float64)}, device)
    want = [
        sum(
            w * math.prod(x[k] for k in range(4) if k not in (i, j))
            for i, w in enumerate((1, 10, 100, 1000))
            if i != j
        )
        for j in range(4)
    ]
    assert [float(f"{v:.5g}") for v in want] == slope
    np.testing.assert_allclose(np.asarray(got["d"], np.float64), want, rtol=1e-6)


@BOTH
def test_variance_of_a_constant(dtype, device):
    """Exactly 0, also where the sum overflows, with a gradient of 0."""
    top = float(np.finfo(dtype).max)
    for value in (0.1, 3e38, -3e38, top, -top, 1e-40, 0.0):
        for n in (2, 3, 7, 600):
            for axis, shape in ((1, (3, n)), (0, (n, 3))):
                got = results(
                    lambda x, _a=axis: aicf.var(x, _a), {"x": np.full(shape, value)}, dtype, device
                )
                assert_same(got["y"], np.zeros(3), f"var of {n} x {value}", zero_sign=False)
                assert_same(got["d0"], np.zeros(shape), f"var' of {n} x {value}", zero_sign=False)


@BOTH
def test_variance_and_logsumexp_of_infinities(dtype, device):
    for x in ([INF, 1.0, 2.0], [-INF, 1.0, 2.0], [INF, INF, INF], [INF, -INF, 0.0]):
        got = results(lambda x: aicf.var(x), {"x": x}, dtype, device)
        assert np.isnan(got["y"]) and np.isnan(got["d0"]).all()
    got = results(lambda x: aicf.logsumexp(x), {"x": [-INF, -INF]}, dtype, device)
    assert got["y"] == -INF and np.isnan(got["d0"]).all()


def test_norms_whose_squares_overflow(device):
    """As in PyTorch's float32."""
    far, top = [1e20, -1e20, 0.0, 0.0], [3e38] * 4
    for norm in (aicf.layer_norm, aicf.rms_norm):
        got = results(lambda x, _n=norm: _n(x, 4), {"x": [far]}, "float32", device)
        assert not got["y"].any()
    assert np.isnan(
        results(lambda x: aicf.layer_norm(x, 4), {"x": [top]}, "float32", device)["y"]
    ).all()
    assert not results(lambda x: aicf.rms_norm(x, 4), {"x": [top]}, "float32", device)["y"].any()


SHAPES = [((4, 5), 1), ((4, 5), 0), ((4, 5), -1), ((2, 3, 4), (-1, 0)), ((2, 3, 4), (0, 2)),
          ((7,), 0), ((3, 1), 1), ((3, 0), 1), ((0, 3), 1), ((0, 3), 0), ((), None)]  # fmt: skip


@pytest.mark.parametrize("shape, axis", SHAPES)
def test_variance_of_any_shape(shape, axis, device, rng):
    x = rng.standard_normal(shape)
    for correction in (0, 1):
        for keepdims in (False, True):
            got = results(
                lambda x, _c=correction, _k=keepdims: aicf.var(x, axis, _c, _k), {"x": x},
                "float64", device,
            )["y"]  # fmt: skip
            with np.errstate(all="ignore"):
                count = x.size if axis is None else np.prod([x.shape[a] for a in np.ravel(axis)])
                centred = x - x.sum(axis, keepdims=True) / np.float64(count)
                want = (centred**2).sum(axis, keepdims=keepdims) / np.float64(count - correction)
            want = np.full_like(want, np.nan) if count <= correction else want
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15)


# ---- attention


def attention(q, k, v, mask=None, causal=False):
    """In float64, by the definition; a row with nothing visible is 0."""
    scores = q @ k.T / math.sqrt(q.shape[1])
    hidden = np.zeros(scores.shape, bool)
    if causal:
        hidden |= np.triu(np.ones(scores.shape, bool), 1)
    if mask is not None and mask.dtype == bool:
        hidden |= ~mask
    scores = np.where(hidden, -INF, scores if mask is None or mask.dtype == bool else scores + mask)
    top = scores.max(1, keepdims=True)
    e = np.exp(scores - np.where(top == -INF, 0, top))
    total = e.sum(1, keepdims=True)
    return (e / np.where(total == 0, 1, total)) @ v


def run_attention(arrays, dtype, device, mask=None, causal=False):
    def build(q, k, v):
        of = None
        if mask is not None:
            kind = "bool" if mask.dtype == bool else dtype
            of = q.graph.constant(mask.tolist(), kind)
        return aicf.scaled_dot_product_attention(q, k, v, mask=of, causal=causal)

    return results(build, arrays, dtype, device)


@BOTH
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("columns", [5, 40, 130, 600])
def test_attention_to_nothing(columns, kind, dtype, device, make_rng):
    """A row that a mask hides whole is 0 and takes no gradient; the others do not notice it."""
    rng = make_rng(columns)
    arrays = {"q": rng.standard_normal((7, 4)), "k": rng.standard_normal((columns, 4)),
              "v": rng.standard_normal((columns, 3))}  # fmt: skip
    mask = rng.random((7, columns)) < 0.7
    mask[2] = mask[6] = False
    mask[0] = True
    given = mask if kind == "bool" else np.where(mask, 0.5, -INF)
    got = run_attention(arrays, dtype, device, given)
    with np.errstate(all="ignore"):
        want = attention(*arrays.values(), given)
    np.testing.assert_allclose(got["y"], want, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)
    for row in (2, 6):
        assert not got["y"][row].any() and not got["d0"][row].any()
    seen = np.delete(np.arange(7), [2, 6])
    part = {**arrays, "q": arrays["q"][seen]}
    alone = run_attention(part, dtype, device, given[seen])
    near = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(got["d0"][seen], alone["d0"], rtol=0, atol=near)
    for key in ("d1", "d2"):
        assert np.isfinite(got[key]).all()
        np.testing.assert_allclose(got[key], alone[key], rtol=0, atol=near)


@BOTH
def test_attention_keeps_what_is_not_a_number_where_it_is_seen(dtype, device, make_rng):
    """A NaN or infinity among the keys spoils the rows that see it, and no hidden one's."""
    rng = make_rng(1)
    arrays = {"q": rng.standard_normal((3, 4)), "k": rng.standard_normal((5, 4)),
              "v": rng.standard_normal((5, 2))}  # fmt: skip
    mask = np.ones((3, 5), bool)
    mask[0, 2] = mask[1] = False
    for value in (NAN, INF):
        spoilt = {**arrays, "k": arrays["k"].copy()}
        spoilt["k"][2, 1] = value
        got = run_attention(spoilt, dtype, device, mask)["y"]
        with np.errstate(all="ignore"):
            clean = attention(*arrays.values(), mask)
        np.testing.assert_allclose(got[0], clean[0], rtol=1e-5)
        assert not got[1].any()
        # +inf times a negative q is a score of -inf, which is no more than unseen
        if value is NAN or spoilt["q"][2, 1] > 0:
            assert np.isnan(got[2]).all()
        causal = run_attention(spoilt, dtype, device, causal=True)["y"]
        assert np.isfinite(causal[:2]).all()
    # A NaN among the values meets a weight of 0, which does not hide it.
    arrays["v"][2, 1] = NAN
    got = run_attention(arrays, dtype, device, mask)["y"]
    assert np.isnan(got[:, 1]).all() and np.isfinite(got[:, 0]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(20, 5), (5, 128), (5, 129), (3, 700), (2, 1500)], ids=str)
def test_masked_softmax_is_softmax_elsewhere(shape, dtype, device, make_rng):
    """Bit for bit, in every row that is not all -inf, NaN and infinities among them."""
    x = make_rng(2).normal(0, 3, shape)
    x[0, 1:] = -INF
    x[1] = -INF
    more = np.concatenate([x, x, x, x])
    more[2, 0], more[len(x) + 1, -1] = NAN, INF

    def build(g, x):
        from aicf.operands import _emit

        x = aicf.cast(x, dtype)
        masked = _emit("Softmax", "softmax", x, masked=True)
        return {"masked": masked, "turned": _emit("Softmax", "softmax", x.T, axis=0, masked=True),
                "plain": aicf.softmax(x)}  # fmt: skip

    for passes in ((), "default"):
        got = run_modes(build, {"x": more}, device, passes=passes)
        got = {k: np.asarray(v, np.float64) for k, v in got.items()}
        empty = (more == -INF).all(1)
        assert empty.sum() == 3
        assert np.isnan(got["plain"][empty]).all()
        assert not got["masked"][empty].any()
        assert_same(got["masked"][~empty], got["plain"][~empty], "masked")
        assert_same(got["turned"].T, got["masked"], "turned")
