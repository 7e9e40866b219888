"""Rows where the kernels that take them change: lanes of a warp, warps, blocks, memory."""

import json
import math
import re

import aicf
import numpy as np
import pytest
from aicf import _core

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

needs_compiler = pytest.mark.skipif(
    not _core.cuda_info()["nvrtc"], reason="NVRTC is not installed (aicf[cuda13])"
)
DTYPES = ("float32", "bfloat16", "float64")
EDGES = {value for *_, what, value in _core.cuda_thresholds() if what == "rows.terms"}
LENGTHS = sorted({1, 3, 100, 300, 1500, 33000} | EDGES | {n + 1 for n in EDGES})
# Rows of some leaves, as many as an H200 of 132 processors takes by a warp for each leaf, and one
# more, of which a warp takes two.
FULL = [
    (n, math.ceil(2 * 32 * 132 / math.ceil(n / 512)) - 1 + more)
    for n in (1024, 1030, 4096)
    for more in (0, 1)
]


def rows_of(n, count, dtype):
    """Softmax, norms, losses and reductions of rows of n."""
    held = "float32" if dtype == "bfloat16" else dtype
    rng = np.random.default_rng(n)
    g = aicf.Graph("rows")
    x, dy = (
        aicf.cast(
            g.state(
                name, (count, n), held, init=(3 * rng.standard_normal((count, n))).astype(held)
            ),
            dtype,
        )
        for name in ("x", "dy")
    )
    w, b = g.param("w", (n,), dtype), g.param("b", (n,), dtype)

    def out(name, value):
        g.output(name, aicf.cast(value, held) if held != dtype else value)

    values = {
        "softmax": aicf.softmax(x),
        "log_softmax": aicf.gelu(aicf.log_softmax(x * 2)),
        "layer_norm": aicf.layer_norm(x, n, w, b),
        "rms_norm": aicf.rms_norm(x, n, w),
    }
    for name, y in values.items():
        out(name, y)
        out(f"d_{name}", g.backward(y, [x], grad=dy)[x])
    loss = aicf.cross_entropy(x, g.constant(np.arange(count) % n))
    out("loss", loss)
    out("d_loss", g.backward(loss, [x])[x])
    out("sum", aicf.sum(aicf.exp(x), axis=-1))
    out("largest", aicf.max(x, axis=-1))
    out("smallest", aicf.min(x, axis=-1))
    return g


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "count", "dtype"),
    [
        *((n, 130 if n <= 2100 else 3, dtype) for n in LENGTHS for dtype in DTYPES),
        *((n, count, "float32") for n, count in FULL),
    ],
)
def test_bits(n, count, dtype):
    """Of a GPU, in groups and apart, and of a CPU."""
    ends = []
    runs = [("cpu", "default"), ("cuda", "default"), ("cuda", [])]
    for device, passes in runs if dtype == "float32" else runs[:2]:
        step = rows_of(n, count, dtype).compile(device=device, seed=1, passes=passes)
        ends.append({name: value.numpy() for name, value in step().items()})
    for other in ends[1:]:
        for name, value in ends[0].items():
            alike(value, other[name])


