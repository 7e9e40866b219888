"""Rows where the kernels that take them change: lanes of a warp, warps, blocks, memory."""

import itertools
import json

import aicf
import numpy as np
import pytest
from aicf import _core

needs_compiler = pytest.mark.skipif(
    not _core.cuda_info()["nvrtc"], reason="NVRTC is not installed (aicf[cuda13])"
)
DTYPES = ("float32", "bfloat16", "float64")
EDGES = {value for *_, what, value in _core.cuda_thresholds() if what == "rows.terms"}
LENGTHS = sorted({1, 3, 100, 300, 1500, 33000} | EDGES | {n + 1 for n in EDGES})


def rows_of(n, count, dtype):
    """Softmax, norms, losses and reductions of rows of n."""
    held = "float32" if dtype == "bfloat16" else dtype
    rng = np.random.default_rng(n)
    g = aicf.Graph("rows")
    x, dy = (
        aicf.cast(
            g.state(
                name, (count, n), held, init=(3 * rng.standard_normal((count, n))).astype(held)
            ),
            dtype,
        )
        for name in ("x", "dy")
    )
    w, b = g.param("w", (n,), dtype), g.param("b", (n,), dtype)

    def out(name, value):
        g.output(name, aicf.cast(value, held) if held != dtype else value)

    values = {
        "softmax": aicf.softmax(x),
        "log_softmax": aicf.gelu(aicf.log_softmax(x * 2)),
        "layer_norm": aicf.layer_norm(x, n, w, b),
        "rms_norm": aicf.rms_norm(x, n, w),
    }
    for name, y in values.items():
        out(name, y)
        out(f"d_{name}", g.backward(y, [x], grad=dy)[x])
    loss = aicf.cross_entropy(x, g.constant(np.arange(count) % n))
    out("loss", loss)
    out("d_loss", g.backward(loss, [x])[x])
    out("sum", aicf.sum(aicf.exp(x), axis=-1))
    out("largest", aicf.max(x, axis=-1))
    out("smallest", aicf.min(x, axis=-1))
    return g


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "dtype"), itertools.product(LENGTHS, DTYPES))
def test_bits(n, dtype):
    """Of a GPU, in groups and apart, and of a CPU."""
    count = 130 if n <= 2100 else 3
    ends = []
    runs = [("cpu", "default"), ("cuda", "default"), ("cuda", [])]
    for device, passes in runs if dtype == "float32" else runs[:2]:
        step = rows_of(n, count, dtype).compile(device=device, seed=1, passes=passes)
        ends.append({name: value.numpy() for name, value in step().items()})
    for other in ends[1:]:
        for name, value in ends[0].items():
            assert value.tobytes() == other[name].tobytes(), name


@needs_compiler
@pytest.mark.parametrize("n", [2, 10, 100, 513, 16384])
def test_registers_hold_a_row(n):
    """None is spilled, whoever takes it."""
    for passes in (_core.pass_names(), []):
        g = rows_of(n, 64, "float32")
        for program in _core.cuda_programs(g._core, passes, 132, arch="sm_90a"):
            if "HolderOf" in program:
                assert " 0 bytes spill stores" in _core.cuda_log(program, "sm_90a"), program[-400:]


@pytest.mark.gpu
@pytest.mark.parametrize("n", [100, 513, 3000, 16384, 33000])
def test_logits_take_the_place_of_what_they_are_made_of(n):
    """The element of the label is read before: a loss that reads it afterwards makes it twice."""
    rng, count = np.random.default_rng(n), 300
    g = aicf.Graph("logits")
    rows = g.param("rows", (50, n), init=rng.standard_normal((50, n)).astype("f4"))
    z = aicf.take(rows, g.constant(rng.integers(0, 50, count))) * 2.0 + 1.0
    g.output("loss", aicf.cross_entropy(z, g.constant(rng.integers(0, n, count))))
    g.output("order", aicf.argmax(aicf.cumsum(z, axis=1), axis=1))
    values = json.loads(_core.cuda_plan(g._core, _core.pass_names()))["values"].values()
    places = {value["name"]: value["storage"] for value in values}
    assert places["add_out"] == places["take_out"]
    host, device = (g.compile(device=device, seed=1) for device in ("cpu", "cuda"))
    want = host()["loss"].numpy().tobytes()
    assert [device()["loss"].numpy().tobytes() for _ in range(20)] == [want] * 20
