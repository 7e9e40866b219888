"""The passes over the graph, rewrite by rewrite: what they change, and that no bit does."""

import json
import math

import aicf
import numpy as np
import pytest
from aicf import __main__ as command
from aicf import _core
from test_passes import assert_same, check_passes, draw, nodes_after, outputs_of, text_after

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int32", "int64", "uint8", "int8", "int16"]


def hard(dtype, count=400):
    """Both zeros, every exponent, the ends of the range, NaNs of many payloads, random bits."""
    rng = np.random.default_rng(1)
    if dtype == "bool":
        return np.resize([True, False], count)
    wide = np.dtype("float32" if dtype == "bfloat16" else dtype)  # NumPy has no bfloat16
    bits = np.dtype(f"u{wide.itemsize}")
    random = rng.integers(0, 2 ** (8 * wide.itemsize), count, dtype=np.uint64).astype(bits)
    if wide.kind != "f":
        ends = np.array([0, 1, 2, np.iinfo(wide).max, np.iinfo(wide).min], wide)
        return np.concatenate([ends, ends - wide.type(1), random.view(wide)])
    mantissa = np.finfo(wide).nmant
    exponents = np.arange(2 ** (8 * wide.itemsize - mantissa), dtype=bits) << bits.type(mantissa)
    ends = [0, 1, 2 ** (mantissa - 1), 2**mantissa - 1, int(rng.integers(2**mantissa))]
    exact = [exponents | bits.type(low) for low in ends]
    return np.concatenate([*exact, random]).view(wide)


def input_of(g, name, dtype, size):
    """An input in any dtype; bfloat16 comes as float32, whose first half it is."""
    x = g.input(name, (size,), "float32" if dtype == "bfloat16" else dtype)
    return aicf.cast(x, dtype) if dtype == "bfloat16" else x


def compare(build, feed, device, *passes):
    """The same bytes with and without the passes; returns the graph."""
    graphs, got = [], []
    for names in ((), passes):
        g = aicf.Graph("g")
        build(g)
        graphs.append(g)
        got.append(outputs_of(g.compile(device=device, passes=names)(**feed)))
    for name, array in got[0].items():
        assert_same(got[1][name], array, name, lambda: text_after(graphs[0], *passes))
    return graphs[0]


# ---- simplify: for each rewrite of the table some ways to write it, and what is left of them


def constant(x, array):
    return x.graph.constant(np.asarray(array, x.dtype))


def over_ones(reduce, axis, keepdims):
    return lambda x, c: reduce(aicf.reshape(x, (1, -1, 1)), axis=axis, keepdims=keepdims)


