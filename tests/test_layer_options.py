"""Options of layers that are no row of the table: places of maxima, hard values, errors."""

import aicf
import numpy as np
import pytest
from conftest import run_modes

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("options", [
    {"padding": 1, "stride": 2}, {"padding": 1, "dilation": 2, "stride": 1},
    {"stride": 2, "ceil_mode": True},
], ids=str)  # fmt: skip
def test_places_of_maxima(axes, options, device, make_rng):
    """As PyTorch's, of equal elements the first, where all are -inf too."""
    torch = pytest.importorskip("torch")
    rng = make_rng(1)
    name = f"max_pool{axes}d"
    x = np.round(rng.uniform(-2, 2, (2, 3, 5, 6, 4)[: axes + 2]))
    x[0] = -INF
    x[1, 0] = np.where(rng.random(x[1, 0].shape) < 0.7, -INF, x[1, 0])
    x[1, 1].flat[3] = INF

    def build(g, x):
        y, i = getattr(aicf, name)(x, 3, return_indices=True, **options)
        return {"y": y, "i": i}

    got = run_modes(build, {"x": x}, device)
    y, i = getattr(torch.nn.functional, name)(
        torch.from_numpy(x), 3, return_indices=True, **options
    )
    np.testing.assert_array_equal(got["y"], y)
    np.testing.assert_array_equal(got["i"], i)
    assert got["i"].dtype == np.int64


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_places_of_adaptive_maxima(axes, device, make_rng):
    torch = pytest.importorskip("torch")
    name = f"adaptive_max_pool{axes}d"
    x = np.round(make_rng(2).uniform(-2, 2, (2, 3, 7, 4, 5)[: axes + 2]))
    for size in (1, 3, (5, None, 2)[:axes] if axes > 1 else 5):

        def build(g, x, size=size):
            y, i = getattr(aicf, name)(x, size, return_indices=True)
            return {"y": y, "i": i}

        got = run_modes(build, {"x": x}, device)
        y, i = getattr(torch.nn.functional, name)(torch.from_numpy(x), size, return_indices=True)
        np.testing.assert_array_equal(got["y"], y)
        np.testing.assert_array_equal(got["i"], i)


def test_a_nan_is_in_every_pool_that_reads_it(device):
    """And in no other, the padding included."""
    x = np.zeros((1, 1, 5, 5))
    x[0, 0, 0, 4] = NAN

    def build(g, x):
        pools = {
            "max": aicf.max_pool2d(x, 2, 2, 1, ceil_mode=True),
            "avg": aicf.avg_pool2d(x, 2, 2, 1, ceil_mode=True, count_include_pad=False),
            "adaptive": aicf.adaptive_max_pool2d(x, 3),
            "place": aicf.max_pool2d(x, 5, return_indices=True)[1],
        }
        return pools

    got = run_modes(build, {"x": x}, device)
    for name in ("max", "avg"):
        want = np.zeros((3, 3), bool)
        want[0, 2] = True
        np.testing.assert_array_equal(np.isnan(got[name][0, 0]), want, err_msg=name)
    assert np.isnan(got["adaptive"][0, 0, 0, 2]) and np.isnan(got["adaptive"]).sum() == 1
    assert got["place"].item() == 4


def test_padding_of_infinite_images(device):
    """Zeros of a convolution and of means, and nothing of maxima."""
    x = np.full((1, 1, 2, 2), -INF)

    def build(g, x):
        one = g.constant(np.ones((1, 1, 1, 1)))
        return {
            "conv": aicf.conv2d(x, one, padding=1),
            "max": aicf.max_pool2d(x, 2, 2, 1),
            "avg": aicf.avg_pool2d(x, 2, 1, 1),
            "edge": aicf.pad(x, [(0, 0), (0, 0), (1, 1), (0, 0)], mode="replicate"),
        }

    got = run_modes(build, {"x": x}, device)
    want = np.zeros((4, 4))
    want[1:3, 1:3] = -INF
    np.testing.assert_array_equal(got["conv"][0, 0], want)
    for name in ("max", "avg", "edge"):
        assert (got[name] == -INF).all(), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_means_of_short_windows_round_once(dtype, device, make_rng):
    """Sums of 16 bits are those of float32."""
    x = make_rng(3).uniform(200, 300, (1, 1, 33, 33)).astype(np.float32)

    def build(g, x):
        y = aicf.avg_pool2d(aicf.cast(x, dtype), 16, 16, 1, True, False)
        exact = aicf.avg_pool2d(aicf.cast(aicf.cast(x, dtype), "float64"), 16, 16, 1, True, False)
        return {"y": aicf.cast(y, "float64"), "exact": exact}

    got = run_modes(build, {"x": x}, device)
    bound = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-20}[dtype]
    np.testing.assert_allclose(got["y"], got["exact"], rtol=bound * 1.01)


