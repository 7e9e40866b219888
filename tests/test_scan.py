"""Loops: `scan`, `cond` and `while_loop`, their gradients, dumps, files and refusals."""

import json
import time

import aicf
import numpy as np
import pytest
from aicf import _core
from aicf.serialize import read_record
from compare import assert_bits, numpy_dtype
from conftest import outputs_of
from test_contract import constants, run_plain


def on_threads(count, run):
    before = aicf.num_threads()
    aicf.set_num_threads(count)
    try:
        return run()
    finally:
        aicf.set_num_threads(before)


TREES = ("states", False), ("states", True), ("recompute", False), ("recompute", True)


def rnn(turns=6, save="states", reverse=False, dtype="float64", order=2):
    """A recurrence with a tree of carries, a captured weight and its gradients."""
    g = aicf.Graph("rnn")
    x, h = g.input("x", (turns, 4, 3), dtype), g.input("h", (4, 5), dtype)
    w, u = (g.param(name, (5, n), dtype) for name, n in (("w", 5), ("u", 3)))

    def turn(carry, row):
        h = aicf.tanh(aicf.linear(carry["h"], w) + aicf.linear(row, u))
        return {"h": h, "n": carry["n"] + 1}, (h * 2.0, aicf.sum(h))

    first = {"h": h, "n": g.constant(0, "int64")}
    last, (ys, sums) = aicf.scan(turn, first, x, save=save, reverse=reverse)
    loss = aicf.sum(last["h"] ** 2.0) + aicf.sum(aicf.sin(ys))
    found = {"h": last["h"], "n": last["n"], "ys": ys, "sums": sums}
    for level in range(1, order + 1):
        grads = aicf.grad(loss, [w, u, h, x])
        found |= {f"{level}.{name}": v for name, v in zip("wuhx", grads, strict=True)}
        loss = sum((aicf.sum(v * v) for v in grads[1:]), aicf.sum(grads[0] * grads[0]))
    for name, value in found.items():
        g.output(name, value)
    return g


def feed(turns, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(turns, 4, 3)).astype(dtype),
            "h": rng.normal(size=(4, 5)).astype(dtype)}  # fmt: skip


def torch_rnn(given, w, u, reverse):
    torch = pytest.importorskip("torch")
    leaves = [torch.tensor(a, requires_grad=True) for a in (w, u, given["h"], given["x"])]
    w, u, h, x = leaves
    rows = []
    for row in x.flip(0) if reverse else x:
        h = torch.tanh(h @ w.T + row @ u.T)
        rows.append(h * 2)
    ys = torch.stack(rows[::-1] if reverse else rows)
    found = {"h": h, "ys": ys, "sums": ys.sum((1, 2)) / 2}
    loss = (h * h).sum() + ys.sin().sum()
    for level in (1, 2):
        grads = torch.autograd.grad(loss, leaves, create_graph=True)
        found |= {f"{level}.{name}": v for name, v in zip("wuhx", grads, strict=True)}
        loss = sum((v * v).sum() for v in grads)
    return {name: v.detach().numpy() for name, v in found.items()}


@pytest.mark.parametrize(("save", "reverse"), TREES)
@pytest.mark.parametrize("turns", [1, 2, 7])
def test_values_and_gradients(save, reverse, turns, device):
    step = rnn(turns, save, reverse).compile(device=device)
    given = feed(turns)
    found = outputs_of(step(**given))
    expected = torch_rnn(given, step.params["w"].numpy(), step.params["u"].numpy(), reverse)
    for name, want in expected.items():
        atol = 1e-13 * max(1, np.abs(want).max(initial=0))
        np.testing.assert_allclose(found[name], want, rtol=1e-12, atol=atol, err_msg=name)
    assert found["n"] == turns


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_equal_bits(dtype, tmp_path):
    """Over threads, passes, ways to run, and files."""
    g = rnn(9, "recompute", dtype=dtype)
    if numpy_dtype(dtype) is None:
        pytest.skip(f"no NumPy dtype for {dtype}")
    given = feed(9, numpy_dtype(dtype))
    step = g.compile(device="cpu", seed=3)
    want = outputs_of(step(**given))
    step.export(tmp_path / "step")
    read = aicf.Graph.from_json(g.to_json())
    assert read.to_json() == g.to_json()
    ways = {
        "replayed": lambda: step.replay(),
        "eager": lambda: step.run(**given),
        "without passes": lambda: g.compile(device="cpu", seed=3, passes=())(**given),
        "from JSON": lambda: read.compile(device="cpu", seed=3)(**given),
        "exported": lambda: aicf.load_step(tmp_path / "step", device="cpu")(**given),
        **{f"{n} threads": lambda n=n: on_threads(n, lambda: step(**given)) for n in (1, 2, 3)},
    }
    for way, run in ways.items():
        found = outputs_of(run())
        for name in want:
            assert_bits(found[name], want[name], f"{way}: {name}")


