"""The table of layers, activations and losses: what each is given, and its references."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import aicf
import numpy as np


class Layer(NamedTuple):
    """One call: its arrays by name, and the same function in aicf, NumPy and PyTorch."""

    name: str
    arrays: Callable[..., dict[str, Any]]  # (rng)
    build: Callable[..., Any]  # (**values)
    numpy: Callable[..., Any]  # (**float64 arrays)
    torch: Callable[..., Any] | None = None  # (torch, functional, **tensors)
    smooth: bool = True  # central differences mean something
    fixed: tuple[str, ...] = ()  # operands that take no gradient

    def floats(self, arrays):
        """The operands that take one."""
        of = {name: np.asarray(array).dtype for name, array in arrays.items()}
        return [name for name in of if of[name] == np.float64 and name not in self.fixed]


LAYERS: list[Layer] = []


def layer(name, arrays, build, reference, torch=None, smooth=True, fixed=()):
    if isinstance(arrays, dict):
        shapes = arrays
        arrays = lambda rng: {k: rng.uniform(-2, 2, s) for k, s in shapes.items()}  # noqa: E731
    LAYERS.append(Layer(name, arrays, build, reference, torch, smooth, fixed))


# ---- activations


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(0, x)


def relu6(x):
    return np.clip(x, 0, 6)


SELU = 1.6732632423543772, 1.0507009873554805
ACTIVATIONS = {  # on numbers of both sides of all limits
    "relu6": ({}, relu6),
    "hardtanh": ({"min": -2.0, "max": 1.5}, lambda x, min, max: np.clip(x, min, max)),
    "hardsigmoid": ({}, lambda x: relu6(x + 3) / 6),
    "hardswish": ({}, lambda x: x * relu6(x + 3) / 6),
    "selu": ({}, lambda x: SELU[1] * np.where(x > 0, x, SELU[0] * np.expm1(np.minimum(x, 0)))),
    "celu": ({"alpha": 0.7}, lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x / alpha))),
    "mish": ({}, lambda x: x * np.tanh(softplus(x))),
    "logsigmoid": ({}, lambda x: -softplus(-x)),
    "softsign": ({}, lambda x: x / (1 + abs(x))),
    "tanhshrink": ({}, lambda x: x - np.tanh(x)),
    "softshrink": ({"lambd": 0.8}, lambda x, lambd: np.sign(x) * np.maximum(abs(x) - lambd, 0)),
    "hardshrink": ({"lambd": 0.8}, lambda x, lambd: np.where(abs(x) > lambd, x, 0)),
    "threshold": ({"threshold": 0.3, "value": 4.0},
                  lambda x, threshold, value: np.where(x > threshold, x, value)),
}  # fmt: skip
FLOAT_CONSTANTS = ("hardsigmoid", "celu")  # PyTorch's gradients of float64 have them in float32
for _name, (_given, _reference) in ACTIVATIONS.items():
    layer(
        _name,
        lambda rng: {"x": rng.uniform(-8, 8, (6, 7))},
        lambda x, _n=_name, _g=_given: getattr(aicf, _n)(x, **_g),
        lambda x, _r=_reference, _g=_given: _r(x, **_g),
        _name not in FLOAT_CONSTANTS
        and (lambda t, F, x, _n=_name, _g=_given: getattr(F, _n)(x, *_g.values())),
    )
for _label, _shape in (("one", (1,)), ("channels", (3,))):
    layer(
        f"prelu_{_label}",
        {"x": (2, 3, 4), "w": _shape},
        lambda x, w: aicf.prelu(x, w),
        lambda x, w: np.where(x > 0, x, x * (w[:, None] if len(w) > 1 else w)),
        lambda t, F, x, w: F.prelu(x, w),
    )
for _axis in (-1, 1):
    layer(
        f"glu_{_axis}",
        {"x": (2, 4, 6)},
        lambda x, _a=_axis: aicf.glu(x, _a),
        lambda x, _a=_axis: np.multiply(*(f(p) for f, p in zip((np.asarray, sigmoid),
                                                             np.split(x, 2, _a), strict=True))),
        lambda t, F, x, _a=_axis: F.glu(x, _a),
    )  # fmt: skip
layer(
    "softmin",
    {"x": (3, 5)},
    lambda x: aicf.softmin(x, 0),
    lambda x: np.exp(-x) / np.exp(-x).sum(0),
    lambda t, F, x: F.softmin(x, 0),
)

# ---- losses

REDUCED = {"mean": np.mean, "sum": np.sum, "none": np.asarray}


def loss_rows(name, arrays, reference, given=None, fixed=(), torch=True):
    """A row of each reduction; `reference` is that of "none"."""
    given = given or {}
    label = "_".join([name, *(f"{k}{v}" for k, v in given.items())])
    for how, reduced in REDUCED.items():
        options = {**given, "reduction": how}
        layer(
            f"{label}_{how}",
            arrays,
            lambda _o=options, **values: getattr(aicf, name)(*values.values(), **_o),
            lambda _r=reduced, **values: _r(reference(**values, **given)),
            torch
            and (lambda t, F, /, _o=options, **values: getattr(F, name)(*values.values(), **_o)),
            fixed=fixed,
        )


def signs(rng, shape):
    return rng.choice([-1.0, 1.0], shape)


PAIR = {"y": (5, 4), "t": (5, 4)}
SIGNED = lambda rng: {"y": rng.uniform(-2, 2, (5, 4)), "t": signs(rng, (5, 4))}  # noqa: E731
loss_rows("mse_loss", PAIR, lambda y, t: (y - t) ** 2)
loss_rows("l1_loss", PAIR, lambda y, t: abs(y - t))


def weighed_rows(name, each, divided):
    """Rows with a weight an element; the mean is divided by the sum of weights, or their number."""
    reduced = {
        "mean": lambda y, w: (y * w).sum() / (w.sum() if divided else w.size),
        "sum": lambda y, w: (y * w).sum(),
        "none": lambda y, w: y * w,
    }
    for how in REDUCED:
        layer(
            f"{name}_weight_{how}",
            lambda rng: {k: rng.uniform(0.2, 2, (5, 4)) for k in ("y", "t", "w")},
            lambda y, t, w, _o=how: getattr(aicf, name)(y, t, reduction=_o, weight=w),
            lambda y, t, w, _o=how: reduced[_o](each(y - t), w),
            lambda torch, F, /, y, t, w, _o=how: getattr(F, name)(y, t, reduction=_o, weight=w),
            fixed=("w",),
        )


weighed_rows("mse_loss", lambda d: d * d, True)
weighed_rows("l1_loss", abs, True)
weighed_rows("huber_loss", lambda d: np.where(abs(d) <= 1, d * d / 2, abs(d) - 0.5), False)
for _beta in (1.0, 0.4):
    loss_rows(
        "smooth_l1_loss",
        PAIR,
        lambda y, t, beta: np.where(
            abs(y - t) < beta, (y - t) ** 2 / (2 * beta), abs(y - t) - beta / 2
        ),
        {"beta": _beta},
    )
    loss_rows(
        "huber_loss",
        PAIR,
        lambda y, t, delta: np.where(
            abs(y - t) <= delta, (y - t) ** 2 / 2, delta * (abs(y - t) - delta / 2)
        ),
        {"delta": _beta},
    )


def bce_with_logits(y, t, weight=1.0, pos_weight=1.0):
    return weight * ((1 - t) * y + (1 + (pos_weight - 1) * t) * softplus(-y))


LOGITS = lambda rng: {"y": rng.uniform(-9, 9, (5, 4)), "t": rng.uniform(0, 1, (5, 4))}  # noqa: E731
loss_rows("binary_cross_entropy_with_logits", LOGITS, bce_with_logits)
for _some in (["weight"], ["pos_weight"], ["weight", "pos_weight"]):
    layer(
        f"binary_cross_entropy_with_logits_{'_'.join(_some)}",
        lambda rng, _s=_some: LOGITS(rng) | {name: rng.uniform(0.5, 2, 4) for name in _s},
        lambda y, t, **w: aicf.binary_cross_entropy_with_logits(y, t, **w),
        lambda y, t, **w: bce_with_logits(y, t, **w).mean(),
        lambda torch, F, y, t, **w: F.binary_cross_entropy_with_logits(y, t, **w),
        fixed=tuple(_some),
    )
loss_rows(
    "binary_cross_entropy",
    lambda rng: {"y": rng.uniform(0.05, 0.95, (5, 4)), "t": rng.uniform(0, 1, (5, 4))},
    lambda y, t: -(t * np.log(y) + (1 - t) * np.log1p(-y)),
)
layer(
    "binary_cross_entropy_limits",
    lambda rng: {"y": np.array([0.0, 1.0, 0.0, 1.0]), "t": np.array([0.0, 1.0, 1.0, 0.0])},
    lambda y, t: aicf.binary_cross_entropy(y, aicf.detach(t), reduction="none"),
    lambda y, t: np.array([0.0, 0.0, 100.0, 100.0]),
    smooth=False,
)
layer(
    "binary_cross_entropy_of_sigmoid_at_its_ends",
    lambda rng: {"x": np.array([800.0, -800.0, 800.0, -800.0, 40.0, 0.5]),
                 "t": np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.3])},
    lambda x, t: aicf.binary_cross_entropy(aicf.sigmoid(x), t),
    lambda x, t: np.minimum(softplus(-x) * t + softplus(x) * (1 - t), 100).mean(),
    lambda torch, F, x, t: F.binary_cross_entropy(torch.sigmoid(x), t),
    smooth=False,
    fixed=("t",),
)  # fmt: skip
loss_rows(
    "kl_div",
    lambda rng: {"y": rng.uniform(-2, 0, (5, 4)), "t": rng.uniform(0.1, 1, (5, 4))},
    lambda y, t: t * (np.log(t) - y),
    torch=None,  # which warns of its own mean
)
loss_rows(
    "kl_div",
    PAIR,
    lambda y, t, log_target: np.exp(t) * (t - y),
    {"log_target": True},
    torch=None,
)
layer(
    "kl_div_rows",
    lambda rng: {"y": rng.uniform(-2, 0, (5, 4)), "t": rng.uniform(0.1, 1, (5, 4))},
    lambda y, t: aicf.kl_div(y, t, reduction="batchmean"),
    lambda y, t: (t * (np.log(t) - y)).sum() / 5,
    lambda torch, F, y, t: F.kl_div(y, t, reduction="batchmean"),
)
COUNTS = lambda rng: {"y": rng.uniform(0.2, 2, (5, 4)), "t": rng.uniform(0, 5, (5, 4))}  # noqa: E731
loss_rows("poisson_nll_loss", COUNTS, lambda y, t: np.exp(y) - t * y)
loss_rows(
    "poisson_nll_loss",
    COUNTS,
    lambda y, t, log_input, full: (
        y - t * np.log(y + 1e-8) + np.where(t > 1, t * np.log(t) - t + np.log(2 * np.pi * t) / 2, 0)
    ),
    {"log_input": False, "full": True},
)
for _full, _shape in ((False, (5, 5)), (True, (5, 5)), (True, (5, 1)), (False, (5,))):
    loss_rows(
        "gaussian_nll_loss",
        lambda rng, _shape=_shape: {**{k: rng.uniform(-2, 2, (5, 5)) for k in "yt"},
                                    "v": rng.uniform(0.1, 2, _shape)},
        lambda y, t, v, full: (np.log(v.reshape(5, -1)) + (y - t) ** 2 / v.reshape(5, -1)) / 2
        + (math.log(2 * math.pi) / 2 if full else 0),
        {"full": _full},
    )  # fmt: skip
loss_rows("soft_margin_loss", SIGNED, lambda y, t: softplus(-t * y), fixed=("t",))
loss_rows(
    "hinge_embedding_loss",
    SIGNED,
    lambda y, t, margin: np.where(t == 1, y, np.maximum(0, margin - y)),
    {"margin": 0.7},
    fixed=("t",),
)
loss_rows(
    "margin_ranking_loss",
    lambda rng: {**{k: rng.uniform(-2, 2, (5, 4)) for k in "ab"}, "t": signs(rng, (5, 4))},
    lambda a, b, t, margin: np.maximum(0, -t * (a - b) + margin),
    {"margin": 0.3},
    fixed=("t",),
)


def distance(a, b, p=2.0, eps=1e-6):
    return (abs(a - b + eps) ** p).sum(-1) ** (1 / p)


def triplet(a, b, c, margin=1.0, p=2.0, swap=False):
    far = distance(a, c, p)
    return np.maximum(
        distance(a, b, p) - (np.minimum(far, distance(b, c, p)) if swap else far) + margin, 0
    )


THREE = dict.fromkeys("abc", (5, 4))
for _given in ({}, {"p": 1.0}, {"p": 3.0, "margin": 0.2}, {"swap": True}):
    loss_rows("triplet_margin_loss", THREE, triplet, _given)
for _p in (1.0, 2.0, 2.5):
    layer(
        f"pairwise_distance_{_p}",
        {"a": (5, 4), "b": (5, 4)},
        lambda a, b, _p=_p: aicf.pairwise_distance(a, b, _p),
        lambda a, b, _p=_p: distance(a, b, _p),
        lambda t, F, a, b, _p=_p: F.pairwise_distance(a, b, _p),
    )
    layer(
        f"pairwise_distance_{_p}_of_equals",
        lambda rng: {"a": np.eye(3), "b": np.eye(3)[[0, 2, 1]]},
        lambda a, b, _p=_p: aicf.pairwise_distance(a, b, _p, eps=0.0),
        lambda a, b, _p=_p: distance(a, b, _p, 0.0),
        lambda t, F, a, b, _p=_p: F.pairwise_distance(a, b, _p, 0.0),
        smooth=False,
    )


def cosine(a, b, axis=-1, eps=1e-8):
    norms = [np.maximum(np.sqrt((x * x).sum(axis)), eps) for x in (a, b)]
    return (a * b).sum(axis) / (norms[0] * norms[1])


for _axis in (0, 1, -1):
    layer(
        f"cosine_similarity_{_axis}",
        {"a": (5, 4, 3), "b": (5, 4, 3)},
        lambda a, b, _a=_axis: aicf.cosine_similarity(a, b, _a),
        lambda a, b, _a=_axis: cosine(a, b, _a),
        lambda t, F, a, b, _a=_axis: F.cosine_similarity(a, b, _a),
    )
loss_rows(
    "cosine_embedding_loss",
    lambda rng: {**{k: rng.uniform(-2, 2, (5, 4)) for k in "ab"}, "t": signs(rng, 5)},
    lambda a, b, t, margin: np.where(
        t == 1, 1 - cosine(a, b), np.maximum(0, cosine(a, b) - margin)
    ),
    {"margin": 0.1},
    fixed=("t",),
)
layer(
    "cosine_similarity_of_zeros",
    lambda rng: {"a": np.diag([1.0, 0.0, 2.0]), "b": np.diag([0.0, 0.0, 2.0])},
    lambda a, b: aicf.cosine_similarity(a, b),
    cosine,
    lambda t, F, a, b: F.cosine_similarity(a, b),
    smooth=False,
)

# ---- margins where they are reached exactly

EQUALS = {"a": [1.0, 2.0], "b": [1.0, 2.0], "t": [1.0, -1.0]}
for _name, _given, _arrays, _fixed in (
    ("margin_ranking_loss", {}, EQUALS, "t"),
    ("margin_ranking_loss", {"margin": 1.0}, {**EQUALS, "b": [0.0, 3.0]}, "t"),
    ("hinge_embedding_loss", {}, {"y": [1.0, 1.0, 0.0], "t": [-1.0, 1.0, 1.0]}, "t"),
    ("cosine_embedding_loss", {}, {"a": [[1.0, 0.0]], "b": [[0.0, 1.0]], "t": [-1.0]}, "t"),
    (
        "triplet_margin_loss",
        {"p": 1.0, "eps": 0.0},
        {"a": [[0.0, 1.0]], "b": [[2.0, 1.0]], "c": [[2.0, 2.0]]},
        "",
    ),
):
    layer(
        f"{_name}_at_its_margin_{len(LAYERS)}",
        lambda rng, _a=_arrays: {name: np.array(array) for name, array in _a.items()},
        lambda _n=_name, _g=_given, **v: getattr(aicf, _n)(*v.values(), **_g, reduction="none"),
        lambda _a=_arrays, **v: np.where(
            np.array(_a["t"]) == 1, _a["y"], 0.0) if "y" in _a else np.zeros(len(_a["a"])),
        lambda t, F, /, _n=_name, _g=_given, **v: getattr(F, _n)(
            *v.values(), **_g, reduction="none"),
        smooth=False,
        fixed=(_fixed,),
    )  # fmt: skip

# ---- classes


def log_softmax(x):
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def picked(x, i, weight=None, ignore_index=None, reduction="mean", label_smoothing=0.0):
    """Row by row."""
    weight = np.ones(x.shape[1]) if weight is None else weight
    each, counts = np.zeros(i.shape), np.zeros(i.shape)
    for at in np.ndindex(i.shape):
        if i[at] == ignore_index:
            continue
        row = x[(at[0], slice(None), *at[1:])]
        counts[at] = weight[i[at]]
        each[at] = -weight[i[at]] * row[i[at]] * (1 - label_smoothing)
        each[at] -= (weight * row).sum() * label_smoothing / len(row)
    return each.sum() / counts.sum() if reduction == "mean" else REDUCED[reduction](each)


for _shape in ((6, 4), (3, 4, 5), (2, 4, 3, 2)):
    for _given in (
        {}, {"weight": 1}, {"ignore_index": 2}, {"ignore_index": -100, "weight": 1},
        {"label_smoothing": 0.2}, {"label_smoothing": 0.1, "weight": 1, "ignore_index": 1},
    ):  # fmt: skip
        for _how in REDUCED:

            def _arrays(rng, _s=_shape, _g=_given):
                labels = rng.integers(0, 4, (_s[0], *_s[2:]))
                labels.flat[:2] = _g.get("ignore_index", 0), 3
                weights = {"weight": rng.uniform(0.5, 2, 4)} if "weight" in _g else {}
                return {"x": rng.uniform(-2, 2, _s), "i": labels, **weights}

            def _torch(t, F, x, i, weight=None, _o=None, _f="cross_entropy"):
                return getattr(F, _f)(x, i, weight, **_o)

            _options = {k: v for k, v in _given.items() if k != "weight"} | {"reduction": _how}
            _label = "_".join([str(len(_shape)), *_given, _how])
            layer(
                f"cross_entropy_{_label}",
                _arrays,
                lambda x, i, weight=None, _o=_options: aicf.cross_entropy(x, i, weight, **_o),
                lambda x, i, weight=None, _o=_options: picked(log_softmax(x), i, weight, **_o),
                lambda t, F, _f=_torch, _o=_options, **v: _f(t, F, _o=_o, **v),
                fixed=("weight",),
            )
            if "label_smoothing" not in _given:
                layer(
                    f"nll_loss_{_label}",
                    _arrays,
                    lambda x, i, weight=None, _o=_options: aicf.nll_loss(x, i, weight, **_o),
                    lambda x, i, weight=None, _o=_options: picked(x, i, weight, **_o),
                    lambda t, F, _f=_torch, _o=_options, **v: _f(t, F, _o=_o, _f="nll_loss", **v),
                    fixed=("weight",),
                )
for _smooth in (0.0, 0.3):
    layer(
        f"cross_entropy_of_probabilities_{_smooth}",
        lambda rng: {"x": rng.uniform(-2, 2, (3, 4, 2)), "p": rng.uniform(0, 1, (3, 4, 2)),
                     "weight": rng.uniform(0.5, 2, 4)},
        lambda x, p, weight, _s=_smooth: aicf.cross_entropy(x, p, weight, label_smoothing=_s),
        lambda x, p, weight, _s=_smooth: -(
            weight[:, None] * (p * (1 - _s) + _s / 4) * log_softmax(x)
        ).sum(1).mean(),
        lambda t, F, x, p, weight, _s=_smooth: F.cross_entropy(x, p, weight, label_smoothing=_s),
        fixed=("weight",),
    )  # fmt: skip

# ---- array functions


def whole(name, *given, shape=(3, 4, 5), torch=None, **options):
    """A row of one operand whose reference is NumPy's function of the same name."""
    label = "_".join([name, *map(str, given), *(f"{k}{v}" for k, v in options.items())])
    layer(
        label,
        {"x": shape},
        lambda x: getattr(aicf, name)(x, *given, **options),
        lambda x: getattr(np, name)(x, *given, **options),
        torch,
    )


