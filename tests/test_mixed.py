"""compile(math="mixed"): activations and gradients in bfloat16, all that a user sees in float32."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core, verify
from compare import assert_bits
from conftest import outputs_of
from test_passes import OPTIMIZERS, Recast, assert_same, build_random, everything
from test_random_graphs import random_program

any_size = pytest.mark.usefixtures("any_size_narrows")


def mixed_text(g):
    """The graph that the passes begin with."""
    return g._core.stages((), "cpu", "mixed")[0].text


def both(build, feed, device):
    """The outputs of `build` under "mixed", and of `by_hand`, its twin with casts, under "fp32"."""
    results = []
    for hand, math in ((False, "mixed"), (True, "fp32")):
        g = aicf.Graph("both")
        narrow = (lambda v: aicf.cast(v, "bfloat16")) if hand else (lambda v: v)
        wide = (lambda v: aicf.cast(v, "float32")) if hand else (lambda v: v)
        for name, y in build(g, narrow, wide).items():
            g.output(name, y)
        results.append(outputs_of(g.compile(device=device, math=math)(**feed)))
    got, want = results
    for name, array in want.items():
        assert_bits(got[name], array, name)
    return got


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@any_size
def test_a_network_is_its_twin_with_casts(device, rng):
    """Products, biases and what follows them in 16 bits; sums and outputs in 32."""

    def build(g, narrow, wide):
        x, t = g.input("x", (9, 7)), g.input("t", (9, 5))
        w, b = g.param("w", (6, 7)), g.param("b", (6,))
        h = aicf.tanh(aicf.linear(narrow(x), narrow(w), narrow(b)))
        y = aicf.matmul(aicf.relu(h) * 0.5, narrow(g.param("v", (6, 5))))
        return {"y": wide(y), "loss": aicf.mse_loss(wide(y), t), "sum": aicf.sum(wide(h), axis=0)}

    both(build, {"x": draw(rng, 9, 7), "t": draw(rng, 9, 5)}, device)


@any_size
def test_a_number_of_more_digits_is_not_rounded(device, rng):
    """0.1 is no bfloat16: its product is computed wide and rounded once."""

    def build(g, narrow, wide):
        w = narrow(g.param("w", (8, 8)))
        h = aicf.matmul(narrow(g.input("x", (8, 8))), w)
        return {"y": wide(aicf.matmul(aicf.relu(narrow(wide(h) * 0.1)), w))}

    both(build, {"x": draw(rng, 8, 8)}, device)


@any_size
def test_what_only_wide_values_are_made_of_is_wide(device, rng):
    """Squares that a sum adds are not rounded first, nor is what only an output shows."""

    def build(g, narrow, wide):
        h = aicf.matmul(narrow(g.input("x", (8, 8))), narrow(g.param("w", (8, 8))))
        shown = wide(h)
        return {"norm": aicf.sqrt(aicf.sum(shown * shown)), "y": aicf.tanh(shown) * 3.0}

    both(build, {"x": draw(rng, 8, 8)}, device)


@any_size
def test_what_meets_a_wide_value_is_wide(device, rng):
    """An error against float32 targets keeps their digits."""

    def build(g, narrow, wide):
        h = aicf.matmul(narrow(g.input("x", (8, 8))), narrow(g.param("w", (8, 8))))
        error = wide(h) - g.input("t", (8, 8))
        return {"error": error, "loss": aicf.mean(error * error)}

    both(build, {"x": draw(rng, 8, 8), "t": draw(rng, 8, 8)}, device)


@any_size
def test_params_go_along_in_any_shape(device, rng):
    """A convolution's bias is reshaped and broadcast before it is added."""
    g = aicf.Graph("conv")
    x = g.input("x", (2, 3, 8, 8))
    y = aicf.relu(aicf.conv2d(x, g.param("w", (4, 3, 3, 3)), g.param("b", (4,))))
    y = aicf.max_pool2d(y, 2)
    g.output("y", aicf.linear(aicf.reshape(y, (2, -1)), g.param("head", (3, 36))))
    text = mixed_text(g)
    for op in ("MatMul", "Add", "ReLU", "MaxPool"):
        (line,) = [line for line in text.splitlines() if f"= {op}(" in line]
        assert " bf16[" in line, text
    got = g.compile(device=device, math="mixed")(x=draw(rng, 2, 3, 8, 8))["y"]
    assert got.dtype == "float32"


