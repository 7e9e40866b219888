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


def test_places_that_are_no_number(device):
    """Nothing is read for them but what their mode says, and nothing outside of x."""
    x = np.ones((1, 1, 3, 3))
    grid = np.array([[[[0.0, 0.0], [INF, 0.0], [0.0, -INF], [NAN, 0.0], [1e300, 0.0]]]])

    def build(g, x, grid):
        return {p: aicf.grid_sample(x, grid, "nearest", p) for p in ("zeros", "border")}

    got = run_modes(build, {"x": x, "grid": grid}, device)
    np.testing.assert_array_equal(got["zeros"][0, 0, 0], [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(got["border"][0, 0, 0], [1, 1, 1, 1, 1])


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


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_running_statistics(name, device, make_rng):
    """States are moved as PyTorch moves its buffers; without them nothing is."""
    torch = pytest.importorskip("torch")
    shape, rng = (3, 4, 5), make_rng(4)
    g = aicf.Graph(name)
    x = g.input("x", shape, "float64")
    mean = g.state("mean", (4,), "float64")
    var = g.state("var", (4,), "float64", init=aicf.init.ones())
    fn = getattr(aicf, name)
    options = {"running_mean": mean, "running_var": var, "momentum": 0.3}
    g.output("y", fn(x, **options))
    none = {"running_mean": None, "running_var": None}
    g.output("z", fn(x, **none))
    step = g.compile(device=device)
    m, v = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    for _ in range(3):
        array = rng.normal(1, 2, shape)
        used = {"training": True} if name == "batch_norm" else {"use_input_stats": True}
        want = getattr(torch.nn.functional, name)(
            torch.from_numpy(array), m, v, momentum=0.3, **used
        )
        out = step(x=array)
        for key in "yz":
            np.testing.assert_allclose(out[key].numpy(), want.numpy(), rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(step.state["mean"].numpy(), m.numpy(), rtol=1e-12)
        np.testing.assert_allclose(step.state["var"].numpy(), v.numpy(), rtol=1e-12)


def test_dropout_in_attention(device):
    """Weights are left out, the rest scaled: the mean of the result stays."""
    g = aicf.Graph("dropout")
    x = g.input("x", (64, 32, 8))
    g.output("y", aicf.scaled_dot_product_attention(x, x, x, dropout_p=0.25))
    y = g.compile(device=device)(x=np.ones((64, 32, 8), np.float32))["y"].numpy()
    assert np.unique(np.round(y, 4)).size > 5 and abs(y.mean() - 1) < 0.02
    kept = y * 32 * 0.75  # whole numbers of 32 weights
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-4)


def test_a_row_of_padding_takes_no_gradient(device):
    """And what its bags give does not depend on it."""
    w = np.arange(6.0).reshape(3, 2)
    w[1] = NAN

    def build(g, w):
        i = g.constant(np.array([[0, 1], [1, 1], [2, 0]]))
        y = aicf.embedding(i, w, padding_idx=1)
        found = {"embedding": y}
        for mode in ("sum", "mean", "max"):
            found[mode] = aicf.embedding_bag(i, w, mode=mode, padding_idx=1)
        parts = [aicf.reshape(aicf.sum(v), [1]) for v in found.values()]
        return {**found, "dw": aicf.grad(aicf.sum(aicf.concat(parts)), w)}

    got = run_modes(build, {"w": w}, device)
    assert np.isnan(got["embedding"][[0, 1, 1], [1, 0, 1]]).all()
    np.testing.assert_array_equal(got["sum"], [[0, 1], [0, 0], [4, 6]])
    np.testing.assert_array_equal(got["mean"], [[0, 1], [0, 0], [2, 3]])
    np.testing.assert_array_equal(got["max"], [[0, 1], [0, 0], [4, 5]])
    assert not got["dw"][1].any() and (got["dw"][[0, 2]] > 0).all()


def test_distances_and_margins_of_nothing(device):
    """Sums without terms are 0; a label out of range makes its row NaN and no other."""
    x = np.array([[0.5, 1.0], [2.0, 0.0]])

    def build(g, x):
        labels = g.constant(np.array([5, 0]))
        none = g.constant(np.array([[-1, 0], [-1, 1]]))
        loss = aicf.multi_margin_loss(x, labels, reduction="none")
        return {
            "cdist": aicf.cdist(x[:, :0], x[:1, :0], np.inf),
            "pdist": aicf.pdist(x[:1]),
            "margin": loss,
            "dx": aicf.grad(aicf.sum(loss), x),
            "many": aicf.multilabel_margin_loss(x, none, reduction="none"),
        }

    got = run_modes(build, {"x": x}, device, checks="off")
    np.testing.assert_array_equal(got["cdist"], np.zeros((2, 1)))
    assert got["pdist"].shape == (0,)
    np.testing.assert_array_equal(got["margin"], [NAN, 0.0])
    np.testing.assert_array_equal(got["many"], [0.0, 0.0])
    assert not got["dx"].any()


def test_nan_and_infinities(device):
    """A NaN reaches every distance and margin that reads it, and is one of a count."""
    x = np.array([[NAN, 0.0], [INF, 1.0], [3.0, 4.0]])

    def build(g, x):
        zero = g.constant(np.zeros((1, 2)))
        labels = g.constant(np.array([0, 0, 1]))
        return {
            **{f"cdist {p}": aicf.cdist(x, zero, p)[:, 0] for p in (0.0, 1.0, 2.0, 3.0, INF)},
            "margin": aicf.multi_margin_loss(x, labels, reduction="none"),
            "softplus": aicf.softplus(x, 2.0, 5.0)[:, 0],
        }

    got = run_modes(build, {"x": x}, device)
    wants = {"0.0": 2.0, "1.0": 7.0, "2.0": 5.0, "3.0": 91 ** (1 / 3), "inf": 4.0}
    for p, last in wants.items():
        second = 2.0 if p == "0.0" else INF
        first = 1.0 if p == "0.0" else NAN
        np.testing.assert_allclose(got[f"cdist {p}"], [first, second, last], err_msg=p)
    np.testing.assert_array_equal(got["margin"], [NAN, 0.0, 0.0])
    np.testing.assert_array_equal(got["softplus"], [NAN, INF, 3.0])


X4, X2 = (2, 4, 5, 6), (4, 6)
ERRORS = [
    (X4, lambda x: aicf.conv2d(x, x[:, :3]), "groups is 1; need channels"),
    (X4, lambda x: aicf.conv2d(x, x[:, :, :2], padding="full"), r"'full'; need sizes, \"same\""),
    (X4, lambda x: aicf.conv2d(x, x, stride=2, padding="same"), r"stride is 2; need stride 1"),
    (X4, lambda x: aicf.conv2d(x, x, x[0, 0, :1, 0]), r"conv2d: bias is .*; need \[\d+\], one"),
    (
        X4,
        lambda x: aicf.conv_transpose2d(x, x.permute((1, 0, 2, 3)), x[0, 0, :1, 0]),
        r"conv_transpose2d: bias is .*; need \[2\]",
    ),
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
    (X4, lambda x: aicf.grid_sample(x, x), r"need \[N, C, H, W\] and \[N, oh, ow, 2\]"),
    (X4, lambda x: aicf.grid_sample(x, x, "linear"), "mode is 'linear'; need"),
    (X4, lambda x: aicf.grid_sample(x, x, padding_mode="wrap"), "padding_mode is 'wrap'; need"),
    (X4, lambda x: aicf.affine_grid(x, (2, 1, 3, 4)), r"theta is .*, size \[2, 1, 3, 4\]; need"),
    (X4, lambda x: aicf.local_response_norm(x, 0), "size is 0, x is"),
    (X4, lambda x: aicf.batch_norm(x, None, None, training=False), "need both where x's own"),
    (X4, lambda x: aicf.instance_norm(x, running_mean=x), "running_var None; need both or"),
    (X4, lambda x: aicf.bilinear(x, x, x), r"need \[..., i\], \[..., j\] and \[o, i, j\]"),
    (X4, lambda x: aicf.embedding(aicf.argmax(x, 0), x, 9), r"padding_idx is 9.*need \[-2, 2\)"),
    (X4, lambda x: aicf.embedding(aicf.argmax(x, 0), x, max_norm=1.0), "max_norm is 1.0; need No"),
    (X2, lambda x: aicf.embedding_bag(aicf.argmax(x, 0), x), "offsets None; need .bags, size."),
    (X2, lambda x: aicf.embedding_bag(aicf.argsort(x), x, mode="min"), "mode is 'min'; need"),
    (X2, lambda x: aicf.embedding_bag(aicf.argsort(x), x, per_sample_weights=x), "'mean'; need"),
    (X4, lambda x: aicf.scaled_dot_product_attention(x, x, x, x, attn_mask=x), "need one of the"),
    (
        X4,
        lambda x: aicf.scaled_dot_product_attention(x, x[:, :3], x[:, :3], enable_gqa=True),
        "3 heads of .* need a divisor of q's",
    ),
    (X4, lambda x: aicf.softplus(x, 0.0), "beta is 0.0; need beta > 0"),
    (X4, lambda x: aicf.cdist(x, x, -1.0), "p is -1.0; need a number >= 0"),
    (X4, lambda x: aicf.pdist(x), r"x is .*; need \[n, m\]"),
    (X2, lambda x: aicf.multi_margin_loss(x, aicf.argmax(x, 1), p=3), "p is 3; need 1 or 2"),
    (X2, lambda x: aicf.multi_margin_loss(x, aicf.argmax(x, 0)), r"need \[N, C\] and \[N\]"),
    (X2, lambda x: aicf.multilabel_margin_loss(x, aicf.argmax(x, 0)), r"need \[N, C\] twice"),
]


@pytest.mark.parametrize("case", ERRORS, ids=[case[2] for case in ERRORS])
def test_errors(case):
    shape, call, text = case
    x = aicf.Graph("misuse").input("x", shape)
    with pytest.raises((aicf.ShapeError, aicf.GraphError, aicf.DTypeError), match=text):
        call(x)
