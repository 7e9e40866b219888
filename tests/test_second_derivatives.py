"""Gradients of gradients: every op against PyTorch's double backward in float64, and its bits."""

import itertools
import json

import aicf
import numpy as np
import option_cases  # noqa: F401  adds its rows
import pool_cases  # noqa: F401  adds its rows
import pytest
import spatial_cases  # noqa: F401  adds its rows
import test_layers  # noqa: F401  adds its rows
from aicf import _core
from compare import assert_bits, numpy_dtype
from layer_cases import LAYERS
from op_cases import BOOL, CASES, EFFECT, SIZES
from op_cases_layers import INDEX, RANDOM
from test_ops import differentiable, draw

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

BITS = ("And", "Or", "Xor", "LeftShift", "RightShift")
# Ops that have no gradient, each with the sentence that says so. Every other op has one, of which
# the rows below take another.
REFUSED = {
    "CtcPathsBwd": "no second derivative of ctc_loss is written down",
    **dict.fromkeys(("Eq", "Ne", "Lt", "Le", "Gt", "Ge", "IsNan"), BOOL),
    **dict.fromkeys(("LogicalAnd", "LogicalOr", "LogicalXor", "LogicalNot"), BOOL),
    **dict.fromkeys(("RandomUniform", "RandomNormal"), RANDOM),
    **dict.fromkeys(("StepInc", "BiasCorr", "SgdStep", "AdamStep", "ScaledAdamStep"), EFFECT),
    **dict.fromkeys(("GuardedSgdStep", "GuardedAdamStep"), EFFECT),
    **dict.fromkeys(("ArgMax", "ArgSort", "CumArg", "ScatterLast", "SearchSorted"), INDEX),
    **dict.fromkeys((f"Bitwise{name}" for name in BITS), "the result is a whole number"),
}
# By test_dropout; by a rule that has no other; by what an author's gradient is made of
# (test_custom); by test_attention, for it is not of float64.
ELSEWHERE = {"Attention", "AttentionBwd", "Dropout", "CtcPaths", "CustomOp", "HostCall"}


class Row:
    """What is differentiated twice: its arrays, its operands that take a gradient, and both ways
    to build it from a dict of operands."""

    def __init__(self, name, arrays, wrt, build, torch):
        self.name, self.arrays, self.wrt, self.build, self.torch = name, arrays, wrt, build, torch


def op_rows():
    for case in CASES:
        if differentiable(case) and case.torch and case.result in ("", "float64"):
            yield Row(
                case.id,
                lambda rng, _c=case, dtype="float64", sizes=SIZES: {
                    f"x{i}": draw(arg, dtype, sizes, rng) for i, arg in enumerate(_c.args)
                },
                lambda arrays, _c=case: [f"x{i}" for i in _c.grad],
                lambda g, values, _c=case: _c.build(g, *values.values()),
                lambda t, tensors, _c=case: _c.torch(t, *tensors.values()),
            )


# PyTorch has no second derivative of these; ours are of ops that the rows have.
ONCE = ("embedding_bag_sum_", "embedding_bag_mean_", "embedding_bag_max_", "multi_margin_loss",
        "multilabel_margin_loss", "grid_sample")  # fmt: skip


def layer_rows():
    for case in LAYERS:
        if case.torch and not case.name.startswith(ONCE):
            yield Row(
                case.name,
                lambda rng, _c=case: {k: np.asarray(v) for k, v in _c.arrays(rng).items()},
                case.floats,
                lambda g, values, _c=case: _c.build(**values),
                lambda t, tensors, _c=case: _c.torch(t, t.nn.functional, **tensors),
            )


OPS = list(op_rows())
OF_ONE_DTYPE = [row for row in OPS if not row.name.startswith("Cast")]
ROWS = [*OPS, *layer_rows()]
# PyTorch adds 1e-12 to a denominator of its second derivative.
LOOSE = {f"binary_cross_entropy_{how}": 1e-10 for how in ("mean", "sum", "none")}


def rows(chosen):
    return pytest.mark.parametrize("row", chosen, ids=[row.name for row in chosen])


