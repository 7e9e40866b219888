"""Each module beside PyTorch's, with its weights: values, gradients, buffers and keys."""

import aicf
import numpy as np
import pytest
from aicf import nn

torch = pytest.importorskip("torch")
pytestmark = [  # PyTorch's advice
    pytest.mark.filterwarnings("ignore:enable_nested_tensor"),
    pytest.mark.filterwarnings("ignore:Support for mismatched"),
]

RNG = np.random.default_rng(3)


def real(*shape):
    return RNG.standard_normal(shape).astype("f4")


def labels(high, *shape):
    return RNG.integers(0, high, shape)


SIGNAL, IMAGE, VOLUME = real(2, 4, 9), real(2, 4, 8, 7), real(2, 4, 4, 5, 6)
SPACES = {1: SIGNAL, 2: IMAGE, 3: VOLUME}
ROWS = real(6, 5)
SEQUENCE = real(7, 3, 4)  # time, batch, width


class Case:
    """A module's name, its arguments and what it is called with."""

    def __init__(self, name, *args, at=(ROWS,), call=None, wrt=9, **named):
        self.name, self.args, self.named = name, args, named
        self.at, self.call, self.wrt = at, call or {}, wrt  # wrt: as many inputs have gradients

    def made(self, module, convert):
        """The module of either library, where arrays are its own and layers are too."""

        def own(x):
            if isinstance(x, Case):
                return x.made(module, convert)
            return convert(x) if isinstance(x, np.ndarray) else x

        named = {key: own(x) for key, x in self.named.items()}
        return getattr(module, self.name)(*map(own, self.args), **named)

    def __str__(self):
        said = [str(x) for x in self.args if not isinstance(x, np.ndarray)]
        said += [f"{key}={x}" for key, x in self.named.items() if not isinstance(x, np.ndarray)]
        return f"{self.name}({', '.join(said)})" + "".join(f" {key}" for key in self.call)


def spatial(name, *args, **named):
    """The same of 1, 2 and 3 axes."""
    return [Case(f"{name}{n}d", *args, at=(SPACES[n],), **named) for n in (1, 2, 3)]


ENCODER = Case("TransformerEncoderLayer", 4, 2, 6, 0.0)
DECODER = Case("TransformerDecoderLayer", 4, 2, 6, 0.0)
HIDDEN = np.zeros((3, 7), bool)
HIDDEN[0, 5:] = HIDDEN[2, 3:] = True
ADDED = np.where(np.tri(7, dtype=bool), 0.0, -np.inf).astype("f4")
MEMORY = real(5, 3, 4)

