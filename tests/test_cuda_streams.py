"""Streams of a GPU: the fake driver knows what is ordered behind what, and steps keep to it."""

import os
import subprocess
import sys
from pathlib import Path

import emulate
import pytest
from aicf import _core

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def driver(built_once):
    """A folder with the fake driver as libcuda.so.1."""
    if not hasattr(_core, "cuda_info"):
        pytest.skip("this build has no CUDA backend")
    if emulate.missing():
        pytest.skip(emulate.missing())
    return built_once("fake_driver", emulate.build_driver)


def run(script, folder, driver=None):
    """In a process of its own."""
    more = {"LD_LIBRARY_PATH": str(driver)} if driver else {}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "AICF_CACHE_DIR": str(folder / "cache"), **more},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
    )


COMMANDS = """
import ctypes
cu = ctypes.CDLL("libcuda.so.1")
pointer, size = ctypes.c_void_p, ctypes.c_size_t
cu.cuCtxSetCurrent(pointer(2))
def made(name, *more):
    handle = pointer()
    assert getattr(cu, name)(ctypes.byref(handle), *more) == 0
    return handle
a, b, event = made("cuStreamCreate", 0), made("cuStreamCreate", 0), made("cuEventCreate", 0)
c = made("cuStreamCreate", 1)  # non-blocking
x = made("cuMemAllocAsync", size(256), a)
def use(stream):
    assert cu.cuMemsetD8Async(x, 0, size(256), stream) == 0
def order(first, then):
    assert cu.cuEventRecord(event, first) == cu.cuStreamWaitEvent(then, event, 0) == 0
def wait(stream):
    assert cu.cuStreamSynchronize(stream) == 0
def free(stream):
    assert cu.cuMemFreeAsync(x, stream) == 0
def free_now():
    assert cu.cuMemFree_v2(x) == 0
graph = made("cuGraphCreate", 0)
made("cuGraphAddEmptyNode", graph, None, size(0))
launched = made("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))
def launch(stream):
    assert cu.cuGraphLaunch(launched, stream) == 0
{commands}
"""
UNMADE, USED = "nothing orders behind its allocation", "nothing orders behind another one's use"
RUNNING = "the device may still use"


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        ("use(a); free(a)", None),
        ("use(b)", UNMADE),
        ("order(a, b); use(b)", None),
        ("order(b, a); use(b)", UNMADE),
        ("wait(a); use(b)", None),
        ("wait(b); use(b)", UNMADE),
        ("order(a, b); use(b); free(a)", USED),
        ("order(a, b); use(b); order(b, a); free(a)", None),
        ("order(a, b); use(b); free(b)", None),
        ("order(a, b); use(b); wait(b); free(a)", None),
        ("order(a, b); order(b, a); use(b); free(a)", USED),
        ("use(None); order(b, a); free(a)", None),
        ("use(a); use(None); use(b)", None),
        ("use(a); use(None); use(c)", UNMADE),
        ("order(a, c); use(c); order(None, a); free(a)", USED),
        ("order(a, c); use(c); order(c, a); free(a)", None),
        ("use(a); free_now()", RUNNING),
        ("use(a); wait(a); free_now()", None),
        ("use(a); order(a, b); wait(b); free_now()", None),
        ("use(a); wait(b); free_now()", RUNNING),
        ("use(a); launch(a); launch(b); use(b)", None),
        ("use(a); launch(b); use(b)", UNMADE),
    ],
)
def test_the_driver_knows_what_is_ordered(driver, commands, says):
    """The default stream waits for the others, which wait for it."""
    done = run(COMMANDS.format(commands=commands.replace("; ", "\n")), driver, driver)
    if says:
        assert done.returncode and says in done.stderr
    else:
        assert done.returncode == 0, done.stderr


