"""Checkpoints of parts, of several steps, with metadata; what sharing takes over and refuses."""

import os
import re

import aicf
import numpy as np
import pytest
from compare import assert_bits


def two_layers(names=("block", "head"), lr=1e-2, width=4, **states):
    g = aicf.Graph("two")
    x, t = g.input("x", (3, 4)), g.input("t", (3, 2))
    y = g.dense(names[1], aicf.tanh(g.dense(names[0], x, width)), 2)
    loss = aicf.mse_loss(y, t)
    g.minimize(loss, aicf.optim.Adam(lr=lr))
    for name, (shape, dtype) in states.items():
        g.state(name, shape, dtype)
    g.output("loss", loss)
    return g


def batch(seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((3, 4), np.float32), "t": np.ones((3, 2), np.float32)}


@pytest.fixture
def step():
    return two_layers().compile(device="cpu", seed=1)


def other(**options):
    return two_layers(**options).compile(device="cpu", seed=2)


def same(a, b, names):
    return [name for name in names if (a[name] == b[name]).all()]


# ---- parts


@pytest.mark.parametrize("way", ["load", "load_state_dict"])
def test_only_some_names_are_read(step, tmp_path, way):
    step(**batch())
    step.save(tmp_path / "all")
    again = other()
    before = again.state_dict()
    source = tmp_path / "all" if way == "load" else step.state_dict()
    found = getattr(again, way)(source, only=("block.*", "opt.m.block.*"), skip="*.b")
    assert found.names == ("block.W", "opt.m.block.W")
    assert found.missing == found.unknown == ()
    after, wanted = again.state_dict(), step.state_dict()
    for name in after:
        assert_bits(after[name], (wanted if name in found.names else before)[name], name)


@pytest.mark.parametrize("way", ["load", "load_state_dict"])
def test_what_is_missing_or_unknown_may_stay(step, tmp_path, way):
    step.save(tmp_path / "f")
    again = two_layers(("block", "tail")).compile(device="cpu")
    begun = again.state_dict()
    source = tmp_path / "f" if way == "load" else step.state_dict()
    found = getattr(again, way)(source, strict=False)
    assert set(found.missing) == {f"{m}tail.{p}" for m in ("", "opt.m.", "opt.v.") for p in "Wb"}
    assert set(found.unknown) == {f"{m}head.{p}" for m in ("", "opt.m.", "opt.v.") for p in "Wb"}
    assert_bits(again.params["block.W"].numpy(), step.params["block.W"].numpy())
    assert_bits(again.params["tail.W"].numpy(), begun["tail.W"])


@pytest.mark.parametrize("way", ["load", "load_state_dict"])
def test_every_mismatch_is_in_one_message(tmp_path, way):
    def states(**leaves):
        g = aicf.Graph("states")
        for name, (shape, dtype) in leaves.items():
            g.state(name, shape, dtype)
        return g.compile(device="cpu")

    have = states(a=((2,), "float32"), b=((2,), "float32"), c=((2,), "int32"), d=((1,), "int32"))
    need = states(a=((3,), "float32"), e=((2,), "float32"), c=((2,), "int64"), d=((1,), "int32"))
    need.state["d"] = np.int32([7])
    have.save(tmp_path / "f")
    source = tmp_path / "f" if way == "load" else have.state_dict()
    with pytest.raises(aicf.GraphError) as caught:
        getattr(need, way)(source)
    for part in (
        'missing ["e"], unknown ["b"]; need exactly ["a", "e", "c", "d"]',
        '"a" has shape (2,); need (3,)',
        '"c" is int32; need int64',
    ):
        assert part in str(caught.value)
    with pytest.raises(aicf.ShapeError, match=r'"a" has shape .*"c" is int32; need int64'):
        getattr(need, way)(source, strict=False)
    assert need.state["d"].numpy() == [7]
    assert getattr(need, way)(source, strict=False, skip=("a", "c")).names == ("d",)
    assert need.state["d"].numpy() == [0]


