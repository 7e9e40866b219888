"""Pointwise ops join the op on rows whose operands they make or whose result they take."""

import subprocess
import sys
from collections import Counter

import aicf
import numpy as np
import pytest
from aicf import _core
from test_passes import changes, check_passes, draw, entries, kind, launches, one

pytestmark = pytest.mark.passes
DTYPES = ["float32", "float64", "float16", "bfloat16"]
WITHOUT = tuple(name for name in _core.pass_names() if name != "rows")
CHOICES = [(), ("rows",), WITHOUT, "default"]


def bodies(step):
    """The steps of each launch, of those that have any."""
    return [[part["op"] for part in op["body"]] for op in entries(step) if "body" in op]


# ---- what becomes one launch


def softmax(g, x, y, row):
    return {"y": aicf.softmax(x * 0.125 + y)}


def attention(g, x, y, row):
    return {"y": aicf.log_softmax(aicf.where(y < 1.0, x * 0.125, -np.inf))}


def layer_norm(g, x, y, row):
    return {"y": aicf.layer_norm(x, x.shape[-1], row, row)}


def residual_norm(g, x, y, row):
    """The sum is read again."""
    h = x + y
    return {"h": h, "y": aicf.layer_norm(h, x.shape[-1], row) + y}


def softmax_bwd(g, x, y, row):
    p = aicf.softmax(y)
    return {"p": p, "d": g.backward(p, [y], grad=x * row)[y] * 0.5 + x}


def norm_bwd(g, x, y, row):
    normal = aicf.layer_norm(y, y.shape[-1])
    (d,) = g.backward(normal * row, [y], grad=x).values()
    return {"normal": normal, "d": d + x}


def cross_entropy(g, x, y, row):
    labels = aicf.argmax(aicf.reshape(y, (-1, y.shape[-1])), 1)
    logits = aicf.reshape(x, (-1, x.shape[-1]))
    return {"loss": aicf.cross_entropy(logits * 0.5 + row, labels)}


def cross_entropy_training(g, x, y, row):
    labels = aicf.argmax(aicf.reshape(y, (-1, y.shape[-1])), 1)
    logits = aicf.reshape(x, (-1, x.shape[-1])) * 0.5
    loss = aicf.cross_entropy(logits, labels)
    return {"loss": loss, "d": g.backward(loss, [x])[x]}


CASES = {  # and the launches left
    softmax: ["region rows"],
    attention: ["region rows"],
    layer_norm: ["region rows"],
    residual_norm: ["region rows"],
    softmax_bwd: ["region rows", "softmax"],
    norm_bwd: ["normalize", "region rows"],
    cross_entropy: ["reduce_argmax", "reduce_mean", "region rows"],
    cross_entropy_training: ["reduce_argmax", "reduce_mean", "region rows", "region rows"],
}
SHAPES = [
    (64, 10), (3, 1), (1, 7), (9, 128), (130, 33), (5, 129), (3, 4, 50), (2, 3, 4, 5), (4, 513),
    (3, 1030), (2, 5000), (2, 40_000), (0, 6),
]  # fmt: skip


def feed_of(rng, shape):
    return {"x": draw(rng, *shape), "y": draw(rng, *shape), "row": draw(rng, *shape[-1:])}


def recast(build, dtype):
    return lambda g, **values: build(g, **{k: aicf.cast(v, dtype) for k, v in values.items()})


@pytest.mark.parametrize("build", CASES)
def test_a_row_op_takes_what_is_around_it(build, device, rng):
    _, ops, step = one(build, feed_of(rng, (64, 20)), device, CHOICES)
    assert sorted(ops) == CASES[build]
    assert all(len(body) > 1 for body in bodies(step))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("build", CASES)
def test_bits_in_any_shape_and_dtype(build, dtype, shape, device, rng):
    """Short rows in bundles, a leaf, trees, rows too long to hold, none at all."""
    if device != "cpu" and dtype not in ("float32", "bfloat16"):
        pytest.skip("one dtype of each size is enough on a GPU")
    choices = CHOICES if device == "cpu" else [WITHOUT, "default"]
    one(recast(build, dtype), feed_of(rng, shape), device, choices)


