"""Every row of the op table: values, shapes, strides, empty axes, hard numbers, gradients."""

import functools
import json

import aicf
import numpy as np
import pytest
from compare import BITS, assert_close, numpy_dtype, rounded, unit
from op_cases import CASES, NUMBER, SIZES

IDS = [case.id for case in CASES]
EACH = pytest.mark.parametrize("case", CASES, ids=IDS)


def rows(keep):
    chosen = [case for case in CASES if keep(case)]
    return pytest.mark.parametrize("case", chosen, ids=[case.id for case in chosen])


def arg_dtype(arg, dtype):
    if arg.dtype == NUMBER:
        return "float64" if dtype == "float64" else "float32"
    if arg.dtype.startswith("labels:"):
        return arg.dtype.split(":")[2]
    return arg.dtype or dtype


def draw(arg, dtype, sizes, rng):
    """An array of the operand's dtype, and its exact values in float64."""
    shape = tuple(sizes[letter] for letter in arg.dims)
    name = arg_dtype(arg, dtype)
    if arg.dtype.startswith("labels:"):
        classes = max(sizes[arg.dtype.split(":")[1]], 1)
        array = rng.integers(0, classes, shape).astype(name)
    elif name == "bool":
        array = rng.integers(0, 2, shape).astype(bool)
    elif name in BITS:
        values = rng.uniform(arg.low, arg.high, shape)
        values = np.where(np.abs(values) < arg.gap, np.copysign(arg.gap, values), values)
        array = values.astype(numpy_dtype(name))
    else:
        array = rng.integers(arg.low, arg.high, shape).astype(name)
    return np.asarray(array)


def wide(array):
    return array.astype(np.float64)


def as_list(values):
    return list(values) if isinstance(values, (list, tuple)) else [values]


def run_case(case, arrays, run_graph, prepare=None):
    """The row's results for `arrays`, from all three ways to run."""
    inputs = {f"x{i}": array for i, array in enumerate(arrays)}

    def build(g, **values):
        operands = list(values.values())
        if prepare:
            operands = [prepare[i](g, value) for i, value in enumerate(operands)]
        return {f"y{i}": y for i, y in enumerate(as_list(case.build(g, *operands)))}

    return list(run_graph(build, inputs, checks="off").values())


def check_case(case, dtype, arrays, got, what):
    """Each result against the float64 reference, within the row's tolerance."""
    exact = [wide(array) for array in arrays]
    with np.errstate(all="ignore"):
        wanted = as_list(case.reference(*exact))
        extra = as_list(case.extra(*exact)) if case.extra else [0.0] * len(wanted)
    assert len(got) == len(wanted)
    for i, (result, want) in enumerate(zip(got, wanted, strict=True)):
        kind = case.result or dtype
        half = kind in ("float16", "bfloat16")
        ulp = case.ulp64 if kind == "float64" else case.ulp + (1.0 if half and case.extra else 0.0)
        bound = (extra[i] if len(extra) > 1 else extra[0]) * unit(kind, case.stored)
        assert_close(result, want, kind, ulp, bound, case.zero_sign, f"{what} result {i}")


@EACH
def test_value(case, run_graph, make_rng):
    rng = make_rng(1)
    for dtype in case.dtypes:
        if numpy_dtype(dtype) is None:
            continue
        arrays = [draw(arg, dtype, SIZES, rng) for arg in case.args]
        check_case(case, dtype, arrays, run_case(case, arrays, run_graph), dtype)


@rows(lambda case: case.pointwise and len(case.args) > 1)
def test_broadcast(case, run_graph, make_rng):
    """Each operand in turn without its leading axes, with size-1 axes, and as a scalar."""
    rng = make_rng(2)
    dtype = case.dtypes[0]
    for which in range(len(case.args)):
        for shape in ((5,), (3, 1), (2, 1, 5), (1, 3, 1), ()):
            arrays = [draw(arg, dtype, SIZES, rng) for arg in case.args]
            if case.op.endswith("Bwd") and which == len(case.args) - 1:
                continue  # dy has the shape of the result
            arrays[which] = np.asarray(np.resize(arrays[which], shape))
            if not case.op.endswith("Bwd"):
                got = run_case(case, arrays, run_graph)
                check_case(case, dtype, arrays, got, f"operand {which} {shape}")


