"""Steps of one process beside each other, on the driver without a GPU: what they share, what one
that fails leaves behind, where their memory lies."""

import os
import subprocess
import sys

import pytest
from test_cuda_fake import (
    HERE,
    assert_clean,
    driver,  # noqa: F401 (a fixture)
    run,
)

TOGETHER = """
import ctypes, sys, threading
import aicf
from aicf import _core, verify
from tensors import DLTensor, Foreign, Versioned

def product(m, n, k):
    g = aicf.Graph(f"product {m} {n} {k}")
    y = aicf.matmul(g.input("x", (m, k), "bfloat16"), g.param("W", (k, n), "bfloat16"))
    g.output("y", y)
    return g

LARGE, SMALL = (2048, 2048, 256), (8, 8, 32)
FEED, LAYOUTS = (300, 200), range(3, 22)  # more layouts than a machine keeps copies of

def base():
    g = aicf.Graph("base")
    g.output("y", -g.input("x", FEED))
    return g

def other(times):
    "A kernel chosen so many times, then another; the cache holds a program of both alone."
    g = aicf.Graph("other")
    for i in range(times):
        g.output(f"y{i}", -g.param(f"p{i}", (5, 3)))
    g.output("y", aicf.relu(g.param("p", (5, 4))))
    return g

def too_large():
    g = aicf.Graph("too large")
    g.output("z", g.param("p", (1 << 29, 1 << 28)) * 2.0)
    return g

def layout(i):
    g = aicf.Graph(f"layout {i}")
    g.output("y", g.input("x", (FEED[0], FEED[1] + i))[:, : FEED[1]])
    return g

def sums():
    "Reductions of which each has counters, in one launch."
    g = aicf.Graph("sums")
    for i in range(3):
        g.output(f"y{i}", aicf.sum(g.input(f"x{i}", (40000 + i,))))
    return g

def long(count=1 << 22):
    "One kernel that takes a GPU some 8 us, or some 65."
    g = aicf.Graph("long")
    g.output("y", aicf.tanh(g.param("p", (count,))))
    return g

def columns(rows=1 << 16):
    "One kernel of few blocks, not as many on each processor, of 10 us or four times that."
    g = aicf.Graph("columns")
    g.output("y", aicf.sum(g.param("p", (rows, 128)), axis=0))
    return g

def norm():
    "One kernel of 28 us of which two blocks fill the shared memory of each processor."
    g = aicf.Graph("norm")
    g.output("y", aicf.layer_norm(g.param("p", (528, 28000)), 28000))
    return g

def split():
    "Two products, each split over its depth."
    g = aicf.Graph("split")
    for i in range(2):
        g.output(f"y{i}", aicf.matmul(g.param(f"a{i}", (64, 8192)), g.param(f"b{i}", (8192, 64))))
    return g

def small():
    return verify.build(*next(iter(verify.CASES.items())))

APART = [name for name in _core.pass_names() if name != "block"]

def compile_all():
    _core.cuda_cubins(_core.cuda_programs(small()._core, APART), "sm_90a")
    graphs = [product(*LARGE), product(*SMALL), base(), other(1), split()]
    graphs += [long(), long(1 << 25), columns(), columns(1 << 18), norm()]
    for passes in (_core.pass_names(), []):
        _core.cuda_cubins(_core.cuda_programs(sums()._core, passes), "sm_90a")
    for g in graphs + [layout(i) for i in LAYOUTS]:
        programs = _core.cuda_programs(g._core, [])
        _core.cuda_cubins(programs, "sm_90a")

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
held = []

def memory(array):
    "The address of a copy on the device, which is never given back before the end."
    held.append(array.__dlpack__(max_version=(1, 0), copy=True))
    return Versioned.from_address(pointer_of(held[-1], b"dltensor_versioned")).tensor.data

def on_device(address, shape, dtype="bfloat16", strides=None, offset=0):
    return Foreign(address, dtype, shape, strides, byte_offset=offset, device=(2, 0))

def told(call):
    try:
        call()
        print("done")
    except aicf.Error as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def together(driver):  # noqa: F811
    """Runs a script after TOGETHER, whose kernels are in the cache: compiling any other would end
    the process, as the fake driver is none that NVRTC can look into."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {"AICF_CACHE_DIR": str(driver / "cache"), "PYTHONPATH": path}
    subprocess.run(
        [sys.executable, "-c", TOGETHER + "\ncompile_all()\n"],
        env={**os.environ, **environment},
        check=True,
    )

    def call(script, **more):
        return run(driver, TOGETHER + script, PYTHONPATH=path, **more)

    return call


