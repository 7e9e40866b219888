"""Functions composed of several ops: values and gradients against NumPy and PyTorch in float64."""

import itertools
import math

import aicf
import array_cases  # noqa: F401  adds its rows
import indexing_cases  # noqa: F401  adds its rows
import numpy as np
import option_cases  # noqa: F401  adds its rows
import pool_cases  # noqa: F401  adds its rows
import pytest
import spatial_cases  # noqa: F401  adds its rows
from conftest import outputs_of, run_modes
from layer_cases import LAYERS, layer

# ---- references


def windows(x, kernel, stride, padding=0, dilation=1, fill=0.0):
    """[N, C, kh, kw, oh, ow], taken one by one."""
    (kh, kw), (sh, sw) = np.resize(kernel, 2), np.resize(stride, 2)
    (ph, pw), (dh, dw) = np.resize(padding, 2), np.resize(dilation, 2)
    x = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)], constant_values=fill)
    oh, ow = (x.shape[2] - (kh - 1) * dh - 1) // sh + 1, (x.shape[3] - (kw - 1) * dw - 1) // sw + 1
    result = np.empty((*x.shape[:2], kh, kw, oh, ow))
    for i, j, r, c in itertools.product(range(kh), range(kw), range(oh), range(ow)):
        result[:, :, i, j, r, c] = x[:, :, r * sh + i * dh, c * sw + j * dw]
    return result


def conv2d(x, w, b=None, stride=1, padding=0, dilation=1, groups=1):
    cut = windows(x, w.shape[2:], stride, padding, dilation)
    parts = [
        np.einsum("ncijrs,ocij->nors", c, k)
        for c, k in zip(np.split(cut, groups, 1), np.split(w, groups, 0), strict=True)
    ]
    return np.concatenate(parts, 1) + (0 if b is None else b[:, None, None])


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, axes=1, w=1.0, b=0.0, eps=1e-5):
    last = tuple(range(-axes, 0))
    centred = x - x.mean(last, keepdims=True)
    return centred / np.sqrt((centred**2).mean(last, keepdims=True) + eps) * w + b


def rms_norm(x, axes=1, w=1.0, eps=2.0**-52):
    return x / np.sqrt((x**2).mean(tuple(range(-axes, 0)), keepdims=True) + eps) * w


def attention(q, k, v, mask=None, causal=False, scale=None):
    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return softmax(scores) @ v


def batch_norm(x, w=None, b=None):
    axes = (0, *range(2, x.ndim))
    shape = [-1] + [1] * (x.ndim - 2)
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    return y if w is None else y * w.reshape(shape) + b.reshape(shape)


# ---- indexing and movement

KEYS = {
    "int": 2,
    "negative_int": (slice(None), -1),
    "all_ints": (1, 2, -3),
    "range": slice(1, 3),
    "steps": (slice(None, None, 2), slice(1, None, 3)),
    "reversed": (slice(None, None, -1), Ellipsis, slice(4, 0, -2)),
    "ellipsis": (Ellipsis, 0),
    "new_axes": (None, slice(0, 2), None, 1),
    "large_bounds": (slice(-100, 100), slice(3, 99)),
    "whole": Ellipsis,
}
for _name, _key in KEYS.items():
    layer(
        f"index_{_name}",
        {"x": (4, 5, 6)},
        lambda x, _k=_key: x[_k],
        lambda x, _k=_key: x[_k],
        None if "reversed" in _name else lambda t, F, x, _k=_key: x[_k],
    )
layer(
    "slice",
    {"x": (4, 5, 6)},
    lambda x: aicf.slice(x, (0, 4, 1), (4, 0, 5), (1, -2, 3)),
    lambda x: x[0:4, 4:0:-2, 1:5:3],
)
layer(
    "concat",
    {"a": (2, 3), "b": (2, 1), "c": (2, 4)},
    lambda a, b, c: aicf.concat([a, b, c, a], axis=-1),
    lambda a, b, c: np.concatenate([a, b, c, a], -1),
    lambda t, F, a, b, c: t.cat([a, b, c, a], -1),
)
layer(
    "concat_many",
    {"a": (2, 3), "b": (1, 3)},
    lambda a, b: aicf.concat([a, b] * 19),
    lambda a, b: np.concatenate([a, b] * 19),
    lambda t, F, a, b: t.cat([a, b] * 19),
)
for _axis in (0, 1, -1):
    layer(
        f"stack{_axis}",
        {"a": (2, 3), "b": (2, 3), "c": (2, 3)},
        lambda a, b, c, _a=_axis: aicf.stack([a, b, c], _a),
        lambda a, b, c, _a=_axis: np.stack([a, b, c], _a),
        lambda t, F, a, b, c, _a=_axis: t.stack([a, b, c], _a),
    )
