"""op_call: one lowered op on the caller's tensors: results, in place, and what it refuses."""

import copy
import inspect
import pickle

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits, numpy_dtype
from conftest import FRESH
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tensors import Cuda, Foreign, Layout, Tensor

F32 = np.float32


def call(device, op, inputs, result, attrs=None, **options):
    """The result of an op on arrays, as a C-order array of `result`'s (shape, dtype)."""
    shape, dtype = result
    ins = [Tensor(str(x.dtype), Layout.c_order(x.shape), device, x) for x in inputs]
    out = Tensor(dtype, Layout.c_order(shape), device)
    aicf.op_call(op, [t.give() for t in ins], [out.give()], attrs, **options)
    return out.read()


def test_kinds_name_every_lowered_op():
    assert [kind.name for kind in aicf.OpKind] == aicf._core.lowered_names()
    assert aicf.OpKind("gemm") is aicf.OpKind.gemm


def test_by_name_and_by_kind(device, rng):
    x = rng.standard_normal((3, 5)).astype(F32)
    by_name = call(device, "tanh", [x], ((3, 5), "float32"))
    assert_bits(call(device, aicf.OpKind.tanh, [x], ((3, 5), "float32")), by_name)
    np.testing.assert_allclose(by_name, np.tanh(x), rtol=1e-6)


def test_the_slice(device, rng):
    """y = sin(a x + b), sum and a product: the first three kernels anyone needs."""
    x = rng.standard_normal((4, 6)).astype(F32)
    a, b = np.array([1.5, -2, 0.25, 3], F32)[:, None], np.array([0.5, 1, 2, 3, 4, 5], F32)
    ax = call(device, "mul", [a, x], ((4, 6), "float32"))
    y = call(
        device, "sin", [call(device, "add", [ax, b], ((4, 6), "float32"))], ((4, 6), "float32")
    )
    np.testing.assert_allclose(y, np.sin(a.astype(float) * x + b), atol=2e-6)
    total = call(device, "reduce_sum", [x], ((4,), "float32"), {"axes": [-1]})
    np.testing.assert_allclose(total, x.astype(float).sum(-1), rtol=1e-5)
    product = call(device, "gemm", [x, x.T.copy()], ((4, 4), "float32"))
    np.testing.assert_allclose(product, x.astype(float) @ x.T, rtol=1e-5)


def test_rows_without_elements_are_normalized(device, rng):
    """Their mean is NaN, whatever a row before them left behind."""
    for shape in ((3, 700), (3, 0), (3, 700), (3, 0)):
        x = rng.standard_normal(shape).astype(F32)
        outs = [Tensor("float32", Layout.c_order(s), device) for s in (shape, (3, 1))]
        given = Tensor("float32", Layout.c_order(shape), device, x).give()
        aicf.op_call("normalize", [given], [t.give() for t in outs], {"eps": 1e-5})
        assert np.isnan(outs[1].read()).all() == (shape[1] == 0)


@pytest.mark.parametrize("sync", ["none", "event", "full"])
def test_sync(device, sync, rng):
    x = rng.standard_normal(1000).astype(F32)
    tensor, out = (Tensor("float32", Layout.c_order((1000,)), device, v) for v in (x, 0 * x))
    event = aicf.op_call("neg", [tensor.give()], [out.give()], sync=sync)
    assert (event is None) == (sync != "event")
    if event is not None:
        event.wait()
    else:
        one = 1 if device == "cuda" else None  # the same order by its number
        aicf.op_call("neg", [out.give()], [out.give()], stream=one)
        aicf.op_call("neg", [out.give()], [out.give()])
    assert_bits(out.read(), -x)


def test_many_calls_in_flight(device):
    """Their tensors live until the work is done, however many there are."""
    x = Tensor("float32", Layout.c_order((4096,)), device, np.ones(4096, F32))
    y = Tensor("float32", Layout.c_order((4096,)), device, np.ones(4096, F32))
    for _ in range(300):
        aicf.op_call("add", [x.give(), y.give()], [y.give()], sync="none")
    aicf.op_call("copy", [y.give()], [y.give()])
    assert (y.read() == 301).all()