REWRITES = {
    "x * 1": [
        (lambda x, c: x * 1.0, FLOATS, []),
        (lambda x, c: 1 * x, INTEGERS, []),
        (lambda x, c: x * constant(x, np.ones(len(hard("float32")))), ["float32"], []),
        (lambda x, c: constant(x, np.ones((2, 1))) * x, FLOATS[:3], ["BroadcastTo"]),
    ],
    "x / 1": [(lambda x, c: x / 1.0, FLOATS, [])],
    "x - 0": [(lambda x, c: x - 0.0, FLOATS, []), (lambda x, c: x - 0, INTEGERS, [])],
    "x + -0": [
        (lambda x, c: x + -0.0, FLOATS, []),
        (lambda x, c: -0.0 + x, FLOATS, []),
        (lambda x, c: x + 0, INTEGERS, []),
    ],
    "x ** 1": [(lambda x, c: aicf.pow(x, 1.0), FLOATS, [])],
    "-(-x)": [(lambda x, c: aicf.neg(-x), FLOATS + INTEGERS, [])],
    "a + -b": [
        (lambda x, c: x[::-1] + -x, FLOATS + INTEGERS, ["Slice", "Sub"]),
        (lambda x, c: -x + x[::-1], FLOATS + INTEGERS, ["Slice", "Sub"]),
    ],
    "a - -b": [(lambda x, c: x[::-1] - -x, FLOATS + INTEGERS, ["Slice", "Add"])],
    "abs(-x)": [(lambda x, c: aicf.abs(-x), [*FLOATS, "int32", "int64"], ["Abs"])],
    "f(f(x))": [
        (lambda x, c: aicf.abs(aicf.abs(x)), FLOATS + INTEGERS, ["Abs"]),
        (lambda x, c: aicf.relu(aicf.relu(x)), FLOATS + INTEGERS, ["ReLU"]),
        (lambda x, c: aicf.sign(aicf.sign(x)), FLOATS + INTEGERS, ["Sign"]),
        (lambda x, c: aicf.floor(aicf.floor(x)), FLOATS, ["Floor"]),
        (lambda x, c: aicf.round(aicf.round(x)), FLOATS, ["Round"]),
        (lambda x, c: aicf.clip(aicf.clip(x, -1.0, 2.0), -1.0, 2.0), FLOATS, ["Clip"]),
        (lambda x, c: aicf.clip(aicf.clip(x, -0.0, 0.0), -0.0, 0.0), FLOATS, ["Clip"]),
    ],
    "max(x, x)": [
        (lambda x, c: aicf.maximum(x, x), FLOATS + INTEGERS, []),
        (lambda x, c: aicf.minimum(x, x), FLOATS + INTEGERS, []),
    ],
    "where(c, x, x)": [
        (lambda x, c: aicf.where(c, x, x), [*FLOATS, *INTEGERS, "bool"], []),
        (
            lambda x, c: (lambda y: aicf.where(aicf.reshape(c, (-1, 1)), y, y))(x[:3]),
            FLOATS,
            ["Slice", "BroadcastTo"],
        ),
    ],
    "cast to itself": [(lambda x, c: aicf.cast(x, x.dtype), [*FLOATS, *INTEGERS, "bool"], [])],
    "cast by way of a wider dtype": [
        (lambda x, c: aicf.cast(aicf.cast(x, "float64"), "float32"), ["float32"], []),
        (lambda x, c: aicf.cast(aicf.cast(x, "float32"), "float16"), ["float16"], []),
        (lambda x, c: aicf.cast(aicf.cast(x, "float64"), "float16"), ["float32"], ["Cast"]),
    ],
    "reshape to itself": [
        (lambda x, c: aicf.reshape(x, x.shape), [*FLOATS, "bool"], []),
        (lambda x, c: aicf.broadcast_to(x, x.shape), FLOATS, []),
    ],
    "reshape of reshape": [
        (lambda x, c: aicf.reshape(aicf.reshape(x, (1, -1, 1)), (-1, 1)), FLOATS, ["Reshape"]),
        (lambda x, c: aicf.reshape(aicf.reshape(x, (1, -1, 1)), x.shape), FLOATS, []),
    ],
    "broadcast of broadcast": [
        (
            lambda x, c: aicf.broadcast_to(aicf.broadcast_to(x, (1, *x.shape)), (2, 3, *x.shape)),
            FLOATS,
            ["BroadcastTo"],
        )
    ],
    "transpose of nothing": [(lambda x, c: aicf.permute(x, (0,)), FLOATS, [])],
    "transpose of transpose": [
        (
            lambda x, c: aicf.permute(
                aicf.permute(aicf.broadcast_to(x[:4], (2, 3, 4)), (1, 2, 0)), (1, 2, 0)
            ),
            FLOATS,
            ["Slice", "BroadcastTo", "Transpose"],
        ),
        (
            lambda x, c: aicf.permute(
                aicf.permute(aicf.broadcast_to(x[:4], (2, 3, 4)), (1, 2, 0)), (2, 0, 1)
            ),
            FLOATS,
            ["Slice", "BroadcastTo"],
        ),
    ],
    "slice of all": [(lambda x, c: x[0:], [*FLOATS, "bool"], [])],
    "concat of one": [
        (lambda x, c: x.graph._emit("Concat", [x], axis=0)[0], [*FLOATS, "bool"], [])
    ],
    "reduction of one element": [
        (over_ones(reduce, axis, keep), dtypes, left)
        for reduce, dtypes in (
            (aicf.sum, FLOATS + INTEGERS),
            (aicf.mean, FLOATS),
            (aicf.max, FLOATS + INTEGERS),
            (aicf.min, FLOATS + INTEGERS),
        )
        for axis, keep, left in (
            ((0, 2), False, []),
            ((0,), True, ["Reshape"]),
            ((), False, ["Reshape"]),
            ((2,), False, ["Reshape"]),
        )
    ],
    "detach": [(lambda x, c: aicf.detach(x), [*FLOATS, "bool"], [])],
}