@any_size
def test_states_keep_their_digits(device, rng):
    """A running mean and an update by hand are made in float32, whatever they are made of."""

    def build(g, narrow, wide):
        x, w = g.input("x", (8, 8)), g.param("w", (8, 8), init=aicf.init.normal())
        mean = g.state("mean", (8, 8))
        h = aicf.matmul(narrow(x), narrow(w))
        g.assign(mean, mean * 0.99 + wide(h) * 0.01)
        g.assign(w, w - aicf.reshape(wide(aicf.transpose(h)), (8, 8)) * 1e-4)
        return {"mean": mean + 0.0, "w": w + 0.0}

    feed = {"x": draw(rng, 8, 8)}
    ends = []
    for hand, math in ((False, "mixed"), (True, "fp32")):
        g = aicf.Graph("states")
        narrow = (lambda v: aicf.cast(v, "bfloat16")) if hand else (lambda v: v)
        wide = (lambda v: aicf.cast(v, "float32")) if hand else (lambda v: v)
        build(g, narrow, wide)
        step = g.compile(device=device, math=math)
        for _ in range(5):
            step(**feed)
        ends.append(dict(step.state_dict()))
    for name, array in ends[0].items():
        assert_bits(np.asarray(array), np.asarray(ends[1][name]), name)


@any_size
@pytest.mark.parametrize("seeded", [False, True])
def test_a_loss_that_is_a_product(seeded):
    """Its gradient's seed has its dtype."""
    g = aicf.Graph("product")
    x, w = g.input("x", (1, 8)), g.param("w", (8, 1))
    y = aicf.matmul(x, w)
    loss = y if seeded else aicf.reshape(y, ())
    grads = g.backward(loss, wrt=[w], grad=g.input("dy", (1, 1)) if seeded else None)
    g.output("dw", grads[w])
    x = np.arange(8, dtype=np.float32)[None]
    feed = {"x": x} | ({"dy": np.full((1, 1), 2, np.float32)} if seeded else {})
    got = g.compile(device="cpu", math="mixed")(**feed)["dw"].numpy()
    assert_bits(got, x.T * (2 if seeded else 1))


@any_size
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(name, device):
    """Close to "fp32"; params, moments and outputs are float32, and every run has the same bits."""
    rng = np.random.default_rng(5)
    x, t = draw(rng, 64, 16), draw(rng, 64, 4)
    losses, ends = {}, {}
    for math, passes in (("fp32", "default"), ("mixed", "default"), ("mixed", ())):
        g = aicf.Graph("train")
        h = aicf.gelu(g.dense("0", g.input("x", x.shape), 32))
        loss = aicf.mse_loss(g.dense("1", h, 4), g.input("t", t.shape))
        make = OPTIMIZERS[name]
        g.minimize(loss, make(g) if make.__code__.co_argcount else make(), clip_norm=1.0)
        g.output("loss", loss)
        step = g.compile(device=device, math=math, passes=passes)
        losses[math] = [float(step(x=x, t=t)["loss"]) for _ in range(30)]
        for leaf, array in step.state_dict().items():
            assert str(array.dtype) in ("float32", "int32"), leaf
            if math == "mixed":
                assert_bits(np.asarray(array), ends.setdefault(leaf, np.asarray(array)), leaf)
        assert ("math mixed" in str(step.plan)) == (math == "mixed")
    assert losses["mixed"] != losses["fp32"]
    np.testing.assert_allclose(losses["mixed"][:5], losses["fp32"][:5], rtol=0.01)
    assert losses["mixed"][-1] < losses["mixed"][0]


@any_size
@pytest.mark.parametrize("name", verify.CASES)
def test_every_value_is_checked(name):
    """The rewritten graph passes the verifier, links of its gradients included, and is the dump's
    first stage."""
    g = verify.build(name, verify.CASES[name])
    text = mixed_text(g)
    assert "bf16[" in text and "Cast" in text and "bf16[" not in str(g)