whole("square", torch=lambda t, F, x: t.square(x))
layer(
    "reciprocal",
    lambda rng: {"x": rng.uniform(0.5, 2, (3, 4))},
    lambda x: aicf.reciprocal(x),
    lambda x: 1 / x,
    lambda t, F, x: t.reciprocal(x),
)
for _name in ("ceil", "trunc"):
    layer(
        _name,
        lambda rng: {"x": np.append(rng.uniform(-3, 3, 20), [0.0, -0.0, 2.0, -1.0])},
        lambda x, _n=_name: getattr(aicf, _n)(x),
        lambda x, _n=_name: getattr(np, _n)(x),
        lambda t, F, x, _n=_name: getattr(t, _n)(x),
        smooth=False,
    )
for _axis in (None, 1, (0, 2)):
    for _correction in (0, 1):
        layer(
            f"std_{_axis}_{_correction}",
            {"x": (3, 4, 5)},
            lambda x, _a=_axis, _c=_correction: aicf.std(x, _a, _c),
            lambda x, _a=_axis, _c=_correction: x.std(_a, ddof=_c),
            lambda t, F, x, _a=_axis, _c=_correction: t.std(x, _a, correction=_c),
        )
for _reps in (2, (2, 3), (1, 2, 1, 3), (2, 1, 1), (0, 1, 1)):
    whole("tile", _reps, torch=lambda t, F, x, _r=_reps: x.tile(np.ravel(_r).tolist()))
