"""A small step in one block of threads has the bits of its ops in launches of their own."""

import json
import operator

import aicf
import numpy as np
import pytest
from aicf import _core
from test_passes import APART

needs_compiler = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)
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
    "8-8-8": {"widths": (8, 8, 8), "batch": 64},
    "one layer": {"widths": (3, 2), "batch": 5, "optimizer": "sgd"},
    "odd": {"widths": (7, 13, 5, 3), "batch": 19, "optimizer": "momentum", "activation": "tanh"},
    "kept": {"widths": (8, 16, 4), "batch": 32, "keep": 5},
    "labels": {"widths": (12, 24, 10), "batch": 33, "loss": "labels", "optimizer": "adamw"},
    "long batch": {"widths": (4, 6, 3), "batch": 700, "loss": "labels"},
    "gelu": {"widths": (8, 20, 8), "batch": 16, "activation": "gelu", "optimizer": "rmsprop"},
    "norm": {"widths": (8, 24, 8), "batch": 16, "norm": True, "activation": "sigmoid"},
    "dropout": {"widths": (8, 24, 8), "batch": 16, "dropout": 0.3},
    "float64": {"widths": (6, 10, 4), "batch": 24, "dtype": "float64"},
    "32-128-128-10": {"widths": (32, 128, 128, 10), "batch": 32, "loss": "labels"},
    "64-64-64": {"widths": (64, 64, 64), "batch": 64},
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
    every["loss"] = results["loss"].numpy()
    return step, {name: np.ascontiguousarray(value) for name, value in every.items()}


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


def plan_of(graph, passes, arch="sm_90a"):
    return json.loads(_core.cuda_plan(graph._core, passes, 132, arch, "fp32"))["ops"]


@needs_compiler
def test_the_plan_says_what_is_in_it():
    """One launch, whose members are the ops that run apart, with their nodes."""
    graph = net(**CASES["8-8-8"])
    (op,) = plan_of(graph, _core.pass_names())
    assert op["op"] == "sequence" and op["kernel"] == "block_of_11"
    apart = [m for one in plan_of(graph, APART) for m in one.get("members", [one])]
    key = operator.itemgetter("node", "op")
    assert sorted(map(key, op["members"])) == sorted(map(key, apart))
    names = [v["value"] for v in op["inputs"] + op["outputs"]]
    assert len(set(names)) == len(names)


@needs_compiler
def test_what_is_large_stays_apart():
    """By its work, and by what it holds."""
    for widths, batch in (((784, 512, 512, 10), 128), ((8, 8), 200_000)):
        assert len(plan_of(net(widths, batch), _core.pass_names())) > 1


@pytest.mark.gpu
def test_a_million_replays(make_rng):
    """And a state taken half-way and put back."""
    case, values = CASES["8-8-8"], feed(CASES["8-8-8"], make_rng(0))
    ends = []
    for device, passes in (("cuda", "default"), ("cuda", APART), ("cpu", "default")):
        step = net(**case).compile(device=device, seed=3, passes=passes)
        step(**values)
        step.replay(500_000)
        middle = step.state_dict()
        step.replay(500_000)
        end = step.state_dict()
        step.load_state_dict(middle)
        step.replay(499_999)
        step.replay()
        for name, value in step.state_dict().items():
            np.testing.assert_array_equal(value.view(np.uint8), end[name].view(np.uint8), name)
        ends.append(end)
    for other in ends[1:]:
        for name, value in ends[0].items():
            np.testing.assert_array_equal(value.view(np.uint8), other[name].view(np.uint8), name)


@pytest.mark.gpu
def test_bound_tensors_and_new_numbers(make_rng):
    """Between two launches of many steps other inputs and another learning rate take effect."""
    case = CASES["labels"]
    ends = []
    for passes in ("default", APART):
        step = net(**case).compile(device="cuda", seed=3, passes=passes)
        for i in range(4):
            step(**feed(case, make_rng(i)))
            step.set("opt.lr", 0.01 / (i + 1))
            step.replay(33)
        ends.append(step.state_dict())
    for name, value in ends[0].items():
        np.testing.assert_array_equal(value.view(np.uint8), ends[1][name].view(np.uint8), name)


@pytest.mark.gpu
def test_an_exported_step_in_one_block(tmp_path, make_rng):
    step = net(**CASES["kept"]).compile(device="cuda", seed=3)
    values = feed(CASES["kept"], make_rng(0))
    step(**values)
    step.export(tmp_path / "step.aicf")
    again = aicf.load_step(tmp_path / "step.aicf", device="cuda")
    for one in (step, again):
        one(**values)
        one.replay(25)
    for name, value in step.state_dict().items():
        np.testing.assert_array_equal(value.view(np.uint8), again.state_dict()[name].view(np.uint8))
    assert len(again.plan.ops) == 1
