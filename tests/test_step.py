"""A compiled step: its bits, its state, sharing, binding, outputs, threads."""

import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

import aicf
import numpy as np
import pytest
from aicf import verify
from compare import assert_bits
from conftest import outputs_of

BATCH, SIZES = 13, (9, 7, 5)


def build_train(batch=BATCH, optimizer=None, keep=1, dtype="float32"):
    """An MLP with distinct sizes, cross-entropy and Adam."""
    g = aicf.Graph("train")
    x = g.input("x", (batch, SIZES[0]), dtype)
    labels = g.input("labels", (batch,), "int64")
    y = g.dense("1", aicf.tanh(g.dense("0", x, SIZES[1])), SIZES[2])
    loss = aicf.cross_entropy(y, labels)
    g.minimize(loss, optimizer or aicf.optim.Adam(lr=1e-2))
    g.output("loss", loss, keep=keep)
    g.output("y", y)
    return g


def build_infer(batch=4):
    """The same model without the training."""
    g = aicf.Graph("infer")
    y = g.dense("1", aicf.tanh(g.dense("0", g.input("x", (batch, SIZES[0])), SIZES[1])), SIZES[2])
    g.output("y", y)
    return g


def batch_of(seed, batch=BATCH, dtype=np.float32):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, SIZES[0])).astype(dtype)
    return {"x": x, "labels": rng.integers(0, SIZES[2], batch)}


def build_wide():
    """Large enough that the CPU backend splits the work among threads."""
    g = aicf.Graph("wide")
    x, t = g.input("x", (96, 200)), g.input("t", (96, 130))
    y = g.dense("1", aicf.gelu(g.dense("0", x, 260)), 130)
    loss = aicf.mse_loss(aicf.softmax(y), t) + aicf.mean(aicf.sum(y * y, 1)) * 0.01
    g.minimize(loss, aicf.optim.Adam())
    g.output("loss", loss)
    return g


def wide_hash(step, steps=3):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((96, 200)).astype(np.float32)
    t = rng.standard_normal((96, 130)).astype(np.float32)
    step(x=x, t=t)
    step.replay(steps - 1)
    return verify.state_hash(step) + step.outputs["loss"].numpy().tobytes().hex()


def hash_after(step, count, run="call"):
    for seed in range(count):
        step.run(**batch_of(seed)) if run == "run" else step(**batch_of(seed))
    return verify.state_hash(step)


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
from test_step import build_train, build_wide, hash_after, wide_hash
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
        pytest.skip(f"this CPU has no {isa}: {(done.stdout + done.stderr).strip()[-200:]}")
    assert child_hashes(AICF_CPU_ISA=isa) == expected_hashes


# ---- sharing


def test_bind_reaches_every_sharing_step(device):
    """Also the owner on another machine, whose stream the binding Step has never used."""

    def counter(name):
        g = aicf.Graph(name)
        count = g.state(name, (3,))
        g.assign(count, count + 1.0)
        return g

    a, b = (counter(name).compile(device=device) for name in "ab")
    g = aicf.Graph("both")
    g.output("y", g.state("a", (3,)) + g.state("b", (3,)))
    both = g.compile(device=device, share=[a, b])
    g = aicf.Graph("target")
    target = g.state("t", (3,))
    g.assign(target, target * 1.0)
    holder = g.compile(device=device)
    holder.state["t"] = np.full(3, 100, np.float32)
    foreign = Foreign(holder.state["t"].__dlpack__(max_version=(1, 0), copy=True), device)
    both.bind(b=foreign)
    b.replay()
    assert (b.state["b"].numpy() == 101).all()
    assert (both.replay()["y"].numpy() == 101).all()
    a.replay(2)
    assert (both.replay()["y"].numpy() == 103).all()


class Foreign:
    """Another framework's tensor, by its capsule."""

    def __init__(self, capsule, device):
        self.capsule, self.device = capsule, (1, 0) if device == "cpu" else (2, 0)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        return self.capsule


def test_share_three_steps(device):
    """Train, the short last batch and inference over one set of params, bit for bit."""
    train = build_train().compile(device=device)
    tail = build_train(batch=6).compile(device=device, share=train)
    infer = build_infer().compile(device=device, share=[train])
    probe = batch_of(77, 4)["x"]
    alone = build_train().compile(device=device)
    alone_tail = build_train(batch=6).compile(device=device)
    for seed in range(8):
        last = seed % 3 == 2
        data = batch_of(seed, 6 if last else BATCH)
        (tail if last else train)(**data)
        if last:  # the same without sharing, by copies
            alone_tail.load_state_dict(alone.state_dict())
            alone_tail(**data)
            alone.load_state_dict(alone_tail.state_dict())
        else:
            alone(**data)
        want = verify.state_hash(alone)
        assert verify.state_hash(train) == verify.state_hash(tail) == want
        expected = build_infer().compile(device=device, params=dict(infer_params(alone)))
        assert_bits(infer(x=probe)["y"].numpy(), expected(x=probe)["y"].numpy())
    train.params["0.b"] = np.full(SIZES[1], 0.25, np.float32)
    assert (infer.params["0.b"].numpy() == 0.25).all()
    tail.set("opt.lr", 0.5)
    assert float(train.state["opt.lr"]) == 0.5


