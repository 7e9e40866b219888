"""Calls as people who know NumPy and PyTorch write them: what is taken, and what a refusal says."""

import aicf
import numpy as np
import pytest
from aicf import nn


def numbers(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


# ---- NumPy arrays where constants are meant


@pytest.mark.parametrize("kind", ["float32", "float64", "bool"])
def test_masks_of_attention_are_numpy_arrays(kind):
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    mask = mask != 0 if kind == "bool" else mask.astype(kind)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, seed=1)
    encoder = nn.TransformerEncoder(layer, 2)
    given = aicf.function(lambda x: encoder(x, mask=mask))
    causal = aicf.function(lambda x: encoder(x, is_causal=True))
    x = numbers(2, 5, 4)
    assert given(x).numpy().tobytes() == causal(x).numpy().tobytes()


def test_padding_masks_and_those_of_the_function_are_numpy_arrays():
    hidden = np.array([[False, False, True], [False, True, True]])
    attention = nn.MultiheadAttention(4, 2, batch_first=True, seed=1)
    x = numbers(2, 3, 4)
    got = aicf.function(lambda s: attention(s, s, s, key_padding_mask=hidden)[1])(x).numpy()
    assert (got.swapaxes(0, 1)[:, hidden] == 0).all() and (got[:, :, 0] > 0).all()
    for key in ("mask", "attn_mask"):

        def attend(q, key=key):
            seen = {key: ~hidden[:, None, :]}
            return aicf.scaled_dot_product_attention(q, q, q, **seen)

        def by_value(q):
            mask = q.graph.constant(~hidden[:, None, :])
            return aicf.scaled_dot_product_attention(q, q, q, mask)

        got, want = (aicf.function(fn)(x).numpy().tobytes() for fn in (attend, by_value))
        assert got == want


I = np.array([2, 0, 1])  # noqa: E741
TAKEN = {
    "take": (lambda x: aicf.take(x, I), lambda x: x[I]),
    "take_method": (lambda x: x.take(indices=I, axis=1), lambda x: x[:, I]),
    "take_along_axis": (
        lambda x: aicf.take_along_axis(x, I[:, None], 1),
        lambda x: np.take_along_axis(x, I[:, None], 1),
    ),
    "gather": (
        lambda x: aicf.gather(x, 1, I[:, None]),
        lambda x: np.take_along_axis(x, I[:, None], 1),
    ),
    "index_select": (lambda x: aicf.index_select(x, 1, I.astype(np.int32)), lambda x: x[:, I]),
    "index_add": (lambda x: aicf.index_add(x, 0, I, x), lambda x: x + x[[1, 2, 0]]),
    "scatter": (lambda x: aicf.scatter(x, 0, I[None], x), lambda x: _scattered(x)),
    "index_fill": (lambda x: aicf.index_fill(x, 0, I[:1], 7.0), lambda x: _filled(x)),
    "embedding": (lambda x: aicf.embedding(I, x), lambda x: x[I]),
    "embedding_bag": (
        lambda x: aicf.embedding_bag(I, x, np.array([0, 2]), mode="sum"),
        lambda x: np.stack([x[2] + x[0], x[1]]),
    ),
}


def _scattered(x):
    y = x.copy()
    for column, row in enumerate(I):
        y[row, column] = x[0, column]
    return y


def _filled(x):
    y = x.copy()
    y[2] = 7.0
    return y


@pytest.mark.parametrize("name", TAKEN)
def test_indices_are_numpy_arrays(name):
    ours, numpys = TAKEN[name]
    x = numbers(3, 3)
    np.testing.assert_array_equal(aicf.function(ours)(x).numpy(), numpys(x))


def test_a_module_called_with_arrays_alone_is_in_the_graph_that_is_built():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pos = nn.Embedding(8, 4)

        def forward(self, x):
            return x + self.pos(np.arange(x.shape[1]))

    net, x = Net(), numbers(2, 5, 4)
    weight = net.pos.state_dict()["weight"]
    np.testing.assert_array_equal(aicf.function(net)(x).numpy(), x + weight[:5])
    places = aicf.function(lambda: net.pos(np.arange(3)))
    np.testing.assert_array_equal(places().numpy(), weight[:3])