@EACH
def test_strided(case, run_graph, make_rng):
    """Operands that arrive through permute, and through broadcast_to from size 1."""
    rng = make_rng(3)
    dtype = case.dtypes[0]
    full = [draw(arg, dtype, SIZES, rng) for arg in case.args]

    def permuted(g, value):
        return aicf.permute(value, tuple(range(value.ndim))[::-1])

    got = run_case(case, [array.T.copy() for array in full], run_graph, [permuted] * len(full))
    check_case(case, dtype, full, got, "permuted")

    def expand(shape):
        return lambda g, value: aicf.broadcast_to(value, shape)

    if case.op in ("StepInc", "BiasCorr"):
        return
    narrow = [array[..., :1] if array.ndim else array for array in full]
    wides = [np.broadcast_to(n, f.shape).copy() for n, f in zip(narrow, full, strict=True)]
    got = run_case(case, narrow, run_graph, [expand(array.shape) for array in full])
    check_case(case, dtype, wides, got, "broadcast")


@EACH
def test_empty_axis(case, run_graph, make_rng):
    """Every axis of every operand in turn of size 0."""
    rng = make_rng(4)
    dtype = case.dtypes[0]
    letters = sorted({letter for arg in case.args for letter in arg.dims})
    for letter in letters:
        sizes = {**SIZES, letter: 0}
        arrays = [draw(arg, dtype, sizes, rng) for arg in case.args]
        if letter in case.empty_error:
            with pytest.raises(aicf.ShapeError, match="need|pad it"):
                run_case(case, arrays, run_graph)
            continue
        check_case(case, dtype, arrays, run_case(case, arrays, run_graph), f"{letter} = 0")


HARD = [
    *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 20.5, -20.5),
    *(1e4, -1e4, 88.0, -88.0, 104.0, -104.0, 0.75, -0.75, 1e-3),
]


def hard_values(dtype):
    bits, least = BITS[dtype]
    smallest, normal = 2.0 ** (least - bits), 2.0**least
    top = float(rounded((2 - 2.0**-bits) * 2.0 ** (1 - least), dtype))
    edges = [smallest, 3 * smallest, normal - smallest, normal, top, top / 2]
    return np.array([*HARD, *edges, *(-x for x in edges)])


@rows(lambda case: case.pointwise and case.hard and len(case.args) <= 2)
def test_hard_values(case, run_graph):
    """NaN, infinities, signed zeros, subnormals, the largest numbers, every pair of them."""
    for dtype in case.dtypes:
        if numpy_dtype(dtype) is None or dtype == "bool":
            continue
        values = hard_values(dtype).astype(numpy_dtype(dtype))
        arrays = [array.copy() for array in np.meshgrid(*[values] * len(case.args), indexing="ij")]
        check_case(case, dtype, arrays, run_case(case, arrays, run_graph), f"hard {dtype}")


@rows(lambda case: not case.pointwise and case.op in ("Sum", "Mean", "Max", "Min"))
def test_hard_reductions(case, run_graph):
    """One NaN or infinity decides what it meets, as in NumPy; -0 and subnormals are kept."""
    if case.label in ("int", "none"):
        return
    base = np.ones((2, 3, 5), np.float32)
    for value in (np.nan, np.inf, -np.inf, 1e-45, 1e4, -0.0):
        array = base.copy()
        array[1, 2, 3] = value
        check_case(case, "float32", [array], run_case(case, [array], run_graph), str(value))
    both = base.copy()
    both[0, 0, 0], both[0, 0, 1] = np.inf, -np.inf
    check_case(case, "float32", [both], run_case(case, [both], run_graph), "both infinities")


@pytest.mark.parametrize("fn", [aicf.softmax, aicf.log_softmax])
def test_softmax_large_logits(fn, run_graph):
    """Finite for |x| <= 1e4 and invariant to a shift by a power of two."""
    x = np.array([[1e4, 0, -1e4], [88, -88, 1e-3], [5e3, 5e3, 5e3]], np.float32)
    got = run_graph(lambda g, x: {"y": fn(x)}, {"x": x})["y"]
    wanted = np.exp(x.astype(float) - x.max(1, keepdims=True))
    wanted /= wanted.sum(1, keepdims=True)
    if fn is aicf.log_softmax:
        shifted = x.astype(float) - x.max(1, keepdims=True)
        wanted = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("label", [-1, 3, 2**31 - 1, -(2**31)])
