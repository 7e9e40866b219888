"""Storage that several steps, the caller or several threads hold: sharing, binding, threads."""

import gc
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time

import aicf
import numpy as np
import pytest
from aicf import verify
from compare import assert_bits
from conftest import outputs_of
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
from tensors import CapsuleTensor

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
    capsule = holder.state["t"].__dlpack__(max_version=(1, 0), copy=True)
    foreign = CapsuleTensor(capsule, device)
    both.bind(b=foreign)
    b.replay()
    assert (b.state["b"].numpy() == 101).all()
    assert (both.replay()["y"].numpy() == 101).all()
    a.replay(2)
    assert (both.replay()["y"].numpy() == 103).all()


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
    with pytest.raises(aicf.GraphError, match=r"2\.W.*states: 0\.W, 0\.b"):
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
import aicf, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
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
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.3)
            child.send_signal(signal.SIGINT)
            start = time.monotonic()
            out, _ = child.communicate(timeout=20)
        finally:
            child.kill()
    assert out == "interrupted\n" and child.returncode == 0
    assert time.monotonic() - start < 5


def test_fork_after_use():
    """A forked child can use its own steps and exit."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from steps import *\n"
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


# ---- memory bound twice, by Steps that share


def reads(name, *params):
    g = aicf.Graph(name)
    y = g.input("x", (6,))
    for param in params:
        y = y + g.param(param, (6,))
    g.output("y", y)
    return g


def test_bind_refuses_what_a_sharing_step_has_bound():
    """An alias within any Step that holds the value is refused, whichever Step binds it."""
    memory = np.zeros(9, np.float32)
    a = reads("a", "p").compile(device="cpu")
    b = reads("b", "p").compile(device="cpu", share=a)
    a.bind(x=memory[:6])
    for part in (memory[:6], memory[3:]):
        with pytest.raises(
            aicf.GraphError, match='bind: "p" got memory that "x" of a Step that shares it lies in'
        ):
            b.bind(p=part)
        with pytest.raises(aicf.GraphError, match='"p" got memory that "x" lies in; need'):
            a.bind(p=part)
    other = np.full(6, 2.0, np.float32)
    b.bind(p=other)
    for step in (a, b):
        with pytest.raises(aicf.GraphError, match='bind: "x" got memory that "p" lies in'):
            step.bind(x=other)
    b.bind(p=other)  # its own once more
    a.bind(p=other)
    b.bind(x=memory[:6])  # no Step holds both inputs
    memory[:] = 1.0
    assert (a.replay()["y"].numpy() == 3).all() and (b.replay()["y"].numpy() == 3).all()
    del a
    gc.collect()
    b.bind(x=np.zeros(6, np.float32))
    b.bind(p=memory[:6])  # of a Step that is gone nothing is in the way


def test_bind_sees_every_step_of_a_chain():
    """c holds values of two Steps that know nothing of each other."""
    memory, other = np.zeros(6, np.float32), np.zeros(6, np.float32)
    a, b = (reads(name, name).compile(device="cpu") for name in ("p", "q"))
    a.bind(p=memory)
    b.bind(q=memory)  # two Steps of their own may
    with pytest.raises(aicf.GraphError, match='compile: shared "[pq]" and "[pq]" are bound to'):
        reads("c", "p", "q").compile(device="cpu", share=[a, b])
    b.bind(q=other)
    c = reads("c", "p", "q").compile(device="cpu", share=[a, b])
    with pytest.raises(aicf.GraphError, match='"q" got memory that "p" of a Step that shares it'):
        b.bind(q=memory)
    with pytest.raises(aicf.GraphError, match='"p" got memory that "q" of a Step that shares it'):
        a.bind(p=other)
    memory[:], other[:] = 1.0, 2.0
    assert (c(x=np.zeros(6, np.float32))["y"].numpy() == 3).all()
