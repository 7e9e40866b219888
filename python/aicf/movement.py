"""Functions that move elements without computing: shapes, axes, slices, joins."""

from __future__ import annotations

import builtins
import math
import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._core import GraphError, ShapeError
from .arguments import Spread, checked
from .graph import Data, Value
from .operands import _emit

__all__ = [
    "broadcast_to",
    "concat",
    "detach",
    "expand_dims",
    "flatten",
    "pad",
    "permute",
    "reshape",
    "slice",
    "split",
    "squeeze",
    "stack",
    "take",
    "transpose",
]


def _axis(where: str, x: Value, axis: int, new: int = 0) -> int:
    """`axis` in [0, rank); a function that adds an axis counts it in by new=1."""
    rank = x.ndim + new
    if not -rank <= axis < rank:
        need = f"[{-rank}, {rank})" if rank else "rank >= 1: it has no axes"
        raise ShapeError(f"{where}: axis {axis} of {x!r}; need {need}")
    return axis % rank


def _axes(x: Value, axis: int | Sequence[int] | None) -> list[int]:
    if axis is None:
        return list(range(x.ndim))
    return [axis] if isinstance(axis, int) else list(axis)


def reshape(x: Value, shape: Spread) -> Value:
    """The same elements in C order under another shape, a tuple or ints; one size may be −1.

    Raises: ShapeError when the element counts differ.

    >>> aicf.reshape(x, (2, -1)).shape
    (2, 6)
    """
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if sizes.count(-1) > 1:
        raise ShapeError(f"reshape: shape is {sizes}, of {x!r}; need one -1 at most")
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        count = math.prod(x.shape)
        if rest <= 0 or count % rest:
            raise ShapeError(
                f"reshape: {x!r} has {count} elements, shape is {sizes}; "
                "need sizes whose product divides them"
            )
        sizes[sizes.index(-1)] = count // rest
    return _emit("Reshape", "reshape", x, shape=sizes)


def permute(x: Value, axes: Spread) -> Value:
    """Axes in another order, a tuple or ints: result.shape[i] == x.shape[axes[i]].

    >>> aicf.permute(x, (1, 0)).shape
    (3, 4)
    """
    rank = x.ndim
    wanted = [axes] if isinstance(axes, int) else axes
    order = [axis + rank if -rank <= axis < 0 else axis for axis in wanted]
    return _emit("Transpose", "permute", x, axes=order)


def transpose(x: Value, dim0: int = -2, dim1: int = -1) -> Value:
    """Two axes exchanged, by default the last two.

    >>> aicf.transpose(x).shape
    (3, 4)
    """
    dim0, dim1 = _axis("transpose", x, dim0), _axis("transpose", x, dim1)
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _emit("Transpose", "transpose", x, axes=order)


def broadcast_to(x: Value, shape: Spread) -> Value:
    """x repeated along axes of size 1 and new leading axes, without copying.

    >>> aicf.broadcast_to(x, (2, 4, 3)).shape
    (2, 4, 3)
    """
    return _emit("BroadcastTo", "broadcast_to", x, shape=shape)


def slice(
    x: Value, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None
) -> Value:
    """x[start:stop:step], a bound for each axis, with Python's rules for negative and large ones.

    Raises: ShapeError unless start, stop and step have a number for each axis, and no step is 0.

    >>> aicf.slice(x, (0, -1), (4, 3), (2, 1)).shape
    (2, 1)
    """
    steps = [1] * x.ndim if step is None else step
    if not len(start) == len(stop) == len(steps) == x.ndim:
        raise ShapeError(
            f"slice: start {start}, stop {stop}, step {step} of {x!r}; need {x.ndim} numbers each"
        )
    return _index(x, tuple(map(builtins.slice, start, stop, steps)))


