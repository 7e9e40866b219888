"""Taps and traps: values of a step that it does not give, bad ones named before they are written,
and the step itself not changed by a bit, a launch or a line of its plan."""

import gc
import json
import math
import threading

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits
from conftest import outputs_of
from test_random_graphs import build_program, interpret, random_program

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

BATCH, TOKENS, CLASSES = 6, 11, 4


def network(third=lambda h: h, optimizer=None):
    """Embedding, three layers, dropout, Adam and a ring; and the line of what `third` adds."""
    g = aicf.Graph("network")
    x = g.input("x", (BATCH, 2, 5))
    tokens, labels = (
        g.input("tokens", (BATCH, 2), "int32"),
        g.input("labels", (BATCH * 2,), "int64"),
    )
    h = x + aicf.embedding(tokens, g.param("emb.W", (TOKENS, 5)))
    h = aicf.dropout(aicf.relu(g.dense("one", h, 8)), 0.25)
    h = aicf.tanh(g.dense("two", h, 8))
    h = third(g.dense("three", h, CLASSES))
    loss = aicf.cross_entropy(aicf.reshape(h, (BATCH * 2, CLASSES)), labels)
    g.minimize(loss, optimizer or aicf.optim.Adam(lr=0.01), clip_norm=1.0)
    g.output("loss", loss, keep=3)
    g.output("y", h)
    return g


def batch(rng):
    return {
        "x": rng.standard_normal((BATCH, 2, 5), np.float32),
        "tokens": rng.integers(0, TOKENS, (BATCH, 2)).astype(np.int32),
        "labels": rng.integers(0, CLASSES, BATCH * 2),
    }


def everything(step):
    return {**step.state_dict(), **{f"out {k}": v for k, v in outputs_of(step.outputs).items()}}


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert_bits(array, theirs[name], name)


def refused(step, act, **facts):
    """The BadValue of a call that changes nothing, with these facts."""
    before, run = everything(step) if step.steps_run else step.state_dict(), step.steps_run
    with pytest.raises(aicf.BadValue, match="the step has not run") as caught:
        act()
    assert step.steps_run == run
    assert_equal(everything(step) if run else step.state_dict(), before)
    error = caught.value
    for name, value in facts.items():
        assert getattr(error, name) == value, (name, vars(error))
    if error.node is not None:
        assert f"node {error.node} {error.op} ({error.source}" in str(error)
        assert error.source.startswith("test_watch.py:")
    if error.index is not None:
        assert f"{list(error.index)}" in str(error) and f"%{error.value} " in str(error)
    return error


# ---- taps


def test_a_tap_reads_the_last_run(device, rng):
    g = network()
    values = [aicf.Value(g, id) for id in range(g._core.mark().values)]
    step = g.compile(device=device)
    taps = step.tap(*values)
    data = batch(rng)
    plain = g.compile(device=device)
    for runs, act in [(1, "call"), (2, "run"), (22, "replay"), (24, "profile")]:
        for one in (step, plain):
            if act == "replay":
                one.replay(20)  # not in pieces of one step
            elif act == "profile":
                one.profile(2)
            else:
                (one if act == "call" else one.run)(**data)
        assert step.steps_run == runs and {tap.step for tap in taps} == {runs}
        assert_equal(everything(step), everything(plain))
        by_id = {tap.value.id: tap.numpy() for tap in taps}
        # What is assigned is what the state holds now, what is an output what that gives.
        for name in (*step.params, *step.state):
            after = g._core.assigned(g._core.find(name))
            if after >= 0:
                assert_bits(by_id[after], step.state_dict()[name], name)
        y = next(v for v in values if v.name == "reshape_out").id
        assert_bits(by_id[y].reshape(BATCH, 2, CLASSES), step.outputs["y"].numpy(), "y")


