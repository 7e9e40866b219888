"""Runs graphs of every kind on a device, each compiled once: what compute-sanitizer is to watch.

    python tests/slice_gpu.py --tools racecheck memcheck synccheck [--jobs 16] [--out FOLDER]
    compute-sanitizer --tool memcheck python tests/slice_gpu.py [--part 0/8] [--seconds S]
                                                                [--kernels] [--compile | --list]

The first form runs all of the second, graphs and kernels, in processes of their own, and prints a
line for each tool; it fails unless all ran and nothing was reported. --sanitizer: another one than
the first on the PATH. pytest's own start and the many compilations of its tests would take most of
a sanitizer's time. Prints how many of its part's graphs ran in the time given; results are other
tests' business.
--kernels: a product by each kernel that can compute it, for every kind of operands;
--compile: only fills the cache of kernels, for a run to come; --list: only prints what would run;
--only PATTERN: of those names; --first N: without the first of a part, for what comes behind one
that lost the device. racecheck of 2025.3.1 reports right programs, too, as tests/racecheck.cu
shows, and memcheck where it looks for the order of streams, as tests/memcheck.cu does; see
docs/architecture.md.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aicf
import numpy as np
import test_attention
import test_chains
import test_cuda_losses
import test_cuda_lots
import test_cuda_rows
import test_cuda_rows_ahead
import test_cuda_tables
import test_row_sums
import test_tails
import test_update_epilogues
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
    # Long enough for warps that take lots from a counter, the last lot not a whole one.
    lots = [of(lambda g, x: [test_cuda_lots.chain(x)], (16 * 132 * 2048 + 1029,))]
    parts = {"whole": whole, "rows": rows, "sums": sums, "products": products, "lots": lots}
    named = {f"{k} {i}": make for k, part in parts.items() for i, make in enumerate(part)}
    return named | families() | {f"op {case.id}": table(case) for case in CASES}


def attention(sizes, dtype, kind, kernels):
    """`kernels`: those that are asked for, where there are such."""

    def make(rng):
        feed = test_attention.operands(sizes)
        mask, causal = test_attention.mask_of(kind, sizes)
        g = test_attention.graph_of(feed, mask, causal, sizes[-1] ** -0.5, dtype)
        known = _core.cuda_candidates(g._core, _core.pass_names())
        chosen = {k: name for k, names in known.items() for name in kernels if name in names}
        given = {k: narrow(x, dtype) for k, x in feed.items()}
        return g, given, {"candidates": chosen}

    return make


def narrow(x, dtype):
    return x if dtype == "float32" else test_attention.narrowed(x, dtype)


def built(build, *sizes, math="fp32", **options):
    """A graph of another test's, with what it takes if it takes something."""

    def make(rng):
        made = build(*sizes, **options)
        g, feed = made if isinstance(made, tuple) else (made, {})
        return g, feed, {"math": math, "checks": "off"}  # some labels are no class

    return make


