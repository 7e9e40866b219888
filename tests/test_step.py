"""A compiled step: its bits, its state, its outputs."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import aicf
import numpy as np
import pytest
from aicf import _core, verify
from compare import assert_bits
from steps import (
    BATCH,
    SIZES,
    batch_of,
    build_infer,
    build_train,
    build_wide,
    hash_after,
    wide_hash,
)

# ---- the same bits


def test_eager_replay_restore(device):
    step = build_train().compile(device=device)
    start = step.state_dict()
    wanted = hash_after(step, 6)
    for run in ("run", "call"):
        step.load_state_dict(start)
        assert hash_after(step, 6, run) == wanted

    step.load_state_dict(start)
    hash_after(step, 3)
    middle = step.state_dict()
    fresh = build_train().compile(device=device, seed=99)
    fresh.load_state_dict(middle)
    for seed in range(3, 6):
        fresh(**batch_of(seed))
    assert verify.state_hash(fresh) == wanted


def test_replay_counts(device):
    one, many = (build_train().compile(device=device) for _ in range(2))
    for step in (one, many):
        step(**batch_of(0))
    for _ in range(1000):
        one.replay()
    many.replay(0)
    many.replay(1)
    many.replay(999)
    assert verify.state_hash(one) == verify.state_hash(many)
    assert one.steps_run == many.steps_run == 1001
    assert int(one.state["opt.step"]) == 1001


def test_compile_changes_no_state(device):
    step = build_train().compile(device=device)
    again = build_train().compile(device=device, capture=False)
    assert verify.state_hash(step) == verify.state_hash(again)
    hash_after(step, 2)
    before = verify.state_hash(step)
    build_train().compile(device=device, share=step)
    build_infer().compile(device=device, share=step)
    step.reset()
    assert not step.captured
    step.capture()
    assert step.captured and verify.state_hash(step) == before


def test_without_capture(device):
    step, eager = (
        build_train().compile(device=device),
        build_train().compile(device=device, capture=False),
    )
    assert not eager.captured
    assert hash_after(eager, 3) == hash_after(step, 3)
    with pytest.raises(aicf.CaptureError, match="capture"):
        eager.replay()
    eager.capture()
    step.reset()
    assert hash_after(eager, 3) == hash_after(step, 3, "run")


def test_initial_values_depend_on_seed_and_name(device):
    a, b = (build_train().compile(device=device, seed=s) for s in (5, 6))
    assert verify.state_hash(a) != verify.state_hash(b)
    g = aicf.Graph("other order")
    g.param("filler", (3, 3))
    g.output("y", g.param("0.W", (SIZES[1], SIZES[0])) * 1.0)
    c = g.compile(device=device, seed=5)
    assert_bits(c.params["0.W"].numpy(), a.params["0.W"].numpy())
    bound = 1 / np.sqrt(SIZES[0])
    values = a.params["0.W"].numpy()
    assert values.min() >= -bound and values.max() < bound and values.std() > bound / 3
    assert not a.params["0.b"].numpy().any()


CHILD = """
import sys; sys.path.insert(0, {tests!r})
import aicf
if {threads}: aicf.set_num_threads({threads})
from steps import build_train, build_wide, hash_after, wide_hash
print(hash_after(build_train().compile(device="cpu"), 5))
print(wide_hash(build_wide().compile(device="cpu")))
"""


def child_hashes(threads=0, **env):
    code = CHILD.format(tests=os.path.dirname(os.path.abspath(__file__)), threads=threads)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def expected_hashes():
    return [
        hash_after(build_train().compile(device="cpu"), 5),
        wide_hash(build_wide().compile(device="cpu")),
    ]


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_processes(seed, expected_hashes):
    assert child_hashes(PYTHONHASHSEED=seed) == expected_hashes


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_thread_counts(threads, expected_hashes):
    before = aicf.num_threads()
    try:
        aicf.set_num_threads(threads)
        assert aicf.num_threads() == threads
        step = build_wide().compile(device="cpu")
        assert wide_hash(step) == expected_hashes[1]
        assert hash_after(build_train().compile(device="cpu"), 5) == expected_hashes[0]
    finally:
        aicf.set_num_threads(0)
    assert aicf.num_threads() == before
    assert child_hashes(threads) == expected_hashes


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_instruction_sets(isa, expected_hashes):
    code = "from aicf import _core; print(_core.cpu_isa())"
    env = {**os.environ, "AICF_CPU_ISA": isa}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    if done.stdout.strip() != isa:
        pytest.skip(f"this CPU has no {isa}: {(done.stdout + done.stderr).splitlines()[-1]}")
    assert child_hashes(AICF_CPU_ISA=isa) == expected_hashes


# ---- state in and out


def test_state_dict(device):
    step = build_train().compile(device=device)
    names = {"0.W", "0.b", "1.W", "1.b", "opt.step", "opt.lr", "opt.beta1", "opt.beta2", "opt.eps"}
    names |= {f"opt.{k}.{p}" for k in "mv" for p in ("0.W", "0.b", "1.W", "1.b")}
    snapshot = step.state_dict()
    assert set(snapshot) == names
    kept = {name: array.copy() for name, array in snapshot.items()}
    hash_after(step, 2)
    for name, array in kept.items():
        assert_bits(snapshot[name], array)  # a snapshot, not a view
    snapshot["0.W"][:] = 0
    assert step.params["0.W"].numpy().any()


def test_load_is_all_or_nothing(device):
    step = build_train().compile(device=device)
    before = verify.state_hash(step)
    broken = {name: array + 1 for name, array in step.state_dict().items()}
    broken["opt.v.1.b"] = np.zeros(99, np.float32)
    with pytest.raises(aicf.ShapeError, match="opt.v.1.b"):
        step.load_state_dict(broken)
    assert verify.state_hash(step) == before


def test_save_load(device, tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    step = build_train().compile(device=device)
    hash_after(step, 3)
    path = tmp_path / "state.safetensors"
    step.save(path)
    stored = numpy_files.load_file(path)
    snapshot = step.state_dict()
    assert set(stored) == set(snapshot)
    for name, array in snapshot.items():
        assert_bits(stored[name], array)
    wanted = hash_after(step, 2)
    other = build_train().compile(device=device, seed=7)
    other.load(path)
    assert hash_after(other, 2) == wanted
    numpy_files.save_file(snapshot, tmp_path / "theirs.safetensors")
    other.load(str(tmp_path / "theirs.safetensors"))
    assert hash_after(other, 2) == wanted
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".aicf")] == []


def test_save_load_every_dtype(device, tmp_path):
    g = aicf.Graph("dtypes")
    for dtype in (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int32",
        "int64",
        "uint8",
        "int8",
        "int16",
        "bool",
    ):
        for shape in ((), (0, 3), (2, 3)):
            init = aicf.init.normal() if "float" in dtype else aicf.init.constant(1)
            g.state(f"{dtype}{len(shape)}{sum(shape)}", shape, dtype, init)
    a, b = g.compile(device=device), g.compile(device=device, seed=1)
    a.save(tmp_path / "all")
    assert verify.state_hash(a) != verify.state_hash(b)
    b.load(tmp_path / "all")
    assert verify.state_hash(a) == verify.state_hash(b)
    b.load_state_dict(a.state_dict())
    assert verify.state_hash(a) == verify.state_hash(b)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data[:8] + b"[" + data[9:],
        lambda data: data[:8] + b"\xff" + data[9:],
        lambda data: data.replace(b'"F32"', b'"F33"', 1),
        lambda data: data.replace(b"[7,9]", b"[9,9]", 1),
        lambda data: data.replace(b"opt.lr", b"opt.lx", 1),
    ],
)
def test_damaged_checkpoint(damage, tmp_path):
    step = build_train().compile(device="cpu")
    before = verify.state_hash(step)
    path = tmp_path / "state"
    step.save(path)
    hash_of_file = path.read_bytes()
    path.write_bytes(damage(hash_of_file))
    with pytest.raises(aicf.Error):
        step.load(path)
    assert verify.state_hash(step) == before


def checkpoint(header, body=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def test_checkpoint_shapes_beyond_any_array(tmp_path):
    step = build_train().compile(device="cpu")
    record = {"dtype": "F32", "shape": [2**40, 2**40, 0], "data_offsets": [0, 0]}
    path = tmp_path / "state"
    path.write_bytes(checkpoint({"0.W": record}))
    with pytest.raises(aicf.FormatError, match=r"0\.W.*1099511627776.*too large"):
        step.load(path)


def test_the_name_that_safetensors_keeps(tmp_path):
    g = aicf.Graph("names")
    g.param("__metadata__", (2,))
    with pytest.raises(aicf.GraphError, match="__metadata__.*need"):
        g.compile(device="cpu").save(tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_save_into_missing_directory(tmp_path):
    step = build_train().compile(device="cpu")
    with pytest.raises(OSError):
        step.save(tmp_path / "no" / "state")
    with pytest.raises(OSError):
        step.load(tmp_path / "nothing")


SAVER = """
import os, random, sys, time
import aicf
path, times = sys.argv[1], int(sys.argv[2])
g = aicf.Graph("big")
p = g.param("p", (100, 1000), init=aicf.init.zeros())
g.assign(p, p + 1.0)
step = g.compile(device="cpu")
aicf.set_num_threads(1)
random.seed(0)
newest, kills = 0.0, 0
start = time.monotonic()
for _ in range(4):
    step.save(path)
