"""Tensors of other frameworks on the GPU: in, out, bound, ordered."""

import subprocess
import sys

import aicf
import numpy as np
import pytest

pytestmark = pytest.mark.gpu


def doubling(shape=(64, 32)):
    g = aicf.Graph("double")
    g.output("y", g.input("x", shape) * 2.0)
    return g.compile(device="cuda")


def test_torch_inputs():
    torch = pytest.importorskip("torch")
    step = doubling()
    x = torch.randn(64, 32, device="cuda")
    for tensor in (
        x,
        torch.randn(32, 64, device="cuda").t(),
        torch.randn(64, 64, device="cuda")[:, ::2],
    ):
        assert np.array_equal(step(x=tensor)["y"].numpy(), (tensor * 2).cpu().numpy())


def slow_torch(torch):
    """Tensors that a kernel is still writing when they are handed over."""

    def make(i):
        x = torch.zeros(256, 256, device="cuda")
        torch.cuda._sleep(200_000)
        x += i
        return x, lambda: x.fill_(-1)  # at once, before the step has run

    return make


def test_slow_producer_torch():
    """On the default stream, on a side stream, and with the stream named: 1,000 turns."""
    torch = pytest.importorskip("torch")
    step, make = doubling((256, 256)), slow_torch(torch)
    side = torch.cuda.Stream()
    turns = [(torch.cuda.default_stream(), {}), (side, {}), (side, {"stream": side})]
    for n, (stream, options) in enumerate(turns):
        with torch.cuda.stream(stream):
            for i in range(n, 1000, len(turns)):
                x, overwrite = make(i)
                got = step(x=x, **options)
                overwrite()
                assert (got["y"].numpy() == 2 * i).all(), f"{stream}, turn {i}"


def test_slow_producer_cupy():
    cupy = pytest.importorskip("cupy")
    step = doubling((256, 256))
    busy = cupy.zeros(1 << 24, "float32")
    side = cupy.cuda.Stream(non_blocking=True)
    for i in range(1000):
        stream = side if i % 2 else cupy.cuda.Stream.null
        with stream:
            x = cupy.zeros((256, 256), "float32")
            for _ in range(3):
                busy += 1
            x += i
            got = step(x=x, stream=side) if i % 2 else step(x=x)
            x.fill(-1)
            assert (got["y"].numpy() == 2 * i).all(), f"{stream}, turn {i}"


def test_slow_producer_jax():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    step = doubling((256, 256))
    busy = jax.numpy.ones((1024, 1024))

    @jax.jit
    def slow(i):
        waste = busy @ busy @ busy
        return jax.numpy.full((256, 256), i, "float32") + 0 * waste[0, 0]

    for i in range(1000):
        assert (step(x=slow(i))["y"].numpy() == 2 * i).all(), f"turn {i}"


def test_outputs_stay_on_the_device():
    """A copy made in the order of the step's work, readable on the consumer's stream at once."""
    torch = pytest.importorskip("torch")
    step = doubling((256, 256))
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for i in range(200):
                x = torch.full((256, 256), float(i), device="cuda")
                y = torch.from_dlpack(step(x=x)["y"])
                step(x=x * 0)  # must not reach y
                assert y.device.type == "cuda" and bool((y == 2 * i).all()), f"{stream}, turn {i}"
                del y


def test_outputs_to_cupy_and_jax():
    step = doubling()
    x = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    out = step(x=x)["y"]
    cupy, jax = pytest.importorskip("cupy"), pytest.importorskip("jax")
    assert np.array_equal(cupy.from_dlpack(out).get(), x * 2)
    if jax.default_backend() == "gpu":
        assert np.array_equal(np.asarray(jax.dlpack.from_dlpack(out)), x * 2)


@pytest.mark.parametrize("side", [True, False])
@pytest.mark.parametrize("size", [256, 2048])
def test_stream_orders_replays_on_bound_tensors(size, side):
    """Producer, replay and consumer on one stream, without a wait on the host: of a kernel that is
    launched by its graph, and of one that goes without."""
    torch = pytest.importorskip("torch")
    step = doubling((size, size))
    x, y = torch.zeros(size, size, device="cuda"), torch.zeros(size, size, device="cuda")
    torch.cuda.synchronize()
    step.bind(x=x, y=y)
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    bad = torch.zeros((), device="cuda", dtype=torch.int64)
    with torch.cuda.stream(stream):
        for i in range(500):
            torch.cuda._sleep(20_000)
            x.fill_(i)
            step.replay(stream=stream)
            bad += (y != 2 * i).sum()
            y.zero_()
    torch.cuda.synchronize()
    assert int(bad) == 0


