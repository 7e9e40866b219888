"""The whole CUDA backend on a driver without a GPU, which checks every pointer, node and edge and
can fail any call."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aicf
import emulate
import pytest
from aicf import _core
from conftest import FRESH

HERE = Path(__file__).parent
ILLEGAL_ADDRESS = 700

SCRIPT = """
import sys
import numpy as np
import aicf
from aicf import verify
from tensors import CapsuleTensor

name, case = next(iter(verify.CASES.items()))
x = np.zeros((case.batch, case.inputs), np.float32)
t = np.zeros((case.batch, case.outputs), np.float32)

def use():
    step = verify.build(name, case).compile(device="cuda")
    step(x=x, t=t)
    step.replay(3)
    step.run(x=x, t=t)
    step._profile(2)
    planned = [(op["op"], op["kernel"]) for op in step.plan.ops]
    assert [tuple(launch) for launch in step.trace] == planned
    step.reset()
    step.capture()
    step.replay(stream=1)
    step.synchronize()
    step.params["0.W"].numpy()
    same = verify.build(name, case).compile(device="cuda", share=step)
    spare = verify.build(name, case).compile(device="cuda")
    weight = spare.params["0.W"].__dlpack__(max_version=(1, 0), copy=True)
    del spare
    step.bind(**{"0.W": CapsuleTensor(weight)})  # patches both, and outlives its producer
    same(x=x, t=t)
    step.replay()
    loss = step.outputs["loss"]
    assert loss.__dlpack_device__() == (2, 0)
    loss.__dlpack__(stream=2, max_version=(1, 0))

for attempt in range(2):
    try:
        use()
        print("done")
    except aicf.Error as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with the fake driver as libcuda.so.1, a fake CUPTI where a wheel would have it, and
    a kernel cache to share."""
    if not hasattr(_core, "cuda_info"):
        pytest.skip("this build has no CUDA backend")
    if not _core.cuda_info()["nvrtc"]:
        pytest.skip("no NVRTC: pip install nvidia-cuda-nvrtc")
    if emulate.missing():
        pytest.skip(emulate.missing())
    folder = tmp_path_factory.mktemp("fake_cuda")
    wheel = folder / "wheels" / "nvidia" / "cu13" / "lib"
    wheel.mkdir(parents=True)
    emulate.build_driver(folder)
    emulate.build_library(wheel / "libcupti.so.13", "fake_cuda/fake_cupti.cpp")
    # NVRTC looks into the driver while it compiles: all is compiled before the fake one is there.
    subprocess.run(
        [sys.executable, "-m", "aicf", "cache", "warm", "--arch", "sm_90a"],
        env={**os.environ, "AICF_CACHE_DIR": str(folder / "cache")},
        check=True,
    )
    return folder


def run(driver, script=SCRIPT, **environment):
    """The script's output and the driver's report, in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(driver / "wheels"), str(HERE), os.environ.get("PYTHONPATH")])
            ),
            "LD_LIBRARY_PATH": str(driver),
            "AICF_CACHE_DIR": str(driver / "cache"),
            "FAKE_CUDA_REPORT": "1",
            **{key: str(value) for key, value in environment.items()},
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    report = [line for line in result.stderr.splitlines() if line.startswith("fake driver: calls")]
    words = report[-1].split()[2:] if report else []
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    told = re.search(r"subscribed (?P<subscribed>\d+) enabled (?P<enabled>\d+) "
                     r"of (?P<enables>\d+)", result.stderr)  # fmt: skip
    counts["told"] = {key: int(text) for key, text in told.groupdict().items()} if told else {}
    return result.stdout, counts


def assert_clean(counts):
    left = {
        key: counts[key] for key in ("device", "events", "streams", "graphs", "execs", "contexts")
    }
    assert not any(left.values()), f"never given back: {left}"


def assert_one_failure(out, k):
    """Call k spoils no more than the turn it belongs to."""
    lines = out.splitlines()
    failed = [line for line in lines if line != "done"]
    assert len(lines) == 2 and len(failed) <= 1, f"call {k}: {out}"
    assert all(line.startswith("OutOfMemory") for line in failed), f"call {k}: {out}"


def test_a_step(driver):
    out, counts = run(driver)
    assert out.split() == ["done", "done"]
    assert_clean(counts)


