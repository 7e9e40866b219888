"""Which of a GPU's kernels runs an op, by timing them on the device at hand."""

from __future__ import annotations

import functools
import json
import math as numbers
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import _core
from .device import resolve_device
from .graph import Graph
from .progress import Progress
from .step import Step, check_modes, pass_names
from .summary import html_table, text_table
from .units import printable, time_text

SPREAD = 128 << 20  # bytes of operands in a trial: more than the caches of a device hold
SPAN = 2e-3  # seconds of a measurement
ROUNDS = 7  # of which the median counts
LIMIT = 6  # kernels of an op
LIBRARY_LIMIT = 64  # of a library's, whatever is asked for
GAIN = 0.02  # what another kernel must save: less is noise


class Choice(NamedTuple):
    """The kernels of one kind of op, and what they took.

    Args:
        op: what people call it.
        signature: what it computes, on which types and strides; the key of `candidates`.
        ops: how many the graph has.
        default: the kernel that the model of the device would take.
        kernel: the one that is taken.
        times: seconds by kernel, of those that were timed.
        known: whether nothing was timed: the times are of an earlier call, from the cache, or of
            the table that the package has.
        shipped: whether they are of that table.
    """

    op: str
    signature: str
    ops: int
    default: str
    kernel: str
    times: dict[str, float]
    known: bool
    shipped: bool = False


class Table(NamedTuple):
    """What other devices of a kind took, as a file of the package says: `bench/tune_table.py`.

    Args:
        times: seconds by signature and kernel.
        slower: by signature the kernels that make a whole step slower.
    """

    times: Mapping[str, Mapping[str, float]]
    slower: Mapping[str, Sequence[str]]


class Tuning(Sequence[Choice]):
    """What `tune` found, in the order of the graph. Prints as a table, in a notebook too."""

    def __init__(self, title: str, choices: Sequence[Choice]) -> None:
        self.title = title
        self._choices = list(choices)

    @property
    def candidates(self) -> dict[str, str]:
        """The kernels by signature, as `compile(candidates=)` takes them."""
        return {one.signature: one.kernel for one in self}

    def __getitem__(self, index: Any) -> Any:
        return self._choices[index]

    def __iter__(self) -> Iterator[Choice]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def __str__(self) -> str:
        head, *body, total = self._cells()
        return text_table(printable(self.title), head, body, 3, total)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        return html_table(self.title, head, body, 3)

    def _cells(self) -> list[list[str]]:
        table = [["op", "default", "kernel", "ops", "default takes", "kernel takes", "timed"]]
        for one in self:
            table.append(
                [
                    printable(one.op),
                    one.default,
                    _shown(one.kernel),
                    str(one.ops),
                    time_text(one.times[one.default]),
                    time_text(one.times[one.kernel]),
                    "shipped" if one.shipped else "before" if one.known else str(len(one.times)),
                ]
            )
        default = sum(one.ops * one.times[one.default] for one in self)
        taken = sum(one.ops * one.times[one.kernel] for one in self)
        ops = sum(one.ops for one in self)
        table.append(["total", "", "", str(ops), time_text(default), time_text(taken), ""])
        return table


