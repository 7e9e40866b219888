"""`aicf.vmap`: every row of the op table for a batch, against one example after the other."""

import collections

import aicf
import numpy as np
import pytest
import test_second_derivatives  # noqa: F401  adds the rows of layers
from aicf import _core, batching
from conftest import outputs_of
from layer_cases import LAYERS
from op_cases import CASES, SIZES
from test_ops import as_list, draw

# Why an op has no rule.
RANDOM = "each example would need numbers of its own"
EFFECT = "an update is of params, which examples share"
REFUSED = {
    **dict.fromkeys(("RandomUniform", "RandomNormal", "Dropout"), RANDOM),
    **dict.fromkeys(("StepInc", "BiasCorr", "SgdStep", "AdamStep", "ScaledAdamStep"), EFFECT),
    **dict.fromkeys(("GuardedSgdStep", "GuardedAdamStep"), EFFECT),
    "CustomOp": "its sources are written for one example",
    "HostCall": "its callback is written for one example",
}
BATCH = 3


def test_every_op_has_a_rule_or_a_reason():
    assert set(batching.RULES) | set(REFUSED) == set(_core.op_names())
    assert not set(batching.RULES) & set(REFUSED)


def ids(cases):
    return [case.id for case in cases]


CHOSEN = [case for case in CASES if case.op not in REFUSED]


@pytest.mark.parametrize("case", CHOSEN, ids=ids(CHOSEN))
def test_rows(case, device, make_rng):
    """All operands of the batch, and each alone, along its last axis."""
    rng = make_rng(0)
    dtype = "float64" if "float64" in case.dtypes else case.dtypes[0]
    examples = [[draw(arg, dtype, SIZES, rng) for arg in case.args] for _ in range(BATCH)]
    g = aicf.Graph("vmap")
    feed, wanted = {}, {}

    def build(*values):
        return as_list(case.build(g, *values))

    count = len(case.args)
    choices = [tuple(range(count)), *((i,) for i in range(count) if count > 1)]
    for choice in choices:
        values, axes = [], []
        for i in range(count):
            shared = i not in choice
            array = examples[0][i] if shared else np.stack([e[i] for e in examples], -1)
            feed[f"{choice} {i}"] = array
            values.append(g.input(f"{choice} {i}", array.shape, str(array.dtype)))
            axes.append(None if shared else -1)
        for n, y in enumerate(aicf.vmap(build, axes)(*values)):
            g.output(f"{choice} {n}", y)
        for at in range(BATCH):
            ones = [examples[at if i in choice else 0][i] for i in range(count)]
            inputs = []
            for i, array in enumerate(ones):
                feed[f"{choice} {at} {i}"] = array
                inputs.append(g.input(f"{choice} {at} {i}", array.shape, str(array.dtype)))
            for n, y in enumerate(build(*inputs)):
                g.output(f"{choice} {n} {at}", y)
                wanted.setdefault(f"{choice} {n}", []).append(f"{choice} {n} {at}")
    got = outputs_of(g.compile(device=device, checks="off")(**feed))
    assert wanted
    for name, parts in wanted.items():
        want = np.stack([got[part] for part in parts])
        assert got[name].shape == want.shape and got[name].dtype == want.dtype, name
        np.testing.assert_allclose(
            got[name].astype(np.float64), want.astype(np.float64), rtol=1e-12, atol=1e-12,
            err_msg=name,
        )  # fmt: skip


REFUSED_ROWS = [case for case in CASES if case.op in REFUSED]


EFFECTS = {
    "assigns to a state": lambda g, row: g.assign(g.state("s", (3,)), row),
    "makes an output": lambda g, row: g.output("row", row),
    "running statistics": lambda g, row: aicf.batch_norm(
        row.reshape((3, 1)), g.state("mean", (1,)), g.state("var", (1,))
    ),
    "RandomNormal at .* has no rule": lambda g, row: g.random_normal((3,)),
    "Dropout at .* has no rule": lambda g, row: aicf.dropout(g.constant(np.ones(3)), 0.5),
}