def test_arrays_alone_outside_of_a_graph_are_refused_by_name():
    need = "inside of an aicf.function"
    with pytest.raises(aicf.GraphError, match=f"Embedding: got no Value; need a call {need}"):
        nn.Embedding(8, 4)(np.arange(3))
    with pytest.raises(aicf.GraphError, match=f"Linear: got no Value; need a call {need}, or with"):
        nn.Linear(8, 4)(numbers(2, 8))
    with pytest.raises(aicf.GraphError, match=f"unravel_index: .* no Value; need a .*{need}"):
        aicf.unravel_index(np.arange(3), (2, 5))


def test_a_refused_call_leaves_no_constant_behind():
    g = aicf.Graph()
    x = g.input("x", (3, 3))
    before = g.to_json()
    with pytest.raises(aicf.ShapeError):
        aicf.gather(x, 1, np.arange(3))
    assert g.to_json() == before


# ---- ints one by one, or a tuple

X = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "one, other",
    [
        (lambda x: x.reshape(-1, 4), lambda x: x.reshape((-1, 4))),
        (lambda x: x.reshape(-1), lambda x: x.reshape((-1,))),
        (lambda x: aicf.reshape(x, 4, np.int64(6)), lambda x: aicf.reshape(x, shape=[4, 6])),
        (lambda x: x.permute(0, 2, 1), lambda x: aicf.permute(x, (0, 2, 1))),
        (lambda x: x.permute(axes=(-1, 0, 1)), lambda x: x.permute(2, 0, 1)),
        (lambda x: x.transpose(0, 1), lambda x: aicf.transpose(x, 0, 1)),
        (lambda x: x.broadcast_to(2, 2, 3, 4), lambda x: x.broadcast_to((2, 2, 3, 4))),
    ],
)
def test_shapes_and_axes_are_ints_or_a_tuple(one, other):
    one, other = aicf.function(one)(X).numpy(), aicf.function(other)(X).numpy()
    np.testing.assert_array_equal(one, other, strict=True)


def test_too_many_arguments_say_what_is_needed():
    x = aicf.Graph().input("x", (2, 3))
    with pytest.raises(TypeError, match=r"permute: got 3 arguments by place.*one tuple for axes"):
        x.permute((0, 1), 1)
    with pytest.raises(TypeError, match=r"squeeze: got 3 arguments by place; need x, axis"):
        x.squeeze(0, 1)
    with pytest.raises(TypeError, match=r"relu: got 2 arguments by place; need x \(test_fam"):
        x.relu(True)
    with pytest.raises(aicf.ShapeError, match="permute"):
        x.permute(0)


# ---- what calls of functions and optimizers are refused with


def test_a_wrong_keyword_of_a_function_names_the_right_one():
    @aicf.function
    def train(tokens, labels):
        return tokens + labels

    x = numbers(3)
    match = r'train: there is no argument "token" \(is it "tokens"\?\); need tokens, labels \(test_'
    with pytest.raises(TypeError, match=match):
        train(token=x, labels=x)
    match = r"train: missing a required argument: 'labels'; need tokens, labels \(test_"
    with pytest.raises(TypeError, match=match):
        train(x)
    with pytest.raises(TypeError, match="train: too many positional arguments; need tokens"):
        train(x, x, x)
    np.testing.assert_array_equal(train(labels=x, tokens=x).numpy(), x + x)


def test_transposes_are_those_of_others():
    """T means all axes, the last two, or nothing, as one looks: only of rank 2 are they one."""
    x = numbers(2, 3, 4)
    np.testing.assert_array_equal(aicf.function(lambda x: x.mT)(x), x.transpose(0, 2, 1))
    np.testing.assert_array_equal(aicf.function(lambda x: x.T)(x[0]), x[0].T)
    np.testing.assert_array_equal(aicf.function(lambda x: x + 0.0)(x).T, x.T)
    for other in (x, x[0, 0]):
        with pytest.raises(aicf.ShapeError, match=r"T: x is .*; need rank 2 \(x.mT"):
            aicf.function(lambda x: x.T)(other)


