"""What tells calls of a function apart, and what of a call is known from the second on."""

import aicf
import numpy as np
import pytest
from function_models import CPU


def test_equal_values_of_two_types_and_names_that_meet():
    x = np.ones(3, np.float32)

    @aicf.function(static="by", **CPU)
    def f(x, by):
        return x * 3.0 if isinstance(by[0], bool) else aicf.div(x, x * by[0])

    got = [float(f(x, (by,)).numpy()[0]) for by in (1, True, 0.0, -0.0)]
    assert got == [1.0, 3.0, np.inf, -np.inf]
    for nested in (lambda x: {"a.b": x, "a": {"b": x * 2.0}}, lambda x: {1: x, "1": x * 2.0}):
        with pytest.raises(aicf.GraphError, match="of the result is there twice"):
            aicf.function(nested, **CPU)(x)


def test_every_form_of_a_call_is_known_from_its_second_on(monkeypatch):
    """By position, by name and mixed: what one form has compiled the others find at once."""
    f = aicf.function(lambda x, y: x * 2.0 + y, device="cpu")
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 5, np.float32)
    forms = [
        lambda: f(x, y),
        lambda: f(x=x, y=y),
        lambda: f(y=y, x=x),
        lambda: f(x, y=y),
    ]
    for form in forms:
        form()

    def slow(*_):
        raise AssertionError("a call was looked at argument by argument again")

    monkeypatch.setattr(aicf.Function, "_slow", slow)
    for form in forms:
        assert np.array_equal(form(), np.full((2, 3), 7))
    assert len(f.cache) == 1


def test_nested_arguments_and_numbers_are_known_from_their_second_call_on(monkeypatch):
    """As arrays alone are; what they hold besides arrays and floats is part of what is known."""
    f = aicf.function(
        lambda batch, k, sign=None, twice=False: (
            (batch["a"] * k + batch["b"][0]) * (2.0 if twice else 1.0) * (sign or 1.0)
        ),
        device="cpu",
        static="sign",
    )
    a, b = np.ones((2, 3), np.float32), np.full((2, 3), 5, np.float32)
    forms = {
        lambda: f({"a": a, "b": [b]}, 3.0): 8,
        lambda: f({"b": [b], "a": a}, k=2.0): 7,
        lambda: f({"a": a, "b": (b,)}, 3.0, twice=True): 16,
        lambda: f({"a": a, "b": [b]}, 3.0, twice=False): 8,
        lambda: f(k=4.0, batch={"a": a, "b": [b]}, sign=None): 9,
    }
    for form, want in forms.items():
        assert np.array_equal(form(), np.full((2, 3), want))
    with monkeypatch.context() as patch:
        patch.setattr(aicf.Function, "_slow", None)
        for form, want in forms.items():
            assert np.array_equal(form(), np.full((2, 3), want))
    # A float that is static is part of what is compiled.
    for sign in (-1.0, 2.0, -1.0):
        assert np.array_equal(f({"a": a, "b": [b]}, 3.0, sign), np.full((2, 3), 8 * sign))
    count = len(f.cache)
    for _ in range(3):  # each a NaN of its own, unequal to the others
        assert np.isnan(f({"a": a, "b": [b]}, 3.0, float("nan"))).all()
    assert len(f.cache) == count + 1
    endless = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        f({"a": a, "b": endless}, 3.0)


def test_what_is_equal_and_yet_another_argument():
    @aicf.function(**CPU)
    def f(x, which):
        return x * float(len(repr(which)))

    x = np.ones(3, np.float32)
    pairs = [(frozenset({1}), frozenset({1.0})), (0j, -0j), ((True,), (1,))]
    for pair in pairs:
        for which in pair * 2:
            assert float(f(x, which)[0]) == len(repr(which)), which


def test_arguments_and_dtypes_that_there_are_not():
    f = aicf.function(lambda x, t: x + t, **CPU)
    x = np.ones(3, np.float32)
    with pytest.raises(aicf.GraphError, match=r'"t" is a memoryview, no array'):
        f(x, memoryview(bytearray(3)))
    for wrong in (np.array([None] * 3), np.ones(3, np.uint16), np.array(["a", "b", "c"])):
        with pytest.raises(aicf.DTypeError, match=r'<lambda>: "t" is .*\[3\]; need one of float32'):
            f(x, wrong)
    for dtypes in ({"float65": "float32"}, {"f64": "float32"}, {"float64": "flaot32"}):
        with pytest.raises(aicf.DTypeError, match=r"function: dtypes has '.*need a dtype"):
            aicf.function(f, dtypes=dtypes)
    casts = {"uint16": "int32", np.float64: np.float32}
    wide = aicf.function(lambda x: x + 1, dtypes=casts, **CPU)
    assert wide(np.arange(3, dtype=np.uint16)).dtype == "int32"
    assert wide(np.ones(3)).dtype == "float32"
    with pytest.raises(aicf.GraphError, match="whose arguments Python does not tell"):
        aicf.function(max)


def test_results_are_known_arguments_too(monkeypatch):
    """An Array is told by shape and dtype as any array is, of one form with those of NumPy."""
    f = aicf.function(lambda x, more: x * 2.0 + more["y"], **CPU)
    x = np.ones(3, np.float32)
    once = f(x, {"y": x})
    f(once, {"y": once})
    monkeypatch.setattr(aicf.Function, "_slow", None)
    assert f(once, {"y": once}).tolist() == [9, 9, 9]
    assert len(f.cache) == 1


class Leaving:
    """What takes itself out of a dict when it is asked for its dtype."""

    shape = (3,)

    def __init__(self, home):
        self.home = home

    @property
    def dtype(self):
        self.home.clear()
        return np.dtype("float32")


def test_an_argument_may_change_the_dict_that_it_is_in():
    f = aicf.function(lambda d: d["x"], **CPU)
    f({"x": np.ones(3, np.float32)})
    for _ in range(50):
        home = {}
        home["x"] = Leaving(home)
        with pytest.raises(aicf.DTypeError, match="got object"):
            f(home)
