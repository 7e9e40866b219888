"""Array functions of other dtypes than floats, and what they refuse; the rest is in layer_cases."""

import math

import aicf
import numpy as np
import pytest
from conftest import run_modes

INF, NAN = np.inf, np.nan
HARD = [INF, -INF, NAN, 0.0, -0.0, 1.0, -3.5, 6e4]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", ["isinf", "isfinite", "ceil", "trunc"])
def test_hard_values(name, dtype, device):
    x = np.array(HARD, dtype)
    got = run_modes(lambda g, x: {"y": getattr(aicf, name)(x)}, {"x": x}, device)["y"]
    want = getattr(np, name)(x)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got.astype(float)), np.signbit(want.astype(float)))


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "uint8", "int8", "int16", "float32"])
@pytest.mark.parametrize("shape", [(3, 5), (4, 0), (0, 4), (1, 1)], ids=str)
@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all(name, shape, dtype, device, rng):
    x = (rng.uniform(size=shape) < {"any": 0.2, "all": 0.8}[name]).astype(dtype)
    for axis, keepdims in [(None, False), (0, True), (1, False)]:
        got = run_modes(
            lambda g, x, _a=axis, _k=keepdims: {"y": getattr(aicf, name)(x, _a, _k)},
            {"x": x}, device,
        )["y"]  # fmt: skip
        want = getattr(np, name)(x, axis=axis, keepdims=keepdims)
        assert got.dtype == bool
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "dtype", ["bool", "int32", "int64", "uint8", "int8", "int16", "float32", "float64"]
)
def test_argmin(dtype, device, rng):
    x = rng.integers(0, 2 if dtype == "bool" else 9, (6, 7)).astype(dtype)
    if dtype.startswith("int"):
        x[2, 3], x[4, 1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    for axis in (None, 0, 1):
        got = run_modes(lambda g, x, _a=axis: {"y": aicf.argmin(x, _a)}, {"x": x}, device)["y"]
        np.testing.assert_array_equal(got, x.argmin(axis))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8", "int16"])
def test_functions_of_integers(dtype, device):
    """Those that keep the dtype or make bools are NumPy's."""
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.max, 0, 1, 7, 100, 3], dtype)
    y = np.roll(x, 3)

    def results(m, x, y):
        names = ("floor", "round", "ceil", "trunc", "isnan", "isinf", "isfinite", "logical_not")
        made = {name: getattr(m, name)(x) for name in names}
        for name in ("logical_and", "logical_or", "logical_xor"):
            made[name] = getattr(m, name)(x, y)
        return made | {"clip": m.clip(x, 1, 60), "above": m.clip(x, 2, None)}

    got = run_modes(lambda g, x, y: results(aicf, x, y), {"x": x, "y": y}, device)
    for name, want in results(np, x, y).items():
        assert got[name].dtype == want.dtype, name
        np.testing.assert_array_equal(got[name], want, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
def test_counts_and_constants(dtype, device, rng):
    x = rng.integers(-1, 2, (3, 4)).astype(dtype)

    def build(g, x):
        ys = {"count": aicf.count_nonzero(x, 1), "all": aicf.count_nonzero(x)}
        ys |= {"one": aicf.ones_like(x), "zero": aicf.zeros_like(x, "int64")}
        return (
            ys if dtype == "bool" else {**ys, "sign": aicf.signbit(x), "full": aicf.full_like(x, 3)}
        )

    got = run_modes(build, {"x": x}, device)
    want = {"count": np.count_nonzero(x, 1), "all": np.count_nonzero(x), "one": np.ones_like(x)}
    want |= {"zero": np.zeros((3, 4), int)}
    if dtype != "bool":
        want |= {"full": np.full_like(x, 3), "sign": np.signbit(x) if dtype[0] == "f" else x < 0}
    for name, array in want.items():
        assert got[name].dtype == np.asarray(array).dtype, name
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def test_signs_of_zeros_and_sums_of_exponentials(device):
    a = np.array([0.0, -0.0, INF, -INF, NAN, 1.0, -2.0, 1e4, -1e4], np.float32)
    x, y = (part.ravel() for part in np.meshgrid(a, a))

    def build(g, x, y):
        return {"sign": aicf.signbit(x), "copy": aicf.copysign(x, y), "log": aicf.logaddexp(x, y)}

    got = run_modes(build, {"x": x, "y": y}, device)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(got["sign"][number], np.signbit(x[number]))
    both = number & ~np.isnan(y)
    want = np.copysign(x, y)
    np.testing.assert_array_equal(got["copy"], want)
    np.testing.assert_array_equal(np.signbit(got["copy"][both]), np.signbit(want[both]))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got["log"], np.logaddexp(x, y), rtol=1e-6)


