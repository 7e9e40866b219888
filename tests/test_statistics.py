"""Statistics of activations and gradients, against NumPy, and that they change no bit."""

import aicf
import numpy as np
import pytest
from compare import assert_bits

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

BATCH = {"x": (8, 5), "t": (8, 3)}


def network(statistics):
    g = aicf.Graph("network")
    x, t = (g.input(name, shape) for name, shape in BATCH.items())
    h = aicf.relu(g.dense("first", x, 16))
    y = g.dense("second", h, 3)
    g.minimize(aicf.mse_loss(y, t), aicf.optim.Adam(lr=0.1), clip_norm=1.0)
    g.output("h", h)
    g.output("y", y)
    if statistics:
        g.statistics()
    return g


def batch(rng):
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in BATCH.items()}


def test_each_layer_and_gradient_has_statistics(device, rng):
    step = network(True).compile(device=device)
    before = {name: array.numpy().astype(np.float64) for name, array in step.params.items()}
    data = batch(rng)
    out, found = step(**data), step.statistics()
    assert list(found) == ["first", "second", "loss", *(f"{name}.grad" for name in before)]
    h, y = out["h"].numpy(), out["y"].numpy()
    assert found["first"][:2] == (h.min(), h.max())
    assert found["first"].mean == pytest.approx(h.mean(), rel=1e-5)
    assert found["first"].zeros == pytest.approx((h == 0).mean()) and found["first"].zeros > 0
    dy = 2 / y.size * (y.astype(np.float64) - data["t"])
    gradient = dy.T @ h
    assert found["second.W.grad"].min == pytest.approx(gradient.min(), rel=1e-4)
    assert found["second.W.grad"].max == pytest.approx(gradient.max(), rel=1e-4)
    assert found["second.b.grad"].mean == pytest.approx(dy.sum(0).mean(), rel=1e-4)


@pytest.mark.parametrize("math", ["fp32", "mixed"])
@pytest.mark.parametrize("passes", [(), "default"])
def test_statistics_change_no_bit(device, make_rng, passes, math):
    states = []
    for watched in (False, True):
        rng = make_rng(3)
        step = network(watched).compile(device=device, passes=passes, math=math)
        for _ in range(5):
            step(**batch(rng))
        states.append(step.state_dict())
    for name, array in states[0].items():
        assert_bits(states[1][name], array, name)


def test_values_of_any_dtype_by_name(device):
    g = aicf.Graph("g")
    x = g.input("x", (4,), "int32")
    half = g.input("half", (2, 2), "float16")
    g.statistics({"integers": x, "half": half, "flags": x > 1})
    step = g.compile(device=device)
    step(x=np.array([0, 2, -3, 5], np.int32), half=np.array([[1, 2], [0, 0]], np.float16))
    assert step.statistics() == {
        "integers": (-3.0, 5.0, 1.0, 0.25),
        "half": (0.0, 2.0, 0.75, 0.5),
        "flags": (0.0, 1.0, 0.5, 0.5),
    }


def test_refusals():
    g = network(False)
    with pytest.raises(aicf.GraphError, match="need a call of Graph.statistics"):
        g.compile(device="cpu").statistics()
    before = str(g)
    other = aicf.Graph("other").input("x", (2,))
    for wrong in ({"x": 3}, {4: g.input}, {"x": other}, 7):
        with pytest.raises(aicf.GraphError, match="need a|never mix"):
            g.statistics(wrong)
    assert str(g) == before


def test_statistics_are_added_as_a_whole_or_not_at_all():
    g = network(False)
    x, empty = g.input("more", (4,)), g.input("empty", (0, 3))
    g.statistics({"a": x})
    before = g.to_json()
    with pytest.raises(aicf.GraphError, match='statistics: "a" has statistics already'):
        g.statistics({"b": x, "a": x})
    for wrong in (3, aicf.Graph("other").input("x", (2,)), empty):
        with pytest.raises((aicf.GraphError, aicf.ShapeError), match="statistics: "):
            g.statistics({"b": x, "wrong": wrong})
    assert g.to_json() == before
    g.statistics({"b": x})
    g.statistics()
    with pytest.raises(aicf.GraphError, match='statistics: "first" has statistics already'):
        g.statistics()