def by_torch(torch, row, arrays, dy, factors):
    """The gradients of sum(gradient * factor) by all operands and dy; zeros for what it does not
    depend on."""
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    wrt = [tensors[name].requires_grad_() for name in row.wrt(arrays)]
    dy = torch.from_numpy(dy).requires_grad_()
    y = row.torch(torch, tensors)
    zero = {"allow_unused": True, "materialize_grads": True}
    first = torch.autograd.grad(y, wrt, dy, create_graph=True, **zero)
    total = sum((g * torch.from_numpy(f)).sum() for g, f in zip(first, factors, strict=True))
    if not total.requires_grad:
        return [np.zeros(x.shape) for x in (*wrt, dy)]
    return [g.numpy(force=True) for g in torch.autograd.grad(total, (*wrt, dy), **zero)]


def twice(g, row, values, names, dy, factors):
    """The same of aicf, as Values."""
    wrt = [values[name] for name in names]
    y = row.build(g, values)
    first = aicf.grad(y, wrt, grad=dy)
    total = None
    for one, factor in zip(first, factors, strict=True):
        part = aicf.sum(one * factor)
        total = part if total is None else total + part
    return aicf.grad(total, [*wrt, dy])


def turned(value):
    return aicf.permute(value, tuple(range(value.ndim))[::-1])


def outline(row, arrays):
    """The shapes of the row's result and of its gradients."""
    g = aicf.Graph("outline")
    values = {name: g.input(name, x.shape, str(x.dtype)) for name, x in arrays.items()}
    return row.build(g, values).shape


def program(row, arrays, rng):
    """(graph, feed, dy, factors) of the second derivatives, with operands in C order and turned."""
    names = row.wrt(arrays)
    dtype = arrays[names[0]].dtype
    dy = np.asarray(rng.uniform(-1, 1, outline(row, arrays))).astype(dtype)
    factors = [np.asarray(rng.uniform(-1, 1, arrays[name].shape)).astype(dtype) for name in names]
    g = aicf.Graph("second")
    given = {**arrays, "dy": dy, **{f"f{i}": f for i, f in enumerate(factors)}}
    feed = {}
    for label, change in (("plain", False), ("turned", True)):
        values = {}
        for name, array in given.items():
            x = np.array(array.T, order="C") if change else array
            feed[f"{label}.{name}"] = x
            value = g.input(f"{label}.{name}", x.shape, str(x.dtype))
            values[name] = turned(value) if change else value
        seed, parts = values.pop("dy"), [values.pop(f"f{i}") for i in range(len(factors))]
        for i, result in enumerate(twice(g, row, values, names, seed, parts)):
            g.output(f"{label}.{i}", result)
    return g, feed, dy, factors


@rows(ROWS)
def test_by_torch(row, device, make_rng):
    """With operands in C order, and all of them turned."""
    torch = pytest.importorskip("torch")
    rng = make_rng(1)
    arrays = row.arrays(rng)
    if not row.wrt(arrays):
        return
    g, feed, dy, factors = program(row, arrays, rng)
    assert g.verify().ok
    got = g.compile(device=device)(**feed)
    wanted = by_torch(torch, row, arrays, dy, factors)
    for i, want in enumerate(wanted):
        defined = np.isfinite(want)  # singular points: ours may be the limit
        scale = max(1.0, np.abs(want[defined]).max(initial=0))
        for label in ("plain", "turned"):
            np.testing.assert_allclose(
                got[f"{label}.{i}"].numpy()[defined],
                want[defined],
                rtol=0,
                atol=LOOSE.get(row.name, 2e-12) * scale,
                err_msg=f"{label} {i}",
            )


# ---- the table is whole


def ops_of(g):
    return [node["op"] for node in json.loads(g.to_json())["nodes"]]


def test_every_op_has_an_entry():
    """A new op has a gradient that a row above differentiates, or a sentence that says why not."""
    met = set(ELSEWHERE)
    for row in ROWS:
        arrays = row.arrays(np.random.default_rng(0))
        names = row.wrt(arrays)
        if names:
            g = aicf.Graph("first")
            values = {name: g.input(name, x.shape, str(x.dtype)) for name, x in arrays.items()}
            y = row.build(g, values)
            g.backward(y, [values[n] for n in names], grad=g.input("dy", y.shape, y.dtype))
            met |= set(ops_of(g))
    wrong = {}
    for op in _core.op_names():
        reason = _core.op_grad(op)
        if reason != REFUSED.get(op, ""):
            wrong[op] = f"{reason!r}, and the table has {REFUSED.get(op)!r}"
        elif not reason and op not in met:
            wrong[op] = "no row differentiates it twice"
    assert wrong == {}
    assert set(REFUSED) <= set(_core.op_names())


