"""Layers with random parts, attention of several heads, convolutions of volumes in a batch."""

import json

import aicf
import numpy as np
import pytest
from conftest import outputs_of, run_modes

LEAST = -1.7580993408473766


def run(build, device="cpu", **arrays):
    g = aicf.Graph("g")
    values = {name: g.input(name, a.shape, str(a.dtype)) for name, a in arrays.items()}
    for name, value in build(**values).items():
        g.output(name, value)
    return outputs_of(g.compile(device=device)(**arrays))


@pytest.mark.parametrize(
    "name, shape, axes",
    [
        ("dropout1d", (40, 50, 6), 2),
        ("dropout1d", (300, 6), 1),
        ("dropout2d", (40, 50, 3, 4), 2),
        ("dropout2d", (40, 50, 3), 2),
        ("dropout3d", (40, 50, 2, 3, 2), 2),
        ("dropout3d", (300, 2, 3, 2), 1),
    ],
)
def test_channels_are_dropped_whole(name, shape, axes, device, rng):
    x = rng.standard_normal(shape).astype(np.float32)

    def build(x):
        y = getattr(aicf, name)(x, 0.25)
        return {
            "y": y,
            "dx": aicf.grad(aicf.sum(y), x),
            "same": getattr(aicf, name)(x, 0.25, False),
        }

    got = run(build, device, x=x)
    kept = got["dx"].reshape(*shape[:axes], -1)
    assert np.ptp(kept, axis=-1).max() == 0, "one number for each channel"
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)}
    share = (kept[..., 0] == 0).mean()
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / kept[..., 0].size), share
    np.testing.assert_allclose(got["y"], x * got["dx"], rtol=1e-6)
    np.testing.assert_array_equal(got["same"], x)


@pytest.mark.parametrize("name", ["alpha_dropout", "feature_alpha_dropout"])
def test_alpha_dropout(name, device, rng):
    x = rng.standard_normal((80, 90, 5)).astype(np.float32)
    p = 0.2

    def build(x):
        y = getattr(aicf, name)(x, p, training=True)
        return {"y": y, "dx": aicf.grad(aicf.sum(y), x), "same": getattr(aicf, name)(x, p)}

    got = run(build, device, x=x)
    scale = 1 / np.sqrt((1 - p) * (1 + p * LEAST**2))
    kept = got["dx"] != 0
    want = scale * np.where(kept, x, LEAST) - scale * p * LEAST
    np.testing.assert_allclose(got["y"], want, rtol=1e-5, atol=1e-6)
    of = kept[..., 0] if name.startswith("feature") else kept
    if name.startswith("feature"):
        assert (kept == kept[..., :1]).all()
    assert abs(1 - of.mean() - p) < 4 * np.sqrt(p * (1 - p) / of.size)
    assert abs(got["y"].mean()) < 0.05 and abs(got["y"].std() - 1) < 0.05
    np.testing.assert_array_equal(got["same"], x)


def test_rrelu(device, rng):
    x = rng.standard_normal((300, 40)).astype(np.float32)

    def build(x):
        y = aicf.rrelu(x, 0.1, 0.4, training=True)
        return {"y": y, "dx": aicf.grad(aicf.sum(y), x), "mean": aicf.rrelu(x, 0.1, 0.4)}

    got = run(build, device, x=x)
    low = x <= 0
    slopes = got["dx"][low]
    assert (got["dx"][~low] == 1).all() and slopes.min() >= 0.1 and slopes.max() < 0.4
    assert abs(slopes.mean() - 0.25) < 4 * 0.3 / np.sqrt(12 * slopes.size)
    np.testing.assert_allclose(got["y"], x * got["dx"], rtol=1e-6)
    np.testing.assert_allclose(got["mean"], np.where(low, 0.25 * x, x), rtol=1e-6)


def test_misuse():
    g = aicf.Graph("g")
    x = g.input("x", (3,))
    for call, kind, text in (
        (lambda: aicf.dropout1d(x), aicf.ShapeError, "dropout1d: x is .*; need rank 2 or 3"),
        (lambda: aicf.dropout2d(x), aicf.ShapeError, "dropout2d: x is .*; need rank 4"),
        (lambda: aicf.feature_alpha_dropout(x, 0.5, True), aicf.ShapeError, "need .N, C, ...."),
        (lambda: aicf.alpha_dropout(x, 1.5, True), aicf.GraphError, "p is 1.5; need 0 <= p <= 1"),
        (lambda: aicf.rrelu(x, 0.5, 0.1), aicf.GraphError, "lower is 0.5, upper 0.1"),
    ):
        with pytest.raises(kind, match=text):
            call()


# ---- attention of several heads


def heads(rng, length=5, size=6, count=3, width=8, single=False):
    shape = lambda *sizes: rng.standard_normal(sizes)  # noqa: E731
    lead = () if single else (count,)
    return {
        "query": shape(length, *lead, width), "key": shape(size, *lead, width),
        "value": shape(size, *lead, width), "in_proj_weight": shape(3 * width, width),
        "in_proj_bias": shape(3 * width), "out_proj_weight": shape(width, width),
        "out_proj_bias": shape(width),
    }  # fmt: skip


