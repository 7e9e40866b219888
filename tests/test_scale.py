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


# ---- the plan against every pair of ops


def touches(plan, op):
    """(space, begin, end, writes) of an op's operands and workspace."""
    found = []
    for key in ("inputs", "outputs"):
        for view in op[key]:
            place = plan.values[str(view["value"])]
            space = place["region"] if place["offset"] >= 0 else place["storage"]
            begin = max(place["offset"], 0)
            found.append((space, begin, begin + place["bytes"], key == "outputs"))
    if op["workspace"]:
        found.append(("workspace", 0, op["workspace"], True))
    return found


def meet(a, b):
    return any(
        x[0] == y[0] and x[1] < y[2] and y[1] < x[2] and (x[3] or y[3]) for x in a for y in b
    )


def waits_of(plan):
    """For each op the fewest earlier ones that order it behind all whose memory it meets."""
    touched = [touches(plan, op) for op in plan.ops]
    before, result = [], []
    for i in range(len(touched)):
        mine, waits = set(), []
        for j in range(i - 1, -1, -1):
            if j not in mine and meet(touched[i], touched[j]):
                waits.append(j)
                mine |= {j} | before[j]
        before.append(mine)
        result.append(sorted(waits))
    return result


def places_of(plan):
    """Every temporary at the lowest offset free over its life, the largest first."""
    first, last = {}, {}
    for i, op in enumerate(plan.ops):
        for view in op["outputs"]:
            first.setdefault(view["value"], i)
        for view in op["inputs"] + op["outputs"]:
            last[view["value"]] = i
    lives = {}
    for id, place in plan.values.items():
        id, root = int(id), place["storage"]
        if place["region"] != "temps" or id not in first:
            continue
        begin, end = lives.get(root, (math.inf, -1))
        lives[root] = (min(begin, first[id]), max(end, last[id]))
    placed = {}
    for id in sorted(lives, key=lambda id: (-plan.values[str(id)]["bytes"], id)):
        bytes = -(-plan.values[str(id)]["bytes"] // 256) * 256
        begin, end = lives[id]
        busy = sorted(
            (offset, offset + size)
            for other, (offset, size) in placed.items()
            if lives[other][0] <= end and begin <= lives[other][1]
        )
        offset = 0
        for low, high in busy:
            if offset + bytes <= low:
                break
            offset = max(offset, high)
        placed[id] = (offset, bytes)
    return {id: offset for id, (offset, _) in placed.items()}


def random_net(rng):
    """Layers, norms, shared params and skips, trained by a random optimizer."""
    g = aicf.Graph("net")
    widths = [int(w) for w in rng.choice([3, 5, 8, 16, 33], 3)]
    values = [g.input("x", (int(rng.choice([2, 7])), widths[0]))]
    shared = {}
    for i in range(int(rng.integers(4, 30))):
        x = values[int(rng.beta(3, 1) * len(values) * 0.9999)]
        width = x.shape[-1]
        match int(rng.integers(7)):
            case 0 | 1:
                y = g.dense(f"d{i}", x, int(rng.choice(widths)))
            case 2:
                y = aicf.relu(x)
            case 3:
                y = aicf.layer_norm(x, width)
            case 4:
                y = aicf.softmax(x)
            case 5:
                like = [v for v in values if v.shape == x.shape]
                y = x + like[int(rng.integers(len(like)))]
            case _:
                if width not in shared:
                    shared[width] = g.param(f"s{width}", (width,))
                y = aicf.tanh(x * shared[width])
        values.append(y)
    loss = aicf.mean(values[-1] * values[-1]) + aicf.sum(values[len(values) // 2]) * 0.5
    g.output("loss", loss)
    if g._core.reached_params(loss.id):
        optimizers = [aicf.optim.SGD(momentum=0.9), aicf.optim.Adam(), aicf.optim.AdamW()]
        g.minimize(loss, optimizers[int(rng.integers(3))])
    return g


@pytest.mark.parametrize("seed", range(40))
def test_plan_against_all_pairs(seed, make_rng):
    g = random_net(make_rng(seed))
    for passes in ("default", ()):
        plan = g.compile(device="cpu", passes=passes, capture=False).plan
        assert [op["waits"] for op in plan.ops] == waits_of(plan)
        placed = places_of(plan)
        assert {id: plan.values[str(id)]["offset"] for id in placed} == placed


def test_stages_add_up():
    g = BENCH["mlp"](20)
    stages = g.compile(device="cpu")._stages()
    names = [name for name, _ in stages]
    assert names[0] == "verify" and names[-1] == "capture"
    assert [n for n in names if n in _core.pass_names()] == _core.pass_names()
    assert all(taken >= 0 for _, taken in stages)
    assert np.isfinite(sum(taken for _, taken in stages))
