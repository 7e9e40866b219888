"""How a step is called and what it hands out, in the ways that people expect."""

import inspect

import aicf
import numpy as np
import pytest
from compare import assert_bits
from test_arguments import FUNCTIONS, Scene


def built(**options):
    g = aicf.Graph("calls")
    x, t = g.input("x", (2, 3)), g.input("t", (2,), "int64")
    loss = aicf.cross_entropy(g.dense("out", x, 4), t)
    g.minimize(loss, aicf.optim.SGD(lr=0.1))
    g.output("loss", loss)
    g.output("kept", loss, keep=3)
    return g.compile(device="cpu", **options)


X, T = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0, 3])


def test_inputs_by_position():
    """In the order in which the graph made them, alone or before names."""
    by_name, by_place = built(), built()
    for act in (
        lambda step, *a, **k: step(*a, **k),
        lambda step, *a, **k: step.run(*a, **k),
        lambda step, *a, **k: step.run_many(
            *(v[None] for v in a), **{n: v[None] for n, v in k.items()}
        ),
    ):
        act(by_name, x=X, t=T)
        act(by_place, X, T)
        act(by_name, x=X, t=T)
        act(by_place, X, t=T)
    with aicf.profiler():
        by_name(x=X, t=T)
        by_place(X, T)
        by_name.run(x=X, t=T)
        by_place.run(X, T)
    for name, array in by_name.state_dict().items():
        assert_bits(by_place.state_dict()[name], array, name)


def test_inputs_by_position_that_do_not_fit():
    step = built()
    with pytest.raises(TypeError, match="step: got 3 inputs by position, the graph has 2: x, t"):
        step(X, T, X)
    with pytest.raises(TypeError, match='step: input "x" stands at position 0 and is given by nam'):
        step(X, x=X)
    with pytest.raises(aicf.ShapeError, match=r'input "x" got i64\[2\]|input "x" got'):
        step(X[0], T)
    assert step.steps_run == 0


def test_cast_is_asked_for():
    step, casts = built(), built(cast=True)
    wide = X.astype(np.float64) / 3
    with pytest.raises(aicf.DTypeError, match=r"got f64\[2, 3\].*compile\(cast=True\)"):
        step(wide, T)
    step(wide.astype(np.float32), T)
    casts(wide, T.astype(np.int32))
    step(X, T)
    casts(X.astype(np.int64), T.astype(np.float64))
    for name, array in step.state_dict().items():
        assert_bits(casts.state_dict()[name], array, name)
    for bad, text in (([0.0, 1.5], "holds 1.5"), ([0, np.nan], "holds nan"), ([1e30, 0], "1e+30")):
        with pytest.raises(aicf.DTypeError) as caught:
            casts(X, np.array(bad))
        assert text in str(caught.value) and "need whole numbers" in str(caught.value)
    assert casts.steps_run == 2
    with pytest.raises(aicf.GraphError, match="compile: cast is 1; need a bool"):
        built(cast=1)


def test_cast_to_16_bits():
    g = aicf.Graph("g")
    for name in ("float16", "bfloat16"):
        g.output(name, g.input(f"x_{name}", (2,), name) * 2.0)
    step = g.compile(device="cpu", cast=True)
    out = step(np.array([0.5, 3.0]), np.array([0.5, 3.0], np.float32))
    assert [out[name].numpy().tolist() for name in out] == [[1, 6], [1, 6]]


def test_kept_outputs_say_how_to_take_one():
    """From the first step on, when there is one element too."""
    step = built()
    for count in (1, 2, 3):
        out = step(X, T)
        assert out["kept"].shape == (count,) and float(out["kept"][-1]) == float(out["loss"])
        for act in (float, int, bool, lambda a: a.item(), lambda a: f"{a[-1]:.3f}" and float(a)):
            with pytest.raises(aicf.ShapeError, match=r"keeps the last 3 steps.*newest is \[-1\]"):
                act(out["kept"])
    assert len([float(x) for x in out["kept"]]) == 3 and out["kept"].tolist()[-1] == out["loss"]


def test_slices_of_arrays():
    step = built()
    weight = step.params["out.W"]
    whole = weight.numpy()
    for key in (0, -1, slice(1, 3), (slice(None), 1), (..., None), [0, 2], whole > 0):
        np.testing.assert_array_equal(weight[key], whole[key])
    with pytest.raises(IndexError):
        weight[9]
    with pytest.raises(aicf.GraphError, match=r'need|step.params\["out.W"\] = array'):
        weight[0] = 1.0
    with pytest.raises(aicf.GraphError, match=r"change what numpy\(\) gives"):
        step(X, T)["loss"][()] = 1.0


def test_names_and_pictures_for_notebooks():
    step = built()
    out = step(X, T)
    assert step.params._ipython_key_completions_() == ["out.W", "out.b"]
    assert step.state._ipython_key_completions_() == ["opt.lr"]
    assert out._ipython_key_completions_() == ["loss", "kept"]
    assert repr(step.params) == "aicf.Leaves(out.W f32[4, 3], out.b f32[4])"
    assert repr(out) == "aicf.Outputs(loss f32[], kept f32[1])"
    assert repr(aicf.Graph("fresh")) == 'aicf.Graph("fresh", 0 nodes)'
    for shown in (step, step.params, step.state, out, out["loss"], step.plan):
        assert "<" in shown._repr_html_()