OPTIONS = {
    "plain": {},
    "single": {"single": True},
    "each": {"average_attn_weights": False},
    "no_weights": {"need_weights": False},
    "more": {"bias": True, "add_zero_attn": True},
    "hidden": {"attn": "bool", "padding": "bool"},
    "added": {"attn": "float", "padding": "float", "need_weights": False},
    "seen": {"attn": "bool", "padding": "bool", "need_weights": False},
    "seen_and_more": {"attn": "bool", "bias": True, "add_zero_attn": True, "need_weights": False},
    "padded": {"padding": "bool", "need_weights": False},
    "each_head": {"attn": "heads", "bias": True},
    "separate": {"separate": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_several_heads(name, device, rng):
    torch = pytest.importorskip("torch")
    options = dict(OPTIONS[name])
    single = options.pop("single", False)
    arrays = heads(rng, single=single)
    if options.pop("bias", False):
        arrays |= {
            "bias_k": rng.standard_normal((1, 1, 8)),
            "bias_v": rng.standard_normal((1, 1, 8)),
        }
    if options.pop("separate", False):
        arrays.pop("in_proj_weight")
        options["use_separate_proj_weight"] = True
        arrays |= {f"{x}_proj_weight": rng.standard_normal((8, 8)) for x in "qkv"}
    attn, padding = options.pop("attn", None), options.pop("padding", None)
    masks = {}
    if attn:
        drawn = rng.standard_normal((3 * 2, 5, 6) if attn == "heads" else (5, 6))
        masks["attn_mask"] = drawn > 1 if attn == "bool" else drawn
    if padding:
        drawn = rng.standard_normal((3, 6))
        masks["key_padding_mask"] = drawn > 1.2 if padding == "bool" else drawn
    rest = {"embed_dim_to_check": 8, "num_heads": 2, "dropout_p": 0.0, "add_zero_attn": False}
    rest |= dict.fromkeys(("in_proj_weight", "in_proj_bias", "bias_k", "bias_v")) | options

    def build(g, **values):
        y, weights = aicf.multi_head_attention_forward(**{**rest, **values})
        made = {"y": y} | ({} if weights is None else {"weights": weights})
        loss = sum((aicf.sum(value * value) for value in made.values()), start=0.0)
        for key, slope in zip(arrays, aicf.grad(loss, [values[k] for k in arrays]), strict=True):
            made[f"d{key}"] = slope
        return made

    got = run_modes(build, {**arrays, **masks}, device)
    tensors = {key: torch.tensor(array, requires_grad=True) for key, array in arrays.items()}
    y, weights = torch.nn.functional.multi_head_attention_forward(
        **{**rest, **tensors}, **{key: torch.tensor(mask) for key, mask in masks.items()}
    )
    wanted = {"y": y} | ({} if weights is None else {"weights": weights})
    sum((value * value).sum() for value in wanted.values()).backward()
    wanted |= {f"d{key}": tensor.grad for key, tensor in tensors.items()}
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(
            got[key], value.detach().numpy(), rtol=1e-9, atol=1e-9, err_msg=key
        )


@pytest.mark.parametrize("more", [False, True], ids=["plain", "zero_attn"])
@pytest.mark.parametrize("weights", [False, True])
def test_causal_heads(weights, more, rng):
    """As with the mask that says it."""
    arrays = heads(rng)
    found = []
    for hidden in (None, np.triu(np.ones((5, 6), bool), 1)):
        g = aicf.Graph("g")
        values = {key: g.constant(array.astype(np.float32)) for key, array in arrays.items()}
        y, shares = aicf.multi_head_attention_forward(
            **values, embed_dim_to_check=8, num_heads=2, bias_k=None, bias_v=None,
            add_zero_attn=more, dropout_p=0.0, need_weights=weights,
            attn_mask=None if hidden is None else g.constant(hidden), is_causal=hidden is None,
        )  # fmt: skip
        assert (shares is not None) == weights
        g.output("y", y)
        found.append(g.compile(device="cpu")()["y"].numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("masks", ["padding", "causal", "both"])
def test_long_sequences_keep_no_scores(masks):
    """With masks of bool heads go by the op of attention, as they do without a mask."""
    layer = aicf.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    g = aicf.Graph("g")
    x, padding = g.input("x", (2, 520, 32)), g.input("padding", (2, 520), "bool")
    options = {"src_key_padding_mask": padding} if masks != "causal" else {}
    if masks != "padding":
        options["src_mask"] = g.constant(np.triu(np.ones((520, 520), bool), 1))
    g.output("y", layer(x, **options))
    ops = [node["op"] for node in json.loads(g.to_json())["nodes"]]
    assert "Attention" in ops and "Softmax" not in ops


def test_heads_that_do_not_fit():
    g = aicf.Graph("g")
    s, w, o = g.input("s", (5, 2, 6)), g.input("w", (18, 6)), g.input("o", (6, 6))
    base = [s, s, s, 6, 2, w, None, None, None, False, 0.0, o, None]
    for change, kind, text in (
        ({4: 4}, aicf.ShapeError, "heads 4; need width embed_dim, which heads divides"),
        ({3: 8}, aicf.ShapeError, "embed_dim 8"),
        ({7: s}, aicf.GraphError, "need both or neither"),
        ({5: None}, aicf.GraphError, "use_separate_proj_weight is False"),
    ):
        given = [change.get(i, one) for i, one in enumerate(base)]
        with pytest.raises(kind, match=text):
            aicf.multi_head_attention_forward(*given)
    with pytest.raises(aicf.ShapeError, match=r"attn_mask is .*; need \(5, 5\) or \(4, 5, 5\)"):
        aicf.multi_head_attention_forward(*base, attn_mask=o)
    with pytest.raises(aicf.ShapeError, match=r"key_padding_mask is .*; need \(2, 5\)"):
        aicf.multi_head_attention_forward(*base, key_padding_mask=o)


# ---- volumes in a batch


@pytest.mark.parametrize("shared", ["weight", "x", "none"])
@pytest.mark.parametrize("turned", [False, True])
def test_convolution_of_volumes_under_vmap(shared, turned, rng):
    fn = aicf.conv_transpose3d if turned else aicf.conv3d
    x = rng.standard_normal((2, 1, 2, 4, 5, 3))
    w = rng.standard_normal((2, 2, 3, 2, 2, 2) if turned else (2, 3, 2, 2, 2, 2))
    axes = (None if shared == "x" else 0, None if shared == "weight" else 0)
    parts = (x[0] if shared == "x" else x, w[0] if shared == "weight" else w)

    def one(x, w):
        y = fn(x, w, stride=(1, 2, 1))
        return [y, *aicf.grad(aicf.sum(y * y), [x, w])]

    def build(x, w):
        made = {f"b{i}": v for i, v in enumerate(aicf.vmap(one, axes)(x, w))}
        for k in range(2):
            each = (x if shared == "x" else x[k], w if shared == "weight" else w[k])
            made |= {f"{k}.{i}": v for i, v in enumerate(one(*each))}
        return made

    got = run(build, x=parts[0], w=parts[1])
    for i in range(3):
        want = np.stack([got[f"{k}.{i}"] for k in range(2)])
        np.testing.assert_allclose(got[f"b{i}"], want, rtol=1e-11, atol=1e-11)


# ---- of other functions


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy(reduction, device, rng):
    torch = pytest.importorskip("torch")
    arrays = {
        "x": rng.standard_normal((4, 3, 5)), "w": rng.standard_normal((7, 5)),
        "b": rng.standard_normal(7), "t": rng.integers(0, 7, (4, 3)),
    }  # fmt: skip

    def build(g, x, w, b, t):
        y = aicf.linear_cross_entropy(x, w, t, b, reduction=reduction, label_smoothing=0.1)
        return {"y": y, **dict(zip("xwb", aicf.grad(aicf.sum(y), [x, w, b]), strict=True))}

    got = run_modes(build, arrays, device)
    tensors = {k: torch.tensor(a, requires_grad=k != "t") for k, a in arrays.items()}
    rows = torch.nn.functional.linear(tensors["x"], tensors["w"], tensors["b"]).permute(0, 2, 1)
    y = torch.nn.functional.cross_entropy(
        rows, tensors["t"], reduction=reduction, label_smoothing=0.1
    )
    y.sum().backward()
    np.testing.assert_allclose(got["y"], y.detach().numpy(), rtol=1e-12)
    for k in "xwb":
        np.testing.assert_allclose(got[k], tensors[k].grad.numpy(), rtol=1e-10, atol=1e-12)


def test_conv_tbc(device, rng):
    torch = pytest.importorskip("torch")
    arrays = {"x": rng.standard_normal((9, 2, 3)), "w": rng.standard_normal((3, 3, 4)),
              "b": rng.standard_normal(4)}  # fmt: skip

    def build(g, x, w, b):
        y = aicf.conv_tbc(x, w, b, 1)
        return {"y": y, **dict(zip("xwb", aicf.grad(aicf.sum(y * y), [x, w, b]), strict=True))}

    got = run_modes(build, arrays, device)
    tensors = {k: torch.tensor(a, requires_grad=True) for k, a in arrays.items()}
    y = torch.conv_tbc(tensors["x"], tensors["w"], tensors["b"], 1)
    (y * y).sum().backward()
    np.testing.assert_allclose(got["y"], y.detach().numpy(), rtol=1e-11, atol=1e-12)
    for k in "xwb":
        np.testing.assert_allclose(got[k], tensors[k].grad.numpy(), rtol=1e-10, atol=1e-11)
