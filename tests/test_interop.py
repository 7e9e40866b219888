"""Tensors of other libraries in and out: each a view, a documented copy, or a typed error."""

import ctypes

import aicf
import numpy as np
import pytest
from compare import assert_bits, numpy_dtype
from tensors import Foreign

DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "int8",
    "int16",
]
NUMPY_DTYPES = [name for name in DTYPES if name != "bfloat16"]


def identity(shape, dtype="float32", device="cpu"):
    """y = x, and a state s of the same type that keeps its value."""
    g = aicf.Graph("identity")
    x = g.input("x", shape, dtype)
    g.output("y", aicf.permute(x, tuple(range(x.ndim))))
    g.state("s", shape, dtype)
    g.param("p", shape if dtype.startswith("float") or dtype == "bfloat16" else (1,))
    return g.compile(device=device)


def values(shape, dtype):
    array = np.arange(int(np.prod(shape))).reshape(shape) % 7
    return array.astype(numpy_dtype(dtype))


def result(step, **inputs):
    """What comes back, as bytes of the dtype that went in."""
    out = step(**inputs)["y"]
    again = step.replay()["y"]
    array = again.numpy()
    assert_bits(array, step.run(**inputs)["y"].numpy())
    assert out.dtype == again.dtype
    return array


# ---- NumPy in


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_in(dtype):
    if numpy_dtype(dtype) is None:
        pytest.skip("ml_dtypes is not installed")
    x = values((3, 4), dtype)
    np.testing.assert_array_equal(result(identity((3, 4), dtype), x=x), x.astype("float64"))


LAYOUTS = {
    "negative": lambda x: x[::-1, ::-1][::-1, ::-1],
    "reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every_other": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "read_only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


def unaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    assert not view.flags.aligned
    return view


LAYOUTS["unaligned"] = unaligned


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_in(layout):
    """A call copies whatever layout it is given."""
    x = LAYOUTS[layout](values((3, 4), "float32"))
    np.testing.assert_array_equal(result(identity((3, 4)), x=x), x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1), (1,) * 6])
def test_shapes_in(shape):
    x = values(shape, "float32")
    assert_bits(result(identity(shape), x=x), x)


@pytest.mark.parametrize("layout", ["reversed", "transposed", "every_other", "unaligned"])
def test_bind_refuses_layouts(layout):
    """bind never copies: what is not in C order and aligned is a typed error."""
    step = identity((3, 4))
    x = values((3, 4), "float32")
    before = result(step, x=x)
    with pytest.raises(aicf.Error, match="need"):
        step.bind(x=LAYOUTS[layout](x))
    assert_bits(result(step, x=x), before)


def test_bind_says_which_names_there_are():
    g = aicf.Graph()
    g.output("scores", g.input("x", (3,)) * 2.0)
    step = g.compile(device="cpu")
    said = r'bind: there is no "score" \(is it "scores"\?\); it has input x, output scores'
    with pytest.raises(aicf.GraphError, match=said):
        step.bind(score=np.zeros(3, np.float32))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_bind_numpy_is_a_view(dtype):
    step = identity((3, 4), dtype)
    x = values((3, 4), dtype)
    step.bind(x=x)
    for _ in range(3):
        x[...] = 1 - x.astype(bool)
        np.testing.assert_array_equal(step.replay()["y"].numpy(), x)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 4), np.float64),
        np.zeros((3, 4), np.int16),
        np.zeros((3, 4), np.complex64),
        np.zeros((3, 4), "datetime64[s]"),
        np.zeros((3, 4), ">f4"),
        np.zeros((3, 4), object),
        np.zeros((3, 4), "U3"),
        np.zeros((3, 4), [("a", "f4")]),
        np.zeros((4, 3), np.float32),
        np.zeros((3, 4), np.float32).tobytes(),
        [[1.0, 2.0], [3.0]],
        "text",
        None,
        object(),
    ],
    ids=lambda a: f"{type(a).__name__}_{getattr(a, 'dtype', '')}_{getattr(a, 'shape', '')}",
)
@pytest.mark.parametrize("how", ["call", "bind", "state"])
def test_refused(array, how):
    """A typed error, nothing written, and the same process still gives the same bits."""
    step, x = identity((3, 4)), values((3, 4), "float32")
    want, before = result(step, x=x), step.state_dict()
    with pytest.raises(aicf.Error):
        if how == "call":
            step(x=array)
        elif how == "bind":
            step.bind(x=array)
        else:
            step.state["s"] = array
    for name, value in step.state_dict().items():
        assert_bits(value, before[name], name)
    assert_bits(result(step, x=x), want)


def test_bind_refuses_a_masked_array():
    with pytest.raises(aicf.DTypeError, match="MaskedArray"):
        identity((3, 4)).bind(x=np.ma.masked_array(np.zeros((3, 4), np.float32), True))


# ---- out by DLPack


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_numpy_out(dtype, shape):
    step, x = identity(shape, dtype), values(shape, dtype)
    assert_bits(np.from_dlpack(step(x=x)["y"]), x)
    assert_bits(np.from_dlpack(step(x=x)["y"].copy()), x)
    np.testing.assert_array_equal(np.asarray(step(x=x)["y"]), x)


