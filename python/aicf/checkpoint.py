"""Checkpoints: what params and states hold, in a file or a mapping, of one step or several."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import Path, checked, is_it
from .files import shown
from .serialize import TensorFile, Types, listed, write_tensors

if TYPE_CHECKING:
    from .step import Step

__all__ = ["Checkpoint", "Loaded", "load", "save"]

Names: TypeAlias = "str | Iterable[str] | None"  # patterns, or the leaves of a step
_MOST_MESSAGE = 1900  # characters of what does not fit

Place: TypeAlias = "tuple[Any, str]"  # of a Step, or of contents that none has: a leaf


class Loaded(NamedTuple):
    """What a load did: the names it wrote, those that the source lacks, those that only it has."""

    names: tuple[str, ...]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]


class Checkpoint(Mapping[str, np.ndarray]):
    """The tensors of a file by name, read where they are looked at, and its metadata.

    The file is mapped into memory: one that another program shortens meanwhile ends the process.
    What `save` writes never changes; it is replaced.

    Args:
        path: a file of safetensors, of whatever program.

    Raises: FormatError for what is no whole safetensors file; OSError with the path.

    >>> step.save("step.safetensors", metadata={"epoch": 3})
    >>> aicf.Checkpoint("step.safetensors").metadata
    {'epoch': 3}
    """

    @checked
    def __init__(self, path: Path) -> None:
        with TensorFile(path, "Checkpoint") as file:
            self._file = file

    @property
    def metadata(self) -> dict[str, Any]:
        """What `save` was given; of a file of other programs the texts it holds."""
        return self._file.metadata()

    def __getitem__(self, name: str) -> np.ndarray:
        """A read-only view of the file; of a bfloat16 a copy as float32, which is exact."""
        if name not in self:
            near = difflib.get_close_matches(str(name), list(self), 1)
            said = f" (is it {shown(near[0])}?)" if near else ""
            raise GraphError(
                f"{self._file.where}: there is no {shown(str(name))}{said}; need one of its "
                f"{len(self)} names"
            )
        dtype, shape = self._file.type(name)
        found = self._file.content(name)
        if dtype != "bfloat16":
            return found
        bits = np.frombuffer(found, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor, or `default` where there is none."""
        return self[name] if name in self else default

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._file.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.names())

    def __len__(self) -> int:
        return len(self._file.names())

    def __repr__(self) -> str:
        size = sum(math.prod(shape) for _, shape in map(self._file.type, self))
        return f"aicf.Checkpoint({len(self)} tensors, {size} elements)"


@checked
def save(path: Path, *parts: Any, metadata: Mapping[str, Any] | None = None) -> None:
    """Writes what several steps hold as one file of safetensors, replaced whole.

    Args:
        parts: Steps, functions and modules, or what `step.params` and `step.state` give; those that
            share storage write it once. A module's names are those that its params have in graphs:
            the keys of its `state_dict`, behind its `name=` if it has one. A mapping puts its key
            and a point before the names of what it maps to.
        metadata: texts, or what JSON holds, by name; `aicf.Checkpoint(path).metadata` reads it.

    Raises: GraphError where two parts have a name with storage of their own; OSError with the path;
    FormatError where it is no regular file.

    >>> aicf.save("both.safetensors", step, {"first": step.params})
    """
    write(path, places("save", parts), metadata)


@checked
def load(
    path: Path, *parts: Any, strict: bool = True, only: Any = None, skip: Any = None
) -> Loaded:
    """Reads what `save` wrote for the same parts, as `Step.load` does for one step.

    >>> aicf.save("params.safetensors", step.params)
    >>> aicf.load("params.safetensors", step.params).missing
    ()
    """
    return read(path, places("load", parts), strict, only, skip)


# ---- which names


def places(where: str, parts: Iterable[Any]) -> dict[str, Place]:
    """The params and states of parts, by their names in a file; each storage once."""
    from .function import Kept
    from .module import Module
    from .parameters import AtHome
    from .step import Leaves, Step

    found: dict[str, Place] = {}

    def put(name: str, place: Place) -> None:
        known = found.setdefault(name, place)
        if known[0]._storage(known[1]) != place[0]._storage(place[1]):
            raise GraphError(
                f"{where}: two parts have {shown(name)} with storage of their own; need names, as "
                "in {'a': step, 'b': another}, or steps that share it"
            )

    def take(part: Any, prefix: str) -> None:
        if isinstance(part, Step):
            take(part.params, prefix)
            take(part.state, prefix)
        elif isinstance(part, Leaves):
            for name in part:
                put(prefix + name, (part._step, name))
        elif isinstance(part, Module):
            path = part._path()
            for key, held in part._kept().items():
                name = f"{path}.{key}" if path else key
                put(prefix + name, held._step or (AtHome({name: held}), name))
        elif isinstance(part, Kept):
            take(part._kept(), prefix)
        elif isinstance(part, Mapping):
            for key, one in part.items():
                if not isinstance(key, str):
                    raise GraphError(f"{where}: a part has the name {key!r}; need a str")
                take(one, f"{prefix}{key}.")
        else:
            raise GraphError(
                f"{where}: a part is {part!r}; need Steps, functions, modules, what a step's "
                "params or state give, or a mapping of names to these"
            )

    for part in parts:
        take(part, "")
    return found


