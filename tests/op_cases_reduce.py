"""Rows of the op table for what sums: reductions, softmax, matrix products, losses."""

import math

import aicf
import numpy as np
from op_cases import INTS, Arg, log_softmax, mean, row, softmax

# ---- reductions


def _sum_bound(axis):
    def bound(x):
        axes = range(x.ndim) if axis is None else np.atleast_1d(axis)
        count = math.prod(x.shape[int(a)] for a in axes)
        total = np.abs(x).sum(axis=None if axis is None else tuple(np.atleast_1d(axis)))
        return (math.ceil(math.log2(max(count, 1))) + 2) * total

    return bound


def _mean_bound(axis):
    total = _sum_bound(axis)

    def bound(x):
        shape = x.sum(axis=axis, keepdims=True).shape
        return np.asarray(total(x)).reshape(shape) / max(x.size / max(math.prod(shape), 1), 1)

    return bound


for _axis, _label in ((None, "all"), (0, "first"), (-1, "last"), ((0, 2), "outer"), ((), "none")):
    _np_axis = tuple(_axis) if isinstance(_axis, tuple) else _axis
    row(
        "Sum",
        (Arg("abc"),),
        lambda g, x, _a=_axis: aicf.sum(x, _a),
        lambda x, _a=_np_axis: x.sum(axis=_a),
        extra=_sum_bound(_axis),
        grad=(0,),
        torch=(lambda t, x, _a=_axis: x.sum() if _a is None else x.sum(_a))
        if _axis != ()
        else None,
        label=_label,
    )
    row(
        "Mean",
        (Arg("abc"),),
        lambda g, x, _a=_axis: aicf.mean(x, _a, keepdims=True),
        lambda x, _a=_np_axis: mean(x, axis=_a, keepdims=True),
        ulp=1,
        extra=_mean_bound(_axis),
        grad=(0,),
        torch=(lambda t, x, _a=_axis: x.mean() if _a is None else x.mean(_a, keepdim=True))
        if _axis not in ((), None)
        else None,
        label=_label,
    )

for _op, _fn, _np in (("Max", aicf.max, np.max), ("Min", aicf.min, np.min)):
    _torch = f"a{_op.lower()}"
    for _axis, _label, _letters in (
        (None, "all", "abc"),
        (1, "middle", "b"),
        ((0, -1), "outer", "ac"),
    ):
        row(
            _op,
            (Arg("abc"),),
            lambda g, x, _a=_axis, _f=_fn: _f(x, _a),
            lambda x, _a=_axis, _n=_np: _n(x, axis=_a),
            grad=(0,),
            torch=lambda t, x, _a=_axis, _n=_torch: (
                getattr(t, _n)(x) if _a is None else getattr(t, _n)(x, _a)
            ),
            empty_error=_letters,
            label=_label,
        )
    row(
        _op,
        (Arg("abc", 0, 90),),
        lambda g, x, _f=_fn: _f(x, 2, keepdims=True),
        lambda x, _n=_np: _n(x, axis=2, keepdims=True),
        dtypes=INTS,
        empty_error="c",
        label="int",
    )
row(
    "Sum",
    (Arg("abc", 0, 9),),
    lambda g, x: aicf.sum(x, (1, 2), keepdims=True),
    lambda x: x.sum(axis=(1, 2), keepdims=True),
    dtypes=INTS,
    label="int",
)
for _axis, _label in ((None, "all"), (1, "middle"), ((0, 2), "outer"), ((), "none")):
    row(
        "Prod",
        (Arg("abc", -1.4, 1.4),),
        lambda g, x, _a=_axis: aicf.prod(x, _a),
        lambda x, _a=_axis: np.prod(x, axis=_a),
        extra=lambda x, _a=_axis: x.size * np.abs(np.prod(x, axis=_a)),
        grad=(0,),
        torch=(lambda t, x, _a=_axis: x.prod() if _a is None else x.prod(_a))
        if _label in ("all", "middle")
        else None,
        label=_label,
    )
