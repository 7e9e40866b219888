"""No call from Python ends the process, and none answers in another library's words."""

import copy
import json
import os
import pickle
import re
import subprocess
import sys
import textwrap

import aicf
import numpy as np
import pytest

CALLS = 20000
HERE = os.path.dirname(os.path.abspath(__file__))
FOREIGN = re.compile(r"nanobind|std::|bad_cast|incompatible function arguments")

START = """
import os, sys, threading, time
import aicf, numpy as np
g = aicf.Graph("g")
g.output("y", g.input("x", (2,)) + g.param("p", (2,)))
step = g.compile(device="cpu")
x = np.ones(2, np.float32)
step(x=x)
"""


def child(code, start=START, **environment):
    return subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(code)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_every_function_with_odd_arguments():
    done = subprocess.run(
        [sys.executable, os.path.join(HERE, "surface.py"), "--calls", str(CALLS)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    said = done.stdout[-3000:] + done.stderr[-1000:]
    assert done.returncode == 0, said
    tally = json.loads(done.stdout.splitlines()[-1])
    assert tally["faults"] == 0 and tally["targets"] > 400 and tally["returned"] > CALLS // 50, said


# ---- objects that were never made


STEP_USES = {
    "call": lambda s: s(x=1),
    "replay": lambda s: s.replay(1),
    "run": lambda s: s.run(),
    "capture": lambda s: s.capture(),
    "reset": lambda s: s.reset(),
    "synchronize": lambda s: s.synchronize(),
    "captured": lambda s: s.captured,
    "device": lambda s: s.device,
    "outputs": lambda s: s.outputs,
    "steps_run": lambda s: s.steps_run,
    "params": lambda s: s.params,
    "state": lambda s: s.state,
    "plan": lambda s: s.plan,
    "lowered": lambda s: s.lowered,
    "trace": lambda s: s.trace,
    "set": lambda s: s.set("opt.lr", 1.0),
    "bind": lambda s: s.bind(x=np.zeros(2, np.float32)),
    "state_dict": lambda s: s.state_dict(),
    "load_state_dict": lambda s: s.load_state_dict({}),
    "save": lambda s: s.save("/nowhere/at/all"),
    "array": lambda s: s._array("p"),
    "write": lambda s: s._write("p", 1.0),
    "share": lambda s: aicf.Graph("g").compile(device="cpu", share=s),
}


class Derived(aicf.Step):
    def __init__(self):
        pass


@pytest.mark.parametrize("use", STEP_USES, ids=str)
def test_half_built_step(use):
    for made in (lambda: aicf.Step.__new__(aicf.Step), lambda: Derived.__new__(Derived)):
        step = made()
        with pytest.raises(aicf.GraphError, match="Step: this one was never made"):
            STEP_USES[use](step)
        assert repr(step) == "aicf.Step(not compiled)"


def test_step_of_a_failed_compile():
    """What a debugger or a logger finds in the traceback is printed, and refuses the rest."""
    g = aicf.Graph("g")
    g.output("y", g.input("x", (2**45,)) + 1.0)
    with pytest.raises(aicf.OutOfMemory) as caught:
        g.compile(device="cpu")
    steps = [
        entry.frame.f_locals["self"]
        for entry in caught.traceback
        if isinstance(entry.frame.f_locals.get("self"), aicf.Step)
    ]
    assert steps
    for step in steps:
        assert "not compiled" in repr(step)
        with pytest.raises(aicf.GraphError, match="never made"):
            step.replay()


def test_half_built_arrays_and_graphs():
    for kind in (aicf.Array, aicf.Outputs, aicf.Report, aicf._core.Graph, aicf._core.GraphReader):
        made = kind.__new__(kind)
        for use in ("ndim", "numpy", "keys", "lines", "to_json", "finish", "__repr__"):
            if use in vars(kind):
                with pytest.raises(aicf.GraphError, match=f"{kind.__name__}: this one was never"):
                    found = getattr(made, use)
                    found()
    for use in (np.from_dlpack, np.asarray):
        with pytest.raises(aicf.GraphError, match="Array: this one was never made"):
            use(aicf.Array.__new__(aicf.Array))
    step = aicf.Graph("g")
    step.output("y", step.input("x", (2,)) * 2.0)
    with pytest.raises(aicf.GraphError, match="Array: this one was never made"):
        step.compile(device="cpu")(x=aicf.Array.__new__(aicf.Array))


def test_made_twice():
    g = aicf.Graph("g")
    g.output("y", g.input("x", (2,)) + 1.0)
    step = g.compile(device="cpu")
    with pytest.raises(aicf.GraphError, match="Step: __init__ of one that is made already"):
        step.__init__(g, device="cpu")
    assert (step(x=np.ones(2, np.float32))["y"].numpy() == 2).all()


def test_copies_and_pickles():
    g = aicf.Graph("g")
    g.output("y", g.input("x", (2,)) + 1.0)
    step = g.compile(device="cpu")
    out = step(x=np.ones(2, np.float32))
    for thing in (step, out, g.verify(), g._core):
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot pickle"):
                how(thing)


# ---- calls in our own words


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda s, a: s(1, 2), "step: got 2 inputs by position, the graph has 1: x"),
        (lambda s, a: s.run(1, 2), "run: got 2 inputs by position, the graph has 1: x"),
        (lambda s, a: s.capture(True), "capture: got 1 arguments too many; it takes no arguments"),
        (lambda s, a: a.copy(1), "copy: got 1 arguments too many"),
        (lambda s, a: a.__dlpack__(1), "__dlpack__: got 1 arguments too many"),
        (lambda s, a: aicf.num_threads(1), "num_threads: got 1 arguments too many"),
        (lambda s, a: aicf.Step.replay("abc", 1), "got a str; need an aicf.Step"),
        (lambda s, a: aicf.Array.numpy(s), "got a aicf.step.Step; need an aicf.Array"),
    ],
)
def test_wrong_arguments(call, words):
    g = aicf.Graph("g")
    g.output("y", g.input("x", (2,)) + 1.0)
    step = g.compile(device="cpu")
    array = step(x=np.ones(2, np.float32))["y"]
    with pytest.raises(TypeError, match=words) as caught:
        call(step, array)
    assert not FOREIGN.search(str(caught.value))