def families():
    """Kernels that no graph above is large or narrow enough for."""
    roles = (("wgmma",), ("wgmma", "wgmma_joint"))  # the last that there is
    found = {
        f"attention {dtype} {sizes} {kind} {kernels[-1]}": attention(sizes, dtype, kind, kernels)
        for dtype, sizes, kind, kernels in [
            ("bfloat16", (1, 2, 1, 129, 257, 64), "none", roles[0]),
            ("float16", (1, 2, 2, 200, 200, 64), "causal", roles[0]),
            ("bfloat16", (1, 2, 1, 193, 131, 128), "causal", roles[0]),
            ("float16", (1, 2, 2, 130, 130, 128), "none", roles[0]),
            ("bfloat16", (1, 4, 2, 260, 260, 128), "causal", roles[1]),
            ("float16", (1, 2, 2, 193, 300, 128), "causal", roles[1]),
            ("bfloat16", (1, 4, 2, 260, 260, 64), "causal", roles[1]),
            ("float16", (1, 2, 1, 193, 300, 64), "none", roles[1]),
            ("bfloat16", (1, 2, 1, 70, 130, 40), "both", ("mma",)),
            ("float32", (1, 2, 1, 70, 130, 40), "both", ("chain",)),
            ("float32", (1, 1, 1, 65, 65, 256), "causal", ("chain",)),
        ]
    }
    found |= {
        f"chain {math} {sizes}": built(test_chains.graph_of, *sizes, math=math, **options)
        for sizes, options in [test_chains.CASES[i] for i in (0, 1, 3)]
        for math in test_chains.MODES
    }
    found |= {
        f"tail {sizes}": built(test_tails.graph_of, *sizes, **options)
        for sizes, options in test_tails.CASES[:5]
    }
    found |= {
        f"updates {math} {sizes}": built(test_update_epilogues.graph_of, *sizes, math=math)
        for sizes in ((128, (256, 256, 10)), (16, (128, 128, 128, 10)))
        for math in ("fp32", "tf32", "mixed")
    }
    found |= {
        f"rows {n} of {dtype}": built(test_cuda_rows.rows_of, n, 3, dtype)
        for n in (300, 3000, 9000, 33000)
        for dtype in ("float32", "bfloat16")
    }
    found |= {
        f"rows kept {n}": built(test_cuda_rows_ahead.long_rows, n, 140, "bfloat16")
        for n in (12288, 16392, 50304, 57344)
    }
    found |= {
        "rows told 50304": built(test_cuda_rows_ahead.told, 50304, 67),
        "rows ahead 64": built(test_cuda_rows_ahead.ahead, 64, (1 << 17) + 3),
        "norms ahead 768": built(test_cuda_rows_ahead.norms_ahead, 768, 13001),
        "sums beside rows 64": built(test_row_sums.norm, ((1 << 14) + 512, 64)),
        "sums beside rows 768": built(test_row_sums.norm, (1900, 768)),
        "sums beside rows 8192": built(test_row_sums.norm, (640, 8192)),
        "sums beside rows 8192 rms": built(test_row_sums.norm, (640, 8192), center=False),
        "sums beside rows 16388": built(test_row_sums.norm, (513, 16388)),
        "sums beside rows 33000": built(test_row_sums.norm, (513, 33000)),
        "losses 1000": built(test_cuda_rows.loss_of, 1000, 130),
        "losses weighted 768": built(test_cuda_losses.weighted, 768, 1100, by="all"),
        "losses weighted 8192": built(test_cuda_losses.weighted, 8192, 140, "float32"),
        "losses weighted 16388": built(test_cuda_losses.weighted, 16388, 140),
        "losses alone 64": built(test_cuda_losses.alone, 64, 9001),
        "losses alone 64 in leaves": built(test_cuda_losses.alone, 64, 16384, wild=False),
        "losses alone 768": built(test_cuda_losses.alone, 768, 901),
        "losses alone 8192": built(test_cuda_losses.alone, 8192, 140, wild=False),
        "losses alone 16392": built(test_cuda_losses.alone, 16392, 40, cut=-3),
        "losses and their mean": built(test_cuda_losses.mean_of, 100, 1500, "float32"),
        "losses 40000": built(test_cuda_rows.loss_of, 40000, 9, "bfloat16"),
        "table": built(
            test_cuda_tables.graph_of, test_cuda_tables.MANY["bfloat16"] + 5, "bfloat16"
        ),
    }
    found |= {
        f"order {n} of {rows}": of(
            lambda g, x, dy, n=n, rows=rows: [
                aicf.argsort(x[:, 0]),
                *g.backward(
                    aicf.take(x, g.constant(np.arange(n) * 7919 % rows), 0), [x], grad=dy
                ).values(),
            ],
            (rows, 24),
            (n, 24),
        )
        for n, rows in ((9000, 500), (30000, 7))
    }
    return found


SLOW = 2.0  # seconds that are worth a line
LOST = "the device is lost: "
TOOLS = {  # what each is run with
    "racecheck": [],
    # It takes the branches of a graph for unordered with what its stream does before and behind.
    "memcheck": ["--track-stream-ordered-races", "no"],
    "synccheck": [],
}
KINDS = [  # dtype of operands, mode of the product
    ("bfloat16", "fp32"),
    ("float16", "fp32"),
    ("float32", "bf16"),
    ("float32", "tf32"),
    ("float32", "fp32"),
    ("float32", "fp32x"),
]


# By what they take under a sanitizer, the least first: none fills its tiles. Products of some cuts,
# of many cuts that blocks take in runs, and of so many terms that three parts of each are worth it.
SHAPES = (40, 264, 24), (136, 72, 520), (136, 136, 264), (40, 776, 136), (40, 4104, 72), (
    136, 12360, 128
)  # fmt: skip