def test_refusals_are_raised():
    """In words, when the only way leads through such an op; a gradient's own choices are flat."""
    g = aicf.Graph("refused")
    x = g.input("x", (3,))
    slope = aicf.grad(aicf.sum(aicf.tanh(x)), x)
    for y, text in (
        (aicf.cast(slope > 0.5, "float32"), "gt has no gradient (the result is bool)"),
        (aicf.cast(aicf.argmax(slope), "float32"), "argmax has no gradient (the result is an ind"),
        (aicf.where(slope > 0.5, 1.0, x), ""),
    ):
        if text:
            with pytest.raises(aicf.GraphError) as error:
                aicf.grad(aicf.sum(y), x)
            assert text in str(error.value)
        else:
            aicf.grad(aicf.sum(y), x)

    def by_place(v):
        return aicf.where(aicf.cast(aicf.argmax(v), "float32") > 0.5, v, v * 2.0)

    for fn in (aicf.hardtanh, aicf.relu6, aicf.max, aicf.relu, by_place):  # flat slopes
        first = aicf.grad(aicf.sum(fn(x)), x)
        g.backward(aicf.sum(first * first), [x])
    assert g.verify().ok


def test_empty_axes():
    """Every axis of every op in turn of size 0, where PyTorch can do it."""
    torch = pytest.importorskip("torch")
    compared = 0
    for row, letter in itertools.product(OPS, SIZES):
        rng = np.random.default_rng(0)
        arrays = row.arrays(rng, sizes={**SIZES, letter: 0})
        if all(array.size for array in arrays.values()):
            continue
        try:
            g, feed, dy, factors = program(row, arrays, rng)
            wanted = by_torch(torch, row, arrays, dy, factors)
        except (aicf.ShapeError, RuntimeError, IndexError) as error:
            assert isinstance(error, aicf.ShapeError) or not isinstance(error, aicf.Error)
            continue
        got = g.compile(device="cpu")(**feed)
        for i, want in enumerate(wanted):
            compared += 1
            found = got[f"plain.{i}"].numpy()
            defined = np.isfinite(want)
            assert found.shape == want.shape
            np.testing.assert_allclose(
                found[defined], want[defined], err_msg=f"{row.name} {letter}"
            )
    assert compared > 700


# ---- values where a derivative jumps, ends or is not the sum of its parts

INF = np.inf
CURVES = {  # and PyTorch's name
    "silu": (aicf.silu, "silu"),
    "gelu": (aicf.gelu, "gelu"),
    "softplus": (aicf.softplus, "softplus"),
    "tanh": (aicf.tanh, "tanh"),
    "sigmoid": (aicf.sigmoid, "sigmoid"),
    "elu": (aicf.elu, "elu"),
    "relu": (aicf.relu, "relu"),
    "leaky_relu": (aicf.leaky_relu, "leaky_relu"),
    "hardtanh": (aicf.hardtanh, "hardtanh"),
    "relu6": (aicf.relu6, "relu6"),
    "mish": (aicf.mish, "mish"),
    "celu": (aicf.celu, "celu"),
    "logsigmoid": (aicf.logsigmoid, "logsigmoid"),
    "selu": (aicf.selu, "selu"),
    "hardswish": (aicf.hardswish, "hardswish"),
    "softsign": (aicf.softsign, "softsign"),
    "tanhshrink": (aicf.tanhshrink, "tanhshrink"),
}
ENDS = [0.0, -0.0, 1.0, -1.0, 6.0, 1e-30, -1e-30, 15.0, -15.0, 30.0, -30.0, 800.0, -800.0]