def run_loops(ops, env, bodies):
    """A lowered list by op_call, one op after the other and loops turn by turn."""
    for op in ops:
        if op["op"] != "loop":
            run_plain([op], env, "cpu")
            continue
        attrs, body = op["attrs"], next(bodies)
        given = [env[view["value"]] for view in op["inputs"]]
        fixed = constants(body)
        carries, turns = given[: attrs["carries"]], attrs["turns"]
        kept = [[None] * turns for _ in op["results"]]
        for turn in reversed(range(turns)) if attrs["reverse"] else range(turns):
            local = dict(fixed)
            for i, (id, value) in enumerate(zip(op["operands"], given, strict=False)):
                if i < attrs["carries"]:
                    value = carries[i]
                elif i < attrs["carries"] + attrs["slices"]:
                    value = value.reshape(turns, -1)[turn]
                local[id] = value
            run_plain(op["loop"], local, "cpu")
            carries = [local[id] for id in op["results"][: attrs["carries"]]]
            for rows, id in zip(kept, op["results"], strict=True):
                rows[turn] = local[id]
        for k, view in enumerate(op["outputs"]):
            whole = k < attrs["carries"] and k not in attrs["histories"]
            env[view["value"]] = carries[k] if whole else np.concatenate(kept[k])


@pytest.mark.parametrize("reverse", [False, True])
def test_turns_by_op_call(reverse):
    """Each op of a turn, called alone turn after turn, gives the loop's bits."""
    g = rnn(4, reverse=reverse, order=1)
    step = g.compile(device="cpu", passes=(), seed=1)
    given = feed(4)
    want = outputs_of(step(**given))
    record, ops = json.loads(g.to_json()), read_record(g._core.lower_json())["ops"]
    named = {v["name"]: int(i) for i, v in record["values"].items() if v["role"] != "temp"}
    leaves = given | {name: step.params[name].numpy() for name in "wu"}
    env = {named[name]: a.reshape(-1) for name, a in leaves.items()}
    env |= constants(record)
    bodies = [node["attrs"]["body"] for node in record["nodes"] if node["op"] == "Scan"]
    # A loop's constants stand beside it under new ids.
    for op, body in zip([op for op in ops if op["op"] == "loop"], bodies, strict=True):
        for view, id in zip(op["inputs"], op["operands"], strict=True):
            if id in constants(body):
                env[view["value"]] = constants(body)[id]
    run_loops(ops, env, iter(bodies))
    results = {o["name"]: o["value"] for o in record["outputs"] if o["value"] in env}
    assert set(results) >= {"ys", "sums", "1.w", "1.u", "1.h", "1.x"}
    for name, id in results.items():
        assert_bits(env[id].reshape(want[name].shape), want[name], name)


def test_a_thousand_turns():
    """They compile as ten do: one body, as many kernels, and little more time."""
    bodies, programs, seconds = {}, {}, {}
    for turns in (10, 1000):
        g = rnn(turns, dtype="float32", order=1)
        began = time.process_time()
        step = g.compile(device="cpu")
        seconds[turns] = time.process_time() - began
        loops = [op["loop"] for op in step.plan.ops if op["op"] == "loop"]
        bodies[turns] = [[inside["op"] for inside in loop] for loop in loops]
        given = feed(turns, "float32")
        assert outputs_of(step(**given))["n"] == turns
        if hasattr(_core, "cuda_programs"):
            programs[turns] = len(_core.cuda_programs(g._core, _core.pass_names()))
    assert bodies[10] == bodies[1000] and len(bodies[10]) == 2
    assert programs.get(1000, 0) <= programs.get(10, 0) + 4  # fewer ops share a launch outside
    assert seconds[1000] < seconds[10] + 0.5, seconds


