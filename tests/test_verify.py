"""The command line: `verify` passes here, and fails when something is wrong."""

import json
import subprocess
import sys

import aicf
import numpy as np
import pytest
from aicf import __main__ as command
from aicf import verify


def test_run_passes(device):
    lines = []
    log = verify.run(device=device, replays=5, write=lines.append)
    assert log.failed == []
    text = "\n".join(lines)
    for name in verify.CASES:
        assert name in text
    order = [
        "reference forward loss",
        "[ir] topo OK",
        "LOWERED OPS",
        "PLAN",
        "[capture] done",
        "TRACE OPS",
        "[lowering] match",
        "[adam] state mutation",
        "[A 00]",
        "[B 00]",
        "Determinism OK",
        "Eager OK",
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert lines[-1] == "OK"


def run_main(*args):
    return command.main(list(args))


def test_exit_status(capsys):
    assert run_main("verify", "--device", "cpu", "--replays", "3") == 0
    assert capsys.readouterr().out.rstrip().endswith("OK")


def sabotage_reference(monkeypatch):
    sound = verify.reference_step

    def wrong(state, x, t):
        loss = sound(state, x, t)
        state["2.b"] += 1e-4
        return loss

    monkeypatch.setattr(verify, "reference_step", wrong)


def sabotage_rate(monkeypatch):
    sound = verify.optim.Adam
    monkeypatch.setattr(verify.optim, "Adam", lambda lr, **rest: sound(lr=1.5 * lr, **rest))


def sabotage_large_step(monkeypatch):
    monkeypatch.setattr(verify, "LR", 0.5)


def sabotage_determinism(monkeypatch):
    sound, calls = verify.state_hash, []

    def wrong(step):
        calls.append(1)
        return sound(step) + str(len(calls) % 7)

    monkeypatch.setattr(verify, "state_hash", wrong)


def sabotage_loss(monkeypatch):
    def wrong(y, t):
        return aicf.mean(aicf.abs(y - t))

    monkeypatch.setattr(verify, "mse_loss", wrong)


def sabotage_eager(monkeypatch):
    sound = verify.Step.run

    def wrong(self, **inputs):
        out = sound(self, **inputs)
        self.params["0.b"] = self.params["0.b"].numpy() * np.float32(1.0000001)
        return out

    monkeypatch.setattr(verify.Step, "run", wrong)


def sabotage_trace(monkeypatch):
    sound = verify.Step.trace
    monkeypatch.setattr(verify.Step, "trace", property(lambda self: sound.fget(self)[:-1]))


@pytest.mark.parametrize(
    "sabotage",
    [
        sabotage_reference,
        sabotage_rate,
        sabotage_large_step,
        sabotage_determinism,
        sabotage_loss,
        sabotage_eager,
        sabotage_trace,
    ],
)
def test_sabotage_is_found(sabotage, monkeypatch, capsys):
    sabotage(monkeypatch)
    assert run_main("verify", "--device", "cpu", "--replays", "3") == 1
    assert "[FAIL]" in capsys.readouterr().out


def test_json(capsys):
    assert run_main("verify", "--device", "cpu", "--replays", "2", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["ok"] is True and len(record["checks"]) > 20
    assert all(check["ok"] for check in record["checks"])


def test_dump_option(capsys):
    assert run_main("verify", "--device", "cpu", "--replays", "2", "--dump") == 0
    out = capsys.readouterr().out
    assert "=== IR DUMP ===" in out and '"AdamStep"' in out


def test_bad_arguments(capsys):
    for args in (["verify", "--replays", "0"], ["nothing"], [], ["dump"]):
        with pytest.raises(SystemExit) as stopped:
            run_main(*args)
        assert stopped.value.code == 2
    assert run_main("verify", "--device", "gpu") == 2
    assert run_main("dump", "/no/such/file.json") == 2
    assert "Error" in capsys.readouterr().err


def test_info(capsys):
    assert run_main("info") == 0
    out = capsys.readouterr().out
    assert aicf.__version__ in out and "threads" in out


def test_dump(tmp_path, capsys):
    path = tmp_path / "graph.json"
    path.write_text(verify.build("dumped", verify.CASES["train_step_distinct"]).to_json())
    assert run_main("dump", str(path)) == 0
    out = capsys.readouterr().out
    for stage in ("IR", "PASSES", "LOWERED", "PLAN"):
        assert f"=== {stage} ===" in out
    assert "adam_step" in out and "%0" in out
    assert run_main("dump", str(path), "--stage", "dot") == 0
    assert capsys.readouterr().out.startswith("digraph")
    path.write_text("{}")
    assert run_main("dump", str(path)) == 2


def test_dump_of_a_broken_graph(tmp_path, capsys):
    record = json.loads(verify.build("broken", verify.CASES["train_step_distinct"]).to_json())
    record["nodes"][1]["op"] = "Unheard"
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(record))
    assert run_main("dump", str(path)) == 2
    assert run_main("dump", "--lenient", str(path)) == 1
    assert "[FAIL] [ir] ops: node 1 Unheard" in capsys.readouterr().out


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "aicf", "verify", "--device", "cpu", "--replays", "2"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.rstrip().endswith("OK") and not done.stderr
