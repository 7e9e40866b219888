"""The command `aicf`: each of its commands, its exit status, and what it says when it cannot."""

import argparse
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from importlib.metadata import entry_points

import aicf
import pytest
from aicf import _core, benchmark, command, info, verify
from aicf.progress import Progress


def run(capsys, *args):
    """Exit status and what was printed to stdout and stderr."""
    try:
        status = command.main([str(arg) for arg in args])
    except SystemExit as stopped:
        status = stopped.code
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(verify.build("small", verify.CASES["train_step_distinct"]).to_json())
    return path


# ---- help and errors


COMMANDS = ("verify", "info", "dump", "summary", "view", "profile", "export", "bench", "cache",
            "cache list", "cache size", "cache clear", "cache warm")  # fmt: skip


@pytest.mark.parametrize("name", ("", *COMMANDS))
def test_help_names_every_option(capsys, name):
    status, out, err = run(capsys, *name.split(), "--help")
    assert status == 0 and err == "" and out.startswith("usage: aicf")
    if not name:
        assert all(re.search(rf"^ +{one} +[A-Z]", out, re.M) for one in COMMANDS if " " not in one)
        assert "Exit status" in out
    parser = command._parser()
    for word in name.split():
        (choices,) = (
            a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)
        )
        parser = choices[word]
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, action
        for option in action.option_strings:
            assert re.search(rf"^ +(-\w, |-\w \w+, )?{option}\b", out, re.M), option


