"""Gradients with sums that share their kernel: a norm's with those of its weight and bias, and of
the bias of the product before it, all sums over rows; attention's with the sum over each row."""

import json
import re

import aicf
import ml_dtypes
import numpy as np
import pytest
from aicf import _core

needs_compiler = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)


def norm(shape, dtype="bfloat16", center=True, held=None, offset=0, shown=False):
    """A norm and its gradients over the last axis. `held`: dtype of the weights; `offset`: of where
    elements of the gradient begin; `shown`: the norm without weights is an output, too."""
    n = shape[-1]
    rng = np.random.default_rng(n)
    g = aicf.Graph("norm")

    def numbers(*sizes, of=dtype):
        kind = ml_dtypes.bfloat16 if of == "bfloat16" else of
        return rng.standard_normal(sizes, np.float32).astype(kind)

    x = g.state("x", shape, dtype, init=numbers(*shape))
    longer = (*shape[:-1], n + 8 * offset)
    dy = g.state("dy", longer, dtype, init=numbers(*longer))[..., offset : offset + n]
    names = ("w", "b")[: 1 + center]
    params = [g.param(k, (n,), held or dtype, init=numbers(n, of=held or dtype)) for k in names]
    given = [aicf.cast(p, dtype) if held else p for p in params]
    y = aicf.layer_norm(x, n, *given) if center else aicf.rms_norm(x, n, *given)
    g.output("y", y)
    if shown:
        g.output("unweighted", aicf.rms_norm(x, n))
    for name, d in zip(("dx", "dw", "db"), aicf.grad(y, [x, *params], dy), strict=False):
        g.output(name, d)
    return g


def behind(shape, dtype="bfloat16", center=True, held=None):
    """A norm of a product with a bias and what goes past both, and their gradients."""
    rows, n = shape
    rng = np.random.default_rng(n)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    g = aicf.Graph("behind")
    held = held or dtype

    def leaf(make, name, *sizes, of=dtype):
        init = rng.standard_normal(sizes, np.float32).astype(kind if of == dtype else of)
        return make(name, sizes, of, init=init)

    x, past, dy = leaf(g.state, "x", rows, 8), leaf(g.state, "past", *shape, of=held), None
    dy = leaf(g.state, "dy", *shape)
    params = [
        leaf(g.param, *sizes) for sizes in (("w", n, 8), ("b", n), ("scale", n), ("shift", n))
    ]
    w, b, scale, shift = params
    h = past + aicf.cast(aicf.linear(x, w, b), held)
    h = aicf.cast(h, held)
    own = [aicf.cast(p, held) for p in (scale, shift)]
    y = aicf.layer_norm(h, n, *own) if center else aicf.rms_norm(h, n, own[0])
    g.output("y", y)
    wanted = [past, *params] if center else [past, *params[:3]]
    for name, d in zip(
        ("dpast", "dw", "db", "dscale", "dshift"),
        aicf.grad(y, wanted, aicf.cast(dy, held)),
        strict=False,
    ):
        g.output(name, d)
    return g


def launches(g, **options):
    """What runs, of an H100: members of groups in brackets."""
    plan = json.loads(_core.cuda_plan(g._core, _core.pass_names(), 132, "sm_90a", **options))
    name = lambda op: op.get("anchor", op["op"])  # noqa: E731
    return [[name(m) for m in op["members"]] if "members" in op else name(op) for op in plan["ops"]]


def kernels(g, **options):
    """The teams and sums of kernels that make sums beside rows."""
    programs = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a", **options)
    found = [
        re.search(r"normalize_bwd_sums<float, (HolderOf<.*?>), (\w+), (\d)", p) for p in programs
    ]
    return [match.groups() for match in found if match]


