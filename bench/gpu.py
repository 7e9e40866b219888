"""Times compiled steps on a GPU and writes one JSON file.

    python bench/gpu.py --out bench/results [--peers]

Figures are medians over repetitions; bandwidth counts every byte read and written once.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aicf
import numpy as np
from aicf import _core, verify

REPEAT = 9


def microseconds(step, times):
    """Wall time of one replay: the median over repetitions of `times` replays."""
    step.replay(times)
    step.synchronize()
    taken = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        step.replay(times)
        step.synchronize()
        taken.append((time.perf_counter() - start) / times * 1e6)
    return statistics.median(taken)


COMPILE = """
import time
from aicf import verify
name, case = next(iter(verify.CASES.items()))
start = time.perf_counter()
import aicf
g = aicf.Graph("start")
g.output("y", g.input("x", (2,)) * 1.0)
g.compile(device="cuda")  # the driver, the context, NVRTC
print(time.perf_counter() - start)
start = time.perf_counter()
verify.build(name, case).compile(device="cuda")
print(time.perf_counter() - start)
"""


def compile_figures():
    """Of the 8-8-8 step in a fresh process: with nothing on disk, then with all of it there."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "AICF_CACHE_DIR": folder}
        for how in ("cold", "warm"):
            done = subprocess.run(
                [sys.executable, "-c", COMPILE],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            start, step = map(float, done.stdout.split())
            figures[f"start_{how}_s"] = start
            figures[f"compile_8_8_8_{how}_s"] = step
    return figures


def train_step():
    name, case = next(iter(verify.CASES.items()))
    step = verify.build(name, case).compile(device="cuda")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((case.batch, case.inputs)).astype(np.float32)
    t = rng.standard_normal((case.batch, case.outputs)).astype(np.float32)
    step(x=x, t=t)
    start = time.perf_counter()
    for _ in range(500):
        step(x=x, t=t)
    step.synchronize()
    call = (time.perf_counter() - start) / 500 * 1e6
    return {"replay_8_8_8_us": microseconds(step, 2000), "call_8_8_8_us": call}


def bandwidth(name, build, bytes_moved):
    g = aicf.Graph(name)
    build(g)
    step = g.compile(device="cuda")
    taken = microseconds(step, 20)
    return {f"{name}_us": taken, f"{name}_tb_s": bytes_moved / taken / 1e6}


def memory_bound(n=1 << 28):
    result = {}

    def copy(g):
        g.output("y", g.state("a", (n,)) * 1.0)

    def total(g):
        g.output("y", aicf.sum(g.state("a", (n,))))

    def sine(g):
        g.output("y", aicf.sin(g.state("a", (n,)) * 1.5 + 0.5))

    def adam(g):
        p = g.param("p", (n // 4,))
        g.update({p: g.state("grad", (n // 4,))}, aicf.optim.Adam(lr=1e-3))

    result |= bandwidth("scale", copy, 8 * n)
    result |= bandwidth("sum", total, 4 * n)
    result |= bandwidth("sin_chain", sine, 8 * n)
    result |= bandwidth("adam", adam, 28 * n // 4)
    return result


def product_on_the_host(n=1024):
    """The same product of n x n float32 on this machine's CPU, all cores, beside the GPU's."""
    taken = {}
    for device in ("cpu", "cuda"):
        g = aicf.Graph("gemm")
        g.output("y", aicf.matmul(g.param("a", (n, n)), g.param("b", (n, n))))
        taken[device] = microseconds(g.compile(device=device), 20)
    return {
        f"cpu_f32_{n}_us": taken["cpu"],
        f"gemm_f32_{n}_speed_to_cpu": taken["cpu"] / taken["cuda"],
    }


def torch_copy(n=1 << 28):
    import torch

    a, b = torch.randn(n, device="cuda"), torch.empty(n, device="cuda")
    b.copy_(a)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    taken = []
    for _ in range(20):
        events[0].record()
        b.copy_(a)
        events[1].record()
        torch.cuda.synchronize()
        taken.append(events[0].elapsed_time(events[1]) * 1e3)
    return {"torch_copy_tb_s": 8 * n / statistics.median(taken) / 1e6}


def describe_device():
    """The device, driver, compiler and date of a result; `short` names its file."""
    info = _core.cuda_info()
    name = info["devices"][0]["name"]
    return {
        "short": name.split()[-1].lower(),
        "device": name,
        "driver": f"CUDA {info['driver']}",
        "nvrtc": info["nvrtc"].split()[0],
        "date": datetime.date.today().isoformat(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="bench/results")
    parser.add_argument("--peers", action="store_true")
    args = parser.parse_args()
    figures = describe_device()
    parts = [compile_figures, train_step, memory_bound, product_on_the_host]
    for part in parts + ([torch_copy] if args.peers else []):
        figures |= part()
        print(part.__name__, flush=True)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"steps_{figures['short']}.json").write_text(json.dumps(figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    main()
