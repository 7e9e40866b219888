"""Losses of scores by class whose targets are numbers of classes, as `losses` has the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .arrays import _hot
from .gradients import custom_gradient, grad, itself, later
from .graph import Value
from .indexing import take_along_axis
from .losses import _check_reduction, _operands, _positive, _reduced
from .movement import concat, expand_dims, permute, reshape, squeeze, take
from .operands import _emit
from .ops import (
    _as,
    _widened,
    add,
    cast,
    cumsum,
    div,
    equal,
    greater,
    greater_equal,
    less,
    linear,
    log_softmax,
    logical_and,
    logical_not,
    mean,
    mul,
    neg,
    not_equal,
    sub,
    sum,
    where,
)

__all__ = [
    "cross_entropy",
    "linear_cross_entropy",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "nll_loss",
]


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
        raise GraphError(
            f"{name}: ignore_index is {ignore_index}, and labels are probabilities, {labels!r}; "
            "need classes, or ignore_index=None"
        )
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


# ---- margins


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


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
