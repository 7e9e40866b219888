"""Where the time of a step goes: each launch timed, as a table and as a trace."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from . import _core
from .arguments import Path, checked
from .files import write_whole
from .graph import Graph
from .layers import first_part, layers
from .ops import matmul
from .step import Step
from .summary import html_table, text_table
from .units import bytes_text, count_text, printable, time_text

if TYPE_CHECKING:
    import numpy.typing as npt

KINDS = ("launch", "op", "layer")
Spans: TypeAlias = "npt.NDArray[np.float64]"  # (steps, 1 + launches, 2): begin and end, in seconds


class Ceiling(NamedTuple):
    """What a device does at most: of a copy in memory and of a product, measured on it. NaN where
    it had no memory left for them."""

    bytes_per_second: float
    flops_per_second: float


class ProfiledLaunch(NamedTuple):
    """One launch of a step: what it is, where it comes from, what it took."""

    number: int
    op: str  # what runs: "gemm+bias_add+relu" of a fused op, "gemm, reduce_sum" of a group
    members: tuple[str, ...]  # the lowered ops in it
    node: int  # of the IR, of its first part
    name: str  # of that node's op: "Linear"
    layer: str
    source: str  # the line that made the node: "train.py:12"
    kernel: str
    lane: int
    blocks: int  # of the grid; 1 on a CPU
    threads: int  # of a block; on a CPU those that may share the launch
    shared_bytes: int  # of shared memory a block
    bytes_moved: int
    flops: int
    times: tuple[float, ...]  # seconds, one a step

    @property
    def median(self) -> float:
        """Seconds."""
        return _median(self.times)

    @property
    def least(self) -> float:
        """Seconds."""
        return min(self.times, default=0.0)


class _Row(NamedTuple):
    """A line of a table before it is text."""

    words: tuple[str, ...]
    median: float
    least: float
    bytes_moved: int
    flops: int


class Profile:
    """What each launch of a step took. Prints as a table, in a notebook too.

    `clock` says what timed them. "cupti": NVIDIA's CUPTI, inside replays as they are, where
    launches may run side by side. "events" of a GPU and the "steady clock" of a CPU: the launches
    run one after another, so that each is timed alone, and the gap between two kernels counts.
    The bits are the same. `problem` says why a GPU's was not CUPTI, which the package
    nvidia-cuda-cupti brings.
    """

    def __init__(
        self,
        title: str,
        launches: Sequence[ProfiledLaunch],
        spans: Spans,
        ceiling: Ceiling,
        stages: Sequence[tuple[str, float]] = (),
        clock: str = "steady clock",
        problem: str = "",
    ) -> None:
        self.title = title
        self.clock = clock
        self.problem = problem
        self.launches = list(launches)
        self.ceiling = ceiling
        self.stages = list(stages)  # of compiling, in seconds of a processor
        self.untimed = int(np.isnan(spans).any(axis=(1, 2)).sum())  # steps that no clock told of
        self._spans = spans[~np.isnan(spans).any(axis=(1, 2))]

    @property
    def steps(self) -> int:
        """How many were timed."""
        return len(self._spans)

    @property
    def walls(self) -> list[float]:
        """Seconds that each step took as its caller sees it: no less than its launches together."""
        return [float(end - begin) for begin, end in self._spans[:, 0]]

    @property
    def times(self) -> list[float]:
        """The median of each launch in seconds, as `Step.to_html` takes them."""
        return [launch.median for launch in self.launches]

    def table(self, by: str = "launch") -> str:
        """The times as text.

        Args:
            by: "launch" for a line each; "op" or "layer" for those of a kind together, the longest
                first. A launch of several ops counts where its first part belongs.

        Raises: GraphError for another `by`.

        >>> step.profile().table(by="layer").splitlines()[2].split()[:2]
        ['layer', 'launches']
        """
        words, head, body = self._cells(by)
        *rows, total = body
        return text_table(self._head(), head, rows, words, total, self._notes())

    @checked
    def save(self, path: Path) -> None:
        """Writes the steps as a trace that Perfetto and Chrome's about:tracing open.

        It has a track for the stages of compiling, one for the steps as the host sees them, and one
        a lane with every launch of every step.

        Args:
            path: the file; one that ends in ".gz" is compressed.

        Raises: OSError with the path; FormatError where it is no regular file.

        >>> step.profile().save("trace.json.gz")
        """
        save_trace(path, [self])

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        words, head, body = self._cells("launch")
        return html_table(self._head(), head, body, words, self._notes())

    def _head(self) -> str:
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"{printable(self.title)}: {len(self.launches)} launches, {steps}"

    def _notes(self) -> list[str]:
        wall = _median(self.walls)
        memory, product = self.ceiling
        most = "no memory to measure it"
        if self._has_ceiling:
            most = f"the larger share of {count_text(memory)}B/s (a copy) and "
            most += f"{count_text(product)}FLOP/s (a product)"
        notes = [f"a step: {time_text(wall)}, by {self.clock or 'no clock'}; ceiling: {most}"]
        if self.untimed:
            notes.append(f"steps beside these, without times: {self.untimed}")
        if self.problem:
            notes.append(f"without CUPTI: {printable(self.problem)}")
        return notes

    def _cells(self, by: str) -> tuple[int, list[str], list[list[str]]]:
        """How many columns are words, their names, the rows and the total."""
        if by not in KINDS:
            raise _core.GraphError(f"profile: by is {by!r}; need one of {KINDS}")
        if by == "launch":
            head = ["#", "launch", "layer", "line", "kernel", "spread"]
            rows = [self._row(launch) for launch in self.launches]
        else:
            head = [by, "launches"]
            rows = sorted(self._together(by), key=lambda row: -row.median)
        whole = _sum(("total",) + ("",) * (len(head) - 1), rows)
        total = sum(row.median for row in rows)
        body = []
        for row in [*rows, whole]:
            share = f"{row.median / total:.1%}" if total else ""
            memory, product = row.bytes_moved, row.flops
            rates = ["", "", ""]
            if row.median:
                rates = [
                    f"{count_text(memory / row.median)}B/s" if memory else "",
                    f"{count_text(product / row.median)}FLOP/s" if product else "",
                    f"{self.share(memory, product, row.median):.0%}" if self._has_ceiling else "",
                ]
            body.append(
                [*row.words, time_text(row.median), time_text(row.least), share]
                + [bytes_text(memory) if memory else "", count_text(product) if product else ""]
                + rates
            )
        numbers = ["median", "least", "time", "moved", "flops", "memory", "rate", "ceiling"]
        return len(head), head + numbers, body

    @property
    def _has_ceiling(self) -> bool:
        return not np.isnan(self.ceiling).any()

    def share(self, bytes_moved: float, flops: float, seconds: float) -> float:
        """The share of the ceiling that work done in a time reaches: of memory or of arithmetic,
        whichever is larger. Above 1 where operands come from caches rather than memory."""
        if not seconds:
            return 0.0
        memory, product = self.ceiling
        return max(bytes_moved / seconds / memory, flops / seconds / product)

    def _row(self, launch: ProfiledLaunch) -> _Row:
        spread = "1 thread" if launch.threads == 1 else f"{launch.threads} threads"
        if launch.blocks != 1 or launch.shared_bytes:
            spread = f"{launch.blocks}x{launch.threads}"
            spread += f" {bytes_text(launch.shared_bytes)}" if launch.shared_bytes else ""
        words = (
            str(launch.number), _short(launch.op), printable(launch.layer),
            printable(launch.source.rpartition("/")[2]), _short(launch.kernel), spread,
        )  # fmt: skip
        return _Row(words, launch.median, launch.least, launch.bytes_moved, launch.flops)

    def _together(self, by: str) -> Iterator[_Row]:
        found: dict[str, list[_Row]] = {}
        for launch in self.launches:
            name = launch.op if by == "op" else launch.layer
            found.setdefault(name, []).append(self._row(launch))
        for name, rows in found.items():
            yield _sum((_short(name) or "(none)", str(len(rows))), rows)


def _sum(words: tuple[str, ...], rows: Sequence[_Row]) -> _Row:
    return _Row(
        words,
        sum(row.median for row in rows),
        sum(row.least for row in rows),
        sum(row.bytes_moved for row in rows),
        sum(row.flops for row in rows),
    )


def _median(times: Sequence[float]) -> float:
    return float(np.median(times)) if times else 0.0


def _short(text: str, most: int = 28) -> str:
    text = printable(text)
    return text if len(text) <= most else text[: most - 1] + "…"


# ---- what a step's launches are


class Facts(NamedTuple):
    """What a profile says of a step beside the times."""

    title: str
    device: str
    math: str
    launches: list[ProfiledLaunch]  # without times
    stages: list[tuple[str, float]]


def facts_of(step: Step) -> Facts:
    """Of a step from a file, which has no graph, without layers and source lines."""
    plan = step.plan
    nodes: dict[int, dict[str, Any]] = {}
    of_node: dict[int, str] = {}
    if step._graph is not None:
        record = step._graph_record("profile")
        nodes = {node["id"]: node for node in record["nodes"]}
        of_node = layers(record)
    launches = []
    for i, (op, size) in enumerate(zip(plan.ops, step._launch_sizes(), strict=True)):
        first = first_part(op)["node"]
        node = nodes.get(first, {})
        source = node.get("where") or nodes.get(node.get("grad_of", -1), {}).get("where", "")
        blocks, threads, shared = size
        launches.append(
            ProfiledLaunch(
                number=i,
                op=_label(op),
                members=tuple(part["op"] for part in _parts(op)),
                node=first,
                name=node.get("op", ""),
                layer=of_node.get(first, ""),
                source=source,
                kernel=op["kernel"],
                lane=op["lane"],
                blocks=blocks,
                threads=threads,
                shared_bytes=shared,
                bytes_moved=op["bytes_moved"],
                flops=op["flops"],
                times=(),
            )
        )
    name = plan._record["graph"]
    return Facts(f"{name} on {step.device}", step.device, plan.math, launches, step._stages())


def _parts(op: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The ops that a launch is made of; itself where it is one."""
    for part in op.get("members") or op.get("body") or ():
        yield from _parts(part)
    if not (op.get("members") or op.get("body")):
        yield op


