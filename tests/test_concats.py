"""What a concat joins is written in its place: gradients of the queries, keys and values that one
product made."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits
from conftest import DEVICES

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")


def graph_of(heads, length, size, layers=1, before=lambda x: x, order=(0, 1, 2)):
    """Self-attention whose queries, keys and values come of one product, with their gradients."""
    width = heads * size
    rng = np.random.default_rng(heads * length)
    g = aicf.Graph("parts")
    x = h = g.input("x", (2, length, width))
    for i in range(layers):
        w = rng.standard_normal((width, 3 * width)).astype("f4") / np.float32(width**0.5)
        parts = aicf.split(before(h @ g.param(f"w{i}", w.shape, init=w)), 3, axis=-1)
        split = [y.reshape((2, length, heads, size)).permute((0, 2, 1, 3)) for y in parts]
        q, k, v = (split[at] for at in order)
        y = aicf.scaled_dot_product_attention(q, k, v, causal=True)
        h = h + y.permute((0, 2, 1, 3)).reshape((2, length, width))
    g.output("loss", aicf.mean(h * h))
    g.minimize(aicf.mean(h * h), aicf.optim.AdamW(lr=1e-2))
    return g, {"x": rng.standard_normal(x.shape).astype("f4")}


def names(step):
    return [entry["op"] for entry in step.lowered]


def bits(step, feed):
    step(**feed)
    loss = step(**feed)["loss"].numpy()
    return {"loss": loss, **{name: param.numpy() for name, param in step.params.items()}}


ALL = _core.pass_names()
LEAVES = tuple(name for name in ALL if name != "concats")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("math", ["fp32", "mixed"])
@pytest.mark.parametrize(
    ("heads", "length", "size"), [(3, 520, 8), (2, 513, 16), (2, 129, 64), (1, 512, 20)]
)
def test_gradients_lie_in_the_joined_one(heads, length, size, math, device):
    g, feed = graph_of(heads, length, size, layers=2)
    options = {"device": device, "math": math, "seed": 1}
    with_parts, apart = g.compile(**options), g.compile(**options, passes=LEAVES)
    kept = names(apart).count("concat")
    if "attention_grads" in names(apart):  # at such a length in this mode
        assert kept == 2 and "concat" not in names(with_parts)
        assert len(names(with_parts)) == len(names(apart)) - 2
        made = {}
        for entry in with_parts.lowered:
            if entry["op"] == "attention_grads":
                for view in entry["outputs"]:
                    made.setdefault(view["value"], []).append((view["offset"], view["strides"]))
        assert len(made) == 2
        width = heads * size
        for views in made.values():
            assert sorted(offset for offset, _ in views) == [0, width, 2 * width]
            assert all(3 * width in strides for _, strides in views)
    for name, value in bits(apart, feed).items():
        assert_bits(bits(g.compile(**options), feed)[name], value, name)
    for passes in (
        ALL,
        ("concats",),
        ("concats", *LEAVES),
        ("concats", "fuse", "horizontal", "outputs"),
    ):
        other = bits(g.compile(**options, passes=tuple(passes)), feed)
        for name, value in bits(g.compile(**options, passes=()), feed).items():
            assert_bits(other[name], value, f"{name} {passes}")


@pytest.mark.parametrize(
    "order",
    [(0, 1, 2), (2, 0, 1), (0, 0, 1), (1, 1, 1)],
    ids=lambda order: "".join(map(str, order)),
)
def test_parts_that_are_sums_are_joined_as_before(order):
    """A part of two gradients is made by an addition, which no op of attention makes."""
    g, feed = graph_of(2, 513, 16, order=order)
    step, apart = g.compile(seed=1), g.compile(seed=1, passes=LEAVES)
    assert ("concat" in names(step)) == (len(set(order)) < 3 and "concat" in names(apart))
    for name, value in bits(apart, feed).items():
        assert_bits(bits(g.compile(seed=1), feed)[name], value, name)


def test_a_part_that_others_read_is_joined_as_before():
    g, _ = graph_of(2, 513, 16)
    x = g.input("y", (1, 2, 513, 16))
    heads = aicf.concat([x, x * 2.0, x * 3.0], axis=0)
    q, k, v = (heads[i : i + 1] for i in range(3))
    y = aicf.scaled_dot_product_attention(q, k, v)
    g.output("dheads", g.backward(aicf.sum(y * y), [heads])[heads])
    g.output("dq", aicf.grad(aicf.sum(y * y), [q])[0])
    ops = names(g.compile())
    assert "concat" in ops


def test_an_exported_step_keeps_them(tmp_path):
    g, feed = graph_of(2, 513, 16)
    step = g.compile(seed=1)
    assert "concat" not in names(step)
    step.export(tmp_path / "step.aicf")
    loaded = aicf.load_step(tmp_path / "step.aicf")
    want, got = bits(step, feed), bits(loaded, feed)
    for name, value in want.items():
        assert_bits(got[name], value, name)


def test_a_joined_gradient_may_be_an_output():
    """It lies where the caller finds it, or has bound it."""
    rng = np.random.default_rng(0)
    feed = {"qkv": rng.standard_normal((2, 513, 96)).astype("f4")}
    g = aicf.Graph("joined")
    x = g.input("qkv", (2, 513, 96))
    split = [y.reshape((2, 513, 2, 16)).permute((0, 2, 1, 3)) for y in aicf.split(x, 3, axis=-1)]
    y = aicf.scaled_dot_product_attention(*split, causal=True)
    g.output("dx", g.backward(aicf.sum(y * y), [x])[x])
    step, apart = g.compile(), g.compile(passes=LEAVES)
    assert "concat" in names(apart) and "concat" not in names(step)
    assert_bits(step(**feed)["dx"].numpy(), apart(**feed)["dx"].numpy(), "dx")
    own = np.full((2, 513, 96), 7, "f4")
    step.bind(dx=own)
    step(**feed)
    assert_bits(own, apart(**feed)["dx"].numpy(), "bound dx")


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("size", [16, 64, 128])
def test_a_gpu_writes_the_parts(size):
    """By warp roles and without: the bits of a CPU."""
    g, feed = graph_of(2, 512, size)
    options = {"math": "mixed", "seed": 1}
    want = bits(g.compile(**options, tensor_cores="sm_90"), feed)
    step = g.compile(**options, device="cuda")
    assert "concat" not in names(step) and "attention_grads" in names(step)
    for name, value in bits(step, feed).items():
        assert_bits(value, want[name], name)


@pytest.mark.skipif(not hasattr(_core, "cuda_plan"), reason="no CUDA backend in this build")
def test_a_gpu_joins_nothing_behind_attention():
    g, _ = graph_of(2, 512, 64)
    plan = json.loads(_core.cuda_plan(g._core, _core.pass_names(), math="mixed"))
    kernels = [op["kernel"] for op in plan["ops"]]
    assert "attention_grads_wgmma_bf16" in kernels
    assert not any("concat" in kernel for kernel in kernels)
