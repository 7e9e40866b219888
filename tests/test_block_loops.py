"""A loop in one block of threads has the bits of its turns' launches, and of the CPU."""

import json
import re

import aicf
import numpy as np
import pytest
from aicf import _core
from block_text import aligned_from_several
from compare import numpy_dtype
from conftest import outputs_of
from test_passes import APART

needs_compiler = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)


def trained(g, *values):
    loss = sum((aicf.mean(v * v) for v in values[1:]), aicf.mean(values[0] * values[0]))
    g.minimize(loss, aicf.optim.Adam(lr=0.01))
    g.output("loss", loss)


def recurrence(g, turns, train=True, save="states", reverse=False, width=16, batch=4):
    x, h = g.input("x", (turns, batch, width)), g.input("h", (batch, width))
    w, b = g.param("w", (width, width)), g.param("b", (width,))
    last, ys = aicf.scan(
        lambda c, row: 2 * (aicf.tanh(aicf.linear(c, w, b) + row),),
        h,
        x,
        save=save,
        reverse=reverse,
    )
    if train:
        trained(g, last, ys)
    else:
        g.output("last", last)
        g.output("ys", ys)


def sums_inside(g, turns):
    """Gradients of a factor that two products read are added up in the loop."""
    x, h = g.input("x", (turns, 5, 8)), g.input("h", (5, 8))
    w = g.param("w", (8, 8))
    last, _ = aicf.scan(lambda c, row: (aicf.tanh(c @ w + row @ w), None), h, x)
    trained(g, last)


def gated(g, turns, kind="LSTM", width=16):
    aicf.nn.seed(4)
    ys, _ = getattr(aicf.nn, kind)(5, width)(g.input("x", (turns, 3, 5)))
    trained(g, ys)


def swapped(g, turns):
    """Carries change places; one result is read in its turn, one row is handed on as it is."""
    x = g.input("x", (turns, 6))

    def turn(carry, row):
        a, b, n = carry
        mixed = a * 0.5 + row
        return (b, mixed + aicf.sum(mixed), n + 1), (mixed, row, n)

    zero = g.constant(np.zeros(6, np.float32))
    (a, b, n), rows = aicf.scan(turn, (zero, x[0], g.constant(0, "int32")), x)
    for i, value in enumerate((a, b, n, *rows)):
        g.output(f"y{i}", value)


def rows_inside(g, turns):
    """Softmax, a norm and a reduction of rows."""
    x, h = g.input("x", (turns, 7, 24)), g.input("h", (7, 24))
    w = g.param("w", (24, 24))

    def turn(c, row):
        c = aicf.layer_norm(aicf.linear(c, w) + row, 24)
        return c, aicf.max(aicf.softmax(c, axis=-1), axis=-1)

    trained(g, *aicf.scan(turn, h, x))


def dropped(g, turns):
    """Random numbers by turn, in a step with dropout of its own; several to a turn."""
    x, h = g.input("x", (turns, 4, 16)), g.input("h", (4, 16))
    w = g.param("w", (16, 16))

    def turn(c, row):
        c = aicf.tanh(aicf.linear(aicf.dropout(c, 0.3), w) + aicf.dropout(row, 0.2))
        return c, c

    last, ys = aicf.scan(turn, h, aicf.dropout(x, 0.1))
    trained(g, last, ys)


def nested(g, turns):
    x, h = g.input("x", (turns, 3, 4, 8)), g.input("h", (4, 8))
    w = g.param("w", (8, 8))

    def inner(c, row):
        return 2 * (aicf.tanh(aicf.linear(c, w) + row),)

    last, ys = aicf.scan(lambda c, rows: aicf.scan(inner, c, rows), h, x)
    trained(g, last, ys)


def until(g, turns):
    x = g.input("x", (9,))
    w = g.param("w", (9,))
    y = aicf.while_loop(
        lambda v: aicf.sum(v) < 40.0, lambda v: v + aicf.abs(w) + 0.5, x * w, max_steps=turns
    )
    trained(g, y)


def chosen(g, turns):
    """A choice by masks in each turn."""
    x, h = g.input("x", (turns, 9)), g.input("h", (9,))
    last, ys = aicf.scan(
        lambda c, row: (
            2 * (aicf.cond(aicf.sum(row) > 0, lambda a, b: a + b, lambda a, b: a * b, c, row),)
        ),
        h,
        x,
    )
    g.output("last", last)
    g.output("ys", ys)


def of_type(dtype):
    def build(g, turns):
        x, h = g.input("x", (turns, 3, 8), dtype), g.input("h", (3, 8), dtype)
        w = g.param("w", (8, 8), dtype)
        last, ys = aicf.scan(lambda c, row: 2 * (aicf.tanh(aicf.linear(c, w) + row),), h, x)
        for i, d in enumerate(aicf.grad(aicf.sum(last * last) + aicf.sum(ys), [x, h, w])):
            g.output(f"d{i}", d)

    return build


def odd_rows(g, turns):
    """Rows of 3 elements of 2 bytes and of a byte, which no copy of words can bring."""
    x, m = g.input("x", (turns, 3), "float16"), g.input("m", (turns, 3), "bool")
    h = g.input("h", (3,), "float16")
    last, ys = aicf.scan(lambda c, r: 2 * (aicf.where(r[1], c + r[0], c * r[0]),), h, (x, m))
    g.output("last", last)
    g.output("ys", ys)