@needs_compiler
@pytest.mark.parametrize(
    ("n", "team"),
    [(64, "64, 8, 1, false, 8"), (256, "256, 16, 1, false, 8"), (512, "512, 32, 1, false, 4"),
     (768, "768, 32, 1"), (1600, "1600, 32, 4"), (8192, "8192, 32, 16")],
)  # fmt: skip
def test_sums_stand_beside_rows(n, team):
    rows = (1 << 20) // n + 512
    assert kernels(norm((rows, n))) == [(f"HolderOf<float, {team}>", "true", "2")]
    assert kernels(norm((rows, n), "float16", False)) == [
        (f"HolderOf<float, {team}>", "false", "1")
    ]
    assert kernels(norm((2, rows, n), held="float32")) == [
        (f"HolderOf<float, {team}>", "true", "2")
    ]


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4096, 768), "float64"), ((4096, 8192), "float32"), ((1024, 1024), "float32"),
     ((300, 8192), "bfloat16"), ((1024, 16384), "bfloat16"), ((600, 768), "bfloat16"),
     ((4096, 770), "bfloat16"), ((65536, 16), "bfloat16")],
)  # fmt: skip
def test_sums_stand_apart(shape, dtype):
    """From wide elements, or wide and long ones, few rows or elements, long, odd or short rows."""
    assert kernels(norm(shape, dtype)) == []


@needs_compiler
def test_sums_of_something_else_stand_apart():
    g = aicf.Graph("g")
    shape = (4096, 768)
    x, dy, other = (g.input(name, shape, "bfloat16") for name in ("x", "dy", "other"))
    y = aicf.rms_norm(x, 768)
    g.output("dx", aicf.grad(y, [x], dy)[0])
    g.output("of another", aicf.sum(dy * other, 0))
    g.output("of other axes", aicf.sum(dy, 1))
    assert kernels(g) == []


@needs_compiler
def test_a_norm_without_center_is_not_stored():
    """Its gradients make it again, unless something else reads it."""

    def stored(g):
        programs = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
        (forward,) = [p for p in programs if "normalize_rows<" in p]
        assert len(kernels(g)) == 1
        return len(re.findall(r"Brain\* y\d;", forward))

    assert stored(norm((4096, 768), center=False)) == 1
    assert stored(norm((4096, 768))) == 2
    assert stored(norm((4096, 768), center=False, shown=True)) == 2


@needs_compiler
def test_another_view_of_a_norm_is_read():
    """What the gradients read otherwise than it was made is not made again: it stays stored."""
    g = aicf.Graph("g")
    x, w = g.state("x", (64, 64, 1024), "bfloat16"), g.param("w", (1024,), "bfloat16")
    y = aicf.rms_norm(x, 1024)
    loss = aicf.sum(y * w * aicf.permute(y, (1, 0, 2)))
    for name, d in zip(("dx", "dw"), aicf.grad(loss, [x, w]), strict=True):
        g.output(name, d)
    assert len(kernels(g)) == 1  # and the graph verifies


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "options"),
    [((4096, 768), {}), ((4096, 768), {"center": False}), ((4096, 768), {"held": "float32"}),
     ((16384, 256), {"dtype": "float16"}), ((4096, 1600), {"dtype": "float32"})],
)  # fmt: skip
def test_sums_of_what_is_written(shape, options):
    """The gradient of a bias before a norm takes no launch: blocks add up what all have written."""
    found = launches(behind(shape, **options))
    own = [op for op in found if isinstance(op, list) and "normalize_bwd" in op]
    sums = 3 if options.get("center", True) else 2
    assert own == [["normalize_bwd"] + sums * ["reduce_sum"]]
    assert "reduce_sum" not in found
    (text,) = [
        p
        for p in _core.cuda_programs(
            behind(shape, **options)._core, _core.pass_names(), 132, "sm_90a"
        )
        if "normalize_bwd_sums<" in p
    ]
    assert re.search(r"normalize_bwd_sums<float, HolderOf<.*?>, \w+, \d, \d+, \d+, true", text)
    assert "spill stores" not in _core.cuda_log(text, "sm_90a") or re.search(
        r" 0 bytes spill stores", _core.cuda_log(text, "sm_90a")
    )


@needs_compiler
def test_sums_of_few_or_along_rows_stay_apart():
    """Sums for each row, and of results that something between changes."""
    g = aicf.Graph("g")
    x, w = g.state("x", (4096, 768), "bfloat16"), g.param("w", (768,), "bfloat16")
    dx, dw = aicf.grad(aicf.rms_norm(x, 768, w), [x, w], g.input("dy", (4096, 768), "bfloat16"))
    g.output("dw", dw)
    g.output("dx", dx)
    g.output("rows", aicf.sum(dx, 1))
    g.output("other", aicf.sum(dx * g.input("z", (4096, 768), "bfloat16"), 0))
    found = launches(g)
    assert ["normalize_bwd", "reduce_sum"] in found
    assert sum(op == "reduce_sum" or "reduce_sum" in op for op in found) >= 2


