"""What compile(share=) takes over, what begins anew, and what of it would go unnoticed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._core import Graph, GraphError
from .arguments import is_it
from .files import shown
from .serialize import listed

if TYPE_CHECKING:
    from .step import Step


class Sharing(NamedTuple):
    """The params and states of a step: those of other steps, and those that are its own."""

    shared: tuple[str, ...]
    fresh: tuple[str, ...]


def sharing_of(names: Sequence[str], others: Iterable[Step], homes: Iterable[str] = ()) -> Sharing:
    """Params and states are shared by their names; those of `homes` are in any case."""
    theirs = {name for other in others for name in (*other.params, *other.state)}
    theirs.update(homes)
    return Sharing(
        tuple(name for name in names if name in theirs),
        tuple(name for name in names if name not in theirs),
    )


def share_leaves(
    core: Graph, others: Sequence[Step], homes: Sequence[str], given: Iterable[str], fresh: Any
) -> Sharing:
    """What a graph shares with steps; `homes` are the names of modules whose content a step has,
    `given` those that `params=` fills.

    Raises: GraphError for a name that is almost one of theirs, and for a number that they ignore.
    """
    patterns = [fresh] if isinstance(fresh, str) else fresh
    if not isinstance(patterns, Sequence) or not all(isinstance(one, str) for one in patterns):
        raise GraphError(f"compile: fresh is {fresh!r}; need patterns of names")
    leaves = {core.value_name(id): id for role in ("param", "state") for id in core.leaves(role)}
    found = sharing_of(list(leaves), others, homes)
    if others:
        _check_names(core, leaves, found.fresh, others, patterns)
        check_some("compile", found.fresh, list(leaves), others, patterns)
        _check_numbers(core, leaves, set(found.shared) - {*given, *homes}, others)
    return found


def check_some(
    where: str,
    fresh: Sequence[str],
    names: Sequence[str],
    others: Sequence[Step],
    patterns: Sequence[str] = (),
) -> None:
    """Refuses a share= that gives none of the params and states, while some begin anew."""
    theirs = {name: None for other in others for name in (*other.params, *other.state)}
    anew = _not_of(fresh, patterns)
    if not others or not anew or any(name in theirs for name in names):
        return
    near = next((said for name in anew if (said := is_it(name, theirs))), "")
    need = "a name that both have" + (', or fresh="*" to begin anew' * (where == "compile"))
    raise GraphError(
        f"{where}: share= has none of {listed(anew, 4)}{near}; it has {listed(theirs, 4)}; "
        f"need {need}"
    )


def _not_of(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that no pattern stands for."""
    return [
        name
        for name in names
        if name not in patterns and not any(fnmatch.fnmatchcase(name, one) for one in patterns)
    ]


# ---- names that almost are another's


def _check_names(
    core: Graph,
    leaves: dict[str, int],
    fresh: Sequence[str],
    others: Sequence[Step],
    patterns: Sequence[str],
) -> None:
    names = _not_of(fresh, patterns)
    if not names:
        return
    near: list[tuple[str, str]] = []
    alike: dict[Any, list[str]] = {}
    for other in others:
        for name in (*other.params, *other.state):
            if name not in leaves:
                array = other._array(name)
                alike.setdefault((array.shape, array.dtype, _digits(name)), []).append(name)
    for name in names:
        id = leaves[name]
        found = alike.get((core.shape(id), core.dtype(id), _digits(name)), [])
        near += [(name, one) for one in found if _almost(name, one)][:1]
    if near:
        (name, one), rest = near[0], f", and {len(near) - 1} more so" if near[1:] else ""
        raise GraphError(
            f"compile: {shown(name)} is in no step of share=, which has {shown(one)} that this "
            f"graph has not{rest}; need one name for both, or fresh=({shown(name)},) to begin anew"
        )


def _digits(name: str) -> tuple[str, ...]:
    """Numbers tell layers apart, so they are never a slip of the pen."""
    return tuple(re.findall(r"\d+", name))


def _almost(name: str, other: str) -> bool:
    """Whether two names, part by part, differ in marks, case or few letters of a long part."""
    if _plain(name) == _plain(other):
        return True
    parts, theirs = name.split("."), other.split(".")
    return len(parts) == len(theirs) and all(map(_near, map(_plain, parts), map(_plain, theirs)))


def _plain(text: str) -> str:
    return re.sub(r"[^0-9a-z]", "", text.casefold())


def _near(a: str, b: str) -> bool:
    """Whether one letter is left out, two neighbours are exchanged, or a letter inside of a word is
    another one; at its ends that is meant, as in head_a and head_b, lower and tower."""
    if a == b:
        return True
    short, long = sorted((a, b), key=len)
    if len(short) < 4:
        return False
    if len(a) == len(b) and len(a) > 5 and a[0] == b[0] and a[-1] == b[-1]:
        if sum(x != y for x, y in zip(a, b, strict=True)) == 1:
            return True
    if len(short) < len(long):
        return any(long[:i] + long[i + 1 :] == short for i in range(len(long)))
    turned = (a[:i] + a[i + 1] + a[i] + a[i + 2 :] for i in range(len(a) - 1))
    return len(a) == len(b) and b in turned


# ---- numbers that are others there


def _check_numbers(
    core: Graph, leaves: dict[str, int], shared: Iterable[str], others: Sequence[Step]
) -> None:
    """Those of optimizers: states of rank 0 that are only read, with an initial value that is said.

    Equal is what a step began with, and what it holds now by `set`.
    """
    for name in sorted(shared):
        id = leaves[name]
        number = core.initial_number(id, True)
        if number is None or core.shape(id) or core.assigned(id) >= 0 or core.role(id) != "state":
            continue
        other = next(other for other in others if name in other.state)
        now = float(other._array(name))
        known = [now, *_began(other, name)]
        if all(number != one and _rounded(number, core.dtype(id)) != one for one in known):
            raise GraphError(
                f"compile: {shown(name)} is {number} here and {now} in the step of share=, "
                f"whose storage it would use; need equal numbers, params={{{shown(name)}: "
                f"{number}}} to set it for both, or another name="
            )


def _began(step: Step, name: str) -> list[float]:
    if step._graph is None:  # from a file
        return []
    id = step._graph.find(name)
    found = step._graph.initial_number(id) if id >= 0 else None
    return [] if found is None else [found]


def _rounded(number: float, dtype: str) -> float:
    import numpy as np

    return float(np.dtype(dtype).type(number)) if dtype != "bfloat16" else number
