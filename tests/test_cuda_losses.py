"""Cross entropy on a GPU: what stays in the launch that makes a loss and its gradient."""

import json
import re

import aicf
import ml_dtypes
import numpy as np
import pytest
from aicf import _core
from test_cuda_rows import alike, needs_compiler, to_bounds

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

WITHOUT_BLOCK = [name for name in _core.pass_names() if name != "block"]


def logits_of(n, count, dtype="float32"):
    """Some rows hold infinities, NaN or nothing else, or what lies far below the largest."""
    z = 3 * np.random.default_rng(n).standard_normal((count, n)).astype("f4")
    if count > 8:
        z[1, n // 2], z[2, n - 1], z[3, : n // 2], z[4] = np.inf, np.nan, -np.inf, -np.inf
        z[5, n // 3 :], z[6, n // 4 :] = -80, -1e30 if dtype != "float16" else -6e4
    if count > 16:
        to_bounds(z[9:15], 66048.0 if dtype != "float16" else 65504.0)
    return z.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def weighted(n, count, dtype="bfloat16", by="dy", cut=0, filled=True):
    """A loss whose gradient is multiplied: by a number that is given, a constant, one that is made
    of another tensor; or goes on, with numbers of rows and of classes and a tensor, in between; or
    whose logits are made of others; or labels that do not count. `cut`: of where rows begin.
    Not `filled`: states without numbers, to compile."""
    g = aicf.Graph(f"weighted {by}")
    rng = np.random.default_rng(count)

    def state(name, shape):
        if not filled:
            return g.state(name, shape, dtype)
        held = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        return g.state(name, shape, dtype, init=rng.standard_normal(shape).astype(held))

    logits = logits_of(n + cut, count, dtype) if filled else None
    x = g.state("x", (count, n + cut), dtype, init=logits)[:, cut:]
    labels = rng.integers(-1, n + 1, count)
    labels[0] = n - 1
    z = aicf.relu(x * 0.5) if by == "made" else x
    ignored = -1 if by == "ignored" else None
    loss = aicf.cross_entropy(z, g.constant(labels), ignore_index=ignored)
    if by == "constant":
        (dx,) = aicf.grad(loss * 1024.0, [x])
    elif by == "late":
        (dx,) = aicf.grad(loss, [x], aicf.mean(aicf.exp(state("w", (300,)))))
    else:
        (dx,) = aicf.grad(loss, [x], state("dy", ()))
    if by == "all":
        dx = (dx * state("rows", (count, 1)) + state("rest", (count, n))) * state("classes", (n,))
    elif by == "tanh":
        dx = aicf.tanh(dx * state("rows", (count, 1)) * 300.0) - state("rest", (count, n))
    g.output("loss", loss)
    g.output("dx", dx)
    return g


BY = ("dy", "constant", "late", "all", "tanh", "made", "ignored")


def launches(g, **options):
    """The steps of each launch's ops."""
    plan = json.loads(_core.cuda_plan(g._core, WITHOUT_BLOCK, processors=132, **options))
    return [
        [step["op"] for one in op.get("members", [op]) for step in one.get("body", [one])]
        for op in plan["ops"]
    ]


def has(found, steps):
    """Whether a launch begins with some steps."""
    return any(one[: len(steps)] == steps for one in found)


def step_of(n, count, dtype, by):
    """A plain loss and its gradient, or that times something."""
    g = aicf.Graph("plain")
    x, labels = g.state("x", (count, n), dtype), g.state("labels", (count,), "int64")
    loss = aicf.cross_entropy(x, labels)
    if by == "dy":
        (dx,) = aicf.grad(loss, [x], g.state("dy", (), dtype))
    elif by == "constant":
        (dx,) = aicf.grad(loss * 1024.0, [x])
    elif by == "one":
        (dx,) = aicf.grad(loss, [x])
    elif by == "rows":
        (dx,) = aicf.grad(loss, [x])
        dx = dx * g.state("rows", (count, 1), dtype)
    else:
        dx = aicf.grad(loss * loss, [x])[0]
    g.output("loss", loss)
    g.output("dx", dx)
    return g


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("n", [10, 768, 8192, 20000, 50304, 100_000])
def test_a_gradient_times_a_number_stays_in_the_launch_of_its_loss(n, dtype):
    for by in ("dy", "constant", "rows"):
        found = launches(step_of(n, 300, dtype, by))
        assert has(found, ["cross_entropy", "cross_entropy_grad", "mul"]), found
        assert sum("mul" in steps for steps in found) == 1
        assert len(found) == len(launches(step_of(n, 300, dtype, "one")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n", [10, 768, 50304])
def test_logits_that_are_made_of_others_are_read_once(n, dtype):
    for by, steps in {
        "made": ["mul", "relu", "cross_entropy", "cross_entropy_grad", "mul", "relu_bwd", "mul"],
        "ignored": ["where", "cross_entropy", "cross_entropy_grad", "mul", "where"],
    }.items():
        found = launches(weighted(n, 300, dtype, by, filled=False))
        assert has(found, steps), found


def test_logits_that_others_read_are_stored():
    g = aicf.Graph("both")
    x, labels = g.state("x", (300, 768)), g.state("labels", (300,), "int64")
    z = x * 0.5
    g.output("dx", aicf.grad(aicf.cross_entropy(z, labels), [x])[0])
    g.output("z", z)
    found = launches(g)
    assert not any({"cross_entropy", "cross_entropy_grad"} <= set(steps) for steps in found)


def test_a_gradient_that_is_weighted_by_its_loss_waits_for_it():
    found = launches(step_of(768, 300, "bfloat16", "loss"))
    assert ["cross_entropy", "cross_entropy_grad"] in found and ["mul"] in found


def test_a_gradient_that_others_read_is_stored():
    g = aicf.Graph("both")
    x, labels = g.state("x", (300, 768)), g.state("labels", (300,), "int64")
    (dx,) = aicf.grad(aicf.cross_entropy(x, labels), [x])
    g.output("dx", dx)
    g.output("twice", dx * 2.0)
    found = launches(g)
    assert not any("cross_entropy" in steps and "mul" in steps for steps in found)


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("n", [64, 768, 8192, 16388, 20000, 50304, 57344, 57348])
def test_kernels_of_weighted_losses_compile_and_on_hopper_spill_little(n, arch):
    for by in ("dy", "all", "tanh"):
        programs = [
            one
            for one in _core.cuda_programs(
                weighted(n, 4096, by=by, filled=False)._core, WITHOUT_BLOCK, 132, arch=arch
            )
            if "cross_entropy" in one
        ]
        assert len(programs) == 1
        kept = arch == "sm_90a" and 16384 < n <= 57344
        assert ("cross_entropy_kept<" in programs[0]) == kept
        log = _core.cuda_log(programs[0], arch)
        most = 20 if n == 57344 else 0  # a row a block, of 80 registers a thread
        assert arch == "sm_80" or int(re.search(r" (\d+) bytes spill stores", log)[1]) <= most, (
            n,
            by,
        )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n", [1, 10, 64, 513, 1030, 3000, 16384, 16388, 20001, 50304, 57348])
def test_bits_of_a_weighted_loss(n, dtype):
    """As apart and as on a CPU: labels that are no class, what is not finite, more rows than
    blocks, several replays."""
    count = 300 if n < 100 else 40 if n < 16384 else 9
    for by in BY:
        ends = []
        runs = [("cpu", "default"), ("cuda", "default"), ("cuda", [])]
        for device, passes in runs[:2] if n > 3000 else runs:
            step = weighted(n, count, dtype, by).compile(
                device=device, passes=passes, checks="off", seed=1
            )
            first, again = ({k: v.numpy() for k, v in step().items()} for _ in range(2))
            assert all(first[k].tobytes() == again[k].tobytes() for k in first)
            ends.append(again)
        for other in ends[1:]:
            for name, value in ends[0].items():
                alike(value, other[name])


@pytest.mark.gpu
def test_bits_of_a_weighted_loss_of_rows_that_blocks_take_in_turn():
    """Kept rows: blocks go on to further ones; where rows begin at no four elements."""
    for by, cut in (("dy", 0), ("all", 1)):
        ends = []
        for device in ("cpu", "cuda"):
            step = weighted(16388, 300, "bfloat16", by, cut).compile(
                device=device, checks="off", seed=1
            )
            ends.append({k: v.numpy() for k, v in step().items()})
        for name, value in ends[0].items():
            alike(value, ends[1][name])


AHEAD = [(40, 135_200), (768, 12_672), (768, 12_679), (1500, 9000)]


def test_rows_of_16_bits_are_read_ahead():
    for n, count in AHEAD:
        for rows, ahead in ((count, "256, "), (count // 4, "0, ")):
            (program,) = (
                one
                for one in _core.cuda_programs(
                    weighted(n, rows, filled=False)._core, WITHOUT_BLOCK, 132, arch="sm_90a"
                )
                if "cross_entropy" in one
            )
            (call,) = re.findall(
                r"cross_entropy_with_grad<float, HolderOf<[^>]*>, (\d+, )", program
            )
            assert call == ahead or (n > 1024 and call != "0, "), (n, rows, call)


@pytest.mark.gpu
@pytest.mark.parametrize("cut", [0, 1, 4])
@pytest.mark.parametrize(("n", "count"), AHEAD)
def test_bits_of_weighted_losses_of_rows_that_are_read_ahead(n, count, cut):
    ends = []
    for device in ("cpu", "cuda"):
        step = weighted(n, count, "bfloat16", "all" if cut else "dy", cut).compile(
            device=device, checks="off", seed=1
        )
        ends.append({k: v.numpy() for k, v in step().items()})
    for name, value in ends[0].items():
        alike(value, ends[1][name])


# ---- the mean ------------------------------------------------------------------------------------


def mean_of(n, count, dtype="bfloat16", gradient=False, behind=False):
    """The loss of random rows, with its gradient; `behind`: times a number, plus another."""
    rng = np.random.default_rng(count)
    held = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    g = aicf.Graph("mean")
    x = g.state("x", (count, n), dtype, init=(3 * rng.standard_normal((count, n))).astype(held))
    loss = aicf.cross_entropy(x, g.constant(rng.integers(0, n, count)))
    if gradient:
        g.output("dx", aicf.grad(loss, [x], g.state("dy", (), dtype, init=np.array(1.5, held)))[0])
    if behind:
        scale = g.state("scale", (), dtype, init=np.array(3, held))
        loss = aicf.tanh(loss * scale) + scale
    g.output("loss", loss)
    return g


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("n", [10, 768, 8192, 20000, 50304])
def test_a_loss_is_one_launch_with_its_mean(n, gradient):
    for behind in (False, True):
        g = mean_of(n, 1056, "bfloat16", gradient, behind)
        (op,) = json.loads(_core.cuda_plan(g._core, WITHOUT_BLOCK, processors=132))["ops"]
        assert op["op"] == "chain" and len(op["members"]) == 2


def test_a_mean_that_would_keep_others_waiting_is_a_launch_of_its_own():
    """A product reads the gradient, or the losses are many, or blocks."""
    g = aicf.Graph("layer")
    x, w = g.state("x", (2048, 64)), g.state("w", (1000, 64))
    loss = aicf.cross_entropy(x @ w.T, g.state("labels", (2048,), "int64"))
    g.output("loss", loss)
    g.output("dw", aicf.grad(loss, [w])[0])
    plan = json.loads(_core.cuda_plan(g._core, WITHOUT_BLOCK, processors=132))
    assert not any(op["op"] == "chain" for op in plan["ops"])
    assert len(launches(mean_of(10, 65536))) == 1
    assert len(launches(mean_of(10, 65537))) == 2
    assert len(launches(mean_of(8192, 8 * 132, "float32", True))) == 1
    assert len(launches(mean_of(8192, 8 * 132 + 1, "float32", True))) == 2


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("n", [64, 768, 8192, 20000, 50304])
def test_kernels_that_add_their_losses_spill_nothing(n, arch):
    for gradient in (False, True):
        (program,) = _core.cuda_programs(
            mean_of(n, 1056, gradient=gradient)._core, WITHOUT_BLOCK, 132, arch=arch
        )
        assert "add_losses<float, 1056>" in program
        assert " 0 bytes spill stores" in _core.cuda_log(program, arch), (n, gradient)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    ("n", "count"),
    [
        *((10, count) for count in (1, 2, 130, 511, 512, 513, 1024, 1151, 9000, 65536, 65537)),
        *((n, 700) for n in (1, 64, 100, 513, 1030)),
        *((n, 135) for n in (3000, 16384, 16388)),
        *((3000, 8 * 132 + more) for more in (0, 1)),  # a block each, of float32
        *((n, 3) for n in (20001, 50304, 57348)),
    ],
)
def test_bits_of_means(n, count, dtype):
    """As apart and as on a CPU, in step after step: what blocks count is 0 again."""
    for gradient, behind in ((False, True), (True, False)):
        ends = []
        runs = [("cpu", "default"), ("cuda", WITHOUT_BLOCK), ("cuda", [])]
        for device, passes in runs[:2] if n * count > 100_000 else runs:
            step = mean_of(n, count, dtype, gradient, behind).compile(
                device=device, passes=passes, seed=1
            )
            all_runs = [{k: v.numpy() for k, v in step().items()} for _ in range(3)]
            for k, v in all_runs[0].items():
                assert all(v.tobytes() == again[k].tobytes() for again in all_runs[1:])
            ends.append(all_runs[0])
        for other in ends[1:]:
            for name, value in ends[0].items():
                alike(value, other[name])


@pytest.mark.gpu
def test_a_step_with_its_mean_from_a_file(tmp_path):
    step = mean_of(100, 1500, "bfloat16", True).compile(device="cuda", passes=WITHOUT_BLOCK)
    step.export(tmp_path / "step.aicf")
    again = aicf.load_step(tmp_path / "step.aicf")
    for _ in range(2):
        want, got = step(), again()
        for name, value in want.items():
            assert value.numpy().tobytes() == got[name].numpy().tobytes()


# ---- losses alone --------------------------------------------------------------------------------


def alone(n, count, dtype="bfloat16", cut=0, wild=True):
    """A loss and, by another kernel of what the first has found, its gradient. `wild`: of numbers
    that are not finite, and labels that are no class. `cut`: of where rows begin; they lie as far
    from each other as eight more elements take, where it is below 0."""
    rng = np.random.default_rng(count)
    all_of = n + (cut if cut >= 0 else 8)
    z = logits_of(all_of, count if wild else 8, dtype)
    z = z if wild else np.resize(z, (count, all_of))
    g = aicf.Graph("alone")
    x = g.state("x", z.shape, dtype, init=z)[:, abs(cut) : abs(cut) + n]
    labels = rng.integers(-1, n + 1, count) if wild else rng.integers(0, n, count)
    loss = aicf.cross_entropy(x, g.constant(labels))
    g.output("loss", loss)
    if wild:
        dy = g.state("dy", (), dtype, init=np.array(1000, z.dtype))
        g.output("dx", aicf.grad(loss, [x], dy)[0])
    return g


def alone_call(n, count, dtype="bfloat16", arch="sm_90a"):
    """The kernel of such losses, what it is called with, its launch bounds and its text."""
    g = aicf.Graph("alone")
    x, labels = g.state("x", (count, n), dtype), g.state("labels", (count,), "int64")
    g.output("loss", aicf.cross_entropy(x, labels))
    texts = _core.cuda_programs(g._core, WITHOUT_BLOCK, 132, arch=arch)
    (program,) = (text for text in texts if "cross_entropy" in text)
    call = re.search(r"^    cross_entropy_(\w+)<float, (.*)aicf_\w+_Shape>\(", program, re.M)
    (bound,) = re.findall(r"__launch_bounds__\((.*?)\)", program)
    return *call.groups(), bound, program


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("n", "count", "bound"),
    [
        (4088, 16896, None),
        (4096, 8447, None),
        (4096, 8448, "64, 16"),
        (5120, 8448, "64, 16"),
        (6144, 5280, "96, 10"),
        (8184, 5280, "96, 10"),
        (8192, 4223, None),
        (8192, 4224, "128, 8"),
        (9000, 4224, "128, 8"),
        (16384, 3167, None),
        (16384, 3168, "128, 6"),
        (16388, 300, None),
        (16392, 132, "512"),
        (16392, 133, "256, 2"),
        (16392, 700, "128, 6"),
        (50304, 300, "256, 2"),
        (57352, 300, "256, 2"),
        (57360, 300, "896"),
        (65536, 300, "512"),
        (65544, 300, None),
    ],
)
def test_long_rows_of_losses_alone_are_filled_ahead(n, count, bound, dtype):
    """From 8 leaves on where rows are many, in blocks that share a processor; none spills but a
    word of the shortest where a block has a processor alone."""
    for arch in ("sm_90a", "sm_80"):
        name, _, found, program = alone_call(n, count, dtype, arch)
        if arch == "sm_80" or bound is None:
            assert name != "filled"
            continue
        assert (name, found) == ("filled", bound)
        spilled = int(re.search(r"(\d+) bytes spill stores", _core.cuda_log(program, arch))[1])
        assert spilled <= (4 if (n, count) == (16392, 132) else 0)


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("n", "count", "lanes", "bound"),
    [
        (40, 135_168, 4, "256"),
        (48, 135_168, 4, "256"),
        (56, 135_167, 2, None),
        (56, 135_168, 2, "256"),
        (64, 135_168, 2, "256"),
        (96, 67_584, 8, "256"),
        (104, 67_584, 4, "256"),
        (128, 67_584, 4, "256"),
        (136, 67_584, 16, "256"),
        (512, 33_792, 16, "256"),
        (520, 12_671, 32, None),
        (520, 12_672, 32, "256, 6"),
        (768, 12_672, 32, "256, 6"),
        (772, 8448, 32, "256, 5"),
        (1024, 8448, 32, "256, 5"),
        (1028, 8448, 32, None),
    ],
)
def test_short_rows_of_losses_alone_are_held_as_they_are_stored(n, count, lanes, bound, dtype):
    """Where they are read ahead; with up to 32 elements to a lane of short ones."""
    name, call, found, program = alone_call(n, count, dtype)
    assert (name == "ahead") == (bound is not None)
    if bound:
        held, late = re.search(
            r"HolderOf<float, \d+, (\d+), 1.*>, 256, \w+, (\w+), ", call
        ).groups()
        assert (int(held), late, found) == (lanes, str(n > 512).lower(), bound)
        assert " 0 bytes spill stores" in _core.cuda_log(program, "sm_90a")


# Rows that a GPU's teams take several of each, and rows of several blocks' shares.
@needs_compiler
@pytest.mark.parametrize("n", [64, 768, 8192, 50304])
def test_losses_alone_need_pairs_that_are_compared(n):
    """Which GPUs before 8.0 do not have."""
    for arch, words in (("sm_75", False), ("sm_90a", True)):
        *_, program = alone_call(n, 1 << 18 if n < 1024 else 4300, arch=arch)
        assert ('"loss_rows.cuh"' in program) == words, arch
        assert "registers" in _core.cuda_log(program, arch)


ALONE = [
    *((n, 0, rows) for n, rows in ((40, 1200), (64, 1200), (100, 600), (512, 260), (768, 100))),
    *((n, cut, rows) for n, cut, rows in ((772, 3, 70), (1024, -4, 70), (8192, 0, 33))),
    *((n, cut, rows) for n, cut, rows in ((4096, 0, 65), (4616, -3, 65), (6152, 0, 41))),
]


def bits_of_losses_alone(n, count, dtype, cut):
    """By a mean, and by a gradient apart; of other rows then: what blocks count is 0 again."""
    for wild in (False, True):
        ends = []
        for device, passes in (("cpu", "default"), ("cuda", [] if wild else WITHOUT_BLOCK)):
            step = alone(n, count, dtype, cut, wild).compile(
                device=device, passes=passes, checks="off", seed=1
            )
            ends.append({})
            for turn in range(2):
                ends[-1] |= {f"{name} {turn}": v.numpy().copy() for name, v in step().items()}
                step.load_state_dict({"x": -step.state_dict()["x"]}, strict=False)
        for name, value in ends[0].items():
            alike(value, ends[1][name])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("n", "cut", "rows"), ALONE)
def test_bits_of_losses_alone(n, cut, rows, dtype):
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    bits_of_losses_alone(n, rows * processors + 3, dtype, cut)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "count", "cut", "dtype"),
    [
        (16384, 9, 0, "bfloat16"),
        (16388, 9, 0, "bfloat16"),
        (16392, 300, 0, "bfloat16"),
        (16392, 40, -3, "float16"),
        (20008, 30, 0, "float16"),
        (50304, 9, 0, "bfloat16"),
        (57352, 9, 0, "float16"),
        (57360, 9, -8, "bfloat16"),
        (65536, 9, 0, "bfloat16"),
        (65544, 9, 0, "bfloat16"),
    ],
)
def test_bits_of_long_losses_alone(n, count, cut, dtype):
    bits_of_losses_alone(n, count, dtype, cut)


