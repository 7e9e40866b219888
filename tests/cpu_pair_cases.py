"""Pairs of pointwise ops that the CPU's programs run as one instruction, beside each op by itself.

    AICF_CPU_ISA=avx2 python tests/cpu_pair_cases.py [PROGRAMS [SEED]]

says which instruction set it took.
"""

import sys

import aicf
import numpy as np
from aicf import _core
from boundary import bits

THREADS = (1, 2, 3, 8)
UNARY = ("neg", "sqrt", "exp", "log", "sin", "cos", "tanh", "sigmoid", "abs", "relu")
BINARY = ("add", "sub", "mul")
FIRST = UNARY[:8] + BINARY
SIZES = sorted(
    {max(1, value + side)
     for _, size, quantity, value in _core.cpu_thresholds()
     if quantity == "program.elements" and size == 4
     for side in (-1, 0, 1)} | {1, 17}
)  # fmt: skip
PROGRAMS = 1000


def apply(op, *operands):
    return getattr(aicf, op)(*operands)


def numbers(rng, shape, dtype="float32"):
    """Of every kind: huge angles, both zeros, infinities, NaN, subnormal ones; or of few kinds."""
    x = rng.normal(0, 2, shape)
    odd = [0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38, 88.7, -103.9, 1e5]
    if rng.integers(2):
        x = np.where(rng.random(shape) < 0.02, rng.choice(odd, shape), x)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def same(got, want, what):
    """Equal bits, the payload of NaN excepted."""
    assert bits(got) == bits(want), f"{what}: {got!r}, need {want!r}"


def results(step, threads, feed):
    before = aicf.num_threads()
    aicf.set_num_threads(threads)
    try:
        return {name: np.array(y.numpy()) for name, y in step(**feed).items()}
    finally:
        aicf.set_num_threads(before)


def alone(op, *arrays):
    """The op by itself, on the caller's arrays."""
    out = np.empty_like(arrays[0])
    aicf.op_call(op, list(arrays), [out])
    return out


def every_pair(rng):
    """A function or a plain op, then one that reads its result on either side."""
    for dtype in ("float32", "float64"):
        for first in FIRST:
            n = int(rng.choice(SIZES))
            a, b, z = (numbers(rng, n, dtype) for _ in range(3))
            given = {"a": a} if first in UNARY else {"a": a, "b": b}
            v = alone(first, *given.values())
            for second in BINARY:
                for turned in (False, True):
                    g = aicf.Graph("pair")
                    values = [g.input(name, (n,), dtype) for name in given]
                    w, other = apply(first, *values), g.input("z", (n,), dtype)
                    g.output("y", apply(second, *((other, w) if turned else (w, other))))
                    want = alone(second, *((z, v) if turned else (v, z)))
                    step = g.compile(device="cpu")
                    for threads in THREADS:
                        found = results(step, threads, given | {"z": z})
                        same(found["y"], want, f"{first} {second} of {n} {dtype}, {turned=}")


def chain_of_the_table(rng):
    """Where results are larger than caches, and in blocks that end before a unit does."""
    for n in (*SIZES, (4 << 20) + 5):
        g = aicf.Graph("chain")
        a, b = g.input("a", (n,)), g.input("b", (n,))
        g.output("y", aicf.sin(a) * b + aicf.exp(-a * a))
        step, x, z = g.compile(device="cpu"), numbers(rng, n), numbers(rng, n)
        left = alone("mul", alone("sin", x), z)
        want = alone("add", left, alone("exp", alone("mul", alone("neg", x), x)))
        for threads in THREADS:
            same(results(step, threads, {"a": x, "b": z})["y"], want, f"{n}, {threads} threads")


def an_output_on_an_input(rng):
    """A pair reads its operands where the second op stood: an output that is written before that
    must not lie on one of them."""
    for n in SIZES:
        feed = {"y": numbers(rng, n), "z": numbers(rng, n)}
        found = []
        for passes in ("default", ()):
            g = aicf.Graph("states")
            x, y, z = g.state("x", (n,)), g.input("y", (n,)), g.input("z", (n,))
            first = aicf.exp(x)
            g.assign(x, y * z + 1.0)
            g.output("last", first * z)
            g.output("also", aicf.sin(y * z + 1.0))
            step = g.compile(device="cpu", passes=passes, seed=3)
            for threads in THREADS:
                found.append(results(step, threads, feed) | {"x": step.state["x"].numpy()})
        for ours, want in zip(found[: len(THREADS)], found[len(THREADS) :], strict=True):
            for name in want:
                same(ours[name], want[name], f"{name} of {n}")