STEPS = """
import sys
import aicf
import numpy as np
from aicf import _core

def graph(rows, *names):
    g = aicf.Graph("graph")
    y = g.input("x", (rows, 40))
    for name in names:
        y = aicf.tanh(y @ g.param(name, (40, 40)))
    if len(names) == 1:
        g.minimize(aicf.mean(y * y), aicf.optim.SGD(lr=0.1))
    g.output("y", y)
    return g

def compiled(rows, *names, **options):
    g = graph(rows, *names)
    if sys.argv[1:] == ["warm"]:
        programs = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a")
        return _core.cuda_cubins(programs, "sm_90a")
    return g.compile(device="cuda", **options)

x = {rows: np.ones((rows, 40), np.float32) for rows in (24, 700)}
first, other = compiled(700, "a"), compiled(24, "b")
both = compiled(24, "a", "b", share=[first, other])
if sys.argv[1:] != ["warm"]:
    for turn in range(2):
        first(x=x[700])
        other(x=x[24])
        both(x=x[24])
        both.replay(3)
    second = compiled(700, "a")
    second(x=first(x=x[700])["y"])  # by the device's memory, from one stream to another
    del first, other
    third = compiled(24, "b")
    both(x=third(x=x[24])["y"])
    del second, both
    third.replay(2)
    print("done")
"""


def test_steps_on_streams_of_their_own(driver):
    """Memory goes from step to step, and each ends before or after those it has met."""
    warm = run(STEPS.replace("sys.argv[1:]", '["warm"]'), driver)
    assert warm.returncode == 0, warm.stderr
    done = run(STEPS, driver, driver)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


CALLS = (
    COMMANDS.replace("{commands}", "")
    + """
import aicf
from tensors import CODES, DLTensor, Versioned, alive, new_capsule, release

class Table(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", pointer),
                ("allocate", pointer), ("from_object", pointer), ("to_object", pointer),
                ("view_object", pointer), ("current_stream", pointer)]

class Tensor:  # as PyTorch's: on its framework's current stream, in whose order it is given back
    stream, exported, asked = None, 0, 0

    def __init__(self, *shape):
        self.shape, count = shape, 1
        for n in shape:
            count *= n
        self.made_on = Tensor.stream
        self.memory = made("cuMemAllocAsync", size(4 * max(count, 1)), self.made_on)
    def __del__(self):
        assert cu.cuMemFreeAsync(self.memory, self.made_on) == 0
    def is_neg(self):
        return False
    def resolve_neg(self):
        return self
    def detach(self):
        return self
    def fill(self, tensor):
        rank = len(self.shape)
        self.sizes = (ctypes.c_int64 * rank)(*self.shape)
        self.strides = (ctypes.c_int64 * rank)()
        step = 1
        for i in reversed(range(rank)):
            self.strides[i] = step
            step *= self.shape[i]
        tensor.data, tensor.device_type, tensor.device_id = self.memory.value, 2, 0
        tensor.ndim, (tensor.code, tensor.bits), tensor.lanes = rank, CODES["float32"], 1
        if rank:
            tensor.shape, tensor.strides = self.sizes, self.strides
        tensor.byte_offset = 0
    def __dlpack_device__(self):
        return 2, 0
    def __dlpack__(self, stream=None, max_version=None):
        Tensor.exported += 1
        order(Tensor.stream, pointer(stream))
        return new_capsule(self.managed(), b"dltensor_versioned", None)
    def managed(self):
        managed = Versioned(major=1, minor=0)
        self.fill(managed.tensor)
        managed.deleter = ctypes.cast(release, pointer)
        alive[ctypes.addressof(managed)] = managed, self
        return ctypes.addressof(managed)

@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
def view(tensor, out):
    tensor.fill(out[0])
    return 0
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(pointer))
def export(tensor, out):
    out[0] = tensor.managed()
    return 0
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(pointer))
def current(kind, index, out):
    Tensor.asked += 1
    out[0] = Tensor.stream
    return 0
table = Table(major=1, minor=3, from_object=ctypes.cast(export, pointer))
table.view_object, table.current_stream = (ctypes.cast(f, pointer) for f in (view, current))
api = new_capsule(ctypes.addressof(table), b"dlpack_exchange_api", None)
Tensor.__dlpack_c_exchange_api__ = api

def count(name):
    return cu.fake_cuda_count(name.encode())
def on(stream):
    Tensor.stream = stream
def ways(call):  # how often each of WAYS was gone in it
    before = [count(name) for name in WAYS]
    call()
    return [count(name) - had for name, had in zip(WAYS, before)]
WAYS = "cuLaunchKernel", "cuGraphLaunch", "cuGraphExecKernelNodeSetParams_v2", "cuGraphCreate"
def product(k=4096, **options):  # which borrows memory, the more the longer
    x, y, z = Tensor(16, k), Tensor(k, 16), Tensor(16, 16)
    aicf.op_call("gemm", [x, y], [z], **options)
def negated(**options):
    x, y = Tensor(64), Tensor(64)
    return aicf.op_call("neg", [x], [y], **options)
def twice():  # the first call opens the device
    negated()
    before = {name: count(name) for name in ("cuEventRecord", "cuStreamWaitEvent")}
    negated(sync="none")
    return [count(name) - had for name, had in before.items()]
"""
)


