"""Functions that are traced and compiled once for each kind of arguments, over one state."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import init as initializers
from ._core import Array, DTypeError, GraphError, call_key
from .arguments import DTYPES, Path, _dtype, bound, checked, is_it
from .attributes import Attribute, recorded
from .buckets import Bucket, Padding, read_buckets
from .checkpoint import Loaded
from .files import shown
from .graph import Graph, Value
from .module import Module, _here, building
from .optim import LossScale
from .parameters import Held, changes
from .step import Leaves, Step
from .trees import (
    Branch,
    Leaf,
    Results,
    as_dtype,
    flatten,
    leaf_of,
    spelled,
    static_of,
    unflatten,
    with_leaves,
)

__all__ = ["Bucket", "CachedStep", "Function", "State", "current_graph", "function", "minimize"]

_MOST_FAST = 4096  # kinds of calls that are recognised at once
_clock = itertools.count(1)


# ---- the state of functions


class Kept:
    """What functions keep between calls: params and states of all their steps, by name."""

    def _kept(self) -> Step:
        raise NotImplementedError

    @property
    def params(self) -> Leaves:
        """Params by name: live Arrays; assigning copies in."""
        return self._kept().params

    @property
    def states(self) -> Leaves:
        """States by name (`opt.*`, `rng.*`, your own): live Arrays; assigning copies in."""
        return self._kept().state

    @property
    def numbers(self) -> Leaves:
        """Float states of rank 0 that no step changes: what `set` is for, as "opt.lr"."""
        return self._kept().numbers

    def set(self, name: str, number: float) -> None:
        """Sets a rank-0 state, such as "opt.lr"; it holds from the next call on."""
        self._kept().set(name, number)

    def averages(self, name: str = "ema") -> dict[str, Array]:
        """The averages that `Graph.ema` keeps, as `Step.averages` gives them."""
        return self._kept().averages(name)

    def state_dict(self) -> dict[str, Any]:
        """A copy of every param and state, as `Step.state_dict` gives it."""
        return self._kept().state_dict()

    def load_state_dict(
        self, values: Any, strict: bool = True, only: Any = None, skip: Any = None
    ) -> Loaded:
        """Copies in the values `state_dict` returns, as `Step.load_state_dict` does."""
        return self._kept().load_state_dict(values, strict, only, skip)

    def save(
        self,
        path: Path,
        only: Any = None,
        skip: Any = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes every param and state as one file of safetensors, as `Step.save` does."""
        self._kept().save(path, only, skip, metadata)

    def load(self, path: Path, strict: bool = True, only: Any = None, skip: Any = None) -> Loaded:
        """Reads what `save` wrote, as `Step.load` does."""
        return self._kept().load(path, strict, only, skip)


class State(Kept):
    """The params and states of functions that are given it as `state=`: each name once.

    Args:
        step: a Step whose storage it begins with; None: it begins empty, and the first call of a
            function makes what there is.

    >>> state = aicf.State(step)
    >>> list(state.params)
    ['w']
    """

    def __init__(self, step: Step | None = None) -> None:
        if step is not None and not isinstance(step, Step):
            raise GraphError(f"State: step is {step!r}; need a Step, or None")
        self._step = step
        self._lock = threading.RLock()
        self._owners: dict[str, Held] = {}  # what modules own of it, by name

    def _kept(self) -> Step:
        if self._step is None:
            raise GraphError(
                "State: no function has been traced yet, so it has no names; call one, or let "
                "its step() compile what a call needs"
            )
        return self._step

    def _claim(self, where: str, graph: Graph) -> None:
        """Refuses what modules own where a name is that of another one's content."""
        for held, name in graph._held.items():
            owner = self._owners.get(name, held)
            if owner is not held and graph._core.find(name) >= 0:
                raise GraphError(
                    f'{where}: "{name}" is another {type(owner).__name__} in the state of this '
                    "function already; need a name for one of the models, as in Linear(8, 8, "
                    'name="second"), or a function with a state of its own'
                )

    def _adopt(self, step: Step, graph: Graph) -> None:
        """Holds all of the step's storage, by a step that does nothing: those that are compiled may
        then be dropped."""
        old = self._step
        known = set() if old is None else {*old.params, *old.state}
        params = set() if old is None else set(old.params)
        if not (known.issuperset(step.state) and params.issuperset(step.params)):
            g = Graph("state")
            sources = [step] if old is None else [old, step]
            roles = [(g.param, one, one.params) for one in sources]  # once trained, always a param
            roles += [(g.state, one, one.state) for one in sources]
            for make, source, leaves in roles:
                for name in leaves:
                    if g._core.find(name) >= 0:
                        continue
                    array, of = source._array(name), source._graph
                    id = -1 if of is None else of.find(name)
                    number = None if of is None or id < 0 else of.initial_number(id, True)
                    start = None if number is None else initializers.constant(number)
                    make(name, array.shape, array.dtype, start)
            self._step = g.compile(device=step.device, share=sources, capture=False)
        for held, name in graph._held.items():
            self._owners[name] = held
            if self._step is not None and held._step is not None and held._step[0] is step:
                held._step = (self._step, name)

    def __repr__(self) -> str:
        if self._step is None:
            return "aicf.State(empty)"
        return f"aicf.State({len(self.params)} params, {len(self.states)} states)"


