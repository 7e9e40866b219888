"""A small step in one block of threads has the bits of its ops' launches, of any number of steps."""

import aicf
import numpy as np
import pytest
from aicf import _core

needs_compiler = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)
APART = tuple(name for name in _core.pass_names() if name != "block")
OPTIMIZERS = {
    "sgd": lambda: aicf.optim.SGD(lr=0.05),
    "momentum": lambda: aicf.optim.SGD(lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda: aicf.optim.Adam(lr=0.01),
    "adamw": lambda: aicf.optim.AdamW(lr=0.01, weight_decay=0.1),
    "rmsprop": lambda: aicf.optim.RMSprop(lr=0.01),
}


def net(widths, batch, optimizer="adam", loss="mse", activation="relu", dtype="float32", **more):
    g = aicf.Graph("net")
    h = g.input("x", (batch, widths[0]), dtype)
    for i, width in enumerate(widths[1:]):
        h = g.dense(f"l{i}", h, width)
        if i < len(widths) - 2:
            h = getattr(aicf, activation)(h)
            if "norm" in more:
                h = aicf.layer_norm(h, width)
            if "dropout" in more:
                h = aicf.dropout(h, more["dropout"])
    if loss == "mse":
        loss = aicf.mse_loss(h, g.input("t", h.shape, dtype))
    else:
        loss = aicf.cross_entropy(h, g.input("t", (batch,), "int64"))
    g.minimize(loss, OPTIMIZERS[optimizer]())
    g.output("loss", loss, keep=more.get("keep", 1))
    return g


CASES = {
    "8-8-8": dict(widths=(8, 8, 8), batch=64),
    "one layer": dict(widths=(3, 2), batch=5, optimizer="sgd"),
    "odd": dict(widths=(7, 13, 5, 3), batch=19, optimizer="momentum", activation="tanh"),
    "kept": dict(widths=(8, 16, 4), batch=32, keep=5),
    "labels": dict(widths=(12, 24, 10), batch=33, loss="labels", optimizer="adamw"),
    "long batch": dict(widths=(4, 6, 3), batch=700, loss="labels"),
    "gelu": dict(widths=(8, 20, 8), batch=16, activation="gelu", optimizer="rmsprop"),
    "norm": dict(widths=(8, 24, 8), batch=16, norm=True, activation="sigmoid"),
    "dropout": dict(widths=(8, 24, 8), batch=16, dropout=0.3),
    "float64": dict(widths=(6, 10, 4), batch=24, dtype="float64"),
    "32-128-128-10": dict(widths=(32, 128, 128, 10), batch=32, loss="labels"),
    "64-64-64": dict(widths=(64, 64, 64), batch=64),
}


def feed(case, rng):
    widths, batch = case["widths"], case["batch"]
    dtype = case.get("dtype", "float32")
    x = rng.standard_normal((batch, widths[0])).astype(dtype)
    if case.get("loss") == "labels":
        return {"x": x, "t": rng.integers(0, widths[-1], batch)}
    return {"x": x, "t": rng.standard_normal((batch, widths[-1])).astype(dtype)}


def run(case, device, passes, feeds, times):
    step = net(**case).compile(device=device, seed=3, passes=passes)
    for values in feeds:
        results = step(**values)
    for count in times:
        results = step.replay(count)
    every = dict(step.state_dict())
    kept = results["loss"]
    every["loss"] = results["loss"].numpy()
    return step, {name: np.ascontiguousarray(value) for name, value in every.items()}


def launches(step):
    return [op["op"] for op in step.plan.ops]


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_is_compiled(name):
    """For an old and a new device, and says in the plan what is in it."""
    graph = net(**CASES[name])
    for arch in ("sm_80", "sm_90a"):
        programs = _core.cuda_programs(graph._core, _core.pass_names(), arch=arch)
        assert all(cubin[:4] == b"\x7fELF" for cubin in _core.cuda_cubins(programs, arch))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_bits(name, make_rng):
    """One launch = its ops' launches = the CPU, whatever a launch repeats."""
    case = CASES[name]
    feeds = [feed(case, make_rng(i)) for i in range(3)]
    times = (1, 2, 40, 7)
    step, one = run(case, "cuda", "default", feeds, times)
    _, apart = run(case, "cuda", APART, feeds, times)
    _, cpu = run(case, "cpu", "default", feeds, times)
    for other in (apart, cpu):
        assert one.keys() == other.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(value.view(np.uint8), other[key].view(np.uint8), key)
