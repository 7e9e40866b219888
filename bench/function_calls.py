"""What a call through aicf.function costs over the Step it runs, and what 100 batch sizes cost.

    python bench/function_calls.py [--rounds 151] [--sizes 100]

Calls: the step 8-8-8 of batch 64, MSE and Adam, by turns; then x * k of a float, the sum of
two arrays in a dict, the mean of a bucket, of 8 x 8. A figure is the median over rounds.
Sizes: one function called once with each of so many batch sizes: seconds to trace and compile, and
memory of the process, a step.
"""

import argparse
import gc
import statistics
import time
import warnings

import aicf
import numpy as np

CALLS = 200


def trainer(sizes, **options):
    nn = aicf.nn
    layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)]
    parts = [part for layer in layers for part in (layer, nn.ReLU())][:-1]
    model = nn.Sequential(*parts)

    @aicf.function(**options)
    def train(x, t):
        loss = aicf.mse_loss(model(x), t)
        aicf.minimize(loss, aicf.optim.Adam(lr=1e-3))
        return loss

    return train


def calls(rounds, device):
    x = np.ones((64, 8), np.float32)
    copied = trainer((8, 8, 8), device=device)
    live = trainer((8, 8, 8), device=device, copy=False)
    step = copied.step(x, x)
    small, rows = np.ones((8, 8), np.float32), aicf.Bucket(16, 64)
    scaled = aicf.function(lambda x, k: x * k, device=device)
    added = aicf.function(lambda pair: pair["a"] + pair["b"], device=device)
    mean = aicf.function(lambda x: rows.mean(x), device=device, buckets={"x": rows})
    pair = {"a": small, "b": small}
    by_path = {f"pair.{name}": array for name, array in pair.items()}
    scale, add = scaled.step(small, 2.0), added.step(pair)
    cases = {
        "step(x=, t=)": lambda: step(x=x, t=x)["result"],
        "step(x=, t=), read": lambda: step(x=x, t=x)["result"].copy(),
        "function, copy=False": lambda: live(x, x),
        "function": lambda: copied(x, x),
        "function, by keyword": lambda: copied(x=x, t=x),
        "a float, step": lambda: scale(x=small, k=2.0)["result"],
        "a float, function": lambda: scaled(small, 2.0),
        "a dict, step": lambda: add(**by_path)["result"],
        "a dict, function": lambda: added(pair),
        "a bucket, function": lambda: mean(small),
    }
    times = {name: [] for name in cases}
    for _ in range(rounds):
        for name, call in cases.items():
            call()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    for name, found in times.items():
        first, last = np.percentile(found, [25, 75])
        print(f"{name:24} {statistics.median(found):6.2f} us ({first:.2f} to {last:.2f})")


def resident():
    with open("/proc/self/status") as file:
        return int(file.read().split("VmRSS:")[1].split()[0]) * 1024


def sizes(count, device):
    warnings.simplefilter("ignore", RuntimeWarning)
    for widths in ((8, 64, 1), (784, 512, 512, 10)):
        train = trainer(widths, device=device, cache=count)
        arrays = [np.ones((rows, width), np.float32) for rows in (count + 1,) for width in
                  (widths[0], widths[-1])]  # fmt: skip
        train(arrays[0], arrays[1])
        gc.collect()
        before, start = resident(), time.perf_counter()
        for rows in range(1, count):
            train(arrays[0][:rows], arrays[1][:rows])
        took = time.perf_counter() - start
        gc.collect()
        each = statistics.median(entry.seconds for entry in train.cache)
        planned = sum(entry.step.plan.peak_bytes for entry in train.cache)
        name = "-".join(map(str, widths))
        print(
            f"{name}: {count} sizes in {took:.2f} s, {each * 1e3:.1f} ms to compile each, "
            f"{(resident() - before) / count / 1e3:.0f} kB each, of which plans "
            f"{planned / count / 1e3:.0f} kB"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=151)
    parser.add_argument("--sizes", type=int, default=100)
    options = parser.parse_args()
    calls(options.rounds, options.device)
    sizes(options.sizes, options.device)


if __name__ == "__main__":
    main()
