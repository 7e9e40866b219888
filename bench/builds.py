"""Times this build beside another one: which rows are slower, worst first.

    python bench/builds.py OTHER_PYTHON [case ...] [--device cuda] [--rounds 9] [--json FILE]

OTHER_PYTHON is an interpreter that has the other build of aicf. Each build has a process, which
holds a compiled step per case; the two take turns, one reading a round, and a ratio is the other
build's time over this one's in the same round: below 1, this build is slower. Operands are random
and lie on the device.

The process that starts first is the slower one at launches of about a microsecond, up to 5 % on an
H200 with one build in both. So there are two such pairs, one begun by each build, and a figure is
the geometric mean of the medians of both.
"""

import argparse
import datetime
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import aicf
import numpy as np
from aicf import _core

READING, READINGS = 4e-3, 5  # seconds at least, and how many make the figure of a round
MILLION = 1 << 20


# ---- cases: each builds a graph whose operands are states, and says what they hold


def mlp(g, batch, widths, loss="mse", dtype="float32"):
    x = h = g.state("x", (batch, widths[0]), dtype)
    for i, width in enumerate(widths[1:]):
        h = g.dense(str(i), h if i == 0 else aicf.relu(h), width)
    if loss == "mse":
        loss = aicf.mse_loss(h, g.state("t", h.shape, dtype))
    else:
        loss = aicf.cross_entropy(h, g.constant(np.arange(batch) % widths[-1]))
    g.minimize(loss, aicf.optim.Adam(lr=1e-4))
    g.output("loss", loss)
    return {"x": x.shape, **({"t": h.shape} if loss == "mse" else {})}


def product(g, m, n, k, kind="NN", dtype="float32", after=None):
    a = g.state("a", (k, m) if kind[0] == "T" else (m, k), dtype)
    b = g.state("b", (n, k) if kind[1] == "T" else (k, n), dtype)
    c = aicf.matmul(a.T if kind[0] == "T" else a, b.T if kind[1] == "T" else b)
    if after:
        c = aicf.relu(c + g.param("bias", (n,), dtype))
    g.output("c", c)
    return {"a": a.shape, "b": b.shape}


def pointwise(g, n, function, dtype="float32"):
    a, b = g.state("a", (n,), dtype), g.state("b", (n,), dtype)
    g.output("y", function(a, b))
    return {"a": a.shape, "b": b.shape}


def rows(g, shape, function, dtype="float32"):
    x = g.state("x", shape, dtype)
    g.output("y", function(x))
    return {"x": shape}


def layer_norm(g, shape):
    x, scale = g.state("x", shape), g.param("scale", shape[1:], init=aicf.init.ones())
    y = aicf.layer_norm(x, shape[1], scale, g.param("shift", shape[1:]))
    for i, d in enumerate(g.backward(y, [x, scale], grad=g.state("dy", shape)).values()):
        g.output(f"d{i}", d)
    return {"x": shape, "dy": shape}


def cross_entropy(g, shape):
    x = g.state("x", shape)
    loss = aicf.cross_entropy(x, g.constant(np.arange(shape[0]) % shape[1]))
    g.output("loss", loss)
    g.output("dx", g.backward(loss, [x])[x])
    return {"x": shape}


def attention(g, batch, heads, length, size):
    shape = (batch, heads, length, size)
    q, k, v = (g.state(name, shape) for name in "qkv")
    y = aicf.scaled_dot_product_attention(q, k, v, causal=True)
    for i, d in enumerate(g.backward(y, [q, k, v], grad=g.state("dy", shape)).values()):
        g.output(f"d{i}", d)
    return dict.fromkeys(("q", "k", "v", "dy"), shape)


def conv(g, batch, channels, side):
    x = g.state("x", (batch, channels, side, side))
    w = g.param("w", (channels, channels, 3, 3))
    y = aicf.max_pool2d(aicf.relu(aicf.conv2d(x, w, padding=1)), 2)
    loss = aicf.mean(y * y)
    g.output("dw", g.backward(loss, [w])[w])
    return {"x": x.shape}


