"""Rows of the table of layers: elements by position and in order."""

import aicf
import numpy as np
from layer_cases import layer


def places(shape, size, src=False):
    """x, indices below `size`, and what is put there."""

    def arrays(rng):
        made = {"x": rng.uniform(-2, 2, (4, 5, 3)), "i": rng.integers(0, size, shape)}
        return {**made, "s": rng.uniform(-2, 2, shape)} if src else made

    return arrays


def cropped(x, axis, i):
    return x[tuple(slice(n if d != axis % 3 else None) for d, n in enumerate(i.shape))]


def put(x, axis, i, s, add=False):
    """One by one, in ascending order."""
    x = x.copy()
    for place in np.ndindex(*i.shape):
        to = list(place)
        to[axis] = i[place]
        x[tuple(to)] = s[place] + (x[tuple(to)] if add else 0)
    return x


def add_slices(x, axis, i, s):
    x = np.moveaxis(x.copy(), axis, 0)
    np.add.at(x, i, np.moveaxis(s, axis, 0))
    return np.moveaxis(x, 0, axis)


for _axis, _shape in ((0, (7, 5, 3)), (1, (4, 2, 3)), (-1, (4, 5, 6)), (1, (3, 6, 2))):
    layer(
        f"gather_{_axis}_{_shape}",
        places(_shape, 3),
        lambda x, i, _a=_axis: aicf.gather(x, _a, i),
        lambda x, i, _a=_axis: np.take_along_axis(cropped(x, _a, i), i, _a),
        lambda t, F, x, i, _a=_axis: x.gather(_a, i),
    )
    layer(
        f"scatter_add_{_axis}_{_shape}",
        places(_shape, 3, src=True),
        lambda x, i, s, _a=_axis: aicf.scatter_add(x, _a, i, s),
        lambda x, i, s, _a=_axis: put(x, _a, i, s, add=True),
        lambda t, F, x, i, s, _a=_axis: x.scatter_add(_a, i, s),
    )
    layer(  # PyTorch leaves it open which of equal indices holds
        f"scatter_{_axis}_{_shape}",
        places(_shape, 3, src=True),
        lambda x, i, s, _a=_axis: aicf.scatter(x, _a, i, s),
        lambda x, i, s, _a=_axis: put(x, _a, i, s),
    )
layer(
    "scatter_number",
    places((4, 1, 3), 5),
    lambda x, i: aicf.scatter(x, 1, i, 7),
    lambda x, i: put(x, 1, i, np.full(i.shape, 7.0)),
    lambda t, F, x, i: x.scatter(1, i, 7),
)
layer(
    "scatter_once",
    lambda rng: {
        "x": rng.uniform(-2, 2, (4, 5)),
        "i": rng.permuted(np.tile(np.arange(5), (4, 1)), axis=1),
        "s": rng.uniform(-2, 2, (6, 5)),
    },
    lambda x, i, s: aicf.scatter(x, 1, i, s),
    lambda x, i, s: put(x, 1, i, s),
    lambda t, F, x, i, s: x.scatter(1, i, s[:4]),  # the gradient of a longer one is an error
)
for _shape in ((4, 1, 3), (1, 7, 1), (1, 2, 3)):
    layer(
        f"take_along_axis_{_shape}",
        places(_shape, 5),
        lambda x, i: aicf.take_along_axis(x, i, 1),
        lambda x, i: np.take_along_axis(x, i, 1),
        lambda t, F, x, i: t.take_along_dim(x, i, 1),
    )


