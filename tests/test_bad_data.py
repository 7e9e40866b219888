"""Indices and labels out of range raise before a param, state or output is written, and name node,
line, element, number and range; what is ignored or not looked at stays valid."""

import aicf
import numpy as np
import pytest
from compare import assert_bits
from conftest import outputs_of

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

ROWS = 7

# (g, table [ROWS, 4], indices [5, 4] or [5]) -> a value that depends on the table
OPS = {
    "Take": lambda g, w, i: aicf.embedding(i, w),
    "Gather": lambda g, w, i: aicf.gather(w, 0, i),
    "take_along_axis": lambda g, w, i: aicf.take_along_axis(w, i, 0),
    "index_select": lambda g, w, i: aicf.index_select(w, 0, i[:, 0]),
    "CrossEntropy": lambda g, w, i: aicf.cross_entropy(aicf.take(w.T, g.zeros5), i[:, 0]),
    "nll_loss": lambda g, w, i: aicf.nll_loss(aicf.take(w.T, g.zeros5), i[:, 0]),
    "one_hot": lambda g, w, i: aicf.one_hot(i[:, 0], ROWS) @ w,
    "scatter": lambda g, w, i: aicf.scatter(w, 0, i, 2.0) * w,
    "ScatterAdd": lambda g, w, i: aicf.scatter_add(w, 0, i, w[:5]) * w,
    "index_add": lambda g, w, i: aicf.index_add(w, 0, i[:, 0], w[:5]) * w,
    "scatter_reduce": lambda g, w, i: aicf.scatter_reduce(w, 0, i, w[:5], "amax") * w,
    "shown through views": lambda g, w, i: aicf.take(w, aicf.permute(i, (1, 0)).reshape((2, 10))),
    "computed": lambda g, w, i: aicf.take(w, (i * 3 - 2 * i) * 1),
    "in a loop": lambda g, w, i: aicf.scan(lambda c, row: (c + aicf.take(w, row), None), w[:4], i)[
        0
    ],
}


class Bed:
    """A table, Adam, and a counter: every kind of state that a step may write."""

    def __init__(self, op, device="cpu", **options):
        g = aicf.Graph("bad_data")
        g.zeros5 = g.constant(np.zeros(5, np.int32))
        w, count = g.param("w", (ROWS, 4)), g.state("count", (), "int32")
        g.assign(count, count + 1)
        y = OPS[op](g, w, g.input("i", (5, 4), "int32"))
        loss = aicf.sum(y * y)
        g.minimize(loss, aicf.optim.Adam(lr=0.1))
        g.output("loss", loss)
        g.output("all", aicf.dropout(w, 0.5), keep=3)
        self.graph, self.step = g, g.compile(device=device, seed=3, **options)

    def everything(self):
        outputs = outputs_of(self.step.outputs) if self.step.steps_run else {}
        return {**self.step.state_dict(), **outputs}


def good(k=0):
    return (np.arange(20, dtype=np.int32).reshape(5, 4) + k) % ROWS


def same(bed, before):
    for name, array in bed.everything().items():
        assert_bits(array, before[name], name)


WAYS = {
    "call": lambda step, i: step(i=i),
    "run": lambda step, i: step.run(i=i),
    "run_many": lambda step, i: step.run_many(i=i[None]),
}