@pytest.mark.parametrize("sync", ["none", "event", "full"])
def test_calls_that_come_again(device, sync, rng):
    """A GPU launches them by another way than the first ones: always on the operands given."""
    xs = [rng.standard_normal(777).astype(F32) for _ in range(3)]
    tensors = [Tensor("float32", Layout.c_order(x.shape), device, x) for x in xs]
    outs = [Tensor("float32", Layout.c_order((777,)), device) for _ in range(2)]
    for turn in range(24):
        x, out = (turn // 2) % 3, turn % 2
        event = aicf.op_call("neg", [tensors[x].give()], [outs[out].give()], sync=sync)
        if event is not None:
            event.wait()
        elif sync == "none":
            aicf.op_call("copy", [outs[out].give()], [outs[out].give()])
        assert_bits(outs[out].read(), -xs[x])


AGAIN = [  # of ops with and without a workspace and counters
    ("add", [(64,), (64,)], (64,), None),
    ("softmax", [(33, 70)], (33, 70), {"axis": 1}),
    ("reduce_sum", [(3, 70000)], (3,), {"axes": [1]}),
    ("reduce_sum", [(700, 64)], (64,), {"axes": [0]}),
    ("gemm", [(16, 4096), (4096, 16)], (16, 16), None),
    ("gemm", [(64, 48), (48, 64)], (64, 64), None),
    ("cumsum", [(4, 3000)], (4, 3000), {"axis": 1}),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("index", range(len(AGAIN)))
def test_bits_of_calls_that_come_again(device, index, dtype, rng):
    """With calls between that borrow more memory."""
    op, shapes, shape, attrs = AGAIN[index]
    xs = [rng.standard_normal(s).astype(F32).astype(numpy_dtype(dtype)) for s in shapes]
    first = call(device, op, xs, (shape, dtype), attrs)
    for turn in range(13):
        assert_bits(call(device, op, xs, (shape, dtype), attrs), first, f"call {turn}")
        if turn in (6, 10):
            n = 2048 * turn
            ones = [np.ones(s, F32) for s in ((16, n), (n, 16))]
            assert (call(device, "gemm", ones, ((16, 16), "float32")) == n).all()


def test_torch_in_place():
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0).reshape(2, 3)
    y = torch.zeros(3, 2)
    aicf.op_call("relu", [x.t()], [y])
    assert torch.equal(y, x.t())
    aicf.op_call("add", [x, x], [x])
    assert torch.equal(x, 2 * torch.arange(6.0).reshape(2, 3))


def test_optimizer_step_in_place(device):
    """Three results over three operands, as a training step runs it."""
    n, numbers = 5, [1.1, 1.2, 0.1, 0.9, 0.99, 1e-8]
    values = [np.linspace(1, 2, n).astype(F32) * k for k in (1, -1, 0.5, 0.25)]
    state = [Tensor("float32", Layout.c_order((n,)), device, v) for v in values]
    rest = [Tensor("float32", Layout.c_order(()), device, F32(v)) for v in numbers]
    give = [t.give() for t in (*state, *rest)]
    aicf.op_call("adam_step", give, [give[0], give[2], give[3]])
    p, grad, m, v = (x.astype(float) for x in values)
    c1, c2, lr, b1, b2, eps = (float(F32(number)) for number in numbers)
    m, v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad * grad
    for got, want in zip(
        (state[0], state[2], state[3]),
        (p - lr * (m * c1) / (np.sqrt(v * c2) + eps), m, v),
        strict=True,
    ):
        np.testing.assert_allclose(got.read(), want, rtol=1e-6)
    assert not state[1].changed()


def test_workspace_bytes(device):
    name = "cuda:0" if device == "cuda" else device
    specs = [((64, 700), "float32"), ((700, 8), "float32")]
    assert aicf.workspace_bytes("gemm", specs, device=name) >= 0
    assert aicf.workspace_bytes("exp", [np.zeros(3, F32)], device=name) == 0
    for bad in (
        [((2, 3), "float32")],
        [((2, -3), "float32")] * 2,
        [3, 4],
        [((2**62, 4), "f32")] * 2,
    ):
        with pytest.raises(aicf.Error, match="need"):
            aicf.workspace_bytes("gemm", bad, device=name)


# ---- casts round once


@pytest.mark.parametrize("source", ["float64", "int64", "int32", "float32"])
@pytest.mark.parametrize("target", ["float16", "bfloat16"])
def test_cast_rounds_once(device, source, target, rng):
    """What lies just beside the middle of two neighbours, where a rounding on the way decides."""
    if numpy_dtype(target) is None:
        pytest.skip("no bfloat16 here")
    bits = 11 if target == "float16" else 8
    mantissa = rng.integers(2 ** (bits - 1), 2**bits, 4000)
    if source.startswith("int"):
        width = {"int32": 31, "int64": 63}[source]
        shift = rng.integers(1, width - bits, 4000)
        x = (2 * mantissa + 1 << shift) // 2 + rng.integers(-1, 2, 4000)
        x = (x * rng.choice([-1, 1], 4000)).astype(source)
        sign, size = np.sign(x), [abs(int(v)) for v in x]
        cut = [max(v.bit_length() - bits, 0) for v in size]
        near = [v >> c for v, c in zip(size, cut, strict=True)]
        rest = [2 * (v - (n << c)) for v, n, c in zip(size, near, cut, strict=True)]
        near = [
            n + (r > 1 << c or (r == 1 << c and n % 2)) if c else n
            for n, r, c in zip(near, rest, cut, strict=True)
        ]
        want = [float(s) * n * 2.0**c for s, n, c in zip(sign, near, cut, strict=True)]
        with np.errstate(over="ignore"):
            want = np.array(want).astype(numpy_dtype(target))
    else:
        tiny = rng.choice([-1, 0, 1], 4000) * 2.0 ** (-24.0 - rng.integers(0, 20, 4000))
        middle = (mantissa + 0.5) * (1 + (tiny if source == "float64" else 0))
        least = -24 if target == "float16" else -133
        scale = rng.integers(least, -2 * least // 3, 4000)
        x = (np.ldexp(middle, scale) * rng.choice([-1, 1], 4000)).astype(source)
        x = np.concatenate(
            [x, np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300])]
        )
        with np.errstate(all="ignore"):
            x = x.astype(source)
            want = x.astype(np.float16) if target == "float16" else round_to_bfloat(x)
    got = call(device, "cast", [x], (x.shape, target), {"dtype": target})
    differs = (got.view(np.uint16) != want.view(np.uint16)) & ~(np.isnan(got.astype(float)))
    assert not differs.any(), (x[differs][:5], got[differs][:5], want[differs][:5])