def products_by_kernel():
    """By name, one product for each kernel of each mode, of the first shape that can have it, whose
    layouts are dealt out to them."""
    found, shaped = {}, {}
    for m, k, n in SHAPES:
        for (dtype, math), *turned in itertools.product(KINDS, (False, True), (False, True)):

            def build(g, a, b, dtype=dtype, turned=turned):
                x, y = (aicf.cast(v, dtype) for v in (a, b))
                return [(x.T if turned[0] else x) @ (y.T if turned[1] else y)]

            shapes = (k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)
            g, *_ = of(build, *shapes)(np.random.default_rng(0))
            known = _core.cuda_candidates(g._core, _core.pass_names(), math=math)
            for signature, names in known.items():
                for name in names:
                    form = f"{dtype} {math} " + re.sub(r"_\d+$", "_cuts", name)
                    if shaped.setdefault(form, (m, k, n)) == (m, k, n):
                        found.setdefault(form, []).append(
                            of(build, *shapes, math=math, candidates={signature: name})
                        )
    return {form: ways[i % len(ways)] for i, (form, ways) in enumerate(found.items())}


def named(options):
    """What there is to run, by name."""
    every = products_by_kernel() if options.kernels else graphs()
    return {name: make for name, make in every.items() if re.search(options.only, name)}


def watched(tool, kernels, part, options):
    """How many errors a tool reports in a part, and how many graphs ran. What a tool ends takes the
    device from its process: the others run in the next one."""
    file = options.out / f"{tool}{' kernels' * kernels} {part.replace('/', ' of ')}.txt"
    file.unlink(missing_ok=True)
    command = [options.sanitizer, "--tool", tool, *TOOLS[tool], "--print-limit", "1000"]
    command += [sys.executable, __file__, "--part", part, "--only", options.only]
    command += ["--kernels"] * kernels
    reported, first, more = 0, 0, True
    while more:
        left = ["--first", str(first), "--seconds", str(max(options.seconds - time.monotonic(), 1))]
        done = subprocess.run(
            command + left, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        with file.open("a") as out:
            out.write(done.stdout)
        ran = re.search(r"^part .*: (\d+) of (\d+) graphs$", done.stdout, re.M)
        errors = re.search(r"SUMMARY: (\d+) (?:error|hazard)", done.stdout)
        if done.returncode or not ran or not errors or errors[1] != "0":
            print(f"{file}: exit status {done.returncode}, see there", flush=True)
        reported += int(errors[1]) if errors else 1
        first += int(ran[1]) if ran else 0
        more = ran is not None and LOST in done.stdout and first < int(ran[2])
    return reported, first


def watch(options):
    """All under each of the tools. Races take the longest, some graphs very much longer than
    others: these begin first, in small parts, and leave kernels for the other tools."""
    options.seconds += time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    there = {}
    for options.kernels in (False, True):
        there[options.kernels] = len(named(options))
    found = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for tool in options.tools:
            for kernels, count in there.items():
                parts = options.jobs * (1 if kernels or tool != "racecheck" else 3)
                parts = min(parts, count)
                found.setdefault(tool, []).extend(
                    pool.submit(watched, tool, kernels, f"{part}/{parts}", options)
                    for part in range(parts)
                )
    clean = True
    for tool, results in found.items():
        errors, done = map(sum, zip(*(one.result() for one in results), strict=True))
        every = sum(there.values())
        print(f"{tool}: {errors} errors, {done} of {every} graphs and products")
        clean &= not errors and done == every
    return 0 if clean else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", default="", help="a pattern of names")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("sanitizer"))
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    options = parser.parse_args()
    _core.narrow_any_size(True)  # small graphs reach the kernels of 16 bits
    if options.tools:
        return watch(options)
    part, parts = map(int, options.part.split("/"))
    stop = time.monotonic() + options.seconds
    chosen, done, lost = list(named(options).items())[part::parts], 0, False
    for name, make in chosen[options.first :]:
        if options.list:
            print(name)
            continue
        if time.monotonic() > stop:
            print("not reached:", name)
            continue
        start = time.monotonic()
        g, feed, how = make(np.random.default_rng(options.first + done))
        done += 1
        try:
            step = g.compile(device=options.device, **how)
            if options.compile:
                continue
            step(**feed)
            step.replay(1)  # counters that kernels leave for the next launch
            step.synchronize()
        except aicf.DeviceLost as error:
            print(f"{LOST}{name}: {error}")
            lost = True
            break
        if (took := time.monotonic() - start) > SLOW:
            print(f"{took:.1f} s: {name}", flush=True)
    print(f"part {options.part}: {done} of {len(chosen)} graphs", flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
