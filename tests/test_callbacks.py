"""Ops that call a function of the host."""

import subprocess
import sys
import threading

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits
from conftest import outputs_of, run_modes
from custom_cases import compile_one, copied, hosted


def test_callback(rng):
    x = rng.standard_normal((5, 7)).astype(np.float32)

    def build(g, x):
        y = hosted(aicf.permute(x, (1, 0)) * 1.0, factor=2.0)
        return {"y": y, "dx": aicf.grad(aicf.sum(y), x)}

    got = run_modes(build, {"x": x})
    np.testing.assert_array_equal(got["y"], 2 * np.sort(x.T, axis=-1))
    np.testing.assert_array_equal(got["dx"], np.full((5, 7), 2.0))
    g = aicf.Graph("g")
    g.output("y", hosted(g.input("x", x.shape)))
    assert "calls Python, copies 140 bytes to it and 140 back" in str(g)
    out = np.empty_like(x)
    aicf.op_call(hosted, [x], [out], {"factor": 3.0})
    np.testing.assert_array_equal(out, 3 * np.sort(x, axis=-1))
    again = aicf.Graph.from_json(g.to_json()).compile(device="cpu")
    np.testing.assert_array_equal(again(x=x)["y"].numpy(), np.sort(x, axis=-1))


def test_callbacks_are_called_once_a_step_each():
    calls = []

    @aicf.custom_op(host=lambda x: calls.append(1) or x + np.float32(len(calls)))
    def counted(x):
        return x

    g = aicf.Graph("g")
    x = g.input("x", (2,))
    g.output("a", counted(x))
    g.output("b", counted(x))
    counted(x)  # nobody reads it
    step = g.compile(device="cpu")
    step(x=np.zeros(2, np.float32))
    assert len(calls) == 2, "two calls on equal operands stay two"
    step.replay(3)
    assert len(calls) == 8
    assert sorted([step.outputs["a"].numpy()[0], step.outputs["b"].numpy()[0]]) == [7.0, 8.0]


def failing_step(fail):
    """A training step with a callback between its forward pass and its update, behind states that
    the step changes early."""

    @aicf.custom_op(host=fail, gradient=lambda dy, x, out: dy, replace=True)
    def may_fail(x):
        return x

    g = aicf.Graph("g")
    x, w = g.input("x", (4, 3)), g.param("w", (3, 3))
    seen = g.state("seen", (), "int32")
    g.assign(seen, seen + 1)
    h = aicf.dropout(x, 0.5) @ w
    g.minimize(aicf.mean(may_fail(h) ** 2.0), aicf.optim.Adam(lr=0.1))
    return g.compile(device="cpu")


def test_an_exception_surfaces_and_leaves_params_and_states_as_they_were():
    turn = iter(range(100))

    def fail(x):
        if next(turn) == 2:
            raise ZeroDivisionError("in the callback")
        return x

    step, x = failing_step(fail), np.ones((4, 3), np.float32)
    step(x=x)
    step(x=x)
    before = {name: np.array(array) for name, array in step.state_dict().items()}
    with pytest.raises(ZeroDivisionError, match="in the callback") as caught:
        step(x=x)
    assert any(entry.name == "fail" for entry in caught.traceback)
    after = step.state_dict()
    assert len(before) > 4 and before.keys() == after.keys()
    for name, array in before.items():
        assert_bits(np.array(after[name]), array, name)
    step(x=x)  # and goes on as if nothing had been
    other = failing_step(lambda x: x)
    for _ in range(3):
        other(x=x)
    for name, array in other.state_dict().items():
        assert_bits(np.array(step.state_dict()[name]), np.array(array), name)


def test_replay_stops_at_the_step_that_raises():
    turn = iter(range(100))

    def fail(x):
        if next(turn) == 3:
            raise KeyError("stop")
        return x

    step = failing_step(fail)
    step(x=np.ones((4, 3), np.float32))
    with pytest.raises(KeyError, match="stop"):
        step.replay(5)
    assert step.state["seen"].item() == 3


@pytest.mark.parametrize(
    "made, kind, text",
    [
        (lambda x: x.astype(np.float64), aicf.DTypeError, "gave out as float64; need float32"),
        (lambda x: x[:1], aicf.ShapeError, r"gave out of shape \(1, 3\); need \(4, 3\)"),
        (lambda x: "text", aicf.DTypeError, "gave out as <U4; need float32"),
    ],
)
def test_results_of_a_callback_are_checked(made, kind, text):
    step = failing_step(made)
    with pytest.raises(kind, match=text):
        step(x=np.ones((4, 3), np.float32))
    with pytest.raises(aicf.GraphError, match="returned .*; need 2 arrays: a, b"):
        run_two(lambda x: x)


