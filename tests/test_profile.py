"""Profiles: every launch of every step, in order, and not one bit changed."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import threading

import aicf
import numpy as np
import pytest
from aicf import profile
from compare import assert_bits
from test_cli import run

BATCH = {"x": (16, 12), "t": (16, 4)}


def network():
    g = aicf.Graph("network")
    x, t = (g.input(name, shape) for name, shape in BATCH.items())
    h = aicf.dropout(aicf.relu(g.dense("first", x, 40)), 0.25)
    h = aicf.layer_norm(g.dense("second", h, 24), 24)
    loss = aicf.mse_loss(g.dense("third", h, 4), t)
    g.minimize(loss, aicf.optim.Adam(lr=0.01), clip_norm=1.0)
    g.output("loss", loss, keep=3)
    return g


def started(device, **options):
    """A step that has its inputs."""
    rng = np.random.default_rng(7)
    step = network().compile(device=device, seed=3, **options)
    step(**{name: rng.standard_normal(shape, dtype=np.float32) for name, shape in BATCH.items()})
    return step


def everything(step):
    return {**step.state_dict(), "loss": step.outputs["loss"].numpy()}


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert_bits(array, theirs[name], name)


def events_of(path):
    text = path.read_bytes()
    record = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)
    assert record["displayTimeUnit"] == "ns"
    return record["traceEvents"]


def check_schema(events):
    """What Perfetto wants of an event, and that slices of one track do not overlap."""
    tracks, names, arrows = {}, {}, {}
    for event in events:
        assert isinstance(event["name"], str) and {"pid", "tid"} <= event.keys()
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            names[(event["name"], *track)] = event["args"]["name"]
        elif event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            tracks.setdefault(track, []).append((event["ts"], event["ts"] + event["dur"]))
        else:
            assert event["ph"] in "sf"
            arrows.setdefault(event["id"], []).append((event["ph"], event["ts"]))
    for track, slices in tracks.items():
        assert ("process_name", track[0], 0) in names and ("thread_name", *track) in names
        for (_, end), (begin, _) in zip(slices, slices[1:], strict=False):
            assert begin >= end - 0.002, track  # microseconds; times are rounded to nanoseconds
    for ends in arrows.values():
        assert [kind for kind, _ in ends] == ["s", "f"] and ends[0][1] <= ends[1][1] + 0.002


def check_times(found, n):
    assert found.steps == n == len(found.walls) and found.untimed == 0
    for i, wall in enumerate(found.walls):
        lanes = {}  # which run side by side in a replay that CUPTI times
        for launch in found.launches:
            lane = launch.lane if found.clock == "cupti" else 0
            lanes[lane] = lanes.get(lane, 0.0) + launch.times[i]
        assert 0 < max(lanes.values()) <= wall + 1e-9
    for launch in found.launches:
        assert len(launch.times) == n and 0 <= launch.least <= launch.median


@pytest.mark.parametrize("passes", ["default", ()])
def test_the_trace_holds_the_planned_launches_of_every_step(device, tmp_path, passes):
    step = started(device, passes=passes)
    found = step.profile(5)
    check_times(found, 5)
    found.save(tmp_path / "trace.json.gz")
    events = events_of(tmp_path / "trace.json.gz")
    check_schema(events)
    planned = [(i, op["kernel"], op["lane"]) for i, op in enumerate(step.lowered)]
    assert [(e["args"]["number"], e["args"]["kernel"], e["tid"])
            for e in events if e["ph"] == "X" and e["pid"] == 2] == planned * 5  # fmt: skip
    steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("step ")]
    assert [e["name"] for e in steps] == [f"step {i}" for i in range(5)]
    for event in events:  # launches lie within their step
        if event["ph"] == "X" and event["pid"] == 2:
            outer = steps[event["args"]["step"]]
            assert outer["ts"] <= event["ts"] + 0.002
            assert event["ts"] + event["dur"] <= outer["ts"] + outer["dur"] + 0.002
    stages = [e["name"] for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (1, 1)]
    assert stages == [name for name, _ in step._stages()]


@pytest.mark.gpu
@pytest.mark.parametrize("passes", ["default", ()])
def test_replays_are_traced(passes):
    """On a GPU CUPTI times the captured graph itself, in which steps follow each other."""
    step = started("cuda", passes=passes)
    found = step.profile(100)
    if found.problem.startswith("no CUPTI"):
        pytest.skip(found.problem)
    assert (found.clock, found.problem) == ("cupti", "")
    check_times(found, 100)
    whole, spans = found._spans[:, 0], found._spans[:, 1:]
    assert (whole[1:, 0] >= whole[:-1, 1] - 1e-9).all()
    for i, op in enumerate(step.lowered):
        for wait in op["waits"]:
            assert (spans[:, i, 0] >= spans[:, wait, 1] - 1e-9).all(), (i, wait)
    assert np.median(found.walls) < 1e-3


def test_what_timed_is_told():
    found = started("cpu").profile(2)
    assert (found.clock, found.problem) == ("steady clock", "")
    assert ", by steady clock; ceiling" in found.table()
    spans = np.array([[[0.0, 3.0], [0.0, 1.0]], [[3.0, 4.0], [np.nan, np.nan]]])
    mixed = profile.Profile("of", [], spans, profile.Ceiling(1.0, 1.0), clock="cupti", problem="so")
    assert (mixed.steps, mixed.untimed, mixed.walls) == (1, 1, [3.0])
    text = mixed.table()
    assert "steps beside these, without times: 1" in text and "without CUPTI: so" in text


def test_a_profile_is_steps(device):
    """State, random numbers and rings of outputs are those of as many replays."""
    ours, theirs = started(device), started(device)
    assert_equal(everything(ours), everything(theirs))
    ours.profile(4)
    theirs.replay(4)
    assert ours.steps_run == theirs.steps_run == 5
    assert_equal(everything(ours), everything(theirs))


def test_on_and_off_a_hundred_times(device):
    ours, theirs = started(device), started(device)
    rng = np.random.default_rng(1)
    for _ in range(100):
        batch = {name: rng.standard_normal(shape, np.float32) for name, shape in BATCH.items()}
        with aicf.profiler() as prof:
            ours(**batch)
        ours.replay()
        ours.profile(1)
        theirs(**batch)
        theirs.replay(2)
        assert prof.profiles[0].steps == 1
    assert_equal(everything(ours), everything(theirs))


def test_without_a_profiler_nothing_is_in_the_way():
    assert not {"__call__", "replay"} & vars(aicf.Step).keys()
    with aicf.profiler():
        assert {"__call__", "replay"} <= vars(aicf.Step).keys()
    with pytest.raises(ZeroDivisionError), aicf.profiler():
        raise ZeroDivisionError
    assert not {"__call__", "replay"} & vars(aicf.Step).keys()


def test_a_bind_is_followed():
    """A profile reads where a replay would."""
    ours, theirs = started("cpu"), started("cpu")
    moved = ours.params["first.W"].numpy().copy()
    ours.bind(**{"first.W": moved})
    ours.profile(2)
    theirs.replay(2)
    assert_bits(moved, theirs.params["first.W"].numpy(), "first.W")
    assert_equal(everything(ours), everything(theirs))


def test_launches_are_told_of(device):
    step = started(device, passes=())
    found = step.profile(2)
    for launch, op in zip(found.launches, step.lowered, strict=True):
        assert launch.members == (op["op"],) and launch.op == op["op"]
        assert launch.flops == op["flops"] and launch.bytes_moved == op["bytes_moved"]
        assert launch.blocks >= 1 and launch.threads >= 1
        if launch.op not in ("ring_push", "copy"):  # what keeps an output comes from no node
            assert launch.node >= 0 and launch.source.startswith("test_profile.py:")
    first = found.launches[0]
    assert (first.op, first.name, first.layer) == ("gemm", "Linear", "first")
    line = int(first.source.rpartition(":")[2])
    with open(__file__) as file:
        assert 'g.dense("first"' in file.readlines()[line - 1]


def test_fused_launches_name_their_parts():
    found = started("cpu").profile(1)
    assert sum(launch.flops for launch in found.launches) == started("cpu").plan.flops
    fused = next(launch for launch in found.launches if len(launch.members) > 1)
    assert all(name in fused.op for name in fused.members)
    assert {launch.layer for launch in found.launches} >= {"first", "third"}


def test_tables(device):
    step = started(device)
    found = step.profile(3)
    by_launch = found.table().splitlines()
    assert len(by_launch) == len(found.launches) + 7 and str(found) == found.table("launch")
    assert "3 steps" in by_launch[0] and by_launch[2].split()[:2] == ["#", "launch"]
    assert len({len(line) for line in by_launch[1:2] + by_launch[-3:-2]}) == 1
    for by in ("op", "layer"):
        rows = [line.split() for line in found.table(by).splitlines()[4:-3]]
        names = {getattr(launch, by) for launch in found.launches}
        assert len(rows) == len(names)
    html = found._repr_html_()
    assert html.count("<tr>") == len(found.launches) + 2 and "first" in html
    with pytest.raises(aicf.GraphError, match="by is 'kernel'; need one of"):
        found.table("kernel")


def test_a_profile_without_memory_for_the_ceiling(monkeypatch):
    """What was timed is told all the same, and an error inside stays the one that is seen."""

    def no_room(*_):
        raise aicf.OutOfMemory("no room")

    monkeypatch.setattr(profile, "_ceilings", {})
    monkeypatch.setattr(profile, "_best", no_room)
    step = started("cpu")
    with pytest.raises(KeyError), aicf.profiler() as prof:
        step.replay(3)
        raise KeyError
    for found in (prof.profiles[0], step.profile(3)):
        assert found.steps == 3 and all(np.isnan(found.ceiling))
        for text in (*map(found.table, profile.KINDS), found._repr_html_()):
            assert "no memory to measure it" in text and "nan" not in text
    monkeypatch.undo()
    assert all(step.profile(1).ceiling)


def test_shares_are_of_what_was_measured():
    top = profile.Ceiling(bytes_per_second=10.0, flops_per_second=100.0)
    found = profile.Profile("of", [], np.zeros((0, 1, 2)), top)
    assert found.share(20, 0, 4.0) == 0.5
    assert found.share(20, 360, 4.0) == 0.9
    assert found.share(20, 360, 0.0) == 0.0
    assert found.steps == 0 and "of: 0 launches, 0 steps" in found.table()
    measured = profile.ceiling("cpu", "fp32")
    assert measured is profile.ceiling("cpu", "fp32") and min(measured) > 1e6


@pytest.mark.parametrize("n", [0, -1])
def test_n_is_at_least_one(n):
    with pytest.raises(aicf.GraphError, match=f"profile: n is {n}; need at least 1"):
        started("cpu").profile(n)


def test_a_page_shows_the_times(tmp_path):
    step = started("cpu")
    step.to_html(tmp_path / "page.html", times=step.profile(2).times)
    assert '"seconds"' in (tmp_path / "page.html").read_text()


def test_a_step_from_a_file(tmp_path):
    """It has no graph: no layers, no lines, all else."""
    step = started("cpu")
    step.export(tmp_path / "step.aicf")
    ours = aicf.load_step(tmp_path / "step.aicf")
    found = ours.profile(2)
    assert [launch.kernel for launch in found.launches] == [op["kernel"] for op in step.lowered]
    assert {(launch.layer, launch.source) for launch in found.launches} == {("", "")}
    assert "(none)" in found.table("layer")


def test_shared_steps_and_steps_without_a_captured_form():
    step = started("cpu")
    fellow = network().compile(device="cpu", share=step, capture=False)
    fellow.profile(1)
    assert step.state_dict().keys() == fellow.state_dict().keys()
    with aicf.profiler() as prof:
        with pytest.raises(aicf.CaptureError):
            fellow.replay()
        step.replay(2)
    assert [found.steps for found in prof.profiles] == [2]


def test_a_profiler_inside_another():
    """The one that was entered last profiles; the other goes on behind it, in any order."""
    step = started("cpu")
    with aicf.profiler() as outer:
        step.replay(2)
        with aicf.profiler() as inner:
            step.replay(3)
        step.replay(5)
    first, second = aicf.profiler(), aicf.profiler()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    step.replay(4)
    second.__exit__(None, None, None)
    found = [[profile.steps for profile in prof.profiles] for prof in (outer, inner, first, second)]
    assert found == [[7], [3], [], [4]]
    assert "replay" not in vars(aicf.Step)


def test_a_profiler_collects_every_step_of_its_time(tmp_path):
    one, two = started("cpu"), started("cpu")
    one.replay()
    with aicf.profiler() as prof:
        one.replay(3)
        out = two(**{name: np.zeros(shape, np.float32) for name, shape in BATCH.items()})
        one.replay()
        one.replay(0)
        with pytest.raises(aicf.GraphError, match="entered already"), prof:
            pass
        with pytest.raises(aicf.GraphError, match='input "t"'):
            two(x=np.zeros(BATCH["x"], np.float32))
        with pytest.raises(TypeError):
            two(1, 2, 3)
        with pytest.raises(aicf.GraphError, match="n is -1"):
            one.replay(-1)
    one.replay()
    assert [found.steps for found in prof.profiles] == [4, 1]
    assert np.isfinite(out["loss"].numpy()).all()
    prof.save(tmp_path / "all.json")
    check_schema(events_of(tmp_path / "all.json"))
    assert prof.table("op").count("network on cpu") == 2
    assert prof._repr_html_().count("<table>") == 2 and str(prof) == prof.table()


def test_runs_are_profiled():
    """Beside the replays of their step; inputs that are missing stay, as in a run."""
    ours, theirs = started("cpu"), started("cpu")
    lone = network().compile(device="cpu", seed=3, capture=False)
    batch = {name: np.full(shape, 0.5, np.float32) for name, shape in BATCH.items()}
    with aicf.profiler() as prof:
        ours.run(x=batch["x"], sync="full")
        ours.replay(2)
        ours.run()
        lone(**batch)
        with pytest.raises(aicf.GraphError, match="sync is 'none at all'|none at all"):
            ours.run(sync="none at all")
        with pytest.raises(TypeError):
            ours.run(1, 2, 3)
    theirs.run(x=batch["x"])
    theirs.replay(2)
    theirs.run()
    assert_equal(everything(ours), everything(theirs))
    assert [(p.title, p.steps) for p in prof.profiles] == [
        ("network on cpu, op by op", 2), ("network on cpu", 2), ("network on cpu, op by op", 1),
    ]  # fmt: skip
    assert "run" not in vars(aicf.Step) and lone.steps_run == 1


def test_threads_are_profiled():
    steps = [started("cpu") for _ in range(2)]
    with aicf.profiler() as prof:
        threads = [threading.Thread(target=lambda s=s: [s.replay() for _ in range(20)])
                   for s in steps * 2]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found.steps for found in prof.profiles] == [40, 40]
    assert all(step.steps_run == 41 for step in steps)


# ---- ranges for Nsight

NVTX = r"""
#include <cstdio>
extern "C" int nvtxRangePushA(const char* name) { return std::printf("push %s\n", name); }
extern "C" int nvtxRangePop() { return std::printf("pop\n"); }
"""

RANGED = """
import aicf
import numpy as np