def test_label_out_of_range(label, run_graph):
    """A label outside [0, C) makes its row NaN and its gradient zero; nothing is read there."""
    x = np.array([[1.0, 2, 3], [4, 5, 6]], np.float32)
    labels = np.array([2, label], np.int32)

    def build(g, x, labels):
        loss = aicf.cross_entropy(x, labels)
        return {"loss": loss, "dx": g.backward(loss, [x])[x]}

    got = run_graph(build, {"x": x, "labels": labels}, checks="off")
    assert np.isnan(got["loss"])
    assert np.isfinite(got["dx"][0]).all() and not got["dx"][1].any()


# ---- gradients


def differentiable(case):
    return isinstance(case.grad, tuple) and bool(case.grad) and "float64" in case.dtypes


def run_gradient(case, arrays, dys, run_graph):
    """The gradients of the sum of all results times their `dys`."""

    def build(g, **values):
        operands = [values[f"x{i}"] for i in range(len(arrays))]
        wrt = [operands[i] for i in case.grad]
        results = as_list(case.build(g, *operands))
        seeds = [values[f"dy{i}"] for i in range(len(dys))]
        if case.result and case.result != "float64":
            seeds = [aicf.cast(dy, case.result) for dy in seeds]
        if len(results) == 1:
            grads = g.backward(results[0], wrt, grad=seeds[0])
        else:
            parts = [aicf.sum(y * dy) for y, dy in zip(results, seeds, strict=True)]
            grads = g.backward(functools.reduce(aicf.add, parts), wrt)
        return {f"d{i}": grads[operands[i]] for i in case.grad}

    inputs = {f"x{i}": array for i, array in enumerate(arrays)}
    return run_graph(build, inputs | {f"dy{i}": np.asarray(dy) for i, dy in enumerate(dys)})


def seeds_of(case, arrays, rng):
    """Of each result an array in its shape."""
    results = as_list(case.reference(*[wide(array) for array in arrays]))
    return [np.asarray(rng.uniform(-1, 1, np.shape(y))) for y in results]


# A cast to a narrower dtype has no smooth reference.
@rows(lambda case: differentiable(case) and case.result in ("", "float64"))
def test_gradient_by_differences(case, run_graph, make_rng):
    """float64, against central differences of the reference."""
    rng = make_rng(5)
    arrays = [draw(arg, "float64", SIZES, rng) for arg in case.args]
    dys = seeds_of(case, arrays, rng)
    got = run_gradient(case, arrays, dys, run_graph)
    h = 1e-5
    for i in case.grad:
        want = np.zeros(arrays[i].shape)
        for at in np.ndindex(want.shape):
            sides = []
            for sign in (1, -1):
                moved = [wide(array).copy() for array in arrays]
                moved[i][at] += sign * h
                results = as_list(case.reference(*moved))
                sides.append(sum((y * dy).sum() for y, dy in zip(results, dys, strict=True)))
            want[at] = (sides[0] - sides[1]) / (2 * h)
        scale = max(1.0, np.abs(want).max(initial=0))
        np.testing.assert_allclose(got[f"d{i}"], want, rtol=0, atol=1e-6 * scale, err_msg=f"d{i}")