def test_launches_of_a_layer_norm(device, rng):
    """Forward and backward: the gradients of scale and shift are columns of their own."""

    def build(g):
        x, t = g.input("x", (40, 24)), g.input("t", (40, 24))
        scale = g.param("scale", (24,), init=aicf.init.ones())
        shift = g.param("shift", (24,))
        y = aicf.layer_norm(x, 24, scale, shift)
        for i, d in enumerate(g.backward(y, [x, scale, shift], grad=t).values()):
            g.output(f"d{i}", d)
        g.output("y", y)

    feed = {"x": draw(rng, 40, 24), "t": draw(rng, 40, 24)}
    _, without = check_passes(build, feed, device, [(), WITHOUT])
    _, step = check_passes(build, feed, device, [(), "default"])
    assert Counter(launches(step))["region rows"] == 2
    assert len(launches(step)) < len(launches(without))
    assert ["normalize", "mul", "add"] in bodies(step)
    assert ["mul", "normalize_bwd"] in bodies(step)


# ---- where operands lie


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_operands_that_lie_otherwise(dtype, device, rng):
    """Slices, steps of two, backwards, turned, one element a row, one a column, one in all."""

    def build(g, a, b):
        a, b = aicf.cast(a, dtype), aicf.cast(b, dtype)
        part, other = a[3:40, 5:70:2], b[1:38, :65:2]
        turned = aicf.permute(b, (1, 0))
        return {
            "parts": aicf.softmax(part + other) * other,
            "turned": aicf.softmax(a + turned) * a,
            "turned alone": aicf.softmax(turned) * a,
            "back": aicf.softmax(a[:, ::-1] * b) + b[:, ::-1],
            "a row": aicf.softmax(a + b[:1, :]),
            "a column": aicf.softmax(a * b[:, :1]) * b[:, 1:2],
            "one": aicf.softmax(a * b[:1, :1] + 1.0) * b[:1, :1],
            "itself": aicf.softmax(a * a) * a,
            "of one": aicf.softmax(aicf.broadcast_to(b[:, :1], (80, 80)) + a[:1, :1]),
            "normal": aicf.layer_norm(part - other, 33) * part + other,
        }

    one(build, {"a": draw(rng, 80, 80), "b": draw(rng, 80, 80)}, device, CHOICES)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (3, 200, 5), (4, 1, 7), (2, 3, 4, 5)])
def test_along_any_axis(shape, device, rng):
    def build(g, a, b):
        values = {}
        for axis in range(len(shape)):
            values[f"{axis}"] = aicf.softmax(a * 0.5 + b, axis) * b
            values[f"log {axis}"] = y = aicf.log_softmax(a - b, axis)
            (values[f"d{axis}"],) = g.backward(y * b, [a], grad=b).values()
        return values

    one(build, {"a": draw(rng, *shape), "b": draw(rng, *shape)}, device, CHOICES)


def test_rows_across_memory_stay_apart(device, rng):
    """There a row at a time would be read with steps; by themselves pointwise ops need not."""
    feed = {"a": draw(rng, 60, 50), "b": draw(rng, 60, 50)}
    _, ops, _ = one(lambda g, a, b: {"y": aicf.softmax(a + b, 0) * b}, feed, device)
    assert sorted(ops) == ["add", "mul", "softmax"]
    feed["b"] = draw(rng, 50, 60)
    _, ops, _ = one(lambda g, a, b: {"y": aicf.softmax(a + b.T)}, feed, device)
    assert sorted(ops) == ["add", "softmax"]


def test_empty_rows(device, rng):
    """Of no elements there is a rstd all the same."""

    def build(g, x):
        g.output("y", aicf.softmax(x * 2.0) * 0.5)
        y = aicf.layer_norm(x * 2.0, 0)
        return {"norm": y * 0.5, "d": g.backward(y, [x], grad=x)[x]}

    one(build, {"x": draw(rng, 5, 0)}, device, CHOICES)


# ---- what stays


def test_values_read_elsewhere_are_stored(device, rng):
    """Of what makes the row, of the row op, and of what takes its result."""

    def build(g, a, b):
        s = a * b
        h = s + 1.0
        p = aicf.softmax(h)
        q = p * b
        return {"s": s, "h": h, "p": p, "q": q, "r": q - h.T.T, "sum": aicf.sum(q, 0), "t": s.T * 1}

    _, ops, step = one(build, {"a": draw(rng, 40, 40), "b": draw(rng, 40, 40)}, device, CHOICES)
    assert ops.count("region rows") == 1
    assert ["mul", "add", "softmax", "mul", "sub"] in bodies(step)


