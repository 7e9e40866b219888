"""Times products of 16 bits on a GPU beside PyTorch's, in turns, on random data.

    python bench/products_gpu.py [--sizes 1024 2048 4096 8192] [--dtype bfloat16] [--json FILE]

A ratio is PyTorch's time over ours in the same round: above 1, ours is faster. Ours is replayed
from one CUDA graph, PyTorch's calls are enqueued one after the other.
"""

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path

import aicf
import torch

WORK = 2e12  # operations of a reading, about


def measure(m, n, k, kind, dtype, rounds):
    shape_a = (k, m) if kind[0] == "T" else (m, k)
    shape_b = (n, k) if kind[1] == "T" else (k, n)
    a, b = (torch.randn(s, device="cuda").to(getattr(torch, dtype)) for s in (shape_a, shape_b))
    g = aicf.Graph("product")
    x, y = g.state("a", shape_a, dtype), g.state("b", shape_b, dtype)
    g.output("c", aicf.matmul(x.T if kind[0] == "T" else x, y.T if kind[1] == "T" else y))
    step = g.compile(device="cuda")
    step.state["a"], step.state["b"] = a, b
    a, b = a.T if kind[0] == "T" else a, b.T if kind[1] == "T" else b
    work = 2 * m * n * k
    times = max(3, int(WORK / work))

    def ours():
        step.replay(times)
        step.synchronize()

    def theirs():
        for _ in range(times):
            torch.mm(a, b)
        torch.cuda.synchronize()

    taken = {ours: [], theirs: []}
    for call in taken:
        call()
    for turn in range(rounds):
        for call in list(taken)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            call()
            taken[call].append((time.perf_counter() - start) / times)
    ratios = [b / a for a, b in zip(taken[ours], taken[theirs], strict=True)]
    return {
        "case": f"{m}x{n}x{k} {kind} {dtype}",
        "kernel": step.lowered[0]["kernel"],
        "tflops": work / statistics.median(taken[ours]) / 1e12,
        "torch_tflops": work / statistics.median(taken[theirs]) / 1e12,
        "ratio": [statistics.median(ratios), min(ratios), max(ratios)],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for n in options.sizes:
        for kind in ("NN", "NT", "TN"):
            row = measure(n, n, n, kind, options.dtype, options.rounds)
            found.append(row)
            low, high = row["ratio"][1:]
            print(
                f"{row['case']:28}{row['tflops']:8.0f} TFLOP/s, torch {row['torch_tflops']:.0f}: "
                f"{row['ratio'][0]:.3f} [{low:.3f} .. {high:.3f}]  {row['kernel']}",
                flush=True,
            )
    if options.json:
        about = {
            "command": "python bench/products_gpu.py",
            "date": datetime.date.today().isoformat(),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
        }
        options.json.write_text(json.dumps(about | {"rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
