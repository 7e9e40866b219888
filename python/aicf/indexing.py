"""Elements by their position along an axis, and positions by the order of the elements.

Indices are Values or NumPy arrays of int32 or int64 and count from 0. A step refuses one outside
[0, n); where it was compiled with checks="off", such an index gives NaN (0 for integers) where
elements are taken, and is left out where they are put.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .arrays import moveaxis
from .graph import Data, Operand, Value
from .movement import (
    _axes,
    _axis,
    broadcast_to,
    concat,
    detach,
    expand_dims,
    pad,
    permute,
    reshape,
    stack,
    take,
)
from .operands import _constant, _emit, _number
from .ops import (
    _as,
    _widened,
    add,
    cast,
    div,
    equal,
    floor,
    floor_divide,
    isnan,
    max,
    maximum,
    min,
    minimum,
    mul,
    prod,
    remainder,
    round,
    sub,
    sum,
    where,
)

__all__ = [
    "argsort",
    "cummax",
    "cummin",
    "cumprod",
    "gather",
    "index_add",
    "index_select",
    "linear_recurrence",
    "median",
    "nanquantile",
    "quantile",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "searchsorted",
    "sort",
    "take_along_axis",
    "topk",
    "unravel_index",
]


# ---- by index


def take_along_axis(x: Value, indices: Data, axis: int = -1) -> Value:
    """x[..., indices[..., i, ...], ...] along `axis`; the other axes broadcast.

    The gradient adds what was taken more than once, in ascending position, in chunks of 256.
    One launch.

    >>> aicf.take_along_axis(x, aicf.argsort(x, axis=0), axis=0).shape
    (4, 3)
    """
    at = _axis("take_along_axis", x, axis)
    if indices.ndim != x.ndim:
        raise ShapeError(f"take_along_axis: x is {x!r}, indices are {indices!r}; need equal ranks")
    pairs = list(zip(x.shape, indices.shape, strict=True))
    wide = [b if a == 1 else a for a, b in pairs]
    x, indices = (
        broadcast_to(v, [v.shape[d] if d == at else n for d, n in enumerate(wide)])
        for v in (x, indices)
    )
    return _emit("Gather", "take_along_axis", x, indices, axis=at)


def gather(x: Value, axis: int, indices: Data) -> Value:
    """x[..., indices[..., i, ...], ...] along `axis`, as PyTorch's.

    The other axes of `indices` may be shorter than x's. One launch.

    >>> aicf.gather(x, 1, aicf.argmax(x, axis=1, keepdims=True)).shape
    (4, 1)
    """
    at = _axis("gather", x, axis)
    return _emit("Gather", "gather", _cropped("gather", x, indices, at), indices, axis=at)


def index_select(x: Value, axis: int, indices: Data) -> Value:
    """x's slices along `axis` at the indices of one axis. One launch.

    >>> aicf.index_select(x, 1, labels).shape
    (4, 4)
    """
    _need_line("index_select", indices)
    return take(x, indices, axis)


def scatter(x: Value, axis: int, indices: Data, src: Operand) -> Value:
    """x with `src` put at the indices along `axis`, as PyTorch's; of equal indices the last holds.

    Args:
        indices: no longer than x on the other axes, nor than src on any.
        src: a Value of x's dtype, or a number.

    >>> aicf.scatter(x, 1, aicf.argmax(x, axis=1, keepdims=True), 0.0).shape
    (4, 3)
    """
    at = _axis("scatter", x, axis)
    _cropped("scatter", x, indices, at)
    if not isinstance(src, Value):
        src = broadcast_to(_constant("scatter", x.graph, src, x.dtype), indices.shape)
    src = _cropped("scatter", src, indices)
    size = x.shape[at]
    last = _emit("ScatterLast", "scatter", indices, axis=at, size=size)
    if indices.shape[at] == 0:
        return x
    put = _emit("Gather", "scatter", src, maximum(last, 0), axis=at)
    return where(_grown(last, x, -1.0) >= 0, _grown(put, x), x)


def scatter_add(x: Value, axis: int, indices: Data, src: Value) -> Value:
    """x plus `src` summed at the indices along `axis`, as PyTorch's; the same bits every time.

    Terms of one place are added in ascending position, in chunks of 256, then the sum to x. Sums
    begin with +0: -0.0 in x becomes +0.0 where nothing is added, or only zeros are.

    Args:
        indices: no longer than x on the other axes, nor than src on any.

    >>> aicf.scatter_add(x, 1, aicf.argsort(x), y).shape
    (4, 3)
    """
    at = _axis("scatter_add", x, axis)
    _cropped("scatter_add", x, indices, at)
    src = _widened(_like("scatter_add", _cropped("scatter_add", src, indices), x))
    sums = _emit("ScatterAdd", "scatter_add", src, indices, axis=at, size=x.shape[at])
    return _as(add(_widened(x), _grown(sums, x)), x.dtype)


def index_add(x: Value, axis: int, indices: Data, src: Value) -> Value:
    """x plus the slices of `src` along `axis`, summed where the indices of one axis say.

    Terms of one place are added in ascending position, in chunks of 256, then the sum to x. The sum
    of no terms is +0: -0.0 in x becomes +0.0 where nothing is added.

    >>> aicf.index_add(x, 0, labels, y).shape
    (4, 3)
    """
    at = _axis("index_add", x, axis)
    _need_line("index_add", indices)
    if src.ndim != x.ndim or src.shape[at] != indices.shape[0]:
        raise ShapeError(
            f"index_add: src is {src!r}, indices are {indices!r}; need one slice an index"
        )
    if builtins.any(n != src.shape[d] for d, n in enumerate(x.shape) if d != at):
        raise ShapeError(
            f"index_add: src is {src!r}, x is {x!r}; need equal sizes but for axis {at}"
        )
    if not x.dtype.startswith(("float", "bfloat")):
        sizes = [1] * x.ndim
        sizes[at] = indices.shape[0]
        return scatter_add(x, at, broadcast_to(reshape(indices, sizes), src.shape), src)
    rows = moveaxis(_widened(_like("index_add", src, x)), at, 0)
    sums = _emit("TakeBwd", "index_add", rows, indices, rows=x.shape[at])
    return _as(add(_widened(x), moveaxis(sums, 0, at)), x.dtype)


def scatter_reduce(
    x: Value, axis: int, indices: Data, src: Value, reduce: str, include_self: bool = True
) -> Value:
    """x with what `src` puts at the indices along `axis` taken together, as PyTorch's.

    Args:
        indices: no longer than x on the other axes, nor than src on any.
        reduce: "sum", "prod", "mean", "amax" or "amin"; the gradient of the last two is shared
            equally among equal elements.
        include_self: whether x's own element counts where something is put.

    All but "sum" and "mean" compare each place with each index, n·size elements a line.

    >>> aicf.scatter_reduce(x, 1, aicf.argsort(x), y, "amax").shape
    (4, 3)
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise GraphError(
            f'scatter_reduce: reduce is {reduce!r}; need "sum", "prod", "mean", "amax" or "amin"'
        )
    at = _axis("scatter_reduce", x, axis)
    _cropped("scatter_reduce", x, indices, at)
    src = _like("scatter_reduce", _cropped("scatter_reduce", src, indices), x)
    if indices.shape[at] == 0:
        return x
    floats = x.dtype.startswith(("float", "bfloat"))
    if reduce == "mean" and not floats:
        raise DTypeError(f"scatter_reduce: a mean of x {x!r}; need a float dtype (cast it)")
    wide, given = _widened(x), _widened(src)
    ones = broadcast_to(_number("scatter_reduce", x.graph, 1, wide.dtype), indices.shape)
    none = broadcast_to(_number("scatter_reduce", x.graph, 0, wide.dtype), x.shape)
    count = scatter_add(none, at, indices, ones)
    own = wide if include_self else where(equal(count, 0), wide, _unit(reduce, x, wide))
    if reduce == "sum":
        y = scatter_add(own, at, indices, given)
    elif reduce == "mean":
        others = count if include_self else sub(count, 1)
        y = div(scatter_add(own, at, indices, given), add(maximum(others, 0), 1))
    else:
        y = _each_place(reduce, own, at, indices, given, _unit(reduce, x, wide))
    return _as(y, x.dtype)