def test_taps_are_arrays(device, rng):
    g = aicf.Graph("g")
    x = g.input("x", (2, 3))
    half, total = aicf.cast(x, "bfloat16") * 2.0, aicf.sum(x)
    g.output("y", aicf.cast(half, "float32") + total)
    step = g.compile(device=device)
    tap, sum_tap = step.tap(half), step.tap(total)
    with pytest.raises(aicf.GraphError, match="no step has run since"):
        tap.read()
    data = rng.standard_normal((2, 3), np.float32)
    step(x=data)
    assert tap.read().dtype == "bfloat16" and tap.read().shape == (2, 3)
    assert np.asarray(tap).dtype == np.float32 and float(sum_tap) == pytest.approx(data.sum())
    assert tap.value == half and "step 1" in repr(tap)
    with tap:
        pass
    with pytest.raises(aicf.GraphError, match="is closed"):
        tap.numpy()
    step(x=-data)
    assert float(sum_tap) == pytest.approx(-data.sum()) and "closed" in repr(tap)


def test_values_that_fusion_removes(device, rng):
    g = aicf.Graph("g")
    x, w = g.input("x", (4, 64)), g.param("w", (32, 64))
    product = aicf.linear(x, w)
    inner = product * 2.0 + 1.0
    g.output("y", aicf.sum(aicf.exp(-aicf.abs(aicf.tanh(inner))), axis=1))
    step = g.compile(device=device)
    launched = {out["value"] for op in step.plan.ops for out in op["outputs"]}
    assert inner.id not in launched and (device != "cpu" or product.id not in launched)
    taps = step.tap(product, inner)
    data = rng.standard_normal((4, 64), np.float32)
    step(x=data)
    eager = aicf.Graph("g")
    x, w = eager.input("x", (4, 64)), eager.param("w", (32, 64))
    product = aicf.linear(x, w)
    eager.output("product", product)
    eager.output("inner", product * 2.0 + 1.0)
    out = eager.compile(device=device, passes=(), share=step).run(x=data)
    for name, tap in zip(("product", "inner"), taps, strict=True):
        assert_bits(tap.numpy(), out[name].numpy(), name)


@pytest.mark.parametrize("seed", range(50))
def test_every_value_of_a_random_graph(seed, device, make_rng):
    """Tapped from a fused step: the bits of a graph without passes that has them all as outputs."""
    rng = make_rng(seed)
    dtype = "float64" if rng.integers(3) == 0 else "float32"
    inputs, program = random_program(rng, int(rng.integers(5, 20)), 0.0)
    values = interpret(inputs, program)
    last = len(values) - 1

    def build():
        return build_program(inputs, program, [last], dtype, [np.full(values[last].shape, 0.5)])[0]

    g, eager = build(), build()
    step, plain = g.compile(device=device), g.compile(device=device)
    ids = range(g._core.mark().values)
    taps = step.tap(*(aicf.Value(g, id) for id in ids))
    assert str(step.plan) == str(plain.plan) and step.trace == plain.trace
    feed = {f"x{i}": x.astype(dtype) for i, x in enumerate(inputs)}
    outputs = outputs_of(plain(**feed))
    assert_equal(outputs_of(step(**feed)), outputs)
    for id in ids:
        eager.output(f"tapped{id}", aicf.Value(eager, id))
    expected = eager.compile(device=device, passes=()).run(**feed)
    for id, tap in zip(ids, taps, strict=True):
        assert_bits(tap.numpy(), expected[f"tapped{id}"].numpy(), f"%{id}\n{g}")
        tap.close()
    assert_equal(outputs_of(step.replay()), outputs)


