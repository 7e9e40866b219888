"""compile(candidates=): which of a backend's kernels runs an op, as a plan says it."""

import json
import re
from pathlib import Path

import aicf
import ml_dtypes
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits, product_operand


def build(m=512, n=384, k=1024, dtype="float32"):
    g = aicf.Graph("product")
    a, b = g.input("a", (m, k)), g.input("b", (k, n))
    if dtype != "float32":
        a, b = aicf.cast(a, dtype), aicf.cast(b, dtype)
    g.output("y", aicf.relu(aicf.matmul(a, b)))
    return g


def known(g, **options):
    return _core.cuda_candidates(g._core, _core.pass_names(), **options)


def kernels(g, candidates=None):
    programs = _core.cuda_programs(g._core, _core.pass_names(), candidates=candidates or {})
    text = "".join(programs)
    return re.findall(r"__launch_bounds__\(.*?\) (\w+)\(", text)


@pytest.mark.parametrize("math", ["tf32", "bf16"])
@pytest.mark.parametrize("rows", [16383, 16384, 16385])
def test_copies_take_a_gibibyte_at_most(rows, math):
    """What wgmma reads of float32 can be copies in the workspace, of as many bytes a row here; in
    16 bits no other way is left."""
    size = {"tf32": 4, "bf16": 2}[math]
    ((_, names),) = known(build(rows, 16384, 32768 // size), math=math).items()
    fits = (rows + 16384) * 32768 <= 1 << 30
    ways = {"_copies"} if fits else set()
    if math == "tf32":
        ways |= {"_right", "_turned"}
    roles = [name for name in names if name.startswith("wgmma_")]
    assert {way for name in roles for way in re.findall("_[a-z]{5,}", name)} - {"_own"} == ways


def test_each_candidate_is_another_kernel():
    g = build()
    ((signature, names),) = known(g).items()
    assert signature.startswith("region gemm") and "f32[512, 1024]" in signature
    assert len(names) == len(set(names)) >= 6
    (own,) = kernels(g)
    chosen = [kernels(g, {signature: name})[0] for name in names]
    assert chosen[0] == own and len(set(chosen)) == len(names)
    for name, kernel in zip(names, chosen, strict=True):
        assert f"_{name}_" in kernel


def test_the_first_depends_on_the_device():
    """A small device need not be filled by parts of k."""
    g = build(256, 256, 4096)
    first = [next(iter(known(g, processors=p).values()))[0] for p in (4, 132)]
    assert first[0] != first[1]


def test_an_unknown_name():
    g = build()
    (signature,) = known(g)
    with pytest.raises(aicf.GraphError, match=r'"1x1" for region.*need one of \d+x\d+'):
        kernels(g, {signature: "1x1"})


def test_small_products_have_one_kernel():
    assert known(build(8, 8, 8)) == {}


@pytest.mark.parametrize(
    ("case", "there"),
    [
        ("128x512x784 NT bfloat16", True),
        ("128x512x784 NT float16", True),
        ("128x512x784 NN bfloat16", False),  # lines across k
        ("128x512x784 TT bfloat16", False),
        ("128x512x784 NT float32", False),
        ("128x512x780 NT bfloat16", False),  # lines that begin at no multiple of 16 bytes
        ("128x128x256 NT bfloat16", True),  # 2^22 multiplications
        ("128x128x248 NT bfloat16", False),
        ("128x512x4096 NT bfloat16", False),  # more than a block has room for
        ("128x512x784 NT tf32", True),
        ("128x512x784 NN tf32", True),  # of float32 B may lie across k
        ("128x512x784 TN tf32", False),
        ("128x512x782 NT tf32", False),
        ("128x510x784 NN tf32", False),
        ("128x64x512 NT tf32", True),
        ("128x64x508 NT tf32", False),
        ("128x512x2048 NT tf32", False),
    ],
)
def test_what_the_copy_engine_brings_at_once(case, there):
    sizes, kind, dtype = case.split()
    math, dtype = ("tf32", "float32") if dtype == "tf32" else ("fp32", dtype)
    m, n, k = (int(size) for size in sizes.split("x"))
    g = aicf.Graph("product")
    a = g.input("a", (k, m) if kind[0] == "T" else (m, k), dtype)
    b = g.input("b", (n, k) if kind[1] == "T" else (k, n), dtype)
    g.output("y", aicf.matmul(a.T if kind[0] == "T" else a, b.T if kind[1] == "T" else b))
    for arch, any_there in (("sm_90a", there), ("sm_80", False)):
        ((_, names),) = known(g, arch=arch, math=math).items()
        assert any("_boxes" in name for name in names) == any_there, names


# Times of candidates of products, in microseconds, on an H100 and an H200.
MEASURED = {
    f"{case} {device}": times
    for device in ("h100", "h200")
    for case, times in json.loads(
        (Path(__file__).parent / f"data/products_{device}.json").read_text()
    )["us"].items()
}


@pytest.mark.parametrize("case", MEASURED)
def test_the_first_is_the_fastest_measured(case):
    """Within 3 %, which is about what such times differ by from run to run."""
    sizes, kind, math, _ = case.split()
    *batch, m, n, k = (int(size) for size in sizes.split("x"))
    dtype = math if math == "bfloat16" else "float32"
    g = aicf.Graph("product")

    def operand(name, turned, shape):
        value = g.input(name, (*batch, *(shape[::-1] if turned else shape)), dtype)
        return aicf.transpose(value, -1, -2) if turned else value

    a, b = operand("a", kind[0] == "T", (m, k)), operand("b", kind[1] == "T", (k, n))
    g.output("y", aicf.matmul(a, b))
    ((_, names),) = known(g, math="fp32" if math == "bfloat16" else math).items()
    times = MEASURED[case]
    assert names[0] in times
    assert times[names[0]] <= 1.03 * min(times.values())


def test_first_of_small_batches():
    """A convolution's product, of 400 terms, takes an H200 8.7 us by 32x32, 12.6 by near.cuh;
    batches of 128 cubed 3.6 by 64x32, 4.8 so."""
    g = aicf.Graph("convolution")
    x, w = g.input("x", (8, 32, 32, 32)), g.input("w", (32, 32, 3, 3))
    g.output("y", aicf.conv2d(x, w, g.input("b", (32,)), padding=1))
    ((_, names),) = known(g).items()
    assert names[0] == "32x32"
    g = aicf.Graph("batches")
    x, y = g.input("x", (16, 128, 128)), g.input("y", (16, 128, 128))
    z = aicf.matmul(x, y)
    g.output("z", z)
    for i, d in enumerate(g.backward(z, [x, y], grad=g.input("dz", z.shape)).values()):
        g.output(f"d{i}", d)
    assert [names[0] for names in known(g).values()] == ["64x32"] * 3


@pytest.mark.parametrize("candidates", [["a"], {"a": 1}, {1: "a"}, "a"])
def test_what_is_no_choice(candidates):
    with pytest.raises(aicf.GraphError, match=r"candidates is .*need kernel names"):
        build(2, 2, 2).compile(device="cpu", candidates=candidates)


def test_a_choice_of_another_device():
    g = build()
    ((signature, names),) = known(g).items()
    with pytest.raises(aicf.GraphError, match="need none, as there is one kernel for it"):
        g.compile(device="cpu", candidates={signature: names[0]})


@pytest.mark.parametrize("op", ["product", "attention"])
def test_operands_off_16_bytes_have_a_signature_of_their_own(op):
    """The copy engine does not read them: what is chosen for the others is no kernel of theirs."""
    g = aicf.Graph("views")
    for i in range(2):
        if op == "product":
            x = g.input(f"x{i}", (512, 264), "bfloat16")[:, i : 256 + i]
            g.output(f"y{i}", aicf.matmul(x, g.input(f"w{i}", (256, 256), "bfloat16")))
        else:
            x = g.input(f"x{i}", (2, 8, 256, 72), "bfloat16")[..., i : 64 + i]
            g.output(f"y{i}", aicf.scaled_dot_product_attention(x, x, x))
    chosen = {signature: names[0] for signature, names in known(g).items()}
    assert any("wgmma" in name for name in chosen.values())
    assert len(kernels(g, chosen)) == 2


def test_other_ops_are_left_alone():
    step = build(8, 8, 8).compile(device="cpu", candidates={"gemm of another graph": "64x64"})
    assert step.plan.candidates == {}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_on_a_gpu(dtype, rng):
    """Each is right, and a plan's choices are taken again."""
    g = build(200, 130, 700, dtype)
    ((signature, names),) = known(g).items()
    feed = {
        name: rng.integers(-4, 5, shape).astype(np.float32)
        for name, shape in {"a": (200, 700), "b": (700, 130)}.items()
    }
    want = np.maximum(feed["a"] @ feed["b"], 0)
    want = product_operand(want, dtype) if dtype == "bfloat16" else want.astype(dtype)
    for name in names:
        step = g.compile(device="cuda", candidates={signature: name})
        again = g.compile(device="cuda", candidates=step.plan.candidates)
        assert again.plan.candidates == {signature: name} and again.trace == step.trace
        assert_bits(step(**feed)["y"].numpy(), want, name)


def with_gelu(given, y):
    wide = y + given("bias", y.shape[-1:])
    return wide, aicf.gelu(wide, "tanh")


def with_bias_at_an_odd_place(given, y):
    (n,) = y.shape[-1:]
    return with_gelu(lambda name, _: given(name, (n + 8,))[3 : n + 3], y)


def with_slope(given, y):
    x = given("x", y.shape)
    return (x.graph.backward(aicf.gelu(x, "tanh"), [x], grad=y)[x],)


@pytest.mark.gpu
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("epilogue", [None, with_gelu, with_bias_at_an_odd_place, with_slope])
@pytest.mark.parametrize("k", [136, 392, 776])
def test_tiles_of_warpgroups(k, epilogue, turned, rng):
    """Several tiles to each of a block's warpgroups, an odd one, and edges: the bits of others."""
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    m, n = (5 * processors + 5) // 6 * 128 + 40, 2 * 128 + 72
    g, feed = aicf.Graph("product"), {}

    def given(name, shape):
        feed[name] = rng.standard_normal(shape, dtype=np.float32)
        return aicf.cast(g.input(name, shape), "bfloat16")

    a, b = (
        given(name, shape[::-1]).T if name in turned else given(name, shape)
        for name, shape in (("a", (m, k)), ("b", (k, n)))
    )
    y = aicf.matmul(a, b)
    for i, value in enumerate(epilogue(given, y) if epilogue else (y,)):
        g.output(f"y{i}", value)
    ((signature, names),) = known(g).items()
    own = [name for name in names if "_own" in name or "_writers" in name]
    if k > 392 and not own:
        pytest.skip("of so few results k has cuts")
    assert len(own) == (5 if epilogue else 2), names
    *found, want = (
        g.compile(device="cuda", candidates={signature: name})(**feed)
        for name in (*own, "wgmma_128x128", "128x128")
    )
    for result in found:
        for name in want:
            assert_bits(result[name].numpy(), want[name].numpy(), name)


def residual(m, n, k, readers=2, wide="float32"):
    """What a layer of 16 bits adds to its input, for `readers` to read."""
    g = aicf.Graph("residual")
    a, b = (g.input(name, sizes, "bfloat16") for name, sizes in (("a", (m, k)), ("b", (n, k))))
    x, bias = g.input("x", (m // 8, 8, n), wide), g.input("bias", (n,), "bfloat16")
    y = x + aicf.cast(aicf.linear(a, b, bias).reshape(x.shape), wide)
    for i in range(readers):
        g.output(f"y{i}", aicf.sum(y, i) if readers > 1 else y)
    return g


def bodies(g, **options):
    plan = json.loads(_core.cuda_plan(g._core, _core.pass_names(), 132, **options))
    return [[step["op"] for step in op.get("body", [])] for op in plan["ops"]]


@pytest.mark.skipif(not hasattr(_core, "cuda_plan"), reason="this build has no CUDA backend")
def test_a_stored_sum_joins_its_product():
    """Where warps have roles; not what is no more than a wider copy, and on no other device."""
    sums = ["gemm", "bias_add", "cast", "add"]
    assert sums in bodies(residual(8192, 768, 768), arch="sm_90a")
    assert sums not in bodies(residual(8192, 768, 768), arch="sm_80")
    assert sums not in bodies(residual(8192, 768, 768, 1), arch="sm_90a")
    assert sums not in bodies(residual(4096, 768, 768), arch="sm_90a"), "each block has one tile"
    assert sums not in bodies(residual(8192, 768, 768, wide="float64"), arch="sm_90a")
    step = residual(8192, 768, 768).compile(device="cpu")
    assert not any(op.get("anchor") == "gemm" and len(op["body"]) > 2 for op in step.lowered)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [136, 392])
def test_a_stored_sum_in_every_kernel(k, rng):
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    m, n = (5 * processors + 1) // 2 * 128 + 40, 192 + 72
    g = residual(m, n, k)
    feed = {name: rng.standard_normal(sizes, dtype=np.float32) for name, sizes in (
        ("a", (m, k)), ("b", (n, k)), ("x", (m // 8, 8, n)), ("bias", (n,)))}  # fmt: skip
    feed |= {name: feed[name].astype(ml_dtypes.bfloat16) for name in ("a", "b", "bias")}
    apart = tuple(name for name in _core.pass_names() if name != "epilogue")
    want = g.compile(device="cuda", passes=apart)(**feed)
    choices = known(g)
    signature = next((key for key in choices if "bias_add" in key), None)
    if signature is None or "add {}" not in signature.rpartition("cast")[2]:
        pytest.skip("its warps have no roles on this device")
    tried = [n for n in choices[signature] if re.search("own|writers|_4by1|_pair$|^[\\dx]+$", n)]
    for name in dict.fromkeys([choices[signature][0], *tried]):
        found = g.compile(device="cuda", candidates={signature: name})(**feed)
        for key in found:
            assert_bits(found[key].numpy(), want[key].numpy(), name)


@pytest.mark.parametrize("processors", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize(
    ("sizes", "dtype", "math"),
    [
        ((1024, 1280, 768), "bfloat16", "fp32"),
        ((768, 768, 4096), "bfloat16", "fp32"),
        ((1024, 1024, 1024), "float32", "tf32"),
        ((1024, 1024, 1024), "float32", "fp32x"),
        ((64, 128, 4096), "float32", "fp32"),
    ],
)
def test_no_cluster_is_larger_than_the_device(sizes, dtype, math, processors):
    """All its blocks run at once, one to a processor."""
    m, n, k = sizes
    g = aicf.Graph("product")
    g.output("y", aicf.matmul(g.input("a", (m, k), dtype), g.input("b", (k, n), dtype)))
    ((_, names),) = known(g, processors=processors, math=math).items()
    pairs = [2 for name in names if "_pair" in name]
    sides = [int(a) * int(b) for name in names for a, b in re.findall(r"_(\d)by(\d)", name)]
    others = [int(x) for name in names for x in re.findall(r"_cluster_(\d+)", name)]
    assert max([1, *pairs, *sides, *others]) <= processors, names


@pytest.mark.gpu
@pytest.mark.parametrize("epilogue", [None, with_gelu])
@pytest.mark.parametrize("turned", ["", "ab"])
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [
        ((760, 3064, 4104), ()),
        ((760, 776, 4104), ()),  # some tiles are of three blocks
        ((3064, 760, 8200), ()),
        ((760, 520, 4104), (3,)),
        ((760, 760, 4104), ()),  # clusters of three
        ((1016, 1000, 8200), ()),  # of two
        ((120, 136, 5000), ()),
    ],
)
def test_shared_cuts(sizes, batch, turned, epilogue, rng):
    """Blocks take runs of cuts, or those of a cluster the cuts of one tile, and hand sums on; or
    they share tiles of operands: the bits of others."""
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    m, n, k = sizes if processors > 100 else (120, 392, 5000)
    g, feed = aicf.Graph("product"), {}

    def given(name, shape):
        feed[name] = rng.standard_normal(shape, dtype=np.float32)
        return aicf.cast(g.input(name, shape), "bfloat16")

    a, b = (
        aicf.transpose(given(name, (*batch, *shape[::-1])), -1, -2)
        if name in turned
        else given(name, (*batch, *shape))
        for name, shape in (("a", (m, k)), ("b", (k, n)))
    )
    y = aicf.matmul(a, b)
    for i, value in enumerate(epilogue(given, y) if epilogue else (y,)):
        g.output(f"y{i}", value)
    ((signature, names),) = known(g, processors=processors).items()
    shared = [
        name
        for name in names
        if re.search(r"_runs$|_cluster_|_\dby\d$|x96|x160|_64x64_pair$", name)
    ]
    assert shared, names
    want = g.compile(device="cuda", candidates={signature: "128x128"})(**feed)
    for name in shared:
        step = g.compile(device="cuda", candidates={signature: name})
        for _ in range(3):  # counters are back at 0
            found = step(**feed)
            for y in want:
                assert_bits(found[y].numpy(), want[y].numpy(), name)


@pytest.mark.gpu
@pytest.mark.parametrize("turned", ["", "a", "b"])
def test_chunks_of_clusters_on_a_gpu(turned, rng):
    """Two blocks add a tile's chunks, or those of clusters that come last: bits of one block."""
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    m, n, k = 60, 120, 2100
    g, feed = aicf.Graph("product"), {}

    def given(name, shape):
        turns = name in turned
        feed[name] = rng.standard_normal(shape[::-1] if turns else shape, dtype=np.float32)
        value = g.input(name, feed[name].shape)
        return value.T if turns else value

    g.output("y", aicf.relu(aicf.matmul(given("a", (m, k)), given("b", (k, n)))))
    ((signature, names),) = known(g, processors=processors).items()
    clusters = [name for name in names if "_cluster_2" in name]
    assert clusters, names
    want = g.compile(device="cuda", candidates={signature: "64x128"})(**feed)["y"].numpy()
    for name in clusters:
        step = g.compile(device="cuda", candidates={signature: name})
        for _ in range(3):  # counters are back at 0
            assert_bits(step(**feed)["y"].numpy(), want, name)


@pytest.mark.gpu
@pytest.mark.parametrize("turned", ["", "a", "b"])
def test_chunks_of_groups_on_a_gpu(turned, rng):
    """Two groups of a block's threads take a chunk each, by rows and columns that no tile divides,
    in the order of one that takes all."""
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    # Tiles for more than half of the processors, whose number of results says what a chunk is.
    m, n, k = (1030, 261, 509) if processors > 8 else (190, 133, 253)
    g, feed = aicf.Graph("product"), {}

    def given(name, shape):
        turns = name in turned
        feed[name] = rng.standard_normal(shape[::-1] if turns else shape, dtype=np.float32)
        value = g.input(name, feed[name].shape)
        return value.T if turns else value

    y = aicf.matmul(given("a", (m, k)), given("b", (k, n)))
    g.output("y", aicf.relu(y + given("c", (n,))))
    ((signature, names),) = known(g, processors=processors).items()
    assert {"64x64_groups_2", "64x32"} <= set(names), names
    want = g.compile(device="cpu")(**feed)["y"].numpy()
    for name in ("64x64_groups_2", "64x32", "64x64", "32x32"):
        step = g.compile(device="cuda", candidates={signature: name})
        assert_bits(step(**feed)["y"].numpy(), want, name)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sizes", "turned"),
    [
        *[((1, 1001, 1024), "b"), ((1, 2120, 600), "b"), ((4, 96, 4320), "ab")],
        *[((300, 3, 2048), ""), ((1, 1001, 1024), ""), ((2, 2120, 600), ""), ((4, 96, 4320), "a")],
        *[((300, 3, 2048), "ab"), ((520, 1, 2048), "a"), ((1, 8456, 48), "")],
    ],
)
def test_few_rows(sizes, turned, rng):
    """Read straight from memory, in the order of the others and of the CPU."""
    m, n, k = sizes
    g = aicf.Graph("product")
    feed = {"a": rng.standard_normal((m, k)), "b": rng.standard_normal((k, n))}
    feed = {
        name: np.ascontiguousarray(x.T if name in turned else x, np.float32)
        for name, x in feed.items()
    }
    values = {name: g.input(name, x.shape) for name, x in feed.items()}
    a, b = (v.T if name in turned else v for name, v in values.items())
    g.output("y", aicf.relu(aicf.matmul(a, b)))
    ((signature, names),) = known(g).items()
    assert "thin" in names, names
    want = g.compile(device="cpu")(**feed)["y"].numpy()
    for name in names:
        step = g.compile(device="cuda", candidates={signature: name})
        assert_bits(step(**feed)["y"].numpy(), want, name)


@pytest.mark.parametrize("sizes", [(384, 512, 4096), (256, 256, 4096), (128, 1024, 2048)], ids=str)
def test_long_sums_of_tf32_have_warp_roles(sizes):
    """Few results have tiles of mma.sync first only where these are about as fast."""
    m, n, k = sizes
    g = aicf.Graph("product")
    y = aicf.matmul(g.input("a", (m, k)), aicf.transpose(g.input("b", (n, k)), 0, 1))
    g.output("y", y)
    ((_, names),) = known(g, math="tf32").items()
    assert names[0].startswith("wgmma_") and not names[0].endswith("_copies"), names[:4]