def test_float64_arguments_beside_float32_are_told_the_cast():
    layer, wide = nn.Linear(3, 3), np.ones((2, 3))
    match = r'float64 comes of the arguments \(x\), which dtypes={"float64": "float32"} of the'
    with pytest.raises(aicf.DTypeError, match=match) as caught:
        aicf.function(lambda x: layer(x))(wide)
    assert "need equal dtypes" in str(caught.value)
    assert "is float32" not in str(caught.value)
    cast = aicf.function(lambda x: layer(x), dtypes={"float64": "float32"})
    assert cast(wide).shape == (2, 3)
    scaled = aicf.function(lambda x, by: x * by)
    with pytest.raises(aicf.DTypeError, match=r"a float \(by\) is float32, np.float64\(...\) is n"):
        scaled(wide, 2.5)
    np.testing.assert_array_equal(scaled(wide, np.float64(2.5)), 2.5 * wide)
    with pytest.raises(aicf.DTypeError) as caught:
        aicf.function(lambda x: layer(aicf.cast(x, "float64")))(numbers(2, 3))
    assert "arguments" not in str(caught.value)


@pytest.mark.parametrize("fn", [lambda x: x * 2.0, lambda x: x.sum(), lambda x: aicf.relu(x)])
def test_a_list_that_is_used_as_one_array_is_told_so(fn):
    match = r"lists \(x\) are nested arguments: give np.asarray\(...\)"
    with pytest.raises((AttributeError, TypeError, aicf.GraphError), match=match):
        aicf.function(fn)([1.0, 2.0])


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_optimizers_say_where_params_go(kind):
    optimizer, params = getattr(aicf.optim, kind), nn.Linear(2, 2).parameters
    match = rf"{kind}: got params; .* params go to minimize: aicf.minimize\(loss, {kind}\(lr="
    for call in (
        lambda: optimizer(params(), lr=0.1),
        lambda: optimizer(list(params())),
        lambda: optimizer(params=params()),
    ):
        with pytest.raises(aicf.GraphError, match=match):
            call()
    assert optimizer(0.5).lr == 0.5
    g = aicf.Graph()
    assert optimizer(g.input("lr", ())).lr.name == "lr"


# ---- names of other libraries


@pytest.mark.parametrize(
    "name, said",
    {
        "cat": r' \(is it "concat"\?\)$',
        "arange": "; a NumPy array is a constant",
        "tensor": "; a NumPy array is a constant",
        "randn": "Graph.random_normal$",
        "float": r' \(is it "cast"\?\)$',
        "jit": r' \(is it "function"\?\)$',
        "compile": r' \(is it "function"\?\)$',
        "no_grad": "; it is not needed",
        "Linear": "; it is aicf.nn.Linear$",
        "Adam": "; it is aicf.optim.Adam$",
        "size": "; it is aicf.Value.shape$",
        "crossentropy": r' \(is it "cross_entropy"\?\)$',
        "chunk": r' \(is it "split"\?\)$',
        "unique": "; its result's size would depend on data",
        "addmm": "; it is a @ b \\+ c$",
        "repeat_interleave": r' \(is it "repeat"\?\)$',
        "qqqqq": "$",
    }.items(),
)
def test_names_of_other_libraries_at_the_package(name, said):
    with pytest.raises(AttributeError, match=f"^aicf: there is no '{name}'.*{said}"):
        getattr(aicf, name)