def bent(fn, points, device, dtype="float64"):
    """Second derivatives of an elementwise function."""
    x = np.array(points).astype(numpy_dtype(dtype))
    g = aicf.Graph("bent")
    v = g.input("x", x.shape, dtype)
    g.output("y", aicf.grad(aicf.sum(aicf.grad(aicf.sum(fn(v)), v)), v))
    return g.compile(device=device)(x=x)["y"].numpy().astype(np.float64)


@pytest.mark.parametrize("name", CURVES)
def test_ends_of_curves(name, device):
    torch = pytest.importorskip("torch")
    fn, other = CURVES[name]
    x = torch.tensor(ENDS, dtype=torch.float64, requires_grad=True)
    y = getattr(torch.nn.functional, other)(x).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (want,) = (
        torch.autograd.grad(first.sum(), x, materialize_grads=True, allow_unused=True)
        if first.requires_grad
        else (torch.zeros_like(x),)
    )
    got, want = bent(fn, ENDS, device), want.numpy(force=True)
    assert np.isfinite(got).all()
    defined = np.isfinite(want)  # PyTorch's mish is NaN far from 0
    np.testing.assert_allclose(got[defined], want[defined], rtol=0, atol=3e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", list(CURVES)[:10])
def test_flat_at_infinity(name, dtype, device):
    """And at the largest numbers, where x * x or exp(x) would be infinite."""
    if numpy_dtype(dtype) is None:
        pytest.skip("no ml_dtypes")
    points = [INF, -INF, 6e4, -6e4] + ([1e38, -1e38] if dtype in ("float32", "float64") else [])
    got = bent(CURVES[name][0], points, device, dtype)
    assert not got.any(), got


ROUND = {"x": np.array([[1.0, 2.0, 2.0, -1.0], [0.0, 0.0, 0.0, 3.0], [5.0, 5.0, 5.0, 5.0]])}
PLANES = {"x": np.round(np.random.default_rng(3).uniform(-1, 1, (2, 6, 7)))}
HIDDEN = {
    "x": np.random.default_rng(4).uniform(-2, 2, (3, 4, 5)),
    "m": np.tri(4, 4, dtype=bool) & (np.arange(4)[:, None] != 2),
}


def attended(x, m):
    """Squares of attention's result, with a row that is hidden whole."""
    return aicf.scaled_dot_product_attention(x, x, x, m) ** 2.0


def attended_torch(t, F, x, m):  # noqa: N803
    scores = (x @ x.mT / 5**0.5).masked_fill(~m, -INF)
    empty = ~m.any(-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return (weights @ x) ** 2


HARD = [
    ("max", ROUND, lambda x: aicf.max(x, 1) ** 2.0, lambda t, F, x: x.amax(1) ** 2),
    ("min", ROUND, lambda x: aicf.min(x, 1) ** 2.0, lambda t, F, x: x.amin(1) ** 2),
    ("prod", ROUND, lambda x: aicf.prod(x, 1), lambda t, F, x: x.prod(1)),
    ("prod_all", ROUND, lambda x: aicf.prod(x), lambda t, F, x: x.prod()),
    ("clip", ROUND, lambda x: aicf.clip(x, -1, 2) ** 3.0, lambda t, F, x: x.clamp(-1, 2) ** 3),
    ("square", ROUND, lambda x: x**2.0, lambda t, F, x: x**2),
    ("cube", ROUND, lambda x: x**3.0, lambda t, F, x: x**3),
    ("abs", ROUND, lambda x: aicf.abs(x) * x, lambda t, F, x: x.abs() * x),
    ("maximum", ROUND, lambda x: aicf.maximum(x * x, x), lambda t, F, x: t.maximum(x * x, x)),
    ("minimum", ROUND, lambda x: aicf.minimum(x * x, x), lambda t, F, x: t.minimum(x * x, x)),
    ("equal_rows", ROUND, lambda x: aicf.layer_norm(x, 4), lambda t, F, x: F.layer_norm(x, (4,))),
    ("softmax", {"x": ROUND["x"] * 1e4}, aicf.softmax, lambda t, F, x: x.softmax(-1)),
    ("log_softmax", {"x": ROUND["x"] * 1e4}, aicf.log_softmax, lambda t, F, x: x.log_softmax(-1)),
    ("logsumexp", {"x": ROUND["x"] * 300}, lambda x: aicf.logsumexp(x, 1),
     lambda t, F, x: x.logsumexp(1)),
    ("pool", PLANES, lambda x: aicf.max_pool2d(x, 3, 1, 1) ** 2.0,
     lambda t, F, x: F.max_pool2d(x[:, None], 3, 1, 1)[:, 0] ** 2),
    ("attention", HIDDEN, attended, attended_torch),
]  # fmt: skip


@pytest.mark.parametrize("case", HARD, ids=[case[0] for case in HARD])
def test_hard_values(case, device, make_rng):
    torch = pytest.importorskip("torch")
    name, arrays, build, other = case
    row = Row(
        name,
        None,
        lambda arrays: ["x"],
        lambda g, values: build(**values),
        lambda t, tensors: other(t, t.nn.functional, **tensors),
    )
    g, feed, dy, factors = program(row, arrays, make_rng(2))
    got = g.compile(device=device)(**feed)
    for i, want in enumerate(by_torch(torch, row, arrays, dy, factors)):
        assert np.isfinite(want).all()
        for label in ("plain", "turned"):
            np.testing.assert_allclose(
                got[f"{label}.{i}"].numpy(), want, rtol=1e-11, atol=1e-11, err_msg=f"{label} {i}"
            )


def test_rows_out_of_range(device):
    """An index that names no row gives and takes nothing, in second derivatives too."""
    g = aicf.Graph("rows")
    x, w = g.input("x", (4, 3), "float64"), g.input("w", (5, 3), "float64")
    labels = g.constant(np.array([0, 3, -1, 2**31 - 1], np.int32))
    places = g.constant(np.array([4, -1, 5], np.int32))
    probe = g.input("probe", (4, 3), "float64")
    loss = aicf.cross_entropy(x, labels)
    slope = aicf.grad(loss, x)
    g.output("logits", aicf.grad(aicf.sum(slope * probe), x))
    factor = g.input("factor", (3, 3), "float64")
    taken = aicf.grad(aicf.embedding(places, w), w, grad=factor)
    g.output("table", aicf.grad(aicf.sum(taken * taken), factor))
    picked = aicf.nll_loss(aicf.log_softmax(x), labels, reduction="none")
    g.output("scores", aicf.grad(aicf.sum(aicf.grad(aicf.sum(picked), x) * probe), x))
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(s) for name, s in
              (("x", (4, 3)), ("w", (5, 3)), ("probe", (4, 3)), ("factor", (3, 3)))}  # fmt: skip
    step = g.compile(device=device, checks="off")
    out = {name: y.numpy() for name, y in step(**values).items()}
    for name in ("logits", "scores"):
        assert np.isfinite(out[name]).all() and out[name][0].any() and not out[name][1:].any(), name
    assert (out["table"] == values["factor"] * [[2], [0], [0]]).all()


def test_dropout(device):
    """The same numbers are dropped in every gradient."""
    g = aicf.Graph("dropout")
    x = g.input("x", (200,), "float64")
    y = aicf.dropout(x, 0.5)
    first = aicf.grad(aicf.sum(y * y * y), x)
    g.output("y", y)
    g.output("second", aicf.grad(aicf.sum(first), x))
    out = g.compile(device=device)(x=np.full(200, 3.0))
    kept = out["y"].numpy() != 0
    assert 50 < kept.sum() < 150
    np.testing.assert_allclose(out["second"].numpy(), np.where(kept, 8 * 6 * 3.0, 0.0))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training, device, make_rng):
    """Its running statistics take no gradient, and move as without."""
    torch = pytest.importorskip("torch")
    rng = make_rng(6)
    arrays = {"x": rng.standard_normal((6, 3, 4)), "u": rng.standard_normal((6, 3, 4))}
    arrays |= {"w": rng.uniform(0.5, 2, 3), "b": rng.standard_normal(3)}
    g = aicf.Graph("norm")
    v = {name: g.input(name, a.shape, "float64") for name, a in arrays.items()}
    mean = g.state("mean", (3,), "float64")
    var = g.state("var", (3,), "float64", init=aicf.init.ones())
    y = aicf.batch_norm(v["x"], mean, var, v["w"], v["b"], training)
    slopes = aicf.grad(aicf.sum(y * y * v["u"]), [v["x"], v["w"]])
    total = aicf.sum(slopes[0] * v["u"]) + aicf.sum(slopes[1] * slopes[1])
    for name, slope in zip("xwb", aicf.grad(total, [v[n] for n in "xwb"]), strict=True):
        g.output(name, slope)
    step = g.compile(device=device)
    out = step(**arrays)

    t = {name: torch.from_numpy(a).requires_grad_() for name, a in arrays.items()}
    moved = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    z = torch.nn.functional.batch_norm(t["x"], *moved, t["w"], t["b"], training)
    first = torch.autograd.grad((z * z * t["u"]).sum(), (t["x"], t["w"]), create_graph=True)
    wanted = (first[0] * t["u"]).sum() + first[1].square().sum()
    for name, want in zip("xwb", torch.autograd.grad(wanted, [t[n] for n in "xwb"]), strict=True):
        scale = want.abs().max().item()
        assert np.abs(out[name].numpy() - want.numpy()).max() <= 1e-12 * scale, name
    for name, want in zip(("mean", "var"), moved, strict=True):
        np.testing.assert_allclose(step.state[name].numpy(), want.numpy(), rtol=1e-14)