took = (time.monotonic() - start) / 4
while kills < times or newest <= times // 3:  # a busy machine saves less between two kills
    kills += 1
    child = os.fork()
    if child == 0:
        while True:
            step.replay()
            step.save(path)
    time.sleep(random.uniform(0, 4 * took))
    os.kill(child, 9)
    os.waitpid(child, 0)
    if os.path.exists(path):
        step.load(path)
        values = step.params["p"].numpy()
        assert (values == values[0, 0]).all() and values[0, 0] >= newest, values
        newest = values[0, 0]
step.save(path)
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)], "left by killed writers"
print(int(newest))
"""


def test_save_is_atomic_under_kill(tmp_path):
    """kill -9 at 60 random moments of saving, or more until 20 were saved: the file is always one
    whole checkpoint, and what the killed had begun is swept."""
    path = tmp_path / "state"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SAVER, path, "60"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_set_between_replays(device):
    """50 steps with a new learning rate and betas each, equal to eager."""
    replayed, eager = (build_train().compile(device=device) for _ in range(2))
    for step in (replayed, eager):
        step(**batch_of(0))
    for k in range(50):
        for step in (replayed, eager):
            step.set("opt.lr", 1e-2 / (k + 1))
            step.set("opt.beta1", 0.9 - 0.005 * k)
            step.set("opt.eps", 10.0 ** -(3 + k % 6))
        replayed.replay()
        eager.run()
        assert verify.state_hash(replayed) == verify.state_hash(eager)


def test_set_takes_effect(device):
    g = aicf.Graph("sgd")
    w = g.param("w", (3,), init=aicf.init.ones())
    g.minimize(w.sum(), aicf.optim.SGD(lr=0.5))
    step = g.compile(device=device)
    step.replay()
    step.set("opt.lr", 0.0)
    step.replay()
    step.set("opt.lr", 2)
    step.replay()
    assert (step.params["w"].numpy() == -1.5).all()


def test_user_state_and_swap(device):
    """Params mean their value at the start of the step, whatever is assigned."""
    g = aicf.Graph("swap")
    a = g.state("a", (3,), init=aicf.init.constant(1))
    b = g.state("b", (3,), init=aicf.init.constant(2))
    g.assign(a, b)
    g.assign(b, a)
    g.output("a", a)
    g.output("sum", a * 10.0 + b)
    step = g.compile(device=device)
    for k in range(4):
        out = step.replay()
        odd = k % 2
        assert (out["a"].numpy() == 1 + odd).all()
        assert (out["sum"].numpy() == (21 if odd else 12)).all()


def test_a_state_of_a_reshaped_value_is_read_after_its_source(device):
    """The new content is copied into place at the end, in the state's shape."""
    g = aicf.Graph("late")
    x, s, t = g.input("x", (6, 4)), g.state("s", (1,)), g.state("t", (2, 12))
    total = aicf.reshape(aicf.sum(x), (1,))
    g.assign(s, total)
    g.output("s", s * total)
    turned = aicf.reshape(x * 2.0, (2, 12))
    g.assign(t, turned)
    g.output("t", t + turned)
    for passes in ("default", ()):
        step = g.compile(device=device, passes=passes)
        x_now = np.arange(24, dtype=np.float32).reshape(6, 4)
        for _ in range(2):
            out = step(x=x_now)
        assert out["s"].numpy() == 276 * 276
        np.testing.assert_array_equal(out["t"].numpy(), 4 * x_now.reshape(2, 12))


