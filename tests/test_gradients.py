"""Gradients as values: `aicf.grad`, several backwards in one graph, `jvp`, `custom_gradient`."""

import json
import re

import aicf
import numpy as np
import pytest
from conftest import outputs_of

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")


def graph_of(*shapes, dtype="float64"):
    g = aicf.Graph("gradients")
    return g, *(g.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes))


def run(g, device, **arrays):
    assert g.verify().ok
    return outputs_of(g.compile(device=device, seed=0)(**arrays))


# ---- grad


def test_grad_of_one_and_of_many(device):
    g, x, y = graph_of((3,), (3,))
    z = aicf.sum(x * x * y)
    assert isinstance(aicf.grad(z, x), aicf.Value)
    found = aicf.grad(z, [x, y])
    assert [v.shape for v in found] == [(3,), (3,)]
    g.output("dx", found[0])
    g.output("dy", found[1])
    g.output("weighted", aicf.grad(x * y, x, grad=y))
    g.output("between", aicf.grad(z, [x * x])[0])  # another product: z does not depend on it
    a, b = np.array([1.0, 2, 3]), np.array([4.0, 5, 6])
    out = run(g, device, x0=a, x1=b)
    assert (out["dx"] == 2 * a * b).all() and (out["dy"] == a * a).all()
    assert (out["weighted"] == b * b).all() and not out["between"].any()


def test_grad_by_a_value_inside(device):
    g, x = graph_of((3,))
    h = aicf.tanh(x)
    g.output("dh", aicf.grad(aicf.sum(h * h), h))
    a = np.array([0.5, -1, 2])
    np.testing.assert_allclose(run(g, device, x0=a)["dh"], 2 * np.tanh(a), rtol=1e-15)


def test_grad_marks_nothing():
    """The graph gains nodes alone, and none where the call raises; backward keeps its gradients."""
    g, x = graph_of((3,))
    loss = aicf.sum(x * x)
    aicf.grad(loss, x)
    record = json.loads(g.to_json())
    assert record["gradients"] == [] and record["outputs"] == []
    number = g.constant(1, "int32")
    for call in (
        lambda: aicf.grad(x, x),
        lambda: aicf.grad(loss, x, grad=x),
        lambda: aicf.grad(loss, [x, number]),
        lambda: aicf.grad(loss, aicf.Graph("other").input("x", (3,), "float64")),
    ):
        before = g.to_json()
        with pytest.raises(aicf.Error):
            call()
        assert g.to_json() == before
    g.backward(loss, [x])
    assert len(json.loads(g.to_json())["gradients"]) == 1


def test_what_is_not_reached_is_zero(device):
    """Where backward says so instead."""
    g, x, y = graph_of((3,), (2, 2))
    loss = aicf.sum(x)
    with pytest.raises(aicf.GraphError, match="does not depend on"):
        g.backward(loss, [y])
    dx, dy, dh = aicf.grad(loss, [x, y, aicf.detach(x)])
    g.output("dy", dy)
    g.output("dh", dh)
    g.output("dx", dx)
    g.output("second", aicf.grad(aicf.sum(dx), x))
    out = run(g, device, x0=np.ones(3), x1=np.ones((2, 2)))
    assert out["dy"].shape == (2, 2) and not out["dy"].any() and not out["dh"].any()
    assert (out["dx"] == 1).all() and not out["second"].any()


def test_several_backwards_and_one_of_a_gradient(device):
    """A loss of gradients is minimized as any other; the optimizer reads the last ones."""
    g = aicf.Graph("penalty")
    x = g.input("x", (5, 3), "float64")
    w = g.param("w", (1, 3), "float64", init=aicf.init.constant(0.5))
    b = g.param("b", (1,), "float64", init=aicf.init.constant(0.25))
    y = aicf.tanh(aicf.linear(x, w, b))
    first = g.backward(aicf.sum(y), [x])[x]
    again = g.backward(aicf.sum(y), [x])[x]
    penalty = aicf.mean(aicf.sum(first * again, 1))
    g.minimize(penalty + aicf.mean(y), aicf.optim.SGD(0.1))
    g.statistics()
    a = np.random.default_rng(0).standard_normal((5, 3))
    step = g.compile(device=device, seed=0)
    step(x=a)
    torch = pytest.importorskip("torch")
    tx = torch.from_numpy(a).requires_grad_()
    tw = torch.full((1, 3), 0.5, dtype=torch.float64, requires_grad=True)
    tb = torch.full((1,), 0.25, dtype=torch.float64, requires_grad=True)
    ty = torch.tanh(tx @ tw.T + tb)
    (slope,) = torch.autograd.grad(ty.sum(), tx, create_graph=True)
    loss = (slope * slope).sum(1).mean() + ty.mean()
    dw, db = torch.autograd.grad(loss, (tw, tb))
    for name, start, grad in (("w", tw, dw), ("b", tb, db)):
        want = (start - 0.1 * grad).detach().numpy()
        np.testing.assert_allclose(step.params[name].numpy(), want, rtol=1e-12)