def build():
    g = aicf.Graph("scaled")
    w = g.param("w", (8,))
    g.assign(w, w * g.input("x", (8,)))
    return g

before = dict(vars(aicf.Step))
with aicf.profiler(nvtx=True) as prof:
    step = build().compile(device="cpu")
    step(x=np.full(8, 2.0, np.float32))
    step.replay(3)
    try:
        step.replay(-1)
    except aicf.GraphError:
        pass
step.replay()
assert before == dict(vars(aicf.Step))
assert prof.profiles == [] and step.steps_run == 5
"""


def test_ranges_for_nsight(tmp_path):
    """Around compiling, calls and replays, also those that raise; the steps are as always."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("no g++ to build a library of NVTX with")
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "nvtx.cpp").write_text(NVTX)
    subprocess.run(
        [compiler, "-shared", "-fPIC", str(tmp_path / "nvtx.cpp")]
        + ["-o", str(folder / "libnvtx3interop.so.1")],
        check=True,
    )
    out = subprocess.run(
        [sys.executable, "-c", RANGED],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (out.returncode, out.stderr) == (0, "")
    names = ["compile scaled", "scaled", "scaled x3", "scaled x-1"]
    assert out.stdout.splitlines() == [line for name in names for line in (f"push {name}", "pop")]


def test_ranges_without_their_library(monkeypatch):
    from aicf import ranges

    monkeypatch.setattr(ranges, "_LIBRARY", "libnvtx3interop.so.nowhere")
    with pytest.raises(aicf.Unsupported, match="pip install nvidia-nvtx"):
        aicf.profiler(nvtx=True).__enter__()
    assert "replay" not in vars(aicf.Step)
    with aicf.profiler():
        pass


# ---- the command

PROGRAM = """
import sys
import aicf
import numpy as np

g = aicf.Graph("scaled")
w = g.param("layer.w", (8,))
g.assign(w, w * g.input("x", (8,)))
step = g.compile(device="cpu")
for _ in range(3):
    step(x=np.ones(8, np.float32))
step.replay(2)
print("words", sys.argv[1:], __name__)
"""


@pytest.fixture
def script(tmp_path):
    def write(end=""):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM + end)
        return path

    return write