def test_what_a_row_has_one_of_comes_from_outside(device, rng):
    """Labels, sums and scales are made before and read after, of rows of one element, too."""

    def build(g, a):
        values = {}
        for n in (1, 24):
            x = a[:, :n]
            (y,) = (aicf.layer_norm(x * 2.0, n) + x,)
            d = g.backward(y, [a], grad=aicf.sin(y))[a]
            labels = aicf.cast(aicf.clip(aicf.round(a[:, 0]), 0.0, n - 1.0), "int32")
            loss = aicf.cross_entropy(x * 3.0, labels)
            values |= {f"y{n}": y, f"d{n}": d, f"loss{n}": loss}
            values[f"g{n}"] = g.backward(loss, [a])[a]
        return values

    one(build, {"a": draw(rng, 40, 24)}, device, CHOICES)


def test_labels_out_of_range(device, rng):
    def build(g, x, labels):
        loss = aicf.cross_entropy(x * 0.5, labels)
        return {"loss": loss, "d": g.backward(loss, [x])[x] * 2.0}

    for rows, classes in [(40, 10), (7, 600)]:
        feed = {"x": draw(rng, rows, classes), "labels": np.arange(rows) % classes}
        feed["labels"][::3] = [-1, classes][rows % 2]
        got, _, _ = one(build, feed, device, CHOICES)
        assert np.isnan(got["loss of step 0"])
        assert not got["d of step 0"][::3].any() and got["d of step 0"][1::3].any()


def test_not_a_number_and_infinity(device, rng):
    x = draw(rng, 12, 40)
    x[1, 3], x[2], x[3, :5], x[4, 0] = np.nan, -np.inf, np.inf, -0.0
    build = lambda g, x: {"y": aicf.softmax(x * 0.5) * x, "n": aicf.layer_norm(x + 1.0, 40) * x}  # noqa: E731
    one(build, {"x": x}, device, CHOICES)


def test_what_costs_more_than_reading_stays_outside(device, rng):
    """A row is read several times, and a GPU makes its elements anew each time."""
    feed = {"x": draw(rng, 40, 50)}
    _, ops, _ = one(lambda g, x: {"y": aicf.softmax(aicf.sin(x)) * 2.0}, feed, device)
    assert sorted(ops) == ["region rows", "sin"]


def test_what_is_to_be_waited_for_stays_behind(device, rng):
    """Two row ops may run side by side; with the one inside the other they could not."""
    build = lambda g, a, b: {"y": aicf.softmax(a) + aicf.softmax(b)}  # noqa: E731
    _, ops, step = one(build, {"a": draw(rng, 40, 50), "b": draw(rng, 40, 50)}, device)
    assert sorted(ops) == ["add", "softmax", "softmax"]
    assert len(step.trace) == 2


def test_many_operands(device, rng):
    """As many as fit, the others in launches before and after."""
    feed = {f"x{i}": draw(rng, 20, 30) for i in range(24)}

    def build(g, **xs):
        x = aicf.softmax(sum(list(xs.values())[1:12], start=xs["x0"]))
        for other in list(xs.values())[12:]:
            x = x * other + other
        return {"y": x}

    _, ops, _ = one(build, feed, device, CHOICES)
    assert ops.count("region rows") == 1


def test_states_around_a_row_op(device, rng):
    """What is read later is not overwritten; what is not may be."""

    def build(g):
        x = g.input("x", (6, 6))
        for i, update in enumerate(
            [
                lambda s: aicf.softmax(s * x) * 0.5,
                lambda s: s * 0.9 + aicf.softmax(x + s),
                lambda s: aicf.layer_norm(x * s, 6) * s,
                lambda s: aicf.softmax(x * aicf.permute(s, (1, 0))) - s,
            ]
        ):
            s = g.state(f"s{i}", (6, 6), init=aicf.init.uniform(-1, 1))
            g.assign(s, update(s))
            g.output(f"y{i}", s + 1.0)

    check_passes(build, {"x": draw(rng, 6, 6)}, device, CHOICES)


def test_memory_is_taken_over(device, rng):
    """As by the ops alone, a result lies where an operand ended."""

    def build(g, x):
        for _ in range(4):
            x = aicf.softmax(aicf.sin(x) * 0.5 + 1.0) * 3.0
        return {"y": aicf.sin(x)}

    feed = {"x": draw(rng, 300, 200)}
    _, _, without = one(build, feed, device, [(), WITHOUT])
    _, ops, step = one(build, feed, device, [(), "default"])
    assert ops.count("region rows") == 4
    scratch = max(op["scratch_bytes"] for op in step.plan.ops)
    assert step.plan.regions["temps"] <= without.plan.regions["temps"] + scratch


# ---- whole steps