def test_a_first_gradient_is_what_it_was():
    """Differentiating it again adds nodes and changes none; unused, they are not lowered."""
    plans = []
    for again in (False, True):
        g = aicf.Graph("first")
        x = g.input("x", (8, 4))
        h = aicf.softmax(aicf.gelu(g.dense("0", x, 6)))
        grads = g.backward(aicf.cross_entropy(h, g.input("labels", (8,), "int32")))
        for p, grad in grads.items():
            g.output(p.name, grad)
        if again:
            aicf.grad(aicf.sum(grads[next(iter(grads))]), x)
        plans.append(re.sub(r"%\d+", "%", str(g.compile(device="cpu").plan)))
    assert plans[0] == plans[1]


# ---- jvp

DIRECTIONS = {
    "tanh": ((4, 3), lambda x: aicf.tanh(x), lambda t, x: t.tanh(x)),
    "softmax": ((4, 3), lambda x: aicf.softmax(x), lambda t, x: x.softmax(-1)),
    "norm": ((4, 3), lambda x: aicf.layer_norm(x, 3), lambda t, x: t.layer_norm(x, (3,))),
    "sum": ((4, 3), lambda x: aicf.sum(x * x), lambda t, x: (x * x).sum()),
    "max": ((4, 3), lambda x: aicf.max(x, 1), lambda t, x: x.amax(1)),
    "conv": (
        (1, 2, 5, 5),
        lambda x: aicf.conv2d(x, x[:, :, :3, :3], padding=1),
        lambda t, x: t.nn.functional.conv2d(x, x[:, :, :3, :3], padding=1),
    ),
    "pool": (
        (1, 2, 6, 6),
        lambda x: aicf.max_pool2d(x, 2),
        lambda t, x: t.nn.functional.max_pool2d(x, 2),
    ),
    "relu": ((4, 3), lambda x: aicf.relu(x), lambda t, x: x.relu()),
    "floor": ((4, 3), lambda x: aicf.floor(x), lambda t, x: x.floor()),
}


@pytest.mark.parametrize("name", DIRECTIONS)
def test_jvp(name, device, make_rng):
    torch = pytest.importorskip("torch")
    shape, fn, other = DIRECTIONS[name]
    rng = make_rng(0)
    a, v = rng.standard_normal(shape), rng.standard_normal(shape)
    g, x, along = graph_of(shape, shape)
    y = fn(x)
    slope = aicf.jvp(y, x, along)
    assert slope.shape == y.shape and slope.dtype == y.dtype
    g.output("slope", slope)
    _, want = torch.autograd.functional.jvp(
        lambda t: other(torch, t), torch.from_numpy(a), torch.from_numpy(v)
    )
    np.testing.assert_allclose(run(g, device, x0=a, x1=v)["slope"], want.numpy(), atol=1e-13)


def test_jvp_of_several_and_of_two_dtypes(device):
    g = aicf.Graph("jvp")
    x, w = g.input("x", (4, 3)), g.input("w", (2, 3))
    dx, dw = g.input("dx", (4, 3)), g.input("dw", (2, 3))
    y = aicf.cast(aicf.linear(x, w), "float64")
    g.output("slope", aicf.jvp(y, [x, w], [dx, dw]))
    rng = np.random.default_rng(0)
    feed = {
        name: rng.integers(-4, 5, shape).astype("f")
        for name, shape in (("x", (4, 3)), ("w", (2, 3)), ("dx", (4, 3)), ("dw", (2, 3)))
    }
    slope = run(g, device, **feed)["slope"]
    assert slope.dtype == np.float64
    assert (slope == feed["dx"] @ feed["w"].T + feed["x"] @ feed["dw"].T).all()


