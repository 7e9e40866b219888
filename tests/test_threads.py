"""What other threads, other libraries' modes and forks do to a process that computes."""

import os
import subprocess
import sys

import aicf
import numpy as np
import pytest

FLOAT_MODE = """
import hashlib, sys
import aicf, numpy as np, torch

threads, flush = int(sys.argv[1]), sys.argv[2]
aicf.set_num_threads(threads)

def digest():
    x = (np.arange(1 << 20, dtype=np.uint32) * 8 + 1).view(np.float32).reshape(1024, 1024)
    g = aicf.Graph("subnormal")
    a, scale = g.input("x", x.shape), g.input("scale", ())
    w = g.param("w", (1024,), init=aicf.init.uniform(-1e-38, 0.0))
    g.output("half", a * 0.5 + w * scale)
    g.output("tiny", g.param("v", (64,), init=aicf.init.normal(0.0, 1e-39)) + 1e-40)
    g.output("random", g.random_uniform((64,), low=-1e-39, high=0.0))
    g.output("sum", aicf.sum(a, axis=0))
    g.output("product", a @ (a * 1e38))
    out = g.compile(device="cpu", seed=1)(x=x, scale=1e-39)
    y = np.empty_like(x)
    aicf.op_call("mul", [x, np.float32([0.25])], [y])
    parts = [*(np.asarray(value).tobytes() for value in out.values()), y.tobytes()]
    return hashlib.sha256(b"".join(parts)).hexdigest()

if flush == "late":
    digest()
if flush != "never":
    assert torch.set_flush_denormal(True)
print(digest())
tiny = torch.tensor([1e-40]) * 1.0
assert (tiny.item() == 0.0) == (flush != "never"), "the caller's mode has changed"
"""


def child(code, *args, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, args)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


def test_float_mode_of_the_caller():
    """Who flushes subnormals to zero gets our bits all the same, and keeps the mode."""
    pytest.importorskip("torch")
    found = {
        (threads, flush): child(FLOAT_MODE, threads, flush)[0]
        for threads, flush in [(1, "never"), (1, "early"), (3, "never"), (3, "early"), (3, "late")]
    }
    assert len(set(found.values())) == 1, found


FORKS = """
import os, signal, sys, threading, time
import aicf, numpy as np

x = np.random.default_rng(0).standard_normal((256, 256), dtype=np.float32)
big = np.ones((2048, 2048), np.float32)

def build():
    g = aicf.Graph("g")
    p = g.param("p", x.shape)
    g.output("y", aicf.sum(g.input("x", x.shape) @ p))
    return g.compile(device="cpu", params={"p": x})

step, stop = build(), False
want = float(step(x=x)["y"])

def replay():
    while not stop:
        step.replay()

def eager():
    y = np.empty_like(big)
    while not stop:
        aicf.op_call("exp", [big], [y])

threads = [threading.Thread(target=f, daemon=True) for f in (replay, eager)]
for t in threads:
    t.start()
raised = 0
for _ in range(20):
    time.sleep(0.01)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # a child that hangs ends with a signal
        y = np.empty_like(x)
        aicf.op_call("add", [x, x], [y])
        assert (y == x + x).all()
        assert float(build()(x=x)["y"]) == want
        if (grandchild := os.fork()) == 0:
            signal.alarm(60)
            os._exit(0 if float(build()(x=x)["y"]) == want else 1)
        assert os.waitpid(grandchild, 0)[1] == 0
        try:
            step.replay()
        except aicf.GraphError as error:
            assert "fork" in str(error)
            sys.exit(3)  # by way of Python's own exit
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 3), code
    raised += code == 3
stop = True
for t in threads:
    t.join()
print(raised)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_while_threads_run():
    """A child never waits for a lock whose holder stayed in the parent: it computes, or says so."""
    assert int(child(FORKS)[0]) > 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [63, 64, 65, 66, 80, 96, 100, 127, 128, 129])
def test_product_cut_inside_a_row(width, dtype):
    """Threads share out parts of a row; what follows the product takes its operands from there."""

    def result(passes):
        g = aicf.Graph("layer")
        x, w = g.input("x", (32, 400), dtype), g.param("w", (width, 400), dtype)
        b = g.param("b", (width,), dtype, init=aicf.init.uniform(-1.0, 1.0))
        r = g.input("r", (32, width), dtype)
        g.output("y", aicf.relu(aicf.linear(x, w, b)) + r)
        rng = np.random.default_rng(width)
        values = {"x": rng.standard_normal((32, 400)), "r": rng.standard_normal((32, width))}
        step = g.compile(device="cpu", seed=0, passes=passes)
        return step(**{name: v.astype(dtype) for name, v in values.items()})["y"].numpy().tobytes()

    try:
        aicf.set_num_threads(1)
        alone = result(())
        for threads in (1, 2, 3, 8):
            aicf.set_num_threads(threads)
            assert result("default") == alone, f"{threads} threads"
    finally:
        aicf.set_num_threads(0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity of threads here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_initial_values_do_not_depend_on_the_processors(dtype):
    """Nor on where a large param is cut: a small one begins with the same elements."""
    initial = aicf.init.ones() if dtype == "int64" else aicf.init.normal(0.0, 0.5)

    def param(count):
        g = aicf.Graph("initial")
        g.output("y", g.state("w", (count,), dtype, init=initial))
        return g.compile(device="cpu", seed=3).state["w"].numpy().tobytes()

    allowed = os.sched_getaffinity(0)
    whole = param(3 * 16384 + 5)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert param(3 * 16384 + 5) == whole
    finally:
        os.sched_setaffinity(0, allowed)
    assert whole.startswith(param(16384)) and len(set(whole)) > 1
