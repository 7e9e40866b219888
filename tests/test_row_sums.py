"""A norm's gradients in one kernel: of its input, weight and bias, the latter sums over rows."""

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


def norm(
    shape, dtype="bfloat16", center=True, held=None, offset=0, shown=False, summed=False, spread=0
):
    """A norm and its gradients over the last axis. `held`: dtype of the weights; `offset`: of where
    elements of the gradient begin; `shown`: the norm without weights is an output, too; `summed`:
    it is one of a sum that is an output; `spread`: numbers of its gradient are
    2^spread times larger, some too small to be normal."""
    n = shape[-1]
    rng = np.random.default_rng(n)
    g = aicf.Graph("norm")

    def numbers(*sizes, of=dtype):
        kind = ml_dtypes.bfloat16 if of == "bfloat16" else of
        return rng.standard_normal(sizes, np.float32).astype(kind)

    x = g.state("x", shape, dtype, init=numbers(*shape))
    if summed:
        g.output("sum", x := x + g.state("z", shape, dtype, init=numbers(*shape)))
    longer = (*shape[:-1], n + 8 * offset)
    init = numbers(*longer)
    if spread:
        init = np.ldexp(init.astype(np.float32), rng.integers(-spread - 12, spread, longer))
        init = init.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    dy = g.state("dy", longer, dtype, init=init)[..., offset : offset + n]
    names = ("w", "b")[: 1 + center]
    params = [g.param(k, (n,), held or dtype, init=numbers(n, of=held or dtype)) for k in names]
    given = [aicf.cast(p, dtype) if held else p for p in params]
    y = aicf.layer_norm(x, n, *given) if center else aicf.rms_norm(x, n, *given)
    g.output("y", y)
    if shown:
        g.output("unweighted", aicf.layer_norm(x, n) if center else aicf.rms_norm(x, n))
    for name, d in zip(("dx", "dw", "db"), aicf.grad(y, [x, *params], dy), strict=False):
        g.output(name, d)
    return g


def kernels(g, **options):
    """The teams and sums of kernels that make sums beside rows."""
    programs = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a", **options)
    found = [
        re.search(r"normalize_bwd_(?:block_)?sums<float, (HolderOf<.*?>), (\w+), (\d)", p)
        for p in programs
    ]
    return [match.groups() for match in found if match]


@needs_compiler
@pytest.mark.parametrize(
    ("n", "team"),
    [(64, "64, 4, 1, false, 8"), (120, "120, 16, 1, false, 8"),
     (256, "256, 16, 1, false, 8"), (512, "512, 32, 1, false, 4"),
     (768, "768, 32, 1"), (1600, "1600, 32, 4"), (4096, "4096, 32, 8"),
     (4100, "4100, 32, 5, false, 4, 2"), (8192, "8192, 32, 8, false, 4, 2"),
     (16384, "16384, 32, 16, false, 4, 2"), (16388, "16388, 32, 9, false, 4, 4"),
     (32768, "32768, 32, 16, false, 4, 4"), (32772, "32772, 32, 9, false, 4, 8"),
     (65536, "65536, 32, 16, false, 4, 8")],
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
    ("n", "rows"),
    [(32, 2), (40, 4), (64, 2), (120, 4), (512, 2), (640, 1), (768, 1), (776, 2), (1024, 2),
     (36, 0), (1020, 0)],
)  # fmt: skip
def test_short_rows_come_to_shared_memory(n, rows):
    """So many of a team at once: of multiples of 16 bytes, up to two leaves of 16 bits."""

    def slots(g):
        (program,) = [
            p
            for p in _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
            if "sums<float, HolderOf" in p
        ]
        return int(
            re.search(r"normalize_bwd_sums<float, HolderOf<.*?>.*?(\d+), @?\w+_Shape", program)[1]
        )

    shape = ((1 << 21) // n + 512, n)
    assert slots(norm(shape)) == rows
    assert slots(norm(shape, "float32")) == 0


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4096, 768), "float64"), ((4096, 8196), "float32"), ((1024, 1024), "float32"),
     ((300, 8192), "bfloat16"), ((1024, 65540), "bfloat16"), ((600, 768), "bfloat16"),
     ((4096, 770), "bfloat16"), ((65536, 16), "bfloat16")],
)  # fmt: skip
def test_sums_stand_apart(shape, dtype):
    """From wide elements, or wide and long ones, few rows or elements, long, odd or short rows."""
    assert kernels(norm(shape, dtype)) == []


# Bytes of spills, of norms with a mean: once for four rows.
SPILLED = {1600: 32}


