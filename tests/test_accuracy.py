"""Errors in units in the last place, the bounds of sums and products, indices beyond 2**31."""

import json
import os
import subprocess
import sys
from pathlib import Path

import aicf
import checksums
import exact64
import numpy as np
import pytest
from accuracy import (
    BINARY,
    COLUMNS,
    KEPT64,
    LOSS_LIMITS,
    OPS,
    TAIL,
    every_half,
    loss_errors,
    run,
    some_floats,
    ulp_errors,
    worst,
    worst_pairs,
)
from compare import numpy_dtype
from isas import machine_isas
from tensors import Layout, Tensor

U = 2.0**-24


@pytest.mark.parametrize("name", OPS)
def test_float32(name, device, fresh_seed):
    """Every exponent and sign, other mantissas in each run."""
    with np.errstate(all="ignore"):
        errors, at, tail = worst(name, some_floats(each=256, seed=fresh_seed), "float32", device)
    assert errors <= OPS[name].f32, f"{errors} ULP at {at!r}"
    assert tail <= TAIL, f"relative error {tail} below {OPS[name].low}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", OPS)
def test_every_half(name, dtype, device):
    """All 65,536 inputs."""
    if numpy_dtype(dtype) is None:
        pytest.skip("no bfloat16 here")
    errors, at, tail = worst(name, every_half(dtype), dtype, device)
    assert errors <= max(OPS[name].half, OPS[name].attrs != {}), f"{errors} ULP at {at!r}"


@pytest.mark.parametrize("name", BINARY)
def test_float32_pairs(name, device, fresh_seed):
    errors = worst_pairs(name, device=device, count=2**18, seed=fresh_seed)
    assert errors <= BINARY[name][1], f"{errors} ULP"


FORMS_16 = {"gelu_tanh": 1, "gelu_erf": 1, "gelu_tanh_bwd": 2, "gelu_erf_bwd": 2}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMS_16)
def test_forms_of_16_bits(name, dtype, device, make_rng, fresh_seed):
    """Beside the form of float32, rounded: all inputs, of a derivative with other gradients too."""
    if numpy_dtype(dtype) is None:
        pytest.skip("no bfloat16 here")
    x = every_half(dtype)
    operands = [[x]]
    if FORMS_16[name] == 2:
        dy = make_rng(fresh_seed).normal(size=(8, x.size)).astype(np.float32).astype(x.dtype)
        operands = [[x, np.ones_like(x)], *([x, one] for one in dy)]
    for arrays in operands:
        got = run(name, arrays, dtype, device)
        wide = run(name, [a.astype(np.float32) for a in arrays], "float32", device)
        with np.errstate(all="ignore"):
            errors = ulp_errors(got, wide.astype(x.dtype))
            near = np.abs(got.astype(float) - wide) <= 2.0**-20 * np.abs(arrays[-1].astype(float))
        # Where the terms of a slope cancel, by the larger one.
        far = errors > np.where(near & (FORMS_16[name] == 2), 2**20, 1)
        assert not far.any(), x[far]
        share = np.count_nonzero(errors) / x.size
        assert share <= (0 if (name, dtype) == ("gelu_tanh", "bfloat16") else 3e-3), share


def test_far_from_zero(device, rng):
    """sin and cos of large numbers, where the reduction takes more digits than a float has."""
    x = np.exp(rng.uniform(np.log(1e4), np.log(3.4e38), 200_000)).astype(np.float32)
    for name in ("sin", "cos"):
        want = getattr(np, name)(x.astype(float)).astype(np.float32)
        assert ulp_errors(run(name, [x], "float32", device), want).max() <= 1


ARCS = "expm1 log10 tan asin acos atan sinh cosh asinh acosh atanh".split()


def in_domain(name, x):
    """Where the function is a number."""
    if name in ("sqrt", "log", "log1p", "log2", "log10", "rsqrt"):
        return np.abs(x)
    if name == "acosh":
        return np.fmax(np.abs(x), 1)
    return np.tanh(x) if name in ("asin", "acos", "atanh") else x