WARM = """
import aicf
from aicf import _core
g = aicf.Graph("calls")
g.output("negated", -g.param("x", (64,)))
g.output("number", -g.param("s", ()))
g.output("long", -g.param("l", (1 << 23,)))
g.output("sum", aicf.sum(g.param("r", (200_000,))))
for k in (4096, 8192, 12288, 16384, 20480):
    g.output(f"y{k}", g.param(f"a{k}", (16, k)) @ g.param(f"b{k}", (k, 16)))
_core.cuda_cubins(_core.cuda_programs(g._core, [], 132), "sm_90a")
"""


@pytest.fixture(scope="module")
def warm(driver):
    """The kernels of the calls in the cache, compiled without the fake driver."""
    done = run(WARM, driver)
    assert done.returncode == 0, done.stderr
    return driver


@pytest.mark.parametrize(
    "commands",
    [
        # A framework's own stream needs no events, nor does the call keep its tensors.
        "on(c); assert twice() == [0, 0]; assert Tensor.exported == 0",
        "assert twice() == [0, 0]; assert Tensor.exported == 0",
        """
on(c)
for shape in ((), (0, 3)):
    x, y = Tensor(*shape), Tensor(*shape)
    before = count("cuEventRecord")
    aicf.op_call("neg", [x], [y], sync="none")
    assert Tensor.exported == 0 and count("cuEventRecord") == before
""",
        # A framework is asked for its stream once a call, however many tensors of it there are.
        """
for stream in (None, c):
    on(stream)
    x, y = Tensor(64), Tensor(64)
    for turn in range(2):
        before = Tensor.asked, count("cuLaunchKernel")
        aicf.op_call("neg", [x], [y], sync="none")
        assert (Tensor.asked, count("cuLaunchKernel")) == (before[0] + 1, before[1] + 1)
""",
        # Borrowed memory goes from stream to stream, and grows; a stream may be destroyed.
        "[(on(s), product(k, sync='none')) for k in (4096, 8192) for s in (None, c, b, None, c)]",
        """
for turn in range(5):
    s = made("cuStreamCreate", turn % 2)
    on(s)
    product(4096 * (turn + 1), sync="none")
    assert cu.cuStreamSynchronize(s) == cu.cuStreamDestroy_v2(s) == 0
""",
        # A stream that is given waits for the framework's current one.
        "on(a); negated(stream=c.value); assert Tensor.exported == 2",
        "on(c); e = negated(sync='event'); product(sync='event'); negated(stream=c.value)",
        # Captured calls wait for nothing and have memory of their own.
        """
on(c)
for k in (4096, 8192):
    product(k)
made_before = {k: (Tensor(16, k), Tensor(k, 16), Tensor(16, 16)) for k in (4096, 8192)}
before = count("cuStreamWaitEvent"), count("cuEventRecord"), cu.fake_cuda_held()
cu.fake_cuda_capture(c, ctypes.c_ulonglong(7))
for k in (4096, 8192, 4096):
    x, y, z = made_before[k]
    aicf.op_call("gemm", [x, y], [z], sync="none")
    for sync in ("full", "event"):
        try:
            aicf.op_call("gemm", [x, y], [z], sync=sync)
            raise SystemExit("not refused")
        except aicf.Unsupported as error:
            assert "captured" in str(error)
assert before[:2] == (count("cuStreamWaitEvent"), count("cuEventRecord"))
assert cu.fake_cuda_held() == before[2] + 3  # both workspaces, and counters
cu.fake_cuda_capture(c, ctypes.c_ulonglong(0))
product()
""",
        # The first call of all may be a captured one, which opens the device and loads the kernel.
        """
on(c)
x, y, a, b, z = Tensor(64), Tensor(64), Tensor(16, 4096), Tensor(4096, 16), Tensor(16, 16)
cu.fake_cuda_capture(c, ctypes.c_ulonglong(7))
aicf.op_call("neg", [x], [y], sync="none")
aicf.op_call("gemm", [a, b], [z], sync="none")
cu.fake_cuda_capture(c, ctypes.c_ulonglong(0))
""",
        # What marks a call is there before it is launched.
        """
negated()
x, y = Tensor(64), Tensor(64)
before = count("cuLaunchKernel")
cu.fake_cuda_arm(ctypes.c_long(1), 0)
try:
    aicf.op_call("neg", [x], [y], sync="event")
    raise SystemExit("nothing has failed")
except aicf.OutOfMemory:
    assert cu.fake_cuda_disarm() == 1 and count("cuLaunchKernel") == before
aicf.op_call("neg", [x], [y], sync="event").wait()
""",
    ],
)
def test_calls_run_on_their_callers_stream(warm, commands):
    done = run(CALLS + commands.replace("; ", "\n"), warm, warm)
    assert done.returncode == 0, done.stderr


