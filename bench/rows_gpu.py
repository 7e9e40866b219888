"""Times ops that wait for memory on a GPU beside PyTorch's compiler, at sizes of large models.

    python bench/rows_gpu.py [section ...] [--rounds 9] [--sets 4] [--jobs 1] [--json FILE]

Sections: rows (softmax, norms, losses, in bfloat16), sums, moves (joined tensors, rows by number,
which are in range), scans, chains, adam. Both are replayed from CUDA graphs, by turns. Each side
has several sets of operands and results and takes one after the other, a graph each, so that no
replay finds in the L2 cache what the last one of the same operands left; --sets 1: one set, which
a graph of several steps takes over and over. TB/s count every byte that an op, or its gradient, has
to read or write once; a ratio is the peer's time over ours in the same round: above 1, ours is
faster. The slowest stand first.

Two bounds stand beside each time. copy_us is what copies of the same bytes take: one for each pass
of the op, the value's and the gradients', that reads half of the pass's bytes and writes the other
half, replayed in the same way, with as many sets of operands. Of each the fastest counts: aicf's
relu of bfloat16, PyTorch's compiled one, and of a pass of 0.5 GB and more, where a launch's start
and end no longer matter, the rate of PyTorch's copy of 2 GB. Reading is faster than copying, so an
op that writes little may take less.

issue_us is what the instructions of the op's kernels take if each scheduler issues one in every
cycle. Nsight Compute counts them, a step of each case once and alone:

    ncu --profile-from-start off --csv --log-file FILE --metrics smsp__inst_issued.sum \\
        python bench/rows_gpu.py [section ...] --counted

With --counts FILE a run then divides them by clock_mhz, the clock of the SMs while the case is
replayed: in each round, behind the readings that are timed, as many replays run once more while the
driver (NVML) is asked for the clock, and the median of all answers counts. Under load the GPU
lowers it.

near_us is what the same kernels take, by turns with the others, where all pages of an operand or
result of more than 2 MiB are one piece of memory, which the L2 cache holds (aliased.py): what is
left of the time where memory does nothing.
"""

import argparse
import csv
import ctypes
import datetime
import itertools
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import aicf
import ml_dtypes
import numpy as np
from aliased import PAGE, aliased
from conftest import versions

ISSUED = "smsp__inst_issued.sum"
READING = 5e-3  # seconds at least
SETS, FAR = 4, 200 << 20  # and bytes of all, several times what the L2 cache holds
LARGE = 512 << 20  # bytes, from which on the rate of a copy of 2 GB bounds a copy, too
BF16, F32 = "bfloat16", "float32"
ROWS = ((16384, 8192), (4096, 50304), (1048576, 64), (16384, 768))
SUMS = ((16384, 16384), (1048576, 256), (64, 4194304), (16777216, 16))
PARAMS, PARAM = 8, (4096, 4096)
BYTES = {BF16: 2, F32: 4, "int64": 8}


class Case:
    """What is computed: operands by name as (shape, dtype) or, of integers, (shape, below)."""

    def __init__(self, section, name, operands, ours, theirs, gradients=False):
        self.section, self.operands, self.gradients = section, operands, gradients
        self.name = f"{name}, value and gradients" if gradients else name
        self.ours, self.theirs = ours, theirs


