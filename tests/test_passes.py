"""Each pass keeps every bit: random graphs with and without it, and the hard cases one by one."""

from collections import Counter
from itertools import pairwise

import aicf
import numpy as np
import pytest
from aicf import _core
from conftest import outputs_of
from test_random_graphs import emit, random_program

ALONE = [(name,) for name in _core.pass_names()]
CHOICES = [(), *ALONE, "default"]
AS_ONE = ("loops", "block", "update_epilogues")
APART = tuple(name for name in _core.pass_names() if name not in AS_ONE)
GROUPS, IN_GROUP = 25, 20  # random graphs on the CPU; a GPU takes the first ones
DTYPES = ["float32", "float32", "float64", "float16", "bfloat16"]


def assert_same(got, want, what, dump=str):
    """Equal bytes; a NaN's payload is the one exception. `dump()` is said of a failure."""
    a, b = np.atleast_1d(got), np.atleast_1d(want)
    assert a.shape == b.shape and a.dtype == b.dtype, what
    differs = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")
    if a.dtype.kind == "f":
        differs &= ~(np.isnan(a) & np.isnan(b))
    assert not differs.any(), (
        f"{what}: {differs.sum()} of {a.size} differ: {got!r} and {want!r}\n{dump()}"
    )


def everything(step, feed, steps=2):
    """All outputs of some steps, and all states after them."""
    result = {}
    for k in range(steps):
        got = outputs_of(step(**feed))
        result |= {f"{name} of step {k}": array for name, array in got.items()}
    step.replay(30)  # one launch after another, as nothing reads between them
    return result | dict(step.state_dict())


def check_passes(build, feed, device, choices=CHOICES):
    """The same bytes under every choice of passes; returns those of the first, and the last step:
    on a GPU, where the default may leave one launch or few, that without AS_ONE."""
    want = None
    if device == "cuda" and choices[-1] == "default":
        choices = (*choices, APART)
    for passes in choices:
        g = aicf.Graph("passes")
        build(g)
        step = g.compile(device=device, passes=passes, checks="off")
        got = everything(step, feed)
        for name, array in (want or got).items():
            dump = lambda step=step: str(step.plan)  # noqa: E731
            assert_same(got[name], array, f"{name} with passes={passes}", dump)
        want = want or got
    return want, step


def entries(step):
    """What step.lowered holds, the members of a group one by one."""
    return [op for entry in step.lowered for op in entry.get("members", [entry])]


def text_after(g, *passes):
    """The dump of a graph, or of its lowered list, after some passes."""
    return g._core.stages(list(passes))[-1].text


def nodes_after(g, *passes):
    """The ops of the live nodes after some passes."""
    lines = text_after(g, *passes).splitlines()
    return [line.split(" = ")[1].split("(")[0] for line in lines if "  # node " in line]


def kind(op):
    """The name of an op; of a region what its anchor is, too."""
    name = op.get("anchor", "")
    if not name:
        return op["op"]
    if name.startswith("reduce_"):
        return "region reduce"
    update = name.endswith("_step")
    return f"region {'update' if update else name if name == 'gemm' else 'rows'}"


def launches(step):
    """Names of what runs, the members of a group one by one."""
    return [kind(op) for op in entries(step)]


# ---- random graphs


