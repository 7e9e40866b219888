"""Every public function with every kind of wrong argument: a typed error or a result, never another
exception, and a call that raises leaves its graph as it was."""

import inspect
import math
import re

import aicf
import numpy as np
import pytest

HUGE = 2**40
WRONG = [
    None,
    True,
    "a",
    "\ud800",  # no UTF-8 can hold it
    b"a",
    1.5,
    -1,
    0,
    HUGE,
    2**70,
    10**400,
    1j,
    math.nan,
    math.inf,
    [],
    {},
    [None],
    (1, "a"),
    (2**70,),
    object(),
    np.array([1, 2]),
    np.float32(1.5),
    np.zeros((2, 0), np.float32),
]


class Scene:
    """A graph with a value of each kind, a Step, and an argument that fits each parameter."""

    def __init__(self):
        g = self.g = aicf.Graph("scene")
        x = g.input("x", (4, 3))
        w = g.param("w", (3, 3))
        image, kernel = g.input("image", (1, 2, 5, 5)), g.param("kernel", (2, 2, 3, 3))
        channels = [g.state(f"c{i}", (2,)) for i in range(2)]
        labels, flags = g.input("labels", (4,), "int64"), g.input("flags", (4, 3), "bool")
        loss = aicf.mse_loss(x @ w, x)
        self.odd = [flags, g.input("empty", (0, 3)), g.step_count(), g.input("number", ())]
        self.alien = aicf.Graph("alien").input("x", (4, 3))
        self.named = {
            "a": x, "b": x, "x": x, "y": x, "t": x, "q": x, "k": x, "v": x, "logits": x,
            "log_probabilities": x, "condition": flags, "labels": labels, "indices": labels,
            "W": w, "weight": w, "loss": loss, "target": w, "source": w, "value": x, "xs": [x, x],
            "shape": (4, 3), "axes": (1, 0), "axis": 0, "start": (0, 0), "stop": (2, 2),
            "sections": 1, "widths": [(0, 0), (1, 1)], "dtype": "float32", "normalized_shape": (3,),
            "kernel_size": 3, "running_mean": channels[0], "running_var": channels[1],
            "out": 2, "optimizer": aicf.optim.SGD(), "grads": {w: w}, "max_norm": 1.0,
            "step": g.step_count(), "peak": 1.0, "warmup": 2, "total": 5, "lr": 0.1,
            "step_size": 2, "keep": 1, "name": "fresh", "fn": lambda g, x: {"y": x},
        }  # fmt: skip
        self.own = {
            "logical_and.a": flags, "logical_and.b": flags, "logical_or.a": flags,
            "logical_or.b": flags, "logical_xor.a": flags, "logical_xor.b": flags,
            "logical_not.x": flags, "squeeze.x": g.input("one", (1, 3)), "linear.x": x,
            "conv2d.x": image, "conv2d.weight": kernel, "max_pool2d.x": image,
            "avg_pool2d.x": image, "batch_norm.x": image, "batch_norm.weight": channels[0],
            "layer_norm.weight": g.param("scale", (3,)), "constant.value": 1.0,
            "rms_norm.weight": g.param("scale2", (3,)), "Graph.constant.value": 1.0,
            "init.constant.value": 1.0, "Graph.from_json.text": g.to_json(),
        }  # fmt: skip

    def arguments(self, name, fn):
        """Arguments that fit, for the parameters without a default value."""
        given = {}
        for key, parameter in inspect.signature(fn).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            own = [f"{name}.{key}", f"{name.rpartition('.')[2]}.{key}"]
            known = [self.own[k] for k in own if k in self.own] or [self.named.get(key)]
            given[key] = known[0] if parameter.default is parameter.empty else parameter.default
        return given


def functions():
    for name in aicf.__all__:
        if inspect.isroutine(getattr(aicf, name)):
            yield name, lambda scene, name=name: getattr(aicf, name)
    for module in (aicf.init, aicf.optim):
        for name, item in vars(module).items():
            if getattr(item, "__module__", "") == module.__name__ and not name.startswith("_"):
                short = module.__name__.partition(".")[2]
                yield f"{short}.{name}", lambda scene, item=item: item
    yield "Graph", lambda scene: aicf.Graph
    for name, item in vars(aicf.Graph).items():
        if not name.startswith("_") and inspect.isroutine(item):
            yield f"Graph.{name}", lambda scene, name=name: getattr(scene.g, name)


FUNCTIONS = dict(functions())


def call(fn, given):
    """Positional-only parameters by position, all others by name."""
    kinds = inspect.signature(fn).parameters
    by_place = [value for key, value in given.items() if kinds[key].kind == 0]
    return fn(*by_place, **{k: v for k, v in given.items() if kinds[k].kind != 0})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_arguments(name):
    scene = Scene()
    fn = FUNCTIONS[name](scene)
    fitting = scene.arguments(name, fn)
    raw = []
    for key in fitting:
        for wrong in [*WRONG, scene.alien, [scene.alien], *scene.odd]:
            if key in ("text", "path") and isinstance(wrong, (str, bytes)):
                continue
            before = scene.g.to_json()
            try:
                call(fn, {**fitting, key: wrong})
            except aicf.Error:
                if scene.g.to_json() != before:
                    raw.append(f"{key}={wrong!r}: the graph changed")
            except Exception as error:
                raw.append(f"{key}={wrong!r}: {type(error).__name__}: {error}")
            scene = Scene() if scene.g.to_json() != before else scene
            fn, fitting = FUNCTIONS[name](scene), scene.arguments(name, fn)
    assert not raw, "\n".join(raw)


