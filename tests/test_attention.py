"""Attention as an op: values and gradients against float64 and PyTorch, around the sizes of its
blocks, and the same bits from whoever computes it."""

import itertools
import json
import math
import os
import re
import subprocess
import sys

import aicf
import numpy as np
import pytest
from aicf import _core
from aicf.nn_functions import _composed_attention, _fused_attention
from compare import assert_bits
from conftest import DEVICES
from isas import used_isas

# Batch, heads, groups of them, queries, keys, size of a head.
SIZES = [
    (2, 2, 2, 1, 1, 8),
    (1, 2, 1, 63, 65, 16),
    (1, 1, 1, 64, 64, 64),
    (2, 4, 2, 65, 63, 40),
    (1, 2, 2, 127, 129, 24),
    (1, 1, 1, 129, 128, 128),
    (1, 3, 1, 130, 200, 20),
    (1, 2, 1, 70, 130, 144),
    (1, 1, 1, 66, 67, 256),
    (1, 1, 1, 5, 300, 3),
    (1, 1, 1, 300, 5, 1),
]
MASKS = ["none", "causal", "padding", "rows", "both"]


def operands(sizes, seed=0, scale=1.0):
    b, h, groups, t, s, d = sizes
    rng = np.random.default_rng(seed)
    draw = lambda *shape: (scale * rng.standard_normal(shape)).astype(np.float32)  # noqa: E731
    q, dy = draw(b, h, t, d), draw(b, h, t, d) / np.float32(scale)
    return {"q": q, "k": draw(b, groups, s, d), "v": draw(b, groups, s, d), "dy": dy}


def mask_of(kind, sizes):
    """The mask, and whether the call is causal beside it."""
    b, h, _, t, s, _ = sizes
    rng = np.random.default_rng(1)
    if kind in ("none", "causal"):
        return None, kind == "causal"
    if kind == "padding":
        return np.arange(s) < np.maximum(1, rng.integers(s // 2, s + 1, (b, 1, 1, 1))), False
    mask = rng.random((1, h, t, s)) < 0.7
    mask[:, :, ::3] = kind == "both"  # all of these rows, or none of them
    mask[:, :, 1::7] = False
    return mask, kind == "both"


def reference(feed, mask, causal, scale):
    """Attention and its gradients in float64."""
    q, k, v, dy = (feed[n].astype(np.float64) for n in ("q", "k", "v", "dy"))
    share = q.shape[1] // k.shape[1]
    wide_k, wide_v = (np.repeat(x, share, 1) for x in (k, v))
    scores = scale * q @ wide_k.swapaxes(2, 3)
    seen = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    if causal:
        seen = seen & np.tri(*scores.shape[2:], dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isfinite(top), top, 0))
    p /= np.where(p.any(-1, keepdims=True), p.sum(-1, keepdims=True), 1)
    dp = dy @ wide_v.swapaxes(2, 3)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))
    of_groups = lambda x: x.reshape(*k.shape[:2], share, *x.shape[2:]).sum(2)  # noqa: E731
    return {
        "y": p @ wide_v,
        "q": scale * ds @ wide_k,
        "k": scale * of_groups(ds.swapaxes(2, 3) @ q),
        "v": of_groups(p.swapaxes(2, 3) @ dy),
    }


def graph_of(feed, mask, causal, scale, dtype="float32"):
    g = aicf.Graph("attention")
    q, k, v, dy = (g.input(n, feed[n].shape, dtype) for n in ("q", "k", "v", "dy"))
    y = _fused_attention(q, k, v, None if mask is None else g.constant(mask), causal, scale)
    grads = g.backward(y, [q, k, v], grad=dy)
    for name, value in {"y": y, "q": grads[q], "k": grads[k], "v": grads[v]}.items():
        g.output(name, value if name == "y" else aicf.cast(value, dtype))
    return g


def run(g, feed, dtype="float32", **options):
    if dtype != "float32":
        step = g.compile(**options)
        return {
            n: x.numpy()
            for n, x in step(**{n: narrowed(x, dtype) for n, x in feed.items()}).items()
        }
    return {n: x.numpy() for n, x in g.compile(**options)(**feed).items()}


def narrowed(x, dtype):
    import torch

    return torch.from_numpy(np.ascontiguousarray(x)).to(getattr(torch, dtype))