def test_dumps(tmp_path):
    g = aicf.Graph("sums")
    x = g.input("x", (1000, 2))
    g.output("y", aicf.scan(lambda c, row: (c * 0.5 + row, None), g.input("h", (2,)), x)[0])
    text = [line.split("  # node")[0] for line in str(g).splitlines()]
    assert text[3:] == [
        "  %2 f32[2], %3 f32[1000, 2] = Scan(%1, %0) "
        '{"length": 1000, "carries": 1, "slices": 1, "reverse": false}',
        '      graph "body": 5 values, 2 nodes',
        '        %0 input f32[2] "in0"',
        '        %1 input f32[2] "in1"',
        '        %2 constant f32[] "const" = 0.5',
        "        %3 f32[2] = Mul(%0, %2)",
        "        %4 f32[2] = Add(%3, %1)",
        '        output "out0" = %4',
        '  output "y" = %2',
    ]
    step = g.compile(device="cpu")
    plan = str(step.plan).splitlines()
    assert sum("[plan" in line for line in plan) == 1
    assert sum("      [turn" in line for line in plan) == 1
    assert "op=loop x 1000" in str(step.plan)
    assert [tuple(launch) for launch in step.trace] == [("loop", "loop")]
    assert step.plan.flops == 4000 and "Scan" in str(g.summary())
    step(x=np.ones((1000, 2), np.float32), h=np.zeros(2, np.float32))
    step.to_html(tmp_path / "page.html")
    assert "loop" in (tmp_path / "page.html").read_text() and step.plan.to_svg()
    assert "Scan" in g.to_dot()
    rows = [line for line in str(step.profile(3)).splitlines() if "loop" in line]
    assert len(rows) == 1 and len(step._launch_sizes()) == 1


# ---- what a turn may use


def test_closures(run_graph):
    """Constants, values of the graph and loops inside loops; what all turns read is summed."""

    def build(g, x, w):
        table = g.constant(np.arange(6.0).reshape(2, 3))
        outer = aicf.exp(w)

        def turn(c, row):
            inner, _ = aicf.scan(lambda d, one: (d * 0.9 + aicf.sin(one * outer), None), c, row)
            shift = g.constant(np.full((3,), 0.25))
            return inner + aicf.sum(table, 0) * shift, aicf.max(inner)

        last, ys = aicf.scan(turn, w, x)
        d = aicf.grad(aicf.sum(last * last) + aicf.sum(ys), [x, w])
        return {"last": last, "ys": ys, "dx": d[0], "dw": d[1]}

    def plain(g, x, w):
        table, outer, c, ys = np.arange(6.0).reshape(2, 3), aicf.exp(w), w, []
        for t in range(4):
            for k in range(2):
                c = c * 0.9 + aicf.sin(x[t, k] * outer)
            ys.append(aicf.max(c))
            c = c + g.constant(table.sum(0) * 0.25)
        d = aicf.grad(aicf.sum(c * c) + sum(ys[1:], ys[0]), [x, w])
        return {"last": c, "ys": aicf.stack(ys), "dx": d[0], "dw": d[1]}

    rng = np.random.default_rng(2)
    given = {"x": rng.normal(size=(4, 2, 3)), "w": rng.normal(size=3)}
    found, want = run_graph(build, given), run_graph(plain, given)
    for name in want:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-12, atol=1e-14, err_msg=name)


def test_gradients_inside_a_turn(run_graph):
    """Steps of gradient descent as a loop, and the gradient through all of them."""

    def build(g, x, w):
        def descend(c, row):
            return c - 0.1 * aicf.grad(aicf.sum(aicf.sin(c * row) * c), c), None

        last, _ = aicf.scan(descend, w, x)
        each = w
        for t in range(3):
            each, _ = descend(each, x[t])
        d = [aicf.grad(aicf.sum(v * v), w) for v in (last, each)]
        return {"last": last, "each": each, "d last": d[0], "d each": d[1]}

    rng = np.random.default_rng(4)
    found = run_graph(build, {"x": rng.normal(size=(3, 5)), "w": rng.normal(size=5)})
    np.testing.assert_allclose(found["last"], found["each"], rtol=1e-13)
    np.testing.assert_allclose(found["d last"], found["d each"], rtol=1e-12)