layer(
    "split_equal",
    {"x": (4, 6)},
    lambda x: aicf.split(x, 3, axis=1)[1] * aicf.split(x, 3, axis=1)[2],
    lambda x: x[:, 2:4] * x[:, 4:],
    lambda t, F, x: x.chunk(3, 1)[1] * x.chunk(3, 1)[2],
)
layer(
    "split_sizes",
    {"x": (6, 2)},
    lambda x: aicf.concat(aicf.split(x, [3, 1, 2])[::-1]),
    lambda x: np.concatenate([x[4:], x[3:4], x[:3]]),
    lambda t, F, x: t.cat(x.split([3, 1, 2])[::-1]),
)
layer(
    "pad",
    {"x": (2, 3, 4)},
    lambda x: aicf.pad(x, [(1, 0), (0, 2), (3, 1)], value=-1.5),
    lambda x: np.pad(x, [(1, 0), (0, 2), (3, 1)], constant_values=-1.5),
    lambda t, F, x: F.pad(x, (3, 1, 0, 2, 1, 0), value=-1.5),
)
layer(
    "squeeze_expand",
    {"x": (2, 1, 3)},
    lambda x: aicf.expand_dims(aicf.squeeze(x), -1) * aicf.flatten(x, 1)[:, :, None],
    lambda x: (x[:, 0] * x[:, 0])[..., None],
    lambda t, F, x: x.squeeze().unsqueeze(-1) * x.flatten(1)[:, :, None],
)
INDICES = np.array([[0, 3], [3, 1], [3, 3]])
for _axis in (0, 1, 2, -2):
    layer(
        f"take{_axis}",
        lambda rng: {"x": rng.uniform(-2, 2, (4, 5, 4)), "i": INDICES},
        lambda x, i, _a=_axis: aicf.take(x, i, _a),
        lambda x, i, _a=_axis: np.take(x, i, _a),
        lambda t, F, x, i, _a=_axis: x.index_select(_a, i.reshape(-1)).unflatten(
            _a if _a >= 0 else _a + 3, i.shape
        ),
    )
layer(
    "embedding",
    lambda rng: {"w": rng.uniform(-2, 2, (7, 3)), "i": rng.integers(0, 7, (4, 5))},
    lambda w, i: aicf.embedding(i, w),
    lambda w, i: w[i],
    lambda t, F, w, i: F.embedding(i, w),
)

# ---- reductions

for _axis in (None, 0, -1, (0, 2)):
    for _correction in (0, 1):
        layer(
            f"var_{_axis}_{_correction}".replace(" ", ""),
            {"x": (3, 4, 5)},
            lambda x, _a=_axis, _c=_correction: aicf.var(x, _a, _c),
            lambda x, _a=_axis, _c=_correction: x.var(axis=_a, ddof=_c),
            lambda t, F, x, _a=_axis, _c=_correction: t.var(x, _a, correction=_c),
        )
    layer(
        f"logsumexp_{_axis}".replace(" ", ""),
        {"x": (3, 4, 5)},
        lambda x, _a=_axis: aicf.logsumexp(x * 40.0, _a),
        lambda x, _a=_axis: (
            np.logaddexp.reduce(x * 40, axis=_a if _a != (0, 2) else 0)
            if _a != (0, 2) and _a is not None
            else np.log(np.exp(x * 40 - 80).sum(_a)) + 80
        ),
        lambda t, F, x, _a=_axis: t.logsumexp(x * 40, (0, 1, 2) if _a is None else _a),
    )
for _axis in (0, 1, -1):
    layer(
        f"cumsum{_axis}",
        {"x": (3, 4, 5)},
        lambda x, _a=_axis: aicf.cumsum(x, _a),
        lambda x, _a=_axis: x.cumsum(_a),
        lambda t, F, x, _a=_axis: x.cumsum(_a),
    )