def adam(g, n):
    p = g.param("p", (n,))
    g.update({p: g.state("grad", (n,))}, aicf.optim.Adam(lr=1e-3))
    return {"grad": (n,)}


def split_products(g, count):
    """Independent ones of few tiles, each split over its depth."""
    shapes = {}
    for i in range(count):
        a, b = g.state(f"a{i}", (256, 16384)), g.state(f"b{i}", (16384, 256))
        g.output(f"y{i}", aicf.matmul(a, b))
        shapes |= {f"a{i}": a.shape, f"b{i}": b.shape}
    return shapes


def layers(g, update, backward=True, batch=64, width=512, count=6):
    """The gradients of an MLP, each of which updates its layer at once."""
    if not backward:
        grads = {f"d{i}": (width, width) for i in range(count)}
        for i, (name, shape) in enumerate(grads.items()):
            state = {g.param(f"{i}.W", shape): g.state(name, shape)}
            g.update(state, aicf.optim.Adam(), name=f"opt{i}")
        return grads
    h = x = g.state("x", (batch, width))
    for i in range(count):
        h = aicf.tanh(g.dense(str(i), h, width, bias=False))
    loss = aicf.mse_loss(h, g.state("t", h.shape))
    for i, (param, grad) in enumerate(g.backward(loss).items()):
        if update:
            g.update({param: grad}, aicf.optim.Adam(), name=f"opt{i}")
        else:
            g.output(f"d{i}", grad)
    return {"x": x.shape, "t": h.shape}


def cases(device):
    scale = 1 if device == "cpu" else 2
    table = {
        "step 8-8-8 b64": (mlp, 64, (8, 8, 8)),
        "step 64x4 b256": (mlp, 256, (64,) * 5),
        "step 784-512-512-10 b128": (mlp, 128, (784, 512, 512, 10), "cross_entropy"),
        "step 1024x3 b256": (mlp, 256, (1024,) * 4),
        "attention 4x4x64x32": (attention, 4, 4, 64, 32),
        "attention 2x8x256x64": (attention, 2, 8, 256, 64),
        "conv 8x16x28": (conv, 8, 16, 28),
        "1 split product": (split_products, 1),
        "2 split products together": (split_products, 2),
        "backward": (layers, False),
        "updates": (layers, True, False),
        "backward, updates together": (layers, True),
        "Adam 64 K": (adam, 1 << 16),
        "Adam 16 M": (adam, 16 * MILLION),
    }
    for n in (64, 256, 512, 1024 * scale):
        for kind in ("NN", "NT", "TN"):
            table[f"product {n} cubed {kind}"] = (product, n, n, n, kind)
    for n in (48, 65, 96, 127, 200, 300, 1000):
        table[f"layer 128x{n}x400"] = (product, 128, n, 400, "NT", "float32", True)
    for m, n, k in ((1, 1024, 1024), (128, 10, 512), (128, 512, 10), (128, 512, 784)):
        table[f"product {m}x{n}x{k}"] = (product, m, n, k)
    table["product 512 cubed float64"] = (product, 512, 512, 512, "NN", "float64")
    functions = {
        "exp": lambda a, b: aicf.exp(a),
        "sin": lambda a, b: aicf.sin(a),
        "gelu": lambda a, b: aicf.gelu(a),
        "chain": lambda a, b: aicf.sin(a) * b + aicf.exp(-a * a),
    }
    for name, function in functions.items():
        for n in (1 << 16, 16 * MILLION):
            table[f"{name} of {n}"] = (pointwise, n, function)
    for shape in ((64, 10), (512, 512), (4096, 4096)):
        table[f"softmax {shape}"] = (rows, shape, aicf.softmax)
        table[f"layer norm {shape}"] = (layer_norm, shape)
        table[f"cross entropy {shape}"] = (cross_entropy, shape)
        for axis in (0, 1):
            over = functools.partial(aicf.sum, axis=axis)
            table[f"sum {shape} axis {axis}"] = (rows, shape, over)
    return table


# ---- one build ----------------------------------------------------------------------------------


