"""The CPU's kernels of rows, windows and edges, on every instruction set."""

import os
import subprocess
import sys
from pathlib import Path

import cpu_row_cases
import pytest
from isas import used_isas


@pytest.mark.parametrize("case", cpu_row_cases.CASES, ids=lambda case: case.__name__)
def test_bits(case, rng):
    case(rng)


@pytest.mark.parametrize("isa", used_isas())
def test_instruction_sets(isa):
    said = subprocess.run(
        [sys.executable, Path(__file__).parent / "cpu_row_cases.py"],
        env={**os.environ, "AICF_CPU_ISA": isa},
        capture_output=True,
        text=True,
    )
    assert said.stdout == f"{isa}\n", said.stderr