def test_rows_that_begin_anywhere_are_packed_for_tensor_cores():
    """Which read factors of 16 bits at multiples of 16 bytes: a row of 65 of them is copied first,
    one of 64 is not."""
    for size, copies in ((65, 1), (64, 0)):
        g = aicf.Graph("factors")
        x, w = g.input("x", (3, size), "bfloat16"), g.input("w", (8, 8), "bfloat16")
        turn = lambda c, row, w=w: (c + aicf.reshape(row[:64], (8, 8)) @ w, None)  # noqa: E731
        g.output("y", aicf.scan(turn, w, x)[0])
        (loop,) = (op for op in read_record(g._core.lower_json())["ops"] if op["op"] == "loop")
        assert [op["op"] for op in loop["loop"]].count("copy") == copies


def test_no_turns_and_no_rows(run_graph):
    def build(g, x, h):
        none, ys = aicf.scan(lambda c, row: (c + row, c * 2.0), h, x[:0])
        power, _ = aicf.scan(lambda c, row: (c * 2.0, None), h, length=5)
        return {"none": none * 1.0, "ys": aicf.sum(ys, 0), "power": power}

    found = run_graph(build, {"x": np.ones((3, 2)), "h": np.array([1.0, 3.0])})
    assert found["none"].tolist() == [1, 3] and found["ys"].tolist() == [0, 0]
    assert found["power"].tolist() == [32, 96]


def test_trains_and_binds():
    """A carry that is a state of the step, an update behind the loop, a bound param."""
    g = aicf.Graph("train")
    x, w = g.input("x", (5, 3), "float32"), g.param("w", (3,))
    memory = g.state("memory", (3,))
    last, _ = aicf.scan(lambda c, row: (aicf.tanh(c + w * row), None), memory, x)
    g.assign(memory, last)
    loss = aicf.mean((last - 0.5) ** 2.0)
    g.minimize(loss, aicf.optim.SGD(lr=0.5))
    g.output("loss", loss)
    step = g.compile(device="cpu")
    rows = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    losses = [float(step(x=rows)["loss"]) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0] and step.state["memory"].numpy().any()
    own, before = np.zeros(3, np.float32), step.params["w"].numpy()
    own[:] = before
    step.bind(w=own)
    step(x=rows)
    assert (own != before).any() and (step.params["w"].numpy() == own).all()


def test_arrays(device):
    """NumPy arrays are constants, float64 in the dtype of the Values beside them."""
    g = aicf.Graph()
    x = g.input("x", (5, 3))
    total, kept = aicf.scan(lambda c, r: (c + r[0] * r[1], c), np.zeros(3), (x, np.arange(5.0)))
    g.output("total", total)
    g.output("kept", kept)
    g.output("same", aicf.scan(lambda c, r: (c, np.ones(2)), np.float32(3), x)[1])
    g.output("chosen", aicf.cond(aicf.sum(x) > 0.0, lambda: np.zeros(3), lambda: x[0]))
    double = aicf.while_loop(lambda c: aicf.max(c) < 9.0, lambda c: c * 2.0 + x[0] * 0.0,
                             aicf.zeros_like(x[0]) + np.ones(3), 9)  # fmt: skip
    g.output("double", double)
    data = np.arange(15, dtype=np.float32).reshape(5, 3)
    out = outputs_of(g.compile(device=device)(x=data))
    sums = np.cumsum(data * np.arange(5, dtype=np.float32)[:, None], 0)
    np.testing.assert_array_equal(out["total"], sums[-1])
    np.testing.assert_array_equal(out["kept"], np.concatenate([np.zeros((1, 3)), sums[:-1]]))
    np.testing.assert_array_equal(out["same"], np.ones((5, 2)))
    np.testing.assert_array_equal(out["chosen"], np.zeros(3))
    np.testing.assert_array_equal(out["double"], np.full(3, 16.0))

    @aicf.function(device=device)
    def powers(x):
        return aicf.scan(lambda c, _: (c * x, c), np.ones(3, np.float32), length=4)[1]

    np.testing.assert_array_equal(powers(data[1]), data[1] ** np.arange(4)[:, None])


