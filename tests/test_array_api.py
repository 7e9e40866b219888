"""The namespace of the Array API that the standard's suite is run with, and what the page says."""

import json

import array_api
import array_namespace as xp
import numpy as np
import pytest
from counts import stated

ROWS = np.array([[3.0, -1.5, 2.0], [0.5, -0.0, 7.0]])
CALLS = {
    "add": lambda p, x: p.add(x, x),
    "where": lambda p, x: p.where(x > 0, x, -x),
    "sum": lambda p, x: p.sum(x, axis=1),
    "std": lambda p, x: p.std(x, axis=0),
    "sort": lambda p, x: p.sort(x, axis=0),
    "cumulative_sum": lambda p, x: p.cumulative_sum(x, axis=1, include_initial=True),
    "take": lambda p, x: p.take(x, p.asarray([2, -3]), axis=1),
    "matmul": lambda p, x: p.matmul(x, p.matrix_transpose(x)),
    "roll": lambda p, x: p.roll(x, (1, 2), axis=(0, 1)),
    "unstack": lambda p, x: p.unstack(x, axis=1)[1],
    "masked": lambda p, x: x[x > 0],
    "power": lambda p, x: 2.0**x,
}


@pytest.mark.parametrize("name", CALLS)
def test_namespace(name):
    want = CALLS[name](np, ROWS)
    have = CALLS[name](xp, xp.asarray(ROWS))
    assert isinstance(have, xp.Array)
    assert have.data.dtype == want.dtype
    np.testing.assert_allclose(have.data, want, rtol=1e-14)


def test_dtypes_are_the_standards():
    assert xp.result_type(xp.uint8, xp.int32) == xp.int32
    for pair in ((xp.int32, xp.float32), (xp.bool, xp.int32), (xp.asarray([1]), 1.5)):
        with pytest.raises(TypeError):
            xp.result_type(*pair)


def test_the_page_is_that_of_the_record():
    """Else: python tests/array_api.py SUITE."""
    record = json.loads(array_api.RECORD.read_text())
    assert array_api.page(record) == array_api.PAGE.read_text()
    right, failed, absent = array_api.groups(record["functions"])
    assert stated("Array API") == (len(right), len(right) + len(failed) + len(absent))
    assert set(failed) <= set(array_api.KNOWN)
