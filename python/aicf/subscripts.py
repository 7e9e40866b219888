"""x[...] of a Value: ints, slices and new axes, and arrays, lists and Values of ints or bools."""

from __future__ import annotations

import builtins
import functools
import math
import reprlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .graph import Value
from .movement import _index, permute, reshape, take
from .ops import add, cast, greater_equal, less, logical_and, mul, where

__all__: list[str] = []

_Places: TypeAlias = "np.ndarray | Value"  # ints along an axis
_WHOLE = builtins.slice(None)


def _is_array(key: Any) -> bool:
    return isinstance(key, (list, np.ndarray, Value))


@checked
def _subscript(x: Value, key: Any) -> Value:
    """x[key] with NumPy's rules, masks of NumPy alone, and no rule where PyTorch's is another."""
    given = list(key) if isinstance(key, tuple) else [key]
    if not builtins.any(map(_is_array, given)):
        return _index(x, key)
    keys = _by_axis(x, given, key)
    _refuse_unclear(x, keys, key)
    basic = _index(x, tuple(_WHOLE if _is_array(k) else k for k in keys))
    left = [k for k in keys if k is None or isinstance(k, builtins.slice) or _is_array(k)]
    return _taken(basic, {axis: k for axis, k in enumerate(left) if _is_array(k)})


def _by_axis(x: Value, given: Sequence[Any], key: Any) -> list[Any]:
    """The keys with `...` written out, and arrays of ints >= 0 in the place of masks and lists."""
    keys = [_array(x, k) if isinstance(k, (list, np.ndarray)) else k for k in given]
    widths = [0 if k is None or k is Ellipsis else k.ndim if _is_mask(k) else 1 for k in keys]
    gaps = builtins.sum(k is Ellipsis for k in keys)
    if builtins.sum(widths) > x.ndim or gaps > 1:
        raise ShapeError(
            f"index: {reprlib.repr(key)} of {x!r}; need at most {x.ndim} indices and one ..."
        )
    rest = [_WHOLE] * (x.ndim - builtins.sum(widths))
    made: list[Any] = []
    axis = 0
    for k, width in zip(keys, widths, strict=True):
        if k is Ellipsis:
            made += rest
            axis += len(rest)
            continue
        made += _places(x, k, axis) if _is_array(k) else [k]
        axis += width
    return made if gaps else made + rest


def _is_mask(key: Any) -> bool:
    return isinstance(key, np.ndarray) and key.dtype == bool


def _array(x: Value, key: Any) -> np.ndarray:
    try:
        array = np.asarray(key)
    except ValueError:  # lists of several lengths
        array = np.asarray(None)
    if isinstance(key, list) and not array.size:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise (DTypeError if array.dtype.kind in "fc" else GraphError)(
            f"index: got {reprlib.repr(key)} of dtype {array.dtype} for {x!r}; need ints or bools"
        )
    return array


def _places(x: Value, key: Any, axis: int) -> list[_Places]:
    """Of one key with an array: ints >= 0 along each axis that it names, from `axis` on."""
    size = x.shape[axis]
    if isinstance(key, Value):
        if key.dtype == "bool":
            raise GraphError(
                f"index: the mask {key!r} is a Value, and how many elements it takes would depend "
                "on data; need a NumPy array, or aicf.where, which keeps the size"
            )
        if not key.dtype.startswith(("int", "uint")):
            raise DTypeError(f"index: {key!r} is {key.dtype}; need ints or bools")
        at = key if key.dtype in ("int32", "int64") else cast(key, "int32")
        return [where(less(at, 0), at + size, at)]
    if _is_mask(key):
        own = x.shape[axis : axis + key.ndim]
        if key.shape != own:
            raise ShapeError(
                f"index: the mask is {list(key.shape)}, {x!r} from axis {axis} on {list(own)}; "
                "need equal sizes"
            )
        return list(np.nonzero(key))
    outside = key[(key < -size) | (key >= size)]
    if outside.size:
        raise ShapeError(
            f"index: {outside.flat[0]} on axis {axis} of {x!r}; need [{-size}, {size})"
        )
    return [np.where(key < 0, key + size, key).astype(np.int64)]


def _adjacent(places: Sequence[int]) -> bool:
    return places[-1] - places[0] == len(places) - 1


def _refuse_unclear(x: Value, keys: Sequence[Any], key: Any) -> None:
    """Ints and arrays of rank 0 are arrays as others to NumPy and go first in PyTorch, which counts
    where a slice or a new axis stands between them and an array."""
    basic = [k is None or isinstance(k, builtins.slice) for k in keys]
    with_ints = [i for i, one in enumerate(basic) if not one]
    without = [k for k, b in zip(keys, basic, strict=True) if b or (_is_array(k) and k.ndim)]
    arrays = [i for i, k in enumerate(without) if _is_array(k)]
    if arrays and not _adjacent(with_ints) and _adjacent(arrays) and arrays[0]:
        raise GraphError(
            f"index: {reprlib.repr(key)} of {x!r}: an int and an array around a slice, whose axes "
            "NumPy and PyTorch put in different places; need the ints first, as x[0][:, array]"
        )


def _taken(x: Value, places: dict[int, _Places]) -> Value:
    axes = list(places)
    if len(axes) == 1:
        ((axis, one),) = places.items()
        return take(x, _as_value(x, one), axis)
    try:
        np.broadcast_shapes(*(one.shape for one in places.values()))
    except ValueError:
        shapes = ", ".join(str(list(one.shape)) for one in places.values())
        raise ShapeError(
            f"index: arrays of {shapes} do not broadcast; need sizes equal or 1, counted from the "
            "last axis"
        ) from None
    sizes = [x.shape[axis] for axis in axes]
    rest = [axis for axis in range(x.ndim) if axis not in places]
    first = axes[0] if _adjacent(axes) else 0
    if not _adjacent(axes):
        x = permute(x, axes + rest)
    shape = [*x.shape[:first], math.prod(sizes), *x.shape[first + len(sizes) :]]
    return take(reshape(x, shape), _merged(x, list(places.values()), sizes), first)


def _merged(x: Value, places: list[_Places], sizes: list[int]) -> Value:
    """Places along axes of these sizes as places along one; -1 where one is outside of its axis."""
    steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    if not builtins.any(isinstance(one, Value) for one in places):
        total = builtins.sum(one * step for one, step in zip(places, steps, strict=True))
        return _as_value(x, np.asarray(total, np.int64))
    wide = [cast(one, "int64") if isinstance(one, Value) else _as_value(x, one) for one in places]
    terms = [mul(one, step) for one, step in zip(wide, steps, strict=True)]
    inside = [
        logical_and(greater_equal(at, 0), less(at, size))
        for at, one, size in zip(wide, places, sizes, strict=True)
        if isinstance(one, Value)
    ]
    return where(functools.reduce(logical_and, inside), functools.reduce(add, terms), -1)


def _as_value(x: Value, places: _Places) -> Value:
    return places if isinstance(places, Value) else x.graph.constant(places, "int64")


Value.__getitem__ = _subscript  # type: ignore[method-assign]
