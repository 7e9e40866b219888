"""The end of a network of few classes in one launch: the product of its logits, their loss and its
gradient, and the product that takes this back."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits
from conftest import DEVICES

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

ALL = _core.pass_names()
APART = tuple(name for name in ALL if name != "tails")
WITHOUT_BLOCK = tuple(name for name in ALL if name != "block")


def graph_of(batch, hidden, classes, layers=2, bias=True, act=aicf.relu, keep=False, linear=False):
    rng = np.random.default_rng(batch + hidden)
    g = aicf.Graph("tail")
    h = g.input("x", (batch, 24))
    for i in range(layers):
        w = rng.standard_normal((hidden, h.shape[1])).astype("f4") / np.float32(5)
        w = g.param(f"w{i}", w.shape, init=w)
        h = act(aicf.linear(h, w) if linear else h @ w.T)
    w = rng.standard_normal((classes, hidden)).astype("f4") / np.float32(hidden**0.5)
    w, b = g.param("w", w.shape, init=w), None
    if bias:
        b = g.param("b", (classes,), init=rng.standard_normal(classes).astype("f4"))
    y = aicf.linear(h, w, b) if linear else h @ w.T if b is None else h @ w.T + b
    loss = aicf.cross_entropy(y, g.input("t", (batch,), "int64"))
    g.minimize(loss, aicf.optim.Adam(lr=1e-2))
    g.output("loss", loss)
    if keep:
        g.output("logits", y)
    x = rng.standard_normal((batch, 24)).astype("f4")
    return g, {"x": x, "t": rng.integers(0, classes, batch)}


def kernels(g, passes=WITHOUT_BLOCK, **options):
    plan = json.loads(_core.cuda_plan(g._core, passes, **options))
    return [op["kernel"] for op in plan["ops"]]


def bits(step, feed):
    for _ in range(3):
        loss = step(**feed)["loss"].numpy()
    return {"loss": loss, **{name: param.numpy() for name, param in step.params.items()}}


CASES = [
    ((5, 8, 2), {}),
    ((128, 512, 10), {}),
    ((129, 130, 32), {"act": aicf.tanh}),
    ((1, 33, 3), {"bias": False}),
    ((7, 515, 31), {}),
    ((300, 64, 9), {"layers": 1, "bias": False}),
    ((1031, 36, 1), {}),
    ((16, 24, 10), {"layers": 0}),
    ((64, 1024, 10), {"act": aicf.gelu}),
    ((128, 1024, 10), {}),  # in tf32 the logits alone by tensor cores
]


@pytest.mark.parametrize(("sizes", "options"), CASES)
def test_one_launch_takes_the_tail(sizes, options):
    g, _ = graph_of(*sizes, **options)
    joined, apart = kernels(g), kernels(g, [name for name in APART if name != "block"])
    back = "_gemm" if options.get("layers", 2) else ""
    assert any(f"fused_gemm_cross_entropy{back}_f32" in name for name in joined)
    assert len(joined) < len(apart)


def test_what_others_read_or_is_large_stays_apart():
    far = [
        graph_of(64, 32, 10, keep=True)[0],
        graph_of(64, 32, 33)[0],
        graph_of(2049, 32, 10)[0],
        graph_of(64, 4096, 10)[0],
    ]
    for g in far:
        assert not any(name.startswith("fused_gemm_cross") for name in kernels(g))
    g, _ = graph_of(128, 512, 10)  # by tensor cores whose step takes its terms in halves
    far = kernels(g, math="bf16", arch="sm_80")
    assert not any(name.startswith("fused_gemm_cross") for name in far)


@pytest.mark.parametrize("math", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize(("sizes", "options"), CASES)
def test_one_launch_takes_it_on_tensor_cores(sizes, options, math):
    """But where the product that goes back has terms enough to be one of tensor cores itself,
    which in tf32 it then is too small for."""
    g, _ = graph_of(*sizes, **options)
    back = "_gemm" if options.get("layers", 2) else ""
    joined = any(f"fused_gemm_cross_entropy{back}_f32" in name for name in kernels(g, math=math))
    assert joined == (sizes[2] < 32 or math == "tf32")


@pytest.mark.parametrize(("sizes", "options"), CASES)
def test_one_launch_takes_it_in_16_bits(sizes, options):
    """Logits become float32 behind their product, the gradient bfloat16 before its own; casts of
    one class move."""
    g, _ = graph_of(*sizes, **options, linear=True)
    back = "_gemm" if options.get("layers", 2) else ""
    joined = f"fused_gemm_cross_entropy{back}_bf16"
    assert any(joined in name for name in kernels(g, math="mixed")) == (1 < sizes[2] < 32)


@pytest.mark.parametrize("layers", range(1, 7))
@pytest.mark.parametrize("width", [256, 512, 784])
def test_a_step_of_layers_has_few_launches(layers, width):
    """Of a layer a product forward, two back and a sum; the tail takes three of them and the loss;
    updates are up to four launches."""
    g = aicf.Graph("dense")
    h = g.input("x", (128, width))
    for i in range(layers):
        h = aicf.relu(g.dense(str(i), h, width))
    loss = aicf.cross_entropy(g.dense("last", h, 10), g.input("t", (128,), "int64"))
    g.minimize(loss, aicf.optim.Adam(lr=1e-3))
    g.output("loss", loss)
    joined, apart = kernels(g), kernels(g, [name for name in APART if name != "block"])
    assert len(joined) < len(apart)
    updates = sum("adam_step" in name for name in joined)
    assert len(joined) <= 4 * (layers + 1) + updates - 1 and updates <= 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("sizes", "options"), CASES)
def test_bits_are_those_of_launches_apart(sizes, options, device):
    g, feed = graph_of(*sizes, **options)
    want = bits(g.compile(device="cpu", seed=1), feed)
    for passes in ("default", WITHOUT_BLOCK, APART, ("tails",), ("epilogue", "rows", "tails")):
        got = bits(g.compile(device=device, seed=1, passes=passes), feed)
        for name, value in want.items():
            assert_bits(got[name], value, f"{name} of {passes}")


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("math", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize(("sizes", "options"), CASES)
def test_bits_of_rounded_operands(sizes, options, math):
    g, feed = graph_of(*sizes, **options)
    want = bits(g.compile(device="cpu", seed=1, math=math, tensor_cores="sm_90"), feed)
    got = bits(g.compile(device="cuda", seed=1, math=math, passes=WITHOUT_BLOCK), feed)
    for name, value in want.items():
        assert_bits(got[name], value, name)


@pytest.mark.gpu
@pytest.mark.parametrize(("sizes", "options"), CASES)
def test_bits_in_16_bits(sizes, options):
    """Those of a CPU, and of launches apart."""
    g, feed = graph_of(*sizes, **options, linear=True)
    want = bits(g.compile(device="cpu", seed=1, math="mixed", tensor_cores="sm_90"), feed)
    for passes in (WITHOUT_BLOCK, APART):
        got = bits(g.compile(device="cuda", seed=1, math="mixed", passes=passes), feed)
        for name, value in want.items():
            assert_bits(got[name], value, f"{name} of {passes}")


@pytest.mark.parametrize("device", DEVICES)
def test_rows_without_numbers(device):
    g, feed = graph_of(70, 40, 10)
    feed["x"][3], feed["x"][5, 2], feed["x"][69] = np.nan, np.inf, -np.inf
    want = bits(g.compile(device="cpu", seed=1, passes=()), feed)
    got = bits(g.compile(device=device, seed=1, passes=WITHOUT_BLOCK), feed)
    for name, value in want.items():
        assert np.array_equal(got[name], value, equal_nan=True), name


@pytest.mark.parametrize(
    ("arch", "math"),
    [
        ("sm_80", "fp32"),
        ("sm_90a", "fp32"),
        ("sm_90a", "tf32"),
        ("sm_90a", "bf16"),
        ("sm_90a", "mixed"),
    ],
)
def test_the_kernel_compiles_without_spills(arch, math):
    for sizes, options in CASES:
        g, _ = graph_of(*sizes, **options, linear=math == "mixed")
        programs = _core.cuda_programs(g._core, WITHOUT_BLOCK, arch=arch, math=math)
        found = [text for text in programs if "loss_tail" in text]
        if math != "fp32" and not found:
            continue
        (program,) = found
        log = _core.cuda_log(program, arch)
        assert " 0 bytes spill stores" in log and "error" not in log