LAYERS = [
    Case("Linear", 5, 3),
    Case("Linear", 5, 3, bias=False),
    Case("Bilinear", 5, 4, 3, at=(ROWS, real(6, 4))),
    Case("Embedding", 10, 3, at=(labels(10, 4, 2),)),
    Case("Embedding", 10, 3, padding_idx=-3, at=(np.array([[7, 1], [7, 2]]),)),
    Case("EmbeddingBag", 10, 3, mode="sum", at=(labels(10, 4, 2),)),
    Case("EmbeddingBag", 10, 3, at=(labels(10, 6), np.array([0, 2, 5]))),
    *spatial("Conv", 4, 6, 3),
    *spatial("Conv", 4, 6, 3, stride=2, padding=1, groups=2, bias=False),
    *spatial("Conv", 4, 2, 2, padding="same", padding_mode="reflect"),
    Case(
        "Conv2d",
        4,
        2,
        (3, 2),
        padding=(2, 1),
        dilation=(1, 2),
        padding_mode="circular",
        at=(IMAGE,),
    ),
    Case("Conv2d", 4, 2, 3, at=(IMAGE[0],)),
    *spatial("ConvTranspose", 4, 6, 3),
    *spatial("ConvTranspose", 4, 6, 2, stride=2, padding=1, output_padding=1, groups=2),
    Case("ConvTranspose2d", 4, 2, 3, stride=2, at=(IMAGE,), call={"output_size": [18, 16]}),
    Case("BatchNorm1d", 5),
    *spatial("BatchNorm", 4),
    *spatial("BatchNorm", 4, eps=1e-3, momentum=None, affine=False),
    *spatial("BatchNorm", 4, track_running_stats=False),
    *spatial("InstanceNorm", 4),
    *spatial("InstanceNorm", 4, affine=True, track_running_stats=True),
    Case("InstanceNorm2d", 4, at=(IMAGE[0],)),
    Case("GroupNorm", 2, 4, at=(IMAGE,)),
    Case("GroupNorm", 4, 4, affine=False, at=(SIGNAL,)),
    Case("LayerNorm", 5),
    Case("LayerNorm", (8, 7), bias=False, at=(IMAGE,)),
    Case("LayerNorm", 5, elementwise_affine=False),
    Case("RMSNorm", 5),
    Case("RMSNorm", 5, eps=1e-3, elementwise_affine=False),
    Case("LocalResponseNorm", 2, at=(IMAGE,)),
    Case("MultiheadAttention", 4, 2, at=(SEQUENCE,) * 3),
    Case("MultiheadAttention", 4, 2, batch_first=True, bias=False, at=(SEQUENCE,) * 3),
    Case(
        "MultiheadAttention",
        4,
        2,
        at=(SEQUENCE,) * 3,
        call={"key_padding_mask": HIDDEN, "average_attn_weights": False},
    ),
    Case(
        "MultiheadAttention",
        4,
        2,
        at=(SEQUENCE,) * 3,
        call={"attn_mask": ADDED, "need_weights": False},
    ),
    Case(
        "MultiheadAttention",
        4,
        2,
        kdim=3,
        vdim=5,
        add_bias_kv=True,
        add_zero_attn=True,
        at=(SEQUENCE, real(7, 3, 3), real(7, 3, 5)),
    ),
    Case("MultiheadAttention", 4, 2, at=(SEQUENCE[:, 0],) * 3),
    Case("TransformerEncoderLayer", 4, 2, 6, 0.0, at=(SEQUENCE,)),
    Case(
        "TransformerEncoderLayer",
        4,
        2,
        6,
        0.0,
        activation="gelu",
        norm_first=True,
        batch_first=True,
        bias=False,
        at=(SEQUENCE.transpose(1, 0, 2),),
        call={"src_key_padding_mask": HIDDEN},
    ),
    Case("TransformerDecoderLayer", 4, 2, 6, 0.0, at=(SEQUENCE, MEMORY)),
    Case(
        "TransformerDecoderLayer",
        4,
        2,
        6,
        0.0,
        norm_first=True,
        at=(SEQUENCE, MEMORY),
        call={
            "tgt_mask": ADDED,
            "tgt_key_padding_mask": HIDDEN,
            "memory_key_padding_mask": HIDDEN[:, 2:],
        },
    ),
    Case(
        "TransformerEncoder", ENCODER, 2, Case("LayerNorm", 4), at=(SEQUENCE,), call={"mask": ADDED}
    ),
    Case("TransformerDecoder", DECODER, 2, at=(SEQUENCE, MEMORY)),
    Case("Transformer", 4, 2, 1, 1, 6, 0.0, at=(MEMORY, SEQUENCE)),
    Case("LSTM", 4, 3, at=(SEQUENCE,)),
    Case("LSTM", 4, 3, 2, bias=False, batch_first=True, bidirectional=True, at=(SEQUENCE,)),
    Case("LSTM", 4, 3, at=(SEQUENCE, (real(1, 3, 3), real(1, 3, 3)))),
    Case("GRU", 4, 3, at=(SEQUENCE,)),
    Case("GRU", 4, 3, 2, bidirectional=True, at=(SEQUENCE, real(4, 3, 3))),
    Case("PReLU"),
    Case("PReLU", 4, 0.1, at=(IMAGE,)),
    Case("Sequential", Case("Linear", 5, 4), Case("Tanh"), Case("Linear", 4, 2)),
]

