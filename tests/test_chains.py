"""Narrow layers over many rows in one launch, each block of which takes its rows through all."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits, assert_bits_of_passes

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

ALL = _core.pass_names()
WITHOUT = tuple(name for name in ALL if name != "chains")
MODES = ["mixed", "tf32", "bf16", "fp16"]


def graph_of(rows, widths, act=aicf.gelu, loss="mse"):
    rng = np.random.default_rng(rows)
    g = aicf.Graph("chain")
    h = g.input("x", (rows, widths[0]))
    for i, width in enumerate(widths[1:]):
        h = g.dense(str(i), act(h) if i else h, width)
    feed = {"x": rng.standard_normal((rows, widths[0]), dtype=np.float32)}
    if loss == "mse":
        feed["t"] = rng.standard_normal((rows, widths[-1]), dtype=np.float32)
        value = aicf.mse_loss(h, g.input("t", h.shape))
    else:
        feed["t"] = rng.integers(0, widths[-1], rows)
        value = aicf.cross_entropy(h, g.input("t", (rows,), "int64"))
    g.minimize(value, aicf.optim.Adam(lr=1e-2))
    g.output("loss", value)
    return g, feed


def plan_of(g, math, passes=ALL, arch="sm_90a"):
    return json.loads(_core.cuda_plan(g._core, passes, 132, arch, math=math))["ops"]


def chains(g, math, **options):
    """Members of each, but for one that adds the squares of a loss."""
    ops = plan_of(g, math, **options)
    members = [[m["op"] for m in op["members"]] for op in ops if op["op"] == "chain"]
    return [len(one) - one.count("subtree_sums") for one in members]


CASES = [
    ((1024, (64, 64, 64, 64)), {}),
    ((1100, (24, 64, 40, 8)), {"act": aicf.relu}),  # rows that fill no tile, columns that fill none
    ((2050, (63, 33, 33, 33)), {"act": aicf.tanh}),  # lines that begin anywhere
    ((1500, (200, 48, 48, 10)), {"loss": "labels"}),
    ((1100, (256, 64, 64)), {}),  # as much as shared memory has room for
    ((1030, (64, 48, 64)), {"act": aicf.silu}),
    ((1036, (64, 64, 32, 64)), {"act": lambda h: aicf.gelu(h, approximate="tanh")}),
    ((4300, (64, 40, 64)), {}),  # rows that leave no processor without a block
    ((1040, (64,) * 6), {}),  # weight gradients whose cuts are blocks' share a launch, too
]


@pytest.mark.parametrize("math", MODES)
def test_what_shares_a_launch(math):
    """Forward, the gradient of the loss, and all the way back; fewer launches by as many."""
    g, _ = graph_of(16384, (64,) * 5)
    cast = math == "mixed"  # of the rows, beside products of 16 bits
    assert chains(g, math) == [7 + cast]
    assert len(plan_of(g, math)) <= len(plan_of(g, math, WITHOUT)) - 6 - cast


def test_what_has_no_storage():
    """What functions of later members alone read lies in a block's shared memory."""

    def results(widths, act, math="mixed"):
        g, _ = graph_of(16384, widths, act)
        (chain,) = (op for op in plan_of(g, math) if op["op"] == "chain")
        members = [m for m in chain["members"] if m["op"] != "subtree_sums"]
        made = sum(len(member["outputs"]) for member in members)
        return made - len(chain["outputs"]) + len(chain["members"]) - len(members)

    # The squares of the loss, and what went into each gelu.
    assert results((64,) * 5, aicf.gelu) == 1 + 3
    assert results((64,) * 5, aicf.relu) == 1  # whose gradient takes its result, as weights' does
    assert results((64,) * 5, aicf.gelu, "tf32") == 1  # there is no room for two blocks


def chain_texts(g, math):
    programs = _core.cuda_programs(g._core, ALL, arch="sm_90a", math=math)
    return [text for text in programs if "chain_" in text and "unroll 1\n    for (int i" in text]


def test_slopes_are_made_where_their_functions_are():
    """A chain keeps what multiplies the gradient, where it has room for float32."""

    def slopes(widths, math="mixed"):
        (text,) = chain_texts(graph_of(16384, widths)[0], math)
        return ["scalar::gelu_erf_slope" in text, "scalar::gelu_erf_bwd" in text]

    assert slopes((64,) * 5) == [True, False]
    assert slopes((64,) * 4, "tf32") == [True, False]
    assert slopes((64,) * 5, "tf32") == [False, True]  # nothing stays in shared memory
    assert slopes((64,) * 8) == [False, True]  # room for what went into each gelu, no more