def reduced(x, axis, i, s, reduce, include_self):
    """One place after the other."""
    y, given = x.copy(), {}
    for place in np.ndindex(*i.shape):
        to = list(place)
        to[axis] = i[place]
        given.setdefault(tuple(to), []).append(s[place])
    for to, values in given.items():
        values = [x[to]] * include_self + values
        fn = {"sum": np.sum, "prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}
        y[to] = fn[reduce](values)
    return y


for _reduce in ("sum", "prod", "mean", "amax", "amin"):
    for _self in (True, False):
        for _axis, _shape in ((0, (7, 5, 3)), (1, (4, 2, 3)), (-1, (3, 4, 6))):
            layer(
                f"scatter_reduce_{_reduce}_{_self}_{_axis}",
                places(_shape, 3, src=True),
                lambda x, i, s, _a=_axis, _r=_reduce, _s=_self: aicf.scatter_reduce(
                    x, _a, i, s, _r, _s
                ),
                lambda x, i, s, _a=_axis, _r=_reduce, _s=_self: reduced(x, _a, i, s, _r, _s),
                lambda t, F, x, i, s, _a=_axis, _r=_reduce, _s=_self: x.scatter_reduce(
                    _a, i, s, _r, include_self=_s
                ),
            )


for _reduce in ("amax", "amin"):  # the gradient of equal ones is shared
    layer(
        f"scatter_reduce_{_reduce}_ties",
        lambda rng: {
            name: v if name == "i" else np.round(v)
            for name, v in places((4, 5, 3), 2, src=True)(rng).items()
        },
        lambda x, i, s, _r=_reduce: aicf.scatter_reduce(x, 1, i, s, _r),
        lambda x, i, s, _r=_reduce: reduced(x, 1, i, s, _r, True),
        lambda t, F, x, i, s, _r=_reduce: x.scatter_reduce(1, i, s, _r),
        smooth=False,
    )
for _axis in (0, 1, -1):
    layer(
        f"index_select_{_axis}",
        places((6,), 3),
        lambda x, i, _a=_axis: aicf.index_select(x, _a, i),
        lambda x, i, _a=_axis: x.take(i, _a),
        lambda t, F, x, i, _a=_axis: x.index_select(_a, i),
    )
    layer(
        f"index_add_{_axis}",
        lambda rng, _a=_axis: {
            **places((6,), 3)(rng),
            "s": rng.uniform(-2, 2, [6 if d == _a % 3 else n for d, n in enumerate((4, 5, 3))]),
        },
        lambda x, i, s, _a=_axis: aicf.index_add(x, _a, i, s),
        lambda x, i, s, _a=_axis: add_slices(x, _a, i, s),
        lambda t, F, x, i, s, _a=_axis: x.index_add(_a, i, s),
    )
for _axis in (0, 1, -1):
    for _down in (False, True):
        layer(
            f"sort_{_axis}_{_down}",
            {"x": (4, 5, 3)},
            lambda x, _a=_axis, _d=_down: aicf.sort(x, _a, _d),
            lambda x, _a=_axis, _d=_down: np.flip(np.sort(x, _a), _a) if _d else np.sort(x, _a),
            lambda t, F, x, _a=_axis, _d=_down: x.sort(_a, _d)[0],
        )
        layer(
            f"topk_{_axis}_{_down}",
            {"x": (4, 5, 3)},
            lambda x, _a=_axis, _d=_down: aicf.topk(x, 2, _a, _d)[0],
            lambda x, _a=_axis, _d=_down: (
                np.flip(np.sort(x, _a), _a) if _d else np.sort(x, _a)
            ).take(range(2), _a),
            lambda t, F, x, _a=_axis, _d=_down: x.topk(2, _a, _d)[0],
        )
for _axis in (None, 0, 1, (0, -1)):
    for _keep in (False, True):
        layer(
            f"median_{_axis}_{_keep}",
            {"x": (4, 5, 3)},
            lambda x, _a=_axis, _k=_keep: aicf.median(x, _a, _k),
            lambda x, _a=_axis, _k=_keep: np.median(x, _a, keepdims=_k),
        )
    for _q in (0.0, 0.3, 1.0, [0.25, 0.5, 0.9]):
        layer(
            f"quantile_{_q}_{_axis}",
            {"x": (4, 5, 3)},
            lambda x, _a=_axis, _q=_q: aicf.quantile(x, _q, _a),
            lambda x, _a=_axis, _q=_q: np.quantile(x, _q, _a),
            not isinstance(_axis, tuple)
            and (lambda t, F, x, _a=_axis, _q=_q: t.quantile(x, t.tensor(_q, dtype=x.dtype), _a)),
        )
HOLES = np.array([[1.0, np.nan, 3.5, np.nan, 2.0, -1.0], [np.nan, np.inf, 4.0, 4.0, -np.inf, 0.0]])
HOLES_QUANTILES = np.array([[[-1.0], [-np.inf]], [[0.5], [0.0]], [[3.5], [np.inf]]])
for _how in ("linear", "lower", "higher", "midpoint", "nearest"):
    for _q in (0.0, 0.3, 0.5, 0.9, 1.0):
        layer(
            f"quantile_{_how}_{_q}",
            {"x": (4, 6)},
            lambda x, _q=_q, _h=_how: aicf.quantile(x, _q, 1, interpolation=_h),
            lambda x, _q=_q, _h=_how: np.quantile(x, _q, 1, method=_h),
            lambda t, F, x, _q=_q, _h=_how: t.quantile(
                x, t.tensor(_q, dtype=x.dtype), 1, interpolation=_h
            ),
        )
        layer(
            f"nanquantile_{_how}_{_q}",
            lambda rng: {"x": np.concatenate([HOLES[:1], rng.uniform(-2, 2, (3, 6))])},
            lambda x, _q=_q, _h=_how: aicf.nanquantile(x, _q, 1, interpolation=_h),
            lambda x, _q=_q, _h=_how: np.nanquantile(x, _q, 1, method=_h),
            lambda t, F, x, _q=_q, _h=_how: t.nanquantile(
                x, t.tensor(_q, dtype=x.dtype), 1, interpolation=_h
            ),
            smooth=False,
        )
layer(
    "nanquantile_infinities",
    lambda rng: {"x": HOLES.copy()},
    lambda x: aicf.nanquantile(x, [0.0, 0.25, 1.0], 1, keepdims=True),
    lambda x: HOLES_QUANTILES,
    smooth=False,
)
for _axis in (0, 1, -1):
    for _name in ("cummax", "cummin"):
        layer(
            f"{_name}_{_axis}",
            {"x": (4, 5, 3)},
            lambda x, _n=_name, _a=_axis: getattr(aicf, _n)(x, _a)[0],
            lambda x, _n=_name, _a=_axis: (np.maximum if _n == "cummax" else np.minimum).accumulate(
                x, _a
            ),
            lambda t, F, x, _n=_name, _a=_axis: getattr(x, _n)(_a)[0],
        )
    layer(
        f"cumprod_zeros_{_axis}",
        lambda rng: {"x": np.round(rng.uniform(-2, 2, (4, 5, 3)))},
        lambda x, _a=_axis: aicf.cumprod(x, _a),
        lambda x, _a=_axis: np.cumprod(x, _a),
        lambda t, F, x, _a=_axis: x.cumprod(_a),
    )
