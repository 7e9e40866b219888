"""The whole CUDA backend on a driver without a GPU, which checks every pointer, node and edge and
can fail any call."""

import os
import re
import shutil
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
WHEEL = Path("wheels", "nvidia", "cu13", "lib")
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


def build_driver(folder):
    emulate.build_driver(folder)
    emulate.build_library(folder / WHEEL / "libcupti.so.13", "fake_cuda/fake_cupti.cpp")
    # NVRTC looks into the driver while it compiles: all is compiled before the fake one is there.
    subprocess.run(
        [sys.executable, "-m", "aicf", "cache", "warm", "--arch", "sm_90a"],
        env={**os.environ, "AICF_CACHE_DIR": str(folder / "cache")},
        check=True,
    )


@pytest.fixture(scope="module")
def driver(built_once, tmp_path_factory):
    """A folder with the fake driver as libcuda.so.1, a fake CUPTI where a wheel would have it, and
    a kernel cache to share."""
    if not hasattr(_core, "cuda_info"):
        pytest.skip("this build has no CUDA backend")
    if not _core.cuda_info()["nvrtc"]:
        pytest.skip("no NVRTC: pip install nvidia-cuda-nvrtc")
    if emulate.missing():
        pytest.skip(emulate.missing())
    folder = tmp_path_factory.mktemp("fake_cuda")
    return shutil.copytree(built_once("fake_cuda", build_driver), folder, dirs_exist_ok=True)


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
elif {tail!r} == "large":
    g.output("z", aicf.cumsum(aicf.softmax(g.input("w", (8192, 512))), 1))
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
        ("large", 9, 8, 5 * (1 + 8), 2 * (1 + 8)),  # two that take longer than the six
        ("fork", 9, 8, 5 * (1 + 8), 0),
        ("", 8, 6, 0, 0),
    ],
)
def test_the_edges_and_priorities_of_a_graph(driver, tail, major, launches, early, urgent):
    """In a row each kernel gets ready early; beside others those on the way that takes longest
    come first."""
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
for others in ("none", "beside", "behind"):
    for rows in {rows}:
        g = aicf.Graph("room")
        y = aicf.softmax(aicf.softmax(g.input("x", (rows, 2048))) * 2.0)
        g.output("y", y)
        if others == "beside":
            g.output("z", aicf.cumsum(g.input("w", (512, 512)), 0))
        elif others == "behind":
            g.output("z", aicf.cumsum(y, 0))
            g.output("v", aicf.softmax(y, 0))
        if {compiles}:
            _core.cuda_cubins(_core.cuda_programs(g._core, _core.pass_names()), "sm_90a")
            continue
        before = early()
        step = g.compile(device="cuda")
        print(others, early() - before, *(size[0] for size in step._launch_sizes()))
"""
EARLY = """
import ctypes
early = ctypes.CDLL("libcuda.so.1").fake_cuda_early
"""


CROWD = """
import aicf
from aicf import _core
for rows, width in ((16, 512), (1030, 256), (1024, 1024)):
    g = aicf.Graph("crowd")
    y = g.input("x", (rows, width))
    for i in range(2):
        y = y @ g.param(f"w{{i}}", (width, width))
    g.output("y", y)
    if {compiles}:
        _core.cuda_cubins(_core.cuda_programs(g._core, _core.pass_names()), "sm_90a")
        continue
    before = early()
    step = g.compile(device="cuda")
    print(rows, width, early() > before, *(size[0] > 132 for size in step._launch_sizes()))