def ops_of(g):
    return [node["op"] for node in json.loads(g.to_json())["nodes"]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_and_gradients(sizes, kind, device):
    feed, scale = operands(sizes), 1 / math.sqrt(sizes[-1])
    mask, causal = mask_of(kind, sizes)
    g = graph_of(feed, mask, causal, scale)
    assert "Attention" in ops_of(g) and "AttentionBwd" in ops_of(g)
    got, want = run(g, feed, device=device), reference(feed, mask, causal, scale)
    for name, x in got.items():
        np.testing.assert_allclose(x, want[name], rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["none", "both"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_16_bits(sizes, kind, dtype, device):
    feed, scale = operands(sizes), 1 / math.sqrt(sizes[-1])
    mask, causal = mask_of(kind, sizes)
    got = run(graph_of(feed, mask, causal, scale, dtype), feed, dtype, device=device)
    feed = {n: narrowed(x, dtype).float().numpy() for n, x in feed.items()}
    want = reference(feed, mask, causal, scale)
    step = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    for name, x in got.items():
        most = np.abs(want[name]).max() + 0.1
        np.testing.assert_allclose(
            np.asarray(x, np.float32),
            want[name],
            rtol=2 * step,
            atol=(3 + sizes[3] / 40) * step * most,
            err_msg=name,
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_16_bits(dtype):
    """In steps of tensor cores a weight is 2^x to 2^-13.1, or 2^-16 of float16: nearly always the
    nearest number of 16 bits, in order, 1 at 0 and 0 far below."""
    count, exponent = 8192, {"bfloat16": -20, "float16": -13}[dtype]
    below = np.arange(count) * (2**16 // count)  # in 2^-16
    feed = {
        n: np.zeros((1, 1, rows, 16), np.float32)
        for n, rows in zip("qkv", (count + 2, 2, 2), strict=True)
    }
    feed["q"][0, 0, :count, :3] = np.stack([np.full(count, exponent), below // 256, below % 256], 1)
    feed["q"][0, 0, count + 1, 0] = -140
    feed["k"][0, 0, 1, :3] = 1, -(2.0**-8), -(2.0**-16)
    feed["v"][0, 0, 1] = 1
    feed["dy"] = feed["q"]
    got = run(
        graph_of(feed, None, False, math.log(2), dtype),
        feed,
        dtype,
        device="cpu",
        tensor_cores="sm_90",
    )
    y = np.asarray(got["y"], np.float64)[0, 0, :, 0]  # w / (1 + w), rounded: w, where it is small
    want = np.exp2(exponent - below / 2**16)
    nearest = narrowed(want, dtype).double().numpy()
    assert (y[count:] == [0.5, 0]).all()
    assert (np.diff(y[:count]) <= 0).all()
    digits = {"bfloat16": 8, "float16": 11}[dtype]
    error = {"bfloat16": 2.0**-13.1, "float16": 2.0**-16}[dtype]
    assert (np.abs(y[:count] / want - 1) <= (2.0**-digits + error)).all()
    assert np.mean(y[:count] != nearest) < error * 2.0**digits


@pytest.mark.parametrize("kind", ["none", "causal", "rows"])
def test_against_torch(kind):
    torch = pytest.importorskip("torch")
    sizes = (2, 4, 2, 70, 90, 32)
    feed, scale = operands(sizes), 0.3
    mask, causal = mask_of(kind, sizes)
    got = run(graph_of(feed, mask, causal, scale), feed)
    q, k, v = (torch.from_numpy(feed[n]).requires_grad_() for n in "qkv")
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, None if mask is None else torch.from_numpy(mask), 0.0, causal, scale=scale,
        enable_gqa=True,
    )  # fmt: skip
    grads = torch.autograd.grad(y, [q, k, v], torch.from_numpy(feed["dy"]))
    for name, x in zip("yqkv", [y.detach(), *grads], strict=True):
        want = x.numpy()
        if kind == "rows":  # PyTorch has NaN where all is hidden
            want = np.where(np.isnan(want), got[name], want)
        if name == "y" or kind != "rows":
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 90, 500, 16), (1, 1, 1, 300, 300, 16)], ids=str)
def test_scores_that_grow_from_block_to_block(sizes, dtype):
    """In steps of tensor cores: what is subtracted from them moves later than their largest."""
    feed = {n: narrowed(x, dtype).float().numpy() for n, x in rise(operands(sizes)).items()}
    causal = sizes[3] == sizes[4]
    g = graph_of(feed, None, causal, 0.25, dtype)
    got = run(g, feed, dtype, device="cpu", tensor_cores="sm_90")
    step = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    for name, want in reference(feed, None, causal, 0.25).items():
        error = np.abs(np.asarray(got[name], np.float64) - want)
        most = np.abs(want).max() + (10 if name == "q" else 0)  # of 0.25 times slopes times keys
        assert error.max() < 5 * step * most, name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [30.0, 300.0])
def test_large_scores(size, device):
    """Weights of one key, and of keys far below the largest."""
    sizes = (1, 2, 2, 90, 140, 16)
    feed = operands(sizes, scale=math.sqrt(size))
    got = run(graph_of(feed, None, True, 1.0), feed, device=device)
    want = reference(feed, None, True, 1.0)
    for name, x in got.items():
        most = np.abs(want[name]).max()
        # The scores themselves are rounded, and what they are worth is their exponential.
        np.testing.assert_allclose(x, want[name], rtol=0, atol=4e-6 * size * most, err_msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_rows_and_keys(dtype, device):
    """A row that sees nothing is 0 and takes no gradient; nor does a key that nobody sees."""
    sizes = (1, 1, 1, 67, 70, 16)
    feed = operands(sizes)
    mask = np.ones((67, 70), bool)
    mask[5], mask[66], mask[:, 3], mask[:, 69] = False, False, False, False
    got = run(graph_of(feed, mask, False, 0.25, dtype), feed, dtype, device=device)
    for x in (got["y"], got["q"]):
        assert not x[0, 0, [5, 66]].any() and x[0, 0, 6].any()
    for x in (got["k"], got["v"]):
        assert not x[0, 0, [3, 69]].any() and x[0, 0, 4].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_no_number_shows(dtype, device):
    feed = operands((1, 1, 1, 70, 70, 16))
    feed["q"][0, 0, 3, 2] = math.nan
    y = run(graph_of(feed, None, False, 0.25, dtype), feed, dtype, device=device)["y"]
    assert np.isnan(y[0, 0, 3]).all() and np.isfinite(np.delete(y[0, 0], 3, 0)).all()


def test_where_the_op_has_no_meaning_it_is_composed():
    g = aicf.Graph("composed")
    x = g.input("x", (2, 3, 20, 8))
    wide = g.input("wide", (2, 3, 20, 16))
    double = g.input("double", (2, 3, 20, 8), "float64")
    attention = aicf.scaled_dot_product_attention
    for y in [
        attention(x, x, x, dropout_p=0.5),
        attention(x, x, x, g.input("added", (20, 20))),
        attention(x, x, wide),
        attention(double, double, double),
        attention(x, x, x, scale=-1.0),
        attention(x, x[:1], x[:1]),
    ]:
        assert y.ndim == 4
    assert "Attention" not in ops_of(g)
    long = g.input("long", (2, 3, 520, 8))
    for y in [attention(long, long, long), attention(*3 * [long[0, 0]]), attention(*3 * [long[0]])]:
        assert y.ndim >= 2
    assert ops_of(g).count("Attention") == 3
    attention(x, x, x)  # of few scores a product and a softmax are as quick
    assert ops_of(g).count("Attention") == 3


@pytest.mark.parametrize("size", [12, 520])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masks_of_minus_infinity_are_masks_of_bool(size, dtype):
    """As PyTorch's generate_square_subsequent_mask makes them: the same op, and bits, as what
    they stand for, whatever dtype they have."""
    rng = np.random.default_rng(0)
    after = aicf.nn.Transformer.generate_square_subsequent_mask(size)
    some = np.where(rng.random((size, size)) < 0.3, -math.inf, 0).astype(np.float32)
    padding = np.where(np.arange(size) < [[size - 3], [size]], 0, -math.inf).astype(np.float32)
    net = aicf.nn.MultiheadAttention(16, 2, batch_first=True, dtype=dtype)
    x = rng.standard_normal((2, size, 16)).astype(np.float32)

    def made(attention):
        g = aicf.Graph("masks")
        v = g.input("x", x.shape, dtype)
        y = attention(v)
        g.output("y", y)
        g.output("dx", g.backward(aicf.sum(y * y), [v])[v])
        fused = [node for node in json.loads(g.to_json())["nodes"] if node["op"] == "Attention"]
        assert bool(fused) == (size == 520)
        out = g.compile(device="cpu", cast=True)(x=x)
        attrs = [node["attrs"] for node in fused]
        return (attrs, [len(n["inputs"]) for n in fused]), [out["y"].numpy(), out["dx"].numpy()]

    def heads(**masks):
        return lambda v: net(v, v, v, need_weights=False, **masks)[0]

    def plain(mask=None, causal=False):
        if mask is not None and mask.dtype != bool and dtype != "float32":
            return lambda v: aicf.scaled_dot_product_attention(
                v, v, v, v.graph.constant(mask.tolist(), dtype), causal=causal
            )
        return lambda v: aicf.scaled_dot_product_attention(v, v, v, mask, causal=causal)

    lengths = {"key_padding_mask": padding}, {"key_padding_mask": padding < 0}
    for given, meant in [
        (heads(attn_mask=after), heads(is_causal=True)),
        (heads(attn_mask=after < 0), heads(is_causal=True)),
        (heads(attn_mask=after, is_causal=True), heads(is_causal=True)),
        (heads(attn_mask=some), heads(attn_mask=some < 0)),
        (heads(attn_mask=after, **lengths[0]), heads(is_causal=True, **lengths[1])),
        (heads(attn_mask=some[None].repeat(4, 0)), heads(attn_mask=some[None].repeat(4, 0) < 0)),
        (plain(after), plain(causal=True)),
        (plain(after == 0), plain(causal=True)),
        (plain(some), plain(some == 0)),
        (plain(some, causal=True), plain(some == 0, causal=True)),
    ]:
        (op, arrays), (want_op, want) = made(given), made(meant)
        assert op == want_op
        for array, one in zip(arrays, want, strict=True):
            assert_bits(array, one)


def test_masks_that_say_more_are_added():
    """Of numbers between, of positions in both directions, of values that are no constants."""
    after = aicf.nn.Transformer.generate_square_subsequent_mask(520)
    g = aicf.Graph("added")
    x, fed = g.input("x", (2, 520, 8)), g.input("mask", (520, 520))
    part = after.copy()
    part[3, 1] = 0.5
    for mask in (part, fed, np.full((520, 520), math.nan, np.float32)):
        aicf.scaled_dot_product_attention(x, x, x, mask)
    assert "Attention" not in ops_of(g)
    for mask in (after.T.copy(), after[:, :1].copy(), np.zeros((1, 1), np.float32)):
        aicf.scaled_dot_product_attention(x, x, x, mask)
    nodes = [node for node in json.loads(g.to_json())["nodes"] if node["op"] == "Attention"]
    assert [node["attrs"].get("causal", False) for node in nodes] == [False] * 3
    with pytest.raises(aicf.ShapeError):
        aicf.scaled_dot_product_attention(x, x, x, np.stack([after] * 3))
    net = aicf.nn.MultiheadAttention(8, 2)
    with pytest.raises(aicf.GraphError, match=r"need bool or float32"):
        net(x, x, x, attn_mask=np.zeros((2, 2), np.int64))
    with pytest.raises(aicf.ShapeError, match=r"attn_mask is .*; need \(2, 2\) or \(1040, 2, 2\)"):
        net(x, x, x, attn_mask=after)


@pytest.mark.parametrize("shape", [(20, 8), (3, 20, 8), (2, 3, 20, 8), (2, 2, 3, 20, 8)], ids=str)
@pytest.mark.parametrize("masked", [None, (20, 20), (3, 1, 20), "full"], ids=str)
def test_axes_in_front(shape, masked):
    """Whatever stands before length and width, and masks of any of it."""
    if masked == "full":
        masked = (*shape[:-2], 20, 20)
    if masked and len(masked) > len(shape):
        pytest.skip("a mask of more axes than the scores")
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    mask = None if masked is None else rng.random(masked) < 0.8
    g = aicf.Graph("axes")
    v = g.input("x", shape)
    m = None if mask is None else g.constant(mask)
    y = _fused_attention(v, v, v, m, False, 8**-0.5)
    assert "Attention" in ops_of(g)
    g.output("got", y)
    g.output("want", _composed_attention(v, v, v, m, False, 8**-0.5))
    out = g.compile()(x=x)
    np.testing.assert_allclose(out["got"].numpy(), out["want"].numpy(), rtol=1e-5, atol=1e-6)


def test_heads_inside_positions_cost_no_copy():
    """As a projection leaves them, and as the next one takes them."""
    g = aicf.Graph("inside")
    x, w = g.input("x", (2, 520, 24)), g.param("w", (72, 24))
    parts = aicf.split(aicf.linear(x, w), 3, -1)
    heads = [part.reshape((2, 520, 3, 8)).permute((0, 2, 1, 3)) for part in parts]
    y = aicf.scaled_dot_product_attention(*heads, causal=True)
    y = y.permute((0, 2, 1, 3)).reshape((2, 520, 24))
    g.output("y", aicf.linear(y, g.param("o", (24, 24))))
    ops = " ".join(entry["op"] for entry in g.compile().lowered)
    assert "attention" in ops and "copy" not in ops, ops


def test_second_derivatives():
    """Those of the op are those of what it is composed of."""
    sizes = (1, 4, 2, 9, 11, 8)
    feed = operands(sizes)
    mask, _ = mask_of("rows", sizes)
    made = []
    for fused in (True, False):
        g = aicf.Graph("second")
        q, k, v, dy = (g.input(n, feed[n].shape) for n in ("q", "k", "v", "dy"))
        if fused:
            y = _fused_attention(q, k, v, g.constant(mask), True, 0.4)
        else:
            wide = [aicf.repeat(x, 2, 1) for x in (k, v)]
            y = _composed_attention(q, *wide, g.constant(mask), True, 0.4)
        first = g.backward(y, [q, k, v], grad=dy)
        loss = aicf.sum(aicf.sin(y))
        for i, x in enumerate((q, k, v)):
            loss = loss + aicf.sum(aicf.sin(first[x] * (1.5 + i)))
        second = g.backward(loss, [q, k, v, dy])
        for x, name in zip((q, k, v, dy), "qkvd", strict=True):
            g.output(name, second[x])
        made.append(run(g, feed))
    for name in "qkvd":
        np.testing.assert_allclose(made[0][name], made[1][name], rtol=2e-4, atol=2e-5)


def test_of_a_batch():
    """vmap folds the batch into the first axis; what it shares is repeated."""
    x = np.random.default_rng(0).standard_normal((3, 2, 2, 9, 8)).astype(np.float32)
    mask = np.random.default_rng(1).random((3, 1, 1, 1, 9)) < 0.7
    g = aicf.Graph("batch")
    v, m = g.input("x", x.shape), g.input("m", mask.shape, "bool")

    def one(v, m):
        y = _fused_attention(v, v[:, :1], v[:, :1], m, False, 0.3)
        return aicf.grad(aicf.sum(y**2.0), v)

    g.output("got", aicf.vmap(one)(v, m))
    for i in range(3):
        g.output(f"want{i}", one(v[i], m[i]))
    out = g.compile()(x=x, m=mask)
    for i in range(3):
        np.testing.assert_allclose(
            out["got"].numpy()[i], out[f"want{i}"].numpy(), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("math", ["fp32", "bf16", "mixed"])
@pytest.mark.parametrize("sizes", [(1, 4, 2, 130, 200, 20), (2, 2, 1, 256, 256, 64)])
def test_gradients_by_one_op_have_the_bits_of_each_alone(sizes, math, device):
    """One launch for those of queries and those of keys and values."""
    feed = operands(sizes)

    def made(names):
        g = aicf.Graph("gradients")
        q, k, v = (g.param(n, feed[n].shape, init=feed[n]) for n in "qkv")
        y = _fused_attention(q, k, v, None, True, 0.3)
        found = g.backward(
            y, [{"q": q, "k": k, "v": v}[n] for n in names], grad=g.input("dy", feed["dy"].shape)
        )
        for value, gradient in found.items():
            g.output(value.name, gradient)
        step = g.compile(device=device, math=math)
        ops = [entry["op"] for entry in step.lowered if entry["op"].startswith("attention_")]
        return ops, {n: step(dy=feed["dy"])[n].numpy().copy() for n in names}

    together, all_of_them = made("qkv")
    assert together == ["attention_grads"]
    for names, op in (("q", "attention_dq"), ("kv", "attention_dkv"), ("v", "attention_dkv")):
        ops, alone = made(names)
        assert ops == [op]
        for name in names:
            assert_bits(alone[name], all_of_them[name], name)


def test_mixed():
    """Operands and the result in bfloat16, the numbers of rows in float32."""
    feed = operands((1, 2, 2, 520, 520, 16))
    g = aicf.Graph("mixed")
    x = g.input("x", (1, 520, 16))
    w = g.param("w", (16, 16))
    h = aicf.linear(x, w)
    y = aicf.linear(aicf.scaled_dot_product_attention(h, h, h, causal=True), w)
    loss = aicf.sum(y * y)
    g.minimize(loss, aicf.optim.SGD(lr=0.01))
    step = g.compile(math="mixed")
    found = [entry for entry in step.lowered if entry["op"].startswith("attention")]
    assert [entry["op"] for entry in found] == ["attention", "attention_grads"]
    for entry in found:
        types = [x["dtype"] for x in (*entry["inputs"], *entry["outputs"])]
        assert "bfloat16" in types and "float32" in types, entry
    step(x=feed["q"][0, :1])
    assert np.isfinite(step.params["w"].numpy()).all()


CHILD = """
import sys
import aicf
import numpy as np
sys.path.insert(0, {tests!r})
import test_attention as t
import hashlib
for sizes, kind, dtype, cores in t.BITS:
    feed = t.operands(sizes)
    mask, causal = t.mask_of(kind, sizes)
    g = t.graph_of(feed, mask, causal, 0.3, dtype)
    for threads in (1, 2, 3, 8):
        aicf.set_num_threads(threads)
        for passes in ((), "default"):
            out = t.run(g, feed, dtype, device="cpu", passes=passes, tensor_cores=cores)
            bytes_of = b"".join(np.ascontiguousarray(out[n]).tobytes() for n in "yqkv")
            print(hashlib.sha256(bytes_of).hexdigest(), sizes, kind, dtype, cores)
"""
BITS = [
    ((2, 2, 1, 65, 130, 24), "none", "float32", None),
    ((1, 2, 2, 129, 129, 64), "causal", "float32", None),
    ((1, 2, 2, 70, 63, 40), "both", "float32", None),
    ((1, 2, 1, 65, 70, 16), "rows", "bfloat16", None),
    ((1, 2, 1, 65, 130, 24), "causal", "bfloat16", "sm_90"),
    ((1, 1, 1, 20, 40, 16), "rows", "float16", "sm_90"),
]


def test_bits_of_threads_and_instruction_sets():
    """Of each graph one digest, whoever computes it."""
    found = {}
    for isa in used_isas():
        env = {**os.environ, "AICF_CPU_ISA": isa}
        code = CHILD.format(tests=os.path.dirname(__file__))
        out = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
        )
        assert out.returncode == 0, out.stderr[-2000:]
        for line in out.stdout.splitlines():
            digest, what = line.split(" ", 1)
            found.setdefault(what, {}).setdefault(digest, []).append(isa)
    assert len(found) == len(BITS)
    for what, digests in found.items():
        assert len(digests) == 1, (what, digests)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "kind"), itertools.product(["float32", "bfloat16", "float16"], MASKS)
)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_gpu_has_the_bits_of_a_cpu(sizes, dtype, kind):
    feed, scale = operands(sizes), 1 / math.sqrt(sizes[-1])
    mask, causal = mask_of(kind, sizes)
    g = graph_of(feed, mask, causal, scale, dtype)
    made = [
        run(g, feed, dtype, device="cpu", tensor_cores="sm_90"),
        run(g, feed, dtype, device="cuda"),
    ]
    for name in "yqkv":
        assert_bits(made[1][name], made[0][name], name)


# Lengths around the tiles: 64 rows of a warpgroup, 128 or 192 of a block, 128 keys at a time.
WITH_ROLES = [
    ((1, 1, 1, 64, 64, 64), "none"),
    ((2, 2, 1, 129, 257, 64), "none"),
    ((1, 2, 2, 300, 300, 64), "causal"),
    ((1, 4, 2, 127, 65, 64), "causal"),
    ((1, 1, 1, 128, 128, 128), "none"),
    ((2, 2, 1, 193, 131, 128), "causal"),
    ((1, 2, 2, 65, 390, 128), "causal"),
    # Blocks that take several tiles one after the other, also such without queries.
    ((3, 3, 3, 300, 300, 64), "causal"),
    ((2, 4, 2, 449, 449, 64), "causal"),
    ((1, 8, 8, 193, 70, 64), "none"),
    ((1, 5, 5, 449, 449, 128), "causal"),
    ((2, 4, 2, 190, 321, 128), "none"),
    # Of the last keys half a tile sees one block of each head's queries and passes over one.
    ((1, 3, 1, 256, 256, 64), "causal"),
    ((1, 2, 2, 200, 900, 64), "rising"),
    ((1, 2, 1, 700, 700, 128), "rising"),
]

# Blocks of keys hand on what they add to the gradient of queries: of heads that share keys, of more
# keys than queries, and of more heads than there is room for between blocks.
JOINT = [
    ((1, 4, 2, 300, 300, 128), "causal"),
    ((1, 3, 1, 256, 256, 128), "causal"),
    ((1, 2, 2, 193, 500, 128), "causal"),
    ((2, 4, 2, 449, 449, 128), "causal"),
    ((1, 6, 6, 257, 257, 128), "causal"),
    # Heads of 64, of blocks of 128 queries.
    ((1, 4, 2, 300, 300, 64), "causal"),
    ((2, 4, 2, 449, 449, 64), "causal"),
    ((1, 6, 6, 257, 257, 64), "causal"),
    ((1, 2, 2, 193, 500, 64), "causal"),
    ((2, 2, 1, 448, 190, 64), "none"),
    ((1, 2, 2, 300, 900, 64), "rising"),
]


def rise(feed):
    """Scores that grow along the keys, of some queries slowly, of some fast, of some shrink: far
    below 0 and far above, so that what is subtracted from a row's stays, moves a little or far."""
    t, s = feed["q"].shape[2], feed["k"].shape[2]
    feed["q"][..., 0] = np.linspace(-3, 9, t)
    feed["k"][..., 0] = np.linspace(-40, 40, s)
    return feed


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("sizes", "kind", "gradients"),
    [(*case, "wgmma") for case in WITH_ROLES]
    + [(*case, "wgmma_joint") for case in JOINT]
    + [(*case, "wgmma_joint") for case in WITH_ROLES if case[0][-1] == 128],
    ids=str,
)
def test_warp_roles_have_the_bits(sizes, kind, gradients, dtype):
    """Of 9.0: the kernels whose warps load or multiply, forward and backward."""
    feed, scale = operands(sizes), 1 / math.sqrt(sizes[-1])
    if kind == "rising":
        mask, causal = None, sizes[3] == sizes[4]
        feed = rise(feed)
    else:
        mask, causal = mask_of(kind, sizes)
    g = graph_of(feed, mask, causal, scale, dtype)
    known = _core.cuda_candidates(g._core, _core.pass_names())
    chosen = {
        signature: gradients if gradients in names else "wgmma"
        for signature, names in known.items()
        if "wgmma" in names
    }
    assert len(chosen) == 2 and gradients in chosen.values(), known  # y, all gradients
    made = [
        run(g, feed, dtype, device="cpu", tensor_cores="sm_90"),
        run(g, feed, dtype, device="cuda", candidates=chosen),
    ]
    for name in "yqkv":
        assert_bits(made[1][name], made[0][name], name)


