"""`x[...]` with arrays, lists and Values, as NumPy's and PyTorch's: value and gradients."""

import aicf
import numpy as np
import pytest

torch = pytest.importorskip("torch")

SHAPE = (4, 5, 6)
I = np.array([2, 0, -1, 2])  # noqa: E741
J = np.array([[0, 3], [-4, 1]])
WIDE = np.array([[True, False] * 3, [False] * 6, [True] * 6, [False, True] * 3])
LATER = np.arange(30).reshape(5, 6) % 4 == 0
# What stands in brackets; a Value stands where `V` wraps an array.
KEYS = {
    "list": lambda V: [0, 2],
    "list of one key": lambda V: [[0, -1], [2, 3]],
    "empty list": lambda V: [],
    "lists": lambda V: ([0, 1], [2, 3]),
    "line": lambda V: V(I),
    "square": lambda V: V(J),
    "rank 0": lambda V: V(np.array(-2)),
    "second axis": lambda V: (slice(None), V(I)),
    "last axis": lambda V: (..., V(I)),
    "between slices": lambda V: (slice(1, None), V(I), slice(None, None, -2)),
    "a new axis behind": lambda V: (V(I), None),
    "a new axis in front": lambda V: (None, V(I), slice(0, 2)),
    "pair": lambda V: (V(I), V(np.arange(4))),
    "pair of later axes": lambda V: (slice(None), V(I), V(np.arange(4))),
    "pair that broadcasts": lambda V: (V(I[:, None]), V(np.array([0, 1]))),
    "pair around a slice": lambda V: (V(I), slice(None), V(np.arange(4))),
    "pair around a new axis": lambda V: (slice(1, 3), V(I), None, V(np.arange(4))),
    "rank 0 pair around a slice": lambda V: (V(np.array(1)), slice(None), V(np.array(-1))),
    "rank 0 behind a line": lambda V: (V(I), slice(None), V(np.array(1))),
    "three": lambda V: (V(I), V(I), V(I)),
    "int behind": lambda V: (V(I), 1),
    "int in front": lambda V: (2, V(I)),
    "int between": lambda V: (slice(None), 1, V(I)),
    "array and Value": lambda V: (I, V(np.array([0, 1, 2, -1]))),
    "int32": lambda V: V(I.astype(np.int32)),
    "int8": lambda V: V(I.astype(np.int8)),
    "nothing": lambda V: V(np.zeros((0, 2), np.int64)),
    "mask": lambda V: np.array([True, False, True, True]),
    "list of bools": lambda V: (slice(None), [True, False, True, False, False]),
    "mask of two axes": lambda V: WIDE[:, :5],
    "mask of later axes": lambda V: (slice(None), LATER),
    "mask beside an array": lambda V: (np.array([True, False, True, False]), V(I[:2])),
    "mask of nothing": lambda V: np.zeros(4, bool),
    "NumPy ints": lambda V: (np.int64(1), np.int8(-1)),
}  # fmt: skip


def as_value(g, feed):
    def wrap(array):
        name = f"i{len(feed)}"
        feed[name] = array
        return g.input(name, array.shape, str(array.dtype))

    return wrap


def in_torch(key):
    keys = key if isinstance(key, tuple) else (key,)
    made = [
        torch.tensor(k) if isinstance(k, np.ndarray) else int(k) if isinstance(k, np.integer) else k
        for k in keys
    ]
    made = [k.long() if isinstance(k, torch.Tensor) and k.dtype != torch.bool else k for k in made]
    return tuple(
        torch.tensor(k, dtype=torch.long) if isinstance(k, list) and not k else k for k in made
    )


