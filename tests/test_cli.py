"""The command `aicf`: each of its commands, its exit status, and what it says when it cannot."""

import json
import os
import pty
import re
import subprocess
import sys
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


COMMANDS = ("verify", "info", "dump", "summary", "view", "bench", "cache", "cache list",
            "cache size", "cache clear", "cache warm")  # fmt: skip


@pytest.mark.parametrize("name", ("", *COMMANDS))
def test_help_names_every_option(capsys, name):
    status, out, err = run(capsys, *name.split(), "--help")
    assert status == 0 and err == "" and out.startswith("usage: aicf")
    if not name:
        assert all(re.search(rf"^ +{one} +[A-Z]", out, re.M) for one in COMMANDS if " " not in one)
        assert "Exit status" in out
    for option in re.findall(r"^  (--?\w[^ \n]*)", out.partition("options:")[2], re.M):
        assert option in out


@pytest.mark.parametrize(
    "args",
    [
        (), ("nothing",), ("dump",), ("cache",), ("cache", "info"), ("bench", "--rounds", "0"),
        ("bench", "--rounds", "many"), ("verify", "--replays", "1"), ("verify", "--device", "gpu"),
        ("summary", "/no/such/file.json"), ("view", "/no/such/file.json"), ("dump", "/"),
        ("bench", "--device", "cuda:77"), ("summary", "--depth", "0", "x"),
        ("view", "a", "--math", "int"),
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
    for args in (("summary", graph), ("view", graph), ("dump", graph)):
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


FOUND = {"problem": "", "driver": "12.4", "nvrtc": "12.4 at /lib/libnvrtc.so.12", "devices": [],
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
    old = said_with(monkeypatch, problem="the driver is too old")
    assert old["cuda"].missing == "the driver is too old"
    text = info.text_of(list(old.values()))
    assert "missing: the driver is too old" in text

    monkeypatch.delattr(_core, "cuda_info")
    facts = {fact.name: fact for fact in info.facts("0")}
    assert "pip install" in facts["cuda"].command


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


def test_a_bar_is_drawn_on_a_terminal_and_wiped():
    outer, inner = pty.openpty()
    with os.fdopen(inner, "w") as stream:
        with Progress("compiling", 0.0, stream):
            deadline = time.monotonic() + 20
            said = b""
            while said.count(b"\r") < 3 and time.monotonic() < deadline:
                said += os.read(outer, 1000)
        said += os.read(outer, 1000)
    os.close(outer)
    assert "compiling [━━━━━━" in said.decode() and said.endswith(b"\r\x1b[K")


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
    assert os.read(outer, 100) == b"end"
    os.close(outer)