def test_every_rewrite_has_its_proof():
    rules = _core.simplify_rules()
    assert [name for name, _ in rules] == list(REWRITES)
    assert all(reason for _, reason in rules)


def plain(nodes, dtype):
    """Without the cast that brings bfloat16 in."""
    return nodes[1:] if dtype == "bfloat16" else nodes


@pytest.mark.parametrize("name", REWRITES)
def test_rewrite(name, device):
    """It happens, and every hard value keeps every bit."""
    for write, dtypes, left in REWRITES[name]:
        for dtype in dtypes:
            feed = {"x": hard(dtype), "c": hard("bool", len(hard(dtype)))}

            def build(g, dtype=dtype, write=write, size=feed["x"].size):
                x = input_of(g, "x", dtype, size)
                g.output("y", write(x, g.input("c", (size,), "bool")))

            g = compare(build, feed, device, "simplify")
            assert plain(nodes_after(g, "simplify"), dtype) == left, f"{name}, {dtype}\n{g}"


def test_casts_by_way_of_every_dtype(device):
    """All chains of two casts; which of them become one or none follows from the ranges."""
    dtypes = [*FLOATS, *INTEGERS, "bool"]
    shorter = 0
    for start in dtypes:
        feed = {"x": hard(start)}

        def build(g, start=start, size=feed["x"].size):
            x = input_of(g, "x", start, size)
            for way in dtypes:
                for end in dtypes:
                    g.output(f"{way}_{end}", aicf.cast(aicf.cast(x, way), end))

        g = compare(build, feed, device, "simplify", "cse")
        shorter += len(nodes_after(g)) - len(nodes_after(g, "simplify", "cse"))
    assert shorter > 150