@pytest.mark.parametrize("math", ["fp32", "bf16", "mixed"])
def test_a_watched_step_is_the_same_step(device, make_rng, math):
    """Of the same plan, launches and bits as one that nobody watches, tapped and trapped."""
    g = network()
    watched, plain = (g.compile(device=device, math=math, seed=2) for _ in range(2))
    plan, trace = str(plain.plan), plain.trace
    rng = make_rng(5)
    hidden = next(aicf.Value(g, id) for id in range(40) if "tanh" in g._core.value_name(id))
    for turn in range(4):
        tap = watched.tap(hidden) if turn % 2 else None
        with watched.trap() if turn > 1 else watched.tap(hidden):
            data = batch(rng)
            for step in (watched, plain):
                step(**data)
                step.replay(3)
        assert str(watched.plan) == plan and watched.trace == trace
        assert_equal(everything(watched), everything(plain))
        if tap:
            assert tap.read().dtype == ("bfloat16" if math == "mixed" else "float32")


def test_bound_and_shared_storage_is_followed(rng):
    g = aicf.Graph("g")
    x, w = g.input("x", (3,)), g.param("w", (3,), init=aicf.init.ones())
    h = x * w
    g.output("y", h + 1.0)
    step = g.compile(device="cpu", check=True)
    tap = step.tap(h)
    mine, weights = np.array([1, 2, 3], np.float32), np.array([2, 2, 2], np.float32)
    step.bind(x=mine, w=weights)
    step.replay()
    assert tap.numpy().tolist() == [2, 4, 6]
    mine[1] = np.nan
    refused(step, step.replay, kind="nan", name="x", index=(1,), node=None)
    mine[1], weights[2] = 5, np.inf
    refused(step, step.replay, kind="infinity", name="w", index=(2,), number=math.inf)
    step.params["w"] = np.array([1, 1, 1], np.float32)
    step.replay()
    assert tap.numpy().tolist() == [1, 5, 3]


def test_steps_that_share(device, rng):
    """Accumulate, apply and evaluate on the same params, of two machines, each watched."""

    def network(update):
        g = aicf.Graph("g")
        x, w = g.input("x", (4, 3)), g.param("w", (2, 3))
        total = g.state("total", (2, 3))
        h = aicf.linear(x, w)
        if update:
            g.assign(total, g.constant(np.zeros((2, 3), np.float32)))
            g.assign(w, w - total * 0.1)
        else:
            loss = aicf.mean(h * h)
            g.assign(total, total + g.backward(loss)[w])
            g.output("loss", loss)
        return g, h, total

    runs = []
    for check in (False, True):
        graph, h, total = network(False)
        add = graph.compile(device=device, check=check)
        apply = network(True)[0].compile(device=device, share=add, check=check)
        other = aicf.Graph("other")
        other.output("v", other.param("v", (5,)) * 2.0)
        apart = other.compile(device=device, seed=3)
        both = aicf.Graph("both")
        y = aicf.sum(both.param("w", (2, 3))) + aicf.sum(both.param("v", (5,)))
        both.output("y", y)
        seen = both.compile(device=device, share=(add, apart), check=check)
        taps = [add.tap(h), add.tap(total), seen.tap(y)] if check else []
        rng = np.random.default_rng(4)
        for _ in range(3):
            for _ in range(2):
                add(x=rng.standard_normal((4, 3), np.float32))
            apply()
            seen()
        runs.append({**add.state_dict(), "y": seen.outputs["y"].numpy()})
        if taps:
            assert taps[0].step == taps[1].step == 6 and taps[2].step == 3
            assert_bits(taps[2].numpy(), runs[1]["y"], "y")
            weights = add.params["w"].numpy()
            weights[1, 2] = np.nan
            add.params["w"] = weights
            for step in (apply, seen):
                refused(step, step, kind="nan", name="w", index=(1, 2))
    assert_equal(*runs)


def test_what_watches_gives_its_memory_back(rng):
    g = network()
    step = g.compile(device="cpu")
    step(**batch(rng))
    gc.collect()  # the steps of tests before
    before = _core.cpu_memory()[0]
    trap, (first, second) = step.trap(), step.tap(aicf.Value(g, 3), aicf.Value(g, 9))
    step(**batch(rng))
    first.close()
    assert _core.cpu_memory()[0] > before and second.step == 2
    trap.close()
    second.close()
    assert _core.cpu_memory()[0] == before


