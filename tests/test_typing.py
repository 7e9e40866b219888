"""What type checkers and editors know of aicf, by mypy on a program of a user's."""

import subprocess
import sys

import pytest
import value_methods

PROGRAM = """
import aicf
g = aicf.Graph("g")
x = g.input("x", (2, 3))
y = (1.0 + x * 2.0 @ x.T).sum(axis=0, keepdims=True).reshape((3,)).relu()
reveal_type(y)
step = g.compile(device="cpu")
reveal_type(step)
out = step(x)
reveal_type(out["y"])
reveal_type(out["y"].numpy())
reveal_type(step.params["w"])
reveal_type(y.split(3))
x.nonsense()
x.sum(dim=0)
"""
SAID = [
    '6: note: Revealed type is "aicf.value.Value"',
    '8: note: Revealed type is "aicf.step.Step"',
    '10: note: Revealed type is "aicf._core.Array"',
    '11: note: Revealed type is "numpy.ndarray',
    '12: note: Revealed type is "aicf._core.Array"',
    '13: note: Revealed type is "list[aicf.value.Value]"',
    '14: error: "Value" has no attribute "nonsense"',
    '15: error: Unexpected keyword argument "dim" for "sum"',
]


def test_the_methods_of_value_are_current():
    assert value_methods.FILE.read_text() == value_methods.text()


def test_a_program_is_understood(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = [line for line in found.stdout.splitlines() if line.startswith("program.py:")]
    lines = [line.replace("builtins.", "") for line in lines if "defined in" not in line]
    for line, said in zip(lines, SAID, strict=True):
        assert line.startswith(f"program.py:{said}"), found.stdout
