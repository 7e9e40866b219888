"""Array functions composed of the ops, in NumPy's names and argument order."""

from __future__ import annotations

import builtins
import math
import reprlib
from collections.abc import Sequence

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import DTypeName, checked
from .graph import Operand, Value
from .movement import (
    _axes,
    _axis,
    broadcast_to,
    concat,
    detach,
    expand_dims,
    flatten,
    permute,
    reshape,
)
from .operands import _emit, _number, _operands
from .ops import (
    _as,
    _whole,
    _widened,
    abs,
    add,
    argmax,
    cast,
    div,
    equal,
    floor,
    less,
    logical_and,
    logical_not,
    logical_or,
    matmul,
    max,
    min,
    mul,
    neg,
    not_equal,
    pow,
    sign,
    softplus,
    sqrt,
    sub,
    sum,
    var,
    where,
)

__all__ = [
    "all",
    "any",
    "argmin",
    "broadcast_arrays",
    "ceil",
    "copysign",
    "count_nonzero",
    "cross",
    "diag",
    "diagonal",
    "diff",
    "einsum",
    "flip",
    "full_like",
    "isfinite",
    "isinf",
    "logaddexp",
    "meshgrid",
    "moveaxis",
    "one_hot",
    "ones_like",
    "outer",
    "reciprocal",
    "repeat",
    "roll",
    "signbit",
    "square",
    "std",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "trunc",
    "unstack",
    "vecdot",
    "vector_norm",
    "zeros_like",
]


# ---- pointwise


def square(x: Value) -> Value:
    """x².

    >>> aicf.square(x).shape
    (4, 3)
    """
    return mul(x, x)


def reciprocal(x: Value) -> Value:
    """1 / x.

    >>> aicf.reciprocal(x).shape
    (4, 3)
    """
    return div(1.0, x)


def ceil(x: Value) -> Value:
    """The smallest whole number >= x, an integer x itself. Its gradient is zero.

    >>> aicf.ceil(x).shape
    (4, 3)
    """
    return x if _whole(x) else neg(floor(neg(x)))


def trunc(x: Value) -> Value:
    """x without its fraction, an integer x itself. Its gradient is zero.

    >>> aicf.trunc(x).shape
    (4, 3)
    """
    return x if _whole(x) else where(less(x, 0.0), ceil(x), floor(x))


def isinf(x: Value) -> Value:
    """Whether x is an infinity, as bool; an integer never is.

    >>> aicf.isinf(x).dtype
    'bool'
    """
    return not_equal(x, x) if _whole(x) else equal(abs(_float("isinf", x)), math.inf)


def isfinite(x: Value) -> Value:
    """Whether x is neither an infinity nor NaN, as bool; an integer always is.

    >>> aicf.isfinite(x).dtype
    'bool'
    """
    return equal(x, x) if _whole(x) else less(abs(_float("isfinite", x)), math.inf)


def _float(name: str, x: Value) -> Value:
    if not x.dtype.startswith(("float", "bfloat")):
        raise DTypeError(f"{name}: x is {x!r}; need a float dtype")
    return x


def one_hot(labels: Value, classes: int, dtype: DTypeName = "float32") -> Value:
    """A new last axis of `classes`: 1 at the label, else 0.

    A label out of range keeps the step from running; with `compile(checks="off")` it is all 0.

    >>> aicf.one_hot(labels, 10).shape
    (4, 10)
    """
    if not 0 <= classes < 2**31:
        raise ShapeError(f"one_hot: classes is {classes}; need 0 to {2**31 - 1}")
    if not labels.dtype.startswith(("int", "uint")):
        raise DTypeError(f"one_hot: labels are {labels!r}; need an int dtype")
    if classes == 0:
        return _hot(labels, classes, dtype)
    at = labels if labels.dtype in ("int32", "int64") else cast(labels, "int64")
    count = math.prod(labels.shape)
    ones = broadcast_to(_number("one_hot", labels.graph, 1, "float32"), [count])
    hot = _emit("PickBwd", "one_hot", ones, reshape(at, [count]), classes=classes)
    return _as(reshape(hot, [*labels.shape, classes]), dtype)


