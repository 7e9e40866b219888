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