needs_nvrtc = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)


def programs_of(sizes, kind, dtype, arch, inside=False):
    b, h, groups, t, s, d = sizes
    g = aicf.Graph("kernels")
    mask, causal = mask_of(kind, sizes)

    def operand(name, heads, rows):
        if inside:
            return aicf.permute(g.input(name, (b, rows, heads, d), dtype), (0, 2, 1, 3))
        return g.input(name, (b, heads, rows, d), dtype)

    q, k, v = operand("q", h, t), operand("k", groups, s), operand("v", groups, s)
    m = None if mask is None else g.constant(mask)
    y = _fused_attention(q, k, v, m, causal, 0.3)
    grads = g.backward(y, [q, k, v], grad=operand("dy", h, t))
    for name, value in {"y": y, "q": grads[q], "k": grads[k], "v": grads[v]}.items():
        g.output(name, value)
    programs = _core.cuda_programs(g._core, (), arch=arch)
    return [p for p in programs if "attention" in p]


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_kernels_compile(dtype, arch, tmp_path, monkeypatch):
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    programs = []
    for sizes, kind in [((1, 4, 2, 70, 130, 40), "both"), ((1, 1, 1, 65, 65, 256), "causal")]:
        programs += programs_of(sizes, kind, dtype, arch)
    assert len(programs) == 4
    chain = dtype == "float32" or arch == "sm_75"
    assert all(("_chain<" in p) == chain and ("_mma<" in p) != chain for p in programs)
    cubins = _core.cuda_cubins(programs, arch)
    assert all(cubin[:4] == b"\x7fELF" for cubin in cubins)