@pytest.mark.parametrize("what", EFFECTS)
def test_effects_and_random_numbers_are_refused(what):
    """They would be those of the first example, and of all alike."""
    g = aicf.Graph("effects")
    x = g.input("x", (4, 3))
    before = g.to_json()
    text = what if "rule" in what else "makes an output or assigns to a state"
    with pytest.raises(aicf.GraphError, match=f"vmap: .*{text}"):
        aicf.vmap(lambda row: (EFFECTS[what](g, row), row)[1])(x)
    assert g.to_json() == before


def test_a_named_tuple_of_results(device):
    made = collections.namedtuple("Made", "least most")
    g = aicf.Graph("named")
    both = aicf.vmap(lambda row: made(aicf.min(row), aicf.max(row)))(g.input("x", (2, 3)))
    g.output("least", both.least)
    g.output("most", both.most)
    out = outputs_of(g.compile(device=device)(x=np.arange(6, dtype=np.float32).reshape(2, 3)))
    assert out["least"].tolist() == [0, 3] and out["most"].tolist() == [2, 5]


@pytest.mark.parametrize("case", REFUSED_ROWS, ids=ids(REFUSED_ROWS))
def test_refusals(case):
    """By name, and the graph is as it was."""
    g = aicf.Graph("refused")
    values = []
    for i, array in enumerate(
        draw(arg, case.dtypes[0], SIZES, np.random.default_rng(0)) for arg in case.args
    ):
        values.append(g.input(f"x{i}", (BATCH, *array.shape), str(array.dtype)))
    before = g.to_json()
    with pytest.raises(aicf.GraphError, match=f"vmap: ({'|'.join(REFUSED)}) at .* has no rule"):
        aicf.vmap(lambda *v: as_list(case.build(g, *v)))(*values)
    assert g.to_json() == before


SAMPLE = [case for case in LAYERS if case.torch and case.smooth][::3]


@pytest.mark.parametrize("case", SAMPLE, ids=[case.name for case in SAMPLE])
def test_layers(case, device, make_rng):
    """Functions composed of ops, with their gradients."""
    rng = make_rng(2)
    examples = [{k: np.asarray(v) for k, v in case.arrays(rng).items()} for _ in range(2)]
    g, feed = aicf.Graph("layer"), {}

    def given(label, arrays):
        feed.update({f"{label}{name}": array for name, array in arrays.items()})
        return [g.input(f"{label}{k}", a.shape, str(a.dtype)) for k, a in arrays.items()]

    def build(*values):
        operands = dict(zip(examples[0], values, strict=True))
        results = as_list(case.build(**operands))
        wrt = [operands[name] for name in case.floats(examples[0])]
        if len(results) > 1 or not wrt or not results[0].dtype.startswith("float"):
            return results
        return [*results, *aicf.grad(aicf.sum(results[0]), wrt)]

    stacked = {name: np.stack([e[name] for e in examples]) for name in examples[0]}
    try:
        found = aicf.vmap(build)(*given("all ", stacked))
    except aicf.ShapeError as error:
        assert "more than 8 dimensions" in str(error) or "at most 7 axes" in str(error)
        return
    for n, y in enumerate(found):
        g.output(f"all {n}", y)
    for at, arrays in enumerate(examples):
        for n, y in enumerate(build(*given(f"{at} ", arrays))):
            g.output(f"{at} {n}", y)
    out = outputs_of(g.compile(device=device)(**feed))
    for n in range(len(found)):
        want = np.stack([out[f"{at} {n}"] for at in range(2)])
        np.testing.assert_allclose(out[f"all {n}"], want, rtol=1e-10, atol=1e-12, err_msg=str(n))


