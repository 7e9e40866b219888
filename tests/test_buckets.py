"""Arrays of other libraries that a function pads or casts on their way in."""

import re
import warnings

import aicf
import numpy as np
import pytest

CPU = {"device": "cpu"}


def summed(**options):
    """The sum of what was given, in float32, and twice the array."""
    rows = aicf.Bucket(4, 8)

    @aicf.function(buckets={"x": rows}, **CPU, **options)
    def run(x):
        return rows.sum(aicf.cast(x, "float32")), rows.crop(x * 2.0)

    return run


def of_library(kind, numbers, dtype):
    if kind == "torch":
        torch = pytest.importorskip("torch")
        return torch.tensor(numbers, dtype=getattr(torch, dtype))
    jnp = pytest.importorskip("jax.numpy")
    return jnp.asarray(numbers, getattr(jnp, dtype))


@pytest.mark.parametrize("rows", [3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_padded_arrays_of_each_library(kind, dtype, rows):
    numbers = np.arange(2.0 * rows).reshape(rows, 2)
    for options in ({}, {"dtypes": {dtype: "float32"}}, {"dtypes": {dtype: "bfloat16"}}):
        run = summed(**options)
        for _ in range(2):  # the second is known
            total, twice = run(of_library(kind, numbers, dtype))
            assert total.item() == numbers.sum()
            np.testing.assert_array_equal(twice, 2 * numbers)
        (entry,) = run.cache
        cast = options["dtypes"][dtype] if options else dtype
        assert entry.arguments["x"] == f"{cast}[4, 2]"


def test_padded_tensors_that_require_gradients():
    torch = pytest.importorskip("torch")
    x = torch.nn.Parameter(torch.ones(3, 2))
    for options in ({}, {"dtypes": {"float32": "float64"}}):
        assert summed(**options)(x)[0].item() == 6
    assert (
        aicf.function(lambda x: x * 2.0, dtypes={"float32": "float64"}, **CPU)(x).dtype == "float64"
    )


def test_a_padded_result_of_a_step():
    """bfloat16 too, which NumPy has not."""
    x = np.full((3, 2), 1 / 3, np.float32)
    assert summed()(aicf.function(lambda x: x, **CPU)(x))[1].tolist() == (2 * x).tolist()
    half = aicf.function(lambda x: x.cast("bfloat16"), **CPU)(x)
    for options in ({}, {"dtypes": {"bfloat16": "float32"}}):
        run = summed(**options)
        assert run(half)[1].tolist() == (2 * half.numpy()).tolist()
        assert run.step(half).plan.values["0"]["bytes"] == 4 * 2 * (4 if options else 2)


def test_sizes_of_buckets_are_no_reason_to_warn():
    """Each is traced once; what varies beside them is told."""
    rows = aicf.Bucket(*range(1, 13))
    run = aicf.function(lambda x: rows.sum(x), buckets={"x": rows}, retraces=3, **CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 13):
            assert run(np.ones((n, 2), np.float32)).item() == 2 * n
    with pytest.warns(RuntimeWarning, match="traced 27 times; now x is float32"):
        for n in range(3, 18):
            run(np.ones((1, n), np.float32))


class OnGpu:
    """An array that says that it lies on a GPU; it computes as an array of its library does."""

    def __init__(self, array, namespace):
        self.array, self.shape, self.dtype, self.device = array, array.shape, array.dtype, "gpu"
        if namespace:
            self.__array_namespace__ = lambda: self

    def __dlpack_device__(self):
        return 2, 0

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("read on the host")

    def zeros(self, shape, dtype, device):
        assert device == "gpu"
        return np.zeros(shape, dtype)

    def concat(self, arrays, axis):
        return np.concatenate([getattr(one, "array", one) for one in arrays], axis)


def test_arrays_on_a_gpu_are_padded_there_or_refused():
    x = np.ones((3, 2), np.float32)
    assert summed()(OnGpu(x, namespace=True))[0].item() == 6
    text = 'run: "x" is a OnGpu on a GPU, of shape [3, 2]; need it padded to [4, 2]'
    with pytest.raises(aicf.GraphError, match=re.escape(text)):
        summed()(OnGpu(x, namespace=False))
