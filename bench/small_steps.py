"""Small training steps on a GPU: in one block of threads and as launches, by net and batch.

    python bench/small_steps.py [--json FILE]

Microseconds a step, medians of 9 rounds in which the forms take turns: `one` of 2,000 replays of
one step, so that the wait behind them counts for little; `many` of replay(1000), `call` of calls
with host arrays, `stack` of run_many on 200 of them, one behind the other. `least one` is `one` of
a step that adds two numbers: what a graph of one kernel takes. bench/peers_gpu.py has the peers.
"""

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path

import aicf
import numpy as np
from aicf import _core

ROUNDS = 9
APART = tuple(name for name in _core.pass_names() if name != "block")
NETS = [
    ((8, 8, 8), 64, "mse"),
    ((16, 16, 16), 64, "mse"),
    ((32, 32, 32), 64, "mse"),
    ((64, 64, 64), 64, "mse"),
    ((32, 32, 32, 10), 16, "labels"),
    ((32, 32, 32, 10), 128, "labels"),
    ((64, 64, 64, 10), 16, "labels"),
    ((64, 64, 64, 10), 128, "labels"),
    ((32, 128, 128, 10), 32, "labels"),
    ((128, 128, 128, 10), 16, "labels"),
    ((128, 128, 128, 10), 128, "labels"),
    ((256, 256, 256, 10), 16, "labels"),
    ((256, 256, 256, 10), 128, "labels"),
    ((512, 512, 512, 10), 16, "labels"),
    ((512, 512, 512, 10), 128, "labels"),
    ((784, 512, 512, 10), 128, "labels"),
    ((1024, 1024, 1024, 10), 128, "labels"),
]


def data(widths, batch, loss):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, widths[0]), dtype=np.float32)
    if loss == "mse":
        return x, rng.standard_normal((batch, widths[-1]), dtype=np.float32)
    return x, rng.integers(0, widths[-1], batch)


def graph(widths, batch, loss):
    x, t = data(widths, batch, loss)
    g = aicf.Graph("step")
    h = g.input("x", x.shape)
    for i, width in enumerate(widths[1:]):
        h = g.dense(str(i), aicf.relu(h) if i else h, width)
    target = g.input("t", t.shape, str(t.dtype))
    value = (aicf.mse_loss if loss == "mse" else aicf.cross_entropy)(h, target)
    g.minimize(value, aicf.optim.Adam(lr=1e-3))
    g.output("loss", value)
    return g


def timed(function, steps, wait):
    start = time.perf_counter()
    function()
    wait()
    return (time.perf_counter() - start) / steps * 1e6


def ones_of(step, times=2000):
    def ones():
        for _ in range(times):
            step.replay(1)

    return timed(ones, times, step.synchronize)


def least():
    """A step of one kernel that does nearly nothing."""
    g = aicf.Graph("least")
    g.output("y", g.input("x", (1,)) + 1)
    step = g.compile(device="cuda")
    step(x=np.zeros(1, np.float32))
    return step


def readings(step, x, t):
    def calls():
        for _ in range(200):
            step(x=x, t=t)

    stacked = {"x": np.stack([x] * 200), "t": np.stack([t] * 200)}
    return {
        "one": lambda: ones_of(step),
        "many": lambda: timed(lambda: step.replay(1000), 1000, step.synchronize),
        "call": lambda: timed(calls, 200, step.synchronize),
        "stack": lambda: timed(lambda: step.run_many(**stacked), 200, step.synchronize),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, smallest = [], least()
    for widths, batch, loss in NETS:
        x, t = data(widths, batch, loss)
        forms = {}
        for name, passes in (("block", "default"), ("launches", APART)):
            step = graph(widths, batch, loss).compile(device="cuda", passes=passes)
            step(x=x, t=t)
            if name != "block" or len(step.plan.ops) == 1:  # else both are the same launches
                forms[name] = step
        reads = {name: readings(step, x, t) for name, step in forms.items()}
        reads["least"] = {"one": lambda: ones_of(smallest)}
        taken = {}
        for turn in range(ROUNDS + 1):
            for name, of in reads.items():
                for what, read in of.items():
                    us = read()
                    if turn:
                        taken.setdefault((name, what), []).append(us)
        row = {"net": "-".join(map(str, widths)) + f" b{batch} {loss}"}
        for (name, what), figures in taken.items():
            low, middle, high = statistics.quantiles(figures, n=4)
            row[f"{name} {what}"] = {"us": middle, "iqr_us": high - low}
        row["ops"] = {name: len(step.plan.ops) for name, step in forms.items()}
        rows.append(row)
        print(
            f"{row['net']:28}",
            *(f"{name} {what} {row[f'{name} {what}']['us']:.2f}" for name, what in taken),
            row["ops"],
            flush=True,
        )
    if options.json:
        record = {
            "command": "python bench/small_steps.py",
            "device": _core.cuda_info()["devices"][0]["name"],
            "date": str(datetime.date.today()),
            "rows": rows,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
