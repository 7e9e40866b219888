"""Attention of several heads with its projections."""

from __future__ import annotations

import functools
import math

import numpy as np

from ._core import GraphError, ShapeError
from .arguments import checked
from .graph import Data, Value
from .movement import broadcast_to, concat, expand_dims, permute, reshape, squeeze, transpose
from .nn_functions import dropout, scaled_dot_product_attention, shown_by, shows_earlier
from .ops import add, linear, logical_and, logical_not, matmul, mean, mul, where

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
        attn_mask: [L, S] or [N * heads, L, S], likewise. Long sequences keep no scores in memory
            where no mask is a float, as `scaled_dot_product_attention` says, and need_weights not;
            a NumPy array of 0 and -inf alone counts as the bool mask that it stands for, of any
            dtype of floats, and one that hides positions after one's own as is_causal.
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
    if key_padding_mask is not None:
        key_padding_mask = _of_bool(key_padding_mask)
    if attn_mask is not None:
        shown = shown_by(attn_mask, hides=True)
        whole = attn_mask.shape == (length, k.shape[2] - len(more))
        if shown is not None and whole and shows_earlier(shown, *attn_mask.shape):
            is_causal, attn_mask = True, None
        else:
            attn_mask = _of_bool(attn_mask)
    causal = is_causal and attn_mask is None and not more and not need_weights
    if is_causal and attn_mask is None and not causal:
        hidden = ~np.tri(length, k.shape[2] - len(more), dtype=bool)
        attn_mask = query.graph.constant(hidden)
    mask = _mask(name, q, k, attn_mask, key_padding_mask, len(more))
    p = dropout_p if training else 0.0
    if not need_weights:
        y, shares = scaled_dot_product_attention(q, k, v, mask, causal, dropout_p=p), None
    else:
        scores = mul(matmul(q, transpose(k)), 1 / math.sqrt(width // heads))
        if mask is not None:
            seen = mask.dtype == "bool"
            scores = where(mask, scores, -math.inf) if seen else add(scores, mask)
        (shares,) = query.graph._emit("Softmax", [scores], masked=True)
        shares = dropout(shares, p) if p else shares
        y = matmul(shares, v)
        shares = mean(shares, 1) if average_attn_weights else shares
    y = linear(
        reshape(permute(y, (2, 0, 1, 3)), (length, count, width)), out_proj_weight, out_proj_bias
    )
    if not single:
        return y, shares
    return squeeze(y, 1), None if shares is None else squeeze(shares, 0)


def _of_bool(mask: Value) -> Value:
    """A constant of 0 and -inf as bool, True = hidden; others as they are."""
    shown = None if mask.dtype == "bool" else shown_by(mask)
    return mask if shown is None else mask.graph.constant(~shown)


def _mask(
    name: str, q: Value, k: Value, attn: Value | None, padding: Value | None, more: int
) -> Value | None:
    """[N, heads, L, S] or what broadcasts to it: a bool, True = seen, unless one that is given is
    a float added to the scores. Positions that were added are seen by all."""
    (count, heads, length, _), size = q.shape, k.shape[2] - more
    g, masks = q.graph, {}
    if attn is not None:
        if attn.shape not in ((length, size), (count * heads, length, size)):
            raise ShapeError(
                f"{name}: attn_mask is {attn!r}; need ({length}, {size}) or "
                f"({count * heads}, {length}, {size})"
            )
        whole = (count, heads, length, size) if attn.ndim == 3 else attn.shape
        masks["attn_mask"] = reshape(attn, whole)
    if padding is not None:
        if padding.shape != (count, size):
            raise ShapeError(f"{name}: key_padding_mask is {padding!r}; need ({count}, {size})")
        masks["key_padding_mask"] = reshape(padding, (count, 1, 1, size))
    for what, mask in masks.items():
        if mask.dtype not in ("bool", q.dtype):
            given = attn if what == "attn_mask" else padding
            raise GraphError(f"{name}: {what} is {given!r}; need bool or {q.dtype}")
    if not masks:
        return None
    if all(mask.dtype == "bool" for mask in masks.values()):
        combined = functools.reduce(logical_and, [logical_not(mask) for mask in masks.values()])
        beside = g.constant(True, "bool")
    else:
        none, all_of_it = g.constant(0.0, q.dtype), g.constant(-math.inf, q.dtype)
        combined = functools.reduce(
            add,
            [
                where(mask, all_of_it, none) if mask.dtype == "bool" else mask
                for mask in masks.values()
            ],
        )
        beside = none
    if more:
        seen = broadcast_to(beside, (*combined.shape[:-1], more))
        combined = concat([combined, seen], axis=-1)
    return combined
