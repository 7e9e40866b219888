"""A compiled step: run it, replay it, read and write its state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from . import _core
from .arguments import Path, checked, is_it
from .checkpoint import Loaded, fitting, places, read, select, write
from .device import resolve_device
from .files import Source, shown, write_whole
from .serialize import listed, read_graph, read_record
from .sharing import Sharing, check_some, share_leaves, sharing_of

if TYPE_CHECKING:
    from .graph import Graph, Value
    from .profile import Profile
    from .statistics import Statistics
    from .summary import Summary
    from .watch import Tap, Taps, Trap


Mapping.register(_core.Outputs)

CHECKS = ("indices", "off")
MATH_MODES = ("fp32", "fp32x", "tf32", "fp16", "bf16", "mixed")


class Leaves(Mapping[str, _core.Array]):
    """Params or states of a step, by name: live Arrays; assigning copies in."""

    def __init__(self, step: Step, names: Sequence[str]) -> None:
        self._step = step
        self._names = tuple(names)

    def __getitem__(self, name: str) -> _core.Array:
        self._check(name)
        return self._step._array(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._check(name)
        self._step._write(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _check(self, name: str) -> None:
        if not isinstance(name, str) or name not in self._names:
            known = ", ".join(self._names) or "none"
            shown = f'"{name}"' if isinstance(name, str) and name.isprintable() else repr(name)
            raise _core.GraphError(
                f"step: there is no {shown} here{is_it(name, self._names)}; it has {known}"
            )

    def __repr__(self) -> str:
        from .summary import type_text

        shown = (f"{name} {type_text(array.dtype, array.shape)}" for name, array in self.items())
        return f"aicf.Leaves({', '.join(shown)})"

    def _repr_html_(self) -> str:
        from .notebook import leaves_html

        return leaves_html(self)

    def _ipython_key_completions_(self) -> list[str]:
        return [*self._names]


class Launch(NamedTuple):
    """One launch that the backend holds, read back from it."""

    op: str
    kernel: str


class Plan:
    """Where every value lies and what every launch waits for."""

    def __init__(self, text: str, record: str, report: _core.Report) -> None:
        self._text = text
        self._json = record
        self._record: dict[str, Any] = read_record(record)
        self.report = report

    @property
    def peak_bytes(self) -> int:
        """Bytes of all regions: known before the first run, constant after."""
        return self._record["peak_bytes"]

    @property
    def math(self) -> str:
        """How products of float32 are computed, as compiled."""
        return self._record["math"]

    @property
    def bytes_moved(self) -> int:
        """Bytes of all operands of all launches, each broadcast axis read once."""
        return self._record["bytes_moved"]

    @property
    def flops(self) -> int:
        """Floating-point operations of a step, by the ops' own estimates."""
        return self._record["flops"]

    @property
    def regions(self) -> dict[str, int]:
        """Bytes by region."""
        return self._record["regions"]

    @property
    def values(self) -> dict[str, dict[str, Any]]:
        """name, region, offset, bytes, storage by value id."""
        return self._record["values"]

    @property
    def ops(self) -> list[dict[str, Any]]:
        """op, inputs, outputs, attrs, kernel, lane, waits, scratch, one entry per launch."""
        return self._record["ops"]

    @property
    def candidates(self) -> dict[str, str]:
        """The chosen kernel by signature, of ops for which the device has several; `compile` takes
        it, and so the same kernels again."""
        members = [op for entry in self.ops for op in entry.get("members", ())]
        ops = members + [op for op in self.ops if "members" not in op]  # a library's are no members
        return {op["signature"]: op["candidate"] for op in ops if "candidate" in op}

    def to_json(self) -> str:
        """The plan as JSON text."""
        return self._json

    def to_svg(self) -> str:
        """The memory of temporaries over the step as a picture: launches to the right, bytes
        upwards, a box per value, the peak marked, and the sizes of all regions beside it."""
        from .arena import Arena

        return Arena(self._record).svg()

    def _repr_html_(self) -> str:
        return self.to_svg()

    def __str__(self) -> str:
        return self._text


def check_modes(where: str, math: str, tensor_cores: str | None) -> None:
    """Raises for a mode of products that there is not."""
    if not isinstance(math, str) or math not in MATH_MODES:
        raise _core.GraphError(
            f"{where}: math is {math!r}{is_it(math, MATH_MODES)}; need one of {MATH_MODES}"
        )
    if tensor_cores is not None and not (isinstance(tensor_cores, str) and tensor_cores == "sm_90"):
        raise _core.GraphError(
            f'{where}: tensor_cores is {tensor_cores!r}; need "sm_90", or None for the '
            "device's own"
        )