@pytest.mark.parametrize("number", [-1, ROWS, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("op", OPS)
def test_each_op_refuses_the_element(op, number, device):
    bed = Bed(op, device)
    twin = Bed(op, device)
    for k in range(2):
        bed.step(i=good(k))
        twin.step(i=good(k))
    bad = good(2)
    bad[1, 0] = number
    bad[3, 0] = ROWS + 3
    for way, act in WAYS.items():
        before, run = bed.everything(), bed.step.steps_run
        with pytest.raises(aicf.BadValue) as caught:
            act(bed.step, bad)
        assert bed.step.steps_run == run, way
        same(bed, before)
        error = caught.value
        assert error.kind == "index" and "the step has not run" in str(error)
        assert f"need 0 to {ROWS - 1}" in str(error) and "test_bad_data.py:" in str(error)
        if op != "computed":
            assert (error.name, error.index, error.number) == ("i", (1, 0), number)
            assert f'"i", which hold {number} at [1, 0]' in str(error)
    bed.step(i=good(2))
    twin.step(i=good(2))
    same(bed, twin.everything())


@pytest.mark.parametrize("op", ["Take", "computed"])
def test_the_steps_of_run_many_before_it_have_run(op, device):
    bed, twin = Bed(op, device), Bed(op, device)
    batches = np.stack([good(k) for k in range(5)])
    batches[3, 4, 2] = ROWS
    with pytest.raises(aicf.BadValue, match=f"hold {ROWS} at"):
        bed.step.run_many(i=batches)
    assert bed.step.steps_run == 3
    twin.step.run_many(i=batches[:3])
    same(bed, twin.everything())


def test_what_is_bound_is_looked_at_before_each_run():
    bed = Bed("Take")
    memory = good()
    bed.step.bind(i=memory)
    bed.step()
    before = bed.everything()
    memory[2, 2] = -3
    for act in (bed.step, bed.step.replay, bed.step.run, lambda: bed.step.replay(4)):
        with pytest.raises(aicf.BadValue, match=r"hold -3 at \[2, 2\]"):
            act()
        same(bed, before)
    memory[2, 2] = 3
    bed.step.replay(4)
    assert bed.step.steps_run == 5


def test_a_refused_input_leaves_what_stands():
    bed, twin = Bed("Take"), Bed("Take")
    for one in (bed, twin):
        one.step(i=good())
    with pytest.raises(aicf.BadValue):
        bed.step(i=good() - 1)
    for one in (bed, twin):
        one.step.replay(2)
    same(bed, twin.everything())


def test_a_state_as_index(device):
    """Looked at before each step, for the one before has changed it."""
    g = aicf.Graph("g")
    w, at = g.param("w", (4, 3)), g.state("at", (), "int64")
    y = aicf.sum(aicf.take(w, at))
    g.assign(at, at + 1)
    g.minimize(y, aicf.optim.SGD(lr=1.0))
    g.output("y", y)
    step = g.compile(device=device)
    with pytest.raises(aicf.BadValue, match=r'%1 i64\[\] "at", which hold 4 at \[\]'):
        step.replay(9)
    assert step.steps_run == 4 and int(step.state["at"]) == 4
    step.state["at"] = 1
    step.replay(3)


def test_constants_are_refused_when_compiled():
    g = aicf.Graph("g")
    g.output("y", aicf.take(g.param("w", (4, 3)), g.constant(np.array([[0, 1], [2, 9]]))))
    with pytest.raises(aicf.BadValue, match=r"^compile: node 0 Take .*hold 9 at \[1, 1\]"):
        g.compile(device="cpu")
    g.compile(device="cpu", checks="off")


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_what_is_ignored_is_valid(shape, device):
    g = aicf.Graph("g")
    x = g.param("x", (shape[0], 4, *shape[1:]))
    labels = g.input("labels", shape, "int64")
    loss = aicf.cross_entropy(x, labels, ignore_index=-100)
    g.minimize(loss, aicf.optim.SGD(lr=0.1))
    g.output("loss", loss)
    step = g.compile(device=device)
    data = np.ones(shape, np.int64)
    data.flat[3] = -100
    assert np.isfinite(float(step(labels=data)["loss"]))
    data.flat[4] = -99
    with pytest.raises(aicf.BadValue, match="hold -99 at .*need 0 to 3, or -100"):
        step(labels=data)


def test_elements_that_nothing_reads_are_not_looked_at(device):
    """Tokens but for the last of a row, and labels but for the first."""
    g = aicf.Graph("g")
    tokens = g.input("tokens", (2, 5), "int32")
    w = g.param("w", (6, 4))
    h = aicf.embedding(tokens[:, :-2], w)
    g.output("y", aicf.sum(h))
    step = g.compile(device=device)
    data = np.zeros((2, 5), np.int32)
    data[:, 3:] = 77
    step(tokens=data)
    data[1, 2] = 6
    with pytest.raises(aicf.BadValue, match=r"hold 6 at \[1, 2\]"):
        step(tokens=data)


# Of i [5, 4], what the turns of a loop take rows by: its elements, and a value that takes them.
IN_LOOPS = {
    "a part of a capture": (
        np.s_[1], lambda w, i: aicf.scan(lambda c, _: (c + aicf.take(w, i[1]), None), w[:4], w)[0],
    ),
    "parts with steps": (
        np.s_[::2, 1:3],
        lambda w, i: aicf.scan(lambda c, _: (c + aicf.take(w, i[::2, 1:3])[0], None), w[:2], w)[0],
    ),
    "a part of each row": (
        np.s_[:, 2],
        lambda w, i: aicf.scan(lambda c, row: (c + aicf.take(w, row[2]), None), w[0], i)[0],
    ),
    "a part of some rows": (
        np.s_[1:4, 2:],
        lambda w, i: aicf.scan(lambda c, row: (c + aicf.take(w, row[2:]), None), w[:2], i[1:4])[0],
    ),
    "a loop in a loop": (
        np.s_[:, 3],
        lambda w, i: aicf.scan(
            lambda c, row: (
                aicf.scan(lambda d, _: (d + aicf.take(w, row[3]), None), c, w)[0], None,
            ), w[0], i,
        )[0],
    ),
    "a whole capture of a loop in a loop": (
        np.s_[:, :],
        lambda w, i: aicf.scan(
            lambda c, _: (
                aicf.scan(lambda d, _: (d + aicf.take(w, i), None), c, w)[0], None,
            ), w.graph.constant(np.zeros((5, 4, 4), np.float32)), w,
        )[0],
    ),
    "through another shape": (
        np.s_[2:, :2],
        lambda w, i: aicf.scan(
            lambda c, _: (c + aicf.take(w, i.reshape((5, 2, 2))[2:, 0])[0], None), w[:2], w
        )[0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", IN_LOOPS)
def test_parts_that_a_loop_takes_rows_by(what, device):
    """Each element that is one is looked at, and no other."""
    place, build = IN_LOOPS[what]
    g = aicf.Graph("loops")
    g.output("y", build(g.constant(np.ones((ROWS, 4), np.float32)), g.input("i", (5, 4), "int32")))
    step = g.compile(device=device)
    taken = np.zeros((5, 4), bool)
    taken[place] = True
    for at in np.ndindex(5, 4):
        bad = good()
        bad[at] = ROWS
        if not taken[at]:
            step(i=bad)
            continue
        with pytest.raises(aicf.BadValue, match="test_bad_data.py") as caught:
            step(i=bad)
        assert (caught.value.name, caught.value.index, caught.value.number) == ("i", at, ROWS)


def test_ignored_labels_in_a_loop(device):
    g = aicf.Graph("g")
    scores, labels = g.input("scores", (3, 5, 4)), g.input("labels", (3, 5), "int64")

    def turn(total, row):
        loss = aicf.cross_entropy(row[0], row[1][1:], ignore_index=-100)
        return total + loss, None

    start = g.constant(np.float32(0))
    g.output("y", aicf.scan(turn, start, (scores[:, 1:], labels))[0])
    step = g.compile(device=device)
    x, good = np.zeros((3, 5, 4), np.float32), np.full((3, 5), 3)
    good[:, 0], good[1, 2] = 17, -100  # the first is not read
    step(scores=x, labels=good)
    good[2, 4] = 4
    with pytest.raises(aicf.BadValue, match=r"hold 4 at \[2, 4\]"):
        step(scores=x, labels=good)


def test_tensors_of_any_layout():
    """The position is that in the input, whatever memory it has."""
    step = Bed("Take").step
    wide = np.zeros((8, 5), np.int32)
    wide[6, 3] = 50
    for view, at in ((wide[::2].T, (3, 3)), (wide[7:3:-1].T, (3, 1)), (wide[4:].T, (3, 2))):
        with pytest.raises(aicf.BadValue, match="hold 50") as caught:
            step(i=view)
        assert caught.value.index == at
    step(i=wide[:4].T)


def test_a_bad_number_among_16384():
    """In each place of the runs that are looked at together."""
    g = aicf.Graph("g")
    g.output("y", aicf.take(g.param("w", (5, 1)), g.input("i", (16384,), "int64")))
    step = g.compile(device="cpu")
    for at in (0, 1, 4095, 8191, 16383):
        data = np.full(16384, 4)
        data[at] = 5
        with pytest.raises(aicf.BadValue, match=rf"hold 5 at \[{at}\]"):
            step(i=data)


SURE = {
    "grid_sample": lambda g, x: aicf.grid_sample(x, g.input("grid", (1, 3, 3, 2))),
    "adaptive pool": lambda g, x: aicf.adaptive_max_pool2d(x, 2, return_indices=True)[0],
    "unpool": lambda g, x: aicf.max_unpool2d(*aicf.max_pool2d(x, 2, return_indices=True), 2),
    "nanquantile": lambda g, x: aicf.nanquantile(x, 0.3),
    "topk": lambda g, x: aicf.topk(x, 2)[0],
    "cummax": lambda g, x: aicf.cummax(x, 1)[0],
    "random rows": lambda g, x: aicf.take(x, g.random_int((7,), 0, 4), 2),
    "shuffled": lambda g, x: aicf.take(x, g.random_permutation(4), 3),
    "drawn": lambda g, x: aicf.take(g.constant(np.arange(4)), aicf.categorical(x)),
    "counted": lambda g, x: aicf.take(x, g.step_count() % 4, 2),
    "interpolate": lambda g, x: aicf.interpolate(x, size=(7, 7)),
}


@pytest.mark.parametrize("name", SURE)
def test_what_functions_make_is_known_to_be_in_range(name):
    """Of the graph alone, so that no second step is compiled."""
    g = aicf.Graph("sure")
    g.output("y", SURE[name](g, g.input("x", (1, 2, 4, 4))))
    step = g.compile(device="cpu")
    assert not vars(step).get("_traps")


def test_what_is_sure_costs_nothing():
    """No second step is compiled for indices that cannot be out of range."""
    g = aicf.Graph("g")
    x, i = g.input("x", (3, 5)), g.input("i", (3,), "int64")
    sure = [
        aicf.argmax(x, 1),
        i % 5,
        aicf.clip(i, 0, 4),
        aicf.argsort(x)[:, 0],
        aicf.clip(i - 3, 0, 0),
    ]
    for k, at in enumerate(sure):
        g.output(f"y{k}", aicf.take(g.param(f"w{k}", (5, 2)), at))
    step = g.compile(device="cpu")
    assert not vars(step).get("_traps")
    step(x=np.zeros((3, 5), np.float32), i=np.array([-7, 99, 2**62]))
    g.output("z", aicf.take(g.param("z", (5, 2)), i + 1))
    assert vars(g.compile(device="cpu"))["_traps"]


@pytest.mark.parametrize("op", [*OPS])
def test_off_is_off(op):
    """A row of NaN or nothing, as said, and no call that raises."""
    bed = Bed(op, checks="off")
    bad = good()
    bad[1, 0] = ROWS
    bed.step(i=bad)
    assert bed.step.steps_run == 1


def test_a_file_keeps_its_checks(tmp_path):
    bed = Bed("Take")
    bed.step.export(tmp_path / "step.aicf")
    loaded = aicf.load_step(tmp_path / "step.aicf")
    bad = good()
    bad[4, 3] = ROWS
    with pytest.raises(aicf.BadValue, match=r"hold 7 at \[4, 3\].*the step has not run"):
        loaded(i=bad)
    assert loaded.steps_run == 0
    loaded(i=good())


def test_steps_that_share_and_profiles():
    bed = Bed("Take")
    other = bed.graph.compile(device="cpu", share=bed.step)
    before = bed.everything()
    bad = good()
    bad[0, 1] = -1
    with pytest.raises(aicf.BadValue), aicf.profiler():
        other(i=bad)
    same(bed, before)


def test_under_math_mixed():
    g = aicf.Graph("g")
    i = g.input("i", (4,), "int32")
    h = aicf.embedding(i, g.param("w", (6, 8))) @ g.param("v", (8, 8))
    g.minimize(aicf.sum(h * h), aicf.optim.SGD(lr=0.1))
    step = g.compile(device="cpu", math="mixed")
    with pytest.raises(aicf.BadValue, match=r"node 0 Take .*hold 6 at \[2\]"):
        step(i=np.array([0, 1, 6, 0], np.int32))


def test_no_such_choice():
    g = aicf.Graph("g")
    with pytest.raises(aicf.GraphError, match="compile: checks is 'of'.*; need one of"):
        g.compile(checks="of")


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8"])
def test_narrow_indices(dtype, device):
    """Looked at where they are; what is cast to another range, as it becomes."""
    wide = {"int8": "int64", "int16": "int64", "uint8": "int8"}[dtype]
    g = aicf.Graph("g")
    i = g.input("i", (4,), dtype)
    w = g.constant(np.arange(ROWS, dtype=np.float32))
    g.output("y", aicf.take(w, aicf.cast(aicf.cast(i, wide), "int64"), 0))
    step = g.compile(device=device)
    good = np.array([0, ROWS - 1, 1, 2], dtype)
    assert step(i=good)["y"].numpy().tolist() == good.tolist()
    bad = good.copy()
    bad[2] = 200 if dtype == "uint8" else -1
    with pytest.raises(aicf.BadValue, match="-56" if dtype == "uint8" else "-1"):
        step(i=bad)