def test_logic_of_floats(device):
    x = np.array([0.0, -0.0, NAN, INF, 2.0, -1e-40], np.float32)
    got = run_modes(
        lambda g, x: {"not": aicf.logical_not(x), "and": aicf.logical_and(x, True)},
        {"x": x},
        device,
    )
    np.testing.assert_array_equal(got["not"], np.logical_not(x))
    np.testing.assert_array_equal(got["and"], np.logical_and(x, True))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_one_hot(dtype, device):
    labels = np.array([[0, 4, 2], [-1, 5, 3]])

    def build(g, i):
        return {"y": aicf.one_hot(i, 5, dtype)}

    got = run_modes(build, {"i": labels}, device, checks="off")["y"]
    np.testing.assert_array_equal(got, (labels[..., None] == np.arange(5)).astype(dtype))


@pytest.mark.parametrize("labels", ["int32", "int64", "uint8", "int8", "int16"])
def test_one_hot_of_labels_of_each_int_dtype(labels, device):
    i = np.array([0, 44, np.iinfo(labels).max & 255], labels)
    got = run_modes(lambda g, i: {"y": aicf.one_hot(i, 301)}, {"i": i}, device)["y"]
    np.testing.assert_array_equal(got, (i[:, None] == np.arange(301)).astype("float32"))


@pytest.mark.parametrize("k", [-(2**63), 2**63 - 1])
def test_diagonals_far_outside(k):
    x = np.ones((3, 4), "float32")
    got = run_modes(lambda g, x: {"l": aicf.tril(x, k), "u": aicf.triu(x, k)}, {"x": x})
    assert got["l"].all() == (k > 0) and got["u"].all() == (k < 0)
    assert got["l"].any() == (k > 0) and got["u"].any() == (k < 0)


def test_an_einsum_that_raises_leaves_its_graphs_as_they_were():
    g, h = aicf.Graph("g"), aicf.Graph("h")
    x, i, other = g.input("x", (4, 3)), g.input("i", (3, 4), "int64"), h.input("x", (4, 3))
    before = g.to_json(), h.to_json()
    for values in ((x, i), (other, x, other)):
        with pytest.raises(aicf.Error):
            aicf.einsum(",".join(["ij", "jk", "ij"][: len(values)]) + "->ki", *values)
    with pytest.raises(aicf.GraphError, match="einsum: .* belongs to graph"):
        aicf.einsum("ij,ij", x, other)
    assert (g.to_json(), h.to_json()) == before


