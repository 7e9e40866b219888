"""Copies, rows by number, scatters and what goes along lines, around the sizes of their kernels."""

import aicf
import ml_dtypes
import numpy as np
import pytest
from aicf import _core
from aicf.indexing import _emit
from compare import assert_bits

needs_compiler = pytest.mark.skipif(
    not _core.cuda_info()["nvrtc"], reason="NVRTC is not installed (aicf[cuda13])"
)
TERMS = sorted({v for *_, what, v in _core.cuda_thresholds() if what == "take_bwd.terms"})
# Positions that each row looks through, of a sum, of a block, that blocks sort by themselves.
LOOKED_THROUGH, CHUNK, TILE, SPLIT = TERMS
DTYPES = ("float32", "bfloat16", "float64")


def numbers(rng, shape, dtype):
    if "int" in dtype:
        bounds = np.iinfo(dtype)
        return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(
        ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    )


def places(rng, shape, below, often=0.0, dtype=np.int64):
    """Indices of which some lie outside and a part is one and the same."""
    found = rng.integers(-1, below + 1, shape)
    found[rng.random(shape) < often] = min(2, below - 1)
    return found.astype(dtype)


def joined(rng, dtype, graph):
    """Copies whose rows are whole vectors, begin within one, or are of odd length."""
    for name, widths in {"whole": (256, 64), "odd": (255, 64), "shifted": (250, 6)}.items():
        parts = [graph.constant(numbers(rng, (160, n), dtype)) for n in widths]
        yield f"concat {name}", aicf.concat(parts, 1)
        yield f"concat {name} reversed", aicf.concat([p[:, ::-1] for p in parts], 1)
    x = graph.constant(numbers(rng, (24, 32, 64), dtype))
    for around in ([(0, 0), (1, 2), (8, 8)], [(1, 0), (0, 1), (4, 0)], [(1, 1), (1, 1), (1, 2)]):
        yield f"pad {around}", aicf.pad(x, around, 3)
    for width in (8, 255, 256):
        table = graph.constant(numbers(rng, (100, width), dtype))
        for kind in (np.int32, np.int64):
            at = graph.constant(places(rng, (40, 60), 100, dtype=kind))
            yield f"rows of {width} by {kind.__name__}", aicf.embedding(at, table)
    x, at = numbers(rng, (33, 50, 40), dtype), places(rng, (33, 70, 40), 50)
    yield "gather", _emit("Gather", "g", graph.constant(x), graph.constant(at), axis=1)


def scattered(rng, dtype, graph):
    """Positions of one row, of a few, of many; as many as are looked through, and one more."""
    for count in (LOOKED_THROUGH, LOOKED_THROUGH + 1, 700, 5000):
        for rows, often in ((1, 0.0), (37, 0.6), (9000, 0.1)):
            at = graph.constant(places(rng, (count,), rows, often))
            for width in (0, 3, 64, 200) if count < 1000 else (0, 96):
                shape = (count, width) if width else (count,)
                dy = graph.constant(numbers(rng, shape, dtype))
                yield f"{count} of {width} to {rows}", _emit("TakeBwd", "t", dy, at, rows=rows)
    for shape, axis, size in (
        ((LOOKED_THROUGH + 1,), 0, 9),
        ((3000,), 0, 70),
        ((5, 300), 1, 77),
        ((300, 5), 0, 6000),
        ((3, 200, 7), 1, 33),
        ((200, 90), 1, 30),
    ):
        x = graph.constant(numbers(rng, shape, dtype))
        at = graph.constant(places(rng, shape, size, 0.3))
        name = f"{shape} along {axis} to {size}"
        yield f"sums {name}", _emit("ScatterAdd", "s", x, at, axis=axis, size=size)
        yield f"last {name}", _emit("ScatterLast", "l", at, axis=axis, size=size)
        one = [n if i == axis else 1 for i, n in enumerate(shape)]
        same = aicf.broadcast_to(graph.constant(places(rng, one, size, 0.3)), shape)
        yield f"shared {name}", _emit("ScatterAdd", "s", x, same, axis=axis, size=size)