def _label(op: Mapping[str, Any]) -> str:
    if "members" in op:
        return ", ".join(_label(member) for member in op["members"])
    counted: list[tuple[str, int]] = []  # of a name once, with how often it follows itself
    for part in _parts(op):
        if counted and counted[-1][0] == part["op"]:
            counted[-1] = part["op"], counted[-1][1] + 1
        else:
            counted.append((part["op"], 1))
    return "+".join(name if times == 1 else f"{name} x{times}" for name, times in counted)


def held() -> object:
    """While it lives, CUPTI is attached once for all calls."""
    return _core.hold_cuda_tracing() if hasattr(_core, "hold_cuda_tracing") else None


class Timed(NamedTuple):
    """What a step's `_profile` says beside the outputs."""

    data: bytes
    clocks: list[str]
    problem: str


def made(facts: Facts, calls: Sequence[Timed], top: Ceiling) -> Profile:
    """The profile of a step's calls."""
    data = b"".join(call.data for call in calls)
    spans = np.frombuffer(data, np.float64).reshape(-1, 1 + len(facts.launches), 2)
    clocks = dict.fromkeys(clock for call in calls for clock in call.clocks)
    problem = next((call.problem for call in calls if call.problem), "")
    profile = Profile(facts.title, (), spans, top, facts.stages, ", ".join(clocks), problem)
    taken = profile._spans[:, 1:, 1] - profile._spans[:, 1:, 0]
    profile.launches = [
        launch._replace(times=tuple(map(float, taken[:, i])))
        for i, launch in enumerate(facts.launches)
    ]
    return profile


