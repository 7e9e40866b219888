"""Sorting, searching and putting at hard values, at the sizes of the kernels, out of range."""

import os
import subprocess
import sys
from pathlib import Path

import aicf
import numpy as np
import pytest
from compare import assert_bits, numpy_dtype
from conftest import run_modes
from isas import machine_isas

INF, NAN = np.inf, np.nan
HARD = np.array([0.0, NAN, 1.0, -INF, -0.0, 2.0, INF, NAN, -1.0, 0.0, 1.0, INF, -INF, 1e-40])
RUN = 2048  # kSortRun of core/abi/sort.h


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["sort", "argsort", "topk", "cummax", "cummin", "median"])
def test_hard_values(name, dtype, device):
    """NaN last, or first where descending; both zeros equal; equals in their order; as PyTorch."""
    torch = pytest.importorskip("torch")
    with np.errstate(all="ignore"):
        x = np.stack([HARD, HARD[::-1], np.nan_to_num(HARD, nan=3.0)]).astype(numpy_dtype(dtype))
    wide = torch.from_numpy(x.astype(np.float64))
    want = {
        "sort": lambda: [wide.sort(-1, descending=d)[0] for d in (False, True)],
        "argsort": lambda: [wide.argsort(dim=-1, descending=d, stable=True) for d in (False, True)],
        "topk": lambda: [wide.topk(9)[0], wide.topk(9, largest=False)[0]],
        "cummax": lambda: wide.cummax(1),
        "cummin": lambda: wide.cummin(1),
        "median": lambda: [torch.from_numpy(np.median(wide.numpy(), 1))],
    }[name]()

    def build(g, x):
        results = {
            "sort": lambda: [aicf.sort(x), aicf.sort(x, descending=True)],
            "argsort": lambda: [aicf.argsort(x), aicf.argsort(x, descending=True)],
            "topk": lambda: [aicf.topk(x, 9)[0], aicf.topk(x, 9, largest=False)[0]],
            "cummax": lambda: aicf.cummax(x, 1),
            "cummin": lambda: aicf.cummin(x, 1),
            "median": lambda: [aicf.median(x, 1)],
        }[name]()
        return {f"y{i}": y for i, y in enumerate(results)}

    got = run_modes(build, {"x": x}, device)
    for i, right in enumerate(want):
        np.testing.assert_array_equal(got[f"y{i}"].astype(float), right.numpy(), err_msg=f"{i}")


SIZES = [0, 1, 2, 15, 16, 17, 33, RUN - 1, RUN, RUN + 1, 2 * RUN, 2 * RUN + 1, 3 * RUN + 5, 20000]


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "int16", "bool"])
@pytest.mark.parametrize("n", SIZES)
def test_sizes_of_lines(n, dtype, device, rng):
    """Of runs and merges, with many equals, along either axis; by any number of threads."""
    x = rng.integers(0, 200, (n, 3)) % (2 if dtype == "bool" else 201)
    x = x.astype(dtype)
    for axis in (0, 1):
        for down in (False, True):
            key = x.astype(np.int64) * (-1 if down else 1)
            want = np.argsort(key, axis, kind="stable")
            for a in (x, x[::-1].copy()[::-1]):
                got = run_modes(
                    lambda g, x, _a=axis, _d=down: {"y": aicf.argsort(x, _a, _d)}, {"x": a}, device
                )["y"]
                np.testing.assert_array_equal(got, want)


def many(rng):
    x, s = (rng.standard_normal((5, 7000)).astype(np.float32) for _ in range(2))
    return {"x": x, "i": rng.integers(0, 40, (5, 7000)), "s": s}


def many_terms(g, x, i, s):
    """What is sorted, summed by index, and walked through, with gradients."""
    y = aicf.scatter_add(x, 1, i, s) + aicf.scatter(x, 1, i, s)
    z = aicf.index_add(x, 1, i[0], s) + aicf.cumprod(s * 0.1 + 1.0, 0)
    rows = aicf.index_add(x.T, 0, aicf.cummax(i, 1)[0][0], s.T)
    loss = aicf.sum(aicf.sort(y * z) * x) + aicf.median(rows * z.T)
    grads = g.backward(loss, [x, s])
    found = aicf.searchsorted(aicf.sort(x, 1), s)
    return {"y": y, "z": z, "rows": rows, "found": found, "dx": grads[x], "ds": grads[s]}


