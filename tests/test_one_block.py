"""A small step in one block of threads has the bits of its ops in launches of their own."""

import ctypes
import json
import operator
import re
import subprocess
import sys
from pathlib import Path

import aicf
import numpy as np
import pytest
from aicf import _core, verify
from block_text import aligned_from_several, block_of, problems_of
from tensors import CapsuleTensor
from test_passes import APART

needs_compiler = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)
OPTIMIZERS = {
    "sgd": lambda: aicf.optim.SGD(lr=0.05),
    "momentum": lambda: aicf.optim.SGD(lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda: aicf.optim.Adam(lr=0.01),
    "adamw": lambda: aicf.optim.AdamW(lr=0.01, weight_decay=0.1),
    "rmsprop": lambda: aicf.optim.RMSprop(lr=0.01),
}


def net(widths, batch, optimizer="adam", loss="mse", activation="relu", dtype="float32", **more):
    g = aicf.Graph("net")
    h = g.input("x", (batch, widths[0]), dtype)
    for i, width in enumerate(widths[1:]):
        h = g.dense(f"l{i}", h, width)
        if i < len(widths) - 2:
            h = getattr(aicf, activation)(h)
            if "norm" in more:
                h = aicf.layer_norm(h, width)
            if "dropout" in more:
                h = aicf.dropout(h, more["dropout"])
    if loss == "mse":
        loss = aicf.mse_loss(h, g.input("t", h.shape, dtype))
    else:
        loss = aicf.cross_entropy(h, g.input("t", (batch,), "int64"))
    g.minimize(loss, OPTIMIZERS[optimizer](), loss_scale=more.get("loss_scale"))
    g.output("loss", loss, keep=more.get("keep", 1))
    return g


SCALE = aicf.optim.DynamicLossScale(2.0**127, interval=3)  # the first steps are skipped
CASES = {
    "8-8-8": {"widths": (8, 8, 8), "batch": 64},
    "one layer": {"widths": (3, 2), "batch": 5, "optimizer": "sgd"},
    "odd": {"widths": (7, 13, 5, 3), "batch": 19, "optimizer": "momentum", "activation": "tanh"},
    "kept": {"widths": (8, 16, 4), "batch": 32, "keep": 5},
    "labels": {"widths": (12, 24, 10), "batch": 33, "loss": "labels", "optimizer": "adamw"},
    "long batch": {"widths": (4, 6, 3), "batch": 700, "loss": "labels"},
    "gelu": {"widths": (8, 20, 8), "batch": 16, "activation": "gelu", "optimizer": "rmsprop"},
    "norm": {"widths": (8, 24, 8), "batch": 16, "norm": True, "activation": "sigmoid"},
    "dropout": {"widths": (8, 24, 8), "batch": 16, "dropout": 0.3},
    "float64": {"widths": (6, 10, 4), "batch": 24, "dtype": "float64"},
    "32-128-128-10": {"widths": (32, 128, 128, 10), "batch": 32, "loss": "labels"},
    "scaled": {
        "widths": (8, 20, 8),
        "batch": 32,
        "loss_scale": SCALE,
    },
    "scaled sgd": {"widths": (6, 12, 3), "batch": 9, "optimizer": "sgd", "loss_scale": SCALE},
    "64-64-64": {"widths": (64, 64, 64), "batch": 64},
}


def feed(case, rng):
    widths, batch = case["widths"], case["batch"]
    dtype = case.get("dtype", "float32")
    x = rng.standard_normal((batch, widths[0])).astype(dtype)
    if case.get("loss") == "labels":
        return {"x": x, "t": rng.integers(0, widths[-1], batch)}
    return {"x": x, "t": rng.standard_normal((batch, widths[-1])).astype(dtype)}


def run(case, device, passes, feeds, times):
    step = net(**case).compile(device=device, seed=3, passes=passes)
    for values in feeds:
        results = step(**values)
    for count in times:
        results = step.replay(count)
    every = dict(step.state_dict())
    every["loss"] = results["loss"].numpy()
    return step, {name: np.ascontiguousarray(value) for name, value in every.items()}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_is_compiled(name):
    """For an old and a new device, and says in the plan what is in it."""
    graph = net(**CASES[name])
    for arch in ("sm_80", "sm_90a"):
        programs = _core.cuda_programs(graph._core, _core.pass_names(), arch=arch)
        assert all(cubin[:4] == b"\x7fELF" for cubin in _core.cuda_cubins(programs, arch))


@needs_compiler
def test_places_are_worked_out_before_the_steps():
    """Where no thread has more than one tile, or element of an update; a loop finds them else."""
    found = {}
    for name in ("8-8-8", "long batch"):
        _, text = block_of(net(**CASES[name]))
        before, steps = text.split("for (int64_t slice", 1)
        made = re.findall(r" ahead(\d+) = ", before)
        assert sorted(made) == sorted(re.findall(r", ahead(\d+)\);", steps))
        calls = re.findall(r"gemm_threads?<", text)
        found[name] = len(made), calls.count("gemm_thread<"), calls.count("gemm_threads<")
    assert found["8-8-8"] == (6, 5, 0)  # five products, the updates
    assert min(found["long batch"]) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_bits(name, make_rng):
    """One launch = its ops' launches = the CPU, whatever a launch repeats."""
    case = CASES[name]
    feeds = [feed(case, make_rng(i)) for i in range(3)]
    times = (1, 2, 40, 7)
    step, one = run(case, "cuda", "default", feeds, times)
    _, apart = run(case, "cuda", APART, feeds, times)
    _, cpu = run(case, "cpu", "default", feeds, times)
    for other in (apart, cpu):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert value.tobytes() == other[key].tobytes(), key


@pytest.mark.gpu
@pytest.mark.parametrize("passes", ["default", "apart"])
@pytest.mark.parametrize("name", CASES)
def test_bits_of_many(name, passes, make_rng):
    """Steps on slices, as many to a launch as there are = calls; what stands in the inputs is what
    the last step had."""
    case, passes = CASES[name], {"default": "default", "apart": APART}[passes]
    feeds = [feed(case, make_rng(i)) for i in range(45)]
    stacked = {key: np.stack([values[key] for values in feeds]) for key in feeds[0]}
    ends = []
    for many in (True, False):
        step = net(**case).compile(device="cuda", seed=3, passes=passes)
        if many:
            step.run_many(**{key: values[:3] for key, values in stacked.items()})
            out = step.run_many(**{key: values[3:] for key, values in stacked.items()})
        else:
            for values in feeds:
                out = step(**values)
        kept = out["loss"].numpy()
        out = step.replay()
        assert step.steps_run == 46
        ends.append({**step.state_dict(), "kept": kept, "loss": out["loss"].numpy()})
    for key, value in ends[0].items():
        assert np.asarray(value).tobytes() == np.asarray(ends[1][key]).tobytes(), key


def plan_of(graph, passes, arch="sm_90a"):
    return json.loads(_core.cuda_plan(graph._core, passes, 132, arch, "fp32"))["ops"]


@needs_compiler
def test_the_plan_says_what_is_in_it():
    """One launch, whose members are the ops that run apart, with their nodes."""
    graph = net(**CASES["8-8-8"])
    (op,) = plan_of(graph, _core.pass_names())
    assert op["op"] == "sequence" and op["kernel"] == "block_of_11"
    apart = [m for one in plan_of(graph, APART) for m in one.get("members", [one])]
    key = operator.itemgetter("node", "op")
    assert sorted(map(key, op["members"])) == sorted(map(key, apart))
    names = [v["value"] for v in op["inputs"] + op["outputs"]]
    assert len(set(names)) == len(names)


@needs_compiler
def test_what_is_large_stays_apart():
    """By its work, and by what it holds."""
    for widths, batch in (((784, 512, 512, 10), 128), ((8, 8), 200_000)):
        assert len(plan_of(net(widths, batch), _core.pass_names())) > 1


def drawn(seed):
    """A graph of states that take each other's and their own turned contents, params, rings and
    outputs of all these."""
    rng = np.random.default_rng(seed)
    pick = lambda them: them[int(rng.integers(len(them)))]  # noqa: E731
    g, n = aicf.Graph("drawn"), pick([4, 5, 16, 16, 32])
    dtype, square = pick(["float32", "float32", "float32", "float64", "float16"]), (n, n)
    states = [g.state(f"s{i}", square, dtype) for i in range(rng.integers(4))]
    params = [g.param(f"p{i}", square, dtype) for i in range(rng.integers(3))]
    made = [*states, *params, g.input("x", square, dtype)]

    def one():
        x = pick([v for v in made if v.ndim == 2])
        views = [x] * 6 + [aicf.transpose(x, 0, 1), aicf.broadcast_to(x[:, 1:2], square)]
        return pick([*views, aicf.concat([x[2:], x[:2]], 0), aicf.broadcast_to(x[1:2], square)])

    ops = (
        lambda: one() @ one(),
        lambda: one() + one(),
        lambda: aicf.relu(one() * one()),
        lambda: aicf.softmax(one(), axis=-1),
        lambda: one() * aicf.sum(one(), axis=int(rng.integers(2)), keepdims=True),
        lambda: aicf.sum(one(), axis=int(rng.integers(2))),
        lambda: one() + pick([v for v in made if v.ndim == 1] or made),
        lambda: aicf.dropout(one(), 0.5),
    )
    for _ in range(rng.integers(1, 14)):
        made.append(pick(ops)())
    squares = [v for v in made if v.ndim == 2]
    for state in rng.permutation(len(states)):
        g.assign(states[state], pick(squares[-6:] + states))
    if params:
        loss = aicf.sum(squares[-1] * squares[-1]) + aicf.sum(params[0] * params[-1])
        g.minimize(loss, pick([aicf.optim.SGD(lr=0.1), aicf.optim.Adam(lr=0.1)]))
        g.output("loss", loss, keep=pick([1, 3]))
    for i in range(rng.integers(1, 4)):
        g.output(f"y{i}", pick(made), keep=pick([1, 1, 4]))
    return g


@needs_compiler
def test_members_wait_for_each_other():
    """In the texts of graphs drawn at random no two members meet in memory without a barrier
    between them, and each finds its operands where it reads them, in every step of a launch."""
    seen = 0
    for graph in [*(net(**case) for case in CASES.values()), *map(drawn, range(70))]:
        if block := block_of(graph):
            assert problems_of(*block) == aligned_from_several(block[1]) == []
            seen += 1
    assert seen > 40


@needs_compiler
def test_a_missing_barrier_is_seen():
    op, text = block_of(net(**CASES["8-8-8"]))
    waits = re.findall(r"^.*(?:wait_for|meet_at)\(\d+, \d+\);\n", text, re.MULTILINE)
    assert len(set(waits)) == 5
    assert aligned_from_several(text.replace("meet_at", "wait_for")) == ["1", "2", "4", "5"]
    for wait in set(waits):
        assert problems_of(op, text.replace(wait, ""))
    with pytest.raises(AssertionError, match="waits for other warps"):
        problems_of(op, text.replace(waits[-1], "", 1))


@needs_compiler
def test_more_stages_than_barriers():
    """A block has 16 of them."""
    g = aicf.Graph("deep")
    h = g.input("x", (8, 8))
    for _ in range(20):
        h = aicf.softmax(h @ h, axis=-1)
    g.output("y", h)
    assert problems_of(*block_of(g)) == []


def test_a_state_of_another_layout_stays_apart():
    """Its next content is made as a row of 64, which a block would carry over as it lies."""
    g = aicf.Graph("layout")
    s, x = g.state("s", (8, 8)), g.input("x", (8, 8))
    h = aicf.softmax(s @ x)
    g.assign(s, aicf.reshape(aicf.exp(aicf.reshape(h @ x, (64,))), (8, 8)))
    g.output("y", aicf.sum(h * x, axis=0))
    assert "sequence" not in [op["op"] for op in plan_of(g, _core.pass_names())]


def rows_at_odd_addresses():
    """Turns of a loop whose rows of 8 bytes begin 2 bytes behind multiples of 4."""
    g = aicf.Graph("odd")
    x = g.input("x", (9,), "float16")
    c, y = aicf.scan(
        lambda c, row: (c + aicf.softmax(row * c), aicf.sum(row * c)),
        x[:4],
        aicf.reshape(x[1:], (2, 4)),
    )
    g.output("c", c)
    g.output("y", y)
    return g


@needs_compiler
def test_copies_know_how_small_elements_are():
    """Memory of 16-bit elements need not begin at a word."""
    programs = _core.cuda_programs(rows_at_odd_addresses()._core, _core.pass_names(), arch="sm_90a")
    (block,) = [text for text in programs if "loop_of" in text]
    assert "copy_in<8, 1, 2>" in block
    assert all(cubin[:4] == b"\x7fELF" for cubin in _core.cuda_cubins([block], "sm_90a"))


@pytest.mark.gpu
def test_rows_at_odd_addresses():
    x = np.arange(9, dtype=np.float16) / 8
    ends = [rows_at_odd_addresses().compile(device=d)(x=x) for d in ("cuda", "cpu")]
    for name in ("c", "y"):
        one, other = (end[name].numpy().view(np.uint16) for end in ends)
        np.testing.assert_array_equal(one, other)


def state_after(form, count):
    """A hash of the state after `count` steps, of which up to 1,000 read slices of stacked inputs.
    Those end once more from a state taken between two of them, and the rest follows again."""
    passes = "default" if form == "block" else APART
    device = "cpu" if form == "cpu" else "cuda"
    step = net(**CASES["8-8-8"]).compile(
        device=device, seed=3, passes=passes, capture=form != "eager"
    )
    values = feed(CASES["8-8-8"], np.random.default_rng(0))
    fed = min(1000, count // 3)
    stacked = {
        name: np.random.default_rng(i).standard_normal((fed, *value.shape), dtype=np.float32)
        for i, (name, value) in enumerate(values.items())
    }

    def repeat(times):
        if form != "eager":
            return step.replay(times)
        for _ in range(times):
            step.run()

    def slices(begin, end):
        some = {name: value[begin:end] for name, value in stacked.items()}
        if form != "eager":
            return step.run_many(**some)
        for i in range(end - begin):
            step.run(**{name: value[i] for name, value in some.items()})

    half = (count - fed) // 2
    step.run(**values)
    repeat(half - 1)
    slices(0, fed // 3)
    middle = step.state_dict()
    ends = []
    for _ in range(2):
        step.load_state_dict(middle)
        slices(fed // 3, fed)
        repeat(count - fed - half)
        ends.append(verify.state_hash(step))
    assert ends[0] == ends[1]
    return ends[0]


@pytest.mark.gpu
@pytest.mark.slow
def test_a_million_replays():
    """One launch in three processes, the launches apart, each op by itself and the CPU, a process
    each: the same bits."""
    command = "import sys, test_one_block as t; print(t.state_after(sys.argv[1], 10**6))"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", command, form],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )
        for form in ("block", "block", "block", "launches", "eager", "cpu")
    ]
    hashes = [one.communicate()[0].strip() for one in running]
    assert all(one.returncode == 0 for one in running)
    assert len(hashes[0]) == 64 and len(set(hashes)) == 1, hashes


@pytest.mark.gpu
def test_some_hundred_replays():
    """The same in this process."""
    assert len({state_after(form, 300) for form in ("block", "launches", "eager", "cpu")}) == 1


@pytest.mark.gpu
def test_bound_tensors_and_new_numbers(make_rng):
    """Between two launches of many steps other inputs and another learning rate take effect."""
    case = CASES["labels"]
    ends = []
    for passes in ("default", APART):
        step = net(**case).compile(device="cuda", seed=3, passes=passes)
        for i in range(4):
            step(**feed(case, make_rng(i)))
            step.set("opt.lr", 0.01 / (i + 1))
            step.replay(33)
        ends.append(step.state_dict())
    for name, value in ends[0].items():
        assert value.tobytes() == ends[1][name].tobytes(), name


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["8-8-8", "odd", "labels", "float64"])
def test_what_a_call_was_given_stays(name, make_rng):
    """Replays go on with it, and the caller may write over it when the call returns; a tensor that
    is bound holds it."""
    case = CASES[name]
    ends = []
    for passes in ("default", APART):
        step = net(**case).compile(device="cuda", seed=3, passes=passes)
        losses = []
        for i in range(4):
            if i == 2:
                copy = step._array("x").__dlpack__(max_version=(1, 0), copy=True)
                step.bind(x=CapsuleTensor(copy))
            values = feed(case, make_rng(i))
            before = {key: value.copy() for key, value in values.items()}
            losses.append(step(**values)["loss"].numpy().tobytes())
            for value in values.values():
                value[...] = 0
            losses.append(step.replay(2)["loss"].numpy().tobytes())
            for key, value in before.items():
                assert step._array(key).numpy().tobytes() == value.tobytes()
        stacked = {k: np.stack([feed(case, make_rng(i))[k] for i in range(5)]) for k in before}
        step.run_many(**stacked)
        for key, value in stacked.items():
            assert step._array(key).numpy().tobytes() == value[-1].tobytes()
        losses.append(step.replay()["loss"].numpy().tobytes())
        ends.append((losses, {k: v.tobytes() for k, v in step.state_dict().items()}))
    assert ends[0] == ends[1]


def uploaded():
    """Bytes that the emulated driver has copied from the host; None of a real one."""
    driver = ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "fake_cuda_uploaded"):
        return None
    driver.fake_cuda_uploaded.restype = ctypes.c_size_t
    return driver.fake_cuda_uploaded()


@pytest.mark.gpu
@pytest.mark.parametrize("rings", [0, 3])
def test_a_call_reads_no_input_twice_from_the_host(rings, make_rng):
    """Beside three rings an input that only a ring reads finds no room in shared memory, where a
    kernel would read it from the host at each step: it is copied to the device then."""
    ends = []
    for passes in ("default", APART):
        g = aicf.Graph("rings")
        h = g.input("x", (16, 8))
        for i in range(10):
            h = g.dense(str(i), aicf.relu(h) if i else h, 8)
        g.minimize(aicf.mse_loss(h, g.input("t", (16, 8))), aicf.optim.SGD(lr=0.1))
        g.output("z", g.input("z", (14000,)), keep=2)
        for k in range(rings):
            g.output(f"r{k}", g.state(f"s{k}", (1000,)), keep=13)
        step = g.compile(device="cuda", seed=3, passes=passes)
        if passes == "default":
            assert len(step.plan.ops) == 1
        before, kept = uploaded(), []
        for i in range(4):
            rng = make_rng(i)
            values = {
                n: rng.random(s, "f") for n, s in [("x", (16, 8)), ("t", (16, 8)), ("z", 14000)]
            }
            kept.append(step(**values)["z"].numpy().tobytes())
        if before is not None and passes == "default":
            assert uploaded() - before == (0 if rings == 0 else 4 * (14000 + 256) * 4)
        kept.append(step.replay(2)["z"].numpy().tobytes())
        ends.append((kept, {k: v.tobytes() for k, v in step.state_dict().items()}))
    assert ends[0] == ends[1]


@pytest.mark.gpu
def test_labels_from_the_host(make_rng):
    """They are looked at before the launch that reads them from there, at each call."""
    step = net(**CASES["labels"]).compile(device="cuda", seed=3)
    values = feed(CASES["labels"], make_rng(0))
    step(**values)
    before, state = uploaded(), step.state_dict()
    wrong = {**values, "t": values["t"].copy()}
    wrong["t"][5] = 10
    with pytest.raises(aicf.BadValue, match="10 at"):
        step(**wrong)
    assert all(step.state_dict()[k].tobytes() == v.tobytes() for k, v in state.items())
    step(**values)
    step.replay(2)
    assert before is None or uploaded() == before
    assert step._array("t").numpy().tobytes() == values["t"].tobytes()


@pytest.mark.gpu
def test_an_exported_step_in_one_block(tmp_path, make_rng):
    step = net(**CASES["kept"]).compile(device="cuda", seed=3)
    values = feed(CASES["kept"], make_rng(0))
    step(**values)
    step.export(tmp_path / "step.aicf")
    again = aicf.load_step(tmp_path / "step.aicf", device="cuda")
    for one in (step, again):
        one(**values)
        one.replay(25)
    for name, value in step.state_dict().items():
        assert value.tobytes() == again.state_dict()[name].tobytes(), name
    assert len(again.plan.ops) == 1