# Batch, heads, positions, columns of a head; heads of a cohort forward and in gradients, 132 SMs.
COHORTS = [
    ((16, 32, 1024, 64), 66, 132),
    ((16, 12, 1024, 64), 192, 132),
    ((4, 32, 4096, 64), 44, 66),
    ((1, 32, 16384, 64), 20, 16),
    ((1, 8, 32768, 64), 8, 3),
    ((16, 16, 1024, 128), 22, 22),
    ((4, 16, 4096, 128), 22, 33),
    ((1, 16, 16384, 128), 16, 16),
]


def attention_of(shape, causal):
    g = aicf.Graph("cohorts")
    b, h, t, d = shape
    q, k, v, dy = (g.input(name, (b, h, t, d), "bfloat16") for name in ("q", "k", "v", "dy"))
    y = _fused_attention(q, k, v, None, causal, 0.125)
    for i, x in enumerate([y, *g.backward(y, [q, k, v], grad=dy).values()]):
        g.output(f"r{i}", x)
    return g._core


def forward_and_gradients(core, processors):
    programs = _core.cuda_programs(core, (), processors, "sm_90a")
    return [
        next(p for p in programs if re.search(rf"aicf_{name}_wgmma_bf16", p))
        for name in ("attention", "attention_grads(_joint)?")
    ]