def cases():
    for op, more, ours, theirs in ROW_OPS:
        for shape in ROWS:
            operands = {"x": (shape, BF16)} | more(*shape)
            for gradients in (False, True):
                name = f"{op} {shape[0]}x{shape[1]} bfloat16"
                yield Case("rows", name, operands, ours, theirs, gradients)
    for shape in SUMS:
        for axis in (0, 1):
            yield Case(
                "sums",
                f"sum over axis {axis} of {shape[0]}x{shape[1]}",
                {"x": (shape, F32)},
                lambda a, x, axis=axis: a.sum(x, axis),
                lambda t, f, x, axis=axis: t.sum(x, axis),
            )
    for dtype in (F32, BF16):
        for gradients in (False, True):
            yield Case(
                "moves",
                f"concat of two 16384x4096 {dtype}",
                {"x": ((16384, 4096), dtype), "y": ((16384, 4096), dtype)},
                lambda a, x, y: a.concat([x, y], 1),
                lambda t, f, x, y: t.cat([x, y], 1),
                gradients,
            )
            yield Case(
                "moves",
                f"embedding of 32768 into 50304x768 {dtype}",
                {"w": ((50304, 768), dtype), "i": ((32768,), 50304)},
                lambda a, w, i: a.embedding(i, w),
                lambda t, f, w, i: f.embedding(i, w),
                gradients,
            )
    for count, rows in ((1 << 20, 1 << 16), (1 << 20, 16)):
        yield Case(
            "moves",
            f"index_add of {count} numbers to {rows}",
            {"x": ((rows,), F32), "i": ((count,), rows), "y": ((count,), F32)},
            lambda a, x, i, y: a.index_add(x, 0, i, y),
            lambda t, f, x, i, y: t.index_add(x, 0, i, y),
        )
        yield Case(
            "moves",
            f"index_add of {count}x64 to {rows}x64",
            {"x": ((rows, 64), F32), "i": ((count,), rows), "y": ((count, 64), F32)},
            lambda a, x, i, y: a.index_add(x, 0, i, y),
            lambda t, f, x, i, y: t.index_add(x, 0, i, y),
        )
    for shape in ((16384, 8192), (64, 1 << 20), (1 << 26,)):
        name = "x".join(map(str, shape))
        yield Case(
            "scans",
            f"argmax of {name}",
            {"x": (shape, F32)},
            lambda a, x: a.argmax(x, -1),
            lambda t, f, x: t.argmax(x, -1),
        )
        yield Case(
            "scans",
            f"cumsum of {name}",
            {"x": (shape, F32)},
            lambda a, x: a.cumsum(x, -1),
            lambda t, f, x: t.cumsum(x, -1),
        )
    for dtype in (F32, BF16):
        yield Case(
            "chains",
            f"tanh(sin(1.7 x + 0.3) x + exp(-x x)) sigmoid(x), 2^26 {dtype}",
            {"x": ((1 << 26,), dtype)},
            lambda a, x: a.tanh(a.sin(x * 1.7 + 0.3) * x + a.exp(-(x * x))) * a.sigmoid(x),
            lambda t, f, x: t.tanh(t.sin(x * 1.7 + 0.3) * x + t.exp(-(x * x))) * t.sigmoid(x),
        )
        yield Case(
            "chains",
            f"sin(1.7 x + 0.3), 2^26 {dtype}",
            {"x": ((1 << 26,), dtype)},
            lambda a, x: a.sin(x * 1.7 + 0.3),
            lambda t, f, x: t.sin(x * 1.7 + 0.3),
        )
        for fn in ("exp", "sin", "tanh", "sigmoid", "relu"):
            yield Case(
                "chains",
                f"{fn}, 2^26 {dtype}",
                {"x": ((1 << 26,), dtype)},
                lambda a, x, fn=fn: getattr(a, fn)(x),
                lambda t, f, x, fn=fn: getattr(t, fn)(x),
            )
    for name in ("Adam", "AdamW"):
        yield Case("adam", f"{name} of {PARAMS} params 4096x4096", {}, name, name)


ROW_OPS = (
    (
        "softmax",
        lambda rows, n: {},
        lambda a, x: a.softmax(x),
        lambda t, f, x: f.softmax(x, -1),
    ),
    (
        "layer_norm",
        lambda rows, n: {"w": ((n,), BF16), "b": ((n,), BF16)},
        lambda a, x, w, b: a.layer_norm(x, w.shape[0], w, b),
        lambda t, f, x, w, b: f.layer_norm(x, w.shape, w, b),
    ),
    (
        "rms_norm",
        lambda rows, n: {"w": ((n,), BF16)},
        lambda a, x, w: a.rms_norm(x, w.shape[0], w, 1e-5),
        lambda t, f, x, w: f.rms_norm(x, w.shape, w, 1e-5),
    ),
    (
        "cross_entropy",
        lambda rows, n: {"i": ((rows,), n)},
        lambda a, x, i: a.cross_entropy(x, i),
        lambda t, f, x, i: f.cross_entropy(x, i),
    ),
)


