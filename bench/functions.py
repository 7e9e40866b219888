"""Times the twenty functions that models use most, alone, against PyTorch eager and compiled.

    python bench/functions.py [function ...] [--device cpu] [--rounds 9] [--json FILE]

Each is timed for its value, and for its value and gradients. Libraries take turns on the same data
as in `cpu.py`, on one thread of a CPU; on a GPU PyTorch's calls are replayed from a CUDA graph of
their own, so that no library pays for Python. A ratio is the peer's time over ours in the same
round: above 1, ours is faster. The slowest beside eager PyTorch stand first.
"""

import argparse
import datetime
import json
import os
import sys
from pathlib import Path

if __name__ == "__main__" and "cuda" not in sys.argv:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    for _name in ("OMP", "OPENBLAS", "MKL", "AICF"):
        os.environ[f"{_name}_NUM_THREADS"] = "1"

import aicf
import cpu
import numpy as np
from aicf import _core
from conftest import versions

IMAGE, ROWS, HEADS = (8, 32, 32, 32), (1024, 1024), (8, 8, 128, 64)
# Shapes of the float operands, of the gradients alone; ours, PyTorch's; integers below a number.
CASES = {
    "linear": (
        {"x": (512, 512), "w": (512, 512), "b": (512,)},
        lambda a, x, w, b: a.linear(x, w, b),
        lambda t, f, x, w, b: f.linear(x, w, b),
    ),
    "matmul": (
        {"x": (16, 128, 128), "y": (16, 128, 128)},
        lambda a, x, y: a.matmul(x, y),
        lambda t, f, x, y: t.matmul(x, y),
    ),
    "conv2d": (
        {"x": IMAGE, "w": (32, 32, 3, 3), "b": (32,)},
        lambda a, x, w, b: a.conv2d(x, w, b, padding=1),
        lambda t, f, x, w, b: f.conv2d(x, w, b, padding=1),
    ),
    "batch_norm": (
        {"x": IMAGE, "w": (32,), "b": (32,)},
        lambda a, x, w, b: a.batch_norm(x, None, None, w, b),
        lambda t, f, x, w, b: f.batch_norm(x, None, None, w, b, training=True),
    ),
    "layer_norm": (
        {"x": ROWS, "w": ROWS[1:], "b": ROWS[1:]},
        lambda a, x, w, b: a.layer_norm(x, ROWS[1], w, b),
        lambda t, f, x, w, b: f.layer_norm(x, ROWS[1:], w, b),
    ),
    "max_pool2d": (
        {"x": IMAGE},
        lambda a, x: a.max_pool2d(x, 2),
        lambda t, f, x: f.max_pool2d(x, 2),
    ),
    "avg_pool2d": (
        {"x": IMAGE},
        lambda a, x: a.avg_pool2d(x, 2),
        lambda t, f, x: f.avg_pool2d(x, 2),
    ),
    "relu": ({"x": ROWS}, lambda a, x: a.relu(x), lambda t, f, x: f.relu(x)),
    "gelu": ({"x": ROWS}, lambda a, x: a.gelu(x), lambda t, f, x: f.gelu(x)),
    "silu": ({"x": ROWS}, lambda a, x: a.silu(x), lambda t, f, x: f.silu(x)),
    "softmax": ({"x": ROWS}, lambda a, x: a.softmax(x), lambda t, f, x: f.softmax(x, -1)),
    "scaled_dot_product_attention": (
        {"q": HEADS, "k": HEADS, "v": HEADS},
        lambda a, q, k, v: a.scaled_dot_product_attention(q, k, v, causal=True),
        lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    "embedding": (
        {"w": (10000, 256), "i": ((4096,), 10000)},
        lambda a, w, i: a.embedding(i, w),
        lambda t, f, w, i: f.embedding(i, w),
    ),
    "cross_entropy": (
        {"x": (512, 5000), "i": ((512,), 5000)},
        lambda a, x, i: a.cross_entropy(x, i),
        lambda t, f, x, i: f.cross_entropy(x, i),
    ),
    "dropout": ({"x": ROWS}, lambda a, x: a.dropout(x, 0.1), lambda t, f, x: f.dropout(x, 0.1)),
    "add": (
        {"x": ROWS, "b": ROWS[1:]},
        lambda a, x, b: x + b,
        lambda t, f, x, b: x + b,
    ),
    "mean": ({"x": ROWS}, lambda a, x: a.mean(x, -1), lambda t, f, x: x.mean(-1)),
    "concat": (
        {"x": ROWS, "y": ROWS},
        lambda a, x, y: a.concat([x, y], 1),
        lambda t, f, x, y: t.cat([x, y], 1),
    ),
    "permute": (
        {"x": (8, 128, 8, 64)},
        lambda a, x: a.permute(x, (0, 2, 1, 3)) * 1.0,
        lambda t, f, x: x.permute(0, 2, 1, 3).contiguous(),
    ),
    "masked_fill": (
        {"x": ROWS, "i": (ROWS, 2)},
        lambda a, x, i: a.masked_fill(x, a.equal(i, 1), 0.0),
        lambda t, f, x, i: x.masked_fill(i == 1, 0.0),
    ),
}
LAUNCHES = 50  # in a row on a GPU, between two waits


def arrays_of(operands):
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(s, dtype=np.float32)
        if not s or isinstance(s[0], int)
        else rng.integers(0, s[1], s[0])
        for name, s in operands.items()
    }


