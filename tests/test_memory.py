"""Memory that runs out anywhere is an error like others: a sample of what tests/memory.py tries
whole."""

import os
import re
import subprocess
import sys
from pathlib import Path

import memory
import pytest
from test_cuda_fake import driver  # noqa: F401 (a fixture)

HERE = Path(__file__).parent
MISSING = memory.missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="another library is in front"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return memory.build_library(tmp_path_factory.mktemp("failing_memory"))


def check(library, *arguments, driver=None):  # noqa: F811
    """How many failures were tried; the report, where one went wrong."""
    done = memory.start(library, arguments, driver, stdout=subprocess.PIPE, text=True)
    found = re.search(r"total: (\d+) calls, (\d+) tried, (\d+) wrong, (\d+) deaths", done.stdout)
    assert found and done.returncode == 0, done.stdout
    return int(found[2])


@pytest.mark.parametrize("kind", ["once", "rest"])
def test_every_road(library, kind):
    assert check(library, "--kinds", kind, "--most", 48) > 800


WARM = """
import memory_roads as roads
from aicf import _core
for graph in (roads.mlp(), roads.average(), roads.negated()):
    _core.cuda_cubins(_core.cuda_programs(graph._core, _core.pass_names()), "sm_90a")
"""


@pytest.mark.parametrize("kind", ["once", "rest", "device", "device-rest"])
def test_every_road_to_a_device(library, driver, kind):  # noqa: F811
    environment = {**os.environ, "AICF_CACHE_DIR": str(driver / "cache"), "PYTHONPATH": str(HERE)}
    subprocess.run([sys.executable, "-c", WARM], env=environment, check=True)
    # Calls of the driver are few.
    most, least = (0, 500) if kind.startswith("device") else (24, 150)
    assert check(library, "--kinds", kind, "--most", most, driver=driver) > least