# ---- what a function has compiled


class _Entry:
    """A step, and how a call becomes its inputs and its outputs a result."""

    def __init__(
        self,
        key: Any,
        names: Sequence[str],
        arrays: int,
        step: Step,
        results: Results,
        crops: dict[str, list[tuple[int, int]]],
        roots: Sequence[Module],
        attributes: Sequence[Attribute],
        seconds: float,
    ) -> None:
        self.key, self.names, self.step, self.results = key, tuple(names), step, results
        self.arrays = arrays  # how many of the names are arguments; counts follow
        self.crops, self.single = crops, None if crops else results.single
        self.seconds, self.used = seconds, next(_clock)
        self._roots = tuple(roots)
        self._modes = self._now()
        self._attributes = attributes
        self._in_place = [one for one in attributes if one.in_place]
        self._seen = changes[0]
        self.version = -1 if self._in_place else self._seen  # -1: to be asked each time
        self.fast: set[Any] = set()

    def _now(self) -> tuple[Any, ...]:
        """All that decides what a trace gives, of the modules and what they are parts of."""
        return tuple(
            (part, part.training, *((one, one.requires_grad) for _, one in part._own_held()))
            for root in self._roots
            for part in root.modules()
        ) + tuple((part, part.training) for root in self._roots for part in root._above())

    def current(self) -> bool:
        """Whether the modules, and what was read of them, are as they were when it was traced."""
        version = changes[0]
        if self._seen == version:
            return all(one.same() for one in self._in_place)
        if self._now() != self._modes or not all(one.same() for one in self._attributes):
            return False
        self._seen = version
        self.version = -1 if self._in_place else version
        return True

    def changed(self) -> list[str]:
        """What of the modules is another than when it was traced, in words."""
        found = [one.told() for one in self._attributes if not one.same()]
        return [*found, *["the mode of a module"] * (self._now() != self._modes)]

    def modes(self) -> str:
        """Which modes its modules were in, in a word."""
        found = {part[1] for part in self._modes}
        return (
            ""
            if not found
            else "train"
            if found == {True}
            else "eval"
            if found == {False}
            else "mixed"
        )


class CachedStep(NamedTuple):
    """A step that a function has compiled."""

    arguments: dict[str, str]  # what a call looks like: dtype and shape, or the value, by name
    mode: str  # of the modules: "train", "eval", "mixed", or "" where there are none
    step: Step
    seconds: float  # that tracing and compiling took