@checked
def _index(x: Value, key: Any) -> Value:
    """Basic indexing: ints, slices, `...` and None, as NumPy's."""
    rank = x.ndim
    keys = list(key) if isinstance(key, tuple) else [key]
    taken = builtins.sum(k is not None and k is not Ellipsis for k in keys)
    if taken > rank or builtins.sum(k is Ellipsis for k in keys) > 1:
        raise ShapeError(
            f"index: {reprlib.repr(key)} of {x!r}; need at most {rank} indices and one ..."
        )
    if not builtins.any(k is Ellipsis for k in keys):
        keys.append(Ellipsis)
    at = next(i for i, k in enumerate(keys) if k is Ellipsis)
    keys[at : at + 1] = [builtins.slice(None)] * (rank - taken)
    starts, sizes, steps, shape = [], [], [], []
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        extent = x.shape[axis]
        try:
            if isinstance(k, builtins.slice):
                begin, end, stride = k.indices(extent)
            elif isinstance(k, builtins.bool):
                raise TypeError
            else:
                begin, end, stride = operator.index(k), -1, 0
        except (TypeError, ValueError):
            raise GraphError(
                f"index: got {reprlib.repr(k)} for axis {axis} of {x!r}; need ints, slices of ints "
                "with a step that is not 0, ..., None, or arrays, lists or Values of ints"
            ) from None
        if isinstance(k, builtins.slice):
            count = len(range(begin, end, stride))
            shape.append(count)
        else:
            count, stride = 1, 1
            if not -extent <= begin < extent:
                raise ShapeError(
                    f"index: {begin} on axis {axis} of {x!r}; need [{-extent}, {extent})"
                )
            begin %= extent
        starts.append(begin if count else 0)
        sizes.append(count)
        steps.append(stride)
        axis += 1
    if sizes != list(x.shape) or builtins.any(step != 1 for step in steps):
        x = _emit("Slice", "index", x, start=starts, size=sizes, step=steps)
    return x if list(x.shape) == shape else reshape(x, shape)


def concat(xs: Sequence[Value], axis: int = 0) -> Value:
    """Values joined along an axis; all other sizes equal.

    >>> aicf.concat([x, y], axis=1).shape
    (4, 6)
    """
    if not xs:
        raise GraphError("concat: got no values; need at least one")
    parts, axis = list(xs), _axis("concat", xs[0], axis)
    while len(parts) > 16:  # an argument block holds so many operands
        parts = [concat(parts[i : i + 16], axis) for i in range(0, len(parts), 16)]
    return parts[0] if len(parts) == 1 else _emit("Concat", "concat", *parts, axis=axis)


def stack(xs: Sequence[Value], axis: int = 0) -> Value:
    """Values of one shape joined along a new axis.

    >>> aicf.stack([x, y]).shape
    (2, 4, 3)
    """
    if not xs:
        raise GraphError("stack: got no values; need at least one")
    other = next((x for x in xs if x.shape != xs[0].shape), None)
    if other is not None:
        raise ShapeError(f"stack: shapes differ: {xs[0]!r}, {other!r}; need equal shapes")
    at = _axis("stack", xs[0], axis, new=1)
    return concat([expand_dims(x, at) for x in xs], at)


