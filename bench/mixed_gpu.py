"""Mixed-precision training steps of an MLP with GELU on a GPU, beside PyTorch's, by turns.

    python bench/mixed_gpu.py [4096x4 64x4] [--json bench/results/mixed_gpu.json] [--launches]

Forward, MSE, backward, Adam, on random data that lie on the device: ours with math="mixed", and
PyTorch's whole step under autocast in bfloat16, compiled, with a capturable Adam, in a CUDA graph.
A ratio is PyTorch's time over ours in the same round. `--launches` adds what each of our launches
takes; `--wait FILE` begins to time once the file is there.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import aicf
import numpy as np
from gpu import describe_device

CONFIGS = {"4096x4": ((4096,) * 5, 4096, 10), "64x4": ((64,) * 5, 16384, 200)}
ROUNDS = 11


def ours(sizes, rows):
    g = aicf.Graph("mlp")
    h = g.state("x", (rows, sizes[0]))
    for i, size in enumerate(sizes[1:]):
        h = g.dense(str(i), aicf.gelu(h) if i else h, size)
    loss = aicf.mse_loss(h, g.state("t", h.shape))
    g.minimize(loss, aicf.optim.Adam())
    g.output("loss", loss)
    step = g.compile(device="cuda", math="mixed")
    rng = np.random.default_rng(0)
    for name, width in (("x", sizes[0]), ("t", sizes[-1])):
        step.state[name] = rng.standard_normal((rows, width), dtype=np.float32)
    return step


def torchs(sizes, rows):
    import torch

    torch.manual_seed(0)
    x, t = (torch.randn(rows, sizes[i], device="cuda") for i in (0, -1))
    layers = []
    for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        layers += [torch.nn.GELU()] * (i > 0) + [torch.nn.Linear(a, b)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(x), t)
        loss.backward()
        optimizer.step()

    compiled = torch.compile(step)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(4):
            compiled()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compiled()
    return graph.replay, torch.cuda.synchronize, (compiled, x, t)  # alive while it is replayed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="*", default=list(CONFIGS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--launches", action="store_true")
    parser.add_argument("--wait", type=Path)
    args = parser.parse_args()
    record = describe_device() | {"command": "python bench/mixed_gpu.py", "rows": []}
    held = []
    for name in args.configs:
        sizes, rows, times = CONFIGS[name]
        step = ours(sizes, rows)
        runs = {"ours": (lambda n, step=step: step.replay(n), step.synchronize)}
        try:
            replay, wait, alive = torchs(sizes, rows)
            runs["torch"] = (lambda n, run=replay, _=alive: [run() for _ in range(n)], wait)
        except ImportError:
            print("no PyTorch here")
        held.append((name, step, runs, times))
    while args.wait and not args.wait.exists():
        time.sleep(0.1)
    for name, step, runs, times in held:
        taken = {who: [] for who in runs}
        for turn in range(ROUNDS + 1):  # the first is for warming up
            for who, (enqueue, wait) in runs.items():
                wait()
                start = time.perf_counter()
                enqueue(times)
                wait()
                if turn:
                    taken[who].append((time.perf_counter() - start) / times * 1e6)
        row = {"config": name} | {f"{who}_us": statistics.median(t) for who, t in taken.items()}
        if "torch" in taken:
            row["ratio"] = statistics.median(
                b / a for a, b in zip(taken["ours"], taken["torch"], strict=True)
            )
        record["rows"].append(row)
        print(row, flush=True)
        if args.launches:
            print(step.profile(10), flush=True)
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
