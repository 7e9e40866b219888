"""Convolutions, pools, norms and resizing of images and signals, composed of the ops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ._core import GraphError, ShapeError
from .arguments import checked
from .arrays import flip, moveaxis
from .graph import Value, _emit
from .movement import expand_dims, pad, permute, reshape, squeeze, take
from .nn import _pair, avg_pool2d, conv2d, max_pool2d
from .ops import _as, _widened, add, div, equal, matmul, maximum, mean, mul, pow, sqrt, sum, where
from .ops import abs as absolute

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "avg_pool1d",
    "conv1d",
    "conv_transpose1d",
    "conv_transpose2d",
    "group_norm",
    "instance_norm",
    "interpolate",
    "max_pool1d",
    "normalize",
    "pixel_shuffle",
    "pixel_unshuffle",
]


def _signal(name: str, x: Value, label: str = "x", need: str = "[N, C, L]") -> Value:
    """As an image of one row."""
    if x.ndim != 3:
        raise ShapeError(f"{name}: {label} is {x!r}; need {need}")
    return expand_dims(x, 2)


# ---- convolutions


def conv1d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Value:
    """Cross-correlation of x[N, C, L] with weight[O, C / groups, k] -> [N, O, length].

    >>> aicf.conv1d(image.reshape((1, 2, 64)), kernel[:, :, 0]).shape
    (1, 5, 62)
    """
    row = _signal("conv1d", x)
    kernel = _signal("conv1d", weight, "weight", "[O, C / groups, k]")
    y = conv2d(row, kernel, bias, [1, stride], [0, padding], [1, dilation], groups)
    return squeeze(y, 2)


def conv_transpose2d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Value:
    """The gradient of conv2d by its x: x[N, C, H, W] and weight[C, O / groups, kh, kw] -> images
    of (H − 1)·stride − 2·padding + dilation·(kh − 1) + output_padding + 1 rows.

    >>> aicf.conv_transpose2d(image, aicf.transpose(kernel, 0, 1), stride=2).shape
    (1, 5, 17, 17)
    """
    name = "conv_transpose2d"
    if x.ndim != 4 or weight.ndim != 4:
        raise ShapeError(f"{name}: x is {x!r}, weight is {weight!r}; need rank 4 each")
    depth, outs, *kernel = weight.shape
    if groups < 1 or x.shape[1] != depth or depth % groups:
        raise ShapeError(
            f"{name}: x is {x!r}, weight is {weight!r}, groups is {groups}; "
            "need x.shape[1] == weight.shape[0], which groups divides"
        )
    steps, around, more, spread = (
        _pair(name, pair) for pair in (stride, padding, output_padding, dilation)
    )
    edges = []
    for k, step, p, extra, d in zip(kernel, steps, around, more, spread, strict=True):
        if step < 1 or d < 1 or p < 0:
            raise ShapeError(
                f"{name}: stride is {step}, dilation {d}, padding {p}; need the first two > 0 and "
                "padding >= 0"
            )
        if not 0 <= extra < max(step, d):
            raise ShapeError(
                f"{name}: output_padding is {extra}; need 0 or more, less than stride or dilation"
            )
        edges.append((d * (k - 1) - p, d * (k - 1) - p + extra))
    for axis, step in zip((2, 3), steps, strict=True):  # zeros between the elements
        if step > 1 and x.shape[axis]:
            apart = pad(expand_dims(x, axis + 1), _only(axis + 1, x.ndim + 1, (0, step - 1)))
            length = x.shape[axis] * step
            shape = [*x.shape[:axis], length, *x.shape[axis + 1 :]]
            x = reshape(apart, shape)[(slice(None),) * axis + (slice(length - step + 1),)]
    turned = reshape(flip(weight, [2, 3]), [groups, depth // groups, outs, *kernel])
    kernels = reshape(permute(turned, [0, 2, 1, 3, 4]), [groups * outs, depth // groups, *kernel])
    around_x = [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in edges)]
    y = conv2d(pad(x, around_x), kernels, bias, dilation=spread, groups=groups)
    cut = []
    for axis, (low, high) in zip((2, 3), edges, strict=True):
        cut.append(slice(max(-low, 0), y.shape[axis] - max(-high, 0)))
        if cut[-1].start >= cut[-1].stop:
            raise ShapeError(f"{name}: padding is {around}, the rest {y!r}; need less padding")
    return y if min(min(pair) for pair in edges) >= 0 else y[(..., *cut)]


def _only(axis: int, rank: int, edges: tuple[int, int]) -> list[tuple[int, int]]:
    return [edges if a == axis else (0, 0) for a in range(rank)]


def conv_transpose1d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: int = 1,
    padding: int = 0,
    output_padding: int = 0,
    groups: int = 1,
    dilation: int = 1,
) -> Value:
    """conv_transpose2d of signals: x[N, C, L] and weight[C, O / groups, k].

    >>> aicf.conv_transpose1d(image[:, :, 0], aicf.transpose(kernel[:, :, 0], 0, 1), stride=2).shape
    (1, 5, 17)
    """
    name = "conv_transpose1d"
    pairs = ([1, stride], [0, padding], [0, output_padding])
    kernel = _signal(name, weight, "weight", "[C, O / groups, k]")
    y = conv_transpose2d(_signal(name, x), kernel, bias, *pairs, groups, [1, dilation])
    return squeeze(y, 2)


# ---- pools


def max_pool1d(
    x: Value, kernel_size: int, stride: int | None = None, padding: int = 0, dilation: int = 1
) -> Value:
    """Largest element of each window of [N, C, L]; the first of equals takes the gradient.

    >>> aicf.max_pool1d(image[:, :, 0], 2).shape
    (1, 2, 4)
    """
    step = kernel_size if stride is None else stride
    row = _signal("max_pool1d", x)
    return squeeze(max_pool2d(row, [1, kernel_size], [1, step], [0, padding], [1, dilation]), 2)


def avg_pool1d(x: Value, kernel_size: int, stride: int | None = None, padding: int = 0) -> Value:
    """Mean of each window of [N, C, L]; padding counts as zeros.

    >>> aicf.avg_pool1d(image[:, :, 0], 2).shape
    (1, 2, 4)
    """
    step = kernel_size if stride is None else stride
    row = _signal("avg_pool1d", x)
    return squeeze(avg_pool2d(row, [1, kernel_size], [1, step], [0, padding]), 2)


def adaptive_avg_pool2d(x: Value, output_size: int | Sequence[int]) -> Value:
    """Means of [..., H, W] over windows that give `output_size`: window i of n begins at ⌊iH/n⌋
    and ends before ⌈(i + 1)H/n⌉.

    Windows of unequal sizes are products of matrices: `compile(math=)` says how they round, and an
    infinity or NaN spoils its whole axis.

    >>> aicf.adaptive_avg_pool2d(image, 3).shape
    (1, 2, 3, 3)
    """
    rows, columns = _pair("adaptive_avg_pool2d", output_size)
    return _pooled("adaptive_avg_pool2d", _pooled("adaptive_avg_pool2d", x, -2, rows), -1, columns)


def adaptive_avg_pool1d(x: Value, output_size: int) -> Value:
    """adaptive_avg_pool2d of signals [..., L].

    >>> aicf.adaptive_avg_pool1d(image[:, :, 0], 4).shape
    (1, 2, 4)
    """
    return _pooled("adaptive_avg_pool1d", x, -1, output_size)


def _pooled(name: str, x: Value, axis: int, count: int) -> Value:
    if x.ndim < -axis:
        raise ShapeError(f"{name}: x is {x!r}; need {-axis} axes or more")
    at = x.ndim + axis
    size = x.shape[at]
    if count < 1 or size < 1:
        raise ShapeError(f"{name}: {count} windows of {x!r}; need 1 or more, of 1 or more")
    if size % count == 0:
        shape = [*x.shape[:at], count, size // count, *x.shape[at + 1 :]]
        return mean(reshape(x, shape), at + 1)
    shares = _no_shares(name, count, size)
    for i in range(count):
        begin, end = i * size // count, -(-(i + 1) * size // count)
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


# ---- norms


def group_norm(
    x: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Value:
    """(x − mean) / sqrt(var + eps) over each of `num_groups` groups of channels of x[N, C, ...],
    times weight[C] plus bias[C] (Wu and He, 2018).

    >>> aicf.group_norm(image, 2).shape
    (1, 2, 8, 8)
    """
    return _grouped("group_norm", x, num_groups, weight, bias, eps)


def instance_norm(
    x: Value, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Value:
    """group_norm with a group a channel, by the statistics of x itself (Ulyanov et al., 2016).

    >>> aicf.instance_norm(image).shape
    (1, 2, 8, 8)
    """
    groups = (x.shape[1] if x.ndim > 1 else 0) or 1
    return _grouped("instance_norm", x, groups, weight, bias, eps)


def _grouped(
    name: str, x: Value, groups: int, weight: Value | None, bias: Value | None, eps: float
) -> Value:
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(f"{name}: {groups} groups of {x!r}; need [N, C, ...] and a divisor of C")
    for label, value in (("weight", weight), ("bias", bias)):
        if value is not None and value.shape != (x.shape[1],):
            raise ShapeError(f"{name}: {label} is {value!r}, x is {x!r}; need [{x.shape[1]}]")
    rows = reshape(x, [x.shape[0], groups, math.prod(x.shape[1:]) // groups])
    y = reshape(_emit("Normalize", name, rows, eps=eps), x.shape)
    channels = [x.shape[1]] + [1] * (x.ndim - 2)
    y = y if weight is None else mul(y, reshape(weight, channels))
    return y if bias is None else add(y, reshape(bias, channels))


def normalize(x: Value, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Value:
    """x / max((Σ |x|ᵖ)^(1/p), eps) along `axis`.

    >>> aicf.normalize(x).shape
    (4, 3)
    """
    if not p > 0 or math.isinf(p):
        raise GraphError(f"normalize: p is {p}; need a finite number > 0")
    wide = _widened(x)
    if p == 1:
        norm = sum(absolute(wide), axis, keepdims=True)
    else:
        powers = mul(wide, wide) if p == 2 else _power(absolute(wide), p)
        norm = _power(sum(powers, axis, keepdims=True), 1 / p)
    return _as(div(wide, maximum(norm, eps)), x.dtype)


def _power(base: Value, exponent: float) -> Value:
    """Of a base >= 0; its gradient at 0 is 0."""
    zero = equal(base, 0.0)
    other = where(zero, 1.0, base)
    return where(zero, 0.0, sqrt(other) if exponent == 0.5 else pow(other, exponent))


# ---- resizing


def pixel_shuffle(x: Value, upscale_factor: int) -> Value:
    """[..., C·r², H, W] as [..., C, H·r, W·r] (Shi et al., 2016).

    >>> aicf.pixel_shuffle(image.reshape((1, 8, 4, 4)), 2).shape
    (1, 2, 8, 8)
    """
    r = upscale_factor
    if x.ndim < 3 or r < 1 or x.shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle: {r} of {x!r}; need [..., C·r², H, W]")
    *lead, c, h, w = x.shape
    n = math.prod(lead)
    y = permute(reshape(x, [n, c // (r * r), r, r, h, w]), [0, 1, 4, 2, 5, 3])
    return reshape(y, [*lead, c // (r * r), h * r, w * r])


def pixel_unshuffle(x: Value, downscale_factor: int) -> Value:
    """[..., C, H·r, W·r] as [..., C·r², H, W]: pixel_shuffle undone.

    >>> aicf.pixel_unshuffle(image, 2).shape
    (1, 8, 4, 4)
    """
    r = downscale_factor
    if x.ndim < 3 or r < 1 or x.shape[-2] % r or x.shape[-1] % r:
        raise ShapeError(f"pixel_unshuffle: {r} of {x!r}; need [..., C, H·r, W·r]")
    *lead, c, h, w = x.shape
    n = math.prod(lead)
    y = permute(reshape(x, [n, c, h // r, r, w // r, r]), [0, 1, 3, 5, 2, 4])
    return reshape(y, [*lead, c * r * r, h // r, w // r])


def interpolate(
    x: Value,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Value:
    """x[N, C, ...] in another size, of one to three axes.

    "linear" is a product of matrices for each axis: `compile(math=)` says how it rounds, and an
    infinity or NaN spoils its whole axis.

    Args:
        size: of the result; or scale_factor: ⌊size · factor⌋. One number stands for all axes.
        mode: "nearest" = the element at ⌊i / factor⌋; "linear" = between two along each axis
            (PyTorch's "linear", "bilinear" and "trilinear").
        align_corners: of "linear": the outer elements stay where they are, else the edges do.

    >>> aicf.interpolate(image, scale_factor=2).shape
    (1, 2, 16, 16)
    """
    name = "interpolate"
    if mode not in ("nearest", "linear"):
        raise GraphError(f'{name}: mode is {mode!r}; need "nearest" or "linear"')
    if align_corners and mode != "linear":
        raise GraphError(f'{name}: align_corners is True, mode is {mode!r}; need "linear"')
    if not 3 <= x.ndim <= 5:
        raise ShapeError(f"{name}: x is {x!r}; need [N, C, ...] of one to three axes")
    if (size is None) == (scale_factor is None):
        raise ShapeError(
            f"{name}: size is {size}, scale_factor is {scale_factor}; need one of the two"
        )
    axes = range(2, x.ndim)
    given = size if size is not None else scale_factor
    each = list(given) if isinstance(given, Sequence) else [given or 0] * len(axes)
    if len(each) != len(axes):
        raise ShapeError(f"{name}: {len(each)} sizes for {x!r}; need {len(axes)}")
    for axis, new in zip(axes, each, strict=True):
        old = x.shape[axis]
        if not 0 <= new < math.inf:
            raise ShapeError(f"{name}: size or scale_factor has {new}; need finite numbers > 0")
        count = int(new) if size is not None else math.floor(min(old * new, 2.0**62))
        if count < 1 or old < 1:
            raise ShapeError(f"{name}: {count} elements out of {old} of {x!r}; need 1 or more")
        step = old / count if size is not None else 1 / new
        if mode == "nearest":
            if count > 1 << 28:
                raise ShapeError(f"{name}: {count} elements of an axis; need at most 2**28")
            places = np.minimum(np.floor(np.arange(count) * step), old - 1).astype(np.int64)
            if count != old or step != 1:
                x = take(x, x.graph.constant(places, "int64"), axis)
        else:
            shares = _no_shares(name, count, old)
            _share_out(shares, step, align_corners)
            x = _mixed(x, axis, shares)
    return x


def _share_out(shares: np.ndarray, step: float, align_corners: bool) -> None:
    """Between the two old elements beside each new one."""
    new, old = shares.shape
    if align_corners:
        places = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    else:
        places = np.maximum((np.arange(new) + 0.5) * step - 0.5, 0)
    low = np.minimum(places.astype(np.int64), old - 1)
    part = places - low
    np.add.at(shares, (np.arange(new), low), 1 - part)
    np.add.at(shares, (np.arange(new), np.minimum(low + 1, old - 1)), part)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