class Function(Kept):
    """What `aicf.function` returns."""

    def __init__(
        self,
        fn: Callable[..., Any],
        options: dict[str, Any],
        dtypes: Mapping[str, str],
        buckets: Any,
        cache: int,
        copy: bool,
        state: Any,
        retraces: int,
        static: frozenset[str],
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        self._name = getattr(fn, "__name__", type(fn).__name__)
        try:
            self._signature = inspect.signature(fn.forward if isinstance(fn, Module) else fn)
        except ValueError:
            raise GraphError(
                f"function: fn is {fn!r}, whose arguments Python does not tell; need a function "
                "written in Python, as lambda x: ..."
            ) from None
        self._static = static
        if unknown := [name for name in static if name not in self._signature.parameters]:
            raise GraphError(
                f"{self._name}: static has {unknown[0]!r}; need some of "
                f"{', '.join(self._signature.parameters) or 'no arguments'}"
            )
        self._options, self._dtypes = options, dtypes
        parameters = self._signature.parameters.values()
        plain = all(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
        by_place = [p.name for p in parameters if p.kind != p.KEYWORD_ONLY]
        self._places = by_place if plain else None
        self._axes = read_buckets(self._name, buckets)
        self._most, self._copy, self._retraces = cache, copy, retraces
        self._state = state if isinstance(state, State) else State()
        if state is not None and not isinstance(state, (State, Kept)):
            raise GraphError(f"{self._name}: state is {state!r}; need an aicf.State or a function")
        if isinstance(state, Function):
            self._state = state._state
        self._entries: list[_Entry] = []
        self._by_key: dict[Any, list[_Entry]] = {}
        self._fast: dict[Any, tuple[_Entry, tuple[str, ...] | None, Any]] = {}
        self._traces = 0
        self._turn = threading.Lock()

    def _kept(self) -> Step:
        return self._state._kept()

    @property
    def state(self) -> State:
        """What it keeps between calls; `aicf.function(state=)` gives it to another function."""
        return self._state

    @property
    def cache(self) -> list[CachedStep]:
        """The steps it has compiled, that of the last call last."""
        return [
            CachedStep(spelled(entry.key[0]), entry.modes(), entry.step, entry.seconds)
            for entry in sorted(self._entries, key=lambda entry: entry.used)
        ]

    def __repr__(self) -> str:
        lines = [f"aicf.function({self._name}): {len(self._entries)} of {self._most} steps"]
        for entry in self.cache:
            text = ", ".join(f"{name} {said}" for name, said in entry.arguments.items())
            mode = f" ({entry.mode})" if entry.mode else ""
            lines.append(
                f"  {text}{mode}: {len(entry.step.lowered)} launches, "
                f"{entry.seconds * 1e3:.1f} ms to compile, {entry.step.steps_run} calls"
            )
        return "\n".join(lines)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    # ---- a call

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """The result of the function for these arguments, nested as it was returned."""
        if getattr(_here, "frames", None):  # inside of a function that is traced
            return self._fn(*args, **named)
        key: Any
        leaves: tuple[Any, ...]
        key, leaves = call_key(args, named) or (None, ())
        try:
            known = self._fast.get(key)
        except TypeError:  # a dtype or a shape has no hash
            known = key = None
        if known is None:
            return self._slow(args, named, key, leaves)
        entry, names, prepare = known
        if entry.version != changes[0] and not entry.current():
            return self._slow(args, named, key, leaves)
        if prepare is not None:
            leaves = prepare(leaves)
        single = entry.single
        if single is None:
            return self._run(entry, names, leaves)
        if names is not None:  # in another order than the step's
            leaves = _ordered(entry.names, names, leaves)
        with self._turn:
            entry.used = next(_clock)
            return entry.step._call_one(leaves, single, self._copy)

    def _run(self, entry: _Entry, names: Sequence[str] | None, leaves: Sequence[Any]) -> Any:
        if names is not None:
            leaves = _ordered(entry.names, names, leaves)
        with self._turn:  # no other call comes before the outputs are read
            entry.used = next(_clock)
            outputs = entry.step(*leaves)
            if not self._copy and not entry.crops:
                return entry.results.made(outputs)
            made: dict[str, Any] = {}
            for name in outputs:
                made[name] = outputs[name]._keep() if self._copy else outputs[name]
                if name in entry.crops:
                    cuts = [slice(None)] * made[name].ndim
                    for axis, count in entry.crops[name]:
                        cuts[axis] = slice(leaves[count])
                    made[name] = made[name].numpy()[tuple(cuts)]
        return entry.results.made(made)

    def _slow(self, args: Any, named: dict[str, Any], arrays: Any, flat: Any) -> Any:
        """A call that has other arguments than arrays, or is the first of its kind."""
        leaves: list[Any] = []
        names: list[str] = []
        key: Any = None
        if self._places is not None and len(args) <= len(self._places):
            given = [*zip(self._places, args), *named.items()]  # noqa: B905 (as many as are given)
            key = tuple([(at, self._spec(at, x, leaves, names)) for at, x in given])
            known = self._fast.get(key)
            if known is not None and known[0].current():
                entry, names_there, prepare = known
                if arrays is not None and _same(leaves, flat):
                    self._remember(arrays, *known)
                return self._run(entry, names_there, prepare(leaves) if prepare else leaves)
        with self._state._lock:
            entry, inputs, prepare = self._entry(args, named)
        order = list(entry.names[: entry.arrays])  # more than are given, where one has a default
        alike = names == order if prepare else sorted(names) == sorted(order)
        if key is not None and alike:
            found = (*names, *entry.names[entry.arrays :])
            by_place = None if found == entry.names else found
            self._remember(key, entry, by_place, prepare)
            if arrays is not None and _same(leaves, flat):  # they are all there is to know
                self._remember(arrays, entry, by_place, prepare)
        return self._run(entry, None, inputs)

    def step(self, /, *args: Any, **named: Any) -> Step:
        """The Step that a call with these arguments runs; it is compiled where there is none yet,
        and not run."""
        with self._state._lock:
            return self._entry(args, named)[0].step

    def _spec(self, name: str, value: Any, leaves: list[Any], names: list[str]) -> Any:
        if name in self._static:
            return static_of(self._name, name, value)
        return flatten(self._name, name, value, leaves, names)

    def _entry(self, args: Any, named: dict[str, Any]) -> tuple[_Entry, Sequence[Any], Any]:
        """The step for a call, its inputs, and what makes these of the arrays, if anything."""
        found = bound(self._name, self._signature, args, named)
        found.apply_defaults()
        leaves: list[Any] = []
        names: list[str] = []
        specs = {
            key: self._spec(key, value, leaves, names) for key, value in found.arguments.items()
        }
        kinds = [leaf_of(x) for x in leaves]
        casts = [self._dtypes.get(kind.dtype, kind.dtype) for kind in kinds]
        for name, kind, cast in zip(names, kinds, casts, strict=True):
            if cast not in DTYPES:
                raise DTypeError(
                    f"{self._name}: {shown(name)} is {cast}{list(kind.shape)}; need one of "
                    f"{', '.join(DTYPES)}: cast it, or have dtypes= of the function do so"
                )
        padding = Padding(self._name, self._axes, names, kinds) if self._axes else None
        shapes = padding.shapes if padding else [kind.shape for kind in kinds]
        inputs = [Leaf(*one) for one in zip(shapes, casts, strict=True)]
        spec = with_leaves(Branch(dict, tuple(specs), tuple(specs.values())), iter(inputs))
        key = (spec, tuple(padding.counts) if padding else ())

        turned = [
            None if kind.dtype == cast else cast for kind, cast in zip(kinds, casts, strict=True)
        ]

        def prepared(leaves: Sequence[Any]) -> tuple[Any, ...]:
            made = padding.padded(leaves) if padding else [*leaves]
            for at, to in enumerate(turned):
                made[at] = made[at] if to is None else as_dtype(made[at], to)
            return tuple(made)

        prepare = prepared if padding or any(turned) else None
        entry = next((one for one in self._by_key.get(key, ()) if one.current()), None)
        if entry is None:
            entry = self._traced(key, names, inputs, padding)
        return entry, prepare(leaves) if prepare else leaves, prepare

    def _remember(
        self, key: Any, entry: _Entry, names: tuple[str, ...] | None, prepare: Any
    ) -> None:
        """Calls of this kind, whose arrays come in the order of `names`, are known from now on."""
        if len(self._fast) >= _MOST_FAST:
            self._fast.clear()
            for one in self._entries:
                one.fast.clear()
        self._fast[key] = entry, names, prepare
        entry.fast.add(key)

    # ---- tracing

    def _traced(
        self, key: Any, names: Sequence[str], inputs: Sequence[Leaf], padding: Padding | None
    ) -> _Entry:
        start = time.perf_counter()
        graph = Graph(self._name)
        values = [graph.input(name, *leaf) for name, leaf in zip(names, inputs, strict=True)]
        all_names = list(names)
        for bucket, size in padding.counts.items() if padding else ():
            graph._padded[bucket] = bucket.padded(size)
            all_names.append(f"{bucket.name}.count")
            graph._counts[bucket] = graph.input(all_names[-1], (), "int32")
        given = self._signature.bind_partial()
        given.arguments.update(unflatten(key[0], iter(values)))
        with building(graph), recorded() as reads:
            try:
                results = Results(self._name, self._fn(*given.args, **given.kwargs))
            except (AttributeError, DTypeError, GraphError, TypeError) as error:
                if hint := _hint(key[0], str(error)):
                    error.args = (f"{error}; {hint}",)
                raise
        crops: dict[str, list[tuple[int, int]]] = {}
        for name, value in results.values.items():
            graph.output(name, value)
            if value.id in graph._crops:
                places = {bucket: i for i, bucket in enumerate(graph._counts, len(names))}
                crops[name] = [(axis, places[b]) for axis, b in graph._crops[value.id]]
        state = self._state
        state._claim(self._name, graph)
        step = graph.compile(share=state._step, fresh="*", **self._options)
        state._adopt(step, graph)
        graph._closed = self._name
        seconds = time.perf_counter() - start
        self._warn(key)
        entry = _Entry(
            key, all_names, len(names), step, results, crops, list(graph._ran),
            reads.attributes(), seconds,
        )  # fmt: skip
        self._traces += 1
        self._by_key.setdefault(key, []).append(entry)
        self._entries.append(entry)
        if len(self._entries) > self._most:
            self._drop(min(self._entries[:-1], key=lambda one: one.used))
        return entry

    def _drop(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._by_key[entry.key].remove(entry)
        if not self._by_key[entry.key]:
            del self._by_key[entry.key]
        for key in entry.fast:
            known = self._fast.get(key)
            if known is not None and known[0] is entry:
                del self._fast[key]

    def _warn(self, key: Any) -> None:
        """At `retraces` traces, and at each doubling."""
        buckets = {bucket for axes in self._axes.values() for bucket in axes.values()}
        sizes = [len(bucket.sizes) for bucket in buckets]
        count = self._traces + 1
        over = count - (2 * math.prod(sizes) if sizes else 0)  # in training and in evaluation
        if (
            over < self._retraces
            or not self._entries
            or over & (over - 1)
            and (over != self._retraces)
        ):
            return
        newest = max(self._entries, key=lambda one: one.used)
        now, last = spelled(key[0]), spelled(newest.key[0])
        changed = [
            f"{name} is {now.get(name, 'absent')}, last was {last.get(name, 'absent')}"
            for name in {**last, **now}
            if now.get(name) != last.get(name)
        ] or newest.changed()
        warnings.warn(
            f"{self._name}: traced {count} times; now {', '.join(changed[:3])}. Sizes that vary "
            "need buckets=, whole numbers that vary np.int32(...) or an array",
            RuntimeWarning,
            stacklevel=6,
        )


def _is_dtype(name: str) -> bool:
    """Whether arrays may have it, those of other libraries among them."""
    try:
        return name in DTYPES or np.dtype(name).name == name
    except TypeError:
        return False


def _hint(spec: Branch, said: str) -> str:
    """What the arguments of a call have to do with an error of its trace, if anything."""
    given = dict(zip(spec.keys, spec.children, strict=True))
    wide = [name for name, one in given.items() if isinstance(one, Leaf) and one.dtype == "float64"]
    if wide and "f64" in said and "f32" in said:
        hint = (
            f"float64 comes of the arguments ({', '.join(wide)}), which "
            'dtypes={"float64": "float32"} of the function casts'
        )
        if numbers := [name for name, one in given.items() if one == Leaf((), "float32")]:
            hint += f"; a float ({', '.join(numbers)}) is float32, np.float64(...) is not"
        return hint
    lists = [name for name, one in given.items() if isinstance(one, Branch) and one.type is list]
    if lists and re.search(r"\(list\)|'list' object|'list'$|multiply sequence", said):
        return (
            f"lists ({', '.join(lists)}) are nested arguments: give np.asarray(...) for one array"
        )
    return ""


def _ordered(wanted: Sequence[str], names: Sequence[str], leaves: Sequence[Any]) -> tuple[Any, ...]:
    by_name = dict(zip(names, leaves, strict=True))
    return tuple([by_name[name] for name in wanted])


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether they are the same objects."""
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def function(
    fn: Callable[..., Any] | None = None,
    *,
    device: str = "auto",
    math: str = "fp32",
    seed: int = 0,
    deterministic: bool = True,
    check: bool = False,
    checks: str = "indices",
    dtypes: Mapping[str, str] | None = None,
    buckets: Mapping[str, Any] | None = None,
    cache: int = 32,
    copy: bool = True,
    state: State | Function | None = None,
    retraces: int = 8,
    static: str | Sequence[str] = (),
    tune: bool = False,
    cublaslt: bool = False,
) -> Any:
    """A function of Values as a function of arrays: traced and compiled once for each kind of call.

    What tells calls apart are shapes and dtypes of the arrays, how they are nested, every other
    argument, and the modes of the modules that run. All steps share one state: params, the
    optimizer's states, random numbers.

    Args:
        fn: takes Values where it is called with arrays of any library or floats, in nested tuples,
            lists and dicts; what else it takes must have a hash. It returns Values, None, or such a
            nest of these. None: a decorator with options.
        device, math, seed, deterministic, check, checks, tune, cublaslt: as `Graph.compile` takes
            them.
        dtypes: what arrays are cast to on their way in, by their dtype, as {"float64": "float32"}.
        buckets: an aicf.Bucket by the name of an argument, or several by axis: these axes are
            padded.
        cache: how many steps are kept; the one not called for longest goes first. State stays.
        copy: results are copies on the device, which nothing waits for; False gives the outputs of
            a Step, which the next call of that Step ends.
        state: an aicf.State, or a function whose state this one shares.
        retraces: a warning says what differs when a function is traced for this many times.
        static: names of arguments that tell calls apart by their value, floats among them.

    Returns: a Function.

    >>> @aicf.function
    ... def double(x):
    ...     return x * 2.0
    >>> double(np.ones(3, np.float32)).numpy()
    array([2., 2., 2.], dtype=float32)
    """
    options = {
        "device": device, "math": math, "seed": seed, "deterministic": deterministic,
        "check": check, "checks": checks, "tune": tune, "cublaslt": cublaslt,
    }  # fmt: skip
    for name, number in (("cache", cache), ("retraces", retraces)):
        if type(number) is not int or number < 1:
            raise GraphError(f"function: {name} is {number!r}; need an int from 1")
    names = [static] if isinstance(static, str) else static
    if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) for one in names):
        raise GraphError(f"function: static is {static!r}; need names of arguments")
    for name, choice in (("copy", copy), ("tune", tune), ("cublaslt", cublaslt)):
        if not isinstance(choice, bool):
            raise GraphError(f"function: {name} is {choice!r}; need a bool")
    if cublaslt and not tune:
        raise GraphError("function: cublaslt is True and tune False; need tune=True")
    try:
        casts = {_dtype(key): _dtype(value) for key, value in (dtypes or {}).items()}
    except (AttributeError, TypeError, ValueError):
        raise GraphError(
            f"function: dtypes is {dtypes!r}; need a mapping of dtype to dtype"
        ) from None
    for given, cast in casts.items():
        if not _is_dtype(given) or cast not in DTYPES:
            wrong = cast if _is_dtype(given) else given
            raise DTypeError(
                f"function: dtypes has {given!r}: {cast!r}{is_it(wrong, DTYPES)}; need a dtype of "
                f"arrays, to one of {', '.join(DTYPES)}"
            )

    def made(fn: Callable[..., Any]) -> Function:
        if not callable(fn):
            raise GraphError(f"function: fn is {fn!r}; need a function")
        return Function(fn, options, casts, buckets, cache, copy, state, retraces, frozenset(names))

    return made if fn is None else made(fn)


def current_graph() -> Graph:
    """The graph of the function that is traced, for what no Value among its arguments leads to.

    >>> @aicf.function
    ... def noise():
    ...     return aicf.current_graph().random_normal((2, 3))
    >>> noise().shape
    (2, 3)
    """
    frames = getattr(_here, "frames", None)
    if not frames:
        raise GraphError("current_graph: no function is traced; need a call inside of one")
    graph: Graph = frames[-1].graph
    return graph


@checked
def minimize(
    loss: Value,
    optimizer: Any,
    params: Any = None,
    clip_norm: float | Value | None = None,
    name: str = "opt",
    loss_scale: LossScale = None,
) -> None:
    """`Graph.minimize` in the graph of the loss.

    Args:
        params: what to train, as `Graph.minimize` says.

    >>> aicf.minimize(aicf.sum(w * w), aicf.optim.SGD(lr=0.1), name="sgd")
    """
    loss.graph.minimize(loss, optimizer, params, clip_norm, name, loss_scale)