FUNCTIONS = [
    *[Case(name) for name in (
        "ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Sigmoid",
        "LogSigmoid", "Hardsigmoid", "Hardswish", "Tanh", "Hardtanh", "Tanhshrink", "Softshrink",
        "Hardshrink", "Softsign", "Softplus")],
    Case("LeakyReLU", 0.2), Case("GELU", approximate="tanh"),
    Case("Hardtanh", -0.5, 2.0), Case("Softplus", 2.0, 1.0), Case("Threshold", 0.1, 20.0),
    Case("CELU", alpha=0.5), Case("Softmax", dim=0), Case("LogSoftmax", 1), Case("Softmin", 1),
    Case("GLU", at=(real(3, 4),)), Case("GLU", dim=1, at=(IMAGE,)),
    Case("Identity"), Case("Flatten", at=(IMAGE,)), Case("Flatten", 0, 1, at=(IMAGE,)),
    Case("Unflatten", 1, (2, -1), at=(IMAGE,)),
    *spatial("MaxPool", 2), *spatial("MaxPool", 3, 1, 1, ceil_mode=True),
    *spatial("AvgPool", 2), *spatial("AvgPool", 3, 2, 1, count_include_pad=False),
    *spatial("LPPool", 2, 2), *spatial("AdaptiveAvgPool", 3), *spatial("AdaptiveMaxPool", 2),
    Case("AdaptiveAvgPool2d", (1, None), at=(IMAGE,)),
    *spatial("MaxPool", 2, return_indices=True, wrt=0),
    *spatial("ConstantPad", 1, 2.5), *spatial("ZeroPad", 2), *spatial("ReflectionPad", 1),
    *spatial("ReplicationPad", 2), *spatial("CircularPad", 1),
    Case("ReflectionPad2d", (1, 2, 3, 0), at=(IMAGE,)),
    Case("Upsample", scale_factor=2, at=(IMAGE,)),
    Case("Upsample", (5, 6), mode="bilinear", align_corners=True, at=(IMAGE,)),
    Case("PixelShuffle", 2, at=(IMAGE,)), Case("PixelUnshuffle", 2, at=(IMAGE[..., :6],)),
    Case("ChannelShuffle", 2, at=(IMAGE,)), Case("Unfold", 3, padding=1, at=(IMAGE,)),
    Case("Fold", (5, 6), 2, at=(real(2, 8, 20),)),
    *[Case(name, 0.0, at=(IMAGE,)) for name in (
        "Dropout", "Dropout2d", "AlphaDropout", "FeatureAlphaDropout")],
    Case("Dropout1d", 0.0, at=(SIGNAL,)), Case("Dropout3d", 0.0, at=(VOLUME,)),
    Case("CosineSimilarity", at=(ROWS, real(6, 5))),
    Case("CosineSimilarity", dim=0, at=(ROWS, real(6, 5))),
    Case("PairwiseDistance", keepdim=True, at=(ROWS, real(6, 5))),
]  # fmt: skip

