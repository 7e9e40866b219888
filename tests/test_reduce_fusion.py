"""Pointwise ops around a reduction become one op with it, and keep every bit."""

from collections import Counter
from functools import partial
from itertools import combinations

import aicf
import numpy as np
import pytest
from test_passes import check_passes, draw, entries, kind, one

SUMS = {
    "product": lambda a, b: aicf.sum(a * b),
    "absolute error": lambda a, b: aicf.mean(aicf.abs(a - b)),
    "squares": lambda a, b: aicf.sqrt(aicf.sum(a * a)),
    "columns": lambda a, b: aicf.sum(a * b, axis=0),
    "logistic loss": lambda a, b: aicf.mean(aicf.softplus(a) - a * b) * 0.5,
    "largest": lambda a, b: aicf.exp(aicf.max(a - b, axis=1, keepdims=True)) + 1.0,
    "smallest": lambda a, b: aicf.min(aicf.where(a < b, a, b), axis=0),
}


def body_of(step):
    (op,) = entries(step)
    assert kind(op) == "region reduce"
    return [part["op"] for part in op["body"]]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", SUMS)
def test_a_reduction_takes_what_is_around_it(name, dtype, device, rng):
    """One launch, from elements that never lie in memory to the result."""
    feed = {k: draw(rng, 30, 50, dtype=dtype) for k in "ab"}
    _, _, step = one(lambda g, a, b: {"y": SUMS[name](a, b)}, feed, device)
    body = body_of(step)
    assert sum(op.startswith("reduce_") for op in body) == 1 and len(body) > 1


