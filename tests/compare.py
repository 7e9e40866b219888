"""How results are compared: in units in the last place of a dtype, and bit by bit."""

import numpy as np

BITS = {  # stored mantissa bits, exponent of the smallest normal number
    "float32": (23, -126),
    "float64": (52, -1022),
    "float16": (10, -14),
    "bfloat16": (7, -126),
}
FLOATS = tuple(BITS)


def numpy_dtype(name):
    """NumPy's dtype; bfloat16 is ml_dtypes', and None where that is not installed."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def rounded(values, dtype):
    """float64 values rounded once to `dtype`, as float64."""
    with np.errstate(all="ignore"):
        return np.asarray(values, np.float64).astype(numpy_dtype(dtype)).astype(np.float64)


def product_operand(x, mode):
    """float32 as a product takes it: in a 16-bit dtype, or as compile's `math` says."""
    if mode in ("float16", "fp16"):
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(x).view(np.uint32)
    if mode == "tf32":
        near = (bits + np.uint32(0xFFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    else:
        assert mode in ("bfloat16", "bf16")
        near = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, near.view(np.float32))


def spacing(values, dtype):
    """The distance of neighbouring numbers of `dtype` around each value."""
    bits, least = BITS[dtype]
    with np.errstate(all="ignore"):
        size = np.abs(np.nan_to_num(np.asarray(values, np.float64), posinf=0, neginf=0))
        exponent = np.where(size > 0, np.frexp(size)[1] - 1, least)
    return np.ldexp(1.0, np.maximum(exponent, least) - bits)


def unit(dtype, stored=False):
    """u of the type in which sums of `dtype` are accumulated; stored: of `dtype` itself."""
    if stored:
        return 2.0 ** -(BITS[dtype][0] + 1)
    return 2.0**-53 if dtype == "float64" else 2.0**-24


def assert_bits(got, want, what=""):
    """Equal shape, dtype and bytes."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype, (what, got.dtype, want.dtype)
    if got.tobytes() != want.tobytes():
        differs = np.nonzero(np.atleast_1d(got != want))
        raise AssertionError(f"{what}: bits differ at {differs}: {got!r} and {want!r}")


def assert_close(got, want, dtype, ulp=0.0, extra=0.0, zero_sign=True, what=""):
    """Checks a result against the float64 reference.

    Args:
        got: the result.
        want: the reference, not rounded.
        ulp: allowed distance beyond the one rounding, in units of `dtype` at `want`.
        extra: allowed absolute distance on top of it.
        zero_sign: whether a zero must have the reference's sign.
    """
    want = np.asarray(want)
    assert np.shape(got) == want.shape, f"{what}: shape {np.shape(got)}, need {want.shape}"
    if dtype not in BITS:
        if dtype != "bool":  # integers wrap
            want = want.astype(np.int64).astype(dtype)
        assert np.array_equal(got, want), f"{what}: {got!r}, need {want!r}"
        return
    got = np.asarray(got, np.float64)
    target = rounded(want, dtype)
    assert np.array_equal(np.isnan(got), np.isnan(target)), f"{what}: NaN: {got!r}, need {target!r}"
    infinite = np.isinf(target) | np.isinf(got)
    assert np.array_equal(got[infinite], target[infinite]), f"{what}: inf: {got!r}, need {target!r}"
    finite = np.isfinite(got) & np.isfinite(target)
    with np.errstate(all="ignore"):
        error = np.abs(got - want)
        allowed = (ulp + 0.5) * spacing(want, dtype) + extra
    bad = finite & ~(error <= allowed)
    if bad.any():
        at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(bad)))
        g, w = np.atleast_1d(got)[at], np.atleast_1d(want)[at]
        off = np.atleast_1d(error / spacing(want, dtype))[at]
        raise AssertionError(
            f"{what}: {bad.sum()} of {bad.size} wrong; at {at}: {g!r}, need {w!r} ({off:.3g} ULP)"
        )
    if zero_sign:
        zeros = finite & (want == 0) & (got == 0)
        assert np.array_equal(np.signbit(got[zeros]), np.signbit(want[zeros])), (
            f"{what}: sign of zero: {got!r}, need {want!r}"
        )


def assert_bits_of_passes(bits, g, feed, math, several):
    """What `bits(step, feed)` gives by name is the same on a GPU, by each list of passes, as on a
    CPU that has its orders."""
    want = bits(g.compile(device="cpu", seed=1, math=math, tensor_cores="sm_90"), feed)
    for passes in several:
        got = bits(g.compile(device="cuda", seed=1, math=math, passes=passes), feed)
        for name, value in want.items():
            assert_bits(got[name], value, f"{name} of {passes}")
