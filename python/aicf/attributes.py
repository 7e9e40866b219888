"""What a function that is traced reads of modules' plain attributes, such as the p of a Dropout."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .value import Value

if TYPE_CHECKING:
    from .module import Module

# Containers in containers are looked at down to so many, and so many elements of them together;
# others are told by which they are.
_DEEPEST, _MOST = 16, 256


class Reads:
    """What is read and written while a function is traced."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], tuple[Module, str, Any]] = {}
        self.written: set[tuple[int, str]] = set()

    def attributes(self) -> list[Attribute]:
        """Those that the trace has of the caller, not of the modules' own work in it."""
        kept = (read for at, read in self.found.items() if at not in self.written)
        return [Attribute(*read) for read in kept if not isinstance(read[2], Value)]


class _Recording(threading.local):
    reads: Reads | None = None


recording = _Recording()


@contextlib.contextmanager
def recorded() -> Iterator[Reads]:
    """Keeps the attributes that modules are asked for inside, with what they were."""
    before, reads = recording.reads, Reads()
    recording.reads = reads
    try:
        yield reads
    finally:
        recording.reads = before


class Attribute:
    """An attribute of a module as it was when a function was traced."""

    def __init__(self, module: Module, key: str, value: Any) -> None:
        self._module, self._key, self._value = module, key, value
        self._known, self.in_place = _known(value)

    def same(self) -> bool:
        """Whether a trace of now would find the same."""
        own = vars(self._module)
        return self._key in own and _known(own[self._key])[0] == self._known

    def told(self) -> str:
        """What it is now, and what it was, in words."""
        where = ".".join(
            filter(None, [self._module._path() or type(self._module).__name__, self._key])
        )
        now = vars(self._module).get(self._key, "absent")
        return f"{where} is {now!r}, was {self._value!r}"


class _One:
    """An object that is equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _One) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _known(value: Any) -> tuple[Any, bool]:
    """What tells a value from others, and whether it may be changed in place."""
    return _looked_at(value, [_MOST], _DEEPEST)


def _looked_at(value: Any, left: list[int], depth: int) -> tuple[Any, bool]:
    """The same, of a container as long as `left` has room for its elements."""
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return (type(value), value), False
    if isinstance(value, (float, complex)):
        return (type(value), repr(value)), False  # which tells -0.0 from 0.0, and NaN is NaN
    container = isinstance(value, (tuple, list, dict, set, frozenset))
    if not container or len(value) > left[0] or not depth:
        return _One(value), False
    left[0] -= len(value)
    if isinstance(value, (set, frozenset)):
        return (type(value), {(type(one), one) for one in value}), isinstance(value, set)
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    found = [_looked_at(one, left, depth - 1) for one in parts]
    in_place = not isinstance(value, tuple) or any(changes for _, changes in found)
    return (type(value), [known for known, _ in found]), in_place