def test_orders_that_a_device_does_not_compute(together):
    """Those of another family, and those of tensor cores for products that get no tiles."""
    script = """
address = memory(product(*LARGE).compile(device="cuda").params["W"])
def call(m, n, k, order):
    shapes = (m, k), (k, n), (m, n)
    a, b, y = (on_device(address, s, offset=i << 18) for i, s in enumerate(shapes))
    told(lambda: aicf.op_call("gemm", [a, b], [y], {"order": order}))
for order in ("mma16.sm80(128)", "mma16.sm120(128)", "mma16.sm90(128)", "mma16(128)"):
    call(*SMALL, order)
call(128, 128, 256, "mma16.sm80(128)")
call(0, 8, 32, "mma16(128)")
call(*SMALL, "chain(256)")
"""
    lines = together(script)[0].splitlines()
    assert len(lines) == 7, lines
    for line, family in zip(lines, (".sm80", ".sm120", ".sm90"), strict=False):
        assert line.startswith("Unsupported gemm: order is") and f"mma16{family}(128)" in line
        assert "9.x computes mma16(c)" in line, line
    assert lines[3].startswith("Unsupported gemm: order is") and "8 x 8 x 32" in lines[3]
    assert lines[4].startswith("Unsupported") and lines[5:] == ["done", "done"], lines


def test_bind_knows_where_kernels_want_their_operands(together):
    """A tensor at an address that a kernel of some Step cannot read is refused before it is bound,
    and the Step goes on."""
    script = """
step = product(*LARGE).compile(device="cuda")
assert all("wgmma" in launch.kernel for launch in step.trace), step.trace
step.run()
address = memory(step.outputs["y"])  # larger than W
told(lambda: step.bind(W=on_device(address, (256, 2048), offset=2)))
step.replay()
told(lambda: step.bind(W=on_device(address, (256, 2048), offset=32)))
same = product(*LARGE).compile(device="cuda", share=step)
told(lambda: step.bind(W=on_device(address, (256, 2048), offset=8)))
told(lambda: same.bind(W=on_device(address, (256, 2048), offset=8)))
told(lambda: same.bind(x=on_device(address, (2048, 256), offset=8)))
step.replay()
same.replay()
small = product(*SMALL).compile(device="cuda")
told(lambda: small.bind(W=on_device(address, (32, 8), offset=2)))
small.replay()
"""
    lines = together(script)[0].splitlines()
    assert [line.split()[0] for line in lines] == [
        "Unsupported", "done", "Unsupported", "Unsupported", "Unsupported", "done"
    ], lines  # fmt: skip
    assert lines[0].startswith('Unsupported bind: "W" got memory that begins 2 bytes behind')
    assert "multiple of 16" in lines[0] and "wgmma" in lines[0] and "copy it" in lines[0]


def test_what_a_failed_compile_chose_is_forgotten(together):
    """The next compile of the machine loads its own kernels alone."""
    script = """
first = base().compile(device="cuda", passes=())
told(lambda: too_large().compile(device="cuda", passes=(), share=first, fresh="*"))
told(lambda: other(1).compile(device="cuda", passes=(), share=first, fresh="*").replay())
"""
    lines = together(script)[0].splitlines()
    assert [line.split()[0] for line in lines] == ["OutOfMemory", "done"], lines


def test_compiling_beside_a_running_step(together):
    """Steps that share a machine: one thread runs, with kernels for copies chosen as layouts come,
    while others compile."""
    script = """
first = base().compile(device="cuda", passes=())
room = product(*LARGE).compile(device="cuda", passes=())
room.run()
address = memory(room.outputs["y"])
ended, problems = threading.Event(), []

def running():
    try:
        while not ended.is_set():
            for i in LAYOUTS:
                first(x=on_device(address, FEED, "float32", strides=(FEED[1] + i, 1)))
    except BaseException as error:
        problems.append(error)

runner = threading.Thread(target=running)
runner.start()
try:
    other(3000).compile(device="cuda", passes=(), share=first, fresh="*", capture=False).run()
finally:
    ended.set()
    runner.join()
assert not problems, problems
print("done")
"""
    assert together(script)[0].split() == ["done"]


def test_a_shared_step_of_another_device(together):
    """It is told of by its own device, before what that device computes."""
    script = """
g = aicf.Graph("idle")
g.param("p", (3,))
base = g.compile(device="cuda", capture=False)
told(lambda: g.compile(device="cpu", share=base, tensor_cores="sm_90"))
told(lambda: g.compile(device="cuda", share=base, tensor_cores="sm_90"))
"""
    shared, other = together(script, FAKE_CUDA_MAJOR=8)[0].splitlines()
    assert "share= holds a step on cuda:0, this one is for cpu" in shared
    assert 'tensor_cores is "sm_90", the device has those of "sm_80"' in other


def test_members_with_counters(together):
    """Each member of a group has words of its own that are zero before and after a run."""
    script = """
step = sums().compile(device="cuda")
(launch,) = step.trace
print(launch.op, "counters" in str(step.plan))
"""
    assert together(script)[0].split() == ["group", "True"]