def _hot(labels: Value, classes: int, dtype: str) -> Value:
    """`one_hot` of labels that may be out of range, fused with what follows."""
    numbers = labels.graph.constant(np.arange(classes))
    return cast(equal(expand_dims(_as(labels, "int64"), -1), numbers), dtype)


def signbit(x: Value) -> Value:
    """Whether x is below 0, or −0.

    >>> aicf.signbit(x).dtype
    'bool'
    """
    if not x.dtype.startswith(("float", "bfloat")):
        return less(x, 0)
    return logical_or(less(x, 0.0), less(div(1.0, where(equal(x, 0.0), x, 1.0)), 0.0))


def copysign(a: Operand, b: Operand) -> Value:
    """|a| with the sign of b, of 0 and −0 too. Its gradient by b is zero.

    >>> aicf.copysign(x, y).shape
    (4, 3)
    """
    a, b = _operands("copysign", a, b)
    size = abs(a)
    return where(signbit(detach(b)), neg(size), size)


def logaddexp(a: Operand, b: Operand) -> Value:
    """log(exp(a) + exp(b)), safe for large numbers.

    >>> aicf.logaddexp(x, y).shape
    (4, 3)
    """
    a, b = _operands("logaddexp", a, b)
    wide, other = _widened(a), _widened(b)
    # of two equal infinities, which have no difference; elsewhere the gradient goes through it
    infinite = logical_and(equal(wide, other), equal(abs(wide), math.inf))
    apart = where(infinite, 0.0, sub(wide, other))
    above = less(apart, 0.0)
    larger = where(above, other, wide)
    return _as(add(larger, softplus(where(above, apart, neg(apart)))), a.dtype)


def full_like(x: Value, value: float | bool, dtype: DTypeName | None = None) -> Value:
    """A constant `value` in x's shape, and its dtype unless another is given.

    >>> aicf.full_like(x, 0.5).shape
    (4, 3)
    """
    return broadcast_to(_number("full_like", x.graph, value, dtype or x.dtype), x.shape)


def zeros_like(x: Value, dtype: DTypeName | None = None) -> Value:
    """Zeros in x's shape, and its dtype unless another is given.

    >>> aicf.zeros_like(x, "int32").dtype
    'int32'
    """
    return full_like(x, 0, dtype)


def ones_like(x: Value, dtype: DTypeName | None = None) -> Value:
    """Ones in x's shape, and its dtype unless another is given.

    >>> aicf.ones_like(x).shape
    (4, 3)
    """
    return full_like(x, 1, dtype)


# ---- reductions


