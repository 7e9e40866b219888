"""Small gradients cut along k, or along the rows that they sum: the update adds their cuts."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits, assert_bits_of_passes

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

ALL = _core.pass_names()
WITHOUT = tuple(name for name in ALL if name != "cuts")
APART = tuple(name for name in ALL if name != "update_epilogues")


def graph_of(rows, widths, update=None, keep=False):
    rng = np.random.default_rng(rows)
    g = aicf.Graph("cuts")
    h = g.input("x", (rows, widths[0]))
    for i, width in enumerate(widths[1:]):
        h = g.dense(str(i), aicf.tanh(h) if i else h, width)
    loss = aicf.mse_loss(h, g.input("t", h.shape))
    if keep:
        (grad,) = aicf.grad(loss, [g.params["0.W"]])
        g.output("grad", grad)
    g.minimize(loss, update or aicf.optim.Adam(lr=1e-2))
    g.output("loss", loss)
    feed = {
        "x": rng.standard_normal((rows, widths[0]), dtype=np.float32),
        "t": rng.standard_normal((rows, widths[-1]), dtype=np.float32),
    }
    return g, feed


def cuts_of(g, math, passes=ALL):
    """Of each gradient that an update adds: how many."""
    ops = json.loads(_core.cuda_plan(g._core, passes, 132, "sm_90a", math=math))["ops"]
    updates = [op for op in ops if op.get("anchor", "").endswith("_step")]
    updates += [
        m for op in ops for m in op.get("members", []) if m.get("anchor", "").endswith("_step")
    ]
    return sorted(
        op["inputs"][step["inputs"][0]]["shape"][0]
        for op in updates
        for step in op["body"]
        if step["op"] == "reduce_sum"
    )


def test_whose_cuts_updates_add():
    # Products of 1,024 terms, sums of 256.
    assert cuts_of(graph_of(16384, (64, 64, 64))[0], "mixed") == [16, 16, 64, 64]
    assert cuts_of(graph_of(16384, (64, 64, 64))[0], "mixed", WITHOUT) == []
    # In tf32 products go on through copies of their operands; sums are of float32.
    # Of no more than 16 each, where updates wait for cuts of no product.
    assert cuts_of(graph_of(4096, (64, 64, 64))[0], "tf32", APART) == [16, 16]
    assert cuts_of(graph_of(16384, (64, 64, 64))[0], "tf32", APART) == []


def test_whose_cuts_stay_with_their_blocks():
    assert cuts_of(graph_of(16385, (64, 64, 64))[0], "mixed") == []  # the last is a shorter one
    assert cuts_of(graph_of(65536, (64, 64, 64))[0], "mixed") == [16, 16]  # more than 64 sums
    assert cuts_of(graph_of(16384, (512, 512, 512))[0], "mixed") == []  # large
    kept = cuts_of(graph_of(16384, (64, 64, 64), keep=True)[0], "mixed")  # which are an output
    assert kept == [16, 64, 64]


def test_cuts_that_are_no_products_stay_with_their_blocks():
    # Of 8 x 16 results one of 512 terms has less than the 2^17 multiplications of tensor cores.
    assert cuts_of(graph_of(4096, (8, 16, 16))[0], "mixed", APART) == [8, 16, 16]
    assert cuts_of(graph_of(4096, (16, 16, 16))[0], "mixed", APART) == [8, 8, 16, 16]


def test_updates_that_are_epilogues_add_no_cuts():
    assert cuts_of(graph_of(2048, (64, 64, 64))[0], "fp32") == []
    assert cuts_of(graph_of(2048, (64, 64, 64))[0], "fp32", APART) == [8, 8]


def test_scalars_of_such_updates_are_made_beside_products():
    """As the updates wait for the cuts' products, which share a launch."""

    def scalars(rows, widths, passes=ALL):
        g, _ = graph_of(rows, widths)
        ops = json.loads(_core.cuda_plan(g._core, passes, 132, "sm_90a", math="mixed"))["ops"]
        return [
            {m["op"] for m in op.get("members", [])}
            for op in ops
            if any(m["op"] == "bias_corr" for m in op.get("members", op.get("body", [])))
        ]

    assert scalars(16384, (64,) * 5) == [{"gemm_f32", "bias_corr"}]
    assert scalars(16384, (64,) * 5, WITHOUT) == [set()]  # an update's
    alone = tuple(name for name in ALL if name != "horizontal")
    assert scalars(16384, (64,) * 5, alone) == [set()]


def bits(step, feed):
    for _ in range(3):
        loss = step(**feed)["loss"].numpy()
    return {"loss": loss, **{name: param.numpy() for name, param in step.params.items()}}


@pytest.mark.gpu
@pytest.mark.parametrize("math", ["mixed", "bf16", "tf32"])
@pytest.mark.parametrize(
    "update", [aicf.optim.Adam(lr=1e-2), aicf.optim.SGD(lr=0.1)], ids=["adam", "sgd"]
)
@pytest.mark.parametrize(
    ("rows", "widths"),
    [(2048, (64, 64, 64)), (2048, (24, 72, 8)), (2048, (128, 129, 60)), (4096, (16, 16, 16))],
    ids=str,
)
def test_bits_are_those_of_sums_by_blocks(rows, widths, update, math):
    g, feed = graph_of(rows, widths, update)
    assert math != "mixed" or rows < 4096 or cuts_of(g, math, APART) == [8, 8, 16, 16]
    assert_bits_of_passes(bits, g, feed, math, (ALL, APART, WITHOUT))


@pytest.mark.parametrize("widths", [(64, 64, 64), (128, 129, 60)], ids=str)
def test_the_update_compiles_without_spills(widths):
    g, _ = graph_of(2048, widths)
    programs = _core.cuda_programs(g._core, APART, arch="sm_90a", math="mixed")
    found = [text for text in programs if "R* cuts" in text]
    assert found
    for program in found:
        log = _core.cuda_log(program, "sm_90a")
        assert " 0 bytes spill stores" in log and "error" not in log


@pytest.mark.gpu
def test_a_file_holds_updates_of_cuts(tmp_path):
    g, feed = graph_of(2048, (64, 64, 64))
    assert cuts_of(g, "mixed", APART)
    step = g.compile(device="cuda", seed=1, math="mixed", passes=APART)
    step.export(tmp_path / "step.aicf")
    want = bits(step, feed)
    got = bits(aicf.load_step(tmp_path / "step.aicf"), feed)
    for name, value in want.items():
        assert_bits(got[name], value, name)


@pytest.mark.gpu
def test_a_sum_of_negative_zeros_is_one():
    def build():
        g = aicf.Graph("zeros")
        x = g.input("x", (1024, 64))
        y = g.dense("1", g.dense("0", x, 64), 64)
        g.minimize(-aicf.mse_loss(y, g.input("t", y.shape)), aicf.optim.SGD(lr=0.5))
        return g

    zeros = np.zeros((1024, 64), np.float32)
    assert cuts_of(build(), "mixed", APART) == [4, 4]
    for device, passes in (("cpu", ALL), ("cuda", ALL), ("cuda", APART), ("cuda", WITHOUT)):
        cores = {"tensor_cores": "sm_90"} if device == "cpu" else {}
        step = build().compile(device=device, seed=1, math="mixed", passes=passes, **cores)
        for name in ("0.b", "1.b"):
            step.params[name] = np.full(64, -0.0, np.float32)
        step(x=zeros, t=zeros)
        assert not np.signbit(step.params["1.b"].numpy()).any(), (device, passes)
