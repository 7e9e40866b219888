"""Losses, norms and the softmax family far from zero, at the edges of IEEE 754 and in 16 bits,
each against float64 (PyTorch's where it has the function).

A value x is called hard where rounding, overflow or a NaN decides: shifts by 1e4 and 1e8, +-88,
subnormal and largest numbers, infinities.
"""

import os
import subprocess
import sys
from pathlib import Path

import aicf
import numpy as np
import pytest
from compare import assert_bits, assert_close, numpy_dtype, rounded, unit
from conftest import run_modes
from isas import machine_isas
from losses import FUNCTIONS, feed_of, given, graph_of, weights

DTYPES = ("float32", "float64", "float16", "bfloat16")
INF, NAN = np.inf, np.nan


EACH = pytest.mark.parametrize("name", FUNCTIONS)


def torch_logsumexp(torch, x):
    """PyTorch's own takes exp(x - result) for the gradient, which is 7e-13 off at 1e4."""
    top = x.detach().max(-1, keepdim=True).values
    top = torch.where(torch.isinf(top), 0.0, top)
    return (top + (x - top).exp().sum(-1, keepdim=True).log()).squeeze(-1)


TORCH = {
    "softmax": lambda t, F, x: F.softmax(x, -1),
    "log_softmax": lambda t, F, x: F.log_softmax(x, -1),
    "logsumexp": lambda t, F, x: torch_logsumexp(t, x),
    "var": lambda t, F, x: t.var(x, -1),
    "layer_norm": lambda t, F, x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda t, F, x: F.rms_norm(x, x.shape[-1:], eps=1e-5),
    "batch_norm": lambda t, F, x: F.batch_norm(x, None, None, training=True),
    "cross_entropy": lambda t, F, x, target: F.cross_entropy(x, target),
    "nll_loss": lambda t, F, x, target: F.nll_loss(F.log_softmax(x, -1), target),
    "bce": lambda t, F, x, target: F.binary_cross_entropy_with_logits(x, target),
    "mse": lambda t, F, x, target: F.mse_loss(x, target),
    "huber": lambda t, F, x, target: F.huber_loss(x, target),
}


def torch_results(name, feed):
    """PyTorch in float64 on the same numbers."""
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(array.copy()) for array in feed.values()]
    wrt = [t.requires_grad_() for t in tensors if t.is_floating_point()]
    y = TORCH[name](torch, torch.nn.functional, *tensors)
    loss = y
    if not FUNCTIONS[name].target:
        loss = (y * torch.from_numpy(weights(tuple(y.shape)))).sum()
    grads = torch.autograd.grad(loss, wrt)
    return {"y": y.detach().numpy(), **{f"d{i}": d.numpy() for i, d in enumerate(grads)}}


def run_case(name, feed, dtype, device, **options):
    return run_modes(graph_of(name, dtype), given(name, feed, dtype), device, **options)


# ---- the logarithm of a large sum


