"""The declared order of running sums: where there are few long lines, in chunks of chunks."""

import aicf
import numpy as np
import pytest

CHUNK, LINES = 1024, 4096


def running(line, chunked):
    """Of one line, in its own dtype (of 16 bits in float32)."""
    wide = line.astype("f4") if line.dtype == np.float16 else line
    if not chunked or len(line) <= CHUNK:
        return np.cumsum(wide, dtype=wide.dtype).astype(line.dtype)
    parts = [wide[at : at + CHUNK] for at in range(0, len(line), CHUNK)]
    inside = [np.cumsum(part, dtype=wide.dtype) for part in parts]
    before = running(np.array([sums[-1] for sums in inside]), chunked)
    behind = [before[k] + sums for k, sums in enumerate(inside[1:])]
    return np.concatenate([inside[0], *behind]).astype(line.dtype)


def wanted(x, axis, reverse):
    lines = np.moveaxis(x, axis, -1)
    turn = slice(None, None, -1 if reverse else None)
    chunked = x.size // x.shape[axis] < LINES
    made = [running(line[turn], chunked)[turn] for line in lines.reshape(-1, lines.shape[-1])]
    return np.moveaxis(np.reshape(made, lines.shape), -1, axis)


def numbers(shape, dtype):
    rng = np.random.default_rng(sum(shape))
    if dtype.startswith("int"):
        return rng.integers(-100, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def made(device, x, axis, lies="rows"):
    """Running sums of x, and of its lines from their ends."""
    g = aicf.Graph("running")
    if lies == "turned":
        v = aicf.permute(g.state("x", x.T.shape, x.dtype.name, init=x.T.copy()), (1, 0))
    elif lies == "backwards":
        v = aicf.flip(g.state("x", x.shape, x.dtype.name, init=np.flip(x, axis)), axis)
    else:
        v = g.state("x", x.shape, x.dtype.name, init=x)
    y = aicf.cumsum(v, axis)
    g.output("forward", y)
    if x.dtype.kind == "f":
        g.output("reverse", aicf.grad(y, [v], v)[0])
    return {name: value.numpy() for name, value in g.compile(device=device)().items()}


SHAPES = [
    ((1, 1023), 1), ((1, 1024), 1), ((1, 1025), 1), ((2, 9 * 1024), 1), ((3, 9 * 1024 + 7), 1),
    ((17 * 1024 + 3,), 0), ((2050, 5), 0), ((1025, 4095), 0), ((1025, 4096), 0), ((4095, 1030), 1),
    ((4097, 1030), 1), ((3, 2049, 2), 1), (((1 << 20) + 1,), 0),
]  # fmt: skip
CASES = [
    (shape, axis, dtype)
    for shape, axis in SHAPES
    for dtype in ("float32", "float16", "int32", "int8")
    if dtype == "float32" or np.prod(shape) <= 1 << 18
]


@pytest.mark.parametrize(("shape", "axis", "dtype"), CASES)
def test_order(shape, axis, dtype):
    """Of the same bits, whatever the number of threads."""
    x = numbers(shape, dtype)
    for threads in (1, 2, 3, 8):
        aicf.set_num_threads(threads)
        for name, value in made("cpu", x, axis).items():
            assert value.tobytes() == wanted(x, axis, name == "reverse").tobytes(), (name, threads)


@pytest.mark.parametrize("lies", ["turned", "backwards"])
@pytest.mark.parametrize(("shape", "axis"), [((9 * 1024 + 7, 3), 0), ((3, 3000), 1)])
def test_order_of_operands_that_lie_otherwise(shape, axis, lies):
    x = numbers(shape, "float32")
    for name, value in made("cpu", x, axis, lies).items():
        assert value.tobytes() == wanted(x, axis, name == "reverse").tobytes(), name


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "axis", "dtype"), CASES)
def test_order_on_a_gpu(shape, axis, dtype):
    x = numbers(shape, dtype)
    for name, value in made("cuda", x, axis).items():
        assert value.tobytes() == wanted(x, axis, name == "reverse").tobytes(), name


def test_sums_of_no_elements():
    assert made("cpu", np.zeros((0, 3), "f4"), 0)["forward"].shape == (0, 3)
    assert made("cpu", np.zeros((3, 0), "f4"), 1)["forward"].shape == (3, 0)


def test_long_sums_are_more_accurate_in_chunks():
    """Errors of a line of chunks grow with 3,000 additions, not with a million."""
    x = np.full(1 << 20, 1.1, "f4")
    exact = np.cumsum(x, dtype="f8")
    off = np.abs(made("cpu", x, 0)["forward"] - exact)
    assert off.max() < 0.02 * np.abs(np.cumsum(x, dtype="f4") - exact).max()