def test_messages_from_python_are_short():
    for text in ("x" * 5000, "\N{SNOWMAN}" * 3000):
        error = aicf.ShapeError(f"begin{text}end")
        assert isinstance(error, ValueError)
        said = str(error)
        assert len(said.encode()) <= 2048 and said.startswith("begin") and said.endswith("end")
    assert aicf.Error("a", 1).args == ("a", 1)


# ---- DLPack's arguments


@pytest.mark.parametrize(
    "error, options",
    [
        (TypeError, {"stream": "abc"}),
        (TypeError, {"stream": 1.5}),
        (TypeError, {"stream": True}),
        (TypeError, {"stream": 2**70}),
        (BufferError, {"stream": 1}),
        (TypeError, {"max_version": 1}),
        (TypeError, {"max_version": (1,)}),
        (TypeError, {"max_version": (1, 0, 0)}),
        (TypeError, {"max_version": ("1", "0")}),
        (TypeError, {"max_version": (2**70, 0)}),
        (TypeError, {"max_version": [1, 0]}),
        (TypeError, {"dl_device": (1,)}),
        (TypeError, {"dl_device": "cpu"}),
        (TypeError, {"dl_device": (None, 0)}),
        (BufferError, {"dl_device": (2**40, 0)}),
        (BufferError, {"dl_device": (-1, -1)}),
        (TypeError, {"copy": "x"}),
        (TypeError, {"copy": 1}),
    ],
)
def test_odd_dlpack_arguments(error, options):
    g = aicf.Graph("g")
    g.output("y", g.input("x", (2,)) + 1.0)
    array = g.compile(device="cpu")(x=np.ones(2, np.float32))["y"]
    with pytest.raises(error) as caught:
        array.__dlpack__(**options)
    assert not FOREIGN.search(str(caught.value))
    for fine in ({"max_version": (2**40, 0)}, {"stream": -1}, {"dl_device": (1, 0), "copy": True}):
        array.__dlpack__(**fine)
    with pytest.raises(TypeError, match="copy is 3; need None or a bool"):
        array.__array__(copy=3)


# ---- the environment


