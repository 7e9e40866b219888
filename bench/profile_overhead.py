"""What a profiler costs: replays with none, with one attached, and in a process that had one.

    python bench/profile_overhead.py [--device cuda] [--rounds 9] [--json FILE]

Each round replays a step as it is, then in `with aicf.profiler()`, then as it is again, which shows
that nothing stays behind; the rounds of both steps take turns. Figures are medians in microseconds
a step, and the ratios medians of rounds. Attaching the profiler and what it does at the end, when
its `with` does, are apart, in milliseconds.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import aicf
import numpy as np
from aicf import benchmark, profile

STEPS = ("8-8-8, batch 64", "784-512-512-10, batch 128")
ROUND = 0.1  # seconds that a round of bare replays takes at least


class Case:
    """A compiled step with its inputs, and how many replays are a round."""

    def __init__(self, name, device):
        self.name = name
        self.step = benchmark.STEPS[name]().compile(device=device)
        rng = np.random.default_rng(0)
        places = [p for p in self.step.plan.values.values() if p["region"] == "inputs"]
        self.step(
            **{p["name"]: benchmark._content(self.step._array(p["name"]), rng) for p in places}
        )
        self.count = 1
        while self.taken() < ROUND:
            self.count *= 2

    def taken(self):
        self.step.synchronize()
        start = time.perf_counter()
        self.step.replay(self.count)
        self.step.synchronize()
        return time.perf_counter() - start

    def round(self):
        """Seconds: bare, profiled, bare again, attaching, ending; and the profile."""
        bare = self.taken()
        start = time.perf_counter()
        with aicf.profiler() as found:
            self.step.replay()
            attached = time.perf_counter() - start
            profiled = self.taken()
            start = time.perf_counter()
        ended = time.perf_counter() - start
        return (bare, profiled, self.taken(), attached, ended), found.profiles[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cases = [Case(name, args.device) for name in STEPS]
    profile.ceiling(args.device, "fp32")  # measured once a process, and no part of a round
    taken = {case.name: [] for case in cases}
    clocks = {}
    for turn in range(args.rounds):
        for case in sorted(cases, key=lambda case: case.name, reverse=turn % 2 == 1):
            seconds, found = case.round()
            taken[case.name].append(seconds)
            clocks[case.name] = found.clock, found.problem
    rows = []
    print(f"{args.device}, medians of {args.rounds} rounds")
    print(f"{'':28}{'bare':>9}{'profiled':>10}{'after':>9}  ratio  after   attach     end  clock")
    for case in cases:
        rounds = taken[case.name]
        bare, profiled, after, attach, end = map(statistics.median, zip(*rounds, strict=True))
        each = 1e6 / case.count
        row = {"step": case.name, "launches": len(case.step.lowered), "replays": case.count}
        row |= {"bare_us": bare * each, "profiled_us": profiled * each, "after_us": after * each}
        row |= {"ratio": statistics.median(r[1] / r[0] for r in rounds)}
        row |= {"ratio_after": statistics.median(r[2] / r[0] for r in rounds)}
        row |= {"attach_ms": attach * 1e3, "end_ms": end * 1e3, "clock": clocks[case.name][0]}
        rows.append(row)
        print(
            f"{case.name:28}{row['bare_us']:9.2f}{row['profiled_us']:10.2f}{row['after_us']:9.2f}"
            f"{row['ratio']:7.2f}{row['ratio_after']:7.2f}{row['attach_ms']:9.2f}"
            f"{row['end_ms']:8.2f}  {row['clock']} {clocks[case.name][1]}"
        )
    if args.json:
        found = {"device": args.device, "rounds": args.rounds, "rows": rows}
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