def capsule_name(capsule):
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get(capsule).decode()


def test_versioned_or_not():
    array = identity((3, 4))(x=values((3, 4), "float32"))["y"].copy()
    assert capsule_name(array.__dlpack__()) == "dltensor"
    assert capsule_name(array.__dlpack__(max_version=None)) == "dltensor"
    assert capsule_name(array.__dlpack__(max_version=(0, 8))) == "dltensor"
    for version in ((1, 0), (1, 1), (2, 0)):
        assert capsule_name(array.__dlpack__(max_version=version)) == "dltensor_versioned"


class OldProducer:
    """__dlpack__ from before version 1.0: no max_version."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class BadProducer(OldProducer):
    def __dlpack__(self, **_):
        return self.array

    def __dlpack_device__(self):
        return (1, 0)


def test_old_and_bad_producers():
    step, x = identity((3, 4)), values((3, 4), "float32")
    assert_bits(result(step, x=OldProducer(x)), x)
    step.bind(x=OldProducer(x))
    x += 1
    assert_bits(step.replay()["y"].numpy(), x)
    used = x.__dlpack__()
    np.from_dlpack(OldProducer(x))
    for bad in (5, None, used, OldProducer(3)):
        if bad is used:
            step(x=BadProducer(used))  # once is fine
        with pytest.raises(aicf.Error):
            step(x=BadProducer(bad))


def test_copy_and_device():
    step = identity((3, 4))
    step.params["p"] = np.ones((3, 4), np.float32)
    live = step.params["p"]
    assert live.__dlpack_device__() == (1, 0)
    view, copied = np.from_dlpack(live), np.from_dlpack(live, copy=True)
    step.params["p"] = np.full((3, 4), 2, np.float32)
    assert (view == 2).all() and (copied == 1).all()
    assert np.from_dlpack(live, device="cpu").shape == (3, 4)
    capsule_name(live.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    with pytest.raises(BufferError, match="cpu"):
        live.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        live.__dlpack__(stream=7)


def test_device_memory_is_refused_on_the_cpu():
    """Every way in, before anything is written: the host cannot read there."""
    x = values((3, 4), "float32")
    there = Foreign(x.ctypes.data, "float32", x.shape, None, device=(2, 0), keep=x)
    step = identity((3, 4))
    before = step.state_dict()
    ways = [
        lambda: step(x=there),
        lambda: step.run(x=there),
        lambda: step.state.__setitem__("s", there),
        lambda: step.bind(x=there),
        lambda: step.params.__setitem__("p", there),
        lambda: step.load_state_dict({**step.state_dict(), "p": there}),
    ]
    for way in ways:
        with pytest.raises(aicf.DeviceUnavailable, match=r'"[xps]".*on cuda:0.*is on cpu; need'):
            way()
    for name, array in step.state_dict().items():
        assert_bits(np.asarray(array), np.asarray(before[name]))
    with pytest.raises(aicf.DeviceUnavailable, match="cuda:0"):
        aicf.op_call("copy", [there], [np.empty_like(x)])


def test_views_outlive_their_step():
    step = identity((300, 400))
    step.params["p"] = np.ones((300, 400), np.float32)
    view = np.from_dlpack(step.params["p"])
    del step
    others = [np.zeros((300, 400), np.float32) for _ in range(20)]
    assert (view == 1).all() and len(others) == 20


def test_own_arrays_in():
    """An output of one step is an input of the next; a param may be bound to another's storage."""
    a, b = identity((3, 4)), identity((3, 4))
    x = values((3, 4), "float32")
    assert_bits(b(x=a(x=x)["y"])["y"].numpy(), x)
    stale = a(x=x)["y"]
    a(x=x)
    with pytest.raises(aicf.StaleOutput):
        b(x=stale)


# ---- PyTorch


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(dtype):
    torch = pytest.importorskip("torch")
    tensor = (torch.arange(12).reshape(3, 4) % 7).to(getattr(torch, dtype))
    step = identity((3, 4), dtype)
    assert torch.equal(torch.from_dlpack(step(x=tensor)["y"]), tensor)
    assert torch.equal(torch.from_dlpack(step(x=tensor.T.contiguous().T)["y"]), tensor)
    step.bind(x=tensor)
    tensor += 1 if dtype != "bool" else tensor
    assert torch.equal(torch.from_dlpack(step.replay()["y"]), tensor)


def test_masked_array_is_refused():
    """Its data without its mask would be numbers nobody meant."""
    step = identity((3,))
    with pytest.raises(aicf.DTypeError, match="masked"):
        step(x=np.ma.array(np.ones(3, np.float32), mask=[0, 1, 0]))