CASE = [0, 1, 2, 0.5, -1, 3]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shift", [0.0, 1e2, 1e4, 1e6, 1e8, -1e8])
def test_cross_entropy_keeps_the_logarithm(shift, dtype, device):
    """The largest logit and the sum of the others' distances are kept apart."""
    x = np.add(np.float32(shift), np.array([CASE], np.float32))
    feed = {"x": x.astype(np.float64), "target": np.array([2])}
    got = run_case("cross_entropy", feed, dtype, device)
    e = np.exp(feed["x"] - feed["x"].max())
    p = e / e.sum()
    assert abs(float(got["y"]) - -np.log(p[0, 2])) <= 3e-7
    assert np.abs(got["d0"] - (p - np.eye(6)[2])).max() <= 1.2e-7


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(64, 10), (33, 130), (4, 1030), (3, 5000)])
def test_cross_entropy_in_16_bits(shape, dtype, device, make_rng):
    """Rounded once: the loss, and each element of the gradient."""
    if numpy_dtype(dtype) is None:
        pytest.skip("no bfloat16 here")
    x = rounded(make_rng(3).normal(0, 3, shape), dtype)
    labels = np.arange(shape[0]) * 7 % shape[1]
    got = run_case("cross_entropy", {"x": x, "target": labels}, dtype, device)
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(x)), labels]).mean()
    p[np.arange(len(x)), labels] -= 1
    assert_close(got["y"], loss, dtype, 0.01, what="loss")
    assert_close(got["d0"], p / len(x), dtype, 0.01, 1e-7 / len(x), False, what="gradient")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("near", "spread"), [(0, 3), (0, 14), (0, 40), (300, 3), (-3e4, 20), (6e4, 200), (65000, 300)]
)
def test_16_bit_rows_of_any_size(near, spread, dtype, device, make_rng):
    """Small elements have exponentials of a form of their own, as have those near 2^16."""
    if numpy_dtype(dtype) is None:
        pytest.skip("no bfloat16 here")
    x = rounded(np.clip(near + make_rng(8).normal(0, spread, (40, 130)), -65504, 65504), dtype)
    labels = np.concatenate([x.argmax(1)[:13], x.argmin(1)[13:26], np.arange(14) * 9])
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    got = run_case("softmax", {"x": x}, dtype, device)
    assert_close(got["y"], p, dtype, 0.01, 3e-38, False, what="softmax")
    for rows in (slice(0, 13), slice(13, 26), slice(26, 40)):  # likely labels, unlikely ones, any
        z, t, q = x[rows], labels[rows], p[rows].copy()
        each = np.arange(len(z)), t
        loss = (np.log(e[rows].sum(1)) - (z[each] - z.max(1))).mean()
        q[each] -= 1
        got = run_case("cross_entropy", {"x": z, "target": t}, dtype, device)
        assert_close(got["y"], loss, dtype, 0.01, 3e-7, what="loss")
        assert_close(got["d0"], q / len(z), dtype, 0.01, 1e-7 / len(z), False, what="gradient")


# ---- where x moves


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(17, 6), (9, 128), (3, 700), (2, 3000)], ids=str)
@pytest.mark.parametrize("name", [name for name, f in FUNCTIONS.items() if f.shift])
def test_moved_operands_give_the_same_bits(name, shape, dtype, device, make_rng):
    """Where the move itself is exact, nothing else may show it."""
    if device != "cpu" and dtype not in ("float32", "bfloat16"):
        pytest.skip("one dtype of each size is enough on a GPU")
    step, far = {
        "float16": (0.25, 64.0),
        "bfloat16": (0.5, -64.0),
        "float32": (2.0**-8, 2.0**14),
        "float64": (2.0**-20, -(2.0**30)),
    }[dtype]
    x = make_rng(4).integers(-28, 28, shape) * step
    feed = feed_of(name, x)
    if FUNCTIONS[name].target == "values":
        feed["target"] = np.round(feed["target"] / step) * step
    at_home = run_case(name, feed, dtype, device)
    move = {"x": ["x"], "both": ["x", "target"]}[FUNCTIONS[name].shift]
    away = run_case(name, feed | {key: feed[key] + far for key in move}, dtype, device)
    for key, array in at_home.items():
        assert_bits(away[key], array, f"{name} {key}")


@pytest.mark.parametrize("name", ["logsumexp", "var", "layer_norm", "batch_norm"])
def test_moved_operands_give_near_results(name, device, make_rng):
    """Up to the rounding of one number of the size of the move."""
    x = make_rng(4).integers(-28, 28, (12, 40)) * 2.0**-8
    far = 2.0**12
    here, there = (run_case(name, feed_of(name, v), "float32", device) for v in (x, x + far))
    error = far * 2.0**-24 / (1.0 if name in ("logsumexp", "var") else x.std(-1).min())
    moved = {"y": far if name == "logsumexp" else 0.0}
    for key, array in here.items():
        off = np.abs(there[key] - array.astype(float) - moved.get(key, 0.0)).max()
        slope = 1.0 if key == "y" or name in ("logsumexp", "var") else 1 / x.std(-1).min()
        assert off <= 2 * error * slope, f"{name} {key}: {off}"


# ---- hard values