# ---- random programs


LAYOUTS = ("full", "full", "full", "row", "column", "one", "turned", "cut")


def operand(g, name, shape, dtype, layout):
    """An input that a layout makes to a value of `shape`, and the shape of the input."""
    rows, cols = shape
    held = {
        "row": (1, cols), "column": (rows, 1), "one": (1, 1), "turned": (cols, rows),
        "cut": (rows, cols + 3),
    }.get(layout, shape)  # fmt: skip
    value = g.input(name, held, dtype)
    if layout == "turned":
        value = value.T
    elif layout == "cut":
        value = value[:, 2 : cols + 2]
    elif layout != "full":
        value = aicf.broadcast_to(value, shape)
    return value, held


def random_program(rng, g, shape):
    """Some ops on what there is so far, some of whose values are outputs; what is fed."""
    dtype = str(rng.choice(["float32", "float32", "float32", "float64", "float16", "bfloat16"]))
    feed, values = {}, []
    normal = aicf.init.normal(0, 2)
    held = g.state("held", shape, dtype, init=normal) if rng.integers(2) else None
    if held is not None:
        values.append(held)
    if rng.integers(6) == 0:
        rows, cols = shape
        values.append(g.input("l", (rows, 9), dtype) @ g.input("r", (9, cols), dtype))
        feed |= {"l": numbers(rng, (rows, 9)), "r": numbers(rng, (9, cols))}
    for i in range(int(rng.integers(1, 5))):
        value, given = operand(g, f"x{i}", shape, dtype, str(rng.choice(LAYOUTS)))
        feed[f"x{i}"] = numbers(rng, given, "float32" if dtype == "bfloat16" else dtype)
        values.append(value)
    start = len(values)
    for _ in range(int(rng.integers(2, 12))):
        near = values[-4:] if rng.integers(3) else values
        a, b = (near[int(rng.integers(len(near)))] for _ in range(2))
        op = str(rng.choice(UNARY if rng.integers(3) == 0 else BINARY))
        values.append(apply(op, a) if op in UNARY else apply(op, a, b))
    made = values[start:]
    chosen = {len(made) - 1, *(int(rng.integers(len(made))) for _ in range(int(rng.integers(3))))}
    for at in sorted(chosen):
        g.output(f"y{at}", made[at])
    if held is not None:
        g.assign(held, made[int(rng.integers(len(made)))])
    if rng.integers(4) == 0:
        g.output("sums", aicf.sum(made[-1], -1))
    if rng.integers(6) == 0:
        g.output("softmax", aicf.softmax(made[-1]))
    return feed


def random_programs(rng, count=PROGRAMS):
    for number in range(count):
        seed = [int(rng.integers(1 << 30)), number]
        found = {"default": {}, (): {}}
        for passes in found:
            draw = np.random.default_rng(seed)
            cols = int(draw.choice([1, 7, 30, 127, 128, 129, 300, 511, 513]))
            shape = (int(draw.choice([1, 2, 5, 17])), cols)
            g = aicf.Graph("random")
            feed = random_program(draw, g, shape)
            step = g.compile(device="cpu", passes=passes, cast=True, seed=1)
            threads = int(draw.choice(THREADS))
            for turn in range(2):
                after = results(step, threads, feed)
                found[passes] |= {f"{name} {turn}": y for name, y in after.items()}
            if "held" in step.state:
                found[passes]["held"] = np.array(step.state["held"].numpy())
        for name, want in found[()].items():
            same(found["default"][name], want, f"{name} of program {seed}")


CASES = (every_pair, chain_of_the_table, an_output_on_an_input, random_programs)

if __name__ == "__main__":
    count, seed = (*map(int, sys.argv[1:]), *(PROGRAMS, 1)[len(sys.argv) - 1 :])
    for case in CASES[:-1]:
        case(np.random.default_rng(seed))
    random_programs(np.random.default_rng(seed), count)
    print(aicf._core.cpu_isa())
