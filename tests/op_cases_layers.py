"""Rows of the op table for indexing, windows, norms and random numbers."""

import itertools
import math

import aicf
import numpy as np
from aicf.nn_functions import _fused_attention
from op_cases import INTS, Arg, row

INDEX = "the result is an index"
RANDOM = "a random value does not depend on its operands smoothly"


def backward(fn, count=1):
    """The op a gradient rule emits: the last operand is dy."""

    def build(g, *v):
        *x, dy = v
        grads = g.backward(fn(*x), x[:count], grad=dy)
        return [grads[value] for value in x[:count]]

    return build


# ---- slice, pad, concat, detach

row(
    "Slice",
    (Arg("abi"),),
    lambda g, x: x[:, ::-1, 1:6:2],
    lambda x: x[:, ::-1, 1:6:2],
    grad=(0,),
    torch=lambda t, x: x.flip(1)[:, :, 1:6:2],
)
row(
    "Slice",
    (Arg("abc"),),
    lambda g, x: x[..., 1:3] * x[..., :2],
    lambda x: x[..., 1:3] * x[..., :2] if x.shape[-1] else x[..., :0],
    grad=(0,),
    torch=lambda t, x: x[..., 1:3] * x[..., :2],
    label="overlapping",
)
for _dtype in (*INTS, "bool"):
    row(
        "Slice",
        (Arg("abi", 0, 90),),
        lambda g, x: x[-1:, :, ::-3],
        lambda x: x[-1:, :, ::-3],
        dtypes=(_dtype,),
        label=_dtype,
    )
PAD = [(1, 0), (0, 2), (3, 1)]
row(
    "Pad",
    (Arg("abc"),),
    lambda g, x: aicf.pad(x, PAD, 0.5),
    lambda x: np.pad(x, PAD, constant_values=0.5),
    grad=(0,),
    torch=lambda t, x: t.nn.functional.pad(x, (3, 1, 0, 2, 1, 0), value=0.5),
)
for _dtype in INTS:
    row(
        "Pad",
        (Arg("abc", 0, 90),),
        lambda g, x: aicf.pad(x, PAD, 7),
        lambda x: np.pad(x, PAD, constant_values=7),
        dtypes=(_dtype,),
        label=_dtype,
    )
for _axis, _b, _c in ((0, "ibc", "dbc"), (1, "aic", "adc"), (-1, "abi", "abd")):
    row(
        "Concat",
        (Arg("abc"), Arg(_b), Arg(_c)),
        lambda g, x, y, z, _a=_axis: aicf.concat([x, y, z], _a),
        lambda x, y, z, _a=_axis: np.concatenate([x, y, z], _a),
        grad=(0, 1, 2),
        torch=lambda t, x, y, z, _a=_axis: t.cat([x, y, z], _a),
        label=f"axis{_axis}",
    )
for _dtype in (*INTS, "bool"):
    row(
        "Concat",
        (Arg("ab", 0, 90), Arg("ib", 0, 90)),
        lambda g, x, y: aicf.concat([x, y]),
        lambda x, y: np.concatenate([x, y]),
        dtypes=(_dtype,),
        label=_dtype,
    )
row("Detach", (Arg(),), lambda g, x: aicf.detach(x) * 1.0, lambda x: x)
row(
    "Detach",
    (Arg(), Arg()),
    lambda g, x, y: x * aicf.detach(y),
    lambda x, y: x * y,
    grad=(0,),
    torch=lambda t, x, y: x * y.detach(),
    label="factor",
)

# ---- windows


def windows(x, kernel, stride, dilation, fill=np.nan):
    """[..., kh, kw, oh, ow], taken one by one."""
    (kh, kw), (sh, sw), (dh, dw) = kernel, stride, dilation
    oh = (x.shape[-2] - (kh - 1) * dh - 1) // sh + 1
    ow = (x.shape[-1] - (kw - 1) * dw - 1) // sw + 1
    result = np.full((*x.shape[:-2], kh, kw, oh, ow), fill)
    for i, j, r, c in itertools.product(range(kh), range(kw), range(oh), range(ow)):
        result[..., i, j, r, c] = x[..., r * sh + i * dh, c * sw + j * dw]
    return result