def _unit(reduce: str, x: Value, wide: Value) -> Value:
    """What changes no result of a reduction, of x's dtype, in the one that is computed in."""
    value: float = {"prod": 1, "amax": -math.inf, "amin": math.inf}.get(reduce, 0)
    if math.isinf(value) and not x.dtype.startswith(("float", "bfloat")):
        if x.dtype == "bool":
            raise DTypeError(f"scatter_reduce: {reduce} of x {x!r}; need numbers (cast it)")
        limits = np.iinfo(x.dtype)
        value = limits.max if value > 0 else limits.min
    return _number("scatter_reduce", x.graph, value, wide.dtype)


def _each_place(
    reduce: str, own: Value, axis: int, indices: Value, src: Value, unit: Value
) -> Value:
    """Of each place its own element and those whose index it is; of no other the unit."""
    beside = [n if d != axis else indices.shape[axis] for d, n in enumerate(own.shape)]
    fill = [(0, n - m) for m, n in zip(indices.shape, beside, strict=True)]
    # Numbers from 1, which 0 stands beside: what was padded, or is out of range.
    numbers = take(own.graph.constant(np.arange(1, own.shape[axis] + 1)), indices)
    indices, src = (pad(v, fill, 0) for v in (numbers, src))
    indices, src, own = (moveaxis(v, axis, -1) for v in (indices, src, own))
    places = own.graph.constant(np.arange(1, own.shape[-1] + 1))
    here = equal(expand_dims(indices, -1), places)
    each = where(here, expand_dims(src, -1), unit)
    over = {"prod": prod, "amax": max, "amin": min}[reduce]
    return moveaxis(over(concat([expand_dims(own, -2), each], -2), -2), -1, axis)


