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
for _ord in (1, 2, 3.5, np.inf, -np.inf):
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
