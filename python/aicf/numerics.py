"""Functions of NumPy and SciPy that are composed of ops: missing numbers, statistics, integrals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ._core import ShapeError
from .arguments import checked
from .arrays import count_nonzero, isinf, moveaxis
from .graph import Operand, Value
from .movement import _axis, broadcast_to, detach, expand_dims, reshape
from .ops import (
    _as,
    _widened,
    abs,
    add,
    cast,
    clip,
    div,
    equal,
    greater,
    greater_equal,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    matmul,
    maximum,
    mean,
    minimum,
    mul,
    neg,
    sin,
    sqrt,
    sub,
    sum,
    where,
)

__all__ = [
    "corrcoef",
    "cov",
    "cumulative_trapezoid",
    "fmax",
    "fmin",
    "heaviside",
    "isclose",
    "isin",
    "lerp",
    "logit",
    "nan_to_num",
    "nanmean",
    "nansum",
    "sinc",
    "trapezoid",
    "xlogy",
]

LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38}
LARGEST |= {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}


# ---- elements


def fmax(a: Value, b: Value) -> Value:
    """The larger of two elements; of a NaN and a number the number. Equal ones are a's, with the
    gradient.

    >>> aicf.fmax(x, y).shape
    (4, 3)
    """
    return where(logical_or(greater_equal(a, b), isnan(b)), a, b)


def fmin(a: Value, b: Value) -> Value:
    """The smaller of two elements; of a NaN and a number the number. Equal ones are a's, with the
    gradient.

    >>> aicf.fmin(x, y).shape
    (4, 3)
    """
    return where(logical_or(less_equal(a, b), isnan(b)), a, b)


def heaviside(x: Value, at_zero: Operand) -> Value:
    """0 below 0, 1 above, `at_zero` where x is 0; a NaN stays.

    >>> aicf.heaviside(x, 0.5).shape
    (4, 3)
    """
    step = where(isnan(x), x, cast(greater(x, 0.0), x.dtype))
    return where(equal(x, 0.0), at_zero, step)


def lerp(a: Value, b: Value, weight: Operand) -> Value:
    """a + weight·(b − a).

    >>> aicf.lerp(x, y, 0.25).shape
    (4, 3)
    """
    return add(a, mul(sub(b, a), weight))


def logit(x: Value, eps: float | None = None) -> Value:
    """log(x / (1 − x)), the number whose sigmoid is x; `eps` first moves x into [eps, 1 − eps].

    >>> aicf.logit(aicf.sigmoid(x)).shape
    (4, 3)
    """
    if eps is not None:
        x = clip(x, eps, 1.0 - eps)
    return sub(log(x), log1p(neg(x)))


def sinc(x: Value) -> Value:
    """sin(πx) / (πx), and 1 at 0; all derivatives are right there, too.

    >>> aicf.sinc(x).shape
    (4, 3)
    """
    wide = mul(_widened(x), math.pi)
    near = less(abs(wide), 0.02)
    far = where(near, 1.0, wide)
    s = mul(wide, wide)
    series = 1.0
    for k in (9, 7, 5, 3):  # 1 - s/6 (1 - s/20 (1 - s/42 (1 - s/72)))
        series = sub(1.0, mul(s, series) / (k * (k - 1)))  # type: ignore[assignment]
    return _as(where(near, series, div(sin(far), far)), x.dtype)


def xlogy(x: Value, y: Value) -> Value:
    """x·log(y), and 0 where x is 0 and y is no NaN.

    >>> aicf.xlogy(x, aicf.exp(y)).shape
    (4, 3)
    """
    unbounded = logical_or(less_equal(y, 0.0), equal(y, math.inf))
    nothing = logical_and(equal(x, 0.0), unbounded)
    return mul(x, log(where(nothing, 1.0, y)))


def nan_to_num(
    x: Value, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Value:
    """x with its NaN and infinities replaced, these by the dtype's largest numbers if not given.

    >>> aicf.nan_to_num(x, posinf=1e6).shape
    (4, 3)
    """
    if x.dtype not in LARGEST:
        return x
    most = LARGEST[x.dtype]
    high, low = most if posinf is None else posinf, -most if neginf is None else neginf
    finite = where(equal(x, math.inf), high, where(equal(x, -math.inf), low, x))
    return where(isnan(x), nan, finite)


def isclose(
    a: Value, b: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    """Where |a − b| <= atol + rtol·|b|, or both are one infinity.

    >>> aicf.isclose(x, y, atol=0.1).dtype
    'bool'
    """
    near = less_equal(abs(sub(a, b)), add(mul(abs(b), rtol), atol))
    near = logical_and(near, logical_not(isinf(b)))
    close = logical_or(equal(a, b), near)
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close


def isin(x: Value, values: Value) -> Value:
    """Which elements of x are among `values`; compares each with each.

    >>> aicf.isin(labels, labels).dtype
    'bool'
    """
    each = equal(expand_dims(x, -1), reshape(values, (-1,)))
    return greater(count_nonzero(each, -1), 0)


# ---- sums


def nansum(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The sum of what is no NaN.

    >>> aicf.nansum(x, axis=1).shape
    (4,)
    """
    return sum(where(isnan(x), 0.0, x), axis, keepdims)