@pytest.mark.parametrize(
    ("wrt", "tangents", "error", "text"),
    [
        ("x", "xx", aicf.GraphError, "1 values in wrt, 2 tangents"),
        ("", "", aicf.GraphError, "0 values in wrt"),
        ("x", "y", aicf.ShapeError, "need equal shapes"),
        ("x", "z", aicf.DTypeError, "need equal dtypes"),
    ],
)
def test_misuse_of_jvp(wrt, tangents, error, text):
    g = aicf.Graph("jvp")
    of = {"x": g.input("x", (3,)), "y": g.input("y", (4,)), "z": g.input("z", (3,), "float64")}
    with pytest.raises(error, match=text):
        aicf.jvp(aicf.tanh(of["x"]), [of[n] for n in wrt], [of[n] for n in tangents])
    with pytest.raises(aicf.DTypeError, match="jvp: value is .*i64.*; need a float dtype"):
        aicf.jvp(aicf.argmax(of["x"]), of["x"], of["x"])


# ---- custom_gradient


@aicf.custom_gradient
def limited(x, limit=1.0):
    """x, whose gradient is limited."""
    return x * 1.0, lambda dy: aicf.clip(dy, -limit, limit)


@aicf.custom_gradient
def scaled_product(a, b):
    def backward(dy):
        return [dy * b * 10.0, None]

    return a * b, backward


def test_custom_gradient(device):
    """Its own, times what comes from above; options by name; None is zero."""
    g, x, y = graph_of((3,), (3,))
    g.output("value", limited(x, limit=0.5))
    g.output("slope", aicf.grad(aicf.sum(limited(x, limit=0.5) * y), x))
    product = scaled_product(x, y)
    g.output("product", product)
    for name, grad in zip(("da", "db"), aicf.grad(aicf.sum(product), [x, y]), strict=True):
        g.output(name, grad)
    a, b = np.array([1.0, 2, 3]), np.array([0.25, -4, 9])
    out = run(g, device, x0=a, x1=b)
    assert (out["value"] == a).all() and (out["slope"] == np.clip(b, -0.5, 0.5)).all()
    assert (out["product"] == a * b).all()
    assert (out["da"] == 10 * b).all() and not out["db"].any()


@pytest.mark.parametrize("math", ["fp32", "mixed"])
@pytest.mark.parametrize("passes", [(), "default"])
def test_custom_gradient_costs_no_launch(math, passes):
    """It is its result, seen again."""

    def gate(x, y):
        return x * y * 2.0, lambda dy: (dy, dy)

    launches = []
    for fn in (lambda x, y: gate(x, y)[0], aicf.custom_gradient(gate)):
        g = aicf.Graph("gate")
        h = aicf.linear(g.input("x", (64, 64)), g.param("w", (64, 64)))
        g.output("y", aicf.softmax(fn(h, aicf.relu(h))))
        step = g.compile(device="cpu", math=math, passes=passes)
        launches.append([(op["op"], len(op["inputs"])) for op in step.lowered])
    assert launches[0] == launches[1]


def test_custom_gradient_trains(device):
    """A straight-through estimator, which has no gradient otherwise, in a training step."""

    @aicf.custom_gradient
    def rounded(x):
        return aicf.round(x), lambda dy: dy

    g = aicf.Graph("rounded")
    w = g.param("w", (4,), init=aicf.init.constant(0.3))
    loss = aicf.mse_loss(rounded(w * 4.0), g.input("t", (4,)))
    g.minimize(loss, aicf.optim.SGD(0.05))
    g.output("loss", loss)
    step = g.compile(device=device)
    losses = [float(step(t=np.arange(4, dtype="f"))["loss"]) for _ in range(40)]
    assert losses[-1] == 0.0 < losses[0]