KEPT = []


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        (lambda g, x: aicf.scan(lambda c, r: (c, g.param("p", (2,))), x[0], x), aicf.GraphError,
         'scan: the function makes param "p"; need it before'),
        (lambda g, x: aicf.scan(lambda c, r: (g.output("o", c), (c, r))[1], x[0], x),
         aicf.GraphError, "scan: the function makes an output"),
        (lambda g, x: aicf.scan(lambda c, r: (aicf.sum(c), r), x[0], x), aicf.ShapeError,
         "of carry .* need equal shapes"),
        (lambda g, x: aicf.scan(lambda c, r: (aicf.cast(c, "float64"), r), x[0], x),
         aicf.DTypeError, "of carry .* need equal dtypes"),
        (lambda g, x: aicf.scan(lambda c, r: ((c, c), r), x[0], x), aicf.GraphError,
         "returns a carry tuple.Value, Value., init is Value; need one structure"),
        (lambda g, x: aicf.scan(lambda c, r: c, x[0], x), aicf.GraphError, "need .carry, y."),
        (lambda g, x: aicf.scan(lambda c, r: (c, r), x[0], x, length=4), aicf.ShapeError,
         "need one length"),
        (lambda g, x: aicf.scan(lambda c, r: (c, r), x[0]), aicf.ShapeError, "need one length"),
        (lambda g, x: aicf.scan(lambda c, r: (c, r), x[0], x, save="all"), aicf.GraphError,
         'save is .all.; need "states" or "recompute"'),
        (lambda g, x: aicf.scan(lambda c, r: (c, "y"), x[0], x), aicf.GraphError, "got 'y'"),
        (lambda g, x: aicf.scan(3, x[0], x), aicf.GraphError, "f is 3 .*need a function"),
        (lambda g, x: aicf.scan(lambda c, r: (c, r), 1.0, 2.0), aicf.GraphError, "got no Value"),
        (lambda g, x: (aicf.scan(lambda c, r: (KEPT.append(c) or c, r), x[0], x), KEPT[-1] + 1.0),
         aicf.GraphError, "made inside the body"),
        (lambda g, x: aicf.cond(x, aicf.sin, aicf.cos, x), aicf.DTypeError, "need a bool of rank"),
        (lambda g, x: aicf.cond(aicf.sum(x) > 0.0, aicf.sin, aicf.sum, x), aicf.ShapeError,
         "need equal shapes"),
        (lambda g, x: aicf.while_loop(lambda c: c, lambda c: c, x, 3), aicf.DTypeError,
         "need a bool of rank"),
        (lambda g, x: aicf.while_loop(lambda c: aicf.sum(c) > 0.0, aicf.sum, x, 3),
         aicf.ShapeError, "need equal types"),
        (lambda g, x: aicf.while_loop(lambda c: aicf.sum(c) > 0.0, aicf.sin, x, -3),
         aicf.GraphError, "max_steps is -3"),
        (lambda g, x: g._emit("Scan", [x], length=2, carries=1, slices=0, body=_core.Graph("")),
         aicf.GraphError, "scan: got 1 operands"),
        (lambda g, x: aicf.op_call("loop", [np.zeros(2)], [np.zeros(2)],
                                   {"turns": 1, "carries": 1, "slices": 0}), aicf.GraphError,
         "loop: it has no body"),
    ],
)  # fmt: skip
def test_refusals(what, error, text):
    """In words, and the graph is as it was."""
    g = aicf.Graph("refused")
    x = g.input("x", (3, 2))
    with pytest.raises(error, match=text):
        what(g, x)
    assert g._building == []
    if "inside" not in text:  # which made a loop first
        assert g._core.mark().nodes <= 4  # what the case itself made of x


# ---- choices


