"""What each pass is worth on a GPU: the same step with and without it, timed in turns.

    python bench/passes_gpu.py
    python bench/passes_gpu.py update_epilogues --json bench/results/update_epilogues_gpu.json

With a pass: small nets of several widths and batches with and without it, by replay(300), whose
states after five steps are compared bit by bit first.
"""

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path

import numpy as np
import small_steps
from aicf import _core
from peers_gpu import CONFIGS, batch, graph_of

REPEAT = 15
WIDTHS = [(128, (64, 128, 256, 512, 1024)), (16, (128, 256, 512, 1024)), (1024, (64, 256, 512))]
NETS = [((width,) * 3 + (10,), rows) for rows, widths in WIDTHS for width in widths]
NETS += [((784, 512, 512, 10), 128), ((32, 128, 128, 10), 32), ((64, 64, 64), 64)]


def with_and_without(name, sizes, rows, math):
    kind = "labels" if sizes[-1] == 10 else "mse"
    x, t = small_steps.data(sizes, rows, kind)
    passes = {"with": tuple(_core.pass_names())}
    passes["without"] = tuple(one for one in passes["with"] if one != name)
    steps, states = {}, []
    for form, chosen in passes.items():
        step = small_steps.graph(sizes, rows, kind)
        steps[form] = step = step.compile(device="cuda", math=math, passes=chosen)
        for _ in range(5):
            step(x=x, t=t)
        states.append({key: np.asarray(step.state[key]).tobytes() for key in step.state})
    assert states[0] == states[1], (sizes, rows, math)
    taken = {form: [] for form in steps}
    for turn in range(9):
        for form, step in steps.items():
            step.synchronize()
            start = time.perf_counter()
            step.replay(300)
            step.synchronize()
            if turn:
                taken[form].append((time.perf_counter() - start) / 300 * 1e6)
    return {
        "net": "-".join(map(str, sizes)),
        "rows": rows,
        "math": math,
        "us": {form: statistics.median(us) for form, us in taken.items()},
        "launches": {form: len(step.plan.ops) for form, step in steps.items()},
    }


def one_pass(name, path):
    rows = []
    for sizes, batch_size in NETS:
        for math in ("fp32", "tf32"):
            rows.append(with_and_without(name, sizes, batch_size, math))
            print(json.dumps(rows[-1]), flush=True)
    if path:
        head = {
            "device": _core.cuda_info()["devices"][0]["name"],
            "date": datetime.date.today().isoformat(),
            "command": f"python bench/passes_gpu.py {name}",
        }
        path.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", help="of a pass; default each of them, of two nets")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.name:
        return one_pass(args.name, args.json)
    names = _core.pass_names()
    choices = {"all": tuple(names), "none": ()}
    choices |= {f"without {name}": tuple(n for n in names if n != name) for name in names}
    for config in CONFIGS:
        x, y = batch(config)
        steps, taken = {}, {}
        for label, passes in choices.items():
            steps[label] = graph_of(config).compile(device="cuda", passes=passes)
            steps[label](x=x, y=y)
            taken[label] = []
        for _ in range(REPEAT):
            for label, step in steps.items():
                step.synchronize()
                start = time.perf_counter()
                step.replay(300)
                step.synchronize()
                taken[label].append((time.perf_counter() - start) / 300 * 1e6)
        for label, seconds in taken.items():
            ratio = statistics.median(t / a for t, a in zip(seconds, taken["all"], strict=True))
            print(
                f"{config}, {label}: {len(steps[label].trace)} launches, "
                f"{statistics.median(seconds):.2f} us, {ratio:.2f} of all"
            )


if __name__ == "__main__":
    main()
