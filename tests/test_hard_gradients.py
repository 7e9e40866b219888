"""Gradients where elements are equal, zero or at a limit: PyTorch's, as numbers."""

import aicf
import numpy as np
import pytest
from conftest import outputs_of

CASES = {
    "logaddexp of equal ones": (aicf.logaddexp, [[1.0, -2, 0]] * 2, [[0.5, 0.5, 0.5]] * 2),
    "fmax of equal ones": (aicf.fmax, [[1.0, 2], [1.0, np.nan]], [[1.0, 1], [0.0, 0]]),
    "fmin of equal ones": (aicf.fmin, [[1.0, np.nan], [1.0, 2]], [[1.0, 0], [0.0, 1]]),
    "logit at its limits": (
        lambda x: aicf.logit(x, 0.25),
        [[0.1, 0.25, 0.5, 0.75, 0.8]],
        [[0, 16 / 3, 4, 16 / 3, 0]],
    ),
    "std of equal ones": (aicf.std, [[3.0, 3, 3]], [[0.0, 0, 0]]),
    "harmonic norm beside 0": (
        lambda x: aicf.vector_norm(x, ord=-1.0),
        [[0.0, 2, -4]],
        [[0.0, 0, 0]],
    ),
    "variance below its limit": (
        lambda v: aicf.gaussian_nll_loss(v * 0.0, v * 0.0 + 1.0, v, eps=0.5, reduction="none"),
        [[0.1, 0.5, 2.0]],
        [[0.5 * (2 - 4), 0.5 * (2 - 4), 0.5 * (1 / 2 - 1 / 4)]],
    ),
    "copysign": (
        aicf.copysign,
        [[-2.0, 3, 0], [1.0, -1, -1]],
        [[-1.0, -1, 0], [0.0, 0, 0]],
    ),
    "atan2 at the origin": (aicf.atan2, [[0.0, 3, -0.0], [0.0, 4, -0.0]],
                            [[0.0, 4 / 25, 0], [0.0, -3 / 25, 0]]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradients_where_a_derivative_jumps(name, device):
    fn, arrays, want = CASES[name]
    g = aicf.Graph("hard")
    values = [g.input(f"x{i}", (len(a),), "float64") for i, a in enumerate(arrays)]
    for i, slope in enumerate(aicf.grad(aicf.sum(fn(*values)), values)):
        g.output(f"dx{i}", slope)
    out = outputs_of(g.compile(device=device)(
        **{f"x{i}": np.array(a) for i, a in enumerate(arrays)}
    ))  # fmt: skip
    for i, slopes in enumerate(want):
        np.testing.assert_allclose(out[f"dx{i}"], slopes, rtol=1e-14, err_msg=f"dx{i}")


@pytest.mark.parametrize("name", ["logaddexp", "nanmean", "copysign", "atan2"])
def test_second_gradients_where_a_derivative_jumps(name, device):
    """Of logaddexp at equal elements 1/4; of what is flat or of degree 1 zero, and not refused."""
    g = aicf.Graph("hard")
    x, y = (g.input(name, (3,), "float64") for name in "xy")
    fn = getattr(aicf, name)
    loss = aicf.sum(fn(x) if name == "nanmean" else fn(x, y))
    slope = aicf.grad(loss, x)
    g.output("bend", aicf.grad(aicf.sum(slope), x))
    if name == "copysign":
        g.output("along", aicf.grad(loss, y))
    a = np.zeros(3) if name == "atan2" else np.array([1.0, -2, 0])
    out = outputs_of(g.compile(device=device)(x=a, y=a))
    np.testing.assert_allclose(out["bend"], 0.25 if name == "logaddexp" else 0.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_squares_beyond_16_bits(dtype, device):
    """Deviations and correlations are what they are, however large the squares between."""
    x = np.array([[300.0, -600, 900], [800, 400, -1200]])
    g = aicf.Graph("wide")
    value = aicf.cast(g.input("x", x.shape, "float64"), dtype)
    g.output("std", aicf.std(value, 1))
    g.output("cov", aicf.cov(aicf.mul(value, 0.125)))
    g.output("corr", aicf.corrcoef(value))
    many = aicf.cast(g.input("many", (70000,), "float64"), dtype)
    g.output("mean", aicf.nanmean(many))
    out = outputs_of(g.compile(device=device)(x=x, many=np.ones(70000)))
    want = {"std": x.std(1, ddof=1), "cov": np.cov(x / 8), "corr": np.corrcoef(x), "mean": 1.0}
    for name, y in want.items():
        np.testing.assert_allclose(out[name].astype(np.float64), y, rtol=8e-3, err_msg=name)


def test_variance_of_too_few(device):
    """Divided by 0, as PyTorch's: infinite where elements differ, else NaN."""
    g = aicf.Graph("few")
    x = g.input("x", (2, 2), "float64")
    for correction in (2, 3):
        g.output(f"var{correction}", aicf.var(x, 1, correction))
    out = outputs_of(g.compile(device=device)(x=np.array([[1.0, 2], [3, 3]])))
    for y in out.values():
        np.testing.assert_array_equal(y, [np.inf, np.nan])
