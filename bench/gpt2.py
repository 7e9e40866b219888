"""Times the training step of GPT-2 124M on a GPU, and says what it takes.

    python bench/gpt2.py [rows ...] [--json FILE]

A batch is rows x 1024 random tokens; math is "mixed", the optimizer AdamW. Milliseconds a step are
medians of 9 readings of `replay(3)`; launches and the peak of memory are those of the plan.
"""

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path

import numpy as np
from aicf import _core
from compile_cuda import gpt2

LENGTH, LETTERS, READINGS, STEPS = 1024, 50257, 9, 3


def measured(rows):
    step = gpt2(rows=rows, length=LENGTH).compile(device="cuda", math="mixed")
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, LETTERS, (rows, LENGTH), np.int32)
    step(x=tokens, next=rng.integers(0, LETTERS, rows * LENGTH, np.int32))
    step.replay(STEPS)
    step.synchronize()
    times = []
    for _ in range(READINGS):
        start = time.perf_counter()
        step.replay(STEPS)
        step.synchronize()
        times.append((time.perf_counter() - start) / STEPS)
    middle = statistics.median(times)
    return {
        "rows": rows,
        "ms": 1e3 * middle,
        "quartiles_ms": [1e3 * t for t in statistics.quantiles(times)[::2]],
        "tokens_per_s": rows * LENGTH / middle,
        "launches": len(step.lowered),
        "peak_bytes": step.plan.peak_bytes,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", nargs="*", type=int, default=[4, 16])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = {
        "command": "python bench/gpt2.py",
        "date": datetime.date.today().isoformat(),
        "device": _core.cuda_info()["devices"][0]["name"],
        "rows": [],
    }
    for rows in given.rows:
        results["rows"].append(row := measured(rows))
        print(
            f"{rows:3} x {LENGTH} tokens: {row['ms']:7.2f} ms, "
            f"{row['tokens_per_s']:9.0f} tokens/s, {row['launches']} launches, "
            f"{row['peak_bytes'] / 1e9:.2f} GB",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
