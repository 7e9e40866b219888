"""What an argument may be: annotations of the public functions, checked at every call.

A wrong kind of argument is a typed error that names function, argument and value. A call that
raises leaves the graph as it was.
"""

from __future__ import annotations

import enum
import functools
import inspect
import numbers
import operator
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ._core import DTypeError, Graph, GraphError, ShapeError

DTypeName: TypeAlias = str  # NumPy's name, or a dtype that prints as it
Path: TypeAlias = str | os.PathLike
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


def _dtype(x: Any) -> str:
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


def _value(x: Any) -> Any:
    from .graph import Value

    if not isinstance(x, Value):
        raise TypeError
    return x


def _operand(x: Any) -> Any:
    return x if isinstance(x, (bool, int, float)) else _value(x)


def _items(take: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def items(x: Any) -> list[Any]:
        if isinstance(x, (str, bytes, Mapping, Set)) or not isinstance(x, Iterable):
            raise TypeError
        if hasattr(x, "graph"):  # a Value, whose own refusal says less
            raise TypeError
        return [take(item) for item in x]

    return items


def _pair(x: Any) -> tuple[int, int]:
    before, after = _items(_int)(x)
    return before, after


def _values(x: Any) -> Any:
    if not isinstance(x, Mapping):
        raise TypeError
    return {_value(key): _value(value) for key, value in x.items()}


_KINDS = {
    "Value": _Kind("a Value", GraphError, _value),
    "Operand": _Kind("a Value or a Python number", GraphError, _operand),
    "int": _Kind("an int below 2**63", ShapeError, _int),
    "float": _Kind("a number", DTypeError, _float),
    "bool": _Kind("a bool", GraphError, _bool),
    "str": _Kind("a str that UTF-8 can hold", GraphError, _text),
    "OpKind": _Kind("a member of aicf.OpKind", GraphError, _member),
    "DTypeName": _Kind('a name such as "float32"', DTypeError, _dtype),
    "Path": _Kind("a path", GraphError, _path),
    "Callable[..., dict[str, Value]]": _Kind("a function", GraphError, _callable),
    "Sequence[int]": _Kind("a sequence of ints below 2**63", ShapeError, _items(_int)),
    "Sequence[Value]": _Kind("a sequence of Values", GraphError, _items(_value)),
    "Sequence[tuple[int, int]]": _Kind("a sequence of pairs of ints", ShapeError, _items(_pair)),
    "Mapping[Value, Value]": _Kind("a mapping of Value to Value", GraphError, _values),
}
# The function itself looks at these.
_UNCHECKED = {"Any", "Sequence[Any]", "Mapping[str, Any] | None"}


class _Argument:
    """The kinds that an annotation names, in its order."""

    def __init__(self, annotation: str) -> None:
        parts = annotation.split(" | ")
        self.optional = "None" in parts
        self.kinds = [_KINDS[part] for part in parts if part != "None"]

    def take(self, x: Any) -> Any:
        if x is None and self.optional:
            return None
        for kind in self.kinds[:-1]:
            try:
                return kind.take(x)
            except _MISFIT:
                pass
        return self.kinds[-1].take(x)

    def refusal(self, where: str, name: str, x: Any) -> Exception:
        needs = [kind.need for kind in self.kinds] + ["None"] * self.optional
        need = " or ".join([", ".join(needs[:-1])] * (len(needs) > 1) + needs[-1:])
        shown = reprlib.repr(x).encode("ascii", "backslashreplace").decode()
        return self.kinds[0].error(f"{where}: {name} is {shown} ({type(x).__name__}); need {need}")


def _argument(annotation: str) -> _Argument | None:
    return None if annotation in _UNCHECKED else _Argument(annotation)


def checked(fn: Function) -> Function:
    """`fn` with its arguments checked, and nothing appended to the graph by a call that raises."""
    owner, _, name = fn.__qualname__.rpartition(".")
    label = owner if name == "__init__" else name
    parameters = list(inspect.signature(fn).parameters.values())[1 if owner else 0 :]
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    arguments = {p.name: _argument(p.annotation) for p in plain}
    named = {p.name for p in plain if p.kind is not p.POSITIONAL_ONLY}
    order = [p.name for p in plain if p.kind is not p.KEYWORD_ONLY]

    def where(taken: dict[str, Any]) -> str:
        text = taken.get("name")
        return f'{label} "{text}"' if isinstance(text, str) and text.isprintable() else label

    def take(taken: dict[str, Any], name: str, x: Any) -> Any:
        argument = arguments.get(name)
        if argument is None:
            return x
        try:
            return argument.take(x)
        except _MISFIT:
            raise argument.refusal(where(taken), name, x) from None

    @functools.wraps(fn)
    def call(*args: Any, **given: Any) -> Any:
        me, rest = (args[:1], args[1:]) if owner else ((), args)
        taken = dict(zip(order, rest, strict=False))
        known = {**taken, **given}
        placed = [take(known, name, x) for name, x in taken.items()]
        placed += rest[len(taken) :]  # too many: Python says so
        given = {name: take(known, name, x) if name in named else x for name, x in given.items()}
        before = [(core, core.mark()) for core in _graphs((*me, *placed, *given.values()))]
        try:
            return fn(*me, *placed, **given)
        except BaseException:
            for core, mark in before:
                core.rollback(mark)
            raise

    return call  # type: ignore[return-value]


def _graphs(arguments: Iterable[Any]) -> list[Graph]:
    """Those of the Graph whose method is called and of the Values among its arguments."""
    found: list[Graph] = []
    for x in arguments:
        if isinstance(x, (list, dict)) and x:
            x = next(iter(x))
        core = getattr(getattr(x, "graph", x), "_core", None)
        if isinstance(core, Graph) and core not in found:
            found.append(core)
    return found