def test_cond(run_graph):
    """The branch that is not taken has no gradient, whatever its values and slopes are."""

    def build(g, p, x, w):
        y = aicf.cond(p, lambda x: aicf.sqrt(x) * w, lambda x: aicf.log(x) + x / w, x)
        d = aicf.grad(aicf.sum(y), [x, w])
        return {"y": y, "dx": d[0], "dw": d[1]}

    x, w = np.array([4.0, 9.0]), np.array([2.0, 0.0])
    found = run_graph(build, {"p": np.array(True), "x": x, "w": w})
    assert found["y"].tolist() == [4, 0] and found["dw"].tolist() == [2, 3]
    assert found["dx"].tolist() == [0.5, 0]
    bad = np.array([4.0, 0.0]), np.array([2.0, 1.0])
    found = run_graph(lambda g, p, x, w: build(g, p, x, w) | {
        "z": aicf.cond(p, lambda: aicf.sqrt(x), lambda: x),
        "dz": aicf.grad(aicf.sum(aicf.cond(p, lambda: aicf.sqrt(x), lambda: x)), x),
    }, {"p": np.array(False), "x": bad[0], "w": bad[1]})  # fmt: skip
    assert found["dz"].tolist() == [1, 1] and found["z"].tolist() == [4, 0]


def test_while_loop(run_graph):
    def build(g, x):
        last = aicf.while_loop(
            lambda c: aicf.sum(c["v"]) < 100.0,
            lambda c: {"v": c["v"] * c["v"], "n": c["n"] + 1},
            {"v": x, "n": g.constant(0, "int32")},
            max_steps=12,
        )
        return {"v": last["v"], "n": last["n"], "d": aicf.grad(aicf.sum(last["v"]), x)}

    found = run_graph(build, {"x": np.array([2.0, 3.0])})
    assert found["v"].tolist() == [256, 6561] and found["n"] == 3
    np.testing.assert_allclose(found["d"], [8 * 2.0**7, 8 * 3.0**7])
    found = run_graph(build, {"x": np.array([10.0, 90.0])})
    assert found["n"] == 0 and found["d"].tolist() == [1, 1]


def test_turns_after_the_last_have_no_slope(run_graph):
    """Though they would divide by zero."""

    def build(g, x):
        last = aicf.while_loop(
            lambda c: c[1] > 0.5, lambda c: (c[0] + 1.0 / c[1], c[1] - 1.0), (x, x), max_steps=9
        )
        return {"v": last[0], "d": aicf.grad(last[0], x)}

    found = run_graph(build, {"x": np.array(3.0)})
    assert found["v"] == 3 + 1 / 3 + 1 / 2 + 1
    np.testing.assert_allclose(found["d"], 1 - 1 / 9 - 1 / 4 - 1)


# ---- batches


def test_vmap(run_graph):
    """A loop of a batch: carries, rows and captured values, shared or not, and its gradient."""

    def build(g, x, q, w):
        def one(x, q):
            turn = lambda c, row: (aicf.tanh(aicf.linear(c, w) + row * q), aicf.sum(c))  # noqa: E731
            last, ys = aicf.scan(turn, q * 0.5, x, reverse=True)
            return last, ys, aicf.grad(aicf.sum(last) + aicf.sum(ys * ys), x)

        whole = aicf.vmap(one)(x, q)
        each = [
            aicf.stack(parts) for parts in zip(*(one(x[i], q[i]) for i in range(3)), strict=True)
        ]
        shared = aicf.vmap(one, (None, 0))(x[0], q)[0]
        return {f"{kind}{i}": v for kind, made in (("a", whole), ("b", each))
                for i, v in enumerate(made)} | {"shared": shared}  # fmt: skip

    rng = np.random.default_rng(5)
    given = {"x": rng.normal(size=(3, 6, 4)), "q": rng.normal(size=(3, 4)),
             "w": rng.normal(size=(4, 4))}  # fmt: skip
    found = run_graph(build, given)
    for i in range(3):
        np.testing.assert_allclose(found[f"a{i}"], found[f"b{i}"], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found["shared"][0], found["a0"][0], rtol=1e-12)


# ---- files


