"""Tensors of other frameworks on the GPU: in, out, bound, ordered."""

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


def test_slow_producer():
    """A kernel that is still writing when its tensor is given to the step, on any stream."""
    torch = pytest.importorskip("torch")
    step = doubling((1024, 1024))
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for i in range(50):
                x = torch.zeros(1024, 1024, device="cuda")
                torch.cuda._sleep(2_000_000)
                x += i
                got = step(x=x)
                x.fill_(-1)  # at once, before the step has run
                assert (got["y"].numpy() == 2 * i).all(), f"{stream}, turn {i}"


def test_cupy_and_jax():
    for name in ("cupy", "jax.numpy"):
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


def test_many_replays():
    from aicf import verify

    name, case = next(iter(verify.CASES.items()))
    hashes = set()
    for _ in range(3):
        step = verify.build(name, case).compile(device="cuda", seed=1)
        step(
            x=np.ones((case.batch, case.inputs), np.float32),
            t=np.zeros((case.batch, case.outputs), np.float32),
        )
        step.replay(1000)
        hashes.add(verify.state_hash(step))
    assert len(hashes) == 1