for _axis in (None, 0, 1, -1):
    whole("repeat", 3, _axis, torch=lambda t, F, x, _a=_axis: x.repeat_interleave(3, _a))
    whole("flip", _axis, torch=lambda t, F, x, _a=_axis: x.flip([0, 1, 2] if _a is None else [_a]))
    for _shift in (1, -2, 7, 0):
        whole("roll", _shift, _axis, torch=lambda t, F, x, _s=_shift, _a=_axis: x.roll(_s, _a))
whole("flip", (0, 2))
for _k in (0, 1, -2, 9):
    whole("tril", _k, torch=lambda t, F, x, _k=_k: x.tril(_k))
    whole("triu", _k, torch=lambda t, F, x, _k=_k: x.triu(_k))
for _from, _to in ((0, -1), (2, 0), (1, 1), (-1, 1)):
    whole("moveaxis", _from, _to, torch=lambda t, F, x, _f=_from, _t=_to: x.moveaxis(_f, _t))
layer(
    "outer",
    {"a": (2, 3), "b": (4,)},
    aicf.outer,
    np.outer,
    lambda t, F, a, b: t.outer(a.flatten(), b),
)
for _axes, _a, _b in (
    (2, (2, 3, 4), (3, 4, 5)), (0, (2,), (3,)), (1, (2, 3), (3,)),
    (([1, 0], [0, 2]), (2, 3, 4), (3, 5, 2)), (([-1], [-1]), (2, 3), (4, 3)),
):  # fmt: skip
    layer(
        f"tensordot_{_axes}",
        {"a": _a, "b": _b},
        lambda a, b, _x=_axes: aicf.tensordot(a, b, _x),
        lambda a, b, _x=_axes: np.tensordot(a, b, _x),
        lambda t, F, a, b, _x=_axes: t.tensordot(a, b, _x),
    )
