"""Ctrl-C ends long calls soon and leaves nothing half-made."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aicf import _core

if sys.platform == "win32":
    pytest.skip("no SIGINT for a child process", allow_module_level=True)

LIMIT, TRIES = 1.0, 4  # seconds until the exception, of the best of some tries
BENCH = Path(__file__).parents[1] / "bench" / "compile.py"

CHILD = """
import runpy, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
import aicf, numpy as np
from aicf import verify

bench = runpy.run_path(sys.argv[1])
call = sys.argv[2]

def small():
    g = aicf.Graph("small")
    x = g.input("x", (4, 3))
    g.minimize(aicf.mean(g.dense("base", x, 5)), aicf.optim.Adam(), name="small")
    return g

def result(step):
    for _ in range(3):
        step(x=np.ones((4, 3), np.float32))
    return verify.state_hash(step)

expected = result(small().compile(device="cpu"))
base = small().compile(device="cpu")
build = bench["mlp"]
units = bench["units_for"](build, 30_000)
if call == "backward":
    g, loss = aicf.Graph(), None
    x = g.input("x", (4, 8))
    for i in range(6_000):
        x = aicf.tanh(g.dense(f"{i}", x, 8))
    loss = aicf.mean(x)
else:
    g = build(units)
before = bench["node_count"](g)
text = g.to_json() if call == "from_json" else ""

def once():
    if call == "compile":
        g.compile(device="cpu", share=base, fresh="*")
    elif call == "from_json":
        aicf.Graph.from_json(text)
    elif call == "backward":
        mark = g._core.mark()
        g.minimize(loss, aicf.optim.Adam())
        g._core.rollback(mark)
    elif call == "build":
        build(units)

print("ready", flush=True)
for line in sys.stdin:
    try:
        print("go", flush=True)
        while True:
            once()
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)
if call == "backward":
    full = bench["node_count"](g)
    g.minimize(loss, aicf.optim.Adam(), name="again")
    assert full == before or full > 2 * before, (before, full)  # none of it, or all
else:
    assert bench["node_count"](g) == before
assert g.verify().ok
assert result(small().compile(device="cpu")) == expected
assert result(base) == expected
shared = small().compile(device="cpu", share=base)
assert result(shared) != expected, "it goes on from there"
if call == "compile":
    once()
print("well", flush=True)
"""


def line_of(child, seconds=120):
    ready, _, _ = select.select([child.stdout], [], [], seconds)
    assert ready, f"the child says nothing for {seconds} s"
    line = child.stdout.readline().strip()
    assert line, f"the child has ended:\n{child.stderr.read()}"
    return line


@pytest.mark.parametrize("call", ["compile", "backward", "from_json", "build"])
def test_ctrl_c(call):
    """The calls go on over and over; the signal meets them at several moments."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(BENCH), call],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        bufsize=1, env={**os.environ, "AICF_NUM_THREADS": "1"},
    ) as child:  # fmt: skip
        try:
            meet(child, call)
        finally:
            child.kill()


def meet(child, call):
    assert line_of(child) == "ready"
    for moment in (0.0, 0.1, 0.5):
        taken = []
        while len(taken) < TRIES and min(taken, default=LIMIT) >= LIMIT:
            child.stdin.write("again\n")
            assert line_of(child) == "go"
            time.sleep(moment)
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            taken.append(float(line_of(child)) - sent)
        print(f"{call} after {moment} s: {taken}")
        assert min(taken) < LIMIT, f"{call} after {moment} s: {taken}"
    child.stdin.close()
    assert line_of(child) == "well"
    assert child.wait(60) == 0


NEEDS_NVRTC = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)
KERNELS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import aicf
from aicf import _core

def program(*widths):
    g = aicf.Graph("mlp")
    x = g.input("x", (512, 784))
    for i, width in enumerate(widths):
        x = aicf.relu(g.dense(str(i), x, width))
    g.minimize(aicf.mean(x), aicf.optim.Adam())
    return _core.cuda_programs(g._core, _core.pass_names())