def test_split_products_are_branches(together):
    """Of a graph of one step and of one of many; each has scratch of its own."""
    script = """
step = split().compile(device="cuda", passes=())
first, second = step.plan.ops
print(ctypes.CDLL("libcuda.so.1").fake_cuda_roots())
print(first["scratch_bytes"] > 0, first["scratch"] != second["scratch"], second["waits"])
step.replay(40)
"""
    assert together(script)[0].splitlines() == ["4", "True True []"]


@pytest.mark.parametrize("passes", ["default", "apart"])
def test_many_steps_at_once(together, passes):
    """Slices come many at a time, and a launch runs many steps: a block that loops, or a graph.
    Inputs that are bound stay where they are."""
    script = (
        f'passes = {{"default": "default", "apart": APART}}["{passes}"]\n'
        + """
import numpy as np
count = ctypes.CDLL("libcuda.so.1").fake_cuda_count
NAMES = b"cuLaunchKernelEx", b"cuGraphLaunch", b"cuMemcpyHtoDAsync_v2"

def run_many(step, **feed):
    before = [count(name) for name in NAMES]
    step.run_many(**feed)
    kernels, graphs, copies = (count(name) - b for name, b in zip(NAMES, before))
    print(step.steps_run, kernels, graphs, copies)

step = small().compile(device="cuda", passes=passes)
x, t = np.zeros((2, 300, 64, 8), np.float32)
run_many(step, x=x, t=t)
run_many(step, t=t, x=x[:, ::-1])
address = memory(product(*LARGE).compile(device="cuda", capture=False).params["W"])
step.bind(t=on_device(address, (64, 8), "float32"))
run_many(step, x=x)
run_many(step, x=x, t=t)
watched = small().compile(device="cuda", passes=passes, capture=False)
run_many(watched, x=x[:9], t=t[:9])
"""
    )
    lines = [list(map(int, line.split())) for line in together(script)[0].splitlines()]
    *many, alone = lines
    assert [line[0] for line in many] == [300, 600, 900, 1200]
    for _, kernels, graphs, copies in many:
        assert 0 < kernels + graphs < 100 and 0 < copies < 200
    assert (many[0][1] > 0) == (passes == "default")  # a block takes any number of slices
    assert many[2][2] > 0  # a graph of slices of some inputs alone
    assert alone[0] == alone[3] == 9  # what lies side by side comes by one copy


def test_a_long_kernel_goes_by_itself(together):
    """So that it gets ready while the one before it runs; not one whose launch is all there is to
    wait for, one that reads before others are done, a longer one of few blocks or of blocks that
    fill a processor's shared memory, nor many steps at once."""
    script = """
count = ctypes.CDLL("libcuda.so.1").fake_cuda_count
NAMES = b"cuLaunchKernelEx", b"cuGraphLaunch"
ALONE = long, columns, lambda: long(1 << 25)
NOT = lambda: other(1), lambda: product(*LARGE), lambda: columns(1 << 18), norm
for make in (*ALONE, *NOT):
    step = make().compile(device="cuda", passes=[])
    for times in (1, 3, 200):
        before = [count(name) for name in NAMES]
        step.replay(times)
        print(*(count(name) - b for name, b in zip(NAMES, before)), end=" ")
    print(step.steps_run)
"""
    lines = [list(map(int, line.split())) for line in together(script)[0].splitlines()]
    for line in lines[:3]:
        assert line[:4] == [1, 0, 3, 0] and line[5] >= 8
    for line in lines[3:]:
        assert line[:5] == [0, 1, 0, 3, 0]
    assert [line[-1] for line in lines] == [204] * 7


def test_uploads_beside_a_step(together):
    """Each copy stands behind those that it would spoil, each of the host behind the device's; what
    several threads take goes whole, and a step meanwhile needs none of its memory."""
    script = """
import numpy as np
calls = {name: 0 for name in (b"cuMemAllocHost_v2", b"cuMemcpyHtoDAsync_v2")}
count = ctypes.CDLL("libcuda.so.1").fake_cuda_count
def since():
    made = {name: count(name) - before for name, before in calls.items()}
    calls.update((name, count(name)) for name in calls)
    return list(made.values())
rng = np.random.default_rng(3)
step = base().compile(device="cuda")
address = memory(product(*LARGE).compile(device="cuda", capture=False).params["W"])
step.bind(x=on_device(address, FEED, "float32"))
lies = np.ctypeslib.as_array((ctypes.c_float * (FEED[0] * FEED[1])).from_address(address))
since()
x = rng.random((64, *FEED), dtype=np.float32)
for one in x:
    step(x=one)
print(*since(), np.array_equal(lies, x[-1].ravel()))
for k in range(3):
    step.run_many(x=x[k:])
    step.run_many(x=x[k:, :, ::-1])
print(*since(), np.array_equal(lies, x[-1, :, ::-1].ravel()))
g = aicf.Graph("idle")
sizes = 32767, 32768, 1 << 20, (1 << 20) + 1, 2305501, 6000003
for size in sizes:
    g.param(f"p{size}", (size,))
idle = g.compile(device="cuda", capture=False)
values = {f"p{size}": rng.random(size, dtype=np.float32) for size in sizes}
for _ in range(2):
    idle.load_state_dict({**idle.state_dict(), **values})
print(all(np.array_equal(idle.params[k].numpy(), value) for k, value in values.items()))
"""
    calls, many, idle = together(script)[0].splitlines()
    assert calls == "1 64 True"  # pinned memory and copies to the device
    assert many.startswith("0 ") and many.endswith(" True") and int(many.split()[1]) < 300
    assert idle == "True"