DIGEST = """
import hashlib, aicf, numpy as np
from conftest import run_modes
from test_indexing import many, many_terms
for name, y in run_modes(many_terms, many(np.random.default_rng(4))).items():
    print(name, hashlib.sha256(y.tobytes()).hexdigest())
print(aicf._core.cpu_isa())
"""


def test_every_instruction_set_agrees():
    found = {}
    for isa in machine_isas():
        env = os.environ | {"AICF_CPU_ISA": isa, "PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, "-c", DIGEST]
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        *found[isa], used = said.split("\n")[:-1]
        assert used == isa and len(found[isa]) == 6
    assert all(digests == found["baseline"] for digests in found.values()), found


def test_threads_and_passes(rng):
    """All bits are equal, of sums of many terms too."""
    inputs, first = many(rng), None
    before = aicf.num_threads()
    try:
        for threads in (1, 2, 8):
            aicf.set_num_threads(threads)
            for passes in ("default", ()):
                got = run_modes(many_terms, inputs, passes=passes)
                first = first or got
                for name in got:
                    assert_bits(got[name], first[name], f"{name}, {threads} threads, {passes}")
    finally:
        aicf.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("n", [1023, 1024, 1025, 3000])
def test_sums_of_16_bits_are_rounded_once(n, dtype, device, rng):
    """Along lines longer than a kernel holds sums of."""
    i = rng.integers(0, n, (2, 5000))
    dy = (rng.integers(-8, 8, (2, 5000)) / 8).astype(numpy_dtype(dtype))

    def build(g, x, i, dy):
        return {"dx": g.backward(aicf.gather(x, 1, i), [x], grad=dy)[x]}

    x = np.zeros((2, n), dy.dtype)
    got = run_modes(build, {"x": x, "i": i, "dy": dy}, device)["dx"]
    want = np.zeros((2, n), np.float32)
    for row in range(2):
        np.add.at(want[row], i[row], dy[row].astype(np.float32))
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(dy.dtype).astype(np.float32))


def in_chunks(rows, index, terms, chunk=256):
    """Sums of rows in ascending position, in chunks that start from 0, one addition at a time."""
    sums = np.zeros((rows, *terms.shape[1:]), terms.dtype)
    for row in range(rows):
        own = terms[index == row]
        parts = [np.add.accumulate(own[k : k + chunk])[-1] for k in range(0, len(own), chunk)]
        for part in parts:
            sums[row] = sums[row] + (part + 0)
    return sums


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int16"])
@pytest.mark.parametrize("n", [1, 255, 256, 257, 512, 513, 2000])
def test_chunks_of_sums(n, dtype, device, rng):
    """Of one place, of few, of many; the same bits along lines, of slices and as a gradient."""
    wide = "float32" if "16" in dtype and dtype != "int16" else dtype
    s = (rng.standard_normal((n, 3)) * 100).astype(numpy_dtype(dtype))
    for rows in (1, 3, 300):
        i = rng.integers(0, rows, n)
        want = in_chunks(rows, i, s.astype(wide)).astype(s.dtype)

        def build(g, x, i, s, _rows=rows):
            each = aicf.broadcast_to(aicf.reshape(i, (n, 1)), (n, 3))
            ys = {"shared": aicf.scatter_add(x, 0, each, s), "slices": aicf.index_add(x, 0, i, s)}
            turned = aicf.permute(s, (1, 0))
            ys["lines"] = aicf.scatter_add(
                aicf.permute(x, (1, 0)), 1, aicf.permute(each, (1, 0)), turned
            ).T
            if dtype != "int16":
                ys["gradient"] = g.backward(aicf.gather(x, 0, each), [x], grad=s)[x]
            return ys

        x = np.zeros((rows, 3), s.dtype)
        for name, got in run_modes(build, {"x": x, "i": i, "s": s}, device).items():
            assert_bits(np.ascontiguousarray(got), want.astype(got.dtype), f"{name} to {rows}")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [5, 100])  # looked through, and sorted