@needs_compiler
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("n", "leaves", "lanes"),
    [
        (56, 528, None),
        (64, 475, None),
        (64, 476, 1),
        (64, 529, None),
        (64, 950, None),
        (64, 951, 1),
        (64, 2048, 1),
        (64, 9232, 1),
        (64, 9233, None),
        (72, 528, None),
        (120, 528, None),
        (128, 1024, None),
        (248, 528, None),
        (256, 512, 4),
        (264, 512, None),
        (512, 512, None),
    ],
)
def test_blocks_add_leaves_of_losses(n, leaves, lanes, dtype):
    """Of as many pieces of eight elements to a lane, where few blocks have one less than others."""
    name, call, bound, program = alone_call(n, 512 * leaves, dtype)
    assert (name == "leaves") == (lanes is not None)
    for other in ((n, 512 * leaves + 1, dtype), (n, 512 * leaves, dtype, "sm_80")):
        assert alone_call(*other)[0] != "leaves"
    if lanes:
        assert f"HolderOf<float, {n}, {lanes}, 1, false, 8>, 256, " in call
        assert bound == "256, 4" and f"add_leaves<float, {leaves}>" in program
        spilled = re.search(r" (\d+) bytes spill stores", _core.cuda_log(program, "sm_90a"))[1]
        assert int(spilled) <= (0 if lanes == 1 else 20)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("n", "cut", "leaves"),
    [(64, 0, 8), (64, 0, 12), (64, 3, 4), (64, -8, 4), (256, 0, 8), (256, 0, 12), (256, -8, 4)],
)
def test_bits_of_losses_whose_leaves_blocks_add(n, cut, leaves, dtype):
    """Of a processor; a block has one leaf, two or three."""
    processors = _core.cuda_info()["devices"][0]["multiprocessors"]
    bits_of_losses_alone(n, 512 * leaves * processors, dtype, cut)


