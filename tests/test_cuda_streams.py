"""Streams of a GPU: the fake driver knows what is ordered behind what, and steps keep to it."""

import os
import subprocess
import sys
from pathlib import Path

import emulate
import pytest
from aicf import _core

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with the fake driver as libcuda.so.1, and a kernel cache."""
    if not hasattr(_core, "cuda_info"):
        pytest.skip("this build has no CUDA backend")
    if emulate.missing():
        pytest.skip(emulate.missing())
    folder = tmp_path_factory.mktemp("streams")
    emulate.build_driver(folder)
    return folder


def run(script, folder, driver=None):
    """In a process of its own."""
    more = {"LD_LIBRARY_PATH": str(driver)} if driver else {}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "AICF_CACHE_DIR": str(folder / "cache"), **more},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
    )


COMMANDS = """
import ctypes
cu = ctypes.CDLL("libcuda.so.1")
pointer, size = ctypes.c_void_p, ctypes.c_size_t
cu.cuCtxSetCurrent(pointer(2))
def made(name, *more):
    handle = pointer()
    assert getattr(cu, name)(ctypes.byref(handle), *more) == 0
    return handle
a, b, event = made("cuStreamCreate", 1), made("cuStreamCreate", 1), made("cuEventCreate", 0)
x = made("cuMemAllocAsync", size(256), a)
def use(stream):
    assert cu.cuMemsetD8Async(x, 0, size(256), stream) == 0
def order(first, then):
    assert cu.cuEventRecord(event, first) == cu.cuStreamWaitEvent(then, event, 0) == 0
def wait(stream):
    assert cu.cuStreamSynchronize(stream) == 0
def free(stream):
    assert cu.cuMemFreeAsync(x, stream) == 0
def free_now():
    assert cu.cuMemFree_v2(x) == 0
{commands}
"""
UNMADE, USED = "nothing orders behind its allocation", "nothing orders behind another one's use"
RUNNING = "the device may still use"


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        ("use(a); free(a)", None),
        ("use(b)", UNMADE),
        ("order(a, b); use(b)", None),
        ("order(b, a); use(b)", UNMADE),
        ("wait(a); use(b)", None),
        ("wait(b); use(b)", UNMADE),
        ("order(a, b); use(b); free(a)", USED),
        ("order(a, b); use(b); order(b, a); free(a)", None),
        ("order(a, b); use(b); free(b)", None),
        ("order(a, b); use(b); wait(b); free(a)", None),
        ("order(a, b); order(b, a); use(b); free(a)", USED),
        ("use(None); order(b, a); free(a)", None),
        ("use(a); free_now()", RUNNING),
        ("use(a); wait(a); free_now()", None),
        ("use(a); order(a, b); wait(b); free_now()", None),
        ("use(a); wait(b); free_now()", RUNNING),
    ],
)
def test_the_driver_knows_what_is_ordered(driver, commands, says):
    """The default stream waits for the others, which wait for it."""
    done = run(COMMANDS.format(commands=commands.replace("; ", "\n")), driver, driver)
    if says:
        assert done.returncode and says in done.stderr
    else:
        assert done.returncode == 0, done.stderr


STEPS = """
import sys
import aicf
import numpy as np
from aicf import _core

def graph(rows, *names):
    g = aicf.Graph("graph")
    y = g.input("x", (rows, 40))
    for name in names:
        y = aicf.tanh(y @ g.param(name, (40, 40)))
    if len(names) == 1:
        g.minimize(aicf.mean(y * y), aicf.optim.SGD(lr=0.1))
    g.output("y", y)
    return g

def compiled(rows, *names, **options):
    g = graph(rows, *names)
    if sys.argv[1:] == ["warm"]:
        programs = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
        return _core.cuda_cubins(programs, "sm_90a")
    return g.compile(device="cuda", **options)

x = {rows: np.ones((rows, 40), np.float32) for rows in (24, 700)}
first, other = compiled(700, "a"), compiled(24, "b")
both = compiled(24, "a", "b", share=[first, other])
if sys.argv[1:] != ["warm"]:
    for turn in range(2):
        first(x=x[700])
        other(x=x[24])
        both(x=x[24])
        both.replay(3)
    second = compiled(700, "a")
    second(x=first(x=x[700])["y"])  # by the device's memory, from one stream to another
    del first, other
    third = compiled(24, "b")
    both(x=third(x=x[24])["y"])
    del second, both
    third.replay(2)
    print("done")
"""


def test_steps_on_streams_of_their_own(driver):
    """Memory goes from step to step, and each ends before or after those it has met."""
    warm = run(STEPS.replace("sys.argv[1:]", '["warm"]'), driver)
    assert warm.returncode == 0, warm.stderr
    done = run(STEPS, driver, driver)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
