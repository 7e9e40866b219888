"""Convolutions of signals, images and volumes: products of matrices with windows of x."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ._core import GraphError, ShapeError
from .arguments import checked
from .arrays import flip
from .graph import Value
from .movement import expand_dims, pad, permute, reshape, squeeze
from .operands import _emit
from .ops import add, matmul

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "fold",
    "unfold",
]

_AXES = {1: "L", 2: "H, W", 3: "D, H, W"}


def _sizes(name: str, value: int | Sequence[int], n: int) -> list[int]:
    """One for each of n axes."""
    each = [value] if isinstance(value, int) else list(value)
    each = each * n if len(each) == 1 else each
    if len(each) != n:
        some = {1: "one", 2: "two", 3: "three"}[n]
        raise ShapeError(f"{name}: got {value!r}; need an int or {some}")
    return each


def _around(x: Value, edges: Sequence[tuple[int, int]], value: float = 0.0) -> Value:
    """x with `value` around its last axes."""
    if not any(low or high for low, high in edges):
        return x
    return pad(x, [(0, 0)] * (x.ndim - len(edges)) + list(edges), value)


def _windows(
    name: str,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    flat: bool = False,
) -> Value:
    """[..., sizes] as [..., kernel, places] of one to three axes; a `flat` kernel of three has one,
    which leaves an axis for a batch."""
    n = len(kernel)
    lead, size = list(x.shape[: x.ndim - n]), x.shape[x.ndim - n :]
    if n == 2:
        return _emit("Windows", name, x, kernel=kernel, stride=stride, dilation=dilation)
    if n == 1:
        rows = _windows(name, expand_dims(x, -2), [1, *kernel], [1, *stride], [1, *dilation])
        return reshape(rows, [*lead, *kernel, rows.shape[-1]])
    planes = math.prod(lead)
    deep = reshape(x, [planes, size[0], size[1] * size[2]])
    deep = _windows(name, deep, [kernel[0], 1], [stride[0], 1], [dilation[0], 1])
    count = deep.shape[-2]
    thin = reshape(deep, [planes * kernel[0] * count, *size[1:]])
    thin = _windows(name, thin, kernel[1:], stride[1:], dilation[1:])
    high, wide = thin.shape[-2:]
    parts = [planes, kernel[0], count, kernel[1] * kernel[2], high * wide]
    turned = permute(reshape(thin, parts), [0, 1, 3, 2, 4])
    taps = [math.prod(kernel)] if flat else kernel
    return reshape(turned, [*lead, *taps, count, high, wide])


def _batched(name: str, n: int, x: Value, weight: Value) -> Value:
    if weight.ndim != n + 2 or x.ndim not in (n + 1, n + 2):
        raise ShapeError(
            f"{name}: x is {x!r}, weight is {weight!r}; "
            f"need rank {n + 2} each, [N, C, {_AXES[n]}] or without N"
        )
    return expand_dims(x, 0) if x.ndim == n + 1 else x


def _convolved(
    name: str,
    n: int,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int] | str,
    dilation: int | Sequence[int],
    groups: int,
) -> Value:
    images = _batched(name, n, x, weight)
    outs, depth, *kernel = weight.shape
    if groups < 1 or images.shape[1] != depth * groups or outs % groups:
        raise ShapeError(
            f"{name}: x is {x!r}, weight is {weight!r}, groups is {groups}; need channels of "
            "x == weight.shape[1] * groups, and groups dividing weight.shape[0]"
        )
    if bias is not None and bias.shape != (outs,):
        raise ShapeError(f"{name}: bias is {bias!r}; need [{outs}], one for each channel made")
    steps, spread = _sizes(name, stride, n), _sizes(name, dilation, n)
    if min(*steps, *spread) < 1:
        raise ShapeError(f"{name}: stride is {stride}, dilation {dilation}; need 1 or more of each")
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise GraphError(f'{name}: padding is {padding!r}; need sizes, "same" or "valid"')
        if padding == "same" and max(steps) > 1:
            raise GraphError(f'{name}: padding is "same", stride is {stride}; need stride 1')
        more = [
            d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, spread, strict=True)
        ]
        edges = [(p // 2, p - p // 2) for p in more]
    else:
        edges = [(p, p) for p in _sizes(name, padding, n)]
        if min(edges) < (0, 0):
            raise ShapeError(f"{name}: padding is {padding}; need 0 or more")
    windows = _windows(name, _around(images, edges), kernel, steps, spread, flat=True)
    batch, places, taps = images.shape[0], windows.shape[-n:], depth * math.prod(kernel)
    columns = reshape(windows, [batch, groups, taps, math.prod(places)])
    kernels = reshape(weight, [groups, outs // groups, taps])
    y = matmul(kernels, columns)
    if bias is not None:  # in the product's shape, whose kernel adds it then
        y = add(y, reshape(bias, [groups, outs // groups, 1]))
    y = reshape(y, [batch, outs, *places])
    return y if images is x else squeeze(y, 0)


def conv1d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Value:
    """conv2d of signals: x[N, C, L] with weight[O, C / groups, k] -> [N, O, length].

    >>> aicf.conv1d(image.reshape((1, 2, 64)), kernel[:, :, 0]).shape
    (1, 5, 62)
    """
    return _convolved("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv_tbc(x: Value, weight: Value, bias: Value, padding: int = 0) -> Value:
    """conv1d of [T, N, C] by weights [kernel, C, O], with a bias [O]; its result is [T', N, O].

    >>> taps, bias = g.param("taps", (3, 3, 4)), g.param("bias", (4,))
    >>> aicf.conv_tbc(g.input("heard", (9, 2, 3)), taps, bias, 1).shape
    (9, 2, 4)
    """
    if x.ndim != 3 or weight.ndim != 3:
        raise ShapeError(f"conv_tbc: x is {x!r}, weight is {weight!r}; need rank 3 each")
    turned = permute(weight, [2, 1, 0])
    return permute(conv1d(permute(x, [1, 2, 0]), turned, bias, 1, padding), [2, 0, 1])


def conv2d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Value:
    """Cross-correlation of x[N, C, H, W] with weight[O, C / groups, kh, kw] -> [N, O, oh, ow].

    Args:
        x: also [C, H, W], as a batch of one; the result has no N then.
        padding: zeros on both sides of each axis; or "same", which keeps the sizes at stride 1,
            with the odd zero behind; or "valid", none.

    >>> aicf.conv2d(image, kernel, padding=1).shape
    (1, 5, 8, 8)
    """
    return _convolved("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Value:
    """conv2d of volumes: x[N, C, D, H, W] with weight[O, C / groups, kd, kh, kw].

    Its windows are copied: kd·kh·kw times the elements of x.

    >>> aicf.conv3d(image.reshape((1, 2, 4, 4, 4)), kernel.reshape((5, 2, 1, 3, 3))).shape
    (1, 5, 4, 2, 2)
    """
    return _convolved("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


def _transposed(
    name: str,
    n: int,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    output_padding: int | Sequence[int],
    groups: int,
    dilation: int | Sequence[int],
) -> Value:
    images = _batched(name, n, x, weight)
    depth, outs, *kernel = weight.shape
    if groups < 1 or images.shape[1] != depth or depth % groups:
        raise ShapeError(
            f"{name}: x is {x!r}, weight is {weight!r}, groups is {groups}; need channels of "
            "x == weight.shape[0], which groups divides"
        )
    steps, around, more, spread = (
        _sizes(name, value, n) for value in (stride, padding, output_padding, dilation)
    )
    size, edges = images.shape[2:], []
    for a, step, p, extra, d in zip(range(n), steps, around, more, spread, strict=True):
        if step < 1 or d < 1 or p < 0:
            raise ShapeError(
                f"{name}: stride is {step}, dilation {d}, padding {p}; need the first two > 0 and "
                "padding >= 0"
            )
        if not 0 <= extra < max(step, d):
            raise ShapeError(
                f"{name}: output_padding is {extra}; need 0 or more, less than stride or dilation"
            )
        low = d * (kernel[a] - 1) - p
        edges.append((low, low + extra))
        if size[a] < 1 or (size[a] - 1) * step + 1 + 2 * low + extra < d * (kernel[a] - 1) + 1:
            raise ShapeError(
                f"{name}: padding is {p} on axis {a - n} of {x!r}; need a result of 1 or more, "
                "with less padding"
            )
    if max(steps) > 1:  # zeros between the elements
        spans = [(m - 1) * step + 1 for m, step in zip(size, steps, strict=True)]
        images = _emit(
            "Pad", name, images, shape=[*images.shape[:2], *spans], start=[0] * (n + 2),
            step=[1, 1, *steps],
        )  # fmt: skip
    turned = flip(weight, list(range(2, n + 2)))
    turned = reshape(turned, [groups, depth // groups, outs, *kernel])
    turned = permute(turned, [0, 2, 1, *range(3, n + 3)])
    kernels = reshape(turned, [groups * outs, depth // groups, *kernel])
    y = _convolved(name, n, _around(images, edges), kernels, bias, 1, 0, spread, groups)
    return y if x.ndim == n + 2 else squeeze(y, 0)


def conv_transpose1d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Value:
    """conv_transpose2d of signals: x[N, C, L] and weight[C, O / groups, k].

    >>> aicf.conv_transpose1d(image[:, :, 0], aicf.transpose(kernel[:, :, 0], 0, 1), stride=2).shape
    (1, 5, 17)
    """
    name = "conv_transpose1d"
    return _transposed(name, 1, x, weight, bias, stride, padding, output_padding, groups, dilation)


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

    Args:
        x: also [C, H, W], as a batch of one; the result has no N then.

    >>> aicf.conv_transpose2d(image, aicf.transpose(kernel, 0, 1), stride=2).shape
    (1, 5, 17, 17)
    """
    name = "conv_transpose2d"
    return _transposed(name, 2, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Value:
    """conv_transpose2d of volumes: x[N, C, D, H, W] and weight[C, O / groups, kd, kh, kw].

    >>> volume, cube = image.reshape((1, 2, 4, 4, 4)), kernel.reshape((2, 5, 1, 3, 3))
    >>> aicf.conv_transpose3d(volume, cube, stride=2).shape
    (1, 5, 7, 9, 9)
    """
    name = "conv_transpose3d"
    return _transposed(name, 3, x, weight, bias, stride, padding, output_padding, groups, dilation)


# ---- windows


def _of_unfold(
    name: str,
    size: Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int],
    padding: int | Sequence[int],
    stride: int | Sequence[int],
) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """kernel, dilation, padding, stride, and how many windows an axis has."""
    kernel, spread, around, steps = (
        _sizes(name, value, 2) for value in (kernel_size, dilation, padding, stride)
    )
    if min(*kernel, *spread, *steps) < 1 or min(around) < 0:
        raise ShapeError(
            f"{name}: kernel_size is {kernel}, dilation {spread}, padding {around}, stride "
            f"{steps}; need sizes >= 1 and padding >= 0"
        )
    rest = [m + 2 * p - d * (k - 1) - 1 for m, k, d, p in
            zip(size, kernel, spread, around, strict=True)]  # fmt: skip
    if min(rest) < 0:
        raise ShapeError(
            f"{name}: images of {list(size)}, kernel_size is {kernel}, dilation {spread}, padding "
            f"{around}; need a window to fit"
        )
    return kernel, spread, around, steps, [r // s + 1 for r, s in zip(rest, steps, strict=True)]


def unfold(
    x: Value,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Value:
    """The windows of x[N, C, H, W] as columns: [N, C·kh·kw, windows]; also without N.

    >>> aicf.unfold(image, 3).shape
    (1, 18, 36)
    """
    if x.ndim not in (3, 4):
        raise ShapeError(f"unfold: x is {x!r}; need [N, C, H, W] or without N")
    kernel, spread, around, steps, counts = _of_unfold(
        "unfold", x.shape[-2:], kernel_size, dilation, padding, stride
    )
    windows = _windows("unfold", _around(x, [(p, p) for p in around]), kernel, steps, spread)
    rows = x.shape[-3] * math.prod(kernel)
    return reshape(windows, [*x.shape[:-3], rows, math.prod(counts)])


def fold(
    x: Value,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Value:
    """[N, C·kh·kw, windows] summed where windows overlap into [N, C, H, W] of `output_size`.

    The gradient of `unfold`; also without N.

    >>> aicf.fold(aicf.unfold(image, 3), 8, 3).shape
    (1, 2, 8, 8)
    """
    size = _sizes("fold", output_size, 2)
    kernel, spread, around, steps, counts = _of_unfold(
        "fold", size, kernel_size, dilation, padding, stride
    )
    taps = math.prod(kernel)
    if x.ndim not in (2, 3) or x.shape[-2] % taps or x.shape[-1] != math.prod(counts):
        raise ShapeError(
            f"fold: x is {x!r}, output_size {size}; need [N, C·{taps}, {math.prod(counts)}]"
        )
    shape = [*x.shape[:-2], x.shape[-2] // taps]
    whole = [*shape, *(m + 2 * p for m, p in zip(size, around, strict=True))]
    y = _emit(
        "Fold", "fold", reshape(x, [*shape, *kernel, *counts]), shape=whole, kernel=kernel,
        stride=steps, dilation=spread,
    )  # fmt: skip
    return _around(y, [(-p, -p) for p in around])


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