def disguised(v, g, rng):
    """The same value, bit for bit, said in a longer way."""
    one = aicf.sum(g.constant(np.array([0.25, 0.75], np.float32)))
    shape, rank = v.shape, v.ndim
    order = tuple(int(axis) for axis in rng.permutation(rank))
    whole = aicf.reshape(v, (1, *shape))
    pair = aicf.broadcast_to(whole, (2, *shape))
    ways = [
        lambda: v * aicf.cast(one, v.dtype),
        lambda: v / 1.0 - 0.0,
        lambda: aicf.neg(-v),
        lambda: aicf.reshape(aicf.reshape(v, (-1,)), shape),
        lambda: aicf.permute(aicf.permute(v, order), np.argsort(order).tolist()),
        lambda: aicf.cast(aicf.cast(v, "float64"), v.dtype),
        lambda: aicf.where(v < 0.5, v, v),
        lambda: aicf.maximum(v, v),
        lambda: aicf.broadcast_to(v, shape) + -0.0,
        lambda: aicf.reshape(aicf.sum(whole, 0, keepdims=True), shape),
        lambda: aicf.max(pair, 0),
        lambda: aicf.reshape(aicf.max(pair, 0, keepdims=True), shape),
        lambda: aicf.min(aicf.permute(pair, (*range(1, rank + 1), 0)), -1),
        lambda: aicf.reshape(aicf.min(aicf.reshape(pair, (2, -1)), 0), shape),
        lambda: aicf.reshape(aicf.min(aicf.reshape(v, (1, *shape, 1)), 0, keepdims=True), shape),
    ]
    return ways[int(rng.integers(len(ways)))]()


def build_random(g, rng, inputs, program, dtype, disguise):
    """Outputs, gradients, an optimizer, and states that are read before, after and beside their
    next content. `disguise`: a share of the values is said in a longer way."""
    leaves = [g.input(f"x{i}", x.shape, dtype) for i, x in enumerate(inputs)]
    values = list(leaves)
    hide = np.random.default_rng(len(program))
    for op, positions, attrs in program:
        v = emit(op, [values[p] for p in positions], attrs)
        values.append(disguised(v, g, hide) if hide.random() < disguise else v)
    made = values[len(leaves) :]
    wanted = [made[-1], *(made[int(i)] for i in rng.integers(0, len(made), 3))]
    loss = None
    for i, y in enumerate(wanted):
        g.output(f"y{i}", y)
        term = aicf.mean(y * y)
        loss = term if loss is None else loss + term
    p = g.param("p", made[-1].shape, dtype, init=aicf.init.uniform(-1, 1))
    q, r = (
        g.param(name, shape, dtype, init=aicf.init.uniform(-1, 1))
        for name, shape in (("q", (3, 5)), ("r", (5, 4)))
    )
    loss = loss + aicf.mean(aicf.tanh(made[-1] * p)) + aicf.mean(aicf.relu(q @ r + 0.5))
    g.output("loss", loss)
    g.minimize(loss, OPTIMIZERS[str(rng.choice(["adam", "adamw", "decayed", "momentum"]))]())
    try:
        for i, grad in enumerate(g.backward(loss, leaves[:1]).values()):
            g.output(f"d{i}", grad)
    except aicf.GraphError:
        pass  # nothing smooth leads to that leaf
    for i, at in enumerate(rng.integers(0, len(made), 3)):
        y = made[int(at)]
        s = g.state(f"s{i}", y.shape, dtype, init=aicf.init.constant(0.25))
        kind = int(rng.integers(4))
        before = s * y if kind in (0, 2) else y
        g.assign(s, s * 0.5 + before)
        if kind == 1:
            g.output(f"after{i}", aicf.tanh(s + y) - s)
        if kind == 2:
            g.output(f"turned{i}", aicf.permute(s, tuple(reversed(range(s.ndim)))) + 1.0)
        if kind == 3:
            g.output(f"kept{i}", s, keep=2)


def check_random(seed, device):
    """Returns the passes that changed something."""
    rng = np.random.default_rng(seed)
    inputs, program = random_program(rng, int(rng.integers(4, 16)), -1.0)
    dtype = DTYPES[seed % len(DTYPES)]
    ours = int(rng.integers(2**31))
    leaf = "float32" if dtype == "bfloat16" else dtype  # NumPy has no bfloat16
    feed = {f"x{i}": x.astype(leaf) for i, x in enumerate(inputs)}

    def build(g, disguise=0.4):
        recast, ours_again = Recast(g, dtype), np.random.default_rng(ours)
        build_random(recast, ours_again, inputs, program, leaf, disguise)

    got, _ = check_passes(build, feed, device)
    g = aicf.Graph("plain")
    build(g, disguise=0)
    for name, array in outputs_of(g.compile(device=device)(**feed)).items():
        if not name.startswith("d"):  # gradients are other sums of the same terms
            assert_same(array, got[f"{name} of step 0"], f"{name} said plainly", lambda: str(g))
    return changes(build)


