"""Arrays made of others: joined, written into, turned; NumPy's names, and PyTorch's where it has
none."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

import numpy as np

from ._core import GraphError, ShapeError
from .arguments import checked
from .arrays import flip, moveaxis
from .graph import Data, Operand, Value
from .indexing import cumprod, scatter
from .movement import _axis, broadcast_to, concat, expand_dims, reshape, transpose
from .operands import _constant
from .ops import cast, matmul, mul, where

__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "column_stack",
    "diag_embed",
    "dstack",
    "hstack",
    "index_copy",
    "index_fill",
    "kron",
    "masked_fill",
    "matrix_power",
    "rot90",
    "slice_scatter",
    "vander",
    "vstack",
]


# ---- joined


def atleast_1d(x: Value) -> Value:
    """x, a number as a vector of one element.

    >>> aicf.atleast_1d(aicf.sum(x)).shape
    (1,)
    """
    return reshape(x, (1,)) if x.ndim == 0 else x


def atleast_2d(x: Value) -> Value:
    """x, a vector as a row.

    >>> aicf.atleast_2d(aicf.sum(x, 0)).shape
    (1, 3)
    """
    return x if x.ndim > 1 else reshape(x, (1, math.prod(x.shape)))


def atleast_3d(x: Value) -> Value:
    """x, a vector as [1, n, 1], a matrix with one more axis of 1.

    >>> aicf.atleast_3d(x).shape
    (4, 3, 1)
    """
    return x if x.ndim > 2 else reshape(x, (*atleast_2d(x).shape, 1))


def hstack(xs: Sequence[Value]) -> Value:
    """Joined along axis 1, vectors along axis 0.

    >>> aicf.hstack([x, y]).shape
    (4, 6)
    """
    whole = [atleast_1d(x) for x in _some("hstack", xs)]
    return concat(whole, 0 if whole[0].ndim == 1 else 1)


def vstack(xs: Sequence[Value]) -> Value:
    """Joined along axis 0, vectors as rows.

    >>> aicf.vstack([x, y]).shape
    (8, 3)
    """
    return concat([atleast_2d(x) for x in _some("vstack", xs)], 0)


def dstack(xs: Sequence[Value]) -> Value:
    """Joined along axis 2, of which each has at least one.

    >>> aicf.dstack([x, y]).shape
    (4, 3, 2)
    """
    return concat([atleast_3d(x) for x in _some("dstack", xs)], 2)


def column_stack(xs: Sequence[Value]) -> Value:
    """Joined along axis 1, vectors as columns.

    >>> aicf.column_stack([x, aicf.sum(x, 1)]).shape
    (4, 4)
    """
    whole = _some("column_stack", xs)
    return concat([x if x.ndim > 1 else reshape(x, (math.prod(x.shape), 1)) for x in whole], 1)


def _some(name: str, xs: Sequence[Value]) -> list[Value]:
    if not xs:
        raise GraphError(f"{name}: xs is empty; need at least one Value")
    return list(xs)


def block_diag(xs: Sequence[Value]) -> Value:
    """The matrices xs down the diagonal, zeros elsewhere.

    >>> aicf.block_diag([x, y]).shape
    (8, 6)
    """
    blocks = [atleast_2d(x) for x in _some("block_diag", xs)]
    if builtins.any(x.ndim != 2 for x in blocks):
        raise ShapeError(f"block_diag: xs are {list(xs)}; need matrices")
    width, before, rows = builtins.sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        after = width - before - x.shape[1]
        rows.append(x.pad(((0, 0), (before, after))))
        before += x.shape[1]
    return concat(rows, 0)


def kron(a: Value, b: Value) -> Value:
    """The Kronecker product: b times each element of a.

    >>> aicf.kron(x, y).shape
    (16, 9)
    """
    rank = builtins.max(a.ndim, b.ndim)
    left = (1,) * (rank - a.ndim) + a.shape
    right = (1,) * (rank - b.ndim) + b.shape
    between = [size for n in left for size in (n, 1)]
    inside = [size for n in right for size in (1, n)]
    each = mul(reshape(a, between), reshape(b, inside))
    return reshape(each, [m * n for m, n in zip(left, right, strict=True)])


# ---- turned


def rot90(x: Value, k: int = 1, axes: Sequence[int] = (0, 1)) -> Value:
    """x turned k times by 90° from the first of two axes to the second.

    >>> aicf.rot90(x).shape
    (3, 4)
    """
    chosen = [_axis("rot90", x, axis) for axis in axes]
    if len(set(chosen)) != 2 or len(chosen) != 2:
        raise ShapeError(f"rot90: axes are {tuple(axes)} of {x!r}; need two different ones")
    a, b = chosen
    turned = [x, transpose(flip(x, b), a, b), flip(x, (a, b)), flip(transpose(x, a, b), b)]
    return turned[k % 4]


def diag_embed(x: Value, k: int = 0, axis1: int = -2, axis2: int = -1) -> Value:
    """Matrices in two new axes that have the last axis of x on their k-th diagonal.

    >>> aicf.diag_embed(x).shape
    (4, 3, 3)
    """
    if x.ndim == 0:
        raise ShapeError(f"diag_embed: x is {x!r}; need a vector at least")
    n, lead = x.shape[-1], x.shape[:-1]
    none = ((0, 0),) * len(lead)
    # Each element before n zeros: cut to n * n, they lie on the diagonal.
    lines = expand_dims(x, -1).pad((*none, (0, 0), (0, n)))
    square = reshape(reshape(lines, (*lead, n * (n + 1)))[..., : n * n], (*lead, n, n))
    low, high = builtins.max(-k, 0), builtins.max(k, 0)
    square = square.pad((*none, (low, high), (high, low)))
    first, second = _axis("diag_embed", square, axis1), _axis("diag_embed", square, axis2)
    if first == second:
        raise ShapeError(f"diag_embed: both axes are {first}; need two different ones")
    return moveaxis(square, [-2, -1], [first, second])


def matrix_power(x: Value, n: int) -> Value:
    """x times itself n >= 0 times, by repeated squaring; the identity for n = 0.

    >>> aicf.matrix_power(aicf.matmul(x, x.T), 3).shape
    (4, 4)
    """
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or n < 0:
        raise ShapeError(f"matrix_power: x is {x!r}, n {n}; need square matrices and n >= 0")
    if n == 0:
        one = cast(x.graph.constant(np.eye(x.shape[-1])), x.dtype)
        return broadcast_to(one, x.shape)
    result = None
    while n:
        if n % 2:
            result = x if result is None else matmul(result, x)
        n //= 2
        if n:
            x = matmul(x, x)
    assert result is not None
    return result


def vander(x: Value, n: int | None = None, increasing: bool = False) -> Value:
    """The powers of the elements of a vector as columns, n − 1 first; see NumPy's.

    >>> aicf.vander(aicf.sum(x, 1), 3).shape
    (4, 3)
    """
    if x.ndim == 0:
        raise ShapeError(f"vander: x is {x!r}; need a vector at least")
    count = x.shape[-1] if n is None else n
    if count < 1:
        raise ShapeError(f"vander: n is {count}; need n >= 1")
    lines = expand_dims(x, -1)
    powers = cumprod(broadcast_to(lines, (*x.shape, count - 1)), -1)
    one = broadcast_to(x.graph.constant(1, x.dtype), lines.shape)
    columns = concat([one, powers], -1)
    return columns if increasing else flip(columns, -1)


# ---- written into


def masked_fill(x: Value, mask: Data, value: Operand) -> Value:
    """x with `value` where `mask` is true.

    >>> aicf.masked_fill(x, x < 0.0, 0.0).shape
    (4, 3)
    """
    return where(mask, value, x)


def index_fill(x: Value, axis: int, indices: Data, value: Operand) -> Value:
    """x with `value`, a number or a Value of rank 0, at the places `indices` of `axis`.

    >>> aicf.index_fill(x, 1, g.constant(np.array([0, 2])), 0.0).shape
    (4, 3)
    """
    at = _axis("index_fill", x, axis)
    shape = (*x.shape[:at], math.prod(indices.shape), *x.shape[at + 1 :])
    if not isinstance(value, Value):
        value = _constant("index_fill", x.graph, value, x.dtype)
    if value.ndim:
        raise ShapeError(f"index_fill: value is {value!r}; need rank 0")
    return index_copy(x, axis, indices, broadcast_to(value, shape))


def index_copy(x: Value, axis: int, indices: Data, y: Value) -> Value:
    """x with the slices of y at the places `indices` of `axis`; of equal places the last counts.

    >>> aicf.index_copy(x, 0, g.constant(np.array([1])), aicf.sum(x, 0, keepdims=True)).shape
    (4, 3)
    """
    at = _axis("index_copy", x, axis)
    if indices.ndim != 1 or y.ndim != x.ndim or indices.shape[0] != y.shape[at]:
        raise ShapeError(
            f"index_copy: indices are {indices!r}, y is {y!r} for {x!r}; need a vector, and "
            "for each of its places a slice of y"
        )
    places = reshape(indices, [y.shape[at] if i == at else 1 for i in range(x.ndim)])
    return scatter(x, at, broadcast_to(places, y.shape), y)


def slice_scatter(
    x: Value, y: Value, axis: int = 0, start: int = 0, stop: int | None = None, step: int = 1
) -> Value:
    """x with y at x[start:stop:step] of `axis`.

    >>> aicf.slice_scatter(x, aicf.sum(x, 0, keepdims=True), 0, start=1, stop=2).shape
    (4, 3)
    """
    at = _axis("slice_scatter", x, axis)
    if step < 1:
        raise ShapeError(f"slice_scatter: step is {step}; need step >= 1")
    places = range(x.shape[at])[start:stop:step]
    shape = (*x.shape[:at], len(places), *x.shape[at + 1 :])
    if y.shape != shape:
        raise ShapeError(f"slice_scatter: y is {y!r}; need shape {shape}")
    if not len(places):
        return x
    return index_copy(x, at, x.graph.constant(np.array(places, np.int64)), y)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