def exact_functions():
    """The functions of OPS at 400 bits."""
    mp = pytest.importorskip("mpmath")
    mp.mp.prec = 400

    def sigmoid(x):
        return 1 / (1 + mp.exp(-x))

    scale, cube = 2 * mp.sqrt(2 / mp.pi), mp.mpf(44715) / 1000000
    return mp.mpf, {
        "sqrt": mp.sqrt,
        "exp": mp.exp,
        "log": mp.log,
        "log1p": mp.log1p,
        **{name: getattr(mp, name) for name in ARCS},
        "exp2": lambda x: mp.mpf(2) ** x,
        "log2": lambda x: mp.log(x, 2),
        "rsqrt": lambda x: 1 / mp.sqrt(x),
        "sin": mp.sin,
        "cos": mp.cos,
        "tanh": mp.tanh,
        "erf": mp.erf,
        "sigmoid": sigmoid,
        "silu": lambda x: x * sigmoid(x),
        "softplus": lambda x: mp.log1p(mp.exp(x)),
        "elu": lambda x: x if x > 0 else mp.expm1(x),
        "gelu_erf": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
        "gelu_tanh": lambda x: x * sigmoid(scale * (x + cube * x**3)),
    }


def test_references(make_rng):
    """The float64 references have 40 good bits wherever a float32 can hold the result."""
    mpf, exact = exact_functions()
    rng = make_rng(5)
    signs = rng.choice([-1, 1], 150)
    x = np.concatenate([rng.uniform(-40, 40, 150), signs * np.exp(rng.uniform(-60, 9, 150))])
    for name, function in exact.items():
        at = in_domain(name, x).astype(np.float32).astype(np.float64)
        with np.errstate(all="ignore"):
            found = OPS[name].reference(at)
        for one, got in zip(at, found, strict=True):
            want = function(mpf(one))
            if 2**-149 <= abs(want) < 2**128:
                assert abs(mpf(float(got)) - want) <= abs(want) * mpf(2) ** -40, (name, one)


@pytest.mark.parametrize("column", COLUMNS, ids=str)
@pytest.mark.parametrize("name", LOSS_LIMITS)
def test_losses(name, column, device):
    """Results and gradients, also far from zero and in 16 bits."""
    found = loss_errors(name, *column, device)
    allowed = LOSS_LIMITS[name][COLUMNS.index(column)]
    assert found.value <= allowed[0] and found.gradient <= allowed[1], found


def test_ulp_errors():
    """The measure itself: neighbours, zeros, NaN, across the sign."""
    a = np.array([1, 1, 0.0, -0.0, np.nan, 1, 1e-45, np.inf], np.float32)
    b = np.array([1, 1 + 2**-23, -0.0, -0.0, np.nan, np.nan, -1e-45, 3.4028235e38], np.float32)
    assert ulp_errors(a, b).tolist() == [0, 1, 2**62, 0, 0, 2**62, 2, 1]


# ---- float64


NAMES64 = json.loads(KEPT64.read_text())["ops"]


@pytest.mark.parametrize("name", exact64.OPS)
def test_float64(name, device, make_rng, fresh_seed):
    """2**20 of the inputs that docs/accuracy.md counts, others in each run: errors and bits."""
    sums = NAMES64[name]["sums"].split()
    chunk = int(make_rng(fresh_seed).integers(len(sums)))
    operands = exact64.inputs(name, exact64.SEED, chunk)
    got = exact64.result(name, operands, device)
    if exact64.library():
        error, at = exact64.worst(name, operands, got)
        assert error <= exact64.OPS[name].allowed, f"{error} ULP at {at}"
    assert exact64.bit_sum(got) == sums[chunk], f"chunk {chunk}"


