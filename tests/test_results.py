"""What a step hands out, used as NumPy's arrays are."""

import copy
import operator
import pickle

import aicf
import numpy as np
import pytest


def test_arrays_count_as_numpy(device):
    """Arithmetic, reductions and formats, of what a step hands out, give NumPy's results."""
    g = aicf.Graph("count")
    x = g.input("x", (2, 3))
    g.output("y", x * 2.0)
    g.output("loss", aicf.mean(x))
    out = g.compile(device=device)(x=np.arange(6.0, dtype=np.float32).reshape(2, 3))
    y, loss, want = out["y"], out["loss"], np.arange(0.0, 12, 2, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(y + y, want + want)
    np.testing.assert_array_equal(1 - y, 1 - want)
    np.testing.assert_array_equal(y**2 / 2 % 3, want**2 / 2 % 3)
    np.testing.assert_array_equal(want @ (-y).T, want @ -want.T)
    np.testing.assert_array_equal(y @ want.T, want @ want.T)
    assert y.tolist() == want.tolist() and loss.tolist() == 2.5
    assert y.mean() == want.mean() and y.sum(axis=0).tolist() == want.sum(0).tolist()
    assert y.max() == 10 and y.argmax() == 5 and y.any() and not y.all()
    assert y.reshape(3, 2).shape == (3, 2) and y.astype("int64").dtype == np.int64
    assert f"{loss:.2f} {loss:8.1e}" == "2.50  2.5e+00" and f"{y}" == str(y) == str(want)
    with pytest.raises(TypeError, match="format"):
        f"{y:.2f}"


# Of NumPy's arrays, what an Array has not: what changes one in place, for reading makes a copy;
# what shows memory; what few need.
NOT_THERE = set(
    "base byteswap choose compress conjugate ctypes data dump dumps fill flags getfield "
    "argpartition partition put resize setfield setflags sort strides to_device tofile".split()
)


def test_an_array_has_what_numpys_has(device):
    """Everything public but what is named above, each of the results NumPy gives."""
    g = aicf.Graph("numpy")
    x = g.input("x", (2, 3))
    g.output("y", x * 2.0)
    y = g.compile(device=device)(x=np.arange(6.0, dtype=np.float32).reshape(2, 3))["y"]
    theirs = {name for name in dir(np.ndarray) if not name.startswith("_")}
    assert theirs - set(dir(y)) == NOT_THERE & theirs
    want = y.numpy()
    calls = {
        "astype": ["float64"], "reshape": [3, 2], "repeat": [2], "swapaxes": [0, 1], "take": [[0]],
        "clip": [1, 3], "dot": [np.ones(3, np.float32)], "view": ["int32"], "item": [1, 2],
        "searchsorted": [1.0],
    }  # fmt: skip
    for name in sorted(theirs - NOT_THERE - {"device", "dtype", "flat"}):
        mine, theirs = getattr(y, name), getattr(want, name)
        if name == "searchsorted":
            continue  # of one axis
        if callable(theirs):
            mine, theirs = mine(*calls.get(name, ())), theirs(*calls.get(name, ()))
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    assert list(y.flat) == list(want.flat) and 4.0 in y and 5.0 not in y
    with pytest.raises(TypeError, match=r'Array.mean: there is no argument "dim" \(is it "axis"\?'):
        y.mean(dim=0)
    for name, near in (("detach", "numpy"), ("numel", "size"), ("reshap", "reshape")):
        with pytest.raises(AttributeError, match=rf"'{name}' \(is it \"{near}\"\?\); need numpy"):
            getattr(y, name)
    assert not hasattr(y, "__cuda_array_interface__") and not hasattr(y, "sort")


def test_arrays_beside_operators_of_others(device):
    jnp = pytest.importorskip("jax.numpy")
    g = aicf.Graph("operators")
    x = g.input("x", (3,))
    for name, value in {"y": x * 2.0, "low": x < 1.0, "best": aicf.argmax(x), "n": x.sum()}.items():
        g.output(name, value)
    step = g.compile(device=device)
    out = step(x=np.arange(3, dtype=np.float32))
    y, low, best, n = out.values()
    want = np.array([0, 2, 4], np.float32)
    for made in (y + jnp.ones(3), jnp.ones(3) + y):
        assert type(made) is type(jnp.ones(3))
        np.testing.assert_array_equal(made, want + 1)
    assert (~low).tolist() == [False, True, True] and (low & ~low).sum() == 0
    assert (low | True).all() and (True ^ low).tolist() == [False, True, True]
    assert (best << 1) == 4 and 1 >> best == 0 and divmod(y, 3)[1].tolist() == [0, 2, 1]
    assert "abc"[best] == "c" and list(range(best)) == [0, 1]
    for wrong in (y, n, low):
        with pytest.raises(TypeError, match="is no index; need a whole number of rank 0"):
            operator.index(wrong)
    assert round(n) == 3 and type(round(n)) is int and round(n / 7, 2) == np.float32(0.43)
    with pytest.raises(aicf.ShapeError, match="round"):
        round(y)


def test_copies_of_arrays(device):
    """They stay as they are; what pickle keeps is NumPy's."""
    g = aicf.Graph("copies")
    x = g.input("x", (3,))
    g.output("y", x * 2.0)
    step = g.compile(device=device)
    out = {"of": [step(x=np.ones(3, np.float32))["y"]]}
    kept = copy.deepcopy(out), copy.copy(out["of"][0]), pickle.loads(pickle.dumps(out))
    step(x=np.zeros(3, np.float32))
    assert type(kept[0]["of"][0]) is type(kept[1]) is aicf.Array
    assert type(kept[2]["of"][0]) is np.ndarray
    for one in (kept[0]["of"][0], kept[1], kept[2]["of"][0]):
        assert one.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_arrays_for_jax(dtype, device):
    """Copies: what a step writes later does not change them."""
    jnp = pytest.importorskip("jax.numpy")
    if device == "cuda":
        try:
            pytest.importorskip("jax").devices("cuda")
        except RuntimeError:
            pytest.skip("JAX has no CUDA here")
    g = aicf.Graph("for_jax")
    w = g.state("w", (2,), dtype)
    g.output("y", w)
    if dtype == "float32":
        g.assign(w, w + 1.0)
    step = g.compile(device=device)
    step.replay()
    for one in (
        lambda: step.state["w"],
        lambda: step.outputs["y"],
        lambda: step.outputs["y"].copy(),
    ):
        made = jnp.asarray(one())
        assert made.dtype == dtype and made.shape == (2,)
        before = made.tolist()
        step.replay()
        assert made.tolist() == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_dtypes_equal_those_of_other_libraries(dtype, device):
    ml_dtypes, torch = pytest.importorskip("ml_dtypes"), pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    g = aicf.Graph("g")
    w = g.state("w", (2,), dtype)
    g.output("w", w)
    scalar = {"bool": np.bool_, "bfloat16": ml_dtypes.bfloat16}.get(dtype) or getattr(np, dtype)
    same = [dtype, scalar, np.dtype(scalar), getattr(torch, dtype), jnp.dtype(scalar)]
    same += [getattr(jnp, dtype if dtype != "bool" else "bool_")]
    same += [np.longlong] if dtype == "int64" else []
    same += [{"bool": bool, "int64": int}[dtype]] if dtype in ("bool", "int64") else []
    others = ["float16", np.float64, np.dtype("int32"), torch.int8, jnp.uint8, float, None, 1]
    others += [np.zeros(2), object(), np.floating]
    for value in (w, g.compile(device=device)()["w"]):
        for other in same:
            assert value.dtype == other and other == value.dtype and not value.dtype != other
            assert hash(value.dtype) == hash(dtype)
        for other in others:
            assert value.dtype != other and not value.dtype == other, other
