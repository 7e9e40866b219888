"""Profiles on a driver without a GPU and a CUPTI that tells what the test wants."""

import pytest
from test_cuda_fake import (
    assert_clean,
    driver,  # noqa: F401 (a fixture)
    run,
)

PROFILE = """
import os
import sys
import numpy as np
import aicf
from aicf import profile, verify
from tensors import CapsuleTensor

name, case = next(iter(verify.CASES.items()))
profile.ceiling = lambda device, math: profile.Ceiling(1e12, 1e13)
clock, problem, untimed = sys.argv[1:]

def build(**options):
    return verify.build(name, case).compile(device="cuda", **options)

def attached():
    with open("/proc/self/maps") as maps:
        return "libcupti" in maps.read()

step = build()
spare = build()
weight = spare.params["0.W"].__dlpack__(max_version=(1, 0), copy=True)
del spare
step.bind(**{"0.W": CapsuleTensor(weight)})  # the timed form has its address
step.replay(3)
assert not attached()
found = step.profile(20)
assert attached()
assert (found.clock, found.untimed) == (clock, int(untimed)), (found.clock, found.problem)
assert problem in found.problem and bool(problem) == bool(found.problem), found.problem
assert step.steps_run == found.steps + found.untimed + 3 == 23
for launch, op in zip(found.launches, step.lowered, strict=True):
    assert launch.kernel == op["kernel"] and launch.lane == op["lane"]
    assert launch.blocks >= 1 and launch.threads >= 32 and launch.shared_bytes >= 0
    assert len(launch.times) == found.steps and launch.least > 0
for lane in {launch.lane for launch in found.launches}:
    for i, wall in enumerate(found.walls):
        taken = sum(l.times[i] for l in found.launches if l.lane == lane)
        assert 0 < taken <= wall + 1e-9, (lane, i, taken, wall)
assert all(wall < 1 for wall in found.walls)  # the clocks are brought together
ends = found._spans[:, 0, 1]
assert (found._spans[1:, 0, 0] >= ends[:-1] - 1e-9).all()  # one step after another
x = np.zeros((case.batch, case.inputs), np.float32)
t = np.zeros((case.batch, case.outputs), np.float32)
with aicf.profiler() as prof:
    step(x=x, t=t, stream=1)
    step.replay(2, stream=2)
    step.run(x=x, sync="full")
    step(x=x, t=t)
assert [p.steps for p in prof.profiles] == [4, 1] and step.steps_run == 28
assert prof.profiles[1].clock == "events"
assert f"{found.launches[0].blocks}x{found.launches[0].threads}" in found.table()
assert ("without CUPTI: " in found.table()) == bool(problem)
assert build(capture=False).profile(2).clock == "events"
print("done")
"""


def profiled(driver, clock, problem="", untimed=0, **environment):  # noqa: F811
    words = f"import sys; sys.argv[1:] = {[clock, problem, str(untimed)]!r}"
    out, counts = run(driver, words + PROFILE, **environment)
    assert out.split() == ["done"]
    assert_clean(counts)
    return counts["told"]


def test_a_profile(driver):  # noqa: F811
    """Replays as they are, on bound memory, with the times that CUPTI tells, among those of others;
    it is attached for a profile, and once for all calls of a profiler."""
    assert profiled(driver, "cupti")["enables"] == 2


def test_a_profile_where_nodes_do_not_say_their_order(driver):  # noqa: F811
    profiled(driver, "cupti", FAKE_CUPTI="shuffle")


@pytest.mark.parametrize(
    "wrong, problem",
    [
        ("version", "version 140000 are not known; need 22 to 28 or 130000"),
        ("subscriber", "cuptiSubscribe met CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"),
        ("enable", "cuptiActivityEnable met CUPTI_ERROR (35)"),
    ],
)
def test_a_profile_without_cupti(driver, wrong, problem):  # noqa: F811
    """A chain of all launches with events that have times; the profile says why."""
    told = profiled(driver, "events", problem, FAKE_CUPTI=wrong)
    assert told["subscribed"] == told["enabled"] == 0


@pytest.mark.parametrize("wrong", ["drop", "zero", "names"])
def test_a_profile_that_cupti_spoils(driver, wrong):  # noqa: F811
    """The step before that is seen has no times; events time the others."""
    profiled(driver, "cupti, events", "CUPTI told of", 1, FAKE_CUPTI=wrong)


@pytest.mark.parametrize("call", ["cuGraphAddEventRecordNode", "cuEventElapsedTime"])
def test_a_profile_that_fails(driver, call):  # noqa: F811
    """It is a typed error, gives all back, and the next one succeeds."""
    script = """
import aicf
from aicf import verify
name, case = next(iter(verify.CASES.items()))
step = verify.build(name, case).compile(device="cuda")
for attempt in range(2):
    try:
        step._profile(1)
        print("done")
    except aicf.OutOfMemory as error:
        print("failed")
"""
    out, counts = run(driver, script, FAKE_CUDA_CALL=call, FAKE_CUPTI="subscriber")
    assert out.split() == ["failed", "done"]
    assert_clean(counts)
