"""Axes whose size varies, padded to one of a few sizes; arrays of other libraries too."""

import re
import warnings

import aicf
import numpy as np
import pytest
from function_models import CPU, batch, network


def masked(model, rows, lr=1e-1):
    @aicf.function(buckets={"x": rows, "t": rows}, **CPU)
    def train(x, t):
        y = model(x)
        loss = rows.mean((y - t) ** 2.0)
        aicf.minimize(loss, aicf.optim.SGD(lr=lr))
        return loss, rows.crop(y)

    return train


def test_a_padded_batch_gives_the_gradients_of_the_batch():
    """To rounding: a product's sum over rows ends in zeros, but its order belongs to its shape."""
    plain, model = network(), network()
    rows = aicf.Bucket(4, 16, 64)
    train = masked(model, rows)

    @aicf.function(**CPU)
    def exact(x, t):
        loss = aicf.mse_loss(plain(x), t)
        aicf.minimize(loss, aicf.optim.SGD(lr=1e-1))
        return loss

    for i, count in enumerate((3, 9, 16, 1, 33, 64, 15)):
        x, t = batch(count, i)
        loss, y = train(x, t)
        assert y.shape == (count, 1) and isinstance(y, np.ndarray)
        np.testing.assert_allclose(float(loss), float(exact(x, t)), rtol=2e-6)
        for name, array in plain.state_dict().items():
            np.testing.assert_allclose(model.state_dict()[name], array, rtol=2e-6, atol=1e-7)
    assert len(train.cache) == 3 and len(exact.cache) == 7
    assert sorted(entry.arguments["x"] for entry in train.cache) == [
        "float32[16, 4]", "float32[4, 4]", "float32[64, 4]",
    ]  # fmt: skip


def test_two_axes_may_vary():
    rows, length = aicf.Bucket(2, 4), aicf.Bucket(8, 16, name="length")

    @aicf.function(buckets={"batch.*": (rows, length)}, **CPU)
    def count(batch):
        tokens = batch["tokens"]
        given = aicf.logical_and(
            rows.mask(tokens.shape[0]).reshape((-1, 1)), length.mask(tokens.shape[1])
        )
        total = aicf.sum(aicf.where(given, batch["weights"] + 1.0, 0.0))
        return total, length.crop(rows.crop(tokens * 2), axis=1), rows.count() * length.count()

    for shape in ((1, 3), (2, 8), (3, 9), (4, 16), (2, 5)):
        tokens = np.arange(np.prod(shape)).reshape(shape)
        out = count({"tokens": tokens, "weights": np.ones(shape, np.float32)})
        assert float(out[0]) == 2 * tokens.size and int(out[2]) == tokens.size
        np.testing.assert_array_equal(out[1], tokens * 2)
    assert len(count.cache) == 2


def test_buckets_that_are_wrong():
    rows = aicf.Bucket(4, 8)
    train = masked(network(), rows)
    x, t = batch(5)
    with pytest.raises(aicf.ShapeError, match=r'"t" has 4, another of Bucket "rows" 5'):
        train(x, t[:4])
    with pytest.raises(aicf.ShapeError, match="an axis has 9; need at most 8"):
        train(*batch(9))
    with pytest.raises(aicf.GraphError, match="need it in buckets="):
        rows.count()
    with pytest.raises(aicf.GraphError, match="need it in buckets="):
        aicf.function(lambda x: rows.mean(x), **CPU)(x)
    for sizes in ((), (0,), (4, 2), (2, 2), ("a",)):
        with pytest.raises(aicf.GraphError, match="ascending"):
            aicf.Bucket(*sizes)
    for wrong in (5, {"x": 5}, {5: rows}, {"x": {"a": rows}}):
        with pytest.raises(aicf.GraphError, match="buckets"):
            aicf.function(lambda x: x, buckets=wrong, **CPU)
    with pytest.raises(aicf.GraphError, match='buckets has "y"'):
        aicf.function(lambda x: x, buckets={"y": rows}, **CPU)(x)
    with pytest.raises(aicf.ShapeError, match="axis 2"):
        aicf.function(lambda x: x, buckets={"x": {2: rows}}, **CPU)(x)
    with pytest.raises(aicf.ShapeError, match="axis is 3"):
        aicf.function(lambda x: rows.crop(x, axis=3), buckets={"x": rows}, **CPU)(x)


def test_an_axis_that_the_bucket_has_not_padded_is_refused():
    """Its rows of zeros would count as given."""
    rows, length = aicf.Bucket(8, 16), aicf.Bucket(4, 8, 16, name="length")
    x = np.ones((5, 7), np.float32)

    def run(fn):
        return aicf.function(fn, buckets={"x": (rows, length)}, **CPU)(x)

    for use in (rows.sum, rows.mean, rows.crop):
        with pytest.raises(aicf.ShapeError, match=r"axis is 0, x is .*f32\[7, 8\].* of size 8, to"):
            run(lambda x, use=use: use(x[:7]))
    with pytest.raises(aicf.GraphError, match=r"axis 0 of .* cropped by Bucket \"length\" already"):
        run(lambda x: rows.crop(length.crop(x)))
    assert run(lambda x: rows.crop(length.crop(x, 1))).shape == (5, 7)
    assert run(lambda x: rows.crop(rows.crop(x))).shape == (5, 8)


# ---- arrays of other libraries


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
