"""Losses, composed of the ops: PyTorch's names, formulas and default values.

`reduction` is "mean" over what counts, "sum", or "none": a loss of each element or row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .arrays import _hot, _norm, broadcast_arrays
from .gradients import custom_gradient, grad, itself, later
from .graph import Value, _emit
from .indexing import take_along_axis
from .movement import concat, detach, expand_dims, permute, reshape, squeeze, take
from .ops import (
    _as,
    _widened,
    abs,
    add,
    cast,
    clip,
    cumsum,
    div,
    equal,
    exp,
    greater,
    greater_equal,
    less,
    linear,
    log,
    log_softmax,
    logical_and,
    logical_not,
    maximum,
    mean,
    minimum,
    mul,
    neg,
    not_equal,
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
    "cross_entropy",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "linear_cross_entropy",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
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


def mse_loss(y: Value, t: Value, reduction: str = "mean") -> Value:
    """(y − t)², its mean by default.

    >>> aicf.mse_loss(x, y).shape
    ()
    """
    if reduction == "mean":
        return _emit("MseLoss", "mse_loss", y, t)
    wide_y, wide_t = _operands("mse_loss", y, t)
    d = sub(wide_y, wide_t)
    return _reduced("mse_loss", mul(d, d), reduction, y)


def l1_loss(y: Value, t: Value, reduction: str = "mean") -> Value:
    """|y − t|, its mean by default.

    >>> aicf.l1_loss(x, y).shape
    ()
    """
    wide_y, wide_t = _operands("l1_loss", y, t)
    return _reduced("l1_loss", abs(sub(wide_y, wide_t)), reduction, y)


def huber_loss(y: Value, t: Value, delta: float = 1.0, reduction: str = "mean") -> Value:
    """d²/2 where |d| <= delta, else delta·(|d| − delta/2), for d = y − t; its mean by default.

    >>> aicf.huber_loss(x, y).shape
    ()
    """
    if not delta > 0:
        raise GraphError(f"huber_loss: delta is {delta}; need delta > 0")
    wide_y, wide_t = _operands("huber_loss", y, t)
    d = sub(wide_y, wide_t)
    slope = clip(d, -delta, delta)  # the derivative; both branches are slope·(d − slope/2)
    return _reduced("huber_loss", mul(slope, sub(d, mul(slope, 0.5))), reduction, y)


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


# ---- classes


def cross_entropy(
    logits: Value,
    labels: Value,
    weight: Value | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Value:
    """−weight[label]·log_softmax(logits)[row, label], its mean by default.

    Args:
        logits: [N, C] or [N, C, ...], float; or [C], of a single label.
        labels: [N] or [N, ...], int32 or int64, in [0, C). A step refuses another label, which with
            `compile(checks="off")` makes the row NaN, its gradient zero. Or the probabilities of
            all classes, of the shape and dtype of logits.
        weight: of each class, [C]. The mean over labels is that by weight.
        ignore_index: a label whose rows do not count, neither in the loss nor in the mean; None for
            no such label, where PyTorch has −100.
        label_smoothing: the part in [0, 1] of each target that is shared by all classes.

    >>> aicf.cross_entropy(x, labels).shape
    ()
    >>> aicf.cross_entropy(x, labels, label_smoothing=0.1, reduction="none").shape
    (4,)
    """
    name = "cross_entropy"
    if not 0 <= label_smoothing <= 1:
        raise GraphError(f"{name}: label_smoothing is {label_smoothing}; need 0 to 1")
    if logits.ndim == 1 and labels.shape in ((), logits.shape):
        each = cross_entropy(
            expand_dims(logits, 0), expand_dims(labels, 0), weight, ignore_index, reduction,
            label_smoothing,
        )  # fmt: skip
        return each if each.ndim == 0 else squeeze(each, 0)
    plain = weight is None and ignore_index is None and label_smoothing == 0
    by_label = not labels.dtype.startswith(("float", "bfloat"))
    if plain and by_label and logits.ndim == 2 and reduction == "mean":
        return _emit("CrossEntropy", name, logits, labels)
    if weight is None and not label_smoothing and by_label and labels.shape == logits.shape[:1]:
        if logits.ndim == 2 and reduction == "mean" and ignore_index is not None:
            return _of_counted(name, logits, labels, ignore_index)
    _check_reduction(name, reduction)
    classes = _classes(name, logits, weight)
    known = log_softmax(_widened(logits), 1)
    if by_label:
        each, counts = _picked(name, known, labels, weight, ignore_index)
        if label_smoothing:
            all_classes = known if weight is None else mul(known, _by_class(weight, known))
            spread = where(_in_range(labels, classes), neg(sum(all_classes, 1)), 0.0)
            if ignore_index is not None:
                spread = _counted(labels, ignore_index, spread)
            each = add(mul(each, 1 - label_smoothing), mul(spread, label_smoothing / classes))
        return _mean_of(each, counts, reduction, logits)
    if labels.shape == (logits.shape[0], *logits.shape[2:]):
        raise DTypeError(f"{name}: labels are {labels!r}; need int32 or int64")
    if labels.shape != logits.shape:
        raise ShapeError(f"{name}: probabilities are {labels!r}, logits {logits!r}; need one shape")
    if ignore_index is not None:
        raise GraphError(f"{name}: ignore_index is {ignore_index}, and labels are probabilities")
    _, target = _operands(name, logits, labels)
    if label_smoothing:
        target = add(mul(target, 1 - label_smoothing), label_smoothing / classes)
    terms = mul(target, known)
    each = neg(sum(terms if weight is None else mul(terms, _by_class(weight, terms)), 1))
    return _mean_of(each, None, reduction, logits)


def _of_counted(name: str, logits: Value, labels: Value, ignore_index: int) -> Value:
    """The mean over the rows that count."""
    counts = not_equal(labels, ignore_index)
    of_all = _widened(_of_rows_that_count(name, logits, labels, ignore_index))
    return _as(div(of_all, mean(cast(counts, of_all.dtype))), logits.dtype)


def _of_rows_that_count(name: str, logits: Value, labels: Value, ignore_index: int | None) -> Value:
    """The mean over all rows: those that do not count are made such that they add nothing."""
    if ignore_index is None:
        return _emit("CrossEntropy", name, logits, labels)
    counts = not_equal(labels, ignore_index)
    sure = np.full(logits.shape[1], -1e4, np.float32)  # whose exp is 0, in every dtype
    sure[:1] = 0.0
    nothing = cast(logits.graph.constant(sure), logits.dtype)
    rows = where(expand_dims(counts, 1), logits, nothing)
    return _emit("CrossEntropy", name, rows, where(counts, labels, 0))


def linear_cross_entropy(
    x: Value,
    linear_weight: Value,
    target: Value,
    linear_bias: Value | None = None,
    weight: Value | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    chunk: int | None = None,
) -> Value:
    """cross_entropy(linear(x, linear_weight, linear_bias), target, ...) of [..., in] and [...].

    Args:
        chunk: of how many rows there are logits at a time; None: of all. With a chunk the
            gradients are made beside the loss, those of the weight added up chunk by chunk in
            ascending order, so that no more logits are ever kept. Needs reduction "mean" or "sum"
            and no `weight`; the order of the sums makes other last digits.

    Raises: GraphError where `chunk` is below 1 or does not go with the other options.

    >>> heard, spoken = g.input("heard", (5, 3)), g.input("spoken", (5,), "int64")
    >>> classes = g.param("classes", (7, 3))
    >>> aicf.linear_cross_entropy(heard, classes, spoken, chunk=2).shape
    ()
    """
    name = "linear_cross_entropy"
    if x.shape[:-1] != target.shape:
        raise ShapeError(f"{name}: x is {x!r}, target is {target!r}; need a class for each row")
    rows, labels = reshape(x, (-1, x.shape[-1])), reshape(target, (-1,))
    if chunk is not None:
        if chunk < 1:
            raise GraphError(f"{name}: chunk is {chunk}; need a number of rows from 1")
        if reduction == "none" or weight is not None:
            what = 'reduction "none"' if reduction == "none" else "a weight of classes"
            raise GraphError(f'{name}: chunk is {chunk}, with {what}; need "mean" or "sum" alone')
    if chunk is None or rows.shape[0] <= chunk:
        loss = cross_entropy(
            linear(rows, linear_weight, linear_bias), labels, weight, ignore_index, reduction,
            label_smoothing,
        )  # fmt: skip
        return reshape(loss, target.shape) if reduction == "none" else loss
    _check_reduction(name, reduction)
    given = [rows, linear_weight, *([] if linear_bias is None else [linear_bias])]
    loss = _in_chunks(name, given, labels, chunk, ignore_index, label_smoothing)
    if reduction == "sum":
        return mul(loss, float(rows.shape[0]))
    if ignore_index is None:
        return loss
    counted = mean(cast(not_equal(labels, ignore_index), _widened(loss).dtype))
    return _as(div(_widened(loss), counted), loss.dtype)


def _in_chunks(
    name: str, given: Sequence[Value], labels: Value, chunk: int, ignore_index: int | None,
    label_smoothing: float,
) -> Value:  # fmt: skip
    """The mean over all rows, of which those that do not count are zero."""
    count = labels.shape[0]

    def one(rows: Value, labels: Value, *layer: Value) -> Value:
        logits = linear(rows, *layer)
        if label_smoothing == 0:
            each = _of_rows_that_count(name, logits, labels, ignore_index)
            return mul(each, labels.shape[0] / count)
        total = cross_entropy(logits, labels, None, ignore_index, "sum", label_smoothing)
        return mul(total, 1 / count)

    @custom_gradient
    def chunks(*given: Value) -> tuple[Value, Any]:
        loss: Value | None = None
        of_rows: list[Value] = []
        of_layer: list[Value] = []
        for at in range(0, count, chunk):
            rows = given[0][at : at + chunk]
            # One chunk after the other, or their logits would lie side by side.
            part = [rows if loss is None else later(rows, loss), *map(itself, given[1:])]
            own = one(part[0], labels[at : at + chunk], *part[1:])
            row, *layer = grad(own, part)
            of_rows.append(row)
            of_layer = layer if loss is None else list(map(add, of_layer, layer))
            loss = own if loss is None else add(loss, own)
        made = [concat(of_rows), *of_layer]
        assert loss is not None
        return loss, lambda dy: [mul(one, dy) for one in made]

    result: Value = chunks(*given)
    return result


def nll_loss(
    log_probabilities: Value,
    labels: Value,
    weight: Value | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Value:
    """−weight[label]·log_probabilities[row, label], its mean by default; operands as of
    cross_entropy.

    >>> aicf.nll_loss(x, labels).shape
    ()
    """
    if log_probabilities.ndim == 1 and labels.ndim == 0:
        row, label = expand_dims(log_probabilities, 0), expand_dims(labels, 0)
        each = nll_loss(row, label, weight, ignore_index, reduction)
        return each if each.ndim == 0 else squeeze(each, 0)
    if (
        weight is None
        and ignore_index is None
        and reduction == "mean"
        and log_probabilities.ndim == 2
        and labels.shape == log_probabilities.shape[:1]
    ):
        return neg(mean(_emit("Pick", "nll_loss", log_probabilities, labels)))
    _check_reduction("nll_loss", reduction)
    _classes("nll_loss", log_probabilities, weight)
    each, counts = _picked("nll_loss", _widened(log_probabilities), labels, weight, ignore_index)
    return _mean_of(each, counts, reduction, log_probabilities)


def _classes(name: str, x: Value, weight: Value | None) -> int:
    if x.ndim < 2:
        raise ShapeError(
            f"{name}: scores are {x!r}; need rank 2 or more, [N, C, ...], or [C] and one label"
        )
    if weight is not None and weight.shape != (x.shape[1],):
        raise ShapeError(f"{name}: weight is {weight!r}, scores {x!r}; need [{x.shape[1]}]")
    return x.shape[1]


def _by_class(weight: Value, x: Value) -> Value:
    """weight[C] beside [N, C, ...]."""
    return reshape(_widened(weight), [weight.shape[0]] + [1] * (x.ndim - 2))


def _in_range(labels: Value, classes: int) -> Value:
    return logical_and(greater_equal(labels, 0), less(labels, classes))


def _counted(labels: Value, ignore_index: int, x: Value) -> Value:
    return where(not_equal(labels, ignore_index), x, 0.0)


def _picked(
    name: str, x: Value, labels: Value, weight: Value | None, ignore_index: int | None
) -> tuple[Value, Value | None]:
    """The weighted loss of each row of [N, C, ...], and what each counts in the mean; None: 1."""
    if labels.shape != (x.shape[0], *x.shape[2:]):
        raise ShapeError(
            f"{name}: labels are {labels!r}, scores {x!r}; need {[x.shape[0], *x.shape[2:]]}"
        )
    taken = labels
    if ignore_index is not None:
        taken = where(not_equal(labels, ignore_index), labels, 0)
    rows = x if x.ndim == 2 else permute(x, [0, *range(2, x.ndim), 1])
    rows = reshape(rows, [math.prod(labels.shape), x.shape[1]])
    picked = _emit("Pick", name, rows, reshape(taken, math.prod(labels.shape)))
    each, counts = neg(reshape(picked, labels.shape)), None
    if weight is not None:
        # of a label out of range 0: only its own row may lose its gradient
        counts = where(_in_range(taken, x.shape[1]), take(_widened(weight), taken), 0.0)
        each = mul(each, counts)
    if ignore_index is not None:
        if counts is None:
            counts = cast(not_equal(labels, ignore_index), each.dtype)
        else:
            counts = _counted(labels, ignore_index, counts)
        each = _counted(labels, ignore_index, each)
    return each, counts


def _mean_of(each: Value, counts: Value | None, reduction: str, like: Value) -> Value:
    if reduction == "mean" and counts is not None:
        return _as(div(sum(each), sum(counts)), like.dtype)
    return _reduced("cross_entropy", each, reduction, like)


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
    """t·(log t − log_probabilities), 0 where t is 0; its mean over elements by default.

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
        some = greater(target, 0.0)
        safe = where(some, target, 1.0)
        each = where(some, mul(target, sub(log(safe), wide)), neg(mul(target, wide)))
        each = where(equal(target, 0.0), 0.0, each)
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


