"""Small ops that do not wait for each other share a launch, and keep every bit."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core
from test_passes import APART, OPTIMIZERS, check_passes, draw, feed_of, one, training


def grouped(step):
    return [[m["op"] for m in op["members"]] for op in step.lowered if op["op"] == "group"]


@pytest.mark.parametrize("layers", range(1, 7))
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_launches_of_a_network(optimizer, layers, device, rng):
    """At most three launches a layer and two more, from the input to the update."""
    sizes = (7, *[6] * (layers - 1), 5)
    _, step = check_passes(training(OPTIMIZERS[optimizer], sizes), feed_of(rng, sizes), device)
    assert len(step.trace) <= 3 * layers + 2


def test_a_bias_gradient_runs_beside_its_weight_s(device, rng):
    _, step = check_passes(training(OPTIMIZERS["sgd"]), feed_of(rng), device)
    assert any(group.count("gemm") and group.count("reduce_sum") for group in grouped(step))


def test_what_does_not_wait_shares_a_launch(device, rng):
    """Members of every kind: with a workspace, with a body, of several results, with one thread."""

    def build(g, x, w):
        s = g.state("count", (3,), init=aicf.init.constant(1.0))
        g.assign(s, s * 0.5)
        values = {"product": x @ w, "softmax": aicf.softmax(x), "sum": aicf.sum(x, axis=0)}
        values |= {"mean": aicf.mean(x), "chain": aicf.exp(x) * x, "top": aicf.argmax(x, axis=1)}
        return values | {"running": aicf.cumsum(x, axis=0), "half": aicf.cast(w, "float16")}

    feed = {"x": draw(rng, 40, 100), "w": draw(rng, 100, 70)}
    _, ops, step = one(build, feed, device)
    assert len(step.trace) <= 3 and len(ops) == 9


def test_members_of_many_threads(device, rng):
    """Alone they take blocks of up to 1024 threads, which nothing else would fill."""

    def build(g, x, w):
        params = [g.param(f"p{i}", (60 + i,), init=aicf.init.uniform(-1, 1)) for i in range(8)]
        loss = sum((aicf.sum(p * p) for p in params), aicf.mean(x))
        g.minimize(loss, aicf.optim.Adam(lr=0.1))
        deep = {}
        for i in range(6):  # something small beside each launch of the training step
            w = aicf.softmax(w)
            deep[f"deep{i}"] = w
        return deep | {"loss": loss, "all": aicf.sum(x), "rows": aicf.sum(x, axis=1)}

    feed = {"x": draw(rng, 2, 20_000), "w": draw(rng, 20, 30)}
    _, _, step = one(build, feed, device)
    assert any("region" in op for op in grouped(step))


def test_a_reader_never_shares_with_the_next_content(device, rng):
    """The state is read by one op and rewritten by another that does not wait for its result."""

    def build(g, x):
        s = g.state("s", (40,), init=aicf.init.uniform(-1, 1))
        read = {"y": aicf.softmax(s), "z": aicf.max(s)}
        g.assign(s, aicf.cumsum(x, axis=0))
        return read

    _, ops, step = one(build, {"x": draw(rng, 40)}, device)
    (writing,) = [op for op in step.lowered if "cumsum" in str(op)]
    assert "softmax" not in str(writing)


def test_large_ops_run_alone(device, rng):
    def build(g, x):
        return {"softmax": aicf.softmax(x), "running": aicf.cumsum(x, axis=1)}

    _, ops, step = one(build, {"x": draw(rng, 1500, 1000)}, device)
    assert grouped(step) == [] and len(ops) == 2


def test_operands_of_a_group_are_bound_again(device, rng):
    g = aicf.Graph("bound")
    x = g.input("x", (20, 30))
    g.output("sum", aicf.sum(x, axis=0))
    g.output("softmax", aicf.softmax(x))
    step = g.compile(device=device, passes=APART)
    assert grouped(step)
    for _ in range(3):
        data = draw(rng, 20, 30)
        other = aicf.Graph("other")
        other.param("x", (20, 30))
        holder = other.compile(device=device, params={"x": data})
        step.bind(x=holder.params["x"])
        step.replay()
        np.testing.assert_allclose(step.outputs["sum"].numpy(), data.sum(0), rtol=1e-5, atol=1e-5)
        want = np.exp(data) / np.exp(data).sum(1, keepdims=True)
        np.testing.assert_allclose(step.outputs["softmax"].numpy(), want, rtol=1e-5)


@pytest.mark.parametrize("between", range(4))
def test_a_sum_may_wait_for_sums_that_come_of_it(between, device, rng):
    """Then all behind it stand further from the start than there are ops."""

    def build(g, x):
        scale = aicf.mean(x, axis=0)
        for _ in range(between):
            scale = aicf.tanh(scale)
        y = x * scale
        return {"rows": aicf.softmax(y), "sums": aicf.exp(aicf.mean(y, axis=0))}

    choices = ((), ("horizontal",), "default")
    one(build, {"x": draw(rng, 1024, 256)}, device, choices)


def moved(n):
    """The value and gradients of a concat of n numbers, which are moved alone."""
    g = aicf.Graph("moved")
    x, y = (g.state(name, (4, n // 8), init=aicf.init.uniform(-1, 1)) for name in "xy")
    z = aicf.concat([x, y], 1)
    g.output("z", z)
    dy = g.state("dy", z.shape, init=aicf.init.uniform(-1, 1))
    for k, d in enumerate(aicf.grad(z, [x, y], dy)):
        g.output(f"d{k}", d)
    return g


def on_a_gpu(g):
    plan = json.loads(_core.cuda_plan(g._core, _core.pass_names(), 132, "sm_90a"))
    return sorted(op["op"] for op in plan["ops"])


@pytest.mark.parametrize("n", [1 << 10, 1 << 21, (1 << 22) - 8])
def test_copies_that_nothing_waits_for_share_a_launch(n):
    assert on_a_gpu(moved(n)) == ["group"]


def test_large_copies_and_what_a_step_makes_stay_apart():
    """Above the size to which updates share one; a concat's parts may be written in it."""
    assert on_a_gpu(moved(1 << 22)) == ["concat", "group"]
    g = aicf.Graph("parts")
    x = g.input("x", (512, 1024))
    g.output("z", aicf.concat([aicf.exp(x), aicf.sin(x)], 0))
    g.output("y", aicf.permute(x, [1, 0]))
    assert on_a_gpu(g) == ["concat", "copy", "region"]


@pytest.mark.gpu
def test_bits_of_copies_that_share_a_launch():
    ends = []
    for device in ("cpu", "cuda"):
        step = moved(1 << 18).compile(device=device, seed=1)
        ends.append({name: value.numpy().tobytes() for name, value in step().items()})
    assert ends[0] == ends[1]