def count_nonzero(
    x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Value:
    """How many elements along `axis` (None = all) are true, or not 0, as int64.

    >>> aicf.count_nonzero(x > 0.0, axis=1).dtype
    'int64'
    """
    return sum(cast(_true(x), "int64"), axis, keepdims)


def vector_norm(
    x: Value,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: float = 2.0,
) -> Value:
    """(Σ |x|**ord)**(1/ord) over `axis`; of ord inf and −inf the largest and smallest |x|, of
    0 the count of elements that are not 0. Its gradient at 0 is 0.

    >>> aicf.vector_norm(x, axis=1).shape
    (4,)
    """
    if math.isnan(ord):
        raise GraphError(f"vector_norm: ord is {ord}; need a number")
    return _as(_norm(_widened(x), ord, axis, keepdims), x.dtype)


def _norm(x: Value, p: float, axis: int | Sequence[int] | None, keepdims: bool) -> Value:
    """vector_norm; of p = 0 the count of elements that are not 0."""
    if p == 0:  # of signs, which are flat; a NaN counts
        return sum(where(not_equal(x, x), 1.0, abs(sign(x))), axis, keepdims)
    if p == 2:  # of x itself, which bends at 0 where |x| does not
        return _power(sum(mul(x, x), axis, keepdims), 0.5)
    size = abs(x)
    if math.isinf(p):
        return (max if p > 0 else min)(size, axis, keepdims)
    if p == 1:
        return sum(size, axis, keepdims)
    return _power(sum(_power(size, p), axis, keepdims), 1 / p)


def _power(base: Value, exponent: float) -> Value:
    """Its gradient at 0 is 0, as that of a norm is in PyTorch."""
    zero = equal(base, 0.0)
    other = where(zero, 1.0, base)
    power = sqrt(other) if exponent == 0.5 else pow(other, exponent)
    return where(zero, 0.0 if exponent > 0 else math.inf, power)


def std(
    x: Value, axis: int | Sequence[int] | None = None, correction: float = 1, keepdims: bool = False
) -> Value:
    """Standard deviation over `axis`, the square root of `var`; at 0 its gradient is 0.

    >>> aicf.std(x, axis=1).shape
    (4,)
    """
    return _as(_power(var(_widened(x), axis, correction, keepdims), 0.5), x.dtype)


def any(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Whether an element along `axis` (None = all) is true, or not 0; of no elements false.

    >>> aicf.any(x > 0.0, axis=1).dtype
    'bool'
    """
    true = cast(_true(x), "int32")
    empty = 0 in [x.shape[_axis("any", x, a)] for a in _axes(x, axis)]
    found = sum(true, axis, keepdims) if empty else max(true, axis, keepdims)
    return not_equal(found, 0)


def all(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Whether all elements along `axis` (None = all) are true, or not 0; of no elements true.

    >>> aicf.all(x > 0.0).shape
    ()
    """
    return logical_not(any(logical_not(_true(x)), axis, keepdims))


def _true(x: Value) -> Value:
    return x if x.dtype == "bool" else not_equal(x, 0)


def argmin(x: Value, axis: int | None = None, keepdims: bool = False) -> Value:
    """int64 position of the first smallest element along `axis` (None = of the flattened x).

    >>> aicf.argmin(x, axis=1).dtype
    'int64'
    """
    if x.dtype == "bool":
        return argmax(cast(logical_not(x), "int32"), axis, keepdims)
    if x.dtype.startswith(("float", "bfloat")):
        return argmax(neg(x), axis, keepdims)
    largest = (1 << 8) - 1 if x.dtype == "uint8" else -1  # −1 − x turns the order round, in range
    return argmax(sub(largest, x), axis, keepdims)


# ---- shapes


def moveaxis(x: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    """x with one axis, or several, at other places.

    >>> aicf.moveaxis(x, 0, -1).shape
    (3, 4)
    """
    at, to = (
        [_axis("moveaxis", x, a) for a in ([given] if isinstance(given, int) else given)]
        for given in (source, destination)
    )
    if len(at) != len(to) or len(set(at)) < len(at) or len(set(to)) < len(to):
        raise ShapeError(
            f"moveaxis: source is {source}, destination {destination}; need as many axes, each once"
        )
    order = [a for a in range(x.ndim) if a not in at]
    for place, a in sorted(zip(to, at, strict=True)):
        order.insert(place, a)
    return permute(x, order)


def tile(x: Value, reps: int | Sequence[int]) -> Value:
    """x laid out `reps` times along each axis; the shorter of the two gets leading ones.

    >>> aicf.tile(x, (2, 1)).shape
    (8, 3)
    """
    times = [reps] if isinstance(reps, int) else list(reps)
    if builtins.any(n < 0 for n in times):
        raise ShapeError(f"tile: reps is {times}; need 0 or more of each")
    rank = builtins.max(len(times), x.ndim)
    times = [1] * (rank - len(times)) + times
    shape = [1] * (rank - x.ndim) + list(x.shape)
    apart = [n for size in shape for n in (1, size)]
    wide = [n for pair in zip(times, shape, strict=True) for n in pair]
    sizes = [n * size for n, size in zip(times, shape, strict=True)]
    return reshape(broadcast_to(reshape(x, apart), wide), sizes)


def repeat(x: Value, repeats: int, axis: int | None = None) -> Value:
    """Each element `repeats` times in a row along `axis` (None = of the flattened x).

    >>> aicf.repeat(x, 2, axis=1).shape
    (4, 6)
    """
    if repeats < 0:
        raise ShapeError(f"repeat: repeats is {repeats}; need 0 or more")
    if axis is None:
        x, axis = reshape(x, math.prod(x.shape)), 0
    at = _axis("repeat", x, axis)
    shape = list(x.shape)
    wide = broadcast_to(expand_dims(x, at + 1), [*shape[: at + 1], repeats, *shape[at + 1 :]])
    return reshape(wide, [*shape[:at], shape[at] * repeats, *shape[at + 1 :]])


def flip(x: Value, axis: int | Sequence[int] | None = None) -> Value:
    """x with the elements along `axis` (None = all axes) in reverse.

    >>> aicf.flip(x, 0).shape
    (4, 3)
    """
    along = [_axis("flip", x, a) for a in _axes(x, axis)]
    if len(set(along)) < len(along):
        raise ShapeError(f"flip: axes {axis} of {x!r}; need distinct axes")
    turned = (slice(None, None, -1 if a in along else None) for a in range(x.ndim))
    return x[tuple(turned)] if along else x


def roll(x: Value, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Value:
    """x moved by `shift` along `axis` (None = of the flattened x); what leaves comes in again.

    Args:
        shift, axis: one of each, or as many, one after the other; one shift serves several axes.

    >>> aicf.roll(x, 1, axis=0).shape
    (4, 3)
    """
    if axis is None:
        return reshape(roll(flatten(x), shift, 0), x.shape) if x.ndim else x
    axes = [axis] if isinstance(axis, int) else list(axis)
    shifts = [shift] if isinstance(shift, int) else list(shift)
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    axes = axes * len(shifts) if len(axes) == 1 else axes
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: shift is {shift}, axis {axis}; need as many of both")
    for by, at in zip(shifts, (_axis("roll", x, a) for a in axes), strict=True):
        by = by % x.shape[at] if x.shape[at] else 0
        before = (slice(None),) * at
        if by:
            x = concat([x[(*before, slice(-by, None))], x[(*before, slice(None, -by))]], at)
    return x


def tril(x: Value, k: int = 0) -> Value:
    """x of [..., N, M] with zeros above diagonal number k.

    >>> aicf.tril(x).shape
    (4, 3)
    """
    return _triangle("tril", x, _below("tril", x, k))


def triu(x: Value, k: int = 0) -> Value:
    """x of [..., N, M] with zeros below diagonal number k.

    >>> aicf.triu(x, 1).shape
    (4, 3)
    """
    return _triangle("triu", x, ~_below("triu", x, k - 1))


def _below(name: str, x: Value, k: int) -> np.ndarray:
    """Of [N, M]: true on diagonal number k and below."""
    if x.ndim < 2:
        raise ShapeError(f"{name}: x is {x!r}; need [..., N, M]")
    n, m = x.shape[-2:]
    return np.tri(n, m, builtins.max(-n, builtins.min(k, m)), dtype=bool)


def _triangle(name: str, x: Value, mask: np.ndarray) -> Value:
    return where(x.graph.constant(mask), x, False if x.dtype == "bool" else 0)


def diagonal(x: Value, k: int = 0) -> Value:
    """Diagonal number k of x [..., N, M], without copying.

    >>> aicf.diagonal(x).shape
    (3,)
    """
    if x.ndim < 2:
        raise ShapeError(f"diagonal: x is {x!r}; need [..., N, M]")
    n, m = x.shape[-2:]
    down, right = builtins.max(-k, 0), builtins.max(k, 0)
    count = builtins.max(0, builtins.min(n - down, m - right))
    lead = list(x.shape[:-2])
    if count == 0:
        return reshape(x[..., :0, :0], [*lead, 0])
    flat = reshape(x, [*lead, n * m])
    begin = down * m + right
    return flat[..., begin : begin + (count - 1) * (m + 1) + 1 : m + 1]


def diag(x: Value, k: int = 0) -> Value:
    """Of rank 1 the matrix with x on diagonal number k, else that diagonal of a matrix.

    >>> aicf.diag(labels).shape
    (4, 4)
    """
    if x.ndim != 1:
        return diagonal(x, k)
    width = x.shape[0] + builtins.abs(k)
    begin = -k * width if k < 0 else k
    flat = {"shape": [width * width], "start": [begin], "step": [width + 1], "value": 0.0}
    if x.shape[0] == 0:
        flat["start"] = [0]
    return reshape(_emit("Pad", "diag", x, **flat), [width, width])


def diff(x: Value, n: int = 1, axis: int = -1) -> Value:
    """Differences of neighbours along `axis`, n times.

    >>> aicf.diff(x).shape
    (4, 2)
    """
    if n < 0:
        raise ShapeError(f"diff: n is {n}; need 0 or more")
    before = (slice(None),) * _axis("diff", x, axis)
    for _ in range(builtins.min(n, x.shape[len(before)])):
        x = sub(x[(*before, slice(1, None))], x[(*before, slice(None, -1))])
    return x


def unstack(x: Value, axis: int = 0) -> list[Value]:
    """The slices of x along `axis`.

    >>> len(aicf.unstack(x, axis=1))
    3
    """
    before = (slice(None),) * _axis("unstack", x, axis)
    return [x[(*before, i)] for i in range(x.shape[len(before)])]


def broadcast_arrays(xs: Sequence[Value]) -> list[Value]:
    """The values in their common shape, without copying.

    >>> [v.shape for v in aicf.broadcast_arrays([x, x[:1]])]
    [(4, 3), (4, 3)]
    """
    try:
        shape = np.broadcast_shapes(*(x.shape for x in xs))
    except ValueError:
        shapes = [x.shape for x in xs]
        raise ShapeError(f"broadcast_arrays: {shapes}; need shapes that broadcast") from None
    return [x if x.shape == shape else broadcast_to(x, shape) for x in xs]


def meshgrid(xs: Sequence[Value], indexing: str = "xy") -> list[Value]:
    """Coordinates of a grid from those of its axes, each of rank 1, without copying.

    Args:
        indexing: "xy" = the first two axes exchanged, "ij" = in their order.

    >>> [v.shape for v in aicf.meshgrid([x[0], y[:, 0]], indexing="ij")]
    [(3, 4), (3, 4)]
    """
    if indexing not in ("xy", "ij") or builtins.any(x.ndim != 1 for x in xs):
        raise ShapeError(f'meshgrid: {list(xs)!r}, "{indexing}"; need rank 1, "xy" or "ij"')
    rank = len(xs)
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[:2] = [1, 0]
    sizes = [[x.shape[0] if d == place else 1 for d in range(rank)]
             for place, x in zip(places, xs, strict=True)]  # fmt: skip
    return broadcast_arrays([reshape(x, size) for x, size in zip(xs, sizes, strict=True)])


# ---- products


def vecdot(a: Value, b: Value, axis: int = -1) -> Value:
    """Sums of products along `axis`.

    >>> aicf.vecdot(x, y).shape
    (4,)
    """
    return sum(mul(a, b), axis)


def cross(a: Value, b: Value, axis: int = -1) -> Value:
    """Cross products of the vectors of 3 elements along `axis`.

    >>> aicf.cross(x, y).shape
    (4, 3)
    """
    at = _axis("cross", a, axis)
    if a.shape[at] != 3 or b.ndim != a.ndim or b.shape[at] != 3:
        raise ShapeError(f"cross: a is {a!r}, b is {b!r}; need 3 elements along axis {axis}")
    first = [roll(a, -1, at), roll(b, -2, at)]
    second = [roll(a, -2, at), roll(b, -1, at)]
    return sub(mul(*first), mul(*second))


def outer(a: Value, b: Value) -> Value:
    """a[i]·b[j] of the flattened a and b.

    >>> aicf.outer(labels * 1, labels).shape
    (4, 4)
    """
    return mul(reshape(a, [math.prod(a.shape), 1]), reshape(b, [1, math.prod(b.shape)]))


def tensordot(a: Value, b: Value, axes: int | Sequence[Sequence[int]] = 2) -> Value:
    """Sums of products over axes of a and b: the last `axes` of a with the first of b, or those
    of two lists.

    >>> aicf.tensordot(x, w, axes=([1], [1])).shape
    (4, 2)
    """
    if isinstance(axes, int):
        most = builtins.min(a.ndim, b.ndim)
        if not 0 <= axes <= most:
            raise ShapeError(f"tensordot: axes is {axes} for {a!r} and {b!r}; need 0 to {most}")
        axes = [list(range(a.ndim - axes, a.ndim)), list(range(axes))]
    if len(axes) != 2 or len(axes[0]) != len(axes[1]):
        raise ShapeError(f"tensordot: axes are {axes}; need two lists of one length")
    of_a = [_axis("tensordot", a, axis) for axis in axes[0]]
    of_b = [_axis("tensordot", b, axis) for axis in axes[1]]
    for which, of in (("a", of_a), ("b", of_b)):
        if len(set(of)) < len(of):
            raise ShapeError(f"tensordot: axes are {axes}; need axes of {which}, each once")
    labels_a = list(range(a.ndim))
    labels_b = list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip(of_a, of_b, strict=True):
        labels_b[j] = labels_a[i]
    kept = [n for n in labels_a + labels_b if (n in labels_a) != (n in labels_b)]
    return _contracted("tensordot", [a, b], [labels_a, labels_b], kept)


def einsum(equation: str, *operands: Value) -> Value:
    """Sums of products by the axes' letters: "ij,jk->ik" is the product of two matrices.

    Operands are taken from left to right, two at a time. A letter stands for axes of one size, or
    of 1; given twice in an operand, for their diagonal. "..." stands for any axes, which broadcast.
    Without "->" the letters that stand once are kept, in their order, behind "...".

    Raises: GraphError for an equation that does not fit.

    >>> aicf.einsum("ij,kj->ik", x, w).shape
    (4, 2)
    """
    for i, x in enumerate(operands):
        if not isinstance(x, Value):
            raise GraphError(
                f"einsum: operand {i} is {reprlib.repr(x)} ({type(x).__name__}); need a Value"
            )
        operands[0].graph._id(x, "einsum")
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands) or not operands:
        raise GraphError(
            f'einsum: "{equation}" has {len(terms)} operands, {len(operands)} are given; need '
            "one for each part between commas"
        )
    for term in [*terms, right]:
        letters = term.replace("...", "", 1)
        if not (letters.isalpha() or letters == "") or (
            term == right and len(set(letters)) != len(letters)
        ):
            raise GraphError(
                f'einsum: "{term}" of "{equation}"; need letters and "...", once each in a result'
            )
    if not arrow:
        once = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        right = "..." * ("..." in left) + "".join(once)
    if set(right) - set(left):
        raise GraphError(f'einsum: "{right}" of "{equation}"; need letters of the operands')
    labels = [_labels(equation, term, x) for term, x in zip(terms, operands, strict=True)]
    most = builtins.max((-label for of in labels for label in of if label < 0), default=0)
    kept = [-k for k in range(most, 0, -1)] if "..." in right else []
    before, _, behind = right.partition("...")
    kept = [*map(ord, before), *kept, *map(ord, behind)]
    parts = [_of_diagonals(x, of, labels, operands) for x, of in zip(operands, labels, strict=True)]
    return _contracted("einsum", [x for x, _ in parts], [of for _, of in parts], kept)


def _labels(equation: str, term: str, x: Value) -> list[int]:
    """A label for each axis; those of "..." are -n to -1, by which axes of operands meet."""
    before, dots, behind = term.partition("...")
    wide = x.ndim - len(before) - len(behind)
    if wide < 0 or (wide and not dots):
        raise ShapeError(f'einsum: "{term}" of "{equation}" is {x!r}; need a letter an axis')
    return [*map(ord, before), *range(-wide, 0), *map(ord, behind)]


def _of_diagonals(
    x: Value, labels: list[int], every: list[list[int]], operands: Sequence[Value]
) -> tuple[Value, list[int]]:
    """x with each label once, and no axes of 1 that broadcast."""
    while len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        i = labels.index(twice)
        j = labels.index(twice, i + 1)
        if x.shape[i] != x.shape[j]:
            raise ShapeError(f"einsum: axes {i} and {j} of {x!r} have one letter; need equal sizes")
        x = diagonal(moveaxis(x, [i, j], [-2, -1]))
        labels = [label for d, label in enumerate(labels) if d not in (i, j)] + [twice]
    wide = {
        label
        for other, of in zip(operands, every, strict=True)
        for size, label in zip(other.shape, of, strict=True)
        if size != 1
    }
    kept = [d for d, label in enumerate(labels) if not (label in wide and x.shape[d] == 1)]
    if len(kept) < len(labels):
        x, labels = reshape(x, [x.shape[d] for d in kept]), [labels[d] for d in kept]
    return x, labels


Named = tuple[Value, list[int]]  # a value and a label of each axis


@checked
def _contracted(
    name: str, values: Sequence[Value], labels_of: Sequence[Sequence[int]], kept: Sequence[int]
) -> Value:
    """Sums of products over the labels that are not kept, whose order the result has."""
    operands = [(x, list(labels)) for x, labels in zip(values, labels_of, strict=True)]
    sizes: dict[int, int] = {}
    for x, labels in operands:
        for label, size in zip(labels, x.shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise ShapeError(
                    f"{name}: an axis of {x!r} has {size} elements, the one that it meets has "
                    f"{sizes[label]}; need equal sizes"
                )
    first, *rest = operands
    for i, other in enumerate(rest):
        needed = set(kept).union(*(labels for _, labels in rest[i + 1 :]))
        first = _pair(first, other, needed, sizes)
    x, labels = _summed(first, set(kept))
    order = [labels.index(label) for label in kept]
    return x if order == sorted(order) else permute(x, order)


def _summed(operand: Named, needed: set[int]) -> Named:
    x, labels = operand
    over = [axis for axis, label in enumerate(labels) if label not in needed]
    return (sum(x, over) if over else x), [label for label in labels if label in needed]


def _pair(a: Named, b: Named, needed: set[int], sizes: dict[int, int]) -> Named:
    """One product of matrices, in batches: of what is in both, kept or not, and in one alone."""
    x, of_x = _summed(a, needed | set(b[1]))
    y, of_y = _summed(b, needed | set(a[1]))
    batch = [label for label in of_x if label in of_y and label in needed]
    inner = [label for label in of_x if label in of_y and label not in needed]
    rows = [label for label in of_x if label not in of_y]
    columns = [label for label in of_y if label not in of_x]

    def matrix(value: Value, labels: list[int], *groups: list[int]) -> Value:
        order = [labels.index(label) for group in (batch, *groups) for label in group]
        value = value if order == sorted(order) else permute(value, order)
        counts = [math.prod(sizes[label] for label in group) for group in groups]
        return reshape(value, [*(sizes[label] for label in batch), *counts])

    result = batch + rows + columns
    shape = [sizes[label] for label in result]
    if not inner:  # no sum: a product of each with each
        wide = mul(matrix(x, of_x, rows, []), matrix(y, of_y, [], columns))
        return reshape(wide, shape), result
    return reshape(
        matmul(matrix(x, of_x, rows, inner), matrix(y, of_y, inner, columns)), shape
    ), result


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