def test_assign_forms(device):
    """A transposed, a broadcast, a constant and an input source; two targets of one source."""
    g = aicf.Graph("assigns")
    x = g.input("x", (3, 3))
    p, q = g.param("p", (3, 3)), g.param("q", (3, 3))
    r, s, t = g.state("r", (3, 3)), g.state("s", (3, 3)), g.state("t", (3, 3))
    doubled = p * 2.0
    g.assign(p, p.T)
    g.assign(q, doubled)
    g.assign(r, doubled)
    g.assign(s, aicf.broadcast_to(g.constant([1.0, 2.0, 3.0]), (3, 3)))
    g.assign(t, x)
    g.output("doubled", doubled)
    step = g.compile(device=device)
    p0 = step.params["p"].numpy()
    data = np.arange(9, dtype=np.float32).reshape(3, 3)
    out = step(x=data)
    assert_bits(out["doubled"].numpy(), p0 * 2)
    assert_bits(step.params["p"].numpy(), p0.T.copy())
    assert_bits(step.params["q"].numpy(), p0 * 2)
    assert_bits(step.state["r"].numpy(), p0 * 2)
    assert_bits(step.state["s"].numpy(), np.tile(np.float32([1, 2, 3]), (3, 1)))
    assert_bits(step.state["t"].numpy(), data)
    step.run(x=data)
    assert_bits(step.params["p"].numpy(), p0)


