"""Times products of a GPU beside PyTorch's, in turns, on random data.

    python bench/products_gpu.py [--shapes 4096x4096x4096:NT 16384x3072x768 ...]
                                 [--math bfloat16 ...] [--candidates] [--rounds 5] [--json FILE]

A shape is MxNxK, with the layouts to time behind a colon: N is an operand as it is multiplied, T
one that is stored transposed. A math is float32, float16 or bfloat16, the dtype of operands and
result; or a way to multiply float32: tf32, here and in PyTorch; fp32x, beside PyTorch's float32; or
bf16, beside casts to bfloat16 and a product of them with a float32 result. A ratio is PyTorch's
time over ours in the same round: above 1, ours is faster. Both are replayed from CUDA graphs of 16
products. Without --shapes the rows of docs/performance.md are timed, of these maths or all.
--candidates times every kernel that can compute a product.
"""

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path

import aicf
import torch
from aicf import _core

NODES = 16  # products of a graph
READING = 6e-3  # seconds, about
MATHS = ["bfloat16", "float32", "fp32x", "tf32", "bf16"]
ALL = "NN,NT,TN"
CUBES = [f"{size}x{size}x{size}" for size in (512, 1024, 2048, 4096)]
WIDE = ["8192x768x3072", "16384x3072x768"]
THIN = "1x4096x4096:NT"
# What docs/performance.md shows of each math. Of bfloat16: cubes, a GPT-2's products at 16 rows of
# 1024 tokens, gradients of weights, few rows.
TABLE = {
    "bfloat16": [
        *(f"{size}:{ALL}" for size in [*CUBES, "8192x8192x8192"]),
        *(f"16384x{sizes}:NT" for sizes in ("2304x768", "50304x768")),
        *(f"16384x{sizes}:NT,NN" for sizes in ("768x768", "3072x768", "768x3072")),
        *(f"16384x{sizes}:NN" for sizes in ("768x2304", "768x50304")),
        *(f"{sizes}x16384:TN" for sizes in ("768x768", "2304x768", "3072x768", "768x3072")),
        *("50304x768x16384:TN", "4096x768x768:NT,NN", "768x768x4096:TN", "128x512x784:NT"),
        *(f"{rows}x1024x1024:NT" for rows in (128, 256, 512)),
        *("128x4096x4096:NT", "1x4096x4096:NT,NN", "8x4096x4096:NT"),
    ],
    "float32": [
        *(f"{size}:{ALL}" for size in CUBES + WIDE),
        *("128x512x784:NT", "64x4096x4096:NN", "768x768x4096:TN", "4096x768x768:NT", THIN),
    ],
    "fp32x": [f"{size}:{ALL}" for size in CUBES[1:] + WIDE],
    "tf32": [*(f"{size}:{ALL}" for size in CUBES + WIDE), "128x512x784:NT", THIN],
    "bf16": [f"{size}:NN,NT" for size in CUBES + WIDE],
}


def graph_of(shape, kind, math):
    """The graph of one product, its operands as they are stored, the math that it compiles with."""
    dtype = math if math in ("bfloat16", "float16") else "float32"
    m, n, k = (int(size) for size in shape.split("x"))
    stored = [
        size[::-1] if turned == "T" else size
        for size, turned in zip([(m, k), (k, n)], kind, strict=True)
    ]
    graph = aicf.Graph("product")
    states = [graph.state(name, size, dtype) for name, size in zip("ab", stored, strict=True)]
    a, b = states
    a, b = a.T if kind[0] == "T" else a, b.T if kind[1] == "T" else b
    graph.output("c", aicf.matmul(a, b))
    return graph, states, math if math in ("tf32", "fp32x", "bf16") else "fp32"


