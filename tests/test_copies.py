"""What is copied into another order is made in that order."""

import json
import math

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits
from conftest import DEVICES

ALL = _core.pass_names()
APART = tuple(name for name in ALL if name not in ("copies", "block", "loops", "horizontal"))
WITH = tuple(name for name in ALL if name not in ("block", "loops", "horizontal"))


def ops(g, passes=WITH):
    """Of a GPU's plan."""
    return [op["op"] for op in json.loads(_core.cuda_plan(g._core, passes))["ops"]]


def test_the_gradient_of_an_average_pool_is_one_launch():
    g = aicf.Graph("pool")
    x = g.input("x", (2, 3, 8, 12))
    y = aicf.avg_pool2d(x, 2)
    g.output("dx", aicf.grad(y, [x], g.input("dy", y.shape))[0])
    assert ops(g, APART) == ["div", "copy", "copy", "copy"]
    assert ops(g) == ["div"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_reshaped_result_is_written_as_the_output(device):
    g = aicf.Graph("reshaped")
    x = g.input("x", (6, 4))
    g.output("y", aicf.reshape(aicf.exp(x), (3, 8)))
    if device == "cpu":
        assert [op["op"] for op in g.compile(device="cpu").lowered] == ["exp"]
    else:
        assert ops(g) == ["exp"]


def test_what_others_read_is_not_made_again():
    g = aicf.Graph("twice")
    x = g.input("x", (6, 4))
    y = aicf.exp(x)
    g.output("y", aicf.reshape(aicf.permute(aicf.reshape(y, (2, 3, 4)), (1, 0, 2)), (6, 4)))
    g.output("sum", aicf.sum(y))
    assert ops(g).count("exp") == 1


def test_costly_functions_are_not_made_again_for_each_reader():
    def graph(f):
        g = aicf.Graph("wide")
        x = aicf.reshape(f(g.input("x", (6, 4))), (6, 1, 4))
        g.output("y", aicf.reshape(aicf.broadcast_to(x, (6, 5, 4)), (30, 4)))
        return g

    assert ops(graph(lambda x: x * 2.0)) == ["mul"]
    assert ops(graph(aicf.sin)) == ["sin", "copy"]


def test_a_transposed_result_is_copied_by_tiles():
    """Neighbours that would be read apart are not."""
    g = aicf.Graph("transposed")
    g.output("y", aicf.permute(aicf.exp(g.input("x", (64, 32))), (1, 0)))
    assert ops(g) == ["exp", "copy"]


def test_state_that_is_overwritten_is_read_before():
    g = aicf.Graph("state")
    s = g.state("s", (2, 3, 4), init=np.arange(24, dtype="f4").reshape(2, 3, 4))
    old = aicf.reshape(aicf.permute(s * 2.0, (1, 0, 2)), (6, 4))
    g.assign(s, s + 1.0)
    g.output("old", aicf.reshape(aicf.permute(aicf.reshape(old, (3, 2, 4)), (1, 0, 2)), (8, 3)))
    step = g.compile(device="cpu")
    for turn in range(3):
        want = 2.0 * (np.arange(24, dtype="f4") + turn)
        assert np.array_equal(step()["old"].numpy().reshape(-1), want)


def random_graph(seed):
    """Pointwise ops and views by turns; a reshape of a view copies it."""
    rng = np.random.default_rng(seed)
    g = aicf.Graph("copies")
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6, 8], rng.integers(2, 5)))
    feed = {"x": rng.standard_normal(shape).astype("f4")}
    h, kept = g.input("x", shape), []
    for _ in range(rng.integers(4, 9)):
        kind = rng.integers(0, 9)
        if kind <= 1:
            f = [aicf.exp, aicf.tanh, lambda v: v * 3.0 + 1.0, lambda v: v / 3.0, aicf.sin]
            h = f[rng.integers(0, len(f))](h)
        elif kind == 2:
            w = rng.standard_normal((*h.shape[:-1], 1)).astype("f4")
            h = h * g.constant(w)
        elif kind <= 4 and len(h.shape) > 1:
            h = aicf.permute(h, tuple(int(a) for a in rng.permutation(len(h.shape))))
        elif kind == 5 and math.prod(h.shape) < 2000 and len(h.shape) < 5:
            at = int(rng.integers(0, len(h.shape) + 1))
            wide = (*h.shape[:at], int(rng.integers(2, 4)), *h.shape[at:])
            h = aicf.broadcast_to(aicf.reshape(h, (*h.shape[:at], 1, *h.shape[at:])), wide)
        elif kind == 6 and h.shape[0] > 2:
            first = int(rng.integers(0, 2))
            h = h[first : first + h.shape[0] - 1]
        elif kind == 7:
            kept.append(h)
        else:
            left, to = math.prod(h.shape), []
            while left > 1 and len(to) < 3:
                size = int(rng.choice([d for d in range(1, left + 1) if left % d == 0]))
                to.append(size)
                left //= size
            h = aicf.reshape(h, (*to, left))
    for i, value in enumerate([*kept[:2], h]):
        g.output(f"y{i}", aicf.reshape(value, (math.prod(value.shape),)))
    return g, feed


@pytest.mark.parametrize("group", range(8))
@pytest.mark.parametrize("device", DEVICES)
def test_random_views(device, group):
    for seed in range(40 * group, 40 * group + 40):
        g, feed = random_graph(seed)
        want = g.compile(device="cpu", passes=())(**feed)
        for passes in ("default", WITH, ("copies",), ("fuse", "copies")):
            found = g.compile(device=device, passes=passes)(**feed)
            for name in want:
                assert_bits(found[name].numpy(), want[name].numpy(), f"{seed} {name} {passes}")


def test_random_views_have_fewer_launches_on_a_gpu():
    fewer = more = 0
    for seed in range(200):
        g, _ = random_graph(seed)
        with_, apart = len(ops(g)), len(ops(g, APART))
        fewer, more = fewer + (with_ < apart), more + (with_ > apart)
    assert more == 0
    assert fewer > 60