def test_second_gradient_of_a_custom_one(device):
    """That of what its backward computes; a backward may itself ask for gradients."""

    @aicf.custom_gradient
    def again(x):
        return aicf.tanh(x), lambda dy: aicf.grad(aicf.tanh(x), x, grad=dy)

    @aicf.custom_gradient
    def other(x):
        return aicf.tanh(x), lambda dy: dy * x * x

    g, x = graph_of((3,))
    for name, fn in (("again", again), ("other", other)):
        first = aicf.grad(aicf.sum(fn(x)), x)
        g.output(name, first)
        g.output(f"{name} second", aicf.grad(aicf.sum(first), x))
        g.output(f"{name} along", aicf.jvp(fn(x), x, x))
    a = np.array([0.5, -1, 2])
    out, t = run(g, device, x0=a), np.tanh(a)
    np.testing.assert_allclose(out["again"], 1 - t * t, rtol=1e-14)
    np.testing.assert_allclose(out["again second"], -2 * t * (1 - t * t), rtol=1e-14)
    np.testing.assert_allclose(out["again along"], (1 - t * t) * a, rtol=1e-14)
    np.testing.assert_allclose(out["other"], a * a, rtol=1e-14)
    np.testing.assert_allclose(out["other second"], 2 * a, rtol=1e-14)
    np.testing.assert_allclose(out["other along"], a**3, rtol=1e-14)


def test_what_a_custom_gradient_leaves_out_is_refused(device):
    """A gradient by something that the function uses beside its arguments; detached, it is none."""
    g, x = graph_of((3,))
    w = g.param("w", (3,), "float64", init=aicf.init.ones())
    by = aicf.exp(w)
    y = aicf.custom_gradient(lambda v: (v * by, lambda dy: dy))(x)
    made = aicf.custom_gradient(lambda v: (aicf.linear(v, g.param("m", (2, 3), "float64")), abs))(x)
    still = aicf.custom_gradient(lambda v: (v * aicf.detach(by), lambda dy: dy))(x)
    aicf.grad(aicf.sum(y), x)
    for value, param, name in ((y, w, "exp_out"), (made, None, "m")):
        with pytest.raises(aicf.GraphError, match=f'also uses "{name}"'):
            g.backward(aicf.sum(value), None if param is None else [param])
    assert aicf.grad(aicf.sum(still), w).shape == (3,)
    assert [p.name for p in g.backward(aicf.sum(still))] == ["w"]


@pytest.mark.parametrize(
    ("fn", "error", "text"),
    [
        (lambda x: x * 2.0, aicf.GraphError, "need .Value, function of its gradient"),
        (lambda x: (x, 3), aicf.GraphError, "need .Value, function of its gradient"),
        (lambda x: (1.0, abs), aicf.GraphError, "need a Value of this graph"),
        (lambda x: (x, lambda dy: (dy, dy)), aicf.GraphError, "gave 2 gradients; need 1"),
        (lambda x: (x, lambda dy: 2.0), aicf.GraphError, "got float 2.0; need a Value"),
        (lambda x: (x, lambda dy: aicf.sum(dy)), aicf.ShapeError, "need equal shapes"),
        (lambda x: (x, lambda dy: aicf.cast(dy, "float32")), aicf.DTypeError, "need equal dtypes"),
        (lambda x: (aicf.cast(x, "int32"), abs), aicf.DTypeError, "need a float dtype"),
        (lambda x: (x, lambda dy: 1 / 0), ZeroDivisionError, "division"),
    ],
)
def test_misuse_of_custom_gradient(fn, error, text):
    """Said in words, and the graph stays as it was."""
    g, x = graph_of((3,))
    with pytest.raises(error, match=text):
        y = aicf.sum(aicf.custom_gradient(fn)(x))
        before = g.to_json()
        try:
            aicf.grad(y, x)
        finally:
            assert g.to_json() == before
    assert g.verify().ok
    for call in (lambda: aicf.custom_gradient(3), lambda: limited(), lambda: limited(2.0)):
        with pytest.raises(aicf.GraphError, match="need"):
            call()


def test_custom_gradient_in_a_file(device):
    """The value is in it; its backward is not, and that is said."""
    g, x = graph_of((3,))
    g.output("y", limited(x))
    loaded = aicf.Graph.from_json(g.to_json())
    assert (run(loaded, device, x0=np.ones(3))["y"] == 1).all()
    names = {n["op"]: n["outputs"][0] for n in json.loads(g.to_json())["nodes"]}
    y = aicf.Value(loaded, names["CustomGradient"])
    with pytest.raises(aicf.GraphError, match="files keep none outside of bodies"):
        aicf.grad(aicf.sum(y), aicf.Value(loaded, x.id))
    limited(y)  # a new one does not take its place
    with pytest.raises(aicf.GraphError, match="files keep none outside of bodies"):
        aicf.grad(aicf.sum(y), aicf.Value(loaded, x.id))
