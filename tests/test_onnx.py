"""ONNX's own cases of its ops: none is computed otherwise, and what is computed only grows."""

import pytest
from counts import stated


def test_node_cases():
    pytest.importorskip("onnx")
    import onnx_cases

    rows = onnx_cases.count()
    wrong = {row["op"]: row["why"] for row in rows if row.get("wrong")}
    assert wrong == {}
    total = onnx_cases.totals(rows)
    least, ops = stated("ONNX's ops")
    assert total["ops"] >= least and len(rows) == ops
    least, cases = stated("Node cases of these")
    assert total["right"] >= least and sum(total[o] for o in onnx_cases.OUTCOMES) == cases