def test_files_that_lie(tmp_path):
    """Bodies that do not fit, and more of them inside each other than a reader takes."""
    g = aicf.Graph("file")
    x = g.input("x", (4, 2))
    g.output("y", aicf.scan(lambda c, r: (c + r, c), x[0], x)[1])
    record = json.loads(g.to_json())
    at = next(i for i, node in enumerate(record["nodes"]) if node["op"] == "Scan")
    for change, text in (
        (lambda n: n["attrs"].update(length=5), "of 5 turns needs"),
        (lambda n: n["attrs"].update(carries=7), "need these to fit"),
        (lambda n: n["attrs"].update(carries=-1), "need these to fit"),
        (lambda n: n["attrs"].pop("body"), '"body" is missing'),
        (lambda n: n["attrs"].update(body={}), "need str"),
        (lambda n: n["attrs"].update(body=3), '"body" is a int'),
        (lambda n: n["attrs"]["body"]["values"]["0"].update(role="param"), "param"),
        (lambda n: n["attrs"]["body"]["outputs"].pop(), "need"),
        (lambda n: n["attrs"]["body"]["nodes"][0].update(inputs=[0, 9]), "names value 9"),
    ):
        copy = json.loads(json.dumps(record))
        change(copy["nodes"][at])
        with pytest.raises(aicf.FormatError, match=text):
            aicf.Graph.from_json(json.dumps(copy))
    deep = json.loads(json.dumps(record))
    for _ in range(12):
        outer = json.loads(json.dumps(record))
        outer["nodes"][at]["attrs"]["body"] = deep
        deep = outer
    with pytest.raises(aicf.FormatError, match="more than 8 bodies"):
        aicf.Graph.from_json(json.dumps(deep))


def test_too_many_launches():
    g = aicf.Graph("long")
    g.output("y", aicf.scan(lambda c, _: (c + 1.0, None), g.input("x", ()), length=1 << 21)[0])
    with pytest.raises(aicf.Unsupported, match="launch more than 1048576 kernels"):
        g.compile(device="cpu")


def test_numbers_are_of_the_dtype_beside_them():
    """In the first carry, in what a body returns and in one branch of a choice."""
    x = np.arange(4.0)
    g = aicf.Graph("numbers")
    v, i = g.input("x", (4,), "float64"), g.input("i", (4,), "int64")
    total, sums = aicf.scan(lambda c, row: (c + row, c), 0, v)
    pair, _ = aicf.scan(lambda c, row: ((c[0] + row, 1.0), None), (0.0, 2), v)
    looped = aicf.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * 2.0, c[1] + 1), (v, 0), 5)
    flag = aicf.while_loop(lambda c: c[0], lambda c: (False, c[1] + 1.0), (True, v), 5)
    chosen = [
        aicf.cond(aicf.sum(v) > 0, lambda: aicf.sum(v), lambda: 0),
        aicf.cond(aicf.sum(v) > 0, lambda: 2, lambda: aicf.sum(v)),
        aicf.cond(aicf.sum(v) > 0, lambda: 2, lambda: aicf.sum(i)),
        aicf.cond(aicf.sum(v) > 0, lambda: True, lambda: False),
    ]
    values = {"total": total, "sums": sums, "first": pair[0], "second": pair[1]}
    values |= {"looped": looped[0], "turns": looped[1], "flag": flag[0], "moved": flag[1]}
    values |= {f"chosen{n}": one for n, one in enumerate(chosen)}
    for name, value in values.items():
        g.output(name, value)
    out = g.compile(device="cpu")(x=x, i=np.arange(4))
    kinds = {name: value.dtype for name, value in values.items()}
    assert {kinds.pop("flag"), kinds.pop("chosen3")} == {"bool"} and kinds.pop("chosen2") == "int64"
    assert set(kinds.values()) == {"float64"}
    got = {name: out[name].numpy().tolist() for name in values}
    assert got["total"] == 6 and got["sums"] == [0, 0, 1, 3] and got["first"] == 6
    assert got["second"] == 1 and got["looped"] == [0, 8, 16, 24] and got["turns"] == 3
    assert got["flag"] is False and got["moved"] == [1, 2, 3, 4]
    assert [got[f"chosen{n}"] for n in range(4)] == [6, 2, 2, True]
    with pytest.raises(aicf.DTypeError, match=r"cond: 0\.5\d* is not a whole number"):
        aicf.cond(aicf.sum(v) > 0, lambda: aicf.sum(i), lambda: 0.5)
