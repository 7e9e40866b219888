"""Times what a training step costs before its first launch on CUDA: cold, and from the disk cache.

    python bench/compile_cuda.py [model ...] [--rounds 3] [--kernels] [--json FILE]

Each round of a model is two fresh processes over one empty kernel cache: the first is cold, the
second warm. NVRTC keeps a cache of its own from 12.9 on, which is off here: with it only the first
round would be cold. With a GPU they compile the step itself, after a small one that starts the
device; without one, they make the kernels' programs for sm_90a and compile these. Figures are
seconds, the median of the rounds: `build` of the graph, `compile` by the clock, `processor` the
same of all threads, and so are the stages. `--kernels` adds what each kernel costs by itself.
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
from aicf import _core

ARCH, PROCESSORS = "sm_90a", 132


def mlp(sizes, batch, activation):
    g = aicf.Graph("mlp")
    x = g.input("x", (batch, sizes[0]))
    for i, size in enumerate(sizes[1:]):
        x = g.dense(str(2 * i), x, size)
        x = activation(x) if i + 2 < len(sizes) else x
    loss = aicf.mse_loss(x, g.input("t", (batch, sizes[-1])))
    g.output("loss", loss)
    g.minimize(loss, aicf.optim.Adam())
    return g


def gpt2(rows=4, length=1024, letters=50304, width=768, heads=12, layers=12):
    """GPT-2 of 124M params, whose output layer is its embedding."""
    g = aicf.Graph("gpt2")
    start = aicf.init.normal(std=0.02)
    tokens = g.param("tokens", (letters, width), init=start)
    h = aicf.embedding(g.input("x", (rows, length), "int32"), tokens)
    h = h + g.param("places", (length, width), init=start)

    def norm(name, x):
        scale = g.param(f"{name}.scale", (width,), init=aicf.init.ones())
        return aicf.layer_norm(x, (width,), scale, g.param(f"{name}.shift", (width,)))

    for i in range(layers):
        qkv = g.dense(f"{i}.qkv", norm(f"{i}.norm0", h), 3 * width)
        parts = (rows, length, heads, width // heads)
        split = (aicf.permute(y.reshape(parts), (0, 2, 1, 3)) for y in aicf.split(qkv, 3, axis=-1))
        y = aicf.permute(aicf.scaled_dot_product_attention(*split, causal=True), (0, 2, 1, 3))
        h = h + g.dense(f"{i}.out", y.reshape((rows, length, width)), width)
        wide = aicf.gelu(g.dense(f"{i}.wide", norm(f"{i}.norm1", h), 4 * width), "tanh")
        h = h + g.dense(f"{i}.narrow", wide, width)
    logits = aicf.linear(norm("norm", h), tokens).reshape((rows * length, letters))
    loss = aicf.cross_entropy(logits, g.input("next", (rows * length,), "int32"))
    g.output("loss", loss)
    g.minimize(loss, aicf.optim.AdamW(lr=6e-4))
    return g


MODELS = {
    "8-8-8": (lambda: mlp((8, 8, 8), 64, aicf.relu), "fp32"),
    "784-512-512-10": (lambda: mlp((784, 512, 512, 10), 128, aicf.relu), "fp32"),
    "4096x4 mixed": (lambda: mlp((4096,) * 5, 4096, aicf.gelu), "mixed"),
    "gpt2-124m mixed": (gpt2, "mixed"),
}


def timed(call):
    start, busy = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - start, time.process_time() - busy


def programs_of(graph, math):
    return _core.cuda_programs(graph._core, _core.pass_names(), PROCESSORS, ARCH, math)


def once(name, device):
    """One model in this process, as a dict of figures."""
    build, math = MODELS[name]
    g, seconds, _ = timed(build)
    row = {"build": seconds}
    if device:
        warmth = aicf.Graph("start")
        warmth.output("y", -warmth.input("x", (8,)))
        _, row["start"], _ = timed(lambda: warmth.compile(device="cuda"))
        step, row["compile"], row["processor"] = timed(lambda: g.compile(device="cuda", math=math))
        row["launches"] = len(step.lowered)
        row["stages"] = {}
        for stage, part in step._stages():
            row["stages"][stage] = row["stages"].get(stage, 0.0) + part
    else:
        programs, text, busy = timed(lambda: programs_of(g, math))
        cubins, seconds, more = timed(lambda: _core.cuda_cubins(programs, ARCH))
        row |= {"compile": text + seconds, "processor": busy + more}
        row["stages"] = {"passes, lower, text": text, "kernels": seconds}
        row |= {"kernels": len(programs), "source_bytes": sum(map(len, programs))}
        row["cubin_bytes"] = sum(map(len, cubins))
    return row


def child(name, device, folder):
    done = subprocess.run(
        [sys.executable, __file__, "--once", name] + ["--device"] * device,
        env={**os.environ, "AICF_CACHE_DIR": folder, "CUDA_CACHE_DISABLE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def middle(rows):
    """The median of each figure, stage by stage."""
    return {
        key: middle([row[key] for row in rows])
        if isinstance(value, dict)
        else statistics.median(row[key] for row in rows)
        for key, value in rows[0].items()
    }


def kernel_costs(name):
    """(processor seconds, bytes of source, name) of each kernel compiled by itself."""
    build, math = MODELS[name]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"AICF_CACHE_DIR": folder, "CUDA_CACHE_DISABLE": "1"}
        for program in programs_of(build(), math):
            _, _, busy = timed(lambda: _core.cuda_cubins([program], ARCH))  # noqa: B023
            rows.append((busy, len(program), program.rpartition(") aicf_")[2].partition("(")[0]))
    return sorted(rows, reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--device", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(json.dumps(once(given.once, given.device)))
        return
    info = _core.cuda_info()
    device = bool(info["devices"])
    results = {
        "command": "python bench/compile_cuda.py",
        "date": datetime.date.today().isoformat(),
        "device": info["devices"][0]["name"] if device else f"none, for {ARCH}",
        "cores": len(os.sched_getaffinity(0)),
        "nvrtc": info["nvrtc"].split(" ")[0],
        "rounds": given.rounds,
        "models": {},
    }
    for name in given.models or MODELS:
        pairs = []
        for _ in range(given.rounds):
            with tempfile.TemporaryDirectory() as folder:
                pairs.append([child(name, device, folder) for _ in ("cold", "warm")])
        cold, warm = (middle(list(rows)) for rows in zip(*pairs, strict=True))
        results["models"][name] = {"cold": cold, "warm": warm}
        print(
            f"{name:16} cold {cold['compile']:7.3f} s ({cold['processor']:.3f} of processors)  "
            f"warm {warm['compile']:7.3f} s  build {cold['build']:.3f} s  "
            f"{cold.get('kernels', cold.get('launches'))} "
            f"{'launches' if device else 'kernels'}",
            flush=True,
        )
        for stage, seconds in cold["stages"].items():
            if seconds > 0.005:
                print(f"    {stage:24} {seconds:7.3f} {warm['stages'][stage]:7.3f}")
        if given.kernels:
            results["models"][name]["kernels"] = rows = kernel_costs(name)
            for seconds, size, kernel in rows[:12]:
                print(f"    {seconds:7.3f} s {size:6} bytes  {kernel}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
