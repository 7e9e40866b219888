"""Eager calls that come again, launched by graphs, on the driver without a GPU: those that fail, a
child of theirs."""

import pytest
from test_cuda_fake import (
    ILLEGAL_ADDRESS,
    assert_clean,
    driver,  # noqa: F401 (a fixture)
    run,
    warm,  # noqa: F401 (a fixture)
)

AGAIN = """
import os
import aicf

g = aicf.Graph("operands")
g.param("w", (8,))
g.output("y", -g.param("v", (8,)))
step = g.compile(device="cuda")

class Foreign:
    def __init__(self, name):
        self.held = step.params[name].__dlpack__(max_version=(1, 0), copy=True)
        self.param = step.params[name]
    def __dlpack_device__(self):
        return (2, 0)
    def __dlpack__(self, **options):
        return self.param.__dlpack__(max_version=(1, 0), copy=True)

def neg():
    aicf.op_call("neg", [Foreign("w")], [Foreign("v")], sync="none")

for turn in range(20):
    try:
        neg()
    except aicf.Error as error:
        print(turn, type(error).__name__, error)
{then}
"""


@pytest.mark.parametrize("name", ["cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch"])
def test_launches_of_graphs_that_fail(warm, name):  # noqa: F811
    """As other launches do: the next call is none the worse, but for a lost device."""
    out, counts = run(warm, AGAIN.format(then=""), FAKE_CUDA_CALL=name)
    turn = 8 if "SetParams" in name else 7
    assert out.startswith(f"{turn} OutOfMemory cuda: the launch of neg (") and out.count("\n") == 1
    assert_clean(counts)
    out, _ = run(warm, AGAIN.format(then=""), FAKE_CUDA_CALL=name, FAKE_CUDA_CODE=ILLEGAL_ADDRESS)
    assert out.splitlines()[0].startswith(f"{turn} DeviceLost cuda: the launch of neg (")
    assert out.count("DeviceLost") == 20 - turn


def test_a_child_of_calls_that_come_again(warm):  # noqa: F811
    """Its parent's graphs are not its own."""
    script = """
child = os.fork()
if child == 0:
    try:
        neg()
    except aicf.DeviceUnavailable as error:
        assert "fork" in str(error)
        raise SystemExit(7)
assert os.waitpid(child, 0)[1] == 7 << 8
neg()
print("done")
"""
    out, counts = run(warm, AGAIN.format(then=script))
    assert out == "done\n"
    assert_clean(counts)
