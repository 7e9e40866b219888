"""Layers, composed of the ops: PyTorch's names, formulas and default values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ._core import GraphError, ShapeError
from .arguments import checked
from .graph import Value, _emit
from .movement import detach, permute, reshape, transpose
from .ops import (
    _as,
    _widened,
    add,
    div,
    matmul,
    maximum,
    mean,
    mul,
    rsqrt,
    sub,
    sum,
    var,
    where,
)
from .ops import abs as absolute
from .pools import _power

__all__ = [
    "batch_norm",
    "dropout",
    "embedding",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
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