@any_size
@pytest.mark.parametrize("group", range(8))
def test_random_graphs(group, device):
    """Any graph compiles, and no pass changes a bit."""
    for seed in range(group * 10, group * 10 + (10 if device == "cpu" else 2)):
        rng = np.random.default_rng(1000 + seed)
        inputs, program = random_program(rng, int(rng.integers(4, 16)), -1.0)
        ours = int(rng.integers(2**31))
        feed = {f"x{i}": x.astype(np.float32) for i, x in enumerate(inputs)}
        want = None
        for passes in ((), _core.pass_names()):
            g = aicf.Graph("mixed")
            build_random(
                Recast(g, "float32"), np.random.default_rng(ours), inputs, program, "float32", 0.4
            )
            got = everything(g.compile(device=device, math="mixed", passes=passes), feed)
            for leaf, array in (want or got).items():
                assert_same(got[leaf], array, f"{leaf} of graph {seed} with passes={passes}")
            want = want or got


@any_size
def test_launches_know_the_nodes_of_the_graph_as_given():
    """The casts that "mixed" adds shift no layer and no line of a launch."""
    g = aicf.Graph("three layers")
    x = g.input("x", (16, 24))
    for i, width in enumerate((40, 48, 8)):
        x = aicf.gelu(g.dense(str(i), x, width))
    loss = aicf.mse_loss(x, g.input("t", (16, 8)))
    g.output("loss", loss)
    g.minimize(loss, aicf.optim.SGD(lr=0.1))
    step = g.compile(device="cpu", passes=[], math="mixed")
    nodes = {node["id"]: node for node in step._graph_record("test")["nodes"]}
    found = [(op["op"], nodes[op["node"]]["op"]) for op in step.lowered]
    assert [name for op, name in found if op == "gelu_erf"] == ["GeluErf"] * 3
    assert {name for op, name in found if op == "gemm"} == {"Linear", "LinearBwd"}
    assert {name for op, name in found if op == "sgd_step"} == {"SgdStep"}
    gemms = [launch.layer for launch in step.profile(1).launches if "gemm" in launch.op]
    assert gemms[:3] == ["0", "1", "2"] and set(gemms) == {"0", "1", "2"}


def layer(rows, k, n, kind="linear"):
    """A product and both its gradients, whose loss is a sum."""
    g = aicf.Graph("layer")
    x, w = g.param("x", rows + (k,)), g.param("w", (n, k) if kind == "linear" else (k, n))
    y = aicf.linear(x, w) if kind == "linear" else aicf.matmul(x, w)
    g.output("y", y)
    grads = g.backward(aicf.sum(y * g.input("t", rows + (n,))), wrt=[x, w])
    g.output("dx", grads[x])
    g.output("dw", grads[w])
    return g


SIZES = [
    (((128,), 256, 255), False),
    (((128,), 256, 256), True),  # 2^23 multiplications
    (((129,), 256, 256), True),
    (((4, 32), 256, 256), True),  # rows of all matrices
    (((127,), 256, 256), False),  # 3 * 2^22 of fewer rows
    (((48,), 512, 512), True),
    (((48,), 512, 511), False),
    (((17,), 1024, 1024), True),
    (((16,), 1024, 1024), False),  # 2^25 of few rows
    (((4, 4), 1024, 1024), False),
    (((16,), 1448, 1449), True),
    (((16,), 1448, 1448), False),
    (((16,), 4096, 4096), False),  # of weights that no cache holds
    (((16,), 4096, 4095), True),
    (((17,), 4096, 4096), True),
    (((8192,), 64, 16), True),  # few columns
    (((8192,), 63, 16), False),
]


@pytest.mark.parametrize("kind", ["linear", "matmul"])
@pytest.mark.parametrize(("sizes", "narrow"), SIZES, ids=str)
def test_small_products_and_those_of_few_rows_stay_wide(sizes, narrow, kind, rng):
    """By the sizes of the layer alone, with both its gradients and without a cast."""
    g, (rows, _, n) = layer(*sizes, kind), sizes
    ops = [op for op in g.compile(device="cpu", math="mixed").lowered if op["op"] == "gemm"]
    assert [op["inputs"][0]["dtype"] for op in ops] == ["bfloat16" if narrow else "float32"] * 3
    assert ("Cast" in mixed_text(g)) == narrow
    if not narrow:
        feed = {"t": draw(rng, *rows, n)}
        got, want = (
            outputs_of(g.compile(device="cpu", math=math, seed=1)(**feed))
            for math in ("mixed", "fp32")
        )
        for name, array in want.items():
            assert_bits(got[name], array, name)


