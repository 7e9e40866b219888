"""Rows of the table of layers: array functions of the Array API."""

import aicf
import numpy as np
from layer_cases import layer

for _k in (0, 1, -2, 3, 5):
    layer(
        f"diagonal_{_k}",
        {"x": (2, 4, 5)},
        lambda x, _k=_k: aicf.diagonal(x, _k),
        lambda x, _k=_k: np.diagonal(x, _k, -2, -1),
        lambda t, F, x, _k=_k: x.diagonal(_k, -2, -1),
    )
    for _shape in ((4,), (4, 5)):
        layer(
            f"diag_{_k}_{_shape}",
            {"x": _shape},
            lambda x, _k=_k: aicf.diag(x, _k),
            lambda x, _k=_k: np.diag(x, _k),
            lambda t, F, x, _k=_k: x.diag(_k),
        )
for _n, _axis in ((0, 0), (1, 1), (2, -1), (3, 0), (9, 1)):
    layer(
        f"diff_{_n}_{_axis}",
        {"x": (4, 5)},
        lambda x, _n=_n, _a=_axis: aicf.diff(x, _n, _a),
        lambda x, _n=_n, _a=_axis: np.diff(x, _n, _a),
        _n < 5 and (lambda t, F, x, _n=_n, _a=_axis: x.diff(_n, _a)),
    )
layer(
    "unstack",
    {"x": (3, 4)},
    lambda x: aicf.concat(aicf.unstack(x, 1)[::-1]),
    lambda x: np.concatenate([x[:, i] for i in (3, 2, 1, 0)]),
    lambda t, F, x: t.cat(x.unbind(1)[::-1]),
)
for _indexing in ("xy", "ij"):
    layer(
        f"meshgrid_{_indexing}",
        {"a": (3,), "b": (4,), "c": (2,)},
        lambda a, b, c, _i=_indexing: aicf.stack(aicf.meshgrid([a, b, c], _i)),
        lambda a, b, c, _i=_indexing: np.stack(np.meshgrid(a, b, c, indexing=_i)),
        lambda t, F, a, b, c, _i=_indexing: t.stack(t.meshgrid(a, b, c, indexing=_i)),
    )
layer(
    "broadcast_arrays",
    {"a": (3, 1), "b": (1, 4)},
    lambda a, b: aicf.stack(aicf.broadcast_arrays([a, b])),
    lambda a, b: np.stack(np.broadcast_arrays(a, b)),
    lambda t, F, a, b: t.stack(t.broadcast_tensors(a, b)),
)
layer(
    "vecdot",
    {"a": (3, 4), "b": (3, 4)},
    lambda a, b: aicf.vecdot(a, b, 0),
    lambda a, b: (a * b).sum(0),
    lambda t, F, a, b: t.linalg.vecdot(a, b, dim=0),
)
for _axis in (-1, 0):
    layer(
        f"cross_{_axis}",
        {"a": (3, 4, 3), "b": (3, 4, 3)},
        lambda a, b, _a=_axis: aicf.cross(a, b, _a),
        lambda a, b, _a=_axis: np.cross(a, b, axis=_a),
        lambda t, F, a, b, _a=_axis: t.linalg.cross(a, b, dim=_a),
    )
for _ord in (0, 1, 2, 3.5, np.inf, -np.inf):
    for _axis in (None, 1, (0, 2)):
        layer(
            f"vector_norm_{_ord}_{_axis}",
            {"x": (3, 4, 5)},
            lambda x, _o=_ord, _a=_axis: aicf.vector_norm(x, _a, ord=_o),
            lambda x, _o=_ord, _a=_axis: np.linalg.vector_norm(x, axis=_a, ord=_o),
            lambda t, F, x, _o=_ord, _a=_axis: t.linalg.vector_norm(x, _o, _a),
        )
layer(
    "logaddexp",
    {"a": (3, 4), "b": (1, 4)},
    aicf.logaddexp,
    lambda a, b: np.logaddexp(a, b),
    lambda t, F, a, b: t.logaddexp(a, b),
)
layer(
    "copysign",
    {"a": (3, 4), "b": (1, 4)},
    aicf.copysign,
    lambda a, b: np.copysign(a, b),
    lambda t, F, a, b: t.copysign(a, b),
    fixed=("b",),
)

# ---- numerics

SPECIAL = np.array([[np.nan, 1.5, -0.0, 0.0], [-np.inf, np.inf, -2.0, 3.0]])