@rows(lambda case: differentiable(case) and case.torch)
def test_gradient_by_torch(case, run_graph, make_rng):
    """float64, against PyTorch's autograd; ties and kinks included where the op has them."""
    torch = pytest.importorskip("torch")
    rng = make_rng(6)
    plain = [draw(arg, "float64", SIZES, rng) for arg in case.args]
    sets = [("random", plain)]
    if case.op in ("ReLU", "Abs", "Sign", "Maximum", "Minimum", "Max", "Min", "LeakyReLU", "Mul"):
        sets.append(("ties", [np.round(array) for array in plain]))
    if case.op == "Clip":
        at_bounds = np.resize([-0.75, 1.25, 0.5, 0.0], plain[0].shape)
        sets.append(("bounds", [at_bounds]))
    if case.op == "Pow":
        a, b = np.meshgrid([0.0, 1.0, 2.0], [0.0, 1.0, 2.0])
        sets.append(("zeros", [a.copy(), b.copy()]))
    for what, arrays in sets:
        tensors = [torch.from_numpy(array) for array in arrays]
        for i in case.grad:
            tensors[i].requires_grad_()
        y = case.torch(torch, *tensors)
        dy = rng.uniform(-1, 1, tuple(y.shape))
        wrt = [tensors[i] for i in case.grad]
        wanted = torch.autograd.grad(y, wrt, torch.from_numpy(np.asarray(dy)))
        got = run_gradient(case, arrays, [dy], run_graph)
        for i, want in zip(case.grad, wanted, strict=True):
            np.testing.assert_allclose(
                got[f"d{i}"], want.numpy(), rtol=1e-11, atol=1e-12, err_msg=f"{what} d{i}"
            )


GRADIENT_DTYPES = [
    pytest.param(case, dtype, id=f"{case.id}-{dtype}")
    for case in CASES
    for dtype in ("float32", "float16", "bfloat16")
    if differentiable(case) and dtype in case.dtypes and not case.result and numpy_dtype(dtype)
]


@pytest.mark.parametrize("case, dtype", GRADIENT_DTYPES)
def test_gradient_dtype(case, dtype, run_graph, make_rng):
    """The other float dtypes agree with the float64 gradient to their own precision."""
    rng = make_rng(7)
    arrays = [draw(arg, dtype, SIZES, rng) for arg in case.args]
    kind = numpy_dtype(dtype)
    dys = [dy.astype(kind) for dy in seeds_of(case, arrays, rng)]
    got = run_gradient(case, arrays, dys, run_graph)
    widened = [wide(array) if array.dtype == kind else array for array in arrays]
    want = run_gradient(case, widened, [wide(dy) for dy in dys], run_graph)
    tolerance = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    for name, array in want.items():
        scale = max(1.0, np.abs(array).max(initial=0))
        error = np.abs(got[name].astype(float) - array).max(initial=0)
        assert error <= tolerance * scale, f"{name}: {error} of {scale}"


@rows(lambda case: isinstance(case.grad, str) and case.grad != "" and case.op != "Cast")
def test_written_reason(case):
    """An op without a gradient says why, and the table knows the reason."""
    assert aicf._core.op_grad(case.op) == case.grad


@EACH
def test_row_reaches_its_op(case):
    """The row's builder emits the op that the row is named after."""
    g = aicf.Graph("row")
    dtype = case.dtypes[0]
    operands = [
        g.input(f"x{i}", [SIZES[letter] for letter in arg.dims], arg_dtype(arg, dtype))
        for i, arg in enumerate(case.args)
    ]
    case.build(g, *operands)
    assert case.op in [node["op"] for node in json.loads(g.to_json())["nodes"]]


def test_where_of_two_numbers():
    """Two numbers make float32, two bools bool, as Graph.constant and PyTorch have it."""
    g = aicf.Graph("where")
    flags = g.input("flags", (3,), "bool")
    for a, b, dtype in ((1, 0, "float32"), (1.5, -1, "float32"), (True, False, "bool")):
        y = aicf.where(flags, a, b)
        assert y.dtype == dtype
        g.output(f"{a},{b}", y)
    given = np.array([True, False, True])
    out = g.compile(device="cpu")(flags=given)
    for name, array in out.items():
        a, b = (eval(text) for text in name.split(","))  # noqa: S307
        assert (array.numpy() == np.where(given, a, b)).all()


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_argmax_of_everything(shape, keepdims):
    g = aicf.Graph("argmax")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = aicf.argmax(g.input("x", shape), keepdims=keepdims)
    want = np.argmax(x, keepdims=keepdims)
    assert y.shape == want.shape and y.dtype == "int64"
    g.output("y", y)
    assert (g.compile(device="cpu")(x=x)["y"].numpy() == want).all()
