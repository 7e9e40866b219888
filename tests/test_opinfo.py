"""PyTorch's own samples of its ops: none is computed otherwise, and what is computed only grows."""

import pytest

LEAST_OPS, LEAST_SAMPLES = 463, 10583


def test_samples_of_pytorch():
    pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    import opinfo

    rows = opinfo.count()
    wrong = {row["name"]: row["why"] for row in rows if row.get("wrong")}
    assert wrong == {}
    total = opinfo.totals(rows)
    assert total["said"] >= LEAST_OPS
    assert total["right"] >= LEAST_SAMPLES


def test_every_name_is_an_op_of_pytorch():
    pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    import opinfo_names
    from torch.testing._internal.common_methods_invocations import op_db

    names = {op.name for op in op_db}
    assert set(opinfo_names.SAID_AS) - names == set()
    assert set(opinfo_names.SAID_AS) & set(opinfo_names.EXCLUDED) == set()
