"""Losses of sequences."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .arrays import logaddexp
from .graph import Graph, Value
from .indexing import take_along_axis
from .losses import _check_reduction
from .movement import broadcast_to, concat, expand_dims, reshape, squeeze, stack
from .ops import (
    _as,
    _widened,
    cast,
    div,
    equal,
    greater,
    less,
    logical_and,
    maximum,
    mean,
    neg,
    not_equal,
    sub,
    sum,
    where,
)

__all__ = ["ctc_loss"]


@checked
def ctc_loss(
    log_probs: Value,
    targets: Value,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Value:
    """Connectionist temporal classification: −log p of a sequence, over all its alignments.

    The sums over alignments are one launch, and one more for their gradient, which has none itself.
    The gradient is that of this function; PyTorch's has exp(log_probs) beside it, which the
    gradient of log_softmax takes away again. Without any alignment it is zero.

    Args:
        log_probs: [T, N, C] or [T, C], as log_softmax makes them.
        targets: classes as int32 or int64, [N, S] or [S]; what lies behind a length does not
            count. Where target_lengths are numbers, also all targets in a row: [their sum].
        input_lengths, target_lengths: how many of each are valid: as many numbers, or an int32 or
            int64 Value, of [N], and of no axis where there is no N.
        blank: the class that stands for no label.
        reduction: "mean" divides each loss by its target's length before.
        zero_infinity: a target that its input is too short for counts 0, not infinity.

    >>> heard, spoken = g.input("heard", (5, 2, 4)), g.input("spoken", (2, 3), "int64")
    >>> aicf.ctc_loss(aicf.log_softmax(heard, -1), spoken, [5, 4], [2, 1]).shape
    ()
    """
    _check_reduction("ctc_loss", reduction)
    single = log_probs.ndim == 2
    wide = _widened(log_probs)
    probs = expand_dims(wide, 1) if single else wide
    if probs.ndim != 3 or 0 in probs.shape:
        raise ShapeError(
            f"ctc_loss: log_probs is {log_probs!r}; need [T, N, C] or [T, C] without an empty axis"
        )
    times, count, classes = probs.shape
    if not 0 <= blank < classes:
        raise GraphError(f"ctc_loss: blank is {blank}; need one of {classes} classes")
    g = log_probs.graph
    labels = _padded(targets, target_lengths, single, count)
    size = labels.shape[1]
    inputs = _lengths(g, "input_lengths", input_lengths, count, single, times)
    lengths = _lengths(g, "target_lengths", target_lengths, count, single, size)

    # States are blank, label, blank, ..., label, blank; between two labels that differ the blank
    # may be left out.
    nothing = g.constant(blank, "int64")
    labels = where(less(_range(g, size), expand_dims(lengths, 1)), labels, nothing)
    blanks = broadcast_to(nothing, (count, 1))
    states = blanks
    if size:
        pairs = stack([broadcast_to(nothing, labels.shape), labels], axis=2)
        states = concat([reshape(pairs, (count, 2 * size)), blanks], axis=1)
    two_back = concat([blanks, blanks, states], axis=1)[:, : 2 * size + 1]
    skip = logical_and(not_equal(states, nothing), not_equal(states, two_back))
    said = take_along_axis(probs, broadcast_to(expand_dims(states, 0), (times, *states.shape)), 2)
    paths: Value = g._emit("CtcPaths", [said, skip])[0]

    # Paths end in the last label or in the blank behind it, at the last valid time.
    last = maximum(sub(inputs, 1), 0)
    at_end = broadcast_to(reshape(last, (1, count, 1)), (1, count, 2 * size + 1))
    ends = squeeze(take_along_axis(paths, at_end, 0), 0)
    end = expand_dims(lengths * 2, 1)
    by_blank = squeeze(take_along_axis(ends, end, 1), 1)
    by_label = squeeze(take_along_axis(ends, maximum(sub(end, 1), 0), 1), 1)
    none = g.constant(float("-inf"), paths.dtype)
    by_label = where(greater(lengths, 0), by_label, none)
    # An input of no times has one alignment, with a target of no labels.
    empty = equal(inputs, 0)
    nowhere = where(equal(lengths, 0), g.constant(0.0, paths.dtype), none)
    found = greater(maximum(by_blank, by_label), none)
    found = logical_and(found, greater(inputs, 0))
    nan = not_equal(by_blank + by_label, by_blank + by_label)
    whole = where(found, logaddexp(where(found, by_blank, 0.0), where(found, by_label, 0.0)), none)
    each = neg(where(empty, nowhere, where(nan, by_blank + by_label, whole)))
    if zero_infinity:
        each = where(equal(each, neg(none)), g.constant(0.0, paths.dtype), each)
    if reduction == "mean":
        each = mean(div(each, cast(maximum(lengths, 1), paths.dtype)))
    elif reduction == "sum":
        each = sum(each)
    elif single:
        each = squeeze(each, 0)
    return _as(each, log_probs.dtype)


def _range(g: Graph, size: int) -> Value:
    return g.constant(np.arange(size, dtype=np.int64)[None, :])


def _numbers(what: str, given: Any) -> list[int] | None:
    """The lengths that are known; None for a Value."""
    if isinstance(given, Value):
        return None
    many = given if isinstance(given, (Sequence, np.ndarray)) else [given]
    try:
        return [operator.index(one) for one in many]
    except TypeError:
        raise GraphError(
            f"ctc_loss: {what} is {given!r}; need whole numbers, or a Value of them"
        ) from None


def _lengths(g: Graph, what: str, given: Any, count: int, single: bool, most: int) -> Value:
    """int64 [count]."""
    known = _numbers(what, given)
    if known is not None:
        if len(known) != count or any(not 0 <= one <= most for one in known):
            raise ShapeError(f"ctc_loss: {what} is {known}; need {count} numbers from 0 to {most}")
        return g.constant(np.array(known, np.int64))
    g._id(given, "ctc_loss")
    if given.dtype not in ("int32", "int64"):
        raise DTypeError(f"ctc_loss: {what} is {given!r}; need int32 or int64")
    if given.shape != (count,) and not (single and given.ndim == 0):
        raise ShapeError(f"ctc_loss: {what} is {given!r}; need shape ({count},)")
    return cast(reshape(given, (count,)), "int64")


def _padded(targets: Value, target_lengths: Any, single: bool, count: int) -> Value:
    """int64 [count, S]."""
    if targets.dtype not in ("int32", "int64"):
        raise DTypeError(f"ctc_loss: targets is {targets!r}; need int32 or int64")
    labels = cast(targets, "int64")
    known = _numbers("target_lengths", target_lengths)
    if labels.ndim == 2 and labels.shape[0] == count and not single:
        return labels
    if labels.ndim == 1 and single:
        return expand_dims(labels, 0)
    if labels.ndim != 1 or known is None or builtins.sum(known) != labels.shape[0]:
        raise ShapeError(
            f"ctc_loss: targets is {targets!r}, target_lengths {target_lengths!r}; need "
            f"[{count}, S], or all targets in a row with their lengths as numbers"
        )
    size, rows, at = max([*known, 0]), [], 0
    for length in known:
        row = labels[at : at + length]
        at += length
        if length < size:
            fill = broadcast_to(targets.graph.constant(0, "int64"), (size - length,))
            row = concat([row, fill], axis=0) if length else fill
        rows.append(row)
    return stack(rows, axis=0)