def tune(
    graph: Graph | Step,
    *,
    device: str = "auto",
    math: str = "fp32",
    passes: str | Sequence[str] = "default",
    tensor_cores: str | None = None,
    limit: int = LIMIT,
    again: bool = False,
    cublaslt: bool = False,
) -> Tuning:
    """Times the kernels that a GPU has to choose from for each op of a graph.

    They are ranked by the model that `compile` goes by; the first `limit` run on random operands
    of the op's shapes, each captured as in a step, in turns, and another one than the first is
    taken where its median is two percent shorter. Then the whole graph runs with one such kernel
    more at a time, and keeps those that do not make it slower. No choice changes a bit of a
    result, unless `cublaslt` is asked for. Where the device has no room for the whole graph beside
    what it holds, what is quicker alone is taken. What is found is kept beside the compiled
    kernels (`AICF_CACHE_DIR`), for this op, device and driver. Where nothing is kept, a table that
    the package has of GPUs of 9.0 with 132 processors goes before timing.

    Args:
        graph: or a Step, whose device, math and passes are taken: none of them is given then.
        device, math, passes, tensor_cores: as `compile` takes them.
        limit: how many kernels of an op are timed at most.
        again: times also what is known, or in that table.
        cublaslt: times also what cuBLASLt's heuristic names for products that nothing is fused
            with, `limit` algorithms at most, and takes one where it is quicker. Sums are then in an
            order of the library's: the plan's bits are those of this version of it on this kind
            of device, and neither a CPU's nor those of our kernels. A step so compiled, or loaded,
            calls the same algorithm and refuses another version or device.
            DeviceUnavailable where there is no such library (pip install nvidia-cublas).

    Returns: a Tuning: a table, whose `candidates` are for `compile`. On a CPU, which has one kernel
        an op, it is empty.

    >>> len(aicf.tune(g, device="cpu"))
    0
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise _core.GraphError(f"tune: limit is {limit!r}; need 1 kernel or more")
    if not isinstance(again, bool):
        raise _core.GraphError(f"tune: again is {again!r}; need a bool")
    if not isinstance(cublaslt, bool):
        raise _core.GraphError(f"tune: cublaslt is {cublaslt!r}; need a bool")
    if isinstance(graph, Step):
        if graph._graph is None:
            raise _core.GraphError("tune: the step is from a file; need one that has a graph")
        given = {"device": (device, "auto"), "math": (math, "fp32"),
                 "passes": (passes, "default"), "tensor_cores": (tensor_cores, None)}  # fmt: skip
        for name, (value, default) in given.items():
            if value != default:
                raise _core.GraphError(
                    f"tune: {name} is {value!r} and graph {graph!r}, which has its own; need the "
                    f"Graph with {name}=, or the Step alone"
                )
        core, (device, math, names, cores) = graph._graph, graph._compiled
        title = core.name
    elif isinstance(getattr(graph, "_core", None), _core.Graph):
        check_modes("tune", math, tensor_cores)
        names, cores = pass_names("tune", passes), 9 if tensor_cores else 0
        with graph._settled() as core:
            device = resolve_device(device)
            return tuned(
                core, graph.name, device, names, math, cores, limit, again, cublaslt=cublaslt
            )
    else:
        raise _core.GraphError(f"tune: graph is {graph!r}; need an aicf.Graph or a Step")
    return tuned(core, title, device, names, math, cores, limit, again, cublaslt=cublaslt)


def tuned(
    core: _core.Graph,
    title: str,
    device: str,
    passes: Sequence[str],
    math: str,
    tensor_cores: int,
    limit: int = LIMIT,
    again: bool = False,
    *,
    cublaslt: bool = False,
) -> Tuning:
    """What `tune` says, of what `Step` is given."""
    if device == "cpu":
        return Tuning(f"{title}: one kernel an op on a CPU", [])
    with Progress(f"tuning {title}"):
        trials = _core.Trials(core, device, list(passes), math, tensor_cores)
        machine = _machine(device)
        table = None if again else shipped(machine)
        found = choices(trials, machine, table, limit, again, cublaslt)

        def seconds(kernels: dict[str, str]) -> float:
            return _whole(core, (device, list(passes), math, tensor_cores), kernels)

        found = _together(found, seconds, machine, again)
    return Tuning(f"{title} on {machine['name']}", found)


def _machine(device: str) -> dict[str, Any]:
    info = _core.cuda_info()
    index = int(device.partition(":")[2] or 0)
    gpu: dict[str, Any] = info["devices"][index]
    return {
        "name": gpu["name"],
        "arch": gpu["arch"],
        "processors": gpu["multiprocessors"],
        "driver": info["driver"],
    }


def shipped(machine: Mapping[str, Any]) -> Table | None:
    """The package's table of such GPUs: what is quick follows from how many processors share an op,
    too."""
    return _shipped(machine["arch"].rstrip("af"), machine["processors"])


@functools.cache
def _shipped(arch: str, processors: int) -> Table | None:
    path = Path(__file__).with_name(f"tuned_{arch}.json")
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["about"]["processors"] != processors:
        return None
    times = {
        signature: {name: 1e-6 * us for name, us in each.items()}
        for signature, each in found["us"].items()
    }
    return Table(times, found["slower"])


def choices(
    trials: _core.Trials,
    machine: Mapping[str, Any],
    table: Table | None,
    limit: int,
    again: bool,
    cublaslt: bool = False,
) -> list[Choice]:
    """The kernel that is quickest alone for each kind of op."""

    def names_of(entry: Entry) -> list[str]:
        most = min(limit, LIBRARY_LIMIT)
        return entry[2][:limit] + (trials.foreign(entry[0], most) if cublaslt else [])

    entries = [(*entry[:2], names_of(entry), *entry[3:]) for entry in trials.choices]
    known = [_known(entry, machine, table, again) for entry in entries]
    trials.build(
        [
            (entry[0], name)
            for entry, choice in zip(entries, known, strict=True)
            if choice is None
            for name in entry[2]
        ]
    )
    found = []
    for entry, choice in zip(entries, known, strict=True):
        if choice is None:
            signature, _, names, _, _, size = entry
            times = _timed(trials, signature, names, size)
            _core.store_cached(_key(signature, names, machine), json.dumps(times))
            choice = _chosen(entry, times, False)
        found.append(choice)
    return found


def _shown(kernel: str) -> str:
    """Of a library's, which says its algorithm too, the name and version."""
    return " ".join(kernel.split()[:2])