# Rows of 16 bits, as many as a lane of an H200 takes four elements of, and one more.
WIDE = [
    (n, 8 * 132 * 32 // min(2 ** math.ceil(math.log2(n / 4)), 32) + more)
    for n in (8, 16, 24, 64, 120, 136, 512)
    for more in (0, 1)
] + [
    (n, 2 * 8 * 132 * 32 // lanes + more)
    for n, lanes in ((40, 8), (64, 8), (128, 16))
    for more in (0, 1)
]


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "count"), [(n, count) for n, count in WIDE if count % 2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bits_of_many_short_rows(n, count, dtype):
    ends = []
    for device, passes in (("cpu", "default"), ("cuda", "default"), ("cuda", [])):
        step = rows_of(n, count, dtype).compile(device=device, seed=1, passes=passes)
        ends.append({name: value.numpy() for name, value in step().items()})
    for other in ends[1:]:
        for name, value in ends[0].items():
            alike(value, other[name])


@pytest.mark.parametrize(("n", "count"), WIDE)
def test_many_short_rows_have_lanes_of_16_bytes(n, count):
    g = aicf.Graph("rows")
    g.output("y", aicf.softmax(g.input("x", (count, n), "bfloat16")))
    (program,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
    (team,) = re.findall(r"HolderOf<(.*?)>", program)
    lanes = min(2 ** math.ceil(math.log2(n / 8)), 16)
    wide = count > 8 * 132 * 32 // (2 * lanes)
    if 32 < n <= 128 and count > 2 * 8 * 132 * 32 // lanes:
        lanes //= 2
    ends = [f"{lanes}, 1, false, 8"] if wide else [f"{2 * lanes}, 1", f"{2 * lanes}, 1, true"]
    assert team in [f"float, {n}, {end}" for end in ends]


def heads(n, dtype, count=1030):
    """Reductions of the rows of three heads, which lie side by side in memory."""
    rng = np.random.default_rng(n)
    g = aicf.Graph("heads")

    def state(name, *shape):
        return g.state(name, shape, init=rng.standard_normal(shape).astype(np.float32))

    x, dy = (
        aicf.permute(aicf.cast(state(name, 2, count, 3, n), dtype), (0, 2, 1, 3))
        for name in ("x", "dy")
    )
    beside = state("beside", 2, 3, count, 1)
    product = aicf.cast(x, "float32") * aicf.cast(dy, "float32")
    g.output("sum", aicf.sum(product, axis=-1))
    g.output("kept", aicf.sum(aicf.sin(product), axis=-1, keepdims=True) * beside)
    g.output("most", aicf.cast(aicf.max(x, axis=-1), "float32"))
    g.output("heads", aicf.sum(product, axis=(1, 3)))
    return g


@pytest.mark.gpu
@pytest.mark.parametrize("n", [8, 36, 64, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bits_of_rows_that_lie_in_another_order(n, dtype):
    ends = []
    for device in ("cpu", "cuda"):
        ends.append({k: v.numpy() for k, v in heads(n, dtype).compile(device=device)().items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


def test_rows_are_taken_as_they_lie_in_memory():
    """By 16 bytes, some at a time; results are stored in their own order."""
    g = aicf.Graph("heads")
    x, dy = (g.input(name, (16, 1024, 12, 64), "bfloat16") for name in ("x", "dy"))
    x, dy = (aicf.cast(aicf.permute(v, (0, 2, 1, 3)), "float32") for v in (x, dy))
    g.output("y", aicf.sum(x * dy, axis=-1))
    (program,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
    assert "HolderOf<float, 64, 8, 1, false, 8>, 8, 2," in program
    assert all(re.search(rf"_In{k} : Line<64> ", program) for k in (0, 1))


@pytest.mark.parametrize(("n", "count"), FULL)
def test_many_rows_have_teams_of_half_as_many_warps(n, count):
    """From so many rows on as fill the processors; none idles while others take a second leaf."""
    leaves = math.ceil(n / 512)
    full = leaves * count >= 2 * 32 * 132
    warps = math.ceil(leaves / 2) if full else leaves
    g = aicf.Graph("rows")
    g.output("y", aicf.softmax(g.input("x", (count, n))))
    (program,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
    assert re.findall(r"HolderOf<(.*?)>", program) == [f"float, {n}, 32, {warps}"]


@needs_compiler
@pytest.mark.parametrize(
    ("n", "count"), [(2, 64), (10, 64), (100, 64), (513, 64), (16384, 64), FULL[1], FULL[5]]
)
def test_registers_hold_a_row(n, count):
    """None is spilled, whoever takes it."""
    for passes in (_core.pass_names(), []):
        g = rows_of(n, count, "float32")
        for program in _core.cuda_programs(g._core, passes, 132, arch="sm_90a"):
            if "HolderOf" in program:
                assert " 0 bytes spill stores" in _core.cuda_log(program, "sm_90a"), program[-400:]


@pytest.mark.gpu
@pytest.mark.parametrize("n", [100, 513, 3000, 16384, 33000])
def test_logits_take_the_place_of_what_they_are_made_of(n):
    """The element of the label is read before: a loss that reads it afterwards makes it twice."""
    rng, count = np.random.default_rng(n), 300
    g = aicf.Graph("logits")
    rows = g.param("rows", (50, n), init=rng.standard_normal((50, n)).astype("f4"))
    z = aicf.take(rows, g.constant(rng.integers(0, 50, count))) * 2.0 + 1.0
    g.output("loss", aicf.cross_entropy(z, g.constant(rng.integers(0, n, count))))
    g.output("order", aicf.argmax(aicf.cumsum(z, axis=1), axis=1))
    values = json.loads(_core.cuda_plan(g._core, _core.pass_names()))["values"].values()
    places = {value["name"]: value["storage"] for value in values}
    assert places["add_out"] == places["take_out"]
    host, device = (g.compile(device=device, seed=1) for device in ("cpu", "cuda"))
    want = host()["loss"].numpy().tobytes()
    assert [device()["loss"].numpy().tobytes() for _ in range(20)] == [want] * 20


def loss_of(n, count, dtype="float32"):
    """A classifier's loss and what reaches its features."""
    rng = np.random.default_rng(n)
    held = "float32" if dtype == "bfloat16" else dtype
    g = aicf.Graph("loss")
    x = g.param("x", (count, 8), held, init=rng.standard_normal((count, 8)).astype(held))
    w = g.param("w", (8, n), held, init=rng.standard_normal((8, n)).astype(held))
    z = aicf.cast(x @ w, dtype)
    labels = g.constant(rng.integers(-1, n + 1, count))  # some of which are no class
    loss = aicf.cross_entropy(z, labels)
    g.output("loss", aicf.cast(loss, held))
    for value, grad in g.backward(loss, [x, w]).items():
        g.output(f"d{value.name}", aicf.cast(grad, held))
    return g


# Of kernels with a flag: the rows that they read, and how often they would read each from memory.
KEPT = {
    "softmax_rows": {"false": [3], "true": [3]},  # of logarithms
    "softmax_bwd_rows": {"false": [2, 2], "true": [1, 2]},
    "normalize_rows": {"false": [2], "true": [3]},  # around a mean
    "normalize_bwd_rows": {"false": [2, 2], "true": [2, 3]},
    "cross_entropy_rows": {"0": [2]},
    "cross_entropy_with_grad": {"0": [3]},
}
# Bytes of spills where there are some, of blocks of 32 warps: 32 registers a thread.
SPILLED_KEPT = {
    ("cross_entropy_with_grad", 50304, "float32"): 4,
    ("cross_entropy_with_grad", 100_000, "bfloat16"): 12,
}


def teams_of(g, passes):
    """The kernels' calls, as (kernel, flag, the arguments of a KeeperOf or none, program)."""
    for program in _core.cuda_programs(g._core, passes, 132, arch="sm_90a"):
        call = re.search(r"^    (\w+)<float, (\w+)<(.*?)>, (?:(\w+), )?.*_Shape>\(", program, re.M)
        if call and call[1] in KEPT and call[2] != "CopierOf":  # which test_cuda_rows_ahead.py has
            yield call[1], call[4], call[3].split(", ") if call[2] == "KeeperOf" else None, program


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [16385, 28800, 50304, 100_000, 130_000])
def test_shared_memory_keeps_a_long_row(n, dtype):
    """Of 227 KiB on 9.0, where that saves two readings of a row; next to none is spilled."""
    size = 4 if dtype == "float32" else 2
    seen = set()
    for kernel, flag, kept, program in teams_of(rows_of(n, 300, dtype), _core.pass_names()):
        passes = KEPT[kernel][flag]
        bytes_ = len(passes) * n * size + 4 * n / 512
        saves = sum(passes) - len(passes) >= 2
        assert bool(kept) == (saves and bytes_ < 227 * 1024), (kernel, flag, bytes_)
        if kept:
            warps = "16" if bytes_ < 113 * 1024 else "32"
            assert kept[1:3] + kept[4:] == [str(n), warps, str(len(passes))]
            spilled = re.search(r" (\d+) bytes spill stores", _core.cuda_log(program, "sm_90a"))[1]
            assert int(spilled) <= SPILLED_KEPT.get((kernel, n, dtype), 0), kernel
        seen.add((kernel, flag))
    both = ("softmax_rows", "softmax_bwd_rows", "normalize_rows", "normalize_bwd_rows")
    if size == 4 or n not in (28800, 50304):  # which are filled or copied ahead
        assert {(kernel, flag) for kernel in both for flag in ("false", "true")} <= seen


@needs_compiler
@pytest.mark.parametrize("n", [16385, 50304, 100_000])
def test_a_loss_keeps_logits_that_it_stores(n):
    """Or whose gradient it makes: they would be read three times, and twice where it does not."""
    g = aicf.Graph("loss")
    x, labels = g.input("x", (300, n)), g.constant(np.arange(300))
    g.output("apart", aicf.cross_entropy(x, labels))
    z = x * 2.0
    g.output("stored", aicf.cross_entropy(z, labels))
    g.output("order", aicf.argmax(aicf.cumsum(z, axis=1), axis=1))
    kept = [bool(kept) for *_, kept, _ in teams_of(g, _core.pass_names())]
    assert sorted(kept) == [False, n < 57_992]
    (with_grad,) = (kept for _, flag, kept, _ in teams_of(loss_of(n, 300), _core.pass_names()))
    assert bool(with_grad) == (n < 57_992)


def to_bounds(rows, most=66048.0):
    """Moves six rows to where forms of their exponentials change: small elements, large ones."""
    for row, bound in zip(rows, (43.0, 43.25), strict=False):
        row += bound - row.max()
        row[row.argmin()] = -bound  # 86 below the largest is something yet, 86.5 is not
    for row, bound in zip(rows[2:], (-43.0, -43.25), strict=False):
        row += bound - row.min()
    rows[4] += most - 1024
    rows[5, ::2], rows[5, 1::2] = most, most - 512


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "many"),
    [
        *((n, False) for n in (10, 64, 200, 2048, 16388, 20001, 50304)),
        *((n, True) for n in (10, 64, 768, 3000)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_of_what_lies_far_below_the_largest(n, many, dtype):
    """Exponentials that are scaled in steps, or nothing; infinities and NaN. `many`: so many that
    teams which hold rows look first how far below they are."""
    rng = np.random.default_rng(n)
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    count = math.ceil(32768 * processors / n) if many else 40
    z = rng.standard_normal((count, n)).astype("f4")
    far = [-57.5, -58, -58.5, -60, -68.5, -69, -69.25, -80, -86, -86.5]
    far += [-87, -87.5, -88, -95, -103, -104, -105, -300, -np.inf]
    for r, low in enumerate(far):
        z[r, rng.integers(0, n, 1 + n // 7)] = low
        z[r, 3] = 0.0
    z[20], z[21, 5], z[22, 5], z[23] = -np.inf, np.inf, np.nan, 1e30
    z[24:34] *= 40
    to_bounds(z[34:40])
    slopes, labels = rng.standard_normal(z.shape).astype("f4"), rng.integers(-1, n, len(z))
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("far")
        x, dy = (aicf.cast(g.constant(a), dtype) for a in (z, slopes))
        values = {
            "softmax": aicf.softmax(x),
            "log_softmax": aicf.log_softmax(x),
            "loss": aicf.cross_entropy(x, g.constant(labels)),  # NaN, unlike its gradient
            "finite": aicf.cross_entropy(x[:13], g.constant(abs(labels[:13]))),
        }
        for name, y in values.items():
            g.output(name, aicf.cast(y, "float32"))
            slope = dy if y.shape == x.shape else None
            g.output(f"d_{name}", aicf.cast(aicf.grad(y, [x], slope)[0], "float32"))
        ends.append({k: v.numpy() for k, v in g.compile(device=device, checks="off")().items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


@needs_compiler
@pytest.mark.parametrize("n", [10, 513, 3000, 33000])
def test_a_loss_has_its_gradient_in_one_launch(n):
    """Which takes the place of the logits; what a row has one of lies nowhere."""
    passes = [name for name in _core.pass_names() if name != "block"]
    plan = json.loads(_core.cuda_plan(loss_of(n, 64)._core, passes))
    (both,) = (
        op
        for op in plan["ops"]
        if [step["op"] for step in op.get("body", ())] == ["cross_entropy", "cross_entropy_grad"]
    )
    loss, grad = (plan["values"][str(view["value"])] for view in both["outputs"])
    logits = plan["values"][str(both["inputs"][0]["value"])]
    assert loss["bytes"] == 4 * 64 and grad["storage"] == logits["storage"]
    assert len([op for op in plan["ops"] if "cross" in json.dumps(op)]) == 1
    for arch in ("sm_80", "sm_90a"):
        programs = _core.cuda_programs(loss_of(n, 64)._core, passes, arch=arch)
        _core.cuda_cubins(programs, arch)


@needs_compiler
@pytest.mark.parametrize("n", [10, 513, 3000, 33000, 50304, 57344, 57348])
def test_a_loss_of_narrow_logits_has_its_gradient_in_one_launch(n):
    """The logits of "mixed" are widened on their way in, the gradient narrowed on its way out; a
    block holds up to 57344 of them, of which few are spilled, and none of fewer."""
    passes = [name for name in _core.pass_names() if name != "block"]
    plan = json.loads(_core.cuda_plan(loss_of(n, 64)._core, passes, math="mixed"))
    both = next(op for op in plan["ops"] if "cross" in json.dumps(op))
    steps = [step["op"] for step in both["body"]]
    assert steps == ["cast", "cross_entropy", "cross_entropy_grad", "cast"]
    loss, grad = (plan["values"][str(view["value"])] for view in both["outputs"])
    logits = plan["values"][str(both["inputs"][0]["value"])]
    assert loss["bytes"] == 4 * 64 and grad["storage"] == logits["storage"]
    assert len([op for op in plan["ops"] if "cross" in json.dumps(op)]) == 1
    for arch in ("sm_80", "sm_90a"):
        programs = _core.cuda_programs(loss_of(n, 64)._core, passes, arch=arch, math="mixed")
        (program,) = (one for one in programs if "cross_entropy" in one)
        kept = arch == "sm_90a" and 16384 < n <= 57344
        assert ("cross_entropy_kept" in program) == kept
        spilled = re.search(r" (\d+) bytes spill stores", _core.cuda_log(program, arch))
        assert not kept or int(spilled[1]) <= (40 if n == 57344 else 0)
        _core.cuda_cubins(programs, arch)


def alike(one, other):
    """Bits, but for those of a NaN, which are whatever the processor gives it."""
    known = ~np.isnan(one)
    assert np.array_equal(known, ~np.isnan(other))
    assert one[known].tobytes() == other[known].tobytes()


def known_cores():
    """The tensor cores of the GPU, where a CPU can have their products."""
    arch = _core.cuda_info()["devices"][0]["arch"][:5]
    if arch != "sm_90":
        pytest.skip(f"a CPU has no products as tensor cores of {arch} make them")
    return arch


@pytest.mark.gpu
@pytest.mark.parametrize("n", [10, 513, 3000, 16388, 33000, 50304, 57344])
def test_bits_of_a_loss_of_narrow_logits(n):
    """With its gradient, as on a CPU: more rows than blocks, labels that are no class."""
    ends = []
    for device in ("cpu", "cuda"):
        cores = known_cores() if device == "cpu" else None
        step = loss_of(n, 300).compile(
            device=device, math="mixed", checks="off", tensor_cores=cores
        )
        step()
        ends.append({name: value.numpy() for name, value in step().items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


@pytest.mark.gpu
@pytest.mark.parametrize("n", [3000, 20000])
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_bits_of_losses_that_are_not_finite(n, cut):
    """Rows with infinities, NaN or nothing else; rows that begin where no four elements do."""
    rng = np.random.default_rng(n + cut)
    z = rng.standard_normal((9, n + cut)).astype("f4") * 4
    z[1, 7], z[2, n - 1], z[3, 5:50] = np.inf, np.nan, -np.inf
    z[4], z[5], z[6, 9:20] = -np.inf, np.inf, 1e30
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("wild")
        logits = g.param("z", z.shape, init=z)
        labels = g.constant(np.array([5, 7, n - 1, 5, 0, n - 1, 9, -1, n], "i4"))
        narrow = aicf.cast(logits, "bfloat16")[:, cut:]
        loss = aicf.cross_entropy(narrow, labels, reduction="none")
        g.output("each", aicf.cast(loss, "float32"))
        total = aicf.sum(aicf.cast(loss, "float32"))
        g.output("dz", g.backward(total, [logits])[logits])
        step = g.compile(device=device, checks="off", seed=1)
        ends.append({name: value.numpy() for name, value in step().items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("n", [1, 10, 100, 513, 3000, 16384, 20000, 33000])
def test_bits_of_a_loss_with_its_gradient(n, dtype):
    """As apart and as on a CPU, with labels that are no class."""
    ends = []
    for device, passes in (("cpu", "default"), ("cuda", "default"), ("cuda", [])):
        cores = known_cores() if device == "cpu" else None
        step = loss_of(n, 67, dtype).compile(
            device=device, passes=passes, checks="off", tensor_cores=cores
        )
        step()
        ends.append({name: value.numpy() for name, value in step().items()})
    for other in ends[1:]:
        for name, value in ends[0].items():
            alike(value, other[name])


COLUMNS = [  # terms, results: a thread takes all lanes of some, or a warp several lanes
    (33, 280_000), (64, 270_336), (65, 270_340), (128, 271_000), (1 << 19, 8),
    ((1 << 19) + 77, 16), (270_337, 20), (270_336, 48), (290_001, 62),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "count"), COLUMNS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_of_columns(n, count, dtype):
    """Of aligned columns, and of others; the largest, too."""
    data = np.random.default_rng(n).standard_normal((n, count + 1), np.float32)
    ends = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("columns")
        x = aicf.cast(g.state("x", data.shape, init=data), dtype)
        for name, part in {"all": x, "cut": x[:, 1:]}.items():
            g.output(name, aicf.cast(aicf.sum(part, axis=0), "float32"))
        g.output("most", aicf.cast(aicf.max(x[:, :count], axis=0), "float32"))
        whole = aicf.reshape(aicf.reshape(x, (-1,))[: n * count], (n, count))
        g.output("whole", aicf.cast(aicf.sum(whole, axis=0), "float32"))
        ends.append({k: v.numpy() for k, v in g.compile(device=device)().items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


@needs_compiler
@pytest.mark.parametrize(
    ("n", "count", "kernel"),
    [
        (64, 4 * 512 * 132, "reduce_few_across<"), (64, 4 * 512 * 132 - 4, "reduce_wide_columns<"),
        (129, 4 * 512 * 132, "reduce_wide_columns<"), (32, 4 * 512 * 132, "reduce_few<"),
        (528 * 512, 16, "reduce_wide_columns<"), (527 * 512, 16, "reduce_columns<"),
        (528 * 512, 15, "reduce_columns<"),
    ],
)  # fmt: skip
def test_columns_have_the_kernel_that_fits(n, count, kernel):
    g = aicf.Graph("columns")
    g.output("y", aicf.sum(g.input("x", (n, count)), axis=0))
    (program,) = _core.cuda_programs(g._core, _core.pass_names(), 132, arch="sm_90a")
    assert kernel in program
    assert " 0 bytes spill stores" in _core.cuda_log(program, "sm_90a")
