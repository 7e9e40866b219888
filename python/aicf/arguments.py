"""What an argument may be: annotations of the public functions, checked at every call.

A wrong kind of argument is a typed error that names function, argument and value. A call that
raises leaves the graph as it was.
"""

from __future__ import annotations

import contextlib
import difflib
import enum
import functools
import inspect
import numbers
import operator
import os
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ._core import DTypeError, Graph, GraphError, ShapeError

DTypeName: TypeAlias = str  # NumPy's name, or a dtype that prints as it
Path: TypeAlias = str | os.PathLike
Spread: TypeAlias = "int | Sequence[int]"  # a call may give the ints one by one
Sizes: TypeAlias = "int | Sequence[int | None] | None"  # None = as it was
NamedDTypes: TypeAlias = Mapping[str, str | Sequence[str]]
Function = TypeVar("Function", bound=Callable[..., Any])


class _Kind(NamedTuple):
    need: str
    error: type[Exception]
    take: Callable[[Any], Any]  # the argument as functions use it; raises _MISFIT for other kinds


_MISFIT = (TypeError, ValueError, OverflowError)


def _int(x: Any) -> int:
    if isinstance(x, bool):
        raise TypeError
    number = operator.index(x)
    if not -(2**63) <= number < 2**63:
        raise OverflowError
    return number


def _float(x: Any) -> float:
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise TypeError
    return float(x)


def _text(x: Any) -> str:
    if not isinstance(x, str):
        raise TypeError
    x.encode()  # a lone surrogate has no UTF-8
    return x


def _bool(x: Any) -> bool:
    if type(x).__name__ not in ("bool", "bool_"):  # Python's and NumPy's
        raise TypeError
    return bool(x)


DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool", "int8", "int16",
)  # fmt: skip


def _dtype(x: Any) -> str:
    """Of a name, or of a type or dtype of NumPy, PyTorch or JAX."""
    for kind in (x, getattr(x, "dtype", None)):
        if isinstance(kind, (type, np.dtype)):
            with contextlib.suppress(TypeError):
                return _text(np.dtype(kind).name)
    return _text(str(x).removeprefix("torch."))


def _path(x: Any) -> Any:
    os.fsencode(x)
    path = os.fsdecode(x)
    if "\0" in path:
        raise ValueError
    return path


def _callable(x: Any) -> Any:
    if not callable(x):
        raise TypeError
    return x


def _member(x: Any) -> Any:
    if not isinstance(x, enum.Enum):
        raise TypeError
    return x


def _custom(x: Any) -> Any:
    if not hasattr(x, "_lowered"):
        raise TypeError
    return x


@functools.cache
def _value_class() -> type:
    from .graph import Value

    return Value


def _value(x: Any) -> Any:
    if not isinstance(x, _value_class()):
        raise TypeError
    return x


def _graph(x: Any) -> Any:
    from .graph import Graph

    if not isinstance(x, Graph):
        raise TypeError
    return x


def _operand(x: Any) -> Any:
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, (bool, int, float, np.ndarray)):
        return x
    return _value(x)


def _data(x: Any) -> Any:
    x = np.asarray(x) if isinstance(x, np.generic) else x
    return x if isinstance(x, np.ndarray) else _value(x)