def fold(w, shape, stride, dilation):
    """Its transpose: what each element of the image gives to the windows, added up."""
    result = np.zeros(shape)
    for i, j, r, c in itertools.product(*(range(size) for size in w.shape[-4:])):
        result[..., r * stride[0] + i * dilation[0], c * stride[1] + j * dilation[1]] += w[
            ..., i, j, r, c
        ]
    return result


GEOMETRIES = (
    ("plain", (2, 3), (1, 1), (1, 1)),
    ("stride", (3, 2), (2, 3), (1, 1)),
    ("dilation", (2, 2), (2, 1), (3, 2)),
)
for _label, _kernel, _stride, _dilation in GEOMETRIES:
    _lists = {"kernel": list(_kernel), "stride": list(_stride), "dilation": list(_dilation)}

    def _cut(g, x, _l=_lists):
        return g._emit("Windows", [x], **_l)[0]

    def _unfold(g, x, y, _l=_lists):
        w = g._emit("Windows", [x], **_l)[0] * g._emit("Windows", [y], **_l)[0]
        return g._emit("Fold", [w], **_l, shape=list(x.shape))[0]

    def _unfolded(x, y, _k=_kernel, _s=_stride, _d=_dilation):
        return fold(windows(x, _k, _s, _d) * windows(y, _k, _s, _d), x.shape, _s, _d)

    row(
        "Windows",
        (Arg("abio"),),
        _cut,
        lambda x, _k=_kernel, _s=_stride, _d=_dilation: windows(x, _k, _s, _d),
        grad=(0,),
        empty_error="io",
        label=_label,
    )
    row(
        "Fold",
        (Arg("abio"), Arg("abio")),
        _unfold,
        _unfolded,
        extra=lambda x, y, _f=_unfolded: 8 * _f(np.abs(x), np.abs(y)),
        stored=True,
        grad=(0, 1),
        zero_sign=False,
        empty_error="io",
        label=_label,
    )
    row(
        "MaxPool",
        (Arg("abio"),),
        lambda g, x, _k=_kernel, _s=_stride, _d=_dilation: aicf.max_pool2d(x, _k, _s, 0, _d),
        lambda x, _k=_kernel, _s=_stride, _d=_dilation: windows(x, _k, _s, _d).max((-4, -3)),
        grad=(0,),
        torch=lambda t, x, _k=_kernel, _s=_stride, _d=_dilation: t.nn.functional.max_pool2d(
            x, _k, _s, 0, _d
        ),
        empty_error="io",
        label=_label,
    )

    def _spread(x, _k=_kernel, _s=_stride, _d=_dilation):
        """d sum(max_pool2d(x)**2) / dx: each window's largest element takes twice its value."""
        cut = windows(x, _k, _s, _d)
        flat = cut.reshape(*cut.shape[:-4], math.prod(_k), *cut.shape[-2:])
        first = flat.argmax(-3)[..., None, :, :] == np.arange(flat.shape[-3])[:, None, None]
        return [fold((2 * flat * first).reshape(cut.shape), x.shape, _s, _d)]

    def _pool_bwd(g, x, _k=_kernel, _s=_stride, _d=_dilation):
        y = aicf.max_pool2d(x, _k, _s, 0, _d)
        return [g.backward(y, [x], grad=y * 2.0)[x]]

    row(
        "MaxPoolBwd",
        (Arg("abio"),),
        _pool_bwd,
        _spread,
        extra=lambda x: [np.full(x.shape, 64.0)],
        zero_sign=False,
        empty_error="io",
        label=_label,
        grad=(0,),
    )