ORDER = """
import sys
import aicf
from aicf import _core
g = aicf.Graph("order")
y = g.input("x", (512, 512))
for i in range(3):
    y = aicf.softmax(aicf.cumsum(y, 0))
g.output("y", y)
if {tail!r} == "beside":
    g.output("z", aicf.cumsum(aicf.softmax(g.input("w", (512, 512))), 0))
elif {tail!r} == "fork":
    g.output("z", aicf.cumsum(y, 1))
    g.output("w", aicf.softmax(y, 0))
if {arch!r}:
    programs = _core.cuda_programs(g._core, _core.pass_names(), 132, {arch!r}, "fp32")
    _core.cuda_cubins(programs, {arch!r})
else:
    step = g.compile(device="cuda")
    step.replay()
    print(len(step.trace))
"""


@pytest.mark.parametrize(
    ("tail", "major", "launches", "early", "urgent"),
    [
        ("", 9, 6, 6 - 1 + 6 * 10 - 1, 0),  # in the graphs of 1 and of 10 times
        ("beside", 9, 8, 6 * (1 + 8), 6 * (1 + 8)),
        ("fork", 9, 8, 5 * (1 + 8), 0),
        ("", 8, 6, 0, 0),
    ],
)
def test_the_edges_and_priorities_of_a_graph(driver, tail, major, launches, early, urgent):
    """In a row each kernel gets ready early; beside others those on the longest way come first."""
    subprocess.run(
        [sys.executable, "-c", ORDER.format(tail=tail, arch={9: "sm_90a", 8: "sm_80"}[major])],
        env={**os.environ, "AICF_CACHE_DIR": str(driver / "cache")},
        check=True,
    )
    out, counts = run(driver, ORDER.format(tail=tail, arch=None), FAKE_CUDA_MAJOR=major)
    assert (int(out), counts["early"], counts["urgent"]) == (launches, early, urgent)


ROOM = """
import aicf
from aicf import _core
for beside in (False, True):
    for rows in {rows}:
        g = aicf.Graph("room")
        y = aicf.softmax(g.input("x", (rows, 2048)))
        g.output("y", aicf.softmax(y * 2.0))
        if beside:
            g.output("z", aicf.cumsum(g.input("w", (512, 512)), 0))
        if {compiles}:
            _core.cuda_cubins(_core.cuda_programs(g._core, _core.pass_names()), "sm_90a")
            continue
        before = early()
        step = g.compile(device="cuda")
        print(beside, early() - before, *(size[0] for size in step._launch_sizes()))
"""
EARLY = """
import ctypes
early = ctypes.CDLL("libcuda.so.1").fake_cuda_early
"""


def test_the_room_of_a_kernel_that_gets_ready(driver):
    """Blocks below, at and above the processors of a device, and half of them beside others."""
    rows = [33, 34, 65, 66, 67, 68]
    subprocess.run(
        [sys.executable, "-c", ROOM.format(rows=rows, compiles=True)],
        env={**os.environ, "AICF_CACHE_DIR": str(driver / "cache")},
        check=True,
    )
    out, _ = run(driver, EARLY + ROOM.format(rows=rows, compiles=False))
    found = set()
    for line in out.splitlines():
        beside, early, *blocks = line.split()
        both = int(blocks[0]) + int(blocks[1])
        room = 66 if beside == "True" else 132
        assert (int(early) > 0) == (both <= room), line
        found.add((beside, both - room))
    assert {("False", 0), ("True", 0)} <= found and {d > 0 for _, d in found} == {True, False}