class Product:
    """One product, ours and PyTorch's, on the same numbers."""

    def __init__(self, shape, kind, math):
        self.m, self.n, self.k = (int(size) for size in shape.split("x"))
        self.case = f"{shape} {kind} {math}"
        self.graph, states, self.math = graph_of(shape, kind, math)
        self.tensors = {
            state.name: torch.randn(state.shape, device="cuda").to(getattr(torch, state.dtype))
            for state in states
        }
        a, b = self.tensors.values()
        self.operands = a.T if kind[0] == "T" else a, b.T if kind[1] == "T" else b

    def candidates(self):
        """The op's signature, and the names of its kernels, best first."""
        known = _core.cuda_candidates(self.graph._core, _core.pass_names(), math=self.math)
        ((signature, names),) = known.items()
        return signature, names

    def programs(self, every):
        """The texts of all its kernels, or of the one that is chosen."""
        signature, names = self.candidates()
        for name in names if every else names[:1]:
            yield from _core.cuda_programs(
                self.graph._core,
                _core.pass_names(),
                math=self.math,
                candidates={signature: name},
            )

    def ours(self, name=None):
        chosen = {self.candidates()[0]: name} if name else {}
        step = self.graph.compile(device="cuda", math=self.math, candidates=chosen)
        for key, value in self.tensors.items():
            step.state[key] = value

        def call(graphs):
            step.replay(graphs * NODES)
            step.synchronize()

        return call, step.lowered[0]["kernel"]

    def theirs(self):
        torch.backends.cuda.matmul.allow_tf32 = self.math == "tf32"
        out = torch.empty(self.m, self.n, device="cuda", dtype=self.operands[0].dtype)

        def multiply():
            if self.math == "bf16":
                a, b = (operand.bfloat16() for operand in self.operands)
                torch.mm(a, b, out_dtype=torch.float32, out=out)
            else:
                torch.mm(*self.operands, out=out)

        multiply()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(NODES):
                multiply()

        def call(graphs):
            for _ in range(graphs):
                graph.replay()
            torch.cuda.synchronize()

        return call


def timed(call, graphs):
    start = time.perf_counter()
    call(graphs)
    return (time.perf_counter() - start) / (graphs * NODES)


def in_turns(calls, rounds):
    """Seconds a product of each call, in every round."""
    graphs = {}
    for name, call in calls.items():
        call(1)
        graphs[name] = max(1, round(READING / (timed(call, 1) * NODES)))
        call(graphs[name])
    taken = {name: [] for name in calls}
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            taken[name].append(timed(calls[name], graphs[name]))
    return taken


def measure(shape, kind, math, rounds):
    product = Product(shape, kind, math)
    ours, kernel = product.ours()
    taken = in_turns({"ours": ours, "theirs": product.theirs()}, rounds)
    ratios = [b / a for a, b in zip(taken["ours"], taken["theirs"], strict=True)]
    work = 2e-12 * product.m * product.n * product.k
    row = {
        "case": product.case,
        "kernel": kernel,
        "us": statistics.median(taken["ours"]) * 1e6,
        "tflops": work / statistics.median(taken["ours"]),
        "torch_tflops": work / statistics.median(taken["theirs"]),
        "ratio": [statistics.median(ratios), min(ratios), max(ratios)],
    }
    low, high = row["ratio"][1:]
    print(
        f"{row['case']:30}{row['us']:9.2f} us{row['tflops']:5.0f} TFLOP/s, torch "
        f"{row['torch_tflops']:.0f}: {row['ratio'][0]:.3f} [{low:.3f} .. {high:.3f}]  {kernel}",
        flush=True,
    )
    return row


def sweep(shape, kind, math, rounds):
    product = Product(shape, kind, math)
    names = product.candidates()[1]
    calls = {name: product.ours(name)[0] for name in names}
    taken = in_turns(calls | {"torch": product.theirs()}, rounds)
    us = {name: round(statistics.median(values) * 1e6, 2) for name, values in taken.items()}
    row = {"case": product.case, "first": names[0], "us": us}
    print(json.dumps(row), flush=True)
    return row


def cases(shapes, maths):
    """Shape, layouts and math of each product."""
    return [
        (shape, kind, math)
        for math in maths
        for shape, _, kinds in (text.partition(":") for text in shapes or TABLE[math])
        for kind in (kinds or ALL).split(",")
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+")
    parser.add_argument("--math", nargs="+", default=MATHS, choices=[*MATHS, "float16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "float16" in options.math and not options.shapes:
        parser.error("--math float16: docs/performance.md shows none of it; need --shapes")
    chosen = cases(options.shapes, options.math)
    # As many compilers at once as there are processors.
    texts = {text for case in chosen for text in Product(*case).programs(options.candidates)}
    _core.cuda_cubins(sorted(texts), "sm_90a")
    one = sweep if options.candidates else measure
    found = [one(*case, options.rounds) for case in chosen]
    if options.json:
        about = {
            "command": "python bench/products_gpu.py",
            "date": datetime.date.today().isoformat(),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "note": f"medians of {options.rounds} rounds",
        }
        options.json.write_text(json.dumps(about | {"rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
