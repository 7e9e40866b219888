"""What whole numbers and bools can do: each cell of the table in docs/supported.md."""

import re
from pathlib import Path

import aicf
import numpy as np
import pytest
from conftest import outputs_of

PAGE = Path(__file__).parents[1] / "docs" / "supported.md"
DTYPES = ("int8", "int16", "int32", "int64", "uint8", "bool")


def zeros(x):
    return x.graph.constant(np.zeros(x.shape, np.int64))


# By row of the table: what aicf does, what NumPy does (None: it is not compared).
ROWS = {
    "arithmetic": [
        (lambda x, y: x + y, np.add),
        (lambda x, y: x - y, np.subtract),
        (lambda x, y: x * y, np.multiply),
        (lambda x, y: x // y, lambda x, y: np.where(y == 0, 0, x // np.where(y == 0, 1, y))),
        (lambda x, y: x % y, lambda x, y: np.where(y == 0, 0, x % np.where(y == 0, 1, y))),
        (lambda x, y: -x, lambda x, y: np.negative(x)),
        (lambda x, y: aicf.abs(x), lambda x, y: np.abs(x)),
        (lambda x, y: aicf.sign(x), lambda x, y: np.sign(x)),
        (lambda x, y: aicf.square(x), lambda x, y: np.square(x)),
        (lambda x, y: aicf.maximum(x, y), np.maximum),
        (lambda x, y: aicf.minimum(x, y), np.minimum),
        (lambda x, y: aicf.clip(x, 1, 3), lambda x, y: np.clip(x, 1, 3)),
        (lambda x, y: aicf.relu(x), lambda x, y: np.maximum(x, 0)),
    ],
    "bits": [
        (lambda x, y: x & y, np.bitwise_and),
        (lambda x, y: x | y, np.bitwise_or),
        (lambda x, y: x ^ y, np.bitwise_xor),
        (lambda x, y: ~x, lambda x, y: np.invert(x)),
    ],
    "shifts": [
        (lambda x, y: x << aicf.clip(y, 0, 3), lambda x, y: np.left_shift(x, np.clip(y, 0, 3))),
        (lambda x, y: x >> aicf.clip(y, 0, 3), lambda x, y: np.right_shift(x, np.clip(y, 0, 3))),
    ],
    "comparisons": [
        (lambda x, y: x < y, np.less),
        (lambda x, y: aicf.equal(x, y), np.equal),
        (lambda x, y: aicf.logical_and(x, y), np.logical_and),
        (lambda x, y: aicf.logical_not(x), lambda x, y: np.logical_not(x)),
        (lambda x, y: aicf.any(x, 0), lambda x, y: np.any(x, 0)),
        (lambda x, y: aicf.all(x, 0), lambda x, y: np.all(x, 0)),
    ],
    "sums": [
        (lambda x, y: aicf.sum(x, 0), lambda x, y: np.sum(x, 0, dtype=x.dtype)),
        (lambda x, y: aicf.prod(x, 0), lambda x, y: np.prod(x, 0, dtype=x.dtype)),
        (lambda x, y: aicf.cumsum(x, 0), lambda x, y: np.cumsum(x, 0, dtype=x.dtype)),
        (lambda x, y: aicf.cumprod(x, 0), lambda x, y: np.cumprod(x, 0, dtype=x.dtype)),
        (lambda x, y: aicf.scatter_add(x, 0, zeros(x), x), None),
    ],
    "extremes": [
        (lambda x, y: aicf.max(x, 0), lambda x, y: np.max(x, 0)),
        (lambda x, y: aicf.min(x, 0), lambda x, y: np.min(x, 0)),
        (lambda x, y: aicf.argmax(x, 0), lambda x, y: np.argmax(x, 0)),
        (lambda x, y: aicf.cummax(x, 0)[0], lambda x, y: np.maximum.accumulate(x, 0)),
    ],
    "sorting": [
        (lambda x, y: aicf.sort(x, 0), lambda x, y: np.sort(x, 0)),
        (lambda x, y: aicf.argsort(x, 0), lambda x, y: np.argsort(x, 0, kind="stable")),
        (lambda x, y: aicf.topk(x, 2, 0)[0], None),
    ],
    "movement": [
        (lambda x, y: aicf.where(x > y, x, y), lambda x, y: np.where(x > y, x, y)),
        (lambda x, y: x[::-1, 1:], lambda x, y: x[::-1, 1:]),
        (lambda x, y: aicf.concat([x, y]), lambda x, y: np.concatenate([x, y])),
        (lambda x, y: aicf.pad(x, [(1, 0), (0, 2)]), lambda x, y: np.pad(x, [(1, 0), (0, 2)])),
        (lambda x, y: aicf.take_along_axis(x, zeros(x), 0),
         lambda x, y: np.take_along_axis(x, np.zeros(x.shape, np.int64), 0)),
    ],
    "rounding": [
        (lambda x, y: aicf.floor(x), lambda x, y: x),
        (lambda x, y: aicf.round(x), lambda x, y: x),
    ],
    "division": [
        (lambda x, y: x / y, None),
        (lambda x, y: x**2, None),
        (lambda x, y: x @ aicf.permute(y, (1, 0)), None),
        (lambda x, y: aicf.mean(x), None),
        (lambda x, y: aicf.exp(x), None),
        (lambda x, y: aicf.sqrt(x), None),
    ],
}  # fmt: skip


def cells():
    """By (row, dtype): "own", "bool", "int64" or "refused", as the page says."""
    text = PAGE.read_text()
    table = text[text.index("| whole numbers |") :].split("\n\n")[0].splitlines()
    heads = [cell.strip() for cell in table[0].strip("|").split("|")]
    found = {}
    for line in table[2:]:
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        for head, cell in zip(heads[1:], row[1:], strict=True):
            for dtype in head.replace("`", "").split(", "):
                found[row[0].split(":")[0], dtype] = cell
    return found


CELLS = cells()


def drawn(dtype, rng):
    if dtype == "bool":
        return rng.integers(0, 2, (5, 7)).astype(bool)
    info = np.iinfo(dtype)
    array = rng.integers(info.min, info.max, (5, 7), dtype=dtype, endpoint=True)
    array[0, :3] = info.min, info.max, 0
    return array


def test_the_table_is_whole():
    assert CELLS.keys() == {(row, dtype) for row in ROWS for dtype in DTYPES}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", ROWS)
def test_cell(row, dtype, device, rng):
    """Values and wrapping as NumPy's, or refused by an error of ours."""
    x, y = drawn(dtype, rng), drawn(dtype, rng)[::-1].copy()
    cell = CELLS[row, dtype]
    for i, (ours, theirs) in enumerate(ROWS[row]):
        g = aicf.Graph("g")
        a, b = g.input("x", x.shape, dtype), g.input("y", y.shape, dtype)
        if cell == "refused":
            with pytest.raises(aicf.DTypeError):
                ours(a, b)
            continue
        made = ours(a, b)
        g.output("made", made)
        assert made.dtype in (
            {"own": {dtype}, "own or int64": {dtype, "int64"}}.get(cell) or {cell}
        )
        got = outputs_of(g.compile(device=device)(x=x, y=y))["made"]
        if theirs is not None:
            with np.errstate(all="ignore"):
                want = theirs(x, y)
            np.testing.assert_array_equal(got, want, err_msg=f"{row} {i}")


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "complex64"])
def test_dtypes_that_are_not_there(dtype):
    g = aicf.Graph("g")
    with pytest.raises(aicf.DTypeError, match=dtype):
        g.input("x", (3,), dtype)
    with pytest.raises(aicf.DTypeError, match=dtype):
        aicf.cast(g.input("y", (3,)), dtype)
