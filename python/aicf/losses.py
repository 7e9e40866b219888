"""Losses, composed of the ops: PyTorch's names, formulas and default values. Those whose targets
are numbers of classes are in `class_losses`.

`reduction` is "mean" over what counts, "sum", or "none": a loss of each element or row.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .arrays import _norm, broadcast_arrays
from .graph import Value
from .movement import detach, expand_dims, take
from .operands import _emit
from .ops import (
    _as,
    _widened,
    abs,
    add,
    clip,
    div,
    equal,
    exp,
    greater,
    greater_equal,
    less,
    log,
    logical_and,
    maximum,
    mean,
    minimum,
    mul,
    neg,
    softplus,
    sub,
    sum,
    where,
)

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cdist",
    "cosine_embedding_loss",
    "cosine_similarity",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multilabel_soft_margin_loss",
    "pairwise_distance",
    "pdist",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


def _operands(name: str, x: Value, t: Value, broadcast: bool = False) -> tuple[Value, Value]:
    if not broadcast and x.shape != t.shape:
        raise ShapeError(f"{name}: shapes differ: {x!r}, {t!r}; need equal shapes")
    if x.dtype != t.dtype:
        raise DTypeError(f"{name}: dtypes differ: {x!r}, {t!r}; need one (cast the other)")
    return _widened(x), _widened(t)


def _check_reduction(name: str, reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise GraphError(f'{name}: reduction is {reduction!r}; need "mean", "sum" or "none"')


def _reduced(name: str, each: Value, reduction: str, like: Value) -> Value:
    _check_reduction(name, reduction)
    if reduction != "none":
        each = mean(each) if reduction == "mean" else sum(each)
    return _as(each, like.dtype)


# ---- distances


def _reduced_by(
    name: str, each: Value, weight: Value | None, reduction: str, like: Value, divided: bool = True
) -> Value:
    """Terms times a weight each; their mean is divided by the sum of weights, or their number."""
    if weight is None:
        return _reduced(name, each, reduction, like)
    if weight.shape != like.shape:
        raise ShapeError(f"{name}: weight is {weight!r}, y is {like!r}; need a weight an element")
    if weight.dtype != like.dtype:
        raise DTypeError(f"{name}: weight is {weight!r}, y is {like!r}; need one dtype (cast it)")
    wide = _widened(weight)
    if reduction == "mean" and divided:
        return _as(div(sum(mul(each, wide)), sum(wide)), like.dtype)
    return _reduced(name, mul(each, wide), reduction, like)


def mse_loss(y: Value, t: Value, reduction: str = "mean", weight: Value | None = None) -> Value:
    """(y − t)², its mean by default, weighed where a weight an element is given.

    >>> aicf.mse_loss(x, y).shape
    ()
    """
    if reduction == "mean" and weight is None:
        return _emit("MseLoss", "mse_loss", y, t)
    wide_y, wide_t = _operands("mse_loss", y, t)
    d = sub(wide_y, wide_t)
    return _reduced_by("mse_loss", mul(d, d), weight, reduction, y)


def l1_loss(y: Value, t: Value, reduction: str = "mean", weight: Value | None = None) -> Value:
    """|y − t|, its mean by default, weighed where a weight an element is given.

    >>> aicf.l1_loss(x, y).shape
    ()
    """
    wide_y, wide_t = _operands("l1_loss", y, t)
    return _reduced_by("l1_loss", abs(sub(wide_y, wide_t)), weight, reduction, y)


def huber_loss(
    y: Value,
    t: Value,
    delta: float = 1.0,
    reduction: str = "mean",
    weight: Value | None = None,
) -> Value:
    """d²/2 where |d| <= delta, else delta·(|d| − delta/2), for d = y − t; its mean by default.

    Where a weight an element is given, the terms times it, whose mean is, as PyTorch's, over all.

    >>> aicf.huber_loss(x, y).shape
    ()
    """
    if not delta > 0:
        raise GraphError(f"huber_loss: delta is {delta}; need delta > 0")
    wide_y, wide_t = _operands("huber_loss", y, t)
    d = sub(wide_y, wide_t)
    slope = clip(d, -delta, delta)  # the derivative; both branches are slope·(d − slope/2)
    each = mul(slope, sub(d, mul(slope, 0.5)))
    return _reduced_by("huber_loss", each, weight, reduction, y, divided=False)


def smooth_l1_loss(y: Value, t: Value, beta: float = 1.0, reduction: str = "mean") -> Value:
    """d²/(2·beta) where |d| < beta, else |d| − beta/2, for d = y − t; its mean by default.

    >>> aicf.smooth_l1_loss(x, y, beta=0.5).shape
    ()
    """
    if not beta >= 0:
        raise GraphError(f"smooth_l1_loss: beta is {beta}; need beta >= 0")
    if beta == 0:
        return l1_loss(y, t, reduction)
    wide_y, wide_t = _operands("smooth_l1_loss", y, t)
    d = sub(wide_y, wide_t)
    slope = clip(d, -beta, beta)
    each = div(mul(slope, sub(d, mul(slope, 0.5))), beta)
    return _reduced("smooth_l1_loss", each, reduction, y)


def pairwise_distance(
    a: Value, b: Value, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Value:
    """(Σ |a − b + eps|ᵖ)^(1/p) over the last axis.

    >>> aicf.pairwise_distance(x, y).shape
    (4,)
    """
    if math.isnan(p):
        raise GraphError(f"pairwise_distance: p is {p}; need a number")
    wide_a, wide_b = _operands("pairwise_distance", a, b, broadcast=True)
    return _as(_norm(add(sub(wide_a, wide_b), eps), p, -1, keepdims), a.dtype)


def cdist(a: Value, b: Value, p: float = 2.0) -> Value:
    """(Σ |a − b|ᵖ)^(1/p) of each row of a[..., n, m] and each of b[..., k, m] -> [..., n, k].

    The differences are one pass, n·k·m of them; the gradient at 0 is 0.

    >>> aicf.cdist(x, y).shape
    (4, 4)
    """
    if not p >= 0:
        raise GraphError(f"cdist: p is {p}; need a number >= 0")
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"cdist: a is {a!r}, b is {b!r}; need [..., n, m] and [..., k, m]")
    wide_a, wide_b = _operands("cdist", a, b, broadcast=True)
    d = sub(expand_dims(wide_a, -2), expand_dims(wide_b, -3))
    return _as(_norm(d, p if a.shape[-1] else 1.0, -1, False), a.dtype)


def pdist(x: Value, p: float = 2.0) -> Value:
    """cdist of x[n, m] with itself, each pair of rows once: (0, 1), (0, 2) ... -> [n(n − 1)/2].

    >>> aicf.pdist(x).shape
    (6,)
    """
    if not p >= 0:
        raise GraphError(f"pdist: p is {p}; need a number >= 0")
    if x.ndim != 2 or x.shape[0] > 1 << 14:
        raise ShapeError(f"pdist: x is {x!r}; need [n, m] of at most 2**14 rows")
    first, second = (x.graph.constant(i, "int64") for i in np.triu_indices(x.shape[0], 1))
    wide = _widened(x)
    d = sub(take(wide, first), take(wide, second))
    return _as(_norm(d, p if x.shape[1] else 1.0, -1, False), x.dtype)


def cosine_similarity(a: Value, b: Value, axis: int = 1, eps: float = 1e-8) -> Value:
    """a·b / (max(‖a‖, eps)·max(‖b‖, eps)) along `axis`.

    >>> aicf.cosine_similarity(x, y).shape
    (4,)
    """
    wide_a, wide_b = broadcast_arrays(_operands("cosine_similarity", a, b, broadcast=True))

    def unit(x: Value) -> Value:
        return div(x, maximum(_norm(x, 2, axis, True), eps))

    return _as(sum(mul(unit(wide_a), unit(wide_b)), axis), a.dtype)


# ---- probabilities


def binary_cross_entropy_with_logits(
    x: Value,
    t: Value,
    weight: Value | None = None,
    reduction: str = "mean",
    pos_weight: Value | None = None,
) -> Value:
    """max(x, 0) − x·t + log(1 + exp(−|x|)), its mean by default; at x = ±inf its limit.

    Args:
        weight: that the loss of each element is multiplied with, of a shape that broadcasts.
        pos_weight: the same of t's part: (1 − t)·x + (1 + (pos_weight − 1)·t)·softplus(−x).

    >>> aicf.binary_cross_entropy_with_logits(x, y).shape
    ()
    """
    name = "binary_cross_entropy_with_logits"
    logits, target = _operands(name, x, t)
    if pos_weight is not None:
        positive = add(mul(sub(_widened(pos_weight), 1.0), target), 1.0)
        each = add(mul(sub(1.0, target), logits), mul(positive, softplus(neg(logits))))
        return _reduced(name, _weighted(each, weight), reduction, x)
    # |x|, at 0 of the branch that `linear` takes too: there the derivatives of their sum are right,
    # not those of either.
    left = less(logits, 0.0)
    size = where(left, neg(logits), logits)
    finite = less(size, math.inf)
    # Each of the two sums is of finite numbers where the other is taken, so that its gradient is 0
    # there.
    near = where(finite, logits, 0.0)
    linear = sub(where(left, 0.0, near), mul(near, target))
    # how far the target is from what an infinite logit says
    wrong = where(greater(logits, 0.0), sub(1.0, target), target)
    limit = mul(where(equal(wrong, 0.0), 0.0, size), wrong)
    each = add(where(finite, linear, limit), softplus(neg(size)))
    return _reduced(name, _weighted(each, weight), reduction, x)


def _weighted(each: Value, weight: Value | None) -> Value:
    return each if weight is None else mul(each, _widened(weight))


def binary_cross_entropy(
    p: Value, t: Value, weight: Value | None = None, reduction: str = "mean"
) -> Value:
    """−(t·log p + (1 − t)·log(1 − p)), its mean by default; a logarithm below −100 is −100 and has
    no gradient.

    >>> aicf.binary_cross_entropy(aicf.sigmoid(x), aicf.sigmoid(y)).shape
    ()
    """
    wide, target = _operands("binary_cross_entropy", p, t)

    def limited(q: Value) -> Value:
        low = logical_and(greater_equal(q, 0.0), less(q, math.exp(-100)))
        return where(low, -100.0, log(where(low, 1.0, q)))

    yes, no = limited(wide), limited(sub(1.0, wide))
    each = neg(add(mul(target, yes), mul(sub(1.0, target), no)))
    return _reduced("binary_cross_entropy", _weighted(each, weight), reduction, p)


def kl_div(
    log_probabilities: Value, t: Value, reduction: str = "mean", log_target: bool = False
) -> Value:
    """t·(log t − log_probabilities), 0 where t is 0, NaN where it is less; its mean over elements
    by default.

    Args:
        reduction: also "batchmean": the sum over the first size, which is the divergence of rows.
        log_target: t is the logarithm of the probabilities.

    >>> aicf.kl_div(aicf.log_softmax(x), aicf.softmax(y), reduction="batchmean").shape
    ()
    """
    name = "kl_div"
    wide, target = _operands(name, log_probabilities, t)
    if log_target:
        each = mul(exp(target), sub(target, wide))
    else:
        none = equal(target, 0.0)
        apart = sub(log(where(none, 1.0, target)), where(none, 0.0, wide))
        each = where(none, 0.0, mul(target, apart))
    if reduction == "batchmean":
        rows = log_probabilities.shape[0] if log_probabilities.ndim else 1
        return _as(div(sum(each), float(rows)), log_probabilities.dtype)
    return _reduced(name, each, reduction, log_probabilities)


def poisson_nll_loss(
    y: Value,
    t: Value,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Value:
    """exp(y) − t·y, or y − t·log(y + eps) where not log_input; its mean by default.

    Args:
        full: adds Stirling's t·log t − t + log(2πt)/2 where t > 1.

    >>> aicf.poisson_nll_loss(x, y).shape
    ()
    """
    wide, target = _operands("poisson_nll_loss", y, t)
    if log_input:
        each = sub(exp(wide), mul(target, wide))
    else:
        each = sub(wide, mul(target, log(add(wide, eps))))
    if full:
        safe = maximum(target, 1.0)
        logarithm = log(safe)
        stirling = add(sub(mul(safe, logarithm), safe), mul(log(mul(safe, 2 * math.pi)), 0.5))
        each = add(each, where(greater(target, 1.0), stirling, 0.0))
    return _reduced("poisson_nll_loss", each, reduction, y)


def gaussian_nll_loss(
    y: Value,
    t: Value,
    variance: Value,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Value:
    """(log v + (y − t)²/v)/2 for v = max(variance, eps), its mean by default.

    Args:
        variance: of y's shape, of one number for each of its rows (the last axis 1 or left out), or
            one number. Its gradient is that at v, below the limit too, so that it can grow.
        full: adds log(2π)/2.

    >>> aicf.gaussian_nll_loss(x, y, aicf.exp(x)).shape
    ()
    """
    wide, target = _operands("gaussian_nll_loss", y, t, broadcast=True)
    rows = y.shape[:-1]
    if variance.shape not in (y.shape, (*rows, 1), rows, ()):
        raise ShapeError(
            f"gaussian_nll_loss: variance is {variance!r} for {y!r}; need its shape, {rows} or ()"
        )
    if variance.shape == rows and y.ndim > 0:
        variance = expand_dims(variance, -1)
    _, v = _operands("gaussian_nll_loss", y, variance, broadcast=True)
    v = where(less(v, eps), add(sub(v, detach(v)), eps), v)
    d = sub(wide, target)
    each = mul(add(log(v), div(mul(d, d), v)), 0.5)
    if full:
        each = add(each, 0.5 * math.log(2 * math.pi))
    return _reduced("gaussian_nll_loss", each, reduction, y)


# ---- margins


def soft_margin_loss(y: Value, t: Value, reduction: str = "mean") -> Value:
    """log(1 + exp(−t·y)) for t of −1 and 1, its mean by default.

    >>> aicf.soft_margin_loss(x, aicf.sign(y)).shape
    ()
    """
    wide, target = _operands("soft_margin_loss", y, t)
    return _reduced("soft_margin_loss", softplus(neg(mul(target, wide))), reduction, y)


def hinge_embedding_loss(y: Value, t: Value, margin: float = 1.0, reduction: str = "mean") -> Value:
    """y where t is 1, max(0, margin − y) where t is −1; its mean by default.

    >>> aicf.hinge_embedding_loss(x, aicf.sign(y)).shape
    ()
    """
    wide, target = _operands("hinge_embedding_loss", y, t)
    far = where(equal(target, 1.0), 0.0, _positive(sub(margin, wide)))
    near = where(equal(target, -1.0), 0.0, wide)
    return _reduced("hinge_embedding_loss", add(far, near), reduction, y)


def _positive(x: Value) -> Value:
    """x where x >= 0, else 0; its gradient at 0 is 1, as PyTorch's, and a NaN stays one."""
    return where(less(x, 0.0), 0.0, x)


