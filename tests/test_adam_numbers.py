"""Adam's root and quotient without branches have the bits of the correctly rounded ones."""

import aicf
import numpy as np
import pytest

ROWS, WIDE, DEEP = 64, 256, 64
EPS = [1e-8, 0.0, 1e-15, 1e-30, 1.0, 1e12]


def floats(rng, shape, near):
    """Of all bits, or of those that training has; zeros of both signs among them."""
    x = rng.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.float32)
    if near:
        x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-100, 30, shape)).astype(np.float32)
    few = rng.integers(0, 16, shape)
    return np.where(few == 0, np.float32(0), np.where(few == 1, np.float32(-0.0), x))


def states(device, behind, eps, near, seed):
    """The state after two steps from any state, the gradient made before or in one launch with a
    product."""
    rng = np.random.default_rng(seed)
    g = aicf.Graph("numbers")
    w = g.param("w", (DEEP, WIDE))
    if behind:  # what the product makes is a row of x
        y = aicf.matmul(g.input("x", (ROWS, DEEP)), w)
        loss = aicf.sum(y * g.input("t", y.shape))
        feed = {"x": np.eye(ROWS, DEEP, dtype=np.float32), "t": floats(rng, (ROWS, WIDE), near)}
    else:
        loss = aicf.sum(w * g.input("t", w.shape))
        feed = {"t": floats(rng, (DEEP, WIDE), near)}
    g.minimize(loss, aicf.optim.Adam(lr=1e-2, eps=eps))
    step = g.compile(device=device)
    kept = step.state_dict()
    for name, value in kept.items():
        if np.asarray(value).shape == (DEEP, WIDE):
            kept[name] = floats(rng, value.shape, near)
    step.load_state_dict(kept)
    for _ in range(2):
        step(**feed)
    return {name: np.asarray(value).copy() for name, value in step.state_dict().items()}


@pytest.mark.gpu
@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("eps", EPS)
def test_bits_of_any_numbers(eps, behind, near):
    for seed in range(4):
        want, got = (states(device, behind, eps, near, seed) for device in ("cpu", "cuda"))
        for name, value in want.items():
            if value.dtype == np.float32:  # any NaN is as good as another
                value, got[name] = (
                    np.where(x == x, x, np.float32(np.nan)) for x in (value, got[name])
                )
            assert value.tobytes() == got[name].tobytes(), name
