"""Compiling takes time in proportion to the graph, and what it leaves out, it may leave out."""

import gc
import math
import runpy
from pathlib import Path

import aicf
import numpy as np
import pytest
from aicf import _core

BENCH = runpy.run_path(str(Path(__file__).parents[1] / "bench" / "compile.py"))
FEW, MANY = 2_500, 20_000
# What grows with the square has 2, what outgrows the caches of a busy machine up to 1.4.
STEEPEST = 1.65
SHORT = 0.015  # seconds at the larger size that no stage needs to explain
ROUNDS = 8


def check_slopes(measure):
    """`measure(nodes)` gives nodes made and seconds by part. The least seconds of a few rounds are
    compared, more of them while a part seems too steep: noise only adds."""
    least, counts, steep = ({}, {}), [0, 0], {}
    for _ in range(ROUNDS):
        for i, nodes in enumerate((FEW, MANY)):
            gc.collect()
            gc.disable()  # the collector's rounds depend on all that other tests have left
            try:
                counts[i], parts = measure(nodes)
            finally:
                gc.enable()
            for name, seconds in parts.items():
                least[i][name] = min(seconds, least[i].get(name, math.inf))
        steep = {
            name: math.log(seconds / max(least[0][name], 1e-6)) / math.log(counts[1] / counts[0])
            for name, seconds in least[1].items()
            if seconds > SHORT
        }
        steep = {name: slope for name, slope in steep.items() if slope > STEEPEST}
        if not steep:
            return
    raise AssertionError(f"exponents above {STEEPEST}: {steep}, seconds {least}")


def graph_of(shape, nodes, known={}):  # noqa: B006 (kept from test to test)
    if (shape, nodes) not in known:
        build = BENCH["SHAPES"][shape]
        known[shape, nodes] = build(BENCH["units_for"](build, nodes))
    return known[shape, nodes]


@pytest.mark.parametrize("shape", BENCH["SHAPES"])
def test_compile_is_linear(shape):
    """Each stage of it."""

    def measure(nodes):
        g = graph_of(shape, nodes)
        parts = {}
        for name, seconds in g.compile(device="cpu")._stages():
            parts[name] = parts.get(name, 0.0) + seconds
        return BENCH["node_count"](g), parts

    check_slopes(measure)


@pytest.mark.parametrize("shape", ["mlp", "wide", "params"])
def test_build_is_linear(shape):
    """Names, numbers and assigns are looked up, not searched; so is what backward asks."""
    build = BENCH["SHAPES"][shape]

    def measure(nodes):
        units = BENCH["units_for"](build, nodes)
        g, seconds = BENCH["timed"](lambda: build(units))
        return BENCH["node_count"](g), {"build": seconds}

    check_slopes(measure)


def test_files_are_linear():
    def measure(nodes):
        g = graph_of("mlp", nodes)
        text, written = BENCH["timed"](g.to_json)
        _, read = BENCH["timed"](lambda: aicf.Graph.from_json(text))
        _, lowered = BENCH["timed"](lambda: g.lower())
        return BENCH["node_count"](g), {"to_json": written, "from_json": read, "lower": lowered}

    check_slopes(measure)


def test_many_random_values_outputs_and_gradients_are_linear():
    """Streams, output names, and gradients of losses of their own."""

    def build(units):
        g = aicf.Graph()
        p = g.param("p", (3,))
        for i in range(units):
            y = aicf.dropout(p, 0.5)
            g.output(f"y{i}", y)
            if i % 8 == 0:
                g.backward(aicf.sum(y), [p])
        return g

    def measure(nodes):
        g, seconds = BENCH["timed"](lambda: build(nodes // 16))
        _, verified = BENCH["timed"](g.verify)
        return BENCH["node_count"](g), {"build": seconds, "verify": verified}

    check_slopes(measure)


# ---- the index of a graph


def test_names_after_a_failed_call():
    """A call that is taken back leaves its names, numbers, assigns and streams free."""
    g = aicf.Graph()
    p, x = g.param("p", (3,)), g.input("x", (3,))
    g.output("y", p * 2.0)
    before = g.to_json()
    core = g._core
    mark = core.mark()
    core.input("late", [3], "float32")
    core.assign(p.id, x.id)
    core.output("z", x.id, 1)
    core.scalar("float32", 7.0)
    first = aicf.dropout(x, 0.5)
    core.rollback(mark)
    assert g.to_json() == before
    assert core.find("late") < 0 and core.assigned(p.id) < 0 and core.find("rng.step") < 0
    assert core.free_stream() == 0
    g.input("late", (3,))
    g.assign(p, x)
    g.output("z", x * 7.0)
    again = aicf.dropout(x, 0.5)
    assert again.id >= first.id
    assert g.verify().ok and g.compile(device="cpu")


def test_the_first_of_a_name_counts():
    """Taking back a number or a name that stood there before keeps it."""
    g = aicf.Graph()
    x = g.input("x", (3,))
    two = (x * 2.0).graph._core.scalar("float32", 2.0)
    mark = g._core.mark()
    assert g._core.scalar("float32", 2.0) == two
    g._core.scalar("float64", 2.0)
    g._core.rollback(mark)
    assert g._core.scalar("float32", 2.0) == two
    assert g._core.scalar("float32", -0.0) != g._core.scalar("float32", 0.0)
    with pytest.raises(aicf.GraphError, match="taken by input %0"):
        g.input("x", (3,))


# ---- stages


def test_stages_add_up():
    g = BENCH["mlp"](20)
    stages = g.compile(device="cpu")._stages()
    names = [name for name, _ in stages]
    assert names[0] == "verify" and names[-1] == "capture"
    assert [n for n in names if n in _core.pass_names()] == _core.pass_names()
    assert all(taken >= 0 for _, taken in stages)
    assert np.isfinite(sum(taken for _, taken in stages))
