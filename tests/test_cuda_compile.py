"""Every kernel source is accepted by NVRTC, which needs no GPU, for an old and a new device."""

import json
import re

import aicf
import exact64
import numpy as np
import pytest
from aicf import _core, verify
from op_cases import CASES, SIZES
from test_ops import as_list, draw
from test_passes import APART

pytestmark = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)
GROUP = 16
MODES = ["tf32", "fp16", "bf16", "fp32x"]  # of float32 operands


def compiled(graph, arch, math="fp32"):
    programs = _core.cuda_programs(graph._core, _core.pass_names(), arch=arch, math=math)
    cubins = _core.cuda_cubins(programs, arch)
    assert cubins and all(cubin[:4] == b"\x7fELF" for cubin in cubins)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "kernels"))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("first", range(0, len(CASES), GROUP))
def test_ops(first, arch):
    g = aicf.Graph("ops")
    for case in CASES[first : first + GROUP]:
        dtype = "float32" if "float32" in case.dtypes else case.dtypes[0]
        arrays = [draw(arg, dtype, SIZES, np.random.default_rng(0)) for arg in case.args]
        name = case.id
        values = [g.input(f"{name}.x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)]
        for i, y in enumerate(as_list(case.build(g, *values))):
            g.output(f"{name}.y{i}", y)
    compiled(g, arch)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_small_integers(dtype):
    """Casts from and to each dtype, and reductions, running sums, sorting and gathering."""
    g = aicf.Graph("integers")
    x, at = g.input("x", (5, 70), dtype), g.constant(np.zeros((5, 70), np.int64))
    for other in ("float64", "float16", "bfloat16", "bool", "uint8", "int64", "int8", "int16"):
        g.output(f"to {other}", aicf.cast(x, other))
        g.output(f"from {other}", aicf.cast(g.input(other, (5, 70), other), dtype))
    for fn in (aicf.sum, aicf.prod, aicf.max, aicf.min, aicf.argmax, aicf.cumsum, aicf.cumprod,
               aicf.sort, aicf.argsort, aicf.any):  # fmt: skip
        g.output(fn.__name__, fn(x, 1))
    for name, y in {
        "arithmetic": (x * x - 3) // (x | 1) % 7,
        "bits": (~x << 2) >> aicf.clip(x, 0, 3) ^ aicf.relu(-x),
        "chosen": aicf.where(x > 2, aicf.maximum(x, 1), aicf.abs(x)),
        "padded": aicf.pad(aicf.concat([x, x]), [(1, 1), (1, 1)], 7)[::-1, 1:],
        "gathered": aicf.take_along_axis(x, at, 0),
        "scattered": aicf.scatter_add(x, 0, at, x),
        "searched": aicf.searchsorted(x[0], x),
        "largest": aicf.cummax(x, 0)[0],
    }.items():
        g.output(name, y)
    compiled(g, "sm_90a")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_float64_functions(arch):
    """And their gradients."""
    g = aicf.Graph("functions")
    x, y = g.input("x", (700,), "float64"), g.input("y", (700,), "float64")
    for name in exact64.FUNCTIONS:
        value = exact64.applied(name, x, y)
        g.output(name, value)
        g.output(f"{name}.slope", g.backward(aicf.sum(value), [x])[x])
    compiled(g, arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_training_step(arch):
    name, case = next(iter(verify.CASES.items()))
    compiled(verify.build(name, case), arch)


def test_a_program_has_what_it_uses_alone():
    """Of the sources that it includes: names of its own and those that these need."""
    g = aicf.Graph("g")
    g.output("y", aicf.tanh(g.input("x", (700,))))
    (program,) = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
    text = _core.cuda_source(program)
    assert text.endswith(program.split('"\n', 1)[1]) and "#include" not in text
    for used in ("float tanh(float x)", "double tanh(double x)", "reciprocal", "store_dense"):
        assert used in text, used
    for other in ("sin_fast", "log1p", "gelu", "dropout", "philox", "kMaxDims", "AICF_POINTWISE"):
        assert other not in text, other
    with pytest.raises(RuntimeError, match="not embedded"):
        _core.cuda_source('#include "nothing.cuh"\n')
    with pytest.raises(RuntimeError, match="not embedded"):
        _core.cuda_source('#include "nothing.cuh')


def test_alone_and_side_by_side_a_program_has_one_binary(tmp_path, monkeypatch):
    """Two at a time, NVRTC's second library takes every other one."""
    name, case = next(iter(verify.CASES.items()))
    programs = _core.cuda_programs(verify.build(name, case)._core, APART)[:4]
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")  # of NVRTC itself
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path / "alone"))
    alone = [_core.cuda_cubins([program], "sm_90a")[0] for program in programs]
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path / "together"))
    assert len(programs) == 4 and _core.cuda_cubins(programs, "sm_90a") == alone