HELD = """
import gc
on(c)
class Foreign:  # of a framework that does not tell its stream
    def __init__(self, *shape):
        self.tensor = Tensor(*shape)
    def __dlpack_device__(self):
        return 2, 0
    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)
for i in range(100):
    aicf.op_call("neg", [Foreign(64)], [Foreign(64)], sync="none")
    gc.collect()
    most = 2 * (i % 64 + 1) % 128
    assert len(alive) == most, (i, len(alive))
aicf.op_call("neg", [Foreign(64)], [Foreign(64)])
gc.collect()
assert not alive
print("done")
"""


LAST = """
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
on(c)
calls = 0
class Last(Tensor):  # whoever lets it go calls again
    def __del__(self):
        global calls
        super().__del__()
        if calls < 70:
            calls += 1
            negated()
for i in range(70):
    x, y = Last(64), Last(64)
    aicf.op_call("neg", [x], [y], stream=a.value, sync="none")
    del x, y
negated(sync="event").wait()
assert calls == 70
print("done")
"""


@pytest.mark.parametrize("script", [HELD, LAST])
def test_operands_of_unknown_frameworks_are_held(warm, script):
    """Until the call is done, for nothing else says when they may be given back."""
    done = run(CALLS + script, warm, warm)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# Calls of one kind: the first seven in a row on a stream by launches, others by a graph for it.
REPEATED = """
def neg(x, y, sync="none", **options):
    return aicf.op_call("neg", [x], [y], sync=sync, **options)
def pointers(stream):  # of what the last kernel on it was given
    block = cu.fake_cuda_last_block(stream or pointer(1))
    def read(kind, at):
        return kind.from_address(block + at).value
    tensors = read(ctypes.c_uint16, 4) + read(ctypes.c_uint16, 6)
    return [read(ctypes.c_uint64, read(ctypes.c_uint32, 32 + 4 * i)) for i in range(tensors)]
def workspace(stream):
    return ctypes.c_uint64.from_address(cu.fake_cuda_last_block(stream) + 16).value
def called(x, y, times=1, **options):  # the ways it went, with what it was given looked at
    def call():
        for turn in range(times):
            neg(x, y, **options)
            assert pointers(Tensor.stream) == [x.memory.value, y.memory.value]
    return ways(call)
def capture(stream, number):
    cu.fake_cuda_capture(stream, ctypes.c_ulonglong(number))
cu.fake_cuda_last_block.restype = pointer
on(c)
x, y, z = Tensor(64), Tensor(64), Tensor(64)
cu.cuStreamSynchronize(c)  # for all streams
{commands}
for stream in (a, b, c, Tensor.stream):
    capture(stream, 0)
    wait(stream)
assert cu.fake_cuda_crossings() == 0
"""


