"""aicf.remat: the same bits in less memory. linear_cross_entropy by chunks: the same loss."""

import json

import aicf
import numpy as np
import pytest
from aicf import nn
from conftest import outputs_of

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

WIDTH, ROWS = 32, 512


def chain(g, layers, wrap, x=None, random=False):
    """A stack of residual layers whose params the functions find around them."""
    h = g.input("x", (ROWS, WIDTH)) if x is None else x
    params = [
        (g.param(f"{i}.w", (4 * WIDTH, WIDTH)), g.param(f"{i}.b", (4 * WIDTH,), init=None),
         g.param(f"{i}.out", (WIDTH, 4 * WIDTH)))
        for i in range(layers)
    ]  # fmt: skip

    def layer(x, w, b, out):
        inner = aicf.gelu(aicf.linear(aicf.layer_norm(x, WIDTH), w, b), "tanh")
        inner = aicf.dropout(inner, 0.1, True) if random else inner
        return x + aicf.linear(inner, out)

    for one in params:
        h = wrap(lambda x, one=one: layer(x, *one), h)
    return h


def plain(f, *xs):
    return f(*xs)


def trained(wrap, math="fp32", layers=6, steps=3, **options):
    g = aicf.Graph("chain")
    random = options.pop("random", False)
    y = chain(g, layers, wrap, random=random)
    loss = aicf.mse_loss(y, g.input("t", (ROWS, WIDTH)))
    g.output("loss", loss)
    g.minimize(loss, aicf.optim.AdamW(lr=1e-2), clip_norm=1.0)
    step = g.compile(device="cpu", seed=0, math=math, **options)
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal((ROWS, WIDTH), np.float32) for name in ("x", "t")}
    losses = [outputs_of(step(**feed))["loss"].tobytes() for _ in range(steps)]
    return losses, {name: a.numpy().tobytes() for name, a in step.params.items()}, step


@pytest.mark.parametrize("math", ["fp32", "mixed"])
@pytest.mark.parametrize("passes", ["default", ()])
def test_equal_bits_in_less_memory(math, passes):
    *want, kept = trained(plain, math, passes=passes)
    *got, again = trained(aicf.remat, math, passes=passes)
    assert got == want
    if passes:
        temps = [step.plan.regions["temps"] for step in (again, kept)]
        assert temps[0] < 0.6 * temps[1]


def test_dropout_is_drawn_again():
    """The gradient is that of the elements which the forward pass kept."""
    g = aicf.Graph("dropout")
    x = g.input("x", (1000,))
    y = aicf.remat(lambda x: aicf.dropout(x, 0.5, True) * 3.0, x)
    g.output("y", y)
    g.output("d", aicf.grad(aicf.sum(y), x))
    step = g.compile(device="cpu", seed=1)
    kept = set()
    for _ in range(3):
        found = outputs_of(step(x=np.ones(1000, np.float32)))
        np.testing.assert_array_equal(found["y"], found["d"])
        kept.add(found["y"].tobytes())
    assert len(kept) == 3 and 300 < np.count_nonzero(found["y"]) < 700


def test_captured_values_and_several_results():
    """Gradients reach what f takes, what it captures, and every result; ints go through."""

    def build(wrap):
        g = aicf.Graph("captured")
        x, w = g.input("x", (4, 5)), g.param("w", (5,), init=aicf.init.uniform(-1, 1))
        before = aicf.sin(x)  # made before, read inside

        def f(pair, at):
            a, b = pair["a"], pair["b"]
            first = aicf.tanh(a * w + before)
            return {"y": first @ aicf.permute(b, (1, 0)), "z": (aicf.sum(first * b, 1), at)}

        got = wrap(f, {"a": x, "b": x * 2.0}, aicf.argmax(x, 1))
        total = aicf.sum(got["y"] * got["y"]) + aicf.sum(got["z"][0])
        for i, d in enumerate(aicf.grad(total, [x, w, before])):
            g.output(f"d{i}", d)
        g.output("y", got["y"])
        g.output("at", got["z"][1])
        x = np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32)
        return outputs_of(g.compile(device="cpu", seed=3)(x=x))

    want, got = build(plain), build(aicf.remat)
    assert want.keys() == got.keys()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=2e-6, atol=2e-6)