layer(
    "min",
    {"x": (3, 4, 5)},
    lambda x: aicf.min(x, (0, 2)),
    lambda x: x.min((0, 2)),
    lambda t, F, x: x.amin((0, 2)),
)

# ---- layers

for _label, _x, _w in (("cube", (2, 3, 5), (4, 5)), ("deep", (2, 3, 2, 5), (4, 5))):
    layer(
        f"linear_{_label}",
        {"x": _x, "w": _w, "b": (4,)},
        lambda x, w, b: aicf.linear(x, w, b),
        lambda x, w, b: x @ w.T + b,
        lambda t, F, x, w, b: F.linear(x, w, b),
    )
for _label, _a, _b in (
    ("batched", (2, 3, 4, 5), (2, 3, 5, 6)),
    ("broadcast", (2, 1, 4, 5), (3, 5, 6)),
    ("one_side", (3, 4, 5), (5, 6)),
):
    layer(
        f"matmul_{_label}",
        {"a": _a, "b": _b},
        lambda a, b: a @ b,
        lambda a, b: a @ b,
        lambda t, F, a, b: a @ b,
    )
layer(
    "layer_norm",
    {"x": (4, 3, 6), "w": (6,), "b": (6,)},
    lambda x, w, b: aicf.layer_norm(x, (6,), w, b),
    lambda x, w, b: layer_norm(x, 1, w, b),
    lambda t, F, x, w, b: F.layer_norm(x, (6,), w, b),
)
layer(
    "layer_norm_two_axes",
    {"x": (4, 3, 6), "w": (3, 6), "b": (3, 6)},
    lambda x, w, b: aicf.layer_norm(x, (3, 6), w, b, eps=0.1),
    lambda x, w, b: layer_norm(x, 2, w, b, 0.1),
    lambda t, F, x, w, b: F.layer_norm(x, (3, 6), w, b, eps=0.1),
)
layer(
    "rms_norm",
    {"x": (4, 3, 6), "w": (6,)},
    lambda x, w: aicf.rms_norm(x, 6, w),
    lambda x, w: rms_norm(x, 1, w),
    lambda t, F, x, w: F.rms_norm(x, (6,), w),
)
layer(
    "rms_norm_eps",
    {"x": (4, 3, 6)},
    lambda x: aicf.rms_norm(x, (3, 6), eps=0.25),
    lambda x: rms_norm(x, 2, eps=0.25),
    lambda t, F, x: F.rms_norm(x, (3, 6), eps=0.25),
)
_QKV = {"q": (2, 3, 5, 4), "k": (2, 3, 6, 4), "v": (2, 3, 6, 7)}
layer(
    "attention",
    _QKV,
    aicf.scaled_dot_product_attention,
    attention,
    lambda t, F, q, k, v: F.scaled_dot_product_attention(q, k, v),
)
layer(
    "attention_causal_scale",
    _QKV,
    lambda q, k, v: aicf.scaled_dot_product_attention(q, k, v, causal=True, scale=0.3),
    lambda q, k, v: attention(q, k, v, causal=True, scale=0.3),
    lambda t, F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
)
layer(
    "attention_float_mask",
    {**_QKV, "m": (3, 5, 6)},
    lambda q, k, v, m: aicf.scaled_dot_product_attention(q, k, v, m),
    lambda q, k, v, m: attention(q, k, v, m),
    lambda t, F, q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
)
layer(
    "attention_bool_mask",
    lambda rng: {
        **{k: rng.uniform(-2, 2, s) for k, s in _QKV.items()},
        "m": (rng.random((2, 1, 5, 6)) < 0.6) | (np.arange(6) == 2),
    },
    lambda q, k, v, m: aicf.scaled_dot_product_attention(q, k, v, m),
    lambda q, k, v, m: attention(q, k, v, m),
    lambda t, F, q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
)