@pytest.mark.parametrize(
    "name, said",
    {
        "view": r' \(is it "reshape"\?\)$',
        "float": r' \(is it "cast"\?\)$',
        "masked_fill": "; it is aicf.masked_fill$",
        "cat": "; it is aicf.concat$",
        "item": "; it has no data while the graph is built",
        "cuda": "; the device is said where it is compiled",
        "backward": "make gradients$",
        "clone": "; it is not needed",
        "smu": r' \(is it "sum"\?\)$',
    }.items(),
)
def test_names_of_other_libraries_at_a_value(name, said):
    x = aicf.Graph().input("x", (2,))
    with pytest.raises(AttributeError, match=f"^Value: there is no '{name}'.*{said}"):
        getattr(x, name)


def test_what_stands_for_a_name_of_another_library_exists():
    from aicf import names

    for name, said in names._MEANT.items():
        assert not callable(getattr(aicf, name, None)) or name in ("grad", "normal"), name
        if said.isidentifier():
            assert any(hasattr(one, said) for one in (aicf, aicf.Value, aicf.optim)), said


# ---- patterns of optimizers


def test_update_takes_patterns_of_optimizers_as_minimize_does():
    def step_of(by_update):
        g = aicf.Graph()
        x = g.input("x", (2, 3))
        loss = aicf.sum(g.dense("b", aicf.tanh(g.dense("a", x, 3)), 1) ** 2)
        groups = {"b.*": aicf.optim.SGD(lr=0.5), "a.W": aicf.optim.Adam(), "*": None}
        if by_update:
            g.update(g.backward(loss), groups, clip_norm=0.1)
        else:
            g.minimize(loss, groups, clip_norm=0.1)
        step = g.compile(device="cpu", seed=3)
        for _ in range(3):
            step(x=numbers(2, 3))
        return step

    update, minimize = step_of(True), step_of(False)
    assert update.state_dict().keys() == minimize.state_dict().keys()
    for name, array in minimize.state_dict().items():
        assert update.state_dict()[name].tobytes() == array.tobytes(), name


def test_patterns_of_update_that_fit_nothing_are_refused():
    g = aicf.Graph()
    w = g.param("w", (2,))
    grads, sgd = g.backward(aicf.sum(w * w)), aicf.optim.SGD()
    before = g.to_json()
    for groups, match in (
        ({"v": sgd, "*": sgd}, 'v.* matches none.*"w"'),
        ({"w": 3}, "update: optimizer is 3; need one of aicf.optim"),
        ({"w": None}, "update: no gradient is of a group"),
        ({}, 'update: "w" matches none'),
    ):
        with pytest.raises(aicf.GraphError, match=match):
            g.update(grads, groups)
        assert g.to_json() == before


# ---- names and numbers of what is kept


def trained():
    @aicf.function
    def train(x):
        w = x.graph.param("block.weight", (3,))
        loss = aicf.sum(w * x)
        aicf.minimize(loss, aicf.optim.SGD(lr=0.1, momentum=0.9))
        return loss

    return train, train(numbers(3))


def test_near_names_of_what_is_loaded_are_told(tmp_path):
    train, _ = trained()
    kept = train.state_dict()
    wrong = {name.replace("weight", "weights"): array for name, array in kept.items()}
    step = train.cache[0].step
    for one in (train, step):
        with pytest.raises(aicf.GraphError, match=r'"block.weight" \(is it "block.weights"\?\)'):
            one.load_state_dict(wrong)
        with pytest.raises(aicf.GraphError, match=r'fits \(is it "block.weight"\?\); need some of'):
            one.load_state_dict(kept, only="blok.weight")
        one.save(tmp_path / "kept.safetensors")
        with pytest.raises(aicf.GraphError, match=r'fits \(is it "opt.lr"\?\); need some of'):
            one.load(tmp_path / "kept.safetensors", only="lr")


def test_set_names_numbers_alone():
    train, _ = trained()
    for one in (train, train.cache[0].step):
        match = r'set: there is no "lr" \(is it "opt.lr"\?\); need one of \["opt.lr", "op'
        with pytest.raises(aicf.GraphError, match=match):
            one.set("lr", 0.2)
        one.set("opt.lr", 0.2)