def test_negative_zeros_that_nothing_is_added_to(n, dtype, device):
    """What the docs say of x's -0.0: it stays where index_add adds -0.0, and nowhere else."""
    i = np.minimum(np.arange(n), 2)  # to row 0 one term, to row 1 one, to row 2 the others
    x, s = (np.full((rows, 3), -0.0).astype(numpy_dtype(dtype)) for rows in (4, n))
    s[1] = 0

    def build(g, x, i, s):
        each = aicf.broadcast_to(aicf.reshape(i, (n, 1)), (n, 3))
        return {
            "shared": aicf.scatter_add(x, 0, each, s),
            "numbers": aicf.scatter_add(x[:, 0], 0, i, s[:, 0]),
            "slices": aicf.index_add(x, 0, i, s),
        }

    for name, got in run_modes(build, {"x": x, "i": i, "s": s}, device).items():
        negative = np.signbit(got.astype(np.float64)).reshape(4, -1)
        assert (negative.T == [name == "slices" and row in (0, 2) for row in range(4)]).all(), name
        assert not got.astype(np.float64).any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_out_of_range(index, dtype, device):
    """Taken as NaN or 0, put nowhere; neither takes a gradient."""
    x, s = np.arange(12).reshape(4, 3).astype(dtype), np.full((2, 3), 5, dtype)
    i = np.array([[-1, 4, 2**31 - 1], [1, -(2**31), 3]], index)

    def build(g, x, i, s):
        ys = {
            "gather": aicf.gather(x, 0, i),
            "scatter": aicf.scatter(x, 0, i, s),
            "scatter_add": aicf.scatter_add(x, 0, i, s),
            "index_add": aicf.index_add(x, 0, i[1, :2], s),
        }
        if dtype != "int32":
            for name in [*ys]:
                for wrt, value in (("x", x), ("s", s)):
                    if name != "gather" or wrt == "x":
                        ys[f"{name}_d{wrt}"] = g.backward(aicf.sum(ys[name] * 2), [value])[value]
        return ys

    got = run_modes(build, {"x": x, "i": i, "s": s}, device, checks="off")
    inside = (i >= 0) & (i < 4)
    missing = np.nan if dtype != "int32" else 0
    taken = np.where(inside, np.take_along_axis(x, np.where(inside, i, 0), 0), missing)
    np.testing.assert_array_equal(got["gather"], taken)
    set_, added, rows = x.copy(), x.copy(), x.copy()
    set_[1, 0], set_[3, 2] = 5, 5
    added[1, 0] += 5
    added[3, 2] += 5
    rows[1] += 5
    np.testing.assert_array_equal(got["scatter"], set_)
    np.testing.assert_array_equal(got["scatter_add"], added)
    np.testing.assert_array_equal(got["index_add"], rows)
    if dtype == "int32":
        return
    two = 2 * inside.astype(float)
    np.testing.assert_array_equal(got["scatter_ds"], two)
    np.testing.assert_array_equal(got["scatter_add_ds"], two)
    np.testing.assert_array_equal(got["index_add_ds"], [[2] * 3, [0] * 3])
    np.testing.assert_array_equal(got["scatter_dx"], np.where(set_ == x, 2, 0))
    for name in ("scatter_add_dx", "index_add_dx"):
        np.testing.assert_array_equal(got[name], np.full((4, 3), 2.0))
    slope = np.zeros((4, 3))
    slope[1, 0], slope[3, 2] = 2, 2
    np.testing.assert_array_equal(got["gather_dx"], slope)