def sorted_rows(rng, dtype, graph):
    """Positions around a chunk, a tile and what is sorted in passes; rows around the digits of a
    pass and their number."""
    for count in (CHUNK, CHUNK + 1, TILE - 1, TILE, TILE + 1, 2 * TILE + 1, SPLIT, SPLIT + 1):
        for rows in (1, 2, 16, 255, 256, 257, 1025):
            at = places(rng, (count,), rows, 0.3)
            for kind, taken in {"few": at, "one": np.full_like(at, rows - 1)}.items():
                x = graph.constant(numbers(rng, (count,), dtype))
                taken = graph.constant(taken.astype(np.int32 if count % 2 else np.int64))
                y = _emit("ScatterAdd", "s", x, taken, axis=0, size=rows)
                yield f"{count} to {rows}, {kind}", y
    # Few positions of many rows are sorted in passes again.
    at = graph.constant(places(rng, (SPLIT // 8,), 1 << 22, 0.0))
    few = graph.constant(numbers(rng, (SPLIT // 8,), dtype))
    for rows in (SPLIT, 1 << 21, 1 << 22):
        yield f"few to {rows}", _emit("ScatterAdd", "s", few, at, axis=0, size=rows)
    at = graph.constant(places(rng, (SPLIT + 1,), 65537, 0.1))
    x = graph.constant(numbers(rng, (SPLIT + 1,), dtype))
    for rows in (1023, 1024, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1):  # 10 bits a pass at most
        yield f"to {rows}", _emit("ScatterAdd", "s", x, at, axis=0, size=rows)
        yield f"last of {rows}", _emit("ScatterLast", "l", at, axis=0, size=rows)
    # Counts of tiles are added by a warp's lanes, and in several turns of a block.
    for tiles in (32, 256) if dtype == "float32" else ():
        at = graph.constant(places(rng, (tiles * TILE + 1,), 1024, 0.1))
        x = graph.constant(numbers(rng, (tiles * TILE + 1,), dtype))
        yield f"{tiles} tiles", _emit("ScatterAdd", "s", x, at, axis=0, size=1024)
    x = graph.constant(numbers(rng, (TILE + 1,), dtype))
    wide = graph.constant(numbers(rng, (TILE + 1, 5), dtype))
    for rows, often in ((1, 0.0), (3, 0.9), (300, 0.7)):
        at = places(rng, (TILE + 1, 1), rows, often)
        shared = aicf.broadcast_to(graph.constant(at), wide.shape)
        yield f"shared to {rows}", _emit("ScatterAdd", "s", wide, shared, axis=0, size=rows)
        each = graph.constant(places(rng, (TILE + 1, 5), rows, often))
        yield f"lines to {rows}", _emit("ScatterAdd", "s", wide, each, axis=0, size=rows)
        outside = graph.constant(np.full((TILE + 1,), rows))
        yield f"nothing to {rows}", _emit("ScatterAdd", "s", x, outside, axis=0, size=rows)
        if dtype in DTYPES:
            at = graph.constant(at[:, 0])
            yield f"rows to {rows}", _emit("TakeBwd", "t", wide, at, rows=rows)
            yield f"numbers to {rows}", _emit("TakeBwd", "t", x, at, rows=rows)
    if dtype in DTYPES:  # a row of one whole chunk
        at = graph.constant(np.arange(TILE + 1) // CHUNK)
        yield "whole chunks", _emit("TakeBwd", "t", wide, at, rows=TILE // CHUNK + 1)


def own_rows(rng, dtype, graph):
    """Rows of a block that have as many positions as it keeps, one more, and more than a chunk of
    one row; some blocks of that kind, or all others without any."""
    split, rows = 10, 2640  # of 264 blocks
    few = [rng.integers(0, split, CHUNK), split + rng.integers(0, split, CHUNK + 1)]
    few += [np.full(CHUNK, 3 * split + 2), np.full(CHUNK + 1, 4 * split + 1)]
    some = [np.full(n, rng.integers(rows)) for n in (2 * CHUNK, 2 * CHUNK + 1, 700)]
    for name, parts in {
        "few": [*few[::2], rng.integers(0, rows, 900)],
        "crowded": few + some,
        "spread": [*few, *some, rng.integers(-1, rows + 1, 3000)],
    }.items():
        at = rng.permutation(np.concatenate(parts))
        for width in (2, 3, 6, 64, 200) if name == "spread" else (6, 256):
            x = graph.constant(numbers(rng, (len(at), width), dtype))
            keys = at.astype(np.int32 if width % 3 else np.int64)
            y = _emit("TakeBwd", "t", x, graph.constant(keys), rows=rows)
            yield f"{name} of {width}", y
        shared = aicf.broadcast_to(graph.constant(at[:, None]), (len(at), 5))
        x = graph.constant(numbers(rng, (len(at), 5), dtype))
        yield f"{name} shared", _emit("ScatterAdd", "s", x, shared, axis=0, size=rows)


def pooled(rng, dtype, graph):
    """Gradients of windows side by side, of those that leave a rim, and of others; with elements
    that are equal, and NaN."""
    for shape, size, stride in (
        ((3, 5, 8, 12), 2, 2),
        ((2, 3, 9, 12), 3, 3),
        ((7, 2, 8, 8), (1, 4), (1, 4)),
        ((2, 2, 8, 9), (4, 3), (4, 3)),
        ((2, 3, 9, 13), 2, 2),
        ((2, 2, 10, 10), 5, 5),
        ((2, 2, 8, 8), 2, 1),
    ):
        values = numbers(rng, shape, dtype)
        values.flat[::7], values.flat[::3], values.flat[5::31] = 2, 2, np.nan
        x = graph.state(f"{shape} {size} {stride}", shape, dtype, init=values)
        for name, image in {"": x, " turned": aicf.permute(x, (0, 1, 3, 2))}.items():
            if name and shape[2] % np.max(size):
                continue
            y = aicf.max_pool2d(image, size, stride)
            dy = graph.constant(numbers(rng, y.shape, dtype))
            yield f"pool {shape} by {size}{name}", graph.backward(y, [image], grad=dy)[image]


def along(rng, dtype, graph):
    """Lines of a running sum and of argmax: those of a warp, some of a warp, some blocks of one."""
    for shape in ((3, 5000), (1100, 70), (34000, 65), (40, 63), (70000,)):
        x = graph.state(f"x{shape}", shape, dtype, init=numbers(rng, shape, dtype))
        yield f"running sum of {shape}", aicf.cumsum(x, -1)
        yield f"back of {shape}", graph.backward(aicf.cumsum(x, -1), [x], grad=x)[x]
        yield f"running sum of {shape} along 0", aicf.cumsum(x, 0)
        for axis in range(len(shape)):
            yield f"largest of {shape} along {axis}", aicf.argmax(x, axis)
    odd = numbers(rng, (9, 3000), dtype)
    odd[1:4, 5::700], odd[3:7, 1000:] = np.nan, 3
    yield "largest beside NaN", aicf.argmax(graph.constant(odd), 1)


def large(rng, dtype, graph):
    """So many elements that a thread takes several vectors, rows or columns at a time."""
    x = graph.state("x", (4, 1 << 21), dtype, init=numbers(rng, (4, 1 << 21), dtype))
    yield "joined", aicf.reshape(aicf.concat([x[:2], x[1:]], 0), (-1, 64))
    yield "padded", aicf.pad(x[:, : 1 << 20], [(0, 0), (8, 16)])
    yield "columns", aicf.sum(x, 0)
    yield "narrow columns", aicf.sum(aicf.reshape(x, (-1, 16)), 0)
    for n in (2, 3, 4, 16):
        yield f"short rows of {n}", aicf.max(aicf.reshape(x[:, : n << 18], (-1, n)), 1)
    at = places(rng, (1 << 15,), 1 << 15)
    rows = aicf.reshape(x, (1 << 15, 256))
    yield "rows", aicf.embedding(graph.constant(at), rows)
    yield "sums", _emit("TakeBwd", "t", rows, graph.constant(at), rows=5000)


def graph_of(what, dtype):
    g = aicf.Graph(what.__name__)
    for name, y in what(np.random.default_rng(3), dtype, g):
        g.output(name, aicf.cast(y, "float32") if y.dtype == "bfloat16" else y)
    return g


@pytest.mark.gpu
@pytest.mark.parametrize(
    "what, dtype",
    [
        (what, dtype)
        for what in (joined, scattered, sorted_rows, own_rows, pooled, along, large)
        for dtype in DTYPES
    ]
    + [(sorted_rows, dtype) for dtype in ("float16", "int8", "int16", "int32", "int64")],
)
def test_bits_of_both_devices(what, dtype):
    """Constants are folded away by default: nothing is left to run on the device then."""
    steps = {
        d: graph_of(what, dtype).compile(device=d, passes=[], checks="off") for d in ("cpu", "cuda")
    }
    for _ in range(2):  # the second run finds the counters as the first left them
        got = {device: step() for device, step in steps.items()}
        for name in got["cpu"]:
            cpu, cuda = (np.atleast_1d(got[device][name].numpy()) for device in ("cpu", "cuda"))
            same = cpu.view(f"u{cpu.itemsize}") == cuda.view(f"u{cuda.itemsize}")
            if cpu.dtype.kind == "f":
                same |= np.isnan(cpu) & np.isnan(cuda)
            assert same.all(), f"{name}: {(~same).sum()} of {same.size} differ"


@pytest.mark.gpu
def test_crowded_rows_in_a_group():
    """A member of a group has its blocks' threads in more blocks, the last of which clears what
    the blocks have counted; half of the positions are one row's."""
    rng = np.random.default_rng(3)
    g = aicf.Graph("group")
    for k in range(2):
        at = np.where(rng.random(1024) < 0.5, 7, rng.integers(0, 2048, 1024))
        x = g.state(f"x{k}", (1024, 8), init=rng.standard_normal((1024, 8)).astype(np.float32))
        keys = g.state(f"at{k}", (1024,), "int64", init=rng.permutation(at))
        g.output(f"y{k}", _emit("TakeBwd", "t", x, keys, rows=2048))
    steps = {d: g.compile(device=d, passes=("horizontal",)) for d in ("cpu", "cuda")}
    assert [op["op"] for op in steps["cuda"].lowered] == ["group"]
    for _ in range(3):
        got = {device: step() for device, step in steps.items()}
        for name in got["cpu"]:
            assert_bits(got["cuda"][name].numpy(), got["cpu"][name].numpy(), name)


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_text_compiles(arch):
    """A step of each kind; those that sort leave the registers of 512 threads, twice."""
    g = aicf.Graph("moves")
    x = g.state("x", (64, 512), "bfloat16")
    at = g.state("at", (64, 512), "int64")
    g.output("joined", aicf.concat([x, x[:, ::2]], 1))
    g.output("padded", aicf.pad(x, [(1, 0), (8, 8)]))
    g.output("rows", aicf.embedding(at[0], aicf.permute(x, (1, 0))))
    g.output("taken", _emit("TakeBwd", "t", x, at[:, 0], rows=500))
    g.output("many", _emit("TakeBwd", "t", aicf.permute(x, (1, 0)), at[0], rows=500))
    g.output("sums", _emit("ScatterAdd", "s", x, at, axis=1, size=100))
    g.output("last", _emit("ScatterLast", "l", at, axis=1, size=100))
    g.output("gathered", aicf.take_along_axis(x, at, 1))
    g.output("running", aicf.cumsum(x, 1))
    g.output("largest", aicf.argmax(x, 1))
    programs = _core.cuda_programs(g._core, _core.pass_names(), arch=arch)
    assert sum("sort_positions(" in p or "own_rows<" in p for p in programs) >= 3
    assert all(c[:4] == b"\x7fELF" for c in _core.cuda_cubins(programs, arch))
