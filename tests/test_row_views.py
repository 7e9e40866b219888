"""Norms whose rows are the last axes of a view: they read and write them where they lie."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

needs_compiler = pytest.mark.skipif(
    not _core.cuda_info()["nvrtc"], reason="NVRTC is not installed (aicf[cuda13])"
)


def norm(shape, dtype="float32", gradients=True, ends="relu"):
    """A batch norm; `ends`: what becomes of it."""
    rng = np.random.default_rng(len(shape))
    g = aicf.Graph("norm")

    def tensor(name, size):
        init = rng.standard_normal(size).astype("f4")
        return (
            aicf.cast(g.state(name, size, init=init), dtype)
            if dtype != "float32"
            else g.param(name, size, init=init)
        )

    x, w, b = tensor("x", shape), tensor("w", shape[1:2]), tensor("b", shape[1:2])
    skip, dy = tensor("skip", shape), tensor("dy", shape)
    y = aicf.batch_norm(x, None, None, w, b)
    if ends == "relu":
        y = aicf.relu(y + skip)
    elif ends == "branches":
        y = aicf.tanh(y) * aicf.sigmoid(y) + skip
    g.output("y", aicf.cast(y, "float32"))
    if gradients:
        for k, d in enumerate(aicf.grad(y, [x, w, b, skip], dy)):
            if d is not None:
                g.output(f"d{k}", aicf.cast(d, "float32"))
    return g


def ops_of(g, passes=None):
    plan = json.loads(_core.cuda_plan(g._core, passes or _core.pass_names(), 132, "sm_90a"))
    return [op.get("anchor") or op["op"] for op in plan["ops"]]


def test_a_batch_norm_is_one_launch():
    g = aicf.Graph("norm")
    x, w, b = g.input("x", (8, 32, 32, 32)), g.input("w", (32,)), g.input("b", (32,))
    y = aicf.batch_norm(x, None, None, w, b)
    g.output("y", y)
    assert ops_of(g) == ["normalize_axes"]
    dy = g.input("dy", y.shape)
    for k, d in enumerate(aicf.grad(y, [x, w, b], dy)):
        g.output(f"d{k}", d)
    ops = ops_of(g)
    assert sorted(ops) == ["normalize_axes", "normalize_axes_bwd", "reduce_sum", "reduce_sum"]


@pytest.mark.parametrize(
    "shape",
    [
        (8, 32),
        (8, 32, 5),
        (8, 32, 7, 7),
        (1, 32, 32, 32),
        (8, 1, 32, 32),
        (8, 32, 4, 4),
        (64, 131, 56, 56),
    ],
)
def test_other_rows_are_copied(shape):
    """Those of short runs, those that lie side by side, and few that no block can hold."""
    assert not [op for op in ops_of(norm(shape)) if "axes" in op]


def test_rows_for_all_processors_are_streamed():
    assert [op for op in ops_of(norm((64, 132, 56, 56))) if "axes" in op]


def test_what_is_not_joined_keeps_its_order():
    """An op around a norm that cannot join it goes through its elements as they lie in memory."""
    g = aicf.Graph("norm")
    x, w = g.input("x", (8, 32, 32, 32)), g.input("w", (32,))
    y = aicf.batch_norm(x, None, None, w)
    g.output("y", y)
    for k in range(20):  # more operands than a kernel takes
        y = y * g.input(f"x{k}", y.shape)
    g.output("last", y)
    plan = json.loads(_core.cuda_plan(g._core, _core.pass_names(), 132, "sm_90a"))
    ops = {op.get("anchor") or op["op"]: op for op in plan["ops"]}
    assert set(ops) == {"normalize_axes", "region"}
    for view in [*ops["region"]["inputs"], *ops["region"]["outputs"]]:
        assert view["strides"] == [32768, 1024, 32, 1]


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(8, 32, 32, 32), (16, 64, 32, 32), (20, 16, 32, 32)])
def test_none_is_spilled(shape, dtype):
    found = 0
    for program in _core.cuda_programs(
        norm(shape, dtype)._core, _core.pass_names(), 132, arch="sm_90a"
    ):
        if "normalize_axes" in program:
            found += 1
            assert " 0 bytes spill stores" in _core.cuda_log(program, "sm_90a")
    assert found == 2


@pytest.mark.gpu
@pytest.mark.parametrize("ends", ["relu", "branches", "alone"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "shape",
    [
        (3, 5, 8, 8),
        (8, 32, 16, 16),
        (2, 3, 4, 6, 8),
        (5, 4, 2, 36),
        (40, 2, 20, 32),
        (7, 2, 96, 96),
        (7, 5, 96, 96),
    ],
)
def test_bits(shape, dtype, ends):
    """Of a GPU, in one launch and with copies, and of a CPU."""
    results = []
    for device, passes in (("cpu", "default"), ("cuda", "default"), ("cuda", [])):
        step = norm(shape, dtype, ends=ends).compile(device=device, passes=passes)
        results.append({name: value.numpy() for name, value in step().items()})
    for other in results[1:]:
        for name, value in results[0].items():
            assert value.tobytes() == other[name].tobytes(), name


@pytest.mark.gpu
@pytest.mark.parametrize("math", ["fp32", "mixed"])
def test_bits_of_a_network(math):
    """Convolutions, norms with running statistics and a skip: states are overwritten meanwhile."""
    rng = np.random.default_rng(0)
    ends, images = [], rng.standard_normal((4, 3, 12, 16)).astype("f4")
    weights = [rng.standard_normal((8, c, 3, 3)).astype("f4") * 0.2 for c in (3, 8, 8)]
    for device, passes in (("cpu", "default"), ("cuda", "default"), ("cuda", [])):
        g = aicf.Graph("network")
        x, skip = g.state("x", images.shape, init=images), None
        for k, init in enumerate(weights):
            w = g.param(f"w{k}", init.shape, init=init)
            mean, var = g.state(f"mean{k}", (8,)), g.state(f"var{k}", (8,))
            scale, shift = (g.param(f"{s}{k}", (8,), init=np.ones(8, "f4")) for s in "ab")
            x = aicf.conv2d(x, w, padding=1)
            x = aicf.batch_norm(x, mean, var, scale, shift)
            x = aicf.relu(x if skip is None else x + skip)
            skip = x
        loss = aicf.mean(x * x)
        g.output("loss", loss)
        g.minimize(loss, aicf.optim.SGD(lr=0.1))
        step = g.compile(device=device, passes=passes, math=math, seed=1)
        losses = [step()["loss"].numpy().tobytes() for _ in range(3)]
        ends.append((losses, {k: v.tobytes() for k, v in step.state_dict().items()}))
    assert ends[0] == ends[2]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("dtype", "spans"), [("bfloat16", True), ("float16", True), ("float32", False)]
)
@pytest.mark.parametrize("gradient", [False, True])
def test_a_row_of_16_bits_asks_once_how_it_is_stored(dtype, spans, gradient):
    g = aicf.Graph("softmax")
    x = g.state("x", (16384, 768), dtype)
    y = aicf.softmax(x)
    if gradient:
        (y,) = aicf.grad(y, [x], g.state("dy", y.shape, dtype))
    g.output("y", y)
    for text in _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a"):
        assert f"spans = {str(spans).lower()};" in text


def test_norms_that_are_read_ahead_ask_once_anyhow():
    g = aicf.Graph("norm")
    g.output("y", aicf.layer_norm(g.input("x", (16384, 768), "bfloat16"), 768))
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
    assert "normalize_ahead<" in text and "spans = false;" in text
    assert text.count("bool together() const") == 2  # of what is read and of what is stored


@pytest.mark.parametrize(
    ("shape", "kernel", "once"),
    [
        ((1 << 24, 16), "reduce_short", False),
        ((1 << 20, 256), "reduce_rows", True),
        ((1 << 14, 16), "reduce_rows", True),  # too few to have several at once
        ((1 << 14, 1 << 14), "reduce_rows", True),
    ],
)
def test_which_rows_of_sums_pass_the_first_cache(shape, kernel, once):
    g = aicf.Graph("sums")
    g.output("y", aicf.sum(g.input("x", shape), axis=1))
    (text,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
    assert f"    {kernel}<" in text and ("Loads::once>" in text) == once


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize(("n", "dtype"), [(8, "float32"), (16, "float32"), (16, "float64")])
def test_bits_of_sums_of_many_short_rows(n, dtype, offset):
    """Of which lanes have several at once, all of them read as the first one is."""
    (gpu, *_) = _core.cuda_info()["devices"]
    count = 8 * 2048 * gpu["multiprocessors"] * 4 // n + 37
    rng = np.random.default_rng(n)
    init = rng.standard_normal((count, n + offset)).astype(dtype)
    init[1, :3] = np.inf, -1.0, np.nan
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("sums")
        x = g.state("x", init.shape, dtype, init=init)[:, offset:]
        for name in ("sum", "max", "prod"):
            g.output(name, getattr(aicf, name)(x, axis=-1))
        step = g.compile(device=device, checks="off")()
        ends.append({name: value.numpy() for name, value in step.items()})
    for name, value in ends[0].items():
        np.testing.assert_array_equal(value, ends[1][name])
