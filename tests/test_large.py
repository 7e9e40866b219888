"""Results that no cache holds, written past it: the bits of the same ops on a piece."""

import hashlib
import os
import subprocess
import sys

import aicf
import numpy as np
import pytest
from isas import machine_isas

SHAPE = (4099, 1031)  # 4.2 M elements, in rows that end anywhere in a line of memory
PIECE = slice(2040, 2060)
FUNCTIONS = {
    "one op": lambda a, b, v, t: aicf.relu(a),
    "chain": lambda a, b, v, t: aicf.sin(a) * b + aicf.exp(-a * a),
    "rows": lambda a, b, v, t: aicf.exp(a * v) + b,
    "turned": lambda a, b, v, t: aicf.tanh(a + aicf.transpose(t)),
    "float64": lambda a, b, v, t: aicf.cast(a * b, "float64"),
}


def operands(shape=SHAPE):
    rng = np.random.default_rng(5)
    shapes = {"a": shape, "b": shape, "v": shape[1:], "t": shape[::-1]}
    return {name: rng.standard_normal(s, dtype=np.float32) for name, s in shapes.items()}


def build(function, values):
    g = aicf.Graph("large")
    g.output("y", function(*(g.input(name, x.shape) for name, x in values.items())))
    return g.compile(device="cpu")


def piece_of(values):
    cut = {name: values[name][PIECE] for name in ("a", "b")}
    return {**cut, "v": values["v"], "t": np.ascontiguousarray(values["t"][:, PIECE])}


def result(name, values):
    return build(FUNCTIONS[name], values)(**values)["y"].numpy()


@pytest.mark.parametrize("shape", [SHAPE, (1 << 21, 3)], ids=["wide", "short rows"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_large_results(name, shape):
    values = operands(shape)
    expected = result(name, piece_of(values))
    digests = set()
    try:
        for threads in (1, 2, 3):
            aicf.set_num_threads(threads)
            y = result(name, values)
            assert y[PIECE].tobytes() == expected.tobytes()
            digests.add(hashlib.sha256(y).hexdigest())
    finally:
        aicf.set_num_threads(0)
    assert len(digests) == 1


def test_instruction_sets_agree():
    said = {}
    for isa in machine_isas():
        env = os.environ | {"AICF_CPU_ISA": isa}
        said[isa] = subprocess.run(
            [sys.executable, __file__], env=env, capture_output=True, text=True, check=True
        ).stdout
        assert said[isa].startswith(isa)
        assert said[isa].removeprefix(isa) == said["baseline"].removeprefix("baseline")


def test_a_large_result_anywhere_in_memory():
    """A caller's tensor begins at any element, and may change after the capture."""
    values = operands()
    expected = result("chain", values)
    step = build(FUNCTIONS["chain"], values)
    for first in (1, 7, 16):
        memory = np.full(expected.size + first + 1, 7.0, np.float32)
        step.bind(y=memory[first:-1].reshape(SHAPE))
        step(**values)
        np.testing.assert_array_equal(memory[first:-1].reshape(SHAPE), expected)
        assert (memory[:first] == 7).all() and memory[-1] == 7


@pytest.mark.parametrize("name", ["one op", "chain", "rows"])
def test_a_large_state_in_place(name):
    """The new state lies where the old one is read, a result of the same op elsewhere."""

    def run(values):
        g = aicf.Graph("in place")
        a = g.state("a", values["a"].shape)
        rest = [g.input(n, values[n].shape) for n in "bvt"]
        new = FUNCTIONS[name](a, *rest)
        g.assign(a, new)
        g.output("y", new * rest[0])
        step = g.compile(device="cpu")
        step.state["a"] = values["a"]
        for _ in range(3):
            y = step(**{n: values[n] for n in "bvt"})["y"].numpy()
        return step.state["a"].numpy(), y

    values = operands()
    for whole, piece in zip(run(values), run(piece_of(values)), strict=True):
        assert whole[PIECE].tobytes() == piece.tobytes()


def test_a_large_eager_result_over_its_input():
    x = operands()["a"]
    expected = np.maximum(x, 0)
    aicf.op_call("relu", [x], [x])
    np.testing.assert_array_equal(x, expected)


if __name__ == "__main__":
    print(aicf._core.cpu_isa())
    for name in FUNCTIONS:
        print(name, hashlib.sha256(result(name, operands())).hexdigest())