def check_flags(where: str, **flags: object) -> None:
    """Raises for an argument that is no bool."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise _core.GraphError(f"{where}: {name} is {flag!r}; need a bool")


def pass_names(where: str, passes: str | Sequence[str]) -> Sequence[str]:
    """The passes that `compile` is given, by name."""
    known = _core.pass_names()
    names = known if isinstance(passes, str) and passes == "default" else passes
    if isinstance(names, (list, tuple)) and all(name in known for name in names):
        return names
    wrong = [passes] if isinstance(passes, str) else passes
    wrong = wrong if isinstance(wrong, (list, tuple)) else ()
    wrong = [name for name in wrong if name not in known]
    near = next((said for name in wrong if (said := is_it(name, [*known, "default"]))), "")
    raise _core.GraphError(
        f'{where}: passes is {passes!r}{near}; need "default", () or a tuple of {", ".join(known)}'
    )


class Step(_core.Step):
    """What `Graph.compile` returns. One sequential machine: threads that call it take turns. A call
    that raises OutOfMemory has changed no param or state.

    Calling it with its inputs runs one step and returns its outputs:

    >>> out = step(x=batch, t=target)
    >>> float(out["loss"]) >= 0.0
    True
    """

    _graph: _core.Graph | None = None  # what it was compiled from; it may have grown since
    _sharing: Sharing = Sharing((), ())
    _built: _core.GraphMark
    _cast = False  # whether inputs of another dtype are cast
    _compiled: tuple[str, str, Sequence[str], int]  # device, math, passes, tensor cores

    def __init__(
        self,
        graph: Graph,
        *,
        device: str = "auto",
        params: Mapping[str, Any] | None = None,
        share: Step | Sequence[Step] | None = None,
        seed: int = 0,
        math: str = "fp32",
        deterministic: bool = True,
        passes: str | Sequence[str] = "default",
        capture: bool = True,
        candidates: Mapping[str, str] | None = None,
        tensor_cores: str | None = None,
        check: bool = False,
        checks: str = "indices",
        cast: bool = False,
        fresh: str | Sequence[str] = (),
        tune: bool = False,
        cublaslt: bool = False,
    ) -> None:
        if not isinstance(getattr(graph, "_core", None), _core.Graph):
            raise _core.GraphError(f"Step: graph is {graph!r}; need an aicf.Graph")
        check_modes("compile", math, tensor_cores)
        check_flags(
            "compile",
            deterministic=deterministic,
            capture=capture,
            check=check,
            cast=cast,
            tune=tune,
            cublaslt=cublaslt,
        )
        if cublaslt and not tune:
            raise _core.GraphError("compile: cublaslt is True and tune False; need tune=True")
        if not isinstance(checks, str) or checks not in CHECKS:
            raise _core.GraphError(
                f"compile: checks is {checks!r}{is_it(checks, CHECKS)}; need one of {CHECKS}"
            )
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise _core.GraphError(f"compile: seed is {seed!r}; need an int in [0, 2**64)")
        names = pass_names("compile", passes)
        others = _steps("compile", share)
        chosen = {} if candidates is None else candidates
        if not isinstance(chosen, Mapping) or not all(
            isinstance(text, str) for item in chosen.items() for text in item
        ):
            raise _core.GraphError(
                f"compile: candidates is {candidates!r}; need kernel names by op signature"
            )
        from .parameters import contents_of

        initial = _initial(graph, params)
        own = contents_of(graph, others, initial)
        device = own.device(device)
        homes = [name for _, names in own.homes for name in names]
        self._sharing = share_leaves(graph._core, others, homes, initial, fresh)
        graph._settle()
        self._graph, self._built = graph._core, graph._core.mark()
        self._cast = cast
        device, cores = resolve_device(device), 9 if tensor_cores else 0
        self._compiled = device, math, names, cores
        if tune:
            from .tuning import tuned

            found = tuned(graph._core, graph.name, device, names, math, cores, cublaslt=cublaslt)
            chosen = {**found.candidates, **chosen}
        super().__init__(
            graph._core,
            device,
            seed,
            capture,
            others,
            names,
            math,
            deterministic,
            dict(chosen),
            cores,
            checks == "indices" and not check,  # a trap sees them too
            own.homes,
        )
        self._write_all({**own.fresh, **initial})
        own.settle(self)
        if check:
            self.trap()
        elif checks == "indices" and _core.computes_indices(graph._core):
            from .watch import trap

            trap(self, indices=True)

    def _casted(self, name: str, array: np.ndarray, dtype: str) -> Any:
        """An input as the dtype of the graph; DTypeError where whole numbers would change."""
        if dtype == "bfloat16":  # which NumPy does not know; numbers take any dtype
            return array.tolist()
        with np.errstate(all="ignore"):
            result = array.astype(dtype)
        whole = not dtype.startswith(("float", "bfloat"))
        if whole and not np.array_equal(result, array):
            at = tuple(int(i) for i in np.argwhere(result != array)[0])
            raise _core.DTypeError(
                f'step: input "{name}" holds {array[at]} at {list(at)}, which {dtype} does not '
                "hold; need whole numbers in its range"
            )
        return result

    # ---- state

    @property
    def params(self) -> Leaves:
        """Params by name: live Arrays; assigning copies in."""
        return Leaves(self, self._leaves("param"))

    @property
    def state(self) -> Leaves:
        """States by name (`opt.*`, `rng.*`, your own): live Arrays; assigning copies in."""
        return Leaves(self, self._leaves("state"))

    @property
    def numbers(self) -> Leaves:
        """Float states of rank 0 that this step does not change: what `set` is for, as "opt.lr".

        >>> dict(step.numbers)["opt.lr"].item()
        0.001
        """
        record = self.plan._record
        values = record["values"]
        written = {
            values[str(view["value"])]["storage"] for op in record["ops"] for view in op["outputs"]
        }
        storage = {value["name"]: value["storage"] for value in values.values()}

        def is_number(name: str) -> bool:
            array = self._array(name)
            return array.shape == () and "float" in array.dtype and storage[name] not in written

        return Leaves(self, [name for name in self.state if is_number(name)])

    @property
    def shared(self) -> tuple[str, ...]:
        """The params and states whose storage is that of a step of `share=`."""
        return self._sharing.shared

    @property
    def fresh(self) -> tuple[str, ...]:
        """The params and states that began with initial values of their own.

        >>> step.fresh == (*step.params, *step.state)
        True
        """
        return self._sharing.fresh

    @checked
    def averages(self, name: str = "ema") -> dict[str, _core.Array]:
        """The averages that `Graph.ema` keeps, live, by the names of their params.

        They are what `compile(params=)` and `load_state_dict` of another step take.

        Raises: GraphError when the graph keeps none of that name.
        """
        found = {
            param: self._array(f"{name}.{param}")
            for param in self.params
            if f"{name}.{param}" in self.state
        }
        if not found:
            raise _core.GraphError(f"averages: there are none in {shown(name)}; need Graph.ema")
        return found

    def set(self, name: str, number: float) -> None:
        """Sets a rank-0 state, such as "opt.lr"; it holds from the next step on.

        >>> step.set("opt.lr", 3e-4)
        """
        if not isinstance(name, str) or name not in self.state:
            numbers = list(self.numbers)
            raise _core.GraphError(
                f"set: there is no {shown(str(name))}{is_it(str(name), numbers)}; "
                + (f"need one of {listed(numbers)}" if numbers else "this step has no numbers")
            )
        array = self.state[name]
        if array.shape != ():
            raise _core.ShapeError(f'set: "{name}" has shape {array.shape}; need a rank-0 state')
        if not isinstance(number, (bool, int, float)):
            raise _core.DTypeError(f'set: "{name}" got {number!r}; need a Python number')
        self._write(name, number)

    def bind(self, /, **tensors: Any) -> None:
        """Replaces the storage of inputs, outputs, params or states by the caller's tensors.

        Zero-copy: the tensor's content is the value from now on, and the step keeps it alive.
        Shape, dtype and device must be equal, the layout C order.
        """
        self._bind(tensors)

    def state_dict(self) -> dict[str, np.ndarray]:
        """A copy of every param and state: what a run needs to go on with the same bits.

        A bfloat16 value comes as float32, which is exact.
        """
        names = [*self.params, *self.state]
        arrays = self._read_all(names)
        return {name: array.numpy() for name, array in zip(names, arrays, strict=True)}

    @checked
    def load_state_dict(
        self, values: Any, strict: bool = True, only: Any = None, skip: Any = None
    ) -> Loaded:
        """Copies in the values `state_dict` returns; nothing is written unless all fit.

        Args:
            values: arrays by name. A bfloat16 may be given as float32.
            strict, only, skip: as `load` takes them.

        Returns: which names were written, missing and unknown.

        Raises: GraphError naming missing or unknown names; ShapeError; DTypeError.

        >>> step.load_state_dict(step.params, only=step.params).names
        ('w',)
        """
        where = "load_state_dict"
        if not isinstance(values, Mapping):
            raise _core.GraphError(
                f"{where}: got {type(values).__name__}; need a mapping of name to array"
            )
        wanted = {}
        for name in (*self.params, *self.state):
            target = self._array(name)
            wanted[name] = target.dtype, target.shape

        def type_of(name: str) -> tuple[str, tuple[int, ...]]:
            value, need = values[name], wanted[name][0]
            dtype = str(getattr(value, "dtype", need)).removeprefix("torch.")
            if (need, dtype) == ("bfloat16", "float32"):
                dtype = need
            return dtype, tuple(np.shape(value))

        found = fitting(where, wanted, values.keys(), type_of, strict, only, skip)
        arrays = {}
        for name in found.names:
            value = values[name]
            if wanted[name][0] == "bfloat16" and not str(value.dtype).endswith("bfloat16"):
                value = _bfloat16_bytes(np.asarray(value), name)
            arrays[name] = value.numpy() if isinstance(value, _core.Array) else value
        self._write_all(arrays)
        return found

    @checked
    def save(
        self,
        path: Path,
        only: Any = None,
        skip: Any = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes `state_dict` as safetensors; whoever opens the file finds the old or the new one.

        It is written beside the file, which it then replaces. A symbolic link is followed, and an
        existing file's mode and owner are kept.

        Args:
            only: patterns of the names to write, as "block.*", or leaves: `only=step.params` writes
                the params alone. None for all.
            skip: patterns or leaves that are left out: `skip=step.numbers` leaves out the
                optimizer's rates, which a checkpoint holds otherwise.
            metadata: texts, or what JSON holds, by name; `aicf.Checkpoint(path).metadata` reads it.

        Raises: OSError with the path; FormatError where it is no regular file; GraphError for a
        pattern that no name fits, and for metadata that no file holds.

        >>> step.save("weights.safetensors", only=step.params, metadata={"epoch": 3})
        """
        at = places("save", [self])
        chosen = select("save", at, only, skip)
        write(path, {name: at[name] for name in at if name in chosen}, metadata)

    @checked
    def load(self, path: Path, strict: bool = True, only: Any = None, skip: Any = None) -> Loaded:
        """Reads what `save` wrote; nothing is written to the state unless all of it fits.

        The file is mapped into memory, so that of a large one only what is wanted is read.

        Args:
            strict: False leaves what the file lacks as it is and passes over what only it has.
            only: patterns of the names to read, as "block.*", or leaves of a step. None for all.
            skip: patterns or leaves that stay as they are: `skip=step.numbers` goes on with the
                learning rate that this step has.

        Returns: which names were written, missing and unknown.

        Raises: FormatError for what is no whole safetensors file; GraphError naming missing or
        unknown names; ShapeError; DTypeError, for no dtype is cast; OSError with the path.

        >>> step.save("step.safetensors")
        >>> step.load("step.safetensors", only="opt.?.w").names
        ('opt.m.w', 'opt.v.w')
        """
        return read(path, places("load", [self]), strict, only, skip)

    @checked
    def export(self, path: Path, state: bool = True) -> None:
        """Writes the compiled step as a file that `load_step` runs without the graph.

        Outputs are not in it: what they keep begins anew, and so does `steps_run`.

        Args:
            path: a file that is replaced whole, as `save` does.
            state: it begins with what params and states hold now; False: with the initial values
                of its graph, for the seed that it was compiled with.

        Raises: OSError with the path; FormatError where it is no regular file; GraphError for
        state=False of a step from a file that held such values, which are not kept: copy the file.

        >>> step.export("train.aicf")
        """
        write_whole("export", path, self._export(state))

    # ---- looking at it

    @property
    def plan(self) -> Plan:
        """Where every value lies and what every launch waits for."""
        return Plan(self._plan_text(), self._plan_json(), self._plan_report())

    @property
    def lowered(self) -> list[dict[str, Any]]:
        """One entry per launch: op, inputs, outputs, attrs, kernel."""
        return self.plan.ops

    @property
    def trace(self) -> list[Launch]:
        """What the backend really holds for a replay, read back from it."""
        return [Launch(op, kernel) for op, kernel in self._trace()]

    def statistics(self) -> dict[str, Statistics]:
        """Of the last step: min, max, mean and zeros of each value that `Graph.statistics` named.

        Raises: GraphError when the graph has none.
        """
        from .statistics import read

        return read(self.outputs)

    @checked
    def summary(self, depth: int | None = None) -> Summary:
        """The layers of the model and what they cost in this step, as a table to print.

        Layers are told by the names of params: "0.qkv.W" belongs to "0.qkv". What stands for a
        layer is the work of its forward nodes, their gradients and its optimizer.

        Args:
            depth: how many parts of a layer's name are told apart; None for all.

        >>> step.summary().total.launches == len(step.lowered)
        True
        """
        from .summary import Summary, summarize
        from .units import bytes_text

        plan = self.plan
        record = self._graph_record("summary")
        title = f"{record['graph']} on {self.device}: {len(plan.ops)} launches"
        note = f"peak {bytes_text(plan.peak_bytes)}, math {plan.math}"
        return Summary(title, summarize(record, plan.ops, depth, compiled=True), [note])

    @overload
    def tap(self, value: Value, /) -> Tap: ...
    @overload
    def tap(self, value: Value, another: Value, /, *more: Value) -> Taps: ...
    def tap(self, *values: Value) -> Tap | Taps:
        """Reads values of the graph, of whatever role, in the steps that run from now on.

        Before the last step of each call, what the values are made of is computed once more, on
        the same inputs and state. The step itself stays as it is, in plan, launches and bits, and
        the values have the bits that it computes with, those that no launch of it writes too.

        Args:
            values: of the graph that was compiled. Several are computed together.

        Returns: a Tap of a value; of several their Taps, a list that a `with` or `close()` ends.

        >>> h = step.tap(hidden)
        >>> _ = step(x=batch, t=target)
        >>> h.numpy().shape == hidden.shape
        True
        """
        from .watch import taps

        found = taps(self, values)
        return found[0] if len(values) == 1 else found

    def trap(self) -> Trap:
        """Keeps the step from making a NaN or an infinity, or taking an index out of range.

        From now on each step is computed without its effects first. Where a node makes a NaN or
        an infinity out of operands that have none, an index or label is out of range, or an input
        or param is not finite, the call raises BadValue with the first such node and element, and
        the step does not run: params, states, outputs and what they keep are as the step before
        left them. Of `replay(n)` the steps before it have run. Constants may hold infinities, as
        masks do, and so may states.

        Returns: a Trap, which ends with a `with` or `close()`, not before.

        >>> with step.trap():
        ...     _ = step(x=batch, t=target)
        """
        from .watch import trap

        return trap(self)

    @checked
    def profile(self, n: int = 10) -> Profile:
        """Runs n steps on the inputs as they stand and times each launch.

        They are steps as those of `replay(n)`, with the same effects and bits.

        Args:
            n: how many, from 1.

        Returns: a Profile: a table to print, and a trace to save.

        >>> found = step.profile(5)
        >>> len(found.launches) == len(step.lowered) and found.steps == 5
        True
        """
        from .profile import Timed, ceiling, facts_of, held, made

        if n < 1:
            raise _core.GraphError(f"profile: n is {n}; need at least 1")
        facts = facts_of(self)
        attached = held()
        timed = Timed(*self._profile(n)[1:])
        del attached
        return made(facts, [timed], ceiling(facts.device, facts.math))

    @checked
    def to_html(
        self,
        path: Path,
        times: Sequence[float] | None = None,
        history: Mapping[str, Any] | None = None,
        statistics: Any = None,
    ) -> None:
        """Writes one page that shows the step as IR, lowered and launched, with the same ids.

        A click on a value marks it wherever it stands. The page needs no other file.

        Args:
            times: seconds of each launch, to be shown beside it.
            history: what was recorded, to be drawn as a curve: a number a step, by name.
            statistics: what `statistics()` gave, or a list of these, to be shown as a table.

        Raises: OSError with the path; ShapeError when there are not as many times as launches, or
        a history is empty; DTypeError for what are no numbers.

        >>> step.to_html("step.html", history={"loss": [2.31, 1.87, 1.52]})
        """
        from .view import page

        plan, record = self.plan, self._graph_record("to_html")
        text = page(record, self._lowered_record(record), plan._record, times, history, statistics)
        write_whole("to_html", path, [text.encode()])

    def _graph_record(self, doing: str) -> dict[str, Any]:
        """The graph as it was compiled: what was appended since is left out."""
        if self._graph is None:
            raise _core.GraphError(f"{doing}: this step has no graph; need one that compile() made")
        record = json.loads(self._graph.to_json())
        for kind in ("nodes", "outputs", "assigns", "gradients"):
            record[kind] = record[kind][: getattr(self._built, kind)]
        values = list(record["values"].items())[: self._built.values]
        return {**record, "values": dict(values)}

    def _lowered_record(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """The ops of that graph before any pass; new ids begin where its values end."""
        graph = read_graph(json.dumps(record), strict=False)
        return read_record(graph.lower_json())["ops"]

    def _repr_html_(self) -> str:
        if self._graph is None:  # from a file
            return self.plan._repr_html_()
        return self.summary()._repr_html_()

    def __repr__(self) -> str:
        try:
            return f"aicf.Step({self.device}, {len(self.lowered)} launches)"
        except _core.GraphError:  # seen while a failed compile() is on its way out
            return "aicf.Step(not compiled)"


@checked
def load_step(
    path: Path, device: str | None = None, *, share: Any = None, capture: bool = True
) -> Step:
    """A step from a file of `Step.export`, with the bits of the one that was exported.

    A file for a GPU holds code that runs there as it stands: load it only from where you would
    take a program. One for the CPU holds none, and is checked whole before anything runs.

    Args:
        path: the file.
        device: "cpu" or "cuda:<index>", of the kind that the step was compiled for; None: the first
            of that kind.
        share: a Step or several; params and states of equal name use their storage.
        capture: False leaves only `run`.

    Returns: a Step, whose outputs, params and states are those of the file.

    Raises: FormatError for what is no whole file of this version; Unsupported for another kind of
    device; OSError with the path.

    >>> step.export("train.aicf")
    >>> again = aicf.load_step("train.aicf")
    """
    if device is not None:
        device = resolve_device(device)
    others = _steps("load_step", share)
    with Source("load_step", path) as source:
        content = source.read(source.size)
        source.check_unchanged()
    step = Step.__new__(Step)
    _core.Step.__init__(step, content, source.where, device, capture, others)
    names = (*step.params, *step.state)
    step._sharing = sharing_of(names, others)
    check_some("load_step", step._sharing.fresh, names, others)
    return step


def _steps(where: str, share: Any) -> tuple[Step, ...]:
    """What share= names."""
    others = [] if share is None else [share] if isinstance(share, _core.Step) else share
    if not isinstance(others, Sequence):
        raise _core.GraphError(f"{where}: share is {share!r}; need a Step or several")
    others = tuple(others)  # which no other thread empties
    for other in others:
        if not isinstance(other, _core.Step):
            raise _core.GraphError(f"{where}: share holds {other!r}; need Steps")
        _ = other.steps_run  # GraphError from one that was never compiled
    return others


def _initial(graph: Graph, params: Any) -> dict[str, Any]:
    """What compile(params=) gives, each of a param or state of the graph."""
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise _core.GraphError(f"compile: params is {params!r}; need a mapping of name to array")
    core = graph._core
    known = [core.value_name(id) for role in ("param", "state") for id in core.leaves(role)]
    unknown = [name for name in params if name not in known]
    if unknown:
        raise _core.GraphError(
            f"compile: params has unknown {unknown}{is_it(unknown[0], known)}; "
            f"need names of its params and states: {', '.join(known) or 'it has none'}"
        )
    for name, value in params.items():
        if isinstance(value, bytes):
            raise _core.DTypeError(f'compile: params["{name}"] is bytes; need an array')
        shape, want = getattr(value, "shape", None), core.shape(core.find(name))
        if isinstance(shape, tuple) and shape != tuple(want):
            from .summary import type_text

            need = type_text(core.dtype(core.find(name)), want)
            got = type_text(str(getattr(value, "dtype", "")).removeprefix("torch."), shape)
            raise _core.ShapeError(f'compile: params["{name}"] is {got}; need {need}')
    return dict(params)


def _bfloat16_bytes(values: np.ndarray, name: str) -> bytes:
    bits = np.ascontiguousarray(values).view(np.uint32)
    if (bits & 0xFFFF).any():
        raise _core.DTypeError(
            f'load_state_dict: "{name}" has float32 values that bfloat16 cannot hold; need them '
            "rounded, as torch's .bfloat16() does"
        )
    return (bits >> 16).astype(np.uint16).tobytes()