def run_two(host):
    @aicf.custom_op(host=host, outputs=["a", "b"], replace=True)
    def two(x):
        return [x, x]

    g = aicf.Graph("g")
    for name, value in zip("ab", two(g.input("x", (2,))), strict=True):
        g.output(name, value)
    return outputs_of(g.compile(device="cpu")(x=np.ones(2, np.float32)))


def test_a_callback_of_several_results():
    got = run_two(lambda x: (x * np.float32(2), np.flip(x)[::-1]))
    assert got["a"].tolist() == [2.0, 2.0] and got["b"].tolist() == [1.0, 1.0]


def test_what_a_callback_keeps_is_its_own():
    kept = []

    @aicf.custom_op(host=lambda x: kept.append(x) or x, replace=True)
    def keeps(x):
        return x

    step = compile_one(keeps)
    for k in range(3):
        step(x=np.full(3, k, np.float32))
    assert [array[0] for array in kept] == [0.0, 1.0, 2.0]


def test_a_callback_that_uses_a_step_is_refused():
    box = []

    @aicf.custom_op(host=lambda x: box[0](x=x)["y"].numpy(), replace=True)
    def recursive(x):
        return x

    step = compile_one(recursive)
    for other in (step, compile_one(copied)):
        box[:] = [other]
        with pytest.raises(aicf.GraphError, match="a callback of the host works on a step"):
            step(x=np.ones(3, np.float32))
    box[:] = [lambda x: aicf.op_call("relu", [x], [x.copy()])]
    with pytest.raises(aicf.GraphError, match="op_call"):
        step(x=np.ones(3, np.float32))


def test_threads_and_callbacks():
    """Others run while a callback waits for them, a reader of the step waits for its end."""
    gate, started = threading.Event(), threading.Event()

    def wait(x):
        started.set()
        assert gate.wait(30)
        return x

    @aicf.custom_op(host=wait, replace=True)
    def waits(x):
        return x

    step, done = compile_one(waits), []
    worker = threading.Thread(target=lambda: done.append(step(x=np.ones(3, np.float32))))
    reader = threading.Thread(target=lambda: done.append(step.captured))
    worker.start()
    assert started.wait(30)
    reader.start()
    other = compile_one(copied)(x=np.ones(3, np.float32))
    assert other["y"].numpy().tolist() == [1.0] * 3
    gate.set()
    for thread in (worker, reader):
        thread.join(30)
        assert not thread.is_alive()
    assert len(done) == 2


def test_callbacks_are_in_no_file_and_of_no_gpu(tmp_path):
    with pytest.raises(aicf.Unsupported, match="export: host_hosted is of a custom_op"):
        compile_one(hosted).export(tmp_path / "step")
    g = aicf.Graph("g")
    g.output("y", hosted(g.input("x", (3,))))
    if hasattr(_core, "cuda_programs"):
        with pytest.raises(aicf.Unsupported, match='on a GPU never waits for; need device="cpu"'):
            _core.cuda_programs(g._core, _core.pass_names(), arch="sm_80")
    with pytest.raises(aicf.DTypeError, match="x is bfloat16; need one of"):
        hosted(aicf.cast(g.input("z", (3,)), "bfloat16"))
    with pytest.raises(aicf.GraphError, match="vmap: custom_op hosted at .* has no rule"):
        aicf.vmap(hosted)(g.input("m", (3, 2)))


LEAVES = """
import ctypes
import numpy as np
import aicf

@aicf.custom_op(host=lambda x: np.sort(x), gradient=None)
def ordered(x):
    return aicf.Spec(x.shape, x.dtype)

g = aicf.Graph()
g.output("y", ordered(g.input("x", (3,))))
step = g.compile(device="cpu")
step(x=np.ones(3, np.float32))
# As where something that outlives the interpreter's clearing has a function of the module.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(aicf.custom._call_host))
"""


def test_ops_keep_no_step_beyond_the_end_of_the_process(tmp_path):
    """What an op's function can see, its script's names, was reported as leaked at exit."""
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "leaked" not in done.stderr, done.stderr