def changes(build):
    """The passes, each after those before it, that change a graph or shorten its lowered list."""
    g = aicf.Graph("changes")
    build(g)
    stages = g._core.stages(_core.pass_names())
    on_graph = [s for s in stages if s.text.startswith("graph ")]
    changed = {b.name for a, b in pairwise(on_graph) if a.text != b.text}
    lowered = stages[len(on_graph) - 1 :]
    changed |= {b.name for a, b in pairwise(lowered) if a.ops > b.ops}
    before, after = (s.ops for s in g._core.stages(["scalars"])[-2:])  # where none rides elsewhere
    return changed | ({"scalars"} if after < before else set())


class Recast:
    """A graph whose inputs are cast to another dtype, where NumPy cannot hold that."""

    def __init__(self, g, dtype):
        self.g, self.dtype = g, dtype

    def input(self, name, shape, dtype):
        x = self.g.input(name, shape, dtype)
        return x if dtype == self.dtype else aicf.cast(x, self.dtype)

    def state(self, name, shape, dtype, init):
        return self.g.state(name, shape, self.dtype, init=init)

    def param(self, name, shape, dtype, init):
        return self.g.param(name, shape, self.dtype, init=init)

    def __getattr__(self, name):
        return getattr(self.g, name)


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_graphs(group, device):
    count = IN_GROUP if device == "cpu" else 2
    changed = Counter()
    for seed in range(group * IN_GROUP, group * IN_GROUP + count):
        changed.update(check_random(seed, device))
    if device == "cpu":  # a pass that does nothing keeps every bit, too
        # "loops" to "update_epilogues" are for GPUs, "concats" for attention
        # (test_concats), "copies" for views (test_copies); of those that clear the way for
        # others test_prepare draws graphs.
        here = set(_core.pass_names()) - {
            "loops",
            "block",
            "tails",
            "chains",
            "losses",
            "row_sums",
            "update_epilogues",
            "cuts",
            "shapes",
            "clone_upcasts",
            "merge_upcasts",
            "concats",
            "copies",
        }
        assert all(changed[name] >= IN_GROUP // 10 for name in here), changed


# ---- pointwise fusion


def one(build, feed, device, choices=CHOICES):
    """Builds with `y` as the one output; its bytes without passes, and the launches with all."""

    def with_output(g):
        values = {k: g.input(k, a.shape, str(a.dtype)) for k, a in feed.items()}
        for name, y in build(g, **values).items():
            g.output(name, y)

    got, step = check_passes(with_output, feed, device, choices)
    return got, launches(step), step


def draw(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def test_a_chain_is_one_launch(device, rng):
    feed = {"a": draw(rng, 3000), "b": draw(rng, 3000)}
    _, ops, _ = one(lambda g, a, b: {"y": aicf.sin(a) * b + aicf.exp(-a * a)}, feed, device)
    assert ops == ["region"]


def test_a_cast_may_lie_where_its_operand_did(device, rng):
    """Of equal size, and the operand's last reader: the result takes over its place."""

    def build(g, a, b):
        whole = aicf.cast(4.0 * a, "int32")
        return {"whole": whole, "y": aicf.abs(whole - aicf.cast(4.0 * b, "int32"))}

    _, ops, _ = one(build, {"a": draw(rng, 300), "b": draw(rng, 300)}, device)
    assert ops == ["region"]


def test_the_dump_shows_every_step(device):
    g = aicf.Graph("g")
    a = g.input("a", (2, 3))
    g.output("y", aicf.clip(aicf.sin(a) * a[:, :1], -0.5, 0.5))
    step = g.compile(device=device)
    text = str(step.plan)
    assert "op=region(sin, mul, clip) (%0 f32[2, 3], %0 f32[2, 3] strides [3, 0]) -> (%" in text
    assert "%1 f32[2, 3] = sin(%0)\n" in text
    assert "clip(%" in text and '{"lo": -0.5, "hi": 0.5}\n' in text
    (op,) = step.lowered
    assert [one["op"] for one in op["body"]] == ["sin", "mul", "clip"]
    assert [view["value"] for view in op["inner"]] == [1, 3]


def test_metamorphic_pairs(device, rng):
    x = draw(rng, 40, 33)
    x[0, :4] = [np.inf, -0.0, 0.0, 1e-40]

    def build(g, x):
        z = aicf.tanh(x)
        return {
            "zero": z - z,
            "same": aicf.maximum(z, z),
            "twice": z + z - 2.0 * z,
            "mask": aicf.where(z < 0.0, -z, z) - aicf.abs(z),
            "stored": z,
        }

    got, ops, _ = one(build, {"x": x}, device)
    assert ops == ["region"]
    assert_same(got["same of step 0"], got["stored of step 0"], "max(x, x)")
    for name in ("zero", "twice", "mask"):
        assert not got[f"{name} of step 0"].any(), name


def test_softmax_still_sums_to_one(device, rng):
    build = lambda g, x: {"y": aicf.sum(aicf.softmax(x * 2.0 + 1.0, axis=1) * 3.0, axis=1)}  # noqa: E731
    got, _, _ = one(build, {"x": draw(rng, 50, 70)}, device)
    assert np.allclose(got["y of step 0"], 3, atol=1e-5)


def test_values_read_elsewhere_stay(device, rng):
    """A value that a reduction, an output and a later group read is written once."""

    def build(g, x):
        z = aicf.exp(x)
        return {"z": z, "sum": aicf.sum(z, axis=0), "w": aicf.sqrt(z * 2.0) / (aicf.max(z) + 1.0)}

    got, ops, step = one(build, {"x": draw(rng, 12, 5)}, device)
    assert "region" in ops and ops.count("exp") + ops.count("region") <= 3
    inner = {view["value"] for op in step.lowered for view in op.get("inner", [])}
    read = {view["value"] for op in step.lowered for view in op["inputs"]}
    assert not inner & read


def test_a_path_outside_splits_the_group(device, rng):
    """exp -> sum -> sub must not be one op with exp -> sub."""
    got, ops, _ = one(
        lambda g, x: {"y": (aicf.exp(x) - aicf.sum(aicf.exp(x))) * 2.0},
        {"x": draw(rng, 6, 7)},
        device,
    )
    assert ops == ["exp", "reduce_sum", "region"]


def test_only_whole_values_are_handed_on(device, rng):
    """A transposed or shifted read of a group's own value needs the value in memory."""

    def build(g, x):
        z = aicf.sin(x)
        return {"y": z + aicf.permute(z, (1, 0)), "w": z[1:] * z[:-1]}

    _, ops, _ = one(build, {"x": draw(rng, 20, 20)}, device)
    assert ops.count("sin") == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_inner_values_are_rounded(dtype, device, rng):
    """Every value of a chain is rounded to its dtype, as if it had been stored."""

    def build(g, a, b):
        a, b = aicf.cast(a, dtype), aicf.cast(b, dtype)
        y = aicf.sin(a) * b + aicf.exp(-a * a) / (b * b + 1.0)
        return {"y": aicf.where(a < b, y, a * y), "wide": aicf.cast(y, "float32")}

    feed = {"a": draw(rng, 1500), "b": draw(rng, 1500)}
    _, ops, _ = one(build, feed, device)
    assert len(ops) == 1


def test_bool_and_int_members(device, rng):
    feed = {
        "a": rng.integers(-9, 9, (30, 11)).astype(np.int32),
        "b": rng.integers(-9, 9, (30, 11)).astype(np.int32),
        "c": rng.integers(0, 9, (30, 11)).astype(np.int64),
    }

    def build(g, a, b, c):
        small = aicf.logical_and(a < b, aicf.cast(c, "int32") > a)
        y = aicf.where(small, a * b, aicf.relu(b - a))
        return {"y": y, "small": small, "f": aicf.cast(y, "float64") * 0.5}

    _, ops, _ = one(build, feed, device)
    assert ops == ["region"]


@pytest.mark.parametrize("shape", [(0,), (4, 0, 3), (), (1,), (1, 1)])
def test_small_and_empty(shape, device, rng):
    feed = {"x": np.asarray(draw(rng, *shape))}
    _, ops, _ = one(lambda g, x: {"y": aicf.exp(aicf.sin(x) * x) - x}, feed, device)
    assert len(ops) <= 1


def test_broadcast_and_strided_operands(device, rng):
    feed = {
        "x": draw(rng, 40, 50),
        "row": draw(rng, 50),
        "column": draw(rng, 40, 1),
        "turned": draw(rng, 50, 40),
        "number": draw(rng),
    }

    def build(g, x, row, column, turned, number):
        y = aicf.tanh(x + row) * column - aicf.permute(turned, (1, 0)) * number
        return {"y": y * row, "z": aicf.relu(y)}

    _, ops, _ = one(build, feed, device)
    assert ops == ["region"]


def test_long_chains_are_split(device, rng):
    """A group stays within what a kernel's block and registers hold."""

    def chain(g, x):
        for i in range(150):
            x = aicf.sin(x) * 0.5 + float(i % 3)
        return {"y": x}

    def wide(g, **xs):
        total = None
        for x in xs.values():
            total = x * x if total is None else total + x * x
        return {"y": total}

    _, ops, _ = one(chain, {"x": draw(rng, 600)}, device)
    assert 1 < len(ops) < 60 and set(ops) <= {"region", "sin", "mul", "add"}
    shape = (1, 2, 1, 3, 1, 2, 1, 2)
    _, ops, _ = one(wide, {f"x{i}": draw(rng, *shape) for i in range(40)}, device)
    assert 1 < len(ops) < 40
    halves = {f"x{i}": draw(rng, 30, dtype=np.float16) for i in range(30)}
    _, ops, _ = one(wide, halves, device)
    assert 1 < len(ops) < 30


def test_copies_join_behind_their_source(device, rng):
    def build(g, x):
        y = aicf.sin(x) * 2.0
        return {"y": y, "again": y}

    _, ops, step = one(build, {"x": draw(rng, 100)}, device)
    assert ops == ["region"]
    assert [op["op"] for op in step.lowered[0]["body"]] == ["sin", "mul", "copy"]


# ---- in place, and states


def state_case(step_of):
    """A graph with one state s and an input x; step_of(g, s, x) says what happens."""

    def build(g):
        s = g.state("s", (6, 6), init=aicf.init.uniform(-1, 1))
        step_of(g, s, g.input("x", (6, 6)))

    return build


def reads_after(g, s, x):
    new = s * 0.9 + x
    g.assign(s, new)
    g.output("y", aicf.sin(new) + s * 2.0)


def reads_turned(g, s, x):
    new = s * 0.9 + x
    g.assign(s, new)
    g.output("y", aicf.permute(s, (1, 0)) * new)


def reads_turned_inside(g, s, x):
    g.assign(s, aicf.tanh(s + aicf.permute(s, (1, 0))) * x)


def reads_a_row(g, s, x):
    g.assign(s, (s + s[:1]) * x)


def swaps(g, s, x):
    t = g.state("t", (6, 6), init=aicf.init.constant(0.5))
    g.assign(s, t * 0.5 + x)
    g.assign(t, s * 0.5 - x)


def exchanges(g, s, x):
    t = g.state("t", (6, 6), init=aicf.init.constant(0.5))
    g.assign(s, t)
    g.assign(t, s)
    g.output("y", (s + t) * x)


def shows_the_old(g, s, x):
    g.assign(s, aicf.sin(s) + x)
    g.output("old", s)
    g.output("sum", aicf.sum(s * x))


def one_value_for_two(g, s, x):
    t = g.state("t", (6, 6))
    new = s * x + t
    g.assign(s, new)
    g.assign(t, new)
    g.output("y", new)


def waits_for_a_reader(g, s, x):
    """The reader is a product, which lies between the members in the list."""
    new = aicf.sin(x) + 1.0
    g.output("y", aicf.tanh(x @ s) * new)
    g.assign(s, new * 0.5)


@pytest.mark.parametrize(
    "case",
    [
        reads_after,
        reads_turned,
        reads_turned_inside,
        reads_a_row,
        swaps,
        exchanges,
        shows_the_old,
        one_value_for_two,
        waits_for_a_reader,
    ],
)
def test_states(case, device, rng):
    check_passes(state_case(case), {"x": draw(rng, 6, 6)}, device)


def test_a_state_is_updated_in_place(device, rng):
    def build(g):
        s, x = g.state("s", (500,)), g.input("x", (500,))
        g.assign(s, s * 0.9 + x * x)

    _, step = check_passes(build, {"x": draw(rng, 500)}, device)
    assert launches(step) == ["region"] and "in place of" in str(step.plan)


def test_temporaries_are_taken_over(device, rng):
    """The result of a fused op lies where a dead operand was."""

    def build(g, x):
        z = aicf.cumsum(x, axis=0)
        return {"y": aicf.cumsum(aicf.sin(z) * x + z, axis=0)}

    _, ops, step = one(build, {"x": draw(rng, 64, 8)}, device)
    assert ops == ["cumsum", "region", "cumsum"]
    assert "in place of" in str(step.plan)


# ---- optimizers

OPTIMIZERS = {
    "sgd": lambda: aicf.optim.SGD(lr=0.05),
    "momentum": lambda: aicf.optim.SGD(lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda: aicf.optim.Adam(lr=0.01),
    "decayed": lambda: aicf.optim.Adam(lr=0.01, weight_decay=0.1),
    "adamw": lambda: aicf.optim.AdamW(lr=0.01, weight_decay=0.1),
    "rmsprop": lambda: aicf.optim.RMSprop(lr=0.01),
    "adagrad": lambda: aicf.optim.Adagrad(lr=0.01),
}


def training(optimizer, layers=(7, 6, 5), dtype="float32", **minimize):
    def build(g):
        x, t = g.input("x", (9, layers[0]), dtype), g.input("t", (9, layers[-1]), dtype)
        for i, (rows, columns) in enumerate(zip(layers[1:], layers[:-1], strict=True)):
            w, b = g.param(f"{i}.W", (rows, columns), dtype), g.param(f"{i}.b", (rows,), dtype)
            x = aicf.linear(x, w, b)
            x = x if rows == layers[-1] else aicf.tanh(x)
        loss = aicf.mse_loss(x, t)
        g.minimize(
            loss, optimizer(g) if optimizer.__code__.co_argcount else optimizer(), **minimize
        )
        g.output("loss", loss)

    return build


def feed_of(rng, layers=(7, 6, 5), dtype=np.float32):
    return {"x": draw(rng, 9, layers[0], dtype=dtype), "t": draw(rng, 9, layers[-1], dtype=dtype)}


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_keep_every_bit(name, clip, device, rng):
    build = training(OPTIMIZERS[name], clip_norm=clip)
    _, step = check_passes(build, feed_of(rng), device)
    assert launches(step).count("region update") == 1
    assert not {"adam_step", "sgd_step", "step_inc", "bias_corr"} & {
        launch.op for launch in step.trace
    }


def test_numbers_in_float64(device, rng):
    build = training(OPTIMIZERS["adam"], dtype="float64")
    _, step = check_passes(build, feed_of(rng, dtype=np.float64), device)
    assert launches(step).count("region update") == 1


def test_many_params_take_several_launches(device, rng):
    """An argument block holds so many tensors; the first op makes the numbers for all."""
    layers = tuple(range(3, 24))
    build = training(OPTIMIZERS["adam"], layers)
    _, step = check_passes(build, feed_of(rng, layers), device)
    assert 2 <= launches(step).count("region update") <= 4
    assert not {"adam_step", "step_inc", "bias_corr"} & {launch.op for launch in step.trace}
    _, step = check_passes(training(OPTIMIZERS["sgd"], layers), feed_of(rng, layers), device)
    assert launches(step).count("region update") <= 2


def test_large_params(device, rng):
    layers = (200, 300, 11)
    build = training(OPTIMIZERS["adam"], layers)
    check_passes(build, feed_of(rng, layers), device)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layers", [(7, 6, 5), (2049, 2049, 3)])
def test_gradients_in_16_bits(layers, dtype, device, rng):
    """On a GPU an update reads them as they are, where nothing else reads their cast."""

    def build(g):
        x = aicf.cast(g.input("x", (9, layers[0])), dtype)
        for i, (rows, columns) in enumerate(pairwise(layers)):
            w = g.param(f"{i}.W", (columns, rows), init=aicf.init.normal(std=0.02))
            x = aicf.tanh(aicf.linear(x, aicf.cast(w, dtype), None))
        loss = aicf.mse_loss(aicf.cast(x, "float32"), g.input("t", (9, layers[-1])))
        g.minimize(loss, aicf.optim.Adam(lr=0.01))
        g.output("loss", loss)

    feed = feed_of(rng, layers)
    _, step = check_passes(build, feed, device, ((), "default"))
    bodies = [Counter(op["op"] for op in entry.get("body", [])) for entry in step.lowered]
    joined = sum(body["cast"] for body in bodies if body["adam_step"])
    assert joined == (2 if device == "cuda" else 0), bodies


def test_a_schedule_reads_the_step_count(device, rng):
    """The step count goes through other ops to the update, so it is not made inside."""

    def optimizer(g):
        lr = aicf.optim.warmup_cosine(g.step_count(), 0.1, 2, 10)
        return aicf.optim.Adam(lr=lr)

    check_passes(training(optimizer), feed_of(rng), device)

    def own_count(g):
        training(OPTIMIZERS["adam"])(g)
        g.output("count", g.step_count() + 0)

    check_passes(own_count, feed_of(rng), device)


def test_two_groups_and_a_second_loss(device, rng):
    """The second optimizer's gradients read what the first has written."""

    def build(g):
        x, t = g.input("x", (9, 7)), g.input("t", (9, 5))
        a, b = g.param("a", (6, 7)), g.param("b", (5, 6))
        y = aicf.linear(aicf.tanh(aicf.linear(x, a)), b)
        loss = aicf.mse_loss(y, t)
        g.minimize(loss, aicf.optim.Adam(lr=0.01), params=[a], name="one")
        g.minimize(loss + aicf.sum(b * b), aicf.optim.Adam(lr=0.02), params=[b], name="two")
        g.output("loss", loss)

    _, step = check_passes(build, feed_of(rng), device)
    assert sum(name in ("region update", "adam_step") for name in launches(step)) == 2


def test_an_update_that_reads_another_stays_behind_it(device, rng):
    def build(g):
        x = g.input("x", (40,))
        p, q = g.param("p", (40,)), g.param("q", (40,))
        lr = g.state("lr", (), init=aicf.init.constant(0.5))
        (new,) = g._emit("SgdStep", [p, x, lr])
        (other,) = g._emit("SgdStep", [q, new, lr])
        (third,) = g._emit("SgdStep", [other, p, lr])
        g.assign(p, new)
        g.assign(q, third)

    _, step = check_passes(build, {"x": draw(rng, 40)}, device)
    assert launches(step).count("sgd_step") == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_params_stay_apart(dtype, device, rng):
    def build(g):
        x = aicf.cast(g.input("x", (4, 6)), dtype)
        w = g.param("w", (6, 6), dtype)
        b = g.param("b", (6,), dtype)
        loss = aicf.mean(aicf.cast(aicf.linear(x, w, b), "float32"))
        g.minimize(loss, aicf.optim.Adam(lr=0.01))

    check_passes(build, {"x": draw(rng, 4, 6)}, device)


def test_what_reads_the_same_elements_becomes_one_op(device, rng):
    """Both derivatives of a product read dy; neither waits for the other."""

    def build(g):
        a, b, dy = (g.input(name, (5, 300)) for name in ("a", "b", "dy"))
        for value, grad in g.backward(a * b, [a, b], grad=dy).items():
            g.output(f"d{value.name}", grad)

    g = aicf.Graph("g")
    build(g)
    assert "region(mul, mul)" in text_after(g, *_core.pass_names()[:8], "outputs")
    check_passes(build, {name: draw(rng, 5, 300) for name in ("a", "b", "dy")}, device)


@pytest.mark.parametrize(
    "build, count",
    [
        (lambda a, b: (aicf.exp(a), aicf.sin(a)), 1),
        (lambda a, b: (aicf.exp(a), aicf.sin(a), aicf.cos(a) * b[:5]), 1),
        (lambda a, b: (aicf.exp(a), aicf.sin(b)), 2),  # nothing in common
        (lambda a, b: (aicf.exp(a), aicf.softmax(a)), 2),  # not pointwise
        (lambda a, b: (aicf.exp(a), a[:3] + 1.0), 2),  # another shape
        (lambda a, b: (a + b[0], b[1:6] * b[0]), 2),  # a row that is broadcast
        (lambda a, b: (aicf.exp(a) @ b[:5], aicf.sin(a) @ b[:5]), 4),  # one result after the other
        (lambda a, b: (aicf.exp(a), aicf.softmax(b[:5]) * a), 3),  # one would wait for the softmax
        (lambda a, b: (aicf.exp(a), aicf.permute(a, (1, 0)) + b[:5]), 2),  # other elements
    ],
)  # fmt: skip
def test_what_is_one_op_for_its_operands(build, count, device, rng):
    def graph(g):
        for i, y in enumerate(build(g.input("a", (5, 5)), g.input("b", (6, 5)))):
            g.output(f"y{i}", y)

    g = aicf.Graph("g")
    graph(g)
    assert len(g.compile(device="cpu", passes=("fuse", "outputs")).lowered) == count
    check_passes(graph, {"a": draw(rng, 5, 5), "b": draw(rng, 6, 5)}, device)


def test_choices_of_passes():
    names = ["fold", "simplify", "cse", "reduce_prepass", "shapes", "clone_upcasts", "epilogue"]
    assert _core.pass_names() == [
        *names,
        "reductions",
        "rows",
        "fuse",
        "copies",
        "outputs",
        "optimizers",
        "merge_upcasts",
        "loops",
        "block",
        "tails",
        "chains",
        "losses",
        "row_sums",
        "update_epilogues",
        "cuts",
        "horizontal",
        "scalars",
        "concats",
    ]
    g = aicf.Graph("g")
    x = g.input("x", (4,))
    g.output("y", aicf.exp(x) * x)
    assert launches(g.compile(device="cpu", passes=())) == ["exp", "mul"]
    assert launches(g.compile(device="cpu", passes=("fuse",))) == ["region"]
    assert "region(exp, mul)" in text_after(g, "fuse")
