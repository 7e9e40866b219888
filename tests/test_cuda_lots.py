"""Loops of heavy functions over many elements, several vectors a thread at a time."""

import re
import subprocess
import sys
import time
from pathlib import Path

import aicf
import emulate
import ml_dtypes
import numpy as np
import pytest
from aicf import _core

BF16 = "bfloat16"


def chain(x, k=1.7):
    return aicf.tanh(aicf.sin(x * k + 0.3) * x + aicf.exp(-(x * x))) * aicf.sigmoid(x)


def two(x, y):
    return aicf.tanh(aicf.sin(x * y) * x + aicf.exp(-(x * x))) * aicf.sigmoid(y) / (x * x + 2.0)


def launch(make, *shapes, dtype="float32"):
    """The text of a graph's only launch."""
    g = aicf.Graph("lots")
    result = make(*(g.state(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)))
    for i, y in enumerate(result if isinstance(result, tuple) else (result,)):
        g.output(f"y{i}", y)
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
    return text


LOTS = 16 * 132 * 256 * 8  # elements from which on an H100 takes lots


@pytest.mark.parametrize(
    ("make", "shapes", "dtype", "lots"),
    [
        (chain, [(LOTS,)], "float32", "4, 4, 128"),
        (chain, [(LOTS - 1,)], "float32", None),
        (lambda x: (chain(x), aicf.sin(x * 3.0)), [(LOTS,)], "float32", "4, 2, 1024"),
        (two, [(LOTS,), (LOTS,)], BF16, "8, 1, 2048"),
        (chain, [(LOTS,), (1,)], "float32", "4, 4, 128"),
        (chain, [(4096, LOTS // 4096), (LOTS // 4096,)], "float32", None),
        (aicf.tanh, [(LOTS,)], "float32", "4, 2, 512"),
        (aicf.tanh, [(LOTS - 1,)], "float32", None),
        (lambda x: aicf.sin(x * 1.7 + 0.3), [(LOTS,)], "float32", "4, 2, 512"),
        (lambda x, y: aicf.tanh(x) + y, [(LOTS,), (LOTS,)], "float32", None),
        (lambda x: aicf.sqrt(x) + 1.0, [(LOTS,)], "float32", None),
        (lambda x: aicf.relu(x), [(LOTS,)], "float32", None),
        (chain, [(LOTS,)], "float64", None),
    ],
    ids=[
        "chain",
        "few",
        "two results",
        "16 bits",
        "one number",
        "rows",
        "light",
        "few light",
        "light chain",
        "light of two",
        "lighter",
        "copy",
        "f64",
    ],
)
def test_what_takes_lots(make, shapes, dtype, lots):
    text = launch(make, *shapes, dtype=dtype)
    assert f"load_lots<{lots}," in text if lots else "load_lots" not in text
    assert ("__launch_bounds__(128, 12)" in text) == (lots == "4, 2, 512")


@pytest.mark.parametrize(
    ("make", "operands", "dtype", "turns"),
    [
        (chain, 1, "float32", True),
        (lambda x: aicf.tanh(aicf.sin(x) * aicf.exp(x)) * aicf.sigmoid(x), 1, "float32", True),
        (chain, 1, BF16, False),
        (two, 2, "float32", False),
        (lambda x: (chain(x), aicf.sin(x * 3.0)), 1, "float32", False),
        (lambda x: aicf.silu(aicf.gelu(aicf.softplus(x) * x)), 1, "float32", False),
    ],
    ids=["chain", "one way", "16 bits", "two operands", "two results", "no forms"],
)
def test_what_takes_turns(make, operands, dtype, turns):
    """One result of one tensor, with forms of fewer steps: constants in registers, too."""
    text = launch(make, *[(LOTS,)] * operands, dtype=dtype)
    assert ("Turns<4, 4, float, float>" in text) == turns
    assert ("held(scalar::Constants())" in text) == turns


PAIRS = 2 * LOTS  # elements of 16 bits from which on an H100 takes two vectors of each thread


@pytest.mark.parametrize(
    ("make", "count", "dtype", "pairs"),
    [
        (aicf.exp, PAIRS, "float16", True),
        (aicf.exp, PAIRS - 1, "float16", False),
        (aicf.exp, PAIRS, BF16, False),
        (aicf.exp, PAIRS, "float32", False),
        (aicf.relu, PAIRS, "float16", False),
        (lambda x: aicf.gelu(x, approximate="tanh"), PAIRS, BF16, True),
        (lambda x: aicf.exp(x) * x, PAIRS, "float16", True),
        (lambda x: aicf.sin(x * 1.7 + 0.3), PAIRS, BF16, True),
        (lambda x: aicf.sin(x * 1.7), PAIRS, BF16, False),
    ],
    ids=["exp", "few", "short form", "float32", "light", "gelu", "chain", "13", "12"],
)
def test_what_takes_pairs(make, count, dtype, pairs):
    """Programs of 16 bits whose instructions are many, but fewer than pass while memory moves."""
    assert ("load_lots<8, 2, 2048," in launch(make, (count,), dtype=dtype)) == pairs


def test_limits_of_operands():
    """One comparison for an element where all functions have arguments that follow from it."""
    text = launch(chain, (LOTS,))
    (limit,) = (line for line in text.splitlines() if "const float most0" in line)
    (least,) = (line for line in text.splitlines() if "const float least0" in line)
    assert "near_limit(65536.0f, scalar::abs(u1), scalar::abs(u2)), 86.0f)" in limit
    assert least.endswith("86.0f), 9.300000f), 8.400000f);")
    assert "_near(constants, near" not in text and text.count("_near(constants, within") == 5
    assert text.count("exp_normal(") == text.count("tanh_bounded(") == 1
    assert text.count("largest = scalar::maximum(") == 1 and "near &= " in text
    text = launch(two, (LOTS,), (LOTS,))  # a product of both has a comparison of its own
    assert "sin_near(constants, near" in text and "exp_near(" in text


def squared(x, u, _):
    return aicf.sin(x) * aicf.exp(-((x * u) * (x * u))) + x


def scaled(x, u, _):
    return aicf.sigmoid(x * u) * aicf.sigmoid(x * u * 0.5) * 2.0 + 1.0


def scaled_twice(x, u, v):
    return aicf.sigmoid(x * u * v) * aicf.sigmoid(x) * 2.0 + 1.0


def test_limits_of_what_comes_before():
    """Of a square, and of what is multiplied again."""
    text = launch(squared, (LOTS,), (1,), (1,))
    assert "at_most(65536.0f, scalar::near_limit(0x1p60f, scalar::abs(u1), 0.0f))" in text
    text = launch(scaled_twice, (LOTS,), (1,), (1,))
    (limit,) = (line for line in text.splitlines() if "const float most0" in line)
    assert "scalar::near_limit(0x1p100f, scalar::abs(u1), 0.0f)" in limit


@pytest.mark.parametrize(
    ("argument", "limits"),
    [
        (lambda x, y: aicf.sin(x) * x + aicf.exp(-(x * x)), ["9.3", "8.4"]),
        (lambda x, y: -(aicf.cos(x) * x) * aicf.sigmoid(x) - aicf.exp(-(x * x)), ["9.3", "8.4"]),
        (lambda x, y: aicf.sin(x) * x, ["9.3"]),
        (lambda x, y: aicf.sin(x) + aicf.sigmoid(y), ["9.3"]),
        (lambda x, y: (aicf.cos(x) - x) * aicf.sigmoid(x) + aicf.exp(-(x * x)), None),  # |x| + 2
        (lambda x, y: aicf.sin(x) * 2.0 * x + aicf.exp(-(x * x)), None),  # a number of any size
        (lambda x, y: aicf.sin(x) * x * x * aicf.exp(-(x * x)), None),
        (lambda x, y: aicf.exp(x) * aicf.sin(x) * aicf.exp(-(x * x)), None),
        (lambda x, y: aicf.sin(x) * y, None),  # nothing else asks as much of y
        (lambda x, y: aicf.sin(x) * x + y, None),
    ],
    ids=[
        "chain",
        "signs",
        "as far as exponentials",
        "of functions alone",
        "two more",
        "twice",
        "square",
        "exponential",
        "another operand",
        "two operands",
    ],
)
def test_bounded_tanh(argument, limits):
    """Where the limit of its operand keeps the argument below 9.5."""

    def make(x, y):
        return aicf.tanh(argument(x, y)) * aicf.sigmoid(x) * aicf.exp(-(x * x)) + aicf.sigmoid(y)

    text = launch(make, (LOTS,), (LOTS,))
    assert "exp_normal(" in text and ("tanh_bounded(" in text) == (limits is not None)
    (least,) = (line for line in text.splitlines() if "const float least0" in line)
    asked = limits or ["9.3"]
    assert re.findall(r"(\d\.\d)0*f", least)[-len(asked) :] == asked


def test_time_of_bounds():
    """A value that the next one reads twice, and so on, is looked at once, not 2^n times."""

    def seconds(times):
        g = aicf.Graph("doubled")
        x = g.state("x", (LOTS,))
        t = aicf.sin(x) * x
        for _ in range(times):
            t = t + t
        g.output("y", aicf.tanh(t) * aicf.sigmoid(x) * aicf.exp(-(x * x)))
        began = time.perf_counter()
        (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
        assert "exp_normal(" in text and "tanh_bounded(" not in text
        return time.perf_counter() - began

    assert min(seconds(23) for _ in range(3)) < 100 * min(seconds(11) for _ in range(3))


def two_squares(x, y):
    e = aicf.exp(-(x * x)) * aicf.exp(-(y * y))
    return e * aicf.sigmoid(x) * aicf.sigmoid(y) * aicf.sin(x) * aicf.sin(y)


def test_squares_of_two_operands():
    """Of one the largest is looked for; the other is compared by itself."""
    text = launch(two_squares, (LOTS,), (LOTS,))
    assert text.count("largest = scalar::maximum(") == 1
    assert "near &= scalar::abs(a1[j]) <= least1" in text


REGISTERS = [
    (chain, 1),
    (two, 2),
    (lambda x: (chain(x), aicf.sin(x * 3.0)), 1),
    (lambda x, y, z: two(x, y) * aicf.exp(-(z * z)), 3),
    (lambda x: (aicf.sin(x * 2.0) * aicf.exp(-(x * x)), aicf.cos(x * 2.0) * aicf.sigmoid(x)), 1),
    (aicf.exp, 1),
    (lambda x: aicf.gelu(x, approximate="tanh"), 1),
    (lambda x, y: aicf.softplus(x) * aicf.sigmoid(y) * aicf.log(aicf.exp(x) + 1.0), 2),
]


@pytest.mark.parametrize("dtype", ["float32", BF16, "float16"])
def test_registers(dtype):
    if not _core.cuda_info()["nvrtc"]:
        pytest.skip("NVRTC is not installed (aicf[cuda13])")
    for make, shapes in REGISTERS:
        text = launch(make, *[(2 * LOTS,)] * shapes, dtype=dtype)
        assert " 0 bytes spill stores" in _core.cuda_log(text, "sm_90a")


def processors():
    (gpu, *_) = _core.cuda_info()["devices"]
    return gpu["multiprocessors"]


def numbers(count, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(count).astype(np.float32)
    x[: count // 4 : 1117] *= 1e6
    x[count // 4 : count // 2 : 97] *= 40
    x[count // 2 : count // 2 + 600 : 3] = rng.integers(0, 2**32, 200, np.uint32).view(np.float32)
    edge = np.float32(9.3)  # below it e^(-x x) is a normal number
    x[-20:-5] = [edge + np.float32(k) * np.spacing(edge) for k in range(-7, 8)]
    x[-40:-25] = -x[-20:-5]
    x[:1000:7] = np.linspace(7.9, 9.6, 143, dtype=np.float32)
    x[-5:] = 65536.0, -65537.0, np.inf, -np.inf, np.nan
    return x


def both(make, dtype, arrays, cut=0):
    """What both devices make of arrays, of which `cut` elements are left out in front."""
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("lots")
        operands = [g.state(f"x{i}", a.shape, dtype, init=a) for i, a in enumerate(arrays)]
        result = make(*(x[cut:] if x.shape != (1,) else x for x in operands))
        for i, y in enumerate(result if isinstance(result, tuple) else (result,)):
            g.output(f"y{i}", y)
        step = g.compile(device=device, checks="off")()
        ends.append([step[name].numpy().astype(np.float32) for name in step])
    return ends


MAKES = {
    "chain": (chain, 1),
    "steep": (lambda x: chain(x, 1e4), 1),
    "flat": (lambda x: chain(x, 0.0), 1),
    "two": (two, 2),
    "two squares": (two_squares, 2),
    "no limit": (lambda x: chain(x, np.nan), 1),
    "results": (lambda x: (chain(x), aicf.sin(x * 3.0)), 1),
    "one way": (lambda x: aicf.tanh(aicf.sin(x) * aicf.exp(x)) * aicf.sigmoid(x), 1),
    "no forms": (lambda x: aicf.silu(aicf.gelu(aicf.softplus(x) * x) - aicf.erf(x)), 1),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", BF16])
@pytest.mark.parametrize("name", MAKES)
def test_bits(name, dtype):
    """As a CPU makes them: whole lots, the rest behind, operands that begin anywhere."""
    make, operands = MAKES[name]
    wide = {"float32": np.float32, BF16: ml_dtypes.bfloat16}[dtype]
    least = 16 * processors() * 2048
    for count, cut in ((least, 0), (least + 1029, 0), (least + 7, 3)):
        with np.errstate(invalid="ignore"):
            arrays = [numbers(count + cut, seed).astype(wide) for seed in range(operands)]
        for cpu, gpu in zip(*both(make, dtype, arrays, cut), strict=True):
            known = ~np.isnan(cpu)
            np.testing.assert_array_equal(known, ~np.isnan(gpu))
            assert cpu[known].tobytes() == gpu[known].tobytes(), (count, cut)


def line(x):
    return aicf.sin(x * 1.7 + 0.3)


@pytest.mark.gpu
@pytest.mark.parametrize("more", [-129, -1, 0, 1, 4, 127, 128, 129, 383, 384, 385, 511])
def test_bits_around_a_lot(more):
    """Ends before, at and behind a lot of a warp, of its vectors and of its lanes, behind as many
    lots as all warps have at once, one fewer or one more."""
    lot, warps = 4 * 32 * 4, 32 * processors()
    least = -(-16 * processors() * 2048 // (lot * warps)) * warps
    for lots in (least - 1, least, least + 1) if more in (0, 1) else (least,):
        x = numbers(lots * lot + more, 13)
        ((cpu,), (gpu,)) = both(chain, "float32", [x])
        known = ~np.isnan(cpu)
        np.testing.assert_array_equal(known, ~np.isnan(gpu))
        assert cpu[known].tobytes() == gpu[known].tobytes(), lots


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["chain", "one way"])
def test_bits_of_turns(name):
    """Several lots of each block, some of which are far in one thread of a warp alone."""
    make, _ = MAKES[name]
    x = numbers(100 * processors() * 2048 + 1029, 11)
    x[-40_000:-20_000:2053] = 12.0
    ((cpu,), (gpu,)) = both(make, "float32", [x])
    known = ~np.isnan(cpu)
    np.testing.assert_array_equal(known, ~np.isnan(gpu))
    assert cpu[known].tobytes() == gpu[known].tobytes()


@pytest.mark.gpu
def test_bits_at_the_limits():
    """A number at a limit of the quickest forms, or beyond it, in each lot of numbers below it: in
    any lane, vector and place."""
    lots = 2 * 32 * processors() * 3
    rng = np.random.default_rng(17)
    x = rng.standard_normal((lots, 512)).astype(np.float32)
    edges = [np.nan, np.inf, 1e30, 1e19, 0.0]
    for edge in np.float32([8.4, 9.3, 9.5]):
        edges += [edge + np.float32(k) * np.spacing(edge) for k in range(-8, 9)]
    edges = np.array([*edges, *np.negative(edges), 8.0], np.float32)
    assert len(edges) % 2  # so that each comes to all places
    x[np.arange(lots), np.arange(lots) % 512] = edges[np.arange(lots) % len(edges)]
    ((cpu,), (gpu,)) = both(chain, "float32", [x.reshape(-1)])
    known = ~np.isnan(cpu)
    np.testing.assert_array_equal(known, ~np.isnan(gpu))
    assert cpu[known].tobytes() == gpu[known].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", BF16])
def test_bits_of_pairs(dtype):
    """The same of loops that memory bounds."""
    wide = {"float32": np.float32, "float16": np.float16, BF16: ml_dtypes.bfloat16}[dtype]
    least = 16 * processors() * (2048 if dtype == "float32" else 4096)
    makes = (aicf.exp, lambda x: aicf.gelu(x, approximate="tanh"))
    for make in (aicf.tanh, line) if dtype == "float32" else makes:
        for count, cut in ((least, 0), (least + 2051, 0), (least + 7, 3)):
            with np.errstate(invalid="ignore", over="ignore"):
                x = numbers(count + cut, 7).astype(wide)
            ((cpu,), (gpu,)) = both(make, dtype, [x], cut)
            known = ~np.isnan(cpu)
            np.testing.assert_array_equal(known, ~np.isnan(gpu))
            assert cpu[known].tobytes() == gpu[known].tobytes(), (count, cut)


@pytest.mark.gpu
@pytest.mark.parametrize("u", [np.nan, np.inf, -np.inf, 1e38, 3e30, 1.0, 1e-30, 1e-37, 1e-41, 0.0])
@pytest.mark.parametrize("make", [squared, scaled, scaled_twice])
def test_numbers_for_all(make, u):
    """Numbers that all elements are multiplied by, at ends of the range and beyond it."""
    ends = []
    x = numbers(40_003, 5)
    x[::1009], x[4::2018], x[8::2018] = 0.0, np.inf, -np.inf
    with np.errstate(divide="ignore", over="ignore"):
        v = np.float32(1) / np.float32(u)
    for device in ("cpu", "cuda"):
        g = aicf.Graph("numbers")
        others = (g.state(name, (), init=one) for name, one in (("u", u), ("v", v)))
        g.output("y", make(g.state("x", x.shape, init=x), *others))
        step = g.compile(device=device, checks="off")()
        ends.append(step["y"].numpy())
    known = ~np.isnan(ends[0])
    np.testing.assert_array_equal(known, ~np.isnan(ends[1]))
    assert ends[0][known].tobytes() == ends[1][known].tobytes()


@pytest.mark.gpu
def test_in_place():
    """A state that becomes what is made of it."""
    x = numbers(16 * processors() * 2048 + 1029, 3)
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("lots")
        s = g.state("s", x.shape, "float32", init=x)
        g.assign(s, chain(s))
        step = g.compile(device=device, checks="off")
        step()
        step()
        ends.append(step.state_dict()["s"])
    known = ~np.isnan(ends[0])
    assert ends[0][known].tobytes() == ends[1][known].tobytes()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(bool(emulate.missing()), reason=emulate.missing())
@pytest.mark.parametrize("major", [8, 9])
def test_emulated(emulated, major):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider",
         "-p", "no:xdist", "-p", "no:benchmark", __file__],
        cwd=Path(__file__).parent.parent, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=emulate.environment(emulated, major=major, processors=1, order=major),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:]