def test_powers_of_zero(device):
    """x ** n has all its derivatives at 0, however often it is differentiated."""
    x = np.array([0.0, 2.0])
    g = aicf.Graph("powers")
    v = g.input("x", (2,), "float64")
    for n in range(4):
        y = v ** float(n)
        for order in range(6):
            g.output(f"{n} {order}", y)
            y = aicf.grad(aicf.sum(y), v)
    out = g.compile(device=device)(x=x)
    for n, order in itertools.product(range(4), range(6)):
        factor = np.prod([n - i for i in range(order)]) if order else 1
        want = factor * x ** max(n - order, 0) if n >= order else np.zeros(2)
        np.testing.assert_allclose(out[f"{n} {order}"].numpy(), want, err_msg=f"{n} {order}")


def test_third_and_fourth(device):
    """What a second gradient is made of has gradients too."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(5).uniform(-2, 2, (3, 4))

    def centred(v):  # PyTorch's own layer_norm has wrong third derivatives
        c = v - v.mean(-1, keepdim=True)
        return c / (c * c).mean(-1, keepdim=True).add(1e-5).sqrt()

    functions = {
        "silu": (aicf.silu, torch.nn.functional.silu),
        "gelu": (aicf.gelu, torch.nn.functional.gelu),
        "gelu_tanh": (lambda v: aicf.gelu(v, "tanh"),
                      lambda v: torch.nn.functional.gelu(v, approximate="tanh")),
        "softplus": (aicf.softplus, torch.nn.functional.softplus),
        "elu": (aicf.elu, torch.nn.functional.elu),
        "tanh": (aicf.tanh, torch.tanh),
        "softmax": (aicf.softmax, lambda v: v.softmax(-1)),
        "log_softmax": (aicf.log_softmax, lambda v: v.log_softmax(-1)),
        "norm": (lambda v: aicf.layer_norm(v, 4), centred),
        "linear": (
            lambda v: aicf.linear(aicf.linear(v * v, v), aicf.permute(v, (1, 0))),
            lambda v: (v * v) @ v.T @ v,
        ),
    }  # fmt: skip
    g = aicf.Graph("third")
    v, wanted = g.input("x", x.shape, "float64"), {}
    weights = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(3, 4).cos()
    shares = g.constant(weights.numpy())
    for name, (fn, other) in functions.items():
        y, t = fn(v), torch.from_numpy(x).requires_grad_()
        z = other(t)
        for order in range(1, 5):
            y = aicf.grad(aicf.sum(y * shares), v)
            (z,) = torch.autograd.grad((z * weights).sum(), t, create_graph=True)
            g.output(f"{name} {order}", y)
            wanted[f"{name} {order}"] = z.detach().numpy()
    out = g.compile(device=device)(x=x)
    for name, want in wanted.items():
        scale = np.abs(want).max()
        assert np.abs(out[name].numpy() - want).max() <= 1e-9 * scale, name


# ---- dtypes and bits


@rows(OF_ONE_DTYPE)
def test_dtypes(row, device, make_rng):
    """The other float dtypes agree with float64 to their own precision."""
    rng, tolerance = make_rng(3), {"float32": 2e-5, "float16": 4e-2, "bfloat16": 2e-1}
    for dtype, allowed in tolerance.items():
        if numpy_dtype(dtype) is None:
            continue
        arrays = row.arrays(rng, dtype=dtype)
        g, feed, _, _ = program(row, arrays, rng)
        floats = {name for name, x in feed.items() if x.dtype == numpy_dtype(dtype)}
        got = g.compile(device=device)(**feed)
        wide = {n: x.astype(np.float64) if f"plain.{n}" in floats else x for n, x in arrays.items()}
        other, _, _, _ = program(row, wide, rng)
        want = other.compile(device=device)(
            **{n: x.astype(np.float64) if n in floats else x for n, x in feed.items()}
        )
        for name in want:
            exact = want[name].numpy()
            scale = max(1.0, np.abs(exact).max(initial=0))
            error = np.abs(got[name].numpy().astype(np.float64) - exact).max(initial=0)
            assert error <= allowed * scale, f"{dtype} {name}: {error} of {scale}"


def network(g, dtype):
    """A penalty on the slope of a small network of each family of layers, wide enough that threads
    share its work, with labels and all memory orders."""
    x = g.input("x", (40, 6, 20, 18), dtype)
    h = aicf.conv2d(x, g.param("conv", (8, 3, 3, 3), dtype), stride=(1, 2), padding=1, groups=2)
    h = aicf.max_pool2d(aicf.gelu(h), 2)
    h = aicf.permute(h, (0, 2, 3, 1)).reshape((40, 10, -1))
    h = aicf.layer_norm(h, h.shape[-1])
    h = aicf.scaled_dot_product_attention(h, h, h, causal=True)
    h = aicf.silu(
        aicf.linear(h.reshape((40, -1)), g.param("w", (70, h.shape[1] * h.shape[2]), dtype))
    )
    h = h + aicf.embedding(g.constant(np.arange(40) % 7), g.param("table", (7, 70), dtype))
    loss = aicf.cross_entropy(h @ g.param("out", (70, 33), dtype), g.constant(np.arange(40) % 33))
    slope = aicf.grad(loss, x)
    norm = aicf.sqrt(aicf.sum(slope * slope, (1, 2, 3)) + 1e-6)
    total = loss + aicf.mean((norm - 1.0) ** 2.0)
    g.output("loss", total)
    g.minimize(total, aicf.optim.Adam(lr=1e-3))


def test_math_modes(device, make_rng):
    """Every way to compute products trains the network alike."""
    g = aicf.Graph("modes")
    network(g, "float32")
    x = make_rng(5).standard_normal((40, 6, 20, 18)).astype("f")
    losses = {}
    for math in ("fp32", "tf32", "bf16", "fp16", "mixed"):
        step = g.compile(device=device, seed=0, math=math)
        losses[math] = [float(step(x=x)["loss"]) for _ in range(5)]
    assert losses["fp32"][-1] < losses["fp32"][0] - 0.3
    for math, found in losses.items():
        assert found == pytest.approx(losses["fp32"], abs=2e-3), math


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_bits(dtype, device, make_rng):
    """Over threads and passes, of params after two steps."""
    g = aicf.Graph("bits")
    network(g, dtype)
    assert g.verify().ok
    x = make_rng(4).standard_normal((40, 6, 20, 18)).astype(dtype)
    found = {}
    try:
        for passes, threads in itertools.product(((), "default"), (1, 2, 8)):
            aicf.set_num_threads(threads)
            step = g.compile(device=device, seed=0, passes=passes)
            step(x=x)
            loss = step(x=x)["loss"].numpy()
            found[passes, threads] = {**step.state_dict(), "loss": loss}
    finally:
        aicf.set_num_threads(0)
    first = found.pop(((), 1))
    assert all(np.isfinite(array).all() for array in first.values())
    for how, state in found.items():
        for name, array in state.items():
            assert_bits(array, first[name], f"{how} {name}")