texts = program(*range(1024, 100, -20))
print("ready", flush=True)
for line in sys.stdin:
    try:
        print("go", flush=True)
        # Texts of this try alone, so that the cache has none of them.
        _core.cuda_cubins([text + "// " + line for text in texts], "sm_90a")
        print("compiled", flush=True)
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)
assert _core.cuda_cubins(program(3), "sm_90a")[0][:4] == b"\\x7fELF"
print("well", flush=True)
"""


@NEEDS_NVRTC
def test_ctrl_c_while_kernels_are_compiled(tmp_path):
    """It need not wait for NVRTC, which asks nobody for seconds; the process ends well."""
    limit = 0.5
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", KERNELS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        bufsize=1, env={**os.environ, "AICF_CACHE_DIR": str(tmp_path)},
    ) as child:  # fmt: skip
        try:
            assert line_of(child) == "ready"
            taken = []
            while len(taken) < TRIES and min(taken, default=limit) >= limit:
                child.stdin.write(f"{len(taken)}\n")
                assert line_of(child) == "go"
                time.sleep(0.3)
                sent = time.monotonic()
                child.send_signal(signal.SIGINT)
                taken.append(float(line_of(child)) - sent)
            assert min(taken) < limit, taken
            child.stdin.close()
            assert line_of(child) == "well"
            assert child.wait(60) == 0, child.stderr.read()
        finally:
            child.kill()


HANDLER = """
import runpy, signal, sys
import aicf

bench = runpy.run_path(sys.argv[1])
g = bench["mlp"](200)
count = 0

def handler(number, frame):
    global count
    count += 1
    for i in range(20):
        g.input(f"late {count} {i}", (3,)) + 1.0
    signal.setitimer(signal.ITIMER_REAL, 0.03)

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.03)
while count < 20:
    assert g.verify().ok
    g.lower()
    g.compile(device="cpu", passes=())
signal.signal(signal.SIGALRM, signal.SIG_IGN)
"""


def test_a_handler_that_builds():
    """A signal handler may append to the graph that a call is looking at."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HANDLER, str(BENCH)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr}"


TEXTS = """
import os, signal, sys, threading, time
import aicf
from aicf import _core

g = aicf.Graph("products")
x = y = g.input("x", (64, 64))
for i in range(3):
    y = aicf.softmax(y @ x + float(i))
g.output("y", y)
texts = [f"{t}// {k}" for t in _core.cuda_programs(g._core, _core.pass_names()) for k in range(6)]
"""
LEAVING = """
thread = threading.Thread(target=_core.cuda_cubins, args=(texts, "sm_90a"), daemon=True)
thread.start()
time.sleep(0.4)
"""
FORKING = """
children = []
signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    _core.cuda_cubins(texts, "sm_90a")
except aicf.GraphError as error:
    assert children == [0] and "fork" in str(error)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7
"""


def run_alone(script, folder):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120,
        env={**os.environ, "AICF_CACHE_DIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@NEEDS_NVRTC
def test_leaving_while_kernels_are_compiled(tmp_path):
    """The process ends well beside a daemon thread that compiles."""
    run_alone(TEXTS + LEAVING, tmp_path)


@NEEDS_NVRTC
def test_a_fork_while_kernels_are_compiled(tmp_path):
    """The child, which has no compiler's threads, is told; the parent's compile goes on."""
    run_alone(TEXTS + FORKING, tmp_path)


FORKED_FILL = """
import hashlib, os, signal
import aicf

g = aicf.Graph("large")
w = g.state("w", (20_000_000,), init=aicf.init.normal(0.0, 1.0))
g.output("y", aicf.sum(w))
children = []
signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
signal.setitimer(signal.ITIMER_REAL, 0.2)
step = g.compile(device="cpu")
while not children:
    pass
print(hashlib.sha256(step.state["w"].numpy().tobytes()).hexdigest(), flush=True)
if children[0]:
    os.waitpid(children[0], 0)
"""


def test_a_fork_while_values_are_drawn(tmp_path):
    """Child and parent begin with the same bytes."""
    assert len(set(run_alone(FORKED_FILL, tmp_path).split())) == 1