def _with_classes(name: str, x: Value, t: Value, each_class: bool) -> tuple[Value, Value]:
    """Scores [N, C] and targets [N] or [N, C], from those or from a row of scores."""
    if x.ndim not in (1, 2) or t.shape != (x.shape if each_class else x.shape[:-1]):
        need = "[N, C] twice" if each_class else "[N, C] and [N]"
        raise ShapeError(f"{name}: scores are {x!r}, targets {t!r}; need {need}, or without N")
    return (x, t) if x.ndim == 2 else (expand_dims(x, 0), expand_dims(t, 0))


def multi_margin_loss(
    y: Value,
    labels: Value,
    p: int = 1,
    margin: float = 1.0,
    weight: Value | None = None,
    reduction: str = "mean",
) -> Value:
    """Σⱼ weight[label]·max(0, margin − y[label] + y[j])ᵖ / C over j that are not the label, its
    mean over rows by default.

    Args:
        y: [N, C]; or [C], of a single label.
        labels: [N], int32 or int64, in [0, C).
        p: 1 or 2.
        weight: of each class, [C].

    >>> aicf.multi_margin_loss(x, labels).shape
    ()
    """
    name = "multi_margin_loss"
    if p not in (1, 2):
        raise GraphError(f"{name}: p is {p}; need 1 or 2")
    scores, label = _with_classes(name, y, labels, False)
    classes = _classes(name, scores, weight)
    wide = _widened(scores)
    own = neg(_picked(name, wide, label, None, None)[0])
    each = _positive(add(sub(wide, expand_dims(own, -1)), margin))
    each = each if p == 1 else mul(each, each)
    if weight is not None:
        known = where(_in_range(label, classes), take(_widened(weight), label), 0.0)
        each = mul(each, expand_dims(known, -1))
    each = where(_hot(label, classes, "bool"), 0.0, each)
    rows = div(sum(each, -1), float(classes))
    rows = where(_in_range(label, classes), rows, math.nan)
    return _of_rows(name, rows, reduction, y)