def exact_functions64():
    """The functions of exact64.OPS at 400 bits, of mpmath's numbers."""
    _, exact = exact_functions()
    mp = pytest.importorskip("mpmath")
    one = mp.mpf(1)
    scale, cube = 2 * mp.sqrt(2 / mp.pi), mp.mpf(44715) / 1000000

    def slope(u, turn):
        s = 1 / (1 + mp.exp(-u))
        return s + turn / (1 + mp.exp(u)) * s

    return exact | {
        "pow": mp.power,
        "atan2": mp.atan2,
        "hypot": mp.hypot,
        "tanh_bwd": lambda y: one - y * y,
        "sigmoid_bwd": lambda y: (one - y) * y,
        "elu_bwd": lambda x: one if x > 0 else mp.exp(x),
        "softplus_bwd": exact["sigmoid"],
        "silu_bwd": lambda x: slope(x, x),
        "gelu_tanh_bwd": lambda x: slope(
            scale * (x + cube * x**3), scale * x * (1 + 3 * cube * x * x)
        ),
        "gelu_erf_bwd": lambda x: (
            mp.erfc(-x / mp.sqrt(2)) / 2 + x * mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)
        ),
    }


@pytest.mark.parametrize("name", exact64.OPS)
def test_float64_references(name):
    """What errors are counted from has 60 good bits; a derivative's terms may cancel some."""
    if not exact64.library():
        pytest.skip("no g++, or its long double is float64")
    mp = pytest.importorskip("mpmath")
    x, y = exact64.inputs(name, 3, 0, 4096)
    every = np.arange(4096) % 16 == 0
    x = np.where(x < -1, -x, x) if name == "log1p" else in_domain(name, x)
    usable = every & np.isfinite(x) & np.isfinite(y) & (x > -700 if name != "pow" else x > 0)
    x, y = x[usable], y[usable]
    function, checked = exact_functions64()[name], 0
    with mp.workprec(1600 if name in ("sin", "cos", "tan") else 400):
        for a, b, high, low in zip(x, y, *exact64.exact_values(name, x, y), strict=True):
            if name not in ("sin", "cos", "log", "rsqrt", "pow") and abs(a) > 1e4:
                continue
            if name == "pow" and abs(b * np.log(a)) > 690:
                continue
            paired = name in exact64.PAIRED
            want = function(mp.mpf(a), mp.mpf(b)) if paired else function(mp.mpf(a))
            if 2.0**-960 <= abs(want) < 2.0**1000:
                good = 60 if "_bwd" not in name else 54
                assert abs(mp.mpf(high) + mp.mpf(low) - want) <= abs(want) * mp.mpf(2) ** -good, a
                checked += 1
    assert checked >= 50


def test_nearest_multiples():
    """Beside multiples of pi/2 an angle loses up to 61 bits, and sin and cos none."""
    mp = pytest.importorskip("mpmath")
    x = np.array(list(exact64.nearest_multiples()))
    assert len(x) > 1000 and np.isfinite(x).all()
    sine, cosine = (exact64.result(name, (x, x)) for name in ("sin", "cos"))
    least = np.minimum(np.abs(sine), np.abs(cosine))
    assert 2.0**-62 < least.min() < 2.0**-60
    hard = least < 2.0**-55
    with mp.workprec(1600):
        for a, s, c in zip(x[hard], sine[hard], cosine[hard], strict=True):
            for got, want in ((s, mp.sin(mp.mpf(a))), (c, mp.cos(mp.mpf(a)))):
                assert abs(mp.mpf(got) - want) <= abs(want) * mp.mpf(2) ** -52.5, a


POW_EDGES = [*(s * v for v in (0.0, 1.0, 2.0, 0.5, 3.0, 1e300, np.inf) for s in (1, -1)), np.nan]