def test_batches_of_none(device):
    """Results without elements, of the right shapes, and gradients of zeros."""
    x = np.zeros((0, 4, 6, 5))

    def build(g, x):
        w = g.constant(np.ones((4, 2, 3, 3)))
        found = {
            "conv": aicf.conv2d(x, w, groups=2),
            "transposed": aicf.conv_transpose2d(x, w, stride=2),
            "max": aicf.max_pool2d(x, 2, ceil_mode=True),
            "avg": aicf.avg_pool2d(x, 2, ceil_mode=True),
            "adaptive": aicf.adaptive_avg_pool2d(x, (4, 2)),
            "unfold": aicf.unfold(x, 2),
            "fold": aicf.fold(aicf.unfold(x, 2), (6, 5), 2),
            "resized": aicf.interpolate(x, 7, mode="bicubic"),
        }
        seeds = [aicf.sum(y) for y in found.values()]
        found["places"] = aicf.max_pool2d(x, 2, return_indices=True)[1]
        dx = aicf.grad(aicf.sum(aicf.stack(seeds)), x)
        return {**found, "dx": dx}

    got = run_modes(build, {"x": x}, device)
    shapes = {name: y.shape for name, y in got.items()}
    assert shapes == {
        "conv": (0, 4, 4, 3), "transposed": (0, 2, 13, 11), "max": (0, 4, 3, 3),
        "avg": (0, 4, 3, 3), "adaptive": (0, 4, 4, 2), "unfold": (0, 16, 20),
        "fold": (0, 4, 6, 5), "resized": (0, 4, 7, 7), "places": (0, 4, 3, 2), "dx": x.shape,
    }  # fmt: skip


X4, X2 = (2, 4, 5, 6), (4, 6)
ERRORS = [
    (X4, lambda x: aicf.conv2d(x, x[:, :3]), "groups is 1; need channels"),
    (X4, lambda x: aicf.conv2d(x, x[:, :, :2], padding="full"), r"'full'; need sizes, \"same\""),
    (X4, lambda x: aicf.conv2d(x, x, stride=2, padding="same"), r"stride is 2; need stride 1"),
    (X4, lambda x: aicf.conv2d(x, x, padding=-1), "padding is -1; need 0 or more"),
    (X4, lambda x: aicf.conv3d(x, x), r"need rank 5 each, \[N, C, D, H, W\] or without N"),
    (X4, lambda x: aicf.conv_transpose2d(x, x[0][:, None], padding=[0, 9]), "need a result"),
    (X2, lambda x: aicf.conv_transpose2d(x, x), "need rank 4 each"),
    (X4, lambda x: aicf.max_pool2d(x, 2, padding=2), r"padding \[2, 2\] around .* at most half"),
    (X4, lambda x: aicf.max_pool1d(x, 9), "axis -1 of .* spans 9 elements 1 apart"),
    (X4, lambda x: aicf.max_pool3d(x, (1, 2)), "an int or three"),
    (X4, lambda x: aicf.avg_pool2d(x, 2, divisor_override=0), "divisor_override is 0"),
    (X4, lambda x: aicf.avg_pool2d(x, 2, stride=0), r"stride \[0, 0\].*need sizes >= 1"),
    (X4, lambda x: aicf.adaptive_max_pool2d(x, 0), "0 windows of"),
    (X4, lambda x: aicf.adaptive_avg_pool2d(x, (1, 2, 3)), "need one or 2 sizes"),
    (X4, lambda x: aicf.lp_pool2d(x, 0, 2), "norm_type is 0"),
    (X4, lambda x: aicf.max_unpool2d(x, aicf.argmax(x, 1), 2), "need one shape"),
    (
        X4,
        lambda x: aicf.max_unpool2d(x, aicf.argsort(x), 2, output_size=(4, 4)),
        r"output_size is \[4, 4\]; need \[10, 12\], each within",
    ),
    (X4, lambda x: aicf.pad(x, [(0, 0)] * 3 + [(-9, 2)]), "need a result of sizes >= 0"),
    (X4, lambda x: aicf.pad(x, [(0, 0)] * 4, mode="mirror"), r"mode is 'mirror'; need .constant"),
    (X4, lambda x: aicf.pad(x[:, :0], [(0, 1)] * 4, mode="edge"), "need 1 element or more"),
    (X4, lambda x: aicf.unfold(x, 7), r"kernel_size is \[7, 7\].*need a window to fit"),
    (X4, lambda x: aicf.fold(x[0], 4, 2), r"output_size \[4, 4\]; need \[N, C·4, 9\]"),
    (X4, lambda x: aicf.channel_shuffle(x, 3), "groups is 3, x is .* divisor of C"),
    (X4, lambda x: aicf.interpolate(x, 3, mode="cubic"), "mode is 'cubic'; need one of"),
    (X4, lambda x: aicf.interpolate(x, 3, mode="trilinear"), "mode 'trilinear'; need .* 5 axes"),
    (X4, lambda x: aicf.interpolate(x, 3, mode="bilinear", antialias=True), "antialias is True"),
    (X4, lambda x: aicf.interpolate(x, 3, recompute_scale_factor=True), "size is 3; need a fac"),
]


@pytest.mark.parametrize("case", ERRORS, ids=[case[2] for case in ERRORS])
def test_errors(case):
    shape, call, text = case
    x = aicf.Graph("misuse").input("x", shape)
    with pytest.raises((aicf.ShapeError, aicf.GraphError, aicf.DTypeError), match=text):
        call(x)