UPLOADS = """
import numpy as np
x = np.ones((20, *FEED), np.float32)
def use():
    step = base().compile(device="cuda")
    for one in x:
        step(x=one)
    step.run_many(x=x)
    step.synchronize()
for turn in range(2):
    told(use)
"""


@pytest.mark.parametrize("call", ["cuStreamWaitEvent", "cuMemcpyDtoDAsync_v2"])
def test_a_device_that_is_lost_in_an_upload(together, call):
    """The error says by which call, be it one of those that prepare for uploads."""
    lines = together(UPLOADS, FAKE_CUDA_CALL=call, FAKE_CUDA_CODE=700)[0].splitlines()
    assert len(lines) == 2 and all(line.startswith("DeviceLost") for line in lines), lines
    assert call.removesuffix("_v2") in lines[0] and "new process" in lines[1]


@pytest.mark.parametrize("call", ["cuMemAllocHost_v2", "cuStreamCreate", "cuEventCreate"])
def test_memory_that_runs_out_for_uploads(together, call):
    """The next step has it."""
    out, counts = together(UPLOADS, FAKE_CUDA_CALL=call)
    first, second = out.splitlines()
    assert first.startswith("OutOfMemory") and second == "done"
    assert_clean(counts)


def test_what_begins_as_zero_is_not_uploaded(together):
    """An optimizer's moments, twice the params' bytes, are cleared where they lie."""
    script = """
uploaded = ctypes.CDLL("libcuda.so.1").fake_cuda_uploaded
g = aicf.Graph("idle")
for name, start in (("zero", 0.0), ("negative", -0.0), ("one", 1.0)):
    g.state(name, (1 << 18,), init=aicf.init.constant(start))
step = g.compile(device="cuda", capture=False)
print(uploaded() >> 20, {name: float(step.state[name].numpy()[-1]) for name in step.state})
"""
    assert together(script)[0].strip() == "2 {'zero': 0.0, 'negative': -0.0, 'one': 1.0}"


def test_eager_calls_keep_their_counters(together):
    """A call asks for no memory that a call before it has asked for."""
    script = """
step = sums().compile(device="cuda", passes=(), capture=False)
(first, *_) = step.plan.ops
address = memory(product(*LARGE).compile(device="cuda", capture=False).params["W"])
x, y = on_device(address, (40000,), "float32"), on_device(address, (), "float32", offset=1 << 19)
library = ctypes.CDLL("libcuda.so.1")
for _ in range(3):
    library.fake_cuda_arm(0, 0)
    aicf.op_call(first["op"], [x], [y], first["attrs"])
    print(library.fake_cuda_disarm() > 0, step.plan.regions["counters"] > 0)
"""
    assert together(script)[0].splitlines() == ["True True", "False True", "False True"]


def test_unaligned_memory_is_refused_before_code_is_compiled(together):
    """The kernels of this product are not in the cache: to compile them would end the process."""
    script = """
g = aicf.Graph("idle")
g.param("W", (512, 2048), "bfloat16")
base = g.compile(device="cuda", capture=False)
address = memory(product(2048, 2048, 1024).compile(device="cuda", capture=False).params["W"])
base.bind(W=on_device(address, (512, 2048), offset=2))
told(lambda: product(2048, 2048, 512).compile(device="cuda", share=base))
"""
    script = script.replace("product(2048, 2048, 1024)", "wide")
    script = "wide = aicf.Graph(); wide.param('W', (1024, 2048), 'bfloat16')\n" + script
    (said,) = together(script)[0].splitlines()
    assert 'Unsupported compile: shared "W" is bound to memory that begins 2 bytes behind' in said


def test_compile_does_not_wait_for_the_device(together):
    """Other Steps of its machine may be running: only their calls wait for them."""
    out, _ = together(
        "told(lambda: base().compile(device='cuda'))", FAKE_CUDA_CALL="cuStreamSynchronize"
    )
    assert out.split() == ["done"]