CELL = """
g = aicf.Graph("cell")
x = g.input("x", (2,))
g.output("y", x * 2.0)
step = g.compile(device="cpu")
"""


def test_a_cell_that_runs_again():
    """With its Graph it is as the first time; without, the error says what is wrong."""
    scope = {"aicf": aicf}
    for _ in range(3):
        exec(CELL, scope)
    scope["step"](X[0, :2])
    again = CELL.split("\n", 2)[2]
    with pytest.raises(aicf.GraphError, match='input "x": the name is taken.*or a new Graph where'):
        exec(again, scope)


NEAR = {
    "input": (lambda s: s(xx=X, t=T), 'no "xx" (is it "x"?)'),
    "param": (lambda s: s.params["out.w"], '(is it "out.W"?)'),
    "state": (lambda s: s.set("opt.lrr", 1.0), '(is it "opt.lr"?)'),
    "output": (lambda s: s.outputs["los"], '(is it "loss"?)'),
    "bind": (lambda s: s.bind(kpt=X), '"kpt"'),
    "given": (lambda s: built(params={"out.w": X}), '(is it "out.W"?)'),
    "device": (lambda s: built_on("gpu"), '(is it "cuda"?)'),
    "device's case": (lambda s: built_on("CPU"), '(is it "cpu"?)'),
    "pass": (lambda s: built(passes=("fold", "fues")), '(is it "fuse"?)'),
    "passes": (lambda s: built(passes="defualt"), '(is it "default"?)'),
    "math": (lambda s: built(math="fp23"), '(is it "fp32"?)'),
    "checks": (lambda s: built(checks="of"), '(is it "off"?)'),
    "dtype": (lambda s: aicf.Graph("g").input("x", (2,), "flaot32"), '(is it "float32"?)'),
    "argument": (lambda s: aicf.optim.Adam(learning_rate=1.0), '(is it "lr"?)'),
    "argument's slip": (lambda s: aicf.optim.Adam(betsa=(0.9, 0.99)), '(is it "betas"?)'),
}


def built_on(device):
    return aicf.Graph("g").compile(device=device)


@pytest.mark.parametrize("case", NEAR)
def test_near_words(case):
    act, text = NEAR[case]
    with pytest.raises((aicf.Error, TypeError)) as caught:
        act(built())
    assert text in str(caught.value)


def test_words_that_are_not_near_get_no_guess():
    with pytest.raises(aicf.GraphError) as caught:
        built()(nothing_like_it=X)
    assert "is it" not in str(caught.value)


@pytest.mark.parametrize("theirs, ours", [("dim", "axis"), ("keepdim", "keepdims")])
def test_other_libraries_words_in_every_function(theirs, ours):
    scene, asked = Scene(), 0
    for name, made in FUNCTIONS.items():
        fn = made(scene)
        parameters = inspect.signature(fn).parameters
        if ours not in parameters or theirs in parameters:
            continue
        given = {k: v for k, v in scene.arguments(name, fn).items() if k != ours}
        with pytest.raises(TypeError) as caught:
            fn(**given, **{theirs: 0})
        assert f'there is no argument {theirs!r} (is it "{ours}"?)' in str(caught.value), name
        asked += 1
    assert asked > (30 if theirs == "dim" else 10)
    for method in ("sum", "softmax", "argmax", "take", "squeeze", "cumsum"):
        with pytest.raises(TypeError, match=r'\(is it "axis"\?\)'):
            getattr(scene.named["x"], method)(dim=0)


def test_errors_of_building_name_the_line():
    """The user's, however deep the function that raises was called, and once."""
    g = aicf.Graph("g")
    x, flags = g.input("x", (2, 3)), g.input("flags", (2, 3), "bool")
    line = inspect.currentframe().f_lineno
    acts = [
        lambda: x @ x,
        lambda: x + aicf.Graph("other").input("y", (2, 3)),
        lambda: aicf.relu(3),
        lambda: aicf.sum(x, axis=7),
        lambda: aicf.layer_norm(x, 5),
        lambda: x & 1.5,
        lambda: aicf.scaled_dot_product_attention(x, x, flags),
        lambda: g.input("x", (2,)),
        lambda: g.output("y", 3),
        lambda: g.minimize(x, aicf.optim.SGD(lr=0.1)),
        lambda: g.assign(x, x),
        lambda: aicf.scan(lambda c, row: (c @ c, None), x, x),
        lambda: x.reshape((7,)),
        lambda: aicf.cross_entropy(x, x[0]),
    ]
    for i, act in enumerate(acts):
        with pytest.raises(aicf.Error) as caught:
            act()
        place = f"test_calls.py:{line + 2 + i}"
        assert str(caught.value).count(f"({place})") == 1, str(caught.value)
        assert caught.value.source == place


def test_print_shows_contents():
    g = aicf.Graph("shown")
    x = g.input("x", ())
    g.output("y", x * 2)
    g.output("z", aicf.broadcast_to(x, (3,)))
    out = g.compile(device="cpu")(x=1.5)
    assert (str(out["y"]), str(out["z"]), f"{out['y']}") == ("3.0", "[1.5 1.5 1.5]", "3.0")
    assert repr(out["z"]) == "aicf.Array(f32[3], cpu)"
