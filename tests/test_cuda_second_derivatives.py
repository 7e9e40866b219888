"""Gradients of gradients on the CUDA target: kernels are chosen and compiled without a device, and
steps captured by a fake driver."""

import aicf
import numpy as np
import pytest
from aicf import _core
from test_cuda_compile import compiled, own_cache  # noqa: F401 (a fixture)
from test_cuda_fake import assert_clean, driver, run  # noqa: F401 (a fixture)
from test_second_derivatives import OF_ONE_DTYPE, network, outline, twice

pytestmark = pytest.mark.skipif(
    not hasattr(_core, "cuda_programs"), reason="no CUDA backend in this build"
)
GROUP = 24


def second_derivatives(rows, dtype):
    """Those of all rows, in one graph."""
    g = aicf.Graph("second")
    for row in rows:
        arrays = row.arrays(np.random.default_rng(0), dtype=dtype)
        names = row.wrt(arrays)
        values = {n: g.input(f"{row.name} {n}", x.shape, str(x.dtype)) for n, x in arrays.items()}
        dy = g.input(f"{row.name} dy", outline(row, arrays), dtype)
        factors = [g.input(f"{row.name} {i}", arrays[n].shape, dtype) for i, n in enumerate(names)]
        for i, result in enumerate(twice(g, row, values, names, dy, factors)):
            g.output(f"{row.name} {i}", result)
    return g


def penalty():
    g = aicf.Graph("penalty")
    network(g, "float32")
    return g


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_op_has_a_kernel(dtype, arch):
    """A family takes it, whatever the passes make of it."""
    g = second_derivatives(OF_ONE_DTYPE, dtype)
    for passes in (_core.pass_names(), ()):
        assert _core.cuda_programs(g._core, passes, arch=arch, math="fp32")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(OF_ONE_DTYPE), GROUP))
def test_kernels_compile(first):
    compiled(second_derivatives(OF_ONE_DTYPE[first : first + GROUP], "float32"), "sm_90a")


@pytest.mark.slow
def test_a_network_compiles():
    compiled(penalty(), "sm_80")


STEPS = """
import sys
from pathlib import Path
import tensors
from aicf import _core

sys.path.insert(0, str(Path(tensors.__file__).resolve().parents[1] / "examples"))
import gradient_penalty, maml, pinn

for module in (gradient_penalty, maml, pinn):
    g = module.train_graph()
    if {arch!r}:
        programs = _core.cuda_programs(g._core, _core.pass_names(), 132, {arch!r}, "fp32")
        _core.cuda_cubins(programs, {arch!r})
    else:
        step = g.compile(device="cuda")
        step.replay(2)
        print(len(step.trace) == len(step.lowered))
"""


def test_examples_are_captured(driver):  # noqa: F811
    """The training steps of examples/ that differentiate gradients, each as one graph."""
    run(driver, STEPS.format(arch="sm_90a"), LD_LIBRARY_PATH="")
    out, counts = run(driver, STEPS.format(arch=None))
    assert out.split() == ["True"] * 3
    assert_clean(counts)