def test_every_call_fails_once(driver):
    """A typed error or a result, no memory kept, and the next step succeeds."""
    total = run(driver)[1]["calls"]
    stride = max(1, total // 2 // 60)
    ks = [*range(1, 30), *range(30 + FRESH % stride, total // 2, stride)]
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda k: run(driver, FAKE_CUDA_FAIL=k), ks)
        for k, (out, counts) in zip(ks, results, strict=True):
            assert_one_failure(out, k)
            assert_clean(counts)


@pytest.mark.parametrize(
    "call",
    [
        "cuGraphLaunch",
        "cuGraphExecKernelNodeSetParams_v2",
        "cuGraphUpload",
        "cuStreamSynchronize",
    ],
)
def test_a_lost_device(driver, call):
    """The same typed error from every call after it, no crash, and a clean exit."""
    out, _ = run(driver, FAKE_CUDA_CALL=call, FAKE_CUDA_CODE=ILLEGAL_ADDRESS)
    lines = out.splitlines()
    assert len(lines) == 2 and all(line.startswith("DeviceLost") for line in lines), out
    assert call.removesuffix("_v2") in lines[0] and "new process" in lines[1]


STANDING = """
import aicf
from aicf import _core
g = aicf.Graph("rows")
table, at = g.state("table", (8, 4)), g.state("at", (6,), "int64")
g.output("y", aicf.embedding(at, table))
if {times} == 0:
    programs = _core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a", "fp32")
    _core.cuda_cubins(programs, "sm_90a")
else:
    step = g.compile(device="cuda", checks={checks!r})
    step.replay({times})
    step.synchronize()
"""


def test_indices_that_no_step_changes_are_looked_at_once(driver):
    """Once a piece of a replay, whose pieces double, however many launches that takes."""
    subprocess.run(
        [sys.executable, "-c", STANDING.format(checks="off", times=0)],
        env={**os.environ, "AICF_CACHE_DIR": str(driver / "cache")},
        check=True,
    )
    more = {}
    for checks in ("off", "indices"):
        few, many = (
            run(driver, STANDING.format(checks=checks, times=times))[1]["calls"]
            for times in (32, 160)
        )
        more[checks] = many - few
    pieces = len([1, 2, 4, 8, 16, 32, 64, 33]) - len([1, 2, 4, 8, 16, 1])
    assert 0 < more["indices"] - more["off"] <= 3 * pieces, more  # wait, copy, wait


@pytest.mark.parametrize(
    ("fails", "function"),
    [
        ("same(x=x, t=t)", "cuGraphExecKernelNodeSetParams_v2"),
        ("step(x=x, t=t)", "cuLaunchKernelEx"),
    ],
)
def test_a_launch_that_fails_is_made_up_for(driver, fails, function):
    """One of its call, or a rebind before it: a replay after that runs on the new address, never on
    the old one."""
    script = (
        SCRIPT.replace(fails, f"once(lambda: {fails})")
        + """
assert failed == ["OutOfMemory"], failed
"""
    )
    script = (
        """
failed = []
def once(call):
    import aicf
    try:
        call()
    except aicf.Error as error:
        failed.append(type(error).__name__)
        call()
"""
        + script
    )
    out, _ = run(driver, script, FAKE_CUDA_CALL=function)
    assert out.split() == ["done", "done"]


def test_info(driver):
    """What a driver says reaches the command as it stands there."""
    script = """
from aicf import info
for fact in info.facts("0"):
    print(fact.name, fact.found, fact.where, fact.command, sep="|")
"""
    out, _ = run(driver, script, FAKE_CUDA_VERSION=13010)
    assert "\ndriver|for CUDA 13.1|" in out and "\ncuda:0|Fake GPU, sm_90a" in out
    assert f"\ncupti|13|{driver / 'wheels'}/" in out


MAPS = """
import aicf
from aicf import _core

KINDS = {"fp32": "bfloat16", "tf32": "float32"}  # of operands, and of copies in the workspace

def product(math):
    g = aicf.Graph("maps")
    W = g.param("W", (256, 2048), KINDS[math])
    g.output("y", aicf.matmul(g.input("x", (2048, 256), KINDS[math]), W))
    return g

def compile_all():
    for math in KINDS:
        programs = _core.cuda_programs(product(math)._core, _core.pass_names(), math=math)
        assert "gemm_wgmma<" in programs[0]
        _core.cuda_cubins(programs, "sm_90a")
"""


def test_tensor_maps(driver):
    """They lie where a block's tail is aligned, of live memory, also after a bind; a failure to
    encode one is a typed error."""
    environment = {**os.environ, "AICF_CACHE_DIR": str(driver / "cache")}
    subprocess.run([sys.executable, "-c", MAPS + "\ncompile_all()\n"], env=environment, check=True)
    use = """
from tensors import CapsuleTensor

def use(math):
    step = product(math).compile(device="cuda", math=math)
    assert all("wgmma" in launch.kernel for launch in step.trace), step.trace
    step.replay(2)
    step.run()
    spare = product(math).compile(device="cuda", math=math)
    weight = spare.params["W"].__dlpack__(max_version=(1, 0), copy=True)
    del spare
    step.bind(W=CapsuleTensor(weight))
    step.replay()
    step.outputs["y"].numpy()

for math in ("fp32", "tf32", "tf32"):
    try:
        use(math)
        print("done")
    except aicf.Error as error:
        print(type(error).__name__, error)
"""
    out, counts = run(driver, MAPS + use)
    assert out.split() == ["done", "done", "done"], out
    assert_clean(counts)
    out, counts = run(driver, MAPS + use, FAKE_CUDA_CALL="cuTensorMapEncodeTiled")
    assert [line.split()[0] for line in out.splitlines()] == ["OutOfMemory", "done", "done"], out
    assert_clean(counts)


def test_a_failed_load_stays_with_its_owner(driver):
    """A kernel whose program failed to load for one thread is loaded again for another."""
    script = """
import threading
import aicf
from aicf import verify
def build(i):
    name = list(verify.CASES)[i]
    try:
        verify.build(name, verify.CASES[name]).compile(device="cuda").replay()
    except aicf.OutOfMemory:
        verify.build(name, verify.CASES[name]).compile(device="cuda").replay()
threads = [threading.Thread(target=build, args=(i % 2,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print("done")
"""
    assert run(driver, script, FAKE_CUDA_CALL="cuModuleLoadData")[0].split() == ["done"]


OP_CALL = """
import numpy as np
import aicf

g = aicf.Graph("negated")
g.output("y", -g.param("w", (8,)))

class Foreign:  # another framework's device tensor, of a capsule each time
    def __init__(self, param):
        self.param = param

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **options):
        return self.param.__dlpack__(max_version=(1, 0), copy=True)

def use():
    param = g.compile(device="cuda").params["w"]
    for options in ({}, {"sync": "none"}, {"stream": 1}, {"sync": "none", "stream": 2}):
        aicf.op_call("neg", [Foreign(param)], [Foreign(param)], **options)
    aicf.op_call("neg", [Foreign(param)], [Foreign(param)], sync="event").wait()
    for _ in range(70):
        aicf.op_call("neg", [Foreign(param)], [Foreign(param)], sync="none")
    try:
        aicf.op_call("neg", [np.zeros(8, np.float32)], [Foreign(param)])
    except aicf.DeviceUnavailable:
        pass

for attempt in range(2):
    try:
        use()
        print("done")
    except aicf.Error as error:
        print(type(error).__name__, error)
"""
WARM = """
import aicf
from aicf import _core

g = aicf.Graph("negated")
g.output("y", -g.param("w", (8,)))
_core.cuda_cubins(_core.cuda_programs(g._core, _core.pass_names()), "sm_90a")
"""


@pytest.fixture(scope="module")
def warm(driver):
    """The kernel of OP_CALL in the cache, compiled without the fake driver."""
    environment = {**os.environ, "AICF_CACHE_DIR": str(driver / "cache")}
    subprocess.run([sys.executable, "-c", WARM], env=environment, check=True)
    return driver


def test_op_call(warm):
    """Eager calls on tensors of the device, in every way to wait; all is given back at exit."""
    out, counts = run(warm, OP_CALL)
    assert out.split() == ["done", "done"]
    assert_clean(counts)


def test_op_call_when_calls_fail(warm):
    total = run(warm, OP_CALL)[1]["calls"]
    ks = range(1 + FRESH % 17, total // 2, max(1, total // 2 // 24))
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda k: run(warm, OP_CALL, FAKE_CUDA_FAIL=k), ks)
        for k, (out, counts) in zip(ks, results, strict=True):
            assert_one_failure(out, k)
            assert_clean(counts)


def test_out_of_memory_names_the_sizes(driver):
    out, counts = run(driver, FAKE_CUDA_LARGEST=64)
    assert "OutOfMemory" in out and "asked for" in out and "free" in out
    assert_clean(counts)


@pytest.mark.parametrize(
    "environment, text",
    [
        ({"FAKE_CUDA_VERSION": 12020}, "too old"),
        ({"FAKE_CUDA_DEVICES": 0}, "0 devices"),
        ({"FAKE_CUDA_INIT": 100}, "does not start"),
    ],
)
def test_no_usable_device(driver, environment, text):
    out, _ = run(driver, **environment)
    assert out.count("DeviceUnavailable") == 2 and text in out and "need" in out


def test_forked_child(driver):
    script = """
import os
from aicf import _core, verify, DeviceUnavailable
name, case = next(iter(verify.CASES.items()))
step = verify.build(name, case).compile(device="cuda")
child = os.fork()
if child == 0:
    try:
        verify.build(name, case).compile(device="cuda")
    except DeviceUnavailable as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
step.replay()
print("done")
"""
    assert run(driver, script)[0].split() == ["done"]


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
def together(driver):
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
NAMES = b"cuLaunchKernel", b"cuGraphLaunch", b"cuMemcpyHtoDAsync_v2"

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


INDICES = """
import numpy as np
import aicf
from tensors import CapsuleTensor

def built(name):
    with open({folder!r} + name) as file:
        return aicf.Graph.from_json(file.read())

held = built("numbers").compile(device="cuda")
held.state["good"], held.state["bad"] = np.array([0, 3, 1]), np.array([0, 3, 4])
def there(name):
    return CapsuleTensor(held.state[name].__dlpack__(max_version=(1, 0), copy=True))

step = built("rows").compile(device="cuda")

def refused(act):
    run = step.steps_run
    try:
        act()
    except aicf.BadValue as error:
        assert error.index == (2,) and error.number == 4 and step.steps_run == run
    else:
        raise AssertionError("it ran")

refused(lambda: step(i=np.array([0, 3, 4])))
refused(lambda: step(i=there("bad")))
step(i=there("good"))
step.replay(2)
refused(lambda: step.run(i=there("bad")))
step.bind(i=there("bad"))
refused(step.replay)
step.bind(i=there("good"))
step.replay(3)
assert step.steps_run == 6
built("rows").compile(device="cuda", checks="off")(i=there("bad"))
print("done")
"""


def test_indices_are_looked_at_before_a_launch(driver, tmp_path):
    """On the host or on the device, in the step's memory or the caller's."""
    numbers, rows = aicf.Graph("numbers"), aicf.Graph("rows")
    for name in ("good", "bad"):
        numbers.output(name, numbers.state(name, (3,), "int64"))
    taken = aicf.take(rows.param("w", (4, 2)), rows.input("i", (3,), "int64"))
    rows.minimize(aicf.sum(taken), aicf.optim.SGD(lr=0.1))
    for graph in (numbers, rows):
        (tmp_path / graph.name).write_text(graph.to_json())
        warm = [sys.executable, "-m", "aicf", "cache", "warm", str(tmp_path / graph.name)]
        cache = {**os.environ, "AICF_CACHE_DIR": str(driver / "cache")}
        subprocess.run(warm, env=cache, check=True)
    out, _ = run(driver, INDICES.format(folder=f"{tmp_path}/"))
    assert out.split() == ["done"]


FUNCTION = """
import aicf
import numpy as np
from aicf import _core

def double(x):
    return x * 2.0

if {warm}:
    g = aicf.Graph("double")
    g.output("result", double(g.input("x", (5,))))
    _core.cuda_cubins(_core.cuda_programs(g._core, _core.pass_names(), 132, "sm_90a"), "sm_90a")
else:
    fn = aicf.function(double, device="cuda")
    x = np.ones(5, np.float32)
    first, last = fn(x), fn(x)
    print(first.device, first.shape, first.dtype, first.__dlpack_device__(), first.copy().device)
    first.__dlpack__(stream=2, max_version=(1, 0))
    first.__dlpack__(stream=-1, max_version=(1, 0), copy=True)
    fn(last)  # by the memory of the device
    assert first.numpy().shape == np.asarray(last).shape == (5,)
    del fn
    print(len(first.tolist()))
"""


def test_results_of_functions_stay(driver):
    """Each is a copy on the device that outlives the next call and the function."""
    subprocess.run(
        [sys.executable, "-c", FUNCTION.format(warm=True)],
        env={**os.environ, "AICF_CACHE_DIR": str(driver / "cache")},
        check=True,
    )
    out, counts = run(driver, FUNCTION.format(warm=False))
    assert out.split("\n")[:2] == ["cuda:0 (5,) float32 (2, 0) cpu", "5"]
    assert_clean(counts)