def special(_rng):
    return {"x": SPECIAL.copy(), "y": SPECIAL[::-1, ::-1].copy()}


def xlogy(x, y):
    with np.errstate(all="ignore"):
        return np.where((x == 0) & ~np.isnan(y), 0, x * np.log(y))


POSITIVE = lambda rng: {"x": rng.uniform(-2, 2, (4, 3)), "y": rng.uniform(0.1, 2, (4, 3))}  # noqa: E731
for _name, _reference in (("fmax", np.fmax), ("fmin", np.fmin)):
    for _label, _arrays in (("", {"x": (4, 3), "y": (4, 3)}), ("_special", special)):
        layer(
            f"{_name}{_label}",
            _arrays,
            lambda x, y, _n=_name: getattr(aicf, _n)(x, y),
            lambda x, y, _r=_reference: _r(x, y),
            not _label and (lambda t, F, x, y, _n=_name: getattr(t, _n)(x, y)),
            smooth=not _label,
        )
layer("xlogy", POSITIVE, aicf.xlogy, xlogy, lambda t, F, x, y: t.xlogy(x, y))
layer("xlogy_special", special, aicf.xlogy, xlogy, smooth=False)
layer(
    "heaviside_special",
    special,
    lambda x, y: aicf.heaviside(x, 0.25) + 0.0 * aicf.isnan(y).cast(x.dtype),
    lambda x, y: np.heaviside(x, 0.25),
    smooth=False,
)
for _weight in (0.0, 0.3):
    layer(
        f"lerp_{_weight}",
        {"x": (4, 3), "y": (4, 3)},
        lambda x, y, _w=_weight: aicf.lerp(x, y, _w),
        lambda x, y, _w=_weight: x + _w * (y - x),
        lambda t, F, x, y, _w=_weight: t.lerp(x, y, _w),
    )
for _eps in (None, 0.3):
    layer(
        f"logit_{_eps}",
        lambda rng: {"x": rng.uniform(0.05, 0.95, (4, 3))},
        lambda x, _e=_eps: aicf.logit(x, _e),
        lambda x, _e=_eps: (lambda p: np.log(p / (1 - p)))(np.clip(x, _e or 0, 1 - (_e or 0))),
        lambda t, F, x, _e=_eps: t.logit(x, _e),
    )
layer(
    "sinc",
    lambda rng: {"x": rng.uniform(0.1, 3, 8)},
    aicf.sinc,
    np.sinc,
    lambda t, F, x: t.sin(np.pi * x) / (np.pi * x),
)
layer(
    "nan_to_num",
    special,
    lambda x, y: aicf.nan_to_num(x, 0.5, 9.0, -7.0) + 0.0 * aicf.isnan(y).cast(x.dtype),
    lambda x, y: np.nan_to_num(x, nan=0.5, posinf=9.0, neginf=-7.0),
    smooth=False,
)
for _axis in (None, 0, (0, 1)):
    for _name in ("nansum", "nanmean"):
        layer(
            f"{_name}_{_axis}",
            lambda rng: {
                "x": np.where(rng.uniform(size=(4, 3)) < 0.3, np.nan, rng.uniform(-2, 2, (4, 3)))
            },
            lambda x, _n=_name, _a=_axis: getattr(aicf, _n)(x, _a),
            lambda x, _n=_name, _a=_axis: getattr(np, _n)(x, _a),
            smooth=False,
        )
for _axis in (0, 1, -1):
    layer(
        f"trapezoid_{_axis}",
        {"y": (4, 5)},
        lambda y, _a=_axis: aicf.trapezoid(y, dx=0.3, axis=_a),
        lambda y, _a=_axis: np.trapezoid(y, dx=0.3, axis=_a),
        lambda t, F, y, _a=_axis: t.trapezoid(y, dx=0.3, dim=_a),
    )
    layer(
        f"cumulative_trapezoid_{_axis}",
        {"y": (4, 5), "x": (4, 5)},
        lambda y, x, _a=_axis: aicf.cumulative_trapezoid(y, x, axis=_a),
        lambda y, x, _a=_axis: np.cumsum(
            np.diff(x, axis=_a)
            * (np.delete(y, 0, _a) + np.delete(y, -1, _a)) / 2, _a),
        lambda t, F, y, x, _a=_axis: t.cumulative_trapezoid(y, x, dim=_a),
    )  # fmt: skip