def _like(name: str, src: Value, x: Value) -> Value:
    if src.dtype != x.dtype:
        raise DTypeError(f"{name}: src is {src!r}, x is {x!r}; need one dtype (cast it)")
    return src


def _need_line(name: str, indices: Value) -> None:
    if indices.ndim != 1:
        raise ShapeError(f"{name}: indices are {indices!r}; need rank 1")


def _cropped(name: str, x: Value, indices: Value, axis: int | None = None) -> Value:
    """x as far as the indices go, but for `axis`."""
    fits = x.ndim == indices.ndim and builtins.all(
        d == axis or n <= x.shape[d] for d, n in enumerate(indices.shape)
    )
    if not fits:
        but = "" if axis is None else f" but for axis {axis}"
        raise ShapeError(f"{name}: {x!r}, indices are {indices!r}; need indices no longer{but}")
    ends = (n if d != axis else x.shape[d] for d, n in enumerate(indices.shape))
    return x[tuple(slice(n) for n in ends)] if x.ndim else x


def _grown(x: Value, like: Value, value: float = 0.0) -> Value:
    """x with `value` behind it up to the sizes of another."""
    if x.shape == like.shape:
        return x
    return pad(x, [(0, n - m) for m, n in zip(x.shape, like.shape, strict=True)], value)


def searchsorted(sorted: Value, values: Value, side: str = "left") -> Value:
    """int64 places in ascending lines where `values` would keep the order, as NumPy's.

    Args:
        sorted: [n] for values of any shape, or [..., n] for values [..., m].
        side: "left" = before equal elements, "right" = behind them. NaN is larger than all others.

    One launch, log2(n) comparisons an element.

    >>> aicf.searchsorted(aicf.sort(x, axis=1), y).shape
    (4, 3)
    """
    if side not in ("left", "right"):
        raise GraphError(f'searchsorted: side is {side!r}; need "left" or "right"')
    line = values
    if sorted.ndim == 1 and values.ndim != 1:
        line = reshape(values, [math.prod(values.shape)])
    at = _emit("SearchSorted", "searchsorted", sorted, line, right=side == "right")
    return at if line is values else reshape(at, values.shape)


def unravel_index(indices: Data, shape: int | Sequence[int]) -> list[Value]:
    """The place on each axis of `shape` of positions in the flattened array, as NumPy's.

    The first place is not wrapped or cut, so that an op that takes it for an index refuses it where
    a position is outside of the array.

    >>> [i.shape for i in aicf.unravel_index(labels, (2, 5))]
    [(4,), (4,)]
    """
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if builtins.any(n < 1 for n in sizes):
        raise ShapeError(f"unravel_index: shape is {shape}; need sizes of 1 or more")
    if not indices.dtype.startswith(("int", "uint")):
        raise DTypeError(f"unravel_index: indices are {indices!r}; need integers")
    places: list[Value] = []
    if not sizes:
        return places
    for size in reversed(sizes[1:]):
        places.append(remainder(indices, size))
        indices = floor_divide(indices, size)
    return [indices, *reversed(places)]


