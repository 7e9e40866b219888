"""Times building and compiling graphs of 1,000 to 30,000 nodes, and fits how that grows.

    python bench/compile.py [shape ...] [--nodes 1000 3000 10000 30000] [--rounds 3] [--json FILE]

Every figure is the processor time of a call, the median of some rounds; an exponent is the slope of
log time over log nodes, by least squares: 1 is linear. Stages are compile's own clock
(`Step._stages`); `build` is the making of the graph in Python, backward and optimizer included.
"""

import argparse
import gc
import json
import math
import statistics
import time
from pathlib import Path

import aicf
import numpy as np

NODES = (1_000, 3_000, 10_000, 30_000)


def mlp(units):
    """Layers of 8 with a bias, mean squared error, Adam."""
    g = aicf.Graph("mlp")
    x = g.input("x", (4, 8))
    for i in range(units):
        x = aicf.relu(g.dense(f"{i}", x, 8))
    g.minimize(aicf.mse_loss(x, g.input("t", (4, 8))), aicf.optim.Adam())
    return g


def chain(units):
    """Element by element, one op after another, and back."""
    g = aicf.Graph("chain")
    x, w = g.input("x", (4, 8)), g.param("w", (8,))
    for i in range(units):
        x = aicf.tanh(x * w) if i % 2 else aicf.sin(x) + 0.5
    g.minimize(aicf.mean(x * x), aicf.optim.SGD())
    return g


def transformer(units):
    """Blocks of masked attention and two layers, with norms and residuals, AdamW."""
    g = aicf.Graph("transformer")
    x = g.input("x", (2, 4, 8))
    mask = g.constant(np.triu(np.full((4, 4), -1e9, np.float32), 1))
    for i in range(units):
        scale = g.param(f"{i}.scale", (8,), init=aicf.init.ones())
        y = aicf.layer_norm(x, 8) * scale
        q, k, v = (g.dense(f"{i}.{name}", y, 8) for name in "qkv")
        scores = aicf.softmax(q @ k.mT / math.sqrt(8) + mask)
        x = x + g.dense(f"{i}.o", scores @ v, 8)
        x = x + g.dense(f"{i}.down", aicf.gelu(g.dense(f"{i}.up", aicf.layer_norm(x, 8), 16)), 8)
    g.minimize(aicf.mean(x * x), aicf.optim.AdamW())
    return g


def wide(units):
    """Many short branches that share one input and one mask and meet in the loss."""
    g = aicf.Graph("wide")
    x, mask = g.input("x", (4, 8)), aicf.exp(g.input("mask", (4, 8)))
    terms = []
    for i in range(units):
        y = aicf.tanh(g.dense(f"{i}", x, 8)) * mask
        g.output(f"y{i}", y)
        terms.append(aicf.mean(aicf.sigmoid(y) * y))
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        terms = [a + b for a, b in pairs] + terms[len(terms) // 2 * 2 :]
    g.minimize(terms[0], aicf.optim.Adam())
    return g


def params(units):
    """Very many small params in one optimizer group, clipped by their norm."""
    g = aicf.Graph("params")
    x = g.input("x", (8,))
    for i in range(units):
        x = x * g.param(f"w{i}", (8,))
    g.minimize(aicf.sum(x), aicf.optim.Adam(), clip_norm=1.0)
    return g


SHAPES = {f.__name__: f for f in (mlp, chain, transformer, wide, params)}


def node_count(g):
    return int(str(g).split(" values, ", 1)[1].split(" ", 1)[0])


def units_for(build, nodes):
    few, many = node_count(build(8)), node_count(build(24))
    return max(1, round(8 + (nodes - few) * 16 / (many - few)))


def timed(call):
    gc.collect()
    start = time.process_time()  # of this process, whatever else runs beside it
    result = call()
    return result, time.process_time() - start


def measure(build, units, device, rounds):
    """(nodes, {stage: seconds}), the median of each; `compile` is the whole call."""
    taken = {}
    for _ in range(rounds):
        g, seconds = timed(lambda: build(units))
        taken.setdefault("build", []).append(seconds)
        step, seconds = timed(lambda: g.compile(device=device))  # noqa: B023
        taken.setdefault("compile", []).append(seconds)
        stages = {}
        for name, part in step._stages():
            stages[name] = stages.get(name, 0.0) + part
        for name, part in stages.items():
            taken.setdefault(name, []).append(part)
        nodes = node_count(g)
        del step
    return nodes, {name: statistics.median(times) for name, times in taken.items()}


def exponent(nodes, seconds):
    x, y = np.log(nodes), np.log(np.maximum(seconds, 1e-7))
    return float(np.polyfit(x, y, 1)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("shapes", nargs="*", metavar="shape", help=", ".join(SHAPES))
    parser.add_argument("--nodes", nargs="+", type=int, default=NODES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = {}
    for shape in given.shapes or SHAPES:
        build = SHAPES[shape]
        rows = [
            measure(build, units_for(build, n), given.device, given.rounds) for n in given.nodes
        ]
        counts = [nodes for nodes, _ in rows]
        print(f"\n{shape}: milliseconds" + "".join(f"{n:>10,}" for n in counts) + "  exponent")
        for name in rows[-1][1]:
            seconds = [times.get(name, 0.0) for _, times in rows]
            fit = exponent(counts, seconds) if len(counts) > 1 else float("nan")
            results.setdefault(shape, {})[name] = {
                "nodes": counts, "seconds": seconds, "exponent": fit
            }  # fmt: skip
            figures = "".join(f"{1e3 * s:>10.2f}" for s in seconds)
            print(f"  {name:<22}{figures}{fit:>10.2f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