# ---- outputs


def test_keep(device):
    step = build_train(keep=4).compile(device=device)
    plain = build_train().compile(device=device)
    losses = []
    for seed in range(7):
        losses.append(plain(**batch_of(seed))["loss"].numpy())
        got = step(**batch_of(seed))["loss"]
        want = np.array(losses[-4:], np.float32)
        assert got.shape == want.shape
        assert_bits(got.numpy(), want)
    step.replay(3)
    for _ in range(3):
        losses.append(plain.replay()["loss"].numpy())
    assert_bits(step.outputs["loss"].numpy(), np.array(losses[-4:], np.float32))
    assert "opt.step" in step.state and len(step.state) == len(plain.state)


def test_stale_output(device):
    step = build_train().compile(device=device)
    old = step(**batch_of(0))
    early = old["loss"]
    copy, number = early.copy(), float(early)
    assert float(early) == number  # reading twice is fine
    step.replay()
    for read in (float, lambda a: a.numpy(), np.asarray, lambda a: a.item(), lambda a: a.copy()):
        with pytest.raises(aicf.StaleOutput, match="loss"):
            read(early)
    with pytest.raises(aicf.StaleOutput):
        old["y"].numpy()
    with pytest.raises(aicf.StaleOutput):
        np.from_dlpack(old["y"])
    assert float(copy) == number
    assert float(step.outputs["loss"]) != number
    assert set(old) == {"loss", "y"} and len(old) == 2 and "y" in old and "q" not in old


def test_array(device):
    step = build_train().compile(device=device)
    out = step(**batch_of(0))
    y = out["y"]
    assert y.shape == (BATCH, SIZES[2]) and y.dtype == "float32" and y.device == step.device
    assert len(y) == BATCH and y.ndim == 2
    array = y.numpy()
    assert_bits(np.asarray(y), array)
    assert_bits(np.array(y, dtype=np.float64), array.astype(np.float64))
    assert_bits(y[2], array[2])
    assert_bits(y[1:3, ::2], array[1:3, ::2])
    assert_bits(np.from_dlpack(y.copy()), array)
    assert out["loss"].item() == float(out["loss"])
    assert int(step.state["opt.step"]) == 1
    assert "float32" in repr(y) or "f32" in repr(y)


def test_array_compares_as_numpy(device):
    step = build_train().compile(device=device)
    out = step(**batch_of(0))
    y, loss = out["y"], out["loss"]
    array = y.numpy()
    for compare in (
        lambda a, b: a == b,
        lambda a, b: a != b,
        lambda a, b: a < b,
        lambda a, b: a <= b,
        lambda a, b: a > b,
        lambda a, b: a >= b,
    ):
        for other in (0.0, array, y, array[0]):
            np.testing.assert_array_equal(compare(y, other), compare(array, np.asarray(other)))
    assert loss == float(loss) and not loss == 0.0 and bool(loss) and loss > 0
    assert not bool(step.state["opt.step"] == 0)
    for one in (bool, float, int, lambda a: a.item()):
        with pytest.raises(aicf.ShapeError, match=r"f32\[13, 5\].*need one element"):
            one(y)
    with pytest.raises(TypeError, match="unhashable"):
        hash(y)