def test_float64_pow_edges():
    """The special values of IEEE 754, as NumPy has them."""
    x, y = (
        np.ascontiguousarray(a) for a in np.meshgrid([*POW_EDGES, np.nan], [*POW_EDGES, np.nan])
    )
    got = run("pow", [x, y], "float64")
    with np.errstate(all="ignore"):
        want = np.power(x, y)
    assert (ulp_errors(got, want) <= 1).all(), (x[got != want], y[got != want])


def test_float64_power_of_one():
    """Simplification takes x ** 1 for x."""
    x, _ = exact64.inputs("log", 11, 0)
    got = run("pow", [x, np.ones_like(x)], "float64")
    assert not ulp_errors(got, x).any()


DIGEST64 = """
import aicf, exact64
for name in exact64.OPS:
    operands = exact64.inputs(name, 5, 0, 2**16)
    print(name, exact64.bit_sum(exact64.result(name, operands)))
print(aicf._core.cpu_isa())
"""


def test_every_instruction_set_agrees_in_float64():
    found = {}
    for isa in machine_isas():
        env = os.environ | {"AICF_CPU_ISA": isa, "PYTHONPATH": str(Path(__file__).parent)}
        said = subprocess.run(
            [sys.executable, "-c", DIGEST64], env=env, capture_output=True, text=True, check=True
        ).stdout
        *found[isa], used = said.split("\n")[:-1]
        assert used == isa
    assert all(sums == found["baseline"] for sums in found.values()), found


# ---- the kept sums over all inputs


KEPT = json.loads(Path(__file__).with_name("data").joinpath("unary_checksums.json").read_text())
BUSY = [*range(0x2E, 0x44), *range(0xAE, 0xC4)]  # 2**-36 to 2**8, where results vary


@pytest.fixture(scope="module")
def summer():
    return checksums.Summer("cpu")


@pytest.mark.parametrize("op", checksums.OPS)
def test_kept_checksums(op, summer, make_rng, fresh_seed):
    """Two whole slices of 2**24 inputs, others in each run, have the sums that a GPU gave."""
    rng = make_rng(fresh_seed)
    want = KEPT["sums"][op].split()
    assert len(want) == checksums.SLICES
    for index in (int(rng.choice(BUSY)), int(rng.integers(checksums.SLICES))):
        assert f"{summer.sum(op, index):08x}" == want[index], f"slice {index:#x} of {op}"


DIGEST = """
import hashlib, sys, numpy as np, aicf
x = (np.arange(2**18, dtype=np.uint32) * 16381).view(np.float32)  # through every exponent
y = np.empty_like(x)
for op in sys.argv[1:]:
    aicf.op_call(op, [x], [y])
    y[np.isnan(y)] = np.nan
    print(op, hashlib.sha256(y).hexdigest())
x = np.arange(2**16, dtype=np.uint16).view(np.float16)
y = np.empty_like(x)
for op in ("gelu_tanh", "gelu_erf", "gelu_tanh_bwd", "gelu_erf_bwd"):
    aicf.op_call(op, [x, x[::-1]] if op.endswith("_bwd") else [x], [y])
    y[np.isnan(y)] = np.nan
    print(op, "of 16 bits", hashlib.sha256(y).hexdigest())
print(aicf._core.cpu_isa())
"""