def test_an_argument_that_there_is_not():
    """The error of Python's own kind names those that there are."""
    g = aicf.Graph("names")
    x = g.input("x", (4, 3))
    for call, text in (
        (
            lambda: aicf.sum(x, dim=0),
            "sum: there is no argument 'dim' (is it \"axis\"?); need x, axis",
        ),
        (
            lambda: x.sum(0, keepdim=True),
            "no argument 'keepdim' (is it \"keepdims\"?); need x, axis",
        ),
        (lambda: g.input("y", size=3), "no argument 'size' (is it \"shape\"?); need name, shape"),
        (lambda: aicf.sum(x, flux=1), "sum: there is no argument 'flux'; need x, axis, keepdims"),
    ):
        with pytest.raises(TypeError, match=re.escape(text)):
            call()


def test_positional_only_names():
    """An input may have the name of any parameter of ours."""
    g = aicf.trace(lambda g, fn, self: {"y": fn + self}, fn=(2,), self=(2,))
    step = g.compile(device="cpu")
    ones = np.ones(2, np.float32)
    assert (step(fn=ones, self=ones)["y"].numpy() == 2).all()
    step.bind(self=np.full(2, 3, np.float32))
    assert (step(fn=ones)["y"].numpy() == 4).all()


STEP_CALLS = {
    "call": lambda step, wrong: step(x=wrong),
    "run": lambda step, wrong: step.run(x=wrong),
    "replay": lambda step, wrong: wrong is HUGE or step.replay(wrong),
    "bind": lambda step, wrong: step.bind(x=wrong),
    "set name": lambda step, wrong: step.set(wrong, 1.0),
    "set number": lambda step, wrong: step.set("k", wrong),
    "params": lambda step, wrong: step.params[wrong],
    "assign": lambda step, wrong: step.params.__setitem__("w", wrong),
    "outputs": lambda step, wrong: step.outputs[wrong],
    "get": lambda step, wrong: (step.outputs.get(wrong), wrong in step.outputs),
    "load_state_dict": lambda step, wrong: step.load_state_dict(wrong),
    "load_state_dict value": lambda step, wrong: step.load_state_dict({"w": wrong, "k": 1.0}),
    "save": lambda step, wrong: step.save(wrong),
    "load": lambda step, wrong: step.load(wrong),
    "share": lambda step, wrong: step.source.compile(device="cpu", share=wrong),
    "set_num_threads": lambda step, wrong: aicf.set_num_threads(wrong),
}


@pytest.mark.parametrize("name", STEP_CALLS)
def test_wrong_arguments_of_a_step(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    g = aicf.Graph("step")
    x, w, k = g.input("x", (2,)), g.param("w", (2,)), g.state("k", ())
    g.output("y", x * w + k)
    step = g.compile(device="cpu")
    step.source = g
    raw = []
    for wrong in [*WRONG, x, [x]]:
        try:
            STEP_CALLS[name](step, wrong)
        except aicf.Error:
            pass
        except OSError as error:
            assert name in ("save", "load"), error
        except Exception as error:
            raw.append(f"{wrong!r}: {type(error).__name__}: {error}")
    aicf.set_num_threads(0)
    assert not raw, "\n".join(raw)


# ---- what NumPy's users write


def test_arrays_and_numbers_of_numpy_are_constants(device):
    g = aicf.Graph("mixed")
    x = g.input("x", (2, 3))
    row = np.array([1.0, -2.0, 0.5])  # float64 takes the dtype of what stands beside it
    for name, y in {
        "sum": x + row,
        "behind": row * x,
        "scalar": x * np.float64(1.5) - np.int64(2),
        "product": x @ np.eye(3, dtype=np.float32),
        "chosen": aicf.where(x > np.float32(0), row, x),
        "half": x.cast("bfloat16") + row,
    }.items():
        g.output(name, y)
    values = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    got = {k: v.numpy() for k, v in g.compile(device=device)(x=values).items()}
    np.testing.assert_array_equal(got["sum"], values + row.astype(np.float32))
    np.testing.assert_array_equal(got["behind"], values * row.astype(np.float32))
    np.testing.assert_array_equal(got["scalar"], values * 1.5 - 2)
    np.testing.assert_array_equal(got["product"], values)
    np.testing.assert_array_equal(got["chosen"], np.where(values > 0, row, values))
    np.testing.assert_array_equal(got["half"], values + row)
    with pytest.raises(aicf.DTypeError, match="dtypes differ"):
        x + np.ones(3, np.int64)
    with pytest.raises(aicf.ShapeError):
        x + np.ones(4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_dtypes_of_numpy_are_names(dtype):
    g = aicf.Graph("dtypes")
    kind = np.dtype(dtype)
    assert g.input("name", (2,), dtype).dtype == dtype
    assert g.input("dtype", (2,), kind).dtype == dtype
    assert g.input("type", (2,), kind.type).dtype == dtype


def test_dtypes_of_others_are_names():
    torch = pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    g = aicf.Graph("dtypes")
    for i, kind in enumerate((torch.bfloat16, jnp.bfloat16, jnp.dtype("bfloat16"))):
        assert g.input(f"x{i}", (2,), kind).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda x: aicf.sum(x, dim=0), "axis"),
        (lambda x: aicf.mean(x, 0, keepdim=True), "keepdims"),
        (lambda x: aicf.softmax(x, axs=0), "axis"),
    ],
)
def test_a_word_of_another_library_is_answered_with_ours(call, near):
    with pytest.raises(
        TypeError, match=rf"there is no argument '\w+' \(is it \"{near}\"\?\); need"
    ):
        call(aicf.Graph("g").input("x", (2, 3)))