Entry = tuple[str, str, list[str], int, float, int]  # as Trials have them


def _key(signature: str, names: Sequence[str], machine: Mapping[str, Any]) -> str:
    from . import __version__

    return "tuned kernel\n" + json.dumps([signature, names, machine, __version__])


def _known(
    entry: Entry, machine: Mapping[str, Any], table: Table | None, again: bool
) -> Choice | None:
    """What the cache says, or else the table: it needs all these kernels, whichever comes first."""
    signature, _, names, *_ = entry
    times = None if again else _times(_core.load_cached(_key(signature, names, machine)), names)
    if times is not None:
        return _chosen(entry, times, True)
    if table is None or not set(names) <= set(table.times.get(signature, ())):
        return None
    times = {name: table.times[signature][name] for name in names}
    return _chosen(entry, times, True, table.slower.get(signature, ()))._replace(shipped=True)


def _chosen(
    entry: Entry, times: dict[str, float], known: bool, slower: Sequence[str] = ()
) -> Choice:
    signature, title, names, ops, *_ = entry
    first = names[0]
    best = min((one for one in names if one == first or one not in slower), key=times.__getitem__)
    kernel = best if times[best] < (1 - GAIN) * times[first] else first
    return Choice(title, signature, ops, first, kernel, times, known)


def _together(
    found: list[Choice],
    seconds: Callable[[dict[str, str]], float],
    machine: Mapping[str, Any],
    again: bool,
) -> list[Choice]:
    """Leaves out kernels that are quicker alone but make a whole step slower: there they find
    other contents in the caches, and run beside other launches. `seconds` times a step. The table
    that the package has says so itself."""
    from . import __version__

    changed = [one for one in found if one.kernel != one.default and not one.shipped]
    if not changed:
        return found
    listed = [[one.signature, one.ops, one.default, one.kernel, one.shipped] for one in found]
    key = "tuned kernel\n" + json.dumps(["together", listed, machine, __version__])
    kept = None if again else _kept(_core.load_cached(key), changed)
    if kept is None:
        kernels = {one.signature: one.kernel if one.shipped else one.default for one in found}
        kept = []
        try:
            least = seconds(kernels)
            for one in sorted(
                changed, key=lambda one: one.ops * (one.times[one.kernel] - one.times[one.default])
            ):
                now = seconds({**kernels, one.signature: one.kernel})
                if now <= least:
                    kernels[one.signature], least = one.kernel, now
                    kept.append(one.signature)
        except _core.OutOfMemory:  # no room for a whole step beside what is on the device
            return found
        _core.store_cached(key, json.dumps(kept))
    slower = [one.signature for one in changed if one.signature not in kept]
    return [one._replace(kernel=one.default) if one.signature in slower else one for one in found]