def test_outputs_are_a_mapping(device):
    step = build_train().compile(device=device)
    out = step(**batch_of(0))
    assert isinstance(out, Mapping)
    assert list(out) == list(out.keys()) == ["loss", "y"] == [name for name, _ in out.items()]
    for name, array in out.items():
        assert_bits(array.numpy(), out[name].numpy())
        assert_bits(out.get(name).numpy(), array.numpy())
    assert [array.shape for array in out.values()] == [(), (BATCH, SIZES[2])]
    assert out.get("q") is None and out.get("q", 3) == 3 and out.get(5, 3) == 3
    assert {**out}.keys() == dict(out).keys() and 5 not in out


def test_param_arrays_are_live(device):
    step = build_train().compile(device=device)
    array = step.params["0.W"]
    before = array.numpy()
    step(**batch_of(0))
    assert (array.numpy() != before).any()
    if device == "cpu":
        view = np.from_dlpack(array)
        assert not view.flags.writeable
        now = view.copy()
        step.replay()
        assert (view != now).any()
        del step
        gc.collect()
        assert np.isfinite(view).all()


def test_unused_and_no_outputs(device):
    g = aicf.Graph("odd")
    g.input("unused", (2,))
    x = g.input("x", (2,))
    p = g.param("p", (2,))
    g.param("idle", (2,))
    g.assign(p, p + x)
    step = g.compile(device=device)
    step(x=np.ones(2, np.float32))
    assert (step.params["p"].numpy() == 1).all()
    empty = aicf.Graph("empty").compile(device=device)
    empty()
    empty.replay(3)
    assert empty.steps_run == 4 and empty.trace == []


# ---- inputs


def test_inputs_may_be_overwritten_after_the_call(device):
    step, plain = (build_train().compile(device=device) for _ in range(2))
    buffer = {name: array.copy() for name, array in batch_of(0).items()}
    for seed in range(5):
        for name, array in batch_of(seed).items():
            buffer[name][...] = array
        step(**buffer)
        buffer["x"][...] = np.nan
        buffer["labels"][...] = -1
        plain(**batch_of(seed))
    assert verify.state_hash(step) == verify.state_hash(plain)


def test_input_kinds(device):
    """Any strides, any framework, lists of numbers: the same bits."""
    step = build_train().compile(device=device)
    start = step.state_dict()
    data = batch_of(3)
    x, labels = data["x"], data["labels"]
    step(**data)
    wanted = verify.state_hash(step)
    padded = np.zeros((2 * BATCH, 3 * SIZES[0]), np.float32)
    padded[::2, ::3] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    kinds = [
        np.asfortranarray(x),
        padded[::2, ::3],
        x[::-1].copy()[::-1],
        frozen,
        unaligned,
        x.tolist(),
    ]
    for module, make in (
        ("torch", lambda t: t.from_numpy(x.copy())),
        ("torch", lambda t: t.from_numpy(x.T.copy()).T),
        ("torch", lambda t: t.from_numpy(x.copy()).requires_grad_()),
        ("jax", lambda t: t.device_put(x, t.devices("cpu")[0])),
        *([("jax", lambda t: t.numpy.asarray(x))] if device == "cuda" else []),
    ):
        try:
            kinds.append(make(__import__(module)))
        except ImportError:
            continue
    for kind in kinds:
        step.load_state_dict(start)
        step(x=kind, labels=labels)
        assert verify.state_hash(step) == wanted, type(kind)
    step.load_state_dict(start)
    step(x=x, labels=labels.tolist())
    assert verify.state_hash(step) == wanted


def test_outputs_to_torch():
    torch = pytest.importorskip("torch")
    step = build_train().compile(device="cpu")
    out = step(**batch_of(0))
    tensor = torch.from_dlpack(out["y"])
    assert_bits(tensor.numpy(), out["y"].numpy())
    live = torch.from_dlpack(step.params["0.W"].copy())
    assert live.shape == (SIZES[1], SIZES[0])
    step.params["0.W"] = torch.ones(SIZES[1], SIZES[0])
    assert (step.params["0.W"].numpy() == 1).all()


# ---- what runs is what was planned


