"""Losses of a chain's rows: their squares are added where the prediction is made."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits, assert_bits_of_passes

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

ALL = _core.pass_names()
WITHOUT = tuple(name for name in ALL if name != "losses")


def graph_of(rows, widths, keep=False, swapped=False, apart=0, bias=True, optimizer=None):
    rng = np.random.default_rng(rows)
    g = aicf.Graph("losses")
    h = g.input("x", (rows, widths[0]))
    for i, width in enumerate(widths[1:]):
        h = g.dense(str(i), aicf.gelu(h) if i else h, width, bias=bias)
    t = g.input("t", (rows, widths[-1] + 2 * apart))
    if apart:  # of the one before, so that 16 bytes do not lie together
        t = t[:, apart:-apart]
    loss = aicf.mse_loss(t, h) if swapped else aicf.mse_loss(h, t)
    if keep:
        g.output("h", h)
    g.minimize(loss, optimizer or aicf.optim.Adam(lr=1e-2))
    g.output("loss", loss)
    feed = {
        "x": rng.standard_normal((rows, widths[0]), dtype=np.float32),
        "t": rng.standard_normal((rows, widths[-1] + 2 * apart), dtype=np.float32),
    }
    return g, feed


def launches(g, math, passes=ALL):
    ops = json.loads(_core.cuda_plan(g._core, passes, 132, "sm_90a", math=math))["ops"]
    return [[m["op"] for m in op.get("members", [])] or [op["op"]] for op in ops]


def adds_squares(g, math="mixed"):
    found = [one for one in launches(g, math) if "subtree_sums" in one]
    assert len(found) <= 1 and all(one[-1] == "subtree_sums" for one in found)
    assert bool(found) != any("mse_loss" in one for one in launches(g, math))
    return bool(found)


def test_a_loss_of_a_chain_is_no_launch():
    """Casts of params, the chain, products and sums for gradients, updates."""
    g, _ = graph_of(16384, (64,) * 5)
    assert adds_squares(g) and adds_squares(g, "tf32")
    assert len(launches(g, "mixed")) == 5
    assert len(launches(g, "mixed", WITHOUT)) == 6


def test_which_losses_are_launches():
    assert adds_squares(graph_of(2048, (64, 64, 64))[0])
    assert adds_squares(graph_of(1040, (64, 32, 64), keep=True)[0])
    assert adds_squares(graph_of(2048, (64, 64, 64), apart=1)[0])
    for math in ("mixed", "tf32", "bf16"):
        assert adds_squares(graph_of(2048, (64, 64, 64), bias=False)[0], math)
    assert not adds_squares(graph_of(2048, (64, 64, 32))[0])  # no subtree in 16 rows
    assert not adds_squares(graph_of(2056, (64, 64, 64))[0])  # nor in the last 8
    assert not adds_squares(graph_of(512, (64, 64, 64))[0])  # no chain


def bits(step, feed):
    for _ in range(2):
        outputs = step(**feed)
    found = {name: value.numpy() for name, value in outputs.items()}
    return found | {name: param.numpy() for name, param in step.params.items()}


CASES = {
    "gelu": (1104, (64, 64, 64), {}),
    "many": (4304, (64, 64), {}),
    "kept": (1040, (64, 32, 64), {"keep": True}),
    "product": (1024, (64, 64, 64), {"bias": False}),
    "apart": (1040, (64, 64, 64), {"apart": 1}),
    "swapped": (1024, (40, 64, 64), {"swapped": True, "optimizer": aicf.optim.SGD(lr=0.1)}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("math", ["mixed", "bf16", "tf32"])
@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_a_launch(case, math):
    rows, widths, options = CASES[case]
    g, feed = graph_of(rows, widths, **options)
    assert_bits_of_passes(bits, g, feed, math, (ALL, WITHOUT))


@pytest.mark.gpu
def test_a_file(tmp_path):
    g, feed = graph_of(1040, (64, 64, 64))
    step = g.compile(device="cuda", seed=1, math="mixed")
    step.export(tmp_path / "step.aicf")
    want = bits(step, feed)
    got = bits(aicf.load_step(tmp_path / "step.aicf"), feed)
    for name, value in want.items():
        assert_bits(got[name], value, name)


@pytest.mark.parametrize("math", ["mixed", "tf32"])
def test_the_chain_compiles_without_spills(math):
    g, _ = graph_of(16384, (64,) * 5)
    found = [
        text
        for text in _core.cuda_programs(g._core, ALL, arch="sm_90a", math=math)
        if "squares = true" in text
    ]
    assert len(found) == adds_squares(g, math)
    for program in found:
        log = _core.cuda_log(program, "sm_90a")
        assert " 0 bytes spill stores" in log and "error" not in log
