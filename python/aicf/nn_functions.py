"""Layers, composed of the ops: PyTorch's names, formulas and default values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .arrays import _norm, repeat
from .convolutions import _windows
from .graph import Data, Value, is_float
from .indexing import index_add, searchsorted
from .movement import broadcast_to, detach, expand_dims, pad, permute, reshape, transpose
from .operands import _emit, _number
from .ops import (
    _as,
    _widened,
    add,
    cast,
    div,
    equal,
    matmul,
    max,
    maximum,
    mean,
    mul,
    not_equal,
    pow,
    rsqrt,
    sub,
    sum,
    var,
    where,
)

__all__ = [
    "batch_norm",
    "bilinear",
    "dropout",
    "embedding",
    "embedding_bag",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
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


def embedding(
    indices: Data, weight: Value, padding_idx: int | None = None, max_norm: float | None = None
) -> Value:
    """Rows of weight[n, d] by int indices -> [indices..., d]; its gradient is deterministic.

    Args:
        padding_idx: a row that takes no gradient; a negative one counts from the end.
        max_norm: refused; PyTorch's would change weight in place.

    >>> aicf.embedding(labels, w).shape
    (4, 3)
    """
    rows = _rows("embedding", indices, weight, max_norm)
    if padding_idx is None:
        return rows
    hidden = equal(indices, _padding_row("embedding", weight, padding_idx))
    return where(expand_dims(hidden, -1), detach(rows), rows)


def _rows(name: str, indices: Value, weight: Value, max_norm: float | None) -> Value:
    if max_norm is not None:
        raise GraphError(
            f"{name}: max_norm is {max_norm}; need None (limit the rows that the call gives, or "
            "the params after a step)"
        )
    if indices.dtype not in ("int32", "int64"):
        raise DTypeError(
            f"{name}: indices are {indices!r}, weight {weight!r}; need indices as int32 or int64, "
            "which come first"
        )
    return _emit("Take", name, weight, indices)


def _padding_row(name: str, weight: Value, padding_idx: int) -> int:
    count = weight.shape[0]
    if not -count <= padding_idx < count:
        raise ShapeError(
            f"{name}: padding_idx is {padding_idx}, weight is {weight!r}; need [{-count}, {count})"
        )
    return padding_idx % count


def embedding_bag(
    indices: Data,
    weight: Value,
    offsets: Data | None = None,
    max_norm: float | None = None,
    mode: str = "mean",
    per_sample_weights: Data | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Value:
    """Rows of weight[n, d] by int indices, a sum, mean or maximum of each bag -> [bags, d].

    Args:
        indices: [bags, size], or [count] with offsets.
        offsets: int [bags], ascending, where each bag begins; a bag of none gives 0.
        max_norm: refused; PyTorch's would change weight in place.
        mode: "sum", "mean", or "max", which needs indices of rank 2.
        per_sample_weights: that the rows of a "sum" are multiplied with, of the indices' shape.
        include_last_offset: the last offset is where the last bag ends.
        padding_idx: a row that counts in no bag and takes no gradient.

    >>> aicf.embedding_bag(labels.reshape((2, 2)), w).shape
    (2, 3)
    """
    name = "embedding_bag"
    if mode not in ("sum", "mean", "max"):
        raise GraphError(f'{name}: mode is {mode!r}; need "sum", "mean" or "max"')
    if indices.ndim != (2 if offsets is None else 1) or (offsets is not None and offsets.ndim != 1):
        raise ShapeError(
            f"{name}: indices are {indices!r}, offsets {offsets!r}; need [bags, size] and None, or "
            "[count] and [bags]"
        )
    if offsets is not None and mode == "max":
        raise GraphError(f'{name}: mode is "max", with offsets; need indices [bags, size]')
    if per_sample_weights is not None:
        if mode != "sum" or per_sample_weights.shape != indices.shape:
            raise GraphError(
                f"{name}: per_sample_weights are {per_sample_weights!r}, indices {indices!r}, mode "
                f'{mode!r}; need one shape, and "sum"'
            )
    rows = _widened(_rows(name, indices, weight, max_norm))
    counted = None
    if padding_idx is not None:
        counted = not_equal(indices, _padding_row(name, weight, padding_idx))
        rows = where(expand_dims(counted, -1), rows, -math.inf if mode == "max" else 0.0)
    if per_sample_weights is not None:
        rows = mul(rows, expand_dims(_widened(per_sample_weights), -1))
    if mode == "max":
        if indices.shape[1] == 0:
            return _as(sum(rows, 1), weight.dtype)
        top = max(rows, 1)
        return _as(where(equal(top, -math.inf), 0.0, top), weight.dtype)
    total = _bag_sums(rows, indices, offsets, include_last_offset)
    if mode == "mean":
        if counted is None:
            counted = equal(indices, indices)
        each = expand_dims(cast(counted, rows.dtype), -1)
        total = div(total, maximum(_bag_sums(each, indices, offsets, include_last_offset), 1.0))
    return _as(total, weight.dtype)


def _bag_sums(rows: Value, indices: Value, offsets: Value | None, last: bool) -> Value:
    if offsets is None:
        return sum(rows, 1)
    bags, graph = offsets.shape[0] - last, rows.graph
    places = graph.constant(np.arange(indices.shape[0]), offsets.dtype)
    bag = sub(searchsorted(offsets, places, side="right"), 1)
    nothing = broadcast_to(_number("embedding_bag", graph, 0.0, rows.dtype), [bags, rows.shape[1]])
    return index_add(nothing, 0, bag, rows)


def scaled_dot_product_attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Data | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    attn_mask: Data | None = None,
    is_causal: bool = False,
) -> Value:
    """softmax(q k^T · scale + mask) v over [..., L, E], [..., S, E], [..., S, Ev].

    A row whose scores are all -inf, for a mask hides everything, gives 0 and takes no gradient.
    From 128 x 128 scores a head on, in float32 from 512 x 512, without dropout and with a mask of
    bool or none, of heads of equal widths up to 256 in 32 or 16 bits, no scores are kept: they are
    made a block at a time, and again for the gradient. Other calls are products around a softmax.

    Args:
        mask: bool (False = hidden) or a float added to the scores; broadcast to [..., L, S]. Of a
            NumPy array of 0 and -inf alone, the form of PyTorch's masks, the bool one is taken;
            one that hides positions after one's own is causal=True. One of the dtype's least
            number in the place of -inf, as Hugging Face's, is added as any float: it hides too, but
            a row that it hides wholly weighs all keys alike, and scores are kept.
        causal: hides positions after one's own.
        scale: None = 1/sqrt(E).
        dropout_p: the probability with which a weight is left out, as `dropout` does.
        enable_gqa: k and v have fewer heads, axis −3, than q: each serves several.
        attn_mask, is_causal: PyTorch's names of mask and causal.

    >>> aicf.scaled_dot_product_attention(x, y, y, causal=True).shape
    (4, 3)
    """
    where_from = "scaled_dot_product_attention"
    for name, value in {"q": q, "k": k, "v": v}.items():
        if value.ndim < 2 + enable_gqa:
            need = "[..., heads, length, width]" if enable_gqa else "[..., length, width]"
            raise ShapeError(f"{where_from}: {name} is {value!r}; need {need}")
    if scale is None and q.shape[-1] == 0:
        raise ShapeError(f"{where_from}: q is {q!r}, of width 0; need width >= 1, or scale=")
    if mask is not None and attn_mask is not None:
        raise GraphError(
            f"{where_from}: mask is {mask!r}, attn_mask {attn_mask!r}; need one of the two"
        )
    mask, causal = attn_mask if mask is None else mask, causal or is_causal
    seen = None if mask is None else shown_by(mask)
    if mask is not None and seen is not None:
        fits = mask.ndim <= q.ndim and mask.shape[:-2] == (1,) * (mask.ndim - 2)
        if fits and shows_earlier(seen, q.shape[-2], k.shape[-2]):
            mask, causal = None, True
        elif mask.dtype != "bool":
            mask = mask.graph.constant(seen)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not dropout_p and _may_fuse(q, k, v, mask, scale, enable_gqa):
        return _fused_attention(q, k, v, mask, causal, scale)
    if enable_gqa:
        k, v = _shared_heads(where_from, q, k), _shared_heads(where_from, q, v)
    return _composed_attention(q, k, v, mask, causal, scale, dropout_p)


_WIDEST_HEAD = 256
# Scores of a head below which products and a softmax take no longer. In float32 a GPU multiplies
# scores that are kept twice as fast, so that they are not where they are little memory.
_FEW_SCORES = {"float32": 1 << 18, "float16": 1 << 14, "bfloat16": 1 << 14}


def shown_by(mask: Value, hides: bool = False) -> np.ndarray | None:
    """Where a constant mask shows scores; None where it does more, or is no constant.

    hides: a bool mask is True where it hides.
    """
    content = mask.graph._core.content(mask.id) if mask.id >= 0 else None
    if content is None:
        return None
    if mask.dtype == "bool":
        return (np.frombuffer(content, bool) != hides).reshape(mask.shape)
    if not is_float(mask):
        return None
    if mask.dtype == "bfloat16":
        numbers = (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = np.frombuffer(content, mask.dtype)
    shown = numbers == 0
    return shown.reshape(mask.shape) if (shown | (numbers == -math.inf)).all() else None


def shows_earlier(seen: np.ndarray, length: int, size: int) -> bool:
    """Whether a position sees itself and those before it, in every mask of these."""
    return seen.shape[-2:] == (length, size) and bool(
        (seen == np.tri(length, size, dtype=bool)).all()
    )


def _may_fuse(q: Value, k: Value, v: Value, mask: Value | None, scale: float, shared: bool) -> bool:
    """Whether the op Attention has a meaning for these operands, and is worth it."""
    *lead, length, width = q.shape
    if mask is not None:
        full = (*lead, length, k.shape[-2])
        bool_mask = mask.dtype == "bool" and len(mask.shape) <= len(full)
        if not bool_mask or any(
            size not in (1, whole)
            for size, whole in zip(reversed(mask.shape), reversed(full), strict=False)
        ):
            return False
    heads_fit = not lead or k.shape[-3:-2] == q.shape[-3:-2]
    if shared and not heads_fit:
        heads_fit = k.shape[-3] > 0 and q.shape[-3] % k.shape[-3] == 0
    return (
        q.dtype in _FEW_SCORES
        and q.dtype == k.dtype == v.dtype
        and k.shape == v.shape
        and k.ndim == q.ndim
        and k.shape[:-3] == q.shape[:-3]
        and heads_fit
        and k.shape[-1] == width
        and 1 <= width <= _WIDEST_HEAD
        and length * k.shape[-2] >= _FEW_SCORES[q.dtype]
        and 0 not in (*q.shape, *k.shape)
        and 0 < scale < math.inf
    )


def _fused_attention(
    q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float
) -> Value:
    """The op Attention on [batch, heads, length, width], whatever axes stand before those."""
    lead, operands = q.shape[:-3], [q, k, v]
    batch = math.prod(lead)

    def in_four(x: Value, outer: int) -> Value:
        inner = (1, 1, *x.shape)[-3:]
        return x if x.ndim == 4 else reshape(x, (outer, *inner))

    operands = [in_four(x, batch) for x in operands]
    if mask is not None:
        outer = mask.shape[:-3]
        if any(size != 1 for size in outer) and mask.ndim != 4:
            mask, outer = broadcast_to(mask, (*lead, *mask.shape[-3:])), lead
        operands.append(in_four(mask, math.prod(outer)))
    out = _emit("Attention", "scaled_dot_product_attention", *operands, scale=scale, causal=causal)
    return out if q.ndim == 4 else reshape(out, q.shape)


def _composed_attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    causal: bool,
    scale: float,
    dropout_p: float = 0.0,
) -> Value:
    """Attention of products and a softmax, with its scores in memory: any mask and dropout."""
    where_from, g = "scaled_dot_product_attention", q.graph
    scores = mul(matmul(q, transpose(k)), scale)
    if causal:
        rows, columns = scores.shape[-2:]
        visible = np.tri(rows, columns, dtype=bool)
        scores = where(g.constant(visible), scores, -math.inf)
    if mask is not None:
        scores = where(mask, scores, -math.inf) if mask.dtype == "bool" else add(scores, mask)
    weights = _emit("Softmax", where_from, scores, masked=True)
    return matmul(dropout(weights, dropout_p) if dropout_p else weights, v)


def _shared_heads(name: str, q: Value, x: Value) -> Value:
    heads = x.shape[-3]
    if heads < 1 or q.shape[-3] % heads:
        raise ShapeError(f"{name}: {heads} heads of {x!r}, q is {q!r}; need a divisor of q's")
    return repeat(x, q.shape[-3] // heads, -3)


def batch_norm(
    x: Value,
    running_mean: Value | None,
    running_var: Value | None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = True,
    momentum: float | Value = 0.1,
    eps: float = 1e-5,
) -> Value:
    """Normalises each channel of x[N, C, ...].

    Args:
        running_mean, running_var: [C]. Training moves these states towards the batch's mean and
            unbiased variance by `momentum`, None = there are none; otherwise they are used as they
            stand, and any Values do. Those of x in 16 bits may be float32, in which the statistics
            are then computed.

    >>> aicf.batch_norm(x, g.state("mean", (3,)), g.state("var", (3,))).shape
    (4, 3)
    """
    if x.ndim < 2:
        raise ShapeError(f"batch_norm: x is {x!r}; need [N, C, ...]")
    own = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    _need_channels("batch_norm", x, own)
    _need_both("batch_norm", running_mean, running_var, not training)
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
        if running_mean is not None and running_var is not None:
            wide = _as_running(x, running_mean)
            mu = mu if wide is x else mean(wide, axes)
            _move(running_mean, detach(mu), momentum)
            _move(running_var, var(detach(wide), axes), momentum)
    else:
        y = _as_they_stand(x, running_mean, running_var, eps)
    y = y if weight is None else mul(y, reshape(_as(weight, y.dtype), channels))
    y = y if bias is None else add(y, reshape(_as(bias, y.dtype), channels))
    return _as(y, x.dtype)


def _need_channels(name: str, x: Value, own: dict[str, Value | None]) -> None:
    for label, value in own.items():
        if value is not None and value.shape != (x.shape[1],):
            raise ShapeError(f"{name}: {label} is {value!r}, x is {x!r}; need [{x.shape[1]}]")


def _need_both(name: str, mean: Value | None, var: Value | None, used: bool) -> None:
    if (mean is None) != (var is None) or (used and mean is None):
        raise GraphError(
            f"{name}: running_mean is {mean!r}, running_var {var!r}; need both"
            + (" where x's own are not used" if used else " or neither")
        )


def _move(state: Value, now: Value, momentum: float | Value) -> None:
    by = _as(momentum, state.dtype) if isinstance(momentum, Value) else momentum
    stays = sub(1.0, by) if isinstance(by, Value) else 1 - by
    state.graph._update(state, lambda so_far: add(mul(so_far, stays), mul(now, by)))


def _as_running(x: Value, running: Value) -> Value:
    """x to compute with in what statistics are kept in, where these are wider."""
    return _as(x, running.dtype) if x.dtype in ("float16", "bfloat16") else x


def _as_they_stand(x: Value, mean: Value | None, var: Value | None, eps: float) -> Value:
    assert mean is not None and var is not None
    channels = [x.shape[1]] + [1] * (x.ndim - 2)
    x = _as_running(x, mean)
    return mul(sub(x, reshape(mean, channels)), reshape(rsqrt(add(var, eps)), channels))


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
    x: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
) -> Value:
    """group_norm with a group a channel (Ulyanov et al., 2016).

    Args:
        running_mean, running_var: [C]. These states are moved towards the means over the batch of
            the channels' means and unbiased variances by `momentum`, None = there are none; where
            not use_input_stats they are used as they stand, and any Values do.

    >>> aicf.instance_norm(image).shape
    (1, 2, 8, 8)
    """
    name = "instance_norm"
    _need_both(name, running_mean, running_var, not use_input_stats)
    own = {"running_mean": running_mean, "running_var": running_var}
    if x.ndim > 1:
        _need_channels(name, x, own)
    groups = (x.shape[1] if x.ndim > 1 else 0) or 1
    if not use_input_stats and x.ndim > 1:
        return _scaled(name, x, _as_they_stand(x, running_mean, running_var, eps), weight, bias)
    y = _grouped(name, x, groups, weight, bias, eps)
    if running_mean is not None and running_var is not None:
        axes = list(range(2, x.ndim))
        wide = detach(_as_running(x, running_mean))
        _move(running_mean, mean(mean(wide, axes), 0), momentum)
        _move(running_var, mean(var(wide, axes), 0), momentum)
    return y


def _grouped(
    name: str, x: Value, groups: int, weight: Value | None, bias: Value | None, eps: float
) -> Value:
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(f"{name}: {groups} groups of {x!r}; need [N, C, ...] and a divisor of C")
    rows = reshape(x, [x.shape[0], groups, math.prod(x.shape[1:]) // groups])
    y = reshape(_emit("Normalize", name, rows, eps=eps), x.shape)
    return _scaled(name, x, y, weight, bias)


def _scaled(name: str, x: Value, y: Value, weight: Value | None, bias: Value | None) -> Value:
    _need_channels(name, x, {"weight": weight, "bias": bias})
    channels = [x.shape[1]] + [1] * (x.ndim - 2)
    y = y if weight is None else mul(y, reshape(_as(weight, y.dtype), channels))
    y = y if bias is None else add(y, reshape(_as(bias, y.dtype), channels))
    return _as(y, x.dtype)


def local_response_norm(
    x: Value, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Value:
    """x / (k + alpha · the mean of x² over `size` channels around one's own)**beta of x[N, C, ...]
    (Krizhevsky et al., 2012); what is no channel counts as 0.

    >>> aicf.local_response_norm(image, 2).shape
    (1, 2, 8, 8)
    """
    name = "local_response_norm"
    if x.ndim < 3 or size < 1:
        raise ShapeError(f"{name}: size is {size}, x is {x!r}; need 1 or more, and [N, C, L, ...]")
    wide = _widened(x)
    rows = reshape(mul(wide, wide), [x.shape[0], x.shape[1], math.prod(x.shape[2:])])
    around = pad(rows, [(0, 0), (size // 2, (size - 1) // 2), (0, 0)])
    means = mean(_windows(name, around, [size, 1], [1, 1], [1, 1]), [-4, -3])
    scale = pow(add(mul(reshape(means, x.shape), alpha), k), beta)
    return _as(div(wide, scale), x.dtype)


def bilinear(a: Value, b: Value, weight: Value, bias: Value | None = None) -> Value:
    """a[..., i] weight[o, i, j] b[..., j] + bias[o] -> [..., o].

    >>> aicf.bilinear(x, y, g.param("bilinear", (5, 3, 3))).shape
    (4, 5)
    """
    name = "bilinear"
    fits = a.ndim > 0 and b.ndim > 0 and a.shape[:-1] == b.shape[:-1]
    if not fits or weight.ndim != 3 or weight.shape[1:] != (a.shape[-1], b.shape[-1]):
        raise ShapeError(
            f"{name}: a is {a!r}, b is {b!r}, weight is {weight!r}; need [..., i], [..., j] and "
            "[o, i, j]"
        )
    outs, left, right = weight.shape
    count = math.prod(a.shape[:-1])
    flat = reshape(permute(weight, [1, 0, 2]), [left, outs * right])
    mixed = reshape(matmul(reshape(a, [count, left]), flat), [count, outs, right])
    y = reshape(matmul(mixed, reshape(b, [count, right, 1])), [*a.shape[:-1], outs])
    return y if bias is None else add(y, bias)


def normalize(x: Value, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Value:
    """x / max((Σ |x|ᵖ)^(1/p), eps) along `axis`.

    >>> aicf.normalize(x).shape
    (4, 3)
    """
    if math.isnan(p):
        raise GraphError(f"normalize: p is {p}; need a number")
    wide = _widened(x)
    norm = _norm(wide, p, axis, True)
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