@pytest.mark.parametrize(
    "commands",
    [
        # Its parameters are set where they are others.
        """
for often, stream in ((8, c), (16, a), (32, None)):  # twice as many where another one had it
    on(stream)
    assert called(x, y, often - 1) == [often - 1, 0, 0, 0]
    assert called(x, y, 5) == [0, 5, 0, 1]
    assert called(x, z) == [0, 1, 1, 0]
    assert called(x, y) == [0, 1, 1, 0]
    assert called(x, y, 3) == [0, 3, 0, 0]
    assert called(z, y) == [0, 1, 1, 0]
    neg(z, y, "event").wait()
    assert called(x, y, 2, sync="full") == [0, 2, 1, 0]
on(pointer(2))  # each thread has its own
assert called(x, y, 10) == [10, 0, 0, 0]
""",
        # Streams in turn: none waits for another one's launches.
        """
for turn in range(20):
    for stream in (c, b):
        on(stream)
        assert called(x, y) == [1, 0, 0, 0]
on(c)
assert called(x, y, 9) == [7, 2, 0, 1]
for turn in range(20):
    on(b)
    assert called(x, z) == [1, 0, 0, 0]
    on(c)
    assert called(x, y) == [0, 1, 1, 0]
on(b)  # for good
held = cu.fake_cuda_held()
assert called(x, y, 17) == [15, 2, 0, 1]
assert cu.fake_cuda_held() == held
on(c)
assert called(x, y, 7) == [7, 0, 0, 0]
on(b)
assert called(x, y) == [0, 1, 0, 0]
""",
        # A capture records the kernel and no graph, and what it was given is none of the graph's.
        """
called(x, y, 5)
capture(c, 7)
assert called(x, z, 5) == [5, 0, 0, 0]
capture(c, 0)
assert called(x, y, 2) == [2, 0, 0, 0]
assert called(x, y, 2) == [0, 2, 0, 1]
capture(c, 8)
assert called(x, z, 5) == [5, 0, 0, 0]
capture(c, 0)
assert called(x, y, 2) == [0, 2, 1, 0]
""",
        # While another stream is captured a graph is made, and one given back.
        """
capture(a, 7)
assert called(x, y, 9) == [7, 2, 0, 1]
on(b)
assert called(x, y, 17) == [15, 2, 0, 1]
""",
        # Scratch memory that is renewed is what its next launch is given.
        """
x, y = Tensor(200_000), Tensor()
def borrowed():
    aicf.op_call("reduce_sum", [x], [y], {"axes": [0]}, sync="none")
    return workspace(c)
first = borrowed()
assert first and ways(lambda: [borrowed() for turn in range(10)])[0] == 6
for k in (4096, 8192, 12288):
    product(k, sync="none")
    more = workspace(c)
    assert more != first
    assert ways(borrowed)[:2] == [0, 1] and workspace(c) == more
    first = more
""",
        # What takes the device longer than the host takes for a launch has none.
        """
x, y = Tensor(1 << 23), Tensor(1 << 23)
assert ways(lambda: [neg(x, y) for turn in range(12)]) == [12, 0, 0, 0]
""",
        # A graph goes with its call, of which so many are known.
        """
tensors = [(Tensor(n), Tensor(n)) for n in range(64, 134)]
held = cu.fake_cuda_held()
for turn in range(2):
    for x, y in tensors:
        assert called(x, y, 9) == [7, 2, 0, 1]
        assert cu.fake_cuda_held() <= held + 2 * 64 + 10
""",
        # Without memory for one calls go on as before, and twice as many come before the next.
        """
for asked in (1, 2, 3, 4):
    x, y = Tensor(64 + asked), Tensor(64 + asked)
    called(x, y, 7)
    held = cu.fake_cuda_held()
    cu.fake_cuda_arm(ctypes.c_long(asked), 0)
    assert called(x, y)[:2] == [1, 0]
    assert cu.fake_cuda_disarm() == asked and cu.fake_cuda_held() == held
    assert called(x, y, 15)[:2] == [15, 0] and called(x, y, 2) == [0, 2, 0, 1]
""",
        # Streams that take turns in short runs do not make one each time.
        """
made = [called(x, y, 8)[3] for turn in range(40) if on((a, b)[turn % 2]) is None]
assert sum(made) == 1, made
""",
        # Threads take turns.
        """
from concurrent.futures import ThreadPoolExecutor
def many(stream):
    for turn in range(200):
        neg(x, y if turn % 3 else z, stream=stream.value)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(many, (c, b, c, a)))
""",
    ],
)
def test_calls_that_come_again(warm, commands):
    done = run(CALLS + REPEATED.format(commands=commands), warm, warm)
    assert done.returncode == 0, done.stderr
