"""Results that no cache holds, written past it: the bits of the same ops on a piece."""

import aicf
import numpy as np
import pytest

SHAPE = (4099, 1031)  # 4.2 M elements, in rows that end anywhere in a line of memory
PIECE = slice(2040, 2060)
FUNCTIONS = {
    "one op": lambda a, b, v, t: aicf.relu(a),
    "chain": lambda a, b, v, t: aicf.sin(a) * b + aicf.exp(-a * a),
    "rows": lambda a, b, v, t: aicf.exp(a * v) + b,
    "turned": lambda a, b, v, t: aicf.tanh(a + aicf.transpose(t)),
    "bool": lambda a, b, v, t: a < b,
    "float16": lambda a, b, v, t: aicf.cast(a * b, "float16"),
}


@pytest.fixture(scope="module")
def operands():
    rng = np.random.default_rng(5)
    shapes = {"a": SHAPE, "b": SHAPE, "v": SHAPE[1:], "t": SHAPE[::-1]}
    return {name: rng.standard_normal(s, dtype=np.float32) for name, s in shapes.items()}


def build(function, shape, device="cpu"):
    g = aicf.Graph("large")
    shapes = {"a": shape, "b": shape, "v": shape[1:], "t": shape[::-1]}
    g.output("y", function(*(g.input(name, s) for name, s in shapes.items())))
    return g.compile(device=device)


def piece_of(operands):
    cut = {name: operands[name][PIECE] for name in ("a", "b")}
    return {**cut, "v": operands["v"], "t": np.ascontiguousarray(operands["t"][:, PIECE])}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_large_results(name, operands):
    piece = piece_of(operands)
    expected = build(FUNCTIONS[name], piece["a"].shape)(**piece)["y"].numpy()
    step = build(FUNCTIONS[name], SHAPE)
    whole = None
    try:
        for threads in (1, 2, 3):
            aicf.set_num_threads(threads)
            y = step(**operands)["y"].numpy()
            assert y[PIECE].tobytes() == expected.tobytes()
            whole = y.tobytes() if whole is None else whole
            assert y.tobytes() == whole
    finally:
        aicf.set_num_threads(0)


def test_a_large_result_anywhere_in_memory(operands):
    """A caller's tensor begins at any element."""
    function = FUNCTIONS["chain"]
    expected = build(function, SHAPE)(**operands)["y"].numpy()
    step = build(function, SHAPE)
    for first in (1, 7, 16):
        memory = np.full(expected.size + first + 1, 7.0, np.float32)
        step.bind(y=memory[first:-1].reshape(SHAPE))
        step(**operands)
        np.testing.assert_array_equal(memory[first:-1].reshape(SHAPE), expected)
        assert (memory[:first] == 7).all() and memory[-1] == 7


@pytest.mark.parametrize("name", ["one op", "chain"])
def test_a_large_state_in_place(name, operands):
    """The new state lies where the old one is read."""
    piece = piece_of(operands)

    def run(values):
        g = aicf.Graph("in place")
        a = g.state("a", values["a"].shape)
        rest = [g.input(n, values[n].shape) for n in "bvt"]
        g.assign(a, FUNCTIONS[name](a, *rest))
        step = g.compile(device="cpu")
        step.state["a"] = values["a"]
        needed = {n: values[n] for n in "bvt"}
        for _ in range(3):
            step(**needed)
        return step.state["a"].numpy()

    assert run(operands)[PIECE].tobytes() == run(piece).tobytes()