SIZES = {"v": 2, "w": 3, "b": 2, "h": 3, "i": 4, "j": 5, "k": 2, "l": 3}
for _equation in (
    "ij,jk->ik", "ij,jk->ki", "ij,kj", "bij,bjk->bik", "bhid,bhjd->bhij", "ij->ji", "ij->j", "ij->",
    "i,i->", "i,j->ij", "ij,ij->ij", "bij,bkj,bl->ikl", "ij,kl->", "bi,bi,b->i", "bij,jk,kl->bil",
    "b,ij->bij", "ibj,jb->bi", "ij,i", "kk->k", "kk", "kbk->bk", "kkk->", "kik,ij->kj", "...i->...",
    "...ij,...jk->...ik", "b...,b...->...", "h...j,jk", "...,...", "i...->...i",
):  # fmt: skip
    _shapes = {
        f"x{n}": tuple(SIZES.get(c, 6) for c in term.replace("...", "vw"[n:]))
        for n, term in enumerate(_equation.partition("->")[0].split(","))
    }
    layer(
        f"einsum_{_equation}",
        _shapes,
        lambda _e=_equation, **x: aicf.einsum(_e, *x.values()),
        lambda _e=_equation, **x: np.einsum(_e, *x.values()),
        lambda t, F, /, _e=_equation, **x: t.einsum(_e, *x.values()),
    )