row(
    "Prod",
    (Arg("abc", 0, 4),),
    lambda g, x: aicf.prod(x, 2, keepdims=True),
    lambda x: np.prod(x, axis=2, keepdims=True),
    dtypes=INTS,
    label="int",
)
for _axis in (-1, 0, 1):
    row(
        "Softmax",
        (Arg("abc", -6, 6),),
        lambda g, x, _a=_axis: aicf.softmax(x, _a),
        lambda x, _a=_axis: softmax(x, _a),
        ulp=32,
        ulp64=32,
        grad=(0,),
        torch=lambda t, x, _a=_axis: x.softmax(_a),
        label=f"axis{_axis}",
    )
    row(
        "LogSoftmax",
        (Arg("abc", -6, 6),),
        lambda g, x, _a=_axis: aicf.log_softmax(x, _a),
        lambda x, _a=_axis: log_softmax(x, _a),
        ulp=16,
        ulp64=16,
        extra=lambda x, _a=_axis: 4 + np.abs(log_softmax(x, _a)),
        grad=(0,),
        torch=lambda t, x, _a=_axis: x.log_softmax(_a),
        label=f"axis{_axis}",
    )


def _softmax_bwd(x, dy):
    y = softmax(x)
    return [y * (dy - (y * dy).sum(-1, keepdims=True))]


def _log_softmax_bwd(x, dy):
    return [dy - softmax(x) * dy.sum(-1, keepdims=True)]


for _op, _fn, _reference in (
    ("SoftmaxBwd", aicf.softmax, _softmax_bwd),
    ("LogSoftmaxBwd", aicf.log_softmax, _log_softmax_bwd),
):
    row(
        _op,
        (Arg("abc", -4, 4), Arg("abc")),
        lambda g, x, dy, _f=_fn: [g.backward(_f(x), [x], grad=dy)[x]],
        _reference,
        ulp=8,
        ulp64=8,
        extra=lambda x, dy: 64 * np.abs(dy).sum(-1, keepdims=True) + 0 * x,
        stored=True,
        grad=(0, 1),
    )

# ---- matrix products: error <= 8 u |A||B|


def _product_bound(a, b, *more):
    """Roundings cancel, but those of equal terms: up to the 256 of a chunk go one way."""
    equal = all((x == x[..., :1]).all() for x in (a, b if b.ndim == 1 else b.swapaxes(-1, -2)))
    return max(8, min(a.shape[-1], 256) if equal else 0) * (np.abs(a) @ np.abs(b))


row(
    "MatMul",
    (Arg("ai"), Arg("io")),
    lambda g, a, b: a @ b,
    lambda a, b: a @ b,
    extra=_product_bound,
    grad=(0, 1),
    torch=lambda t, a, b: a @ b,
    zero_sign=False,
)
for _label, _a, _b in (
    ("batched", "abio", "aboc"),
    ("broadcast", "bio", "oc"),
    ("row", "i", "io"),
    ("column", "bai", "i"),
    ("dot", "i", "i"),
    ("row_batched", "i", "bio"),
):
    row(
        "MatMul",
        (Arg(_a), Arg(_b)),
        lambda g, a, b: aicf.matmul(a, b),
        lambda a, b: a @ b,
        extra=_product_bound,
        grad=(0, 1),
        torch=lambda t, a, b: a @ b,
        zero_sign=False,
        label=_label,
    )
row(
    "MatMul",
    (Arg("ia"), Arg("oi")),
    lambda g, a, b: a.T @ b.T,
    lambda a, b: a.T @ b.T,
    extra=lambda a, b: _product_bound(a.T, b.T),
    grad=(0, 1),
    torch=lambda t, a, b: a.T @ b.T,
    zero_sign=False,
    label="transposed",
)
for _label, _x in (("matrix", "bi"), ("cube", "bai"), ("vector", "i")):
    row(
        "Linear",
        (Arg(_x), Arg("oi"), Arg("o")),
        lambda g, x, w, b: aicf.linear(x, w, b),
        lambda x, w, b: x @ w.T + b,
        ulp=1,
        extra=lambda x, w, b: _product_bound(x, w.T) + np.abs(x @ w.T),
        stored=True,
        grad=(0, 1, 2),
        torch=lambda t, x, w, b: t.nn.functional.linear(x, w, b),
        zero_sign=False,
        label=_label,
    )
