"""Rows of the op table for what goes along one axis: by position, in order, one after the other."""

import itertools

import aicf
import numpy as np
from compare import FLOATS
from op_cases import INTS, SIZES, Arg, row

# ---- along one axis, by position


def _at(x, at, axis):
    """np.take_along_axis; NaN where there is nothing to take."""
    if x.shape[axis] == 0:
        return np.full(at.shape, np.nan)
    return np.take_along_axis(x, at.astype(int), axis)


def _sums(x, at, size):
    """Along axis 1, and the size of what was added."""
    results = np.zeros((2, x.shape[0], size, x.shape[2]))
    for place in np.ndindex(*x.shape):
        to = (place[0], int(at[place]), place[2])
        if to[1] < size:
            results[0][to] += x[place]
            results[1][to] += abs(x[place])
    return results


def _last(at, size):
    result = np.full((at.shape[0], size, at.shape[2]), -1)
    for place in np.ndindex(*at.shape):
        if at[place] < size:
            result[place[0], int(at[place]), place[2]] = place[1]
    return result


for _dtype in ("int64", "int32"):
    row(
        "Gather",
        (Arg("abc"), Arg("adc", dtype=f"labels:b:{_dtype}")),
        lambda g, x, at: aicf.take_along_axis(x, at, 1),
        lambda x, at: _at(x, at, 1),
        grad=(0,),
        torch=lambda t, x, at: t.take_along_dim(x, at.long(), 1),
        label=_dtype,
    )
    row(
        "ScatterAdd",
        (Arg("aic"), Arg("aic", dtype=f"labels:b:{_dtype}"), Arg("abc")),
        lambda g, x, at, like: aicf.scatter_add(like, 1, at, x),
        lambda x, at, like: like + _sums(x, at, like.shape[1])[0],
        ulp=1,
        # A rounding for each that is added to one place.
        extra=lambda x, at, like: (16 + x.shape[1]) * (abs(like) + _sums(x, at, like.shape[1])[1]),
        grad=(0, 2),
        torch=lambda t, x, at, like: t.scatter_add(like, 1, at.long(), x),
        zero_sign=False,
        label=_dtype,
    )
    row(
        "ScatterLast",
        (Arg("aic", dtype=f"labels:i:{_dtype}"),),
        lambda g, at: g._emit("ScatterLast", [at], axis=-2, size=SIZES["b"])[0],
        lambda at: _last(at, SIZES["b"]),
        dtypes=(_dtype,),
        grad="the result is an index",
        result="int64",
        label=_dtype,
    )
row(
    "Gather",
    (Arg("ic"), Arg("bc", dtype="labels:i:int64")),
    lambda g, x, at: aicf.gather(x, 0, at),
    lambda x, at: _at(x, at, 0),
    grad=(0,),
    torch=lambda t, x, at: x.gather(0, at.long()),
    label="first",
)
row(
    "Gather",
    (Arg("ic", 0, 90), Arg("ib", dtype="labels:c:int32")),
    lambda g, x, at: aicf.gather(x, -1, at),
    lambda x, at: np.nan_to_num(_at(x, at, 1)),
    dtypes=INTS,
    label="int",
)
row(
    "ScatterAdd",
    (Arg("aic", 0, 5), Arg("aic", dtype="labels:b:int64"), Arg("abc", 0, 5)),
    lambda g, x, at, like: aicf.scatter_add(like, 1, at, x),
    lambda x, at, like: like + _sums(x, at, like.shape[1])[0],
    dtypes=INTS,
    label="int",
)
POSITION = {"grad": "the result is an index", "result": "int64"}
for _right in (False, True):
    row(
        "SearchSorted",
        (Arg("i"), Arg("abc")),
        lambda g, x, v, _r=_right: aicf.searchsorted(aicf.sort(x), v, "right" if _r else "left"),
        lambda x, v, _r=_right: np.searchsorted(np.sort(x), v, "right" if _r else "left"),
        label="right" if _right else "left",
        **POSITION,
    )
row(
    "SearchSorted",
    (Arg("abi", 0, 9), Arg("abc", 0, 9)),
    lambda g, x, v: aicf.searchsorted(aicf.sort(x), v),
    lambda x, v: (x[..., None, :] < v[..., None]).sum(-1),
    dtypes=INTS,
    label="lines",
    **POSITION,
)
for _axis in (-1, 0):
    for _down in (False, True):
        for _dtypes in (FLOATS, INTS):
            row(
                "ArgSort",
                (Arg("iab", 0, 4),),
                lambda g, x, _a=_axis, _d=_down: aicf.argsort(x, _a, _d),
                lambda x, _a=_axis, _d=_down: np.argsort(-x if _d else x, _a, kind="stable"),
                dtypes=_dtypes,
                label=f"{'down' if _down else 'up'}{_axis}{_dtypes[0]}",
                **POSITION,
            )
