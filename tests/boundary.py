"""Graphs of shapes at, next to and between every size at which a kernel goes another way, run in
many settings that must give the same bits, and held against float64.

    python tests/boundary.py --graphs 100000 --seed 1 [--first N] [--families mlp,conv] [--jobs N]
    python tests/boundary.py --seed 1 mlp:17          one graph, in every setting, with its dump

A graph is a family and a number; with the seed they decide everything about it. The long form goes
on where it was stopped. tests/test_boundary.py runs a few thousand graphs.
"""

import argparse
import collections
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aicf
import numpy as np
import reference
from aicf import _core
from boundary_parts import Recorder
from boundary_programs import FAMILIES
from boundary_shapes import Dice, covered, table, target_of, targets
from isas import used_isas

ROOT = Path(__file__).resolve().parents[1]
# What tests/test_boundary.py runs.
SEED = 16
GRAPHS = {
    "mlp": 480, "product": 680, "conv": 320, "attention": 320, "rows": 320, "groups": 80,
    "reduce": 440, "pointwise": 300, "movement": 240, "ops": 300, "reuse": 120,
}  # fmt: skip
THREADS = (1, 2, 3, 8)
MODES = ("eager", "captured", "replay")
PASSES = {"none": (), "all": "default"} | {name: (name,) for name in _core.pass_names()}
ISAS = ("baseline", "avx2", "avx512")
WHOLE = 50  # of so many graphs one is run in the full product of settings
SLOW_WORK = 300_000  # multiplications from which the instruction set without fma runs little


def name_of(family, number):
    return f"{family}:{number}"


# ---- one graph


class Case:
    """A drawn program: its aicf graph, what it takes, and what float64 makes of it."""

    def __init__(self, seed, family, number, backend="cpu"):
        self.rng = Dice([seed, list(FAMILIES).index(family), number], backend)
        aim = target_of(FAMILIES[family].quantities, number, backend)
        self.config = FAMILIES[family].draw(self.rng, aim)
        self.program = FAMILIES[family].program
        self.build()

    def build(self):
        """Draws nothing: the graph follows from the configuration alone."""
        self.recorder = Recorder(self.config)
        self.loss = self.program(aicf, self.recorder, self.config)
        self.recorder.end(self.loss)
        self.graph = self.recorder.graph
        self.ops = self.graph.lower()
        self.params = {
            name: data(self.rng, shape, dtype)
            for name, (shape, dtype, data) in self.recorder.params.items()
        }
        self.feeds = [
            {
                name: data(self.rng, shape, dtype)
                for name, (shape, dtype, data) in self.recorder.inputs.items()
            }
            for _ in range(2)
        ]

    @property
    def work(self):
        """Multiplications of its products."""
        total = 0
        for op in self.ops:
            if op["op"] == "gemm":
                total += math.prod(op["outputs"][0]["shape"]) * op["inputs"][0]["shape"][-1]
        return total

    def compile(self, passes, threads, device="cpu", **options):
        aicf.set_num_threads(threads)
        return self.graph.compile(
            device=device,
            passes=PASSES[passes],
            params=self.params,
            seed=7,
            checks="off",
            **options,
        )

    def run(self, step, start, mode, threads):
        """Results and state after the first batch once and the second some times."""
        aicf.set_num_threads(threads)
        if start:
            step.load_state_dict(start)
        call = step.run if mode == "eager" else step
        found = {}
        first, second = self.feeds
        for name, array in call(**first).items():
            found[f"first {name}"] = array.numpy()
        out = call(**second)
        more = self.config["replays"]
        if mode == "replay":
            step.replay(more)
            out = step.outputs
        else:
            for _ in range(more):
                out = call(**second)
        for name, array in out.items():
            found[name] = array.numpy()
        return found | step.state_dict()

    def reference(self, noise=lambda shape: 0.0):
        """What float64 makes of the first batch, each number moved by so many of its parts."""
        feeds = {
            name: array + array * noise(array.shape) if array.dtype.kind == "f" else array
            for name, array in self.feeds[0].items()
        }
        twin = reference.Graph(feeds, self.params)
        loss = self.program(reference, twin, self.config)
        wanted = {name: value.data for name, value in twin.outputs.items()}
        if self.loss is not None:
            order = reference.backward(loss)
            wanted["loss"] = loss.data
            if self.config["ends"] == "gradients":
                # A gradient jumps where a value bends: what is as near as float32 errs is left,
                # and so is float16, whose gradients underflow.
                if (
                    self.config["dtype"] != "float16"
                    and min((v.margin for v in order), default=math.inf) > self.config["clearance"]
                ):
                    for name, leaf in twin.leaves.items():
                        if f"d.{name}" in self.recorder.outputs:
                            wanted[f"d.{name}"] = leaf.gradient
        return wanted

    def noises(self):
        """All numbers moved alike, and each its own way."""
        size = 2.0 ** (-48 if self.config["dtype"] == "float64" else -20)
        rng = np.random.default_rng(1)
        return (lambda shape: size), (lambda shape: size * rng.choice((-1.0, 1.0), shape))

    def check_reference(self, found):
        """The results of the first batch against float64."""
        if check := FAMILIES[self.config["family"]].check:
            return check(self, found)
        wanted, moved = self.reference(), None
        for name, want in wanted.items():
            got = np.asarray(found[f"first {name}"], np.float64)
            assert got.shape == want.shape, f"{name}: {got.shape}, float64 has {want.shape}"
            if not want.size:
                continue
            # A gradient may be a sum whose terms cancel, of all elements where it is a number.
            least = (1e-2 if want.ndim else 0.1) if name.startswith("d.") else 1e-3
            limit = self.config["tolerance"] * max(least, float(np.abs(want).max()))
            error = np.abs(got - want)
            if not error.max() <= limit:  # as far as the inputs' own last bits may move it
                moved = moved or [self.reference(noise) for noise in self.noises()]
                limit = limit + sum(np.abs(other[name] - want) for other in moved)
            if not (error <= limit).all():
                worst = np.argmax(np.where(np.isnan(error), np.inf, error - limit))
                at = tuple(int(i) for i in np.unravel_index(worst, error.shape))
                limit = np.broadcast_to(limit, error.shape)[at]
                raise AssertionError(
                    f"{name}{list(at)} is {got[at]!r}, float64 has {want[at]!r}, limit {limit:.3g}"
                )