@pytest.mark.parametrize("names", ["blok.*", ["block.*", "nothing"], 5, [5], b"x"])
def test_patterns_that_are_wrong(step, tmp_path, names):
    step.save(tmp_path / "f")
    for call in (
        lambda: step.load(tmp_path / "f", only=names),
        lambda: step.load(tmp_path / "f", skip=names),
        lambda: step.load_state_dict(step.state_dict(), only=names),
        lambda: step.save(tmp_path / "g", only=names),
    ):
        with pytest.raises(aicf.GraphError, match="only|skip"):
            call()
    assert not (tmp_path / "g").exists()


def test_weights_alone(step, tmp_path):
    step(**batch())
    step.save(tmp_path / "w", only=step.params)
    assert set(aicf.Checkpoint(tmp_path / "w")) == set(step.params)
    again = other()
    assert again.load(tmp_path / "w", only=again.params).names == tuple(again.params)
    for name in step.params:
        assert_bits(again.params[name].numpy(), step.params[name].numpy())


def test_numbers_may_stay(step, tmp_path):
    """What an optimizer is told, beside what it counts and gathers."""
    assert list(step.numbers) == ["opt.lr", "opt.beta1", "opt.beta2", "opt.eps"]
    step(**batch())
    step.save(tmp_path / "all")
    step.save(tmp_path / "some", skip=step.numbers)
    for path in ("all", "some"):
        again = other(lr=0.5)
        again.load(tmp_path / path, skip=again.numbers)
        assert float(again.state["opt.lr"]) == 0.5 and int(again.state["opt.step"]) == 1
        again = other(lr=0.5)
        again.load(tmp_path / path, strict=False)
        assert float(again.state["opt.lr"]) == np.float32(1e-2 if path == "all" else 0.5)


# ---- metadata


def test_metadata_comes_back(step, tmp_path):
    said = {
        "epoch": 3,
        "note": "ünï",
        "best": 0.1,
        "args": {"layers": [2, 3], "on": True},
        "n": None,
    }
    step.save(tmp_path / "f", metadata=said)
    assert aicf.Checkpoint(tmp_path / "f").metadata == said
    other().load(tmp_path / "f")
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(tmp_path / "f", "np") as file:
        texts = file.metadata()
    assert texts["note"] == "ünï" and texts["epoch"] == "3"
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "g", metadata={"epoch": "3", "x": "y"})
    assert aicf.Checkpoint(tmp_path / "g").metadata == {"epoch": "3", "x": "y"}
    step.save(tmp_path / "f")
    assert aicf.Checkpoint(tmp_path / "f").metadata == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "x"}, {"json": "x"}, {3: "x"}, {"a": np.ones(2)}, {"a": float("nan")},
        {"a": (1, 2)}, {"a": {1: 2}}, {"a": "\ud800"}, {"a": "x" * (1 << 21)}, {"a": object()},
    ],
)  # fmt: skip
def test_metadata_that_no_file_holds(step, tmp_path, wrong):
    with pytest.raises(aicf.GraphError, match="metadata"):
        step.save(tmp_path / "f", metadata=wrong)
    assert os.listdir(tmp_path) == []


# ---- a file as a mapping


def test_a_checkpoint_is_read_where_it_is_looked_at(tmp_path):
    g = aicf.Graph("kinds")
    for name, (shape, dtype) in {
        "bits": ((3,), "bfloat16"), "flag": ((5,), "bool"), "w": ((2, 3), "float32"),
        "none": ((0, 2), "float64"), "n": ((), "int64"),
    }.items():  # fmt: skip
        g.state(name, shape, dtype, aicf.init.constant(1))
    step = g.compile(device="cpu")
    step.state["w"] = np.arange(6, dtype=np.float32).reshape(2, 3)
    step.save(tmp_path / "f")
    file = aicf.Checkpoint(tmp_path / "f")
    assert list(file) == list(step.state) and len(file) == 5 and "w" in file and 3 not in file
    assert repr(file) == "aicf.Checkpoint(5 tensors, 15 elements)"
    (tmp_path / "f").unlink()  # what is mapped stays
    for name in file:
        assert_bits(file[name], step.state[name].numpy())
        assert file[name].shape == step.state[name].shape
    assert not file["w"].flags.writeable
    with pytest.raises(aicf.GraphError, match='there is no "bit" .is it "bits".*; need one of'):
        file["bit"]
    assert file.get("bit") is None and file.get("n", 0) == 1
    again = g.compile(device="cpu", params={"w": file["w"]})
    assert_bits(again.state["w"].numpy(), step.state["w"].numpy())


