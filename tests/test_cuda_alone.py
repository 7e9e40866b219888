"""Long kernels that are launched by themselves, each ready before the one before it is done: what
they read of one another, of copies and of graphs between them."""

import aicf
import numpy as np
import pytest

pytestmark = pytest.mark.gpu
COUNT = 1 << 22


def becomes(name, make):
    """A step that makes s of itself, by one kernel."""
    g = aicf.Graph(name)
    s = g.state("s", (COUNT,))
    g.assign(s, make(s))
    return g


def beside(s):
    """By kernels side by side, of which the longer one writes s."""
    return aicf.where(aicf.max(s[:64]) > 1e30, s, aicf.sin(s) * aicf.exp(-(s * s)) + s * 0.5)


MAKES = {
    "beside": beside,
    "grow": lambda s: s * 1.5 - 0.25,
    "bend": lambda s: aicf.sin(s * 1.7 + 0.3),
    "mix": lambda s: aicf.tanh(aicf.sin(s) * s + aicf.exp(-(s * s))) * aicf.sigmoid(s),
    "rows": lambda s: aicf.softmax(s.reshape(COUNT // 512, 512) * 40.0).reshape(COUNT) - 0.05,
    "turn": lambda s: aicf.concat([s[7:], s[:7]]),
}


def steps_on(device):
    steps = []
    for name, make in MAKES.items():
        share = {"share": steps[0]} if steps else {}
        steps.append(becomes(name, make).compile(device=device, checks="off", **share))
    return dict(zip(MAKES, steps, strict=True))


ORDERS = {
    "one": ["mix"] * 20,
    "in turn": list(MAKES) * 4,
    "all pairs": [name for a in MAKES for b in MAKES for name in (a, b)],
}


@pytest.mark.parametrize("order", ORDERS)
def test_behind_one_another(order):
    start = np.random.default_rng(5).standard_normal(COUNT).astype(np.float32)
    ends = []
    for device in ("cpu", "cuda"):
        steps = steps_on(device)
        steps["grow"].load_state_dict({"s": start})
        for name in ORDERS[order]:
            steps[name].replay()
        ends.append(steps["grow"].state_dict()["s"])
    assert ends[0].tobytes() == ends[1].tobytes()


def test_behind_copies():
    """A state set between replays, and host arrays of calls: a kernel waits for their copies."""
    rng = np.random.default_rng(6)
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("copies")
        s = g.state("s", (COUNT,))
        g.assign(s, aicf.tanh(s * 0.5 + g.input("x", (COUNT,))))
        step = g.compile(device=device, checks="off")
        for k in range(6):
            if k % 3 == 2:
                step.load_state_dict({"s": np.full(COUNT, k, np.float32)})
            step(x=rng.standard_normal(COUNT).astype(np.float32))
            step.replay()
        rng = np.random.default_rng(6)
        ends.append(step.state_dict()["s"])
    assert ends[0].tobytes() == ends[1].tobytes()
