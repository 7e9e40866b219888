"""What `verify` lets pass compiles and runs: damaged graphs by the thousand, and rules by name."""

import json
import os
import re
import subprocess
import sys

import aicf
import numpy as np
import pytest

MUTANTS = 4000


def test_mutants():
    """Of damaged graphs none crashes, hangs, meets an InternalError or compiles unverified."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mutants.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, "--count", str(MUTANTS)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    said = done.stdout + done.stderr[-500:]
    assert done.returncode == 0, said
    tally = json.loads(done.stdout.splitlines()[-1])
    assert tally["mutants"] == MUTANTS and tally["faults"] == 0, said
    # Enough of them on each way, or the changes have lost their teeth.
    assert tally["found by verify"] > MUTANTS // 4 and tally["run"] > MUTANTS // 5, tally
    assert tally["not read"] > MUTANTS // 50 and tally["OutOfMemory"] > 0, tally


def record_of(build):
    g = aicf.Graph("damaged")
    build(g)
    return json.loads(g.to_json())


def train(g):
    x = g.input("x", (3, 4))
    loss = aicf.mean(g.dense("0", x, 2) * 2.0)
    g.minimize(loss, aicf.optim.Adam(lr=0.1))
    g.output("loss", loss)


def values_of(record, **fields):
    return [v for v in record["values"].values() if all(v.get(k) == x for k, x in fields.items())]


def loose_source(record):
    new = len(record["values"])
    target = record["values"][str(record["assigns"][0]["target"])]
    record["values"][str(new)] = {
        "id": new, "name": "loose", "role": "temp",
        "dtype": target["dtype"], "shape": target["shape"],
    }  # fmt: skip
    record["assigns"][0]["source"] = new


def one_moment_twice(record):
    v = next(v for v in record["values"].values() if v["name"] == "opt.v.0.W")
    v["slot"] = 0


def moment_of_an_input(record):
    w = next(v for v in record["values"].values() if v["name"] == "0.W")
    x = values_of(record, role="input")[0]
    x.update(shape=w["shape"], moment_of=w["id"], slot=2)


def unlike_attribute(record):
    node = next(n for n in record["nodes"] if n["op"] == "Mean")
    node["attrs"]["axes"] = [0, 0]


def unheld_number(record):
    values_of(record, name="opt.step")[0]["init"] = {"kind": "constant", "a": 1e300, "b": 0.0}


def seed_of_another_type(record):
    values_of(record, name="0.b")[0]["init"] = {"kind": "seed", "a": 0.0, "b": 0.0}


@pytest.mark.parametrize(
    "damage, words",
    [
        (loose_source, "is assigned .* which no node produces"),
        (
            one_moment_twice,
            'state "opt.v.0.W" is moment 0 of %.*as another state is; need one each',
        ),
        (moment_of_an_input, 'input "x" is moment 2 of %.*need a state'),
        (unlike_attribute, "given twice"),
        (unheld_number, "need a whole number that the dtype holds"),
        (seed_of_another_type, "the seed as content of f32.2.; need i64"),
    ],
)
def test_rules(damage, words):
    record = record_of(train)
    damage(record)
    with pytest.raises(aicf.FormatError, match=words):
        aicf.Graph.from_json(json.dumps(record))
    try:
        graph = aicf.Graph.from_json(json.dumps(record), strict=False)
    except aicf.FormatError:  # a content that no reader takes
        return
    assert not graph.verify()
    with pytest.raises(aicf.GraphError, match=words):
        graph.compile(device="cpu")


def test_bools_are_zero_or_one():
    record = record_of(lambda g: g.output("y", ~g.constant(np.array([True, False]))))
    values_of(record, role="constant")[0]["init"]["bytes"] = "0107"
    with pytest.raises(aicf.FormatError, match="neither 0 nor 1"):
        aicf.Graph.from_json(json.dumps(record), strict=False)


def test_attributes_of_a_loosely_read_graph():
    """What verify completes is what the rest of the compiler sees."""
    record = record_of(lambda g: g.output("y", aicf.softmax(g.input("x", (2, 3)) * 2.0)))
    (node,) = [n for n in record["nodes"] if n["op"] == "Softmax"]
    node["attrs"] = {}  # "axis" has a default
    graph = aicf.Graph.from_json(json.dumps(record), strict=False)
    assert graph.verify()
    y = graph.compile(device="cpu")(x=np.ones((2, 3), np.float32))["y"].numpy()
    assert np.allclose(y, 1 / 3)


def test_gradients_of_a_loosely_read_graph():
    record = record_of(lambda g: g.output("y", aicf.sum(aicf.exp(g.input("x", (2, 3))))))
    record["nodes"][0]["op"] = "NoSuchOp"
    graph = aicf.Graph.from_json(json.dumps(record), strict=False)
    y = aicf.Value(graph, record["outputs"][0]["value"])
    with pytest.raises(aicf.GraphError, match="unknown op"):
        graph.backward(y, [aicf.Value(graph, 0)])


def test_messages_are_short():
    """A message keeps where and what would be right, whatever stands between them."""
    record = record_of(train)
    for node in record["nodes"]:
        node["where"] = "w" * 70000
        node["inputs"] = []
    for call in (
        lambda: aicf.Graph.from_json(json.dumps(record)),
        lambda: aicf.Graph.from_json(json.dumps(record), strict=False).compile(device="cpu"),
    ):
        with pytest.raises(aicf.Error) as caught:
            call()
        text = str(caught.value)
        assert len(text.encode()) <= 2048 and "does not verify" in text
        assert "more [FAIL] lines" in text
    g = aicf.Graph("long")
    g.input("é" * 40000, (2,))
    with pytest.raises(aicf.GraphError) as caught:
        g.input("é" * 40000, (2,))
    text = str(caught.value)
    assert len(text.encode()) <= 2048 and text.startswith('input "éé')
    assert re.search(r"characters left out.*need a name of its own.* \(\S+\)$", text)


def test_two_optimizers_of_one_param():
    """Both gradients have a place, though the region of gradients has one for each param."""
    g = aicf.Graph("two")
    w, x = g.param("w", (3,)), g.input("x", (3,))
    results = []
    for i, factor in enumerate((1.0, 2.0)):
        grad = aicf.exp(x * factor)
        lr = g.constant(np.float32(0.1))
        (after,) = g._emit("SgdStep", [w, grad, lr])
        results.append(after)
        g.output(f"grad{i}", grad)
    g.assign(w, results[0])
    g.output("other", results[1])
    for passes in ("default", ()):
        step = g.compile(device="cpu", params={"w": np.zeros(3, np.float32)}, passes=passes)
        out = step(x=np.zeros(3, np.float32))
        assert np.allclose(out["other"].numpy(), -0.1)
        assert np.allclose(step.params["w"].numpy(), -0.1)


@pytest.mark.parametrize("size", [2**40, 2**58, 2**61])
def test_plans_beyond_any_memory(size):
    """Refused by what was planned, before anything is touched."""
    g = aicf.Graph("large")
    try:
        g.output("y", g.input("x", (size,), "uint8") + g.input("z", (size,), "uint8"))
    except aicf.ShapeError as error:
        assert size == 2**61 and "too large" in str(error)
        return
    with pytest.raises(aicf.OutOfMemory, match="plan: it takes more|cannot allocate.*need"):
        g.compile(device="cpu")