def test_a_tap_outlives_its_step(device):
    g = aicf.Graph("g")
    h = g.input("x", (3,)) * 2.0
    g.output("y", h + 1.0)
    step = g.compile(device=device)
    tap = step.tap(h)
    step(x=np.ones(3, np.float32))
    del step
    assert tap.numpy().tolist() == [2, 2, 2]


def test_a_trap_lasts_until_it_is_closed(device):
    """Whether or not anybody holds it."""
    g = aicf.Graph("g")
    g.output("y", aicf.log(g.input("x", (2,))))
    step = g.compile(device=device)
    bad = np.array([1, -1], np.float32)
    step.trap()
    gc.collect()
    refused(step, lambda: step(x=bad), kind="nan", index=(1,))
    with step.trap():
        pass
    refused(step, lambda: step(x=bad), kind="nan", index=(1,))


def test_a_trap_goes_with_its_step(rng):
    g = network()
    gc.collect()  # the steps of tests before
    before = _core.cpu_memory()[0]
    step = g.compile(device="cpu", check=True)
    step.trap()
    step(**batch(rng))
    del step
    assert _core.cpu_memory()[0] == before


def test_of_a_graph_that_has_grown():
    g = aicf.Graph("g")
    h = g.input("x", (3,)) * 2.0
    g.output("y", h + 1.0)
    step = g.compile(device="cpu")
    later = h * 3.0
    g.output("z", later)
    tap = step.tap(h)
    step.trap()
    step(x=np.ones(3, np.float32))
    assert tap.numpy().tolist() == [2, 2, 2]
    with pytest.raises(aicf.GraphError, match="not of the graph that was compiled"):
        step.tap(later)


def test_refusals(tmp_path):
    g = network()
    step = g.compile(device="cpu")
    other = aicf.Graph("other").input("x", (2,))
    for wrong in ((), (3,), (other,), ("y",), (None,)):
        with pytest.raises(aicf.GraphError, match="tap: .*need"):
            step.tap(*wrong)
    with pytest.raises(aicf.GraphError, match="check is 1; need a bool"):
        g.compile(device="cpu", check=1)
    step.export(tmp_path / "step.aicf")
    loaded = aicf.load_step(tmp_path / "step.aicf")
    for act in (lambda: loaded.tap(other), loaded.trap):
        with pytest.raises(aicf.GraphError, match="this step has no graph"):
            act()


# ---- traps


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("passes", ["default", ()])
def test_bad_indices(device, make_rng, compiled, passes):
    """Named with node, operand, element and number; training goes on as if it had not been."""
    g = network()
    step = g.compile(device=device, check=compiled, checks="off", passes=passes)
    plain = g.compile(device=device, passes=passes)
    trap = None if compiled else step.trap()
    rng = make_rng(1)
    tokens = [(-1, (0, 0)), (TOKENS, (5, 1)), (2**31 - 1, (3, 1)), (-(2**31), (0, 1))]
    labels = [(-1, (2,)), (CLASSES, (11,)), (2**62, (0,)), (-(2**63), (5,))]
    cases = [("tokens", "Take", TOKENS, *case) for case in tokens]
    cases += [("labels", "CrossEntropy", CLASSES, *case) for case in labels]
    for name, op, size, bad, at in cases:
        data = batch(rng)
        wrong = {**data, name: data[name].copy()}
        wrong[name][at] = bad
        for act in (step, step.run, lambda **_: step.replay(3)):
            error = refused(
                step, lambda act=act, wrong=wrong: act(**wrong),
                kind="index", op=op, name=name, index=at, number=bad,
            )  # fmt: skip
            assert f"need 0 to {size - 1}" in str(error)
            assert error.layer == ("emb" if name == "tokens" else "loss")
        for one in (step, plain):
            one(**data)
        assert_equal(everything(step), everything(plain))
    if trap:
        trap.close()
        step(**wrong)
        assert np.isnan(step.outputs["loss"].numpy()[-1])