def test_every_instruction_set_agrees():
    """2**18 inputs of each unary op in all instruction sets that this machine has."""
    found = {}
    for isa in machine_isas():
        env = os.environ | {"AICF_CPU_ISA": isa}
        said = subprocess.run(
            [sys.executable, "-c", DIGEST, *checksums.OPS], env=env,
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        *found[isa], used = said.split("\n")[:-1]
        assert used == isa
    assert all(digests == found["baseline"] for digests in found.values()), found


# ---- sums and products


@pytest.mark.parametrize("n", [1, 2, 127, 128, 511, 512, 513, 5000, 100_003])
def test_tree_sum(n, device, make_rng):
    """|error| <= (log2 n + 2) u sum |x|."""
    rng = make_rng(n)
    for x in (rng.standard_normal(n), rng.uniform(0, 1, n), np.exp(rng.uniform(-40, 40, n))):
        x = x.astype(np.float32)
        for op, scale in (("reduce_sum", 1), ("reduce_mean", n)):
            got = float(reduced(op, x, device, {"axes": [0]}))
            exact, size = x.astype(float).sum() / scale, np.abs(x.astype(float)).sum() / scale
            assert abs(got - exact) <= (np.log2(n) + 2) * U * size, (op, got, exact)


def reduced(op, x, device, attrs):
    axes = {axis % x.ndim for axis in attrs["axes"]}
    shape = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    source = Tensor(str(x.dtype), Layout.c_order(x.shape), device, x)
    out = Tensor(str(x.dtype), Layout.c_order(shape), device)
    aicf.op_call(op, [source.give()], [out.give()], attrs)
    return out.read()


def tree(x):
    """The sum over the last axis in the order `tree`, as core/abi/abi.h has it."""

    def leaf(x):
        lanes = x[:, :128].copy()
        for at in range(128, x.shape[1], 128):
            more = x[:, at : at + 128]
            lanes[:, : more.shape[1]] += more
        while (left := lanes.shape[1]) > 1:
            half = 1 << (left - 1).bit_length() - 1
            lanes[:, : left - half] += lanes[:, half:]
            lanes = lanes[:, :half]
        return lanes[:, 0]

    def join(parts):
        if len(parts) == 1:
            return parts[0]
        first = 1 << (len(parts) - 1).bit_length() - 1
        return join(parts[:first]) + join(parts[first:])

    return join([leaf(x[:, at : at + 512]) for at in range(0, x.shape[1], 512)])


LARGE = [(67, 65_100), (1, 4_400_333), (5, 900_001), (2, 1 << 21), (9_000, 513)]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("results, n", LARGE)
def test_large_sums_follow_the_tree(results, n, axis, device, make_rng):
    """Operands that no cache holds are read in another way, and summed in the same order."""
    x = make_rng(n).standard_normal((results, n), dtype=np.float32)
    got = reduced("reduce_sum", np.ascontiguousarray(x if axis else x.T), device, {"axes": [axis]})
    assert np.array_equal(got, tree(x))


def product(a, b, device, order="ij"):
    """a @ b of matrices, each in C order ("i") or transposed in memory ("j")."""

    def lay(x, turned):
        strides = (1, x.shape[0]) if turned else (x.shape[1], 1)
        return Tensor(str(x.dtype), Layout(x.shape, strides), device, x)

    ins = [lay(a, order[0] == "j"), lay(b, order[1] == "j")]
    out = Tensor(str(a.dtype), Layout.c_order((a.shape[0], b.shape[1])), device)
    aicf.op_call("gemm", [t.give() for t in ins], [out.give()])
    return out.read()


@pytest.mark.parametrize("k", [2, 255, 256, 257, 1000, 4096])
def test_product_bound_of_any_numbers(k, device):
    """|error| <= (min(K, 256) + ceil(K / 256) - 1) u (|A| |B|): roundings that all go one way."""
    bound = min(k, 256) + -(-k // 256) - 1
    for small in (0.50001 * 2.0**-23, 0.49999 * 2.0**-23, 1.50001 * 2.0**-24):
        a = np.full((3, k), small, np.float32)
        a[:, 0] = 1
        b = np.ones((k, 5), np.float32)
        exact = a.astype(float) @ b
        worst = (np.abs(product(a, b, device) - exact) / exact).max() / U
        assert worst <= bound * 1.001, (small, worst, bound)
        if k == 4096 and small < 2.0**-24 * 1.1:
            assert worst > 200  # far beyond what independent roundings come to


@pytest.mark.parametrize("k", [1, 16, 255, 256, 257, 1000, 4096])
def test_product_bound(k, device, make_rng):
    """|error| <= 2 sqrt(K) u (|A| |B|), on normal and on uniform [0, 1) numbers."""
    rng = make_rng(k)
    for draw in (rng.standard_normal, rng.random):
        a, b = draw((9, k)).astype(np.float32), draw((k, 17)).astype(np.float32)
        exact, size = a.astype(float) @ b, np.abs(a).astype(float) @ np.abs(b)
        error = np.abs(product(a, b, device) - exact)
        assert (error <= 2 * np.sqrt(k) * U * size).all(), (error / size / U).max() / np.sqrt(k)
    chain = {"axes": [0], "order": "chain(256)"}
    x = rng.standard_normal((k, 5)).astype(np.float32)
    error = np.abs(reduced("reduce_sum", x, device, chain) - x.astype(float).sum(0))
    assert (error <= 2 * np.sqrt(k) * U * np.abs(x).astype(float).sum(0)).all()


@pytest.mark.parametrize("n", [512, 1024])
def test_large_products_are_near(n, device, rng):
    """The largest error of a product of n x n normal numbers, and of numbers in [0, 1)."""
    for draw in (rng.standard_normal, rng.random):
        a, b = draw((n, n)).astype(np.float32), draw((n, n)).astype(np.float32)
        assert np.abs(product(a, b, device) - a.astype(float) @ b).max() < 1e-3


SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 33, 48, 63, 64, 65, 96, 129)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("order", ["ii", "ij", "ji", "jj"])
def test_product_of_integers_is_exact(order, dtype, device, make_rng):
    """At every tile edge: small sums have one right answer, in any order of the terms."""
    kind = numpy_dtype(dtype)
    if kind is None:
        pytest.skip("no bfloat16 here")
    rng = make_rng(7)
    half = dtype in ("float16", "bfloat16")
    cases = [tuple(rng.choice(SIZES, 3)) for _ in range(60 if device == "cpu" else 8)]
    cases += [(1, 300, 1), (1, 513, 40), (40, 513, 1), (257, 9, 5), (5, 9, 257), (130, 700, 130)]
    cases += [(300, 288, 130), (520, 128, 70), (129, 784, 70)]
    for m, k, n in cases:
        a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
        if half:  # few terms, so that the result itself fits
            a = a * (rng.random((m, k)) < 4 / k)
        want = a @ b
        assert not half or np.abs(want).max() < 256
        got = product(a.astype(kind), b.astype(kind), device, order)
        assert np.array_equal(got.astype(np.int64), want), (m, k, n)


def assert_chain(a, b, device, order):
    """256 terms at a time, or 128 of at most 2^17 results and 129 to 1024 terms, added up in order:
    whatever else is computed beside them, and how."""
    assert len(a) * b.shape[1] <= 2**17
    chunk = 128 if 128 < len(b) <= 1024 else 256
    got = product(a, b, device, order)
    starts = range(0, len(b), chunk)
    sums = [product(a[:, p : p + chunk], b[p : p + chunk], device, order) for p in starts]
    want = sums[0]
    for more in sums[1:]:
        want = want + more
    assert np.array_equal(got, want), (a.shape, b.shape)
    for i in (0, len(a) // 2, max(len(a) - 5, 0)):
        for columns in (slice(3), slice(-3, None)):
            part = product(a[i : i + 5], b[:, columns], device, order)
            assert np.array_equal(part, got[i : i + 5, columns]), (a.shape, b.shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["ii", "ij", "ji", "jj"])
def test_product_is_a_chain(order, dtype, device, make_rng):
    """At the edges of panels and of blocks of rows, on one thread and shared out."""
    rng = make_rng(8)
    shapes = [(128, 784, 70), (300, 288, 130), (520, 128, 70), (257, 289, 65), (14, 545, 300)]
    shapes += [(40, 270, 1024), (169, 130, 100), (20, 300, 2100), (150, 289, 100)]
    try:
        for threads in (1, 3) if device == "cpu" else (0,):
            aicf.set_num_threads(threads)
            for m, k, n in [*shapes, (1, 600, 90), (90, 600, 1), (700, 260, 20)]:
                a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
                assert_chain(a.astype(dtype), b.astype(dtype), device, order)
    finally:
        aicf.set_num_threads(0)


# ---- indices beyond 32 bits

BOUNDARY = (2**31 - 1, 2**31, 2**31 + 1)


@pytest.mark.parametrize("n", [*BOUNDARY, 2**32 + 3])
def test_long_shapes_are_kept(n):
    """Sizes at which a 32-bit count wraps; a stride of 0 needs no memory."""
    wide = np.broadcast_to(np.uint8(3), (n,))
    with pytest.raises(aicf.ShapeError, match=rf"need u8\[{n}\]"):
        aicf.op_call("copy", [wide], [np.zeros(3, np.uint8)])
    out = np.ones((n, 0), np.uint8)
    aicf.op_call("copy", [np.broadcast_to(np.uint8(3), (n, 0))], [out])
    total = np.ones((), np.uint8)
    aicf.op_call("reduce_sum", [out], [total], {"axes": [0, 1]})
    assert total == 0


@pytest.mark.slow
@pytest.mark.parametrize("n", BOUNDARY)
def test_copy_beyond_32_bits(n):
    """The last elements of a long result are written, and nothing after them."""
    store = np.zeros(n + 64, np.uint8)
    aicf.op_call("copy", [np.broadcast_to(np.uint8(7), (n,))], [store[:n]])
    assert store[:n].min() == 7 and not store[n:].any()
    tail = np.arange(5, dtype=np.uint8)
    aicf.op_call(
        "pad", [tail], [store[:n]], {"shape": [n], "start": [n - 5], "step": [1], "value": 1.0}
    )
    assert (
        (store[n - 5 : n] == tail).all() and (store[:-69:4097] == 1).all() and not store[n:].any()
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [2**31 + 1, 2**32 + 3])
def test_reductions_beyond_32_bits(n):
    """Over a stride of 0, and over two rows that lie so far apart."""
    ones = np.broadcast_to(np.uint8(1), (n,))
    out = np.zeros((), np.uint8)
    aicf.op_call("reduce_sum", [ones], [out], {"axes": [0]})
    assert out == n % 256
    aicf.op_call("reduce_max", [ones], [out], {"axes": [0]})
    assert out == 1


@pytest.mark.parametrize("gap", [2**31 - 1, 2**31, 2**32 + 5])
def test_strides_beyond_32_bits(gap):
    """Two rows that far apart in an array of which two pages are ever touched."""
    store = np.zeros(gap + 64, np.uint8)  # zero pages that the system has not handed out
    rows = np.lib.stride_tricks.as_strided(store, (2, 5), (gap, 1))
    source = np.arange(10, dtype=np.uint8).reshape(2, 5)
    aicf.op_call("copy", [source], [rows])
    assert (store[:5] == source[0]).all() and (store[gap : gap + 5] == source[1]).all()
    back = np.zeros((2, 5), np.uint8)
    aicf.op_call("add", [rows, rows[::-1]], [back])
    assert (back == source[0] + source[1]).all()
    sums = np.zeros(5, np.uint8)
    aicf.op_call("reduce_sum", [rows], [sums], {"axes": [0]})
    assert (sums == source[0] + source[1]).all()
    picked = np.zeros((3, 5), np.uint8)
    aicf.op_call("take", [rows, np.array([1, 0, 1])], [picked])
    assert (picked == source[[1, 0, 1]]).all()
    table = np.lib.stride_tricks.as_strided(store, (gap, 1), (1, 1))
    aicf.op_call("take", [table, np.array([gap - 1, 4, gap])], [picked[:, :1]])
    assert picked[1, 0] == 4