@pytest.mark.parametrize("kind", ["linear", "matmul"])
@pytest.mark.parametrize(("rows", "narrow"), [(16, False), (128, True)])
def test_gradients_alone_count_as_their_product(rows, narrow, kind):
    """Of which nothing is left where no result needs it."""
    g = aicf.Graph("gradients")
    x = g.input("x", (rows, 512))
    w = g.param("w", (512, 512))
    y = aicf.linear(x, w) if kind == "linear" else aicf.matmul(x, w)
    g.output("dw", g.backward(aicf.sum(y * g.input("t", (rows, 512))), wrt=[w])[w])
    assert ("Cast" in mixed_text(g)) == narrow


@pytest.mark.parametrize(
    ("a", "b", "narrow"),
    [
        ((16, 64, 16), (16, 16, 512), True),  # heads of 16
        ((16, 63, 16), (16, 16, 512), False),
        ((512, 16, 64), (512, 64, 16), True),  # few rows of each of many
        ((64, 16), (16, 16, 512), True),
    ],
    ids=str,
)
def test_products_of_batches_count_all(a, b, narrow):
    g = aicf.Graph("batches")
    g.output("y", aicf.matmul(g.input("a", a), g.input("b", b)))
    assert ("Cast" in mixed_text(g)) == narrow


def test_small_products_beside_one_that_gains_are_of_16_bits():
    """The last layer's operand is in 16 bits already."""
    g = aicf.Graph("head")
    h = aicf.relu(g.dense("0", g.input("x", (128, 256)), 256))
    g.output("y", g.dense("1", h, 10))
    lines = [line for line in mixed_text(g).splitlines() if "= Linear(" in line]
    assert len(lines) == 2 and all(" bf16[" in line for line in lines)


def test_small_products_of_16_bits_stay_so():
    """Which the user has cast."""
    g = aicf.Graph("cast")
    x, w = (aicf.cast(g.input(name, (8, 8)), "bfloat16") for name in ("x", "w"))
    g.output("y", aicf.matmul(x, w))
    (line,) = [line for line in mixed_text(g).splitlines() if "= MatMul(" in line]
    assert " bf16[" in line


@pytest.mark.parametrize("sizes", [one[0] for one in SIZES[:10]], ids=str)
def test_products_around_the_least(sizes, device, rng):
    """With the bits of a CPU without passes."""
    g, feed = layer(*sizes), {"t": draw(rng, *sizes[0], sizes[2])}
    cores = "sm_90" if device == "cuda" else None
    got, want = (
        outputs_of(g.compile(math="mixed", seed=1, **how)(**feed))
        for how in ({"device": device}, {"device": "cpu", "passes": (), "tensor_cores": cores})
    )
    for name, array in want.items():
        assert_bits(got[name], array, name)


@pytest.mark.parametrize(
    ("widths", "rows", "casts"),
    [
        ((1024, 1024, 1024, 10), 16, 0),
        ((128, 128, 128, 10), 128, 0),
        ((512, 512, 512, 10), 47, 0),
        ((256, 256, 256, 10), 127, 0),
        ((256, 256, 256, 10), 128, 1),
    ],
    ids=str,
)
def test_small_steps_are_those_of_float32(widths, rows, casts):
    """Launch by launch, without a cast."""
    plans = {}
    for math in ("fp32", "mixed"):
        g = aicf.Graph("step")
        h = g.input("x", (rows, widths[0]))
        for i, width in enumerate(widths[1:]):
            h = g.dense(str(i), aicf.relu(h) if i else h, width)
        g.minimize(aicf.cross_entropy(h, g.input("t", (rows,), "int64")), aicf.optim.Adam(lr=1e-3))
        plan = _core.cuda_plan(g._core, _core.pass_names(), 132, "sm_90a", math=math)
        plans[math] = json.loads(plan)["ops"]
    assert (plans["mixed"] == plans["fp32"]) == (not casts)
    assert ("bf16" in str(plans["mixed"])) == bool(casts)
