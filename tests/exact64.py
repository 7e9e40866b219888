"""Errors of the float64 functions in units in the last place (ULP), and sums over their bits.

    python tests/exact64.py [--chunks 96] [--jobs N] [--ops exp log ...] [--keep]

An error is |result - exact| over the spacing of the float64 around the exact value, which
exact64.cpp gives with eleven digits more. A chunk is 2**20 inputs drawn from (--seed, chunk): half
of any bits, so of every exponent and sign; the rest where the op varies, and beside special points
such as its thresholds and the float64 nearest to multiples of pi/2. All are made by integers and
correctly rounded operations, so that they are the same everywhere; so must be the sum of a chunk's
results, which --keep writes down and every instruction set of this machine is held to.
"""

import argparse
import ctypes
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import aicf
import numpy as np
from accuracy import KEPT64, WORKER, run

CHUNK, SEED = 1 << 20, 64


class Op(NamedTuple):
    allowed: float  # ULP
    low: float = -40.0  # where results vary
    high: float = 40.0
    special: tuple = ()
    arity: int = 1
    attrs: dict = {}  # noqa: RUF012


LOG_MAX, LOG_MIN, LOG_TINY = 709.782712893384, -708.3964185322641, -745.1332191019412
OPS = {
    "exp": Op(0.8, -750, 715, (LOG_MAX, LOG_MIN, LOG_TINY, 710.0, 746.0)),
    "log": Op(0.8, 0, 4, (2 / 3, 4 / 3)),
    "log1p": Op(0.8, -1, 4, (1 / 3, 2 / 3)),
    "expm1": Op(1.0, -3, 3, (LOG_MAX, -40.0, 700.0)),
    "exp2": Op(0.8, -1080, 1030, (-1022.0, -1074.0, 1024.0)),
    "log2": Op(0.8, 0, 4, (2**0.5,)),
    "log10": Op(0.8, 0, 4, (2**0.5, *(10.0**k for k in range(-300, 308, 19)))),
    "tan": Op(1.0, -1e4, 1e4, (2.0**-27, 2.0**30)),
    "asin": Op(0.8, -1, 1, (2**0.5 / 2, 0.3826834323650898, 0.9238795325112867)),
    "acos": Op(0.8, -1, 1, (2**0.5 / 2, 0.3826834323650898, 0.9238795325112867)),
    "atan": Op(0.8, -4, 4, (2**0.5 - 1, 2**0.5 + 1)),
    "sinh": Op(0.8, -45, 45, (2.0**-27, LOG_MAX, 710.4758600739439)),
    "cosh": Op(1.0, -45, 45, (LOG_MAX, 710.4758600739439)),
    "asinh": Op(0.8, -4, 4, (2.0**-27, 2.0**28)),
    "acosh": Op(0.8, 1, 4, (2.0**28,)),
    "atanh": Op(0.8, -1, 1, (2.0**-27, 1 / 3)),
    "atan2": Op(0.8, -4, 4, (2.0**1000, 2.0**-900), 2),
    "hypot": Op(0.8, -4, 4, (2.0**500, 2.0**-500), 2),
    "rsqrt": Op(0.8, 0, 4),
    "sin": Op(0.8, -1e4, 1e4, (2.0**-27, 2.0**30)),
    "cos": Op(0.8, -1e4, 1e4, (2.0**30,)),
    "tanh": Op(0.8, -3, 3, (20.0,)),
    "erf": Op(0.85, -3, 3, (0.85, 6.0)),
    "pow": Op(0.8, 0, 4, arity=2),
    "elu": Op(0.85, -3, 1, (LOG_MAX, -40.0), attrs={"alpha": 1.0}),
    "sigmoid": Op(1.0, -45, 45, (LOG_MIN, LOG_TINY, 760.0)),
    "silu": Op(2.0, -45, 45, (LOG_MIN, LOG_TINY, 760.0)),
    "softplus": Op(2.0, -45, 45, (LOG_MIN, LOG_TINY, 760.0)),
    "gelu_tanh": Op(2.0, -24, 10, (-21.0, 40.0)),
    "gelu_erf": Op(3.5, -40, 10, (37.5, 38.5, 39.0)),
    "tanh_bwd": Op(1.0, -1, 1, arity=2),
    "sigmoid_bwd": Op(2.0, 0, 1, arity=2),
    "elu_bwd": Op(1.0, -750, 1, (LOG_MIN, LOG_TINY), 2, {"alpha": 1.0}),
    "softplus_bwd": Op(1.0, -45, 45, (LOG_MIN, LOG_TINY, 760.0), 2),
    "silu_bwd": Op(4.0, -45, 45, (LOG_MIN, LOG_TINY, 760.0), 2),
    "gelu_tanh_bwd": Op(5.0, -24, 10, (-21.0, 40.0), 2),
    "gelu_erf_bwd": Op(4.0, -40, 10, (37.5, 38.5, 39.0), 2),
}