def infer_params(step):
    return {name: array.numpy() for name, array in step.params.items()}


def test_share_copies_and_initialises_nothing(device):
    train = build_train().compile(device=device)
    hash_after(train, 3)
    before = verify.state_hash(train)
    other = build_train().compile(device=device, share=train, seed=1234)
    assert verify.state_hash(train) == verify.state_hash(other) == before


def test_params_are_all_or_nothing(device):
    """A compile that fails writes nothing into the storage it would have shared."""
    train = build_train().compile(device=device)
    before = verify.state_hash(train)
    ones = np.ones((SIZES[1], SIZES[0]), np.float32)
    for wrong, error in (
        ({"0.b": np.ones(3, np.float32)}, aicf.ShapeError),
        ({"1.b": np.zeros(SIZES[2])}, aicf.DTypeError),
        ({"2.b": 1.0}, aicf.GraphError),
    ):
        with pytest.raises(error, match=next(iter(wrong))):
            build_train().compile(device=device, share=train, params={"0.W": ones, **wrong})
        assert verify.state_hash(train) == before
    both = build_train().compile(device=device, share=train, params={"0.W": ones, "opt.lr": 0.5})
    assert float(train.state["opt.lr"]) == 0.5
    assert_bits(train.params["0.W"].numpy(), ones)
    assert_bits(both.params["0.W"].numpy(), ones)


def test_unknown_params_come_before_the_device():
    with pytest.raises(aicf.GraphError, match=r"2\.W.*it has 0\.W, 0\.b"):
        build_train().compile(device="cuda:99", params={"2.W": 1.0})


def test_share_two_steps_into_one(device):
    """A step that shares with two others that share nothing with each other."""
    a, b = aicf.Graph("a"), aicf.Graph("b")
    for g, name in ((a, "p"), (b, "q")):
        p = g.param(name, (3,), init=aicf.init.ones())
        g.assign(p, p * 2.0)
        g.output(f"{name}.now", p)
    one, two = a.compile(device=device), b.compile(device=device)
    both = aicf.Graph("both")
    p, q = both.param("p", (3,)), both.param("q", (3,))
    both.output("sum", p + q)
    both.assign(p, p + q)
    third = both.compile(device=device, share=(one, two))
    one.replay()
    two.replay(2)
    assert (third.replay()["sum"].numpy() == 6).all()
    assert (one.params["p"].numpy() == 6).all() and (two.params["q"].numpy() == 4).all()


def test_shared_storage_outlives_its_step(device):
    train = build_train().compile(device=device)
    hash_after(train, 2)
    want = infer_params(train)
    infer = build_infer().compile(device=device, share=train)
    del train
    gc.collect()
    for name, array in infer.params.items():
        assert_bits(array.numpy(), want[name])
    infer(x=batch_of(0, 4)["x"])


def test_share_mismatch(device):
    train = build_train().compile(device=device)
    g = aicf.Graph("other")
    g.output("y", g.param("0.W", (2, 2)) * 1.0)
    with pytest.raises(aicf.ShapeError, match=r"0\.W.*f32\[7, 9\].*f32\[2, 2\].*need"):
        g.compile(device=device, share=train)
    g = aicf.Graph("other")
    g.output("y", g.param("0.W", (SIZES[1], SIZES[0]), "float64") * 1.0)
    with pytest.raises(aicf.DTypeError, match=r"0\.W.*f32\[7, 9\].*f64\[7, 9\].*need"):
        g.compile(device=device, share=[train])


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
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"):
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
newest = 0.0
for _ in range(times):
    child = os.fork()
    if child == 0:
        while True:
            step.replay()
            step.save(path)
    time.sleep(random.uniform(0, 0.02))
    os.kill(child, 9)
    os.waitpid(child, 0)
    if os.path.exists(path):
        step.load(path)
        values = step.params["p"].numpy()
        assert (values == values[0, 0]).all() and values[0, 0] >= newest, values
        newest = values[0, 0]