def cohorts_of(program):
    return [int(cohort) for cohort in re.findall(r" cohort = (\d+);", program)]


@pytest.mark.skipif(not hasattr(_core, "cuda_programs"), reason="no CUDA backend in this build")
@pytest.mark.parametrize(("positions", "first"), [(65536, "wgmma_joint"), (65600, "wgmma")])
def test_sums_of_one_kernel_for_all_gradients(positions, first):
    """It is the first choice where its sums take a GiB at most: of 32 heads, 32 KiB for 64 rows."""
    known = _core.cuda_candidates(attention_of((1, 64, positions, 128), causal=True), ())
    (names,) = (names for signature, names in known.items() if "attention_grads" in signature)
    assert names[0] == first and set(names) == {"wgmma", "wgmma_joint", "mma"}


@pytest.mark.skipif(not hasattr(_core, "cuda_programs"), reason="no CUDA backend in this build")
@pytest.mark.parametrize(("shape", "forward", "gradients"), COHORTS, ids=str)
def test_cohorts_of_heads(shape, forward, gradients):
    """How many heads are dealt to blocks together, and that it says nothing of the order."""
    core = attention_of(shape, causal=True)
    programs = forward_and_gradients(core, 132)
    joint = shape not in ((1, 8, 32768, 64), (16, 16, 1024, 128))  # gradients by one kernel
    assert ("_joint_" in programs[1]) == joint
    assert [cohorts_of(p) for p in programs] == [[forward], [gradients] * (1 if joint else 2)]
    ops = json.loads(_core.cuda_plan(core, (), 132, "sm_90a"))["ops"]
    orders = {op["op"]: op["attrs"]["order"] for op in ops if "attention" in op["op"]}
    assert orders == {"attention": "mma16(128)", "attention_grads": "mma16(128)"}
    few = forward_and_gradients(core, 24)[0]
    assert cohorts_of(few) != [forward]
    differ = r"(?<= cohort = )\d+|(?<=_bf16_)[0-9a-f]{16}"
    assert re.sub(differ, "", few) == re.sub(differ, "", programs[0])


