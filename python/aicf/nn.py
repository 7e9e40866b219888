"""Layers, composed of the ops: PyTorch's names, formulas and default values."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

import numpy as np

from ._core import ShapeError
from .arguments import checked
from .graph import Value, _emit
from .movement import detach, pad, permute, reshape, transpose
from .ops import (
    add,
    matmul,
    mean,
    mul,
    rsqrt,
    sub,
    var,
    where,
)

__all__ = [
    "avg_pool2d",
    "batch_norm",
    "conv2d",
    "dropout",
    "embedding",
    "layer_norm",
    "max_pool2d",
    "rms_norm",
    "scaled_dot_product_attention",
]


# ---- layers


def layer_norm(
    x: Value,
    normalized_shape: int | Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Value:
    """(x − mean) / sqrt(var + eps) · weight + bias over the last len(normalized_shape) axes.

    >>> aicf.layer_norm(x, 3).shape
    (4, 3)
    """
    y = _normalize("layer_norm", x, normalized_shape, eps, True)
    y = y if weight is None else mul(y, weight)
    return y if bias is None else add(y, bias)


def rms_norm(
    x: Value,
    normalized_shape: int | Sequence[int],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value:
    """x / sqrt(mean(x²) + eps) · weight; eps None = the dtype's machine epsilon.

    >>> aicf.rms_norm(x, 3).shape
    (4, 3)
    """
    tiny = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    e = tiny.get(x.dtype, 0.0) if eps is None else eps
    y = _normalize("rms_norm", x, normalized_shape, e, False)
    return y if weight is None else mul(y, weight)


def _normalize(where: str, x: Value, shape: int | Sequence[int], eps: float, center: bool) -> Value:
    sizes = [shape] if isinstance(shape, int) else list(shape)
    count = len(sizes)
    if not count or list(x.shape[-count:]) != sizes:
        raise ShapeError(f"{where}: normalized_shape {sizes} of {x!r}; need its last sizes")
    rows = x if count == 1 else reshape(x, [*x.shape[:-count], math.prod(sizes)])
    y = _emit("Normalize", where, rows, eps=eps, center=center)
    return y if count == 1 else reshape(y, x.shape)


def embedding(indices: Value, weight: Value) -> Value:
    """Rows of weight[n, d] by int indices -> [indices..., d]; its gradient is deterministic.

    >>> aicf.embedding(labels, w).shape
    (4, 3)
    """
    return _emit("Take", "embedding", weight, indices)


def scaled_dot_product_attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Value:
    """softmax(q k^T · scale + mask) v over [..., L, E], [..., S, E], [..., S, Ev].

    A row whose scores are all -inf, for a mask hides everything, gives 0 and takes no gradient.

    Args:
        mask: bool (False = hidden) or a float added to the scores; broadcast to [..., L, S].
        causal: hides positions after one's own.
        scale: None = 1/sqrt(E).

    >>> aicf.scaled_dot_product_attention(x, y, y, causal=True).shape
    (4, 3)
    """
    for name, value in {"q": q, "k": k, "v": v}.items():
        if value.ndim < 2:
            raise ShapeError(
                f"scaled_dot_product_attention: {name} is {value!r}; need [..., length, width]"
            )
    if scale is None and q.shape[-1] == 0:
        raise ShapeError(
            f"scaled_dot_product_attention: q is {q!r}, of width 0; need width >= 1, or scale="
        )
    g = q.graph
    scores = mul(matmul(q, transpose(k)), 1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        rows, columns = scores.shape[-2:]
        visible = np.tri(rows, columns, dtype=bool)
        scores = where(g.constant(visible), scores, -math.inf)
    if mask is not None:
        scores = where(mask, scores, -math.inf) if mask.dtype == "bool" else add(scores, mask)
    return matmul(_emit("Softmax", "scaled_dot_product_attention", scores, masked=True), v)


def _pair(where: str, value: int | Sequence[int]) -> list[int]:
    pair = [value, value] if isinstance(value, int) else list(value)
    if len(pair) != 2:
        raise ShapeError(f"{where}: got {value!r}; need an int or two")
    return pair


def _pool_padded(
    where: str, x: Value, kernel: list[int], padding: int | Sequence[int], value: float
) -> Value:
    around = _pair(where, padding)
    if builtins.any(2 * p > k for p, k in zip(around, kernel, strict=True)):
        raise ShapeError(
            f"{where}: padding {around} around windows that span {kernel}; need at most half"
        )
    return _padded(where, x, around, value)


def _padded(where: str, x: Value, padding: int | Sequence[int], value: float) -> Value:
    if x.ndim < 3:
        raise ShapeError(f"{where}: x is {x!r}; need [N, C, H, W]")
    rows, columns = _pair(where, padding)
    if rows == columns == 0:
        return x
    return pad(x, [(0, 0)] * (x.ndim - 2) + [(rows, rows), (columns, columns)], value)


def conv2d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Value:
    """Cross-correlation of x[N, C, H, W] with weight[O, C / groups, kh, kw] -> [N, O, oh, ow].

    >>> aicf.conv2d(image, kernel, padding=1).shape
    (1, 5, 8, 8)
    """
    if x.ndim != 4 or weight.ndim != 4:
        raise ShapeError(f"conv2d: x is {x!r}, weight is {weight!r}; need rank 4 each")
    outs, depth, kh, kw = weight.shape
    if groups < 1 or x.shape[1] != depth * groups or outs % groups:
        raise ShapeError(
            f"conv2d: x is {x!r}, weight is {weight!r}, groups is {groups}; "
            "need x.shape[1] == weight.shape[1] * groups and groups dividing weight.shape[0]"
        )
    windows = _emit(
        "Windows", "conv2d", _padded("conv2d", x, padding, 0.0), kernel=[kh, kw],
        stride=_pair("conv2d", stride), dilation=_pair("conv2d", dilation),
    )  # fmt: skip
    n, oh, ow = x.shape[0], *windows.shape[-2:]
    columns = reshape(windows, [n, groups, depth * kh * kw, oh * ow])
    kernels = reshape(weight, [groups, outs // groups, depth * kh * kw])
    y = reshape(matmul(kernels, columns), [n, outs, oh, ow])
    return y if bias is None else add(y, reshape(bias, [outs, 1, 1]))


def max_pool2d(
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
) -> Value:
    """Largest element of each window of [..., H, W]; the first of equals takes the gradient.

    >>> aicf.max_pool2d(image, 2).shape
    (1, 2, 4, 4)
    """
    kernel, spread = _pair("max_pool2d", kernel_size), _pair("max_pool2d", dilation)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
    return _emit(
        "MaxPool", "max_pool2d", _pool_padded("max_pool2d", x, span, padding, -math.inf),
        kernel=kernel, stride=kernel if stride is None else _pair("max_pool2d", stride),
        dilation=spread,
    )  # fmt: skip


def avg_pool2d(
    x: Value,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
) -> Value:
    """Mean of each window of [..., H, W]; padding counts as zeros.

    >>> aicf.avg_pool2d(image, 2).shape
    (1, 2, 4, 4)
    """
    kernel = _pair("avg_pool2d", kernel_size)
    windows = _emit(
        "Windows", "avg_pool2d", _pool_padded("avg_pool2d", x, kernel, padding, 0.0), kernel=kernel,
        stride=kernel if stride is None else _pair("avg_pool2d", stride),
    )  # fmt: skip
    return mean(windows, [-4, -3])


def batch_norm(
    x: Value,
    running_mean: Value,
    running_var: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    """Normalises each channel of x[N, C, ...].

    Args:
        running_mean, running_var: states [C]. Training moves them towards the batch's mean and
            unbiased variance by `momentum`; otherwise they are used as they stand.

    >>> aicf.batch_norm(x, g.state("mean", (3,)), g.state("var", (3,))).shape
    (4, 3)
    """
    if x.ndim < 2:
        raise ShapeError(f"batch_norm: x is {x!r}; need [N, C, ...]")
    own = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    for name, value in own.items():
        if value is not None and value.shape != (x.shape[1],):
            raise ShapeError(f"batch_norm: {name} is {value!r}, x is {x!r}; need [{x.shape[1]}]")
    channels = [x.shape[1]] + [1] * (x.ndim - 2)
    if training:
        axes = [a for a in range(x.ndim) if a != 1]
        mu, count = mean(x, axes), math.prod(x.shape[a] for a in axes)
        if count < 2:
            raise ShapeError(
                f"batch_norm: x is {x!r}; need more than one value per channel to train"
            )
        rows = reshape(permute(x, [1, *axes]), [x.shape[1], count])
        y = reshape(
            _emit("Normalize", "batch_norm", rows, eps=eps),
            [x.shape[1]] + [x.shape[a] for a in axes],
        )
        y = permute(y, [1, 0, *range(2, x.ndim)])
        g = x.graph
        unbiased = var(detach(x), axes)
        for state, now in ((running_mean, detach(mu)), (running_var, unbiased)):
            g.assign(state, add(mul(state, 1 - momentum), mul(now, momentum)))
    else:
        centred = sub(x, reshape(running_mean, channels))
        y = mul(centred, reshape(rsqrt(add(running_var, eps)), channels))
    y = y if weight is None else mul(y, reshape(weight, channels))
    return y if bias is None else add(y, reshape(bias, channels))


def dropout(x: Value, p: float = 0.5, training: bool = True) -> Value:
    """x / (1 − p) where a fresh uniform number is >= p, else 0; x itself when not training.

    >>> aicf.dropout(x, 0.1).shape
    (4, 3)
    """
    if not training:
        return x
    seed, step, stream = x.graph._random()
    return _emit("Dropout", "dropout", x, seed, step, p=p, stream=stream)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