def test_an_index_into_no_rows(device):
    g = aicf.Graph("g")
    g.output("y", aicf.embedding(g.input("i", (2,), "int32"), g.param("w", (0, 4))))
    step = g.compile(device=device, check=True)
    error = refused(step, lambda: step(i=np.array([3, 0], np.int32)), kind="index", index=(0,))
    assert "there are no rows" in str(error)


def test_labels_of_any_shape_some_ignored(device, rng):
    """The place in the labels as they were given; a label that is ignored is none."""

    def compiled(**options):
        g = aicf.Graph("g")
        x, labels = g.input("x", (2, 4, 3, 5)), g.input("labels", (2, 3, 5), "int64")
        logits = x * g.param("w", (4, 1, 1), init=aicf.init.ones())
        g.minimize(aicf.cross_entropy(logits, labels, **options), aicf.optim.SGD(lr=0.1))
        return g.compile(device=device, check=True)

    step, lenient = compiled(), compiled(ignore_index=-100)
    data = {"x": rng.standard_normal((2, 4, 3, 5), np.float32), "labels": np.ones((2, 3, 5), int)}
    data["labels"][1, 2, 3] = -100
    error = refused(step, lambda: step(**data), kind="index", name="labels", index=(1, 2, 3))
    assert "labels %1 i64[2, 3, 5]" in str(error)
    lenient(**data)
    data["labels"][0, 1, 2] = 4
    refused(lenient, lambda: lenient(**data), kind="index", index=(0, 1, 2), number=4)


def test_the_first_of_several(device, rng):
    data = batch(rng)
    data["tokens"][2, 1], data["tokens"][4, 0], data["labels"][3] = 99, -5, 7
    step = network().compile(device=device, check=True)
    refused(step, lambda: step(**data), name="tokens", index=(2, 1), number=99)


def test_a_nan_in_the_third_layer(device, rng):
    """The node that makes it, its line and layer; not those it then spreads to."""
    g = network(third=lambda h: aicf.log(h + 100.0))
    line = test_a_nan_in_the_third_layer.__code__.co_firstlineno + 2
    step = g.compile(device=device, check=True)
    data = batch(rng)
    step(**data)
    bias = step.params["three.b"].numpy()
    bias[2] = -1000.0
    step.params["three.b"] = bias
    error = refused(
        step, lambda: step(**data), kind="nan", op="Log", layer="three", index=(0, 0, 2),
        source=f"test_watch.py:{line}", name="log_out",
    )  # fmt: skip
    assert f"node {error.node} Log (test_watch.py:{line}" in str(error)
    assert f"# node {error.node}, test_watch.py:{line}" in str(g) and math.isnan(error.number)
    bias[2] = 0.0
    step.params["three.b"] = bias
    step(**data)


def test_params_states_and_inputs(device, rng):
    step = network().compile(device=device, check=True)
    data = batch(rng)
    step(**data)
    for name, at, number in [("two.W", (7, 3), np.nan), ("one.b", (6,), -np.inf)]:
        good = step.params[name].numpy()
        bad = good.copy()
        bad[at] = number
        step.params[name] = bad
        kind = "nan" if np.isnan(number) else "infinity"
        refused(step, lambda: step(**data), kind=kind, name=name, index=at, node=None, op=None)
        step.params[name] = good
    good = step.state["opt.v.one.W"].numpy()
    bad = good.copy()
    bad[1, 2] = np.nan
    step.state["opt.v.one.W"] = bad
    refused(step, lambda: step(**data), kind="nan", name="opt.v.one.W", index=(1, 2))
    step.state["opt.v.one.W"] = good
    x = data["x"].copy()
    x[3, 1, 4] = np.inf
    refused(step, lambda: step(**{**data, "x": x}), kind="infinity", name="x", index=(3, 1, 4))
    step(**data)


