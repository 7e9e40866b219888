"""Thousands of graphs of shapes around every size at which a CPU kernel goes another way: the bits
are equal in every setting and instruction set, and the values are float64's. tests/boundary.py says
how; a failure names the command that runs its graph again."""

import re
from pathlib import Path

import boundary
import faults
import pytest
from boundary_programs import FAMILIES
from boundary_shapes import table, targets
from isas import machine_isas

KERNELS = Path(__file__).resolve().parents[1] / "src" / "kernels"


@pytest.fixture(scope="module")
def tally_of():
    """tally_of(family) runs the family's graphs, once."""
    known = {}

    def run(family):
        if family not in known:
            known[family] = boundary.run_family(boundary.SEED, family, boundary.GRAPHS[family])
        return known[family]

    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, tally_of):
    tally = tally_of(family)
    print(tally)
    assert not tally.problems, "\n".join(tally.problems[:5])
    assert tally.graphs == boundary.GRAPHS[family]
    assert not (missing := tally.missing([family])), f"never met: {missing}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_settings(tally_of):
    """Enough graphs, and every combination of settings in many of them."""
    whole = boundary.Tally(boundary.SEED)
    for family in FAMILIES:
        whole.merge(tally_of(family))
    print(whole)
    assert whole.graphs >= 3000
    wanted = len(machine_isas()) * len(boundary.PASSES) * len(boundary.THREADS) * 3
    assert len(whole.combinations) == wanted
    assert min(whole.combinations.values()) >= 20


def test_every_threshold_has_a_family():
    aimed_at = {t[:3] for family in FAMILIES.values() for t in targets(family.quantities)}
    assert set(table()) == aimed_at


# Numbers of the CPU's kernels that are no size of an operand; the steps of products in a tensor
# core's order, which tests/test_tensor_orders.py draws around; those of sorts and of sums by
# index, around which tests/test_indexing.py draws; that of folds, which has its rows in
# tests/spatial_cases.py; and those of attention, around which tests/test_attention.py draws.
NO_SIZES = {
    "kAdamNumbers", "kDepth", "kDrawn", "kFoldColumns", "kHeldSums", "kHugePage",
    "kInserted", "kLanes", "kMaxHeld", "kMaxInstrOperands", "kMaxPhases", "kMaxSlots",
    "kMaxVectors", "kMostBlock", "kPooled", "kRounds", "kRowOperands",
    "kRowSlots", "kSlack", "kStepTile",
}  # fmt: skip


def test_thresholds_stand_in_the_table():
    """A kernel neither defines a size of its own nor compares with one, vectors' bytes apart."""
    found, others = [], set()
    for path in sorted((KERNELS / "cpu").glob("*")):
        if path.stem == "thresholds":
            continue
        for at, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition("//")[0]
            others |= set(own := re.findall(r"constexpr [\w:]+ (k[A-Z]\w*)\s*=\s*[\d(]", code))
            compared = re.findall(r"[^<>][<>]=? (?:int64_t\()?(\d{2,})\b(?! \*)", code)
            found += [f"{path.name}:{at}: {line.strip()}" for name in own if name not in NO_SIZES]
            if not re.search(r"sizeof|[bB]ytes|for \(int i", code):
                found += [f"{path.name}:{at}: {line.strip()}" for _ in compared]
    assert not found, "sizes outside of thresholds.h:\n" + "\n".join(found)
    assert others == NO_SIZES


@pytest.mark.slow
def test_faults_configure(tmp_path):
    """What is copied to be built with faults is all that a build needs."""
    tree, build = faults.configure(tmp_path, "baseline")
    assert (tree / "src").is_dir() and (build / "CMakeCache.txt").exists()


def test_faults_fit():
    """Each planted fault has its place, once."""
    assert len(faults.FAULTS) >= 10
    for fault in faults.FAULTS:
        right = fault.line.format(fault.right)
        count = faults.path_of(fault).read_text().count(right)
        assert count == 1, f"{fault.name}: {count} times in {fault.file}: {right}"
        assert fault.wrong != fault.right and fault.families[0] in FAMILIES