for _label, _x, _w, _options in (
    ("plain", (2, 3, 6, 7), (4, 3, 3, 2), {}),
    ("pointwise", (2, 3, 4, 5), (4, 3, 1, 1), {}),
    ("stride", (2, 3, 7, 8), (4, 3, 3, 2), {"stride": (2, 3)}),
    ("padding", (2, 3, 5, 6), (4, 3, 3, 2), {"padding": (1, 2), "stride": 2}),
    ("dilation", (2, 3, 8, 9), (4, 3, 3, 2), {"dilation": (2, 3), "padding": 1}),
    ("groups", (2, 6, 5, 6), (4, 3, 3, 2), {"groups": 2, "padding": 1}),
    ("depthwise", (2, 3, 5, 6), (6, 1, 2, 2), {"groups": 3, "stride": 2, "dilation": 2}),
):
    layer(
        f"conv2d_{_label}",
        {"x": _x, "w": _w, "b": (_w[0],)},
        lambda x, w, b, _o=_options: aicf.conv2d(x, w, b, **_o),
        lambda x, w, b, _o=_options: conv2d(x, w, b, **_o),
        lambda t, F, x, w, b, _o=_options: F.conv2d(x, w, b, **_o),
    )
for _label, _kernel, _options in (
    ("plain", 2, {}),
    ("overlap", (3, 2), {"stride": (1, 2)}),
    ("padding", 3, {"stride": 2, "padding": (1, 0)}),
    ("dilation", 2, {"stride": 1, "dilation": (2, 3)}),
):
    layer(
        f"max_pool2d_{_label}",
        {"x": (2, 3, 6, 7)},
        lambda x, _k=_kernel, _o=_options: aicf.max_pool2d(x, _k, **_o),
        lambda x, _k=_kernel, _o=_options: windows(x, _k, **{"stride": _k, **_o}, fill=-np.inf).max(
            (2, 3)
        ),
        lambda t, F, x, _k=_kernel, _o=_options: F.max_pool2d(x, _k, **_o),
    )
    if "dilation" not in _options:
        layer(
            f"avg_pool2d_{_label}",
            {"x": (2, 3, 6, 7)},
            lambda x, _k=_kernel, _o=_options: aicf.avg_pool2d(x, _k, **_o),
            lambda x, _k=_kernel, _o=_options: windows(x, _k, **{"stride": _k, **_o}).mean((2, 3)),
            lambda t, F, x, _k=_kernel, _o=_options: F.avg_pool2d(x, _k, **_o),
        )
layer(
    "max_pool2d_ties",
    lambda rng: {"x": np.round(rng.uniform(-1, 1, (2, 3, 6, 7)))},
    lambda x: aicf.max_pool2d(x, 3, stride=1),
    lambda x: windows(x, 3, 1).max((2, 3)),
    lambda t, F, x: F.max_pool2d(x, 3, stride=1),
    smooth=False,
)

# ---- losses

layer(
    "nll_loss",
    lambda rng: {"x": rng.uniform(-2, 2, (5, 4)), "i": rng.integers(0, 4, 5)},
    lambda x, i: aicf.nll_loss(aicf.log_softmax(x), i),
    lambda x, i: -np.log(softmax(x))[np.arange(5), i].mean(),
    lambda t, F, x, i: F.nll_loss(F.log_softmax(x, -1), i),
)
layer(
    "binary_cross_entropy",
    lambda rng: {"x": rng.uniform(-30, 30, (5, 4)), "t": rng.uniform(0, 1, (5, 4))},
    lambda x, t: aicf.binary_cross_entropy_with_logits(x, t),
    lambda x, t: (np.maximum(x, 0) - x * t + np.log1p(np.exp(-np.abs(x)))).mean(),
    lambda torch, F, x, t: F.binary_cross_entropy_with_logits(x, t),
)
layer(
    "binary_cross_entropy_zero",
    lambda rng: {"x": np.array([0.0, -0.0, 0.0]), "t": np.array([0.0, 1.0, 0.5])},
    lambda x, t: aicf.binary_cross_entropy_with_logits(x, t),
    lambda x, t: (np.maximum(x, 0) - x * t + np.log1p(np.exp(-np.abs(x)))).mean(),
    lambda torch, F, x, t: F.binary_cross_entropy_with_logits(x, t),
)
for _delta in (1.0, 0.4):
    layer(
        f"huber_{_delta}",
        {"y": (5, 4), "z": (5, 4)},
        lambda y, z, _d=_delta: aicf.huber_loss(y, z, _d),
        lambda y, z, _d=_delta: np.where(
            np.abs(y - z) <= _d, (y - z) ** 2 / 2, _d * (np.abs(y - z) - _d / 2)
        ).mean(),
        lambda t, F, y, z, _d=_delta: F.huber_loss(y, z, delta=_d),
    )