def _of_rows(name: str, rows: Value, reduction: str, like: Value) -> Value:
    """The losses of rows; of scores without N the single one."""
    return _reduced(name, rows if like.ndim == 2 else squeeze(rows, 0), reduction, like)


def multilabel_margin_loss(y: Value, labels: Value, reduction: str = "mean") -> Value:
    """Σ max(0, 1 − (y[label] − y[j])) / C over the labels of a row and j that are none of them, its
    mean over rows by default.

    C² terms a row.

    Args:
        y: [N, C], or [C].
        labels: int32 or int64 of y's shape; in each row those before the first negative one count.

    >>> aicf.multilabel_margin_loss(x, aicf.argsort(x)).shape
    ()
    """
    name = "multilabel_margin_loss"
    scores, label = _with_classes(name, y, labels, True)
    wide, classes = _widened(scores), scores.shape[1]
    counts = equal(cumsum(cast(less(label, 0), "int32"), 1), 0)
    taken = where(counts, label, 0)
    hit = logical_and(_hot(taken, classes, "bool"), expand_dims(counts, -1))
    target = greater(sum(cast(hit, "int32"), 1), 0)
    own = take_along_axis(wide, taken, 1)
    each = _positive(sub(1.0, sub(expand_dims(own, -1), expand_dims(wide, -2))))
    each = where(
        logical_and(expand_dims(counts, -1), logical_not(expand_dims(target, -2))), each, 0.0
    )
    return _of_rows(name, div(sum(each, [1, 2]), float(classes)), reduction, y)


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