# ---- argmax, cumsum, norms

for _axis, _label in ((0, "first"), (1, "middle"), (-1, "last")):
    row(
        "ArgMax",
        (Arg("abc"),),
        lambda g, x, _a=_axis: aicf.argmax(x, _a),
        lambda x, _a=_axis: x.argmax(_a),
        grad=INDEX,
        result="int64",
        empty_error="abc"[_axis],
        label=_label,
    )
    row(
        "CumSum",
        (Arg("abc"),),
        lambda g, x, _a=_axis: aicf.cumsum(x, _a),
        lambda x, _a=_axis: x.cumsum(_a),
        extra=lambda x, _a=_axis: 2 * x.shape[_a] * np.abs(x).cumsum(_a),
        grad=(0,),
        torch=lambda t, x, _a=_axis: x.cumsum(_a),
        label=_label,
    )
row(
    "ArgMax",
    (Arg("abc"),),
    lambda g, x: aicf.argmax(aicf.round(x)),
    lambda x: x.round().argmax(),
    grad=INDEX,
    result="int64",
    empty_error="abc",
    label="ties",
)
row(
    "ArgMax",
    (Arg("abc", 0, 4),),
    lambda g, x: aicf.argmax(x, 1, keepdims=True),
    lambda x: x.argmax(1, keepdims=True),
    grad=INDEX,
    result="int64",
    dtypes=INTS,
    empty_error="b",
    label="int",
)
row(
    "CumSum",
    (Arg("abc", 0, 9),),
    lambda g, x: aicf.cumsum(x, 1),
    lambda x: x.cumsum(1),
    dtypes=INTS,
    label="int",
)


def _parts(x, center, eps):
    with np.errstate(all="ignore"):
        count = np.float64(x.shape[-1])
        centred = x - x.sum(-1, keepdims=True) / count if center else x
        rstd = 1 / np.sqrt((centred**2).sum(-1, keepdims=True) / count + eps)
    return centred, rstd


def _norm_bound(x, center, eps):
    """The error of the mean, and the relative one of rstd, in units of u."""
    centred, rstd = _parts(x, center, eps)
    size = np.abs(x).max(-1, keepdims=True, initial=0)
    return 16 * size * rstd + 16 * np.abs(centred) * rstd * (1 + size * size * rstd * rstd)


def _norm_grad(x, dy, center, eps):
    centred, rstd = _parts(x, center, eps)
    y, count = centred * rstd, max(x.shape[-1], 1)
    shift = dy.sum(-1, keepdims=True) / count if center else 0.0
    return [rstd * (dy - shift - y * (dy * y).sum(-1, keepdims=True) / count)]


for _center, _eps, _label in ((True, 1e-5, "layer"), (False, 1e-5, "rms"), (True, 0.5, "eps")):
    _function = (
        (lambda x, _e=_eps: aicf.layer_norm(x, x.shape[-1:], eps=_e))
        if _center
        else (lambda x, _e=_eps: aicf.rms_norm(x, x.shape[-1:], eps=_e))
    )
    row(
        "Normalize",
        (Arg("abi"),),
        lambda g, x, _f=_function: _f(x),
        lambda x, _c=_center, _e=_eps: math.prod(_parts(x, _c, _e)),
        ulp=2,
        extra=lambda x, _c=_center, _e=_eps: _norm_bound(x, _c, _e),
        grad=(0,),
        torch=(lambda t, x, _e=_eps: t.nn.functional.layer_norm(x, x.shape[-1:], eps=_e))
        if _center
        else (lambda t, x, _e=_eps: t.nn.functional.rms_norm(x, x.shape[-1:], eps=_e)),
        zero_sign=False,
        label=_label,
    )
    row(
        "NormalizeBwd",
        (Arg("abi"), Arg("abi")),
        backward(_function),
        lambda x, dy, _c=_center, _e=_eps: _norm_grad(x, dy, _c, _e),
        extra=lambda x, dy, _c=_center, _e=_eps: [
            16
            * _parts(x, _c, _e)[1]
            * np.abs(dy).max(-1, keepdims=True, initial=0)
            * (4 + _norm_bound(x, _c, _e))
        ],
        stored=True,
        zero_sign=False,
        label=_label,
        grad=(0, 1),
    )