def test_gradients_of_gradients():
    def build(wrap):
        g = aicf.Graph("twice")
        x = g.input("x", (6,))
        y = wrap(lambda x: aicf.sin(x) * aicf.exp(x * 0.5), x)
        first = aicf.grad(aicf.sum(y * y), x)
        g.output("dd", aicf.grad(aicf.sum(first * first), x))
        x = np.linspace(-1, 1, 6, dtype=np.float32)
        return outputs_of(g.compile(device="cpu")(x=x))["dd"]

    np.testing.assert_allclose(build(aicf.remat), build(plain), rtol=1e-5)


def test_inside_a_loop_and_inside_itself():
    def build(wrap):
        g = aicf.Graph("loop")
        w = g.param("w", (5, 5), init=aicf.init.uniform(-1, 1))

        def turn(h, _):
            return wrap(lambda h: wrap(lambda h: aicf.tanh(h @ w), h) + h, h), None

        h, _ = aicf.scan(turn, g.input("x", (3, 5)), length=4)
        g.output("d", aicf.grad(aicf.sum(h * h), w))
        x = np.random.default_rng(4).standard_normal((3, 5)).astype(np.float32)
        return outputs_of(g.compile(device="cpu", seed=5)(x=x))["d"]

    np.testing.assert_allclose(build(aicf.remat), build(plain), rtol=1e-5)


def test_of_params_alone():
    """Where f reads nothing else, what it makes of params is made again as well."""

    def build(wrap):
        g = aicf.Graph("params")
        w = g.param("w", (64, 64), init=aicf.init.uniform(-1, 1))
        g.minimize(aicf.sum(wrap(lambda w: aicf.tanh(aicf.sin(w) @ w), w)), aicf.optim.SGD(lr=0.1))
        step = g.compile(device="cpu", seed=6)
        step()
        return step.params["w"].numpy().tobytes()

    assert build(aicf.remat) == build(plain)


def test_modules():
    made = []
    for wrap in (plain, aicf.remat):
        nn.seed(7)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

        @aicf.function(device="cpu")
        def train(x, model=model, wrap=wrap):
            loss = aicf.mean(wrap(model, x) ** 2.0)
            aicf.minimize(loss, aicf.optim.SGD(lr=0.1))
            return loss

        x = np.random.default_rng(8).standard_normal((4, 8), np.float32)
        losses = [float(train(x)) for _ in range(3)]
        made.append((losses, {k: v.tobytes() for k, v in model.state_dict().items()}))
    assert made[0] == made[1] and made[0][0][2] < made[0][0][0]


def test_a_file_of_the_graph_keeps_the_gradient():
    g = aicf.Graph("file")
    x = g.input("x", (3,))
    g.output("y", aicf.sum(aicf.remat(lambda x: aicf.exp(aicf.sin(x)), x)))
    again = aicf.Graph.from_json(g.to_json())
    x, (y,) = (
        aicf.Value(again, again._core.find("x")),
        [aicf.Value(again, o["value"]) for o in json.loads(again.to_json())["outputs"]],
    )
    again.output("d", aicf.grad(y, x))
    x = np.array([0.1, 0.5, 2.0], np.float32)
    d = outputs_of(again.compile(device="cpu")(x=x))["d"]
    np.testing.assert_allclose(d, np.exp(np.sin(x)) * np.cos(x), rtol=1e-6)


@pytest.mark.parametrize(
    "f, said",
    [
        (lambda x: None, "f returned no Value"),
        (lambda x: x.graph.param("p", (3,)) * x, "param"),
        (lambda x: "no", "got 'no'"),
    ],
)
def test_refused(f, said):
    g = aicf.Graph("refused")
    x = g.input("x", (3,))
    before = g.to_json()
    with pytest.raises(aicf.GraphError, match=said):
        aicf.remat(f, x)
    assert g.to_json() == before
    with pytest.raises(aicf.GraphError, match="got no Value"):
        aicf.remat(lambda: None)


