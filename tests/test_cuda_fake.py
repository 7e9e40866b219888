"""The whole CUDA backend on a driver without a GPU, which checks every pointer, node and edge and
can fail any call."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

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


def header_folder():
    for folder in ("/usr/local/cuda/include", os.environ.get("CUDA_HOME", "") + "/include"):
        if (Path(folder) / "cuda.h").exists():
            return folder
    try:
        files = metadata.distribution("nvidia-cuda-runtime").files or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(f.locate().parent) for f in files if f.name == "cuda.h"), None)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with the fake driver as libcuda.so.1, and a kernel cache to share."""
    if not hasattr(_core, "cuda_info"):
        pytest.skip("this build has no CUDA backend")
    if not _core.cuda_info()["nvrtc"]:
        pytest.skip("no NVRTC: pip install nvidia-cuda-nvrtc")
    compiler, include = shutil.which("g++"), header_folder()
    if not compiler or not include:
        pytest.skip("no g++ or no cuda.h to build the fake driver with")
    folder = tmp_path_factory.mktemp("fake_cuda")
    subprocess.run(
        [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-isystem", include]
        + ["-Wl,-soname,libcuda.so.1", str(HERE / "fake_cuda" / "fake_cuda.cpp")]
        + ["-o", str(folder / "libcuda.so.1")],
        check=True,
    )
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
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
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
    "call", ["cuGraphLaunch", "cuGraphExecKernelNodeSetParams_v2", "cuStreamSynchronize"]
)
def test_a_lost_device(driver, call):
    """The same typed error from every call after it, no crash, and a clean exit."""
    out, _ = run(driver, FAKE_CUDA_CALL=call, FAKE_CUDA_CODE=ILLEGAL_ADDRESS)
    lines = out.splitlines()
    assert len(lines) == 2 and all(line.startswith("DeviceLost") for line in lines), out
    assert call.removesuffix("_v2") in lines[0] and "new process" in lines[1]


def test_a_rebind_that_fails_is_made_up_for(driver):
    """A replay after it runs on the new address, never on the old one."""
    script = (
        SCRIPT.replace("same(x=x, t=t)", "once(lambda: same(x=x, t=t))")
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
    out, _ = run(driver, script, FAKE_CUDA_CALL="cuGraphExecKernelNodeSetParams_v2")
    assert out.split() == ["done", "done"]


MAPS = """
import aicf
from aicf import _core

def product():
    g = aicf.Graph("maps")
    W = g.param("W", (256, 2048), "bfloat16")
    g.output("y", aicf.matmul(g.input("x", (2048, 256), "bfloat16"), W))
    return g

def compile_all():
    program = _core.cuda_program(product()._core, _core.pass_names())
    assert "gemm_wgmma<" in program
    _core.cuda_cubin(program, "sm_90a")
"""


def test_tensor_maps(driver):
    """They lie where a block's tail is aligned, of live memory, also after a bind; a failure to
    encode one is a typed error."""
    environment = {**os.environ, "AICF_CACHE_DIR": str(driver / "cache")}
    subprocess.run([sys.executable, "-c", MAPS + "\ncompile_all()\n"], env=environment, check=True)
    use = """
from tensors import CapsuleTensor

def use():
    step = product().compile(device="cuda")
    assert all("wgmma" in launch.kernel for launch in step.trace), step.trace
    step.replay(2)
    step.run()
    spare = product().compile(device="cuda")
    weight = spare.params["W"].__dlpack__(max_version=(1, 0), copy=True)
    del spare
    step.bind(W=CapsuleTensor(weight))
    step.replay()
    step.outputs["y"].numpy()

for attempt in range(2):
    try:
        use()
        print("done")
    except aicf.Error as error:
        print(type(error).__name__, error)
"""
    out, counts = run(driver, MAPS + use)
    assert out.split() == ["done", "done"], out
    assert_clean(counts)
    out, counts = run(driver, MAPS + use, FAKE_CUDA_CALL="cuTensorMapEncodeTiled")
    assert [line.split()[0] for line in out.splitlines()] == ["OutOfMemory", "done"], out
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
_core.cuda_cubin(_core.cuda_program(g._core, _core.pass_names()), "sm_90a")
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