OTHER, SIGNS = real(6, 5), np.sign(real(6, 5))
SHARES = (lambda e: (e / e.sum(1, keepdims=True)).astype("f4"))(np.exp(real(6, 5)))
CLASSES, WEIGHT = labels(5, 6), np.abs(real(5)) + 0.1
IGNORED = CLASSES.copy()
IGNORED[2] = -100
LOSSES = [
    *[Case(name, at=(ROWS, OTHER)) for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")],
    Case("MSELoss", reduction="sum", at=(ROWS, OTHER)),
    Case("L1Loss", reduction="none", at=(ROWS, OTHER)),
    Case("HuberLoss", delta=0.5, at=(ROWS, OTHER)),
    Case("SmoothL1Loss", reduction="sum", beta=0.5, at=(ROWS, OTHER)),
    Case("CrossEntropyLoss", at=(ROWS, CLASSES)), Case("CrossEntropyLoss", at=(ROWS, IGNORED)),
    Case("CrossEntropyLoss", at=(ROWS, SHARES)),
    Case("CrossEntropyLoss", WEIGHT, ignore_index=1, label_smoothing=0.1, at=(ROWS, CLASSES)),
    Case("NLLLoss", at=(ROWS, IGNORED)), Case("NLLLoss", weight=WEIGHT, at=(ROWS, CLASSES)),
    Case("BCELoss", at=(SHARES, SHARES[::-1].copy())),
    Case("BCEWithLogitsLoss", at=(ROWS, SHARES)),
    Case("BCEWithLogitsLoss", pos_weight=WEIGHT, weight=WEIGHT[::-1].copy(), at=(ROWS, SHARES)),
    Case("KLDivLoss", reduction="batchmean", at=(ROWS, SHARES)),
    Case("PoissonNLLLoss", at=(ROWS, SHARES)),
    Case("GaussianNLLLoss", full=True, at=(ROWS, OTHER, SHARES)),
    Case("HingeEmbeddingLoss", at=(ROWS, SIGNS), wrt=1),
    Case("SoftMarginLoss", at=(ROWS, SIGNS), wrt=1),
    Case("MarginRankingLoss", 0.1, at=(ROWS, OTHER, SIGNS)),
    Case("CosineEmbeddingLoss", at=(ROWS, OTHER, SIGNS[:, 0].copy()), wrt=2),
    Case("TripletMarginLoss", swap=True, at=(ROWS, OTHER, SHARES)),
    Case("TripletMarginWithDistanceLoss", at=(ROWS, OTHER, SHARES)),
    Case("MultiMarginLoss", weight=WEIGHT, at=(ROWS, CLASSES)),
    Case("MultiLabelMarginLoss", at=(ROWS, np.array([[0, 2, -1, 1, 1]] * 6))),
    Case("MultiLabelSoftMarginLoss", at=(ROWS, (SIGNS > 0).astype("f4"))),
    Case("CTCLoss", wrt=0, at=(np.log(np.full((7, 2, 4), 0.25, "f4")), labels(3, 2, 3) + 1),
         call={"input_lengths": (7, 6), "target_lengths": (3, 2)}),
]  # fmt: skip


def flat(tree):
    if isinstance(tree, (tuple, list)):
        return [leaf for child in tree for leaf in flat(child)]
    return [] if tree is None else [tree]


def mapped(tree, leaf):
    if isinstance(tree, tuple):
        return tuple(mapped(child, leaf) for child in tree)
    return leaf(tree) if isinstance(tree, np.ndarray) else tree


def theirs_of(case, module, grads):
    """Results, and gradients of inputs and params, of PyTorch's module."""
    inputs = []

    def tensor(x):
        made = torch.tensor(x)
        if grads and made.is_floating_point() and len(inputs) < case.wrt:
            inputs.append(made.requires_grad_())
        return made

    at = mapped(case.at, tensor)
    call = {key: mapped(x, torch.tensor) for key, x in case.call.items()}
    results = flat(module(*at, **call))
    if not grads:
        return [y.detach().numpy() for y in results], {}
    sum((y * torch.arange(1, y.numel() + 1).reshape(y.shape)).sum() for y in results).backward()
    found = {f"in{i}": x.grad.numpy() for i, x in enumerate(inputs) if x.grad is not None}
    for name, p in module.named_parameters():
        if p.grad is not None:
            found[name] = p.grad.numpy()
    return [y.detach().numpy() for y in results], found


def ours_of(case, module, grads):
    g = aicf.Graph()
    fed, inputs = {}, []

    def value(x):
        name = f"in{len(fed)}"
        fed[name] = x
        if x.dtype == np.float32:
            inputs.append(g.input(name, x.shape))
            return inputs[-1]
        return g.input(name, x.shape, str(x.dtype))

    at = mapped(case.at, value)
    call = {key: mapped(x, value) for key, x in case.call.items()}
    count = min(sum(x.dtype == np.float32 for x in flat(case.at)), case.wrt)
    results = flat(module(*at, **call))
    for i, y in enumerate(results):
        g.output(f"y{i}", y)
    names = []
    if grads:
        weights = [np.arange(1, np.prod(y.shape) + 1, dtype="f4").reshape(y.shape) for y in results]
        loss = aicf.sum(results[0] * weights[0])
        for y, weight in zip(results[1:], weights[1:], strict=True):
            loss = loss + aicf.sum(y * weight)
        reached = g.backward(loss)
        wrt = [*inputs[:count], *reached]
        names = [f"in{i}" for i in range(count)] + [p.name for p in reached]
        for name, grad in zip(names, aicf.grad(loss, wrt), strict=True):
            g.output(f"d {name}", grad)
    step = g.compile("cpu")
    out = step(**fed)
    found = {name: out[f"d {name}"].numpy() for name in names}
    return [out[f"y{i}"].numpy() for i in range(len(results))], found


def check(case, ours, theirs, grads):
    y, dy = ours_of(case, ours, grads)
    t, dt = theirs_of(case, theirs, grads)
    assert len(y) == len(t)
    for a, b in zip(y, t, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)
    assert set(dt) <= set(dy)
    for name, b in dt.items():
        scale = max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(dy[name], b, rtol=1e-3, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize("case", [*LAYERS, *FUNCTIONS, *LOSSES], ids=str)
def test_beside_pytorch(case):
    torch.manual_seed(0)
    theirs = case.made(torch.nn, torch.tensor)
    ours = case.made(nn, lambda x: x)
    described = {k: (tuple(v.shape), str(v.dtype)[6:]) for k, v in theirs.state_dict().items()}
    own = {k: (v.shape, str(v.dtype)) for k, v in ours.state_dict().items()}
    assert list(own.items()) == list(described.items())
    ours.load_state_dict(theirs.state_dict())
    check(case, ours, theirs, case.wrt > 0)
    left = {k: v.numpy() for k, v in theirs.state_dict().items()}
    for key, value in ours.state_dict().items():  # running values too
        np.testing.assert_allclose(value, left[key], rtol=1e-5, atol=1e-6, err_msg=key)
    theirs.load_state_dict({k: torch.tensor(v) for k, v in ours.state_dict().items()})
    check(case, ours.eval(), theirs.eval(), False)


@pytest.mark.parametrize(
    "case",
    [
        Case("Linear", 200, 300),
        Case("Bilinear", 40, 30, 50),
        Case("Embedding", 300, 200, padding_idx=3),
        Case("Conv2d", 64, 48, 5, groups=2),
        Case("ConvTranspose1d", 64, 48, 25, groups=2),
        Case("MultiheadAttention", 200, 2, add_bias_kv=True, kdim=100),
        Case("MultiheadAttention", 200, 2),
        Case("GRU", 100, 80),
        Case("Transformer", 64, 2, 1, 1, 200),
        Case("PReLU", 300),
    ],
    ids=str,
)
def test_contents_begin_as_in_pytorch(case):
    """By range and deviation."""
    torch.manual_seed(0)
    nn.seed(0)
    ours, theirs = case.made(nn, None).state_dict(), case.made(torch.nn, None).state_dict()
    for key, a in ours.items():
        b = theirs[key].numpy()
        n = a.size
        np.testing.assert_allclose(a.std(), b.std(), rtol=5 / n**0.5, err_msg=key)
        np.testing.assert_allclose(a.mean(), b.mean(), atol=8 * b.std() / n**0.5, err_msg=key)
        assert abs(np.abs(a).max() - np.abs(b).max()) <= 0.3 * np.abs(b).max(), key
    if case.name == "Embedding":
        assert not ours["weight"][3].any() and not theirs["weight"][3].any()


def outputs(module, x):
    g = aicf.Graph()
    g.output("y", module(g.input("x", x.shape)))
    return g.compile("cpu", seed=1)(x=x)["y"].numpy()


@pytest.mark.parametrize(
    "case, shape",
    [(Case("Dropout", 0.3), (9, 50)), (Case("Dropout2d", 0.3), (9, 50, 2, 2)),
     (Case("RReLU", 0.1, 0.5), (9, 50)), (Case("AlphaDropout", 0.3), (9, 50)),
     (Case("TransformerEncoderLayer", 4, 2, 6, 0.3, batch_first=True), (2, 5, 4))],
    ids=str,
)  # fmt: skip
def test_what_is_random_when_training(case, shape):
    module = case.made(nn, None)
    x = -np.ones(shape, "f4") + 0.1 * real(*shape)
    still = outputs(module.eval(), x)
    np.testing.assert_equal(still, outputs(module, x))
    moved = outputs(module.train(), x)
    assert (moved != still).mean() > 0.2
    if case.name == "Dropout":
        assert 0.2 < (moved == 0).mean() < 0.4
        np.testing.assert_allclose(moved[moved != 0], x[moved != 0] / 0.7, rtol=1e-6)


def test_unpooling():
    """What a pool took stands where it was."""
    for n, x in SPACES.items():
        sizes = list(x.shape[-n:])
        pool = getattr(nn, f"MaxPool{n}d")(2, return_indices=True)
        unpool = getattr(nn, f"MaxUnpool{n}d")(2)
        g = aicf.Graph()
        y, places = pool(g.input("x", x.shape))
        g.output("y", unpool(y, places, output_size=sizes))
        t = getattr(torch.nn, f"MaxPool{n}d")(2, return_indices=True)(torch.tensor(x))
        t = getattr(torch.nn, f"MaxUnpool{n}d")(2)(*t, output_size=sizes)
        np.testing.assert_equal(g.compile("cpu")(x=x)["y"].numpy(), t.numpy())


@pytest.mark.parametrize(
    "act, kind, text",
    [
        (lambda x: nn.Conv2d(4, 6, 3, groups=3), aicf.ShapeError, "in_channels is 4.*groups 3"),
        (lambda x: nn.Conv2d(4, 6, (3, 3, 3)), aicf.ShapeError, "kernel_size"),
        (lambda x: nn.Conv1d(4, 6, 3, padding="some"), aicf.GraphError, "padding is 'some'"),
        (lambda x: nn.Conv1d(4, 6, 3, padding_mode="some"), aicf.GraphError, "padding_mode"),
        (lambda x: nn.ConvTranspose2d(4, 2, 3)(x, [99, 99]), aicf.ShapeError, "output_size"),
        (lambda x: nn.BatchNorm1d(4)(x), aicf.ShapeError, "BatchNorm1d: x is .*rank 2 or 3"),
        (lambda x: nn.GroupNorm(3, 4), aicf.ShapeError, "num_channels is 4, num_groups 3"),
        (lambda x: nn.MultiheadAttention(5, 2), aicf.ShapeError, "embed_dim is 5, num_heads 2"),
        (lambda x: nn.TransformerEncoderLayer(4, 2, activation="up"), aicf.GraphError, "'up'"),
        (lambda x: nn.Embedding(3, 4, padding_idx=3), aicf.ShapeError, "padding_idx is 3"),
        (lambda x: nn.LSTM(3, 4)(x), aicf.ShapeError, "last axis of 3"),
        (lambda x: nn.Flatten(5)(x), aicf.ShapeError, "start_dim is 5"),
        (lambda x: nn.ZeroPad2d((1, 2))(x), aicf.ShapeError, "need a number or 4"),
        (lambda x: nn.TransformerEncoder(nn.ReLU, 2), aicf.GraphError, "need a Module"),
    ],
)
def test_errors(act, kind, text):
    with pytest.raises(kind, match=text):
        act(aicf.Graph().input("x", IMAGE.shape))


def test_every_module_has_a_case():
    cases = {case.name for case in [*LAYERS, *FUNCTIONS, *LOSSES]}
    others = {"Module", "ModuleDict", "ModuleList", "Parameter", "ParameterDict", "ParameterList",
              "Buffer", "RReLU", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"}  # fmt: skip
    classes = {name for name in nn.__all__ if isinstance(getattr(nn, name), type)}
    assert classes - cases - others == set()
    missing = [name for name in classes if not hasattr(torch.nn, name)]
    assert missing == []


NORMS = {
    "BatchNorm1d": ((6, 4), {}),
    "BatchNorm1d of means": ((6, 4), {"momentum": None}),
    "BatchNorm2d": ((3, 4, 2, 5), {"momentum": 0.3}),
    "InstanceNorm1d": ((3, 4, 5), {"affine": True, "track_running_stats": True}),
}


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_that_keep_statistics_in_every_dtype(name, dtype, device, make_rng):
    """float64 keeps them in float64, 16 bits in float32; against PyTorch on x as it was rounded."""
    rng = make_rng(0)
    shape, options = NORMS[name]
    kind = name.split()[0]
    ours = getattr(nn, kind)(shape[1], dtype=dtype, **options)
    theirs = getattr(torch.nn, kind)(shape[1], dtype=torch.float64, **options)
    kept = "float64" if dtype == "float64" else "float32"
    assert {ours.running_mean.dtype, ours.running_var.dtype} == {kept}
    exact = dtype == "float64"
    bounds = {"rtol": 1e-12, "atol": 1e-12} if exact else {"rtol": 2e-2, "atol": 2e-2}
    batches = [torch.tensor(rng.uniform(-2, 2, shape)).to(getattr(torch, dtype)) for _ in range(3)]
    for training in (True, False):
        ours.train(training), theirs.train(training)
        g = aicf.Graph(kind)
        y = ours(g.input("x", shape, dtype))
        assert y.dtype == dtype
        g.output("y", y)
        step = g.compile(device=device)
        for batch in batches:
            got = step(x=batch.numpy() if exact else batch)["y"]
            want = theirs(batch.double()).detach().numpy()
            np.testing.assert_allclose(got.numpy().astype(np.float64), want, **bounds)
    for key, value in theirs.state_dict().items():
        bound = {"rtol": 1e-12} if exact else {"rtol": 1e-6, "atol": 1e-7}
        if "running" in key:
            np.testing.assert_allclose(ours.state_dict()[key], value.numpy(), **bound, err_msg=key)
    if exact:
        ours.load_state_dict(theirs.state_dict())