def layers(keep=lambda case: True):
    chosen = [case for case in LAYERS if keep(case)]
    return pytest.mark.parametrize("case", chosen, ids=[case.name for case in chosen])


def with_gradients(case, arrays, device, dy=None):
    def build(g, **values):
        seed = values.pop("_dy", None)
        floats = [name for name in values if values[name].dtype.startswith("float")]
        wrt = [name for name in floats if name not in case.fixed]
        y = case.build(**values)
        if seed is None:
            return {"y": y}
        grads = g.backward(y, [values[name] for name in wrt], grad=seed)
        return {"y": y, **{f"d{name}": grads[values[name]] for name in wrt}}

    return run_modes(build, {**arrays, **({} if dy is None else {"_dy": dy})}, device)


@layers()
def test_value(case, device, make_rng):
    """float64 and float32 against NumPy."""
    arrays = case.arrays(make_rng(1))
    want = np.asarray(case.numpy(**arrays))
    got = with_gradients(case, arrays, device)["y"]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    narrow = {k: a.astype(np.float32) if a.dtype == np.float64 else a for k, a in arrays.items()}
    exact = {k: a.astype(np.float64) if a.dtype == np.float32 else a for k, a in narrow.items()}
    got = with_gradients(case, narrow, device)["y"]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, case.numpy(**exact), rtol=3e-5, atol=3e-5)


# Where the reference has kinks, PyTorch's autograd is the test.
@layers(lambda case: case.smooth and not case.name.endswith("zero"))
def test_gradient_by_differences(case, device, make_rng):
    rng = make_rng(2)
    arrays = case.arrays(rng)
    dy = rng.uniform(-1, 1, np.shape(case.numpy(**arrays)))
    got = with_gradients(case, arrays, device, np.asarray(dy))
    h = 1e-6
    for name in case.floats(arrays):
        want = np.zeros(arrays[name].shape)
        for at in np.ndindex(want.shape):
            sides = []
            for sign in (1, -1):
                moved = {k: a.copy() for k, a in arrays.items()}
                moved[name][at] += sign * h
                sides.append((case.numpy(**moved) * dy).sum())
            want[at] = (sides[0] - sides[1]) / (2 * h)
        scale = max(1.0, np.abs(want).max(initial=0))
        np.testing.assert_allclose(got[f"d{name}"], want, rtol=0, atol=2e-7 * scale, err_msg=name)


@layers(lambda case: case.torch)
def test_value_and_gradient_by_torch(case, device, make_rng):
    """float64, PyTorch's formulas and default values."""
    torch = pytest.importorskip("torch")
    rng = make_rng(3)
    arrays = case.arrays(rng)
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    for name in case.floats(arrays):
        tensors[name].requires_grad_()
    y = case.torch(torch, torch.nn.functional, **tensors)
    dy = np.asarray(rng.uniform(-1, 1, tuple(y.shape)))
    wanted = torch.autograd.grad(
        y, [tensors[name] for name in case.floats(arrays)], torch.from_numpy(dy), allow_unused=True
    )
    got = with_gradients(case, arrays, device, dy)
    np.testing.assert_allclose(got["y"], y.detach().numpy(), rtol=1e-11, atol=1e-12)
    for name, grad in zip(case.floats(arrays), wanted, strict=True):
        want = torch.zeros_like(tensors[name]) if grad is None else grad
        np.testing.assert_allclose(
            got[f"d{name}"], want.numpy(), rtol=1e-10, atol=1e-11, err_msg=f"d{name}"
        )


# ---- batch norm: running statistics are state