def test_a_program_is_profiled(capsys, script, tmp_path):
    trace, words, folders = tmp_path / "trace.json.gz", sys.argv, sys.path
    path = script()
    status, out, err = run(capsys, "profile", path, "--trace", trace, "--", "--epochs", "3")
    assert (status, err) == (0, "")
    assert "words ['--epochs', '3'] __main__" in out
    assert "scaled on cpu: 1 launches, 5 steps" in out and f"{trace}: 5 launches" in out
    assert f"{path.name}:8" in out
    check_schema(events_of(trace))
    assert sys.argv is words and sys.path is folders
    assert "layer " in run(capsys, "profile", "--by", "layer", path)[1]


@pytest.mark.parametrize(
    "end, status, said",
    [("sys.exit(7)", 7, ""), ("sys.exit()", 0, ""), ("sys.exit('why')", 1, "why"),
     ("1 / 0", 1, "ZeroDivisionError"), ("raise KeyboardInterrupt", 130, None)],
)  # fmt: skip
def test_the_status_is_the_programs(capsys, script, end, status, said):
    """What ran until then is told of, but after Ctrl-C."""
    found, out, err = run(capsys, "profile", script(end))
    assert found == status
    assert ("5 steps" in out) == (said is not None) and (said or "") in err
    assert "replay" not in vars(aicf.Step)


def test_a_program_without_steps_is_told_of(capsys, tmp_path):
    (tmp_path / "empty.py").write_text("print('hello')")
    status, out, err = run(capsys, "profile", tmp_path / "empty.py")
    assert (status, out) == (2, "hello\n") and "ran no step" in err
    status, _, err = run(capsys, "profile", tmp_path / "nowhere.py")
    assert status == 2 and err.count("\n") == 1 and "nowhere.py" in err
