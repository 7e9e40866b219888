"""PyTorch's own samples of its ops: none is computed otherwise, and what is computed only grows."""

import inspect

import pytest
from counts import stated

# What torch.nn.functional has beside the functions that its documentation lists.
INTERNAL = {"assert_int_or_pair", "boolean_dispatch", "native_channel_shuffle"}
# Another name of a function that both have.
ALSO_NAMED = {"upsample", "upsample_bilinear", "upsample_nearest"}  # interpolate


def test_samples_of_pytorch():
    pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    import opinfo

    rows = opinfo.count()
    wrong = {row["name"]: row["why"] for row in rows if row.get("wrong")}
    assert wrong == {}
    total = opinfo.totals(rows)
    least, ops = stated("PyTorch's ops")
    assert total["said"] >= least and total["ops"] == ops
    least, samples = stated("Samples of these")
    assert total["right"] >= least and total["samples"] == samples


def test_samples_in_int8():
    """None is computed otherwise, but where PyTorch goes on to another dtype."""
    pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    import opinfo

    rows = opinfo.count(each=1, dtype="int8")
    assert {row["name"]: row["why"] for row in rows if row.get("wrong")} == {}
    assert opinfo.totals(rows)["said"] >= 240


def test_every_name_is_an_op_of_pytorch():
    pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    import opinfo_names
    from torch.testing._internal.common_methods_invocations import op_db

    names = {op.name for op in op_db}
    assert set(opinfo_names.SAID_AS) - names == set()
    assert set(opinfo_names.SAID_AS) & set(opinfo_names.EXCLUDED) == set()


def test_functions_of_torch():
    """Those of torch.nn.functional that aicf has by the same name."""
    import aicf

    functional = pytest.importorskip("torch.nn.functional")
    names = {
        name
        for name, fn in inspect.getmembers(functional, callable)
        if not (
            name.startswith("_") or name.endswith(("_", "_with_indices")) or inspect.isclass(fn)
        )
        and getattr(fn, "__module__", None) in (None, "torch", "torch._C._nn", functional.__name__)
    }
    names -= INTERNAL
    least, of = stated("`torch.nn.functional`")
    assert len(names) == of
    assert sum(hasattr(aicf, name) or name in ALSO_NAMED for name in names) >= least