NEAR = {  # alike, and not equal
    "x + 0 turns -0 into +0": (lambda x, y: x + 0.0, FLOATS, -0.0),
    "x - -0 turns -0 into +0": (lambda x, y: x - -0.0, FLOATS, -0.0),
    "0 - x is not -x": (lambda x, y: 0.0 - x, FLOATS, 0.0),
    "x * 0 is NaN for inf": (lambda x, y: x * 0.0, FLOATS, np.inf),
    "x * -1 only looks like one": (lambda x, y: x * -1.0, FLOATS, 1.0),
    "x - x is NaN for inf": (lambda x, y: x - x, FLOATS, np.inf),
    "x / x is NaN for 0": (lambda x, y: x / x, FLOATS, 0.0),
    "x + (0, -0)": (lambda x, y: x + aicf.concat([y * 0.0, -y * 0.0], 0)[::2], FLOATS, 1.0),
    "max(x, y)": (aicf.maximum, FLOATS + INTEGERS, 1),
    "where(c, x, y)": (lambda x, y: aicf.where(x < y, x, y), FLOATS + INTEGERS, 1),
    "1 / x": (lambda x, y: 1.0 / x, FLOATS, 2.0),
    "1 - x": (lambda x, y: 1 - x, INTEGERS, 2),
    "0 - x": (lambda x, y: 0 - x, INTEGERS, 2),
    "by way of f16": (lambda x, y: aicf.cast(aicf.cast(x, "float16"), x.dtype), ["float32"], 0.1),
    "by way of f32": (lambda x, y: aicf.cast(aicf.cast(x, "float32"), x.dtype), ["float64"], 0.1),
    "i32 by way of f32": (
        lambda x, y: aicf.cast(aicf.cast(x, "float32"), x.dtype),
        ["int32"],
        2**24 + 1,
    ),
    "integers wrap, floats saturate": (
        lambda x, y: aicf.cast(aicf.cast(x, "float64"), "uint8"),
        ["int32"],
        300,
    ),
    "abs(-x) without a sign": (lambda x, y: aicf.abs(-x), ["uint8"], 5),
    "by way of bool": (lambda x, y: aicf.cast(aicf.cast(x, "bool"), x.dtype), INTEGERS, 2),
    "two clips": (lambda x, y: aicf.clip(aicf.clip(x, 0.0, 2.0), -1.0, 2.0), FLOATS, 1.0),
    "clips to zeros of two signs": (
        lambda x, y: aicf.clip(aicf.clip(x, 0.0, 2.0), -0.0, 2.0),
        FLOATS,
        -1.0,
    ),
    "exp(exp(x))": (lambda x, y: aicf.exp(aicf.exp(x)), FLOATS, 1.0),
    "sum of two": (lambda x, y: aicf.sum(aicf.reshape(x, (1, 2)), 1), FLOATS, 1.0),
    "half a slice": (lambda x, y: x[::2], FLOATS, 1.0),
    "a slice turned": (lambda x, y: x[::-1], FLOATS, 1.0),
    "a transpose": (lambda x, y: aicf.permute(aicf.reshape(x, (1, 2)), (1, 0)), FLOATS, 1.0),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_miss(name, device):
    write, dtypes, value = NEAR[name]
    for dtype in dtypes:
        wide = "float32" if dtype == "bfloat16" else dtype
        feed = {"x": np.full(2, value, wide), "y": np.array([1, 2], wide)}

        def build(g, dtype=dtype):
            x, y = input_of(g, "x", dtype, 2), input_of(g, "y", dtype, 2)
            g.output("z", write(x, y))

        g = compare(build, feed, device, "simplify")
        assert nodes_after(g, "simplify") == nodes_after(g), f"{name}, {dtype}"


def test_a_gradient_of_a_constant(device):
    """What a gradient is taken of is not looked through: loss and value stay connected."""

    def build(g):
        x, one = g.input("x", (3,)), g.constant(np.ones(3, np.float32))
        y = aicf.sum(x * one * 2.0)
        g.output("y", y)
        g.output("d", g.backward(y, [one])[one])
        number = g.constant(np.float32(3))
        z = aicf.exp(number) * 2.0
        g.output("z", z)
        g.output("dz", g.backward(z, [number])[number])

    check_passes(build, {"x": np.array([1, 2, 3], np.float32)}, device)


# ---- fold


def folded(build, feed, device):
    """Names of what is left after folding."""
    return nodes_after(compare(build, feed, device, "fold"), "fold")


def test_fold_takes_all_that_constants_decide(device, rng):
    def build(g):
        x = g.input("x", (4, 3))
        c = g.constant(draw(np.random.default_rng(2), 3))
        scale = aicf.exp(c) * 2.0 + aicf.sum(c, keepdims=True) / aicf.sqrt(aicf.abs(c))
        index = aicf.argmax(c, 0)
        g.output("y", x * scale + aicf.cast(index, "float32"))
        g.output("alone", aicf.cumsum(aicf.softmax(c, 0), 0))

    assert folded(build, {"x": draw(rng, 4, 3)}, device) == ["Mul", "Add"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_fold_keeps_the_bits_of_hard_values(dtype, device):
    """Every op that folds gives what the step itself would have computed."""
    values = hard(dtype)

    def build(g):
        wide = g.constant(values)
        x = aicf.cast(wide, dtype)
        for name in ("neg", "abs", "sign", "relu", "floor", "round", "sqrt", "rsqrt", "exp", "sin"):
            g.output(name, getattr(aicf, name)(x))
        for name in ("add", "sub", "mul", "div", "maximum", "minimum", "less", "pow"):
            g.output(name, getattr(aicf, name)(x, x[::-1]))
        g.output("sum", aicf.sum(x))
        g.output("max", aicf.max(x))
        g.output("where", aicf.where(aicf.isnan(x), aicf.cumsum(x, 0), x))
        g.input("unused", ())

    assert set(folded(build, {}, device)) <= {"Slice", "Cast"}


def test_fold_leaves_what_a_backend_decides(device, rng):
    """Products belong to the math mode, random numbers to states."""

    def build(g):
        a = g.constant(draw(np.random.default_rng(3), 4, 4))
        g.output("product", a @ a)
        g.output("noise", aicf.dropout(a, 0.5))

    left = folded(build, {}, device)
    assert {"MatMul", "Dropout"} <= set(left)


def test_fold_does_not_grow_the_graph(device, rng):
    """A number seen as a large tensor stays a number; a sum of many becomes one."""

    def build(g):
        x = g.input("x", (64, 64))
        number = g.constant(np.float32(0.5))
        wide = aicf.broadcast_to(number, (64, 64))
        g.output("y", x * wide + aicf.exp(wide))
        g.output("sum", aicf.sum(wide) * aicf.sum(x))

    feed = {"x": draw(rng, 64, 64)}
    assert folded(build, feed, device) == ["BroadcastTo", "Mul", "Exp", "Add", "Sum", "Mul"]
    g = aicf.Graph("g")
    build(g)
    assert "constant f32[64, 64]" not in text_after(g, "fold")


def test_fold_computes_beneath_views(device, rng):
    """A view of a constant costs nothing, so it is no constant of its own."""

    def build(g):
        x = g.input("x", (3, 2))
        c = aicf.exp(g.constant(draw(np.random.default_rng(4), 2, 3)))
        g.output("y", x + aicf.permute(c, (1, 0)))

    feed = {"x": draw(rng, 3, 2)}
    assert folded(build, feed, device) == ["Transpose", "Add"]


def test_a_folded_next_state(device):
    """Assigns and outputs of what was computed ahead copy it at every step."""

    def build(g):
        s = g.state("s", (3,))
        c = aicf.exp(g.constant(np.array([0, 1, 2], np.float32)))
        g.output("s", s)
        g.output("c", c)
        g.output("kept", c * 2.0, keep=2)
        g.assign(s, c)

    check_passes(build, {}, device)


# ---- cse


def test_attributes_are_compared_by_their_bits(device):
    """0.0 == -0.0, and slopes of these two zeros give zeros of two signs."""

    def build(g):
        x = g.input("x", (3,))
        g.output("y", aicf.leaky_relu(x, 0.0))
        g.output("z", aicf.leaky_relu(x, -0.0))

    got, _ = check_passes(build, {"x": np.array([-1.0, 1.0, -2.0], np.float32)}, device)
    assert np.signbit(got["y of step 0"]).tolist() == [True, False, True]
    assert not np.signbit(got["z of step 0"]).any()


def test_a_gradient_that_the_forward_graph_computes(device, rng):
    """The node that differentiates merges into one that does not; the record stays sound."""

    def build(g):
        x, w = g.input("x", (3,)), g.input("w", (3,))
        one = aicf.reshape(g.constant(np.float32(1)), (1,))
        g.output("forward", aicf.broadcast_to(one, (3,)) * w)
        g.output("dx", g.backward(aicf.sum(x * w), [x])[x])

    check_passes(build, {"x": draw(rng, 3), "w": draw(rng, 3)}, device)


def test_equal_constants_merge(device, rng):
    def build(g):
        x = g.input("x", (2, 3))
        row = np.array([[0.0, 1.0, 2.0]], np.float32)
        for i, array in enumerate((row, row.copy(), -row, row[0])):
            g.output(f"y{i}", x * g.constant(array))

    check_passes(build, {"x": draw(rng, 2, 3)}, device)
    g = aicf.Graph("g")
    build(g)
    text = text_after(g, "cse")
    assert text.count("Mul(%0, %1)") == 2 and text.count("Mul(%0, %") == 4


# ---- reductions


def bare(write, shape, dtype, device, after, rng):
    """`after`: the live ops that are left, a bare reduction last."""
    feed = {"x": draw(rng, *shape)}

    def build(g):
        x = g.input("x", shape)
        g.output("y", write(x if dtype == "float32" else aicf.cast(x, dtype)))

    g = compare(build, feed, device, "reduce_prepass")
    left = nodes_after(g, "reduce_prepass")
    assert left[dtype != "float32" :] == after, text_after(g, "reduce_prepass")
    return text_after(g, "reduce_prepass")


REDUCED = [
    (lambda x: aicf.reshape(aicf.sum(x, 1, keepdims=True), (5, 7)), ["Sum"]),
    (lambda x: aicf.reshape(aicf.sum(x, (0, 2)), (1, 6, 1)), ["Sum"]),
    (lambda x: aicf.sum(aicf.reshape(x, (5, 42)), 1), ["Sum"]),
    (lambda x: aicf.mean(aicf.reshape(x, (210,))), ["Mean"]),
    (lambda x: aicf.sum(aicf.reshape(x, (1, 5, 1, 6, 7)), (0, 3), keepdims=False), ["Sum"]),
    (lambda x: aicf.sum(aicf.permute(x, (1, 0, 2)), 0), ["Sum"]),
    (lambda x: aicf.sum(aicf.permute(x, (0, 2, 1)), 2, keepdims=True), ["Transpose", "Sum"]),
    (lambda x: aicf.sum(aicf.permute(x, (2, 0, 1)), (1, 2)), ["Sum"]),
    (lambda x: aicf.reshape(aicf.sum(aicf.permute(x, (1, 2, 0)), (0, 1), True), (5,)), ["Sum"]),
    (lambda x: aicf.max(aicf.permute(x, (2, 1, 0)), (0, 1)), ["Max"]),
    (lambda x: aicf.min(aicf.reshape(aicf.permute(x, (0, 2, 1)), (5, 42)), 1), ["Min"]),
    # The elements of a sum would come in another order, or the results would.
    (lambda x: aicf.sum(aicf.permute(x, (2, 1, 0)), (0, 1)), ["Transpose", "Sum"]),
    (lambda x: aicf.sum(aicf.permute(x, (2, 1, 0))), ["Transpose", "Sum"]),
    (lambda x: aicf.sum(aicf.permute(x, (2, 1, 0)), 0), ["Transpose", "Sum"]),
    (lambda x: aicf.max(aicf.permute(x, (2, 1, 0)), 2), ["Transpose", "Max"]),
    # An axis that is cut: one part summed, the other kept.
    (lambda x: aicf.sum(aicf.reshape(x, (5, 3, 2, 7)), 1), ["Reshape", "Sum"]),
    (lambda x: aicf.sum(aicf.reshape(x, (30, 7)), 0), ["Sum"]),
    (lambda x: aicf.sum(aicf.reshape(x, (15, 14)), 0), ["Reshape", "Sum"]),
    (lambda x: aicf.argmax(aicf.reshape(x, (5, 42)), 1), ["Reshape", "ArgMax"]),
]


@pytest.mark.parametrize("case", range(len(REDUCED)))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bare_reduction(case, dtype, device, rng):
    write, after = REDUCED[case]
    bare(write, (5, 6, 7), dtype, device, after, rng)


def test_an_integer_sum_has_no_order(device, rng):
    """Integers wrap, so any order gives the same."""

    def build(g):
        x = g.input("x", (5, 6, 7), "int32")
        g.output("y", aicf.sum(aicf.permute(x, (2, 1, 0)), (0, 1)))

    feed = {"x": rng.integers(-(2**31), 2**31, (5, 6, 7)).astype(np.int32)}
    assert nodes_after(compare(build, feed, device, "reduce_prepass"), "reduce_prepass") == ["Sum"]


def test_the_order_of_a_sum_is_kept(device):
    """Elements whose sum depends on their order, long enough for several leaves."""
    x = np.float32(10) ** np.random.default_rng(5).uniform(-6, 6, (40, 50, 3)).astype(np.float32)

    def build(g):
        v = g.input("x", x.shape)
        for name, axes in (("turned", (1, 0, 2)), ("last", (2, 0, 1)), ("all", (2, 1, 0))):
            for reduced in ((0, 1), (1, 2), (0, 2), (0, 1, 2)):
                y = aicf.sum(aicf.permute(v, axes), reduced)
                g.output(f"{name}{reduced}", aicf.reshape(y, (1, *y.shape)))

    compare(build, {"x": x}, device, "reduce_prepass")
    compare(build, {"x": x}, device, *_core.pass_names())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("reduce", [aicf.sum, aicf.mean, aicf.max, aicf.min])
def test_casts_around_a_reduction(dtype, reduce, device):
    """A 16-bit sum is computed in float32 anyhow; here it leaves the range of float16 too."""
    x = np.concatenate([hard("float16"), np.full(2000, 60000, np.float16)])
    feed = {"x": x[: len(x) // 8 * 8].reshape(-1, 8).astype(np.float32)}

    def build(g):
        x = aicf.cast(g.input("x", feed["x"].shape), dtype)
        for axis in (0, 1, (0, 1)):
            g.output(f"y{axis}", aicf.cast(reduce(aicf.cast(x, "float32"), axis), dtype))

    g = compare(build, feed, device, "reduce_prepass")
    ops = nodes_after(g, "reduce_prepass")
    assert ops == ["Cast", *[ops[-1]] * 3] and ops[-1] != "Cast"


def test_a_reduction_that_others_read_stays(device, rng):
    def build(g):
        x = g.input("x", (5, 6))
        s = aicf.sum(x, 1, keepdims=True)
        g.output("y", x / s)
        g.output("s", aicf.reshape(s, (5,)))

    g = compare(build, {"x": draw(rng, 5, 6)}, device, "reduce_prepass")
    assert nodes_after(g, "reduce_prepass") == ["Sum", "Div", "Reshape"]


# ---- figures


def test_stages_measure_what_a_pass_saves():
    g = aicf.Graph("g")
    x = g.input("x", (100, 50))
    g.output("y", aicf.exp(x * 1.0) + aicf.exp(x / 1.0) * aicf.sum(g.constant(np.ones(9, "f"))))
    stages = {stage.name: stage for stage in g._core.stages(_core.pass_names())}
    size = x.shape[0] * x.shape[1] * 4
    ops = [stages[name].ops for name in ("", "fold", "simplify", "cse", "reduce_prepass", "fuse")]
    assert ops == [7, 6, 4, 3, 3, 1]
    moved = [stages[name].bytes_moved for name in ("simplify", "cse", "fuse")]
    assert moved == [9 * size + 4, 7 * size + 4, 2 * size + 4]
    assert all(stage.keeps_bits for stage in stages.values())
    plan = g.compile(device="cpu").plan
    assert plan.bytes_moved == stages["fuse"].bytes_moved
    assert plan.peak_bytes == stages["fuse"].peak_bytes <= stages[""].peak_bytes
    assert plan.flops == stages["fuse"].flops > 0
    assert f"1 launches, {plan.bytes_moved} bytes moved" in str(plan)


def test_texts_say_what_numbers_are():
    g = aicf.Graph("numbers")
    x, n = g.input("x", (3,)), g.input("n", (3,), "int64")
    w = g.param("w", (3,))
    g.output("y", x * 0.1 + aicf.cast(n + 2, "float32") + aicf.cast(x * 1e-40 < 0.5, "float32"))
    g.output("z", aicf.cast(aicf.cast(x, "bfloat16") * 3.0, "float32") / math.inf)
    g.minimize(aicf.mean(w * x), aicf.optim.SGD(lr=0.1))
    lines = [line.partition(" ")[2].partition('"')[2] for line in str(g).splitlines()[1:]]
    said = {line.partition('" ')[2] for line in lines if '" ' in line}
    numbers = {"= 0.1", "= 2", "= 1e-40", "= 0.5", "= 3.0", '= "Infinity"', "begins as 0.1"}
    assert numbers <= said, said


def test_the_dump_shows_each_pass_with_the_same_ids(tmp_path, capsys):
    g = aicf.Graph("g")
    x = g.input("x", (3,))
    g.output("y", aicf.exp(x) * aicf.exp(x * 1.0))
    path = tmp_path / "graph.json"
    path.write_text(g.to_json())
    assert command.main(["dump", str(path), "--stage", "passes"]) == 0
    out = capsys.readouterr().out
    assert "--- before: 4 ops, 112 bytes moved, peak" in out
    assert out.count("--- after fold: unchanged\n--- after simplify (keeps bits): ops 4 -> 3,") == 1
    assert "--- after simplify (keeps bits): ops 4 -> 3, bytes moved 112 -> 84" in out
    assert "%3 f32[3] = Mul(%0, %2)  # dead node 1" in out
    assert "%5 f32[3] = Mul(%1, %1)  # node 3" in out
    ids = {record["id"]: record["shape"] for record in json.loads(g.to_json())["values"].values()}
    for line in out.splitlines():
        if line.startswith("  %") and "# " in line:
            id, type = line.split()[:2]
            assert str(ids[int(id[1:])]) == type.removeprefix("f32")