def split(x: Value, sections: int | Sequence[int], axis: int = 0) -> list[Value]:
    """x cut along an axis: into `sections` equal parts, or into parts of the given sizes.

    >>> [part.shape for part in aicf.split(x, [1, 3])]
    [(1, 3), (3, 3)]
    """
    axis = _axis("split", x, axis)
    extent = x.shape[axis]
    if isinstance(sections, int):
        if not 0 < sections <= (extent or 1 << 16) or extent % sections:
            raise ShapeError(f"split: {sections} sections of {x!r}; need a divisor of {extent}")
        sections = [extent // sections] * sections
    if builtins.sum(sections) != extent or builtins.min(sections, default=0) < 0:
        raise ShapeError(f"split: sizes {list(sections)} of {x!r}; need a sum of {extent}")
    parts, at = [], 0
    for size in sections:
        keys = [builtins.slice(None)] * axis + [builtins.slice(at, at + size)]
        parts.append(_index(x, tuple(keys)))
        at += size
    return parts


def expand_dims(x: Value, axis: int) -> Value:
    """x with a new axis of size 1 at `axis`.

    >>> aicf.expand_dims(x, 1).shape
    (4, 1, 3)
    """
    shape = list(x.shape)
    shape.insert(_axis("expand_dims", x, axis, new=1), 1)
    return reshape(x, shape)


def squeeze(x: Value, axis: int | Sequence[int] | None = None) -> Value:
    """x without the given axes of size 1 (None = all of size 1).

    >>> aicf.squeeze(x[:1]).shape
    (3,)
    """
    drop = [_axis("squeeze", x, a) for a in _axes(x, axis)]
    if axis is None:
        drop = [a for a in drop if x.shape[a] == 1]
    if len(set(drop)) < len(drop) or builtins.any(x.shape[a] != 1 for a in drop):
        raise ShapeError(f"squeeze: axes {axis} of {x!r}; need axes of size 1, each once")
    return reshape(x, [size for a, size in enumerate(x.shape) if a not in drop])


def flatten(x: Value, start_axis: int = 0) -> Value:
    """The axes from `start_axis` on as one.

    >>> aicf.flatten(x).shape
    (12,)
    """
    rank = x.ndim
    if not -rank <= start_axis <= rank:
        raise ShapeError(f"flatten: start_axis {start_axis} of {x!r}; need [{-rank}, {rank}]")
    start_axis += rank if start_axis < 0 else 0
    return reshape(x, [*x.shape[:start_axis], math.prod(x.shape[start_axis:])])


def pad(
    x: Value, widths: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant"
) -> Value:
    """x with `widths[axis] = (before, after)` elements around it; a negative width crops.

    Args:
        value: of the elements where mode is "constant".
        mode: or "edge" ("replicate"), the element at the edge; "reflect", x mirrored at its first
            and last element; "symmetric", at its edges; "wrap" ("circular"), what is left of x
            again.

    >>> aicf.pad(x, [(0, 0), (1, 2)]).shape
    (4, 6)
    >>> aicf.pad(x, [(0, 0), (-1, 2)], mode="reflect").shape
    (4, 4)
    """
    rank = x.ndim
    if len(widths) != rank:
        raise ShapeError(f"pad: widths {widths} of {x!r}; need {rank} pairs (before, after)")
    shape = [size + a + b for size, (a, b) in zip(x.shape, widths, strict=True)]
    if builtins.any(size < 0 for size in shape):
        raise ShapeError(f"pad: widths {widths} of {x!r}; need a result of sizes >= 0")
    if mode != "constant" and mode not in _BEHIND:
        raise GraphError(f'pad: mode is {mode!r}; need "constant" or one of {list(_BEHIND)}')
    if mode != "constant":
        for axis, (before, after) in enumerate(widths):
            if before or after:
                x = _repeated(x, axis, before, after, mode)
        return x
    start, keys = [], []
    for size, (before, after), whole in zip(x.shape, widths, shape, strict=True):
        first, end = _kept(size, before, after)
        keys.append(builtins.slice(first, end))
        start.append(builtins.min(builtins.max(before, 0), whole))
    if builtins.any(before < 0 or after < 0 for before, after in widths):
        x = _index(x, tuple(keys))
        if list(x.shape) == shape:
            return x
    return _emit("Pad", "pad", x, shape=shape, start=start, step=[1] * rank, value=value)


def _kept(size: int, before: int, after: int) -> tuple[int, int]:
    """What negative widths leave of an axis."""
    first = builtins.min(builtins.max(-before, 0), size)
    return first, builtins.max(first, size - builtins.max(-after, 0))


# Where the element at place i of an axis of n stands when i is no place of it.
_BEHIND: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "edge": lambda i, n: np.clip(i, 0, n - 1),
    "reflect": lambda i, n: n - 1 - abs(i % builtins.max(2 * n - 2, 1) - (n - 1)),
    "symmetric": lambda i, n: np.minimum(i % (2 * n), 2 * n - 1 - i % (2 * n)),
    "wrap": lambda i, n: i % n,
}
_BEHIND |= {"replicate": _BEHIND["edge"], "circular": _BEHIND["wrap"]}


def _repeated(x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    size, first, end = x.shape[axis], 0, x.shape[axis]
    if mode in ("wrap", "circular"):  # what is left, again
        first, end = _kept(size, before, after)
    if end <= first or size + before + after > 1 << 28:
        raise ShapeError(
            f"pad: ({before}, {after}) around axis {axis} of {x!r}, mode {mode!r}; need 1 element "
            "or more, a result of at most 2**28"
        )
    places = first + _BEHIND[mode](np.arange(-before, size + after) - first, end - first)
    return take(x, x.graph.constant(places, "int64"), axis)


def take(x: Value, indices: Data, axis: int = 0) -> Value:
    """x's slices along `axis` at int `indices`, a Value or a NumPy array.

    A step refuses an index outside [0, n); with `compile(checks="off")` it gives NaN (0 for
    integers) and takes no gradient.

    >>> aicf.take(x, labels, axis=1).shape
    (4, 4)
    """
    axis = _axis("take", x, axis)
    if axis == 0:
        return _emit("Take", "take", x, indices)
    order = [axis] + [a for a in range(x.ndim) if a != axis]
    rows = _emit("Take", "take", permute(x, order), indices)
    lead, rest = list(range(indices.ndim)), list(range(indices.ndim, rows.ndim))
    return permute(rows, rest[:axis] + lead + rest[axis:])


def detach(x: Value) -> Value:
    """x without its gradient.

    >>> aicf.detach(x).shape
    (4, 3)
    """
    return _emit("Detach", "detach", x)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
