"""What each pass is worth on a GPU: the same step with and without it, timed in turns.

python bench/passes_gpu.py
"""

import statistics
import time

from aicf import _core
from peers_gpu import CONFIGS, batch, graph_of

REPEAT = 15


def main():
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
