"""Pairs of pointwise ops that are one instruction on a CPU, on every instruction set."""

import os
import subprocess
import sys
from pathlib import Path

import cpu_pair_cases
import pytest
from isas import used_isas


@pytest.mark.parametrize("case", cpu_pair_cases.CASES, ids=lambda case: case.__name__)
def test_bits(case, rng):
    case(rng)


@pytest.mark.parametrize("isa", used_isas())
def test_instruction_sets(isa):
    said = subprocess.run(
        [sys.executable, Path(__file__).parent / "cpu_pair_cases.py", "200"],
        env={**os.environ, "AICF_CPU_ISA": isa},
        capture_output=True,
        text=True,
    )
    assert said.stdout == f"{isa}\n", said.stderr