def single(build, device, dtype="float32", shape=(4, 6), **options):
    """A checked step that trains w by `build(x * w)`, and its graph."""
    g = aicf.Graph("single")
    x, w = g.input("x", shape, dtype), g.param("w", shape, dtype, init=aicf.init.ones())
    loss = aicf.cast(aicf.sum(build(x * w)), "float32")
    g.minimize(loss, aicf.optim.SGD(lr=0.1))
    g.output("loss", loss, keep=2)
    return g.compile(device=device, check=True, **options)


@pytest.mark.parametrize("passes", ["default", ()])
def test_a_nan_in_the_backward_pass_alone(device, passes):
    """sqrt at 0 is 0 and has an infinite slope; by a zero that is NaN."""
    step = single(lambda h: aicf.sqrt(h * h), device, passes=passes)
    data = np.ones((4, 6), np.float32)
    step(x=data)
    data[1, 5] = 0.0
    error = refused(step, lambda: step(x=data), index=(1, 5))
    assert error.kind in ("nan", "infinity") and error.node > 3
    data[1, 5] = 2.0
    step(x=data)


def test_a_nan_in_the_optimizer_alone(device):
    """0 / 0 of an Adam without epsilon."""
    g = aicf.Graph("g")
    x, w = g.input("x", (3,)), g.param("w", (3,), init=aicf.init.ones())
    g.minimize(aicf.sum(x * w), aicf.optim.Adam(lr=0.1, eps=0.0))
    step = g.compile(device=device, check=True)
    step(x=np.ones(3, np.float32))
    fresh = g.compile(device=device, check=True)
    error = refused(fresh, lambda: fresh(x=np.array([1, 1, 0], np.float32)), kind="nan", index=(2,))
    assert "Adam" in error.op
    unchecked = g.compile(device=device)
    unchecked(x=np.array([1, 1, 0], np.float32))
    assert np.isnan(unchecked.params["w"].numpy()).tolist() == [False, False, True]


@pytest.mark.parametrize("case", ["float16", "fp16", "mixed", "float64", "float32"])
def test_an_overflow(device, case):
    """Of 16 bits, in a mode, and in a wide dtype whose largest numbers are no infinities."""
    if case == "fp16":  # 1e5 is no float16, so a product of it is infinite in that mode
        g = aicf.Graph("g")
        x, w = g.input("x", (4, 32)), g.param("w", (8, 32), init=aicf.init.ones())
        y = aicf.linear(x, w)
        g.output("y", y)
        g.minimize(aicf.mean(y), aicf.optim.SGD(lr=1e-9))
        step = g.compile(device=device, check=True, math="fp16")
        data = np.ones((4, 32), np.float32)
        step(x=data)
        data[2, 3] = 1e5
        refused(step, lambda: step(x=data), kind="infinity", op="Linear", index=(2, 0))
        return
    if case == "mixed":  # rounds up to more than bfloat16 holds
        g = aicf.Graph("g")
        x, w = g.input("x", (4, 32)), g.param("w", (8, 32), init=aicf.init.zeros())
        g.minimize(aicf.mean(aicf.linear(x, w)), aicf.optim.SGD(lr=0.0))
        step = g.compile(device=device, check=True, math="mixed")
        data = np.ones((4, 32), np.float32)
        step(x=data)
        data[2, 3] = np.finfo(np.float32).max
        error = refused(step, lambda: step(x=data), kind="infinity", index=(2, 3), op="Cast")
        assert error.node is None and 'math "mixed" by a Cast (test_watch.py' in str(error)
        return
    info = np.finfo(case)
    step = single(lambda h: h * 2.0 * 0.0, device, case)
    data = np.full((4, 6), float(info.max) / 2, case)
    data[3, 2] = info.max
    refused(step, lambda: step(x=data), kind="infinity", op="Mul", index=(3, 2), layer="w")
    step(x=np.ones((4, 6), case))


