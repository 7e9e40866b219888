"""Runs graphs of every kind on a device, each compiled once: what compute-sanitizer is to watch.

    compute-sanitizer --tool memcheck python tests/slice_gpu.py [--part 0/8] [--seconds S]
                                                                [--kernels | --compile]

pytest's own start and the many compilations of its tests would take most of a sanitizer's time.
Prints how many of its part's graphs ran in the time given; results are other tests' business.
--kernels: a product by each kernel that can compute it, for every layout and kind of operands;
--compile: only fills the cache of kernels, for a run to come.
"""

import argparse
import itertools
import re
import time

import aicf
import numpy as np
from aicf import _core, verify
from op_cases import CASES, SIZES
from steps import batch_of, build_train, build_wide
from test_ops import draw


def table(case):
    def make(rng):
        arrays = [draw(arg, case.dtypes[0], SIZES, rng) for arg in case.args]
        g = aicf.Graph("case")
        values = [g.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)]
        results = case.build(g, *values)
        for i, y in enumerate(results if isinstance(results, (list, tuple)) else [results]):
            g.output(f"y{i}", y)
        return g, {f"x{i}": a for i, a in enumerate(arrays)}, {"checks": "off"}  # as in test_ops

    return make


def of(build, *shapes, **options):
    """A graph of float32 inputs x0, x1, ... whose results `build` lists."""

    def make(rng):
        g = aicf.Graph("graph")
        feed = {f"x{i}": rng.standard_normal(s).astype("f") for i, s in enumerate(shapes)}
        for i, y in enumerate(build(g, *(g.input(k, a.shape) for k, a in feed.items()))):
            g.output(f"y{i}", y)
        return g, feed, options

    return make


def training(g_of, feed_of):
    return lambda rng: (g_of(), feed_of(rng), {})


def reference(name, case):
    def feed(rng):
        sizes = {"x": (case.batch, case.inputs), "t": (case.batch, case.outputs)}
        return {k: rng.standard_normal(s).astype("f") for k, s in sizes.items()}

    return training(lambda: verify.build(name, case), feed)


def norm_backward(g, x, dy):
    gamma, beta = g.param("gamma", (x.shape[-1],)), g.param("beta", (x.shape[-1],))
    y = aicf.layer_norm(x, x.shape[-1], gamma, beta)
    return [y, *g.backward(y, [x, gamma, beta], grad=dy).values()]


def graphs():
    whole = [reference(name, case) for name, case in verify.CASES.items()]
    whole.append(training(build_train, lambda rng: batch_of(0)))
    whole.append(
        training(
            build_wide,
            lambda rng: {
                "x": rng.standard_normal((96, 200)).astype("f"),
                "t": np.ones((96, 130), "f"),
            },
        )
    )
    products = [
        of(
            lambda g, a, b, d=dtype: [aicf.cast(a, d) @ aicf.cast(b, d)],
            (m, k),
            (k, n),
            math=math,
        )  # fmt: skip
        for m, k, n in ((33, 29, 17), (128, 130, 128), (100, 2100, 70), (300, 260, 280))
        for dtype, math in (
            ("float32", "fp32"),
            ("float32", "tf32"),
            ("float64", "fp32"),
            ("float16", "fp32"),
            ("bfloat16", "fp32"),
        )  # fmt: skip
    ]
    products += [
        of(lambda g, a, b: [aicf.relu(a @ b.T + 1.0), aicf.sum(a, axis=0)], (90, 70), (80, 70)),
        of(lambda g, a, b: [a @ b], (3, 40, 50), (3, 50, 20)),
    ]
    sums = [
        of(lambda g, x, a=axis: [aicf.sum(x * x, axis=a), aicf.max(x, axis=a), aicf.mean(x)], shape)
        for shape in ((3, 70_000), (40, 1300), (700, 1030), (2000, 9), (5, 7, 33))
        for axis in (0, -1)
    ]
    rows = [
        of(lambda g, x, m: [aicf.softmax(x * 0.5 + m), aicf.log_softmax(x) * m], shape, shape)
        for shape in ((64, 10), (20, 1500), (3, 9000))
    ]
    rows += [of(norm_backward, shape, shape) for shape in ((50, 48), (7, 3000))]
    return [*whole, *rows, *sums, *products, *map(table, CASES)]


KINDS = [  # dtype of operands, mode of the product
    ("bfloat16", "fp32"),
    ("float16", "fp32"),
    ("float32", "bf16"),
    ("float32", "tf32"),
    ("float32", "fp32"),
    ("float32", "fp32x"),
]


def products_by_kernel():
    """One product for each kernel of each mode, whose layouts are dealt out to them: of a size that
    fills no tile, and of one with many cuts for kernels that share or queue them."""
    found = {}
    for m, k, n in ((328, 1096, 264), (72, 4096, 136), (8, 1024, 2048)):
        for (dtype, math), *turned in itertools.product(KINDS, (False, True), (False, True)):

            def build(g, a, b, dtype=dtype, turned=turned):
                x, y = (aicf.cast(v, dtype) for v in (a, b))
                return [(x.T if turned[0] else x) @ (y.T if turned[1] else y)]

            shapes = (k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)
            g, *_ = of(build, *shapes)(np.random.default_rng(0))
            known = _core.cuda_candidates(g._core, _core.pass_names(), math=math)
            for signature, names in known.items():
                for name in names:
                    form = re.sub(r"_\d+$", "_cuts", name)
                    found.setdefault((dtype, math, form), []).append(
                        of(build, *shapes, math=math, candidates={signature: name})
                    )
    return [ways[i % len(ways)] for i, ways in enumerate(found.values())]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    stop = time.monotonic() + options.seconds
    chosen, done = (products_by_kernel() if options.kernels else graphs())[part::parts], 0
    for make in chosen:
        if time.monotonic() > stop:
            break
        g, feed, how = make(np.random.default_rng(done))
        step = g.compile(device=options.device, **how)
        done += 1
        if options.compile:
            continue
        for _ in range(2):
            step(**feed)
        step.replay(3)
        step.synchronize()
    print(f"part {options.part}: {done} of {len(chosen)} graphs")


if __name__ == "__main__":
    main()
