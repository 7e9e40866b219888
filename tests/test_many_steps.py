"""Many steps of one call: their bits, Ctrl-C between them, what uploads while they run."""

import contextlib
import signal
import time

import aicf
import numpy as np
import pytest
from aicf import verify
from compare import assert_bits
from steps import batch_of, build_train


def test_run_many(device):
    """The bits of as many calls, of arrays in any strides; errors before a step runs."""
    ends = []
    batches = [batch_of(seed) for seed in range(6)]
    x, t = (np.stack([b[k] for b in batches]) for k in ("x", "labels"))
    behind = np.ascontiguousarray(np.moveaxis(x, 0, -1))
    for feed in (
        None,
        {"x": x, "labels": t},
        {"x": np.moveaxis(behind, -1, 0), "labels": t[::-1][::-1]},
    ):
        step = build_train(keep=4).compile(device=device)
        if feed is None:
            for batch in batches:
                out = step(**batch)
        else:
            out = step.run_many(**feed)
        assert step.steps_run == 6
        ends.append({"loss": out["loss"].numpy(), **step.state_dict()})
    for other in ends[1:]:
        for name, value in ends[0].items():
            assert_bits(other[name], value)
    before = step.state_dict()
    assert step.run_many(x=x[:0], labels=t[:0])["loss"].shape == (4,) and step.steps_run == 6
    for feed, kind, text in (
        ({}, aicf.GraphError, "no input is given"),
        ({"x": x, "labels": t[:5]}, aicf.ShapeError, "need as many steps of each"),
        ({"x": x[0], "labels": t[0]}, aicf.ShapeError, "behind a first axis of steps"),
        ({"x": np.float32(1)}, aicf.ShapeError, "behind a first axis of steps"),
        ({"x": x}, aicf.GraphError, '"labels" .* is missing'),
        ({"y": x}, aicf.GraphError, '"y"'),
        ({"x": x.astype(np.float64), "labels": t}, aicf.DTypeError, '"x"'),
    ):
        with pytest.raises(kind, match=text):
            step.run_many(**feed)
    for name, value in step.state_dict().items():
        assert_bits(value, before[name])


@contextlib.contextmanager
def ctrl_c(after):
    """The signal in the body, which it ends; gives a list of the seconds the body took."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before, taken = signal.signal(signal.SIGALRM, interrupt), []
    start = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        with pytest.raises(KeyboardInterrupt):
            yield taken
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    taken.append(time.perf_counter() - start)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [16_383, 16_384, 40_001, 300_001, 2_500_000])
def test_bits_of_large_host_arrays(count):
    """Uploaded beside the steps before, from arrays that are written again as soon as a call has
    returned, as are those of run_many."""
    rng = np.random.default_rng(count)
    data = rng.standard_normal((24, count), dtype=np.float32)
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("sum")
        w, x = g.param("w", (count,)), g.input("x", (count,))
        g.minimize(aicf.sum(w * x), aicf.optim.SGD(lr=0.1))
        step = g.compile(device=device, seed=1)
        buffer, many = np.empty_like(data[0]), data.copy()
        for one in data:
            buffer[:] = one
            step(x=buffer)
        buffer[:] = np.nan
        step.run_many(x=many)
        many[:] = np.nan
        step.run_many(x=data[:, ::-1])
        ends.append(step.params["w"].numpy())
    assert_bits(ends[1], ends[0])


def test_run_many_ends_between_two_steps(device):
    """At Ctrl-C, soon; what it leaves is that of the steps that it counts."""
    step, twin = (build_train().compile(device=device) for _ in range(2))
    batch, count = batch_of(0), 4_000_000
    stacked = {key: np.broadcast_to(value, (count, *value.shape)) for key, value in batch.items()}
    step(**batch)
    with ctrl_c(0.2) as taken:
        step.run_many(**stacked)
    assert 1 < step.steps_run < count and taken[0] < 2
    twin(**batch)
    twin.replay(step.steps_run - 1)
    assert verify.state_hash(step) == verify.state_hash(twin)


def test_ctrl_c_soon_after_steps_of_another_length():
    """How many steps run between two looks for signals is known from earlier ones."""
    g = aicf.Graph("part of a large input")
    x, p = g.input("x", (1 << 20,)), g.param("p", (1,))
    g.output("y", p + x[:1])
    step = g.compile(device="cpu")
    one = np.ones(1 << 20, np.float32)
    step(x=one)
    for turn in range(3):
        step.replay(500_000)
        before = step.steps_run
        with ctrl_c(0.2) as taken:
            if turn == 0:
                step.run_many(x=np.broadcast_to(one, (20_000, *one.shape)))
            elif turn == 1:
                step.profile(1_000_000)
            else:
                with step.trap():
                    step.replay(1_000_000)
        assert step.steps_run > before and taken[0] < 1
