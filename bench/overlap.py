"""Times independent work in one step beside the same work in steps of its own, one at a time.

    python bench/overlap.py [--device cuda] [--rounds 15] [--json FILE]

What overlaps takes less together than the sum of its parts. The rows are cases of builds.py, so
`python bench/builds.py OTHER_PYTHON together --device cuda` compares them with another build.
Figures are the medians of rounds in which all take turns, in microseconds a step.
"""

import argparse
import json
import statistics
from pathlib import Path

import builds

OVERLAPS = {  # a case and its parts
    "2 split products together": ["1 split product"] * 2,
    "backward, updates together": ["backward", "updates"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    table, rows = builds.cases(args.device), []
    print(f"{'':28}{'one at a time':>14}{'together':>10}  together / one at a time")
    for name, parts in OVERLAPS.items():
        held = {case: builds.Case(args.device, *table[case]) for case in {name, *parts}}
        taken = {case: [] for case in held}
        for turn in range(args.rounds):
            for case in sorted(held, reverse=turn % 2 == 1):
                taken[case].append(held[case].reading() * 1e6)
        apart = [sum(times) for times in zip(*(taken[part] for part in parts), strict=True)]
        ratio = statistics.median(a / b for a, b in zip(taken[name], apart, strict=True))
        row = {"case": name, "one_at_a_time_us": statistics.median(apart)}
        row |= {"together_us": statistics.median(taken[name]), "ratio": ratio}
        rows.append(row)
        print(f"{name:28}{row['one_at_a_time_us']:14.2f}{row['together_us']:10.2f}  {ratio:.3f}")
    if args.json:
        args.json.write_text(json.dumps({"device": args.device, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
