"""Programs of every kind have the bits of the table that tests/program_bits.py writes."""

import program_bits
import pytest
from aicf import _core

SHARDS = 8


def test_cpu():
    found, other = program_bits.differing("cpu")
    assert len(found) > 1800
    assert not other, f"{_core.cpu_isa()}: {other[:20]}"


@pytest.mark.gpu
@pytest.mark.parametrize("shard", range(SHARDS))
def test_cuda(shard):
    found, other = program_bits.differing("cuda", (shard, SHARDS))
    assert len(found) > 200
    assert not other, other[:20]
