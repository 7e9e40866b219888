"""Pools of signals, images and volumes: the largest element or the mean of each window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ._core import GraphError, ShapeError
from .arguments import Sizes, checked
from .arrays import _power, moveaxis
from .convolutions import _AXES, _around, _sizes, _windows
from .graph import Value
from .indexing import scatter
from .movement import broadcast_to, expand_dims, reshape, squeeze, take
from .operands import _emit, _number
from .ops import _as, _widened, add, argmax, div, matmul, mean, mul, pow, sum

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
]


class _Axis(NamedTuple):
    """The windows along one axis."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    windows: int

    def behind(self) -> int:
        """Elements that the windows read behind the last."""
        end = (self.windows - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        return max(self.padding, end - self.padding - self.size)

    def read(self) -> np.ndarray:
        """[windows, kernel]: what each window reads; where that is padding, its first element."""
        first = np.arange(self.windows) * self.stride - self.padding
        at = first[:, None] + np.arange(self.kernel) * self.dilation
        inside = (at >= 0) & (at < self.size)
        own = np.take_along_axis(at, inside.argmax(1)[:, None], 1)
        return np.where(inside, at, own)

    def elements(self, padding: bool) -> np.ndarray:
        """How many of each window count: those of x, and the padding where that is said."""
        first = np.arange(self.windows) * self.stride - self.padding
        last = np.minimum(first + self.kernel, self.size + (self.padding if padding else 0))
        return last - (first if padding else np.maximum(first, 0))


def _need_axes(name: str, x: Value, n: int) -> None:
    if x.ndim < n:
        raise ShapeError(f"{name}: x is {x!r}; need [..., {_AXES[n]}]")


def _axes_of(
    name: str,
    n: int,
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> list[_Axis]:
    _need_axes(name, x, n)
    kernel, around, spread = (_sizes(name, v, n) for v in (kernel_size, padding, dilation))
    steps = kernel if stride is None or stride == [] else _sizes(name, stride, n)
    if min(*kernel, *steps, *spread) < 1 or min(around) < 0:
        raise ShapeError(
            f"{name}: kernel_size is {kernel}, stride {steps}, dilation {spread}, padding "
            f"{around}; need sizes >= 1 and padding >= 0"
        )
    axes = []
    for axis, k, s, p, d in zip(range(-n, 0), kernel, steps, around, spread, strict=True):
        size, span = x.shape[axis], (k - 1) * d + 1
        if 2 * p > span:
            raise ShapeError(
                f"{name}: padding {around} around windows that span {span}; need at most half"
            )
        count = (size + 2 * p - span + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= size + p:
            count -= 1  # a window begins in x or in the padding before it
        if size < 1 or count < 1:
            raise ShapeError(
                f"{name}: axis {axis} of {x!r}, the window spans {k} elements {d} apart, padding "
                f"{p}; need it to fit (more padding, or a smaller kernel)"
            )
        axes.append(_Axis(size, k, s, p, d, count))
    return axes


def _cut(name: str, x: Value, axes: list[_Axis], fill: float) -> Value:
    """[..., kernel, windows] of x with `fill` around it."""
    padded = _around(x, [(a.padding, a.behind()) for a in axes], fill)
    kernel, stride, dilation = ([a[i] for a in axes] for i in (1, 2, 4))
    return _windows(name, padded, kernel, stride, dilation)


# ---- maxima


def _maxima(name: str, x: Value, axes: list[_Axis]) -> Value:
    padded = _around(x, [(a.padding, a.behind()) for a in axes], -math.inf)
    if len(axes) == 1:
        return squeeze(_maxima_2d(name, expand_dims(padded, -2), axes), -2)
    y = _maxima_2d(name, padded, axes[-2:])
    if len(axes) == 2:
        return y
    # Of planes, then along the depth: of equal elements the first stays the first.
    lead, (depth, rows, columns) = y.shape[:-3], y.shape[-3:]
    lines = reshape(y, [*lead, depth, rows * columns])
    deep = _emit(
        "MaxPool", name, lines, kernel=[axes[0].kernel, 1], stride=[axes[0].stride, 1],
        dilation=[axes[0].dilation, 1],
    )  # fmt: skip
    return reshape(deep, [*lead, axes[0].windows, rows, columns])


def _maxima_2d(name: str, x: Value, axes: list[_Axis]) -> Value:
    ones = [1] * (2 - len(axes))
    kernel, stride, dilation = ([*ones, *(a[i] for a in axes)] for i in (1, 2, 4))
    return _emit("MaxPool", name, x, kernel=kernel, stride=stride, dilation=dilation)


def _places(
    name: str, x: Value, axes: list[_Axis], read: list[np.ndarray], size: Sequence[int]
) -> Value:
    """int64 places of the largest elements of the windows in axes of `size`, counted through them.

    `read` holds for each axis where its windows' elements stand, [windows, kernel].
    """
    n = len(axes)
    windows = _cut(name, x, axes, -math.inf)
    lead, counts = list(x.shape[: x.ndim - n]), [a.windows for a in axes]
    taps = math.prod(a.kernel for a in axes)
    tap = argmax(reshape(windows, [*lead, taps, *counts]), len(lead))
    places = None
    graph, split = x.graph, np.unravel_index(np.arange(taps), [a.kernel for a in axes])
    for a, table in enumerate(read):
        # of window i and position t at i + t·windows
        line = np.ascontiguousarray(table.T).reshape(-1) * math.prod(size[a + 1 :])
        own = take(graph.constant(split[a] * axes[a].windows), tap)
        window = np.arange(axes[a].windows).reshape([-1] + [1] * (n - 1 - a))
        at = take(graph.constant(line), add(own, graph.constant(window)))
        places = at if places is None else add(places, at)
    assert places is not None
    return places


def _max_pool(
    name: str,
    n: int,
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    axes = _axes_of(name, n, x, kernel_size, stride, padding, dilation, ceil_mode)
    y = _maxima(name, x, axes)
    if not return_indices:
        return y
    return y, _places(name, x, axes, [a.read() for a in axes], [a.size for a in axes])


def max_pool1d(
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """max_pool2d of signals [..., L].

    >>> aicf.max_pool1d(image[:, :, 0], 2).shape
    (1, 2, 4)
    """
    return _max_pool(
        "max_pool1d", 1, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


def max_pool2d(
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of each window of [..., H, W]; the first of equals takes the gradient.

    Args:
        stride: None = kernel_size.
        padding: elements around x that are smaller than all; at most half of what a window spans.
        ceil_mode: also a last window that x does not fill, if it begins in x or before.
        return_indices: also the int64 places of the elements, row·W + column. The windows are
            copied for it.

    >>> aicf.max_pool2d(image, 2).shape
    (1, 2, 4, 4)
    """
    return _max_pool(
        "max_pool2d", 2, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


def max_pool3d(
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """max_pool2d of volumes [..., D, H, W].

    >>> values, indices = aicf.max_pool3d(image, (1, 2, 2), return_indices=True)
    >>> indices.shape
    (1, 2, 4, 4)
    """
    return _max_pool(
        "max_pool3d", 3, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


def _whole_sizes(name: str, n: int, x: Value, output_size: Sizes) -> list[int]:
    """Of an adaptive pool; None = that of x."""
    _need_axes(name, x, n)
    given = list(output_size) if isinstance(output_size, Sequence) else [output_size]
    given = given * n if len(given) == 1 else given
    if len(given) != n:
        raise ShapeError(f"{name}: output_size is {output_size!r}; need one or {n} sizes")
    sizes = []
    for axis, size in zip(range(-n, 0), given, strict=True):
        sizes.append(x.shape[axis] if size is None else size)
        if sizes[-1] < 1 or x.shape[axis] < 1:
            raise ShapeError(f"{name}: {sizes[-1]} windows of {x!r}; need 1 or more, of 1 or more")
    return sizes


def _spans(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each of `count` windows of an adaptive pool begins, and ends before."""
    i = np.arange(count)
    return i * size // count, -(-(i + 1) * size // count)


def _adaptive_max(name: str, n: int, x: Value, output_size: Sizes, return_indices: bool) -> Any:
    sizes = _whole_sizes(name, n, x, output_size)
    old, read, axes = x.shape[x.ndim - n :], [], []
    for axis, count in zip(range(-n, 0), sizes, strict=True):
        size = x.shape[axis]
        if max(count, size) > 1 << 28:
            raise ShapeError(f"{name}: {count} windows of {x!r}; need at most 2**28")
        begin, end = _spans(size, count)
        kernel = int((end - begin).max())
        table = np.minimum(begin[:, None] + np.arange(kernel), end[:, None] - 1)  # the last again
        if size != count * kernel:
            x = take(x, x.graph.constant(table.reshape(-1)), x.ndim + axis)
        read.append(table)
        axes.append(_Axis(count * kernel, kernel, kernel, 0, 1, count))
    y = _maxima(name, x, axes)
    return (y, _places(name, x, axes, read, old)) if return_indices else y


def adaptive_max_pool1d(x: Value, output_size: Sizes, return_indices: bool = False) -> Any:
    """adaptive_max_pool2d of signals [..., L].

    >>> aicf.adaptive_max_pool1d(image[:, :, 0], 3).shape
    (1, 2, 3)
    """
    return _adaptive_max("adaptive_max_pool1d", 1, x, output_size, return_indices)


def adaptive_max_pool2d(x: Value, output_size: Sizes, return_indices: bool = False) -> Any:
    """Largest elements of [..., H, W] over the windows of adaptive_avg_pool2d.

    Args:
        output_size: one number for all axes, or one an axis; None = that of x.
        return_indices: also their int64 places, row·W + column.

    >>> aicf.adaptive_max_pool2d(image, (3, None)).shape
    (1, 2, 3, 8)
    """
    return _adaptive_max("adaptive_max_pool2d", 2, x, output_size, return_indices)


def adaptive_max_pool3d(x: Value, output_size: Sizes, return_indices: bool = False) -> Any:
    """adaptive_max_pool2d of volumes [..., D, H, W].

    >>> aicf.adaptive_max_pool3d(image, 1).shape
    (1, 1, 1, 1)
    """
    return _adaptive_max("adaptive_max_pool3d", 3, x, output_size, return_indices)


# ---- and back


def _unpooled(
    name: str,
    n: int,
    x: Value,
    indices: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
    output_size: Sequence[int] | None,
) -> Value:
    _need_axes(name, x, n)
    if indices.shape != x.shape:
        raise ShapeError(f"{name}: x is {x!r}, indices are {indices!r}; need one shape")
    kernel, around = _sizes(name, kernel_size, n), _sizes(name, padding, n)
    steps = kernel if stride is None or stride == [] else _sizes(name, stride, n)
    lead, old = list(x.shape[: x.ndim - n]), x.shape[x.ndim - n :]
    plain = [(m - 1) * s - 2 * p + k for m, s, p, k in
             zip(old, steps, around, kernel, strict=True)]  # fmt: skip
    new = plain if output_size is None else list(output_size)[-n:]
    if len(new) != n or any(abs(a - b) >= s for a, b, s in zip(new, plain, steps, strict=False)):
        raise ShapeError(
            f"{name}: output_size is {output_size}; need {plain}, each within its stride {steps}"
        )
    if min(new) < 1:
        raise ShapeError(f"{name}: x is {x!r}, the result [..., {new}]; need sizes of 1 or more")
    rows = [math.prod(lead), math.prod(old)]
    nothing = broadcast_to(_number(name, x.graph, 0.0, x.dtype), [rows[0], math.prod(new)])
    y = scatter(nothing, 1, reshape(indices, rows), reshape(x, rows))
    return reshape(y, [*lead, *new])


def max_unpool1d(
    x: Value,
    indices: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> Value:
    """max_unpool2d of signals [..., L].

    >>> values, indices = aicf.max_pool1d(image[:, :, 0], 2, return_indices=True)
    >>> aicf.max_unpool1d(values, indices, 2).shape
    (1, 2, 8)
    """
    return _unpooled("max_unpool1d", 1, x, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    x: Value,
    indices: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> Value:
    """What max_pool2d(..., return_indices=True) took, put back to its places among zeros.

    Of equal indices the last holds. Costs what `scatter` does.

    Args:
        output_size: of the result, where several sizes give x's; None = the smallest plus padding.

    >>> values, indices = aicf.max_pool2d(image, 2, return_indices=True)
    >>> aicf.max_unpool2d(values, indices, 2).shape
    (1, 2, 8, 8)
    """
    return _unpooled("max_unpool2d", 2, x, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    x: Value,
    indices: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> Value:
    """max_unpool2d of volumes [..., D, H, W].

    >>> values, indices = aicf.max_pool3d(image, 2, return_indices=True)
    >>> aicf.max_unpool3d(values, indices, 2).shape
    (1, 2, 8, 8)
    """
    return _unpooled("max_unpool3d", 3, x, indices, kernel_size, stride, padding, output_size)


# ---- means


def _avg_pool(
    name: str,
    n: int,
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    axes = _axes_of(name, n, x, kernel_size, stride, padding, 1, ceil_mode)
    total = _window_sums(name, _widened(x), axes)
    whole = math.prod(a.kernel for a in axes)
    if divisor_override is not None:
        if divisor_override == 0:
            raise GraphError(f"{name}: divisor_override is 0; need another number")
        return _as(div(total, float(divisor_override)), x.dtype)
    counts = np.ones([1] * n)
    for a, axis in enumerate(axes):
        sizes = [1] * n
        sizes[a] = axis.windows
        counts = counts * axis.elements(count_include_pad).reshape(sizes)
    if (counts == whole).all():
        return _as(div(total, float(whole)), x.dtype)
    return _as(div(total, x.graph.constant(counts.astype(total.dtype))), x.dtype)


def _window_sums(name: str, x: Value, axes: list[_Axis]) -> Value:
    if any(a.kernel != a.stride for a in axes):
        return sum(_cut(name, x, axes, 0.0), list(range(-2 * len(axes), -len(axes))))
    # Windows side by side are one more axis each, summed one after the other, in long rows first.
    x = _around(x, [(a.padding, a.behind()) for a in axes])
    for at, a in zip(range(x.ndim - len(axes), x.ndim), axes, strict=True):
        if x.shape[at] > a.windows * a.kernel:
            x = x[(*(slice(None),) * at, slice(a.windows * a.kernel))]
        apart = [*x.shape[:at], a.windows, a.kernel, *x.shape[at + 1 :]]
        x = sum(reshape(x, apart), at + 1)
    return x


def avg_pool1d(
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """avg_pool2d of signals [..., L].

    >>> aicf.avg_pool1d(image[:, :, 0], 2).shape
    (1, 2, 4)
    """
    return _avg_pool(
        "avg_pool1d", 1, x, kernel_size, stride, padding, ceil_mode, count_include_pad, None
    )


def avg_pool2d(
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """Mean of each window of [..., H, W].

    Args:
        stride: None = kernel_size.
        padding: zeros around x; at most half of kernel_size.
        ceil_mode: also a last window that x does not fill, if it begins in x or before; what it
            lacks does not count.
        count_include_pad: the padding counts as elements.
        divisor_override: what the sums are divided by, else the count of elements.

    >>> aicf.avg_pool2d(image, 2).shape
    (1, 2, 4, 4)
    """
    return _avg_pool(
        "avg_pool2d", 2, x, kernel_size, stride, padding, ceil_mode, count_include_pad,
        divisor_override,
    )  # fmt: skip


def avg_pool3d(
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """avg_pool2d of volumes [..., D, H, W].

    >>> aicf.avg_pool3d(image, 2).shape
    (1, 1, 4, 4)
    """
    return _avg_pool(
        "avg_pool3d", 3, x, kernel_size, stride, padding, ceil_mode, count_include_pad,
        divisor_override,
    )  # fmt: skip


def _adaptive_mean(name: str, n: int, x: Value, output_size: Sizes) -> Value:
    for axis, count in zip(range(-n, 0), _whole_sizes(name, n, x, output_size), strict=True):
        x = _pooled(name, x, x.ndim + axis, count)
    return x


def adaptive_avg_pool1d(x: Value, output_size: Sizes) -> Value:
    """adaptive_avg_pool2d of signals [..., L].

    >>> aicf.adaptive_avg_pool1d(image[:, :, 0], 4).shape
    (1, 2, 4)
    """
    return _adaptive_mean("adaptive_avg_pool1d", 1, x, output_size)


def adaptive_avg_pool2d(x: Value, output_size: Sizes) -> Value:
    """Means of [..., H, W] over windows that give `output_size`: window i of n begins at ⌊iH/n⌋
    and ends before ⌈(i + 1)H/n⌉.

    Windows of unequal sizes are products of matrices: `compile(math=)` says how they round, and an
    infinity or NaN spoils its whole axis.

    Args:
        output_size: one number for all axes, or one an axis; None = that of x.

    >>> aicf.adaptive_avg_pool2d(image, 3).shape
    (1, 2, 3, 3)
    """
    return _adaptive_mean("adaptive_avg_pool2d", 2, x, output_size)


def adaptive_avg_pool3d(x: Value, output_size: Sizes) -> Value:
    """adaptive_avg_pool2d of volumes [..., D, H, W].

    >>> aicf.adaptive_avg_pool3d(image, (1, 4, 4)).shape
    (1, 1, 4, 4)
    """
    return _adaptive_mean("adaptive_avg_pool3d", 3, x, output_size)


def _pooled(name: str, x: Value, at: int, count: int) -> Value:
    size = x.shape[at]
    if size == count:
        return x
    if size % count == 0:
        shape = [*x.shape[:at], count, size // count, *x.shape[at + 1 :]]
        return mean(reshape(x, shape), at + 1)
    shares = _no_shares(name, count, size)
    for i, (begin, end) in enumerate(zip(*_spans(size, count), strict=True)):
        shares[i, begin:end] = 1 / (end - begin)
    return _mixed(x, at, shares)


def _no_shares(name: str, new: int, old: int) -> np.ndarray:
    """By element of an axis and one before: the matrix that `_mixed` takes, to be filled."""
    if new * old > 1 << 28:
        raise ShapeError(f"{name}: {new} elements made of {old}; need a product below 2**28")
    return np.zeros((new, old))


def _mixed(x: Value, axis: int, shares: np.ndarray) -> Value:
    """Sums along an axis by the rows of a constant matrix."""
    wide = _widened(x)
    matrix = x.graph.constant(np.ascontiguousarray(shares.T, wide.dtype))
    y = moveaxis(matmul(moveaxis(wide, axis, -1), matrix), -1, axis)
    return _as(y, x.dtype)


# ---- norms of windows


def _lp_pool(
    name: str,
    n: int,
    x: Value,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    ceil_mode: bool,
) -> Value:
    if not norm_type > 0 or math.isinf(norm_type):
        raise GraphError(f"{name}: norm_type is {norm_type}; need a finite number > 0")
    wide = _widened(x)
    powers = mul(wide, wide) if norm_type == 2 else pow(wide, norm_type)
    means = _avg_pool(name, n, powers, kernel_size, stride, 0, ceil_mode, True, None)
    taps = math.prod(_sizes(name, kernel_size, n))
    return _as(_power(mul(means, float(taps)), 1 / norm_type), x.dtype)


def lp_pool1d(
    x: Value,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> Value:
    """lp_pool2d of signals [..., L].

    >>> aicf.lp_pool1d(image[:, :, 0], 2, 4).shape
    (1, 2, 2)
    """
    return _lp_pool("lp_pool1d", 1, x, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    x: Value,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> Value:
    """(Σ xᵖ)^(1/p) of each window of [..., H, W], p = norm_type; its gradient at 0 is 0.

    >>> aicf.lp_pool2d(image, 2, 4).shape
    (1, 2, 2, 2)
    """
    return _lp_pool("lp_pool2d", 2, x, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    x: Value,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> Value:
    """lp_pool2d of volumes [..., D, H, W].

    >>> aicf.lp_pool3d(image, 2, 2).shape
    (1, 1, 4, 4)
    """
    return _lp_pool("lp_pool3d", 3, x, norm_type, kernel_size, stride, ceil_mode)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