def test_blocks_by_rows():
    """Of 32 rows where each processor has one at most, then of 64; two warps have 16, but of many
    rows in words."""
    for rows, math, block, warps in (
        (1024, "mixed", 32, 2),
        (32 * 132, "tf32", 32, 2),
        (32 * 132 + 1, "mixed", 64, 2),
        (1 << 16, "mixed", 64, 2),
        (1 << 15, "tf32", 64, 2),
        ((1 << 15) + 1, "tf32", 64, 1),
    ):
        (text,) = chain_texts(graph_of(rows, (64,) * 4)[0], math)
        assert f"chain_link<{block}, 64, 32, {warps}, " in text


def test_weight_gradients_share_a_launch():
    """Of the same shape, each by a few blocks; those that fill the device do not."""

    def shared(rows, widths, passes=ALL):
        ops = plan_of(graph_of(rows, widths)[0], "mixed", passes)
        groups = [[m["op"] for m in op["members"]] for op in ops if op["op"] == "group"]
        beside = {"bias_corr"}
        return [
            sum(op not in beside for op in group)
            for group in groups
            if set(group) - beside <= {"gemm", "gemm_f32"} and set(group) != beside
        ]

    assert shared(16384, (64,) * 5) == [4]
    assert shared(16384, (64,) * 5, tuple(name for name in ALL if name != "horizontal")) == []
    assert shared(4096, (1024,) * 5) == []


def test_what_stays_apart():
    for rows, widths, math in (
        (16384, (64,) * 5, "fp32"),  # by no tensor cores
        (512, (64,) * 5, "mixed"),
        (16384, (65,) * 5, "mixed"),
        (1 << 17, (64,) * 5, "mixed"),
    ):
        assert chains(graph_of(rows, widths)[0], math) == []
    g, _ = graph_of(16384, (64,) * 5)
    assert chains(g, "mixed", arch="sm_80") == []
    g, _ = graph_of(16384, (64, 64, 512, 64, 64))  # a wide layer between two narrow ones
    assert chains(g, "mixed") == [2]
    # Shared memory has room for rows and two layers' weights of 256 terms in 16 bits, not in 32.
    g, _ = graph_of(16384, (256, 64, 64, 64))
    assert (chains(g, "mixed"), chains(g, "tf32")) == ([6], [4])


def bits(step, feed):
    for _ in range(3):
        loss = step(**feed)["loss"].numpy()
    return {"loss": loss, **{name: param.numpy() for name, param in step.params.items()}}


@pytest.mark.gpu
@pytest.mark.parametrize("math", MODES)
@pytest.mark.parametrize(("sizes", "options"), CASES, ids=[str(sizes) for sizes, _ in CASES])
def test_bits_are_those_of_launches_apart(sizes, options, math):
    g, feed = graph_of(*sizes, **options)
    assert chains(g, math)
    assert_bits_of_passes(bits, g, feed, math, (ALL, WITHOUT))


@pytest.mark.gpu
@pytest.mark.slow
def test_bits_of_many_rows_in_words():
    g, feed = graph_of((1 << 15) + 1, (32, 32, 32))
    assert chains(g, "tf32")
    assert_bits_of_passes(bits, g, feed, "tf32", (ALL, WITHOUT))


@pytest.mark.gpu
def test_a_file_has_the_same_bits(tmp_path):
    g, feed = graph_of(1100, (64,) * 5)
    step = g.compile(device="cuda", seed=1, math="mixed")
    step.export(tmp_path / "step.aicf")
    want, got = bits(step, feed), bits(aicf.load_step(tmp_path / "step.aicf"), feed)
    for name, value in want.items():
        assert_bits(got[name], value, name)


@pytest.mark.parametrize("math", MODES)
def test_the_kernel_compiles_without_spills(math):
    for sizes, options in CASES:
        g, _ = graph_of(*sizes, **options)
        found = chain_texts(g, math)
        assert found
        for program in found:
            log = _core.cuda_log(program, "sm_90a")
            assert " 0 bytes spill stores" in log and "error" not in log