HARD = {
    "1e4": [1e4, -1e4, 88.0, -88.0, 0.5, 9999.0],
    "88": [88.0, -88.0, 87.5, 0.0, 1.0, -1.0],
    "steep": [104.0, 0.0, -104.0, 103.0, 1.0, 50.0],
    "tiny": [1e-38, -1e-38, 3e-39, 0.0, -0.0, 1e-45],
    "1e15": [1e15, -1e15, 3e14, 0.0, 1.0, 2e14],
    "equal": [0.1] * 6,
    "far": [1e4 + 1, 1e4 + 2, 1e4 + 3, 1e4, 1e4 - 1, 1e4],
    "-inf": [-INF, 0.0, 1.0, 2.0, -3.0, 0.5],
    "inf": [INF, 0.0, 1.0, 2.0, -3.0, 0.5],
    "both infinities": [INF, -INF, 1.0, 2.0, -3.0, 0.5],
    "nan": [0.0, NAN, 1.0, 2.0, -3.0, 0.5],
    "all -inf": [-INF] * 6,
    "all inf": [INF] * 6,
}
# Where float64 is no reference; test_edges.py says what is decided there.
BESIDE = "PyTorch's gradient is infinite beside a NaN"
ELSEWHERE = {
    ("rms_norm", "tiny"): "the square of 1e-38 is 0 in float32",
    ("logsumexp", "all -inf"): "PyTorch's gradient is 0, that of log(0) infinite",
    **{("var", row): BESIDE for row in ("-inf", "inf", "all -inf", "all inf")},
    **{
        ("bce", row): "PyTorch is NaN where the limit is finite"
        for row in ("-inf", "inf", "both infinities", "all -inf", "all inf")
    },
}


def condition(name, x):
    """How far the rounding of a mean is magnified."""
    if name not in ("layer_norm", "batch_norm", "var") or not np.isfinite(x).all():
        return 1.0
    deviation = x.std(0 if name == "batch_norm" else -1)
    return 1.0 + np.abs(x).max() / max(deviation.min(), 1e-2)


def scale_of(array):
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max(initial=0.0))


@pytest.mark.parametrize("row", HARD)
@EACH
def test_hard_values(name, row, device):
    """NaN and infinities where PyTorch's float64 has them; what is finite is near."""
    if (name, row) in ELSEWHERE:
        pytest.skip(ELSEWHERE[name, row])
    x = np.array([HARD[row], HARD["88"], np.roll(HARD[row], 2)])
    for dtype in ("float32", "float64"):
        feed = given(name, feed_of(name, x), dtype)
        want = torch_results(name, feed)
        got = run_case(name, feed, dtype, device)
        for key, exact in want.items():
            what = f"{name} {row} {dtype} {key}"
            result = np.asarray(got[key], np.float64)
            assert np.array_equal(np.isnan(result), np.isnan(exact)), f"{what}: {result}, {exact}"
            infinite = np.isinf(exact) | np.isinf(result)
            assert np.array_equal(result[infinite], exact[infinite]), f"{what}: {result}, {exact}"
            finite = np.isfinite(exact)
            off = np.abs(result[finite] - exact[finite]).max(initial=0)
            allowed = 64 * unit(dtype) * condition(name, feed["x"]) * max(scale_of(exact), 1e-30)
            assert off <= allowed, f"{what}: {off}: {result}, {exact}"


# ---- 16 bits