def round_to_bfloat(x):
    """float64 to bfloat16 in one rounding, to an integer of units in the last place."""
    x = x.astype(np.float64)
    exponent = np.maximum(np.frexp(x)[1] - 8, -133)
    with np.errstate(all="ignore"):
        rounded = np.where(np.isfinite(x), np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent), x)
    return rounded.astype(np.float32).astype(numpy_dtype("bfloat16"))


# ---- overlap

STEPS = st.sampled_from((-7, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 12))


@st.composite
def part(draw, store, shape):
    """A view of a store in a given shape, with any strides that stay inside."""
    strides = draw(st.lists(STEPS, min_size=len(shape), max_size=len(shape)))
    ends = [s * (n - 1) for n, s in zip(shape, strides, strict=True) if n]
    low, high = sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)
    near = min(len(store) - 1 - high, 40 - low)  # close enough to meet often
    start = draw(st.integers(-low, near))
    return np.lib.stride_tricks.as_strided(
        store[start:], shape, [stride * store.itemsize for stride in strides]
    )


def addresses(view):
    at = np.full(view.shape, view.__array_interface__["data"][0])
    for axis, (n, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        steps = [-1 if a == axis else 1 for a in range(view.ndim)]
        at = at + (np.arange(n) * stride).reshape(steps)
    return [int(a) for a in at.reshape(-1)]


def bytes_of(view):
    return {a + k for a in addresses(view) for k in range(view.itemsize)}


@seed(FRESH)
@settings(
    max_examples=600,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_overlap_is_exact(data):
    """Against the sets of addresses: refused exactly where two elements meet."""
    store = np.arange(2400, dtype=np.uint16).astype(np.uint8).view(F32)
    shape = tuple(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    kind = data.draw(st.sampled_from((F32, np.uint8, np.float64)))
    out = data.draw(part(store, shape))
    source = data.draw(part(store.view(kind), shape))
    own = len(set(addresses(out))) == out.size
    apart = not bytes_of(out) & bytes_of(source)
    exact = source.__array_interface__["data"] == out.__array_interface__["data"] and all(
        n < 2 or s == t for n, s, t in zip(shape, source.strides, out.strides, strict=True)
    )
    allowed = out.size == 0 or (own and (apart or (exact and kind is F32)))
    with np.errstate(all="ignore"):
        wanted, before = source.astype(F32), store.copy()
    try:
        with np.errstate(all="ignore"):
            aicf.op_call("cast", [source], [out], {"dtype": "float32"})
    except aicf.GraphError as error:
        assert not allowed, error
        assert_bits(store, before, "a refused call wrote")
    else:
        assert allowed, "elements meet, but the call went through"
        assert_bits(out.copy(), wanted)


def test_interleaved_and_far_apart():
    """Strides that share no byte are told apart without a search through the elements."""
    store = np.zeros(4_000_000, np.uint8)
    floats = store.view(F32)
    aicf.op_call("neg", [floats[::2]], [floats[1::2]])
    aicf.op_call("neg", [floats[1::2][::-1]], [floats[::2]])
    block = floats[: 1000 * 1000].reshape(1000, 1000)
    aicf.op_call("neg", [block[:, :500]], [block[:, 500:]])
    aicf.op_call("neg", [block[::-1, ::2]], [block[:, 1::2]])
    with pytest.raises(aicf.GraphError, match="overlaps input x"):
        aicf.op_call("neg", [block[:, :501]], [block[:, 499:]])
    with pytest.raises(aicf.GraphError, match="overlaps input x"):
        aicf.op_call("neg", [block.T], [block])


# ---- refusals: nothing is written


class Bench:
    """Operands to make mistakes with; `changed` tells whether any byte of them differs."""

    def __init__(self, device):
        self.device, self.tensors = device, []
        rng = np.random.default_rng(3)

        def make(shape, dtype="float32"):
            values = rng.integers(1, 5, shape).astype(numpy_dtype(dtype))
            tensor = Tensor(dtype, Layout.c_order(shape), device, values)
            self.tensors.append(tensor)
            return tensor

        self.x, self.y, self.out = make((4, 3)), make((4, 3)), make((4, 3))
        self.row, self.col, self.cube = make((3,)), make((4, 1)), make((2, 4, 3))
        self.z, self.w, self.sq = make((5, 2)), make((3, 5)), make((4, 4))
        self.d, self.h = make((4, 3), "float64"), make((4, 3), "float16")
        self.i, self.l, self.u = make((4, 3), "int32"), make((4,), "int64"), make((4, 3), "uint8")
        self.m, self.s, self.k = make((4, 3), "bool"), make(()), make((), "int32")
        self.e, self.big, self.n = make((0, 3)), make((8, 6)), make((), "int64")
        self.sd, self.v4 = make((), "float64"), make((4,))
        self.long = Tensor("float32", Layout((1,) * 9, (1,) * 9), "cpu", np.float32(1))

    def changed(self):
        return any(tensor.changed() for tensor in self.tensors)


def view(tensor, shape, strides, offset=0, read_only=False, dtype=None, byte_offset=0, **rest):
    """Other elements of a tensor's memory, as another producer would give them."""
    address = tensor.bytes.ctypes.data if tensor.memory is None else tensor.memory.address
    rest.setdefault("device", (1, 0) if tensor.memory is None else (2, 0))
    start = offset * tensor.item + byte_offset
    return Foreign(
        address,
        dtype or tensor.dtype,
        shape,
        strides,
        start,
        read_only=read_only,
        keep=tensor,
        **rest,
    )


G, S, D, U = aicf.GraphError, aicf.ShapeError, aicf.DTypeError, aicf.Unsupported
ONE = ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu_erf")
TWO = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "eq", "lt", "bias_add")

# error, words that the text must hold, op, operands by name or made by a function, attributes
TABLE = []


def refuse(kind, words, op, inputs, outputs, attrs=None, **options):
    TABLE.append((kind, words, op, inputs, outputs, attrs, options))


for _op in ONE:
    refuse(S, [_op, "f32[5, 2]", "f32[4, 3]", "output y"], _op, "x", "z")
    refuse(D, [_op, "f64[4, 3]", "f32[4, 3]", "output y"], _op, "x", "d")
    refuse(D, [_op, "i32[4, 3]", "cast"], _op, "i", "i")
    refuse(G, [_op, "2 operands", "need 1"], _op, "x y", "out")
    refuse(G, [_op, "0 outputs", "need 1"], _op, "x", "")
    refuse(G, [_op, "unknown attribute", "beta"], _op, "x", "out", {"beta": 1.0})
for _op in TWO:
    _out = "m" if _op in ("eq", "lt") else "out"
    refuse(S, [_op, "f32[5, 2]", "f32[4, 3]"], _op, "x z", _out)
    refuse(D, [_op, "f64[4, 3]", "cast"], _op, "x d", _out)
    refuse(G, [_op, "1 operands", "need 2"], _op, "x", _out)
    refuse(G, [_op, "2 outputs", "need 1"], _op, "x y", "out sq")
    refuse(S if _out == "out" else D, [_op, "output y is"], _op, "x y", "big")
for _op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"):
    refuse(S, [_op, "axis 2", "[-2, 2)"], _op, "x", "v4", {"axes": [2]})
    refuse(S, [_op, "twice"], _op, "x", "s", {"axes": [0, -2]})
    refuse(G, [_op, "axes", "missing"], _op, "x", "s")
    refuse(G, [_op, "axes", "need a"], _op, "x", "s", {"axes": 1})
    refuse(G, [_op, "keepdims", "need a"], _op, "x", "s", {"axes": [0, 1], "keepdims": "yes"})
    refuse(S, [_op, "f32[3]", "f32[4]"], _op, "x", "row", {"axes": [1]})
    refuse(G, [_op, "own"], _op, "x", lambda b: [view(b.x, (4,), (3,))], {"axes": [1]})
for _op in ("reduce_sum", "reduce_mean"):
    refuse(
        G, [_op, "order", "tree", "chain(256)"], _op, "x", "v4", {"axes": [1], "order": "chain(0)"}
    )
    refuse(G, [_op, "order", "sideways"], _op, "x", "v4", {"axes": [1], "order": "sideways"})
refuse(S, ["gemm", "inner sizes", "f32[4, 3]"], "gemm", "x y", "sq")
refuse(S, ["gemm", "rank"], "gemm", "row w", "out")
refuse(S, ["gemm", "output c", "f32[4, 3]", "f32[4, 5]"], "gemm", "x w", "out")
refuse(D, ["gemm", "dtypes differ"], "gemm", "d w", "out")
refuse(D, ["gemm", "float"], "gemm", "i i", "i")
refuse(S, ["gemm", "ranks"], "gemm", "cube w", "out")
refuse(G, ["gemm", "order", "chain(c)"], "gemm", "x w", "out", {"order": "tree"})
refuse(G, ["gemm", "chain(256)", "chain(128)"], "gemm", "x w", "out", {"order": "chain(64)"})
refuse(G, ["gemm", "math", "fp8", "tf32"], "gemm", "x w", "out", {"math": "fp8"})
refuse(D, ["gemm", "math", "tf32", "fp32"], "gemm", "d d", "d", {"math": "tf32"})
refuse(G, ["gemm", "does not work in place"], "gemm", lambda b: [b.sq.give(), b.sq.give()], "sq")
refuse(S, ["softmax", "axis 2"], "softmax", "x", "out", {"axis": 2})
refuse(S, ["cumsum", "axis -3"], "cumsum", "x", "out", {"axis": -3})
refuse(G, ["cumsum", "axis", "missing"], "cumsum", "x", "out")
refuse(S, ["concat", "equal sizes"], "concat", "x z", "out", {"axis": 0})
refuse(G, ["concat", "0 operands"], "concat", "", "out")
refuse(
    S,
    ["pad", "does not fit"],
    "pad",
    "x",
    "big",
    {"shape": [8, 6], "start": [5, 0], "step": [1, 1]},
)
refuse(S, ["pad", "need"], "pad", "x", "big", {"shape": [8, 6], "start": [0], "step": [1, 1]})
refuse(D, ["take", "indices", "int64"], "take", "x x", "cube")
refuse(S, ["take", "output y", "f32[4, 3]"], "take", "x l", "big")
refuse(D, ["cross_entropy", "labels"], "cross_entropy", "x v4", "v4 v4 row")
refuse(
    S,
    ["cross_entropy", "row counts"],
    "cross_entropy",
    lambda b: [b.z.give(), b.l.give()],
    "v4 v4 row",
)
refuse(D, ["cast", "float31"], "cast", "x", "out", {"dtype": "float31"})
refuse(D, ["cast", "output y is f32", "f64"], "cast", "x", "out", {"dtype": "float64"})
refuse(G, ["cast", "dtype", "missing"], "cast", "x", "out")
refuse(D, ["where", "condition", "bool"], "where", "x x y", "out")
refuse(D, ["logical_and", "bool"], "logical_and", "m u", "m")
refuse(D, ["step_inc", "int32"], "step_inc", "s", "s")
refuse(S, ["step_inc", "rank"], "step_inc", "i", "i")
refuse(D, ["sgd_step", "f64[]", "float32"], "sgd_step", "x y sd", "x")
refuse(S, ["sgd_step", "equal shapes"], "sgd_step", "x z s", "x")
refuse(S, ["ring_push", "ring as [K, *x.shape]"], "ring_push", "x out n", "out n")
refuse(D, ["ring_push", "int64"], "ring_push", "row x k", "x k")
refuse(S, ["max_pool", "two sizes"], "max_pool", "x", "s", {"kernel": [2]})
refuse(G, ["region", "no body"], "region", "x", "out")
refuse(G, ["lowered op", "exq", "OpKind"], "exq", "x", "out")
refuse(G, ["op_call", "need a str"], 7, "x", "out")
refuse(G, ["sync", "soon", "full"], "exp", "x", "out", sync="soon")
refuse(G, ["str"], "exp", "x", "out", sync=None)
refuse(G, ["stream", "-1", "handle"], "exp", "x", "out", stream=-1)
refuse(G, ["stream", "main", "handle"], "exp", "x", "out", stream="main")
refuse(G, ["attrs", "mapping"], "exp", "x", "out", [1])
refuse(G, ["attribute", "need"], "exp", "x", "out", {"a": object()})
refuse(G, ["attribute", "str"], "exp", "x", "out", {3: 1})
refuse(G, ["64 bits"], "cumsum", "x", "out", {"axis": 2**70})
refuse(G, ["list", "need"], "exp", lambda b: b.x.give(), "out")
refuse(G, ["outputs", "list"], "exp", "x", lambda b: b.out.give())
refuse(D, ["input x", "int", "__dlpack__"], "exp", lambda b: [3], "out")
refuse(D, ["input x", "None", "__dlpack__"], "exp", lambda b: [None], "out")
refuse(D, ["output y", "list", "__dlpack__"], "exp", "x", lambda b: [[1.0, 2.0]])
refuse(S, ["9 dimensions", "need 0 to 8"], "exp", lambda b: [b.long.host()], "out")
refuse(S, ["9 dimensions", "need 0 to 8"], "exp", "x", lambda b: [b.long.host()])
for _op in ("neg", "add", "relu", "copy", "gemm", "reduce_sum", "softmax"):
    _in = {"add": "x y", "gemm": "x w"}.get(_op, "x")
    _attrs = {"axes": []} if _op == "reduce_sum" else None
    _shape = (4, 5) if _op == "gemm" else (4, 3)

    def _part(strides, offset=0, shape=_shape, **rest):
        return lambda b: [view(b.big, shape, strides, offset, **rest)]

    refuse(G, [_op, "read-only", "writable"], _op, _in, _part((6, 1), read_only=True), _attrs)
    refuse(G, [_op, "one address"], _op, _in, _part((0, 1)), _attrs)
    refuse(G, [_op, "one address"], _op, _in, _part((1, 1)), _attrs)
    refuse(G, [_op, "one address"], _op, _in, _part((-1, 2), 5), _attrs)
    refuse(U, [_op, "unaligned"], _op, _in, _part((6, 1), byte_offset=2), _attrs)
    refuse(
        aicf.Error,
        [_op, "NULL"],
        _op,
        _in,
        lambda b, n=_shape: [Foreign(None, "float32", n, (3, 1))],
        _attrs,
    )
    refuse(aicf.DeviceUnavailable, [_op, "device"], _op, _in, _part((6, 1), device=(7, 0)), _attrs)
for _op in ("neg", "exp", "copy", "softmax", "cumsum"):
    _attrs = {"axis": 0} if _op == "cumsum" else None
    for _strides, _offset in (((6, 1), 1), ((-6, 1), 23), ((6, -1), 7), ((3, 1), 0), ((6, 0), 2)):

        def _shifted(b, strides=_strides, offset=_offset):
            return [view(b.big, (4, 3), strides, offset)]

        refuse(
            G,
            [_op, "overlaps input x"],
            _op,
            _shifted,
            lambda b: [view(b.big, (4, 3), (6, 1))],
            _attrs,
        )
refuse(
    G,
    ["overlap", "outputs"],
    "normalize",
    "x",
    lambda b: [view(b.big, (4, 3), (6, 1)), view(b.big, (4, 1), (6, 1), 2)],
)
refuse(aicf.FormatError, ["64 bits"], "exp", lambda b: [view(b.x, (3,), (2**61,))], "row")
refuse(S, ["2**63"], "exp", lambda b: [view(b.x, (2**60,), (0,))], "row")
refuse(aicf.Error, ["size", "-1"], "exp", lambda b: [view(b.x, (-1,), (1,))], "row")


def operands(bench, spec):
    if callable(spec):
        return spec(bench)
    return [getattr(bench, name).give() for name in spec.split()]


@pytest.fixture(scope="module")
def benches():
    return {}


@pytest.mark.parametrize("index", range(len(TABLE)))
def test_refused(index, device, benches):
    bench = benches.setdefault(device, Bench(device) if device not in benches else None)
    kind, words, op, inputs, outputs, attrs, options = TABLE[index]
    with pytest.raises(aicf.Error) as caught:
        aicf.op_call(op, operands(bench, inputs), operands(bench, outputs), attrs, **options)
    text = str(caught.value)
    assert isinstance(caught.value, kind), f"{type(caught.value).__name__}: {text}"
    assert not isinstance(caught.value, aicf.InternalError), text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    assert not bench.changed(), f"written: {text}"


def test_table_size():
    """Together with the table of test_errors.py."""
    from test_errors import TABLE as REST

    assert len(TABLE) + len(REST) >= 400


def test_other_device():
    """Operands of two devices are named; nothing is copied."""
    x = np.ones(3, F32)
    far = Foreign(x.ctypes.data, "float32", (3,), (1,), device=(2, 0), keep=x)
    with pytest.raises(aicf.DeviceUnavailable, match=r"add: input b is on cuda:0, output y on cpu"):
        aicf.op_call("add", [x, far], [x.copy()])


def test_stream_on_the_cpu():
    x = np.ones(3, F32)
    with pytest.raises(aicf.GraphError, match="stream is 1, the outputs are on the cpu"):
        aicf.op_call("neg", [x], [x], stream=1)
    assert (x == 1).all()


def test_output_of_a_step_is_refused():
    """Only copies of it are handed out, so a result would be lost; a param is a read-only view."""
    g = aicf.Graph("step")
    w = g.param("w", (3,))
    g.output("y", g.input("x", (3,)) * w)
    step = g.compile(device="cpu")
    out = step(x=np.ones(3, F32))
    with pytest.raises(aicf.GraphError, match="bind it"):
        aicf.op_call("neg", [out["y"]], [out["y"]])
    with pytest.raises(aicf.GraphError, match="read-only"):
        aicf.op_call("neg", [out["y"]], [step.params["w"]])
    back = np.zeros(3, F32)
    aicf.op_call("neg", [step.params["w"]], [back])
    assert_bits(back, -step.params["w"].numpy())


def test_threads(device):
    """Calls of several threads take turns; each sees its own result."""
    import threading

    wrong = []

    def work(k):
        x = Tensor("float32", Layout.c_order((1000,)), device, np.full(1000, k, F32))
        y = Tensor("float32", Layout.c_order((1000,)), device)
        for _ in range(100):
            aicf.op_call("neg", [x.give()], [y.give()])
            if (y.read() != -k).any():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_product_in_a_chain(dtype, rng):
    """Few tiles and many terms, of operands that tensor cores would take in an order of theirs."""
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    m, n, k = 64, 1024 if processors > 100 else 128, 4096
    arrays = [rng.standard_normal(s, F32).astype(numpy_dtype(dtype)) for s in ((m, k), (k, n))]
    found = []
    for device in ("cpu", "cuda"):
        ins = [Tensor(dtype, Layout.c_order(x.shape), device, x) for x in arrays]
        out = Tensor(dtype, Layout.c_order((m, n)), device)
        aicf.op_call("gemm", [t.give() for t in ins], [out.give()], {"order": "chain(256)"})
        found.append(out.read())
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.gpu
def test_host_tensor_for_a_gpu_call():
    x = np.ones(3, F32)
    out = Tensor("float32", Layout.c_order((3,)), "cuda")
    with pytest.raises(aicf.DeviceUnavailable, match="need one device"):
        aicf.op_call("neg", [x], [out.give()])
    assert isinstance(out.memory, Cuda) and not out.changed()


def test_it_is_a_function_to_python():
    """Though none of Python's: what the usual arguments are is looked at before a frame is made."""
    assert inspect.isroutine(aicf.op_call)
    names = ["op", "inputs", "outputs", "attrs", "stream", "sync"]
    assert list(inspect.signature(aicf.op_call).parameters) == names
    assert aicf.op_call.__name__ == "op_call" and ">>>" in aicf.op_call.__doc__
    assert pickle.loads(pickle.dumps(aicf.op_call)) is aicf.op_call
    assert copy.deepcopy(aicf.op_call) is aicf.op_call


class Text(str):
    pass


class Reversed(list):
    def __iter__(self):
        return iter(self[::-1])


def test_arguments_by_place_and_by_name():
    """Those of usual kinds and any others come to the same call."""
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    calls = [
        lambda out: aicf.op_call("sub", [x, y], [out]),
        lambda out: aicf.op_call(aicf.OpKind.sub, (x, y), (out,), None, None, "full"),
        lambda out: aicf.op_call(Text("sub"), Reversed([y, x]), [out], attrs={}, sync=Text("none")),
        lambda out: aicf.op_call(outputs=[out], inputs=[x, y], op="".join("sub"), stream=None),
        lambda out: aicf.op_call(**{"".join(("o", "p")): "sub"}, inputs=[x, y], outputs=[out]),
        lambda out: aicf.op_call("sub", [x, y], [out], sync="event").wait(),
    ]
    for call in calls:
        out = np.zeros_like(x)
        assert call(out) is None
        assert_bits(out, x - y)
    with pytest.raises(TypeError, match="sinc"):
        aicf.op_call("sub", [x, y], [out], sinc="none")
    with pytest.raises(TypeError):
        aicf.op_call("sub", [x, y], [out], op="sub")
    with pytest.raises(TypeError):
        aicf.op_call("sub", [x, y])
    with pytest.raises(aicf.GraphError, match=r"sync is \"later\".*test_eager"):
        aicf.op_call("sub", [x, y], [out], sync="later")
    with pytest.raises(aicf.ShapeError, match="test_eager"):
        aicf.op_call("sub", [x, y], [out[:1]])


def test_more_calls_than_are_known(device):
    for _turn in range(2):
        for n in range(1, 80):
            x = np.arange(n, dtype=np.float32)
            for _again in range(9 if n % 3 == 0 else 1):
                assert_bits(call(device, "neg", [x], ((n,), "float32")), -x)