row(
    "ArgSort",
    (Arg("ac"),),
    lambda g, x: aicf.argsort(aicf.tile(x, (1, 900))),
    lambda x: np.argsort(np.tile(x, (1, 900)), kind="stable"),
    label="merged",
    **POSITION,
)


def _subnormal_losses(x):
    """What running products over axis 1 lose where one is subnormal, in units of u of float32."""
    lost = np.zeros(x.shape)
    for i in range(1, x.shape[1]):
        lost[:, i] = abs(x[:, i]) * lost[:, i - 1] + 2.0**-126
    return lost


row(
    "CumProd",
    (Arg("abc"),),
    lambda g, x: aicf.cumprod(x, 1),
    lambda x: np.cumprod(x, 1),
    ulp=1,
    extra=lambda x: (16 + x.shape[1]) * abs(np.cumprod(x, 1)) + _subnormal_losses(x),
    grad=(0,),
    torch=lambda t, x: x.cumprod(1),
)
row(
    "CumProd",
    (Arg("cb", -1, 2),),  # products of any length fit
    lambda g, x: aicf.cumprod(x, 0),
    lambda x: np.cumprod(x, 0),
    dtypes=("int32", "int64"),
    label="int",
)


def _recurrence(a, b, reverse=False, lagged=False):
    """Over the middle axis, and the sum of what each place could lose."""
    result, h = np.empty(b.shape, b.dtype), None
    walk = range(b.shape[1])[:: -1 if reverse else 1]
    for k, i in enumerate(walk):
        h = a[:, walk[k - 1] if lagged else i] * h + b[:, i] if k else b[:, i]
        result[:, i] = h
    return result


def _torch_recurrence(t, a, b, reverse, lagged):
    places, walk = [None] * b.shape[1], range(b.shape[1])[:: -1 if reverse else 1]
    for k, i in enumerate(walk):
        factor = a[:, walk[k - 1] if lagged else i]
        places[i] = factor * places[walk[k - 1]] + b[:, i] if k else b[:, i]
    return t.stack(places, 1)


for _reverse, _lagged in itertools.product((False, True), repeat=2):
    row(
        "Recurrence",
        (Arg("abc"), Arg("abc")),
        lambda g, a, b, _r=_reverse, _l=_lagged: g._emit(
            "Recurrence", [a, b], axis=-2, reverse=_r, lagged=_l
        )[0],
        lambda a, b, _r=_reverse, _l=_lagged: _recurrence(a, b, _r, _l),
        ulp=1,
        extra=lambda a, b, _r=_reverse, _l=_lagged: 16 * _recurrence(abs(a), abs(b), _r, _l),
        grad=(0, 1),
        torch=lambda t, a, b, _r=_reverse, _l=_lagged: _torch_recurrence(t, a, b, _r, _l),
        label=f"{'reverse' if _reverse else 'forward'}{'_lagged' * _lagged}",
    )


def _scanned(x, h):
    rows = []
    for v in x:
        rows.append(np.sin(h))
        h = h * 0.5 + v * v
    return [h, np.reshape(rows, x.shape)]


def _torch_scanned(t, x, h):
    for v in x:
        h = h * 0.5 + v * v
    return h


for _reverse in (False, True):
    row(
        "Scan",
        (Arg("abc"), Arg("bc")),
        lambda g, x, h, _r=_reverse: aicf.scan(
            lambda c, v: (c * 0.5 + v * v, None), h, x, reverse=_r
        )[0],
        lambda x, h, _r=_reverse: _scanned(x[::-1] if _r else x, h)[0],
        ulp=1,
        extra=lambda x, h: 16 * (np.abs(h) + 8),
        grad=(0, 1),
        torch=lambda t, x, h, _r=_reverse: _torch_scanned(t, x.flip(0) if _r else x, h),
        zero_sign=False,
        label="reverse" * _reverse,
    )
row(
    "Scan",
    (Arg("abc"), Arg("bc")),
    lambda g, x, h: list(aicf.scan(lambda c, v: (c * 0.5 + v * v, aicf.sin(c)), h, x)),
    _scanned,
    ulp=1,
    extra=lambda x, h: [16 * (np.abs(h) + 8), 16 * (np.abs(x) + np.abs(h) + 8)],
    grad=(0, 1),
    stored=True,
    zero_sign=False,
    label="rows",
)


def _running_at(x, smallest):
    """The last of the equal ones."""
    best = np.minimum.accumulate(x, 1) if smallest else np.maximum.accumulate(x, 1)
    at = np.broadcast_to(np.arange(x.shape[1])[:, None], x.shape)
    return np.maximum.accumulate(np.where(x == best, at, 0), 1)


for _name, _smallest in (("cummax", False), ("cummin", True)):
    for _dtypes in (FLOATS, INTS):
        row(
            "CumArg",
            (Arg("aib", 0, 4),),
            lambda g, x, _n=_name: getattr(aicf, _n)(x, 1)[1],
            lambda x, _s=_smallest: _running_at(x, _s),
            dtypes=_dtypes,
            label=f"{_name}{_dtypes[0]}",
            **POSITION,
        )