def test_metadata_takes_arrays_of_rank_0(tmp_path):
    train, loss = trained()
    path = tmp_path / "kept.safetensors"
    said = {"loss": loss, "best": np.float32(0.1), "epoch": np.int64(3), "all": [loss, {"a": loss}]}
    train.save(path, metadata=said)
    number = loss.item()
    want = {
        "loss": number,
        "best": np.float32(0.1).item(),
        "epoch": 3,
        "all": [number, {"a": number}],
    }
    assert aicf.Checkpoint(path).metadata == want
    for wrong in (numbers(2), np.float32(np.nan), np.zeros(1)):
        with pytest.raises(aicf.GraphError, match="need what JSON holds"):
            train.save(path, metadata={"loss": wrong})


# ---- errors name the function that was called

NAMED = {
    "aicf.argmin(x[:0], 0)": "argmin: argmax: x is",
    "aicf.softmin(x, 5)": "softmin: softmax: axis 5 is out of range",
    "aicf.max_pool1d(aicf.cast(x, 'int64'), 2)": "max_pool1d: max_pool2d: x is .*; need a float",
    "aicf.conv1d(x[None], aicf.reshape(x, (2, 2, 6)), None)": "conv1d: ",
    "aicf.grad(x, x)": "grad: backward: loss is",
    "aicf.minimize(x, aicf.optim.SGD(0.1))": "minimize: ",
    "aicf.cast(x, 'int64') + 1.5": r"add: 1\.5\d* is not a whole number; the other .* is int64",
    "(x > 0) * 2.0": "mul: 2 does not fit bool",
    "aicf.cast(x, 'uint8') - (-1)": "sub: -1 does not fit uint8",
    "x % (x > 0)": "remainder: fmod: b is .*; need a number dtype",
    "aicf.sum(x[0, 0], -1)": "sum: axis -1 is out of range: .*; need rank >= 1: it has no",
    "aicf.cumprod(x[0, 0], 0)": "cumprod: axis 0 of .*; need rank >= 1: it has no axes",
    "x.reshape(-1, -1)": r"reshape: shape is \[-1, -1\], .*; need one -1 at most",
    "aicf.cross_entropy(x, x[:, 0] > 0, reduction='none')": "cross_entropy: .*labels",
    "(x > 0) and (x < 1)": "bool of value .*, or & and | to combine",
    "aicf.full_like(aicf.cast(x, 'int64'), 1.5)": r"full_like: 1\.5\d* is not a whole number",
}


@pytest.mark.parametrize("text", NAMED)
def test_errors_name_the_function_that_was_called(text):
    g = aicf.Graph()
    x = g.input("x", (4, 6))
    with pytest.raises(aicf.Error, match=f"^{NAMED[text]}"):
        eval(text, {"aicf": aicf, "x": x})


def test_errors_of_ones_own_functions_are_told_as_they_are():
    """Where a function runs the user's, the error is that of the line inside."""
    x = aicf.Graph().input("x", (3, 2))
    with pytest.raises(aicf.DTypeError, match="^add: dtypes differ"):
        aicf.scan(lambda c, row: (c + aicf.cast(row, "float64"), None), x[0], x)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_bits_of_whole_numbers_and_a_bool(dtype):
    """As NumPy's, where True is 1 beside a whole number."""
    x = np.array([0, 1, 2, 3]).astype(dtype)
    for fn in (lambda a: a & True, lambda a: a | True, lambda a: True ^ a, lambda a: False | a):
        got = aicf.function(fn)(x).numpy()
        np.testing.assert_array_equal(got, fn(x), strict=True)


def test_flatten_counts_axes_from_the_end():
    x = numbers(2, 3, 4)
    assert aicf.function(lambda x: aicf.flatten(x, -2))(x).shape == (2, 12)
    with pytest.raises(aicf.ShapeError, match=r"flatten: start_axis -4 of .*; need \[-3, 3\]"):
        aicf.function(lambda x: aicf.flatten(x, -4))(x)


# ---- numbers and arrays beside Values