def _items(take: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def items(x: Any) -> list[Any]:
        if isinstance(x, (str, bytes, Mapping, Set)) or not isinstance(x, Iterable):
            raise TypeError
        if hasattr(x, "graph"):  # a Value, whose own refusal says less
            raise TypeError
        return [take(item) for item in x]

    return items


def _spread(x: Any) -> list[int]:
    return _items(_int)(x) if isinstance(x, Iterable) else [_int(x)]


def _pair(x: Any) -> tuple[int, int]:
    before, after = _items(_int)(x)
    return before, after


def _size(x: Any) -> int | None:
    return None if x is None else _int(x)


def _sizes(x: Any) -> Any:
    return _items(_size)(x) if isinstance(x, Iterable) else _size(x)


def _named_dtypes(x: Any) -> Any:
    if not isinstance(x, Mapping):
        raise TypeError
    return {_text(k): _text(v) if isinstance(v, str) else _items(_text)(v) for k, v in x.items()}


def _values(x: Any) -> Any:
    if not isinstance(x, Mapping):
        raise TypeError
    return {_value(key): _value(value) for key, value in x.items()}


_KINDS = {
    "Value": _Kind("a Value", GraphError, _value),
    "Graph": _Kind("a Graph", GraphError, _graph),
    "Operand": _Kind("a Value, a number or a NumPy array", GraphError, _operand),
    "Data": _Kind("a Value or a NumPy array", GraphError, _data),
    "int": _Kind("an int below 2**63", ShapeError, _int),
    "float": _Kind("a number", DTypeError, _float),
    "bool": _Kind("a bool", GraphError, _bool),
    "str": _Kind("a str that UTF-8 can hold", GraphError, _text),
    "OpKind": _Kind("a member of aicf.OpKind", GraphError, _member),
    "CustomOp": _Kind("an op of custom_op", GraphError, _custom),
    "DTypeName": _Kind('a name such as "float32"', DTypeError, _dtype),
    "Path": _Kind("a path", GraphError, _path),
    "Callable[..., dict[str, Value]]": _Kind("a function", GraphError, _callable),
    "Callable[..., Value]": _Kind("a function", GraphError, _callable),
    "Callable[..., Any]": _Kind("a function", GraphError, _callable),
    "Sequence[str]": _Kind("a sequence of strs", GraphError, _items(_text)),
    "NamedDTypes": _Kind(
        "a mapping of names to dtypes or sequences of these", GraphError, _named_dtypes
    ),
    "Sequence[int]": _Kind("a sequence of ints below 2**63", ShapeError, _items(_int)),
    "Spread": _Kind("an int below 2**63 or a sequence of ints below 2**63", ShapeError, _spread),
    "Sizes": _Kind("an int below 2**63, None or a sequence of these", ShapeError, _sizes),
    "Sequence[float]": _Kind("a sequence of numbers", DTypeError, _items(_float)),
    "Sequence[Value]": _Kind("a sequence of Values", GraphError, _items(_value)),
    "Sequence[Sequence[int]]": _Kind(
        "a sequence of sequences of ints", ShapeError, _items(_items(_int))
    ),
    "Sequence[Sequence[float]]": _Kind(
        "a sequence of sequences of numbers", DTypeError, _items(_items(_float))
    ),
    "Sequence[tuple[int, int]]": _Kind("a sequence of pairs of ints", ShapeError, _items(_pair)),
    "Mapping[Value, Value]": _Kind("a mapping of Value to Value", GraphError, _values),
}
# The function itself looks at these.
_UNCHECKED = {"Any", "LossScale", "Sequence[Any]", "Mapping[str, Any] | None"}


class _Argument:
    """The kinds that an annotation names, in its order."""

    def __init__(self, annotation: str) -> None:
        parts = annotation.split(" | ")
        self.optional = "None" in parts
        self.kinds = [_KINDS[part] for part in parts if part != "None"]
        simple = len(self.kinds) == 1 and not self.optional
        self.take = self.kinds[0].take if simple else self._first

    def _first(self, x: Any) -> Any:
        if x is None and self.optional:
            return None
        for kind in self.kinds[:-1]:
            try:
                return kind.take(x)
            except _MISFIT:
                pass
        return self.kinds[-1].take(x)

    def refusal(self, where: str, name: str, x: Any) -> Exception:
        if isinstance(x, Same):
            return not_elements()
        needs = [kind.need for kind in self.kinds] + ["None"] * self.optional
        need = " or ".join([", ".join(needs[:-1])] * (len(needs) > 1) + needs[-1:])
        shown = reprlib.repr(x).encode("ascii", "backslashreplace").decode()
        return self.kinds[0].error(f"{where}: {name} is {shown} ({type(x).__name__}); need {need}")


# What other libraries call an argument.
_ELSEWHERE = {
    "dim": ("axis",),
    "dims": ("axis", "axes"),
    "keepdim": ("keepdims",),
    "input": ("x", "logits", "y", "a", "log_probabilities"),
    **dict.fromkeys(("unbiased", "ddof"), ("correction",)),
    **dict.fromkeys(("offset", "diagonal"), ("k",)),
    **{"query": ("q",), "key": ("k",), "value": ("v",), "p": ("ord",), "num_classes": ("classes",)},
    **{"min_val": ("min",), "max_val": ("max",), "input1": ("a",), "input2": ("b",)},
    "other": ("b", "y"),
    "weight": ("w",),
    "size": ("shape",),
    "cpu": ("numpy",),
    "detach": ("numpy",),
    "numel": ("size",),
    "learning_rate": ("lr",),
    "growth_factor": ("growth",),
    "backoff_factor": ("backoff",),
    "target": ("t", "labels"),
    "gpu": ("cuda",),
}


def is_it(unknown: Any, names: Iterable[str]) -> str:
    """' (is it "axis"?)' of the name that an unknown one most likely means, or ""."""
    if not isinstance(unknown, str):
        return ""
    known = list(names)
    said = [name for name in _ELSEWHERE.get(unknown, ()) if name in known]
    said = said or [name for name in known if name.lower() == unknown.lower()]
    said = said or [name for name in known if name.endswith(f".{unknown}")]
    near = said or difflib.get_close_matches(unknown, known, 1, 0.65)
    return f' (is it "{near[0]}"?)' if near else ""


def bound(
    where: str, signature: inspect.Signature, args: Sequence[Any], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments by name; TypeError in words of ours where they do not fit."""
    try:
        return signature.bind(*args, **named)
    except TypeError as error:
        said, known = str(error), signature.parameters
        takes = [name for name, p in known.items() if p.kind != p.POSITIONAL_ONLY]
        if unknown := [key for key in named if key not in takes]:
            said = f'there is no argument "{unknown[0]}"{is_it(unknown[0], takes)}'
        need = ", ".join(known) or "no arguments"
        raise TypeError(f"{where}: {said}; need {need} ({user_line()})") from None


_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def user_line() -> str:
    """file:line of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE)
        or frame.f_globals.get("__package__") == __package__  # what dataclasses make
    ):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def placed(error: Exception) -> Exception:
    """The error with the user's line behind its text, unless it has one."""
    if not hasattr(error, "source"):
        error.source = user_line()  # type: ignore[attr-defined]
        error.__init__(f"{error} ({error.source})")  # type: ignore[misc, attr-defined]
    return error