# ---- the ceiling

_ceilings: dict[tuple[str, str, int], Ceiling] = {}


def ceiling(device: str, math: str) -> Ceiling:
    """What a device does at most under a math mode, measured once by a process; NaN where there is
    no memory for that."""
    key = device, math, _core.num_threads()
    if key not in _ceilings:
        large = device != "cpu"
        copied = Graph("copy")
        copied.output("y", copied.input("x", (1 << (25 if large else 24),)))
        product, n = Graph("product"), 4096 if large else 512
        product.output("y", matmul(product.param("a", (n, n)), product.param("b", (n, n))))
        try:
            _, moved, taken = _best(copied, device, "fp32")
            flops, _, needed = _best(product, device, math)
        except _core.OutOfMemory:  # what was timed is not lost for that
            return Ceiling(np.nan, np.nan)
        _ceilings[key] = Ceiling(moved / taken, flops / needed)
    return _ceilings[key]


def _best(graph: Graph, device: str, math: str) -> tuple[int, int, float]:
    """Flops, bytes and the least time of a graph's largest launch."""
    step = Step(graph, device=device, math=math)  # no compile() of the program's
    facts = facts_of(step)
    profile = made(facts, [Timed(*step._profile(6)[1:])], Ceiling(1.0, 1.0))
    launch = max(profile.launches, key=lambda launch: (launch.flops, launch.bytes_moved))
    return launch.flops, launch.bytes_moved, max(launch.least, 1e-9)