@pytest.mark.parametrize(
    "args",
    [
        (), ("nothing",), ("dump",), ("cache",), ("cache", "info"), ("bench", "--rounds", "0"),
        ("bench", "--rounds", "many"), ("verify", "--replays", "1"), ("verify", "--device", "gpu"),
        ("summary", "/no/such/file.json"), ("view", "/no/such/file.json"), ("dump", "/"),
        ("bench", "--device", "cuda:77"), ("summary", "--depth", "0", "x"),
        ("view", "a", "--math", "int"), ("export", "/no/such/file.json"),
        ("export", "/no/such/file.py"), ("export", "a.json", "--step", "b"),
        ("export", "a.json", "--", "b"), ("export", "a.py", "--device", "cpu"),
        ("export", "a.py", "--seed", "0"), ("export", "."),
        ("export", "a.aicf"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_status_2(capsys, args):
    status, out, err = run(capsys, *args)
    assert status == 2 and "OK" not in out
    assert err.startswith("aicf") and err.count("\n") == 1 and err.endswith("\n")


def test_a_broken_graph_is_one_line_however_much_is_wrong(capsys, graph):
    record = json.loads(graph.read_text())
    for node in record["nodes"]:
        node["outputs"] = node["outputs"][::-1]
    graph.write_text(json.dumps(record))
    for args in (("summary", graph), ("view", graph), ("dump", graph), ("export", graph)):
        status, out, err = run(capsys, *args)
        assert status == 2 and "FormatError" in err and err.count("\n") == 1


def test_a_failed_check_is_status_1(capsys, monkeypatch):
    monkeypatch.setattr(verify, "LR", 0.5)
    status, out, _ = run(capsys, "verify", "--device", "cpu", "--replays", "2")
    assert status == 1 and "[FAIL]" in out


def test_ctrl_c_is_status_130(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "facts", interrupted)
    assert run(capsys, "info") == (130, "", "")


def test_the_console_script_is_this_command():
    (script,) = entry_points(group="console_scripts", name="aicf")
    assert script.load() is command.main


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "aicf", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"aicf {aicf.__version__}\n" and done.stderr == ""


def process(args, stdout, **environment):
    """The command as a process of its own, its output buffered as to a pipe or file."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-m", "aicf", *map(str, args)], stdout=stdout, stderr=subprocess.PIPE,
        text=True, env=clean | environment, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("args", [("info",), ("--help",)])
def test_a_broken_pipe_is_status_141(args):
    reader, writer = os.pipe()
    os.close(reader)
    done = process(args, writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_output_that_cannot_be_written_is_status_1():
    with open("/dev/full", "w") as full:
        done = process(["info"], full)
    assert done.returncode == 1 and "No space left" in done.stderr
    assert done.stderr.startswith("aicf info: OSError") and done.stderr.count("\n") == 1


def test_names_are_printed_in_any_encoding(tmp_path):
    g = aicf.Graph("größe")
    g.output("y", g.dense("schicht.ä", g.input("x", (2, 3)), 4))
    (tmp_path / "g.json").write_text(g.to_json(), encoding="utf-8")
    done = process(["summary", tmp_path / "g.json"], subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "") and "schicht.\\xe4" in done.stdout


# ---- info


def test_info_says_what_where_and_how(capsys):
    status, out, err = run(capsys, "info")
    assert status == 0 and err == ""
    for word in (aicf.__version__, sys.executable, _core.cpu_isa(), "driver", "cache", "auto"):
        assert word in out
    facts = json.loads(run(capsys, "info", "--json")[1])
    names = [fact["name"] for fact in facts]
    assert names[:4] == ["aicf", "python", "numpy", "cpu"] and len(names) == len(set(names))
    for fact in facts:
        assert fact["found"] or fact["missing"] or fact["where"]


FOUND = {"problem": "", "driver": "12.4", "nvrtc": "12.4 at /lib/libnvrtc.so.12",
         "cupti": "/lib/libcupti.so.12", "devices": [],
         "cache": "/cache", "cache_entries": 3, "cache_bytes": 2048}  # fmt: skip


def said_with(monkeypatch, cards=(), **found):
    monkeypatch.setattr(_core, "cuda_info", lambda: {**FOUND, **found}, raising=False)
    monkeypatch.setattr(info, "nvidia_cards", lambda: list(cards))
    return {fact.name: fact for fact in info.facts("0")}


def test_info_names_the_command_that_brings_what_is_missing(monkeypatch):
    all_there = said_with(monkeypatch)
    assert not any(fact.missing or fact.command for fact in all_there.values())
    assert all_there["nvrtc"].where == "/lib/libnvrtc.so.12"
    assert all_there["cache"].found == "3 kernels, 2 KiB"

    without = {"problem": "no NVIDIA driver: libcuda.so.1", "driver": ""}
    card = said_with(monkeypatch, cards=["0000:01:00.0"], **without)["driver"]
    assert "0000:01:00.0" in card.where and "libcuda" in card.missing and "install" in card.command
    none = said_with(monkeypatch, **without)["driver"]
    assert none.missing == "" and none.command == "" and "none needed" in none.where

    assert "aicf[cuda12]" in said_with(monkeypatch, nvrtc="")["nvrtc"].command
    assert "aicf[cuda13]" in said_with(monkeypatch, nvrtc="", driver="13.0")["nvrtc"].command
    assert "cupti-cu12<12.5'" in said_with(monkeypatch, cupti="")["cupti"].command
    assert "cupti<13.1'" in said_with(monkeypatch, cupti="", driver="13.0")["cupti"].command
    assert said_with(monkeypatch, cupti="", driver="")["cupti"].missing == ""
    old = said_with(monkeypatch, problem="the driver is too old")
    assert old["cuda"].missing == "the driver is too old"
    text = info.text_of(list(old.values()))
    assert "missing: the driver is too old" in text
    assert "install: pip" in info.text_of(list(said_with(monkeypatch, nvrtc="").values()))

    monkeypatch.delattr(_core, "cuda_info")
    facts = {fact.name: fact for fact in info.facts("0")}
    assert "pip install" in facts["cuda"].command


@pytest.mark.parametrize(
    ("name", "value", "fact"),
    [("AICF_DEVICE", "foo", 'device="auto"'), ("AICF_CPU_ISA", "foo", "cpu"),
     ("AICF_NUM_THREADS", "0", "cpu")],
)  # fmt: skip
def test_info_says_what_is_wrong_and_the_rest(name, value, fact):
    done = process(["info"], subprocess.PIPE, **{name: value})
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(fact + " "))
    assert "not known" in line and name in line and "need" in line
    assert all(f"\n{other} " in done.stdout for other in ("python", "numpy", "memory", name))


def test_cards_are_found_on_the_bus(tmp_path):
    for name, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030200"),
        ("0000:01:00.1", "0x10de", "0x040300"),  # its sound
        ("0000:02:00.0", "0x1002", "0x030000"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    (tmp_path / "0000:03:00.0").mkdir()  # gone meanwhile
    assert info.nvidia_cards(tmp_path) == ["0000:01:00.0"]


# ---- graphs


def test_summary(capsys, graph):
    status, out, _ = run(capsys, "summary", graph)
    assert status == 0 and "Linear, ReLU" in out and "launches" not in out
    status, out, _ = run(capsys, "summary", graph, "--device", "cpu", "--depth", "1")
    assert status == 0 and "launches" in out and "peak" in out


def test_view_writes_a_page_and_a_picture(capsys, graph, tmp_path):
    status, out, _ = run(capsys, "view", graph)
    page = tmp_path / "graph.html"
    assert status == 0 and out.startswith(f"{page}: 5 launches")
    assert page.read_text().startswith("<!doctype html>")

    times = tmp_path / "times.json"
    times.write_text("[1e-6, 2e-6, 3e-6, 4e-6, 5e-6]")
    other, svg = tmp_path / "other.html", tmp_path / "arena.svg"
    args = ("view", graph, "-o", other, "--svg", svg, "--times", times)
    assert run(capsys, *args)[0] == 0
    assert '"time":"5 \\u00b5s"' in other.read_text() and svg.read_text().startswith("<svg")

    for text, word in (("{}", "FormatError"), ("[1]", "ShapeError"), ("x", "FormatError"),
                       ('["a", 2, 3, 4, 5]', "DTypeError")):  # fmt: skip
        times.write_text(text)
        status, out, err = run(capsys, *args)
        assert status == 2 and word in err and out == ""


def test_no_input_is_written_over(capsys, graph, tmp_path):
    before = graph.read_text()
    page = tmp_path / "same.html"  # its default page would be itself
    page.write_text(before)
    link = tmp_path / "link.json"
    link.symlink_to(graph)
    times, other = tmp_path / "times.json", tmp_path / "other.html"
    times.write_text("[]")
    for args in ((page,), (graph, "-o", graph), (graph, "--svg", graph), (graph, "-o", link),
                 (graph, "--svg", graph.with_suffix(".html")),
                 (graph, "-o", other, "--svg", other),
                 (graph, "--times", times, "-o", times)):  # fmt: skip
        status, out, err = run(capsys, "view", *args)
        assert status == 2 and out == "" and "would write over" in err and err.count("\n") == 1
    assert graph.read_text() == page.read_text() == before and times.read_text() == "[]"
    assert not other.exists() and not graph.with_suffix(".html").exists()


def test_math_without_a_device_is_refused(capsys, graph):
    status, out, err = run(capsys, "summary", graph, "--math", "mixed")
    assert status == 2 and out == "" and "--math" in err and "needs --device" in err
    status, out, _ = run(capsys, "summary", graph, "--math", "mixed", "--device", "cpu")
    assert status == 0 and "math mixed" in out


def test_names_do_not_steer_the_terminal(capsys, graph):
    g = aicf.Graph("red\x1b[31m")
    g.output("y", g.dense("up\x1b[2J\r.\x9b", g.input("x", (2, 3)), 4))
    graph.write_text(g.to_json())
    for args in ((), ("--device", "cpu")):
        status, out, _ = run(capsys, "summary", graph, *args)
        assert status == 0 and all(letter.isprintable() for letter in out.replace("\n", ""))
        assert "red\\x1b[31m" in out and "up\\x1b[2J\\r" in out


# ---- export

PROGRAM = """
import sys
import aicf
import numpy as np

def scaled(name, by):
    g = aicf.Graph(name)
    w = g.param("w", (8,), init=aicf.init.constant(1.0))
    g.assign(w, w * by)
    g.output("y", w)
    return g.compile(device="cpu")

def main():
    steps = [scaled(word, 2.0 + i) for i, word in enumerate(sys.argv[1:])]
    for step in steps:
        step.replay(3)
    sys.exit(len(steps) == 3)

main()
"""


def test_a_graph_is_exported(capsys, graph, tmp_path):
    """As compile() begins with the seed."""
    status, out, err = run(capsys, "export", graph, "--seed", "5")
    target = graph.with_suffix(".aicf")
    assert (status, err) == (0, "") and out.startswith(f"{target}: ") and "on cpu" in out
    ours, theirs = aicf.load_step(target), aicf.Graph.from_json(graph.read_text())
    state = theirs.compile(device="cpu", seed=5).state_dict()
    assert {name: array.tobytes() for name, array in ours.state_dict().items()} == {
        name: array.tobytes() for name, array in state.items()
    }


def test_a_programs_step_is_exported(capsys, tmp_path):
    """With what its params hold at the end; of several the one that is named."""
    path, target = tmp_path / "program.py", tmp_path / "step.aicf"
    path.write_text(PROGRAM)
    compiled = aicf.Graph.compile
    assert run(capsys, "export", path, "-o", target, "--", "one")[::2] == (0, "")
    assert aicf.load_step(target).params["w"].numpy().tolist() == [8.0] * 8
    status, _, err = run(capsys, "export", path, "-o", target, "--", "one", "two")
    assert status == 2 and "compiled one, two; --step says which" in err and err.count("\n") == 1
    args = ("export", path, "-o", target, "--step", "two", "--", "one", "two")
    assert run(capsys, *args)[::2] == (0, "")
    assert aicf.load_step(target).params["w"].numpy().tolist() == [27.0] * 8
    status, _, err = run(capsys, "export", path, "--step", "three", "--", "one", "two")
    assert status == 2 and "--step three was not compiled; there is one, two" in err
    status, _, err = run(capsys, "export", path)
    assert status == 2 and "compiled no step" in err
    target.unlink()
    assert run(capsys, "export", path, "-o", target, "--", "a", "b", "c") == (1, "", "")
    assert not target.exists() and aicf.Graph.compile is compiled


def test_a_program_that_profiles_and_moves_is_exported(capsys, monkeypatch, tmp_path):
    """What a profile compiles to know the ceiling is no step of the program; -o is taken before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("aicf.profile._ceilings", {})
    (tmp_path / "elsewhere").mkdir()
    program = PROGRAM.replace("step.replay(3)", "step.replay(2); step.profile(1)")
    for extra in ("", "import os; os.chdir('elsewhere')\n"):
        (tmp_path / "program.py").write_text(extra + program)
        assert run(capsys, "export", "program.py", "-o", "step.aicf", "--", "copy")[::2] == (0, "")
        assert aicf.load_step(tmp_path / "step.aicf").params["w"].numpy().tolist() == [8.0] * 8
        (tmp_path / "step.aicf").unlink()
        os.chdir(tmp_path)


# ---- bench


def test_bench(capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "_ROUND", 1e-4)
    status, out, _ = run(capsys, "bench", "--device", "cpu", "--rounds", "3")
    lines = out.splitlines()
    assert status == 0 and len(lines) == 2 + len(benchmark.STEPS) == 6
    for line, name in zip(lines[2:], benchmark.STEPS, strict=True):
        assert line.startswith(name) and re.search(r"\[.*s \.\. .*s\]", line) and "FLOP/s" in line
    monkeypatch.setattr(benchmark, "STEPS", dict([*benchmark.STEPS.items()][:1]))
    record = json.loads(run(capsys, "bench", "--device", "cpu", "--rounds", "3", "--json")[1])
    (step,) = record["steps"]
    assert len(step["rounds"]) == 3 and all(seconds > 0 for seconds in step["rounds"])
    assert step["flops"] > 0 and step["peak_bytes"] > 0 and record["device"] == "cpu"


# ---- cache


def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path / "cache"))


needs_cuda = pytest.mark.skipif(not hasattr(_core, "cuda_info"), reason="no CUDA backend here")


@needs_cuda
def test_cache(capsys, graph, tmp_path, monkeypatch):
    if not _core.cuda_info()["nvrtc"]:
        pytest.skip("no NVRTC")
    cached(tmp_path, monkeypatch)
    g = aicf.Graph("one")
    g.output("y", aicf.exp(g.input("x", (4,))))
    graph.write_text(g.to_json())
    status, out, _ = run(capsys, "cache", "warm", graph, "--arch", "sm_80")
    assert status == 0 and "1 kernels" in out
    status, out, _ = run(capsys, "cache", "list")
    assert status == 0 and re.search(r"KiB +sm_80 +exp_f32", out) and "1 kernels" in out
    assert run(capsys, "cache", "size")[1] == out.splitlines()[-1] + "\n"
    assert run(capsys, "cache", "clear") == (0, "1 kernels removed\n", "")
    assert run(capsys, "cache", "list")[1].startswith(f"{tmp_path / 'cache'}: 0 kernels")


@needs_cuda
def test_a_cache_without_a_folder_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    status, out, _ = run(capsys, "cache", "list")
    assert status == 0 and "0 kernels" in out and "file" in out


def test_a_build_without_cuda_has_no_cache(capsys, monkeypatch):
    monkeypatch.delattr(_core, "cuda_info", raising=False)
    status, out, err = run(capsys, "cache", "size")
    assert status == 2 and "no CUDA backend" in err and out == ""


# ---- the bar


def some(terminal, seconds=20.0):
    """What a terminal was sent; empty when nothing comes in that time."""
    ready, _, _ = select.select([terminal], [], [], seconds)
    return os.read(terminal, 1000) if ready else b""


def drawn(doing, columns=0):
    """Three bars and the end of a Progress on a terminal of that width; 0: it tells none."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(inner, "w") as stream:
        with Progress(doing, 0.0, stream):
            said = b""
            while said.count(b"\r") < 3 and (more := some(outer)):
                said += more
        said += some(outer)
    os.close(outer)
    return said.decode()


def test_a_bar_is_drawn_on_a_terminal_and_wiped():
    said = drawn("compiling")
    assert "compiling [======" in said and said.endswith("\r\x1b[K")


def test_a_bar_fits_its_terminal_and_names_do_not_steer_it():
    for columns in (10, 60):
        lines = drawn("compiling \x1b[2J" + "x" * 100, columns).split("\r\x1b[K")
        assert len(lines) > 3 and all(len(line) < columns for line in lines)
        assert "\x1b" not in "".join(lines)
    assert lines[1].startswith("compiling \\x1b[2Jxx") and " s" in lines[1]


def test_a_process_without_stderr_draws_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with Progress("compiling", 0.0):
        time.sleep(0.01)


def test_nothing_is_drawn_elsewhere(tmp_path):
    with (tmp_path / "log").open("w+") as stream:
        with Progress("compiling", 0.0, stream):
            time.sleep(0.05)
        assert stream.tell() == 0


def test_short_work_draws_nothing():
    outer, inner = pty.openpty()
    with os.fdopen(inner, "w") as stream:
        with Progress("compiling", 60.0, stream):
            pass
        stream.write("end")
    assert some(outer) == b"end"
    os.close(outer)
