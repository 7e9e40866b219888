"""Times kernels on a GPU and writes the table of them that the package has for such devices.

    python bench/tune_table.py --json python/aicf/tuned_sm_90.json [--graphs gpt2 products nets]
                               [--limit 8] [--seconds 90]

`aicf.tune` and `compile(tune=True)` go by the table where the cache folder says nothing, without
timing. Graphs are the step of GPT-2 124M under "mixed" at 4 and 16 rows of 1024 tokens, the
products of bench/products_gpu.py and the nets of bench/peers_gpu.py's sweep in fp32 and tf32; of
each kind of op the first --limit kernels are timed: more than `tune` asks for, so that another
order of them asks for nothing else. Of two passes over the ops the lesser times count. Kernels
that a whole step is slower by are noted. All kernels are compiled first, into the cache folder by a
process for each processor (16 at most): NVRTC's front end takes one program at a time. Half of
--seconds is for that, up to four fifths for timing ops, the rest for whole steps; what there was no
time for is left out.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import time
from pathlib import Path

import aicf
import peers_gpu
import products_gpu
from aicf import _core, tuning
from compile_cuda import gpt2

DEVICE = "cuda:0"


def gpt2_graphs():
    for rows in (4, 16):
        yield f"GPT-2 at {rows} rows", gpt2(rows=rows), "mixed"


def product_graphs():
    for case in products_gpu.cases(None, products_gpu.MATHS):
        graph, _, math = products_gpu.graph_of(*case)
        yield " ".join(case), graph, math


def net_graphs():
    for sizes, rows in peers_gpu.SWEEP:
        name = f"{'-'.join(map(str, sizes))} b{rows}"
        peers_gpu.CONFIGS[name] = (sizes, rows, "ce")
        for math in ("fp32", "tf32"):
            yield f"{name} {math}", peers_gpu.graph_of(name), math


GRAPHS = {"gpt2": gpt2_graphs, "products": product_graphs, "nets": net_graphs}


class Job:
    """The ops of a graph whose kernels are to be timed."""

    def __init__(self, name, graph, math):
        self.name, self.graph, self.math = name, graph, math

    def open(self, limit, known):
        """On the device; finds the kernels of ops that no graph before has."""
        with self.graph._settled() as core:
            self.trials = _core.Trials(core, DEVICE, _core.pass_names(), self.math, 0)
        fresh = [entry for entry in self.trials.choices if entry[0] not in known]
        known |= {entry[0] for entry in fresh}
        self.wanted = [(entry[0], name) for entry in fresh for name in entry[2][:limit]]

    def time(self, table, until):
        """Its own ops; of two passes the lesser counts, for a device may be disturbed for long."""
        mine = {}
        for signature, name in self.wanted:
            mine.setdefault(signature, []).append(name)
        sizes = {entry[0]: entry[-1] for entry in self.trials.choices}
        for signature, names in mine.items():
            if time.perf_counter() < until:
                now = tuning._timed(self.trials, signature, names, sizes[signature])
                before = table.times.get(signature, now)
                table.times[signature] = {name: min(now[name], before[name]) for name in names}

    def leave_out(self, table, machine, limit):
        """Notes the kernels that are quicker alone and make the step slower."""
        found = tuning.choices(self.trials, machine, table, limit, True)
        changed = [one._replace(shipped=False) for one in found]
        compiled = DEVICE, _core.pass_names(), self.math, 0

        def seconds(kernels):
            with self.graph._settled() as core:
                return tuning._whole(core, compiled, kernels)

        for one, kept in zip(
            changed, tuning._together(changed, seconds, machine, True), strict=True
        ):
            if one.kernel != kept.kernel:
                table.slower.setdefault(one.signature, []).append(one.kernel)


def compile_apart(jobs, limit, until):
    """Fills the cache folder, by processes that are forked while nothing has opened the device."""
    parts = min(16, len(os.sched_getaffinity(0)))

    def compile_part(part):
        known = set()
        for job in jobs:
            job.open(limit, known)
        every = [(job, one) for job in jobs for one in job.wanted]
        for job, one in every[part::parts]:
            if time.perf_counter() < until:
                job.trials.build([one])

    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=compile_part, args=(part,)) for part in range(parts)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise SystemExit(f"a process that compiles ended with {worker.exitcode}")


def text_of(table, about):
    """Sorted, one op a line, in microseconds."""

    def lines(entries):
        each = (
            f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}"
            for key, value in sorted(entries.items())
        )
        return ",\n".join(each)

    us = {
        signature: {name: float(f"{1e6 * seconds:.4g}") for name, seconds in times.items()}
        for signature, times in table.times.items()
    }
    slower = {signature: sorted(names) for signature, names in table.slower.items()}
    return (
        f'{{"about":{json.dumps(about)},\n"us":{{\n{lines(us)}\n}},\n'
        f'"slower":{{\n{lines(slower)}\n}}}}\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    start = time.perf_counter()

    def say(text):
        print(f"{time.perf_counter() - start:6.1f} s  {text}", flush=True)

    jobs = [Job(*each) for name in options.graphs for each in GRAPHS[name]()]
    say(f"{len(jobs)} graphs")
    compile_apart(jobs, options.limit, start + options.seconds / 2)
    known, ready = set(), []
    for job in jobs:
        job.open(options.limit, known)
    say(f"{len(known)} ops, whose kernels are compiled")
    for job in jobs:
        if time.perf_counter() < start + options.seconds * 0.6:  # what is there is read fast
            job.trials.build(job.wanted)
            ready.append(job)
    late = _core.cuda_info()["compiled"]
    say(f"{len(ready)} graphs have their kernels, {late} of which were compiled at the last moment")
    table, until = tuning.Table({}, {}), start + options.seconds * 0.8
    for _ in range(2):
        for job in ready:
            job.time(table, until)
    say(f"{len(table.times)} ops timed")
    machine = tuning._machine(DEVICE)
    about = {
        "command": "python bench/tune_table.py",
        "date": datetime.date.today().isoformat(),
        "device": machine["name"],
        "driver": machine["driver"],
        "processors": machine["processors"],
        "aicf": aicf.__version__,
    }
    options.json.write_text(text_of(table, about))
    proven = set()
    for job in ready:
        signatures = {entry[0] for entry in job.trials.choices}
        if not signatures <= table.times.keys():
            continue
        if len(signatures) > 1:
            if time.perf_counter() > start + options.seconds:
                continue
            job.leave_out(table, machine, min(options.limit, tuning.LIMIT))
            say(f"{job.name} as a whole")
        proven |= signatures
    table = tuning.Table({one: table.times[one] for one in proven}, table.slower)
    say(f"{sum(map(len, table.slower.values()))} kernels make a step slower")
    text = text_of(table, about)
    options.json.write_text(text)
    say(f"{options.json}: {len(text)} bytes, {len(known) - len(table.times)} ops left out")


if __name__ == "__main__":
    main()
