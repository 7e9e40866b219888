"""Errors of layers name what their user wrote: the class, and where in the model it is."""

import re

import aicf
import pytest
from aicf import nn

# They take any arguments, or none by name.
ANY = {"Identity", "Module", "Sequential", "ModuleDict", "ParameterDict"}
LAYERS = sorted(
    name
    for name in set(nn.__all__) - ANY
    if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
)


@pytest.mark.parametrize("name", LAYERS)
def test_each_class_says_its_own_name(name):
    with pytest.raises(TypeError) as caught:
        getattr(nn, name)(no_such_option=1)
    said = str(caught.value)
    assert re.match(rf"{name}: there is no argument ['\"]no_such_option['\"].*; need ", said), said
    with pytest.raises((TypeError, aicf.Error)) as caught:
        getattr(nn, name)(*[object()] * 40)
    said = str(caught.value)
    assert said.startswith(f"{name}: ") and not re.search(r"\b_[A-Z]", said), said


@pytest.mark.parametrize(
    "name, said",
    {
        "nn.Conv2D": ' (is it "Conv2d"?)', "nn.Lstm": ' (is it "LSTM"?)', "nn.Zzz": "",
        "nn.relu": "; it is aicf.relu", "nn.LSTMCell": "; aicf.scan runs a cell over a sequence",
        "nn.functional": "; the functions are aicf's own, as aicf.relu",
        "optim.Adan": ' (is it "Adam"?)', "optim.CosineAnnealingLR": ' (is it "warmup_cosine"?)',
    }.items(),
)  # fmt: skip
def test_a_name_that_is_not_there(name, said):
    part, _, key = name.partition(".")
    with pytest.raises(AttributeError) as caught:
        getattr(getattr(aicf, part), key)
    assert str(caught.value) == f"aicf.{part}: there is no '{key}'{said}"


@pytest.mark.parametrize(
    "name, said",
    {
        "weigth": r' \(is it "weight"\?\)', "cuda": "; device= of function and Graph.compile says",
        "zero_grad": "; it is not needed", "save": r"; aicf.save\(path, module\)", "zzz": "",
    }.items(),
)  # fmt: skip
def test_an_attribute_that_a_module_has_not(name, said):
    with pytest.raises(AttributeError, match=f"^Linear has no attribute '{name}'{said}"):
        getattr(nn.Linear(2, 2), name)


def test_a_parameter_is_looked_at_as_an_array():
    weight = nn.Linear(3, 2).weight
    want = weight.numpy()
    assert (weight.size, weight.nbytes, weight.T.shape) == (6, 24, (3, 2))
    assert weight.mean() == want.mean() and weight.argmax() == want.argmax()
    assert weight[1].tolist() == want[1].tolist() == weight.tolist()[1]
    with pytest.raises(
        AttributeError, match=r"^Parameter has no attribute 'numel' \(is it \"size\""
    ):
        weight.numel()
    assert not hasattr(weight, "__cuda_array_interface__") and not hasattr(weight, "device_of")


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, width), nn.ReLU())
        self.last = nn.Linear(width + 1, 2)

    def forward(self, x, scale=1.0):
        return self.last(self.first(x)) * scale


def test_the_layer_is_named():
    g = aicf.Graph("layers")
    x, image = g.input("x", (4, 3)), g.input("image", (2, 3, 8, 8))
    before = str(g)
    told = r'; need .*; in "last", Linear\(in_features=6, out_features=2, bias=True\)$'
    with pytest.raises(aicf.ShapeError, match=told):
        Net(5)(x)
    with pytest.raises(aicf.ShapeError, match=r'; in "net.0.last", Linear'):
        nn.Sequential(Net(5), name="net")(x)
    with pytest.raises(aicf.ShapeError, match=r"^conv2d: .*; in Conv2d\(4, 8, kernel_size"):
        nn.Conv2d(4, 8, 3)(image)
    assert str(g) == before


def test_calls_that_a_layer_does_not_take():
    x = aicf.Graph("calls").input("x", (4, 3))
    for call, words in {
        lambda: Net(): "Net: missing a required argument: 'width'; need width",
        lambda: Net(5, 6): "Net: too many positional arguments; need width",
        lambda: Net(5)(
            x, scal=2
        ): 'Net: there is no argument "scal" (is it "scale"?); need x, scale',
        lambda: nn.Linear(3, 2)(x, x): "Linear: too many positional arguments; need x",
        lambda: nn.Conv2d(3, 8): "Conv2d: missing a required argument: 'kernel_size'; need in_",
        lambda: nn.TransformerDecoderLayer(8, 2)(x): "missing a required argument: 'memory'",
    }.items():
        with pytest.raises(TypeError, match=re.escape(words)):
            call()
    with pytest.raises(aicf.GraphError, match=r"Sequential\(\*modules\)"):
        nn.Sequential([nn.ReLU()])
    with pytest.raises(aicf.GraphError, match="ModuleList: .*need a list of Modules"):
        nn.ModuleList(nn.ReLU())


def test_a_type_error_inside_of_forward_is_its_own():
    class Odd(nn.Module):
        def forward(self, x):
            return len(5)

    with pytest.raises(TypeError, match="^object of type 'int' has no len"):
        Odd()(aicf.Graph("odd").input("x", (4, 3)))
