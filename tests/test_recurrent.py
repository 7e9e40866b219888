"""`lstm` and `gru` against PyTorch's, from the same weights."""

import itertools

import aicf
import numpy as np
import pytest
from compare import assert_bits
from conftest import outputs_of

torch = pytest.importorskip("torch")
KINDS = list(itertools.product(("lstm", "gru"), (1, 2), (False, True), (False, True)))


def layers(kind, x, params, state, **options):
    """Results as one list."""
    if kind == "gru":
        return list(aicf.gru(x, params, state and state[0], **options))
    y, last = aicf.lstm(x, params, state, **options)
    return [y, *last]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("kind", "depth", "both", "biased"), KINDS)
def test_against_torch(kind, depth, both, biased, dtype, device, rng):
    """Results and gradients; the time axis is the first of unbatched and every second sequence."""
    torch.manual_seed(0)
    batch_first = depth == 2
    module = getattr(torch.nn, kind.upper())(
        3, 5, depth, bias=biased, bidirectional=both, batch_first=batch_first,
        dtype=getattr(torch, dtype),
    )  # fmt: skip
    count = depth * (1 + both)
    for shape, lead, given in (
        ((2, 6, 3) if batch_first else (6, 2, 3), (2,), True),
        ((4, 3), (), False),
    ):
        g = aicf.Graph(kind)
        params = [
            g.param(name, tuple(p.shape), dtype, p.detach().numpy())
            for name, p in module.named_parameters()
        ]
        names = ["x", "h", "c"][: (1 + given * (2 if kind == "lstm" else 1))]
        shapes = [shape, (count, *lead, 5), (count, *lead, 5)]
        values = [g.input(n, s, dtype) for n, s in zip(names, shapes, strict=False)]
        results = layers(
            kind, values[0], params, tuple(values[1:]) if given else None,
            bidirectional=both, batch_first=batch_first,
        )  # fmt: skip
        loss = aicf.sum(aicf.sin(results[0]) * results[0])
        for last in results[1:]:
            loss = loss + aicf.sum(aicf.sin(last))
        for i, value in enumerate([*results, *aicf.grad(loss, [*values, *params])]):
            g.output(str(i), value)
        arrays = [rng.normal(size=s).astype(dtype) for s, _ in zip(shapes, names, strict=False)]
        found = outputs_of(g.compile(device=device)(**dict(zip(names, arrays, strict=True))))

        leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
        state = tuple(leaves[1:]) if given else None
        y, last = module(leaves[0], state and state[0] if kind == "gru" else state)
        last = [last] if kind == "gru" else list(last)
        slopes = torch.autograd.grad(
            (y.sin() * y).sum() + sum(one.sin().sum() for one in last),
            [*leaves, *module.parameters()],
        )
        rtol = 1e-11 if dtype == "float64" else 5e-5
        for i, want in enumerate([y, *last, *slopes]):
            np.testing.assert_allclose(
                found[str(i)], want.detach().numpy(), rtol=rtol, atol=rtol / 10, err_msg=str(i)
            )


def params_of(g, inputs=3, hidden=4, gates=4, depth=1):
    sizes = [inputs] + [hidden] * (depth - 1)
    return [
        g.param(f"{i}.{name}", (gates * hidden, size))
        for i, first in enumerate(sizes)
        for name, size in (("i", first), ("h", hidden))
    ]


def products(op):
    parts = op.get("loop") or op.get("members") or op.get("body") or []
    return sum(map(products, parts)) + (op["op"] == "gemm")


def test_products_outside_the_loops():
    """Of the inputs of all steps, and the weights' gradients; a step multiplies by its own state,
    on the way back once more for the gradient of that."""
    g = aicf.Graph("plan")
    x, params = g.input("x", (50, 2, 3)), params_of(g)
    y = aicf.lstm(x, params)[0]
    for i, slope in enumerate(aicf.grad(aicf.sum(y * y), [x, *params])):
        g.output(str(i), slope)
    ops = g.compile(device="cpu").plan.ops
    loops = [op for op in ops if op["op"] == "loop"]
    assert [op["attrs"]["turns"] for op in loops] == [50, 50]
    assert [products(op) for op in loops] == [1, 2]
    assert sum(products(op) for op in ops if op["op"] != "loop") == 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_bits_over_the_kernels_sizes(dtype, rng):
    """Of threads and passes, where products have more than one tile and chunk."""
    g = aicf.Graph("bits")
    x, params = g.input("x", (5, 65, 33), dtype), []
    for name, size in (("i", 33), ("h", 130)):
        params.append(g.param(name, (520, size), dtype))
    y, (h, c) = aicf.lstm(x, params)
    slopes = aicf.grad(aicf.sum(y * y) + aicf.sum(c), [x, *params])
    for i, value in enumerate([y, h, c, *slopes]):
        g.output(str(i), value)
    given, want = rng.normal(size=(5, 65, 33)).astype(dtype), {}
    before = aicf.num_threads()
    try:
        for passes, threads in itertools.product(("default", (), ("epilogue",)), (1, 2, 3)):
            aicf.set_num_threads(threads)
            found = outputs_of(g.compile(device="cpu", seed=1, passes=passes)(x=given))
            want = want or found
            for name in want:
                assert_bits(found[name], want[name], f"{passes} on {threads}: {name}")
    finally:
        aicf.set_num_threads(before)


def test_dropout_between_layers():
    """In what every layer but the last hands on, and only when training."""
    g = aicf.Graph("dropout")
    x, params = g.input("x", (7, 8, 3)), params_of(g, depth=2)
    for name, options in (("plain", {}), ("same", {"dropout": 0.5, "training": False}),
                          ("all", {"dropout": 1.0}), ("half", {"dropout": 0.5})):  # fmt: skip
        g.output(name, aicf.lstm(x, params, **options)[0])
    g.output("one", aicf.lstm(x, params[:2], dropout=1.0)[0])
    found = outputs_of(g.compile(device="cpu")(x=np.ones((7, 8, 3), np.float32)))
    assert (found["plain"] == found["same"]).all() and (found["half"] != found["plain"]).any()
    assert not found["all"].any() and found["one"].any()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x, p: aicf.lstm(x, p[:1]), aicf.GraphError, "got 1 weights, without biases"),
        (lambda x, p: aicf.gru(x, p), aicf.ShapeError, "gru: weights are .*need .12, 3."),
        (lambda x, p: aicf.lstm(x[0, 0], p), aicf.ShapeError, "need .time, batch, in."),
        (lambda x, p: aicf.lstm(x, p, (x,)), aicf.GraphError, "need 2 Values"),
        (lambda x, p: aicf.lstm(x, p, (x, x)), aicf.ShapeError, "need shape .1, 2, 4."),
        (lambda x, p: aicf.lstm(x, 3), aicf.GraphError, "need a sequence of Values"),
    ],
)
def test_refusals(call, error, text):
    g = aicf.Graph("refused")
    x, params = g.input("x", (5, 2, 3)), params_of(g)
    with pytest.raises(error, match=text):
        call(x, params)