@pytest.mark.parametrize("dtype", ["int16", "bool", "uint8"])
def test_triangles(dtype, device, rng):
    x = rng.integers(0, 2, (2, 4, 3)).astype(dtype)
    got = run_modes(lambda g, x: {"l": aicf.tril(x, -1), "u": aicf.triu(x)}, {"x": x}, device)
    np.testing.assert_array_equal(got["l"], np.tril(x, -1))
    np.testing.assert_array_equal(got["u"], np.triu(x))


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("eps", [1e-12, 1e-30])
def test_normalize_at_zero(p, eps, device):
    """The gradient of a row of zeros is dy / eps, and a zero beside others spoils nothing."""
    x = np.array([[0, 0, 0], [1, 0, 2]], "float32")
    dy = np.array([[1, -2, 3], [1, 2, 3]], "float32")

    def build(g, x, dy):
        y = aicf.normalize(x, p, eps=eps)
        return {"y": y, "dx": g.backward(y, [x], grad=dy)[x]}

    got = run_modes(build, {"x": x, "dy": dy}, device)
    np.testing.assert_array_equal(got["y"][0], 0)
    np.testing.assert_allclose(got["dx"][0], dy[0] / np.float32(eps), rtol=1e-6)
    assert np.isfinite(got["dx"]).all()


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 2), (2, 4, 0)], ids=str)
def test_norms_of_no_elements(shape, device):
    x = np.ones(shape, "float32")

    def build(g, x):
        ys = {"y": aicf.instance_norm(x), "z": aicf.group_norm(x, 1)}
        return {**ys, "dx": g.backward(aicf.sum(ys["y"] + ys["z"]), [x])[x]}

    got = run_modes(build, {"x": x}, device)
    assert {name: array.shape for name, array in got.items()} == dict.fromkeys(got, shape)


def test_split_of_no_elements(device):
    """Parts of none, as many as asked for, as in PyTorch."""
    x = np.zeros((0, 3), "f")
    got = run_modes(lambda g, x: dict(zip("abc", aicf.split(x, 3), strict=True)), {"x": x}, device)
    assert [got[name].shape for name in "abc"] == [(0, 3)] * 3


