"""Functions of NumPy and SciPy that are composed of ops: missing numbers, statistics, integrals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._core import GraphError, ShapeError
from .arguments import checked
from .arrays import count_nonzero, isinf, logaddexp, moveaxis
from .graph import Operand, Value
from .movement import _axes, _axis, broadcast_to, concat, detach, expand_dims, reshape
from .operands import _operands
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
    "gradient",
    "heaviside",
    "isclose",
    "isin",
    "lerp",
    "logaddexp2",
    "logit",
    "nan_to_num",
    "nanmean",
    "nansum",
    "sinc",
    "trapezoid",
    "xlog1py",
    "xlogy",
]

LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38}
LARGEST |= {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}


# ---- elements


def fmax(a: Operand, b: Operand) -> Value:
    """The larger of two elements; of a NaN and a number the number. Equal ones are a's, with the
    gradient.

    >>> aicf.fmax(x, y).shape
    (4, 3)
    """
    a, b = _operands("fmax", a, b)
    return where(logical_or(greater_equal(a, b), isnan(b)), a, b)


def fmin(a: Operand, b: Operand) -> Value:
    """The smaller of two elements; of a NaN and a number the number. Equal ones are a's, with the
    gradient.

    >>> aicf.fmin(x, y).shape
    (4, 3)
    """
    a, b = _operands("fmin", a, b)
    return where(logical_or(less_equal(a, b), isnan(b)), a, b)


def heaviside(x: Value, at_zero: Operand) -> Value:
    """0 below 0, 1 above, `at_zero` where x is 0; a NaN stays.

    >>> aicf.heaviside(x, 0.5).shape
    (4, 3)
    """
    step = where(isnan(x), x, cast(greater(x, 0.0), x.dtype))
    return where(equal(x, 0.0), at_zero, step)


def lerp(a: Operand, b: Operand, weight: Operand) -> Value:
    """a + weight·(b − a).

    >>> aicf.lerp(x, y, 0.25).shape
    (4, 3)
    """
    a, b = _operands("lerp", a, b)
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


def xlogy(x: Operand, y: Operand) -> Value:
    """x·log(y), and 0 where x is 0 and y is no NaN.

    >>> aicf.xlogy(x, aicf.exp(y)).shape
    (4, 3)
    """
    x, y = _operands("xlogy", x, y)
    unbounded = logical_or(less_equal(y, 0.0), equal(y, math.inf))
    nothing = logical_and(equal(x, 0.0), unbounded)
    return mul(x, log(where(nothing, 1.0, y)))


def xlog1py(x: Operand, y: Operand) -> Value:
    """x·log(1 + y), and 0 where x is 0 and y is no NaN.

    >>> aicf.xlog1py(x, aicf.exp(y)).shape
    (4, 3)
    """
    x, y = _operands("xlog1py", x, y)
    unbounded = logical_or(less_equal(y, -1.0), equal(y, math.inf))
    nothing = logical_and(equal(x, 0.0), unbounded)
    return mul(x, log1p(where(nothing, 0.0, y)))


def logaddexp2(a: Operand, b: Operand) -> Value:
    """log2(2**a + 2**b), safe for large numbers.

    >>> aicf.logaddexp2(x, y).shape
    (4, 3)
    """
    a, b = _operands("logaddexp2", a, b)
    two = math.log(2.0)
    wide, other = mul(_widened(a), two), mul(_widened(b), two)
    return _as(div(logaddexp(wide, other), two), a.dtype)


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
    a: Operand, b: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    """Where |a − b| <= atol + rtol·|b|, or both are one infinity.

    >>> aicf.isclose(x, y, atol=0.1).dtype
    'bool'
    """
    a, b = _operands("isclose", a, b)
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


def cov(
    x: Value, correction: int = 1, fweights: Value | None = None, aweights: Value | None = None
) -> Value:
    """The covariances of the rows of x [variables, observations]; of one row its variance.

    Args:
        fweights: how often each observation counts, of any numbers.
        aweights: how much each counts, of any numbers; see NumPy's for what is divided by.

    >>> aicf.cov(x).shape
    (4, 4)
    """
    if x.ndim > 2:
        raise ShapeError(f"cov: x is {x!r}; need [variables, observations]")
    rows = reshape(_widened(x), (-1, x.shape[-1] if x.ndim else 1))
    n = rows.shape[1]
    given = [
        (name, w) for name, w in (("fweights", fweights), ("aweights", aweights)) if w is not None
    ]
    for name, w in given:
        if w.shape != (n,):
            raise ShapeError(f"cov: {name} are {w!r} for x {x!r}; need one an observation")
    if not given:
        if n <= correction:
            raise ShapeError(f"cov: x is {x!r}; need more than {correction} observations")
        centred = sub(rows, mean(rows, 1, keepdims=True))
        result = div(matmul(centred, centred.T), float(n - correction))
    else:
        weights = cast(given[0][1], rows.dtype)
        for _, w in given[1:]:
            weights = mul(weights, cast(w, rows.dtype))
        total = sum(weights)
        centred = sub(rows, div(sum(mul(rows, weights), 1, keepdims=True), total))
        less = mul(total, 0.0) + float(correction)
        if aweights is not None and correction:
            by_weight = mul(weights, cast(aweights, rows.dtype))
            less = mul(div(sum(by_weight), total), float(correction))
        over = maximum(sub(total, less), 0.0)
        result = div(matmul(mul(centred, weights), centred.T), over)
    result = _as(result, x.dtype)
    return reshape(result, ()) if rows.shape[0] == 1 else result


def corrcoef(x: Value) -> Value:
    """The correlations of the rows of x [variables, observations], 1 on the diagonal.

    >>> aicf.corrcoef(x).shape
    (4, 4)
    """
    if x.ndim not in (1, 2) or x.shape[-1] < 2:
        raise ShapeError(f"corrcoef: x is {x!r}; need [variables, 2 or more observations]")
    wide = reshape(_widened(x), (-1, x.shape[-1]))
    centred = sub(wide, mean(wide, 1, keepdims=True))
    unit = div(centred, sqrt(sum(mul(centred, centred), 1, keepdims=True)))
    result = _as(minimum(maximum(matmul(unit, unit.T), -1.0), 1.0), x.dtype)
    return reshape(result, ()) if wide.shape[0] == 1 else result


def gradient(
    x: Value,
    spacing: float | Sequence[float] | Sequence[Sequence[float]] = 1.0,
    axis: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> list[Value]:
    """The slopes of x along each axis of `axis` (None = all), by differences of its neighbours.

    Args:
        spacing: between points, one number for all axes or one for each; or the coordinates of
            the points of each axis.
        edge_order: 1 or 2, how far the formula at the first and last point is right.

    As NumPy's, whose spacings are further arguments.

    >>> [v.shape for v in aicf.gradient(x, 0.5)]
    [(4, 3), (4, 3)]
    """
    if edge_order not in (1, 2):
        raise GraphError(f"gradient: edge_order is {edge_order}; need 1 or 2")
    axes = [_axis("gradient", x, a) for a in _axes(x, axis)]
    steps: list[Any] = list(spacing) if isinstance(spacing, Sequence) else [spacing] * len(axes)
    if len(steps) != len(axes):
        raise ShapeError(f"gradient: {len(steps)} spacings for {len(axes)} axes; need one each")
    return [_slope(x, a, step, edge_order) for a, step in zip(axes, steps, strict=True)]


def _slope(x: Value, axis: int, step: float | Sequence[float], edge_order: int) -> Value:
    n = x.shape[axis]
    if n < edge_order + 1:
        raise ShapeError(f"gradient: x is {x!r}; need {edge_order + 1} points along axis {axis}")
    if isinstance(step, Sequence) and len(step) != n:
        raise ShapeError(
            f"gradient: {len(step)} coordinates for {n} points of axis {axis}; need one for each"
        )
    at = np.diff(step) if isinstance(step, Sequence) else np.full(n - 1, step)
    apart = at.astype(np.float64)
    if not np.all(np.isfinite(apart)) or np.any(apart == 0):
        raise GraphError(f"gradient: spacing is {step}; need finite numbers, points apart")
    y = moveaxis(_widened(x), axis, -1)

    def weighted(places: Sequence[slice], weights: Sequence[np.ndarray]) -> Value:
        total = None
        for place, weight in zip(places, weights, strict=True):
            part = y[..., place]
            if np.ptp(weight) == 0:
                if weight[0] == 0 and total is not None:
                    continue
                term = mul(part, float(weight[0]))
            else:
                term = mul(part, y.graph.constant(weight.astype(y.dtype)))
            total = term if total is None else add(total, term)
        assert total is not None
        return total

    a, b = apart[:-1], apart[1:]
    parts = []
    if n > 2:
        inside = [slice(None, -2), slice(1, -1), slice(2, None)]
        parts = [weighted(inside, (-b / (a * (a + b)), (b - a) / (a * b), a / (b * (a + b))))]
    if edge_order == 1:
        ends = [
            weighted([slice(0, 1), slice(1, 2)], [-1 / apart[:1], 1 / apart[:1]]),
            weighted([slice(n - 2, n - 1), slice(n - 1, n)], [-1 / apart[-1:], 1 / apart[-1:]]),
        ]
    else:
        a, b = apart[:1], apart[1:2]
        first = (-(2 * a + b) / (a * (a + b)), (a + b) / (a * b), -a / (b * (a + b)))
        a, b = apart[-2:-1], apart[-1:]
        last = (b / (a * (a + b)), -(b + a) / (a * b), (2 * b + a) / (b * (a + b)))
        ends = [
            weighted([slice(0, 1), slice(1, 2), slice(2, 3)], first),
            weighted([slice(n - 3, n - 2), slice(n - 2, n - 1), slice(n - 1, n)], last),
        ]
    return _as(moveaxis(concat([ends[0], *parts, ends[1]], -1), -1, axis), x.dtype)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
