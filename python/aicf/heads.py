"""Attention of several heads with its projections."""

from __future__ import annotations

import math

import numpy as np

from ._core import GraphError, ShapeError
from .arguments import checked
from .graph import Data, Value
from .movement import broadcast_to, concat, expand_dims, permute, reshape, squeeze, transpose
from .nn_functions import dropout, scaled_dot_product_attention
from .ops import add, linear, matmul, mean, mul, where

__all__ = ["multi_head_attention_forward"]


@checked
def multi_head_attention_forward(
    query: Value,
    key: Value,
    value: Value,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Value | None,
    in_proj_bias: Value | None,
    bias_k: Value | None,
    bias_v: Value | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Value,
    out_proj_bias: Value | None,
    training: bool = True,
    key_padding_mask: Data | None = None,
    need_weights: bool = True,
    attn_mask: Data | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Value | None = None,
    k_proj_weight: Value | None = None,
    v_proj_weight: Value | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Value, Value | None]:
    """Attention of several heads between projections, as torch.nn.MultiheadAttention computes it.

    A row whose scores are all hidden gives 0 where PyTorch's gives NaN.

    Args:
        query, key, value: [L, N, E], [S, N, K] and [S, N, V], or all without N.
        in_proj_weight, in_proj_bias: of query, key and value one below the other, [3 E, E], [3 E].
        bias_k, bias_v: one more position, [1, 1, E]; add_zero_attn: one more, of zeros.
        key_padding_mask: [N, S], bool (True = hidden) or a float added to the scores; a Value or
            a NumPy array.
        attn_mask: [L, S] or [N * heads, L, S], likewise.
        q_proj_weight, k_proj_weight, v_proj_weight: instead of in_proj_weight, with
            use_separate_proj_weight.
        is_causal: hides positions after one's own where attn_mask is None.

    Returns: [L, N, E], and the weights [N, L, S], or [N, heads, L, S] where they are not averaged;
        None without need_weights.

    >>> w, o = g.param("in", (12, 4)), g.param("out", (4, 4))
    >>> s = g.input("s", (5, 2, 4))
    >>> y, weights = aicf.multi_head_attention_forward(
    ...     s, s, s, 4, 2, w, None, None, None, False, 0.0, o, None)
    >>> y.shape, weights.shape
    ((5, 2, 4), (2, 5, 5))
    """
    name = "multi_head_attention_forward"
    single = query.ndim == 2
    if single:
        query, key, value = (expand_dims(x, 1) for x in (query, key, value))
        if key_padding_mask is not None:
            key_padding_mask = expand_dims(key_padding_mask, 0)
    if (query.ndim, key.ndim, value.ndim) != (3, 3, 3) or key.shape[:2] != value.shape[:2]:
        raise ShapeError(
            f"{name}: query is {query!r}, key {key!r}, value {value!r}; need [L, N, E] and twice "
            "[S, N, ...], or all without N"
        )
    (length, count, width), heads = query.shape, num_heads
    if width != embed_dim_to_check or heads < 1 or width % heads:
        raise ShapeError(
            f"{name}: query is {query!r}, embed_dim {embed_dim_to_check}, heads {heads}; need "
            "width embed_dim, which heads divides"
        )
    each = (q_proj_weight, k_proj_weight, v_proj_weight)
    if use_separate_proj_weight != (in_proj_weight is None) or use_separate_proj_weight != (
        None not in each
    ):
        raise GraphError(
            f"{name}: use_separate_proj_weight is {use_separate_proj_weight}; need with it q_, k_ "
            "and v_proj_weight, else in_proj_weight, and None for the others"
        )
    cuts = [slice(i * width, (i + 1) * width) for i in range(3)]
    weights = each if in_proj_weight is None else tuple(in_proj_weight[cut] for cut in cuts)
    biases = [None] * 3 if in_proj_bias is None else [in_proj_bias[cut] for cut in cuts]
    q, k, v = (
        linear(x, w, b)  # type: ignore[arg-type]
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    if (bias_k is None) != (bias_v is None):
        raise GraphError(f"{name}: bias_k is {bias_k!r}, bias_v {bias_v!r}; need both or neither")
    more = [] if bias_k is None or bias_v is None else [(bias_k, bias_v)]
    if add_zero_attn:
        zero = query.graph.constant(0.0, query.dtype)
        more.append((zero, zero))
    for own_k, own_v in more:
        k = concat([k, broadcast_to(own_k, (1, count, width))], axis=0)
        v = concat([v, broadcast_to(own_v, (1, count, width))], axis=0)
    q, k, v = (
        permute(reshape(x, (x.shape[0], count, heads, width // heads)), (1, 2, 0, 3))
        for x in (q, k, v)
    )
    mask = _mask(name, q, k, attn_mask, key_padding_mask, len(more), is_causal)
    p = dropout_p if training else 0.0
    if not need_weights:
        y, shares = scaled_dot_product_attention(q, k, v, mask, dropout_p=p), None
    else:
        scores = mul(matmul(q, transpose(k)), 1 / math.sqrt(width // heads))
        (shares,) = query.graph._emit(
            "Softmax", [scores if mask is None else add(scores, mask)], masked=True
        )
        shares = dropout(shares, p) if p else shares
        y = matmul(shares, v)
        shares = mean(shares, 1) if average_attn_weights else shares
    y = linear(
        reshape(permute(y, (2, 0, 1, 3)), (length, count, width)), out_proj_weight, out_proj_bias
    )
    if not single:
        return y, shares
    return squeeze(y, 1), None if shares is None else squeeze(shares, 0)


def _added(name: str, what: str, mask: Value, dtype: str) -> Value:
    """What is added to scores: a bool hides where it is True."""
    if mask.dtype == "bool":
        g = mask.graph
        return where(mask, g.constant(-math.inf, dtype), g.constant(0.0, dtype))
    if mask.dtype != dtype:
        raise GraphError(f"{name}: {what} is {mask!r}; need bool or {dtype}")
    return mask


def _mask(
    name: str,
    q: Value,
    k: Value,
    attn: Value | None,
    padding: Value | None,
    more: int,
    causal: bool,
) -> Value | None:
    """[N, heads, L, S] or what broadcasts to it; positions that were added are seen by all."""
    (count, heads, length, _), size = q.shape, k.shape[2] - more
    g, mask = q.graph, None
    if attn is not None:
        if attn.shape not in ((length, size), (count * heads, length, size)):
            raise ShapeError(
                f"{name}: attn_mask is {attn!r}; need ({length}, {size}) or "
                f"({count * heads}, {length}, {size})"
            )
        mask = _added(name, "attn_mask", attn, q.dtype)
        mask = reshape(mask, (count, heads, length, size) if attn.ndim == 3 else mask.shape)
    elif causal:
        hidden = g.constant(~np.tri(length, size, dtype=bool))
        mask = _added(name, "is_causal", hidden, q.dtype)
    if padding is not None:
        if padding.shape != (count, size):
            raise ShapeError(f"{name}: key_padding_mask is {padding!r}; need ({count}, {size})")
        own = reshape(_added(name, "key_padding_mask", padding, q.dtype), (count, 1, 1, size))
        mask = own if mask is None else add(mask, own)
    if mask is not None and more:
        seen = broadcast_to(g.constant(0.0, q.dtype), (*mask.shape[:-1], more))
        mask = concat([mask, seen], axis=-1)
    return mask
