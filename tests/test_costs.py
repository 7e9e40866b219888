"""The page of costs is what the plans say, and lists every composed function."""

import aicf
import costs
import pytest
from aicf import _core

MODULES = (
    *(aicf.arrays, aicf.activations, aicf.losses, aicf.convolutions, aicf.pools, aicf.resampling),
    *(aicf.indexing, aicf.sampling, aicf.numerics, aicf.assembly, aicf.sequences),
    *(aicf.regularizers, aicf.heads, aicf.class_losses),
)


@pytest.mark.passes
@pytest.mark.skipif(not hasattr(_core, "cuda_plan"), reason="no CUDA backend in this build")
def test_the_page_is_current():
    """Else: python tests/costs.py --out docs/costs.md."""
    assert costs.PAGE.read_text() == costs.page()


def test_every_composed_function_is_listed():
    called = {call.partition("(")[0] for calls in costs.CALLS.values() for call in calls}
    composed = {name for module in MODULES for name in module.__all__}
    assert composed <= called