def test_trace_equals_plan(device):
    for graph in (build_train(), build_train(keep=3), build_infer(), build_wide()):
        step = graph.compile(device=device)
        planned = [(op["op"], op["kernel"]) for op in step.plan.ops]
        assert planned == [tuple(launch) for launch in step.trace]
        assert planned == [(op["op"], op["kernel"]) for op in step.lowered]
        assert step.plan.report.ok
        record = json.loads(step.plan.to_json())
        assert record["peak_bytes"] == step.plan.peak_bytes


def test_peak_bytes(device):
    """Known before the first run, constant after, and less than without reuse."""
    step = build_wide().compile(device=device)
    plan = step.plan
    peak = plan.peak_bytes
    assert peak == sum(plan.regions.values())
    wide_hash(step)
    assert step.plan.peak_bytes == peak
    regions = plan.regions
    params = sum(4 * n for n in (260 * 200, 260, 130 * 260, 130))
    assert regions["params"] >= params and regions["moments"] == 2 * regions["params"]
    temps = [v for v in plan.values.values() if v["region"] == "temps"]
    stored = {v["storage"]: v["bytes"] for v in temps}
    scratch = sum(op["scratch_bytes"] for op in plan.ops)
    assert regions["temps"] < sum(stored.values()) + scratch
    for value in plan.values.values():
        assert value["offset"] < 0 or value["offset"] % 256 == 0
        assert value["offset"] + value["bytes"] <= regions[value["region"]]


def test_params_grads_moments_stand_alike(device):
    """Of a step whose ops are launched: in one block of a GPU, or where updates are epilogues of
    what makes them, gradients have no place."""
    passes = [p for p in _core.pass_names() if p not in ("block", "update_epilogues")]
    step = build_train().compile(device=device, passes=passes)
    values = {v["name"]: v for v in step.plan.values.values()}
    params = ("0.W", "0.b", "1.W", "1.b")
    base = {k: values[f"opt.{k}.0.W"]["offset"] - values["0.W"]["offset"] for k in "mv"}
    for name in params:
        assert values[name]["region"] == "params"
        for k in "mv":
            moment = values[f"opt.{k}.{name}"]
            assert moment["region"] == "moments"
            assert moment["offset"] - values[name]["offset"] == base[k]
    grads = sorted(v["offset"] for v in step.plan.values.values() if v["region"] == "grads")
    assert grads == sorted(values[name]["offset"] for name in params)


def test_memory_is_steady():
    """Compiling and dropping steps gives the memory back."""
    import resource

    def rounds(count):
        for _ in range(count):
            step = build_train().compile(device="cpu")
            step(**batch_of(0))
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = rounds(100)
    assert rounds(400) - before < 8 * 1024  # KiB


# ---- modes


def test_modes_are_shown(device):
    """The plan says how its products are computed; float64 products have one way only, and small
    ones are not rounded to tf32."""
    g = aicf.Graph("modes")
    x, y = g.input("x", (128, 256)), g.input("y", (4, 3), "float64")
    g.output("a", x @ x.T)
    g.output("b", y @ y.T)
    step = g.compile(device=device, passes=())
    assert "math fp32, deterministic" in str(step.plan).splitlines()[0]
    loose = g.compile(device=device, deterministic=False)
    assert "deterministic" not in str(loose.plan).splitlines()[0]
    assert [op["attrs"]["math"] for op in step.lowered if op["op"] == "gemm"] == ["fp32"] * 2
    for mode in ("tf32", "fp16", "bf16"):
        step = g.compile(device=device, passes=(), math=mode)
        assert f"math {mode}," in str(step.plan).splitlines()[0]
        modes = [op["attrs"]["math"] for op in step.lowered if op["op"] == "gemm"]
        assert modes == [mode, "fp32"]


@pytest.mark.parametrize("sync", ["none", "event", "full"])
def test_run_waits_as_told(device, sync):
    g = aicf.Graph("sync")
    g.output("y", g.input("x", (3,)) * 2.0)
    step = g.compile(device=device)
    out = step.run(x=np.ones(3, np.float32), sync=sync)
    assert (out["y"].numpy() == 2).all()
    named = aicf.Graph("named")
    named.output("y", named.input("sync", (3,)) * 2.0)
    out = named.compile(device=device).run(sync=np.ones(3, np.float32))
    assert (out["y"].numpy() == 2).all()