def test_members_that_are_alike_share_one_text():
    """Each block finds the member whose it is, and that member's arguments."""
    g = aicf.Graph("g")
    sizes = [900, 70, 5000, 300, 20_000, 257, 256, 9000, 1000, 700]
    for i, size in enumerate(sizes):
        g.output(f"y{i}", aicf.cast(g.input(f"x{i}", (size,)), "bfloat16"))
    (program,) = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
    bodies = re.findall(r"void \w+_(\d+)_body\(", program)
    assert len(bodies) == 2, bodies  # blocks of 256 threads and the one of 96
    # The search, as Python.
    (search,) = re.findall(r"int place = 0;(.*?)if \(blocks > 0", program, re.S)
    code, depth = "", 0
    for part in re.findall(r"if \([^)]*\) \{|\} else \{|\}|first = [^;]*;", search):
        depth -= part[0] == "}"
        if part[-1] == "{" or part[0] == "f":
            text = re.sub(r"(\d)u", r"\1", part.strip("{}; ")).replace("&&", "and")
            code += " " * depth + text.replace(",", ";") + (":" if part[-1] == "{" else "") + "\n"
        depth += part[-1] == "{"
    blocks = [-(-size // 256) for size in sizes]
    first = [sum(blocks[:i]) for i in range(len(blocks))]
    places = set()
    for i, begin in enumerate(first):
        for b in range(begin, begin + blocks[i]):
            found = {"b": b, "blocks": 0}
            exec(code, found)  # noqa: S102
            if sizes[i] > 224:
                assert (found["first"], found["blocks"]) == (begin, blocks[i]), (b, code)
                places.add((i, found["place"]))
            else:
                assert found["blocks"] == 0
    bytes_of = int(re.search(r"block\.part<(\d+)>\(place\)", program)[1])
    origin = min(places)[1]
    assert sorted(places) == [
        (i, origin + i * bytes_of) for i, size in enumerate(sizes) if size > 224
    ]
    compiled(g, "sm_90a")


@pytest.mark.parametrize("sizes", [(3, 4), (300, 200, 100), tuple(range(3, 24))])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_updates(dtype, optimizer, sizes):
    """Few and many tensors, small and large, with the numbers made inside and outside."""
    g = aicf.Graph("updates")
    x = g.input("x", (5, sizes[0]), dtype)
    for i, (rows, columns) in enumerate(zip(sizes[1:], sizes[:-1], strict=True)):
        x = aicf.linear(
            x, g.param(f"{i}.W", (rows, columns), dtype), g.param(f"{i}.b", (rows,), dtype)
        )
    g.minimize(aicf.mean(x * x), getattr(aicf.optim, optimizer)(lr=0.1))
    compiled(g, "sm_90a")


@pytest.mark.usefixtures("any_size_narrows")
@pytest.mark.parametrize("large", [False, True])
def test_an_update_reads_gradients_in_16_bits(large):
    """Of tensors that share an op with others, and of one alone; the cast is gone. (Small ones are
    updated behind the products that make their gradients, by another pass.)"""
    g = aicf.Graph("mixed")
    sizes = (2049, 2049) if large else (60, 50, 40)
    h = g.input("x", (64, sizes[0]))
    for i, size in enumerate(sizes[1:]):
        h = g.dense(str(i), h, size)
    g.minimize(aicf.mse_loss(h, g.input("t", h.shape)), aicf.optim.Adam())
    passes = [name for name in _core.pass_names() if name != "update_epilogues"]
    plan = json.loads(_core.cuda_plan(g._core, passes, math="mixed"))
    assert not any(op["op"] == "cast" and op["attrs"]["dtype"] == "float32" for op in plan["ops"])
    updates = [[step["op"] for step in op.get("body", [])] for op in plan["ops"]]
    assert sum(body.count("cast") for body in updates if "adam_step" in body) == len(sizes) - 1
    compiled(g, "sm_90a", "mixed")


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_an_update_takes_a_gradient_in_other_16_bits(dtype):
    """Where it has 16 bits itself, what the cast has made: no update reads both types."""
    g = aicf.Graph("two")
    other = "float16" if dtype == "bfloat16" else "bfloat16"
    w, x = g.param("w", (5, 7), dtype), g.input("x", (5, 7), other)
    g.minimize(aicf.sum(aicf.cast(aicf.cast(w, other) * x, "float32")), aicf.optim.SGD(0.1))
    compiled(g, "sm_90a")


@pytest.mark.parametrize("size", [20, 150, 2000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_epilogues(dtype, size):
    """Behind small and tiled products, with strided operands and several results."""
    g = aicf.Graph("epilogues")
    x, b = g.input("x", (2, size, size), dtype), g.input("b", (size,), dtype)
    y = aicf.gelu(x @ x + b)
    g.output("y", y)
    g.output("z", aicf.clip(y, -0.5, 0.5) * aicf.permute(x, (0, 2, 1)) + b)
    g.output("mask", y > 0.0)
    compiled(g, "sm_90a")


@pytest.mark.parametrize("math", ["fp32", *MODES])
def test_epilogues_of_numbers(math):
    """Behind warp roles, whose results are stored 16 bytes at once."""
    g = aicf.Graph("epilogues")
    dtype = "bfloat16" if math == "fp32" else "float32"
    y = g.input("a", (512, 256), dtype) @ g.input("b", (256, 512), dtype)
    for i in range(4):
        g.output(f"y{i}", y)
        y = aicf.clip(aicf.leaky_relu(y, 0.1), -0.5, 0.5)
    compiled(g, "sm_90a", math)


@pytest.mark.parametrize("rows", [3, 5000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_fused(dtype, rows):
    """Bodies of many steps, with numbers, inner values, broadcasts and several results."""
    g = aicf.Graph("fused")
    x, row = g.input("x", (rows, 50), dtype), g.input("row", (50,), dtype)
    turned, count = g.input("turned", (50, rows), dtype), g.input("count", (rows, 50), "int32")
    y = aicf.sin(x) * row + aicf.exp(-x * x) - aicf.permute(turned, (1, 0))
    g.output("y", aicf.where(aicf.logical_and(y < x, count > 3), y, aicf.elu(y, 0.5)))
    g.output("clipped", aicf.clip(y, -1.5, 2.5))
    g.output("count", aicf.cast(y, "int32") * count)
    g.output("wide", aicf.cast(y, "float64") * 0.5)
    compiled(g, "sm_90a")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_reductions(dtype):
    """What makes the elements and what takes the results, in every shape of work."""
    g = aicf.Graph("reductions")
    large, small = (300, 70_000), (7, 33)
    shapes = [(large, 1), (large, 0), (large, (0, 1)), (small, 1), (small, 0), ((64, 3000), 1)]
    for i, (shape, axes) in enumerate([*shapes, ((5, 6, 7, 8), (1, 3))]):
        x, b = g.input(f"x{i}", shape, dtype), g.input(f"b{i}", shape[-1:], dtype)
        g.output(f"root{i}", aicf.sqrt(aicf.abs(aicf.sum(x * b, axes))) * 2.0)
        least = aicf.min(aicf.clip(x - b, -0.5, 0.5), axes, keepdims=True)
        g.output(f"least{i}", least)
        g.output(f"square{i}", least * least)
        g.output(f"count{i}", aicf.sum(aicf.cast(x > b, "int32"), axes))
    compiled(g, "sm_90a")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_in_chains_fit_every_device(dtype):
    """In the 48 KB of shared memory that a block has unasked: the most of 7.5 is 64 with all."""
    g = aicf.Graph("chains")
    x, dy = g.input("x", (2000, 64), dtype), g.input("dy", (2000, 64), dtype)
    w, b = g.param("w", (64, 64), dtype=dtype), g.param("b", (64,), dtype=dtype)
    loss = aicf.sum(aicf.linear(x, w, b) * dy)
    g.output("db", g.backward(loss, [b])[b])
    programs = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_75")
    sizes = r"reduce_chain<.*?>, (?:float|double), \d+, (\d+), (\d+)"
    chains = re.findall(sizes, "".join(programs))
    assert chains
    for most, width in chains:
        assert int(most) * int(width) * np.dtype(dtype).itemsize <= 48 << 10
    compiled(g, "sm_75")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_tall_sums_in_chains(dtype):
    """Threads take columns, with all that is on its way in registers."""
    g = aicf.Graph("tall")
    n, width = 16384, 768
    x, dy = g.input("x", (n, 8), dtype), g.input("dy", (n, width), dtype)
    w, b = g.param("w", (width, 8), dtype=dtype), g.param("b", (width,), dtype=dtype)
    y = aicf.linear(x, w, b)
    g.output("plain", g.backward(y, [b], grad=dy)[b])
    g.output("made", g.backward(y, [b], grad=aicf.gelu(dy) * dy)[b])
    programs = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
    calls = re.findall(r"reduce_tall<.*?>, (?:float|double), (.*?), \w+_Shape", "".join(programs))
    assert len(calls) == 2
    for call in calls:
        chunk, v, across, teams, lot, stage = map(int, call.split(", "))
        assert v * np.dtype("float16" if dtype == "bfloat16" else dtype).itemsize in (4, 8)
        assert stage * across * v * (8 if dtype == "float64" else 4) <= 32 << 10
        assert across * teams <= 256
    assert not any(map(spilled, programs))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_rows(dtype, arch):
    """Ops on rows between what makes their operands and what takes their results."""
    g = aicf.Graph("rows")
    for i, shape in enumerate([(20, 30), (3, 5, 700), (4, 5000)]):
        x, row, dy = (
            g.input(f"{name}{i}", size, dtype)
            for name, size in (("x", shape), ("row", shape[-1:]), ("dy", shape))
        )
        wide = aicf.cast(g.input(f"wide{i}", shape, "float64"), dtype)
        made = {
            "softmax": aicf.softmax(x * 0.5 + row) * dy,
            "log_softmax": aicf.log_softmax(aicf.where(wide < x, x, row)),
            "norm": aicf.layer_norm(x + wide, shape[-1], row, row),
            "rms": aicf.rms_norm(x * row, shape[-1]) + x,
            "attention": aicf.scaled_dot_product_attention(x, x, dy),
        }
        flat = aicf.reshape(x, (-1, shape[-1]))
        labels = g.input(f"labels{i}", flat.shape[:1], "int32")
        loss = aicf.cross_entropy(flat * 0.25, labels)
        g.output(f"loss{i}", loss)
        for name, y in made.items():
            g.output(f"{name}{i}", y)
            loss = loss + aicf.sum(y * dy)
        g.output(f"dx{i}", g.backward(loss, [x])[x])
    text = g._core.stages(_core.pass_names())[-1].text
    assert len(re.findall(r"region\([^)]*(softmax|normalize|cross_entropy)", text)) >= 24
    compiled(g, arch)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_large(dtype):
    """The kernels that only large operands reach."""
    g = aicf.Graph("large")
    x = g.input("x", (300, 70_000), dtype)
    g.output("rows", aicf.sum(x, axis=1))
    g.output("columns", aicf.sum(x, axis=0))
    g.output("all", aicf.max(x))
    g.output("softmax", aicf.softmax(x, axis=1))
    g.output("product", aicf.matmul(x, aicf.permute(x, (1, 0))))
    g.output("sine", aicf.sin(x + x[:, :1]))
    compiled(g, "sm_90a")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "tf32", "fp16", "bf16"]
)
def test_products(dtype, arch):
    """Every tiling, in parts of k and whole, along and across k, ragged too."""
    dtype, math = ("float32", dtype) if "float" not in dtype else (dtype, "fp32")
    g = aicf.Graph("products")
    for i, (m, n, k) in enumerate([(4096, 4096, 512), (1024, 1024, 1027), (66, 70, 2048)]):
        a, b = g.input(f"a{i}", (m, k), dtype), g.input(f"b{i}", (k, n), dtype)
        g.output(f"y{i}", aicf.matmul(a, b))
        turned = aicf.permute(b, (1, 0)), aicf.permute(a, (1, 0))
        g.output(f"t{i}", aicf.matmul(*turned))
        g.output(f"s{i}", aicf.matmul(a[:2], b))
    compiled(g, arch, math)


def product_kernels(sizes, dtype, layout, epilogue=None):
    """The programs of every kernel of a product, one each."""
    m, n, k = sizes
    dtype, math = ("float32", dtype) if dtype in MODES else (dtype, "fp32")
    g = aicf.Graph("product")
    a = g.input("a", (k, m) if "a" in layout else (m, k), dtype)
    b = g.input("b", (n, k) if "b" in layout else (k, n), dtype)
    a = aicf.permute(a, (1, 0)) if "a" in layout else a
    y = aicf.matmul(a, aicf.permute(b, (1, 0)) if "b" in layout else b)
    g.output("y", epilogue(g, y) if epilogue else y)
    names = _core.pass_names()
    ((signature, known),) = _core.cuda_candidates(g._core, names, math=math).items()
    found = {}
    for one in known:
        programs = _core.cuda_programs(g._core, names, math=math, candidates={signature: one})
        (found[one],) = [text for text in programs if re.search(r"gemm_\w+<", text)]
    return found


WARP_ROLES = "gemm_(wgmma|wgmma_writers|wgmma_runs|wgmma_cluster|limbs)<"


def wgmma_kernels(*args):
    """Those with warp roles."""
    found = product_kernels(*args)
    return {name: text for name, text in found.items() if re.search(WARP_ROLES, text)}


def with_residual(g, y):
    bias, rest = g.input("bias", y.shape[-1:], y.dtype), g.input("rest", y.shape, "float32")
    g.output("wide", aicf.cast(y, "float32"))
    return aicf.gelu(aicf.cast(y + bias, "float32") + rest)


WARP_ROLE_SPILLS = {"wgmma_128x192_copies": 24}  # bytes that are not in memory in the loop over k
WARP_ROLE_REGISTERS = {"wgmma_128x128_writers": 96, "wgmma_128x192_writers": 128}


def with_gelu(g, y):
    wide = y + g.input("bias", y.shape[-1:], y.dtype)
    g.output("wide", wide)
    return aicf.gelu(wide, "tanh")


def with_slope(g, y):
    x = g.input("x", y.shape, y.dtype)
    return g.backward(aicf.gelu(x), [x], grad=y)[x]


@pytest.mark.parametrize(
    ("sizes", "dtype", "layout", "epilogue"),
    [
        ((520, 776, 1000), "bfloat16", "", None),
        ((512, 512, 512), "float16", "a", with_residual),
        ((768, 3072, 16384), "bfloat16", "b", None),  # in parts, and cut after cut
        ((2048, 2048, 8192), "float16", "ab", with_residual),
        ((768, 768, 4096), "bfloat16", "a", None),  # clusters share cuts
        ((1024, 1024, 8192), "bfloat16", "b", None),
        ((1024, 1024, 1024), "bfloat16", "b", None),  # two cuts, in registers
        ((16384, 3072, 768), "bfloat16", "b", with_gelu),
        ((4096, 4104, 768), "float16", "a", with_gelu),
        ((16384, 3072, 768), "bfloat16", "", with_slope),
        ((4096, 4096, 768), "float16", "ab", with_residual),
        ((264, 392, 512), "tf32", "", None),
        ((1024, 1024, 1024), "tf32", "ab", with_residual),
        ((2048, 2048, 8192), "tf32", "a", None),
        ((1024, 1024, 1056), "tf32", "", None),  # the last cut has an odd number of steps
        ((1024, 1024, 2080), "tf32", "ab", with_residual),
        ((264, 392, 512), "fp16", "", None),
        ((1024, 1024, 1024), "bf16", "ab", with_residual),
        ((2048, 2048, 8192), "fp16", "a", None),
        ((264, 2056, 1000), "fp32x", "", None),
        ((1024, 1024, 1024), "fp32x", "ab", with_residual),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_nothing_is_serialized_or_spilled(sizes, dtype, layout, epilogue):
    """Products that wait for each other, or sums outside registers, would still be right."""
    programs = wgmma_kernels(sizes, dtype, layout, epilogue)
    assert len(programs) >= 5
    for name, program in programs.items():
        log = _core.cuda_log(program, "sm_90a")
        used = int(re.search(r"Used (\d+) registers", log)[1])
        if name.startswith("wgmma_64x64") and not name.endswith("_pair"):
            assert used <= 128, (name, log)  # two blocks share a processor
        elif name.startswith("wgmma_128x"):  # of 65536, before roles share them anew
            assert used == WARP_ROLE_REGISTERS.get(name.removesuffix("_pair"), 168), (name, log)
        assert "serialized" not in log, (name, log)
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
        assert spills and max(spills) <= WARP_ROLE_SPILLS.get(name, 0), (name, log)
        assert "setmaxnreg" not in log, (name, log)  # nor is it ignored


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_attention_is_neither_serialized_nor_spilled(size, causal):
    """Forward, and all gradients in one launch, one alone and the two others."""
    g = aicf.Graph("attention")
    for names in ("qkv", "q", "kv"):
        shape = (2, 3, 1100, size)
        q, k, v, dy = (g.input(f"{names}.{x}", shape, "bfloat16") for x in ("q", "k", "v", "dy"))
        y = aicf.scaled_dot_product_attention(q, k, v, causal=causal)
        of = [{"q": q, "k": k, "v": v}[name] for name in names]
        for i, value in enumerate(g.backward(y, of, grad=dy).values()):
            g.output(f"{names}{i}", value)
    programs = [p for p in _core.cuda_programs(g._core, ()) if "attention" in p]
    for name in ("attention", "attention_dq", "attention_dkv", "attention_grads"):
        assert any(f"aicf_{name}_wgmma_bf16" in p for p in programs), name
    for program in programs:
        log = _core.cuda_log(program, "sm_90a")
        assert "serialized" not in log and "setmaxnreg" not in log, log
        assert not spilled(program), log
        # Warps that ask for more registers than the block was given wait for good.
        given, groups = (
            int(re.search(r"Used (\d+) registers", log)[1]),
            2 + ("groups = 3" in program),
        )
        asked = re.findall(r"producer_registers = (\d+), consumer_registers = (\d+)", program)
        assert asked and all(int(n) + groups * int(m) <= (groups + 1) * given for n, m in asked)
        name = re.search(r"aicf_(attention\w*)_wgmma_bf16", program)[1]
        assert waits_for_products(program) == WAITS[name][size == 128], name


@pytest.mark.parametrize("length", [1100, 2048])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_gradients_in_one_kernel_are_neither_serialized_nor_spilled(size, causal, groups, length):
    g = aicf.Graph("attention")
    q, dy = (g.input(x, (2, 4, length, size), "bfloat16") for x in ("q", "dy"))
    k, v = (g.input(x, (2, groups, length, size), "bfloat16") for x in "kv")
    y = aicf.scaled_dot_product_attention(q, k, v, causal=causal, enable_gqa=groups < 4)
    for i, value in enumerate(g.backward(y, [q, k, v], grad=dy).values()):
        g.output(f"{i}", value)
    known = _core.cuda_candidates(g._core, _core.pass_names())
    chosen = {signature: "wgmma_joint" for signature, x in known.items() if "wgmma_joint" in x}
    assert len(chosen) == 1, known
    programs = _core.cuda_programs(g._core, _core.pass_names(), candidates=chosen)
    (program,) = [p for p in programs if "aicf_attention_grads_joint_wgmma_bf16" in p]
    log = _core.cuda_log(program, "sm_90a")
    assert "serialized" not in log and "setmaxnreg" not in log, log
    assert not spilled(program), log
    assert (
        int(re.search(r"Used (\d+) registers", log)[1]) == 168
    )  # 40 + 2 * 232 of three times that


# What waits for products in the sources, by the size of heads. Where there is more, the assembler
# saw sums in use that are on their way, and had a turn of the loop end before the next begins.
WAITS = {
    "attention": (2, 3),
    "attention_dq": (7, 7),
    "attention_dkv": (7, 3),
    "attention_grads": (14, 10),
}


def waits_for_products(program):
    """The instructions WARPGROUP.DEPBAR of a kernel."""
    cubin = _core.cuda_cubins([program], "sm_90a")[0]
    words = np.frombuffer(cubin[: len(cubin) // 16 * 16], np.uint64)[::2]
    return int(((words & np.uint64(0xFFFFE0FFFFFFFFFF)) == np.uint64(0x8000000079C5)).sum())


@pytest.mark.parametrize("layout", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((1, 330, 1040), "bfloat16"),
        ((616, 8, 4096), "float16"),
        ((4, 96, 4320), "float32"),
        ((8, 130, 4336), "tf32"),
    ],
    ids=str,
)
def test_few_rows(sizes, dtype, layout):
    """The other operand by rings of warps: in tf32 where its k lies side by side."""
    known = product_kernels(sizes, dtype, layout, with_residual)
    assert ("thin" in known) == (dtype != "tf32" or "b" in layout), known
    if "thin" in known:
        assert "gemm_thin_" in known["thin"]
        assert not spilled(known["thin"])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("arch", "room"), [("sm_80", 99 << 10), ("sm_90a", 227 << 10)])
@pytest.mark.parametrize(
    "sizes", [(1, 1024, 4096), (4, 1024, 4096), (4, 4096, 4096), (3, 65536, 96)]
)
def test_rings_of_few_rows_fit(sizes, arch, room, turned):
    """With the sums beside them, on every device of the family."""
    m, n, k = sizes
    g = aicf.Graph("g")
    b = g.input("b", (n, k) if turned else (k, n))
    g.output("y", g.input("a", (m, k)) @ (b.T if turned else b))
    known = _core.cuda_candidates(g._core, _core.pass_names(), processors=108, arch=arch)
    ((signature, names),) = known.items()
    assert "thin" in names
    (program,) = _core.cuda_programs(
        g._core, _core.pass_names(), 108, arch, candidates={signature: "thin"}
    )
    ((groups, slices, stages),) = re.findall(r"gemm_thin_chain<\w+, (\d+), (\d+), (\d+)", program)
    ((rows, lines),) = re.findall(r"int64_t rows = (\d+).*?int64_t lines = (\d+)", program, re.S)
    warps = int(groups) * int(slices)
    assert warps * (int(stages) * 128 * (int(lines) + int(rows)) + 128 * int(rows)) <= room


def spilled(program):
    """The bytes of registers that a kernel keeps in memory."""
    log = _core.cuda_log(program, "sm_90a")
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
    assert spills, log
    return sum(spills)


# Bytes of spills where there are some, by the dtype of sums and the width of rows.
SPILLED_ROWS = {("float64", 6): 216, ("float64", 64): 104, ("float64", 768): 168}


@pytest.mark.parametrize(
    ("dtype", "width"),
    [*(("float32", width) for width in (1, 2, 3, 6, 16, 20, 64, 100, 768)), *SPILLED_ROWS],
)
@pytest.mark.parametrize("count", [9000, 90000])  # by a block's own rows, sorted in passes
def test_sums_by_index_do_not_spill(dtype, width, count):
    """Two blocks of 512 threads share a processor: 64 registers each, for sorting and for sums."""
    g = aicf.Graph("rows")
    x, s = g.input("x", (5000, width), dtype), g.input("s", (count, width), dtype)
    g.output("y", aicf.index_add(x, 0, g.input("i", (count,), "int64"), s))
    (program,) = [
        text
        for text in _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
        if "sort_positions(" in text or "own_rows<" in text
    ]
    assert spilled(program) <= SPILLED_ROWS.get((dtype, width), 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "uint8"])
def test_sorting_does_not_spill(dtype):
    """Runs and how they are merged, what goes by sorted positions, and what gathers."""
    g = aicf.Graph("lines")
    x, s = g.input("x", (40, 9000), dtype), g.input("s", (40, 3000), dtype)
    at = g.input("i", (40, 3000), "int64")
    g.output("added", aicf.scatter_add(x, 1, at, s))
    g.output("put", aicf.scatter(x, 1, at, s))
    g.output("order", aicf.argsort(x, 1))
    g.output("few", aicf.argsort(x[:, :100], 1))
    g.output("gathered", aicf.take_along_axis(x, at, 1))
    g.output("taken", aicf.take(x, at[0], 0))
    programs = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
    kernels = ("sum_numbers", "last_positions", "argsort", "argsort_merge", "gather", "take")
    for kernel in kernels:
        assert any(f"{kernel}<" in text for text in programs), kernel
    assert not any(map(spilled, programs))


# Bytes that are in memory before and behind the loop over k, or from one tile to the next.
SPILLED = {
    ("tf32", "64x64_6"): 32,
    ("tf32", "near_16x16_3"): 8,
    ("float32", "near_32x64_t4_2"): 16,
    ("bfloat16", "near_64x64_t16"): 16,
    ("bfloat16", "near_64x64_6"): 16,
    ("bfloat16", "near_32x32_t16_2"): 12,
}


@pytest.mark.parametrize("layout", ["", "ab"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "tf32"])
def test_no_product_spills(dtype, layout):
    """Nor do kernels without warp roles, in parts or whole, with an epilogue."""
    for name, program in product_kernels((520, 392, 1030), dtype, layout, with_residual).items():
        most = SPILLED.get((dtype, name), 0)
        assert "gemm_wgmma<" in program or spilled(program) <= most, name


def test_which_operands_the_copy_engine_reads():
    """Whole 16 bytes from line to line and from the first on; others take the older kernels."""

    def known(a_shape, b_shape, cut=lambda a: a, dtype="bfloat16"):
        g = aicf.Graph("product")
        a, b = g.input("a", a_shape, dtype), g.input("b", b_shape, dtype)
        g.output("y", aicf.matmul(cut(a), b))
        ((_, names),) = _core.cuda_candidates(g._core, _core.pass_names()).items()
        return any(name.startswith("wgmma_") for name in names), names

    assert known((512, 512), (512, 512))[0]
    assert known((3, 512, 512), (3, 512, 512))[0]
    assert known((3, 512, 512), (512, 512))[0]  # one b for all
    assert known((512, 528), (512, 512), lambda a: a[:, 8:520])[0]
    for shapes in [
        ((512, 516), (516, 512)),
        ((512, 512), (512, 508)),
        ((512, 516), (512, 512), lambda a: a[:, 2:514]),
        ((512, 520), (512, 512), lambda a: a[:, 4:516]),
        ((512, 1024), (512, 512), lambda a: a[:, ::2]),
        ((512, 512), (512, 512), lambda a: a, "float32"),
        ((64, 64), (64, 64)),
    ]:
        found, names = known(*shapes)
        assert not found, (shapes, names)


@pytest.mark.parametrize("math", ["tf32", "bf16", "fp16"])
def test_small_products_have_small_tiles(math):
    """Large ones not: what copies of operands cost is little beside them; tf32 needs none here."""
    copies = math != "tf32"
    for (m, n, k), small in [
        ((128, 512, 784), True),
        ((128, 1024, 1024), True),
        ((512, 784, 128), copies),
        ((2048, 2048, 2048), False),
    ]:
        g = aicf.Graph("product")
        a, b = g.input("a", (m, k)), g.input("b", (n, k))
        g.output("y", aicf.matmul(a, aicf.permute(b, (1, 0))))
        ((_, names),) = _core.cuda_candidates(g._core, _core.pass_names(), math=math).items()
        assert names[0].startswith("near_") == small, (m, n, k, names)


def test_which_operands_are_read_where_they_lie():
    """A of tf32 lies in whole 16 bytes from line to line; copies of both serve all."""

    def known(a_shape, cut=lambda a: a, math="tf32"):
        g = aicf.Graph("product")
        a = cut(g.input("a", a_shape))
        g.output("y", aicf.matmul(a, g.input("b", (a.shape[-1], 264))))
        ((_, names),) = _core.cuda_candidates(g._core, _core.pass_names(), math=math).items()
        assert any(re.fullmatch(r"wgmma_\d+x\d+_copies(_\d+)?", name) for name in names), names
        return any("_right" in name for name in names)

    assert known((512, 516))
    assert known((516, 512), lambda a: aicf.permute(a, (1, 0)))
    assert known((512, 524), lambda a: a[:, 4:516])
    assert known((3, 512, 512))
    assert not known((512, 514))
    assert not known((512, 514), lambda a: aicf.permute(a, (1, 0)))
    assert not known((512, 524), lambda a: a[:, 2:514])
    assert not known((512, 1024), lambda a: a[:, ::2])
    assert not known((512, 512), math="bf16")


def test_products_of_no_batches():
    """Nothing to share out among tiles, and nothing to divide by."""
    g = aicf.Graph("empty")
    g.output("y", aicf.matmul(g.input("a", (0, 64, 512)), g.input("b", (0, 512, 64))))
    assert _core.cuda_programs(g._core, _core.pass_names()) == []


def test_a_product_of_few_rows_keeps_its_threads_in_a_group():
    """Its slices of k are warps of one block: with fewer some would be missing."""
    g = aicf.Graph("g")
    a, w, z = g.input("a", (1, 4096)), g.input("w", (4096, 1)), g.input("z", (64,))
    g.output("y", aicf.matmul(a, aicf.broadcast_to(w, (4096, 64))))
    g.output("e", aicf.softmax(z))
    (program,) = _core.cuda_programs(g._core, _core.pass_names(), arch="sm_90a")
    ((groups, slices),) = re.findall(r"gemm_thin_chain<\w+, (\d+), (\d+)", program)
    assert f"threadIdx.x < {32 * int(groups) * int(slices)})" in program