# ---- linear_cross_entropy by chunks


def by_chunks(chunk, n=23, math="fp32", tied=True, **options):
    g = aicf.Graph("chunks")
    table = g.param("table", (40, 16), init=aicf.init.normal(std=0.3))
    x = g.input("x", (n, 16))
    h = aicf.tanh(x @ aicf.permute(table[:16], (1, 0))) if tied else x
    labels = g.input("labels", (n,), "int32")
    bias = g.param("bias", (40,), init=aicf.init.normal(std=0.1))
    loss = aicf.linear_cross_entropy(h, table, labels, bias, chunk=chunk, **options)
    g.output("loss", loss)
    for name, d in zip(("h", "table", "bias", "x"), aicf.grad(loss * 3.0, [h, table, bias, x]),
                       strict=True):  # fmt: skip
        g.output(f"d{name}", d)
    rng = np.random.default_rng(9)
    feed = {"x": rng.standard_normal((n, 16)).astype(np.float32)}
    feed["labels"] = rng.integers(0, 40, n, np.int32)
    feed["labels"][3] = feed["labels"][17] = 7
    step = g.compile(device="cpu", seed=10, math=math)
    return outputs_of(step(**feed)), step


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk", [1, 5, 8, 22, 23, 100])
@pytest.mark.parametrize(
    "options",
    [{}, {"ignore_index": 7}, {"reduction": "sum"}, {"label_smoothing": 0.1},
     {"ignore_index": 7, "label_smoothing": 0.2}, {"ignore_index": 7, "reduction": "sum"}],
)  # fmt: skip
def test_chunks_are_the_whole(chunk, tied, options):
    want, _ = by_chunks(None, tied=tied, **options)
    got, _ = by_chunks(chunk, tied=tied, **options)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=2e-5, atol=2e-6, err_msg=name)


def test_logits_of_one_chunk_at_a_time():
    """Neither the loss alone nor its gradient stores those of all rows."""
    temps = {}
    for chunk in (None, 256):
        g = aicf.Graph("memory")
        h, labels = g.input("h", (2048, 32)), g.input("labels", (2048,), "int32")
        table = g.param("table", (1000, 32))
        loss = aicf.linear_cross_entropy(h, table, labels, chunk=chunk)
        g.output("loss", loss)
        alone = g.compile(device="cpu")
        g.minimize(loss, aicf.optim.SGD(lr=0.1))
        both = g.compile(device="cpu")
        temps[chunk] = [step.plan.regions["temps"] for step in (alone, both)]
    assert temps[256][0] < temps[None][0] / 3 and temps[256][1] < temps[None][1] / 1.5
    for step, products in ((alone, 8), (both, 16)):  # a loss alone makes no gradients
        assert all(np.prod(v["shape"]) <= 256 * 1000 for op in step.lowered for v in op["outputs"])
        assert sum("gemm" in (op["op"], op.get("anchor")) for op in step.lowered) == products


def test_mixed_in_chunks():
    want, _ = by_chunks(None, math="mixed")
    got, _ = by_chunks(8, math="mixed")
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=0.05, atol=0.02 * np.abs(array).max())


def test_chunks_refused():
    g = aicf.Graph("refused")
    x, w, t = g.input("x", (4, 3)), g.param("w", (5, 3)), g.input("t", (4,), "int32")
    for options, said in (
        ({"chunk": 0}, "chunk is 0; need a number of rows from 1"),
        ({"chunk": 2, "reduction": "none"}, 'with reduction "none"'),
        ({"chunk": 2, "weight": g.input("by", (5,))}, "with a weight of classes"),
        ({"chunk": 2, "reduction": "most"}, "reduction"),
    ):
        with pytest.raises(aicf.GraphError, match=said):
            aicf.linear_cross_entropy(x, w, t, **options)
