"""Taps and traps on a driver without a GPU: twins on live memory, in order, given back."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import FRESH
from test_cuda_fake import (
    assert_clean,
    assert_one_failure,
    driver,  # noqa: F401 (a fixture)
    run,
)

WATCHED = """
import aicf
from aicf import _core, verify

name, case = next(iter(verify.CASES.items()))
graph = verify.build(name, case)
hidden = next(aicf.Value(graph, i) for i in range(99) if graph._core.value_name(i) == "relu_out")

def compile_all():
    for twin in (graph._core, _core.trap_graph(graph._core),
                 _core.tap_graph(graph._core, [hidden.id])):
        _core.cuda_cubins(_core.cuda_programs(twin, _core.pass_names()), "sm_90a")
"""

USE_WATCHED = """
import numpy as np
from tensors import CapsuleTensor

x = np.zeros((case.batch, case.inputs), np.float32)
t = np.zeros((case.batch, case.outputs), np.float32)

def use():
    step = graph.compile(device="cuda")
    alone = step.trace
    tap = step.tap(hidden)
    with step.trap():
        step(x=x, t=t, stream=1)
        spare = graph.compile(device="cuda")
        weight = spare.params["0.W"].__dlpack__(max_version=(1, 0), copy=True)
        del spare
        step.bind(**{"0.W": CapsuleTensor(weight)})  # the twins follow
        step.replay(3)
        step.run(x=x, t=t)
        step._profile(2)
    assert step.trace == alone and step.steps_run == tap.step == 7
    assert tap.numpy().shape == hidden.shape
    tap.close()
    step.replay(2)
    assert graph.compile(device="cuda", check=True).replay(2) and step.steps_run == 9

for attempt in range(2):
    try:
        use()
        print("done")
    except aicf.Error as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def watching(driver):  # noqa: F811
    """The driver, with the kernels of the graphs that watch in its cache."""
    environment = {**os.environ, "AICF_CACHE_DIR": str(driver / "cache")}
    script = WATCHED + "\ncompile_all()\n"
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    return driver


def test_a_watched_step(watching):
    """Twins on live addresses, in the step's order, given back."""
    out, counts = run(watching, WATCHED + USE_WATCHED)
    assert out.split() == ["done", "done"], out
    assert_clean(counts)


def test_a_watched_step_when_calls_fail(watching):
    """A typed error or a result, no memory kept, and the next one succeeds."""
    total = run(watching, WATCHED + USE_WATCHED)[1]["calls"]
    ks = range(1 + FRESH % 23, total // 2, max(1, total // 2 // 20))
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda k: run(watching, WATCHED + USE_WATCHED, FAKE_CUDA_FAIL=k), ks)
        for k, (out, counts) in zip(ks, results, strict=True):
            assert_one_failure(out, k)
            assert_clean(counts)