@pytest.mark.skipif(not hasattr(_core, "cuda_programs"), reason="no CUDA backend in this build")
@pytest.mark.parametrize(
    ("shape", "cohort"),
    [((4, 32, 4096, 64), 12), ((1, 32, 16384, 64), 4), ((1, 16, 16384, 128), 3)],
)
def test_cohorts_whose_tiles_cost_the_same(shape, cohort):
    """As many heads as give blocks two tiles each, and as the L2 cache has."""
    programs = forward_and_gradients(attention_of(shape, causal=False), 132)
    assert cohorts_of(programs[0]) == [cohort]


@pytest.mark.parametrize("given", ["value", "array"])
@pytest.mark.parametrize("dtype, bound", [("float64", 1e-12), ("float32", 2e-5)])
def test_masks_of_the_least_number(given, dtype, bound, device, make_rng):
    """They hide as -inf does, but for rows that they hide wholly: those weigh all keys alike."""
    rng = make_rng(0)
    least = np.finfo(dtype).min
    arrays = {
        n: rng.uniform(-2, 2, (2, 2, m, 4)).astype(dtype)
        for n, m in {"q": 5, "k": 6, "v": 6}.items()
    }
    shown = rng.random((2, 1, 5, 6)) > 0.4
    shown[..., 0] = True
    shown[0, 0, 1] = False
    mask = np.where(shown, 0, least).astype(dtype)
    g = aicf.Graph("least")
    q, k, v = (g.input(n, a.shape, dtype) for n, a in arrays.items())
    weights = g.constant(rng.uniform(0.5, 1.5, (2, 2, 5, 4)).astype(dtype))

    def attend(mask):
        y = aicf.scaled_dot_product_attention(q, k, v, mask)
        return [y, *aicf.grad(aicf.sum(y * weights), [q, k, v])]

    # Where all is hidden the least number takes up what is added to it: scores alike, with slopes.
    none = g.constant(~shown.any(-1, keepdims=True))
    everything = g.constant(shown | ~shown.any(-1, keepdims=True))
    scores = q @ k.transpose() * 0.5
    scores = aicf.where(none, scores - aicf.detach(scores), scores)
    y = aicf.softmax(aicf.where(everything, scores, -np.inf)) @ v
    want = [y, *aicf.grad(aicf.sum(y * weights), [q, k, v])]
    got = attend(g.constant(mask) if given == "value" else mask)
    for i, pair in enumerate(zip(got, want, strict=True)):
        for name, value in zip(("got", "want"), pair, strict=True):
            g.output(f"{name}{i}", value)
    out = g.compile(device=device)(**arrays)
    np.testing.assert_allclose(out["got0"].numpy()[0, :, 1], arrays["v"][0].mean(-2), rtol=1e-5)
    for i in range(4):
        got_i, want_i = (out[f"{name}{i}"].numpy() for name in ("got", "want"))
        np.testing.assert_allclose(got_i, want_i, rtol=bound, atol=bound, err_msg=str(i))