@pytest.mark.parametrize("name", ["gather", "scatter", "scatter_add", "index_add"])
def test_a_checked_step_refuses_indices_out_of_range(name):
    g = aicf.Graph("checked")
    x, s = g.input("x", (4, 3)), g.input("s", (2, 3))
    i = g.input("i", (2,) if name == "index_add" else (2, 3), "int64")
    fn = getattr(aicf, name)
    g.output("y", fn(x, 0, i) if name == "gather" else fn(x, 0, i, s))
    step = g.compile(device="cpu", check=True)
    given = {"x": np.ones((4, 3), "f"), "s": np.ones((2, 3), "f")}
    given = given if name != "gather" else {"x": given["x"], "s": given["s"]}
    fine = np.zeros(i.shape, np.int64)
    step(i=fine, **given)
    fine.ravel()[1] = 4
    with pytest.raises(aicf.BadValue, match="hold 4 at .*; need 0 to 3"):
        step(i=fine, **given)


def test_searches_at_hard_values(device):
    """NaN is larger than all, zeros are equal, as in NumPy."""
    line = np.array([-INF, -1, -0.0, 0.0, 0.0, 3, INF, NAN, NAN], np.float32)
    values = np.array([[NAN, INF, -INF, 0.0], [-0.0, 3, 2, -1]], np.float32)
    for side in ("left", "right"):
        got = run_modes(
            lambda g, a, v, _s=side: {"y": aicf.searchsorted(a, v, _s)},
            {"a": line, "v": values}, device,
        )["y"]  # fmt: skip
        np.testing.assert_array_equal(got, np.searchsorted(line, values, side))