def arriving(shape):
    """The gradient that comes from behind."""
    return np.asarray(np.random.default_rng(1).standard_normal(shape), np.float32)


def ours(case, gradients, device):
    operands, fn, _ = CASES[case]
    arrays = arrays_of(operands)
    g = aicf.Graph(case)
    values = {n: g.state(n, x.shape, x.dtype.name, init=x) for n, x in arrays.items()}
    y = fn(aicf, **values)
    g.output("y", y)
    if gradients:
        dy = g.state("dy", y.shape, init=arriving(y.shape))
        floats = [v for v in values.values() if v.dtype == "float32"]
        for name, dx in zip("abc", aicf.grad(y, floats, dy), strict=False):
            g.output(f"d{name}", dx)
    step = g.compile(device=device)
    if device == "cpu":
        return step.replay, 1

    def launches():
        step.replay(LAUNCHES)
        step.synchronize()

    return launches, LAUNCHES


def theirs(case, gradients, device, compiled):
    import torch

    operands, _, fn = CASES[case]
    tensors = {n: torch.from_numpy(x).to(device) for n, x in arrays_of(operands).items()}
    floats = [x.requires_grad_(gradients) for x in tensors.values() if x.is_floating_point()]

    def value(**xs):
        return fn(torch, torch.nn.functional, **xs)

    value = torch.compile(value, fullgraph=True) if compiled else value
    dy = torch.from_numpy(arriving(tuple(value(**tensors).shape))).to(device)

    def call():
        y = value(**tensors)
        return torch.autograd.grad(y, floats, dy) if gradients else y

    if device == "cpu":
        return (call if gradients else torch.no_grad()(call)), 1
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def launches():
        for _ in range(LAUNCHES):
            graph.replay()
        torch.cuda.synchronize()

    return launches, LAUNCHES


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("functions", nargs="*", help="some of them; default all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    import torch

    if args.device == "cpu":
        torch.set_num_threads(1)
    rows = []
    for case in args.functions or CASES:
        for gradients in (False, True):
            calls = {
                "aicf": ours(case, gradients, args.device),
                "torch": theirs(case, gradients, args.device, False),
                "torch.compile": theirs(case, gradients, args.device, True),
            }
            name = f"{case}, value and gradients" if gradients else case
            row = cpu.row(name, calls, args.rounds)
            rows.append({"section": args.device, "threads": 1, **row})
            cpu.show(rows[-1])
            torch.compiler.reset()
    rows.sort(key=lambda row: row["ratio"]["torch"][0])
    if args.json:
        if args.device == "cpu":
            cores = {"cpu": cpu.cpu_name(), "cores": 1, "kernels": _core.cpu_isa()}
        else:
            cores = {"device": torch.cuda.get_device_name()}
        about = {
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.date.today().isoformat(),
            **cores,
            "versions": versions(),
            "rounds": args.rounds,
            "note": args.note,
        }
        args.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