PAIRS = {
    "fmax": np.fmax, "fmin": np.fmin, "logaddexp": np.logaddexp, "logaddexp2": np.logaddexp2,
    "copysign": np.copysign, "isclose": np.isclose, "hypot": np.hypot, "maximum": np.maximum,
    "xlogy": lambda x, y: x * np.log(y), "xlog1py": lambda x, y: x * np.log1p(y),
    "lerp": lambda a, b: a + 0.25 * (b - a),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two_take_numbers_and_arrays(name):
    x = np.abs(np.random.default_rng(3).standard_normal((3, 4))) + 0.1
    more = (0.25,) if name == "lerp" else ()
    fn, want = getattr(aicf, name), PAIRS[name]
    for other in (0.5, 2, np.float64(0.75), x[1]):
        for at, swapped in ((0, False), (1, True)):
            given = (lambda x, o=other: (o, x)) if at else (lambda x, o=other: (x, o))
            got = aicf.function(lambda x, given=given: fn(*given(x), *more))(x).numpy()
            np.testing.assert_allclose(got, want(*given(x)), rtol=1e-14, err_msg=f"{swapped}")


@pytest.mark.parametrize("kinds", ["values", "array and number", "number and value", "value alone"])
def test_limits_of_clip_are_values_and_arrays(kinds):
    """With PyTorch's gradients, also where both limits meet and where they cross."""
    torch = pytest.importorskip("torch")
    x = np.array([[-2.0, -1, 0, 1, 2, np.nan, 0.5], [0, 1, 2, 3, -3, 1, np.inf]])
    low = np.array([-1.0, -1, 0.5, 1, 3, 0, 0.5])
    high = np.array([1.0, -1, 1, 0, 2, 0, 0.5])
    limits = {
        "values": lambda low, high: (low, high), "array and number": lambda low, high: (LOW, 1.0),
        "number and value": lambda low, high: (-0.5, high),
        "value alone": lambda low, high: (None, high),
    }[kinds]  # fmt: skip
    LOW = low  # noqa: N806
    g = aicf.Graph()
    values = [g.input(n, a.shape, "float64") for n, a in (("x", x), ("low", low), ("high", high))]
    y = aicf.clip(values[0], *limits(*values[1:]))
    g.output("y", y)
    factor = np.arange(1.0, 15).reshape(x.shape)
    for i, slope in enumerate(aicf.grad(aicf.sum(y * factor), values)):
        g.output(f"d{i}", slope)
    out = g.compile(device="cpu")(x=x, low=low, high=high)
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, low, high)]
    a, b = (torch.tensor(v) if isinstance(v, np.ndarray) else v for v in limits(*tensors[1:]))
    if isinstance(b, float):
        b = torch.tensor(b, dtype=torch.float64)
    if isinstance(a, float):
        a = torch.tensor(a, dtype=torch.float64)
    want = torch.clamp(tensors[0], a, b)
    np.testing.assert_array_equal(out["y"].numpy(), want.detach().numpy())
    slopes = torch.autograd.grad((want * torch.tensor(factor)).nansum(), tensors, allow_unused=True)
    for i, slope in enumerate(slopes):
        slope = torch.zeros_like(tensors[i]) if slope is None else slope
        kept = ~np.isnan(x) if i == 0 else slice(None)
        np.testing.assert_array_equal(out[f"d{i}"].numpy()[kept], slope.numpy()[kept])


def test_masks_of_where_and_masked_fill_are_numpy_arrays():
    x, mask = numbers(3, 4), np.tri(3, 4, dtype=bool)
    got = aicf.function(lambda x: (aicf.where(mask, x, -1.0), aicf.masked_fill(x, mask, 7)))(x)
    np.testing.assert_array_equal(got[0].numpy(), np.where(mask, x, -1))
    np.testing.assert_array_equal(got[1].numpy(), np.where(mask, 7, x))
    whole = aicf.function(lambda x: aicf.full_like(x > 0.0, True))(x).numpy()
    assert whole.dtype == bool and whole.all()