# ---- by order


def argsort(x: Value, axis: int = -1, descending: bool = False) -> Value:
    """int64 positions of x's elements in order along `axis`; equal ones keep theirs.

    NaN counts as the largest number, so that it comes last, or first where `descending`, as in
    PyTorch. One launch for 2,048 elements, one more whenever they are twice as many.

    >>> aicf.argsort(x, axis=0).dtype
    'int64'
    """
    return _emit("ArgSort", "argsort", x, axis=_axis("argsort", x, axis), descending=descending)


def sort(x: Value, axis: int = -1, descending: bool = False) -> Value:
    """x's elements in order along `axis`, as `argsort` says; one launch more.

    >>> aicf.sort(x, axis=0).shape
    (4, 3)
    """
    at = _axis("sort", x, axis)
    return _emit("Gather", "sort", x, argsort(detach(x), at, descending), axis=at)


def topk(x: Value, k: int, axis: int = -1, largest: bool = True) -> tuple[Value, Value]:
    """The k largest (or smallest) elements along `axis` in order, and their int64 positions.

    Of equal elements the first is taken. Costs what `sort` does.

    >>> values, indices = aicf.topk(x, 2)
    >>> values.shape
    (4, 2)
    """
    at = _axis("topk", x, axis)
    if not 0 <= k <= x.shape[at]:
        raise ShapeError(f"topk: k is {k}, x is {x!r}; need 0 to {x.shape[at]}")
    indices = argsort(detach(x), at, largest)[(*(slice(None),) * at, slice(k))]
    return _emit("Gather", "topk", x, indices, axis=at), indices


