"""Loops on the CUDA backend, on a driver without a GPU that checks every node."""

import os
import subprocess
import sys

import pytest
from test_cuda_fake import HERE, assert_clean, driver, run  # noqa: F401

SCRIPT = """
import tempfile
import time
import numpy as np
import aicf
from aicf import _core
from tensors import CapsuleTensor


def build(turns):
    g = aicf.Graph("loop")
    x, h = g.input("x", (turns, 4, 8)), g.input("h", (4, 8))
    w = g.param("w", (8, 8))
    last, ys = aicf.scan(lambda c, row: 2 * (aicf.tanh(aicf.linear(c, w) + row),), h, x)
    g.output("last", last)
    g.output("slope", aicf.grad(aicf.sum(last * last) + aicf.sum(ys), w))
    return g

turns, arch, apart = {turns}, {arch!r}, {apart}
passes = [name for name in _core.pass_names() if not apart or name != "loops"]
g = build(turns)
if arch:
    programs = _core.cuda_programs(g._core, passes, 132, arch, "fp32")
    _core.cuda_cubins(programs, arch)
    few = _core.cuda_programs(build(10)._core, passes, 132, arch, "fp32")
    print(len(programs), len(few))
else:
    began = time.perf_counter()
    step = g.compile(device="cuda", passes=passes)
    print("seconds", time.perf_counter() - began)
    given = dict(x=np.zeros((turns, 4, 8), np.float32), h=np.zeros((4, 8), np.float32))
    step(**given)
    step.replay(2)
    step.run(**given)
    step._profile(1)
    assert [tuple(launch) for launch in step.trace] == [
        (op["op"], op["kernel"]) for op in step.plan.ops
    ]
    spare = build(turns).compile(device="cuda", passes=passes)
    weight = spare.params["w"].__dlpack__(max_version=(1, 0), copy=True)
    del spare
    step.bind(w=CapsuleTensor(weight))  # every turn's launches are patched
    step(**given)
    with tempfile.TemporaryDirectory() as folder:
        file = folder + "/step"
        step.export(file)
        del step
        aicf.load_step(file, device="cuda")(**given)
    print("done")
"""


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("turns", [10, 1000])
def test_a_loop(driver, turns, apart):  # noqa: F811
    """As many programs for 1,000 turns as for 10. Each turn's launches are among the graph's nodes,
    or the loop is one of them; a bind patches them, and the driver checks what each reads and
    writes against what comes before."""
    cache = {**os.environ, "AICF_CACHE_DIR": str(driver / "cache"), "PYTHONPATH": str(HERE)}
    script = SCRIPT.format(turns=turns, arch="sm_90a", apart=apart)
    told = subprocess.run(
        [sys.executable, "-c", script], env=cache, check=True, capture_output=True, text=True
    ).stdout
    assert len(set(told.split())) == 1
    out, counts = run(driver, SCRIPT.format(turns=turns, arch="", apart=apart))
    words = out.split()
    assert words[0] == "seconds" and words[-1] == "done"
    assert (counts["calls"] > 10 * turns) == (apart or turns == 10)
    assert_clean(counts)