REFUSED = {
    "gather: .*indices are .*; need indices no longer but for axis 0": lambda x, i: aicf.gather(
        x, 0, aicf.broadcast_to(i, (4, 5))
    ),
    "gather: .*; need indices as int32 or int64": lambda x, i: aicf.gather(x, 0, x),
    "scatter: .*; need indices no longer": lambda x, i: aicf.scatter(x, 0, aicf.argsort(x), x[:2]),
    "index_select: indices are .*; need rank 1": lambda x, i: aicf.index_select(
        x, 0, aicf.argsort(x)
    ),
    "index_add: src is .*; need one slice an index": lambda x, i: aicf.index_add(x, 0, i, x),
    r"index_add: src is .*\[5, 1\].*, x is .*; need equal sizes but for axis 0": (
        lambda x, i: aicf.index_add(x, 0, i, aicf.broadcast_to(x[:1, :1], (5, 1)))
    ),
    r"index_add: src is .*\[5, 2\].*, x is .*; need equal sizes": (
        lambda x, i: aicf.index_add(aicf.argsort(x), 0, i, aicf.broadcast_to(i[0], (5, 2)))
    ),
    "scatter_add: src is .*; need one dtype": lambda x, i: aicf.scatter_add(
        x, 0, aicf.argsort(x), aicf.argsort(x)
    ),
    "take_along_axis: .*; need equal ranks": lambda x, i: aicf.take_along_axis(x, i),
    "searchsorted: side is 'up'": lambda x, i: aicf.searchsorted(x, x, "up"),
    "topk: k is 9, .*; need 0 to 3": lambda x, i: aicf.topk(x, 9),
    r"quantile: q is \[1.5\]; need shares": lambda x, i: aicf.quantile(x, 1.5),
    "quantile: interpolation is 'best'; need": lambda x, i: aicf.quantile(
        x, 0.5, interpolation="best"
    ),
    "scatter_reduce: reduce is 'max'; need": lambda x, i: aicf.scatter_reduce(
        x, 0, aicf.argsort(x), x, "max"
    ),
    "scatter_reduce: a mean of x .*; need a float dtype": lambda x, i: aicf.scatter_reduce(
        aicf.argsort(x), 0, aicf.argsort(x), aicf.argsort(x), "mean"
    ),
    r"unravel_index: shape is \[2, 0\]; need": lambda x, i: aicf.unravel_index(i, (2, 0)),
    "unravel_index: indices are .*; need integers": lambda x, i: aicf.unravel_index(x, (2, 3)),
    "median: x is .*; need floats": lambda x, i: aicf.median(i),
    "cumprod: axis 2": lambda x, i: aicf.cumprod(x, 2),
    "^cummax, cummin: x is .*bool": lambda x, i: aicf.cummin(x > 0, 0),
    "^linear_recurrence: dtypes are .*; need one float dtype": (
        lambda x, i: aicf.linear_recurrence(i, i, 0)
    ),
    "bitwise_left_shift: a is .*; need an integer dtype": (
        lambda x, i: aicf.bitwise_left_shift(x > 0, x > 0)
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(text):
    g = aicf.Graph("g")
    x, i = g.input("x", (4, 3)), g.input("i", (5,), "int64")
    with pytest.raises(aicf.Error, match=text):
        REFUSED[text](x, i)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8", "int16"])
def test_running_products_wrap(dtype, device, rng):
    x = rng.integers(1, 5, (70, 3)).astype(dtype)
    g = aicf.Graph("wraps")
    g.output("y", aicf.cumprod(g.input("x", x.shape, dtype), 0))
    got = g.compile(device=device)(x=x)["y"].numpy()
    np.testing.assert_array_equal(got, np.cumprod(x, 0, dtype=dtype))


def test_merging_takes_anyones_positions():
    """The lowered op can be called by hand: what is no position reads no memory but the line's."""
    x = np.arange(6, dtype=np.float32)
    wild = np.array([-(2**63), 2**63 - 1, 6, -1, 0, 3])
    out = np.zeros(6, np.int64)
    attrs = {"axis": 0, "descending": False}
    aicf.op_call("argsort_merge", [x, wild], [out], {**attrs, "run": 3})
    assert set(out.tolist()) <= set(wild.tolist())
    for run in (0, 2**60 + 1):
        with pytest.raises(aicf.ShapeError, match=r"run is \d+; need 1 to 2\^60"):
            aicf.op_call("argsort_merge", [x, wild], [out], {**attrs, "run": run})


def test_sums_of_16_bits_by_wild_indices(device):
    """More places than are held at a time, and indices at the ends of int64."""
    index = np.array([-(2**63), 1500, 2**63 - 1, 3, -1, 2000, 1500])
    x = np.arange(1.0, 8.0, dtype=np.float16)
    g = aicf.Graph("wild")
    base, i = g.constant(np.zeros(2000, np.float16)), g.input("i", (7,), "int64")
    g.output("y", aicf.scatter_add(base, 0, i, g.input("x", (7,), "float16")))
    got = g.compile(device=device, checks="off")(i=index, x=x)["y"].numpy()
    want = np.zeros(2000, np.float16)
    want[3], want[1500] = 4, 9
    np.testing.assert_array_equal(got, want)


def test_places_in_a_shape_are_numpys():
    g = aicf.Graph("places")
    i = g.input("i", (7,), "int64")
    for n, place in enumerate(aicf.unravel_index(i, (2, 3, 4))):
        g.output(f"y{n}", place)
    given = np.array([0, 1, 5, 11, 12, 22, 23])
    out = g.compile(device="cpu")(i=given)
    for n, want in enumerate(np.unravel_index(given, (2, 3, 4))):
        np.testing.assert_array_equal(out[f"y{n}"].numpy(), want)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8", "int16"])
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
def test_whole_numbers_are_scattered_together(dtype, reduce):
    g = aicf.Graph("scatter_reduce")
    x, i, s = (g.input(n, (3, 5), d) for n, d in (("x", dtype), ("i", "int32"), ("s", dtype)))
    g.output("y", aicf.scatter_reduce(x, 1, i, s, reduce, include_self=False))
    given = np.arange(15).reshape(3, 5).astype(dtype)
    index = np.array([[0, 0, 3, 3, 3], [4, 3, 2, 1, 0], [2, 2, 2, 2, 2]], np.int32)
    want = given.copy()
    fn = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[reduce]
    for row, places in enumerate(index):
        for place in set(places):
            want[row, place] = fn.reduce(given[row, places == place], dtype=dtype)
    out = g.compile(device="cpu")(x=given, i=index, s=given)
    np.testing.assert_array_equal(out["y"].numpy(), want)
