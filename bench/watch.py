"""What taps and traps cost: steps of 784-512-512-10 unwatched, tapped and checked, by turns.

    python bench/watch.py [--device cuda] [--rounds 11]

A round times each once; a figure is the median over rounds of its time over that of the unwatched
step in the same round.
"""

import argparse
import statistics
import time

import aicf
import numpy as np

BATCH, WIDTHS = 128, (784, 512, 512, 10)
STEPS = 20


def network(optimizer):
    g = aicf.Graph("watched")
    x, labels = g.input("x", (BATCH, WIDTHS[0])), g.input("labels", (BATCH,), "int64")
    hidden = []
    h = x
    for i, width in enumerate(WIDTHS[1:]):
        h = g.dense(str(i), aicf.relu(h) if i else h, width)
        hidden.append(h)
    loss = aicf.cross_entropy(h, labels)
    g.minimize(loss, optimizer)
    g.output("loss", loss)
    return g, hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    data = {
        "x": rng.standard_normal((BATCH, WIDTHS[0]), np.float32),
        "labels": rng.integers(0, WIDTHS[-1], BATCH),
    }
    for name, optimizer in [("SGD", aicf.optim.SGD(lr=0.01)), ("Adam", aicf.optim.Adam(lr=1e-3))]:
        g, hidden = network(optimizer)
        steps = {
            "unwatched": g.compile(device=options.device),
            "one tap": g.compile(device=options.device),
            "all values": g.compile(device=options.device),
            "check=True": g.compile(device=options.device, check=True),
        }
        every = [aicf.Value(g, id) for id in range(g._core.mark().values)]
        taps = [steps["one tap"].tap(hidden[1]), steps["all values"].tap(*every)]
        times = {kind: [] for kind in steps}
        for _ in range(options.rounds):
            for kind, step in steps.items():
                step(**data)
                step.synchronize()
                start = time.perf_counter()
                for _ in range(STEPS):
                    step(**data)
                step.synchronize()
                times[kind].append((time.perf_counter() - start) / STEPS)
        alone = statistics.median(times["unwatched"]) * 1e3
        print(f"{name} on {options.device}: {alone:.3f} ms a step")
        for kind in list(steps)[1:]:
            pairs = zip(times[kind], times["unwatched"], strict=True)
            print(f"  {kind:11} {statistics.median(a / b for a, b in pairs):5.2f} times as long")
        del taps


if __name__ == "__main__":
    main()