def test_elements_of_views(device, rng):
    """The place in the value as the node gives it, however it lies in memory."""
    g = aicf.Graph("g")
    x, w = g.input("x", (2, 3, 4)), g.param("w", (4, 1, 3), init=aicf.init.ones())
    turned = aicf.permute(x, (2, 0, 1))[::-1]
    root = aicf.sqrt(turned * w)
    g.minimize(aicf.sum(aicf.exp(root)), aicf.optim.SGD(lr=0.0))
    step = g.compile(device=device, check=True)
    tap = step.tap(turned)
    data = 1 + rng.random((2, 3, 4), np.float32)
    step(x=data)
    assert_bits(tap.numpy(), np.ascontiguousarray(data.transpose(2, 0, 1)[::-1]), "turned")
    data[1, 2, 0] = -1
    refused(step, lambda: step(x=data), kind="nan", op="Sqrt", index=(3, 1, 2))


def test_infinities_that_are_meant(device, rng):
    """A mask of infinities, padding with them, a state that begins with one."""
    g = aicf.Graph("g")
    q = g.input("q", (2, 2, 6, 4))
    best = g.state("best", (), init=aicf.init.constant(math.inf))
    w = g.param("w", (4,), init=aicf.init.ones())
    y = aicf.scaled_dot_product_attention(q * w, q * w, q, causal=True)
    pooled = aicf.max_pool2d(y, 2, padding=1)
    loss = aicf.mean(pooled * pooled)
    g.assign(best, aicf.minimum(best, loss))
    g.minimize(loss, aicf.optim.SGD(lr=0.1))
    step = g.compile(device=device, check=True)
    for _ in range(3):
        step(q=rng.standard_normal((2, 2, 6, 4), np.float32))
    assert step.steps_run == 3


def test_a_tap_shows_what_a_trap_refused(device, rng):
    """The values that the step would have had, to look at."""
    g = aicf.Graph("g")
    x, w = g.input("x", (3,)), g.param("w", (3,), init=aicf.init.ones())
    h = aicf.log(x * w)
    g.output("h", h)
    g.minimize(aicf.sum(h), aicf.optim.SGD(lr=0.0))
    step = g.compile(device=device, check=True)
    tap = step.tap(h)
    refused(step, lambda: step(x=np.array([1, -1, 1], np.float32)), kind="nan", index=(1,))
    assert np.isnan(tap.numpy()).tolist() == [False, True, False] and tap.step == 1


def test_a_tap_shows_what_a_trap_refused_in_the_middle_of_a_replay(device):
    """A step that is not the last of its call; whichever of the two was set first."""
    g = aicf.Graph("g")
    n = g.state("n", ())
    g.assign(n, n + 1.0)
    g.output("y", aicf.sqrt(4.5 - n))
    step = g.compile(device=device)
    with step.tap(n) as before, step.trap(), step.tap(n) as after:
        with pytest.raises(aicf.BadValue):
            step.replay(64)
        assert [(float(tap), tap.step) for tap in (before, after)] == [(5.0, 6)] * 2
    assert step.steps_run == 5


def test_leaves_that_no_node_reads_are_looked_at(device):
    """One that is an output, and one that is what a param will be."""
    for target in (True, False):
        g = aicf.Graph("g")
        x, w = g.input("x", (2,)), g.param("w", (2,))
        if target:
            g.assign(w, x)
        else:
            g.output("x", x)
        step = g.compile(device=device, check=True)
        step(x=np.ones(2, np.float32))
        bad = np.array([1, math.nan], np.float32)
        refused(step, lambda: step(x=bad), kind="nan", name="x", index=(1,), node=None)  # noqa: B023
        step(x=np.ones(2, np.float32))


def test_a_loss_at_its_limit_makes_no_infinity(device):
    """Logarithms of 0 are limited before they are taken."""
    g = aicf.Graph("g")
    x, t = g.input("x", (4,)), g.input("t", (4,))
    w = g.param("w", (), init=aicf.init.ones())
    loss = aicf.binary_cross_entropy(aicf.sigmoid(x * w), t)
    g.output("loss", loss)
    g.minimize(loss, aicf.optim.SGD(lr=0.1))
    step = g.compile(device=device, check=True)
    out = step(x=np.array([200, -200, 200, -200], np.float32), t=np.array([1, 0, 0, 1], np.float32))
    assert float(out["loss"]) == 50.0 and float(step.params["w"]) == 1.0