@pytest.mark.parametrize("text", ["abc", "0", "-1", "1.5", " 2", "2 ", "1e3", "9" * 30])
def test_thread_count_of_the_environment(text):
    """It is said at the first use, and nothing runs before."""
    code = """
    for use in (aicf.num_threads, lambda: g.compile(device="cpu")):
        try:
            use()
        except aicf.GraphError as error:
            print(error)
    aicf.set_num_threads(2)  # what a program says counts instead
    g.compile(device="cpu")(x=np.ones(2, np.float32))
    """
    done = child(code, START.split("step =")[0], AICF_NUM_THREADS=text)
    assert done.returncode == 0, done.stderr
    want = f'cpu: AICF_NUM_THREADS is "{text}"; need an integer >= 1'
    assert done.stdout.splitlines() == [want] * 2


@pytest.mark.parametrize("text, most", [("1", 1), ("2", 2), ("1000000", 10**6), ("", 10**6)])
def test_sound_thread_counts(text, most):
    done = child("print(aicf.num_threads())", AICF_NUM_THREADS=text)
    assert 1 <= int(done.stdout) <= most, done.stderr


def test_device_of_the_environment():
    code = """
    try:
        print(g.compile().device)
    except aicf.Error as error:
        print(type(error).__name__, error)
    """
    start = START.split("step =")[0]
    auto = child(code, start, AICF_DEVICE="")
    for text in ("auto", "cpu"):
        done = child(code, start, AICF_DEVICE=text)
        assert done.stdout == (auto.stdout if text == "auto" else "cpu\n"), done.stderr
    for text in ("gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cpu ", "x" * 5000):
        said = child(code, start, AICF_DEVICE=text).stdout
        assert said.startswith("GraphError device: AICF_DEVICE is '"), said
        assert "need one of auto, cpu, cuda, cuda:<index>" in said and len(said) < 300
    said = child(code, start, AICF_DEVICE="cuda:999").stdout
    assert said.startswith("DeviceUnavailable"), said
    said = child("", START, AICF_CPU_ISA="none").stderr
    assert 'aicf.DeviceUnavailable: device: AICF_CPU_ISA is "none"' in said


# ---- other interpreters, threads and forks


SECOND = """
import sys
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    sys.exit(77)
def second():
    other = interpreters.create(isolated=False)
    try:
        interpreters.run_string(other, "import aicf")
    except Exception as error:
        print("refused:", error)
    interpreters.destroy(other)
"""


@pytest.mark.parametrize("first", [True, False])
def test_second_interpreter(first):
    """It is refused, and the main one goes on, whichever imports first."""
    use = """
    print(step(x=x)["y"].numpy().shape)
    try:
        aicf.Graph("g").input("x", (-1,))
    except aicf.ShapeError:
        print("typed")
    """
    code = textwrap.dedent(use)
    start = SECOND + (f"second()\n{START}" if first else f"{START}\nsecond()\n")
    done = child(code, start)
    if done.returncode == 77:
        pytest.skip("this Python has no module of subinterpreters")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    refused, shape, typed = done.stdout.splitlines()
    assert "aicf: a subinterpreter cannot import it" in refused
    assert (shape, typed) == ("(2,)", "typed")


ENDS = {
    "daemon threads that replay": """
        def work():
            mine = step
            while True:
                mine.replay(100)
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
        """,
    "a daemon thread that sleeps on its outputs": """
        def work():
            mine = step(x=x)
            time.sleep(1000)
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
        """,
    "a fork while a thread holds outputs": """
        go = threading.Event()
        def work():
            mine = step(x=x)
            go.wait()
        thread = threading.Thread(target=work)
        thread.start()
        if (pid := os.fork()) == 0:
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        go.set()
        thread.join()
        """,
    "a fork in a thread": """
        def work():
            mine = step(x=x)
            if (pid := os.fork()) == 0:
                mine = aicf.Graph("child")
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """,
    "hooks that still compute": """
        import atexit
        atexit.register(lambda: step(x=x))
        atexit.register(g.compile, device="cpu")
        aicf.kept = [step, step(x=x)]
        """,
    "an exception": "raise SystemExit(0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_quiet_ends(end):
    """No line of leaks, no signal: what stopped threads hold is nobody's fault."""
    done = child(ENDS[end])
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)


def test_leaks_are_still_told():
    """The report itself is not switched off."""
    done = child("import ctypes; ctypes.pythonapi.Py_IncRef(ctypes.py_object(step))")
    assert "leaked" in done.stderr