def median(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The middle element over `axis` (None = all), of an even number the mean of both; as NumPy's.

    >>> aicf.median(x, axis=0).shape
    (3,)
    """
    return _quantiles("median", x, [0.5], axis, keepdims)[0]


INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    x: Value,
    q: float | Sequence[float],
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    interpolation: str = "linear",
) -> Value:
    """The numbers below which shares `q` in [0, 1] of x lie over `axis`; NaN where an element is.

    Args:
        q: a number, or several, which make a leading axis.
        interpolation: between two elements "linear", or the "lower", the "higher", their
            "midpoint" or the "nearest", of equally near ones that of even number.

    >>> aicf.quantile(x, [0.25, 0.75], axis=1).shape
    (2, 4)
    """
    return _shares("quantile", x, q, axis, keepdims, interpolation, False)


def nanquantile(
    x: Value,
    q: float | Sequence[float],
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    interpolation: str = "linear",
) -> Value:
    """`quantile` of what is no NaN; NaN where nothing is.

    >>> aicf.nanquantile(x, 0.5, axis=1).shape
    (4,)
    """
    return _shares("nanquantile", x, q, axis, keepdims, interpolation, True)


def _shares(
    name: str,
    x: Value,
    q: float | Sequence[float],
    axis: int | Sequence[int] | None,
    keepdims: bool,
    interpolation: str,
    skip: bool,
) -> Value:
    if interpolation not in INTERPOLATIONS:
        raise GraphError(f"{name}: interpolation is {interpolation!r}; need {INTERPOLATIONS}")
    if isinstance(q, Sequence):
        return stack(_quantiles(name, x, list(q), axis, keepdims, interpolation, skip))
    return _quantiles(name, x, [q], axis, keepdims, interpolation, skip)[0]


def _quantiles(
    name: str,
    x: Value,
    shares: list[float],
    axis: int | Sequence[int] | None,
    keepdims: bool,
    interpolation: str = "linear",
    skip: bool = False,
) -> list[Value]:
    over = [_axis(name, x, a) for a in _axes(x, axis)]
    if not builtins.all(0 <= q <= 1 for q in shares) or not shares:
        raise GraphError(f"{name}: q is {shares}; need shares in [0, 1]")
    n = math.prod(x.shape[a] for a in over)
    if n == 0 or not x.dtype.startswith(("float", "bfloat")):
        raise ShapeError(f"{name}: x is {x!r}; need floats, and an element to choose from")
    rest = [a for a in range(x.ndim) if a not in over]
    shape = [1 if a in over else x.shape[a] for a in range(x.ndim)]
    if not keepdims:
        shape = [x.shape[a] for a in rest]
    lines = reshape(permute(x, [*rest, *over]), [*(x.shape[a] for a in rest), n])
    ordered = sort(_widened(lines))
    pick = _among_numbers(ordered, n) if skip else _among_all(ordered, n)
    return [reshape(_as(pick(q, interpolation), x.dtype), shape) for q in shares]


def _among_all(ordered: Value, n: int) -> Callable[[float, str], Value]:
    last = ordered[..., n - 1]

    def pick(q: float, interpolation: str) -> Value:
        low = builtins.min(int(q * (n - 1)), n - 1)
        part = q * (n - 1) - low
        if interpolation == "nearest":
            part = float(part > 0.5 or (part == 0.5 and low % 2 == 1))
        elif part > 0:
            part = {"lower": 0.0, "higher": 1.0, "midpoint": 0.5}.get(interpolation, part)
        y = ordered[..., low]
        if part == 1:
            y = ordered[..., low + 1]
        elif part > 0:
            y = add(mul(y, 1.0 - part), mul(ordered[..., low + 1], part))
        return where(isnan(last), last, y)

    return pick


def _among_numbers(ordered: Value, n: int) -> Callable[[float, str], Value]:
    """NaN is last in order, so that the numbers of a line stand before it."""
    missing = isnan(detach(ordered))
    count = sub(n, sum(cast(missing, "int64"), -1, True))
    last = maximum(sub(count, 1), 0)

    def pick(q: float, interpolation: str) -> Value:
        place = mul(cast(last, "float64"), q)
        if interpolation == "nearest":
            place = round(place)
        low = floor(place)
        part = sub(place, low)
        if interpolation != "linear":
            between = {"lower": 0.0, "higher": 1.0, "midpoint": 0.5, "nearest": 0.0}
            part = where(part > 0.0, between[interpolation], part)
        at = cast(low, "int64")
        below, above = (take_along_axis(ordered, i, -1) for i in (at, minimum(add(at, 1), last)))
        part = cast(part, ordered.dtype)
        # An infinity that has no part in it must not make NaN of the sum.
        mixed = add(mul(below, sub(1.0, part)), mul(where(equal(part, 0.0), below, above), part))
        return where(equal(part, 1.0), above, where(equal(part, 0.0), below, mixed))

    return pick


# ---- running


def cumprod(x: Value, axis: int) -> Value:
    """Running product along `axis`, in ascending order; its gradient is right beside zeros.

    >>> aicf.cumprod(x, axis=0).shape
    (4, 3)
    """
    return _emit("CumProd", "cumprod", x, axis=_axis("cumprod", x, axis))


def linear_recurrence(a: Value, b: Value, axis: int, reverse: bool = False) -> Value:
    """h[t] = a[t] * h[t-1] + b[t] along `axis`, from 0; with `reverse` from the last place on.

    The recurrence of linear RNNs and state-space models, one step after the other. a and b have
    one shape and float dtype.

    >>> aicf.linear_recurrence(x, x, axis=0).shape
    (4, 3)
    """
    at = _axis("linear_recurrence", a, axis)
    return _emit("Recurrence", "linear_recurrence", a, b, axis=at, reverse=reverse)


def cummax(x: Value, axis: int) -> tuple[Value, Value]:
    """The largest element so far along `axis`, and its int64 position: the last of equal ones.

    A NaN stays. The gradient goes to the positions.

    >>> values, indices = aicf.cummax(x, axis=0)
    >>> values.shape
    (4, 3)
    """
    return _running("cummax", x, axis, False)


def cummin(x: Value, axis: int) -> tuple[Value, Value]:
    """The smallest element so far along `axis`, and its int64 position: the last of equal ones.

    >>> values, indices = aicf.cummin(x, axis=0)
    >>> indices.dtype
    'int64'
    """
    return _running("cummin", x, axis, True)


def _running(name: str, x: Value, axis: int, smallest: bool) -> tuple[Value, Value]:
    at = _axis(name, x, axis)
    indices = _emit("CumArg", name, x, axis=at, smallest=smallest)
    return _emit("Gather", name, x, indices, axis=at), indices


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