def named_after(label: str, error: Exception) -> None:
    """Puts the function that was called in front of what refuses inside of it."""
    told = getattr(error, "told", str(error))
    error.told = told  # type: ignore[attr-defined]
    of_another = re.match(r"(\w+): ", told)
    if of_another and of_another[1] != label and not label.startswith("_"):
        error.__init__(f"{label}: {told}")  # type: ignore[misc]


def not_elements() -> Exception:
    return placed(
        GraphError(
            "==: of Values it asks whether they are one; use aicf.equal(a, b) or "
            "aicf.not_equal(a, b) to compare elements"
        )
    )


class Same:
    """What `==` of two Values gives: true where they are one. No operand of anything."""

    __slots__ = ("same",)
    __array_ufunc__ = None

    def __init__(self, same: bool) -> None:
        self.same = same

    def __bool__(self) -> bool:
        return self.same

    def __repr__(self) -> str:
        return repr(self.same)

    def _refuse(self, *_: object) -> Any:
        raise not_elements()

    __and__ = __or__ = __xor__ = __rand__ = __ror__ = __rxor__ = __invert__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __matmul__ = __neg__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __rmatmul__ = _refuse
    __float__ = __int__ = __getitem__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_elements()


def checked(fn: Function) -> Function:
    """`fn` with its arguments checked, and nothing appended to the graph by a call that raises."""
    owner, _, name = fn.__qualname__.rpartition(".")
    own_label = owner if name == "__init__" else name
    private = owner.startswith("_")
    parameters = inspect.signature(fn).parameters.values()
    plain = [
        p
        for i, p in enumerate(parameters)
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and not (owner and i == 0)
    ]
    places = {p.name: i + bool(owner) for i, p in enumerate(plain) if p.kind != p.KEYWORD_ONLY}
    arguments = {p.name: _Argument(p.annotation) for p in plain if p.annotation not in _UNCHECKED}
    by_place = [(i, key, arguments[key].take) for key, i in places.items() if key in arguments]
    by_name = {p.name for p in plain if p.kind != p.POSITIONAL_ONLY} & arguments.keys()
    names = [p.name for p in plain if p.kind != p.POSITIONAL_ONLY]
    accepted = None if any(p.kind == p.VAR_KEYWORD for p in parameters) else set(names)
    any_count = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    most = bool(owner) + len(places)  # arguments by place
    last = next((p for p in reversed(plain) if p.name in places), None)
    spreads = last is not None and last.annotation == "Spread"
    sizes = last is not None and re.search("Sequence|Spread|Sizes", last.annotation)
    one_tuple = f" (one tuple for {last.name})" if last is not None and sizes else ""
    builds = owner != "Step" and not any("Path" in str(p.annotation) for p in plain)
    carriers = [p.name for p in plain if re.search("Value|Operand|Data", p.annotation)]
    data = [p.name for p in plain if "Data" in p.annotation]
    bare = not (owner or carriers or data)
    # What a function of the user's raises is told as it is.
    runs = any("Callable" in str(p.annotation) for p in plain)

    def given_as(key: str, args: Sequence[Any], named: dict[str, Any]) -> Any:
        at = places.get(key, len(args))
        return args[at] if at < len(args) else named.get(key)

    @functools.wraps(fn)
    def call(*args: Any, **named: Any) -> Any:
        label = _public(args[0]) if private and args else own_label
        if accepted is not None and not named.keys() <= accepted:
            unknown = next(key for key in named if key not in accepted)
            raise TypeError(
                f"{label}: there is no argument {unknown!r}{is_it(unknown, names)}; "
                f"need {', '.join(names)} ({user_line()})"
            )
        if len(args) > most and not any_count:
            ints = args[most - 1 :]
            if not spreads or not all(hasattr(x, "__index__") for x in ints):
                raise TypeError(
                    f"{label}: got {len(args) - bool(owner)} arguments by place; need "
                    f"{', '.join(names)}{one_tuple} "
                    f"({user_line()})"
                )
            args = (*args[: most - 1], ints)
        taken, key = list(args), ""
        try:
            for i, key, take in by_place:  # noqa: B007 (names the misfit)
                if i < len(args):
                    taken[i] = take(args[i])
            for key in named:
                if key in by_name:
                    named[key] = arguments[key].take(named[key])
        except _MISFIT:
            text, where = given_as("name", args, named), label
            if "name" in arguments and isinstance(text, str) and text.isprintable():
                where = f'{label} "{text}"'
            error = arguments[key].refusal(where, key, given_as(key, args, named))
            raise (placed(error) if builds else error) from None
        if bare:  # it appends to no graph
            try:
                return fn(*taken, **named)
            except (GraphError, ShapeError, DTypeError) as error:
                if builds:
                    placed(error)
                raise
        owners = [*taken[: bool(owner)], *(given_as(key, taken, named) for key in carriers)]
        arrays = [key for key in data if isinstance(given_as(key, taken, named), np.ndarray)]
        graphs = _graphs(owners) or ([_current_graph(label)] if arrays else [])
        before = [(graph, graph._mark()) for graph in graphs]
        try:
            for key in arrays:
                made = _constant_of(label, graphs[0], given_as(key, taken, named), owners)
                if places.get(key, len(taken)) < len(taken):
                    taken[places[key]] = made
                else:
                    named[key] = made
            return fn(*taken, **named)
        except BaseException as error:
            for graph, mark in before:
                graph._rollback(mark)
            if builds and isinstance(error, (GraphError, ShapeError, DTypeError)):
                placed(error)
                if not runs:
                    named_after(label, error)
            raise

    return call  # type: ignore[return-value]


