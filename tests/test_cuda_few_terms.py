"""Products of few terms and many results on the GPU: every tiling has the CPU's bits."""

import aicf
import numpy as np
import pytest
from aicf import _core
from test_cuda_bits import assert_same

pytestmark = pytest.mark.gpu

KINDS = {
    "float32": ("float32", "fp32"),
    "float64": ("float64", "fp32"),
    "float16": ("float16", "fp32"),
    "bfloat16": ("bfloat16", "fp32"),
    "tf32": ("float32", "tf32"),
    "fp16": ("float32", "fp16"),
    "bf16": ("float32", "bf16"),
}
LAYOUTS = ["", "a", "b", "ab"]  # which operands are stored transposed
SIZES = [(517, 263), (256, 520), (130, 1031), (512, 257)]


def check(k, kind, layout, m, n, rng):
    """With what follows the product, from arrays of any magnitude."""
    dtype, math = KINDS[kind]
    g, arrays, values = aicf.Graph("product"), {}, []
    for which, shape in (("a", (m, k)), ("b", (k, n))):
        turned = which in layout
        stored = shape[::-1] if turned else shape
        arrays[which] = (rng.standard_normal(stored) * 2.0 ** rng.integers(-9, 9, stored)).astype(
            "float64" if dtype == "float64" else np.float32
        )
        v = g.input(which, stored, arrays[which].dtype.name)
        v = v if v.dtype == dtype else aicf.cast(v, dtype)
        values.append(aicf.permute(v, (1, 0)) if turned else v)
    y = aicf.matmul(*values)
    arrays["rest"] = rng.standard_normal((m, n)).astype(arrays["a"].dtype)
    rest = g.input("rest", (m, n), arrays["a"].dtype.name)
    y = y if y.dtype == rest.dtype else aicf.cast(y, rest.dtype)
    g.output("y", aicf.relu(y + rest))
    want = g.compile(device="cpu", math=math, tensor_cores="sm_90")(**arrays)["y"].numpy()
    known = _core.cuda_candidates(g._core, _core.pass_names(), math=math)  # empty of a single one
    choices = [{op: name} for op, names in known.items() for name in names] or [None]
    assert len(choices) > 2 or dtype == "float64", (k, kind, known)
    for choice in choices:
        step = g.compile(device="cuda", math=math, candidates=choice)
        assert_same(want, step(**arrays)["y"].numpy(), f"{m}x{n}x{k} {kind} '{layout}' {choice}")
        assert not any(launch.kernel.endswith("_small") for launch in step.trace)


@pytest.mark.parametrize("k", range(1, 34))
def test_each_tiling(k, make_rng):
    kind, layout = list(KINDS)[k % len(KINDS)], LAYOUTS[k % len(LAYOUTS)]
    check(k, kind, layout, *SIZES[k // 2 % len(SIZES)], make_rng(k))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_layout(kind, layout, make_rng):
    """Whole fours of each operand, and a batch of 16 as weight gradients have."""
    check(16, kind, layout, 256, 512, make_rng(40))