PAIRED = ("pow", "atan2", "hypot")
FUNCTIONS = [name for name in OPS if not name.endswith("_bwd")]


def applied(name, x, y):
    """The function of values of a graph."""
    named = {"gelu_erf": lambda: aicf.gelu(x), "gelu_tanh": lambda: aicf.gelu(x, "tanh")}
    named |= {two: lambda two=two: getattr(aicf, two)(x, y) for two in PAIRED}
    return named.get(name, lambda: getattr(aicf, name)(x))()


# ---- inputs


def scaled_pi(bits):
    """floor(pi 2**bits), by Machin's formula."""

    def arctan(inverse):
        total = term = (1 << (bits + 32)) // inverse
        n = 3
        while term:
            term //= -inverse * inverse
            total += term // n
            n += 2
        return total

    return (16 * arctan(5) - 4 * arctan(239)) >> 32


def nearest_multiples():
    """Of each exponent the numerators m < 2**53 for which m 2**e is nearest to a multiple of pi/2,
    by the continued fraction of 2**e / (pi/2)."""
    bits = 2400
    half_pi = scaled_pi(bits) >> 1
    for e in range(-60, 972):
        a, b = (1 << (bits + e), half_pi)
        p0, q0, p1, q1 = 0, 1, 1, 0
        while b:
            digit, rest = divmod(a, b)
            a, b = b, rest
            p0, q0, p1, q1 = p1, q1, digit * p1 + p0, digit * q1 + q0
            if q1 >= 1 << 53:
                break
        if q0:
            yield float(q0) * 2.0**e


@functools.cache
def special_points(name):
    common = [0.0, 0.5, 1.0, 2.0, 2.0**-1022, 2.0**-1074, 2.0**1023, np.finfo(float).max, np.inf]
    powers = np.ldexp(1.0, np.arange(-60, 60))
    exact = [*common, *powers, *OPS[name].special]
    if name in ("sin", "cos", "tan"):
        half_pi = scaled_pi(200) >> 1
        counts = [*range(1, 2000), *(3**k for k in range(8, 36))]
        exact += [k * half_pi / 2**200 for k in counts]  # a quotient of integers rounds once
        exact += list(nearest_multiples())
    if name in (
        "exp",
        "expm1",
        "sigmoid",
        "softplus",
        "tanh",
        "elu",
        "softplus_bwd",
        "sinh",
        "cosh",
    ):
        exact += [(k + 0.5) * 0.6931471805599453 for k in range(1100)]  # where the reduction turns
    return np.array(exact)


def draws(seed, chunk, stream, n):
    return np.random.PCG64([seed, chunk, stream]).random_raw(n)


def unit(raw):
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def beside(points, raw):
    """One of the points with either sign, up to 16 numbers away."""
    picked = points[(raw >> np.uint64(32)) % np.uint64(len(points))].view(np.int64)
    near = picked + (raw & np.uint64(31)).astype(np.int64) - 16
    sign = (raw & np.uint64(32)) << np.uint64(58)
    return (near.view(np.uint64) ^ sign).view(np.float64)


