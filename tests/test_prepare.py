"""What lets ops join: shapes of products, casts that readers make for themselves, joined gradients
of slices, casts of params and sums in one launch. Bits stay those without passes."""

import json

import aicf
import numpy as np
import pytest
from aicf import _core
from conftest import outputs_of
from test_passes import check_passes, entries

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

CHOICES = (
    (),
    ("shapes",),
    ("clone_upcasts",),
    ("clone_upcasts", "merge_upcasts"),
    ("clone_upcasts", "reductions"),
    "default",
)


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def steps_of(op):
    return [step["op"] for step in op.get("body", [])] or [op["op"]]


def bodies(step):
    return [steps_of(op) for op in entries(step)]


def test_what_follows_a_product_takes_its_shape(rng):
    """The product has rows and columns, what follows it three axes."""
    feed = {"x": draw(rng, 2, 5, 8)}

    def build(g):
        x = g.input("x", (2, 5, 8))
        y = g.dense("0", x, 16)
        g.output("y", aicf.gelu(y, "tanh"))
        g.output("z", g.dense("1", aicf.relu(y), 4))

    _, step = check_passes(build, feed, "cpu", CHOICES)
    assert bodies(step) == [["gemm", "bias_add", "gelu_tanh", "relu"], ["gemm", "bias_add"]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_each_reader_widens_for_itself(dtype, rng):
    """16 bits are read by all, and nothing is stored in 32."""
    feed = {"x": draw(rng, 40, 50)}

    def build(g):
        x = aicf.cast(aicf.tanh(g.input("x", (40, 50))), dtype)
        g.output("x", x)
        wide = aicf.cast(x, "float32")
        g.output("sum", aicf.sum(wide, 0))
        g.output("rows", aicf.softmax(wide, 1))
        g.output("squares", aicf.sum(wide * wide, 0))

    _, step = check_passes(build, feed, "cpu", CHOICES)
    assert bodies(step) == [
        ["tanh"],
        ["cast", "cast", "softmax"],  # rounded and widened again as it goes
        ["cast", "reduce_sum"],
        ["cast", "mul", "reduce_sum"],
    ]
    for op in entries(step)[2:]:
        assert {view["dtype"] for view in op["inputs"]} == {dtype}


def test_casts_that_join_nobody_are_one(rng):
    feed = {"x": draw(rng, 6, 8)}

    def build(g):
        wide = aicf.cast(aicf.cast(g.input("x", (6, 8)), "bfloat16"), "float32")
        for i, w in enumerate((wide @ aicf.permute(wide, (1, 0)), aicf.permute(wide, (1, 0)))):
            g.output(f"y{i}", aicf.sum(w * w[:1]))

    check_passes(build, feed, "cpu", CHOICES)
    g = aicf.Graph("casts")
    build(g)
    dump = (
        g._core.stages(["clone_upcasts"])[-1].text,
        g._core.stages(["clone_upcasts", "merge_upcasts"])[-1].text,
    )
    assert [text.count('"dtype": "float32"') for text in dump] == [2, 1]


def test_a_step_widens_one_operand_once(rng):
    """Two steps of a region that each brought a cast share one."""
    feed = {"x": draw(rng, 3000)}

    def build(g):
        wide = aicf.cast(aicf.cast(g.input("x", (3000,)), "bfloat16"), "float32")
        g.output("y", aicf.sin(wide) * aicf.exp(wide) + wide)

    _, step = check_passes(build, feed, "cpu", CHOICES)
    (body,) = bodies(step)
    assert sorted(body) == sorted(["cast", "cast", "sin", "exp", "mul", "add"])


def random_graph(g, rng):
    """Products of two to four axes, moved, widened, narrowed, summed, on rows."""
    shape = tuple(int(n) for n in rng.integers(1, 7, int(rng.integers(1, 4)))) + (8,)
    x = g.input("x", shape)
    values = [x]
    for i in range(int(rng.integers(3, 9))):
        v = values[int(rng.integers(len(values)))]
        dtype = str(rng.choice(["float32", "bfloat16", "float16"]))
        wide = aicf.cast(v, "float32")
        ways = [
            lambda v=v, dtype=dtype: aicf.cast(v, dtype),
            lambda wide=wide, i=i: g.dense(f"{i}", wide, 8),
            lambda wide=wide: aicf.gelu(wide, "tanh"),
            lambda wide=wide: wide * 0.5 + aicf.reshape(x, wide.shape),
            lambda wide=wide: aicf.softmax(wide, -1),
            lambda v=v: aicf.reshape(v, (-1, 8)),
            lambda v=v: aicf.reshape(v, shape),
            lambda wide=wide: aicf.concat(aicf.split(wide, 2, -1)[::-1], -1),
        ]
        values.append(ways[int(rng.integers(len(ways)))]())
    total = None
    for i, v in enumerate(values[1:]):
        wide = aicf.cast(v, "float32")
        g.output(f"s{i}", aicf.sum(aicf.reshape(wide, (-1, 8)), 0))
        term = aicf.mean(wide * wide)
        total = term if total is None else total + term
    if aicf.Graph is type(g) and list(g.params):
        g.minimize(total, aicf.optim.AdamW(lr=1e-2), clip_norm=1.0)
    g.output("loss", total)
    return shape


@pytest.mark.parametrize("group", range(10))
def test_random_graphs(group):
    for seed in range(10 * group, 10 * group + 10):
        shape = []
        check = np.random.default_rng(seed)
        scratch = aicf.Graph("scratch")
        shape = random_graph(scratch, check)
        feed = {"x": np.random.default_rng(seed + 1000).standard_normal(shape).astype(np.float32)}
        check_passes(
            lambda g, seed=seed: random_graph(g, np.random.default_rng(seed)), feed, "cpu", CHOICES
        )


# ---- gradients of slices


def gradient(cut, shape=(3, 6)):
    """The gradient of a function of x, beside its graph."""
    g = aicf.Graph("slices")
    x = g.input("x", shape)
    g.output("d", aicf.grad(aicf.sum(cut(x)), x))
    x = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    return g, g.compile(device="cpu")(x=x)["d"].numpy(), x


def test_gradients_of_parts_are_joined():
    def cut(x):
        a, b, c = aicf.split(x, [1, 2, 3], axis=1)
        return aicf.sum(a * a, 1) + aicf.sum(c * 5.0, 1) + aicf.sum(b * b * b, 1)

    g, found, x = gradient(cut)
    wanted = np.concatenate([2 * x[:, :1], 3 * x[:, 1:3] ** 2, np.full((3, 3), 5.0)], 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    ops = [node["op"] for node in json.loads(g.to_json())["nodes"]]
    assert ops.count("Concat") == 1 and "Pad" not in ops


@pytest.mark.parametrize(
    "cut, wanted",
    [
        (lambda x: x[:, :2] * x[:, 4:], "Pad"),  # a part is missing
        (lambda x: x[:, :4] * x[:, 2:], "Pad"),  # they overlap
        (lambda x: x[:, :3] * x[:, 3:] + x[:, 1:4], "Pad"),
        (lambda x: x[:, ::2] * x[:, 1::2], "Pad"),  # every second one
        (lambda x: x[:, :3] * x[:, 3:] + x[:, :1] * 0.0 + aicf.sum(x), "Pad"),
        (lambda x: x[:, :3] * x[:, 3:], "Concat"),
        (lambda x: (x * x)[:1] * (x * 2.0)[1:], "Pad"),  # of two values
        (lambda x: x[:1] * x[1:], "Concat"),
    ],
)
def test_gradients_of_slices(cut, wanted):
    torch = pytest.importorskip("torch")
    g, found, x = gradient(cut)
    ops = [node["op"] for node in json.loads(g.to_json())["nodes"]]
    assert wanted in ops and {"Pad", "Concat"} - {wanted} - set(ops)
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    names = {"sum": torch.sum}
    got = cut(t) if cut.__code__.co_names == () else None
    if got is None:  # the case that sums by name
        got = t[:, :3] * t[:, 3:] + t[:, :1] * 0.0 + names["sum"](t)
    (want,) = torch.autograd.grad(got.sum(), t)
    np.testing.assert_allclose(found, want.numpy(), rtol=1e-6)


def test_gradients_of_gradients_of_parts():
    g = aicf.Graph("twice")
    x = g.input("x", (4,))
    a, b = aicf.split(x, 2)
    first = aicf.grad(aicf.sum(a * a * b), x)
    g.output("dd", aicf.grad(aicf.sum(first * first), x))
    x = np.array([1, 2, 3, 4], np.float32)
    a, b = x[:2], x[2:]
    # of (2 a b)^2 + a^4
    wanted = np.concatenate([8 * a * b**2 + 4 * a**3, 8 * a**2 * b])
    np.testing.assert_allclose(g.compile(device="cpu")(x=x)["dd"].numpy(), wanted, rtol=1e-6)


# ---- on a GPU, as planned


def transformer(clip=None):
    """Two blocks of a language model, as people write it."""
    g = aicf.Graph("transformer")
    rows, length, width, letters = 2, 256, 768, 4096
    h = aicf.embedding(g.input("x", (rows, length), "int32"), g.param("table", (letters, width)))

    def norm(name, x):
        scale = g.param(f"{name}.scale", (width,), init=aicf.init.ones())
        return aicf.layer_norm(x, width, scale, g.param(f"{name}.shift", (width,)))

    for i in range(2):
        q, k, v = aicf.split(g.dense(f"{i}.qkv", norm(f"{i}.norm0", h), 3 * width), 3, axis=-1)
        h = h + g.dense(f"{i}.out", aicf.tanh(q * k + v), width)
        wide = aicf.gelu(g.dense(f"{i}.wide", norm(f"{i}.norm1", h), 4 * width), "tanh")
        h = h + g.dense(f"{i}.narrow", wide, width)
    logits = g.dense("out", norm("norm", h), letters, bias=False)
    following = g.input("following", (rows * length,), "int32")
    loss = aicf.cross_entropy(logits.reshape((-1, letters)), following)
    g.output("loss", loss)
    g.minimize(loss, aicf.optim.AdamW(), clip_norm=clip)
    return g


def planned(g, passes=None, math="mixed"):
    passes = _core.pass_names() if passes is None else passes
    return json.loads(_core.cuda_plan(g._core, passes, 132, "sm_90a", math))


def test_logits_of_16_bits_are_read_as_they_are():
    plan = planned(transformer())
    for op in plan["ops"]:
        for view in (*op["inputs"], *op["outputs"]):
            assert not (np.prod(view["shape"]) == 512 * 4096 and view["dtype"] == "float32")


def test_casts_of_weights_share_a_launch():
    groups = [op for op in planned(transformer())["ops"] if op["op"] == "group"]
    casts = [sum(m["op"] == "cast" for m in op["members"]) for op in groups]
    assert max(casts) == 17  # weights and biases of eight layers, and the output layer


def test_gradients_of_a_norm_and_the_bias_before_it_share_a_launch():
    plan = planned(transformer())
    sums = [
        [steps_of(m) for m in op["members"]]
        for op in plan["ops"]
        if op["op"] == "group" and all("reduce_sum" in steps_of(m) for m in op["members"])
    ]
    assert sum(len(members) >= 3 for members in sums) >= 4


def members_of(plan):
    """What a plan launches, the members of a group one by one."""
    return [op for entry in plan["ops"] for op in entry.get("members", [entry])]


def test_decay_and_the_limit_of_the_norm_are_the_updates_own():
    for clip in (None, 1.0):
        g = transformer(clip)
        ops = members_of(planned(g))
        steps = [step for op in ops for step in steps_of(op)]
        assert steps.count("scaled_adam_step") == len(list(g.params)) and "adam_step" not in steps
        scaled = [
            v["shape"] for op in ops for v in op.get("outputs", []) if steps_of(op) == ["mul"]
        ]
        assert all(np.prod(shape) < 768 * 768 for shape in scaled)  # no gradient or param, apart


def test_squares_of_gradients_read_16_bits_and_share_launches():
    plan = planned(transformer(1.0))
    squares = [op for op in members_of(plan) if steps_of(op)[:3] == ["cast", "mul", "reduce_sum"]]
    assert len(squares) >= 9  # of each weight of a layer
    assert not any("mul" in steps_of(op) for op in plan["ops"] if op.get("anchor") == "gemm")
    launches = [op for op in plan["ops"] if "reduce_sum" in str(op.get("members", steps_of(op)))]
    assert len(launches) < 16


def test_kernels_compile():
    if not _core.cuda_info()["nvrtc"]:
        pytest.skip("no NVRTC: pip install nvidia-cuda-nvrtc")
    programs = _core.cuda_programs(
        transformer(1.0)._core, _core.pass_names(), 132, "sm_90a", "mixed"
    )
    assert all(_core.cuda_cubins(programs, "sm_90a"))


def test_a_mixed_step_trains_the_same_without_passes(rng):
    feed = {"x": rng.integers(0, 64, (2, 8), np.int32), "t": rng.integers(0, 64, 16, np.int32)}

    def build(g):
        h = aicf.embedding(g.input("x", (2, 8), "int32"), g.param("table", (64, 16)))
        h = h + g.dense("narrow", aicf.gelu(g.dense("wide", h, 32), "tanh"), 16)
        logits = g.dense("out", h, 64).reshape((16, 64))
        loss = aicf.cross_entropy(logits, g.input("t", (16,), "int32"))
        g.output("loss", loss)
        g.minimize(loss, aicf.optim.AdamW(lr=1e-2), clip_norm=1.0)

    want = None
    for passes in ((), ("clone_upcasts",), "default"):
        g = aicf.Graph("mixed")
        build(g)
        step = g.compile(device="cpu", passes=passes, math="mixed")
        losses = [outputs_of(step(**feed))["loss"].tobytes() for _ in range(3)]
        got = losses, {name: array.numpy().tobytes() for name, array in step.params.items()}
        want = want or got
        assert got == want
