"""Ops of one's own: composed of others, of C++ and CUDA sources, by a callback of the host."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import inspect
import json
import keyword
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._core import DTypeError, Error, FormatError, GraphError, ShapeError
from .arguments import DTYPES, NamedDTypes, checked, user_line
from .files import shown
from .gradients import checked_gradients, custom_gradient, is_kept, kept_gradient
from .graph import Graph, Value
from .movement import broadcast_to

__all__ = ["CustomOp", "Spec", "custom_op"]

_KINDS = {"bool": bool, "int": int, "float": float}
_TAKEN = {"op", "digest", "types", "unit_axes", "strided", "order", "key", "call", "cost"}
_MOST_THREADS = 1024


class Spec(NamedTuple):
    """What a custom op's function is told of an operand, and tells of a result."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)


class CustomOp:
    """An op that `custom_op` made: called with Values it appends a node to their graph."""

    def __init__(self, fn: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.name: str = fn.__name__
        self.__doc__, self.__wrapped__ = fn.__doc__, fn
        self.where = f"custom_op {self.name}"
        self.defined = user_line()
        self.inputs, self._defaults, self._kinds = self._signature(fn)
        for key, value in options.items():
            setattr(self, "_" + key, value)
        self._check_options()
        said = [self.name, self._cpu, self._cuda, self.inputs, self._outputs, self._threads]
        self.digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]
        self._key = int(hashlib.sha256(self.name.encode()).hexdigest()[:15], 16)

    _cpu: str
    _cuda: str
    _host: Callable[..., Any] | None
    _gradient: Callable[..., Any] | None
    _outputs: list[str]
    _dtypes: Mapping[str, Sequence[str]]
    _order: str
    _unit_axes: int | None
    _threads: int
    _strided: bool

    def __repr__(self) -> str:
        return f"<custom_op {self.name} defined at {self.defined}>"

    def __call__(self, *values: Value, **attrs: Any) -> Any:
        g, given = _graph_of(self.where, values), self._complete(attrs)
        types = self._infer([Spec(value.shape, value.dtype) for value in values], given)
        attrs = self._node_attrs(g, values, types) | given
        ids = g._here().emit(self._kind, [value.id for value in values], attrs)
        made = [Value(g, id) for id in ids]
        rule = self._rule(g, values, made, given)
        if self._gradient is not None and is_kept(g):
            made = kept_gradient(self.where, g, made, values, [], rule)
        else:
            g._own_rules[made[0].id] = rule
        return made[0] if len(made) == 1 else made

    @property
    def _kind(self) -> str:
        return "HostCall" if self._host else "CustomOp"

    # ---- what is declared

    def _signature(
        self, fn: Callable[..., Any]
    ) -> tuple[list[str], dict[str, Any], dict[str, type]]:
        inputs, defaults, kinds = [], {}, {}
        for name, one in inspect.signature(fn).parameters.items():
            if one.kind is one.KEYWORD_ONLY:
                kind = type(one.default) if one.default is not one.empty else one.annotation
                kind = _KINDS.get(kind if isinstance(kind, str) else getattr(kind, "__name__", ""))
                if kind is None:
                    raise GraphError(
                        f"{self.where}: attribute {name} is {one}; need a default that is a bool, "
                        "an int or a float, or one of these as its annotation"
                    )
                kinds[name] = kind
                if one.default is not one.empty:
                    defaults[name] = one.default
            elif one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty:
                inputs.append(name)
            else:
                raise GraphError(
                    f"{self.where}: parameter {one} of its function; need operands by name without "
                    "defaults, and attributes behind a *"
                )
        if not inputs:
            raise GraphError(f"{self.where}: its function takes no operands; need at least one")
        return inputs, defaults, kinds

    def _check_options(self) -> None:
        names = [*self.inputs, *self._outputs, *self._kinds]
        for name in [self.name, *names]:
            if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
                raise GraphError(f"{self.where}: {name!r} is no name; need an ASCII identifier")
        if len(set(names)) != len(names) or not self._outputs or _TAKEN & set(self._kinds):
            raise GraphError(
                f"{self.where}: operands {self.inputs}, outputs {self._outputs}, attributes "
                f"{list(self._kinds)}; need distinct names, and for attributes none of "
                f"{sorted(_TAKEN)}"
            )
        unknown = set(self._dtypes) - set(self.inputs)
        wrong = {dtype for taken in self._dtypes.values() for dtype in taken} - set(DTYPES)
        if unknown or wrong:
            raise GraphError(
                f"{self.where}: dtypes names {sorted(unknown | wrong)}; need operands of "
                f"{self.inputs} and dtypes of {DTYPES}"
            )
        if self._threads != 1 and (self._threads % 32 or not 32 <= self._threads <= _MOST_THREADS):
            raise GraphError(
                f"{self.where}: threads is {self._threads}; need 1, or a multiple of 32 up to "
                f"{_MOST_THREADS}"
            )

    def _complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes in the order in which they are declared."""
        if unknown := set(attrs) - set(self._kinds):
            raise GraphError(
                f"{self.where}: unknown attribute {sorted(unknown)}; need some of "
                f"{list(self._kinds)}"
            )
        complete = {}
        for name, kind in self._kinds.items():
            if name not in attrs and name not in self._defaults:
                raise GraphError(f"{self.where}: attribute {name} is missing; it has no default")
            value: Any = attrs.get(name, self._defaults.get(name))
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if kind is float and number:
                value = float(value)
            finite = not number or math.isfinite(value)
            if type(value) is not kind or not finite:
                raise GraphError(
                    f"{self.where}: attribute {name} is {value!r}; need a finite {kind.__name__}"
                )
            complete[name] = value
        return complete

    def _infer(self, specs: Sequence[Spec], attrs: Mapping[str, Any]) -> list[Spec]:
        """What the op's function says of its results."""
        if len(specs) != len(self.inputs):
            raise GraphError(
                f"{self.where}: got {len(specs)} operands; need {len(self.inputs)}: "
                f"{', '.join(self.inputs)}"
            )
        for name, spec in zip(self.inputs, specs, strict=True):
            taken = self._dtypes.get(name, DTYPES)
            if spec.dtype not in taken or (self._host and spec.dtype == "bfloat16"):
                raise DTypeError(
                    f"{self.where}: {name} is {spec.dtype}; need one of "
                    f"{[dtype for dtype in taken if not (self._host and dtype == 'bfloat16')]} "
                    "(cast it)"
                )
        said = self.__wrapped__(*specs, **attrs)
        listed = said if isinstance(said, (list, tuple)) and not isinstance(said, Spec) else [said]
        results = []
        for one in listed:
            if not isinstance(one, Spec) or one.dtype not in DTYPES:
                raise GraphError(
                    f"{self.where}: its function returned {said!r}; need an aicf.Spec for each of "
                    f"the outputs {self._outputs}"
                )
            results.append(Spec(tuple(int(size) for size in one.shape), one.dtype))
        if len(results) != len(self._outputs):
            raise GraphError(
                f"{self.where}: its function gave {len(results)} results; need "
                f"{len(self._outputs)}: {', '.join(self._outputs)}"
            )
        if self._host and any(spec.dtype == "bfloat16" for spec in results):
            raise DTypeError(f"{self.where}: a result is bfloat16; need a dtype of NumPy's")
        return results

    # ---- nodes

    def _declared(self, results: Sequence[Spec]) -> dict[str, Any]:
        types = [number for spec in results
                 for number in (DTYPES.index(spec.dtype), spec.ndim, *spec.shape)]  # fmt: skip
        if self._host:
            return {"op": self.name, "key": self._key, "types": types}
        axes = results[0].ndim if self._unit_axes is None else self._unit_axes
        return {"op": self.name, "digest": self.digest, "types": types, "unit_axes": axes,
                "strided": self._strided, "order": self._order}  # fmt: skip

    def _node_attrs(
        self, g: Graph, values: Sequence[Value], results: Sequence[Spec]
    ) -> dict[str, Any]:
        attrs = self._declared(results)
        if self._host:
            there, back = (
                sum(math.prod(one.shape) * _size(one.dtype) for one in some)
                for some in (values, results)
            )
            # No two calls are one: what a callback gives may differ from call to call.
            attrs["call"] = g._core.mark().nodes
            attrs["cost"] = f"calls Python, copies {there} bytes to it and {back} back"
        return attrs

    def _rule(
        self, g: Graph, values: Sequence[Value], made: Sequence[Value], attrs: Mapping[str, Any]
    ) -> Callable[[list[int]], list[int]]:
        def rule(dys: list[int]) -> list[int]:
            if self._gradient is None:
                raise GraphError(
                    f"backward: {self.where} has no gradient; need gradient= where it is defined, "
                    "or its operands detached"
                )
            given = [_gradient_of(g, id, one) for id, one in zip(dys, made, strict=True)]
            found = self._gradient(*given, *values, *made, **attrs)
            return checked_gradients(self.where, g, found, values)

        return rule

    def _lowered(self, inputs: Sequence[Any], attrs: Any) -> tuple[str, dict[str, Any]]:
        """The lowered op and its attributes on some tensors."""
        specs = [Spec(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in inputs]
        given = self._complete(attrs or {})
        declared = self._declared(self._infer(specs, given))
        if self._host:
            declared |= {"call": 0, "cost": ""}
            return "host_call", declared | given
        return "custom_strided" if self._strided else "custom_op", declared | given

    # ---- the callback

    def _run(self, inputs: Sequence[Any], outputs: Sequence[Any], numbers: Sequence[Any]) -> None:
        assert self._host is not None
        attrs = {
            name: numbers[i][1] if kind is float else kind(numbers[i][0])
            for i, (name, kind) in enumerate(self._kinds.items())
        }
        made = self._host(*(_taken(*one) for one in inputs), **attrs)
        results = [made] if len(self._outputs) == 1 else made
        if not isinstance(results, (list, tuple)) or len(results) != len(outputs):
            raise GraphError(
                f"{self.where}: the callback returned {made!r:.200}; need {len(outputs)} arrays: "
                f"{', '.join(self._outputs)}"
            )
        arrays = [np.asarray(result) for result in results]
        for name, array, (_, _, shape, dtype) in zip(self._outputs, arrays, outputs, strict=True):
            if array.dtype.name != dtype:
                raise DTypeError(
                    f"{self.where}: the callback gave {name} as {array.dtype}; need {dtype}"
                )
            if array.shape != shape:
                raise ShapeError(
                    f"{self.where}: the callback gave {name} of shape {array.shape}; need {shape}"
                )
        for array, (address, count, _, _) in zip(arrays, outputs, strict=True):
            if count:
                ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, count)