SHAPES = [
    (), (5,), (3, 7), (1, 9), (9, 1), (0, 3), (3, 0), (4, 5, 6), (2, 3, 4, 5), (70, 130), (600, 70),
    (1100, 24), (2000, 9), (3, 5000), (40, 1300), (700, 1030), (2, 70_000), (140_000,),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_reductions_over_any_axes(shape, dtype, device, rng):
    """Long and short rows, columns, broadcast operands, values that others read, empty axes."""
    if device != "cpu" and dtype not in ("float32", "bfloat16"):
        pytest.skip("one dtype of each size is enough on a GPU")
    rank = len(shape)
    feed = {"a": draw(rng, *shape), "row": draw(rng, *shape[-1:])}
    feed["column"] = draw(rng, *shape[:1], *[1] * (rank - 1))
    sets = [axes for n in range(rank + 1) for axes in combinations(range(rank), n)]

    def build(g, a, row, column):
        a, row, column = (aicf.cast(4.0 * v, dtype) for v in (a, row, column))
        values = {}
        for i, axes in enumerate(sets if rank < 4 else sets[::3]):
            empty = any(shape[axis] == 0 for axis in axes)
            for fn in ("sum", *["mean"] * (dtype != "int32"), *["max", "min"] * (not empty)):
                reduce = partial(getattr(aicf, fn), axis=axes, keepdims=bool(i % 2))
                name = f"{fn} over {axes}"
                y = reduce((a * row - column) * a)
                values[name] = y * y + y
                values[f"{name}, kept"] = z = reduce(aicf.abs(a - column))
                values[f"{name}, behind"] = z * z
                w = reduce(a)
                values[f"{name}, bare"] = aicf.abs(w) * w
        return values

    one(build, feed, device, [(), ("reductions",), "default"])


def test_operands_that_lie_otherwise(device, rng):
    """Slices, strides of two, turned axes: of one layout, of several, of none."""

    def build(g, a, b):
        part, other = a[3:40, 5:70:2], b[1:38, :65:2]
        turned = aicf.permute(b, (1, 0))
        return {
            "parts": aicf.sum(part * other, axis=1),
            "columns of parts": aicf.max(part - other, axis=0),
            "turned": aicf.sum(aicf.permute(a, (1, 0)) * turned, axis=0),
            "across": aicf.sum(a * turned),
            "row and column": aicf.sum(a[:, :1] * b[:1, :]),
            "one element": aicf.sum(aicf.broadcast_to(a[:1, :1] * 0.5, (90, 70))),
            "back": aicf.sum(a[:, ::-1] * b[:, ::-1], axis=1),
        }

    one(build, {"a": draw(rng, 80, 80), "b": draw(rng, 80, 80)}, device)


def test_elements_read_elsewhere_are_stored(device, rng):
    """They lie in memory anyhow, so the reduction reads them there."""

    def build(g, a, b):
        y = aicf.sin(a) * b
        return {"y": y, "sum": aicf.sum(y), "sum of more": aicf.sum(y * a)}

    _, ops, step = one(build, {"a": draw(rng, 40, 50), "b": draw(rng, 40, 50)}, device)
    assert Counter(ops) == {"region": 1, "reduce_sum": 1, "region reduce": 1}
    bodies = [[part["op"] for part in op.get("body", [])] for op in entries(step)]
    assert ["mul", "reduce_sum"] in bodies


def test_a_result_read_elsewhere_is_kept(device, rng):
    def build(g, a):
        y = aicf.sum(a * a, axis=1)
        return {"y": y, "root": aicf.sqrt(y), "ratio": a / aicf.reshape(y, (40, 1))}

    _, ops, step = one(build, {"a": draw(rng, 40, 50)}, device)
    assert Counter(ops) == {"region reduce": 1, "div": 1}
    (op,) = [op for op in entries(step) if kind(op) == "region reduce"]
    assert len(op["outputs"]) == 2 and len(op["inner"]) == 1


def test_what_is_to_be_waited_for_stays_behind(device, rng):
    """Two sums may run side by side; with the one inside the other they could not."""

    def build(g, a, b):
        return {"y": aicf.sum(a * a) + aicf.sum(b * b)}

    _, ops, step = one(build, {"a": draw(rng, 40, 50), "b": draw(rng, 30)}, device)
    assert Counter(ops) == {"region reduce": 2, "add": 1}
    assert len(step.trace) == 2


def test_operands_read_across_stay_apart(device, rng):
    """A product whose operands have their neighbours along different axes is made by itself."""
    feed = {"a": draw(rng, 40, 40), "b": draw(rng, 40, 40)}
    _, ops, _ = one(lambda g, a, b: {"y": aicf.sum(a * b.T)}, feed, device)
    assert ops == ["mul", "reduce_sum"]
    _, ops, _ = one(lambda g, a, b: {"y": aicf.sum(a * b[:, :1])}, feed, device)
    assert ops == ["region reduce"]


def test_the_gradient_of_a_norm_s_scale(device, rng):
    """Columns of dy * y: the product is not stored."""

    def build(g, x, dy):
        gamma = g.param("gamma", (48,), init=aicf.init.constant(1.0))
        y = aicf.layer_norm(x, 48, gamma)
        (grad,) = g.backward(y, [gamma], grad=dy).values()
        return {"grad": grad}

    _, ops, step = one(build, {"x": draw(rng, 300, 48), "dy": draw(rng, 300, 48)}, device)
    assert ops.count("region reduce") == 1 and "reduce_sum" not in ops


def test_states_around_a_reduction(device, rng):
    """A state that the reduction reads is not overwritten by it."""

    def build(g):
        x = g.input("x", (6, 6))
        for i, update in enumerate(
            [
                lambda s: aicf.sum(s * x, axis=0) * 0.5,
                lambda s: s * 0.9 + aicf.mean(x * x, axis=0) * 0.1,
                lambda s: aicf.max(x * s, axis=1) - s,
            ]
        ):
            s = g.state(f"s{i}", (6,), init=aicf.init.uniform(-1, 1))
            g.assign(s, update(s))
            g.output(f"y{i}", s + 1.0)

    check_passes(build, {"x": draw(rng, 6, 6)}, device)


@pytest.mark.parametrize("shape", [(3, 5), (200, 300), (5, 1000)])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_what_must_hold_of_sums_and_extrema(axis, shape, device, rng):
    """Inside a fusion and outside."""

    def build(g, x):
        axes = (0, 1) if axis is None else axis
        top = aicf.max(x, axes, keepdims=True)
        return {
            "zero": aicf.sum(x - x, axes),
            "most": aicf.max(x - top, axes),
            "least": aicf.min(aicf.abs(x), axes) + aicf.max(-aicf.abs(x), axes),
            "above": aicf.sum(aicf.cast(x > top, "int32"), axes),
            "one": aicf.sum(aicf.softmax(aicf.reshape(x, (1, -1)) * 2.0)) - 1.0,
        }

    got, _, _ = one(build, {"x": draw(rng, *shape)}, device)
    for name, y in got.items():
        limit = 1e-5 if name.startswith("one") else 0
        assert (np.abs(y) <= limit).all(), name
