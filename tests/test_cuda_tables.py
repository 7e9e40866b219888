"""Functions of one number of 16 bits, which a GPU looks up where there are many."""

import aicf
import numpy as np
import pytest
from aicf import _core

needs_compiler = pytest.mark.skipif(
    not _core.cuda_info()["nvrtc"], reason="NVRTC is not installed (aicf[cuda13])"
)


def chain(x, k):
    """Worth a table from 9.9 million elements of bfloat16 on, 2.9 million of float16."""
    return aicf.tanh(aicf.sin(x * k + 0.3) * x + aicf.exp(-(x * x))) * aicf.sigmoid(x)


MANY = {"bfloat16": 10 << 20, "float16": 1 << 22}


def graph_of(count, dtype, data=None, cut=0):
    g = aicf.Graph("table")
    x = g.state("x", (count + cut,), dtype, init=data)
    y = chain(x[cut:], g.state("k", (), dtype, init=np.float32(1.7).astype(dtype_of(dtype))))
    g.output("y", y)
    return g


def dtype_of(name):
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", MANY)
def test_many_are_looked_up(dtype, arch):
    """On a device whose blocks have room for a table, where it is worth its making."""
    for count, many in ((MANY[dtype] // 2, False), (MANY[dtype], True)):
        g = graph_of(count, dtype)
        (program,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch=arch)
        assert ("look_up" in program) == (many and arch == "sm_90a")


@pytest.mark.parametrize(
    "function",
    [
        lambda g, x: aicf.sin(x) + g.input("z", x.shape, x.dtype),
        lambda g, x: aicf.cast(aicf.sin(x), "float32"),
        lambda g, x: aicf.sin(aicf.transpose(x)),
        lambda g, x: aicf.relu(x),
        lambda g, x: aicf.sin(aicf.cast(x, "float32")),
    ],
    ids=["of two", "wide", "turned", "cheap", "unrounded"],
)
def test_others_are_computed(function):
    g = aicf.Graph("other")
    g.output("y", function(g, g.input("x", (1 << 13, 1 << 13), "bfloat16")))
    for program in _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a"):
        assert "look_up" not in program


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_registers_hold_what_is_on_its_way(dtype):
    g = graph_of(MANY[dtype], dtype)
    (program,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
    assert " 0 bytes spill stores" in _core.cuda_log(program, "sm_90a")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("cut", [0, 1])
def test_bits(dtype, cut):
    """Of all numbers there are, as a CPU makes them; rows that begin where no eight elements do."""
    count = MANY[dtype] + 5
    data = np.resize(np.arange(1 << 16, dtype=np.uint16), count + cut).view(dtype_of(dtype))
    ends = []
    for device in ("cpu", "cuda"):
        step = graph_of(count, dtype, data, cut).compile(device=device, checks="off")
        step()
        ends.append(step()["y"].numpy().astype(dtype_of(dtype)).view(np.uint16))
    wide = ends[0].view(dtype_of(dtype)).astype(np.float32)
    known = ~np.isnan(wide)
    assert np.array_equal(known, ~np.isnan(ends[1].view(dtype_of(dtype)).astype(np.float32)))
    assert np.array_equal(ends[0][known], ends[1][known])


BRAIN = ("exp", "sigmoid", "silu", "tanh", "sin", "cos")


@pytest.mark.parametrize("name", BRAIN)
def test_short_forms_are_computed(name):
    """Of bfloat16 there is a form that takes less than a look into a table."""
    for dtype, form in (("bfloat16", True), ("float16", False)):
        g = aicf.Graph("short")
        x = g.input("x", (1 << 26,), dtype)
        g.output("y", getattr(aicf, name)(x))
        (program,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
        assert (f"scalar::{name}_brain(" in program) == form
        assert not (form and "look_up" in program)


@pytest.mark.gpu
@pytest.mark.parametrize("error", ["-1", "0", "1"])
@pytest.mark.parametrize("name", BRAIN)
def test_short_forms_have_the_bits_of_the_long_ones(name, error, monkeypatch):
    """Of each of the 65,536 numbers, alone and inside a chain; a CPU has the long ones. `error`: on
    the emulator the approximations that they are made of lie off by their bound."""
    monkeypatch.setenv("EMULATED_ERROR", error)
    data = np.arange(1 << 16, dtype=np.uint16).view(dtype_of("bfloat16"))
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("short")
        x = g.state("x", data.shape, "bfloat16", init=data)
        y = getattr(aicf, name)(x)
        g.output("y", y)
        g.output("chain", getattr(aicf, name)(x * 3) * y)
        step = g.compile(device=device, checks="off")()
        ends.append([step[k].numpy().astype(np.float32) for k in ("y", "chain")])
    for cpu, gpu in zip(*ends, strict=True):
        np.testing.assert_array_equal(np.isnan(cpu), np.isnan(gpu))
        known = ~np.isnan(cpu)
        assert cpu[known].tobytes() == gpu[known].tobytes()
