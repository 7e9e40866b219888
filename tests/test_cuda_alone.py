"""Long kernels that are launched by themselves, each ready before the one before it is done: what
they read of one another, of copies and of graphs between them."""

import aicf
import ml_dtypes
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


MAKES = {
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


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(320, "float32"), (512, "float32"), (768, "bfloat16"), (1024, "bfloat16"), (2048, "bfloat16")],
)
def test_products_behind_one_another(size, dtype):
    """Each reads what the one before it wrote, and not before that is done."""
    rng = np.random.default_rng(size)
    start, weights = rng.standard_normal((2, size, size), np.float32)
    wide = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype]
    values = {"s": start, "t": 0 * start, "w": weights / np.sqrt(np.float32(size))}

    def product(to, of, first=None):
        g = aicf.Graph(f"{to} of {of}")
        states = {name: g.state(name, (size, size), dtype) for name in ("s", "t")}
        w = g.state("w", (size, size), dtype)
        g.assign(states[to], aicf.matmul(states[of], w))
        return g.compile(device="cuda", checks="off", **({"share": first} if first else {}))

    there = product("t", "s")
    back = product("s", "t", there)
    ends = []
    for waits in (True, False):
        there.load_state_dict({name: value.astype(wide) for name, value in values.items()})
        for _ in range(20):
            for step in (there, back):
                step.replay()
                if waits:
                    step.synchronize()
        ends.append(there.state_dict()["s"].tobytes())
    assert ends[0] == ends[1]