def _kept(text: bytes | None, changed: Sequence[Choice]) -> list[str] | None:
    """The signatures that an earlier call kept; None where that is not what it writes."""
    try:
        found = json.loads(text or b"")
    except ValueError:
        return None
    signatures = [one.signature for one in changed]
    known = isinstance(found, list) and all(one in signatures for one in found)
    return found if known else None


def _whole(
    core: _core.Graph, compiled: tuple[str, list[str], str, int], kernels: dict[str, str]
) -> float:
    """Median seconds of a step of its own, by these kernels, on random numbers and labels of 0."""
    device, passes, math, cores = compiled
    step = _core.Step(core, device, 0, True, [], passes, math, True, kernels, cores, False, [])
    rng, inputs = np.random.default_rng(0), {}
    for leaf in core.leaves("input"):
        shape, dtype = core.shape(leaf), core.dtype(leaf)
        if dtype == "bfloat16":  # NumPy has none: the step runs on zeros
            break
        numbers = rng.standard_normal(shape) if dtype.startswith("float") else np.zeros(shape)
        inputs[core.value_name(leaf)] = numbers.astype(dtype)
    else:
        step(**inputs)
    turns = _turns(step, 10 * SPAN)
    return statistics.median(_seconds(step, turns) for _ in range(ROUNDS))


def _times(text: bytes | None, names: Sequence[str]) -> dict[str, float] | None:
    """What an earlier call kept; None where that is not what it writes."""
    try:
        found = json.loads(text or b"")
    except ValueError:
        return None
    if not isinstance(found, dict) or set(found) != set(names):
        return None
    seconds = [value for value in found.values() if isinstance(value, float)]
    if len(seconds) < len(names) or not all(0 < x < numbers.inf for x in seconds):
        return None
    return found


def _timed(
    trials: _core.Trials, signature: str, names: Sequence[str], size: int
) -> dict[str, float]:
    """Median seconds of the op by kernel. They take turns, so that a clock that changes meets them
    all; all have the same operands, several times where they are small, if there is room."""
    copies = max(1, min(16, SPREAD // max(size, 1)))
    together = len(names) if copies * size * len(names) < 8 * SPREAD else 1
    try:
        return _medians(trials, signature, names, copies, together)
    except _core.OutOfMemory:
        return _medians(trials, signature, names, 1, 1, share=False)


def _medians(
    trials: _core.Trials,
    signature: str,
    names: Sequence[str],
    copies: int,
    together: int,
    share: bool = True,
) -> dict[str, float]:
    """Of kernels that take turns, `together` at a time, on `copies` of the operands, which are
    `share`d: random numbers take a host longer than the kernels."""
    times: dict[str, float] = {}
    steps: dict[str, _core.Step] = {}
    for first in range(0, len(names), together):
        group = names[first : first + together]
        held = list(steps.values())[:1] if share else []
        steps = {}
        for name in group:
            steps[name] = _core.Step(trials, signature, name, copies, held)
            held = (held or [steps[name]]) if share else []
        held = []
        taken: dict[str, list[float]] = {name: [] for name in group}
        turns = {name: _turns(step) for name, step in steps.items()}
        for _ in range(ROUNDS):
            for name, step in steps.items():
                taken[name].append(_seconds(step, turns[name]) / copies)
        times.update({name: statistics.median(list) for name, list in taken.items()})
    return times


def _seconds(step: _core.Step, turns: int) -> float:
    step.synchronize()
    start = time.perf_counter()
    step.replay(turns)
    step.synchronize()
    return (time.perf_counter() - start) / turns


def _turns(step: _core.Step, span: float | None = None) -> int:
    """How many make a measurement; the first are not timed."""
    _seconds(step, 1)
    return max(1, min(1000, round((span or SPAN) / max(_seconds(step, 2), 1e-7))))