"""


def test_products_of_more_blocks_than_processors_wait(driver):
    """Of long ones: their blocks would lie where those of the one before end first."""
    subprocess.run(
        [sys.executable, "-c", CROWD.format(compiles=True)],
        env={**os.environ, "AICF_CACHE_DIR": str(driver / "cache")},
        check=True,
    )
    out, _ = run(driver, EARLY + CROWD.format(compiles=False), FAKE_CUDA_MAJOR=9)
    assert out.splitlines() == [
        "16 512 True False False",
        "1030 256 True True True",
        "1024 1024 False True True",
    ]


def test_the_room_of_a_kernel_that_gets_ready(driver):
    """Where nothing runs beside any number of blocks, those of half the processors elsewhere."""
    rows = [33, 34, 67]
    subprocess.run(
        [sys.executable, "-c", ROOM.format(rows=rows, compiles=True)],
        env={**os.environ, "AICF_CACHE_DIR": str(driver / "cache")},
        check=True,
    )
    out, _ = run(driver, EARLY + ROOM.format(rows=rows, compiles=False))
    found = set()
    for line in out.splitlines():
        others, early, *blocks = line.split()
        both = int(blocks[0]) + int(blocks[1])
        assert (int(early) > 0) == (others != "beside" or both <= 66), line
        found.add((others, both))
    kinds = ("none", "beside", "behind")
    assert {(others, both) for others in kinds for both in (66, 134)} <= found


WEIGHTS = """
import numpy as np
import aicf
from aicf import _core
g = aicf.Graph("net")
h = g.input("x", (128, 512))
for i, width in enumerate((512, 256, 10)):
    h = g.dense(str(i), aicf.relu(h) if i else h, width)
loss = aicf.cross_entropy(h, g.input("t", (128,), "int64"))
g.minimize(loss, aicf.optim.Adam(lr=1e-3))
if {compiles}:
    _core.cuda_cubins(_core.cuda_programs(g._core, _core.pass_names()), "sm_90a")
else:
    before = early()
    step = g.compile(device="cuda")
    print(len(step.trace), early() - before)
    groups = ["members" in op for op in step.plan.ops]
    print(*(late(i, group) for i, group in enumerate(groups)), sep=", ")
    spare = g.compile(device="cuda")
    first = next(i for i in range(1000) if not block(i))
    weight = spare.params["1.W"].__dlpack__(max_version=(1, 0), copy=True)
    step.bind(**{{"1.W": CapsuleTensor(weight)}})
    step.replay()
    changed = [op for op in (1, 3, 4) for times in range(1 + 12)]
    print(*(late(first + i, groups[op]) for i, op in enumerate(changed)), sep=", ")
    assert not block(first + len(changed))
"""
LATE = """
from tensors import CapsuleTensor
driver = ctypes.CDLL("libcuda.so.1")
def block(i):
    driver.fake_cuda_block.restype = ctypes.c_void_p
    return driver.fake_cuda_block(ctypes.c_size_t(i))
def word(at):
    return ctypes.c_uint32.from_address(at).value
def late(i, group):
    "What the i-th block that a node was given says, or each of its members' blocks."
    whole = block(i)
    at, end = whole + word(whole + 12), whole + word(whole)
    if not group:
        return [word(at + 8)]
    found = []
    while at < end:
        found.append(word(at + word(at + 12) + 8))
        at += word(at)
    return found
"""


def test_what_is_read_early_is_not_written_before(driver):
    """Products of a net read weights while the kernel before them runs, but for the first, whose
    weights the last one of the step before writes; gradients what was made before that kernel."""
    subprocess.run(
        [sys.executable, "-c", WEIGHTS.format(compiles=True)],
        env={**os.environ, "AICF_CACHE_DIR": str(driver / "cache")},
        check=True,
    )
    out, _ = run(driver, EARLY + LATE + WEIGHTS.format(compiles=False))
    edges, blocks, again = out.splitlines()
    assert edges.split() == ["5", str(4 + 5 * 12 - 1)]  # in the graphs of 1 and of 12 times
    # Bits of A, B and what else is read: x W and its bias, h W, h of a tail, dh W, dh^T x.
    said = ["[6]", "[1]", "[0]", "[1, 0]", "[0, 0, 0, 0, 1, 0]"]
    assert blocks == ", ".join(said)
    assert again == ", ".join(said[op] for op in (1, 3, 4) for times in range(1 + 12))


NEIGHBOURS = """
import tempfile
import aicf
from aicf import _core
steps = []
for seed in range(2):
    g = aicf.Graph("net")
    h = g.input("x", (8, 64))
    for i in range(3):
        h = g.dense(str(i), h, 64)
    g.minimize(aicf.mean(h * h), aicf.optim.Adam())
    if {compiles}:
        _core.cuda_cubins(_core.cuda_programs(g._core, _core.pass_names()), "sm_90a")
    else:
        steps.append(g.compile(device="cuda", seed=seed))