def bits(array):
    """The bytes; a NaN's payload is free."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "f" and np.isnan(array).any():
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return array.tobytes()


def difference(found, want):
    """Where the first of two sets of results differ; empty where they do not."""
    for name, array in want.items():
        if bits(found[name]) == bits(array):
            continue
        other = np.atleast_1d(found[name])
        array = np.atleast_1d(array)
        unequal = other.view(f"u{array.itemsize}") != array.view(f"u{array.itemsize}")
        at = tuple(int(i) for i in np.argwhere(unequal)[0])
        return (
            f"{name}{list(at)} is {other[at]!r}, need {array[at]!r}; "
            f"{int(unequal.sum())} of {unequal.size} differ"
        )
    return ""


def digest(found):
    sha = hashlib.sha256()
    for name in sorted(found):
        sha.update(name.encode() + b"\0" + bits(found[name]))
    return sha.hexdigest()[:16]


# ---- settings


def settings(case, number, isa, whole):
    """(passes, threads when compiled, [(mode, threads), ...]) of one graph in one instruction set:
    everything, or without passes, with all and with one, in two ways each."""
    ways = list(itertools.product(MODES, THREADS))
    if whole:
        return [(passes, max(THREADS), ways) for passes in PASSES]
    at = number * len(ISAS) + ISAS.index(isa)
    rng = np.random.default_rng([at, 11])
    single = _core.pass_names()[at % len(_core.pass_names())]
    chosen = [("all", 3), ("none", 1), (single, 2)]
    if isa == "baseline" and case.work > SLOW_WORK:
        chosen = [(("all", single)[number % 2], 2)]
    if case.config.get("heavy"):
        chosen = [(("all", "none", single)[at % 3], 2)]
    result = []
    for passes, count in chosen:
        some = [ways[i] for i in rng.choice(len(ways), count, replace=False)]
        if passes == "all" and all(threads == 1 for _, threads in some):
            some[0] = (some[0][0], int(rng.choice(THREADS[1:])))
        # Workspaces are made for the threads there are when a step is compiled.
        most = max(threads for _, threads in some) if rng.integers(3) == 0 else max(THREADS)
        result.append((passes, most, some))
    return result


def check(seed, family, number, isa, whole=None):
    """Runs one graph: what was found of it, as a line of a report."""
    case = Case(seed, family, number)
    if whole is None:
        whole = number % WHOLE == 0 and case.work <= SLOW_WORK and not case.config.get("heavy")
    line = {"graph": name_of(family, number), "isa": isa, "settings": [], "problem": ""}
    want = said = None
    for passes, compiled_for, ways in settings(case, number, isa, whole):
        step = case.compile(passes, compiled_for)
        start = step.state_dict()
        for mode, threads in ways:
            found = case.run(step, start, mode, threads)
            here = f"{isa}, passes {passes}, {threads} threads, {mode}"
            line["settings"].append([passes, threads, mode])
            if want is None:
                want, said = found, here
            elif apart := difference(found, want):
                line["problem"] = f"{here}: {apart} as with {said}"
                return line, case
    line["digest"] = digest(want)
    if isa == used_isas()[-1]:  # one of them is enough for what all share
        line["hits"] = covered(case.ops)
        try:
            case.check_reference(want)
        except AssertionError as error:
            line["problem"] = f"{said}: {error}"
    return line, case


def problem_line(seed, family, number, isa):
    """check() in one line, whatever happens."""
    try:
        return check(seed, family, number, isa)[0]
    except Exception as error:
        return {
            "graph": name_of(family, number),
            "isa": isa,
            "settings": [],
            "problem": f"{isa}: {type(error).__name__}: {error}",
        }


# ---- many graphs, in processes of their own

# How these run, which tests/faults.py and tests/sanitize.py change.
SHARD = 80  # graphs of a process
HANGS = 240  # seconds
PYTHON = [sys.executable, "-W", "ignore", *(["-S"] if sys.flags.no_site else [])]
ENVIRONMENT = {}  # beside os.environ


def worker(isa, seed, family, first, last):
    """The lines of graphs [first, last) in one instruction set."""
    command = [*PYTHON, __file__, "--seed", str(seed), "--worker", f"{family}:{first}:{last}"]
    environment = {**os.environ, **ENVIRONMENT, "AICF_CPU_ISA": isa}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=HANGS
        )
        said, end = done.stdout, f"ended with {done.returncode}: {done.stderr[-500:]}"
        failed = done.returncode != 0
    except subprocess.TimeoutExpired as late:
        said, end, failed = (late.stdout or b"").decode(), f"did not end in {HANGS} s", True
    lines = [json.loads(text) for text in said.splitlines() if text.endswith("}")]
    if failed:  # the graph it was at; those behind it were not run
        graph = name_of(family, min(first + len(lines), last - 1))
        problem = f"{isa}: the process {end}"
        lines.append({"graph": graph, "isa": isa, "settings": [], "problem": problem})
    return lines


class Tally:
    """What many graphs came to."""

    def __init__(self, seed):
        self.seed = seed
        self.graphs, self.runs = 0, 0
        self.hits = collections.Counter()  # (entry of the table, side)
        self.combinations = collections.Counter()  # (instruction set, passes, threads, mode)
        self.problems = []

    def add(self, lines):
        """The lines of some graphs from every instruction set."""
        by_graph = collections.defaultdict(list)
        for line in lines:
            by_graph[line["graph"]].append(line)
        for graph, found in by_graph.items():
            self.graphs += 1
            for line in found:
                self.runs += len(line["settings"])
                self.hits.update(tuple(hit) for hit in line.get("hits", ()))
                self.combinations.update((line["isa"], *s) for s in line["settings"])
            problems = [line["problem"] for line in found if line["problem"]]
            digests = {line["digest"]: line["isa"] for line in found if "digest" in line}
            if not problems and len(digests) > 1:
                problems = [f"other bits in {' than in '.join(digests.values())}"]
            if problems:
                again = f"python tests/boundary.py --seed {self.seed} {graph}"
                self.problems.append(f"{graph}: {'; '.join(problems)}\n    {again}")

    def merge(self, other):
        self.graphs += other.graphs
        self.runs += other.runs
        self.hits += other.hits
        self.combinations += other.combinations
        self.problems += other.problems

    def missing(self, families=tuple(FAMILIES)):
        """Entries of the table that some side of was never met."""
        places = {entry: at for at, entry in enumerate(table())}
        wanted = {t for family in families for t in targets(FAMILIES[family].quantities)}
        return sorted(t for t in wanted if not self.hits[places[t[:3]], t[3]])

    def __str__(self):
        return (
            f"{self.graphs} graphs of seed {self.seed}, {self.runs} runs in "
            f"{len(self.combinations)} combinations of settings, "
            f"{len(self.hits)} sides of thresholds met, {len(self.problems)} problems"
        )


def run_shard(seed, family, first, last):
    tally = Tally(seed)
    lines = [worker(isa, seed, family, first, last) for isa in used_isas()]
    tally.add(itertools.chain.from_iterable(lines))
    return tally


def run_family(seed, family, graphs, jobs=2, first=0):
    """Graphs [first, first + graphs) of a family, `jobs` processes at a time."""
    tally = Tally(seed)
    shards = [(at, min(at + SHARD, first + graphs)) for at in range(first, first + graphs, SHARD)]
    with ThreadPoolExecutor(jobs) as pool:
        for part in pool.map(lambda s: run_shard(seed, family, *s), shards):
            tally.merge(part)
    return tally


# ---- commands


def run_one(seed, text):
    """One graph in every setting and instruction set, with what it is."""
    lines = []
    for isa in used_isas():
        command = [*PYTHON, __file__, "--seed", str(seed), "--whole", text]
        done = subprocess.run(
            command, env={**os.environ, "AICF_CPU_ISA": isa}, stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            sys.exit(f"{isa}: the process ended with {done.returncode}")
        *dump, line = done.stdout.splitlines()
        if not lines:
            print(*dump, sep="\n")
        lines.append(json.loads(line))
    found = Tally(seed)
    found.add(lines)
    return found


def run_long(options, families):
    """The long form: goes on behind the last shard that a file of results names."""
    folder = ROOT / "build" / "boundary"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"seed-{options.seed}.jsonl"
    if options.fresh:
        log.unlink(missing_ok=True)
    tally, done = Tally(options.seed), set()
    for text in log.read_text().splitlines() if log.exists() else []:
        record = json.loads(text)
        done.add((record["family"], record["first"]))
        restore(tally, record)
    each = -(-options.graphs // len(families))
    shards = [
        (family, first, min(first + SHARD, options.first + each))
        for first in range(options.first, options.first + each, SHARD)
        for family in families
    ]
    left = [shard for shard in shards if shard[:2] not in done]
    start = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool, log.open("a") as file:
        for shard, part in zip(left, pool.map(lambda s: run_shard(options.seed, *s), left)):  # noqa: B905
            tally.merge(part)
            file.write(json.dumps(saved(part, *shard)) + "\n")
            file.flush()
            if part.problems:
                print(*part.problems, sep="\n", flush=True)
            if time.monotonic() - start > 30:
                start = time.monotonic()
                print(tally, flush=True)
    return tally


def saved(part, family, first, last):
    return {
        "family": family, "first": first, "graphs": part.graphs, "runs": part.runs,
        "hits": [[*hit, n] for hit, n in part.hits.items()],
        "combinations": [[*one, n] for one, n in part.combinations.items()],
        "problems": part.problems,
    }  # fmt: skip


def restore(tally, record):
    tally.graphs += record["graphs"]
    tally.runs += record["runs"]
    tally.problems += record["problems"]
    for *hit, n in record["hits"]:
        tally.hits[tuple(hit)] += n
    for *one, n in record["combinations"]:
        tally.combinations[tuple(one)] += n


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", nargs="?", help="family:number")
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="of each family's numbers")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--fresh", action="store_true", help="forget what ran before")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--whole", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        family, first, last = options.worker.split(":")
        for number in range(int(first), int(last)):
            line = problem_line(options.seed, family, number, _core.cpu_isa())
            print(json.dumps(line), flush=True)
        return
    if options.whole:
        family, number = options.whole.split(":")
        line, case = check(options.seed, family, int(number), _core.cpu_isa(), whole=True)
        print(json.dumps(case.config), case.graph, sep="\n")
        print(json.dumps(line))
        return
    if options.graph:
        tally = run_one(options.seed, options.graph)
    else:
        tally = run_long(options, options.families.split(","))
    print(tally)
    for entry in tally.missing(options.families.split(",")) if not options.graph else []:
        print("never met:", *entry)
    if tally.problems:
        sys.exit("\n".join(tally.problems))


if __name__ == "__main__":
    main()