def test_calls_that_come_again_torch():
    """On each stream and on two in turn, behind kernels of PyTorch and before others."""
    torch = pytest.importorskip("torch")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    held = [[torch.zeros(256, 256, device="cuda") for _ in range(2)] for _ in range(2)]
    bad = [torch.zeros((), device="cuda", dtype=torch.int64) for _ in range(2)]
    torch.cuda.synchronize()
    for streams in ([torch.cuda.default_stream()], [first], [second], [first, second]):
        for i in range(200):
            for stream, (x, y), wrong in zip(streams, held, bad, strict=False):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(5_000)
                    x.fill_(i)
                    aicf.op_call("neg", [x], [y], sync="none")
                    wrong += (y != -i).sum()
                    y.fill_(1)
        torch.cuda.synchronize()
        assert [int(wrong) for wrong in bad] == [0, 0]


def test_calls_that_come_again_while_torch_captures():
    """Those on the captured stream are recorded; another one's go on, and may be the first."""
    torch = pytest.importorskip("torch")
    captured, other = torch.cuda.Stream(), torch.cuda.Stream()
    x, y, z = (torch.full((512,), 1.0 + i, device="cuda") for i in range(3))
    u, v = (torch.full((300,), 5.0 + i, device="cuda") for i in range(2))
    torch.cuda.synchronize()

    def neg(stream, a, b, times):
        with torch.cuda.stream(stream):
            for _ in range(times):
                aicf.op_call("neg", [a], [b], sync="none")

    neg(captured, x, y, 12)
    neg(other, u, v, 1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=captured):
        aicf.op_call("neg", [x], [z], sync="none")
        neg(other, u, v, 12)
    neg(captured, x, y, 2)
    torch.cuda.synchronize()
    assert (y == -1).all() and (z == 3).all() and (v == -5).all()
    x.fill_(4)
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    assert (y == -1).all() and (z == -4).all()


@pytest.mark.parametrize("name", ["cupy", "jax.numpy"])
def test_inputs(name):
    module = pytest.importorskip(name)
    x = module.arange(64 * 32, dtype="float32").reshape(64, 32)
    got = doubling()(x=x)["y"].numpy()
    assert np.array_equal(got, np.arange(64 * 32, dtype=np.float32).reshape(64, 32) * 2)


def test_bind_and_export():
    torch = pytest.importorskip("torch")
    g = aicf.Graph("bound")
    x, p = g.input("x", (8, 4)), g.param("p", (8, 4))
    g.assign(p, p + x)
    step = g.compile(device="cuda")
    x = torch.ones(8, 4, device="cuda")
    p = torch.zeros(8, 4, device="cuda")
    torch.cuda.synchronize()
    step.bind(x=x, p=p)
    step.replay(5)
    step.synchronize()
    assert (p == 5).all()
    x.fill_(2)
    torch.cuda.synchronize()
    step.replay()
    step.synchronize()
    assert (p == 7).all()
    seen = torch.from_dlpack(step.params["p"])
    assert seen.data_ptr() == p.data_ptr() and seen.device.type == "cuda"


def test_steps_side_by_side(make_rng):
    """Destroying one step never disturbs another."""
    x = make_rng(1).standard_normal((64, 32)).astype(np.float32)
    first = doubling()
    wanted = first(x=x)["y"].numpy()
    for _ in range(20):
        other = doubling()
        other(x=-x)
        del other
        assert np.array_equal(first(x=x)["y"].numpy(), wanted)


REPLAYS = """
import sys
import numpy as np
from aicf import verify
name, case = next(iter(verify.CASES.items()))
step = verify.build(name, case).compile(device="cuda", seed=1)
batch = {
    "x": np.ones((case.batch, case.inputs), np.float32),
    "t": np.zeros((case.batch, case.outputs), np.float32),
}
step(**batch)
if sys.argv[1] == "restored":
    step.replay(500)
    step.save(sys.argv[2])
    other = verify.build(name, case).compile(device="cuda", seed=2)
    other.load(sys.argv[2])
    other.run(**batch)
    other.replay(499)
    print(verify.state_hash(other))
else:
    step.replay(1000)
    print(verify.state_hash(step))
"""


def test_many_replays(tmp_path):
    """1,001 steps end on the same bytes in three processes, one of them restored half-way."""
    hashes = {
        subprocess.run(
            [sys.executable, "-c", REPLAYS, how, str(tmp_path / "half.safetensors")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for how in ("straight", "restored", "again")
    }
    assert len(hashes) == 1


def test_peak_of_memory_and_devices():
    gpu = next(info for info in aicf.devices() if info.device == "cuda:0")
    g = aicf.Graph("large")
    g.output("y", g.state("s", (1 << 24,)) * 2.0)
    step = g.compile(device="cuda")
    now = next(info for info in aicf.devices() if info.device == "cuda:0")
    assert now.used_bytes >= gpu.used_bytes + step.plan.peak_bytes
    assert now.peak_bytes >= now.used_bytes and now.reserved_bytes >= now.used_bytes
    with pytest.raises(aicf.OutOfMemory, match="asked for"):
        g = aicf.Graph("too large")
        g.output("y", g.state("s", (1 << 38,)) * 2.0)
        g.compile(device="cuda")
    step.replay()
    assert (step.outputs["y"].numpy() == 0).all()