# ---- the trace


def save_trace(path: Any, profiles: Sequence[Profile]) -> None:
    """Writes profiles as one file of Chrome's trace events, on one time axis."""
    import gzip

    text = json.dumps({"traceEvents": list(_events(profiles)), "displayTimeUnit": "ns"}).encode()
    write_whole("profile", path, [gzip.compress(text, mtime=0) if _zipped(path) else text])


def _zipped(path: Any) -> bool:
    return str(path).endswith(".gz")


_HOST, _COMPILE = 1, 1  # the process of the host, and its track of compiling


def _events(profiles: Sequence[Profile]) -> Iterator[dict[str, Any]]:
    """Tracks of the host, then a process for each step with a track for each lane."""
    begins = [float(p._spans[0, 0, 0]) for p in profiles if p.steps]
    compiled = sum(seconds for p in profiles for _, seconds in p.stages)
    zero = min(begins, default=0.0) - compiled  # compiling comes first
    yield _named(_HOST, None, "host")
    yield _named(_HOST, _COMPILE, "compile (processor time)")
    at = 0.0
    arrows = 0
    for i, profile in enumerate(profiles):
        host, device = _COMPILE + 1 + i, _HOST + 1 + i
        yield _named(_HOST, host, printable(profile.title))
        yield _named(device, None, printable(profile.title))
        for lane in sorted({launch.lane for launch in profile.launches}):
            yield _named(device, lane, f"lane {lane}")
        for stage, seconds in profile.stages:
            yield _slice(stage, at, seconds, _HOST, _COMPILE, {})
            at += seconds
        details = [_details(launch) for launch in profile.launches]
        for number, step in enumerate(profile._spans.tolist()):
            (begin, end), *spans = step
            yield _slice(f"step {number}", begin - zero, end - begin, _HOST, host, {})
            if spans:  # an arrow from the step to its first launch
                arrows += 1
                arrow = {"name": "step", "cat": "step", "id": arrows}
                yield arrow | {"ph": "s", "ts": _micros(begin - zero), "pid": _HOST, "tid": host}
                first = begin - zero + spans[0][0]
                yield arrow | {"ph": "f", "bp": "e", "ts": _micros(first), "pid": device,
                               "tid": profile.launches[0].lane}  # fmt: skip
            for launch, told, (one, other) in zip(profile.launches, details, spans, strict=True):
                yield _slice(launch.op, begin - zero + one, other - one, device, launch.lane,
                             {"step": number, **told})  # fmt: skip


def _details(launch: ProfiledLaunch) -> dict[str, Any]:
    told = launch._asdict()
    del told["times"], told["op"], told["lane"]
    return told


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _slice(
    name: str, begin: float, seconds: float, process: int, track: int, told: dict[str, Any]
) -> dict[str, Any]:
    return {"name": printable(name), "ph": "X", "ts": _micros(begin), "dur": _micros(seconds),
            "pid": process, "tid": track, "args": told}  # fmt: skip


def _named(process: int, track: int | None, name: str) -> dict[str, Any]:
    kind = "process_name" if track is None else "thread_name"
    return {"name": kind, "ph": "M", "pid": process, "tid": track or 0, "args": {"name": name}}


# ---- all steps of a program


class _Recording:
    """The times of one step while a profiler is at work; it does not keep the step alive."""

    def __init__(self, step: Step, eager: bool) -> None:
        self.step = weakref.ref(step)
        self.eager = eager
        facts = facts_of(step)
        self.facts = facts._replace(title=f"{facts.title}, op by op") if eager else facts
        self.calls: list[Timed] = []


