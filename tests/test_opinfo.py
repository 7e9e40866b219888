"""PyTorch's own samples of its ops: none is computed otherwise, and what is computed only grows."""

import pytest

LEAST_OPS, LEAST_SAMPLES = 381, 8866


def test_samples_of_pytorch():
    pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    import opinfo

    rows = opinfo.count()
    wrong = {row["name"]: row["why"] for row in rows if row.get("wrong")}
    assert wrong == {}
    assert sum(row.get("right", 0) > 0 for row in rows) >= LEAST_OPS
    assert sum(row.get("right", 0) for row in rows) >= LEAST_SAMPLES