def select(where: str, known: Iterable[str], only: Names, skip: Names) -> set[str]:
    """The names that `only` says and `skip` does not: patterns, or leaves, whose names they are."""
    known = list(known)
    chosen = set(known) if only is None else _matched(where, "only", known, only)
    return chosen - (set() if skip is None else _matched(where, "skip", known, skip))


def _matched(where: str, what: str, known: Sequence[str], asked: Any) -> set[str]:
    from .step import Leaves

    if isinstance(asked, Leaves):
        return set(asked) & set(known)
    patterns = [asked] if isinstance(asked, str) or not isinstance(asked, Iterable) else list(asked)
    if not all(isinstance(one, str) for one in patterns):
        raise GraphError(
            f'{where}: {what} is {asked!r}; need patterns of names, as "block.*", or leaves of a '
            "step"
        )
    found: set[str] = set()
    for pattern in patterns:
        fits = {name for name in known if name == pattern or fnmatch.fnmatchcase(name, pattern)}
        if not fits:
            raise GraphError(
                f"{where}: {what} has {shown(pattern)}, which no name fits"
                f"{is_it(pattern, known)}; need some of {listed(known, 5)}"
            )
        found |= fits
    return found


# ---- what fits


def fitting(
    where: str,
    wanted: Types,
    given: Collection[str],
    type_of: Callable[[str], tuple[str, tuple[int, ...]]],
    strict: bool,
    only: Names,
    skip: Names,
) -> Loaded:
    """Which names to write; every name, shape and dtype that does not fit is in one message.

    Raises: GraphError where names differ and `strict` says that they may not; DTypeError and
    ShapeError where a name is on both sides.
    """
    more = [name for name in given if name not in wanted]
    mine = set(wanted)
    if only is not None or skip is not None:
        mine = select(where, [*wanted, *more], only, skip)
        more = [name for name in more if name in mine]
    missing = [name for name in wanted if name in mine and name not in given]
    names = [name for name in wanted if name in mine and name in given]
    wrong: list[str] = []
    error: type[Exception] | None = None
    if strict and (missing or more):
        error = GraphError
        need = listed([name for name in wanted if name in mine], 5)
        wrong.append(
            f"missing {_near(missing, more)}, unknown {listed(more, 5)}; need exactly {need}"
        )
    for name in names:
        for kind, is_, wants in zip(
            (DTypeError, ShapeError), type_of(name), wanted[name], strict=True
        ):
            if is_ != wants:
                error = error or kind
                what = "is" if kind is DTypeError else "has shape"
                wrong.append(f"{shown(name)} {what} {is_}; need {wants}")
    if error is not None:
        raise error(f"{where}: {_joined(wrong)}")
    return Loaded(tuple(names), tuple(missing), tuple(more))


def _near(missing: Sequence[str], more: Sequence[str]) -> str:
    """Missing names, each with the unknown one that is most like it."""
    said = ", ".join(f"{shown(name)}{is_it(name, more)}" for name in missing[:5])
    return f"[{said}{f', and {len(missing) - 5} more' if len(missing) > 5 else ''}]"


def _joined(wrong: Sequence[str]) -> str:
    """As many as a message holds, the first at least."""
    count, size = 1, len(wrong[0])
    while count < len(wrong) and size + len(wrong[count]) < _MOST_MESSAGE:
        size += len(wrong[count]) + 2
        count += 1
    rest = len(wrong) - count
    return ". ".join(wrong[:count]) + (f". And {rest} more" if rest else "")


# ---- writing and reading


def _types(at: Mapping[str, Place]) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = {}
    for name, (step, own) in at.items():
        array = step._array(own)
        found[name] = array.dtype, array.shape
    return found


def _by_step(at: Mapping[str, Place], names: Iterable[str]) -> list[tuple[Step, dict[str, str]]]:
    """Of each step the names in a file, with its own."""
    steps: dict[int, tuple[Step, dict[str, str]]] = {}
    for name in names:
        step, own = at[name]
        steps.setdefault(id(step), (step, {}))[1][name] = own
    return list(steps.values())


def write(path: Path, at: Mapping[str, Place], metadata: Mapping[str, Any] | None) -> None:
    """The tensors of one step are those of one moment."""
    types = _types(at)
    arrays: dict[str, Any] = {}
    for step, names in _by_step(at, at):
        arrays.update(zip(names, step._read_all(list(names.values())), strict=True))

    def content(name: str) -> np.ndarray:
        values = arrays.pop(name).numpy()
        if types[name][0] == "bfloat16":
            values = (values.view(np.uint32) >> 16).astype(np.uint16)
        return values

    write_tensors(path, types, content, metadata)


def read(path: Path, at: Mapping[str, Place], strict: bool, only: Names, skip: Names) -> Loaded:
    """Nothing is written unless all of it fits."""
    with TensorFile(path, "load") as file:
        found = fitting(file.where, _types(at), file.names(), file.type, strict, only, skip)
        contents = {name: file.content(name) for name in found.names}
        file.check_unchanged()
        for step, names in _by_step(at, found.names):
            step._write_all({own: contents[name] for name, own in names.items()})
        file.check_unchanged()
    return found