LIMITS = {  # beyond one rounding: units of the dtype, at the largest element of a row's result
    "log_softmax": 1.0,  # its gradient is made of rounded results, as PyTorch's is
    "layer_norm": 3.0,
    "rms_norm": 3.0,
    "batch_norm": 3.0,
    "softmax": 1.5,
    "nll_loss": 1.0,  # of such a log_softmax
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@EACH
def test_16_bits(name, dtype, device, make_rng):
    """Loss and gradient lie about one rounding from float64's on the same numbers."""
    if numpy_dtype(dtype) is None:
        pytest.skip("no bfloat16 here")
    x = make_rng(5).normal(0, 3, (24, 60))
    feed = given(name, feed_of(name, x), dtype)
    want = torch_results(name, feed)
    got = run_case(name, feed, dtype, device)
    for key, exact in want.items():
        size = np.abs(exact).max()
        off = np.abs(np.asarray(got[key], np.float64) - exact).max() / size / unit(dtype, True)
        print(f"{name} {dtype} {key}: {off:.2f} units")
        assert off <= 1.05 + LIMITS.get(name, 0.0), f"{name} {key}: {off} units"


# ---- everywhere the same


ISA_PART = """
import hashlib, sys
sys.path.insert(0, {folder!r})
import numpy as np
import aicf, test_losses
for name in test_losses.FUNCTIONS:
    for dtype in {dtypes!r}:
        digest = hashlib.sha256()
        for feed in test_losses.feeds(name):
            for array in test_losses.run_case(name, feed, dtype, "cpu").values():
                wide = np.asarray(array, np.float64)
                digest.update(np.where(np.isnan(wide), np.nan, wide).tobytes())
        print(name, dtype, digest.hexdigest())
print(aicf._core.cpu_isa())
"""


def feeds(name):
    """Hard rows, and drawn ones in bundles, within a leaf, of several leaves and of many."""
    rng = np.random.default_rng(8)
    yield from (feed_of(name, np.array([row] * 3)) for row in HARD.values())
    for shape in ((64, 6), (5, 129), (3, 1030), (2, 20_000)):
        yield feed_of(name, rng.normal(1e3, 3, shape))


def test_every_instruction_set_agrees():
    """In the dtypes whose functions are this project's own."""
    script = ISA_PART.format(
        folder=str(Path(__file__).parent), dtypes=("float32", "float16", "bfloat16")
    )
    found = {}
    for isa in machine_isas():
        said = subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"AICF_CPU_ISA": isa},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        *found[isa], used = said.split("\n")[:-1]
        assert used == isa
    assert all(digests == found["baseline"] for digests in found.values()), found


@pytest.mark.parametrize("threads", [1, 3])
@EACH
def test_passes_and_threads_keep_the_bits(name, threads, make_rng):
    feed = given(name, feed_of(name, make_rng(9).normal(1e3, 3, (700, 130))), "float32")
    before = aicf.num_threads()
    try:
        aicf.set_num_threads(threads)
        results = [run_case(name, feed, "float32", "cpu", passes=p) for p in ((), "default")]
        aicf.set_num_threads(2)
        results.append(run_case(name, feed, "float32", "cpu"))
    finally:
        aicf.set_num_threads(before)
    for other in results[1:]:
        for key, array in results[0].items():
            assert_bits(other[key], array, f"{name} {key}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@EACH
def test_a_gpu_gives_the_same_bits(name, dtype):
    for feed in feeds(name):
        cpu, gpu = (run_case(name, feed, dtype, device) for device in ("cpu", "cuda"))
        for key, array in cpu.items():
            wide, other = (np.asarray(a, np.float64) for a in (array, gpu[key]))
            same = np.isnan(wide) & np.isnan(other)
            assert_bits(np.where(same, 0, other), np.where(same, 0, wide), f"{name} {key}")


def test_a_negative_probability_has_no_divergence(device):
    """NaN, as PyTorch's; and 0 has none, whatever stands beside it."""
    g = aicf.Graph()
    y, t = g.input("y", (4,), "float64"), g.input("t", (4,), "float64")
    loss = aicf.kl_div(y, t, "none")
    g.output("loss", loss)
    for name, slope in zip(("dy", "dt"), aicf.grad(aicf.sum(loss[1:]), [y, t]), strict=True):
        g.output(name, slope)
    data = {"y": np.array([-1.0, -np.inf, -1, -2]), "t": np.array([-0.5, 0.0, 0.25, 1.0])}
    out = g.compile(device=device)(**data)
    want = np.array([np.nan, 0, 0.25 * (np.log(0.25) + 1), 2])
    np.testing.assert_allclose(out["loss"].numpy(), want, rtol=1e-14)
    np.testing.assert_array_equal(out["dy"].numpy(), [0, 0, -0.25, -1])
    np.testing.assert_allclose(out["dt"].numpy()[1:], [0, np.log(0.25) + 2, 3], rtol=1e-14)