def nanmean(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """The mean of what is no NaN; NaN where nothing is.

    >>> aicf.nanmean(x, axis=1).shape
    (4,)
    """
    wide = _widened(x)
    missing = isnan(detach(wide))  # what counts is flat in x
    there = where(missing, 0.0, broadcast_to(x.graph.constant(1.0, wide.dtype), x.shape))
    return _as(div(nansum(wide, axis, keepdims), sum(there, axis, keepdims)), x.dtype)


def _between(name: str, y: Value, x: Value | None, dx: float, axis: int) -> Value:
    """The areas of the trapezoids along the last axis, to which `axis` is moved."""
    at = _axis(name, y, axis)
    if y.shape[at] == 0:
        raise ShapeError(f"{name}: y is {y!r}; need a point along axis {at}")
    points = moveaxis(y, at, -1)
    both = add(points[..., 1:], points[..., :-1])
    if x is None:
        return mul(both, dx / 2)
    if x.ndim > 1:
        x = moveaxis(x, at, -1)
    if x.shape[-1:] != points.shape[-1:]:
        raise ShapeError(f"{name}: x is {x!r} for y {y!r}; need as many points along axis {at}")
    return mul(mul(both, sub(x[..., 1:], x[..., :-1])), 0.5)


def trapezoid(y: Value, x: Value | None = None, dx: float = 1.0, axis: int = -1) -> Value:
    """The integral of points y at x, or `dx` apart, along `axis`, by the trapezoidal rule.

    >>> aicf.trapezoid(x, dx=0.1).shape
    (4,)
    """
    return sum(_between("trapezoid", y, x, dx, axis), -1)


def cumulative_trapezoid(
    y: Value, x: Value | None = None, dx: float = 1.0, axis: int = -1
) -> Value:
    """The integrals up to each point but the first; see `trapezoid`.

    >>> aicf.cumulative_trapezoid(x, dx=0.1).shape
    (4, 2)
    """
    areas = _between("cumulative_trapezoid", y, x, dx, axis)
    return moveaxis(areas.cumsum(-1), -1, _axis("cumulative_trapezoid", y, axis))


def cov(x: Value, correction: int = 1) -> Value:
    """The covariances of the rows of x [variables, observations]; of one row its variance.

    >>> aicf.cov(x).shape
    (4, 4)
    """
    if x.ndim not in (1, 2) or x.shape[-1] <= correction:
        raise ShapeError(
            f"cov: x is {x!r}; need [variables, observations] and more than {correction} of these"
        )
    rows = reshape(_widened(x), (-1, x.shape[-1]))
    centred = sub(rows, mean(rows, 1, keepdims=True))
    result = _as(div(matmul(centred, centred.T), float(x.shape[-1] - correction)), x.dtype)
    return reshape(result, ()) if rows.shape[0] == 1 else result


def corrcoef(x: Value) -> Value:
    """The correlations of the rows of x [variables, observations], 1 on the diagonal.

    >>> aicf.corrcoef(x).shape
    (4, 4)
    """
    if x.ndim != 2 or x.shape[1] < 2:
        raise ShapeError(f"corrcoef: x is {x!r}; need [variables, 2 or more observations]")
    wide = _widened(x)
    centred = sub(wide, mean(wide, 1, keepdims=True))
    unit = div(centred, sqrt(sum(mul(centred, centred), 1, keepdims=True)))
    result = _as(minimum(maximum(matmul(unit, unit.T), -1.0), 1.0), x.dtype)
    return reshape(result, ()) if x.shape[0] == 1 else result


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