print(int(newest))
"""


def test_save_is_atomic_under_kill(tmp_path):
    """kill -9 at 60 random moments of saving: the file is always one whole checkpoint."""
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


# ---- bind


def test_bind_zero_copy(device):
    if device != "cpu":
        pytest.skip("NumPy arrays live in host memory")
    step, plain = build_train().compile(device=device), build_train().compile(device=device)
    data = batch_of(0)
    x, labels = data["x"].copy(), data["labels"].copy()
    weights = step.params["0.W"].numpy()
    y = np.zeros((BATCH, SIZES[2]), np.float32)
    moment = np.zeros((SIZES[1], SIZES[0]), np.float32)
    step.bind(x=x, labels=labels, y=y, **{"0.W": weights, "opt.m.0.W": moment})
    for seed in range(3):
        fresh = batch_of(seed)
        x[:], labels[:] = fresh["x"], fresh["labels"]  # the step sees writes to its inputs
        out = step() if seed else step.replay()
        want = plain(**fresh)
        assert_bits(y, want["y"].numpy())
        assert_bits(out["y"].numpy(), want["y"].numpy())
        assert_bits(weights, plain.params["0.W"].numpy())
        assert_bits(moment, plain.state["opt.m.0.W"].numpy())
    weights[:] = 0.125  # and its content is the value
    plain.params["0.W"] = weights
    assert_bits(step()["y"].numpy(), plain.replay()["y"].numpy())
    assert verify.state_hash(step) == verify.state_hash(plain)
    step.run()
    plain.run()
    assert verify.state_hash(step) == verify.state_hash(plain)


def test_bind_shared_param():
    train = build_train().compile(device="cpu")
    infer = build_infer().compile(device="cpu", share=train)
    mine = np.full((SIZES[1], SIZES[0]), 0.5, np.float32)
    infer.bind(**{"0.W": mine})
    assert (train.params["0.W"].numpy() == 0.5).all()
    train(**batch_of(0))
    assert not (mine == 0.5).all()
    assert_bits(infer.params["0.W"].numpy(), mine)


def test_bound_input_by_call_is_copied_in():
    """A call that still names a bound input writes into the caller's tensor."""
    step = build_train().compile(device="cpu")
    data = batch_of(0)
    x = np.zeros_like(data["x"])
    step.bind(x=x)
    step(**data)
    assert_bits(x, data["x"])


def test_bind_refuses():
    step = build_train().compile(device="cpu")
    before = verify.state_hash(step)
    frozen = np.zeros((SIZES[1], SIZES[0]), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(aicf.GraphError, match="read-only"):
        step.bind(**{"0.W": frozen})
    buffer = np.zeros(SIZES[1] * SIZES[0] + SIZES[1], np.float32)
    step.bind(**{"0.W": buffer[: SIZES[1] * SIZES[0]].reshape(SIZES[1], SIZES[0])})
    with pytest.raises(aicf.GraphError, match="0.W"):
        step.bind(**{"0.b": buffer[SIZES[1] * SIZES[0] - 1 : -1]})
    step.bind(**{"0.b": buffer[SIZES[1] * SIZES[0] :]})  # beside it is fine
    unaligned = np.zeros(4 * BATCH * SIZES[0] + 1, np.uint8)[1:].view(np.float32)
    with pytest.raises(aicf.Error, match="align"):
        step.bind(x=unaligned.reshape(BATCH, SIZES[0]))
    with pytest.raises(aicf.ShapeError, match="C order"):
        step.bind(x=np.zeros((SIZES[0], BATCH), np.float32).T)
    assert before  # nothing crashed; the step still runs
    step(**batch_of(0))


def test_bind_refuses_read_only_input_on_write():
    """A read-only input may be bound, but a call must not write into it."""
    step = build_train().compile(device="cpu")
    data = batch_of(0)
    frozen = data["x"].copy()
    frozen.flags.writeable = False
    step.bind(x=frozen)
    step(labels=data["labels"])
    want = frozen.copy()
    with pytest.raises(aicf.GraphError, match='"x".*read-only'):
        step(x=batch_of(1)["x"], labels=data["labels"])
    with pytest.raises(aicf.GraphError, match='"x".*read-only'):
        step.run(x=batch_of(1)["x"])
    assert_bits(frozen, want)


def test_bound_tensor_is_kept_alive():
    step = build_train().compile(device="cpu")
    plain = build_train().compile(device="cpu")
    step.bind(**{"0.W": plain.params["0.W"].numpy()})
    gc.collect()
    junk = [np.full((SIZES[1], SIZES[0]), 9, np.float32) for _ in range(100)]
    assert hash_after(step, 2) == hash_after(plain, 2)
    del junk


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
        ("jax.numpy", lambda t: t.asarray(x)),
    ):
        try:
            kinds.append(make(__import__(module, fromlist=["asarray"])))
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
    assert regions["temps"] < sum(stored.values())
    for value in plan.values.values():
        assert value["offset"] < 0 or value["offset"] % 256 == 0
        assert value["offset"] + value["bytes"] <= regions[value["region"]]


def test_params_grads_moments_stand_alike(device):
    step = build_train().compile(device=device)
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