def test_gradients_of_examples(device, make_rng):
    """Each example's own gradient of shared weights, in one product; and a gradient through it."""
    rng = make_rng(1)
    g = aicf.Graph("each")
    x, t = g.input("x", (5, 4), "float64"), g.input("t", (5, 2), "float64")
    w, b = g.input("w", (2, 4), "float64"), g.input("b", (2,), "float64")

    def slopes(row, target):
        return aicf.grad(aicf.mse_loss(aicf.tanh(aicf.linear(row, w, b)), target), [w, b])

    dw, db = aicf.vmap(slopes)(x, t)
    assert dw.shape == (5, 2, 4) and db.shape == (5, 2)
    g.output("dw", dw)
    g.output("db", db)
    g.output("through", aicf.grad(aicf.sum(dw * dw), w))
    feed = {k: rng.standard_normal(s) for k, s in
            (("x", (5, 4)), ("t", (5, 2)), ("w", (2, 4)), ("b", (2,)))}  # fmt: skip
    step = g.compile(device=device)
    out = outputs_of(step(**feed))
    y = np.tanh(feed["x"] @ feed["w"].T + feed["b"])
    dy = (y - feed["t"]) * (1 - y * y)
    np.testing.assert_allclose(out["dw"], dy[:, :, None] * feed["x"][:, None], rtol=1e-12)
    np.testing.assert_allclose(out["db"], dy, rtol=1e-12)
    h, along = 1e-6, rng.standard_normal((2, 4))
    sides = [(step(**{**feed, "w": feed["w"] + s * along})["dw"].numpy() ** 2).sum()
             for s in (h, -h)]  # fmt: skip
    slope = (sides[0] - sides[1]) / (2 * h)
    assert slope == pytest.approx((out["through"] * along).sum(), rel=1e-6)


def test_labels_and_rows_out_of_range(device):
    """As without: NaN and no gradient for that example, nothing for the others."""
    g = aicf.Graph("range")
    x, labels = g.input("x", (3, 2, 4), "float64"), g.input("labels", (3, 2), "int32")
    table, at = g.input("table", (3, 5, 2), "float64"), g.input("at", (3, 4), "int32")

    def both(logits, label, rows, index):
        loss, taken = aicf.cross_entropy(logits, label), aicf.take(rows, index)
        slopes = aicf.grad(loss, logits), aicf.grad(aicf.sum(taken * taken), rows)
        return [loss, taken, *slopes]

    names = ("loss", "taken", "dlogits", "drows")
    for name, y in zip(names, aicf.vmap(both)(x, labels, table, at), strict=True):
        g.output(name, y)
    for i in range(3):
        for name, y in zip(names, both(x[i], labels[i], table[i], at[i]), strict=True):
            g.output(f"{name} {i}", y)
    rng = np.random.default_rng(0)
    out = outputs_of(g.compile(device=device, checks="off")(
        x=rng.standard_normal((3, 2, 4)), table=rng.standard_normal((3, 5, 2)),
        labels=np.array([[0, 3], [1, 4], [-1, 2]], np.int32),
        at=np.array([[0, 4, 4, 1], [5, 0, 0, 0], [-1, 2, 4, 2**31 - 1]], np.int32),
    ))  # fmt: skip
    for name in names:
        want = np.stack([out[f"{name} {i}"] for i in range(3)])
        np.testing.assert_allclose(out[name], want, atol=1e-15, err_msg=name)
    assert np.isnan(out["loss"]).tolist() == [False, True, True]


def test_rows_of_a_jacobian(device):
    """The derivative of each element of a result, by a batch of directions; twice, of a batch."""
    g = aicf.Graph("jacobian")
    x = g.input("x", (2, 3), "float64")
    basis = g.constant(np.eye(3))

    def jacobian(row):
        y = aicf.softmax(row)
        return aicf.vmap(lambda dy: aicf.grad(y, row, grad=dy))(basis)

    g.output("jacobian", aicf.vmap(jacobian)(x))
    a = np.random.default_rng(0).standard_normal((2, 3))
    p = np.exp(a) / np.exp(a).sum(1, keepdims=True)
    want = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None]
    np.testing.assert_allclose(
        outputs_of(g.compile(device=device)(x=a))["jacobian"], want, atol=1e-15
    )


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x, y: aicf.vmap(3), aicf.GraphError, "need a function"),
        (lambda x, y: aicf.vmap(aicf.add)(x, "y"), aicf.GraphError, "vmap: got 'y'; need Values"),
        (lambda x, y: aicf.vmap(aicf.neg)(np.ones(4)), aicf.GraphError, "vmap: got no Value; need"),
        (lambda x, y: aicf.vmap(aicf.add, [0])(x, x), aicf.GraphError, "need an axis for each"),
        (lambda x, y: aicf.vmap(aicf.add)(x, y), aicf.ShapeError, "need one size >= 1"),
        (lambda x, y: aicf.vmap(aicf.neg, None)(x), aicf.ShapeError, "need one size >= 1"),
        (lambda x, y: aicf.vmap(aicf.neg, 2)(x), aicf.ShapeError, "need one of its axes"),
        (lambda x, y: aicf.vmap(aicf.neg, 0.5)(x), aicf.ShapeError, "in_axes is 0.5; need an axis"),
        (lambda x, y: aicf.vmap(aicf.neg, "a")(x), aicf.ShapeError, "in_axes is 'a'; need an axis"),
        (
            lambda x, y: aicf.vmap(lambda v: v.reshape((3,) + (1,) * 7))(x),
            aicf.ShapeError,
            "vmap: Reshape at .* of one example; need at most 7 axes",
        ),
        (lambda x, y: aicf.vmap(lambda v: 3)(x), aicf.GraphError, "need a Value of this graph"),
    ],
)
def test_misuse(call, error, text):
    g = aicf.Graph("misuse")
    x, y = g.input("x", (4, 3)), g.input("y", (5, 3))
    with pytest.raises(error, match=text):
        call(x, y)


