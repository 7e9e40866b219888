"""Devices, seeds and the three ways to run a graph."""

import os
import tempfile
import time
import zlib
from pathlib import Path

import aicf
import emulate
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits

# JAX would take most of a GPU's memory from the other processes that test on it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

FRESH = int(os.environ.get("AICF_TEST_SEED", time.time_ns() % 2**31))


def _cuda_missing():
    """Why no CUDA device is usable here; empty when one is."""
    g = aicf.Graph("probe")
    g.output("y", g.input("x", (2,)) + 1.0)
    try:
        g.compile(device="cuda")
    except (aicf.DeviceUnavailable, aicf.Unsupported) as error:
        return f"no usable CUDA device: {error}"
    return ""


def _has_hopper():
    return not _MISSING and _core.cuda_info()["devices"][0]["arch"].startswith("sm_9")


_MISSING = _cuda_missing()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def pytest_addoption(parser):
    graphs = "graphs drawn for a GPU; as many as meet every threshold, where no number is given"
    parser.addoption("--boundary-graphs", type=int, help=graphs)
    parser.addoption("--every", type=int, default=1, help="take one of so many tests, by its name")
    parser.addoption(
        "--first", type=int, default=0, help="which one: its name's number modulo --every"
    )
    parser.addoption("--no-passes", action="store_true", help="compile without passes by default")


def pytest_configure(config):
    if config.getoption("--no-passes"):
        for function in (aicf.Graph.compile, aicf.Step.__init__):
            function.__kwdefaults__["passes"] = ()


def pytest_report_header(config):
    return f"aicf: fresh seeds from AICF_TEST_SEED={FRESH}" + (
        f"; without the GPU tests, {_MISSING}" if _MISSING else ""
    )


@pytest.hookimpl(trylast=True)  # of those that -m leaves
def pytest_collection_modifyitems(config, items):
    """Without a GPU its tests are deselected, all for the one reason the header gives; on one of
    another family those of 9.x, without passes those of the passes."""
    out = {"gpu"} if _MISSING else set()
    out |= {"hopper"} if not _has_hopper() else set()
    out |= {"passes"} if config.getoption("--no-passes") else set()
    away = [any(i.get_closest_marker(name) for name in out) for i in items]
    config.hook.pytest_deselected(items=[i for i, gone in zip(items, away, strict=True) if gone])
    items[:] = [i for i, gone in zip(items, away, strict=True) if not gone]
    every, first = config.getoption("--every"), config.getoption("--first")
    if every > 1:  # by name, so that a new test changes the choice by itself alone
        number = {item.nodeid: zlib.crc32(item.nodeid.encode()) for item in items}
        wanted = {name for name, n in number.items() if n % every == first % every}
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in wanted])
        items[:] = [i for i in items if i.nodeid in wanted]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed and hasattr(item, "seeds"):
        report.sections.append(("seed", ", ".join(map(str, item.seeds))))


@pytest.fixture(params=DEVICES)
def device(request):
    """Each backend that exists; "cuda" only where a GPU is usable."""
    return request.param


@pytest.fixture(scope="session")
def built_once(tmp_path_factory):
    """built_once(name, build) is the folder that build(folder) filled, once for all workers."""

    def folder_of(name, build):
        import fcntl  # Windows has none

        own = tmp_path_factory.getbasetemp()
        folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                    build(Path(unfinished) / name)
                    os.rename(Path(unfinished) / name, folder)
        return folder

    return folder_of


@pytest.fixture(scope="session")
def emulated(built_once):
    """A folder of what stands for a GPU's driver and compiler (emulate.py)."""
    return built_once("emulated", emulate.build)


@pytest.fixture
def make_rng(request):
    """make_rng(seed) is a NumPy generator whose seed is printed when the test fails."""

    def make(seed):
        request.node.seeds = [*getattr(request.node, "seeds", []), seed]
        return np.random.default_rng(seed)

    return make


@pytest.fixture
def rng(make_rng):
    """A generator with a fixed seed."""
    return make_rng(0)


def outputs_of(outputs):
    """Copies of all outputs by name."""
    return {name: outputs[name].numpy() for name in outputs}


def run_modes(build, inputs, device="cpu", **options):
    """Builds, compiles and runs a graph eagerly, captured and replayed: all bits must be equal.

    Args:
        build: (g, values by input name) -> outputs by name.
        inputs: arrays by name.

    Returns: the outputs as NumPy arrays.
    """
    g = aicf.Graph("case")
    values = {name: g.input(name, array.shape, str(array.dtype)) for name, array in inputs.items()}
    for name, value in build(g, **values).items():
        g.output(name, value)
    step = g.compile(device=device, **options)
    eager = outputs_of(step.run(**inputs))
    captured = outputs_of(step(**inputs))
    replayed = outputs_of(step.replay())
    for name, array in eager.items():
        assert_bits(captured[name], array, f"captured and eager, output {name}")
        assert_bits(replayed[name], array, f"replayed and eager, output {name}")
    return eager


@pytest.fixture
def run_graph(device):
    """run_modes on the test's device."""

    def run(build, inputs, **options):
        return run_modes(build, inputs, device, **options)

    return run


@pytest.fixture(scope="session")
def fresh_seed():
    """A base for seeds that differ from run to run; AICF_TEST_SEED fixes it."""
    return FRESH


@pytest.fixture
def any_size_narrows():
    """Under "mixed" products of any size are of 16 bits: small graphs reach these kernels."""
    before = _core.narrow_any_size(True)
    yield
    _core.narrow_any_size(before)