def unary_inputs(name, seed, chunk, n=CHUNK):
    op, x = OPS[name], draws(seed, chunk, 0, n).view(np.float64)
    half, most = n // 2, n - n // 8
    raw = draws(seed, chunk, 1, n - half)
    x[half:] = op.low + (op.high - op.low) * unit(raw)
    x[most:] = beside(special_points(name), raw[most - half :])
    return x


PAIRS = np.array(
    [0.0, 1.0, 2.0, 3.0, 4.0, 0.5, 1.5, 1e-300, 1e300, 2.0**53 - 1, 2.0**53, 2.0**-1074, np.inf]
)


def pow_inputs(seed, chunk, n=CHUNK):
    """Any bits; powers that fit, of numbers of any size and near 1; whole y; special pairs."""
    x, y = (draws(seed, chunk, k, n).view(np.float64) for k in (0, 1))
    fit, near = slice(n // 8, n * 5 // 8), slice(n // 2, n * 5 // 8)
    raw = draws(seed, chunk, 2, n)
    step = unit(raw[near]) * np.ldexp(1.0, -(raw[near] & np.uint64(31)).astype(np.int64))
    x[near] = 1 + np.where(raw[near] & np.uint64(32), -0.5, 1.0) * step
    bits = x[fit].view(np.uint64) & np.uint64(2**63 - 1)
    x[fit] = bits.view(np.float64)
    with np.errstate(all="ignore"):  # log2 within a factor of 1.45, by the bits
        log = bits.astype(np.float64) * 2.0**-52 - 1023
        y[fit] = (2200 * unit(raw[fit]) - 1100) / log
    whole = slice(n * 5 // 8, n * 7 // 8)
    x[whole] = 20 * unit(raw[whole]) - 10
    y[whole] = (raw[whole] & np.uint64(127)).astype(np.float64) * 0.5 - 32
    rest = slice(n * 7 // 8, n)
    x[rest] = beside(PAIRS, raw[rest])
    y[rest] = beside(PAIRS, draws(seed, chunk, 3, n - rest.start))
    return x, y


def inputs(name, seed, chunk, n=CHUNK):
    """The operands of one chunk; of a derivative dy is 1."""
    if name == "pow":
        return pow_inputs(seed, chunk, n)
    x = unary_inputs(name, seed, chunk, n)
    return x, unary_inputs(name, seed + 1, chunk, n) if name in PAIRED else np.ones_like(x)


# ---- results


def result(name, operands, device="cpu"):
    """Of a derivative with dy = 1."""
    return run(name, operands[: OPS[name].arity], "float64", device, OPS[name].attrs)


def bit_sum(y):
    """Of the bits times odd numbers of their places, with every NaN as one pattern."""
    bits = np.where(np.isnan(y), np.float64(np.nan), y).view(np.uint64)
    bits[np.isnan(y)] = np.uint64(0x7FF8 << 48)
    weight = np.arange(len(y), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    total = int((bits * weight).sum(dtype=np.uint64))
    return f"{(total ^ total >> 32) & 0xFFFFFFFF:08x}"


@functools.cache
def library():
    """exact64.cpp as a library; None where there is no long double of more digits than float64."""
    compiler = shutil.which("g++")
    if not compiler or np.finfo(np.longdouble).nmant < 63:
        return None
    folder = Path(tempfile.mkdtemp(prefix="aicf_exact64_"))
    source, built = Path(__file__).with_suffix(".cpp"), folder / "exact64.so"
    flags = ["-std=gnu++20", "-O2", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(built)], check=True)
    loaded = ctypes.CDLL(str(built))
    shutil.rmtree(folder)
    array = np.ctypeslib.ndpointer(np.float64, flags="C")
    place = ctypes.POINTER(ctypes.c_int64)
    loaded.worst.restype = ctypes.c_double
    loaded.worst.argtypes = [ctypes.c_char_p, array, array, array, ctypes.c_int64, place]
    loaded.values.restype = None
    loaded.values.argtypes = [ctypes.c_char_p, *[array] * 4, ctypes.c_int64]
    return loaded


def worst(name, operands, got):
    """The largest error in ULP, and the operands it occurs at."""
    at = ctypes.c_int64(0)
    x, y = operands
    error = library().worst(name.encode(), x, y, got, len(x), ctypes.byref(at))
    return error, (float(x[at.value]), float(y[at.value]))[: 1 + (name in PAIRED)]


def exact_values(name, x, y):
    """As sums of two float64."""
    high, low = np.empty_like(x), np.empty_like(x)
    library().values(name.encode(), x, y, high, low, len(x))
    return high, low


def measure(name, seed, chunk, errors=True):
    operands = inputs(name, seed, chunk)
    got = result(name, operands)
    found = worst(name, operands, got) if errors else (0.0, ())
    return name, chunk, found, bit_sum(got)


# ---- the long form


def measure_all(ops, seed, chunks, jobs, errors=True):
    """By op: the worst error and where, and the sums of the chunks."""
    found = {name: ((-1.0, ()), [""] * chunks) for name in ops}
    with ProcessPoolExecutor(jobs, **WORKER) as pool:
        tasks = [(name, seed, chunk, errors) for name in ops for chunk in range(chunks)]
        for name, chunk, error, total in pool.map(measure, *zip(*tasks, strict=True)):
            most, sums = found[name]
            sums[chunk] = total
            found[name] = (max(most, error, key=lambda one: one[0]), sums)
    return found


def sums_of(found):
    return {name: " ".join(sums) for name, (_, sums) in found.items()}


def other_sets(options):
    """The sums in the other instruction sets of this machine, each in a process of its own."""
    from isas import machine_isas

    here = aicf._core.cpu_isa()
    for isa in machine_isas():
        if isa == here:
            continue
        command = [sys.executable, __file__, "--sums", "--chunks", str(options.chunks)]
        command += ["--seed", str(options.seed), "--jobs", str(options.jobs), "--ops", *options.ops]
        env = os.environ | {"AICF_CPU_ISA": isa}
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        yield isa, json.loads(said)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=96, help="of 2**20 inputs")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--ops", nargs="*", default=list(OPS))
    parser.add_argument("--sums", action="store_true", help="print the sums alone, as JSON")
    parser.add_argument("--keep", action="store_true", help="in tests/data/float64.json")
    options = parser.parse_args()
    found = measure_all(options.ops, options.seed, options.chunks, options.jobs, not options.sums)
    if options.sums:
        print(json.dumps(sums_of(found)))
        return
    for name, ((error, at), _) in found.items():
        print(f"{name}: {error:.3f} ULP at {at}", flush=True)
    print(f"{options.chunks * CHUNK:,} inputs of each, seed {options.seed}", flush=True)
    wrong = [name for name, ((error, _), _) in found.items() if not error <= OPS[name].allowed]
    for isa, sums in other_sets(options):
        parted = [name for name in options.ops if sums[name] != sums_of(found)[name]]
        print(f"{aicf._core.cpu_isa()} and {isa}: {'equal' if not parted else parted}", flush=True)
        wrong += parted
    if options.keep:
        record = {"seed": options.seed, "inputs": options.chunks * CHUNK, "ops": {}}
        kept = json.loads(KEPT64.read_text())
        if all(kept[key] == record[key] for key in ("seed", "inputs")):
            record["ops"] = kept["ops"]
        for name, ((error, at), sums) in found.items():
            record["ops"][name] = {
                "error": round(error, 3), "at": at, "allowed": OPS[name].allowed,
                "sums": " ".join(sums),
            }  # fmt: skip
        record["ops"] = {name: record["ops"][name] for name in OPS if name in record["ops"]}
        KEPT64.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