# name: (builder, turns, loops in one launch)
CASES = {
    "recurrence": (recurrence, 12, 2),
    "one turn": (recurrence, 1, 2),
    "two turns": (recurrence, 2, 2),
    "forward": (lambda g, n: recurrence(g, n, train=False), 9, 1),
    "reverse": (lambda g, n: recurrence(g, n, reverse=True), 9, 2),
    "recomputed": (lambda g, n: recurrence(g, n, save="recompute"), 16, 2),
    "odd widths": (lambda g, n: recurrence(g, n, width=7, batch=3), 5, 2),
    "wide": (lambda g, n: recurrence(g, n, width=64, batch=16), 6, 2),
    "sums inside": (sums_inside, 7, 2),
    "lstm": (gated, 32, 2),
    "gru": (lambda g, n: gated(g, n, "GRU"), 8, 2),
    "swapped": (swapped, 5, 1),
    "rows": (rows_inside, 4, 2),
    "dropout": (dropped, 6, 2),
    "nested": (nested, 4, 2),
    "while": (until, 8, 2),
    "cond": (chosen, 6, 1),
    "float64": (of_type("float64"), 6, 2),
    "bfloat16": (of_type("bfloat16"), 6, 2),
    "odd rows": (odd_rows, 5, 1),
}


def graph_of(name, turns=None):
    build, own, _ = CASES[name]
    g = aicf.Graph("loops")
    build(g, turns or own)
    return g


def loops_in(ops):
    """Every block_loop of a plan, those in loops among them."""
    found = []
    for op in ops:
        found += [op] if op["op"] == "block_loop" else loops_in(op.get("loop", []))
    return found


def plan_of(graph, passes, arch="sm_90a"):
    return json.loads(_core.cuda_plan(graph._core, passes, 132, arch, "fp32"))["ops"]


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_is_one_launch(name):
    """Of which the plan says what each turn does, compiled for an old and a new device."""
    graph = graph_of(name)
    for arch in ("sm_80", "sm_90a"):
        loops = loops_in(plan_of(graph, _core.pass_names(), arch))
        assert len(loops) >= CASES[name][2], name
        assert all(op["members"] and "loop" in op["kernel"] for op in loops if "kernel" in op)
        programs = _core.cuda_programs(graph._core, _core.pass_names(), arch=arch)
        texts = [text for text in programs if "loop_of" in text]
        assert texts
        assert all(cubin[:4] == b"\x7fELF" for cubin in _core.cuda_cubins(texts, arch))
        assert not any(map(aligned_from_several, texts))
    assert not loops_in(plan_of(graph, APART))


@needs_compiler
@pytest.mark.parametrize("name", ["recurrence", "lstm", "gru", "dropout"])
def test_nothing_spills_and_size_is_constant(name):
    sizes = []
    for turns in (20, 1000):
        graph = graph_of(name, turns)
        programs = _core.cuda_programs(graph._core, _core.pass_names(), arch="sm_90a")
        texts = [text for text in programs if "loop_of" in text]
        sizes.append(sorted(len(re.sub(r"\d+|_[0-9a-f]{16}", "", text)) for text in texts))
        for text in texts if turns == 20 else []:
            assert not re.search(r"[1-9]\d* bytes spill", _core.cuda_log(text, "sm_90a"))
    assert sizes[0] == sizes[1]


def drawn(name, rng):
    values = {}
    for value in json.loads(graph_of(name).to_json())["values"].values():
        if value["role"] != "input":
            continue
        shape, dtype = value["shape"], value["dtype"]
        array = rng.standard_normal(shape) * 0.5
        values[value["name"]] = array > 0 if dtype == "bool" else array.astype(numpy_dtype(dtype))
    return values


def everything(step, feeds):
    seen = {}
    for i, values in enumerate(feeds):
        for name, array in outputs_of(step(**values)).items():
            seen[f"{name} of step {i}"] = array
    step.replay(5)
    return seen | dict(step.state_dict())


def assert_same(got, want, what):
    assert got.keys() == want.keys()
    for name, array in got.items():
        assert np.asarray(array).tobytes() == np.asarray(want[name]).tobytes(), f"{what}: {name}"


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_equal_bits(name, make_rng):
    feeds = [drawn(name, make_rng(i)) for i in range(2)]
    ends = {}
    for form, device, passes in (
        ("block", "cuda", "default"),
        ("launches", "cuda", APART),
        ("cpu", "cpu", "default"),
        ("plain", "cpu", ()),
    ):
        step = graph_of(name).compile(device=device, seed=3, passes=passes)
        if form == "block":
            assert loops_in(step.plan.ops)
        ends[form] = everything(step, feeds)
    for form in ("launches", "cpu", "plain"):
        assert_same(ends["block"], ends[form], form)


@pytest.mark.gpu
def test_a_bind_and_a_file(tmp_path, make_rng):
    """Memory of the caller's own is read and written where it lies; a file has the kernel."""
    feeds = [drawn("lstm", make_rng(i)) for i in range(2)]
    step = graph_of("lstm").compile(device="cuda", seed=3)
    step.export(tmp_path / "step.aicf")
    again = aicf.load_step(tmp_path / "step.aicf", device="cuda")
    assert_same(everything(step, feeds), everything(again, feeds), "loaded")


@pytest.mark.gpu
def test_many_turns(make_rng):
    """Forward and backward over a thousand turns."""
    x = make_rng(0).standard_normal((1000, 4, 16)).astype("f") * 0.5
    feed = {"x": x, "h": np.zeros((4, 16), "f")}
    ends = [
        everything(graph_of("recurrence", 1000).compile(device=device, seed=3), [feed])
        for device in ("cuda", "cpu")
    ]
    assert_same(*ends, "cpu")