if steps:
    with tempfile.TemporaryDirectory() as folder:
        steps[0].save(folder + "/step")
        steps[1].load(folder + "/step")
    for name, x in steps[0].params.items():
        assert (x.numpy() == steps[1].params[name].numpy()).all(), name
"""


def test_no_copy_goes_beyond_an_allocation(driver):
    """Small ones to neighbours are joined, but memory of others may lie right behind."""
    subprocess.run(
        [sys.executable, "-c", NEIGHBOURS.format(compiles=True)],
        env={**os.environ, "AICF_CACHE_DIR": str(driver / "cache")},
        check=True,
    )
    run(driver, NEIGHBOURS.format(compiles=False), FAKE_CUDA_NEIGHBOURS=1 << 30)


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

# Operands, whose maps are of themselves or, of float32, of copies.
KINDS = {"fp32": "bfloat16", "tf32": "float32", "bf16": "float32", "fp32x": "float32"}

def product(math):
    g = aicf.Graph("maps")
    W = g.param("W", (256, 2048), KINDS[math])
    g.output("y", aicf.matmul(g.input("x", (2048, 256), KINDS[math]), W))
    return g

def chosen(math):  # in tf32 one that copies B alone: A's map is of itself
    of = _core.cuda_candidates(product(math)._core, _core.pass_names(), math=math)
    return {key: next((x for x in names if "_right" in x), names[0]) for key, names in of.items()}

def compile_all():
    for math in KINDS:
        programs = _core.cuda_programs(
            product(math)._core, _core.pass_names(), math=math, candidates=chosen(math)
        )
        assert "gemm_wgmma<" in programs[0] or (math == "fp32x" and "gemm_limbs<" in programs[0])
        _core.cuda_cubins(programs, "sm_90a")
"""


def test_tensor_maps(driver, tmp_path):
    """They lie where a block's tail is aligned, of live memory, also after a bind and in a step
    from a file; a failure to encode one is a typed error."""
    environment = {**os.environ, "AICF_CACHE_DIR": str(driver / "cache")}
    subprocess.run([sys.executable, "-c", MAPS + "\ncompile_all()\n"], env=environment, check=True)
    use = f"""
from tensors import CapsuleTensor

def use(math):
    step = product(math).compile(device="cuda", math=math, candidates=chosen(math))
    assert all("wgmma" in launch.kernel for launch in step.trace), step.trace
    step.replay(2)
    step.run()
    spare = product(math).compile(device="cuda", math=math, candidates=chosen(math))
    weight = spare.params["W"].__dlpack__(max_version=(1, 0), copy=True)
    del spare
    step.bind(W=CapsuleTensor(weight))
    step.replay()
    step.outputs["y"].numpy()
    step.export({str(tmp_path / "step.aicf")!r})
    aicf.load_step({str(tmp_path / "step.aicf")!r}).replay()

for math in KINDS:
    try:
        use(math)
        print("done")
    except aicf.Error as error:
        print(type(error).__name__, error)
"""
    out, counts = run(driver, MAPS + use)
    assert out.split() == ["done"] * 4, out
    assert_clean(counts)
    out, counts = run(driver, MAPS + use, FAKE_CUDA_CALL="cuTensorMapEncodeTiled")
    found = [line.split()[0] for line in out.splitlines()]
    assert found == ["OutOfMemory", "done", "done", "done"], out
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