MOST = (1 << 20) - 3


def numbers(shape, dtype, seed=0):
    """Random numbers, of which large arrays repeat a million."""
    some = np.random.default_rng(seed).standard_normal(min(math.prod(shape), MOST), np.float32)
    return np.resize(some.astype(ml_dtypes.bfloat16 if dtype == BF16 else np.float32), shape)


def tensor(shape, kind, seed=0):
    """The same on the GPU, where they are repeated; or, of a number, integers below it."""
    import torch

    if not isinstance(kind, str):
        return torch.from_numpy(np.random.default_rng(seed).integers(0, kind, shape)).cuda()
    count = math.prod(shape)
    some = numbers((min(count, MOST),), kind, seed)
    if kind == BF16:
        some = torch.from_numpy(some.view(np.int16)).cuda().view(torch.bfloat16)
    else:
        some = torch.from_numpy(some).cuda()
    return some.repeat(-(-count // MOST))[:count].reshape(shape)


def beside(step):
    """Options of compile() for a step of other operands on the stream of `step`, if any."""
    return {"share": step, "fresh": "*"} if step else {}


def adam(case, number=0):
    """The graph of an optimizer, what it is given, and the bytes of its only pass."""
    g = aicf.Graph(case.ours)
    names = [f"p{k} of {number}" for k in range(PARAMS)]
    params = {g.param(p, PARAM): g.state(f"g of {p}", PARAM) for p in names}
    g.update(params, getattr(aicf.optim, case.ours)(lr=1e-3))
    given = {p: (PARAM, F32, k) for k, p in enumerate(names)}
    return g, given, [28 * PARAMS * math.prod(PARAM)]


def graph_of(case, number=0):
    """The graph of a set of operands, what tensor() is to make of each, and the bytes that each
    pass has to move: the value's, and the gradients'."""
    if case.section == "adam":
        return adam(case, number)
    g = aicf.Graph(case.section)
    values, given = {}, {}
    for name, (shape, kind) in case.operands.items():
        dtype = kind if isinstance(kind, str) else "int64"
        values[name] = g.state(f"{name} of {number}", shape, dtype)
        given[values[name].name] = (shape, kind)

    def size(*some):
        return sum(math.prod(v.shape) * BYTES[v.dtype] for v in some)

    y = case.ours(aicf, **values)
    g.output("y", y)
    passes = [size(*values.values(), y)]
    if "embedding" in case.name:  # the rows that are read, not the table
        passes[0] += size(y) - size(values["w"])
    if case.gradients:
        dy = g.state(f"dy of {number}", y.shape, y.dtype)
        given[dy.name] = (y.shape, y.dtype, 1)
        floats = [v for v in values.values() if v.dtype != "int64"]
        slopes = aicf.grad(y, floats, dy)
        for k, dx in enumerate(slopes):
            g.output(f"d{k}", dx)
        # The gradients of rows follow from the operands.
        again = values.values() if case.section == "rows" else ()
        passes.append(size(*again, dy, *slopes))
    return g, given, passes


def ours(case, number=0, first=None):
    """A compiled step of a set of operands, on the stream of the first one's step."""
    g, given, _ = graph_of(case, number)
    options = {} if case.section == "adam" else {"checks": "off"}
    step = g.compile(device="cuda", **options, **beside(first))
    step.bind(**{name: tensor(*spec) for name, spec in given.items()})
    return step


def near(case, first):
    """The step of ours() whose operands and results lie in the L2 cache."""
    g, given, _ = graph_of(case, "near")
    step = g.compile(device="cuda", checks="off", **beside(first))
    tensors = {}
    for name, (shape, kind, *seed) in given.items():
        values = tensor(shape, kind, *seed)
        large = isinstance(kind, str) and values.nbytes > PAGE
        tensors[name] = aliased(name, shape, kind, values) if large else values
    for name, y in step.outputs.items():
        if y.nbytes > PAGE:
            tensors[name] = aliased(name, y.shape, str(y.dtype))
    step.bind(**tensors)
    return step


def counted(chosen):
    """Runs a step of each case, between marks that Nsight Compute sees."""
    import torch

    every = list(cases())
    for number in chosen:
        step = ours(every[number])
        step.replay(3)
        step.synchronize()
        torch.cuda.profiler.start()
        torch.ones(1, device="cuda")
        step.replay(1)
        step.synchronize()
        torch.cuda.profiler.stop()
        torch.cuda.empty_cache()


def issue_cycles(path, chosen):
    """{case: cycles that its instructions take at one a cycle of each scheduler} of a file of
    Nsight Compute."""
    import torch

    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    every, found, number = list(cases()), {}, -1
    schedulers = 4 * torch.cuda.get_device_properties(0).multi_processor_count
    for row in csv.DictReader(lines[first:]):
        if row["Metric Name"] != ISSUED:
            continue
        if "aicf" not in row["Kernel Name"]:
            number += 1
            if number == len(chosen):
                raise SystemExit(f"{path}: more cases than the {number} of this run; need the same")
            found[every[chosen[number]].name] = 0.0
            continue
        issued = float(row["Metric Value"].replace(",", ""))
        found[every[chosen[number]].name] += issued / schedulers
    if len(found) != len(chosen):
        raise SystemExit(f"{path}: {len(found)} cases, this run has {len(chosen)}; need the same")
    return found


def theirs(case, sets=1):
    """What replays CUDA graphs of PyTorch's compiled function, one of each set of operands."""
    import torch

    function = torch.compile(lambda **xs: case.theirs(torch, torch.nn.functional, **xs))
    return captured_sets(case, function, sets)


def captured_sets(case, function, sets):
    """What replays graphs of a function, one of each set of operands."""
    import torch

    # On one stream from the first call on: autograd runs where the tensors were made.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    return [captured(call_of(case, function), side) for _ in range(sets)]


def call_of(case, function):
    """What a graph of PyTorch's holds, with operands of its own."""
    import torch

    if case.section == "adam":
        params = [torch.nn.Parameter(tensor(PARAM, F32, k)) for k in range(PARAMS)]
        for p in params:
            p.grad = torch.zeros_like(p)
        options = {"lr": 1e-3, "fused": True, "capturable": True}
        return getattr(torch.optim, case.theirs)(params, **options).step
    tensors = {name: tensor(*spec) for name, spec in case.operands.items()}
    floats = [x for x in tensors.values() if x.is_floating_point()]
    for x in floats:
        x.requires_grad_(case.gradients)
    given = []

    def call():
        y = function(**tensors)
        if not case.gradients:
            return y
        if not given:
            given.append(torch.randn_like(y))
        return torch.autograd.grad(y, floats, given[0])

    return call


def captured(call, stream):
    """What replays a graph of a call, whose operands it keeps."""
    import torch

    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            call()
    torch.cuda.synchronize()

    def replay(_held=call):
        graph.replay()

    return replay


def in_turn(replays):
    """What calls several, one after the other, n times in all."""
    turns = itertools.cycle(replays)

    def replay(n):
        for one in itertools.islice(turns, n):
            one()

    return replay


def take_turns(calls, rounds, most=200, watch=None):
    """{name: seconds of one call in each round}; calls: {name: (replay n times, wait)}; most: of
    calls in a reading; watch: called with the seconds that a reading of the first one's calls
    takes while these run once more, not timed."""

    def reading(name, n):
        replay, wait = calls[name]
        start = time.perf_counter()
        replay(n)
        wait()
        return (time.perf_counter() - start) / n

    times, taken = {}, {name: [] for name in calls}
    first = next(iter(calls))
    for name in calls:
        reading(name, 2)
        times[name] = max(2, min(most, int(READING / max(reading(name, 2), 1e-6))))
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            reading(name, 1)
            taken[name].append(min(reading(name, times[name]) for _ in range(3)))
            if watch and name == first:
                replay, wait = calls[name]
                replay(times[name])
                watch(taken[name][-1] * times[name])
                wait()
    return taken


class Clock:
    """Asks the driver's management library (NVML) for the clock of the SMs."""

    def __init__(self):
        import torch

        try:
            self.library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise SystemExit(f"no clock without the driver's management library: {error}") from None
        p = torch.cuda.get_device_properties(0)
        bus = f"{p.pci_domain_id:08x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"
        self.device = ctypes.c_void_p()
        self.ask("nvmlInit_v2")
        self.ask("nvmlDeviceGetHandleByPciBusId_v2", bus.encode(), ctypes.byref(self.device))
        self.answers = []

    def ask(self, function, *arguments):
        if error := getattr(self.library, function)(*arguments):
            raise SystemExit(f"{function}: error {error}")

    def watch(self, seconds):
        """Notes the clock for most of so many seconds, in which the GPU is busy."""
        end = time.perf_counter() + 0.8 * seconds
        while time.perf_counter() < end:
            mhz = ctypes.c_uint()
            self.ask("nvmlDeviceGetClockInfo", self.device, 1, ctypes.byref(mhz))  # 1: of SMs
            self.answers.append(mhz.value)

    def taken(self):
        """The median of what was noted since it was asked last."""
        answers, self.answers = self.answers, []
        return statistics.median(answers)


def compiled(chosen, alone):
    """Compiles cases, whose kernels both sides keep on disk."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    every = list(cases())
    for number in chosen:
        ours(every[number])
        if not alone:
            theirs(every[number])
        torch.compiler.reset()
        torch.cuda.empty_cache()


def compile_beside(chosen, jobs, alone):
    """The same by processes of their own, side by side."""
    jobs = min(jobs, len(chosen))
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compiled, [chosen[job::jobs] for job in range(jobs)], [alone] * jobs))


def measured(case, rounds, sets, peer=None, clock=None, in_l2=False):
    """A row of the table; peer: what theirs() is of the case, if it is timed; clock: a Clock;
    in_l2: whether near() is timed, too."""
    import torch

    passes = graph_of(case)[2]
    moved = sum(passes)
    if sets > 1:
        sets = max(sets, -(-FAR // moved))
    step = ours(case)
    steps = [step, *(ours(case, number, step) for number in range(1, sets))]
    calls = {"aicf": (in_turn([s.replay for s in steps]), step.synchronize)}
    if sets == 1:
        calls["aicf"] = (step.replay, step.synchronize)
    if in_l2:
        calls["near"] = (near(case, step).replay, step.synchronize)
    if peer:
        calls["torch.compile"] = (in_turn(peer(case, sets)), torch.cuda.synchronize)
    taken = take_turns(calls, rounds, watch=clock and clock.watch)
    us = {name: statistics.median(seconds) * 1e6 for name, seconds in taken.items()}
    row = {"section": case.section, "case": case.name, "us": us, "ratio": {}}
    if in_l2:
        row["near_us"] = us.pop("near")
    row["tb_s"] = {name: moved / time / 1e6 for name, time in us.items()}
    for name in list(us)[1:]:
        ratios = [t / s for s, t in zip(taken["aicf"], taken[name], strict=True)]
        row["ratio"][name] = [statistics.median(ratios), min(ratios), max(ratios)]
    if clock:
        row["clock_mhz"] = clock.taken()
    return row


def copy_case(moved):
    """Moves so many bytes, half of which it reads."""
    return Case(
        "copies",
        f"copy of {moved} bytes",
        {"x": ((-(-moved // 32) * 8,), BF16)},
        lambda a, x: a.relu(x),
        lambda t, f, x: t.relu(x),
    )


def copy_times(counts, rounds, sets, rate, alone):
    """{bytes: the least microseconds that a copy of so many takes}; rate: TB/s of a large one."""
    import torch

    relu = torch.compile(torch.relu, dynamic=True)  # one kernel for all sizes

    def peer(case, sets):
        return captured_sets(case, lambda x: relu(x), sets)

    least = {}
    for moved in sorted(set(counts)):
        row = measured(copy_case(moved), rounds, sets, None if alone else peer)
        us = list(row["us"].values()) + [moved / rate / 1e6] * (moved >= LARGE)
        least[moved] = min(us)
        torch.cuda.empty_cache()
    return least


def copy_rate(n=1 << 28):
    """TB/s of PyTorch's copy of n float32."""
    import torch

    a, b = torch.randn(n, device="cuda"), torch.empty(n, device="cuda")

    def copies(times):
        for _ in range(times):
            b.copy_(a)

    taken = take_turns({"copy": (copies, torch.cuda.synchronize)}, 5)
    return 8 * n / statistics.median(taken["copy"]) / 1e12


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help="some of them; default all")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="cases whose names hold one of these"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sets", type=int, default=SETS, help="of operands, taken in turn")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile beforehand")
    parser.add_argument("--alone", action="store_true", help="without PyTorch's compiler")
    parser.add_argument("--near", action="store_true", help="time rows, sums and chains in L2, too")
    parser.add_argument("--counted", action="store_true", help="what Nsight Compute is to count")
    parser.add_argument("--counts", type=Path, help="what it counted, of the same sections")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    import torch

    chosen = [
        number
        for number, case in enumerate(cases())
        if (not args.sections or case.section in args.sections)
        and any(part in case.name for part in args.only)
    ]
    start = time.perf_counter()
    if args.jobs > 1:
        compile_beside(chosen, args.jobs, args.alone or args.counted)
        print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
    if args.counted:
        return counted(chosen)
    cycles = issue_cycles(args.counts, chosen) if args.counts else {}
    rate = copy_rate()
    print(f"copy of 2 GB: {rate:.2f} TB/s", flush=True)
    every = list(cases())
    passes = {number: graph_of(every[number])[2] for number in chosen}
    counts = itertools.chain.from_iterable(passes.values())
    copies = copy_times(counts, args.rounds, args.sets, rate, args.alone)
    rows, clock = [], Clock()
    for number in chosen:
        case = every[number]
        peer = None if args.alone else theirs
        in_l2 = args.near and case.section in ("rows", "sums", "chains")
        rows.append(row := measured(case, args.rounds, args.sets, peer, clock, in_l2))
        row["copy_us"] = sum(copies[moved] for moved in passes[number])
        if cycles:
            row["issue_us"] = cycles[case.name] / row["clock_mhz"]
        ratio = row["ratio"].get("torch.compile", [math.nan])[0]
        print(
            f"{row['case']:<72} {row['us']['aicf']:9.1f} us {row['tb_s']['aicf']:6.2f} TB/s"
            f" {row['copy_us'] / row['us']['aicf']:5.2f} of a copy {ratio:6.2f} of torch.compile",
            flush=True,
        )
        torch.compiler.reset()
        torch.cuda.empty_cache()
        if args.json:
            about = {
                "command": " ".join(["python", *sys.argv]),
                "date": datetime.date.today().isoformat(),
                "device": torch.cuda.get_device_name(),
                "versions": versions(),
                "rounds": args.rounds,
                "sets": args.sets,
                "copy_tb_s": rate,
            }
            rows.sort(key=lambda row: row["ratio"].get("torch.compile", [math.inf])[0])
            args.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
