"""Rows of the table of layers: norms, embeddings, attention, distances and margins by option."""

import itertools
import math

import aicf
import numpy as np
from layer_cases import LAYERS, REDUCED, layer, softplus

# ---- norms


def response(x, size, alpha, beta, k):
    y = np.zeros_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(c - size // 2, 0) : c + (size - 1) // 2 + 1]
        y[:, c] = x[:, c] / (k + alpha / size * (near**2).sum(1)) ** beta
    return y


for _shape, _size in (((2, 5, 3), 2), ((1, 4, 2, 3), 3), ((2, 2, 3), 5)):
    layer(
        f"local_response_norm_{_shape}_{_size}",
        {"x": _shape},
        lambda x, _s=_size: aicf.local_response_norm(x, _s, 0.3, 0.6, 2.0),
        lambda x, _s=_size: response(x, _s, 0.3, 0.6, 2.0),
        lambda t, F, x, _s=_size: F.local_response_norm(x, _s, 0.3, 0.6, 2.0),
    )


def standing(x, m, v, w, b):
    m, v, w, b = (a.reshape(-1, *[1] * (x.ndim - 2)) for a in (m, v, w, b))
    return (x - m) / np.sqrt(v + 1e-5) * w + b


def moments(shape):
    return lambda rng: {
        "x": rng.uniform(-2, 2, shape),
        **{name: rng.uniform(0.5, 2, shape[1]) for name in "mvwb"},
    }


layer(
    "batch_norm_of_values",
    moments((3, 4, 2)),
    lambda x, m, v, w, b: aicf.batch_norm(x, m, v, w, b, training=False),
    standing,
    lambda t, F, x, m, v, w, b: F.batch_norm(x, m.detach(), v.detach(), w, b),
    fixed=("m", "v"),
)
layer(
    "batch_norm_without_statistics",
    {"x": (4, 3, 2)},
    lambda x: aicf.batch_norm(x, None, None),
    lambda x: (x - x.mean((0, 2), keepdims=True)) / np.sqrt(x.var((0, 2), keepdims=True) + 1e-5),
    lambda t, F, x: F.batch_norm(x, None, None, training=True),
)
layer(
    "instance_norm_of_values",
    moments((3, 4, 2, 2)),
    lambda x, m, v, w, b: aicf.instance_norm(
        x, w, b, running_mean=m, running_var=v, use_input_stats=False
    ),
    standing,
    lambda t, F, x, m, v, w, b: F.instance_norm(x, m, v, w, b, use_input_stats=False),
    fixed=("m", "v"),
)
for _p in (math.inf, 0.5):
    layer(
        f"normalize_{_p}",
        {"x": (3, 4)},
        lambda x, _p=_p: aicf.normalize(x, _p),
        lambda x, _p=_p: x / np.linalg.norm(x, _p, 1, True),
        lambda t, F, x, _p=_p: F.normalize(x, _p),
    )

# ---- embeddings


def bags(w, i, offsets, mode, factors=None, padding=None):
    ends = [*offsets[1:], len(i)]
    y = np.zeros((len(offsets), w.shape[1]))
    for row, (a, b) in enumerate(zip(offsets, ends, strict=True)):
        at = [k for k in range(a, b) if i[k] != padding]
        part = np.array([w[i[k]] * (1 if factors is None else factors[k]) for k in at])
        if at:
            y[row] = {"sum": np.sum, "mean": np.mean, "max": np.max}[mode](part, 0)
    return y


layer(
    "embedding_padding",
    lambda rng: {"w": rng.uniform(-2, 2, (5, 3)), "i": np.array([[4, 1, 3], [3, 0, 4]])},
    lambda w, i: aicf.embedding(i, w, padding_idx=-2),
    lambda w, i: w[i],
    lambda t, F, w, i: F.embedding(i, w, padding_idx=-2),
    smooth=False,
)
PLACES = np.array([4, 1, 3, 3, 0, 4, 2, 2])
for _mode, _padding in itertools.product(("sum", "mean", "max"), (None, 4)):
    layer(
        f"embedding_bag_{_mode}_{_padding}",
        lambda rng: {"w": rng.uniform(-2, 2, (5, 3)), "i": PLACES.reshape(4, 2)},
        lambda w, i, _m=_mode, _p=_padding: aicf.embedding_bag(i, w, mode=_m, padding_idx=_p),
        lambda w, i, _m=_mode, _p=_padding: bags(w, i.ravel(), [0, 2, 4, 6], _m, padding=_p),
        lambda t, F, w, i, _m=_mode, _p=_padding: F.embedding_bag(i, w, mode=_m, padding_idx=_p),
    )
    if _mode != "max":
        layer(
            f"embedding_bag_{_mode}_{_padding}_offsets",
            lambda rng: {"w": rng.uniform(-2, 2, (5, 3)), "i": PLACES, "o": np.array([0, 3, 3, 7])},
            lambda w, i, o, _m=_mode, _p=_padding: aicf.embedding_bag(
                i, w, o, mode=_m, padding_idx=_p
            ),
            lambda w, i, o, _m=_mode, _p=_padding: bags(w, i, o, _m, padding=_p),
            lambda t, F, w, i, o, _m=_mode, _p=_padding: F.embedding_bag(
                i, w, o, mode=_m, padding_idx=_p
            ),
        )
layer(
    "embedding_bag_weighted",
    lambda rng: {"w": rng.uniform(-2, 2, (5, 3)), "i": PLACES, "f": rng.uniform(-2, 2, 8),
                 "o": np.array([0, 3, 3, 8])},
    lambda w, i, f, o: aicf.embedding_bag(
        i, w, o, mode="sum", per_sample_weights=f, include_last_offset=True
    ),
    lambda w, i, f, o: bags(w, i, o[:-1], "sum", f),
    # PyTorch has no second derivative by the factors
    lambda t, F, w, i, f, o: t.stack(
        [(F.embedding(i, w) * f[:, None])[a:b].sum(0) for a, b in ((0, 3), (3, 3), (3, 8))]
    ),
)  # fmt: skip

# ---- attention, products, softplus


def weights_of(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def grouped(q, k, v, m):
    k, v = (a.repeat(2, 1) for a in (k, v))
    scores = q @ k.swapaxes(-1, -2) / 2 + m
    return weights_of(np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)) @ v


layer(
    "attention_of_shared_heads",
    {"q": (2, 4, 3, 4), "k": (2, 2, 5, 4), "v": (2, 2, 5, 3), "m": (3, 5)},
    lambda q, k, v, m: aicf.scaled_dot_product_attention(
        q, k, v, attn_mask=m, is_causal=True, enable_gqa=True
    ),
    grouped,
    lambda t, F, q, k, v, m: F.scaled_dot_product_attention(
        q, k, v, m.masked_fill(~t.ones(3, 5, dtype=t.bool).tril(), -t.inf), enable_gqa=True
    ),
)
layer(
    "bilinear",
    {"a": (2, 3, 4), "b": (2, 3, 5), "w": (2, 4, 5), "bias": (2,)},
    lambda a, b, w, bias: aicf.bilinear(a, b, w, bias),
    lambda a, b, w, bias: np.einsum("nmi,oij,nmj->nmo", a, w, b) + bias,
    lambda t, F, a, b, w, bias: F.bilinear(a, b, w, bias),
)
for _beta, _threshold in ((2.5, None), (0.7, 1.0)):
    layer(
        f"softplus_{_beta}_{_threshold}",
        {"x": (5, 6)},
        lambda x, _b=_beta, _t=_threshold: aicf.softplus(x, _b, _t),
        lambda x, _b=_beta, _t=_threshold: np.where(
            _b * x > (math.inf if _t is None else _t), x, softplus(_b * x) / _b
        ),
        lambda t, F, x, _b=_beta, _t=_threshold: F.softplus(x, _b, 1e3 if _t is None else _t),
    )

# ---- distances


def norm(d, p):
    if p == 0:
        return (d != 0).sum(-1) * 1.0
    if math.isinf(p):
        return abs(d).max(-1)
    return (abs(d) ** p).sum(-1) ** (1 / p)


for _p in (0.0, 0.5, 1.0, 2.0, 3.0, math.inf):
    layer(
        f"cdist_{_p}",
        {"a": (2, 3, 4), "b": (5, 4)},
        lambda a, b, _p=_p: aicf.cdist(a, b, _p),
        lambda a, b, _p=_p: norm(a[:, :, None] - b, _p),
        lambda t, F, a, b, _p=_p: t.linalg.vector_norm(a[:, :, None] - b, _p, -1),
    )
    layer(
        f"pdist_{_p}",
        {"x": (5, 3)},
        lambda x, _p=_p: aicf.pdist(x, _p),
        lambda x, _p=_p: norm(x[:, None] - x, _p)[np.triu_indices(5, 1)],
        lambda t, F, x, _p=_p: t.linalg.vector_norm(
            (x[:, None] - x)[tuple(map(t.from_numpy, np.triu_indices(5, 1)))], _p, -1
        ),
    )
    layer(
        f"pairwise_distance_{_p}_broadcast",
        {"a": (3, 4), "b": (4,)},
        lambda a, b, _p=_p: aicf.pairwise_distance(a, b, _p, keepdims=True),
        lambda a, b, _p=_p: norm(a - b + 1e-6, _p)[:, None],
        lambda t, F, a, b, _p=_p: F.pairwise_distance(a, b, _p, keepdim=True),
    )
layer(
    "cdist_of_equals",
    lambda rng: {"a": np.eye(3), "b": np.eye(3)[1:]},
    lambda a, b: aicf.cdist(a, b),
    lambda a, b: norm(a[:, None] - b, 2.0),
    lambda t, F, a, b: t.linalg.vector_norm(a[:, None] - b, 2, -1),
    smooth=False,
)
layer(
    "cosine_similarity_broadcast",
    {"a": (3, 4), "b": (3, 1)},
    lambda a, b: aicf.cosine_similarity(a, b),
    lambda a, b: np.sign(b[:, 0]) * a.sum(1) / np.sqrt((a * a).sum(1)) / 2,
    lambda t, F, a, b: F.cosine_similarity(a, b),
)

# ---- margins


def rows_of(name, arrays, reference, torch=None, fixed=(), **given):
    """A row of each reduction; `reference` is the loss of each row."""
    for how, reduced in REDUCED.items():
        options = {**given, "reduction": how}
        layer(
            f"{name}_{len(LAYERS)}_{how}",
            arrays,
            lambda _o=options, **v: getattr(aicf, name)(**v, **_o),
            lambda _r=reduced, **v: _r(reference(**v, **given)),
            lambda t, F, /, _o=options, **v: getattr(F, name)(
                *list(v.values())[:2], **dict(list(v.items())[2:]), **_o
            ),
            fixed=fixed,
        )


def multi_margin(y, labels, p=1, margin=1.0, weight=None):
    each = []
    for row, label in zip(np.atleast_2d(y), np.atleast_1d(labels), strict=True):
        terms = np.maximum(margin - row[label] + row, 0) ** p
        terms[label] = 0
        each.append(terms.sum() / len(row) * (1 if weight is None else weight[label]))
    return np.array(each if y.ndim > 1 else each[0])


def multilabel_margin(y, labels):
    each = []
    for row, of in zip(np.atleast_2d(y), np.atleast_2d(labels), strict=True):
        own = list(itertools.takewhile(lambda label: label >= 0, of))
        rest = [j for j in range(len(row)) if j not in own]
        each.append(sum(max(0, 1 - row[k] + row[j]) for k in own for j in rest) / len(row))
    return np.array(each if y.ndim > 1 else each[0])


def scored(rng):
    return {"y": rng.uniform(-2, 2, (5, 4)), "labels": rng.integers(0, 4, 5)}


rows_of("multi_margin_loss", scored, multi_margin)
rows_of(
    "multi_margin_loss",
    lambda rng: {**scored(rng), "weight": rng.uniform(0.5, 2, 4)},
    multi_margin,
    p=2,
    margin=0.4,
    fixed=("weight",),
)
rows_of(
    "multi_margin_loss",
    lambda rng: {"y": rng.uniform(-2, 2, 4), "labels": np.array(2)},
    multi_margin,
)
rows_of(
    "multilabel_margin_loss",
    lambda rng: {
        "y": rng.uniform(-2, 2, (4, 4)),
        "labels": np.array([[1, -1, 2, 3], [0, 3, 2, 1], [-1, 0, 0, 0], [2, 0, -1, 1]]),
    },
    multilabel_margin,
)
rows_of(
    "multilabel_margin_loss",
    lambda rng: {"y": rng.uniform(-2, 2, 3), "labels": np.array([2, -1, 0])},
    multilabel_margin,
)
for _how, _weighted in itertools.product(REDUCED, (False, True)):
    layer(
        f"multilabel_soft_margin_loss_{_how}_{_weighted}",
        {"y": (4, 3), "t": (4, 3), **({"weight": (3,)} if _weighted else {})},
        lambda _h=_how, **v: aicf.multilabel_soft_margin_loss(**v, reduction=_h),
        lambda y, t, weight=1.0, _r=REDUCED[_how]: _r(
            (weight * (t * softplus(-y) + (1 - t) * softplus(y))).mean(-1)
        ),
        lambda torch, F, y, t, weight=None, _h=_how: F.multilabel_soft_margin_loss(
            y, t, weight, reduction=_h
        ),
    )
for _swap in (False, True):
    layer(
        f"triplet_margin_with_distance_loss_{_swap}",
        dict.fromkeys("abc", (5, 4)),
        lambda a, b, c, _s=_swap: aicf.triplet_margin_with_distance_loss(
            a, b, c, lambda u, v: aicf.sum(aicf.square(u - v), 1), 0.7, _s
        ),
        lambda a, b, c, _s=_swap: np.maximum(
            ((a - b) ** 2).sum(1)
            - np.minimum(((a - c) ** 2).sum(1), ((b - c) ** 2).sum(1) if _s else np.inf) + 0.7,
            0,
        ).mean(),
        lambda t, F, a, b, c, _s=_swap: F.triplet_margin_with_distance_loss(
            a, b, c, distance_function=lambda u, v: (u - v).square().sum(1), margin=0.7, swap=_s
        ),
    )  # fmt: skip
for _shape in ((5,), (5, 1), ()):
    layer(
        f"gaussian_nll_loss_of_variances_{_shape}",
        lambda rng, _s=_shape: {"y": rng.uniform(-2, 2, (5, 5)),
                                "t": rng.uniform(-2, 2, 5 if _s == (5,) else 1),
                                "v": rng.uniform(0.2, 2, _s)},
        lambda y, t, v: aicf.gaussian_nll_loss(y, t, v, reduction="none"),
        lambda y, t, v: (np.log(v_of(v)) + (y - t) ** 2 / v_of(v)) / 2,
        _shape != ()
        and (lambda torch, F, y, t, v: F.gaussian_nll_loss(y, t, v, reduction="none")),
    )  # fmt: skip


def v_of(v):
    return v[:, None] if v.shape == (5,) else v


for _weighted in (False, True):
    layer(
        f"cross_entropy_of_one_row_{_weighted}",
        lambda rng, _w=_weighted: {
            "x": rng.uniform(-2, 2, 4), "i": np.array(2),
            **({"w": rng.uniform(0.5, 2, 4)} if _w else {}),
        },
        lambda x, i, w=None: aicf.cross_entropy(x, i, w, reduction="none"),
        lambda x, i, w=None: (1 if w is None else w[i]) * (np.log(np.exp(x).sum()) - x[i]),
        lambda t, F, x, i, w=None: F.cross_entropy(x, i, w, reduction="none"),
        fixed=("w",),
    )  # fmt: skip
layer(
    "nll_loss_of_one_row",
    lambda rng: {"x": rng.uniform(-2, 2, 4), "i": np.array(2)},
    lambda x, i: aicf.nll_loss(x, i),
    lambda x, i: -x[i],
    lambda t, F, x, i: F.nll_loss(x, i),
)