REFUSED = {
    "isinf: x is .*; need a float dtype": lambda x, i: aicf.isinf(i > 0),
    "clip: a limit is 0.50*, .*; need a whole number that int64": lambda x, i: aicf.clip(i, 0.5),
    "input: complex64 numbers are not offered; need their real": lambda x, i: x.graph.input(
        "z", (2,), "complex64"
    ),
    "constant: got complex64": lambda x, i: x.graph.constant(np.ones(2, "complex64")),
    "one_hot: classes is -1": lambda x, i: aicf.one_hot(i, -1),
    r"tile: reps is \[-1\]": lambda x, i: aicf.tile(x, -1),
    r"flip: axes \[0, -2\] of .*; need distinct axes": lambda x, i: aicf.flip(x, (0, -2)),
    "repeat: repeats is -2": lambda x, i: aicf.repeat(x, -2),
    "tril: x is .*; need": lambda x, i: aicf.tril(i),
    "one_hot: labels are .*; need an int dtype": lambda x, i: aicf.one_hot(x, 3),
    "tensordot: axes are .*; need axes of a, each once": lambda x, i: aicf.tensordot(
        x, x, ([0, -2], [0, 1])
    ),
    "tensordot: axes are .*; need axes of b, each once": lambda x, i: aicf.tensordot(
        x, x, ([0, 1], [0, 0])
    ),
    "tensordot: axes is 3 for .*; need 0 to 2": lambda x, i: aicf.tensordot(x, x, 3),
    "tensordot: an axis of .* has 4 elements": lambda x, i: aicf.tensordot(x, x, 1),
    "einsum: .* has 2 operands, 1 are given": lambda x, i: aicf.einsum("ij,jk", x),
    r"einsum: operand 1 is 3 \(int\); need a Value": lambda x, i: aicf.einsum("ij,", x, 3),
    r"einsum: operand 0 is None \(NoneType\)": lambda x, i: aicf.einsum("", None),
    "einsum: axes 0 and 1 of .*; need equal sizes": lambda x, i: aicf.einsum("ii", x),
    'einsum: "ii" of': lambda x, i: aicf.einsum("ij->ii", x),
    'einsum: "..j" of': lambda x, i: aicf.einsum("..j->j", x),
    'einsum: "...ijk" of .*; need a letter an axis': lambda x, i: aicf.einsum("...ijk->j", x),
    "gradient: 3 spacings for 2 axes": lambda x, i: aicf.gradient(x, [1.0, 2.0, 3.0]),
    "gradient: 2 coordinates for 4 points": lambda x, i: aicf.gradient(x, [[0.0, 1.0]], 0),
    "gradient: spacing is 0.0; need finite": lambda x, i: aicf.gradient(x, 0.0),
    "gradient: edge_order is 3": lambda x, i: aicf.gradient(x, edge_order=3),
    r"gradient: x is .*f32\[4, 1\].*; need 2 points along axis 1": lambda x, i: aicf.gradient(
        x[:, :1]
    ),
    "cov: aweights are .*; need one an observation": lambda x, i: aicf.cov(x, aweights=i),
    "diag_embed: both axes are 1": lambda x, i: aicf.diag_embed(x, 0, 1, -2),
    "roll: shift is .*; need as many of both": lambda x, i: aicf.roll(x, (1, 2, 3), (0, 1)),
    r"moveaxis: source is \[0, 0\], .*; need as many": lambda x, i: aicf.moveaxis(
        x, (0, 0), (0, 1)
    ),
    'einsum: "i" of .*; need a letter an axis': lambda x, i: aicf.einsum("i->i", x),
    'einsum: "k" of .*; need letters of': lambda x, i: aicf.einsum("ij->k", x),
    "diagonal: x is .*; need .*N, M": lambda x, i: aicf.diagonal(i),
    "vector_norm: ord is nan": lambda x, i: aicf.vector_norm(x, ord=math.nan),
    "diff: n is -1": lambda x, i: aicf.diff(x, -1),
    "broadcast_arrays: .*; need shapes that": lambda x, i: aicf.broadcast_arrays([x, i]),
    "meshgrid: .*; need rank 1": lambda x, i: aicf.meshgrid([x, i]),
    "cross: a is .*; need 3 elements along axis 0": lambda x, i: aicf.cross(x, x, 0),
    "moveaxis: axis 2": lambda x, i: aicf.moveaxis(x, 2, 0),
    "conv1d: x is .*weight is .*; need rank 3 each": lambda x, i: aicf.conv1d(
        aicf.reshape(x, (1, 4, 3)), x
    ),
    "conv_transpose1d: x is .*weight is .*; need rank 3 each": lambda x, i: aicf.conv_transpose1d(
        aicf.reshape(x, (1, 4, 3)), x
    ),
    "interpolate: size or scale_factor has nan": lambda x, i: aicf.interpolate(
        aicf.reshape(x, (1, 4, 3)), scale_factor=math.nan
    ),
    "interpolate: size or scale_factor has -inf": lambda x, i: aicf.interpolate(
        aicf.reshape(x, (1, 4, 3)), scale_factor=-math.inf
    ),
    "interpolate: align_corners is True, mode is": lambda x, i: aicf.interpolate(
        aicf.reshape(x, (1, 4, 3)), 2, align_corners=True
    ),
    "interpolate: size is 2, scale_factor is 2.0": lambda x, i: aicf.interpolate(
        aicf.reshape(x, (1, 4, 3)), 2, 2.0
    ),
    "glu: axis -1 of": lambda x, i: aicf.glu(x),
    "prelu: weight is": lambda x, i: aicf.prelu(x, x),
    "hardtanh: min is 2": lambda x, i: aicf.hardtanh(x, 2.0, 1.0),
    'l1_loss: reduction is "?.avg': lambda x, i: aicf.l1_loss(x, x, reduction="avg"),
    r"l1_loss: shapes differ: .*f32\[4, 3\].*f32\[4\]": lambda x, i: aicf.l1_loss(x, x[:, 0]),
    "huber_loss: shapes differ": lambda x, i: aicf.huber_loss(x[:, :1], x[:, 0]),
    "cross_entropy: labels are": lambda x, i: aicf.cross_entropy(x, i, reduction="sum"),
    r"nll_loss: labels are .*i64\[4, 1\].*; need \[4\]": lambda x, i: aicf.nll_loss(
        x, aicf.argmax(x, 1, keepdims=True)
    ),
    r"index_fill: value is .*; need rank 0": lambda x, i: aicf.index_fill(x, 0, i, x),
    "cross_entropy: label_smoothing is 2": lambda x, i: aicf.cross_entropy(x, i, label_smoothing=2),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(text):
    g = aicf.Graph("g")
    x, i = g.input("x", (4, 3)), g.input("i", (5,), "int64")
    with pytest.raises(aicf.Error, match=text):
        REFUSED[text](x, i)


def test_closeness_and_membership(device):
    x = np.array([np.nan, 1.5, -0.0, np.inf, -np.inf, 2.0])
    y = np.array([np.nan, 1.5 + 1e-6, 0.0, np.inf, np.inf, 2.1])
    g = aicf.Graph("close")
    a, b = g.input("x", x.shape, "float64"), g.input("y", y.shape, "float64")
    for equal_nan in (False, True):
        g.output(f"close{equal_nan}", aicf.isclose(a, b, equal_nan=equal_nan))
    g.output("isin", aicf.isin(a, b[1:5]))
    g.output("identity", aicf.matrix_power(aicf.outer(a, b), 0))
    got = g.compile(device=device)(x=x, y=y)
    for equal_nan in (False, True):
        want = np.isclose(x, y, equal_nan=equal_nan)
        np.testing.assert_array_equal(got[f"close{equal_nan}"].numpy(), want)
    np.testing.assert_array_equal(got["isin"].numpy(), np.isin(x, y[1:5]))
    np.testing.assert_array_equal(got["identity"].numpy(), np.eye(6))


def test_sinc_near_zero(device):
    """Its derivatives, too: −π²x/3 and −π²/3 there."""
    x = np.array([0.0, 1e-12, -3e-7, 5e-3, -7e-3])
    g = aicf.Graph("sinc")
    v = g.input("x", x.shape, "float64")
    y = aicf.sinc(v)
    first = aicf.grad(aicf.sum(y), v)
    for name, value in (("y", y), ("first", first), ("second", aicf.grad(aicf.sum(first), v))):
        g.output(name, value)
    got = g.compile(device=device)(x=x)
    p = np.pi * x
    terms = (
        ("y", 1 - p**2 / 6 + p**4 / 120),
        ("first", np.pi * (-p / 3 + p**3 / 30 - p**5 / 840)),
        ("second", np.pi**2 * (-1 / 3 + p**2 / 10 - p**4 / 168)),
    )
    for name, want in terms:
        np.testing.assert_allclose(got[name].numpy(), want, rtol=1e-9, atol=0)
    f = aicf.Graph("finite")
    h = f.input("x", (3,))
    f.output("y", aicf.nan_to_num(h))
    got = f.compile(device=device)(x=np.array([np.nan, np.inf, -np.inf], np.float32))["y"].numpy()
    most = np.finfo(np.float32).max
    np.testing.assert_array_equal(got, np.array([0, most, -most], np.float32))


def test_variance_of_columns_is_refused():
    """PyTorch refuses it, too; of a square y it would be of rows there."""
    g = aicf.Graph("variance")
    y, v = g.input("y", (5, 4)), g.input("v", (4,))
    with pytest.raises(aicf.ShapeError, match=r"variance is .* need its shape, \(5,\) or \(\)"):
        aicf.gaussian_nll_loss(y, y, v)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16", "int64", "uint8", "bool"])
def test_index_fill_of_each_dtype(dtype, device):
    """By a number and by a Value of rank 0."""
    x = np.zeros((2, 3), dtype)

    def build(g, x, v):
        places = g.constant(np.array([2, 0]))
        number = True if dtype == "bool" else 1
        return {
            "number": aicf.index_fill(x, 1, places, number),
            "value": aicf.index_fill(x, 1, places, v),
        }

    got = run_modes(build, {"x": x, "v": np.ones((), dtype)}, device)
    for y in got.values():
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, np.array([[1, 0, 1]] * 2, dtype))


def test_iteration_reads_once_and_needs_an_axis():
    f = aicf.function(lambda x: (x, aicf.sum(x)), device="cpu")
    whole, one = f(np.arange(3, dtype=np.float32))
    rows = iter(whole)
    assert type(rows) is type(iter(np.zeros(3))) and list(rows) == [0.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="0-d"):
        list(one)