def test_unversioned_consumers_get_a_copy_of_live_state():
    """They cannot be told that they may not write."""
    step = identity((2, 2))
    array = step.params["p"]
    with pytest.raises(BufferError, match="copy"):
        array.__dlpack__(copy=False)
    old = np.array(array.numpy())
    torch = pytest.importorskip("torch")
    tensor = torch.utils.dlpack.from_dlpack(array.__dlpack__())
    tensor += 1
    assert (tensor.numpy() == old + 1).all() and (array.numpy() == old).all()


def test_torch_requires_grad():
    torch = pytest.importorskip("torch")
    step = identity((2, 2))
    leaf = torch.ones(2, 2, requires_grad=True)
    assert (step(x=leaf)["y"].numpy() == 1).all()
    assert (step(x=leaf * 2)["y"].numpy() == 2).all()
    step.bind(x=leaf)
    with torch.no_grad():
        leaf += 4
    assert (step.replay()["y"].numpy() == 5).all()


def test_torch_special_tensors():
    """Conjugate and negative views, sparse, quantized, meta: typed errors; 0-size, 0-d: fine."""
    torch = pytest.importorskip("torch")
    step = identity((2, 2))
    negative = torch.ones(2, 2, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    for bad in (
        negative,
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, 2, device="meta"),
        torch.ones(2, 2, dtype=torch.complex64),
        torch.ones(2, 2, dtype=torch.int16),
    ):
        with pytest.raises(aicf.Error):
            step(x=bad)
    assert_bits(result(identity(()), x=torch.tensor(3.0)), np.float32(3))
    assert result(identity((0, 3)), x=torch.zeros(0, 3)).shape == (0, 3)
    assert (step(x=torch.ones(2, 2))["y"].numpy() == 1).all()


def test_torch_live_param():
    """PyTorch writes into a param's own storage, and the step sees it."""
    torch = pytest.importorskip("torch")
    step = identity((2, 2))
    torch.from_dlpack(step.params["p"]).fill_(3)
    assert (step.params["p"].numpy() == 3).all()
    assert torch.from_dlpack(step.params["p"]).data_ptr() % 64 == 0


def test_exchange_api_both_ways():
    """The C table is there on both sides; each reads the other's tensors through it."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no exchange API")
    for kind in (torch.Tensor, aicf.Array):
        assert capsule_name(kind.__dlpack_c_exchange_api__) == "dlpack_exchange_api"
    step = identity((2, 2))
    tensor = torch.arange(4.0).reshape(2, 2)
    step.bind(x=tensor)  # consumer
    tensor *= 2
    out = step.replay()["y"]
    assert torch.equal(torch.from_dlpack(out.copy()), tensor)  # producer


# ---- JAX


@pytest.fixture
def jnp():
    """jax.numpy, whose arrays are made in host memory."""
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        yield jax.numpy


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "int32", "uint8", "int8", "int16", "bool"]
)
def test_jax(dtype, jnp):
    x = (jnp.arange(12).reshape(3, 4) % 7).astype(dtype)
    step = identity((3, 4), dtype)
    back = jnp.from_dlpack(step(x=x)["y"].copy())
    assert back.dtype == x.dtype and bool((back == x).all())
    assert bool((jnp.from_dlpack(step(x=x.T.T)["y"].copy()) == x).all())


def test_jax_is_never_written(jnp):
    """As an input it may be bound, as something the step writes it may not."""
    x = jnp.arange(6.0, dtype="float32").reshape(2, 3)
    g = aicf.Graph("writes")
    s = g.state("s", (2, 3))
    g.assign(s, s + g.input("x", (2, 3)))
    g.output("y", s * 2.0)
    step = g.compile(device="cpu")
    step.bind(x=x)
    for name in ("s", "y"):
        with pytest.raises(aicf.Error, match="read-only"):
            step.bind(**{name: x})
    step.replay(3)
    np.testing.assert_array_equal(step.state["s"].numpy(), 3 * np.asarray(x))
    np.testing.assert_array_equal(np.asarray(x), np.arange(6.0).reshape(2, 3))


def test_numpy_read_only_is_never_written():
    x = np.zeros((2, 3), np.float32)
    x.flags.writeable = False
    g = aicf.Graph("writes")
    s = g.state("s", (2, 3))
    g.assign(s, s + 1.0)
    step = g.compile(device="cpu")
    with pytest.raises(aicf.Error, match="read-only"):
        step.bind(s=x)
    step.replay(2)
    assert not x.any() and (step.state["s"].numpy() == 2).all()


# ---- ml_dtypes


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([[1.5, -2.25], [3e38, np.inf]], ml_dtypes.bfloat16)
    step = identity((2, 2), "bfloat16")
    np.testing.assert_array_equal(step(x=x)["y"].numpy(), x.astype(np.float32))
    np.testing.assert_array_equal(step(x=x.T)["y"].numpy(), x.T.astype(np.float32))
    step.bind(x=x)
    x[0, 0] = 7
    assert step.replay()["y"].numpy()[0, 0] == 7
    for name in ("float8_e4m3fn", "int4", "float8_e5m2"):
        with pytest.raises(aicf.DTypeError, match="cast"):
            step(x=x.astype(np.float32).clip(-5, 5).astype(getattr(ml_dtypes, name)))