@needs_compiler
@pytest.mark.parametrize(
    "n",
    [
        36,
        40,
        64,
        256,
        512,
        768,
        776,
        1024,
        1600,
        2048,
        4096,
        4100,
        6144,
        8192,
        12288,
        16384,
        20480,
        32768,
        50304,
    ],
)
@pytest.mark.parametrize("center", [False, True], ids=["rms", "layer"])
def test_sums_beside_rows_do_not_spill(n, center):
    g = norm(((1 << 20) // n + 512, n), center=center)
    programs = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
    (program,) = [p for p in programs if "sums<float, HolderOf" in p]
    spills = re.findall(r"(\d+) bytes spill stores", _core.cuda_log(program, "sm_90a"))
    assert spills and sum(map(int, spills)) <= (SPILLED.get(n, 0) if center else 0)


@needs_compiler
@pytest.mark.parametrize(
    ("n", "blocks"),
    [(4096, 1), (4100, 2), (16384, 2), (16388, 4), (32768, 4), (32776, 8), (50304, 8), (65536, 8)],
)
def test_long_rows_are_clusters(n, blocks):
    programs = _core.cuda_programs(
        norm(((1 << 20) // n + 512, n))._core, _core.pass_names(), arch="sm_90a"
    )
    (program,) = [p for p in programs if "sums<float, HolderOf" in p]
    found = re.search(r"__cluster_dims__\((\d), 1, 1\)", program)
    assert int(found[1] if found else 1) == blocks


@needs_compiler
@pytest.mark.parametrize("center", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize(
    "n", [8192, 14336, 16392, 20480, 20488, 24576, 24584, 32768, 32776, 49152, 49160, 57344, 57352]
)
def test_one_more_warp(n, center):
    """Of clusters of four and eight blocks, where two or three of four schedulers have a warp less
    than another."""
    (program,) = [
        p
        for p in _core.cuda_programs(
            norm(((1 << 20) // n + 512, n), center=center)._core, _core.pass_names(), arch="sm_90a"
        )
        if "sums<float, HolderOf" in p
    ]
    slots, led = re.search(
        r"normalize_bwd_block_sums<.*, (\d+), (\w+), @?\w+_Shape", program
    ).groups()
    leaves = -(-n // 512)
    blocks = 2 if leaves <= 32 else 4 if leaves <= 64 else 8
    warps = -(-leaves // blocks)
    more = blocks > 2 and warps % 4 in (1, 2)
    assert (slots, led) == ("2", str(more).lower())
    assert f"__launch_bounds__({32 * (warps + more)}" in program


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
def test_sums_stand_apart_where_what_rows_are_made_of_is_stored():
    g = aicf.Graph("g")
    x, dy = (g.input(name, (4096, 768), "bfloat16") for name in ("x", "dy"))
    w, b = (g.param(name, (768,), "bfloat16") for name in ("w", "b"))
    g.output("weighted", dy * w)
    for k, d in enumerate(aicf.grad(aicf.layer_norm(x, 768, w, b), [x, w], dy)):
        g.output(f"d{k}", d)
    assert kernels(g) == []
    assert _core.cuda_cubins(
        _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a"), "sm_90a"
    )


@needs_compiler
def test_a_norm_is_not_stored():
    """Its gradients make it again, unless something else reads it."""

    def stored(g):
        programs = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
        (forward,) = [p for p in programs if "normalize_rows<" in p]
        assert len(kernels(g)) == 1
        return len(re.findall(r"Brain\* y\d;", forward))

    for center in (False, True):
        assert stored(norm((4096, 768), center=center)) == 1
        assert stored(norm((4096, 768), center=center, shown=True)) == 2
        assert stored(norm((4096, 768), center=center, summed=True)) == 2  # and the sum
        assert stored(norm((4096, 768), center=center, summed=True, shown=True)) == 3


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


SHAPES = [
    (1100, 1024), (600, 1760), (2048, 768), (700, 1600), (530, 2048), (512, 4096), (513, 8192),
    (16500, 64), (8200, 128), (4100, 256), (9000, 120), (2100, 512), (3, 700, 640),
    (29200, 36), (26300, 40), (1400, 776), (1100, 1020),
    (520, 4100), (520, 8196), (512, 12288), (513, 16384), (513, 16388), (514, 20480),
    (512, 32768), (513, 33000), (512, 50304), (520, 65532),
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
        {"dtype": "float32", "summed": True},
        {"spread": 120},
        {"dtype": "float16", "center": False, "spread": 12},
    ],
    ids=["layer", "rms", "held", "offset", "wide", "summed", "spread", "spread16"],
)
def test_bits(shape, options):
    """Beside rows, apart, and of a CPU."""
    shape = (shape[0] * (2 if options.get("dtype") == "float32" else 1), *shape[1:])
    beside = shape[-1] <= 8192 or options.get("dtype") != "float32"
    assert len(kernels(norm(shape, **options))) == beside
    apart = tuple(name for name in _core.pass_names() if name != "row_sums")
    ends = []
    for device, passes in (("cpu", "default"), ("cuda", "default"), ("cuda", apart)):
        step = norm(shape, **options).compile(device=device, seed=1, passes=passes)
        ends.append([{k: v.numpy().tobytes() for k, v in step().items()} for _ in range(2)])
    assert ends[0] == ends[1] == ends[2]