@pytest.mark.parametrize("given", ["constant", "value"])
@pytest.mark.parametrize("name", KEYS)
def test_value_and_gradients(name, given, device, make_rng):
    """Against NumPy's result and float64 autograd's gradient of a gradient."""
    rng = make_rng(0)
    x = rng.uniform(-2, 2, SHAPE)
    g = aicf.Graph("subscript")
    feed = {"x": x}
    v = g.input("x", SHAPE, "float64")
    y = v[KEYS[name](as_value(g, feed) if given == "value" else lambda array: array)]
    plain = KEYS[name](lambda array: array)
    g.output("y", y)
    slope = aicf.grad(aicf.sum(y * y * y), v)
    g.output("slope", slope)
    g.output("curve", aicf.grad(aicf.sum(slope * slope), v))
    got = g.compile(device=device)(**feed)
    key = np.zeros(0, np.int64) if isinstance(plain, list) and not plain else plain
    np.testing.assert_array_equal(got["y"].numpy(), x[key], strict=True)
    t = torch.tensor(x, requires_grad=True)
    steps = [k for k in (plain if isinstance(plain, tuple) else (plain,)) if isinstance(k, slice)]
    if any(k.step is not None and k.step < 0 for k in steps):
        return  # PyTorch has no negative steps
    out = t[in_torch(plain)]
    (first,) = torch.autograd.grad((out**3).sum(), t, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), t)
    np.testing.assert_allclose(got["slope"].numpy(), first.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(got["curve"].numpy(), second.numpy(), rtol=1e-12)


def test_a_step_refuses_values_out_of_range():
    """Also where several arrays name one place, which would be another row's."""
    g = aicf.Graph("out of range")
    x, i, j = g.input("x", (3, 4)), g.input("i", (2,), "int64"), g.input("j", (2,), "int32")
    g.output("one", x[i])
    g.output("two", x[i, j])
    step = g.compile(device="cpu")
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    for rows, columns in (([0, 3], [0, 0]), ([0, -4], [0, 0]), ([0, 0], [4, 0]), ([0, 1], [0, -5])):
        with pytest.raises(aicf.BadValue, match="takes indices"):
            step(x=data, i=np.array(rows), j=np.array(columns, np.int32))
    out = step(x=data, i=np.array([-1, 1]), j=np.array([0, -4], np.int32))
    np.testing.assert_array_equal(out["two"].numpy(), data[[-1, 1], [0, -4]])


def test_the_score_of_each_label(device, make_rng):
    """The usual `logits[arange(n), labels]`, in a batch and in a loop too."""
    scores = make_rng(0).uniform(-2, 2, (2, 4, 3)).astype(np.float32)
    labels = np.array([[0, 2, 1, 1], [2, 2, 0, 1]])
    g = aicf.Graph("labels")
    x, t = g.input("x", scores.shape), g.input("t", labels.shape, "int64")
    g.output("batch", aicf.vmap(lambda row, one: row[np.arange(4), one])(x, t))
    g.output("loop", aicf.scan(lambda c, r: (c, r[0][np.arange(4), r[1]]), x[0, 0], (x, t))[1])
    out = g.compile(device=device)(x=scores, t=labels)
    want = np.take_along_axis(scores, labels[..., None], 2)[..., 0]
    np.testing.assert_array_equal(out["batch"].numpy(), want)
    np.testing.assert_array_equal(out["loop"].numpy(), want)


REFUSED = {
    "x[[0, 4]]": r"index: 4 on axis 0 of .*; need \[-4, 4\)",
    "x[:, np.array([-6])]": r"index: -6 on axis 1 of .*; need \[-5, 5\)",
    "x[np.array([0.0, 1.0])]": "index: got array.* of dtype float64 .*; need ints or bools",
    "x[x]": "index: .* is float64; need ints or bools",
    "x[mask]": "index: the mask .* is a Value, .* on data; need a NumPy array, or aicf.where",
    "x[np.array([True, False])]": r"index: the mask is \[2\], .* from axis 0 on \[4\]; need equal",
    "x[[0, 1], [0, 1, 2]]": r"index: arrays of \[2\], \[3\] do not broadcast; need sizes equal",
    "x[True]": "index: got True for axis 0 .*; need ints",
    "x[1, :, [0, 2]]": "index: .* NumPy and PyTorch .*; need the ints first",
    "x[np.array(1), :, [0, 2]]": "index: .* NumPy and PyTorch .*; need the ints first",
    "x[[0], [0], [0], [0]]": "index: .*need at most 3 indices",
    "x['a']": "index: got 'a' for axis 0",
    "x[[0, 'a']]": "index: got .*; need ints or bools",
    "x[[[0, 1], [2]]]": "index: got .*; need ints or bools",
    "x[[0], 'a']": "index: got 'a' for axis 1",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text):
    g = aicf.Graph("refused")
    x = g.input("x", SHAPE, "float64")
    mask = x > 0
    before = g.to_json()
    with pytest.raises((aicf.GraphError, aicf.ShapeError, aicf.DTypeError), match=REFUSED[text]):
        eval(text, {"x": x, "mask": mask, "np": np})
    assert g.to_json() == before