def test_of_a_replay_the_steps_before_it_run(device):
    """Each of n steps is checked: w doubles until it overflows."""
    g = aicf.Graph("g")
    w = g.param("w", (2,), init=aicf.init.constant(2.0**123))
    g.assign(w, w * g.constant([1.0, 2.0]))
    g.output("w", w * 1.0)
    step = g.compile(device=device, check=True)
    with pytest.raises(aicf.BadValue) as caught:
        step.replay(100)
    assert (caught.value.kind, caught.value.op, caught.value.index) == ("infinity", "Mul", (1,))
    assert step.steps_run == 4 and step.params["w"].numpy()[1] == 2.0**127
    for act in (step.replay, step.run, lambda: step.profile(1)):
        with pytest.raises(aicf.BadValue):
            act()
    assert step.steps_run == 4


def test_errors_are_value_errors_and_traps_end():
    g = aicf.Graph("g")
    g.output("y", aicf.log(g.input("x", (2,))))
    step = g.compile(device="cpu")
    bad = np.array([1, -1], np.float32)
    step(x=bad)
    with step.trap():
        with pytest.raises(ValueError, match=r"makes NaN at \[1\] of %1 f32\[2\] \"log_out\""):
            step(x=bad)
        assert issubclass(aicf.BadValue, aicf.Error)
    step(x=bad)
    trap = step.trap()
    with pytest.raises(aicf.BadValue):
        step(x=bad)
    trap.close()
    step(x=bad)
    assert step.steps_run == 3


def test_without_a_captured_form(rng):
    g = network()
    step, plain = g.compile(device="cpu", check=True, capture=False), g.compile(device="cpu")
    data = batch(rng)
    for one in (step, plain):
        one(**data)
    assert_equal(everything(step), everything(plain))
    data["labels"][0] = CLASSES
    refused(step, lambda: step(**data), kind="index")


def test_watchers_of_a_busy_step(rng):
    """Taps come and go while another thread runs the step."""
    g = network()
    step, plain = g.compile(device="cpu"), g.compile(device="cpu")
    data = batch(rng)
    hidden = next(aicf.Value(g, id) for id in range(40) if "tanh" in g._core.value_name(id))
    done = threading.Event()

    def look():
        while not done.is_set():
            with step.tap(hidden) as tap, step.trap():
                while not tap.step and not done.is_set():
                    pass
                if tap.step:
                    assert np.isfinite(tap.numpy()).all()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        step(**data)
    done.set()
    for thread in threads:
        thread.join()
    for _ in range(100):
        plain(**data)
    assert_equal(everything(step), everything(plain))


def test_the_graphs_that_watch_have_no_effects():
    g = network()
    for graph in (_core.trap_graph(g._core), _core.tap_graph(g._core, [3])):
        assert graph.verify().ok
        record = json.loads(graph.to_json())
        assert record["assigns"] == [] and all(o["keep"] == 1 for o in record["outputs"])
        assert len(record["outputs"]) > 0


def test_taps_of_several_values_end_together(device):
    g = aicf.Graph("several")
    x = g.input("x", (3,))
    y = aicf.sum(x * x)
    g.output("y", y)
    step = g.compile(device=device)
    with step.tap(x, y) as taps:
        step(x=np.arange(3, dtype=np.float32))
        assert [tap.numpy().tolist() for tap in taps] == [[0.0, 1.0, 2.0], 5.0]
    assert all("closed" in repr(tap) for tap in taps)
    with pytest.raises(aicf.GraphError, match=r"need a Value, or several: tap\(a, b\)"):
        step.tap([x, y])