def transformer(g, rows=4, length=12, width=16, heads=2, letters=11):
    """A block of attention and one of products, with their gradients and an update."""
    x = g.input("x", (rows, length), "int32")
    h = aicf.embedding(x, g.param("letters", (letters, width), init=aicf.init.normal()))
    for i in range(2):
        n = aicf.layer_norm(
            h,
            width,
            g.param(f"{i}.scale", (width,), init=aicf.init.ones()),
            g.param(f"{i}.shift", (width,)),
        )
        parts = [
            aicf.permute(part.reshape((rows, length, heads, width // heads)), (0, 2, 1, 3))
            for part in aicf.split(g.dense(f"{i}.qkv", n, 3 * width), 3, axis=-1)
        ]
        y = aicf.scaled_dot_product_attention(*parts, causal=True)
        y = aicf.permute(y, (0, 2, 1, 3)).reshape((rows, length, width))
        h = h + g.dense(f"{i}.out", y, width)
        h = h + g.dense(f"{i}.narrow", aicf.gelu(g.dense(f"{i}.wide", h, 2 * width)), width)
    logits = g.dense("out", aicf.rms_norm(h, width), letters).reshape((-1, letters)) * 0.5
    loss = aicf.cross_entropy(logits, g.input("next", (rows * length,), "int32"))
    g.minimize(loss, aicf.optim.AdamW(lr=1e-2), clip_norm=1.0)
    g.output("loss", loss)


def test_a_transformer_step(device, rng):
    feed = {
        "x": rng.integers(0, 11, (4, 12), dtype=np.int32),
        "next": rng.integers(0, 11, 48, dtype=np.int32),
    }
    _, without = check_passes(transformer, feed, device, [(), WITHOUT])
    _, step = check_passes(transformer, feed, device, [(), ("rows",), "default"])
    assert "region rows" in launches(step) and "rows" in changes(transformer)
    assert len(launches(step)) < len(launches(without))


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(threads, rng):
    """Each has its own part of the workspace for what it holds."""
    before = aicf.num_threads()
    aicf.set_num_threads(threads)
    try:
        for build in (residual_norm, softmax, norm_bwd):
            one(build, feed_of(rng, (3000, 70)), "cpu", CHOICES)
    finally:
        aicf.set_num_threads(before)


def test_the_dump_shows_every_step():
    g = aicf.Graph("g")
    x, row = g.input("x", (4, 6)), g.input("row", (6,))
    g.output("y", aicf.softmax(x * row))
    text = g._core.stages(["rows"])[-1].text
    assert "op=region(mul, softmax) (%0 f32[4, 6], %1 f32[4, 6] strides [0, 1]) -> (%3" in text
    assert '%3 f32[4, 6] = softmax(%2) {"axis": -1, "masked": false, "order": "tree"}\n' in text


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 0, 1), (2, 3, 0, 5), (3, 0), (17, 0)])
def test_nothing_to_do(shape, device):
    g = aicf.Graph("nothing")
    x = g.input("x", shape)
    y = aicf.softmax(x * 2.0) * 3.0
    g.output("softmax", y)
    g.output("log_softmax", aicf.log_softmax(x + 1.0) - 1.0)
    g.output("norm", aicf.rms_norm(x * 2.0, shape[-1]) + 1.0)
    (grad,) = g.backward(aicf.sum(y), [x]).values()
    g.output("grad", grad)
    step = g.compile(device=device)
    if shape[-1] > 1:  # one element is no row, none is nowhere
        assert any(kind(op) == "region rows" for op in entries(step))
    for name, result in step(x=np.zeros(shape, "f")).items():
        assert result.shape == shape, name


SMALL_STACK = """
import threading
import aicf, numpy as np
g = aicf.Graph("g")
x, w = g.input("x", (9000, 600), "float64"), g.input("w", (600,), "float64")
g.output("columns", aicf.sum(x * w - 0.5, axis=0) * w)
g.output("rows", aicf.softmax(x * w + w) * w)
bare = g.input("bare", (5000, 2048))
g.output("bare_columns", aicf.sum(bare, axis=0))
step = g.compile(device="cpu")
threading.stack_size(512 * 1024)
feed = {"x": np.ones((9000, 600)), "w": np.ones(600), "bare": np.ones((5000, 2048), "f")}
thread = threading.Thread(target=lambda: step(**feed))
thread.start()
thread.join()
print({op["kernel"] for op in step.lowered}, step.outputs["columns"].numpy()[0])
"""


def test_a_caller_with_a_small_stack():
    """What a thread holds meanwhile lies in the workspace: some systems give threads 512 KiB."""
    result = subprocess.run([sys.executable, "-c", SMALL_STACK], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "fused_reduce" in result.stdout and "fused_softmax" in result.stdout
    assert result.stdout.split()[-1] == "4500.0"