def test_arrays(device):
    """NumPy arrays are constants, float64 in the dtype of the Values beside them."""
    g = aicf.Graph()
    x = g.input("x", (4, 3))
    g.output("rows", aicf.vmap(lambda r, n: r * n)(x, np.arange(4.0)))
    g.output("shared", aicf.vmap(lambda r, n: r * n)(x, np.float32(2)))
    g.output("columns", aicf.vmap(lambda d, r: aicf.sum(r * d, 1), (0, None))(np.eye(3), x))
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    out = outputs_of(g.compile(device=device)(x=data))
    np.testing.assert_array_equal(out["rows"], data * np.arange(4, dtype=np.float32)[:, None])
    np.testing.assert_array_equal(out["shared"], data * 2)
    np.testing.assert_array_equal(out["columns"], data.T)

    @aicf.function(device=device)
    def hessian(x):
        slope = aicf.grad(aicf.sum(x * x * x), x)
        return aicf.vmap(lambda d: aicf.grad(aicf.sum(slope * d), x))(np.eye(3, dtype=np.float32))

    np.testing.assert_array_equal(hessian(data[1]), 6 * np.diag(data[1]))


@aicf.custom_gradient
def bent(x, w):
    """x·w with gradients that are no derivatives, of which one reads what is beside it."""
    return x * w, lambda dy: (dy * w * w, aicf.sum(dy * x, keepdims=True) * 3.0)


@aicf.custom_op(gradient=lambda dy, x, out: dy * out)
def doubled(x):
    return x * 2.0


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_of_ones_own(shared, device, make_rng):
    """Inside of a batch and of its result, first and second, against one example after another."""
    rng = make_rng(0)
    x = rng.uniform(-2, 2, (BATCH, 4))
    w = rng.uniform(0.5, 2, (1,) if shared else (BATCH, 1))
    g = aicf.Graph("own")
    a, b = g.input("x", x.shape, "float64"), g.input("w", w.shape, "float64")

    def slopes(row, factor):
        y = bent(row, factor) * aicf.sin(row) + doubled(row)
        first = aicf.grad(aicf.sum(y), [row, factor])
        second = aicf.grad(aicf.sum(first[0] * first[0]) + aicf.sum(first[1]), [row, factor])
        return y, first, second

    made = aicf.vmap(slopes, (0, None if shared else 0))(a, b)
    rows = [slopes(a[i], b if shared else b[i]) for i in range(BATCH)]
    outside = aicf.grad(aicf.sum(made[0] * made[0]), [a, b])
    by_row = aicf.grad(sum(aicf.sum(row[0] * row[0]) for row in rows), [a, b])
    pairs = [(made[0], aicf.stack([row[0] for row in rows])), *zip(outside, by_row, strict=True)]
    for order in (1, 2):
        for i in (0, 1):
            pairs.append((made[order][i], aicf.stack([row[order][i] for row in rows])))
    for i, pair in enumerate(pairs):
        for name, value in zip(("got", "want"), pair, strict=True):
            g.output(f"{name}{i}", value)
    out = outputs_of(g.compile(device=device)(x=x, w=w))
    for i in range(len(pairs)):
        np.testing.assert_allclose(out[f"got{i}"], out[f"want{i}"], rtol=1e-12, err_msg=str(i))