# ---- rows by index

for _dtype in ("int64", "int32"):
    row(
        "Take",
        (Arg("oic"), Arg("bd", dtype=f"labels:o:{_dtype}")),
        lambda g, x, at: aicf.take(x, at),
        lambda x, at: x[at.astype(int)] if len(x) else np.full((*at.shape, *x.shape[1:]), np.nan),
        grad=(0,),
        torch=lambda t, x, at: x[at.long()],
        label=_dtype,
    )

    def _scatter(x, at, dy):
        total, size = np.zeros(x.shape), np.zeros(x.shape)
        if len(x):
            np.add.at(total, at.astype(int), dy)
            np.add.at(size, at.astype(int), np.abs(dy))
        return total, size

    row(
        "TakeBwd",
        (Arg("oic"), Arg("bd", dtype=f"labels:o:{_dtype}"), Arg("bdic")),
        lambda g, x, at, dy: g.backward(aicf.take(x, at), [x], grad=dy)[x],
        lambda x, at, dy: _scatter(x, at, dy)[0],
        # Rows are added one after another: a rounding for each.
        extra=lambda x, at, dy: (16 + at.size) * _scatter(x, at, dy)[1],
        torch=lambda t, x, at, dy: t.zeros_like(x).index_put((at.long(),), dy, accumulate=True),
        zero_sign=False,
        label=_dtype,
        grad=(2,),
    )
    row(
        "Pick",
        (Arg("bc"), Arg("b", dtype=f"labels:c:{_dtype}")),
        lambda g, x, at: g._emit("Pick", [x, at])[0],
        lambda x, at: x[np.arange(len(x)), at.astype(int)],
        grad=(0,),
        torch=lambda t, x, at: x[t.arange(len(x)), at.long()],
        empty_error="c",
        label=_dtype,
    )

    def _spread_rows(x, at, dy):
        result = np.zeros(x.shape)
        result[np.arange(len(x)), at.astype(int)] = dy
        return [result]

    row(
        "PickBwd",
        (Arg("bc"), Arg("b", dtype=f"labels:c:{_dtype}"), Arg("b")),
        lambda g, x, at, dy: [g.backward(g._emit("Pick", [x, at])[0], [x], grad=dy)[x]],
        _spread_rows,
        empty_error="c",
        label=_dtype,
        grad=(2,),
    )
row(
    "Take",
    (Arg("oi", 0, 90), Arg("b", dtype="labels:o:int32")),
    lambda g, x, at: aicf.take(x, at),
    lambda x, at: x[at.astype(int)] if len(x) else np.zeros((*at.shape, *x.shape[1:])),
    dtypes=INTS,
    label="int",
)
row(
    "Take",
    (Arg("aio"), Arg("", dtype="labels:i:int64")),
    lambda g, x, at: aicf.take(x, at, axis=1),
    lambda x, at: x[:, int(at)] if x.shape[1] else np.full((len(x), x.shape[2]), np.nan),
    grad=(0,),
    torch=lambda t, x, at: x[:, int(at)],
    label="axis1",
)

# ---- random numbers: the generator is written here once more; test_random.py has its known answers

MASK = 0xFFFFFFFF
SEED = ("", 0, 2**40, "int64")