for _shape in ((3, 5), (1, 5), (5,)):
    layer(
        f"cov_{_shape}",
        {"x": _shape},
        aicf.cov,
        lambda x: np.cov(x),
        lambda t, F, x: t.cov(x),
    )
layer("corrcoef", {"x": (3, 5)}, aicf.corrcoef, lambda x: np.corrcoef(x))
for _correction in (0, 1, 2):
    for _names in ("f", "a", "fa"):
        layer(
            f"cov_{_names}_{_correction}",
            lambda rng: {
                "x": rng.uniform(-2, 2, (3, 5)),
                "f": rng.integers(1, 4, 5),
                "a": rng.uniform(0.5, 2, 5),
            },
            lambda x, f, a, _n=_names, _c=_correction: (
                aicf.cov(x, _c, f if "f" in _n else None, a if "a" in _n else None)
                + 0.0 * a.sum()  # which has a gradient in each row
            ),
            lambda x, f, a, _n=_names, _c=_correction: np.cov(
                x, ddof=_c, fweights=f if "f" in _n else None, aweights=a if "a" in _n else None
            ),
            lambda t, F, x, f, a, _n=_names, _c=_correction: (
                t.cov(
                    x,
                    correction=_c,
                    fweights=f if "f" in _n else None,
                    aweights=a if "a" in _n else None,
                )
                + 0.0 * a.sum()
            ),
            fixed=("a",),
        )
layer("corrcoef_line", {"x": (5,)}, aicf.corrcoef, lambda x: np.corrcoef(x), smooth=False)
for _edge in (1, 2):
    for _spacing in (1.0, 0.5, [0.5, 2.0], [[0.0, 1.0, 1.5, 4.0], [-2.0, 0.0, 1.0, 1.5, 7.0]]):
        layer(
            f"gradient_{_spacing}_{_edge}",
            {"x": (4, 5)},
            lambda x, _s=_spacing, _e=_edge: aicf.stack(aicf.gradient(x, _s, None, _e)),
            lambda x, _s=_spacing, _e=_edge: np.stack(
                np.gradient(x, *(_s if isinstance(_s, list) else [_s]), edge_order=_e)
            ),
        )
    layer(
        f"gradient_axis_{_edge}",
        {"x": (2, 3 if _edge == 2 else 2, 4)},
        lambda x, _e=_edge: aicf.gradient(x, 0.5, -2, _e)[0],
        lambda x, _e=_edge: np.gradient(x, 0.5, axis=-2, edge_order=_e),
        lambda t, F, x, _e=_edge: t.gradient(x, spacing=0.5, dim=-2, edge_order=_e)[0],
    )
layer(
    "logaddexp2",
    {"a": (3, 4), "b": (1, 4)},
    aicf.logaddexp2,
    lambda a, b: np.logaddexp2(a, b),
    lambda t, F, a, b: t.logaddexp2(a, b),
)
layer(
    "xlog1py",
    lambda rng: {"x": rng.uniform(-2, 2, (4, 3)), "y": rng.uniform(-0.9, 2, (4, 3))},
    aicf.xlog1py,
    lambda x, y: x * np.log1p(y),
    lambda t, F, x, y: t.special.xlog1py(x, y),
)
layer(
    "xlog1py_special",
    lambda rng: {name: x - (name == "y") for name, x in special(rng).items()},
    aicf.xlog1py,
    lambda x, y: xlogy(x, 1 + y),
    smooth=False,
)
for _name in ("var", "std"):
    layer(
        f"{_name}_fraction",
        {"x": (4, 5)},
        lambda x, _n=_name: getattr(aicf, _n)(x, 1, 1.5),
        lambda x, _n=_name: getattr(np, _n)(x, 1, ddof=1.5),
        lambda t, F, x, _n=_name: getattr(t, _n)(x, 1, correction=1.5),
    )

# ---- assembly

for _name in ("hstack", "vstack", "dstack", "column_stack"):
    for _shape in ((3,), (3, 2)):
        layer(
            f"{_name}_{_shape}",
            {"x": _shape, "y": _shape},
            lambda x, y, _n=_name: getattr(aicf, _n)([x, y]),
            lambda x, y, _n=_name: getattr(np, _n)([x, y]),
            lambda t, F, x, y, _n=_name: getattr(t, _n)([x, y]),
        )