def test_gradients_of_ones_own_are_refused_by_what_is_beside():
    g = aicf.Graph()
    x, w = g.input("x", (3, 2)), g.input("w", (2,))
    y = aicf.vmap(aicf.custom_gradient(lambda row: (row * w, lambda dy: dy)))(x)
    aicf.grad(aicf.sum(y), x)
    with pytest.raises(aicf.GraphError, match='also uses "w"'):
        aicf.grad(aicf.sum(y), w)


def test_trees_numbers_and_axes_of_results(device):
    """As PyTorch's: dicts, tuples and numbers go in, and the batch goes where it is asked for."""
    torch = pytest.importorskip("torch")
    x, y = np.arange(12.0).reshape(3, 4), np.arange(6.0).reshape(2, 3)

    def fn(pair, factor, power):
        return {"twice": pair["x"] * factor, "more": [pair["y"][0] ** power, pair["x"] + 1.0]}

    g = aicf.Graph("trees")
    a, b = g.input("x", x.shape, "float64"), g.input("y", y.shape, "float64")
    made = aicf.vmap(fn, (0, None, None))({"x": a, "y": b.T}, 2.0, 3)
    moved = aicf.vmap(lambda r: (r * 2.0, {"s": aicf.sum(r), "r": r}), 0, (1, -1))
    with pytest.raises(aicf.ShapeError, match=r"vmap: out_axes is 1, .*; need \[-1, 1\)"):
        aicf.vmap(aicf.sum, 0, 1)(a)
    first, rest = moved(a)
    for name, value in {**made, "first": first, **rest}.items():
        if isinstance(value, list):
            for i, part in enumerate(value):
                g.output(f"{name}{i}", part)
        else:
            g.output(name, value)
    out = outputs_of(g.compile(device=device)(x=x, y=y))
    s, t = torch.tensor(x), torch.tensor(y)
    want = torch.func.vmap(fn, (0, None, None))({"x": s, "y": t.T}, 2.0, 3)
    np.testing.assert_array_equal(out["twice"], want["twice"])
    np.testing.assert_array_equal(out["more0"], want["more"][0])
    np.testing.assert_array_equal(out["more1"], want["more"][1])
    np.testing.assert_array_equal(out["first"], 2 * x.T)
    np.testing.assert_array_equal(out["r"], x.T)
    for put, text in (("a", "out_axes is 'a'; need an axis"), ((0,), "out_axes is .*an axis for")):
        with pytest.raises((aicf.ShapeError, aicf.GraphError), match=text):
            aicf.vmap(lambda r: (r, r), 0, put)(a)


@pytest.mark.parametrize("outside", [False, True])
def test_gradients_of_ones_own_in_loops(outside, device, make_rng):
    """A batch of loops, and a loop over batches."""
    x = make_rng(0).uniform(-2, 2, (BATCH, 4))
    w = np.array([0.75])
    g = aicf.Graph("loops")
    a, b = g.input("x", x.shape, "float64"), g.input("w", (1,), "float64")

    def turn(carry, one):
        return bent(carry + one, b) + doubled(one), None

    def last(row):
        return aicf.scan(turn, row[:1], row[:, None])[0]

    if outside:
        made = aicf.vmap(last)(a)
    else:
        made = aicf.scan(
            lambda c, column: (aicf.vmap(lambda c, e: turn(c, e)[0])(c, column), None),
            a[:, :1], a.T[:, :, None],
        )[0]  # fmt: skip
    rows = aicf.stack([last(a[i]) for i in range(BATCH)])
    for name, y in (("got", made), ("want", rows)):
        first = aicf.grad(aicf.sum(aicf.sin(y)), [a, b])
        second = aicf.grad(aicf.sum(first[0] * first[0]), [a, b])
        for i, value in enumerate((y, *first, *second)):
            g.output(f"{name}{i}", value)
    out = outputs_of(g.compile(device=device)(x=x, w=w))
    for i in range(5):
        np.testing.assert_allclose(out[f"got{i}"], out[f"want{i}"], rtol=1e-11, err_msg=str(i))