def philox_words(count, step, seed, stream):
    """The first `count` words of (seed, step, stream) from Philox-4x32-10, in plain Python."""
    key = (seed ^ ((stream + 1) * 0x9E3779B97F4A7C15)) % 2**64
    words = []
    for block in range(-(-count // 4)):
        c = [block & MASK, block >> 32, step & MASK, (step >> 32) & MASK]
        k = [key & MASK, key >> 32]
        for _ in range(10):
            high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [
                (high[1] >> 32) ^ c[1] ^ k[0],
                high[1] & MASK,
                (high[0] >> 32) ^ c[3] ^ k[1],
                high[0] & MASK,
            ]
            k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
        words += c
    return np.array(words[:count], np.uint64)


def uniforms(shape, seed, step, stream):
    words = philox_words(math.prod(shape), int(step), int(seed), stream)
    return ((words >> np.uint64(8)) * 2.0**-24).reshape(shape)


def normals(shape, seed, step, stream):
    count = math.prod(shape)
    words = philox_words(-(-count // 4) * 4, int(step), int(seed), stream).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log(((words[:, 0] >> np.uint64(8)) + np.uint64(1)) * 2.0**-24))
    angle = 2 * np.pi * (words[:, 1] >> np.uint64(8)) * 2.0**-24
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
    return pairs.reshape(-1)[:count].reshape(shape)


for _dtype in ("float32", "float64", "float16", "bfloat16"):
    row(
        "RandomUniform",
        (Arg(*SEED), Arg(*SEED)),
        lambda g, seed, step, _d=_dtype: g._emit(
            "RandomUniform", [seed, step], shape=[3, 7], dtype=_d, a=-1.0, b=2.0, stream=5
        ),
        lambda seed, step: [uniforms((3, 7), seed, step, 5) * 3 - 1],
        ulp=1,
        ulp64=2.0**30,  # drawn in float32
        extra=lambda seed, step: [2.0],
        dtypes=("int64",),
        result=_dtype,
        grad=RANDOM,
        zero_sign=False,
        label=_dtype,
    )
    row(
        "RandomNormal",
        (Arg(*SEED), Arg(*SEED)),
        lambda g, seed, step, _d=_dtype: g._emit(
            "RandomNormal", [seed, step], shape=[3, 7], dtype=_d, a=0.5, b=2.0, stream=1
        ),
        lambda seed, step: [normals((3, 7), seed, step, 1) * 2 + 0.5],
        ulp=1,
        ulp64=2.0**32,
        extra=lambda seed, step, _d=_dtype: [64.0 * (2.0**29 if _d == "float64" else 1)],
        dtypes=("int64",),
        result=_dtype,
        grad=RANDOM,
        zero_sign=False,
        label=_dtype,
    )


def _dropped(x, seed, step):
    kept = uniforms(x.shape, seed, step, 2).astype(np.float32) >= np.float32(0.3)
    return np.where(kept, x / (1 - 0.3), 0)


row(
    "Dropout",
    (Arg("abi"), Arg(*SEED), Arg(*SEED)),
    lambda g, x, seed, step: g._emit("Dropout", [x, seed, step], p=0.3, stream=2)[0],
    _dropped,
    ulp=1,
    grad=(0,),
    zero_sign=False,
)


def _ctc_paths(x, skip):
    """The log of the sum of paths into each state, and how much of it comes from each before."""
    paths = np.full(x.shape, -np.inf)
    share = np.zeros((*x.shape, x.shape[-1]))  # of paths at [t, n, from] in those at [.., to]
    for t, n in np.ndindex(x.shape[:2]):
        for s in range(x.shape[2]):
            if t == 0:
                paths[t, n, s] = x[t, n, s] if s < 2 else -np.inf
                continue
            before = [p for p in (s, s - 1, s - 2) if p >= 0 and (p > s - 2 or skip[n, s])]
            total = np.logaddexp.reduce(paths[t - 1, n, before])
            paths[t, n, s] = total + x[t, n, s]
            if total > -np.inf:
                share[t - 1, n, before, s] = np.exp(paths[t - 1, n, before] - total)
    return paths, share


def _ctc_slopes(x, skip, dy):
    paths, share = _ctc_paths(x, skip)
    slopes = np.where(paths > -np.inf, dy, 0.0)
    for t in range(x.shape[0] - 2, -1, -1):
        slopes[t] += (share[t] @ slopes[t + 1][..., None])[..., 0]
    return slopes


def _ctc_value(g, x, skip):
    """0 where no path is: nothing differs from minus infinity."""
    paths = g._emit("CtcPaths", [x, skip])[0]
    return aicf.where(paths > -1e30, paths, 0.0)


def _ctc_finite(x, skip):
    paths = _ctc_paths(x, skip)[0]
    return np.where(paths > -1e30, paths, 0.0)


def _ctc_rounding(x, skip):
    """Units that may be lost until each time: a step adds the largest of three paths, a log and x,
    so it rounds twice at the size of a path, and 8 times at the size of the log."""
    paths = np.abs(_ctc_paths(x, skip)[0])
    largest = np.where(np.isfinite(paths), paths, 0).max((1, 2), keepdims=True, initial=0)
    return 0 * x + (8 + 2 * largest).cumsum(0)


WIDE = {"dtypes": ("float32", "float64"), "ulp64": 16.0}
row(
    "CtcPaths",
    (Arg("iac"), Arg("ac", dtype="bool")),
    _ctc_value,
    _ctc_finite,
    ulp=2,
    extra=_ctc_rounding,
    grad=(0,),
    **WIDE,
)
row(
    "CtcPathsBwd",
    (Arg("iac"), Arg("ac", dtype="bool"), Arg("iac")),
    lambda g, x, skip, dy: g.backward(_ctc_value(g, x, skip), [x], grad=dy)[x],
    _ctc_slopes,
    ulp=2,
    extra=lambda x, skip, dy: (
        (64 + 4 * _ctc_rounding(x, skip).max(initial=0)) * (1 + _ctc_slopes(x, skip, abs(dy)))
    ),
    grad="no second derivative of ctc_loss is written down",
    zero_sign=False,
    **WIDE,
)

# ---- attention


def _attention(q, k, v, scale=0.5):
    """Weights, results."""
    scores = scale * q @ np.swapaxes(k, 2, 3)
    p = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    p = p / p.sum(-1, keepdims=True) if p.size else p
    return p, p @ v


def _attention_rounding(q, k, v, scale=0.5):
    """A score is off by about u of the sum of its terms' sizes, a weight by as much of itself."""
    terms = scale * np.abs(q) @ np.swapaxes(np.abs(k), 2, 3)
    return (8 + 2 * terms.max(-1, keepdims=True, initial=0)) * _attention(q, k, np.abs(v))[1]


def _attention_grads(q, k, v, dy, scale=0.5):
    p, _ = _attention(q, k, v, scale)
    dp = dy @ np.swapaxes(v, 2, 3)
    ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    return [ds @ k, np.swapaxes(ds, 2, 3) @ q, np.swapaxes(p, 2, 3) @ dy]


row(
    "Attention",
    (Arg("adic"), Arg("adoc"), Arg("adoc")),
    lambda g, q, k, v: _fused_attention(q, k, v, None, False, 0.5),
    lambda q, k, v: _attention(q, k, v)[1],
    extra=_attention_rounding,
    grad=(0, 1, 2),
    torch=lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5),
    dtypes=("float32", "float16", "bfloat16"),
    empty_error="cd",
    zero_sign=False,
    stored=True,  # on tensor cores the weights are
)
row(
    "AttentionBwd",
    (Arg("adic"), Arg("adoc"), Arg("adoc"), Arg("adic")),
    backward(lambda q, k, v: _fused_attention(q, k, v, None, False, 0.5), 3),
    _attention_grads,
    extra=lambda q, k, v, dy: 600.0,
    grad=(0, 1, 2, 3),
    dtypes=("float32", "float16", "bfloat16"),
    empty_error="cd",
    zero_sign=False,
    stored=True,
)