def test_a_large_file_is_not_copied(tmp_path):
    """Of 256 MiB one small tensor is wanted: the file is sparse, and memory does not grow."""
    g = aicf.Graph("large")
    g.state("small", (4,))
    step = g.compile(device="cpu")
    step.save(tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].decode().strip()
    size = 256 << 20
    header = header[:-1] + (
        f',"large":{{"dtype":"F32","shape":[{size // 4}],"data_offsets":[16,{16 + size}]}}}}'
    )
    with open(tmp_path / "f", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode() + b"\1" * 16)
        file.truncate(file.tell() + size)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

    def memory(key):
        with open("/proc/self/status") as file:
            return int(re.search(rf"{key}:\s+(\d+)", file.read())[1]) << 10

    before = memory("VmRSS")
    assert step.load(tmp_path / "f", only="small").names == ("small",)
    assert step.load(tmp_path / "f", strict=False).unknown == ("large",)
    assert memory("VmHWM") - before < 16 << 20


# ---- several steps


def test_several_steps_in_one_file(step, tmp_path):
    """Steps that share write a name once; others are told apart by a name of theirs."""
    g = aicf.Graph("count")
    count = g.state("count", ())
    g.assign(count, count + 1.0)
    g.output("y", g.param("block.W", (4, 4)))
    second = g.compile(device="cpu", share=step)
    second.replay(3)
    aicf.save(tmp_path / "f", step, second, metadata={"epoch": 1})
    file = aicf.Checkpoint(tmp_path / "f")
    assert set(file) == {*step.params, *step.state, "count"} and file.metadata == {"epoch": 1}
    again = other()
    third = g.compile(device="cpu", share=again)
    assert len(aicf.load(tmp_path / "f", again, third).names) == len(file)
    assert float(third.state["count"]) == 3
    assert_bits(again.params["block.W"].numpy(), step.params["block.W"].numpy())
    with pytest.raises(aicf.GraphError, match='unknown \\["count"\\]'):
        aicf.load(tmp_path / "f", again)

    apart = other()
    with pytest.raises(aicf.GraphError, match='"block.W" with storage of their own'):
        aicf.save(tmp_path / "g", step, apart)
    assert not (tmp_path / "g").exists()
    aicf.save(tmp_path / "g", {"one": step, "two": {"w": apart.params}})
    assert {"one.block.W", "two.w.block.W"} <= set(aicf.Checkpoint(tmp_path / "g"))
    aicf.load(tmp_path / "g", {"two": {"w": step.params}, "one": apart})
    assert_bits(apart.params["block.W"].numpy(), again.params["block.W"].numpy())
    for wrong in (5, {"a": 5}, {5: step}, None):
        with pytest.raises(aicf.GraphError, match="a part"):
            aicf.save(tmp_path / "h", wrong)


# ---- sharing


def test_what_is_shared_and_what_begins_anew(step, tmp_path):
    assert step.shared == () and step.fresh == (*step.params, *step.state)
    g = aicf.Graph("more")
    g.output("y", g.param("block.W", (4, 4)) + g.param("extra", (4,)))
    more = g.compile(device="cpu", share=step)
    assert more.shared == ("block.W",) and more.fresh == ("extra",)
    more.export(tmp_path / "f")
    again = aicf.load_step(tmp_path / "f", share=step)
    assert again.shared == ("block.W",) and again.fresh == ("extra",)


@pytest.mark.parametrize(
    "theirs, mine",
    [
        ("fc1", "fc_1"), ("fc1", "FC1"), ("encoder.0", "encodr.0"), ("encoder", "enocder"),
        ("attention", "atention"), ("block.0", "block0"), ("classifier", "classifiers"),
        ("hidden", "hiddan"),
    ],
)  # fmt: skip
def test_a_name_that_is_almost_shared_is_refused(theirs, mine):
    step = two_layers((theirs, "head")).compile(device="cpu")
    g = aicf.Graph("near")
    g.output("y", g.dense(mine, g.input("x", (3, 4)), 4))
    with pytest.raises(aicf.GraphError, match=re.escape(f'"{mine}.W"')) as caught:
        g.compile(device="cpu", share=step)
    assert f'"{theirs}.W"' in str(caught.value) and "fresh=" in str(caught.value)
    apart = g.compile(device="cpu", share=step, fresh=f"{mine}.*")
    assert apart.fresh == (f"{mine}.W", f"{mine}.b")