def test_logsumexp_of_no_elements_is_minus_infinity():
    x = np.zeros((2, 0, 3), np.float32)
    made = aicf.function(lambda x: (aicf.logsumexp(x, 1), aicf.logsumexp(x), aicf.logsumexp(x, 0)))
    one, all_, none = made(x)
    assert (one.numpy() == -np.inf).all() and one.shape == (2, 3)
    assert all_.numpy() == -np.inf and none.shape == (0, 3)


def test_letters_of_einsum_broadcast_axes_of_one_element():
    x, y = numbers(3, 4), numbers(1, 4)
    for equation in ("ij,ij->ij", "ij,ij->i", "ij,ij->j", "ij,ij->", "ij,kj->ik"):
        got = aicf.function(lambda x, y, e=equation: aicf.einsum(e, x, y))(x, y).numpy()
        np.testing.assert_allclose(got, np.einsum(equation, x, y), rtol=1e-5, atol=1e-6)


WHAT_WOULD_BE_RIGHT = {
    "aicf.einsum('ij,jk', x)": "2 operands, 1 are given; need one for each part between commas",
    "aicf.cross_entropy(x, x, ignore_index=0)": "ignore_index is 0, .*; need classes",
    "nn.Sequential(nn.ReLU())[3]": r"index 3 of 1 modules; need \[-1, 1\)",
    "x + aicf.Graph().input('y', (4, 6))": "two graphs never mix: need one graph's",
    "aicf.gradient(x, [[1.0, 2.0]], 0)": "need",
    "g.minimize(aicf.sum(x * w), sgd, nn.Linear(2, 2))": "has none of; need params of modules",
    "g.compile(device='cpu', params={'v': 1})": "unknown .*; need names of its params and states",
    "[g.minimize(aicf.sum(x * w), sgd) for _ in 'ab']": "assigned once: need one minimize of the",
    "aicf.load(torch_file, nn.Linear(2, 2))": "a zip or a pickle, .*; need a safetensors file",
    "aicf.load(text_file, nn.Linear(2, 2))": "header of .* bytes .*; need a safetensors file",
    "aicf.load(short_file, nn.Linear(2, 2))": "3 bytes; need a safetensors file",
    "g.random_truncated_normal((2,), 0.0, 1.0, 60.0, 70.0)": "between; need one of them nearer",
}


@pytest.mark.parametrize("text", WHAT_WOULD_BE_RIGHT)
def test_errors_say_what_would_be_right(text, tmp_path):
    files = {"torch_file": b"PK\x03\x04" + bytes(40), "text_file": b"weights " * 9}
    files["short_file"] = b"abc"
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    g = aicf.Graph()
    scope = {"aicf": aicf, "nn": nn, "g": g, "sgd": aicf.optim.SGD(0.1)}
    scope |= {"x": g.input("x", (4, 6)), "w": g.param("w", (6,))}
    scope |= {name: tmp_path / name for name in files}
    with pytest.raises((aicf.Error, IndexError), match=WHAT_WOULD_BE_RIGHT[text]):
        eval(text, scope, scope)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda x: aicf.var(x, unbiased=False), "'unbiased' .is it \"correction\""),
        (lambda x: aicf.tril(x, diagonal=1), "'diagonal' .is it \"k\""),
        (lambda x: aicf.scaled_dot_product_attention(query=x, key=x, value=x), 'is it "q"'),
        (lambda x: aicf.cross_entropy(x, target=x), "'target' .is it \"labels\""),
        (lambda x: aicf.mse_loss(input=x, t=x), "'input' .is it \"y\""),
        (lambda x: aicf.vector_norm(x, p=1), "'p' .is it \"ord\""),
        (lambda x: aicf.hardtanh(x, min_val=0.0), "'min_val' .is it \"min\""),
    ],
)
def test_arguments_of_pytorch_are_told_by_their_names_here(call, said):
    with pytest.raises(TypeError, match=said):
        call(aicf.Graph().input("x", (2, 2)))