def batch_norm_step(shape, device, training, dtype="float64", affine=True):
    g = aicf.Graph("batch_norm")
    channels = shape[1]
    x, dy = g.input("x", shape, dtype), g.input("dy", shape, dtype)
    mean = g.state("mean", (channels,), dtype)
    var = g.state("var", (channels,), dtype, init=aicf.init.ones())
    w = g.input("w", (channels,), dtype) if affine else None
    b = g.input("b", (channels,), dtype) if affine else None
    y = aicf.batch_norm(x, mean, var, w, b, training=training)
    wrt = [x, w, b] if affine else [x]
    grads = g.backward(y, wrt, grad=dy)
    g.output("y", y)
    for value in wrt:
        g.output(f"d{value.name}", grads[value])
    return g.compile(device=device)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape, training, device, make_rng):
    """Training and inference over several steps, the running statistics included."""
    torch = pytest.importorskip("torch")
    rng = make_rng(4)
    step = batch_norm_step(shape, device, training)
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    if not training:
        mean, var = (
            torch.from_numpy(rng.normal(size=3)),
            torch.from_numpy(rng.uniform(0.5, 2, 3)),
        )
        step.state["mean"], step.state["var"] = mean.numpy(), var.numpy()
    for _ in range(5):
        arrays = {"x": rng.normal(1, 2, shape), "dy": rng.normal(size=shape)}
        arrays |= {"w": rng.normal(size=3), "b": rng.normal(size=3)}
        t = {name: torch.from_numpy(a).requires_grad_(name != "dy") for name, a in arrays.items()}
        y = torch.nn.functional.batch_norm(t["x"], mean, var, t["w"], t["b"], training=training)
        grads = torch.autograd.grad(y, [t["x"], t["w"], t["b"]], t["dy"])
        out = outputs_of(step(**arrays))
        np.testing.assert_allclose(out["y"], y.detach().numpy(), rtol=1e-11, atol=1e-12)
        for name, want in zip(("x", "w", "b"), grads, strict=True):
            np.testing.assert_allclose(out[f"d{name}"], want.numpy(), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(step.state["mean"].numpy(), mean.numpy(), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(step.state["var"].numpy(), var.numpy(), rtol=1e-12, atol=1e-14)


def test_batch_norm_numpy(device, make_rng):
    """Value and running statistics by their definition, without PyTorch."""
    rng = make_rng(5)
    step = batch_norm_step((6, 3, 2, 4), device, True, affine=False)
    mean, var = np.zeros(3), np.ones(3)
    for _ in range(3):
        x = rng.normal(1, 2, (6, 3, 2, 4))
        out = step(x=x, dy=x)
        np.testing.assert_allclose(out["y"].numpy(), batch_norm(x), rtol=1e-11, atol=1e-12)
        mean = 0.9 * mean + 0.1 * x.mean((0, 2, 3))
        var = 0.9 * var + 0.1 * x.var((0, 2, 3), ddof=1)
        np.testing.assert_allclose(step.state["mean"].numpy(), mean, rtol=1e-12)
        np.testing.assert_allclose(step.state["var"].numpy(), var, rtol=1e-12)


def test_batch_norm_train_and_eval_share_statistics(device, make_rng):
    """The inference step reads what the training step wrote."""
    rng = make_rng(6)

    def make(training):
        g = aicf.Graph("train" if training else "eval")
        x = g.input("x", (8, 3), "float64")
        mean, var = g.state("mean", (3,), "float64"), g.state("var", (3,), "float64")
        g.output("y", aicf.batch_norm(x, mean, var, training=training))
        return g

    train = make(True).compile(device=device)
    infer = make(False).compile(device=device, share=train)
    for _ in range(100):
        train(x=rng.normal([1, 2, 3], [1, 2, 3], (8, 3)))
    x = rng.normal(size=(8, 3))
    mean, var = (train.state[name].numpy() for name in ("mean", "var"))
    np.testing.assert_allclose(
        infer(x=x)["y"].numpy(), (x - mean) / np.sqrt(var + 1e-5), rtol=1e-12
    )
    np.testing.assert_array_equal(infer.state["mean"].numpy(), mean)


# ---- indices and edges


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_argmax(dtype, device, make_rng):
    """The first largest element, the first NaN before all; flattened without an axis."""
    rng = make_rng(7)
    x = np.round(rng.uniform(-2, 2, (3, 4, 5)))
    for axis, keepdims in ((None, False), (0, False), (1, True), (-1, False)):
        got = run_modes(
            lambda g, x, a=axis, k=keepdims: {"i": aicf.argmax(x, a, k)},
            {"x": x.astype(dtype)},
            device,
        )["i"]
        want = x.argmax(axis=axis, keepdims=keepdims)
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, want)
    x[1, 2, 3], x[1, 2, 1] = np.nan, np.nan
    got = run_modes(lambda g, x: {"i": aicf.argmax(x, 2)}, {"x": x}, device)["i"]
    np.testing.assert_array_equal(got, x.argmax(2))


@pytest.mark.parametrize("index", [-1, 4, 2**31 - 1, -(2**31)])
def test_take_out_of_range(index, device):
    """NaN (0 for integers), no gradient, and nothing is read there."""
    table = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    indices = np.array([1, index, 3], np.int32)

    def build(g, x, whole, i):
        y = aicf.take(x, i)
        return {"y": y, "z": aicf.take(whole, i), "dx": g.backward(y, [x], grad=y)[x]}

    whole = np.arange(12).reshape(4, 3)
    got = run_modes(build, {"x": table, "whole": whole, "i": indices}, device, checks="off")
    assert np.isnan(got["y"][1]).all() and not got["z"][1].any()
    np.testing.assert_array_equal(got["y"][[0, 2]], table[[1, 3]])
    want = np.zeros((4, 3), np.float32)
    want[[1, 3]] = table[[1, 3]]
    np.testing.assert_array_equal(got["dx"], want)


def test_embedding_gradient_is_deterministic(device, make_rng):
    """Rows that occur thousands of times sum to the same bits, however many threads add them."""
    rng = make_rng(8)
    indices = rng.integers(0, 5, 20000).astype(np.int32)
    dy = rng.normal(size=(20000, 3)).astype(np.float32)

    def build(g, i, dy):
        w = g.param("w", (7, 3))
        return {"dw": g.backward(aicf.embedding(i, w), [w], grad=dy)[w]}

    results = []
    try:
        for threads in (1, 2, 5):
            aicf.set_num_threads(threads)
            results.append(run_modes(build, {"i": indices, "dy": dy}, device)["dw"])
    finally:
        aicf.set_num_threads(0)
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
    want = np.zeros((7, 3))
    np.add.at(want, indices, dy.astype(np.float64))
    np.testing.assert_allclose(results[0], want, atol=2e-3)
    assert not results[0][5:].any()


def test_logsumexp_infinite(device):
    """Rows of -inf, +inf and large numbers, as PyTorch's."""
    x = np.array([[-np.inf, -np.inf], [np.inf, 1], [1e4, 1e4], [-np.inf, 3]], np.float32)
    got = run_modes(lambda g, x: {"y": aicf.logsumexp(x, 1)}, {"x": x}, device)["y"]
    np.testing.assert_allclose(got, [-np.inf, np.inf, 1e4 + math.log(2), 3], rtol=1e-6)


def test_detach(device):
    x = np.array([1.0, 2.0, 3.0])

    def build(g, x):
        y = x * aicf.detach(x)
        return {"dx": g.backward(y.sum(), [x])[x]}

    np.testing.assert_array_equal(run_modes(build, {"x": x}, device)["dx"], x)


def test_huber_at_its_corner(device):
    """|d| == delta belongs to the parabola; both sides have the same slope there."""
    d = np.array([-1.0, 1.0, 0.0, -0.0])

    def build(g, y):
        loss = aicf.huber_loss(y, aicf.mul(y, 0.0))
        return {"loss": loss, "dy": g.backward(loss, [y])[y]}

    got = run_modes(build, {"y": d}, device)
    assert got["loss"] == 0.25
    np.testing.assert_array_equal(got["dy"], d / 4)


def test_avg_pool_counts_padding(device):
    x = np.ones((1, 1, 2, 2))
    got = run_modes(lambda g, x: {"y": aicf.avg_pool2d(x, 2, 2, padding=1)}, {"x": x}, device)["y"]
    np.testing.assert_array_equal(got, np.full((1, 1, 2, 2), 0.25))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda x: x[9], aicf.ShapeError, "index: 9 on axis 0"),
        (lambda x: x[0, 0, 0, 0], aicf.ShapeError, "at most 3 indices"),
        (lambda x: x[..., ...], aicf.ShapeError, "one ..."),
        (lambda x: x["a"], aicf.GraphError, "arrays, lists or Values of ints"),
        (lambda x: x[True], aicf.GraphError, "ints, slices"),
        (lambda x: aicf.concat([]), aicf.GraphError, "at least one"),
        (lambda x: aicf.concat([x, x[0]]), aicf.ShapeError, "equal sizes"),
        (lambda x: aicf.stack([x], 9), aicf.ShapeError, "axis 9"),
        (lambda x: aicf.split(x, 3), aicf.ShapeError, "divisor of 4"),
        (lambda x: aicf.split(x, [1, 1]), aicf.ShapeError, "sum of 4"),
        (lambda x: aicf.pad(x, [(1, 1)]), aicf.ShapeError, "3 pairs"),
        (lambda x: aicf.take(x, x), aicf.DTypeError, "int32 or int64"),
        (lambda x: aicf.squeeze(x, 0), aicf.ShapeError, "axes of size 1"),
        (lambda x: aicf.layer_norm(x, (5,)), aicf.ShapeError, "its last sizes"),
        (lambda x: aicf.conv2d(x, x), aicf.ShapeError, "rank 4"),
        (lambda x: aicf.max_pool2d(x, 99), aicf.ShapeError, "need it to fit"),
        (lambda x: aicf.max_pool2d(x, (1, 2, 3)), aicf.ShapeError, "an int or two"),
        (lambda x: aicf.max_pool2d(x, 0), aicf.ShapeError, "sizes >= 1"),
        (lambda x: aicf.dropout(x, 1.5), aicf.GraphError, "probability"),
        (lambda x: aicf.cumsum(x, 7), aicf.ShapeError, "axis"),
        (lambda x: aicf.argmax(x, 7), aicf.ShapeError, "axis"),
        (lambda x: aicf.celu(x, -1.0), aicf.GraphError, "alpha > 0"),
        (lambda x: aicf.huber_loss(x, x, delta=0.0), aicf.GraphError, "delta > 0"),
        (lambda x: aicf.mse_loss(x, x[0], "sum"), aicf.ShapeError, "equal shapes"),
        (lambda x: aicf.cross_entropy(x, x, x[0, 0]), aicf.ShapeError, r"weight .* need \[5\]"),
    ],
)
def test_misuse(call, error, text):
    x = aicf.Graph("misuse").input("x", (4, 5, 6))
    with pytest.raises(error, match=text.replace("...", r"\.\.\.")):
        call(x)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"reduction": "sum"}])