row(
    "Linear",
    (Arg("bi"), Arg("oi")),
    lambda g, x, w: aicf.linear(x, w),
    lambda x, w: x @ w.T,
    extra=lambda x, w: _product_bound(x, w.T),
    grad=(0, 1),
    torch=lambda t, x, w: t.nn.functional.linear(x, w),
    zero_sign=False,
    label="no_bias",
)


def _linear_bwd(g, x, w, b, dy):
    grads = g.backward(aicf.linear(x, w, b), [x, w, b], grad=dy)
    return [grads[x], grads[w], grads[b]]


row(
    "LinearBwd",
    (Arg("bi"), Arg("oi"), Arg("o"), Arg("bo")),
    _linear_bwd,
    lambda x, w, b, dy: [dy @ w, dy.T @ x, dy.sum(0)],
    extra=lambda x, w, b, dy: [
        _product_bound(dy, w),
        _product_bound(dy.T, x),
        _product_bound(np.ones(len(dy)), dy),
    ],
    zero_sign=False,
    grad=(0, 1, 3),
)

# ---- losses


def _mse(y, t):
    with np.errstate(all="ignore"):
        return np.asarray(((y - t) ** 2).sum() / np.float64(y.size))


row(
    "MseLoss",
    (Arg("bc"), Arg("bc")),
    lambda g, y, t: aicf.mse_loss(y, t),
    _mse,
    ulp=16,
    ulp64=16,
    grad=(0, 1),
    torch=lambda t, a, b: t.nn.functional.mse_loss(a, b),
)
row(
    "MseGrad",
    (Arg("bc"), Arg("bc")),
    lambda g, y, t: list(g.backward(aicf.mse_loss(y, t), [y, t]).values()),
    lambda y, t: [2 * (y - t) / max(y.size, 1), -2 * (y - t) / max(y.size, 1)],
    ulp=2,
    extra=lambda y, t: [2 * np.abs(y - t) / max(y.size, 1)] * 2,
    zero_sign=False,
    grad=(0, 1),
)


def _cross_entropy(x, labels):
    rows = -log_softmax(x)[np.arange(len(x)), labels.astype(int)]
    with np.errstate(all="ignore"):
        return np.asarray(rows.sum() / np.float64(len(x)))


def _cross_entropy_grad(x, labels):
    grad = softmax(x)
    grad[np.arange(len(x)), labels.astype(int)] -= 1
    return [grad / max(len(x), 1)]


for _dtype in ("int64", "int32"):
    row(
        "CrossEntropy",
        (Arg("bc", -4, 4), Arg("b", dtype=f"labels:c:{_dtype}")),
        lambda g, x, labels: aicf.cross_entropy(x, labels),
        _cross_entropy,
        ulp=1,
        extra=lambda x, labels: 8,
        grad=(0,),
        torch=lambda t, x, labels: t.nn.functional.cross_entropy(x, labels.long()),
        empty_error="c",
        label=_dtype,
    )
    row(
        "CrossEntropyGrad",
        (Arg("bc", -4, 4), Arg("b", dtype=f"labels:c:{_dtype}")),
        lambda g, x, labels: [g.backward(aicf.cross_entropy(x, labels), [x])[x]],
        _cross_entropy_grad,
        ulp=2,
        extra=lambda x, labels: [np.full(x.shape, 8 / max(len(x), 1))],
        zero_sign=False,
        empty_error="c",
        label=_dtype,
        grad=(0,),
    )