def _graph_of(where: str, values: Sequence[Any]) -> Graph:
    for value in values:
        if not isinstance(value, Value):
            raise GraphError(f"{where}: got {value!r}; need Values, and attributes by name")
    if not values:
        raise GraphError(f"{where}: got no Values; need at least one")
    g: Graph = values[0].graph
    for value in values:
        g._id(value, where)
    return g


def _size(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _gradient_of(g: Graph, id: int, like: Value) -> Value | None:
    """What reaches a result: zeros where nothing does, None for a result without a gradient."""
    if id >= 0:
        return Value(g, id)
    if not like.dtype.startswith(("float", "bfloat")):
        return None
    return broadcast_to(g.constant(0.0, like.dtype), like.shape)


def _taken(address: int, count: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A copy, for who keeps it would see the step's memory change."""
    array = np.empty(shape, dtype)
    if count:
        ctypes.memmove(array.ctypes.data, address, count)
    return array


# ---- all that are known

_lock = threading.Lock()
_named: dict[str, CustomOp] = {}
_by_key: dict[int, CustomOp] = {}


@atexit.register
def _forget() -> None:
    """An op's function holds all names of its script, Steps among them, which end before we do."""
    _named.clear()
    _by_key.clear()


def _register(op: CustomOp, replace: bool) -> None:
    def text(one: CustomOp) -> Any:
        host = one._host
        return one.digest, host and (host.__module__, getattr(host, "__qualname__", host))

    with _lock:
        before = _named.get(op.name)
        if before is not None and not replace and text(before) != text(op):
            raise GraphError(
                f"{op.where}: the name is taken by another op, defined at {before.defined}, this "
                f"one is at {op.defined}; need another name, or replace=True"
            )
        _named[op.name] = _by_key[op._key] = op
    if not op._host:
        _core.define_custom(
            op.digest, op.name, op._cpu, op._cuda, op.inputs, op._outputs, op._threads
        )


def _call_host(key: int, inputs: Any, outputs: Any, numbers: Any) -> None:
    op = _by_key.get(key)
    if op is None or op._host is None:
        raise GraphError(
            "custom_op: the step calls a callback that nobody has defined here; need the module "
            "that defines it to be imported"
        )
    op._run(inputs, outputs, numbers)


_core.set_host_caller(_call_host)


def adopt(g: Graph, nodes: Sequence[tuple[list[int], list[int], dict[str, Any]]]) -> None:
    """Checks the custom ops of a graph from a file against those that are defined here."""
    for inputs, outputs, attrs in nodes:
        op = _named.get(attrs["op"])
        if op is None or attrs.get("digest", op.digest) != op.digest:
            raise FormatError(
                f"from_json: custom_op {shown(attrs['op'])} is not defined here"
                + (", or of other sources" if op else "")
                + "; need the module that defines it to be imported"
            )
        values, made = ([Value(g, id) for id in ids] for ids in (inputs, outputs))
        try:
            given = op._complete({k: v for k, v in attrs.items() if k in op._kinds})
            declared = op._declared(op._infer([Spec(v.shape, v.dtype) for v in values], given))
        except Error as error:
            raise FormatError(f"from_json: {error}") from None
        if wrong := {k: attrs.get(k) for k in declared if attrs.get(k) != declared[k]}:
            need = {k: declared[k] for k in wrong}
            raise FormatError(f"from_json: {op.where} has {wrong}; need {need}")
        g._own_rules[made[0].id] = op._rule(g, values, made, given)


# ---- the decorator


@checked
def custom_op(
    fn: Callable[..., Any] | None = None,
    *,
    cpu: str | None = None,
    cuda: str | None = None,
    host: Callable[..., Any] | None = None,
    gradient: Callable[..., Any] | None = None,
    outputs: Sequence[str] = ("out",),
    dtypes: NamedDTypes | None = None,
    order: str = "elementwise",
    unit_axes: int | None = None,
    threads: int = 1,
    strided: bool = False,
    replace: bool = False,
) -> Any:
    """Makes an op of a function: composed of ops, of sources, or of a callback of the host.

    Without cpu, cuda and host, `fn` takes Values and makes its result of them; dumps say of each
    node that it is in the op. With one of them `fn` declares the op instead: it takes a Spec for
    each operand and returns a Spec, or a list of them, for the results. Its keyword-only
    parameters are the op's attributes: numbers and flags.

    Args:
        cpu: C++ source that defines `AICF_FN void run(const Args& args, int64_t unit)`.
        cuda: CUDA C++ source of the same function.
        host: takes a NumPy array for each operand and the attributes by name, returns the results.
        gradient: takes the gradient of each result, the operands, the results, and the attributes
            by name, all as Values; returns the gradient of each operand, None for zero.
        outputs: names of the results.
        dtypes: by operand, the dtypes that the op takes; any where it is not named.
        order: "elementwise", or in which order the author's sums add.
        unit_axes: a unit of work is a place along so many first axes of the first result; None =
            each element is one.
        threads: of a GPU's block that run a unit together; 1 = a thread has units of its own.
        strided: the sources take operands of any strides; else they get all in C order.
        replace: another op of this name gives way to it.

    Raises: GraphError for a name that is taken; what a compiler says of a source when a graph with
        the op is compiled; DeviceUnavailable where there is none.

    >>> twice = "AICF_FN void run(const Args& a, int64_t i) { a.out[i] = 2 * a.x[i]; }"
    >>> @aicf.custom_op(cpu=twice, cuda=twice, gradient=lambda dy, x, out: 2.0 * dy)
    ... def twice_of(x):
    ...     return x
    >>> twice_of(x).shape
    (4, 3)
    """
    if fn is None:
        given = {k: v for k, v in locals().items() if k != "fn"}
        return lambda one: custom_op(one, **given)
    if not callable(fn) or not hasattr(fn, "__name__"):
        raise GraphError(f"custom_op: fn is {fn!r}; need a function")
    if cpu is None and cuda is None and host is None:
        return _composed(fn, gradient)
    if host is not None and (cpu is not None or cuda is not None or not callable(host)):
        raise GraphError(
            f"custom_op {fn.__name__}: host is {host!r}, cpu {cpu!r:.40}, cuda {cuda!r:.40}; need "
            "a function, or sources"
        )
    options = {
        "cpu": cpu or "", "cuda": cuda or "", "host": host, "gradient": gradient,
        "outputs": list(outputs), "order": order, "unit_axes": unit_axes, "threads": threads,
        "strided": strided,
        "dtypes": {k: [v] if isinstance(v, str) else list(v) for k, v in (dtypes or {}).items()},
    }  # fmt: skip
    op = CustomOp(fn, options)
    _register(op, replace)
    return op


def _composed(fn: Callable[..., Any], gradient: Callable[..., Any] | None) -> Any:
    where = f"custom_op {fn.__name__}"

    def named(*values: Value, **attrs: Any) -> Any:
        g = _graph_of(where, values)
        with g._scope(fn.__name__):
            made = fn(*values, **attrs)
        for one in made if isinstance(made, (list, tuple)) else [made]:
            g._id(one, where)
        return made

    def with_gradient(*values: Value, **attrs: Any) -> Any:
        _graph_of(where, values)

        def both(*operands: Value) -> Any:
            out = named(*operands, **attrs)
            return out, lambda dy: gradient(dy, *operands, out, **attrs)  # type: ignore[misc]

        both.__name__ = fn.__name__
        return custom_gradient(both)(*values)

    call = named if gradient is None else with_gradient
    call.__name__, call.__doc__ = fn.__name__, fn.__doc__
    call.__wrapped__ = fn  # type: ignore[attr-defined]
    return call