@pytest.mark.parametrize(
    "theirs, mine",
    [
        ("fc1", "fc2"), ("0", "1"), ("d", "g"), ("q", "k"), ("wq", "wk"), ("enc", "dec"),
        ("slow", "fast"), ("opt_a", "opt_b"), ("q_proj", "k_proj"), ("decoder_x", "decoder_y"),
        ("block.3", "block.13"), ("head", "tail"), ("block", "tower"), ("query_a", "query_b"),
        ("lower", "tower"),
    ],
)  # fmt: skip
def test_names_that_differ_begin_anew(theirs, mine):
    step = two_layers((theirs, "out")).compile(device="cpu")
    g = aicf.Graph("new")
    g.output("y", g.dense("out", g.dense(mine, g.input("x", (3, 4)), 4), 2))
    assert g.compile(device="cpu", share=step).fresh == (f"{mine}.W", f"{mine}.b")


def test_another_shape_or_a_name_that_both_have_is_no_slip():
    step = two_layers(("fc1", "fc_1"), width=4).compile(device="cpu")
    g = aicf.Graph("new")
    x = g.input("x", (3, 4))
    g.output("y", g.dense("fc1", x, 4) + g.dense("fc_2", x, 4))
    assert g.compile(device="cpu", share=step).fresh == ("fc_2.W", "fc_2.b")
    g = aicf.Graph("wide")
    g.output("y", g.dense("fc__1", g.input("x", (3, 4)), 9))
    assert g.compile(device="cpu", share=step, fresh="*").shared == ()


def test_share_that_gives_nothing_is_refused(tmp_path):
    """With the name that is most like one of its own; where nothing begins anew it is none."""
    step = two_layers(("first", "out")).compile(device="cpu")
    g = aicf.Graph("none")
    g.output("y", g.dense("model.first", g.input("x", (3, 4)), 4))
    text = r'share= has none of \["model.first.W", "model.first.b"\] \(is it "first.W"\?\); it has '
    with pytest.raises(aicf.GraphError, match=text + r'\["first.W", .*or fresh="\*"'):
        g.compile(device="cpu", share=step)
    apart = g.compile(device="cpu", share=step, fresh=("model.*",))
    assert apart.shared == ()
    apart.export(tmp_path / "f")
    with pytest.raises(aicf.GraphError, match="load_step: " + text):
        aicf.load_step(tmp_path / "f", share=step)
    g = aicf.Graph("no_params")
    g.output("y", g.input("x", (3, 4)) * 2.0)
    assert g.compile(device="cpu", share=step).fresh == ()


def test_a_number_that_would_be_ignored_is_refused(tmp_path):
    step = other(lr=1e-2)
    step.save(tmp_path / "state")
    with pytest.raises(aicf.GraphError, match=r'"opt.lr" is 0.001 here and 0.00999'):
        two_layers(lr=1e-3).compile(device="cpu", share=step)
    assert float(step.state["opt.lr"]) == np.float32(1e-2)
    two_layers(lr=1e-2).compile(device="cpu", share=step)
    step.set("opt.lr", 1e-3)
    two_layers(lr=1e-3).compile(device="cpu", share=step)  # what it holds now
    two_layers(lr=1e-2).compile(device="cpu", share=step)  # what it began with
    assert float(step.state["opt.lr"]) == np.float32(1e-3)
    two_layers(lr=0.5).compile(device="cpu", share=step, params={"opt.lr": 0.5})
    assert float(step.state["opt.lr"]) == 0.5
    step.export(tmp_path / "step")
    again = aicf.load_step(tmp_path / "step")
    two_layers(lr=0.5).compile(device="cpu", share=again)
    with pytest.raises(aicf.GraphError, match=r'"opt.lr"'):
        two_layers(lr=0.25).compile(device="cpu", share=again)