def margin_ranking_loss(
    a: Value, b: Value, t: Value, margin: float = 0.0, reduction: str = "mean"
) -> Value:
    """max(0, −t·(a − b) + margin) for t of −1 and 1, its mean by default.

    >>> aicf.margin_ranking_loss(x, y, aicf.sign(y)).shape
    ()
    """
    wide_a, wide_b = _operands("margin_ranking_loss", a, b, broadcast=True)
    _, target = _operands("margin_ranking_loss", a, t, broadcast=True)
    each = _positive(add(neg(mul(target, sub(wide_a, wide_b))), margin))
    return _reduced("margin_ranking_loss", each, reduction, a)


def triplet_margin_loss(
    anchor: Value,
    positive: Value,
    negative: Value,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Value:
    """max(0, d(anchor, positive) − d(anchor, negative) + margin), its mean by default.

    Args:
        p, eps: of d, `pairwise_distance`.
        swap: the smaller of d(anchor, negative) and d(positive, negative) counts.

    >>> aicf.triplet_margin_loss(x, y, x + 1.0).shape
    ()
    """
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    return _reduced(
        "triplet_margin_loss", _positive(add(sub(near, far), margin)), reduction, anchor
    )


def triplet_margin_with_distance_loss(
    anchor: Value,
    positive: Value,
    negative: Value,
    distance_function: Callable[..., Value] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Value:
    """triplet_margin_loss with a distance of one's own, f(a, b); None = `pairwise_distance`.

    >>> far = lambda a, b: 1.0 - aicf.cosine_similarity(a, b)
    >>> aicf.triplet_margin_with_distance_loss(x, y, x + 1.0, far).shape
    ()
    """
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    each = _positive(add(sub(near, far), margin))
    return _reduced("triplet_margin_with_distance_loss", each, reduction, anchor)


def cosine_embedding_loss(
    a: Value, b: Value, t: Value, margin: float = 0.0, reduction: str = "mean"
) -> Value:
    """1 − cos(a, b) where t is 1, max(0, cos(a, b) − margin) where t is −1; its mean by default.

    >>> aicf.cosine_embedding_loss(x, y, aicf.sign(y[:, 0])).shape
    ()
    """
    cosine = cosine_similarity(a, b, -1)
    if t.shape != cosine.shape:
        raise ShapeError(f"cosine_embedding_loss: t is {t!r}; need {list(cosine.shape)}")
    near = where(equal(t, 1.0), sub(1.0, cosine), 0.0)
    far = where(equal(t, -1.0), _positive(sub(cosine, margin)), 0.0)
    return _reduced("cosine_embedding_loss", add(near, far), reduction, a)


def multilabel_soft_margin_loss(
    y: Value, t: Value, weight: Value | None = None, reduction: str = "mean"
) -> Value:
    """−(t·log σ(y) + (1 − t)·log σ(−y)), its mean over classes, the last axis, and over rows.

    Args:
        weight: that the loss of each element is multiplied with, of a shape that broadcasts.

    >>> aicf.multilabel_soft_margin_loss(x, aicf.sigmoid(y)).shape
    ()
    """
    name = "multilabel_soft_margin_loss"
    wide, target = _operands(name, y, t)
    each = add(mul(target, softplus(neg(wide))), mul(sub(1.0, target), softplus(wide)))
    return _reduced(name, mean(_weighted(each, weight), -1), reduction, y)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