def attention(rows=2, heads=3, length=256, size=64, dtype="bfloat16", masked=False, shown=False):
    rng = np.random.default_rng(size)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    g = aicf.Graph("attention")
    shape = (rows, heads, length, size)
    q, k, v, dy = (
        g.state(name, shape, dtype, init=rng.standard_normal(shape, np.float32).astype(kind))
        for name in ("q", "k", "v", "dy")
    )
    y = aicf.scaled_dot_product_attention(q, k, v, causal=not masked)
    g.output("y", y)
    for name, d in zip(("dq", "dk", "dv"), aicf.grad(y, [q, k, v], dy), strict=True):
        g.output(name, d)
    if shown:
        g.output("sums", aicf.sum(y * dy, -1))
    return g


@needs_compiler
@pytest.mark.parametrize("size", [16, 64, 128, 256])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_sums_stand_before_attentions_gradients(size, dtype):
    assert launches(attention(size=size, dtype=dtype, length=512)) == [
        "attention",
        ["reduce_sum", "attention_grads"],
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("size", [16, 64, 100, 128])
@pytest.mark.parametrize(
    ("dtype", "length"), [("bfloat16", 128), ("bfloat16", 333), ("float32", 520)]
)
def test_bits_before_attentions_gradients(size, dtype, length):
    g = attention(1, 2, length, size, dtype)
    apart = tuple(name for name in _core.pass_names() if name != "row_sums")
    ends = []
    for device, passes in (("cpu", "default"), ("cuda", "default"), ("cuda", apart)):
        cores = "sm_90" if device == "cpu" else None
        step = g.compile(device=device, seed=1, passes=passes, tensor_cores=cores)
        ends.append([{k: v.numpy().tobytes() for k, v in step().items()} for _ in range(2)])
    assert ends[1] == ends[2]
    assert ends[0] == ends[1] or _core.cuda_info()["devices"][0]["capability"] != "9.0"


SHAPES = [
    (1100, 1024), (600, 1760), (2048, 768), (700, 1600), (530, 2048), (512, 4096), (513, 8192),
    (16500, 64), (8200, 128), (4100, 256), (9000, 120), (2100, 512), (3, 700, 640),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"center": False, "dtype": "float16"},
        {"held": "float32"},
        {"offset": 1},
        {"dtype": "float32"},
    ],
    ids=["layer", "rms", "held", "offset", "wide"],
)
def test_bits(shape, options):
    """Beside rows, apart, and of a CPU."""
    shape = (shape[0] * (2 if options.get("dtype") == "float32" else 1), *shape[1:])
    beside = shape[-1] < 8192 or options.get("dtype") != "float32"
    assert len(kernels(norm(shape, **options))) == beside
    apart = tuple(name for name in _core.pass_names() if name != "row_sums")
    ends = []
    for device, passes in (("cpu", "default"), ("cuda", "default"), ("cuda", apart)):
        step = norm(shape, **options).compile(device=device, seed=1, passes=passes)
        ends.append([{k: v.numpy().tobytes() for k, v in step().items()} for _ in range(2)])
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", [(2048, 768), (1500, 1024), (700, 1600), (4100, 256), (530, 2048)]
)
@pytest.mark.parametrize(
    "options",
    [{}, {"center": False, "dtype": "float16"}, {"held": "float32"}, {"dtype": "float32"}],
    ids=["layer", "rms", "held", "wide"],
)
def test_bits_of_what_is_written(shape, options):
    shape = (shape[0] * (2 if "float32" in options.values() else 1), *shape[1:])
    beside = launches(behind(shape, **options))
    assert any("normalize_bwd" in op for op in beside if isinstance(op, list))
    apart = tuple(name for name in _core.pass_names() if name != "row_sums")
    ends = []
    for device, passes in (("cpu", "default"), ("cuda", "default"), ("cuda", apart)):
        cores = "sm_90" if device == "cpu" else None
        g = behind(shape, **options)
        step = g.compile(device=device, seed=1, passes=passes, tensor_cores=cores)
        ends.append([{k: v.numpy().tobytes() for k, v in step().items()} for _ in range(2)])
    assert ends[1] == ends[2]
    assert ends[0] == ends[1]