def test_a_label_out_of_range_costs_its_own_row_alone_the_gradient(options, device):
    """With weights too, whose mean has no count for such a row."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4) % 5
    arrays = {"x": x, "i": np.array([0, 5, 2]), "w": np.array([1, 2, 3, 4], np.float32)}

    def build(g, x, i, w):
        loss = aicf.cross_entropy(x, i, w, **options)
        return {"loss": loss, "dx": g.backward(loss, [x])[x]}

    got = run_modes(build, arrays, device, checks="off")
    assert np.isnan(got["loss"])
    rest = run_modes(build, arrays | {"x": x[[0, 2]], "i": np.array([0, 2])}, device)["dx"]
    np.testing.assert_allclose(got["dx"][[0, 2]], rest, rtol=1e-6)
    assert not got["dx"][1].any()


def test_binary_cross_entropy_at_infinity():
    """The limits of value and gradient; PyTorch makes some of them NaN."""
    x = np.array([np.inf, np.inf, -np.inf, -np.inf, np.inf, -np.inf], np.float32)
    t = np.array([1, 0, 0, 1, 0.25, 0.25], np.float32)
    want = np.array([0, np.inf, 0, np.inf, np.inf, np.inf], np.float32)
    slope = np.array([0, 1, 0, -1, 0.75, -0.25], np.float32)
    for i in range(len(x)):
        g = aicf.Graph("bce")
        logits, targets = g.input("x", (1,)), g.input("t", (1,))
        loss = aicf.binary_cross_entropy_with_logits(logits, targets)
        g.output("loss", loss)
        g.output("dx", g.backward(loss, [logits])[logits])
        out = g.compile(device="cpu")(x=x[i : i + 1], t=t[i : i + 1])
        assert out["loss"] == want[i] and out["dx"] == slope[i], (x[i], t[i])