@pytest.mark.gpu
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("n", "count"),
    [
        (64, 1024),
        (64, 700),
        (256, 512),
        (768, 300),
        (2048, 150),
        (4104, 300),
        (8192, 70),
        (16392, 70),
    ],
)
def test_each_row_has_its_part_in_a_loss(n, count, dtype, grad):
    """One row alone has a loss; it, or one beside it, may have elements that are not small."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    rng = np.random.default_rng(n)
    steps = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("one of them")
        x, labels = g.input("x", (count, n), dtype), g.input("labels", (count,), "int32")
        loss = aicf.cross_entropy(x, labels)
        g.output("loss", aicf.cast(loss, "float32"))
        if grad:
            g.output("dx", aicf.cast(aicf.grad(loss, [x])[0], "float32"))
        steps.append(g.compile(device=device, checks="off"))
    z = 0.3 * rng.standard_normal((count, n)).astype("f4") - 8
    z[:, 0] = 28
    for r in {0, 1, 2, 31, 32, 33, 63, 64, 127, 128, 255, 257, count // 2, count - 2, count - 1}:
        if r >= count:
            continue
        labels, of = np.zeros(count, "i4"), z.copy()
        labels[r] = 1 + r % (n - 1)
        of[(r + 1) % count, 5] = (-8, -44, -1e4)[r % 3]
        of[r, 6] = (43, 43.25, -43)[r % 3]
        of = of.astype(kind)
        ends = [{k: v.numpy() for k, v in step(x=of, labels=labels).items()} for step in steps]
        wide = of.astype("f8")
        most = wide.max(1)
        sums = np.log(np.exp(wide - most[:, None]).sum(1))
        want = (sums - (wide[np.arange(count), labels] - most)).mean()
        assert abs(ends[1]["loss"] - want) <= 0.006 * want + 1e-7
        for name, value in ends[0].items():
            alike(value, ends[1][name])
