"""Rows that are read or filled ahead, and what is made of long ones: kernels that take them."""

import itertools
import math
import os
import re
from fractions import Fraction

import aicf
import ml_dtypes
import numpy as np
import pytest
from aicf import _core
from test_cuda_rows import alike, needs_compiler

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")


def ahead(n, count, dtype="bfloat16", offset=0):
    """Softmax and losses of many rows of 16 bits; `offset`: of where they begin."""
    rng = np.random.default_rng(n)
    longer = rng.standard_normal((count, n + 8 * offset), np.float32)
    longer[1, : n // 2] = -np.inf
    g = aicf.Graph("ahead")
    init = longer.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = g.state("x", longer.shape, dtype, init=init)[:, offset : offset + n]
    g.output("softmax", aicf.softmax(x))
    g.output("log_softmax", aicf.log_softmax(x * 2))
    g.output("loss", aicf.cross_entropy(x, g.constant(np.arange(count) % n)))
    return g


@pytest.mark.parametrize(("n", "count"), [(64, 1 << 18), (768, 16384), (8192, 4096)])
def test_rows_of_16_bits_are_read_ahead(n, count):
    for rows, found in ((count, 256), (count // 32, 0)):
        programs = _core.cuda_programs(ahead(n, rows)._core, _core.pass_names(), 132, arch="sm_90a")
        calls = re.findall(r"    (?:softmax_rows|cross_entropy_\w+)<float, .*", "\n".join(programs))
        assert len(calls) == 3, calls
        threads = [int(re.search(r">, (?:true, |false, )*(\d+), ", call)[1]) for call in calls]
        short = 128 if n == 64 and found else found  # of a block that takes softmax
        assert sorted(threads) == sorted([short, found, found]), calls


@pytest.mark.parametrize(
    ("op", "n", "dtype", "threads"),
    [
        ("softmax", 64, "bfloat16", 128),
        ("softmax", 64, "float16", 128),
        ("softmax", 40, "bfloat16", 128),
        ("softmax", 128, "bfloat16", 128),
        ("softmax", 32, "bfloat16", 256),  # a piece to a lane
        ("softmax", 136, "bfloat16", 256),
        ("softmax", 768, "bfloat16", 256),
        ("log_softmax", 64, "bfloat16", 256),
    ],
)
def test_blocks_of_short_rows_that_are_read_ahead(op, n, dtype, threads):
    g = aicf.Graph("short")
    g.output("y", getattr(aicf, op)(g.input("x", ((1 << 26) // n + 1, n), dtype)))
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
    assert f", {threads}, aicf" in text
    assert f"__launch_bounds__({threads})" in text


@pytest.mark.parametrize(("n", "least"), [(40, 1024 * 132), (64, 1024 * 132), (128, 512 * 132)])
def test_from_how_many_on_short_rows_are_read_ahead(n, least):
    for count, threads in ((least - 1, 256), (least, 128)):
        g = aicf.Graph("short")
        g.output("y", aicf.softmax(g.input("x", (count, n + 8), "bfloat16")[:, 1 : n + 1]))
        (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
        assert f"__launch_bounds__({threads})" in text


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", [40, 64, 128])
def test_bits_of_short_rows_from_as_many_on(n, masked, offset):
    """As many as are read ahead, one less, and some more, which end within a warp."""
    (gpu, *_) = _core.cuda_info()["devices"]
    lanes = 8 if n > 64 else 4
    least = 4 * (32 // lanes) * 32 * gpu["multiprocessors"]
    rng = np.random.default_rng(n)
    x = rng.standard_normal((least + 97, n + 8), np.float32)
    x[1, : n // 2] = -np.inf
    x[-1, 3], x[least - 1, 5] = np.nan, np.inf
    x = x.astype(ml_dtypes.bfloat16)
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("short")
        rows = g.state("x", x.shape, "bfloat16", init=x)[:, offset : offset + n]
        for count in (least - 1, least, least + 1, least + 97):
            some = rows[:count]
            if masked:
                some = aicf.where(some > 0, some, -np.inf)
            g.output(f"{count}", aicf.softmax(some))
        step = g.compile(device=device, checks="off")()
        ends.append({name: value.numpy().astype(np.float32) for name, value in step.items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


@pytest.mark.parametrize(("n", "count"), [(64, 1 << 20), (768, 16384), (5000, 900), (5000, 512)])
def test_many_rows_are_looked_at_before_their_exponentials(n, count):
    """From 32 K elements of each of 132 processors on."""
    g = aicf.Graph("loss")
    x = g.input("x", (count, n))
    g.output("softmax", aicf.softmax(x))
    g.output("loss", aicf.cross_entropy(x, g.constant(np.arange(count) % n)))
    text = "".join(_core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a"))
    many = str(n * count >= 132 << 15).lower()
    assert re.findall(r"bool many = (\w+);", text) == [many] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("n", "count"), [(64, (1 << 17) + 3), (136, 60_001), (768, 13_001)])
def test_bits_of_rows_that_are_read_ahead(n, count, dtype, offset):
    ends = []
    for device in ("cpu", "cuda"):
        step = ahead(n, count, dtype, offset).compile(device=device, checks="off")()
        ends.append({name: value.numpy().astype(np.float32) for name, value in step.items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


def by_counter(n, count, dtype):
    rng = np.random.default_rng(n + count)
    x = rng.standard_normal((count, n), np.float32)
    x[-1, 3], x[0, 5], x[1, : n // 2], x[-2] = np.nan, np.inf, -np.inf, -np.inf
    x[:, 0] += np.arange(count) % 23  # no row is like another
    g = aicf.Graph("counter")
    x = g.state("x", x.shape, dtype, init=x.astype(getattr(ml_dtypes, dtype, dtype)))
    g.output("softmax", aicf.softmax(x))
    g.output("other", aicf.log_softmax(x * 0.5))
    return g


COUNTED = {4096: 4, 5120: 5, 6144: 6, 8192: 8, 12288: 12, 16384: 16}  # warps, by elements


def least_ahead(warps, processors):
    """Rows from which on they are read ahead: four of each block that a processor has room for."""
    return 4 * max(16 // warps, 1) * processors


@needs_compiler
@pytest.mark.parametrize("n", [3584, 4088, 4104, 4608, 15872, *COUNTED])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_long_rows_are_shared_out_by_a_counter(n, dtype):
    """Of softmax alone, where warps have as many whole leaves, from 4,096 elements on."""
    g = by_counter(n, 3 * least_ahead(COUNTED.get(n, 4), 132), dtype)
    programs = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
    (softmax,) = (one for one in programs if "log_softmax" not in one)
    assert len(programs) == 2
    assert ["ByCounter{" in p for p in (softmax, "".join(programs))] == [n in COUNTED] * 2
    if warps := COUNTED.get(n):
        assert f"__launch_bounds__({32 * warps}, {32 // warps})" in softmax
        assert " 0 bytes spill stores" in _core.cuda_log(softmax, "sm_90a")
    few = by_counter(n, least_ahead(COUNTED.get(n, 4), 132) - 1, dtype)
    programs = _core.cuda_programs(few._core, _core.pass_names(), 132, arch="sm_90a")
    assert "ByCounter{" not in "".join(programs)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [4096, 6144, 8192, 16384])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("more", [0, 131])
def test_bits_of_rows_that_a_counter_shares_out(n, dtype, more):
    """As few as are shared out, and some more; the second step finds the counter as the first."""
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    ends = []
    for device, steps in (("cpu", 1), ("cuda", 2)):
        g = by_counter(n, least_ahead(COUNTED[n], processors) + more, dtype)
        step = g.compile(device=device, checks="off")
        for _ in range(steps):
            values = {name: y.numpy().astype(np.float32) for name, y in step().items()}
        ends.append(values)
    for name, value in ends[0].items():
        alike(value, ends[1][name])


def rounded(x, digits):
    """A fraction above 0, to so many digits, ties to even."""
    places = digits - 1 - math.floor(math.log2(x))
    places += x * Fraction(2) ** places < 2 ** (digits - 1)
    return Fraction(round(x * Fraction(2) ** places)) / Fraction(2) ** places


def test_shares_that_are_bfloat16_need_no_remainder():
    """v/s is v hi + v lo, hi and lo the two parts of 1/s, once it is rounded to float32 and then
    to bfloat16. These could differ where v/s is near a number between two of float32 beside one
    between two of bfloat16, by d parts of 2^-48 or so: their error is less than 8."""
    found = 0
    for low in (0, 1):  # v/s from 1 to 2, from 1/2 to 1
        for between, side, d in itertools.product(range(257, 512, 2), (-1, 1), range(-8, 9)):
            # v 2^(24 + low) = (between 2^16 + side) s + d
            for s in range(2**23 + -side * d % 2**16, 2**24, 2**16):
                v, rest = divmod((between * 2**16 + side) * s + d, 2 ** (24 + low))
                if rest or not 2**23 <= v < 2**24:
                    continue
                hi = rounded(Fraction(1, s), 24)
                lost = (1 - s * hi) * hi
                lo = rounded(abs(lost), 24) * (1 if lost > 0 else -1) if lost else 0
                low_part = rounded(v * abs(lo), 24) * (1 if lo > 0 else -1) if lo else 0
                share = rounded(rounded(v * hi + low_part, 24), 8)
                assert share == rounded(rounded(Fraction(v, s), 24), 8), (v, s)
                found += 1
    assert found > 1000


def long_rows(n, count, dtype="bfloat16", offset=0):
    """Rows of a longer one's elements from `offset` on, with what is made of them."""
    rng = np.random.default_rng(n + offset)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    g = aicf.Graph("long")

    def state(name, *shape):
        return g.state(name, shape, dtype, init=(2 * rng.standard_normal(shape)).astype(kind))

    x, dy = (state(name, count, n + 8 * offset)[:, offset : offset + n] for name in ("x", "dy"))
    w, b = (state(name, n + offset)[offset:] for name in ("w", "b"))
    values = {
        "softmax": aicf.softmax(x),
        "log_softmax": aicf.log_softmax(x),
        "layer_norm": aicf.layer_norm(x, n, w, b),
        "rms_norm": aicf.rms_norm(x, n, w),
        "plain": aicf.layer_norm(x, n) + dy,
    }
    for name, y in values.items():
        g.output(name, y)
        read = [x, w] if "_norm" in name else [x]
        for k, dx in enumerate(aicf.grad(y, read, dy)):
            g.output(f"d{k} {name}", dx)
    return g


def teams_of(program):
    """(kernel, the first word of its team's type) of a program of rows."""
    return re.findall(r"    (\w+)<float, (\w+).*_Shape>\(grid", program)


TOLD = 16 * 132  # rows from which on warps tell each other of those of norms without a mean


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("n", "of_two"), [(16392, True), (50304, True), (57344, True), (57808, False)]
)
def test_long_rows_are_filled_or_copied_ahead(n, of_two, dtype):
    """Rows of a gradient, where shared memory has the room for two, by a block; of a norm by a
    cluster of two."""
    programs = _core.cuda_programs(
        long_rows(n, 300, dtype)._core, _core.pass_names(), 132, "sm_90a"
    )
    filled, copied = set(), set()
    for program in programs:
        for kernel, team in teams_of(program):
            if team in ("CopierOf", "TellerOf"):
                copied.add(kernel)
                assert "__cluster_dims__(2, 1, 1)" in program
            elif kernel.endswith(("_kept", "_filled")):
                filled.add(kernel)
            else:
                continue
            spilled = re.search(r"(\d+) bytes spill stores", _core.cuda_log(program, "sm_90a"))[1]
            # Addresses, where results are stored with three others of each row.
            few, same = (80, 0) if n <= 57344 else (176, 52)  # by blocks of 64 registers a thread
            assert int(spilled) <= (few if "same = false" in program else same), kernel
    assert copied == {"normalize_ahead"}
    assert filled <= {"softmax_kept", "softmax_bwd_filled", "normalize_bwd_filled"}
    assert ("normalize_bwd_filled" in filled) == of_two


@pytest.mark.parametrize(
    ("n", "stride", "team"),
    [
        (16384, 0, ""),
        (16386, 0, ""),
        (16388, 0, "32, 18, 4, Brain, 2, 2"),  # four elements at once
        (16392, 0, "16, 18, 8, Brain, 2, 2"),
        (16392, 4, "32, 18, 4, Brain, 2, 2"),  # as rows begin
        (16392, 1, ""),
        (24576, 0, "16, 24, 8, Brain, 2, 2"),
        (24584, 0, "16, 26, 8, Brain, 2, 2"),
        (50304, 0, "16, 50, 8, Brain, 2, 2"),
        (65536, 0, "16, 64, 8, Brain, 2, 2"),
        (65544, 0, ""),
    ],
)
def test_which_norms_copy_long_rows_ahead(n, stride, team):
    """Also if they are few."""
    for count in (3, TOLD - 1):
        g = aicf.Graph("copied")
        x = g.input("x", (count, n + stride), "bfloat16")[:, :n]
        g.output("y", aicf.rms_norm(x, n))
        text = "".join(_core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a"))
        found = re.findall(r"CopierOf<float, (.*?)>", text)
        assert found == ([f"{n}, {team}, 0"] if team else [])
        if team:
            resident = ", 2" if n <= 24576 else ""  # blocks of a processor
            assert f"__launch_bounds__({16 * int(team.split(', ')[1])}{resident})" in text


@pytest.mark.parametrize(
    ("n", "make", "tells"),
    [
        (24576, lambda x, w, n: aicf.rms_norm(x, n, w), False),  # two blocks of a processor
        (24584, lambda x, w, n: aicf.rms_norm(x, n, w), True),
        (24588, lambda x, w, n: aicf.rms_norm(x, n, w), False),  # four elements at once
        (50304, lambda x, w, n: aicf.rms_norm(x, n), True),
        (50304, lambda x, w, n: aicf.gelu(aicf.rms_norm(x, n, w)), True),
        (50304, lambda x, w, n: aicf.layer_norm(x, n, w), False),
        (50304, lambda x, w, n: aicf.rms_norm(x * 2, n, w), False),
        (50304, lambda x, w, n: aicf.rms_norm(x, n) * x, False),  # others of each row
        (57344, lambda x, w, n: aicf.rms_norm(x, n, w), True),
        (57352, lambda x, w, n: aicf.rms_norm(x, n), False),  # more than 28 warps
    ],
)
def test_which_norms_tell_of_long_rows(n, make, tells):
    for count, many in ((TOLD - 1, False), (TOLD, True)):
        g = aicf.Graph("told")
        x, w = g.input("x", (count, n), "bfloat16"), g.input("w", (n,), "bfloat16")
        g.output("y", make(x, w, n))
        (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
        assert ("TellerOf<" in text) == (tells and many)
        assert ("normalize_told<" in text and "ByCounter{" in text) == (tells and many)


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("n", [24584, 50304, 57344])
def test_norms_that_tell_of_long_rows_do_not_spill(n, dtype):
    g = aicf.Graph("told")
    x, w = g.input("x", (TOLD, n), dtype), g.input("w", (n,), dtype)
    g.output("y", aicf.rms_norm(x, n, w))
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
    assert "TellerOf<" in text and ", 0 bytes spill stores" in _core.cuda_log(text, "sm_90a")


@pytest.mark.parametrize(
    ("n", "both", "bytes_"),
    [(16392, True, 128), (50304, True, 128), (65536, True, 0), (65536, False, 64)],
)
def test_what_norms_of_long_rows_keep_beside_them(n, both, bytes_):
    """Weights that shared memory has the room for, of each thread."""
    g = aicf.Graph("norm")
    x, w, b = (
        g.input(name, shape, "bfloat16")
        for name, shape in (("x", (300, n)), ("w", (n,)), ("b", (n,)))
    )
    g.output("y", aicf.layer_norm(x, n, w, b) if both else aicf.rms_norm(x, n, w))
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
    assert re.search(r"CopierOf<.*?, (\d+)>", text)[1] == str(bytes_)
    assert "same = true" in text


@pytest.mark.parametrize(
    ("n", "team"),
    [
        (16384, ""),
        (16388, "10, 2, true"),
        (51200, "10, 2, true"),
        (51204, "21, 1, true"),
        (57344, "23, 1, true"),
        (57348, ""),
    ],
)
def test_blocks_that_keep_rows_of_softmax(n, team):
    """Also if they are few."""
    for count in (3, 3000):
        g = aicf.Graph("kept")
        g.output("y", aicf.softmax(g.input("x", (count, n), "bfloat16")))
        (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
        assert re.findall(r"KeptTeam<(\d.*?)>", text) == ([team] if team else [])
        if team:
            assert ("__cluster_dims__(2, 1, 1)" in text) == (n <= 51200)
            assert "ByCounter{" in text


@needs_compiler
@pytest.mark.parametrize("n", [16384, 16386])
def test_other_rows_are_not_filled(n):
    text = "".join(_core.cuda_programs(long_rows(n, 300)._core, _core.pass_names(), 132, "sm_90a"))
    assert "_filled<" not in text and "CopierOf" not in text


def mixed_rows(n, count, dtype="bfloat16", offset=0):
    """What is made of rows with others beside them, on the way in and out; wide results."""
    rng = np.random.default_rng(n + offset)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    g = aicf.Graph("mixed")

    def state(name, shape, dtype=dtype, kind=kind):
        return g.state(name, shape, dtype, init=(2 * rng.standard_normal(shape)).astype(kind))

    x, y = (state(name, (count, n + 8 * offset))[:, offset : offset + n] for name in ("x", "y"))
    w, one = state("w", (n,)), state("one", (count, 1))
    wide = state("wide", (n,), "float32", np.float32)
    labels = g.constant(np.arange(count) * 7 % n)
    values = {
        "softmax": aicf.softmax(x + y),
        "log_softmax": aicf.log_softmax(aicf.relu(x)) - y,
        "rms_norm": aicf.rms_norm(x * one, n, w),
        "layer_norm": aicf.layer_norm(x, n, w) * one + y,
        "wide norm": aicf.cast(aicf.rms_norm(x, n), "float32") * wide,
        "wide softmax": aicf.cast(aicf.softmax(x), "float32") * wide,
        "loss": aicf.cross_entropy(x, labels),
        "loss of a sum": aicf.cross_entropy(x + y, labels),
    }
    for name, value in values.items():
        g.output(name, value)
    return g


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "n", [8192, 16388, 16392, 24576, 24584, 50304, 51200, 51204, 57344, 57348, 65536, 65540]
)
def test_bits_of_rows_that_are_copied_ahead(n, dtype, offset):
    """More than a cluster copies ahead, and fewer."""
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    for count in (3, 4 * processors + 3):
        ends = []
        for device in ("cpu", "cuda"):
            step = mixed_rows(n, count, dtype, offset).compile(device=device, checks="off")()
            ends.append({name: value.numpy().astype(np.float32) for name, value in step.items()})
        for name, value in ends[0].items():
            alike(value, ends[1][name])


def told(n, count, dtype="bfloat16", offset=0):
    """Norms of rows of which one is all zeros and two are not finite."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    rng = np.random.default_rng(n)
    x = np.resize(rng.standard_normal((1 << 20) - 3, np.float32), (count, n + 8 * offset))
    x[1], x[2, n // 2], x[3, n - 1] = 0, np.inf, np.nan
    x, w = (a.astype(kind) for a in (x, rng.standard_normal(n, np.float32)))
    g = aicf.Graph("told")
    rows = g.state("x", x.shape, dtype, init=x)[:, offset : offset + n]
    weight = g.state("w", w.shape, dtype, init=w)
    g.output("weighted", aicf.rms_norm(rows, n, weight))
    g.output("gelu", aicf.gelu(aicf.rms_norm(rows, n)))
    return g


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("n", [24584, 50304, 57344])
def test_bits_of_rows_that_warps_tell_of(n, dtype, offset):
    """Twice, of other rows, as the counter is 0 again."""
    count = 16 * _core.cuda_info()["devices"][0]["multiprocessors"] + 3
    ends = []
    for device in ("cpu", "cuda"):
        step = told(n, count, dtype, offset).compile(device=device, checks="off")
        ends.append({})
        for turn in range(2):
            for name, value in step().items():
                ends[-1][f"{name} {turn}"] = value.numpy().astype(np.float32)
            step.load_state_dict({"x": -step.state_dict()["x"]}, strict=False)
    for name, value in ends[0].items():
        alike(value, ends[1][name])


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("n", [16392, 16896, 30000, 50304, 57344])
def test_bits_of_rows_that_are_filled_ahead(n, dtype, offset):
    count = 4 * _core.cuda_info()["devices"][0]["multiprocessors"] + 3
    ends = []
    for device in ("cpu", "cuda"):
        step = long_rows(n, count, dtype, offset).compile(device=device, checks="off")()
        ends.append({name: value.numpy().astype(np.float32) for name, value in step.items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


def residuals(shape, dtype, offset, x):
    """Rows of what something else is made of, too, on the way to results in 16 bits."""
    g = aicf.Graph("residuals")
    rows, n = shape
    rng = np.random.default_rng(n)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    more = rng.standard_normal((rows, n), np.float32).astype(kind)
    more[:, ::7] = 0
    x = g.state("x", x.shape, dtype, init=x.astype(kind))[:, offset : offset + n]
    y = g.state("y", more.shape, dtype, init=more)
    s = g.state("s", (), dtype, init=np.asarray(0.75, kind))
    g.output("relu", aicf.softmax(aicf.relu(x)) + aicf.relu(x))
    g.output("neg", aicf.layer_norm(aicf.neg(x), n) - aicf.neg(x))
    g.output("sum", aicf.layer_norm(x + y, n) * s + (x + y))
    g.output("product", (aicf.softmax(x * y) - y) * (x * y))
    return g


RESIDUALS = [(20_000, 64), (300, 50), (41, 2048), (9000, 1024), (3, 70_000), (5, 7)]


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", RESIDUALS, ids=str)
def test_residuals_compile(shape, dtype):
    """Two elements in an instruction where all steps have one, those before the rows, too."""
    g = residuals(shape, dtype, 0, np.zeros(shape, np.float32))
    programs = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
    _core.cuda_cubins(programs, "sm_90a")
    pairs = sum("Two<" in p.split("struct @_Put", 1)[-1] for p in programs)
    assert (pairs > 0) == (dtype != "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", RESIDUALS, ids=str)
def test_bits_of_residuals(shape, dtype, offset):
    """Infinities, NaN, zeros of both signs, the largest and the smallest among them."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((shape[0], shape[1] + offset), np.float32) * 3
    x[:, ::5] = -0.0
    tiny, large = (1e-40, 3e38) if dtype == "bfloat16" else (3e-7, 65504)
    for row, value in enumerate((np.nan, np.inf, -np.inf, tiny, -tiny, large, -large)):
        x[row % shape[0], (3 * row + 1) % x.shape[1]] = value
    ends = []
    for device in ("cpu", "cuda"):
        step = residuals(shape, dtype, offset, x).compile(device=device, checks="off")()
        ends.append({name: value.numpy().astype(np.float32) for name, value in step.items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


def norms_ahead(n, count, dtype="bfloat16", offset=0):
    rng = np.random.default_rng(n)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    g = aicf.Graph("ahead")

    def state(name, *shape):
        return g.state(name, shape, dtype, init=rng.standard_normal(shape, np.float32).astype(kind))

    x = state("x", count, n + 8 * offset)[:, offset : offset + n]
    w, b = (state(name, n + offset)[offset:] for name in ("w", "b"))
    for name, y in (
        ("layer_norm", aicf.layer_norm(x, n, w, b)),
        ("rms_norm", aicf.rms_norm(x, n, w)),
        ("plain", aicf.gelu(aicf.layer_norm(x, n))),
    ):
        g.output(name, y)
        g.output(f"d {name}", aicf.grad(aicf.sum(y * y), [x])[0])
    return g


@pytest.mark.parametrize(
    ("n", "count", "ahead"),
    [(64, 1 << 20, 0), (768, 16384, 2), (768, 512, 0), (1024, 16384, 2), (8192, 16384, 0)],
)
def test_norms_of_two_leaves_are_read_ahead(n, count, ahead):
    """Others lost by it."""
    text = _core.cuda_programs(norms_ahead(n, count)._core, _core.pass_names(), 132, "sm_90a")
    assert len(re.findall(r"    normalize_ahead<", "".join(text))) == ahead


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("n", "count"), [(64, (1 << 17) + 3), (136, 60_001), (768, 13_001), (4096, 3001)]
)
def test_bits_of_norms_whose_rows_are_read_ahead(n, count, dtype, offset):
    ends = []
    for device in ("cpu", "cuda"):
        step = norms_ahead(n, count, dtype, offset).compile(device=device, checks="off")()
        ends.append({name: value.numpy().astype(np.float32) for name, value in step.items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


@pytest.mark.parametrize(
    ("n", "count", "wide", "team"),
    [
        (4096, 3001, False, "16, 4, false, 8"),
        (1544, 2113, False, "16, 2, false, 8"),  # three leaves and a part
        (4096, 3001, True, "32, 4"),
        (4092, 3001, False, "32, 4"),  # lines that do not end with eight
        (3072, 3001, False, "16, 3, false, 8"),
        (2560, 3001, False, "32, 3"),  # fewer leaves than halves of warps
        (4096, 1000, False, "32, 8"),  # rows that do not fill the processors
    ],
)
def test_a_leaf_of_16_bits_is_taken_by_half_a_warp(n, count, wide, team):
    g = aicf.Graph("norm")
    x, w = g.input("x", (count, n), "bfloat16"), g.input("w", (n,), "bfloat16")
    y = aicf.rms_norm(x, n, w)
    g.output("y", aicf.cast(y, "float32") if wide else y)
    texts = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
    found = re.findall(r"    normalize_rows<.*?HolderOf<(.*?)>", "".join(texts))
    assert found == [f"float, {n}, {team}"]


LASTING = 1 << 19  # elements of a processor from which on rows stay in the second cache


@pytest.mark.parametrize(
    ("op", "n", "count", "dtype", "lasts"),
    [
        ("rms_norm", 8192, 64 * 132, "bfloat16", True),
        ("rms_norm", 8192, 64 * 132 - 1, "bfloat16", False),
        ("rms_norm", 2048, 256 * 132, "float16", True),
        ("layer_norm", 2048, 256 * 132, "bfloat16", False),
        ("layer_norm", 8192, 64 * 132, "float32", False),
        ("rms_norm", 768, 1024 * 132, "bfloat16", False),  # rows of a warp
        ("layer_norm", 32768, 16 * 132, "bfloat16", True),  # rows that are copied ahead
        ("rms_norm", 32768, 16 * 132 - 1, "bfloat16", False),
        ("rms_norm", 50304, 11 * 132, "bfloat16", True),
        ("rms_norm", 100_000, 8 * 132, "bfloat16", False),  # rows that no block's registers hold
    ],
)
def test_which_rows_stay_in_the_second_cache(op, n, count, dtype, lasts):
    """Those of norms that are copied ahead, and without a mean of those that blocks hold, many
    times what it has room for."""
    g = aicf.Graph("lasting")
    x, w = g.input("x", (count, n), dtype), g.input("w", (n,), dtype)
    g.output("y", getattr(aicf, op)(x, n, w))
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
    assert ("Loads::lasting>" in text) == lasts
    assert (", true>(a1, x1, i);" in text) == lasts  # the weight, too


@pytest.mark.parametrize(
    ("op", "n", "here"),
    [("softmax", 768, 1), ("softmax", 64, 0), ("softmax", 8192, 0), ("log_softmax", 768, 0)],
)
def test_which_rows_are_loaded_where_it_is_written(op, n, here):
    g = aicf.Graph("here")
    g.output("y", getattr(aicf, op)(g.input("x", ((1 << 24) // n, n), "bfloat16")))
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
    assert ("Loads::here>" in text) == bool(here)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("n", [1536, 2048, 16392])
def test_bits_of_rows_that_stay_in_the_second_cache(n, offset):
    """Of rows that begin at multiples of 16 bytes and others."""
    (gpu, *_) = _core.cuda_info()["devices"]
    if gpu["multiprocessors"] > 4 and "EMULATOR_FOLDER" in os.environ:
        pytest.skip("rows of all processors are too many to emulate")
    count = LASTING * gpu["multiprocessors"] // n + 1
    rng = np.random.default_rng(n)
    x = np.resize(rng.standard_normal((1 << 20) - 3, np.float32), (count, n + offset))
    x, w = (a.astype(ml_dtypes.bfloat16) for a in (x, rng.standard_normal(n, np.float32)))
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("lasting")
        rows = g.state("x", x.shape, "bfloat16", init=x)[:, offset:]
        weight = g.state("w", w.shape, "bfloat16", init=w)
        g.output("rms_norm", aicf.rms_norm(rows, n, weight))
        g.output("plain", aicf.rms_norm(rows, n))
        g.output("layer_norm", aicf.layer_norm(rows, n, weight))
        g.output("gelu", aicf.gelu(aicf.rms_norm(rows, n, weight)))
        step = g.compile(device=device, checks="off")()
        ends.append({name: value.numpy().astype(np.float32) for name, value in step.items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


PIECES = [
    # rows, terms, processors, pieces of a block
    (1, 32768, 132, 1),
    (3, 40001, 132, 1),  # a part of a piece
    (1, (1 << 23) - 5000, 4, 4),
    (2, 70000, 132, 1),
]


@pytest.mark.parametrize(("count", "n", "processors", "each"), PIECES)
def test_long_rows_are_summed_in_pieces(count, n, processors, each):
    g = aicf.Graph("sum")
    g.output("y", aicf.sum(g.input("x", (count, n)), 1))
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), processors, "sm_90a")
    assert re.search(r"reduce_pieces<.*HolderOf<float, 8192, 32, 8>, (\d+),", text)[1] == str(each)
    g = aicf.Graph("loss")
    g.output("y", aicf.mse_loss(g.input("x", (count, n)), g.input("t", (count, n))))
    assert "reduce_split<" in "".join(_core.cuda_programs(g._core, _core.pass_names()))


@pytest.mark.parametrize(("count", "kernel"), [(264, "rows"), (263, "rows<.*StreamerOf")])
def test_registers_hold_rows_that_fill_processors(count, kernel):
    g = aicf.Graph("sum")
    g.output("y", aicf.sum(g.input("x", (count, 16384)), 1))
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
    assert re.search(f"reduce_{kernel}", text)
    assert ("HolderOf<float, 16384, 32, 16>" in text) == (count == 264)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize(
    ("count", "n"), [*((count, n) for count, n, *_ in PIECES), (270, 16384), (280, 15875)]
)
def test_bits_of_sums_of_long_rows(count, n, dtype):
    """Of rows that begin at multiples of 16 bytes and others."""
    if dtype == "int32":
        data = np.random.default_rng(n).integers(-1000, 1000, (count, n)).astype(np.int32)
    else:
        data = np.random.default_rng(n).standard_normal((count, n), np.float32)
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("sums")
        x = g.state("x", (count, n), data.dtype.name, init=data)
        if dtype == "bfloat16":
            x = aicf.cast(x, dtype)
        values = {"sum": aicf.sum(x, 1), "part": aicf.sum(x[:, 1:], 1), "most": aicf.max(x, 1)}
        if dtype == "float32":
            values["mean"] = aicf.mean(x * x, 1) * 2.0 + 1.0
        for name, value in values.items():
            g.output(name, aicf.cast(value, "float32") if dtype == "bfloat16" else value)
        step = g.compile(device=device)()
        ends.append({name: value.numpy() for name, value in step.items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])
