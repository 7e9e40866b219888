"""An optimizer's updates in several launches, where early gradients need not wait for late ones."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits
from conftest import DEVICES

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

# Where updates have launches of their own.
ALL = tuple(name for name in _core.pass_names() if name != "update_epilogues")
APART = tuple(name for name in ALL if name != "optimizers")
# Of a launch in a graph on 132 processors, and of an element that Adam reads and writes.
LAUNCH_US, BYTES_PER_US, ADAM_BYTES = 0.93, 132 * 23e3, 7 * 4


def net(widths, batch, optimizer=None, loss_of=aicf.cross_entropy, **minimize):
    g = aicf.Graph("net")
    h = g.input("x", (batch, widths[0]))
    for i, width in enumerate(widths[1:]):
        h = g.dense(str(i), aicf.relu(h) if i else h, width)
    labels = loss_of is aicf.cross_entropy
    loss = loss_of(
        h, g.input("t", (batch,) if labels else h.shape, "int64" if labels else "float32")
    )
    g.minimize(loss, optimizer or aicf.optim.Adam(lr=1e-2), **minimize)
    g.output("loss", loss)
    return g


def plan_of(g, passes=ALL, **options):
    return json.loads(_core.cuda_plan(g._core, passes, **options))


def members(op):
    return [step["op"] for step in op.get("body", ())]


def updates(plan):
    """(number, op) of the launches of updates."""
    return [pair for pair in enumerate(plan["ops"]) if "adam_step" in members(pair[1])]


def makers(plan, op, shape):
    """Numbers of the products that make gradients of a shape that an update reads."""
    count = int(np.prod(shape))
    read = {x["value"] for x in op["inputs"] if x["shape"] == [count]}
    return [
        i
        for i, other in enumerate(plan["ops"])
        if any(y["value"] in read and y["shape"] == list(shape) for y in other["outputs"])
    ]


@pytest.mark.parametrize("math", ["fp32", "tf32"])
def test_early_gradients_do_not_wait_for_the_last(math):
    plan = plan_of(net((784, 512, 512, 10), 128), math=math)
    (first, early), (second, late) = updates(plan)
    assert members(early).count("adam_step") == 4 and members(late) == ["adam_step"] * 2
    # The numbers are made once.
    assert sum(members(op).count("step_inc") for op in plan["ops"]) == 1
    assert "step_inc" in members(early) and first in late["waits"]
    (last,) = makers(plan, late, (512, 784))
    (middle,) = makers(plan, early, (512, 512))
    ops = plan["ops"]
    before, found = [first], set()
    while before:
        found.add(at := before.pop())
        before += ops[at]["waits"]
    assert middle in found and last not in found
    assert last in late["waits"] and early["lane"] != ops[last]["lane"]
    # Whoever reads a param is done before it changes.
    value = next(x["value"] for x in early["inputs"] if x["shape"] == [512 * 512])
    readers = {
        i for i, op in enumerate(ops) if i < first and value in {x["value"] for x in op["inputs"]}
    }
    assert readers and readers <= found


@pytest.mark.parametrize("columns", range(130, 260, 10))
def test_a_launch_more_saves_its_own_time(columns):
    """Each update runs beside the product behind it if what it moves takes longer than a launch."""
    count = len(updates(plan_of(net((1024, 512, columns, 10), 128))))
    early = 512 * columns + columns + 10 * columns + 10
    assert count == (2 if early * ADAM_BYTES / BYTES_PER_US > LAUNCH_US else 1)


ONE = [
    lambda: net((256, 256, 256, 10), 128),
    lambda: net((64, 64, 64, 64, 64), 16384, loss_of=aicf.mse_loss),
    lambda: net((784, 512, 512, 10), 128, clip_norm=1.0),
    lambda: net((784, 512, 512, 10), 128, loss_scale=aicf.optim.DynamicLossScale()),
    lambda: net((1024, 1024), 1024, loss_of=aicf.mse_loss),
]


@pytest.mark.parametrize("build", ONE, ids=range(len(ONE)))
@pytest.mark.parametrize("math", ["fp32", "tf32"])
def test_one_launch_where_it_wins_nothing_or_all_wait_alike(build, math):
    kernels = [op["kernel"] for op in plan_of(build(), math=math)["ops"]]
    assert sum("adam_step" in kernel for kernel in kernels) == 1


def test_gradients_that_are_there_at_the_start():
    g = aicf.Graph("updates")
    loss = aicf.sum(g.input("x", ()))
    for i in range(4):
        p = g.param(f"p{i}", (900, 900))
        loss = loss + aicf.sum(p * g.input(f"x{i}", (900, 900)))
    g.minimize(loss, aicf.optim.Adam())
    assert len(updates(plan_of(g))) == 1


def test_a_cpu_has_one():
    step = net((784, 512, 512, 10), 128).compile(device="cpu")
    assert sum("adam_step" in [s["op"] for s in op.get("body", ())] for op in step.lowered) == 1


def test_many_layers_take_few_launches():
    plan = plan_of(net((512,) * 9 + (10,), 128))
    found = updates(plan)
    assert 2 <= len(found) <= 5
    assert [members(op).count("step_inc") for _, op in found] == [1] + [0] * (len(found) - 1)
    waits = [max(op["waits"]) for _, op in found]
    assert waits == sorted(waits)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("widths", "batch"), [((300, 384, 384, 10), 64), ((257, 401, 333, 350, 10), 33)]
)
def test_bits_are_those_of_updates_apart(widths, batch, device):
    g = net(widths, batch)
    assert len(updates(plan_of(g))) > 1
    rng = np.random.default_rng(0)
    feed = {
        "x": rng.standard_normal((batch, widths[0])).astype("f4"),
        "t": rng.integers(0, widths[-1], batch),
    }

    def bits(step):
        for _ in range(3):
            loss = step(**feed)["loss"].numpy()
        step.replay(3)
        return {"loss": loss, **{name: p.numpy() for name, p in step.params.items()}}

    want = bits(g.compile(device="cpu", seed=1, passes=()))
    for passes in ("default", APART, ("optimizers",)):
        got = bits(g.compile(device=device, seed=1, passes=passes))
        for name, value in want.items():
            assert_bits(got[name], value, f"{name} of {passes}")


def sums(plan):
    """How many launches sum the gradients of biases alone, and what the plan takes."""
    kinds = [[m.get("anchor", m["op"]) for m in op.get("members", [op])] for op in plan["ops"]]
    return sum(set(kind) == {"reduce_sum"} for kind in kinds), plan["peak_bytes"]


@pytest.mark.parametrize("layers", [2, 6, 9])
def test_sums_wait_for_each_other_where_memory_has_room(layers):
    """Each would read its gradient while that is there; a launch takes those up to an update's."""
    g = net((512,) * (layers + 1), 4096, loss_of=aicf.mse_loss)
    apart = tuple(name for name in ALL if name != "horizontal")
    (few, peak), (many, most) = (sums(plan_of(g, passes)) for passes in (ALL, apart))
    assert many == layers and few <= max(layers // 2, 1) and peak <= most


@pytest.mark.gpu
def test_bits_of_many_tensors_in_one_launch():
    """So many that blocks find theirs by halving."""
    g = aicf.Graph("many")
    params = [g.param(f"p{i}", (60 + 37 * i, 3), init=aicf.init.uniform(-1, 1)) for i in range(30)]
    loss = sum(aicf.sum(p * p * (i + 1.0)) for i, p in enumerate(params))
    g.minimize(loss, aicf.optim.AdamW(lr=0.1))
    g.output("loss", loss)
    passes = tuple(name for name in ALL if name not in ("block", "horizontal"))
    launches = [members(op) for op in plan_of(g, passes)["ops"]]
    assert len(params) in [names.count("scaled_adam_step") for names in launches]
    ends = []
    for device in ("cpu", "cuda"):
        step = g.compile(device=device, seed=1, passes=passes)
        for _ in range(2):
            step()
        ends.append([step.params[f"p{i}"].numpy().tobytes() for i in range(len(params))])
    assert ends[0] == ends[1]


def parts(math, batch=5):
    """An embedding whose gradient has two parts: it is the output layer, too, or taken twice."""
    g = aicf.Graph("parts")
    w = g.param("w", (8209, 513), init=aicf.init.uniform(-1, 1))
    x, to = g.input("x", (batch,), "int32"), g.input("to", (batch,), "int32")
    if math == "mixed":
        loss = aicf.cross_entropy(aicf.linear(aicf.embedding(x, w), w), to)
    else:
        loss = aicf.mean(aicf.tanh(aicf.embedding(x, w)) * aicf.embedding(to, w))
    g.minimize(loss, aicf.optim.Adam(lr=0.1))
    g.output("loss", loss)
    return g


@pytest.mark.parametrize("math", ["fp32", "mixed"])
def test_parts_of_a_large_gradient_are_added_by_its_update(math):
    ((_, op),) = updates(plan_of(parts(math), math=math))
    found = [name for name in members(op) if name in ("cast", "add")]
    assert found == (["cast", "add"] if math == "mixed" else ["add"])


@pytest.mark.gpu
@pytest.mark.parametrize("math", ["fp32", "mixed"])
def test_bits_of_an_update_that_adds_parts_of_its_gradient(math):
    g = parts(math)
    rows = {"x": [3, 8208, 3, 0, 77], "to": [1, 8208, 2, 3, 0]}
    feed = {name: np.array(row, np.int32) for name, row in rows.items()}
    ends = []
    for device, options in (("cpu", {"tensor_cores": "sm_90"}), ("cuda", {})):
        step = g.compile(device=device, math=math, seed=1, **options)
        for _ in range(2):
            step(**feed)
        ends.append(step.params["w"].numpy().tobytes())
    assert ends[0] == ends[1]