class Case:
    def __init__(self, device, build, *args):
        g = aicf.Graph("bench")
        shapes = build(g, *args)
        self.step = g.compile(device=device, seed=0)
        for i, (name, shape) in enumerate(shapes.items()):
            values = np.random.default_rng(i).standard_normal(shape, dtype=np.float32)
            self.step.state[name] = values.astype(self.step.state[name].dtype)
        self.replay(3)
        self.times = max(1, int(READING / max(self.replay(3), 1e-7)))

    def replay(self, times):
        """Seconds of one replay."""
        self.step.synchronize()
        start = time.perf_counter()
        self.step.replay(times)
        self.step.synchronize()
        return (time.perf_counter() - start) / times

    def reading(self):
        self.replay(1)
        return min(self.replay(self.times) for _ in range(READINGS))


def worker(device):
    """Answers each case's name, a line of stdin, with the seconds of one reading."""
    table, held = cases(device), (None, None)
    for line in sys.stdin:
        name = line.strip()
        if held[0] != name:
            held = (None, None)  # the last one's memory is free before the next is compiled
            held = (name, Case(device, *table[name]))
        print(held[1].reading(), flush=True)


class Build:
    def __init__(self, python, device):
        command = [python, str(Path(__file__).resolve()), "--worker", "--device", device]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def reading(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"builds.py: {self.process.args[0]} stopped at {name}")
        return float(line)

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


# ---- the table ----------------------------------------------------------------------------------


def compared(ours, other, name, rounds):
    """The figures of one case by one pair of processes."""
    mine, theirs = [], []
    for turn in range(rounds):
        for build, taken in ((ours, mine), (other, theirs))[:: 1 if turn % 2 else -1]:
            taken.append(build.reading(name))
    ratios = sorted(b / a for a, b in zip(mine, theirs, strict=True))
    quarter = len(ratios) // 4
    return {
        "us": statistics.median(mine) * 1e6,
        "other_us": statistics.median(theirs) * 1e6,
        "ratio": statistics.median(ratios),
        "quartiles": [ratios[quarter], ratios[-1 - quarter]],
    }


def both(one, two):
    """The geometric mean of the figures of two pairs."""
    return {
        key: [math.sqrt(a * b) for a, b in zip(one[key], two[key], strict=True)]
        if isinstance(value, list)
        else math.sqrt(value * two[key])
        for key, value in one.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", nargs="?", metavar="OTHER_PYTHON")
    parser.add_argument("cases", nargs="*", help="words that the names of cases hold; default all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9, help="of each pair")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.device)
    if not args.other:
        parser.error("OTHER_PYTHON is missing; need the interpreter that has the other build")
    names = [n for n in cases(args.device) if not args.cases or any(w in n for w in args.cases)]
    found = {name: [] for name in names}
    for first in (0, 1):
        pythons = (sys.executable, args.other)
        started = [Build(python, args.device) for python in pythons[:: -1 if first else 1]]
        ours, other = started[:: -1 if first else 1]
        for name in names:
            found[name].append(compared(ours, other, name, args.rounds))
            print(f"{name:32} {found[name][-1]['ratio']:.3f}", flush=True)
        for build in started:
            build.stop()
    found = [{"case": name, **both(*pairs)} for name, pairs in found.items()]
    found.sort(key=lambda row: row["ratio"])
    print(f"\n{'worst first':32}{'us':>12}{'other us':>12}  other / this [quartiles]")
    for row in found:
        low, high = row["quartiles"]
        times = f"{row['us']:12.2f}{row['other_us']:12.2f}"
        print(f"{row['case']:32}{times}  {row['ratio']:.3f} [{low:.3f} .. {high:.3f}]")
    if args.json:
        about = {
            "command": " ".join(["python", "bench/builds.py", *sys.argv[1:]]),
            "date": datetime.date.today().isoformat(),
            "device": args.device,
            "threads": os.environ.get("AICF_NUM_THREADS", "all"),
            "kernels": _core.cpu_isa(),
            "rounds": args.rounds,
        }
        args.json.write_text(json.dumps(about | {"rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