for _rank in (1, 2, 3):
    for _shape in ((), (3,), (3, 2)):
        layer(
            f"atleast_{_rank}d_{_shape}",
            {"x": _shape},
            lambda x, _n=f"atleast_{_rank}d": getattr(aicf, _n)(x),
            lambda x, _n=f"atleast_{_rank}d": getattr(np, _n)(x),
            lambda t, F, x, _n=f"atleast_{_rank}d": getattr(t, _n)(x),
        )
layer(
    "block_diag",
    {"x": (2, 3), "y": (3, 1), "z": (2,)},
    lambda x, y, z: aicf.block_diag([x, y, z]),
    lambda x, y, z: np.block(
        [
            [x, np.zeros((2, 3))],
            [np.zeros((3, 3)), y, np.zeros((3, 2))],
            [np.zeros((1, 4)), z[None]],
        ]
    ),
    lambda t, F, x, y, z: t.block_diag(x, y, z),
)
for _a, _b in (((2, 3), (3, 2)), ((2,), (3, 2)), ((2, 2, 2), (3,))):
    layer(
        f"kron_{_a}_{_b}",
        {"a": _a, "b": _b},
        aicf.kron,
        np.kron,
        lambda t, F, a, b: t.kron(a, b),
    )
for _k in (-1, 0, 1, 2, 3, 6):
    layer(
        f"rot90_{_k}",
        {"x": (2, 3, 4)},
        lambda x, _k=_k: aicf.rot90(x, _k, (2, 0)),
        lambda x, _k=_k: np.rot90(x, _k, (2, 0)),
        lambda t, F, x, _k=_k: t.rot90(x, _k, (2, 0)),
    )
    layer(
        f"diag_embed_{_k}",
        {"x": (2, 3)},
        lambda x, _k=_k: aicf.diag_embed(x, _k),
        lambda x, _k=_k: np.stack([np.diag(row, _k) for row in x]),
        lambda t, F, x, _k=_k: t.diag_embed(x, _k),
    )
    layer(
        f"diag_embed_axes_{_k}",
        {"x": (2, 3)},
        lambda x, _k=_k: aicf.diag_embed(x, _k, 2, 0),
        lambda x, _k=_k: np.moveaxis(np.stack([np.diag(row, _k) for row in x]), [1, 2], [2, 0]),
        lambda t, F, x, _k=_k: t.diag_embed(x, _k, 2, 0),
    )
for _n in (1, 2, 5):
    layer(
        f"matrix_power_{_n}",
        {"x": (2, 3, 3)},
        lambda x, _n=_n: aicf.matrix_power(x, _n),
        lambda x, _n=_n: np.linalg.matrix_power(x, _n),
        lambda t, F, x, _n=_n: t.linalg.matrix_power(x, _n),
    )
for _n, _increasing in ((None, False), (2, True), (1, False)):
    layer(
        f"vander_{_n}_{_increasing}",
        {"x": (4,)},
        lambda x, _n=_n, _i=_increasing: aicf.vander(x, _n, _i),
        lambda x, _n=_n, _i=_increasing: np.vander(x, _n, _i),
        smooth=_n != 1,
    )
layer(
    "masked_fill",
    {"x": (4, 3)},
    lambda x: aicf.masked_fill(x, x > 0.5, -1.0),
    lambda x: np.where(x > 0.5, -1, x),
    lambda t, F, x: x.masked_fill(x > 0.5, -1.0),
)


def places(x, *at):
    return x.graph.constant(np.array(at))


layer(
    "index_fill",
    {"x": (4, 3)},
    lambda x: aicf.index_fill(x, 1, places(x, 2, 0), 0.5),
    lambda x: np.where(np.array([True, False, True]), 0.5, x),
    lambda t, F, x: x.index_fill(1, t.tensor([2, 0]), 0.5),
)
layer(
    "index_copy",
    {"x": (4, 3), "y": (2, 3)},
    lambda x, y: aicf.index_copy(x, 0, places(x, 3, 1), y),
    lambda x, y: np.stack([x[0], y[1], x[2], y[0]]),
    lambda t, F, x, y: x.index_copy(0, t.tensor([3, 1]), y),
)
layer(
    "slice_scatter",
    {"x": (4, 6), "y": (4, 2)},
    lambda x, y: aicf.slice_scatter(x, y, 1, 1, 5, 2),
    lambda x, y: np.stack([x[:, 0], y[:, 0], x[:, 2], y[:, 1], x[:, 4], x[:, 5]], 1),
    lambda t, F, x, y: x.slice_scatter(y, 1, 1, 5, 2),
)