# ---- threads


def test_steps_in_threads():
    """Several steps at once, each from its own thread: the bits of running alone."""
    count, wanted = 4, []
    for n in range(count):
        step = build_train().compile(device="cpu", seed=n)
        wanted.append(hash_after(step, 30))
    got, errors = [None] * count, []

    def work(n):
        try:
            got[n] = hash_after(build_train().compile(device="cpu", seed=n), 30)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and got == wanted


def test_one_step_from_many_threads():
    """A step is one sequential machine: 4 threads x 200 replays are 800 steps."""
    step, alone = (build_train().compile(device="cpu") for _ in range(2))
    for s in (step, alone):
        s(**batch_of(0))
    threads = [
        threading.Thread(target=lambda: [step.replay() for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone.replay(800)
    assert verify.state_hash(step) == verify.state_hash(alone)


def test_sharing_steps_in_threads():
    """Train and inference share storage from two threads: inference never sees half a step."""
    g = aicf.Graph("count")
    p = g.param("p", (5000,), init=aicf.init.zeros())
    g.assign(p, p + 1.0)
    train = g.compile(device="cpu")
    h = aicf.Graph("look")
    q = h.param("p", (5000,))
    h.output("low", q.min())
    h.output("high", q.max())
    look = h.compile(device="cpu", share=train)
    done = threading.Event()

    def work():
        for _ in range(400):
            train.replay()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    looks = 0
    while not done.is_set() or looks == 0:
        out = look.replay()
        assert float(out["low"]) == float(out["high"])
        looks += 1
    thread.join()
    assert float(look.replay()["low"]) == 400


def test_gil_is_released():
    """Another Python thread goes on while a long replay runs."""
    step = build_wide().compile(device="cpu")
    wide_hash(step)
    ticks, done = [], threading.Event()

    def work():
        step.replay(60)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    thread.join()
    assert len(ticks) >= 3


INTERRUPTED = """
import aicf, numpy as np, sys
g = aicf.Graph("g")
p = g.param("p", (64, 64))
g.assign(p, aicf.tanh(p @ p))
g.output("s", p.sum())
step = g.compile(device="cpu")
print("ready", flush=True)
try:
    step.replay(10**9)
except KeyboardInterrupt:
    ran = step.steps_run
    step.replay()
    assert 0 < ran < 10**9 and step.steps_run == ran + 1
    print("interrupted", flush=True)
"""


def test_ctrl_c_during_replay():
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    start = time.monotonic()
    out, _ = child.communicate(timeout=20)
    assert out == "interrupted\n" and child.returncode == 0
    assert time.monotonic() - start < 5


def test_fork_after_use():
    """A forked child can use its own steps and exit."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_step import *\n"
        "step = build_wide().compile(device='cpu')\n"
        "want = wide_hash(step)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    fresh = build_wide().compile(device='cpu')\n"
        "    os._exit(0 if wide_hash(fresh) == want else 1)\n"
        "print(os.waitpid(pid, 0)[1])\n"
    )
    here = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, here],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "0", done.stderr


def test_graph_is_copied_by_compile(device):
    g = build_infer()
    step = g.compile(device=device)
    before = step.plan.to_json()
    g.output("more", g.input("extra", (2,)) * 2.0)
    assert step.plan.to_json() == before and list(step.outputs) == ["y"]
    del g
    gc.collect()
    step(x=batch_of(0, 4)["x"])


def test_state_hash_sees_every_byte():
    step = build_train().compile(device="cpu")
    digest = hashlib.sha256()
    for name, array in step.state_dict().items():
        digest.update(name.encode() + array.tobytes())
    assert digest.hexdigest() == verify.state_hash(step)
    before = verify.state_hash(step)
    step.set("opt.eps", float(np.nextafter(np.float32(1e-8), np.float32(1))))
    assert verify.state_hash(step) != before


def test_outputs_helper(device):
    step = build_infer().compile(device=device)
    assert set(outputs_of(step(x=batch_of(0, 4)["x"]))) == {"y"}


# ---- modes


def test_modes_are_shown(device):
    """The plan says how its products are computed; float64 products have one way only."""
    g = aicf.Graph("modes")
    x, y = g.input("x", (4, 3)), g.input("y", (4, 3), "float64")
    g.output("a", x @ x.T)
    g.output("b", y @ y.T)
    step = g.compile(device=device)
    assert "math fp32, deterministic" in str(step.plan).splitlines()[0]
    loose = g.compile(device=device, deterministic=False)
    assert "deterministic" not in str(loose.plan).splitlines()[0]
    assert [op["attrs"]["math"] for op in step.lowered if op["op"] == "gemm"] == ["fp32"] * 2
    with pytest.raises(aicf.Unsupported, match="tf32"):
        g.compile(device=device, math="tf32")


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