class Profiler:
    """What `aicf.profiler` returns: while it is entered, every call, replay and run of a Step is
    profiled, in every thread."""

    def __init__(self, nvtx: bool = False) -> None:
        self.profiles: list[Profile] = []  # by step, in the order of their first call
        self._nvtx = nvtx
        self._recordings: list[_Recording] = []
        self._lock = threading.Lock()
        self._held: object = None  # CUPTI, while it is attached
        self._methods: dict[str, Any] = {}  # of Step, while this one profiles

    def __enter__(self) -> Profiler:
        with _installing:
            if self in _entered:
                raise _core.GraphError("profiler: this one is entered already; need a new one")
            self._methods = self._made()
            _entered.append(self)
            _install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _installing:
            _entered.remove(self)
            _install()
        for recording in self._recordings:
            facts = recording.facts
            self.profiles.append(made(facts, recording.calls, ceiling(facts.device, facts.math)))
        self._recordings = []
        self._held = None

    def _made(self) -> dict[str, Any]:
        if self._nvtx:
            from .ranges import Ranges

            return Ranges().methods()
        self._held = held()
        return {"__call__": self._call(), "replay": self._replay(), "run": self._run()}

    def table(self, by: str = "launch") -> str:
        """The table of each step's profile.

        Args:
            by: as `Profile.table` takes it.
        """
        return "\n\n".join(profile.table(by) for profile in self.profiles)

    @checked
    def save(self, path: Path) -> None:
        """Writes the steps of all profiles as one trace.

        Args:
            path: as `Profile.save` takes it.
        """
        save_trace(path, self.profiles)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return "".join(profile._repr_html_() for profile in self.profiles)

    def _of(self, step: Step, eager: bool) -> _Recording:
        with self._lock:
            for found in self._recordings:
                if found.step() is step and found.eager == eager:
                    return found
            self._recordings.append(_Recording(step, eager))
            return self._recordings[-1]

    def _call(self) -> Any:
        def __call__(step: Step, /, *rest: Any, **inputs: Any) -> _core.Outputs:
            recording = self._of(step, not step.captured)
            outputs, *timed = step._profile_call(*rest, **inputs)
            recording.calls.append(Timed._make(timed))
            return outputs

        return __call__

    def _replay(self) -> Any:
        def replay(step: Step, n: Any = 1, stream: Any = None) -> _core.Outputs:
            if not step.captured:
                return _core.Step.replay(step, n, stream)
            recording = self._of(step, False)
            outputs, *timed = step._profile(n, stream)
            recording.calls.append(Timed._make(timed))
            return outputs

        return replay

    def _run(self) -> Any:
        def run(step: Step, /, *rest: Any, **inputs: Any) -> _core.Outputs:
            recording = self._of(step, True)
            outputs, *timed = step._profile_run(*rest, **inputs)
            recording.calls.append(Timed._make(timed))
            return outputs

        return run


_installing = threading.Lock()
_entered: list[Profiler] = []  # the last profiles, the others go on behind it
_replaced: dict[str, Any] = {}  # methods of Step; None: it has none of that name


def _install() -> None:
    """Methods that exist only meanwhile: without a profiler nothing stands in a step's way."""
    for name, method in _replaced.items():
        if method is None:
            delattr(Step, name)
        else:
            setattr(Step, name, method)
    _replaced.clear()
    for name, method in _entered[-1]._methods.items() if _entered else ():
        _replaced[name] = vars(Step).get(name)
        setattr(Step, name, method)


@checked
def profiler(nvtx: bool = False) -> Profiler:
    """Profiles every step that is called, replayed or run inside `with`; outside it costs nothing.

    What a profiled step computes has the same bits, but takes longer: each is waited for, and where
    `Profile.clock` is not "cupti" its launches run one after another. What `Step.run` runs has a
    profile of its own beside that of the step's calls and replays; `op_call` has none.

    Args:
        nvtx: True leaves steps as they are and their times to Nsight, which shows each compile,
            call and replay as a range on the track of its thread. `profiles` stays empty.

    Returns: a Profiler, whose `profiles` are there when the `with` ends.

    Inside another one it takes its place until it ends.

    Raises: Unsupported for nvtx=True without NVTX, which the package nvidia-nvtx, PyTorch and
    CUDA's toolkit bring.

    >>> with aicf.profiler() as prof:
    ...     out = step.replay(3)
    >>> [profile.steps for profile in prof.profiles]
    [3]
    """
    return Profiler(nvtx)