def _public(one: Any) -> str:
    """The name of the class that its user knows."""
    kinds = (kind.__name__ for kind in type(one).__mro__)
    return next(name for name in kinds if not name.startswith("_"))


def _current_graph(label: str) -> Any:
    """That of the module or function that runs, for a call without a Value."""
    from .module import _frames

    if not _frames():
        raise placed(
            GraphError(
                f"{label}: got arrays and no Value; need a Value, or a call inside of an "
                "aicf.function"
            )
        )
    return _frames()[-1].graph


def _constant_of(label: str, graph: Any, array: np.ndarray, owners: list[Any]) -> Any:
    """The constant that an array stands for; float64 takes the dtype of the first float Value."""
    from .graph import Value, is_float
    from .operands import _constant

    floats = [x.dtype for x in owners if isinstance(x, Value) and is_float(x)]
    return _constant(label, graph, array, floats[0] if floats else "float32")


def _graphs(owners: list[Any]) -> list[Any]:
    """Those of a Graph, of Values and of lists of them."""
    found: list[Any] = []
    for x in owners:
        if isinstance(x, (list, dict)) and x:
            x = next(iter(x))
        graph = getattr(x, "graph", x)
        if isinstance(getattr(graph, "_core", None), Graph) and graph not in found:
            found.append(graph)
    return found
